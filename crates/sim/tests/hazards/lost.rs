//! Members that fail in use with the only copy of something: that is lost, exactly that, and the pool
//! goes on. What is lost fails to be read until it is overwritten; what is older is never read instead,
//! and never brought to the origin, whoever is there at the next start.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::Runtime;
use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_engine::planted::Bug;
use forebay_engine::{EventKind, Hold, Mode, Place, Tuning};

use crate::changing::{add, id_of, touch};
use crate::is_write;
use crate::rig::{BLOCK, KINDS, Plan, Rig, SOON, lazy, provoke, same, survive, version};

const BLOCKS: u64 = 12;

/// Everything has one copy.
fn plan(members: usize) -> Plan {
    let tuning = Tuning { lap_percent: 20, ..lazy() };
    Plan { members, copies: 1, tuning, ..Plan::default() }
}

/// What a member does: one write fails, all writes, one flush, everything, or nothing is answered.
fn strike(rig: &Rig, member: usize, kind: u64, after: u64) {
    let broken = &rig.broken[member];
    match kind % 5 {
        0 => broken.failing.arm(Trigger::every(Ops::Writes).after(after).times(1)),
        1 => broken.failing.arm(Trigger::every(Ops::Writes).after(after)),
        2 => broken.failing.arm(Trigger::every(Ops::Flushes).after(after).times(1)),
        3 => broken.failing.arm(Trigger::every(Ops::All).after(after)),
        _ => broken.hanging.arm(Trigger::every(Ops::All).after(after)),
    }
}

/// The blocks of these of which something is there.
pub fn in_place(rig: &Rig, blocks: Range<u64>, place: Place) -> BTreeSet<u64> {
    let is_there = |block: &u64| {
        let mut extents = Vec::new();
        rig.volume().status(block * BLOCK as u64, BLOCK as u64, &mut extents).unwrap();
        extents.iter().any(|extent| extent.place == place)
    };
    blocks.filter(is_there).collect()
}

/// The blocks that are lost.
fn lost(rig: &Rig) -> BTreeSet<u64> {
    in_place(rig, 0..BLOCKS, Place::Lost)
}

/// Dirty bytes that a member has alone.
fn alone_on(rig: &Rig, member: usize) -> u64 {
    let id = rig.pool().superblock().members[member].device;
    rig.pool().can_pull(id).unwrap().only_dirty_bytes
}

/// Versions of all blocks, in sets on all members: each is somewhere, and older ones elsewhere.
fn spread(rig: &Rc<Rig>, versions: u64) -> Result<(), String> {
    for version in 2..=versions {
        (0..BLOCKS).try_for_each(|block| rig.write(version, block, 1))?;
        rig.flush()?;
    }
    Ok(())
}

/// What is lost fails, all else has this version.
fn verify(rig: &Rc<Rig>, lost: &BTreeSet<u64>, newest: u64, when: &str) -> Result<(), String> {
    for block in 0..BLOCKS {
        match (rig.read(block), lost.contains(&block)) {
            (Err(_), true) => {}
            (found, true) => return Err(format!("lost block {block} {when}: {found:?}")),
            (found, false) => same(&format!("block {block} {when}"), found?, newest).map(drop)?,
        }
    }
    Ok(())
}

/// Overwrites what is lost, brings all home, and looks whether it is what was read.
fn comes_home(rig: &Rc<Rig>) -> Result<(), String> {
    for block in lost(rig) {
        rig.write(90, block, 1)?;
        same("overwritten", rig.read(block)?, 90)?;
    }
    let told = rig.flush();
    rig.flush().map_err(|error| format!("{error}, after {told:?}"))?;
    rig.destage()?;
    (0..BLOCKS).try_for_each(|block| rig.settled(block))
}

/// The pool goes on without a member that had so many dirty bytes alone: exactly that is lost, now and after
/// starts, and all else is served, written and brought home.
fn goes_on_without(
    rig: &Rc<Rig>,
    seed: u64,
    (failed, expected): (usize, u64),
) -> Result<(), String> {
    let gone = lost(rig);
    if rig.pool().is_latched() {
        return Err("latched".to_owned());
    }
    if gone.len() as u64 * BLOCK as u64 != expected {
        return Err(format!("{gone:?} are lost, and {expected} B were there alone"));
    }
    verify(rig, &gone, 4, "at once")?;
    let told = |kind| rig.pool().events().iter().any(|event| event.kind == kind);
    assert!(told(EventKind::MemberFailed));
    assert_eq!(told(EventKind::BlocksLost), !gone.is_empty());
    assert_eq!(rig.flush().is_err(), !gone.is_empty(), "who writes is told by a FLUSH");
    rig.flush()?;
    // A part of a block leaves the rest of it lost; so it is refused.
    if let Some(&block) = gone.first() {
        let part = rig.start_write_sector(9, block * 8 + 3);
        rig.pause(SOON);
        assert_eq!(part.get(), Some(false));
    }
    for turn in 0..2 {
        rig.crash(KINDS[((seed + turn) % 2) as usize]);
        rig.broken[failed].mend();
        let members = rig.members.len();
        let others: Vec<usize> = (0..members).filter(|&i| i != failed).collect();
        rig.offer(&if turn == 0 { others } else { (0..members).collect() });
        rig.open()?;
        assert_eq!(lost(rig), gone, "at start {turn}");
        verify(rig, &gone, 4, "after a crash")?;
    }
    comes_home(rig)?;
    rig.stop()?;
    rig.open()?;
    assert_eq!(lost(rig), BTreeSet::new());
    (0..BLOCKS).try_for_each(|block| {
        let newest = if gone.contains(&block) { 90 } else { 4 };
        same("in the end", rig.read(block)?, newest).map(drop)
    })
}

#[test]
fn exactly_what_was_on_the_failed_member_alone_is_lost() {
    provoke(Bug::LossNotMarked, 16, |seed| {
        let rig = Rig::new(seed, plan(2 + (seed / 8 % 2) as usize));
        spread(&rig, 4)?;
        let failed = (seed % 2) as usize;
        let expected = alone_on(&rig, failed);
        strike(&rig, failed, [1, 3, 4][seed as usize % 3], 0);
        touch(&rig);
        rig.pause(100 * SOON);
        goes_on_without(&rig, seed, (failed, expected))
    });
}

/// Nothing is written to it before: destaging or a move is the first to ask it for what it has alone.
#[test]
fn a_member_that_returns_nothing_any_more_takes_only_what_it_had_alone() {
    survive(16, |seed| {
        let rig = Rig::new(seed, plan(2 + (seed / 8 % 2) as usize));
        spread(&rig, 4)?;
        let mut members = (seed as usize..).map(|member| member % rig.members.len());
        let failed = members.find(|&member| alone_on(&rig, member) > 0).unwrap();
        let expected = alone_on(&rig, failed);
        match seed / 2 % 4 {
            0 => rig.broken[failed].gone.set(true),
            _ => rig.broken[failed].failing.arm(Trigger::every(Ops::Reads)),
        }
        if seed / 2 % 4 < 2 {
            let volume = rig.volume();
            rig.world.spawn(Box::pin(async move {
                volume.destage().await.ok();
            }));
        } else {
            let (pool, id) = (rig.pool(), id_of(&rig, failed));
            rig.world.spawn(Box::pin(async move {
                let departure = pool.begin_departure(id).unwrap();
                departure.end().await.ok();
            }));
        }
        rig.pause(100 * SOON);
        goes_on_without(&rig, seed, (failed, expected))
    });
}

/// What a client was told of a block.
#[derive(Clone, Copy)]
struct Told {
    acknowledged: u64,
    durable: u64,
    asked: u64,
}

/// Writes versions and flushes; what fails although the pool has not ended is an error.
fn write_on(rig: &Rc<Rig>, told: &mut [Told], versions: Range<u64>) -> Result<(), String> {
    let over = |error: &str| error.contains("crashed as asked");
    for version in versions {
        for (block, told) in (0..).zip(told.iter_mut()) {
            told.asked = version;
            match rig.write(version, block, 1) {
                Ok(()) => told.acknowledged = version,
                Err(error) if over(&error) => return Ok(()),
                Err(error) => {
                    let events = rig.pool().events();
                    let latched = events.iter().find(|event| event.kind == EventKind::Latched);
                    return Err(format!("a write failed: {error}; {latched:?}"));
                }
            }
        }
        match rig.flush() {
            Ok(()) => told.iter_mut().for_each(|told| told.durable = told.acknowledged),
            Err(error) if over(&error) => return Ok(()),
            Err(error) if error.contains("was lost with a cache device") => {}
            Err(error) => return Err(format!("a flush failed: {error}")),
        }
    }
    Ok(())
}

/// After whatever has happened: what can be read is what it may be; what cannot is lost.
fn judge(rig: &Rc<Rig>, told: &[Told], crash: Option<Crash>) -> Result<usize, String> {
    for (block, told) in (0..).zip(told) {
        let least = match crash {
            Some(Crash::PowerCut) => told.durable,
            _ => told.acknowledged,
        };
        let fits = |found: u64| (least..=told.asked).contains(&found);
        let mut found = rig.read(block);
        if crash.is_none() && found.is_err() {
            // A read that fails is no failure of its member; a write is.
            (0..3).for_each(|_| touch(rig));
            found = rig.read(block);
        }
        let is_lost = lost(rig).contains(&block);
        if !found.as_ref().map_or(is_lost, |&found| !is_lost && fits(found)) {
            let range = format!("{least} to {}", told.asked);
            return Err(format!("block {block}: {found:?}, not {range}; lost: {is_lost}"));
        }
    }
    Ok(lost(rig).len())
}

const FRESH: Told = Told { acknowledged: 1, durable: 1, asked: 1 };

/// A member fails at any of its requests, in any way: writes go on, and no start brings back what is older.
fn fails_anywhere(seed: u64, members: usize) -> Result<(), String> {
    let mut losses = 0;
    for after in 0..60 {
        let luck = seed + after;
        let failed = luck as usize % members;
        let rig = Rig::new(seed, plan(members));
        strike(&rig, failed, seed, after);
        let mut told = [FRESH; BLOCKS as usize];
        let at = |error: String| format!("after {after}: {error}");
        write_on(&rig, &mut told, 2..7).map_err(at)?;
        assert!(!rig.pool().is_latched());
        losses += judge(&rig, &told, None).map_err(at)?;
        let before = lost(&rig);
        let noticed = rig.was_told("the pool goes on without it");
        rig.crash(KINDS[(luck % 2) as usize]);
        rig.broken[failed].mend();
        if noticed && (luck / 2).is_multiple_of(2) {
            rig.offer(&(0..members).filter(|&i| i != failed).collect::<Vec<_>>());
        }
        rig.open().map_err(at)?;
        assert_eq!(lost(&rig), before);
        let crash = KINDS[(luck % 2) as usize];
        judge(&rig, &told, Some(crash)).map_err(at)?;
        comes_home(&rig).map_err(at)?;
    }
    assert!(losses > 0, "nothing was ever lost");
    Ok(())
}

#[test]
fn one_of_two_fails_at_any_request_and_takes_only_what_it_had_alone() {
    provoke(Bug::LossNotDurable, 5, |seed| fails_anywhere(seed, 2));
}

#[test]
fn one_of_three_fails_at_any_request_and_takes_only_what_it_had_alone() {
    survive(5, |seed| fails_anywhere(seed, 3));
}

/// The process or the power ends at any request while losses are noted: whoever is there at the next start,
/// nothing older is read. If the failed member is believed, nothing is lost at all.
fn ends_while_marking(seed: u64, members: usize) -> Result<(), String> {
    let mut opened = [0; 3];
    let (mut whole, mut marked) = (0, 0);
    for ios in 1..130 {
        let luck = seed + ios;
        let failed = seed as usize % members;
        let rig = Rig::new(seed, plan(members));
        let mut told = [FRESH; BLOCKS as usize];
        write_on(&rig, &mut told, 2..4)?;
        strike(&rig, failed, seed / 2, seed % 3);
        rig.world.crash_at(Some(rig.world.io_count() + ios));
        let at = |error: String| format!("{ios} I/Os: {error}");
        write_on(&rig, &mut told, 4..7).map_err(at)?;
        let crash = KINDS[(luck % 2) as usize];
        rig.crash(crash);
        rig.broken[failed].mend();
        let others: Vec<usize> = (0..members).filter(|&i| i != failed).collect();
        let offer = (luck / 2 % 3) as usize;
        rig.offer(&[(0..members).collect(), others, vec![failed]][offer]);
        match rig.open() {
            Err(error) if offer > 0 && error.contains("NeedsDecision") => continue,
            other => other.map_err(at)?,
        }
        opened[offer] += 1;
        let lost = judge(&rig, &told, Some(crash)).map_err(at)?;
        let is_named = rig.pool().superblock().present().count() == members;
        if is_named && lost > 0 {
            return Err(at(format!("{lost} blocks are lost although their member is back")));
        }
        whole += usize::from(is_named);
        marked += lost;
        comes_home(&rig).map_err(at)?;
    }
    assert!(opened[0] > 0 && opened[1] > 0 && opened[2] == 0, "{opened:?}");
    assert!(whole > 0 && (marked > 0 || members > 2), "{whole} whole, {marked} blocks lost");
    Ok(())
}

#[test]
fn a_crash_while_losses_of_one_of_two_are_noted_brings_nothing_older_back() {
    provoke(Bug::LossNotDurable, 10, |seed| ends_while_marking(seed, 2));
}

#[test]
fn a_crash_while_losses_of_one_of_three_are_noted_brings_nothing_older_back() {
    survive(10, |seed| ends_while_marking(seed, 3));
}

/// Another member fails while what the first one took is being noted; then the process or the power ends.
fn fails_while_marking(seed: u64, copies: u8) -> Result<(), String> {
    let mut lost = 0;
    for after in 0..30 {
        for ios in (0..60).step_by(7) {
            let luck = seed + after + ios;
            let (first, second) = (luck as usize % 3, (luck as usize + 1) % 3);
            let rig = Rig::new(seed, Plan { copies, ..plan(3) });
            let mut told = [FRESH; BLOCKS as usize];
            write_on(&rig, &mut told, 2..4)?;
            strike(&rig, first, 3, 0);
            // One that cannot be read although it works may latch the pool: another matter.
            strike(&rig, second, [1, 2, 4][seed as usize % 3], after);
            let cut = (ios > 0).then(|| rig.world.io_count() + after + ios);
            rig.world.crash_at(cut);
            let at = |error: String| format!("after {after}, cut {ios}: {error}");
            if cut.is_none() {
                touch(&rig);
                lost += judge(&rig, &told, None).map_err(at)?;
            }
            write_on(&rig, &mut told, 4..6).map_err(at)?;
            if cut.is_none() {
                assert!(!rig.pool().is_latched(), "{}", at(String::new()));
                judge(&rig, &told, None).map_err(at)?;
            }
            let crash = KINDS[(luck % 2) as usize];
            rig.crash(crash);
            rig.broken.iter().for_each(crate::rig::Breakage::mend);
            let third = 3 - first - second;
            rig.offer(&[vec![0, 1, 2], vec![third], vec![second, third]][luck as usize / 2 % 3]);
            match rig.open() {
                Err(error) if error.contains("NeedsDecision") => {
                    rig.crash(Crash::ProcessKill);
                    rig.offer(&[0, 1, 2]);
                    rig.open().map_err(at)?;
                }
                other => other.map_err(at)?,
            }
            judge(&rig, &told, Some(crash)).map_err(at)?;
            comes_home(&rig).map_err(at)?;
        }
    }
    assert!(lost > 0, "nothing was ever lost");
    Ok(())
}

#[test]
fn a_second_member_that_fails_while_losses_are_noted_takes_no_more_than_its_own() {
    survive(6, |seed| fails_while_marking(seed, 1));
}

#[test]
fn the_second_of_two_copies_that_fails_at_once_takes_what_both_had() {
    survive(3, |seed| fails_while_marking(seed, 2));
}

/// A write that was on its way to the failed member goes to another one, and a newer one is not lost with
/// what was there before.
#[test]
fn what_is_on_its_way_when_a_member_is_lost_is_written_elsewhere() {
    provoke(Bug::InFlightKept, 12, |seed| {
        let rig = Rig::new(seed, plan(2));
        spread(&rig, 3)?;
        let failed = (seed % 2) as usize;
        // Many at a time, so that records are under way on both.
        strike(&rig, failed, [1, 3, 4][seed as usize % 3], seed / 3 % 4);
        let writes: Vec<_> = (0..BLOCKS).map(|block| rig.start_write(4, block, 1)).collect();
        rig.pause(100 * SOON);
        assert!(writes.iter().all(|write| write.get()));
        rig.flush().ok();
        rig.flush()?;
        let gone = lost(&rig);
        for block in 0..BLOCKS {
            match rig.read(block) {
                Ok(4) => {}
                Err(_) if gone.contains(&block) => {}
                found => return Err(format!("block {block}: {found:?}")),
            }
        }
        rig.crash(Crash::PowerCut);
        rig.broken[failed].mend();
        rig.open()?;
        verify(&rig, &gone, 4, "after a power cut")
    });
}

/// A start takes nothing for lost that it can have: without a member that may be back it asks, as ever.
#[test]
fn the_last_member_and_one_without_a_witness_latch_the_pool() {
    survive(4, |seed| {
        let rig = Rig::new(seed, plan(2));
        spread(&rig, 3)?;
        rig.witness_refuses.set(seed % 2 == 0);
        let pull = |member: usize| {
            let id = rig.pool().superblock().members[member].device;
            rig.pool().can_pull(id).map(|pull| pull.held_by)
        };
        let only = (0..2).filter(|&member| alone_on(&rig, member) > 0);
        assert!(only.map(|member| pull(member).unwrap()).all(|held| held == Some(Hold::OnlyCopy)));
        let alone = alone_on(&rig, 0);
        strike(&rig, 0, 3, 0);
        touch(&rig);
        rig.pause(10 * SOON);
        if seed % 2 == 0 {
            assert!(rig.pool().is_latched());
        } else {
            assert_eq!(pull(1).unwrap(), Some(Hold::Last));
            strike(&rig, 1, 3, 0);
            touch(&rig);
            assert!(rig.pool().is_latched());
        }
        rig.crash(Crash::PowerCut);
        rig.broken.iter().for_each(crate::rig::Breakage::mend);
        rig.witness_refuses.set(false);
        rig.open()?;
        let gone = lost(&rig);
        assert_eq!(gone.len() as u64 * BLOCK as u64, alone, "the other one has the newest epoch");
        verify(&rig, &gone, 3, "after a restart")?;
        comes_home(&rig)?;
        let origin = rig.origin.peek(0, BLOCK);
        version(0, &origin).map(drop)
    });
}

/// All is written twice, so that the root is older than some of it.
fn written(rig: &Rc<Rig>) -> Result<(), String> {
    for round in 2..4 {
        (0..BLOCKS).try_for_each(|block| rig.write(round, block, 1))?;
        rig.flush()?;
    }
    Ok(())
}

/// The power is cut; then this member is all that is left, and what others took is accepted.
fn opens_alone(rig: &Rc<Rig>, member: usize) -> Result<(), String> {
    rig.crash(Crash::PowerCut);
    rig.broken.iter().for_each(crate::rig::Breakage::mend);
    rig.offer(&[member]);
    rig.accepts.set(true);
    rig.open()
}

/// The root that notes what the second one took is written over the one that superblocks name by then.
#[test]
fn a_second_loss_may_be_cut_off_while_it_is_noted() {
    survive(4, |seed| {
        for (after, ios) in (5..8).flat_map(|after| (15..24).map(move |ios| (after, ios))) {
            let luck = (seed + after + ios) as usize;
            let (first, second) = (luck % 3, (luck + 1) % 3);
            let rig = Rig::new(seed, plan(3));
            written(&rig)?;
            rig.broken[first].failing.arm(Trigger::every(Ops::All));
            rig.broken[second].failing.arm(Trigger::every(Ops::Writes).after(after));
            rig.world.crash_at(Some(rig.world.io_count() + after + ios));
            for block in 0..BLOCKS {
                rig.write(4, block, 1).ok();
            }
            rig.flush().ok();
            let at = |error| format!("after {after}, cut off at {ios}: {error}");
            opens_alone(&rig, 3 - first - second).map_err(at)?;
        }
        Ok(())
    });
}

#[test]
fn who_joins_while_a_loss_is_noted_has_the_root_that_counts() {
    survive(2, |seed| {
        for (after, ios) in (0..4).flat_map(|after| (30..60).map(move |ios| (after, ios))) {
            let rig = Rig::new(seed, Plan { spares: 1, ..plan(2) });
            written(&rig)?;
            rig.broken[seed as usize % 2].failing.arm(Trigger::every(Ops::Writes).after(after));
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            add(&rig, 2).map(drop).ok();
            rig.world.run_for(SOON).ok();
            match opens_alone(&rig, 2) {
                Err(error) if error.contains("no readable root") => {
                    return Err(format!("after {after}, cut off at {ios}: {error}"));
                }
                // It may not have joined by then.
                _ => {}
            }
        }
        Ok(())
    });
}

/// One piece of a write is published on the member that fails at the next piece, and a FLUSH beside it is told
/// of that before the write is acknowledged.
#[test]
fn a_write_that_lost_a_part_on_its_way_is_told_of_by_the_flush_behind_it() {
    survive(4, |seed| {
        let mut told = 0;
        for (failed, after) in (0..2).flat_map(|failed| (0..4).map(move |after| (failed, after))) {
            let rig = Rig::new(seed, Plan { origin_bytes: 8 << 20, ..plan(2) });
            (1020..1028).try_for_each(|block| rig.write(2, block, 1))?;
            rig.flush()?;
            rig.broken[failed].failing.arm(Trigger::every(Ops::Writes).after(after));
            // A stripe ends in the middle.
            let done = rig.start_write(4, 1022, 4);
            let mut beside = Ok(());
            while !done.get() && beside.is_ok() {
                beside = rig.flush();
            }
            rig.pause(100 * SOON);
            assert!(done.get());
            if beside.is_ok() {
                continue;
            }
            told += 1;
            let behind = rig.flush();
            let whole = (1022..1026).all(|block| rig.read(block) == Ok(4));
            if behind.is_ok() && !whole {
                return Err(format!("{failed} fails after {after}: durable, and it is not"));
            }
        }
        assert!(told > 0);
        Ok(())
    });
}

/// What is lost and was accepted is what the origin has, for good: whatever crash comes, and also with what is older
/// in the log of those who are left.
#[test]
fn what_is_accepted_as_lost_is_the_origins_from_then_on() {
    provoke(Bug::TombstoneForgotten, 8, |seed| {
        let rig = Rig::new(seed, plan(2 + (seed / 4 % 2) as usize));
        spread(&rig, 4)?;
        let failed = (seed % 2) as usize;
        strike(&rig, failed, [1, 3, 4][seed as usize % 3], 0);
        touch(&rig);
        rig.pause(100 * SOON);
        let gone = lost(&rig);
        let volume = rig.volume();
        let accepted = rig.run(async move { volume.accept_lost().await }).unwrap().unwrap();
        assert_eq!((accepted, rig.volume().lost_blocks()), (gone.len() as u64, 0));
        let expected = |block| if gone.contains(&block) { 1 } else { 4 };
        let holds = |when: &str| {
            let right = |block| same(when, rig.read(block)?, expected(block)).map(drop);
            (0..BLOCKS).try_for_each(right)
        };
        holds("at once")?;
        for turn in 0..2 {
            rig.crash(KINDS[((seed + turn) % 2) as usize]);
            rig.broken[failed].mend();
            let members = rig.members.len();
            let others: Vec<usize> = (0..members).filter(|&i| i != failed).collect();
            rig.offer(&if turn == 0 { others } else { (0..members).collect() });
            rig.open()?;
            assert_eq!(lost(&rig), BTreeSet::new(), "at start {turn}");
            holds("after a crash")?;
        }
        rig.flush().ok();
        comes_home(&rig)?;
        holds("at home")
    });
}

/// The process or the power ends at any request of an acceptance: what was lost is lost, or the origin's.
#[test]
fn a_crash_in_the_middle_of_an_acceptance_leaves_lost_what_was_not_accepted() {
    survive(4, |seed| {
        let mut opened = [0; 2];
        for ios in 1..40 {
            let rig = Rig::new(seed, plan(2));
            spread(&rig, 4)?;
            let failed = (seed % 2) as usize;
            strike(&rig, failed, 3, 0);
            touch(&rig);
            rig.pause(100 * SOON);
            let gone = lost(&rig);
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            let volume = rig.volume();
            let accepted = rig.run(async move { volume.accept_lost().await });
            let accepted = accepted.is_ok_and(|accepted| accepted.is_ok());
            rig.crash(KINDS[(ios % 2) as usize]);
            rig.broken[failed].mend();
            rig.open()?;
            let left = lost(&rig);
            opened[usize::from(accepted)] += 1;
            assert!(left.is_subset(&gone) && (!accepted || left.is_empty()), "{ios}: {left:?}");
            for block in (0..BLOCKS).filter(|block| !left.contains(block)) {
                let expected = if gone.contains(&block) { 1 } else { 4 };
                same("after a crash", rig.read(block)?, expected)?;
            }
            rig.flush().ok();
            comes_home(&rig)?;
        }
        assert!(opened[0] > 0 && opened[1] > 0, "{opened:?}");
        Ok(())
    });
}

/// A write to the origin that was under way when its block was lost may arrive at any time. What is written
/// around the log after the loss was accepted is newer.
#[test]
fn what_was_on_its_way_to_the_origin_does_not_overtake_what_is_written_after_an_acceptance() {
    survive(8, |seed| {
        let rig = Rig::new(seed, plan(2));
        spread(&rig, 4)?;
        let failed = (seed % 2) as usize;
        // Some of it arrives, some of it is kept.
        rig.origin_broken.hanging.arm(Trigger::every(Ops::Writes));
        let volume = rig.volume();
        rig.world.spawn(Box::pin(async move {
            volume.destage().await.ok();
        }));
        rig.pause(SOON);
        assert!(rig.origin_broken.stuck.count() > 0);
        rig.origin_broken.hanging.disarm();
        strike(&rig, failed, 3, 0);
        touch(&rig);
        rig.pause(100 * SOON);
        let gone = lost(&rig);
        if gone.is_empty() {
            return Err("nothing was lost".into());
        }
        // An origin that is silent may still take what is lost: who accepts is told, and asks again.
        let accept = || {
            let volume = rig.volume();
            rig.run(async move { volume.accept_lost().await })
        };
        let mut accepted = accept()?;
        if accepted.is_err() {
            rig.origin_broken.answer();
            rig.pause(SOON);
            accepted = accept()?;
        }
        same("accepted", accepted.map_err(|error| error.to_string())?, gone.len() as u64)?;
        let volume = rig.volume();
        rig.run(async move { volume.set_mode(Mode::Writethrough).await })?
            .map_err(|error| error.to_string())?;
        for &block in &gone {
            rig.write(5, block, 1)?;
        }
        rig.origin_broken.answer();
        rig.pause(SOON);
        rig.flush().ok();
        for &block in &gone {
            same("newest", rig.read(block)?, 5)?;
            rig.settled(block)?;
        }
        Ok(())
    });
}

/// A crash may forget the fact; a loss that goes on need not.
#[test]
fn what_its_origin_has_is_not_lost_where_only_the_fact_of_that_is_not_in_the_log() {
    survive(6, |seed| {
        let rig = Rig::new(seed, plan(2));
        rig.write(2, 3, 1)?;
        rig.flush()?;
        let member = (0..2).find(|&member| alone_on(&rig, member) > 0).unwrap();
        rig.gates.iter().for_each(|gate| gate.hold(1, is_write));
        let volume = rig.volume();
        rig.world.spawn(Box::pin(async move { drop(volume.destage().await) }));
        rig.pause(SOON);
        let on_origin = version(3, &rig.origin.peek(3 * BLOCK as u64, BLOCK))?;
        same("the origin", on_origin, 2)?;
        assert_eq!(rig.gates.iter().map(|gate| gate.held()).sum::<usize>(), 2, "the fact");
        rig.gates.iter().for_each(|gate| gate.hold(0, is_write));
        strike(&rig, member, 1, 0);
        let done = rig.start_write(3, 5, 1);
        rig.pause(SOON);
        rig.gates.iter().for_each(|gate| gate.release());
        rig.pause(SOON);
        assert!(done.get());
        assert_eq!(lost(&rig), BTreeSet::new());
        same("what came home", rig.read(3)?, 2)?;
        same("what was on its way", rig.read(5)?, 3).map(drop)
    });
}

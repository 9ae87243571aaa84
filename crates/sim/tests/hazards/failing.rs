//! A member that fails while the pool is in use. Nobody notices but the events, and nothing that was
//! acknowledged is lost, however it goes on: with the power cut, with the failed member back, or with
//! another one lost.

use std::rc::Rc;

use forebay_device::Request;
use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::runtime::SECOND;
use forebay_engine::format::SUPERBLOCK_BYTES;
use forebay_engine::ids::BLOCK_BYTES;
use forebay_engine::planted::Bug;
use forebay_engine::witness::without_members;
use forebay_engine::{EventKind, Mode, Tuning};

use crate::rig::{KINDS, Plan, Rig, SOON, lazy, provoke, same, survive};
use crate::subsets::starts_by_the_rule;

/// One write, all writes, one flush, everything.
fn failures(after: u64) -> [Trigger; 4] {
    [
        Trigger::every(Ops::Writes).after(after).times(1),
        Trigger::every(Ops::Writes).after(after),
        Trigger::every(Ops::Flushes).after(after).times(1),
        Trigger::every(Ops::All).after(after),
    ]
}

fn is_superblock(request: &Request) -> bool {
    matches!(request, Request::Write { offset, .. } if *offset < 2 * SUPERBLOCK_BYTES as u64)
}

fn has_failed(rig: &Rig) -> bool {
    rig.pool().events().iter().any(|event| event.kind == EventKind::MemberFailed)
}

/// What was written to one member alone is acknowledged only when the other one is out: if that came
/// back alone, the host would take it for current.
#[test]
fn nothing_counts_before_the_epoch_without_a_failed_member() {
    provoke(Bug::EpochNotAwaited, 4, |seed| {
        let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
        let (failed, other) = ((seed % 2) as usize, 1 - (seed % 2) as usize);
        rig.write(2, 3, 1)?;
        rig.flush()?;
        rig.gates[other].hold(1, is_superblock);
        rig.broken[failed].failing.arm(Trigger::every(Ops::Writes));
        let done = rig.start_write(3, 3, 1);
        rig.pause(SOON);
        assert_eq!(rig.gates[other].held(), 1, "the epoch is on its way");
        let acknowledged = done.get();
        rig.crash(Crash::ProcessKill);
        rig.broken[failed].mend();
        rig.offer(&[failed]);
        rig.open()?;
        match rig.read(3)? {
            2 if !acknowledged => Ok(()),
            3 => Ok(()),
            found => Err(format!("acknowledged {acknowledged}, version {found}")),
        }
    });
}

/// A short life: writes, rewrites, misses, destaging, a root. Every request must succeed.
/// `each` carries out every step.
pub fn live(rig: &Rc<Rig>, each: &Each) -> Result<(), String> {
    let write = |version, block, count| each(rig, &mut |rig| rig.write(version, block, count));
    let flush = || each(rig, &mut |rig| rig.flush());
    let read = |block| each(rig, &mut |rig| rig.read(block).map(drop));
    (0..6).try_for_each(|block| write(2, 2 * block, 1))?;
    flush()?;
    read(20)?;
    read(20)?;
    rig.pause(SOON);
    write(3, 2, 3)?;
    each(rig, &mut |rig| rig.destage())?;
    write(4, 8, 1)?;
    flush()?;
    read(21)?;
    write(5, 10, 1)?;
    flush()
}

type Each = dyn Fn(&Rc<Rig>, &mut dyn FnMut(&Rc<Rig>) -> Result<(), String>) -> Result<(), String>;

/// The version of a block after [`live`].
pub fn newest(block: u64) -> u64 {
    match block {
        2..=4 => 3,
        8 => 4,
        10 => 5,
        0 | 6 => 2,
        _ => 1,
    }
}

pub fn verify(rig: &Rc<Rig>, when: &str) -> Result<(), String> {
    (0..24).try_for_each(|block| {
        same(&format!("block {block} {when}"), rig.read(block)?, newest(block)).map(drop)
    })
}

/// After a crash all is there, with the member that has failed or without it, and can be brought home.
pub fn goes_on(rig: &Rc<Rig>, members: usize, failed: usize, without: bool) -> Result<(), String> {
    rig.broken[failed].mend();
    if without {
        let others: Vec<usize> = (0..members).filter(|&i| i != failed).collect();
        rig.offer(&others);
    }
    rig.open()?;
    verify(rig, "after a crash")?;
    rig.destage()?;
    (0..24).try_for_each(|block| rig.settled(block))?;
    rig.stop()?;
    rig.open()?;
    verify(rig, "after a stop")
}

/// Every request of a member is the first one that fails, in turn, in each way.
fn fails_everywhere(seed: u64, members: usize) -> Result<(), String> {
    for kind in 0..4 {
        for after in 0.. {
            let luck = seed + after;
            let failed = (luck as usize) % members;
            let agreed = (luck / 2).is_multiple_of(2);
            let tuning = Tuning { lap_percent: 2, ..lazy() };
            let plan = Plan { members, copies: 2, agreed, tuning, ..Plan::default() };
            let rig = Rig::new(seed, plan);
            let faults = Rc::clone(&rig.broken[failed].failing);
            faults.arm(failures(after)[kind].clone());
            let at = |error: String| format!("way {kind} after {after} on {failed}: {error}");
            live(&rig, &|rig, step| step(rig)).map_err(at)?;
            verify(&rig, "at once").map_err(at)?;
            let hit = faults.hits() > 0;
            let noticed = has_failed(&rig);
            assert!(!rig.pool().is_latched());
            rig.crash(KINDS[(luck / 4 % 2) as usize]);
            let without = noticed && (luck / 8).is_multiple_of(2);
            goes_on(&rig, members, failed, without).map_err(at)?;
            if !hit {
                assert!(after > 5, "it had something to fail at");
                break;
            }
        }
    }
    Ok(())
}

#[test]
fn one_of_two_members_fails_at_any_request() {
    survive(2, |seed| fails_everywhere(seed, 2));
}

#[test]
fn one_of_three_members_fails_at_any_request() {
    survive(2, |seed| fails_everywhere(seed, 3));
}

/// What a client was told of some blocks.
struct Told {
    /// Newest version that a write was acknowledged for, and that a FLUSH was.
    acknowledged: u64,
    durable: u64,
    /// Newest version that was asked for.
    asked: u64,
}

/// Writes versions to four blocks and flushes, until the process ends.
fn write_on(rig: &Rc<Rig>) -> [Told; 4] {
    let mut told = [1; 4].map(|asked| Told { acknowledged: 1, durable: 1, asked });
    for version in 2..12 {
        for (block, told) in (0..).zip(&mut told) {
            told.asked = version;
            if rig.write(version, 3 * block, 1).is_ok() {
                told.acknowledged = version;
            }
        }
        if rig.flush().is_ok() {
            told.iter_mut().for_each(|told| told.durable = told.acknowledged);
        }
    }
    told
}

/// The process or the power ends at any request while the pool goes on without a member. Whoever of
/// them is there at the next start, with a host that remembers the witness: nothing that was
/// acknowledged is missing, or the pool does not open by itself.
fn ends_while_going_on(seed: u64, members: usize, hangs: bool) -> Result<(), String> {
    let mut opened = [0; 3];
    for ios in 1..120 {
        let luck = seed + ios;
        let failed = (seed as usize) % members;
        // Of two, the one that is left goes on with one copy, or everything goes home.
        let agreed = (seed / 2).is_multiple_of(2);
        let rig = Rig::new(seed, Plan { members, copies: 2, agreed, ..Plan::default() });
        rig.write(1, 0, 12)?;
        rig.flush()?;
        if hangs {
            rig.broken[failed].hanging.arm(Trigger::every(Ops::All).after(seed % 5));
        } else {
            let trigger = failures(seed % 5)[(seed / 5 % 4) as usize].clone();
            rig.broken[failed].failing.arm(trigger);
        }
        rig.world.crash_at(Some(rig.world.io_count() + ios));
        let told = write_on(&rig);
        let crash = KINDS[(luck % 2) as usize];
        rig.crash(crash);
        rig.broken[failed].mend();
        let others: Vec<usize> = (0..members).filter(|&i| i != failed).collect();
        // All, those that went on, or (of two) the one that they went on without.
        let offer = if members == 2 { luck / 2 % 3 } else { luck / 2 % 2 } as usize;
        let offered = [(0..members).collect(), others, vec![failed]];
        let at = |error: String| format!("{ios} I/Os, offer {offer}: {error}");
        if !starts_by_the_rule(&rig, &offered[offer]).map_err(at)?.0 {
            assert_eq!(offer, 2, "{ios} I/Os: those that went on");
            continue;
        }
        opened[offer] += 1;
        for (block, told) in (0..).zip(&told) {
            let found = rig.sectors(3 * block).map_err(at)?;
            let least = if crash == Crash::PowerCut { told.durable } else { told.acknowledged };
            if !found.iter().all(|found| (least..=told.asked).contains(found)) {
                let what = format!("block {block}: {found:?}, not {least} to {}", told.asked);
                return Err(at(what));
            }
        }
        rig.destage().map_err(at)?;
        (0..12).try_for_each(|block| rig.settled(block)).map_err(at)?;
    }
    assert!(opened[0] > 0 && opened[1] > 0 && (members > 2 || opened[2] > 0), "{opened:?}");
    Ok(())
}

#[test]
fn a_crash_while_one_of_two_is_left_behind_takes_nothing() {
    survive(10, |seed| ends_while_going_on(seed, 2, false));
}

#[test]
fn a_crash_while_one_of_three_is_left_behind_takes_nothing() {
    survive(5, |seed| ends_while_going_on(seed, 3, false));
}

#[test]
fn a_crash_while_one_of_two_hangs_takes_nothing() {
    survive(5, |seed| ends_while_going_on(seed, 2, true));
}

#[test]
fn a_crash_while_one_of_three_hangs_takes_nothing() {
    survive(5, |seed| ends_while_going_on(seed, 3, true));
}

/// With the old witness the failed member would be believed if it came back alone: nothing more is
/// acknowledged, so there is nothing that it lacks.
#[test]
fn a_member_that_fails_while_the_witness_cannot_be_written_latches_the_pool() {
    survive(12, |seed| {
        let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
        let failed = (seed % 2) as usize;
        rig.write(2, 3, 8)?;
        rig.flush()?;
        rig.witness_refuses.set(true);
        if seed / 2 % 2 == 0 {
            rig.broken[failed].failing.arm(Trigger::every(Ops::Writes));
            rig.write(3, 3, 1).unwrap_err();
        } else {
            rig.write(3, 3, 1)?;
            rig.broken[failed].failing.arm(Trigger::every(Ops::Flushes));
        }
        rig.flush().unwrap_err();
        rig.write(4, 5, 1).unwrap_err();
        assert!(rig.pool().is_latched() && !has_failed(&rig));
        assert!(rig.was_told("the witness cannot be written: read-only"));
        assert!(rig.was_told("without a cache device and without a witness"));
        same("read from a pool that has latched", rig.read(7)?, 2)?;
        rig.crash(KINDS[(seed / 4 % 2) as usize]);
        rig.broken[failed].mend();
        rig.witness_refuses.set(false);
        // The failed one alone, the other one alone, or both.
        rig.offer(&[vec![failed], vec![1 - failed], vec![0, 1]][(seed % 3) as usize]);
        rig.open()?;
        let found = rig.read(3)?;
        if ![2, 3].contains(&found) {
            return Err(format!("version {found}"));
        }
        (4..11)
            .filter(|block| *block != 5)
            .try_for_each(|block| same("what was acknowledged", rig.read(block)?, 2).map(drop))?;
        rig.destage()?;
        (3..11).try_for_each(|block| rig.settled(block))
    });
}

/// A state directory that is full is no reason to fail writes, or to take a volume for clean that is not: a clean one is
/// written through, one that may be dirty is written back as before.
#[test]
fn a_clean_volume_is_written_through_while_the_witness_cannot_be_written() {
    survive(8, |seed| {
        let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
        let fresh = seed % 2 == 0;
        if !fresh {
            rig.write(2, 3, 8)?;
        }
        rig.witness_refuses.set(true);
        rig.write(3, 3, 4)?;
        let volume = rig.volume();
        rig.run(async move {
            volume.write_zeroes(20 * BLOCK_BYTES, 4 * BLOCK_BYTES, false).await?;
            volume.trim(30 * BLOCK_BYTES, 4 * BLOCK_BYTES, false).await
        })?
        .map_err(|error| error.to_string())?;
        rig.flush()?;
        assert!(!rig.pool().is_latched() && rig.was_told("cannot be written: read-only") == fresh);
        assert_eq!(rig.pool().blocks().1 == 0, fresh, "what is owed");
        same("read back", rig.read(3)?, 3)?;
        rig.witness_refuses.set(false);
        rig.pause(20 * SOON);
        assert_eq!(rig.was_told("up to date again"), fresh);
        rig.write(4, 5, 8)?;
        rig.flush()?;
        assert!(rig.pool().blocks().1 > 0);
        rig.restart(KINDS[(seed / 2 % 2) as usize])?;
        same("before", rig.read(3)?, 3)?;
        same("after", rig.read(5)?, 4).map(drop)
    });
}

/// What superblocks call dirty the witness knows, also where neither the write nor the start after it could tell it.
#[test]
fn a_witness_that_stays_unwritable_over_a_start_takes_no_dirty_volume_for_clean() {
    survive(4, |seed| {
        let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
        rig.witness_refuses.set(true);
        rig.write(2, 3, 8)?;
        rig.flush()?;
        rig.restart(KINDS[(seed % 2) as usize])?;
        rig.write(3, 3, 8)?;
        rig.flush()?;
        let known = rig.recall().and_then(|bytes| without_members(&bytes).ok());
        let withheld = known.is_some_and(|known| !known.withheld.is_empty());
        assert!(rig.pool().blocks().1 == 0 || withheld, "the witness has it for clean");
        same("read back", rig.read(3)?, 3)?;
        rig.witness_refuses.set(false);
        rig.destage()
    });
}

/// One that knows of the loss has nothing more to hear about it.
#[test]
fn a_witness_that_cannot_be_written_keeps_no_start_from_an_epoch_that_it_knows() {
    survive(4, |seed| {
        let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
        let failed = (seed % 2) as usize;
        rig.write(2, 3, 8)?;
        rig.broken[failed].failing.arm(Trigger::every(Ops::Writes));
        rig.write(3, 3, 1)?;
        rig.flush()?;
        assert!(has_failed(&rig));
        rig.crash(KINDS[(seed / 2 % 2) as usize]);
        rig.offer(&[1 - failed]);
        let known = rig.recall();
        rig.witness_refuses.set(true);
        rig.open()?;
        same("with what it knew", rig.read(3)?, 3)?;
        rig.crash(KINDS[(seed / 2 % 2) as usize]);
        rig.remember(None);
        let error = rig.open().unwrap_err();
        assert!(error.contains("would be believed"), "{error}");
        rig.remember(known);
        rig.witness_refuses.set(false);
        rig.open()?;
        same("afterwards", rig.read(3)?, 3).map(drop)
    });
}

/// A state directory that is full for a moment: writes wait, reads do not, and the pool goes on without the member once
/// the witness can be written.
#[test]
fn a_witness_that_can_be_written_in_time_latches_nothing() {
    survive(8, |seed| {
        let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
        let failed = (seed % 2) as usize;
        rig.write(2, 3, 8)?;
        rig.flush()?;
        rig.witness_refuses.set(true);
        rig.broken[failed].failing.arm(Trigger::every(Ops::Writes));
        let writing = rig.start_write(3, 3, 1);
        rig.pause(50 * SOON);
        assert!(rig.was_told("the witness cannot be written: read-only"));
        assert!(!writing.get() && !rig.pool().is_latched() && !has_failed(&rig));
        same("read meanwhile", rig.read(7)?, 2)?;
        rig.witness_refuses.set(false);
        rig.pause(20 * SOON);
        assert!(writing.get() && has_failed(&rig) && !rig.pool().is_latched());
        rig.flush()?;
        rig.crash(KINDS[(seed / 4 % 2) as usize]);
        rig.offer(&[1 - failed]);
        rig.open()?;
        same("after a restart", rig.read(3)?, 3).map(drop)
    });
}

/// A write whose record has come to a member, and is to be written once more since another one has failed with the only
/// copy of something: if the last one fails meanwhile, a start may find that record, so nobody is told what was before.
#[test]
fn what_a_start_may_find_of_a_write_that_failed_is_not_read_before() {
    survive(4, |seed| {
        let mut failed = 0;
        for after in 0..40 {
            let rig = Rig::new(seed, Plan { members: 2, ..Plan::default() });
            for round in 0..2 {
                (0..24).try_for_each(|block| rig.write(2, block, 1))?;
                rig.flush()?;
                rig.pause(round * SOON);
            }
            let first = (seed % 2) as usize;
            rig.broken[first].failing.arm(Trigger::every(Ops::Writes));
            rig.broken[1 - first].failing.arm(Trigger::every(Ops::Writes).after(after));
            (0..24).for_each(|block| drop(rig.start_write(3, block, 1)));
            rig.pause(SECOND);
            let read: Vec<_> = (0..24).map(|block| rig.read(block)).collect();
            failed += u32::from(rig.pool().is_latched());
            rig.crash(Crash::ProcessKill);
            rig.broken.iter().for_each(|broken| broken.mend());
            rig.open()?;
            for (block, read) in (0..).zip(read) {
                // It may be noted by now that it is lost.
                if let (Ok(read), Ok(found)) = (read, rig.read(block)) {
                    same(&format!("block {block} after {after}"), found, read)?;
                }
            }
        }
        assert!(failed > 4, "{failed} times both failed");
        Ok(())
    });
}

/// A part of a block is written while the rest of it, clean, is on a member that has just failed.
#[test]
fn a_part_of_a_block_that_failed_with_its_member_is_completed_from_the_origin() {
    survive(8, |seed| {
        let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
        for _ in 0..2 {
            (0..20).try_for_each(|block| same("filled", rig.read(block)?, 1).map(drop))?;
            rig.pause(SOON);
        }
        assert_eq!(rig.pool().blocks().0, 20, "all are cached");
        let failed = (seed % 2) as usize;
        rig.gates[1 - failed].hold(1, is_superblock);
        rig.broken[failed].gone.set(true);
        let first = rig.start_write(2, 30, 1);
        rig.pause(SOON);
        assert!(rig.gates[1 - failed].held() == 1 && !first.get(), "the epoch is on its way");
        // One sector of each block, with what it has already.
        let writes: Vec<_> =
            (0..20).map(|block| rig.start_write_sector(1, block * 8 + 3)).collect();
        rig.pause(SOON);
        rig.gates[1 - failed].release();
        rig.pause(SOON);
        assert!(writes.iter().all(|write| write.get() == Some(true)), "none has failed");
        (0..20).try_for_each(|block| same("completed", rig.read(block)?, 1).map(drop))?;
        rig.destage()?;
        (0..20).try_for_each(|block| rig.settled(block))
    });
}

/// With fewer members than copies nothing is written back that the owner did not agree to; what is
/// dirty goes home by itself.
#[test]
fn with_too_few_members_left_the_pool_protects_what_is_dirty() {
    survive(8, |seed| {
        let plan = Plan { members: 2, copies: 2, agreed: false, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        for block in 0..20 {
            rig.write(2, block, 1)?;
        }
        assert_eq!(rig.pool().blocks().1, 20, "dirty, and nobody destages");
        let failed = (seed % 2) as usize;
        rig.broken[failed].failing.arm(Trigger::every(Ops::Flushes).times(1));
        rig.flush()?;
        assert!(rig.was_told("fewer copies than asked until it is destaged"));
        assert!(rig.was_told("is written through until there are members enough"));
        rig.write(3, 40, 1)?;
        rig.flush()?;
        assert_eq!(crate::rig::version(40, &rig.origin.peek(40 * 4096, 4096))?, 3, "on the origin");
        rig.pause(20 * SECOND);
        assert_eq!(rig.pool().blocks().1, 0, "protected, clean");
        same("hit", rig.read(3)?, 2)?;
        rig.crash(Crash::PowerCut);
        rig.offer(&[1 - failed]);
        rig.open()?;
        (0..20).try_for_each(|block| same("home", rig.read(block)?, 2).map(drop))?;
        same("written through", rig.read(40)?, 3).map(drop)
    });
}

/// Who writes the same blocks again and again does not keep them dirty with fewer copies than were promised: what
/// is written over dirty data is logged once more, then waits until it is clean, and goes to the origin.
#[test]
fn rewriting_what_is_dirty_does_not_keep_protection_from_ending() {
    provoke(Bug::ProtectionWithoutEnd, 6, |seed| {
        let plan = Plan { members: 2, copies: 2, agreed: false, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        (0..20).try_for_each(|block| rig.write(2, block, 1))?;
        let failed = (seed % 2) as usize;
        rig.broken[failed].failing.arm(Trigger::every(Ops::Flushes).times(1));
        rig.flush()?;
        let (mut version, mut newest) = (2, [2; 2]);
        let rewrite = |version: &mut u64, newest: &mut [u64; 2], rounds: u64| {
            for round in 0..rounds {
                let block = round % 2;
                *version += 1;
                newest[block as usize] = *version;
                rig.write(*version, block, 1)?;
                if round % 4 == 3 {
                    rig.flush()?;
                }
            }
            Ok::<_, String>(())
        };
        rewrite(&mut version, &mut newest, 2_000)?;
        let dirty = rig.pool().blocks().1;
        if dirty > 0 {
            return Err(format!("{dirty} blocks stay dirty in one copy"));
        }
        // From here on nothing is: not even what is being written.
        rewrite(&mut version, &mut newest, 40)?;
        assert_eq!(rig.pool().blocks().1, 0);
        rig.flush()?;
        rig.crash(Crash::PowerCut);
        rig.offer(&[1 - failed]);
        rig.open()?;
        (0..2).try_for_each(|block| {
            same("rewritten", rig.read(block)?, newest[block as usize]).map(drop)
        })?;
        (2..20).try_for_each(|block| same("left alone", rig.read(block)?, 2).map(drop))
    });
}

/// What was written over dirty data by several writes that share a record is one run in the log, and goes to the
/// origin once.
#[test]
fn neighbours_that_are_written_over_are_destaged_once() {
    survive(8, |seed| {
        let plan = Plan { members: 2, copies: 2, agreed: false, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        rig.write(2, 0, 12)?;
        rig.origin_gate.hold(usize::MAX, |request| matches!(request, Request::Write { .. }));
        let failed = (seed % 2) as usize;
        rig.broken[failed].failing.arm(Trigger::every(Ops::Flushes).times(1));
        rig.flush()?;
        let writes: Vec<_> = (4..4 + seed).map(|block| rig.start_write(3, block, 1)).collect();
        rig.pause(SOON);
        assert!(writes.iter().all(|write| write.get()), "logged with the copy that is left");
        rig.flush()?;
        rig.origin_gate.hold(0, |_| false);
        rig.origin_gate.release();
        rig.pause(20 * SECOND);
        assert_eq!(rig.pool().blocks().1, 0, "protected, clean");
        for block in 0..12 {
            let expected = if (4..4 + seed).contains(&block) { 3 } else { 2 };
            let found = crate::rig::version(block, &rig.origin.peek(block * 4096, 4096))?;
            same("on the origin", found, expected)?;
        }
        Ok(())
    });
}

/// Where enough members are left, dirty data gets its copies back, and another member may fail.
#[test]
fn one_member_after_the_other_fails_with_time_between() {
    provoke(Bug::RebuildForgotten, 8, |seed| {
        let rig = Rig::new(seed, Plan { members: 3, copies: 2, ..Plan::default() });
        let order: Vec<usize> = (0..3).map(|i| (i + seed as usize) % 3).collect();
        for block in 0..30 {
            rig.write(2, block, 1)?;
        }
        rig.flush()?;
        rig.broken[order[0]].gone.set(true);
        rig.write(3, 5, 1)?;
        rig.flush()?;
        rig.pause(20 * SECOND);
        assert!(rig.was_told("has all its copies again"));
        rig.broken[order[1]].gone.set(true);
        rig.write(4, 6, 1)?;
        rig.flush()?;
        let expected = |block| match block {
            5 => 3,
            6 => 4,
            _ => 2,
        };
        let all = |rig: &Rc<Rig>, when: &str| {
            (0..30).try_for_each(|block| same(when, rig.read(block)?, expected(block)).map(drop))
        };
        all(&rig, "with one member")?;
        rig.crash(Crash::PowerCut);
        rig.broken.iter().for_each(crate::rig::Breakage::mend);
        // All are back, but two of them are stale.
        rig.open()?;
        assert!(rig.was_told("is not used"));
        all(&rig, "after a power cut")?;
        rig.destage()?;
        (0..30).try_for_each(|block| rig.settled(block))
    });
}

/// The pool latches if the last one fails before it is durable what is lost with the other: then nothing
/// is, and the next start has everything.
#[test]
fn members_that_all_fail_latch_the_pool_and_take_nothing() {
    survive(8, |seed| {
        let rig = Rig::new(seed, Plan { members: 2, copies: 1, ..Plan::default() });
        for block in 0..30 {
            rig.write(2, block, 1)?;
        }
        rig.flush()?;
        let both = |trigger: &Trigger| {
            rig.broken.iter().for_each(|broken| broken.failing.arm(trigger.clone()));
        };
        both(&Trigger::every(Ops::Writes));
        rig.write(3, 3, 1).unwrap_err();
        assert!(rig.pool().is_latched() && !has_failed(&rig));
        let read = (4..30).filter_map(|block| rig.read(block).ok());
        let read: Vec<u64> = read.collect();
        assert!(!read.is_empty() && read.iter().all(|&version| version == 2));
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.broken.iter().for_each(crate::rig::Breakage::mend);
        rig.open()?;
        (4..30).try_for_each(|block| same("dirty", rig.read(block)?, 2).map(drop))
    });
}

/// With nothing dirty only warmth is lost, and what was cached does not come back as it was.
#[test]
fn clean_data_that_fails_with_its_member_is_read_from_the_origin() {
    survive(12, |seed| {
        let copies = 1 + (seed % 2) as u8;
        let tuning = Tuning { flush_interval: SOON, ..lazy() };
        let plan = Plan { members: 2, copies, mode: Mode::Readonly, tuning, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        for _ in 0..2 {
            (0..40).try_for_each(|block| same("filled", rig.read(block)?, 1).map(drop))?;
            rig.pause(SOON);
        }
        rig.write(2, 3, 4)?;
        rig.flush()?;
        (0..8).try_for_each(|block| rig.read(block).map(drop))?;
        rig.pause(SOON);
        let cached = rig.pool().blocks().0;
        assert!(cached > 20, "{cached} blocks are cached");
        let failed = (seed / 2 % 2) as usize;
        rig.broken[failed].gone.set(true);
        // A tombstone goes to all members.
        rig.write(3, 5, 4)?;
        rig.flush()?;
        assert!(has_failed(&rig) && !rig.pool().is_latched());
        assert!(rig.pool().blocks().0 < cached, "what it held is dropped");
        let expected = |block| match block {
            3 | 4 => 2,
            5..9 => 3,
            _ => 1,
        };
        let all = |rig: &Rc<Rig>, when: &str| {
            (0..40).try_for_each(|block| same(when, rig.read(block)?, expected(block)).map(drop))
        };
        all(&rig, "without it")?;
        if seed / 4 % 2 == 0 {
            // It may be written back from now on, to one member.
            let volume = rig.volume();
            rig.run(async move { volume.set_mode(Mode::Writeback).await })?.unwrap();
            rig.write(1, 20, 2)?;
            rig.flush()?;
        }
        rig.crash(KINDS[(seed / 8 % 2) as usize]);
        rig.broken[failed].mend();
        rig.open()?;
        all(&rig, "after a crash")?;
        rig.destage()?;
        (0..40).try_for_each(|block| rig.settled(block))
    });
}

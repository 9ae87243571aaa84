//! What is dirty and good in no copy, on members that serve: a sector that has gone bad, or bytes that rotted. It
//! costs exactly these blocks, whoever finds it, and nothing older is given in their place.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{Buf, Request, Runtime};
use forebay_engine::format::{Layout, SUPERBLOCK_BYTES, decode_footer_trailer};
use forebay_engine::limits::SHARDS_MIN;
use forebay_engine::planted::Bug;
use forebay_engine::{Place, Tuning};

use crate::changing::id_of;
use crate::rig::{
    BLOCK, KINDS, MEMBER_BYTES, Plan, Rig, SEGMENT_BYTES, SOON, lazy, provoke, same, survive,
    version,
};

/// Blocks that are written, and of those the ones that are in sets which are closed by then: of what is open at a
/// crash a start adopts only what is whole.
const BLOCKS: u64 = 64;
const CLOSED: u64 = 28;
/// Blocks of a write, so that some are damaged beside others of the same record.
const RECORD: u64 = 4;

/// How a block is damaged.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// The device fails to read it.
    Sector,
    /// It returns something else.
    Rot,
}

/// Who comes to it.
#[derive(Clone, Copy, Debug)]
enum Finder {
    Read,
    PartialWrite,
    Destage,
    Scrub,
    Move,
}

const FINDERS: [Finder; 5] =
    [Finder::Read, Finder::PartialWrite, Finder::Destage, Finder::Scrub, Finder::Move];

/// One copy of dirty data, all of version 2.
fn written(seed: u64, members: usize) -> Result<Rc<Rig>, String> {
    let plan = Plan { members, verify_reads: true, ..Plan::default() };
    let rig = Rig::new(seed, plan);
    for block in (0..BLOCKS).step_by(RECORD as usize) {
        rig.write(2, block, RECORD as usize)?;
    }
    rig.flush()?;
    rig.flush()?;
    Ok(rig)
}

/// Where version 2 of a block lies: the member, and the first byte there.
fn place(rig: &Rig, block: u64) -> (usize, u64) {
    *places(rig, block).first().expect("it was written")
}

fn places(rig: &Rig, block: u64) -> Vec<(usize, u64)> {
    places_of(rig, 2, block)
}

pub fn places_of(rig: &Rig, version: u64, block: u64) -> Vec<(usize, u64)> {
    let mut wanted = vec![0; BLOCK];
    forebay_sim::content::fill(version, 0, block * 8, &mut wanted);
    let all = (0..rig.members.len())
        .flat_map(|i| (0..MEMBER_BYTES).step_by(BLOCK).map(move |at| (i, at)));
    all.filter(|&(i, at)| rig.members[i].peek(at, BLOCK) == wanted).collect()
}

/// Whether the segment in which a byte of a member lies has no footer.
fn is_open(rig: &Rig, member: usize, at: u64) -> bool {
    let first =
        Layout::new(MEMBER_BYTES, SEGMENT_BYTES as u32, SHARDS_MIN).unwrap().segments_offset;
    let end = first + ((at - first) / SEGMENT_BYTES + 1) * SEGMENT_BYTES;
    decode_footer_trailer(&rig.members[member].peek(end - BLOCK as u64, BLOCK)).is_err()
}

/// The device fails to read these blocks, wherever they are.
fn spoil(rig: &Rig, blocks: &BTreeSet<u64>) {
    for (member, at) in blocks.iter().flat_map(|&block| places(rig, block)) {
        let sector = Trigger::every(Ops::Reads).within(at..at + BLOCK as u64);
        rig.broken[member].failing.arm(sector);
    }
}

/// Damages a few blocks, some of them neighbours.
fn damage(rig: &Rig, seed: u64, how: Damage) -> BTreeSet<u64> {
    let blocks: BTreeSet<u64> =
        [seed % 7, 9 + seed % 5, 10 + seed % 5, 20 + seed % 8].into_iter().collect();
    assert!(blocks.iter().all(|block| *block < CLOSED));
    for &block in &blocks {
        let (member, at) = place(rig, block);
        match how {
            Damage::Rot => rig.members[member].poke(at + seed % 4096, &[0xA5; 3]),
            Damage::Sector => {
                let sector = Trigger::every(Ops::Reads).within(at..at + BLOCK as u64);
                rig.broken[member].failing.arm(sector);
            }
        }
    }
    blocks
}

/// The blocks that are lost.
fn lost(rig: &Rig) -> BTreeSet<u64> {
    let is_lost = |block: &u64| {
        let mut extents = Vec::new();
        rig.volume().status(block * BLOCK as u64, BLOCK as u64, &mut extents).unwrap();
        extents.iter().any(|extent| extent.place == Place::Lost)
    };
    (0..BLOCKS).filter(is_lost).collect()
}

fn find(rig: &Rc<Rig>, bad: &BTreeSet<u64>, finder: Finder) -> Result<(), String> {
    match finder {
        Finder::Read => bad.iter().try_for_each(|&block| match rig.read(block) {
            Err(_) => Ok(()),
            Ok(version) => Err(format!("block {block} was read as {version}")),
        }),
        Finder::PartialWrite => bad.iter().try_for_each(|&block| {
            let outcome = rig.start_write_sector(3, block * 8 + 1);
            rig.pause(SOON);
            match outcome.get() {
                Some(false) => Ok(()),
                other => Err(format!("a part of block {block} was written: {other:?}")),
            }
        }),
        Finder::Destage => rig.destage(),
        Finder::Scrub => {
            let (pool, world) = (rig.pool(), Rc::clone(&rig.world));
            pool.start_scrub().map_err(|error| error.to_string())?;
            rig.run(async move {
                while pool.scrub().running {
                    let runtime: &dyn Runtime = &*world;
                    runtime.sleep(MILLISECOND).await.result.ok();
                }
            })
        }
        Finder::Move => {
            let (pool, id) = (rig.pool(), id_of(rig, 0));
            rig.run(async move { pool.begin_departure(id)?.end().await })?
                .map_err(|error| error.to_string())
        }
    }
}

/// All blocks: those that are lost fail, the others have what was written.
fn judge(rig: &Rc<Rig>, bad: &BTreeSet<u64>, when: &str) -> Result<(), String> {
    for block in 0..BLOCKS {
        match (rig.read(block), bad.contains(&block)) {
            (Err(_), true) => {}
            (Ok(version), false) => drop(same(&format!("block {block} {when}"), version, 2)?),
            other => return Err(format!("block {block} {when}: {other:?}")),
        }
    }
    if rig.pool().is_latched() {
        return Err(format!("latched {when}"));
    }
    let lost = lost(rig);
    if lost == *bad { Ok(()) } else { Err(format!("{when}: {lost:?} lost, not {bad:?}")) }
}

/// Found in one way, or else by a read, over a crash, until it is written anew.
fn found(seed: u64, finder: Finder, how: Damage) -> Result<(), String> {
    let rig = written(seed, 2)?;
    let first: BTreeSet<u64> = (0..CLOSED).filter(|block| place(&rig, *block).0 == 0).collect();
    let bad = damage(&rig, seed, how);
    find(&rig, &bad, finder)?;
    let is_moved = matches!(finder, Finder::Move);
    if !rig.was_told("good in no copy") && (!is_moved || !first.is_disjoint(&bad)) {
        return Err("nobody was told".into());
    }
    judge(&rig, &bad, "when it was found")?;
    // It tells whoever relied on it.
    rig.flush().ok();
    rig.flush()?;
    if is_moved {
        rig.offer(&[1]);
    }
    rig.restart(KINDS[(seed % 2) as usize])?;
    judge(&rig, &bad, "after a crash")?;
    bad.iter().try_for_each(|&block| rig.write(2, block, 1))?;
    judge(&rig, &BTreeSet::new(), "written anew")?;
    (0..BLOCKS).try_for_each(|block| rig.settled(block))
}

#[test]
fn what_is_good_in_no_copy_is_lost_and_nothing_else_whoever_finds_it() {
    provoke(Bug::DamageNotLost, 8, |seed| {
        for finder in FINDERS {
            for how in [Damage::Sector, Damage::Rot] {
                found(seed, finder, how).map_err(|error| format!("{finder:?} {how:?}: {error}"))?;
            }
        }
        Ok(())
    });
}

/// Told to be lost once, it stays so, also when the device has changed its mind; and whatever is cut off, nothing
/// older is read.
fn cut_off(seed: u64) -> Result<(), String> {
    for ios in 1.. {
        let rig = written(seed, 1)?;
        let bad = damage(&rig, seed, Damage::Sector);
        let end = rig.world.io_count() + ios;
        rig.world.crash_at(Some(end));
        let told: Vec<u64> = bad
            .iter()
            .copied()
            .take_while(|&block| {
                let answer = rig.read(block);
                answer.is_err_and(|error| error.contains("lost"))
            })
            .collect();
        rig.world.crash_at(None);
        let ended = rig.world.io_count() < end;
        rig.broken[0].mend();
        rig.restart(KINDS[(ios % 2) as usize])?;
        for block in 0..BLOCKS {
            match rig.read(block) {
                Ok(2) if !told.contains(&block) => {}
                Err(_) if bad.contains(&block) => {}
                other => {
                    return Err(format!("after {ios}: block {block} {other:?}, told {told:?}"));
                }
            }
        }
        if ended {
            return if told.len() == bad.len() { Ok(()) } else { Err(format!("told {told:?}")) };
        }
    }
    unreachable!()
}

#[test]
fn what_was_told_to_be_lost_stays_lost_whatever_is_cut_off() {
    provoke(Bug::DamageNotDurable, 4, cut_off);
}

/// A device that returns nothing at all has not lost just this.
#[test]
fn a_device_that_reads_nothing_latches_the_pool_and_loses_nothing() {
    survive(6, |seed| {
        let rig = written(seed, 1)?;
        rig.broken[0].failing.arm(Trigger::every(Ops::Reads));
        let read = rig.read(3);
        if read.is_ok() {
            return Err("it was read".into());
        }
        rig.destage().ok();
        if !rig.pool().is_latched() {
            return Err("it goes on".into());
        }
        rig.broken[0].mend();
        rig.restart(KINDS[(seed % 2) as usize])?;
        judge(&rig, &BTreeSet::new(), "when it reads again")
    });
}

/// Of two copies one has rotted, and the member with the other one returns nothing for a moment: nobody may take that
/// for the loss of the block, however well the first one is. With one copy the moment ends while it is looked for.
#[test]
fn what_a_member_does_not_return_for_a_moment_is_not_lost() {
    survive(24, |seed| {
        let copies = 1 + (seed % 2) as u8;
        let members = usize::from(copies);
        let plan = Plan { members, copies, verify_reads: true, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        for block in (0..BLOCKS).step_by(RECORD as usize) {
            rig.write(2, block, RECORD as usize)?;
        }
        rig.flush()?;
        rig.flush()?;
        let block = seed % CLOSED;
        let silent = members - 1;
        if let [(rotten, at), _] = places(&rig, block)[..] {
            rig.members[1 - silent].poke(at + 7, &[0xA5; 3]);
            assert_eq!(rotten, 1 - silent);
        }
        rig.broken[silent].failing.arm(Trigger::every(Ops::Reads));
        for _ in 0..16 {
            rig.start_read(block);
        }
        // From within the first look to long after the last one.
        rig.pause((1 + seed / 2 * 7) * MILLISECOND / 4);
        rig.broken[silent].mend();
        rig.pause(SECOND);
        assert!(!rig.pool().is_latched());
        assert_eq!(lost(&rig), BTreeSet::new());
        same("once it returns", rig.read(block)?, 2)?;
        rig.destage()
    });
}

/// What is written anew while it is being noted wins.
#[test]
fn what_is_written_while_it_is_found_is_not_lost() {
    survive(20, |seed| {
        let rig = written(seed, 1)?;
        let bad = damage(&rig, seed, Damage::Rot);
        bad.iter().for_each(|&block| rig.start_read(block));
        rig.pause(seed * 3 * MILLISECOND / 10);
        let writes: Vec<_> = bad.iter().map(|&block| rig.start_write(2, block, 1)).collect();
        rig.pause(SOON);
        assert!(writes.iter().all(|write| write.get()));
        judge(&rig, &BTreeSet::new(), "written anew")?;
        rig.flush().ok();
        rig.flush()?;
        rig.restart(KINDS[(seed % 2) as usize])?;
        judge(&rig, &BTreeSet::new(), "after a crash")
    });
}

/// What was open at a crash is read in full, and some of it cannot be: that costs what is dirty there, in the
/// place of which nothing older is read.
#[test]
fn a_start_loses_exactly_the_dirty_blocks_that_it_cannot_read() {
    provoke(Bug::DamageNotLost, 16, |seed| {
        let rig = written(seed, 1 + (seed % 2) as usize)?;
        rig.crash(KINDS[(seed / 2 % 2) as usize]);
        let bad: BTreeSet<u64> = (0..1 + seed % 4).map(|i| (seed * 7 + i * 17) % BLOCKS).collect();
        spoil(&rig, &bad);
        rig.open()?;
        judge(&rig, &bad, "after the start")?;
        // It tells whoever relied on it.
        rig.flush().ok();
        rig.flush()?;
        rig.broken.iter().for_each(crate::rig::Breakage::mend);
        rig.restart(KINDS[(seed % 2) as usize])?;
        judge(&rig, &bad, "after another one")?;
        bad.iter().try_for_each(|&block| rig.write(2, block, 1))?;
        judge(&rig, &BTreeSet::new(), "written anew")?;
        (0..BLOCKS).try_for_each(|block| rig.settled(block))
    });
}

/// Such a start is cut off at any of its requests, and the device has changed its mind by then, or has not.
#[test]
fn a_start_that_loses_what_it_cannot_read_may_be_cut_off_anywhere() {
    survive(4, |seed| {
        for ios in (1..).step_by(3) {
            let rig = written(seed, 1)?;
            rig.crash(KINDS[(ios % 2) as usize]);
            // In a set that was open.
            let bad = BTreeSet::from([BLOCKS - 1 - seed % 3, BLOCKS - RECORD]);
            spoil(&rig, &bad);
            let end = rig.world.io_count() + ios;
            rig.world.crash_at(Some(end));
            let ended = rig.open().is_ok();
            rig.world.crash_at(None);
            let is_mended = (ios / 2).is_multiple_of(2);
            if is_mended {
                rig.broken[0].mend();
            }
            rig.restart(KINDS[(ios / 2 % 2) as usize])?;
            let at = |error: String| format!("after {ios}: {error}");
            // Lost as soon as the first start's root says so, and else found again, or found good.
            let now = lost(&rig);
            if !now.is_empty() && now != bad || now.is_empty() && (ended || !is_mended) {
                return Err(at(format!("{now:?} lost")));
            }
            judge(&rig, &now, "in the end").map_err(at)?;
            if ended {
                return Ok(());
            }
        }
        Ok(())
    });
}

/// A footer is written twice, so to say: without it the set is read in full.
#[test]
fn a_start_needs_no_footer() {
    survive(4, |seed| {
        let rig = written(seed, 1)?;
        rig.crash(KINDS[(seed % 2) as usize]);
        let first = MEMBER_BYTES - SEGMENT_BYTES * (MEMBER_BYTES / SEGMENT_BYTES - 16);
        for end in (first..=MEMBER_BYTES).step_by(SEGMENT_BYTES as usize) {
            let footer = end - BLOCK as u64 * (1 + seed % 2)..end;
            rig.broken[0].failing.arm(Trigger::every(Ops::Reads).within(footer));
        }
        rig.open()?;
        judge(&rig, &BTreeSet::new(), "without footers")
    });
}

/// Where a start has nothing to replay it costs no more than in a running pool if the end of a segment cannot be
/// read, footer and all: behind a clean stop, and in what an earlier start has closed.
#[test]
fn a_start_needs_nothing_of_a_set_that_it_knows() {
    survive(4, |seed| {
        let rig = written(seed, 1)?;
        match seed % 2 {
            0 => drop(rig.stop()?),
            _ => rig.restart(KINDS[(seed / 2) as usize])?,
        }
        if seed % 2 == 1 {
            rig.crash(KINDS[(seed / 2) as usize]);
        }
        let (member, at) = place(&rig, seed);
        let first =
            Layout::new(MEMBER_BYTES, SEGMENT_BYTES as u32, SHARDS_MIN).unwrap().segments_offset;
        let end = first + ((at - first) / SEGMENT_BYTES + 1) * SEGMENT_BYTES;
        assert!(!is_open(&rig, member, at), "it was closed long ago");
        let rest = || Trigger::every(Ops::Reads).within(at + BLOCK as u64..end);
        rig.broken[member].failing.arm(rest());
        rig.open()?;
        let mut read = 0;
        for block in 0..BLOCKS {
            match rig.read(block) {
                Ok(version) => {
                    same("what can be read", version, 2)?;
                    read += 1;
                }
                Err(_) => assert!(lost(&rig).contains(&block), "block {block}"),
            }
        }
        assert!(read > BLOCKS / 2, "{read} blocks read");
        // Who does not answer has said nothing about what it holds.
        rig.crash(KINDS[(seed / 2) as usize]);
        rig.broken[member].mend();
        rig.broken[member].timing_out.arm(rest());
        let error = rig.open().expect_err("it does not answer");
        assert!(error.contains("reading at byte"), "{error}");
        rig.broken[member].mend();
        rig.restart(KINDS[(seed / 2) as usize])
    });
}

/// Where a record begins, nobody knows what was there if that cannot be read.
#[test]
fn a_start_that_cannot_tell_what_it_cannot_read_loses_nothing_and_says_what_to_do() {
    survive(6, |seed| {
        let rig = written(seed, 1)?;
        rig.crash(KINDS[(seed % 2) as usize]);
        // Of the last records, one in a set that was open.
        let last = (0..3).map(|n| place(&rig, BLOCKS - RECORD * (1 + (seed + n) % 3)));
        let mut open = last.filter(|&(member, at)| is_open(&rig, member, at));
        let (member, at) = open.next().expect("the last record is in one");
        let header = at - BLOCK as u64..at;
        rig.broken[member].failing.arm(Trigger::every(Ops::Reads).within(header));
        match rig.open() {
            Err(error) if error.contains("reading at byte") => {}
            other => return Err(format!("{other:?}")),
        }
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.broken[member].mend();
        rig.open()?;
        judge(&rig, &BTreeSet::new(), "when it reads again")
    });
}

/// A write was cut off before both copies had it, and the one that has it cannot be read in full: nobody was told
/// of it, and what is older counts.
#[test]
fn a_start_loses_nothing_for_a_write_that_was_never_acknowledged() {
    survive(4, |seed| {
        let mut met = 0;
        for ios in 1..8 {
            let plan = Plan { members: 2, copies: 2, verify_reads: true, ..Plan::default() };
            let rig = Rig::new(seed, plan);
            rig.write(2, 0, 8)?;
            rig.flush()?;
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            let written = rig.write(3, 0, 4);
            rig.world.crash_at(None);
            rig.crash(KINDS[(seed % 2) as usize]);
            let found = places_of(&rig, 3, 1);
            if written.is_ok() || found.len() != 1 {
                continue;
            }
            met += 1;
            let (member, at) = found[0];
            let sector = Trigger::every(Ops::Reads).within(at..at + BLOCK as u64);
            rig.broken[member].failing.arm(sector);
            rig.open()?;
            // The other two are in a record of their own.
            for block in [0, 1, 4, 5, 6, 7] {
                same(&format!("block {block} after {ios}"), rig.read(block)?, 2)?;
            }
        }
        if met > 0 { Ok(()) } else { Err("no copy had it alone".into()) }
    });
}

/// Long origin writes are read from the log to where they are needed, record by record; what is not good in the
/// first copy of one of them comes from another.
#[test]
fn what_is_destaged_in_place_is_good_in_every_part() {
    survive(12, |seed| {
        let tuning = Tuning { destage_in_place_blocks: 1, ..lazy() };
        let plan = Plan { members: 2, copies: 2, tuning, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        let ends = [0, 3, 5, 8, 11, 12];
        for (version, ends) in (2..).zip(ends.windows(2)) {
            rig.write(version, ends[0], (ends[1] - ends[0]) as usize)?;
        }
        rig.flush()?;
        // None of them in a third of the runs, else one.
        let bad = seed / 3;
        let version_of = |block| 2 + ends.iter().filter(|&&end| end <= block).count() as u64 - 1;
        if seed % 3 > 0 {
            let (member, at) = places_of(&rig, version_of(bad), bad)[seed as usize % 3 - 1];
            let read = Trigger::every(Ops::Reads).within(at..at + BLOCK as u64);
            match seed % 2 {
                0 => rig.broken[member].failing.arm(read),
                _ => rig.broken[member].flipping.arm(read),
            }
        }
        rig.destage()?;
        for block in 0..12 {
            let origin = version(block, &rig.origin.peek(block * BLOCK as u64, BLOCK))?;
            same(&format!("block {block} of the origin"), origin, version_of(block))?;
        }
        Ok(())
    });
}

/// Who writes such blocks anew waits for room, and what brings data home to make it comes to them first.
#[test]
fn a_write_over_what_cannot_be_read_does_not_keep_others_from_making_room() {
    survive(8, |number| {
        let (seed, how) = (number % 4, [Damage::Sector, Damage::Rot][number as usize / 4]);
        let tuning = Tuning { destage_depth: 1, ..lazy() };
        let plan = Plan { tuning, origin_bytes: 8 << 20, verify_reads: true, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        (0..256).step_by(16).try_for_each(|block| rig.write(2, block, 16))?;
        rig.flush()?;
        let bad: BTreeSet<u64> = (0..256).step_by(4).map(|block| block + seed).collect();
        match how {
            Damage::Sector => spoil(&rig, &bad),
            Damage::Rot => bad
                .iter()
                .flat_map(|&block| places(&rig, block))
                .for_each(|(member, at)| rig.members[member].poke(at, &[0xA5; 3])),
        }
        rig.origin_gate.hold(usize::MAX, |request| matches!(request, Request::Write { .. }));
        // Wherever the room ends, some of those that come to what is damaged are the next to get any.
        let writes: Vec<_> = (0..128)
            .flat_map(|i| {
                let other = rig.start_write(2, 256 + i * 8, 8);
                let over = (i % 2 == 0).then(|| rig.start_write(2, i / 2 % 64 * 4, 4));
                rig.pause(MILLISECOND);
                [Some(other), over].into_iter().flatten()
            })
            .collect();
        rig.pause(SOON);
        assert!(writes.iter().any(|write| !write.get()), "there is room");
        rig.origin_gate.hold(0, |_| false);
        rig.origin_gate.release();
        rig.pause(100 * SOON);
        let left = writes.iter().filter(|write| !write.get()).count();
        if left > 0 {
            return Err(format!("{left} writes wait for room"));
        }
        // What comes to lie in a sector that stays bad is lost as well.
        (0..256).try_for_each(|block| match (rig.read(block), how) {
            (Err(error), Damage::Sector) if error.contains("it is lost") => Ok(()),
            (found, _) => same("what was written anew", found?, 2).map(drop),
        })
    });
}

/// All that could make room is damaged, and held by who waits for it: what the write has replaced so far, and what it
/// is to replace.
#[test]
fn a_write_over_what_cannot_be_read_makes_room_for_itself() {
    survive(4, |seed| {
        let end = 232 + 8 * seed;
        let plan =
            Plan { tuning: lazy(), origin_bytes: 8 << 20, verify_reads: true, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        let rot = |version: u64| -> BTreeSet<u64> {
            let found = (0..end).step_by(2).map(|block| (block, places_of(&rig, version, block)));
            let found: Vec<_> = found.filter(|(_, places)| !places.is_empty()).collect();
            for &(member, at) in found.iter().flat_map(|(_, places)| places) {
                rig.members[member].poke(at, &[0xA5; 3]);
            }
            found.into_iter().map(|(block, _)| block).collect()
        };
        rig.origin_gate.hold(usize::MAX, |request| matches!(request, Request::Write { .. }));
        // Scattered: each set has something of what is replaced last.
        (0..end / 2).try_for_each(|i| rig.write(2, i * 37 % (end / 2) * 2, 2))?;
        rot(2);
        let over = rig.start_write(3, 0, end as usize);
        rig.pause(SOON);
        assert!(!over.get(), "there is room");
        let bad = rot(3);
        assert!((10..end as usize / 2).contains(&bad.len()), "{}", bad.len());
        rig.origin_gate.hold(0, |_| false);
        rig.origin_gate.release();
        rig.pause(100 * SOON);
        if !over.get() {
            return Err("it waits for room".into());
        }
        let judged = |when: &str| {
            (0..end).try_for_each(|block| match rig.read(block) {
                Err(_) if bad.contains(&block) => Ok(()),
                other => same(&format!("block {block} {when}"), other?, 3).map(drop),
            })
        };
        judged("as it was written")?;
        assert!(rig.flush().is_err(), "nobody was told");
        rig.flush()?;
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.open()?;
        judged("after a start")
    });
}

/// A write over what is damaged waits for its place in the log behind another; so does the note of what is lost,
/// behind other facts.
fn noted_beside_a_write(seed: u64) -> Result<(), String> {
    let rig = Rig::new(seed, Plan { tuning: lazy(), verify_reads: true, ..Plan::default() });
    rig.write(2, 0, 4)?;
    rig.flush()?;
    let (member, at) = place(&rig, 1);
    rig.members[member].poke(at, &[0xA5; 3]);
    rig.gates[0].hold(2, |request| matches!(request, Request::Write { .. }));
    let volume = rig.volume();
    rig.world.spawn(Box::pin(async move {
        volume.write_zeroes(40 * BLOCK as u64, BLOCK as u64, false).await.ok();
    }));
    // Of one record each.
    let other = rig.start_write(2, 20, 2);
    rig.pause(MILLISECOND);
    assert_eq!(rig.gates[0].held(), 2, "a fact and a write");
    let over = rig.start_write(3, 0, 2);
    let volume = rig.volume();
    rig.world.spawn(Box::pin(async move { volume.destage().await.unwrap_or_default() }));
    rig.pause(SOON);
    assert!(!other.get() && !over.get());
    rig.gates[0].release();
    rig.pause(SOON);
    assert!(other.get() && over.get());
    // The first one tells of what is lost.
    assert!(rig.flush().is_err());
    rig.flush()?;
    rig.crash(KINDS[(seed % 2) as usize]);
    rig.open()?;
    (0..2).try_for_each(|block| same(&format!("block {block}"), rig.read(block)?, 3).map(drop))
}

#[test]
fn what_is_noted_of_blocks_stands_before_the_write_that_waits_for_its_place() {
    provoke(Bug::WriteBeforeFact, 16, noted_beside_a_write);
}

/// It is waited for, as long as it takes, and nothing grows meanwhile.
#[test]
fn a_read_of_what_is_damaged_waits_for_a_write_that_is_on_its_way() {
    survive(2, |seed| {
        let plan = Plan {
            tuning: lazy(),
            verify_reads: true,
            device_deadline_ms: 600_000,
            ..Plan::default()
        };
        let rig = Rig::new(seed, plan);
        rig.write(2, 0, 2)?;
        rig.flush()?;
        let (member, at) = place(&rig, 1);
        rig.members[member].poke(at, &[0xA5; 3]);
        rig.gates[0].hold(1, |request| matches!(request, Request::Write { .. }));
        let over = rig.start_write(3, 0, 2);
        rig.pause(MILLISECOND);
        assert!(!over.get() && rig.gates[0].held() == 1, "it is on its way");
        let (volume, read) = (rig.volume(), Rc::new(Cell::new(false)));
        let ended = Rc::clone(&read);
        rig.world.spawn(Box::pin(async move {
            let (_, result) = volume.read(BLOCK as u64, Buf::new(BLOCK)).await;
            ended.set(result.is_ok());
        }));
        rig.pause(300 * SECOND);
        assert!(!read.get() && lost(&rig).is_empty());
        rig.gates[0].release();
        rig.pause(SOON);
        assert!(over.get() && read.get());
        rig.flush()?;
        same("what was written", rig.read(1)?, 3).map(drop)
    });
}

/// What was being moved when all ended is in two places, and the new one cannot be read.
#[test]
fn a_start_finds_what_it_cannot_read_where_it_was_moved_from() {
    survive(6, |seed| {
        let mut spoiled = 0;
        for ios in (10..400).step_by(5) {
            let rig = written(seed, 2)?;
            let roots =
                || [0, 1].map(|i| rig.members[i].peek(2 * SUPERBLOCK_BYTES as u64, 2 * BLOCK));
            let (pool, id, before) = (rig.pool(), id_of(&rig, 0), roots());
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            rig.run(async move { pool.begin_departure(id)?.end().await }).ok();
            rig.world.crash_at(None);
            rig.crash(KINDS[(ios % 2) as usize]);
            if roots() != before {
                // Behind a root the place that it was moved from may be anything's.
                break;
            }
            let found: Vec<u64> =
                (0..BLOCKS).filter(|&block| places(&rig, block).len() > 1).collect();
            let all = found.iter().flat_map(|&block| places(&rig, block));
            // Of closed sets a start reads no data.
            let mut count = 0;
            for at in all.filter(|&(member, at)| member == 1 && is_open(&rig, member, at)) {
                count += 1;
                let sector = at.1..at.1 + BLOCK as u64;
                rig.broken[1].failing.arm(Trigger::every(Ops::Reads).within(sector));
            }
            let at = |error: String| format!("after {ios}: {error}");
            match rig.open() {
                Ok(()) => spoiled += count,
                // The data had arrived, and the header that says what it is had not.
                Err(error) if error.contains("reading at byte") => continue,
                Err(error) => return Err(at(error)),
            }
            // Others may have been written to these sectors since.
            rig.broken[1].mend();
            judge(&rig, &BTreeSet::new(), "after the start").map_err(at)?;
        }
        if spoiled > 0 { Ok(()) } else { Err("nothing was in two places".into()) }
    });
}

/// The pool cannot say yet that it goes on without the other one: that takes the witness.
#[test]
fn what_a_member_has_that_is_not_left_behind_yet_is_not_noted_as_lost() {
    survive(4, |seed| {
        let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
        rig.write(2, 3, 1)?;
        rig.flush()?;
        let bad = (seed % 2) as usize;
        let (_, at) = places(&rig, 3).into_iter().find(|(member, _)| *member == bad).unwrap();
        rig.broken[bad].failing.arm(Trigger::every(Ops::Reads).within(at..at + BLOCK as u64));
        rig.witness_refuses.set(true);
        rig.broken[1 - bad].failing.arm(Trigger::every(Ops::All));
        rig.start_write(3, 9, 1);
        rig.pause(SOON / 10);
        let volume = rig.volume();
        rig.world.spawn(Box::pin(async move { drop(volume.destage().await) }));
        rig.pause(SOON);
        rig.crash(KINDS[1]);
        rig.broken.iter().for_each(crate::rig::Breakage::mend);
        rig.witness_refuses.set(false);
        rig.open()?;
        same("what both had", rig.read(3)?, 2).map(drop)
    });
}

/// Its images name it until the next ones are written.
#[test]
fn what_was_dropped_as_damaged_does_not_come_back() {
    survive(4, |seed| {
        let rig = Rig::new(seed, Plan::default());
        (0..60).try_for_each(|block| rig.read(block).map(drop))?;
        rig.stop()?;
        rig.open()?;
        // With the root in both of its slots.
        rig.scrub()?;
        for block in [seed % 7, 30 + seed] {
            for (member, at) in places_of(&rig, 1, block) {
                rig.members[member].poke(at + seed % 4096, &[0xA5; 3]);
            }
        }
        let found = rig.scrub()?.found;
        assert_eq!(
            (found.dropped, found.replaced),
            (2, 0),
            "no root was written for anything else"
        );
        rig.restart(Crash::ProcessKill)?;
        (0..60).try_for_each(|block| same("read", rig.read(block)?, 1).map(drop))
    });
}

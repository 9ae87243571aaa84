//! What a start believes: members whose flushes fail and lose what they should have covered, starts
//! that are cut off, and roots of versions that wrote none at a start.

use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::{Request, Runtime};
use forebay_engine::Mode;
use forebay_engine::format::{
    FEATURE_LET_GO, FEATURE_OWN_ROOTS, Layout, Root, SUPERBLOCK_BYTES, SegmentHeader, Stream,
    Superblock,
};
use forebay_engine::ids::{Incarnation, SegmentId};
use forebay_engine::limits::SHARDS_MIN;

use crate::rig::{BLOCK, MEMBER_BYTES, Plan, Rig, SEGMENT_BYTES, SOON, same, survive};

/// What is lost differs from seed to seed: all, nothing, some of it.
const SEEDS: u64 = 12;
const ROOTS: u64 = 2 * SUPERBLOCK_BYTES as u64;
const ROOT_BYTES: u64 = 4096;

/// The next flush of a member fails, after so many others.
fn fail_one(rig: &Rig, member: usize, after: u64) {
    rig.broken[member].failing.arm(Trigger::every(Ops::Flushes).after(after).times(1));
}

/// A flush of the first member fails behind `change`; a pool without another one stops writing. The
/// process ends, the next one flushes; then the power goes.
fn flush_fails(
    rig: &Rc<Rig>,
    change: impl Fn(&Rc<Rig>) -> Result<(), String>,
    expected: impl Fn(&Rc<Rig>, &str) -> Result<(), String>,
) -> Result<(), String> {
    change(rig)?;
    fail_one(rig, 0, 0);
    let alone = rig.members.len() == 1;
    for _ in 0..2 {
        assert_eq!(rig.flush().is_err(), alone);
        assert_eq!(rig.pool().is_latched(), alone);
    }
    rig.restart(Crash::ProcessKill)?;
    expected(rig, "after the kill")?;
    rig.flush()?;
    rig.restart(Crash::PowerCut)?;
    expected(rig, "after the power cut")?;
    rig.destage()?;
    expected(rig, "destaged")
}

#[test]
fn what_a_member_may_have_lost_is_appended_again_by_the_next_start() {
    survive(SEEDS, |seed| {
        for members in [1, 2] {
            let rig = Rig::new(seed, Plan { members, copies: members as u8, ..Plan::default() });
            rig.write(2, 3, 1)?;
            rig.flush()?;
            let change = |rig: &Rc<Rig>| {
                rig.write(3, 5, 1)?;
                rig.write(4, 6, 20)
            };
            flush_fails(&rig, change, |rig, when| {
                same(when, rig.read(3)?, 2)?;
                same(when, rig.read(5)?, 3)?;
                same(when, rig.read(6)?, 4)?;
                same(when, rig.read(25)?, 4).map(drop)
            })?;
        }
        Ok(())
    });
}

fn zero(rig: &Rig, block: u64, count: u64) -> Result<(), String> {
    let (volume, bytes) = (rig.volume(), BLOCK as u64);
    let zeroed =
        rig.run(async move { volume.write_zeroes(block * bytes, count * bytes, false).await })?;
    zeroed.map_err(|error| error.to_string())
}

#[test]
fn what_a_member_may_have_lost_of_facts_is_in_the_images_of_the_next_start() {
    survive(SEEDS, |seed| {
        // One of these counts fills a segment of facts: the next one's header is lost with it.
        for before in 8..18 {
            let rig = Rig::new(seed, Plan::default());
            rig.write(2, 3, 8)?;
            rig.flush()?;
            for _ in 0..before {
                zero(&rig, 100, 1)?;
                rig.flush()?;
            }
            let change = |rig: &Rc<Rig>| zero(rig, 3, 4);
            flush_fails(&rig, change, |rig, when| {
                same(when, rig.read(3)?, 0)?;
                same(when, rig.read(6)?, 0)?;
                same(when, rig.read(7)?, 2).map(drop)
            })?;
        }
        Ok(())
    });
}

#[test]
fn what_was_void_when_a_members_flush_failed_does_not_come_back() {
    survive(SEEDS, |seed| {
        let rig = Rig::new(seed, Plan { mode: Mode::Readonly, ..Plan::default() });
        for _ in 0..3 {
            rig.read(3)?;
            rig.pause(SOON);
        }
        rig.flush()?;
        assert!(rig.pool().blocks().0 > 0, "nothing was cached");
        // The tombstone is written, and its flush fails: so does the write.
        fail_one(&rig, 0, 0);
        rig.write(2, 3, 1).unwrap_err();
        assert!(rig.pool().is_latched());
        rig.restart(Crash::ProcessKill)?;
        rig.write(3, 3, 1)?;
        rig.flush()?;
        rig.restart(Crash::PowerCut)?;
        same("written around the log", rig.read(3)?, 3)?;
        rig.settled(3)
    });
}

/// Each flush of a start fails in turn, of one member after the other; the next start is not told.
#[test]
fn a_flush_that_fails_during_a_start_takes_nothing() {
    survive(SEEDS, |seed| {
        for (members, crash) in [(1, Crash::ProcessKill), (2, Crash::PowerCut)] {
            for after in 0.. {
                let plan = Plan { members, copies: members as u8, ..Plan::default() };
                let rig = Rig::new(seed, plan);
                rig.write(2, 3, 20)?;
                rig.flush()?;
                rig.write(3, 40, 2)?;
                rig.flush()?;
                rig.crash(crash);
                let member = (seed as usize + after as usize) % members;
                fail_one(&rig, member, after);
                // With another copy of everything the pool opens without that one.
                let opened = rig.open();
                assert!(members == 1 || opened.is_ok(), "{opened:?}");
                let ended = rig.broken[member].failing.hits() == 0;
                rig.crash(Crash::ProcessKill);
                rig.broken[member].mend();
                rig.open()?;
                rig.write(4, 41, 1)?;
                rig.flush()?;
                rig.restart(Crash::PowerCut)?;
                same("appended before", rig.read(3)?, 2)?;
                same("appended before", rig.read(22)?, 2)?;
                same("in an open segment", rig.read(40)?, 3)?;
                same("after the start", rig.read(41)?, 4)?;
                if ended {
                    break;
                }
            }
        }
        Ok(())
    });
}

/// Which write of a start is under way when the power goes.
fn to_superblock(request: &Request, slot: u64) -> bool {
    let start = slot * SUPERBLOCK_BYTES as u64;
    matches!(request, Request::Write { offset, .. } if *offset == start)
}

fn to_root(request: &Request, slot: u64) -> bool {
    let start = ROOTS + slot * ROOT_BYTES;
    matches!(request, Request::Write { offset, .. } if *offset == start)
}

/// The next start is cut off at the first write to a slot, which is torn; then one must succeed.
fn torn_slot(rig: &Rc<Rig>, wanted: fn(&Request) -> bool, at: u64) -> Result<(), String> {
    rig.gates[0].hold(1, wanted);
    let it = Rc::clone(rig);
    rig.world.spawn(Box::pin(async move { drop(it.open_pool().await) }));
    rig.pause(SOON);
    let torn = rig.gates[0].held() == 1;
    rig.gates[0].hold(0, wanted);
    rig.crash(Crash::PowerCut);
    if torn {
        rig.members[0].poke(at + 1024, &[0x5A; 512]);
    }
    rig.open()?;
    same("after all", rig.read(3)?, 2)?;
    rig.settled(3)
}

/// The pool stops; the flush behind its first write to one slot fails and loses a part of that. The
/// next start tears a slot.
fn lose_and_tear(
    seed: u64,
    [lost, torn]: [fn(&Request) -> bool; 2],
    [lost_at, torn_at]: [u64; 2],
) -> Result<(), String> {
    let rig = Rig::new(seed, Plan::default());
    rig.write(2, 3, 1)?;
    rig.destage()?;
    rig.gates[0].hold(1, lost);
    *rig.volume.borrow_mut() = None;
    let pool = rig.pool.take().unwrap();
    rig.world.spawn(Box::pin(async move {
        Rc::into_inner(pool).unwrap().stop().await.ok();
    }));
    rig.pause(10 * SOON);
    assert_eq!(rig.gates[0].held(), 1);
    rig.gates[0].fail_next(|request| matches!(request, Request::Flush));
    rig.gates[0].release();
    rig.pause(10 * SOON);
    rig.members[0].lose(lost_at..lost_at + 512);
    rig.crash(Crash::ProcessKill);
    torn_slot(&rig, torn, torn_at)
}

#[test]
fn two_superblock_slots_are_never_both_at_risk() {
    let slots: [fn(&Request) -> bool; 2] = [|r| to_superblock(r, 0), |r| to_superblock(r, 1)];
    let places = [0, SUPERBLOCK_BYTES as u64];
    for (lost, torn) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for seed in 0..3 {
            let result =
                lose_and_tear(seed, [slots[lost], slots[torn]], [places[lost], places[torn]]);
            assert_eq!(result, Ok(()), "lost {lost}, torn {torn}, seed {seed}");
        }
    }
}

#[test]
fn two_root_slots_are_never_both_at_risk() {
    let slots: [fn(&Request) -> bool; 2] = [|r| to_root(r, 0), |r| to_root(r, 1)];
    let places = [ROOTS, ROOTS + ROOT_BYTES];
    for (lost, torn) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for seed in 0..3 {
            let result =
                lose_and_tear(seed, [slots[lost], slots[torn]], [places[lost], places[torn]]);
            assert_eq!(result, Ok(()), "lost {lost}, torn {torn}, seed {seed}");
        }
    }
}

/// What came to slot 1 of one member, and of another one to slot 0 alone, which the next start tears: that one was not set back.
#[test]
fn a_root_that_is_torn_before_it_came_to_both_slots_is_no_older_copy() {
    survive(4, |seed| {
        let copies = 1 + (seed % 2) as u8;
        let rig = Rig::new(seed, Plan { members: 2, copies, ..Plan::default() });
        rig.write(2, 3, 1)?;
        rig.destage()?;
        rig.gates[0].keep_from(|request| to_root(request, 1));
        *rig.volume.borrow_mut() = None;
        let pool = rig.pool.take().unwrap();
        rig.world.spawn(Box::pin(async move {
            Rc::into_inner(pool).unwrap().stop().await.ok();
        }));
        rig.pause(10 * SOON);
        rig.gates[0].keep_from(|_| false);
        rig.crash(Crash::ProcessKill);
        let generation = |member, slot| root(&rig, member, slot).map(|root| root.generation);
        assert!(generation(0, 1) < generation(1, 1) && generation(0, 0) == generation(1, 1));
        torn_slot(&rig, |request| to_root(request, 0), ROOTS)?;
        assert!(!rig.was_told("set back"), "{:?}", rig.pool().events());
        Ok(())
    });
}

fn root(rig: &Rig, member: usize, slot: u64) -> Option<Root> {
    let at = ROOTS + slot * ROOT_BYTES;
    Root::decode(&rig.members[member].peek(at, ROOT_BYTES as usize)).ok()
}

/// As a version without features would have left the pool: no structure uses any.
fn age(rig: &Rig) {
    for member in &rig.members {
        for slot in 0..2 {
            let at = slot * SUPERBLOCK_BYTES as u64;
            let known = Superblock::decode(&member.peek(at, SUPERBLOCK_BYTES)).unwrap();
            member.poke(at, &Superblock { own_roots: false, ..known }.encode());
        }
    }
}

#[test]
fn a_pool_of_an_older_version_opens_and_is_refused_by_that_version_from_then_on() {
    survive(4, |seed| {
        for crash in [None, Some(Crash::ProcessKill), Some(Crash::PowerCut)] {
            let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
            rig.write(2, 3, 2)?;
            rig.stop()?;
            age(&rig);
            for (member, slot) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let known = root(&rig, member, slot).unwrap();
                let old = Root { own_roots: false, let_go: false, ..known };
                rig.members[member].poke(ROOTS + slot * ROOT_BYTES, &old.encode());
            }
            rig.open()?;
            for member in &rig.members {
                // What that version knows is none: any feature, and it opens the pool no more.
                for at in [0, SUPERBLOCK_BYTES as u64, ROOTS, ROOTS + ROOT_BYTES] {
                    let features = member.peek(at + 12, 4).try_into().map(u32::from_le_bytes);
                    // The root is the old one's, or has images of its own.
                    let since = features.unwrap() & !FEATURE_LET_GO;
                    assert_eq!(since, FEATURE_OWN_ROOTS, "at {at}");
                }
            }
            rig.write(3, 3, 1)?;
            rig.flush()?;
            match crash {
                Some(crash) => rig.restart(crash)?,
                None => {
                    rig.stop()?;
                    rig.open()?;
                }
            }
            same("overwritten", rig.read(3)?, 3)?;
            same("as before", rig.read(4)?, 2)?;
        }
        Ok(())
    });
}

/// A start is one that never got as far as a root, as its root is taken away: what it has appended is
/// passed over, by later starts too, but not behind the root of a version that wrote none.
#[test]
fn what_a_start_without_a_root_has_appended_counts_only_behind_a_root_of_an_older_version() {
    survive(10, |seed| {
        for own_roots in [false, true] {
            let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
            rig.write(2, 3, 2)?;
            // Where a set looks as if it were open, the start after a stop writes images, and frees these.
            let stopped = loop {
                rig.stop()?;
                let stopped = root(&rig, 0, 0).unwrap();
                assert!(stopped.own_roots && stopped.clean_stop);
                rig.open()?;
                if rig.pool().counters().laps.get() == 0 {
                    break stopped;
                }
            };
            rig.write(3, 3, 1)?;
            rig.write(4, 7, 9)?;
            rig.flush()?;
            rig.crash(Crash::PowerCut);
            let old = Root { own_roots, ..stopped }.encode();
            for (member, slot) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                rig.members[member].poke(ROOTS + slot * ROOT_BYTES, &old);
            }
            let passed_over = headers(&rig);
            let (first, second) = if own_roots { (2, 1) } else { (3, 4) };
            for when in ["once", "again", "a third time"] {
                rig.open()?;
                same(when, rig.read(3)?, first)?;
                same(when, rig.read(4)?, 2)?;
                same(when, rig.read(7)?, second)?;
                same(when, rig.read(15)?, second)?;
                let newest = root(&rig, 0, 0).unwrap();
                assert!(newest.own_roots && newest.start_number > 2);
                rig.crash(Crash::PowerCut);
                if own_roots {
                    // Whatever was written over them since is lost, and they are back.
                    for (member, at, bytes) in &passed_over {
                        let header = SegmentHeader::decode(&rig.members[*member].peek(*at, BLOCK));
                        if header.is_err() {
                            rig.members[*member].poke(*at, bytes);
                        }
                    }
                }
            }
            rig.open()?;
            rig.settled(3)?;
        }
        Ok(())
    });
}

fn layout() -> Layout {
    Layout::new(MEMBER_BYTES, SEGMENT_BYTES as u32, SHARDS_MIN).unwrap()
}

/// The headers of the newest start that are on the members, and where.
fn headers(rig: &Rig) -> Vec<(usize, u64, Vec<u8>)> {
    let mut found = Vec::new();
    for member in 0..rig.members.len() {
        for number in 0..layout().segment_count {
            let at = layout().segment_offset(number);
            let bytes = rig.members[member].peek(at, BLOCK);
            if let Ok(header) = SegmentHeader::decode(&bytes) {
                found.push((header.incarnation.start, (member, at, bytes)));
            }
        }
    }
    let newest = found.iter().map(|(start, _)| *start).max().unwrap_or(0);
    found.into_iter().filter(|(start, _)| *start == newest).map(|(_, place)| place).collect()
}

/// A start is cut off at each of its requests, again and again: the pool has no less room then.
#[test]
fn starts_that_are_cut_off_do_not_use_up_the_pool() {
    survive(3, |seed| {
        let rig = Rig::new(seed, Plan::default());
        rig.write(2, 3, 60)?;
        rig.flush()?;
        rig.write(3, 3, 5)?;
        rig.flush()?;
        rig.crash(Crash::ProcessKill);
        let mut cut = 20;
        for _ in 0..200 {
            rig.world.crash_at(Some(rig.world.io_count() + cut));
            let ended = rig.open().is_ok();
            rig.world.crash_at(None);
            rig.crash(if cut % 3 == 0 { Crash::PowerCut } else { Crash::ProcessKill });
            cut = if ended { 20 } else { cut + 1 };
        }
        rig.open()?;
        let (free, all) = rig.pool().segments();
        assert!(free > all / 2, "{free} of {all} segments are free");
        same("overwritten", rig.read(3)?, 3)?;
        same("as before", rig.read(8)?, 2)?;
        same("as before", rig.read(62)?, 2)?;
        rig.settled(3)
    });
}

/// Nothing was left free, as by a version that knew no better: a root makes room.
#[test]
fn a_start_without_room_for_what_was_open_makes_some() {
    survive(4, |seed| {
        let rig = Rig::new(seed, Plan::default());
        rig.write(2, 3, 1)?;
        rig.flush()?;
        rig.crash(Crash::ProcessKill);
        let life = root(&rig, 0, 0).unwrap().start_number;
        let (mut spare, mut model) = (Vec::new(), None);
        for number in 0..layout().segment_count {
            let header = rig.members[0].peek(layout().segment_offset(number), BLOCK);
            match SegmentHeader::decode(&header) {
                Ok(header) if header.incarnation.start >= life => model = Some(header),
                _ => spare.push(number),
            }
        }
        // As many as images need are free; the others were opened for facts, and nothing came.
        for (number, counter) in spare.into_iter().skip(3).zip(1000..) {
            let header = SegmentHeader {
                segment: SegmentId(number),
                set: SegmentId(number),
                partners: vec![SegmentId(number)],
                stream: Stream::Facts,
                incarnation: Incarnation { start: life, counter },
                ..model.clone().unwrap()
            };
            rig.members[0].poke(layout().segment_offset(number), &header.encode());
        }
        rig.open()?;
        assert_eq!(rig.pool().recovery().blocks_reappended, 1);
        assert!(!rig.was_told("want of room"));
        let (free, all) = rig.pool().segments();
        assert!(free > all / 2, "{free} of {all} segments are free");
        rig.restart(Crash::PowerCut)?;
        same("in an open segment", rig.read(3)?, 2).map(drop)
    });
}

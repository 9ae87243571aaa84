//! What reclaim lets go of: it is read where it is until its place is needed, behind a start, too, and never taken for what came
//! to its place.

use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::runtime::MILLISECOND;
use forebay_device::{Request, Runtime};
use forebay_engine::format::{SegmentHeader, Stream};
use forebay_engine::ids::{Incarnation, SegmentId};
use forebay_engine::planted::{Bug, take_seen};

use crate::destaging;
use crate::given_back::MEMBER_SEGMENTS;
use crate::rig::{
    BLOCK, Plan, Rig, SEGMENT_BYTES, SOON, is_erasure, provoke, same, survive, to_header,
};
use crate::space::{reserved, set};

/// Reads fill the log more than once, then writes.
fn filled_by_reads(seed: u64) -> Result<Rc<Rig>, String> {
    filled(seed, Plan::default())
}

fn filled(seed: u64, plan: Plan) -> Result<Rc<Rig>, String> {
    let rig = Rig::new(seed, Plan { origin_bytes: 8 << 20, tuning: destaging(), ..plan });
    for block in 0..900 {
        rig.read(2 * block)?;
        rig.pause(MILLISECOND);
    }
    Ok(rig)
}

/// Blocks of the volume that are in the cache.
fn held_blocks(rig: &Rig) -> u64 {
    rig.pool().space(rig.volume().id()).held_bytes / BLOCK as u64
}

#[test]
fn what_is_let_go_of_is_read_until_its_place_is_needed() {
    survive(3, |seed| {
        let rig = filled_by_reads(seed)?;
        rig.pause(SOON);
        let (free, segments) = rig.pool().segments();
        assert!(free >= 8 && segments == 51, "{free} of {segments} segments can be had");
        let empty = rig.pool().empty_segments();
        assert!((1..=4).contains(&empty), "{empty} segments hold nothing");
        // Where these held nothing it would be no more than seven eighths of that.
        let held = held_blocks(&rig);
        assert!(held >= 340, "{held} blocks are held");
        // The oldest ones, too, are what the origin has, or come from there.
        (0..900).try_for_each(|n| same("read again", rig.read(2 * n)?, 1).map(drop))?;
        Ok(())
    });
}

/// Who reads may wait for long: for a cache device, or for an origin that has the rest of what was asked for.
#[test]
fn what_is_still_being_read_is_nobodys_room() {
    survive(4, |seed| {
        let rig = filled_by_reads(seed)?;
        rig.pause(SOON);
        // So few that they are all clients': reclaim reads, too, once what is missed comes in.
        rig.gates[0].hold(40, |request| matches!(request, Request::Read { .. }));
        (0..900).for_each(|n| rig.start_read(2 * n));
        while rig.gates[0].held() < 40 {
            rig.pause(MILLISECOND / 10);
        }
        let writes: Vec<_> = (0..200).map(|n| rig.start_write(2, 2 * n + 1, 1)).collect();
        rig.pause(100 * SOON);
        let left = writes.iter().filter(|write| !write.get()).count();
        if left > 0 {
            return Err(format!("{left} writes wait for who reads"));
        }
        rig.gates[0].release();
        rig.pause(SOON);
        (540..640).try_for_each(|n| same("read", rig.read(2 * n)?, 1).map(drop))?;
        (0..200).try_for_each(|n| same("written", rig.read(2 * n + 1)?, 2).map(drop))
    });
}

/// Blocks that are held before and after something that leaves only what nobody has let go of.
fn given_up(rig: &Rig, action: impl FnOnce() -> Result<(), String>) -> Result<(u64, u64), String> {
    rig.pause(SOON);
    let before = held_blocks(rig);
    action()?;
    rig.pause(SOON);
    let after = held_blocks(rig);
    (0..900).try_for_each(|n| same("read again", rig.read(2 * n)?, 1).map(drop))?;
    Ok((before, after))
}

/// It could be read for as long as nobody needs its place, and a scrub does not come to it.
#[test]
fn a_scrub_leaves_nothing_that_it_has_not_looked_at() {
    survive(3, |seed| {
        let rig = filled_by_reads(seed)?;
        let (before, after) = given_up(&rig, || rig.scrub().map(drop))?;
        assert!((before / 2..before * 19 / 20).contains(&after), "{after} of {before} are left");
        Ok(())
    });
}

#[test]
fn what_a_scrub_has_dropped_does_not_come_back() {
    survive(3, |seed| {
        let rig = filled_by_reads(seed)?;
        rig.pause(SOON);
        let before = held_blocks(&rig);
        rig.scrub()?;
        let left = held_blocks(&rig);
        assert!(left < before * 19 / 20, "{left} of {before} blocks are left");
        rig.restart(Crash::ProcessKill)?;
        let after = held_blocks(&rig);
        assert!(after <= left, "{after} blocks are held, {left} were left");
        (0..900).try_for_each(|n| same("read again", rig.read(2 * n)?, 1).map(drop))
    });
}

/// Nobody has looked at it; images name it although nothing in memory does.
#[test]
fn what_is_dropped_while_it_is_read_does_not_come_back_behind_a_scrub() {
    survive(3, |seed| {
        let rig = filled_by_reads(seed)?;
        rig.pause(SOON);
        // So that sets that are let go of cannot be emptied altogether.
        rig.gates[0].hold(400, |request| matches!(request, Request::Read { .. }));
        let before = held_blocks(&rig);
        (550..900).for_each(|n| rig.start_read(2 * n));
        rig.pause(MILLISECOND);
        rig.gates[0].hold(0, |_| false);
        set(&rig, &rig.volume(), reserved(8))?;
        rig.pause(SOON);
        set(&rig, &rig.volume(), reserved(0))?;
        rig.pause(SOON);
        rig.scrub()?;
        let left = held_blocks(&rig);
        assert!(left < before && rig.gates[0].held() > 0, "{left} of {before} blocks are left");
        rig.restart(Crash::ProcessKill)?;
        let after = held_blocks(&rig);
        assert!(after <= left, "{after} blocks are held, {left} were left");
        (0..900).try_for_each(|n| same("read again", rig.read(2 * n)?, 1).map(drop))
    });
}

/// It would count as held for its volume until it is gone without anybody having looked at that.
#[test]
fn nothing_is_let_go_of_and_read_beside_a_reservation() {
    survive(3, |seed| {
        let rig = filled_by_reads(seed)?;
        let reserve = || set(&rig, &rig.volume(), reserved(8));
        let (before, after) = given_up(&rig, reserve)?;
        assert!((before / 2..before * 19 / 20).contains(&after), "{after} of {before} are left");
        Ok(())
    });
}

#[test]
fn a_segment_is_reused_only_after_a_root() {
    provoke(Bug::SegmentReusedBeforeRoot, 20, |seed| {
        let rig = filled_by_reads(seed)?;
        for version in 2..300 {
            rig.write(version, 2 * (version % 60) + 1, 1)?;
        }
        rig.flush()?;
        rig.restart(Crash::PowerCut)?;
        for version in 240..300 {
            same("overwritten", rig.read(2 * (version % 60) + 1)?, version)?;
        }
        (0..900).try_for_each(|n| same("read", rig.read(2 * n)?, 1).map(drop))
    });
}

/// Reads fill the log, a root names what was let go of, and writes need the room of that; then the power goes.
fn room_taken_back(seed: u64) -> Result<(), String> {
    let rig = filled_by_reads(seed)?;
    rig.pause(SOON);
    for block in 0..150 {
        rig.write(2, 2 * block + 1, 1)?;
    }
    rig.flush()?;
    rig.restart(Crash::PowerCut)?;
    (0..1800).try_for_each(|block| {
        let written = block % 2 == 1 && block < 300;
        let expected = if written { 2 } else { 1 };
        same(&format!("block {block}"), rig.read(block)?, expected).map(drop)
    })
}

#[test]
fn nothing_is_believed_of_a_set_that_was_opened_again_since_its_image() {
    provoke(Bug::OpenedSinceBelieved, 10, room_taken_back);
}

#[test]
fn what_images_name_has_no_header_before_anything_comes_there() {
    provoke(Bug::LetGoStillNamed, 60, |seed| {
        let rig = filled_by_reads(seed)?;
        rig.pause(SOON);
        for block in 0..60 + seed {
            rig.write(2, 2 * block + 1, 1)?;
        }
        rig.restart(Crash::PowerCut)?;
        (0..1800).try_for_each(|block| {
            // What no FLUSH has covered may be there or not.
            let found = rig.read(block)?;
            let may_be_written = block % 2 == 1 && block < 2 * (60 + seed);
            let expected = if may_be_written && found == 2 { 2 } else { 1 };
            same(&format!("block {block}"), found, expected).map(drop)
        })
    });
}

/// A discard has kept a header on another member, of a set that was made free before it and had the same number.
#[test]
fn nothing_is_believed_of_a_set_of_which_an_older_life_is_found() {
    provoke(Bug::OpenedSinceBelieved, 10, |seed| {
        let rig = filled(seed, Plan { members: 2, ..Plan::default() })?;
        rig.pause(SOON);
        rig.crash(Crash::ProcessKill);
        let headers = [0, 1].map(|member| rig.headers(member));
        let decode =
            |member: usize, at| SegmentHeader::decode(&rig.members[member].peek(at, BLOCK));
        let found = (0..2).flat_map(|member| headers[member].iter().map(move |&at| (member, at)));
        let found: Vec<_> = found.filter_map(|(member, at)| decode(member, at).ok()).collect();
        let is_unused = |counter: &u64| found.iter().all(|h| h.incarnation.counter != *counter);
        let counter = (1..).find(is_unused).unwrap();
        // What was filled first and read no more was let go of first. As if its room had been needed since.
        let on_first = found.iter().filter(|h| h.segment.0 < MEMBER_SEGMENTS);
        let read_once = on_first.filter(|h| h.stream == Stream::Probation);
        let first = read_once.min_by_key(|h| h.incarnation).unwrap().segment;
        let erased = (5 + u64::from(first.0)) * SEGMENT_BYTES;
        rig.members[0].poke(erased, &vec![0; SEGMENT_BYTES as usize]);
        let is_free = |n: &u32| found.iter().all(|h| !h.partners.contains(&SegmentId(*n)));
        let second = SegmentId((MEMBER_SEGMENTS..2 * MEMBER_SEGMENTS).find(is_free).unwrap());
        let free = (5 + u64::from(second.0 - MEMBER_SEGMENTS)) * SEGMENT_BYTES;
        let model = found.iter().rfind(|h| h.segment.0 >= MEMBER_SEGMENTS).unwrap();
        let older = SegmentHeader {
            segment: second,
            set: first,
            incarnation: Incarnation { counter, ..model.incarnation },
            stream: if seed % 2 == 0 { Stream::Dirty } else { Stream::Facts },
            partners: vec![first, second],
            ..model.clone()
        };
        rig.members[1].poke(free, &older.encode());
        rig.open()?;
        (0..900).try_for_each(|n| same("read again", rig.read(2 * n)?, 1).map(drop))
    });
}

/// A pool whose last erasure of headers a failed flush has undone, although the device does not tell: a start takes those
/// segments for free.
struct Undone {
    rig: Rc<Rig>,
    /// Blocks 1, 3, 5 and so on that were written, and may be lost.
    written: u64,
    /// Where the headers stand that come back.
    erased: Vec<u64>,
    /// What stands behind these.
    stood: Vec<Vec<u8>>,
}

impl Undone {
    fn new(seed: u64) -> Result<Undone, String> {
        let rig = filled_by_reads(seed)?;
        rig.pause(SOON);
        rig.flush()?;
        let mut written = 6;
        for n in 0..written {
            rig.write(2, 2 * n + 1, 1)?;
        }
        let before = rig.headers(0);
        rig.gates[0].hold(1, is_erasure);
        while rig.gates[0].held() == 0 {
            rig.start_write(2, 2 * written + 1, 1);
            written += 1;
            rig.pause(MILLISECOND);
        }
        rig.broken[0].failing.arm(Trigger::every(Ops::Flushes).times(1));
        rig.gates[0].release();
        rig.pause(SOON);
        assert!(rig.pool().is_latched());
        let left = rig.headers(0);
        // Not those that were discarded as a whole, which images name nothing of: what they held may come back with them.
        let is_there =
            |at: &u64| rig.members[0].peek(at + BLOCK as u64, BLOCK).iter().any(|&byte| byte != 0);
        let gone = before.into_iter().filter(|at| !left.contains(at));
        let erased: Vec<u64> = gone.filter(is_there).collect();
        assert!(!erased.is_empty());
        let mut undone = Undone { rig, written, erased, stood: Vec::new() };
        undone.stood = undone.stands();
        undone.lose_headers();
        undone.rig.crash(Crash::ProcessKill);
        Ok(undone)
    }

    fn lose_headers(&self) {
        for at in &self.erased {
            self.rig.members[0].lose(*at..at + BLOCK as u64);
        }
    }

    /// Begins a start, until the answer to one of these is held.
    fn open_until(&self, wanted: fn(&Request) -> bool) {
        self.rig.gates[0].hold(1, wanted);
        let opening = Rc::clone(&self.rig);
        self.rig.world.spawn(Box::pin(async move {
            assert!(opening.open_pool().await.is_err(), "it is cut off, or fails");
        }));
        for _ in 0..10_000 {
            if self.rig.gates[0].held() > 0 {
                return;
            }
            self.rig.pause(MILLISECOND);
        }
        panic!("no start asked for that");
    }

    /// What stands behind the headers.
    fn stands(&self) -> Vec<Vec<u8>> {
        let bytes = SEGMENT_BYTES as usize - BLOCK;
        let data = |at: &u64| self.rig.members[0].peek(at + BLOCK as u64, bytes);
        self.erased.iter().map(data).collect()
    }

    /// A start was cut off: after a power cut nothing else stands behind a header, or is read, than what images name there.
    fn check(&self) -> Result<(), String> {
        self.lose_headers();
        self.rig.crash(Crash::PowerCut);
        let (left, stands) = (self.rig.headers(0), self.stands());
        let found = self.erased.iter().zip(self.stood.iter().zip(&stands));
        for (at, (stood, stands)) in found.filter(|(at, _)| left.contains(at)) {
            if stood != stands {
                return Err(format!("something else stands behind the header at {at}"));
            }
        }
        self.rig.open()?;
        (0..1800).try_for_each(|block| {
            let found = self.rig.read(block)?;
            let may_be_written = block % 2 == 1 && block < 2 * self.written;
            let expected = if may_be_written && found == 2 { 2 } else { 1 };
            same(&format!("block {block}"), found, expected).map(drop)
        })
    }
}

/// The next start does not know, opens sets there, and is cut off before its root: the one after it finds the header, and images
/// that name what stood behind it.
#[test]
fn a_header_that_comes_back_is_believed_of_nothing_that_was_written_over() {
    provoke(Bug::HeadersBelievedGone, 40, |seed| {
        let undone = Undone::new(seed)?;
        // It does not hear that the first header is written, and what follows is durable before that.
        undone.open_until(to_header);
        undone.lose_headers();
        undone.rig.pause(SOON);
        undone.check()
    });
}

/// Its first flush of what is free fails as well.
#[test]
fn nothing_comes_where_headers_may_return() {
    survive(20, |seed| {
        let undone = Undone::new(seed)?;
        let rig = &undone.rig;
        undone.open_until(is_erasure);
        rig.broken[0].failing.arm(Trigger::every(Ops::Flushes).times(1));
        rig.gates[0].release();
        rig.pause(SOON);
        assert_eq!(undone.stood, undone.stands(), "seed {seed}");
        undone.check()
    });
}

/// Its headers are gone, and it is being discarded; then it is neither nobody's room nor counted twice.
#[test]
fn a_set_is_made_free_although_a_member_that_it_was_on_fails() {
    survive(8, |seed| {
        let plan = Plan { members: 2, copies: 2, clean_copies: 2, ..Plan::default() };
        let rig = filled(seed, plan)?;
        rig.pause(SOON);
        rig.gates[1].hold(1, |request| matches!(request, Request::Discard { .. }));
        let mut written = 0;
        while rig.gates[1].held() == 0 {
            rig.start_write(2, 2 * written + 1, 1);
            written += 1;
            rig.pause(MILLISECOND);
        }
        // Until the next epoch is durable.
        rig.gates[1].hold(1, |request| matches!(request, Request::Write { offset: 0, .. }));
        rig.broken[0].failing.arm(Trigger::every(Ops::Writes));
        while rig.gates[1].held() == 1 {
            rig.start_write(2, 2 * written + 1, 1);
            written += 1;
            rig.pause(MILLISECOND);
        }
        rig.gates[1].release();
        for n in 0..200 {
            rig.write(2, 2 * n + 1, 1)?;
        }
        rig.flush()?;
        rig.restart(Crash::PowerCut)?;
        (0..200).try_for_each(|n| same("written", rig.read(2 * n + 1)?, 2).map(drop))?;
        (0..900).try_for_each(|n| same("read", rig.read(2 * n)?, 1).map(drop))
    });
}

/// What goes around the log is given no tombstone where nothing is cached: no root may go on to name what is passed over.
#[test]
fn a_start_that_finds_a_set_opened_again_writes_new_images() {
    let mut told = 0;
    for seed in 0..12 {
        let rig = filled_by_reads(seed).unwrap();
        rig.pause(SOON);
        rig.stop().unwrap();
        // Of sets of an earlier start no footer is looked for.
        rig.open().unwrap();
        rig.stop().unwrap();
        // As if its room had been needed beside the last images. Any set will do.
        let data = rig.headers(0).into_iter().map(|at| (at, rig.members[0].peek(at, BLOCK)));
        let mut found = data.map(|(at, bytes)| (at, SegmentHeader::decode(&bytes).unwrap()));
        let (at, header) = found.rfind(|(_, header)| header.stream.holds_data()).unwrap();
        let counter = 1 << 40;
        let incarnation = Incarnation { counter, ..header.incarnation };
        rig.members[0].poke(at, &SegmentHeader { incarnation, ..header }.encode());
        take_seen();
        rig.open().unwrap();
        assert!(take_seen().contains_key("start: opened again since the image"), "seed {seed}");
        // Where one looks as if it were open, a start writes new images for that.
        if rig.pool().recovery().sets_scanned == 0 {
            told += 1;
            assert!(
                rig.pool().counters().laps.get() > 0,
                "seed {seed}: the root of the stop stands"
            );
        }
        (0..900).for_each(|n| assert_eq!(rig.read(2 * n), Ok(1), "seed {seed}"));
    }
    assert!(told > 0);
}

/// So the start behind it has no images to write.
#[test]
fn a_clean_stop_keeps_all_of_it() {
    survive(6, |seed| {
        let rig = filled_by_reads(seed)?;
        rig.pause(SOON);
        let before = held_blocks(&rig);
        take_seen();
        rig.stop()?;
        assert!(!take_seen().contains_key("stop: made free beside the last images"));
        rig.open()?;
        // A set of facts that was discarded may look as if it were open, and take some room.
        let after = held_blocks(&rig);
        assert!(after >= before * 19 / 20, "{after} of {before} blocks are held");
        (0..900).try_for_each(|n| same("read again", rig.read(2 * n)?, 1).map(drop))
    });
}

/// With all of it as warm as it was, and the room where it was.
#[test]
fn what_was_let_go_of_is_read_on_behind_a_start() {
    survive(6, |seed| {
        let rig = filled_by_reads(seed)?;
        rig.pause(SOON);
        rig.flush()?;
        let (before, (free, _)) = (held_blocks(&rig), rig.pool().segments());
        rig.restart(if seed % 2 == 0 { Crash::PowerCut } else { Crash::ProcessKill })?;
        let (after, (then, _)) = (held_blocks(&rig), rig.pool().segments());
        // Two or three of the 51 segments are needed for what was open; without what was let go of it would be seven eighths.
        assert!(after >= before * 9 / 10, "{after} of {before} blocks are held");
        assert!(then + 4 >= free, "{then} of {free} segments can be had");
        let empty = rig.pool().empty_segments();
        assert!((1..=8).contains(&empty), "{empty} segments hold nothing");
        for block in 0..150 {
            rig.write(2, 2 * block + 1, 1)?;
        }
        (0..900).try_for_each(|n| same("read again", rig.read(2 * n)?, 1).map(drop))
    });
}

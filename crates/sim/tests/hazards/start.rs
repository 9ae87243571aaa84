//! What a start must not be fooled by: devices that do not return what they hold, images that are
//! damaged now and whole the next time, roots that stand in one slot only.

use std::ops::Range;
use std::rc::Rc;

use forebay_device::Request;
use forebay_device::Runtime;
use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::runtime::MILLISECOND;
use forebay_engine::Mode;
use forebay_engine::format::{
    Layout, Root, SUPERBLOCK_BYTES, SegmentHeader, Stream, Superblock, decode_footer_trailer,
};
use forebay_engine::ids::SegmentId;
use forebay_engine::limits::SHARDS_MIN;
use forebay_engine::planted::{Bug, plant};

use crate::given_back::MEMBER_SEGMENTS;
use crate::rig::{
    BLOCK, Breakage, KINDS, MEMBER_BYTES, Plan, Rig, SEGMENT_BYTES, SOON, same, survive,
};

/// Where root slots begin.
const ROOTS: u64 = 2 * SUPERBLOCK_BYTES as u64;

/// The root in a slot of a member, if a valid one is there.
fn root(rig: &Rig, member: usize, slot: u64) -> Option<Root> {
    Root::decode(&rig.members[member].peek(ROOTS + slot * 4096, 4096)).ok()
}

fn layout() -> Layout {
    Layout::new(MEMBER_BYTES, SEGMENT_BYTES as u32, SHARDS_MIN).unwrap()
}

/// Bytes of a block of the log, on the first member.
fn log_block(block: u64) -> Range<u64> {
    let at = layout().segments_offset + block * BLOCK as u64;
    at..at + BLOCK as u64
}

/// Bytes of a segment of the first member.
fn segment(number: u64) -> Range<u64> {
    let start = layout().segments_offset + number * SEGMENT_BYTES;
    start..start + SEGMENT_BYTES
}

/// The segments of a member in whose header a stream stands.
fn segments_of(rig: &Rig, member: usize, stream: Stream) -> Vec<u64> {
    let stands = |number: &u64| {
        let header = rig.members[member].peek(segment(*number).start, BLOCK);
        SegmentHeader::decode(&header).is_ok_and(|header| header.stream == stream)
    };
    (0..u64::from(layout().segment_count)).filter(stands).collect()
}

/// The blocks are cached, with the version that the origin has.
fn cached(rig: &Rig, blocks: Range<u64>) -> Result<(), String> {
    for block in blocks {
        for _ in 0..2 {
            rig.read(block)?;
            rig.pause(SOON / 100);
        }
    }
    rig.pause(SOON);
    rig.flush()
}

fn readonly(seed: u64) -> Rc<Rig> {
    Rig::new(seed, Plan { mode: Mode::Readonly, origin_bytes: 2 << 20, ..Plan::default() })
}

/// Every read of the images that the root names is hit.
fn hit_images(rig: &Rig, hit: fn(&Breakage, Trigger)) {
    let root = root(rig, 0, 0).unwrap();
    for image in root.images.iter().filter(|image| !image.is_empty()) {
        hit(&rig.broken[0], Trigger::every(Ops::Reads).within(log_block(image.location.0)));
    }
}

fn fails(broken: &Breakage, trigger: Trigger) {
    broken.failing.arm(trigger);
}

fn flips(broken: &Breakage, trigger: Trigger) {
    broken.flipping.arm(trigger);
}

/// At one start the image of a cached block cannot be had; the block is written around the log;
/// at the next start the image is back.
fn an_image_comes_back(seed: u64, hit: fn(&Breakage, Trigger)) -> Result<(), String> {
    let rig = readonly(seed);
    cached(&rig, 3..4)?;
    rig.stop()?;
    hit_images(&rig, hit);
    rig.open()?;
    let empty = |event: &forebay_engine::Event| event.what.contains("starts empty");
    assert!(rig.pool().events().iter().any(empty), "the image was not needed");
    rig.broken[0].mend();
    rig.write(2, 3, 1)?;
    rig.flush()?;
    rig.restart(Crash::ProcessKill)?;
    same("after the kill", rig.read(3)?, 2)?;
    rig.restart(Crash::PowerCut)?;
    same("after the power cut", rig.read(3)?, 2).map(drop)
}

#[test]
fn an_image_that_could_not_be_read_is_not_believed_by_a_later_start() {
    survive(5, |seed| an_image_comes_back(seed, fails));
}

#[test]
fn an_image_that_did_not_verify_is_not_believed_by_a_later_start() {
    survive(5, |seed| an_image_comes_back(seed, flips));
}

/// Blocks 0..128 are cached. At one start something about them is damaged; others take their place
/// in the log; at the next start nothing is damaged any more.
fn others_take_the_place(seed: u64, damage: fn(&Rig)) -> Result<(), String> {
    let rig = readonly(seed);
    cached(&rig, 0..128)?;
    rig.stop()?;
    damage(&rig);
    rig.open()?;
    rig.broken[0].mend();
    let laps = rig.pool().counters().laps.get();
    cached(&rig, 256..440)?;
    let lapped = rig.pool().counters().laps.get() - laps;
    assert_eq!(lapped, 0, "a lap hides what this is about: {:?}", rig.pool().segments());
    rig.restart(Crash::ProcessKill)?;
    (0..440).try_for_each(|block| same("read back", rig.read(block)?, 1).map(drop))
}

#[test]
fn what_an_unread_image_points_into_is_reused_only_when_no_start_can_find_the_image() {
    survive(3, |seed| others_take_the_place(seed, |rig| hit_images(rig, fails)));
}

/// The headers of all data segments come back with a bit flipped.
fn flip_headers(rig: &Rig) {
    let mut data = segments_of(rig, 0, Stream::Main);
    data.extend(segments_of(rig, 0, Stream::Probation));
    for number in data {
        let header = segment(number).start..segment(number).start + BLOCK as u64;
        rig.broken[0].flipping.arm(Trigger::every(Ops::Reads).within(header));
    }
}

#[test]
fn a_segment_whose_header_is_damaged_is_reused_only_when_no_image_points_into_it() {
    survive(3, |seed| others_take_the_place(seed, flip_headers));
}

fn is_header_read(request: &Request) -> bool {
    let first = layout().segments_offset;
    matches!(request, Request::Read { offset, .. } if *offset >= first && (offset - first).is_multiple_of(SEGMENT_BYTES))
}

/// A bit of a header's first bytes flips on its way to the start, once.
#[test]
fn a_header_that_is_misread_once_is_believed() {
    survive(8, |seed| {
        let rig = Rig::new(seed, Plan::default());
        (0..40).try_for_each(|block| rig.write(2, block, 1))?;
        rig.flush()?;
        rig.crash(KINDS[(seed % 2) as usize]);
        let headers = rig.headers(0);
        let good: Vec<_> = headers.iter().map(|&at| (at, rig.members[0].peek(at, BLOCK))).collect();
        for (at, header) in &good {
            let mut bad = header.clone();
            bad[(seed % 8) as usize] ^= 1 << (seed / 2 % 8);
            rig.members[0].poke(*at, &bad);
        }
        let gate = Rc::clone(&rig.gates[0]);
        gate.hold(MEMBER_SEGMENTS as usize, is_header_read);
        let (world, member) = (Rc::clone(&rig.world), Rc::clone(&rig.members[0]));
        let watched = Rc::clone(&gate);
        rig.world.spawn(Box::pin(async move {
            while watched.held() < MEMBER_SEGMENTS as usize {
                let runtime: &dyn Runtime = &*world;
                runtime.sleep(MILLISECOND).await.result.ok();
            }
            good.iter().for_each(|(at, header)| member.poke(*at, header));
            watched.release();
        }));
        rig.open()?;
        (0..40).try_for_each(|block| same("read back", rig.read(block)?, 2).map(drop))?;
        rig.restart(Crash::ProcessKill)?;
        (0..40).try_for_each(|block| same("once more", rig.read(block)?, 2).map(drop))
    });
}

/// A start that finds damage is cut off at one of its requests; the next one finds none.
fn cut_off(seed: u64, damage: fn(&Rig)) -> Result<(), String> {
    for request in 1.. {
        let rig = readonly(seed);
        cached(&rig, 0..128)?;
        rig.stop()?;
        damage(&rig);
        rig.world.crash_at(Some(rig.world.io_count() + 2 * request + seed % 2));
        let ended = rig.open().is_ok();
        rig.broken[0].mend();
        rig.restart(Crash::PowerCut)?;
        (0..128).try_for_each(|block| same("read back", rig.read(block)?, 1).map(drop))?;
        if ended {
            return Ok(());
        }
    }
    Ok(())
}

#[test]
fn a_start_that_forgets_may_be_cut_off_anywhere() {
    survive(4, |seed| {
        cut_off(seed, |rig| hit_images(rig, fails))?;
        cut_off(seed, flip_headers)
    });
}

#[test]
fn an_image_that_cannot_be_read_is_a_decision_while_a_volume_may_be_dirty() {
    survive(3, |seed| {
        let rig = Rig::new(seed, Plan::default());
        rig.write(2, 3, 1)?;
        rig.stop()?;
        hit_images(&rig, fails);
        // Who accepts that members are missing has not agreed to this.
        for accepts in [false, true] {
            rig.accepts.set(accepts);
            assert!(rig.open().is_err_and(|error| error.contains("may be dirty")));
            rig.crash(Crash::PowerCut);
        }
        rig.broken[0].mend();
        rig.open()?;
        same("when the image is back", rig.read(3)?, 2).map(drop)
    });
}

/// One of two members is lost, and the other one does not return the images at the start without it.
/// `cut` tells at which request that start ends; returns whether it has ended by then.
fn images_fail_after_a_loss(seed: u64, cut: Option<u64>) -> Result<bool, String> {
    let rig = Rig::new(seed, Plan { members: 2, mode: Mode::Readonly, ..Plan::default() });
    cached(&rig, 0..64)?;
    rig.stop()?;
    let left = (seed % 2) as usize;
    rig.offer(&[left]);
    for number in segments_of(&rig, left, Stream::Metadata) {
        let records = segment(number).start + BLOCK as u64..segment(number).end;
        fails(&rig.broken[left], Trigger::every(Ops::Reads).within(records));
    }
    rig.world.crash_at(cut.map(|request| rig.world.io_count() + request));
    let ended = rig.open().is_ok();
    rig.world.crash_at(None);
    rig.broken[left].mend();
    if ended {
        assert!(rig.was_told("starts empty"), "the images were not needed");
        (0..64).step_by(2).try_for_each(|block| rig.write(2, block, 1))?;
        rig.flush()?;
    }
    let newest = |block: u64| if ended && block.is_multiple_of(2) { 2 } else { 1 };
    for crash in [Crash::ProcessKill, Crash::PowerCut] {
        rig.restart(crash)?;
        (0..64).try_for_each(|block| same("later", rig.read(block)?, newest(block)).map(drop))?;
    }
    Ok(ended)
}

#[test]
fn an_image_that_could_not_be_read_after_a_loss_is_not_believed_by_a_later_start() {
    survive(4, |seed| {
        assert!(images_fail_after_a_loss(seed, None)?);
        for request in 1.. {
            if images_fail_after_a_loss(seed, Some(2 * request + seed / 2 % 2))? {
                break;
            }
        }
        Ok(())
    });
}

/// A segment that holds clean data alone was, in an older life, the first of a set of facts, whose
/// other segment has not been used since. Without the first, that header is all that is seen of it.
#[test]
fn an_older_life_that_a_lost_segment_shared_is_no_damage() {
    survive(4, |seed| {
        let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
        (0..8).try_for_each(|block| rig.write(2, block, 1))?;
        rig.flush()?;
        cached(&rig, 64..128)?;
        rig.stop()?;
        let count = layout().segment_count;
        let peek = |number| rig.members[1].peek(segment(number).start, BLOCK);
        let images = segments_of(&rig, 1, Stream::Metadata)[0];
        let found = SegmentHeader::decode(&peek(images)).unwrap();
        let blank = |number: &u64| SegmentHeader::decode(&peek(*number)).is_err();
        let unused: Vec<u64> = (0..u64::from(count)).filter(blank).collect();
        let mut alone = segments_of(&rig, 0, Stream::Main);
        alone.extend(segments_of(&rig, 0, Stream::Probation));
        for (first, other) in alone.into_iter().zip(unused) {
            let mut header = SegmentHeader { stream: Stream::Facts, ..found.clone() };
            header.set = SegmentId(first as u32);
            header.segment = SegmentId(count + other as u32);
            header.partners = vec![header.set, header.segment];
            header.incarnation.counter = 0;
            rig.members[1].poke(segment(other).start, &header.encode());
        }
        rig.offer(&[1]);
        rig.open()?;
        (0..8).try_for_each(|block| same("dirty", rig.read(block)?, 2).map(drop))?;
        (64..128).try_for_each(|block| same("clean", rig.read(block)?, 1).map(drop))
    });
}

/// Dirty data in a closed segment and in an open one; then the power goes.
fn dirty(seed: u64, members: usize) -> Result<Rc<Rig>, String> {
    let rig = Rig::new(seed, Plan { members, copies: members as u8, ..Plan::default() });
    for block in 0..24 {
        rig.write(2, block, 1)?;
    }
    rig.flush()?;
    rig.pause(SOON);
    rig.flush()?;
    rig.crash(Crash::PowerCut);
    Ok(rig)
}

/// While a range of the first member cannot be read, the pool does not open, or opens with all of
/// its data if there is another copy; afterwards it opens with all of its data.
fn unreadable(seed: u64, range: fn(&Rig) -> Range<u64>) -> Result<(), String> {
    for members in [1, 2] {
        let rig = dirty(seed, members)?;
        let broken = &rig.broken[0].failing;
        broken.arm(Trigger::every(Ops::Reads).within(range(&rig)));
        let opened = rig.open();
        assert!(broken.hits() > 0, "the range was not needed");
        match opened {
            Ok(()) if members == 1 => return Err("opened without what it could not read".into()),
            Err(error) if !error.contains("read") => return Err(format!("refused: {error}")),
            Ok(()) => {
                (0..24).try_for_each(|block| same("other copy", rig.read(block)?, 2).map(drop))?;
            }
            Err(_) => {}
        }
        rig.broken[0].mend();
        rig.restart(Crash::PowerCut)?;
        (0..24).try_for_each(|block| same("mended", rig.read(block)?, 2).map(drop))?;
    }
    Ok(())
}

/// A dirty segment of the first member that has a footer, or has none.
fn dirty_segment(rig: &Rig, closed: bool) -> Range<u64> {
    let closed_is = |number: &u64| {
        let last = rig.members[0].peek(segment(*number).end - BLOCK as u64, BLOCK);
        decode_footer_trailer(&last).is_ok() == closed
    };
    segment(segments_of(rig, 0, Stream::Dirty).into_iter().find(closed_is).unwrap())
}

#[test]
fn a_segment_header_that_cannot_be_read_is_not_taken_for_a_free_segment() {
    survive(5, |seed| {
        unreadable(seed, |rig| {
            let start = dirty_segment(rig, true).start;
            start..start + BLOCK as u64
        })
    });
}

/// What of the first member cannot be read costs so many blocks, where there is no other copy, and nothing
/// else; nothing older is read.
fn costs(seed: u64, lost: usize, range: fn(&Rig) -> Range<u64>) -> Result<(), String> {
    for members in [1, 2] {
        let rig = dirty(seed, members)?;
        let broken = &rig.broken[0].failing;
        broken.arm(Trigger::every(Ops::Reads).within(range(&rig)));
        rig.open()?;
        assert!(broken.hits() > 0, "the range was not needed");
        let mut failed = 0;
        for block in 0..24 {
            match rig.read(block) {
                Ok(version) => drop(same("beside it", version, 2)?),
                Err(_) => failed += 1,
            }
        }
        assert_eq!(failed, if members == 1 { lost } else { 0 }, "{members} members");
    }
    Ok(())
}

#[test]
fn a_trailer_that_cannot_be_read_is_not_taken_for_an_empty_segment() {
    survive(5, |seed| {
        costs(seed, 0, |rig| {
            let end = dirty_segment(rig, true).end;
            end - BLOCK as u64..end
        })
    });
}

#[test]
fn an_open_segment_that_cannot_be_read_is_not_taken_for_an_empty_one() {
    survive(5, |seed| {
        unreadable(seed, |rig| {
            let range = dirty_segment(rig, false);
            range.start + BLOCK as u64..range.end
        })
    });
}

#[test]
fn a_block_of_an_open_segment_that_cannot_be_read_is_not_taken_for_the_end_of_it() {
    survive(5, |seed| {
        costs(seed, 1, |rig| {
            let start = dirty_segment(rig, false).start;
            start + 2 * BLOCK as u64..start + 3 * BLOCK as u64
        })
    });
}

#[test]
fn a_superblock_slot_that_cannot_be_read_is_not_taken_for_the_older_one() {
    survive(5, |seed| {
        unreadable(seed, |rig| {
            let newer = |slot: &usize| {
                let bytes = rig.members[0].peek(Layout::superblock_offset(*slot), SUPERBLOCK_BYTES);
                Superblock::decode(&bytes).unwrap().generation
            };
            let at = Layout::superblock_offset((0..2).max_by_key(newer).unwrap());
            at..at + 512
        })
    });
}

#[test]
fn a_root_slot_that_cannot_be_read_leaves_the_other_and_two_are_refused() {
    survive(5, |seed| {
        for slot in 0..2 {
            let rig = dirty(seed, 1)?;
            let at = ROOTS + slot * 4096;
            rig.broken[0].failing.arm(Trigger::every(Ops::Reads).within(at..at + 4096));
            rig.open()?;
            (0..24).try_for_each(|block| same("one slot", rig.read(block)?, 2).map(drop))?;
            rig.crash(Crash::PowerCut);
            let both = Trigger::every(Ops::Reads).within(ROOTS..ROOTS + 8192);
            rig.broken[0].failing.arm(both);
            assert!(rig.open().is_err_and(|error| error.contains("root")));
            rig.broken[0].mend();
            rig.restart(Crash::PowerCut)?;
            (0..24).try_for_each(|block| same("mended", rig.read(block)?, 2).map(drop))?;
        }
        Ok(())
    });
}

fn is_segment_write(request: &Request) -> bool {
    matches!(request, Request::Write { offset, .. } if *offset >= layout().segments_offset)
}

#[test]
fn a_root_in_one_slot_only_is_in_both_before_anything_is_appended() {
    survive(5, |seed| {
        for (members, another) in [(1, false), (2, false), (1, true)] {
            let rig = Rig::new(seed, Plan { members, ..Plan::default() });
            rig.write(2, 3, 1)?;
            rig.flush()?;
            // The stop's root is in slot 0; slot 1 has the one before when the power goes.
            let gates = &rig.gates;
            gates.iter().for_each(|gate| gate.hold(1, crate::is_first_root));
            *rig.volume.borrow_mut() = None;
            let pool = rig.pool.take().unwrap();
            rig.world.spawn(Box::pin(async move {
                Rc::into_inner(pool).unwrap().stop().await.ok();
            }));
            rig.pause(10 * SOON);
            rig.crash(Crash::ProcessKill);
            let generations = |rig: &Rig| -> Vec<Option<u64>> {
                let slots = (0..members).flat_map(|member| [(member, 0), (member, 1)]);
                slots.map(|(m, slot)| root(rig, m, slot).map(|root| root.generation)).collect()
            };
            let before = generations(&rig);
            assert_eq!(before[0].map(|newer| newer - 1), before[1], "one slot only");
            for slot in (0..2).filter(|_| another) {
                // As if another start had come and gone: the stop is no clean one for the next.
                let at = slot * SUPERBLOCK_BYTES as u64;
                let bytes = rig.members[0].peek(at, SUPERBLOCK_BYTES);
                let mut superblock = Superblock::decode(&bytes).unwrap();
                superblock.start_number += 1;
                rig.members[0].poke(at, &superblock.encode());
            }
            gates.iter().for_each(|gate| gate.hold(1, is_segment_write));
            let it = Rc::clone(&rig);
            rig.world.spawn(Box::pin(async move { drop(it.open_pool().await) }));
            rig.pause(SOON);
            assert!(gates.iter().all(|gate| gate.held() == 1), "it has begun to append");
            // The chosen one, under a generation of its own.
            if generations(&rig).iter().any(|generation| *generation <= before[0]) {
                return Err(format!("{before:?}, then {:?}", generations(&rig)));
            }
            // Both are durable, too: nothing of them can be lost any more.
            rig.restart(Crash::PowerCut)?;
            same("after the power cut", rig.read(3)?, 2)?;
        }
        Ok(())
    });
}

#[test]
fn a_pool_does_not_fall_back_to_a_root_whose_segments_are_in_use_again() {
    survive(10, |seed| {
        let rig = readonly(seed);
        cached(&rig, 0..128)?;
        rig.stop()?;
        rig.open()?;
        // Written around the log, so that the next root makes their segments free.
        for block in 0..128 {
            rig.write(2, block, 1)?;
        }
        rig.gates[0].hold(1, crate::is_first_root);
        *rig.volume.borrow_mut() = None;
        let pool = rig.pool.take().unwrap();
        rig.world.spawn(Box::pin(async move {
            Rc::into_inner(pool).unwrap().stop().await.ok();
        }));
        rig.pause(100 * SOON);
        assert_eq!(rig.gates[0].held(), 1);
        rig.restart(Crash::ProcessKill)?;
        let laps = rig.pool().counters().laps.get();
        cached(&rig, 256..440)?;
        assert_eq!(rig.pool().counters().laps.get(), laps, "no root since");
        rig.crash(Crash::PowerCut);
        // What the next root would do to slot 0 if the power went.
        rig.members[0].poke(ROOTS, &[0x5A; 512]);
        rig.open()?;
        (0..128).try_for_each(|block| same("overwritten", rig.read(block)?, 2).map(drop))?;
        (256..440).try_for_each(|block| same("the others", rig.read(block)?, 1).map(drop))
    });
}

/// Older versions left no room for it. One copy of what was open may be torn where another is whole.
#[test]
fn what_cannot_be_appended_again_is_read_where_it_is_whole() {
    survive(400, |seed| {
        let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
        (0..60).for_each(|block| drop(rig.start_write(2, block, 1)));
        rig.pause(MILLISECOND / 2 + seed * MILLISECOND / 400);
        rig.crash(Crash::PowerCut);
        plant(Some(Bug::StartWithoutRoom));
        rig.open()?;
        for _ in 0..4 {
            (0..60).try_for_each(|block| rig.read(block).map(drop))?;
        }
        plant(None);
        rig.restart(Crash::ProcessKill)?;
        (0..60).try_for_each(|block| rig.read(block).map(drop))
    });
}

//! Numbers of segments that had been another member's: what a header says of one is believed only if it was the same
//! member's when its set was opened (INV-52).

use std::rc::Rc;

use forebay_device::Request;
use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::runtime::{MILLISECOND, Runtime, SECOND};
use forebay_engine::format::{Layout, MemberRecord, MemberState, Numbers, SegmentHeader};
use forebay_engine::ids::SegmentId;
use forebay_engine::limits::SHARDS_MIN;
use forebay_engine::planted::Bug;
use forebay_engine::{EventKind, Tuning};

use crate::changing::{BLOCKS, add, all_but, fill, id_of, plan, remove, told, touch, verify};
use crate::copies::mirrored;
use crate::extension::grow_by;
use crate::given_back::{MEMBER_SEGMENTS, names_one};
use crate::rig::{BLOCK, KINDS, MEMBER_BYTES, Plan, Rig, SEGMENT_BYTES, newest, provoke, same};

/// A read of what sets hold.
fn is_read_of_set(request: &Request) -> bool {
    let layout = Layout::new(MEMBER_BYTES, SEGMENT_BYTES as u32, SHARDS_MIN).unwrap();
    matches!(request, Request::Read { offset, .. } if *offset >= layout.segments_offset)
}

/// A set that has lost its first copy goes on to be known by the number of that one until it is copied.
#[test]
fn the_numbers_of_a_lost_member_are_not_given_out_while_they_mean_something() {
    provoke(Bug::NumbersReused, 6, |seed| {
        let lost = (seed % 2) as usize;
        let rig = Rig::new(seed, Plan { clean_copies: 2, ..plan(2, 2, 2) });
        fill(&rig)?;
        rig.pause(SECOND);
        rig.broken[lost].gone.set(true);
        rig.write(2, 1, 1)?;
        rig.flush()?;
        add(&rig, 2)?.map_err(|error| error.to_string())?;
        while !told(&rig, EventKind::CopiesRestored) {
            rig.pause(MILLISECOND);
        }
        // Clean data is being copied.
        rig.gates[1 - lost].hold(usize::MAX, is_read_of_set);
        add(&rig, 3)?.map_err(|error| error.to_string())?;
        for round in 0..4 {
            (0..BLOCKS / 2).try_for_each(|block| rig.write(4 + round, 2 * block, 1))?;
            rig.flush()?;
        }
        (0..BLOCKS / 2).try_for_each(|block| rig.write(3, 2 * block, 1))?;
        rig.flush()?;
        rig.crash(KINDS[(seed / 2 % 2) as usize]);
        rig.gates[1 - lost].hold(0, is_read_of_set);
        rig.offer(&all_but(4, lost));
        rig.open()?;
        verify(&rig, "after a crash")?;
        let warm = rig.pool().blocks().0;
        if warm < BLOCKS {
            return Err(format!("{warm} blocks are left"));
        }
        Ok(())
    });
}

/// The first numbers of members, and how many each has.
fn numbers_of(member: usize) -> std::ops::Range<u32> {
    let first = member as u32 * MEMBER_SEGMENTS;
    first..first + MEMBER_SEGMENTS
}

/// The headers on others of three members that name a copy on this one: their members and places, and the number of that copy.
fn naming(rig: &Rig, gone: usize) -> Vec<((usize, u64), SegmentId)> {
    let named = |(member, at): (usize, u64)| {
        let header = SegmentHeader::decode(&rig.members[member].peek(at, BLOCK)).ok()?;
        let mut partners = header.partners.into_iter();
        let copy = partners.find(|segment| numbers_of(gone).contains(&segment.0))?;
        Some(((member, at), copy))
    };
    let of = |member| rig.headers(member).into_iter().map(move |at| (member, at));
    all_but(3, gone).into_iter().flat_map(of).filter_map(named).collect()
}

/// Headers are written again without their copies on a member, and the process ends before that is flushed: they are read
/// like that until a power cut takes it back. The numbers of these copies.
fn undone_later(rig: &Rc<Rig>, gone: usize, seed: u64) -> Vec<SegmentId> {
    let mut undone = naming(rig, gone);
    rig.gates[0].hold(1, names_one);
    let volume = rig.volume();
    rig.world.spawn(Box::pin(async move { volume.destage().await.unwrap_or_default() }));
    // So often that no flush of anybody comes before it is seen.
    let held = (0..4000).any(|n| {
        if n % 100 == 0 {
            rig.start_write(2, n / 100 % 8, 1);
        }
        rig.pause(MILLISECOND);
        rig.gates[0].held() > 0
    });
    assert!(held, "seed {seed}: no header was written again");
    let left = naming(rig, gone);
    undone.retain(|header| !left.contains(header));
    assert!(!undone.is_empty(), "seed {seed}: nothing is written again that named it");
    for &((member, at), _) in &undone {
        rig.members[member].lose(at..at + BLOCK as u64);
    }
    rig.gates[0].hold(0, names_one);
    rig.crash(Crash::ProcessKill);
    undone.into_iter().map(|(_, copy)| copy).collect()
}

/// What is served behind a power cut.
fn read_again(rig: &Rc<Rig>, offered: &[usize]) -> Result<(), String> {
    rig.crash(Crash::PowerCut);
    rig.offer(offered);
    rig.open()?;
    (0..2 * BLOCKS).map(|n| n % BLOCKS).filter(|block| *block >= 8).try_for_each(|block| {
        // While one copy is read, the other one has less to do.
        rig.start_read(block);
        same(&format!("block {block}"), rig.read(block)?, newest(block)).map(drop)
    })
}

/// A new member has these numbers.
fn given_again(rig: &Rc<Rig>, numbers: Numbers, seed: u64) -> Result<(), String> {
    // Nothing names them any more, as far as anybody can read.
    rig.pause(10 * SECOND);
    add(rig, 3)?.map_err(|error| error.to_string())?;
    let members = rig.pool().superblock().members;
    let is_again =
        |member: &MemberRecord| member.state == MemberState::Present && member.segments == numbers;
    assert!(members.iter().any(is_again), "seed {seed}: other numbers: {members:?}");
    read_again(rig, &[0, 2, 3])
}

/// A member is taken out of three. The headers of copies on it are damaged, else these would be known by them.
fn without(rig: &Rc<Rig>, gone: usize, seed: u64) -> Result<Numbers, String> {
    let (id, numbers) = (id_of(rig, gone), rig.pool().superblock().members[gone].segments);
    for copy in undone_later(rig, gone, seed) {
        let at = (5 + u64::from(copy.0 - numbers_of(gone).start)) * SEGMENT_BYTES;
        rig.members[gone].poke(at, &[0xA5; BLOCK]);
    }
    rig.open()?;
    rig.destage()?;
    remove(rig, id)?.map_err(|error| error.to_string())?;
    Ok(numbers)
}

/// The headers of what has lost a copy go on to name it.
#[test]
fn a_header_does_not_name_what_has_the_numbers_of_a_lost_member() {
    provoke(Bug::NumbersMistaken, 6, |seed| {
        let rig = Rig::new(seed, plan(3, 2, 2));
        fill(&rig)?;
        let numbers = rig.pool().superblock().members[1].segments;
        rig.broken[1].gone.set(true);
        touch(&rig);
        rig.destage()?;
        given_again(&rig, numbers, seed)
    });
}

#[test]
fn a_header_that_returns_does_not_name_what_has_the_numbers_of_one_that_was_taken_out() {
    provoke(Bug::NumbersMistaken, 6, |seed| {
        let rig = Rig::new(seed, Plan { members: 3, spares: 2, ..mirrored() });
        fill(&rig)?;
        let numbers = without(&rig, 1, seed)?;
        given_again(&rig, numbers, seed)
    });
}

/// It joined before, so that the epoch tells nothing.
#[test]
fn a_member_grows_by_numbers_that_none_had() {
    provoke(Bug::NumbersMistaken, 6, |seed| {
        let rig = Rig::new(seed, Plan { members: 3, ..mirrored() });
        fill(&rig)?;
        without(&rig, 2, seed)?;
        if seed % 2 == 1 {
            rig.offer(&[0, 1]);
            rig.restart(KINDS[(seed / 2 % 2) as usize])?;
        }
        rig.pause(10 * SECOND);
        grow_by(&rig, 0, u64::from(MEMBER_SEGMENTS))?;
        read_again(&rig, &[0, 1])
    });
}

/// What stays although it has lost a copy, as it is clean and has enough. Numbers that are named by two, since two members had them.
fn named_by_two(rig: &Rig) -> usize {
    let mut copies: Vec<SegmentId> = Vec::new();
    for member in [0, 2] {
        let header = |at| SegmentHeader::decode(&rig.members[member].peek(at, BLOCK)).unwrap();
        let named = rig.headers(member).into_iter().map(header);
        copies.extend(named.flat_map(|header| header.partners));
    }
    copies.retain(|copy| numbers_of(1).contains(&copy.0));
    let all = copies.len();
    copies.sort_unstable();
    copies.dedup();
    all - copies.len()
}

/// Each of two members that had the same numbers has gone with copies: of what is clean and has one left nothing is missed.
#[test]
fn what_two_members_had_in_turn_does_not_take_the_place_of_each_other() {
    provoke(Bug::NumbersMistaken, 6, |seed| {
        let tuning = Tuning { lap_percent: 90, ..mirrored().tuning };
        let plan = Plan { members: 3, spares: 2, origin_bytes: 2 << 20, tuning, ..mirrored() };
        let rig = Rig::new(seed, plan);
        let lose = |member: usize| {
            rig.broken[member].gone.set(true);
            touch(&rig);
        };
        (8..108).try_for_each(|block| rig.write(2, block, 1))?;
        rig.destage()?;
        lose(1);
        // What was known by a number of it is copied.
        rig.pause(10 * SECOND);
        let numbers = rig.pool().superblock().members[1].segments;
        add(&rig, 3)?.map_err(|error| error.to_string())?;
        let members = rig.pool().superblock().members;
        let is_again = |record: &&MemberRecord| {
            record.state == MemberState::Present && record.segments == numbers
        };
        let again = members.iter().find(is_again).expect("its numbers are given again").device;
        (108..140).try_for_each(|block| rig.write(2, block, 1))?;
        rig.destage()?;
        if seed % 2 == 0 {
            lose(3);
            assert!(named_by_two(&rig) > 0, "seed {seed}: no number is named twice");
        } else {
            remove(&rig, again)?.map_err(|error| error.to_string())?;
        }
        rig.crash(KINDS[(seed / 2 % 2) as usize]);
        rig.offer(&[0, 2]);
        rig.open()?;
        rig.origin_broken.failing.arm(Trigger::every(Ops::Reads));
        // What lay on the second one may have gone with it.
        (8..108).try_for_each(|block| same("still cached", rig.read(block)?, 2).map(drop))
    });
}

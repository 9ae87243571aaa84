//! A member that has been set back, as by a copy or a snapshot of it: all that it holds verifies, and others have overwritten it
//! since.

use std::ops::Range;
use std::rc::Rc;

use forebay_device::BlockDevice;
use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_engine::format::{Layout, SUPERBLOCK_BYTES};
use forebay_engine::planted::Bug;
use forebay_engine::{EventKind, Mode};

use crate::changing::begin_add;
use crate::rig::{KINDS, MEMBER_BYTES, Plan, Rig, SOON, provoke, same, survive};

const SEEDS: u64 = 8;

/// Blocks that are written, more than a segment has.
const BLOCKS: u64 = 48;

/// How a run ends.
#[derive(Clone, Copy)]
enum End {
    Stop,
    Kill,
}

fn plan(members: usize, copies: u8) -> Plan {
    Plan { members, copies, ..Plan::default() }
}

fn end(rig: &Rc<Rig>, end: End) -> Result<(), String> {
    match end {
        End::Stop => rig.stop().map(drop),
        End::Kill => {
            rig.crash(Crash::ProcessKill);
            Ok(())
        }
    }
}

fn write(rig: &Rc<Rig>, version: u64) -> Result<(), String> {
    for block in (3..3 + BLOCKS).step_by(8) {
        rig.write(version, block, 8)?;
    }
    rig.flush()
}

fn reads(rig: &Rc<Rig>, when: &str, version: u64) -> Result<(), String> {
    (3..3 + BLOCKS).try_for_each(|block| same(when, rig.read(block)?, version).map(drop))
}

/// Where a superblock slot stands.
fn superblock(slot: usize) -> Range<u64> {
    let at = Layout::superblock_offset(slot);
    at..at + SUPERBLOCK_BYTES as u64
}

/// What a member holds.
fn image(rig: &Rig, member: usize) -> Vec<u8> {
    rig.members[member].peek(0, MEMBER_BYTES as usize)
}

fn is_told(rig: &Rig) -> bool {
    let told = |event: &forebay_engine::Event| {
        event.kind == EventKind::MemberFailed && event.what.contains("has been set back")
    };
    rig.pool().events().iter().any(told)
}

/// A run, a copy of a member behind it, and a run that overwrites everything; which member that was, and the copy.
fn overwritten(
    seed: u64,
    members: usize,
    copies: u8,
    ends: [End; 2],
) -> Result<(Rc<Rig>, usize, Vec<u8>), String> {
    let rig = Rig::new(seed, plan(members, copies));
    write(&rig, 2)?;
    end(&rig, ends[0])?;
    let member = seed as usize % members;
    let older = image(&rig, member);
    rig.open()?;
    write(&rig, 3)?;
    end(&rig, ends[1])?;
    Ok((rig, member, older))
}

/// The same, and the copy in its member's place.
fn set_back(seed: u64, members: usize, copies: u8, ends: [End; 2]) -> Result<Rc<Rig>, String> {
    let (rig, member, older) = overwritten(seed, members, copies, ends)?;
    rig.members[member].poke(0, &older);
    Ok(rig)
}

fn goes_on_without_it(seed: u64, members: usize, ends: [End; 2]) -> Result<(), String> {
    let rig = set_back(seed, members, 2, ends)?;
    rig.open()?;
    reads(&rig, "beside an older copy", 3)?;
    assert!(is_told(&rig), "{:?}", rig.pool().events());
    rig.restart(Crash::PowerCut)?;
    reads(&rig, "at the next start", 3)
}

#[test]
fn a_member_that_was_set_back_behind_a_clean_stop_is_gone_on_without() {
    provoke(Bug::OlderCopyBelieved, SEEDS, |seed| {
        goes_on_without_it(seed, 2 + seed as usize / 4, [End::Stop, End::Stop])
    });
}

#[test]
fn a_member_that_was_set_back_behind_a_kill_is_gone_on_without() {
    survive(SEEDS, |seed| {
        let ends = if seed < 4 { [End::Kill, End::Kill] } else { [End::Stop, End::Kill] };
        goes_on_without_it(seed, 2 + seed as usize % 2, ends)
    });
}

#[test]
fn a_member_that_was_set_back_within_a_run_is_gone_on_without() {
    survive(SEEDS, |seed| {
        let rig = Rig::new(seed, plan(2, 2));
        write(&rig, 2)?;
        let member = seed as usize % 2;
        let copy = image(&rig, member);
        for version in 3..20 {
            write(&rig, version)?;
        }
        rig.crash(Crash::ProcessKill);
        rig.members[member].poke(0, &copy);
        rig.open()?;
        reads(&rig, "beside an older copy", 19)?;
        assert!(is_told(&rig), "{:?}", rig.pool().events());
        Ok(())
    });
}

#[test]
fn without_other_copies_a_pool_stays_closed_until_what_it_wrote_last_is_back() {
    provoke(Bug::OlderCopyBelieved, SEEDS, |seed| {
        let rig = Rig::new(seed, plan(2, 1));
        write(&rig, 2)?;
        rig.stop()?;
        let member = seed as usize % 2;
        let older = image(&rig, member);
        rig.open()?;
        write(&rig, 3)?;
        rig.stop()?;
        let newest = image(&rig, member);
        rig.members[member].poke(0, &older);
        let refused = rig.open().err().ok_or("it opens with an older copy")?;
        assert!(refused.contains("has been set back"), "{refused}");
        rig.crash(Crash::PowerCut);
        rig.members[member].poke(0, &newest);
        rig.open()?;
        reads(&rig, "with the newest", 3)
    });
}

/// Copies of all members, from before a start, in their place: they agree with each other, and the witness knows better.
#[test]
fn a_pool_of_which_all_members_were_set_back_asks_before_it_opens() {
    provoke(Bug::OlderCopyBelieved, SEEDS, |seed| {
        let members = 1 + seed as usize % 3;
        let rig = Rig::new(seed, plan(members, 1));
        write(&rig, 2)?;
        end(&rig, if seed < 4 { End::Kill } else { End::Stop })?;
        let copies: Vec<_> = (0..members).map(|member| image(&rig, member)).collect();
        rig.open()?;
        write(&rig, 3)?;
        end(&rig, End::Kill)?;
        let newest: Vec<_> = (0..members).map(|member| image(&rig, member)).collect();
        let put_back = |images: &[Vec<u8>]| {
            images
                .iter()
                .enumerate()
                .for_each(|(member, image)| rig.members[member].poke(0, image));
        };
        put_back(&copies);
        let refused = rig.open().err().ok_or("it opens with older copies alone")?;
        assert!(refused.contains("are as they were at an earlier time"), "{refused}");
        rig.crash(Crash::PowerCut);
        if seed % 2 == 0 {
            put_back(&newest);
            rig.open()?;
            return reads(&rig, "with the newest", 3);
        }
        rig.accepts.set(true);
        rig.open()
    });
}

/// With another member goes the only copy of something; what is lost is noted by a root, and the next one comes later. The copy
/// is of before it.
#[test]
fn a_member_that_was_set_back_is_found_out_behind_a_loss() {
    provoke(Bug::OlderCopyBelieved, SEEDS, |seed| {
        let rig = Rig::new(seed, plan(3, 1));
        write(&rig, 2)?;
        rig.stop()?;
        let [member, failed] = [seed, seed + 1].map(|at| at as usize % 3);
        let older = image(&rig, member);
        rig.open()?;
        write(&rig, 3)?;
        rig.broken[failed].failing.arm(Trigger::every(Ops::All));
        let told = |kind| rig.pool().events().iter().any(|event| event.kind == kind);
        for block in 0.. {
            rig.start_write(4, 60 + block % 4, 1);
            rig.pause(SOON);
            if told(EventKind::BlocksLost) {
                break;
            }
        }
        rig.crash(KINDS[seed as usize % 2]);
        let others: Vec<_> = (0..3).filter(|&at| at != failed).collect();
        rig.offer(&others);
        let newest = image(&rig, member);
        rig.members[member].poke(0, &older);
        let refused = rig.open().err().ok_or("it opens with an older copy")?;
        assert!(refused.contains("has been set back"), "{refused}");
        rig.crash(Crash::PowerCut);
        rig.members[member].poke(0, &newest);
        rig.open()
    });
}

/// The start that comes before it is cut off at each of its I/Os: whatever it has written, what its predecessor left tells.
#[test]
fn a_member_that_was_set_back_is_found_out_behind_starts_that_were_cut_off() {
    survive(SEEDS, |seed| {
        for (cut_off, ios) in (1..).step_by(7).enumerate() {
            let (rig, member, older) = overwritten(seed, 2, 2, [End::Kill, End::Kill])?;
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            let is_over = rig.open().is_ok();
            rig.world.crash_at(None);
            rig.crash(KINDS[ios as usize / 7 % 2]);
            if is_over {
                assert!(cut_off > 10, "{cut_off} starts were cut off");
                return Ok(());
            }
            rig.members[member].poke(0, &older);
            let at = |error: String| format!("behind {ios} I/Os of a start: {error}");
            rig.open().map_err(at)?;
            reads(&rig, "beside an older copy", 3).map_err(at)?;
            assert!(is_told(&rig), "behind {ios} I/Os of a start: {:?}", rig.pool().events());
        }
        Ok(())
    });
}

/// The others are told of a new member once it is ready: it is as new as they are.
#[test]
fn a_member_that_has_just_joined_is_not_taken_for_one_that_was_set_back() {
    survive(4, |seed| {
        let members = 1 + seed as usize % 2;
        let rig = Rig::new(seed, Plan { spares: 1, mode: Mode::Writethrough, ..plan(members, 1) });
        let (pool, device) = (rig.pool(), Rc::clone(&rig.gates[members]) as Rc<dyn BlockDevice>);
        let added = rig.run(async move { pool.add_member(device).await })?;
        added.map_err(|error| error.to_string())?;
        rig.crash(Crash::ProcessKill);
        rig.offer(&[members]);
        rig.open()?;
        reads(&rig, "with the new member alone", 1)
    });
}

/// It fails beside another one that takes data with it, and is there again at the next start: it was never behind those that
/// have noted the loss, it had not come as far.
#[test]
fn a_member_that_fails_as_it_joins_beside_a_loss_is_not_taken_for_one_that_was_set_back() {
    survive(4, |seed| {
        let failed = seed as usize % 2;
        let (mut opened, mut beside) = (0, 0);
        for (after, ios) in (0..8).flat_map(|after| (1..=30).map(move |ios| (after, ios))) {
            let rig = Rig::new(seed, Plan { spares: 1, ..plan(2, 1) });
            write(&rig, 2)?;
            let slot = superblock(seed as usize / 2);
            rig.broken[failed].failing.arm(Trigger::every(Ops::Writes).within(slot));
            begin_add(&rig, 2);
            while rig.broken[failed].failing.hits() == 0 {
                rig.pause(MILLISECOND / 100);
            }
            rig.broken[2].failing.arm(Trigger::every(Ops::All).after(after));
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            rig.world.run_for(SECOND).ok();
            rig.world.crash_at(None);
            rig.crash(KINDS[ios as usize % 2]);
            beside += u64::from(rig.broken[2].failing.hits() > 0);
            rig.broken[2].mend();
            rig.offer(&[1 - failed, 2]);
            match rig.open() {
                Ok(()) => opened += 1,
                Err(error) if error.contains("has been set back") => {
                    return Err(format!("{after} of its I/Os, {ios} in all: {error}"));
                }
                Err(_) => {}
            }
        }
        assert!(opened > 50 && beside > 50, "opened {opened}, failed as it joined {beside}");
        Ok(())
    });
}

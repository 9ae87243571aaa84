//! What cannot be read for a moment and can be then: nobody is told that it failed, and no device is worn out by
//! copying it again and again.

use std::rc::Rc;

use forebay_device::Runtime;
use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_engine::{EventKind, Place};

use crate::changing::{self, all_but, told};
use crate::rig::{BLOCK, KINDS, MEMBER_BYTES, Plan, Rig, SOON, same, survive};
use crate::scrub::{BLOCKS, spoilt};
use crate::silent;

/// More reads than anybody tries before a block counts as lost.
const FAILED_READS_MAX: u64 = 40;

/// The block that is meant.
const BAD: u64 = 3;

/// One copy of dirty data.
fn written(seed: u64) -> Result<Rc<Rig>, String> {
    let rig = Rig::new(seed, Plan { verify_reads: seed.is_multiple_of(2), ..Plan::default() });
    (0..32).try_for_each(|block| rig.write(2, block, 1))?;
    rig.flush()?;
    rig.flush()?;
    Ok(rig)
}

/// The device fails so many reads of the block, and then returns it.
fn fail_reads(rig: &Rig, times: u64) {
    let at = crate::scrub::find(rig, 0, BAD);
    let trigger = Trigger::every(Ops::Reads).within(at..at + BLOCK as u64).times(times);
    rig.broken[0].failing.arm(trigger);
}

fn is_lost(rig: &Rig) -> bool {
    let mut extents = Vec::new();
    rig.volume().status(BAD * BLOCK as u64, BLOCK as u64, &mut extents).unwrap();
    extents.iter().any(|extent| extent.place == Place::Lost)
}

/// How often it fails decides whether it is lost; nothing is an error that is not.
fn ends_well(script: fn(&Rc<Rig>) -> Result<(), String>) {
    for seed in 0..4 {
        let mut losses = 0;
        for times in 1..FAILED_READS_MAX {
            let rig = written(seed).unwrap();
            fail_reads(&rig, times);
            let result = script(&rig);
            losses += u64::from(is_lost(&rig));
            let is_right = result.is_ok() || is_lost(&rig);
            assert!(is_right, "seed {seed}, {times} failed reads: {result:?}");
            assert!(!rig.pool().is_latched());
            rig.broken[0].mend();
        }
        assert!((1..FAILED_READS_MAX - 1).contains(&losses), "{losses} losses");
    }
}

#[test]
fn a_read_of_what_can_be_read_after_all_does_not_fail() {
    ends_well(|rig| same("the block", rig.read(BAD)?, 2).map(drop));
}

#[test]
fn a_partial_write_over_what_can_be_read_after_all_does_not_fail() {
    ends_well(|rig| {
        let outcome = rig.start_write_sector(3, BAD * 8 + 1);
        rig.pause(SOON);
        if outcome.get() == Some(true) { Ok(()) } else { Err(format!("{:?}", outcome.get())) }
    });
}

#[test]
fn a_start_goes_on_with_what_can_be_read_after_all() {
    survive(4, |seed| {
        for times in 1..FAILED_READS_MAX {
            let rig = written(seed)?;
            rig.crash(KINDS[(seed % 2) as usize]);
            let at = (0..MEMBER_BYTES)
                .step_by(BLOCK)
                .find(|&at| crate::rig::version(31, &rig.members[0].peek(at, BLOCK)) == Ok(2));
            let at = at.ok_or("it was written")?;
            let trigger = Trigger::every(Ops::Reads).within(at..at + BLOCK as u64).times(times);
            rig.broken[0].failing.arm(trigger);
            rig.open().map_err(|error| format!("{times} failed reads: {error}"))?;
            rig.broken[0].mend();
        }
        Ok(())
    });
}

/// Blocks that were copied.
fn copied(rig: &Rig) -> u64 {
    rig.pool().counters().move_blocks.get()
}

/// It takes whatever is written and returns nothing. What it has is copied elsewhere, once.
#[test]
fn a_member_that_returns_nothing_for_long_is_left_behind() {
    survive(6, |seed| {
        let rig = Rig::new(
            seed,
            Plan { verify_reads: seed.is_multiple_of(2), ..changing::plan(3, 0, 2) },
        );
        (0..BLOCKS).try_for_each(|block| rig.write(2, block, 1))?;
        rig.flush()?;
        rig.flush()?;
        let bad = (seed % 3) as usize;
        let broken = &rig.broken[bad];
        let how = [&broken.failing, &broken.timing_out, &broken.erring][(seed / 2 % 3) as usize];
        how.arm(Trigger::every(Ops::Reads));
        let before = copied(&rig);
        for _ in 0..60 {
            rig.is_whole("from the others")?;
            rig.pause(SOON);
        }
        if !told(&rig, EventKind::MemberFailed) {
            return Err("it serves".into());
        }
        let moved = copied(&rig) - before;
        if moved > 2 * BLOCKS {
            return Err(format!("{moved} blocks were copied"));
        }
        rig.pause(100 * SOON);
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.offer(&all_but(3, bad));
        rig.open()?;
        rig.is_whole("without it")?;
        rig.destage()?;
        (0..BLOCKS).try_for_each(|block| rig.settled(block))
    });
}

/// For shorter than a controller takes to reset.
#[test]
fn a_member_that_returns_nothing_for_a_moment_stays() {
    survive(4, |seed| {
        let rig = spoilt(seed, &[], |broken| &broken.flipping)?;
        let bad = (seed % 2) as usize;
        for _ in 0..3 {
            rig.broken[bad].failing.arm(Trigger::every(Ops::Reads));
            for _ in 0..20 {
                rig.is_whole("meanwhile")?;
                rig.pause(SOON);
            }
            rig.broken[bad].mend();
            rig.pause(20 * SOON);
        }
        if told(&rig, EventKind::MemberFailed) {
            return Err("it was left behind".into());
        }
        rig.is_whole("at last")
    });
}

/// It returns what a pool says of itself, and hardly anything else: what is copied to it again is bad again.
#[test]
fn a_member_to_which_all_is_copied_in_vain_is_left_behind() {
    survive(4, |seed| {
        let rig = Rig::new(seed, Plan { verify_reads: true, ..changing::plan(2, 0, 2) });
        (0..BLOCKS).try_for_each(|block| rig.write(2, block, 1))?;
        rig.flush()?;
        rig.flush()?;
        // Whoever has nothing to do reads from the first one.
        let bad = 0;
        let segments = rig.pool().superblock().segments_offset..MEMBER_BYTES;
        let broken = &rig.broken[bad];
        [&broken.failing, &broken.erring][(seed % 2) as usize]
            .arm(Trigger::every(Ops::Reads).within(segments));
        let began = rig.world.now();
        while !told(&rig, EventKind::MemberFailed) {
            rig.is_whole("from the others")?;
            rig.pause(10 * MILLISECOND);
            if rig.world.now() - began > 600 * SECOND {
                return Err(format!("it serves; {} blocks were copied", copied(&rig)));
            }
        }
        let span = (rig.world.now() - began) / SECOND;
        let moved = copied(&rig);
        if moved > (span + 1) * 2048 {
            return Err(format!("{moved} blocks in {span} s"));
        }
        rig.pause(100 * SOON);
        rig.offer(&[1 - bad]);
        rig.restart(KINDS[(seed % 2) as usize])?;
        rig.is_whole("without it")
    });
}

/// What is damaged in one copy is on its way home, to an origin that does not answer.
#[test]
fn an_origin_that_does_not_answer_holds_up_no_healing() {
    survive(6, |seed| {
        let (rig, bad) = (silent::unproven(seed)?, (seed % 3) as usize);
        let first =
            (0..silent::BLOCKS).find(|&block| has(&rig, bad, block)).ok_or("nothing there")?;
        let at = crate::scrub::find(&rig, bad, first);
        let byte = rig.members[bad].peek(at + 99, 1)[0];
        rig.members[bad].poke(at + 99, &[byte ^ 4]);
        let pool = rig.pool();
        pool.start_scrub().map_err(|error| error.to_string())?;
        for _ in 0..100 {
            rig.pause(SOON);
            if !pool.scrub().running {
                break;
            }
        }
        let found = pool.scrub();
        if found.running || found.found.copied != 1 {
            return Err(format!("{found:?}"));
        }
        drop(pool);
        silent::comes_home(&rig, seed, (bad + 1) % 3)
    });
}

fn has(rig: &Rig, member: usize, block: u64) -> bool {
    (0..MEMBER_BYTES)
        .step_by(BLOCK)
        .any(|at| crate::rig::version(block, &rig.members[member].peek(at, BLOCK)) == Ok(2))
}

/// Destaging and a move meet devices that return nothing, for shorter than a controller takes to reset: of one copy, or
/// both of two.
#[test]
fn a_moment_without_reads_costs_nothing_while_data_is_brought_home() {
    survive(16, |seed| {
        let copies = 1 + (seed % 2) as u8;
        let members = usize::from(copies) + 1;
        let rig = Rig::new(seed, Plan { verify_reads: true, ..changing::plan(members, 0, copies) });
        (0..BLOCKS).try_for_each(|block| rig.write(2, block, 1))?;
        rig.flush()?;
        rig.flush()?;
        let silent: Vec<_> =
            (0..usize::from(copies)).map(|i| (i + seed as usize) % members).collect();
        for &member in &silent {
            rig.broken[member].failing.arm(Trigger::every(Ops::Reads));
        }
        let (pool, volume) = (rig.pool(), rig.volume());
        let leaver = changing::id_of(&rig, silent[0]);
        let is_moved = seed / 2 % 2 == 1 && copies == 1;
        let ended = Rc::new(std::cell::Cell::new(false));
        let has_ended = Rc::clone(&ended);
        rig.world.spawn(Box::pin(async move {
            let _ = match is_moved {
                true => pool.begin_departure(leaver).unwrap().end().await,
                false => volume.destage().await,
            };
            has_ended.set(true);
        }));
        rig.pause((1 + seed) * 250 * MILLISECOND);
        if ended.get() {
            return Err("it has ended without what cannot be read".into());
        }
        silent.iter().for_each(|&member| rig.broken[member].mend());
        rig.pause(100 * SOON);
        if told(&rig, EventKind::MemberFailed) || rig.was_told("lost") || rig.pool().is_latched() {
            let told: Vec<_> = rig.pool().events().iter().map(|event| event.what.clone()).collect();
            return Err(format!("{told:?}"));
        }
        rig.is_whole("after it")?;
        if is_moved {
            rig.offer(&all_but(members, silent[0]));
        }
        rig.restart(KINDS[(seed % 2) as usize])?;
        rig.is_whole("after a crash")?;
        rig.destage()?;
        (0..BLOCKS).try_for_each(|block| rig.settled(block))
    });
}

/// What is damaged and on its way home is looked at twice: before the origin's flush and behind it.
#[test]
fn what_waits_for_an_origin_counts_once() {
    survive(3, |seed| {
        let (rig, bad) = (silent::unproven(seed)?, (seed % 3) as usize);
        let there: Vec<_> = (0..silent::BLOCKS).filter(|&block| has(&rig, bad, block)).collect();
        for &block in &there[..5] {
            let at = crate::scrub::find(&rig, bad, block);
            let byte = rig.members[bad].peek(at + 99, 1)[0];
            rig.members[bad].poke(at + 99, &[byte ^ 4]);
        }
        let pool = rig.pool();
        pool.start_scrub().map_err(|error| error.to_string())?;
        rig.pause(SOON);
        rig.origin_gate.hold(0, |_| false);
        rig.origin_gate.release();
        rig.pause(50 * SOON);
        let (found, damaged) = (pool.scrub(), pool.damaged_blocks());
        let counted: u64 = damaged.iter().map(|(_, blocks)| blocks).sum();
        if found.running || (found.found.copied, found.found.damaged, counted) != (5, 5, 5) {
            return Err(format!("{found:?} {damaged:?}"));
        }
        drop(pool);
        silent::comes_home(&rig, seed, (bad + 1) % 3)
    });
}

/// What one of two has rotten the other one may have, however much of that is rotten.
#[test]
fn a_member_stays_while_the_others_are_not_sound() {
    survive(4, |seed| {
        let rig = spoilt(seed, &[1], |broken| &broken.flipping)?;
        rig.scrub()?;
        let segments = rig.pool().superblock().segments_offset..MEMBER_BYTES;
        let broken = &rig.broken[0];
        match seed % 2 {
            0 => broken.failing.arm(Trigger::every(Ops::Reads).within(segments)),
            _ => broken.timing_out.arm(Trigger::every(Ops::Reads)),
        }
        for _ in 0..40 {
            rig.is_whole("from the other one")?;
            rig.pause(5 * SOON);
        }
        if told(&rig, EventKind::MemberFailed) {
            return Err("it was left behind".into());
        }
        broken.failing.disarm();
        broken.timing_out.disarm();
        rig.restart(KINDS[(seed / 2 % 2) as usize])?;
        rig.is_whole("when all is read again")
    });
}

/// One record can be read from neither: from one of them for ever, from the other one for some seconds. Nobody takes the
/// second one for one that can be done without.
#[test]
fn a_silent_member_stays_while_another_one_has_a_bad_sector() {
    survive(4, |seed| {
        let rig = spoilt(seed, &[], |broken| &broken.flipping)?;
        let at = crate::scrub::find(&rig, 1, BAD);
        let sector = Trigger::every(Ops::Reads).within(at..at + BLOCK as u64);
        rig.broken[1].failing.arm(sector);
        let how = [&rig.broken[0].failing, &rig.broken[0].erring][(seed % 2) as usize];
        how.arm(Trigger::every(Ops::Reads));
        for _ in 0..80 {
            (0..8).for_each(|block| rig.start_read(block));
            rig.pause(SOON);
        }
        if told(&rig, EventKind::MemberFailed) {
            return Err("it was left behind".into());
        }
        how.disarm();
        rig.pause(20 * SOON);
        rig.is_whole("when it answers again")?;
        rig.broken[1].mend();
        rig.restart(KINDS[(seed / 2 % 2) as usize])?;
        rig.is_whole("at last")
    });
}

/// It answers but for one run, for reasons that say nothing, and at the end of all patience nothing at all for a moment.
#[test]
fn a_moment_at_the_end_of_five_seconds_is_a_moment() {
    survive(4, |seed| {
        let rig = Rig::new(seed, Plan { verify_reads: true, ..changing::plan(2, 0, 1) });
        (0..BLOCKS).try_for_each(|block| rig.write(2, block, 1))?;
        rig.flush()?;
        rig.flush()?;
        let bad = (0..2).find(|&member| has(&rig, member, BAD)).ok_or("it was written")?;
        let at = crate::scrub::find(&rig, bad, BAD);
        let trigger = Trigger::every(Ops::Reads).within(at..at + BLOCK as u64);
        rig.broken[bad].timing_out.arm(trigger);
        let volume = rig.volume();
        rig.world.spawn(Box::pin(async move { drop(volume.destage().await) }));
        rig.pause(49 * SOON + seed * SOON / 4);
        rig.broken[bad].failing.arm(Trigger::every(Ops::Reads));
        rig.pause(3 * SOON);
        rig.broken[bad].mend();
        rig.pause(100 * SOON);
        if told(&rig, EventKind::MemberFailed) || rig.was_told("lost") {
            return Err("it cost what the member has alone".into());
        }
        rig.restart(KINDS[(seed % 2) as usize])?;
        rig.is_whole("at last")
    });
}

//! A member that says it has written what it has not, or that is pulled out. The other one has a copy
//! of all that is owed.

use std::rc::Rc;

use forebay_device::model::fault::{Faults, Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_engine::Tuning;

use crate::rig::{Breakage, KINDS, Plan, Rig, lazy, same, survive};

const BLOCKS: u64 = 64;

fn newest(block: u64) -> u64 {
    3 - block % 2
}

fn verify(rig: &Rc<Rig>, when: &str) -> Result<(), String> {
    for block in 0..BLOCKS {
        same(&format!("block {block} {when}"), rig.read(block)?, newest(block))?;
    }
    Ok(())
}

/// Starts again; without the liar if it has overwritten its own superblocks, which is refused.
fn restart(rig: &Rc<Rig>, crash: Crash, liar: usize) -> Result<(), String> {
    match rig.restart(crash) {
        Err(error) if error.contains("no readable superblock") => {
            rig.offer(&[1 - liar]);
            rig.restart(crash)
        }
        other => other,
    }
}

/// One of two members lies about every fourth write, from before the first block of data on.
fn lies(seed: u64, how: fn(&Breakage) -> &Rc<Faults>) -> Result<(), String> {
    let tuning = Tuning { lap_percent: 20, ..lazy() };
    let plan = Plan { members: 2, copies: 2, tuning, verify_reads: true, ..Plan::default() };
    let rig = Rig::new(seed, plan);
    let liar = (seed / 2 % 2) as usize;
    let faults = how(&rig.broken[liar]);
    faults.arm(Trigger::one_in(Ops::Writes, 4));
    for block in 0..BLOCKS {
        rig.write(2, block, 1)?;
    }
    rig.destage()?;
    for block in (0..BLOCKS).step_by(2) {
        rig.write(3, block, 1)?;
    }
    rig.flush()?;
    assert!(faults.hits() > 5, "it has lied");
    verify(&rig, "at first")?;
    for crash in KINDS {
        restart(&rig, crash, liar)?;
        verify(&rig, &format!("after {crash:?}"))?;
    }
    rig.destage()?;
    (0..BLOCKS).try_for_each(|block| rig.settled(block))?;
    rig.stop()?;
    restart(&rig, Crash::ProcessKill, liar)?;
    verify(&rig, "after a stop")
}

#[test]
fn writes_that_one_member_loses_are_there_on_the_other() {
    survive(24, |seed| lies(seed, |broken| &broken.losing));
}

#[test]
fn writes_that_one_member_tears_are_whole_on_the_other() {
    survive(24, |seed| lies(seed, |broken| &broken.tearing));
}

#[test]
fn writes_that_one_member_puts_elsewhere_are_in_place_on_the_other() {
    survive(24, |seed| lies(seed, |broken| &broken.misdirecting));
}

#[test]
fn writes_in_which_one_member_flips_a_bit_are_right_on_the_other() {
    survive(24, |seed| lies(seed, |broken| &broken.flipping));
}

/// Nobody notices, and nothing is lost without it.
#[test]
fn a_member_that_is_pulled_out_takes_nothing_with_it() {
    survive(24, |seed| {
        let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
        let pulled = (seed / 2 % 2) as usize;
        for block in 0..BLOCKS {
            rig.write(2, block, 1)?;
        }
        rig.flush()?;
        rig.broken[pulled].gone.set(true);
        for block in (0..BLOCKS).step_by(2) {
            rig.write(3, block, 1)?;
            rig.flush()?;
        }
        verify(&rig, "without it")?;
        rig.offer(&[1 - pulled]);
        rig.restart(KINDS[(seed % 2) as usize])?;
        verify(&rig, "at the next start")?;
        rig.destage()?;
        (0..BLOCKS).try_for_each(|block| rig.settled(block))
    });
}

//! A volume that is clean is noted as such by itself: all members may fail then, and its origin can be served.

use std::rc::Rc;

use forebay_device::model::world::Crash;
use forebay_device::runtime::SECOND;
use forebay_engine::Tuning;
use forebay_engine::planted::Bug;
use forebay_engine::witness::without_members;

use crate::rig::{Plan, Rig, lazy, provoke, same, survive};

const SPAN: u64 = 5 * SECOND;

fn noting(seed: u64) -> Rc<Rig> {
    let tuning = Tuning { clean_noted_after: SPAN, ..lazy() };
    Rig::new(seed, Plan { members: 2, copies: 2, agreed: false, tuning, ..Plan::default() })
}

/// Volumes that the witness withholds.
pub fn withheld(rig: &Rig) -> u64 {
    let known = rig.recall().and_then(|bytes| without_members(&bytes).ok());
    known.map_or(u64::MAX, |known| known.withheld.len() as u64)
}

#[test]
fn what_has_been_clean_for_a_while_is_known_to_the_witness_until_it_is_written_to() {
    survive(4, |seed| {
        let rig = noting(seed);
        for version in 2..6 {
            (0..20).try_for_each(|block| rig.write(version, block, 1))?;
            rig.destage()?;
            rig.pause(SPAN * 3 / 5);
            same("written to now and then", withheld(&rig), 1)?;
        }
        rig.pause(SPAN);
        same("left alone", withheld(&rig), 0)?;
        (0..20).try_for_each(|block| same("read", rig.read(block)?, 5).map(drop))?;
        rig.pause(2 * SPAN);
        same("read alone", withheld(&rig), 0)?;
        rig.restart(Crash::PowerCut)?;
        (0..20).try_for_each(|block| same("read", rig.read(block)?, 5).map(drop))?;
        rig.write(6, 3, 1)?;
        same("written to", withheld(&rig), 1)?;
        rig.pause(3 * SPAN);
        same("dirty", withheld(&rig), 1)?;
        rig.settled(3)
    });
}

/// It would be written through until the witness can be written again.
#[test]
fn nothing_is_noted_that_the_witness_cannot_be_told_the_contrary_of() {
    survive(4, |seed| {
        let rig = noting(seed);
        (0..20).try_for_each(|block| rig.write(2, block, 1))?;
        rig.destage()?;
        rig.witness_refuses.set(true);
        rig.pause(3 * SPAN);
        rig.write(3, 7, 1)?;
        same("written back", rig.pool().blocks().1, 1)?;
        rig.destage()?;
        rig.witness_refuses.set(false);
        rig.pause(3 * SPAN);
        same("once it can be written", withheld(&rig), 0)?;
        rig.settled(7)
    });
}

/// Another machine has had the pool since this one's witness was written, and left data behind that the origin lacks.
#[test]
fn no_start_goes_on_with_a_witness_that_calls_clean_what_is_dirty() {
    provoke(Bug::WitnessUnderstates, 4, |seed| {
        let rig = noting(seed);
        let own = rig.recall();
        rig.write(2, 3, 1)?;
        rig.flush()?;
        rig.crash(Crash::ProcessKill);
        rig.remember(own);
        rig.witness_refuses.set(true);
        let opened = rig.open();
        if opened.is_ok() {
            return Err(format!("it serves, and {} are withheld", withheld(&rig)));
        }
        rig.crash(Crash::ProcessKill);
        rig.witness_refuses.set(false);
        rig.open()?;
        same("told", withheld(&rig), 1)?;
        rig.settled(3)
    });
}

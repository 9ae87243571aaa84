//! Clients that flush what they write, write by write: their appends are written durably, and a FLUSH has nothing to
//! wait for (INV-108).

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::Request;
use forebay_device::model::world::Crash;
use forebay_device::runtime::{MICROSECOND, MILLISECOND};
use forebay_engine::planted::{Bug, take_seen};

use crate::rig::{Plan, Rig, lazy, provoke, same, survive};

/// Writes and flushes in turns, until the engine expects that.
fn become_synchronous(rig: &Rig, writes: u64) -> Result<(), String> {
    for block in 0..writes {
        rig.write(1, block, 1)?;
        rig.flush()?;
    }
    Ok(())
}

fn durable_appends() -> u64 {
    take_seen().remove("log: durable append").unwrap_or(0)
}

/// Writes and flushes blocks until one was written durably; the versions that they have, by block.
fn write_until_durable(rig: &Rig, blocks: u64) -> Result<Vec<u64>, String> {
    let mut versions = vec![1; blocks as usize];
    take_seen();
    // One that took long by chance lets the other way be gone for a hundred writes.
    for version in 2..256 {
        let block = version % blocks;
        rig.write(version, block, 1)?;
        rig.flush()?;
        versions[block as usize] = version;
        if durable_appends() > 0 {
            return Ok(versions);
        }
    }
    Err("nothing was written durably".to_owned())
}

/// Nothing but the append itself made the last write durable.
#[test]
fn what_was_flushed_survives_a_power_cut_without_a_flush_of_its_own() {
    provoke(Bug::DurableAppendVolatile, 12, |seed| {
        let rig = Rig::new(seed, Plan { members: 2, copies: 2, tuning: lazy(), ..Plan::default() });
        become_synchronous(&rig, 24)?;
        for _ in 0..4 {
            let versions = write_until_durable(&rig, 24)?;
            rig.restart(Crash::PowerCut)?;
            for (block, version) in (0..).zip(versions) {
                same(&format!("block {block}"), rig.read(block)?, version)?;
            }
            become_synchronous(&rig, 24)?;
        }
        Ok(())
    });
}

/// A write that is on its way durably: its answers are held back until they are released.
fn hold_durable_write(rig: &Rig) -> Result<Rc<Cell<bool>>, String> {
    let is_durable = |request: &Request| matches!(request, Request::Write { durable: true, .. });
    let held = || rig.gates.iter().all(|gate| gate.held() > 0);
    rig.gates.iter().for_each(|gate| gate.hold(1, is_durable));
    // The first record of a segment, with the segment's header, is none of these.
    for _ in 0..256 {
        let write = rig.start_write(2, 3, 1);
        while !write.get() && !held() {
            rig.pause(MILLISECOND);
        }
        if !write.get() {
            return Ok(write);
        }
        rig.flush()?;
    }
    Err("nothing was written durably".to_owned())
}

/// Another append, so long that it does not wait its turn, ends beside a durable one: that has made only itself durable.
#[test]
fn a_durable_append_says_nothing_of_others() {
    provoke(Bug::DurableAppendCoversAll, 30, |seed| {
        let rig = Rig::new(seed, Plan { members: 1, copies: 1, tuning: lazy(), ..Plan::default() });
        become_synchronous(&rig, 24)?;
        let durable = hold_durable_write(&rig)?;
        let other = rig.start_write(2, 40, 16);
        rig.pause(10 * MILLISECOND);
        rig.gates.iter().for_each(|gate| gate.release());
        // Before anything else is appended, which the flush would be for.
        while !(durable.get() && other.get()) {
            rig.pause(MICROSECOND);
        }
        rig.flush()?;
        rig.restart(Crash::PowerCut)?;
        [3, 40, 55]
            .into_iter()
            .try_for_each(|block| same(&format!("block {block}"), rig.read(block)?, 2).map(drop))
    });
}

/// Who does not flush pays for nobody's flushes.
#[test]
fn writers_that_flush_seldom_are_not_written_durably() {
    survive(4, |seed| {
        let rig = Rig::new(seed, Plan { tuning: lazy(), ..Plan::default() });
        become_synchronous(&rig, 24)?;
        for block in 0..8 {
            rig.write(2, block, 1)?;
        }
        take_seen();
        for round in 0..8 {
            (0..4).try_for_each(|block| rig.write(3 + round, block, 1))?;
            rig.flush()?;
        }
        match durable_appends() {
            0 => Ok(()),
            some => Err(format!("{some} appends were written durably")),
        }
    });
}

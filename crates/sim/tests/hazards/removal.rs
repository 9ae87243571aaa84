//! Volumes that are taken out of a pool: what is left is the volume, or the whole origin (INV-34).

use std::rc::Rc;

use forebay_device::Request;
use forebay_device::model::world::Crash;
use forebay_engine::planted::Bug;
use forebay_engine::{Mode, Pool, VolumeSpec};

use crate::rig::{BLOCK, Plan, Rig, SOON, provoke, same, survive, version};

/// Blocks of the rig's origin that the scripts look at.
const BLOCKS: u64 = 12;

fn two_members() -> Plan {
    Plan { members: 2, copies: 2, ..Plan::default() }
}

fn remove(rig: &Rig) -> Result<Result<(), String>, String> {
    let pool = rig.pool();
    rig.run(async move { pool.remove_volume("v").await.map_err(|error| error.to_string()) })
}

/// What the origin alone holds of a block.
fn on_origin(rig: &Rig, block: u64) -> Result<u64, String> {
    version(block, &rig.origin.peek(block * BLOCK as u64, BLOCK))
}

/// Opens the pool without looking at its volumes.
fn reopen(rig: &Rc<Rig>) -> Result<Rc<Pool>, String> {
    let it = Rc::clone(rig);
    let pool = Rc::new(rig.run(async move { it.open_pool().await })??);
    *rig.pool.borrow_mut() = Some(Rc::clone(&pool));
    Ok(pool)
}

/// Clean, dirty, flushed and unflushed data; blocks 3 and 6 are 2, 4 and 5 are 3, 9 is cached as 1.
fn prepared(seed: u64) -> Result<Rc<Rig>, String> {
    let rig = Rig::new(seed, two_members());
    rig.write(2, 3, 4)?;
    rig.destage()?;
    rig.write(2, 6, 1)?;
    rig.read(9)?;
    rig.flush()?;
    rig.write(3, 4, 2)?;
    rig.pause(SOON);
    Ok(rig)
}

fn newest(block: u64) -> u64 {
    match block {
        3 | 6 => 2,
        4 | 5 => 3,
        _ => 1,
    }
}

/// Crashes the removal at its I/O number `after`; whether it came to its end before.
fn crashed(seed: u64, after: u64, crash: Crash) -> Result<bool, String> {
    let rig = prepared(seed)?;
    rig.world.crash_at(Some(rig.world.io_count() + after));
    let removed = remove(&rig);
    rig.world.crash_at(None);
    let done = removed == Ok(Ok(()));
    rig.crash(crash);
    let pool = reopen(&rig)?;
    let is_there = !pool.superblock().volumes.is_empty();
    drop(pool);
    if is_there && done {
        return Err("the volume has come back".into());
    }
    if !is_there {
        for block in 0..BLOCKS {
            same("on the plain origin", on_origin(&rig, block)?, newest(block))?;
        }
        return Ok(done);
    }
    let it = Rc::clone(&rig);
    let volume = rig.run(async move {
        let pool = it.pool();
        pool.attach("v", Rc::clone(&it.origin_gate) as _).await.map_err(|e| e.to_string())
    })??;
    *rig.volume.borrow_mut() = Some(Rc::new(volume));
    for block in 0..BLOCKS {
        let found = rig.read(block)?;
        // What was never flushed may be lost with the power.
        let lost = crash == Crash::PowerCut && newest(block) == 3 && found == 2;
        if !lost {
            same("through the volume", found, newest(block))?;
        }
        rig.settled(block)?;
    }
    Ok(done)
}

#[test]
fn a_crash_at_any_io_of_a_removal_leaves_the_volume_or_the_whole_origin() {
    survive(6, |seed| {
        for crash in [Crash::PowerCut, Crash::ProcessKill] {
            let mut after = 0;
            while !crashed(seed, after, crash).map_err(|e| format!("{crash:?} at {after}: {e}"))? {
                after += 1;
            }
            if after < 8 {
                return Err(format!("a removal of {after} I/Os does not flush everything"));
            }
        }
        Ok(())
    });
}

#[test]
fn a_removed_volume_has_brought_everything_home() {
    provoke(Bug::RemovedWhileDirty, 4, |seed| {
        let rig = prepared(seed)?;
        remove(&rig)??;
        rig.crash(Crash::PowerCut);
        (0..BLOCKS).try_for_each(|block| {
            same("on the plain origin", on_origin(&rig, block)?, newest(block)).map(drop)
        })
    });
}

#[test]
fn what_is_left_of_a_removed_volume_never_meets_the_next_one_on_its_origin() {
    survive(8, |seed| {
        let rig = prepared(seed)?;
        let first = rig.volume().id();
        remove(&rig)??;
        same("blocks cached", rig.pool().blocks().0, 0)?;
        // Somebody writes the plain disk.
        let mut image = vec![0; BLOCKS as usize * BLOCK];
        forebay_sim::content::fill(7, 0, 0, &mut image);
        rig.origin.poke(0, &image);
        if seed % 2 == 0 {
            rig.crash([Crash::PowerCut, Crash::ProcessKill][seed as usize / 2 % 2]);
            let pool = reopen(&rig)?;
            same("blocks cached after a start", pool.blocks().0, 0)?;
        }
        let (pool, origin) = (rig.pool(), Rc::clone(&rig.origin_gate));
        let spec = VolumeSpec {
            name: "v".into(),
            origin: "origin".into(),
            mode: Mode::Writeback,
            cache_block_bytes: 4096,
            settings: Default::default(),
            accept_data_loss_on_ssd_failure: true,
        };
        let added = rig.run(async move { pool.add_volume(&spec, origin).await })?;
        let volume = Rc::new(added.map_err(|error| error.to_string())?);
        if volume.id() == first {
            return Err("its number is used again".into());
        }
        *rig.volume.borrow_mut() = Some(volume);
        for block in 0..BLOCKS {
            same("through the next volume", rig.read(block)?, 7)?;
        }
        rig.flush()?;
        rig.restart(Crash::PowerCut)?;
        (0..BLOCKS).try_for_each(|block| same("after a start", rig.read(block)?, 7).map(drop))
    });
}

#[test]
fn a_removal_that_fails_leaves_the_volume_in_service() {
    survive(6, |seed| {
        let rig = prepared(seed)?;
        rig.origin_gate.fail_next(|request| matches!(request, Request::Flush));
        if remove(&rig)?.is_ok() {
            return Err("removed although the origin was not flushed".into());
        }
        rig.write(8, 1, 1)?;
        same("what was written after it", rig.read(1)?, 8)?;
        same("what was written before it", rig.read(4)?, 3)?;
        // The elevator rests for a second after an error.
        rig.pause(20 * SOON);
        remove(&rig)??;
        same("on the plain origin", on_origin(&rig, 1)?, 8)?;
        same("on the plain origin", on_origin(&rig, 4)?, 3)?;
        match rig.write(9, 1, 1) {
            Err(error) if error.contains("being removed") => Ok(()),
            other => Err(format!("a view of a removed volume: {other:?}")),
        }
    });
}

#[test]
fn a_volume_without_its_origin_goes_only_if_nothing_is_owed() {
    survive(4, |seed| {
        let rig = prepared(seed)?;
        rig.crash(Crash::ProcessKill);
        let pool = reopen(&rig)?;
        drop(pool);
        match remove(&rig)? {
            Err(error) if error.contains("may lack data") => {}
            other => return Err(format!("dirty, and its origin is away: {other:?}")),
        }
        rig.restart(Crash::ProcessKill)?;
        rig.destage()?;
        rig.stop()?;
        drop(reopen(&rig)?);
        remove(&rig)??;
        rig.crash(Crash::PowerCut);
        if !reopen(&rig)?.superblock().volumes.is_empty() {
            return Err("the volume has come back".into());
        }
        (0..BLOCKS).try_for_each(|block| {
            same("on the plain origin", on_origin(&rig, block)?, newest(block)).map(drop)
        })
    });
}

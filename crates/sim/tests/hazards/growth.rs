//! Volumes that become as large as their origins have: no size that a crash takes back, and nothing
//! stale in the block that was the uncached tail (INV-40, INV-41).

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::model::world::Crash;
use forebay_device::runtime::MICROSECOND;
use forebay_device::{Buf, Request, Runtime};
use forebay_engine::format::Witness;
use forebay_engine::planted::Bug;
use forebay_sim::content::{Found, fill, identify};

use crate::rig::{BLOCK, Plan, Rig, SOON, provoke, same, survive};

/// Whole blocks at first; half of one more is the tail.
const WHOLE: u64 = 255;
const OLD_BYTES: u64 = WHOLE * BLOCK as u64 + 2048;
const NEW_BYTES: u64 = OLD_BYTES + (64 << 10) + 1024;
const TAIL_SECTOR: u64 = WHOLE * 8;

fn small(seed: u64) -> Rc<Rig> {
    Rig::new(seed, Plan { members: 2, copies: 2, origin_bytes: OLD_BYTES, ..Plan::default() })
}

/// Makes the origin larger; what is new of it holds version 1.
fn enlarge(rig: &Rig) {
    rig.origin.grow(NEW_BYTES);
    let mut rest = vec![0; (NEW_BYTES - OLD_BYTES) as usize];
    fill(1, 0, OLD_BYTES / 512, &mut rest);
    rig.origin.poke(OLD_BYTES, &rest);
}

fn grow(rig: &Rig) -> Result<Result<u64, String>, String> {
    let pool = rig.pool();
    rig.run(async move { pool.grow_volume("v").await.map_err(|error| error.to_string()) })
}

fn write(rig: &Rig, version: u64, sector: u64, count: usize) -> Rc<Cell<bool>> {
    let mut data = Buf::new(count * 512);
    fill(version, 0, sector, &mut data);
    let (volume, done) = (rig.volume(), Rc::new(Cell::new(false)));
    let ended = Rc::clone(&done);
    rig.world.spawn(Box::pin(async move {
        volume.write(sector * 512, data.freeze(), false).await.unwrap();
        ended.set(true);
    }));
    done
}

fn until(rig: &Rig, what: &str, holds: impl Fn() -> bool) -> Result<(), String> {
    for _ in 0..100_000 {
        if holds() {
            return Ok(());
        }
        rig.pause(10 * MICROSECOND);
    }
    Err(format!("never: {what}"))
}

/// That these sectors are of this version, through the volume.
fn expect(rig: &Rig, version: u64, sector: u64, count: usize) -> Result<(), String> {
    let volume = rig.volume();
    let (bytes, result) =
        rig.run(async move { volume.read(sector * 512, Buf::new(count * 512)).await })?;
    result.map_err(|error| error.to_string())?;
    for (sector, bytes) in (sector..).zip(bytes.chunks_exact(512)) {
        let found = identify(0, sector, bytes);
        if found != Found::Stamp(version) {
            return Err(format!("sector {sector} is {found:?}, expected version {version}"));
        }
    }
    Ok(())
}

/// Crashes a growth at its I/O number `after`; whether it came to its end before.
fn crashed(seed: u64, after: u64, crash: Crash) -> Result<bool, String> {
    let rig = small(seed);
    rig.write(2, 3, 4)?;
    let done = write(&rig, 2, TAIL_SECTOR, 4);
    until(&rig, "the tail is written", || done.get())?;
    rig.flush()?;
    enlarge(&rig);
    rig.world.crash_at(Some(rig.world.io_count() + after));
    let grown = grow(&rig);
    rig.world.crash_at(None);
    let is_done = grown == Ok(Ok(NEW_BYTES));
    rig.restart(crash)?;
    let size = rig.volume().size_bytes();
    if size != NEW_BYTES && (is_done || size != OLD_BYTES) {
        return Err(format!("a size of {size} B"));
    }
    expect(&rig, 2, TAIL_SECTOR, 4)?;
    same("grown to", grow(&rig)??, NEW_BYTES)?;
    expect(&rig, 1, TAIL_SECTOR + 4, 4)?;
    // The block that was the tail is one like any other: dirty, and brought home.
    let done = write(&rig, 3, TAIL_SECTOR + 2, 4);
    until(&rig, "it is written", || done.get())?;
    rig.flush()?;
    rig.restart(crash)?;
    expect(&rig, 2, TAIL_SECTOR, 2)?;
    expect(&rig, 3, TAIL_SECTOR + 2, 4)?;
    rig.settled(WHOLE)?;
    rig.settled(3)?;
    Ok(is_done)
}

#[test]
fn a_crash_at_any_io_of_a_growth_leaves_the_old_size_or_the_new_one() {
    survive(6, |seed| {
        for crash in [Crash::PowerCut, Crash::ProcessKill] {
            let mut after = 0;
            while !crashed(seed, after, crash).map_err(|e| format!("{crash:?} at {after}: {e}"))? {
                after += 1;
            }
            if after < 8 {
                return Err(format!("a growth of {after} I/Os does not flush everything"));
            }
        }
        Ok(())
    });
}

#[test]
fn a_new_size_is_durable_before_anybody_writes_behind_the_old_end() {
    provoke(Bug::GrownBeforeDurable, 16, |seed| {
        let rig = small(seed);
        rig.write(2, 3, 1)?;
        enlarge(&rig);
        let pool = rig.pool();
        rig.world.spawn(Box::pin(async move {
            pool.grow_volume("v").await.ok();
        }));
        let volume = rig.volume();
        until(&rig, "it has grown", || volume.size_bytes() == NEW_BYTES)?;
        drop(volume);
        rig.write(4, WHOLE + 2, 1)?;
        rig.flush()?;
        rig.restart(Crash::PowerCut)?;
        same("size", rig.volume().size_bytes(), NEW_BYTES)?;
        same("what was flushed", rig.read(WHOLE + 2)?, 4).map(drop)
    });
}

#[test]
fn a_request_that_was_cut_at_the_old_size_does_not_go_around_the_cache() {
    provoke(Bug::TailOfOldSize, 8, |seed| {
        let rig = small(seed);
        rig.write(2, 3, 1)?;
        enlarge(&rig);
        // The last whole block and the tail: the block is on its way while the volume grows.
        rig.gates[0].hold(1, |request| matches!(request, Request::Write { .. }));
        let done = write(&rig, 2, TAIL_SECTOR - 8, 12);
        until(&rig, "the block is on its way", || rig.gates[0].held() == 1)?;
        same("grown to", grow(&rig)??, NEW_BYTES)?;
        expect(&rig, 1, TAIL_SECTOR, 8)?;
        rig.pause(SOON);
        if done.get() || rig.pool().blocks().0 != 2 {
            return Err("what was read is not cached".into());
        }
        rig.gates[0].release();
        until(&rig, "all is written", || done.get())?;
        expect(&rig, 2, TAIL_SECTOR - 8, 12)?;
        expect(&rig, 1, TAIL_SECTOR + 4, 4)?;
        rig.settled(WHOLE)
    });
}

#[test]
fn a_tail_that_no_flush_covers_is_not_cached_when_it_is_part_of_a_block() {
    survive(8, |seed| {
        for fails in [false, true] {
            let rig = small(seed);
            let done = write(&rig, 2, TAIL_SECTOR, 4);
            until(&rig, "the tail is written", || done.get())?;
            if fails {
                // It may have lost it for good, and no later one proves what is read there.
                rig.origin_gate.fail_next(|r| matches!(r, Request::Flush));
            }
            if rig.flush().is_ok() == fails {
                return Err("the failed flush was not told".into());
            }
            enlarge(&rig);
            same("grown to", grow(&rig)??, NEW_BYTES)?;
            let cached = rig.pool().blocks().0;
            expect(&rig, 2, TAIL_SECTOR, 4)?;
            rig.pause(SOON);
            same("blocks cached", rig.pool().blocks().0, cached + u64::from(!fails))?;
        }
        Ok(())
    });
}

/// Without its members a pool is served by what the witness says: with less than clients were told the end of a volume would
/// be cut off.
#[test]
fn a_volume_does_not_grow_before_the_witness_knows() {
    survive(4, |seed| {
        let rig = small(seed);
        rig.write(2, 3, 1)?;
        rig.destage()?;
        enlarge(&rig);
        rig.witness_refuses.set(true);
        if seed % 2 == 0 {
            // It is known by then that it cannot be written.
            let pool = rig.pool();
            let set = rig.run(async move { pool.set_write_amplification_max(200).await })?;
            set.map_err(|error| error.to_string())?;
        }
        let refused = grow(&rig)?.err().ok_or("it grows, and the witness has its old size")?;
        assert!(refused.contains("the witness cannot be written"), "{refused}");
        same("size", rig.volume().size_bytes(), OLD_BYTES)?;
        rig.witness_refuses.set(false);
        same("grown to", grow(&rig)??, NEW_BYTES)?;
        rig.crash(Crash::PowerCut);
        let witness = rig.recall().ok_or("no witness")?;
        let known = Witness::decode(&witness).map_err(|error| error.to_string())?;
        same("known size", known.volumes[0].size_bytes, NEW_BYTES).map(drop)
    });
}

#[test]
fn a_growth_that_fails_or_is_none_changes_nothing() {
    survive(4, |seed| {
        let rig = small(seed);
        same("as large as it is", grow(&rig)??, OLD_BYTES)?;
        enlarge(&rig);
        rig.origin_gate.fail_next(|request| matches!(request, Request::Flush));
        if grow(&rig)?.is_ok() {
            return Err("grown although the origin was not flushed".into());
        }
        same("size", rig.volume().size_bytes(), OLD_BYTES)?;
        match rig.write(4, WHOLE + 2, 1) {
            Err(error) if error.contains("does not fit") => {}
            other => return Err(format!("behind the end: {other:?}")),
        }
        same("grown to", grow(&rig)??, NEW_BYTES)?;
        rig.write(4, WHOLE + 2, 1)?;
        same("what was written", rig.read(WHOLE + 2)?, 4).map(drop)
    });
}

//! What a miss leaves to be read behind its reply: the rest of its cache blocks.

use std::rc::Rc;

use forebay_device::model::world::Crash;
use forebay_device::runtime::SECOND;
use forebay_device::{Request, Runtime};
use forebay_engine::limits::PREFETCH_STEP_BYTES;
use forebay_engine::planted::Bug;
use forebay_engine::policy::GRANULE_BYTES_MIN;
use forebay_engine::{Mode, Populate, VolumeSettings};

use crate::rig::{BLOCK, Plan, Rig, SOON, provoke, same, survive};

const CACHE_BLOCK: u64 = 1 << 20;

const _: () = assert!(CACHE_BLOCK <= PREFETCH_STEP_BYTES, "each part of a rest is one step");

/// Blocks of a granule, and of a cache block.
const NEAR: u64 = GRANULE_BYTES_MIN / BLOCK as u64;
const ALL: u64 = CACHE_BLOCK / BLOCK as u64;

/// Reads of more than a client here waits for.
fn is_rest(request: &Request) -> bool {
    matches!(request, Request::Read { buf, .. } if buf.len() as u64 > GRANULE_BYTES_MIN)
}

fn rig(seed: u64, mode: Mode, ram_bytes: u64) -> Result<Rc<Rig>, String> {
    let origin_bytes = 16 * CACHE_BLOCK;
    let rig = Rig::new(seed, Plan { mode, ram_bytes, origin_bytes, ..Plan::default() });
    let populate = Populate::Custom { on_read: Some(1), on_write: None };
    let settings = VolumeSettings { populate, ..Default::default() };
    let volume = rig.volume();
    let set = rig.run(async move { volume.set_with(settings, CACHE_BLOCK as u32).await })?;
    set.map_err(|error| error.to_string())?;
    Ok(rig)
}

fn populated(rig: &Rig) -> u64 {
    rig.pool().counters().populate_bytes.get() / BLOCK as u64
}

/// Block 40 has been read; the rest of its cache block is on its way from the origin, in two parts.
fn half_way(mode: Mode, ram_bytes: u64) -> Result<Rc<Rig>, String> {
    let rig = rig(7, mode, ram_bytes)?;
    rig.origin_gate.hold(1, is_rest);
    same("the client is answered", rig.read(40)?, 1)?;
    rig.pause(SOON);
    assert_eq!(rig.origin_gate.held(), 1, "and the rest comes behind that");
    Ok(rig)
}

#[test]
fn a_miss_is_answered_before_the_rest_of_its_cache_block_is_read() {
    survive(1, |_| {
        let rig = half_way(Mode::Readonly, 0)?;
        assert_eq!(populated(&rig), NEAR);
        let before = rig.pool().counters().read_origin_bytes.get();
        same("what is near it is there", rig.read(47)?, 1)?;
        assert_eq!(rig.pool().counters().read_origin_bytes.get(), before);
        same("and the rest is not missed for ever", rig.read(100)?, 1)?;
        rig.origin_gate.release();
        // As long as it takes until all of it is in the log.
        rig.pause(SECOND);
        assert_eq!(populated(&rig), ALL);
        rig.restart(Crash::ProcessKill)?;
        same("and stays", rig.read(255)?, 1)?;
        assert_eq!(rig.pool().counters().read_origin_bytes.get(), 0);
        Ok(())
    });
}

#[test]
fn of_a_large_cache_block_ram_has_what_is_near_and_the_log_the_rest() {
    survive(1, |_| {
        let rig = rig(7, Mode::Readonly, 2 << 20)?;
        rig.pause(SOON);
        same("missed", rig.read(40)?, 1)?;
        rig.pause(SECOND);
        let ram = rig.pool().ram();
        assert_eq!((ram.used_bytes, ram.overlap_bytes), (GRANULE_BYTES_MIN, 0));
        assert_eq!(populated(&rig), ALL - NEAR);
        let before = rig.pool().counters().read_origin_bytes.get();
        (0..ALL).try_for_each(|block| same("all of it", rig.read(block)?, 1).map(drop))?;
        assert_eq!(rig.pool().counters().read_origin_bytes.get(), before);
        Ok(())
    });
}

/// The rest of one cache block at a time where nobody else waits for the origin; what is not read so comes with the
/// next miss.
#[test]
fn rests_are_no_more_than_the_reads_that_wait_for_the_origin() {
    survive(1, |_| {
        let rig = half_way(Mode::Readonly, 0)?;
        rig.origin_gate.hold(8, is_rest);
        (1..4).try_for_each(|at| same("missed", rig.read(at * ALL)?, 1).map(drop))?;
        rig.pause(SOON);
        assert_eq!(rig.origin_gate.held(), 1);
        assert_eq!(populated(&rig), 4 * NEAR);
        rig.origin_gate.hold(0, is_rest);
        rig.origin_gate.release();
        rig.pause(SOON);
        assert_eq!(populated(&rig), ALL + 3 * NEAR);
        same("missed again", rig.read(ALL + 200)?, 1)?;
        rig.pause(SOON);
        assert_eq!(populated(&rig), 2 * ALL + 2 * NEAR);
        Ok(())
    });
}

/// Rests, and what clients read far behind them.
fn is_rest_or_far(request: &Request) -> bool {
    let is_far = matches!(request, Request::Read { offset, .. } if *offset >= 8 * CACHE_BLOCK);
    is_far || is_rest(request)
}

#[test]
fn beside_more_reads_that_wait_there_are_more_rests() {
    survive(1, |_| {
        let rig = rig(7, Mode::Readonly, 0)?;
        rig.origin_gate.hold(usize::MAX, is_rest_or_far);
        (8..10).for_each(|at| rig.start_read(at * ALL));
        rig.pause(SOON);
        assert_eq!(rig.origin_gate.held(), 2, "clients wait");
        (0..3).try_for_each(|at| same("missed", rig.read(at * ALL)?, 1).map(drop))?;
        rig.pause(SOON);
        assert_eq!(rig.origin_gate.held(), 2 + 2);
        rig.origin_gate.hold(0, is_rest_or_far);
        rig.origin_gate.release();
        rig.pause(SECOND);
        // The two whose rests were under way, and what is near the others.
        assert!(populated(&rig) >= 2 * ALL + NEAR);
        Ok(())
    });
}

fn overtaken(write: fn(&Rig) -> Result<(), String>, mode: Mode) -> Result<(), String> {
    let rig = half_way(mode, 0)?;
    write(&rig)?;
    rig.origin_gate.release();
    rig.pause(SOON);
    same("what is read next", rig.read(0)?, 2)?;
    rig.flush()?;
    rig.restart(Crash::ProcessKill)?;
    same("after a kill", rig.read(0)?, 2).map(drop)
}

#[test]
fn a_rest_does_not_overtake_a_write() {
    provoke(Bug::PopulationAfterWrite, 1, |_| {
        overtaken(|rig| rig.write(2, 0, 1), Mode::Writeback)?;
        overtaken(|rig| rig.write(2, 0, 1).and_then(|()| rig.destage()), Mode::Writeback)?;
        overtaken(|rig| rig.write(2, 0, 1), Mode::Readonly)
    });
}

/// A read that nobody waits for does not keep a pool open, however long the origin takes.
#[test]
fn a_pool_ends_while_a_rest_is_read() {
    survive(1, |_| {
        let rig = half_way(Mode::Writeback, 0)?;
        rig.stop()?;
        rig.origin_gate.release();
        rig.pause(SOON);
        rig.open()?;
        same("afterwards", rig.read(200)?, 1).map(drop)
    });
}

/// A volume is not gone before what is read of it has come.
#[test]
fn a_volume_is_removed_behind_the_rest_that_is_read_of_it() {
    survive(1, |_| {
        let rig = half_way(Mode::Writeback, 0)?;
        let (pool, name) = (rig.pool(), rig.volume().name().to_owned());
        let removed = Rc::new(std::cell::Cell::new(false));
        let ended = Rc::clone(&removed);
        rig.world.spawn(Box::pin(async move {
            pool.remove_volume(&name).await.unwrap();
            ended.set(true);
        }));
        rig.pause(SOON);
        assert!(!removed.get());
        rig.origin_gate.release();
        rig.pause(SOON);
        assert!(removed.get());
        assert_eq!(populated(&rig), NEAR + 40 / NEAR * NEAR, "no step was begun meanwhile");
        Ok(())
    });
}

/// What cannot be read around a miss is no trouble of the client's.
#[test]
fn a_rest_that_cannot_be_read_is_left() {
    survive(1, |_| {
        let rig = rig(7, Mode::Readonly, 0)?;
        rig.origin_gate.fail_next(is_rest);
        same("missed", rig.read(40)?, 1)?;
        rig.pause(SOON);
        assert_eq!(populated(&rig), NEAR);
        same("missed again", rig.read(200)?, 1)?;
        rig.pause(SOON);
        assert_eq!(populated(&rig), ALL);
        Ok(())
    });
}

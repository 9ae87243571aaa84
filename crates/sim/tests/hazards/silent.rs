//! An origin does not answer, or fails all it is asked: what it was given and has not proven keeps the pool neither
//! from making a loss of a member good, nor from letting one go, nor from ending.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::model::disk::{DiskSettings, SimDisk};
use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{Buf, Request, Runtime};
use forebay_engine::limits::ORIGIN_SILENT_SPAN;
use forebay_engine::{EventKind, Mode, Redundancy, Tuning, VolumeSpec};
use forebay_sim::content::fill;

use crate::changing::{all_but, id_of, plan, told, touch};
use crate::rig::{BLOCK, Gate, KINDS, Plan, Rig, SOON, lazy, same, survive};
use crate::stop::spec;

pub const BLOCKS: u64 = 60;

fn is_flush(request: &Request) -> bool {
    matches!(request, Request::Flush)
}

/// All is written to the origin, which does not answer the flush behind it.
pub fn unproven(seed: u64) -> Result<Rc<Rig>, String> {
    let rig = Rig::new(seed, plan(3, 0, 2));
    (0..BLOCKS).try_for_each(|block| rig.write(2, block, 1))?;
    rig.flush()?;
    rig.origin_gate.hold(usize::MAX, is_flush);
    let volume = rig.volume();
    rig.world.spawn(Box::pin(async move {
        volume.destage().await.ok();
    }));
    rig.pause(5 * SOON);
    let (dirty, unproven) = (rig.pool().blocks().1, rig.pool().unproven_blocks());
    assert!(rig.origin_gate.held() > 0 && unproven > dirty, "{unproven} unproven, {dirty} dirty");
    Ok(rig)
}

/// The origin answers, and everything is there: now, after a crash without the member, and at home.
pub fn comes_home(rig: &Rc<Rig>, seed: u64, gone: usize) -> Result<(), String> {
    rig.origin_gate.hold(0, |_| false);
    rig.origin_gate.release();
    rig.pause(5 * SOON);
    let verify =
        |when: &str| (0..BLOCKS).try_for_each(|block| same(when, rig.read(block)?, 2).map(drop));
    verify("at once")?;
    rig.crash(KINDS[(seed % 2) as usize]);
    rig.offer(&all_but(3, gone));
    rig.open()?;
    verify("after a crash")?;
    (0..BLOCKS).step_by(7).try_for_each(|block| rig.settled(block))
}

#[test]
fn an_origin_that_does_not_answer_holds_up_no_copies_that_are_made_again() {
    survive(6, |seed| {
        let (rig, lost) = (unproven(seed)?, (seed % 3) as usize);
        rig.broken[lost].gone.set(true);
        touch(&rig);
        rig.pause(100 * SOON);
        if !told(&rig, EventKind::CopiesRestored) {
            return Err(format!("{:?} are short", rig.pool().short_bytes()));
        }
        same("whole", u64::from(rig.pool().redundancy() == Redundancy::Whole), 1)?;
        comes_home(&rig, seed, lost)
    });
}

#[test]
fn an_origin_that_does_not_answer_holds_up_no_removal() {
    survive(6, |seed| {
        let (rig, left) = (unproven(seed)?, (seed % 3) as usize);
        let (pool, id, ended) = (rig.pool(), id_of(&rig, left), Rc::new(RefCell::new(None)));
        let result = Rc::clone(&ended);
        rig.world.spawn(Box::pin(async move {
            let departed = async { pool.begin_departure(id)?.end().await };
            *result.borrow_mut() = Some(departed.await);
        }));
        rig.pause(100 * SOON);
        let ended = ended.take().ok_or("the removal has not ended")?;
        ended.map_err(|error| error.to_string())?;
        comes_home(&rig, seed, left)
    });
}

/// Stops the pool, which must not take much longer than an origin may be silent, twice; what it said.
fn stopped(rig: &Rc<Rig>) -> Result<Result<u64, String>, String> {
    let before = rig.runtime().now();
    let stopped = rig.try_stop();
    let took = rig.runtime().now() - before;
    if took > 3 * ORIGIN_SILENT_SPAN {
        return Err(format!("the stop took {} s", took / SECOND));
    }
    Ok(stopped)
}

/// The origin answers again, and the next start has everything.
fn starts(rig: &Rc<Rig>, crash: Crash) -> Result<(), String> {
    rig.origin_gate.hold(0, |_| false);
    rig.crash(crash);
    rig.open()?;
    (0..BLOCKS).try_for_each(|block| same("restarted", rig.read(block)?, 2).map(drop))
}

fn is_stuck(stopped: Result<u64, String>) -> Result<(), String> {
    match stopped {
        Err(error) if error.contains("volume \"v\": its origin does not answer") => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn an_origin_that_does_not_answer_keeps_no_pool_open() {
    survive(6, |seed| {
        let rig = Rig::new(seed, plan(2, 0, 2));
        (0..BLOCKS).try_for_each(|block| rig.write(2, block, 1))?;
        rig.flush()?;
        if seed % 2 == 0 {
            rig.destage()?;
        }
        // Nothing is asked of it until the end would like to know what it looks like.
        rig.origin_gate.hold(usize::MAX, |_| true);
        let expected = if seed % 2 == 0 { 0 } else { BLOCKS };
        same("dirty", stopped(&rig)??, expected)?;
        starts(&rig, KINDS[(seed / 2 % 2) as usize])
    });
}

#[test]
fn many_origins_that_do_not_answer_keep_a_pool_no_longer_open_than_one() {
    survive(3, |seed| {
        let rig = Rig::new(seed, plan(2, 0, 2));
        (0..BLOCKS).try_for_each(|block| rig.write(2, block, 1))?;
        let pool = rig.pool();
        let gates: Vec<_> = (0..5)
            .map(|at| {
                let disk = SimDisk::new(&rig.world, DiskSettings::origin(1 << 20, 512, true), at);
                Gate::new(&rig.world, disk)
            })
            .collect();
        let doors = gates.clone();
        let volumes = rig.run(async move {
            let mut volumes = Vec::new();
            for (at, gate) in doors.into_iter().enumerate() {
                let spec = VolumeSpec { mode: Mode::Writethrough, ..spec(&format!("w{at}")) };
                let volume = pool.add_volume(&spec, gate).await.unwrap();
                // The origin may still lose it: the stop would have it flushed.
                volume.write(0, Buf::zeroed(4096).freeze(), false).await.unwrap();
                volumes.push(volume);
            }
            volumes
        })?;
        gates.iter().for_each(|gate| gate.hold(usize::MAX, |_| true));
        drop(volumes);
        stopped(&rig)??;
        starts(&rig, Crash::ProcessKill)
    });
}

/// A stop cuts destaging off, and the origin does not answer a flush any more; whether it ended in order.
fn cut_off(seed: u64) -> Result<bool, String> {
    let tuning = Tuning { destage_when_idle: true, destage_depth: 1, ..lazy() };
    let rig = Rig::new(seed, Plan { members: 2, copies: 2, tuning, ..Plan::default() });
    rig.origin_gate.hold(usize::MAX, is_flush);
    (0..BLOCKS).try_for_each(|block| rig.write(2, block, 1))?;
    rig.flush()?;
    let dirty = || rig.pool().blocks().1;
    (0..100_000).take_while(|_| dirty() == BLOCKS).for_each(|_| rig.pause(MILLISECOND / 10));
    let stopped = stopped(&rig)?;
    let in_order = stopped.is_ok();
    match stopped {
        Ok(told) => drop(same("told", told, BLOCKS)?),
        // Destaging had come to a flush of its own.
        stuck => is_stuck(stuck)?,
    }
    // The origin loses what it has not flushed.
    starts(&rig, KINDS[(seed % 2) as usize])?;
    rig.destage()?;
    (0..BLOCKS).try_for_each(|block| rig.settled(block))?;
    Ok(in_order)
}

#[test]
fn a_stop_without_an_origins_flush_says_what_that_may_lack() {
    let ended: Vec<bool> = (0..24).map(|seed| cut_off(seed).unwrap()).collect();
    assert!(ended.contains(&true) && ended.contains(&false), "{ended:?}");
}

#[test]
fn what_an_origin_has_told_before_it_fell_silent_is_known_at_the_next_start() {
    survive(4, |seed| {
        let rig = Rig::new(seed, plan(2, 0, 2));
        (0..BLOCKS).try_for_each(|block| rig.write(2, block, 1))?;
        rig.destage()?;
        rig.origin_broken.hanging.arm(Trigger::every(Ops::Reads).after(5 + seed));
        stopped(&rig)??;
        rig.origin_broken.hanging.disarm();
        rig.crash(Crash::ProcessKill);
        rig.origin.poke(0, &[7; BLOCK]);
        rig.open()?;
        match told(&rig, EventKind::OriginChanged) {
            true => Ok(()),
            false => Err("nobody noticed that the origin was changed".into()),
        }
    });
}

#[test]
fn a_flush_that_destaging_waits_for_ends_the_pool_as_a_crash_would() {
    survive(6, |seed| {
        let rig = unproven(seed)?;
        is_stuck(stopped(&rig)?)?;
        starts(&rig, Crash::ProcessKill)
    });
}

#[test]
fn a_request_that_is_stuck_at_its_origin_ends_the_pool_as_a_crash_would() {
    survive(6, |seed| {
        let mode = if seed % 2 == 0 { Mode::Writeback } else { Mode::Writethrough };
        let rig = Rig::new(seed, Plan { mode, members: 2, copies: 2, ..Plan::default() });
        (0..BLOCKS).try_for_each(|block| rig.write(2, block, 1))?;
        rig.flush()?;
        rig.origin_gate.hold(usize::MAX, |_| true);
        match mode {
            Mode::Writeback => rig.start_read(BLOCKS + 1 + seed),
            _ => drop(rig.start_write(3, BLOCKS + 1 + seed, 1)),
        }
        rig.pause(SOON);
        assert!(rig.origin_gate.held() > 0);
        is_stuck(stopped(&rig)?)?;
        starts(&rig, Crash::ProcessKill)
    });
}

/// Blocks of a volume that is twice its pool.
const BLOCKS_BEYOND: u64 = 1280;

#[test]
fn writers_who_wait_for_room_that_a_failing_origin_does_not_make_keep_no_pool_open() {
    survive(6, |seed| {
        let origin_bytes = BLOCKS_BEYOND * BLOCK as u64;
        let rig = Rig::new(seed, Plan { origin_bytes, members: 2, copies: 2, ..Plan::default() });
        let ops = if seed % 2 == 0 { Ops::Writes } else { Ops::Flushes };
        rig.origin_broken.failing.arm(Trigger::every(ops));
        let write = |block: u64| {
            let (volume, is_done) = (rig.volume(), Rc::new(Cell::new(false)));
            let (done, mut data) = (Rc::clone(&is_done), Buf::new(BLOCK));
            fill(2, 0, block * 8, &mut data);
            rig.world.spawn(Box::pin(async move {
                done.set(volume.write(block * BLOCK as u64, data.freeze(), false).await.is_ok());
            }));
            is_done
        };
        let written: Vec<_> = (0..BLOCKS_BEYOND).map(write).collect();
        rig.pause(30 * SECOND);
        let before = written.iter().filter(|done| done.get()).count();
        if before < BLOCKS as usize || before == written.len() {
            return Err(format!("{before} writes found room"));
        }
        match stopped(&rig)? {
            Err(error) if error.contains("volume \"v\": writing its origin fails") => {}
            other => return Err(format!("{other:?}")),
        }
        rig.origin_broken.mend();
        rig.restart(Crash::ProcessKill)?;
        let mut kept = (0..).zip(&written).filter(|(_, done)| done.get());
        kept.try_for_each(|(block, _)| same("kept", rig.read(block)?, 2).map(drop))
    });
}

#[test]
fn a_pool_that_has_ended_asks_nothing_more_of_an_origin_that_answers_again() {
    survive(4, |seed| {
        let mode = Mode::Writethrough;
        let rig = Rig::new(seed, Plan { mode, origin_sector_bytes: 4096, ..Plan::default() });
        // A part of a sector: the origin's sector is read before it is written.
        rig.origin_gate.hold(usize::MAX, |request| matches!(request, Request::Read { .. }));
        let written = rig.start_write_sector(3, 8 * (1 + seed) + 1);
        rig.pause(SOON);
        assert!(rig.origin_gate.held() > 0);
        is_stuck(stopped(&rig)?)?;
        let before = rig.origin_gate.writes.get();
        rig.origin_gate.hold(0, |_| false);
        rig.origin_gate.release();
        rig.pause(100 * SOON);
        same("writes behind the end", rig.origin_gate.writes.get(), before)?;
        assert_ne!(written.get(), Some(true), "it was not made");
        Ok(())
    });
}

//! An origin does not answer: what it was given and has not proven keeps the pool neither from making a loss of a
//! member good nor from letting one go.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_device::model::world::Crash;
use forebay_device::runtime::SECOND;
use forebay_device::{Request, Runtime};
use forebay_engine::limits::ORIGIN_SILENT_SPAN;
use forebay_engine::{EventKind, Redundancy};

use crate::changing::{all_but, id_of, plan, told, touch};
use crate::rig::{KINDS, Rig, SOON, same, survive};

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

/// Stops the pool, which must not take much longer than an origin may be silent; what it said. Then the process
/// ends, the origin answers, and the next start has everything.
fn stops(rig: &Rc<Rig>) -> Result<Result<u64, String>, String> {
    let before = rig.runtime().now();
    let stopped = rig.try_stop();
    let took = rig.runtime().now() - before;
    if took > 3 * ORIGIN_SILENT_SPAN {
        return Err(format!("the stop took {} s", took / SECOND));
    }
    rig.origin_gate.hold(0, |_| false);
    rig.crash(Crash::ProcessKill);
    rig.open()?;
    (0..BLOCKS).try_for_each(|block| same("restarted", rig.read(block)?, 2).map(drop))?;
    Ok(stopped)
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
        stops(&rig)?.map(drop)
    });
}

#[test]
fn a_flush_that_is_not_answered_keeps_no_pool_open() {
    survive(6, |seed| {
        let stopped = stops(&unproven(seed)?)?;
        match stopped {
            Err(error) if error.contains("does not answer") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

#[test]
fn a_request_that_is_stuck_at_its_origin_ends_the_pool_as_a_crash_would() {
    survive(6, |seed| {
        let rig = Rig::new(seed, plan(2, 0, 2));
        (0..BLOCKS).try_for_each(|block| rig.write(2, block, 1))?;
        rig.flush()?;
        rig.origin_gate.hold(usize::MAX, |_| true);
        rig.start_read(BLOCKS + 1 + seed);
        rig.pause(SOON);
        assert!(rig.origin_gate.held() > 0);
        match stops(&rig)? {
            Err(error) if error.contains("does not answer") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

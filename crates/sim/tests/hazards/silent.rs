//! An origin does not answer: what it was given and has not proven keeps the pool neither from making a loss of a
//! member good nor from letting one go.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_device::{Request, Runtime};
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

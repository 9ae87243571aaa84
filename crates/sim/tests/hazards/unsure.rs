//! Data of which nobody can say whether it is lost, for nothing that it was asked for is returned: it is looked for as
//! long as a controller takes to reset, and only then the pool latches.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{Nanos, Runtime};
use forebay_engine::EventKind;

use crate::changing::{self, all_but, id_of, told};
use crate::rig::{BLOCK, KINDS, Plan, Rig, SOON, same, survive};

const BLOCKS: u64 = 24;

/// How long it is looked for at least, and by when the pool has latched: a rest and some reads later.
const SPAN: Nanos = 5 * SECOND;
const SPAN_MAX: Nanos = SPAN + SECOND / 2;

/// What cannot be returned, and the work that comes to it.
struct Unsure {
    rig: Rc<Rig>,
    bad: usize,
    is_moved: bool,
    ended: Rc<Cell<bool>>,
    began: Nanos,
}

/// A block has its only copy on a member that returns it with an error which says nothing about the medium; or the last
/// member returns nothing at all. It is to be destaged, or to be moved off that member.
fn begin(seed: u64) -> Result<Unsure, String> {
    let (how, is_moved) = (seed % 3, seed / 3 % 2 == 1);
    // Whom nobody can do without; what returns nothing and can be done without has failed by then, and nothing latches.
    let members = if is_moved { 2 } else { 1 };
    let plan = Plan { verify_reads: seed / 6 % 2 == 1, ..changing::plan(members, 0, 1) };
    let rig = Rig::new(seed, plan);
    (0..BLOCKS).try_for_each(|block| rig.write(2, block, 1))?;
    rig.flush()?;
    rig.flush()?;
    let on_it = |&(member, _): &(usize, u64)| member == 0;
    let place = (0..BLOCKS).filter_map(|block| place(&rig, members, block)).find(on_it);
    let (bad, at) = place.ok_or("nothing is there")?;
    let broken = &rig.broken[bad];
    let block = Trigger::every(Ops::Reads).within(at..at + BLOCK as u64);
    match how {
        0 => broken.erring.arm(block),
        1 => broken.timing_out.arm(block),
        _ if is_moved => broken.erring.arm(block),
        _ => broken.failing.arm(Trigger::every(Ops::Reads)),
    }
    let (pool, volume, id) = (rig.pool(), rig.volume(), id_of(&rig, bad));
    let (ended, began) = (Rc::new(Cell::new(false)), rig.world.now());
    let has_ended = Rc::clone(&ended);
    rig.world.spawn(Box::pin(async move {
        match is_moved {
            true => pool.begin_departure(id).unwrap().end().await.map(drop).ok(),
            false => volume.destage().await.map(drop).ok(),
        };
        has_ended.set(true);
    }));
    Ok(Unsure { rig, bad, is_moved, ended, began })
}

/// Where a block lies.
fn place(rig: &Rig, members: usize, block: u64) -> Option<(usize, u64)> {
    let found = |member: usize, at: u64| {
        crate::rig::version(block, &rig.members[member].peek(at, BLOCK)) == Ok(2)
    };
    let first = rig.pool().superblock().segments_offset;
    let places = (first..crate::rig::MEMBER_BYTES).step_by(BLOCK);
    (0..members)
        .find_map(|member| places.clone().find(|&at| found(member, at)).map(|at| (member, at)))
}

impl Unsure {
    /// As long since it began.
    fn wait(&self, span: Nanos) {
        self.rig.pause((self.began + span).saturating_sub(self.rig.world.now()));
    }

    fn is_unharmed(&self, when: &str) -> Result<(), String> {
        let rig = &self.rig;
        let is_hurt = rig.pool().is_latched()
            || told(rig, EventKind::MemberFailed)
            || told(rig, EventKind::BlocksLost)
            || told(rig, EventKind::DamageUnhealed);
        if is_hurt || self.ended.get() && when != "mended" {
            let told: Vec<_> = rig.pool().events().iter().map(|event| event.what.clone()).collect();
            return Err(format!("{when}: {told:?}"));
        }
        Ok(())
    }
}

#[test]
fn nothing_latches_while_it_is_looked_for_what_is_not_returned() {
    survive(24, |seed| {
        let it = begin(seed)?;
        for tenth in 1..10 {
            it.wait(SPAN * tenth / 10);
            it.is_unharmed(&format!("after {tenth} tenths"))?;
        }
        it.wait(SPAN - MILLISECOND - seed * 10 * MILLISECOND);
        it.is_unharmed("just before the end")?;
        let rig = &it.rig;
        rig.broken[it.bad].mend();
        rig.pause(100 * SOON);
        it.is_unharmed("mended")?;
        if !it.ended.get() {
            return Err("it has not gone on".into());
        }
        rig.write(2, BLOCKS, 1)?;
        if it.is_moved {
            rig.offer(&all_but(2, it.bad));
        }
        rig.restart(KINDS[(seed % 2) as usize])?;
        rig.destage()?;
        (0..BLOCKS).try_for_each(|block| rig.settled(block))
    });
}

#[test]
fn the_pool_latches_once_it_was_looked_for_long_enough() {
    survive(24, |seed| {
        let it = begin(seed)?;
        it.wait(SPAN_MAX);
        let rig = &it.rig;
        if !rig.pool().is_latched() || told(rig, EventKind::BlocksLost) {
            return Err("it goes on".into());
        }
        if rig.write(3, BLOCKS + 1, 1).is_ok() {
            return Err("it was written".into());
        }
        rig.broken[it.bad].mend();
        rig.restart(KINDS[(seed % 2) as usize])?;
        (0..BLOCKS).try_for_each(|block| same("when it is back", rig.read(block)?, 2).map(drop))?;
        rig.destage()?;
        (0..BLOCKS).try_for_each(|block| rig.settled(block))
    });
}

//! What the hazards of members that come and go have in common.

use std::rc::Rc;

use forebay_device::{BlockDevice, Runtime};
use forebay_engine::ids::DeviceId;
use forebay_engine::{Error, EventKind, Tuning};

use crate::rig::{Plan, Rig, SOON, lazy, newest, same};

/// Blocks that are written; some more are only read.
pub const BLOCKS: u64 = 60;
pub const BLOCKS_READ: u64 = 20;

/// Origins are flushed soon, so that what is destaged can go.
pub fn plan(members: usize, spares: usize, copies: u8) -> Plan {
    let tuning = Tuning { origin_flush_interval: SOON, flush_interval: SOON, ..lazy() };
    Plan { members, spares, copies, tuning, ..Plan::default() }
}

/// Dirty, clean and rewritten blocks, behind them some that only the origin had.
pub fn fill(rig: &Rc<Rig>) -> Result<(), String> {
    rig.rewrite(BLOCKS)?;
    (BLOCKS..BLOCKS + BLOCKS_READ).try_for_each(|block| rig.read(block).map(drop))?;
    rig.flush()
}

/// Compares everything with what [`fill`] has left.
pub fn verify(rig: &Rc<Rig>, when: &str) -> Result<(), String> {
    (0..BLOCKS + BLOCKS_READ).try_for_each(|block| {
        let expected = if block < BLOCKS { newest(block) } else { 1 };
        same(&format!("block {block} {when}"), rig.read(block)?, expected).map(drop)
    })
}

pub fn id_of(rig: &Rig, member: usize) -> DeviceId {
    rig.pool().superblock().members[member].device
}

/// Adds a device; an error of the engine in the inner result.
pub fn add(rig: &Rc<Rig>, spare: usize) -> Result<Result<DeviceId, Error>, String> {
    let (pool, device) = (rig.pool(), Rc::clone(&rig.gates[spare]) as Rc<dyn BlockDevice>);
    rig.run(async move { pool.add_member(device).await })
}

/// Begins to add a device; how that ends nobody waits for.
pub fn begin_add(rig: &Rc<Rig>, spare: usize) {
    let (pool, device) = (rig.pool(), Rc::clone(&rig.gates[spare]) as Rc<dyn BlockDevice>);
    rig.world.spawn(Box::pin(async move {
        pool.add_member(device).await.ok();
    }));
}

/// Takes a member out; an error of the engine in the inner result.
pub fn remove(rig: &Rc<Rig>, id: DeviceId) -> Result<Result<(), Error>, String> {
    let pool = rig.pool();
    rig.run(async move { pool.begin_departure(id)?.end().await })
}

/// Has it noted durably that nothing is dirty; an error of the engine in the inner result.
pub fn note_clean(rig: &Rc<Rig>) -> Result<Result<(), Error>, String> {
    let volume = rig.volume();
    rig.run(async move { volume.note_clean().await })
}

/// Has the pool use every member, so that it finds out who has failed.
pub fn touch(rig: &Rc<Rig>) {
    let pool = rig.pool();
    rig.run(async move { pool.set_write_amplification_max(200).await }).unwrap().ok();
}

/// Whether there was such an event since the start.
pub fn told(rig: &Rig, kind: EventKind) -> bool {
    rig.pool().events().iter().any(|event| event.kind == kind)
}

pub fn all_but(devices: usize, gone: usize) -> Vec<usize> {
    (0..devices).filter(|&device| device != gone).collect()
}

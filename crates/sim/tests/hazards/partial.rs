//! A read of what is cached here and there: its origin is asked for what is missing side by side, and at once for places
//! between which little is cached.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::{Buf, Request, Runtime};

use crate::rig::{BLOCK, Plan, Rig, SOON, same, survive, version};

/// Blocks that are read in one request.
const BLOCKS: u64 = 128;

/// The versions of all blocks, once they are read.
type Versions = Rc<RefCell<Option<Result<Vec<u64>, String>>>>;

fn is_read(request: &Request) -> bool {
    matches!(request, Request::Read { .. })
}

/// A volume of which the blocks in `cached` have version 2, and nothing else was ever read.
fn rig(seed: u64, cached: impl Fn(u64) -> bool) -> Result<Rc<Rig>, String> {
    let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
    (0..BLOCKS).filter(|&block| cached(block)).try_for_each(|block| rig.write(2, block, 1))?;
    rig.flush()?;
    Ok(rig)
}

fn start(rig: &Rig) -> Versions {
    let (volume, versions) = (rig.volume(), Versions::default());
    let told = Rc::clone(&versions);
    rig.world.spawn(Box::pin(async move {
        let (buf, result) = volume.read(0, Buf::new(BLOCKS as usize * BLOCK)).await;
        let each = || (0..).zip(buf.chunks_exact(BLOCK)).map(|(block, it)| version(block, it));
        let found = result.map_err(|error| error.to_string()).and_then(|()| each().collect());
        *told.borrow_mut() = Some(found);
    }));
    versions
}

fn expect(versions: &Versions, cached: impl Fn(u64) -> bool) -> Result<(), String> {
    let found = versions.borrow_mut().take().ok_or("it is not answered")??;
    (0..).zip(found).try_for_each(|(block, found)| {
        let expected = if cached(block) { 2 } else { 1 };
        same(&format!("block {block}"), found, expected).map(drop)
    })
}

/// How many requests the origin has at a time for a read, which is answered as it should be, also behind a crash.
fn requests(seed: u64, cached: impl Fn(u64) -> bool + Copy) -> Result<usize, String> {
    let rig = rig(seed, cached)?;
    rig.origin_gate.hold(BLOCKS as usize, is_read);
    let versions = start(&rig);
    rig.pause(SOON);
    let held = rig.origin_gate.held();
    rig.origin_gate.release();
    rig.pause(SOON);
    same("asked for one after the other", rig.origin_gate.held() as u64, 0)?;
    expect(&versions, cached)?;
    rig.origin_gate.hold(0, is_read);
    // What was populated meanwhile is what was missing.
    for when in ["from the cache", "after a crash"] {
        let versions = start(&rig);
        rig.pause(SOON);
        expect(&versions, cached).map_err(|error| format!("{when}: {error}"))?;
        rig.restart(Crash::PowerCut)?;
    }
    Ok(held)
}

#[test]
fn places_between_which_little_is_cached_are_read_at_once() {
    survive(4, |seed| {
        let step = 2 + seed % 3;
        let cached = |block| block % step == 1;
        same("requests", requests(seed, cached)? as u64, 1).map(drop)
    });
}

#[test]
fn places_that_lie_apart_are_read_side_by_side() {
    survive(4, |seed| {
        // 17 blocks of which all are cached are more than a disk reads over.
        let cached = |block| (block + seed) % 20 > 2;
        let places = (0..BLOCKS).filter(|&it| !cached(it) && (it == 0 || cached(it - 1))).count();
        assert!(places > 5, "{places} places");
        same("requests", requests(seed, cached)? as u64, places as u64).map(drop)
    });
}

#[test]
fn what_lies_between_need_not_be_readable() {
    survive(4, |seed| {
        let cached = |block| block % 4 == 1;
        let rig = rig(seed, cached)?;
        let at = (5 + 4 * seed) * BLOCK as u64;
        let bad = Trigger::every(Ops::Reads).within(at..at + BLOCK as u64);
        rig.origin_broken.failing.arm(bad);
        let versions = start(&rig);
        rig.pause(SOON);
        assert!(rig.origin_broken.failing.hits() > 0, "it was not asked for");
        expect(&versions, cached)
    });
}

/// What is around all of them, in a cache block that is larger, is read behind the reply as it is for one: several tasks would
/// have the origin to themselves.
#[test]
fn a_read_in_many_places_leaves_one_rest() {
    survive(4, |seed| {
        let cached = |block| (block + seed) % 20 > 2 && block < BLOCKS;
        let plan = Plan { members: 2, copies: 2, origin_bytes: 4 << 20, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        let volume = rig.volume();
        let settings = volume.settings();
        let set = rig.run(async move { volume.set_with(settings, 4 << 20).await })?;
        set.map_err(|error| error.to_string())?;
        (0..BLOCKS).filter(|&block| cached(block)).try_for_each(|block| rig.write(2, block, 1))?;
        rig.origin_gate.hold(1_000, is_read);
        let versions = start(&rig);
        rig.pause(SOON);
        assert!(rig.origin_gate.held() > 5, "{} places", rig.origin_gate.held());
        rig.origin_gate.release();
        rig.pause(SOON);
        expect(&versions, cached)?;
        same("rests", rig.origin_gate.held() as u64, 1)?;
        rig.origin_gate.hold(0, is_read);
        rig.origin_gate.release();
        rig.pause(SOON);
        same("behind them", rig.read(BLOCKS + 3)?, 1).map(drop)
    });
}

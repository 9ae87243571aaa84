//! The index at the bound of its memory: whoever writes and reads at once, it holds, everybody is answered,
//! and nothing is lost.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::model::world::{Crash, Rng};
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{BlockDevice, Buf, Request, Runtime};
use forebay_engine::planted::{Bug, take_seen};
use forebay_engine::{Client, Tuning};
use forebay_sim::content::{Found, SECTOR, fill, identify};

use crate::rig::{BLOCK, Plan, Rig, lazy, provoke, same, survive};

/// Blocks of the volume: half of them are written.
const BLOCKS: u64 = 8192;

/// Clients at work at the same time. Each has blocks of its own.
const CLIENTS: u64 = 24;

/// Of an index that has 10 KiB when it is empty, and would have 55 with what is written here.
const INDEX_BYTES: u64 = 44 << 10;

/// What each client writes: of all blocks a part, which costs most of the index.
const WRITES: u64 = 170;

fn is_write(request: &Request) -> bool {
    matches!(request, Request::Write { .. })
}

fn pool(seed: u64, index_memory_most: u64, blocks: u64) -> Rc<Rig> {
    let tuning = Tuning {
        flush_interval: 20 * MILLISECOND,
        origin_flush_interval: 20 * MILLISECOND,
        lap_percent: 10,
        owed_segments_percent: 90,
        destage_when_idle: true,
        index_memory_most,
        ..lazy()
    };
    let plan = Plan { members: 8, tuning, origin_bytes: blocks * BLOCK as u64, ..Plan::default() };
    Rig::new(seed, plan)
}

/// What clients of so many reactors use.
fn views(rig: &Rig, reactors: usize) -> Vec<Rc<Client>> {
    let devices = || rig.members.iter().map(|disk| Rc::clone(disk) as Rc<dyn BlockDevice>);
    let open = |_| Rc::new(rig.volume().share().open(rig.runtime(), devices().collect()));
    std::iter::once(Rc::new(rig.volume().client())).chain((1..reactors).map(open)).collect()
}

/// Starts clients that write each of their blocks, and read some of those of others between; how many have ended.
fn start(rig: &Rig, views: &[Rc<Client>], seed: u64) -> Rc<Cell<u64>> {
    let ended = Rc::new(Cell::new(0));
    for client in 0..CLIENTS {
        let (view, ended) = (Rc::clone(&views[client as usize % views.len()]), Rc::clone(&ended));
        let mut rng = Rng::new(seed ^ client << 8);
        rig.world.spawn(Box::pin(async move {
            let mut good = true;
            for i in 0..WRITES {
                let block = place(client, i);
                let mut data = Buf::new(SECTOR);
                fill(i + 2, 0, block * 8, &mut data);
                good &= view.write(block * BLOCK as u64, data.freeze(), false).await.is_ok();
                if rng.one_in(2) {
                    let other = rng.below(BLOCKS) * BLOCK as u64;
                    good &= view.read(other, Buf::new(BLOCK)).await.1.is_ok();
                }
            }
            ended.set(ended.get() + u64::from(good));
        }));
    }
    ended
}

/// Where a client writes: nowhere twice, and far from where it and others have just written.
fn place(client: u64, write: u64) -> u64 {
    (write * CLIENTS + client) * 2 * 1367 % BLOCKS
}

/// Waits until all of them have ended, and looks at the bound meanwhile.
fn until(rig: &Rig, ended: &Cell<u64>, what: &str) -> Result<(), String> {
    for _ in 0..120_000 {
        let (bytes, max) = rig.pool().index_memory();
        same("the bound", max, INDEX_BYTES)?;
        if bytes > max {
            return Err(format!("the index has {bytes} B"));
        }
        if ended.get() >= CLIENTS {
            return Ok(());
        }
        rig.pause(MILLISECOND);
    }
    Err(format!("{what}: {} of {CLIENTS} clients after two minutes", ended.get()))
}

/// Each block has what was written there last, through the pool and, once all is home, on the origin.
fn compare(rig: &Rig) -> Result<(), String> {
    let mut newest = vec![1; BLOCKS as usize];
    for i in 0..WRITES {
        (0..CLIENTS).for_each(|client| newest[place(client, i) as usize] = i + 2);
    }
    for (block, newest) in (0..).zip(&newest) {
        let mut expected = [1; 8];
        expected[0] = *newest;
        let found = rig.sectors(block)?;
        if found != expected {
            return Err(format!("block {block} has {found:?}, expected {expected:?}"));
        }
    }
    rig.destage()?;
    for (block, newest) in (0..).zip(&newest) {
        let origin = rig.origin.peek(block * BLOCK as u64, SECTOR);
        let found = identify(0, block * 8, &origin);
        if found != Found::Stamp(*newest) {
            return Err(format!("the origin's block {block} has {found:?}, expected {newest}"));
        }
    }
    Ok(())
}

#[test]
fn the_bound_of_the_index_holds_with_clients_of_any_number_of_reactors() {
    provoke(Bug::IndexBoundForgotten, 3, |seed| at_the_bound(seed, 1));
    provoke(Bug::IndexBoundForgotten, 3, |seed| at_the_bound(seed, 2));
    provoke(Bug::IndexBoundForgotten, 3, |seed| at_the_bound(seed, 4));
}

fn at_the_bound(seed: u64, reactors: usize) -> Result<(), String> {
    let rig = pool(seed, INDEX_BYTES, BLOCKS);
    let views = views(&rig, reactors);
    let ended = start(&rig, &views, seed);
    until(&rig, &ended, "writes and reads")?;
    drop(views);
    compare(&rig)?;
    // Nothing durable says what was given up last: a start may find more than there was.
    rig.restart(Crash::ProcessKill)?;
    let (bytes, max) = rig.pool().index_memory();
    if bytes > max {
        return Err(format!("the index has {bytes} B after a start"));
    }
    compare(&rig)
}

/// The origin takes nothing, so that all of the index is dirty: writers wait, and go on once it does.
fn all_dirty(seed: u64) -> Result<(), String> {
    let rig = pool(seed, INDEX_BYTES, BLOCKS);
    take_seen();
    rig.origin_gate.hold(usize::MAX, is_write);
    let views = views(&rig, 2);
    let ended = start(&rig, &views, seed);
    for _ in 0..2_000 {
        rig.pause(MILLISECOND);
        let (bytes, max) = rig.pool().index_memory();
        if bytes > max {
            return Err(format!("the index has {bytes} B of dirty data"));
        }
    }
    if !take_seen().contains_key("write waits for the index") {
        let (bytes, _) = rig.pool().index_memory();
        return Err(format!("nobody had to wait: {bytes} B"));
    }
    rig.pause(10 * SECOND);
    rig.origin_gate.hold(0, is_write);
    rig.origin_gate.release();
    until(&rig, &ended, "once the origin answers")?;
    drop(views);
    compare(&rig)
}

#[test]
fn dirty_data_stays_within_the_bound_of_the_index_and_its_writers_go_on() {
    provoke(Bug::IndexBoundForgotten, 3, all_dirty);
}

/// A start that finds more than the bound, all of it clean and hot, and of a volume whose origin is not there yet.
fn too_much_found(seed: u64) -> Result<(), String> {
    const BLOCKS: u64 = 16384;
    const SMALLER_BYTES: u64 = 14 << 10;
    let rig = pool(seed, u64::MAX, BLOCKS);
    // One of each granule, read again until it cannot become hotter.
    for block in (0..5).flat_map(|_| (0..BLOCKS).step_by(16)) {
        same("a block", rig.read(block)?, 1)?;
    }
    rig.pause(SECOND);
    let (bytes, _) = rig.pool().index_memory();
    if bytes <= SMALLER_BYTES {
        return Err(format!("the index has no more than {bytes} B"));
    }
    rig.stop()?;
    rig.tune(|tuning| tuning.index_memory_most = SMALLER_BYTES);
    rig.open()?;
    let (bytes, max) = rig.pool().index_memory();
    same("the bound", max, SMALLER_BYTES)?;
    if bytes > max {
        return Err(format!("the index has {bytes} B after a start"));
    }
    for block in (0..BLOCKS).step_by(40) {
        same("a block after the start", rig.read(block)?, 1)?;
    }
    Ok(())
}

#[test]
fn a_start_gives_up_what_is_more_than_the_bound_of_the_index() {
    survive(3, too_much_found);
}

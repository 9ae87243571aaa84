//! With fewer members left than copies, what is dirty goes home while clients write over it: however that is cut off,
//! nothing that was acknowledged is missing.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{Buf, Runtime};
use forebay_engine::EventKind;
use forebay_engine::planted::Bug;
use forebay_sim::content::fill;

use crate::rig::{BLOCK, KINDS, Plan, Rig, provoke, same};
use crate::subsets::starts_by_the_rule;

/// What a client was told of a block that it writes again and again.
#[derive(Clone, Copy)]
struct Told {
    acknowledged: u64,
    durable: u64,
    asked: u64,
}

/// Blocks that are written over, each by a client of its own, and the last version of each.
const WRITTEN: u64 = 8;
const LAST: u64 = 8;

/// Writes over what is dirty, two blocks apart, and flushes meanwhile.
fn write_over(rig: &Rc<Rig>) -> Rc<RefCell<Vec<Told>>> {
    let fresh = Told { acknowledged: 2, durable: 2, asked: 2 };
    let told = Rc::new(RefCell::new(vec![fresh; WRITTEN as usize]));
    for block in 0..WRITTEN {
        let (volume, told) = (rig.volume(), Rc::clone(&told));
        rig.world.spawn(Box::pin(async move {
            for version in 3..=LAST {
                told.borrow_mut()[block as usize].asked = version;
                let mut data = Buf::new(BLOCK);
                fill(version, 0, 2 * block * 8, &mut data);
                if volume.write(2 * block * BLOCK as u64, data.freeze(), false).await.is_err() {
                    return;
                }
                told.borrow_mut()[block as usize].acknowledged = version;
            }
        }));
    }
    let (volume, runtime, clients) = (rig.volume(), rig.runtime(), Rc::clone(&told));
    rig.world.spawn(Box::pin(async move {
        while clients.borrow().iter().any(|told| told.durable < LAST) {
            let before: Vec<u64> = clients.borrow().iter().map(|told| told.acknowledged).collect();
            if volume.flush().await.is_err() {
                return;
            }
            for (told, before) in clients.borrow_mut().iter_mut().zip(before) {
                told.durable = before;
            }
            runtime.sleep(5 * MILLISECOND).await.result.ok();
        }
    }));
    told
}

/// Whether it came to "protected, clean" with everything written.
fn until_protected(rig: &Rc<Rig>, clients: &Rc<RefCell<Vec<Told>>>) -> bool {
    let (pool, runtime, clients) = (rig.pool(), rig.runtime(), Rc::clone(clients));
    let is_over = rig.run(async move {
        let is_clean = || pool.events().iter().any(|e| e.kind == EventKind::ProtectedClean);
        let is_written = || clients.borrow().iter().all(|told| told.durable == LAST);
        let until = runtime.now() + 60 * SECOND;
        while runtime.now() < until && !(is_clean() && is_written()) {
            runtime.sleep(MILLISECOND).await.result.ok();
        }
        is_clean() && is_written()
    });
    is_over.unwrap_or(false)
}

/// One of two fails, what is dirty is written over while it goes home, and everything ends at any request until all is
/// clean: whoever is there then, what was acknowledged is.
fn ends_while_protecting(seed: u64) -> Result<(), String> {
    let mut opened = [0; 3];
    for ios in 1.. {
        let luck = seed + ios;
        let failed = (seed % 2) as usize;
        let plan = Plan { members: 2, copies: 2, agreed: false, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        rig.write(2, 0, 2 * WRITTEN as usize)?;
        rig.flush()?;
        let ops = [Ops::Flushes, Ops::Writes, Ops::All][(seed / 2 % 3) as usize];
        rig.broken[failed].failing.arm(Trigger::every(ops).after(seed % 3));
        rig.world.crash_at(Some(rig.world.io_count() + ios));
        let told = write_over(&rig);
        let has_ended = until_protected(&rig, &told);
        rig.world.crash_at(None);
        let crash = KINDS[(luck / 3 % 2) as usize];
        rig.crash(crash);
        rig.broken[failed].mend();
        let offer = (luck % 3) as usize;
        let at = |error: String| format!("{ios} I/Os, offer {offer}: {error}");
        let offered = [vec![0, 1], vec![1 - failed], vec![failed]];
        if starts_by_the_rule(&rig, &offered[offer]).map_err(at)?.0 {
            opened[offer] += 1;
        } else {
            starts_by_the_rule(&rig, &[0, 1]).map_err(at)?;
        }
        let mut found = Vec::new();
        for (block, told) in (0..).zip(&*told.borrow()) {
            let sectors = rig.sectors(2 * block).map_err(at)?;
            let least = if crash == Crash::PowerCut { told.durable } else { told.acknowledged };
            if !sectors.iter().all(|version| (least..=told.asked).contains(version)) {
                let range = format!("{least} to {}", told.asked);
                return Err(at(format!("block {}: {sectors:?}, not {range}", 2 * block)));
            }
            found.push(sectors);
            same("left alone", rig.read(2 * block + 1).map_err(at)?, 2)?;
        }
        rig.destage().map_err(at)?;
        rig.restart(Crash::PowerCut).map_err(at)?;
        for (block, before) in (0..).zip(&found) {
            let after = rig.sectors(2 * block).map_err(at)?;
            if after != *before {
                return Err(at(format!("block {}: {before:?}, then {after:?}", 2 * block)));
            }
        }
        (0..2 * WRITTEN).try_for_each(|block| rig.settled(block)).map_err(at)?;
        if has_ended {
            assert!(ios > 60 && opened.iter().all(|&times| times > 0), "{ios}: {opened:?}");
            return Ok(());
        }
    }
    Ok(())
}

#[test]
fn a_crash_at_any_request_until_everything_is_home_takes_nothing() {
    provoke(Bug::TombstoneNotDurable, 6, ends_while_protecting);
}

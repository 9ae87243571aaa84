//! A write budget: what is written to the SSDs a day, and what is left out of the cache for it.

use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Rng;
use forebay_device::runtime::SECOND;
use forebay_engine::bypass::Reason;
use forebay_engine::{Mode, Place};

use super::rig::{BLOCK, KINDS, Plan, Rig, SOON, same, survive};

const MIB: u64 = 1 << 20;
const HOUR: u64 = 3600 * SECOND;
const BLOCKS: u64 = 8 * MIB / BLOCK as u64;

/// A pool whose SSDs may take a MiB an hour, and some blocks in no order.
fn rig(seed: u64, mode: Mode) -> (Rc<Rig>, Vec<u64>) {
    let rig = Rig::new(seed, Plan { mode, origin_bytes: 8 * MIB, ..Plan::default() });
    set(&rig, 24 * MIB);
    let mut blocks: Vec<u64> = (0..BLOCKS).collect();
    let mut rng = Rng::new(seed);
    for i in (1..blocks.len()).rev() {
        blocks.swap(i, rng.below(i as u64 + 1) as usize);
    }
    (rig, blocks)
}

fn set(rig: &Rig, bytes_per_day: u64) {
    let pool = rig.pool();
    rig.run(async move { pool.set_write_budget(bytes_per_day).await }).unwrap().unwrap();
}

/// Does this with each of the blocks, ten in a second.
fn each(rig: &Rig, blocks: &[u64], act: impl Fn(u64) -> Result<(), String>) -> Result<(), String> {
    for some in blocks.chunks(10) {
        some.iter().try_for_each(|&block| act(block))?;
        rig.pause(10 * SOON);
    }
    Ok(())
}

fn past(rig: &Rig) -> (u64, u64) {
    let pool = rig.pool();
    let counters = pool.bypass().of(Reason::WriteBudget);
    (counters.read_requests.get(), counters.write_requests.get())
}

#[test]
fn populations_keep_within_the_budget_and_what_is_asked_for_again_comes_in() {
    survive(2, |seed| {
        let (rig, blocks) = rig(seed, Mode::Readonly);
        let read = |block| rig.read(block).map(drop);
        let populated = || rig.pool().counters().ssd_populate_bytes.get();
        each(&rig, &blocks[..1024], read)?;
        let first = populated();
        // With headers and roots an hour's budget and what comes meanwhile.
        assert!((MIB / 8..3 * MIB / 2).contains(&first), "{first} B of 4 MiB");
        let state = rig.pool().write_budget().ok_or("a budget")?;
        assert!(state.left_bytes < MIB as i64 && state.left_out_permille[0] > 500, "{state:?}");
        assert!(past(&rig).0 > 256 && past(&rig).1 == 0);
        // What a few hours without load leave is for those that come then.
        (0..6).for_each(|_| rig.pause(HOUR / 2));
        each(&rig, &blocks[1024..1536], read)?;
        let second = populated() - first;
        assert!((first..3 * MIB).contains(&second), "{second} B");
        // Without it all comes in.
        set(&rig, 0);
        let (before, went) = (populated(), past(&rig));
        each(&rig, &blocks[1536..1792], read)?;
        let more = (populated() - before) / BLOCK as u64;
        assert!(more > 200 && past(&rig) == went, "{more} of 256 blocks, {:?}", past(&rig));
        assert_eq!(rig.pool().write_budget(), None);
        Ok(())
    });
}

#[test]
fn in_debt_writes_of_what_is_not_cached_go_to_the_origin_and_no_others() {
    survive(4, |seed| {
        let (rig, blocks) = rig(seed, Mode::Writeback);
        let write = |version| move |rig: &Rig, block| rig.write(version, block, 1);
        each(&rig, &blocks[..1024], |block| write(2)(&rig, block))?;
        let bytes = rig.pool().counters().ssd_write_bytes.get();
        assert!((MIB / 2..3 * MIB).contains(&bytes), "{bytes} B of 4 MiB");
        assert!(past(&rig).1 > 256, "{:?}", past(&rig));
        let state = rig.pool().write_budget().ok_or("a budget")?;
        assert!(state.left_bytes < 0 && state.left_out_permille[2] > 500, "{state:?}");
        // What is dirty is written where it is, in debt or not.
        let dirty = |block: &&u64| {
            let mut extents = Vec::new();
            rig.volume().status(**block * BLOCK as u64, BLOCK as u64, &mut extents).unwrap();
            extents.iter().all(|extent| extent.place == Place::Dirty)
        };
        let dirty: Vec<u64> = blocks[..1024].iter().filter(dirty).copied().take(32).collect();
        assert_eq!(dirty.len(), 32);
        let before = past(&rig);
        dirty.iter().try_for_each(|&block| write(3)(&rig, block))?;
        assert_eq!(past(&rig), before);
        rig.flush()?;
        rig.restart(KINDS[(seed % 2) as usize])?;
        for &block in &blocks[..1024] {
            let version = if dirty.contains(&block) { 3 } else { 2 };
            same("after a restart", rig.read(block)?, version)?;
        }
        let state = rig.pool().write_budget().ok_or("it is kept")?;
        assert_eq!(state.bytes_per_day, 24 * MIB);
        rig.destage()
    });
}

/// Debt that cannot be paid off while a test runs.
fn in_debt(rig: &Rig, blocks: &[u64]) -> Result<(), String> {
    each(rig, blocks, |block| rig.write(2, block, 1))?;
    let state = rig.pool().write_budget().ok_or("a budget")?;
    let most = state.left_out_permille == [1000; 3];
    most.then_some(()).ok_or_else(|| format!("not enough of a debt: {state:?}"))
}

#[test]
fn in_debt_what_is_written_back_does_not_depend_on_an_origin_that_fails() {
    survive(4, |seed| {
        let (rig, blocks) = rig(seed, Mode::Writeback);
        set(&rig, MIB);
        in_debt(&rig, &blocks[..512])?;
        rig.origin_broken.failing.arm(Trigger::every(Ops::Writes));
        // The first one that is left out finds it out, at the most.
        let failed = blocks[512..640].iter().filter(|&&block| rig.write(3, block, 1).is_err());
        assert!(failed.count() <= 1);
        rig.origin_broken.mend();
        rig.flush()?;
        blocks[514..640].iter().try_for_each(|&block| same("read", rig.read(block)?, 3).map(drop))
    });
}

#[test]
fn in_debt_a_write_over_what_is_cached_in_part_drops_none_of_it() {
    survive(2, |seed| {
        let (rig, blocks) = rig(seed, Mode::Writeback);
        set(&rig, 0);
        rig.write(2, 0, 15)?;
        rig.destage()?;
        set(&rig, MIB);
        let elsewhere = |block: &&u64| **block >= 64;
        let rest: Vec<u64> = blocks.iter().filter(elsewhere).copied().take(512).collect();
        in_debt(&rig, &rest)?;
        let before = past(&rig);
        rig.write(3, 0, 16)?;
        assert_eq!(past(&rig), before);
        let mut extents = Vec::new();
        rig.volume()
            .status(0, 16 * BLOCK as u64, &mut extents)
            .map_err(|error| error.to_string())?;
        assert!(extents.iter().all(|extent| extent.place == Place::Dirty), "{extents:?}");
        rig.restart(KINDS[(seed % 2) as usize])
    });
}

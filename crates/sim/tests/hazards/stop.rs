//! The ends of a pool's life: volumes attached at the same time, flags that fall, stops that fail.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_device::model::disk::{DiskSettings, SimDisk};
use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::{BlockDevice, Completer, Geometry, Request, Runtime};
use forebay_engine::format::SUPERBLOCK_BYTES;
use forebay_engine::{CreateOptions, MemoryWitness, Mode, Volume, VolumeSpec, create};

use crate::rig::{Plan, Rig, SOON, same, survive};

type Attached = Rc<RefCell<Vec<Result<Volume, String>>>>;

/// Lets several attempts to get a volume run side by side; their outcomes.
fn race<F>(rig: &Rig, attempts: Vec<F>) -> Vec<Result<Volume, String>>
where
    F: Future<Output = forebay_engine::Result<Volume>> + 'static,
{
    let outcomes = Attached::default();
    let count = attempts.len();
    for attempt in attempts {
        let outcomes = Rc::clone(&outcomes);
        rig.world.spawn(Box::pin(async move {
            let outcome = attempt.await.map_err(|error| error.to_string());
            outcomes.borrow_mut().push(outcome);
        }));
    }
    rig.pause(10 * SOON);
    let outcomes = outcomes.take();
    assert_eq!(outcomes.len(), count, "an attempt has not ended");
    outcomes
}

pub fn spec(name: &str) -> VolumeSpec {
    VolumeSpec {
        name: name.into(),
        origin: name.into(),
        mode: Mode::Writeback,
        cache_block_bytes: 4096,
        settings: Default::default(),
        accept_data_loss_on_ssd_failure: true,
    }
}

#[test]
fn of_two_that_add_a_volume_of_one_name_one_wins_and_others_lose_nothing() {
    survive(10, |seed| {
        let rig = Rig::new(seed, Plan::default());
        let pool = rig.pool();
        let attempts = ["w", "x", "w", "y"].map(|name| {
            let origin = SimDisk::new(&rig.world, DiskSettings::origin(1 << 20, 512, true), 5);
            let pool = Rc::clone(&pool);
            async move { pool.add_volume(&spec(name), origin).await }
        });
        let won = race(&rig, attempts.into()).into_iter().filter(Result::is_ok).count();
        let mut volumes: Vec<_> =
            pool.superblock().volumes.into_iter().map(|v| (v.id.0, v.name)).collect();
        drop(pool);
        assert_eq!((won, volumes.len()), (3, 4), "{volumes:?}");
        rig.restart(Crash::PowerCut)?;
        let after = rig.pool().superblock().volumes;
        assert_eq!(after.len(), 4);
        volumes.sort();
        volumes.dedup_by_key(|(id, _)| *id);
        assert_eq!(volumes.len(), 4, "numbers are given once: {volumes:?}");
        Ok(())
    });
}

#[test]
fn of_two_that_attach_a_volume_one_wins() {
    survive(10, |seed| {
        let rig = Rig::new(seed, Plan::default());
        rig.write(2, 3, 1)?;
        rig.stop()?;
        let it = Rc::clone(&rig);
        let pool = Rc::new(rig.run(async move { it.open_pool().await })??);
        let attempts = (0..3).map(|_| {
            let (pool, origin) = (Rc::clone(&pool), Rc::clone(&rig.origin_gate));
            async move { pool.attach("v", origin).await }
        });
        let mut won: Vec<_> = race(&rig, attempts.collect()).into_iter().flatten().collect();
        assert_eq!(won.len(), 1);
        *rig.volume.borrow_mut() = won.pop().map(Rc::new);
        *rig.pool.borrow_mut() = Some(pool);
        same("through the winner", rig.read(3)?, 2)?;
        rig.settled(3)
    });
}

#[test]
fn an_origin_that_takes_its_time_to_be_attached_keeps_nobody_from_writing() {
    survive(5, |seed| {
        let rig = Rig::new(seed, Plan::default());
        let pool = rig.pool();
        // The flush of the new origin is not answered; the first write needs the superblocks.
        rig.origin_gate.hold(1, |request| matches!(request, Request::Flush));
        let (it, origin) = (Rc::clone(&pool), Rc::clone(&rig.origin_gate));
        rig.world.spawn(Box::pin(async move { drop(it.add_volume(&spec("w"), origin).await) }));
        rig.pause(SOON);
        assert_eq!(rig.origin_gate.held(), 1);
        let done = rig.start_write(2, 3, 1);
        rig.pause(SOON);
        assert!(done.get(), "the first dirty write of another volume waits");
        Ok(())
    });
}

fn is_superblock(request: &Request) -> bool {
    let end = 2 * SUPERBLOCK_BYTES as u64;
    matches!(request, Request::Write { offset, .. } if *offset < end)
}

/// The last block is destaged while the pool is stopped; the power goes when the superblock that
/// says so has been written.
fn stopped_while_destaging(seed: u64) -> Result<Rc<Rig>, String> {
    let tuning = forebay_engine::Tuning { destage_when_idle: true, ..crate::rig::lazy() };
    let rig = Rig::new(seed, Plan { tuning, ..Plan::default() });
    rig.origin_gate.hold(1, |request| matches!(request, Request::Write { .. }));
    rig.write(2, 3, 1)?;
    rig.flush()?;
    rig.pause(SOON);
    assert_eq!(rig.origin_gate.held(), 1, "the elevator is at it");
    // Something volatile, so that members are flushed.
    rig.read(9)?;
    rig.pause(SOON);
    *rig.volume.borrow_mut() = None;
    let pool = rig.pool.take().unwrap();
    rig.world.spawn(Box::pin(async move {
        Rc::into_inner(pool).unwrap().stop().await.ok();
    }));
    rig.pause(SOON);
    Ok(rig)
}

#[test]
fn may_be_dirty_falls_at_a_stop_and_only_when_the_clean_facts_are_durable() {
    let fell = std::cell::Cell::new(0);
    for seed in 0..60 {
        let rig = stopped_while_destaging(seed).unwrap();
        // Of both superblocks of the stop, the first one is about the flag.
        rig.gates[0].hold(1, is_superblock);
        rig.origin_gate.release();
        rig.pause(10 * SOON);
        assert_eq!(rig.gates[0].held(), 1, "a superblock is on its way");
        rig.crash(Crash::PowerCut);
        let it = Rc::clone(&rig);
        let pool = rig.run(async move { it.open_pool().await }).unwrap().unwrap();
        let flag = pool.superblock().volumes[0].may_be_dirty;
        assert!(flag || pool.blocks().1 == 0, "seed {seed}: dirty, and nobody knows");
        fell.set(fell.get() + u32::from(!flag));
    }
    assert!(fell.get() > 0, "the flag never fell");
}

/// A stop during which a member's requests fail from some point on.
fn failing_stop(seed: u64, ops: Ops) -> Result<(), String> {
    for after in 0.. {
        let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
        for block in 0..24 {
            rig.write(2, block, 1)?;
        }
        rig.flush()?;
        rig.read(30)?;
        rig.broken[0].failing.arm(Trigger::every(ops).after(after));
        let stopped = rig.try_stop();
        let hangs = |error: &String| error.contains("limit:") || error.contains("deadlock:");
        if stopped.as_ref().is_err_and(hangs) {
            return Err(format!("after {after} of {ops:?}: {stopped:?}"));
        }
        let hit = rig.broken[0].failing.hits() > 0;
        rig.broken[0].mend();
        rig.restart(Crash::PowerCut)?;
        (0..24).try_for_each(|block| same("read back", rig.read(block)?, 2).map(drop))?;
        if !hit {
            return Ok(());
        }
    }
    Ok(())
}

#[test]
fn a_stop_returns_whatever_fails_in_the_middle_of_it() {
    survive(3, |seed| {
        failing_stop(seed, Ops::Writes)?;
        failing_stop(seed, Ops::Flushes)?;
        failing_stop(seed, Ops::Reads)
    });
}

#[test]
fn a_pool_that_has_latched_before_can_be_stopped() {
    survive(5, |seed| {
        for ops in [Ops::Writes, Ops::Flushes] {
            let rig = Rig::new(seed, Plan::default());
            rig.write(2, 3, 1)?;
            rig.flush()?;
            rig.broken[0].failing.arm(Trigger::every(ops));
            // Some fail, some wait behind them.
            let writes: Vec<_> = (4..40).map(|block| rig.start_write(3, block, 1)).collect();
            rig.pause(SOON);
            rig.flush().unwrap_err();
            assert!(rig.pool().is_latched());
            assert!(writes.iter().all(|ended| ended.get()), "every request has its answer");
            match rig.try_stop() {
                Err(error) if error.contains("stopped writing") => {}
                other => return Err(format!("stop: {other:?}")),
            }
            rig.broken[0].mend();
            rig.restart(Crash::PowerCut)?;
            same("what was flushed", rig.read(3)?, 2)?;
        }
        Ok(())
    });
}

#[test]
fn a_stop_that_waits_for_populations_returns_when_they_fail() {
    survive(20, |seed| {
        let rig = Rig::new(seed, Plan { mode: Mode::Readonly, ..Plan::default() });
        // One is on its way to fail, the others wait behind it.
        rig.gates[0].hold(2, |request| matches!(request, Request::Write { .. }));
        rig.broken[0].failing.arm(Trigger::every(Ops::Writes).times(2));
        (3..11).for_each(|block| rig.start_read(block));
        rig.pause(SOON);
        assert!(rig.gates[0].held() > 0);
        *rig.volume.borrow_mut() = None;
        let pool = rig.pool.take().unwrap();
        let ended = Rc::new(RefCell::new(None));
        let answer = Rc::clone(&ended);
        rig.world.spawn(Box::pin(async move {
            *answer.borrow_mut() = Some(Rc::into_inner(pool).unwrap().stop().await.is_err());
        }));
        rig.pause(10 * SOON);
        assert_eq!(ended.take(), None, "it waits");
        rig.gates[0].release();
        rig.pause(10 * SOON);
        if ended.take() != Some(true) {
            return Err("the stop hangs".into());
        }
        Ok(())
    });
}

/// A device that answers everything, of any size.
struct Huge(u64);

impl BlockDevice for Huge {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.0,
            sector_bytes: 512,
            discard: false,
            stripe: None,
            controller: None,
            durable_writes: false,
        }
    }

    fn submit(&self, request: Request, completer: Completer) {
        request.finish(Ok(()), completer);
    }
}

#[test]
fn what_no_superblock_can_say_is_refused_before_it_is_written() {
    survive(1, |seed| {
        let rig = Rig::new(seed, Plan::default());
        let (pool, before) = (rig.pool(), rig.pool().superblock());
        let limit = 4 << 50;
        let added = rig.run(async move {
            let added = pool.add_volume(&spec("w"), Rc::new(Huge(limit + 512))).await;
            assert!(added.is_err_and(|error| error.what.contains("larger than")));
        });
        added?;
        assert_eq!(rig.pool().superblock(), before);
        let create = |bytes: u64, segment_bytes: u32| {
            let devices: Vec<Rc<dyn BlockDevice>> =
                vec![Rc::new(Huge(bytes)), Rc::new(Huge(bytes))];
            let options = CreateOptions {
                segment_bytes: Some(segment_bytes),
                ..CreateOptions::named("pool")
            };
            let world = Rc::clone(&rig.world);
            rig.run(async move {
                let created = create(&*world, &devices, &MemoryWitness::default(), &options).await;
                created.map(drop).map_err(|error| (error.what, error.hint))
            })
        };
        assert_eq!(create(200 << 30, 64 << 10)?, Ok(()));
        for (bytes, segment_bytes) in [(300 << 30, 64 << 10), (1 << 30, 5000), (1 << 30, 0)] {
            let refused = create(bytes, segment_bytes)?;
            assert!(refused.is_err_and(|(_, hint)| !hint.is_empty()), "{bytes} {segment_bytes}");
        }
        Ok(())
    });
}

//! Writers that are held back: everything dirty and a slow origin, a volume whose origin hangs beside one that
//! only rewrites, a stop, a removal, a latch.

use std::rc::Rc;

use forebay_device::model::disk::{DiskSettings, SimDisk};
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{Buf, Request, Runtime};
use forebay_engine::limits::DESTAGE_READS_TOGETHER;
use forebay_engine::planted::take_seen;
use forebay_engine::{Mode, Tuning, Volume, VolumeSpec};

use crate::rig::{Plan, Rig, lazy, same, survive};

/// Blocks of the rig's origin in these scripts: twice what its pool holds.
const BLOCKS: u64 = 1280;

fn is_write(request: &Request) -> bool {
    matches!(request, Request::Write { .. })
}

/// A pool that destages when it must, and an origin that takes a write now and then.
fn full(seed: u64) -> Result<Rc<Rig>, String> {
    let tuning = Tuning { flush_interval: SECOND, lap_percent: 10, ..lazy() };
    let rig = Rig::new(seed, Plan { tuning, origin_bytes: BLOCKS * 4096, ..Plan::default() });
    rig.origin_gate.hold(usize::MAX, is_write);
    Ok(rig)
}

/// Answers what the origin has been asked, again and again, until `done`.
fn drip(rig: &Rig, span: u64, done: impl Fn() -> bool) -> Result<(), String> {
    for _ in 0..100_000 {
        if done() {
            return Ok(());
        }
        rig.origin_gate.release();
        rig.pause(span);
    }
    Err("writers wait for ever".into())
}

fn delayed(rig: &Rig) -> u64 {
    rig.pool().counters().throttle_delay_ns.get()
}

/// Writes that are under way together, of single blocks all over the volume.
fn writes(rig: &Rig, version: u64, count: u64) -> Vec<Rc<std::cell::Cell<bool>>> {
    (0..count).map(|i| rig.start_write(version, i * 7 % BLOCKS, 1)).collect()
}

#[test]
fn a_full_log_with_everything_dirty_slows_writers_to_what_the_origin_takes() {
    survive(4, |seed| {
        let rig = full(seed)?;
        let writes = writes(&rig, 2, BLOCKS);
        rig.pause(SECOND);
        if writes.iter().all(|done| done.get()) {
            return Err("twice the pool was acknowledged, and the origin has nothing".into());
        }
        if delayed(&rig) == 0 && rig.pool().counters().throttled_writes.get() == 0 {
            return Err("nobody was held back".into());
        }
        // Reads do not wait for writers who wait.
        let written = writes.iter().position(|done| done.get()).ok_or("nothing was written")?;
        same("of what has been written", rig.read(written as u64 * 7 % BLOCKS)?, 2)?;
        drip(&rig, 5 * MILLISECOND, || writes.iter().all(|done| done.get()))?;
        rig.origin_gate.hold(0, is_write);
        rig.pause(SECOND);
        rig.origin_gate.release();
        for block in 0..BLOCKS {
            same("after all", rig.read(block)?, 2)?;
        }
        rig.destage()
    });
}

#[test]
fn a_stop_lets_delayed_writers_go_on_and_ends() {
    survive(4, |seed| {
        let rig = full(seed)?;
        // Less than the log holds, so that only the throttle holds them back.
        let writes = writes(&rig, 2, BLOCKS / 10);
        rig.pause(20 * MILLISECOND);
        *rig.volume.borrow_mut() = None;
        let pool = rig.pool.take().ok_or("no pool")?;
        let stopped = Rc::new(std::cell::Cell::new(false));
        let ended = Rc::clone(&stopped);
        rig.world.spawn(Box::pin(async move {
            let pool = Rc::into_inner(pool).expect("nobody else has the pool");
            ended.set(pool.stop().await.is_ok());
        }));
        drip(&rig, MILLISECOND, || stopped.get())?;
        match writes.iter().all(|done| done.get()) {
            true => Ok(()),
            false => Err("a writer was forgotten".into()),
        }
    });
}

#[test]
fn a_volume_with_delayed_writers_can_be_removed() {
    survive(4, |seed| {
        let rig = full(seed)?;
        let writes = writes(&rig, 2, BLOCKS);
        rig.pause(50 * MILLISECOND);
        let (pool, removed) = (rig.pool(), Rc::new(std::cell::Cell::new(false)));
        let ended = Rc::clone(&removed);
        rig.world.spawn(Box::pin(async move {
            ended.set(pool.remove_volume("v").await.is_ok());
        }));
        drip(&rig, 5 * MILLISECOND, || removed.get())?;
        for block in 0..BLOCKS {
            let bytes = rig.origin.peek(block * 4096, 4096);
            same("on the plain origin", crate::rig::version(block, &bytes)?, 2)?;
        }
        match writes.iter().all(|done| done.get()) {
            true => Ok(()),
            false => Err("a writer was forgotten".into()),
        }
    });
}

#[test]
fn a_latch_wakes_every_delayed_writer() {
    survive(4, |seed| {
        let rig = full(seed)?;
        let writes = writes(&rig, 2, BLOCKS);
        rig.pause(50 * MILLISECOND);
        rig.gates[0].fail_next(|request| matches!(request, Request::Write { .. } | Request::Flush));
        rig.origin_gate.release();
        for _ in 0..1000 {
            rig.origin_gate.release();
            rig.pause(10 * MILLISECOND);
            if rig.pool().is_latched() {
                break;
            }
        }
        rig.pause(MILLISECOND);
        match (rig.pool().is_latched(), writes.iter().filter(|done| !done.get()).count()) {
            (true, 0) => Ok(()),
            (true, left) => Err(format!("{left} writers wait in a pool that has latched")),
            (false, _) => Err("the pool did not latch".into()),
        }
    });
}

/// A second volume, with an origin of its own that nothing is wrong with.
fn second_volume(rig: &Rig, seed: u64) -> Result<Rc<Volume>, String> {
    let origin = SimDisk::new(&rig.world, DiskSettings::origin(1 << 20, 512, true), seed);
    let spec = VolumeSpec {
        name: "w".into(),
        origin: "w".into(),
        mode: Mode::Writeback,
        cache_block_bytes: 4096,
        settings: Default::default(),
        accept_data_loss_on_ssd_failure: true,
    };
    let pool = rig.pool();
    let added = rig.run(async move { pool.add_volume(&spec, origin).await })?;
    added.map(Rc::new).map_err(|error| error.to_string())
}

/// What a volume rewrites has sets of its own, which are not destaged while others hold enough that origins
/// lack. If the others' origin takes nothing any more, that must not stop who has a good one.
#[test]
fn who_rewrites_goes_on_beside_a_volume_whose_origin_hangs() {
    survive(4, |seed| {
        let rig = full(seed)?;
        let volume = second_volume(&rig, seed)?;
        // Much of the first is dirty and stays so.
        let stuck = writes(&rig, 2, BLOCKS / 10);
        let rewrite = |version: u64| {
            let (volume, seed) = (Rc::clone(&volume), seed);
            rig.run(async move {
                for number in 0..64 {
                    let mut data = Buf::new(4096);
                    data.fill((version ^ seed) as u8);
                    volume.write(number * 4096, data.freeze(), false).await?;
                }
                volume.flush().await
            })?
            .map_err(|error| error.to_string())
        };
        // Many times what the pool holds.
        let mut more = Vec::new();
        for version in 0..100 {
            more.push(rig.start_write(2, version % 64 * 7 % BLOCKS, 1));
            rewrite(version).map_err(|e| format!("pass {version}: {e}"))?;
        }
        let apart = take_seen().contains_key("write kept apart: rewritten");
        if !apart {
            return Err("nothing was kept apart".into());
        }
        rig.origin_gate.hold(0, is_write);
        drip(&rig, SECOND, || stuck.iter().chain(&more).all(|done| done.get()))?;
        let last = Rc::clone(&volume);
        let read = rig.run(async move {
            last.destage().await?;
            let (buf, result) = last.read(63 * 4096, Buf::new(4096)).await;
            result.map(|()| buf[0])
        })?;
        let byte = read.map_err(|error| error.to_string())?;
        same("after all", u64::from(byte), 99 ^ seed).map(drop)
    });
}

/// Two volumes rewrite a small working set, so that nearly every set holds a little that is dirty and an open set
/// of each stream is kept for the next start. Somebody reads all the while, so that nothing counts as idle.
#[test]
fn writers_of_a_small_working_set_do_not_wait_for_ever() {
    survive(8, |seed| {
        let tuning = Tuning {
            flush_interval: SECOND / 10,
            lap_percent: 10,
            idle_after: 200 * MILLISECOND,
            destage_when_idle: true,
            ..lazy()
        };
        let rig = Rig::new(seed, Plan { tuning, origin_bytes: BLOCKS * 4096, ..Plan::default() });
        let volume = second_volume(&rig, seed)?;
        let mut state = (seed + 1) * 7919;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for round in 0..1000 {
            let mut writes: Vec<_> =
                (0..16).map(|_| rig.start_write(2, random() % 150, 1)).collect();
            if random() % 3 == 0 {
                let (done, volume) = (Rc::new(std::cell::Cell::new(false)), Rc::clone(&volume));
                let at = random() % 20 * 4096;
                writes.push(Rc::clone(&done));
                rig.world.spawn(Box::pin(async move {
                    volume.write(at, Buf::new(4096).freeze(), false).await.unwrap();
                    done.set(true);
                }));
            }
            let begun = rig.world.now();
            while !writes.iter().all(|done| done.get()) {
                rig.pause(10 * MILLISECOND);
                let reader = Rc::clone(&volume);
                rig.read(BLOCKS - 1)?;
                rig.run(async move { reader.read(255 * 4096, Buf::new(4096)).await.1 })?
                    .map_err(|error| error.to_string())?;
                if rig.world.now() - begun > 300 * SECOND {
                    let waiting = writes.iter().filter(|done| !done.get()).count();
                    let destaged = rig.pool().counters().destage_bytes.get();
                    return Err(format!(
                        "round {round}: {waiting} writers wait for 300 s, {destaged} bytes destaged"
                    ));
                }
            }
        }
        Ok(())
    });
}

/// What is brought home is read a little at a time: an SSD that has a thousand reads to do makes everybody wait for them.
/// All of it comes home, and at once where there is little.
#[test]
fn destaging_leaves_an_ssd_to_clients() {
    survive(6, |seed| {
        let tuning = Tuning { destage_depth: 512, ..lazy() };
        let rig = Rig::new(seed, Plan { tuning, ..Plan::default() });
        // One write to the origin each.
        (0..240).step_by(2).try_for_each(|block| rig.write(2, block, 1))?;
        rig.flush()?;
        let is_read = |request: &Request| matches!(request, Request::Read { .. });
        rig.gates[0].hold(usize::MAX, is_read);
        let volume = rig.volume();
        let done = Rc::new(std::cell::Cell::new(false));
        let ended = Rc::clone(&done);
        rig.world.spawn(Box::pin(async move { ended.set(volume.destage().await.is_ok()) }));
        let mut most = 0;
        for _ in 0..20 {
            rig.pause(50 * MILLISECOND);
            most = most.max(rig.gates[0].held());
            rig.gates[0].release();
        }
        // A block, and its checksum where that is far from it.
        let allowed = DESTAGE_READS_TOGETHER..=2 * DESTAGE_READS_TOGETHER;
        if !allowed.contains(&most) {
            return Err(format!("{most} are read at a time"));
        }
        rig.gates[0].hold(0, is_read);
        rig.gates[0].release();
        rig.pause(5 * SECOND);
        assert!(done.get(), "it does not come to an end");
        Ok(())
    });
}

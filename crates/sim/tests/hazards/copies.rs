//! Copies of dirty and of clean data: which is read, and what having two of them is good for.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::model::disk::{DiskSettings, SimDisk};
use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::modelled::Modelled;
use forebay_device::model::ssd::{SsdModel, SsdParameters};
use forebay_device::model::thrifty::ThriftyStore;
use forebay_device::model::world::{Crash, Limits, Rng, World};
use forebay_device::runtime::SECOND;
use forebay_device::{BlockDevice, Buf, Nanos, Runtime};
use forebay_engine::{CreateOptions, MemoryWitness, Mode, Tuning, VolumeSpec, create, open};

use crate::rig::{Plan, Rig, SOON, lazy, same, survive};

/// The origin would have it, but is not asked.
#[test]
fn clean_data_with_two_copies_survives_an_unreadable_one() {
    survive(6, |seed| {
        for bad in 0..2 {
            let plan =
                Plan { members: 2, clean_copies: 2, mode: Mode::Readonly, ..Plan::default() };
            let rig = Rig::new(seed, plan);
            for block in 0..24 {
                same("at first", rig.read(block)?, 1)?;
            }
            rig.flush()?;
            rig.pause(SOON);
            rig.origin_broken.failing.arm(Trigger::one_in(Ops::Reads, 1));
            rig.broken[bad].failing.arm(Trigger::one_in(Ops::Reads, 1));
            for block in 0..24 {
                same(&format!("without member {bad}"), rig.read(block)?, 1)?;
            }
        }
        Ok(())
    });
}

const VOLUME_BYTES: u64 = 32 << 20;
const READ: u64 = 4096;
const READERS: u64 = 64;

/// Virtual time in which `READERS` clients at a time read all of a cached volume, 4 KiB by 4 KiB,
/// anywhere; `dirty` or clean.
fn time_to_read(members: u8, dirty: bool) -> Nanos {
    let world = World::new(3);
    world.set_limits(Limits { steps: u64::MAX, nanos: 1_000 * SECOND });
    let runtime = Rc::clone(&world) as Rc<dyn Runtime>;
    let devices: Vec<Rc<dyn BlockDevice>> = (0..u64::from(members))
        .map(|seed| {
            let store = Rc::new(ThriftyStore::new(1 << 30, 4096));
            let model = SsdModel::new(SsdParameters::sata_data_centre(), seed);
            Rc::new(Modelled::new(Rc::clone(&runtime), store, model)) as _
        })
        .collect();
    let origin = SimDisk::new(&world, DiskSettings::origin(VOLUME_BYTES, 512, true), 7);
    let (rt, given) = (Rc::clone(&runtime), devices.clone());
    let opened = world.run_until(async move {
        let witness = Rc::new(MemoryWitness::default());
        let options = CreateOptions {
            dirty_copies: members,
            clean_copies: members,
            ..CreateOptions::named("pool")
        };
        create(&*rt, &given, &*witness, &options).await.unwrap();
        let tuning = Tuning { verify_reads: false, ..lazy() };
        let pool = open(rt, given, witness, tuning).await.unwrap();
        let spec = VolumeSpec {
            name: "v".into(),
            origin: "origin".into(),
            mode: Mode::Writeback,
            cache_block_bytes: 4096,
            accept_data_loss_on_ssd_failure: true,
        };
        let volume = pool.add_volume(&spec, origin).await.unwrap();
        for at in (0..VOLUME_BYTES).step_by(1 << 20) {
            volume.write(at, Buf::zeroed(1 << 20).freeze(), false).await.unwrap();
        }
        volume.flush().await.unwrap();
        if !dirty {
            volume.destage().await.unwrap();
        }
        (Rc::new(pool), Rc::new(volume))
    });
    let (pool, volume) = opened.unwrap();
    let (begun, left) = (world.now(), Rc::new(Cell::new(VOLUME_BYTES / READ)));
    let mut readers = Vec::new();
    for reader in 0..READERS {
        let (completer, end) = forebay_device::io::pair();
        let (volume, left, mut rng) = (Rc::clone(&volume), Rc::clone(&left), Rng::new(reader));
        readers.push(end);
        world.spawn(Box::pin(async move {
            while let Some(rest) = left.get().checked_sub(1) {
                left.set(rest);
                let at = rng.below(VOLUME_BYTES / READ) * READ;
                volume.read(at, Buf::new(READ as usize)).await.1.unwrap();
            }
            completer.done(Ok(()));
        }));
    }
    world
        .run_until(async move {
            for end in readers {
                end.await.result.unwrap();
            }
        })
        .unwrap();
    let took = world.now() - begun;
    assert_eq!(pool.counters().read_misses.get(), 0);
    drop((pool, volume));
    world.crash(Crash::ProcessKill);
    took
}

#[test]
fn two_mirrored_ssds_read_almost_twice_as_much_as_one() {
    for dirty in [true, false] {
        let (one, two) = (time_to_read(1, dirty), time_to_read(2, dirty));
        let times = one as f64 / two as f64;
        assert!(times >= 1.8, "two read {times:.2} x what one does; dirty: {dirty}");
    }
}

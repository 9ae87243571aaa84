//! One volume's origin never poisons the pool.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_device::model::disk::{DiskSettings, SimDisk};
use forebay_device::model::fault::{Failing, Faults, Ops, Trigger};
use forebay_device::runtime::SECOND;
use forebay_device::{BlockDevice, Buf, IoErrorKind};
use forebay_engine::planted::Bug;
use forebay_engine::{EventKind, Mode, Redundancy, Volume, VolumeSpec};
use forebay_sim::content::fill;

use crate::changing::{add, told};
use crate::protection::past;
use crate::rig::{BLOCK, KINDS, Plan, Rig, provoke, same, version};

/// A volume with an origin of its own, and what can be broken about that.
struct Other {
    volume: RefCell<Rc<Volume>>,
    device: Rc<dyn BlockDevice>,
    failing: Rc<Faults>,
}

impl Other {
    fn add(rig: &Rc<Rig>, seed: u64) -> Result<Other, String> {
        let disk = SimDisk::new(&rig.world, DiskSettings::origin(1 << 20, 512, true), seed);
        let (failing, runtime) = (Faults::new(seed), rig.runtime());
        let (faults, error) = (Rc::clone(&failing), IoErrorKind::Media);
        let device: Rc<dyn BlockDevice> = Rc::new(Failing { inner: disk, faults, error, runtime });
        let spec = VolumeSpec {
            name: "other".into(),
            origin: "other".into(),
            mode: Mode::Writeback,
            cache_block_bytes: 4096,
            settings: Default::default(),
            accept_data_loss_on_ssd_failure: false,
        };
        let (pool, origin) = (rig.pool(), Rc::clone(&device));
        let added = rig.run(async move { pool.add_volume(&spec, origin).await })?;
        let volume = RefCell::new(Rc::new(added.map_err(|error| error.to_string())?));
        Ok(Other { volume, device, failing })
    }

    /// Attaches it after a start.
    fn attach(&self, rig: &Rc<Rig>) -> Result<(), String> {
        let (pool, origin) = (rig.pool(), Rc::clone(&self.device));
        let attached = rig.run(async move { pool.attach("other", origin).await })?;
        *self.volume.borrow_mut() = Rc::new(attached.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn write(&self, rig: &Rc<Rig>, version: u64, block: u64) -> Result<(), String> {
        let (volume, mut data) = (Rc::clone(&self.volume.borrow()), Buf::new(BLOCK));
        fill(version, 0, block * 8, &mut data);
        rig.run(async move { volume.write(block * BLOCK as u64, data.freeze(), true).await })?
            .map_err(|error| error.to_string())
    }

    fn read(&self, rig: &Rc<Rig>, block: u64) -> Result<u64, String> {
        let volume = Rc::clone(&self.volume.borrow());
        let (buf, result) =
            rig.run(async move { volume.read(block * BLOCK as u64, Buf::new(BLOCK)).await })?;
        result.map_err(|error| error.to_string())?;
        version(block, &buf)
    }
}

/// The origin of one volume is broken for good, and then a cache device as well: the other volumes become clean, and are
/// written back again as soon as a spare has taken its place. What the broken origin lacks has both of its copies then.
#[test]
fn a_broken_origin_keeps_no_other_volume_from_its_protection() {
    provoke(Bug::RebuildForgotten, 8, |seed| {
        let plan = Plan { members: 2, spares: 1, copies: 2, agreed: false, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        let other = Other::add(&rig, seed)?;
        (0..20).try_for_each(|block| rig.write(2, block, 1))?;
        (0..10).try_for_each(|block| other.write(&rig, 3, block))?;
        rig.flush()?;
        let broken = [Ops::Writes, Ops::Flushes, Ops::All][(seed / 2 % 3) as usize];
        other.failing.arm(Trigger::every(broken));
        let lost = (seed % 2) as usize;
        rig.broken[lost].gone.set(true);
        rig.write(2, 30, 1)?;
        rig.flush()?;
        rig.pause(20 * SECOND);
        let dirty_of = |volume: &Volume| volume.owed_blocks();
        assert_eq!(dirty_of(&rig.volume()), 0, "it is home");
        assert_eq!(dirty_of(&other.volume.borrow()), 10, "it cannot go home");
        assert_eq!(rig.pool().redundancy(), Redundancy::Protecting);
        (0..20).chain([30]).try_for_each(|block| rig.settled(block))?;
        // What is dirty is written over in the log, whatever the origin does.
        other.write(&rig, 4, 3)?;
        let through = past(&rig);
        add(&rig, 2)?.map_err(|error| error.to_string())?;
        rig.pause(20 * SECOND);
        assert!(told(&rig, EventKind::CopiesRestored));
        assert_eq!(rig.pool().redundancy(), Redundancy::Whole);
        (0..20).try_for_each(|block| rig.write(5, block, 1))?;
        rig.flush()?;
        assert_eq!(past(&rig), through, "written back again");
        other.write(&rig, 6, 4)?;
        // Either of the two may go now, in use or at a crash.
        let next = [1 - lost, 2][(seed / 4 % 2) as usize];
        let left = 3 - lost - next;
        rig.broken[next].gone.set(true);
        let all = |when: &str| {
            (0..20).try_for_each(|block| same(when, rig.read(block)?, 5).map(drop))?;
            (0..10).try_for_each(|block| {
                let newest = [3, 4, 6][usize::from(block == 3) + 2 * usize::from(block == 4)];
                same(when, other.read(&rig, block)?, newest).map(drop)
            })
        };
        all("without the second one")?;
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.offer(&[left]);
        rig.open()?;
        // An origin that does not take a flush is not attached; what the cache holds for it stays.
        if other.attach(&rig).is_err() {
            other.failing.disarm();
            other.attach(&rig)?;
        }
        all("after a crash")?;
        other.failing.disarm();
        let volume = Rc::clone(&other.volume.borrow());
        rig.run(async move { volume.destage().await })?.map_err(|error| error.to_string())?;
        assert_eq!(dirty_of(&other.volume.borrow()), 0, "it is home");
        all("at last")?;
        (0..20).try_for_each(|block| rig.settled(block))
    });
}

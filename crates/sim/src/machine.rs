//! The devices of a seed, and copies of what they hold.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use forebay_device::io::Completer;
use forebay_device::model::disk::{DiskSettings, DiskState, SimDisk};
use forebay_device::model::fault::Inner;
use forebay_device::model::world::{Rng, World};
use forebay_device::{BlockDevice, Geometry, Request, Runtime};
use forebay_engine::format::SUPERBLOCK_BYTES;

use crate::content::{SECTOR, fill};
use crate::faults::Armoury;
use crate::oracle::Oracle;
use crate::runner::{Options, STAMP_FIRST, Shared};
use crate::subject::Env;
use crate::swarm::{AimedCrash, Config, Target};

/// Size of the witness file.
const WITNESS_BYTES: u64 = 256 << 10;

/// Everything that outlives a crash, with what is on its way: cheap to copy.
pub(crate) struct Snapshot {
    /// Requests to devices until then.
    pub(crate) ios: u64,
    /// In the order in which a machine makes its disks.
    pub(crate) disks: Vec<DiskState>,
    pub(crate) oracle: Oracle,
}

/// Takes a snapshot at each request that changes a device, while somebody wants them.
#[derive(Default)]
pub(crate) struct Recorder {
    disks: RefCell<Vec<Rc<SimDisk>>>,
    wanted: RefCell<Option<(Weak<Shared>, Vec<Snapshot>)>>,
}

impl Recorder {
    /// Records from now on.
    pub(crate) fn start(&self, shared: &Rc<Shared>) {
        *self.wanted.borrow_mut() = Some((Rc::downgrade(shared), Vec::new()));
    }

    /// Records no more; returns what was recorded.
    pub(crate) fn stop(&self) -> Vec<Snapshot> {
        self.wanted.take().map_or(Vec::new(), |(_, taken)| taken)
    }

    fn take(&self) {
        if let Some((shared, taken)) = &mut *self.wanted.borrow_mut()
            && let Some(shared) = shared.upgrade()
        {
            let disks = self.disks.borrow().iter().map(|disk| disk.state()).collect();
            let oracle = shared.oracle.borrow().clone();
            taken.push(Snapshot { ios: shared.world.io_count(), disks, oracle });
        }
    }
}

/// Tells the oracle what only an origin knows.
#[derive(Default)]
pub(crate) struct Watch(RefCell<Weak<Shared>>);

impl Watch {
    /// Tells from now on.
    pub(crate) fn begin(&self, shared: &Rc<Shared>) {
        *self.0.borrow_mut() = Rc::downgrade(shared);
    }

    fn tell<T>(&self, what: impl FnOnce(&mut Oracle) -> T) -> Option<T> {
        let shared = self.0.borrow().upgrade()?;
        let told = what(&mut shared.oracle.borrow_mut());
        Some(told)
    }
}

/// An origin of which the oracle is told what it is given, and at whose writes a crash may be aimed.
struct Watched {
    inner: Inner,
    volume: usize,
    watch: Rc<Watch>,
    world: Weak<World>,
    aimed: Rc<AimedWatch>,
}

impl BlockDevice for Watched {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        let sectors =
            |offset: u64, len: u64| offset / SECTOR as u64..(offset + len) / SECTOR as u64;
        let given = match &request {
            Request::Write { offset, data, .. } => {
                Some((sectors(*offset, data.len() as u64), Some(&data[..])))
            }
            Request::WriteZeroes { offset, len } | Request::Discard { offset, len } => {
                Some((sectors(*offset, *len), None))
            }
            Request::Read { .. } | Request::Flush => None,
        };
        if let (Some((range, bytes)), Some(world)) = (given, self.world.upgrade()) {
            let is_write = bytes.is_some();
            let direct = self.watch.tell(|oracle| oracle.origin_written(self.volume, range, bytes));
            if is_write {
                self.aimed.note(&world, Target::Origin);
            }
            if is_write && direct == Some(true) {
                self.aimed.note(&world, Target::Direct);
            }
        }
        self.inner.submit(request, completer);
    }
}

/// Where root slot 0 of a member lies.
const ROOT_AT: u64 = 2 * SUPERBLOCK_BYTES as u64;

/// Crashes the world near what is hit rarely by chance, once it is asked to.
#[derive(Default)]
pub(crate) struct AimedWatch {
    due: Cell<Option<AimedCrash>>,
}

impl AimedWatch {
    /// Near what this says, counted from now on.
    pub(crate) fn arm(&self, crash: AimedCrash) {
        self.due.set(Some(crash));
    }

    /// It came to its end before.
    pub(crate) fn disarm(&self) {
        self.due.set(None);
    }

    /// One of these happens.
    pub(crate) fn note(&self, world: &World, target: Target) {
        match self.due.get() {
            Some(due) if due.target == target && due.nth == 1 => {
                self.due.set(None);
                world.crash_at(Some(world.io_count() + 1 + due.ios));
            }
            Some(due) if due.target == target => {
                self.due.set(Some(AimedCrash { nth: due.nth - 1, ..due }));
            }
            _ => {}
        }
    }
}

/// A member at whose roots a crash may be aimed.
struct Rooted {
    inner: Inner,
    world: Weak<World>,
    aimed: Rc<AimedWatch>,
}

impl BlockDevice for Rooted {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        if let (Request::Write { offset: ROOT_AT, .. }, Some(world)) =
            (&request, self.world.upgrade())
        {
            self.aimed.note(&world, Target::Root);
        }
        self.inner.submit(request, completer);
    }
}

/// Tells the recorder of requests that change something ([`SimDisk::would_change`]); they are in flight then.
struct Recording {
    inner: Rc<SimDisk>,
    recorder: Rc<Recorder>,
}

impl BlockDevice for Recording {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        let changes = self.inner.would_change(&request);
        self.inner.submit(request, completer);
        if changes {
            self.recorder.take();
        }
    }
}

/// The devices of a seed.
pub(crate) struct Machine {
    members: Vec<Rc<SimDisk>>,
    origins: Vec<Rc<SimDisk>>,
    witnesses: Vec<Rc<SimDisk>>,
    pub(crate) armoury: Armoury,
    pub(crate) recorder: Rc<Recorder>,
    pub(crate) watch: Rc<Watch>,
    pub(crate) aimed: Rc<AimedWatch>,
    pub(crate) env: Env,
}

impl Machine {
    /// New disks, or disks that go on from `states`.
    pub(crate) fn new(
        world: &Rc<World>,
        config: &Rc<Config>,
        options: &Options,
        rng: &mut Rng,
        states: Option<&[DiskState]>,
    ) -> Self {
        let (recorder, watch) = (Rc::new(Recorder::default()), Rc::new(Watch::default()));
        let disk = |settings: DiskSettings, rng: &mut Rng| {
            let known = states.map(|states| states[recorder.disks.borrow().len()].clone());
            let disk = match known {
                Some(state) => SimDisk::with_state(world, settings, rng.bits(), state),
                None => SimDisk::new(world, settings, rng.bits()),
            };
            recorder.disks.borrow_mut().push(Rc::clone(&disk));
            let recorded = Recording { inner: Rc::clone(&disk), recorder: Rc::clone(&recorder) };
            (disk, Rc::new(recorded) as Inner)
        };
        let (mut armoury, aimed) = (Armoury::default(), Rc::new(AimedWatch::default()));
        let (mut members, mut disks) = (Vec::new(), Vec::new());
        // The spares draw numbers of their own, so that everything else of a seed is as it would be without.
        let mut apart = Rng::new(config.seed ^ 0x57A8);
        let sectors = config.member_sector_bytes.iter().chain(&config.spare_sector_bytes);
        for (index, sector) in sectors.enumerate() {
            let rng = if index < config.members { &mut *rng } else { &mut apart };
            let settings = DiskSettings::ssd(config.member_bytes, *sector);
            let controller = config.controllers[index];
            let durable_writes = config.durable_writes;
            let geometry = Geometry { controller, durable_writes, ..settings.geometry };
            let (disk, recorded) = disk(DiskSettings { geometry, ..settings }, rng);
            disks.push(Rc::clone(&disk));
            let lose = Box::new(move || disk.fail_flush());
            let (weak, aimed) = (Rc::downgrade(world), Rc::clone(&aimed));
            let rooted = Rc::new(Rooted { inner: recorded, world: weak, aimed }) as Inner;
            members.push(armoury.member(world, config, (index, rooted), lose, rng));
        }
        let (mut origins, mut wrapped) = (Vec::new(), Vec::new());
        for (volume, c) in config.volumes.iter().enumerate() {
            let settings = DiskSettings::origin(c.size_bytes, c.origin_sector_bytes, c.discard);
            let geometry = Geometry { stripe: c.stripe, ..settings.geometry };
            let settings = DiskSettings { geometry, write_cache: c.write_cache, ..settings };
            let (disk, recorded) = disk(settings, rng);
            if c.filled && states.is_none() {
                let mut image = vec![0; c.size_bytes as usize];
                fill(STAMP_FIRST, volume, 0, &mut image);
                disk.poke(0, &image);
            }
            let watched = Rc::new(Watched {
                inner: recorded,
                volume,
                watch: Rc::clone(&watch),
                world: Rc::downgrade(world),
                aimed: Rc::clone(&aimed),
            }) as Inner;
            let (lossy, watch) = (Rc::clone(&disk), Rc::clone(&watch));
            let lose = Box::new(move || {
                lossy.fail_flush();
                watch.tell(|oracle| oracle.origin_flush_failed(volume));
            });
            wrapped.push(armoury.origin(world, config, watched, lose, rng));
            origins.push(disk);
        }
        let mut witness = || disk(DiskSettings::ssd(WITNESS_BYTES, 512), rng);
        let (kept, witnesses) = (0..config.hosts).map(|_| witness()).unzip();
        let env = Env {
            runtime: Rc::clone(world) as Rc<dyn Runtime>,
            members,
            missing: Rc::default(),
            origins: wrapped,
            witnesses,
            hosts: Rc::default(),
            config: Rc::clone(config),
            bug: options.bug.clone(),
            trace: options.trace,
        };
        Self { members: disks, origins, witnesses: kept, armoury, recorder, watch, aimed, env }
    }

    /// What the files of all witnesses hold.
    pub(crate) fn witness_files(&self) -> Vec<Vec<u8>> {
        self.witnesses.iter().map(|disk| disk.peek(0, WITNESS_BYTES as usize)).collect()
    }

    /// Puts others in their place, or nothing.
    pub(crate) fn replace_witness_files(&self, files: Option<Vec<Vec<u8>>>) {
        let files = files.unwrap_or(vec![vec![0; WITNESS_BYTES as usize]; self.witnesses.len()]);
        self.witnesses.iter().zip(files).for_each(|(disk, file)| disk.poke(0, &file));
    }

    /// What a cache device holds.
    pub(crate) fn member_image(&self, member: usize) -> Vec<u8> {
        let disk = &self.members[member];
        disk.peek(0, disk.geometry().size_bytes as usize)
    }

    /// Puts another content on a cache device, which may have grown since.
    pub(crate) fn replace_member(&self, member: usize, image: &[u8]) {
        self.members[member].poke(0, image);
    }

    /// Makes a cache device larger, as a file becomes.
    pub(crate) fn enlarge(&self, member: usize, bytes: u64) {
        let disk = &self.members[member];
        disk.grow_file(disk.geometry().size_bytes + bytes);
    }

    /// Compares each origin, as it is, with what its volume should contain.
    pub(crate) fn check_origins(&self, shared: &Shared, when: &str) {
        for volume in 0..self.origins.len() {
            let image = self.origin_image(shared, volume);
            if let Err(violation) = shared.oracle.borrow_mut().check_image(volume, &image) {
                shared.fail(format!("the origin alone, {when}: {violation}"));
            }
        }
    }

    /// What a volume's origin has at this moment.
    pub(crate) fn origin_image(&self, shared: &Shared, volume: usize) -> Vec<u8> {
        self.origins[volume].peek(0, shared.config.volumes[volume].size_bytes as usize)
    }
}

//! A pool in a world, driven step by step.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::io::{Completer, Outcome, pair};
use forebay_device::model::disk::{DiskSettings, SimDisk};
use forebay_device::model::fault::{
    Delaying, Failing, Faults, Flipping, Hanging, LosingWrites, Misdirecting, Stuck, Tearing,
    Vanishing,
};
use forebay_device::model::world::{Crash, World};
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{
    BlockDevice, Buf, Geometry, IoErrorKind, LocalBoxFuture, Nanos, Request, Runtime, Stripe,
};
use forebay_engine::planted::{Bug, plant};
use forebay_engine::{
    CopiesChange, CreateOptions, MemoryWitness, Mode, OpenOptions, Pool, Tuning, Volume,
    VolumeSpec, Witness, open_with,
};
use forebay_sim::content::{Found, fill, identify};
use forebay_sim::jobs::alone;

pub const BLOCK: usize = 4096;
pub const SEGMENT_BYTES: u64 = 64 << 10;
pub const SEGMENTS: u64 = 40;
pub const MEMBER_BYTES: u64 = (1 << 20) + SEGMENTS * SEGMENT_BYTES;

/// Which requests are meant.
type Wanted = fn(&Request) -> bool;

/// Holds back the answers to the requests that it is asked to hold.
pub struct Gate {
    inner: Rc<dyn BlockDevice>,
    world: Rc<World>,
    wanted: Cell<Option<Wanted>>,
    left: Cell<usize>,
    held: RefCell<Vec<(Completer, Outcome)>>,
    failing: Cell<Option<Wanted>>,
    kept_from: Cell<Option<Wanted>>,
    kept: RefCell<Vec<(Request, Completer)>>,
    /// What the device says that it is.
    pub identity: Cell<Option<[u8; 32]>>,
    /// Writes that it was asked for.
    pub writes: Cell<u64>,
    me: std::rc::Weak<Gate>,
}

impl Gate {
    pub fn new(world: &Rc<World>, inner: Rc<dyn BlockDevice>) -> Rc<Gate> {
        Rc::new_cyclic(|me| Gate {
            inner,
            world: Rc::clone(world),
            wanted: Cell::new(None),
            left: Cell::new(0),
            held: RefCell::default(),
            failing: Cell::new(None),
            kept_from: Cell::new(None),
            kept: RefCell::default(),
            identity: Cell::new(None),
            writes: Cell::new(0),
            me: me.clone(),
        })
    }

    /// Holds back the answers to the next `count` of these.
    pub fn hold(&self, count: usize, wanted: fn(&Request) -> bool) {
        self.wanted.set(Some(wanted));
        self.left.set(count);
    }

    /// Fails the next one of these.
    pub fn fail_next(&self, wanted: fn(&Request) -> bool) {
        self.failing.set(Some(wanted));
    }

    /// The device does not get these, and they are not answered, until the process ends.
    pub fn keep_from(&self, wanted: fn(&Request) -> bool) {
        self.kept_from.set(Some(wanted));
    }

    pub fn held(&self) -> usize {
        self.held.borrow().len()
    }

    pub fn release(&self) {
        for (completer, outcome) in self.held.take() {
            completer.complete(outcome.result, outcome.buf);
        }
    }
}

impl Gate {
    /// Drops what is held, without an answer.
    pub fn forget(&self) {
        self.held.take();
        self.kept.take();
    }
}

impl BlockDevice for Gate {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Option<[u8; 32]> {
        self.identity.get()
    }

    fn submit(&self, request: Request, completer: Completer) {
        let is_write = matches!(request, Request::Write { .. });
        self.writes.set(self.writes.get() + u64::from(is_write));
        if self.failing.get().is_some_and(|failing| failing(&request)) {
            self.failing.set(None);
            return request.finish(Err(IoErrorKind::Media.into()), completer);
        }
        if self.kept_from.get().is_some_and(|kept| kept(&request)) {
            return self.kept.borrow_mut().push((request, completer));
        }
        let wanted = self.wanted.get().is_some_and(|wanted| wanted(&request));
        if !wanted || self.left.get() == 0 {
            return self.inner.submit(request, completer);
        }
        self.left.set(self.left.get() - 1);
        let (inner, answer) = pair();
        self.inner.submit(request, inner);
        let Some(me) = self.me.upgrade() else { return };
        self.world.spawn(Box::pin(async move {
            let outcome = answer.await;
            me.held.borrow_mut().push((completer, outcome));
        }));
    }
}

/// How much longer a slow device takes at the most.
pub const SLOWEST: Nanos = 50 * MILLISECOND;

/// What can be broken about a device; the layers lie between its gate and its disk.
pub struct Breakage {
    pub failing: Rc<Faults>,
    /// What ends with errors that say nothing about the medium.
    pub timing_out: Rc<Faults>,
    pub erring: Rc<Faults>,
    pub flipping: Rc<Faults>,
    pub losing: Rc<Faults>,
    pub tearing: Rc<Faults>,
    pub misdirecting: Rc<Faults>,
    /// Whether it is pulled out.
    pub gone: Rc<Cell<bool>>,
    pub hanging: Rc<Faults>,
    /// What takes up to `SLOWEST` longer.
    pub slow: Rc<Faults>,
    /// What it has not answered, and the device that it is kept from.
    pub stuck: Rc<Stuck>,
    behind: Rc<dyn BlockDevice>,
}

impl Breakage {
    /// A flush that fails may lose what it should have covered.
    fn around(world: &Rc<World>, seed: u64, disk: &Rc<SimDisk>) -> (Breakage, Rc<dyn BlockDevice>) {
        let faults = || Faults::new(seed);
        let mut it = Breakage {
            failing: faults(),
            timing_out: faults(),
            erring: faults(),
            flipping: faults(),
            losing: faults(),
            tearing: faults(),
            misdirecting: faults(),
            gone: Rc::default(),
            hanging: faults(),
            slow: faults(),
            stuck: Rc::default(),
            behind: Rc::clone(disk) as _,
        };
        let lossy = Rc::clone(disk);
        it.failing.at_failed_flush(Box::new(move || lossy.fail_flush()));
        let clock = || Rc::clone(world) as Rc<dyn Runtime>;
        let inner = Rc::clone(disk) as Rc<dyn BlockDevice>;
        let inner = Rc::new(LosingWrites { inner, faults: Rc::clone(&it.losing) });
        let (faults, runtime) = (Rc::clone(&it.tearing), clock());
        let inner = Rc::new(Tearing { inner, faults, result: Ok(()), runtime });
        let inner =
            Rc::new(Misdirecting { inner, faults: Rc::clone(&it.misdirecting), landing: None });
        let (faults, runtime) = (Rc::clone(&it.flipping), clock());
        let inner = Rc::new(Flipping { inner, faults, runtime });
        let (faults, error) = (Rc::clone(&it.failing), IoErrorKind::Media);
        let mut inner: Rc<dyn BlockDevice> =
            Rc::new(Failing { inner, faults, error, runtime: clock() });
        for (faults, error) in
            [(&it.timing_out, IoErrorKind::TimedOut), (&it.erring, IoErrorKind::Other)]
        {
            let (faults, runtime) = (Rc::clone(faults), clock());
            inner = Rc::new(Failing { inner, faults, error, runtime });
        }
        let gone = Rc::clone(&it.gone);
        it.behind = Rc::new(Vanishing { inner, gone, runtime: clock() });
        let (inner, faults) = (Rc::clone(&it.behind), Rc::clone(&it.hanging));
        let inner =
            Rc::new(Hanging { inner, faults, stuck: Rc::clone(&it.stuck), runtime: clock() });
        let (faults, runtime) = (Rc::clone(&it.slow), clock());
        let device = Delaying { inner, faults, delay_max: SLOWEST, runtime };
        (it, Rc::new(device))
    }

    /// Answers what has hung so far.
    pub fn answer(&self) {
        self.stuck.release(&self.behind);
    }

    pub fn mend(&self) {
        self.failing.disarm();
        self.timing_out.disarm();
        self.erring.disarm();
        self.flipping.disarm();
        self.losing.disarm();
        self.tearing.disarm();
        self.misdirecting.disarm();
        self.gone.set(false);
        self.hanging.disarm();
        self.slow.disarm();
    }
}

/// A witness that is not written while it refuses.
struct Refusing {
    inner: Rc<MemoryWitness>,
    refuses: Rc<Cell<bool>>,
}

impl Witness for Refusing {
    fn load(&self) -> LocalBoxFuture<'_, Result<Option<Vec<u8>>, String>> {
        self.inner.load()
    }

    fn store(&self, bytes: Vec<u8>) -> LocalBoxFuture<'_, Result<(), String>> {
        if self.refuses.get() {
            return Box::pin(async { Err("read-only".to_owned()) });
        }
        self.inner.store(bytes)
    }
}

/// Everything of it, with one volume; its origin holds version 1 everywhere.
pub struct Rig {
    pub world: Rc<World>,
    pub members: Vec<Rc<SimDisk>>,
    pub gates: Vec<Rc<Gate>>,
    pub broken: Vec<Breakage>,
    pub origin: Rc<SimDisk>,
    pub origin_gate: Rc<Gate>,
    pub origin_broken: Breakage,
    pub witness: RefCell<Rc<MemoryWitness>>,
    /// Whether it cannot be written.
    pub witness_refuses: Rc<Cell<bool>>,
    /// The members that are there at the next start, by number.
    pub offered: RefCell<Vec<usize>>,
    /// Whether the next start accepts what is lost.
    pub accepts: Cell<bool>,
    tuning: RefCell<Tuning>,
    pub pool: RefCell<Option<Rc<Pool>>>,
    pub volume: RefCell<Option<Rc<Volume>>>,
}

/// Nothing happens by itself unless a test wants it.
pub fn lazy() -> Tuning {
    Tuning {
        flush_interval: 1_000 * SECOND,
        flush_bytes: 64 << 20,
        idle_after: 0,
        origin_flush_interval: 1_000 * SECOND,
        origin_flush_bytes: 64 << 20,
        destage_depth: 8,
        destage_in_place_blocks: 32,
        destage_whole_percent: 200,
        destage_stripes_together: 1,
        owed_segments_percent: 60,
        lap_percent: 90,
        destage_when_idle: false,
        sequential_cutoff_bytes: 1 << 20,
        space_segments_min: 1,
        hurt_records_max: 256,
        headers_together: 64,
        index_memory_most: u64::MAX,
        clean_noted_after: 1_000_000 * SECOND,
    }
}

pub struct Plan {
    pub members: usize,
    /// Devices that are no members yet.
    pub spares: usize,
    /// Segments that fit those.
    pub spare_segments: u64,
    pub segment_bytes: u64,
    pub copies: u8,
    pub clean_copies: u8,
    pub mode: Mode,
    pub tuning: Tuning,
    pub origin_bytes: u64,
    pub origin_sector_bytes: u32,
    /// How the origin says that it is an array.
    pub stripe: Option<Stripe>,
    pub write_amplification_max_percent: u16,
    pub ram_bytes: u64,
    pub verify_reads: bool,
    /// Whether write-back with a single copy is agreed to.
    pub agreed: bool,
    pub device_deadline_ms: u32,
    /// What they are behind, one after the other; of more than these nothing is known.
    pub controllers: &'static [u64],
}

impl Default for Plan {
    fn default() -> Self {
        let (mode, origin_bytes) = (Mode::Writeback, 1 << 20);
        Self {
            members: 1,
            spares: 0,
            spare_segments: SEGMENTS,
            segment_bytes: SEGMENT_BYTES,
            copies: 1,
            clean_copies: 1,
            mode,
            tuning: lazy(),
            origin_bytes,
            origin_sector_bytes: 512,
            stripe: None,
            write_amplification_max_percent: 150,
            ram_bytes: 0,
            verify_reads: false,
            agreed: true,
            device_deadline_ms: 0,
            controllers: &[],
        }
    }
}

impl Rig {
    pub fn new(seed: u64, plan: Plan) -> Rc<Rig> {
        let world = World::new(seed);
        let members: Vec<_> = (0..(plan.members + plan.spares) as u64)
            .map(|i| {
                let spare = i >= plan.members as u64;
                let segments = if spare { plan.spare_segments } else { SEGMENTS };
                let bytes = MEMBER_BYTES - SEGMENTS * SEGMENT_BYTES + segments * plan.segment_bytes;
                let settings = DiskSettings::ssd(bytes, 512);
                let controller = plan.controllers.get(i as usize).copied();
                let geometry = Geometry { controller, ..settings.geometry };
                let settings = DiskSettings { geometry, ..settings };
                SimDisk::new(&world, settings, seed ^ i << 32)
            })
            .collect();
        let gate = |disk: &Rc<SimDisk>| {
            let (broken, device) = Breakage::around(&world, seed, disk);
            (broken, Gate::new(&world, device))
        };
        let (broken, gates) = members.iter().map(gate).unzip();
        let settings = DiskSettings::origin(plan.origin_bytes, plan.origin_sector_bytes, true);
        let geometry = Geometry { stripe: plan.stripe, ..settings.geometry };
        let settings = DiskSettings { geometry, ..settings };
        let origin = SimDisk::new(&world, settings, !seed);
        let mut image = vec![0; plan.origin_bytes as usize];
        fill(1, 0, 0, &mut image);
        origin.poke(0, &image);
        let (origin_broken, origin_gate) = gate(&origin);
        let rig = Rc::new(Rig {
            world: Rc::clone(&world),
            members,
            gates,
            broken,
            origin,
            origin_gate,
            origin_broken,
            witness: RefCell::default(),
            witness_refuses: Rc::default(),
            offered: RefCell::new((0..plan.members).collect()),
            accepts: Cell::new(false),
            tuning: RefCell::new(plan.tuning),
            pool: RefCell::default(),
            volume: RefCell::default(),
        });
        let options = CreateOptions {
            dirty_copies: plan.copies,
            clean_copies: plan.clean_copies,
            write_amplification_max_percent: plan.write_amplification_max_percent,
            segment_bytes: Some(plan.segment_bytes as u32),
            ram_bytes: plan.ram_bytes,
            verify_reads: plan.verify_reads,
            device_deadline_ms: plan.device_deadline_ms,
            ..CreateOptions::named("pool")
        };
        let spec = VolumeSpec {
            name: "v".into(),
            origin: "origin".into(),
            mode: plan.mode,
            cache_block_bytes: 4096,
            settings: Default::default(),
            accept_data_loss_on_ssd_failure: plan.agreed,
        };
        let it = Rc::clone(&rig);
        rig.run(async move {
            let (runtime, devices) = (it.runtime(), it.devices());
            let witness = Rc::clone(&it.witness.borrow());
            forebay_engine::create(&*runtime, &devices, &*witness, &options).await.unwrap();
            let pool = it.open_pool().await.unwrap();
            let volume = pool.add_volume(&spec, Rc::clone(&it.origin_gate) as _).await.unwrap();
            *it.pool.borrow_mut() = Some(Rc::new(pool));
            *it.volume.borrow_mut() = Some(Rc::new(volume));
        })
        .unwrap();
        rig
    }

    pub fn runtime(&self) -> Rc<dyn Runtime> {
        Rc::clone(&self.world) as _
    }

    pub fn devices(&self) -> Vec<Rc<dyn BlockDevice>> {
        self.offered.borrow().iter().map(|&i| Rc::clone(&self.gates[i]) as _).collect()
    }

    /// Says which members are there from the next start on.
    pub fn offer(&self, members: &[usize]) {
        *self.offered.borrow_mut() = members.to_vec();
    }

    /// Changes something from the next start on.
    pub fn tune(&self, change: impl FnOnce(&mut Tuning)) {
        change(&mut self.tuning.borrow_mut());
    }

    /// What the witness holds.
    pub fn recall(&self) -> Option<Vec<u8>> {
        let witness = Rc::clone(&self.witness.borrow());
        self.run(async move { witness.load().await }).unwrap().unwrap()
    }

    /// Puts back what the witness held, or an empty one.
    pub fn remember(&self, bytes: Option<Vec<u8>>) {
        *self.witness.borrow_mut() = Rc::default();
        let witness = Rc::clone(&self.witness.borrow());
        if let Some(bytes) = bytes {
            self.run(async move { witness.store(bytes).await }).unwrap().unwrap();
        }
    }

    /// Whether an event since the start says this.
    pub fn was_told(&self, what: &str) -> bool {
        self.pool().events().iter().any(|event| event.what.contains(what))
    }

    /// Asks for so many copies of dirty data; they may take their time.
    pub fn ask_for(&self, dirty: u8) -> Result<(), String> {
        let pool = self.pool();
        let change = CopiesChange { dirty: Some(dirty), ..CopiesChange::default() };
        self.run(async move { pool.set_copies(&change).await })?.map_err(|error| error.to_string())
    }

    /// Waits until so many copies of dirty data are promised.
    pub fn until_promised(&self, dirty: u8) -> Result<(), String> {
        let (pool, world) = (self.pool(), Rc::clone(&self.world));
        self.run(async move {
            while pool.superblock().dirty_copies != dirty {
                let runtime: &dyn Runtime = &*world;
                runtime.sleep(MILLISECOND).await.result.ok();
            }
        })
    }

    /// Opens the pool without its volume.
    pub async fn open_pool(&self) -> Result<Pool, String> {
        let refuses = Rc::clone(&self.witness_refuses);
        let witness = Rc::new(Refusing { inner: Rc::clone(&self.witness.borrow()), refuses });
        let options = OpenOptions { accept_missing: self.accepts.get(), ..OpenOptions::default() };
        let (runtime, tuning) = (self.runtime(), self.tuning.borrow().clone());
        let pool = open_with(runtime, self.devices(), witness, tuning, options);
        pool.await.map_err(|error| format!("{:?}: {error}", error.kind))
    }

    /// Runs until it is done; an error if that cannot be, or at a crash.
    pub fn run<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> Result<T, String> {
        self.world.run_until(work).map_err(|stopped| stopped.to_string())
    }

    pub fn pause(&self, span: Nanos) {
        self.world.run_for(span).unwrap();
    }

    pub fn volume(&self) -> Rc<Volume> {
        Rc::clone(self.volume.borrow().as_ref().unwrap())
    }

    pub fn pool(&self) -> Rc<Pool> {
        Rc::clone(self.pool.borrow().as_ref().unwrap())
    }

    /// Where headers of segments stand on a member.
    pub fn headers(&self, member: usize) -> Vec<u64> {
        let places = (0..MEMBER_BYTES).step_by(SEGMENT_BYTES as usize);
        places.filter(|&at| self.members[member].peek(at, 8) == b"FBYSEGMT").collect()
    }

    /// Ends the process or the power, at once.
    pub fn crash(&self, crash: Crash) {
        *self.volume.borrow_mut() = None;
        *self.pool.borrow_mut() = None;
        self.world.crash(crash);
        self.origin_gate.held.take();
        for gate in &self.gates {
            gate.kept_from.set(None);
            gate.forget();
        }
        self.broken.iter().chain([&self.origin_broken]).for_each(|broken| broken.stuck.forget());
    }

    pub fn open(self: &Rc<Self>) -> Result<(), String> {
        let it = Rc::clone(self);
        self.run(async move {
            let pool = it.open_pool().await?;
            let volume = pool.attach("v", Rc::clone(&it.origin_gate) as _).await;
            *it.pool.borrow_mut() = Some(Rc::new(pool));
            *it.volume.borrow_mut() = Some(Rc::new(volume.map_err(|error| error.to_string())?));
            Ok(())
        })?
    }

    /// Stops the pool in order and ends the process.
    pub fn stop(&self) -> Result<u64, String> {
        let result = self.try_stop();
        self.crash(Crash::ProcessKill);
        result
    }

    /// The same, but what is left goes on.
    pub fn try_stop(&self) -> Result<u64, String> {
        *self.volume.borrow_mut() = None;
        let pool = self.pool.take().unwrap();
        self.run(async move { Rc::into_inner(pool).unwrap().stop().await })?
            .map_err(|error| error.to_string())
    }

    pub fn restart(self: &Rc<Self>, crash: Crash) -> Result<(), String> {
        self.crash(crash);
        self.open()
    }

    /// Starts a write of `version`; the cell tells when it has ended.
    pub fn start_write(&self, version: u64, block: u64, count: usize) -> Rc<Cell<bool>> {
        let mut data = Buf::new(count * BLOCK);
        fill(version, 0, block * 8, &mut data);
        let (volume, done) = (self.volume(), Rc::new(Cell::new(false)));
        let ended = Rc::clone(&done);
        self.world.spawn(Box::pin(async move {
            volume.write(block * BLOCK as u64, data.freeze(), false).await.ok();
            ended.set(true);
        }));
        done
    }

    /// Starts a write of one sector; the cell tells whether it has succeeded.
    pub fn start_write_sector(&self, version: u64, sector: u64) -> Rc<Cell<Option<bool>>> {
        let mut data = Buf::new(512);
        fill(version, 0, sector, &mut data);
        let (volume, outcome) = (self.volume(), Rc::new(Cell::new(None)));
        let ended = Rc::clone(&outcome);
        self.world.spawn(Box::pin(async move {
            ended.set(Some(volume.write(sector * 512, data.freeze(), false).await.is_ok()));
        }));
        outcome
    }

    pub fn write(&self, version: u64, block: u64, count: usize) -> Result<(), String> {
        let mut data = Buf::new(count * BLOCK);
        fill(version, 0, block * 8, &mut data);
        let volume = self.volume();
        self.run(async move { volume.write(block * BLOCK as u64, data.freeze(), false).await })?
            .map_err(|error| error.to_string())
    }

    /// Writes and flushes some blocks: of those in old sets and in images one in two is written again,
    /// the others are only on the origin by now. See [`newest`].
    pub fn rewrite(&self, blocks: u64) -> Result<(), String> {
        for block in 0..blocks {
            self.write(2, block, 1)?;
        }
        self.destage()?;
        for block in (0..blocks).step_by(2) {
            self.write(3, block, 1)?;
        }
        self.flush()
    }

    pub fn start_read(&self, block: u64) {
        let volume = self.volume();
        self.world.spawn(Box::pin(async move {
            volume.read(block * BLOCK as u64, Buf::new(BLOCK)).await.1.ok();
        }));
    }

    /// The version of the block; an error if it has none.
    pub fn read(&self, block: u64) -> Result<u64, String> {
        let volume = self.volume();
        let (buf, result) =
            self.run(async move { volume.read(block * BLOCK as u64, Buf::new(BLOCK)).await })?;
        result.map_err(|error| error.to_string())?;
        version(block, &buf)
    }

    /// The versions of the block's sectors: what goes straight to the origin may be torn between them.
    pub fn sectors(&self, block: u64) -> Result<Vec<u64>, String> {
        let volume = self.volume();
        let (buf, result) =
            self.run(async move { volume.read(block * BLOCK as u64, Buf::new(BLOCK)).await })?;
        result.map_err(|error| error.to_string())?;
        let stamp = |found: &Found| match found {
            Found::Stamp(stamp) => Ok(*stamp),
            _ => Err(format!("block {block} has {found:?}")),
        };
        found(block, &buf).iter().map(stamp).collect()
    }

    pub fn flush(&self) -> Result<(), String> {
        let volume = self.volume();
        self.run(async move { volume.flush().await })?.map_err(|error| error.to_string())
    }

    pub fn destage(&self) -> Result<(), String> {
        let volume = self.volume();
        self.run(async move { volume.destage().await })?.map_err(|error| error.to_string())
    }

    /// Reads a block, brings all to the origin, and compares: nothing that was read may change.
    /// What went straight to the origin may be torn between sectors.
    pub fn settled(&self, block: u64) -> Result<(), String> {
        let volume = self.volume();
        let (read, result) =
            self.run(async move { volume.read(block * BLOCK as u64, Buf::new(BLOCK)).await })?;
        result.map_err(|error| error.to_string())?;
        self.destage()?;
        let origin = self.origin.peek(block * BLOCK as u64, BLOCK);
        let (read, origin) = (found(block, &read), found(block, &origin));
        if read == origin {
            return Ok(());
        }
        Err(format!("block {block} was read as {read:?}, then the origin has {origin:?}"))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.world.crash(Crash::ProcessKill);
    }
}

fn found(block: u64, bytes: &[u8]) -> Vec<Found> {
    let sectors = (block * 8..).zip(bytes.chunks_exact(512));
    sectors.map(|(sector, bytes)| identify(0, sector, bytes)).collect()
}

pub fn version(block: u64, bytes: &[u8]) -> Result<u64, String> {
    let found = found(block, bytes);
    match found[0] {
        Found::Stamp(stamp) if found.iter().all(|other| *other == found[0]) => Ok(stamp),
        _ => Err(format!("block {block} is {found:?}")),
    }
}

/// The version of a block after [`Rig::rewrite`].
pub fn newest(block: u64) -> u64 {
    3 - block % 2
}

pub fn same(what: &str, found: u64, expected: u64) -> Result<u64, String> {
    if found == expected {
        return Ok(found);
    }
    Err(format!("{what}: version {found}, expected {expected}"))
}

/// The hazard is survived under every seed; with the bug it is not under at least one.
pub fn provoke(bug: Bug, seeds: u64, script: fn(u64) -> Result<(), String>) {
    let run = |seed, bug| {
        alone(move || {
            plant(bug);
            script(seed)
        })
        .unwrap_or_else(|panic| Err(format!("panic: {panic}")))
    };
    for seed in 0..seeds {
        assert_eq!(run(seed, None), Ok(()), "seed {seed}, without a bug");
    }
    let caught = (0..seeds).find(|&seed| run(seed, Some(bug)).is_err());
    assert!(caught.is_some(), "{bug:?} was not caught by {seeds} seeds");
}

/// The hazard is survived under every seed; no planted bug is about it.
pub fn survive(seeds: u64, script: fn(u64) -> Result<(), String>) {
    for seed in 0..seeds {
        let result = alone(move || script(seed));
        assert_eq!(result, Ok(Ok(())), "seed {seed}");
    }
}

pub const SOON: Nanos = 100 * MILLISECOND;

/// How a run may end.
pub const KINDS: [Crash; 2] = [Crash::PowerCut, Crash::ProcessKill];

pub fn to_header(request: &Request) -> bool {
    matches!(request, Request::Write { data, .. } if data.starts_with(b"FBYSEGMT"))
}

/// Whether it makes a segment be without a header.
pub fn is_erasure(request: &Request) -> bool {
    let is_first = |offset: u64| offset.is_multiple_of(SEGMENT_BYTES);
    matches!(request, Request::Write { offset, data, .. } if is_first(*offset) && data.iter().all(|&byte| byte == 0))
}

//! A pool on modelled devices in virtual time: an SSD or several, and one array of disks below all volumes.
//!
//! * Nothing is different from the product but the devices and the clock: its tuning, its code.
//! * Volumes are slices of the array's outer edge; each begins with a stripe.
//! * Data is a word to a block ([`ThriftyStore`]), so gibibytes of cache take megabytes.
//! * Code takes no time but the half microsecond of a poll, unless [`Serving::costs`] says what requests
//!   cost a processor.
//! * The same seed gives the same run, to the nanosecond.

pub mod contents;
pub mod cpu;
pub mod load;
mod seen;

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::model::array::{ArrayModel, ArrayParameters};
use forebay_device::model::fault::{Faults, Hanging, Vanishing};
use forebay_device::model::modelled::Modelled;
use forebay_device::model::ssd::{SsdModel, SsdParameters};
use forebay_device::model::thrifty::ThriftyStore;
use forebay_device::model::world::{Crash, Limits, World};
use forebay_device::runtime::SECOND;
use forebay_device::{BlockDevice, Completer, Geometry, Nanos, Request, Runtime, io};
use forebay_engine as engine;
use forebay_engine::{
    CreateOptions, MemoryWitness, Mode, Place, Pool, Tuning, Volume, VolumeSettings, VolumeSpec,
};

pub use self::seen::Seen;

use self::contents::Contents;
use self::cpu::{Costs, Cpu, Work};
use self::load::{Load, Orders, Target};

/// What a call of this module ends with; the error is for a person.
pub type Result<T> = std::result::Result<T, String>;

/// Any number would do; another one gives other figures within a percent or two.
const SEED: u64 = 12;

/// Ends a run that hangs: longer than any row, and soon reached by timers alone.
const VIRTUAL_TIME_MAX: Nanos = 40_000 * SECOND;

/// Least bound of the index, in bytes. Scattered blocks take the most memory: the product's bound, which
/// goes by the size alone, would decide here.
const INDEX_MEMORY_MIN: u64 = 256 << 20;

/// What the sparsest blocks take of it for a GiB of cache.
const INDEX_MEMORY_PER_GIB: u64 = 4608 << 10;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A world without anything in it.
fn empty_world() -> Rc<World> {
    let world = World::in_turn(SEED);
    world.set_limits(Limits { steps: u64::MAX, nanos: VIRTUAL_TIME_MAX });
    world
}

fn array(
    world: &Rc<World>,
    parameters: &ArrayParameters,
    store: Rc<ThriftyStore>,
) -> Rc<dyn BlockDevice> {
    let runtime = Rc::clone(world) as Rc<dyn Runtime>;
    Rc::new(Modelled::new(runtime, store, ArrayModel::new(parameters.clone(), SEED)))
}

/// The array, and how many writes it has had at a time.
struct Counted {
    array: Rc<dyn BlockDevice>,
    runtime: Rc<dyn Runtime>,
    writes: Cell<usize>,
    writes_max: Cell<usize>,
    /// Takes its time before each request, if there is one.
    cpu: Option<Rc<Cpu>>,
}

impl Counted {
    /// Hands a request on when the processor has had time for it.
    fn pass_on(self: &Rc<Self>, work: Option<Work>, request: Request, completer: Completer) {
        let (Some(work), Some(cpu)) = (work, self.cpu.clone()) else {
            return self.array.submit(request, completer);
        };
        let len = request.range().map_or(0, |range| range.end - range.start);
        let whole = Rc::clone(self);
        self.runtime.spawn(Box::pin(async move {
            cpu.spend(work, len).await;
            whole.array.submit(request, completer);
        }));
    }
}

/// A part of it.
struct Slice {
    whole: Rc<Counted>,
    start: u64,
    size_bytes: u64,
}

impl BlockDevice for Slice {
    fn geometry(&self) -> Geometry {
        let whole = self.whole.array.geometry();
        // Stripes begin at multiples of their length, here as there.
        let stripe = whole.stripe.filter(|stripe| self.start.is_multiple_of(stripe.bytes));
        Geometry { size_bytes: self.size_bytes, stripe, ..whole }
    }

    fn submit(&self, mut request: Request, completer: Completer) {
        if let Err(error) = request.check(&self.geometry()) {
            return request.finish(Err(error), completer);
        }
        let work = match &mut request {
            Request::Read { offset, .. } => {
                *offset += self.start;
                Some(Work::Miss)
            }
            Request::Discard { offset, .. } => {
                *offset += self.start;
                None
            }
            Request::Write { offset, .. } | Request::WriteZeroes { offset, .. } => {
                *offset += self.start;
                Some(Work::Destage)
            }
            Request::Flush => None,
        };
        if work != Some(Work::Destage) {
            return self.whole.pass_on(work, request, completer);
        }
        let whole = Rc::clone(&self.whole);
        let count = whole.writes.get() + 1;
        whole.writes.set(count);
        whole.writes_max.set(whole.writes_max.get().max(count));
        let (inner, end) = io::pair();
        self.whole.pass_on(work, request, inner);
        self.whole.runtime.spawn(Box::pin(async move {
            let outcome = end.await;
            whole.writes.set(whole.writes.get() - 1);
            completer.complete(outcome.result, outcome.buf);
        }));
    }
}

/// What a scene is made of.
pub struct Setting<'a> {
    /// The disks below the volumes.
    pub disks: &'a ArrayParameters,
    /// Bytes of a cache device.
    pub pool_bytes: u64,
    /// Bytes of the tier in RAM.
    pub ram_bytes: u64,
    /// Bytes of each volume.
    pub volumes: &'a [u64],
    /// The cache devices.
    pub ssds: Ssds,
    /// How volumes are served.
    pub serving: Serving,
}

/// The cache devices.
#[derive(Clone, Debug)]
pub struct Ssds {
    /// Members, of `pool_bytes` each.
    pub count: usize,
    /// The model of each.
    pub drive: SsdParameters,
    /// Copies of dirty data.
    pub dirty_copies: u8,
    /// Copies of clean data.
    pub clean_copies: u8,
    /// 0 is the usual one.
    pub device_deadline_ms: u32,
    /// In percent.
    pub write_amplification_max_percent: u16,
}

impl Default for Ssds {
    /// One SATA drive for data centres (480 MB/s of writes, 97K/s of reads), with the only copy. A faster
    /// one would only make loads longer where it is asked what happens beside the disks.
    fn default() -> Self {
        Self {
            count: 1,
            drive: SsdParameters::sata_data_centre(),
            dirty_copies: 1,
            clean_copies: 1,
            device_deadline_ms: 0,
            write_amplification_max_percent: 150,
        }
    }
}

/// How volumes are served.
#[derive(Clone, Debug)]
pub struct Serving {
    /// What is cached.
    pub mode: Mode,
    /// Bytes that a miss brings in.
    pub cache_block_bytes: u32,
    /// What may be changed of each volume.
    pub settings: VolumeSettings,
    /// What requests cost a processor; `None`: nothing.
    pub costs: Option<Costs>,
}

impl Default for Serving {
    /// The product's defaults, and code that costs nothing.
    fn default() -> Self {
        let settings = VolumeSettings::default();
        Self { mode: Mode::Writeback, cache_block_bytes: 64 << 10, settings, costs: None }
    }
}

/// What can be done to a cache device.
pub struct Breakage {
    /// Set while it is pulled out.
    pub gone: Rc<Cell<bool>>,
    /// Makes its requests hang.
    pub hanging: Rc<Faults>,
}

/// A cache device; one of several can be broken.
fn ssd(
    world: &Rc<World>,
    drive: &SsdParameters,
    bytes: u64,
    alone: bool,
) -> (Rc<dyn BlockDevice>, Breakage) {
    let runtime = || Rc::clone(world) as Rc<dyn Runtime>;
    let store = Rc::new(ThriftyStore::new(bytes, 4096));
    let drive = SsdModel::new(drive.clone(), SEED);
    let drive: Rc<dyn BlockDevice> = Rc::new(Modelled::new(runtime(), store, drive));
    let broken = Breakage { gone: Rc::default(), hanging: Faults::new(SEED) };
    if alone {
        return (drive, broken);
    }
    let (gone, faults) = (Rc::clone(&broken.gone), Rc::clone(&broken.hanging));
    let inner = Rc::new(Vanishing { inner: drive, gone, runtime: runtime() });
    (Rc::new(Hanging { inner, faults, stuck: Rc::default(), runtime: runtime() }), broken)
}

/// See the head of the file.
pub struct Scene {
    world: Rc<World>,
    /// The pool.
    pub pool: Rc<Pool>,
    /// Its volumes, in the order of their sizes in the setting.
    pub volumes: Vec<Rc<Volume>>,
    cpu: Option<Rc<Cpu>>,
    /// Bytes of all cache devices.
    pub ssds_bytes: u64,
    /// Of each cache device; of one alone nothing comes.
    pub broken: Vec<Breakage>,
    origin: Rc<Counted>,
    origin_store: Rc<ThriftyStore>,
}

impl Scene {
    /// A new pool; nothing is cached.
    ///
    /// # Errors
    /// If the engine refuses the setting.
    pub fn new(setting: &Setting) -> Result<Self> {
        let world = empty_world();
        let runtime = Rc::clone(&world) as Rc<dyn Runtime>;
        let ssds = setting.ssds.clone();
        let made =
            (0..ssds.count).map(|_| ssd(&world, &ssds.drive, setting.pool_bytes, ssds.count == 1));
        let (devices, broken): (Vec<_>, _) = made.unzip();
        // Volumes begin where stripes do, as an administrator would have it.
        let stripe_bytes = setting.disks.stripe_bytes();
        let room = |size_bytes: &u64| size_bytes.next_multiple_of(stripe_bytes);
        let origin_bytes = setting.volumes.iter().map(room).sum();
        let origin_store = Rc::new(ThriftyStore::new(origin_bytes, 512));
        let costs = setting.serving.costs.clone();
        let cpu = costs.map(|costs| Rc::new(Cpu::new(Rc::clone(&runtime), costs)));
        let origin = Rc::new(Counted {
            cpu: cpu.clone(),
            array: array(&world, setting.disks, Rc::clone(&origin_store)),
            runtime: Rc::clone(&runtime),
            writes: Cell::new(0),
            writes_max: Cell::new(0),
        });
        let (sizes, ram_bytes) = (setting.volumes.to_vec(), setting.ram_bytes);
        let gib = (setting.pool_bytes * ssds.count as u64).div_ceil(1 << 30);
        let index_memory_max = INDEX_MEMORY_MIN.max(gib * INDEX_MEMORY_PER_GIB);
        let serving = setting.serving.clone();
        let below = Rc::clone(&origin);
        let (pool, volumes) = run(&world, async move {
            let witness = Rc::new(MemoryWitness::default());
            let options = CreateOptions {
                index_memory_max: Some(index_memory_max),
                ram_bytes,
                dirty_copies: ssds.dirty_copies,
                clean_copies: ssds.clean_copies,
                device_deadline_ms: ssds.device_deadline_ms,
                write_amplification_max_percent: ssds.write_amplification_max_percent,
                ..CreateOptions::named("bench")
            };
            engine::create(&*runtime, &devices, &*witness, &options).await.map_err(text)?;
            let pool = engine::open(runtime, devices, witness, Tuning::default()).await;
            let pool = pool.map_err(text)?;
            let (mut volumes, mut start) = (Vec::new(), 0);
            for (number, size_bytes) in sizes.into_iter().enumerate() {
                let slice = Slice { whole: Rc::clone(&below), start, size_bytes };
                start += size_bytes.next_multiple_of(stripe_bytes);
                let spec = VolumeSpec {
                    name: format!("volume-{number}"),
                    origin: "modelled".into(),
                    mode: serving.mode,
                    cache_block_bytes: serving.cache_block_bytes,
                    settings: serving.settings,
                    accept_data_loss_on_ssd_failure: true,
                };
                let volume = pool.add_volume(&spec, Rc::new(slice)).await.map_err(text)?;
                volumes.push(Rc::new(volume));
            }
            Ok((Rc::new(pool), volumes))
        })?;
        if let Some(cpu) = &cpu {
            cpu.watch(&pool);
        }
        let ssds_bytes = setting.pool_bytes * setting.ssds.count as u64;
        Ok(Self { world, pool, volumes, cpu, ssds_bytes, broken, origin, origin_store })
    }

    /// The clock and the rest of it.
    pub fn runtime(&self) -> Rc<dyn Runtime> {
        Rc::clone(&self.world) as Rc<dyn Runtime>
    }

    /// Virtual time.
    pub fn now(&self) -> Nanos {
        self.world.now()
    }

    /// Lets virtual time pass until `work` is done.
    ///
    /// # Errors
    /// The engine's, and a run that cannot come to its end.
    pub fn run<T: 'static>(&self, work: impl Future<Output = Result<T>> + 'static) -> Result<T> {
        run(&self.world, work)
    }

    /// Lets virtual time pass.
    ///
    /// # Errors
    /// The engine's, and a run that cannot come to its end.
    pub fn pass(&self, span: Nanos) -> Result<()> {
        self.world.run_for(span).map_err(text)
    }

    /// Starts a load on a volume, as fast as it goes.
    pub fn load(&self, volume: usize, clients: usize, orders: Orders) -> Load {
        self.paced(volume, clients, 0, orders)
    }

    /// The same with a request every `pace` nanoseconds at the most.
    pub fn paced(&self, volume: usize, clients: usize, pace: Nanos, orders: Orders) -> Load {
        Load::paced(&self.runtime(), self.target(volume), clients, pace, orders)
    }

    /// The same, checked for what may be read of `contents`, which is the volume's.
    pub fn checked(
        &self,
        volume: usize,
        clients: usize,
        pace: Nanos,
        orders: Orders,
        contents: &Rc<Contents>,
    ) -> Load {
        let contents = Some(Rc::clone(contents));
        Load::checked(&self.runtime(), self.target(volume), clients, pace, orders, contents)
    }

    /// The same, as fast as it goes, and its requests take no time of the processor: for what is in no figure.
    pub fn uncharged(
        &self,
        volume: usize,
        clients: usize,
        orders: Orders,
        contents: &Rc<Contents>,
    ) -> Load {
        let target = Target::Volume(Rc::clone(&self.volumes[volume]));
        let contents = Some(Rc::clone(contents));
        Load::checked(&self.runtime(), target, clients, 0, orders, contents)
    }

    fn target(&self, volume: usize) -> Target {
        let volume = Rc::clone(&self.volumes[volume]);
        match &self.cpu {
            Some(cpu) => Target::Charged(volume, Rc::clone(cpu)),
            None => Target::Volume(volume),
        }
    }

    /// Plays a load on a volume to its end.
    ///
    /// # Errors
    /// The engine's, and a run that cannot come to its end.
    pub fn play(&self, volume: usize, clients: usize, orders: Orders) -> Result<Seen> {
        let load = self.load(volume, clients, orders);
        self.run(load.end())
    }

    /// Changes what may be changed of a volume at any time.
    ///
    /// # Errors
    /// The engine's, and a run that cannot come to its end.
    pub fn set(&self, volume: usize, settings: VolumeSettings) -> Result<()> {
        let volume = Rc::clone(&self.volumes[volume]);
        self.run(async move { volume.set(settings).await.map_err(text) })
    }

    /// Brings everything of a volume to the origin; returns how long that took.
    ///
    /// # Errors
    /// The engine's, and a run that cannot come to its end.
    pub fn destage(&self, volume: usize) -> Result<Nanos> {
        let (volume, before) = (Rc::clone(&self.volumes[volume]), self.now());
        self.run(async move { volume.destage().await.map_err(text) })?;
        Ok(self.now() - before)
    }

    /// Most writes that the origin had at a time.
    pub fn origin_writes_max(&self) -> usize {
        self.origin.writes_max.get()
    }

    /// The word that a block of the origin (of its first volume) repeats.
    pub fn origin_word(&self, block: u64) -> Option<u64> {
        self.origin_store.word(block)
    }

    /// Bytes that the origin may lack: offset and length, ascending.
    ///
    /// # Errors
    /// The engine's, and a run that cannot come to its end.
    pub fn dirty(&self, volume: usize) -> Result<Vec<(u64, u64)>> {
        let volume = &self.volumes[volume];
        let (mut dirty, mut answer, mut at) = (Vec::new(), Vec::new(), 0);
        while at < volume.size_bytes() {
            volume.status(at, volume.size_bytes() - at, &mut answer).map_err(text)?;
            for extent in &answer {
                if extent.place == Place::Dirty {
                    dirty.push((at, extent.len));
                }
                at += extent.len;
            }
        }
        Ok(dirty)
    }

    /// Blocks that the origin lacks.
    pub fn owed_blocks(&self) -> u64 {
        self.pool.blocks().1
    }

    /// Time that the processor has been busy with requests, if they cost any.
    pub fn cpu_spent(&self) -> Nanos {
        self.cpu.as_ref().map_or(0, |cpu| cpu.spent())
    }

    /// Bytes written to the cache devices.
    pub fn ssd_bytes(&self) -> u64 {
        let list = self.pool.counters().list();
        list.iter().filter(|(name, _)| name.starts_with("ssd_")).map(|(_, value)| value).sum()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // While the engine panics its tasks are borrowed; what is left of a run that failed is leaked.
        if std::thread::panicking() {
            return;
        }
        // Its tasks hold the world, which holds them.
        self.world.crash(Crash::ProcessKill);
    }
}

fn run<T: 'static>(
    world: &Rc<World>,
    work: impl Future<Output = Result<T>> + 'static,
) -> Result<T> {
    world.run_until(work).map_err(text)?
}

/// A fresh array alone, without a cache: what the engine is compared with. Plays a load at this
/// depth and then flushes; returns what it took.
///
/// # Errors
/// The array's.
pub fn array_alone(
    disks: &ArrayParameters,
    size_bytes: u64,
    depth: usize,
    orders: Orders,
) -> Result<Nanos> {
    let world = empty_world();
    let target = Target::Device(array(&world, disks, Rc::new(ThriftyStore::new(size_bytes, 512))));
    let runtime = Rc::clone(&world) as Rc<dyn Runtime>;
    let load = Load::start(&runtime, target.clone(), depth, orders);
    let result = run(&world, async move {
        load.end().await?;
        target.flush().await
    });
    let took = world.now();
    world.crash(Crash::ProcessKill);
    result.map(|()| took)
}

#[cfg(test)]
mod tests {
    use super::load::{BLOCK, Kind, Order, scattered, word, writes};
    use super::*;
    use forebay_device::model::array::Level;
    use forebay_device::model::hdd::HddParameters;

    fn disks() -> ArrayParameters {
        let member = HddParameters::st6000ne0023().without_write_cache();
        ArrayParameters { level: Level::Raid5, disks: 12, chunk_bytes: 64 << 10, member }
    }

    #[derive(Debug, PartialEq)]
    struct Ran {
        took: Nanos,
        reads: Seen,
        dirty: Vec<(u64, u64)>,
        words: Vec<Option<u64>>,
    }

    /// Writes blocks at random and destages them, one part of the volume being read meanwhile.
    fn run() -> Ran {
        let (disks, size) = (disks(), 256 << 20);
        let setting = Setting {
            disks: &disks,
            pool_bytes: 512 << 20,
            ram_bytes: 0,
            volumes: &[size],
            ssds: Default::default(),
            serving: Default::default(),
        };
        let scene = Scene::new(&setting).unwrap();
        let blocks = Rc::new(scattered(500, (size / BLOCK / 2) as u32, 1));
        scene.play(0, 8, writes(Rc::clone(&blocks))).unwrap();
        let mut dirty = scene.dirty(0).unwrap();
        dirty.truncate(3);
        let mut at = size / 2;
        let reads = Box::new(move || {
            at += BLOCK;
            Some(Order { kind: Kind::ReadBlank, offset: at, len: BLOCK })
        });
        let load = scene.load(0, 2, reads);
        let took = scene.destage(0).unwrap();
        let reads = scene.run(load.stop()).unwrap();
        assert_eq!(scene.owed_blocks(), 0);
        let words = blocks.iter().map(|&block| scene.origin_word(block.into())).collect();
        Ran { took, reads, dirty, words }
    }

    #[test]
    fn a_run_repeats_to_the_nanosecond_and_brings_every_block_to_the_origin() {
        let (once, again) = (run(), run());
        assert_eq!(once, again);
        let blocks = scattered(500, 1 << 15, 1);
        assert!(
            blocks
                .iter()
                .zip(&once.words)
                .all(|(&block, &found)| found == Some(word(block.into())))
        );
        let first = u64::from(*blocks.iter().min().unwrap()) * BLOCK;
        assert_eq!(once.dirty[0].0, first);
    }

    #[test]
    fn a_slice_begins_with_the_first_stripe_behind_the_last_one() {
        let disks = disks();
        let setting = Setting {
            disks: &disks,
            pool_bytes: 512 << 20,
            ram_bytes: 0,
            volumes: &[1 << 20, 2 << 20],
            ssds: Default::default(),
            serving: Default::default(),
        };
        let scene = Scene::new(&setting).unwrap();
        let one = |offset| Order { kind: Kind::Write, offset, len: BLOCK };
        let mut orders = vec![one(8 * BLOCK)].into_iter();
        scene.play(1, 1, Box::new(move || orders.next())).unwrap();
        scene.destage(1).unwrap();
        let start = (1_u64 << 20).next_multiple_of(disks.stripe_bytes()) / BLOCK;
        assert!(start > (1 << 20) / BLOCK, "the first one ends within a stripe");
        assert_eq!(scene.origin_word(start + 8), Some(word(8)));
        assert_eq!(scene.origin_word(8), Some(0));
        assert!(scene.origin_writes_max() == 1);
    }

    #[test]
    fn the_array_alone_takes_longer_with_one_write_at_a_time() {
        let blocks = Rc::new(scattered(300, 1 << 15, 1));
        let took = |depth| array_alone(&disks(), 128 << 20, depth, writes(Rc::clone(&blocks)));
        let (one, many) = (took(1).unwrap(), took(64).unwrap());
        assert!(many * 4 < one, "{many} ns at depth 64, {one} at depth 1");
    }
}

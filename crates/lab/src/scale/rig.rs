//! One pool of a certain size in virtual time, which can be stopped, killed and started again.
//!
//! * All data is zeroes, which a [`ThriftyStore`] does not keep: memory goes into what the engine itself
//!   writes, and into the index.
//! * The SSD reads 1 GB/s, the rate for which starts are specified. Origins answer at once.
//! * Volumes are twice as long as what is brought in, so that there is always something to miss.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use forebay_device::model::modelled::Modelled;
use forebay_device::model::ssd::{SsdModel, SsdParameters};
use forebay_device::model::thrifty::ThriftyStore;
use forebay_device::model::world::{Crash, Limits, Rng, World};
use forebay_device::runtime::MILLISECOND;
use forebay_device::{BlockDevice, Buf, Completer, Geometry, Io, Nanos, Request, Runtime, io};
use forebay_engine as engine;
use forebay_engine::limits::STRIPE_BYTES;
use forebay_engine::{
    CreateOptions, MemoryWitness, Mode, Pool, RecoveryReport, Tuning, Volume, VolumeSettings,
    VolumeSpec,
};

use super::{Content, Point, SMALL_SEGMENT_BYTES};
use crate::scene::Result;
use crate::scene::load::BLOCK;

/// Any number would do.
const SEED: u64 = 7;

/// Requests at a time: a busy queue.
const CLIENTS: usize = 32;

/// Blocks that are brought in before the log is waited for (16 MiB).
const BATCH_BLOCKS: u64 = 4096;

/// Milliseconds that it is waited for at the most: in a full cache something goes for what comes.
const WAITS_MAX: u32 = 32;

/// Blocks from one single block to the next: regions are half full, and no two blocks are neighbours.
const STEP_BLOCKS: u64 = 2;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// What is asked for, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Reads of cached blocks.
    Hit,
    /// Reads of as much of the same SSD, without an engine.
    Device,
    /// Writes of cached blocks.
    Write,
    /// Reads of what was never asked for.
    Miss,
}

/// Requests one after the other: number of the volume, number of the block.
type Orders = Rc<RefCell<dyn FnMut() -> Option<(usize, u64)>>>;

fn orders(orders: impl FnMut() -> Option<(usize, u64)> + 'static) -> Orders {
    Rc::new(RefCell::new(orders))
}

/// See the head of the file.
pub(super) struct Rig {
    world: Rc<World>,
    store: Rc<ThriftyStore>,
    drive: SsdParameters,
    member: Rc<Metered>,
    witness: Rc<MemoryWitness>,
    origins: Vec<Rc<ThriftyStore>>,
    pool: Option<Pool>,
    volumes: Vec<Rc<Volume>>,
    content: Content,
    /// Blocks of each volume that were asked to be brought in so far.
    cached: Cell<u64>,
    /// Blocks of a volume from which on nothing is ever brought in but by [`Ask::Miss`]; as many follow.
    blank: u64,
    rng: RefCell<Rng>,
}

fn name(number: usize) -> String {
    format!("volume-{number}")
}

/// A volume's block of this number among those that are brought in, one after the other.
fn place(content: Content, number: u64) -> u64 {
    match content {
        Content::Sequential => number,
        Content::Scattered => number * STEP_BLOCKS,
    }
}

/// The numbers below `count`, each once, in an order that nothing could follow.
fn shuffled(count: u64) -> impl FnMut() -> Option<u64> {
    // Within the next power of two an odd factor and a term visit all; what is beyond is left out.
    let mask = count.next_power_of_two() - 1;
    let (mut turn, mut at) = (0, 0_u64);
    move || {
        while turn <= mask {
            turn += 1;
            at = at.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f) & mask;
            if at < count {
                return Some(at);
            }
        }
        None
    }
}

async fn carry_out(ask: Ask, volume: &Volume, device: &dyn BlockDevice, block: u64) -> Result<()> {
    match ask {
        Ask::Hit | Ask::Miss => {
            let (_, result) = volume.read(block * BLOCK, Buf::new(BLOCK as usize)).await;
            result.map_err(text)
        }
        Ask::Write => {
            let data = Buf::zeroed(BLOCK as usize).freeze();
            volume.write(block * BLOCK, data, false).await.map_err(text)
        }
        Ask::Device => {
            let outcome = device.read(block * BLOCK, Buf::new(BLOCK as usize)).await;
            outcome.result.map_err(text)
        }
    }
}

fn tuning() -> Tuning {
    Tuning { destage_when_idle: false, ..Tuning::default() }
}

impl Rig {
    /// A new pool without anything in it.
    pub(super) fn new(point: &Point) -> Result<Self> {
        let world = World::in_turn(SEED);
        world.set_limits(Limits { steps: u64::MAX, nanos: Nanos::MAX });
        let drive = SsdParameters {
            name: "1 GB/s",
            size_bytes: point.pool_bytes,
            read_bytes_per_s: 1_000_000_000,
            ..SsdParameters::nvme_data_centre()
        };
        let store = Rc::new(ThriftyStore::new(point.pool_bytes, 4096));
        let member = plug(&world, &store, &drive);
        let blocks = (point.pool_bytes / BLOCK * 2).div_ceil(point.volumes as u64);
        let blank = place(point.content, blocks).next_multiple_of(STRIPE_BYTES / BLOCK);
        let origin = || Rc::new(ThriftyStore::new(2 * blank * BLOCK, 512));
        let origins: Vec<_> = (0..point.volumes).map(|_| origin()).collect();
        let witness = Rc::new(MemoryWitness::default());
        let options = CreateOptions {
            segment_bytes: point.segment_bytes,
            index_memory_max: Some(point.index_memory_max),
            ..CreateOptions::named("scale")
        };
        let mut rig = Self {
            world,
            store,
            drive,
            member,
            witness,
            origins,
            pool: None,
            volumes: Vec::new(),
            content: point.content,
            cached: Cell::new(0),
            blank,
            rng: RefCell::new(Rng::new(SEED)),
        };
        rig.create(options)?;
        Ok(rig)
    }

    fn create(&mut self, options: CreateOptions) -> Result<()> {
        let (runtime, devices) =
            (self.runtime(), vec![Rc::clone(&self.member) as Rc<dyn BlockDevice>]);
        let (witness, origins) = (Rc::clone(&self.witness), self.origins.clone());
        let (pool, volumes) = self.run(async move {
            engine::create(&*runtime, &devices, &*witness, &options).await.map_err(text)?;
            let pool = engine::open(runtime, devices, witness, tuning()).await.map_err(text)?;
            let mut volumes = Vec::new();
            for (number, origin) in origins.into_iter().enumerate() {
                let spec = VolumeSpec {
                    name: name(number),
                    origin: "modelled".into(),
                    mode: Mode::Writeback,
                    cache_block_bytes: BLOCK as u32,
                    settings: VolumeSettings::default(),
                    accept_data_loss_on_ssd_failure: true,
                };
                volumes.push(Rc::new(pool.add_volume(&spec, origin).await.map_err(text)?));
            }
            Ok((pool, volumes))
        })?;
        (self.pool, self.volumes) = (Some(pool), volumes);
        Ok(())
    }

    fn runtime(&self) -> Rc<dyn Runtime> {
        Rc::clone(&self.world) as Rc<dyn Runtime>
    }

    fn run<T: 'static>(&self, work: impl Future<Output = Result<T>> + 'static) -> Result<T> {
        self.world.run_until(work).map_err(text)?
    }

    pub(super) fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("it is open but within stop and open")
    }

    pub(super) fn now(&self) -> Nanos {
        self.world.now()
    }

    /// Lets virtual time pass in which nobody asks for anything.
    pub(super) fn rest(&self, span: Nanos) -> Result<()> {
        self.world.run_for(span).map_err(text)
    }

    /// Small segments that were opened since the last start.
    pub(super) fn opened(&self) -> u64 {
        self.member.opened.get()
    }

    /// Brings in what was not asked for yet until that makes so many blocks, of all volumes together.
    pub(super) fn fill(&self, blocks: u64) -> Result<()> {
        let count = self.volumes.len() as u64;
        let upto = (blocks / count).max(self.cached.get());
        let from = self.cached.replace(upto);
        if self.content == Content::Sequential {
            return self.prefetch(from, upto);
        }
        let numbers = Rc::new(RefCell::new(shuffled((upto - from) * count)));
        for start in (0..(upto - from) * count).step_by(BATCH_BLOCKS as usize) {
            let numbers = Rc::clone(&numbers);
            let mut left = BATCH_BLOCKS.min((upto - from) * count - start);
            let awaited = left;
            let order = move || {
                left = left.checked_sub(1)?;
                let number = (numbers.borrow_mut())()?;
                let block = place(Content::Scattered, from + number / count);
                Some(((number % count) as usize, block))
            };
            self.bring_in(awaited, |rig| rig.play(Ask::Miss, orders(order)))?;
        }
        Ok(())
    }

    /// One volume after the other, so that extents are as long as they can be.
    fn prefetch(&self, from: u64, upto: u64) -> Result<()> {
        for volume in &self.volumes {
            for at in (from..upto).step_by(BATCH_BLOCKS as usize) {
                let (volume, count) = (Rc::clone(volume), BATCH_BLOCKS.min(upto - at));
                let work =
                    async move { volume.prefetch(at * BLOCK, count * BLOCK).await.map_err(text) };
                self.bring_in(count, |rig| rig.run(work))?;
            }
        }
        Ok(())
    }

    /// Origins answer at once, so the log is waited for: what comes while too much is under way is dropped.
    fn bring_in(&self, blocks: u64, work: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let before = self.pool().blocks().0;
        work(self)?;
        let mut waits = 0..WAITS_MAX;
        while self.pool().blocks().0 < before + blocks && waits.next().is_some() {
            self.rest(MILLISECOND)?;
        }
        Ok(())
    }

    /// Blocks of the device that hold what is cached, as hits read no others: a pool fills them from its first segment on.
    fn filled(&self) -> Range<u64> {
        let (superblock, (free, total)) = (self.pool().superblock(), self.pool().segments());
        let segment_blocks = u64::from(superblock.segment_bytes) / BLOCK;
        let first = superblock.segments_offset / BLOCK;
        first..first + (total - free).max(1) as u64 * segment_blocks
    }

    /// Asks so often, at random.
    pub(super) fn ask(&self, ask: Ask, count: u64) -> Result<()> {
        let mut rng = self.rng.borrow_mut().fork();
        let (volumes, cached, blank) = (self.volumes.len() as u64, self.cached.get(), self.blank);
        let (content, filled) = (self.content, self.filled());
        let mut left = count;
        let order = move || {
            left = left.checked_sub(1)?;
            let block = match ask {
                Ask::Device => filled.start + rng.below(filled.end - filled.start),
                Ask::Miss => blank + rng.below(blank),
                Ask::Hit | Ask::Write => place(content, rng.below(cached)),
            };
            Some((rng.below(volumes) as usize, block))
        };
        self.play(ask, orders(order))
    }

    /// Clients in a closed loop.
    fn play(&self, ask: Ask, orders: Orders) -> Result<()> {
        let failed: Rc<RefCell<Option<String>>> = Rc::default();
        let client = |_| {
            let (orders, failed) = (Rc::clone(&orders), Rc::clone(&failed));
            let (volumes, member) = (self.volumes.clone(), Rc::clone(&self.member));
            let (completer, end) = io::pair();
            self.world.spawn(Box::pin(async move {
                loop {
                    let next = (orders.borrow_mut())();
                    let Some((volume, block)) = next else { break };
                    if let Err(error) = carry_out(ask, &volumes[volume], &*member, block).await {
                        *failed.borrow_mut() = Some(error);
                        break;
                    }
                }
                completer.done(Ok(()));
            }));
            end
        };
        let ends: Vec<Io> = (0..CLIENTS).map(client).collect();
        self.run(async move {
            for end in ends {
                let _ = end.await;
            }
            failed.borrow_mut().take().map_or(Ok(()), Err)
        })
    }

    /// Brings everything to the origins; the blocks that were brought there.
    pub(super) fn destage(&self) -> Result<u64> {
        let before = self.pool().counters().destage_bytes.get();
        for volume in &self.volumes {
            let volume = Rc::clone(volume);
            self.run(async move { volume.destage().await.map_err(text) })?;
        }
        Ok((self.pool().counters().destage_bytes.get() - before) / BLOCK)
    }

    /// Stops it cleanly; bytes that it wrote for that.
    pub(super) fn stop(&mut self) -> Result<u64> {
        self.volumes.clear();
        let pool = self.pool.take().ok_or("it is not open")?;
        let before = self.member.written.get();
        self.run(async move { pool.stop().await.map(drop).map_err(text) })?;
        Ok(self.member.written.get() - before)
    }

    /// Ends it as kill -9 does.
    pub(super) fn kill(&mut self) {
        self.volumes.clear();
        self.world.crash(Crash::ProcessKill);
        self.pool = None;
    }

    /// Starts it again.
    pub(super) fn open(&mut self) -> Result<RecoveryReport> {
        self.member = plug(&self.world, &self.store, &self.drive);
        let (runtime, devices) =
            (self.runtime(), vec![Rc::clone(&self.member) as Rc<dyn BlockDevice>]);
        let (witness, origins) = (Rc::clone(&self.witness), self.origins.clone());
        let (pool, volumes) = self.run(async move {
            let pool = engine::open(runtime, devices, witness, tuning()).await.map_err(text)?;
            let mut volumes = Vec::new();
            for (number, origin) in origins.into_iter().enumerate() {
                volumes.push(Rc::new(pool.attach(&name(number), origin).await.map_err(text)?));
            }
            Ok((pool, volumes))
        })?;
        let report = pool.recovery().clone();
        (self.pool, self.volumes) = (Some(pool), volumes);
        Ok(report)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Its tasks hold the world, which holds them.
        self.world.crash(Crash::ProcessKill);
    }
}

/// The store's SSD, as after its power came on.
fn plug(world: &Rc<World>, store: &Rc<ThriftyStore>, drive: &SsdParameters) -> Rc<Metered> {
    let runtime = Rc::clone(world) as Rc<dyn Runtime>;
    let store = Rc::clone(store) as Rc<dyn BlockDevice>;
    let inner = Modelled::new(runtime, store, SsdModel::new(drive.clone(), SEED));
    Rc::new(Metered { inner, written: Cell::new(0), opened: Cell::new(0) })
}

/// An SSD, and what it was given.
struct Metered {
    inner: Modelled<SsdModel>,
    written: Cell<u64>,
    /// Writes to where small segments begin: with their headers.
    opened: Cell<u64>,
}

impl BlockDevice for Metered {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        if let Request::Write { data, offset, .. } = &request {
            self.written.set(self.written.get() + data.len() as u64);
            let opens = offset.is_multiple_of(SMALL_SEGMENT_BYTES);
            self.opened.set(self.opened.get() + u64::from(opens));
        }
        self.inner.submit(request, completer);
    }
}

//! Two hosts on one set of devices, driven step by step.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use forebay_device::model::disk::{DiskSettings, SimDisk};
use forebay_device::model::world::{Crash, World};
use forebay_device::runtime::{SECOND, Task};
use forebay_device::{BlockDevice, Buf, Completer, Geometry, IoErrorKind, Nanos, Request, Runtime};
use forebay_engine::format::{Host, Mode};
use forebay_engine::{
    CreateOptions, MemoryWitness, OpenOptions, Pool, Tuning, Volume, VolumeSpec, open_with,
};
use forebay_sim::content::fill;

use crate::rig::{BLOCK, MEMBER_BYTES, SEGMENT_BYTES, lazy, version};

/// A task that stands still while its host does.
struct Standing {
    task: Task,
    host: Rc<Pulse>,
}

/// Whether a host runs.
#[derive(Default)]
pub struct Pulse {
    pub frozen: Cell<bool>,
    pub waiting: RefCell<Vec<Waker>>,
}

impl Pulse {
    pub fn freeze(&self) {
        self.frozen.set(true);
    }

    pub fn thaw(&self) {
        self.frozen.set(false);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }
}

impl Future for Standing {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.host.frozen.get() {
            self.host.waiting.borrow_mut().push(cx.waker().clone());
            return Poll::Pending;
        }
        self.task.as_mut().poll(cx)
    }
}

/// A host's runtime: time and devices go on while it is frozen, its tasks do not.
pub struct Machine {
    world: Rc<World>,
    pulse: Rc<Pulse>,
}

impl Runtime for Machine {
    fn now(&self) -> Nanos {
        self.world.now()
    }

    fn wake_at(&self, deadline: Nanos, completer: Completer) {
        self.world.wake_at(deadline, completer);
    }

    fn spawn(&self, task: Task) {
        self.world.spawn(Box::pin(Standing { task, host: Rc::clone(&self.pulse) }));
    }

    fn random(&self) -> u64 {
        self.world.random()
    }

    fn unix_seconds(&self) -> u64 {
        self.world.unix_seconds()
    }
}

/// What of the cache devices a host sees fail.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Broken {
    #[default]
    Nothing,
    Changes,
    /// Changes of the last one.
    LastChanges,
    /// Reads of the last one.
    LastReads,
    All,
}

/// Counts what one host changes on a device, and lets its first changes take their time.
struct Counting {
    inner: Rc<SimDisk>,
    changes: Rc<Cell<u64>>,
    world: Rc<World>,
    slow: Rc<Cell<(u64, Nanos)>>,
    /// While this is set nothing is answered.
    hangs: Rc<Cell<bool>>,
    /// What fails.
    broken: Rc<Cell<Broken>>,
    is_last: bool,
    /// Reads until the last of two that fail; none does at 0.
    failing_read: Rc<Cell<u64>>,
    unanswered: RefCell<Vec<(Request, Completer)>>,
}

impl BlockDevice for Counting {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        if self.hangs.get() {
            return self.unanswered.borrow_mut().push((request, completer));
        }
        let is_change = !matches!(request, Request::Read { .. } | Request::Flush);
        let is_read = matches!(request, Request::Read { .. });
        let fails = match self.broken.get() {
            Broken::Nothing => false,
            Broken::Changes => is_change,
            Broken::LastChanges => is_change && self.is_last,
            Broken::LastReads => is_read && self.is_last,
            Broken::All => true,
        };
        if fails {
            return request.finish(Err(IoErrorKind::Media.into()), completer);
        }
        let left = self.failing_read.get();
        if is_read && left > 0 {
            self.failing_read.set(left - 1);
            if left <= 2 {
                return request.finish(Err(IoErrorKind::Media.into()), completer);
            }
        }
        if is_change {
            self.changes.set(self.changes.get() + 1);
            let (left, delay) = self.slow.get();
            if left > 0 {
                self.slow.set((left - 1, delay));
                let (inner, due) = (Rc::clone(&self.inner), self.world.now() + delay);
                let late = Box::new(move || inner.submit(request, completer));
                return self.world.call_at(due, late);
            }
        }
        self.inner.submit(request, completer);
    }
}

/// One host, and what it has opened.
pub struct Site {
    pub machine: Rc<Machine>,
    pub host: RefCell<Host>,
    pub members: Vec<Rc<dyn BlockDevice>>,
    pub origin: Rc<dyn BlockDevice>,
    pub changes: Rc<Cell<u64>>,
    /// How many changes take how long.
    pub slow: Rc<Cell<(u64, Nanos)>>,
    /// Whether its last member hangs.
    pub hangs: Rc<Cell<bool>>,
    /// What of its members fails.
    pub broken: Rc<Cell<Broken>>,
    /// Reads from its members until the last of two that fail.
    pub failing_read: Rc<Cell<u64>>,
    pub witness: Rc<MemoryWitness>,
    pub tuning: Tuning,
    /// What the last attempt to open it came to.
    pub outcome: RefCell<Option<Result<(), String>>>,
    pub pool: RefCell<Option<Rc<Pool>>>,
    pub volume: RefCell<Option<Rc<Volume>>>,
}

impl Site {
    pub fn pulse(&self) -> &Pulse {
        &self.machine.pulse
    }

    pub fn volume(&self) -> Rc<Volume> {
        Rc::clone(self.volume.borrow().as_ref().expect("the pool is open here"))
    }

    pub fn runtime(&self) -> Rc<dyn Runtime> {
        Rc::clone(&self.machine) as _
    }

    /// The host is started again.
    pub fn reboot(&self) {
        self.pulse().thaw();
        self.host.borrow_mut().boot[0] += 1;
    }

    pub async fn try_open(&self, take_over: bool) -> Result<(), String> {
        let host = Some(self.host.borrow().clone());
        let options = OpenOptions { accept_missing: false, take_over, host };
        let (runtime, members) = (self.runtime(), self.members.clone());
        let (witness, tuning) = (Rc::clone(&self.witness), self.tuning.clone());
        let told = |error: forebay_engine::Error| format!("{:?}: {error}", error.kind);
        let pool = open_with(runtime, members, witness, tuning, options).await.map_err(told)?;
        let volume = pool.attach("v", Rc::clone(&self.origin)).await.map_err(told)?;
        *self.pool.borrow_mut() = Some(Rc::new(pool));
        *self.volume.borrow_mut() = Some(Rc::new(volume));
        Ok(())
    }

    pub fn start_open(self: &Rc<Self>, take_over: bool) {
        self.outcome.take();
        let it = Rc::clone(self);
        self.machine.spawn(Box::pin(async move {
            let outcome = it.try_open(take_over).await;
            it.outcome.replace(Some(outcome));
        }));
    }

    /// Whether clients are answered here.
    pub fn serves(&self) -> bool {
        let volume = self.volume.borrow();
        volume.as_ref().is_some_and(|volume| volume.status(0, 4096, &mut Vec::new()).is_ok())
    }

    pub fn was_told(&self, code: &str) -> bool {
        let pool = Rc::clone(self.pool.borrow().as_ref().expect("the pool is open here"));
        pool.events().iter().any(|event| event.kind.code() == code)
    }
}

/// Two hosts on one set of devices.
pub struct Pair {
    pub world: Rc<World>,
    pub origin: Rc<SimDisk>,
    /// The cache devices, as nobody's host sees them.
    pub disks: Vec<Rc<SimDisk>>,
    pub a: Rc<Site>,
    pub b: Rc<Site>,
}

pub const LEASE: Nanos = 24 * SECOND;

impl Pair {
    /// Host A has made the pool, with nothing in it; nobody has it open.
    pub fn new(seed: u64, members: usize) -> Pair {
        Pair::with(seed, members, 0)
    }

    pub fn with(seed: u64, members: usize, device_deadline_ms: u32) -> Pair {
        let world = World::new(seed);
        let disk = |i: u64| {
            SimDisk::new(&world, DiskSettings::ssd(MEMBER_BYTES, 512), seed ^ (i + 1) << 32)
        };
        let disks: Vec<_> = (0..members as u64).map(disk).collect();
        let origin = SimDisk::new(&world, DiskSettings::origin(1 << 20, 512, true), !seed);
        let mut image = vec![0; 1 << 20];
        fill(1, 0, 0, &mut image);
        origin.poke(0, &image);
        let site = |number: u8, name: &str| {
            let changes = Rc::<Cell<u64>>::default();
            let slow = Rc::<Cell<_>>::default();
            let hangs = Rc::<Cell<bool>>::default();
            let broken = Rc::<Cell<_>>::default();
            let failing_read = Rc::<Cell<u64>>::default();
            let seen = |disk: &Rc<SimDisk>| {
                let (inner, changes) = (Rc::clone(disk), Rc::clone(&changes));
                let (world, slow) = (Rc::clone(&world), Rc::clone(&slow));
                let is_last = disks.last().is_some_and(|last| Rc::ptr_eq(last, disk));
                let hangs = if is_last { Rc::clone(&hangs) } else { Rc::default() };
                let is_member = disks.iter().any(|member| Rc::ptr_eq(member, disk));
                let broken = if is_member { Rc::clone(&broken) } else { Rc::default() };
                let failing_read = if is_member { Rc::clone(&failing_read) } else { Rc::default() };
                Rc::new(Counting {
                    inner,
                    changes,
                    world,
                    slow,
                    hangs,
                    broken,
                    is_last,
                    failing_read,
                    unanswered: RefCell::default(),
                }) as Rc<dyn BlockDevice>
            };
            let host = Host { id: [number; 16], boot: [number; 16], name: name.to_owned() };
            let machine = Machine { world: Rc::clone(&world), pulse: Rc::default() };
            Rc::new(Site {
                machine: Rc::new(machine),
                host: RefCell::new(host),
                members: disks.iter().map(seen).collect(),
                origin: seen(&origin),
                changes,
                slow,
                hangs,
                broken,
                failing_read,
                witness: Rc::default(),
                tuning: lazy(),
                outcome: RefCell::default(),
                pool: RefCell::default(),
                volume: RefCell::default(),
            })
        };
        let (a, b) = (site(1, "a"), site(2, "b"));
        let it = Pair { world, origin, disks, a, b };
        let options = CreateOptions {
            dirty_copies: members as u8,
            segment_bytes: Some(SEGMENT_BYTES as u32),
            device_deadline_ms,
            ..CreateOptions::named("pool")
        };
        let site = Rc::clone(&it.a);
        it.run(async move {
            let (runtime, witness) = (site.runtime(), Rc::clone(&site.witness));
            forebay_engine::create(&*runtime, &site.members, &*witness, &options).await.unwrap();
            let (runtime, members) = (site.runtime(), site.members.clone());
            let host = Some(site.host.borrow().clone());
            let options = OpenOptions { host, ..OpenOptions::default() };
            let pool = open_with(runtime, members, witness, lazy(), options).await.unwrap();
            let spec = VolumeSpec {
                name: "v".into(),
                origin: "origin".into(),
                mode: Mode::Writeback,
                cache_block_bytes: 4096,
                settings: Default::default(),
                accept_data_loss_on_ssd_failure: true,
            };
            pool.add_volume(&spec, Rc::clone(&site.origin)).await.unwrap();
            pool.stop().await.unwrap();
        })
        .unwrap();
        it
    }

    pub fn run<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> Result<T, String> {
        self.world.run_until(work).map_err(|stopped| stopped.to_string())
    }

    pub fn pause(&self, span: Nanos) {
        self.world.run_for(span).unwrap();
    }

    pub fn open(&self, site: &Rc<Site>, take_over: bool) -> Result<(), String> {
        let it = Rc::clone(site);
        self.run(async move { it.try_open(take_over).await })?
    }

    pub fn stop(&self, site: &Rc<Site>) -> Result<(), String> {
        site.volume.take();
        let pool = site.pool.take().expect("the pool is open here");
        let stopped = self.run(async move { Rc::into_inner(pool).unwrap().stop().await })?;
        stopped.map(drop).map_err(|error| error.to_string())
    }

    pub fn write(&self, site: &Rc<Site>, stamp: u64, block: u64) -> Result<(), String> {
        let (data, volume) = (block_of(stamp, block), site.volume());
        let write = async move {
            volume.write(block * BLOCK as u64, data.freeze(), false).await?;
            volume.flush().await
        };
        self.run(write)?.map_err(|error| error.to_string())
    }

    pub fn read(&self, site: &Rc<Site>, block: u64) -> Result<u64, String> {
        let volume = site.volume();
        let read = async move { volume.read(block * BLOCK as u64, Buf::new(BLOCK)).await };
        let (buf, result) = self.run(read)?;
        result.map_err(|error| error.to_string())?;
        version(block, &buf)
    }

    /// A read that may not end; what it came to in so much time.
    pub fn read_within(
        &self,
        site: &Rc<Site>,
        block: u64,
        span: Nanos,
    ) -> Option<Result<u64, String>> {
        let (volume, answer) = (site.volume(), Rc::<RefCell<_>>::default());
        let told = Rc::clone(&answer);
        site.machine.spawn(Box::pin(async move {
            let (buf, result) = volume.read(block * BLOCK as u64, Buf::new(BLOCK)).await;
            let found = result.map_err(|error| error.to_string());
            told.replace(Some(found.and_then(|()| version(block, &buf))));
        }));
        self.pause(span);
        answer.take()
    }

    /// The same host with a daemon that was started again.
    pub fn restarted(&self, site: &Site) -> Rc<Site> {
        let machine = Machine { world: Rc::clone(&self.world), pulse: Rc::default() };
        Rc::new(Site {
            machine: Rc::new(machine),
            host: RefCell::new(site.host.borrow().clone()),
            members: site.members.clone(),
            origin: Rc::clone(&site.origin),
            changes: Rc::clone(&site.changes),
            slow: Rc::clone(&site.slow),
            hangs: Rc::clone(&site.hangs),
            broken: Rc::clone(&site.broken),
            failing_read: Rc::clone(&site.failing_read),
            witness: Rc::clone(&site.witness),
            tuning: site.tuning.clone(),
            outcome: RefCell::default(),
            pool: RefCell::default(),
            volume: RefCell::default(),
        })
    }

    pub fn destage(&self, site: &Rc<Site>) -> Result<(), String> {
        let volume = site.volume();
        self.run(async move { volume.destage().await })?.map_err(|error| error.to_string())
    }

    /// Both are gone, as if the power were.
    pub fn crash(&self, crash: Crash) {
        for site in [&self.a, &self.b] {
            site.volume.take();
            site.pool.take();
        }
        self.world.crash(crash);
        [&self.a, &self.b].iter().for_each(|site| site.pulse().waiting.borrow_mut().clear());
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.crash(Crash::ProcessKill);
    }
}

pub fn block_of(stamp: u64, block: u64) -> Buf {
    let mut data = Buf::new(BLOCK);
    fill(stamp, 0, block * 8, &mut data);
    data
}

//! A hit allocates nothing: the client brings the buffer.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::executor::TaskSet;
use forebay_device::model::store::MemoryStore;
use forebay_device::runtime::{Nanos, Task};
use forebay_device::{BlockDevice, Buf, Completer, Runtime};
use forebay_engine::{
    Client, CreateOptions, MemoryWitness, Mode, Pool, Tuning, Volume, VolumeSpec, create, open,
};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller keeps the rules of this very function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the rules of this very function.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tasks without time: timers never end.
struct Tasks {
    set: TaskSet,
    timers: RefCell<Vec<Completer>>,
}

impl Tasks {
    fn run<T: 'static>(self: &Rc<Self>, work: impl Future<Output = T> + 'static) -> T {
        let slot = Rc::new(RefCell::new(None));
        let result = Rc::clone(&slot);
        self.set.spawn(Box::pin(async move {
            *result.borrow_mut() = Some(work.await);
        }));
        while self.set.run_one(|_| 0) {}
        slot.take().expect("it waits for no timer")
    }
}

impl Runtime for Tasks {
    fn now(&self) -> Nanos {
        0
    }

    fn wake_at(&self, _: Nanos, completer: Completer) {
        self.timers.borrow_mut().push(completer);
    }

    fn spawn(&self, task: Task) {
        self.set.spawn(task);
    }

    fn random(&self) -> u64 {
        4
    }

    fn unix_seconds(&self) -> u64 {
        0
    }
}

const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;

async fn warm_pool(
    tasks: Rc<Tasks>,
    device: Rc<dyn BlockDevice>,
    ram_bytes: u64,
) -> (Pool, Volume) {
    let (runtime, devices) = (tasks as Rc<dyn Runtime>, vec![device]);
    let witness = Rc::new(MemoryWitness::default());
    let options = CreateOptions { ram_bytes, ..CreateOptions::named("p") };
    create(&*runtime, &devices, &*witness, &options).await.expect("created");
    let tuning = Tuning { destage_when_idle: false, ..Tuning::default() };
    let pool = open(runtime, devices, witness, tuning).await.expect("opened");
    let spec = VolumeSpec {
        name: "v".into(),
        origin: "o".into(),
        mode: Mode::Writeback,
        cache_block_bytes: BLOCK as u32,
        settings: Default::default(),
        accept_data_loss_on_ssd_failure: true,
    };
    let origin = Rc::new(MemoryStore::new(BLOCKS * BLOCK as u64, 512));
    let volume = pool.add_volume(&spec, origin).await.expect("added");
    for block in 0..BLOCKS {
        let data = Buf::zeroed(BLOCK).freeze();
        volume.write(block * BLOCK as u64, data, false).await.expect("written");
    }
    (pool, volume)
}

async fn read(client: &Client, mut buf: Buf, reads: u64) -> Buf {
    for number in 0..reads {
        let result;
        (buf, result) = client.read(number % BLOCKS * BLOCK as u64, buf).await;
        result.expect("a hit");
    }
    buf
}

/// Allocations during `reads` hits, once everything is in place.
fn allocations(tasks: &Rc<Tasks>, pool: &Pool, client: Client, reads: u64) -> u64 {
    let hits = pool.counters().read_hits.get();
    let count = tasks.run(async move {
        let buf = read(&client, Buf::zeroed(BLOCK), 2 * BLOCKS).await;
        let before = COUNT.get();
        read(&client, buf, reads).await;
        COUNT.get() - before
    });
    assert_eq!(pool.counters().read_hits.get() - hits, 2 * BLOCKS + reads);
    count
}

#[test]
fn a_hit_allocates_nothing() {
    let tasks = Rc::new(Tasks { set: TaskSet::new(Box::new(|| ())), timers: RefCell::default() });
    let device = Rc::new(MemoryStore::new(1 << 30, 512)) as Rc<dyn BlockDevice>;
    let (pool, volume) = tasks.run(warm_pool(Rc::clone(&tasks), Rc::clone(&device), 0));
    assert_eq!(allocations(&tasks, &pool, volume.client(), 1000), 0);
    // The pin's way back is a queue that grows by blocks of some thirty places.
    let remote = volume.share().open(Rc::clone(&tasks) as _, vec![Rc::clone(&device)]);
    let count = allocations(&tasks, &pool, remote, 1000);
    assert!(count <= 1000 / 30, "{count} allocations for 1000 hits of another reactor");
    // Without devices of its own the reactor asks the pool's to read.
    assert_eq!(
        allocations(&tasks, &pool, volume.share().open(Rc::clone(&tasks) as _, Vec::new()), 1000),
        0
    );
}

#[test]
fn a_hit_in_ram_allocates_nothing_nor_does_one_that_comes_there() {
    let tasks = Rc::new(Tasks { set: TaskSet::new(Box::new(|| ())), timers: RefCell::default() });
    let device = Rc::new(MemoryStore::new(1 << 30, 512)) as Rc<dyn BlockDevice>;
    let ram_bytes = BLOCKS * BLOCK as u64;
    let (pool, volume) = tasks.run(warm_pool(Rc::clone(&tasks), Rc::clone(&device), ram_bytes));
    let ram_hits = || pool.counters().read_ram_hits.get();
    assert_eq!(allocations(&tasks, &pool, volume.client(), 1000), 0);
    assert_eq!(ram_hits(), BLOCKS + 1000, "all but the first reads");
    // Of another reactor too: the pool's copies into the buffer that came along.
    let remote = volume.share().open(Rc::clone(&tasks) as _, vec![device]);
    assert_eq!(allocations(&tasks, &pool, remote, 1000), 0);
    assert_eq!(ram_hits(), 2000 + 3 * BLOCKS);
    // Half of the blocks have a frame: the others come from the device, and some come to stay.
    let pool = Rc::new(pool);
    let resized = Rc::clone(&pool);
    tasks.run(async move { resized.set_ram_bytes(ram_bytes / 2).await }).expect("resized");
    let fills = || pool.counters().ram_fill_blocks.get();
    let before = fills();
    assert_eq!(allocations(&tasks, &pool, volume.client(), 1000), 0);
    assert!(fills() > before);
}

#[test]
fn an_advisor_sees_hits_whoever_serves_them_and_allocates_nothing_either() {
    let tasks = Rc::new(Tasks { set: TaskSet::new(Box::new(|| ())), timers: RefCell::default() });
    let device = Rc::new(MemoryStore::new(1 << 30, 512)) as Rc<dyn BlockDevice>;
    let ram_bytes = BLOCKS * BLOCK as u64;
    for ram_bytes in [0, ram_bytes] {
        let warm = warm_pool(Rc::clone(&tasks), Rc::clone(&device), ram_bytes);
        let (pool, volume) = tasks.run(warm);
        assert_eq!(volume.advisor_days(), None);
        volume.start_advisor(&[]);
        assert_eq!(allocations(&tasks, &pool, volume.client(), 1000), 0);
        let remote = volume.share().open(Rc::clone(&tasks) as _, vec![Rc::clone(&device)]);
        allocations(&tasks, &pool, remote, 1000);
        let [day] = volume.advisor_days().expect("it has one").try_into().expect("one day");
        let reads = 2 * (1000 + 2 * BLOCKS);
        assert_eq!((day.accesses, day.read_bytes), (reads, reads * BLOCK as u64));
        assert_eq!((day.cold, day.touched, day.written_bytes), (BLOCKS as f64, BLOCKS as f64, 0));
        volume.stop_advisor();
        assert_eq!(volume.advisor_days(), None);
    }
}

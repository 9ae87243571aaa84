//! Sixteen synchronous writers on a modelled disk that takes one flush at a time, in real time: as
//! disks without a queue for flushes do, and unlike the one that the other rows run on.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use clap::Args;
use forebay_device::model::store::MemoryStore;
use forebay_device::real::reactor::Reactor;
use forebay_device::runtime::{MICROSECOND, MILLISECOND};
use forebay_device::{BlockDevice, Buf, Completer, Geometry, Io, Request, Runtime, io};
use forebay_engine as engine;
use forebay_engine::{CreateOptions, MemoryWitness, Tuning};

use super::load::{self, Kind, Load, Random};
use super::rig::{reactor, text, volume_spec};
use crate::bench::Result;

/// The modelled disk, and how long to measure.
#[derive(Args, Clone, Debug)]
pub struct SerialOptions {
    /// Microseconds of one flush.
    #[arg(long, default_value_t = 1_000)]
    flush_us: u64,
    /// Microseconds of one write, however many are under way.
    #[arg(long, default_value_t = 60)]
    write_us: u64,
    /// Writers.
    #[arg(long, default_value_t = 16)]
    writers: usize,
    /// Milliseconds of each side.
    #[arg(long, default_value_t = 2_000)]
    span_ms: u64,
}

/// Memory behind the delays of such a disk.
struct SerialFlush {
    store: MemoryStore,
    reactor: Rc<Reactor>,
    options: SerialOptions,
    waiting: RefCell<VecDeque<Completer>>,
    flushing: Cell<bool>,
    flushes: Cell<u64>,
}

/// The disk as the engine holds it.
struct Disk(Rc<SerialFlush>);

impl SerialFlush {
    fn sleep(&self, us: u64) -> Io {
        let runtime: &dyn Runtime = &*self.reactor;
        runtime.sleep(us * MICROSECOND)
    }
}

impl BlockDevice for Disk {
    fn geometry(&self) -> Geometry {
        self.0.store.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        let disk = Rc::clone(&self.0);
        match request {
            Request::Flush => {
                disk.waiting.borrow_mut().push_back(completer);
                if disk.flushing.replace(true) {
                    return;
                }
                self.0.reactor.spawn(Box::pin(async move {
                    loop {
                        let next = disk.waiting.borrow_mut().pop_front();
                        let Some(completer) = next else { break };
                        let _ = disk.sleep(disk.options.flush_us).await;
                        disk.flushes.set(disk.flushes.get() + 1);
                        completer.done(Ok(()));
                    }
                    disk.flushing.set(false);
                }));
            }
            Request::Write { .. } => self.0.reactor.spawn(Box::pin(async move {
                let _ = disk.sleep(disk.options.write_us).await;
                disk.store.submit(request, completer);
            })),
            request => disk.store.submit(request, completer),
        }
    }
}

/// One writer straight on the disk, as a job of fio would be.
async fn direct(disk: Rc<dyn BlockDevice>, stop: Rc<Cell<bool>>, done: Rc<Cell<u64>>, seed: u64) {
    let mut random = Random(seed);
    let blocks = disk.geometry().size_bytes / 4096;
    let data = Buf::zeroed(4096).freeze();
    while !stop.get() {
        let at = random.below(blocks) * 4096;
        let written = disk.write(at, data.clone()).done().await;
        if written.and(disk.flush().done().await).is_err() {
            return;
        }
        done.set(done.get() + 1);
    }
}

async fn direct_rate(
    runtime: &Rc<dyn Runtime>,
    disk: &Rc<dyn BlockDevice>,
    o: &SerialOptions,
) -> f64 {
    let (stop, done) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
    let mut ends = Vec::new();
    for seed in 0..o.writers as u64 {
        let (completer, end) = io::pair();
        let work = direct(Rc::clone(disk), Rc::clone(&stop), Rc::clone(&done), seed);
        runtime.spawn(Box::pin(async move {
            work.await;
            completer.done(Ok(()));
        }));
        ends.push(end);
    }
    let _ = runtime.sleep(o.span_ms * MILLISECOND).await;
    let count = done.get();
    stop.set(true);
    for end in ends {
        let _ = end.await;
    }
    count as f64 * 1e3 / o.span_ms as f64
}

/// The hidden subcommand: prints both sides' rates.
///
/// # Errors
/// If the engine fails.
pub fn serial_flush(options: &SerialOptions) -> Result<()> {
    let reactor = reactor()?;
    let runtime: Rc<dyn Runtime> = Rc::clone(&reactor) as Rc<dyn Runtime>;
    let result = reactor.block_on(async {
        let disk = Rc::new(SerialFlush {
            store: MemoryStore::new(1 << 30, 4096),
            reactor: Rc::clone(&reactor),
            options: options.clone(),
            waiting: RefCell::default(),
            flushing: Cell::new(false),
            flushes: Cell::new(0),
        });
        let device: Rc<dyn BlockDevice> = Rc::new(Disk(Rc::clone(&disk)));
        let alone = direct_rate(&runtime, &device, options).await;
        let witness = Rc::new(MemoryWitness::default());
        let devices = vec![device];
        let named = CreateOptions::named("bench");
        engine::create(&*runtime, &devices, &*witness, &named).await.map_err(text)?;
        let tuning = Tuning { destage_when_idle: false, ..Tuning::default() };
        let pool = engine::open(Rc::clone(&runtime), devices, witness, tuning).await;
        let pool = pool.map_err(text)?;
        let origin = Rc::new(MemoryStore::new(64 << 20, 512));
        let volume = Rc::new(pool.add_volume(&volume_spec(), origin).await.map_err(text)?);
        let kind = Kind::WriteFlush;
        let (clients, span_bytes) = (options.writers, 64 << 20);
        let load = Load { kind, block_bytes: 4096, clients, span_bytes };
        let before = disk.flushes.get();
        let done = load::run(&runtime, &volume, load, options.span_ms, u64::MAX).await?;
        println!(
            "{} writers, {} us per flush: {alone:.0}/s straight on the disk, {:.0}/s through the \
             engine ({:.1} times), {:.1} writes per flush",
            options.writers,
            options.flush_us,
            done.rate(),
            done.rate() / alone,
            done.requests as f64 / (disk.flushes.get() - before) as f64,
        );
        Ok(())
    });
    reactor.close();
    result
}

//! Fixed amounts of engine work in virtual time, to be counted by callgrind.
//!
//! * One thread, a fixed seed, devices in memory: the same instructions at every run.
//! * [`measured`] is where counting is on, and [`device`] where it is off again: what is left is the
//!   engine and its executor.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use clap::{Args, ValueEnum};
use forebay_device::model::world::{Crash, Limits, World};
use forebay_device::runtime::SECOND;
use forebay_device::{BlockDevice, Buf, Completer, Geometry, Request, Runtime};
use forebay_engine as engine;
use forebay_engine::format::Host;
use forebay_engine::{
    CreateOptions, MemoryWitness, Mode, OpenOptions, Pool, Tuning, Volume, VolumeSpec,
};

use crate::bench::Result;

const BLOCK: u64 = 4096;

/// Large enough that no run reaches the end of the log or a checkpoint: these are costs of their own.
const CACHE_BYTES: u64 = 4 << 30;

/// Blocks that hits find in the cache: the same number for each length of a run.
const HITS: u64 = 4096;

/// What is done `count` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A 4K read that the SSDs hold.
    Hit,
    /// A 4K read that the RAM tier holds.
    Ram,
    /// A 4K write and a flush of it, one client.
    Write,
    /// A dirty 4K block written to the origin.
    Destage,
    /// A 4K read that the cache does not hold and then does.
    Populate,
}

impl Kind {
    pub(crate) const ALL: [Kind; 5] =
        [Kind::Hit, Kind::Ram, Kind::Write, Kind::Destage, Kind::Populate];

    /// The name in the baseline.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Hit => "hit",
            Kind::Ram => "ram",
            Kind::Write => "write",
            Kind::Destage => "destage",
            Kind::Populate => "populate",
        }
    }

    /// The engine's counter that says that it was done, and its value for each time.
    fn proof(self) -> (&'static str, u64) {
        match self {
            Kind::Hit => ("read_hits", 1),
            Kind::Ram => ("read_ram_hits", 1),
            Kind::Write => ("write_logged_bytes", BLOCK),
            Kind::Destage => ("destage_bytes", BLOCK),
            Kind::Populate => ("populate_bytes", BLOCK),
        }
    }
}

/// The work of one run.
#[derive(Args, Clone, Copy, Debug)]
pub struct WorkOptions {
    /// What is done.
    kind: Kind,
    /// How often.
    #[arg(long, default_value_t = 1_000)]
    count: u64,
}

/// Memory that answers at once.
struct Memory {
    bytes: RefCell<Vec<u8>>,
    is_measured: Rc<Cell<bool>>,
}

/// What a device does by itself. Its name switches the counting off, or on if it is off: see
/// `COUNTED`. So it is called only from what is measured.
#[inline(never)]
fn device(memory: &mut [u8], request: &mut Request) {
    copy(memory, request);
}

#[inline(never)]
fn copy(memory: &mut [u8], request: &mut Request) {
    match request {
        Request::Read { offset, buf } => {
            let from = *offset as usize;
            let len = buf.len();
            buf.copy_from_slice(&memory[from..from + len]);
        }
        Request::Write { offset, data, .. } => {
            let from = *offset as usize;
            memory[from..from + data.len()].copy_from_slice(data);
        }
        Request::WriteZeroes { offset, len } => {
            memory[*offset as usize..(*offset + *len) as usize].fill(0);
        }
        Request::Flush | Request::Discard { .. } => (),
    }
}

impl BlockDevice for Memory {
    fn geometry(&self) -> Geometry {
        let size_bytes = self.bytes.borrow().len() as u64;
        Geometry {
            size_bytes,
            sector_bytes: 4096,
            discard: true,
            stripe: None,
            controller: None,
            durable_writes: false,
        }
    }

    fn submit(&self, mut request: Request, completer: Completer) {
        let by = if self.is_measured.get() { device } else { copy };
        by(&mut self.bytes.borrow_mut(), &mut request);
        request.finish(Ok(()), completer);
    }
}

/// A pool with one volume.
struct Ready {
    pool: Pool,
    volume: Volume,
    /// Blocks of the volume, a power of two.
    blocks: u64,
    is_measured: Rc<Cell<bool>>,
    runtime: Rc<dyn Runtime>,
}

impl Ready {
    /// Byte offset of the `number`-th block in an order that jumps about and names each once.
    fn place(&self, number: u64) -> u64 {
        number.wrapping_mul(0x9E37_79B9) % self.blocks * BLOCK
    }

    fn counter(&self, name: &str) -> u64 {
        let list = self.pool.counters().list();
        list.iter().find(|(known, _)| *known == name).map_or(0, |&(_, value)| value)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A new pool, and whatever the work needs to find.
async fn prepare(runtime: Rc<dyn Runtime>, options: WorkOptions) -> Result<Ready> {
    let is_measured = Rc::new(Cell::new(false));
    let memory = |size_bytes: u64| -> Rc<dyn BlockDevice> {
        let bytes = RefCell::new(vec![0; size_bytes as usize]);
        Rc::new(Memory { bytes, is_measured: Rc::clone(&is_measured) })
    };
    let devices = vec![memory(CACHE_BYTES)];
    let witness = Rc::new(MemoryWitness::default());
    // Twice what hits find: a tier that need not evict.
    let ram_bytes = if options.kind == Kind::Ram { 2 * HITS * BLOCK } else { 0 };
    let named = CreateOptions { ram_bytes, ..CreateOptions::named("bench") };
    engine::create(&*runtime, &devices, &*witness, &named).await.map_err(text)?;
    let tuning = Tuning { destage_when_idle: false, ..Tuning::default() };
    // With a lease, as in the daemon.
    let host = Host { id: [1; 16], boot: [1; 16], name: "bench".into() };
    let options_of = OpenOptions { host: Some(host), ..OpenOptions::default() };
    let opened = engine::open_with(Rc::clone(&runtime), devices, witness, tuning, options_of);
    let pool = opened.await.map_err(text)?;
    // A quarter of the blocks is used, whatever the count: neighbours are as frequent.
    let hits = matches!(options.kind, Kind::Hit | Kind::Ram);
    let used = if hits { HITS } else { options.count };
    let blocks = (used * 4).next_power_of_two();
    let spec = VolumeSpec {
        name: "bench".into(),
        origin: "memory".into(),
        mode: Mode::Writeback,
        cache_block_bytes: BLOCK as u32,
        settings: Default::default(),
        accept_data_loss_on_ssd_failure: true,
    };
    let volume = pool.add_volume(&spec, memory(blocks * BLOCK)).await.map_err(text)?;
    let ready = Ready { pool, volume, blocks, is_measured: Rc::clone(&is_measured), runtime };
    if hits || options.kind == Kind::Destage {
        for number in 0..used {
            let data = Buf::zeroed(BLOCK as usize).freeze();
            ready.volume.write(ready.place(number), data, false).await.map_err(text)?;
        }
        ready.volume.flush().await.map_err(text)?;
    }
    if options.kind == Kind::Ram {
        // The tier takes what is read again.
        read(&ready, WorkOptions { count: 3 * HITS, ..options }).await?;
    }
    Ok(ready)
}

async fn read(ready: &Ready, WorkOptions { kind, count }: WorkOptions) -> Result<()> {
    let mut buf = Buf::zeroed(BLOCK as usize);
    for number in 0..count {
        let number = if kind == Kind::Populate { number } else { number % HITS };
        let outcome;
        (buf, outcome) = ready.volume.read(ready.place(number), buf).await;
        outcome.map_err(text)?;
    }
    Ok(())
}

/// The work itself.
async fn body(ready: Rc<Ready>, options: WorkOptions) -> Result<()> {
    let volume = &ready.volume;
    match options.kind {
        Kind::Hit | Kind::Ram => read(&ready, options).await,
        Kind::Populate => {
            read(&ready, options).await?;
            // Nobody waits for a population: the log takes it when it has time.
            ready.runtime.sleep(2 * SECOND).done().await.map_err(text)
        }
        Kind::Write => {
            let data = Buf::zeroed(BLOCK as usize).freeze();
            for number in 0..options.count {
                volume.write(ready.place(number), data.clone(), false).await.map_err(text)?;
                volume.flush().await.map_err(text)?;
            }
            Ok(())
        }
        Kind::Destage => {
            volume.destage().await.map_err(text)?;
            volume.flush().await.map_err(text)
        }
    }
}

/// Its name switches the counting on: see `COUNTED`. Boxed, for perf copies the stack only as far as
/// 16 KiB up, and must find this function there.
#[inline(never)]
fn measured(world: &World, work: Pin<Box<dyn Future<Output = Result<()>>>>) -> Result<()> {
    world.run_until(work).map_err(text)?
}

/// The hidden subcommand.
///
/// # Errors
/// If the work was not done, or not as often as it should.
pub fn work(options: &WorkOptions) -> Result<()> {
    let options = *options;
    let world = World::new(1);
    world.set_limits(Limits { steps: u64::MAX, ..Limits::default() });
    let runtime = Rc::clone(&world) as Rc<dyn Runtime>;
    let ready = Rc::new(world.run_until(prepare(runtime, options)).map_err(text)??);
    let (counter, each) = options.kind.proof();
    let before = ready.counter(counter);
    ready.is_measured.set(true);
    measured(&world, Box::pin(body(Rc::clone(&ready), options)))?;
    ready.is_measured.set(false);
    let done = ready.counter(counter) - before;
    drop(ready);
    world.crash(Crash::ProcessKill);
    if done == options.count * each {
        Ok(())
    } else {
        Err(format!("{counter} grew by {done}, not by {each} for each of {}", options.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_work_is_done_as_often_as_it_should() {
        for kind in Kind::ALL {
            assert_eq!(work(&WorkOptions { kind, count: 50 }), Ok(()), "{kind:?}");
        }
    }
}

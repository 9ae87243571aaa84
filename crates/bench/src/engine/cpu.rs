//! What a hit costs beyond the device: time and instructions.

use std::rc::Rc;

use clap::Args;
use forebay_device::{BlockDevice, Buf, Runtime};
use forebay_engine as engine;
use forebay_engine::{CreateOptions, MemoryWitness, Pool, Tuning, Volume};
use serde_json::json;

use super::devices::ZeroCost;
use super::load::{self, Random};
use super::rig::{reactor, text, volume_spec};
use crate::bench::{Bench, Result};
use crate::callgrind;
use crate::verdict::{Bar, Row};

/// A fixed number of hits.
#[derive(Args, Clone, Debug)]
pub struct HitsOptions {
    /// How many.
    #[arg(long)]
    count: u64,
    /// Straight from the device, without an engine.
    #[arg(long)]
    direct: bool,
    /// From the RAM tier.
    #[arg(long, conflicts_with = "direct")]
    ram: bool,
}

const CACHE_BYTES: u64 = 1 << 30;

/// A pool on a device that costs nothing, with a volume that is cached as a whole.
pub(super) struct Warm {
    pub device: Rc<ZeroCost>,
    pub volume: Rc<Volume>,
    pool: Pool,
}

impl Warm {
    fn hits(&self) -> u64 {
        let list = self.pool.counters().list();
        list.iter().find(|(name, _)| *name == "read_hits").map_or(0, |&(_, value)| value)
    }
}

/// Runs `body` on a warm pool; fails unless that reads `hits` times from the cache.
pub(super) fn on_warm_pool(
    volume_bytes: u64,
    ram_bytes: u64,
    hits: u64,
    body: impl AsyncFnOnce(&Warm) -> Result<()>,
) -> Result<()> {
    let reactor = reactor()?;
    let runtime: Rc<dyn Runtime> = Rc::clone(&reactor) as Rc<dyn Runtime>;
    let result = reactor.block_on(async {
        let device = Rc::new(ZeroCost::new(CACHE_BYTES));
        let devices: Vec<Rc<dyn BlockDevice>> = vec![Rc::clone(&device) as Rc<dyn BlockDevice>];
        let witness = Rc::new(MemoryWitness::default());
        let named = CreateOptions { ram_bytes, ..CreateOptions::named("bench") };
        engine::create(&*runtime, &devices, &*witness, &named).await.map_err(text)?;
        let tuning = Tuning { destage_when_idle: false, ..Tuning::default() };
        let pool = engine::open(Rc::clone(&runtime), devices, witness, tuning).await;
        let pool = pool.map_err(text)?;
        let origin = Rc::new(super::devices::Numbered::new(volume_bytes));
        let volume = Rc::new(pool.add_volume(&volume_spec(), origin).await.map_err(text)?);
        load::fill(&runtime, &volume, volume_bytes).await?;
        // From now on reads bring nothing: whoever destaged would take that for damage.
        volume.destage().await.map_err(text)?;
        device.instant.set(true);
        if ram_bytes > 0 {
            read_all(&volume, volume_bytes).await?;
        }
        let warm = Warm { device, volume, pool };
        let before = warm.hits();
        body(&warm).await?;
        if warm.hits() - before == hits {
            Ok(())
        } else {
            Err("some reads were no hits".to_owned())
        }
    });
    reactor.close();
    result
}

/// Runs `count` reads, on the engine or straight on the device, and calls `measured` with whether
/// they are about to begin.
fn reads(options: &HitsOptions, volume_bytes: u64, mut measured: impl FnMut(bool)) -> Result<()> {
    let hits = if options.direct { 0 } else { options.count };
    let ram_bytes = if options.ram { volume_bytes } else { 0 };
    on_warm_pool(volume_bytes, ram_bytes, hits, async |warm: &Warm| {
        measured(true);
        if options.direct {
            let device = Rc::clone(&warm.device) as Rc<dyn BlockDevice>;
            read_direct(&device, volume_bytes, options.count).await?;
        } else {
            read_volume(&warm.volume, volume_bytes, options.count).await?;
        }
        measured(false);
        Ok(())
    })
}

async fn read_all(volume: &Rc<Volume>, volume_bytes: u64) -> Result<()> {
    let mut buf = Buf::zeroed(4096);
    for block in 0..volume_bytes / 4096 {
        let outcome;
        (buf, outcome) = volume.read(block * 4096, buf).await;
        outcome.map_err(text)?;
    }
    Ok(())
}

async fn read_volume(volume: &Rc<Volume>, volume_bytes: u64, count: u64) -> Result<()> {
    let mut random = Random(1);
    let mut buf = Buf::zeroed(4096);
    for _ in 0..count {
        let outcome;
        (buf, outcome) = volume.read(random.below(volume_bytes / 4096) * 4096, buf).await;
        outcome.map_err(text)?;
    }
    Ok(())
}

async fn read_direct(device: &Rc<dyn BlockDevice>, volume_bytes: u64, count: u64) -> Result<()> {
    let mut random = Random(1);
    let mut buf = Buf::zeroed(4096);
    for _ in 0..count {
        let outcome = device.read(random.below(volume_bytes / 4096) * 4096, buf).await;
        outcome.result.map_err(text)?;
        buf = outcome.buf.ok_or("a read lost its buffer")?;
    }
    Ok(())
}

/// The hidden subcommand.
///
/// # Errors
/// If a read fails or is no hit.
pub fn hits(options: &HitsOptions) -> Result<()> {
    reads(options, 64 << 20, |_| ())
}

/// Nanoseconds that this process's main thread has run, user and system together.
pub(super) fn cpu_ns() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/schedstat").map_err(text)?;
    let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
    first.filter(|&ns| ns > 0).ok_or_else(|| "the kernel keeps no schedstat".to_owned())
}

fn cpu_per_read(direct: bool, count: u64) -> Result<f64> {
    let mut marks = Vec::new();
    reads(&HitsOptions { count, direct, ram: false }, 512 << 20, |_| marks.push(cpu_ns()))?;
    let marks: Vec<u64> = marks.into_iter().collect::<Result<_>>()?;
    Ok((marks[1] - marks[0]) as f64 / count as f64)
}

/// Process CPU per hit on a device without cost, less the same loop without the engine.
pub(super) fn run_time(bench: &mut Bench) -> Result<()> {
    const WHAT: &str = "engine CPU per 4K hit, beyond the device";
    let bar = Bar::AtMost(1.5);
    let count = if bench.options.quick { 200_000 } else { 1_000_000 };
    let mut values = Vec::new();
    while bench.wants_round(&values, bar) {
        let pair = cpu_per_read(false, count).and_then(|e| Ok((e, cpu_per_read(true, count)?)));
        let (engine, direct) = match pair {
            Ok(pair) => pair,
            Err(error) => return bench.finish(Row::failed("cpu", WHAT, bar, &error)),
        };
        bench.keep(&json!({
            "row": "cpu", "round": values.len(), "engine_ns": engine, "device_ns": direct,
        }))?;
        values.push((engine - direct) / 1_000.0);
    }
    bench.finish(Row::judged("cpu", WHAT, &values, bar, " us", bench.options.quick))
}

/// Instructions of a whole run of the hidden subcommand.
fn instructions(count: u64, flag: Option<&str>, dir: &std::path::Path) -> Result<f64> {
    let out = dir.join("callgrind.out");
    let mut command =
        callgrind::command(&out, &[], &["engine-hits", "--count", &count.to_string()])?;
    command.args(flag);
    let collected = callgrind::count(&mut command);
    let _ = std::fs::remove_file(&out);
    Ok(collected? as f64)
}

/// Instructions per hit: the difference of two run lengths, less the same without the engine.
pub(super) fn run_instructions(bench: &mut Bench) -> Result<()> {
    const WHAT: &str = "engine instructions per 4K hit, beyond the device";
    const SHORT: u64 = 10_000;
    const LONG: u64 = 60_000;
    // 1.5 us at 3 GHz and one instruction per cycle, which is little.
    let bar = Bar::AtMost(4_500.0);
    let dir = bench.options.dir.clone();
    let per_read = |flag: Option<&str>| -> Result<f64> {
        let short = instructions(SHORT, flag, &dir)?;
        Ok((instructions(LONG, flag, &dir)? - short) / (LONG - SHORT) as f64)
    };
    let all = [None, Some("--direct"), Some("--ram")].map(per_read);
    let row = match all.into_iter().collect::<Result<Vec<_>>>().as_deref() {
        Ok(&[engine, direct, ram]) => {
            bench.keep(&json!({
                "row": "instructions", "engine": engine, "device": direct, "ram": ram,
            }))?;
            let values = [engine - direct];
            let mut row = Row::judged("instructions", WHAT, &values, bar, "", false);
            row.note = format!(
                "{engine:.0} with the engine, {direct:.0} without; {ram:.0} for a hit in RAM, its copy \
                 included"
            );
            row
        }
        Ok(_) => Row::failed("instructions", WHAT, bar, "three figures are wanted"),
        Err(error) => Row::failed("instructions", WHAT, bar, error),
    };
    bench.finish(row)
}

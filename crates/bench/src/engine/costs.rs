//! `forebay-bench costs`: what requests cost the processor, all of it: the engine, its reactor, and system calls to a cache device and an
//! origin that are files. Beside it what the lab charges for the same ([`Costs::measured`]).
//!
//! * A row above its bar says that the lab's engine is cheaper than the one that ships, as far as this machine
//!   can tell.
//! * Nothing is destaged while clients write or read. What reclaim moves and drops meanwhile is in both figures.
//! * Time of the kernel's own workers, who flush files, is in none: they have other cores.

use forebay_engine::Tuning;
use forebay_lab::scene::cpu::Costs;
use serde_json::json;

use super::cpu::cpu_ns;
use super::load::{self, Kind, Load};
use super::rig::{Origin, Rig, write_file};
use crate::bench::{Bench, Options, Plan, Result, Sizes};
use crate::verdict::{Bar, Row, median};

const BLOCK_BYTES: u64 = 4096;

/// Requests at a time, as many as in the rows beside fio.
const CLIENTS: usize = 32;

/// Part of the volume that is read again and again: hits.
const WARM_BYTES: u64 = 64 << 20;

/// The rows, and the two sides.
pub(crate) const PLAN: Plan = Plan { rows: &ROWS, sides: &["measured", "charged"], tools: &[] };

const ROWS: [&str; 4] = ["write", "wide", "destage", "miss"];

/// What they measure, in the order of [`round`]'s figures.
const WHAT: [&str; 4] = [
    "random 4K write over what is cached, log full",
    "the same where half is not cached",
    "destaged 4K block, random",
    "random 4K miss that is brought in",
];

/// A tenth is what runs differ by.
const BAR: Bar = Bar::AtMost(1.1);

/// Microseconds for each of something.
#[derive(Clone, Copy)]
struct Each {
    measured: f64,
    charged: f64,
    /// Blocks moved and evicted for it.
    moved: f64,
    evicted: f64,
}

/// What some work took: microseconds of the processor, and what counters were before.
struct Taken<'a> {
    rig: &'a Rig,
    before: Vec<u64>,
    micros: f64,
}

impl<'a> Taken<'a> {
    fn by(rig: &'a Rig, work: impl FnOnce() -> Result<()>) -> Result<Self> {
        let before = rig.pool.counters().list().into_iter().map(|(_, value)| value).collect();
        let began = cpu_ns()?;
        work()?;
        Ok(Self { rig, before, micros: (cpu_ns()? - began) as f64 / 1_000.0 })
    }

    /// By how much a counter has grown.
    fn count(&self, name: &str) -> f64 {
        let now = self.rig.pool.counters().list();
        let found = now.iter().zip(&self.before).find(|((known, _), _)| *known == name);
        found.map_or(0.0, |((_, now), before)| (now - before) as f64)
    }

    fn blocks(&self, name: &str) -> f64 {
        self.count(name) / BLOCK_BYTES as f64
    }

    /// What each of `count` took, where the lab charges `charged_ns` for all of them, besides what was moved and
    /// dropped.
    fn each(&self, count: f64, charged_ns: f64) -> Each {
        let (moved, evicted) = (self.count("move_blocks"), self.count("evict_blocks"));
        let costs = Costs::measured();
        let reclaimed_ns = moved * costs.move_ns as f64 + evicted * costs.evict_ns as f64;
        Each {
            measured: self.micros / count,
            charged: (charged_ns + reclaimed_ns) / 1_000.0 / count,
            moved: moved / count,
            evicted: evicted / count,
        }
    }
}

/// Figures for each of what [`WHAT`] names.
fn round(bench: &mut Bench, rig: &Rig, sizes: &Sizes, volume_bytes: u64) -> Result<[Each; 4]> {
    let (span_ms, costs) = (bench.span_ms(), Costs::measured());
    let run = |kind, span_bytes| {
        let load = Load { kind, block_bytes: BLOCK_BYTES, clients: CLIENTS, span_bytes };
        Taken::by(rig, || rig.run(load, span_ms).map(|_| ()))
    };
    let writes = |taken: &Taken<'_>| {
        let count = taken.blocks("write_bytes");
        taken.each(count, count * costs.write_ns as f64)
    };
    rig.reactor.block_on(load::fill(&rig.runtime, &rig.volume, sizes.written))?;
    rig.settle()?;
    let write = writes(&run(Kind::WriteRandom, sizes.written)?);
    rig.settle()?;
    let wide = writes(&run(Kind::WriteRandom, volume_bytes)?);
    let taken = Taken::by(rig, || rig.settle())?;
    let runs = taken.count("destage_runs");
    let further = taken.blocks("destage_bytes") - runs;
    let destage =
        taken.each(runs, runs * costs.destage_ns as f64 + further * costs.further_ns as f64);
    run(Kind::ReadRandom, WARM_BYTES)?;
    let hits = run(Kind::ReadRandom, WARM_BYTES)?;
    let hit_us = hits.micros / hits.count("read_hits");
    let mut taken = run(Kind::ReadRandom, volume_bytes)?;
    // Hits cost the pool's reactor more here than where others read for themselves, as the lab has it.
    taken.micros -= taken.count("read_hits") * hit_us;
    let misses = taken.count("read_misses");
    let further = (taken.blocks("populate_bytes") - misses).max(0.0);
    let charged =
        misses * (costs.read_ns + costs.miss_ns) as f64 + further * costs.further_ns as f64;
    let miss = taken.each(misses, charged);
    let all = [write, wide, destage, miss];
    bench.keep(&json!({
        "measured_us": all.map(|each| each.measured), "charged_us": all.map(|each| each.charged),
        "moved": all.map(|each| each.moved), "evicted": all.map(|each| each.evicted), "hit_us": hit_us, "misses": misses, "brought_per_miss": taken.blocks("populate_bytes") / misses,
    }))?;
    Ok(all)
}

fn rounds(bench: &mut Bench) -> Result<Vec<[Each; 4]>> {
    let (sizes, dir) = (bench.sizes(), bench.options.dir.clone());
    // Half of it misses, and blocks that are written are far from each other.
    let volume_bytes = 2 * sizes.cache;
    let (cache, origin) = (dir.join("cache.bin"), dir.join("origin.bin"));
    eprintln!("writing the files and a lap of the log ...");
    // A cache file of an aborted run is worth nothing.
    let _ = std::fs::remove_file(&cache);
    let ready = write_file(&origin, volume_bytes).and_then(|()| {
        let tuning = Tuning { destage_when_idle: false, ..Tuning::default() };
        Rig::new(&cache, sizes.cache, volume_bytes, Origin::File(&origin), tuning)
    });
    let count = bench.options.rounds.max(1);
    let measured = ready
        .and_then(|rig| (0..count).map(|_| round(bench, &rig, &sizes, volume_bytes)).collect());
    let _ = std::fs::remove_file(&origin);
    measured
}

/// Runs all rows; false if any was missed. They come from the same rounds, so all are measured whichever are
/// asked for.
///
/// # Errors
/// If the bench itself cannot work: no ring, no directory.
pub fn costs(options: &Options) -> Result<bool> {
    Bench::run(options, &PLAN, |bench| {
        let measured = rounds(bench);
        for (at, (name, what)) in ROWS.into_iter().zip(WHAT).enumerate() {
            if !bench.wants(&[name]) {
                continue;
            }
            let row = match &measured {
                Ok(rounds) => row(bench, rounds, at),
                Err(error) => Row::failed(name, what, BAR, error),
            };
            bench.finish(row)?;
        }
        Ok(())
    })
}

fn row(bench: &Bench, rounds: &[[Each; 4]], at: usize) -> Row {
    let figure = |of: fn(&Each) -> f64| {
        let all: Vec<f64> = rounds.iter().map(|round| of(&round[at])).collect();
        format!("{:.2} us", median(&all))
    };
    let ratio = |round: &[Each; 4]| round[at].measured / round[at].charged;
    let ratios: Vec<f64> = rounds.iter().map(ratio).collect();
    let mut row = Row::judged(ROWS[at], WHAT[at], &ratios, BAR, "", bench.options.quick);
    row.figures = vec![figure(|each| each.measured), figure(|each| each.charged)];
    row
}

//! The policy that decides in the daemon, driven by a trace as the daemon drives it.
//!
//! The log is here without its bytes: units that are filled front to back, one open for each
//! stream, and given back whole. What a unit holds, what is live in it, and the heat of granules
//! are the engine's part; what to admit, which unit to reclaim and what to keep of it is decided
//! by [`Policy`], as in the daemon, and what is in RAM by its `Tier`. The origin is always up to date, so nothing is
//! ever owed.

mod log;
mod ram;
#[cfg(test)]
mod tests;

use std::time::Duration;

use forebay_engine::policy::{
    GRANULE_BYTES_MIN, Policy, S3Fifo, S3FifoConfig, Thresholds, Thrift, WriteBudget,
};
use forebay_engine::{Streams, Tuning};
use rustc_hash::FxHashMap;

use crate::trace::Request;
use crate::workload::{BLOCK_BYTES, Workload};
use crate::{Error, Result};
use log::Log;

/// Units of a cache at the least: with fewer, what is open and what is kept free would be most of it.
const UNITS_MIN: usize = 8;

/// The write budget of a run without one.
const UNLIMITED_PERCENT: u32 = 1_000_000;

/// How the cache is made.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Blocks of the pool.
    pub pool_blocks: usize,
    /// Blocks of a unit, which is reclaimed whole.
    pub unit_blocks: usize,
    /// Blocks that heat is remembered for together.
    pub granule_blocks: u64,
    /// Bytes written per byte admitted, in percent, at the most; `None` for no limit.
    pub write_amplification_max_percent: Option<u32>,
    /// Bytes that may be written to the SSD per byte that clients ask for, in percent, on average; `None` for no
    /// limit. What the daemon gets in a day is here a quarter of what the pool holds.
    pub write_budget_percent: Option<u32>,
    /// Accesses from which on what is missed is brought in.
    pub thresholds: Thresholds,
    /// Whether second reads do so in place of first ones while those are not worth it, as with profile `auto`.
    pub auto: bool,
    /// What becomes of streams of reads.
    pub sequential: Sequential,
    /// Blocks for which they are counted together.
    pub cache_block_blocks: u64,
    /// Blocks of the tier in RAM; 0 for none.
    pub ram_blocks: usize,
}

/// What becomes of reads that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequential {
    /// As of others.
    Cached,
    /// Behind so many bytes nothing is brought in any more, nor is a hit one.
    Passes(u64),
    /// The same, as long as hardly anything of streams is read again.
    Auto(u64),
}

impl Sequential {
    /// Bytes of a stream that are cached in any case; `None`: all of them.
    fn cutoff_bytes(self) -> Option<u64> {
        match self {
            Sequential::Cached => None,
            Sequential::Passes(bytes) | Sequential::Auto(bytes) => Some(bytes),
        }
    }
}

impl Settings {
    /// Whether the cache has units enough.
    ///
    /// # Errors
    /// If it has not.
    pub fn check_size(&self) -> Result<()> {
        if self.unit_blocks > 0 && self.pool_blocks / self.unit_blocks >= UNITS_MIN {
            return Ok(());
        }
        let blocks = |count: usize| match count {
            1 => "1 block".to_owned(),
            count => format!("{count} blocks"),
        };
        let (pool, unit) = (blocks(self.pool_blocks), blocks(self.unit_blocks));
        Err(Error::new(
            format!("a cache of {pool} is less than {UNITS_MIN} units of {unit}"),
            "take a larger cache or a smaller --unit-blocks",
        ))
    }

    /// Blocks decided one by one and at no cost: what the other policies do.
    pub fn ideal(pool_blocks: usize) -> Self {
        Self {
            pool_blocks,
            unit_blocks: 1,
            granule_blocks: 1,
            write_amplification_max_percent: None,
            write_budget_percent: None,
            thresholds: Thresholds::FIRST,
            auto: false,
            sequential: Sequential::Cached,
            cache_block_blocks: 1,
            ram_blocks: 0,
        }
    }

    /// As in the daemon, but for the size of a unit. With units of one block everything is decided block by block and
    /// at no cost, so that it compares with the other policies.
    pub fn of_units(pool_blocks: usize, unit_blocks: usize) -> Self {
        match unit_blocks {
            1 => Self::ideal(pool_blocks),
            _ => Self { unit_blocks, ..Self::daemon(pool_blocks) },
        }
    }

    /// As in the daemon: granules of 64 KiB, 512 units or more, the default write budget.
    pub fn daemon(pool_blocks: usize) -> Self {
        /// A segment of the daemon, 16 MiB.
        const SEGMENT_BLOCKS: usize = 4096;
        const UNITS_MIN: usize = 512;
        Self {
            unit_blocks: (pool_blocks / UNITS_MIN).clamp(1, SEGMENT_BLOCKS),
            granule_blocks: GRANULE_BYTES_MIN / BLOCK_BYTES,
            write_amplification_max_percent: Some(150),
            auto: true,
            sequential: Sequential::Auto(Tuning::default().sequential_cutoff_bytes),
            cache_block_blocks: GRANULE_BYTES_MIN / BLOCK_BYTES,
            ..Self::ideal(pool_blocks)
        }
    }
}

/// Hits and all, of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Misses.
    pub missed: u64,
    /// All.
    pub all: u64,
}

impl Share {
    fn add(&mut self, count: u64, hit: bool) {
        self.all += count;
        self.missed += if hit { 0 } else { count };
    }

    /// Missed of all; 0 of nothing.
    pub fn ratio(self) -> f64 {
        if self.all == 0 { 0.0 } else { self.missed as f64 / self.all as f64 }
    }
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Blocks read.
    pub reads: Share,
    /// Blocks written; a miss is a write over nothing cached.
    pub writes: Share,
    /// Requests; one is missed unless all of its blocks are there.
    pub requests: Share,
    /// Bytes asked for.
    pub bytes: Share,
    /// Blocks read from RAM.
    pub ram_hits: u64,
    /// Blocks populated.
    pub populated_blocks: u64,
    /// Blocks that were missed and left to the origin: not asked for often enough, or the write budget has no
    /// room for them.
    pub passed_blocks: u64,
    /// Blocks moved by reclaim.
    pub moved_blocks: u64,
    /// Blocks written to the SSD, all in all.
    pub appended_blocks: u64,
    /// Bytes of memory of the policies of both tiers: ghosts, counts of accesses, and queues in RAM.
    pub policy_bytes: usize,
    /// How long it took, by the clock that was handed in.
    pub took: Duration,
}

impl Report {
    /// Blocks read or written.
    pub fn accesses(&self) -> Share {
        Share {
            missed: self.reads.missed + self.writes.missed,
            all: self.reads.all + self.writes.all,
        }
    }

    /// Bytes written to the SSD per byte that clients asked for.
    pub fn ssd_bytes_per_client_byte(&self) -> f64 {
        (self.appended_blocks * BLOCK_BYTES) as f64 / self.bytes.all.max(1) as f64
    }

    /// Nanoseconds of an access.
    pub fn ns_per_access(&self) -> f64 {
        self.took.as_nanos() as f64 / self.accesses().all.max(1) as f64
    }
}

/// A write budget, earned by what clients ask for: a trace has no days.
struct Wear {
    percent: u64,
    budget: WriteBudget,
    /// Blocks written to the SSD that it knows of.
    counted: u64,
}

impl Wear {
    /// Takes what was written so far, and what so many bytes that are asked for earn.
    fn look(&mut self, asked_bytes: u64, appended_blocks: u64) -> Thrift {
        // As many as earn what a day brings, in percent of one. What so large a cache that this has no room in
        // 64 bits earns too much is a share of a budget that no trace uses up.
        let day = (100 * BLOCK_BYTES).saturating_mul(self.budget.per_day());
        self.budget.earn(asked_bytes * self.percent, day);
        self.budget.spend(appended_blocks - self.counted);
        self.counted = appended_blocks;
        self.budget.thrift()
    }
}

/// Runs the policy of the daemon over a workload. `clock` is for the time it took.
///
/// # Errors
/// If the settings make no cache.
pub fn run(
    workload: &Workload,
    settings: Settings,
    clock: &dyn Fn() -> Duration,
) -> Result<Report> {
    run_watched(workload, settings, clock, &mut |_, _| {})
}

/// The same; `watch` is told of each request, and which of its blocks were there.
///
/// # Errors
/// If the settings make no cache.
pub fn run_watched(
    workload: &Workload,
    settings: Settings,
    clock: &dyn Fn() -> Duration,
    watch: &mut dyn FnMut(&Request, &[bool]),
) -> Result<Report> {
    assert!(settings.granule_blocks <= 16, "a part of a granule has 16 bits");
    if settings.cache_block_blocks == 0 {
        return Err(Error::new("a cache block of nothing", "take 4 KiB or more"));
    }
    settings.check_size()?;
    // What is never full forgets nothing that a ghost would have to remember.
    let known = settings.pool_blocks.min(workload.accesses.len().max(settings.unit_blocks * 8));
    let config = S3FifoConfig::for_pool(known as u64);
    let percent = settings.write_amplification_max_percent.unwrap_or(UNLIMITED_PERCENT);
    let mut policy = S3Fifo::new(S3FifoConfig {
        write_amplification_max_percent: percent,
        ..config.with_granules_of(settings.granule_blocks as u32)
    });
    let mut log = Log::new(settings, workload, &mut policy);
    let mut wear = settings.write_budget_percent.map(|percent| Wear {
        percent: percent.into(),
        budget: WriteBudget::new(settings.pool_blocks as u64 / 4),
        counted: 0,
    });
    let from = clock();
    let mut hits = Vec::new();
    let mut parts = Vec::new();
    let mut streams: FxHashMap<u32, Streams> = FxHashMap::default();
    for (request, accesses) in workload.by_request() {
        hits.clear();
        let same =
            |&one: &u32, &other: &u32| log.granules[one as usize] == log.granules[other as usize];
        let mut rest = accesses;
        while let Some(&first) = rest.first() {
            let count = rest.iter().take_while(|other| same(&first, other)).count();
            let (part, after) = rest.split_at(count);
            rest = after;
            parts.push(part);
        }
        if let Some(wear) = &mut wear {
            let thrift = wear.look(request.bytes, log.report.appended_blocks);
            log.policy.set_thrift(thrift);
        }
        let is_passing = !request.write
            && settings.sequential.cutoff_bytes().is_some_and(|cutoff| {
                let streams = streams.entry(request.volume).or_default();
                let is_stream = streams.note(request.offset, request.bytes) > cutoff;
                log.passes(accesses, is_stream)
            });
        if !is_passing {
            log.count(accesses, request.write);
        }
        let from_ram = !request.write && log.serves_from_ram(accesses);
        let guest = log.is_guest(accesses);
        for part in parts.drain(..) {
            match request.write {
                true => log.write(part, &mut hits)?,
                false if is_passing => log.pass(part, &mut hits),
                false => log.read(part, from_ram, guest, &mut hits)?,
            }
        }
        let report = &mut log.report;
        for (&hit, block) in hits.iter().zip(request.offset / BLOCK_BYTES..) {
            let start = (block * BLOCK_BYTES).max(request.offset);
            let end = ((block + 1) * BLOCK_BYTES).min(request.offset + request.bytes);
            let kind = if request.write { &mut report.writes } else { &mut report.reads };
            kind.add(1, hit);
            report.bytes.add(end - start, hit);
        }
        report.requests.add(1, !hits.contains(&false));
        watch(request, &hits);
    }
    #[cfg(test)]
    log.check();
    let mut report = log.report;
    let policy_bytes = log.memory_bytes();
    report.took = clock().saturating_sub(from);
    report.policy_bytes = policy_bytes + policy.memory_bytes();
    Ok(report)
}

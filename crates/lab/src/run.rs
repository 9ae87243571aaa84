//! The policy that decides in the daemon, driven by a trace as the daemon drives it.
//!
//! The log is here without its bytes: units that are filled front to back, one open for each
//! stream, and given back whole. What a unit holds, what is live in it, and the heat of granules
//! are the engine's part; what to admit, which unit to reclaim and what to keep of it is decided
//! by [`Policy`], as in the daemon. The origin is always up to date, so nothing is ever owed.

use std::time::Duration;

use forebay_engine::ids::VolumeId;
use forebay_engine::index::HEAT_MAX;
use forebay_engine::policy::{
    Access, GRANULE_BYTES_MIN, Granule, Part, Policy, Queue, S3Fifo, S3FifoConfig, Survey,
    Thresholds, Thrift, Touches, Unit, WriteBudget,
};
use rustc_hash::FxHashMap;

use crate::workload::{BLOCK_BYTES, Workload};
use crate::{Error, Result};

/// Share of the units, in percent, that is kept free for moving, and units at the least; as in the
/// daemon. With units of one block no room is lost, for a move frees what it takes.
const RESERVE_PERCENT: usize = 5;

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
    /// Blocks for which they are counted together.
    pub cache_block_blocks: u64,
}

impl Settings {
    /// Blocks decided one by one and at no cost: what the other policies do.
    pub fn ideal(pool_blocks: usize) -> Self {
        Self {
            pool_blocks,
            unit_blocks: 1,
            granule_blocks: 1,
            write_amplification_max_percent: None,
            write_budget_percent: None,
            thresholds: Thresholds::FIRST,
            cache_block_blocks: 1,
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
    /// Blocks populated.
    pub populated_blocks: u64,
    /// Blocks that were missed and left to the origin: not asked for often enough, or the write budget has no
    /// room for them.
    pub passed_blocks: u64,
    /// Blocks moved by reclaim.
    pub moved_blocks: u64,
    /// Blocks written to the SSD, all in all.
    pub appended_blocks: u64,
    /// Bytes of memory of the policy.
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

const NOWHERE: u64 = u64::MAX;

/// A piece of the log.
struct Piece {
    queue: Queue,
    opened: u64,
    live: u32,
    /// What was appended to it, in order.
    blocks: Vec<u32>,
    /// Full, and not yet given back.
    closed: bool,
}

/// The log and the index, without data.
struct Log<'a> {
    settings: Settings,
    workload: &'a Workload,
    policy: &'a mut dyn Policy,
    pieces: Vec<Piece>,
    free: Vec<u32>,
    open: [Option<u32>; 2],
    /// Closed units of one block in the order of closing; those freed since are passed over.
    closed: [std::collections::VecDeque<(u32, u64)>; 2],
    live: [u64; 2],
    opened: u64,
    reserve: usize,
    /// Where each block is: its unit times the size of a unit, plus its place there.
    places: Vec<u64>,
    /// Granule of each block, and its heat.
    granules: Vec<u32>,
    names: Vec<Granule>,
    heat: Vec<u8>,
    /// Blocks that nobody has asked for since they came in, or since they were kept last; where heat is of more than
    /// a block.
    cold: Vec<bool>,
    /// Live blocks of each granule: heat is kept only where something is.
    mapped: Vec<u32>,
    /// Cache block of each block, by number, and which of them a request has counted already.
    cache_blocks: Vec<Granule>,
    touches: Touches,
    report: Report,
    scratch: Vec<u32>,
}

fn index_of(queue: Queue) -> usize {
    match queue {
        Queue::Probation => 0,
        Queue::Main => 1,
    }
}

impl<'a> Log<'a> {
    fn new(settings: Settings, workload: &'a Workload, policy: &'a mut dyn Policy) -> Self {
        let units = settings.pool_blocks / settings.unit_blocks;
        let piece = || Piece {
            queue: Queue::Probation,
            opened: 0,
            live: 0,
            // It grows as it is filled: a cache may be far larger than what a trace brings in.
            blocks: Vec::new(),
            closed: false,
        };
        let mut numbers = FxHashMap::default();
        let mut names = Vec::new();
        let granules = workload.blocks.iter().map(|&(volume, block)| {
            let name =
                Granule { volume: VolumeId(volume + 1), number: block / settings.granule_blocks };
            *numbers.entry(name).or_insert_with(|| {
                names.push(name);
                names.len() as u32 - 1
            })
        });
        let granules: Vec<u32> = granules.collect();
        let cache_block = |&(volume, block): &(u32, u64)| Granule {
            volume: VolumeId(volume + 1),
            number: block / settings.cache_block_blocks,
        };
        let counts = settings.thresholds.count();
        let cache_blocks = workload.blocks.iter().filter(|_| counts).map(cache_block).collect();
        let pool_blocks = settings.pool_blocks as u64;
        let touches = if counts { Touches::for_pool(pool_blocks) } else { Touches::default() };
        let reserve = if settings.unit_blocks == 1 { 1 } else { units * RESERVE_PERCENT / 100 };
        Self {
            settings,
            workload,
            policy,
            pieces: (0..units).map(|_| piece()).collect(),
            free: (0..units as u32).rev().collect(),
            open: [None; 2],
            closed: Default::default(),
            live: [0; 2],
            opened: 0,
            reserve: reserve.max(1),
            places: vec![NOWHERE; workload.footprint()],
            heat: vec![0; names.len()],
            cold: vec![false; workload.footprint()],
            mapped: vec![0; names.len()],
            granules,
            names,
            cache_blocks,
            touches,
            report: Report::default(),
            scratch: Vec::new(),
        }
    }

    fn holds(&self, block: u32) -> bool {
        self.places[block as usize] != NOWHERE
    }

    /// Some blocks of one granule, at least one.
    fn part(&self, blocks: impl IntoIterator<Item = u32>) -> Part {
        let (mut granule, mut bits) = (0, 0);
        for block in blocks {
            granule = self.granules[block as usize];
            bits |= 1 << (self.workload.blocks[block as usize].1 % self.settings.granule_blocks);
        }
        Part { granule: self.names[granule as usize], blocks: bits }
    }

    /// Where a block that is held lies.
    fn queue_of(&self, block: u32) -> Queue {
        let unit = self.places[block as usize] / self.settings.unit_blocks as u64;
        self.pieces[unit as usize].queue
    }

    /// Whether a hit in a block says that it is asked for again.
    fn is_reuse(&self, block: u32) -> bool {
        let unit = self.places[block as usize] / self.settings.unit_blocks as u64;
        let piece = &self.pieces[unit as usize];
        let age_blocks = (self.opened - piece.opened) * self.settings.unit_blocks as u64;
        self.policy.is_reuse(piece.queue, age_blocks)
    }

    fn touch(&mut self, block: u32) {
        let heat = &mut self.heat[self.granules[block as usize] as usize];
        *heat = (*heat + 1).min(HEAT_MAX);
    }

    /// What the log holds of a block is void.
    fn forget(&mut self, block: u32) {
        let place = std::mem::replace(&mut self.places[block as usize], NOWHERE);
        if place == NOWHERE {
            return;
        }
        let unit = place / self.settings.unit_blocks as u64;
        let piece = &mut self.pieces[unit as usize];
        piece.live -= 1;
        self.live[index_of(piece.queue)] -= 1;
        if piece.closed && piece.live == 0 && self.settings.unit_blocks == 1 {
            self.release(unit as u32);
        }
        let granule = self.granules[block as usize] as usize;
        self.mapped[granule] -= 1;
        if self.mapped[granule] == 0 {
            self.heat[granule] = 0;
        }
    }

    fn release(&mut self, unit: u32) {
        let piece = &mut self.pieces[unit as usize];
        piece.blocks.clear();
        piece.closed = false;
        self.free.push(unit);
    }

    /// Appends a block, which is cold or not; there must be a free unit if the open one is full.
    fn append(&mut self, block: u32, queue: Queue, cold: bool) {
        self.cold[block as usize] = cold && self.settings.granule_blocks > 1;
        let heat = self.heat[self.granules[block as usize] as usize];
        self.forget(block);
        let at = index_of(queue);
        let unit = match self.open[at] {
            Some(unit) => unit,
            None => {
                let Some(unit) = self.free.pop() else { unreachable!("room was made before") };
                self.opened += 1;
                let piece = &mut self.pieces[unit as usize];
                (piece.queue, piece.opened) = (queue, self.opened);
                self.open[at] = Some(unit);
                unit
            }
        };
        let piece = &mut self.pieces[unit as usize];
        let place = u64::from(unit) * self.settings.unit_blocks as u64 + piece.blocks.len() as u64;
        piece.blocks.push(block);
        piece.live += 1;
        self.live[at] += 1;
        if piece.blocks.len() == self.settings.unit_blocks {
            piece.closed = true;
            self.open[at] = None;
            if self.settings.unit_blocks == 1 {
                self.closed[at].push_back((unit, piece.opened));
            }
        }
        self.places[block as usize] = place;
        let granule = self.granules[block as usize] as usize;
        self.mapped[granule] += 1;
        // What was written anew is still as hot.
        self.heat[granule] = heat;
        self.report.appended_blocks += 1;
    }

    fn unit(&self, id: u32) -> Unit {
        let piece = &self.pieces[id as usize];
        let size_blocks = self.settings.unit_blocks as u32;
        Unit {
            id,
            queue: piece.queue,
            opened: piece.opened,
            live_blocks: piece.live,
            dirty_blocks: 0,
            unflushed_blocks: 0,
            size_blocks,
            packed_blocks: size_blocks,
            copies: 1,
            pinned: false,
        }
    }

    fn survey(&mut self) -> Survey {
        if self.settings.unit_blocks > 1 {
            let closed =
                (0..self.pieces.len() as u32).filter(|&id| self.pieces[id as usize].closed);
            return Survey::of(closed.map(|id| self.unit(id)));
        }
        for queue in &mut self.closed {
            while let Some(&(unit, opened)) = queue.front()
                && !(self.pieces[unit as usize].closed
                    && self.pieces[unit as usize].opened == opened)
            {
                queue.pop_front();
            }
        }
        let oldest = self.closed.iter().filter_map(|queue| queue.front());
        let oldest = oldest.map(|&(id, _)| self.unit(id));
        Survey::of_oldest(oldest, self.live[0], self.live[0] + self.live[1])
    }

    /// Makes room for an append of a client's.
    fn make_room(&mut self) -> Result<()> {
        while self.free.len() < self.reserve {
            let survey = self.survey();
            let Some(id) = self.policy.choose(&survey) else {
                return Err(Error::new(
                    "the cache is too small: nothing can be reclaimed",
                    "take a larger cache or a smaller --unit-blocks",
                ));
            };
            self.reclaim(id);
        }
        Ok(())
    }

    /// Empties a unit: granule by granule, what the policy retains is appended to the main stream.
    fn reclaim(&mut self, id: u32) {
        let queue = self.pieces[id as usize].queue;
        let mut kept = std::mem::take(&mut self.scratch);
        kept.clear();
        // From here on it is nobody's but ours, also when its last block is forgotten.
        self.pieces[id as usize].closed = false;
        let blocks = std::mem::take(&mut self.pieces[id as usize].blocks);
        let first = u64::from(id) * self.settings.unit_blocks as u64;
        let mut live: Vec<u32> = blocks
            .iter()
            .zip(first..)
            .filter_map(|(&block, place)| (self.places[block as usize] == place).then_some(block))
            .collect();
        // As in the daemon: what was asked for of one granule has one fate.
        live.sort_unstable_by_key(|&block| self.granules[block as usize]);
        let mut rest = &live[..];
        while let Some(&block) = rest.first() {
            let same =
                |&&other: &&u32| self.granules[other as usize] == self.granules[block as usize];
            let (part, after) = rest.split_at(rest.iter().take_while(same).count());
            rest = after;
            let granule = self.granules[part[0] as usize] as usize;
            let heat = self.heat[granule];
            let (cold, asked): (Vec<_>, Vec<_>) =
                part.iter().copied().partition(|&block| self.cold[block as usize]);
            for (part, heat) in [(asked, heat), (cold, 0)].iter().filter(|(p, _)| !p.is_empty()) {
                if self.policy.retain(self.part(part.iter().copied()), queue, *heat) {
                    self.heat[granule] -= u8::from(*heat > 0);
                    self.policy.spend(0, part.len() as u64);
                    kept.extend(part);
                } else {
                    part.iter().for_each(|&block| self.forget(block));
                }
            }
        }
        // What is kept is in memory while its unit is given back.
        let mut moved = 0;
        for &block in &kept {
            let granule = self.granules[block as usize] as usize;
            let heat = self.heat[granule];
            self.forget(block);
            self.heat[granule] = heat;
            moved += 1;
        }
        self.pieces[id as usize].blocks = blocks;
        self.release(id);
        for &block in &kept {
            self.append(block, Queue::Main, true);
        }
        self.report.moved_blocks += moved;
        self.scratch = kept;
    }

    /// A request, or the part of it that lies in one granule; which of its blocks were there is
    /// in `hits` then.
    fn ask(&mut self, blocks: &[u32], write: bool, hits: &mut Vec<bool>) -> Result<()> {
        let part = self.part(blocks.iter().copied());
        let from = hits.len();
        hits.extend(blocks.iter().map(|&block| self.holds(block)));
        let hits = &hits[from..];
        let access = if write { Access::Write } else { Access::Read };
        self.policy.access(part, access, hits.iter().all(|&hit| hit));
        // As in the daemon: where the last of them lies.
        let hit = hits.iter().rposition(|&hit| hit);
        if hit.is_some_and(|at| self.is_reuse(blocks[at])) {
            self.touch(blocks[0]);
            blocks.iter().for_each(|&block| self.cold[block as usize] = false);
        }
        let cached = !hits.contains(&false);
        let nothing = !hits.contains(&true);
        let left_out = |log: &Self| nothing && log.policy.leaves_out(part, true);
        if write && (!self.is_brought_in(blocks[0], Access::Write, cached) || left_out(self)) {
            self.report.passed_blocks += blocks.len() as u64;
            blocks.iter().for_each(|&block| self.forget(block));
        } else if write {
            let from = cached.then(|| self.queue_of(blocks[blocks.len() - 1]));
            let queue = self.policy.place(part, from);
            for &block in blocks {
                self.make_room()?;
                self.policy.spend(1, 0);
                self.append(block, queue, false);
            }
        } else if !cached {
            let missed = blocks.iter().zip(hits).filter(|&(_, &hit)| !hit);
            let wanted = self.is_brought_in(blocks[0], Access::Read, false);
            let Some(queue) = wanted.then(|| self.policy.admit(part)).flatten() else {
                self.report.passed_blocks += missed.count() as u64;
                return Ok(());
            };
            for (&block, _) in missed {
                self.make_room()?;
                self.append(block, queue, true);
                self.policy.spend(1, 0);
                self.report.populated_blocks += 1;
            }
        }
        Ok(())
    }

    /// Whether the cache block of this one has been asked for often enough, or is there.
    fn is_brought_in(&self, block: u32, access: Access, cached: bool) -> bool {
        let thresholds = self.settings.thresholds;
        match thresholds.of(access) {
            0 => false,
            1 => true,
            _ if cached => true,
            _ => thresholds.reached(&self.touches, self.cache_blocks[block as usize], access),
        }
    }

    /// Counts a request once for each cache block that it touches, if that is not cached as a whole.
    fn count(&mut self, blocks: &[u32], write: bool) {
        let access = if write { Access::Write } else { Access::Read };
        if self.settings.thresholds.of(access) <= 1 {
            return;
        }
        let mut counted = None;
        if blocks.iter().all(|&block| self.holds(block)) {
            return;
        }
        for &block in blocks {
            let name = self.cache_blocks[block as usize];
            if counted != Some(name) {
                self.touches.note(name, access);
                counted = Some(name);
            }
        }
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
        // As many as earn what a day brings, in percent of one.
        let day = 100 * BLOCK_BYTES * self.budget.per_day();
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
    assert!(settings.granule_blocks <= 16, "a part of a granule has 16 bits");
    if settings.cache_block_blocks == 0 {
        return Err(Error::new("a cache block of nothing", "take 4 KiB or more"));
    }
    if settings.unit_blocks == 0 || settings.pool_blocks / settings.unit_blocks < 8 {
        return Err(Error::new(
            format!(
                "a cache of {} blocks is less than 8 units of {} blocks",
                settings.pool_blocks, settings.unit_blocks
            ),
            "take a larger cache or a smaller --unit-blocks",
        ));
    }
    let config = S3FifoConfig::for_pool(settings.pool_blocks as u64);
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
        log.count(accesses, request.write);
        for part in parts.drain(..) {
            log.ask(part, request.write, &mut hits)?;
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
    }
    #[cfg(test)]
    log.check();
    let mut report = log.report;
    let policy_bytes = log.touches.heap_bytes();
    report.took = clock().saturating_sub(from);
    report.policy_bytes = policy_bytes + policy.memory_bytes();
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Request;
    use proptest::prelude::*;

    impl Log<'_> {
        /// Every block is where its unit has it, and all sums are right.
        pub(super) fn check(&self) {
            let mut live = [0; 2];
            let mut mapped = vec![0; self.mapped.len()];
            for (id, piece) in self.pieces.iter().enumerate() {
                let first = id as u64 * self.settings.unit_blocks as u64;
                let here = piece.blocks.iter().zip(first..);
                let here: Vec<_> =
                    here.filter(|&(&block, place)| self.places[block as usize] == place).collect();
                assert_eq!(here.len(), piece.live as usize);
                live[index_of(piece.queue)] += here.len() as u64;
                here.iter().for_each(|&(&block, _)| {
                    mapped[self.granules[block as usize] as usize] += 1;
                });
            }
            assert_eq!(live, self.live);
            assert_eq!(mapped, self.mapped);
            let held = self.places.iter().filter(|&&place| place != NOWHERE).count();
            assert_eq!(held as u64, live[0] + live[1]);
            assert!(held <= self.settings.pool_blocks);
            let cold = |at: usize| mapped[at] > 0 || self.heat[at] == 0;
            assert!((0..mapped.len()).all(cold), "heat without a block");
        }
    }

    fn workload(requests: impl IntoIterator<Item = (bool, u64, u64)>) -> Workload {
        let request = |(write, block, blocks)| {
            let (offset, bytes) = (block * BLOCK_BYTES, blocks * BLOCK_BYTES);
            Ok(Request { time_us: 0, volume: 0, write, offset, bytes })
        };
        Workload::load(requests.into_iter().map(request)).unwrap()
    }

    fn ran(workload: &Workload, settings: Settings) -> Report {
        run(workload, settings, &|| Duration::ZERO).unwrap()
    }

    #[test]
    fn what_fits_is_missed_once() {
        let workload = workload((0..3).flat_map(|_| (0..1000).map(|block| (false, block, 1))));
        for settings in
            [Settings::ideal(1100), Settings { unit_blocks: 4, ..Settings::ideal(1100) }]
        {
            let report = ran(&workload, settings);
            assert_eq!(report.accesses(), Share { missed: 1000, all: 3000 });
            assert_eq!((report.populated_blocks, report.moved_blocks), (1000, 0));
        }
    }

    #[test]
    fn a_request_is_missed_unless_all_of_it_is_there_and_bytes_are_counted_as_asked_for() {
        let request =
            |write, offset, bytes| Ok(Request { time_us: 0, volume: 0, write, offset, bytes });
        let requests =
            [request(true, 4096, 4096), request(false, 512, 8192), request(false, 512, 8192)];
        let workload = Workload::load(requests).unwrap();
        let report = ran(&workload, Settings::ideal(100));
        assert_eq!(report.writes, Share { missed: 1, all: 1 });
        assert_eq!(report.reads, Share { missed: 2, all: 6 });
        assert_eq!(report.requests, Share { missed: 2, all: 3 });
        assert_eq!(report.bytes, Share { missed: 4096 + 3584 + 512, all: 4096 + 2 * 8192 });
        assert_eq!(report.appended_blocks, 3);
    }

    #[test]
    fn a_scan_does_not_push_out_what_is_read_again_and_again() {
        let hot = || (0..500u64).flat_map(|_| 0..40u64);
        let scan = hot()
            .enumerate()
            .flat_map(|(at, block)| [(false, block, 1), (false, 1000 + at as u64, 1)]);
        let workload = workload(scan);
        let report = ran(&workload, Settings::ideal(100));
        assert!(report.accesses().ratio() < 0.52, "{}", report.accesses().ratio());
    }

    #[test]
    fn what_main_holds_stays_there_when_it_is_written() {
        // Read again later, so in main once the pool has turned over; then written, beside a scan.
        let hot = |write| (0..20).map(move |block| (write, block, 1));
        let scan = |from: u64, blocks| (from..from + blocks).map(|block| (false, block, 1));
        let rounds = (0..10).flat_map(|round| hot(true).chain(scan(5000 + round * 60, 60)));
        let again = || scan(900, 10).chain(hot(false));
        let filled = hot(false).chain(again()).chain(again()).chain(scan(1000, 200));
        let report = ran(&workload(filled.chain(rounds)), Settings::ideal(100));
        assert_eq!(report.writes, Share { missed: 0, all: 200 });
    }

    #[test]
    fn a_cache_of_nothing_is_refused() {
        let workload = workload([(false, 0, 1)]);
        for settings in [Settings::ideal(7), Settings { unit_blocks: 0, ..Settings::ideal(100) }] {
            let error = run(&workload, settings, &|| Duration::ZERO).unwrap_err();
            assert!(error.what.contains("less than 8 units"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn every_access_is_counted_and_nothing_exceeds_the_pool_or_the_budget(
            requests in proptest::collection::vec((any::<bool>(), 0..300u64, 1..40u64), 1..600),
            units in 8..60usize,
            unit_blocks in 1..20usize,
            granule_blocks in prop_oneof![Just(1u64), Just(16)],
            percent in 100..300u32,
            write_budget in proptest::option::of(0..200u32),
            read in 1..=4u8,
            write in 0..=4u8,
            cache_block_blocks in prop_oneof![Just(1u64), Just(4), Just(16)],
        ) {
            let workload = workload(requests.iter().copied());
            let report = ran(&workload, Settings {
                pool_blocks: units * unit_blocks,
                unit_blocks,
                granule_blocks,
                write_amplification_max_percent: Some(percent),
                write_budget_percent: write_budget,
                thresholds: Thresholds { read, write },
                cache_block_blocks,
            });
            let sum = |write| {
                let of_kind = requests.iter().filter(|request| request.0 == write);
                of_kind.map(|request| request.2).sum::<u64>()
            };
            prop_assert_eq!(report.reads.all, sum(false));
            prop_assert_eq!(report.writes.all, sum(true));
            prop_assert_eq!(report.requests.all, requests.len() as u64);
            prop_assert_eq!(report.bytes.all, (sum(false) + sum(true)) * BLOCK_BYTES);
            let admitted = report.appended_blocks - report.moved_blocks;
            let writes = admitted - report.populated_blocks;
            let thrifty = write_budget.is_some();
            prop_assert!(write != 1 || thrifty || writes == sum(true));
            prop_assert!(writes <= sum(true) && (write > 0 || writes == 0));
            prop_assert!(report.passed_blocks == 0 || read > 1 || write != 1 || thrifty);
            let all = write == 1 && read == 1 && !thrifty;
            prop_assert!(!all || admitted == sum(true) + report.reads.missed);
            prop_assert!(report.moved_blocks * 100 <= admitted * u64::from(percent - 100));
        }
    }
}

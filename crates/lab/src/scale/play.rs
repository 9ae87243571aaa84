//! Plays a series: all its pools are there at a time, and take turns in each round, so that what disturbs the
//! machine disturbs all of them.
//!
//! 1. Each pool is filled, stopped and started again.
//! 2. Rounds of requests: hits, writes, destaging, misses, rest.
//! 3. Each pool takes nearly as much as a checkpoint is due for, is killed and started again.
//! 4. In series of the log, each is filled until reclaim begins, and then there are rounds of writes.

use std::time::Duration;

use forebay_device::runtime::SECOND;

use super::rig::{Ask, Rig};
use super::{Counted, Extent, Outcome, Point, Series, Timed, segment_bytes_of};
use crate::scene::Result;
use crate::scene::load::BLOCK;

/// Rounds of requests.
const ROUNDS: usize = 5;

/// Requests of a round, of each kind; writes and misses change what they are measured on.
const HITS: u64 = 20_000;
const WRITES: u64 = 1_000;

/// Parts of the pool that are appended before the crash, in thousandths: a checkpoint is due at 40.
const UNCHECKED: u64 = 15;

/// Hundredths of the pool to which it is filled on, until it is full.
const FIRST_FILL: u64 = 45;
const LAST_FILL: u64 = 110;

/// How a run goes on.
pub struct Step<'a> {
    /// The point that has come a step further.
    pub point: &'a Point,
    /// What it has done.
    pub what: &'static str,
    /// Work done so far, of all that was asked for, from 0 to 1.
    pub share: f64,
}

/// What is measured of a pool as it goes on.
struct Bench {
    point: Point,
    rig: Rig,
    counted: Counted,
    timed: Timed,
    rounds: [Vec<f64>; 6],
}

/// The processor time of the thread that asks.
pub type Clock<'a> = &'a (dyn Fn() -> Duration + Sync);

fn nanos(clock: Clock, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let before = clock();
    work()?;
    Ok((clock() - before).as_nanos() as f64)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

impl Bench {
    fn new(point: &Point) -> Result<Self> {
        let rig = Rig::new(point)?;
        let (counted, timed, rounds) = Default::default();
        Ok(Self { point: point.clone(), rig, counted, timed, rounds })
    }

    /// Fills it, and starts it again after a clean stop.
    fn fill_and_restart(&mut self, clock: Clock) -> Result<()> {
        self.rig.fill(self.point.blocks())?;
        self.rig.rest(2 * SECOND)?;
        let pool = self.rig.pool();
        self.counted.segments = pool.segments().1 as u64;
        self.counted.shards = u64::from(pool.superblock().shard_count);
        self.counted.blocks = pool.blocks().0;
        self.counted.index_bytes = pool.index_memory().0 + pool.policy_memory();
        if self.counted.blocks < self.point.blocks() / 100 * 99 {
            let (has, wanted) = (self.counted.blocks, self.point.blocks());
            return Err(format!("{has} blocks are cached of {wanted} that were brought in"));
        }
        let now = self.rig.now();
        let (rig, counted) = (&mut self.rig, &mut self.counted);
        self.timed.stop = nanos(clock, || {
            counted.stop_bytes = rig.stop()?;
            Ok(())
        })?;
        self.counted.stop_ns = self.rig.now() - now;
        let now = self.rig.now();
        let (rig, counted) = (&mut self.rig, &mut self.counted);
        self.timed.clean = nanos(clock, || {
            counted.clean_bytes = rig.open()?.bytes_read;
            Ok(())
        })?;
        self.counted.clean_ns = self.rig.now() - now;
        if self.rig.pool().recovery().blocks < self.counted.blocks {
            return Err("a start after a clean stop has lost blocks".to_owned());
        }
        Ok(())
    }

    /// One round of requests; the first one warms up and does not count.
    fn round(&mut self, clock: Clock, counts: bool) -> Result<()> {
        let rig = &self.rig;
        let hit = nanos(clock, || rig.ask(Ask::Hit, HITS))? / HITS as f64;
        let device = nanos(clock, || rig.ask(Ask::Device, HITS))? / HITS as f64;
        let write = nanos(clock, || rig.ask(Ask::Write, WRITES))? / WRITES as f64;
        let mut destaged = 0;
        let destage = nanos(clock, || {
            destaged = rig.destage()?;
            Ok(())
        })?;
        let miss = nanos(clock, || rig.ask(Ask::Miss, WRITES))? / WRITES as f64;
        let idle = nanos(clock, || rig.rest(SECOND))?;
        let figures =
            [(hit - device).max(0.0), write, destage / destaged.max(1) as f64, miss, idle];
        if counts {
            self.rounds.iter_mut().zip(figures).for_each(|(all, one)| all.push(one));
        }
        Ok(())
    }

    /// Appends nearly as much as a checkpoint is due for, kills it and starts it again.
    fn crash_and_restart(&mut self, clock: Clock) -> Result<()> {
        self.rig.stop()?;
        self.rig.open()?;
        let more = self.point.pool_bytes / BLOCK * UNCHECKED / 1_000;
        self.rig.fill(self.point.blocks() + more)?;
        // Populations are durable by the flush that comes every second.
        self.rig.rest(2 * SECOND)?;
        let before = self.rig.pool().blocks().0;
        self.rig.kill();
        let now = self.rig.now();
        let (rig, counted) = (&mut self.rig, &mut self.counted);
        self.timed.crash = nanos(clock, || {
            let report = rig.open()?;
            counted.crash_bytes = report.bytes_read;
            counted.crash_records = report.records_replayed;
            counted.crash_lost = before.saturating_sub(report.blocks);
            Ok(())
        })?;
        self.counted.crash_ns = self.rig.now() - now;
        Ok(())
    }

    /// Brings in more until reclaim has to make room for it.
    fn fill_up(&self) -> Result<()> {
        let blocks = self.point.pool_bytes / BLOCK;
        for part in FIRST_FILL..=LAST_FILL {
            let (free, total) = self.rig.pool().segments();
            if free * 10 < total {
                return Ok(());
            }
            self.rig.fill(blocks * part / 100)?;
        }
        Err("a log that was written through has room".to_owned())
    }

    /// Writes in a full log. What it takes to make room is spread over what a set holds: where sets are
    /// smaller than in a cache of that size, over what one would hold there.
    fn full_round(&mut self, clock: Clock, counts: bool) -> Result<()> {
        let rig = &self.rig;
        let sets = rig.opened();
        let took = nanos(clock, || rig.ask(Ask::Write, WRITES))? / WRITES as f64;
        let sets = (rig.opened() - sets).max(1) as f64;
        rig.destage()?;
        let played = WRITES as f64 / sets;
        let full = match self.point.segment_bytes {
            None => took,
            Some(_) => {
                let write = median(&mut self.rounds[1]);
                let real = (segment_bytes_of(self.point.size_bytes) / BLOCK) as f64;
                write + (took - write).max(0.0) * played / real
            }
        };
        if counts {
            self.rounds[5].push(full);
        }
        Ok(())
    }

    fn outcome(mut self) -> Outcome {
        let full = (!self.rounds[5].is_empty()).then(|| median(&mut self.rounds[5]));
        let [hit, write, destage, miss, idle, _] = self.rounds.each_mut().map(|it| median(it));
        let timed = Timed { hit, write, destage, miss, full, idle, ..self.timed };
        Outcome { point: self.point, counted: self.counted, timed }
    }
}

/// Plays some series, one after the other; `told` hears of each step.
///
/// # Errors
/// If the engine fails, or loses what it must keep.
pub fn play(
    series: &[Series],
    extent: Extent,
    cores: usize,
    clock: Clock,
    told: &mut dyn FnMut(&Step),
) -> Result<Vec<Vec<Outcome>>> {
    let all: Vec<_> = series.iter().map(|&it| super::points(it, extent, cores)).collect();
    let total: u64 = all.iter().flatten().map(Point::work).sum();
    let mut done = 0;
    let mut outcomes = Vec::new();
    for points in &all {
        let mut told = |point: &Point, what: &'static str, tenths: u64| {
            done += point.work() * tenths;
            told(&Step { point, what, share: done as f64 / (total * 10) as f64 });
        };
        outcomes.push(match points.first().map(|point| point.series) {
            Some(Series::Reactors) => side_by_side(points, clock, &mut told)?,
            _ => in_rounds(points, extent, clock, &mut told)?,
        });
    }
    Ok(outcomes)
}

fn in_rounds(
    points: &[Point],
    extent: Extent,
    clock: Clock,
    told: &mut dyn FnMut(&Point, &'static str, u64),
) -> Result<Vec<Outcome>> {
    let rounds = if extent == Extent::Tiny { 1 } else { ROUNDS };
    let mut benches = Vec::new();
    for point in points {
        let mut bench = Bench::new(point)?;
        bench.fill_and_restart(clock)?;
        told(point, "filled", 5);
        benches.push(bench);
    }
    for round in 0..=rounds {
        for bench in &mut benches {
            bench.round(clock, round > 0)?;
        }
    }
    for bench in &mut benches {
        bench.crash_and_restart(clock)?;
        told(&bench.point, "started after a crash", 1);
    }
    let fills_up = |bench: &Bench| matches!(bench.point.series, Series::Bytes | Series::Segments);
    for bench in &mut benches {
        if fills_up(bench) {
            bench.fill_up()?;
        }
        told(&bench.point, "measured", 4);
    }
    for round in 0..=rounds {
        for bench in benches.iter_mut().filter(|bench| fills_up(bench)) {
            bench.full_round(clock, round > 0)?;
        }
    }
    Ok(benches.into_iter().map(Bench::outcome).collect())
}

/// As many pools at a time as each point says; of each point the slowest of them counts.
fn side_by_side(
    points: &[Point],
    clock: Clock,
    told: &mut dyn FnMut(&Point, &'static str, u64),
) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for point in points {
        let alone = |_| {
            let alone = std::slice::from_ref(point);
            in_rounds(alone, Extent::Usual, clock, &mut |_, _, _| ())
        };
        let mut all = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..point.reactors).map(|n| scope.spawn(move || alone(n))).collect();
            let joined = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err("a thread has ended early".to_owned()))
            });
            joined.collect::<Result<Vec<_>>>()
        })?;
        let slowest = all.iter_mut().filter_map(Vec::pop).max_by(|one, two| {
            (one.timed.hit + one.timed.write).total_cmp(&(two.timed.hit + two.timed.write))
        });
        outcomes.extend(slowest);
        told(point, "measured", 10);
    }
    Ok(outcomes)
}

//! One test: an engine on modelled devices under the paper's load until its figures are final.
//!
//! 1. From empty (or prefilled) until hardly anything misses any more, or for [`COLD_MAX`].
//! 2. If the test writes to the cache: on until the SSDs have taken one and a half times as many bytes as they have,
//!    so that everything that counts has to find its room in a log that has been full for a while. Half a lap, for
//!    sets that are all dead come free at first, and only then does destaging fall behind. What the test's own
//!    [`laps`](Test::laps) leave of one lap is written at random places of the same span in pieces of [`AGE_BYTES`],
//!    which take no time in any figure.
//! 3. On until they have taken twice as many bytes as they have, all of which counts. Where the test has not written the log
//!    through by itself, on until it has written the span once more (where nothing is written to the cache: as
//!    often as the test says); of this the later half counts. [`STEADY_BINS`] at the least.
//!
//! Warm-up is the time from which on the rate stayed at nine tenths of that or above: see [`warm_up`].

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use forebay_device::Nanos;
use forebay_device::runtime::SECOND;
use forebay_engine::VolumeSettings;

use super::Test;
use super::array::{Pattern, System};
use crate::scene::contents::Contents;
use crate::scene::cpu::Costs;
use crate::scene::load::{BLOCK, Kind, Load, Order, Orders};
use crate::scene::{Result, Scene, Serving, Setting, Ssds};

/// One point of a curve, in the paper's time.
const BIN: Nanos = 10 * SECOND;

/// Points of the final phase at the least.
const STEADY_BINS: usize = 6;

/// Points over which a rate is taken where it has to last: a minute of the paper's time.
const WINDOW_BINS: usize = 6;

/// The part of the final rate at which a cache counts as warm.
const WARM_RATE: f64 = 0.9;

/// Longest time to become warm, in the paper's time: twice the slowest paper's.
const COLD_MAX: Nanos = 46 * 60 * SECOND;

/// Longest test, in the paper's time: a cache that is slower than its disks is not waited for.
const TOTAL_MAX: Nanos = 3 * 3600 * SECOND;

/// The part of the requests that may still miss in a cache that counts as warm, as its inverse.
const WARM: u64 = 1_000;

/// Half laps of the log that the SSDs have taken before what counts, and at its end.
const SETTLED_HALF_LAPS: u64 = 3;
const OVER_HALF_LAPS: u64 = 4;

/// Bytes of a write that only makes the log older: cheap to play, and random enough that what it leaves of a set goes
/// bit by bit, as it does of the test's own.
const AGE_BYTES: u64 = 64 << 10;

/// How many of these at a time.
const AGE_CLIENTS: usize = 32;

/// Bytes of a prefetch: no more than the engine takes at a time.
const PREFETCH_BYTES: u64 = 1 << 20;

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// End of the span that it stands for, from the start, in the paper's time.
    pub at: Nanos,
    /// Requests per second.
    pub iops: f64,
}

/// What a test came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Requests per second of the model's disks without a cache.
    pub without: f64,
    /// With it, at the end.
    pub with: f64,
    /// Until it lasted at nine tenths of that, in the paper's time; `None` if it never did, and if the cache was
    /// filled before.
    pub warm_up: Option<Nanos>,
    /// Since when the rate at the end was taken, from the start, in the paper's time.
    pub counted_from: Nanos,
    /// The rate from the start.
    pub curve: Vec<Point>,
    /// The share of requests at the end of which no origin was asked for anything.
    pub hit_ratio: f64,
    /// Bytes written to all SSDs, copies and all, for each byte that was admitted since the load began; 0
    /// if none was.
    pub write_amplification: f64,
    /// The share of its time that the processor of an engine was busy at the end.
    pub cpu_share: f64,
    /// Requests that were simulated.
    pub requests: u64,
}

impl Outcome {
    /// How many times as much with the cache.
    pub fn factor(&self) -> f64 {
        self.with / self.without
    }
}

/// Requests without an end.
fn orders(pattern: Pattern, span_bytes: u64, seed: u64) -> Orders {
    let mut next = pattern.requests(span_bytes, seed);
    Box::new(move || {
        let (reads, offset) = next();
        let kind = if reads { Kind::Read } else { Kind::Write };
        Some(Order { kind, offset, len: pattern.block_bytes })
    })
}

/// The time from which on a rate lasted at [`WARM_RATE`] of `with` or above: the end of the first point that is as
/// fast and after whose begin no [`WINDOW_BINS`] points in a row have a lower mean, unless the points of what counts,
/// from number `counted` on, have one as low: a rate that swings is held to be no slower than it is in the end. So
/// neither a first burst nor a single fast point makes a cache warm, and no single one that is a little
/// slower makes it cold again. `None` without such a point.
fn warm_up(curve: &[Point], counted: usize, with: f64) -> Option<Nanos> {
    let fast = WARM_RATE * with;
    let mean = |part: &[Point]| part.iter().map(|p| p.iops).sum::<f64>() / part.len() as f64;
    let windows = |part| <[Point]>::windows(part, WINDOW_BINS).map(mean);
    let least = windows(curve.get(counted..)?).fold(fast, f64::min);
    let lasting = windows(curve).rev().take_while(|&rate| rate >= least).count();
    let from = (curve.len() + 1).saturating_sub(WINDOW_BINS + lasting);
    curve.get(from..)?.iter().find(|point| point.iops >= fast).map(|point| point.at)
}

/// Sums of an engine's counters that figures are differences of.
#[derive(Clone, Copy, Default)]
struct Counts {
    at: Nanos,
    requests: u64,
    missed: u64,
    written: u64,
    admitted: u64,
    ssd: u64,
    cpu: Nanos,
}

/// An engine under load.
struct Bench<'a> {
    test: &'a Test,
    scale: u64,
    scene: Scene,
    /// Which of those side by side.
    engine: u64,
    /// What each volume holds.
    contents: Vec<Rc<Contents>>,
    loads: Vec<Load>,
    /// What goes on beside them.
    beside: Option<Load>,
    requests: u64,
    curve: Vec<Point>,
    /// When the load began.
    whole: Counts,
}

impl<'a> Bench<'a> {
    fn new(test: &'a Test, system: &System, scale: u64, engine: u64) -> Result<Self> {
        let cache = &test.cache;
        let part = |span_bytes: u64| (span_bytes / scale).next_multiple_of(1 << 20);
        let volume_bytes = part(test.pattern.span_bytes / test.volumes as u64);
        let mut volumes = vec![volume_bytes; test.volumes];
        volumes.extend(test.beside.map(|pattern| part(pattern.span_bytes)));
        let scene = Scene::new(&Setting {
            disks: &system.scaled(scale).array(),
            pool_bytes: (cache.ssd_bytes / scale) & !((1 << 20) - 1),
            ram_bytes: (cache.ram_bytes / scale) & !((2 << 20) - 1),
            volumes: &volumes,
            ssds: Ssds {
                count: cache.ssds,
                drive: cache.drive.clone(),
                dirty_copies: cache.dirty_copies,
                clean_copies: cache.clean_copies,
                write_amplification_max_percent: cache.write_amplification_max_percent,
                ..Ssds::default()
            },
            serving: Serving {
                mode: cache.mode,
                cache_block_bytes: cache.cache_block_bytes,
                settings: VolumeSettings {
                    populate: cache.populate,
                    sequential_writes: cache.sequential_writes,
                    ..VolumeSettings::default()
                },
                costs: Some(Costs::measured()),
            },
        })?;
        let blank = |size_bytes: &u64| Rc::new(Contents::blank(*size_bytes));
        let contents = volumes.iter().map(blank).collect();
        let (loads, curve, whole) = (Vec::new(), Vec::new(), Counts::default());
        let (beside, requests) = (None, 0);
        let mut bench =
            Self { test, scale, scene, engine, contents, loads, beside, requests, curve, whole };
        if test.prefilled {
            bench.prefill()?;
        }
        bench.whole = bench.counts();
        bench.start(0);
        Ok(bench)
    }

    /// Starts what the test does; another `turn` asks for other places.
    fn start(&mut self, turn: u64) {
        let test = self.test;
        let start = |volume: usize, pattern: Pattern, clients: usize| {
            let seed = turn * 10_000 + self.engine * 100 + volume as u64 + 1;
            let pace = pattern.per_s_max.map_or(0, |rate| SECOND / rate);
            let orders = orders(pattern, self.volume_bytes(volume), seed);
            self.scene.checked(volume, clients, pace, orders, &self.contents[volume])
        };
        let clients = test.pattern.depth / test.volumes;
        let loads = (0..test.volumes).map(|volume| start(volume, test.pattern, clients)).collect();
        let beside = test.beside.map(|pattern| start(test.volumes, pattern, pattern.depth));
        (self.loads, self.beside) = (loads, beside);
    }

    /// Lets everything that is under way end.
    fn stop(&mut self) -> Result<()> {
        for load in self.loads.drain(..).chain(self.beside.take()) {
            self.scene.run(load.stop())?;
        }
        Ok(())
    }

    fn volume_bytes(&self, volume: usize) -> u64 {
        self.scene.volumes[volume].size_bytes()
    }

    fn prefill(&self) -> Result<()> {
        for volume in &self.scene.volumes {
            let volume = Rc::clone(volume);
            self.scene.run(async move {
                let size_bytes = volume.size_bytes();
                for at in (0..size_bytes).step_by(PREFETCH_BYTES as usize) {
                    let len = PREFETCH_BYTES.min(size_bytes - at);
                    volume.prefetch(at, len).await.map_err(|error| error.to_string())?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn counts(&self) -> Counts {
        let counters = self.scene.pool.counters();
        let logged = counters.write_logged_bytes.get();
        Counts {
            at: self.scene.now(),
            requests: self.requests,
            missed: counters.read_misses.get() + counters.read_partial_hits.get(),
            written: counters.write_bytes.get(),
            admitted: logged + counters.populate_bytes.get(),
            ssd: self.scene.ssd_bytes(),
            cpu: self.scene.cpu_spent(),
        }
    }

    /// Lets the time of one point pass.
    fn bin(&mut self) -> Result<Counts> {
        let start = self.scene.now();
        self.scene.pass(BIN / self.scale)?;
        let mut requests = 0;
        for load in &self.loads {
            requests += load.seen()?.requests();
            load.look();
        }
        // Only its errors count.
        self.beside.as_ref().map_or(Ok(()), |load| load.seen().map(|_| load.look()))?;
        self.requests += requests;
        let span = (self.scene.now() - start).max(1);
        let at = self.curve.last().map_or(0, |point| point.at) + span * self.scale;
        self.curve.push(Point { at, iops: requests as f64 * SECOND as f64 / span as f64 });
        Ok(self.counts())
    }

    fn elapsed(&self) -> Nanos {
        self.curve.last().map_or(0, |point| point.at)
    }

    /// Bytes of all SSDs: a lap of the log, copies and all.
    fn lap_bytes(&self) -> u64 {
        self.scene.ssds_bytes
    }

    /// Until hardly anything misses, if that may be.
    fn become_warm(&mut self) -> Result<()> {
        let mut before = self.whole;
        while self.test.fits && self.elapsed() < COLD_MAX {
            let now = self.bin()?;
            let (asked, missed) = (now.requests - before.requests, now.missed - before.missed);
            before = now;
            if missed * WARM <= asked {
                break;
            }
        }
        Ok(())
    }

    /// Whether the SSDs have taken so many half laps.
    fn has_taken(&self, half_laps: u64) -> bool {
        self.scene.ssd_bytes() * 2 >= self.lap_bytes() * half_laps
    }

    /// Until the log has been written through; false if not by what counts.
    fn fill_the_log(&mut self) -> Result<bool> {
        let owed = self.test.laps * self.test.written_bytes() / self.scale;
        let mut written = self.counts().written;
        while !self.has_taken(SETTLED_HALF_LAPS) && written < owed && self.elapsed() < TOTAL_MAX {
            written = self.bin()?.written;
        }
        if self.has_taken(SETTLED_HALF_LAPS) || self.elapsed() >= TOTAL_MAX {
            return Ok(true);
        }
        let before = self.counts();
        self.stop()?;
        let pattern = Pattern::random(AGE_BYTES, 0, 0, AGE_CLIENTS / self.test.volumes);
        let age = |volume: usize| {
            let orders = orders(pattern, self.volume_bytes(volume), 1_000 + volume as u64);
            self.scene.uncharged(volume, pattern.depth, orders, &self.contents[volume])
        };
        self.loads = (0..self.test.volumes).map(age).collect();
        let bins_max = TOTAL_MAX / BIN;
        for bin in 0.. {
            if self.has_taken(2) {
                break;
            }
            if bin == bins_max {
                return Err("the log takes nothing that it could be filled with".into());
            }
            self.scene.pass(BIN / self.scale)?;
            for load in &self.loads {
                load.seen()?;
                load.look();
            }
        }
        self.stop()?;
        // It is in no figure.
        let after = self.counts();
        self.whole.ssd += after.ssd - before.ssd;
        self.whole.admitted += after.admitted - before.admitted;
        self.start(1);
        Ok(false)
    }

    fn run(mut self) -> Result<Outcome> {
        self.become_warm()?;
        let fills = self.test.fills_the_log();
        let is_settled = fills && self.fill_the_log()?;
        let laps = if fills { 1 } else { self.test.laps };
        let before = if fills { self.counts().written } else { 0 };
        let owed = before + laps * self.test.written_bytes() / self.scale;
        let is_over = |bench: &Self, now: &Counts| match is_settled {
            true => bench.has_taken(OVER_HALF_LAPS),
            false => now.written >= owed,
        };
        let (first, mut now) = (self.curve.len(), self.counts());
        let mut counts = vec![now];
        while counts.len() <= STEADY_BINS || !is_over(&self, &now) && self.elapsed() < TOTAL_MAX {
            now = self.bin()?;
            counts.push(now);
        }
        let from = if is_settled { 0 } else { (counts.len() - 1) / 2 };
        Ok(self.outcome(first + from, &counts[from], &now))
    }

    /// The outcome without the figure of the disks; what counts begins with the curve's point `first`.
    fn outcome(self, first: usize, from: &Counts, to: &Counts) -> Outcome {
        let of = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let requests = to.requests - from.requests;
        let (span, whole) = (to.at - from.at, self.whole);
        let with = requests as f64 * SECOND as f64 / span.max(1) as f64;
        Outcome {
            without: 0.0,
            with,
            warm_up: warm_up(&self.curve, first, with).filter(|_| !self.test.prefilled),
            counted_from: self.curve[..first].last().map_or(0, |point| point.at),
            hit_ratio: 1.0 - of(to.missed - from.missed, requests),
            write_amplification: of(to.ssd - whole.ssd, to.admitted - whole.admitted),
            cpu_share: of(to.cpu - from.cpu, span),
            requests: to.requests,
            curve: self.curve,
        }
    }
}

/// Two engines that share nothing, as one.
fn together(mut one: Outcome, other: &Outcome) -> Outcome {
    one.curve.truncate(other.curve.len());
    one.curve.iter_mut().zip(&other.curve).for_each(|(one, other)| one.iops += other.iops);
    Outcome {
        without: 0.0,
        with: one.with + other.with,
        // It is warm when both are.
        warm_up: one.warm_up.zip(other.warm_up).map(|(one, other)| one.max(other)),
        counted_from: one.counted_from.max(other.counted_from),
        hit_ratio: f64::midpoint(one.hit_ratio, other.hit_ratio),
        write_amplification: f64::midpoint(one.write_amplification, other.write_amplification),
        cpu_share: f64::midpoint(one.cpu_share, other.cpu_share),
        requests: one.requests + other.requests,
        curve: one.curve,
    }
}

/// Plays a test at 1/`scale` of its sizes; the same every time.
///
/// # Errors
/// If the engine cannot serve it, or serves wrong data.
pub fn play(test: &Test, scale: u64) -> Result<Outcome> {
    let one = System { groups: 1, ..test.system.clone() };
    let engine = |number| Bench::new(test, &one, scale, number).and_then(Bench::run);
    let mut outcome = engine(0)?;
    for number in 1..test.system.groups {
        outcome = together(outcome, &engine(number)?);
    }
    outcome.without = test.system.iops(test.pattern);
    Ok(outcome)
}

/// What a panic says.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("without a word"))
}

/// Plays tests, `jobs` at a time; `ended` hears the number of each that has ended. The answers are in the
/// order of the tests; one that fails, or panics, leaves the others alone.
pub fn play_all(
    tests: &[Test],
    scale: u64,
    jobs: usize,
    mut ended: impl FnMut(usize),
) -> Vec<Result<Outcome>> {
    // The long ones first, so that none of them is left alone at the end.
    let mut order: Vec<usize> = (0..tests.len()).collect();
    order.sort_by_key(|&number| std::cmp::Reverse(tests[number].work()));
    let next = AtomicUsize::new(0);
    let mut outcomes: Vec<_> = tests.iter().map(|_| Err("not played".to_owned())).collect();
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..jobs.clamp(1, tests.len().max(1)) {
            let (sender, next, order) = (sender.clone(), &next, &order);
            scope.spawn(move || {
                while let Some(&number) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // Whatever it has touched is dropped with it.
                    let played = catch_unwind(AssertUnwindSafe(|| play(&tests[number], scale)));
                    let outcome = played.unwrap_or_else(|panic| Err(said(&*panic)));
                    if sender.send((number, outcome)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (number, outcome) in receiver {
            outcomes[number] = outcome;
            ended(number);
        }
    });
    outcomes
}

/// Blocks are the unit of all of it.
const _: () = assert!(PREFETCH_BYTES.is_multiple_of(BLOCK));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::{qsan, synology};

    fn named(tests: Vec<Test>, name: &str) -> Test {
        tests.into_iter().find(|test| test.name == name).expect("it is among them")
    }

    #[test]
    fn random_overwriting_never_falls_below_the_disks_alone() {
        let outcome = play(&named(qsan::tests(), "qsan-2/2"), 128).expect("it can be played");
        let slowest = outcome.curve.iter().map(|point| point.iops).fold(f64::INFINITY, f64::min);
        assert!(outcome.requests > 200_000, "the log has been written through");
        assert!(slowest >= outcome.without, "{slowest} of {}", outcome.without);
    }

    #[test]
    fn what_counts_is_written_to_a_log_that_was_full_before() {
        // 60 GB on 400 of log, which its own writes fill.
        let test = named(qsan::tests(), "qsan-2/8");
        let mut bench = Bench::new(&test, &test.system, 128, 0).unwrap();
        bench.become_warm().unwrap();
        assert!(bench.fill_the_log().unwrap(), "by what counts");
        assert!(bench.counts().ssd * 2 >= bench.lap_bytes() * 3, "in time");
        assert!((395..405).contains(&(bench.lap_bytes() * 128 / 2_000_000_000)), "of two copies");
        let outcome = play(&test, 128).expect("it can be played");
        assert_eq!(outcome.counted_from, bench.elapsed());
        // The steady part has no first part that is faster.
        let counted = outcome.curve.iter().filter(|point| point.at > outcome.counted_from);
        let rates: Vec<f64> = counted.map(|point| point.iops).collect();
        let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
        let (first, last) = (&rates[..rates.len() / 3], &rates[rates.len() * 2 / 3..]);
        assert!(mean(first) < outcome.with * 1.1, "{} of {}", mean(first), outcome.with);
        assert!(mean(last) > outcome.with * 0.9, "{} of {}", mean(last), outcome.with);
    }

    #[test]
    fn a_log_that_is_many_spans_is_written_through_beside_the_figures() {
        let test = named(synology::tests(), "synology-a/write");
        let one = System { groups: 1, ..test.system.clone() };
        let mut bench = Bench::new(&test, &one, 128, 0).unwrap();
        bench.become_warm().unwrap();
        let points = bench.curve.len();
        bench.fill_the_log().unwrap();
        assert_eq!(bench.curve.len(), points);
        let counts = bench.counts();
        assert!(counts.ssd >= bench.lap_bytes() && bench.lap_bytes() > 6_000_000_000);
        assert!(counts.admitted - bench.whole.admitted < test.pattern.span_bytes / 128);
        // It goes on, and finds what was written.
        assert!(bench.bin().unwrap().requests > counts.requests);
    }

    /// A point every ten seconds.
    fn curve(rates: &[f64]) -> Vec<Point> {
        let points = rates.iter().zip(1..);
        points.map(|(&iops, number)| Point { at: number * BIN, iops }).collect()
    }

    #[test]
    fn warm_is_what_stays_so() {
        let points = |parts: &[(f64, usize)]| {
            let rates = parts.iter().flat_map(|&(rate, count)| vec![rate; count]);
            let curve = curve(&rates.collect::<Vec<_>>());
            warm_up(&curve, curve.len().saturating_sub(12), 100.0).map(|at| at / BIN)
        };
        assert_eq!(points(&[(10.0, 5), (95.0, 20)]), Some(6));
        assert_eq!(points(&[(100.0, 20)]), Some(1));
        // A first burst into an empty log, however long.
        assert_eq!(points(&[(200.0, 12), (30.0, 9), (100.0, 20)]), Some(22));
        // One fast point, and one slow one.
        assert_eq!(points(&[(10.0, 5), (100.0, 1), (10.0, 5), (100.0, 20)]), Some(12));
        assert_eq!(points(&[(10.0, 5), (100.0, 8), (70.0, 1), (100.0, 20)]), Some(6));
        // What counts swings as much; and not as much.
        let swings = [(70.0, 6), (130.0, 6)];
        assert_eq!(points(&[&[(10.0, 5), (130.0, 6)][..], &swings, &swings].concat()), Some(6));
        assert_eq!(points(&[&[(130.0, 6), (60.0, 6), (130.0, 6)][..], &swings].concat()), Some(13));
        // Never.
        assert_eq!(points(&[(10.0, 20)]), None);
        assert_eq!(points(&[]), None);
    }

    #[test]
    fn a_test_that_fails_or_panics_leaves_the_others_their_results() {
        let good = Test { laps: 0, ..named(qsan::tests(), "qsan-1/2") };
        let mut failing = good.clone();
        failing.cache.ssd_bytes = 0;
        let mut panicking = good.clone();
        panicking.volumes = 0;
        let outcomes = play_all(&[failing, good, panicking], 128, 2, |_| ());
        assert!(outcomes[0].as_ref().is_err_and(|error| !error.contains("panicked")));
        assert!(outcomes[1].is_ok());
        assert!(outcomes[2].as_ref().is_err_and(|error| error.contains("panicked: ")));
    }
}

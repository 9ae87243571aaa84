//! One test: an engine on modelled devices under the paper's load until its figures are final.
//!
//! 1. From empty (or prefilled) until hardly anything misses any more, or for [`COLD_MAX`].
//! 2. On until the span was written over as often as the test says, and for [`STEADY_BINS`] at the least.
//!    What counts is the later half of this, so a cache that fills up counts as a full one.
//!
//! Warm-up is the time until the rate first came to nine tenths of that.

use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use forebay_device::Nanos;
use forebay_device::runtime::SECOND;
use forebay_engine::VolumeSettings;

use super::Test;
use super::array::{Pattern, System};
use crate::scene::cpu::Costs;
use crate::scene::load::{BLOCK, Kind, Load, Order, Orders};
use crate::scene::{Result, Scene, Serving, Setting, Ssds};

/// One point of a curve, in the paper's time.
const BIN: Nanos = 10 * SECOND;

/// Points of the final phase at the least.
const STEADY_BINS: usize = 6;

/// Longest time to become warm, in the paper's time: twice the slowest paper's.
const COLD_MAX: Nanos = 46 * 60 * SECOND;

/// Longest test, in the paper's time: a cache that is slower than its disks is not waited for.
const TOTAL_MAX: Nanos = 3 * 3600 * SECOND;

/// The part of the requests that may still miss in a cache that counts as warm, as its inverse.
const WARM: u64 = 1_000;

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
    /// Until nine tenths of that, in the paper's time; `None` if the cache was filled before.
    pub warm_up: Option<Nanos>,
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
        let kind = if reads { Kind::ReadEither } else { Kind::Write };
        Some(Order { kind, offset, len: pattern.block_bytes })
    })
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
        let (loads, curve, whole) = (Vec::new(), Vec::new(), Counts::default());
        let mut bench = Self { test, scale, scene, loads, beside: None, requests: 0, curve, whole };
        if test.prefilled {
            bench.prefill()?;
        }
        bench.whole = bench.counts();
        let start = |volume: usize, pattern: Pattern, clients: usize| {
            let seed = engine * 100 + volume as u64 + 1;
            let pace = pattern.per_s_max.map_or(0, |rate| SECOND / rate);
            bench.scene.paced(volume, clients, pace, orders(pattern, volumes[volume], seed))
        };
        let clients = test.pattern.depth / test.volumes;
        let loads = (0..test.volumes).map(|volume| start(volume, test.pattern, clients)).collect();
        let beside = test.beside.map(|pattern| start(test.volumes, pattern, pattern.depth));
        (bench.loads, bench.beside) = (loads, beside);
        Ok(bench)
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

    fn run(mut self) -> Result<Outcome> {
        let mut before = self.whole;
        while self.test.fits && self.elapsed() < COLD_MAX {
            let now = self.bin()?;
            let (asked, missed) = (now.requests - before.requests, now.missed - before.missed);
            before = now;
            if missed * WARM <= asked {
                break;
            }
        }
        let first = self.curve.len();
        let mut counts = vec![before];
        let patterns = [Some(self.test.pattern), self.test.beside].into_iter().flatten();
        let written = patterns.filter(|pattern| pattern.read_percent < 100);
        let span = written.map(|pattern| pattern.span_bytes).sum::<u64>();
        let owed = self.test.laps * span / self.scale;
        while counts.len() <= STEADY_BINS
            || counts[counts.len() - 1].written < owed && self.elapsed() < TOTAL_MAX
        {
            let now = self.bin()?;
            counts.push(now);
        }
        let half = (counts.len() - 1) / 2;
        Ok(self.outcome(first + half, &counts[half], &counts[counts.len() - 1]))
    }

    /// The outcome without the figure of the disks.
    fn outcome(self, first: usize, from: &Counts, to: &Counts) -> Outcome {
        let of = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let requests = to.requests - from.requests;
        let (span, whole) = (to.at - from.at, self.whole);
        let with = requests as f64 * SECOND as f64 / span.max(1) as f64;
        let warm = self.curve[..first.max(1)].iter().find(|point| point.iops >= 0.9 * with);
        let took = warm.or(self.curve.get(first)).map(|point| point.at);
        Outcome {
            without: 0.0,
            with,
            warm_up: took.filter(|_| !self.test.prefilled),
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
        warm_up: one.warm_up.max(other.warm_up),
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

/// Plays tests, `jobs` at a time; `ended` hears the number of each that has ended. The answers are in the
/// order of the tests.
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
                    if sender.send((number, play(&tests[number], scale))).is_err() {
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
    use crate::papers::qsan;

    #[test]
    fn random_overwriting_never_falls_below_the_disks_alone() {
        let tests = qsan::tests();
        let test = tests.iter().find(|test| test.name == "qsan-2/2").expect("it is among them");
        let outcome = play(test, 128).expect("it can be played");
        let slowest = outcome.curve.iter().map(|point| point.iops).fold(f64::INFINITY, f64::min);
        assert!(outcome.requests > 200_000, "the log has been written through");
        assert!(slowest >= outcome.without, "{slowest} of {}", outcome.without);
    }
}

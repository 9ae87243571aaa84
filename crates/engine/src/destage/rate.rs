//! How fast an origin is destaged to. Arithmetic alone: time, latencies and pressure are handed in.
//!
//! * What clients wait for the origin is compared with what they wait when nothing is destaged
//!   ([`Pace::note_read`]); a PI controller turns that into a share of the full depth.
//! * Every term has bounds: the error lies in -1..1, the integral and the share in 0..1. What is out
//!   of bounds is cut off and not summed up, so nothing runs away while an origin cannot do better,
//!   and nothing has to be worked off afterwards.
//! * Near the limit the share has a lower bound that rises to 1 ([`urgency`]): then writers would
//!   stall, and readers have to bear it.

use forebay_device::Nanos;
use forebay_device::runtime::{MICROSECOND, MILLISECOND, SECOND};

/// Buckets of a [`Latencies`]: eight for each doubling from 1 us on, so up to 36 minutes.
const BUCKETS: usize = 248;

/// Latencies of late, by size; older ones count less.
pub(super) struct Latencies {
    weights: [f32; BUCKETS],
    total: f32,
}

fn bucket_of(span: Nanos) -> usize {
    let us = (span / MICROSECOND).max(1);
    let octave = us.ilog2();
    // The three bits behind the first one.
    let eighth = (us << 3 >> octave) & 7;
    (octave as usize * 8 + eighth as usize).min(BUCKETS - 1)
}

/// What no latency of a bucket reaches.
fn upper_end(bucket: usize) -> Nanos {
    let (octave, eighth) = (bucket as u32 / 8, bucket as u64 % 8);
    ((eighth + 9) << octave >> 3).max((1 << octave) + 1) * MICROSECOND
}

impl Default for Latencies {
    fn default() -> Self {
        Self { weights: [0.0; BUCKETS], total: 0.0 }
    }
}

impl Latencies {
    pub(super) fn record(&mut self, span: Nanos) {
        self.weights[bucket_of(span)] += 1.0;
        self.total += 1.0;
    }

    /// Makes all that is recorded count less, by a factor of 0..1.
    pub(super) fn fade(&mut self, factor: f32) {
        self.total = 0.0;
        for weight in &mut self.weights {
            *weight *= factor;
            // Sums of what has faded away are worth nothing, and slow when they are denormal.
            *weight = if *weight < 1e-3 { 0.0 } else { *weight };
            self.total += *weight;
        }
    }

    /// How many are recorded, faded ones in part.
    pub(super) fn count(&self) -> f32 {
        self.total
    }

    /// What this share of them stays below.
    pub(super) fn quantile(&self, share: f32) -> Nanos {
        let mut left = self.total * share;
        for (bucket, weight) in self.weights.iter().enumerate() {
            left -= weight;
            if left <= 0.0 && *weight > 0.0 {
                return upper_end(bucket);
            }
        }
        0
    }
}

/// The quantile that stands for "slow": the 99th needs too many reads to follow within a second.
const SLOW: f32 = 0.95;

/// Steps of the controller: short beside the seconds in which latencies fade, long beside a read.
pub(super) const STEP: Nanos = 100 * MILLISECOND;

/// Time in which what was measured beside destaging counts half.
const FADE_HALF: f32 = 1.0;

/// Reads without destaging that are enough to compare with, how many are a good sample, and how many
/// are remembered.
const ALONE_MIN: f32 = 48.0;
const ALONE_GOOD: f32 = 256.0;
const ALONE_MAX: f32 = 512.0;

/// Reads beside destaging that are enough to compare.
const BESIDE_MIN: f32 = 8.0;

/// How long, and how often, destaging pauses to see what reads take without it.
const PROBE: Nanos = SECOND;
const PROBE_EVERY: Nanos = 60 * SECOND;

/// Reads may take so many times what they take alone. The bound for clients is 2, of the 99th
/// percentile; this leaves some room to swing.
const SLOWDOWN_MAX: f64 = 1.9;

/// And so much longer whatever they take alone: on a fast origin twice of nearly nothing is nothing.
const SLACK: Nanos = MILLISECOND;

/// Gains: proportional; integral for each second, upwards and downwards. Found by trying on the
/// modelled arrays: half and twice of each still settle.
const GAIN: f64 = 0.2;
const GAIN_UP: f64 = 0.15;
const GAIN_DOWN: f64 = 0.6;

/// Pressure from which the lower bound of the share rises, and time to the limit from which it does.
const PRESSURE_URGENT: f64 = 0.8;
const LIMIT_NEAR: f64 = 30.0;
const LIMIT_HERE: f64 = 5.0;

/// The lower bound of the share: 0 far from the limit, 1 at it.
pub(super) fn urgency(pressure: f64, limit_in_s: Option<f64>) -> f64 {
    let by_pressure = (pressure - PRESSURE_URGENT) / (1.0 - PRESSURE_URGENT);
    let by_time = limit_in_s.map_or(0.0, |left| (LIMIT_NEAR - left) / (LIMIT_NEAR - LIMIT_HERE));
    // Where nothing is owed to speak of, a burst is no reason to hurry.
    let by_time = if pressure < PRESSURE_URGENT / 2.0 { 0.0 } else { by_time };
    by_pressure.max(by_time).clamp(0.0, 1.0)
}

/// A PI controller of the share of an origin that destaging takes.
#[derive(Debug)]
pub(super) struct Controller {
    integral: f64,
    share: f64,
}

impl Default for Controller {
    fn default() -> Self {
        Self { integral: 1.0, share: 1.0 }
    }
}

impl Controller {
    /// One step of `span_s` seconds. `slowdown` is what reads take beside destaging, in parts of what
    /// they may take: 1 is just right, `None` that nobody reads or nobody knows.
    pub(super) fn step(&mut self, span_s: f64, slowdown: Option<f64>, floor: f64) -> f64 {
        let error = slowdown.map_or(1.0, |slowdown| 1.0 - slowdown);
        let error = if error.is_finite() { error.clamp(-1.0, 1.0) } else { -1.0 };
        let gain = if error < 0.0 { GAIN_DOWN } else { GAIN_UP };
        let span_s = if span_s.is_finite() { span_s.clamp(0.0, 1.0) } else { 0.0 };
        let floor = if floor.is_finite() { floor.clamp(0.0, 1.0) } else { 0.0 };
        // It never leaves its bounds, so it follows at once when the error changes its sign.
        self.integral = (self.integral + gain * error * span_s).clamp(0.0, 1.0);
        self.share = (self.integral + GAIN * error).clamp(0.0, 1.0).max(floor);
        self.share
    }
}

/// The share of a depth in writes under way: each tenth of the share is the same factor, since
/// what a queue of disks delivers grows with the logarithm of its length.
pub(super) fn depth(share: f64, most: f64) -> usize {
    let most = most.max(1.0);
    (most.powf(share.clamp(0.0, 1.0)).round() as usize).max(1)
}

/// Longest batch while readers are spared: what is longer keeps them waiting for far too long.
const BATCH_MAX: f64 = 256.0;

/// Writes under way with which the search for the best depth begins.
const DEPTH_FIRST: usize = 128;

/// How long, and how many blocks, one depth is tried; with fewer blocks chance decides.
const EPOCH: Nanos = SECOND / 2;
const EPOCH_BLOCKS: u64 = 512;
const EPOCH_MAX: Nanos = 4 * SECOND;

/// Each step changes the depth by this factor, the fourth root of 2.
const DEPTH_STEP: f64 = 1.189_207_115;

/// A deeper queue must bring this much more, a shallower one may bring this much less.
const DEEPER_GAIN: f64 = 1.02;
const SHALLOWER_LOSS: f64 = 0.99;

/// Epochs at the depth found before another one is tried.
const HOLD_EPOCHS: u32 = 8;

/// What a [`Climb`] is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// The rate at the depth found is measured, for so many more epochs.
    Hold(u32),
    Deeper,
    Shallower,
}

/// Looks for the depth at which an origin takes most. An array's disks each have a queue; with too
/// few writes under way some of them are idle, with too many what belongs together waits in front
/// of them, and where that begins depends on the array and on how dense the writes are.
#[derive(Debug)]
pub(super) struct Climb {
    depth: f64,
    depth_max: f64,
    /// Blocks a second at `depth`.
    rate: f64,
    trial: Trial,
    /// Whether the next trial is a deeper queue.
    deeper: bool,
    began: Nanos,
    blocks: u64,
}

impl Climb {
    pub(super) fn new(now: Nanos, depth_max: usize) -> Self {
        let depth_max = depth_max.max(1);
        Self {
            depth: depth_max.min(DEPTH_FIRST) as f64,
            depth_max: depth_max as f64,
            rate: 0.0,
            trial: Trial::Hold(1),
            deeper: true,
            began: now,
            blocks: 0,
        }
    }

    /// The depth to be kept now.
    pub(super) fn depth(&self) -> f64 {
        let depth = match self.trial {
            Trial::Hold(_) => self.depth,
            Trial::Deeper => self.depth * DEPTH_STEP,
            Trial::Shallower => self.depth / DEPTH_STEP,
        };
        depth.clamp(1.0, self.depth_max)
    }

    /// What is measured from here on counts; what was before does not, for the pipeline was not full.
    pub(super) fn restart(&mut self, now: Nanos, blocks: u64) {
        (self.began, self.blocks) = (now, blocks);
    }

    /// Tells how many blocks have been written so far, the pipeline having been full.
    pub(super) fn step(&mut self, now: Nanos, blocks: u64) {
        let span = now.saturating_sub(self.began);
        let count = blocks.saturating_sub(self.blocks);
        if span < EPOCH || (count < EPOCH_BLOCKS && span < EPOCH_MAX) {
            return;
        }
        let rate = count as f64 * SECOND as f64 / span as f64;
        self.restart(now, blocks);
        self.trial = match self.trial {
            Trial::Hold(left) => {
                // The writes change as the elevator moves on, and the rate with them.
                self.rate = rate;
                match (left, self.deeper) {
                    (2.., _) => Trial::Hold(left - 1),
                    (_, true) if self.depth < self.depth_max => Trial::Deeper,
                    (_, false) if self.depth > 1.0 => Trial::Shallower,
                    _ => Trial::Hold(HOLD_EPOCHS),
                }
            }
            trial => {
                let depth = self.depth();
                let factor = if trial == Trial::Deeper { DEEPER_GAIN } else { SHALLOWER_LOSS };
                let better = rate >= self.rate * factor;
                if better {
                    (self.depth, self.rate) = (depth, rate);
                }
                // On in the direction that pays; else the other one, later.
                match (better, trial) {
                    (true, Trial::Deeper) if depth < self.depth_max => Trial::Deeper,
                    (true, Trial::Shallower) if depth > 1.0 => Trial::Shallower,
                    _ => Trial::Hold(HOLD_EPOCHS),
                }
            }
        };
        if matches!(self.trial, Trial::Hold(HOLD_EPOCHS)) {
            self.deeper = !self.deeper || self.depth <= 1.0;
            self.deeper &= self.depth < self.depth_max;
        }
    }
}

/// What the controller of one origin knows, and what it has decided.
pub(crate) struct Pace {
    alone: Latencies,
    beside: Latencies,
    controller: Controller,
    stepped: Nanos,
    /// When the last look at undisturbed reads began.
    probed: Option<Nanos>,
    probing: bool,
    share: f64,
    /// Lower bound of the share: how urgent it is.
    floor: f64,
    climb: Climb,
}

impl Pace {
    pub(crate) fn new(now: Nanos, depth_max: usize) -> Self {
        Self {
            climb: Climb::new(now, depth_max),
            alone: Latencies::default(),
            beside: Latencies::default(),
            controller: Controller::default(),
            stepped: now,
            probed: None,
            probing: false,
            share: 1.0,
            floor: 0.0,
        }
    }

    /// Notes what a client's read of the origin took; `alone` if nothing was destaged meanwhile.
    pub(crate) fn note_read(&mut self, span: Nanos, alone: bool) {
        if !alone {
            return self.beside.record(span);
        }
        if self.alone.count() >= ALONE_MAX {
            self.alone.fade(0.5);
        }
        self.alone.record(span);
    }

    /// What a read may take beside destaging, if that is known.
    fn bound(&self) -> Option<Nanos> {
        let known = self.alone.count() >= ALONE_MIN;
        known.then(|| (self.alone.quantile(SLOW) as f64 * SLOWDOWN_MAX) as Nanos + SLACK)
    }

    /// How long a read may have been under way before no more writes are begun beside it.
    pub(super) fn patience(&self) -> Option<Nanos> {
        let known = self.alone.count() >= ALONE_MIN && self.floor < 1.0;
        known.then(|| self.alone.quantile(SLOW) + SLACK)
    }

    /// The same amid a write, if readers are to be spared.
    pub(crate) fn patience_beside(&self) -> Option<Nanos> {
        self.patience().filter(|_| self.spares())
    }

    /// Tells how many blocks have been written so far, and whether there was always a next one.
    pub(super) fn note_blocks(&mut self, now: Nanos, blocks: u64, full: bool) {
        if full && self.share >= 1.0 && !self.probing {
            self.climb.step(now, blocks);
        } else {
            self.climb.restart(now, blocks);
        }
    }

    /// Decides anew if a step has passed.
    pub(super) fn step(&mut self, now: Nanos, pressure: f64, limit_in_s: Option<f64>) {
        let span = now.saturating_sub(self.stepped);
        if span < STEP {
            return;
        }
        self.stepped = now;
        let span_s = span as f64 / SECOND as f64;
        self.beside.fade(0.5f32.powf(span_s as f32 / FADE_HALF));
        let floor = urgency(pressure, limit_in_s);
        self.floor = floor;
        let reading = self.beside.count() >= BESIDE_MIN;
        let slowdown = self
            .bound()
            .filter(|_| reading)
            .map(|bound| self.beside.quantile(SLOW) as f64 / bound as f64);
        self.share = self.controller.step(span_s, slowdown, floor);
        self.probe(now, floor > 0.0 || !reading);
    }

    /// Begins and ends a look at what reads take when nothing is destaged.
    fn probe(&mut self, now: Nanos, needless: bool) {
        if self.probing {
            let over = self.probed.is_none_or(|began| now - began >= PROBE);
            self.probing = !over && !needless && self.alone.count() < ALONE_GOOD;
            return;
        }
        let due = self.probed.is_none_or(|began| now - began >= PROBE_EVERY);
        if due && !needless {
            self.probed = Some(now);
            self.probing = true;
            // What it was long ago says little.
            self.alone = Latencies::default();
        }
    }

    /// Whether clients read the origin and are to be spared.
    pub(super) fn spares(&self) -> bool {
        self.beside.count() >= BESIDE_MIN && self.floor < 1.0
    }

    /// The writes that may be under way, or the stripes of one write.
    pub(super) fn depth(&self) -> usize {
        // Where readers are spared it is the length of a batch, which has its own best.
        let most =
            if self.spares() { self.climb.depth_max.min(BATCH_MAX) } else { self.climb.depth() };
        if self.probing { 0 } else { depth(self.share, most) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_within_a_ninth_and_old_latencies_fade_away() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile(0.95), 0);
        for span in [0, 700, 1_000, 9_000_000, 20_000_000, 3_000_000_000] {
            let end = upper_end(bucket_of(span));
            assert!(end > span && end <= span + span / 8 + 2 * MICROSECOND, "{span}: {end}");
        }
        assert!(bucket_of(u64::MAX) == BUCKETS - 1);
        (0..95).for_each(|_| latencies.record(10 * MILLISECOND));
        (0..5).for_each(|_| latencies.record(80 * MILLISECOND));
        assert!((10..12).contains(&(latencies.quantile(0.9) / MILLISECOND)));
        assert!((80..91).contains(&(latencies.quantile(0.99) / MILLISECOND)));
        (0..40).for_each(|_| latencies.fade(0.5));
        assert!(latencies.count() == 0.0);
    }

    /// The shares that a controller gives an origin, on which reads take `slowdown(share)` of what
    /// they may, half a second late.
    fn play(controller: &mut Controller, steps: usize, slowdown: impl Fn(f64) -> f64) -> Vec<f64> {
        let mut shares = vec![controller.share; 5];
        for _ in 0..steps {
            let seen = slowdown(shares[shares.len() - 5]);
            shares.push(controller.step(0.1, Some(seen), 0.0));
        }
        shares.split_off(5)
    }

    #[test]
    fn the_share_settles_where_reads_take_what_they_may() {
        for full in [1.5, 2.0, 4.0, 10.0] {
            let mut controller = Controller::default();
            // Reads get slower in proportion to the share, from nothing to `full` times the bound.
            let shares = play(&mut controller, 1200, |share| full * share);
            let late = &shares[600..];
            let mean = late.iter().sum::<f64>() / late.len() as f64;
            assert!((mean - 1.0 / full).abs() < 0.15, "{full}: {mean}");
            let (low, high) =
                late.iter().fold((1.0f64, 0.0f64), |(l, h), s| (l.min(*s), h.max(*s)));
            assert!(high - low < 0.5, "{full}: {low}..{high}");
        }
    }

    #[test]
    fn an_origin_that_cannot_do_better_leaves_nothing_to_work_off() {
        let mut controller = Controller::default();
        // Hours of reads that are too slow whatever is done, or of numbers that are none.
        play(&mut controller, 100_000, |_| 1e9);
        assert!(controller.share == 0.0 && controller.integral == 0.0);
        play(&mut controller, 10, |_| f64::NAN);
        assert!(controller.share == 0.0);
        let recovered = play(&mut controller, 80, |_| 0.1);
        assert!(recovered[79] > 0.9, "{}", recovered[79]);
        // Hours of nobody reading: all of it, and no more, and a step back at once.
        (0..100_000).for_each(|_| assert!(controller.step(0.1, None, 0.0) <= 1.0));
        assert!(controller.share == 1.0);
        let shares = play(&mut controller, 30, |_| 3.0);
        assert!(shares[29] < 0.1, "{}", shares[29]);
        // A clock that jumps counts as one second.
        controller.step(1e9, Some(0.0), 0.0);
        assert!(controller.integral <= GAIN_UP + 1e-9);
    }

    #[test]
    fn near_the_limit_the_share_has_a_lower_bound_and_far_from_it_none() {
        assert!(urgency(0.0, None) == 0.0 && urgency(0.8, Some(100.0)) == 0.0);
        assert!(urgency(1.0, None) == 1.0 && urgency(7.0, None) == 1.0);
        assert!(urgency(0.6, Some(5.0)) == 1.0 && urgency(0.6, Some(0.0)) == 1.0);
        assert!(urgency(0.1, Some(1.0)) == 0.0, "there is room for the burst");
        let mut last = 0.0;
        for step in 0..=100 {
            let now = urgency(f64::from(step) / 100.0, None);
            assert!(now >= last && now - last < 0.06);
            last = now;
        }
        let mut controller = Controller::default();
        play(&mut controller, 1000, |_| 10.0);
        assert!(controller.step(0.1, Some(10.0), 1.0) == 1.0);
    }

    #[test]
    fn the_depth_is_never_none_and_never_more_than_the_most() {
        assert!(depth(0.0, 256.0) == 1 && depth(1.0, 256.0) == 256 && depth(0.5, 256.0) == 16);
        assert!(depth(2.0, 8.0) == 8 && depth(-1.0, 0.0) == 1);
    }

    /// The depth that the search arrives at, and its mean rate in parts of the best one.
    fn climbed(depth_max: usize, rate: impl Fn(f64) -> f64, best: f64) -> (f64, f64) {
        let mut climb = Climb::new(0, depth_max);
        let (mut blocks, mut now) = (0.0, 0);
        for _ in 0..4_000 {
            now += 50 * MILLISECOND;
            blocks += rate(climb.depth()) / 20.0;
            climb.step(now, blocks as u64);
            assert!((1.0..=depth_max as f64).contains(&climb.depth()));
        }
        (climb.depth, blocks / 200.0 / best)
    }

    #[test]
    fn the_search_finds_the_deepest_queue_that_pays() {
        // Like the modelled array: in proportion to the depth, and a cliff behind.
        let array =
            |cliff: f64| move |depth: f64| if depth <= cliff { 40.0 * depth } else { 2000.0 };
        for cliff in [60.0, 128.0, 181.1, 256.0] {
            let (depth, share) = climbed(256, array(cliff), 40.0 * cliff);
            assert!(depth <= cliff && depth * DEPTH_STEP * DEPTH_STEP > cliff, "{cliff}: {depth}");
            assert!(share > 0.75, "{cliff}: {share}");
        }
        // Where more does not pay, less is found to do as well.
        let (depth, share) = climbed(256, |depth| 1000.0 * (depth / 4.0).min(1.0), 1000.0);
        assert!(depth < 16.0 && share > 0.9, "{depth} {share}");
        assert!(climbed(1, |_| 100.0, 100.0).0 == 1.0);
    }

    #[test]
    fn destaging_pauses_to_see_reads_alone_and_then_never_for_long() {
        let mut pace = Pace::new(0, 64);
        let (mut now, mut paused) = (0, 0);
        for _ in 0..3_000 {
            now += STEP;
            let alone = pace.depth() == 0;
            paused += u64::from(alone);
            (0..30).for_each(|_| pace.note_read(10 * MILLISECOND, alone));
            pace.step(now, 0.0, None);
        }
        assert!(pace.patience().is_some_and(|most| most < 13 * MILLISECOND));
        assert!((1..=60).contains(&paused), "{paused} of 3000 steps");
        // Under pressure there is no pause and no patience.
        for _ in 0..1_000 {
            now += STEP;
            (0..30).for_each(|_| pace.note_read(10 * MILLISECOND, false));
            pace.step(now, 1.0, None);
            assert!(pace.depth() > 0 && pace.patience().is_none());
        }
    }
}

//! What destaging makes room for, as far as can be told: how much writers may have for as long as they like.

#[cfg(test)]
mod tests;

use forebay_device::Nanos;
use forebay_device::runtime::{MILLISECOND, SECOND};

use super::ALLOWANCE_MAX;
use crate::limits::THROTTLE_RATE_MIN;
use crate::segment::{OWED_LEVELS, Outlook};

/// Bytes a second that an origin is taken to do before it was seen at work: a few disks.
const DRAIN_GUESS: f64 = (8 << 20) as f64;

/// Time over which what is destaged is averaged.
const FORECAST_SPAN: Nanos = 5 * SECOND;

/// Bytes written over which it is averaged how much live data grows.
const GROWTH_SPAN_BYTES: f64 = (64 << 20) as f64;

/// How often what is to come is looked at: each set is, then. In a pool of more segments than
/// [`FORECAST_SEGMENTS`] as much less often: it takes as much longer to become another one.
const FORECAST_INTERVAL: Nanos = 20 * MILLISECOND;

/// Segments that are looked at in a hundredth of that interval (a few ns each).
const FORECAST_SEGMENTS: u64 = 16_384;

/// Part of a segment up to which owed data is moved, so that the segment need not wait for the rest. The
/// policy takes three times as much, but not while blocks of it wait for an origin flush.
const OWED_FEW: f64 = 0.04;

/// The same where the pool has room to pack half empty segments together.
const OWED_HALF: f64 = 0.45;

/// Part of a segment that is clients' data: the rest are headers, the footer, and what checkpoints and
/// facts take.
const PACKED: f64 = 0.8;

/// Part of the pool by which writers are slowed down before dirty data is at its limit: an elevator
/// that begins with all sets full of it frees the first one only at its end, and what is left for
/// writers until then must be about as much as there is to destage.
const EARLIER: f64 = 0.1;

/// Bytes that are kept for that in a pool where it is much less, and the part of the segments up to
/// which dirty data then gets at any speed: a burst of half a minute into a half-dirty pool.
const BURST_ROOM_BYTES: f64 = (4_u64 << 30) as f64;
/// See [`BURST_ROOM_BYTES`].
const LATEST: f64 = 0.85;

/// Part of the pool over which writers are slowed down from any rate to what can be sustained.
const RAMP: f64 = 0.06;

/// What a look sees, in bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    /// Destaged so far.
    pub destaged: u64,
    /// Written so far that origins must make room for.
    pub written: u64,
    /// Owed to origins.
    pub owed: u64,
    /// Live in the log, one copy of it.
    pub live: u64,
}

/// What destaging can do, and what it makes possible.
pub(super) struct Forecast {
    /// Bytes a second that are destaged where room must be made.
    drained: f64,
    /// Part of what is written that overwrites owed data.
    overwritten: f64,
    /// Part of what is written that makes live data more.
    grown: f64,
    /// When and at what counts these were right.
    seen: (Nanos, Counts),
    /// Since when destaging has made room without a break.
    since: Option<Nanos>,
}

impl Forecast {
    pub(super) fn new() -> Self {
        Self {
            drained: DRAIN_GUESS,
            overwritten: 0.0,
            grown: 0.0,
            seen: Default::default(),
            since: None,
        }
    }

    /// Whether it is time for a look at a pool of so many segments.
    pub(super) fn is_due(&self, now: Nanos, segments: u64) -> bool {
        now - self.seen.0 >= FORECAST_INTERVAL * segments.div_ceil(FORECAST_SEGMENTS)
    }

    /// Takes a look at what has been done since the last one.
    pub(super) fn look(&mut self, now: Nanos, pressed: bool, counts: Counts) {
        let (then, before) = std::mem::replace(&mut self.seen, (now, counts));
        // What there was at a start was not written since.
        let before = if then == 0 { counts } else { before };
        let change = |of: fn(&Counts) -> u64| of(&counts) as f64 - of(&before) as f64;
        let (destaged, wrote) = (change(|c| c.destaged), change(|c| c.written));
        if wrote > 0.0 {
            // Sets are emptied as a whole, so that single looks are above 1 and far below 0; what a member takes with
            // it is no measure.
            let grown = self.grown * GROWTH_SPAN_BYTES + change(|c| c.live);
            self.grown = (grown / (wrote + GROWTH_SPAN_BYTES)).clamp(-1.0, 2.0);
        }
        let since = *self.since.get_or_insert(now);
        if !pressed {
            self.since = None;
            return;
        }
        if now == since || now == then {
            return;
        }
        let span = (now - then) as f64;
        let weight = span / (span.max((now - since).min(FORECAST_SPAN) as f64));
        let drained = destaged * SECOND as f64 / span;
        self.drained += (drained - self.drained) * weight;
        self.drained = self.drained.max(THROTTLE_RATE_MIN as f64 / 4.0);
        if wrote > 0.0 {
            let overwritten = (1.0 - (change(|c| c.owed) + destaged) / wrote).clamp(0.0, 1.0);
            self.overwritten += (overwritten - self.overwritten) * weight;
        }
    }

    /// Bytes a second that can be written for as long as one likes: whenever a set becomes free, what
    /// was written until then has fitted what was free before. The elevator goes through the addresses
    /// while sets hold random ones: so what is left of each is destaged at the same speed, all of a
    /// full one in the time that as much as all sets together takes; what is overwritten meanwhile
    /// leaves them in proportion. A set with `few` owed blocks is emptied without destaging them.
    fn sustained(&self, outlook: &Outlook, few: f64) -> f64 {
        let part = |level: usize| level as f64 / (OWED_LEVELS - 1) as f64;
        let levels = || outlook.owed.iter().enumerate().filter(|(_, count)| **count > 0);
        let segments: u64 = outlook.owed.iter().sum();
        let owed: f64 = levels().map(|(level, &count)| part(level) * count as f64).sum();
        let (mut room, mut factor) = (PACKED * outlook.free as f64, f64::INFINITY);
        for (level, &count) in levels() {
            let overwritten = (self.overwritten * room / owed.max(1.0)).exp();
            let swept = part(level) - few * overwritten;
            if swept > 0.0 {
                factor = factor.min(room / (swept * segments as f64));
            }
            room += PACKED * count as f64 * (1.0 - few.min(part(level)));
        }
        factor * self.drained
    }

    /// Bytes a second that writers may have, where dirty data may take `percent` of the segments
    /// before anybody is held back.
    pub(super) fn limit(&self, outlook: &Outlook, percent: u32, segment_bytes: f64) -> u64 {
        let total = outlook.total.max(1) as f64;
        let early = f64::from(percent) / 100.0 - EARLIER;
        let late = (1.0 - BURST_ROOM_BYTES / (total * segment_bytes)).min(LATEST);
        let above = outlook.unpackable / total - early.max(late);
        if above <= 0.0 {
            return ALLOWANCE_MAX;
        }
        let eased = (above / RAMP).min(1.0);
        // Where much of the log is overwritten, sets that are half empty are moved together; as much as then, when
        // what is free now has been written to.
        let filled = outlook.free as f64 * self.grown.clamp(0.0, 1.0);
        let few = OWED_FEW + (OWED_HALF - OWED_FEW) * outlook.roominess_with(filled);
        let limit = self.sustained(outlook, few) / (eased * eased);
        (limit.min(ALLOWANCE_MAX as f64) as u64).max(THROTTLE_RATE_MIN / 4)
    }
}

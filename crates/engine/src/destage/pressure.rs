//! How much room dirty data leaves.

use forebay_device::Nanos;
use forebay_device::runtime::SECOND;

use crate::core::Core;
use crate::limits::PARTIALS_MAX;

/// Part of the pool, in percent, that others than rewritten data must owe to origins for that to be left
/// where it is.
const SPARING_PERCENT: u64 = 10;

/// Time for which room may be very short before it comes from there as well. What is destaged is clean,
/// and then leaves the cache, although it is hot.
const SPARING_PATIENCE: Nanos = SECOND;

/// Why writers are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// Dirty data is near its limit, and origins take no more.
    Dirty,
    /// The log is nearly full, and room is being made.
    Room,
}

impl Core {
    /// Why writers are held back at present, if one of them is.
    pub(crate) fn delay(&self) -> Option<Delay> {
        let why = if self.throttle.is_limiting() { Delay::Dirty } else { Delay::Room };
        self.throttle.is_holding().then_some(why)
    }

    /// How near dirty data is to what it may take: 0 with none of it, 1 where room must be made at any
    /// price. Of segments with owed data that packing cannot free, partial blocks and the index, what is
    /// fullest counts.
    pub(crate) fn pressure(&self) -> f64 {
        let sets = self.sets.borrow();
        let owed = sets.owed_segments();
        let limit = sets.total_count() * self.tuning.owed_segments_percent as usize / 100;
        if (sets.is_low() && owed > 0 && self.reclaim_stuck.get()) || self.throttle.is_limiting() {
            // Nothing but destaging makes room, or writers wait for it.
            return 1.0;
        }
        // Where reclaim has nothing that it may take, nothing is packed.
        let packs = !self.reclaim_stuck.get();
        let segments = if packs { sets.unpackable_segments() } else { owed as f64 };
        let segments = segments / (limit + 1) as f64;
        segments.max(self.side_pressure()).clamp(0.0, 1.0)
    }

    /// The same of what is not room in the log: partial blocks and the index.
    fn side_pressure(&self) -> f64 {
        let partials = self.partials.get() as f64 / (PARTIALS_MAX as f64 * 0.75);
        // Up to where nothing is populated any more, the index says nothing of what is dirty.
        partials.max(self.index_pressure())
    }

    /// Whether what is rewritten all the time may be left where it is: the sets of it become free without
    /// origins, and others hold enough that origins lack. Where room stays short all the same (the
    /// others' origin may have failed), it comes from wherever it can.
    pub(super) fn may_spare_rewritten(&self) -> bool {
        let total = self.sets.borrow().total_count() as u64;
        let since = self.throttle.crowded_since();
        let is_crowded = since.is_some_and(|since| self.rt.now() >= since + SPARING_PATIENCE);
        self.throttle.owing_segments() * 100 >= total * SPARING_PERCENT
            && !is_crowded
            && self.side_pressure() < 1.0
    }

    /// Whether room must be made: many segments hold owed data, free ones are few, or a side table
    /// fills up.
    pub(crate) fn is_pressed(&self) -> bool {
        self.pressure() >= 1.0
    }

    /// Whether enough sets for a root of their own wait for nothing but an origin's flush.
    pub(super) fn is_room_behind_flush(&self) -> bool {
        self.throttle.awaiting_flush() >= self.sets.borrow().root_batch() as u64
    }

    /// Bytes destaged under pressure after which the origin is flushed: 1 % of the pool, so that
    /// room comes in time, and an origin that is slow to flush is not asked for every segment.
    pub(super) fn pressed_flush_bytes(&self) -> u64 {
        let pool = self.sets.borrow().total_count() as u64 * self.segment_bytes;
        (pool / 100).min(self.tuning.origin_flush_bytes).max(self.segment_bytes)
    }
}

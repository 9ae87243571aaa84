//! Writers who flush what they write, write by write, as databases do.

use std::cell::Cell;

use forebay_device::Nanos;

use crate::limits::{
    SYNC_CREDIT_MAX, SYNC_CREDIT_MIN, SYNC_CREDIT_PER_FLUSH, SYNC_SPAN_MAX, SYNC_TRIAL_PART,
    SYNC_WRITES_MAX,
};

/// Whether the clients of a volume flush after each write.
#[derive(Default)]
pub(crate) struct Habit {
    credit: Cell<u32>,
    /// Writes that no FLUSH was counted for so far.
    writes: Cell<u32>,
}

impl Habit {
    /// A client flushes. A FLUSH counts for one write: who flushes and writes nothing earns nothing.
    pub(super) fn note_flush(&self) {
        if let Some(rest) = self.writes.get().checked_sub(1) {
            self.writes.set(rest);
            self.credit.set((self.credit.get() + SYNC_CREDIT_PER_FLUSH).min(SYNC_CREDIT_MAX));
        }
    }

    /// A write of one has been logged, and is about to be acknowledged.
    pub(crate) fn note_write(&self) {
        self.writes.set((self.writes.get() + 1).min(SYNC_WRITES_MAX));
        self.credit.set(self.credit.get().saturating_sub(1));
    }

    /// Whether what is written next is expected to be flushed at once.
    pub(super) fn is_flushing(&self) -> bool {
        self.credit.get() >= SYNC_CREDIT_MIN
    }
}

/// How a record becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It is durable when its append ends.
    AtOnce,
    /// By a flush behind its append.
    ByFlush,
}

/// Samples that a mean is of, about: of the way that is gone, and of the other one, which is tried so seldom that it has to catch up.
const SAMPLES_GONE: Nanos = 8;
const SAMPLES_TRIED: Nanos = 2;

/// How much longer than the mean a sample counts as at the most: what takes longer is a device that hangs, or a machine that was suspended.
const LONGER_MAX: Nanos = 4;

/// A mean of spans; 0 is none so far.
#[derive(Default)]
struct Mean(Cell<Nanos>);

impl Mean {
    fn add(&self, span: Nanos, samples: Nanos) {
        let before = self.0.get();
        let most = if before == 0 { SYNC_SPAN_MAX } else { before * LONGER_MAX };
        let span = span.clamp(1, most.min(SYNC_SPAN_MAX));
        self.0.set(if before == 0 { span } else { (before * (samples - 1) + span) / samples });
    }
}

/// How long those wait who flush at once: for an append and a flush behind it, or for an append that is durable when it ends. Which
/// takes longer depends on the device, and on who else wants the processor (docs/internals/performance.md); so it is measured, the
/// shorter way is gone, and the other one tried now and then.
#[derive(Default)]
pub(super) struct Ways {
    append: Mean,
    flush: Mean,
    durable: Mean,
    /// How long they have waited since the longer way was tried.
    waited: Cell<Nanos>,
    /// Whether the flush behind an append that was measured is still to come.
    awaits_flush: Cell<bool>,
}

impl Ways {
    /// How the next record is to go.
    pub fn choose(&self) -> Way {
        let apart = self.apart();
        let durable = self.durable.0.get();
        if durable == 0 {
            return Way::AtOnce;
        }
        if self.append.0.get() == 0 || self.flush.0.get() == 0 {
            return Way::ByFlush;
        }
        let is_tried = self.waited.get() >= durable.max(apart) * SYNC_TRIAL_PART;
        if is_tried {
            self.waited.set(0);
        }
        if (self.shorter() == Way::AtOnce) != is_tried { Way::AtOnce } else { Way::ByFlush }
    }

    fn apart(&self) -> Nanos {
        self.append.0.get() + self.flush.0.get()
    }

    fn shorter(&self) -> Way {
        if self.durable.0.get() < self.apart() { Way::AtOnce } else { Way::ByFlush }
    }

    fn samples(&self, way: Way) -> Nanos {
        if way == self.shorter() { SAMPLES_GONE } else { SAMPLES_TRIED }
    }

    /// An append that went this way took so long.
    pub fn note_append(&self, way: Way, span: Nanos) {
        let samples = self.samples(way);
        let behind = match way {
            Way::AtOnce => {
                self.durable.add(span, samples);
                0
            }
            Way::ByFlush => {
                self.append.add(span, samples);
                self.awaits_flush.set(true);
                // One for all of its clients.
                self.flush.0.get()
            }
        };
        self.waited.set(self.waited.get().saturating_add(span + behind));
    }

    /// A client has waited so long for a flush.
    pub fn note_flushed(&self, span: Nanos) {
        if self.awaits_flush.take() {
            self.flush.add(span, self.samples(Way::ByFlush));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes that take so long, each with a flush if it needs one; how many were durable at once, and how long all took.
    fn write(ways: &Ways, count: u64, durable: Nanos, apart: Nanos) -> (u64, Nanos) {
        let (mut durably, mut took) = (0, 0);
        for _ in 0..count {
            match ways.choose() {
                Way::AtOnce => {
                    ways.note_append(Way::AtOnce, durable);
                    (durably, took) = (durably + 1, took + durable);
                }
                Way::ByFlush => {
                    ways.note_append(Way::ByFlush, apart / 2);
                    ways.note_flushed(apart - apart / 2);
                    took += apart;
                }
            }
        }
        (durably, took)
    }

    #[test]
    fn the_shorter_way_is_gone_and_the_longer_one_costs_a_thirty_second() {
        let ways = Ways::default();
        let (durably, _) = write(&ways, 1_000, 130, 160);
        assert!((960..=980).contains(&durably), "{durably} of 1,000");
        // Others want the processor, and then nobody does.
        write(&ways, 100, 3_000, 140);
        let (durably, took) = write(&ways, 10_000, 3_000, 140);
        assert!(durably > 10 && took < 10_000 * 140 * 21 / 20, "{durably}, {took}");
        write(&ways, 2_000, 130, 160);
        let (durably, _) = write(&ways, 1_000, 130, 160);
        assert!(durably > 900, "{durably} of 1,000");
    }

    /// Nanoseconds of an hour: a machine that was suspended.
    const HOUR: Nanos = 3_600_000_000_000;

    #[test]
    fn one_that_hung_is_forgotten_soon() {
        let hung: [fn(&Ways); 3] = [
            |ways| ways.note_append(Way::AtOnce, HOUR),
            |ways| ways.note_append(Way::ByFlush, HOUR),
            |ways| (0..16).for_each(|_| ways.note_flushed(HOUR)),
        ];
        for hang in hung {
            let ways = Ways::default();
            write(&ways, 1_000, 130_000, 160_000);
            hang(&ways);
            write(&ways, 500, 130_000, 160_000);
            let (durably, _) = write(&ways, 1_000, 130_000, 160_000);
            assert!(durably > 900, "{durably} of 1,000");
        }
        // Also where it was the first of all.
        let ways = Ways::default();
        ways.note_append(Way::AtOnce, HOUR);
        write(&ways, 300_000, 130_000, 160_000);
        let (durably, _) = write(&ways, 1_000, 130_000, 160_000);
        assert!(durably > 900, "{durably} of 1,000");
    }

    #[test]
    fn who_flushes_every_third_write_has_no_such_habit() {
        let habit = Habit::default();
        let flushes = |writes_per_flush: usize| {
            for _ in 0..100 {
                (0..writes_per_flush).for_each(|_| habit.note_write());
                habit.note_flush();
            }
            habit.is_flushing()
        };
        assert!(flushes(1) && !flushes(3) && flushes(1));
    }

    #[test]
    fn flushes_of_nothing_earn_nothing() {
        let habit = Habit::default();
        (0..1_000).for_each(|_| habit.note_flush());
        assert!(!habit.is_flushing());
    }

    #[test]
    fn sixteen_who_write_and_flush_together_have_it() {
        let habit = Habit::default();
        for _ in 0..20 {
            (0..16).for_each(|_| habit.note_write());
            (0..16).for_each(|_| habit.note_flush());
        }
        assert!(habit.is_flushing());
    }
}

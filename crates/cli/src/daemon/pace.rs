//! How fast long work goes of late, from looks at what is left of it.

use std::collections::VecDeque;

use forebay_device::runtime::{Nanos, SECOND};

/// What a rate is made of: long enough that one slow second does not count, short enough that it is
/// seen soon when an origin becomes slow or stands still.
const WINDOW: Nanos = 10 * SECOND;

/// When it was looked, and how many bytes were left then; oldest first.
#[derive(Default)]
pub(super) struct Pace(VecDeque<(Nanos, u64)>);

impl Pace {
    /// Takes a look.
    pub(super) fn note(&mut self, at: Nanos, left_bytes: u64) {
        // One that is as old as the window stays, for the rate begins there.
        while self.0.get(1).is_some_and(|(second, _)| second + WINDOW <= at) {
            self.0.pop_front();
        }
        self.0.push_back((at, left_bytes));
    }

    /// Bytes a second over the last [`WINDOW`], or since the first look if that was later; 0 if nothing
    /// becomes less.
    pub(super) fn rate(&self, now: Nanos, left_bytes: u64) -> u64 {
        let old = self.0.iter().rev().find(|(at, _)| at + WINDOW <= now);
        let Some(&(since, was)) = old.or(self.0.front()) else { return 0 };
        let span = u128::from(now.saturating_sub(since).max(1));
        let rate = u128::from(was.saturating_sub(left_bytes)) * u128::from(SECOND) / span;
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The rate, in MiB/s, at the last of looks a second apart.
    fn rate(left: impl Iterator<Item = u64>) -> u64 {
        let (mut pace, mut last) = (Pace::default(), (0, 0));
        for (second, left) in left.enumerate() {
            last = (second as u64 * SECOND, left * MIB);
            pace.note(last.0, last.1);
            assert!(pace.0.len() <= 12, "it forgets");
        }
        pace.rate(last.0, last.1) / MIB
    }

    #[test]
    fn a_rate_is_that_of_the_last_ten_seconds() {
        assert_eq!(Pace::default().rate(SECOND, MIB), 0, "nobody has looked");
        assert_eq!(rate((0..=5).map(|second| 1_000 - 8 * second)), 8, "all there is");
        assert_eq!(rate((0..=60).map(|second| 1_000 - 8 * second)), 8);
        // Fast for a minute, then slow: after ten seconds only that counts.
        let slower = |second: u64| 10_000 - 100 * second.min(60) - 2 * second.saturating_sub(60);
        assert_eq!(rate((0..=65).map(slower)), 51, "half of each");
        assert_eq!(rate((0..=70).map(slower)), 2);
        let stalled = |second: u64| 1_000 - 8 * second.min(60);
        assert_eq!(rate((0..=70).map(stalled)), 0, "it stands still");
        assert_eq!(rate((0..=30).map(|second| 1_000 + second)), 0, "it becomes more");
    }

    #[test]
    fn a_rate_between_two_looks_counts_what_has_gone_since() {
        let mut pace = Pace::default();
        pace.note(0, 100 * MIB);
        assert_eq!(pace.rate(SECOND / 2, 96 * MIB), 8 * MIB);
        assert_eq!(pace.rate(0, 100 * MIB), 0, "no time has passed");
        pace.note(20 * SECOND, 80 * MIB);
        // Nobody looked for long: the whole span counts, not what seems to have gone at once.
        assert_eq!(pace.rate(20 * SECOND, 80 * MIB), MIB);
    }
}

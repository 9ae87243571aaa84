//! What is left out of the cache so that the SSDs last: a budget of bytes a day, and the share of what is
//! offered that it has no room for.
//!
//! * A bucket takes what a day brings, evenly, and gives what is written to the SSDs, whatever for. It holds a day,
//!   so that a quiet night pays for a busy day.
//! * While it holds more than an hour's, nothing is left out. Below, a growing share of the granules is that are
//!   missed for the first time; in debt, of those that left the cache of late as well; then of what would be
//!   written back over nothing cached. What is cached, or dirty, is written to the SSDs whatever it costs.
//! * Which granules are left out is drawn anew after a while, by a hash: what is asked for again and again comes in
//!   soon, a scan leaves all but its share outside, and nothing has to be remembered for it. CacheLib's "dynamic
//!   random admission" decides so ("The CacheLib Caching Engine", OSDI 2020).

use super::Granule;
use super::recent::mix;

/// Parts of a day's budget below which something is left out: an hour's.
const RESERVE: i128 = 24;

/// What is offered to the cache, in the order in which it is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Offer {
    /// It was missed, or written through, and nobody remembers it.
    New,
    /// The same, and it left the cache of late.
    Known,
    /// It would be written back, and nothing of it is cached.
    Dirty,
}

/// How much is left out: a thousandth for each step, first of all that is [`Offer::New`], then of the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Thrift(u16);

/// Steps for each kind of offer.
const STEPS: u16 = 1000;

impl Thrift {
    /// All that can be left out is.
    pub const MOST: Thrift = Thrift(3 * STEPS);

    /// Thousandths of an offer's granules that are left out.
    pub fn permille(self, offer: Offer) -> u16 {
        self.0.saturating_sub(offer as u16 * STEPS).min(STEPS)
    }

    /// Whether a granule is left out, as long as `round` is the same.
    pub fn leaves_out(self, granule: Granule, offer: Offer, round: u64) -> bool {
        let permille = self.permille(offer);
        if permille == 0 {
            return false;
        }
        let drawn = mix(mix(mix(u64::from(granule.volume.0)) ^ granule.number) ^ round);
        drawn % u64::from(STEPS) < u64::from(permille)
    }
}

/// The bucket; in bytes, or in whatever else is counted.
#[derive(Clone, Copy, Debug)]
pub struct WriteBudget {
    per_day: i128,
    level: i128,
    /// What has come and is less than one whole.
    rest: u128,
}

impl WriteBudget {
    /// A budget of so much a day; it begins with an hour's, above which nothing is left out.
    pub fn new(per_day: u64) -> Self {
        let per_day = i128::from(per_day.max(1));
        Self { per_day, level: per_day / RESERVE, rest: 0 }
    }

    /// The same with another budget: who was in debt still is, and what was saved up is not lost.
    pub fn with(self, per_day: u64) -> Self {
        let per_day = i128::from(per_day.max(1));
        Self { per_day, level: self.level.clamp(-per_day, per_day), rest: self.rest }
    }

    /// So many parts of `day` have passed.
    pub fn earn(&mut self, span: u64, day: u64) {
        let earned = self.per_day as u128 * u128::from(span) + self.rest;
        let day = u128::from(day.max(1));
        self.rest = earned % day;
        self.level = (self.level + (earned / day) as i128).min(self.per_day);
    }

    /// So much was written.
    pub fn spend(&mut self, written: u64) {
        // Who has been in debt for more than a day is forgiven the rest, or it would never end.
        self.level = (self.level - i128::from(written)).max(-self.per_day);
    }

    /// What a day brings.
    pub fn per_day(&self) -> u64 {
        self.per_day as u64
    }

    /// What can be written before the first is left out, or how far that is behind, in parts of a day's.
    pub fn level(&self) -> i128 {
        self.level
    }

    /// How much is left out at this level.
    pub fn thrift(&self) -> Thrift {
        let (hour, steps) = ((self.per_day / RESERVE).max(1), i128::from(STEPS));
        let short = (hour - self.level).max(0);
        let step = match self.level > 0 {
            // From all to nothing of two kinds within the last hour's.
            true => short * 2 * steps / hour,
            false => 2 * steps + (short - hour) * steps / hour,
        };
        Thrift(step.min(3 * steps) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::VolumeId;

    const DAY: u64 = 86_400;

    fn granule(number: u64) -> Granule {
        Granule { volume: VolumeId(3), number }
    }

    #[test]
    fn what_is_new_goes_first_and_what_is_dirty_last() {
        let mut budget = WriteBudget::new(24_000);
        let mut seen = Vec::new();
        for spent in [0, 250, 250, 250, 250, 500, 500, 500] {
            budget.spend(spent);
            let thrift = budget.thrift();
            seen.push([Offer::New, Offer::Known, Offer::Dirty].map(|offer| thrift.permille(offer)));
        }
        let wanted = [
            [0, 0, 0],
            [500, 0, 0],
            [1000, 0, 0],
            [1000, 500, 0],
            [1000, 1000, 0],
            [1000, 1000, 500],
            [1000, 1000, 1000],
            [1000, 1000, 1000],
        ];
        assert_eq!(seen, wanted);
        assert_eq!(budget.thrift(), Thrift::MOST);
        budget.spend(u64::MAX);
        assert_eq!(budget.level(), -24_000, "a day of debt, and no more");
        budget.earn(10 * DAY, DAY);
        assert_eq!((budget.level(), budget.thrift()), (24_000, Thrift::default()));
    }

    #[test]
    fn another_budget_forgives_no_debt() {
        let mut budget = WriteBudget::new(24_000);
        assert_eq!(budget.with(24_000).level(), 1_000);
        budget.spend(3_000);
        assert_eq!((budget.with(24_000).level(), budget.with(1_000).level()), (-2_000, -1_000));
        assert_eq!(budget.with(48_000).per_day(), 48_000);
    }

    #[test]
    fn nothing_is_lost_between_two_looks() {
        let mut budget = WriteBudget::new(1_000);
        budget.spend(1_000);
        let before = budget.level();
        (0..DAY / 4).for_each(|_| budget.earn(1, DAY));
        assert_eq!(budget.level() - before, 250);
    }

    #[test]
    fn the_share_is_that_of_the_granules_and_another_one_each_round() {
        let thrift = Thrift(300);
        let left =
            |round| (0..10_000).filter(move |&n| thrift.leaves_out(granule(n), Offer::New, round));
        let (first, second): (Vec<_>, Vec<_>) = (left(0).collect(), left(1).collect());
        assert!((2_700..3_300).contains(&first.len()), "{}", first.len());
        let both = first.iter().filter(|number| second.contains(number)).count();
        assert!((700..1_100).contains(&both), "{both}");
        assert!(!(0..1000).any(|n| thrift.leaves_out(granule(n), Offer::Known, 0)));
    }
}

//! How much of what is asked for a cache of a given size would hit: histograms of reuse, a day at a time.
//!
//! * Everything is in blocks; what was seen in a sample is counted as often as it stands for.
//! * A **distance** is how many other blocks were touched since a block was touched last. An LRU of more blocks than
//!   that hits, whatever they are (Mattson et al., 1970), so one histogram answers for all sizes.
//! * Hits are what misses leave over of the accesses, which are counted exactly: how often the few blocks are touched that
//!   are touched most depends on whether the sample has them, how many are missed hardly does. (The correction
//!   of "SHARDS-adj" in Waldspurger et al., FAST 2015, comes to the same.)

/// Days that are kept: a month has whatever comes once a month.
pub const DAYS_MAX: usize = 30;

/// Counts of a histogram: one for each distance below 4, then 4 for each doubling, up to 64 PiB in blocks. A size is
/// told to a quarter, and is right at the borders.
pub const DISTANCES: usize = 4 + 4 * 42;

/// Of the hits that an endless cache would have, those that a cache of the advised size has. The last twentieth takes
/// much more room than it is worth: where popularity is 1 / k^0.9, nearly half of the cache. And the estimate is no finer.
pub const HITS_WANTED: f64 = 0.95;

/// Share of accesses that an endless cache has to hit, for a size to be advised at all. A scan that never comes again may
/// seem to hit 2 %, by the sample's error.
pub const HITS_LEAST: f64 = 0.05;

/// A day with more than so many times what is touched on a usual one is left out: that is an outburst, for which no cache should be
/// made larger.
const OUTBURST: f64 = 2.0;

/// Days from which it is known what is usual.
const USUAL_DAYS_MIN: usize = 3;

/// What was asked for on a day.
#[derive(Clone, Debug, PartialEq)]
pub struct Day {
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Blocks that were asked for, each time.
    pub accesses: u64,
    /// Different blocks.
    pub touched: f64,
    /// Those that had not been asked for before.
    pub cold: f64,
    /// The others, by distance.
    pub distances: [f64; DISTANCES],
}

impl Default for Day {
    fn default() -> Self {
        let (read_bytes, written_bytes, accesses, touched, cold) = Default::default();
        let distances = [0.0; DISTANCES];
        Self { read_bytes, written_bytes, accesses, touched, cold, distances }
    }
}

/// Where a distance is counted.
pub(super) fn place_of(distance: u64) -> usize {
    if distance < 4 {
        return distance as usize;
    }
    let doubling = distance.ilog2();
    let quarter = (distance >> (doubling - 2)) & 3;
    (4 * (doubling as usize - 1) + quarter as usize).min(DISTANCES - 1)
}

/// The smallest distance that is counted there: so many blocks hit what is counted below.
fn border(place: usize) -> u64 {
    if place < 4 {
        return place as u64;
    }
    (4 + place as u64 % 4) << (place / 4 - 1)
}

/// The value in the middle; of two, the lower one.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

/// How much is in use on a day.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkingSet {
    /// Blocks touched on a usual day, the median.
    pub usual: f64,
    /// On the day with the most.
    pub most: f64,
    /// Days that these are of: those on which something was asked for.
    pub days: usize,
}

impl WorkingSet {
    /// Of days of which the last one is not over, and counts only if there is no other.
    pub fn of(days: &[Day]) -> Self {
        let over = days.split_last().map_or(&[][..], |(_, before)| before);
        let used = |days: &[Day]| -> Vec<f64> {
            days.iter().filter(|day| day.accesses > 0).map(|day| day.touched).collect()
        };
        let mut all = used(over);
        if all.is_empty() {
            all = used(days);
        }
        Self {
            usual: median(all.clone()).unwrap_or_default(),
            most: all.iter().copied().fold(0.0, f64::max),
            days: all.len(),
        }
    }
}

/// See the head of the file.
#[derive(Clone, Debug)]
pub struct Curve {
    sum: Day,
    /// Days that were left out, as something happened that is not usual.
    pub outbursts: usize,
}

impl Curve {
    /// Of all usual days.
    pub fn of(days: &[Day]) -> Self {
        let usual = WorkingSet::of(days);
        let most = match usual.days {
            USUAL_DAYS_MIN.. => usual.usual * OUTBURST,
            _ => f64::INFINITY,
        };
        let (mut sum, mut outbursts) = (Day::default(), 0);
        for day in days {
            if day.touched > most {
                outbursts += 1;
                continue;
            }
            sum.read_bytes += day.read_bytes;
            sum.written_bytes += day.written_bytes;
            sum.accesses += day.accesses;
            sum.touched += day.touched;
            sum.cold += day.cold;
            for (all, of_day) in sum.distances.iter_mut().zip(&day.distances) {
                *all += of_day;
            }
        }
        Self { sum, outbursts }
    }

    /// Blocks that were asked for.
    pub fn accesses(&self) -> u64 {
        self.sum.accesses
    }

    /// What is left of the accesses.
    fn hits_but(&self, misses: f64) -> f64 {
        match self.sum.accesses {
            0 => 0.0,
            all => (1.0 - misses / all as f64).clamp(0.0, 1.0),
        }
    }

    /// The share of accesses that an LRU of so many blocks would have hit.
    pub fn hits(&self, blocks: u64) -> f64 {
        let beyond = self.sum.distances.iter().enumerate().map(|(place, &count)| {
            let (from, until) = (border(place), border(place + 1));
            let missed = until.saturating_sub(blocks.max(from)) as f64;
            count * missed / (until - from) as f64
        });
        self.hits_but(self.sum.cold + beyond.sum::<f64>())
    }

    /// The same of one that never lets go of anything.
    pub fn hits_endless(&self) -> f64 {
        self.hits_but(self.sum.cold)
    }

    /// Blocks with which an LRU hits all that an endless cache would.
    pub fn blocks_for_all(&self) -> u64 {
        let last = self.sum.distances.iter().rposition(|&count| count > 0.0);
        last.map_or(0, |place| border(place + 1))
    }

    /// The fewest blocks with which an LRU has [`HITS_WANTED`] of those hits, as fine as sizes are told; `None` where those are
    /// less than [`HITS_LEAST`].
    pub fn blocks_wanted(&self) -> Option<u64> {
        let endless = self.hits_endless();
        if endless < HITS_LEAST {
            return None;
        }
        (1..=DISTANCES).map(border).find(|&blocks| self.hits(blocks) >= endless * HITS_WANTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A day with so many different blocks, each of which is asked for `times` in a loop.
    fn loop_of(blocks: u64, times: u64) -> Day {
        let mut day = Day {
            accesses: blocks * times,
            touched: blocks as f64,
            cold: blocks as f64,
            ..Day::default()
        };
        day.distances[place_of(blocks - 1)] = (blocks * (times - 1)) as f64;
        day
    }

    #[test]
    fn places_lie_between_their_borders_one_behind_the_other() {
        for place in 0..DISTANCES {
            let (from, until) = (border(place), border(place + 1));
            assert!(from < until && place_of(from) == place && place_of(until - 1) == place);
        }
        assert_eq!(place_of(u64::MAX), DISTANCES - 1);
        let borders: Vec<_> = (0..14).map(border).collect();
        assert_eq!(borders, [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20]);
    }

    #[test]
    fn a_loop_hits_all_or_nothing() {
        let curve = Curve::of(&[loop_of(1 << 10, 10)]);
        assert_eq!((curve.hits(1 << 10), curve.hits(0), curve.hits(1 << 20)), (0.9, 0.0, 0.9));
        assert_eq!((curve.hits(896), curve.hits_endless()), (0.0, 0.9));
        assert_eq!((curve.blocks_wanted(), curve.blocks_for_all()), (Some(1 << 10), 1 << 10));
    }

    #[test]
    fn what_never_comes_again_earns_no_cache() {
        let curve = Curve::of(&[loop_of(1 << 10, 1)]);
        assert_eq!((curve.hits_endless(), curve.blocks_wanted()), (0.0, None));
        assert_eq!(Curve::of(&[]).blocks_wanted(), None);
        assert_eq!((Curve::of(&[]).hits(7), Curve::of(&[]).blocks_for_all()), (0.0, 0));
    }

    #[test]
    fn one_day_with_an_outburst_changes_nothing() {
        let mut days = vec![loop_of(1 << 10, 10); 20];
        let usual = Curve::of(&days).blocks_wanted();
        days.insert(7, loop_of(3 << 10, 90));
        let curve = Curve::of(&days);
        assert_eq!((curve.outbursts, curve.blocks_wanted()), (1, usual));
        let all = WorkingSet { usual: 1024.0, most: 3072.0, days: 20 };
        assert_eq!(WorkingSet::of(&days), all, "the last day is not over");
        // Of two days nobody knows which one is usual.
        let two = [loop_of(1 << 10, 10), loop_of(3 << 10, 90), Day::default()];
        assert_eq!(Curve::of(&two).outbursts, 0);
        assert!(Curve::of(&two).blocks_wanted() > usual);
    }

    #[test]
    fn days_without_anything_are_not_usual_days() {
        let mut days = vec![Day::default(); 5];
        days.extend([loop_of(1 << 10, 2), loop_of(1 << 11, 2), Day::default()]);
        let all = WorkingSet { usual: 1024.0, most: 2048.0, days: 2 };
        assert_eq!(WorkingSet::of(&days), all);
        let first = WorkingSet { usual: 1024.0, most: 1024.0, days: 1 };
        assert_eq!(WorkingSet::of(&[loop_of(1 << 10, 2)]), first, "it is not over");
        assert_eq!(WorkingSet::of(&[]), WorkingSet::default());
    }
}

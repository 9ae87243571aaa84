//! Which segment numbers of the pool are a member's.
//!
//! Its segments lie one behind the other on the device. Their numbers follow one another, too, until it
//! grows and another member has or had higher ones: then it has a further range of them.
//! Only this file maps a number to a place on a device, and back.

use super::codec::{FormatError, check};
use super::geometry::SEGMENTS_MAX;
use crate::ids::SegmentId;

/// Ranges of numbers that a member can have: a record in the superblock has room for so many. One with all
/// of them can still grow where its last number is the highest that was ever given.
pub const RANGES_MAX: usize = 4;

/// Numbers that follow one another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumberRange {
    /// The first one.
    pub base: u32,
    /// How many.
    pub count: u32,
}

impl NumberRange {
    /// The number behind the last one.
    pub fn end(self) -> u32 {
        self.base + self.count
    }

    /// Whether some number is in both.
    pub fn overlaps(self, other: NumberRange) -> bool {
        self.base < other.end() && other.base < self.end()
    }
}

/// The numbers of a member, in the order in which its segments lie on the device; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Those that are not used are empty and stand last.
    ranges: [NumberRange; RANGES_MAX],
}

impl Numbers {
    /// Those of a member that has never grown.
    pub const fn new(base: u32, count: u32) -> Self {
        let mut ranges = [NumberRange { base: 0, count: 0 }; RANGES_MAX];
        ranges[0] = NumberRange { base, count };
        Self { ranges }
    }

    /// What a record says.
    pub(super) fn of(ranges: [NumberRange; RANGES_MAX]) -> Self {
        Self { ranges }
    }

    /// The ranges, all there is room for.
    pub(super) fn places(&self) -> &[NumberRange; RANGES_MAX] {
        &self.ranges
    }

    /// The ranges in use.
    pub fn ranges(&self) -> impl DoubleEndedIterator<Item = NumberRange> + '_ {
        self.ranges.iter().copied().filter(|range| range.count > 0)
    }

    /// The same with more behind the last one; `None` if that is another range, and there is no room
    /// for one.
    pub fn with(&self, more: NumberRange) -> Option<Numbers> {
        let mut ranges = self.ranges;
        let used = self.ranges().count();
        match self.end_of_last() == more.base {
            true => ranges[used - 1].count += more.count,
            false => *ranges.get_mut(used)? = more,
        }
        Some(Self { ranges })
    }

    /// The number behind the last one on the device.
    pub fn end_of_last(&self) -> u32 {
        self.ranges().last().map_or(0, NumberRange::end)
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.ranges.iter().map(|range| range.count).sum()
    }

    /// The number behind the highest one.
    pub fn end(&self) -> u32 {
        self.ranges.iter().map(|range| range.end()).max().unwrap_or(0)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = SegmentId> + '_ {
        self.ranges().flat_map(|range| range.base..range.end()).map(SegmentId)
    }

    /// The place of a segment on the device, counted in segments, if it is one of these.
    #[inline]
    pub fn place_of(&self, segment: SegmentId) -> Option<u32> {
        let mut before = 0;
        for range in &self.ranges {
            let within = segment.0.wrapping_sub(range.base);
            if within < range.count {
                return Some(before + within);
            }
            if range.count == 0 {
                break;
            }
            before += range.count;
        }
        None
    }

    /// Whether some number is in this range, too.
    pub fn overlap(&self, range: NumberRange) -> bool {
        self.ranges().any(|own| own.overlaps(range))
    }

    /// Whether a version that knows one range of each member would miss some.
    pub(super) fn are_split(&self) -> bool {
        self.ranges[1].count > 0
    }

    pub(super) fn validate(&self) -> Result<(), FormatError> {
        check(self.ranges[0].count > 0, "member segment_count")?;
        for (index, range) in self.ranges.iter().enumerate() {
            let end = u64::from(range.base) + u64::from(range.count);
            check(end <= u64::from(SEGMENTS_MAX), "member segment_base")?;
            let before = &self.ranges[..index];
            let unused = *range == NumberRange::default();
            check(unused || range.count > 0, "member more_segments")?;
            check(unused || before.iter().all(|other| other.count > 0), "member more_segments")?;
            let own = before.iter().any(|other| other.overlaps(*range));
            check(unused || !own, "member more_segments")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_keep_their_places_whatever_ranges_come_behind() {
        let range = |base, count| NumberRange { base, count };
        let mut numbers = Numbers::new(10, 5);
        for more in [range(15, 2), range(40, 3), range(30, 1), range(0, 4), range(4, 6)] {
            let before: Vec<_> = numbers.iter().collect();
            numbers = numbers.with(more).unwrap();
            let now: Vec<_> = numbers.iter().collect();
            assert_eq!((&now[..before.len()], numbers.count()), (&before[..], now.len() as u32));
        }
        assert!(numbers.validate().is_ok() && numbers.are_split());
        for (place, segment) in (0..).zip(numbers.iter()) {
            assert_eq!(numbers.place_of(segment), Some(place));
        }
        assert_eq!((numbers.count(), numbers.end()), (21, 43));
        for foreign in [17, 29, 31, 39, 43, u32::MAX] {
            assert_eq!(numbers.place_of(SegmentId(foreign)), None);
        }
        assert_eq!(numbers.with(range(50, 1)), None, "a fifth range");
    }
}

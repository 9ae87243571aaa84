//! Whose a segment is: which of the headers that a start finds make sets.
//!
//! * The newest counts, by start and counter. A set that names a segment in which something newer stands, or which a newer set
//!   names, is left out whole: it was freed, or had given that copy back, before that segment could be opened again.
//! * What stands in a segment is told by its own header, also where that makes no set: because its start was cut off, or
//!   because its set is left out. What an older life had there may be written over.
//! * A header that was written before the member joined that has a number now, or had it last, speaks of another member's
//!   segment (INV-52): it says nothing of what is there, and nothing of a set if that is known by such a number. So also where
//!   nobody knows any more who had it.
//! * That no header is read proves nothing: where a flush failed and the process ended with it, a power cut brings back what had
//!   been erased or written over. So a start that appends leaves such segments without one again.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::core::Core;
use crate::error::Result;
use crate::format::SegmentHeader;
use crate::ids::{Incarnation, SegmentId};
use crate::planted::{self, Bug};

/// Segments of each member, behind as many as sets were opened, that may have had a header, too: starts that were cut off may have
/// opened some of which nothing is left to count.
const REACH_SPARE: u64 = 1024;

/// One header of each set that counts, the newest set first. `cut_off`: headers of starts that ended before they had a root.
/// `is_same_since`: [`crate::format::Superblock::is_same_since`].
pub(crate) fn newest_lives(
    mut headers: Vec<SegmentHeader>,
    cut_off: &[SegmentHeader],
    is_same_since: impl Fn(SegmentId, u64) -> bool,
) -> Vec<SegmentHeader> {
    let mut taken: BTreeSet<SegmentId> = cut_off.iter().map(|header| header.segment).collect();
    // Of those of one set the header that names the most: as long as a copy that was to be given back has a header, none was.
    headers.sort_by_key(|header| Reverse((header.incarnation, header.partners.len())));
    let mut lives: Vec<SegmentHeader> = Vec::new();
    for header in headers {
        let is_known = lives.last().is_some_and(|life| life.incarnation == header.incarnation);
        if is_known {
            continue;
        }
        let is_meant = |number: &SegmentId| is_same_since(*number, header.epoch);
        let named = || header.partners.iter().copied().filter(is_meant);
        if named().next() != Some(header.set) || named().any(|number| taken.contains(&number)) {
            taken.insert(header.segment);
            continue;
        }
        taken.extend(named());
        lives.push(header);
    }
    lives
}

impl Core {
    /// The segments whose own header makes them part of no set: what is free, and the copies of sets that have theirs elsewhere.
    pub(crate) fn without_headers(
        &self,
        found: &BTreeSet<(SegmentId, Incarnation)>,
    ) -> BTreeSet<SegmentId> {
        let lives: BTreeSet<Incarnation> =
            self.sets.borrow().iter().map(|set| set.incarnation).collect();
        let of_set = found.iter().filter(|(_, incarnation)| lives.contains(incarnation));
        let of_set: BTreeSet<SegmentId> = of_set.map(|&(segment, _)| segment).collect();
        let superblock = self.superblock.borrow();
        let all = superblock.present().flat_map(|member| member.segments.iter());
        all.filter(|segment| !of_set.contains(segment)).collect()
    }

    /// Leaves the segments that a start has found without a header that counts, and what it has made free, durably without one,
    /// before anything comes there. Not so where none was opened yet: a large pool that is new has a million of these.
    ///
    /// # Errors
    /// If a member fails (the pool has latched then).
    pub(crate) async fn leave_without_headers(&self, mut bare: BTreeSet<SegmentId>) -> Result<()> {
        if planted::is(Bug::HeadersBelievedGone) {
            return Ok(());
        }
        bare.extend(self.sets.borrow().free_segments());
        // Those of a member are opened in their order before any of them is opened again.
        let reach = self.log.open_counter.get().saturating_mul(2).saturating_add(REACH_SPARE);
        let place = |segment| u64::from(self.sets.borrow().place_of(segment).1);
        let met = bare.into_iter().map(|segment| (place(segment), segment));
        let mut met: Vec<(u64, SegmentId)> = met.filter(|&(place, _)| place < reach).collect();
        // So that all members are at work.
        met.sort_unstable();
        self.erase_headers(met.into_iter().map(|(_, segment)| segment)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Stream;
    use crate::ids::{DeviceId, PoolId};

    /// The header in a segment of a set of these, in its life by start and counter.
    fn header(segment: u32, partners: &[u32], (start, counter): (u64, u64)) -> SegmentHeader {
        SegmentHeader {
            pool: PoolId([1; 16]),
            device: DeviceId([2; 16]),
            segment: SegmentId(segment),
            set: SegmentId(partners[0]),
            incarnation: Incarnation { start, counter },
            stream: Stream::Probation,
            epoch: 1,
            partners: partners.iter().copied().map(SegmentId).collect(),
        }
    }

    /// The counters of the sets that count.
    fn lives(headers: &[SegmentHeader], cut_off: &[SegmentHeader]) -> Vec<u64> {
        let lives = newest_lives(headers.to_vec(), cut_off, |_, _| true);
        lives.iter().map(|life| life.incarnation.counter).collect()
    }

    #[test]
    fn the_newest_header_tells_whose_a_segment_is() {
        let (old, new) = (header(0, &[0, 5], (1, 7)), header(5, &[3, 5], (1, 9)));
        assert_eq!(lives(&[old.clone(), new.clone()], &[]), [9], "one that it names is another's");
        assert_eq!(lives(&[old.clone(), header(5, &[0, 5], (1, 7))], &[]), [7], "both are of one");
        let later_start = header(5, &[5], (2, 3));
        assert_eq!(lives(&[new, later_start], &[]), [3]);
        let fewer = header(5, &[0], (1, 7));
        let found = newest_lives(vec![fewer, old], &[], |_, _| true);
        assert_eq!(found[0].partners.len(), 2, "none of its copies was given back yet");
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn what_a_start_that_was_cut_off_has_opened_is_no_older_sets() {
        let old = header(0, &[0, 5], (1, 7));
        assert_eq!(lives(&[old.clone(), header(9, &[9], (1, 8))], &[header(5, &[5], (2, 9))]), [8]);
        assert_eq!(lives(&[old], &[header(6, &[6], (2, 9))]), [7]);
    }

    #[test]
    fn a_number_that_was_given_to_another_member_since_is_that_ones() {
        let joined_in_2 = |number: SegmentId, epoch| number.0 < 5 || epoch >= 2;
        let (old, fresh) = (header(0, &[0, 5], (1, 7)), header(5, &[5], (1, 9)));
        let new = SegmentHeader { epoch: 2, ..fresh };
        let counters = |headers: &[SegmentHeader]| -> Vec<u64> {
            let lives = newest_lives(headers.to_vec(), &[], joined_in_2);
            lives.iter().map(|life| life.incarnation.counter).collect()
        };
        assert_eq!(counters(&[old, new.clone()]), [9, 7], "neither has what the other one has");
        let known_by_it = header(1, &[5, 1], (1, 8));
        assert_eq!(counters(&[known_by_it.clone(), new]), [9]);
        assert_eq!(counters(&[known_by_it, header(0, &[0, 1], (1, 3))]), [0; 0], "it stands there");
    }

    /// Its bytes stand in a segment that an older one names.
    #[test]
    fn a_set_that_is_left_out_leaves_out_older_ones() {
        let oldest = header(0, &[0, 5], (1, 7));
        let left_out = header(5, &[5, 6], (1, 8));
        let newest = header(6, &[6], (1, 9));
        assert_eq!(lives(&[oldest, left_out, newest], &[]), [9]);
    }
}

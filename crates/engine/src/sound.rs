//! What no writer writes although its checksums are right: crafted, or written by broken memory. A
//! start passes over it, the same way every time, so that nothing behind it can reach an assertion.

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{Entry, EntryKind, Extent, State};
use crate::ids::{BLOCK_BYTES, LOCATION_BITS, Location, SegmentId, VolumeId};
use crate::limits::{COUNTER_MAX, REGION_BLOCKS};
use crate::planted::{self, Bug};
use crate::segment::Set;

/// Refuses a counter so high that it could run over.
///
/// # Errors
/// [`ErrorKind::Damaged`].
pub(crate) fn check_counter(what: &str, value: u64) -> Result<()> {
    if value <= COUNTER_MAX {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Damaged, format!("the {what} is {value}, which none can be"))
        .hint("see what is there with `forebay inspect`; nothing has been changed"))
}

/// Where an image's extent of clean data leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Into a set that can hold it, or nowhere, if it has no data.
    Sound,
    /// Into a segment of which it is not known whether it is the first of a set with data.
    Unknown(SegmentId),
    /// Into a set that was made free and opened again since.
    Reopened,
    /// To a place where no record's data can be.
    Impossible,
}

/// Whether an entry of this kind is ever written so. A clean fact is of what was destaged or written
/// through, and a zero extent becomes nothing, not clean: it has no data to be clean. What moves has
/// data.
fn is_said(kind: EntryKind, state: Option<State>, drop: bool, data: bool) -> bool {
    match (kind, state) {
        (EntryKind::CleanFact, Some(State::Written | State::Provisional)) => true,
        (EntryKind::CleanFact, Some(State::ZeroWritten)) => drop,
        (EntryKind::CleanFact, _) => false,
        (EntryKind::Move, _) => data,
        _ => true,
    }
}

impl Core {
    /// Whether an entry says something that the index can hold, of a volume that there has been.
    pub(crate) fn is_sound(&self, entry: &Entry) -> bool {
        is_said(entry.kind, entry.state, entry.drop, entry.has_data())
            && entry.count >= 1
            && entry.block % REGION_BLOCKS + u64::from(entry.count) <= REGION_BLOCKS
            && self.has_blocks(entry.volume, entry.block, entry.count)
    }

    /// Whether a volume of this number has ever been added and, as far as it is still there, has
    /// these blocks.
    pub(crate) fn has_blocks(&self, volume: VolumeId, block: u64, count: u32) -> bool {
        let superblock = self.superblock.borrow();
        let known = superblock.volumes.iter().find(|record| record.id == volume);
        let end = known.map_or(u64::MAX, |record| record.size_bytes / BLOCK_BYTES);
        volume.0 != 0
            && volume.0 < superblock.next_volume
            && block.checked_add(count.into()).is_some_and(|last| last <= end)
    }

    /// Whether a record of so many blocks may begin at a block of a segment. A longer one could
    /// not be moved.
    pub(crate) fn is_record_length(&self, offset: u32, blocks: u32) -> bool {
        let end = u64::from(offset) + u64::from(blocks);
        blocks <= self.record_blocks_max && end <= u64::from(self.segment_blocks)
    }

    /// Where an image's extent leads. `opened` sets had been opened when the image was taken; one of an older version does
    /// not tell, but nothing that it names was made free. Clean data may have been let go of, and its set have lost its headers
    /// since: then an older life of the number may be seen, by the header of another copy.
    pub(crate) fn place_of(&self, extent: Extent, opened: Option<u64>, is_let_go: bool) -> Place {
        let Some(state) = extent.state() else { return Place::Impossible };
        let (location, count) = (extent.location(), extent.count());
        if location.0 + u64::from(count) > 1 << LOCATION_BITS {
            return Place::Impossible;
        }
        if !state.has_data() {
            return Place::Sound;
        }
        let (set, block) = self.split(location);
        let distance = u32::from(extent.distance());
        let fits = distance >= 1 && block > distance && self.is_record_length(block, count);
        if !fits || distance + count > self.record_blocks_max {
            return Place::Impossible;
        }
        let sets = self.sets.borrow();
        let is_later = |set: &Set| {
            let since = opened.is_some_and(|opened| set.incarnation.counter > opened);
            since && !planted::is(Bug::OpenedSinceBelieved)
        };
        // Where the member of its first segment is gone, only what was let go of has lost a header that is not there.
        let may_be_older = state == State::Clean && (is_let_go || !sets.is_absent(set));
        let is_older =
            |set: &Set| may_be_older && !set.leads && !planted::is(Bug::OpenedSinceBelieved);
        match sets.get(set).map(Set::holds_data) {
            _ if sets.get(set).is_some_and(is_later) => Place::Reopened,
            _ if sets.get(set).is_some_and(is_older) => Place::Unknown(set),
            Some(true) => Place::Sound,
            // With its member gone, what is seen of the number may be an older life that shared it.
            Some(false) if !sets.is_absent(set) => Place::Impossible,
            _ => Place::Unknown(set),
        }
    }

    fn split(&self, location: Location) -> (SegmentId, u32) {
        self.sets.borrow().split(location)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Location;
    use crate::index::{Mapping, Shard};

    /// What a clean fact that is said does to the index cannot reach an assertion of it, whatever
    /// stands there.
    #[test]
    fn a_clean_fact_that_is_said_makes_data_clean_or_nothing_at_all() {
        let states = (1..8).filter_map(State::from_number);
        for (state, drop) in states.flat_map(|state| [(state, false), (state, true)]) {
            let said = is_said(EntryKind::CleanFact, Some(state), drop, false);
            let expected = match state {
                State::Written | State::Provisional => true,
                State::ZeroWritten => drop,
                State::Clean | State::Dirty | State::Zero | State::Lost => false,
            };
            assert_eq!(said, expected, "{state:?}, drop {drop}");
            if !said {
                continue;
            }
            let mut shard = Shard::new();
            let location = Location(40);
            let mapping =
                Mapping { block: 3, count: 2, state, location, distance: 1, sectors: 0xFF };
            shard.insert(VolumeId(1), mapping, |_| {});
            let to = (!drop).then_some(State::Clean);
            shard.transition(VolumeId(1), 3, 2, location, |now| now == state, to, |_| {});
            assert_eq!(shard.state_block_count(State::Clean), if drop { 0 } else { 2 });
        }
        assert!(!is_said(EntryKind::Move, Some(State::Zero), false, false));
        assert!(!is_said(EntryKind::CleanFact, None, true, false));
    }

    #[test]
    fn counters_at_their_end_are_refused() {
        assert!(check_counter("counter", COUNTER_MAX).is_ok());
        let refused = [COUNTER_MAX + 1, u64::MAX].map(|value| check_counter("counter", value));
        assert!(refused.iter().all(|r| r.as_ref().is_err_and(|e| e.kind == ErrorKind::Damaged)));
    }
}

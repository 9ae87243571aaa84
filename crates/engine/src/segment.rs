//! The segment sets of a pool: which are open, full, emptied, free; what lives in them.
//!
//! * A set is reopened only after `Emptied`, a durable root whose images are past the emptying,
//!   no pins, and an awaited discard (INV-6).
//! * `live_blocks` and `owed_blocks` are changed only together with the index, by
//!   [`crate::apply`].

use std::collections::VecDeque;

use crate::format::{State, Stream};
use crate::ids::{Incarnation, Location, SegmentId, Sequence};
use crate::limits::RESERVE_SEGMENTS_MIN;

/// The life of a set.
///
/// ```text
/// Open -> Closing -> Closed -> Emptied -> Discarding -> (free)
///   ^                                                     |
///   +-----------------------------------------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetState {
    /// Records are appended.
    Open,
    /// Full; waits for its appends, a flush that covers them, and its footer.
    Closing,
    /// The footer is written. Only reclaim and overwriting change its counts.
    Closed,
    /// Nothing lives in it since this sequence; waits for a root past it.
    Emptied(Sequence),
    /// No fact in it is needed any more; waits for pins and discards.
    Discarding,
}

impl SetState {
    fn may_become(self, next: SetState) -> bool {
        use SetState::{Closed, Closing, Discarding, Emptied, Open};
        matches!(
            (self, next),
            (Open, Closing) | (Closing, Closed) | (Closed, Emptied(_)) | (Emptied(_), Discarding)
        )
    }
}

/// One segment set in use.
pub(crate) struct Set {
    pub id: SegmentId,
    /// Every segment of the set, the first of them being `id`.
    pub segments: Vec<SegmentId>,
    pub incarnation: Incarnation,
    pub stream: Stream,
    pub state: SetState,
    /// Blocks of data that the index points at.
    pub live_blocks: u32,
    /// Of those, blocks that the origin may lack.
    pub owed_blocks: u32,
    /// Of those, blocks that are destaged and wait for an origin flush: they cannot be moved.
    pub written_blocks: u32,
    /// Reads and moves under way that rely on the content.
    pub pins: u32,
    /// Highest sequence appended to it.
    pub last_sequence: Sequence,
    /// Blocks from the start that a completed member flush covers.
    pub durable_blocks: u32,
}

impl Set {
    /// Whether a closed set holds nothing that anybody needs.
    pub(crate) fn is_empty(&self) -> bool {
        self.live_blocks == 0 && self.pins == 0 && self.state == SetState::Closed
    }

    /// Moves on in the diagram of [`SetState`].
    ///
    /// # Panics
    /// If the diagram has no such arrow.
    pub(crate) fn transition(&mut self, next: SetState) {
        assert!(self.state.may_become(next), "set {:?}: {:?} to {next:?}", self.id, self.state);
        self.state = next;
    }
}

/// Where a member's segments lie in the pool's numbering and on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberSegments {
    pub base: u32,
    pub count: u32,
}

/// All sets, and the free segments of each member.
pub(crate) struct SetTable {
    segment_blocks: u32,
    members: Vec<MemberSegments>,
    /// Indexed by the number of a set's first segment.
    sets: Vec<Option<Box<Set>>>,
    free: Vec<VecDeque<SegmentId>>,
    /// Blocks of live data in all sets.
    pub live_blocks: u64,
    /// Whether counts are kept; recovery turns it on once the index is complete.
    pub accounting: bool,
}

impl SetTable {
    /// A table in which every segment is free.
    pub(crate) fn new(segment_blocks: u32, members: Vec<MemberSegments>) -> Self {
        let total = members.iter().map(|m| m.base + m.count).max().unwrap_or(0);
        let free =
            members.iter().map(|m| (m.base..m.base + m.count).map(SegmentId).collect()).collect();
        let sets = (0..total).map(|_| None).collect();
        Self { segment_blocks, members, sets, free, live_blocks: 0, accounting: false }
    }

    /// The member that holds a segment.
    pub(crate) fn member_of(&self, segment: SegmentId) -> usize {
        self.members
            .iter()
            .position(|m| (m.base..m.base + m.count).contains(&segment.0))
            .expect("segment ids are validated when they enter")
    }

    /// Whether the pool has such a segment.
    pub(crate) fn knows(&self, segment: SegmentId) -> bool {
        self.members.iter().any(|m| (m.base..m.base + m.count).contains(&segment.0))
    }

    /// The set of a location and the block within it.
    pub(crate) fn split(&self, location: Location) -> (SegmentId, u32) {
        let blocks = u64::from(self.segment_blocks);
        (SegmentId((location.0 / blocks) as u32), (location.0 % blocks) as u32)
    }

    /// The location of a block of a set.
    pub(crate) fn location(&self, set: SegmentId, block: u32) -> Location {
        Location(u64::from(set.0) * u64::from(self.segment_blocks) + u64::from(block))
    }

    pub(crate) fn get(&self, id: SegmentId) -> Option<&Set> {
        self.sets.get(id.0 as usize)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, id: SegmentId) -> Option<&mut Set> {
        self.sets.get_mut(id.0 as usize)?.as_deref_mut()
    }

    /// The sets in use, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Set> {
        self.sets.iter().filter_map(|set| set.as_deref())
    }

    /// Takes `copies` segments from the members with the most free ones, leaving at least `floor`
    /// on each; `None` if there are not enough.
    pub(crate) fn allocate(&mut self, copies: usize, floor: usize) -> Option<Vec<SegmentId>> {
        let mut order: Vec<usize> = (0..self.members.len()).collect();
        order.sort_by_key(|&m| std::cmp::Reverse(self.free[m].len()));
        order.truncate(copies);
        if order.len() < copies || order.iter().any(|&m| self.free[m].len() <= floor) {
            return None;
        }
        Some(order.into_iter().filter_map(|m| self.free[m].pop_front()).collect())
    }

    /// Puts a set into the table; its segments must not be free any more.
    pub(crate) fn put(&mut self, set: Set) {
        let slot = &mut self.sets[set.id.0 as usize];
        assert!(slot.is_none(), "set {:?} is in use", set.id);
        *slot = Some(Box::new(set));
    }

    /// Takes a segment that recovery found in use off the free list.
    pub(crate) fn claim(&mut self, segment: SegmentId) {
        let member = self.member_of(segment);
        self.free[member].retain(|&free| free != segment);
    }

    /// Ends a discarded set: its segments are free.
    pub(crate) fn release(&mut self, id: SegmentId) {
        let set = self.sets[id.0 as usize].take().expect("only sets in use are released");
        let (pins, live, state) = (set.pins, set.live_blocks, set.state);
        assert!(
            pins == 0 && live == 0 && state == SetState::Discarding,
            "set {id:?} of {:?}: {pins} pins, {live} live blocks, {state:?}",
            set.stream
        );
        for segment in set.segments {
            let member = self.member_of(segment);
            self.free[member].push_back(segment);
        }
    }

    /// Free segments on the member that has the fewest.
    pub(crate) fn free_min(&self) -> usize {
        self.free.iter().map(VecDeque::len).min().unwrap_or(0)
    }

    /// Free segments of each member below which room is made.
    pub(crate) fn reserve(&self) -> usize {
        (self.total_count() / self.members.len() / 20).max(RESERVE_SEGMENTS_MIN)
    }

    /// Free segments of each member that a stream leaves to others. Images may take all: they lead
    /// to the root that makes room. Facts leave some to them, data leaves some to facts, and
    /// populations to writes.
    pub(crate) fn floor(&self, stream: Stream) -> usize {
        let reserve = self.reserve();
        match stream {
            Stream::Metadata => 0,
            Stream::Facts => reserve / 8 * 3,
            Stream::Dirty | Stream::Main => reserve / 4 * 3,
            Stream::Probation => reserve / 4 * 3 + 1,
        }
    }

    /// Free segments of all members.
    pub(crate) fn free_count(&self) -> usize {
        self.free.iter().map(VecDeque::len).sum()
    }

    /// Segments of all members.
    pub(crate) fn total_count(&self) -> usize {
        self.members.iter().map(|m| m.count as usize).sum()
    }

    /// Counts blocks that became live.
    pub(crate) fn add(&mut self, location: Location, count: u32, state: State) {
        if !state.has_data() || !self.accounting {
            return;
        }
        let (id, _) = self.split(location);
        self.live_blocks += u64::from(count);
        let set = self.get_mut(id).expect("live data lies in a set in use");
        set.live_blocks += count;
        set.owed_blocks += if state.is_owed() { count } else { 0 };
        set.written_blocks += if state == State::Written { count } else { 0 };
    }

    /// Counts blocks that are live no more; returns the set if that emptied a closed one.
    pub(crate) fn sub(
        &mut self,
        location: Location,
        count: u32,
        state: State,
    ) -> Option<SegmentId> {
        if !state.has_data() || !self.accounting {
            return None;
        }
        let (id, _) = self.split(location);
        self.live_blocks -= u64::from(count);
        let set = self.get_mut(id).expect("live data lies in a set in use");
        set.live_blocks -= count;
        set.owed_blocks -= if state.is_owed() { count } else { 0 };
        set.written_blocks -= if state == State::Written { count } else { 0 };
        set.is_empty().then_some(id)
    }

    /// Notes that nothing lives in a closed set any more. `sequence` is a fresh one, so an image
    /// whose watermark reaches it was taken afterwards.
    pub(crate) fn empty(&mut self, id: SegmentId, sequence: Sequence) {
        let set = self.get_mut(id).expect("only sets in use are emptied");
        assert!(set.is_empty());
        set.transition(SetState::Emptied(sequence));
    }

    /// Keeps a set from being freed while its content is used.
    pub(crate) fn pin(&mut self, location: Location) -> SegmentId {
        let (id, _) = self.split(location);
        self.get_mut(id).expect("only live data is pinned").pins += 1;
        id
    }

    /// Undoes one [`SetTable::pin`]; returns the set if it is empty now.
    #[must_use]
    pub(crate) fn unpin(&mut self, id: SegmentId) -> Option<SegmentId> {
        let set = self.get_mut(id).expect("a pinned set stays");
        set.pins -= 1;
        set.is_empty().then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_life_of_a_set_has_no_other_arrows() {
        use SetState::{Closed, Closing, Discarding, Emptied, Open};
        let all = [Open, Closing, Closed, Emptied(Sequence(1)), Discarding];
        let legal: Vec<(usize, usize)> = (0..5)
            .flat_map(|a| (0..5).map(move |b| (a, b)))
            .filter(|&(a, b)| all[a].may_become(all[b]))
            .collect();
        assert_eq!(legal, [(0, 1), (1, 2), (2, 3), (3, 4)]);
    }

    #[test]
    fn copies_lie_on_distinct_members_and_leave_the_floor() {
        let members = vec![
            MemberSegments { base: 0, count: 4 },
            MemberSegments { base: 4, count: 3 },
            MemberSegments { base: 7, count: 3 },
        ];
        let mut table = SetTable::new(16, members);
        let pair = table.allocate(2, 2).unwrap();
        assert_ne!(table.member_of(pair[0]), table.member_of(pair[1]));
        assert!(table.allocate(2, 2).is_some(), "the two members that have three left");
        assert!(table.allocate(2, 2).is_none(), "no member above the floor");
        assert!(table.allocate(3, 1).is_some());
        assert!(table.allocate(4, 0).is_none());
    }
}

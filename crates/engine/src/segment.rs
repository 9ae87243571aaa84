//! The segment sets of a pool: which are open, full, let go of, free; what lives in them.
//!
//! * A set is reopened only after `LetGo`, a durable root whose images are past that, nothing live and
//!   no pins, and an awaited discard (INV-6).
//! * What is still live in a set that was let go of is clean, and read as ever until its room is needed. Images mark it: a
//!   start believes them only as long as the set has its header.
//! * `live_blocks` and `owed_blocks` are changed only together with the index, by
//!   [`crate::apply`].
//! * What room there is, and for whom, is told in `segment/room.rs`; which sets a root may make free, in
//!   `segment/givers.rs`.
//! * A member that fails takes its copies with it at once ([`SetTable::fail`]): nothing is read from it
//!   any more, and a set that has no copy left is one that nothing can be read from. Its headers count until an epoch without it
//!   does, so what images name in such sets is nobody's room until then.

mod givers;
mod room;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};

use forebay_device::chunk::list_in_huge_pages;
use smallvec::SmallVec;

use crate::format::{NumberRange, Numbers, State, Stream};
use crate::ids::{Incarnation, Location, SegmentId, Sequence};
use crate::limits::{COPIES_MAX, PLACES_MAX};
use crate::planted;

use room::{DATA_LEAVES_FREE, Packing, Totals, sets_of};
pub(crate) use room::{MemberMask, OWED_LEVELS, Outlook};

/// How much less, in proportion, may be free on a member for it to be preferred because of its controller. Where
/// one controller has fewer SSDs than another, theirs fill up sooner: at this, not long before the others.
const CONTROLLER_SLACK: usize = 2;

/// The life of a set.
///
/// ```text
/// Open -> Closing -> Closed -> LetGo -> Reusable -> Discarding -> (free)
///   ^                             |                 ^            |
///   |                             +-----------------+            |
///   +------------------------------------------------------------+
/// ```
///
/// A set to which nothing was written may go from `Open` straight to free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetState {
    /// Records are appended.
    Open,
    /// Full; waits for its appends, a flush that covers them, and its footer.
    Closing,
    /// The footer is written. Only reclaim and overwriting change its counts.
    Closed,
    /// Images taken since this sequence mark what they name in it; waits for a root past it.
    LetGo(Sequence),
    /// There was such a root. What is live in it is read until its room is needed.
    Reusable,
    /// Nothing lives in it; waits for discards.
    Discarding,
}

impl SetState {
    fn may_become(self, next: SetState) -> bool {
        use SetState::{Closed, Closing, Discarding, LetGo, Open, Reusable};
        match self {
            Open => matches!(next, Closing),
            Closing => matches!(next, Closed),
            Closed => matches!(next, LetGo(_)),
            LetGo(_) => matches!(next, Reusable | Discarding),
            Reusable => matches!(next, Discarding),
            Discarding => false,
        }
    }

    /// Since when images mark what they name in it, as long as no root makes use of that.
    pub(crate) fn let_go_at(self) -> Option<Sequence> {
        match self {
            Self::LetGo(at) => Some(at),
            _ => None,
        }
    }

    /// Whether images mark what they name in it.
    pub(crate) fn is_let_go(self) -> bool {
        matches!(self, Self::LetGo(_) | Self::Reusable | Self::Discarding)
    }
}

/// The copies of a set. A pool of more than four members has longer ones only for facts.
pub(crate) type Segments = SmallVec<[SegmentId; 4]>;

/// One segment set in use.
pub(crate) struct Set {
    /// The first of the segments that it was opened with; that one may be on a member that is gone.
    pub id: SegmentId,
    /// Its segments on the members that are there.
    pub segments: Segments,
    pub incarnation: Incarnation,
    pub stream: Stream,
    pub state: SetState,
    /// Blocks of data that the index points at.
    pub live_blocks: u32,
    /// Of those, blocks that the origin may lack.
    pub owed_blocks: u32,
    /// Of those, blocks that are destaged and wait for an origin flush: they cannot be moved.
    pub written_blocks: u32,
    /// Blocks that were written through and wait for an origin flush: worth nothing to a start before it.
    pub provisional_blocks: u32,
    /// Reads and moves under way that rely on the content.
    pub pins: u32,
    /// Moves under way out of it.
    pub moves: u32,
    /// Reclaim has moved what is worth it, and lets go of the rest once nobody relies on it.
    pub passed: bool,
    /// It was let go of with something in it, which images may name.
    pub named: bool,
    /// It has lost a copy to a member that an epoch which counts still names: that copy's header may be believed.
    pub on_failing: bool,
    /// Images may name what was in it, no root is needed for its room, and a failing member may have a header of it: nobody's room
    /// until an epoch without that member counts.
    pub late: bool,
    /// Reusable and dropped, but somebody reads from it yet: as long as that takes it is nobody's room.
    pub drained: bool,
    /// Highest sequence appended to it.
    pub last_sequence: Sequence,
    /// Blocks from the start that a completed member flush covers.
    pub durable_blocks: u32,
    /// Whether its first segment has its header, as far as a start has found that.
    pub leads: bool,
    /// Its header cannot be read, so none that names fewer copies can be written.
    pub stuck: bool,
    /// Whether it has lost a copy with a member, and its headers name that.
    pub lacks_copy: bool,
    /// That was while somebody appended to it or discarded it, who goes on to hold the number.
    pub holds_gone: bool,
}

impl Set {
    /// Whether a closed set holds nothing that anybody needs.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_unused() && self.state == SetState::Closed
    }

    /// Whether nothing lives in it and nobody reads from it.
    pub(crate) fn is_unused(&self) -> bool {
        self.live_blocks == 0 && self.pins == 0
    }

    /// Whether all that lives in it could be dropped.
    fn is_clean(&self) -> bool {
        self.holds_data() && self.owed_blocks == 0 && self.provisional_blocks == 0
    }

    /// Whether nothing lives in a closed set any more, or nothing but what reclaim lets go of. What pins it now may wait
    /// for the room that it would make.
    pub(crate) fn may_be_let_go(&self) -> bool {
        let is_passed = self.passed && self.moves == 0 && self.is_clean();
        self.is_empty() || (is_passed && self.pins == 0 && self.state == SetState::Closed)
    }

    /// Whether every member that it lay on has failed.
    pub(crate) fn has_no_copy(&self) -> bool {
        self.segments.is_empty()
    }

    /// Blocks that no origin has been given: they can be moved, and not dropped.
    pub(crate) fn dirty_blocks(&self) -> u32 {
        self.owed_blocks - self.written_blocks
    }

    /// Whether all that it still owes has been written to origins: with their next flush it is clean.
    pub(crate) fn awaits_flush(&self) -> bool {
        self.state == SetState::Closed && self.owed_blocks > 0 && self.dirty_blocks() == 0
    }

    /// What it comes to in the totals of a table.
    fn totals(&self, packing: Packing) -> Totals {
        let copies = self.segments.len();
        Totals {
            occupied_blocks: u64::from(self.live_blocks) * copies as u64,
            owed_segments: if self.owed_blocks > 0 { copies } else { 0 },
            unpackable_blocks: packing.unpackable(self.owed_blocks) * copies as u64,
        }
    }

    /// Whether it holds blocks of volumes.
    pub(crate) fn holds_data(&self) -> bool {
        self.stream.holds_data()
    }

    /// Segments that it has beyond `copies` and that nothing needs any more: no origin lacks what is in
    /// it. The first one names it and stays.
    fn surplus(&self, copies: usize) -> &[SegmentId] {
        let clean = self.holds_data() && self.owed_blocks == 0 && self.live_blocks > 0;
        let idle = self.state == SetState::Closed && self.pins == 0 && !self.stuck;
        if clean && idle && self.segments.first() == Some(&self.id) {
            return self.segments.get(copies..).unwrap_or_default();
        }
        &[]
    }

    /// Whether it is known by a number of a member that is gone, which nobody else can have as long as that is so.
    pub(crate) fn is_known_by_gone(&self) -> bool {
        self.segments.first() != Some(&self.id)
    }

    /// Whether it is known by a copy that it has lost, or has lost one and has fewer than so many.
    pub(crate) fn is_short(&self, copies: usize) -> bool {
        self.is_known_by_gone() || self.lacks_copy && self.segments.len() < copies
    }

    /// An empty one.
    pub(crate) fn opened(
        id: SegmentId,
        segments: Vec<SegmentId>,
        incarnation: Incarnation,
        stream: Stream,
    ) -> Self {
        Self {
            id,
            segments: segments.into(),
            incarnation,
            stream,
            state: SetState::Open,
            live_blocks: 0,
            owed_blocks: 0,
            written_blocks: 0,
            provisional_blocks: 0,
            pins: 0,
            moves: 0,
            passed: false,
            named: false,
            on_failing: false,
            late: false,
            drained: false,
            last_sequence: Sequence(0),
            durable_blocks: 0,
            leads: true,
            stuck: false,
            lacks_copy: false,
            holds_gone: false,
        }
    }

    /// The segments that a root with images past `watermark` makes free, of all or of surplus copies;
    /// `soon` after it included.
    fn coming(&self, watermark: Sequence, copies: usize, soon: bool) -> &[SegmentId] {
        let all = if soon { self.awaits_root(watermark) } else { self.is_freed_by(watermark) };
        match all {
            true => &self.segments,
            false if self.last_sequence <= watermark => self.surplus(copies),
            false => &[],
        }
    }

    /// Whether the next root, or one soon after it, makes the set free.
    fn awaits_root(&self, watermark: Sequence) -> bool {
        matches!(self.state, SetState::LetGo(_)) || self.is_freed_by(watermark)
    }

    /// Whether a root whose images are past `watermark` makes the set free.
    pub(crate) fn is_freed_by(&self, watermark: Sequence) -> bool {
        match self.state {
            SetState::LetGo(at) => at <= watermark,
            SetState::Closed => self.is_obsolete(watermark),
            _ => false,
        }
    }

    /// Whether images past `watermark` hold all that a closed set of facts says.
    fn is_obsolete(&self, watermark: Sequence) -> bool {
        self.stream == Stream::Facts && self.is_empty() && self.last_sequence <= watermark
    }

    /// Moves on in the diagram of [`SetState`].
    ///
    /// # Panics
    /// If the diagram has no such arrow.
    fn transition(&mut self, next: SetState) {
        assert!(self.state.may_become(next), "set {:?}: {:?} to {next:?}", self.id, self.state);
        self.state = next;
        self.holds_gone &= next == SetState::Closing;
    }
}

/// All sets, and the free segments of each member.
pub(crate) struct SetTable {
    segment_blocks: u32,
    /// Which segments are whose.
    members: Vec<Numbers>,
    /// Members that have failed since the pool was opened.
    lost: MemberMask,
    /// Whether an epoch that counts names one of them.
    failing: bool,
    /// One on which nothing is opened any more, because it is to leave.
    leaving: Option<usize>,
    /// Indexed by the number of a set's first segment. They lie here themselves: each request looks one up, and all are gone
    /// through.
    sets: Vec<Option<Set>>,
    /// Which of them were let go of.
    let_go: Vec<bool>,
    free: Vec<VecDeque<SegmentId>>,
    /// Segments of each member that no root is needed for any more, in sets that are not free yet.
    reusable: Vec<usize>,
    /// Of those, segments in [`SetState::Discarding`].
    discarding: Vec<usize>,
    /// Segments of each member that are kept really free, where that is not its stock, see [`SetTable::keep_free`].
    kept_free: Option<usize>,
    /// Sets in [`SetState::Reusable`], the one let go of first in front.
    reusable_sets: VecDeque<SegmentId>,
    /// What each is behind, if that is known.
    controllers: [Option<u64>; PLACES_MAX],
    packing: Packing,
    totals: Totals,
    /// Copies that a set keeps once all of it is clean.
    clean_copies: usize,
    /// Part of the sets opened of late to admit something that writes filled, see [`SetTable::goal`].
    written_part: f64,
    /// Whether any volume has a reservation.
    pub has_reservations: bool,
    /// Sets that a root may make something of free, and some that have nothing to give any more.
    givers: BTreeSet<SegmentId>,
    /// Whether counts are kept; recovery turns it on once the index is complete.
    pub accounting: bool,
}

impl SetTable {
    /// A table in which every segment of the members that are there is free. `numbers` counts the
    /// segments of all members that the pool ever had.
    pub(crate) fn new(segment_blocks: u32, members: Vec<Numbers>, numbers: u32) -> Self {
        let free = members.iter().map(|member| member.iter().collect()).collect();
        let (reusable, discarding) = (vec![0; members.len()], vec![0; members.len()]);
        let mut sets = list_in_huge_pages(numbers as usize);
        sets.resize_with(numbers as usize, || None);
        let let_go = vec![false; numbers as usize];
        Self {
            segment_blocks,
            members,
            lost: MemberMask(0),
            failing: false,
            leaving: None,
            sets,
            let_go,
            free,
            reusable,
            discarding,
            kept_free: None,
            reusable_sets: VecDeque::new(),
            controllers: [None; PLACES_MAX],
            packing: Packing { segment_blocks, percent: 0 },
            totals: Totals::default(),
            clean_copies: COPIES_MAX,
            written_part: 0.0,
            has_reservations: false,
            givers: BTreeSet::new(),
            accounting: false,
        }
    }

    /// Says which controller a member is behind; members behind the same one fail with it.
    pub(crate) fn set_controller(&mut self, member: usize, controller: Option<u64>) {
        self.controllers[member] = controller;
    }

    /// The same as [`SetTable::lose`] with one that epochs go on to name, until [`SetTable::settle`].
    pub(crate) fn fail(&mut self, member: usize) {
        self.failing = true;
        let ids: Vec<SegmentId> = self.on(member).map(|set| set.id).collect();
        self.lose(member);
        for id in ids {
            if let Some(set) = self.get_mut(id) {
                set.on_failing = true;
            }
            self.note_late(id);
        }
    }

    /// Takes a member and the copies on it out of the table.
    pub(crate) fn lose(&mut self, member: usize) {
        self.lost.0 |= 1 << member;
        self.leaving = self.leaving.filter(|&leaving| leaving != member);
        self.free[member].clear();
        self.reusable[member] = 0;
        self.discarding[member] = 0;
        let own = self.members[member];
        for set in self.sets.iter_mut().flatten() {
            let (before, totals) = (set.segments.len(), set.totals(self.packing));
            set.segments.retain(|segment| own.place_of(*segment).is_none());
            if set.segments.len() < before {
                set.lacks_copy = true;
                set.holds_gone |=
                    matches!(set.state, SetState::Open | SetState::Closing | SetState::Discarding);
            }
            self.totals.replace(totals, set.totals(self.packing));
        }
        self.sort_reusable();
    }

    /// Makes room for a member's segments, so that [`SetTable::join`] and [`SetTable::extend`] have
    /// nothing to allocate but what is of the size of its own. The sets are moved at once, 15 MB of a pool of 4 TiB.
    pub(crate) fn expect(&mut self, range: NumberRange) {
        let all = range.end() as usize;
        if all > self.sets.capacity() {
            let mut sets = list_in_huge_pages(all);
            sets.append(&mut self.sets);
            self.sets = sets;
        }
        self.let_go.reserve_exact(all.saturating_sub(self.let_go.len()));
    }

    /// Takes in a member, at the place that it has in the pool. All of it is free.
    pub(crate) fn join(&mut self, member: usize, range: NumberRange) {
        // Those that were to join and failed before have a place in the pool and none here.
        for other in self.members.len()..member {
            self.lost.0 |= 1 << other;
            self.push_member();
        }
        self.push_member();
        self.extend(member, Numbers::new(range.base, range.count), range);
    }

    fn push_member(&mut self) {
        self.members.push(Numbers::default());
        self.free.push(VecDeque::new());
        self.reusable.push(0);
        self.discarding.push(0);
    }

    /// Goes on with more segments of a member, which are free. What was of members that are gone, and by which
    /// no set is known, may be its own now.
    pub(crate) fn extend(&mut self, member: usize, numbers: Numbers, more: NumberRange) {
        let all = self.sets.len().max(more.end() as usize);
        self.sets.resize_with(all, || None);
        self.let_go.resize(all, false);
        let mut others = self.members.iter().enumerate();
        let is_taken = others.any(|(other, theirs)| theirs.overlap(more) && !self.is_lost(other));
        assert!(!is_taken, "two members with one segment");
        self.members[member] = numbers;
        self.free[member].extend((more.base..more.end()).map(SegmentId));
    }

    /// Whether a number of a member that is gone may not be given to another yet: a set is known by one, or somebody appends
    /// to or discards what had a copy there, and holds its numbers.
    pub(crate) fn uses_gone(&self) -> bool {
        self.iter().any(|set| set.is_known_by_gone() || set.holds_gone)
    }

    /// Opens nothing on a member any more, or does again on all.
    pub(crate) fn set_leaving(&mut self, member: Option<usize>) {
        self.leaving = member;
        self.sort_reusable();
    }

    /// The sets with a copy on a member.
    pub(crate) fn on(&self, member: usize) -> impl Iterator<Item = &Set> {
        self.iter().filter(move |set| set.segments.iter().any(|&at| self.member_of(at) == member))
    }

    /// Whether the next root, or one soon after it, frees the copy of a set on a member.
    pub(crate) fn is_given_up(&self, set: &Set, member: usize) -> bool {
        let no_data = set.state == SetState::Closed && !set.holds_data();
        let surplus = set.surplus(self.clean_copies);
        no_data
            || matches!(set.state, SetState::LetGo(_))
            || surplus.iter().any(|&segment| self.member_of(segment) == member)
    }

    /// Whether blocks are mapped to places that nothing can be read from.
    pub(crate) fn has_strays(&self) -> bool {
        self.iter().any(|set| set.live_blocks > 0 && set.has_no_copy())
    }

    /// Whether some of that is what an origin may lack.
    pub(crate) fn has_owed_strays(&self) -> bool {
        self.iter().any(|set| set.owed_blocks > 0 && set.has_no_copy())
    }

    fn is_lost(&self, member: usize) -> bool {
        self.lost.0 >> member & 1 == 1
    }

    /// The members that give segments to new sets, by number.
    fn there(&self) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(|&m| !self.is_lost(m) && self.leaving != Some(m))
    }

    /// The member that holds a segment.
    pub(crate) fn member_of(&self, segment: SegmentId) -> usize {
        self.place_of(segment).0
    }

    /// The member that holds a segment, and its place there, counted in segments.
    pub(crate) fn place_of(&self, segment: SegmentId) -> (usize, u32) {
        // The last one that was given it.
        let mut members = self.members.iter().enumerate().rev();
        members
            .find_map(|(member, numbers)| Some((member, numbers.place_of(segment)?)))
            .expect("segment ids are validated when they enter")
    }

    /// Whether a segment was of a member that is gone.
    pub(crate) fn is_absent(&self, segment: SegmentId) -> bool {
        self.has_number(segment) && !self.knows(segment)
    }

    /// Whether some member has or had such a segment.
    pub(crate) fn has_number(&self, segment: SegmentId) -> bool {
        (segment.0 as usize) < self.sets.len()
    }

    /// Whether a member that is there has such a segment.
    pub(crate) fn knows(&self, segment: SegmentId) -> bool {
        self.members.iter().any(|numbers| numbers.place_of(segment).is_some())
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
        self.sets.get(id.0 as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: SegmentId) -> Option<&mut Set> {
        self.sets.get_mut(id.0 as usize)?.as_mut()
    }

    /// The sets in use, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Set> {
        self.sets.iter().flatten()
    }

    /// Those with this number or a higher one.
    pub(crate) fn iter_from(&self, first: SegmentId) -> impl Iterator<Item = &Set> {
        self.sets.iter().skip(first.0 as usize).flatten()
    }

    /// Takes `copies` segments from distinct members, above what `stream` leaves to others and what the
    /// next start is left; `None` if there are not enough. Members fill up together, each in proportion
    /// to its size; but who has as many left as there can be sets is part of every one, so that
    /// nothing remains of a large member that a smaller one could have made a set of. Of the others, one
    /// behind a controller that no copy is behind goes first, as long as it does not fill up much sooner.
    pub(crate) fn allocate(
        &mut self,
        copies: usize,
        stream: Stream,
        left: &[usize; PLACES_MAX],
    ) -> Option<Vec<SegmentId>> {
        let mut above = [0; PLACES_MAX];
        let left_free = if stream.holds_data() { DATA_LEAVES_FREE } else { 0 };
        for m in self.there().filter(|&m| self.free[m].len() > left_free) {
            above[m] = self.ready(m).saturating_sub(self.floor(m, stream) + left[m]);
        }
        let possible = sets_of(above, copies);
        if possible == 0 {
            return None;
        }
        let mut order: Vec<usize> = (0..self.members.len()).filter(|&m| above[m] > 0).collect();
        let size = |m: usize| self.members[m].count() as usize;
        order.sort_by(|&a, &b| {
            let needed = (above[b] >= possible).cmp(&(above[a] >= possible));
            needed.then((above[b] * size(a)).cmp(&(above[a] * size(b))))
        });
        let mut taken = Vec::with_capacity(copies);
        while taken.len() < copies && !order.is_empty() {
            let first = order[0];
            let shares = |m: usize| {
                let own = self.controllers[m];
                own.is_some() && taken.iter().any(|&other: &usize| self.controllers[other] == own)
            };
            let fits = |m: usize| {
                let (own, most) = (above[m] * size(first), above[first] * size(m));
                !shares(m) && own * CONTROLLER_SLACK >= most
            };
            let is_needed = above[first] >= possible;
            let next = order.iter().position(|&m| fits(m)).filter(|_| !is_needed).unwrap_or(0);
            taken.push(order.remove(next));
        }
        self.note_admission(stream, copies);
        Some(taken.into_iter().filter_map(|m| self.free[m].pop_front()).collect())
    }

    /// Puts a set into the table; its segments must not be free any more.
    pub(crate) fn put(&mut self, set: Set) {
        let slot = &mut self.sets[set.id.0 as usize];
        assert!(slot.is_none(), "set {:?} is in use", set.id);
        let id = set.id;
        *slot = Some(set);
        self.note_giver(id);
    }

    /// Takes segments that recovery found in use off the free lists.
    pub(crate) fn claim(&mut self, segments: &BTreeSet<SegmentId>) {
        self.free.iter_mut().for_each(|free| free.retain(|segment| !segments.contains(segment)));
    }

    /// All segments that nothing is in.
    pub(crate) fn free_segments(&self) -> Vec<SegmentId> {
        self.free.iter().flatten().copied().collect()
    }

    /// Takes a segment off the free list although no set has it; false if it is not there.
    pub(crate) fn withhold(&mut self, segment: SegmentId) -> bool {
        let is_free = self.free.iter().any(|free| free.contains(&segment));
        self.claim(&BTreeSet::from([segment]));
        is_free
    }

    /// Makes a segment that no set has free, as one that was withheld.
    pub(crate) fn give_back(&mut self, segment: SegmentId) {
        let member = self.member_of(segment);
        if !self.is_lost(member) {
            self.free[member].push_back(segment);
        }
    }

    /// Takes back a set that was opened and that nothing was written to, not even its header.
    pub(crate) fn withdraw(&mut self, id: SegmentId) {
        let set = self.sets[id.0 as usize].take().expect("only sets in use are withdrawn");
        let untouched = set.state == SetState::Open && set.last_sequence == Sequence(0);
        assert!(untouched && set.pins == 0 && set.live_blocks == 0, "set {id:?} is in use");
        for segment in set.segments {
            let member = self.member_of(segment);
            self.free[member].push_front(segment);
        }
    }

    /// Ends a discarded set: its segments are free.
    pub(crate) fn release(&mut self, id: SegmentId) {
        let set = self.sets[id.0 as usize].take().expect("only sets in use are released");
        self.givers.remove(&id);
        self.let_go[id.0 as usize] = false;
        let (pins, live, state) = (set.pins, set.live_blocks, set.state);
        assert!(
            pins == 0 && live == 0 && state == SetState::Discarding,
            "set {id:?} of {:?}: {pins} pins, {live} live blocks, {state:?}",
            set.stream
        );
        for segment in set.segments {
            let member = self.member_of(segment);
            self.reusable[member] -= 1;
            self.discarding[member] -= 1;
            self.free[member].push_back(segment);
        }
    }

    /// Sets that have more copies than clean data needs, with their incarnations.
    pub(crate) fn surplus(&self) -> Vec<(SegmentId, Incarnation)> {
        let copies = self.clean_copies;
        let sets = self.givers().filter(|set| !set.surplus(copies).is_empty());
        sets.map(|set| (set.id, set.incarnation)).collect()
    }

    /// Takes the surplus copies, if any, from a set of which the images of a durable root say that nothing in it
    /// is owed. They are in no set then, and not free.
    pub(crate) fn shrink(
        &mut self,
        (id, incarnation): (SegmentId, Incarnation),
        watermark: Sequence,
    ) -> Option<Vec<SegmentId>> {
        let copies = self.clean_copies;
        let set = self.get_mut(id).filter(|set| set.incarnation == incarnation)?;
        if set.last_sequence > watermark || set.surplus(copies).is_empty() {
            return None;
        }
        Some(self.change(id, |set| {
            // Its headers name no others from now on.
            set.lacks_copy = false;
            set.segments.drain(copies..).collect()
        }))
    }

    /// Changes the counts or the copies of a set in use, and the totals with them.
    fn change<T>(&mut self, id: SegmentId, change: impl FnOnce(&mut Set) -> T) -> T {
        let packing = self.packing;
        let set = self.get_mut(id).expect("live data lies in a set in use");
        let before = set.totals(packing);
        let answer = change(set);
        let after = set.totals(packing);
        self.totals.replace(before, after);
        answer
    }

    /// Counts blocks that became live.
    pub(crate) fn add(&mut self, location: Location, count: u32, state: State) {
        if !state.has_data() || !self.accounting {
            return;
        }
        let (id, _) = self.split(location);
        self.change(id, |set| {
            set.live_blocks += count;
            set.owed_blocks += if state.is_owed() { count } else { 0 };
            set.written_blocks += if state == State::Written { count } else { 0 };
            set.provisional_blocks += if state == State::Provisional { count } else { 0 };
        });
    }

    /// Counts blocks that are live no more; returns the set if that may be let go of now.
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
        let (emptied, may_give) = self.change(id, |set| {
            let before = set.owed_blocks;
            set.live_blocks -= count;
            set.owed_blocks -= if state.is_owed() { count } else { 0 };
            set.written_blocks -= if state == State::Written { count } else { 0 };
            set.provisional_blocks -= if state == State::Provisional { count } else { 0 };
            let clean = before > 0 && set.owed_blocks == 0;
            (set.may_be_let_go().then_some(id), clean && set.segments.len() > 1)
        });
        if may_give {
            self.note_giver(id);
        }
        emptied
    }

    /// Lets go of a closed set. `sequence` is a fresh one, so an image whose watermark reaches it was taken
    /// afterwards.
    pub(crate) fn let_go(&mut self, id: SegmentId, sequence: Sequence) {
        let set = self.get_mut(id).expect("only sets in use are let go of");
        assert!(set.may_be_let_go());
        set.named = set.live_blocks > 0;
        if set.named {
            planted::seen("reclaim: let go of what is still read");
        }
        self.transition(id, SetState::LetGo(sequence));
    }

    /// Notes that what is left in a set is not worth moving; nothing if it owes anything.
    pub(crate) fn pass(&mut self, id: SegmentId) {
        if let Some(set) = self.get_mut(id).filter(|set| set.is_clean()) {
            set.passed = true;
        }
    }

    /// Whether images mark a place. Asked for each extent of an image.
    pub(crate) fn is_let_go(&self, location: Location) -> bool {
        self.let_go[self.split(location).0.0 as usize]
    }

    /// Keeps a set from being freed while its content is used.
    pub(crate) fn pin(&mut self, location: Location) -> SegmentId {
        let (id, _) = self.split(location);
        let set = self.get_mut(id).expect("only live data is pinned");
        set.pins += 1;
        if set.state.is_let_go() && set.live_blocks > 0 {
            planted::seen("read: let go of");
        }
        id
    }

    /// Undoes one [`SetTable::pin`]; returns the set if it may be let go of now, or made free.
    #[must_use]
    pub(crate) fn unpin(&mut self, id: SegmentId) -> Option<SegmentId> {
        let set = self.get_mut(id).expect("a pinned set stays");
        set.pins -= 1;
        (set.may_be_let_go() || (set.drained && set.pins == 0)).then_some(id)
    }
}

//! What room there is: how many free segments a stream leaves to others, when there are too few, what
//! the next root will free, and what overwriting and destaging could.
//!
//! A wait for room ends (INV-29). Writes and facts wait, and room is made on the very members that
//! lack it: nobody who need not wait takes a member's last segments above what writes leave to
//! others ([`SetTable::floor`]), reclaim empties sets that lie on such a member before any else
//! ([`SetTable::lacking`]), and whatever a root would free there is reason enough for one. So each
//! set let go of there brings a waiter closer, whatever is moved or populated elsewhere.
//!
//! What a root has made free counts as free, although its data is read until somebody needs the place: a small
//! [`SetTable::stock`] is really free, and to add to it takes no root and no other room. What turns out to be read from when it
//! is wanted counts again once it is not: who reads may wait for an origin, or for this very room.

use super::{Set, SetState, SetTable};
use crate::format::Stream;
use crate::ids::{SegmentId, Sequence};
use crate::limits::{CLEAN_COPIES_MAX, FULL_RESERVES, PLACES_MAX, RESERVE_SEGMENTS_MIN};
use crate::throttle::FULL;

/// Levels by which sets are told apart: none, up to all of them full of owed data.
pub(crate) const OWED_LEVELS: usize = 33;

/// See [`SetTable::outlook`]; all in segments.
#[derive(Clone)]
pub(crate) struct Outlook {
    /// All but those of [`Stream::Rewritten`] with owed data, of which overwriting makes room.
    pub total: u64,
    /// Those that an origin's flush makes clean.
    pub awaiting_flush: u64,
    /// What live data would fill.
    pub live: f64,
    /// What writes can have without destaging.
    pub free: u64,
    /// Blocks, not segments, that an origin may lack in sets of [`Stream::Rewritten`].
    pub rewritten_blocks: u64,
    /// Those with owed data, by its part of a segment: the last level is full of it.
    pub owed: Levels,
    /// What those count for as dirty, see [`SetTable::unpackable_segments`].
    pub unpackable: f64,
}

impl Outlook {
    /// See [`roominess`].
    fn roominess(&self) -> f64 {
        self.roominess_with(0.0)
    }

    /// The same once live data fills so many segments more.
    pub(crate) fn roominess_with(&self, filled: f64) -> f64 {
        roominess(self.live + filled, self.total.max(1) as f64)
    }
}

/// How far half empty sets can be packed together in a pool of so many segments of which live data would
/// fill some: 1 as far as one likes, 0 not at all.
fn roominess(live: f64, total: f64) -> f64 {
    ((ROOMY - live / total) / ROOMY_RAMP).clamp(0.0, 1.0)
}

/// Part of the pool that live data fills where there is no such room ([`crate::policy`] says so too), and
/// part of it over which it comes.
const ROOMY: f64 = 0.6;
const ROOMY_RAMP: f64 = 0.1;

/// How much of a set may be owed so that sets like it can be packed together for ever within the write
/// budget: with a part d, d / (1 - d) bytes are moved for each byte that is written. Headers and clean data take their
/// part of both; where packing has to stop, all of the set counts ([`crate::core::Core::pressure`]).
#[derive(Clone, Copy)]
pub(super) struct Packing {
    pub segment_blocks: u32,
    /// That part, in percent; 0, by which every set counts in full, until the budget is known.
    pub percent: u32,
}

impl Packing {
    /// What a segment with so many owed blocks counts for as dirty, in blocks.
    pub fn unpackable(self, owed_blocks: u32) -> u64 {
        let most = u64::from(self.segment_blocks);
        let scaled = (u64::from(owed_blocks) * 100).checked_div(u64::from(self.percent));
        if owed_blocks == 0 { 0 } else { scaled.map_or(most, |blocks| blocks.min(most)) }
    }
}

/// What sets come to, each copy by itself.
#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    /// Blocks of live data.
    pub occupied_blocks: u64,
    /// Segments that hold owed blocks.
    pub owed_segments: usize,
    /// What those count for, see [`Packing::unpackable`].
    pub unpackable_blocks: u64,
}

impl Totals {
    /// What is owed counts for so many segments as dirty, where there is so much [`roominess`].
    fn unpackable_segments(self, segment_blocks: u32, roominess: f64) -> f64 {
        let owed = self.owed_segments as f64;
        owed - roominess * (owed - self.unpackable_blocks as f64 / f64::from(segment_blocks))
    }

    /// One set comes to something else.
    pub fn replace(&mut self, before: Self, after: Self) {
        self.occupied_blocks =
            self.occupied_blocks + after.occupied_blocks - before.occupied_blocks;
        self.owed_segments = self.owed_segments + after.owed_segments - before.owed_segments;
        self.unpackable_blocks =
            self.unpackable_blocks + after.unpackable_blocks - before.unpackable_blocks;
    }
}

/// Segments by level.
pub(crate) type Levels = [u64; OWED_LEVELS];

/// Some of the members, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberMask(pub(super) u32);

const _: () = assert!(PLACES_MAX <= u32::BITS as usize);

impl MemberMask {
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Sets of `copies` segments that can be made of what members have. Copies lie on distinct members, so
/// what one has more than the others is of no use.
pub(super) fn sets_of(mut above: [usize; PLACES_MAX], copies: usize) -> usize {
    above.sort_unstable();
    let of = |others: usize| above[..PLACES_MAX - others].iter().sum::<usize>() / (copies - others);
    (0..copies).map(of).min().unwrap_or(0)
}

/// Part of a reserve that is really free, see [`SetTable::stock`].
const STOCK_PARTS: usize = 4;

/// Segments of a member that are really free and that data leaves to facts and images: the next one of these opens at once.
pub(super) const DATA_LEAVES_FREE: usize = 1;

/// See [`SetTable::reserve`], for a member of so many segments.
fn reserve_of(count: u32) -> usize {
    (count as usize / 20).max(RESERVE_SEGMENTS_MIN)
}

/// See [`SetTable::floor`], for a member of so many segments.
fn floor_of(count: u32, stream: Stream) -> usize {
    let reserve = reserve_of(count);
    match stream {
        Stream::Metadata => 0,
        Stream::Facts => reserve / 8 * 3,
        Stream::Dirty | Stream::Rewritten | Stream::DirtyMain => reserve / 4 * 3,
        Stream::Main | Stream::Probation => reserve / 4 * 3 + 1,
    }
}

impl SetTable {
    /// Segments of a member for which no root is needed any more: free, or in reusable sets.
    pub(super) fn ready(&self, member: usize) -> usize {
        self.free[member].len() + self.reusable[member]
    }

    /// Segments of a member that are free and not only reusable, as far as there are any: what is opened while the next
    /// reusable set is emptied.
    fn stock(&self, member: usize) -> usize {
        self.kept_free.unwrap_or(self.reserve(member) / STOCK_PARTS)
    }

    /// Has so many segments of each member as its stock, or what is usual: a start takes no more than it needs from what is
    /// let go of, for much is free behind its first root.
    pub(crate) fn keep_free(&mut self, segments: Option<usize>) {
        self.kept_free = segments;
    }

    /// A root is past the letting go of a set.
    pub(super) fn note_reusable(&mut self, id: SegmentId) {
        self.count_in(id);
        self.note_late(id);
    }

    /// Counts a set for which no root is needed any more as room.
    fn count_in(&mut self, id: SegmentId) {
        self.change_counts(id, |count| *count += 1);
        let Some(set) = self.get(id) else { return };
        let is_reusable = set.state == SetState::Reusable;
        match self.is_unwanted(set) {
            _ if !is_reusable => {}
            true => self.reusable_sets.push_front(id),
            false => self.reusable_sets.push_back(id),
        }
    }

    /// The opposite.
    fn count_out(&mut self, id: SegmentId) {
        self.reusable_sets.retain(|&other| other != id);
        self.change_counts(id, |count| *count -= 1);
    }

    /// Takes a set out of what counts as room if a failing member has its header and images may name what was in it: whoever
    /// finds that header would believe these.
    pub(super) fn note_late(&mut self, id: SegmentId) {
        let Some(set) = self.get_mut(id) else { return };
        let no_root = matches!(set.state, SetState::Reusable | SetState::Discarding);
        if !(set.on_failing && no_root && set.named) || set.late {
            return;
        }
        set.late = true;
        if !set.drained {
            self.count_out(id);
        }
    }

    /// A set has no header any more, on no member: whatever images name in it is not believed.
    pub(crate) fn note_erased(&mut self, id: SegmentId) {
        if let Some(set) = self.get_mut(id) {
            set.named = false;
        }
    }

    /// Whether a set waits for an epoch without a member that is failing.
    pub(crate) fn is_late(&self, id: SegmentId) -> bool {
        self.get(id).is_some_and(|set| set.late)
    }

    /// No epoch that counts names a member that has failed.
    pub(crate) fn settle(&mut self) {
        if !std::mem::take(&mut self.failing) {
            return;
        }
        let met: Vec<SegmentId> =
            self.iter().filter(|set| set.on_failing).map(|set| set.id).collect();
        for id in met {
            let Some(set) = self.get_mut(id) else { continue };
            set.on_failing = false;
            if std::mem::take(&mut set.late) && !set.drained {
                self.count_in(id);
            }
        }
    }

    /// Whether a set is to go before its place is needed: with a member, or because it has too few copies; or because
    /// what is in it would count as held for a reservation.
    fn is_unwanted(&self, set: &Set) -> bool {
        let on_leaving = |&segment: &SegmentId| self.leaving == Some(self.member_of(segment));
        // How many are enough is not known before a start has ended.
        let enough = if self.clean_copies > CLEAN_COPIES_MAX { 0 } else { self.clean_copies };
        let is_short = set.is_short(enough);
        self.has_reservations || is_short || set.segments.iter().any(on_leaving)
    }

    /// Puts reusable sets that are to go in front.
    pub(super) fn sort_reusable(&mut self) {
        let mut sets = std::mem::take(&mut self.reusable_sets);
        let is_wanted = |id: &SegmentId| !self.get(*id).is_some_and(|set| self.is_unwanted(set));
        sets.make_contiguous().sort_by_key(is_wanted);
        self.reusable_sets = sets;
    }

    /// The reusable set to make free next: the one let go of first on a member that needs it, whatever it is on if
    /// `any` is; and what is to go in any case.
    pub(crate) fn next_reusable(&self, any: bool) -> Option<SegmentId> {
        let mut short = MemberMask(0);
        for m in self.there().filter(|&m| self.reusable[m] > 0) {
            let soon = self.free[m].len() + self.discarding[m];
            short.0 |= u32::from(soon < self.stock(m)) << m;
        }
        let sets = self.reusable_sets.iter().filter_map(|&id| self.get(id));
        let mut sets = sets.take_while(|set| any || !short.is_empty() || self.is_unwanted(set));
        // What lay on lost members alone is dropped by whoever leaves them behind.
        let is_there = |set: &Set| !set.has_no_copy() || set.live_blocks == 0;
        let is_needed = |set: &Set| any || self.touches(set, short) || self.is_unwanted(set);
        sets.find(|set| is_there(set) && is_needed(set)).map(|set| set.id)
    }

    /// Whether there is any reusable set.
    pub(crate) fn has_reusable(&self) -> bool {
        !self.reusable_sets.is_empty()
    }

    /// Takes a reusable set in which nothing lives any more out of what counts as free, until nobody reads from it.
    pub(crate) fn drain(&mut self, id: SegmentId) {
        let Some(set) = self.get_mut(id) else { return };
        set.drained = true;
        if !set.late {
            self.count_out(id);
        }
    }

    /// Nobody reads from a set that was drained; false if it was not, or somebody does.
    pub(crate) fn undrain(&mut self, id: SegmentId) -> bool {
        let Some(set) = self.get_mut(id).filter(|set| set.drained && set.pins == 0) else {
            return false;
        };
        set.drained = false;
        if !set.late {
            self.change_counts(id, |count| *count += 1);
            self.reusable_sets.push_front(id);
        }
        true
    }

    /// A set in which nothing lives is about to be discarded.
    pub(super) fn note_discarding(&mut self, id: SegmentId) {
        self.reusable_sets.retain(|&other| other != id);
        if !self.is_late(id) {
            self.members_of(id).into_iter().for_each(|m| self.discarding[m] += 1);
        }
    }

    /// Changes what is counted of the segments of a set for which no root is needed.
    fn change_counts(&mut self, id: SegmentId, change: impl Fn(&mut usize)) {
        let is_discarding = self.get(id).is_some_and(|set| set.state == SetState::Discarding);
        for m in self.members_of(id) {
            change(&mut self.reusable[m]);
            if is_discarding {
                change(&mut self.discarding[m]);
            }
        }
    }

    /// The members that the segments of a set are on.
    fn members_of(&self, id: SegmentId) -> Vec<usize> {
        let set = self.get(id).into_iter();
        set.flat_map(|set| &set.segments).map(|&at| self.member_of(at)).collect()
    }

    /// Whether sets of `copies` segments can be had without a root, sooner or later.
    pub(crate) fn can_be_had(&self, copies: usize) -> bool {
        let mut ready = [0; PLACES_MAX];
        for m in self.there() {
            ready[m] = self.ready(m);
        }
        sets_of(ready, copies) > 0
    }

    /// Free segments of a member below which room is made: 5 % of it.
    fn reserve(&self, member: usize) -> usize {
        reserve_of(self.members[member].count())
    }

    /// Free segments of a member that reclaim keeps, with those that a root would free: one reserve for
    /// whatever comes; half of one, so that a root frees many at once; and the other half for writers, as far as they
    /// take what is free. Where the cache is filled by reads alone, that half holds data. In a pool with
    /// reservations it does not: there what is populated leaves half a reserve to moves.
    fn goal(&self, member: usize) -> usize {
        let reserve = self.reserve(member);
        let second = if self.has_reservations { 1.0 } else { self.written_part.max(0.5) };
        (reserve + (reserve as f64 * second) as usize).max(2 * RESERVE_SEGMENTS_MIN)
    }

    /// Takes note of a set that was opened to admit something: whether a write was. What is clean and moved
    /// says nothing of what comes.
    pub(super) fn note_admission(&mut self, stream: Stream, copies: usize) {
        let written = match stream {
            Stream::Dirty | Stream::Rewritten | Stream::DirtyMain => 1.0,
            Stream::Probation => 0.0,
            Stream::Main | Stream::Facts | Stream::Metadata => return,
        };
        let reserves: usize = self.there().map(|m| self.reserve(m)).sum();
        let step = copies as f64 / reserves.max(copies) as f64;
        self.written_part += (written - self.written_part) * step;
    }

    /// Free segments of a member that a stream leaves to others. Images may take all: they lead to
    /// the root that makes room. Facts leave some to them, and data leaves some to facts. What
    /// may be refused, populations and moves of clean data, leaves more than writes do: were it
    /// otherwise, reclaim could give the segment that it has just freed to the data it moves
    /// there, again and again, before a write that waits for one on several members finds them.
    pub(super) fn floor(&self, member: usize, stream: Stream) -> usize {
        floor_of(self.members[member].count(), stream)
    }

    /// Segments that are worth a root of their own while writers wait for room: half of the
    /// reserve. One root for each set that is emptied costs more than emptying it, in time and in bytes.
    pub(crate) fn root_batch(&self) -> usize {
        self.there().map(|m| self.reserve(m) / 2).sum()
    }

    /// Whether some member has so few free segments that nothing is populated or moved there, `left` to
    /// the next start. Before a write waits for a set there this is so, and a root is due (INV-29).
    pub(crate) fn is_starving(&self, left: &[usize; PLACES_MAX]) -> bool {
        self.there().any(|m| self.ready(m) <= self.floor(m, Stream::Probation) + left[m])
    }

    /// Whether some member has less free than its reserve.
    pub(crate) fn is_low(&self) -> bool {
        self.there().any(|m| self.ready(m) < self.reserve(m))
    }

    /// Segments that a root with images past `watermark`, or one `soon` after it, makes free.
    pub(crate) fn coming(
        &self,
        watermark: Sequence,
        soon: bool,
    ) -> impl Iterator<Item = SegmentId> + '_ {
        let copies = self.clean_copies;
        self.givers().flat_map(move |set| set.coming(watermark, copies, soon)).copied()
    }

    /// Whether some member has hardly more free than reclaim keeps: what is brought in pushes something
    /// out.
    pub(crate) fn is_full(&self) -> bool {
        self.there().any(|m| self.ready(m) < self.reserve(m) * FULL_RESERVES)
    }

    /// The members on which room must be made, even if what a root would free now is counted: more than
    /// the reserve is kept ([`SetTable::goal`]), so that a root frees many at once, and writers who outrun reclaim
    /// meet the throttle before they meet the floor. Each member is
    /// looked at by itself, for what is free on one is of no use to a write that needs another;
    /// and where some starve, they alone are named, for reclaim could go on for ever on the others.
    pub(crate) fn lacking(&self, watermark: Sequence, left: &[usize; PLACES_MAX]) -> MemberMask {
        let mut coming = [0; PLACES_MAX];
        for segment in self.coming(watermark, true) {
            coming[self.member_of(segment)] += 1;
        }
        let (mut starving, mut low) = (0, 0);
        for m in self.there() {
            let expected = self.ready(m) + coming[m];
            starving |= u32::from(expected <= self.floor(m, Stream::Probation) + left[m]) << m;
            low |= u32::from(expected < self.goal(m)) << m;
        }
        MemberMask(if starving != 0 { starving } else { low })
    }

    /// How short room for sets of `copies` segments is, up to [`FULL`]: none where reclaim keeps what
    /// it means to keep and roots make that free in time. `left` is what writes leave to the next start.
    pub(crate) fn shortage(
        &self,
        copies: usize,
        left: &[usize; PLACES_MAX],
        watermark: Sequence,
    ) -> u64 {
        let sets = |count: &dyn Fn(usize) -> usize| self.sets_above(copies, left, count);
        let missing = |have: u64, want: u64| {
            if have >= want { 0 } else { (want - have) * FULL / want }
        };
        let free = sets(&|m| self.ready(m));
        let goal = sets(&|m| self.goal(m));
        if free >= goal {
            return 0;
        }
        let mut coming = [0; PLACES_MAX];
        for segment in self.coming(watermark, true) {
            coming[self.member_of(segment)] += 1;
        }
        let expected = sets(&|m| self.ready(m) + coming[m]);
        missing(expected, goal).max(missing(free, self.until_root(copies)))
    }

    /// Sets of `copies` segments that writes can have where members have so many segments free.
    fn sets_above(
        &self,
        copies: usize,
        left: &[usize; PLACES_MAX],
        free: &dyn Fn(usize) -> usize,
    ) -> u64 {
        let mut above = [0; PLACES_MAX];
        for m in self.there() {
            above[m] = free(m).saturating_sub(self.floor(m, Stream::Dirty) + left[m]);
        }
        sets_of(above, copies) as u64
    }

    /// Sets that must be free when a root begins: it takes its time, and they last until then.
    fn until_root(&self, copies: usize) -> u64 {
        (self.sets_above(copies, &[0; PLACES_MAX], &|m| self.reserve(m)) / 2).max(1)
    }

    /// Whether what is free lasts no longer than a root takes; writers are slowed down if it is less.
    pub(crate) fn needs_root(&self, copies: usize, left: &[usize; PLACES_MAX]) -> bool {
        let free = self.sets_above(copies, left, &|m| self.ready(m));
        free <= self.until_root(copies)
    }

    /// What room there is without destaging, and how far destaging is from making more.
    pub(crate) fn outlook(&self) -> Outlook {
        let (total, owed) = (self.total_count() as u64, [0; OWED_LEVELS]);
        let live = self.totals.occupied_blocks as f64 / f64::from(self.segment_blocks);
        let mut outlook = Outlook {
            total,
            awaiting_flush: 0,
            live,
            free: 0,
            rewritten_blocks: 0,
            owed,
            unpackable: 0.0,
        };
        let mut counted = Totals::default();
        for m in self.there() {
            let floor = self.floor(m, Stream::Dirty);
            outlook.free += self.ready(m).saturating_sub(floor) as u64;
        }
        for set in self.iter().filter(|set| set.holds_data()) {
            let segments = self.giving(set);
            outlook.awaiting_flush += if set.awaits_flush() { segments } else { 0 };
            match (set.owed_blocks, set.state) {
                // The others have been counted.
                (0, SetState::Closed | SetState::LetGo(_)) => outlook.free += segments,
                (0, _) => {}
                (owed, _) if set.stream == Stream::Rewritten => {
                    outlook.total -= segments;
                    outlook.rewritten_blocks += u64::from(owed);
                }
                (owed, _) => {
                    let level = owed as usize * (OWED_LEVELS - 1) / self.segment_blocks as usize;
                    outlook.owed[level] += segments;
                    counted.owed_segments += segments as usize;
                    counted.unpackable_blocks += self.packing.unpackable(owed) * segments;
                }
            }
        }
        outlook.unpackable = counted.unpackable_segments(self.segment_blocks, outlook.roominess());
        outlook
    }

    /// Segments of a set on members that give any.
    fn giving(&self, set: &Set) -> u64 {
        let gives = |&&segment: &&SegmentId| self.leaving != Some(self.member_of(segment));
        match self.leaving {
            None => set.segments.len() as u64,
            Some(_) => set.segments.iter().filter(gives).count() as u64,
        }
    }

    /// Whether sets may lie on others than these members alone; of none, nothing is said of sets.
    pub(crate) fn is_part(&self, members: MemberMask) -> bool {
        let all = self.leaving.is_none() && self.there().all(|m| members.0 >> m & 1 == 1);
        !members.is_empty() && !all
    }

    /// Whether a set lies, with one of its copies, on one of these members.
    pub(crate) fn touches(&self, set: &Set, members: MemberMask) -> bool {
        set.segments.iter().any(|&segment| members.0 >> self.member_of(segment) & 1 == 1)
    }

    /// How many sets of `copies` segments the others could hold without a member, above what writes
    /// leave to others; with one more that has so many segments.
    pub(crate) fn sets_without(&self, member: usize, more: Option<u32>, copies: usize) -> usize {
        let mut above = [0; PLACES_MAX];
        let room = |count: u32| (count as usize).saturating_sub(floor_of(count, Stream::Dirty));
        for m in self.there().filter(|&m| m != member) {
            above[m] = room(self.members[m].count());
        }
        // That place is the member's own.
        above[member] = more.map_or(0, room);
        sets_of(above, copies)
    }

    /// Sets of `copies` segments that all members together could hold; with a change, a member has
    /// another number of segments.
    pub(crate) fn sets_in_all(&self, copies: usize, change: Option<(usize, u32)>) -> usize {
        let mut counts = [0; PLACES_MAX];
        for m in self.there() {
            counts[m] = self.members[m].count() as usize;
        }
        if let Some((member, count)) = change {
            counts[member] = count as usize;
        }
        sets_of(counts, copies.max(1))
    }

    /// Leaves half of each member's reserve above what populations leave to others anyway: room to keep
    /// what is reserved until the next root frees what was emptied.
    pub(crate) fn leave_to_moves(&self, left: &mut [usize; PLACES_MAX]) {
        for m in self.there() {
            left[m] += self.reserve(m) / 2;
        }
    }

    /// Segments of all members that give any in which nothing is.
    pub(crate) fn empty_count(&self) -> usize {
        self.there().map(|m| self.free[m].len()).sum()
    }

    /// The same, and those in reusable sets.
    pub(crate) fn free_count(&self) -> usize {
        self.there().map(|m| self.ready(m)).sum()
    }

    /// Segments of sets that hold owed blocks.
    pub(crate) fn owed_segments(&self) -> usize {
        self.totals.owed_segments
    }

    /// What they count for as dirty, in segments: less than their number where those that hold little of
    /// it can be packed together.
    pub(crate) fn unpackable_segments(&self) -> f64 {
        let live = self.totals.occupied_blocks as f64 / f64::from(self.segment_blocks);
        let roominess = roominess(live, self.total_count().max(1) as f64);
        self.totals.unpackable_segments(self.segment_blocks, roominess)
    }

    /// Says how many bytes the SSDs may get for one admitted, in percent.
    pub(crate) fn set_write_amplification_max(&mut self, percent: u32) {
        self.packing.percent = (percent.max(100) - 100) * 100 / percent.max(100);
        self.totals = Totals::default();
        for set in self.sets.iter().flatten() {
            self.totals.replace(Totals::default(), set.totals(self.packing));
        }
    }

    /// Segments of all members that give any.
    pub(crate) fn total_count(&self) -> usize {
        self.there().map(|m| self.members[m].count() as usize).sum()
    }
}

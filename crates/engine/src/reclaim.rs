//! Making room: choose a closed set, move what is worth keeping, let go of the rest, and after the next
//! root let the set be reopened.
//!
//! * What was let go of is read where it is until its place is needed: a reserve of free segments, and roots that make many
//!   free at once, take nothing from the cache.
//! * A move names the place it copied from and takes effect only if the index still points there;
//!   the set is pinned meanwhile, so that nothing newer can come to stand at that place.
//! * Reclaim never waits for room that only reclaim can make: moves of clean data are given up
//!   when there is none; dirty data is moved by a task of its own, which may wait like a writer.
//! * Letting go of a set brings whoever waits for room closer (INV-29; `segment.rs` says how). To have
//!   let go of one is not enough: what was kept of it may fill another, on the member that a writer
//!   of several copies waits for or on one that nobody needs, and writers then wait until the
//!   write budget has ended the moving.

use std::collections::VecDeque;
use std::rc::Rc;

use forebay_device::runtime::MILLISECOND;
use forebay_device::{Data, Io, Nanos};

use crate::apply::RecordPlace;
use crate::core::Core;
use crate::counters::add;
use crate::error::Result;
use crate::format::{
    Entry, EntryKind, FooterRecord, FooterTrailer, Priority, State, Stream, decode_footer_body,
    decode_footer_trailer,
};
use crate::ids::{BLOCK_BYTES, SegmentId, VolumeId};
use crate::index::Mapping;
use crate::limits::GRANULE_BLOCKS;
use crate::log::{data_location, new_entry};
use crate::planted;
use crate::policy::{Granule, Part, Queue, Survey, Unit};
use crate::segment::{MemberMask, Set, SetState};
use crate::walk::{Run, Walk};

const BLOCK: usize = BLOCK_BYTES as usize;

/// Blocks that are appended together (128 KiB): their record's header is a small part of it, and a
/// client's append does not wait long behind it.
const MOVE_BATCH_BLOCKS: u32 = 32;

/// Blocks in flight before the oldest move is waited for: while one batch is written the next is built, and a
/// client's append waits behind no more than that.
const MOVING_BLOCKS_MAX: u32 = 2 * MOVE_BATCH_BLOCKS;

/// Sets whose dirty data is being moved at a time: each takes room before it gives any.
pub(crate) const SETS_MOVING_MAX: u32 = 4;

/// Rests between the batches of a move that nobody waits for, while clients ask for something: so many times as
/// long as the batch took (`forebay-bench faults --rows rebuild,evacuation`, docs/internals/performance.md).
const MOVE_RESTS: u64 = 2;

/// The longest such rest: a batch that took long has met something else than clients.
const MOVE_REST_MAX: Nanos = 20 * MILLISECOND;

/// Who waits for a move.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Haste {
    /// Writers, for the room that it makes.
    Awaited,
    /// Nobody: clients go first.
    Background,
}

/// What becomes of clean data that is not worth moving.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// It is read on until its place is needed.
    Stays,
    /// It is dropped.
    Goes,
}

/// The granule that was retained last while a set is emptied, and the heat that it had.
#[derive(Default)]
struct Warmth(Option<(Granule, u8)>);

/// The same runs in the order of their places, cut into batches of [`MOVE_BATCH_BLOCKS`].
fn batches(mut runs: Vec<Run>) -> Vec<Vec<Run>> {
    runs.sort_unstable_by_key(|(_, m)| m.location);
    let (mut all, mut batch, mut blocks) = (Vec::new(), Vec::new(), 0);
    for (volume, m) in runs {
        let mut at = 0;
        while at < m.count {
            let count = (m.count - at).min(MOVE_BATCH_BLOCKS - blocks);
            batch.push((volume, m.part(at, count)));
            (at, blocks) = (at + count, blocks + count);
            if blocks == MOVE_BATCH_BLOCKS {
                all.push(std::mem::take(&mut batch));
                blocks = 0;
            }
        }
    }
    all.push(batch);
    all
}

/// Blocks of moves under way.
fn blocks_in(moving: &VecDeque<(VolumeId, Mapping, Io)>) -> u32 {
    moving.iter().map(|(_, m, _)| m.count).sum()
}

impl Set {
    /// The queue that a data set belongs to; `None` for facts and metadata.
    pub(crate) fn queue(&self) -> Option<Queue> {
        match self.stream {
            Stream::Dirty | Stream::Rewritten | Stream::Probation => Some(Queue::Probation),
            Stream::Main | Stream::DirtyMain => Some(Queue::Main),
            Stream::Facts | Stream::Metadata => None,
        }
    }
}

impl Core {
    /// The closed set to reclaim next, if there is one worth it; with `sparing`, none in which most of what can
    /// be kept is reserved.
    fn choose_victim(&self, sparing: bool) -> Option<(SegmentId, Queue)> {
        let sets = self.sets.borrow();
        let spare = !self.is_starving() && self.moving.get() < SETS_MOVING_MAX;
        let lacking = self.lacking();
        let picky = sets.is_part(lacking);
        let (size_blocks, opened) = (self.segment_blocks, self.log.open_counter.get());
        // What is read all the time is let go of as soon as it is not; or dropped where somebody needs it.
        let has_time = !self.is_starving() && !self.is_index_crowded();
        let units = sets.iter().filter_map(|set| {
            let queue = set.queue()?;
            // What is written stays where it is, and is clean after the origin's next flush.
            let movable = match set.owed_blocks {
                0 => set.live_blocks > 0 || set.pins == 0,
                _ => spare && set.dirty_blocks() > 0,
            };
            (set.state == SetState::Closed).then_some(Unit {
                id: set.id.0,
                queue,
                opened: set.incarnation.counter,
                live_blocks: set.live_blocks,
                dirty_blocks: set.dirty_blocks(),
                unflushed_blocks: set.written_blocks + set.provisional_blocks,
                copies: set.segments.len() as u32,
                size_blocks,
                packed_blocks: self.log.packed_blocks.get().min(size_blocks),
                // Emptied elsewhere, it would make no room where there is none.
                pinned: !movable
                    || set.moves > 0
                    || (set.passed && has_time)
                    || (sparing && self.space.is_spared(set, opened))
                    || set.has_no_copy()
                    || (picky && !sets.touches(set, lacking)),
            })
        });
        let survey = Survey::of(units).held_back(self.throttle.is_holding());
        let chosen = self.policy.borrow_mut().choose(&survey);
        let id = SegmentId(chosen.or_else(|| self.choose_owed(&survey))?);
        Some((id, sets.get(id)?.queue()?))
    }

    /// What to pack together where nothing else can be reclaimed and some volume has a reservation: its
    /// room must not wait for what other origins take.
    fn choose_owed(&self, survey: &Survey) -> Option<u32> {
        if !self.space.has_reservations() {
            return None;
        }
        let id = survey.fewest_dirty()?;
        planted::seen("reclaim: owed blocks packed for a reservation");
        Some(id)
    }

    /// The same in a pool with reservations: what is mostly reserved is left where it is, for to move it gains
    /// next to nothing, and the budget for that would be gone. Only where nothing else can be emptied
    /// it is its turn.
    async fn choose_beside_reservations(&self) -> Option<(SegmentId, Queue)> {
        let mut has_let_go = false;
        loop {
            match self.choose_victim(true) {
                Some(victim) if !self.is_mostly_reserved(victim.0).await => {
                    // It may have been emptied meanwhile.
                    let state = self.sets.borrow().get(victim.0).map(|set| set.state);
                    if state == Some(SetState::Closed) {
                        return Some(victim);
                    }
                }
                Some((id, _)) => {
                    planted::seen("reclaim: left alone, mostly reserved");
                    let span = self.sets.borrow().total_count() as u64 / 2;
                    let sets = self.sets.borrow();
                    if let Some(set) = sets.get(id) {
                        self.space.spare(set, self.log.open_counter.get(), span);
                    }
                }
                None if !has_let_go => {
                    has_let_go = true;
                    self.let_go_of_silent();
                }
                None => return self.choose_victim(false),
            }
        }
    }

    /// Whether more than half of what a closed set can hold is clean and reserved for its volumes.
    async fn is_mostly_reserved(&self, id: SegmentId) -> bool {
        let pinned = self.pin_set(id);
        let runs = self.runs_of(id).await;
        self.unpin(pinned);
        let reserved =
            runs.iter().filter(|(volume, m)| m.state == State::Clean && self.is_reserved(*volume));
        let blocks: u32 = reserved.map(|(_, m)| m.count).sum();
        blocks > self.log.packed_blocks.get().min(self.segment_blocks) / 2
    }

    /// Lets go of one set as far as possible; false if there was none to choose.
    pub(crate) async fn reclaim_one(self: &Rc<Self>) -> Result<bool> {
        let victim = match self.space.has_reservations() {
            true => self.choose_beside_reservations().await,
            false => self.choose_victim(false),
        };
        let Some((id, queue)) = victim else { return Ok(false) };
        let (before, was_passed) =
            self.sets.borrow().get(id).map_or((0, false), |set| (set.live_blocks, set.passed));
        let moving = self.moving.get();
        self.move_or_drop(id, queue, Haste::Awaited).await?;
        let is_gone = |set: &Set| set.live_blocks < before || (set.passed && !was_passed);
        Ok(self.sets.borrow().get(id).is_none_or(is_gone) || self.moving.get() > moving)
    }

    /// Whether what is let go of in a set may be read on. Not what may be damaged, nothing while there is too little memory
    /// for it, and nothing that would count as held for a reservation.
    fn may_stay(&self, id: SegmentId) -> bool {
        let is_new = self.sets.borrow().get(id).is_some_and(|set| !set.passed);
        is_new
            && !self.is_index_crowded()
            && !self.is_hurt_set(id)
            && !self.space.has_reservations()
    }

    /// Moves what is dirty or worth keeping in a closed set, and lets go of the rest, or drops it.
    async fn move_or_drop(
        self: &Rc<Self>,
        id: SegmentId,
        queue: Queue,
        haste: Haste,
    ) -> Result<()> {
        let pinned = self.begin_move(id);
        let rest = match haste {
            Haste::Awaited if self.may_stay(id) => Rest::Stays,
            Haste::Awaited | Haste::Background => Rest::Goes,
        };
        let result = self.empty_set(id, queue, haste, rest).await;
        self.end_move(pinned, Some(rest));
        result
    }

    /// The same with a clean set that reclaim would not have chosen.
    pub(crate) async fn vacate(self: &Rc<Self>, id: SegmentId) -> Result<()> {
        let queue = self.sets.borrow().get(id).and_then(Set::queue);
        match queue {
            Some(queue) => {
                self.policy.borrow_mut().begin_other();
                self.move_or_drop(id, queue, Haste::Background).await
            }
            None => Ok(()),
        }
    }

    pub(crate) fn pin_set(&self, id: SegmentId) -> SegmentId {
        let mut sets = self.sets.borrow_mut();
        let start = sets.location(id, 0);
        sets.pin(start)
    }

    /// Pins a set that nothing else is to be moved out of meanwhile.
    fn begin_move(&self, id: SegmentId) -> SegmentId {
        let pinned = self.pin_set(id);
        if let Some(set) = self.sets.borrow_mut().get_mut(pinned) {
            set.moves += 1;
        }
        pinned
    }

    /// `rest`: what becomes of what is left, if that is decided.
    fn end_move(&self, pinned: SegmentId, rest: Option<Rest>) {
        if rest == Some(Rest::Stays) {
            self.sets.borrow_mut().pass(pinned);
        }
        if let Some(set) = self.sets.borrow_mut().get_mut(pinned) {
            set.moves -= 1;
        }
        self.unpin(pinned);
    }

    /// Where what is dirty in a set is moved to.
    fn dirty_stream_of(&self, id: SegmentId) -> Stream {
        let stream = self.sets.borrow().get(id).map(|set| set.stream);
        stream.filter(|stream| stream.is_dirty()).unwrap_or(Stream::Dirty)
    }

    async fn empty_set(
        self: &Rc<Self>,
        id: SegmentId,
        queue: Queue,
        haste: Haste,
        rest: Rest,
    ) -> Result<()> {
        let runs = self.runs_of(id).await;
        let (dirty, runs): (Vec<_>, Vec<_>) =
            runs.into_iter().partition(|(_, m)| m.state == State::Dirty);
        // A new place may need more bits; what is dirty is being destaged with all that there is.
        if !dirty.is_empty() && !self.is_index_crowded() {
            self.move_in_background(id, dirty, rest);
        }
        let kept = self.keep_or_leave(runs, queue, rest);
        self.move_runs(kept, Stream::Main, haste).await
    }

    /// What is live in a closed set.
    pub(crate) async fn runs_of(&self, id: SegmentId) -> Vec<Run> {
        match self.read_footer(id).await {
            Some(records) => self.live_runs(id, &records),
            None => self.find_runs(id),
        }
    }

    /// The clean parts of runs that are worth moving, granule by granule; the others stay or are evicted.
    fn keep_or_leave(&self, mut runs: Vec<Run>, queue: Queue, rest: Rest) -> Vec<Run> {
        // What belongs to one granule has one fate, however scattered it lies in the set.
        runs.sort_unstable_by_key(|(volume, m)| (*volume, m.block));
        let mut warmth = Warmth::default();
        let mut kept = Vec::new();
        for (volume, m) in runs {
            let mut at = 0;
            while at < m.count {
                let block = m.block + u64::from(at);
                let granule_end = (block / GRANULE_BLOCKS + 1) * GRANULE_BLOCKS;
                let count = ((granule_end - block) as u32).min(m.count - at);
                let part = m.part(at, count);
                at += count;
                match part.state {
                    State::Clean if self.is_kept_for_reservation(volume, count) => {
                        kept.push((volume, part));
                    }
                    State::Clean => {
                        self.keep_by_use(volume, part, (queue, rest), &mut warmth, &mut kept);
                    }
                    State::Provisional => self.evict(volume, &part),
                    State::Dirty
                    | State::Written
                    | State::Zero
                    | State::ZeroWritten
                    | State::Lost => {}
                }
            }
        }
        kept
    }

    /// Keeps, leaves or evicts a clean part of a granule. What of it nobody has asked for since it came in, or since it was kept
    /// last, has no share in the granule's heat.
    fn keep_by_use(
        &self,
        volume: VolumeId,
        part: Mapping,
        (queue, rest): (Queue, Rest),
        warmth: &mut Warmth,
        kept: &mut Vec<Run>,
    ) {
        let index = &self.shard(volume, part.block).index;
        let cold = index.borrow().cold(volume, part.block, part.count);
        let is_cold = |at: &u32| cold >> at & 1 == 1;
        let mut at = 0;
        while at < part.count {
            let same = |other: &u32| is_cold(other) == is_cold(&at);
            let piece = part.part(at, (at..part.count).take_while(same).count() as u32);
            let is_cold = is_cold(&at);
            at += piece.count;
            if self.is_kept(volume, &piece, is_cold, queue, warmth) {
                index.borrow_mut().chill(volume, piece.block, piece.count);
                self.keep_unless_in_ram(volume, piece, kept);
            } else if rest == Rest::Goes {
                self.drop_clean(volume, &piece, queue);
            } else {
                // What RAM has of it is for RAM to keep.
                self.ram.borrow_mut().note_backed(volume, piece.block, piece.count, false);
            }
        }
    }

    /// Evicts what was not worth keeping in a unit of `queue`.
    pub(crate) fn drop_clean(&self, volume: VolumeId, m: &Mapping, queue: Queue) {
        for part in Part::each(volume, m.block, m.count) {
            self.policy.borrow_mut().dropped(part, queue);
        }
        self.evict(volume, m);
    }

    /// Moves a part, but for the blocks that RAM holds and that are hot there: those are left to it, and
    /// come back into the log when it lets them go. So what both tiers hold becomes less.
    fn keep_unless_in_ram(&self, volume: VolumeId, part: Mapping, kept: &mut Vec<Run>) {
        let in_ram = |at: u32| self.ram.borrow().holds_hot(volume, part.block + u64::from(at));
        let mut at = 0;
        while at < part.count {
            let taken = in_ram(at);
            let count = (at..part.count).take_while(|&other| in_ram(other) == taken).count() as u32;
            let piece = part.part(at, count);
            if taken {
                planted::seen("reclaim: left to RAM");
                add(&self.counters.ram_take_over_blocks, u64::from(count));
                self.evict(volume, &piece);
            } else {
                self.policy.borrow_mut().spend(0, u64::from(count));
                kept.push((volume, piece));
            }
            at += count;
        }
    }

    /// Moves the few dirty blocks of a set forward, in the background.
    fn move_in_background(self: &Rc<Self>, id: SegmentId, runs: Vec<Run>, rest: Rest) {
        let core = Rc::clone(self);
        let pinned = self.begin_move(id);
        self.moving.enter();
        let blocks = runs.iter().map(|(_, m)| u64::from(m.count)).sum();
        self.policy.borrow_mut().spend(0, blocks);
        self.spawn_background(async move {
            // Its error has latched the pool and is an event.
            core.move_runs(runs, core.dirty_stream_of(id), Haste::Awaited).await.ok();
            core.end_move(pinned, Some(rest));
            core.moving.leave();
            core.reclaim_stuck.set(false);
            core.housekeeping.wake_all();
        });
    }

    /// Moves what is dirty in a closed set to one with all its copies. What is destaged and waits
    /// for an origin flush stays.
    pub(crate) async fn move_owed(self: &Rc<Self>, id: SegmentId) {
        let pinned = self.begin_move(id);
        let dirty = |(_, m): &Run| m.state == State::Dirty;
        let runs = self.runs_of(id).await.into_iter().filter(dirty).collect();
        self.move_runs(runs, Stream::Dirty, Haste::Background).await.ok();
        self.end_move(pinned, None);
        self.housekeeping.wake_all();
    }

    /// Copies what is clean in a closed set to others, as long as there is room that nobody lacks; false if there
    /// is no more. What is left is still there.
    pub(crate) async fn copy_clean(self: &Rc<Self>, id: SegmentId) -> bool {
        let mut has_room = !self.is_reclaim_due() && !self.is_starving();
        if !has_room {
            return false;
        }
        let pinned = self.begin_move(id);
        let runs = self.runs_of(id).await.into_iter().filter(|(_, m)| m.state == State::Clean);
        for batch in batches(runs.collect()) {
            has_room = !self.is_reclaim_due() && !self.is_starving();
            if !has_room || self.is_at_rest() {
                break;
            }
            let begun = self.rt.now();
            planted::seen("clean data copied again");
            // Its error has latched the pool and is an event.
            self.move_at_once(batch, Stream::Main).await.ok();
            self.let_clients_pass(begun).await;
        }
        self.end_move(pinned, None);
        has_room
    }

    /// Copies runs of one closed and pinned set forward. Clean data that cannot be read any more, or
    /// for which there is no room, is dropped.
    ///
    /// # Errors
    /// If the pool has latched, for instance because dirty data cannot be read any more.
    async fn move_runs(&self, runs: Vec<Run>, stream: Stream, haste: Haste) -> Result<()> {
        if haste == Haste::Awaited {
            return self.move_at_once(runs, stream).await;
        }
        for batch in batches(runs) {
            let begun = self.rt.now();
            self.move_at_once(batch, stream).await?;
            if self.is_at_rest() {
                break;
            }
            self.let_clients_pass(begun).await;
        }
        Ok(())
    }

    async fn move_at_once(&self, runs: Vec<Run>, stream: Stream) -> Result<()> {
        let mut walk = Walk::new(runs);
        let (mut ready, mut ready_blocks) = (Vec::new(), 0);
        let mut moving = VecDeque::new();
        while let Some(record) = walk.next(self).await {
            if self.is_at_rest() {
                ready.clear();
                break;
            }
            for ((volume, m), data) in record {
                match data {
                    _ if !self.is_still(volume, &m) => {}
                    // What becomes of it is for whoever leaves the member behind.
                    Err(_) if self.is_stray_at(m.location) => {}
                    Ok(data) => {
                        ready_blocks += m.count;
                        ready.push((volume, m, data));
                    }
                    // Here, too, only what is bad of it goes.
                    Err(_) if m.state == State::Clean => self.drop_met(volume, &m).await,
                    // What is good of it stays, and is moved the next time.
                    Err(_) => self.settle_unreadable(volume, &m).await?,
                }
            }
            if ready_blocks >= MOVE_BATCH_BLOCKS {
                self.append_moves(stream, &mut ready, &mut moving);
                ready_blocks = 0;
            }
            while blocks_in(&moving) > MOVING_BLOCKS_MAX {
                self.finish_move(&mut moving).await?;
            }
        }
        self.append_moves(stream, &mut ready, &mut moving);
        while !moving.is_empty() {
            self.finish_move(&mut moving).await?;
        }
        Ok(())
    }

    /// Rests after a batch that was begun then, if clients have asked for anything of late.
    async fn let_clients_pass(&self, begun: Nanos) {
        let asked = self.counters.read_requests.get() + self.counters.write_requests.get();
        if self.asked_before.replace(asked) != asked {
            let took = self.rt.now() - begun;
            self.rt.sleep((took * MOVE_RESTS).min(MOVE_REST_MAX)).await.result.ok();
        }
    }

    /// Appends moves, all at once, so that they share records.
    pub(crate) fn append_moves(
        &self,
        stream: Stream,
        ready: &mut Vec<(VolumeId, Mapping, Data)>,
        moving: &mut VecDeque<(VolumeId, Mapping, Io)>,
    ) {
        for (volume, m, data) in ready.drain(..) {
            add(&self.counters.move_blocks, u64::from(m.count));
            self.void_if_hurt(volume, &m);
            planted::seen(if m.state == State::Clean {
                "clean run moved"
            } else {
                "dirty run moved"
            });
            let entry = Entry {
                state: Some(m.state),
                sectors: m.sectors,
                from: Some(m.location),
                ..new_entry(EntryKind::Move, volume, m.block, m.count)
            };
            moving.push_back((volume, m, self.log.append(stream, entry, Some(data))));
        }
    }

    /// Waits for the oldest of the moves under way.
    pub(crate) async fn finish_move(
        &self,
        moving: &mut VecDeque<(VolumeId, Mapping, Io)>,
    ) -> Result<()> {
        let Some((volume, m, append)) = moving.pop_front() else { return Ok(()) };
        if append.done().await.is_err() {
            self.check_latch()?;
            if m.state == State::Clean {
                self.evict(volume, &m);
            }
        }
        // It may have been found meanwhile.
        self.void_if_hurt(volume, &m);
        Ok(())
    }

    /// Whether all of a run is still as it was found.
    pub(crate) fn is_still(&self, volume: VolumeId, m: &Mapping) -> bool {
        let mut same = false;
        self.shard(volume, m.block).index.borrow().lookup(volume, m.block, m.count, |now| {
            same = now.location == m.location && now.count == m.count && now.state == m.state;
        });
        same
    }

    /// Whether a part of a granule is worth moving. Its granule cools once in the life of `warmth`.
    fn is_kept(
        &self,
        volume: VolumeId,
        part: &Mapping,
        is_cold: bool,
        queue: Queue,
        warmth: &mut Warmth,
    ) -> bool {
        let blocks = Part::of(volume, part.block, part.count);
        let mut index = self.shard(volume, part.block).index.borrow_mut();
        let before = warmth.0.filter(|(other, _)| *other == blocks.granule).map(|(_, heat)| heat);
        let heat = before.unwrap_or_else(|| index.heat(volume, part.block));
        let tight = self.is_index_crowded();
        let weighed = if is_cold { 0 } else { self.weighed(volume, heat) };
        let retained = self.policy.borrow_mut().retain(blocks, queue, weighed);
        if retained && !is_cold && !tight && before.is_none() {
            index.cool(volume, part.block);
            warmth.0 = Some((blocks.granule, heat));
        }
        retained && !tight
    }

    /// Whether blocks of a volume stay because they are within its reservation, however cold they are.
    fn is_kept_for_reservation(&self, volume: VolumeId, count: u32) -> bool {
        let kept = self.is_reserved(volume)
            && !self.is_index_crowded()
            && self.policy.borrow_mut().retain_reserved(count);
        if kept {
            planted::seen("reclaim: kept for a reservation");
        }
        kept
    }

    /// What the hits of a volume's granule are worth beside those of others.
    fn weighed(&self, volume: VolumeId, heat: u8) -> u8 {
        match self.volume(volume).map(|v| v.settings.get().priority) {
            Some(Priority::Low) => heat / 2,
            Some(Priority::Normal | Priority::High) | None => heat,
        }
    }

    /// The records of a closed set, from any copy of its footer.
    pub(crate) async fn read_footer(&self, id: SegmentId) -> Option<Vec<FooterRecord>> {
        let (segments, incarnation) = {
            let sets = self.sets.borrow();
            let set = sets.get(id)?;
            (set.segments.clone(), set.incarnation)
        };
        for segment in segments {
            let records = self.read_footer_of(segment).await;
            if let Some((trailer, records)) = records
                && trailer.set == id
                && trailer.incarnation == incarnation
            {
                return Some(records);
            }
        }
        None
    }

    /// The footer that stands at the end of a segment, if a valid one of this pool does.
    async fn read_footer_of(
        &self,
        segment: SegmentId,
    ) -> Option<(FooterTrailer, Vec<FooterRecord>)> {
        let trailer = self.read_trailer(segment).await?;
        let records = self.read_footer_body(segment, &trailer).await?;
        Some((trailer, records))
    }

    /// The trailer in a segment's last block, if it is a valid one of this pool.
    pub(crate) async fn read_trailer(&self, segment: SegmentId) -> Option<FooterTrailer> {
        let last = self.segment_blocks - 1;
        let (member, at) = self.place(segment, last);
        let bytes = self.read_member(member, at, BLOCK).await.ok()?;
        let trailer = decode_footer_trailer(&bytes).ok()?;
        let ours = trailer.pool == self.superblock.borrow().pool;
        (ours && trailer.body_blocks() < last).then_some(trailer)
    }

    /// The records that a trailer speaks of.
    pub(crate) async fn read_footer_body(
        &self,
        segment: SegmentId,
        trailer: &FooterTrailer,
    ) -> Option<Vec<FooterRecord>> {
        let body_blocks = trailer.body_blocks();
        if body_blocks == 0 {
            return Some(Vec::new());
        }
        let (member, at) = self.place(segment, self.segment_blocks - 1 - body_blocks);
        let bytes = self.read_member(member, at, body_blocks as usize * BLOCK).await.ok()?;
        decode_footer_body(trailer, &bytes).ok()
    }

    /// What of a set's records the index still points at.
    fn live_runs(&self, id: SegmentId, records: &[FooterRecord]) -> Vec<Run> {
        let mut runs = Vec::new();
        for record in records {
            let header = self.sets.borrow().location(id, record.offset_blocks);
            let place = RecordPlace { header, header_blocks: u32::from(record.header_blocks) };
            for entry in &record.entries {
                if !entry.has_data() || !entry.kind.names_blocks() {
                    continue;
                }
                let data = data_location(place, entry);
                let index = self.shard(entry.volume, entry.block).index.borrow();
                index.lookup(entry.volume, entry.block, entry.count, |m| {
                    // Not what a later record, here or elsewhere, says of the same blocks.
                    if m.state.has_data() && m.location.0 == data.0 + (m.block - entry.block) {
                        runs.push((entry.volume, m));
                    }
                });
            }
        }
        runs
    }

    /// The same without a footer: a walk through the whole index.
    pub(crate) fn find_runs(&self, id: SegmentId) -> Vec<Run> {
        let mut runs = Vec::new();
        for shard in &self.shards {
            let index = shard.index.borrow();
            let mut regions = Vec::new();
            index.for_each_region(|volume, region, _, _, _| regions.push((volume, region)));
            for (volume, region) in regions {
                let blocks = crate::limits::REGION_BLOCKS;
                index.lookup(volume, u64::from(region) * blocks, blocks as u32, |m| {
                    if m.state.has_data() && self.sets.borrow().split(m.location).0 == id {
                        runs.push((volume, m));
                    }
                });
            }
        }
        runs
    }

    /// Whether too few segments are free even if those that only wait for a root are counted.
    pub(crate) fn is_reclaim_due(&self) -> bool {
        !self.lacking().is_empty()
    }

    fn lacking(&self) -> MemberMask {
        let left = self.left_to_start(Stream::Main);
        self.sets.borrow().lacking(self.log.watermark(), &left)
    }

    /// See [`crate::segment::SetTable::is_starving`].
    pub(crate) fn is_starving(&self) -> bool {
        self.sets.borrow().is_starving(&self.left_to_start(Stream::Main))
    }

    /// Segments that a root would free. Facts count too: where they alone have taken what data may
    /// not, nothing else is there to be let go of, and what they say is in the images.
    pub(crate) fn freed_by_root(&self) -> usize {
        self.sets.borrow().coming(self.log.watermark(), false).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Location;

    #[test]
    fn batches_have_every_block_once_and_in_order() {
        let run = |block: u64, location: u64, count: u32, distance: u8| {
            let location = Location(location);
            let m =
                Mapping { block, count, state: State::Dirty, location, distance, sectors: u8::MAX };
            (VolumeId(1), m)
        };
        let runs = vec![run(500, 1_000, 100, 7), run(3, 40, 5, 1), run(900, 2_000, 1, 200)];
        let batches = batches(runs);
        let sizes: Vec<u32> =
            batches.iter().map(|batch| batch.iter().map(|(_, m)| m.count).sum()).collect();
        assert_eq!(sizes, [32, 32, 32, 10]);
        let flat = batches.iter().flatten().flat_map(|(_, m)| {
            (0..m.count).map(|i| {
                let one = m.part(i, 1);
                (one.block, one.location.0, one.distance)
            })
        });
        let first = (0..5).map(|i| (3 + i, 40 + i, 1 + i as u8));
        let second = (0..100).map(|i| (500 + i, 1_000 + i, 7 + i as u8));
        assert!(flat.eq(first.chain(second).chain([(900, 2_000, 200)])));
    }
}

//! Healing: what is damaged in some copy, or cannot be read there, is copied again from another one.
//!
//! * A lap of the scrub finds it, or whoever reads ([`Core::note_hurt`]): what has been read from another copy has
//!   fewer of them than it should, and the next SSD may fail before the next lap.
//! * What a reader has met is looked at again before anything is done: what was flipped on its way is good.
//! * What readers meet is noted record by record as far as there is room, and beyond that set by set: such a set is
//!   looked through as a whole, at a rate of its own. So nothing that was met waits for a lap.

use std::collections::VecDeque;
use std::collections::btree_map::Entry as Slot;
use std::rc::Rc;
use std::slice::from_ref;

use forebay_device::runtime::SECOND;
use forebay_device::{Data, IoErrorKind, Nanos};

use super::{At, Content, LOOK_INTERVAL, Note, SetNote};
use crate::core::Core;
use crate::counters::add;
use crate::format::{Entry, EntryKind, State, Stream};
use crate::ids::{Location, SegmentId, VolumeId};
use crate::index::Mapping;
use crate::limits::{DAMAGE_SPAN, DAMAGED_BLOCKS_MAX};
use crate::log::new_entry;
use crate::planted::{self, Bug};
use crate::reclaim::SETS_MOVING_MAX;
use crate::scrub::ScrubFound;
use crate::scrub::inspect::Inspection;
use crate::segment::SetState;
use crate::unreadable::UNSURE_SPAN_MAX;
use crate::verify::joined;
use crate::walk::Run;

/// How long nobody has to have looked before a member that returned nothing, and returns nothing now, may have answered
/// meanwhile: longer than the rest behind any look.
const SILENCE_GAP_MAX: Nanos = 15 * SECOND;

impl Core {
    /// Notes that a copy of a record, whose header is there, could not be read or was not what was written.
    pub(crate) fn note_hurt(&self, header: Location) {
        let (mut hurt, sets) = (self.scrub.hurt.borrow_mut(), self.sets.borrow());
        let has_room = hurt.len() < self.tuning.hurt_records_max;
        let (id, _) = sets.split(header);
        let Some(set) = sets.get(id).filter(|_| !planted::is(Bug::HurtForgotten)) else { return };
        let mut hurt_sets = self.scrub.hurt_sets.borrow_mut();
        let is_new = match hurt.entry(header) {
            Slot::Occupied(mut note) => !std::mem::replace(&mut note.get_mut().is_new, true),
            Slot::Vacant(slot) if has_room => {
                slot.insert(Note { is_new: true, counted: 0 });
                true
            }
            Slot::Vacant(_) => {
                let note = SetNote { incarnation: set.incarnation, is_new: true };
                let before = hurt_sets.insert(id, note);
                before.is_none_or(|note| !note.is_new || note.incarnation != set.incarnation)
            }
        };
        if is_new {
            self.housekeeping.wake_all();
        }
    }

    /// Whether any copy of a record of a set is known to be bad, and not healed yet.
    pub(crate) fn is_hurt_set(&self, id: SegmentId) -> bool {
        let (first, end) = {
            let sets = self.sets.borrow();
            (sets.location(id, 0), sets.location(SegmentId(id.0 + 1), 0))
        };
        self.scrub.hurt.borrow().range(first..end).next().is_some()
            || self.scrub.hurt_sets.borrow().contains_key(&id)
    }

    /// Whether a copy of the record that a run lies in is known to be bad, and not healed yet. Until it is, the run
    /// is read checked.
    pub(crate) fn is_hurt_at(&self, m: &Mapping) -> bool {
        if !self.is_hurt() {
            return false;
        }
        let header = Location(m.location.0 - u64::from(m.distance));
        let (set, _) = self.sets.borrow().split(header);
        self.scrub.hurt.borrow().contains_key(&header)
            || self.scrub.hurt_sets.borrow().contains_key(&set)
    }

    /// Before what lies in a hurt record goes elsewhere, or out of the log: nobody would find then that RAM has the
    /// damage.
    pub(crate) fn void_if_hurt(&self, volume: VolumeId, m: &Mapping) {
        if self.is_hurt_at(m) {
            self.ram.borrow_mut().void_unverified(volume, m.block, m.count);
        }
    }

    /// Notes that a reader has found a copy of a record damaged. It counts once: whoever heals the record
    /// counts the rest of it.
    pub(crate) fn note_damaged_copy(&self, header: Location, copy: usize) {
        self.note_hurt(header);
        let Some((segment, _)) = self.segment_of(header, copy) else { return };
        let is_first = {
            let mut hurt = self.scrub.hurt.borrow_mut();
            let note = hurt.get_mut(&header).filter(|note| note.counted >> copy & 1 == 0);
            note.map(|note| note.counted |= 1 << copy).is_some()
        };
        if is_first {
            let member = self.sets.borrow().member_of(segment);
            self.note_damage(member, 1);
        }
    }

    fn is_hurt(&self) -> bool {
        !self.scrub.hurt.borrow().is_empty() || !self.scrub.hurt_sets.borrow().is_empty()
    }

    /// Heals what readers have met, as far as that can be done now; whether it could. Of sets one, so that
    /// what is met meanwhile does not wait for all of them.
    async fn heal_hurt(self: &Rc<Self>) -> bool {
        let is_done = self.heal_hurt_records().await;
        self.heal_hurt_set().await && is_done
    }

    /// Looks through one of the sets in which there is more than was noted record by record; false if there are
    /// some and none could be.
    async fn heal_hurt_set(self: &Rc<Self>) -> bool {
        let found: Vec<SegmentId> = {
            let (mut hurt, sets) = (self.scrub.hurt_sets.borrow_mut(), self.sets.borrow());
            hurt.retain(|id, note| {
                let set = sets.get(*id).filter(|set| set.incarnation == note.incarnation);
                set.is_some_and(|set| set.state != SetState::Discarding)
            });
            // An open one waits until it is closed.
            let is_open = |state| matches!(state, SetState::Open | SetState::Closing);
            hurt.keys()
                .filter(|id| sets.get(**id).is_some_and(|set| !is_open(set.state)))
                .copied()
                .collect()
        };
        for id in found {
            if self.drop_let_go(id).await {
                self.note_unproven();
                self.scrub.hurt_sets.borrow_mut().remove(&id);
                continue;
            }
            let incarnation = match self.scrub.hurt_sets.borrow_mut().get_mut(&id) {
                Some(note) => {
                    note.is_new = false;
                    note.incarnation
                }
                None => continue,
            };
            planted::seen("healed: a set with more than is noted");
            if self.scrub_set(At { lap: None, set: id, incarnation }).await {
                // What was met meanwhile is looked at once more.
                let is_done = |note: &SetNote| note.incarnation == incarnation && !note.is_new;
                self.scrub.hurt_sets.borrow_mut().retain(|of, note| *of != id || !is_done(note));
                return true;
            }
        }
        self.scrub.hurt_sets.borrow().is_empty()
    }

    /// See [`Core::heal_hurt`].
    async fn heal_hurt_records(self: &Rc<Self>) -> bool {
        let all: Vec<Location> = self.scrub.hurt.borrow().keys().copied().collect();
        let mut is_done = true;
        for chunk in
            all.chunk_by(|&a, &b| self.sets.borrow().split(a).0 == self.sets.borrow().split(b).0)
        {
            if self.is_ending() || !self.healing_waits_for().is_empty() {
                return false;
            }
            is_done &= self.heal_records(chunk).await;
        }
        is_done
    }

    /// Heals records of one set.
    async fn heal_records(self: &Rc<Self>, headers: &[Location]) -> bool {
        let notes_of = |header: &Location| headers.contains(header);
        for (_, note) in self.scrub.hurt.borrow_mut().iter_mut().filter(|(at, _)| notes_of(at)) {
            note.is_new = false;
        }
        // What is met from now on is looked at once more.
        let forget = || {
            self.scrub.hurt.borrow_mut().retain(|header, note| !notes_of(header) || note.is_new);
        };
        let (id, _) = self.sets.borrow().split(headers[0]);
        let found =
            self.sets.borrow().get(id).map(|set| (set.state, set.incarnation, set.holds_data()));
        let at = match found {
            Some((SetState::Closed, incarnation, true)) => At { lap: None, set: id, incarnation },
            // It goes on once it is closed, if it is about data.
            Some((SetState::Open | SetState::Closing, _, true)) => return false,
            _ => {
                if self.drop_let_go(id).await {
                    self.note_unproven();
                }
                forget();
                return true;
            }
        };
        let mut is_done = true;
        for item in self.items_of(id).await.unwrap_or_default() {
            let Content::Runs(runs) = &item.content else { continue };
            if !headers.contains(&item.header) {
                continue;
            }
            if !self.is_at(at) {
                break;
            }
            if !self.may_scrub(at) {
                return false;
            }
            planted::seen("healed: what a reader has met");
            let pinned = self.pin_set(id);
            let looked = self.scrub_runs(&item, runs, at).await;
            self.unpin(pinned);
            is_done &= looked.as_ref().is_some_and(|looked| looked.unread == 0);
            self.pace_scrub(at, looked.map_or(0, |looked| looked.bytes)).await;
        }
        if is_done {
            forget();
        }
        is_done
    }

    /// Heals the damaged blocks of runs; nothing if there is no room for that now. Returns what waits for
    /// an origin flush or has changed meanwhile.
    pub(super) async fn heal(&self, live: &[Run], found: &Inspection) -> Option<Vec<Run>> {
        let is_dirty = |(_, m): &Run| m.state == State::Dirty;
        let mut first = 0;
        for (volume, m) in live {
            let bad = &found.bad[first..first + m.count as usize];
            first += m.count as usize;
            if bad.iter().any(|bad| *bad != 0) {
                // Wherever it is now.
                self.ram.borrow_mut().void_unverified(*volume, m.block, m.count);
            }
        }
        let tight = self.is_starving() || self.moving.get() >= SETS_MOVING_MAX;
        if tight && live.iter().any(is_dirty) {
            return None;
        }
        let (mut left, mut moves, mut lost, mut first) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (volume, m) in live {
            let count = m.count as usize;
            let bad = &found.bad[first..first + count];
            let blocks = &found.blocks[first..first + count];
            first += count;
            if !self.is_still(*volume, m) {
                left.push((*volume, *m));
                continue;
            }
            let fate = |i: usize| (bad[i] != 0, blocks[i].is_some());
            let mut from = 0;
            while from < count {
                let is_bad = bad[from] != 0;
                let until = (from..count).find(|&i| fate(i) != fate(from)).unwrap_or(count);
                let data = joined(&blocks[from..until]);
                let part = m.part(from as u32, (until - from) as u32);
                from = until;
                match (m.state, data) {
                    _ if !is_bad => {}
                    (State::Written, _) => left.push((*volume, part)),
                    (State::Clean, Some(data)) => moves.push((Stream::Main, *volume, part, data)),
                    (State::Dirty, Some(data)) => moves.push((Stream::Dirty, *volume, part, data)),
                    // It may be there the next time.
                    (State::Dirty, None) if found.is_unsure => {}
                    (State::Dirty, None) => lost.push((*volume, part)),
                    _ => self.drop_damaged(*volume, &part),
                }
            }
        }
        let moving = self.moving.guard();
        for (stream, volume, part, data) in moves {
            self.copy_again(stream, volume, part, data).await;
        }
        for (volume, part) in lost {
            self.note_unhealed(volume, &part).await;
        }
        drop(moving);
        self.housekeeping.wake_all();
        Some(left)
    }

    /// Notes how many blocks members have returned damaged. One that is hardly ever right has failed, as long as
    /// nothing is there alone: what is copied to it is bad again.
    pub(super) fn note_damages(&self, damages: Vec<(usize, u64)>) {
        for (index, blocks) in damages.into_iter().filter(|(_, blocks)| *blocks > 0) {
            self.note_damage(index, blocks);
            let (member, now) = (&self.members[index], self.rt.now());
            let (begun, before) = member.damage_span.get();
            let found = member.damaged.get() - before;
            if now - begun >= DAMAGE_SPAN {
                member.damage_span.set((now, member.damaged.get()));
            } else if found > DAMAGED_BLOCKS_MAX && self.can_do_without(index) {
                planted::seen("healed: in vain");
                let doing = format!("{found} damaged blocks of 4 KiB within an hour on");
                self.fail_member(index, &doing, IoErrorKind::Media.into());
            }
        }
    }

    /// Whether a member with a bad copy returns nothing at all. One that goes on so has failed, as long as nothing
    /// is there alone: it would be copied to in vain, for ever. What the others have bad beside that is not counted, but
    /// remembered.
    pub(super) async fn is_any_silent(&self, set: SegmentId, found: &Inspection) -> bool {
        let bad = found.bad.iter().fold(found.bad_headers, |all, bad| all | bad);
        let members: Vec<usize> = {
            let sets = self.sets.borrow();
            let segments = sets.get(set).map_or(&[][..], |set| &set.segments);
            let is_bad = |(copy, _): &(usize, _)| bad >> copy & 1 == 1;
            segments.iter().enumerate().filter(is_bad).map(|(_, at)| sets.member_of(*at)).collect()
        };
        let (mut silent, mut answering) = (Vec::new(), Vec::new());
        for index in members {
            let member = &self.members[index];
            let silence = self.silence_of(member).await;
            match silence.filter(|_| member.is_serving()) {
                Some(error) => silent.push((index, error)),
                None => {
                    member.silent.set(None);
                    answering.push(index);
                }
            }
        }
        if silent.is_empty() {
            return false;
        }
        answering.into_iter().for_each(|index| self.members[index].doubted.set(true));
        let now = self.rt.now();
        for (index, error) in silent {
            let member = &self.members[index];
            // If nobody has looked for longer, it may have answered meanwhile.
            let before = member.silent.get().filter(|(_, seen)| now - seen <= SILENCE_GAP_MAX);
            let since = before.map_or(now, |(since, _)| since);
            member.silent.set(Some((since, now)));
            let is_elsewhere = found.blocks.iter().all(Option::is_some);
            if now - since >= UNSURE_SPAN_MAX && is_elsewhere && self.can_do_without(index) {
                planted::seen("healed: a member that returns nothing");
                self.fail_member(index, "reading from", error);
            }
        }
        true
    }

    /// Notes that all members of a set have returned what they were asked for.
    pub(super) fn note_answers(&self, set: SegmentId) {
        let sets = self.sets.borrow();
        let segments = sets.get(set).map_or(&[][..], |set| &set.segments);
        segments.iter().for_each(|at| self.members[sets.member_of(*at)].silent.set(None));
    }

    /// Until the next images know where damage is read from no more, a start would read it from there again.
    fn note_unproven(&self) {
        let since = self.scrub.healed_since.get().unwrap_or(self.rt.now());
        self.scrub.healed_since.set(Some(since));
    }

    /// Moves good bytes of damaged blocks.
    async fn copy_again(&self, stream: Stream, volume: VolumeId, part: Mapping, data: Data) {
        planted::seen("scrub: copied again");
        self.note_found(part.count, |found| &mut found.copied);
        add(&self.counters.scrub_copied_blocks, part.count.into());
        self.note_unproven();
        if planted::is(Bug::HealedAsWrite) {
            let entry = new_entry(EntryKind::Write, volume, part.block, part.count);
            let entry = Entry { sectors: part.sectors, ..entry };
            self.log.append(stream, entry, Some(data)).done().await.ok();
            return;
        }
        let mut under_way = VecDeque::new();
        self.append_moves(stream, &mut vec![(volume, part, data)], &mut under_way);
        // Its error has latched the pool and is an event.
        self.finish_move(&mut under_way).await.ok();
        self.ram.borrow_mut().void_unverified(volume, part.block, part.count);
    }

    /// Drops what is good in no copy of clean data that a reader has met; all of it where nobody can tell.
    pub(crate) async fn drop_met(&self, volume: VolumeId, m: &Mapping) {
        let (header, first) = (Location(m.location.0 - u64::from(m.distance)), m.distance.into());
        let Some(found) = self.inspect(header, first, from_ref(&(first..first + m.count))).await
        else {
            return self.drop_unreadable(volume, m);
        };
        let gone = (0..m.count).filter(|&i| found.blocks[i as usize].is_none());
        for part in gone.map(|i| m.part(i, 1)) {
            // The healer or another reader may have been here meanwhile.
            if self.is_still(volume, &part) {
                self.drop_damaged(volume, &part);
            }
        }
    }

    /// Drops clean data that is good in no copy.
    fn drop_damaged(&self, volume: VolumeId, part: &Mapping) {
        planted::seen("scrub: dropped");
        self.note_found(part.count, |found| &mut found.dropped);
        add(&self.counters.scrub_dropped_blocks, part.count.into());
        self.drop_unreadable(volume, part);
    }

    /// Drops clean data of which no copy can be read right: whoever does so comes here.
    pub(crate) fn drop_unreadable(&self, volume: VolumeId, part: &Mapping) {
        add(&self.counters.damage_dropped_blocks, part.count.into());
        self.note_unproven();
        self.evict(volume, part);
        self.ram.borrow_mut().void_unverified(volume, part.block, part.count);
    }

    fn note_found(&self, blocks: u32, of: impl Fn(&mut ScrubFound) -> &mut u64) {
        let mut found = self.scrub.found.borrow_mut();
        found.damaged += u64::from(blocks);
        *of(&mut found) += u64::from(blocks);
        add(&self.counters.scrub_damaged_blocks, u64::from(blocks));
    }

    /// Dirty data that no copy has: nobody may take anything else for it.
    async fn note_unhealed(&self, volume: VolumeId, part: &Mapping) {
        planted::seen("scrub: good in no copy");
        self.note_found(part.count, |found| &mut found.unhealed);
        add(&self.counters.scrub_unhealed_blocks, part.count.into());
        // Where it cannot be said, whoever needs the data asks again.
        self.give_up_damaged(volume, part).await.ok();
    }
}

/// Heals what readers have met.
pub(crate) async fn healer(core: Rc<Core>) {
    while !core.is_ending() {
        core.tell_damaged();
        let is_some = || core.is_hurt();
        if is_some() && core.healing_waits_for().is_empty() && core.heal_hurt().await {
            continue;
        }
        let timer = core.rt.sleep(LOOK_INTERVAL);
        let had_some = is_some();
        core.housekeeping.until_or(|| (!had_some && is_some()) || core.is_ending(), timer).await;
    }
    core.tell_damaged();
}

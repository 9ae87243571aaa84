//! When a volume is destaged, and how long its data has been dirty.
//!
//! * What has to be is destaged at any time: somebody waits for it, room must be made, the mode asks
//!   for it. The rest is background: while the volume is idle, or within the hours set for it.
//! * Age is kept for each stripe of 4 MiB: no version of a block in it has been dirty for longer. A
//!   sweep through a whole stripe makes it as young as the sweep's beginning, since what was dirty
//!   then is on its way; what does not arrive takes its age back ([`Core::stay_old`]).
//! * A block that is not durable in the log, or whose older version is under way, is left out of a
//!   sweep. It was written within the last flush interval, or since that write began: an age may be
//!   understated by as much. What was moved is as old as it was, and may be left out as well: so no
//!   sweep makes a stripe younger shortly after a move.

use std::cell::Cell;
use std::ops::RangeInclusive;

use forebay_device::Nanos;
use forebay_device::runtime::SECOND;

use super::Group;
use crate::core::{Core, STRIPE_BLOCKS};
use crate::format::DAY_MINUTES;
use crate::ids::VolumeId;
use crate::planted;
use crate::volume::VolumeState;

/// How often all stripes of a volume are looked through for old ones, at the most: there may be a
/// quarter of a million of them.
const AGE_LOOK: Nanos = SECOND;

/// Since when data is dirty of which that is not known, as what a start has found: older than any age
/// that is allowed.
pub(crate) const LONG_AGO: Nanos = 0;

/// What dirty data waits for that no pressure and no request moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestageWait {
    /// That clients pause.
    Pause,
    /// The hours that are set for it.
    Hours {
        /// The minute of the day when they begin.
        from: u16,
        /// Minutes until then.
        in_minutes: u16,
    },
}

/// What a stripe owes its origin.
pub(crate) struct Owed {
    pub blocks: u32,
    /// Nothing of it is dirty for longer.
    pub since: Nanos,
    /// When something of it was moved last.
    moved: Nanos,
}

/// What an elevator knows of ages.
#[derive(Default)]
pub(crate) struct Age {
    /// Old data is being destaged.
    busy: Cell<bool>,
    /// Before this nothing is too old.
    look_at: Cell<Nanos>,
}

impl Age {
    /// Forgets when something is due: what is allowed has changed, or what there is.
    pub(crate) fn look_anew(&self) {
        self.look_at.set(0);
    }
}

/// All stripes of a volume.
fn stripes_of(volume: VolumeId) -> RangeInclusive<(VolumeId, u64)> {
    (volume, 0)..=(volume, u64::MAX)
}

impl Core {
    /// What a stripe owes of which something becomes dirty now.
    pub(crate) fn fresh(&self) -> Owed {
        let since = if self.is_recovering() { LONG_AGO } else { self.rt.now() };
        Owed { blocks: 0, since, moved: 0 }
    }

    /// Since when blocks of one stripe that are about to be moved have been dirty.
    pub(crate) fn since_before_move(
        &self,
        volume: VolumeId,
        block: u64,
        count: u32,
    ) -> Option<Nanos> {
        let owed = self.owed.borrow();
        let since = owed.get(&(volume, block / STRIPE_BLOCKS))?.since;
        // What is under way does not arrive: it will be dirty at its new place.
        let under_way = self.volume(volume).and_then(|v| v.elevator.since_taken(block, count));
        Some(under_way.map_or(since, |taken| taken.min(since)))
    }

    /// Notes that they have been.
    pub(crate) fn note_moved(
        &self,
        volume: VolumeId,
        block: u64,
        count: u32,
        since: Option<Nanos>,
    ) {
        let Some(since) = since else { return };
        self.note_older(volume, block, count, since);
        if let Some(owed) = self.owed.borrow_mut().get_mut(&(volume, block / STRIPE_BLOCKS)) {
            owed.moved = self.rt.now();
        }
    }

    /// Notes that all of a stripe that was dirty when a sweep through it began is on its way.
    pub(super) fn note_swept(&self, v: &VolumeState, stripe: u64, began: Nanos) {
        let mut all = self.owed.borrow_mut();
        let Some(owed) = all.get_mut(&(v.id, stripe)) else { return };
        let settled = owed.moved + 2 * self.tuning.flush_interval + SECOND;
        if owed.moved == 0 || settled < began {
            owed.since = owed.since.max(began);
        }
    }

    /// Since when the oldest dirty data of a volume is.
    pub(crate) fn oldest_owed(&self, volume: VolumeId) -> Option<Nanos> {
        self.owed.borrow().range(stripes_of(volume)).map(|(_, owed)| owed.since).min()
    }

    /// Notes that blocks, if they are dirty, have been so for longer than it seems.
    fn note_older(&self, volume: VolumeId, block: u64, count: u32, since: Nanos) {
        let last = (block + u64::from(count)).saturating_sub(1).max(block);
        let stripes = (volume, block / STRIPE_BLOCKS)..=(volume, last / STRIPE_BLOCKS);
        for (_, owed) in self.owed.borrow_mut().range_mut(stripes) {
            owed.since = owed.since.min(since);
        }
    }

    /// Takes back that the blocks of a group were on their way.
    pub(super) fn stay_old(&self, v: &VolumeState, group: &Group) {
        for run in &group.runs {
            self.grow_old(v, run.mapping.block, run.mapping.count, run.since);
        }
    }

    /// Notes that blocks are dirty again, or still, and since when.
    pub(super) fn grow_old(&self, v: &VolumeState, block: u64, count: u32, since: Nanos) {
        self.note_older(v.id, block, count, since);
        // A sweep that has passed them does not make them young.
        v.elevator.sweep.set(None);
        v.elevator.age.look_anew();
    }

    /// Of which age data is to be destaged now: what has been dirty since then or before. `None`:
    /// nothing is.
    pub(super) fn destaged_since(&self, v: &VolumeState) -> Option<Nanos> {
        let rests = self.rt.now() < v.elevator.rests_until.get() && self.may_spare_rewritten();
        if self.is_asked_for(v) || (self.is_pressed() && !rests) || self.is_squeezed(v) {
            return Some(Nanos::MAX);
        }
        self.due_since(v)
    }

    /// Whether all of a volume is to be destaged, however much room there is. Of one whose last write has
    /// failed it is: that is how it is found out when the origin takes writes again.
    fn is_asked_for(&self, v: &VolumeState) -> bool {
        let leaving = !self.mode_of(v).writes_back();
        let background = self.tuning.destage_when_idle && (leaving || self.is_background_time(v));
        !v.drain.is_zero() || self.protects(v) || background || v.origin.refuses_writes()
    }

    /// What keeps a part of what a volume owes from being destaged now; none if all of it is on its way.
    pub(crate) fn destage_wait(&self, v: &VolumeState) -> Option<DestageWait> {
        if self.is_asked_for(v) {
            return None;
        }
        let hours = v.settings.get().destage_hours;
        Some(match hours.zip(self.minute_of_day.get()) {
            None => DestageWait::Pause,
            Some((hours, now)) => {
                let (from, _) = hours.minutes();
                let in_minutes = (from + DAY_MINUTES - now) % DAY_MINUTES;
                DestageWait::Hours { from, in_minutes }
            }
        })
    }

    /// Whether what has been dirty `since` then would stay if there were room.
    pub(super) fn is_for_room_alone(&self, v: &VolumeState, since: Nanos) -> bool {
        let age_max = Nanos::from(v.settings.get().dirty_age_max_s) * SECOND;
        let old = age_max > 0 && since <= self.rt.now().saturating_sub(age_max);
        !old && !self.is_asked_for(v) && !self.is_squeezed(v)
    }

    /// Whether what can wait is destaged now.
    fn is_background_time(&self, v: &VolumeState) -> bool {
        match v.settings.get().destage_hours {
            Some(hours) => self.minute_of_day.get().is_none_or(|minute| hours.contains(minute)),
            None => self.rt.now() - v.last_request.get() >= self.tuning.idle_after,
        }
    }

    /// Since when data is too old, if there is any.
    fn due_since(&self, v: &VolumeState) -> Option<Nanos> {
        let age_max = Nanos::from(v.settings.get().dirty_age_max_s) * SECOND;
        if age_max == 0 {
            return None;
        }
        let (now, age) = (self.rt.now(), &v.elevator.age);
        let bound = now.saturating_sub(age_max);
        if age.busy.get() {
            return Some(bound);
        }
        if now < age.look_at.get() {
            return None;
        }
        let oldest = self.oldest_owed(v.id);
        if oldest.is_some_and(|since| since <= bound) {
            planted::seen("destage: too old");
            age.busy.set(true);
            return Some(bound);
        }
        let next = oldest.unwrap_or(now).saturating_add(age_max);
        age.look_at.set(next.max(now + AGE_LOOK));
        None
    }

    /// Notes that nothing too old is left, but for what is on its way or not durable yet.
    pub(super) fn note_none_due(&self, v: &VolumeState) {
        let age = &v.elevator.age;
        if age.busy.replace(false) {
            age.look_at.set(self.rt.now() + AGE_LOOK);
        }
    }
}

//! Bringing home what is dirty with fewer copies than were promised, whatever clients write meanwhile.
//!
//! * All else is written through then ([`Core::mode_of`]). A write over what is dirty is logged once more, with the
//!   copies that are left: the origin must not get ahead of the log (INV-9). Its range is the elevator's next.
//! * The next write of that range waits until it is clean, and then meets nothing dirty (INV-90). So each dirty block
//!   is logged once more at the most, and protection ends.
//! * Who waits holds no lock. Nobody waits for an origin that takes nothing: better one copy than none.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use super::destage::LOOK_INTERVAL;
use crate::core::Core;
use crate::format::State;
use crate::limits::ORIGIN_SILENCE;
use crate::planted::{self, Bug};
use crate::volume::VolumeState;

/// Ranges of blocks that were written over dirty data since protection began.
#[derive(Default)]
pub(crate) struct Urgent {
    /// First block, and the one behind the last. Disjoint: nobody writes what is in here.
    ranges: RefCell<BTreeMap<u64, u64>>,
    /// Writers who wait for some of them.
    waiting: Cell<usize>,
}

impl Urgent {
    fn is_empty(&self) -> bool {
        self.ranges.borrow().is_empty()
    }

    /// The ranges, in the order of addresses.
    pub(crate) fn list(&self) -> Vec<(u64, u64)> {
        self.ranges.borrow().iter().map(|(&first, &end)| (first, end)).collect()
    }

    /// One that shares blocks with another.
    fn overlapping(&self, first: u64, count: u32) -> Option<(u64, u64)> {
        let end = first + u64::from(count);
        let before = self.ranges.borrow().range(..end).next_back().map(|(&from, &to)| (from, to));
        before.filter(|&(_, to)| to > first)
    }
}

impl Core {
    /// Whether a volume is written through although it is one that is written back: what is dirty of it
    /// has fewer copies than were promised.
    pub(crate) fn protects(&self, v: &VolumeState) -> bool {
        self.mode_of(v) != v.mode.get()
    }

    /// A write over dirty data is about to be logged. The caller holds the range lock.
    pub(crate) fn note_urgent(&self, v: &VolumeState, first: u64, count: u32) {
        if self.protects(v) && !planted::is(Bug::ProtectionWithoutEnd) {
            planted::seen("protection: dirty data written over");
            v.urgent.ranges.borrow_mut().insert(first, first + u64::from(count));
            self.housekeeping.wake_all();
        }
    }

    /// Whether a write has to wait until what it goes over is clean.
    pub(crate) fn is_urgent(&self, v: &VolumeState, first: u64, count: u32) -> bool {
        if v.urgent.is_empty() {
            return false;
        }
        if !self.protects(v) {
            v.urgent.ranges.borrow_mut().clear();
            return false;
        }
        while let Some((from, to)) = v.urgent.overlapping(first, count) {
            if self.finds(v, (from, to), State::is_owed) {
                let takes_nothing = v.elevator.has_failed()
                    || v.origin.is_silent(self.rt.now(), ORIGIN_SILENCE)
                    || self.is_letting_go();
                return !takes_nothing;
            }
            v.urgent.ranges.borrow_mut().remove(&from);
        }
        false
    }

    /// Waits until a write may go on.
    pub(crate) async fn until_not_urgent(&self, v: &VolumeState, first: u64, count: u32) {
        planted::seen("protection: a write waits until it is clean");
        v.urgent.waiting.set(v.urgent.waiting.get() + 1);
        while self.is_urgent(v, first, count) {
            let timer = self.rt.sleep(LOOK_INTERVAL);
            self.quiet.until_or(|| !self.is_urgent(v, first, count), timer).await;
        }
        v.urgent.waiting.set(v.urgent.waiting.get() - 1);
    }

    /// Whether all that writers wait for has been written to the origin, and waits for its flush.
    pub(crate) fn is_urgent_written(&self, v: &VolumeState) -> bool {
        let is_left = |&range: &(u64, u64)| self.finds(v, range, State::needs_destage);
        v.urgent.waiting.get() > 0 && !v.urgent.list().iter().any(is_left)
    }

    /// Whether some block of a range, which lies in one stripe, is in such a state.
    fn finds(&self, v: &VolumeState, (first, end): (u64, u64), want: fn(State) -> bool) -> bool {
        let shard = self.shard(v.id, first);
        let next = shard.index.borrow().next_matching(v.id, first, want);
        next.is_some_and(|m| m.block < end)
    }
}

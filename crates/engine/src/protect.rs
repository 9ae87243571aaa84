//! Bringing home what is dirty with fewer copies than were promised, whatever clients change meanwhile.
//!
//! * All else is written through then ([`Core::mode_of`]). A change of what is dirty is logged once more, with the
//!   copies that are left: the origin must not get ahead of the log (INV-9).
//! * The next change of it waits until it is clean, and then meets nothing dirty (INV-90). What is waited for is the
//!   elevator's next; all else is destaged in the usual order. So protection ends.
//! * What has been logged since protection began stands in a set that was opened since then: nothing has to be
//!   remembered for each block.
//! * Who waits holds no lock, no room, and waits for [`PROTECTION_WAIT_MAX`] at the longest; nobody waits for an
//!   origin that takes nothing: better one copy than none.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

use super::destage::LOOK_INTERVAL;
use crate::core::Core;
use crate::format::State;
use crate::limits::PROTECTION_WAIT_MAX;
use crate::lock::RangeGuard;
use crate::planted::{self, Bug};
use crate::volume::VolumeState;

/// Blocks of a volume that somebody waits for. There are no more of them than requests under way.
#[derive(Default)]
pub(crate) struct Urgent {
    /// By a number of each who waits.
    ranges: RefCell<BTreeMap<u64, Range<u64>>>,
    waited: Cell<u64>,
}

impl Urgent {
    /// The ranges, which may overlap, those first that have been waited for longest.
    pub(crate) fn list(&self) -> Vec<Range<u64>> {
        self.ranges.borrow().values().cloned().collect()
    }

    fn enter(&self, range: Range<u64>) -> Waiting<'_> {
        let number = self.waited.replace(self.waited.get() + 1);
        self.ranges.borrow_mut().insert(number, range);
        Waiting { urgent: self, number }
    }
}

/// Somebody who waits, until dropped.
struct Waiting<'a> {
    urgent: &'a Urgent,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.urgent.ranges.borrow_mut().remove(&self.number);
    }
}

impl Core {
    /// Whether a volume is written through because there are fewer members than copies: what is dirty of
    /// it has to go home.
    pub(crate) fn protects(&self, v: &VolumeState) -> bool {
        self.is_short() && self.mode_of(v) != v.mode.get()
    }

    /// Whether a change has to wait until what it goes over is clean.
    pub(crate) fn is_urgent(&self, v: &VolumeState, first: u64, count: u32) -> bool {
        self.protects(v) && self.is_logged_again(v, first, count) && !self.takes_nothing(v)
    }

    /// Whether some of what is dirty there was logged since protection began.
    fn is_logged_again(&self, v: &VolumeState, first: u64, count: u32) -> bool {
        if planted::is(Bug::ProtectionWithoutEnd) {
            return false;
        }
        let (sets, since) = (self.sets.borrow(), self.log.short_since.get());
        let mut is_again = false;
        self.shard(v.id, first).index.borrow().lookup(v.id, first, count, |m| {
            let opened = || sets.get(sets.split(m.location).0).map(|set| set.incarnation.counter);
            is_again |= m.state.is_owed() && opened().is_some_and(|opened| opened > since);
        });
        is_again
    }

    /// Whether an origin takes nothing, for as long as that is known or as it has been silent.
    pub(crate) fn takes_nothing(&self, v: &VolumeState) -> bool {
        v.origin.refuses_writes()
            || v.origin.is_silent(self.rt.now(), PROTECTION_WAIT_MAX)
            || self.is_letting_go()
    }

    /// Locks blocks that lie in one stripe for a change of them, once that has not to wait any more.
    pub(crate) async fn lock_for_change(
        &self,
        v: &VolumeState,
        first: u64,
        count: u32,
    ) -> RangeGuard<'_> {
        let mut may_go_on = false;
        loop {
            let locks = &self.shard(v.id, first).locks;
            let guard = locks.lock(&self.ram, v.id, first, u64::from(count)).await;
            if may_go_on || !self.is_urgent(v, first, count) {
                return guard;
            }
            drop(guard);
            may_go_on = Box::pin(self.until_not_urgent(v, first, count)).await;
        }
    }

    /// Waits until a change may go on; whether it may in any case, for it has waited long enough.
    pub(crate) async fn until_not_urgent(&self, v: &VolumeState, first: u64, count: u32) -> bool {
        planted::seen("protection: a change waits until it is clean");
        let _waiting = v.urgent.enter(first..first + u64::from(count));
        let until = self.rt.now() + PROTECTION_WAIT_MAX;
        if self.log.has_volatile() {
            // Only what is durable is destaged (INV-7). An error has latched the pool.
            self.flush_members().await.ok();
        }
        self.housekeeping.wake_all();
        while self.is_urgent(v, first, count) {
            if self.rt.now() >= until {
                planted::seen("protection: waited long enough");
                return true;
            }
            let timer = self.rt.sleep(LOOK_INTERVAL);
            self.quiet.until_or(|| !self.is_urgent(v, first, count), timer).await;
        }
        false
    }

    /// Whether something that is waited for has been written to the origin, and needs its flush.
    pub(crate) fn is_urgent_written(&self, v: &VolumeState) -> bool {
        let is_written = |range: &Range<u64>| {
            !self.finds(v, range, State::needs_destage) && self.finds(v, range, State::is_owed)
        };
        v.urgent.list().iter().any(is_written)
    }

    /// Whether some block of a range, which lies in one stripe, is in such a state.
    fn finds(&self, v: &VolumeState, range: &Range<u64>, want: fn(State) -> bool) -> bool {
        let shard = self.shard(v.id, range.start);
        let next = shard.index.borrow().next_matching(v.id, range.start, want);
        next.is_some_and(|m| m.block < range.end)
    }
}

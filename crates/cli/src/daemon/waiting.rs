//! Pools whose cache devices are not all there: how long they are waited for, and what is told of it.

use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::Runtime;
use forebay_device::runtime::{Nanos, SECOND};

use super::scan::{Found, Sight, is_complete, of_pool};
use super::{Daemon, Slot, State};

/// Time between two looks for devices that have been missing for long.
const SCAN_INTERVAL: Nanos = 10 * SECOND;

/// What was told of a pool whose devices are not there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Nothing,
    /// That they are waited for.
    Waits,
    /// That the wait is over, and none of them is there: nothing happens until somebody acts.
    Missing,
}

impl Daemon {
    /// A pool that could not be opened is tried again once other devices of it are there than were
    /// then: one that came late, or one that is gone.
    pub(super) fn wait_again_if_changed(&self, slot: &Slot, found: &[Found]) {
        if !matches!(&*slot.state.borrow(), State::Failed(_)) {
            return;
        }
        let own = of_pool(found, &slot.record.borrow().id);
        let devices = |found: &mut dyn Iterator<Item = &Found>| -> BTreeSet<_> {
            found.map(|found| (found.superblock.device, found.path.clone())).collect()
        };
        let now = devices(&mut own.into_iter());
        if now == devices(&mut slot.seen.borrow().iter()) {
            return;
        }
        let wait = self.config.devices.wait_s.saturating_mul(SECOND);
        let until = self.reactor.now().saturating_add(wait);
        slot.told.set(Told::Nothing);
        slot.transition(State::Waiting { until });
    }

    /// Whether to look for devices again: often at first, then at leisure, so that idle disks may
    /// rest.
    pub(super) fn is_scan_due(&self) -> bool {
        let now = self.reactor.now();
        let is_due = now >= self.scan_next.get();
        if is_due {
            let interval = if now < self.scan_often_until { 0 } else { SCAN_INTERVAL };
            self.scan_next.set(now + interval);
        }
        is_due
    }

    /// Takes note of which devices are a pool's, and tells of those that cannot be read.
    pub(super) fn see(&self, slot: &Slot, sight: &Sight) {
        let name = slot.record.borrow().name.to_string();
        for unread in slot.see(sight) {
            let (said, advice) = (unread.said(), unread.advice());
            let what = format!("a cache device of pool \"{name}\" at {said}; {advice}");
            let subject = (name.as_str(), unread.path.display().to_string());
            self.journal.warn("member-unreadable", subject, what);
        }
    }

    /// Opens a pool whose devices are all there, or some of them once it has waited long enough.
    pub(super) async fn open_if_due(&self, slot: &Rc<Slot>, sight: &Sight, until: Nanos) {
        let (name, id) = (slot.record.borrow().name.to_string(), slot.record.borrow().id.clone());
        let own = of_pool(&sight.members, &id);
        let is_over = self.reactor.now() >= until;
        if is_complete(&own) || (is_over && !own.is_empty()) {
            // A failure is the pool's state from now on.
            let _ = self.start_pool(slot, sight, self.claiming()).await;
            return;
        }
        self.see(slot, sight);
        if slot.seen.borrow().is_empty() && slot.witnessed.borrow().is_empty() {
            // Without it they are not known, which `status` says.
            let witnessed = self.state.witnessed(&id).await.unwrap_or_default();
            *slot.witnessed.borrow_mut() = witnessed;
        }
        let now = if is_over { Told::Missing } else { Told::Waits };
        if slot.told.replace(now) == now {
            return;
        }
        let lack = match slot.unread.borrow().is_empty() {
            true => "are not there",
            false => "are not there, or cannot be read",
        };
        let missing = format!("pool \"{name}\" waits for cache devices that {lack}");
        match now {
            Told::Missing => {
                let what = format!("{missing}, and serves nothing until they are");
                self.journal.warn("pool-missing", &name, what);
            }
            _ => self.journal.warn("pool-waiting", &name, missing),
        }
    }
}

//! What is clean is noted, so that a volume can be served from its origin should all members fail together, and a start that
//! lacks members need not ask.
//!
//! * A volume is due that owes nothing, and of which nothing was logged for [`Tuning::clean_noted_after`]. Not sooner: before the
//!   next write superblocks and witness have to say the contrary.
//! * One that is written through for want of members is due at once: nothing will be logged of it.
//! * Nothing is noted while the witness cannot be written: a clean volume would be written through then (INV-20).
//!
//! [`Tuning::clean_noted_after`]: crate::tuning::Tuning::clean_noted_after

use std::rc::Rc;

use crate::core::Core;
use crate::limits::CLEAN_LOOKS;
use crate::planted::seen;
use crate::volume::VolumeState;

impl Core {
    /// Makes it durable that the volumes that are due are clean, if they are.
    pub(crate) async fn note_clean(&self, is_due: impl Fn(&VolumeState) -> bool) {
        let volumes: Vec<_> = self.volumes.borrow().values().cloned().collect();
        let is_unnoted = |v: &VolumeState| v.may_be_dirty.get() && self.is_clean(v);
        let due: Vec<_> = volumes.iter().filter(|v| is_due(v) && is_unnoted(v)).collect();
        if due.is_empty() || self.is_at_rest() || !self.is_witness_writable().await {
            return;
        }
        for v in due {
            // A member that fails meanwhile is its guardian's matter, and the next look tries again.
            if self.clear_may_be_dirty(v).await.is_ok() && !v.may_be_dirty.get() {
                seen("clean: noted by itself");
            }
        }
    }

    async fn is_witness_writable(&self) -> bool {
        let _control = self.control.lock().await;
        self.is_witnessed(|_| ()).await
    }
}

/// Looks for volumes that have been clean for a while, until the pool has settled.
pub(crate) async fn noter(core: Rc<Core>) {
    let interval = core.tuning.clean_noted_after / u64::from(CLEAN_LOOKS);
    let is_over = || core.is_at_rest();
    while !is_over() {
        core.housekeeping.until_or(is_over, core.rt.sleep(interval)).await;
        let is_due = |v: &VolumeState| {
            let looks = v.clean_looks.get().saturating_add(1);
            v.clean_looks.set(looks);
            looks > CLEAN_LOOKS
        };
        core.note_clean(is_due).await;
    }
}

//! A spare for a cache device that says that it is failing, before it does: where that was asked for
//! (`devices.replace_failing`).
//!
//! * It is the replacement that a person would begin, as a job that can be seen and cancelled. What the old one holds
//!   is moved while it can be read, so no copy is missing at any time.
//! * It is begun once for each such device and start: one that fails, or is cancelled, is a person's business. One that
//!   was cut off by the end of the daemon goes on.
//! * A device that was lost goes first: it may need that spare, and its copies are missing already.

use std::path::PathBuf;
use std::rc::Rc;

use forebay_control::api::HealthVerdict;
use forebay_control::name::Name;
use forebay_engine::Redundancy;
use forebay_engine::ids::DeviceId;

use super::pools::lost_of;
use super::spares::choose;
use super::{Daemon, Open, Slot};
use crate::Result;

/// A replacement that is due.
struct Relief {
    old: DeviceId,
    new: PathBuf,
}

impl Daemon {
    fn is_failing(&self, id: &str) -> bool {
        self.health_of(id).is_some_and(|health| health.verdict == HealthVerdict::Failing)
    }

    /// The replacement that is due, if one is and can be begun.
    fn due_relief(&self, slot: &Slot, open: &Open) -> Option<Relief> {
        let (superblock, record) = (open.pool.superblock(), slot.record.borrow());
        let is_leaving = |aim: &super::jobs::Aim| aim.left_pool() == Some(&record.name);
        if open.pool.is_latched()
            || open.pool.redundancy() != Redundancy::Whole
            || lost_of(&superblock, &record.replaced).next().is_some()
            || self.jobs.is_running(is_leaving)
        {
            return None;
        }
        let relieved = open.relieved.borrow();
        let mut members = superblock.present().filter(|member| {
            let id = member.device.to_string();
            self.is_failing(&id) && !relieved.contains(&id)
        });
        let old = members.next()?;
        let begun = record.replacing.as_ref().filter(|known| known.old == old.device.to_string());
        if let Some(begun) = begun {
            return Some(Relief { old: old.device, new: begun.new.clone() });
        }
        let bytes = u64::from(old.segments.count()) * u64::from(superblock.segment_bytes);
        let mut ready = open.spares.ready();
        ready.retain(|(id, _)| !self.is_failing(id));
        let (id, _) = choose(ready, bytes)?;
        Some(Relief { old: old.device, new: record.spares.get(&id)?.clone() })
    }

    /// Has a spare take the place of a cache device that is failing, if that is wanted and possible.
    pub(super) fn begin_relief(self: &Rc<Self>, slot: &Rc<Slot>, open: &Rc<Open>) {
        let is_due = self.config.devices.replace_failing && self.due_relief(slot, open).is_some();
        if !is_due || open.spares.is_taking.replace(true) {
            return;
        }
        let (it, name) = (Rc::clone(self), slot.record.borrow().name.clone());
        let watching = Rc::downgrade(open);
        self.runtime().spawn(Box::pin(async move {
            let _held = it.changing.lock().await;
            if !it.is_ending() {
                it.relieve(&name).await;
            }
            if let Some(open) = watching.upgrade() {
                open.spares.is_taking.set(false);
            }
        }));
    }

    /// Begins what is due; the caller holds `changing`.
    async fn relieve(self: &Rc<Self>, name: &Name) {
        let Ok((slot, open)) = self.open(name.as_str()) else { return };
        let Some(Relief { old, new }) = self.due_relief(&slot, &open) else { return };
        open.relieved.borrow_mut().insert(old.to_string());
        drop(open);
        let place = slot.place_of(old).map_or(old.to_string(), |path| path.display().to_string());
        let subject = (name.as_str(), place.clone());
        let begun: Result<_> = self.replace_device(name, &old.to_string(), &new).await;
        let new = new.display();
        match begun {
            Ok(job) => self.journal.warn(
                "ssd-relieved",
                subject,
                format!(
                    "the spare {new} takes the place of {place}, which is failing (job {})",
                    job.number
                ),
            ),
            Err(failure) => self.journal.warn(
                "spare-failed",
                subject,
                format!(
                    "the spare {new} cannot take the place of {place}, which is failing: {}",
                    failure.what()
                ),
            ),
        }
    }
}

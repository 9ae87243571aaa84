//! Telling of origins in use that do not work, or are larger than their volumes: behind a cache, or without one.

use std::cell::RefCell;
use std::collections::BTreeMap;

use forebay_control::api::VolumeState;

use super::{Daemon, Open, Slot};
use crate::origin::Origin;
use crate::text;

/// What was told to be wrong with origins, by their volumes: the states of these, and why.
pub(super) type Troubles = RefCell<BTreeMap<String, (VolumeState, String)>>;

impl Daemon {
    /// Tells of the origins of a pool that do not work any more, or do again.
    pub(super) fn look_at_origins(&self, slot: &Slot, open: &Open) {
        for volume in open.origins.borrow().keys() {
            self.tell_trouble(slot, volume, open.trouble(volume), &open.troubles);
        }
    }

    /// Tells of one what is wrong with it, if anything, unless that was `told`.
    pub(super) fn tell_trouble(
        &self,
        slot: &Slot,
        volume: &str,
        trouble: Option<(VolumeState, String)>,
        told: &Troubles,
    ) {
        // Of one that fails, reads and writes may begin to fail one after the other.
        let is_news = |told: Option<&(VolumeState, String)>, trouble: &(VolumeState, String)| {
            let is_failing = |it: &(VolumeState, _)| it.0 == VolumeState::OriginFailed;
            told.is_none_or(|told| told != trouble && !(is_failing(told) && is_failing(trouble)))
        };
        let pool = slot.record.borrow().name.clone();
        let (mut told, name) = (told.borrow_mut(), format!("\"{pool}/{volume}\""));
        let subject = || (pool.as_str(), volume.to_owned());
        match trouble {
            Some(trouble) if is_news(told.get(volume), &trouble) => {
                let (state, why) = &trouble;
                let code = match state {
                    VolumeState::OriginFailed => "origin-failed",
                    _ => "origin-missing",
                };
                self.journal.warn(code, subject(), format!("volume {name}: {why}"));
                told.insert(volume.to_owned(), trouble);
            }
            None if told.remove(volume).is_some() => {
                let what = format!("volume {name} is online");
                self.journal.note("volume-online", subject(), what);
            }
            _ => (),
        }
    }

    /// Tells if the origin of a volume that has just been attached is larger than the volume.
    pub(super) fn tell_grown(&self, pool: &str, volume: &str, size_bytes: u64, origin: &Origin) {
        let found = origin.device().geometry().size_bytes / 512 * 512;
        let more = found.saturating_sub(size_bytes);
        if more > 0 {
            let more = text::bytes(more);
            let what = format!("the origin of volume \"{pool}/{volume}\" is {more} larger");
            self.journal.note("origin-grown", (pool, volume.to_owned()), what);
        }
    }
}

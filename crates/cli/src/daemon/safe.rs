//! When every origin will have what is dirty: a figure where one was measured, words where none is.

use forebay_control::api::Destaging;
use forebay_device::runtime::SECOND;
use forebay_engine::ids::VolumeId;
use forebay_engine::{DestageWait, Volume};

use super::{Attached, Open};
use crate::text;

/// When that is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Safe {
    /// How fast it goes, and seconds until then; none if nobody can tell.
    pub destage: Destaging,
    /// The same as the end of a sentence; empty if nothing is dirty.
    pub when: String,
}

impl Safe {
    /// By what was `measured`. Where it `is_stopped` that is over, and what waits longest, with these words, decides.
    fn of(is_dirty: bool, is_stopped: bool, wait: Option<String>, measured: Destaging) -> Safe {
        let rate_bytes_per_s = if is_stopped { 0 } else { measured.rate_bytes_per_s };
        // What waits for nothing but a flush of its origin is no backlog, and has no rate.
        let left_s = measured.left_s.filter(|left_s| *left_s > 0);
        let (left_s, when) = match (wait, left_s) {
            _ if !is_dirty => (Some(0), String::new()),
            _ if is_stopped => (None, "nothing is destaged".to_owned()),
            (Some(wait), _) => (None, wait),
            (None, Some(left_s)) => (Some(left_s), format!("{} to safe", text::left(left_s))),
            (None, None) => (None, "being destaged".to_owned()),
        };
        Safe { destage: Destaging { rate_bytes_per_s, left_s }, when }
    }
}

/// Why not all that a volume owes is on its way, and for how many seconds that may be so.
fn wait(volume: &Volume) -> Option<(u64, String)> {
    let age_s = volume.settings().dirty_age_max_s;
    let dirty_for_s = volume.dirty_for().unwrap_or(0) / SECOND;
    let at_last = match age_s {
        0 => u64::MAX,
        age_s => u64::from(age_s).saturating_sub(dirty_for_s),
    };
    Some(match volume.destage_wait()? {
        DestageWait::Pause => (0, "waits until clients pause".to_owned()),
        DestageWait::Hours { in_minutes, .. } if u64::from(in_minutes) * 60 > at_last => {
            (at_last, format!("waits until it is {} old", text::duration(age_s)))
        }
        DestageWait::Hours { from, in_minutes } => {
            (u64::from(in_minutes) * 60, format!("waits until {:02}:{:02}", from / 60, from % 60))
        }
    })
}

impl Open {
    /// When every origin will have what is dirty now.
    pub(super) fn safe(&self) -> Safe {
        let is_dirty = self.pool.unproven_blocks() > 0;
        let wait = self.longest_wait().map(|(_, when)| when);
        Safe::of(is_dirty, self.is_stopped(), wait, self.progress.borrow().pool())
    }

    /// When the origin of a volume will have what is dirty of it now.
    pub(super) fn safe_of(&self, id: VolumeId, name: &str) -> Safe {
        let is_dirty = self.pool.unproven_blocks_of(id) > 0;
        let wait = self.wait_of(id, name).map(|(_, when)| when);
        Safe::of(is_dirty, self.is_stopped(), wait, self.progress.borrow().volume(name))
    }

    /// Whether nothing goes to origins any more.
    fn is_stopped(&self) -> bool {
        self.pool.is_latched() || self.pool.lost_to().is_some()
    }

    /// What the last of the dirty data waits for, if some waits.
    fn longest_wait(&self) -> Option<(u64, String)> {
        let superblock = self.pool.superblock();
        superblock.volumes.iter().filter_map(|it| self.wait_of(it.id, &it.name)).max()
    }

    /// The same of a volume.
    fn wait_of(&self, id: VolumeId, name: &str) -> Option<(u64, String)> {
        if self.pool.unproven_blocks_of(id) == 0 {
            return None;
        }
        match self.volumes.borrow().get(name) {
            Some(Attached::Online(volume)) if self.trouble(name).is_none() => {
                wait(volume).filter(|_| volume.owed_blocks() > 0)
            }
            _ => Some((u64::MAX, "waits for an origin".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Destaging = Destaging { rate_bytes_per_s: 5 << 20, left_s: Some(41) };

    #[test]
    fn what_is_not_destaged_any_more_has_no_rate_and_no_end() {
        let none = Destaging { rate_bytes_per_s: 0, left_s: None };
        let wait = || Some("waits until 22:00".to_owned());
        for wait in [None, wait()] {
            let stopped = Safe::of(true, true, wait, FAST);
            assert_eq!((stopped.destage, stopped.when.as_str()), (none, "nothing is destaged"));
        }
        let clean = Safe::of(false, true, None, FAST);
        assert_eq!(
            (clean.destage, clean.when.as_str()),
            (Destaging { left_s: Some(0), ..none }, "")
        );
        let waiting = Safe::of(true, false, wait(), FAST);
        assert_eq!(waiting.destage, Destaging { left_s: None, ..FAST });
        assert_eq!(waiting.when, "waits until 22:00");
    }

    #[test]
    fn the_time_is_that_of_the_last_seconds_if_there_is_one() {
        let goes = Safe::of(true, false, None, FAST);
        assert_eq!((goes.destage, goes.when.as_str()), (FAST, "41 s to safe"));
        for left_s in [None, Some(0)] {
            let unknown = Safe::of(true, false, None, Destaging { left_s, ..FAST });
            assert_eq!(unknown.destage, Destaging { left_s: None, ..FAST });
            assert_eq!(unknown.when, "being destaged");
        }
        let clean = Safe::of(false, false, None, Destaging { left_s: None, ..FAST });
        assert_eq!(clean.destage, Destaging { left_s: Some(0), ..FAST });
    }
}

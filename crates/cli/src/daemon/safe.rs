//! When every origin will have what is dirty: a figure where one was measured, words where none is.

use forebay_device::runtime::SECOND;
use forebay_engine::{DestageWait, Volume};

use super::progress::not_over;
use super::{Attached, Open};
use crate::text;

/// When that is.
pub(super) struct Safe {
    /// Seconds until then; none if nobody can tell.
    pub in_s: Option<u64>,
    /// The same as the end of a sentence; empty if nothing is dirty.
    pub when: String,
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
        if self.pool.unproven_blocks() == 0 {
            return Safe { in_s: Some(0), when: String::new() };
        }
        if self.pool.is_latched() || self.pool.lost_to().is_some() {
            return Safe { in_s: None, when: "nothing is destaged".to_owned() };
        }
        if let Some((_, when)) = self.longest_wait() {
            return Safe { in_s: None, when };
        }
        // What waits for nothing but a flush of its origin is no backlog, and has no rate.
        let left_s = self.progress.borrow().pool().left_s.filter(|left_s| *left_s > 0);
        let when = left_s.map_or("being destaged".to_owned(), |left_s| {
            format!("{} to safe", text::left(left_s))
        });
        Safe { in_s: left_s.map(not_over), when }
    }

    /// What the last of the dirty data waits for, if some waits.
    fn longest_wait(&self) -> Option<(u64, String)> {
        let (superblock, volumes) = (self.pool.superblock(), self.volumes.borrow());
        let dirty = superblock.volumes.iter().filter(|it| self.pool.unproven_blocks_of(it.id) > 0);
        let waits = dirty.filter_map(|it| match volumes.get(&it.name) {
            Some(Attached::Online(volume)) if self.trouble(&it.name).is_none() => {
                wait(volume).filter(|_| volume.owed_blocks() > 0)
            }
            _ => Some((u64::MAX, "waits for an origin".to_owned())),
        });
        waits.max()
    }
}

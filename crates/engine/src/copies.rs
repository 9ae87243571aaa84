//! Copies: how many there are of what, and which one is read.
//!
//! * All copies of a set are the same from its first record on, since a record is published only when
//!   it is on each of them (INV-2). So any may be read, of dirty sets and of clean ones; the one whose
//!   member has least to do is.

use std::cell::Cell;

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BLOCK_BYTES, Location};
use crate::limits::{CLEAN_COPIES_MAX, COPIES_MAX};

/// What a member has to do for clients and appends, in requests. Requests of all sizes count alike: up
/// to some 100 KiB an SSD spends more on there being one than on its bytes.
#[derive(Default)]
pub(crate) struct Queue(Cell<u32>);

impl Queue {
    pub(crate) fn enter(&self) {
        self.0.set(self.0.get() + 1);
    }

    pub(crate) fn leave(&self) {
        self.0.set(self.0.get() - 1);
    }

    /// Is in the queue until it is dropped.
    pub(crate) fn guard(&self) -> Queued<'_> {
        self.enter();
        Queued(self)
    }
}

/// See [`Queue::guard`].
pub(crate) struct Queued<'a>(&'a Queue);

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Whether so many members can hold so many copies.
///
/// # Errors
/// [`ErrorKind::Invalid`].
pub(crate) fn check_copies(dirty: u8, clean: u8, members: usize) -> Result<()> {
    for (copies, of, most) in [(dirty, "dirty", COPIES_MAX), (clean, "clean", CLEAN_COPIES_MAX)] {
        if copies == 0 || usize::from(copies) > most.min(members) {
            let devices = if members == 1 { "device" } else { "devices" };
            let what = format!("{copies} {of} copies on {members} cache {devices}");
            return Err(Error::new(ErrorKind::Invalid, what).hint(format!(
                "use at least as many devices as copies; 1 to {most} copies of {of} data"
            )));
        }
    }
    Ok(())
}

impl Core {
    /// The copy of a location whose member has least to do.
    pub(crate) fn idlest_copy(&self, location: Location) -> usize {
        self.idlest_copy_for(location, BLOCK_BYTES).unwrap_or(0)
    }

    /// The same of those that can be read by themselves at multiples of `unit`, if there is one.
    pub(crate) fn idlest_copy_for(&self, location: Location, unit: u64) -> Option<usize> {
        let sets = self.sets.borrow();
        let (id, _) = sets.split(location);
        let set = sets.get(id).expect("a live location lies in a set in use");
        let members = set.segments.iter().map(|&segment| &self.members[sets.member_of(segment)]);
        let fitting = members.enumerate().filter(|(_, member)| {
            unit.is_multiple_of(u64::from(member.device.geometry().sector_bytes))
        });
        fitting.min_by_key(|(_, member)| member.queue.0.get()).map(|(copy, _)| copy)
    }
}

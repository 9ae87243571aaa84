//! Which root counts, and for which epoch it speaks.
//!
//! * A generation is given to one root only, whether that comes to count or not: the roots that the members had at the
//!   start have had theirs.
//! * The epoch that the newest durable root speaks for was swept before the images of that root were taken. So a root is
//!   behind as long as it speaks for an older one than the index.

use std::cell::Cell;

use crate::wait::{TaskGuard, TaskMutex};

/// The roots of a running pool.
#[derive(Default)]
pub(crate) struct Roots {
    /// Held while a slot is written.
    slots: TaskMutex,
    /// The last one given to a root.
    generation: Cell<u64>,
    /// The epoch that the newest durable root speaks for.
    epoch: Cell<u64>,
    /// The newest epoch of which the index names no place that is gone.
    swept_epoch: Cell<u64>,
}

impl Roots {
    /// Waits until nobody writes to a slot; nobody does until the guard is dropped.
    pub(crate) async fn lock(&self) -> TaskGuard<'_> {
        self.slots.lock().await
    }

    /// The generation that was given out last.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Gives out a generation.
    pub(crate) fn next_generation(&self) -> u64 {
        self.generation.set(self.generation.get() + 1);
        self.generation.get()
    }

    /// Generations up to this one were given out before the start.
    pub(crate) fn begin_behind(&self, generation: u64) {
        self.generation.set(generation);
    }

    /// The epoch that the newest durable root speaks for.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    /// Whether that is one from before the last sweep of the index.
    pub(crate) fn is_behind(&self) -> bool {
        self.epoch.get() < self.swept_epoch.get()
    }

    /// The newest epoch of which the index names no place that is gone.
    pub(crate) fn swept_epoch(&self) -> u64 {
        self.swept_epoch.get()
    }

    /// The index names no place any more that is gone in this epoch.
    pub(crate) fn note_swept(&self, epoch: u64) {
        self.swept_epoch.set(epoch);
    }

    /// A root that speaks for this epoch is durable.
    pub(crate) fn note_durable(&self, epoch: u64) {
        self.epoch.set(epoch);
    }
}

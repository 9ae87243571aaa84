//! Appends while members fail: who gets what is written, and when it counts.

use std::rc::Rc;

use forebay_device::{Io, IoError, IoErrorKind};

use super::{OpenSet, StreamLog};
use crate::core::Core;
use crate::ids::SegmentId;

impl Core {
    /// Awaits what is written to a set. It counts once all members have it that an epoch names which is
    /// durable (INV-19).
    ///
    /// # Errors
    /// If no member is left that has it, or the pool has latched.
    pub(super) async fn await_writes(
        &self,
        id: SegmentId,
        writes: Vec<(usize, Io)>,
    ) -> std::result::Result<(), IoError> {
        writes.iter().for_each(|(member, _)| self.members[*member].queue.enter());
        for (member, write) in writes {
            let outcome = write.done().await;
            self.members[member].queue.leave();
            // Also after an error: part of it may have arrived.
            self.members[member].unflushed.set(true);
            if let Err(error) = outcome {
                self.fail_member(member, "writing to", error);
            }
        }
        let settled = self.settle_members().await;
        if settled.is_err() || self.is_stray(id) {
            return Err(IoErrorKind::Other.into());
        }
        Ok(())
    }

    /// The members of these segments that have not failed, each with its segment.
    pub(super) fn places_of(&self, segments: &[SegmentId]) -> Vec<(usize, SegmentId)> {
        let sets = self.sets.borrow();
        let places = segments.iter().map(|&segment| (sets.member_of(segment), segment));
        places.filter(|&(member, _)| self.members[member].is_serving()).collect()
    }

    /// Whether a set has fewer copies than it was opened with: nothing more is appended to it.
    pub(super) fn is_degraded(&self, set: &OpenSet) -> bool {
        self.sets.borrow().get(set.id).is_none_or(|it| it.segments.len() < set.segments.len())
    }

    /// Ends appending to a stream's open set if a copy of it is gone. Whoever builds a record looks at
    /// the open set and takes it without a pause between, so this needs no lock.
    pub(super) fn end_degraded(self: &Rc<Self>, log: &StreamLog) {
        let open = log.open.borrow_mut().take_if(|set| self.is_degraded(set));
        let Some(set) = open else { return };
        if set.records.borrow().is_empty() {
            self.sets.borrow_mut().withdraw(set.id);
        } else {
            self.begin_close(set);
        }
    }

    /// Closes the open sets of which a copy is gone.
    pub(crate) fn close_degraded(self: &Rc<Self>) {
        self.log.streams.iter().for_each(|log| self.end_degraded(log));
    }
}

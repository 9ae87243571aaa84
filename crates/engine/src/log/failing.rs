//! Appends while members fail: who gets what is written, and when it counts.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::{Data, Io, IoError, IoErrorKind};

use super::{BLOCK, OpenSet, Pending, StreamLog, Way};
use crate::apply::RecordPlace;
use crate::core::Core;
use crate::error::Result;
use crate::format::{Entry, EntryKind, NO_DATA, State, Stream};
use crate::ids::SegmentId;
use crate::marks::Loss;
use crate::planted::{self, Bug};

impl Core {
    /// Awaits what is written to members this way.
    pub(super) async fn await_members(&self, writes: Vec<(usize, Io)>, way: Way) {
        writes.iter().for_each(|(member, _)| self.members[*member].queue.enter());
        // Whoever is awaited behind another one has taken no longer than that, as far as this can tell.
        let mut timed = writes.first().map(|(member, _)| &self.members[*member].spans);
        let begun = timed.and_then(|spans| spans.begin(&*self.rt));
        for (member, write) in writes {
            let outcome = write.done().await;
            if let Some(spans) = timed.take() {
                spans.end(&*self.rt, begun);
            }
            self.members[member].queue.leave();
            // Also after an error: part of it may have arrived.
            if way == Way::ByFlush || outcome.is_err() {
                self.members[member].unflushed.set(true);
            }
            if let Err(error) = outcome {
                self.fail_member(member, "writing to", error);
            }
        }
    }

    /// Awaits a record. It counts once all members have it that an epoch names which is durable
    /// (INV-19); one of an image, while losses are noted, at once: the epoch that names the root will be.
    ///
    /// # Errors
    /// If no member is left that has it, or the pool has latched.
    pub(super) async fn await_writes(
        &self,
        set: &OpenSet,
        writes: Vec<(usize, Io)>,
        way: Way,
        loss: Loss,
    ) -> std::result::Result<(), IoError> {
        self.await_members(writes, way).await;
        if self.is_failing() && !planted::is(Bug::EpochNotAwaited) {
            let noting = || self.losses.is_marking() && set.stream == Stream::Metadata;
            let is_void = || self.losses.any_since(loss);
            let over = || !self.is_failing() || noting() || is_void() || self.latched.get();
            self.epoch_begun.until(over).await;
        }
        if self.latched.get() || self.is_stray(set.id) {
            return Err(IoErrorKind::Other.into());
        }
        Ok(())
    }

    /// Puts the entries of a record back into their queue, in front: what it is written to may be lost, or
    /// what it follows. Populations are dropped; a start may find them.
    pub(super) fn hand_back(
        &self,
        stream: Stream,
        place: RecordPlace,
        parts: &[Data],
        pending: Vec<Pending>,
    ) {
        planted::seen("record handed back");
        let whole = match parts {
            [whole] => whole.slice(place.header_blocks as usize * BLOCK..whole.len()),
            [_, apart, ..] => apart.clone(),
            [] => return,
        };
        let log = self.log.stream(stream);
        for mut item in pending.into_iter().rev() {
            if item.population.is_some() {
                self.note_drop(item.entry.volume, item.entry.block);
                self.finish_pending(item, Err(IoErrorKind::Other.into()));
                continue;
            }
            if item.entry.data != NO_DATA {
                let from = usize::from(item.entry.data) * BLOCK;
                item.data = Some(whole.slice(from..from + item.entry.count as usize * BLOCK));
                item.entry.data = NO_DATA;
            }
            item.written = true;
            log.queued_blocks.set(log.queued_blocks.get() + item.data_blocks());
            log.ripe.set(true);
            log.queue.borrow_mut().push_front(item);
        }
        self.log.progress.wake_all();
    }

    /// Gives up the images that wait for their place in the log: their lap counts for nothing, and beside those that
    /// are written instead a record would have two of one shard.
    pub(crate) fn give_up_images(&self) {
        let log = self.log.stream(Stream::Metadata);
        let queue = std::mem::take(&mut *log.queue.borrow_mut());
        let is_image = |item: &Pending| item.entry.kind == EntryKind::Image;
        let (images, kept): (VecDeque<_>, VecDeque<_>) = queue.into_iter().partition(is_image);
        let blocks: u32 = images.iter().map(Pending::data_blocks).sum();
        log.queued_blocks.set(log.queued_blocks.get() - blocks);
        *log.queue.borrow_mut() = kept;
        for item in images {
            planted::seen("images of a void lap given up");
            self.finish_pending(item, Err(IoErrorKind::Other.into()));
        }
    }

    /// Where what origins durably hold lies, as long as the facts of that wait for their place in the log.
    pub(crate) fn proven_in_queue(&self) -> Vec<Range<u64>> {
        let queue = self.log.stream(Stream::Facts).queue.borrow();
        let proven = queue.iter().filter_map(|item| match item.entry {
            Entry { kind: EntryKind::CleanFact, from: Some(from), state, count, .. }
                if state.is_some_and(State::has_data) =>
            {
                Some(from.0..from.0 + u64::from(count))
            }
            _ => None,
        });
        let mut proven: Vec<_> = proven.collect();
        proven.sort_unstable_by_key(|range| range.start);
        proven
    }

    /// Waits until all that was on its way into the log when a member was lost has been handed back.
    ///
    /// # Errors
    /// If the pool has latched.
    pub(crate) async fn until_handed_back(&self) -> Result<()> {
        let kept = planted::is(Bug::InFlightKept);
        self.log.progress.until(|| self.log.is_quiet() || self.latched.get() || kept).await;
        self.check_latch()
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

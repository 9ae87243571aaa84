//! Making free what was let go of: sets behind a root, and what is still read in them.
//!
//! * What is let go of ([`crate::reclaim`]) is read where it is until its place is needed. So the segments that are kept
//!   ready, and those that one root makes free together, take nothing from the cache.
//! * To make a set free once a root is past it takes a read of its footer, its header durably gone, and a discard: no other
//!   room and no other root. So where an image names what was in it, no start takes for that what came there since.
//! * What no start finds opened again is read on behind that, and its room is had as before.

use std::rc::Rc;

use crate::checkpoint::LOOK_INTERVAL;
use crate::core::Core;
use crate::error::Result;
use crate::format::Stream;
use crate::ids::{SegmentId, Sequence};
use crate::planted::{self, Bug};
use crate::policy::Queue;
use crate::segment::{Set, SetState};
use crate::wait::yield_once;
use crate::walk::Run;

/// Runs of a set that are dropped before others are served: a quarter of a millisecond.
const DROPPED_TOGETHER: usize = 256;

/// Empties reusable sets when their room is needed, also by the last images.
pub(crate) async fn releaser(core: Rc<Core>) {
    let is_over = || core.log.is_retired() || core.latched.get();
    let mut left = Vec::new();
    while !is_over() {
        // What fails has latched the pool.
        if core.next_reusable().is_some() {
            left.extend(core.release_needed().await.unwrap_or_default());
        } else if !left.is_empty() && !core.is_failing() {
            left = core.discard_sets(&left).await.unwrap_or_default();
        } else {
            let timer = core.rt.sleep(LOOK_INTERVAL);
            let may_go_on = || !left.is_empty() && !core.is_failing();
            let due = || is_over() || core.next_reusable().is_some() || may_go_on();
            core.housekeeping.until_or(due, timer).await;
        }
    }
}

impl Core {
    /// Discards what a durable root has made free and nothing lives in, and lets waiting appends have it; the rest is
    /// reusable. `watermark` is the lowest of that root's images.
    ///
    /// # Errors
    /// If the pool has latched.
    pub(crate) async fn free_sets(&self, watermark: Sequence, metadata_before: u64) -> Result<()> {
        let mut freed = Vec::new();
        {
            let mut sets = self.sets.borrow_mut();
            let is_past = |set: &&Set| {
                let replaced = set.stream == Stream::Metadata
                    && set.is_empty()
                    && set.incarnation.counter < metadata_before;
                let too_early = planted::is(Bug::SegmentReusedBeforeRoot)
                    && matches!(set.state, SetState::LetGo(_));
                set.is_freed_by(watermark) || replaced || too_early
            };
            let past = sets.iter().filter(is_past);
            let mut past: Vec<_> = past.map(|set| (set.state.let_go_at(), set.id)).collect();
            // What was let go of first is needed first.
            past.sort_unstable();
            for (let_go_at, id) in past {
                let Some(set) = sets.get(id) else { continue };
                let (last, unused) = (set.last_sequence, set.is_unused());
                if let_go_at.is_none() {
                    sets.transition(id, SetState::LetGo(last));
                }
                if unused {
                    sets.transition(id, SetState::Discarding);
                    freed.push(id);
                } else {
                    sets.transition(id, SetState::Reusable);
                }
            }
            sets.sift_givers();
        }
        // What is reusable counts as room already.
        self.note_room();
        self.room.wake_all();
        self.housekeeping.wake_all();
        while !freed.is_empty() {
            // Those that are late at the end: the epoch that they wait for may wait for the room of the others.
            let mut late = Vec::new();
            for some in freed.chunks(self.tuning.headers_together) {
                late.extend(self.discard_sets(some).await?);
            }
            if !late.is_empty() {
                self.settle_members().await?;
            }
            freed = late;
        }
        self.housekeeping.wake_all();
        Ok(())
    }

    /// Discards sets in which nothing lives, and makes them free; where images may name what was in them, behind the loss
    /// of their headers. Those that remain are late: they have lost a copy, whose header counts until an epoch without its
    /// member does.
    ///
    /// # Errors
    /// If the pool has latched.
    async fn discard_sets(&self, ids: &[SegmentId]) -> Result<Vec<SegmentId>> {
        let is_named = |id: SegmentId| self.sets.borrow().get(id).is_some_and(|set| set.named);
        let named: Vec<SegmentId> = ids.iter().copied().filter(|&id| is_named(id)).collect();
        let segments = |id: SegmentId| {
            let sets = self.sets.borrow();
            sets.get(id).map(|set| set.segments.clone()).unwrap_or_default()
        };
        if !named.is_empty() && self.is_closing() {
            planted::seen("stop: made free beside the last images");
        }
        if !named.is_empty() && !planted::is(Bug::LetGoStillNamed) {
            self.erase_headers(named.into_iter().flat_map(segments)).await?;
        }
        let (late, ready): (Vec<_>, Vec<_>) =
            ids.iter().partition(|&&id| self.sets.borrow().is_late(id));
        // All of them before anything is awaited: a member that fails from here on has no header of theirs.
        let ready = ready.into_iter().map(|id| (id, u32::from(is_named(id))));
        let ready: Vec<(SegmentId, u32)> = ready.collect();
        ready.iter().for_each(|&(id, _)| self.sets.borrow_mut().note_erased(id));
        for (id, from) in ready {
            for segment in segments(id) {
                self.discard(segment, from).await;
            }
            self.sets.borrow_mut().release(id);
            self.note_room();
            self.room.wake_all();
        }
        Ok(late)
    }

    /// The reusable set to make free next, see [`crate::segment::SetTable::next_reusable`].
    pub(crate) fn next_reusable(&self) -> Option<SegmentId> {
        let sets = self.sets.borrow();
        sets.next_reusable(sets.has_reusable() && self.is_index_crowded())
    }

    /// Makes some of the reusable sets free whose room is needed, together; returns those that have to wait, see
    /// [`Core::discard_sets`].
    ///
    /// # Errors
    /// If the pool has latched.
    pub(crate) async fn release_needed(&self) -> Result<Vec<SegmentId>> {
        let mut emptied = Vec::new();
        while emptied.len() < self.tuning.headers_together
            && let Some(id) = self.next_reusable()
        {
            emptied.extend(self.empty_reusable(id).await.then_some(id));
        }
        self.discard_sets(&emptied).await
    }

    /// Drops what is still read in a reusable set; true if nobody is reading and it can be discarded.
    async fn empty_reusable(&self, id: SegmentId) -> bool {
        self.drop_let_go(id).await;
        let found = self.sets.borrow().get(id).map(|set| (set.live_blocks, set.pins));
        match found {
            Some((0, 0)) => self.sets.borrow_mut().transition(id, SetState::Discarding),
            Some((0, _)) => {
                self.sets.borrow_mut().drain(id);
                self.housekeeping.wake_all();
            }
            _ => {}
        }
        found == Some((0, 0))
    }

    /// Drops all that was let go of, behind a root that does not name it. A scrub does not look at it, and it may be read for as
    /// long as nobody needs its place.
    ///
    /// # Errors
    /// If the pool has latched.
    pub(crate) async fn drop_all_let_go(self: &Rc<Self>) -> Result<()> {
        // Also where nothing is left, as in one that is read from: images may go on to name what was there.
        let ids: Vec<SegmentId> = {
            let sets = self.sets.borrow();
            let found = sets.iter().filter(|set| set.state.is_let_go() && set.named);
            found.map(|set| set.id).collect()
        };
        for &id in &ids {
            self.drop_let_go(id).await;
        }
        match ids.is_empty() {
            true => Ok(()),
            false => self.lap(false).await,
        }
    }

    /// Drops what is still read in a set that was let go of; false if it was not.
    pub(crate) async fn drop_let_go(&self, id: SegmentId) -> bool {
        let queue = {
            let sets = self.sets.borrow();
            let set = sets.get(id).filter(|set| set.state.is_let_go());
            let Some(set) = set else { return false };
            let holds_any = set.live_blocks > 0 && !set.has_no_copy();
            let Some(queue) = set.queue().filter(|_| holds_any) else { return true };
            queue
        };
        let pinned = self.pin_set(id);
        let runs = self.runs_of(id).await;
        self.drop_runs(&runs, queue).await;
        if self.sets.borrow().get(id).is_some_and(|set| set.live_blocks > 0) {
            // A footer that leaves something out.
            let runs = self.find_runs(id);
            self.drop_runs(&runs, queue).await;
        }
        #[cfg(feature = "verify")]
        assert!(
            self.sets.borrow().get(id).is_none_or(|set| set.live_blocks == 0 || set.has_no_copy()),
            "set {id:?} was let go of, and holds what cannot be dropped"
        );
        self.unpin(pinned);
        true
    }

    async fn drop_runs(&self, runs: &[Run], queue: Queue) {
        for some in runs.chunks(DROPPED_TOGETHER) {
            planted::seen("dropped: what was let go of");
            some.iter().for_each(|(volume, m)| self.drop_clean(*volume, m, queue));
            yield_once().await;
        }
    }
}

//! Facts that must stand in the log before writes that have no place there yet.
//!
//! * A write holds the range lock of its blocks, and may wait long for its place in the log: for room. Whoever makes
//!   room may have to note something about just these blocks, and cannot wait for that lock (INV-29).
//! * Nor need it. What is on its way into the log is known; and while a fact about some blocks is on its way, nothing
//!   that gives them another content is given a sequence: it stands behind the fact, and wins over it in a replay as in
//!   the index.

use std::cell::Cell;
use std::ops::Range;

use super::{Log, OpenSet, Pending, StreamLog};
use crate::format::{Entry, EntryKind};
use crate::ids::{Sequence, VolumeId};
use crate::planted::{self, Bug};

/// Blocks that a fact is being noted about.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Noting {
    volume: VolumeId,
    blocks: Range<u64>,
}

impl Noting {
    fn concerns(&self, entry: &Entry) -> bool {
        let end = entry.block + u64::from(entry.count);
        let within = entry.block < self.blocks.end && self.blocks.start < end;
        within && entry.volume == self.volume && entry.kind.supersedes()
    }
}

/// While it lives, nothing that gives its blocks another content is given a sequence.
pub(crate) struct Before<'a> {
    log: &'a Log,
    noting: Noting,
}

impl Log {
    /// Waits until nothing is on its way that gives blocks another content, but for writes that have no sequence yet.
    /// Not for who makes room: facts may wait for that.
    pub(crate) async fn until_published(
        &self,
        volume: VolumeId,
        blocks: Range<u64>,
        latched: &Cell<bool>,
    ) {
        let noting = Noting { volume, blocks };
        self.progress.until(|| latched.get() || !self.is_on_its_way(&noting)).await;
    }

    /// From now on, until what it returns is dropped, a fact that is appended about a block stands before whatever gives
    /// it another content and is published later. `None` if something that does is on its way already.
    pub(crate) fn before_writes(&self, volume: VolumeId, block: u64) -> Option<Before<'_>> {
        let noting = Noting { volume, blocks: block..block + 1 };
        if self.is_on_its_way(&noting) {
            return None;
        }
        self.noting.borrow_mut().push(noting.clone());
        Some(Before { log: self, noting })
    }

    /// Whether something has its place in the log, or gets it before whatever is appended now, and is not published.
    fn is_on_its_way(&self, noting: &Noting) -> bool {
        let inflight = self.inflight.borrow();
        let is_inflight = |sequence: Sequence| inflight.contains(&sequence.0);
        let written = |set: &OpenSet| {
            let records = set.records.borrow();
            let mut records = records.iter().map(|record| &record.footer);
            records.any(|r| is_inflight(r.sequence) && r.entries.iter().any(|e| noting.concerns(e)))
        };
        // What is queued among writes waits until the fact is noted.
        let queued = |log: &StreamLog| {
            let queue = log.queue.borrow();
            !log.stream.is_dirty() && queue.iter().any(|item| noting.concerns(&item.entry))
        };
        let open = |log: &StreamLog| log.open.borrow().as_ref().is_some_and(|set| written(set));
        self.streams.iter().any(|log| queued(log) || open(log))
            || self.closing.borrow().iter().any(|set| written(set))
    }

    /// Whether what is queued has to wait until a fact is noted.
    pub(super) fn is_kept(&self, item: &Pending) -> bool {
        let noting = self.noting.borrow();
        if noting.is_empty() || planted::is(Bug::WriteBeforeFact) {
            return false;
        }
        item.entry.kind != EntryKind::Lost && noting.iter().any(|it| it.concerns(&item.entry))
    }
}

impl Drop for Before<'_> {
    fn drop(&mut self) {
        let mut noting = self.log.noting.borrow_mut();
        if let Some(at) = noting.iter().position(|it| *it == self.noting) {
            noting.swap_remove(at);
        }
        self.log.progress.wake_all();
    }
}

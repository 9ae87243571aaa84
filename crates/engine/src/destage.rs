//! Bringing dirty blocks to the origin: one elevator per volume, in address order.
//!
//! * Only blocks whose records a completed member flush covers are destaged (INV-7).
//! * A block turns `written` when its origin write has completed and the index still points at what
//!   was written, `clean` when an origin flush that began afterwards has completed and a clean fact
//!   is in the log.
//! * After a failed origin flush, what it should have proven is dirty again and is rewritten.
//! * One batch at a time, so no two origin writes of the elevator overlap.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{Buf, Data, IoError, io};

use crate::core::{Core, STRIPE_BLOCKS};
use crate::counters::add;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::format::{Entry, EntryKind, Mode, State, Stream};
use crate::ids::{
    BLOCK_BYTES, Location, SECTOR_BYTES, SECTORS_ALL, SECTORS_PER_BLOCK, SegmentId, VolumeId,
};
use crate::index::Mapping;
use crate::limits::{ORIGIN_WRITE_BLOCKS_MAX, PARTIALS_MAX};
use crate::log::{Pending, new_entry};
use crate::origin::Unproven;
use crate::planted::{self, Bug};
use crate::read::origin_error;
use crate::volume::VolumeState;
use crate::wait::WaitQueue;

const BLOCK: usize = BLOCK_BYTES as usize;

/// How often the elevator looks whether there is a reason to run.
const LOOK_INTERVAL: u64 = 20 * MILLISECOND;

/// Pause after a failed origin write.
const ERROR_PAUSE: u64 = SECOND;

/// A run to destage; if it has data, its set is pinned since the look at the index.
struct Run {
    mapping: Mapping,
    pinned: Option<SegmentId>,
}

/// Neighbouring runs that make one origin write.
type Group = Vec<Run>;

/// Somebody who waits for everything to be destaged, until dropped.
struct Drain<'a>(&'a VolumeState);

impl<'a> Drain<'a> {
    fn new(v: &'a VolumeState) -> Self {
        v.drain.set(v.drain.get() + 1);
        Self(v)
    }
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        self.0.drain.set(self.0.drain.get() - 1);
    }
}

impl Core {
    /// Flushes a volume's origin, which proves whatever was written before.
    ///
    /// # Errors
    /// If the flush fails: what the elevator wrote is dirty again; what clients wrote directly may
    /// be lost, and every client is told by its next FLUSH.
    pub(crate) async fn flush_origin(&self, v: &VolumeState) -> Result<()> {
        let origin = &v.origin;
        let target = origin.completed.get();
        let failures = origin.failures.get();
        let _held = origin.flush_lock.lock().await;
        if origin.flushed.get() >= target && origin.failures.get() == failures {
            return Ok(());
        }
        let marker = origin.completed.get();
        add(&self.counters.origin_flushes, 1);
        let result = origin.device.flush().done().await;
        match result {
            Ok(()) => {
                origin.note_flushed(marker);
                let mut unproven = origin.unproven.borrow_mut();
                let proven = unproven.extract_if(.., |(completed, _)| *completed <= marker);
                for (_, item) in proven {
                    self.log_clean(v, &item);
                }
                Ok(())
            }
            Err(error) => {
                // What was destaged is rewritten; direct writes are the clients' to repeat.
                origin.note_failed();
                let unproven = std::mem::take(&mut *origin.unproven.borrow_mut());
                for (_, item) in unproven {
                    self.undo_unproven(v, &item);
                }
                self.event(
                    EventKind::OriginFlushFailed,
                    format!("flushing the origin of \"{}\": {error}", v.name),
                );
                Err(origin_error(v, "flushing", error))
            }
        }
    }

    /// Logs that the origin durably holds a block, and lets go of its pin then. Nobody waits for it: without the fact, recovery
    /// destages once more.
    pub(crate) fn log_clean(&self, v: &VolumeState, item: &Unproven) {
        let entry = Entry {
            state: Some(item.state),
            from: Some(item.location),
            drop: item.drop,
            ..new_entry(EntryKind::CleanFact, v.id, item.block, item.count)
        };
        let (completer, _) = io::pair();
        let pending = Pending { entry, data: None, completer, population: None, placed: None };
        self.log.enqueue(Stream::Facts, pending);
    }

    fn undo_unproven(&self, v: &VolumeState, item: &Unproven) {
        let Unproven { block, count, location, state, .. } = *item;
        planted::seen(match state {
            State::Provisional => "origin flush failed: provisional",
            _ => "origin flush failed: dirty again",
        });
        let to = match state {
            State::Written => State::Dirty,
            State::ZeroWritten => State::Zero,
            _ => {
                self.evict(v.id, block, count, location);
                return self.release_unproven(location, state);
            }
        };
        self.map_transition(v.id, block, count, location, |s| s == state, Some(to));
        self.release_unproven(location, state);
    }

    /// Ends the pin that an unproven item with data holds.
    pub(crate) fn release_unproven(&self, location: Location, state: State) {
        if state.has_data() {
            let (set, _) = self.sets.borrow().split(location);
            self.unpin(set);
        }
    }

    /// Brings everything of a volume to its origin and makes that known durably.
    pub(crate) async fn drain(&self, v: &Rc<VolumeState>) -> Result<()> {
        let failures = v.origin.failures.get();
        let waiting = Drain::new(v);
        loop {
            self.housekeeping.wake_all();
            let done = || !self.owes_any(v) && v.logging.get() == 0;
            let timer = self.rt.sleep(LOOK_INTERVAL);
            self.quiet.until_or(|| done() || self.latched.get(), timer).await;
            if done() || self.latched.get() || failures != v.origin.failures.get() {
                break;
            }
        }
        drop(waiting);
        self.flush_members().await?;
        if failures != v.origin.failures.get() || self.is_owing(v.id) {
            let what = format!("the origin of \"{}\" did not take everything", v.name);
            return Err(Error::new(ErrorKind::Io, what)
                .hint("see the events for its error; what is left stays safe in the cache"));
        }
        Ok(())
    }

    /// Whether anything of a volume is not yet known to be durable on its origin.
    pub(crate) fn owes_any(&self, v: &VolumeState) -> bool {
        self.is_owing(v.id)
            || !v.origin.unproven.borrow().is_empty()
            || v.origin.is_volatile()
            || self.written(v.id) > 0
    }

    fn written(&self, volume: VolumeId) -> u64 {
        self.written.borrow().get(&volume).copied().unwrap_or(0)
    }

    /// Whether room must be made: many segments hold owed data, free ones are few, or a side table
    /// fills up.
    pub(crate) fn is_pressed(&self) -> bool {
        let sets = self.sets.borrow();
        let owed: usize =
            sets.iter().filter(|set| set.owed_blocks > 0).map(|set| set.segments.len()).sum();
        let limit = sets.total_count() * self.tuning.owed_segments_percent as usize / 100;
        let scarce = sets.is_low();
        owed > limit
            || self.throttle.is_limiting()
            || (scarce && owed > 0 && self.reclaim_stuck.get())
            || self.partials.get() > PARTIALS_MAX as u64 / 4 * 3
            || self.index_bytes.get() >= self.index_memory_max / 100 * 95
    }

    /// Bytes destaged under pressure after which the origin is flushed: 1 % of the pool, so that
    /// room comes in time, and an origin that is slow to flush is not asked for every segment.
    fn pressed_flush_bytes(&self) -> u64 {
        let pool = self.sets.borrow().total_count() as u64 * self.segment_bytes;
        (pool / 100).min(self.tuning.origin_flush_bytes).max(self.segment_bytes)
    }

    fn should_destage(&self, v: &VolumeState) -> bool {
        let idle = self.rt.now() - v.last_request.get() >= self.tuning.idle_after;
        let leaving = self.mode_of(v) != Mode::Writeback;
        v.drain.get() > 0
            || self.mode_of(v) != v.mode.get()
            || (self.tuning.destage_when_idle && (idle || leaving))
            || self.is_pressed()
    }

    /// The next runs in address order, grouped into origin writes; their sets are pinned.
    fn next_groups(&self, v: &VolumeState) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let mut from = v.cursor.get();
        for _ in 0..2 {
            let stripes: Vec<u64> = self
                .owed
                .borrow()
                .range((v.id, from / STRIPE_BLOCKS)..=(v.id, u64::MAX))
                .map(|(&(_, stripe), _)| stripe)
                .take(self.tuning.destage_depth)
                .collect();
            for stripe in stripes {
                self.collect_stripe(v, stripe, from, &mut groups);
                if groups.len() > self.tuning.destage_depth {
                    break;
                }
            }
            if !groups.is_empty() {
                break;
            }
            from = 0;
        }
        if let Some(last) = groups.last().and_then(|group| group.last()) {
            v.cursor.set(last.mapping.block + u64::from(last.mapping.count));
        }
        groups
    }

    fn collect_stripe(&self, v: &VolumeState, stripe: u64, from: u64, groups: &mut Vec<Group>) {
        let end = (stripe + 1) * STRIPE_BLOCKS;
        let mut at = (stripe * STRIPE_BLOCKS).max(from);
        let shard = self.shard(v.id, stripe * STRIPE_BLOCKS);
        while groups.len() <= self.tuning.destage_depth {
            let next = shard.index.borrow().next_matching(v.id, at, State::needs_destage);
            let Some(mapping) = next.filter(|m| m.block < end) else { return };
            at = mapping.block + u64::from(mapping.count);
            if !self.is_durable(&mapping) {
                continue;
            }
            let data = mapping.state.has_data();
            let pinned = data.then(|| self.sets.borrow_mut().pin(mapping.location));
            let run = Run { mapping, pinned };
            match groups.last_mut() {
                Some(group) if joins(group, &run.mapping) => group.push(run),
                _ => groups.push(vec![run]),
            }
        }
    }

    /// Writes one group to the origin and notes what that made of its blocks.
    async fn destage_group(&self, v: &VolumeState, group: Group) -> Result<()> {
        let failures = v.origin.failures.get();
        let result = self.write_group(v, &group).await;
        let completed = v.origin.completed.get();
        // A flush that failed meanwhile may have lost what of the group it should have covered.
        let certain = result.is_ok() && failures == v.origin.failures.get();
        for run in &group {
            let m = &run.mapping;
            if certain {
                self.note_written(v, m, completed);
            }
            if let Some(set) = run.pinned {
                self.unpin(set);
            }
        }
        result
    }

    fn note_written(&self, v: &VolumeState, m: &Mapping, completed: u64) {
        let (from, to) = match m.state {
            State::Zero => (State::Zero, State::ZeroWritten),
            _ => (State::Dirty, State::Written),
        };
        self.map_transition(v.id, m.block, m.count, m.location, |s| s == from, Some(to));
        let item = Unproven {
            block: m.block,
            count: m.count,
            location: m.location,
            state: to,
            drop: to == State::ZeroWritten || m.sectors != SECTORS_ALL,
        };
        if to.has_data() {
            self.sets.borrow_mut().pin(m.location);
        }
        if planted::is(Bug::ReclaimWithoutOriginFlush) {
            self.log_clean(v, &item);
        } else {
            v.origin.unproven.borrow_mut().push((completed, item));
        }
    }

    async fn write_group(&self, v: &VolumeState, group: &Group) -> Result<()> {
        let failed = |error: IoError| origin_error(v, "destaging to", error);
        let first = &group[0].mapping;
        let offset = first.block * BLOCK_BYTES;
        let bytes: u64 = group.iter().map(|run| u64::from(run.mapping.count) * BLOCK_BYTES).sum();
        add(&self.counters.destage_bytes, bytes);
        add(&v.counters.destage_bytes, bytes);
        if first.state == State::Zero {
            return v.origin.write_zeroes(offset, bytes).await.map_err(failed);
        }
        let mut parts = Vec::with_capacity(group.len());
        for run in group {
            let m = &run.mapping;
            match self.read_verified(m.location, m.distance, m.count).await {
                Ok(data) => parts.push(data),
                Err(error) => {
                    // The only good copy may be gone: nothing more is written until somebody looks.
                    self.latch(&error.what, forebay_device::IoErrorKind::Media.into());
                    return Err(error);
                }
            }
        }
        if first.sectors != SECTORS_ALL {
            return self.write_sectors(v, offset, &parts[0], first.sectors).await.map_err(failed);
        }
        let data = match parts.len() {
            1 => parts.swap_remove(0),
            _ => joined(&parts, bytes as usize),
        };
        v.origin.write(offset, data).await.map_err(failed)
    }

    /// Writes those sectors of a block that `mask` names.
    async fn write_sectors(
        &self,
        v: &VolumeState,
        offset: u64,
        block: &Data,
        mask: u8,
    ) -> std::result::Result<(), IoError> {
        planted::seen("partial block destaged");
        let sector = SECTOR_BYTES as usize;
        let has = |i: u32| i < SECTORS_PER_BLOCK && mask >> i & 1 == 1;
        let mut i = 0;
        while i < SECTORS_PER_BLOCK {
            let start = i;
            while has(i) {
                i += 1;
            }
            if i > start {
                let part = block.slice(start as usize * sector..i as usize * sector);
                v.origin.write(offset + u64::from(start) * SECTOR_BYTES, part).await?;
            }
            i += 1;
        }
        Ok(())
    }

    /// Destages one batch; returns how many groups there were.
    async fn destage_batch(self: &Rc<Self>, v: &Rc<VolumeState>) -> Result<usize> {
        let groups = self.next_groups(v);
        let count = groups.len();
        let left = Rc::new((Cell::new(count), Cell::new(false), WaitQueue::default()));
        for group in groups {
            let (core, volume, left) = (Rc::clone(self), Rc::clone(v), Rc::clone(&left));
            self.spawn(async move {
                if let Err(error) = core.destage_group(&volume, group).await {
                    core.event(EventKind::DestageFailed, error.what);
                    left.1.set(true);
                }
                left.0.set(left.0.get() - 1);
                left.2.wake_all();
            });
        }
        left.2.until(|| left.0.get() == 0).await;
        if left.1.get() {
            return Err(Error::new(ErrorKind::Io, "destaging failed"));
        }
        Ok(count)
    }
}

/// Whether a run continues a group: neighbours on the origin of one kind.
fn joins(group: &Group, next: &Mapping) -> bool {
    let last = &group[group.len() - 1].mapping;
    let blocks: u32 = group.iter().map(|run| run.mapping.count).sum();
    last.block + u64::from(last.count) == next.block
        && last.state == next.state
        && last.sectors == SECTORS_ALL
        && next.sectors == SECTORS_ALL
        && blocks + next.count <= ORIGIN_WRITE_BLOCKS_MAX
}

fn joined(parts: &[Data], bytes: usize) -> Data {
    let mut whole = Buf::new(bytes);
    let mut at = 0;
    for part in parts {
        whole[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    debug_assert!(at == bytes && bytes.is_multiple_of(BLOCK));
    whole.freeze()
}

/// The elevator of one volume.
pub(crate) async fn elevator(core: Rc<Core>, v: Rc<VolumeState>) {
    let mut last_flush = core.rt.now();
    let mut flushed_bytes = core.counters.destage_bytes.get();
    while !core.settled.get() && !v.gone.get() {
        if core.latched.get() {
            return;
        }
        let mut moved = 0;
        let tried = core.is_owing(v.id) && core.should_destage(&v);
        if tried {
            moved = match core.destage_batch(&v).await {
                Ok(0) if core.log.has_volatile() => usize::from(core.flush_members().await.is_ok()),
                Ok(groups) => groups,
                Err(_) => {
                    core.rt.sleep(ERROR_PAUSE).await.result.ok();
                    0
                }
            };
        }
        let bytes = core.counters.destage_bytes.get() - flushed_bytes;
        let pressed = core.is_pressed();
        let bytes_max =
            if pressed { core.pressed_flush_bytes() } else { core.tuning.origin_flush_bytes };
        let waited = core.rt.now() - last_flush >= core.tuning.origin_flush_interval;
        let idle = moved == 0 && (core.is_owing(v.id) || pressed || v.drain.get() > 0 || bytes > 0);
        if v.origin.is_volatile() && (bytes >= bytes_max || waited || idle) {
            // Its error is an event, and told to the clients by their next FLUSH.
            if core.flush_origin(&v).await.is_err() {
                core.rt.sleep(ERROR_PAUSE).await.result.ok();
            }
            last_flush = core.rt.now();
            flushed_bytes = core.counters.destage_bytes.get();
            core.quiet.wake_all();
            core.reclaim_stuck.set(false);
            core.housekeeping.wake_all();
        } else if moved == 0 {
            let timer = core.rt.sleep(LOOK_INTERVAL);
            // What was tried in vain waits for an append in flight: look again later.
            let due = || !tried && core.is_owing(v.id) && core.should_destage(&v);
            let over = || core.settled.get() || core.latched.get() || v.gone.get();
            core.housekeeping.until_or(|| due() || over(), timer).await;
        }
    }
}

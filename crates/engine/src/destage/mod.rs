//! Bringing dirty blocks to the origin: one elevator per volume, in address order.
//!
//! [`age`] says whether there is a reason to, and for what; [`elevator`] chooses what is next and keeps
//! the pipeline full, [`rate`] says how full; here is what a write to the origin is, and what it makes of its blocks.
//!
//! * Only blocks whose records a completed member flush covers are destaged (INV-7).
//! * A block turns `written` when its origin write has completed and the index still points at what
//!   was written, `clean` when an origin flush that began afterwards has completed and a clean fact
//!   is in the log.
//! * After a failed origin flush, what it should have proven is dirty again and is rewritten.
//! * No two origin writes of the elevator overlap while they are under way (INV-9).

mod age;
mod elevator;
mod pressure;
mod rate;
mod whole;

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::{Buf, Data, IoError, Nanos, io};

pub use self::age::DestageWait;
use self::age::LONG_AGO;
pub(crate) use self::age::Owed;
pub(crate) use self::elevator::LOOK_INTERVAL;
use self::elevator::Reads;
pub(crate) use self::elevator::{Elevator, elevator};
pub use self::pressure::Delay;
pub(crate) use self::rate::Pace;
use crate::core::Core;
use crate::counters::add;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::format::{Entry, EntryKind, State, Stream};
use crate::ids::{
    BLOCK_BYTES, Incarnation, Location, SECTOR_BYTES, SECTORS_ALL, SECTORS_PER_BLOCK, SegmentId,
    VolumeId,
};
use crate::index::Mapping;
use crate::limits::{DESTAGE_READS_MAX, ORIGIN_SILENCE};
use crate::log::{Pending, new_entry};
use crate::origin::Unproven;
use crate::planted::{self, Bug};
use crate::read::origin_error;
use crate::segment::Set;
use crate::volume::VolumeState;
use crate::wait::all_of;

const BLOCK: usize = BLOCK_BYTES as usize;

/// A run to destage; if it has data, its set is pinned from the look at the index until that was read.
struct Run {
    mapping: Mapping,
    /// Since when something of its stripe was dirty when it was planned.
    since: Nanos,
    /// What the set was opened as.
    opened: Option<Incarnation>,
    /// Held until the data has been read.
    pinned: Cell<Option<SegmentId>>,
}

impl Run {
    /// The block behind its last one.
    fn behind(&self) -> u64 {
        self.mapping.block + u64::from(self.mapping.count)
    }
}

/// Runs that make one origin write, in the order of addresses and never none.
struct Group {
    runs: Vec<Run>,
    /// The blocks of their stripes, if these are written as a whole; else they are neighbours.
    whole: Option<Range<u64>>,
}

impl Group {
    fn new(run: Run) -> Self {
        Self { runs: vec![run], whole: None }
    }

    /// The blocks that are written.
    fn range(&self) -> Range<u64> {
        let own = || self.runs[0].mapping.block..self.runs[self.runs.len() - 1].behind();
        self.whole.clone().unwrap_or_else(own)
    }

    /// Adds a stripe that is behind the last one.
    fn append(&mut self, stripe: Group) {
        self.whole = Some(self.range().start..stripe.range().end);
        self.runs.extend(stripe.runs);
    }

    /// Blocks that come from the cache.
    fn count(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.mapping.count)).sum()
    }

    /// Bytes that are written.
    fn bytes(&self) -> u64 {
        blocks_bytes(&self.range())
    }

    /// Bytes of memory that this needs.
    fn memory_bytes(&self) -> u64 {
        self.whole.as_ref().map_or(0, blocks_bytes) + self.count() * BLOCK_BYTES
    }

    /// Whether it is several stripes of an origin's.
    fn is_long(&self, stripe_blocks: u64) -> bool {
        self.whole.as_ref().is_some_and(|blocks| blocks.end - blocks.start > stripe_blocks)
    }
}

fn blocks_bytes(blocks: &Range<u64>) -> u64 {
    (blocks.end - blocks.start) * BLOCK_BYTES
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
        let marker = origin.begin_flush();
        add(&self.counters.origin_flushes, 1);
        origin.flushing.set(Some(self.rt.now()));
        let result = origin.device.flush().done().await;
        origin.flushing.set(None);
        origin.note_flush(&result);
        match result {
            Ok(()) => {
                origin.note_flushed(marker);
                let mut unproven = origin.unproven.borrow_mut();
                let proven = unproven.extract_if(.., |(completed, _)| *completed <= marker);
                let zeroed = origin.zeroed.borrow_mut().take_proven(marker);
                proven.map(|(_, item)| item).chain(zeroed).for_each(|it| self.log_clean(v, &it));
                Ok(())
            }
            Err(error) => {
                // What was destaged is rewritten; direct writes are the clients' to repeat.
                origin.note_failed(self.rt.now());
                let unproven = origin.unproven.take().into_iter().map(|(_, item)| item);
                let zeroed = origin.zeroed.borrow_mut().take();
                unproven.chain(zeroed).for_each(|item| self.undo_unproven(v, &item));
                self.recurring_event(
                    EventKind::OriginFlushFailed,
                    &v.name,
                    format!("flushing the origin of \"{}\": {error}", v.name),
                );
                Err(origin_error(v, "flushing", error))
            }
        }
    }

    /// Flushes an origin for those who cannot go on before; false if it does not answer.
    pub(crate) async fn flush_unless_silent(self: &Rc<Self>, v: &Rc<VolumeState>) -> bool {
        let is_silent = || v.origin.is_silent(self.rt.now(), ORIGIN_SILENCE);
        if is_silent() {
            return false;
        }
        let (core, state, ended) = (Rc::clone(self), Rc::clone(v), Rc::new(Cell::new(false)));
        let has_ended = Rc::clone(&ended);
        // By itself: a flush that is given up would be forgotten.
        self.spawn_background(async move {
            // Its error is an event.
            core.flush_origin(&state).await.ok();
            has_ended.set(true);
            core.housekeeping.wake_all();
        });
        while !ended.get() && !is_silent() && !self.latched.get() {
            let timer = self.rt.sleep(ORIGIN_SILENCE);
            self.housekeeping.until_or(|| ended.get() || self.latched.get(), timer).await;
        }
        ended.get()
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
        let pending = Pending::new(entry, None, completer);
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
                self.evict_at(v.id, block, count, location);
                return self.release_unproven(location, state);
            }
        };
        self.map_transition(v.id, block, count, location, |s| s == state, Some(to));
        // How long it had been dirty is not known any more.
        self.grow_old(v, block, count, LONG_AGO);
        self.release_unproven(location, state);
    }

    /// Ends the pin that an unproven item with data holds.
    pub(crate) fn release_unproven(&self, location: Location, state: State) {
        if state.has_data() {
            let (set, _) = self.sets.borrow().split(location);
            self.unpin(set);
        }
    }

    /// Brings everything of a volume to its origin and makes that known durably. May be dropped.
    pub(crate) async fn drain(self: &Rc<Self>, v: &Rc<VolumeState>) -> Result<()> {
        let failures = v.origin.failures.get();
        loop {
            let waiting = v.drain.guard();
            loop {
                self.housekeeping.wake_all();
                let done = || !self.owes_any(v) && v.logging.is_zero();
                let timer = self.rt.sleep(LOOK_INTERVAL);
                self.quiet.until_or(|| done() || self.latched.get(), timer).await;
                if done() || self.latched.get() || failures != v.origin.failures.get() {
                    break;
                }
            }
            drop(waiting);
            self.flush_members_apart().await?;
            self.check_latch()?;
            if failures != v.origin.failures.get() {
                let what = format!("the origin of \"{}\" did not take everything", v.name);
                return Err(Error::new(ErrorKind::Io, what)
                    .hint("see the events for its error; what is left stays safe in the cache"));
            }
            if !self.is_owing(v.id) {
                return Ok(());
            }
            // Clients have written meanwhile.
            planted::seen("destage: written while it was made durable");
        }
    }

    /// Makes every completed append durable, for those who may be dropped: a flush that is given up would never
    /// count, and everybody else's wait for it.
    async fn flush_members_apart(self: &Rc<Self>) -> Result<()> {
        let (core, outcome) = (Rc::clone(self), Rc::new(Cell::new(None)));
        let ended = Rc::clone(&outcome);
        self.spawn(async move { ended.set(Some(core.flush_members().await)) });
        let mut result = None;
        // The end of a task wakes who waits for quiet.
        self.quiet
            .until(|| {
                result = outcome.take();
                result.is_some()
            })
            .await;
        // No flush is good that nobody has told of.
        result.unwrap_or_else(|| {
            Err(Error::new(ErrorKind::Io, "flushing the cache devices was given up"))
        })
    }

    /// Whether anything of a volume is not yet known to be durable on its origin.
    pub(crate) fn owes_any(&self, v: &VolumeState) -> bool {
        self.is_owing(v.id)
            || !v.origin.unproven.borrow().is_empty()
            || !v.origin.zeroed.borrow().is_empty()
            || v.origin.is_volatile()
            || !v.elevator.is_empty()
            || self.written(v.id) > 0
    }

    fn written(&self, volume: VolumeId) -> u64 {
        self.written.borrow().get(&volume).copied().unwrap_or(0)
    }

    /// Writes one group to the origin and notes what that made of its blocks.
    async fn destage_group(&self, v: &VolumeState, group: &Group, reads: Reads) -> Result<()> {
        let failures = v.origin.failures.get();
        let result = self.write_group(v, group, reads).await;
        let completed = v.origin.completed.get();
        // A flush that failed meanwhile may have lost what of the group it should have covered.
        let certain = matches!(result, Ok(true)) && failures == v.origin.failures.get();
        match certain {
            true => group.runs.iter().for_each(|run| self.note_written(v, run, completed)),
            false => self.stay_old(v, group),
        }
        // What is lost with a member is told elsewhere; the rest of the group is planned again.
        let is_gone = result.is_err() && group.runs.iter().any(|run| self.is_gone(run));
        self.unpin_group(group);
        if is_gone { Ok(()) } else { result.map(drop) }
    }

    /// Whether a run was on members alone that have failed.
    fn is_gone(&self, run: &Run) -> bool {
        run.mapping.state.has_data() && self.is_stray_at(run.mapping.location)
    }

    fn unpin_group(&self, group: &Group) {
        group.runs.iter().filter_map(|run| run.pinned.take()).for_each(|set| self.unpin(set));
    }

    /// Whether the set of a run still is what it was when the run was planned.
    fn is_in_same_life(&self, run: &Run) -> bool {
        let sets = self.sets.borrow();
        let set = sets.get(sets.split(run.mapping.location).0);
        // What was let go of owed nothing.
        let lives = |set: &Set| !set.state.is_let_go() && run.opened == Some(set.incarnation);
        !run.mapping.state.has_data() || set.is_some_and(lives)
    }

    /// An origin has not answered for long: nothing that it was given and has not proven keeps sets from
    /// being emptied any more. What is under way was read; what was written is dirty again; if it was
    /// written after all, it is written once more.
    pub(crate) fn let_go_of_silent(&self) {
        let now = self.rt.now();
        let volumes: Vec<_> = self.volumes.borrow().values().cloned().collect();
        for v in volumes.iter().filter(|v| v.origin.is_silent(now, ORIGIN_SILENCE)) {
            self.drop_plans(v);
            let unproven: Vec<_> = {
                let mut all = v.origin.unproven.borrow_mut();
                all.extract_if(.., |(_, item)| item.state == State::Written).collect()
            };
            for (_, item) in unproven {
                planted::seen("silent origin: dirty again");
                self.undo_unproven(v, &item);
            }
        }
    }

    fn note_written(&self, v: &VolumeState, run: &Run, completed: u64) {
        let m = &run.mapping;
        if !self.is_in_same_life(run) {
            // Moved meanwhile, or overwritten; another one may stand at its place.
            return planted::seen("destaged from a set that was emptied meanwhile");
        }
        if m.state == State::Zero {
            return self.note_zeroed(v, m, completed);
        }
        let (from, to) = (State::Dirty, State::Written);
        self.map_transition(v.id, m.block, m.count, m.location, |s| s == from, Some(to));
        let item = Unproven {
            block: m.block,
            count: m.count,
            location: m.location,
            state: to,
            drop: m.sectors != SECTORS_ALL,
        };
        self.sets.borrow_mut().pin(m.location);
        if planted::is(Bug::ReclaimWithoutOriginFlush) {
            self.log_clean(v, &item);
        } else {
            v.origin.unproven.borrow_mut().push((completed, item));
        }
    }

    /// The same of those zeroes that nothing has overtaken.
    fn note_zeroed(&self, v: &VolumeState, m: &Mapping, completed: u64) {
        let mut left = Vec::new();
        self.shard(v.id, m.block).index.borrow().lookup(v.id, m.block, m.count, |now| {
            if now.state == State::Zero && now.location == m.location {
                left.push(now);
            }
        });
        for part in left {
            let (from, to) = (State::Zero, State::ZeroWritten);
            let (block, count) = (part.block, part.count);
            self.map_transition(v.id, block, count, m.location, |s| s == from, Some(to));
            let blocks = block..block + u64::from(count);
            v.origin.zeroed.borrow_mut().put(blocks, m.location, completed);
        }
    }

    /// False if some of it is good in no copy: the rest is planned again.
    async fn write_group(&self, v: &VolumeState, group: &Group, reads: Reads) -> Result<bool> {
        let failed = |error: IoError| origin_error(v, "destaging to", error);
        let first = &group.runs[0].mapping;
        let offset = first.block * BLOCK_BYTES;
        let bytes = group.count() * BLOCK_BYTES;
        add(&self.counters.destage_bytes, bytes);
        add(&v.counters.destage_bytes, bytes);
        add(&self.counters.destage_runs, group.runs.len() as u64);
        if first.state == State::Zero {
            drop(reads);
            return v.origin.write_zeroes(offset, bytes).await.map(|()| true).map_err(failed);
        }
        let (mut parts, mut is_whole) = (Vec::with_capacity(group.runs.len()), true);
        let mut reads = Some(reads);
        let mut places = places(group, bytes as usize, self.tuning.destage_in_place_blocks);
        for runs in group.runs.chunks(DESTAGE_READS_MAX) {
            let parts_read = runs.iter().map(|run| {
                let m = &run.mapping;
                self.read_verified_into(m.location, m.distance, m.count, places.next())
            });
            for (run, read) in runs.iter().zip(all_of(parts_read).await) {
                match read {
                    Ok(data) => parts.push(data),
                    Err(error) if group.runs.iter().any(|run| self.is_gone(run)) => {
                        self.settle_members().await?;
                        return Err(error);
                    }
                    Err(_) => {
                        // Others need not wait for what becomes of it.
                        drop(reads.take());
                        is_whole = false;
                        self.settle_unreadable(v.id, &run.mapping).await?;
                    }
                }
            }
        }
        drop(reads);
        if !is_whole {
            return Ok(false);
        }
        // An origin may take its time, and who reclaims need not wait for it.
        self.unpin_group(group);
        if first.sectors != SECTORS_ALL {
            let written = self.write_sectors(v, offset, &parts[0], first.sectors).await;
            return written.map(|()| true).map_err(failed);
        }
        self.write_parts(v, group, parts).await.map(|()| true).map_err(failed)
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
}

/// Where the runs of an origin write of so many bytes are to be read to, one after the other; nowhere in
/// particular if there is but one, or some are of fewer than `least` blocks.
fn places(group: &Group, bytes: usize, least: u32) -> impl Iterator<Item = Buf> {
    let is_long = |run: &Run| run.mapping.count >= least;
    let runs = &group.runs;
    let is_worth_it = group.whole.is_none() && runs.len() > 1 && runs.iter().all(is_long);
    let mut rest = is_worth_it.then(|| Buf::new(bytes));
    let counts: Vec<_> = runs.iter().map(|run| run.mapping.count as usize).collect();
    counts.into_iter().map_while(move |count| {
        let mut place = rest.take()?;
        rest = Some(place.split_off(count * BLOCK));
        Some(place)
    })
}

/// What was read, as one: it is already, or it is copied.
fn joined(parts: &[Data]) -> Data {
    if let [one] = parts {
        return one.clone();
    }
    let mut whole = parts[0].clone();
    if parts[1..].iter().all(|part| whole.join(part.clone()).is_ok()) {
        planted::seen("destaged in place");
        return whole;
    }
    let bytes = parts.iter().map(|part| part.len()).sum();
    let (mut whole, mut at) = (Buf::new(bytes), 0);
    for part in parts {
        whole[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    debug_assert!(at == bytes && bytes.is_multiple_of(BLOCK));
    whole.freeze()
}

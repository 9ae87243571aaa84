//! The log writer: entries of all shards become shared records, records fill segment sets, one
//! flush serves everybody.
//!
//! * A record is written to all copies, then published, then acknowledged (INV-2).
//! * FLUSH is acknowledged when a member flush that began after the append's completion has
//!   completed on every member appended to (INV-3); concurrent FLUSHes join.
//! * While the clients of a volume flush after each write, a record may be written durably, which counts as a flush of it: their
//!   FLUSH finds nothing to do (INV-108).
//! * A footer is written only after a flush that began after its last record completed (INV-4).
//! * A member whose write or flush fails is used no more; what was on its way goes on with the copies
//!   that are left, once an epoch without it is durable ([`crate::failure`]). Nothing is retried.

mod before;
mod failing;
mod flush;
mod record;
mod synchronous;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use forebay_device::{Completer, Data, Io, IoError, IoErrorKind, io};

use crate::apply::RecordPlace;
use crate::core::Core;
use crate::count::Count;
use crate::counters::add;
use crate::error::{Error, Result};
use crate::format::{Entry, EntryKind, FooterRecord, NO_DATA, Stream, header_blocks_for};
use crate::ids::{BLOCK_BYTES, Incarnation, Location, SECTORS_ALL, SegmentId, Sequence, VolumeId};
use crate::limits::{
    APPEND_COALESCE_BLOCKS, APPENDS_INFLIGHT_MAX, GATHERED_BLOCKS, GATHERING_SPAN, PLACES_MAX,
};
use crate::lock::Population;
use crate::phase::Phase;
use crate::planted::{self, Bug};
use crate::segment::Set;
use crate::wait::{TaskMutex, WaitQueue, yield_once};

use record::Batch;
pub(crate) use synchronous::Habit;
use synchronous::{Way, Ways};

const BLOCK: usize = BLOCK_BYTES as usize;

/// Where an entry's data stands, how many blocks behind its record's header, and the record's
/// sequence, once they are known.
pub(crate) type Placed = Cell<Option<(Location, u8, Sequence)>>;

/// One entry on its way into the log.
pub(crate) struct Pending {
    pub entry: Entry,
    /// Whole blocks; `None` for facts.
    pub data: Option<Data>,
    pub completer: Completer,
    /// Of a populate entry: what says whether it may still be published.
    pub population: Option<Rc<Population>>,
    /// Receives the location of its data and the distance back to the record's header.
    pub placed: Option<Rc<Placed>>,
    /// Whether a record with it was written and handed back: until an epoch leaves those members behind that have it, a
    /// start may find it.
    pub written: bool,
}

impl Pending {
    pub(crate) fn new(entry: Entry, data: Option<Data>, completer: Completer) -> Self {
        Self { entry, data, completer, population: None, placed: None, written: false }
    }

    /// Whether anybody waits for its end: not for a population's.
    fn is_awaited(&self) -> bool {
        self.population.is_none()
    }

    fn data_blocks(&self) -> u32 {
        self.data.as_ref().map_or(0, |data| (data.len() / BLOCK) as u32)
    }
}

/// A record of a set that is not closed yet.
struct OpenRecord {
    footer: FooterRecord,
    /// Value of `appended` at its completion; `None` while it is in flight.
    marker: Option<u64>,
}

/// A set that is appended to, or waits for its footer.
struct OpenSet {
    id: SegmentId,
    segments: Vec<SegmentId>,
    incarnation: Incarnation,
    stream: Stream,
    next_block: Cell<u32>,
    entries: Cell<u32>,
    header_written: Cell<bool>,
    /// Whether the header has reached all copies: no record counts before that, for without it
    /// recovery does not find the set.
    header_done: Cell<bool>,
    records: RefCell<Vec<OpenRecord>>,
    /// How many of them, from the first on, a completed member flush covers.
    durable_records: Cell<usize>,
}

/// One stream: its queue, and the set that it fills.
pub(crate) struct StreamLog {
    stream: Stream,
    queue: RefCell<VecDeque<Pending>>,
    queued_blocks: Cell<u32>,
    inflight: Count,
    /// Marker of the member flush that the next append waits for, once it has been decided.
    held_until: Cell<Option<u64>>,
    /// Whether what is queued goes out as soon as may be: somebody waits for a part of it, or it has
    /// gathered for long enough.
    ripe: Cell<bool>,
    /// Whether a worker lets populations gather.
    gathering: Cell<bool>,
    open: RefCell<Option<Rc<OpenSet>>>,
    builder: TaskMutex,
    work: WaitQueue,
}

impl StreamLog {
    fn new(stream: Stream) -> Self {
        Self {
            stream,
            queue: RefCell::default(),
            queued_blocks: Cell::new(0),
            inflight: Count::default(),
            held_until: Cell::new(None),
            ripe: Cell::new(false),
            gathering: Cell::new(false),
            open: RefCell::default(),
            builder: TaskMutex::default(),
            work: WaitQueue::default(),
        }
    }

    /// What is queued goes out as soon as may be.
    fn ripen(&self) {
        if !self.queue.borrow().is_empty() && !self.ripe.replace(true) {
            self.work.wake_all();
        }
    }
}

/// The log writer's state.
pub(crate) struct Log {
    streams: [StreamLog; 7],
    /// Sets that wait for their footers.
    closing: RefCell<Vec<Rc<OpenSet>>>,
    next_sequence: Cell<u64>,
    inflight: RefCell<BTreeSet<u64>>,
    /// Appends completed so far.
    appended: Cell<u64>,
    /// Value of `appended` that the last good flush covers.
    flushed: Cell<u64>,
    /// Member flushes under way, in the order of their beginning.
    flushes: RefCell<VecDeque<flush::MemberFlush>>,
    /// Flushes begun so far.
    flush_number: Cell<u64>,
    /// Clients that wait for a member flush.
    flush_waiters: Count,
    /// How what is flushed at once becomes durable.
    ways: Ways,
    /// Blocks that facts are being noted about.
    noting: RefCell<Vec<before::Noting>>,
    /// Woken when an append or a flush ends.
    pub(crate) progress: WaitQueue,
    pub bytes_since_flush: Cell<u64>,
    pub bytes_since_lap: Cell<u64>,
    pub open_counter: Cell<u64>,
    /// Its value when it was found that fewer members are left than dirty data has copies.
    pub short_since: Cell<u64>,
    /// Blocks of data that full sets of the main stream held of late; no less is known at first.
    pub packed_blocks: Cell<u32>,
    /// Of this start.
    pub start_number: u64,
    pub epoch: Cell<u64>,
    retired: Cell<bool>,
}

impl Log {
    pub(crate) fn new(start_number: u64) -> Self {
        Self {
            streams: Stream::ALL.map(StreamLog::new),
            closing: RefCell::default(),
            next_sequence: Cell::new(1),
            inflight: RefCell::default(),
            appended: Cell::new(0),
            flushed: Cell::new(0),
            flushes: RefCell::default(),
            flush_number: Cell::new(0),
            flush_waiters: Count::default(),
            ways: Ways::default(),
            noting: RefCell::default(),
            progress: WaitQueue::default(),
            bytes_since_flush: Cell::new(0),
            bytes_since_lap: Cell::new(0),
            open_counter: Cell::new(0),
            short_since: Cell::new(0),
            packed_blocks: Cell::new(u32::MAX),
            start_number,
            epoch: Cell::new(0),
            retired: Cell::new(false),
        }
    }

    fn stream(&self, stream: Stream) -> &StreamLog {
        &self.streams[stream as usize - 1]
    }

    /// A sequence that no append has: marks an instant between appends.
    pub(crate) fn take_sequence(&self) -> Sequence {
        Sequence(self.next_sequence.replace(self.next_sequence.get() + 1))
    }

    /// Highest sequence assigned.
    pub(crate) fn last_sequence(&self) -> Sequence {
        Sequence(self.next_sequence.get() - 1)
    }

    /// Starts the sequence behind everything recovery has seen.
    pub(crate) fn resume(&self, next: Sequence) {
        self.next_sequence.set(next.0);
    }

    /// Highest sequence below which every append has been published or has failed.
    pub(crate) fn watermark(&self) -> Sequence {
        if planted::is(Bug::WatermarkOverInflight) {
            return self.last_sequence();
        }
        match self.inflight.borrow().first() {
            Some(&oldest) => Sequence(oldest - 1),
            None => self.last_sequence(),
        }
    }

    /// Lets everybody who waits for the log look again.
    pub(crate) fn wake_all(&self) {
        self.progress.wake_all();
        for stream in &self.streams {
            stream.work.wake_all();
        }
    }

    /// Puts an entry into a stream's queue. The outcome is given once it is published.
    pub(crate) fn enqueue(&self, stream: Stream, pending: Pending) {
        if self.retired.get() {
            // A start that has failed waits for its tasks, and nobody is left to serve them.
            return pending.completer.done(Err(IoErrorKind::Other.into()));
        }
        let log = self.stream(stream);
        log.queued_blocks.set(log.queued_blocks.get() + pending.data_blocks());
        if pending.is_awaited() {
            log.ripe.set(true);
        }
        log.queue.borrow_mut().push_back(pending);
        if self.is_due(log) || self.begins_gathering(log) {
            log.work.wake_all();
        }
    }

    /// Whether another append of a stream should start: at once if none is in flight, else when
    /// enough has gathered to be worth a header of its own.
    fn is_due(&self, log: &StreamLog) -> bool {
        if !log.ripe.get() && !self.retired.get() {
            return log.queued_blocks.get() >= GATHERED_BLOCKS;
        }
        !log.queue.borrow().is_empty()
            && (log.queued_blocks.get() >= APPEND_COALESCE_BLOCKS
                || (log.inflight.is_zero() && !self.is_held(log)))
    }

    /// Whether populations are queued alone, and nobody minds the time yet.
    fn begins_gathering(&self, log: &StreamLog) -> bool {
        !log.ripe.get() && !log.gathering.get() && !log.queue.borrow().is_empty()
    }

    /// Lets populations gather no longer: somebody asks for what is among them.
    pub(crate) fn ripen(&self) {
        for log in &self.streams {
            log.ripen();
        }
    }

    /// Whether an append waits for the member flush under way, because as many clients as it has
    /// entries, or more, will be back when that ends: groups of synchronous writers, each with an
    /// append and a flush of its own, so become one. An append waits for one flush at the most.
    fn is_held(&self, log: &StreamLog) -> bool {
        if !log.stream.is_dirty() || (self.flush_waiters.get() as usize) < log.queue.borrow().len()
        {
            return false;
        }
        if log.held_until.get().is_none() {
            let markers = self.flushes.borrow().iter().map(flush::MemberFlush::marker).max();
            log.held_until.set(markers.filter(|&marker| marker > 0));
        }
        log.held_until.get().is_some_and(|marker| self.flushed.get() < marker)
    }

    /// Appends one entry; resolves once it is published.
    pub(crate) fn append(&self, stream: Stream, entry: Entry, data: Option<Data>) -> Io {
        let (completer, io) = io::pair();
        let pending = Pending::new(entry, data, completer);
        self.enqueue(stream, pending);
        io
    }

    /// Whether nothing that has a sequence is on its way.
    fn is_quiet(&self) -> bool {
        self.inflight.borrow().is_empty()
    }

    /// Whether a set is still being filled or waits for its footer.
    pub(crate) fn closing_count(&self) -> usize {
        self.closing.borrow().len()
    }

    /// Whether anything appended is not covered by a flush.
    pub(crate) fn has_volatile(&self) -> bool {
        self.flushed.get() < self.appended.get()
    }

    /// Whether the log takes nothing any more.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.get()
    }

    /// Ends the stream workers once their queues are empty.
    pub(crate) fn retire(&self) {
        self.retired.set(true);
        self.wake_all();
    }
}

impl Core {
    /// Waits until nothing is queued or in flight in a stream.
    ///
    /// # Errors
    /// If the pool has latched.
    pub(crate) async fn until_idle(&self, stream: Stream) -> Result<()> {
        let log = self.log.stream(stream);
        let idle = || log.queue.borrow().is_empty() && log.inflight.is_zero();
        self.log.progress.until(|| idle() || self.latched.get()).await;
        self.check_latch()
    }

    /// Waits until every append that has a sequence up to this one is published or has failed.
    ///
    /// # Errors
    /// If the pool has latched.
    pub(crate) async fn until_published(&self, sequence: Sequence) -> Result<()> {
        let published = || self.log.watermark() >= sequence;
        self.log.progress.until(|| published() || self.latched.get()).await;
        self.check_latch()
    }

    /// Starts the workers of every stream.
    pub(crate) fn start_log(self: &Rc<Self>) {
        for index in 0..self.log.streams.len() {
            for _ in 0..APPENDS_INFLIGHT_MAX {
                self.spawn(worker(Rc::clone(self), index));
            }
        }
    }

    /// Data blocks that certainly fit one record with one entry.
    pub(crate) fn record_data_blocks(&self) -> u32 {
        let max = self.record_blocks_max;
        max - header_blocks_for(1, max as usize) as u32
    }

    /// Copies that a stream's new sets have.
    pub(crate) fn stream_copies(&self, stream: Stream) -> usize {
        let members = self.staying_count();
        let (dirty, clean) = {
            let superblock = self.superblock.borrow();
            let dirty = superblock.dirty_copies.max(superblock.dirty_copies_next);
            (usize::from(dirty), usize::from(superblock.clean_copies))
        };
        match stream {
            Stream::Dirty | Stream::Rewritten | Stream::DirtyMain => members.min(dirty),
            Stream::Probation | Stream::Main => members.min(clean),
            Stream::Facts => members,
            Stream::Metadata => members.min(dirty.max(2)),
        }
    }

    /// Opens a set for a stream, waiting for room if writers may wait. `None`: no room now.
    async fn open_set(self: &Rc<Self>, stream: Stream) -> Result<Option<Rc<OpenSet>>> {
        // While recovery or a stop is under way, writes may take what is else kept from them, but
        // not what facts and the last images need.
        let taken_as = || {
            let alone = self.is_recovering() || self.life.phase() >= Phase::Settled;
            if alone && stream.is_dirty() { Stream::Facts } else { stream }
        };
        let waits = match stream {
            Stream::Dirty | Stream::Rewritten | Stream::DirtyMain => {
                self.life.phase() != Phase::Restoring
            }
            Stream::Facts | Stream::Metadata => true,
            Stream::Main | Stream::Probation => false,
        };
        let allocate = || {
            let (copies, left) = (self.stream_copies(stream), self.left_to_start(stream));
            self.sets.borrow_mut().allocate(copies, taken_as(), &left)
        };
        // No root makes room while what is lost is being noted.
        let is_barren = || {
            let marks = self.losses.is_marking() && stream == Stream::Metadata;
            marks && !self.sets.borrow().can_be_had(self.stream_copies(stream))
        };
        let mut segments = allocate();
        if segments.is_none() && waits && !is_barren() {
            self.housekeeping.wake_all();
            add(&self.counters.throttled_writes, 1);
            self.room
                .until(|| {
                    segments = allocate();
                    segments.is_some() || self.latched.get() || is_barren()
                })
                .await;
        }
        self.check_latch()?;
        let Some(segments) = segments else { return Ok(None) };
        let counter = self.log.open_counter.get() + 1;
        self.log.open_counter.set(counter);
        if counter > self.sets.borrow().total_count() as u64 {
            planted::seen("segment reused");
        }
        let incarnation = Incarnation { start: self.log.start_number, counter };
        let id = segments[0];
        self.sets.borrow_mut().put(Set::opened(id, segments.clone(), incarnation, stream));
        self.note_room();
        // What was admitted meanwhile lets reclaim move more.
        self.reclaim_stuck.set(false);
        self.housekeeping.wake_all();
        Ok(Some(Rc::new(OpenSet {
            id,
            segments,
            incarnation,
            stream,
            next_block: Cell::new(1),
            entries: Cell::new(0),
            header_written: Cell::new(false),
            header_done: Cell::new(false),
            records: RefCell::default(),
            durable_records: Cell::new(0),
        })))
    }

    /// How short room for writes is, up to [`crate::throttle::FULL`].
    pub(crate) fn shortage(&self) -> u64 {
        let left = self.left_to_start(Stream::Dirty);
        let copies = self.stream_copies(Stream::Dirty);
        self.sets.borrow().shortage(copies, &left, self.log.watermark())
    }

    /// Whether room for writes lasts no longer than a root takes.
    pub(crate) fn needs_root(&self) -> bool {
        let left = self.left_to_start(Stream::Dirty);
        self.sets.borrow().needs_root(self.stream_copies(Stream::Dirty), &left)
    }

    /// Segments of each member that a stream leaves to the next start: one for each set of dirty data
    /// there that has no footer yet. What is in those it appends again, before it can make any room.
    pub(crate) fn left_to_start(&self, stream: Stream) -> [usize; PLACES_MAX] {
        let mut left = [0; PLACES_MAX];
        if stream == Stream::Metadata || self.life.phase() == Phase::Restoring {
            return left;
        }
        let (closing, sets) = (self.log.closing.borrow(), self.sets.borrow());
        let open = Stream::DIRTY.map(|stream| self.log.stream(stream).open.borrow().clone());
        let open = open.iter().flatten();
        for set in closing.iter().chain(open).filter(|set| set.stream.is_dirty()) {
            set.segments.iter().for_each(|&segment| left[sets.member_of(segment)] += 1);
        }
        left
    }

    /// Tells whoever waits for an entry how it ended.
    fn finish_pending(&self, item: Pending, result: std::result::Result<(), IoError>) {
        if let Some(population) = &item.population
            && population.end_part()
        {
            self.end_population(population);
        }
        if let Entry { kind: EntryKind::CleanFact, from: Some(from), state: Some(state), .. } =
            item.entry
        {
            self.release_unproven(from, state);
        }
        let Entry { kind, volume, block, count, .. } = item.entry;
        // What only members held that are gone is never found.
        if item.written && result.is_err() && self.latched.get() && kind.names_blocks() {
            self.doubts.note(volume, block, count, kind.supersedes());
        }
        item.completer.done(result);
    }

    /// Fails everything that is queued.
    fn refuse(&self, log: &StreamLog, kind: IoErrorKind) {
        log.queued_blocks.set(0);
        log.ripe.set(false);
        let queue = std::mem::take(&mut *log.queue.borrow_mut());
        for pending in queue {
            self.finish_pending(pending, Err(kind.into()));
        }
        self.log.progress.wake_all();
    }

    /// Writes a record to all copies; publishes and acknowledges it.
    async fn write_batch(&self, batch: Batch) {
        let (measured, began) = (self.way_of(&batch), self.rt.now());
        let way = measured.unwrap_or(Way::ByFlush);
        let Batch { set, index, place, sequence, parts, header, pending, loss } = batch;
        let mut writes: Vec<(usize, Io)> = Vec::with_capacity(3 * set.segments.len());
        let (_, offset) = self.sets.borrow().split(place.header);
        for (member, segment) in self.places_of(&set.segments) {
            if header {
                let block = self.segment_header(&set, segment, member);
                let (device, at) = self.place(segment, 0);
                writes.push((member, device.device.write(at, block)));
            }
            let (device, mut at) = self.place(segment, offset);
            for part in &parts {
                let write = match way {
                    Way::AtOnce if !planted::is(Bug::DurableAppendVolatile) => {
                        device.device.write_durable(at, part.clone())
                    }
                    Way::AtOnce | Way::ByFlush => device.device.write(at, part.clone()),
                };
                writes.push((member, write));
                at += part.len() as u64;
            }
        }
        if header {
            let bytes = BLOCK_BYTES * set.segments.len() as u64;
            add(&self.counters.ssd_header_bytes, bytes);
        }
        let mut result = self.await_writes(&set, writes, way, loss).await;
        let is_void = || self.losses.any_since(loss) && !self.latched.get();
        if header {
            set.header_done.set(result.is_ok());
            self.log.progress.wake_all();
        } else if !set.header_done.get() {
            let over = || self.latched.get() || self.is_stray(set.id) || is_void();
            self.log.progress.until(|| set.header_done.get() || over()).await;
            if !set.header_done.get() {
                result = Err(IoErrorKind::Other.into());
            }
        }
        self.note_append(parts.iter().map(|part| part.len() as u64).sum());
        self.log.inflight.borrow_mut().remove(&sequence.0);
        if !self.latched.get() {
            set.records.borrow_mut()[index].marker = Some(self.log.appended.get());
        }
        // Nothing may be lost with its members, and still nobody has it.
        let is_left = || self.is_stray(set.id) && !self.latched.get();
        if (is_void() || is_left()) && !planted::is(Bug::InFlightKept) {
            return self.hand_back(set.stream, place, &parts, pending);
        }
        if result.is_ok() {
            if let Some(way) = measured.filter(|_| !self.losses.any_since(loss)) {
                self.log.ways.note_append(way, self.rt.now() - began);
            }
            if way == Way::AtOnce {
                self.note_durable_append();
            }
            if let Some(set) = self.sets.borrow_mut().get_mut(set.id) {
                set.last_sequence = set.last_sequence.max(sequence);
            }
            for item in &pending {
                let voided = item.population.as_ref().is_some_and(|p| !p.is_valid());
                if voided && !planted::is(Bug::PopulationAfterWrite) {
                    // It is in the log all the same: whoever writes around the log must void it.
                    add(&self.counters.populate_voided, 1);
                    self.note_drop(item.entry.volume, item.entry.block);
                    continue;
                }
                self.apply(&item.entry, place, false);
                self.pin_provisional(&item.entry, place);
            }
        }
        for mut item in pending {
            item.written = true;
            self.finish_pending(item, result);
        }
        self.log.progress.wake_all();
    }

    /// A provisional entry is mapped by its writer only once the origin has the data; until then
    /// its set must stay.
    fn pin_provisional(&self, entry: &Entry, place: RecordPlace) {
        if entry.kind == EntryKind::Provisional {
            self.sets.borrow_mut().pin(data_location(place, entry));
        }
    }

    /// Counts an append as completed: a flush that begins from now on covers it.
    fn note_append(&self, bytes: u64) {
        self.log.appended.set(self.log.appended.get() + 1);
        add(&self.log.bytes_since_flush, bytes);
        add(&self.log.bytes_since_lap, bytes);
        if self.log.bytes_since_flush.get() >= self.tuning.flush_bytes {
            self.housekeeping.wake_all();
        }
    }
}

/// Builds and writes records of one stream, one at a time; several run side by side.
async fn worker(core: Rc<Core>, index: usize) {
    let log = &core.log.streams[index];
    loop {
        let due = || {
            core.log.is_due(log)
                || core.log.retired.get()
                || (core.latched.get() && !log.queue.borrow().is_empty())
        };
        log.work.until(|| due() || core.log.begins_gathering(log)).await;
        if !due() {
            log.gathering.set(true);
            log.work.until_or(due, core.rt.sleep(GATHERING_SPAN)).await;
            log.gathering.set(false);
            if !due() {
                log.ripen();
            }
        }
        if core.log.retired.get() && log.queue.borrow().is_empty() {
            return;
        }
        let built = {
            let _builder = log.builder.lock().await;
            if !core.log.is_due(log) && !core.latched.get() {
                continue;
            }
            let built = match core.check_latch() {
                Ok(()) => core.next_batch(log).await,
                Err(error) => Err(error),
            };
            built.map(|batch| batch.map(|batch| (batch, log.inflight.guard())))
        };
        match built {
            Ok(Some((batch, counted))) => {
                core.write_batch(batch).await;
                drop(counted);
                log.work.wake_all();
                core.log.progress.wake_all();
                // Who was just answered comes first: a FLUSH may follow, or the next write.
                yield_once().await;
            }
            Ok(None) => core.refuse(log, IoErrorKind::NoSpace),
            Err(_) => core.refuse(log, IoErrorKind::Other),
        }
    }
}

/// An error of a log append, for whoever asked for it.
pub(crate) fn append_error(what: &str, error: IoError) -> Error {
    Error::io(what, error)
}

/// An entry for whole blocks.
pub(crate) fn new_entry(kind: EntryKind, volume: VolumeId, block: u64, count: u32) -> Entry {
    Entry {
        kind,
        state: None,
        sectors: SECTORS_ALL,
        drop: false,
        volume,
        block,
        count,
        data: NO_DATA,
        from: None,
        extra: 0,
    }
}

/// Where an entry's data starts within the log, given where its record stands.
pub(crate) fn data_location(place: RecordPlace, entry: &Entry) -> Location {
    Location(place.header.0 + u64::from(place.header_blocks) + u64::from(entry.data))
}

//! What a client holds: one volume, and requests at any 512 B offset.
//!
//! A request is checked here once, cut at stripe borders into pieces of one shard each, and its
//! pieces go through [`crate::read`], [`crate::write`] and [`crate::direct`].

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_device::{BlockDevice, Buf, Data, LocalBoxFuture, Nanos, Runtime};

use crate::advised::Advised;
use crate::bypass::{BypassCounters, Kind, Reason, Way};
use crate::core::{Core, STRIPE_BLOCKS};
use crate::count::Count;
use crate::counters::{VolumeCounters, add};
use crate::destage::{DestageWait, Elevator};
use crate::error::{Error, ErrorKind, Result};
use crate::flush::{Heard, Writers};
use crate::format::{CUTOFF_NEVER, Mode, SequentialWhen, VolumeSettings};
use crate::ids::{BLOCK_BYTES, SECTOR_BYTES, SegmentId, VolumeId};
use crate::limits::{
    PREFETCH_BYTES_MAX, REQUEST_BYTES_MAX, TRIM_STRIPES_MAX, ZERO_DIRECT_BYTES_MIN,
};
use crate::log::Habit;
use crate::origin::{Origin, OriginTrouble};
use crate::planted::{self, Bug};
use crate::policy::{Access, Thresholds, Worth};
use crate::protect::Urgent;
use crate::read::{Located, Parts};
use crate::sequential::Streams;
use crate::share::InService;
use crate::space::{Claims, Share};
use crate::status::Extent;
use crate::throttle::Flow;
use crate::tuning::Tuning;
use crate::wait::{TaskMutex, yield_once};
use crate::work::InFlight;

/// A volume whose origin is attached.
pub(crate) struct VolumeState {
    pub id: VolumeId,
    pub name: String,
    /// Bytes that a client can address; it may grow. Other reactors look at it, and at nothing else.
    pub size: Arc<AtomicU64>,
    /// Unit of population, in blocks.
    pub cache_block: Cell<u64>,
    pub mode: Cell<Mode>,
    pub settings: Cell<VolumeSettings>,
    /// What of them and of the mode says what is brought in.
    pub thresholds: Cell<Thresholds>,
    /// Bytes of a stream of reads, and of one of writes, behind which nothing is cached any more.
    pub cutoff_bytes: [Cell<u64>; 2],
    /// Whether write-back with one dirty copy was agreed to.
    pub accept_single_copy: Cell<bool>,
    pub origin: Origin,
    /// Counts the times that some of it was lost with a member in use.
    pub losses: Cell<u64>,
    /// The origin's notice that told of the last time.
    pub loss_notice: Cell<u64>,
    /// What the superblocks say: dirty records may exist.
    pub may_be_dirty: Cell<bool>,
    /// Held while `may_be_dirty` is made to agree with the superblocks.
    pub flag_lock: TaskMutex,
    /// How often it was looked since its last logged write whether it is to be noted as clean.
    pub clean_looks: Cell<u32>,
    /// Logged writes between their look at `may_be_dirty` and their publication.
    pub logging: Count,
    pub last_request: Cell<Nanos>,
    pub elevator: Elevator,
    /// What is destaged before all else.
    pub urgent: Urgent,
    /// How many wait for everything to be destaged.
    pub drain: Count,
    /// Client requests under way, and rests of misses.
    pub requests: Count,
    /// Tasks that read the rest of a cache block.
    pub rests: Count,
    /// Set while it is being removed, and from then on if that succeeds: no request is begun.
    pub leaving: Cell<bool>,
    /// Set once it has been removed.
    pub gone: Cell<bool>,
    pub writers: Writers,
    pub counters: VolumeCounters,
    /// What went past the cache.
    pub bypass: BypassCounters,
    /// Who watches it, for advice.
    pub advised: Advised,
    /// What it has in the log's queue.
    pub service: InService,
    /// Who reads it from front to back, and who writes it so.
    pub streams: [Streams; 2],
    /// Who waits for its space.
    pub claims: Claims,
    /// Its share of what writers get when room is short.
    pub flow: Rc<Flow>,
    /// Whether its clients flush what they write, write by write.
    pub habit: Habit,
}

impl VolumeState {
    /// Whole blocks; a tail shorter than a block is never cached.
    pub(crate) fn blocks(&self) -> u64 {
        self.size_bytes() / BLOCK_BYTES
    }

    /// Bytes that a client can address.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// See [`crate::growth`].
    pub(crate) fn set_size(&self, size_bytes: u64) {
        self.size.store(size_bytes, Ordering::Relaxed);
    }
}

/// Bytes of a stream of reads, and of one of writes, behind which nothing is cached any more, as set for
/// a volume, else for all of them.
pub(crate) fn cutoff_bytes(settings: &VolumeSettings, tuning: &Tuning) -> [u64; 2] {
    let cutoff = match (settings.sequential_cutoff_bytes, tuning.sequential_cutoff_bytes) {
        (0, 0) => CUTOFF_NEVER,
        (0, usual) => usual,
        (set, _) => set,
    };
    [cutoff, if settings.sequential_writes { cutoff } else { CUTOFF_NEVER }]
}

/// What a request of `len` bytes counts as that passes by, the last of `run` bytes that followed each other.
fn passing_as(run: u64, len: u64) -> Reason {
    if run > len { Reason::Sequential } else { Reason::Large }
}

/// A client's view of a volume. Its requests must be driven to their end; dropping one half way is
/// for a pool that is thrown away as a whole.
pub struct Volume {
    core: Rc<Core>,
    pub(crate) state: Rc<VolumeState>,
    pub(crate) heard: Heard,
    /// Its share of its volume's share.
    flow: Rc<Flow>,
}

/// A part of a request that lies in one shard, or in the uncached tail.
struct Piece {
    offset: u64,
    len: u64,
    tail: bool,
}

/// A read that another reactor does by itself. The set is pinned.
#[derive(Clone, Copy)]
pub(crate) struct Hit {
    /// Number of the cache device, as the pool was given them.
    pub device: usize,
    /// First byte there.
    pub at: u64,
    /// Number of the member that it is.
    member: usize,
    set: SegmentId,
    started: Nanos,
    /// What the watch of the member knows it by.
    turn: u8,
}

impl Volume {
    pub(crate) fn new(core: Rc<Core>, state: Rc<VolumeState>) -> Self {
        let heard = Heard::of(state.origin.notices.get());
        Self { core, state, heard, flow: Rc::default() }
    }

    /// Another client's view of the same volume.
    pub fn session(&self) -> Volume {
        Volume::new(Rc::clone(&self.core), Rc::clone(&self.state))
    }

    /// The runtime of the pool's reactor.
    pub(crate) fn runtime(&self) -> Rc<dyn Runtime> {
        Rc::clone(&self.core.rt)
    }

    pub(crate) fn core(&self) -> &Rc<Core> {
        &self.core
    }

    /// The volume's identity.
    pub fn id(&self) -> VolumeId {
        self.state.id
    }

    /// The volume's name.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// Bytes that a client can address.
    pub fn size_bytes(&self) -> u64 {
        self.state.size_bytes()
    }

    /// The size, for another reactor.
    pub(crate) fn shared_size(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.state.size)
    }

    /// How writes are handled now.
    pub fn mode(&self) -> Mode {
        self.state.mode.get()
    }

    /// Counts at the source, of all clients.
    pub fn counters(&self) -> &VolumeCounters {
        &self.state.counters
    }

    /// What went past the cache, of all clients.
    pub fn bypass(&self) -> &BypassCounters {
        &self.state.bypass
    }

    /// Blocks that the origin does not have yet.
    pub fn owed_blocks(&self) -> u64 {
        self.core.owed_by(self.state.id)
    }

    /// How long the oldest dirty data has been dirty; what a start has found counts from there on.
    pub fn dirty_for(&self) -> Option<Nanos> {
        let (core, now) = (&self.core, self.core.rt.now());
        core.oldest_owed(self.state.id).map(|since| now - since.max(core.opened))
    }

    /// What dirty data waits for before all of it is on its way to the origin; none if it is.
    pub fn destage_wait(&self) -> Option<DestageWait> {
        self.core.destage_wait(&self.state)
    }

    /// Blocks that are not known to be durable on the origin.
    pub fn unproven_blocks(&self) -> u64 {
        self.core.unproven_by(self.state.id)
    }

    /// What of its origin does not work, if it has not worked for some time.
    pub fn origin_trouble(&self) -> Option<OriginTrouble> {
        self.state.origin.trouble()
    }

    /// Blocks of which no cache device has a good copy, and that origins lack: reads fail until they are overwritten.
    pub fn lost_blocks(&self) -> u64 {
        self.core.lost.of(self.state.id)
    }

    fn refuse_if_stopping(&self) -> Result<()> {
        if self.core.is_stopping() {
            return Err(Error::new(ErrorKind::Stopping, "the pool is stopping"));
        }
        if self.state.leaving.get() {
            let what = format!("volume \"{}\" is being removed", self.state.name);
            return Err(Error::new(ErrorKind::Stopping, what));
        }
        Ok(())
    }

    /// Begins a request. Reads and writes do the same by themselves: a future more costs each a hundred
    /// instructions.
    pub(crate) async fn begin(&self) -> Result<InFlight<'_>> {
        let now = self.core.rt.now();
        if let Some(lease) = self.lease_awaited(now) {
            lease.await?;
        }
        self.begin_at(now)
    }

    /// What to wait for before a request begins that came at `now`.
    #[inline]
    pub(crate) fn lease_awaited(
        &self,
        now: Nanos,
    ) -> Option<Pin<Box<dyn Future<Output = Result<()>> + '_>>> {
        if self.core.gate.was_open(now) { None } else { Some(Box::pin(self.core.await_lease())) }
    }

    #[inline]
    pub(crate) fn begin_at(&self, now: Nanos) -> Result<InFlight<'_>> {
        self.refuse_if_stopping()?;
        self.state.last_request.set(now);
        Ok(InFlight::new(&self.core, &self.state))
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        let end = offset.checked_add(len);
        let inside = end.is_some_and(|end| end <= self.state.size_bytes());
        let aligned = offset.is_multiple_of(SECTOR_BYTES) && len.is_multiple_of(SECTOR_BYTES);
        if inside && aligned && len > 0 {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::OutOfRange,
            format!(
                "request of {len} B at {offset} does not fit volume \"{}\" of {} B",
                self.state.name,
                self.state.size_bytes()
            ),
        )
        .hint("offsets and lengths are multiples of 512 B inside the volume"))
    }

    fn check_transfer(&self, offset: u64, len: u64) -> Result<()> {
        if len > REQUEST_BYTES_MAX {
            return Err(Error::new(ErrorKind::Invalid, format!("request of {len} B is too long"))
                .hint(format!("transfer at most {REQUEST_BYTES_MAX} B at a time")));
        }
        self.check(offset, len)
    }

    /// The pieces of a request, in order.
    fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = Piece> + use<> {
        let cached_end = self.state.blocks() * BLOCK_BYTES;
        let end = offset + len;
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let tail = at >= cached_end;
            let border = if tail {
                end
            } else {
                let stripe = STRIPE_BLOCKS * BLOCK_BYTES;
                ((at / stripe + 1) * stripe).min(cached_end)
            };
            let piece = Piece { offset: at, len: border.min(end) - at, tail };
            at += piece.len;
            Some(piece)
        })
    }

    fn count_read(&self, len: u64) {
        add(&self.core.counters.read_requests, 1);
        add(&self.core.counters.read_bytes, len);
        add(&self.state.counters.read_requests, 1);
        add(&self.state.counters.read_bytes, len);
    }

    /// Notes a read; why it only passes by, if it does.
    pub(crate) fn note_read(&self, offset: u64, len: u64) -> Option<Reason> {
        if self.state.advised.is_on() {
            self.advise(offset, len, Access::Read);
        }
        let [reads, _] = &self.state.streams;
        let [cutoff, _] = &self.state.cutoff_bytes;
        let run = reads.note(offset, len);
        let is_long = run > cutoff.get();
        if !is_long && !self.begins_piece(offset, len) {
            return None;
        }
        self.notes_stream(offset, len, is_long).then(|| passing_as(run, len))
    }

    /// The same of a write. One with FUA never passes by: it would have to wait for a flush of the origin.
    fn note_write(&self, offset: u64, len: u64, durable: bool) -> Option<Reason> {
        if self.state.advised.is_on() {
            self.advise(offset, len, Access::Write);
        }
        let [_, writes] = &self.state.streams;
        let [_, cutoff] = &self.state.cutoff_bytes;
        if cutoff.get() == CUTOFF_NEVER {
            return None;
        }
        let run = writes.note(offset, len);
        let passes = run > cutoff.get() && !durable && self.lets_streams_pass(false);
        passes.then(|| passing_as(run, len))
    }

    /// Whether a read may be of the beginning of a piece that is in the sample of streams, or not, as a whole.
    fn begins_piece(&self, offset: u64, len: u64) -> bool {
        let mask = (BLOCK_BYTES << self.state.sampled_shift()) - 1;
        offset & mask == 0 || len > mask - (offset & mask)
    }

    // Apart from what every hit goes through.
    #[cold]
    fn notes_stream(&self, offset: u64, len: u64, is_stream: bool) -> bool {
        // What is behind the end is refused later.
        let is_there = offset.checked_add(len).is_some_and(|end| end <= self.state.size_bytes());
        if len == 0 || !is_there || self.state.gone.get() {
            return false;
        }
        let (first, count) = crate::read::blocks_of(offset, len);
        let comes_again = self.core.note_stream(&self.state, first, count, is_stream);
        let passes = is_stream && self.lets_streams_pass(comes_again);
        if passes {
            self.core.note_passed(count);
        }
        passes
    }

    #[cold]
    fn lets_streams_pass(&self, comes_again: bool) -> bool {
        match self.state.settings.get().sequential_when {
            SequentialWhen::Auto => !comes_again,
            SequentialWhen::Always => true,
            SequentialWhen::Full => self.core.sets.borrow().is_full(),
        }
    }

    /// Fills `buf` from byte `offset`. The buffer comes back whatever the result; after an error
    /// its content is unspecified.
    // No future of its own: to copy the inner one costs every read 800 instructions.
    pub fn read(&self, offset: u64, buf: Buf) -> impl Future<Output = (Buf, Result<()>)> + '_ {
        let passing = self.note_read(offset, buf.len() as u64);
        self.read_noted(offset, buf, passing)
    }

    /// The same for a read that was noted before.
    pub(crate) async fn read_noted(
        &self,
        offset: u64,
        buf: Buf,
        passing: Option<Reason>,
    ) -> (Buf, Result<()>) {
        let len = buf.len() as u64;
        if let Err(error) = self.check_transfer(offset, len) {
            return (buf, Err(error));
        }
        let started = self.core.rt.now();
        if let Some(lease) = self.lease_awaited(started)
            && let Err(error) = lease.await
        {
            return (buf, Err(error));
        }
        let _request = match self.begin_at(started) {
            Ok(request) => request,
            Err(error) => return (buf, Err(error)),
        };
        self.count_read(len);
        let way = Way::new(Kind::Read, passing);
        let mut rest = Some(buf);
        let mut done = Parts::default();
        let mut result = Ok(());
        for piece in self.pieces(offset, len) {
            let Some(mut part) = rest.take() else { break };
            if (part.len() as u64) > piece.len {
                rest = Some(part.split_off(piece.len as usize));
            }
            let (part, outcome) = if piece.tail {
                self.core.read_tail(&self.state, &way, piece.offset, part).await
            } else {
                self.core.read_piece(&self.state, &way, piece.offset, part).await
            };
            done.push(part);
            result = outcome;
            if result.is_err() {
                break;
            }
        }
        if let Some(rest) = rest {
            done.push(rest);
        }
        self.core.read_latency.record(self.core.rt.now() - started);
        (done.join(), result)
    }

    /// Where the bytes of a read, which was noted, lie, if one run on a cache device has them all: for
    /// a client whose reactor reads the device by itself. To be given back by [`Volume::release`].
    pub(crate) fn locate(&self, offset: u64, len: u64, passing: bool) -> Option<Hit> {
        let core = &self.core;
        let started = core.rt.now();
        let open = !core.is_stopping() && !self.state.leaving.get() && core.gate.was_open(started);
        let fits = open && self.check_transfer(offset, len).is_ok();
        let piece = self.pieces(offset, if fits { len } else { 0 }).next()?;
        if piece.len != len || piece.tail {
            return None;
        }
        let Located { member, device, at, set } = core.locate(&self.state, offset, len, passing)?;
        self.state.last_request.set(started);
        self.count_read(len);
        let turn = core.members[member].watched.begin();
        planted::seen("read by another reactor");
        if planted::is(Bug::RemoteHitUnpinned) {
            core.unpin(set);
        }
        Some(Hit { device, at, member, set, started, turn })
    }

    /// Ends what [`Volume::locate`] began.
    pub(crate) fn release(&self, hit: &Hit) {
        let member = &self.core.members[hit.member];
        member.queue.leave();
        member.watched.end(hit.turn);
        if !planted::is(Bug::RemoteHitUnpinned) {
            self.core.unpin(hit.set);
        }
        let span = self.core.rt.now() - hit.started;
        self.core.read_latency.record(span);
        if member.spans.is_due() {
            member.spans.record(span);
        }
    }

    /// Writes `data` at byte `offset`; with `durable` (FUA) it survives a power cut once this
    /// returns.
    ///
    /// # Errors
    /// Afterwards each sector holds its old or its new content.
    pub async fn write(&self, offset: u64, data: Data, durable: bool) -> Result<()> {
        let len = data.len() as u64;
        self.check_transfer(offset, len)?;
        let started = self.core.rt.now();
        if let Some(lease) = self.lease_awaited(started) {
            lease.await?;
        }
        let _request = self.begin_at(started)?;
        let before = self.witnessed();
        add(&self.core.counters.write_requests, 1);
        add(&self.core.counters.write_bytes, len);
        add(&self.state.counters.write_requests, 1);
        add(&self.state.counters.write_bytes, len);
        let passing = self.note_write(offset, len, durable);
        let way = Way::new(Kind::Write, passing);
        for piece in self.pieces(offset, len) {
            let start = (piece.offset - offset) as usize;
            let part = data.slice(start..start + piece.len as usize);
            if piece.tail {
                self.core.write_tail(&self.state, &way, &self.flow, piece.offset, part).await?;
            } else {
                self.core.write_piece(&self.state, &way, &self.flow, piece.offset, part).await?;
            }
        }
        if durable {
            self.make_durable(before).await?;
        }
        self.end_change(before);
        if way.passes() {
            let counters = &self.core.counters;
            add(&counters.write_stream_requests, 1);
            add(&counters.write_stream_past_requests, u64::from(way.went_past()));
        }
        self.core.write_latency.record(self.core.rt.now() - started);
        Ok(())
    }

    /// The range's content is no longer needed. It reads as before or as zeroes.
    ///
    /// # Errors
    /// On invalid ranges and failing devices.
    pub async fn trim(&self, offset: u64, len: u64, durable: bool) -> Result<()> {
        self.check(offset, len)?;
        let _request = self.begin().await?;
        let before = self.witnessed();
        add(&self.core.counters.trim_requests, 1);
        let pieces = self.pieces(offset, len).filter(|piece| !piece.tail);
        for (number, piece) in (1_u64..).zip(pieces) {
            self.core.trim_piece(&self.state, piece.offset, piece.len).await?;
            if number.is_multiple_of(TRIM_STRIPES_MAX) {
                // Where nothing is cached, and the origin is not told, nothing else is waited for.
                yield_once().await;
            }
        }
        if durable {
            self.make_durable(before).await?;
        }
        self.end_change(before);
        Ok(())
    }

    /// The range reads as zeroes afterwards.
    ///
    /// # Errors
    /// Afterwards each sector holds its old content or zeroes.
    pub async fn write_zeroes(&self, offset: u64, len: u64, durable: bool) -> Result<()> {
        self.check(offset, len)?;
        let started = self.core.rt.now();
        let _request = self.begin().await?;
        let before = self.witnessed();
        add(&self.core.counters.zero_requests, 1);
        let way = Way::new(Kind::Write, None);
        for piece in self.pieces(offset, len) {
            if piece.tail {
                let zeroes = Buf::zeroed(piece.len as usize).freeze();
                self.core.write_tail(&self.state, &way, &self.flow, piece.offset, zeroes).await?;
            } else {
                self.core.zero_piece(&self.state, &way, piece.offset, piece.len, len).await?;
            }
        }
        if durable {
            self.make_durable(before).await?;
        }
        self.end_change(before);
        self.core.write_latency.record(self.core.rt.now() - started);
        Ok(())
    }

    /// The same, but only if that is quicker than writing as many zero bytes: as one entry of the
    /// log. [`ErrorKind::Unsupported`] if not.
    ///
    /// # Errors
    /// As there.
    pub async fn write_zeroes_fast(&self, offset: u64, len: u64, durable: bool) -> Result<()> {
        if !self.mode().writes_back() || len > ZERO_DIRECT_BYTES_MIN {
            return Err(Error::new(ErrorKind::Unsupported, "these zeroes go to the origin"));
        }
        self.write_zeroes(offset, len, durable).await
    }

    /// Where the bytes of a range are, from its start on, without gaps; it is put into `extents`,
    /// which is emptied first. It may cover less than the range, never nothing. Nothing is read,
    /// and it does not count as an access.
    ///
    /// # Errors
    /// On invalid ranges, when the pool is stopping, and while another host may be using it.
    pub fn status(&self, offset: u64, len: u64, extents: &mut Vec<Extent>) -> Result<()> {
        extents.clear();
        self.check(offset, len)?;
        self.refuse_if_stopping()?;
        self.core.check_lease()?;
        self.core.status(&self.state, offset, len, extents);
        Ok(())
    }

    /// Brings the beginning of a range, at most [`PREFETCH_BYTES_MAX`], into the cache, as if it
    /// were read; what the cache holds already is not read.
    ///
    /// # Errors
    /// On invalid ranges, and if the origin cannot be read.
    pub async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len)?;
        let _request = self.begin().await?;
        add(&self.core.counters.prefetch_requests, 1);
        let len = len.min(PREFETCH_BYTES_MAX);
        for piece in self.pieces(offset, len).filter(|piece| !piece.tail) {
            self.core.prefetch_piece(&self.state, piece.offset, piece.len).await?;
        }
        Ok(())
    }

    /// Brings every dirty block to the origin and waits until that is durable there. It may be
    /// dropped before: what is under way is finished then, and the rest has time.
    ///
    /// # Errors
    /// If the origin or the pool fails.
    pub fn destage(&self) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let _request = self.begin().await?;
            self.core.drain(&self.state).await
        })
    }

    /// Makes it durable that nothing is dirty, if nothing is: what has only one copy of dirty data can then
    /// do without any of its members. To be driven to its end.
    ///
    /// # Errors
    /// If the superblocks cannot be written.
    pub fn note_clean(&self) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let _request = self.begin().await?;
            self.core.clear_may_be_dirty(&self.state).await
        })
    }

    /// Whether [`Volume::set_mode_agreed`] would take a mode.
    ///
    /// # Errors
    /// If it is not available, or not safe and that was not agreed to.
    pub fn check_mode(&self, mode: Mode, agrees: bool) -> Result<()> {
        let accepted = agrees || self.state.accept_single_copy.get();
        crate::superblock::check_mode(mode, self.core.dirty_copies(), accepted)?;
        crate::populate::check(self.settings().populate, mode)
    }

    /// What is set for it now.
    pub fn settings(&self) -> VolumeSettings {
        self.state.settings.get()
    }

    /// What became of what its reads have brought in.
    pub fn rereads(&self) -> Worth {
        self.core.reread.borrow().worth(self.state.id)
    }

    /// What became of what its streams of reads have read.
    pub fn streams(&self) -> Worth {
        self.core.streams.borrow().worth(self.state.id)
    }

    /// What it holds of the cache, and may hold.
    pub fn space(&self) -> Share {
        self.core.space_of(self.state.id)
    }

    /// Bytes of what a miss brings in.
    pub fn cache_block_bytes(&self) -> u32 {
        (self.state.cache_block.get() * BLOCK_BYTES) as u32
    }

    /// Whether [`Volume::set_with`] would take them.
    ///
    /// # Errors
    /// If they are out of range, or do not fit the mode.
    pub fn check_settings(&self, settings: &VolumeSettings, cache_block_bytes: u32) -> Result<()> {
        crate::populate::check_cache_block(cache_block_bytes)?;
        crate::populate::check(settings.populate, self.mode())?;
        self.core.check_space(Some(self.state.id), settings)
    }

    /// Changes what may be changed at any time. It is durable on every member when this returns.
    ///
    /// # Errors
    /// Those of [`Volume::check_settings`], and if the superblocks cannot be written.
    pub async fn set(&self, settings: VolumeSettings) -> Result<()> {
        self.set_with(settings, self.cache_block_bytes()).await
    }

    /// The same, and what a miss brings in from then on: what is cached stays.
    ///
    /// # Errors
    /// As there, and if that is not a power of two from 4 KiB to 4 MiB.
    pub fn set_with(
        &self,
        settings: VolumeSettings,
        cache_block_bytes: u32,
    ) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let _request = self.begin().await?;
            self.core.set_volume(&self.state, settings, cache_block_bytes).await
        })
    }

    /// Changes the mode; requests under way end in the old one.
    ///
    /// # Errors
    /// If the mode is not available or the superblocks cannot be written.
    pub async fn set_mode(&self, mode: Mode) -> Result<()> {
        self.set_mode_agreed(mode, false).await
    }

    /// The same; `agrees` says that what is written back may have one copy of dirty data, and die with its SSD.
    /// That stays agreed.
    ///
    /// # Errors
    /// Those of [`Volume::set_mode`], but for what is agreed.
    pub fn set_mode_agreed(&self, mode: Mode, agrees: bool) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let _request = self.begin().await?;
            self.core.set_mode(&self.state, mode, agrees).await
        })
    }
}

/// Whether a device can be the origin of a volume of `size_bytes`.
pub(crate) fn check_origin(name: &str, size_bytes: u64, device: &dyn BlockDevice) -> Result<()> {
    let found = device.geometry().size_bytes;
    if found >= size_bytes {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Refused,
        format!("the origin of \"{name}\" has {found} B, the volume {size_bytes} B"),
    )
    .hint(format!("make the origin at least {size_bytes} B again; nothing was written to it")))
}

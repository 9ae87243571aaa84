//! The origin of a volume: reads and writes at 512 B whatever its sectors, and its flushes.

mod apart;
mod joining;
mod standing;
mod zeroed;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::runtime::MILLISECOND;
use forebay_device::{BlockDevice, Buf, Data, IoError, Nanos, Runtime, Stripe};

use self::apart::Apart;
use self::joining::Joining;
pub use self::standing::{OriginTrouble, Standing, Way};
pub(crate) use self::zeroed::Zeroed;
use crate::core::STRIPE_BLOCKS;
use crate::destage::Pace;
use crate::format::State;
use crate::ids::{BLOCK_BYTES, Location, SECTOR_BYTES};
use crate::limits::{
    GRANULE_BLOCKS, ORIGIN_SILENT_SPAN, ORIGIN_STRIPE_BYTES_MAX, READ_SPARED_MAX,
    VOLATILE_STRIPES_MAX,
};
use crate::planted;
use crate::wait::{TaskMutex, WaitQueue};

/// Destaged or provisional blocks that the next good origin flush proves. If they have data, their
/// set is pinned until the clean fact is published: were it reused before, the fact could meet a
/// newer version of the block at the very same place. What has none is in [`Zeroed`] until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unproven {
    pub block: u64,
    pub count: u32,
    pub location: Location,
    /// `Written` or `ZeroWritten` by the elevator, `Provisional` by a client's write-through.
    pub state: State,
    /// Whether the mapping vanishes once proven (partial blocks and zero extents).
    pub drop: bool,
}

/// No flush proves what a granule returns: one that should have has failed, and the next one does not
/// cover what that may have lost. A cached copy could outlive the origin's, and be evicted later.
const DOUBTFUL: u64 = u64::MAX;

const _: () = assert!(STRIPE_BLOCKS / GRANULE_BLOCKS == u64::BITS as u64, "a bit for each granule");

/// The granules of a stripe that were written directly and that no flush has proven since, a bit for each.
#[derive(Clone, Copy, Default)]
struct Written {
    /// Those before the last flush began, and the value of `completed` after the last of them.
    before: u64,
    before_until: u64,
    /// Those since.
    since: u64,
    since_until: u64,
    /// Those that no flush proves ([`DOUBTFUL`]).
    doubtful: u64,
}

impl Written {
    fn all(&self) -> u64 {
        self.before | self.since | self.doubtful
    }

    /// Notes granules, written when `until` writes had completed, or in doubt; the last flush began at `began`.
    fn note(&mut self, granules: u64, until: u64, began: u64) {
        if until == DOUBTFUL {
            self.doubtful |= granules;
            return;
        }
        if self.since_until <= began {
            self.before |= std::mem::take(&mut self.since);
            self.before_until = self.before_until.max(self.since_until);
        }
        self.since |= granules;
        self.since_until = self.since_until.max(until);
    }

    /// A flush that began when `marker` writes had completed has succeeded. Whether anything is left.
    fn prove(&mut self, marker: u64) -> bool {
        if self.before_until <= marker {
            self.before = 0;
        }
        if self.since_until <= marker {
            self.since = 0;
        }
        self.all() != 0
    }
}

/// The granules of a stripe that some blocks lie in, a bit for each.
fn granules(stripe: u64, blocks: &Range<u64>) -> u64 {
    let first = stripe * STRIPE_BLOCKS;
    let start = blocks.start.max(first) - first;
    let end = blocks.end.min(first + STRIPE_BLOCKS).saturating_sub(first);
    if start >= end {
        return 0;
    }
    let (low, high) = (start / GRANULE_BLOCKS, end.div_ceil(GRANULE_BLOCKS));
    (u64::MAX >> (u64::BITS as u64 - (high - low))) << low
}

fn stripes(blocks: &Range<u64>) -> Range<u64> {
    blocks.start / STRIPE_BLOCKS..blocks.end.div_ceil(STRIPE_BLOCKS)
}

/// Time after the elevator's last write from which a read counts as undisturbed.
const SETTLED: Nanos = 50 * MILLISECOND;

/// When what is under way began. It holds no more than that, however long the oldest takes.
#[derive(Default)]
struct UnderWay {
    /// By number, which is their order.
    began: RefCell<BTreeMap<u64, Nanos>>,
    numbers: Cell<u64>,
}

impl UnderWay {
    /// One begins; its number.
    fn begin(&self, now: Nanos) -> u64 {
        let number = self.numbers.replace(self.numbers.get() + 1);
        self.began.borrow_mut().insert(number, now);
        number
    }

    fn end(&self, number: u64) {
        self.began.borrow_mut().remove(&number);
    }

    fn count(&self) -> u32 {
        self.began.borrow().len() as u32
    }

    fn oldest(&self) -> Option<Nanos> {
        self.oldest_since(0)
    }

    /// The oldest of those that began then, or later.
    fn oldest_since(&self, since: Nanos) -> Option<Nanos> {
        self.began.borrow().values().find(|began| **began >= since).copied()
    }
}

/// Who uses an origin at the moment: clients, whose reads are timed, and the elevator.
pub(crate) struct Traffic {
    rt: Rc<dyn Runtime>,
    /// Clients' reads.
    reads: UnderWay,
    /// What changes it: writes of clients and of the elevator, zeroes, discards.
    changes: UnderWay,
    /// When the last of these ended.
    changed: Cell<Nanos>,
    /// The elevator's writes under way.
    pub writes: Cell<usize>,
    /// When the last of them ended.
    pub wrote: Cell<Nanos>,
    /// The elevator's writes begun so far.
    pub writes_begun: Cell<u64>,
    pub pace: RefCell<Pace>,
    /// Whether writes wait for reads to end.
    pub held: Cell<bool>,
    /// Woken when a write of the elevator's ends, and a read while writes wait for that.
    pub moved: WaitQueue,
    /// Woken when a read ends.
    read_ended: WaitQueue,
}

impl Traffic {
    fn new(rt: Rc<dyn Runtime>, depth_max: usize) -> Self {
        Self {
            pace: RefCell::new(Pace::new(rt.now(), depth_max)),
            rt,
            reads: UnderWay::default(),
            changes: UnderWay::default(),
            changed: Cell::new(0),
            writes: Cell::new(0),
            wrote: Cell::new(0),
            writes_begun: Cell::new(0),
            held: Cell::new(false),
            moved: WaitQueue::default(),
            read_ended: WaitQueue::default(),
        }
    }

    /// When the oldest of the clients' reads under way began.
    pub(crate) fn oldest_read(&self) -> Option<Nanos> {
        self.reads.oldest()
    }

    /// The same of those for whose sake writes wait: an origin may not answer one read, and take everything else.
    pub(crate) fn oldest_spared_read(&self) -> Option<Nanos> {
        self.reads.oldest_since(self.rt.now().saturating_sub(READ_SPARED_MAX))
    }

    /// Since when it has been asked for a change, and has made none.
    fn unchanged_since(&self) -> Option<Nanos> {
        self.changes.oldest().map(|began| began.max(self.changed.get()))
    }

    fn begin_change(&self) -> Changing<'_> {
        Changing { traffic: self, number: self.changes.begin(self.rt.now()) }
    }

    /// Between two of the elevator's requests that keep disks busy for long: waits while a client's read has taken
    /// longer than most do without destaging, but no longer than that once more.
    async fn let_readers_by(&self) {
        let patience = self.pace.borrow().patience_beside();
        let Some(most) = patience else { return };
        let waits = || self.oldest_read().is_some_and(|began| self.rt.now() - began > most);
        if waits() {
            planted::seen("stripes wait for a read");
            self.read_ended.until_or(|| !waits(), self.rt.sleep(most)).await;
        }
    }

    fn begin_read(&self) -> Reading<'_> {
        let began = self.rt.now();
        let number = self.reads.begin(began);
        // What is left of a write still moves heads, and a short pause is seen by short reads alone.
        let settled = began.saturating_sub(self.wrote.get()) >= SETTLED;
        let alone = self.writes.get() == 0 && settled;
        Reading { traffic: self, number, began, alone, writes_begun: self.writes_begun.get() }
    }
}

/// A client's read under way.
struct Reading<'a> {
    traffic: &'a Traffic,
    number: u64,
    began: Nanos,
    alone: bool,
    writes_begun: u64,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let traffic = self.traffic;
        traffic.reads.end(self.number);
        let alone = self.alone && self.writes_begun == traffic.writes_begun.get();
        traffic.pace.borrow_mut().note_read(traffic.rt.now() - self.began, alone);
        traffic.read_ended.wake_all();
        if traffic.held.get() {
            traffic.moved.wake_all();
        }
    }
}

/// A change under way.
struct Changing<'a> {
    traffic: &'a Traffic,
    number: u64,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.traffic.changes.end(self.number);
        self.traffic.changed.set(self.traffic.rt.now());
    }
}

/// A volume's slow device.
pub(crate) struct Origin {
    pub device: Rc<dyn BlockDevice>,
    pub traffic: Traffic,
    standing: Standing,
    sector_bytes: u64,
    /// Blocks of an array's stripe, and of what one disk has of it; 0 if nothing is known.
    pub stripe_blocks: u64,
    pub chunk_blocks: u64,
    /// Whether it has parity on disks that turn.
    pub parity: bool,
    apart: Apart,
    /// For streams of writes, if it has parity.
    joining: Option<Joining>,
    /// Writes of any kind that have completed.
    pub completed: Cell<u64>,
    /// Value of `completed` that the last good flush covers.
    pub flushed: Cell<u64>,
    /// Value of `completed` after the last write that a client made directly.
    pub direct: Cell<u64>,
    /// Good flushes cannot bring back direct writes lost by a bad one; counts the bad ones.
    pub failures: Cell<u64>,
    /// What every client has to be told of by a FLUSH that fails: each bad flush, and once more the
    /// end of each direct write that it met on its way. Whoever is told before that end has not been
    /// told of that write.
    pub notices: Cell<u64>,
    /// When there was the last of them.
    pub noticed_at: Cell<Nanos>,
    /// What was written directly, by stripe. Nothing is populated from there before a flush, for the origin
    /// could still lose what it returns; after a flush that failed, never.
    volatile: RefCell<BTreeMap<u64, Written>>,
    /// Value of `completed` after a direct write for which the table had no room: until a flush
    /// covers it, everything counts as written directly.
    overflow: Cell<u64>,
    /// Value of `completed` when the last flush began.
    began: Cell<u64>,
    /// What a flush would prove, with the value of `completed` after its write.
    pub unproven: RefCell<Vec<(u64, Unproven)>>,
    /// The same of zeroes.
    pub zeroed: RefCell<Zeroed>,
    pub flush_lock: TaskMutex,
    /// Since when a flush is under way.
    pub flushing: Cell<Option<Nanos>>,
}

impl Origin {
    /// `depth_max` bounds the elevator's writes under way.
    pub(crate) fn new(device: Rc<dyn BlockDevice>, rt: Rc<dyn Runtime>, depth_max: usize) -> Self {
        let sector_bytes = u64::from(device.geometry().sector_bytes);
        let usable = |stripe: &Stripe| {
            let Stripe { bytes, chunk_bytes, .. } = *stripe;
            (1..=ORIGIN_STRIPE_BYTES_MAX).contains(&bytes)
                && (1..=bytes).contains(&chunk_bytes)
                && (bytes | chunk_bytes).is_multiple_of(BLOCK_BYTES)
        };
        let stripe = device.geometry().stripe.filter(usable);
        let blocks = |bytes: fn(&Stripe) -> u64| stripe.as_ref().map_or(0, bytes) / BLOCK_BYTES;
        let joining = |stripe: &Stripe| Joining::new(stripe.bytes);
        Self {
            device,
            traffic: Traffic::new(rt, depth_max),
            standing: Standing::default(),
            sector_bytes,
            stripe_blocks: blocks(|stripe| stripe.bytes),
            chunk_blocks: blocks(|stripe| stripe.chunk_bytes),
            parity: stripe.as_ref().is_some_and(|stripe| stripe.parity),
            apart: Apart::default(),
            joining: stripe.as_ref().filter(|stripe| stripe.parity).map(joining),
            completed: Cell::new(0),
            flushed: Cell::new(0),
            direct: Cell::new(0),
            failures: Cell::new(0),
            notices: Cell::new(0),
            noticed_at: Cell::new(0),
            volatile: RefCell::default(),
            overflow: Cell::new(0),
            began: Cell::new(0),
            unproven: RefCell::default(),
            zeroed: RefCell::default(),
            flush_lock: TaskMutex::default(),
            flushing: Cell::new(None),
        }
    }

    /// Whether anything written has not been flushed.
    pub(crate) fn is_volatile(&self) -> bool {
        self.flushed.get() < self.completed.get()
    }

    /// Whether it has been asked for a change or a flush, and has not answered for so long.
    pub(crate) fn is_silent(&self, now: Nanos, span: Nanos) -> bool {
        let asked = [self.traffic.unchanged_since(), self.flushing.get()];
        asked.into_iter().flatten().any(|since| now >= since + span)
    }

    /// What of it does not work, if it has not worked for some time.
    pub(crate) fn trouble(&self) -> Option<OriginTrouble> {
        let now = self.traffic.rt.now();
        let is_waited_for = |since: Nanos| now >= since + ORIGIN_SILENT_SPAN;
        let is_silent = self.is_silent(now, ORIGIN_SILENT_SPAN)
            || self.traffic.oldest_read().is_some_and(is_waited_for);
        if is_silent { Some(OriginTrouble::Silent) } else { self.standing.trouble(now) }
    }

    /// Whether the last write or flush has failed.
    pub(crate) fn refuses_writes(&self) -> bool {
        self.standing.writes.is_doubted() || self.standing.flushes.is_doubted()
    }

    /// Where to try whether reads work again, if that is due; the try is under way then, until
    /// [`Origin::probe`] has ended.
    pub(crate) fn begin_probe(&self) -> Option<u64> {
        let size = self.device.geometry().size_bytes;
        self.standing.begin_probe(self.traffic.rt.now(), size, self.sector_bytes)
    }

    /// Tries a read there.
    pub(crate) async fn probe(&self, offset: u64) {
        let outcome = self.device.read(offset, Buf::new(self.sector_bytes as usize)).await;
        self.standing.end_probe(&outcome.result, self.traffic.rt.now());
    }

    /// Notes how a flush has ended.
    pub(crate) fn note_flush(&self, result: &Result<(), IoError>) {
        self.standing.flushes.note(result, self.traffic.rt.now());
    }

    /// Notes how something has ended that changes it.
    fn note_write(&self, result: &Result<(), IoError>) {
        self.standing.writes.note(result, self.traffic.rt.now());
    }

    fn note_read(&self, offset: u64, result: &Result<(), IoError>) {
        self.standing.note_read(offset, result, self.traffic.rt.now());
    }

    /// Whether what some blocks return may still be lost in a power cut.
    pub(crate) fn may_lose(&self, blocks: Range<u64>) -> bool {
        let volatile = self.volatile.borrow();
        let is_written =
            |(stripe, written): (&u64, &Written)| written.all() & granules(*stripe, &blocks) != 0;
        self.flushed.get() < self.overflow.get() || volatile.range(stripes(&blocks)).any(is_written)
    }

    /// Notes that blocks were written directly; `failures` is from before that.
    pub(crate) fn note_direct(&self, blocks: Range<u64>, failures: u64) {
        let completed = self.completed.get();
        self.direct.set(completed);
        let until = if failures == self.failures.get() { completed } else { DOUBTFUL };
        let mut volatile = self.volatile.borrow_mut();
        for stripe in stripes(&blocks) {
            if volatile.len() < VOLATILE_STRIPES_MAX || volatile.contains_key(&stripe) {
                let written = volatile.entry(stripe).or_default();
                written.note(granules(stripe, &blocks), until, self.began.get());
            } else {
                self.overflow.set(until.max(self.overflow.get()));
            }
        }
    }

    /// Notes that a flush begins; what its success proves.
    pub(crate) fn begin_flush(&self) -> u64 {
        self.began.set(self.completed.get());
        self.began.get()
    }

    /// Has each client's next FLUSH fail.
    pub(crate) fn notice(&self, now: Nanos) {
        self.notices.set(self.notices.get() + 1);
        self.noticed_at.set(now);
    }

    /// Whether there was the last of these notices in the `span` before `now`, or since then.
    pub(crate) fn was_noticed(&self, now: Nanos, span: Nanos) -> bool {
        now.saturating_sub(self.noticed_at.get()) < span
    }

    /// Notes a failed flush: what was written directly since the last good one may be lost for good,
    /// although the origin still returns it.
    pub(crate) fn note_failed(&self, now: Nanos) {
        self.failures.set(self.failures.get() + 1);
        // What was destaged is written again, and nobody's business.
        if self.flushed.get() < self.direct.get() {
            self.notice(now);
        }
        for written in self.volatile.borrow_mut().values_mut() {
            *written = Written { doubtful: written.all(), ..Written::default() };
        }
        if self.flushed.get() < self.overflow.get() {
            self.overflow.set(DOUBTFUL);
        }
    }

    /// Notes a good flush that began when `marker` writes had completed.
    pub(crate) fn note_flushed(&self, marker: u64) {
        self.flushed.set(marker);
        self.volatile.borrow_mut().retain(|_, written| written.prove(marker));
    }

    fn widened(&self, offset: u64, len: u64) -> (u64, u64) {
        let start = offset / self.sector_bytes * self.sector_bytes;
        let end = (offset + len).next_multiple_of(self.sector_bytes);
        // Behind the device's end nothing is left of it, which the device refuses.
        (start, end.min(self.device.geometry().size_bytes).max(start))
    }

    /// Whether a read can go straight into the client's buffer.
    pub(crate) fn is_aligned(&self, offset: u64, len: u64) -> bool {
        self.widened(offset, len) == (offset, offset + len)
    }

    /// Fills `buf` from `offset`, both multiples of 512, for a client.
    pub(crate) async fn read(&self, offset: u64, buf: Buf) -> (Buf, Result<(), IoError>) {
        debug_assert!(offset.is_multiple_of(SECTOR_BYTES));
        let _reading = self.traffic.begin_read();
        let len = buf.len() as u64;
        if self.is_aligned(offset, len) {
            let outcome = self.device.read(offset, buf).await;
            self.note_read(offset, &outcome.result);
            let buf = outcome.buf.unwrap_or_else(|| Buf::zeroed(len as usize));
            return (buf, outcome.result);
        }
        let (start, end) = self.widened(offset, len);
        let outcome = self.device.read(start, Buf::new((end - start) as usize)).await;
        self.note_read(offset, &outcome.result);
        let mut buf = buf;
        if let (Ok(()), Some(wide)) = (outcome.result, outcome.buf) {
            let at = (offset - start) as usize;
            buf.copy_from_slice(&wide[at..at + len as usize]);
        }
        (buf, outcome.result)
    }

    /// Fills `buf` from `offset`, both multiples of a block, for nobody who waits: it neither holds up the elevator nor tells
    /// of trouble.
    pub(crate) async fn read_ahead(&self, offset: u64, buf: Buf) -> Option<Data> {
        let (start, end) = self.widened(offset, buf.len() as u64);
        debug_assert_eq!(
            (start, end),
            (offset, offset + buf.len() as u64),
            "blocks are whole sectors"
        );
        let outcome = self.device.read(offset, buf).await;
        outcome.result.ok()?;
        outcome.buf.map(Buf::freeze)
    }

    /// Reads of it that clients wait for.
    pub(crate) fn clients(&self) -> u32 {
        self.traffic.reads.count()
    }

    /// Writes at 512 B granularity. The caller holds the range lock of the blocks, so nothing else
    /// writes the sectors around.
    pub(crate) async fn write(&self, offset: u64, data: Data) -> Result<(), IoError> {
        let _changing = self.traffic.begin_change();
        let len = data.len() as u64;
        let (start, end) = self.widened(offset, len);
        let _writing = self.apart.write(start..end).await;
        let result = if (start, end) == (offset, offset + len) {
            self.device.write(offset, data).done().await
        } else {
            self.write_widened(offset, data).await
        };
        self.note_write(&result);
        self.completed.set(self.completed.get() + 1);
        result
    }

    /// The same of what belongs to a stream of writes: an array with parity gets that in whole stripes.
    pub(crate) async fn write_passing(&self, offset: u64, data: Data) -> Result<(), IoError> {
        let end = offset + data.len() as u64;
        let is_whole = self.widened(offset, end - offset) == (offset, end);
        let Some(joining) = self.joining.as_ref().filter(|_| is_whole) else {
            return self.write(offset, data).await;
        };
        let _changing = self.traffic.begin_change();
        let _writing = self.apart.write(offset..end).await;
        let result = joining.write(&*self.device, &*self.traffic.rt, offset, data).await;
        self.note_write(&result);
        self.completed.set(self.completed.get() + 1);
        result
    }

    async fn write_widened(&self, offset: u64, data: Data) -> Result<(), IoError> {
        let (start, end) = self.widened(offset, data.len() as u64);
        let outcome = self.device.read(start, Buf::new((end - start) as usize)).await;
        outcome.result?;
        let Some(mut wide) = outcome.buf else {
            return Err(forebay_device::IoErrorKind::Other.into());
        };
        let at = (offset - start) as usize;
        wide[at..at + data.len()].copy_from_slice(&data);
        self.device.write(start, wide.freeze()).done().await
    }

    /// Reads `len` bytes, whole sectors, has them changed and writes them back, while no other write comes between.
    /// `None` and nothing written if one is on its way there, or if they cannot be read.
    pub(crate) async fn rewrite(
        &self,
        offset: u64,
        len: usize,
        change: impl FnOnce(&mut [u8]),
    ) -> Option<Result<(), IoError>> {
        debug_assert!(self.is_aligned(offset, len as u64));
        self.traffic.let_readers_by().await;
        let _rewriting = self.apart.rewrite(offset..offset + len as u64)?;
        let _changing = self.traffic.begin_change();
        let outcome = self.device.read(offset, Buf::new(len)).await;
        let mut buf = outcome.buf.filter(|_| outcome.result.is_ok())?;
        change(&mut buf);
        self.traffic.let_readers_by().await;
        let result = self.device.write(offset, buf.freeze()).done().await;
        self.note_write(&result);
        self.completed.set(self.completed.get() + 1);
        Some(result)
    }

    /// Zeroes a range of whole blocks.
    pub(crate) async fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let _changing = self.traffic.begin_change();
        let _writing = self.apart.write(offset..offset + len).await;
        let result = self.device.write_zeroes(offset, len).done().await;
        self.note_write(&result);
        self.completed.set(self.completed.get() + 1);
        result
    }

    /// Discards a range of whole blocks.
    pub(crate) async fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let _changing = self.traffic.begin_change();
        let _writing = self.apart.write(offset..offset + len).await;
        let result = self.device.discard(offset, len).done().await;
        self.note_write(&result);
        self.completed.set(self.completed.get() + 1);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_device::model::world::World;
    use forebay_device::{Completer, Geometry, Request};

    struct NoDevice;

    impl BlockDevice for NoDevice {
        fn geometry(&self) -> Geometry {
            Geometry {
                size_bytes: 1 << 40,
                sector_bytes: 512,
                discard: false,
                stripe: None,
                controller: None,
                durable_writes: false,
            }
        }

        fn submit(&self, request: Request, completer: Completer) {
            request.finish(Ok(()), completer);
        }
    }

    const STRIPES_MAX: u64 = VOLATILE_STRIPES_MAX as u64;

    fn origin() -> Origin {
        Origin::new(Rc::new(NoDevice), World::new(1), 8)
    }

    /// Writes a block of a granule.
    fn write(origin: &Origin, granule: u64, failures: u64) {
        origin.completed.set(origin.completed.get() + 1);
        let block = granule * GRANULE_BLOCKS + granule % GRANULE_BLOCKS;
        origin.note_direct(block..block + 1, failures);
    }

    fn may_lose(origin: &Origin, granule: u64) -> bool {
        origin.may_lose(granule * GRANULE_BLOCKS..(granule + 1) * GRANULE_BLOCKS)
    }

    fn flush(origin: &Origin) {
        let marker = origin.begin_flush();
        origin.note_flushed(marker);
    }

    #[test]
    fn behind_one_that_does_not_end_nothing_piles_up() {
        let under_way = UnderWay::default();
        let stuck = under_way.begin(3);
        for now in 4..1_000 {
            under_way.end(under_way.begin(now));
        }
        assert_eq!((under_way.oldest(), under_way.began.borrow().len()), (Some(3), 1));
        let next = under_way.begin(1_000);
        under_way.end(stuck);
        assert_eq!(under_way.oldest(), Some(1_000));
        under_way.end(next);
        assert_eq!(under_way.oldest(), None);
    }

    #[test]
    fn one_that_does_not_end_hides_no_other_one() {
        let under_way = UnderWay::default();
        under_way.begin(3);
        under_way.begin(1_000);
        assert_eq!(under_way.oldest(), Some(3));
        assert_eq!(under_way.oldest_since(4), Some(1_000));
        assert_eq!(under_way.oldest_since(1_001), None);
    }

    #[test]
    fn what_is_written_is_volatile_until_a_flush_that_began_after_it_and_nothing_beside_it() {
        let origin = origin();
        (10..75).for_each(|granule| write(&origin, granule, 0));
        let volatile = || (0..200).filter(|&it| may_lose(&origin, it)).collect::<Vec<_>>();
        assert_eq!(volatile(), (10..75).collect::<Vec<_>>());
        let marker = origin.begin_flush();
        // In the same stripe, and once more what the flush covers.
        [7, 20].into_iter().for_each(|granule| write(&origin, granule, 0));
        assert_eq!(volatile().len(), 66);
        origin.note_flushed(marker);
        assert_eq!(volatile(), [7, 20]);
        flush(&origin);
        assert!(volatile().is_empty() && origin.volatile.borrow().is_empty());
        origin.completed.set(origin.completed.get() + 1);
        origin.note_direct(GRANULE_BLOCKS - 1..2 * STRIPE_BLOCKS + 1, 0);
        assert_eq!(volatile(), (0..129).collect::<Vec<_>>(), "over several stripes");
    }

    #[test]
    fn a_full_table_counts_all_as_volatile_until_a_flush_covers_what_it_had_no_room_for() {
        let origin = origin();
        let stripe = |stripe: u64| stripe * STRIPE_BLOCKS / GRANULE_BLOCKS;
        (0..STRIPES_MAX).for_each(|it| write(&origin, stripe(it), 0));
        let beyond = stripe(STRIPES_MAX + 7);
        assert!(may_lose(&origin, stripe(7)) && !may_lose(&origin, beyond));
        let before = origin.begin_flush();
        // One that is in the table needs no room; the next one has none.
        write(&origin, stripe(7), 0);
        assert!(!may_lose(&origin, beyond));
        write(&origin, stripe(STRIPES_MAX + 1), 0);
        assert!(may_lose(&origin, stripe(STRIPES_MAX + 1)) && may_lose(&origin, beyond));
        origin.note_flushed(before);
        assert!(origin.volatile.borrow().len() == 1, "there is room again");
        assert!(may_lose(&origin, beyond), "written after the flush began");
        flush(&origin);
        assert!(!may_lose(&origin, beyond) && !may_lose(&origin, stripe(7)));
    }

    #[test]
    fn no_flush_proves_what_a_failed_one_may_have_lost() {
        let origin = origin();
        write(&origin, 3, 0);
        flush(&origin);
        write(&origin, 4, 0);
        origin.begin_flush();
        origin.note_failed(0);
        // On its way while the flush failed, and begun after that.
        write(&origin, 5, 0);
        write(&origin, 6, 1);
        write(&origin, 4, 1);
        flush(&origin);
        let volatile: Vec<_> = (3..8).filter(|&granule| may_lose(&origin, granule)).collect();
        assert_eq!(volatile, [4, 5]);
        (0..STRIPES_MAX).for_each(|stripe| write(&origin, (10 + stripe) * 64, 1));
        assert!(may_lose(&origin, 0));
        origin.begin_flush();
        origin.note_failed(0);
        flush(&origin);
        assert!(may_lose(&origin, 0), "nobody knows what it was");
    }

    /// Who asks may have waited for its lease since it came.
    #[test]
    fn a_notice_may_be_later_than_who_asks_for_it() {
        let origin = origin();
        origin.notice(100);
        assert!(origin.was_noticed(90, 50) && origin.was_noticed(149, 50));
        assert!(!origin.was_noticed(150, 50));
    }
}

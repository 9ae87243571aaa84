//! The origin of a volume: reads and writes at 512 B whatever its sectors, and its flushes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use forebay_device::runtime::MILLISECOND;
use forebay_device::{BlockDevice, Buf, Data, IoError, Nanos, Runtime, Stripe};

use crate::destage::Pace;
use crate::format::State;
use crate::ids::{BLOCK_BYTES, Location, SECTOR_BYTES};
use crate::limits::{ORIGIN_STRIPE_BYTES_MAX, VOLATILE_STRIPES_MAX};
use crate::wait::{TaskMutex, WaitQueue};

/// Destaged or provisional blocks that the next good origin flush proves. If they have data, their
/// set is pinned until the clean fact is published: were it reused before, the fact could meet a
/// newer version of the block at the very same place.
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

/// No flush proves what a stripe returns: one that should have has failed, and the next one does not
/// cover what that may have lost. A cached copy could outlive the origin's, and be evicted later.
const DOUBTFUL: u64 = u64::MAX;

/// Time after the elevator's last write from which a read counts as undisturbed.
const SETTLED: Nanos = 50 * MILLISECOND;

/// Who uses an origin at the moment: clients, whose reads are timed, and the elevator.
pub(crate) struct Traffic {
    rt: Rc<dyn Runtime>,
    /// When the reads under way began, oldest first; those that have ended are `None` and go once
    /// they are the oldest.
    reads: RefCell<VecDeque<Option<Nanos>>>,
    /// Reads that have left `reads` at its front.
    gone: Cell<u64>,
    /// The elevator's writes under way.
    pub writes: Cell<usize>,
    /// When the last of them ended, and when the last one began.
    pub wrote: Cell<Nanos>,
    pub began: Cell<Nanos>,
    /// The elevator's writes begun so far.
    pub writes_begun: Cell<u64>,
    pub pace: RefCell<Pace>,
    /// Whether writes wait for reads to end.
    pub held: Cell<bool>,
    /// Woken when a read or a write of the elevator's ends.
    pub moved: WaitQueue,
}

impl Traffic {
    fn new(rt: Rc<dyn Runtime>, depth_max: usize) -> Self {
        Self {
            pace: RefCell::new(Pace::new(rt.now(), depth_max)),
            rt,
            reads: RefCell::default(),
            gone: Cell::new(0),
            writes: Cell::new(0),
            wrote: Cell::new(0),
            began: Cell::new(0),
            writes_begun: Cell::new(0),
            held: Cell::new(false),
            moved: WaitQueue::default(),
        }
    }

    /// When the oldest of the clients' reads under way began.
    pub(crate) fn oldest_read(&self) -> Option<Nanos> {
        self.reads.borrow().front().copied().flatten()
    }

    fn begin_read(&self) -> Reading<'_> {
        let began = self.rt.now();
        let mut reads = self.reads.borrow_mut();
        reads.push_back(Some(began));
        let number = self.gone.get() + reads.len() as u64 - 1;
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
        let mut reads = traffic.reads.borrow_mut();
        reads[(self.number - traffic.gone.get()) as usize] = None;
        while let Some(None) = reads.front() {
            reads.pop_front();
            traffic.gone.set(traffic.gone.get() + 1);
        }
        drop(reads);
        let alone = self.alone && self.writes_begun == traffic.writes_begun.get();
        traffic.pace.borrow_mut().note_read(traffic.rt.now() - self.began, alone);
        if traffic.held.get() {
            traffic.moved.wake_all();
        }
    }
}

/// A volume's slow device.
pub(crate) struct Origin {
    pub device: Rc<dyn BlockDevice>,
    pub traffic: Traffic,
    sector_bytes: u64,
    /// Blocks of an array's stripe, and of what one disk has of it; 0 if nothing is known.
    pub stripe_blocks: u64,
    pub chunk_blocks: u64,
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
    /// Stripes written directly, with the value of `completed` after the last such write. Nothing
    /// is populated from them before a flush, for the origin could still lose what it returns; after
    /// a flush that failed, never ([`DOUBTFUL`]).
    pub volatile_stripes: RefCell<BTreeMap<u64, u64>>,
    /// Value of `completed` after a direct write for which the table had no room: until a flush
    /// covers it, every stripe counts as written directly.
    pub overflow: Cell<u64>,
    /// What a flush would prove, with the value of `completed` after its write.
    pub unproven: RefCell<Vec<(u64, Unproven)>>,
    pub flush_lock: TaskMutex,
    /// Since when a flush is under way.
    pub flushing: Cell<Option<Nanos>>,
}

impl Origin {
    /// `depth_max` bounds the elevator's writes under way.
    pub(crate) fn new(device: Rc<dyn BlockDevice>, rt: Rc<dyn Runtime>, depth_max: usize) -> Self {
        let sector_bytes = u64::from(device.geometry().sector_bytes);
        let usable = |stripe: &Stripe| {
            let Stripe { bytes, chunk_bytes } = *stripe;
            (1..=ORIGIN_STRIPE_BYTES_MAX).contains(&bytes)
                && (1..=bytes).contains(&chunk_bytes)
                && (bytes | chunk_bytes).is_multiple_of(BLOCK_BYTES)
        };
        let stripe = device.geometry().stripe.filter(usable);
        let blocks = |bytes: fn(&Stripe) -> u64| stripe.as_ref().map_or(0, bytes) / BLOCK_BYTES;
        Self {
            device,
            traffic: Traffic::new(rt, depth_max),
            sector_bytes,
            stripe_blocks: blocks(|stripe| stripe.bytes),
            chunk_blocks: blocks(|stripe| stripe.chunk_bytes),
            completed: Cell::new(0),
            flushed: Cell::new(0),
            direct: Cell::new(0),
            failures: Cell::new(0),
            notices: Cell::new(0),
            volatile_stripes: RefCell::default(),
            overflow: Cell::new(0),
            unproven: RefCell::default(),
            flush_lock: TaskMutex::default(),
            flushing: Cell::new(None),
        }
    }

    /// Whether anything written has not been flushed.
    pub(crate) fn is_volatile(&self) -> bool {
        self.flushed.get() < self.completed.get()
    }

    /// Whether it has been asked for something by the elevator, and has answered nothing for so long.
    pub(crate) fn is_silent(&self, now: Nanos, span: Nanos) -> bool {
        let traffic = &self.traffic;
        let silent = |since: Nanos| now >= since + span;
        let writes = traffic.writes.get() > 0;
        (writes && silent(traffic.wrote.get().max(traffic.began.get())))
            || self.flushing.get().is_some_and(silent)
    }

    /// Whether what a stripe returns may still be lost in a power cut.
    pub(crate) fn is_stripe_volatile(&self, stripe: u64) -> bool {
        self.flushed.get() < self.overflow.get()
            || self.volatile_stripes.borrow().contains_key(&stripe)
    }

    /// Notes that a stripe was written directly; `failures` is from before that.
    pub(crate) fn note_direct(&self, stripe: u64, failures: u64) {
        let completed = self.completed.get();
        self.direct.set(completed);
        let until = if failures == self.failures.get() { completed } else { DOUBTFUL };
        let mut stripes = self.volatile_stripes.borrow_mut();
        if stripes.len() < VOLATILE_STRIPES_MAX || stripes.contains_key(&stripe) {
            let known = stripes.entry(stripe).or_default();
            *known = until.max(*known);
        } else {
            self.overflow.set(until.max(self.overflow.get()));
        }
    }

    /// Notes a failed flush: what was written directly since the last good one may be lost for good,
    /// although the origin still returns it.
    pub(crate) fn note_failed(&self) {
        self.failures.set(self.failures.get() + 1);
        self.notices.set(self.notices.get() + 1);
        self.volatile_stripes.borrow_mut().values_mut().for_each(|until| *until = DOUBTFUL);
        if self.flushed.get() < self.overflow.get() {
            self.overflow.set(DOUBTFUL);
        }
    }

    /// Notes a good flush that began when `marker` writes had completed.
    pub(crate) fn note_flushed(&self, marker: u64) {
        self.flushed.set(marker);
        self.volatile_stripes.borrow_mut().retain(|_, completed| *completed > marker);
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
            let buf = outcome.buf.unwrap_or_else(|| Buf::zeroed(len as usize));
            return (buf, outcome.result);
        }
        let (start, end) = self.widened(offset, len);
        let outcome = self.device.read(start, Buf::new((end - start) as usize)).await;
        let mut buf = buf;
        if let (Ok(()), Some(wide)) = (outcome.result, outcome.buf) {
            let at = (offset - start) as usize;
            buf.copy_from_slice(&wide[at..at + len as usize]);
        }
        (buf, outcome.result)
    }

    /// Writes at 512 B granularity. The caller holds the range lock of the blocks, so nothing else
    /// writes the sectors around.
    pub(crate) async fn write(&self, offset: u64, data: Data) -> Result<(), IoError> {
        let len = data.len() as u64;
        let result = if self.is_aligned(offset, len) {
            self.device.write(offset, data).done().await
        } else {
            self.write_widened(offset, data).await
        };
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

    /// Zeroes a range of whole blocks.
    pub(crate) async fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let result = self.device.write_zeroes(offset, len).done().await;
        self.completed.set(self.completed.get() + 1);
        result
    }

    /// Discards a range of whole blocks.
    pub(crate) async fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let result = self.device.discard(offset, len).done().await;
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
            Geometry { size_bytes: 1 << 40, sector_bytes: 512, discard: false, stripe: None }
        }

        fn submit(&self, request: Request, completer: Completer) {
            request.finish(Ok(()), completer);
        }
    }

    #[test]
    fn a_full_table_of_volatile_stripes_counts_all_as_volatile_until_a_flush_covers_the_overflow() {
        let origin = Origin::new(Rc::new(NoDevice), World::new(1), 8);
        let stripes = VOLATILE_STRIPES_MAX as u64;
        let write = |stripe| {
            origin.completed.set(origin.completed.get() + 1);
            origin.note_direct(stripe, 0);
        };
        (0..stripes).for_each(write);
        assert!(origin.is_stripe_volatile(7) && !origin.is_stripe_volatile(stripes + 7));
        let before = origin.completed.get();
        // One that is in the table needs no room; the next one has none.
        write(7);
        assert!(!origin.is_stripe_volatile(stripes + 7));
        write(stripes + 1);
        assert!(origin.is_stripe_volatile(stripes + 1) && origin.is_stripe_volatile(stripes + 7));
        origin.note_flushed(before);
        assert!(origin.volatile_stripes.borrow().len() == 1, "there is room again");
        assert!(origin.is_stripe_volatile(stripes + 1), "written after the flush began");
        origin.note_flushed(origin.completed.get());
        assert!(!origin.is_stripe_volatile(stripes + 1) && !origin.is_stripe_volatile(7));
    }

    #[test]
    fn no_flush_proves_what_a_failed_one_may_have_lost() {
        let origin = Origin::new(Rc::new(NoDevice), World::new(1), 8);
        let write = |stripe, failures| {
            origin.completed.set(origin.completed.get() + 1);
            origin.note_direct(stripe, failures);
        };
        write(3, 0);
        origin.note_flushed(origin.completed.get());
        write(4, 0);
        origin.note_failed();
        // On its way while the flush failed, and begun after that.
        write(5, 0);
        write(6, 1);
        write(4, 1);
        origin.note_flushed(origin.completed.get());
        let volatile: Vec<_> = (3..8).filter(|&stripe| origin.is_stripe_volatile(stripe)).collect();
        assert_eq!(volatile, [4, 5]);
        (0..VOLATILE_STRIPES_MAX as u64).for_each(|stripe| write(10 + stripe, 1));
        assert!(origin.is_stripe_volatile(0));
        origin.note_failed();
        origin.note_flushed(origin.completed.get());
        assert!(origin.is_stripe_volatile(0), "nobody knows which stripe it was");
    }
}

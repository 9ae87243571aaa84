//! What all parts of a running pool share.
//!
//! Everything lives on one reactor; no borrow is held across an `.await`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use forebay_device::runtime::SECOND;
use forebay_device::{Gate, IoError, Nanos, Runtime};

use crate::bypass::BypassCounters;
use crate::client::Elsewhere;
use crate::count::Count;
use crate::counters::{Counters, Latency};
use crate::deadline::Deadline;
use crate::departure::Leave;
use crate::destage::Owed;
use crate::doubt::Doubts;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, EventKind, Subject};
use crate::format::{Superblock, VolumeRecord};
use crate::ids::{BLOCK_BYTES, DeviceId, Location, SegmentId, Sequence, VolumeId};
use crate::index::{Mapping, Shard, shard_of};
use crate::journal::Journal;
use crate::lease::Lease;
use crate::limits::STRIPE_BYTES;
use crate::lock::RangeLocks;
use crate::log::Log;
use crate::lost::Lost;
use crate::marks::Losses;
use crate::member::{Member, Members};
use crate::memory::IndexClaims;
use crate::phase::Life;
use crate::planted::{self, Bug};
use crate::policy::{Policy, Reread, Touches};
use crate::ram::Ram;
use crate::redundancy::Protection;
use crate::roots::Roots;
use crate::scrub::Scrub;
use crate::segment::{Set, SetTable};
use crate::share::Writing;
use crate::space::Space;
use crate::throttle::Throttle;
use crate::tuning::Tuning;
use crate::volume::VolumeState;
use crate::wait::{TaskMutex, WaitQueue};
use crate::wear::Wear;
use crate::witness::Witness;
use crate::work::Work;

/// Blocks of one stripe: the address space that hashes to one shard as a whole.
pub(crate) const STRIPE_BLOCKS: u64 = STRIPE_BYTES / BLOCK_BYTES;

/// One virtual shard and what orders requests in it.
#[derive(Default)]
pub(crate) struct ShardState {
    pub index: RefCell<Shard>,
    pub locks: RangeLocks,
    /// Stripes whose mappings were dropped without a durable fact, with a sequence after the drop.
    /// Until an image past it is named by a durable root, recovery may still find the old facts,
    /// so a direct write there needs a tombstone although nothing is cached (INV-8).
    pub dropped: RefCell<BTreeMap<(VolumeId, u64), Sequence>>,
}

/// Events kept in memory; older ones are dropped. Enough to see what led to a latch.
const EVENTS_MAX: usize = 256;

/// Time in which an event that recurs as long as its cause is there is not told again: people have read the
/// first one, and the others would push it out of every list.
const EVENT_RECURRENCE: Nanos = 600 * SECOND;

/// A running pool.
pub(crate) struct Core {
    pub rt: Rc<dyn Runtime>,
    pub tuning: Tuning,
    /// Those that the epoch of the start names, and those added since.
    pub members: Members,
    /// Woken when a member fails, when an epoch has begun, and when a root speaks for it.
    pub epoch_begun: WaitQueue,
    pub losses: Losses,
    pub roots: Roots,
    pub redundancy: Protection,
    pub leave: Leave,
    /// Requests of clients when a move in the background looked last.
    pub asked_before: Cell<u64>,
    /// Watches whether the cache devices answer.
    pub deadline: Rc<Deadline>,
    /// Until when this host may use members and origins.
    pub gate: Rc<Gate>,
    pub lease: Lease,
    /// Who reads cache devices on other reactors.
    pub elsewhere: Elsewhere,
    /// Places of devices that the pool was given, when it was opened and since.
    pub places_given: Cell<usize>,
    pub segment_bytes: u64,
    pub segment_blocks: u32,
    pub record_blocks_max: u32,
    pub shards: Vec<ShardState>,
    pub sets: RefCell<SetTable>,
    pub log: Log,
    pub volumes: RefCell<BTreeMap<VolumeId, Rc<VolumeState>>>,
    /// Blocks that need destaging, per volume and stripe: where the elevator finds work.
    pub owed: RefCell<BTreeMap<(VolumeId, u64), Owed>>,
    /// Blocks per volume that are destaged but not yet known to be durable on the origin.
    pub written: RefCell<BTreeMap<VolumeId, u64>>,
    pub lost: Lost,
    pub policy: RefCell<Box<dyn Policy>>,
    /// Accesses to cache blocks of volumes that want more than one of them.
    pub touches: RefCell<Touches>,
    /// Whether first reads are worth their write, of volumes that do not say.
    pub reread: RefCell<Reread>,
    /// The same of streams and their place.
    pub streams: RefCell<Reread>,
    pub wear: Wear,
    pub ram: RefCell<Ram>,
    /// Held while the size of the RAM tier is changed.
    pub resizing: TaskMutex,
    pub superblock: RefCell<Superblock>,
    /// Held while the superblock and the witness are rewritten.
    pub control: TaskMutex,
    /// Held while a volume is added or attached; an origin may take its time meanwhile.
    pub attaching: TaskMutex,
    pub witness: Rc<dyn Witness>,
    /// Whether the witness could not be written the last time.
    pub witness_lags: Cell<bool>,
    /// Whether the one that is there calls a volume clean that may be dirty: it is this machine's, and another one has had the pool
    /// since.
    pub witness_understates: Cell<bool>,
    /// Whether a person agreed, for this start, to what is lost with missing members.
    pub accepted: Cell<bool>,
    pub counters: Counters,
    /// What went past the cache.
    pub bypass: BypassCounters,
    pub read_latency: Latency,
    /// Of what was read from origins while somebody waited for it.
    pub origin_read_latency: Latency,
    pub write_latency: Latency,
    pub latched: Cell<bool>,
    pub doubts: Doubts,
    pub life: Life,
    pub work: Work,
    /// Woken when a request or a background task ends.
    pub quiet: WaitQueue,
    /// The minute of the day, if somebody tells it: here is no clock on the wall.
    pub minute_of_day: Cell<Option<u16>>,
    /// When it was opened.
    pub opened: Nanos,
    /// Woken when segments became free, or the chance of that changed.
    pub room: WaitQueue,
    /// Woken when there is something for reclaim or the checkpoint to do.
    pub housekeeping: WaitQueue,
    pub lap_lock: TaskMutex,
    /// Whether reclaim is due and found nothing that it may take: only destaging makes room then.
    pub reclaim_stuck: Cell<bool>,
    pub events: RefCell<std::collections::VecDeque<Event>>,
    /// Bytes that all shards occupy.
    pub index_bytes: Cell<u64>,
    /// Bound of `index_bytes`, by what the pool can hold.
    pub index_memory_max: Cell<u64>,
    pub index_claims: IndexClaims,
    /// Partial blocks in the side tables of all shards.
    pub partials: Cell<u64>,
    /// How many volumes write at present.
    pub writing: Writing,
    /// What each volume holds and may hold.
    pub space: Space,
    /// Sets whose dirty data is being moved.
    pub moving: Count,
    pub scrub: Scrub,
    /// When members were compared last.
    pub compared: Cell<Nanos>,
    /// What was told of the pool.
    pub journal: Journal,
    /// Whether what is read from a member is checked before a client sees it.
    pub verify_reads: Cell<bool>,
    /// Whether a start has left dirty data where one copy may be torn: then it is, whatever was asked for.
    pub cramped: Cell<bool>,
    /// Who holds writers back when room is short.
    pub throttle: Throttle,
}

impl Core {
    /// The shard of a block.
    pub(crate) fn shard(&self, volume: VolumeId, block: u64) -> &ShardState {
        let count = self.shards.len() as u32;
        &self.shards[shard_of(volume, block, count) as usize]
    }

    /// Whether the pool goes on writing and is not asked to stop.
    pub(crate) fn check_running(&self) -> Result<()> {
        self.check_latch()?;
        match self.is_stopping() {
            true => Err(Error::new(ErrorKind::Stopping, "the pool is stopping")),
            false => Ok(()),
        }
    }

    /// The error to give if the pool has latched.
    pub(crate) fn check_latch(&self) -> Result<()> {
        self.lease.check()?;
        if self.latched.get() {
            return Err(Error::new(
                ErrorKind::Io,
                "the pool has stopped writing after a device error",
            )
            .hint("see the events for the device; restart the daemon once it is mended"));
        }
        Ok(())
    }

    /// Stops all writing for good: a device failed in a way that leaves its content unknown.
    pub(crate) fn latch(&self, what: &str, error: IoError) {
        self.event(EventKind::Latched, format!("{what}: {error}; the pool stops writing"));
        self.stop_writing();
    }

    /// Nothing is appended any more, and nobody waits for it.
    pub(crate) fn stop_writing(&self) {
        self.latched.set(true);
        self.log.wake_all();
        self.room.wake_all();
        self.housekeeping.wake_all();
        self.throttle.wake();
        self.quiet.wake_all();
        self.epoch_begun.wake_all();
    }

    /// Notes an event of the pool.
    pub(crate) fn event(&self, kind: EventKind, what: String) {
        self.event_of(Subject::Pool, kind, what);
    }

    /// Notes an event of a member.
    pub(crate) fn member_event(&self, kind: EventKind, member: DeviceId, what: String) {
        self.event_of(Subject::Member(member), kind, what);
    }

    /// Notes an event of a volume.
    pub(crate) fn volume_event(&self, kind: EventKind, volume: &str, what: String) {
        self.event_of(Subject::Volume(volume.to_owned()), kind, what);
    }

    pub(crate) fn event_of(&self, subject: Subject, kind: EventKind, what: String) {
        if self.lease.is_lost() {
            // What fails without a lease says nothing of devices.
            return;
        }
        let mut events = self.events.borrow_mut();
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(Event { at: self.rt.now(), kind, subject, what });
    }

    /// Notes an event of a volume that may recur as often as something is tried again.
    pub(crate) fn recurring_event(&self, kind: EventKind, volume: &str, what: String) {
        let since = self.rt.now().saturating_sub(EVENT_RECURRENCE);
        let is_told = |event: &Event| event.at >= since && event.kind == kind && event.what == what;
        if !self.events.borrow().iter().any(is_told) {
            self.volume_event(kind, volume, what);
        }
    }

    /// A member's device and the byte offset of a block of a segment on it.
    pub(crate) fn place(&self, segment: SegmentId, block: u32) -> (&Member, u64) {
        let (member, place) = self.sets.borrow().place_of(segment);
        let (member, within) = (&self.members[member], u64::from(place) * self.segment_bytes);
        (member, member.segments_offset + within + u64::from(block) * BLOCK_BYTES)
    }

    /// Number of copies of the set that holds a location.
    pub(crate) fn copies(&self, location: Location) -> usize {
        let sets = self.sets.borrow();
        let (id, _) = sets.split(location);
        sets.get(id).map_or(0, |set| set.segments.len())
    }

    /// Where copy number `copy` of a location lies, if there is one: its member may have failed.
    pub(crate) fn copy_of(&self, location: Location, copy: usize) -> Option<(&Member, u64)> {
        let (segment, block) = self.segment_of(location, copy)?;
        Some(self.place(segment, block))
    }

    /// Whether a set has no copy left.
    pub(crate) fn is_stray(&self, id: SegmentId) -> bool {
        self.sets.borrow().get(id).is_some_and(Set::has_no_copy)
    }

    /// The segment of copy number `copy` of a location, and the block within it.
    pub(crate) fn segment_of(&self, location: Location, copy: usize) -> Option<(SegmentId, u32)> {
        let sets = self.sets.borrow();
        let (id, block) = sets.split(location);
        let set = sets.get(id).expect("a live location lies in a set in use");
        Some((*set.segments.get(copy)?, block))
    }

    /// Whether a completed member flush covers the record of a mapping. A zero extent may outlive
    /// the set that its fact was in, once a root has taken the fact over; then its location says
    /// nothing, and it is durable at the latest when everything is.
    pub(crate) fn is_durable(&self, mapping: &Mapping) -> bool {
        if planted::is(Bug::DestageUnflushed) {
            return true;
        }
        if !mapping.state.has_data() && !self.log.has_volatile() {
            return true;
        }
        let sets = self.sets.borrow();
        let (id, block) = sets.split(mapping.location);
        sets.get(id).is_none_or(|set| block < set.durable_blocks)
    }

    /// The volume, if its origin is attached.
    pub(crate) fn volume(&self, id: VolumeId) -> Option<Rc<VolumeState>> {
        self.volumes.borrow().get(&id).cloned()
    }

    /// What the superblocks say of a volume.
    pub(crate) fn record(&self, name: &str) -> Result<VolumeRecord> {
        let superblock = self.superblock.borrow();
        let record = superblock.volumes.iter().find(|v| v.name == name).cloned();
        record.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("the pool has no volume \"{name}\""))
                .hint("check the name, or add the volume")
        })
    }

    /// What comes of `future`, unless the pool is stopped or latched before that: it is dropped then, and must bear it.
    pub(crate) async fn unless_stopping<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let over = || self.is_ending();
        let (mut future, mut end) = (pin!(future), pin!(self.housekeeping.until(over)));
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => end.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    /// Blocks that need destaging, over all volumes.
    pub(crate) fn owed_blocks(&self) -> u64 {
        self.owed.borrow().values().map(|owed| u64::from(owed.blocks)).sum()
    }

    /// Blocks of a volume that need destaging.
    pub(crate) fn owed_by(&self, volume: VolumeId) -> u64 {
        let range = (volume, 0)..=(volume, u64::MAX);
        self.owed.borrow().range(range).map(|(_, owed)| u64::from(owed.blocks)).sum()
    }

    /// The same, and those that wait for a flush of its origin.
    pub(crate) fn unproven_by(&self, volume: VolumeId) -> u64 {
        self.owed_by(volume) + self.written.borrow().get(&volume).copied().unwrap_or(0)
    }

    /// Whether a volume still has blocks that its origin may lack.
    pub(crate) fn is_owing(&self, volume: VolumeId) -> bool {
        let range = (volume, 0)..=(volume, u64::MAX);
        self.owed.borrow().range(range).next().is_some()
    }
}

//! The face of the engine: open a pool, attach volumes, change it, stop it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use forebay_device::gate::Gated;
use forebay_device::{BlockDevice, LocalBoxFuture, Runtime};

use crate::bypass::BypassCounters;
use crate::claim::{self, Taken};
use crate::client::Elsewhere;
use crate::copies::CopiesChange;
use crate::core::{Core, ShardState};
use crate::counters::{Counters, Latency, VolumeCounters};
use crate::creation::{check_name, check_write_amplification, invalid};
use crate::deadline::{Deadline, check_device_deadline};
use crate::destage::{Delay, Elevator, elevator};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, EventKind, Subject};
use crate::failure::{Standing, guardian};
use crate::fingerprint;
use crate::flush::Writers;
use crate::format::{
    Claim, Host, MemberRecord, Mode, Numbers, Superblock, VOLUME_BLOCKS_MAX, VolumeRecord,
    VolumeSettings,
};
use crate::ids::{BLOCK_BYTES, DeviceId, SECTOR_BYTES, VolumeId};
use crate::journal::Journal;
use crate::lease::Lease;
use crate::limits::{ORIGIN_BYTES_MAX, RAM_BYTES_MAX, RECORD_BYTES_MAX, VOLUMES_MAX};
use crate::log::Log;
use crate::member::Member;
use crate::membership::{OpenOptions, Opened, Opening, assess};
use crate::memory::IndexClaims;
use crate::origin::Origin;
use crate::policy::{Reread, S3Fifo, S3FifoConfig};
use crate::protect::Urgent;
use crate::ram::RamStatus;
use crate::recovery::RecoveryReport;
use crate::redundancy::Redundancy;
use crate::scrub::{Scrub, healer, scrubber};
use crate::segment::SetTable;
use crate::share::{InService, Writing};
use crate::sound::check_counter;
use crate::space::{Claims, Share, Space};
use crate::superblock::check_mode;
use crate::superblock::witness_keeper;
use crate::throttle::{Flow, Throttle};
use crate::tuning::Tuning;
use crate::volume::{Volume, VolumeState, check_origin, cutoff_bytes};
use crate::wait::{TaskMutex, WaitQueue};
use crate::wear::{Wear, wear_keeper};
use crate::witness::Witness;

/// What a new volume shall be.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// Its name, 1..=63 bytes, unique in the pool.
    pub name: String,
    /// What finds the origin again: a path or URL, 1..=511 bytes.
    pub origin: String,
    /// How it is served.
    pub mode: Mode,
    /// Unit of population, a power of two from 4 KiB to 4 MiB.
    pub cache_block_bytes: u32,
    /// What may be changed of it at any time.
    pub settings: VolumeSettings,
    /// Agrees to write-back with one dirty copy.
    pub accept_data_loss_on_ssd_failure: bool,
}

/// A running pool.
pub struct Pool {
    pub(crate) core: Rc<Core>,
    report: RecoveryReport,
}

/// Opens a pool and recovers it. Volumes are attached afterwards.
///
/// # Errors
/// [`ErrorKind::NotFound`], [`ErrorKind::Refused`], [`ErrorKind::Damaged`], [`ErrorKind::Future`],
/// [`ErrorKind::NeedsDecision`], [`ErrorKind::Io`]; nothing is lost by any of them, and nothing goes
/// on in the background.
pub async fn open(
    rt: Rc<dyn Runtime>,
    devices: Vec<Rc<dyn BlockDevice>>,
    witness: Rc<dyn Witness>,
    tuning: Tuning,
) -> Result<Pool> {
    open_with(rt, devices, witness, tuning, OpenOptions::default()).await
}

/// [`open`], with what a person has decided.
///
/// # Errors
/// Those of [`open`].
pub fn open_with(
    rt: Rc<dyn Runtime>,
    devices: Vec<Rc<dyn BlockDevice>>,
    witness: Rc<dyn Witness>,
    tuning: Tuning,
    options: OpenOptions,
) -> LocalBoxFuture<'static, Result<Pool>> {
    Box::pin(async move {
        let deadline = Deadline::begin(&rt, devices);
        let opened = start(rt, &deadline, witness, tuning, &options).await;
        if opened.is_err() {
            deadline.end().await;
        }
        opened
    })
}

async fn start(
    rt: Rc<dyn Runtime>,
    deadline: &Rc<Deadline>,
    witness: Rc<dyn Witness>,
    tuning: Tuning,
    options: &OpenOptions,
) -> Result<Pool> {
    let (opening, taken) = claimed(&rt, deadline, &*witness, options).await?;
    let Opening { superblock, members, missing, epoch, witnessed, accepted, notes } = opening;
    let core = Rc::new(new_core(rt, superblock, &members, witness, tuning, deadline));
    deadline.tell(&core);
    core.accepted.set(accepted);
    core.event(EventKind::Opened, "pool opened".to_owned());
    for (kind, subject, note) in notes {
        core.event_of(subject, kind, note);
    }
    if let Some(taken) = taken {
        core.begin_lease(taken);
    }
    let report = match recovered(&core, &members, &missing, (epoch, witnessed)).await {
        Ok(report) => report,
        Err(error) => {
            if core.abandon().await.is_ok() {
                core.release().await;
            }
            return Err(error);
        }
    };
    let copies = core.superblock.borrow().clean_copies;
    core.sets.borrow_mut().set_clean_copies(copies.into());
    let percent = core.superblock.borrow().write_amplification_max_percent;
    core.sets.borrow_mut().set_write_amplification_max(percent.into());
    core.note_fallbacks();
    core.review_redundancy();
    core.start_rebuild();
    core.start_raise();
    core.spawn(guardian(Rc::clone(&core)));
    core.spawn(witness_keeper(Rc::clone(&core)));
    let budget = core.superblock.borrow().write_budget_bytes_per_day;
    core.start_budget(budget);
    core.spawn_background(wear_keeper(Rc::clone(&core)));
    core.spawn_background(scrubber(Rc::clone(&core)));
    core.spawn_background(healer(Rc::clone(&core)));
    core.start_ram();
    Ok(Pool { core, report })
}

/// What the pool opens with, and the claim of it, if it is claimed.
async fn claimed(
    rt: &Rc<dyn Runtime>,
    deadline: &Rc<Deadline>,
    witness: &dyn Witness,
    options: &OpenOptions,
) -> Result<(Opening, Option<Taken>)> {
    let mut opening = assessed(deadline, witness, options).await?;
    let Some(host) = &options.host else { return Ok((opening, None)) };
    let Some(taken) = claim::take(rt, &opening, host, options).await? else {
        let what = "the pool has no room to say who has it open: never let two hosts open it";
        opening.notes.push((EventKind::Unclaimed, Subject::Pool, what.to_owned()));
        return Ok((opening, None));
    };
    let mut opening = match assessed_again(deadline, witness, options, &opening).await {
        Ok(opening) => opening,
        Err(error) => {
            claim::withdraw(&opening, &taken.claim).await;
            return Err(error);
        }
    };
    if let Some(Host { name, .. }) = &taken.from {
        let what = format!("the pool was taken over from host \"{name}\", which did not keep it");
        opening.notes.push((EventKind::TakenOver, Subject::Pool, what));
    }
    Ok((opening, Some(taken)))
}

/// What the pool opens with, now that nobody else changes it: whoever had it may have until the claim.
async fn assessed_again(
    deadline: &Rc<Deadline>,
    witness: &dyn Witness,
    options: &OpenOptions,
    claimed: &Opening,
) -> Result<Opening> {
    let opening = assessed(deadline, witness, options).await?;
    let ids = |opening: &Opening| -> Vec<_> {
        opening.members.iter().map(|member| member.record.device).collect()
    };
    if ids(claimed) != ids(&opening) {
        let what = "the members of the pool have changed while it was being claimed";
        return Err(Error::new(ErrorKind::Io, what).hint("open it once more"));
    }
    Ok(opening)
}

/// What the pool opens with, if it can be used.
async fn assessed(
    deadline: &Rc<Deadline>,
    witness: &dyn Witness,
    options: &OpenOptions,
) -> Result<Opening> {
    let opening = assess(deadline.devices(), witness, options).await?;
    let superblock = &opening.superblock;
    for member in &opening.members {
        check_size(superblock, &member.record, member.device.geometry().size_bytes)?;
    }
    check_counter("generation of the superblock", superblock.generation)?;
    check_counter("start number", superblock.start_number)?;
    check_counter("epoch", opening.epoch)?;
    Ok(opening)
}

/// Begins the start on the members, and rebuilds what they hold. With the epoch to go on in, and whether the
/// witness names it already.
async fn recovered(
    core: &Rc<Core>,
    members: &[Opened],
    missing: &BTreeSet<DeviceId>,
    (epoch, witnessed): (u64, bool),
) -> Result<RecoveryReport> {
    for (index, Opened { slots, .. }) in members.iter().enumerate() {
        let settled = slots.settle(&*core.members[index].device).await;
        settled.map_err(|error| Error::io("making sure of a superblock", error))?;
    }
    core.begin_start(missing, epoch, witnessed).await?;
    core.recover().await
}

/// Whether a member's device has all that a superblock says of it.
pub(crate) fn check_size(superblock: &Superblock, record: &MemberRecord, size: u64) -> Result<()> {
    let needed = superblock.segments_offset
        + u64::from(record.segments.count()) * u64::from(superblock.segment_bytes);
    if size >= needed {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Refused,
        format!("cache device {} has shrunk: {size} B of {needed} B", record.device),
    )
    .hint("restore its size; nothing has been changed"))
}

fn new_core(
    rt: Rc<dyn Runtime>,
    superblock: Superblock,
    opened: &[Opened],
    witness: Rc<dyn Witness>,
    tuning: Tuning,
    deadline: &Rc<Deadline>,
) -> Core {
    let segment_bytes = u64::from(superblock.segment_bytes);
    let segment_blocks = (segment_bytes / BLOCK_BYTES) as u32;
    let record_blocks_max = ((RECORD_BYTES_MAX / BLOCK_BYTES) as u32).min(segment_blocks / 4);
    let now = rt.now();
    let given: Vec<Numbers> = opened.iter().map(|member| member.record.segments).collect();
    let segments: u64 = given.iter().map(|numbers| u64::from(numbers.count())).sum();
    // The numbers of members that are gone stay theirs: images and headers may still name them.
    let numbers = superblock.members.iter().map(|member| member.segments.end()).max();
    let mut sets = SetTable::new(segment_blocks, given, numbers.unwrap_or(0));
    for (index, member) in opened.iter().enumerate() {
        sets.set_controller(index, member.device.geometry().controller);
    }
    let members = opened
        .iter()
        .map(|Opened { record, device, .. }| {
            let (place, watched) = deadline.find(device);
            Member::new(record, watched, Some(place), superblock.segments_offset, Standing::Serving)
        })
        .collect();
    let pool_blocks = segments * u64::from(segment_blocks);
    let config = S3FifoConfig::for_pool(pool_blocks);
    let policy = S3Fifo::new(S3FifoConfig {
        write_amplification_max_percent: superblock.write_amplification_max_percent.into(),
        ..config
    });
    let shards: Vec<ShardState> =
        (0..superblock.shard_count).map(|_| ShardState::default()).collect();
    let index_memory_max = superblock.index_memory_max.min(tuning.index_memory_most);
    Core {
        opened: now,
        rt,
        tuning,
        members,
        epoch_begun: WaitQueue::default(),
        losses: Cell::new(0),
        marking: Cell::new(false),
        lost_now: RefCell::default(),
        root_lock: TaskMutex::default(),
        swept_epoch: Cell::new(0),
        root_epoch: Cell::new(0),
        redundancy: Cell::default(),
        reviewing: Cell::new(false),
        rebuilding: Cell::new(false),
        recopying: Cell::new(false),
        emptying: Cell::new(false),
        emptied: Cell::new(false),
        departing: Cell::new(false),
        asked_before: Cell::new(0),
        deadline: Rc::clone(deadline),
        gate: deadline.gate(),
        lease: Lease::default(),
        elsewhere: Elsewhere::default(),
        places_given: Cell::new(deadline.devices().len()),
        segment_bytes,
        segment_blocks,
        record_blocks_max,
        shards,
        sets: RefCell::new(sets),
        log: Log::new(),
        volumes: RefCell::default(),
        owed: RefCell::new(BTreeMap::new()),
        written: RefCell::default(),
        losing: Cell::new(0),
        lost: RefCell::default(),
        policy: RefCell::new(Box::new(policy)),
        touches: RefCell::default(),
        reread: RefCell::new(Reread::of_first_reads(pool_blocks)),
        streams: RefCell::new(Reread::of_streams(pool_blocks)),
        ram: RefCell::default(),
        wear: Wear::default(),
        raising: Cell::new(false),
        resizing: TaskMutex::default(),
        index_memory_max: Cell::new(index_memory_max),
        index_claims: IndexClaims::default(),
        scrub: Scrub::resume(superblock.scrub_next, superblock.scrub_begun_unix_s),
        verify_reads: Cell::new(superblock.verify_reads),
        cramped: Cell::new(false),
        superblock: RefCell::new(superblock),
        control: TaskMutex::default(),
        attaching: TaskMutex::default(),
        witness,
        witness_lags: Cell::new(false),
        accepted: Cell::new(false),
        root_generation: Cell::new(0),
        counters: Counters::default(),
        bypass: BypassCounters::default(),
        read_latency: Latency::default(),
        write_latency: Latency::default(),
        latched: Cell::new(false),
        doubtful: RefCell::default(),
        stopping: Cell::new(false),
        settled: Cell::new(false),
        recovering: Cell::new(true),
        restoring: Cell::new(false),
        closing: Cell::new(false),
        housekeepers: Cell::default(),
        background: Cell::new(0),
        minute_of_day: Cell::new(None),
        requests: Cell::new(0),
        tasks: Cell::new(0),
        quiet: WaitQueue::default(),
        room: WaitQueue::default(),
        housekeeping: WaitQueue::default(),
        lap_lock: TaskMutex::default(),
        reclaim_stuck: Cell::new(false),
        events: RefCell::new(VecDeque::new()),
        index_bytes: Cell::new(0),
        partials: Cell::new(0),
        writing: Writing::default(),
        compared: Cell::new(now),
        journal: Journal::default(),
        space: Space::default(),
        moving: Cell::new(0),
        throttle: Throttle::new(),
    }
}

impl Pool {
    /// What the start found.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.report
    }

    /// The superblock as it is now.
    pub fn superblock(&self) -> Superblock {
        self.core.superblock.borrow().clone()
    }

    /// Counts at the source.
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// What went past the cache, of all volumes that are or were there.
    pub fn bypass(&self) -> &BypassCounters {
        &self.core.bypass
    }

    /// Latencies of read requests and of write requests.
    pub fn latencies(&self) -> (&Latency, &Latency) {
        (&self.core.read_latency, &self.core.write_latency)
    }

    /// Events since the start, oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.core.events.borrow().iter().cloned().collect()
    }

    /// Tells the minute of the day, 0..1440, which decides when volumes with hours for it are destaged
    /// in the background. As long as nobody tells it, that is at any time.
    pub fn tell_time(&self, minute: u16) {
        if self.core.minute_of_day.replace(Some(minute)) != Some(minute) {
            self.core.housekeeping.wake_all();
        }
    }

    /// Why writers are held back at present, if one of them is.
    pub fn delay(&self) -> Option<Delay> {
        self.core.delay()
    }

    /// Whether a device error has stopped all writing.
    pub fn is_latched(&self) -> bool {
        self.core.latched.get()
    }

    /// The claim that this host has on the pool, if pools are claimed here.
    pub fn claim(&self) -> Option<Claim> {
        self.core.lease.own()
    }

    /// The host that has taken the pool from this one, by name: nothing works here any more.
    pub fn lost_to(&self) -> Option<String> {
        self.core.lease.lost_to()
    }

    /// Bytes of memory that the index occupies, and its bound.
    pub fn index_memory(&self) -> (u64, u64) {
        (self.core.index_bytes.get(), self.core.index_memory_max.get())
    }

    /// Bytes of memory in which it is remembered what is asked for often.
    pub fn policy_memory(&self) -> u64 {
        let policy = self.core.policy.borrow().memory_bytes();
        let samples = [&self.core.reread, &self.core.streams].map(|it| it.borrow().heap_bytes());
        let counts = self.core.touches.borrow().heap_bytes() + samples.iter().sum::<usize>();
        (policy + counts) as u64
    }

    /// Blocks cached, and of those the blocks that origins may lack.
    pub fn blocks(&self) -> (u64, u64) {
        let cached = self.core.shards.iter().map(|s| s.index.borrow().block_count()).sum();
        (cached, self.core.owed_blocks())
    }

    /// Blocks that are not known to be durable on their origins: those that must be written there,
    /// and those that were and wait for a flush.
    pub fn unproven_blocks(&self) -> u64 {
        self.core.owed_blocks() + self.core.written.borrow().values().sum::<u64>()
    }

    /// The same of one volume, attached or not.
    pub fn unproven_blocks_of(&self, volume: VolumeId) -> u64 {
        self.core.unproven_by(volume)
    }

    /// Where a block lies, for tests that wait until a place is used again.
    #[cfg(feature = "verify")]
    pub fn location_of(&self, volume: VolumeId, block: u64) -> Option<crate::ids::Location> {
        let mut location = None;
        let shard = self.core.shard(volume, block);
        shard.index.borrow().lookup(volume, block, 1, |m| location = Some(m.location));
        location
    }

    /// Blocks of which no cache device has a good copy, and that origins lack: reads fail until they are overwritten.
    pub fn lost_blocks(&self) -> u64 {
        self.core.lost.borrow().values().sum()
    }

    /// Bytes that origins lack and that have fewer copies than asked, since members were lost; and
    /// whether there are members enough to copy them again, so that they need not be destaged.
    pub fn short_bytes(&self) -> (u64, bool) {
        (self.core.short_bytes(), !self.core.is_short())
    }

    /// How the copies of what origins lack are.
    pub fn redundancy(&self) -> Redundancy {
        self.core.review_redundancy();
        self.core.redundancy.get()
    }

    /// Segments that hold nothing. Of those that [`Pool::segments`] calls free the others hold data that is read until
    /// their place is needed.
    pub fn empty_segments(&self) -> usize {
        self.core.sets.borrow().empty_count()
    }

    /// Free segments and segments in all.
    pub fn segments(&self) -> (usize, usize) {
        let sets = self.core.sets.borrow();
        (sets.free_count(), sets.total_count())
    }

    /// What a volume holds and may hold, attached or not.
    pub fn space(&self, volume: VolumeId) -> Share {
        self.core.space_of(volume)
    }

    /// Bytes, one copy of each, that the reservations of all volumes may have together.
    pub fn reservable_bytes(&self) -> u64 {
        Core::reservable_of(self.core.promised_blocks()) * BLOCK_BYTES
    }

    /// Adds a volume and attaches it.
    ///
    /// # Errors
    /// If the name is taken, an option makes no sense, or the superblocks cannot be written.
    pub fn add_volume<'a>(
        &'a self,
        spec: &'a VolumeSpec,
        origin: Rc<dyn BlockDevice>,
    ) -> LocalBoxFuture<'a, Result<Volume>> {
        Box::pin(async move {
            let _attaching = self.core.attaching.lock().await;
            self.check_spec(spec)?;
            let record = VolumeRecord {
                id: VolumeId(self.core.superblock.borrow().next_volume),
                name: spec.name.clone(),
                origin: spec.origin.clone(),
                size_bytes: origin.geometry().size_bytes / SECTOR_BYTES * SECTOR_BYTES,
                mode: spec.mode,
                may_be_dirty: false,
                accept_single_copy: spec.accept_data_loss_on_ssd_failure,
                cache_block_bytes: spec.cache_block_bytes,
                settings: spec.settings,
                fingerprint: None,
            };
            if record.size_bytes < BLOCK_BYTES {
                return Err(invalid("the origin is smaller than 4 KiB", "use a larger device"));
            }
            if record.size_bytes > VOLUME_BLOCKS_MAX * BLOCK_BYTES {
                return Err(invalid("the origin is larger than 4 PiB", "use a smaller device"));
            }
            settle_origin(&record.name, &*origin).await?;
            let control = self.core.control.lock().await;
            // The copies may have become fewer meanwhile.
            check_mode(record.mode, self.core.dirty_copies(), record.accept_single_copy)?;
            self.core
                .write_superblocks(|superblock| {
                    superblock.next_volume += 1;
                    superblock.volumes.push(record.clone());
                })
                .await?;
            drop(control);
            Ok(self.start_volume(&record, origin))
        })
    }

    /// Whether a volume like this could be added, as far as its origin is not concerned.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`].
    pub fn check_spec(&self, spec: &VolumeSpec) -> Result<()> {
        check_name("volume", &spec.name)?;
        let superblock = self.core.superblock.borrow();
        if superblock.next_volume == u32::MAX {
            return Err(invalid("the pool has given out all volume numbers", "use another pool"));
        }
        if superblock.volumes.len() >= VOLUMES_MAX {
            return Err(invalid("the pool has 124 volumes", "remove one, or use another pool"));
        }
        if superblock.volumes.iter().any(|v| v.name == spec.name) {
            return Err(invalid(
                format!("there is a volume \"{}\" already", spec.name),
                "choose another name, or attach the one that is there",
            ));
        }
        let origin = &spec.origin;
        if !(1..=ORIGIN_BYTES_MAX).contains(&origin.len()) || origin.chars().any(char::is_control) {
            let how = "use 1 to 511 bytes, none of them a control character, as a new line is";
            return Err(invalid("the origin's designation cannot be used", how));
        }
        crate::populate::check_cache_block(spec.cache_block_bytes)?;
        crate::populate::check(spec.settings.populate, spec.mode)?;
        self.core.check_space(None, &spec.settings)?;
        check_mode(spec.mode, superblock.dirty_copies, spec.accept_data_loss_on_ssd_failure)
    }

    /// Whether reclaim may be allowed this much, in percent of what is admitted.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`].
    pub fn check_write_amplification_max(percent: u16) -> Result<()> {
        check_write_amplification(percent)
    }

    /// Changes what reclaim may write for each byte admitted, in percent, 100..=400. It is durable on
    /// every member when this returns.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]; [`ErrorKind::Io`] if the superblocks cannot be written.
    pub fn set_write_amplification_max(&self, percent: u16) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            Pool::check_write_amplification_max(percent)?;
            let _control = self.core.control.lock().await;
            let change = |superblock: &mut Superblock| {
                superblock.write_amplification_max_percent = percent;
            };
            self.core.write_superblocks(change).await?;
            self.core.policy.borrow_mut().set_write_amplification_max(percent.into());
            self.core.sets.borrow_mut().set_write_amplification_max(percent.into());
            self.core.housekeeping.wake_all();
            Ok(())
        })
    }

    /// Whether copies may be changed like this.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the members cannot hold them, or a volume has not agreed to a single one.
    pub fn check_copies(&self, change: &CopiesChange) -> Result<()> {
        self.core.check_copies_change(change)
    }

    /// Changes the copies that new data gets, while the pool is in use. It is durable on every member
    /// when this returns, and fewer copies of dirty data are what is promised from then on. More of
    /// them are promised once what is dirty in fewer has been destaged, in the background and also
    /// after a restart; an event tells when.
    ///
    /// # Errors
    /// As [`Pool::check_copies`]; [`ErrorKind::Io`] if the superblocks cannot be written.
    pub fn set_copies<'a>(&'a self, change: &'a CopiesChange) -> LocalBoxFuture<'a, Result<()>> {
        Box::pin(self.core.set_copies(change))
    }

    /// Whether a pool may have this device deadline, in milliseconds.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`].
    pub fn check_device_deadline(ms: u32) -> Result<()> {
        check_device_deadline(ms)
    }

    /// Changes how long a cache device may take to answer, in milliseconds, 100..=600,000. It is durable
    /// on every member when this returns, and counts from then on.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]; [`ErrorKind::Io`] if the superblocks cannot be written.
    pub fn set_device_deadline(&self, ms: u32) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            check_device_deadline(ms)?;
            self.core.set_device_deadline(ms).await
        })
    }

    /// Requests to cache devices that were given up because the device did not answer, and that it still
    /// has, each with its buffer: by device.
    pub fn given_up(&self) -> Vec<(DeviceId, usize)> {
        let members = self.core.members.iter();
        members.map(|member| (member.id, member.watched.given_up_count())).collect()
    }

    /// Whether a pool may have a RAM tier of this size, as far as the engine is concerned.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`].
    pub fn check_ram_bytes(bytes: u64) -> Result<()> {
        if bytes <= RAM_BYTES_MAX && bytes.is_multiple_of(BLOCK_BYTES) {
            return Ok(());
        }
        Err(invalid(format!("{bytes} B of RAM tier"), "use a multiple of 2 MiB, at most 8 TiB"))
    }

    /// Memory that a RAM tier of so many bytes takes, metadata included.
    pub fn ram_memory_bytes(bytes: u64) -> u64 {
        crate::ram::memory_bytes(bytes)
    }

    /// What the RAM tier has.
    pub fn ram(&self) -> RamStatus {
        self.core.ram.borrow().status()
    }

    /// Changes the size of the RAM tier while the pool is in use. It is durable on every member when
    /// this returns.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]; [`ErrorKind::Refused`] if there is no memory, [`ErrorKind::Io`] if the
    /// superblocks cannot be written: the size is then what it was.
    pub fn set_ram_bytes(&self, bytes: u64) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            Pool::check_ram_bytes(bytes)?;
            self.core.set_ram_bytes(bytes).await
        })
    }

    /// Attaches the origin of a volume that the pool knows.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Refused`] if the origin is smaller than the volume;
    /// [`ErrorKind::NeedsDecision`] if it was changed while the pool was stopped and dirty data waits for it, see
    /// [`accept_origin`](Pool::accept_origin).
    pub fn attach<'a>(
        &'a self,
        name: &'a str,
        origin: Rc<dyn BlockDevice>,
    ) -> LocalBoxFuture<'a, Result<Volume>> {
        Box::pin(async move {
            let _attaching = self.core.attaching.lock().await;
            let record = self.core.record(name)?;
            if self.core.volume(record.id).is_some() {
                return Err(invalid(format!("volume \"{name}\" is attached already"), "use it"));
            }
            check_origin(name, record.size_bytes, &*origin)?;
            // Nothing may fail behind the end of its fingerprint: another device would be taken for it.
            settle_origin(name, &*origin).await?;
            if record.fingerprint.is_some() {
                fingerprint::check(&self.core, &record, &*origin).await?;
                self.core.clear_fingerprint(record.id).await?;
            }
            Ok(self.start_volume(&record, origin))
        })
    }

    fn start_volume(&self, record: &VolumeRecord, origin: Rc<dyn BlockDevice>) -> Volume {
        let rt = Rc::clone(&self.core.rt);
        let gate = Rc::clone(&self.core.gate);
        origin.fence(&gate);
        let origin: Rc<dyn BlockDevice> = Rc::new(Gated { inner: origin, gate });
        let state = Rc::new(VolumeState {
            id: record.id,
            name: record.name.clone(),
            size: Arc::new(record.size_bytes.into()),
            cache_block: Cell::new(u64::from(record.cache_block_bytes) / BLOCK_BYTES),
            mode: Cell::new(record.mode),
            settings: Cell::new(record.settings),
            thresholds: Cell::new(record.settings.populate.thresholds(record.mode)),
            cutoff_bytes: cutoff_bytes(&record.settings, &self.core.tuning).map(Cell::new),
            accept_single_copy: Cell::new(record.accept_single_copy),
            origin: Origin::new(origin, rt, self.core.tuning.destage_depth),
            losses: Cell::new(0),
            loss_notice: Cell::new(0),
            may_be_dirty: Cell::new(record.may_be_dirty),
            flag_lock: TaskMutex::default(),
            logging: Cell::new(0),
            last_request: Cell::new(self.core.rt.now()),
            elevator: Elevator::default(),
            urgent: Urgent::default(),
            drain: Cell::new(0),
            requests: Cell::new(0),
            leaving: Cell::new(false),
            gone: Cell::new(false),
            writers: Writers::default(),
            counters: VolumeCounters::default(),
            bypass: BypassCounters::default(),
            streams: Default::default(),
            service: InService::default(),
            claims: Claims::default(),
            flow: Rc::new(Flow::of(record.settings.priority)),
        });
        self.core.volumes.borrow_mut().insert(record.id, Rc::clone(&state));
        self.core.start_counting(&state);
        self.core.apportion();
        self.core.spawn_background(elevator(Rc::clone(&self.core), Rc::clone(&state)));
        Volume::new(Rc::clone(&self.core), state)
    }
}

/// Makes durable what an origin has: what a read returned before a kill must not be lost in a later power cut.
async fn settle_origin(name: &str, origin: &dyn BlockDevice) -> Result<()> {
    let flushed = origin.flush().done().await;
    flushed.map_err(|e| Error::io(format!("flushing the origin of \"{name}\""), e))
}

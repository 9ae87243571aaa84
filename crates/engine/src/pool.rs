//! The face of the engine: open a pool, attach volumes, change it, stop it.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use forebay_device::gate::Gated;
use forebay_device::{BlockDevice, LocalBoxFuture};

use crate::advised::Advised;
use crate::bypass::BypassCounters;
use crate::copies::CopiesChange;
use crate::core::Core;
use crate::count::Count;
use crate::counters::{Counters, Latency, VolumeCounters};
use crate::creation::{check_name, check_write_amplification, invalid};
use crate::deadline::check_device_deadline;
use crate::destage::{Delay, Elevator, elevator};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::fingerprint;
use crate::flush::Writers;
use crate::format::{Claim, Mode, Superblock, VOLUME_BLOCKS_MAX, VolumeRecord, VolumeSettings};
use crate::ids::{BLOCK_BYTES, DeviceId, SECTOR_BYTES, VolumeId};
use crate::limits::{ORIGIN_BYTES_MAX, RAM_BYTES_MAX, VOLUMES_MAX};
use crate::log::Habit;
use crate::origin::Origin;
use crate::protect::Urgent;
use crate::ram::RamStatus;
use crate::recovery::RecoveryReport;
use crate::redundancy::Redundancy;
use crate::share::InService;
use crate::space::{Claims, Share};
use crate::superblock::check_mode;
use crate::throttle::Flow;
use crate::volume::{Volume, VolumeState, check_origin, cutoff_bytes};
use crate::wait::TaskMutex;

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
    pub(crate) report: RecoveryReport,
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

    /// Latencies of the reads of origins that somebody waited for: a client, or a write to a part of a block.
    pub fn origin_read_latency(&self) -> &Latency {
        &self.core.origin_read_latency
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
        self.core.lost.all()
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
            clean_looks: Cell::new(0),
            logging: Count::default(),
            last_request: Cell::new(self.core.rt.now()),
            elevator: Elevator::default(),
            urgent: Urgent::default(),
            drain: Count::default(),
            requests: Count::default(),
            rests: Count::default(),
            leaving: Cell::new(false),
            gone: Cell::new(false),
            writers: Writers::default(),
            counters: VolumeCounters::default(),
            bypass: BypassCounters::default(),
            advised: Advised::default(),
            streams: Default::default(),
            service: InService::default(),
            claims: Claims::default(),
            flow: Rc::new(Flow::of(record.settings.priority)),
            habit: Habit::default(),
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

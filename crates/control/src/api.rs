//! The bodies of requests and answers, version 1.
//!
//! Requests refuse fields that they do not know; whoever reads an answer ignores them, so that
//! fields can be added. Sizes are bytes, spans are seconds.

use std::path::PathBuf;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

pub use crate::activity::{Activity, OriginReads, Reads, Writes};
use crate::advisor::days_default;
pub use crate::advisor::{
    ADVISOR_DAYS_DEFAULT, ADVISOR_DAYS_MAX, Advisor, CurvePoint, StartAdvisor,
};
use crate::hours::DestageHours;
use crate::name::{Name, VolumeName};
use crate::profile::Profile;

pub use crate::devices::{
    AddDevice, AddSpare, CanIPull, GrowDevice, MemberState, Pull, RemoveDevice, ReplaceDevice,
    Spare, SpareState,
};
pub use crate::population::{CacheProfile, Population};
pub use crate::scrub::{Scrub, ScrubEnd, Verify};
pub use crate::space::{Priority, Space};
pub use crate::states::{PoolHealth, PoolState, VolumeState};
pub use crate::wear::{WriteBudget, Written};
pub use export::{AddExport, Export, Place, TlsUse};
pub use job::{Done, Job, JobState, Stop, Stopping};
pub use plan::{DevicePlan, Plan, PlannedMember, PoolPlan, Room};
pub use report::{
    Bypassed, Event, Events, EventsQuery, Memory, PoolStats, Severity, Stats, Status, VolumeStats,
};

mod export;
mod job;
mod plan;
mod report;

/// Version of the answers, in each of them as `schema`.
pub const SCHEMA: u32 = 1;

/// How a volume is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Writes are acknowledged by the SSDs and destaged later.
    Writeback,
    /// Writes go to SSD and origin.
    Writethrough,
    /// Writes go to the origin only.
    Readonly,
    /// Nothing is cached.
    Bypass,
    /// As writeback, but reads do not populate.
    Writeonly,
}

/// What becomes of writes that follow each other for more than the cutoff.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SequentialWrites {
    /// They are cached as all writes are.
    #[default]
    Cache,
    /// They go straight to the origin, as reads do.
    Bypass,
}

/// When what follows each other for more than the cutoff goes past the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SequentialWhen {
    /// Reads as long as hardly any of what streams read is read again, writes at any time.
    #[default]
    Auto,
    /// At any time.
    Always,
    /// Only while the cache has no free room.
    Full,
}

/// `POST /api/v1/pools`: make a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreatePool {
    /// Its name.
    pub name: Name,
    /// The cache devices; absolute paths.
    pub ssds: Vec<PathBuf>,
    /// Copies of dirty data; without it 2 on several devices and 1 on one.
    #[serde(default)]
    pub dirty_copies: Option<u8>,
    /// Copies of clean data; without it 1.
    #[serde(default)]
    pub clean_copies: Option<u8>,
    /// Says both instead.
    #[serde(default)]
    pub profile: Option<Profile>,
    /// Size of the tier in RAM in front of them, a multiple of 2 MiB; without it there is none.
    #[serde(default)]
    pub ram_bytes: u64,
    /// The most memory that the index takes, 4 MiB at the least and 1 PiB at the most; without it 1.6 MiB for each GiB of cache.
    #[serde(default)]
    pub index_bytes_max: Option<u64>,
    /// Milliseconds that a cache device may take to answer, 100 to 600,000; without it 5,000.
    #[serde(default)]
    pub device_deadline_ms: Option<u32>,
    /// Bytes a day that may be written to all cache devices, 1 MiB to 1 EiB; 0 or without it as many as come.
    #[serde(default)]
    pub write_budget_bytes_per_day: u64,
    /// Agrees to write-back with one copy of dirty data, for the volumes to come.
    #[serde(default)]
    pub accept_data_loss_on_ssd_failure: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// `PATCH /api/v1/pools/{pool}`: settings that change while it serves. Those that are fixed when a
/// pool is made are known too, so that it can be said.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SetPool {
    /// Bytes that reclaim may write for each byte admitted, in percent, 100 to 400.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_amplification_max_percent: Option<u16>,
    /// Size of the tier in RAM, a multiple of 2 MiB; 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ram_bytes: Option<u64>,
    /// Milliseconds that a cache device may take to answer, 100 to 600,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_deadline_ms: Option<u32>,
    /// Copies of dirty data, 1 to 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_copies: Option<u8>,
    /// Copies of clean data, 1 or 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clean_copies: Option<u8>,
    /// Says both instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Bytes a second that a scrub reads, 64 KiB to 1 TiB; 0: none is begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scrub_rate_bytes_per_s: Option<u64>,
    /// Bytes a day that may be written to all cache devices, 1 MiB to 1 EiB; 0: as many as come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_budget_bytes_per_day: Option<u64>,
    /// What of what cache devices return is checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verify>,
    /// Agrees to write-back with one copy of dirty data, for volumes that are added or set to be written back from
    /// then on; with `dirty_copies` 1, for those that are, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accept_data_loss_on_ssd_failure: Option<bool>,
    /// Only check whether it could be done.
    pub dry_run: bool,
    /// Fixed.
    #[serde(skip_serializing)]
    pub name: Option<IgnoredAny>,
    /// Fixed.
    #[serde(skip_serializing)]
    pub ssds: Option<IgnoredAny>,
    /// Fixed.
    #[serde(skip_serializing)]
    pub segment_bytes: Option<IgnoredAny>,
    /// Fixed.
    #[serde(skip_serializing)]
    pub index_bytes_max: Option<IgnoredAny>,
}

impl SetPool {
    /// The first of the fixed settings that it names.
    pub fn fixed(&self) -> Option<&'static str> {
        let fixed = [
            (&self.name, "name"),
            (&self.ssds, "ssds"),
            (&self.segment_bytes, "segment_bytes"),
            (&self.index_bytes_max, "index_bytes_max"),
        ];
        fixed.into_iter().find(|(value, _)| value.is_some()).map(|(_, name)| name)
    }
}

/// One pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: String,
    /// How it is, in one word.
    pub state: PoolState,
    /// Whether somebody has to look: its state, its volumes, what is lost and what its SSDs say of themselves.
    pub health: PoolHealth,
    /// The same in one sentence.
    pub summary: String,
    /// What to do; empty if nothing is.
    pub action: String,
    /// The host that has it open, by name; empty if that is none, or not this one.
    #[serde(default)]
    pub host: String,
    /// Its cache devices.
    pub members: Vec<Member>,
    /// Its spares.
    #[serde(default)]
    pub spares: Vec<Spare>,
    /// Its volumes.
    pub volumes: Vec<Volume>,
    /// What is known while it is open.
    pub usage: Option<PoolUsage>,
}

/// What an open pool holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolUsage {
    /// Copies of dirty data.
    pub dirty_copies: u8,
    /// Milliseconds that a cache device may take to answer before the pool goes on without it.
    #[serde(default)]
    pub device_deadline_ms: u64,
    /// Requests that cache devices have not answered in time and still have, each with its memory.
    #[serde(default)]
    pub requests_given_up: u64,
    /// Copies that were asked for and that not all dirty data has yet; 0: none.
    #[serde(default)]
    pub dirty_copies_next: u8,
    /// Copies of clean data.
    #[serde(default)]
    pub clean_copies: u8,
    /// Bytes that reclaim may write for each byte admitted, in percent.
    pub write_amplification_max_percent: u16,
    /// Bytes written for each byte admitted since it was opened, in percent; `null` before the first.
    #[serde(default)]
    pub write_amplification_percent: Option<u64>,
    /// What was written to the cache devices since then, by cause.
    #[serde(default)]
    pub written: Written,
    /// How it does with its write budget; `null` without one.
    #[serde(default)]
    pub write_budget: Option<WriteBudget>,
    /// Whether new volumes may be written back with one copy of dirty data.
    pub accept_data_loss_on_ssd_failure: bool,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Segments in all.
    pub segments: u64,
    /// Segments that hold nothing. A full cache has few, and makes more as they are needed.
    pub segments_free: u64,
    /// Bytes cached.
    pub cached_bytes: u64,
    /// Bytes that origins lack.
    pub dirty_bytes: u64,
    /// Bytes of which no cache device has a good copy: reads of them fail until they are overwritten.
    #[serde(default)]
    pub lost_bytes: u64,
    /// How fast what is dirty becomes less.
    #[serde(default)]
    pub destage: Destaging,
    /// Seconds until every origin has what is dirty now, at the rate of the last ones; 0: nothing is. `null` if nobody can tell.
    #[serde(default)]
    pub safe_in_s: Option<u64>,
    /// The same in words, also where it waits: `41 s to safe`, `being destaged`, `waits until 22:00`; empty if nothing is dirty.
    #[serde(default)]
    pub safe_when: String,
    /// How far it is with making the copies that were lost with a cache device.
    #[serde(default)]
    pub rebuild: Rebuild,
    /// The same of clean data, which comes behind that; nothing while there are too few cache devices for the copies of
    /// dirty data.
    #[serde(default)]
    pub recopy: Rebuild,
    /// Why writers are delayed, in one sentence; empty if they are not.
    #[serde(default)]
    pub delay: String,
    /// Memory of the index.
    pub index_bytes: u64,
    /// Its bound.
    pub index_bytes_max: u64,
    /// Memory in which it is remembered what is asked for often.
    #[serde(default)]
    pub policy_bytes: u64,
    /// The tier in RAM.
    #[serde(default)]
    pub ram: RamUsage,
    /// The reading of all copies.
    #[serde(default)]
    pub scrub: Scrub,
    /// What else is checked.
    #[serde(default)]
    pub verify: Verify,
    /// Reads so far, streams that pass by among them: requests, those across a border of 4 MiB once for each part.
    pub read_requests: u64,
    /// Of those, served by the cache alone, RAM or cache devices.
    pub read_hits: u64,
    /// Of those, served by RAM alone.
    #[serde(default)]
    pub read_ram_hits: u64,
    /// Write requests so far.
    pub write_requests: u64,
    /// What it did of late: in the last 5 minutes, hour and day, as long as it has been open.
    #[serde(default)]
    pub activity: Vec<Activity>,
}

/// How fast dirty data goes to origins, over the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destaging {
    /// Bytes a second that are written to origins.
    pub rate_bytes_per_s: u64,
    /// Seconds until nothing is dirty, if that goes on as it does and as much is written; `null` if
    /// nobody can tell, because it does not become less.
    pub left_s: Option<u64>,
}

/// Copies that are made again after a cache device was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebuild {
    /// Bytes that lacked a copy at the worst, since the last time when none did; 0: none do.
    pub total_bytes: u64,
    /// Bytes that lack one now.
    pub left_bytes: u64,
    /// Seconds until none do, if that goes on as it does; `null` if nobody can tell.
    pub left_s: Option<u64>,
}

/// What the tier in RAM of an open pool holds, in bytes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RamUsage {
    /// Its size; while it is being changed, what it has come to.
    pub size_bytes: u64,
    /// Blocks in it.
    pub used_bytes: u64,
    /// Of those, blocks that no cache device holds as well.
    pub only_bytes: u64,
    /// Of those, blocks that a cache device holds as well.
    pub overlap_bytes: u64,
    /// Memory of all of it, with what is needed to find things in it.
    pub memory_bytes: u64,
}

/// One cache device of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its identity.
    pub id: String,
    /// Where it is, or was seen last; `null` if that is not known.
    pub path: Option<PathBuf>,
    /// `present`, `missing`, or `lost` if the pool went on without it.
    pub state: MemberState,
    /// Blocks of 4 KiB that it has returned damaged since the pool was opened.
    #[serde(default)]
    pub damaged_blocks: u64,
    /// Whether it takes much longer than the others: ten times their 99th percentile, for a minute.
    #[serde(default)]
    pub slow: bool,
    /// Bytes that the device has behind what the pool uses of it.
    #[serde(default)]
    pub unused_bytes: u64,
    /// What became of it at its path while it is in use, where the next start would not find it as it is; empty if
    /// nothing.
    #[serde(default)]
    pub displaced: String,
    /// What of its file has no space on its file system, and how to set that aside; empty if nothing.
    #[serde(default)]
    pub holes: String,
    /// What the SSD says of itself; `null` if it was not asked (yet).
    #[serde(default)]
    pub health: Option<Health>,
    /// Whether it can be pulled now, as `can-i-pull` says; `null` if the pool is not open, or does not use it.
    #[serde(default)]
    pub pull: Option<Pull>,
}

/// How an SSD is. The order is from bad news for nobody to the worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthVerdict {
    /// It does not say.
    #[default]
    Unknown,
    /// As it should be.
    Good,
    /// It should be replaced soon, or cooled.
    Warning,
    /// It should be replaced now.
    Failing,
}

/// What an SSD says of itself, by smartctl or nvme-cli.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// All of it in one word.
    pub verdict: HealthVerdict,
    /// The same in words; why, if it is `unknown`.
    pub summary: String,
    /// The disk that was asked; `null` if nobody knows on which one the device is.
    pub disk: Option<PathBuf>,
    /// When, in seconds since 1970.
    pub asked_unix_s: u64,
    /// Degrees Celsius.
    pub temperature_c: Option<u64>,
    /// What is left of its spare blocks.
    pub spare_percent: Option<u64>,
    /// What is used of the life that its maker gives it; may exceed 100.
    pub life_used_percent: Option<u64>,
    /// How often it could not read what it holds, since it was made.
    pub media_errors: Option<u64>,
    /// Bytes written to it since it was made.
    pub written_bytes: Option<u64>,
    /// Days until its life is used up: at what it is written today once that was seen for an hour, before
    /// at its mean so far.
    pub days_left: Option<u64>,
}

/// `POST /api/v1/pools/{pool}/volumes`: put a pool in front of an origin.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddVolume {
    /// Its name.
    pub name: Name,
    /// The slow device; an absolute path.
    pub origin: PathBuf,
    /// How it is served; without it writeback if dirty data is kept twice or its loss was
    /// accepted, else writethrough.
    #[serde(default)]
    pub mode: Option<Mode>,
    /// What brings blocks into the cache, by a name; without it `auto`, or `custom` with a number.
    #[serde(default)]
    pub profile: Option<CacheProfile>,
    /// Reads of a cache block from which on what is missed of it is brought in, 1 to 4.
    #[serde(default)]
    pub populate_on_read: Option<u8>,
    /// The same of writes, 1 to 4; in modes `readonly` and `writethrough` also 0: none are.
    #[serde(default)]
    pub populate_on_write: Option<u8>,
    /// What a miss brings in, and is counted for together; without it what the profile says, 64 KiB with
    /// `auto` and `custom`.
    #[serde(default)]
    pub cache_block_bytes: Option<u32>,
    /// Agrees to write-back with one copy of dirty data.
    #[serde(default)]
    pub accept_data_loss_on_ssd_failure: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// `PATCH /api/v1/pools/{pool}/volumes/{volume}`: the mode holds when it is answered, durably; what
/// was dirty before comes home in the [`Job`] that is the answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetVolume {
    /// How it is served from now on.
    pub mode: Mode,
}

/// `PATCH /api/v1/pools/{pool}/volumes/{volume}/settings`: what is not named stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SetVolumeSettings {
    /// Seconds after which dirty data is destaged in any case; 0: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_age_max_s: Option<u32>,
    /// When it is destaged in the background, in the local time of the daemon's machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destage_hours: Option<DestageHours>,
    /// Bytes of a stream after which what follows is not cached; 0: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequential_cutoff_bytes: Option<u64>,
    /// What becomes of streams of writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequential_writes: Option<SequentialWrites>,
    /// When streams go past the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequential_when: Option<SequentialWhen>,
    /// What brings blocks into the cache, by a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<CacheProfile>,
    /// Reads of a cache block from which on what is missed of it is brought in, 1 to 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub populate_on_read: Option<u8>,
    /// The same of writes, 1 to 4; in modes `readonly` and `writethrough` also 0: none are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub populate_on_write: Option<u8>,
    /// What a miss brings in, and is counted for together; a profile that is named sets it too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_block_bytes: Option<u32>,
    /// Bytes of the cache that other volumes do not take from it; 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation_bytes: Option<u64>,
    /// Bytes of the cache that it holds at the most; 0: as many as there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// What it gets where there is not enough for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
}

/// One volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Volume {
    /// Its name, with its pool's.
    pub name: VolumeName,
    /// Where its origin is.
    pub origin: String,
    /// Its size.
    pub size_bytes: u64,
    /// How it is served.
    pub mode: Mode,
    /// How it is served at present, which is not its mode while it is written through for want of SSDs or of a
    /// witness; `null` while its pool is not open.
    #[serde(default)]
    pub effective_mode: Option<Mode>,
    /// Why that is not its mode, and until when; empty if it is.
    #[serde(default)]
    pub effective_reason: String,
    /// How it is.
    pub state: VolumeState,
    /// Why it is not online; empty if it is.
    pub reason: String,
    /// Bytes that its origin lacks; `null` while nobody knows.
    pub dirty_bytes: Option<u64>,
    /// Bytes of which no cache device has a good copy: reads of them fail until they are overwritten.
    #[serde(default)]
    pub lost_bytes: u64,
    /// How fast what is dirty goes to the origin; `null` while nobody knows.
    #[serde(default)]
    pub destage: Option<Destaging>,
    /// When its origin has what is dirty now, in words, as `safe_when` of the pool; empty if nothing is, or nobody knows.
    #[serde(default)]
    pub safe_when: String,
    /// For how many seconds the oldest dirty data has been, as far as this start knows; `null` if
    /// nothing is dirty, or nobody knows.
    #[serde(default)]
    pub dirty_for_s: Option<u64>,
    /// Seconds after which dirty data is destaged in any case; 0: never.
    #[serde(default)]
    pub dirty_age_max_s: u32,
    /// When it is destaged in the background, in the local time of the daemon's machine.
    #[serde(default)]
    pub destage_hours: DestageHours,
    /// Bytes of a stream after which what follows is not cached; 0: never.
    #[serde(default)]
    pub sequential_cutoff_bytes: u64,
    /// What becomes of streams of writes.
    #[serde(default)]
    pub sequential_writes: SequentialWrites,
    /// When streams go past the cache.
    #[serde(default)]
    pub sequential_when: SequentialWhen,
    /// Of what streams read, the share that was read again before the cache would have let go of it, in percent, as
    /// far as that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequential_reread_percent: Option<u32>,
    /// With `auto`, whether streams of reads come in now, as they are read again.
    #[serde(default)]
    pub sequential_reads_cached: bool,
    /// What brings blocks into the cache.
    #[serde(default)]
    pub population: Population,
    /// What it has of the cache.
    #[serde(default)]
    pub space: Space,
    /// Where clients reach it.
    pub exports: Vec<String>,
}

/// `POST /api/v1/pools/{pool}/volumes/{volume}/accept-lost`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptLost {
    /// What is known to be lost, and agreed to; without it whatever is lost is.
    #[serde(default)]
    pub lost_bytes: Option<u64>,
}

/// `POST /api/v1/pools/{pool}/volumes/{volume}/accept-origin`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptOrigin {
    /// What becomes of the dirty data.
    pub dirty: DirtyData,
}

/// What becomes of dirty data whose origin was changed while the pool was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirtyData {
    /// It is written over what the origin has there now.
    Write,
    /// It is given up: what the origin has is read in its place.
    Drop,
}

/// `POST /api/v1/import`: open a pool whose cache devices are here.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportPool {
    /// Its name or its identity.
    pub pool: String,
    /// Paths to look at besides those that are known.
    #[serde(default)]
    pub ssds: Vec<PathBuf>,
    /// Accepts that writes which only missing members held are lost.
    #[serde(default)]
    pub accept_missing: bool,
    /// With `accept_missing`, what `pool` says once more: what is about to lose writes for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm: Option<String>,
    /// Takes it from a host that has it open and is dead; it takes as long as one that is alive could go
    /// unheard, twice.
    #[serde(default)]
    pub take_over: bool,
}

/// `POST /api/v1/pools/{pool}/destroy` and `/bypass`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confirm {
    /// The name once more: what is about to go, or to be served without its cache devices.
    pub confirm: String,
}

/// `POST /api/v1/plan`: a change whose address has no `dry_run`, to hear what it would do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Change {
    /// See [`ImportPool`].
    ImportPool(ImportPool),
    /// See [`SetPool`].
    SetPool {
        /// The pool.
        pool: Name,
        /// What would be set.
        settings: SetPool,
    },
    /// The pool.
    ExportPool(Name),
    /// The pool.
    BypassPool(Name),
    /// The pool.
    DestroyPool(Name),
    /// See [`AddDevice`].
    AddDevice {
        /// The pool.
        pool: Name,
        /// The cache device.
        ssd: PathBuf,
    },
    /// See [`AddSpare`].
    AddSpare {
        /// The pool.
        pool: Name,
        /// The device.
        ssd: PathBuf,
    },
    /// See [`ReplaceDevice`].
    ReplaceDevice {
        /// The pool.
        pool: Name,
        /// The old cache device.
        old: String,
        /// The new one.
        new: PathBuf,
    },
    /// See [`GrowDevice`].
    GrowDevice {
        /// The pool.
        pool: Name,
        /// The cache device.
        device: String,
    },
    /// See [`RemoveDevice`].
    RemoveDevice {
        /// The pool.
        pool: Name,
        /// The cache device.
        device: String,
    },
    /// The pool.
    StartScrub(Name),
    /// The pool.
    StopScrub(Name),
    /// See [`StartAdvisor`].
    StartAdvisor {
        /// The volume.
        volume: VolumeName,
        /// Days from which the advice counts as sure; without it 7.
        #[serde(default = "days_default")]
        days: u32,
    },
    /// The volume.
    StopAdvisor(VolumeName),
    /// The volume.
    FlushVolume(VolumeName),
    /// See [`SetVolume`].
    SetVolume {
        /// The volume.
        volume: VolumeName,
        /// How it would be served.
        mode: Mode,
    },
    /// See [`SetVolumeSettings`].
    SetVolumeSettings {
        /// The volume.
        volume: VolumeName,
        /// What would be set.
        settings: SetVolumeSettings,
    },
    /// The volume.
    GrowVolume(VolumeName),
    /// The volume.
    AcceptLost(VolumeName),
    /// See [`AcceptOrigin`].
    AcceptOrigin {
        /// The volume.
        volume: VolumeName,
        /// What becomes of the dirty data.
        dirty: DirtyData,
    },
    /// The volume.
    RemoveVolume(VolumeName),
    /// See [`AddExport`].
    AddExport(AddExport),
    /// The volume.
    RemoveExport(VolumeName),
    /// The number of the job.
    CancelJob(u64),
    /// See [`Stop`].
    Stop(Stop),
}

/// An answer that is one thing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct One<T> {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The thing.
    #[serde(flatten)]
    pub item: T,
}

/// An answer that is a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Many<T> {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The things.
    pub items: Vec<T>,
}

impl<T> One<T> {
    /// The answer with this thing.
    pub fn of(item: T) -> One<T> {
        One { schema: SCHEMA, item }
    }
}

impl<T> Many<T> {
    /// The answer with these things.
    pub fn of(items: Vec<T>) -> Many<T> {
        Many { schema: SCHEMA, items }
    }
}

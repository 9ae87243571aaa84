//! What a daemon says of itself and of all that it has.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Destaging, Export, Pool, Space};
use crate::name::VolumeName;

/// The daemon's memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    /// Whether it is kept from being swapped out.
    pub locked: bool,
    /// Why not.
    pub locked_reason: String,
    /// Whether the kernel makes room for it without I/O, which could wait for us.
    pub io_flusher: bool,
    /// Why not.
    pub io_flusher_reason: String,
    /// Bytes in memory now, the program included; `null` where the system does not tell.
    pub resident_bytes: Option<u64>,
    /// Bytes of the indexes of open pools now.
    pub index_bytes: u64,
    /// The most that they take.
    pub index_bytes_max: u64,
    /// Bytes in which open pools remember what is asked for often.
    #[serde(default)]
    pub policy_bytes: u64,
    /// Bytes of the tiers in RAM of open pools now.
    #[serde(default)]
    pub ram_bytes: u64,
    /// The most that they take, at their sizes as they are set.
    #[serde(default)]
    pub ram_bytes_max: u64,
    /// The most that requests of clients, populations and destaging take.
    pub buffers_bytes_max: u64,
    /// The most of all of these.
    pub total_bytes_max: u64,
}

/// `GET /api/v1/status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The daemon's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// All in one sentence.
    pub summary: String,
    /// Its memory.
    pub memory: Memory,
    /// All pools.
    pub pools: Vec<Pool>,
    /// All exports.
    pub exports: Vec<Export>,
}

/// `GET /api/v1/stats`: what was counted, for whoever looks twice and takes the difference.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stats {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The daemon's clock, in nanoseconds: it only goes forward, and begins anywhere.
    pub clock_ns: u64,
    /// Pools that are open.
    pub pools: Vec<PoolStats>,
}

/// What went past the cache for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bypassed {
    /// Read requests.
    pub read_requests: u64,
    /// Bytes of them that came from the origin and stayed out of the cache.
    pub read_bytes: u64,
    /// Write and WRITE ZEROES requests.
    pub write_requests: u64,
    /// Bytes of them that the origin took before they were acknowledged.
    pub write_bytes: u64,
}

/// What an open pool has counted since it was opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolStats {
    /// Its name.
    pub name: String,
    /// By their names in the engine; none falls while the pool is open.
    pub counters: BTreeMap<String, u64>,
    /// What went past the cache, by the reason; a request counts under one alone.
    #[serde(default)]
    pub bypass: BTreeMap<String, Bypassed>,
    /// Read requests by the time they took: item i counts those below 2^i microseconds that are in
    /// no item before; the last one the rest.
    pub read_latency: Vec<u64>,
    /// The same of write requests.
    pub write_latency: Vec<u64>,
    /// The same of reads of origins that somebody waited for.
    #[serde(default)]
    pub origin_read_latency: Vec<u64>,
    /// Bytes that origins lack.
    pub dirty_bytes: u64,
    /// How fast that becomes less.
    #[serde(default)]
    pub destage: Destaging,
    /// Its volumes whose origins are attached.
    pub volumes: Vec<VolumeStats>,
}

/// What a volume has counted since its origin was attached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeStats {
    /// Its name, with its pool's.
    pub name: VolumeName,
    /// As those of the pool.
    pub counters: BTreeMap<String, u64>,
    /// As that of the pool.
    #[serde(default)]
    pub bypass: BTreeMap<String, Bypassed>,
    /// Bytes that its origin lacks.
    pub dirty_bytes: u64,
    /// What it has of the cache.
    #[serde(default)]
    pub space: Space,
    /// How fast that becomes less.
    #[serde(default)]
    pub destage: Destaging,
}

/// `GET /api/v1/events?after=N&life=LIFE`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Only events with a higher number; 0: all, also those of earlier lives.
    #[serde(default)]
    pub after: u64,
    /// The life of the daemon that the number is of ([`Events::life`]): in another one it counts as 0. None: this
    /// one.
    #[serde(default)]
    pub life: Option<String>,
}

/// The answer to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Events {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// Which life of the daemon numbers count in: another one after each start.
    pub life: String,
    /// In the order in which they were told.
    pub items: Vec<Event>,
}

/// How much an event matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Something has happened as it should.
    #[default]
    Info,
    /// Somebody should look at it; everything is served.
    Warning,
    /// Data is lost, or something is not served or not written, until somebody acts.
    Critical,
}

impl Severity {
    /// All of them, the least first.
    pub const ALL: [Severity; 3] = [Severity::Info, Severity::Warning, Severity::Critical];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        }
    }
}

/// Something a person should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Counts the events of a daemon's life from 1; 0 if it was told before that, and was kept with the pool.
    pub number: u64,
    /// When, in seconds since 1970.
    pub unix_s: u64,
    /// How much it matters.
    #[serde(default)]
    pub severity: Severity,
    /// What kind; `forebay explain` knows them.
    pub code: String,
    /// The pool, or nothing.
    pub pool: String,
    /// What of the pool it is about: a volume's name, or a device's path or identity; empty if it is all of it.
    #[serde(default)]
    pub subject: String,
    /// What happened, on what.
    pub what: String,
}

//! What a change would do.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::name::Name;

/// What a change would do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// See [`SCHEMA`](super::SCHEMA).
    pub schema: u32,
    /// Always false: nothing was changed.
    pub done: bool,
    /// The change in one sentence.
    pub what: String,
    /// What would happen, in order.
    pub steps: Vec<String>,
    /// Devices on which data would be erased, and files that would be gone.
    pub erased: Vec<PathBuf>,
    /// What a change of its cache devices makes of a pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<DevicePlan>,
}

/// What a change of its cache devices makes of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DevicePlan {
    /// Segments on the device that comes, grows or goes.
    pub segments: u64,
    /// Bytes of one.
    pub segment_bytes: u64,
    /// What the pool has now.
    pub before: Room,
    /// What it has in the end.
    pub after: Room,
    /// Bytes that are moved or copied, at the most.
    pub moved_bytes: u64,
    /// How long that takes at least, in seconds; none if nobody can tell.
    pub time_s: Option<u64>,
}

/// What a pool has room for: of clean data, or of dirty data, each if there were nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Cache devices that serve.
    pub devices: u64,
    /// Bytes of their segments, each copy by itself.
    pub capacity_bytes: u64,
    /// Copies of clean data.
    pub clean_copies: u8,
    /// Bytes of clean data in so many copies, each on another device.
    pub clean_bytes: u64,
    /// Copies of dirty data.
    pub dirty_copies: u8,
    /// Bytes of dirty data in so many copies; 0 if there are fewer devices.
    pub dirty_bytes: u64,
}

/// What a new pool is, or would be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolPlan {
    /// See [`SCHEMA`](super::SCHEMA).
    pub schema: u32,
    /// Its name.
    pub name: Name,
    /// Its identity; empty as long as it is a plan.
    pub id: String,
    /// Whether it was made.
    pub done: bool,
    /// Its members.
    pub members: Vec<PlannedMember>,
    /// Copies of dirty data, and of clean data.
    pub dirty_copies: u8,
    /// Copies of clean data.
    pub clean_copies: u8,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes of all segments.
    pub capacity_bytes: u64,
    /// Bytes of clean data that fit, if nothing is dirty: no cache device has two copies of a block.
    #[serde(default)]
    pub clean_bytes: u64,
    /// Bytes of dirty data that fit, if nothing is clean.
    #[serde(default)]
    pub dirty_bytes: u64,
    /// Memory of the index when the cache is full of pieces of 64 KiB, the usual case.
    #[serde(default)]
    pub index_bytes_usual: u64,
    /// The same with pieces of 4 KiB.
    #[serde(default)]
    pub index_bytes_dense: u64,
    /// The most memory that the index takes; at it the cache takes in less.
    pub index_bytes_max: u64,
    /// Bytes of cache that this is enough for if all of it is pieces of 4 KiB far from each other.
    #[serde(default)]
    pub sparse_cache_bytes: u64,
    /// Memory in which the pool remembers what is asked for.
    #[serde(default)]
    pub policy_bytes: u64,
    /// Size of the tier in RAM.
    #[serde(default)]
    pub ram_bytes: u64,
    /// Memory that it takes, with what is needed to find things in it.
    #[serde(default)]
    pub ram_memory_bytes: u64,
    /// The most that requests of clients, populations and destaging take, of all pools together.
    #[serde(default)]
    pub buffers_bytes_max: u64,
    /// The most of all of these.
    #[serde(default)]
    pub total_bytes_max: u64,
    /// Memory of the machine, or what the daemon may have of it; `null` where the system does not tell.
    #[serde(default)]
    pub machine_bytes: Option<u64>,
    /// Bytes of cache that this is enough for beside other pools, with this RAM tier.
    #[serde(default)]
    pub machine_cache_bytes: u64,
    /// Bytes a day that may be written to all cache devices; 0: as many as come.
    #[serde(default)]
    pub write_budget_bytes_per_day: u64,
}

impl PoolPlan {
    /// Memory that is the pool's alone, at the most.
    pub fn promised_bytes(&self) -> u64 {
        self.index_bytes_max.saturating_add(self.policy_bytes).saturating_add(self.ram_memory_bytes)
    }
}

/// One cache device of a plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlannedMember {
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub size_bytes: u64,
    /// Its segments.
    pub segments: u32,
}

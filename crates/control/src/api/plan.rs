//! What a change would do.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

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
    /// Devices on which data would be erased.
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

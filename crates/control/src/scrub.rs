//! What looks for damage on cache devices, in the words of the API.

use serde::{Deserialize, Serialize};

/// What of what cache devices return is compared with its checksum, beside what is written to origins
/// or copied, which always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// Nothing.
    #[default]
    Off,
    /// What clients read, too.
    Reads,
}

/// How the scrub of an open pool is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Scrub {
    /// Bytes a second that it may read; 0: off.
    pub rate_bytes_per_s: u64,
    /// Whether one is under way.
    pub running: bool,
    /// What it waits for; empty if it does not.
    pub waits_for: String,
    /// When it or the last one began, in seconds since 1970; 0: never.
    pub begun_unix_s: u64,
    /// Bytes that it has read since the pool was opened.
    pub read_bytes: u64,
    /// Bytes that it still has to read, as far as that is known.
    pub left_bytes: u64,
    /// Seconds that this takes at its rate; `null` if it waits or none is under way.
    pub left_s: Option<u64>,
    /// Blocks of 4 KiB that were damaged in some copy, since the pool was opened.
    pub damaged_blocks: u64,
    /// Of those, copied again from a good copy.
    pub copied_blocks: u64,
    /// Of those, dropped: their origin has them.
    pub dropped_blocks: u64,
    /// Of those, dirty and good in no copy.
    pub unhealed_blocks: u64,
    /// Records of metadata that were damaged in some copy and are needed no more; superblocks, roots and headers of
    /// segments that were written anew.
    pub replaced_records: u64,
    /// Superblocks, roots and headers of segments that are left as they are, on cache devices that return nothing.
    #[serde(default)]
    pub unmended_records: u64,
    /// Blocks of 4 KiB that some cache device has not returned, without saying that it cannot.
    #[serde(default)]
    pub unread_blocks: u64,
    /// Blocks of 4 KiB that were dropped since the pool was opened because no copy of them could be read right,
    /// whoever met them; their origins have them.
    #[serde(default)]
    pub damage_dropped_blocks: u64,
    /// How the last one ended that the daemon remembers; `null` if it remembers none.
    #[serde(default)]
    pub last: Option<ScrubEnd>,
}

/// How a scrub has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubEnd {
    /// Whether it was ended before it had read everything: what it has not read may be damaged.
    pub early: bool,
    /// Bytes that it had read.
    pub read_bytes: u64,
    /// Bytes that there were to read.
    pub total_bytes: u64,
}

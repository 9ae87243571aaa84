//! What was watched of a volume, and how much cache it deserves, in the words of the API.

use serde::{Deserialize, Serialize};

use crate::name::VolumeName;

/// Days after which a watch ends by itself: a month has whatever comes once a month.
pub const ADVISOR_DAYS_MAX: u32 = 30;

/// Days from which its advice counts as sure: a week has whatever comes once a week.
pub const ADVISOR_DAYS_DEFAULT: u32 = 7;

pub(crate) fn days_default() -> u32 {
    ADVISOR_DAYS_DEFAULT
}

/// `POST /api/v1/pools/{pool}/volumes/{volume}/advisor`: watch a volume.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartAdvisor {
    /// Days from which the advice counts as sure, 1 to 30; without it 7.
    #[serde(default = "days_default")]
    pub days: u32,
}

/// What was asked of a volume, and what caches of several sizes would have hit of that: an estimate for LRU caches from a
/// sample of what was touched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advisor {
    /// The volume.
    pub volume: VolumeName,
    /// Whether it is still watched.
    pub watching: bool,
    /// Since when, in seconds since 1970.
    pub begun_unix_s: u64,
    /// Until when; `null` while it is watched.
    pub ended_unix_s: Option<u64>,
    /// Seconds of that in which it was online, and watched.
    pub watched_s: u64,
    /// Days of 86,400 such seconds from which the advice counts as sure.
    pub days_min: u32,
    /// Whether it was watched for so long.
    pub sure: bool,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Different bytes that were touched on a usual day, the median.
    pub day_bytes: u64,
    /// On the day with the most.
    pub day_bytes_max: u64,
    /// Days that these are of: those that are over and on which something was asked for, or the first one.
    pub days: u64,
    /// Days with more than twice what is usual, which the rest leaves out.
    pub days_left_out: u64,
    /// The cache that it may have now: the pool's SSDs, or its limit.
    pub cache_bytes: u64,
    /// What that would have hit of all accesses, 0 to 1, if the volume had it alone.
    pub cache_hit_ratio: f64,
    /// The same of a cache that never lets go of anything.
    pub endless_hit_ratio: f64,
    /// The smallest cache with 95 % of those hits; `null` where they are less than 5 % of the accesses.
    pub advised_bytes: Option<u64>,
    /// What that would have hit.
    pub advised_hit_ratio: Option<f64>,
    /// The same of other sizes, from small to large.
    pub curve: Vec<CurvePoint>,
    /// All of it in a few sentences.
    pub advice: String,
}

/// A size and what it is good for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// What it would have hit of all accesses, 0 to 1.
    pub hit_ratio: f64,
}

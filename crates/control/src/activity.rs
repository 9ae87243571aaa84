//! What a pool did of late.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a pool did in a stretch of time until now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Seconds of the stretch: 300, 3,600 or 86,400.
    pub span_s: u64,
    /// Seconds that were counted: up to a twelfth more, or less where the pool has not been open for so long.
    pub covered_s: u64,
    /// What was read.
    pub reads: Reads,
    /// What was written.
    pub writes: Writes,
}

/// Reads of a stretch of time: those across a border of 4 MiB once for each part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reads {
    /// Served by RAM alone.
    pub ram_hits: u64,
    /// Served by the cache alone, cache devices or both.
    pub ssd_hits: u64,
    /// Served in part by the origin.
    pub partial_hits: u64,
    /// Served by the origin.
    pub misses: u64,
    /// Requests of the last two whose data stayed out of the cache, by the reasons of `stats --bypass`.
    pub past: BTreeMap<String, u64>,
    /// Microseconds below which half of the requests were, to a power of two; `null` without any.
    pub p50_below_us: Option<u64>,
    /// The same of 99 %.
    pub p99_below_us: Option<u64>,
}

/// Writes of a stretch of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writes {
    /// Requests.
    pub requests: u64,
    /// Those that the origin had to take before they were acknowledged, by the reasons of `stats --bypass`.
    pub past: BTreeMap<String, u64>,
    /// Microseconds below which half of the requests were, to a power of two; `null` without any.
    pub p50_below_us: Option<u64>,
    /// The same of 99 %.
    pub p99_below_us: Option<u64>,
}

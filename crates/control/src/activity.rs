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
    /// What was read from origins meanwhile: about what reads would take without the cache.
    #[serde(default)]
    pub origin_reads: OriginReads,
}

/// Reads of a stretch of time. Hits and misses are counted for each part of a request that lies between borders of 4 MiB, those of
/// streams that pass by the cache apart; the end of a volume that is no whole block is in none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reads {
    /// Requests that were answered.
    pub requests: u64,
    /// Parts that RAM served alone.
    pub ram_hits: u64,
    /// Parts that the cache served alone, cache devices or both.
    pub ssd_hits: u64,
    /// Parts of which the origin served some.
    pub partial_hits: u64,
    /// Parts that the origin served.
    pub misses: u64,
    /// Parts of streams that pass by, whoever served them: in none of those above.
    #[serde(default)]
    pub stream_parts: u64,
    /// Requests of which some stayed out of the cache, by the reasons of `stats --bypass`; reasons without any are left out.
    pub past: BTreeMap<String, u64>,
    /// Microseconds below which half of the requests were, to a power of two; 8,388,608 stands for 4,194,304 and more. `null`
    /// without any.
    pub p50_below_us: Option<u64>,
    /// The same of 99 %.
    pub p99_below_us: Option<u64>,
}

/// Reads of origins that somebody waited for, in a stretch of time. Streams are among them, and the rest of a cache block that is
/// read with what was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginReads {
    /// Reads that were answered.
    pub requests: u64,
    /// As of reads.
    pub p50_below_us: Option<u64>,
    /// As of reads.
    pub p99_below_us: Option<u64>,
}

/// Writes of a stretch of time, those of zeroes among them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writes {
    /// Requests that were acknowledged.
    pub requests: u64,
    /// Of those, requests of streams that pass by the cache.
    #[serde(default)]
    pub stream_requests: u64,
    /// Of the others, requests that the origin did not have to take first.
    #[serde(default)]
    pub hits: u64,
    /// Requests that the origin had to take first, by the reasons of `stats --bypass`; reasons without any are left out.
    pub past: BTreeMap<String, u64>,
    /// As of reads.
    pub p50_below_us: Option<u64>,
    /// As of reads.
    pub p99_below_us: Option<u64>,
}

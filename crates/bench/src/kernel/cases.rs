//! The loads. All sides get the same ones.

use crate::fio::{Job, MIXED};

const K4: u64 = 4 << 10;
const M1: u64 = 1 << 20;

/// A load that comes in rounds: its row, what it is, and how.
pub(super) struct Case {
    pub name: &'static str,
    pub what: &'static str,
    pub job: Job,
    /// Whether the slow disks have a write cache, so that a FLUSH which is passed on to them costs an access.
    pub disk_cache: bool,
}

/// Names of the rows that can be asked for.
pub(super) const NAMES: [&str; 14] = [
    "flush1",
    "flush16",
    "cached1",
    "cached16",
    "read",
    "write",
    "mixed",
    "scattered",
    "seqwrite",
    "seqread",
    "zipf",
    "overwrite",
    "destage",
    "restart",
];

/// Random reads, with so many under way.
pub(super) const READS: Job =
    Job { rw: "randread", block_bytes: K4, depth: 32, jobs: 1, sync: false };

/// The same of writes.
pub(super) const WRITES: Job = Job { rw: "randwrite", ..READS };

/// Loads on what is cached, in their order.
pub(super) fn hot() -> [Case; 10] {
    let durable = |jobs| Job { jobs, sync: true, depth: 1, ..WRITES };
    let sequential = |rw| Job { rw, block_bytes: M1, depth: 4, jobs: 1, sync: false };
    let case = |name, what, job| Case { name, what, job, disk_cache: false };
    let cached = |name, what, job| Case { disk_cache: true, ..case(name, what, job) };
    [
        case("flush1", "4K write + flush, 1 writer", durable(1)),
        case("flush16", "4K write + flush, 16 writers", durable(16)),
        cached("cached1", "the same, disks with a write cache, 1 writer", durable(1)),
        cached("cached16", "the same, disks with a write cache, 16 writers", durable(16)),
        case("read", "4K random read, hits, queue 32", READS),
        case("write", "4K random write, queue 32", WRITES),
        case("mixed", "4K random, 70 % reads, queue 32", Job { rw: MIXED, ..READS }),
        // The first of these finds what the rows before have written at random, the last what was written in order.
        case("scattered", "1M read after random overwriting, queue 4", sequential("read")),
        case("seqwrite", "1M sequential write, queue 4", sequential("write")),
        case("seqread", "1M sequential read, hits, queue 4", sequential("read")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_has_a_name_that_can_be_asked_for() {
        assert_eq!(hot().map(|case| case.name), NAMES[..10]);
    }
}

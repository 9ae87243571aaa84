//! The loads. All sides get the same ones.

use crate::fio::{Job, MIXED};

const K4: u64 = 4 << 10;
const M1: u64 = 1 << 20;

/// A load that comes in rounds: its row, what it is, and how.
pub(super) struct Case {
    pub name: &'static str,
    pub what: &'static str,
    pub job: Job,
}

/// Names of the rows that can be asked for.
pub(super) const NAMES: [&str; 7] =
    ["flush1", "flush16", "read", "write", "mixed", "seqread", "seqwrite"];

/// Loads on what is cached, in their order.
pub(super) fn hot() -> [Case; 7] {
    let random = |rw, depth| Job { rw, block_bytes: K4, depth, jobs: 1, sync: false };
    let durable = |jobs| Job { jobs, sync: true, ..random("randwrite", 1) };
    let sequential = |rw| Job { rw, block_bytes: M1, depth: 4, jobs: 1, sync: false };
    let case = |name, what, job| Case { name, what, job };
    [
        case("flush1", "4K write + flush, 1 writer", durable(1)),
        case("flush16", "4K write + flush, 16 writers", durable(16)),
        case("read", "4K random read, hits, queue 32", random("randread", 32)),
        case("write", "4K random write, queue 32", random("randwrite", 32)),
        case("mixed", "4K random, 70 % reads, queue 32", random(MIXED, 32)),
        case("seqread", "1M sequential read, hits, queue 4", sequential("read")),
        case("seqwrite", "1M sequential write, queue 4", sequential("write")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_has_a_name_that_can_be_asked_for() {
        assert_eq!(hot().map(|case| case.name), NAMES);
    }
}

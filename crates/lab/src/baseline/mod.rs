//! Well-known policies, written plainly, to compare with.
//!
//! Each is a cache of blocks of one size that admits every block it is asked for, as the papers
//! have it. Where papers leave a choice (shares of queues, lengths of ghosts), it is the one of
//! libCacheSim, whose miss ratios are the reference that the test compares with.

mod arc;
mod belady;
mod lirs;
mod lists;
mod lru;
mod queues;
#[cfg(test)]
mod tests;
mod tinylfu;

use crate::workload::Workload;

/// A cache that is asked for one block after the other.
pub trait Cache {
    /// Whether the block was there; it is now.
    fn access(&mut self, block: u32) -> bool;
}

/// A policy to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Baseline {
    /// In the order of admission.
    Fifo,
    /// FIFO with a second chance for what was hit.
    Clock,
    /// Least recently used.
    Lru,
    /// "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003.
    Arc,
    /// "LIRS: An Efficient Low Inter-reference Recency Set", SIGMETRICS 2002.
    Lirs,
    /// "2Q: A Low Overhead High Performance Buffer Management Replacement", VLDB 1994.
    TwoQ,
    /// LRU in four segments.
    Slru,
    /// "FIFO queues are all you need for cache eviction", SOSP 2023.
    S3Fifo,
    /// "SIEVE is Simpler than LRU", NSDI 2024.
    Sieve,
    /// "TinyLFU: A Highly Efficient Cache Admission Policy", 2017, with a window of 1 %.
    WTinyLfu,
    /// The optimum, which knows the future.
    Belady,
}

impl Baseline {
    /// All of them; the optimum last.
    pub const ALL: [Self; 11] = [
        Self::Fifo,
        Self::Clock,
        Self::Lru,
        Self::Arc,
        Self::Lirs,
        Self::TwoQ,
        Self::Slru,
        Self::S3Fifo,
        Self::Sieve,
        Self::WTinyLfu,
        Self::Belady,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Clock => "clock",
            Self::Lru => "lru",
            Self::Arc => "arc",
            Self::Lirs => "lirs",
            Self::TwoQ => "2q",
            Self::Slru => "slru",
            Self::S3Fifo => "s3-fifo",
            Self::Sieve => "sieve",
            Self::WTinyLfu => "w-tinylfu",
            Self::Belady => "belady",
        }
    }

    /// The policy of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|baseline| baseline.name() == name)
    }

    /// An empty cache of `capacity` blocks for this workload.
    pub fn cache(self, workload: &Workload, capacity: usize) -> Box<dyn Cache + '_> {
        let blocks = workload.footprint();
        match self {
            Self::Fifo => Box::new(lru::Fifo::new(capacity, blocks)),
            Self::Clock => Box::new(lru::Clock::new(capacity, blocks)),
            Self::Lru => Box::new(lru::Lru::new(capacity, blocks)),
            Self::Arc => Box::new(arc::Arc::new(capacity, blocks)),
            Self::Lirs => Box::new(lirs::Lirs::new(capacity, blocks)),
            Self::TwoQ => Box::new(queues::TwoQ::new(capacity, blocks)),
            Self::Slru => Box::new(lru::Slru::new(&[1, 1, 1, 1], capacity, blocks)),
            Self::S3Fifo => Box::new(queues::S3Fifo::new(capacity, blocks)),
            Self::Sieve => Box::new(lru::Sieve::new(capacity, blocks)),
            Self::WTinyLfu => Box::new(tinylfu::WTinyLfu::new(capacity, workload)),
            Self::Belady => Box::new(belady::Belady::new(capacity, &workload.accesses)),
        }
    }
}

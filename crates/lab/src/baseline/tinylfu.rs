//! W-TinyLFU: an LRU window of one percent; what leaves it enters the main cache only if it was
//! asked for more often than what would have to go.

use super::Cache;
use super::lists::{Lists, OUT};
use super::lru::Slru;
use crate::workload::mix;

/// Share of the window.
const WINDOW_DIVISOR: usize = 100;
/// Shares of the two segments of the main cache.
const SEGMENTS: [usize; 2] = [1, 4];
/// Counters of the sketch for each block of the main cache, and hashes of a block: a counting
/// Bloom filter with an error of 0.001.
const COUNTERS_PER_BLOCK: f64 = 14.377_587;
const HASHES: usize = 10;
/// Hits of the main cache, in multiples of its size, after which all counters are halved.
const AGING: usize = 32;

pub(super) struct WTinyLfu {
    window: Lists,
    main: Slru,
    capacity: usize,
    sketch: Vec<u32>,
    hits: usize,
    hits_max: usize,
}

impl WTinyLfu {
    pub(super) fn new(capacity: usize, blocks: usize) -> Self {
        let main = capacity - capacity / WINDOW_DIVISOR;
        let counters = (COUNTERS_PER_BLOCK * main as f64).ceil() as usize;
        Self {
            window: Lists::new(1, blocks),
            main: Slru::new(&SEGMENTS, main, blocks),
            capacity,
            sketch: vec![0; counters.max(2 * HASHES)],
            hits: 0,
            hits_max: AGING * main,
        }
    }

    fn places(&self, block: u32) -> [usize; HASHES] {
        let hash = mix(block.into());
        let (first, step) = (hash as u32, (hash >> 32) as u32 | 1);
        std::array::from_fn(|at| {
            let hash = first.wrapping_add(step.wrapping_mul(at as u32));
            ((u64::from(hash) * self.sketch.len() as u64) >> 32) as usize
        })
    }

    fn count(&mut self, block: u32) {
        for place in self.places(block) {
            self.sketch[place] = self.sketch[place].saturating_add(1);
        }
    }

    fn estimate(&self, block: u32) -> u32 {
        self.places(block).into_iter().map(|place| self.sketch[place]).min().unwrap_or(0)
    }

    fn evict(&mut self) {
        while let Some(candidate) = self.window.pop(0) {
            let full = self.main.is_full();
            if full {
                let victim = self.main.victim();
                let wins =
                    victim.is_none_or(|victim| self.estimate(candidate) > self.estimate(victim));
                if wins {
                    self.main.evict();
                    self.main.admit(candidate);
                }
            } else {
                self.main.admit(candidate);
            }
            self.count(candidate);
            if full {
                return;
            }
        }
        self.main.evict();
    }
}

impl Cache for WTinyLfu {
    fn access(&mut self, block: u32) -> bool {
        if self.window.of(block) != OUT {
            self.window.push(0, block);
            return true;
        }
        if self.main.holds(block) {
            self.main.hit(block);
            self.count(block);
            self.hits += 1;
            if self.hits >= self.hits_max {
                self.hits = 0;
                self.sketch.iter_mut().for_each(|counter| *counter >>= 1);
            }
            return true;
        }
        if self.window.len(0) + self.main.len() >= self.capacity {
            self.evict();
        }
        self.window.push(0, block);
        self.count(block);
        false
    }
}

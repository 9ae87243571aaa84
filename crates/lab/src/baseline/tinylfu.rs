//! W-TinyLFU: an LRU window of one percent; what leaves it enters the main cache only if it was
//! asked for more often than what would have to go.

use super::Cache;
use super::lists::{Lists, OUT};
use super::lru::Slru;
use crate::workload::Workload;
use twox_hash::XxHash64;

/// Share of the window.
const WINDOW_DIVISOR: usize = 100;
/// Shares of the two segments of the main cache.
const SEGMENTS: [usize; 2] = [1, 4];
/// Hashes of a block in the sketch, a counting Bloom filter.
const HASHES: u32 = 10;
/// The error it is laid out for: with so many counters for each block of the main cache.
const ERROR: f64 = 0.001;
/// Most blocks have been counted once or twice, so which of two is ahead is mostly chance. With libCacheSim's
/// own hashes, of a block's number from 1 on, it is the same chance (0.1 to 0.4 points off with others).
const SEEDS: [u64; 2] = [0x1234_5678, 0x1234_4321];
/// Hits of the main cache, in multiples of its size, after which all counters are halved.
const AGING: usize = 32;

pub(super) struct WTinyLfu<'a> {
    workload: &'a Workload,
    window: Lists,
    main: Slru,
    capacity: usize,
    sketch: Vec<u32>,
    hits: usize,
    hits_max: usize,
}

impl<'a> WTinyLfu<'a> {
    pub(super) fn new(capacity: usize, workload: &'a Workload) -> Self {
        let blocks = workload.footprint();
        let main = capacity - capacity / WINDOW_DIVISOR;
        let counters_per_block = -ERROR.ln() / std::f64::consts::LN_2.powi(2);
        let counters = (counters_per_block * main as f64).ceil() as usize;
        Self {
            workload,
            window: Lists::new(1, blocks),
            main: Slru::new(&SEGMENTS, main, blocks),
            capacity,
            sketch: vec![0; counters.max(2 * HASHES as usize)],
            hits: 0,
            hits_max: AGING * main,
        }
    }

    /// Blocks of the same number of several volumes share their counters.
    fn places(&self, block: u32) -> impl Iterator<Item = usize> + use<> {
        let name = (self.workload.blocks[block as usize].1 + 1).to_le_bytes();
        let [first, step] = SEEDS.map(|seed| XxHash64::oneshot(seed, &name) as u32);
        let counters = self.sketch.len() as u32;
        (0..HASHES).map(move |at| (first.wrapping_add(step.wrapping_mul(at)) % counters) as usize)
    }

    fn count(&mut self, block: u32) {
        for place in self.places(block) {
            self.sketch[place] = self.sketch[place].saturating_add(1);
        }
    }

    fn estimate(&self, block: u32) -> u32 {
        self.places(block).map(|place| self.sketch[place]).min().unwrap_or(0)
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

impl Cache for WTinyLfu<'_> {
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

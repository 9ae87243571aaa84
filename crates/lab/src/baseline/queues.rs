//! A small queue before a large one, and a ghost: 2Q and S3-FIFO.

use super::Cache;
use super::lists::{Lists, OUT};

const SMALL: u8 = 0;
const MAIN: u8 = 1;
/// Identities of blocks that are not there.
const GHOST: u8 = 2;

/// A FIFO for what is new, an LRU for what comes back after it left that.
pub(super) struct TwoQ {
    lists: Lists,
    capacity: usize,
    small: usize,
    ghost: usize,
}

impl TwoQ {
    pub(super) fn new(capacity: usize, blocks: usize) -> Self {
        Self { lists: Lists::new(3, blocks), capacity, small: capacity / 4, ghost: capacity / 2 }
    }
}

impl Cache for TwoQ {
    fn access(&mut self, block: u32) -> bool {
        let place = self.lists.of(block);
        match place {
            SMALL => return true,
            MAIN => {
                self.lists.push(MAIN, block);
                return true;
            }
            // Its place in the ghost is free before another one may need it.
            GHOST => self.lists.remove(block),
            _ => {}
        }
        if self.lists.len(SMALL) + self.lists.len(MAIN) >= self.capacity {
            if self.lists.len(SMALL) > self.small || self.lists.len(MAIN) == 0 {
                if let Some(oldest) = self.lists.oldest(SMALL) {
                    self.lists.push(GHOST, oldest);
                }
                if self.lists.len(GHOST) > self.ghost {
                    self.lists.pop(GHOST);
                }
            } else {
                self.lists.pop(MAIN);
            }
        }
        self.lists.push(if place == GHOST { MAIN } else { SMALL }, block);
        false
    }
}

/// Hits of a block in the small queue from which it goes into the main queue.
const PROMOTE_HITS: u8 = 2;
/// Hits that the main queue remembers.
const HITS_MAX: u8 = 3;

/// FIFOs of a tenth and nine tenths; in the second one, what was hit goes round again.
pub(super) struct S3Fifo {
    lists: Lists,
    hits: Vec<u8>,
    capacity: usize,
    small: usize,
    ghost: usize,
    /// Until the first eviction, what the small queue has no room for goes into the other one.
    filling: bool,
}

impl S3Fifo {
    pub(super) fn new(capacity: usize, blocks: usize) -> Self {
        Self {
            lists: Lists::new(3, blocks),
            hits: vec![0; blocks],
            capacity,
            small: capacity / 10,
            ghost: capacity * 9 / 10,
            filling: true,
        }
    }

    fn evict(&mut self) {
        self.filling = false;
        let main = self.capacity - self.small;
        if self.lists.len(MAIN) > main || self.lists.len(SMALL) == 0 {
            self.evict_main();
        } else {
            self.evict_small();
        }
    }

    /// Everything in it may have been hit; then nothing goes yet.
    fn evict_small(&mut self) {
        while let Some(block) = self.lists.pop(SMALL) {
            if std::mem::take(&mut self.hits[block as usize]) >= PROMOTE_HITS {
                self.lists.push(MAIN, block);
                continue;
            }
            if self.lists.len(GHOST) == self.ghost {
                self.lists.pop(GHOST);
            }
            self.lists.push(GHOST, block);
            return;
        }
    }

    fn evict_main(&mut self) {
        while let Some(block) = self.lists.pop(MAIN) {
            let hits = &mut self.hits[block as usize];
            if *hits == 0 {
                return;
            }
            *hits = (*hits).min(HITS_MAX) - 1;
            self.lists.push(MAIN, block);
        }
    }
}

impl Cache for S3Fifo {
    fn access(&mut self, block: u32) -> bool {
        let place = self.lists.of(block);
        if place == SMALL || place == MAIN {
            let hits = &mut self.hits[block as usize];
            *hits = hits.saturating_add(1);
            return true;
        }
        if place == GHOST {
            self.lists.remove(block);
        }
        while self.lists.len(SMALL) + self.lists.len(MAIN) >= self.capacity {
            self.evict();
        }
        let full = self.filling && self.lists.len(SMALL) >= self.small;
        debug_assert!(place == GHOST || place == OUT);
        self.lists.push(if place == GHOST || full { MAIN } else { SMALL }, block);
        self.hits[block as usize] = 0;
        false
    }
}

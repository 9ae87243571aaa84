//! One queue, or several in a row: FIFO, CLOCK, LRU, SIEVE, segmented LRU.

use super::Cache;
use super::lists::{Lists, OUT};

/// In the order of admission.
pub(super) struct Fifo {
    lists: Lists,
    capacity: usize,
}

impl Fifo {
    pub(super) fn new(capacity: usize, blocks: usize) -> Self {
        Self { lists: Lists::new(1, blocks), capacity }
    }
}

impl Cache for Fifo {
    fn access(&mut self, block: u32) -> bool {
        if self.lists.of(block) != OUT {
            return true;
        }
        if self.lists.len(0) == self.capacity {
            self.lists.pop(0);
        }
        self.lists.push(0, block);
        false
    }
}

/// FIFO in which what was hit goes round once more.
pub(super) struct Clock {
    lists: Lists,
    hit: Vec<bool>,
    capacity: usize,
}

impl Clock {
    pub(super) fn new(capacity: usize, blocks: usize) -> Self {
        Self { lists: Lists::new(1, blocks), hit: vec![false; blocks], capacity }
    }
}

impl Cache for Clock {
    fn access(&mut self, block: u32) -> bool {
        if self.lists.of(block) != OUT {
            self.hit[block as usize] = true;
            return true;
        }
        while self.lists.len(0) == self.capacity {
            let Some(oldest) = self.lists.pop(0) else { break };
            if std::mem::take(&mut self.hit[oldest as usize]) {
                self.lists.push(0, oldest);
            }
        }
        self.hit[block as usize] = false;
        self.lists.push(0, block);
        false
    }
}

/// Least recently used.
pub(super) struct Lru {
    lists: Lists,
    capacity: usize,
}

impl Lru {
    pub(super) fn new(capacity: usize, blocks: usize) -> Self {
        Self { lists: Lists::new(1, blocks), capacity }
    }
}

impl Cache for Lru {
    fn access(&mut self, block: u32) -> bool {
        let hit = self.lists.of(block) != OUT;
        if !hit && self.lists.len(0) == self.capacity {
            self.lists.pop(0);
        }
        self.lists.push(0, block);
        hit
    }
}

/// A hand goes from old to new over a FIFO, takes marks off, and evicts where there is none.
pub(super) struct Sieve {
    lists: Lists,
    hit: Vec<bool>,
    hand: Option<u32>,
    capacity: usize,
}

impl Sieve {
    pub(super) fn new(capacity: usize, blocks: usize) -> Self {
        Self { lists: Lists::new(1, blocks), hit: vec![false; blocks], hand: None, capacity }
    }

    fn evict(&mut self) {
        let mut at = self.hand.or(self.lists.oldest(0));
        while let Some(block) = at {
            let next = self.lists.newer(block);
            if !std::mem::take(&mut self.hit[block as usize]) {
                self.lists.remove(block);
                self.hand = next;
                return;
            }
            at = next.or(self.lists.oldest(0));
        }
    }
}

impl Cache for Sieve {
    fn access(&mut self, block: u32) -> bool {
        if self.lists.of(block) != OUT {
            self.hit[block as usize] = true;
            return true;
        }
        if self.lists.len(0) == self.capacity {
            self.evict();
        }
        self.lists.push(0, block);
        false
    }
}

/// LRU segments in a row: a hit moves a block up by one, and what has no room there moves down.
pub(super) struct Slru {
    lists: Lists,
    capacities: Vec<usize>,
    capacity: usize,
}

impl Slru {
    /// Segments of these shares of the capacity, the lowest first.
    pub(super) fn new(shares: &[usize], capacity: usize, blocks: usize) -> Self {
        let all: usize = shares.iter().sum();
        let capacities = shares.iter().map(|share| capacity * share / all).collect();
        Self { lists: Lists::new(shares.len(), blocks), capacities, capacity }
    }

    pub(super) fn holds(&self, block: u32) -> bool {
        self.lists.of(block) != OUT
    }

    pub(super) fn len(&self) -> usize {
        (0..self.capacities.len()).map(|at| self.lists.len(at as u8)).sum()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    /// A block that is here was asked for.
    pub(super) fn hit(&mut self, block: u32) {
        let top = self.capacities.len() as u8 - 1;
        let mut at = (self.lists.of(block) + 1).min(top);
        self.lists.push(at, block);
        while at > 0 && self.lists.len(at) > self.capacities[at as usize] {
            let Some(oldest) = self.lists.oldest(at) else { break };
            at -= 1;
            self.lists.push(at, oldest);
        }
        if at == 0 && self.lists.len(0) > self.capacities[0] {
            self.lists.pop(0);
        }
    }

    /// What goes next.
    pub(super) fn victim(&self) -> Option<u32> {
        (0..self.capacities.len()).find_map(|at| self.lists.oldest(at as u8))
    }

    pub(super) fn evict(&mut self) {
        if let Some(victim) = self.victim() {
            self.lists.remove(victim);
        }
    }

    /// A new block goes into the lowest segment that has room.
    pub(super) fn admit(&mut self, block: u32) {
        let room = |&at: &usize| self.lists.len(at as u8) < self.capacities[at];
        let at = (0..self.capacities.len()).find(room).unwrap_or(0);
        self.lists.push(at as u8, block);
    }
}

impl Cache for Slru {
    fn access(&mut self, block: u32) -> bool {
        if self.holds(block) {
            self.hit(block);
            return true;
        }
        if self.is_full() {
            self.evict();
        }
        self.admit(block);
        false
    }
}

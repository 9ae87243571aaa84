//! ARC: an LRU of what was seen once and one of what was seen again, and how much each gets is
//! learnt from the ghosts of both.

use super::Cache;
use super::lists::Lists;

/// In the paper: T1, T2, B1, B2.
const ONCE: u8 = 0;
const AGAIN: u8 = 1;
const ONCE_GHOST: u8 = 2;
const AGAIN_GHOST: u8 = 3;

pub(super) struct Arc {
    lists: Lists,
    capacity: usize,
    /// What `ONCE` should have; in the paper p.
    target: f64,
}

impl Arc {
    pub(super) fn new(capacity: usize, blocks: usize) -> Self {
        Self { lists: Lists::new(4, blocks), capacity, target: 0.0 }
    }

    /// REPLACE of the paper.
    fn replace(&mut self, from_again_ghost: bool) {
        let once = self.lists.len(ONCE) as f64;
        let over = once > self.target || (once == self.target && from_again_ghost);
        let (from, to) = if once > 0.0 && over { (ONCE, ONCE_GHOST) } else { (AGAIN, AGAIN_GHOST) };
        if let Some(oldest) = self.lists.oldest(from) {
            self.lists.push(to, oldest);
        }
    }
}

impl Cache for Arc {
    fn access(&mut self, block: u32) -> bool {
        let len = |list| self.lists.len(list);
        match self.lists.of(block) {
            ONCE | AGAIN => {
                self.lists.push(AGAIN, block);
                return true;
            }
            ONCE_GHOST => {
                let delta = (len(AGAIN_GHOST) as f64 / len(ONCE_GHOST) as f64).max(1.0);
                self.target = (self.target + delta).min(self.capacity as f64);
                self.replace(false);
                self.lists.push(AGAIN, block);
                return false;
            }
            AGAIN_GHOST => {
                let delta = (len(ONCE_GHOST) as f64 / len(AGAIN_GHOST) as f64).max(1.0);
                self.target = (self.target - delta).max(0.0);
                self.replace(true);
                self.lists.push(AGAIN, block);
                return false;
            }
            _ => {}
        }
        let once = len(ONCE) + len(ONCE_GHOST);
        let all = once + len(AGAIN) + len(AGAIN_GHOST);
        if once == self.capacity {
            if len(ONCE) < self.capacity {
                self.lists.pop(ONCE_GHOST);
                self.replace(false);
            } else {
                self.lists.pop(ONCE);
            }
        } else if all >= self.capacity {
            if all == 2 * self.capacity {
                self.lists.pop(AGAIN_GHOST);
            }
            self.replace(false);
        }
        self.lists.push(ONCE, block);
        false
    }
}

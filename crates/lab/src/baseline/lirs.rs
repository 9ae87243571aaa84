//! LIRS: what comes back within a short distance (LIR) keeps nearly all of the cache; what does
//! not (HIR) passes through a queue of one percent of it.

use super::Cache;
use super::lists::{Lists, OUT};

/// The recency stack S of the paper, with blocks that are not in the cache any more.
const STACK: u8 = 0;
/// The queue Q of HIR blocks that are in the cache.
const QUEUE: u8 = 0;
/// Blocks of the stack that are not in the cache, in the order in which they left it.
const GONE: u8 = 1;

/// Blocks of the stack, in multiples of the capacity.
const STACK_MAX: usize = 2;

pub(super) struct Lirs {
    stack: Lists,
    /// A block may be in the stack and in one of these.
    queues: Lists,
    is_lir: Vec<bool>,
    lir: usize,
    lir_max: usize,
    hir_max: usize,
    capacity: usize,
}

impl Lirs {
    pub(super) fn new(capacity: usize, blocks: usize) -> Self {
        let hir_max = (capacity / 100).max(1);
        Self {
            stack: Lists::new(1, blocks),
            queues: Lists::new(2, blocks),
            is_lir: vec![false; blocks],
            lir: 0,
            lir_max: capacity - hir_max.min(capacity),
            hir_max,
            capacity,
        }
    }

    /// The oldest of the stack is LIR: only then does a place in it say something.
    fn prune(&mut self) {
        while let Some(oldest) = self.stack.oldest(STACK)
            && !self.is_lir[oldest as usize]
        {
            self.stack.remove(oldest);
            if self.queues.of(oldest) == GONE {
                self.queues.remove(oldest);
            }
        }
    }

    /// The oldest LIR block becomes the newest of the queue.
    fn demote(&mut self) {
        let Some(oldest) = self.stack.pop(STACK) else { return };
        self.is_lir[oldest as usize] = false;
        self.lir -= 1;
        while self.queues.len(QUEUE) >= self.hir_max {
            self.evict();
        }
        self.queues.push(QUEUE, oldest);
        self.prune();
    }

    /// The oldest of the queue leaves the cache.
    fn evict(&mut self) {
        let Some(oldest) = self.queues.pop(QUEUE) else { return };
        if self.stack.of(oldest) != OUT {
            self.queues.push(GONE, oldest);
        }
    }

    fn promote(&mut self, block: u32) {
        self.queues.remove(block);
        while self.lir >= self.lir_max && self.lir > 0 {
            self.demote();
        }
        self.stack.push(STACK, block);
        self.is_lir[block as usize] = true;
        self.lir += 1;
    }

    fn touch(&mut self, block: u32) -> bool {
        if self.is_lir[block as usize] {
            self.stack.push(STACK, block);
            self.prune();
            return true;
        }
        let hit = self.queues.of(block) == QUEUE;
        if self.stack.of(block) != OUT {
            // It goes up before the stack is pruned for its sake.
            self.stack.push(STACK, block);
            self.promote(block);
            return hit;
        }
        if !hit {
            if self.lir < self.lir_max {
                self.promote(block);
                return false;
            }
            while self.queues.len(QUEUE) >= self.hir_max {
                self.evict();
            }
        }
        self.queues.push(QUEUE, block);
        self.stack.push(STACK, block);
        hit
    }
}

impl Cache for Lirs {
    fn access(&mut self, block: u32) -> bool {
        let hit = self.touch(block);
        while self.stack.len(STACK) > STACK_MAX * self.capacity
            && let Some(gone) = self.queues.pop(GONE)
        {
            self.stack.remove(gone);
        }
        hit
    }
}

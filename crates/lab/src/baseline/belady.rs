//! The optimum: what is needed last goes first.

use std::collections::BinaryHeap;

use super::Cache;

const NEVER: u32 = u32::MAX;

pub(super) struct Belady {
    /// For each access, the next one to the same block.
    next: Vec<u32>,
    at: usize,
    /// When each block that is there is needed next; `None` if it is not there.
    due: Vec<Option<u32>>,
    len: usize,
    capacity: usize,
    /// By need; what a block does not agree with any more is passed over.
    farthest: BinaryHeap<(u32, u32)>,
}

impl Belady {
    pub(super) fn new(capacity: usize, accesses: &[u32]) -> Self {
        let blocks = accesses.iter().max().map_or(0, |&block| block as usize + 1);
        let mut soonest = vec![NEVER; blocks];
        let mut next = vec![NEVER; accesses.len()];
        for (at, &block) in accesses.iter().enumerate().rev() {
            next[at] = std::mem::replace(&mut soonest[block as usize], at as u32);
        }
        Self { next, at: 0, due: vec![None; blocks], len: 0, capacity, farthest: BinaryHeap::new() }
    }

    fn evict(&mut self) {
        while let Some((due, block)) = self.farthest.pop() {
            let entry = &mut self.due[block as usize];
            if *entry == Some(due) {
                *entry = None;
                self.len -= 1;
                return;
            }
        }
    }
}

impl Cache for Belady {
    fn access(&mut self, block: u32) -> bool {
        let due = self.next[self.at];
        self.at += 1;
        let hit = self.due[block as usize].is_some();
        if !hit {
            if self.len == self.capacity {
                self.evict();
            }
            self.len += 1;
        }
        self.due[block as usize] = Some(due);
        self.farthest.push((due, block));
        hit
    }
}

//! Doubly linked lists over block numbers: a block is in one list at the most.

const NONE: u32 = u32::MAX;

/// Place of a block that is in no list.
pub(super) const OUT: u8 = u8::MAX;

#[derive(Clone, Copy)]
struct Node {
    newer: u32,
    older: u32,
    list: u8,
}

#[derive(Clone, Copy)]
struct Ends {
    newest: u32,
    oldest: u32,
    len: usize,
}

/// A fixed number of lists of blocks, each with a newest and an oldest end.
pub(super) struct Lists {
    nodes: Vec<Node>,
    ends: Vec<Ends>,
}

impl Lists {
    /// Empty lists for blocks below `blocks`.
    pub(super) fn new(lists: usize, blocks: usize) -> Self {
        let node = Node { newer: NONE, older: NONE, list: OUT };
        let ends = Ends { newest: NONE, oldest: NONE, len: 0 };
        Self { nodes: vec![node; blocks], ends: vec![ends; lists] }
    }

    /// The list that a block is in, or [`OUT`].
    pub(super) fn of(&self, block: u32) -> u8 {
        self.nodes[block as usize].list
    }

    pub(super) fn len(&self, list: u8) -> usize {
        self.ends[list as usize].len
    }

    pub(super) fn oldest(&self, list: u8) -> Option<u32> {
        let oldest = self.ends[list as usize].oldest;
        (oldest != NONE).then_some(oldest)
    }

    /// The next newer block of the same list.
    pub(super) fn newer(&self, block: u32) -> Option<u32> {
        let newer = self.nodes[block as usize].newer;
        (newer != NONE).then_some(newer)
    }

    /// Puts a block, wherever it is, at the newest end of a list.
    pub(super) fn push(&mut self, list: u8, block: u32) {
        self.remove(block);
        let ends = &mut self.ends[list as usize];
        let newest = std::mem::replace(&mut ends.newest, block);
        ends.len += 1;
        if newest == NONE {
            ends.oldest = block;
        } else {
            self.nodes[newest as usize].newer = block;
        }
        self.nodes[block as usize] = Node { newer: NONE, older: newest, list };
    }

    /// Takes the oldest block of a list.
    pub(super) fn pop(&mut self, list: u8) -> Option<u32> {
        let oldest = self.oldest(list)?;
        self.remove(oldest);
        Some(oldest)
    }

    /// Takes a block out of its list, if it is in one.
    pub(super) fn remove(&mut self, block: u32) {
        let Node { newer, older, list } = self.nodes[block as usize];
        if list == OUT {
            return;
        }
        if newer != NONE {
            self.nodes[newer as usize].older = older;
        }
        if older != NONE {
            self.nodes[older as usize].newer = newer;
        }
        let ends = &mut self.ends[list as usize];
        ends.len -= 1;
        if newer == NONE {
            ends.newest = older;
        }
        if older == NONE {
            ends.oldest = newer;
        }
        self.nodes[block as usize].list = OUT;
    }
}

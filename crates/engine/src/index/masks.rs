//! The side table: sector masks of partial blocks.

use super::table::Key;

/// A partial block and its mask.
#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    first: u8,
    mask: u8,
}

/// Places by which the table grows: a quarter, and these at the least and at the most, so that no single change
/// takes much.
const STEP_MIN: usize = 4;
const STEP_MAX: usize = 128;

/// Sorted by region and block. Partial blocks are at most 65,536 in a pool, so a few hundred in a
/// shard: moving the tail at an insertion costs less than a tree's memory.
#[derive(Default)]
pub(super) struct Masks {
    entries: Vec<Entry>,
}

impl Masks {
    fn place(&self, key: Key, first: u32) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&(key, first), |e| (e.key, u32::from(e.first)))
    }

    /// The mask of a block that is partial.
    #[inline]
    pub fn get(&self, key: Key, first: u32) -> u8 {
        match self.place(key, first) {
            Ok(at) => self.entries[at].mask,
            Err(_) => panic!("partial block {first} of {key:?} has no mask"),
        }
    }

    /// Notes a mask; the block has none yet.
    pub fn insert(&mut self, key: Key, first: u32, mask: u8) {
        let Err(at) = self.place(key, first) else {
            panic!("block {first} of {key:?} has a mask already");
        };
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact((self.entries.len() / 4).min(STEP_MAX) + STEP_MIN);
        }
        self.entries.insert(at, Entry { key, first: first as u8, mask });
    }

    /// Forgets a mask and returns it.
    pub fn remove(&mut self, key: Key, first: u32) -> u8 {
        let Ok(at) = self.place(key, first) else {
            panic!("partial block {first} of {key:?} has no mask");
        };
        let mask = self.entries.remove(at).mask;
        if self.entries.len() * 2 + 16 < self.entries.capacity() {
            self.entries.shrink_to(self.entries.len() * 5 / 4);
        }
        mask
    }

    /// Number of partial blocks.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Most bytes that one request adds to that: it has two partial blocks.
    pub fn growth_max(&self) -> usize {
        ((self.entries.len() / 4).min(STEP_MAX) + 2 * STEP_MIN) * size_of::<Entry>()
    }

    /// Bytes held outside of the struct.
    pub fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }
}

//! How often cache blocks were asked for that are not, or not wholly, cached: for volumes of which only
//! what is asked for again and again is brought in.
//!
//! * A cache block is forgotten once as many others as the table is for came after its last count. Never
//!   more are remembered; the memory is there before the first count (INV-75). What is cached needs no count.
//! * A count never exceeds [`TOUCHES_MAX`].
//! * Two cache blocks share a count with a chance of 8 in 2^16: one is then brought in too early, which
//!   costs its place in the cache and nothing else.

use super::recent::Recent;
use super::{Access, Granule};

/// The most that is counted, and the largest threshold: behind it what is used often hardly gets into
/// the cache (QSAN, SSD Cache 2.0, "Populating the Cache").
pub const TOUCHES_MAX: u8 = 4;

/// Blocks of a pool for each cache block that is remembered: 9.2 KiB per GiB, which the bound of the index
/// leaves free. In cache blocks of 512 KiB or more it is what the pool holds, and more.
pub const POOL_BLOCKS_PER_CACHE_BLOCK: u64 = 128;

/// Cache blocks that are remembered for the smallest pool.
const CAPACITY_MIN: u32 = 1024;

const WRITES_SHIFT: u32 = 4;

const _: () = assert!(TOUCHES_MAX < 1 << WRITES_SHIFT);

/// A bounded, forgetful table of counts: reads in the lower half of a byte, writes in the upper.
#[derive(Debug)]
pub struct Touches(Recent<u8>);

impl Default for Touches {
    /// A table that remembers nothing and takes no memory.
    fn default() -> Self {
        Self::new(0)
    }
}

impl Touches {
    /// An empty table for at most `capacity` cache blocks.
    pub fn new(capacity: u32) -> Self {
        Self(Recent::new(capacity))
    }

    /// An empty table for a pool of so many blocks.
    pub fn for_pool(pool_blocks: u64) -> Self {
        let capacity = u32::try_from(pool_blocks / POOL_BLOCKS_PER_CACHE_BLOCK);
        Self::new(capacity.unwrap_or(u32::MAX).max(CAPACITY_MIN))
    }

    /// Whether there is no table.
    pub fn is_off(&self) -> bool {
        self.0.is_off()
    }

    /// Counts an access to a cache block.
    pub fn note(&mut self, block: Granule, access: Access) {
        self.add(block, access, 1);
    }

    /// The block has been asked for often enough, whatever that is.
    pub fn fill(&mut self, block: Granule, access: Access) {
        self.add(block, access, TOUCHES_MAX);
    }

    /// Accesses of this kind that are remembered, up to [`TOUCHES_MAX`].
    pub fn count(&self, block: Granule, access: Access) -> u8 {
        self.0.get(block).map_or(0, |counts| counts >> shift_of(access) & 0xF)
    }

    /// Bytes of the table.
    pub fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }

    /// Cache blocks remembered now; walks the table.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Is nothing remembered?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn add(&mut self, block: Granule, access: Access, count: u8) {
        // Within a tick the same block is young once.
        if !self.0.is_youngest(block) {
            self.0.turn();
        }
        let shift = shift_of(access);
        let counts = self.0.get(block).unwrap_or(0);
        let sum = ((counts >> shift & 0xF) + count).min(TOUCHES_MAX);
        self.0.put(block, counts & !(0xF << shift) | sum << shift);
    }
}

/// Where the count of this kind begins in a byte.
fn shift_of(access: Access) -> u32 {
    match access {
        Access::Read => 0,
        Access::Write => WRITES_SHIFT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::VolumeId;
    use proptest::prelude::*;

    fn block(number: u64) -> Granule {
        Granule { volume: VolumeId(1), number }
    }

    #[test]
    fn reads_and_writes_are_counted_apart_up_to_the_most() {
        let mut touches = Touches::new(100);
        for step in 1..10 {
            touches.note(block(7), Access::Read);
            assert_eq!(touches.count(block(7), Access::Read), step.min(TOUCHES_MAX));
            assert_eq!(touches.count(block(7), Access::Write), 0);
        }
        touches.note(block(7), Access::Write);
        assert_eq!(touches.count(block(7), Access::Write), 1);
        assert_eq!(touches.count(block(7), Access::Read), TOUCHES_MAX);
        touches.fill(block(8), Access::Write);
        assert_eq!(touches.count(block(8), Access::Write), TOUCHES_MAX);
        let other = Granule { volume: VolumeId(2), number: 7 };
        assert_eq!(touches.count(other, Access::Read), 0);
    }

    #[test]
    fn what_others_came_after_is_forgotten_and_what_is_asked_for_is_not() {
        let mut touches = Touches::new(1000);
        touches.note(block(1 << 40), Access::Read);
        for number in 0..10_000 {
            touches.note(block(number), Access::Read);
            if number % 100 == 0 {
                touches.note(block(1 << 41), Access::Read);
            }
        }
        assert_eq!(touches.count(block(1 << 40), Access::Read), 0);
        assert_eq!(touches.count(block(1 << 41), Access::Read), TOUCHES_MAX);
        let kept = (9_200..10_000).filter(|&n| touches.count(block(n), Access::Read) > 0).count();
        assert!(kept >= 700, "kept {kept} of the last 800");
    }

    #[test]
    fn the_table_of_a_pool_leaves_the_bound_of_the_index_its_room() {
        let gib = (1 << 30) / crate::ids::BLOCK_BYTES;
        let bytes = Touches::for_pool(gib * 1024).heap_bytes() / 1024;
        assert!(bytes < 10 << 10, "{bytes} B per GiB");
        assert_eq!(Touches::default().heap_bytes(), 0);
        assert!(Touches::for_pool(1).heap_bytes() < 8 << 10);
    }

    proptest! {
        #[test]
        fn counts_and_memory_keep_their_bounds(
            capacity in 0..60u32,
            steps in proptest::collection::vec((0..40u64, any::<bool>(), any::<bool>()), 0..2000),
        ) {
            let mut touches = Touches::new(capacity);
            let bytes = touches.heap_bytes();
            let mut real = std::collections::BTreeMap::<(u64, bool), u64>::new();
            for (number, write, fill) in steps {
                let access = if write { Access::Write } else { Access::Read };
                if fill && number % 5 == 0 {
                    touches.fill(block(number), access);
                    *real.entry((number, write)).or_default() += u64::from(TOUCHES_MAX);
                } else {
                    touches.note(block(number), access);
                    *real.entry((number, write)).or_default() += 1;
                }
                let count = u64::from(touches.count(block(number), access));
                prop_assert!(capacity == 0 || count > 0, "what has just been counted is known");
                prop_assert!(count <= u64::from(TOUCHES_MAX));
                prop_assert!(touches.len() <= capacity as usize);
            }
            prop_assert_eq!(touches.heap_bytes(), bytes);
            // No two of these 40 have the same fingerprint.
            for ((number, write), &real) in &real {
                let access = if *write { Access::Write } else { Access::Read };
                prop_assert!(u64::from(touches.count(block(*number), access)) <= real);
            }
        }
    }
}

//! How often cache blocks were asked for that are not, or not wholly, cached: for volumes of which only
//! what is asked for again and again is brought in.
//!
//! A fixed table of buckets, like [`Ghost`](super::Ghost)'s: a cache block is forgotten once as many others
//! as the table is for came after its last count. What is cached needs no count.
//!
//! * Never more than `capacity` cache blocks are remembered; the memory is there before the first count
//!   (INV-75).
//! * A count never exceeds [`TOUCHES_MAX`].
//! * Two cache blocks share a count with a chance of 8 in 2^16: one is then brought in too early, which
//!   costs its place in the cache and nothing else.

use super::ghost::mix;
use super::{Access, Granule};

/// The most that is counted, and the largest threshold: behind it what is used often hardly gets into
/// the cache (QSAN, SSD Cache 2.0, "Populating the Cache").
pub const TOUCHES_MAX: u8 = 4;

/// Bytes of a pool for each cache block that is remembered: 9.2 KiB per GiB, which the bound of the index
/// leaves free. In cache blocks of 512 KiB or more it is what the pool holds, and more.
const POOL_BLOCKS_PER_CACHE_BLOCK: u64 = 128;

/// Cache blocks that are remembered for the smallest pool.
const CAPACITY_MIN: u32 = 1024;

const PLACES: usize = 8;
/// Places of a bucket that are in use on average when the table is full.
const PLACES_USED: u32 = 7;
/// Ticks that an entry lives without being counted; half of what 8 bits tell apart.
const TICKS: u32 = 128;
const WRITES_SHIFT: u32 = 4;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// 0 is a free place.
    fingerprints: [u16; PLACES],
    ticks: [u8; PLACES],
    /// Reads in the lower half, writes in the upper.
    counts: [u8; PLACES],
}

const FREE: Bucket = Bucket { fingerprints: [0; PLACES], ticks: [0; PLACES], counts: [0; PLACES] };
const _: () = assert!(size_of::<Bucket>() == PLACES * 4);
const _: () = assert!(TOUCHES_MAX < 1 << WRITES_SHIFT);

/// A bounded, forgetful table of counts.
#[derive(Debug)]
pub struct Touches {
    buckets: Box<[Bucket]>,
    tick_insertions: u32,
    lifetime_ticks: u8,
    /// Entries made or made young again since the last tick.
    insertions: u32,
    tick: u8,
    swept: usize,
}

impl Default for Touches {
    /// A table that remembers nothing and takes no memory.
    fn default() -> Self {
        Self::new(0)
    }
}

impl Touches {
    /// An empty table for at most `capacity` cache blocks.
    pub fn new(capacity: u32) -> Self {
        let tick_insertions = capacity.div_ceil(TICKS).max(1);
        let lifetime_ticks = (capacity / tick_insertions) as u8;
        let buckets = vec![FREE; capacity.div_ceil(PLACES_USED) as usize].into_boxed_slice();
        Self { buckets, tick_insertions, lifetime_ticks, insertions: 0, tick: 0, swept: 0 }
    }

    /// An empty table for a pool of so many blocks.
    pub fn for_pool(pool_blocks: u64) -> Self {
        let capacity = u32::try_from(pool_blocks / POOL_BLOCKS_PER_CACHE_BLOCK);
        Self::new(capacity.unwrap_or(u32::MAX).max(CAPACITY_MIN))
    }

    /// Whether there is no table.
    pub fn is_off(&self) -> bool {
        self.buckets.is_empty()
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
        if self.buckets.is_empty() {
            return 0;
        }
        let (at, fingerprint) = self.place_of(block);
        let bucket = &self.buckets[at];
        let known = bucket.find(fingerprint).filter(|&place| self.is_live(bucket, place));
        known.map_or(0, |place| bucket.count(place, access))
    }

    /// Bytes of the table.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// Cache blocks remembered now; walks the table.
    pub fn len(&self) -> usize {
        let live = |bucket: &Bucket| (0..PLACES).filter(|&at| self.is_live(bucket, at)).count();
        self.buckets.iter().map(live).sum()
    }

    /// Is nothing remembered?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn add(&mut self, block: Granule, access: Access, count: u8) {
        if self.buckets.is_empty() {
            return;
        }
        let (at, fingerprint) = self.place_of(block);
        let find = |it: &Self| {
            let known = it.buckets[at].find(fingerprint);
            known.filter(|&place| it.is_live(&it.buckets[at], place))
        };
        // As much as is remembered has been counted of late.
        if find(self).is_none_or(|place| self.buckets[at].ticks[place] != self.tick) {
            self.turn();
        }
        let place = find(self).unwrap_or_else(|| {
            let place = self.buckets[at].find(fingerprint).unwrap_or_else(|| self.victim(at));
            self.buckets[at].fingerprints[place] = fingerprint;
            self.buckets[at].counts[place] = 0;
            place
        });
        let bucket = &mut self.buckets[at];
        bucket.ticks[place] = self.tick;
        let sum = (bucket.count(place, access) + count).min(TOUCHES_MAX);
        let (shift, other) = shifts(access);
        bucket.counts[place] = sum << shift | bucket.counts[place] & 0xF << other;
    }

    /// An entry becomes young: time goes on, and one bucket is rid of what has expired, long before the
    /// ticks of that come round.
    fn turn(&mut self) {
        self.insertions += 1;
        if self.insertions > self.tick_insertions {
            self.insertions = 1;
            self.tick = self.tick.wrapping_add(1);
        }
        self.swept = (self.swept + 1) % self.buckets.len();
        for place in 0..PLACES {
            if !self.is_live(&self.buckets[self.swept], place) {
                self.buckets[self.swept].fingerprints[place] = 0;
            }
        }
    }

    /// A free or expired place of a bucket, else the one counted longest ago.
    fn victim(&self, at: usize) -> usize {
        let bucket = &self.buckets[at];
        let unused = (0..PLACES).find(|&place| !self.is_live(bucket, place));
        let oldest = (0..PLACES).max_by_key(|&place| self.tick.wrapping_sub(bucket.ticks[place]));
        unused.or(oldest).unwrap_or(0)
    }

    fn is_live(&self, bucket: &Bucket, place: usize) -> bool {
        let age = self.tick.wrapping_sub(bucket.ticks[place]);
        bucket.fingerprints[place] != 0 && age < self.lifetime_ticks
    }

    /// Bucket from the upper half of the hash, fingerprint from the lower.
    fn place_of(&self, block: Granule) -> (usize, u16) {
        let hash = mix(mix(u64::from(block.volume.0)) ^ block.number);
        let bucket = ((hash >> 32) * self.buckets.len() as u64) >> 32;
        (bucket as usize, (hash as u16).max(1))
    }
}

/// Where the count of this kind begins in a byte, and where the other one's does.
fn shifts(access: Access) -> (u32, u32) {
    match access {
        Access::Read => (0, WRITES_SHIFT),
        Access::Write => (WRITES_SHIFT, 0),
    }
}

impl Bucket {
    fn find(&self, fingerprint: u16) -> Option<usize> {
        self.fingerprints.iter().position(|&other| other == fingerprint)
    }

    fn count(&self, place: usize, access: Access) -> u8 {
        self.counts[place] >> shifts(access).0 & 0xF
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

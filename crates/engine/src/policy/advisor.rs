//! How far apart in memory a volume's accesses are, watched while it is used: for the advice on a cache's size.
//!
//! After SHARDS with a fixed number of samples (Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST 2015).
//!
//! * A granule is in the sample if the hash of its number is below a threshold, so whatever is asked of it is seen. Its
//!   blocks are followed one by one. If there are too many granules the threshold is lowered, for good.
//! * The last access of each block has a place in time, of which a bit is set; a Fenwick tree over the words of bits tells how
//!   many blocks were touched behind it. That number stands for as many more as are not in the sample.
//! * Up to [`SAMPLES_MAX`] granules everything is in the sample, and the answer is exact.
//! * Memory is fixed at construction, [`MEMORY_BYTES_MAX`]; no clock: days are told.
//!
//! Measured (`advisor::tests`): the share of hits is within 2 points of that of an LRU, of loops, scans and skewed loads, for caches of
//! a hundredth of what was touched and more. Below that it may be 7 points off: that much depends on single granules.

use super::Access;
use super::curve::{DAYS_MAX, Day, place_of};
use crate::ids::VolumeId;
use crate::limits::GRANULE_BLOCKS;

/// Granules in the sample: 512 MiB of the volume, of which as much as it has touched. 8,192 samples give a mean error below
/// 1 % in the paper; blocks of a granule are touched together, so that they count for less than samples of their own.
const SAMPLES_MAX: usize = 1 << 13;

/// Places in time, four for each block in the sample: when they are used up those in use are moved together.
const PLACES: usize = SAMPLES_MAX * GRANULE_BLOCKS as usize * 4;

const WORDS: usize = PLACES / u64::BITS as usize;

/// The most that an advisor takes. Many volumes may have one.
pub const MEMORY_BYTES_MAX: usize = 1 << 20;

const _: () = assert!(
    SAMPLES_MAX * (size_of::<Sample>() + size_of::<u16>())
        + WORDS * (size_of::<u64>() + size_of::<u32>())
        + DAYS_MAX * size_of::<Day>()
        + size_of::<Advisor>()
        <= MEMORY_BYTES_MAX
);

/// No place in time: the block was not touched yet.
const NEVER: u32 = u32::MAX;

/// The end of a list of samples.
const NONE: u16 = u16::MAX;

const _: () = assert!(SAMPLES_MAX < NONE as usize && PLACES < NEVER as usize);

/// A granule of the sample.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Of its number; no other granule has the same.
    hash: u64,
    /// Places of its blocks.
    places: [u32; GRANULE_BLOCKS as usize],
    /// Its blocks that were touched on this day, bit n for block n.
    today: u16,
    /// The next one whose hash ends alike.
    next: u16,
}

/// When each block was touched last.
#[derive(Debug)]
struct Times {
    bits: Box<[u64]>,
    /// At n, the bits of as many words up to word n as n + 1 has trailing zeroes, as a power of two.
    tree: Box<[u32]>,
    /// The next place, and bits in all.
    next: u32,
    count: u32,
}

impl Times {
    fn new() -> Self {
        let (bits, tree) = (vec![0; WORDS].into(), vec![0; WORDS].into());
        Self { bits, tree, next: 0, count: 0 }
    }

    fn split(place: u32) -> (usize, u32) {
        ((place / u64::BITS) as usize, place % u64::BITS)
    }

    /// Bits in front of a place.
    fn before(&self, place: u32) -> u32 {
        let (word, bit) = Self::split(place);
        let mut sum = (self.bits[word] & ((1 << bit) - 1)).count_ones();
        let mut at = word;
        while at > 0 {
            sum += self.tree[at - 1];
            at &= at - 1;
        }
        sum
    }

    fn change(&mut self, place: u32, by: u32) {
        let (word, bit) = Self::split(place);
        self.bits[word] ^= 1 << bit;
        self.count = self.count.wrapping_add(by);
        let mut at = word + 1;
        while at <= WORDS {
            self.tree[at - 1] = self.tree[at - 1].wrapping_add(by);
            at += at & at.wrapping_neg();
        }
    }

    /// The next place in time.
    fn take(&mut self) -> u32 {
        let place = self.next;
        self.change(place, 1);
        self.next += 1;
        place
    }

    /// Blocks that were touched behind this place, which is free afterwards.
    fn leave(&mut self, place: u32) -> u32 {
        let behind = self.count - 1 - self.before(place);
        self.change(place, 1_u32.wrapping_neg());
        behind
    }

    /// Makes the tree what the bits say.
    fn grow_tree(&mut self) {
        self.tree.iter_mut().zip(&self.bits).for_each(|(sum, bits)| *sum = bits.count_ones());
        for at in 1..=WORDS {
            let above = at + (at & at.wrapping_neg());
            if above <= WORDS {
                self.tree[above - 1] += self.tree[at - 1];
            }
        }
    }
}

/// See the head of the file.
#[derive(Debug)]
pub struct Advisor {
    /// What makes the sample of each volume another one.
    key: u64,
    /// Hashes of the sample are below this.
    threshold: u64,
    samples: Vec<Sample>,
    /// The first of those whose hash ends so.
    heads: Box<[u16]>,
    times: Times,
    days: Vec<Day>,
}

/// The end of SplitMix64: each number has another hash.
fn mix(number: u64) -> u64 {
    let mut hash = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ (hash >> 31)
}

fn end_of(hash: u64) -> usize {
    hash as usize % SAMPLES_MAX
}

impl Advisor {
    /// Of a volume, with what an earlier one has seen on these days: the last of them goes on. Of more than [`DAYS_MAX`] the
    /// first ones count.
    pub fn new(volume: VolumeId, seen: &[Day]) -> Self {
        let mut days = Vec::with_capacity(DAYS_MAX);
        days.extend(seen.iter().take(DAYS_MAX).cloned());
        if days.is_empty() {
            days.push(Day::default());
        }
        Self {
            key: mix(volume.0.into()),
            threshold: u64::MAX,
            samples: Vec::with_capacity(SAMPLES_MAX),
            heads: vec![NONE; SAMPLES_MAX].into(),
            times: Times::new(),
            days,
        }
    }

    /// What was seen so far; the last day goes on.
    pub fn days(&self) -> &[Day] {
        &self.days
    }

    /// Another day begins; false if there were [`DAYS_MAX`] already: then it is still the last one.
    pub fn begin_day(&mut self) -> bool {
        if self.days.len() >= DAYS_MAX {
            return false;
        }
        self.days.push(Day::default());
        self.samples.iter_mut().for_each(|sample| sample.today = 0);
        true
    }

    /// How many blocks one of the sample stands for.
    fn weight(&self) -> f64 {
        u64::MAX as f64 / self.threshold as f64
    }

    fn today(&mut self) -> &mut Day {
        let last = self.days.len() - 1;
        &mut self.days[last]
    }

    /// A client has asked for so many bytes, which are in these blocks.
    pub fn access(&mut self, first: u64, count: u64, bytes: u64, access: Access) {
        let today = self.today();
        today.accesses += count;
        match access {
            Access::Read => today.read_bytes += bytes,
            Access::Write => today.written_bytes += bytes,
        }
        let (mut at, end) = (first, first + count);
        while at < end {
            let granule = at / GRANULE_BLOCKS;
            let next = end.min((granule + 1) * GRANULE_BLOCKS);
            let hash = mix(granule ^ self.key);
            if let Some(sample) = self.find(hash) {
                for block in at..next {
                    self.touch(sample, (block % GRANULE_BLOCKS) as usize);
                }
            }
            at = next;
        }
    }

    /// A granule of the sample, which it may be from now on; `None` if it is not in it.
    fn find(&mut self, hash: u64) -> Option<usize> {
        if hash >= self.threshold {
            return None;
        }
        let mut at = self.heads[end_of(hash)];
        while at != NONE {
            let sample = &self.samples[usize::from(at)];
            if sample.hash == hash {
                return Some(usize::from(at));
            }
            at = sample.next;
        }
        while self.samples.len() >= SAMPLES_MAX {
            self.lower_threshold();
        }
        (hash < self.threshold).then(|| {
            let places = [NEVER; GRANULE_BLOCKS as usize];
            self.samples.push(Sample { hash, places, today: 0, next: NONE });
            self.chain(self.samples.len() - 1);
            self.samples.len() - 1
        })
    }

    fn chain(&mut self, at: usize) {
        let head = &mut self.heads[end_of(self.samples[at].hash)];
        self.samples[at].next = std::mem::replace(head, at as u16);
    }

    /// Lets go of an eighth of the sample.
    #[cold]
    fn lower_threshold(&mut self) {
        self.threshold -= self.threshold / 8;
        let (threshold, times) = (self.threshold, &mut self.times);
        self.samples.retain(|sample| {
            let stays = sample.hash < threshold;
            for &place in sample.places.iter().filter(|place| !stays && **place != NEVER) {
                let (word, bit) = Times::split(place);
                times.bits[word] &= !(1 << bit);
                times.count -= 1;
            }
            stays
        });
        times.grow_tree();
        self.heads.fill(NONE);
        (0..self.samples.len()).for_each(|at| self.chain(at));
    }

    /// Moves the places that are in use together.
    #[cold]
    fn compact(&mut self) {
        let times = &mut self.times;
        // For a moment the tree is how many bits are in front of each word.
        let mut sum = 0;
        for (before, bits) in times.tree.iter_mut().zip(&times.bits) {
            *before = sum;
            sum += bits.count_ones();
        }
        for sample in &mut self.samples {
            for place in sample.places.iter_mut().filter(|place| **place != NEVER) {
                let (word, bit) = Times::split(*place);
                let within = (times.bits[word] & ((1 << bit) - 1)).count_ones();
                *place = times.tree[word] + within;
            }
        }
        times.next = sum;
        for (word, bits) in times.bits.iter_mut().enumerate() {
            let left = u64::from(sum).saturating_sub(word as u64 * u64::from(u64::BITS));
            *bits = match left {
                0..64 => (1 << left) - 1,
                _ => u64::MAX,
            };
        }
        times.grow_tree();
    }

    /// A block of a granule of the sample is touched.
    fn touch(&mut self, at: usize, block: usize) {
        if self.times.next as usize == PLACES {
            self.compact();
        }
        let weight = self.weight();
        let sample = &mut self.samples[at];
        let is_first_today = sample.today >> block & 1 == 0;
        sample.today |= 1 << block;
        let before = std::mem::replace(&mut sample.places[block], NEVER);
        let distance = (before != NEVER).then(|| self.times.leave(before));
        self.samples[at].places[block] = self.times.take();
        let today = self.today();
        if is_first_today {
            today.touched += weight;
        }
        match distance {
            None => today.cold += weight,
            Some(distance) => {
                // Room for them and for itself, in as much as that stands for.
                let blocks = (f64::from(distance + 1) * weight).round();
                today.distances[place_of(blocks as u64 - 1)] += weight;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use rustc_hash::FxHashMap;

    use super::super::curve::{Curve, DISTANCES, WorkingSet};
    use super::*;
    use crate::ids::BLOCK_BYTES;

    const ONE: VolumeId = VolumeId(1);

    /// Largest difference from the exact share of hits, for caches of a hundredth of what is touched.
    const ERROR_MAX: f64 = 0.02;

    fn advisor() -> Advisor {
        Advisor::new(ONE, &[])
    }

    /// Numbers that look random, from a seed.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 += 1;
            mix(self.0)
        }

        /// From 0 to 1.
        fn ratio(&mut self) -> f64 {
            (self.next() >> 11) as f64 / (1_u64 << 53) as f64
        }
    }

    /// Things of which the kth is asked for with a popularity of 1 / k^skew.
    struct Zipf(Vec<f64>);

    impl Zipf {
        fn new(things: u64, skew: f64) -> Self {
            let mut sum = 0.0;
            let below = (1..=things).map(|k| {
                sum += (k as f64).powf(-skew);
                sum
            });
            Self(below.collect())
        }

        /// One of them; they lie anywhere.
        fn ask(&self, random: &mut Random) -> u64 {
            let things = self.0.len();
            let at = random.ratio() * self.0[things - 1];
            let rank = self.0.partition_point(|&below| below <= at).min(things - 1);
            // Odd, so that no two ranks lie at one place of a power of two.
            (rank as u64).wrapping_mul(0x9E37_79B1) % things as u64
        }
    }

    /// An LRU, as it is defined.
    struct Lru {
        size: usize,
        last: FxHashMap<u64, u64>,
        order: BTreeMap<u64, u64>,
        hits: u64,
        now: u64,
    }

    impl Lru {
        fn new(size: usize) -> Self {
            Self { size, last: FxHashMap::default(), order: BTreeMap::new(), hits: 0, now: 0 }
        }

        fn access(&mut self, thing: u64) {
            self.now += 1;
            if let Some(before) = self.last.insert(thing, self.now) {
                self.hits += 1;
                self.order.remove(&before);
            }
            self.order.insert(self.now, thing);
            if self.order.len() > self.size {
                let (_, oldest) = self.order.pop_first().unwrap();
                self.last.remove(&oldest);
            }
        }

        fn ratio(&self) -> f64 {
            self.hits as f64 / self.now as f64
        }
    }

    /// What is asked for is touched in things of `unit` blocks; the largest difference at all these sizes.
    fn error(unit: u64, sizes: &[usize], asked: impl Fn() -> Box<dyn Iterator<Item = u64>>) -> f64 {
        let mut advisor = advisor();
        let bytes = unit * BLOCK_BYTES;
        asked().for_each(|thing| advisor.access(thing * unit, unit, bytes, Access::Read));
        assert!(advisor.threshold < u64::MAX, "a sample");
        let curve = Curve::of(advisor.days());
        let errors = sizes.iter().map(|&size| {
            let mut lru = Lru::new(size);
            asked().for_each(|thing| lru.access(thing));
            let (said, is) = (curve.hits(size as u64 * unit), lru.ratio());
            (said - is).abs()
        });
        errors.fold(0.0, f64::max)
    }

    #[test]
    fn distances_are_exact_while_all_is_in_the_sample() {
        let (mut advisor, mut random) = (advisor(), Random(7));
        // The last one first.
        let mut stack: Vec<u64> = Vec::new();
        let mut exact = Day::default();
        let mut today = BTreeSet::new();
        for _ in 0..20_000 {
            let (first, count) =
                (random.next() % 500 + random.next() % 500, random.next() % 40 + 1);
            let access = if random.next() % 3 == 0 { Access::Write } else { Access::Read };
            advisor.access(first, count, count * BLOCK_BYTES - 512, access);
            match access {
                Access::Read => exact.read_bytes += count * BLOCK_BYTES - 512,
                Access::Write => exact.written_bytes += count * BLOCK_BYTES - 512,
            }
            exact.accesses += count;
            for block in first..first + count {
                exact.touched += f64::from(today.insert(block));
                match stack.iter().position(|&other| other == block) {
                    Some(distance) => {
                        stack.remove(distance);
                        exact.distances[place_of(distance as u64)] += 1.0;
                    }
                    None => exact.cold += 1.0,
                }
                stack.insert(0, block);
            }
        }
        assert_eq!(advisor.threshold, u64::MAX);
        assert_eq!(advisor.days(), [exact]);
    }

    /// More accesses than there are places in time.
    #[test]
    fn distances_are_exact_when_places_have_been_moved_together() {
        let mut advisor = advisor();
        let (blocks, rounds) = (90_000, 20);
        for _ in 0..rounds {
            (0..blocks).step_by(16).for_each(|at| advisor.access(at, 16, 0, Access::Read));
        }
        assert!(advisor.times.next < PLACES as u32 && advisor.times.count == blocks as u32);
        let mut exact = [0.0; DISTANCES];
        exact[place_of(blocks - 1)] = (blocks * (rounds - 1)) as f64;
        assert_eq!((advisor.days()[0].distances, advisor.days()[0].cold), (exact, blocks as f64));
    }

    #[test]
    fn a_sample_says_what_an_lru_would_hit_of_popular_granules() {
        let zipf = std::rc::Rc::new(Zipf::new(1 << 18, 0.9));
        let sizes = [1 << 11, 1 << 13, 1 << 15, 3 << 15, 1 << 18];
        let worst = error(16, &sizes, || {
            let (zipf, mut random) = (std::rc::Rc::clone(&zipf), Random(11));
            Box::new((0..1_000_000).map(move |_| zipf.ask(&mut random)))
        });
        assert!(worst < ERROR_MAX, "{worst}");
    }

    #[test]
    fn a_sample_says_what_an_lru_would_hit_of_popular_blocks() {
        let zipf = std::rc::Rc::new(Zipf::new(1 << 20, 1.1));
        let sizes = [1 << 10, 1 << 13, 1 << 15, 1 << 19];
        let worst = error(1, &sizes, || {
            let (zipf, mut random) = (std::rc::Rc::clone(&zipf), Random(13));
            Box::new((0..1_000_000).map(move |_| zipf.ask(&mut random)))
        });
        assert!(worst < ERROR_MAX, "{worst}");
    }

    #[test]
    fn a_loop_is_seen_with_its_length() {
        let mut advisor = advisor();
        let granules: u64 = 300_000;
        for at in (0..5).flat_map(|_| 0..granules) {
            advisor.access(at * 16, 16, 16 * BLOCK_BYTES, Access::Read);
        }
        let curve = Curve::of(advisor.days());
        let blocks = granules * 16;
        let (wanted, all) = (curve.blocks_wanted().unwrap(), curve.hits(blocks * 13 / 10));
        assert!(
            (wanted as f64 / blocks as f64 - 1.0).abs() < 0.25,
            "a quarter is as fine as it gets"
        );
        assert!((all - 0.8).abs() < ERROR_MAX && curve.hits(blocks * 7 / 10) < ERROR_MAX, "{all}");
        let touched = WorkingSet::of(advisor.days()).usual;
        assert!((touched / blocks as f64 - 1.0).abs() < ERROR_MAX, "{touched}");
    }

    #[test]
    fn a_scan_that_never_comes_again_needs_no_cache() {
        for volume in 1..=8 {
            let mut advisor = Advisor::new(VolumeId(volume), &[]);
            (0..1_000_000).for_each(|at| advisor.access(at * 16, 16, 1 << 16, Access::Read));
            let curve = Curve::of(advisor.days());
            assert!(curve.hits_endless() < ERROR_MAX && curve.blocks_wanted().is_none());
        }
    }

    #[test]
    fn memory_stays_what_it_was_at_the_beginning() {
        let (mut advisor, mut random) = (advisor(), Random(3));
        let room = |advisor: &Advisor| (advisor.samples.capacity(), advisor.days.capacity());
        let before = room(&advisor);
        for _ in 0..2_000_000 {
            advisor.access(random.next() % (1 << 34), 3, 0, Access::Write);
            assert!(advisor.samples.len() <= SAMPLES_MAX);
        }
        while advisor.begin_day() {}
        assert_eq!(room(&advisor), before);
        let used: usize =
            advisor.samples.iter().flat_map(|s| s.places).filter(|&place| place != NEVER).count();
        assert_eq!(used, advisor.times.count as usize, "nothing is left of who has gone");
    }

    #[test]
    fn what_was_seen_goes_on_and_days_have_an_end() {
        let mut advisor = advisor();
        advisor.access(0, 4, 4 * BLOCK_BYTES, Access::Read);
        assert!(advisor.begin_day());
        for _ in 0..2 {
            advisor.access(2, 4, 4 * BLOCK_BYTES, Access::Write);
        }
        let of = |advisor: &Advisor| -> Vec<_> {
            advisor.days().iter().map(|day| (day.accesses, day.touched, day.cold)).collect()
        };
        assert_eq!(of(&advisor), [(4, 4.0, 4.0), (8, 4.0, 2.0)]);
        let mut next = Advisor::new(ONE, advisor.days());
        assert_eq!(next.days(), advisor.days());
        next.access(9, 1, BLOCK_BYTES, Access::Read);
        assert_eq!(of(&next), [(4, 4.0, 4.0), (9, 5.0, 3.0)]);
        assert_eq!((3..=DAYS_MAX).filter(|_| next.begin_day()).count(), DAYS_MAX - 2);
        assert!(!next.begin_day() && next.days().len() == DAYS_MAX);
        let many = vec![Day::default(); 2 * DAYS_MAX];
        assert_eq!(Advisor::new(ONE, &many).days().len(), DAYS_MAX);
    }
}

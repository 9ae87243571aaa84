//! The ghost: granules evicted of late, remembered by fingerprint only.
//!
//! A fixed table of buckets, as in the S3-FIFO authors' implementation: no list; an entry
//! is forgotten once as many granules were inserted after it as the ghost may remember.
//! Where theirs keeps a 32-bit stamp, this keeps 8 bits: age is counted in ticks of 1/128 of the
//! capacity. That makes 5 bytes per place, and the table a third smaller.
//!
//! * Never more than `capacity` granules are remembered; memory is fixed at construction (INV-23).
//! * An entry is cleared before its 8-bit age can come round: each insertion sweeps one bucket.
//! * A wrong "yes" has a chance of 8 in 2^32 and costs a place in the wrong stream, nothing else.

use super::Granule;

/// Places of a bucket.
const PLACES: usize = 8;
/// Places of a bucket that are in use on average when the ghost is full. The bucket that gets
/// more than eight forgets its oldest early.
const PLACES_USED: u32 = 7;
/// Ticks that an entry lives; half of what 8 bits tell apart.
const TICKS: u32 = 128;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// 0 is a free place.
    fingerprints: [u32; PLACES],
    ticks: [u8; PLACES],
}

const FREE: Bucket = Bucket { fingerprints: [0; PLACES], ticks: [0; PLACES] };
const _: () = assert!(size_of::<Bucket>() == PLACES * 5);

/// A bounded, forgetful set of granules.
#[derive(Debug)]
pub struct Ghost {
    buckets: Box<[Bucket]>,
    tick_insertions: u32,
    lifetime_ticks: u8,
    /// Insertions since the last tick.
    insertions: u32,
    tick: u8,
    swept: usize,
}

impl Ghost {
    /// An empty ghost for at most `capacity` granules; with 0 it remembers nothing.
    pub fn new(capacity: u32) -> Self {
        let tick_insertions = capacity.div_ceil(TICKS).max(1);
        let lifetime_ticks = (capacity / tick_insertions) as u8;
        assert!(u32::from(lifetime_ticks) <= TICKS);
        let buckets = vec![FREE; capacity.div_ceil(PLACES_USED) as usize].into_boxed_slice();
        Self { buckets, tick_insertions, lifetime_ticks, insertions: 0, tick: 0, swept: 0 }
    }

    /// Remembers a granule as evicted now.
    pub fn insert(&mut self, granule: Granule) {
        if self.buckets.is_empty() {
            return;
        }
        self.turn();
        self.sweep();
        let (at, fingerprint) = self.place_of(granule);
        let (tick, lifetime_ticks) = (self.tick, self.lifetime_ticks);
        let bucket = &mut self.buckets[at];
        let place = bucket.find(fingerprint).unwrap_or_else(|| bucket.victim(tick, lifetime_ticks));
        bucket.fingerprints[place] = fingerprint;
        bucket.ticks[place] = tick;
    }

    /// Remembers a granule no more.
    pub fn remove(&mut self, granule: Granule) {
        if self.buckets.is_empty() {
            return;
        }
        let (at, fingerprint) = self.place_of(granule);
        let bucket = &mut self.buckets[at];
        if let Some(place) = bucket.find(fingerprint) {
            bucket.fingerprints[place] = 0;
        }
    }

    /// Is the granule remembered?
    pub fn contains(&self, granule: Granule) -> bool {
        if self.buckets.is_empty() {
            return false;
        }
        let (at, fingerprint) = self.place_of(granule);
        let bucket = &self.buckets[at];
        let found = bucket.find(fingerprint);
        found.is_some_and(|place| bucket.age(place, self.tick) < self.lifetime_ticks)
    }

    /// Granules remembered now; walks the table.
    pub fn len(&self) -> usize {
        let live = |bucket: &Bucket| {
            let is_live = |&place: &usize| bucket.is_live(place, self.tick, self.lifetime_ticks);
            (0..PLACES).filter(is_live).count()
        };
        self.buckets.iter().map(live).sum()
    }

    /// Is nothing remembered?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the table.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    fn turn(&mut self) {
        self.insertions += 1;
        if self.insertions > self.tick_insertions {
            self.insertions = 1;
            self.tick = self.tick.wrapping_add(1);
        }
    }

    /// Clears what expired in one bucket. A round takes one insertion per bucket, a seventh of the
    /// capacity; an expired entry has at least 128 ticks, the whole capacity, before it looks new.
    fn sweep(&mut self) {
        self.swept = (self.swept + 1) % self.buckets.len();
        let (tick, lifetime_ticks) = (self.tick, self.lifetime_ticks);
        let bucket = &mut self.buckets[self.swept];
        for place in 0..PLACES {
            if !bucket.is_live(place, tick, lifetime_ticks) {
                bucket.fingerprints[place] = 0;
            }
        }
    }

    /// Bucket from the upper half of the hash, fingerprint from the lower.
    fn place_of(&self, granule: Granule) -> (usize, u32) {
        let hash = mix(mix(u64::from(granule.volume.0)) ^ granule.number);
        let bucket = ((hash >> 32) * self.buckets.len() as u64) >> 32;
        (bucket as usize, (hash as u32).max(1))
    }
}

impl Bucket {
    fn find(&self, fingerprint: u32) -> Option<usize> {
        self.fingerprints.iter().position(|&other| other == fingerprint)
    }

    fn age(&self, place: usize, tick: u8) -> u8 {
        tick.wrapping_sub(self.ticks[place])
    }

    fn is_live(&self, place: usize, tick: u8, lifetime_ticks: u8) -> bool {
        self.fingerprints[place] != 0 && self.age(place, tick) < lifetime_ticks
    }

    /// A free or expired place, else the oldest.
    fn victim(&self, tick: u8, lifetime_ticks: u8) -> usize {
        let unused = (0..PLACES).find(|&place| !self.is_live(place, tick, lifetime_ticks));
        let oldest = (0..PLACES).max_by_key(|&place| self.age(place, tick));
        unused.or(oldest).unwrap_or(0)
    }
}

/// The finisher of SplitMix64: every bit of the input reaches every bit of the output. The hash
/// of `rustc-hash` leaves the low bits of sequential numbers too regular for a fingerprint.
pub(super) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::VolumeId;

    fn granule(number: u64) -> Granule {
        Granule { volume: VolumeId(1), number }
    }

    #[test]
    fn remembers_the_last_and_forgets_the_old() {
        let mut ghost = Ghost::new(1000);
        (0..10_000).for_each(|number| ghost.insert(granule(number)));
        let kept = (9_200..10_000).filter(|&number| ghost.contains(granule(number))).count();
        assert!(kept >= 720, "kept {kept} of the last 800");
        assert!((0..9_000).all(|number| !ghost.contains(granule(number))));
        assert!(ghost.len() <= 1000);
    }

    #[test]
    fn a_granule_evicted_again_is_young_again() {
        let mut ghost = Ghost::new(4);
        for number in [0, 1, 2, 0, 3, 4] {
            ghost.insert(granule(number));
        }
        assert!(ghost.contains(granule(0)));
        assert!(!ghost.contains(granule(1)));
    }

    #[test]
    fn an_age_that_comes_round_does_not_revive_an_entry() {
        for capacity in [1, 7, 100, 128, 129, 5000] {
            let mut ghost = Ghost::new(capacity);
            ghost.insert(granule(0));
            for number in 1..=u64::from(capacity) * 4 {
                ghost.insert(granule(number));
                let due = number >= u64::from(capacity);
                assert!(!(due && ghost.contains(granule(0))), "{capacity} {number}");
            }
        }
    }

    #[test]
    fn a_ghost_of_nothing_remembers_nothing() {
        let mut ghost = Ghost::new(0);
        ghost.insert(granule(1));
        assert!(!ghost.contains(granule(1)) && ghost.is_empty());
        assert_eq!(ghost.heap_bytes(), 0);
    }

    #[test]
    fn what_is_removed_is_forgotten_and_leaves_its_place() {
        let mut ghost = Ghost::new(7);
        (0..7).for_each(|number| ghost.insert(granule(number)));
        ghost.remove(granule(6));
        ghost.remove(granule(100));
        assert!(!ghost.contains(granule(6)) && ghost.contains(granule(5)));
        assert_eq!(ghost.len(), 6);
        Ghost::new(0).remove(granule(1));
    }

    #[test]
    fn volumes_do_not_share_granules() {
        let mut ghost = Ghost::new(100);
        ghost.insert(granule(7));
        assert!(!ghost.contains(Granule { volume: VolumeId(2), number: 7 }));
    }

    #[test]
    fn costs_less_than_six_bytes_a_granule() {
        assert!(Ghost::new(1 << 20).heap_bytes() < 6 << 20);
    }
}

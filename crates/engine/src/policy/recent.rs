//! What was heard of granules of late: a fixed table of buckets, without a list.
//!
//! * Never more than `capacity` granules are remembered, and one is forgotten once as many others
//!   became young after it; memory is fixed at construction.
//! * Age is counted in ticks of 1/128 of the capacity, in 8 bits. An entry is cleared before its age can
//!   come round: each turn sweeps one bucket.
//! * Two granules are taken for one with a chance of 8 in as many as there are fingerprints.

use super::Granule;

/// Places of a bucket.
const PLACES: usize = 8;
/// Places of a bucket that are in use on average when the table is full. The bucket that gets
/// more than eight forgets its oldest early.
const PLACES_USED: u32 = 7;
/// Ticks that an entry lives; half of what 8 bits tell apart.
const TICKS: u32 = 128;

/// What tells the granules of a bucket apart.
type Fingerprint = u16;

/// The fingerprint of no granule: a free place.
const FREE: Fingerprint = 0;

#[derive(Clone, Copy, Debug)]
struct Bucket<V> {
    fingerprints: [Fingerprint; PLACES],
    ticks: [u8; PLACES],
    values: [V; PLACES],
}

const _: () = assert!(size_of::<Bucket<u16>>() == PLACES * 5);
const _: () = assert!(size_of::<Bucket<u8>>() == PLACES * 4);

/// A bounded, forgetful table of values by granule.
#[derive(Debug)]
pub(super) struct Recent<V> {
    buckets: Box<[Bucket<V>]>,
    tick_turns: u32,
    lifetime_ticks: u8,
    /// Turns since the last tick.
    turns: u32,
    tick: u8,
    swept: usize,
}

impl<V: Copy + Default> Recent<V> {
    /// An empty table for at most `capacity` granules; with 0 it remembers nothing.
    pub fn new(capacity: u32) -> Self {
        let tick_turns = capacity.div_ceil(TICKS).max(1);
        let lifetime_ticks = (capacity / tick_turns) as u8;
        assert!(u32::from(lifetime_ticks) <= TICKS);
        let free = Bucket {
            fingerprints: [FREE; PLACES],
            ticks: [0; PLACES],
            values: [V::default(); PLACES],
        };
        let buckets = vec![free; capacity.div_ceil(PLACES_USED) as usize].into_boxed_slice();
        Self { buckets, tick_turns, lifetime_ticks, turns: 0, tick: 0, swept: 0 }
    }

    /// Whether there is no table.
    pub fn is_off(&self) -> bool {
        self.buckets.is_empty()
    }

    /// What is remembered of a granule.
    pub fn get(&self, granule: Granule) -> Option<V> {
        self.find(granule).map(|(bucket, place)| bucket.values[place])
    }

    /// Whether it was put down since the last tick: its age is what it would be if it were put down now.
    pub fn is_youngest(&self, granule: Granule) -> bool {
        self.find(granule).is_some_and(|(bucket, place)| bucket.ticks[place] == self.tick)
    }

    /// A granule is about to become young: time goes on, and one bucket is rid of what has expired. A
    /// round takes one turn per bucket, a seventh of the capacity; what has expired has at least
    /// 128 ticks, the whole capacity, before it looks new.
    pub fn turn(&mut self) {
        if self.is_off() {
            return;
        }
        self.turns += 1;
        if self.turns > self.tick_turns {
            self.turns = 1;
            self.tick = self.tick.wrapping_add(1);
        }
        self.swept = (self.swept + 1) % self.buckets.len();
        let (tick, lifetime_ticks) = (self.tick, self.lifetime_ticks);
        let bucket = &mut self.buckets[self.swept];
        for place in 0..PLACES {
            if !bucket.is_live(place, tick, lifetime_ticks) {
                bucket.fingerprints[place] = FREE;
            }
        }
    }

    /// Remembers this of a granule, which is young from now on.
    pub fn put(&mut self, granule: Granule, value: V) {
        if self.is_off() {
            return;
        }
        let (at, fingerprint) = self.place_of(granule);
        let (tick, lifetime_ticks) = (self.tick, self.lifetime_ticks);
        let bucket = &mut self.buckets[at];
        let place = bucket.find(fingerprint).unwrap_or_else(|| bucket.victim(tick, lifetime_ticks));
        bucket.fingerprints[place] = fingerprint;
        bucket.ticks[place] = tick;
        bucket.values[place] = value;
    }

    /// Changes what is remembered of a granule, if anything; its age stays. `None` forgets it.
    pub fn change(&mut self, granule: Granule, change: impl FnOnce(V) -> Option<V>) {
        if self.is_off() {
            return;
        }
        let (at, fingerprint) = self.place_of(granule);
        let bucket = &mut self.buckets[at];
        if let Some(place) = bucket.find(fingerprint) {
            match change(bucket.values[place]) {
                Some(value) => bucket.values[place] = value,
                None => bucket.fingerprints[place] = FREE,
            }
        }
    }

    /// Granules remembered now; walks the table.
    pub fn len(&self) -> usize {
        let live = |bucket: &Bucket<V>| {
            let is_live = |&place: &usize| bucket.is_live(place, self.tick, self.lifetime_ticks);
            (0..PLACES).filter(is_live).count()
        };
        self.buckets.iter().map(live).sum()
    }

    /// Bytes of the table.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    fn find(&self, granule: Granule) -> Option<(&Bucket<V>, usize)> {
        if self.is_off() {
            return None;
        }
        let (at, fingerprint) = self.place_of(granule);
        let bucket = &self.buckets[at];
        let found = bucket.find(fingerprint);
        let live = found.filter(|&place| bucket.is_live(place, self.tick, self.lifetime_ticks));
        live.map(|place| (bucket, place))
    }

    /// Bucket from the upper half of the hash, fingerprint from the lower.
    fn place_of(&self, granule: Granule) -> (usize, Fingerprint) {
        let hash = mix(mix(u64::from(granule.volume.0)) ^ granule.number);
        let bucket = ((hash >> 32) * self.buckets.len() as u64) >> 32;
        (bucket as usize, (hash as Fingerprint).max(1))
    }
}

impl<V> Bucket<V> {
    fn find(&self, fingerprint: Fingerprint) -> Option<usize> {
        self.fingerprints.iter().position(|&other| other == fingerprint)
    }

    fn age(&self, place: usize, tick: u8) -> u8 {
        tick.wrapping_sub(self.ticks[place])
    }

    fn is_live(&self, place: usize, tick: u8, lifetime_ticks: u8) -> bool {
        self.fingerprints[place] != FREE && self.age(place, tick) < lifetime_ticks
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

//! Where a shard keeps its regions: a directory of leaves, two levels in all.
//!
//! A shard is about 1 MiB, so it has some hundreds of leaves; moving the tail of the directory
//! when a leaf is split costs less than a deeper tree.

use std::ops::Range;

use super::body::{Body, Built, mark, patch, splice};
use super::leaf::{LEAF_BYTES_MAX, LEAF_BYTES_MIN, LEAF_ENTRIES_MAX, Leaf};
use super::region::{EXTENTS_MAX, Extents, heat_mask};
use crate::ids::VolumeId;

/// A region of a volume; ordered by volume, then address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub volume: VolumeId,
    pub region: u32,
}

impl Key {
    #[inline]
    fn number(self) -> u64 {
        u64::from(self.volume.0) << 32 | u64::from(self.region)
    }

    #[inline]
    fn from_number(number: u64) -> Self {
        Key { volume: VolumeId((number >> 32) as u32), region: number as u32 }
    }

    /// The region after this one, of whatever volume.
    pub fn next(self) -> Option<Key> {
        self.number().checked_add(1).map(Key::from_number)
    }
}

/// Where a region lies, until the table changes.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    leaf: usize,
    entry: usize,
}

/// Leaves by which the directory grows at the most, so that no single change takes much.
const STEP_MAX: usize = 64;

/// Regions by key.
#[derive(Default)]
pub(super) struct Table {
    /// For each leaf its volume and a region that is not after its first one. Apart from the
    /// leaves, because a search reads only these.
    firsts: Vec<u64>,
    leaves: Vec<Leaf>,
    leaf_bytes: usize,
}

impl Table {
    /// The first region at or after `key` that holds a state of the set (bit n: state n).
    #[inline]
    pub fn seek(&self, key: Key, states: u8) -> Option<(Key, Spot)> {
        let number = key.number();
        let after = self.firsts.partition_point(|first| *first <= number);
        let mut leaf = after.saturating_sub(1);
        let mut entry = match self.leaves.get(leaf) {
            Some(found) if after > 0 => {
                if self.volume(leaf) == key.volume {
                    found.lower_bound(key.region)
                } else {
                    found.count()
                }
            }
            _ => 0,
        };
        while let Some(found) = self.leaves.get(leaf) {
            if found.states() & states != 0 {
                let has = |i: &usize| found.states_of(*i) & states != 0;
                if let Some(entry) = (entry..found.count()).find(has) {
                    let key = Key { volume: self.volume(leaf), region: found.region(entry) };
                    return Some((key, Spot { leaf, entry }));
                }
            }
            (leaf, entry) = (leaf + 1, 0);
        }
        None
    }

    #[inline]
    fn volume(&self, leaf: usize) -> VolumeId {
        Key::from_number(self.firsts[leaf]).volume
    }

    /// The region itself, if it holds anything.
    #[inline]
    pub fn find(&self, key: Key) -> Option<Spot> {
        let leaf = self.firsts.partition_point(|first| *first <= key.number()).checked_sub(1)?;
        let found = &self.leaves[leaf];
        let entry = found.lower_bound(key.region);
        (self.volume(leaf) == key.volume
            && entry < found.count()
            && found.region(entry) == key.region)
            .then_some(Spot { leaf, entry })
    }

    /// The body of a region.
    #[inline]
    pub fn body(&self, spot: Spot) -> Body<'_> {
        self.leaves[spot.leaf].body(spot.entry)
    }

    /// Unpacks what a change of `range` can touch, and says which part of the region that is: from
    /// a dense body the range and a block to either side, else everything.
    pub fn load_around(
        &self,
        spot: Option<Spot>,
        range: &Range<u32>,
        into: &mut Extents,
    ) -> Range<u32> {
        into.clear();
        let whole = 0..EXTENTS_MAX as u32;
        let Some(spot) = spot else { return whole };
        let body = self.body(spot);
        let window = match body.is_dense {
            true => range.start.saturating_sub(1)..(range.end + 1).min(whole.end),
            false => whole,
        };
        body.load(window.clone(), into);
        window
    }

    /// Puts back what [`Table::load_around`] took out as `old`.
    pub fn store_around(
        &mut self,
        key: Key,
        spot: Option<Spot>,
        window: Range<u32>,
        old: &Extents,
        new: &Extents,
    ) {
        let whole = 0..EXTENTS_MAX as u32;
        if window == whole {
            let heat = spot.map_or(0, |spot| self.body(spot).heat());
            self.store(key, heat & heat_mask(new.granules()), new);
            return;
        }
        if spot.is_some_and(|spot| self.change_dense(spot, &window, old, new)) {
            return;
        }
        let (mut before, mut all) = (Extents::new(), Extents::new());
        let heat = self.load(key, &mut before);
        all.replace(before.as_slice(), window.clone(), new.as_slice());
        all.cold = before.cold;
        all.cold.take(&new.cold, window);
        self.store(key, heat & heat_mask(all.granules()), &all);
    }

    /// Changes a dense body without unpacking it, if what is new fits its packing and it stays dense.
    fn change_dense(
        &mut self,
        spot: Spot,
        window: &Range<u32>,
        old: &Extents,
        new: &Extents,
    ) -> bool {
        let leaf = &mut self.leaves[spot.leaf];
        let body = leaf.body(spot.entry);
        let count = body.extent_count() + new.as_slice().len() - old.as_slice().len();
        // As many blocks are the same blocks: a change either puts something everywhere or nowhere anew.
        let spliced = if old.block_count() == new.block_count() {
            if !patch(leaf.body_mut(spot.entry), window.start, new, count) {
                return false;
            }
            None
        } else {
            let Some(spliced) = splice(body, window, new, count) else { return false };
            Some(spliced)
        };
        let (gone, came) = (old.states() & !new.states(), new.states() & !old.states());
        let held = spliced.as_ref().map_or(leaf.body(spot.entry), Built::body).holds(gone);
        let states = leaf.states_of(spot.entry) & !(gone & !held) | came;
        match spliced {
            Some(built) => self.replace(spot, states, built.as_slice()),
            None => leaf.set_states(spot.entry, states),
        }
        true
    }

    /// Replaces the body of a region that is there.
    fn replace(&mut self, spot: Spot, states: u8, body: &[u8]) {
        let leaf = &mut self.leaves[spot.leaf];
        let (before, is_last) = (leaf.heap_bytes(), spot.entry + 1 >= leaf.count());
        leaf.replace(spot.entry, states, body);
        self.leaf_bytes = self.leaf_bytes - before + leaf.heap_bytes();
        self.balance(spot.leaf, is_last);
    }

    /// Unpacks a region; its heat. Empty and 0 if there is none.
    pub fn load(&self, key: Key, into: &mut Extents) -> u32 {
        into.clear();
        let Some(spot) = self.find(key) else { return 0 };
        let body = self.body(spot);
        body.load(0..EXTENTS_MAX as u32, into);
        body.heat()
    }

    /// Replaces a region; without extents it goes.
    pub fn store(&mut self, key: Key, heat: u32, extents: &Extents) {
        let is_empty = extents.as_slice().is_empty();
        let leaf = match self.leaf_for(key) {
            Some(leaf) => leaf,
            None if is_empty => return,
            None => self.add_leaf(key),
        };
        let before = self.leaves[leaf].heap_bytes();
        let found = &mut self.leaves[leaf];
        let entry = found.lower_bound(key.region);
        let is_there = entry < found.count() && found.region(entry) == key.region;
        let is_last = entry + 1 >= found.count();
        if is_empty {
            if is_there {
                found.remove(entry);
            }
        } else {
            let built = Built::new(heat, extents);
            if is_there {
                found.replace(entry, built.states, built.as_slice());
            } else {
                found.insert(entry, key.region, built.states, built.as_slice());
            }
        }
        self.leaf_bytes = self.leaf_bytes - before + self.leaves[leaf].heap_bytes();
        self.balance(leaf, is_last);
    }

    /// The leaf that holds or should hold a region.
    fn leaf_for(&mut self, key: Key) -> Option<usize> {
        let after = self.firsts.partition_point(|first| *first <= key.number());
        if after > 0 && self.volume(after - 1) == key.volume {
            return Some(after - 1);
        }
        if after < self.firsts.len() && self.volume(after) == key.volume {
            self.firsts[after] = key.number();
            return Some(after);
        }
        None
    }

    fn add_leaf(&mut self, key: Key) -> usize {
        let at = self.firsts.partition_point(|first| *first <= key.number());
        self.put_leaf(at, key, Leaf::default());
        at
    }

    fn put_leaf(&mut self, at: usize, first: Key, leaf: Leaf) {
        if self.leaves.len() == self.leaves.capacity() {
            self.leaves.reserve_exact((self.leaves.len() / 16).min(STEP_MAX) + 1);
        }
        if self.firsts.len() == self.firsts.capacity() {
            self.firsts.reserve_exact((self.firsts.len() / 16).min(STEP_MAX) + 1);
        }
        self.leaf_bytes += leaf.heap_bytes();
        self.firsts.insert(at, first.number());
        self.leaves.insert(at, leaf);
    }

    fn drop_leaf(&mut self, at: usize) -> Leaf {
        self.firsts.remove(at);
        let leaf = self.leaves.remove(at);
        self.leaf_bytes -= leaf.heap_bytes();
        if self.leaves.len() * 3 / 2 + 4 < self.leaves.capacity() {
            self.leaves.shrink_to(self.leaves.len() * 5 / 4);
            self.firsts.shrink_to(self.firsts.len() * 5 / 4);
        }
        leaf
    }

    /// Splits a leaf that became too long, drops an empty one, joins a short one to a neighbour.
    fn balance(&mut self, at: usize, grew_at_end: bool) {
        let leaf = &mut self.leaves[at];
        if leaf.count() == 0 {
            self.drop_leaf(at);
        } else if leaf.count() > 1
            && (leaf.len() > LEAF_BYTES_MAX || leaf.count() > LEAF_ENTRIES_MAX)
        {
            // A volume filled in order leaves full leaves behind.
            let before = leaf.heap_bytes();
            let high = leaf.split(if grew_at_end { 7 } else { 4 });
            self.leaf_bytes = self.leaf_bytes - before + self.leaves[at].heap_bytes();
            let first = Key { volume: self.volume(at), region: high.region(0) };
            self.put_leaf(at + 1, first, high);
        } else if leaf.len() < LEAF_BYTES_MIN {
            let join = if self.can_join(at) { Some(at) } else { at.checked_sub(1) };
            if let Some(low) = join.filter(|low| self.can_join(*low)) {
                let high = self.drop_leaf(low + 1);
                let before = self.leaves[low].heap_bytes();
                self.leaves[low].append(&high, 0);
                self.leaf_bytes = self.leaf_bytes - before + self.leaves[low].heap_bytes();
            }
        }
    }

    /// Whether a leaf and the next one may be one.
    fn can_join(&self, low: usize) -> bool {
        low + 1 < self.leaves.len()
            && self.volume(low) == self.volume(low + 1)
            && self.leaves[low].len() + self.leaves[low + 1].len() <= LEAF_BYTES_MAX * 3 / 4
            && self.leaves[low].count() + self.leaves[low + 1].count() <= LEAF_ENTRIES_MAX * 3 / 4
    }

    /// Says of what is clean in a range of a region whether it is cold.
    pub fn mark(&mut self, spot: Spot, range: Range<u32>, cold: bool) {
        let is_dense = self.body(spot).is_dense;
        mark(self.leaves[spot.leaf].body_mut(spot.entry), is_dense, range, cold);
    }

    /// Changes the heat of those granules of a region in which something is mapped.
    pub fn change_heat(&mut self, spot: Spot, granules: Range<u32>, f: impl Fn(u8) -> u8) {
        for granule in granules {
            if let Some((at, shift)) = self.body(spot).heat_place(granule) {
                let byte = &mut self.leaves[spot.leaf].body_mut(spot.entry)[at];
                *byte = *byte & !(3 << shift) | f(*byte >> shift & 3) << shift;
            }
        }
    }

    /// Compares bytes, order and summaries with a recount.
    #[cfg(any(test, feature = "verify"))]
    pub fn check(&self) {
        assert_eq!(self.leaf_bytes, self.leaves.iter().map(Leaf::heap_bytes).sum::<usize>());
        let mut last = None;
        for (leaf, first) in self.leaves.iter().zip(&self.firsts) {
            assert!(last.is_none_or(|last| last < *first), "leaves out of order");
            let mut states = 0;
            for i in 0..leaf.count() {
                let key = Key { region: leaf.region(i), ..Key::from_number(*first) };
                assert!(key.number() >= *first && last.is_none_or(|last| last < key.number()));
                last = Some(key.number());
                states |= leaf.states_of(i);
                let mut extents = Extents::new();
                extents.clear();
                leaf.body(i).load(0..EXTENTS_MAX as u32, &mut extents);
                assert_eq!(extents.as_slice().len(), leaf.body(i).extent_count());
                let dense = super::body::DENSE;
                assert_eq!(extents.states() | dense, leaf.states_of(i) | dense, "states");
            }
            assert!(leaf.count() > 0 && leaf.states() == states, "summary of a leaf");
        }
    }

    /// Most bytes that the directory grows by when so many regions become longer: each splits a leaf, or gets one.
    pub fn directory_growth_max(&self, regions: usize) -> usize {
        let places = (self.leaves.len() / 16).min(STEP_MAX) + 2 * regions;
        places * (size_of::<Leaf>() + size_of::<u64>())
    }

    /// Bytes held outside of the struct.
    pub fn heap_bytes(&self) -> usize {
        self.leaf_bytes
            + self.leaves.capacity() * size_of::<Leaf>()
            + self.firsts.capacity() * size_of::<u64>()
    }
}

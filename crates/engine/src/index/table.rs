//! Where a shard keeps its regions.

use std::collections::BTreeMap;

use super::region::{EXTENTS_MAX, Extents, state_of};
use crate::format::Extent;
use crate::ids::VolumeId;

/// A region of a volume; ordered by volume, then address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub volume: VolumeId,
    pub region: u32,
}

impl Key {
    /// The region after this one, of whatever volume.
    pub fn next(self) -> Option<Key> {
        let number = (u64::from(self.volume.0) << 32 | u64::from(self.region)).checked_add(1)?;
        Some(Key { volume: VolumeId((number >> 32) as u32), region: number as u32 })
    }
}

struct Region {
    heat: u32,
    extents: Vec<Extent>,
}

/// Regions by key.
#[derive(Default)]
pub(super) struct Table {
    regions: BTreeMap<Key, Region>,
    heap_bytes: usize,
}

impl Table {
    /// Unpacks a region; its heat. Empty and 0 if there is none.
    pub fn load(&self, key: Key, into: &mut Extents) -> u32 {
        into.clear();
        let Some(region) = self.regions.get(&key) else { return 0 };
        region.extents.iter().for_each(|extent| into.push(*extent));
        region.heat
    }

    /// Replaces a region; without extents it goes.
    pub fn store(&mut self, key: Key, heat: u32, extents: &Extents) {
        if let Some(old) = self.regions.remove(&key) {
            self.heap_bytes -= old.extents.capacity() * 8 + 48;
        }
        if !extents.as_slice().is_empty() {
            let extents = extents.as_slice().to_vec();
            self.heap_bytes += extents.capacity() * 8 + 48;
            self.regions.insert(key, Region { heat, extents });
        }
    }

    /// Calls `f` with each extent that overlaps `start..end` of the region, unclipped.
    pub fn visit(&self, key: Key, start: u32, end: u32, mut f: impl FnMut(Extent)) {
        if let Some(region) = self.regions.get(&key) {
            let overlap = |e: &&Extent| e.end() > start && e.first() < end;
            region.extents.iter().filter(overlap).for_each(|extent| f(*extent));
        }
    }

    /// The first region at or after `key` that holds a state of the set (bit n: state n).
    pub fn seek(&self, key: Key, states: u8) -> Option<Key> {
        let holds = |e: &Extent| states >> (state_of(*e) as u8) & 1 == 1;
        self.regions.range(key..).find(|(_, r)| r.extents.iter().any(holds)).map(|(k, _)| *k)
    }

    /// Heat of a region: two bits for each granule.
    pub fn heat(&self, key: Key) -> u32 {
        self.regions.get(&key).map_or(0, |region| region.heat)
    }

    /// Changes the heat of a granule of a region, if something is mapped there.
    pub fn change_heat(&mut self, key: Key, granule: u32, f: impl FnOnce(u8) -> u8) {
        let Some(region) = self.regions.get_mut(&key) else { return };
        let (start, end) = (granule * 16, granule * 16 + 16);
        if region.extents.iter().any(|e| e.end() > start && e.first() < end) {
            let heat = f((region.heat >> (granule * 2) & 3) as u8);
            region.heat = region.heat & !(3 << (granule * 2)) | u32::from(heat) << (granule * 2);
        }
    }

    /// Compares the bytes with a recount.
    #[cfg(any(test, feature = "verify"))]
    pub fn check(&self) {
        let bytes = |region: &Region| region.extents.capacity() * 8 + 48;
        assert_eq!(self.heap_bytes, self.regions.values().map(bytes).sum::<usize>());
    }

    /// Bytes held outside of the struct.
    pub fn heap_bytes(&self) -> usize {
        self.heap_bytes
    }
}

const _: () = assert!(EXTENTS_MAX == 256);

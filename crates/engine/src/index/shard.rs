//! The operations on a shard: cuts requests at regions and keeps the counts.

use std::fmt;
use std::ops::Range;

use super::masks::Masks;
use super::region::{Change, Extents, advances, clip, heat_mask, state_of};
use super::table::{Key, Spot, Table};
use super::{BLOCKS_MAX, GRANULE_BLOCKS, HEAT_MAX, Mapping, REGION_GROWTH_MAX};
use crate::format::{Extent, State};
use crate::ids::{LOCATION_BITS, Location, SECTORS_ALL, VolumeId};
use crate::limits::REGION_BLOCKS;

/// Set of all states, bit n for state n.
const STATES_ALL: u8 = 0xFE;
const REGION: u32 = REGION_BLOCKS as u32;

/// Why a region of an image was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The shard holds something in this region already.
    Occupied,
    /// Extents that are unsorted, overlap, or hold an unknown state or a distance past 255.
    Extent,
    /// The masks are not one for each partial extent, each naming some but not all sectors.
    Masks,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LoadError::Occupied => "region is in the shard already",
            LoadError::Extent => "region holds a malformed extent",
            LoadError::Masks => "region's sector masks do not fit its partial blocks",
        })
    }
}

impl std::error::Error for LoadError {}

/// The extents of one virtual shard.
#[derive(Default)]
pub struct Shard {
    table: Table,
    masks: Masks,
    extent_count: u64,
    /// Blocks in each state; place 0 is unused.
    state_blocks: [u64; 8],
}

/// The part of a request that lies in one region.
struct Piece {
    key: Key,
    /// Where the region lies.
    spot: Spot,
    /// Blocks within the region.
    range: Range<u32>,
}

fn mapping(key: Key, extent: Extent, sectors: u8) -> Mapping {
    Mapping {
        block: u64::from(key.region) * REGION_BLOCKS + u64::from(extent.first()),
        count: extent.count(),
        state: state_of(extent),
        location: extent.location(),
        distance: extent.distance(),
        sectors,
    }
}

/// Where a range within one granule lies.
fn within_granule(volume: VolumeId, block: u64, count: u32) -> (Key, Range<u32>) {
    assert_range(block, count);
    let first = (block % REGION_BLOCKS) as u32;
    assert!(
        first % GRANULE_BLOCKS + count <= GRANULE_BLOCKS,
        "{block}+{count} is more than a granule"
    );
    (Key { volume, region: (block / REGION_BLOCKS) as u32 }, first..first + count)
}

fn assert_range(block: u64, count: u32) {
    assert!(
        block < BLOCKS_MAX && u64::from(count) <= BLOCKS_MAX - block,
        "blocks {block}+{count} are beyond the largest volume"
    );
}

impl Shard {
    /// A shard without extents.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `f` with each mapped run that overlaps the range, in block order, clipped to it.
    pub fn lookup(&self, volume: VolumeId, block: u64, count: u32, mut f: impl FnMut(Mapping)) {
        assert_range(block, count);
        let end = block + u64::from(count);
        let mut at = block;
        while let Some(piece) = self.piece(volume, at, end) {
            self.table.body(piece.spot).visit(piece.range.clone(), |extent| {
                let start = extent.first().max(piece.range.start);
                let part = clip(extent, start..extent.end().min(piece.range.end));
                f(mapping(piece.key, part, self.sectors(piece.key, part)));
                true
            });
            at = (u64::from(piece.key.region) + 1) * REGION_BLOCKS;
        }
    }

    /// Maps a run and calls `displaced` with each run, clipped, that was mapped there before.
    ///
    /// # Panics
    /// If the run leaves its region, its location or distance overflow, or it is partial and not
    /// one block.
    pub fn insert(&mut self, volume: VolumeId, mapping: Mapping, displaced: impl FnMut(Mapping)) {
        self.insert_as(volume, mapping, false, displaced);
    }

    /// The same for what nobody has asked for yet: if it is clean, it is cold ([`Shard::cold`]).
    ///
    /// # Panics
    /// As [`Shard::insert`].
    pub fn insert_cold(
        &mut self,
        volume: VolumeId,
        mapping: Mapping,
        displaced: impl FnMut(Mapping),
    ) {
        self.insert_as(volume, mapping, true, displaced);
    }

    fn insert_as(
        &mut self,
        volume: VolumeId,
        mapping: Mapping,
        cold: bool,
        displaced: impl FnMut(Mapping),
    ) {
        let Mapping { block, count, state, location, distance, sectors } = mapping;
        assert_range(block, count);
        assert!(sectors == SECTORS_ALL || (count == 1 && sectors != 0), "bad {mapping:?}");
        let first = (block % REGION_BLOCKS) as u32;
        let extent = Extent::new(first, count, state, location, distance)
            .with_partial(sectors != SECTORS_ALL);
        assert!(fits(extent), "location or distance of {mapping:?} overflows");
        let key = Key { volume, region: (block / REGION_BLOCKS) as u32 };
        let (spot, range) = (self.table.find(key), first..first + count);
        self.edit(key, spot, range, Some((extent, sectors, cold)), |_| Change::Remove, displaced);
    }

    /// Unmaps a range and calls `displaced` with each run, clipped, that was mapped there.
    pub fn remove(
        &mut self,
        volume: VolumeId,
        block: u64,
        count: u32,
        displaced: impl FnMut(Mapping),
    ) {
        self.edit_range(volume, block, count, |_, _| Change::Remove, displaced);
    }

    /// For each run of the range that is still at `location + (its block - block)` and in a state
    /// that passes `want`: it becomes `to`, or is unmapped if that is `None`. A zero extent must
    /// be at `location` itself. `changed` is called with each run as it was.
    ///
    /// # Panics
    /// If a run with a location for each block would become a zero extent, or the reverse.
    #[allow(clippy::too_many_arguments)] // a fact names a range, a place and two states
    pub fn transition(
        &mut self,
        volume: VolumeId,
        block: u64,
        count: u32,
        location: Location,
        want: impl Fn(State) -> bool,
        to: Option<State>,
        changed: impl FnMut(Mapping),
    ) {
        let change = |skip: u64, extent: Extent| {
            let state = state_of(extent);
            if !is_at(extent, location, skip) || !want(state) {
                return Change::Keep;
            }
            let Some(to) = to else { return Change::Remove };
            assert!(advances(state) == advances(to), "{state:?} cannot become {to:?}");
            let (first, count) = (extent.first(), extent.count());
            Change::Become(
                Extent::new(first, count, to, extent.location(), extent.distance())
                    .with_partial(extent.is_partial()),
            )
        };
        self.edit_range(volume, block, count, change, changed);
    }

    /// For each run of the range that is still at `from + i`, `i` being its block less `block`: it
    /// is now at `to + i` with `distance + i`, in the same state. A zero extent must be at `from`
    /// itself and is then at `to` with `distance`. `changed` is called with each run as it was.
    ///
    /// # Panics
    /// If a location or distance overflows.
    #[allow(clippy::too_many_arguments)] // a move names two places
    pub fn relocate(
        &mut self,
        volume: VolumeId,
        block: u64,
        count: u32,
        from: Location,
        to: Location,
        distance: u8,
        changed: impl FnMut(Mapping),
    ) {
        let change = |skip: u64, extent: Extent| {
            if !is_at(extent, from, skip) {
                return Change::Keep;
            }
            let state = state_of(extent);
            let skip = if advances(state) { skip } else { 0 };
            let distance = u64::from(distance) + skip;
            assert!(distance <= 0xFF, "distance overflows at {extent:?}");
            let (first, count) = (extent.first(), extent.count());
            let new = Extent::new(first, count, state, Location(to.0 + skip), distance as u8)
                .with_partial(extent.is_partial());
            assert!(fits(new), "location or distance of {new:?} overflows");
            Change::Become(new)
        };
        self.edit_range(volume, block, count, change, changed);
    }

    /// The first run at or after `from_block` whose state passes. Clipped at `from_block` only.
    /// Regions without such a state are skipped by a summary of their states.
    pub fn next_matching(
        &self,
        volume: VolumeId,
        from_block: u64,
        want: impl Fn(State) -> bool,
    ) -> Option<Mapping> {
        self.next_of(volume, from_block, want, |key| key.volume == volume).map(|(_, m)| m)
    }

    /// The same, of this volume or any behind it.
    pub fn next_from(
        &self,
        volume: VolumeId,
        from_block: u64,
        want: impl Fn(State) -> bool,
    ) -> Option<(VolumeId, Mapping)> {
        self.next_of(volume, from_block, want, |_| true)
    }

    fn next_of(
        &self,
        volume: VolumeId,
        from_block: u64,
        want: impl Fn(State) -> bool,
        is_of: impl Fn(Key) -> bool,
    ) -> Option<(VolumeId, Mapping)> {
        let mut states = 0;
        for number in 1..8 {
            let passes = State::from_number(number).is_some_and(&want);
            states |= u8::from(passes && self.state_blocks[usize::from(number)] > 0) << number;
        }
        let (region, first) = (from_block / REGION_BLOCKS, (from_block % REGION_BLOCKS) as u32);
        // The end of the largest volume is the beginning of the one behind it.
        let from = match u32::try_from(region) {
            Ok(region) => Some(Key { volume, region }),
            Err(_) => Key { volume, region: u32::MAX }.next(),
        };
        let mut next = from.filter(|_| states != 0);
        while let Some(at) = next {
            let (key, spot) = self.table.seek(at, states).filter(|(key, _)| is_of(*key))?;
            let start = if Some(key) == from { first } else { 0 };
            let mut found = None;
            self.table.body(spot).visit(start..REGION, |extent| {
                if states >> (state_of(extent) as u8) & 1 == 1 {
                    found = Some(clip(extent, extent.first().max(start)..extent.end()));
                }
                found.is_none()
            });
            if let Some(extent) = found {
                let sectors = self.sectors(key, extent);
                return Some((key.volume, mapping(key, extent, sectors)));
            }
            next = key.next();
        }
        None
    }

    /// Counts an access: each granule of the range in which something is mapped gets hotter by
    /// one, up to [`HEAT_MAX`], and none of the blocks is cold any more.
    pub fn touch(&mut self, volume: VolumeId, block: u64, count: u32) {
        assert_range(block, count);
        let end = block + u64::from(count);
        let mut at = block;
        while let Some(piece) = self.piece(volume, at, end) {
            let first = piece.range.start / GRANULE_BLOCKS;
            let granules = first..(piece.range.end - 1) / GRANULE_BLOCKS + 1;
            self.table.change_heat(piece.spot, granules, |heat| (heat + 1).min(HEAT_MAX));
            self.table.mark(piece.spot, piece.range, false);
            at = (u64::from(piece.key.region) + 1) * REGION_BLOCKS;
        }
    }

    /// Which blocks of a range within one granule are clean and *cold*: not asked for since they came in, or since
    /// [`Shard::chill`]; bit n for the n-th. Where a run came in as a whole it is cold as a whole, and an image does not
    /// tell: what is loaded is not cold.
    pub fn cold(&self, volume: VolumeId, block: u64, count: u32) -> u16 {
        let (key, range) = within_granule(volume, block, count);
        let Some(spot) = self.table.find(key) else { return 0 };
        let cold = self.table.body(spot).cold(range.clone());
        range.rev().fold(0, |bits, block| bits << 1 | u16::from(cold.has(block)))
    }

    /// Has what is clean of a range be cold, as far as whole runs are.
    pub fn chill(&mut self, volume: VolumeId, block: u64, count: u32) {
        assert_range(block, count);
        let end = block + u64::from(count);
        let mut at = block;
        while let Some(piece) = self.piece(volume, at, end) {
            self.table.mark(piece.spot, piece.range, true);
            at = (u64::from(piece.key.region) + 1) * REGION_BLOCKS;
        }
    }

    /// Heat of the block's granule, 0..=[`HEAT_MAX`]; 0 if nothing is mapped in it.
    pub fn heat(&self, volume: VolumeId, block: u64) -> u8 {
        assert_range(block, 1);
        let key = Key { volume, region: (block / REGION_BLOCKS) as u32 };
        let granule = (block % REGION_BLOCKS) as u32 / GRANULE_BLOCKS;
        let heat = self.table.find(key).map_or(0, |spot| self.table.body(spot).heat());
        (heat >> (granule * 2) & 3) as u8
    }

    /// Makes the block's granule cooler by one, down to 0.
    pub fn cool(&mut self, volume: VolumeId, block: u64) {
        assert_range(block, 1);
        let key = Key { volume, region: (block / REGION_BLOCKS) as u32 };
        let granule = (block % REGION_BLOCKS) as u32 / GRANULE_BLOCKS;
        if let Some(spot) = self.table.find(key) {
            self.table.change_heat(spot, granule..granule + 1, |heat| heat.saturating_sub(1));
        }
    }

    /// Bytes of memory that the shard holds, everything included. O(1).
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.table.heap_bytes() + self.masks.heap_bytes()
    }

    /// Most bytes that changes in so many regions can add to [`Shard::memory_bytes`], before the next claim or
    /// change by somebody else. O(1).
    pub fn growth_max(&self, regions: usize) -> usize {
        regions * REGION_GROWTH_MAX
            + self.table.directory_growth_max(regions)
            + self.masks.growth_max()
    }

    /// Mapped blocks.
    pub fn block_count(&self) -> u64 {
        self.state_blocks.iter().sum()
    }

    /// Mapped blocks in one state.
    pub fn state_block_count(&self, state: State) -> u64 {
        self.state_blocks[state as usize]
    }

    /// Extents.
    pub fn extent_count(&self) -> u64 {
        self.extent_count
    }

    /// Partial blocks.
    pub fn partial_count(&self) -> usize {
        self.masks.count()
    }

    /// Calls `f` with volume, region number, heat (two bits for each granule, the first lowest),
    /// extents, and the sector masks of the partial ones in their order: for images. In order of
    /// volume and region.
    pub fn for_each_region(&self, mut f: impl FnMut(VolumeId, u32, u32, &[Extent], &[u8])) {
        let mut extents = Extents::new();
        let mut next = Some(Key { volume: VolumeId(0), region: 0 });
        while let Some((key, _)) = next.and_then(|from| self.table.seek(from, STATES_ALL)) {
            let heat = self.table.load(key, &mut extents);
            let mut masks = [0; REGION as usize];
            let mut mask_count = 0;
            for extent in extents.as_slice().iter().filter(|extent| extent.is_partial()) {
                masks[mask_count] = self.masks.get(key, extent.first());
                mask_count += 1;
            }
            f(key.volume, key.region, heat, extents.as_slice(), &masks[..mask_count]);
            next = key.next();
        }
    }

    /// Takes a region from an image as [`Shard::for_each_region`] gave it. Nothing is changed if
    /// it is refused.
    pub fn load_region(
        &mut self,
        volume: VolumeId,
        region: u32,
        heat: u32,
        extents: &[Extent],
        masks: &[u8],
    ) -> Result<(), LoadError> {
        let key = Key { volume, region };
        if self.table.find(key).is_some() {
            return Err(LoadError::Occupied);
        }
        let mut merged = Extents::new();
        let mut end = 0;
        for &extent in extents {
            let bad_partial = extent.is_partial() && extent.count() != 1;
            if extent.first() < end || extent.end() > REGION || bad_partial || !fits(extent) {
                return Err(LoadError::Extent);
            }
            merged.push(extent);
            end = extent.end();
        }
        let partial_count = extents.iter().filter(|extent| extent.is_partial()).count();
        if partial_count != masks.len() || masks.iter().any(|m| *m == 0 || *m == SECTORS_ALL) {
            return Err(LoadError::Masks);
        }
        let partials = extents.iter().filter(|extent| extent.is_partial());
        for (extent, mask) in partials.zip(masks) {
            self.masks.insert(key, extent.first(), *mask);
        }
        for &extent in merged.as_slice() {
            self.state_blocks[state_of(extent) as usize] += u64::from(extent.count());
        }
        self.extent_count += merged.as_slice().len() as u64;
        self.table.store(key, heat & heat_mask(merged.granules()), &merged);
        Ok(())
    }

    /// Unmaps everything of a volume and calls `displaced` with each run.
    pub fn remove_volume(&mut self, volume: VolumeId, mut displaced: impl FnMut(Mapping)) {
        let first = Key { volume, region: 0 };
        while let Some((key, spot)) = self.table.seek(first, STATES_ALL)
            && key.volume == volume
        {
            self.edit(key, Some(spot), 0..REGION, None, |_| Change::Remove, &mut displaced);
        }
    }

    /// Compares every count with a recount. For tests and the simulator: O(n).
    #[cfg(any(test, feature = "verify"))]
    pub fn check(&self) {
        let (mut state_blocks, mut extent_count, mut partial_count) = ([0; 8], 0, 0);
        self.for_each_region(|_, _, _, extents, masks| {
            for extent in extents {
                state_blocks[state_of(*extent) as usize] += u64::from(extent.count());
            }
            extent_count += extents.len() as u64;
            partial_count += masks.len();
        });
        assert_eq!(state_blocks, self.state_blocks, "blocks by state");
        assert_eq!(extent_count, self.extent_count, "extents");
        assert_eq!(partial_count, self.masks.count(), "partial blocks");
        self.table.check();
    }

    /// The first part of `at..end` whose region holds something.
    fn piece(&self, volume: VolumeId, at: u64, end: u64) -> Option<Piece> {
        if at >= end {
            return None;
        }
        let from = Key { volume, region: (at / REGION_BLOCKS) as u32 };
        let (key, spot) =
            self.table.seek(from, STATES_ALL).filter(|(key, _)| key.volume == volume)?;
        let base = u64::from(key.region) * REGION_BLOCKS;
        let (start, end) = (at.max(base), end.min(base + REGION_BLOCKS));
        let range = start.saturating_sub(base) as u32..end.saturating_sub(base) as u32;
        (start < end).then_some(Piece { key, spot, range })
    }

    fn sectors(&self, key: Key, extent: Extent) -> u8 {
        if extent.is_partial() { self.masks.get(key, extent.first()) } else { SECTORS_ALL }
    }

    /// Lets `change` decide on each run of the range; it is told how many blocks after `block` the
    /// run begins.
    fn edit_range(
        &mut self,
        volume: VolumeId,
        block: u64,
        count: u32,
        change: impl Fn(u64, Extent) -> Change,
        mut changed: impl FnMut(Mapping),
    ) {
        assert_range(block, count);
        let end = block + u64::from(count);
        let mut at = block;
        while let Some(piece) = self.piece(volume, at, end) {
            let base = u64::from(piece.key.region) * REGION_BLOCKS;
            let decide = |extent: Extent| change(base + u64::from(extent.first()) - block, extent);
            self.edit(piece.key, Some(piece.spot), piece.range, None, decide, &mut changed);
            at = base + REGION_BLOCKS;
        }
    }

    /// Lets `change` decide on each run of one region's part, then puts `insert` there: an extent, its sectors, and
    /// whether it is cold. The region lies at `spot`, if it holds anything.
    fn edit(
        &mut self,
        key: Key,
        spot: Option<Spot>,
        range: Range<u32>,
        insert: Option<(Extent, u8, bool)>,
        change: impl Fn(Extent) -> Change,
        mut changed: impl FnMut(Mapping),
    ) {
        let (mut old, mut new) = (Extents::new(), Extents::new());
        let window = self.table.load_around(spot, &range, &mut old);
        let (masks, state_blocks) = (&mut self.masks, &mut self.state_blocks);
        let each = |extent: Extent| {
            let decision = change(extent);
            let partial = extent.is_partial();
            let sectors = match decision {
                Change::Keep => return decision,
                Change::Remove if partial => masks.remove(key, extent.first()),
                _ if partial => masks.get(key, extent.first()),
                _ => SECTORS_ALL,
            };
            state_blocks[state_of(extent) as usize] -= u64::from(extent.count());
            if let Change::Become(other) = decision {
                state_blocks[state_of(other) as usize] += u64::from(other.count());
            }
            changed(mapping(key, extent, sectors));
            decision
        };
        let inserted = insert.map(|(extent, ..)| extent);
        if !new.rewrite(old.as_slice(), range.clone(), inserted, each) {
            return;
        }
        new.cold = old.cold;
        if let Some((extent, sectors, cold)) = insert {
            new.cold.set(range, cold);
            self.state_blocks[state_of(extent) as usize] += u64::from(extent.count());
            if extent.is_partial() {
                self.masks.insert(key, extent.first(), sectors);
            }
        }
        self.extent_count += new.as_slice().len() as u64;
        self.extent_count -= old.as_slice().len() as u64;
        self.table.store_around(key, spot, window, &old, &new);
    }
}

/// Whether the extent is at `location`, which names the block `skip` blocks before it.
fn is_at(extent: Extent, location: Location, skip: u64) -> bool {
    let skip = if advances(state_of(extent)) { skip } else { 0 };
    location.0.checked_add(skip) == Some(extent.location().0)
}

/// Whether the state is known and location and distance of the last block fit their bits.
fn fits(extent: Extent) -> bool {
    let Some(state) = extent.state() else { return false };
    let step = if advances(state) { extent.count() - 1 } else { 0 };
    extent.location().0 + u64::from(step) < 1 << LOCATION_BITS
        && u32::from(extent.distance()) + step <= 0xFF
}

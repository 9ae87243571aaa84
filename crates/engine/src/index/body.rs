//! How the extents of one region lie in memory.
//!
//! A *list* is the extents, 8 bytes each, then heat. A *dense* body is
//!
//! | offset | bytes | meaning |
//! |---|---|---|
//! | 0 | 32 | bitmap of mapped blocks |
//! | 32 | 1 | number of extents, less one |
//! | 33 | 1 | bits of a location |
//! | 34 | 1 | bits of a distance, plus 128 if entries have a partial bit |
//! | 35 | 5 | lowest location |
//! | 40 | | an entry for each mapped block, packed without gaps |
//! | | 1..4 | heat |
//!
//! The shorter one is used. A dense entry is, from its lowest bit: state (3), partial (0 or 1),
//! location less the lowest, distance. It keeps no runs: they are found again by merging. Heat is
//! two bits for each granule in which something is mapped, in their order, in whole bytes.
//!
//! The state 0 is one that is clean and *cold*: not asked for since it came in or was moved to stay. That is for memory
//! alone. A dense body knows it of each block; in a list it is said of an extent, which is cold as long as all of it is.

use std::ops::Range;

use super::region::{Blocks, EXTENTS_MAX, Extents, advances, clip, continues, state_of};
use crate::format::{Extent, State};

const EXTENT_BYTES: usize = size_of::<Extent>();
/// Places in a dense body.
const COUNT_AT: usize = 32;
const LOCATION_BITS_AT: usize = 33;
const DISTANCE_BITS_AT: usize = 34;
const BASE_AT: usize = 35;
const ENTRIES_AT: usize = 40;
const WIDE: u8 = 0x80;
/// Longest body: every block its own extent and partial, with the longest entries of 48 bits.
pub(super) const BODY_BYTES_MAX: usize = ENTRIES_AT + EXTENTS_MAX * 6 + 4;
/// A list this long or shorter is never longer than the dense form of as many blocks.
const LIST_ALWAYS: usize = ENTRIES_AT / EXTENT_BYTES;

/// Where the state stands in an extent.
const STATE_SHIFT: u32 = 16;
const STATE_MASK: u64 = 7;
const CLEAN: u64 = State::Clean as u64;
/// What the extents of a list have in place of a state where they are cold.
const _: () = assert!(CLEAN == 1);

/// The number of a state, which is 0 for what is clean and cold.
#[inline]
fn known(number: u64) -> u64 {
    number.max(CLEAN)
}

/// Set of states, bit n for state n; bit 0 tells a dense body from a list.
pub(super) const DENSE: u8 = 1;

#[inline]
fn read_u64(bytes: &[u8], at: usize) -> u64 {
    if let Some(word) = bytes.get(at..at + 8).and_then(|word| word.try_into().ok()) {
        return u64::from_le_bytes(word);
    }
    let mut word = [0; 8];
    let rest = &bytes[at..];
    word[..rest.len()].copy_from_slice(rest);
    u64::from_le_bytes(word)
}

/// How the entries of a dense body are packed.
#[derive(Clone, Copy)]
struct Packing {
    location_bits: u32,
    distance_bits: u32,
    partial_bits: u32,
    base: u64,
}

impl Packing {
    /// The narrowest that holds these extents.
    fn of(extents: &[Extent]) -> Self {
        let (mut low, mut high, mut distance, mut partial) = (u64::MAX, 0, 0, false);
        for extent in extents {
            let step = if advances(state_of(*extent)) { extent.count() - 1 } else { 0 };
            low = low.min(extent.location().0);
            high = high.max(extent.location().0 + u64::from(step));
            distance = distance.max(u32::from(extent.distance()) + step);
            partial |= extent.is_partial();
        }
        Self {
            location_bits: u64::BITS - (high - low).leading_zeros(),
            distance_bits: u32::BITS - distance.leading_zeros(),
            partial_bits: u32::from(partial),
            base: low,
        }
    }

    #[inline]
    fn read(bytes: &[u8]) -> Self {
        Self {
            location_bits: u32::from(bytes[LOCATION_BITS_AT]),
            distance_bits: u32::from(bytes[DISTANCE_BITS_AT] & !WIDE),
            partial_bits: u32::from(bytes[DISTANCE_BITS_AT] & WIDE != 0),
            base: read_u64(bytes, BASE_AT) & ((1 << 40) - 1),
        }
    }

    fn write(&self, bytes: &mut [u8]) {
        bytes[LOCATION_BITS_AT] = self.location_bits as u8;
        bytes[DISTANCE_BITS_AT] = self.distance_bits as u8 | (self.partial_bits as u8 * WIDE);
        bytes[BASE_AT..ENTRIES_AT].copy_from_slice(&self.base.to_le_bytes()[..5]);
    }

    #[inline]
    fn entry_bits(&self) -> usize {
        (3 + self.partial_bits + self.location_bits + self.distance_bits) as usize
    }

    /// Entry of an extent's first block, if it fits.
    #[inline]
    fn pack(&self, extent: Extent) -> Option<u64> {
        let location = extent.location().0.checked_sub(self.base)?;
        let (distance, partial) = (u64::from(extent.distance()), u64::from(extent.is_partial()));
        let shift = 3 + self.partial_bits;
        (location >> self.location_bits == 0
            && distance >> self.distance_bits == 0
            && partial >> self.partial_bits == 0)
            .then(|| {
                state_of(extent) as u64
                    | partial << 3
                    | location << shift
                    | distance << (shift + self.location_bits)
            })
    }

    /// The entry of an extent's first block, and what each further block adds to it.
    fn entries(&self, extent: Extent) -> (u64, u64) {
        let entry = self.pack(extent).expect("the packing was chosen for these extents");
        let shift = 3 + self.partial_bits;
        let step = 1 << shift | 1 << (shift + self.location_bits);
        (entry, if advances(state_of(extent)) { step } else { 0 })
    }

    /// Whether these fit.
    fn takes(&self, extents: &Extents) -> bool {
        let fits = |extent: &Extent| self.pack(*extent).is_some();
        extents.as_slice().iter().all(|extent| {
            let last = extent.end() - 1..extent.end();
            fits(extent) && (extent.count() == 1 || fits(&clip(*extent, last)))
        })
    }

    /// Calls `f` with the entry of each block of extents that fit.
    #[inline]
    fn for_each_entry(&self, extents: &Extents, mut f: impl FnMut(u64)) {
        for &extent in extents.as_slice() {
            let ((mut entry, step), cold) = (self.entries(extent), extents.cold_of(extent));
            for block in extent.first()..extent.end() {
                f(entry & !cold.bit(block));
                entry += step;
            }
        }
    }

    // Called for each block of a region, and not seen through else.
    #[inline(always)]
    fn unpack(&self, block: u32, entry: u64) -> Extent {
        let field = |at: u32, bits: u32| entry >> at & ((1 << bits) - 1);
        let shift = 3 + self.partial_bits;
        let location = self.base + field(shift, self.location_bits);
        let distance = field(shift + self.location_bits, self.distance_bits);
        // The layout of `Extent`, without its checks: they made reading a region twice as slow.
        Extent(
            u64::from(block)
                | known(field(0, 3)) << STATE_SHIFT
                | field(3, self.partial_bits) << 19
                | location << 20
                | distance << 56,
        )
    }
}

/// The body of a region, as it lies in a leaf.
#[derive(Clone, Copy)]
pub(super) struct Body<'a> {
    pub bytes: &'a [u8],
    pub is_dense: bool,
}

impl Body<'_> {
    #[inline]
    fn list_count(&self) -> usize {
        // Heat takes 1 to 4 bytes.
        (self.bytes.len() - 1) / EXTENT_BYTES
    }

    #[inline]
    fn list(&self) -> impl Iterator<Item = Extent> {
        self.list_of().map(|(extent, _)| extent)
    }

    /// The extents of a list, and whether each is cold.
    #[inline]
    fn list_of(&self) -> impl Iterator<Item = (Extent, bool)> {
        (0..self.list_count()).map(|i| {
            let raw = read_u64(self.bytes, i * EXTENT_BYTES);
            let is_cold = raw >> STATE_SHIFT & STATE_MASK == 0;
            (Extent(raw | u64::from(is_cold) << STATE_SHIFT), is_cold)
        })
    }

    /// Word `i` of the bitmap of a dense body.
    #[inline]
    fn word(&self, i: usize) -> u64 {
        read_u64(self.bytes, i * 8)
    }

    /// Mapped blocks of a dense body before this one.
    #[inline]
    fn rank(&self, block: u32) -> usize {
        let below = |i: u32| {
            let bits = block.saturating_sub(i * 64);
            let mask = if bits < 64 { (1 << bits) - 1 } else { u64::MAX };
            (self.word(i as usize) & mask).count_ones() as usize
        };
        (0..4).map(below).sum()
    }

    /// Which of these states a dense body still holds.
    pub fn holds(&self, states: u8) -> u8 {
        let mut held = 0;
        let packing = Packing::read(self.bytes);
        let (count, bits) = (self.rank(EXTENTS_MAX as u32), packing.entry_bits());
        for i in 0..count {
            let at = ENTRIES_AT * 8 + i * bits;
            held |= states & 1 << known(read_u64(self.bytes, at / 8) >> (at % 8) & STATE_MASK);
            if held == states {
                break;
            }
        }
        held
    }

    /// Number of extents.
    pub fn extent_count(&self) -> usize {
        if self.is_dense { usize::from(self.bytes[COUNT_AT]) + 1 } else { self.list_count() }
    }

    /// Calls `f` with each block of `range` in a dense body, as an extent of one, and with whether it is cold.
    #[inline]
    fn for_each_entry(&self, range: Range<u32>, mut f: impl FnMut(Extent, bool) -> bool) {
        let packing = Packing::read(self.bytes);
        let bits = packing.entry_bits();
        let mut at = ENTRIES_AT * 8;
        for i in 0..4 {
            let (base, mut word) = (i as u32 * 64, self.word(i));
            if base >= range.end {
                return;
            }
            let below = range.start.saturating_sub(base);
            let skipped = if below < 64 { word & ((1 << below) - 1) } else { word };
            at += skipped.count_ones() as usize * bits;
            word &= !skipped;
            while word != 0 {
                let block = base + word.trailing_zeros();
                if block >= range.end {
                    return;
                }
                let entry = read_u64(self.bytes, at / 8) >> (at % 8);
                if !f(packing.unpack(block, entry), entry & STATE_MASK == 0) {
                    return;
                }
                at += bits;
                word &= word - 1;
            }
        }
    }

    /// Calls `f` with each extent that overlaps the range, clipped to it or not, until it says
    /// false.
    #[inline]
    pub fn visit(&self, range: Range<u32>, mut f: impl FnMut(Extent) -> bool) {
        if !self.is_dense {
            for extent in self.list() {
                if extent.first() >= range.end || extent.end() > range.start && !f(extent) {
                    return;
                }
            }
            return;
        }
        let (mut run, mut goes_on) = (None, true);
        self.for_each_entry(range, |entry, _| {
            match run {
                Some(ref mut last) if continues(*last, entry) => last.0 += 1 << 8,
                Some(last) => {
                    run = Some(entry);
                    goes_on = f(last);
                }
                None => run = Some(entry),
            }
            goes_on
        });
        if goes_on && let Some(last) = run {
            f(last);
        }
    }

    /// Unpacks all extents, where none are; of a dense body those of `range`.
    pub fn load(&self, range: Range<u32>, into: &mut Extents) {
        if self.is_dense {
            self.for_each_entry(range, |entry, is_cold| {
                into.push(entry);
                if is_cold {
                    into.cold.add(entry.first());
                }
                true
            });
            return;
        }
        for (extent, is_cold) in self.list_of() {
            into.push_merged(extent);
            if is_cold {
                into.cold.set(extent.first()..extent.end(), true);
            }
        }
    }

    /// Which blocks of a range are cold.
    pub fn cold(&self, range: Range<u32>) -> Blocks {
        let mut cold = Blocks::default();
        let mut note = |extent: Extent, is_cold| cold.set(extent.first()..extent.end(), is_cold);
        if self.is_dense {
            self.for_each_entry(range, |entry, is_cold| {
                note(entry, is_cold);
                true
            });
        } else {
            self.list_of().for_each(|(extent, is_cold)| note(extent, is_cold));
        }
        cold
    }

    /// The mapped blocks of a dense body.
    fn mapped(&self) -> Blocks {
        Blocks::of_words([self.word(0), self.word(1), self.word(2), self.word(3)])
    }

    /// Granules in which something is mapped.
    fn granules(&self) -> u16 {
        if !self.is_dense {
            return self.list().fold(0, |granules, extent| granules | granules_of(extent));
        }
        (0..4).fold(0, |granules, i| {
            let word = self.word(i);
            let mapped = |g: usize| u16::from(word >> (g * 16) & 0xFFFF != 0);
            (0..4).fold(granules, |granules, g| granules | mapped(g) << (i * 4 + g))
        })
    }

    /// Heat, two bits for each of the 16 granules.
    pub fn heat(&self) -> u32 {
        let granules = self.granules();
        let at = self.bytes.len() - heat_bytes(granules);
        let packed = read_u64(self.bytes, at);
        let mut rank = 0;
        (0..16).filter(|g| granules >> g & 1 == 1).fold(0, |heat, g| {
            rank += 1;
            heat | ((packed >> ((rank - 1) * 2) & 3) as u32) << (g * 2)
        })
    }

    /// Place of a granule's heat: byte within the body and shift; `None` if nothing is mapped.
    pub fn heat_place(&self, granule: u32) -> Option<(usize, u32)> {
        let granules = self.granules();
        let rank = (granules & ((1 << granule) - 1)).count_ones();
        let at = self.bytes.len() - heat_bytes(granules);
        (granules >> granule & 1 == 1).then_some((at + rank as usize / 4, rank % 4 * 2))
    }
}

/// Overwrites the entries of a dense body from block `start` on with `extents`, which map the same
/// blocks as before; the body now has `extent_count` extents. Says whether that was possible: the
/// extents must fit the packing, and a list must not have become shorter.
pub(super) fn patch(bytes: &mut [u8], start: u32, new: &Extents, extent_count: usize) -> bool {
    let packing = Packing::read(bytes);
    if extent_count * EXTENT_BYTES + 4 < bytes.len() || !packing.takes(new) {
        return false;
    }
    let bits = packing.entry_bits();
    let skipped = Body { bytes, is_dense: true }.rank(start);
    let mut at = ENTRIES_AT * 8 + skipped * bits;
    packing.for_each_entry(new, |entry| {
        let word = read_u64(bytes, at / 8) & !(((1 << bits) - 1) << (at % 8));
        let word = (word | entry << (at % 8)).to_le_bytes();
        let end = bytes.len().min(at / 8 + 8);
        bytes[at / 8..end].copy_from_slice(&word[..end - at / 8]);
        at += bits;
    });
    bytes[COUNT_AT] = (extent_count - 1) as u8;
    true
}

/// A dense body with what it has in `window` replaced; the body then has `extent_count` extents. `None` if what is
/// new does not fit the packing, or a list is as short.
pub(super) fn splice(
    old: Body<'_>,
    window: &Range<u32>,
    new: &Extents,
    extent_count: usize,
) -> Option<Built> {
    let packing = Packing::read(old.bytes);
    let bits = packing.entry_bits();
    let (before, after) = (old.rank(window.start), old.rank(window.end));
    let behind = old.rank(EXTENTS_MAX as u32) - after;
    let count = before + new.block_count() as usize + behind;
    let len = ENTRIES_AT + (count * bits).div_ceil(8);
    let stays_dense = extent_count > LIST_ALWAYS && len < extent_count * EXTENT_BYTES;
    if !stays_dense || !packing.takes(new) {
        return None;
    }
    let mut built = Built { bytes: [0; BODY_BYTES_MAX + 8], len, states: DENSE };
    let kept = ENTRIES_AT * 8 + before * bits;
    built.bytes[..kept.div_ceil(8)].copy_from_slice(&old.bytes[..kept.div_ceil(8)]);
    built.bytes[kept / 8] &= (1 << (kept % 8)) - 1;
    let mut mapped = old.mapped();
    mapped.set(window.clone(), false);
    new.as_slice().iter().for_each(|extent| mapped.set(extent.first()..extent.end(), true));
    built.put_mapped(&mapped, extent_count);
    let end = built.put_entries(kept, packing, new);
    copy_bits(old.bytes, ENTRIES_AT * 8 + after * bits, &mut built.bytes, end, behind * bits);
    let granules = built.body().granules();
    if granules == old.granules() {
        let heat = &old.bytes[old.bytes.len() - heat_bytes(granules)..];
        built.bytes[len..len + heat.len()].copy_from_slice(heat);
        built.len += heat.len();
    } else {
        built.put_heat(old.heat(), granules);
    }
    Some(built)
}

/// Copies so many bits from bit `at` of a slice to bit `to` of another, in which everything from there on is 0.
fn copy_bits(from: &[u8], at: usize, into: &mut [u8], to: usize, count: usize) {
    // What a word has from any bit of its first byte on, in whole bytes.
    const STEP: usize = 56;
    for done in (0..count).step_by(STEP) {
        let (at, to) = (at + done, to + done);
        let mask = (1 << (count - done).min(STEP)) - 1;
        let bits = read_u64(from, at / 8) >> (at % 8) & mask;
        let word = read_u64(into, to / 8) | bits << (to % 8);
        into[to / 8..to / 8 + 8].copy_from_slice(&word.to_le_bytes());
    }
}

/// Says of what is clean in a range whether it is cold. An extent of a list becomes cold only as a whole.
pub(super) fn mark(bytes: &mut [u8], is_dense: bool, range: Range<u32>, cold: bool) {
    let from = if cold { CLEAN } else { 0 };
    let body = Body { bytes, is_dense };
    if !is_dense {
        for i in 0..body.list_count() {
            let at = i * EXTENT_BYTES;
            let extent = Extent(read_u64(bytes, at));
            if extent.first() >= range.end {
                return;
            }
            let inside = extent.first() >= range.start && extent.end() <= range.end;
            let meant = if cold { inside } else { extent.end() > range.start };
            if meant && extent.0 >> STATE_SHIFT & STATE_MASK == from {
                bytes[at + STATE_SHIFT as usize / 8] ^= CLEAN as u8;
            }
        }
        return;
    }
    let bits = Packing::read(bytes).entry_bits();
    let (first, end) = (body.rank(range.start), body.rank(range.end));
    for at in (first..end).map(|i| ENTRIES_AT * 8 + i * bits) {
        if read_u64(bytes, at / 8) >> (at % 8) & STATE_MASK == from {
            bytes[at / 8] ^= (CLEAN as u8) << (at % 8);
        }
    }
}

/// The granules that an extent touches.
#[inline]
pub(super) fn granules_of(extent: Extent) -> u16 {
    let (first, last) = (extent.first() / 16, (extent.end() - 1) / 16);
    (0xFFFF << first & 0xFFFF >> (15 - last)) as u16
}

fn heat_bytes(granules: u16) -> usize {
    granules.count_ones().div_ceil(4) as usize
}

/// A body on the stack, being built.
pub(super) struct Built {
    bytes: [u8; BODY_BYTES_MAX + 8],
    len: usize,
    /// States within, and [`DENSE`].
    pub states: u8,
}

impl Built {
    /// The shorter form of a region with at least one extent.
    pub fn new(heat: u32, extents: &Extents) -> Self {
        let mut built = Self { bytes: [0; BODY_BYTES_MAX + 8], len: 0, states: 0 };
        let list = extents.as_slice();
        built.states = extents.states();
        let list_bytes = list.len() * EXTENT_BYTES;
        if list.len() > LIST_ALWAYS {
            let packing = Packing::of(list);
            let bits = packing.entry_bits() * extents.block_count() as usize;
            if ENTRIES_AT + bits.div_ceil(8) < list_bytes {
                built.put_dense(extents, packing);
                built.len = ENTRIES_AT + bits.div_ceil(8);
                built.states |= DENSE;
            }
        }
        if built.len == 0 {
            for (slot, extent) in built.bytes.chunks_exact_mut(EXTENT_BYTES).zip(list) {
                let cold = extents.is_cold(*extent);
                slot.copy_from_slice(&(extent.0 & !(u64::from(cold) << STATE_SHIFT)).to_le_bytes());
            }
            built.len = list_bytes;
        }
        built.put_heat(heat, extents.granules());
        built
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// See [`Body`].
    pub fn body(&self) -> Body<'_> {
        Body { bytes: self.as_slice(), is_dense: self.states & DENSE != 0 }
    }

    fn put_dense(&mut self, extents: &Extents, packing: Packing) {
        packing.write(&mut self.bytes);
        let mut mapped = Blocks::default();
        extents.as_slice().iter().for_each(|extent| mapped.set(extent.first()..extent.end(), true));
        self.put_mapped(&mapped, extents.as_slice().len());
        self.put_entries(ENTRIES_AT * 8, packing, extents);
    }

    fn put_mapped(&mut self, mapped: &Blocks, extent_count: usize) {
        for (slot, word) in self.bytes.chunks_exact_mut(8).zip(mapped.words()) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        self.bytes[COUNT_AT] = (extent_count - 1) as u8;
    }

    /// Puts entries at a bit from which on everything is 0; the bit behind them.
    fn put_entries(&mut self, mut at: usize, packing: Packing, extents: &Extents) -> usize {
        let bits = packing.entry_bits();
        packing.for_each_entry(extents, |entry| {
            let word = read_u64(&self.bytes, at / 8) | entry << (at % 8);
            self.bytes[at / 8..at / 8 + 8].copy_from_slice(&word.to_le_bytes());
            at += bits;
        });
        at
    }

    fn put_heat(&mut self, heat: u32, granules: u16) {
        let mut packed = 0_u32;
        for (rank, granule) in (0..16).filter(|g| granules >> g & 1 == 1).enumerate() {
            packed |= (heat >> (granule * 2) & 3) << (rank * 2);
        }
        self.bytes[self.len..self.len + 4].copy_from_slice(&packed.to_le_bytes());
        self.len += heat_bytes(granules);
    }
}

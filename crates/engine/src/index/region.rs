//! The extents of one region, unpacked: how runs are cut, replaced and merged.

use std::ops::Range;

use super::body::granules_of;
use crate::format::{Extent, State};
use crate::ids::Location;
use crate::limits::REGION_BLOCKS;

/// Most extents of a region: every block its own.
pub(super) const EXTENTS_MAX: usize = REGION_BLOCKS as usize;

/// Whether block `i` of an extent in this state is at `location + i` (else all are at `location`).
#[inline]
pub(super) fn advances(state: State) -> bool {
    !matches!(state, State::Zero | State::ZeroWritten)
}

/// The state of an extent of the index, which always holds a known one.
#[inline]
pub(super) fn state_of(extent: Extent) -> State {
    extent.state().expect("the index holds known states only")
}

/// The blocks `range` (within the region) of an extent that contains them.
#[inline]
pub(super) fn clip(extent: Extent, range: Range<u32>) -> Extent {
    if range.start == extent.first() && range.end == extent.end() {
        return extent;
    }
    let state = state_of(extent);
    let skip = if advances(state) { range.start - extent.first() } else { 0 };
    Extent::new(
        range.start,
        range.end - range.start,
        state,
        Location(extent.location().0 + u64::from(skip)),
        extent.distance() + skip as u8,
    )
    .with_partial(extent.is_partial())
}

/// Whether `next` goes on where `extent` ends, so that the two are one.
#[inline]
pub(super) fn continues(extent: Extent, next: Extent) -> bool {
    // Locations first: those of neighbours that were written apart differ.
    let step = next.location().0.wrapping_sub(extent.location().0);
    if step > 256 || extent.end() != next.first() || extent.state() != next.state() {
        return false;
    }
    let step = if advances(state_of(extent)) { extent.count() } else { 0 };
    !extent.is_partial()
        && !next.is_partial()
        && next.location().0 == extent.location().0 + u64::from(step)
        && u32::from(next.distance()) == u32::from(extent.distance()) + step
}

/// What becomes of a run.
pub(super) enum Change {
    /// Nothing.
    Keep,
    /// It is this extent, over the same blocks.
    Become(Extent),
    /// It is no longer mapped.
    Remove,
}

/// Blocks of a region, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Blocks([u64; WORDS]);

/// Words of [`Blocks`]. What is taken modulo it needs no check.
const WORDS: usize = EXTENTS_MAX / 64;

impl Blocks {
    #[inline]
    pub fn of_words(words: [u64; WORDS]) -> Self {
        Self(words)
    }

    #[inline]
    pub fn words(&self) -> [u64; WORDS] {
        self.0
    }

    /// Has those of a range, or has them no more.
    #[inline]
    pub fn set(&mut self, range: Range<u32>, on: bool) {
        for (word, base) in self.0.iter_mut().zip((0..).step_by(64)) {
            let part = |at: u32| at.saturating_sub(base).min(64);
            let (low, high) = (part(range.start), part(range.end));
            if low < high {
                let mask = u64::MAX >> (64 - (high - low)) << low;
                *word = if on { *word | mask } else { *word & !mask };
            }
        }
    }

    #[inline]
    pub fn add(&mut self, block: u32) {
        self.0[block as usize / 64 % WORDS] |= 1 << (block % 64);
    }

    #[inline]
    pub fn has(&self, block: u32) -> bool {
        self.bit(block) == 1
    }

    /// 1 if it has a block, else 0.
    #[inline]
    pub fn bit(&self, block: u32) -> u64 {
        self.0[block as usize / 64 % WORDS] >> (block % 64) & 1
    }

    /// Has those of a range as `other` has them.
    pub fn take(&mut self, other: &Blocks, range: Range<u32>) {
        self.set(range.clone(), false);
        range.filter(|&block| other.has(block)).for_each(|block| self.add(block));
    }
}

/// The extents of a region, sorted, disjoint and merged, in an array on the stack.
pub(super) struct Extents {
    count: usize,
    slots: [Extent; EXTENTS_MAX],
    /// Blocks that are cold, if they are clean; see [`super::body`].
    pub cold: Blocks,
}

impl Extents {
    pub fn new() -> Self {
        Self { count: 0, slots: [Extent(0); EXTENTS_MAX], cold: Blocks::default() }
    }

    /// Whether an extent is clean, and all of it is cold.
    #[inline]
    pub fn is_cold(&self, extent: Extent) -> bool {
        state_of(extent) == State::Clean
            && (extent.first()..extent.end()).all(|block| self.cold.has(block))
    }

    /// Blocks of an extent that are cold.
    #[inline]
    pub fn cold_of(&self, extent: Extent) -> Blocks {
        if state_of(extent) == State::Clean { self.cold } else { Blocks::default() }
    }

    #[inline]
    pub fn as_slice(&self) -> &[Extent] {
        &self.slots[..self.count]
    }

    pub fn clear(&mut self) {
        self.count = 0;
        self.cold = Blocks::default();
    }

    /// Appends an extent, or lengthens the last one if this continues it.
    #[inline]
    pub fn push(&mut self, extent: Extent) {
        if let Some(last) = self.slots[..self.count].last_mut()
            && continues(*last, extent)
        {
            last.0 += u64::from(extent.count()) << 8;
            return;
        }
        self.slots[self.count] = extent;
        self.count += 1;
    }

    /// Appends an extent that does not continue the last one.
    pub fn push_merged(&mut self, extent: Extent) {
        self.slots[self.count] = extent;
        self.count += 1;
    }

    /// Mapped blocks.
    pub fn block_count(&self) -> u32 {
        self.as_slice().iter().map(|extent| extent.count()).sum()
    }

    /// States, bit n for state n.
    pub fn states(&self) -> u8 {
        self.as_slice().iter().fold(0, |states, e| states | 1 << state_of(*e) as u8)
    }

    /// Sets `self` to `old` with everything inside `window` replaced.
    pub fn replace(&mut self, old: &[Extent], window: Range<u32>, new: &[Extent]) {
        self.clear();
        let below = old.iter().filter(|extent| extent.first() < window.start);
        for &extent in below {
            self.push(clip(extent, extent.first()..extent.end().min(window.start)));
        }
        new.iter().for_each(|extent| self.push(*extent));
        for &extent in old.iter().filter(|extent| extent.end() > window.end) {
            self.push(clip(extent, extent.first().max(window.end)..extent.end()));
        }
    }

    /// Bit `g` is set if something in granule `g` is mapped.
    pub fn granules(&self) -> u16 {
        self.as_slice().iter().fold(0, |granules, extent| granules | granules_of(*extent))
    }

    /// Sets `self` to `old` with the runs inside `range` changed as `each` says and `insert`, if
    /// any, put there; then `each` must remove every run. Says whether anything changed.
    pub fn rewrite(
        &mut self,
        old: &[Extent],
        range: Range<u32>,
        insert: Option<Extent>,
        mut each: impl FnMut(Extent) -> Change,
    ) -> bool {
        let mut changed = insert.is_some();
        let mut insert = insert;
        self.clear();
        for &extent in old {
            if extent.end() <= range.start {
                self.push(extent);
                continue;
            }
            if extent.first() < range.start {
                self.push(clip(extent, extent.first()..range.start));
            }
            let (start, end) = (extent.first().max(range.start), extent.end().min(range.end));
            if start < end {
                let piece = clip(extent, start..end);
                match each(piece) {
                    Change::Keep => self.push(piece),
                    Change::Become(other) => {
                        self.push(other);
                        changed = true;
                    }
                    Change::Remove => changed = true,
                }
            }
            if extent.end() > range.end {
                if let Some(new) = insert.take() {
                    self.push(new);
                }
                self.push(clip(extent, extent.first().max(range.end)..extent.end()));
            }
        }
        if let Some(new) = insert {
            self.push(new);
        }
        changed
    }
}

/// Both heat bits of each granule of the set.
pub(super) fn heat_mask(granules: u16) -> u32 {
    (0..16).fold(0, |mask, g| mask | (u32::from(granules >> g & 1) * 3) << (g * 2))
}

//! The extents of one region, unpacked: how runs are cut, replaced and merged.

use std::ops::Range;

use super::body::granules_of;
use crate::format::{Extent, State};
use crate::ids::Location;
use crate::limits::REGION_BLOCKS;

/// Most extents of a region: every block its own.
pub(super) const EXTENTS_MAX: usize = REGION_BLOCKS as usize;

/// Whether block `i` of an extent in this state is at `location + i` (else all are at `location`).
pub(super) fn advances(state: State) -> bool {
    !matches!(state, State::Zero | State::ZeroWritten)
}

/// The state of an extent of the index, which always holds a known one.
pub(super) fn state_of(extent: Extent) -> State {
    extent.state().expect("the index holds known states only")
}

/// The blocks `range` (within the region) of an extent that contains them.
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
pub(super) fn continues(extent: Extent, next: Extent) -> bool {
    if extent.end() != next.first() || extent.state() != next.state() {
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

/// The extents of a region, sorted, disjoint and merged, in an array on the stack.
pub(super) struct Extents {
    count: usize,
    slots: [Extent; EXTENTS_MAX],
}

impl Extents {
    pub fn new() -> Self {
        Self { count: 0, slots: [Extent(0); EXTENTS_MAX] }
    }

    pub fn as_slice(&self) -> &[Extent] {
        &self.slots[..self.count]
    }

    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Appends an extent, or lengthens the last one if this continues it.
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

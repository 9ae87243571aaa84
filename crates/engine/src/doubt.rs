//! Blocks whose append failed since the pool has latched: the next start may or may not find the record (INV-2).

use std::cell::RefCell;

use crate::ids::VolumeId;

/// Blocks of one such record.
struct Doubtful {
    volume: VolumeId,
    block: u64,
    count: u32,
    /// Whether the record would have given them other content.
    supersedes: bool,
}

impl Doubtful {
    fn overlaps(&self, volume: VolumeId, block: u64, count: u32) -> bool {
        self.volume == volume
            && self.block < block + u64::from(count)
            && block < self.block + u64::from(self.count)
    }
}

/// What is doubtful in a running pool, and stays so: only a start can tell.
#[derive(Default)]
pub(crate) struct Doubts(RefCell<Vec<Doubtful>>);

impl Doubts {
    /// Notes blocks of a record that may be found; `supersedes`: it would have given them other content.
    pub(crate) fn note(&self, volume: VolumeId, block: u64, count: u32, supersedes: bool) {
        self.0.borrow_mut().push(Doubtful { volume, block, count, supersedes });
    }

    /// Whether it is open which version of these blocks a restart will find. Until then neither is served.
    pub(crate) fn has_version_of(&self, volume: VolumeId, block: u64, count: u32) -> bool {
        self.has(|range| range.supersedes && range.overlaps(volume, block, count))
    }

    /// Whether a restart may find a record of these blocks whose append failed.
    pub(crate) fn has_record_of(&self, volume: VolumeId, block: u64, count: u32) -> bool {
        self.has(|range| range.overlaps(volume, block, count))
    }

    fn has(&self, want: impl Fn(&Doubtful) -> bool) -> bool {
        self.0.borrow().iter().any(want)
    }
}

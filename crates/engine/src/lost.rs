//! Blocks of which no cache device has a good copy, and that origins lack: reading them fails until they are overwritten.
//!
//! * There are as many as the index has in [`State::Lost`], from when a start has begun to count on.
//! * It is durably noted that they are before anybody is told: who asks for some meanwhile waits for that.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::core::Core;
use crate::count::{Count, Counted};
use crate::format::State;
use crate::ids::{SECTORS_ALL, VolumeId};
use crate::index::Mapping;

/// What is lost in a running pool.
#[derive(Default)]
pub(crate) struct Lost {
    /// Blocks, per volume.
    blocks: RefCell<BTreeMap<VolumeId, u64>>,
    /// How many note some.
    noting: Count,
}

impl Lost {
    /// Blocks of a volume.
    pub(crate) fn of(&self, volume: VolumeId) -> u64 {
        self.blocks.borrow().get(&volume).copied().unwrap_or(0)
    }

    /// Blocks of all volumes.
    pub(crate) fn all(&self) -> u64 {
        self.blocks.borrow().values().sum()
    }

    /// Counts what has come into the index as lost.
    pub(crate) fn add(&self, volume: VolumeId, count: u32) {
        *self.blocks.borrow_mut().entry(volume).or_default() += u64::from(count);
    }

    /// Counts what is in the index as lost no more.
    pub(crate) fn sub(&self, volume: VolumeId, count: u32) {
        *self.blocks.borrow_mut().entry(volume).or_default() -= u64::from(count);
    }

    /// Some is being noted until the guard is dropped.
    pub(crate) fn noting(&self) -> Counted<'_> {
        self.noting.guard()
    }
}

impl Core {
    /// Has the index say that a run is lost.
    pub(crate) fn lose(&self, volume: VolumeId, m: Mapping) {
        self.map_insert(
            volume,
            Mapping { state: State::Lost, distance: 0, sectors: SECTORS_ALL, ..m },
        );
    }

    /// Whether a block is lost.
    pub(crate) fn is_lost(&self, volume: VolumeId, block: u64) -> bool {
        let mut lost = false;
        self.shard(volume, block).index.borrow().lookup(volume, block, 1, |m| {
            lost = m.state == State::Lost;
        });
        lost
    }

    /// Waits until what is lost is durably noted.
    pub(crate) async fn until_losses_noted(&self) {
        self.quiet.until(|| self.lost.noting.is_zero() || self.latched.get()).await;
    }
}

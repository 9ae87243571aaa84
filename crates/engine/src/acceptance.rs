//! What is lost, given up by its owner: from then on the volume has what its origin has there.
//!
//! * That is older data than clients were told is written, of different ages from block to block. Nobody but the
//!   owner can know whether it is of use, so nothing is accepted that was not asked for.
//! * A durable tombstone says it (INV-8), so it stays accepted over crashes. What a crash leaves without one
//!   is lost as before.

use crate::core::{Core, ShardState};
use crate::error::Result;
use crate::format::State;
use crate::ids::VolumeId;
use crate::limits::REGION_BLOCKS;
use crate::volume::{Volume, VolumeState};

/// Regions of a shard in which something of a volume is, by their first block.
pub(crate) fn regions_of(shard: &ShardState, volume: VolumeId) -> Vec<u64> {
    let mut regions = Vec::new();
    shard.index.borrow().for_each_region(|of, region, _, _, _| {
        if of == volume {
            regions.push(u64::from(region) * REGION_BLOCKS);
        }
    });
    regions
}

/// Runs of blocks that are lost in a region: the first and how many.
pub(crate) fn lost_in(shard: &ShardState, volume: VolumeId, region: u64) -> Vec<(u64, u32)> {
    let mut lost = Vec::new();
    shard.index.borrow().lookup(volume, region, REGION_BLOCKS as u32, |m| {
        lost.extend((m.state == State::Lost).then_some((m.block, m.count)));
    });
    lost
}

impl Volume {
    /// Gives up what is lost of the volume: what its origin has there, which is older, is read from then on. The
    /// blocks that were given up; durable when it returns. To be driven to its end.
    ///
    /// # Errors
    /// [`Stopping`](crate::ErrorKind::Stopping); [`Io`](crate::ErrorKind::Io) if the pool has latched or latches:
    /// what was not given up before is lost as it was.
    pub async fn accept_lost(&self) -> Result<u64> {
        let _request = self.begin().await?;
        let (core, v) = (self.core(), &self.state);
        let mut accepted = 0;
        for shard in &core.shards {
            for region in regions_of(shard, v.id) {
                accepted += core.accept_in(v, shard, region).await?;
            }
        }
        Ok(accepted)
    }
}

impl Core {
    async fn accept_in(&self, v: &VolumeState, shard: &ShardState, region: u64) -> Result<u64> {
        if lost_in(shard, v.id, region).is_empty() {
            return Ok(0);
        }
        let _guard = shard.locks.lock(&self.ram, v.id, region, REGION_BLOCKS).await;
        // Some of it may have been overwritten meanwhile.
        let lost = lost_in(shard, v.id, region);
        let void = async {
            self.check_latch()?;
            self.log_tombstones(v, &lost).await?;
            self.flush_members().await
        };
        let durable = void.await;
        self.note_unless_void(v, region, &durable);
        durable?;
        Ok(lost.iter().map(|(_, count)| u64::from(*count)).sum())
    }
}

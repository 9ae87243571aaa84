//! What is lost, given up by its owner: from then on the volume has what its origin has there.
//!
//! * That is older data than clients were told is written, of different ages from block to block. Nobody but the
//!   owner can know whether it is of use, so nothing is accepted that was not asked for.
//! * A durable tombstone says it (INV-8), so it stays accepted over crashes. What a crash leaves without one
//!   is lost as before.
//! * An origin write that was under way when its block was lost may still arrive. Whoever writes around the
//!   log after the acceptance would be overtaken by it (INV-9), so it is awaited first.

use forebay_device::runtime::MILLISECOND;
use forebay_device::{LocalBoxFuture, Nanos};

use crate::core::{Core, ShardState};
use crate::error::{Error, ErrorKind, Result};
use crate::format::State;
use crate::ids::VolumeId;
use crate::limits::{ORIGIN_SILENCE, REGION_BLOCKS};
use crate::planted;
use crate::volume::{Volume, VolumeState};
/// How often it is looked whether what is under way to the origin has arrived.
const LOOK_INTERVAL: Nanos = 5 * MILLISECOND;

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
    /// what was not given up before is lost as it was. [`Refused`](crate::ErrorKind::Refused) if the origin does
    /// not answer, and may still take what is lost.
    pub fn accept_lost(&self) -> LocalBoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            let _request = self.begin().await?;
            let (core, v) = (self.core(), &self.state);
            let mut accepted = 0;
            for shard in &core.shards {
                for region in regions_of(shard, v.id) {
                    accepted += core.accept_in(v, shard, region).await?;
                }
            }
            Ok(accepted)
        })
    }
}

impl Core {
    async fn accept_in(&self, v: &VolumeState, shard: &ShardState, region: u64) -> Result<u64> {
        if lost_in(shard, v.id, region).is_empty() {
            return Ok(0);
        }
        let (_guard, lost) = loop {
            self.until_arrived(v, &lost_in(shard, v.id, region)).await?;
            let guard = shard.locks.lock(&self.ram, v.id, region, REGION_BLOCKS).await;
            // Some of it may have been overwritten meanwhile, and more of it lost.
            let lost = lost_in(shard, v.id, region);
            if !is_under_way(v, &lost) {
                break (guard, lost);
            }
        };
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

    /// Waits until no origin write of any of these runs is under way. Nothing that is lost is begun anew.
    async fn until_arrived(&self, v: &VolumeState, lost: &[(u64, u32)]) -> Result<()> {
        while is_under_way(v, lost) {
            planted::seen("acceptance waited for the origin");
            self.check_latch()?;
            if v.origin.is_silent(self.rt.now(), ORIGIN_SILENCE) {
                let what = format!(
                    "the origin of \"{}\" does not answer, and may still take what is lost",
                    v.name
                );
                return Err(Error::new(ErrorKind::Refused, what).hint("ask again once it answers"));
            }
            let timer = self.rt.sleep(LOOK_INTERVAL);
            v.origin.traffic.moved.until_or(|| !is_under_way(v, lost), timer).await;
        }
        Ok(())
    }
}

/// Whether some of these runs is planned to be written to the origin, or is on its way there.
fn is_under_way(v: &VolumeState, runs: &[(u64, u32)]) -> bool {
    runs.iter().any(|&(first, count)| v.elevator.since_taken(first, count).is_some())
}

//! Taking a volume out of a pool: afterwards its origin alone is the volume.
//!
//! * The order is: no more requests, everything on the origin and durable there, the last clean fact
//!   durable, `may_be_dirty` cleared, and only then a superblock without the volume (INV-34). A crash
//!   leaves a volume of which nothing is missing, or none and the whole origin.
//! * Its records stay in the log until their segments are reused. A start drops whatever names a
//!   volume that the superblock does not have; that is safe because a volume's number is never given
//!   out again.

use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::LocalBoxFuture;

use crate::acceptance::{lost_in, regions_of};
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::format::VolumeRecord;
use crate::ids::VolumeId;
use crate::limits::REGION_BLOCKS;
use crate::planted::{self, Bug};
use crate::pool::Pool;
use crate::volume::VolumeState;
use crate::wait::yield_once;
use crate::work::InFlight;

/// Keeps a volume from taking requests, unless it is gone in the end.
struct Leaving<'a>(&'a VolumeState);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.leaving.set(false);
    }
}

impl Pool {
    /// Whether [`Pool::remove_volume`] would go on, as things stand.
    ///
    /// # Errors
    /// As that.
    pub fn check_removal(&self, name: &str) -> Result<()> {
        let record = self.core.record(name)?;
        match self.core.volume(record.id) {
            Some(v) => self.core.refuse_lost(v.id, name),
            None => self.core.check_absent_removal(&record, false),
        }
    }

    /// Brings everything of a volume to its origin, then takes the volume out of the pool. One whose
    /// origin is not attached can go if the pool owes it nothing. It takes no requests from the
    /// beginning on, and goes on as before if this fails. To be driven to its end.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Refused`] if its origin is needed and not attached,
    /// [`ErrorKind::NeedsDecision`] if blocks of it are lost, [`ErrorKind::Io`].
    pub fn remove_volume<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let core = &self.core;
            if core.is_stopping() {
                return Err(Error::new(ErrorKind::Stopping, "the pool is stopping"));
            }
            let record = core.record(name)?;
            let Some(v) = core.volume(record.id) else {
                // Nobody attaches it meanwhile.
                let _attaching = core.attaching.lock().await;
                core.check_absent_removal(&record, core.volume(record.id).is_some())?;
                return core.drop_volume(record.id).await;
            };
            if v.leaving.replace(true) {
                let what = format!("volume \"{name}\" is being removed already");
                return Err(Error::new(ErrorKind::Invalid, what).hint("wait for its end"));
            }
            let leaving = Leaving(&v);
            let request = InFlight::new(core, &v);
            core.bring_home(&v).await?;
            core.drop_volume(record.id).await?;
            v.gone.set(true);
            core.volumes.borrow_mut().remove(&record.id);
            core.reread.borrow_mut().forget(record.id);
            core.streams.borrow_mut().forget(record.id);
            core.keep_touches();
            core.housekeeping.wake_all();
            // What still holds a view of it is refused for good.
            std::mem::forget(leaving);
            drop(request);
            Ok(())
        })
    }
}

impl Core {
    /// Refuses to remove a volume whose origin is not there, or has been attached meanwhile, if it may lack data.
    fn check_absent_removal(&self, record: &VolumeRecord, has_come: bool) -> Result<()> {
        if has_come || record.may_be_dirty || self.is_owing(record.id) {
            let what = format!(
                "volume \"{}\" may lack data on its origin, which is not there",
                record.name
            );
            return Err(Error::new(ErrorKind::Refused, what)
                .hint("attach its origin first; the data stays in the cache"));
        }
        self.refuse_lost(record.id, &record.name)
    }

    /// Leaves a quiet volume of which the origin has everything and the pool knows it.
    async fn bring_home(self: &Rc<Self>, v: &Rc<VolumeState>) -> Result<()> {
        // This is a request too, and waits for all others.
        self.quiet.until(|| v.requests.get() == 1 || self.latched.get()).await;
        self.check_latch()?;
        if !planted::is(Bug::RemovedWhileDirty) {
            self.drain(v).await?;
        }
        self.refuse_lost(v.id, &v.name)?;
        self.clear_may_be_dirty(v).await?;
        if v.may_be_dirty.get() && !planted::is(Bug::RemovedWhileDirty) {
            let what = format!("volume \"{}\" became dirty while it was being removed", v.name);
            return Err(Error::new(ErrorKind::Io, what).hint("remove it again"));
        }
        // Whoever holds blocks has let go, and populations under way are void (INV-10).
        for shard in &self.shards {
            drop(shard.locks.lock(&self.ram, v.id, 0, v.blocks()).await);
        }
        Ok(())
    }

    /// Writes superblocks without a volume, then forgets what the index has of it.
    async fn drop_volume(&self, id: VolumeId) -> Result<()> {
        let control = self.control.lock().await;
        let without = self.write_superblocks(|superblock| {
            superblock.volumes.retain(|record| record.id != id);
        });
        without.await?;
        drop(control);
        for shard in &self.shards {
            for first in regions_of(shard, id) {
                self.map_remove(id, first, REGION_BLOCKS as u32);
            }
            shard.dropped.borrow_mut().retain(|(volume, _), _| *volume != id);
            yield_once().await;
        }
        self.written.borrow_mut().remove(&id);
        Ok(())
    }

    /// Refuses if blocks of a volume are nowhere: its origin is not the volume then.
    fn refuse_lost(&self, id: VolumeId, name: &str) -> Result<()> {
        let lost = self.shards.iter().find_map(|shard| {
            let mut regions = regions_of(shard, id).into_iter();
            regions.find_map(|region| lost_in(shard, id, region).first().copied())
        });
        let Some((block, _)) = lost else { return Ok(()) };
        let what = format!(
            "volume \"{name}\" has lost blocks, among them number {block}: its origin has older data \
             there"
        );
        Err(Error::new(ErrorKind::NeedsDecision, what).hint(
            "overwrite them through the volume, from a backup, or accept the older data: \
                   `forebay volume accept-lost`; then remove it",
        ))
    }

    /// Drops what the log still says of volumes that were removed.
    pub(crate) fn forget_removed(&self) {
        let known: BTreeSet<VolumeId> =
            self.superblock.borrow().volumes.iter().map(|record| record.id).collect();
        for shard in &self.shards {
            let mut regions = Vec::new();
            shard.index.borrow().for_each_region(|volume, region, _, _, _| {
                if !known.contains(&volume) {
                    regions.push((volume, u64::from(region) * REGION_BLOCKS));
                }
            });
            for (volume, first) in regions {
                planted::seen("start: of a removed volume");
                self.map_remove(volume, first, REGION_BLOCKS as u32);
            }
        }
    }
}

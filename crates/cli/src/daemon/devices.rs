//! Cache devices that leave a pool in use.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_control::api;
use forebay_control::error::Code;
use forebay_control::name::Name;
use forebay_engine::ids::DeviceId;

use super::Daemon;
use super::jobs::Aim;
use super::volumes::cancelled;
use crate::Result;
use crate::failure::Failure;

/// A cache device of an open pool.
pub(super) struct Device {
    pub(super) id: DeviceId,
    pub(super) path: PathBuf,
}

impl Daemon {
    /// The cache device of an open pool that has this path or this identity.
    pub(super) fn device_of(&self, pool: &Name, wanted: &str) -> Result<Device> {
        let (slot, open) = self.open(pool.as_str())?;
        let superblock = open.pool.superblock();
        let seen = slot.seen.borrow();
        let mut own = seen.iter().filter(|found| {
            superblock.present().any(|member| member.device == found.superblock.device)
        });
        let found = own.find(|found| {
            found.path == Path::new(wanted) || found.superblock.device.to_string() == wanted
        });
        let found = found.ok_or_else(|| {
            let what = format!("pool \"{pool}\" has no cache device {wanted}");
            Failure::coded(Code::NotFound, what)
                .hint(format!("`forebay pool show {pool}` shows their paths and identities"))
        })?;
        Ok(Device { id: found.superblock.device, path: found.path.clone() })
    }

    /// Begins to take a cache device out of a pool: what it holds goes to the others, then the pool
    /// goes on without it.
    pub(super) fn remove_device(self: &Rc<Self>, pool: &Name, wanted: &str) -> Result<api::Job> {
        let leaving = self.device_of(pool, wanted)?;
        let aim = Aim::RemoveDevice(pool.clone(), leaving.id);
        if let Some(job) = self.jobs.join(&aim)? {
            return Ok(job);
        }
        let (_, open) = self.open(pool.as_str())?;
        // It keeps nothing but the engine's part of the pool, and lets the device stay when dropped.
        let departure = Rc::new(open.pool.begin_departure(leaving.id)?);
        let counted = Rc::clone(&departure);
        let (it, pool) = (Rc::clone(self), pool.clone());
        let left = move || counted.left_bytes();
        let job = self.jobs.begin(aim, left, |job| async move {
            job.unless_cancelled(departure.emptied()).await.ok_or_else(cancelled)??;
            let _held = job.unless_cancelled(it.changing.lock()).await.ok_or_else(cancelled)?;
            departure.end().await?;
            it.forget_device(&pool, &leaving).await
        });
        Ok(self.jobs.look(&job))
    }

    /// Nobody looks for a device any more that has left its pool; the caller holds `changing`.
    async fn forget_device(&self, pool: &Name, gone: &Device) -> Result<()> {
        let slot = self.slot(pool.as_str())?;
        slot.seen.borrow_mut().retain(|found| found.superblock.device != gone.id);
        slot.record.borrow_mut().ssds.retain(|path| *path != gone.path);
        let record = slot.record.borrow().clone();
        // Where they are is looked up at each start anyway.
        if let Err(failure) = self.state.store(&record).await {
            self.journal.warn("state-unwritable", pool.as_str(), failure.what());
        }
        Ok(())
    }
}

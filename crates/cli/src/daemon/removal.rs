//! A volume is taken away: everything goes to its origin, which is the plain disk then.

use std::path::Path;
use std::rc::Rc;

use forebay_control::api;
use forebay_control::error::Code;
use forebay_control::name::VolumeName;
use forebay_engine::ErrorKind;

use super::jobs::Aim;
use super::volumes::{BLOCK_BYTES, cancelled};
use super::{Attached, Daemon, Open};
use crate::Result;
use crate::failure::Failure;

/// Why a volume cannot be removed. The pool knows only that its origin is not attached; of one that is there the daemon
/// knows why, and what to do about that.
fn because_of_origin(open: &Open, name: &VolumeName, error: forebay_engine::Error) -> Failure {
    let volumes = open.volumes.borrow();
    match volumes.get(name.volume.as_str()) {
        Some(Attached::Missing { why, .. })
            if error.kind == ErrorKind::Refused && why.code() != Code::NotFound =>
        {
            let what =
                format!("volume \"{name}\" may lack data on its origin, which is not in use");
            why.clone().on(what)
        }
        _ => error.into(),
    }
}

impl Daemon {
    /// Whether a volume could be removed, as things stand.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check_removal(&self, open: &Open, name: &VolumeName) -> Result<()> {
        let checked = open.pool.check_removal(name.volume.as_str());
        checked.map_err(|error| because_of_origin(open, name, error))
    }

    /// An open pool whose volume may be taken away as far as its clients are concerned.
    pub(super) fn may_remove_volume(&self, name: &VolumeName) -> Result<Rc<Open>> {
        let (slot, open) = self.open(name.pool.as_str())?;
        let superblock = open.pool.superblock();
        if !superblock.volumes.iter().any(|v| v.name == name.volume.as_str()) {
            return Err(open.no_volume(name));
        }
        if slot.record.borrow().exports.iter().any(|export| export.volume == name.volume) {
            return Err(Failure::coded(Code::Busy, format!("volume \"{name}\" is exported"))
                .hint(format!("close its export first: `forebay export remove {name}`")));
        }
        Ok(open)
    }

    /// Begins to take a volume away: everything to its origin, then it is gone and the origin is
    /// the plain disk. Clients must have left, and its export goes first.
    pub(super) async fn remove_volume(self: &Rc<Self>, name: &VolumeName) -> Result<api::Job> {
        let open = self.may_remove_volume(name)?;
        let aim = Aim::Remove(name.clone());
        if let Some(job) = self.jobs.join(&aim)? {
            return Ok(job);
        }
        let volume = open.volume(name).ok();
        let owed = volume.clone();
        let left = move || owed.as_ref().map_or(0, |volume| volume.owed_blocks() * BLOCK_BYTES);
        let (it, name) = (Rc::clone(self), name.clone());
        let job = self.jobs.begin(aim, left, |job| async move {
            // Most of it while clients of other volumes may still come; this part can be cancelled.
            if let Some(volume) = volume {
                it.destage(&job, &name, &volume).await?;
            }
            let _held = job.unless_cancelled(it.changing.lock()).await.ok_or_else(cancelled)?;
            it.drop_volume(&name).await
        });
        Ok(self.jobs.look(&job))
    }

    /// The end of a removal; the caller holds `changing`.
    pub(super) async fn drop_volume(&self, name: &VolumeName) -> Result<()> {
        let (slot, open) = self.open(name.pool.as_str())?;
        if slot.record.borrow().exports.iter().any(|export| export.volume == name.volume) {
            return Err(Failure::coded(
                Code::Busy,
                format!("volume \"{name}\" was exported meanwhile"),
            )
            .hint(format!("close its export first: `forebay export remove {name}`")));
        }
        let volumes = open.pool.superblock().volumes;
        self.refuse_displaced(name).await?;
        let removed = open.pool.remove_volume(name.volume.as_str()).await;
        removed.map_err(|error| because_of_origin(&open, name, error))?;
        for gone in volumes.iter().filter(|v| v.name == name.volume.as_str()) {
            self.opening.forget(Path::new(&gone.origin));
            self.placing.forget(Path::new(&gone.origin));
        }
        open.volumes.borrow_mut().remove(name.volume.as_str());
        open.origins.borrow_mut().remove(name.volume.as_str());
        open.troubles.borrow_mut().remove(name.volume.as_str());
        self.forget_advisor(&slot, &open, &name.volume).await;
        let what = format!("volume \"{name}\" was removed; its origin is the plain disk");
        self.journal.note("volume-removed", name, what);
        Ok(())
    }
}

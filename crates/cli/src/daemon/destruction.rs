//! The end of a pool: what is dirty goes to the origins, then the pool is erased from its cache devices.
//!
//! The order is: destaging, which can be cancelled; the volumes, one after the other; the marks on
//! spares; the pool is closed; a note in its record; the superblocks; the record is gone. Before the
//! note a crash leaves the pool with all of its data, perhaps with fewer volumes, whose origins are
//! plain disks. Behind it the pool is never opened again, and whoever starts erases the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_control::api;
use forebay_control::error::Code;
use forebay_control::name::{Name, VolumeName};
use forebay_engine::{ErrorKind, read_superblock};

use super::creation::erase;
use super::jobs::{Aim, Job};
use super::state::Record;
use super::volumes::{BLOCK_BYTES, cancelled};
use super::{Daemon, Slot, State};
use crate::Result;
use crate::failure::Failure;

impl Daemon {
    /// An open pool whose volumes can all go, with their names.
    pub(super) fn may_destroy(&self, name: &Name) -> Result<(Rc<Slot>, Vec<VolumeName>)> {
        let (slot, open) = self.open(name.as_str())?;
        if let Some(export) = slot.record.borrow().exports.first() {
            let volume = format!("{name}/{}", export.volume);
            return Err(Failure::coded(Code::Busy, format!("volume \"{volume}\" is exported"))
                .hint(format!("close its export first: `forebay export remove {volume}`")));
        }
        let mut volumes = Vec::new();
        for volume in open.pool.superblock().volumes {
            let volume = volume.name.parse().map_err(Failure::new)?;
            let volume = VolumeName { pool: name.clone(), volume };
            // What is dirty has to have somewhere to go; and one that cannot go would be found when others have gone.
            open.volume(&volume)?;
            open.pool.check_removal(volume.volume.as_str())?;
            volumes.push(volume);
        }
        Ok((slot, volumes))
    }

    /// Begins to destroy a pool; the caller holds `changing`.
    pub(super) fn destroy_pool(
        self: &Rc<Self>,
        name: &Name,
        body: &api::Confirm,
    ) -> Result<api::Job> {
        let aim = Aim::Destroy(name.clone());
        let is_confirmed = body.confirm == name.as_str();
        if !is_confirmed {
            let what = format!("\"{}\" does not confirm that pool \"{name}\" goes", body.confirm);
            return Err(Failure::coded(Code::BadRequest, what).hint("say its name as `confirm`"));
        }
        if let Some(job) = self.jobs.join(&aim)? {
            return Ok(job);
        }
        let (_, volumes) = self.may_destroy(name)?;
        self.may_close(name.as_str())?;
        let (it, counted, name) = (Rc::clone(self), Rc::clone(self), name.clone());
        let of = name.clone();
        // Nothing of the pool is held, for it is to be closed.
        let left = move || match counted.open(of.as_str()) {
            Ok((_, open)) => open.pool.blocks().1 * BLOCK_BYTES,
            Err(_) => 0,
        };
        let job = self.jobs.begin(aim, left, |job| async move {
            it.bring_all_home(&job, &volumes).await?;
            let _held = job.unless_cancelled(it.changing.lock()).await.ok_or_else(cancelled)?;
            if job.is_cancelled() {
                return Err(cancelled());
            }
            it.end_pool(&name, &volumes).await
        });
        Ok(self.jobs.look(&job))
    }

    async fn bring_all_home(&self, job: &Job, volumes: &[VolumeName]) -> Result<()> {
        for name in volumes {
            let volume = self.open(name.pool.as_str())?.1.volume(name)?;
            self.destage(job, name, &volume).await?;
        }
        Ok(())
    }

    /// Ends a pool of which everything is home; the caller holds `changing`.
    async fn end_pool(&self, name: &Name, volumes: &[VolumeName]) -> Result<()> {
        let (slot, now) = self.may_destroy(name)?;
        if let Some(new) = now.iter().find(|volume| !volumes.contains(volume)) {
            let what = format!("volume \"{new}\" was added meanwhile");
            return Err(Failure::coded(Code::Busy, what).hint("destroy the pool once more"));
        }
        // Of all, before the first one goes.
        for volume in volumes {
            self.refuse_displaced(volume).await?;
        }
        for volume in volumes {
            self.drop_volume(volume).await?;
        }
        if let Some(open) = slot.open() {
            self.unmark_spares(&slot, &open).await;
        }
        self.close(name.as_str(), &slot).await?;
        let record = Record { destroying: true, ..slot.record.borrow().clone() };
        self.state.store(&record).await?;
        *slot.record.borrow_mut() = record;
        self.erase_pool(name.as_str(), &slot).await
    }

    /// The devices of a pool that are there, and the names of those that are not: whatever is at their places now
    /// is none of the pool's.
    pub(super) async fn there_and_absent(
        &self,
        record: &Record,
    ) -> Result<(Vec<PathBuf>, Vec<String>)> {
        let (found, foreign): (Vec<_>, Vec<_>) = self
            .scan(&record.ssds)
            .await?
            .members
            .into_iter()
            .partition(|found| found.superblock.pool.to_string() == record.id);
        let is_found = |id: &str| found.iter().any(|it| it.superblock.device.to_string() == id);
        let lost: BTreeMap<&PathBuf, &String> =
            record.places.iter().filter(|(id, _)| !is_found(id)).map(|(id, at)| (at, id)).collect();
        let mut there: BTreeSet<PathBuf> = found.iter().map(|found| found.path.clone()).collect();
        let mut absent: BTreeMap<&PathBuf, Option<&String>> =
            lost.iter().map(|(path, id)| (*path, Some(*id))).collect();
        // A scan leaves out what it cannot read, and that is not erased by that.
        for path in record.ssds.iter().filter(|path| !found.iter().any(|it| it.path == **path)) {
            let is_foreign = foreign.iter().any(|it| it.path == *path);
            if !is_foreign && self.may_be_of(path, &record.id).await? {
                there.insert(path.clone());
            } else {
                absent.entry(path).or_insert(None);
            }
        }
        // Where one of the pool's is now, another one may have been before.
        absent.retain(|path, _| !there.contains(*path));
        let name = |(path, id): (&PathBuf, Option<&String>)| match id {
            Some(id) => format!("{} ({id})", path.display()),
            None => path.display().to_string(),
        };
        Ok((there.into_iter().collect(), absent.into_iter().map(name).collect()))
    }

    /// Whether a device where one of a pool was is that one, as far as can be told.
    async fn may_be_of(&self, path: &Path, pool: &str) -> Result<bool> {
        let (name, asked) = (path.display().to_string(), path.to_owned());
        if !self.patiently(&name, move || asked.exists()).await? {
            return Ok(false);
        }
        let Ok(members) = self.open_members(std::slice::from_ref(&path.to_owned())).await else {
            return Ok(true);
        };
        Ok(match read_superblock(&*members.only()).await {
            Ok(superblock) => superblock.pool.to_string() == pool,
            Err(error) => error.kind != ErrorKind::NotFound,
        })
    }

    /// Erases a pool from all of its devices that are there, and forgets it.
    async fn erase_pool(&self, name: &str, slot: &Slot) -> Result<()> {
        let record = slot.record.borrow().clone();
        let (there, absent) = self.there_and_absent(&record).await?;
        for path in there {
            self.erase_member(path, &record.id).await?;
        }
        self.state.forget(&record.id, true).await?;
        self.slots.borrow_mut().remove(name);
        let mut what = format!("pool \"{name}\" ({}) was destroyed", record.id);
        if !absent.is_empty() {
            what.push_str(&format!("; not erased, for it is absent: {}", absent.join(", ")));
        }
        self.journal.note("pool-destroyed", name, &what);
        Ok(())
    }

    /// Erases a device if it is of this pool, still.
    async fn erase_member(&self, path: PathBuf, pool: &str) -> Result<()> {
        let members = self.open_members(std::slice::from_ref(&path)).await?;
        let device = members.only();
        match read_superblock(&*device).await {
            Ok(superblock) if superblock.pool.to_string() == pool => {
                let erased = erase(&*device).await;
                erased.map_err(|error| Failure::io(format!("erase {}", path.display()), error))
            }
            Err(error) if error.kind == ErrorKind::Io => Err(error.into()),
            // Of another pool by now, or erased before a crash, perhaps without a flush.
            _ => {
                let flushed = device.flush().done().await;
                flushed.map_err(|error| Failure::io(format!("flush {}", path.display()), error))
            }
        }
    }

    /// Goes on where a crash or a failure has ended it; the caller holds `changing`. What keeps it from its end is
    /// the pool's state from then on, and told once.
    pub(super) async fn finish_destruction(&self, name: &str, slot: &Slot) {
        let Err(failure) = self.erase_pool(name, slot).await else { return };
        let what =
            format!("pool \"{name}\" is being destroyed, and not erased yet: {}", failure.what());
        let why = Failure::coded(Code::Busy, what.clone()).hint(failure.hint_text());
        let before = slot.transition(State::Failed(why));
        if !matches!(before, State::Failed(before) if before.what() == what) {
            self.journal.warn("pool-not-destroyed", name, what);
        }
    }
}

impl Slot {
    /// Why a pool of which the end is noted is not opened.
    pub(super) fn still_there(&self) -> Failure {
        match &*self.state.borrow() {
            State::Failed(failure) => failure.clone(),
            _ => Failure::coded(
                Code::Busy,
                format!("pool \"{}\" is being destroyed", self.record.borrow().name),
            )
            .hint("wait: it is erased within seconds; `forebay events` says what keeps it"),
        }
    }
}

//! Cache devices that come to a pool in use, or leave it.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_control::api;
use forebay_control::error::Code;
use forebay_control::name::Name;
use forebay_engine::Departure;
use forebay_engine::format::Superblock;
use forebay_engine::ids::DeviceId;

use super::Daemon;
use super::jobs::{Aim, Job};
use super::pools::check_absolute;
use super::scan::Found;
use super::state::Replacing;
use super::volumes::cancelled;
use crate::Result;
use crate::failure::Failure;
use crate::members::Members;

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
            let names = seen.iter().map(|found| found.path.display().to_string());
            let nearest = names.min_by_key(|name| strsim::damerau_levenshtein(name, wanted));
            let nearest = nearest.map_or(String::new(), |name| format!("did you mean {name}? "));
            Failure::coded(Code::NotFound, what).hint(format!(
                "{nearest}`forebay pool show {pool}` shows their paths and identities"
            ))
        })?;
        Ok(Device { id: found.superblock.device, path: found.path.clone() })
    }

    /// Opens what is to become a cache device of a pool, for ourselves alone.
    pub(super) async fn open_new(&self, path: &Path) -> Result<Members> {
        check_absolute(path)?;
        let (paths, check) = ([path.to_owned()], self.device_check());
        let members = Members::open_with(&self.reactor, &self.members, &paths, check).await?;
        members.refuse_used("add to the pool").await?;
        Ok(members)
    }

    /// Adds a cache device to a pool; the caller holds `changing`.
    pub(super) async fn add_device(&self, pool: &Name, path: &Path) -> Result<api::Pool> {
        let (_, open) = self.open(pool.as_str())?;
        let joining = self.open_new(path).await?;
        open.pool.plan_addition(&joining.only())?;
        drop(open);
        self.join_device(pool, path, joining, None).await?;
        self.describe_pool(pool.as_str())
    }

    /// Has a pool take in a device that was looked at, as part of a replacement or not; the caller holds
    /// `changing`.
    pub(super) async fn join_device(
        &self,
        pool: &Name,
        path: &Path,
        joining: Members,
        replacing: Option<Replacing>,
    ) -> Result<()> {
        let (slot, open) = self.open(pool.as_str())?;
        let device = joining.only();
        // Before a superblock names it: a start must look for it where it is.
        let before = slot.record.borrow().clone();
        let mut record = before.clone();
        record.ssds.push(path.to_owned());
        record.replacing = replacing.or(record.replacing);
        self.state.store(&record).await?;
        *slot.record.borrow_mut() = record;
        let id = match open.pool.add_member(device).await {
            Ok(id) => id,
            Err(error) => {
                *slot.record.borrow_mut() = before.clone();
                // It only says where to look.
                self.state.store(&before).await.ok();
                return Err(error.into());
            }
        };
        let superblock = Superblock { device: id, ..open.pool.superblock() };
        open.members.borrow_mut().append(joining);
        open.members.borrow().share_last(superblock.pool, &self.crew);
        slot.seen.borrow_mut().push(Found { path: path.to_owned(), superblock });
        slot.record.borrow_mut().places.insert(id.to_string(), path.to_owned());
        self.tell_news(pool.as_str(), &open);
        self.keep_record(&slot).await;
        Ok(())
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
            it.depart(&job, &pool, &leaving, &departure).await
        });
        Ok(self.jobs.look(&job))
    }

    /// Empties a cache device, then has its pool go on without it.
    pub(super) async fn depart(
        &self,
        job: &Job,
        pool: &Name,
        leaving: &Device,
        departure: &Departure,
    ) -> Result<()> {
        job.unless_cancelled(departure.emptied()).await.ok_or_else(cancelled)??;
        let _held = job.unless_cancelled(self.changing.lock()).await.ok_or_else(cancelled)?;
        departure.end().await?;
        self.forget_device(pool, leaving).await
    }

    /// Nobody looks for a device any more that has left its pool; the caller holds `changing`.
    async fn forget_device(&self, pool: &Name, gone: &Device) -> Result<()> {
        let slot = self.slot(pool.as_str())?;
        if let Some(open) = slot.open() {
            let pool = open.pool.superblock().pool;
            open.members.borrow_mut().release(&gone.path, pool, &self.crew);
        }
        slot.seen.borrow_mut().retain(|found| found.superblock.device != gone.id);
        {
            let mut record = slot.record.borrow_mut();
            record.ssds.retain(|path| *path != gone.path);
            record.places.remove(&gone.id.to_string());
            // One of the two of a replacement: it has come to its end, or is given up.
            let id = gone.id.to_string();
            let is_of = |known: &Replacing| known.old == id || known.new == gone.path;
            record.replacing = record.replacing.take().filter(|known| !is_of(known));
        }
        self.keep_record(&slot).await;
        Ok(())
    }
}

//! Cache devices that come to a pool in use, or leave it.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_control::api;
use forebay_control::error::Code;
use forebay_control::name::Name;
use forebay_device::BlockDevice;
use forebay_device::real::open::typed;
use forebay_engine::Departure;
use forebay_engine::format::Superblock;
use forebay_engine::ids::DeviceId;

use super::jobs::{Aim, Job};
use super::pools::{check_absolute, lost_of};
use super::scan::Found;
use super::state::Replacing;
use super::volumes::cancelled;
use super::{Daemon, Open, Slot};
use crate::Result;
use crate::failure::Failure;
use crate::members::{Members, refuse_sparse};
use crate::text;

/// A cache device of an open pool.
pub(super) struct Device {
    pub(super) id: DeviceId,
    pub(super) path: PathBuf,
}

/// Bytes from a cache device's start that its pool uses.
fn used_bytes(superblock: &Superblock, id: DeviceId) -> u64 {
    let record = superblock.members.iter().find(|member| member.device == id);
    let segments = record.map_or(0, |member| u64::from(member.segments.count()));
    superblock.segments_offset + segments * u64::from(superblock.segment_bytes)
}

/// How to write a file in full behind the bytes that a pool uses of it, and nothing before.
fn fill_behind(path: &Path, used: u64, size: u64) -> String {
    let more = size.saturating_sub(used);
    format!(
        "write its new part in full, and nothing before it: `dd if=/dev/zero of={} bs=1M \
         iflag=count_bytes oflag=seek_bytes conv=notrunc seek={used} count={more}`",
        typed(path)
    )
}

impl Slot {
    /// Where the cache devices are that its pool uses, and its spares.
    pub(super) fn devices(&self, open: &Open) -> Vec<PathBuf> {
        let (record, seen) = (self.record.borrow(), self.seen.borrow());
        let used = seen.iter().filter(|found| open.has(found.superblock.device));
        used.map(|found| &found.path).chain(record.spares.values()).cloned().collect()
    }
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
            let nearest = text::did_you_mean(wanted, seen.iter().filter_map(|it| it.path.to_str()));
            Failure::coded(Code::NotFound, what).hint(format!(
                "{nearest}`forebay pool show {pool}` shows their paths and identities"
            ))
        })?;
        Ok(Device { id: found.superblock.device, path: found.path.clone() })
    }

    fn release_device(&self, open: &Open, gone: DeviceId) {
        let pool = open.pool.superblock().pool;
        if let Some(path) = open.members.borrow_mut().release(gone, pool, &self.crew) {
            self.placing.forget(&path);
        }
    }

    /// Lets go of cache devices that the pool has gone on without, so that they can be used for something else; of one
    /// that hangs, once it answers.
    pub(super) fn release_failed(&self, open: &Open) {
        let superblock = open.pool.superblock();
        let is_present = |id| superblock.present().any(|member| member.device == id);
        let gone = open.members.borrow().gone(&*self.reactor, is_present);
        gone.into_iter().for_each(|id| self.release_device(open, id));
    }

    /// The spare that has this name, unless a cache device in use has it: one may be where a spare was before.
    pub(super) fn spare_named(
        &self,
        pool: &Name,
        wanted: &str,
    ) -> Result<Option<(String, PathBuf)>> {
        let (slot, _) = self.open(pool.as_str())?;
        Ok(slot.spare_of(wanted).filter(|_| self.device_of(pool, wanted).is_err()))
    }

    /// Opens what is to become a cache device of a pool, for ourselves alone; a spare of that pool is already.
    pub(super) async fn open_new(&self, slot: &Slot, open: &Open, path: &Path) -> Result<Members> {
        check_absolute(path)?;
        let own = self.identity_at(path).await?;
        let members = match own.and_then(|own| open.spares.ready_of(own)) {
            Some((_, members)) => members,
            None => {
                let others = slot.devices(open);
                let (paths, check) = ([path.to_owned()], self.device_check(others).await?);
                Members::open_with(&self.reactor, &self.members, &paths, check).await?
            }
        };
        members.refuse_used("add to the pool", Some(&open.pool.superblock())).await?;
        Ok(members)
    }

    /// Adds a cache device to a pool; the caller holds `changing`.
    pub(super) async fn add_device(&self, pool: &Name, path: &Path) -> Result<api::Pool> {
        let (slot, open) = self.open(pool.as_str())?;
        let joining = self.open_new(&slot, &open, path).await?;
        let next = open.pool.plan_addition(&joining.only())?;
        // A pool that lacks one does so no more.
        let lost = self.check_addition(&slot, &open, &next)?;
        drop(open);
        self.join_device(pool, path, joining, None, lost).await?;
        self.show_pool(pool.as_str())
    }

    /// Refuses an addition for which there is no memory; the cache device that the pool lacks, if one: then nothing is
    /// refused, for its copies come first.
    pub(super) fn check_addition(
        &self,
        slot: &Slot,
        open: &Open,
        next: &Superblock,
    ) -> Result<Option<DeviceId>> {
        let lost = lost_of(&open.pool.superblock(), &slot.record.borrow().replaced).next();
        if lost.is_none() {
            self.check_growth_memory(open, next)?;
        }
        Ok(lost)
    }

    /// Has a pool take in a device that was looked at, as part of a replacement or not, and in the place of
    /// one that was lost or not; the caller holds `changing`.
    pub(super) async fn join_device(
        &self,
        pool: &Name,
        path: &Path,
        joining: Members,
        replacing: Option<Replacing>,
        lost: Option<DeviceId>,
    ) -> Result<()> {
        let (slot, open) = self.open(pool.as_str())?;
        let device = joining.only();
        let spare = joining.identities().into_iter().find_map(|own| open.spares.ready_of(own));
        // Before a superblock names it: a start must look for it where it is.
        let before = slot.record.borrow().clone();
        let mut record = before.clone();
        record.ssds.push(path.to_owned());
        record.replacing = replacing.or(record.replacing);
        self.state.store(&record).await?;
        *slot.record.borrow_mut() = record;
        let added = match lost {
            Some(lost) => open.pool.add_member_for(device, lost).await,
            None => open.pool.add_member(device).await,
        };
        let id = match added {
            Ok(id) => id,
            // Its superblock may be on one of the others already: the next start has to look for it.
            Err(error) if open.pool.is_latched() => return Err(error.into()),
            Err(error) => {
                *slot.record.borrow_mut() = before.clone();
                // It only says where to look.
                self.state.store(&before).await.ok();
                return Err(error.into());
            }
        };
        let superblock = Superblock { device: id, ..open.pool.superblock() };
        open.members.borrow_mut().append(joining, path, id);
        open.members.borrow().share(id, superblock.pool, &self.crew);
        let found =
            Found { path: path.to_owned(), superblock, claims: Vec::new(), locked_by: None };
        slot.seen.borrow_mut().push(found);
        slot.record.borrow_mut().places.insert(id.to_string(), path.to_owned());
        // Also one that was there before, and is not any more.
        let is_it = |known: &String, at: &PathBuf| {
            at == path || spare.as_ref().is_some_and(|(spare, _)| spare == known)
        };
        let taken: Vec<_> =
            slot.record.borrow_mut().spares.extract_if(.., |known, at| is_it(known, at)).collect();
        taken.iter().for_each(|(spare, _)| open.spares.forget(spare));
        self.tell_news(pool.as_str(), &open);
        self.keep_record(&slot).await;
        Ok(())
    }

    /// A cache device of an open pool, and what the superblock says if the pool uses all that there is of it
    /// now. With `grow` it has that size from now on.
    pub(super) async fn larger_device(
        &self,
        pool: &Name,
        wanted: &str,
        grow: bool,
    ) -> Result<(Device, Superblock)> {
        let device = self.device_of(pool, wanted)?;
        let (_, open) = self.open(pool.as_str())?;
        let file = open.members.borrow().file(device.id);
        let file = file.ok_or_else(|| Failure::new("the cache device has just left the pool"))?;
        let failed = |error| Failure::system("ask the cache device for its size", &error);
        let (path, sizer) = (device.path.clone(), file.sizer().map_err(failed)?);
        let used = used_bytes(&open.pool.superblock(), device.id);
        let look = move || {
            let size = sizer().map_err(failed)?;
            refuse_sparse(&path, used, |_| fill_behind(&path, used, size)).map(|()| size)
        };
        let (size, known) =
            (self.patiently(device.path.display(), look).await??, file.geometry().size_bytes);
        if size < known {
            let (path, size, known) =
                (device.path.display(), text::bytes(size), text::bytes(known));
            let what = format!("cache device {path} has shrunk: {size} of {known}");
            return Err(Failure::coded(Code::Refused, what)
                .hint("restore its size; nothing has been changed"));
        }
        let next = open.pool.plan_extension(device.id, size)?;
        self.check_growth_memory(&open, &next)?;
        if grow {
            file.grow(size);
        }
        Ok((device, next))
    }

    /// Has a pool use all of a cache device that has become larger; the caller holds `changing`.
    pub(super) async fn grow_device(&self, pool: &Name, wanted: &str) -> Result<api::Pool> {
        let (device, next) = self.larger_device(pool, wanted, true).await?;
        let (_, open) = self.open(pool.as_str())?;
        open.members.borrow().share(device.id, next.pool, &self.crew);
        open.pool.extend_member(device.id).await?;
        self.tell_news(pool.as_str(), &open);
        self.show_pool(pool.as_str())
    }

    /// Tells which cache devices are larger than what a pool that has just been opened uses of them.
    pub(super) fn tell_larger(&self, pool: &str, open: &Open) {
        for (id, bytes) in open.pool.unused_bytes() {
            let bytes = text::bytes(bytes);
            let what =
                format!("cache device {id} is {bytes} larger than what pool \"{pool}\" uses");
            self.journal.note("member-larger", (pool, id.to_string()), what);
        }
    }

    /// Begins to take a cache device out of a pool: what it holds goes to the others, then the pool
    /// goes on without it.
    pub(super) fn remove_device(self: &Rc<Self>, pool: &Name, wanted: &str) -> Result<api::Job> {
        if let Some((spare, _)) = self.spare_named(pool, wanted)? {
            return self.remove_spare(pool, &spare);
        }
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
            let left = it.depart(&job, &pool, &leaving, &departure).await;
            if left.is_err() {
                it.note_unwanted(&pool, leaving.id).await;
            }
            left
        });
        Ok(self.jobs.look(&job))
    }

    /// One that has failed on its way out is not missed: no other is to take its place.
    async fn note_unwanted(&self, pool: &Name, device: DeviceId) {
        let _held = self.changing.lock().await;
        let Ok((slot, open)) = self.open(pool.as_str()) else { return };
        if !open.has(device) {
            slot.record.borrow_mut().replaced.insert(device.to_string());
            self.keep_record(&slot).await;
        }
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
            self.release_device(&open, gone.id);
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

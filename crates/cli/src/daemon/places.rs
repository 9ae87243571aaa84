//! Looking whether files and devices that are open are still where their paths lead: they may be removed,
//! moved or replaced under the daemon, and the next start would find something else there, or nothing.
//!
//! * Of an origin the volume is `origin-missing`, and nobody is told that the plain disk has all of its data.
//!   What has no name any more, or was cut off, is read as before and takes no writes: these are safe in the cache
//!   alone. What it was given in the two seconds before is noticed too late.
//! * Of a cache device it is told. The pool uses it as before, so that it can be replaced without a loss.
//! * A cache device was written in full once. If its file has holes again, as a tool leaves them that copies without what
//!   is zero, that is told, too: a write there may find no space. If it was cut off, it is not: what fills holes would hide
//!   that something is lost.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use forebay_control::error::Code;
use forebay_control::name::{Name, VolumeName};
use forebay_device::BlockDevice;
use forebay_device::real::file::FileDevice;
use forebay_device::real::place::Displaced;
use forebay_device::runtime::{Nanos, SECOND};

use super::{Daemon, Slot};
use crate::Result;
use crate::blocking::on_thread;
use crate::failure::Failure;
use crate::host::all;
use crate::members::{Identity, set_aside};
use crate::origin::Origin;
use crate::text;

/// How often all are looked for: what is lost in between is what an origin without a name was given.
const LOOK_INTERVAL: Nanos = 2 * SECOND;

/// What a look has found, if it could be made.
pub(super) type Look = std::io::Result<Seen>;

#[derive(Clone, Copy)]
pub(super) struct Seen {
    look: u64,
    displaced: Option<Displaced>,
    hole_bytes: u64,
}

/// What there is to do about the origins of a pool that does not come back, as the end of a hint; nothing unless that is
/// closed.
pub(super) fn if_gone(closed: &[Name], pool: &Name) -> String {
    if !closed.contains(pool) {
        return String::new();
    }
    format!("; if pool \"{pool}\" is gone for good, forget it: `forebay pool export {pool}`")
}

/// A file or block device of an open pool.
struct InUse {
    pool: String,
    path: PathBuf,
    is_origin: bool,
    file: Weak<FileDevice>,
}

/// What of a cache device's file has no space, and what gives it some; empty if all of it has.
pub(super) fn holes_of(path: &Path, file: &FileDevice) -> String {
    match file.hole_bytes() {
        0 => String::new(),
        holes => format!(
            "{} of its file are holes, without space on its file system: {}",
            text::bytes(holes),
            set_aside(path, file.geometry().size_bytes)
        ),
    }
}

/// Whether nobody would find again what is written there.
fn is_lost(file: &FileDevice) -> bool {
    matches!(file.displaced(), Some(Displaced::Removed | Displaced::Shrunk { .. }))
}

/// Notes what a look has found, and has an origin take nothing more that would be lost there.
fn note(file: &FileDevice, is_origin: bool, look: u64, found: Option<Displaced>) {
    file.note_displaced(look, found);
    file.refuse_writes(is_origin && is_lost(file));
}

impl Daemon {
    /// Looks for everything in use until the reactor is closed; whatever else is under way.
    pub(super) async fn keep_placing(self: Rc<Self>) {
        // Names that are made anew may be gone for a moment.
        let mut seen = BTreeMap::new();
        while self.runtime().sleep(LOOK_INTERVAL).await.result.is_ok() {
            let before = std::mem::take(&mut seen);
            for one in self.in_use() {
                let Some(now) = self.look_for(&one).await else { continue };
                let found = now.displaced;
                let may_pass = matches!(found, Some(Displaced::Moved | Displaced::Replaced));
                seen.insert(one.path.clone(), found);
                if !may_pass || before.get(&one.path) == Some(&found) {
                    self.note_look(&one, now);
                }
                self.note_holes(&one, now.hole_bytes);
            }
        }
    }

    /// Looks once, now, for what has no name any more. What was moved may be between two names, and is left to
    /// [`Daemon::keep_placing`].
    pub(super) async fn look_for_removed(&self) {
        let look = |one: InUse| async move {
            let seen = self.look_for(&one).await;
            let removed = seen.filter(|seen| seen.displaced == Some(Displaced::Removed));
            if let Some(seen) = removed {
                self.note_look(&one, seen);
            }
        };
        // At once: each may take as long as what does not answer.
        all(self.in_use().into_iter().map(look).collect()).await;
    }

    /// What became of one; nothing if it does not answer, or was closed meanwhile.
    async fn look_for(&self, one: &InUse) -> Option<Seen> {
        let placed = one.file.upgrade()?.placed().ok()?;
        let path = one.path.clone();
        let call = move || async move {
            let look = move || {
                let (displaced, hole_bytes) = (placed.look(&path)?, placed.hole_bytes()?);
                Ok(Seen { look: placed.number(), displaced, hole_bytes })
            };
            on_thread(look).await.flatten()
        };
        self.placing.ask(&self.reactor, &one.path, call, self.end.wait()).await?.ok()
    }

    /// Tells of a cache device whose file has holes that it had not. If it was cut off, that is what is told of it.
    fn note_holes(&self, one: &InUse, bytes: u64) {
        let Some(file) = one.file.upgrade().filter(|_| !one.is_origin) else { return };
        let was_cut = matches!(file.displaced(), Some(Displaced::Shrunk { .. }));
        let bytes = if was_cut { 0 } else { bytes };
        if file.note_holes(bytes) > 0 || bytes == 0 {
            return;
        }
        let (path, holes) = (one.path.display(), holes_of(&one.path, &file));
        let what = format!("cache device {path} of pool \"{}\": {holes}", one.pool);
        self.journal.warn("member-sparse", (one.pool.as_str(), path.to_string()), what);
    }

    fn note_look(&self, one: &InUse, seen: Seen) {
        let Some(file) = one.file.upgrade() else { return };
        let before = file.displaced().map(|how| how.to_string());
        note(&file, one.is_origin, seen.look, seen.displaced);
        let now = file.displaced();
        if !one.is_origin && now.map(|how| how.to_string()) != before {
            self.tell_displaced(one, now);
        }
    }

    fn in_use(&self) -> Vec<InUse> {
        let mut all = Vec::new();
        for (slot, open) in self.open_pools() {
            let pool = slot.record.borrow().name.to_string();
            let one = |path: &Path, is_origin, file: &Rc<FileDevice>| InUse {
                pool: pool.clone(),
                path: path.to_owned(),
                is_origin,
                file: Rc::downgrade(file),
            };
            let origins = open.origins.borrow();
            for record in open.pool.superblock().volumes {
                if let Some(Origin::File(file)) = origins.get(&record.name) {
                    all.push(one(Path::new(&record.origin), true, file));
                }
            }
            // One that has failed is told of as such.
            let (members, used) = (open.members.borrow(), slot.devices(&open));
            let serving = members.files().filter(|(path, _)| used.iter().any(|it| it == path));
            all.extend(serving.map(|(path, file)| one(path, false, file)));
            for (_, spare) in open.spares.ready() {
                all.extend(spare.files().map(|(path, file)| one(path, false, file)));
            }
        }
        for slot in self.slots.borrow().values() {
            let pool = slot.record.borrow().name.to_string();
            all.extend(slot.direct_files().into_iter().map(|(path, file)| InUse {
                pool: pool.clone(),
                path,
                is_origin: true,
                file: Rc::downgrade(&file),
            }));
        }
        all
    }

    /// The pools that are not open.
    pub(super) fn closed_pools(&self) -> Vec<Name> {
        let slots = self.slots.borrow();
        let closed = slots.values().filter(|slot| slot.open().is_none());
        closed.map(|slot| slot.record.borrow().name.clone()).collect()
    }

    /// Volumes and origins of pools that are not open, as their witnesses have them: the devices of such a pool may not
    /// be there to say it.
    async fn witnessed_volumes(&self) -> Result<Vec<(VolumeName, String)>> {
        let slots: Vec<_> = self.slots.borrow().values().map(Rc::clone).collect();
        let mut all = Vec::new();
        for slot in slots.into_iter().filter(|slot| slot.open().is_none()) {
            let (pool, id) = (slot.record.borrow().name.clone(), slot.record.borrow().id.clone());
            let volumes = self.state.witnessed(&id).await?.into_iter().filter_map(|witnessed| {
                let volume = witnessed.name.parse().ok()?;
                Some((VolumeName { pool: pool.clone(), volume }, witnessed.origin))
            });
            all.extend(volumes);
        }
        Ok(all)
    }

    /// Where the origins of all volumes are, which devices that is, and whose. Of one that is not open it is what
    /// is at its path now, if that answers.
    ///
    /// # Errors
    /// If the state directory cannot be read: an origin could be taken for what nobody uses.
    pub(super) async fn origins(&self) -> Result<Vec<(PathBuf, Option<Identity>, VolumeName)>> {
        let place = |name: &VolumeName| {
            let (_, open) = self.open(name.pool.as_str()).ok()?;
            let origins = open.origins.borrow();
            match origins.get(name.volume.as_str())? {
                Origin::File(file) => Some(file.place()),
                Origin::Nbd(_) => None,
            }
        };
        let mut volumes: Vec<_> =
            self.describe_volumes().into_iter().map(|v| (v.name, v.origin)).collect();
        volumes.extend(self.witnessed_volumes().await?);
        volumes.sort();
        volumes.dedup();
        let found = RefCell::new(Vec::new());
        let note = &found;
        let look = |path: PathBuf, mut own: Option<Identity>, name| async move {
            if own.is_none() && path.is_absolute() {
                own = self.identity_at(&path).await.ok().flatten();
            }
            note.borrow_mut().push((path, own, name));
        };
        // At once: each may take as long as what does not answer.
        let looks =
            volumes.into_iter().map(|(name, origin)| look(origin.into(), place(&name), name));
        all(looks.collect()).await;
        Ok(found.into_inner())
    }

    fn tell_displaced(&self, one: &InUse, found: Option<Displaced>) {
        let path = one.path.display();
        let subject = (one.pool.as_str(), path.to_string());
        match found {
            Some(how) => {
                let what = format!("SSD {path}: it {how}");
                self.journal.warn("member-displaced", subject, what);
            }
            None => {
                let what = format!("SSD {path} is at its path again");
                self.journal.note("member-in-place", subject, what);
            }
        }
    }

    /// Refuses if the origin of a volume is not at its path, as it is now: what is brought there would not be found.
    pub(super) async fn refuse_displaced(&self, name: &VolumeName) -> Result<()> {
        let file = match self.open(name.pool.as_str())?.1.origins.borrow().get(name.volume.as_str())
        {
            Some(Origin::File(file)) => Rc::clone(file),
            _ => return Ok(()),
        };
        let path = self.describe_volume(name)?.origin;
        let failed = |error| Failure::system(format!("look for the origin {path}"), &error);
        let (placed, at) = (file.placed().map_err(failed)?, PathBuf::from(&path));
        let number = placed.number();
        let found = self.patiently(&path, move || placed.look(&at)).await?.map_err(failed)?;
        note(&file, true, number, found);
        let Some(how) = file.displaced() else { return Ok(()) };
        let what = format!("the origin {path} of volume \"{name}\" {how}");
        let hint = match how {
            Displaced::Removed => {
                "keep the daemon running: `forebay explain origin-missing` says how to save it"
            }
            Displaced::Moved | Displaced::Replaced => "move it back to its path, then try again",
            Displaced::Shrunk { .. } => {
                "give it its size and what was cut off back, then restart the daemon"
            }
        };
        Err(Failure::coded(Code::Refused, what).hint(hint))
    }

    /// Ends when the origin of a volume, or of any, is known to take nothing more.
    pub(super) async fn until_lost(&self, name: Option<&VolumeName>) {
        let is_meant = |slot: &Slot, volume: &str| {
            name.is_none_or(|it| {
                it.volume.as_str() == volume && it.pool == slot.record.borrow().name
            })
        };
        let any = || {
            self.open_pools().iter().any(|(slot, open)| {
                let origins = open.origins.borrow();
                origins.iter().any(|(volume, origin)| match origin {
                    Origin::File(file) => is_meant(slot, volume) && is_lost(file),
                    Origin::Nbd(_) => false,
                })
            })
        };
        while !any() {
            let _ = self.runtime().sleep(SECOND).await;
        }
    }

    /// Refuses to close a pool while files are open that would be gone then: of origins, or of cache devices.
    pub(super) async fn refuse_removed(&self, name: &str) -> Result<()> {
        self.look_for_removed().await;
        let Ok((_, open)) = self.open(name) else { return Ok(()) };
        let is_removed = |file: &FileDevice| file.displaced() == Some(Displaced::Removed);
        let origins = open.origins.borrow();
        let origin = origins.iter().find_map(|(volume, origin)| match origin {
            Origin::File(file) if is_removed(file) => {
                Some(format!("the origin of \"{name}/{volume}\""))
            }
            _ => None,
        });
        let members = open.members.borrow();
        let member = members.files().find(|(_, file)| is_removed(file));
        let member = member.map(|(path, _)| format!("SSD {}", path.display()));
        let Some(what) = origin.or(member) else { return Ok(()) };
        let what = format!("{what} {}", Displaced::Removed);
        Err(Failure::coded(Code::Refused, what).hint(
            "save it first: `forebay explain origin-missing`, `forebay explain member-displaced`",
        ))
    }

    /// [`Daemon::refuse_displaced`] of all volumes that are online.
    pub(super) async fn refuse_any_displaced(&self) -> Result<()> {
        for volume in self.describe_volumes() {
            // Of a pool that is not open no origin is in use.
            if self.open(volume.name.pool.as_str()).is_ok() {
                self.refuse_displaced(&volume.name).await?;
            }
        }
        Ok(())
    }
}

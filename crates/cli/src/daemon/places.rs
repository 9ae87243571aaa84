//! Looking whether files and devices that are open are still where their paths lead: they may be removed,
//! moved or replaced under the daemon, and the next start would find something else there, or nothing.
//!
//! * Of an origin the volume is `origin-missing`, and nobody is told that the plain disk has all of its data.
//!   What has no name any more is read as before and takes no writes: these are safe in the cache alone.
//! * Of a cache device it is told. The pool uses it as before, so that it can be replaced without a loss.

use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use forebay_control::error::Code;
use forebay_control::name::VolumeName;
use forebay_device::real::file::FileDevice;
use forebay_device::real::place::Displaced;
use forebay_device::runtime::{Nanos, SECOND};

use super::Daemon;
use crate::Result;
use crate::blocking::on_thread;
use crate::failure::Failure;
use crate::origin::Origin;

/// How often all are looked for: what is lost in between is what an origin without a name was given.
const LOOK_INTERVAL: Nanos = 2 * SECOND;

/// What a look has found, if it could be made.
pub(super) type Look = std::io::Result<Option<Displaced>>;

/// A file or block device of an open pool.
struct InUse {
    pool: String,
    path: PathBuf,
    is_origin: bool,
    file: Weak<FileDevice>,
}

fn note(file: &FileDevice, is_origin: bool, found: Option<Displaced>) {
    file.note_displaced(found);
    file.refuse_writes(is_origin && found == Some(Displaced::Removed));
}

impl Daemon {
    /// Looks for everything in use until the reactor is closed; whatever else is under way.
    pub(super) async fn keep_placing(self: Rc<Self>) {
        while self.runtime().sleep(LOOK_INTERVAL).await.result.is_ok() {
            for one in self.in_use() {
                let before = one.file.upgrade().and_then(|file| file.displaced());
                let Some(found) = self.look_for(&one).await else { continue };
                if !one.is_origin && found != before {
                    self.tell_displaced(&one, found);
                }
            }
        }
    }

    /// What became of one; nothing if it does not answer, or was closed meanwhile.
    async fn look_for(&self, one: &InUse) -> Option<Option<Displaced>> {
        let placed = one.file.upgrade()?.placed().ok()?;
        let path = one.path.clone();
        let call = move || async move { on_thread(move || placed.look(&path)).await.flatten() };
        let found =
            self.placing.ask(&self.reactor, &one.path, call, self.end.wait()).await?.ok()?;
        note(&*one.file.upgrade()?, one.is_origin, found);
        Some(found)
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
            let members = open.members.borrow();
            all.extend(members.files().map(|(path, file)| one(path, false, file)));
            for (_, spare) in open.spares.ready() {
                all.extend(spare.files().map(|(path, file)| one(path, false, file)));
            }
        }
        all
    }

    fn tell_displaced(&self, one: &InUse, found: Option<Displaced>) {
        let path = one.path.display();
        let subject = (one.pool.as_str(), path.to_string());
        match found {
            Some(how) => {
                let what = format!("SSD {path}: {how}");
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
        let found = self.patiently(&path, move || placed.look(&at)).await?.map_err(failed)?;
        note(&file, true, found);
        let Some(how) = found else { return Ok(()) };
        let what = format!("the origin {path} of volume \"{name}\": {how}");
        let hint = match how {
            Displaced::Removed => {
                "keep the daemon running: `forebay explain origin-missing` says how to save it"
            }
            Displaced::Moved | Displaced::Replaced => "move it back to its path, then try again",
            Displaced::Shrunk { .. } => "give it its size back; what was cut off is gone from it",
        };
        Err(Failure::coded(Code::Refused, what).hint(hint))
    }

    /// The same of all volumes that are online.
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

//! The daemon's directory: which pools are its own, with their witnesses and exports.
//!
//!     pools/POOL-ID/pool.json     what the daemon was told of it
//!     pools/POOL-ID/witness       see the engine
//!     pools/POOL-ID/advisors.json what was seen of its volumes that are watched
//!     new/NAME.json               a pool that is being made, until its record is stored
//!     new/witness                 its witness, until it has an identity
//!
//! Every file is replaced as a whole, on a thread, so that a slow disk here holds no client up; a file
//! system that does not answer makes changes fail, and nothing else. The directory is locked while a
//! daemon uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_control::api::{Mode, Place};
use forebay_control::name::Name;
use forebay_device::real::reactor::Reactor;
use forebay_engine::format::{Witness, WitnessVolume};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::blocking::{replace, sync_names};
use crate::failure::Failure;
use crate::host::when_free;
use crate::members::PATIENCE;
use crate::patience::Lane;

/// What the daemon was told of a pool; the rest stands on the pool's devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) name: Name,
    pub(super) id: String,
    /// Where its devices were last; they are known by what is on them.
    pub(super) ssds: Vec<PathBuf>,
    /// Whether new volumes may be written back with one copy.
    #[serde(default)]
    pub(super) accept_data_loss_on_ssd_failure: bool,
    #[serde(default)]
    pub(super) exports: Vec<ExportRecord>,
    /// Where each of its cache devices was last, by identity; for people, who know one that is gone by
    /// that.
    #[serde(default)]
    pub(super) places: BTreeMap<String, PathBuf>,
    /// Its spares by identity, and where each was last. A device that says that it is one and that is not
    /// known here is left alone.
    #[serde(default)]
    pub(super) spares: BTreeMap<String, PathBuf>,
    /// A replacement that has not come to its end.
    #[serde(default)]
    pub(super) replacing: Option<Replacing>,
    /// It is to be no more, and is being erased: it is never opened again.
    #[serde(default)]
    pub(super) destroying: bool,
    /// Cache devices that were lost and replaced, as long as the pool's superblock still has their numbers.
    #[serde(default)]
    pub(super) replaced: BTreeSet<String>,
    /// It is served without its cache devices: it is not opened with them before a person has asked for that.
    #[serde(default)]
    pub(super) bypassed: Option<Bypassed>,
}

/// How a pool is served without its cache devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Bypassed {
    /// The epoch that its witness began with that. Its cache devices know older ones, and are stale.
    pub(super) epoch: u64,
    pub(super) volumes: Vec<BypassedVolume>,
}

/// A volume of such a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct BypassedVolume {
    pub(super) name: Name,
    pub(super) origin: String,
    pub(super) mode: Mode,
    /// Whether its origin may lack what only the cache devices have: it is not served.
    pub(super) withheld: bool,
    /// Its size, and what names its origin, if anything does; known once that was there. Another disk is not taken for it.
    #[serde(default)]
    pub(super) size_bytes: Option<u64>,
    #[serde(default)]
    pub(super) identity: Option<String>,
}

/// Pools of which the record cannot be read, by identity, and why.
pub(super) type Unreadable = Vec<(Name, Failure)>;

impl Record {
    /// Of a pool of which no more is known.
    pub(super) fn new(name: Name, id: String) -> Record {
        Record {
            name,
            id,
            ssds: Vec::new(),
            accept_data_loss_on_ssd_failure: false,
            exports: Vec::new(),
            places: BTreeMap::new(),
            spares: BTreeMap::new(),
            replacing: None,
            destroying: false,
            replaced: BTreeSet::new(),
            bypassed: None,
        }
    }
}

/// A device that takes the place of a cache device: stored with the place where the new one is, before that
/// is a part of the pool, so that whoever asks again goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Replacing {
    /// The identity of the old one, and where it was.
    pub(super) old: String,
    pub(super) old_path: PathBuf,
    pub(super) new: PathBuf,
}

/// What was seen of a pool's volumes that are watched.
const ADVISORS: &str = "advisors.json";

/// The most that is read of it, in bytes: as many volumes as a pool can have, watched for as long as can be, take 8 MB.
const ADVISORS_BYTES_MAX: u64 = 16 << 20;

/// An export that is there after each start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ExportRecord {
    pub(super) volume: Name,
    pub(super) place: Place,
    #[serde(default)]
    pub(super) read_only: bool,
    /// Whether clients have to use TLS even where others need not.
    #[serde(default)]
    pub(super) require_tls: bool,
}

/// A pool that is being made. It is stored before anything is written to a device, so that a start
/// knows what a crash has left half made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Intent {
    pub(super) name: Name,
    pub(super) ssds: Vec<PathBuf>,
    pub(super) accept_data_loss_on_ssd_failure: bool,
}

/// See the head of the file.
pub(super) struct StateDir {
    path: PathBuf,
    lane: Lane,
    _lock: File,
}

fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// What the bytes of a record say, which is in this folder.
fn record_of(bytes: &[u8], folder: &str) -> std::result::Result<Record, String> {
    let record: Record = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if record.id != folder {
        return Err(format!("it is the record of pool {}, \"{}\"", record.id, record.name));
    }
    Ok(record)
}

fn unreadable_record(path: &Path, id: &Name, why: &str) -> Failure {
    let what = format!("cannot read {}, the record of this pool: {why}", path.display());
    Failure::new(what).hint(format!(
        "mend that file and restart the daemon; or `forebay pool export {id}`, `forebay pool import NAME` with the pool's \
         name, and add its exports anew"
    ))
}

impl StateDir {
    /// Makes and locks the directory. A killed daemon may take a moment to let go of it.
    ///
    /// # Errors
    /// If that is not possible or another daemon has it.
    pub(super) async fn open(reactor: &Rc<Reactor>, path: &Path) -> Result<StateDir> {
        let pools = path.join("pools");
        make(&pools).map_err(|error| {
            Failure::system(format!("create {}", pools.display()), &error)
                .hint("choose another state_dir in the configuration, or run as root")
        })?;
        let failed = |error| Failure::system(format!("lock {}", path.display()), &error);
        let lock = File::open(path).map_err(failed)?;
        let locked = when_free(reactor, PATIENCE, async || match lock.try_lock() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => Err(ErrorKind::AddrInUse.into()),
            Err(TryLockError::Error(error)) => Err(error),
        });
        match locked.await {
            Ok(()) => Ok(StateDir { path: path.to_owned(), lane: Lane::new(reactor), _lock: lock }),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let what = format!("another daemon uses the state directory {}", path.display());
                Err(Failure::new(what)
                    .hint("stop that one, or give this one a state_dir of its own"))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// The records of all pools, by name; and those that cannot be read, by the pool's identity: without them a pool would
    /// silently not be there.
    ///
    /// # Errors
    /// If it cannot be seen which there are.
    pub(super) fn records(&self) -> Result<(Vec<Record>, Unreadable)> {
        let pools = self.path.join("pools");
        let failed = |why: &dyn std::fmt::Display| {
            Failure::new(format!("cannot read {}: {why}", pools.display()))
                .hint("mend it; or move what is in the way, and `forebay pool import` the pools")
        };
        let (mut records, mut unreadable) = (Vec::<Record>::new(), Vec::new());
        for entry in std::fs::read_dir(&pools).map_err(|error| failed(&error))? {
            let entry = entry.map_err(|error| failed(&error))?;
            let path = entry.path().join("pool.json");
            let bytes = match std::fs::read(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other.map_err(|error| error.to_string()),
            };
            let folder = entry.file_name().to_string_lossy().into_owned();
            match bytes.and_then(|bytes| record_of(&bytes, &folder)) {
                Ok(record) => records.push(record),
                Err(why) => {
                    let id: Name = folder.parse().map_err(|why| failed(&why))?;
                    unreadable.push((id.clone(), unreadable_record(&path, &id, &why)));
                }
            }
        }
        records.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        Ok((records, unreadable))
    }

    fn pool_dir(&self, id: &str) -> PathBuf {
        self.path.join("pools").join(id)
    }

    /// Where a pool's witness is.
    pub(super) async fn witness(&self, id: &str) -> Result<PathBuf> {
        let dir = self.pool_dir(id);
        let path = dir.clone();
        let made = self.lane.run(move || make(&path)).await;
        made.map_err(|error| cannot("create", &dir, &error))?;
        Ok(dir.join("witness"))
    }

    /// The volumes of a pool as its witness has them, for when none of its devices is there to ask; none if it has no
    /// witness.
    pub(super) async fn witnessed(&self, id: &str) -> Result<Vec<WitnessVolume>> {
        let Some(bytes) = self.read_witness(id).await? else { return Ok(Vec::new()) };
        let witness = Witness::decode(&bytes).map_err(|error| {
            let path = self.pool_dir(id).join("witness");
            Failure::new(format!("cannot read the witness {}: {error}", path.display())).hint(
                "as long as that pool is not open it alone knows its origins: attach the pool's cache devices; or \
                 forget it: `forebay pool export`",
            )
        })?;
        Ok(witness.volumes)
    }

    /// The witness of a pool, if it has one.
    pub(super) async fn read_witness(&self, id: &str) -> Result<Option<Vec<u8>>> {
        let path = self.pool_dir(id).join("witness");
        let target = path.clone();
        let bytes = self.lane.run(move || crate::witness::read(&target)).await;
        bytes.map_err(|error| cannot("read", &path, &error))
    }

    /// Replaces the witness of a pool that is not open, durably.
    pub(super) async fn store_witness(&self, id: &str, bytes: Vec<u8>) -> Result<()> {
        let path = self.pool_dir(id).join("witness");
        let target = path.clone();
        let stored = self.lane.run(move || replace(&target, &bytes)).await;
        stored.map_err(|error| {
            Failure::system(format!("store {}", path.display()), &error)
                .hint("make room on the file system of state_dir")
        })
    }

    /// Where the witness of a pool is that is being made.
    pub(super) async fn witness_new(&self) -> Result<PathBuf> {
        let new = self.path.join("new");
        let path = new.join("witness");
        let target = path.clone();
        let removed = self.lane.run(move || make(&new).and_then(|()| remove(&target))).await;
        removed.map_err(|error| cannot("remove", &path, &error))?;
        Ok(path)
    }

    /// Gives the new witness to the pool that was made.
    pub(super) async fn adopt_new(&self, id: &str) -> Result<()> {
        let (from, to) = (self.path.join("new").join("witness"), self.witness(id).await?);
        let target = to.clone();
        let adopted = self
            .lane
            .run(move || std::fs::rename(from, &target).and_then(|()| sync_names(&target)))
            .await;
        adopted.map_err(|error| cannot("keep the witness", &to, &error))
    }

    /// Stores a record durably.
    pub(super) async fn store(&self, record: &Record) -> Result<()> {
        self.replace(self.pool_dir(&record.id).join("pool.json"), record).await
    }

    /// Where it is stored what was seen of a pool's volumes.
    pub(super) fn advisors_path(&self, id: &str) -> PathBuf {
        self.pool_dir(id).join(ADVISORS)
    }

    /// What was stored there last, if anything.
    pub(super) async fn advisors(&self, id: &str) -> Result<Option<Vec<u8>>> {
        let path = self.advisors_path(id);
        let target = path.clone();
        let read = self.lane.run(move || {
            let file = match File::open(target) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                other => other?,
            };
            let mut bytes = Vec::new();
            file.take(ADVISORS_BYTES_MAX).read_to_end(&mut bytes)?;
            Ok(Some(bytes))
        });
        read.await.map_err(|error| cannot("read", &path, &error))
    }

    /// Stores that durably.
    pub(super) async fn store_advisors(&self, id: &str, seen: &impl Serialize) -> Result<()> {
        self.replace(self.advisors_path(id), seen).await
    }

    /// Forgets a pool whose record cannot be read: a person may want to see what it said of exports. Where it is then.
    pub(super) async fn set_aside(&self, id: &str) -> Result<PathBuf> {
        let from = self.pool_dir(id).join("pool.json");
        let to = from.with_extension("json.unreadable");
        let (source, target) = (from.clone(), to.clone());
        let moved = self
            .lane
            .run(move || std::fs::rename(source, &target).and_then(|()| sync_names(&target)))
            .await;
        moved.map_err(|error| cannot("set aside", &from, &error))?;
        Ok(to)
    }

    /// Forgets a pool durably; its witness too, if it is no more.
    pub(super) async fn forget(&self, id: &str, with_witness: bool) -> Result<()> {
        let dir = self.pool_dir(id);
        let path = dir.clone();
        let forgotten = self.lane.run(move || {
            remove(&path.join("pool.json"))?;
            if with_witness {
                remove(&path.join("witness"))?;
                remove(&path.join(ADVISORS))?;
            }
            sync_names(&path.join("pool.json"))?;
            // What somebody else has put there stays.
            let _ = std::fs::remove_dir(&path);
            sync_names(&path)
        });
        forgotten.await.map_err(|error| cannot("remove the record of a pool in", &dir, &error))
    }

    fn intent(&self, name: &Name) -> PathBuf {
        self.path.join("new").join(format!("{name}.json"))
    }

    /// Notes durably that a pool is about to be made.
    pub(super) async fn intend(&self, intent: &Intent) -> Result<()> {
        self.replace(self.intent(&intent.name), intent).await
    }

    /// Replaces a file by a new content, durably.
    async fn replace(&self, path: PathBuf, content: &impl Serialize) -> Result<()> {
        let text = serde_json::to_vec_pretty(content)
            .map_err(|error| Failure::new(format!("cannot store {}: {error}", path.display())))?;
        let target = path.clone();
        let stored = self.lane.run(move || {
            if let Some(folder) = target.parent() {
                make(folder)?;
                // Its own name may be as new.
                sync_names(folder)?;
            }
            replace(&target, &text)
        });
        stored.await.map_err(|error| {
            Failure::system(format!("store {}", path.display()), &error)
                .hint("make room on the file system of state_dir")
        })
    }

    /// The pools that were being made when a daemon ended.
    ///
    /// # Errors
    /// If the directory cannot be read. A note that makes no sense is left out.
    pub(super) async fn intents(&self) -> Result<Vec<Intent>> {
        let new = self.path.join("new");
        let path = new.clone();
        let intents = self.lane.run(move || {
            let entries = match std::fs::read_dir(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
                other => other?,
            };
            let paths = entries.filter_map(std::result::Result::ok).map(|entry| entry.path());
            let notes = paths.filter(|path| path.extension().is_some_and(|end| end == "json"));
            let intents =
                notes.filter_map(|path| serde_json::from_slice(&std::fs::read(path).ok()?).ok());
            Ok(intents.collect())
        });
        intents.await.map_err(|error| cannot("read", &new, &error))
    }

    /// Forgets that a pool was being made.
    pub(super) async fn settle(&self, intent: &Intent) -> Result<()> {
        let path = self.intent(&intent.name);
        let target = path.clone();
        let settled = self.lane.run(move || {
            remove(&target)?;
            sync_names(&target)
        });
        settled.await.map_err(|error| cannot("remove", &path, &error))
    }
}

fn cannot(action: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::system(format!("{action} {}", path.display()), error)
        .hint("check the file system of state_dir")
}

fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

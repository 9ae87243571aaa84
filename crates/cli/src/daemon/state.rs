//! The daemon's directory: which pools are its own, with their witnesses and exports.
//!
//!     pools/POOL-ID/pool.json     what the daemon was told of it
//!     pools/POOL-ID/witness       see the engine
//!     new/                        a pool that is being made
//!
//! Every file is replaced as a whole. The directory is locked while a daemon uses it.

use std::fs::{DirBuilder, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use forebay_control::api::Place;
use forebay_control::name::Name;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::blocking::{on_thread, replace, sync_names};
use crate::failure::Failure;

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
}

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

/// See the head of the file.
pub(super) struct StateDir {
    path: PathBuf,
    _lock: File,
}

fn make(path: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| {
        Failure::system(format!("create {}", path.display()), &error)
            .hint("choose another state_dir in the configuration, or run as root")
    })
}

impl StateDir {
    /// Makes and locks the directory.
    ///
    /// # Errors
    /// If that is not possible or another daemon has it.
    pub(super) fn open(path: &Path) -> Result<StateDir> {
        make(&path.join("pools"))?;
        let failed = |error| Failure::system(format!("lock {}", path.display()), &error);
        let lock = File::open(path).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let what = format!("another daemon uses the state directory {}", path.display());
                return Err(Failure::new(what)
                    .hint("stop that one, or give this one a state_dir of its own"));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        Ok(StateDir { path: path.to_owned(), _lock: lock })
    }

    /// The records of all pools, by name.
    ///
    /// # Errors
    /// If one cannot be read: without it a pool would silently not be there.
    pub(super) fn records(&self) -> Result<Vec<Record>> {
        let pools = self.path.join("pools");
        let failed = |path: &Path, why: &dyn std::fmt::Display| {
            Failure::new(format!("cannot read {}: {why}", path.display()))
                .hint("mend it; or move its directory away and `forebay pool import` the pool")
        };
        let mut records = Vec::new();
        for entry in std::fs::read_dir(&pools).map_err(|error| failed(&pools, &error))? {
            let path = entry.map_err(|error| failed(&pools, &error))?.path().join("pool.json");
            let bytes = match std::fs::read(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other.map_err(|error| failed(&path, &error))?,
            };
            let record: Record =
                serde_json::from_slice(&bytes).map_err(|error| failed(&path, &error))?;
            records.push(record);
        }
        records.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(records)
    }

    fn pool_dir(&self, id: &str) -> PathBuf {
        self.path.join("pools").join(id)
    }

    /// Where a pool's witness is.
    pub(super) fn witness(&self, id: &str) -> Result<PathBuf> {
        let dir = self.pool_dir(id);
        make(&dir)?;
        Ok(dir.join("witness"))
    }

    /// Where the witness of a pool is that is being made.
    pub(super) fn witness_new(&self) -> Result<PathBuf> {
        let dir = self.path.join("new");
        make(&dir)?;
        remove(&dir.join("witness"))?;
        Ok(dir.join("witness"))
    }

    /// Gives the new witness to the pool that was made.
    pub(super) fn adopt_new(&self, id: &str) -> Result<()> {
        let (from, to) = (self.path.join("new").join("witness"), self.witness(id)?);
        let failed = |error| Failure::system(format!("keep the witness {}", to.display()), &error);
        std::fs::rename(from, &to).map_err(failed)?;
        sync_names(&to).map_err(failed)
    }

    /// Stores a record durably.
    pub(super) async fn store(&self, record: &Record) -> Result<()> {
        let dir = self.pool_dir(&record.id);
        make(&dir)?;
        let path = dir.join("pool.json");
        let text = serde_json::to_vec_pretty(record)
            .map_err(|error| Failure::new(format!("cannot store {}: {error}", path.display())))?;
        let target = path.clone();
        let stored = on_thread(move || {
            sync_names(&dir)?;
            replace(&target, &text)
        });
        stored.await.and_then(|result| result).map_err(|error| {
            Failure::system(format!("store {}", path.display()), &error)
                .hint("make room on the file system of state_dir")
        })
    }

    /// Forgets a pool; its witness too, if it is no more.
    pub(super) fn forget(&self, id: &str, with_witness: bool) -> Result<()> {
        let dir = self.pool_dir(id);
        remove(&dir.join("pool.json"))?;
        if with_witness {
            remove(&dir.join("witness"))?;
            let _ = std::fs::remove_dir(&dir);
        }
        let synced = sync_names(&dir);
        synced.map_err(|error| Failure::system(format!("flush {}", dir.display()), &error))
    }
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Failure::system(format!("remove {}", path.display()), &error))
        }
        _ => Ok(()),
    }
}

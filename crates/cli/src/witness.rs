//! The witness as a file beside the cache devices' names.
//!
//! A crash leaves the old witness or the new one. The calls block, so each runs on a thread of its own
//! while the reactor goes on; there are a handful of stores between start and stop. One that does not
//! return in time has failed: volumes are not written back then that were clean.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_device::LocalBoxFuture;
use forebay_device::real::reactor::Reactor;
use forebay_engine::Witness;

use crate::Result;
use crate::blocking::{new_name, replace};
use crate::failure::Failure;
use crate::members::Identity;
use crate::patience::Lane;

/// Longest witness that is read: a whole one has 79,552 bytes.
const WITNESS_BYTES_MAX: u64 = 1 << 20;

/// What every witness begins with, whole or damaged.
const MAGIC: &[u8] = b"FBYWITNS";

/// See the head of the file.
pub(crate) struct FileWitness {
    path: PathBuf,
    lane: Lane,
}

fn refused(path: &Path, reason: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("the witness cannot be kept: {} {reason}", path.display()))
        .hint("the witness is a file of its own: choose another path with --witness")
}

impl FileWitness {
    /// A witness that is kept at `path`. `used` are the cache devices and the origin.
    ///
    /// # Errors
    /// If what is there now is one of them, or anything else but a witness: it would be replaced.
    pub(crate) async fn at(
        reactor: &Rc<Reactor>,
        path: &Path,
        used: &[Identity],
    ) -> Result<FileWitness> {
        let lane = Lane::new(reactor);
        let (at, used) = (path.to_owned(), used.to_vec());
        let looked = lane.run(move || Ok(FileWitness::look(&at, &used))).await;
        looked.map_err(|error| refused(path, &error))??;
        Ok(Self { path: path.to_owned(), lane })
    }

    fn look(path: &Path, used: &[Identity]) -> Result<()> {
        if Identity::of(path).is_some_and(|own| used.contains(&own)) {
            return Err(refused(path, &"is a cache device or the origin"));
        }
        for path in [path, &new_name(path)] {
            let meta = match std::fs::metadata(path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                other => other.map_err(|error| refused(path, &error))?,
            };
            if !meta.is_file() {
                return Err(refused(path, &"is no regular file"));
            }
            let bytes = read(path).map_err(|error| refused(path, &error))?.unwrap_or_default();
            // Zeroes are what a power cut may leave of a file that was being written.
            if !bytes.starts_with(MAGIC) && bytes.iter().any(|&byte| byte != 0) {
                return Err(refused(path, &"exists and is no witness of a pool"));
            }
        }
        Ok(())
    }
}

/// What is at `path`, if anything is.
///
/// # Errors
/// What the system says.
pub(crate) fn read(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut bytes = Vec::new();
    file.take(WITNESS_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

impl Witness for FileWitness {
    fn load(&self) -> LocalBoxFuture<'_, std::result::Result<Option<Vec<u8>>, String>> {
        Box::pin(async move {
            let path = self.path.clone();
            let loaded = self.lane.run(move || read(&path)).await;
            loaded.map_err(|error| format!("{}: {error}", self.path.display()))
        })
    }

    fn store(&self, bytes: Vec<u8>) -> LocalBoxFuture<'_, std::result::Result<(), String>> {
        let path = self.path.clone();
        Box::pin(async move {
            let stored = self.lane.run(move || replace(&path, &bytes)).await;
            stored.map_err(|error| format!("{}: {error}", self.path.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_device::real::reactor::Config;

    #[test]
    fn a_witness_is_replaced_as_a_whole() {
        let folder = std::env::temp_dir().join(format!("forebay-witness-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let reactor = Reactor::new(Config::default()).unwrap();
        let path = folder.join("witness");
        let witness = reactor.block_on(FileWitness::at(&reactor, &path, &[])).unwrap();
        reactor.block_on(async {
            assert_eq!(witness.load().await, Ok(None));
            witness.store(vec![1; 5000]).await.unwrap();
            witness.store(vec![2; 10]).await.unwrap();
            assert_eq!(witness.load().await, Ok(Some(vec![2; 10])));
        });
        let names = std::fs::read_dir(&folder).unwrap().count();
        assert_eq!(names, 1, "no temporary file is left");
        std::fs::remove_dir_all(&folder).unwrap();
        let failed = reactor.block_on(witness.store(vec![3]));
        assert!(failed.is_err_and(|reason| reason.contains("witness")));
    }

    #[test]
    fn the_magic_is_that_of_the_format() {
        use forebay_engine::format::Witness as Format;
        use forebay_engine::ids::{DeviceId, PoolId};
        let (pool, members) = (PoolId([1; 16]), vec![DeviceId([2; 16])]);
        let one = Format { pool, generation: 1, epoch: 1, members, volumes: Vec::new() };
        assert!(one.encode().starts_with(MAGIC));
    }
}

//! Making a regular file into a cache device: every byte is written once.
//!
//! A file with holes or unwritten extents would need space and file system metadata at the very
//! moment when it takes a write; written in full, it only needs the disk below.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::buf::Buf;
use crate::device::BlockDevice;
use crate::io::{IoError, IoErrorKind, pair};
use crate::real::file::FileDevice;
use crate::real::op::{Handle, Kind, Op};
use crate::real::open::{self, OpenError, OpenOptions, typed};
use crate::real::reactor::Reactor;

/// Bytes per write, and writes in flight: together enough for any disk's full speed.
const CHUNK_BYTES: u64 = 1 << 20;
const INFLIGHT_MAX: usize = 8;

/// The size must be a multiple of this, the larger sector.
const SIZE_ALIGN_BYTES: u64 = 4096;

/// Why a file could not be prepared.
#[derive(Debug)]
pub enum PrepareError {
    /// It cannot be opened, or somebody uses it.
    Open(OpenError),
    /// The size is zero or not a multiple of 4096 bytes.
    Size {
        /// The file.
        path: PathBuf,
        /// The size asked for.
        size_bytes: u64,
    },
    /// It exists, and is not a file of that size.
    Exists {
        /// The file.
        path: PathBuf,
        /// Its size; `None` if it is not a regular file.
        size_bytes: Option<u64>,
        /// The size asked for.
        expected_bytes: u64,
    },
    /// The file system has no room for it. A new file has been removed again.
    NoSpace {
        /// The file.
        path: PathBuf,
        /// The size asked for.
        size_bytes: u64,
    },
    /// A write failed. A new file has been removed again.
    Io {
        /// The file.
        path: PathBuf,
        /// What failed.
        source: IoError,
    },
}

impl PrepareError {
    /// What to do about it, one sentence.
    pub fn hint(&self) -> String {
        match self {
            Self::Open(error) => error.hint(),
            Self::Size { .. } => format!("give a multiple of {SIZE_ALIGN_BYTES} bytes"),
            Self::Exists { size_bytes: Some(size), .. } => {
                format!("remove it, choose another name, or ask for {size} bytes")
            }
            Self::Exists { size_bytes: None, .. } => "choose another name".into(),
            Self::NoSpace { path, .. } => {
                let folder = path.parent().unwrap_or(Path::new("."));
                format!("free some space (`df -h {}`) or ask for less", typed(folder))
            }
            Self::Io { .. } => "`dmesg | tail` may tell more; the disk may be failing".into(),
        }
    }
}

impl std::fmt::Display for PrepareError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Open(error) => error.fmt(f),
            Self::Size { path, size_bytes } => {
                write!(f, "{} cannot have {size_bytes} bytes", path.display())
            }
            Self::Exists { path, size_bytes: Some(size), expected_bytes } => {
                write!(f, "{} exists and has {size} bytes, not {expected_bytes}", path.display())
            }
            Self::Exists { path, .. } => {
                write!(f, "{} exists and is not a regular file", path.display())
            }
            Self::NoSpace { path, size_bytes } => {
                write!(f, "there is no space for {} ({size_bytes} bytes)", path.display())
            }
            Self::Io { path, source } => write!(f, "cannot write {}: {source}", path.display()),
        }
    }
}

impl std::error::Error for PrepareError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Open(error) => Some(error),
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<OpenError> for PrepareError {
    fn from(error: OpenError) -> Self {
        Self::Open(error)
    }
}

/// Removes a new file again, unless it was completed; also when the future is dropped.
struct Unfinished<'a>(Option<&'a Path>);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Writes a file of `size_bytes` zeroes at `path`, new or already of this size (whose content
/// is lost: [probe](crate::real::probe) it first), durably with its name. `progress` is told the
/// bytes written so far.
///
/// # Errors
/// See [`PrepareError`].
pub async fn prepare_file(
    reactor: &Rc<Reactor>,
    path: &Path,
    size_bytes: u64,
    mut progress: impl FnMut(u64),
) -> Result<(), PrepareError> {
    if size_bytes == 0 || !size_bytes.is_multiple_of(SIZE_ALIGN_BYTES) {
        return Err(PrepareError::Size { path: path.to_owned(), size_bytes });
    }
    let created = create(path, size_bytes)?;
    // The file is removed before its lock goes: `unfinished` is dropped before `device`.
    let (device, mut unfinished) = open_locked(reactor, path, created)?;
    let result = match fill(&device, size_bytes, &mut progress).await {
        Ok(()) => sync_folder(reactor, path).await,
        Err(error) => Err(error),
    };
    match result {
        Ok(()) => {
            unfinished.0 = None;
            Ok(())
        }
        Err(error) if error.kind == IoErrorKind::NoSpace => {
            Err(PrepareError::NoSpace { path: path.to_owned(), size_bytes })
        }
        Err(source) => Err(PrepareError::Io { path: path.to_owned(), source }),
    }
}

/// Creates the file with its size, or checks that the one there has it.
fn create(path: &Path, size_bytes: u64) -> Result<Unfinished<'_>, PrepareError> {
    let new = File::options().write(true).create_new(true).mode(0o600).open(path);
    match new {
        Ok(file) => {
            let unfinished = Unfinished(Some(path));
            match file.set_len(size_bytes) {
                Ok(()) => Ok(unfinished),
                Err(error) if error.raw_os_error() == Some(libc::EFBIG) => {
                    Err(PrepareError::NoSpace { path: path.to_owned(), size_bytes })
                }
                Err(error) => Err(open::failed(path, "set the size of", error).into()),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let meta =
                std::fs::metadata(path).map_err(|error| open::failed(path, "look at", error))?;
            let is_file = meta.file_type().is_file();
            let found = is_file.then_some(meta.size());
            if found == Some(size_bytes) {
                return Ok(Unfinished(None));
            }
            let (path, expected_bytes) = (path.to_owned(), size_bytes);
            Err(PrepareError::Exists { path, size_bytes: found, expected_bytes })
        }
        Err(error) => Err(open::failed(path, "create", error).into()),
    }
}

/// Opens what was created. Somebody else may have locked it in between; then it is theirs.
fn open_locked<'a>(
    reactor: &Rc<Reactor>,
    path: &Path,
    mut created: Unfinished<'a>,
) -> Result<(FileDevice, Unfinished<'a>), OpenError> {
    let opened = FileDevice::open(reactor, path, &OpenOptions::default());
    if let Err(OpenError::InUse { .. }) = opened {
        created.0 = None;
    }
    Ok((opened?, created))
}

async fn fill(
    device: &FileDevice,
    size_bytes: u64,
    progress: &mut impl FnMut(u64),
) -> Result<(), IoError> {
    // First the space as one piece, so that a lack of it shows before hours of writing.
    match device.reserve().await {
        Err(error) if error.kind != IoErrorKind::Unsupported => return Err(error),
        _ => {}
    }
    let device: &dyn BlockDevice = device;
    let zeroes = Buf::zeroed(CHUNK_BYTES as usize).freeze();
    let mut inflight = VecDeque::with_capacity(INFLIGHT_MAX);
    let (mut at, mut written) = (0, 0);
    let mut result = Ok(());
    while result.is_ok() && written < size_bytes {
        while at < size_bytes && inflight.len() < INFLIGHT_MAX {
            let chunk = (size_bytes - at).min(CHUNK_BYTES);
            inflight.push_back((chunk, device.write(at, zeroes.slice(0..chunk as usize))));
            at += chunk;
        }
        if let Some((chunk, oldest)) = inflight.pop_front() {
            result = oldest.done().await;
            if result.is_ok() {
                written += chunk;
                progress(written);
            }
        }
    }
    for (_, io) in inflight {
        let _ = io.await;
    }
    result?;
    device.flush().done().await
}

/// Makes the file's name durable.
async fn sync_folder(reactor: &Rc<Reactor>, path: &Path) -> Result<(), IoError> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let folder = File::open(folder).map_err(|error| {
        error.raw_os_error().map_or(IoErrorKind::Other.into(), crate::real::errno::io_error)
    })?;
    let (completer, io) = pair();
    let kind = Kind::Sync { data_only: false };
    reactor.start(Op::new(Handle::new(folder.into()), kind, Some(completer)));
    io.done().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::reactor::Config;

    fn reactor() -> Rc<Reactor> {
        Reactor::new(Config::default()).unwrap()
    }

    fn temp_path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("forebay-prepare-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_new_file_that_somebody_else_locks_first_is_left_to_them() {
        let (reactor, path) = (reactor(), temp_path("locked"));
        let created = create(&path, 1 << 20).unwrap();
        let theirs = FileDevice::open(&reactor, &path, &OpenOptions::default()).unwrap();
        let ours = open_locked(&reactor, &path, created);
        assert!(matches!(ours.map(drop), Err(OpenError::InUse { .. })));
        let is_left = path.exists();
        drop(theirs);
        let _ = std::fs::remove_file(&path);
        assert!(is_left);
    }

    #[test]
    fn what_could_not_be_written_is_no_progress() {
        let (reactor, path) = (reactor(), temp_path("progress"));
        let size = 3 * CHUNK_BYTES;
        let created = create(&path, size).unwrap();
        let (device, _created) = open_locked(&reactor, &path, created).unwrap();
        let mut told = Vec::new();
        // The fourth write goes past the end of the device.
        let result = reactor.block_on(fill(&device, size + 1, &mut |written| told.push(written)));
        assert!(result.is_err());
        assert_eq!(told.last(), Some(&size));
    }
}

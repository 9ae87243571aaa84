//! Whether a path leads to the file or block device that was opened there: it may be removed, moved or
//! replaced under whoever has it open, who does not notice.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::real::loops::{self, Backing};
use crate::real::open::size_of;

/// Which file or block device it is, whatever path leads there. A loop device is the file that it is all of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(bool, u64, u64);

impl Identity {
    /// That of what is at `path` now; `None` if nothing can be seen there. Blocks for as long as the system does.
    pub fn of(path: &Path) -> Option<Identity> {
        std::fs::metadata(path).ok().map(|meta| Identity::seen(&meta))
    }

    pub(super) fn seen(meta: &Metadata) -> Identity {
        if !meta.file_type().is_block_device() {
            return Identity(false, meta.dev(), meta.ino());
        }
        Identity::of_block(meta.rdev())
    }

    fn of_block(number: u64) -> Identity {
        match loops::backing(number).filter(|backing| backing.is_whole) {
            Some(Backing { block_device: Some(below), .. }) => Identity::of_block(below),
            Some(file) => Identity(false, file.device, file.inode),
            None => Identity(true, number, 0),
        }
    }
}

/// What became of an open file or block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Displaced {
    /// The file has no name any more: its content ends with who has it open.
    Removed,
    /// Nothing is at its path.
    Moved,
    /// Something else is at its path.
    Replaced,
    /// It is there and shorter than it was.
    Shrunk {
        /// Bytes that it has now.
        size_bytes: u64,
    },
}

/// Names that a file has as long as it is open, and no longer: of NFS and of FUSE.
const PASSING: [&str; 2] = [".nfs", ".fuse_hidden"];

/// An open device of so many bytes, to be looked for from another thread.
pub struct Placed {
    /// Which look this is: one that began later knows more.
    pub(super) number: u64,
    pub(super) file: File,
    pub(super) is_block: bool,
    pub(super) size_bytes: u64,
}

impl std::fmt::Display for Displaced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Removed => "was removed while in use: what it holds is gone when it is closed",
            Self::Moved => "was moved or unplugged while in use: nothing is at its path",
            Self::Replaced => "was moved while in use: something else is at its path",
            Self::Shrunk { .. } => {
                "has become shorter while in use: what was cut off is gone from it"
            }
        })
    }
}

impl Placed {
    /// What became of it, if it is not at `path` as it was. Blocks for as long as the system does.
    ///
    /// # Errors
    /// What the system says where nobody can tell.
    pub fn look(&self, path: &Path) -> io::Result<Option<Displaced>> {
        let own = self.file.metadata()?;
        match std::fs::metadata(path) {
            Ok(there) if Identity::seen(&own) == Identity::seen(&there) => {
                let size_bytes = size_of(&self.file, self.is_block)?;
                let has_shrunk = size_bytes < self.size_bytes;
                Ok(has_shrunk.then_some(Displaced::Shrunk { size_bytes }))
            }
            _ if !self.is_block && (own.nlink() == 0 || self.is_passing()) => {
                Ok(Some(Displaced::Removed))
            }
            Ok(_) => Ok(Some(Displaced::Replaced)),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(Some(Displaced::Moved))
            }
            Err(error) => Err(error),
        }
    }

    /// Bytes of a file, of those that it had when it was opened, for which its file system has set no space aside. What was
    /// cut off is no hole: to fill that brings nothing back. Blocks for as long as the system does.
    ///
    /// # Errors
    /// What the system says where nobody can tell.
    pub fn hole_bytes(&self) -> io::Result<u64> {
        if self.is_block {
            return Ok(0);
        }
        let now = self.file.metadata()?;
        let is_cut = now.len() < self.size_bytes;
        Ok(if is_cut { 0 } else { self.size_bytes.saturating_sub(now.blocks() * 512) })
    }

    /// For [`FileDevice::note_displaced`](super::file::FileDevice::note_displaced).
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the file has a name only because it is open.
    fn is_passing(&self) -> bool {
        let name = std::fs::read_link(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let name = name.ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        name.is_some_and(|name| PASSING.iter().any(|passing| name.starts_with(passing)))
    }
}

//! Opening a file or block device for ourselves alone, and saying why not.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::buf::Buf;
use crate::device::Stripe;
use crate::real::place::Identity;
use crate::real::reactor::StartError;
use crate::real::{hardware, holders, loops};

/// Every disk's classic sector.
const CLASSIC_SECTOR_BYTES: u32 = 512;

/// The largest sector of disks below a file.
const LARGE_SECTOR_BYTES: u32 = 4096;

/// How to open a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Open for reading only; several readers may share a file then.
    pub read_only: bool,
    /// Sector size of a regular file, 512 or 4096; `None` takes the smallest that O_DIRECT
    /// allows. Block devices have their own.
    pub sector_bytes: Option<u32>,
    /// A regular file may have holes: discard punches them, and zeroes are a range the file
    /// system remembers. For origins. A cache device must not fail for lack of space later, so
    /// its file has every block allocated and written, and this stays off.
    pub punch: bool,
}

/// Why a file or block device cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// Nothing is there.
    NotFound {
        /// What was to be opened.
        path: PathBuf,
    },
    /// The system refuses access.
    Permission {
        /// What was to be opened.
        path: PathBuf,
        /// The device, its file system or its medium is read-only.
        is_read_only: bool,
    },
    /// A file system on it, or on one of its partitions, is mounted.
    Mounted {
        /// What was to be opened.
        path: PathBuf,
        /// The mount point.
        at: PathBuf,
    },
    /// The system swaps to it.
    Swap {
        /// What was to be opened.
        path: PathBuf,
    },
    /// It is what a loop device that can be written to is made of.
    Attached {
        /// What was to be opened.
        path: PathBuf,
        /// The loop device.
        device: PathBuf,
    },
    /// Somebody else has it open for themselves.
    InUse {
        /// What was to be opened.
        path: PathBuf,
        /// Who, as far as the kernel tells: "process 12 (qemu)" or "dm-0".
        by: Option<String>,
    },
    /// A directory, a terminal, a socket.
    NotStorage {
        /// What was to be opened.
        path: PathBuf,
    },
    /// Empty, or not a whole number of sectors.
    Size {
        /// What was to be opened.
        path: PathBuf,
        /// Its size.
        size_bytes: u64,
        /// Its sector.
        sector_bytes: u32,
    },
    /// The sector size is not 512 or 4096, or smaller than what the disk below can address.
    Sector {
        /// What was to be opened.
        path: PathBuf,
        /// The sector asked for, or the device's.
        sector_bytes: u32,
        /// The smallest sector that works.
        sector_bytes_min: u32,
    },
    /// There is no ring to do I/O with.
    NoRing(StartError),
    /// Anything else.
    System {
        /// What was to be opened.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

/// A path as it is typed in a shell: quoted if it must be.
pub fn typed(path: &Path) -> String {
    let path = path.to_string_lossy();
    // Only what has a NUL cannot be quoted, and no path has one.
    shlex::try_quote(&path).map_or_else(|_| path.to_string(), Into::into)
}

impl OpenError {
    /// Whether somebody uses it: a process, the kernel, or whoever writes to a loop device on it.
    pub fn is_in_use(&self) -> bool {
        matches!(
            self,
            Self::Mounted { .. } | Self::Swap { .. } | Self::Attached { .. } | Self::InUse { .. }
        )
    }

    /// What to do about it, one sentence.
    pub fn hint(&self) -> String {
        match self {
            Self::NotFound { .. } => "check the path; `lsblk` lists the block devices".into(),
            Self::Permission { is_read_only: true, .. } => {
                "open it read-only, or make it writable (`blockdev --setrw`, a mount option)".into()
            }
            Self::Permission { path, .. } => {
                format!("run as a user who may open it: `ls -lL {}`", typed(path))
            }
            Self::Mounted { at, .. } => format!("unmount it first: `umount {}`", typed(at)),
            Self::Swap { path } => format!("stop swapping to it: `swapoff {}`", typed(path)),
            Self::Attached { device, .. } => {
                let device = typed(device);
                format!("detach it first: `losetup -d {device}`; or give {device} instead")
            }
            Self::InUse { path, .. } => {
                format!("stop who uses it; `fuser -v {0}` or `lsblk {0}` may tell", typed(path))
            }
            Self::NotStorage { .. } => "give a regular file or a block device".into(),
            Self::Size { path, size_bytes: 0, .. } => {
                let path = typed(path);
                format!(
                    "write it in full, as large as it is to be: `dd if=/dev/zero of={path} bs=1M count=10240`"
                )
            }
            Self::Size { sector_bytes, .. } => {
                format!("make its size a multiple of {sector_bytes} bytes with `truncate`")
            }
            Self::Sector { sector_bytes_min, .. } => {
                format!("use sectors of {} bytes", (*sector_bytes_min).max(CLASSIC_SECTOR_BYTES))
            }
            Self::NoRing(error) => error.hint().into(),
            Self::System { .. } => "`dmesg | tail` may tell more".into(),
        }
    }
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFound { path } => write!(f, "{} does not exist", path.display()),
            Self::Permission { path, is_read_only: true } => {
                write!(f, "{} is read-only", path.display())
            }
            Self::Permission { path, .. } => {
                write!(f, "the system refuses access to {}", path.display())
            }
            Self::Mounted { path, at } => {
                write!(f, "{} is in use: it is mounted at {}", path.display(), at.display())
            }
            Self::Swap { path } => write!(f, "{} is in use: it is swap space", path.display()),
            Self::Attached { path, device } => {
                write!(f, "{} is in use: it is attached as {}", path.display(), device.display())
            }
            Self::InUse { path, by: Some(by) } => {
                write!(f, "{} is in use by {by}", path.display())
            }
            Self::InUse { path, by: None } => {
                write!(f, "{} is in use by somebody else", path.display())
            }
            Self::NotStorage { path } => {
                write!(f, "{} is neither a regular file nor a block device", path.display())
            }
            Self::Size { path, size_bytes: 0, .. } => write!(f, "{} is empty", path.display()),
            Self::Size { path, size_bytes, sector_bytes } => write!(
                f,
                "the size of {}, {size_bytes} bytes, is not a whole number of sectors of \
                 {sector_bytes} bytes",
                path.display()
            ),
            Self::Sector { path, sector_bytes, .. } => {
                write!(f, "{} cannot have sectors of {sector_bytes} bytes", path.display())
            }
            Self::NoRing(error) => error.fmt(f),
            Self::System { path, action, source } => {
                write!(f, "cannot {action} {}: {source}", path.display())
            }
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoRing(error) => Some(error),
            Self::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<StartError> for OpenError {
    fn from(error: StartError) -> Self {
        Self::NoRing(error)
    }
}

/// An open file or block device that no reactor has yet; may be sent to another thread.
pub struct Opened {
    pub(super) fd: OwnedFd,
    pub(super) is_block: bool,
    pub(super) place: Identity,
    /// Whether handing over a request may take as long as the device does.
    pub(super) may_block: bool,
    pub(super) direct: bool,
    /// Whether a write with RWF_DSYNC is durable when it completes.
    pub(super) durable_writes: bool,
    pub(super) size_bytes: u64,
    pub(super) sector_bytes: u32,
    /// Alignment that O_DIRECT asks of memory.
    pub(super) memory_align_bytes: usize,
    pub(super) discard: bool,
    pub(super) read_only: bool,
    pub(super) punch: bool,
    pub(super) stripe: Option<Stripe>,
    pub(super) controller: Option<u64>,
    pub(super) identity: Option<[u8; 32]>,
}

/// Opens the file or block device at `path` for this process alone. Blocks for as long as the system
/// does: for ever, if what is there does not answer.
///
/// # Errors
/// See [`OpenError`].
pub fn open(path: &Path, options: &OpenOptions) -> Result<Opened, OpenError> {
    let meta = std::fs::metadata(path).map_err(|error| failed(path, "look at", error))?;
    let is_block = meta.file_type().is_block_device();
    if !is_block && !meta.file_type().is_file() {
        return Err(OpenError::NotStorage { path: path.to_owned() });
    }
    if holders::is_swap(&meta) {
        return Err(OpenError::Swap { path: path.to_owned() });
    }
    if is_block && let Some(at) = holders::mount_point(meta.rdev()) {
        return Err(OpenError::Mounted { path: path.to_owned(), at });
    }
    let (fd, direct) = open_direct(path, options.read_only, is_block)?;
    let file = File::from(fd);
    let meta = file.metadata().map_err(|error| failed(path, "look at", error))?;
    if !is_block {
        lock(path, &file, options.read_only)?;
        refuse_attached(path, &file, options.read_only)?;
    }
    let told = direct_alignment(&file);
    // A block device's node lies in memory (devtmpfs), its bytes do not.
    let no_direct =
        told.is_some_and(|(align_bytes, _)| align_bytes == 0) || lies_in(&file, &IN_MEMORY);
    let direct = direct && (is_block || !no_direct);
    let (size_bytes, own_sector, discard) = if is_block {
        if !options.read_only && block_u32(&file, BLKROGET, path)? != 0 {
            return Err(OpenError::Permission { path: path.to_owned(), is_read_only: true });
        }
        let sector = block_u32(&file, libc::BLKSSZGET, path)?;
        let size = size_of(&file, true).map_err(|error| failed(path, "ask the size of", error))?;
        (size, sector, holders::discard_bytes_max(meta.rdev()) > 0)
    } else {
        let own = match told {
            _ if !direct => 1,
            Some((align_bytes, _)) => align_bytes,
            None => tried_alignment(|buf| file.read_at(buf, 0)),
        };
        (meta.len(), own, options.punch)
    };
    // A kernel that does not tell wants of memory what it wants of offsets.
    let memory_align_bytes = told.map_or(own_sector as usize, |(_, memory)| memory);
    let asked = if is_block { None } else { options.sector_bytes };
    let sector_bytes = asked.unwrap_or(own_sector.max(CLASSIC_SECTOR_BYTES));
    if !matches!(sector_bytes, 512 | 4096) || sector_bytes < own_sector {
        let (path, sector_bytes_min) = (path.to_owned(), own_sector);
        return Err(OpenError::Sector { path, sector_bytes, sector_bytes_min });
    }
    if size_bytes == 0 || !size_bytes.is_multiple_of(u64::from(sector_bytes)) {
        return Err(OpenError::Size { path: path.to_owned(), size_bytes, sector_bytes });
    }
    Ok(Opened {
        durable_writes: direct && (is_block || lies_in(&file, &DURABLE_WRITES)),
        may_block: !is_block && !lies_in(&file, &NEVER_BLOCKING) && !lies_in(&file, &IN_MEMORY),
        fd: file.into(),
        is_block,
        place: Identity::seen(&meta),
        direct,
        size_bytes,
        sector_bytes,
        memory_align_bytes,
        discard: discard && !options.read_only,
        read_only: options.read_only,
        punch: options.punch,
        stripe: if is_block { holders::stripe(meta.rdev()) } else { None },
        controller: if is_block { hardware::controller(meta.rdev()) } else { None },
        identity: if is_block { hardware::identity(meta.rdev()) } else { None },
    })
}

/// Opens with O_DIRECT where the file system has it; the flag tells.
fn open_direct(path: &Path, read_only: bool, is_block: bool) -> Result<(OwnedFd, bool), OpenError> {
    let access = if read_only { libc::O_RDONLY } else { libc::O_RDWR };
    // Without O_CREAT, O_EXCL on a block device claims it as a mount does.
    let flags = access | libc::O_CLOEXEC | if is_block { libc::O_EXCL } else { 0 };
    let opened = match open_raw(path, flags | libc::O_DIRECT) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            open_raw(path, flags).map(|fd| (fd, false))
        }
        other => other.map(|fd| (fd, true)),
    };
    opened.map_err(|error| failed(path, "open", error))
}

fn open_raw(path: &Path, flags: i32) -> io::Result<OwnedFd> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `name` is a string with its end mark that outlives the call.
    let fd = unsafe { libc::open(name.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes the lock that keeps other Forebay processes and flock(1) away, unless somebody else has
/// bytes of the file locked, as QEMU has: that is the other kind of lock, and neither knows of the
/// other. It is looked for once; QEMU can still open the file later.
fn lock(path: &Path, file: &File, shared: bool) -> Result<(), OpenError> {
    if has_locked_bytes(file, shared) {
        let by = file.metadata().ok().and_then(|meta| holders::lock_holder(&meta));
        return Err(OpenError::InUse { path: path.to_owned(), by });
    }
    let kind = if shared { libc::LOCK_SH } else { libc::LOCK_EX };
    // SAFETY: no pointers; the descriptor is open.
    if unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EWOULDBLOCK) {
        return Err(failed(path, "lock", error));
    }
    let by = file.metadata().ok().and_then(|meta| holders::lock_holder(&meta));
    Err(OpenError::InUse { path: path.to_owned(), by })
}

/// Whoever writes to a loop device on the file locks nothing. It is looked for once; one can still be attached later.
fn refuse_attached(path: &Path, file: &File, read_only: bool) -> Result<(), OpenError> {
    let Some((name, number)) = loops::loop_device(file).filter(|_| !read_only) else {
        return Ok(());
    };
    let path = path.to_owned();
    Err(match holders::mount_point(number) {
        Some(at) => OpenError::Mounted { path, at },
        None => OpenError::Attached { path, device: Path::new("/dev").join(name) },
    })
}

/// Whether any bytes of the file are locked, by a process or through an open file; shared locks do
/// not matter to one who shares. Where the system does not tell, none are.
fn has_locked_bytes(file: &File, shared: bool) -> bool {
    // SAFETY: `flock` is plain numbers; zeroes are a valid value: all bytes, from the start.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = if shared { libc::F_RDLCK } else { libc::F_WRLCK } as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the descriptor is open, and `range` is read and written.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) };
    result == 0 && range.l_type != libc::F_UNLCK as libc::c_short
}

/// The error for a failed call on `path`.
pub(super) fn failed(path: &Path, action: &'static str, source: io::Error) -> OpenError {
    let path = path.to_owned();
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => OpenError::NotFound { path },
        Some(libc::EACCES | libc::EPERM) => OpenError::Permission { path, is_read_only: false },
        Some(libc::EROFS) => OpenError::Permission { path, is_read_only: true },
        Some(libc::ETXTBSY) => OpenError::InUse { path, by: None },
        Some(libc::EBUSY) => {
            let number = std::fs::metadata(&path).map_or(0, |meta| meta.rdev());
            match holders::partition_mount_point(number) {
                Some(at) => OpenError::Mounted { path, at },
                None => OpenError::InUse { by: holders::block_holder(number), path },
            }
        }
        _ => OpenError::System { path, action, source },
    }
}

fn block_u32(file: &File, request: libc::Ioctl, path: &Path) -> Result<u32, OpenError> {
    let mut value: libc::c_int = 0;
    // SAFETY: BLKSSZGET and BLKROGET store one int.
    if unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut value) } != 0 {
        return Err(failed(path, "ask the properties of", io::Error::last_os_error()));
    }
    Ok(value as u32)
}

/// `_IO(0x12, 94)` of linux/fs.h: whether the device is read-only.
const BLKROGET: libc::Ioctl = 0x125e;

/// `_IOR(0x12, 114, size_t)` of linux/fs.h: the device's size in bytes.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272;

/// The size of an open file or block device, in bytes.
pub(super) fn size_of(file: &File, is_block: bool) -> io::Result<u64> {
    if !is_block {
        return file.metadata().map(|meta| meta.len());
    }
    let mut value: u64 = 0;
    // SAFETY: BLKGETSIZE64 stores one u64.
    if unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut value) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value)
}

/// File systems in memory (linux/magic.h): they accept O_DIRECT since 6.6, and copy all the same.
const IN_MEMORY: [u32; 2] = [libc::TMPFS_MAGIC as u32, 0x8584_58f6];

/// Local file systems that keep the promise of a request that must not wait: ext2 to 4, XFS, Btrfs, F2FS,
/// bcachefs, ZFS, overlayfs. Others may break it: FUSE waits, in the caller's thread, while more requests
/// than it wants (12 by default) have no answer. There is no list of those that do.
const NEVER_BLOCKING: [u32; 7] = [
    libc::EXT4_SUPER_MAGIC as u32,
    libc::XFS_SUPER_MAGIC as u32,
    libc::BTRFS_SUPER_MAGIC as u32,
    libc::F2FS_SUPER_MAGIC as u32,
    0xca45_1a4e,
    0x2fc1_2fc1,
    libc::OVERLAYFS_SUPER_MAGIC as u32,
];

/// File systems of which a write past the page cache with RWF_DSYNC is durable when it completes: ext2 to 4, XFS. FUSE tells its
/// server so, and many leave that to FLUSH; the others have not been looked at.
const DURABLE_WRITES: [u32; 2] = [libc::EXT4_SUPER_MAGIC as u32, libc::XFS_SUPER_MAGIC as u32];

/// Whether the file lies in one of these file systems.
fn lies_in(file: &File, systems: &[u32]) -> bool {
    // SAFETY: `statfs` is plain numbers; zeroes are a valid value.
    let mut answer: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and `answer` is written.
    let result = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut answer) };
    result == 0 && systems.contains(&(answer.f_type as u32))
}

/// The alignment that O_DIRECT asks of a file where the kernel does not tell: what a read of one
/// classic sector shows. Any other outcome than a refusal means that the length was accepted.
fn tried_alignment(read: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> u32 {
    let mut buf = Buf::zeroed(CLASSIC_SECTOR_BYTES as usize);
    match read(&mut buf) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => LARGE_SECTOR_BYTES,
        _ => CLASSIC_SECTOR_BYTES,
    }
}

/// What O_DIRECT asks of offsets (0: there is no O_DIRECT) and of memory; `None` if the kernel does
/// not tell. Linux 6.1 and newer.
fn direct_alignment(file: &File) -> Option<(u32, usize)> {
    // SAFETY: `statx` is plain numbers; zeroes are a valid value.
    let mut answer: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the empty path with AT_EMPTY_PATH means the open file; `answer` is written.
    let result = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &raw mut answer,
        )
    };
    if result != 0 || answer.stx_mask & libc::STATX_DIOALIGN == 0 {
        return None;
    }
    let memory = answer.stx_dio_mem_align.max(1) as usize;
    Some((answer.stx_dio_offset_align, memory.next_power_of_two()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_kernel_does_not_tell_the_alignment_is_tried() {
        let error = |errno| Err(io::Error::from_raw_os_error(errno));
        assert_eq!(tried_alignment(|buf| Ok(buf.len())), 512);
        assert_eq!(tried_alignment(|_| error(libc::EINVAL)), 4096);
        assert_eq!(tried_alignment(|_| error(libc::EIO)), 512, "the disk was asked");
    }

    #[test]
    fn a_tried_alignment_is_what_the_kernel_tells() {
        let path = std::env::temp_dir().join(format!("forebay-tried-{}", std::process::id()));
        std::fs::write(&path, [1; 8192]).unwrap();
        let opened = open_direct(&path, true, false);
        std::fs::remove_file(&path).unwrap();
        let (fd, direct) = opened.unwrap();
        let file = File::from(fd);
        match direct_alignment(&file) {
            Some((told, _)) if direct && told > 0 && !lies_in(&file, &IN_MEMORY) => {
                let tried = tried_alignment(|buf| file.read_at(buf, 0));
                assert_eq!(tried, told.max(CLASSIC_SECTOR_BYTES));
            }
            _ => println!("skipped: the kernel does not tell"),
        }
    }
}

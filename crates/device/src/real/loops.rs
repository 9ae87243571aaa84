//! Loop devices: which file each of them is made of, as the kernel knows it.
//!
//! * By device and inode. The path in sysfs leads elsewhere, or nowhere, where something is mounted over it, and where it is
//!   one of another mount namespace; it is for where the kernel cannot be asked.
//! * The kernel asks the file system of the file, which may not answer. Whoever asks about one device waits for that;
//!   whoever looks through all of them does not wait for long.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, Metadata, read_to_string};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::real::holders::sysfs;

/// `LOOP_GET_STATUS64` of linux/loop.h.
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;

/// How long another file's loop device has to say which one it is: file systems know it by heart, but for those of
/// a network or of FUSE. Behind that its path counts, and it is not asked again before it has answered.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// Answers of loop devices that have taken longer, by their numbers.
static LATE: Mutex<BTreeMap<u64, Receiver<Option<Backing>>>> = Mutex::new(BTreeMap::new());

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
#[derive(Default)]
struct Status {
    device: u64,
    inode: u64,
    /// If the file is a block device, that one's number.
    block_device: u64,
    offset: u64,
    size_limit: u64,
    /// Its own number, how it is encrypted, the length of the key for that, flags.
    _numbers: [u32; 4],
    /// Names of the file and of the cipher, 64 bytes each, and the key.
    _names: [[u8; 32]; 5],
    _init: [u64; 2],
}

const _: () = assert!(size_of::<Status>() == 232);

/// The file that a loop device is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Backing {
    /// The device that its file system gives, as it does to whoever looks at the file.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
    /// If it is a block device itself, that one's number.
    pub block_device: Option<u64>,
    /// Whether the loop device is all of it.
    pub is_whole: bool,
}

impl Backing {
    fn is(&self, file: &Metadata) -> bool {
        (self.device, self.inode) == (file.dev(), file.ino())
    }
}

impl From<Status> for Backing {
    fn from(status: Status) -> Self {
        Backing {
            device: number_of(status.device),
            inode: status.inode,
            block_device: Some(number_of(status.block_device)).filter(|number| *number != 0),
            is_whole: (status.offset, status.size_limit) == (0, 0),
        }
    }
}

/// The number of a device as the kernel encodes it, 12 bits of the major one and 20 of the minor one, as the C library does.
fn number_of(encoded: u64) -> u64 {
    let (major, minor) = ((encoded >> 8) & 0xfff, (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00));
    libc::makedev(major as u32, minor as u32)
}

/// Where the text of a file in sysfs is one line, that line.
fn line_of(path: &Path) -> Option<PathBuf> {
    let bytes = std::fs::read(path).ok()?;
    let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    Some(PathBuf::from(OsString::from_vec(line.to_vec())))
}

/// What the loop device `number` is made of; nothing if it is no loop device, or nobody can tell. Blocks for as long as
/// the file system of that does.
pub(super) fn backing(number: u64) -> Option<Backing> {
    let about = sysfs(number).join("loop");
    // Only what is made of something has it, and a partition has not.
    about.exists().then_some(())?;
    ask(number).ok().or_else(|| at_path(&about))
}

/// The same by what the kernel says. It asks the file system as whoever looks at the file does: those that answer other
/// numbers than they keep (overlayfs, a subvolume of btrfs) were seen to answer the same ones here.
fn ask(number: u64) -> io::Result<Backing> {
    let uevent = read_to_string(sysfs(number).join("uevent"))?;
    let name = uevent.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    let node = Path::new("/dev").join(name.ok_or(io::ErrorKind::NotFound)?);
    let check = |meta: Metadata| {
        let is_meant = meta.file_type().is_block_device() && meta.rdev() == number;
        is_meant.then_some(()).ok_or(io::Error::from(io::ErrorKind::NotFound))
    };
    // Before as well: to open something else may do something.
    check(std::fs::metadata(&node)?)?;
    // Without a claim, so that whoever has it notices nothing.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(node)?;
    check(file.metadata()?)?;
    let mut status = Status::default();
    // SAFETY: the descriptor is open and a loop device's, and the request writes one `loop_info64`.
    if unsafe { libc::ioctl(file.as_raw_fd(), LOOP_GET_STATUS64, &raw mut status) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(status.into())
}

/// The same by what is at the path that sysfs has: where there is no device node, or it may not be opened.
fn at_path(about: &Path) -> Option<Backing> {
    let is_zero =
        |name: &str| line_of(&about.join(name)).is_some_and(|line| line == Path::new("0"));
    let meta = std::fs::metadata(line_of(&about.join("backing_file"))?).ok()?;
    Some(Backing {
        device: meta.dev(),
        inode: meta.ino(),
        block_device: meta.file_type().is_block_device().then(|| meta.rdev()),
        is_whole: is_zero("offset") && is_zero("sizelimit"),
    })
}

/// [`backing`], for whoever does not wait; an error if there is no answer in time.
fn backing_soon(number: u64) -> Result<Option<Backing>, ()> {
    let late = || LATE.lock().unwrap_or_else(PoisonError::into_inner);
    let is_late = |answer: &Receiver<_>| matches!(answer.try_recv(), Err(TryRecvError::Empty));
    if late().get(&number).is_some_and(is_late) {
        return Err(());
    }
    late().remove(&number);
    let (sender, answer) = channel();
    let thread = std::thread::Builder::new().name("forebay-loop".into());
    // Nobody may be left who wants to know.
    thread.spawn(move || sender.send(backing(number)).ok()).map_err(|_| ())?;
    answer.recv_timeout(ANSWER_TIME_MAX).map_err(|_| {
        late().insert(number, answer);
    })
}

/// The loop device by which an open file can be written past whoever has it open: its name and number. What another one is
/// made of may not answer: this waits for up to [`ANSWER_TIME_MAX`] then, once for each.
pub(super) fn loop_device(file: &File) -> Option<(String, u64)> {
    let own = file.metadata().ok()?;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok();
    std::fs::read_dir("/sys/block").ok()?.flatten().find_map(|device| {
        let name = device.file_name().to_str().filter(|name| name.starts_with("loop"))?.to_owned();
        let is_made_of = line_of(&device.path().join("loop/backing_file"))?;
        let is_writable = line_of(&device.path().join("ro"))? == Path::new("0");
        let number = line_of(&device.path().join("dev")).filter(|_| is_writable)?;
        let (major, minor) = number.to_str()?.split_once(':')?;
        let number = libc::makedev(major.parse().ok()?, minor.parse().ok()?);
        let is_own = match backing_soon(number) {
            Ok(backing) => backing.is_some_and(|it| it.is(&own)),
            Err(()) => Some(is_made_of) == path,
        };
        is_own.then_some((name, number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_file_is_what_looking_at_it_says() {
        // An anonymous device of a minor number above 8 bits, as file systems without a disk have.
        let status = Status { device: 0x1230_0045, inode: 7, ..Status::default() };
        let backing = Backing {
            device: libc::makedev(0, 0x12345),
            inode: 7,
            block_device: None,
            is_whole: true,
        };
        assert_eq!(Backing::from(status), backing);
        let part = Status { block_device: 0xfe01, size_limit: 512, ..Status::default() };
        let part = Backing::from(part);
        assert_eq!((part.block_device, part.is_whole), (Some(libc::makedev(254, 1)), false));
        assert!(!Backing::from(Status { offset: 512, ..Status::default() }).is_whole);
    }
}

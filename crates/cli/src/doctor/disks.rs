//! The machine's block devices, for whoever has named none: what is on each, and who has it.
//!
//! They are only read, and not claimed: nobody has asked for them. Who has one is what mounts, swap and /sys say: not
//! all members of a file system on several disks, and no process that opened it.

use std::fs::{File, read_to_string};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::device::content_of;
use super::{Findings, Verdict};
use crate::text;

/// Longest wait for one disk. One that sleeps may need longer to spin up, and is then said not to answer; a suspended
/// or dead one never answers, and there may be many of them.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// A disk or a partition.
struct Disk {
    /// Its directory in /sys.
    at: PathBuf,
    /// As /dev names it.
    path: PathBuf,
    size_bytes: u64,
    is_partition: bool,
}

fn read(path: &Path) -> String {
    read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// What is at a directory of /sys; nothing if it has no room, as a loop device without a file.
fn disk_at(at: PathBuf) -> Option<Disk> {
    // /sys has "!" where a name has a slash.
    let name = at.file_name()?.to_str()?.replace('!', "/");
    // In sectors of 512 bytes, whatever the disk's are.
    let size_bytes = read(&at.join("size")).parse::<u64>().ok()?.checked_mul(512)?;
    let is_partition = at.join("partition").exists();
    let path = Path::new("/dev").join(name);
    (size_bytes > 0).then_some(Disk { at, path, size_bytes, is_partition })
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut entries: Vec<_> = entries.map(|entry| entry.path()).collect();
    entries.sort();
    entries
}

/// All disks below a directory like /sys/block, each with its partitions behind it.
fn disks_in(dir: &Path) -> Vec<Disk> {
    let mut all = Vec::new();
    for at in entries(dir) {
        let Some(disk) = disk_at(at) else { continue };
        let parts = entries(&disk.at).into_iter().filter(|at| at.join("partition").exists());
        let parts: Vec<_> = parts.filter_map(disk_at).collect();
        all.push(disk);
        all.extend(parts);
    }
    all
}

/// Spaces and backslashes stand as octal digits in mountinfo. Tabs and ends of lines do, too, and are left so: they
/// would garble what is printed.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\134", "\\")
}

/// Where the device with this number, as "8:1", or this path is mounted; see proc_pid_mountinfo(5). Btrfs has numbers
/// of its own there, and is found by its path alone.
fn mounted_at(table: &str, number: &str, path: &Path) -> Option<String> {
    table.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(2);
        let is_number = fields.next()? == number;
        let at = fields.nth(1)?;
        let source = unescape(source.split(' ').nth(1)?);
        // Names below /dev/mapper are links. Elsewhere a look may wait for a server.
        let is_source = || {
            source.starts_with("/dev/")
                && (Path::new(&source) == path
                    || std::fs::canonicalize(&source).is_ok_and(|it| it == path))
        };
        (is_number || is_source()).then(|| unescape(at))
    })
}

/// Whether the table of /proc/swaps has this path.
fn is_swap(table: &str, path: &Path) -> bool {
    let mut paths = table.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    paths.any(|swap| Path::new(swap) == path)
}

impl Disk {
    fn kind(&self) -> &'static str {
        if self.is_partition {
            return "a partition";
        }
        match read(&self.at.join("queue/rotational")).as_str() {
            "0" => "not rotating",
            "1" => "rotating, or a virtual disk that says so",
            _ => "/sys does not tell of which kind",
        }
    }

    /// As "8:1".
    fn number(&self) -> String {
        read(&self.at.join("dev"))
    }

    /// Whether it is a drive for floppy disks or CDs, by the kernel's list of numbers (devices.txt). Without a medium
    /// these have a size all the same.
    fn is_drive(&self) -> bool {
        matches!(self.number().split(':').next(), Some("2" | "11"))
    }

    /// Who has it; `None` if nobody is known.
    fn user(&self, mounts: &str, swaps: &str) -> Option<String> {
        if let Some(at) = mounted_at(mounts, &self.number(), &self.path) {
            return Some(format!("mounted at {at}"));
        }
        if is_swap(swaps, &self.path) {
            return Some("swap space".to_owned());
        }
        let holders = entries(&self.at.join("holders"));
        let holder = holders.first()?.file_name()?.to_string_lossy();
        Some(format!("in use by {holder}"))
    }
}

/// Does the work on a thread of its own, which is left behind if it takes longer than `limit`.
///
/// # Errors
/// Those of the work, `TimedOut` if it takes too long, and that of the system if it has no thread.
fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = channel();
    thread::Builder::new().name("disk".to_owned()).spawn(move || sender.send(work()))?;
    receiver.recv_timeout(limit).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

/// What is on the disk. The reads go through the page cache: a thread that waits there is killed when the process
/// ends, one that waits in a read with O_DIRECT is not.
fn content_at(path: &Path, size_bytes: u64) -> io::Result<(String, String)> {
    // With O_NONBLOCK a drive is opened without a medium, and an open tray stays where it is.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    content_of(path, &file, size_bytes)
}

/// The verdict, what is on it and what to do.
fn told(found: io::Result<(String, String)>, is_drive: bool) -> (Verdict, String, String) {
    let error = match found {
        Ok((content, hint)) => return (Verdict::Ok, content, hint),
        Err(error) => error,
    };
    let skipped = |what: &str, hint: &str| (Verdict::Skipped, what.to_owned(), hint.to_owned());
    match (error.kind(), error.raw_os_error()) {
        (ErrorKind::PermissionDenied, _) => skipped(
            "what is on it was not looked at: it may not be read",
            "run as root, outside of a container",
        ),
        // In a container /dev has few of what /sys has.
        (ErrorKind::NotFound, _) => skipped("not looked at: /dev does not have it", ""),
        (_, Some(libc::ENOMEDIUM | libc::ENXIO | libc::EMEDIUMTYPE)) => {
            skipped("no medium in it", "")
        }
        // That is all that a drive tells who opened it with O_NONBLOCK.
        (_, Some(libc::EIO)) if is_drive => {
            skipped("no medium in it, or none that can be read", "")
        }
        (ErrorKind::TimedOut, _) => {
            let hint = "`dmesg | tail` may tell more; `dmsetup info` shows what is suspended";
            (Verdict::Warn, "does not answer".to_owned(), hint.to_owned())
        }
        _ => {
            let hint = "`dmesg | tail` may tell more".to_owned();
            (Verdict::Warn, format!("cannot be read: {error}"), hint)
        }
    }
}

/// Looks at all block devices of the machine.
pub(super) fn look(findings: &Findings) {
    let disks = disks_in(Path::new("/sys/block"));
    if disks.is_empty() {
        return findings.add("disks", "disk", Verdict::Skipped, "/sys lists none".into());
    }
    let (mounts, swaps) = ("/proc/self/mountinfo", "/proc/swaps");
    let [mounts, swaps] = [mounts, swaps].map(|path| read_to_string(path).unwrap_or_default());
    for disk in disks {
        let mut facts = vec![text::bytes(disk.size_bytes), disk.kind().to_owned()];
        facts.extend(disk.user(&mounts, &swaps));
        let (path, size_bytes) = (disk.path.clone(), disk.size_bytes);
        let found = within(ANSWER_MAX, move || content_at(&path, size_bytes));
        let (verdict, content, hint) = told(found, disk.is_drive());
        facts.push(content);
        let check = if disk.is_partition { "partition" } else { "disk" };
        findings.add(&disk.path.display().to_string(), check, verdict, facts.join("; "));
        findings.hint(hint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_listed_with_their_partitions_and_without_those_that_have_no_room() {
        let dir = std::env::temp_dir().join(format!("forebay-disks-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("sda/size", "2048\n");
        put("sda/queue/rotational", "1\n");
        put("sda/sda1/size", "1024\n");
        put("sda/sda1/partition", "1\n");
        put("sda/sda1/dev", "8:1\n");
        put("loop0/size", "0\n");
        put("cciss!c0d0/size", "8\n");
        put("sr0/size", "2097151\n");
        put("sr0/dev", "11:0\n");
        put("cciss!c0d0/holders/dm-0/dev", "");
        let disks = disks_in(&dir);
        let seen: Vec<_> =
            disks.iter().map(|it| (it.path.to_str().unwrap(), it.size_bytes)).collect();
        assert_eq!(
            seen,
            [
                ("/dev/cciss/c0d0", 4096),
                ("/dev/sda", 1 << 20),
                ("/dev/sda1", 512 << 10),
                ("/dev/sr0", (1 << 30) - 512)
            ]
        );
        assert!(disks[3].is_drive() && !disks[..3].iter().any(Disk::is_drive));
        assert!(disks[1].kind().starts_with("rotating"));
        assert_eq!(disks[2].kind(), "a partition");
        let mounts = "36 25 8:1 / /srv\\040data rw,noatime - ext4 /dev/sda1 rw\n";
        let user = |index: usize| disks[index].user(mounts, "");
        assert_eq!(user(0).unwrap(), "in use by dm-0");
        assert_eq!((user(1), user(2).unwrap().as_str()), (None, "mounted at /srv data"));
        let swaps = "Filename Type Size Used Priority\n/dev/sda partition 1 0 -2\n";
        assert_eq!(disks[1].user(mounts, swaps).unwrap(), "swap space");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn mounts_are_found_by_number_and_by_source() {
        let table = "22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\n\
                     40 22 0:42 /@home /home\\040of\\134all rw shared:2 - btrfs /dev/no-sdb1 rw\n\
                     41 22 0:30 / /sys rw - sysfs sysfs rw\nshort line\n";
        let at = |number: &str, path: &str| mounted_at(table, number, Path::new(path));
        assert_eq!(at("254:0", "/dev/other").as_deref(), Some("/"));
        assert_eq!(at("8:17", "/dev/no-sdb1").as_deref(), Some("/home of\\all"));
        assert_eq!(at("8:1", "/dev/no-sda1"), None);
        assert_eq!(unescape("a\\134040\\011"), "a\\040\\011");
    }

    #[test]
    fn a_drive_without_a_medium_is_skipped_and_a_disk_that_cannot_be_read_is_a_warning() {
        let of = |errno: i32, is_drive: bool| {
            let (verdict, what, _) = told(Err(io::Error::from_raw_os_error(errno)), is_drive);
            (verdict, what.starts_with("no medium in it"))
        };
        for errno in [libc::ENOMEDIUM, libc::ENXIO, libc::EMEDIUMTYPE] {
            assert_eq!(of(errno, false), (Verdict::Skipped, true));
        }
        assert_eq!(of(libc::EIO, true), (Verdict::Skipped, true));
        assert_eq!(of(libc::EIO, false), (Verdict::Warn, false));
        assert_eq!(of(libc::EACCES, false), (Verdict::Skipped, false));
    }

    #[test]
    fn who_does_not_answer_is_left_behind() {
        let (_held, never) = channel::<()>();
        let hung = within(Duration::from_millis(10), move || {
            let _ = never.recv();
            Ok((String::new(), String::new()))
        });
        let (verdict, what, _) = told(hung, false);
        assert_eq!((verdict, what.as_str()), (Verdict::Warn, "does not answer"));
        assert_eq!(within(ANSWER_MAX, || Ok(7)).unwrap(), 7);
    }
}

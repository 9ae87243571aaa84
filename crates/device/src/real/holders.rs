//! Who uses a block device or file: what the kernel tells under /proc and /sys.
//!
//! Everything here only explains an error; exclusivity itself is the kernel's (O_EXCL, flock).

use std::ffi::OsString;
use std::fs::{Metadata, read_to_string};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::device::Stripe;

/// Where a file system on the block device `number` is mounted.
pub(super) fn mount_point(number: u64) -> Option<PathBuf> {
    let table = read_to_string("/proc/self/mountinfo").ok()?;
    mount_point_in(&table, libc::major(number), libc::minor(number))
}

fn mount_point_in(table: &str, major: u32, minor: u32) -> Option<PathBuf> {
    let number = format!("{major}:{minor}");
    table.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        (fields.next()? == number).then_some(())?;
        fields.nth(1).map(unescape)
    })
}

/// Spaces and the like stand as three octal digits after a backslash in /proc.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Whether the system swaps to the file or block device.
pub(super) fn is_swap(meta: &Metadata) -> bool {
    let Ok(table) = read_to_string("/proc/swaps") else { return false };
    table.lines().skip(1).filter_map(|line| line.split_whitespace().next()).any(|name| {
        std::fs::metadata(unescape(name)).is_ok_and(|swap| {
            let same_file = (swap.dev(), swap.ino()) == (meta.dev(), meta.ino());
            let both_block =
                swap.file_type().is_block_device() && meta.file_type().is_block_device();
            same_file || both_block && swap.rdev() == meta.rdev()
        })
    })
}

/// The directory in which the kernel tells about the block device `number`.
pub(super) fn sysfs(number: u64) -> PathBuf {
    let (major, minor) = (libc::major(number), libc::minor(number));
    Path::new("/sys/dev/block").join(format!("{major}:{minor}"))
}

/// Where a partition of the block device is mounted.
pub(super) fn partition_mount_point(number: u64) -> Option<PathBuf> {
    let table = read_to_string("/proc/self/mountinfo").ok()?;
    std::fs::read_dir(sysfs(number)).ok()?.flatten().find_map(|entry| {
        let partition = entry.path().join("partition");
        partition.exists().then_some(())?;
        let text = read_to_string(entry.path().join("dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        mount_point_in(&table, major.parse().ok()?, minor.parse().ok()?)
    })
}

/// The device-mapper, md or bcache device that is built on the block device.
pub(super) fn block_holder(number: u64) -> Option<String> {
    let holder = std::fs::read_dir(sysfs(number).join("holders")).ok()?.flatten().next()?;
    Some(holder.file_name().to_string_lossy().into_owned())
}

/// The process that has a lock on the file, as "process 708 (forebay)", as far as this machine's table of locks says.
pub fn lock_holder(meta: &Metadata) -> Option<String> {
    let table = read_to_string("/proc/locks").ok()?;
    let process = lock_holder_in(&table, meta.dev(), meta.ino())?;
    if process == std::process::id() {
        return Some("this very process".to_owned());
    }
    let name = read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    match name.trim() {
        "" => Some(format!("process {process}")),
        name => Some(format!("process {process} ({name})")),
    }
}

fn lock_holder_in(table: &str, device: u64, inode: u64) -> Option<u32> {
    let file = format!("{:02x}:{:02x}:{inode}", libc::major(device), libc::minor(device));
    table.lines().find_map(|line| {
        // "1: FLOCK  ADVISORY  WRITE 708 fe:00:1234 0 EOF"; waiters have an arrow and more fields.
        let mut fields = line.split_whitespace().skip(4);
        let process = fields.next()?.parse().ok()?;
        (fields.next()? == file).then_some(process)
    })
}

/// Bytes that one discard may cover; 0 if the block device has no discard.
pub(super) fn discard_bytes_max(number: u64) -> u64 {
    let own = sysfs(number).join("queue/discard_max_bytes");
    let of_disk = sysfs(number).join("../queue/discard_max_bytes"); // for a partition
    let text = read_to_string(own).or_else(|_| read_to_string(of_disk)).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// How the block device spreads its data, if it is an array that tells.
pub(super) fn stripe(number: u64) -> Option<Stripe> {
    let of = |name: &str| -> Option<u64> {
        let own = sysfs(number).join("queue").join(name);
        let of_disk = sysfs(number).join("../queue").join(name); // for a partition
        read_to_string(own).or_else(|_| read_to_string(of_disk)).ok()?.trim().parse().ok()
    };
    // Sectors of 512 B before a partition; the whole device has no such file.
    let start = read_to_string(sysfs(number).join("start")).unwrap_or_default();
    let start_bytes = start.trim().parse::<u64>().unwrap_or(0) * 512;
    let stripe = stripe_of(of("optimal_io_size")?, of("minimum_io_size")?, start_bytes)?;
    let parity = of("rotational") == Some(1) && has_parity(&sysfs(number));
    Some(Stripe { parity, ..stripe })
}

/// Whether a block device, by its directory in sysfs, is an md array with parity, a part of one, or lies straight on
/// such arrays alone, as logical volumes do. What lies on others by way of a third device may be thin, and what is
/// written to it between dirty blocks would take room. Arrays of other makes do not tell.
fn has_parity(device: &Path) -> bool {
    // A partition's directory lies in its disk's.
    let is_array = |device: &Path| {
        let level = ["md/level", "../md/level"].map(|file| read_to_string(device.join(file)));
        let level = level.into_iter().flatten().next();
        level.is_some_and(|level| matches!(level.trim(), "raid4" | "raid5" | "raid6"))
    };
    let below = std::fs::read_dir(device.join("slaves")).into_iter().flatten().flatten();
    let below: Vec<_> = below.map(|entry| entry.path()).collect();
    // An array has its disks below it.
    is_array(device) || (!below.is_empty() && below.iter().all(|one| is_array(one)))
}

/// md and device-mapper give the stripe as the optimal size and the chunk as the minimal one. A disk
/// alone gives its longest transfer, or nothing, and one sector.
fn stripe_of(optimal: u64, minimal: u64, start_bytes: u64) -> Option<Stripe> {
    let array = minimal >= 4096 && optimal > minimal && optimal.is_multiple_of(minimal);
    let aligned = array && start_bytes.is_multiple_of(optimal);
    aligned.then_some(Stripe { bytes: optimal, chunk_bytes: minimal, parity: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_found_by_number_and_unescaped() {
        let table = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
40 22 8:17 / /mnt/my\\040disk rw shared:2 - xfs /dev/sdb1 rw\n\
41 22 0:30 / /sys rw - sysfs sysfs rw\nshort line\n";
        assert_eq!(mount_point_in(table, 8, 17), Some("/mnt/my disk".into()));
        assert_eq!(mount_point_in(table, 254, 0), Some("/".into()));
        assert_eq!(mount_point_in(table, 8, 1), None);
        assert_eq!(unescape("a\\04"), PathBuf::from("a\\04"), "not an escape");
    }

    #[test]
    fn an_array_is_told_from_a_disk_by_its_sizes() {
        let md = Some(Stripe { bytes: 5_767_168, chunk_bytes: 524_288, parity: false });
        assert_eq!(stripe_of(5_767_168, 524_288, 0), md);
        assert_eq!(stripe_of(5_767_168, 524_288, 1 << 20), None, "a partition across stripes");
        assert_eq!(stripe_of(0, 512, 0), None, "a disk");
        assert_eq!(stripe_of(33_553_920, 4096, 0), None, "a disk's longest transfer");
        assert_eq!(stripe_of(4096, 4096, 0), None);
    }

    #[test]
    fn parity_is_known_of_md_and_of_what_lies_straight_on_md_alone() {
        let dir = std::env::temp_dir().join(format!("forebay-sysfs-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let file = dir.join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        for (path, text) in [
            ("md5/md/level", "raid5\n"),
            ("md5/md5p1/start", "2048\n"),
            ("md10/md/level", "raid10\n"),
            ("sda/size", "1\n"),
            ("lv/slaves/a/md/level", "raid5\n"),
            ("lv/slaves/b/md/level", "raid6\n"),
            ("thin/slaves/pool/slaves/a/md/level", "raid5\n"),
            ("mixed/slaves/a/md/level", "raid5\n"),
            ("mixed/slaves/b/size", "1\n"),
        ] {
            put(path, text);
        }
        let has = |name: &str| has_parity(&dir.join(name));
        let with = ["md5", "md5/md5p1", "lv"].map(has);
        let without = ["md10", "sda", "mixed", "thin", "none"].map(has);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!((with, without), ([true; 3], [false; 5]));
    }

    #[test]
    fn lock_holders_are_found_by_file() {
        let table = "1: FLOCK  ADVISORY  WRITE 708 fe:00:1234 0 EOF\n\
                     2: POSIX  ADVISORY  READ 12 00:1b:99 0 EOF\n";
        let device = libc::makedev(0xfe, 0);
        assert_eq!(lock_holder_in(table, device, 1234), Some(708));
        assert_eq!(lock_holder_in(table, libc::makedev(0, 0x1b), 99), Some(12));
        assert_eq!(lock_holder_in(table, device, 99), None);
    }
}

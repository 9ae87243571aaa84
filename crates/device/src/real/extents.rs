//! What of a file is only reserved: there is space for it, and nothing was ever written there.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// `FS_IOC_FIEMAP` of linux/fs.h, `_IOWR('f', 11, struct fiemap)`; libc has no name for it.
const FIEMAP: libc::Ioctl = 0xC020_660B_u32 as libc::Ioctl;

/// Of linux/fiemap.h: what was written is brought to the file system's disk first.
const SYNC: u32 = 0x1;
/// Of an extent: the last one of its file; nothing was written there.
const LAST: u32 = 0x1;
const UNWRITTEN: u32 = 0x800;

/// Extents for which one call has room: 14 KiB.
const EXTENTS: usize = 256;

/// `struct fiemap_extent` of linux/fiemap.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    more_reserved: [u32; 3],
}

/// `struct fiemap` of linux/fiemap.h, with room for extents behind it.
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

const _: () = assert!(size_of::<Extent>() == 56);
const _: () = assert!(size_of::<Map>() == 32 + 56 * EXTENTS);

/// Bytes of the file at `path`, from byte `from` to its end, that are reserved and unwritten. `None` if its file system
/// does not tell. Blocks, for as long as it takes to write what the file was given before.
pub fn unwritten_bytes(path: &Path, from: u64) -> Option<u64> {
    let count = || {
        let file = File::open(path)?;
        // What was written there and not brought to the disk yet looks unwritten, too.
        match count(&file, from, 0)? {
            0 => Ok(0),
            _ => count(&file, from, SYNC),
        }
    };
    let counted: io::Result<u64> = count();
    counted.ok()
}

fn count(file: &File, from: u64, flags: u32) -> io::Result<u64> {
    let end = file.metadata()?.len();
    let (mut at, mut unwritten) = (from, 0);
    while at < end {
        let mut map = Map {
            start: at,
            length: end - at,
            flags,
            mapped: 0,
            room: EXTENTS as u32,
            reserved: 0,
            extents: [Extent::default(); EXTENTS],
        };
        // SAFETY: the descriptor is open, and the kernel writes to the map alone, as many extents as it says it has room for.
        if unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP, &raw mut map) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let found = &map.extents[..(map.mapped as usize).min(EXTENTS)];
        for extent in found.iter().filter(|extent| extent.flags & UNWRITTEN != 0) {
            let first = extent.logical.max(at);
            unwritten +=
                extent.logical.saturating_add(extent.length).min(end).saturating_sub(first);
        }
        match found.last() {
            Some(last) if last.flags & LAST == 0 && last.logical + last.length > at => {
                at = last.logical + last.length;
            }
            _ => break,
        }
    }
    Ok(unwritten)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn what_is_reserved_and_was_never_written_is_counted() {
        let path = std::env::temp_dir().join(format!("forebay-extents-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        file.write_all(&[1; 1 << 20]).unwrap();
        // SAFETY: the descriptor is open.
        let failed = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, 4 << 20) };
        let written = unwritten_bytes(&path, 0);
        if failed == 0 && written.is_some() {
            assert_eq!(written, Some(3 << 20));
            assert_eq!(unwritten_bytes(&path, 2 << 20), Some(2 << 20));
            // Also what is not on the disk yet was written.
            file.write_all_at(&vec![1; 3 << 20], 1 << 20).unwrap();
            assert_eq!(unwritten_bytes(&path, 0), Some(0));
        } else {
            println!("skipped: this file system reserves nothing, or does not tell");
        }
        std::fs::remove_file(&path).unwrap();
    }
}

//! What is already on a device or file, before it is taken as a cache device.
//!
//! Signatures are as in util-linux's libblkid and the formats' own specifications. Finding too
//! much only asks the user for a confirmation; finding too little costs somebody's data.

use crate::buf::Buf;
use crate::device::BlockDevice;
use crate::io::IoError;

/// Bytes read from the start: VMFS, 2 MiB in, is the farthest.
const HEAD_BYTES: u64 = (2 << 20) + 4096;

/// Bytes read from the end: the last two labels of ZFS, which stand on 256 KiB boundaries.
const TAIL_BYTES: u64 = 1 << 20;

/// Something that somebody may want to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name for people: "ext4 file system", "GPT partition table".
    pub what: &'static str,
    /// Where its signature stands, in bytes from the start of the device.
    pub offset: u64,
}

/// Signatures at fixed places: name, offset, bytes.
const FIXED: &[(&str, u64, &[u8])] = &[
    // Our own superblock slots (docs/internals/format.md); a pool that can be opened is named by
    // whoever asks, this is for one that cannot.
    ("Forebay pool member", 0, b"FBYSUPER"),
    ("Forebay pool member", 128 << 10, b"FBYSUPER"),
    ("XFS file system", 0, b"XFSB"),
    ("LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    ("NTFS file system", 3, b"NTFS    "),
    ("exFAT file system", 3, b"EXFAT   "),
    ("BitLocker encrypted volume", 3, b"-FVE-FS-"),
    ("APFS container", 32, b"NXSB"),
    ("SquashFS file system", 0, b"hsqs"),
    ("dm-integrity volume", 0, b"integrt\0"),
    ("VDO volume", 0, b"dmvdo001"),
    ("Ceph OSD", 0, b"bluestore block device"),
    ("F2FS file system", 1024, b"\x10\x20\xf5\xf2"),
    ("EROFS file system", 1024, b"\xe2\xe1\xf5\xe0"),
    ("HFS+ file system", 1024, b"H+\0\x04"),
    ("HFSX file system", 1024, b"HX\0\x05"),
    ("JFS file system", 32768, b"JFS1"),
    ("ReiserFS file system", 8192 + 52, b"ReIsErFs"),
    ("ReiserFS file system", 65536 + 52, b"ReIsErFs"),
    ("ReiserFS file system", 65536 + 52, b"ReIsEr2Fs"),
    ("ReiserFS file system", 65536 + 52, b"ReIsEr3Fs"),
    ("NILFS2 file system", 1024 + 6, b"\x34\x34"),
    // Big-endian, with the type of the block: 1 is the superblock.
    ("GFS2 file system", 65536, b"\x01\x16\x19\x70\0\0\0\x01"),
    // In the third block, of any size.
    ("OCFS2 file system", 1024, b"OCFSV2"),
    ("OCFS2 file system", 2048, b"OCFSV2"),
    ("OCFS2 file system", 4096, b"OCFSV2"),
    ("OCFS2 file system", 8192, b"OCFSV2"),
    ("VMFS volume member", 1 << 20, b"\x0d\xd0\x01\xc0"),
    ("VMFS file system", 2 << 20, b"\x5e\xf1\xab\x2f"),
    ("Stratis pool member", 512 + 4, b"!Stra0tis\x86\xff\x02^\x41rh"),
    ("Stratis pool member", 9 * 512 + 4, b"!Stra0tis\x86\xff\x02^\x41rh"),
    ("LVM1 physical volume", 0, b"HM\x01\0"),
    ("LVM1 physical volume", 0, b"HM\x02\0"),
    // The place depends on the machine.
    ("BSD disk label", 64, b"\x57\x45\x56\x82"),
    ("BSD disk label", 128, b"\x57\x45\x56\x82"),
    ("BSD disk label", 512, b"\x57\x45\x56\x82"),
    // The second block, whose size the first one tells; CDs have blocks of 2048 bytes.
    ("Apple partition map", 512, b"PM\0\0"),
    ("Apple partition map", 2048, b"PM\0\0"),
    (
        "bcache device",
        4096 + 24,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    (
        "bcachefs file system",
        4096 + 24,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
    ),
    ("ISO 9660 file system", 32769, b"CD001"),
    ("Btrfs file system", 65536 + 64, b"_BHRfS_M"),
    ("md RAID member (1.1)", 0, b"\xfc\x4e\x2b\xa9"),
    ("md RAID member (1.2)", 4096, b"\xfc\x4e\x2b\xa9"),
    // The second header of LUKS2, when the first is damaged.
    ("LUKS encrypted volume", 0x4000, b"SKUL\xba\xbe"),
    ("LUKS encrypted volume", 0x8000, b"SKUL\xba\xbe"),
    ("LUKS encrypted volume", 0x10000, b"SKUL\xba\xbe"),
    ("LUKS encrypted volume", 0x20000, b"SKUL\xba\xbe"),
    ("LUKS encrypted volume", 0x40000, b"SKUL\xba\xbe"),
];

/// The two pieces of a device that carry signatures.
struct Image<'a> {
    size: u64,
    head: &'a [u8],
    tail: &'a [u8],
}

impl Image<'_> {
    /// The bytes at `offset`, if they were read.
    fn at(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let piece = |piece: &[u8], start: u64| -> Option<std::ops::Range<usize>> {
            let from = usize::try_from(offset.checked_sub(start)?).ok()?;
            let to = from.checked_add(len)?;
            (to <= piece.len()).then_some(from..to)
        };
        if let Some(range) = piece(self.head, 0) {
            return Some(&self.head[range]);
        }
        let tail_start = self.size.checked_sub(self.tail.len() as u64)?;
        piece(self.tail, tail_start).map(|range| &self.tail[range])
    }

    fn has(&self, offset: u64, bytes: &[u8]) -> bool {
        self.at(offset, bytes.len()) == Some(bytes)
    }

    fn u16_be(&self, offset: u64) -> Option<u16> {
        let bytes = self.at(offset, 2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn u32_le(&self, offset: u64) -> Option<u32> {
        let bytes = self.at(offset, 4)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }
}

/// Looks for signatures of file systems, partition tables, RAID members and volume managers.
/// Nothing found means that none is known, not that the device is empty.
///
/// # Errors
/// When the device cannot be read.
pub async fn probe(device: &dyn BlockDevice) -> Result<Vec<Found>, IoError> {
    let size = device.geometry().size_bytes;
    let head = device.read(0, Buf::new(size.min(HEAD_BYTES) as usize)).await;
    head.result?;
    let tail_bytes = size.min(TAIL_BYTES);
    let tail = device.read(size - tail_bytes, Buf::new(tail_bytes as usize)).await;
    tail.result?;
    Ok(scan(size, head.buf.as_deref().unwrap_or(&[]), tail.buf.as_deref().unwrap_or(&[])))
}

/// The same by calls that fill a buffer from an offset, for who must not claim the device.
///
/// # Errors
/// When the device cannot be read.
pub fn probe_with(
    size: u64,
    mut read: impl FnMut(&mut [u8], u64) -> std::io::Result<()>,
) -> std::io::Result<Vec<Found>> {
    let mut head = vec![0; size.min(HEAD_BYTES) as usize];
    read(&mut head, 0)?;
    let tail_bytes = size.min(TAIL_BYTES);
    let mut tail = vec![0; tail_bytes as usize];
    read(&mut tail, size - tail_bytes)?;
    Ok(scan(size, &head, &tail))
}

/// Finds signatures in the first and last bytes of a device of `size` bytes.
fn scan(size: u64, head: &[u8], tail: &[u8]) -> Vec<Found> {
    let image = Image { size, head, tail };
    let mut found = Vec::new();
    for (what, offset, bytes) in FIXED {
        if image.has(*offset, bytes) {
            found.push(Found { what, offset: *offset });
        }
    }
    found.extend(ext(&image));
    found.extend(fat(&image));
    found.extend(swap(&image));
    found.extend(zfs(&image));
    found.extend(lvm(&image));
    found.extend(gpt(&image));
    found.extend(mbr(&image));
    found.extend(sun(&image));
    found.extend(udf(&image));
    found.extend(nilfs_at_end(&image));
    found.extend(md_at_end(&image));
    found.extend(drbd(&image));
    found.extend(firmware_raid(&image));
    found.sort_by_key(|found| found.offset);
    found.dedup_by_key(|found| (found.what, found.offset));
    found
}

/// ext2, ext3 and ext4 differ in their feature bits (linux/fs/ext4/ext4.h).
fn ext(image: &Image) -> Option<Found> {
    const JOURNAL: u32 = 0x4;
    const EXTENTS_AND_LATER: u32 = !0x1f;
    let offset = 1024 + 56;
    if !image.has(offset, &[0x53, 0xef]) {
        return None;
    }
    let compatible = image.u32_le(1024 + 92)?;
    let incompatible = image.u32_le(1024 + 96)?;
    let what = if incompatible & EXTENTS_AND_LATER != 0 {
        "ext4 file system"
    } else if compatible & JOURNAL != 0 {
        "ext3 file system"
    } else {
        "ext2 file system"
    };
    Some(Found { what, offset })
}

fn is_boot_sector(image: &Image) -> bool {
    image.has(510, &[0x55, 0xaa])
}

/// A FAT boot sector: the name field, or, as old tools left it empty, a plausible parameter block.
fn fat(image: &Image) -> Option<Found> {
    let what = "FAT file system";
    let named = [(54, &b"FAT12   "[..]), (54, b"FAT16   "), (54, b"FAT     "), (82, b"FAT32   ")];
    if let Some((offset, _)) = named.iter().find(|(offset, name)| image.has(*offset, name)) {
        return Some(Found { what, offset: *offset });
    }
    let sector = image.at(0, 64)?;
    let bytes_per_sector = u16::from_le_bytes([sector[11], sector[12]]);
    let plausible = is_boot_sector(image)
        && (sector[0] == 0xeb || sector[0] == 0xe9)
        && matches!(bytes_per_sector, 512 | 1024 | 2048 | 4096)
        && sector[13].is_power_of_two()
        && matches!(sector[16], 1 | 2)
        && (sector[21] == 0xf0 || sector[21] >= 0xf8);
    plausible.then_some(Found { what, offset: 11 })
}

/// Swap ends its first page with its signature; pages differ between machines.
fn swap(image: &Image) -> Option<Found> {
    [4096u64, 8192, 16384, 32768, 65536].into_iter().find_map(|page| {
        let offset = page - 10;
        let hibernated = image.has(offset, b"S1SUSPEND\0") || image.has(offset, b"S2SUSPEND\0");
        if hibernated {
            return Some(Found { what: "hibernation image", offset });
        }
        let is_swap = image.has(offset, b"SWAPSPACE2") || image.has(offset, b"SWAP-SPACE");
        is_swap.then_some(Found { what: "swap space", offset })
    })
}

/// ZFS keeps four labels of 256 KiB, two at each end; the second half of each is a ring of
/// uberblocks with the magic number in the writer's byte order.
fn zfs(image: &Image) -> Option<Found> {
    const LABEL: u64 = 256 << 10;
    let end = image.size & !(LABEL - 1);
    let labels = [Some(0), Some(LABEL), end.checked_sub(2 * LABEL), end.checked_sub(LABEL)];
    labels.into_iter().flatten().find_map(|label| {
        (0..128u64).map(|slot| label + (LABEL / 2) + slot * 1024).find_map(|offset| {
            let magic = image.at(offset, 8)?;
            let is_zfs = [0x00ba_b10c_u64.to_le_bytes(), 0x00ba_b10c_u64.to_be_bytes()]
                .iter()
                .any(|bytes| bytes == magic);
            is_zfs.then_some(Found { what: "ZFS pool member", offset })
        })
    })
}

/// An LVM2 label stands in one of the first four sectors of 512 bytes.
fn lvm(image: &Image) -> Option<Found> {
    (0..4).map(|sector| sector * 512).find_map(|offset| {
        let is_label = image.has(offset, b"LABELONE") && image.has(offset + 24, b"LVM2 001");
        is_label.then_some(Found { what: "LVM physical volume", offset })
    })
}

/// The GPT header in the second and the last sector, of either size: the device may have been
/// partitioned behind another adapter.
fn gpt(image: &Image) -> Vec<Found> {
    let last = |sector| image.size.checked_sub(sector);
    let first = [512, 4096].map(|offset| (offset, "GPT partition table"));
    let backup = [last(512), last(4096)]
        .into_iter()
        .flatten()
        .map(|offset| (offset, "GPT partition table (backup)"));
    first
        .into_iter()
        .chain(backup)
        .filter(|(offset, _)| image.has(*offset, b"EFI PART"))
        .map(|(offset, what)| Found { what, offset })
        .collect()
}

/// An MBR with a partition in it. The boot sectors of FAT and NTFS end in the same mark, and
/// their code where the table would be rarely looks like one: status 0x00 or 0x80, a type and a
/// length in each entry that is not empty.
fn mbr(image: &Image) -> Option<Found> {
    let table = image.at(446, 64).filter(|_| is_boot_sector(image))?;
    let mut used = 0;
    for entry in table.chunks_exact(16) {
        if entry.iter().all(|&byte| byte == 0) {
            continue;
        }
        let sectors = u32::from_le_bytes([entry[12], entry[13], entry[14], entry[15]]);
        if entry[0] & 0x7f != 0 || entry[4] == 0 || sectors == 0 {
            return None;
        }
        used += 1;
    }
    (used > 0).then_some(Found { what: "MBR partition table", offset: 446 })
}

/// A Sun label ends its sector with its magic number and a word that makes the exclusive or of the
/// whole sector zero.
fn sun(image: &Image) -> Option<Found> {
    let offset = 508;
    let is_label = image.u16_be(offset)? == 0xdabe
        && (0..256).try_fold(0, |sum, at| Some(sum ^ image.u16_be(2 * at)?))? == 0;
    is_label.then_some(Found { what: "Sun disk label", offset })
}

/// UDF names itself among the descriptors from 32 KiB on, one per 2 KiB or one per block.
fn udf(image: &Image) -> Option<Found> {
    const DESCRIPTORS_MAX: u64 = 64;
    (0..DESCRIPTORS_MAX).map(|number| 32768 + number * 2048 + 1).find_map(|offset| {
        let is_udf = image.has(offset, b"NSR02") || image.has(offset, b"NSR03");
        is_udf.then_some(Found { what: "UDF file system", offset })
    })
}

/// NILFS2 keeps a second superblock 4 KiB before the end, on 512 bytes or on 4 KiB, as the
/// writer's version wants.
fn nilfs_at_end(image: &Image) -> Vec<Found> {
    let place = |align: u64| Some((image.size & !(align - 1)).checked_sub(4096)? + 6);
    [place(512), place(4096)]
        .into_iter()
        .flatten()
        .filter(|offset| image.has(*offset, &[0x34, 0x34]))
        .map(|offset| Found { what: "NILFS2 file system", offset })
        .collect()
}

/// DRBD's internal metadata ends with a superblock in the last whole 4 KiB: version 8, version 8
/// in use, version 9, all big-endian.
fn drbd(image: &Image) -> Option<Found> {
    let offset = (image.size & !0xfff).checked_sub(4096)? + 60;
    let magics = [0x8374_026b_u32, 0x8374_026c, 0x8374_026d];
    let is_drbd = magics.iter().any(|magic| image.has(offset, &magic.to_be_bytes()));
    is_drbd.then_some(Found { what: "DRBD member", offset })
}

/// md superblocks near the end: 0.90 in the last whole 64 KiB but one, in the writer's byte
/// order; 1.0 at least 8 KiB before the end, on 4 KiB (linux/drivers/md/md.c).
fn md_at_end(image: &Image) -> Vec<Found> {
    let old = (image.size & !0xffff).checked_sub(0x1_0000);
    let new = image.size.checked_sub(0x2000).map(|offset| offset & !0xfff);
    let magic = 0xa92b_4efc_u32;
    let mut found = Vec::new();
    if let Some(offset) = old
        && (image.has(offset, &magic.to_le_bytes()) || image.has(offset, &magic.to_be_bytes()))
    {
        found.push(Found { what: "md RAID member (0.90)", offset });
    }
    if let Some(offset) = new
        && image.has(offset, &magic.to_le_bytes())
    {
        found.push(Found { what: "md RAID member (1.0)", offset });
    }
    found
}

/// RAID of the firmware: Intel's in the last sector but one, DDF's anchor in the last.
fn firmware_raid(image: &Image) -> Vec<Found> {
    let mut found = Vec::new();
    for sector in [512u64, 4096] {
        if let Some(offset) = image.size.checked_sub(2 * sector)
            && image.has(offset, b"Intel Raid ISM Cfg Sig. ")
        {
            found.push(Found { what: "Intel RAID member", offset });
        }
        if let Some(offset) = image.size.checked_sub(sector)
            && image.has(offset, &[0xde, 0x11, 0xde, 0x11])
        {
            found.push(Found { what: "DDF RAID member", offset });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: usize = 4 << 20;

    fn scan_all(image: &[u8]) -> Vec<Found> {
        let head = &image[..image.len().min(HEAD_BYTES as usize)];
        let tail = &image[image.len().saturating_sub(TAIL_BYTES as usize)..];
        scan(image.len() as u64, head, tail)
    }

    fn with(pieces: &[(u64, &[u8])]) -> Vec<Found> {
        let mut image = vec![0u8; SIZE];
        for (offset, bytes) in pieces {
            let at = *offset as usize;
            image[at..at + bytes.len()].copy_from_slice(bytes);
        }
        scan_all(&image)
    }

    fn names(found: &[Found]) -> Vec<&'static str> {
        found.iter().map(|found| found.what).collect()
    }

    #[test]
    fn an_empty_device_has_nothing() {
        assert_eq!(with(&[]), []);
        assert_eq!(scan_all(&[]), []);
        assert_eq!(with(&[(510, &[0x55, 0xaa])]), [], "a boot mark without a partition");
    }

    #[test]
    fn every_fixed_signature_is_found_where_it_stands() {
        for (what, offset, bytes) in FIXED {
            assert_eq!(with(&[(*offset, bytes)]), [Found { what, offset: *offset }]);
        }
    }

    #[test]
    fn ext_versions_are_told_apart() {
        let magic: (u64, &[u8]) = (1080, &[0x53, 0xef]);
        assert_eq!(names(&with(&[magic])), ["ext2 file system"]);
        assert_eq!(names(&with(&[magic, (1116, &[4])])), ["ext3 file system"]);
        let ext4 = with(&[magic, (1116, &[4]), (1120, &[0x42, 2])]);
        assert_eq!(names(&ext4), ["ext4 file system"]);
    }

    #[test]
    fn fat_is_found_with_and_without_its_name() {
        assert_eq!(names(&with(&[(82, b"FAT32   ")])), ["FAT file system"]);
        let mut block = [0u8, 2, 4, 1, 0, 2, 0, 2, 0, 0, 0xf8];
        let boot: (u64, &[u8]) = (0, &[0xeb, 0x3c, 0x90]);
        let mark: (u64, &[u8]) = (510, &[0x55, 0xaa]);
        let unnamed = with(&[boot, (11, &block), mark]);
        assert_eq!(names(&unnamed), ["FAT file system"]);
        block[10] = 0; // no media byte
        assert_eq!(with(&[boot, (11, &block), mark]), []);
    }

    #[test]
    fn swap_of_any_page_size_and_hibernation_are_found() {
        for page in [4096, 16384, 65536] {
            assert_eq!(names(&with(&[(page - 10, b"SWAPSPACE2")])), ["swap space"]);
        }
        assert_eq!(names(&with(&[(4086, b"S1SUSPEND\0")])), ["hibernation image"]);
    }

    #[test]
    fn zfs_is_found_by_any_label() {
        let size = SIZE as u64;
        for label in [0, 256 << 10, size - (512 << 10), size - (256 << 10)] {
            let offset = label + (128 << 10) + 5 * 1024;
            for magic in [0x00ba_b10c_u64.to_le_bytes(), 0x00ba_b10c_u64.to_be_bytes()] {
                assert_eq!(with(&[(offset, &magic)]), [Found { what: "ZFS pool member", offset }]);
            }
        }
    }

    #[test]
    fn partition_tables_are_found_at_both_ends() {
        let entry = [0x80, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0];
        let protective = [0, 0, 2, 0, 0xee, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0, 0];
        let mark: (u64, &[u8]) = (510, &[0x55, 0xaa]);
        assert_eq!(names(&with(&[mark, (446, &entry)])), ["MBR partition table"]);
        let whole = with(&[mark, (446, &protective), (512, b"EFI PART")]);
        assert_eq!(names(&whole), ["MBR partition table", "GPT partition table"]);
        for sector in [512, 4096] {
            let backup = with(&[(SIZE as u64 - sector, b"EFI PART")]);
            assert_eq!(names(&backup), ["GPT partition table (backup)"]);
        }
        let code = [0xb4, 0x0e, 0xcd, 0x10, 0xeb, 0xf5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
        assert_eq!(with(&[mark, (446, &code)]), [], "boot code is no table");
    }

    #[test]
    fn raid_members_and_volumes_are_found() {
        let size = SIZE as u64;
        let magic = 0xa92b_4efc_u32;
        let old = with(&[(size - 65536, &magic.to_be_bytes())]);
        assert_eq!(names(&old), ["md RAID member (0.90)"]);
        let new = with(&[(size - 8192, &magic.to_le_bytes())]);
        assert_eq!(names(&new), ["md RAID member (1.0)"]);
        let intel = with(&[(size - 1024, b"Intel Raid ISM Cfg Sig. 1.3.00")]);
        assert_eq!(names(&intel), ["Intel RAID member"]);
        let ddf = with(&[(size - 512, &[0xde, 0x11, 0xde, 0x11])]);
        assert_eq!(names(&ddf), ["DDF RAID member"]);
        let lvm = with(&[(512, b"LABELONE"), (536, b"LVM2 001")]);
        assert_eq!(lvm, [Found { what: "LVM physical volume", offset: 512 }]);
    }

    #[test]
    fn labels_with_a_checksum_or_at_the_end_are_found() {
        let size = SIZE as u64;
        let sun: (u64, &[u8]) = (508, &[0xda, 0xbe]);
        assert_eq!(names(&with(&[sun, (510, &[0xda, 0xbe])])), ["Sun disk label"]);
        assert_eq!(with(&[sun]), [], "the checksum is wrong");
        for magic in [0x8374_026b_u32, 0x8374_026c, 0x8374_026d] {
            let drbd = with(&[(size - 4096 + 60, &magic.to_be_bytes())]);
            assert_eq!(names(&drbd), ["DRBD member"]);
        }
        assert_eq!(names(&with(&[(size - 4096 + 6, b"44")])), ["NILFS2 file system"]);
    }

    #[test]
    fn udf_is_found_behind_other_descriptors_of_either_block() {
        for at in [2048, 4096, 6 * 4096] {
            for name in [b"NSR02", b"NSR03"] {
                let found = with(&[(32769, b"BEA01"), (32769 + at, name)]);
                assert_eq!(names(&found), ["UDF file system"]);
            }
        }
    }

    #[test]
    fn a_pool_member_is_found_by_either_superblock() {
        for offset in [0, 131_072] {
            let found = with(&[(offset, b"FBYSUPER")]);
            assert_eq!(found, [Found { what: "Forebay pool member", offset }]);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..9000),
            size in any::<u64>(),
            tail in 0usize..9000,
        ) {
            scan_all(&bytes);
            // A device whose reads came back shorter than its size, too.
            let tail = &bytes[bytes.len().saturating_sub(tail)..];
            scan(size, &bytes, tail);
        }
    }
}

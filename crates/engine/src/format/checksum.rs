//! The one checksum of the format: CRC-32C (Castagnoli), as in iSCSI, ext4 and Btrfs. Processors
//! compute it, and it catches every burst of up to 32 bits, hence every single-bit flip.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C of `bytes`.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C of `bytes` with the four bytes at each of `holes` (ascending) taken as zero, so that a
/// structure can hold its own checksum without being copied.
pub(super) fn checksum_with_holes(bytes: &[u8], holes: &[usize]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    let mut done = 0;
    for &hole in holes {
        digest.update(&bytes[done..hole]);
        digest.update(&[0; 4]);
        done = hole + 4;
    }
    digest.update(&bytes[done..]);
    digest.finalize() as u32
}

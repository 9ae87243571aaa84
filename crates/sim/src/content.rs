//! Sectors that say which write they come from.
//!
//! Each write has a stamp of its own, from 1. A sector's 512 bytes follow from the stamp, the
//! volume and the sector's number, so a sector that is read back names its write, and one that is
//! mixed, damaged or in the wrong place is none of these. Zeroes are stamp 0.

use forebay_device::model::world::{Rng, mix};

/// Bytes of a sector, the unit of everything the oracle knows.
pub const SECTOR: usize = 512;

/// What a sector that was read contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// All of it from the write with this stamp; 0 for zeroes.
    Stamp(u64),
    /// Data of another place: its stamp, volume and sector.
    Misplaced(u64, u64, u64),
    /// Nothing that was ever written as a whole.
    Garbage,
}

fn address(volume: usize, sector: u64) -> u64 {
    (volume as u64) << 48 | sector
}

fn fill_sector(stamp: u64, address: u64, out: &mut [u8]) {
    let mut rng = Rng::new(mix(stamp) ^ address);
    let (words, _) = out.as_chunks_mut::<8>();
    words[0] = stamp.to_le_bytes();
    words[1] = address.to_le_bytes();
    for word in &mut words[2..] {
        *word = rng.bits().to_le_bytes();
    }
}

/// Fills `out`, whole sectors from `first_sector` of `volume`, with the data of write `stamp`.
pub fn fill(stamp: u64, volume: usize, first_sector: u64, out: &mut [u8]) {
    for (index, sector) in out.chunks_exact_mut(SECTOR).enumerate() {
        match stamp {
            0 => sector.fill(0),
            _ => fill_sector(stamp, address(volume, first_sector + index as u64), sector),
        }
    }
}

/// Tells what the sector `bytes`, read from sector `sector` of `volume`, contains.
pub fn identify(volume: usize, sector: u64, bytes: &[u8]) -> Found {
    let (words, _) = bytes.as_chunks::<8>();
    let (stamp, place) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
    if stamp == 0 {
        return if bytes.iter().all(|&b| b == 0) { Found::Stamp(0) } else { Found::Garbage };
    }
    let mut expected = [0; SECTOR];
    fill_sector(stamp, place, &mut expected);
    if bytes != expected {
        Found::Garbage
    } else if place != address(volume, sector) {
        Found::Misplaced(stamp, place >> 48, place & ((1 << 48) - 1))
    } else {
        Found::Stamp(stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_names_its_write_and_place() {
        let mut bytes = vec![0; 2 * SECTOR];
        fill(42, 3, 100, &mut bytes);
        assert_eq!(identify(3, 101, &bytes[SECTOR..]), Found::Stamp(42));
        assert_eq!(identify(3, 100, &bytes[SECTOR..]), Found::Misplaced(42, 3, 101));
        assert_eq!(identify(2, 101, &bytes[SECTOR..]), Found::Misplaced(42, 3, 101));
        bytes[SECTOR + 300] ^= 1;
        assert_eq!(identify(3, 101, &bytes[SECTOR..]), Found::Garbage);
    }

    #[test]
    fn zeroes_are_stamp_zero_and_nearly_zeroes_are_not() {
        let mut bytes = [0; SECTOR];
        assert_eq!(identify(0, 0, &bytes), Found::Stamp(0));
        bytes[511] = 1;
        assert_eq!(identify(0, 0, &bytes), Found::Garbage);
    }
}

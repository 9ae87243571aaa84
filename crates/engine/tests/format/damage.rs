//! Damaged and hostile bytes.

use forebay_engine::format::{
    FEATURE_GROWN, FEATURE_OWN_ROOTS, FormatError, Superblock, checksum, decode_footer_trailer,
};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::samples::{self, Sample};

/// Puts right checksums into changed bytes, as a hostile writer would.
fn reseal(sample: &Sample, bytes: &mut [u8]) {
    let start = if sample.name == "footer" { bytes.len() - 4096 } else { 0 };
    let (body, block) = bytes.split_at_mut(start);
    block[16..20].fill(0);
    if sample.name == "footer" {
        block[20..24].copy_from_slice(&checksum(body).to_le_bytes());
    }
    if sample.name == "record_header" {
        block[20..24].fill(0);
        let sum = checksum(&block[..80]);
        block[20..24].copy_from_slice(&sum.to_le_bytes());
    }
    let sum = checksum(block);
    block[16..20].copy_from_slice(&sum.to_le_bytes());
}

fn assert_flip_is_rejected(sample: &Sample, bytes: &mut [u8], bit: usize) {
    bytes[bit / 8] ^= 1 << (bit % 8);
    assert!((sample.decode)(bytes).is_err(), "{}: flipped bit {bit} passed", sample.name);
    bytes[bit / 8] ^= 1 << (bit % 8);
}

#[test]
fn every_flipped_bit_of_a_small_structure_is_rejected() {
    for sample in samples::all() {
        let mut bytes = sample.bytes.clone();
        let bits = bytes.len() * 8;
        // Large ones: their heads, and one bit in a few hundred of the rest.
        let step = if bytes.len() <= 8192 { 1 } else { 499 };
        for bit in (0..bits).filter(|bit| bit % step == 0 || (step > 1 && *bit < 1024)) {
            assert_flip_is_rejected(&sample, &mut bytes, bit);
        }
    }
}

#[test]
fn every_truncation_is_rejected() {
    for sample in samples::all() {
        let last = sample.bytes.len() - 1;
        for length in (0..300).chain([4095, 4096, 8191, 8192, last]).filter(|&n| n <= last) {
            let result = (sample.decode)(&sample.bytes[..length]);
            assert!(result.is_err(), "{} of {length} bytes passed", sample.name);
        }
    }
}

#[test]
fn newer_versions_and_unknown_features_are_told_from_damage() {
    for sample in samples::all() {
        let start = if sample.name == "footer" { sample.bytes.len() - 4096 } else { 0 };
        let mut newer = sample.bytes.clone();
        newer[start + 8] = 2;
        assert_eq!((sample.decode)(&newer), Err(FormatError::BadChecksum), "{}", sample.name);
        reseal(&sample, &mut newer);
        let expected = Err(FormatError::FutureVersion { found: 2 });
        assert_eq!((sample.decode)(&newer), expected, "{}", sample.name);
        let mut other = sample.bytes.clone();
        other[start + 15] = 0x80;
        reseal(&sample, &mut other);
        let expected = Err(FormatError::UnknownFeatures { bits: 0x8000_0000 });
        assert_eq!((sample.decode)(&other), expected, "{}", sample.name);
    }
}

/// A version that knows no features refuses a pool by its superblock, and by its root.
#[test]
fn superblocks_and_roots_alone_use_features() {
    for sample in samples::all() {
        let start = if sample.name == "footer" { sample.bytes.len() - 4096 } else { 0 };
        let mut other = sample.bytes.clone();
        other[start + 12] = FEATURE_OWN_ROOTS as u8;
        reseal(&sample, &mut other);
        let refused = Err(FormatError::UnknownFeatures { bits: FEATURE_OWN_ROOTS });
        match samples::featured().iter().find(|with| with.name.starts_with(sample.name)) {
            Some(with) => assert!(other == with.bytes, "{}", sample.name),
            None => assert_eq!((sample.decode)(&other), refused, "{}", sample.name),
        }
    }
}

/// What a version that knows one range of each member must not look away from, and what a superblock
/// of such a version has in its reserved bytes.
#[test]
fn further_ranges_count_with_their_feature_alone() {
    let sample = |name: &str| samples::featured().into_iter().find(|s| s.name == name).unwrap();
    let grown = sample("superblock_grown");
    assert_eq!(grown.bytes[12], (FEATURE_OWN_ROOTS | FEATURE_GROWN) as u8);
    let read = Superblock::decode(&grown.bytes).unwrap().members[1].segments;
    assert_eq!((read.ranges().count(), read.end()), (4, 5001));
    let mut without = grown.bytes.clone();
    without[12] = FEATURE_OWN_ROOTS as u8;
    reseal(&grown, &mut without);
    let read = Superblock::decode(&without).unwrap().members[1].segments;
    assert_eq!(read, samples::superblock().members[1].segments);
    let root = sample("root_own_roots");
    let mut other = root.bytes.clone();
    other[12] |= FEATURE_GROWN as u8;
    reseal(&root, &mut other);
    assert_eq!((root.decode)(&other), Err(FormatError::UnknownFeatures { bits: FEATURE_GROWN }));
}

/// Ranges as no writer leaves them: with a hole between them, without segments, or over each other.
#[test]
fn further_ranges_that_no_writer_writes_are_refused() {
    let grown = samples::featured().into_iter().find(|s| s.name == "superblock_grown").unwrap();
    let at = |range: usize| 256 + 64 + 36 + (range - 1) * 8;
    let changed = |offset: usize, value: u32| {
        let mut bytes = grown.bytes.clone();
        bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        reseal(&grown, &mut bytes);
        (grown.decode)(&bytes)
    };
    let refused = Err(FormatError::Invalid { field: "member more_segments" });
    assert_eq!(changed(at(2) + 4, 0), refused, "a base without a count, and one behind it");
    assert_eq!(changed(at(3) + 4, 0), refused, "a base without a count");
    assert_eq!(changed(at(3), 3099), refused, "its own numbers twice");
    let refused = Err(FormatError::Invalid { field: "member segment_base" });
    assert_eq!(changed(at(3), u32::MAX), refused);
    assert_eq!(changed(at(3), 1000), refused, "another member's");
}

#[test]
fn no_structure_passes_for_another() {
    for written in samples::all() {
        for read in samples::all().iter().filter(|read| read.name != written.name) {
            assert!((read.decode)(&written.bytes).is_err(), "{} as {}", written.name, read.name);
        }
    }
}

#[test]
fn a_damaged_body_does_not_spoil_the_trailer() {
    let mut bytes = samples::all().remove(4).bytes;
    bytes[0] ^= 1;
    assert!(decode_footer_trailer(&bytes[bytes.len() - 4096..]).is_ok());
    assert_eq!(samples::decode_footer(&bytes), Err(FormatError::BadChecksum));
}

proptest! {
    #[test]
    fn hostile_bytes_with_right_checksums_never_panic(
        which in 0..8_usize,
        changes in prop::collection::vec((0..256_usize, any::<Index>(), any::<u8>()), 1..6),
        far in any::<bool>(),
        cut in prop::option::weighted(0.2, any::<Index>()),
    ) {
        let sample = samples::all().remove(which);
        let mut bytes = sample.bytes.clone();
        for (near, index, value) in changes {
            // Where the fields are: near a block's start.
            let block = index.index(bytes.len().div_ceil(4096)) * 4096;
            let place = if far { index.index(bytes.len()) } else { (block + near) % bytes.len() };
            bytes[place] = value;
        }
        if let Some(cut) = cut {
            let length = 4096 + cut.index(bytes.len());
            bytes.truncate(length);
        }
        if bytes.len() >= 4096 {
            reseal(&sample, &mut bytes);
        }
        let _ = (sample.decode)(&bytes);
    }

    #[test]
    fn noise_is_rejected(
        which in 0..8_usize,
        bytes in prop::collection::vec(any::<u8>(), 0..9000),
    ) {
        let sample = samples::all().remove(which);
        prop_assert!((sample.decode)(&bytes).is_err());
    }
}

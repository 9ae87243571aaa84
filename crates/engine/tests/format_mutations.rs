//! Bytes of every structure, changed the way media and bugs change them: sectors zeroed, garbled,
//! lost, written to the wrong place, mixed from two versions; and fields changed by a writer that
//! puts the checksum right. (Single bits, truncation and noise are in `format/damage.rs`.)
#![allow(clippy::unwrap_used, reason = "a test may panic, and so may its helpers")]

use forebay_engine::format::*;
use proptest::prelude::*;
use proptest::sample::Index;

#[path = "format/cases.rs"]
mod cases;
#[path = "format/samples.rs"]
#[allow(dead_code, reason = "the other tests of the format use the rest")]
mod samples;

use cases::{Case, cases, record_headers, reseal};

const SECTOR: usize = 512;

fn case() -> impl Strategy<Value = Case> {
    prop::sample::select(cases().to_vec()).prop_map(|case| case())
}

/// What happens to the bytes of one write.
#[derive(Clone, Debug)]
enum Mutation {
    /// Bytes from here on are others.
    Garble(Index, Vec<u8>),
    /// A sector was never written, or was discarded.
    Fill(Index, u8),
    /// A sector was written to the place of another one as well.
    Misdirect(Index, Index),
    /// Two sectors stand in each other's place.
    Swap(Index, Index),
    /// Everything stands some sectors further on.
    Shift(Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let index = any::<Index>;
    prop_oneof![
        (index(), prop::collection::vec(any::<u8>(), 1..600))
            .prop_map(|(at, bytes)| Mutation::Garble(at, bytes)),
        (index(), prop::sample::select(vec![0, 0xFF])).prop_map(|(at, b)| Mutation::Fill(at, b)),
        (index(), index()).prop_map(|(from, to)| Mutation::Misdirect(from, to)),
        (index(), index()).prop_map(|(a, b)| Mutation::Swap(a, b)),
        index().prop_map(Mutation::Shift),
    ]
}

impl Mutation {
    fn apply(&self, bytes: &mut [u8]) {
        let sector_count = bytes.len() / SECTOR;
        if sector_count == 0 {
            return;
        }
        let sector = |index: &Index| index.index(sector_count) * SECTOR;
        match self {
            Mutation::Garble(at, other) => {
                let at = at.index(bytes.len());
                let length = other.len().min(bytes.len() - at);
                bytes[at..at + length].copy_from_slice(&other[..length]);
            }
            Mutation::Fill(at, byte) => bytes[sector(at)..][..SECTOR].fill(*byte),
            Mutation::Misdirect(from, to) => {
                bytes.copy_within(sector(from)..sector(from) + SECTOR, sector(to));
            }
            Mutation::Swap(a, b) => {
                for offset in 0..SECTOR {
                    bytes.swap(sector(a) + offset, sector(b) + offset);
                }
            }
            Mutation::Shift(by) => bytes.rotate_right(sector(by)),
        }
    }
}

/// A byte near the bound of some field, or any.
fn telling_byte() -> impl Strategy<Value = u8> {
    prop_oneof![prop::sample::select(vec![0, 1, 2, 5, 0x7F, 0x80, 0xFE, 0xFF]), any::<u8>()]
}

#[test]
fn what_was_written_is_read_and_written_again_the_same() {
    for case in cases().map(|case| case()) {
        for bytes in [&case.older, &case.newer] {
            assert_eq!((case.reencode)(bytes).as_ref(), Ok(bytes), "{}", case.name);
        }
        assert_ne!(case.older, case.newer, "{}", case.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn a_changed_structure_is_rejected(
        case in case(),
        mutations in prop::collection::vec(mutation(), 1..4),
    ) {
        let mut bytes = case.older.clone();
        mutations.iter().for_each(|mutation| mutation.apply(&mut bytes));
        let read = (case.reencode)(&bytes);
        prop_assert_eq!(read.is_ok(), bytes == case.older, "{}: {:?}", case.name, mutations);
    }

    /// Of one write over an older version, any sectors may have arrived.
    #[test]
    fn a_torn_update_is_one_of_both_versions_or_rejected(case in case(), arrived in any::<u64>()) {
        let mut bytes = case.older.clone();
        for (index, sector) in bytes.chunks_mut(SECTOR).enumerate() {
            if arrived.rotate_right(index as u32) & 1 == 1 {
                sector.copy_from_slice(&case.newer[index * SECTOR..][..sector.len()]);
            }
        }
        let whole = bytes == case.older || bytes == case.newer;
        prop_assert_eq!((case.reencode)(&bytes).is_ok(), whole, "{}", case.name);
    }

    /// A scan follows a head's lengths before it has seen the rest.
    #[test]
    fn a_head_is_the_one_that_was_written_or_rejected(
        mutations in prop::collection::vec(mutation(), 1..4),
    ) {
        let written = record_headers().older;
        let mut bytes = written.clone();
        mutations.iter().for_each(|mutation| mutation.apply(&mut bytes));
        if let Ok(head) = RecordHeader::peek(&bytes[..4096]) {
            prop_assert_eq!(head, RecordHeader::peek(&written).unwrap());
        }
    }

    /// A reader rejects what no writer writes: what passes can be written again as it was read.
    #[test]
    fn what_passes_with_a_right_checksum_could_have_been_written(
        case in case(),
        changes in prop::collection::vec(
            (any::<Index>(), 0..256_usize, any::<bool>(), telling_byte()),
            1..4,
        ),
    ) {
        let mut bytes = case.older.clone();
        for (index, near, far, value) in changes {
            // Most fields are near a block's start.
            let block = index.index(bytes.len().div_ceil(4096)) * 4096;
            let at = if far { index.index(bytes.len()) } else { (block + near) % bytes.len() };
            bytes[at] = value;
        }
        reseal(case.name, &mut bytes);
        if let Ok(again) = (case.reencode)(&bytes) {
            prop_assert_eq!((case.reencode)(&again), Ok(again), "{}", case.name);
        }
    }
}

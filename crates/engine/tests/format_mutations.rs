//! Bytes of every structure, changed the way media and bugs change them: sectors zeroed, garbled,
//! lost, written to the wrong place, mixed from two versions; and fields changed by a writer that
//! puts the checksum right. (Single bits, truncation and noise are in `format/damage.rs`.)
#![allow(clippy::unwrap_used, reason = "a test may panic, and so may its helpers")]

use std::fmt;

use forebay_engine::format::*;
use forebay_engine::ids::*;
use proptest::prelude::*;
use proptest::sample::Index;

#[path = "format/samples.rs"]
#[allow(dead_code, reason = "the other tests of the format use the rest")]
mod samples;

const SECTOR: usize = 512;

/// A structure, a later version of it at the same place, and its way through decoder and encoder.
struct Case {
    name: &'static str,
    older: Vec<u8>,
    newer: Vec<u8>,
    reencode: fn(&[u8]) -> Result<Vec<u8>, FormatError>,
}

/// Its name alone: the bytes of a root or a superblock would bury the message of a failure.
impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

fn superblocks() -> Case {
    let newer = Superblock { generation: 43, epoch: 4, ..samples::superblock() };
    Case {
        name: "superblock",
        older: samples::superblock().encode(),
        newer: newer.encode(),
        reencode: |bytes| Superblock::decode(bytes).map(|superblock| superblock.encode()),
    }
}

fn roots() -> Case {
    let mut newer = Root { generation: 13, clean_stop: false, ..samples::root() };
    newer.images[63].sequence = Sequence(999);
    Case {
        name: "root",
        older: samples::root().encode(),
        newer: newer.encode(),
        reencode: |bytes| Root::decode(bytes).map(|root| root.encode()),
    }
}

fn segment_headers() -> Case {
    let incarnation = Incarnation { start: 8, counter: 1300 };
    let newer = SegmentHeader { incarnation, ..samples::segment_header() };
    Case {
        name: "segment header",
        older: samples::segment_header().encode(),
        newer: newer.encode(),
        reencode: |bytes| SegmentHeader::decode(bytes).map(|header| header.encode()),
    }
}

/// Headers of several blocks, so that a head and the rest can be of different versions.
fn record_headers() -> Case {
    let mut entries = samples::entries();
    entries.extend([samples::entry(EntryKind::Tombstone, 9, 9, NO_DATA); 150]);
    let older = samples::record(&entries, 20);
    entries[140].block = 10;
    Case {
        name: "record header",
        older,
        newer: samples::record(&entries, 20),
        reencode: |bytes| {
            let (header, entries, checksums) = decode_record(bytes)?;
            let mut out = vec![0; header.header_bytes()];
            encode_record_header(&header, &entries, &checksums, &mut out);
            Ok(out)
        },
    }
}

fn footers() -> Case {
    let mut records = samples::footer_records();
    records[1].entries = vec![samples::entry(EntryKind::Tombstone, 9, 9, NO_DATA); 98];
    let older = samples::encode(&records);
    records[1].sequence = Sequence(951);
    Case {
        name: "footer",
        older,
        newer: samples::encode(&records),
        reencode: |bytes| {
            let (trailer, records) = samples::decode_footer(bytes)?;
            Ok(encode_footer(&trailer, &records))
        },
    }
}

fn image_chunks() -> Case {
    let older: Vec<_> = (0..200).flat_map(|_| samples::regions()).collect();
    let mut newer = older.clone();
    newer[399].heat = 1;
    Case {
        name: "image chunk",
        older: samples::image_chunk(&older),
        newer: samples::image_chunk(&newer),
        reencode: |bytes| {
            let chunk = ImageChunk::decode(bytes)?;
            let regions: Vec<ImageRegion> = chunk.regions().collect::<Result<_, _>>()?;
            let mut writer = ImageChunkWriter::new(chunk.shard, chunk.chunk, bytes.len());
            assert!(regions.iter().all(|region| writer.push(region)));
            Ok(writer.finish())
        },
    }
}

fn witnesses() -> Case {
    let newer = Witness { generation: 43, epoch: 4, ..samples::witness() };
    Case {
        name: "witness",
        older: samples::witness().encode(),
        newer: newer.encode(),
        reencode: |bytes| Witness::decode(bytes).map(|witness| witness.encode()),
    }
}

fn cases() -> [fn() -> Case; 7] {
    [superblocks, roots, segment_headers, record_headers, footers, image_chunks, witnesses]
}

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

/// Puts right checksums into changed bytes, as a writer with a bug would.
fn reseal(name: &str, bytes: &mut [u8]) {
    let start = if name == "footer" { bytes.len() - 4096 } else { 0 };
    let (body, block) = bytes.split_at_mut(start);
    block[16..20].fill(0);
    if name == "footer" {
        block[20..24].copy_from_slice(&checksum(body).to_le_bytes());
    }
    if name == "record header" {
        block[20..24].fill(0);
        let sum = checksum(&block[..80]);
        block[20..24].copy_from_slice(&sum.to_le_bytes());
    }
    let sum = checksum(block);
    block[16..20].copy_from_slice(&sum.to_le_bytes());
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

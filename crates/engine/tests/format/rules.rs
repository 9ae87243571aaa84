//! Geometry, the choice between slots, and rules that single structures have.

use forebay_engine::format::*;
use forebay_engine::ids::*;

use crate::samples;

#[test]
fn segments_grow_with_the_smallest_member() {
    assert_eq!(segment_bytes_for((512 << 20) - 1), None);
    assert_eq!(segment_bytes_for(0), None);
    assert_eq!(segment_bytes_for(512 << 20), Some(1 << 20));
    assert_eq!(segment_bytes_for((1 << 30) - 1), Some(1 << 20));
    assert_eq!(segment_bytes_for(1 << 30), Some(2 << 20));
    assert_eq!(segment_bytes_for(16 << 30), Some(32 << 20));
    assert_eq!(segment_bytes_for(u64::MAX), Some(32 << 20));
}

#[test]
fn a_layout_keeps_its_parts_apart_and_inside_the_member() {
    for segment_bytes in (16..=25).map(|power| 1_u32 << power) {
        for shards in [64, 65_536] {
            for member_bytes in [64 << 20, (1 << 30) + 12_345, 4 << 40] {
                let Some(layout) = Layout::new(member_bytes, segment_bytes, shards) else {
                    assert!(member_bytes == 4 << 40, "{member_bytes} {segment_bytes}");
                    continue;
                };
                let end = layout.root_offset(1) + u64::from(layout.root_bytes);
                assert_eq!(Layout::superblock_offset(1) * 2, layout.root_offset(0));
                assert!(layout.root_offset(1) > layout.root_offset(0));
                assert!(end <= layout.segments_offset);
                let unit = u64::from(segment_bytes).min(1 << 20);
                assert!(layout.segments_offset.is_multiple_of(unit));
                let last = layout.segment_offset(layout.segment_count - 1);
                let left = member_bytes - last;
                assert!((1..2).contains(&(left / u64::from(segment_bytes))));
            }
        }
    }
    assert_eq!(Layout::new(256 << 10, 64 << 10, 64), None);
}

#[test]
fn a_root_slot_holds_one_reference_per_shard_and_no_more_blocks_than_that() {
    assert_eq!(root_bytes_for(64), 4 << 10);
    assert_eq!(root_bytes_for(166), 4 << 10);
    assert_eq!(root_bytes_for(167), 8 << 10);
    assert_eq!(root_bytes_for(65_536), 1540 << 10);
}

/// The row of the decision table in `slots.rs`, from facts alone.
#[test]
fn exactly_one_row_decides_between_two_slots() {
    let base = samples::root();
    let variant = |kind: u8| -> Result<Root, FormatError> {
        let root = |generation| Root { generation, ..base.clone() };
        match kind {
            0 => Err(FormatError::BadChecksum),
            1 => Err(FormatError::FutureVersion { found: 2 }),
            2 => Err(FormatError::UnknownFeatures { bits: 1 }),
            3 => Ok(root(1)),
            4 => Ok(root(2)),
            5 => Ok(Root { open_counter: 99, ..root(2) }),
            _ => Ok(Root { pool: PoolId([9; 16]), ..root(2) }),
        }
    };
    for a in 0..7 {
        for b in 0..7 {
            let newer = [a, b].iter().any(|kind| (1..=2).contains(kind));
            let damaged = (a == 0, b == 0);
            let rows = [
                (newer, 'A'),
                (!newer && damaged == (true, true), 'B'),
                (!newer && damaged == (false, true), 'C'),
                (!newer && damaged == (true, false), 'D'),
                (!newer && damaged == (false, false) && (a == 6) != (b == 6), 'E'),
                (a >= 4 && b == 3 && a != 6, 'F'),
                (b >= 4 && a == 3 && b != 6, 'G'),
                (a >= 3 && a == b, 'H'),
                ((a, b) == (4, 5) || (a, b) == (5, 4), 'I'),
            ];
            let matching: Vec<char> = rows.iter().filter(|row| row.0).map(|row| row.1).collect();
            let choice = Root::choose(&variant(a), &variant(b));
            let row = match choice {
                SlotChoice::Refused(_) => "A",
                SlotChoice::Neither => "B",
                SlotChoice::Slot0 => "CFH",
                SlotChoice::Slot1 => "DG",
                SlotChoice::Conflict => "EI",
            };
            assert_eq!(matching.len(), 1, "{a} {b}: {matching:?}");
            assert!(row.contains(matching[0]), "{a} {b}: {choice:?}, row {matching:?}");
        }
    }
}

/// A device is a spare or a member, whatever a crash has left of the one under the other.
#[test]
fn a_mark_counts_only_where_no_superblock_does() {
    let (mark, superblock) = (samples::spare(), samples::superblock().encode());
    let slot = |block: Vec<u8>| {
        let mut slot = block;
        slot.resize(SUPERBLOCK_BYTES, 0);
        slot
    };
    let marked = slot(mark.encode());
    let newer = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[8] = 2;
        bytes[16..20].fill(0);
        let sum = checksum(&bytes);
        bytes[16..20].copy_from_slice(&sum.to_le_bytes());
        bytes
    };
    let torn = [&superblock[..4096], &marked[4096..]].concat();
    let late = [&marked[..4096], &superblock[4096..]].concat();
    let zeroes = vec![0; SUPERBLOCK_BYTES];
    let neither = Err(FormatError::BadMagic);
    let later = Err(FormatError::FutureVersion { found: 2 });
    let other = slot(Spare { device: samples::device(8), ..mark.clone() }.encode());
    for (first, second, found) in [
        (&marked, &marked, Ok(mark.clone())),
        (&marked, &zeroes, Ok(mark.clone())),
        (&marked, &other, Ok(mark.clone())),
        (&zeroes, &marked, Ok(mark.clone())),
        (&torn, &marked, Ok(mark.clone())),
        (&late, &marked, Ok(mark)),
        (&superblock, &marked, neither.clone()),
        (&marked, &superblock, neither.clone()),
        (&newer(&superblock), &marked, neither.clone()),
        (&zeroes, &zeroes, neither),
        (&marked, &slot(newer(&samples::spare().encode())), later.clone()),
        (&slot(newer(&samples::spare().encode())), &marked, later),
    ] {
        assert_eq!(Spare::choose([first, second]), found);
    }
}

#[test]
fn a_head_is_trusted_without_the_rest_of_its_header() {
    let entries = vec![samples::entry(EntryKind::Tombstone, 1, 1, NO_DATA); 101];
    let mut bytes = samples::record(&entries, 0);
    assert_eq!(bytes.len(), 8192);
    bytes[4096] ^= 1;
    assert_eq!(RecordHeader::peek(&bytes[..4096]).unwrap().header_blocks, 2);
    assert_eq!(decode_record(&bytes), Err(FormatError::BadChecksum));
    assert_eq!(decode_record(&bytes[..4096]), Err(FormatError::Truncated));
}

#[test]
fn a_record_holds_at_most_256_blocks() {
    assert_eq!(header_blocks_for(1, 255), 1);
    assert_eq!(header_blocks_for(100, 0), 1);
    assert_eq!(header_blocks_for(100, 4), 1);
    assert_eq!(header_blocks_for(100, 5), 2);
    let entry = samples::entry(EntryKind::Write, 0, 255, 0);
    let bytes = samples::record(&[entry], 255);
    assert_eq!(decode_record(&bytes).unwrap().0.blocks(), 256);
}

#[test]
#[should_panic(expected = "data outside")]
fn an_entry_outside_its_record_is_not_encoded() {
    samples::record(&[samples::entry(EntryKind::Write, 0, 2, 0)], 1);
}

#[test]
fn a_chunk_is_full_before_its_record() {
    let region = samples::regions().remove(0);
    let mut writer = ImageChunkWriter::new(0, 0, 0, 4096);
    let mut count = 0;
    while writer.push(&region) {
        count += 1;
    }
    assert_eq!(count, (4096 - IMAGE_CHUNK_HEAD_BYTES) / region.encoded_bytes());
    let bytes = writer.finish();
    assert_eq!(bytes.len(), 4096);
    assert_eq!(samples::decode_chunk(&bytes).unwrap(), vec![region; count]);
}

#[test]
fn an_empty_footer_and_an_empty_chunk_round_trip() {
    assert_eq!(samples::decode_footer(&samples::encode(&[])).unwrap().1, vec![]);
    assert_eq!(samples::decode_chunk(&samples::image_chunk(&[])).unwrap(), vec![]);
}

#[test]
fn only_what_is_nearly_a_header_resembles_one() {
    let good = samples::segment_header().encode();
    let changed = |bytes: &[usize]| {
        let mut header = good.clone();
        bytes.iter().for_each(|&at| header[at] ^= 0x81);
        header
    };
    for (bytes, resembles) in
        [(&[0][..], true), (&[100], true), (&[3, 7], true), (&[1, 3, 5], false)]
    {
        let header = changed(bytes);
        assert!(SegmentHeader::decode(&header).is_err());
        assert_eq!(SegmentHeader::is_resembled_by(&header), resembles, "{bytes:?}");
    }
    let others = samples::all().into_iter().filter(|sample| sample.name != "segment_header");
    let others = others.map(|sample| sample.bytes);
    for other in others.chain([vec![0; 4096], vec![0xFF; 4096], vec![], good[..7].to_vec()]) {
        assert!(!SegmentHeader::is_resembled_by(&other));
    }
}

#[test]
fn a_scrub_may_stand_behind_the_last_set_that_a_pool_can_have() {
    let behind_the_last = SEGMENTS_MAX - 1 + 1;
    let superblock = Superblock { scrub_next: behind_the_last + 1, ..samples::superblock() };
    assert_eq!(Superblock::decode(&superblock.encode()).unwrap(), superblock);
}

#[test]
fn overlapping_members_and_reused_volume_numbers_are_refused() {
    let refused = |change: &dyn Fn(&mut Superblock)| {
        let mut superblock = samples::superblock();
        change(&mut superblock);
        assert!(std::panic::catch_unwind(|| superblock.encode()).is_err());
    };
    refused(&|s| s.members[1].segments = Numbers::new(s.members[0].segments.end() - 1, 1));
    let more = |s: &mut Superblock, base, count| {
        let segments = &mut s.members[1].segments;
        *segments = segments.with(NumberRange { base, count }).unwrap();
    };
    refused(&|s| more(s, s.members[0].segments.end() - 1, 1));
    refused(&|s| more(s, s.members[1].segments.end() - 1, 1));
    refused(&|s| more(s, SEGMENTS_MAX - 1, 2));
    refused(&|s| s.next_volume = 5);
    refused(&|s| s.volumes[1].name = s.volumes[0].name.clone());
    refused(&|s| s.device = samples::device(9));
    refused(&|s| s.segments_offset += 4096);
    refused(&|s| s.name = "x".repeat(64));
    refused(&|s| s.scrub_next = SEGMENTS_MAX + 2);
}

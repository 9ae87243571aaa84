//! The footer of a closed segment: all its records' entries once more, in one region that ends at
//! the segment's end, so that recovery reads a few blocks instead of the segment.
//!
//! `body (padded to blocks) | trailer (one block)`

use super::checksum::checksum;
use super::codec::{
    BLOCK, FormatError, begin, check, get_bytes, get_u16, get_u32, get_u64, open, put_bytes,
    put_u16, put_u32, put_u64, seal, structure,
};
use super::entry::{ENTRY_BYTES, Entry, RECORD_BLOCKS_MAX};
use super::geometry::SEGMENTS_MAX;
use super::record::{RecordHeader, SEGMENT_BLOCKS_MAX, decode_entries, header_blocks_for};
use super::segment::Stream;
use crate::ids::{Incarnation, PoolId, SegmentId, Sequence};

pub(super) const MAGIC: &[u8; 8] = b"FBYFOOTR";

structure!(at, "Footer trailer", 96, {
    MAGIC @ 0: 8,
    VERSION @ 8: 4,
    FEATURES @ 12: 4,
    CHECKSUM @ 16: 4,
    BODY_CHECKSUM @ 20: 4,
    POOL @ 24: 16,
    SET @ 40: 4,
    RECORD_COUNT @ 44: 4,
    INCARNATION_START @ 48: 8,
    INCARNATION_COUNTER @ 56: 8,
    FIRST_SEQUENCE @ 64: 8,
    LAST_SEQUENCE @ 72: 8,
    ENTRY_COUNT @ 80: 4,
    BODY_BYTES @ 84: 4,
    END_OFFSET_BLOCKS @ 88: 4,
    STREAM @ 92: 1,
});

structure!(item, "Footer record", 24, {
    SEQUENCE @ 0: 8,
    OFFSET_BLOCKS @ 8: 4,
    DATA_BLOCKS @ 12: 2,
    ENTRY_COUNT @ 14: 2,
    HEADER_BLOCKS @ 16: 1,
});

/// One record, as its segment's footer repeats it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FooterRecord {
    /// Its place in the order of the log.
    pub sequence: Sequence,
    /// Blocks from the segment's start to its header.
    pub offset_blocks: u32,
    /// Blocks of its header.
    pub header_blocks: u8,
    /// Its data blocks.
    pub data_blocks: u16,
    /// Its entries.
    pub entries: Vec<Entry>,
}

impl FooterRecord {
    /// What the footer repeats of a record.
    pub fn new(header: &RecordHeader, entries: Vec<Entry>) -> FooterRecord {
        FooterRecord {
            sequence: header.sequence,
            offset_blocks: header.offset_blocks,
            header_blocks: header.header_blocks,
            data_blocks: header.data_blocks,
            entries,
        }
    }

    /// First block behind it, counted from the segment's start.
    pub fn end_blocks(&self) -> u32 {
        self.offset_blocks + u32::from(self.header_blocks) + u32::from(self.data_blocks)
    }
}

/// The last block of a closed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FooterTrailer {
    /// The pool.
    pub pool: PoolId,
    /// The set's first segment.
    pub set: SegmentId,
    /// The set's life.
    pub incarnation: Incarnation,
    /// What the set collects.
    pub stream: Stream,
    /// Records in the body.
    pub record_count: u32,
    /// Entries in the body, over all records.
    pub entry_count: u32,
    /// Bytes of the body, before it is padded to blocks.
    pub body_bytes: u32,
    /// First unused block behind the last record, counted from the segment's start.
    pub end_offset_blocks: u32,
    /// Sequence of the first record; 0 without records.
    pub first_sequence: Sequence,
    /// Sequence of the last record; 0 without records.
    pub last_sequence: Sequence,
    /// Checksum of the padded body; filled in by [`encode_footer`], which does not read it.
    pub body_checksum: u32,
}

/// Bytes of the body, unpadded.
const fn body_bytes_for(record_count: usize, entry_count: usize) -> usize {
    item::SIZE * record_count + ENTRY_BYTES * entry_count
}

/// Blocks of a footer, trailer included.
pub const fn footer_blocks_for(record_count: usize, entry_count: usize) -> u32 {
    (body_bytes_for(record_count, entry_count).div_ceil(BLOCK) + 1) as u32
}

impl FooterTrailer {
    /// The trailer for these records.
    pub fn new(
        pool: PoolId,
        set: SegmentId,
        incarnation: Incarnation,
        stream: Stream,
        records: &[FooterRecord],
    ) -> FooterTrailer {
        let entry_count: usize = records.iter().map(|record| record.entries.len()).sum();
        FooterTrailer {
            pool,
            set,
            incarnation,
            stream,
            record_count: records.len() as u32,
            entry_count: entry_count as u32,
            body_bytes: body_bytes_for(records.len(), entry_count) as u32,
            end_offset_blocks: records.last().map_or(1, FooterRecord::end_blocks),
            first_sequence: records.first().map_or(Sequence(0), |record| record.sequence),
            last_sequence: records.last().map_or(Sequence(0), |record| record.sequence),
            body_checksum: 0,
        }
    }

    /// Blocks of the padded body, which stands right before the trailer.
    pub fn body_blocks(&self) -> u32 {
        self.body_bytes.div_ceil(BLOCK as u32)
    }

    fn validate(&self) -> Result<(), FormatError> {
        check(self.set.0 < SEGMENTS_MAX, "set")?;
        check(self.record_count < SEGMENT_BLOCKS_MAX, "record_count")?;
        check(self.entry_count >= self.record_count, "entry_count")?;
        let bytes = u64::from(self.record_count) * item::SIZE as u64
            + u64::from(self.entry_count) * ENTRY_BYTES as u64;
        check(u64::from(self.body_bytes) == bytes, "body_bytes")?;
        let end = u64::from(self.end_offset_blocks) + u64::from(self.body_blocks()) + 1;
        let fits = self.end_offset_blocks >= 1 && end <= u64::from(SEGMENT_BLOCKS_MAX);
        check(fits, "end_offset_blocks")?;
        check(self.first_sequence <= self.last_sequence, "last_sequence")
    }

    /// Records come in the order of their places, which is that of their sequences; they do not
    /// overlap and end where the trailer says or before.
    fn validate_records(&self, records: &[FooterRecord]) -> Result<(), FormatError> {
        let (mut end, mut before) = (1, None);
        for record in records {
            check(record.offset_blocks >= end, "record offset_blocks")?;
            check(before.is_none_or(|before| record.sequence > before), "record sequence")?;
            let blocks = header_blocks_for(record.entries.len(), record.data_blocks.into());
            check(usize::from(record.header_blocks) == blocks, "record header_blocks")?;
            check(
                blocks as u32 + u32::from(record.data_blocks) <= RECORD_BLOCKS_MAX,
                "data_blocks",
            )?;
            check(record.offset_blocks < SEGMENT_BLOCKS_MAX, "record offset_blocks")?;
            check(!record.entries.is_empty(), "record entry_count")?;
            (end, before) = (record.end_blocks(), Some(record.sequence));
        }
        check(end <= self.end_offset_blocks, "end_offset_blocks")?;
        let first = records.first().map_or(Sequence(0), |record| record.sequence);
        check(first == self.first_sequence, "first_sequence")?;
        check(before.unwrap_or(Sequence(0)) == self.last_sequence, "last_sequence")
    }
}

/// The bytes of a footer, [`footer_blocks_for`] blocks, to stand at the segment's end.
///
/// # Panics
/// If a field is out of its range or the trailer does not fit the records.
pub fn encode_footer(trailer: &FooterTrailer, records: &[FooterRecord]) -> Vec<u8> {
    if let Err(error) = trailer.validate().and_then(|()| trailer.validate_records(records)) {
        panic!("footer not encodable: {error}: {trailer:?}");
    }
    let entry_count: usize = records.iter().map(|record| record.entries.len()).sum();
    assert_eq!(records.len(), trailer.record_count as usize, "records");
    assert_eq!(entry_count, trailer.entry_count as usize, "entries");
    let mut out = vec![0; footer_blocks_for(records.len(), entry_count) as usize * BLOCK];
    let mut offset = 0;
    for record in records {
        let place = &mut out[offset..];
        put_u64(place, item::SEQUENCE, record.sequence.0);
        put_u32(place, item::OFFSET_BLOCKS, record.offset_blocks);
        put_u16(place, item::DATA_BLOCKS, record.data_blocks);
        put_u16(place, item::ENTRY_COUNT, record.entries.len() as u16);
        place[item::HEADER_BLOCKS] = record.header_blocks;
        offset += item::SIZE;
        for entry in &record.entries {
            assert!(entry.check_data(record.data_blocks).is_ok(), "data outside: {entry:?}");
            entry.encode(&mut out[offset..offset + ENTRY_BYTES]);
            offset += ENTRY_BYTES;
        }
    }
    let last = out.len() - BLOCK;
    let (body, block) = out.split_at_mut(last);
    encode_trailer(trailer, checksum(body), block);
    out
}

fn encode_trailer(trailer: &FooterTrailer, body_checksum: u32, block: &mut [u8]) {
    begin(block, MAGIC);
    put_u32(block, at::BODY_CHECKSUM, body_checksum);
    put_bytes(block, at::POOL, &trailer.pool.0);
    put_u32(block, at::SET, trailer.set.0);
    put_u32(block, at::RECORD_COUNT, trailer.record_count);
    put_u64(block, at::INCARNATION_START, trailer.incarnation.start);
    put_u64(block, at::INCARNATION_COUNTER, trailer.incarnation.counter);
    put_u64(block, at::FIRST_SEQUENCE, trailer.first_sequence.0);
    put_u64(block, at::LAST_SEQUENCE, trailer.last_sequence.0);
    put_u32(block, at::ENTRY_COUNT, trailer.entry_count);
    put_u32(block, at::BODY_BYTES, trailer.body_bytes);
    put_u32(block, at::END_OFFSET_BLOCKS, trailer.end_offset_blocks);
    block[at::STREAM] = trailer.stream.number();
    seal(block);
}

/// Decodes the last block of a segment.
///
/// # Errors
/// If it is not an intact trailer that this code knows: the segment counts as open.
pub fn decode_footer_trailer(last_block: &[u8]) -> Result<FooterTrailer, FormatError> {
    let bytes = last_block.get(..BLOCK).ok_or(FormatError::Truncated)?;
    open(bytes, at::SIZE, MAGIC)?;
    let trailer = FooterTrailer {
        pool: PoolId(get_bytes(bytes, at::POOL)),
        set: SegmentId(get_u32(bytes, at::SET)),
        incarnation: Incarnation {
            start: get_u64(bytes, at::INCARNATION_START),
            counter: get_u64(bytes, at::INCARNATION_COUNTER),
        },
        stream: Stream::decode(bytes[at::STREAM])?,
        record_count: get_u32(bytes, at::RECORD_COUNT),
        entry_count: get_u32(bytes, at::ENTRY_COUNT),
        body_bytes: get_u32(bytes, at::BODY_BYTES),
        end_offset_blocks: get_u32(bytes, at::END_OFFSET_BLOCKS),
        first_sequence: Sequence(get_u64(bytes, at::FIRST_SEQUENCE)),
        last_sequence: Sequence(get_u64(bytes, at::LAST_SEQUENCE)),
        body_checksum: get_u32(bytes, at::BODY_CHECKSUM),
    };
    trailer.validate()?;
    Ok(trailer)
}

/// Decodes the body that the trailer speaks of: the [`FooterTrailer::body_blocks`] before it.
///
/// # Errors
/// If the bytes do not start with that body, intact.
pub fn decode_footer_body(
    trailer: &FooterTrailer,
    body: &[u8],
) -> Result<Vec<FooterRecord>, FormatError> {
    let padded = trailer.body_blocks() as usize * BLOCK;
    let padded_body = body.get(..padded).ok_or(FormatError::Truncated)?;
    if checksum(padded_body) != trailer.body_checksum {
        return Err(FormatError::BadChecksum);
    }
    let mut rest = &padded_body[..trailer.body_bytes as usize];
    let mut records = Vec::with_capacity(trailer.record_count as usize);
    for _ in 0..trailer.record_count {
        let (head, behind) = rest.split_at_checked(item::SIZE).ok_or(FormatError::Truncated)?;
        let entry_bytes = usize::from(get_u16(head, item::ENTRY_COUNT)) * ENTRY_BYTES;
        let (entries, behind) =
            behind.split_at_checked(entry_bytes).ok_or(FormatError::Truncated)?;
        let data_blocks = get_u16(head, item::DATA_BLOCKS);
        records.push(FooterRecord {
            sequence: Sequence(get_u64(head, item::SEQUENCE)),
            offset_blocks: get_u32(head, item::OFFSET_BLOCKS),
            header_blocks: head[item::HEADER_BLOCKS],
            data_blocks,
            entries: decode_entries(entries, data_blocks)?,
        });
        rest = behind;
    }
    check(rest.is_empty(), "entry_count")?;
    trailer.validate_records(&records)?;
    Ok(records)
}

//! The header of a record: head, entries, one checksum per data block, padded to whole blocks;
//! the data blocks follow it.

use super::checksum::checksum_with_holes;
use super::codec::{
    BLOCK, FormatError, begin, check, check_magic, check_sum, check_version, get_bytes, get_u16,
    get_u32, get_u64, prefix, put_bytes, put_u16, put_u32, put_u64, seal, structure,
};
use super::entry::{ENTRY_BYTES, Entry, RECORD_BLOCKS_MAX};
use super::geometry::SEGMENTS_MAX;
use crate::ids::{BLOCK_BYTES, Incarnation, PoolId, SegmentId, Sequence};
use crate::limits::SEGMENT_BYTES_MAX;

pub(super) const MAGIC: &[u8; 8] = b"FBYRECRD";

structure!(at, "Record head", 80, {
    MAGIC @ 0: 8,
    VERSION @ 8: 4,
    FEATURES @ 12: 4,
    CHECKSUM @ 16: 4,
    HEAD_CHECKSUM @ 20: 4,
    POOL @ 24: 16,
    SET @ 40: 4,
    OFFSET_BLOCKS @ 44: 4,
    INCARNATION_START @ 48: 8,
    INCARNATION_COUNTER @ 56: 8,
    SEQUENCE @ 64: 8,
    HEADER_BLOCKS @ 72: 1,
    DATA_BLOCKS @ 74: 2,
    ENTRY_COUNT @ 76: 2,
});

/// Bytes of a record's head; entries follow.
pub const RECORD_HEAD_BYTES: usize = at::SIZE;
/// Blocks of the largest segment.
pub(super) const SEGMENT_BLOCKS_MAX: u32 = (SEGMENT_BYTES_MAX / BLOCK_BYTES) as u32;

/// The head of a record. Says enough to adopt or reject it by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// The pool.
    pub pool: PoolId,
    /// The first segment of the set that it was appended to.
    pub set: SegmentId,
    /// The set's life that it was appended in.
    pub incarnation: Incarnation,
    /// Its own place: blocks from the segment's start.
    pub offset_blocks: u32,
    /// Its place in the order of the log.
    pub sequence: Sequence,
    /// Blocks of the header: always [`header_blocks_for`] the other two.
    pub header_blocks: u8,
    /// Data blocks behind the header.
    pub data_blocks: u16,
    /// Entries in the header.
    pub entry_count: u16,
}

/// Blocks that a header with so many entries and data blocks fills.
pub const fn header_blocks_for(entry_count: usize, data_blocks: usize) -> usize {
    (RECORD_HEAD_BYTES + ENTRY_BYTES * entry_count + 4 * data_blocks).div_ceil(BLOCK)
}

impl RecordHeader {
    /// Blocks of the whole record.
    pub fn blocks(&self) -> u32 {
        u32::from(self.header_blocks) + u32::from(self.data_blocks)
    }

    /// Bytes of the header.
    pub fn header_bytes(&self) -> usize {
        usize::from(self.header_blocks) * BLOCK
    }

    /// Reads the head alone, from the record's first block. It has its own checksum, so its
    /// lengths are to be trusted; entries and data are still unproven.
    ///
    /// # Errors
    /// If the bytes do not start with an intact head that this code knows.
    pub fn peek(first_block: &[u8]) -> Result<RecordHeader, FormatError> {
        check_magic(first_block, at::SIZE, MAGIC)?;
        if get_u32(first_block, at::HEAD_CHECKSUM) != head_checksum(first_block) {
            return Err(FormatError::BadChecksum);
        }
        check_version(first_block, 0)?;
        let header = RecordHeader {
            pool: PoolId(get_bytes(first_block, at::POOL)),
            set: SegmentId(get_u32(first_block, at::SET)),
            incarnation: Incarnation {
                start: get_u64(first_block, at::INCARNATION_START),
                counter: get_u64(first_block, at::INCARNATION_COUNTER),
            },
            offset_blocks: get_u32(first_block, at::OFFSET_BLOCKS),
            sequence: Sequence(get_u64(first_block, at::SEQUENCE)),
            header_blocks: first_block[at::HEADER_BLOCKS],
            data_blocks: get_u16(first_block, at::DATA_BLOCKS),
            entry_count: get_u16(first_block, at::ENTRY_COUNT),
        };
        header.validate()?;
        Ok(header)
    }

    fn validate(&self) -> Result<(), FormatError> {
        check(self.set.0 < SEGMENTS_MAX, "set")?;
        let blocks = header_blocks_for(self.entry_count.into(), self.data_blocks.into());
        check(usize::from(self.header_blocks) == blocks, "header_blocks")?;
        check(self.blocks() <= RECORD_BLOCKS_MAX, "data_blocks")?;
        check(self.entry_count >= 1, "entry_count")?;
        let end = u64::from(self.offset_blocks) + u64::from(self.blocks());
        let fits = self.offset_blocks >= 1 && end <= u64::from(SEGMENT_BLOCKS_MAX);
        check(fits, "offset_blocks")
    }
}

fn head_checksum(bytes: &[u8]) -> u32 {
    checksum_with_holes(&bytes[..at::SIZE], &[prefix::CHECKSUM, at::HEAD_CHECKSUM])
}

/// Writes a record's header. `checksums` are those of the data blocks, in their order.
///
/// # Panics
/// If a field is out of its range, the counts do not match, or `out` is not `header_blocks` long.
pub fn encode_record_header(
    header: &RecordHeader,
    entries: &[Entry],
    checksums: &[u32],
    out: &mut [u8],
) {
    if let Err(error) = header.validate() {
        panic!("record not encodable: {error}: {header:?}");
    }
    assert_eq!(entries.len(), usize::from(header.entry_count), "entries");
    assert_eq!(checksums.len(), usize::from(header.data_blocks), "checksums");
    assert_eq!(out.len(), header.header_bytes(), "bytes of the header");
    out.fill(0);
    begin(out, MAGIC);
    put_bytes(out, at::POOL, &header.pool.0);
    put_u32(out, at::SET, header.set.0);
    put_u32(out, at::OFFSET_BLOCKS, header.offset_blocks);
    put_u64(out, at::INCARNATION_START, header.incarnation.start);
    put_u64(out, at::INCARNATION_COUNTER, header.incarnation.counter);
    put_u64(out, at::SEQUENCE, header.sequence.0);
    out[at::HEADER_BLOCKS] = header.header_blocks;
    put_u16(out, at::DATA_BLOCKS, header.data_blocks);
    put_u16(out, at::ENTRY_COUNT, header.entry_count);
    let mut offset = RECORD_HEAD_BYTES;
    for entry in entries {
        assert!(entry.check_data(header.data_blocks).is_ok(), "data outside: {entry:?}");
        entry.encode(&mut out[offset..offset + ENTRY_BYTES]);
        offset += ENTRY_BYTES;
    }
    for sum in checksums {
        put_u32(out, offset, *sum);
        offset += 4;
    }
    let head = head_checksum(out);
    put_u32(out, at::HEAD_CHECKSUM, head);
    seal(out);
}

/// Decodes a whole header; `header_bytes` holds at least the blocks that [`RecordHeader::peek`]
/// told. Returns the checksums of the data blocks last; comparing them is up to the caller.
///
/// # Errors
/// If the bytes do not start with an intact record header that this code knows.
pub fn decode_record(
    header_bytes: &[u8],
) -> Result<(RecordHeader, Vec<Entry>, Vec<u32>), FormatError> {
    let (header, entries, checksums) = split_header(header_bytes)?;
    let entries = decode_entries(entries, header.data_blocks)?;
    Ok((header, entries, checksums.collect()))
}

/// The same without the entries: for whoever knows what the blocks are and asks whether they are
/// good. Returns the checksums in the order of the data blocks.
///
/// # Errors
/// If the bytes do not start with an intact record header that this code knows.
pub fn decode_checksums(
    header_bytes: &[u8],
) -> Result<(RecordHeader, impl ExactSizeIterator<Item = u32> + '_), FormatError> {
    let (header, _, checksums) = split_header(header_bytes)?;
    Ok((header, checksums))
}

/// Checks a whole header and finds its parts: the head, the bytes of the entries, the checksums.
fn split_header(
    bytes: &[u8],
) -> Result<(RecordHeader, &[u8], impl ExactSizeIterator<Item = u32> + '_), FormatError> {
    let header = RecordHeader::peek(bytes)?;
    let bytes = bytes.get(..header.header_bytes()).ok_or(FormatError::Truncated)?;
    check_sum(bytes)?;
    let entries_end = RECORD_HEAD_BYTES + ENTRY_BYTES * usize::from(header.entry_count);
    let (entries, sums) = bytes.split_at(entries_end);
    let count = header.data_blocks.into();
    let checksums = sums.chunks_exact(4).take(count).map(|sum| get_u32(sum, 0));
    Ok((header, &entries[RECORD_HEAD_BYTES..], checksums))
}

/// Decodes entries that fill `bytes`, of a record with `data_blocks`.
pub(super) fn decode_entries(bytes: &[u8], data_blocks: u16) -> Result<Vec<Entry>, FormatError> {
    bytes
        .chunks_exact(ENTRY_BYTES)
        .map(|bytes| {
            let entry = Entry::decode(bytes)?;
            entry.check_data(data_blocks)?;
            Ok(entry)
        })
        .collect()
}

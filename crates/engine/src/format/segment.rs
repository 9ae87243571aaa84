//! The header of a segment: the first block, written with or before the first record.

use super::codec::{
    BLOCK, FormatError, begin, check, get_bytes, get_u32, get_u64, nearly_has_magic, open,
    put_bytes, put_u32, put_u64, seal, structure,
};
use super::geometry::SEGMENTS_MAX;
use crate::ids::{DeviceId, Incarnation, PoolId, SegmentId};
use crate::limits::MEMBERS_MAX;

pub(super) const MAGIC: &[u8; 8] = b"FBYSEGMT";

structure!(at, "Segment header", 120, {
    MAGIC @ 0: 8,
    VERSION @ 8: 4,
    FEATURES @ 12: 4,
    CHECKSUM @ 16: 4,
    PARTNER_COUNT @ 20: 1,
    STREAM @ 21: 1,
    POOL @ 24: 16,
    DEVICE @ 40: 16,
    SEGMENT @ 56: 4,
    SET @ 60: 4,
    INCARNATION_START @ 64: 8,
    INCARNATION_COUNTER @ 72: 8,
    EPOCH @ 80: 8,
    PARTNERS @ 88: 32,
});

const _: () = assert!(at::PARTNERS + 4 * MEMBERS_MAX <= at::SIZE && at::SIZE <= BLOCK);

/// What a segment set collects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Stream {
    /// Data that only the log holds, on `dirty_copies` members.
    Dirty = 1,
    /// Clean data not yet hit, on `clean_copies` members.
    Probation = 2,
    /// Clean data that was hit, on `clean_copies` members.
    Main = 3,
    /// Entries without data, on all members.
    Facts = 4,
    /// Shard images.
    Metadata = 5,
    /// As [`Dirty`](Self::Dirty), of what was dirty when it was written, while several volumes wrote. Those
    /// who only rewrite their own so have sets of their own, which become free without an origin.
    Rewritten = 6,
    /// As [`Dirty`](Self::Dirty), of what was cached in main or remembered when it was written: main's when it is
    /// clean.
    DirtyMain = 7,
}

impl Stream {
    /// All of them, by number in memory.
    pub const ALL: [Stream; 7] = [
        Stream::Dirty,
        Stream::Probation,
        Stream::Main,
        Stream::Facts,
        Stream::Metadata,
        Stream::Rewritten,
        Stream::DirtyMain,
    ];

    /// Those of what only the log holds.
    pub const DIRTY: [Stream; 3] = [Stream::Dirty, Stream::Rewritten, Stream::DirtyMain];

    /// The stream with this number on members.
    pub fn from_number(number: u8) -> Option<Stream> {
        Some(match number {
            1 => Stream::Dirty,
            2 => Stream::Probation,
            3 => Stream::Main,
            4 => Stream::Facts,
            5 => Stream::Metadata,
            _ => return None,
        })
    }

    /// Its number on members. All that is dirty stands there as one: why it was written where it is
    /// matters to nobody after a start, and the policy learns anew.
    pub fn number(self) -> u8 {
        match self {
            Stream::Rewritten | Stream::DirtyMain => Stream::Dirty as u8,
            other => other as u8,
        }
    }

    /// Whether it collects blocks of volumes.
    pub fn holds_data(self) -> bool {
        !matches!(self, Stream::Facts | Stream::Metadata)
    }

    /// Whether it collects what only the log holds.
    pub fn is_dirty(self) -> bool {
        Stream::DIRTY.contains(&self)
    }

    pub(super) fn decode(number: u8) -> Result<Stream, FormatError> {
        Stream::from_number(number).ok_or(FormatError::Invalid { field: "stream" })
    }
}

/// Says what the segment is in this incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The pool.
    pub pool: PoolId,
    /// The member that it stands on.
    pub device: DeviceId,
    /// The segment that it stands in.
    pub segment: SegmentId,
    /// The set's first segment, which locations name: `partners[0]`.
    pub set: SegmentId,
    /// This life of the set.
    pub incarnation: Incarnation,
    /// What the set collects.
    pub stream: Stream,
    /// The epoch in which it was opened.
    pub epoch: u64,
    /// All segments of the set, this one included, 1..=8, no two alike.
    pub partners: Vec<SegmentId>,
}

impl SegmentHeader {
    /// The bytes of the segment's first block.
    ///
    /// # Panics
    /// If a field is out of its range.
    pub fn encode(&self) -> Vec<u8> {
        if let Err(error) = self.validate() {
            panic!("segment header not encodable: {error}");
        }
        let mut out = vec![0; BLOCK];
        begin(&mut out, MAGIC);
        out[at::PARTNER_COUNT] = self.partners.len() as u8;
        out[at::STREAM] = self.stream.number();
        put_bytes(&mut out, at::POOL, &self.pool.0);
        put_bytes(&mut out, at::DEVICE, &self.device.0);
        put_u32(&mut out, at::SEGMENT, self.segment.0);
        put_u32(&mut out, at::SET, self.set.0);
        put_u64(&mut out, at::INCARNATION_START, self.incarnation.start);
        put_u64(&mut out, at::INCARNATION_COUNTER, self.incarnation.counter);
        put_u64(&mut out, at::EPOCH, self.epoch);
        for (index, partner) in self.partners.iter().enumerate() {
            put_u32(&mut out, at::PARTNERS + 4 * index, partner.0);
        }
        seal(&mut out);
        out
    }

    /// Decodes the first block of a segment.
    ///
    /// # Errors
    /// If the bytes are not an intact segment header that this code knows.
    pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, FormatError> {
        let bytes = bytes.get(..BLOCK).ok_or(FormatError::Truncated)?;
        open(bytes, at::SIZE, MAGIC)?;
        let count = usize::from(bytes[at::PARTNER_COUNT]);
        check((1..=MEMBERS_MAX).contains(&count), "partner_count")?;
        let header = SegmentHeader {
            pool: PoolId(get_bytes(bytes, at::POOL)),
            device: DeviceId(get_bytes(bytes, at::DEVICE)),
            segment: SegmentId(get_u32(bytes, at::SEGMENT)),
            set: SegmentId(get_u32(bytes, at::SET)),
            incarnation: Incarnation {
                start: get_u64(bytes, at::INCARNATION_START),
                counter: get_u64(bytes, at::INCARNATION_COUNTER),
            },
            stream: Stream::decode(bytes[at::STREAM])?,
            epoch: get_u64(bytes, at::EPOCH),
            partners: (0..count)
                .map(|index| SegmentId(get_u32(bytes, at::PARTNERS + 4 * index)))
                .collect(),
        };
        header.validate()?;
        Ok(header)
    }

    /// Whether bytes that cannot be decoded look like a damaged header, and not like something else or nothing.
    pub fn is_resembled_by(bytes: &[u8]) -> bool {
        nearly_has_magic(bytes, MAGIC)
    }

    fn validate(&self) -> Result<(), FormatError> {
        check((1..=MEMBERS_MAX).contains(&self.partners.len()), "partner_count")?;
        check(self.set == self.partners[0], "set")?;
        check(self.partners.contains(&self.segment), "segment")?;
        for (index, partner) in self.partners.iter().enumerate() {
            check(partner.0 < SEGMENTS_MAX, "partners")?;
            check(!self.partners[..index].contains(partner), "partners")?;
        }
        Ok(())
    }
}

//! Where things stand on a member.

use super::claim::CLAIM_BYTES;
use super::root;
use super::superblock::SUPERBLOCK_BYTES;
use crate::ids::BLOCK_BYTES;
use crate::limits::{
    SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_PER_MEMBER_MIN, SHARDS_MAX, SHARDS_MIN,
};

/// Segments of a pool, over all members that it ever had at once: with the largest segments this
/// is the 256 TiB that a location can name, with 1 MiB segments 8 TiB. A member that does not fit
/// is refused when it is added.
pub const SEGMENTS_MAX: u32 = 1 << 23;
/// Smallest segment that the product chooses, in bytes.
const SEGMENT_BYTES_CHOSEN_MIN: u64 = 1 << 20;

const _: () = assert!(
    SEGMENTS_MAX as u64 * (SEGMENT_BYTES_MAX / BLOCK_BYTES) == 1 << crate::ids::LOCATION_BITS
);

/// Geometry of one member, computed from its size; the superblock holds what must not change.
///
/// `superblock slot 0 | slot 1 | root slot A | root slot B | gap | segments | rest`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Bytes of one root slot, a multiple of 4 KiB.
    pub root_bytes: u32,
    /// Byte offset of the first segment.
    pub segments_offset: u64,
    /// Segments on the member; what is left behind them is unused.
    pub segment_count: u32,
}

impl Layout {
    /// The layout of a member of `member_bytes`; `None` if not one segment fits, or more than a
    /// pool can have.
    ///
    /// # Panics
    /// If `segment_bytes` is not a power of two from 64 KiB to 32 MiB or `shard_count` is out of
    /// range.
    pub fn new(member_bytes: u64, segment_bytes: u32, shard_count: u32) -> Option<Layout> {
        assert!(segment_bytes_valid(segment_bytes), "segment of {segment_bytes} bytes");
        let root_bytes = root_bytes_for(shard_count);
        let segments_offset = segments_offset_for(segment_bytes, root_bytes);
        let count = member_bytes.checked_sub(segments_offset)? / u64::from(segment_bytes);
        let segment_count = u32::try_from(count).ok().filter(|&n| n > 0 && n <= SEGMENTS_MAX)?;
        Some(Layout { segment_bytes, root_bytes, segments_offset, segment_count })
    }

    /// Byte offset of superblock slot 0 or 1.
    pub fn superblock_offset(slot: usize) -> u64 {
        assert!(slot < 2);
        (slot * SUPERBLOCK_BYTES) as u64
    }

    /// Byte offset of root slot 0 (A) or 1 (B).
    pub fn root_offset(&self, slot: usize) -> u64 {
        assert!(slot < 2);
        2 * SUPERBLOCK_BYTES as u64 + slot as u64 * u64::from(self.root_bytes)
    }

    /// Byte offset of the member's segment `index`, counted from 0 on this member.
    pub fn segment_offset(&self, index: u32) -> u64 {
        assert!(index < self.segment_count);
        self.segments_offset + u64::from(index) * u64::from(self.segment_bytes)
    }

    /// Blocks of a segment, header and footer included.
    pub fn segment_blocks(&self) -> u32 {
        self.segment_bytes / BLOCK_BYTES as u32
    }
}

/// The smallest device that a pool is made on, in bytes: one of smaller segments would wear it for nothing.
pub const MEMBER_BYTES_MIN: u64 = SEGMENTS_PER_MEMBER_MIN * SEGMENT_BYTES_CHOSEN_MIN;

/// The segment size of a pool whose smallest member has `smallest_member_bytes`: the largest power
/// of two up to 32 MiB that such a member holds 512 times (before the one or two that superblocks
/// and roots cost); `None` below [`MEMBER_BYTES_MIN`].
pub fn segment_bytes_for(smallest_member_bytes: u64) -> Option<u64> {
    let share = smallest_member_bytes / SEGMENTS_PER_MEMBER_MIN;
    let power = 1 << share.checked_ilog2()?;
    (power >= SEGMENT_BYTES_CHOSEN_MIN).then(|| power.min(SEGMENT_BYTES_MAX))
}

/// Bytes of a root slot of a pool with so many shards.
pub fn root_bytes_for(shard_count: u32) -> u32 {
    assert!((SHARDS_MIN..=SHARDS_MAX).contains(&shard_count), "{shard_count} shards");
    let used = root::used_bytes(shard_count as usize);
    used.next_multiple_of(BLOCK_BYTES as usize) as u32
}

/// The most shards up to `shards` that leave room for claims behind the roots: a few numbers do not.
pub(crate) fn shards_with_claims(shards: u32, segment_bytes: u32) -> u32 {
    let has_room = |&shards: &u32| {
        let root_bytes = root_bytes_for(shards);
        let used = 2 * (SUPERBLOCK_BYTES as u64 + u64::from(root_bytes));
        segments_offset_for(segment_bytes, root_bytes) >= used + 2 * CLAIM_BYTES as u64
    };
    (SHARDS_MIN..=shards).rev().find(has_room).unwrap_or(shards)
}

/// Byte offset of the first segment: behind the roots, at a multiple of 1 MiB or of a smaller
/// segment, so that segments fall on the SSD's own boundaries.
pub(super) fn segments_offset_for(segment_bytes: u32, root_bytes: u32) -> u64 {
    let used = 2 * SUPERBLOCK_BYTES as u64 + 2 * u64::from(root_bytes);
    used.next_multiple_of(u64::from(segment_bytes).min(1 << 20))
}

pub(super) fn segment_bytes_valid(segment_bytes: u32) -> bool {
    segment_bytes.is_power_of_two()
        && (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&u64::from(segment_bytes))
}

//! The names of things: pools, devices, volumes, segments, records, blocks.

use std::fmt;

/// Unit of mapping, in bytes. Every structure on a cache device is a multiple of it.
pub const BLOCK_BYTES: u64 = 4096;
/// Smallest unit of a client's request, in bytes.
pub const SECTOR_BYTES: u64 = 512;
/// Sectors in a block; a block's sector mask has one bit for each.
pub const SECTORS_PER_BLOCK: u32 = (BLOCK_BYTES / SECTOR_BYTES) as u32;
/// Mask of a block all of whose sectors are present.
pub const SECTORS_ALL: u8 = 0xFF;

/// Identity of a pool, random, for ever.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PoolId(pub [u8; 16]);

/// Identity of a member, random, for ever.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DeviceId(pub [u8; 16]);

fn hex(bytes: &[u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

/// A volume of a pool. Counted from 1 and never reused; 0 stands for "no volume".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VolumeId(pub u32);

/// A segment, numbered across the pool; [`Numbers`](crate::format::Numbers) says where on which member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SegmentId(pub u32);

/// Place of an append in the order of the log. One sequence for the whole pool; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sequence(pub u64);

/// One life of a segment set, from open to discard; larger is later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Incarnation {
    /// The pool's start number when the set was opened.
    pub start: u64,
    /// Counts the sets opened since the pool was created.
    pub counter: u64,
}

/// A block of the log: the number of the set's first segment times the blocks in a segment, plus
/// the block's place within the segment. 36 bits: 256 TiB of cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Location(pub u64);

/// Bits of a [`Location`] that an extent can hold.
pub const LOCATION_BITS: u32 = 36;

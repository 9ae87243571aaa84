//! The index: which blocks the log holds, where, and in which state.
//!
//! A [`Shard`] holds the extents of one virtual shard. It belongs to one reactor, so it has no
//! locks and no interior mutability, and it knows neither devices nor time.
//!
//! Rules that hold between calls:
//! - An extent lies in one 1 MiB region; the extents of a region are sorted and disjoint.
//! - Neighbours that continue each other (same state, next location, next distance, neither
//!   partial) are one extent: the index has one form for one content.
//! - A partial extent is one block long, and exactly the partial extents have a sector mask in
//!   the side table.
//! - Block `i` of an extent is at `location + i` with `distance + i`, except for [`State::Zero`]
//!   and [`State::ZeroWritten`]: their location names the record of their fact, so it is the same
//!   for every block.
//! - Heat is kept for granules in which something is mapped; any other granule's heat is 0.
//! - What is clean is cold until it is asked for ([`Shard::cold`]). That cuts no run in two, and costs no memory.
//!
//! # Layout, and what it costs
//!
//! A shard is a directory of leaves of at most 8 KiB; a leaf holds neighbouring regions of one
//! volume with their bodies, in one allocation (`leaf`); a body is a list of extents or dense,
//! whichever is shorter (`body`). A region costs 7 bytes in its leaf, then two bits of heat for
//! each granule in which something is mapped, then the body. A leaf costs 40 bytes in the
//! directory (and its slack of 1/16), and on average 32 bytes of slack.
//!
//! | content | bytes per region | per GiB of content, measured | bound |
//! |---|---|---|---|
//! | 64 KiB extents | 7 + 4 + 16 x 8 = 139 | 140 KiB | 400 KiB |
//! | 4 KiB extents, half full | 7 + 4 + 40 + 128 x (3 + 36 + 8) / 8 = 803 | 1,624 KiB | 1,638 KiB |
//! | the same, 1 TiB, 32 in a record | 7 + 4 + 40 + 128 x (3 + 28 + 6) / 8 = 643 | 1,301 KiB | |
//! | 1 to 3 extents of 4 KiB | 7 + 1 + 2 x 8 = 24 | 3,146 KiB | 4,608 KiB |
//! | 1 extent of 4 KiB | 7 + 1 + 8 = 16 | 4,231 KiB | 4,608 KiB |
//!
//! (`cargo test -p forebay-engine --test index_memory -- --nocapture`.) The distance is kept for
//! every block: 8 bits at the most, fewer when records are short. Dense entries are as narrow as
//! the widest one of the region needs, so only a pool of 256 TiB comes near the bound. A hash
//! table of regions was rejected: the elevator needs the next region by address, and references
//! to bodies with size classes cost more than sorted leaves.
//!
//! A change of a list unpacks it to the stack and packs it again. A dense body is changed without that, as long as what is new
//! is no wider than its entries: in place where the same blocks stay mapped, that is for overwrites, moves and facts;
//! else the bits of what goes are cut out and those of what comes put in.

mod body;
mod leaf;
mod masks;
mod region;
mod shard;
mod table;
#[cfg(test)]
mod tests;

use crate::format::State;
use crate::ids::{BLOCK_BYTES, Location, VolumeId};
use crate::limits::{REGION_BLOCKS, STRIPE_BYTES};

pub use shard::{LoadError, Shard};

/// Blocks of one granule of hotness: 64 KiB.
pub const GRANULE_BLOCKS: u32 = 16;
/// Highest heat of a granule: two bits.
pub const HEAT_MAX: u8 = 3;
/// Bytes that a region can add to a shard, without the directory and the side table: the longest body and its
/// entry in a leaf, and the slack of that leaf and of the one that is split off it.
pub const REGION_GROWTH_MAX: usize = 2048;
const _: () = assert!(body::BODY_BYTES_MAX + leaf::OVERHEAD_MAX <= REGION_GROWTH_MAX);

/// Blocks of an address space that the index can name: 2^32 regions, 4 PiB.
pub const BLOCKS_MAX: u64 = REGION_BLOCKS << 32;

/// A run of mapped blocks inside one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First block, counted from the start of the volume.
    pub block: u64,
    /// Number of blocks, at least 1.
    pub count: u32,
    /// State of all of them.
    pub state: State,
    /// Where the data of the first block is; without data, the record of the fact that said so.
    pub location: Location,
    /// Blocks from there back to the header of the record.
    pub distance: u8,
    /// Which sectors are present: all, unless it is a partial block (then `count` is 1).
    pub sectors: u8,
}

impl Mapping {
    /// `count` of its blocks, `at` behind its first; of one with data.
    pub(crate) fn part(&self, at: u32, count: u32) -> Mapping {
        debug_assert!(at + count <= self.count);
        Mapping {
            block: self.block + u64::from(at),
            count,
            location: Location(self.location.0 + u64::from(at)),
            // A record has at most 255 blocks.
            distance: self.distance.wrapping_add(at as u8),
            ..*self
        }
    }
}

/// The virtual shard of a block, below `shard_count`. Part of the disk format: the images of a
/// pool's shards are read back by the shard that this function names, so it never changes.
///
/// `stripe` is the block's 4 MiB-aligned address / 4 MiB; `x = stripe + (volume + 1) *
/// 0x9E3779B97F4A7C15` modulo 2^64 goes through the finaliser of SplitMix64 (Steele, Lea, Flood,
/// OOPSLA 2014), and the upper 32 bits of the result are scaled to `shard_count`.
pub fn shard_of(volume: VolumeId, block: u64, shard_count: u32) -> u32 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let stripe = block / (STRIPE_BYTES / BLOCK_BYTES);
    let mut x = stripe.wrapping_add((u64::from(volume.0) + 1).wrapping_mul(GOLDEN));
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^= x >> 31;
    (((x >> 32) * u64::from(shard_count)) >> 32) as u32
}

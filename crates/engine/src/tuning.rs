//! What may be set when a pool is opened and is not part of its identity.

use forebay_device::Nanos;
use forebay_device::runtime::{MILLISECOND, SECOND};

use crate::limits::{HURT_RECORDS_MAX, SPACE_SEGMENTS_MIN};

/// Rates and delays of the engine's background work. The defaults are for real devices; the
/// simulator makes them small so that everything happens within a short run.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Longest time that an append stays volatile although nobody asks for a flush.
    pub flush_interval: Nanos,
    /// Bytes appended after which the members are flushed although nobody asks.
    pub flush_bytes: u64,
    /// Time without client requests after which a volume counts as idle and is destaged.
    pub idle_after: Nanos,
    /// Longest time that destaged blocks wait for an origin flush.
    pub origin_flush_interval: Nanos,
    /// Bytes destaged after which the origin is flushed.
    pub origin_flush_bytes: u64,
    /// Origin writes that the elevator keeps in flight at the most; it looks for the depth, up to this,
    /// at which the origin takes most.
    pub destage_depth: usize,
    /// Runs from so many blocks on are read from the cache to where the origin write needs them, and their
    /// records' headers apart: one more read of 4 KiB for each, which spares a copy.
    pub destage_in_place_blocks: u32,
    /// A stripe of an array with parity is written as a whole once its dirty pieces would cost the array's disks
    /// so many percent of the accesses that the whole costs.
    pub destage_whole_percent: u64,
    /// Stripes that one such write is of at the most while nobody reads the origin. Beside readers it may be of as many
    /// as the controller of their latency finds.
    pub destage_stripes_together: u64,
    /// Percent of the segments that may hold owed data before writers are slowed down.
    pub owed_segments_percent: u32,
    /// Percent of the pool appended after which a checkpoint lap is started.
    pub lap_percent: u64,
    /// Bytes of a stream after which what follows is not cached; 0 caches all.
    pub sequential_cutoff_bytes: u64,
    /// Fewest segments of a reservation or a limit.
    pub space_segments_min: u32,
    /// Records that readers have found damaged, and that wait one by one to be copied again; of further ones
    /// the whole set is looked through.
    pub hurt_records_max: usize,
    /// Sets whose headers are written or erased together, at least 1: one flush serves them all, and the headers, one write each, fit the
    /// queue of any device.
    pub headers_together: usize,
    /// Bound of the index, if it is less than the pool's own: small pools never come near that.
    pub index_memory_most: u64,
    /// Whether destaging starts by itself when a volume is idle.
    pub destage_when_idle: bool,
    /// Time for which nothing must have been logged of a volume that owes nothing until it is noted durably that it is clean,
    /// and up to a fifth more.
    pub clean_noted_after: Nanos,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            flush_interval: SECOND,
            flush_bytes: 64 << 20,
            idle_after: 200 * MILLISECOND,
            origin_flush_interval: 10 * SECOND,
            origin_flush_bytes: 256 << 20,
            destage_depth: 512,
            // 128 KiB, of which a copy takes 12 us, and a read 3 to 4.
            destage_in_place_blocks: 32,
            // Accesses to a whole stripe move a chunk each, and the pieces' are short.
            destage_whole_percent: 200,
            // Many single ones under way keep the disks busy.
            destage_stripes_together: 1,
            owed_segments_percent: 60,
            lap_percent: 4,
            sequential_cutoff_bytes: 1 << 20,
            space_segments_min: SPACE_SEGMENTS_MIN,
            hurt_records_max: HURT_RECORDS_MAX,
            headers_together: 64,
            index_memory_most: u64::MAX,
            destage_when_idle: true,
            clean_noted_after: 300 * SECOND,
        }
    }
}

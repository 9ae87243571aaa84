//! Data sheets of disks.
//!
//! The sheets of the two disks below were not at hand when this was written: what is called their
//! data is from memory and to be checked. The figures from the two SAS manuals were read there.

use crate::runtime::{Nanos, SECOND};

/// What makes one disk differ from another.
#[derive(Clone, Debug, PartialEq)]
pub struct HddParameters {
    /// The model's name, for display.
    pub name: &'static str,
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// Revolutions per minute.
    pub rpm: u32,
    /// Recording surfaces.
    pub heads: u32,
    /// Read seek to the next cylinder, or to another head of the same one.
    pub seek_track_ns: Nanos,
    /// Read seek over a third of the cylinders, which is the mean of random seeks.
    pub seek_average_ns: Nanos,
    /// Read seek over all cylinders.
    pub seek_full_ns: Nanos,
    /// What a write seek takes longer: heads must settle better before they write.
    pub write_settle_ns: Nanos,
    /// Sustained rate at the outer edge.
    pub rate_outer_bytes_per_s: u64,
    /// Sustained rate at the inner edge.
    pub rate_inner_bytes_per_s: u64,
    /// Rate of the interface, for what is served from memory.
    pub interface_bytes_per_s: u64,
    /// Time from a command's arrival until the disk can act on it. Overlaps with other work.
    pub command_overhead_ns: Nanos,
    /// Commands that the disk sees at once; more wait in the host.
    pub queue_depth_max: usize,
    /// A queued command older than this goes first whatever its place.
    pub age_limit_ns: Nanos,
    /// How much later than the end of its seek the firmware plans to arrive: a sector missed for
    /// a slow settle costs a whole turn.
    pub margin_ns: Nanos,
    /// Volatile write cache, 0 if turned off.
    pub write_cache_bytes: u64,
    /// How far an idle head reads on behind a read, 0 if turned off.
    pub read_ahead_bytes: u64,
}

impl HddParameters {
    /// Seagate Constellation ES.1 500 GB SAS, ST500NM0001.
    ///
    /// Data sheet: 7200 rpm, mean latency 4.16 ms, 150 MB/s sustained at the outer edge, 64 MB of
    /// cache, 6 Gb/s, mean seek 8.5 ms reading and 9.5 ms writing. One 500 GB disc, two heads.
    /// Not in the data sheet: track-to-track and full stroke are those of the Constellation SAS
    /// manual, rev. E (0.5 ms and 17.35 ms, 2.5-inch sister model); the inner rate is the 47 % of
    /// the outer one that the Constellation ES.3 SAS manual, rev. C, states (83 of 175 MB/s).
    pub fn st500nm0001() -> Self {
        Self {
            name: "ST500NM0001",
            size_bytes: 500_107_862_016,
            heads: 2,
            rate_outer_bytes_per_s: 150_000_000,
            rate_inner_bytes_per_s: 71_000_000,
            interface_bytes_per_s: 600_000_000,
            // The cache memory is 64 MB; firmware gives about half of it to writes.
            write_cache_bytes: 32 << 20,
            ..Self::enterprise_7200("")
        }
    }

    /// Seagate IronWolf Pro 6 TB SATA, ST6000NE0023.
    ///
    /// Data sheet: 7200 rpm, mean latency 4.16 ms, 214 MB/s sustained at the outer edge, 256 MB
    /// of cache, 6 Gb/s. Not in the data sheet: ten heads (five discs, as the Enterprise Capacity
    /// v5 that it derives from), seeks as above, the inner rate by the same 47 %.
    pub fn st6000ne0023() -> Self {
        Self {
            name: "ST6000NE0023",
            size_bytes: 6_001_175_126_016,
            heads: 10,
            rate_outer_bytes_per_s: 214_000_000,
            rate_inner_bytes_per_s: 101_000_000,
            interface_bytes_per_s: 550_000_000,
            write_cache_bytes: 128 << 20,
            ..Self::enterprise_7200("")
        }
    }

    /// What the 7200 rpm disks above have in common.
    fn enterprise_7200(name: &'static str) -> Self {
        Self {
            name,
            size_bytes: 0,
            rpm: 7200,
            heads: 1,
            seek_track_ns: 500_000,
            seek_average_ns: 8_500_000,
            seek_full_ns: 17_350_000,
            write_settle_ns: 1_000_000,
            rate_outer_bytes_per_s: 0,
            rate_inner_bytes_per_s: 0,
            interface_bytes_per_s: 0,
            // The Constellation manual's access times with and without the controller differ by
            // 0.2 ms.
            command_overhead_ns: 200_000,
            queue_depth_max: 32,
            age_limit_ns: SECOND,
            // No data sheet has it: fitted, one value for all disks, to the three random read rows
            // of examples/array_figures.rs at depth 128, so those rows do not validate it. Two of
            // them rest on a span that their source does not state.
            margin_ns: 600_000,
            write_cache_bytes: 0,
            read_ahead_bytes: 1 << 20,
        }
    }

    /// The same disk with the write cache turned off, as arrays run theirs.
    pub fn without_write_cache(self) -> Self {
        Self { write_cache_bytes: 0, ..self }
    }

    pub(super) fn revolution_ns(&self) -> Nanos {
        60 * SECOND / u64::from(self.rpm)
    }
}

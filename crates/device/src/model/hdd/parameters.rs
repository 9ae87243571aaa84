//! Parameters of disks. docs/internals/models.md has a line for each: read where, or assumed why.
//!
//! The performance pages of the two disks' own sheets could not be had. "Read" below means read in
//! the manual named, of a sister or a peer; "from memory" means what it says.

use crate::runtime::{Nanos, SECOND};

/// Times to move the heads, without the controller's overhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeekTimes {
    /// To the next cylinder, or to another head of the same one.
    pub track_ns: Nanos,
    /// Over a third of the cylinders, which is the mean of random seeks.
    pub average_ns: Nanos,
    /// Over all cylinders.
    pub full_ns: Nanos,
}

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
    /// Before a read.
    pub read_seek: SeekTimes,
    /// Before a write: heads must settle better before they write.
    pub write_seek: SeekTimes,
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
    /// Seagate Constellation ES.1 500 GB SAS, ST500NM0001 (manual 100650925, 2011).
    ///
    /// Read: 60 to 150 MB/s sustained, of the 500 GB Constellation ES SAS before it (ST3500414SS);
    /// 30,000 kB of the 64 MB of memory usable as cache, of the Constellation ES.2 SAS of the same
    /// year (100628615). From memory: one disc of 500 GB with two heads, 64 MB.
    pub fn st500nm0001() -> Self {
        Self {
            name: "ST500NM0001",
            size_bytes: 500_107_862_016,
            heads: 2,
            rate_outer_bytes_per_s: 150_000_000,
            rate_inner_bytes_per_s: 60_000_000,
            interface_bytes_per_s: 600_000_000,
            write_cache_bytes: 30_000_000 / 4096 * 4096,
            ..Self::enterprise_7200("")
        }
    }

    /// Seagate IronWolf Pro 6 TB SATA, ST6000NE0023 (2017).
    ///
    /// From memory: 214 MB/s sustained at the outer edge, 256 MB of memory, five discs with ten
    /// heads. The inner rate is the 47 % of the outer one read in the Constellation ES.3 manual
    /// (83 of 175 MB/s); that half of the memory holds writes is read of 64 MB (see above).
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
            // Means of 8.5 and 9.5 ms: read in Hitachi's 7K1000.C manual, and from memory those of the
            // ES.1. Single track 0.5 and 0.7 ms, full stroke 17.35 ms: read in the Constellation SAS
            // manual (rev. E), a 2.5-inch sister; that a write takes 0.2 ms longer over a
            // track and 1 ms longer over the rest stands in Constellation.2's (rev. H), too.
            read_seek: SeekTimes { track_ns: 500_000, average_ns: 8_500_000, full_ns: 17_350_000 },
            write_seek: SeekTimes { track_ns: 700_000, average_ns: 9_500_000, full_ns: 18_350_000 },
            rate_outer_bytes_per_s: 0,
            rate_inner_bytes_per_s: 0,
            interface_bytes_per_s: 0,
            // The Constellation manuals' access times with and without the controller differ by it.
            command_overhead_ns: 200_000,
            queue_depth_max: 32,
            age_limit_ns: SECOND,
            // In no manual: chosen once, for both disks, so that the random reads that QSAN and
            // Synology published lie on both sides of the model. `forebay-bench arrays` shows what
            // another value does.
            margin_ns: 600_000,
            write_cache_bytes: 0,
            read_ahead_bytes: 1 << 20,
        }
    }

    /// The same disk with the write cache turned off, as many arrays run theirs.
    pub fn without_write_cache(self) -> Self {
        Self { write_cache_bytes: 0, ..self }
    }

    pub(super) fn revolution_ns(&self) -> Nanos {
        60 * SECOND / u64::from(self.rpm)
    }
}

//! What is written to the cache devices of a pool, and what may be.

use serde::{Deserialize, Serialize};

/// How a pool does with its write budget. What is left out stays on the origin alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteBudget {
    /// Bytes that may be written to all cache devices a day.
    pub bytes_per_day: u64,
    /// Bytes that can be written now; below zero, how far it is behind.
    pub left_bytes: i64,
    /// Of what is missed for the first time, thousandths that are left out now.
    pub new_left_out_permille: u16,
    /// Of what is missed and left the cache of late.
    pub known_left_out_permille: u16,
    /// Of what would be written back over nothing cached.
    pub dirty_left_out_permille: u16,
}

/// Bytes that were written to the cache devices since the pool was opened, all copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Data that clients wrote.
    pub write_bytes: u64,
    /// Data that reads brought in.
    pub populate_bytes: u64,
    /// Data that reclaim kept by writing it again.
    pub move_bytes: u64,
    /// Headers of records and segments, footers.
    pub header_bytes: u64,
    /// What is noted of data: that an origin has it, for one.
    pub fact_bytes: u64,
    /// Images of the index, and roots.
    pub checkpoint_bytes: u64,
}

impl Written {
    /// Bytes in all.
    pub fn all_bytes(&self) -> u64 {
        self.admitted_bytes()
            + self.move_bytes
            + self.header_bytes
            + self.fact_bytes
            + self.checkpoint_bytes
    }

    /// Bytes of data that came into the cache.
    pub fn admitted_bytes(&self) -> u64 {
        self.write_bytes + self.populate_bytes
    }

    /// Bytes in all for each byte that came into the cache, in percent; `None` before the first one.
    pub fn amplification_percent(&self) -> Option<u64> {
        let percent = u128::from(self.all_bytes()) * 100;
        let percent = percent.checked_div(self.admitted_bytes().into())?;
        Some(percent.min(u64::MAX.into()) as u64)
    }
}

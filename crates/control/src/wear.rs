//! What may be written to the cache devices of a pool.

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

//! Bodies about the cache devices of a pool.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `POST /api/v1/pools/{pool}/devices/add`: add a cache device to a pool in use; whatever is on it is
/// erased.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddDevice {
    /// The cache device; an absolute path.
    pub ssd: PathBuf,
}

/// `POST /api/v1/pools/{pool}/devices/remove`: take a cache device out of a pool in use. What it holds
/// goes to the others in the [`Job`](crate::api::Job) that is the answer; it can be cancelled until the end.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveDevice {
    /// Its path as the pool shows it, or its identity.
    pub device: String,
}

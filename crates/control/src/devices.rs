//! Bodies about the cache devices of a pool.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::api::Health;

/// `POST /api/v1/pools/{pool}/devices/add`: add a cache device to a pool in use; whatever is on it is
/// erased.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddDevice {
    /// The cache device; an absolute path.
    pub ssd: PathBuf,
}

/// `POST /api/v1/pools/{pool}/devices/grow`: have a pool in use take all of a cache device that has become
/// larger.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrowDevice {
    /// Its path as the pool shows it, or its identity.
    pub device: String,
}

/// `POST /api/v1/pools/{pool}/devices/spare`: give a pool in use a device that it takes by itself when it loses
/// a cache device; whatever is on it is erased.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddSpare {
    /// The device; an absolute path.
    pub ssd: PathBuf,
}

/// How a cache device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// It is there.
    Present,
    /// It is there and being taken out: what it holds goes to the others.
    Flushing,
    /// It belongs to the pool and is not there.
    Missing,
    /// The pool has gone on without it.
    Lost,
}

impl MemberState {
    /// Whether the device is there and belongs to the pool.
    pub fn is_there(self) -> bool {
        matches!(self, MemberState::Present | MemberState::Flushing)
    }
}

/// One spare of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spare {
    /// Its identity; as a cache device it gets another one.
    pub id: String,
    /// Where it is, or was last.
    pub path: PathBuf,
    /// How it is.
    pub state: SpareState,
    /// Why it is not ready; empty if it is.
    pub reason: String,
    /// Its size; `null` while nobody knows.
    pub size_bytes: Option<u64>,
    /// What it says of itself; `null` if it was not asked.
    #[serde(default)]
    pub health: Option<Health>,
}

/// How a spare is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpareState {
    /// It is there, and is taken when a cache device is lost.
    Ready,
    /// It is not there, or cannot be used at present; it is looked for.
    Missing,
    /// It has failed when it was to be taken, and is not tried again before the next start.
    Failed,
}

/// `POST /api/v1/pools/{pool}/devices/remove`: take a cache device out of a pool in use. What it holds
/// goes to the others in the [`Job`](crate::api::Job) that is the answer; it can be cancelled until the end. A
/// spare holds nothing, and its job ends at once.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveDevice {
    /// Its path as the pool shows it, or its identity.
    pub device: String,
}

/// `POST /api/v1/pools/{pool}/devices/replace`: a cache device takes the place of another one, which may be
/// gone; whatever is on it is erased. What the old one holds goes to it and to the others in the
/// [`Job`](crate::api::Job) that is the answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplaceDevice {
    /// The old one: its path as the pool shows it, the path that it last had, or its identity.
    pub old: String,
    /// The new one; an absolute path.
    pub new: PathBuf,
}

/// `POST /api/v1/pools/{pool}/devices/can-i-pull`: whether a cache device can be pulled now. Nothing is changed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CanIPull {
    /// Its path as the pool shows it, or its identity.
    pub device: String,
}

/// What would be if a cache device were pulled now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pull {
    /// Its path, or what was asked for if it is nowhere.
    pub device: String,
    /// Its identity; empty while it has none.
    pub id: String,
    /// Whether nothing is lost and the pool goes on.
    pub safe: bool,
    /// The same in one sentence, with the reason.
    pub summary: String,
    /// What to do first; empty if it is safe.
    pub action: String,
    /// Seconds until it is safe, at the present rate; 0 if it is, `null` if nobody can tell, or if that takes
    /// more than waiting.
    pub wait_s: Option<u64>,
    /// Bytes that origins lack and that no other cache device has.
    pub only_dirty_bytes: u64,
    /// Bytes of clean data that no other cache device has.
    pub only_clean_bytes: u64,
    /// Whether volumes would be written through from then on.
    pub ends_write_back: bool,
    /// What else would be different, a sentence each.
    pub notes: Vec<String>,
}

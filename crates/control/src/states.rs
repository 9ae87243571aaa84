//! How pools and volumes are, each in one word.

use serde::{Deserialize, Serialize};

/// How a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolState {
    /// All its cache devices are there and it serves.
    Online,
    /// It serves without some of its cache devices; what is dirty has all its copies, or as many as were agreed to.
    Degraded,
    /// Cache devices were lost, and what is dirty gets its copies back.
    Rebuilding,
    /// Too few cache devices are left: volumes are written through, and what is dirty is brought to its origin.
    Protecting,
    /// The same, and every origin has all of its data.
    Protected,
    /// A device error has stopped all writing until the next start.
    Latched,
    /// Cache devices are not there yet; they are waited for.
    Waiting,
    /// Its volumes are served straight from their origins, without its cache devices, as a person has asked.
    Bypassed,
    /// Opening it needs a person's decision.
    NeedsDecision,
    /// Another host has it open.
    HeldElsewhere,
    /// Another host has taken it from this one.
    LeaseLost,
    /// It cannot be opened.
    Failed,
    /// Its cache devices are here, and it was not imported.
    Exported,
}

/// How a pool is for somebody who only wants to know whether to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolHealth {
    /// As it should be, or not this host's business.
    Good,
    /// Everything is served, with fewer copies or less speed than was asked for.
    Degraded,
    /// Data is lost, or something is not served or not written, until somebody acts.
    Failed,
}

impl PoolState {
    /// What it comes to.
    pub fn health(self) -> PoolHealth {
        match self {
            PoolState::Online | PoolState::HeldElsewhere | PoolState::Exported => PoolHealth::Good,
            PoolState::Degraded
            | PoolState::Rebuilding
            | PoolState::Protecting
            | PoolState::Protected
            | PoolState::Bypassed => PoolHealth::Degraded,
            PoolState::Latched
            | PoolState::Waiting
            | PoolState::NeedsDecision
            | PoolState::LeaseLost
            | PoolState::Failed => PoolHealth::Failed,
        }
    }
}

/// How a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    /// Its origin is attached.
    Online,
    /// Its origin cannot be used; what is cached is safe.
    OriginMissing,
    /// Its origin was changed while the pool was stopped, and dirty data waits for it: its owner has to decide.
    OriginRefused,
    /// Its origin is there, and its requests fail or are not answered; what is cached is served, and is safe.
    OriginFailed,
    /// It is served straight from its origin, without the cache devices of its pool.
    Bypassed,
    /// Its pool is served without its cache devices, and its origin may lack what only they have: it is not served.
    Withheld,
    /// Its pool is not open.
    Offline,
    /// It is not there yet: a dry run.
    Planned,
}

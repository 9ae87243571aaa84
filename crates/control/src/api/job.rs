//! Long work, how the daemon ends, and the answer with nothing in it.

use serde::{Deserialize, Serialize};

use super::SCHEMA;

/// How long work goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// It is under way.
    Running,
    /// It has reached its end, and what it did is durable.
    Done,
    /// It has failed.
    Failed,
    /// Somebody has ended it before.
    Cancelled,
}

/// Long work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Its number.
    pub number: u64,
    /// What it does.
    pub what: String,
    /// How it is.
    pub state: JobState,
    /// Bytes that were to be moved when it began; more may have come.
    pub total_bytes: u64,
    /// Bytes that are left. With none left it may still be under way: what was moved becomes durable then.
    pub left_bytes: u64,
    /// Bytes a second over the last ten seconds; of what has ended, over all of its time.
    pub rate_bytes_per_s: u64,
    /// Seconds to go at this rate; `null` while nobody can tell.
    pub left_s: Option<u64>,
    /// What keeps it from going on; empty if nothing does.
    #[serde(default)]
    pub waits_for: String,
    /// Why it failed.
    pub error: Option<crate::error::ApiError>,
    /// Whether somebody else had begun it when it was asked for.
    #[serde(default)]
    pub joined: bool,
}

/// `POST /api/v1/stop`: end the daemon.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// Bring all dirty data to the origins first.
    #[serde(default)]
    pub destage: bool,
    /// Agrees that files which were removed while in use are gone then, origins among them. Without it such an end is
    /// refused, unless it destages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accept_removed: bool,
}

/// What an asked end begins with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stopping {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The process that ends, as itself knows its number.
    pub pid: u32,
    /// When that was started, in clock ticks since the machine was (proc(5)): another namespace may have another
    /// process of this number.
    pub started: Option<u64>,
    /// Bytes that origins lack now.
    pub dirty_bytes: u64,
    /// What has to be done first; without it the daemon is ending.
    pub job: Option<Job>,
}

/// An answer with nothing in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// What was done, for people.
    pub what: String,
}

impl Done {
    /// The answer that says this.
    pub fn of(what: impl Into<String>) -> Done {
        Done { schema: SCHEMA, what: what.into() }
    }
}

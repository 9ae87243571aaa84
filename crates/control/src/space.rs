//! What a volume has of its pool's cache, and what it gets where there is not enough for all.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::nearest::did_you_mean;

/// Which of several volumes gets more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Half of what a normal one gets.
    Low,
    /// As much as any other normal one.
    #[default]
    Normal,
    /// Twice as much as a normal one.
    High,
}

impl Priority {
    /// All of them, the lowest first.
    pub const ALL: [Priority; 3] = [Priority::Low, Priority::Normal, Priority::High];

    /// Its name for people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Priority::Low => "low",
            Priority::Normal => "normal",
            Priority::High => "high",
        }
    }
}

impl FromStr for Priority {
    type Err = String;

    fn from_str(text: &str) -> Result<Priority, String> {
        Priority::ALL.into_iter().find(|priority| priority.name() == text).ok_or_else(|| {
            let names = Priority::ALL.map(Priority::name).join(", ");
            let nearest = did_you_mean(text, Priority::ALL.into_iter().map(Priority::name));
            format!("{text:?} is no priority: {nearest}there are {names}")
        })
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is set, and how it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Bytes of the cache that other volumes do not take from it; 0: none.
    pub reservation_bytes: u64,
    /// Bytes of the cache that it holds at the most; 0: as many as there are.
    pub limit_bytes: u64,
    /// What it gets where there is not enough for all.
    pub priority: Priority,
    /// Bytes of it that the SSDs hold, one copy counted; `null` while nobody knows.
    pub held_bytes: Option<u64>,
    /// Bytes of it that are in RAM, whether the SSDs hold them, too, or not; `null` while nobody knows.
    #[serde(default)]
    pub ram_bytes: Option<u64>,
    /// Bytes that are reserved at present: less than `reservation_bytes` where the pool has become too
    /// small for all reservations; `null` while nobody knows.
    pub reserved_bytes: Option<u64>,
}

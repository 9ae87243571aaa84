//! What brings blocks of a volume into the cache, as people say it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::nearest::did_you_mean;

/// Numbers that belong together, by a name; the three in the middle are those of QSAN's white paper "SSD
/// Cache 2.0", tables 3 and 4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheProfile {
    /// All that is missed, and all that is written; what does not come again leaves first. Of reads the second ones,
    /// while hardly any of what first ones bring in is read again.
    #[default]
    Auto,
    /// Cache blocks of 1 MiB, from the second read on.
    Database,
    /// Cache blocks of 2 MiB, from the second read on, without dirty data also from the second write on.
    FileSystem,
    /// Cache blocks of 4 MiB, from the second read on.
    Web,
    /// Numbers of its own.
    Custom,
}

impl CacheProfile {
    /// All of them.
    pub const ALL: [CacheProfile; 5] = [
        CacheProfile::Auto,
        CacheProfile::Database,
        CacheProfile::FileSystem,
        CacheProfile::Web,
        CacheProfile::Custom,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            CacheProfile::Auto => "auto",
            CacheProfile::Database => "database",
            CacheProfile::FileSystem => "file-system",
            CacheProfile::Web => "web",
            CacheProfile::Custom => "custom",
        }
    }
}

impl FromStr for CacheProfile {
    type Err = String;

    fn from_str(text: &str) -> Result<CacheProfile, String> {
        CacheProfile::ALL.into_iter().find(|profile| profile.name() == text).ok_or_else(|| {
            let names = CacheProfile::ALL.map(CacheProfile::name).join(", ");
            let nearest = did_you_mean(text, CacheProfile::ALL.into_iter().map(CacheProfile::name));
            format!("{text:?} is no profile: {nearest}there are {names}")
        })
    }
}

impl fmt::Display for CacheProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Population {
    /// Its name.
    pub profile: CacheProfile,
    /// What holds in the volume's mode: reads of a cache block from which on what is missed of it is
    /// brought in; 0: none are.
    pub populate_on_read: u8,
    /// The same of writes.
    pub populate_on_write: u8,
    /// What a miss brings in and is counted for together.
    pub cache_block_bytes: u32,
    /// What that means and why, in one sentence.
    pub reason: String,
}

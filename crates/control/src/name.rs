//! Names that people give: of pools and of volumes.
//!
//! They become parts of paths, of URLs and of NBD export names, so their alphabet is small.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest name, in bytes: what a superblock has room for.
pub const NAME_BYTES_MAX: usize = 63;

/// A name: 1 to 63 of `A-Z a-z 0-9 - _ .`, not beginning with `-`, neither `.` nor `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let refused = |why: &str| Err(format!("{text:?} cannot be a name: {why}"));
        match text {
            "" => refused("it is empty"),
            "." | ".." => refused("it would be a directory"),
            _ if text.starts_with('-') => refused("it begins with \"-\" as an option does"),
            _ if !text.chars().all(allowed) => refused("use only A-Z a-z 0-9 - _ ."),
            _ if text.len() > NAME_BYTES_MAX => {
                refused(&format!("it has {} characters, at most 63 are possible", text.len()))
            }
            _ => Ok(Name(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(text: String) -> Result<Name, String> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A volume as people write it: `POOL/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeName {
    /// Its pool.
    pub pool: Name,
    /// Its name in the pool.
    pub volume: Name,
}

impl FromStr for VolumeName {
    type Err = String;

    fn from_str(text: &str) -> Result<VolumeName, String> {
        let Some((pool, volume)) = text.split_once('/') else {
            return Err(format!("{text:?} names no volume: write POOL/NAME"));
        };
        Ok(VolumeName { pool: pool.parse()?, volume: volume.parse()? })
    }
}

impl TryFrom<String> for VolumeName {
    type Error = String;

    fn try_from(text: String) -> Result<VolumeName, String> {
        text.parse()
    }
}

impl From<VolumeName> for String {
    fn from(name: VolumeName) -> String {
        name.to_string()
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_a_small_alphabet_and_bounded() {
        let longest = "x".repeat(NAME_BYTES_MAX);
        for good in ["a", "A-z_0.9", "_", ".a", "...", &longest] {
            assert!(good.parse::<Name>().is_ok(), "{good}");
        }
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for bad in ["", ".", "..", "-a", "a/b", "a b", "ä", "a\n", "a%2f", "a\0", &long] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
        let volume: VolumeName = "fast/vm.1".parse().unwrap();
        assert_eq!((volume.pool.as_str(), volume.volume.as_str()), ("fast", "vm.1"));
        for bad in ["fast", "fast/", "/vm", "a/b/c", "../x"] {
            assert!(bad.parse::<VolumeName>().is_err(), "{bad:?}");
        }
    }
}

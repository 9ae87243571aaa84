//! Names for numbers of copies, after the RAID levels that lose as little.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::nearest::did_you_mean;

/// What people who know RAID call a number of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Profile {
    /// One copy of all data.
    Raid0,
    /// The same.
    NraidPlus,
    /// Two copies of all data.
    Raid1,
    /// Two copies of dirty data, one of clean data.
    Nraid1Plus,
    /// The same.
    Raid10,
    /// The same.
    Raid5,
    /// Three copies of dirty data, one of clean data.
    Raid6,
}

impl Profile {
    /// All of them.
    pub const ALL: [Profile; 7] = [
        Profile::Raid0,
        Profile::NraidPlus,
        Profile::Raid1,
        Profile::Nraid1Plus,
        Profile::Raid10,
        Profile::Raid5,
        Profile::Raid6,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Raid0 => "raid0",
            Profile::NraidPlus => "nraid+",
            Profile::Raid1 => "raid1",
            Profile::Nraid1Plus => "nraid1+",
            Profile::Raid10 => "raid10",
            Profile::Raid5 => "raid5",
            Profile::Raid6 => "raid6",
        }
    }

    /// Copies of dirty data, and of clean data.
    pub fn copies(self) -> (u8, u8) {
        match self {
            Profile::Raid0 | Profile::NraidPlus => (1, 1),
            Profile::Raid1 => (2, 2),
            Profile::Nraid1Plus | Profile::Raid10 | Profile::Raid5 => (2, 1),
            Profile::Raid6 => (3, 1),
        }
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Profile, String> {
        Profile::ALL.into_iter().find(|profile| profile.name() == text).ok_or_else(|| {
            let names = Profile::ALL.map(Profile::name).join(", ");
            let nearest = did_you_mean(text, Profile::ALL.into_iter().map(Profile::name));
            format!("{text:?} is no profile: {nearest}there are {names}")
        })
    }
}

impl TryFrom<String> for Profile {
    type Error = String;

    fn try_from(text: String) -> Result<Profile, String> {
        text.parse()
    }
}

impl From<Profile> for String {
    fn from(profile: Profile) -> String {
        profile.name().to_owned()
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_reads_back_what_it_is_called() {
        for profile in Profile::ALL {
            assert_eq!(profile.name().parse(), Ok(profile));
            let (dirty, clean) = profile.copies();
            assert!((1..=3).contains(&dirty) && (1..=dirty.min(2)).contains(&clean));
        }
        assert!("raid7".parse::<Profile>().unwrap_err().contains("nraid1+"));
    }

    /// Each of them goes through losses there, by a list of its own: it knows nothing of this crate.
    #[test]
    fn the_simulator_has_each_profile_with_its_copies() {
        let hazards = include_str!("../../sim/tests/hazards/profiles.rs");
        for profile in Profile::ALL {
            let entry = format!("\n    profile(\"{profile}\", {:?}, ", profile.copies());
            assert!(hazards.contains(&entry), "no {entry:?}");
        }
        assert_eq!(hazards.matches("\n    profile(\"").count(), Profile::ALL.len());
    }
}

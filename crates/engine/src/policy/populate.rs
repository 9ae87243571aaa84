//! From how many accesses on what is missed is brought into the cache: as a person says it, and as it
//! holds for a mode.
//!
//! After QSAN's white paper "SSD Cache 2.0" (2018), "Populating the Cache" and tables 3 and 4: a cache block
//! is brought in by the read, or write, with which it has been read, or written, so often. Its "read cache"
//! are the modes without dirty data here, its "read-write cache" those with.

use super::{Access, Granule, TOUCHES_MAX, Touches, Worth};
use crate::format::Mode;

/// What brings blocks of a volume into the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Populate {
    /// What the volume's mode says, from the first access on; what does not come again leaves first. Reads from the
    /// second one on while hardly any of what first ones bring in is read again ([`super::Reread`]).
    #[default]
    Auto,
    /// Of the paper, as the next two.
    Database,
    /// Files.
    FileSystem,
    /// Web pages.
    Web,
    /// Numbers of their own.
    Custom {
        /// 1 to [`TOUCHES_MAX`]; `None`: automatic.
        on_read: Option<u8>,
        /// 0 to [`TOUCHES_MAX`]; 0, that writes bring in nothing, for modes without dirty data.
        on_write: Option<u8>,
    },
}

impl Populate {
    /// Whether its numbers are in range and do not contradict a mode.
    pub fn fits(self, mode: Mode) -> bool {
        let Populate::Custom { on_read, on_write } = self else { return true };
        let least = u8::from(mode.writes_back());
        on_read.is_none_or(|count| (1..=TOUCHES_MAX).contains(&count))
            && on_write.is_none_or(|count| (least..=TOUCHES_MAX).contains(&count))
    }

    /// What holds in a mode.
    pub fn thresholds(self, mode: Mode) -> Thresholds {
        let writes_back = mode.writes_back();
        let usual = Thresholds { read: 1, write: u8::from(mode != Mode::Readonly) };
        let said = match self {
            Populate::Auto => usual,
            Populate::Database | Populate::Web => {
                Thresholds { read: 2, write: u8::from(writes_back) }
            }
            Populate::FileSystem => Thresholds { read: 2, write: if writes_back { 1 } else { 2 } },
            Populate::Custom { on_read, on_write } => Thresholds {
                read: on_read.unwrap_or(usual.read),
                write: on_write.unwrap_or(usual.write).max(u8::from(writes_back)),
            },
        };
        match mode {
            Mode::Bypass => Thresholds { read: 0, write: 0 },
            Mode::Writeonly => Thresholds { read: 0, ..said },
            _ => said,
        }
    }

    /// The same beside what became of what earlier reads brought in.
    pub fn thresholds_beside(self, mode: Mode, worth: Worth) -> Thresholds {
        let said = self.thresholds(mode);
        match self {
            Populate::Auto if worth.is_doubted && said.read > 0 => Thresholds { read: 2, ..said },
            _ => said,
        }
    }

    /// Bytes of a cache block that go with it; `None`: any.
    pub fn cache_block_bytes(self) -> Option<u32> {
        match self {
            Populate::Auto => Some(64 << 10),
            Populate::Database => Some(1 << 20),
            Populate::FileSystem => Some(2 << 20),
            Populate::Web => Some(4 << 20),
            Populate::Custom { .. } => None,
        }
    }
}

/// The accesses to a cache block from which on what is missed of it is brought in; 0: never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Reads.
    pub read: u8,
    /// Writes.
    pub write: u8,
}

impl Thresholds {
    /// All at once.
    pub const FIRST: Thresholds = Thresholds { read: 1, write: 1 };

    /// Whether accesses have to be counted.
    pub fn count(self) -> bool {
        self.read > 1 || self.write > 1
    }

    /// That of one kind of access.
    pub fn of(self, access: Access) -> u8 {
        match access {
            Access::Read => self.read,
            Access::Write => self.write,
        }
    }

    /// Whether a cache block has been asked for often enough, as far as was counted.
    pub fn reached(self, touches: &Touches, block: Granule, access: Access) -> bool {
        match self.of(access) {
            0 => false,
            1 => true,
            count => touches.count(block, access) >= count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [Mode; 5] =
        [Mode::Writeback, Mode::Writethrough, Mode::Readonly, Mode::Writeonly, Mode::Bypass];

    fn of(populate: Populate, mode: Mode) -> (u8, u8) {
        let Thresholds { read, write } = populate.thresholds(mode);
        (read, write)
    }

    #[test]
    fn the_tables_of_the_paper_are_kept() {
        let table_3 = [
            (Populate::Database, 1 << 20, (2, 0)),
            (Populate::FileSystem, 2 << 20, (2, 2)),
            (Populate::Web, 4 << 20, (2, 0)),
        ];
        for (profile, cache_block_bytes, counts) in table_3 {
            assert_eq!(profile.cache_block_bytes(), Some(cache_block_bytes));
            for mode in [Mode::Readonly, Mode::Writethrough] {
                assert_eq!(of(profile, mode), counts, "table 3, {mode:?}");
            }
            assert_eq!(of(profile, Mode::Writeback), (2, 1), "table 4");
            assert_eq!(of(profile, Mode::Writeonly), (0, 1));
        }
    }

    #[test]
    fn left_alone_every_mode_does_what_it_says() {
        let auto = MODES.map(|mode| of(Populate::Auto, mode));
        assert_eq!(auto, [(1, 1), (1, 1), (1, 0), (0, 1), (0, 0)]);
        let nothing = Populate::Custom { on_read: None, on_write: None };
        assert_eq!(MODES.map(|mode| of(nothing, mode)), auto);
    }

    #[test]
    fn numbers_have_their_ends() {
        for (count, read, write, write_back) in [
            (0, false, true, false),
            (1, true, true, true),
            (4, true, true, true),
            (5, false, false, false),
            (255, false, false, false),
        ] {
            let on_read = Populate::Custom { on_read: Some(count), on_write: None };
            let on_write = Populate::Custom { on_read: None, on_write: Some(count) };
            assert!(MODES.iter().all(|&mode| on_read.fits(mode) == read), "{count}");
            assert_eq!(on_write.fits(Mode::Readonly), write, "{count}");
            assert_eq!(on_write.fits(Mode::Writethrough), write, "{count}");
            assert_eq!(on_write.fits(Mode::Writeback), write_back, "{count}");
            assert_eq!(on_write.fits(Mode::Writeonly), write_back, "{count}");
        }
    }
}

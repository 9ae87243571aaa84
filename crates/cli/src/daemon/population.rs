//! What brings blocks of a volume into the cache: as it was asked for, and as it is told.

use forebay_control::api::{CacheProfile, Population};
use forebay_control::error::Code;
use forebay_engine::policy::{Thresholds, Worth};
use forebay_engine::{Mode, Populate};

use crate::Result;
use crate::failure::Failure;

/// What somebody has said of it; what is not named stays as it is.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) profile: Option<CacheProfile>,
    pub(super) on_read: Option<u8>,
    pub(super) on_write: Option<u8>,
    pub(super) cache_block_bytes: Option<u32>,
}

impl Asked {
    pub(super) fn is_nothing(self) -> bool {
        let numbers = self.on_read.is_none() && self.on_write.is_none();
        self.profile.is_none() && numbers && self.cache_block_bytes.is_none()
    }

    /// What comes of it beside what there is: the numbers, and bytes of a cache block.
    ///
    /// # Errors
    /// If a profile with numbers of its own is to have others.
    pub(super) fn beside(self, was: Populate, cache_block_bytes: u32) -> Result<(Populate, u32)> {
        let numbers = self.on_read.is_some() || self.on_write.is_some();
        let named = self.profile.filter(|profile| *profile != CacheProfile::Custom);
        let populate = match named {
            Some(profile) if numbers => {
                let what = format!("profile {profile} has numbers of its own");
                return Err(Failure::coded(Code::BadRequest, what)
                    .hint("leave the numbers away, or use profile custom"));
            }
            Some(CacheProfile::Database) => Populate::Database,
            Some(CacheProfile::FileSystem) => Populate::FileSystem,
            Some(CacheProfile::Web) => Populate::Web,
            Some(_) => Populate::Auto,
            None if numbers || self.profile.is_some() => self.own(was),
            None => was,
        };
        let usual = named.and_then(|_| populate.cache_block_bytes());
        Ok((populate, self.cache_block_bytes.or(usual).unwrap_or(cache_block_bytes)))
    }

    /// Numbers of their own, begun with those of now.
    fn own(self, was: Populate) -> Populate {
        let (read, write) = match was {
            Populate::Auto => (None, None),
            Populate::Custom { on_read, on_write } => (on_read, on_write),
            // What a profile's writes do depends on the mode; left alone they follow it as well.
            Populate::Database | Populate::FileSystem | Populate::Web => (Some(2), None),
        };
        Populate::Custom { on_read: self.on_read.or(read), on_write: self.on_write.or(write) }
    }
}

/// How it is in a mode, and why.
pub(super) fn describe(
    populate: Populate,
    cache_block_bytes: u32,
    mode: Mode,
    rereads: Worth,
) -> Population {
    let profile = match populate {
        Populate::Auto => CacheProfile::Auto,
        Populate::Database => CacheProfile::Database,
        Populate::FileSystem => CacheProfile::FileSystem,
        Populate::Web => CacheProfile::Web,
        Populate::Custom { .. } => CacheProfile::Custom,
    };
    let Thresholds { read, write } = populate.thresholds_beside(mode, rereads);
    let reads = match read {
        0 => "no read brings anything in".to_owned(),
        1 => "every read brings in what it misses".to_owned(),
        _ => format!("the {} read of a cache block brings it in", nth(read)),
    };
    let writes = match write {
        0 => "no write is cached".to_owned(),
        1 => "every write is cached".to_owned(),
        _ => format!("a write is cached from the {} of its cache block on", nth(write)),
    };
    let mut reason = format!("{reads}, {writes}");
    if profile == CacheProfile::Auto && mode != Mode::Bypass {
        reason.push_str(&match rereads.percent.filter(|_| read > 0) {
            Some(percent) => format!(
                ", as of what came in with a first read {percent} % was read again before it left"
            ),
            None if rereads.is_doubted => {
                ", as hardly anything that came in with a first read was read again".to_owned()
            }
            None => ", and what does not come again leaves first".to_owned(),
        });
    }
    Population {
        profile,
        populate_on_read: read,
        populate_on_write: write,
        cache_block_bytes,
        reason,
    }
}

fn nth(count: u8) -> &'static str {
    match count {
        2 => "second",
        3 => "third",
        _ => "fourth",
    }
}

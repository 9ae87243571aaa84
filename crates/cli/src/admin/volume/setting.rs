//! Settings of a volume as people write them.

use clap::ValueEnum;
use forebay_control::api::{SequentialWhen, SequentialWrites, SetVolumeSettings};

use super::Mode;
use crate::Result;
use crate::daemon::mode_name;
use crate::failure::Failure;
use crate::text::{self, parse_bytes, parse_cache_block, whole};

/// The most that is counted of accesses.
const COUNT_MAX: u8 = forebay_engine::policy::TOUCHES_MAX;

/// What can be set of a volume but its mode.
const KEYS: [&str; 12] = [
    "destage-hours",
    "dirty-age-max",
    "sequential-cutoff",
    "sequential-writes",
    "sequential-when",
    "profile",
    "populate_on_read",
    "populate_on_write",
    "cache_block",
    "reservation",
    "limit",
    "priority",
];

/// One change as people write it.
#[derive(Clone, Debug)]
pub(crate) enum Setting {
    Mode(Mode),
    Key(SetVolumeSettings),
}

pub(super) fn parse_read_count(text: &str) -> std::result::Result<u8, String> {
    if text == "0" {
        return Err("it is 1 to 4; mode writeonly is for reads that bring in nothing".to_owned());
    }
    whole(1..=COUNT_MAX)(text)
}

pub(super) fn parse_count(text: &str) -> std::result::Result<u8, String> {
    whole(..=COUNT_MAX)(text)
}

fn parse_size_or_off(text: &str) -> std::result::Result<u64, String> {
    if text == "off" { Ok(0) } else { parse_bytes(text) }
}

pub(super) fn parse_setting(text: &str) -> std::result::Result<Setting, String> {
    let Some((key, value)) = text.split_once('=') else {
        return Mode::from_str(text, false).map(Setting::Mode).map_err(|_| {
            let (modes, nearest) = modes_like(text);
            format!("{nearest}it is neither a mode ({modes}) nor KEY=VALUE")
        });
    };
    parse_key(named(key, value)?, value).map(Setting::Key)
}

/// All modes, and the one that is most like this, as a question.
fn modes_like(text: &str) -> (String, String) {
    let modes = Mode::value_variants().iter().map(|&mode| mode_name(mode.into()));
    let modes: Vec<_> = modes.collect();
    let nearest = text::did_you_mean(text, modes.iter().copied());
    (modes.join(", "), nearest)
}

/// The key that is meant, with hyphens or with underscores.
fn named(key: &str, value: &str) -> std::result::Result<&'static str, String> {
    let plain = |key: &str| key.replace('-', "_");
    if let Some(known) = KEYS.into_iter().find(|known| plain(known) == plain(key)) {
        return Ok(known);
    }
    if key == "mode" {
        let (modes, nearest) = modes_like(value);
        return Err(match Mode::from_str(value, false) {
            Ok(_) => {
                format!("a mode stands by itself: `forebay volume set POOL/NAME {value}`")
            }
            Err(_) => format!("a mode stands by itself; {nearest}there are {modes}"),
        });
    }
    let written = [key.to_owned(), key.replace('_', "-"), plain(key)];
    let nearest = written.iter().map(|key| text::did_you_mean(key, KEYS.into_iter()));
    let nearest = nearest.into_iter().find(|nearest| !nearest.is_empty()).unwrap_or_default();
    let keys = KEYS.join(", ");
    Err(format!("there is no setting {key:?}; {nearest}there are {keys}"))
}

/// A setting by its name in [`KEYS`].
fn parse_key(key: &str, value: &str) -> std::result::Result<SetVolumeSettings, String> {
    let nothing = SetVolumeSettings::default();
    Ok(match key {
        "destage-hours" => SetVolumeSettings { destage_hours: Some(value.parse()?), ..nothing },
        "dirty-age-max" => {
            let seconds = match value {
                "off" => 0,
                age => match text::parse_duration(age)? {
                    0 => {
                        return Err(
                            "nothing is dirty for no time: write off, or use writethrough".into()
                        );
                    }
                    seconds => seconds,
                },
            };
            SetVolumeSettings { dirty_age_max_s: Some(seconds), ..nothing }
        }
        "sequential-cutoff" => {
            let bytes = Some(parse_size_or_off(value)?);
            SetVolumeSettings { sequential_cutoff_bytes: bytes, ..nothing }
        }
        "sequential-writes" => {
            let what = match value {
                "cache" => SequentialWrites::Cache,
                "bypass" => SequentialWrites::Bypass,
                _ => {
                    let nearest = text::did_you_mean(value, ["cache", "bypass"].into_iter());
                    return Err(format!("{nearest}{value:?} is neither `cache` nor `bypass`"));
                }
            };
            SetVolumeSettings { sequential_writes: Some(what), ..nothing }
        }
        "sequential-when" => {
            let when = match value {
                "auto" => SequentialWhen::Auto,
                "always" => SequentialWhen::Always,
                "full" => SequentialWhen::Full,
                _ => {
                    let nearest = text::did_you_mean(value, ["auto", "always", "full"].into_iter());
                    return Err(format!(
                        "{nearest}{value:?} is none of `auto`, `always` and `full`"
                    ));
                }
            };
            SetVolumeSettings { sequential_when: Some(when), ..nothing }
        }
        "profile" => SetVolumeSettings { profile: Some(value.parse()?), ..nothing },
        "populate_on_read" => {
            SetVolumeSettings { populate_on_read: Some(parse_read_count(value)?), ..nothing }
        }
        "populate_on_write" => {
            SetVolumeSettings { populate_on_write: Some(parse_count(value)?), ..nothing }
        }
        "cache_block" => {
            SetVolumeSettings { cache_block_bytes: Some(parse_cache_block(value)?), ..nothing }
        }
        "reservation" => {
            SetVolumeSettings { reservation_bytes: Some(parse_size_or_off(value)?), ..nothing }
        }
        "limit" => SetVolumeSettings { limit_bytes: Some(parse_size_or_off(value)?), ..nothing },
        "priority" => SetVolumeSettings { priority: Some(value.parse()?), ..nothing },
        _ => return Err(format!("there is no setting {key:?}")),
    })
}

/// Several settings as one change; a mode stands by itself.
pub(super) fn joined(settings: &[Setting]) -> Result<Setting> {
    fn take<T>(known: &mut Option<T>, new: Option<T>, what: &str) -> Result<()> {
        if new.is_some() && known.is_some() {
            return Err(Failure::new(format!("{what} is set twice")).hint("set it once"));
        }
        *known = new.or(known.take());
        Ok(())
    }
    if let [mode @ Setting::Mode(_)] = settings {
        return Ok(mode.clone());
    }
    let mut all = SetVolumeSettings::default();
    for one in settings {
        let Setting::Key(one) = one else {
            return Err(Failure::new("a mode is changed by itself")
                .hint("it is a job of its own; run `forebay volume set` twice"));
        };
        let one = one.clone();
        take(&mut all.dirty_age_max_s, one.dirty_age_max_s, "dirty-age-max")?;
        take(&mut all.destage_hours, one.destage_hours, "destage-hours")?;
        let cutoff = one.sequential_cutoff_bytes;
        take(&mut all.sequential_cutoff_bytes, cutoff, "sequential-cutoff")?;
        take(&mut all.sequential_writes, one.sequential_writes, "sequential-writes")?;
        take(&mut all.sequential_when, one.sequential_when, "sequential-when")?;
        take(&mut all.profile, one.profile, "profile")?;
        take(&mut all.populate_on_read, one.populate_on_read, "populate_on_read")?;
        take(&mut all.populate_on_write, one.populate_on_write, "populate_on_write")?;
        take(&mut all.cache_block_bytes, one.cache_block_bytes, "cache_block")?;
        take(&mut all.reservation_bytes, one.reservation_bytes, "reservation")?;
        take(&mut all.limit_bytes, one.limit_bytes, "limit")?;
        take(&mut all.priority, one.priority, "priority")?;
    }
    Ok(Setting::Key(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_two_letters_swapped_or_one_wrong_is_known_again() {
        for key in KEYS {
            for wrong in text::slips(key) {
                let why = parse_setting(&format!("{wrong}=1")).expect_err(&wrong);
                assert!(why.contains(&format!("did you mean {key}? ")), "{wrong}: {why}");
            }
            let why = parse_setting(&format!("{key}=?")).expect_err("no value is like that");
            assert!(!why.contains("there is no setting"), "{key}: {why}");
        }
    }

    #[test]
    fn a_key_is_taken_with_hyphens_and_with_underscores() {
        for key in KEYS {
            for written in [key.replace('-', "_"), key.replace('_', "-")] {
                let why =
                    parse_setting(&format!("{written}=?")).expect_err("no value is like that");
                assert!(!why.contains("there is no setting"), "{written}: {why}");
            }
        }
        let Ok(Setting::Key(set)) = parse_setting("dirty_age_max=15m") else {
            panic!("it is a setting")
        };
        assert_eq!(set.dirty_age_max_s, Some(900));
        let why = parse_setting("dirty_age=1").expect_err("there is none");
        assert!(why.contains("did you mean dirty-age-max? "), "{why}");
    }

    #[test]
    fn a_value_that_is_almost_a_word_is_known_again() {
        for (wrong, right) in [
            ("sequential-writes=byepass", "bypass"),
            ("sequential-when=allways", "always"),
            ("profile=databse", "database"),
            ("priority=hihg", "high"),
        ] {
            let why = parse_setting(wrong).expect_err("it is none");
            assert!(why.contains(&format!("did you mean {right}? ")), "{why}");
        }
    }

    #[test]
    fn a_cache_block_that_none_can_have_is_not_understood() {
        assert_eq!(parse_cache_block("4K"), Ok(4096));
        assert_eq!(parse_cache_block("4M"), Ok(4 << 20));
        for wrong in ["5K", "2K", "8M", "0", "4G", "16E"] {
            assert!(parse_cache_block(wrong).is_err(), "{wrong}");
        }
        assert!(parse_setting("cache_block=5K").is_err());
    }

    #[test]
    fn a_mode_that_is_written_as_a_setting_is_said_to_stand_by_itself() {
        let why = parse_setting("mode=bypass").expect_err("it is none");
        assert!(why.contains("`forebay volume set POOL/NAME bypass`"), "{why}");
        let why = parse_setting("mode=bypas").expect_err("it is none");
        assert!(why.contains("did you mean bypass? there are writeback, "), "{why}");
    }
}

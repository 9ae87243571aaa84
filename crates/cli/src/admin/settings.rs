//! Settings of a pool as people write them.

use forebay_control::api::SetPool;
use forebay_control::nearest::{nearest_expected, question};
use forebay_engine::limits::RAM_STEP_BYTES;

use crate::Result;
use crate::failure::Failure;
use crate::text::{self, parse_bytes, parse_millis};

/// What can be set of a pool, the field of the API that it is, and what may be written behind it.
const KEYS: [(&str, &str, &str); 10] = [
    ("dirty_copies", "dirty_copies", "1..3"),
    ("clean_copies", "clean_copies", "1..2"),
    ("profile", "profile", "raid1"),
    ("ram", "ram_bytes", "4G"),
    ("device_deadline", "device_deadline_ms", "5s"),
    ("scrub_rate", "scrub_rate_bytes_per_s", "8M"),
    ("verify", "verify", "off|reads"),
    ("write_budget", "write_budget_bytes_per_day", "100G"),
    ("write_amplification_max_percent", "write_amplification_max_percent", "100..400"),
    ("accept_data_loss_on_ssd_failure", "accept_data_loss_on_ssd_failure", "true|false"),
];

/// A size of a pool, as good as any other where only the form of a setting counts.
pub(super) const ANY_CAPACITY: u64 = 1 << 40;

/// What cannot be set: the daemon says why.
const FIXED: [&str; 4] = ["name", "ssds", "segment_bytes", "index_bytes_max"];

/// The key that is meant, also if it is written as an option or as the field, its field, and its form.
fn named(key: &str) -> Result<(&'static str, &'static str, &'static str)> {
    let plain = key.replace('-', "_");
    let fixed = FIXED.into_iter().map(|name| (name, name, ""));
    let mut known = KEYS.into_iter().chain(fixed);
    known.find(|(name, field, _)| plain == *name || plain == *field).ok_or_else(|| {
        let all = KEYS.into_iter().flat_map(|(name, field, _)| [name, field]);
        let nearest = text::did_you_mean(&plain, all);
        let names = KEYS.map(|(name, ..)| name).join(", ");
        Failure::new(format!("there is no setting \"{key}\" of a pool"))
            .hint(format!("{nearest}there are {names}"))
    })
}

/// A size as people write it.
fn size(key: &str, text: &str, example: &str) -> Result<serde_json::Value> {
    let bytes = parse_bytes(text).map_err(|why| {
        Failure::new(format!("{key}={text} is no size: {why}"))
            .hint(format!("write it as {key}={example}; {key}=0 is none"))
    })?;
    Ok(bytes.into())
}

/// Refuses a RAM tier of a size that none can have, in the words of the daemon.
pub(super) fn check_ram(bytes: u64) -> Result<()> {
    if bytes.is_multiple_of(RAM_STEP_BYTES) {
        return Ok(());
    }
    let below = text::bytes((bytes / RAM_STEP_BYTES * RAM_STEP_BYTES).max(RAM_STEP_BYTES));
    Err(Failure::new(format!("a RAM tier of {bytes} B cannot be made"))
        .hint(format!("use a multiple of 2 MiB, as {below}")))
}

/// A size of the tier in RAM as people write it.
fn ram(key: &str, text: &str, example: &str) -> Result<serde_json::Value> {
    let bytes = size(key, text, example)?;
    bytes.as_u64().map_or(Ok(()), check_ram)?;
    Ok(bytes)
}

/// A short time as people write it.
fn time(key: &str, text: &str, example: &str) -> Result<serde_json::Value> {
    let ms = parse_millis(text).map_err(|why| {
        Failure::new(format!("{key}={text} is no time: {why}"))
            .hint(format!("write it as {key}={example}"))
    })?;
    Ok(ms.into())
}

/// Whether settings can be understood, before anybody is asked how large the pool is.
pub(super) fn check(settings: &[String]) -> Result<()> {
    of_pool(settings, &|| Ok(ANY_CAPACITY)).map(drop)
}

/// Settings as people write them, as a body; what they mean is up to the daemon.
pub(super) fn of_pool(
    settings: &[String],
    capacity: &dyn Fn() -> Result<u64>,
) -> Result<serde_json::Map<String, serde_json::Value>> {
    let mut body = serde_json::Map::new();
    for setting in settings {
        let Some((key, value)) = setting.split_once('=') else {
            return Err(Failure::new(format!("\"{setting}\" sets nothing"))
                .hint("write KEY=VALUE, as write_amplification_max_percent=200"));
        };
        let (name, field, form) = named(key)?;
        let value = match name {
            "ram" => ram(name, value, form)?,
            "scrub_rate" => size(name, value, form)?,
            "write_budget" => super::wear::parse(value, capacity)?.into(),
            // A number of milliseconds, too, is taken by the field's own name.
            "device_deadline" if key.replace('-', "_") == name => time(name, value, form)?,
            _ => serde_json::from_str(value).unwrap_or_else(|_| value.into()),
        };
        let alone = serde_json::json!({ field: &value });
        if let Err(why) = serde_json::from_value::<SetPool>(alone) {
            let why = why.to_string();
            let nearest = nearest_expected(&why).map_or(String::new(), question);
            return Err(Failure::new(format!("{setting} cannot be set: {why}"))
                .hint(format!("{nearest}write it as {name}={form}")));
        }
        if body.insert(field.to_owned(), value).is_some() {
            return Err(Failure::new(format!("{name} is set twice")).hint("set it once"));
        }
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(setting: &str) -> Result<serde_json::Map<String, serde_json::Value>> {
        of_pool(&[setting.to_owned()], &|| Ok(1 << 30))
    }

    #[test]
    fn a_key_with_two_letters_swapped_or_one_wrong_is_known_again() {
        for (key, ..) in KEYS {
            for wrong in text::slips(key) {
                let failure = of(&format!("{wrong}=1")).expect_err(&wrong);
                let meant = format!("did you mean {key}? ");
                assert!(failure.hint_text().starts_with(&meant), "{wrong}: {failure:?}");
            }
        }
    }

    #[test]
    fn a_key_is_taken_as_an_option_or_a_field_would_be_written() {
        for (text, key, value) in [
            ("ram=4G", "ram_bytes", 4u64 << 30),
            ("ram_bytes=2097152", "ram_bytes", 2 << 20),
            ("scrub-rate=1M", "scrub_rate_bytes_per_s", 1 << 20),
            ("device-deadline=5s", "device_deadline_ms", 5_000),
            ("device_deadline_ms=5000", "device_deadline_ms", 5_000),
            ("dirty-copies=2", "dirty_copies", 2),
            ("write_budget=1G", "write_budget_bytes_per_day", 1 << 30),
            ("segment_bytes=1", "segment_bytes", 1),
        ] {
            assert_eq!(of(text).unwrap()[key], value, "{text}");
        }
        assert_eq!(of("profile=raid1").unwrap()["profile"], "raid1");
        assert_eq!(of("ram=0").unwrap()["ram_bytes"], 0);
        assert!(of("ram=1K").unwrap_err().hint_text().contains("multiple of 2 MiB, as 2 MiB"));
        assert!(check(&["write_budget=1dwpd".to_owned()]).is_ok());
        assert!(check(&["dirty_copy=2".to_owned()]).is_err());
        assert!(of("archive=1").unwrap_err().hint_text().starts_with("there are dirty_copies, "));
        assert!(of("ram").unwrap_err().what().contains("sets nothing"));
        for (wrong, form) in [("verify=yes", "off|reads"), ("dirty_copies=x", "1..3")] {
            let failure = of(wrong).unwrap_err();
            assert!(failure.what().starts_with(&format!("{wrong} cannot be set: ")), "{failure:?}");
            assert!(failure.hint_text().ends_with(form), "{failure:?}");
        }
    }
}

//! What no type says of a configuration: ranges, forms, and what contradicts something else; each with its place.

use std::ops::Range;
use std::path::Path;

use forebay_control::nearest::{nearest_expected, question};
use forebay_export::nbd::limits::{INFLIGHT_BYTES_MIN, SHARE_BYTES_INFLIGHT_MAX};
use toml::de::{DeTable, DeValue};

use super::config::{self, Config, REACTORS_MAX, SOCKET_PATH_BYTES_MAX};
use crate::Result;
use crate::failure::Failure;
use crate::machine;
use crate::memory::MEMORY_BYTES_MAX;

/// Line and column of a byte, both from 1 on.
fn place(text: &str, at: usize) -> String {
    let before = text.get(..at.min(text.len())).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |rest| rest.chars().count()) + 1;
    format!("line {line}, column {column}")
}

/// Where the value of a key stands; the entry of a list if `index` names one. Nowhere if it is not set.
fn span_of(text: &str, key: &str, index: Option<usize>) -> Option<Range<usize>> {
    let document = DeTable::parse(text).ok()?;
    let (mut table, mut found) = (document.get_ref(), None);
    for name in key.split('.') {
        let (_, value) = table.iter().find(|(known, _)| known.get_ref() == name)?;
        found = Some(value);
        if let DeValue::Table(below) = value.get_ref() {
            table = below;
        }
    }
    let mut value = found?;
    if let (Some(index), DeValue::Array(entries)) = (index, value.get_ref()) {
        value = entries.get(index)?;
    }
    Some(value.span())
}

/// Where the same begins.
fn place_of(text: &str, key: &str, index: Option<usize>) -> Option<String> {
    span_of(text, key, index).map(|span| place(text, span.start))
}

/// What is wrong with the value of a key, and where that is; a default is never wrong.
fn at(text: &str, key: &str, index: Option<usize>, failure: Failure) -> Failure {
    match place_of(text, key, index) {
        Some(place) => failure.on(place),
        None => failure,
    }
}

/// Refuses what cannot be used.
pub(super) fn check(text: &str, config: &Config) -> Result<()> {
    let wrong = |key: &str, failure: Failure| Err(at(text, key, None, failure));
    config.control_mode().map_err(|failure| at(text, "control.mode", None, failure))?;
    let mode = config.socket_mode();
    mode.map_err(|failure| at(text, "exports.socket_mode", None, failure))?;
    let group = config.socket_group();
    group.map_err(|failure| at(text, "exports.socket_group", None, failure))?;
    let mut paths = vec![
        ("state_dir", &config.state_dir, "/var/lib/forebay"),
        ("run_dir", &config.run_dir, "/run/forebay"),
        ("control.socket", &config.control.socket, "/run/forebay/control.sock"),
    ];
    if let Some(tls) = &config.tls {
        paths.push(("tls.certificate", &tls.certificate, "/etc/forebay/server.pem"));
        paths.push(("tls.key", &tls.key, "/etc/forebay/server.key"));
        paths.extend(
            tls.client_ca.iter().map(|path| ("tls.client_ca", path, "/etc/forebay/ca.pem")),
        );
    }
    for (key, path, example) in paths {
        if !path.is_absolute() {
            let what = format!("{key} is {}, which is not absolute", path.display());
            return wrong(
                key,
                Failure::new(what).hint(format!("write it from the root on: {example}")),
            );
        }
    }
    check_limits(text, config)?;
    if config.host_id.as_ref().is_some_and(|id| machine::parse_id(id).is_none()) {
        return wrong(
            "host_id",
            Failure::new("host_id is not 32 hexadecimal digits")
                .hint("make one with `uuidgen | tr -d -`"),
        );
    }
    if config.devices.replace_failing && config.devices.health_s == 0 {
        return wrong(
            "devices.replace_failing",
            Failure::new("devices.replace_failing is set, and SSDs are never asked how they are")
                .hint("leave devices.health_s out, or say after how many seconds they are asked"),
        );
    }
    for (index, pattern) in config.devices.scan.iter().enumerate() {
        let wrong = |failure: Failure| Err(at(text, "devices.scan", Some(index), failure));
        if let Err(error) = glob::Pattern::new(pattern) {
            let what = format!("the pattern {pattern:?} in devices.scan: {error}");
            return wrong(Failure::new(what).hint("patterns are as in /dev/disk/by-id/nvme-*"));
        }
        if !Path::new(pattern).is_absolute() {
            let what = format!("the pattern {pattern:?} in devices.scan is not absolute");
            return wrong(Failure::new(what).hint("write it from the root on: /dev/disk/by-id/*"));
        }
    }
    Ok(())
}

/// The same of what has a range.
fn check_limits(text: &str, config: &Config) -> Result<()> {
    let wrong = |key: &str, failure: Failure| Err(at(text, key, None, failure));
    let length = config.control.socket.as_os_str().len();
    if length > SOCKET_PATH_BYTES_MAX {
        let what = format!(
            "control.socket has {length} bytes, and a socket's path at most {SOCKET_PATH_BYTES_MAX}"
        );
        return wrong(
            "control.socket",
            Failure::new(what).hint("choose a shorter path: /run/forebay/control.sock"),
        );
    }
    if config.reactors.is_some_and(|count| count.get() > REACTORS_MAX) {
        return wrong(
            "reactors",
            Failure::new(format!("reactors is more than {REACTORS_MAX}"))
                .hint("one per core is the most that is of use; leave the key out"),
        );
    }
    let exports = &config.exports;
    if exports.inflight_bytes_max < INFLIGHT_BYTES_MIN {
        return wrong(
            "exports.inflight_bytes_max",
            Failure::new(format!(
                "exports.inflight_bytes_max is {}, and one of the longest requests takes \
                 {INFLIGHT_BYTES_MIN}",
                exports.inflight_bytes_max
            ))
            .hint(format!("use {INFLIGHT_BYTES_MIN} or more; without the key it is twice as much")),
        );
    }
    if exports.memory_bytes_max < exports.inflight_bytes_max {
        let mine = place_of(text, "exports.memory_bytes_max", None).is_some();
        let key = if mine { "exports.memory_bytes_max" } else { "exports.inflight_bytes_max" };
        return wrong(
            key,
            Failure::new(format!(
                "exports.memory_bytes_max is {}, which is less than one client may have \
                 (exports.inflight_bytes_max, {})",
                exports.memory_bytes_max, exports.inflight_bytes_max
            ))
            .hint("make it larger, or exports.inflight_bytes_max smaller"),
        );
    }
    if exports.memory_bytes_max > MEMORY_BYTES_MAX {
        return wrong(
            "exports.memory_bytes_max",
            Failure::new(format!(
                "exports.memory_bytes_max is {}, and the most is {MEMORY_BYTES_MAX}",
                exports.memory_bytes_max
            ))
            .hint(format!("without the key it is {SHARE_BYTES_INFLIGHT_MAX}")),
        );
    }
    Ok(())
}

/// What is wrong in a text, and where.
pub(super) fn explain(text: &str, error: &toml::de::Error) -> Failure {
    let span = error.span().unwrap_or_default();
    let message = error.message().replace('\n', ", ");
    // The last one is what a word is told that is no text at all.
    let of_value = ["invalid ", "unknown variant", "wanted "];
    let is_of_value = of_value.iter().any(|it| message.starts_with(it));
    let failure = match takes(text, &span).filter(|_| is_of_value) {
        Some(failure) => failure,
        None => Failure::new(message.as_str()).hint("docs/user/reference.md lists the keys"),
    };
    let failure = failure.on(place(text, span.start));
    match nearest_expected(&message) {
        Some(nearest) => failure.hint(question(format_args!("`{nearest}`")).trim_end()),
        None => failure,
    }
}

/// Bytes of a value that are shown to who has written it.
const VALUE_BYTES_MAX: usize = 40;

/// What the key takes whose value, or a part of it, stands there.
fn takes(text: &str, span: &Range<usize>) -> Option<Failure> {
    let value = text.get(span.clone())?;
    let value = match value.len() > VALUE_BYTES_MAX || value.contains('\n') {
        true => "what is there",
        false => value,
    };
    let is_of = |key: &str| span_of(text, key, None).is_some_and(|it| it.contains(&span.start));
    if let Some(key) = config::keys().into_iter().find(|key| is_of(&key.name)) {
        let what = format!("{} takes {}, not {value}", key.name, key.takes);
        return Some(Failure::new(what).hint(format!("write it as in `{}`", key.example)));
    }
    let section = config::sections().find(|name| is_of(name))?;
    Some(
        Failure::new(format!("{section} is a section, not {value}"))
            .hint(format!("write [{section}] on a line of its own, and its keys below")),
    )
}

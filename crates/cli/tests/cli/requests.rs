//! What the daemon says to wrong commands, wrong configurations, and to bodies of any kind.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::common::config;
use crate::common::daemon::{Daemon, served};
use crate::common::routes::{left_out, plans};
use crate::common::{Dir, forebay, run, stderr};
use forebay_device::real::extents::unwritten_bytes;
use proptest::prelude::*;

/// Makes a file of which nothing is written, and all is reserved; false where the file system does not tell.
fn reserve(path: &Path, bytes: u64) -> bool {
    let mut make = std::process::Command::new("fallocate");
    let made = make.arg("-l").arg(bytes.to_string()).arg(path).status();
    let is_told = unwritten_bytes(path, 0) == Some(bytes);
    if !is_told {
        println!("skipped: this file system reserves nothing, or does not tell ({made:?})");
    }
    is_told
}

#[test]
fn wrong_commands_are_refused_with_reason_and_remedy() {
    let mut daemon = Daemon::new("wrong");
    let ssd = daemon.ssd("ssd-0");
    let (ssd, dir) = (ssd.to_str().unwrap(), daemon.dir.0.to_str().unwrap().to_owned());
    let missing = format!("{dir}/missing");
    daemon.refused(&["pool", "show", "none"], "there is no pool \"none\"", "pool list");
    daemon.refused(&["pool", "create", "a", "--ssd", &missing], "does not exist", "check the path");
    daemon.refused(&["pool", "create", "a", "--ssd", ssd, "--ssd", ssd], "given twice", "once");
    let sparse = daemon.dir.sparse("sparse", 512 << 20);
    let sparse = sparse.to_str().unwrap();
    daemon.refused(&["pool", "create", "a", "--ssd", sparse], "has holes", "dd if=/dev/zero");
    let reserved = daemon.dir.path("reserved");
    if reserve(&reserved, 512 << 20) {
        let create = ["pool", "create", "a", "--ssd", reserved.to_str().unwrap(), "--dry-run"];
        daemon.refused(&create, "was never written in full: 512 MiB of 512 MiB", "dd if=/dev/zero");
        let hint = stderr(&daemon.ask(&create));
        let fill = hint.split('`').nth(1).unwrap();
        assert!(
            run(std::process::Command::new("sh").args(["-c", fill])).status.success(),
            "{fill}"
        );
        daemon.tell(&create);
        std::fs::remove_file(&reserved).unwrap();
    }
    daemon.refused(
        &["pool", "create", "a", "--ssd", ssd, "--dirty-copies", "2"],
        "2 dirty copies on 1 cache device",
        "as many devices as copies",
    );
    let small = daemon.dir.full("small", 1 << 20);
    let small = small.to_str().unwrap();
    daemon.refused(&["pool", "create", "a", "--ssd", small], "too small", "at least 512 MiB");
    daemon.tell(&["pool", "create", "fast", "--ssd", ssd]);
    daemon.refused(&["pool", "show", "fats"], "there is no pool \"fats\"", "did you mean fast?");
    for (wrong, right) in [("dirty-age=1m", "dirty-age-max"), ("writethru", "writethrough")] {
        let output = daemon.ask(&["volume", "set", "fast/v", wrong]);
        let hint = format!("did you mean {right}?");
        assert!(stderr(&output).contains(&hint), "{}", stderr(&output));
    }
    let output = daemon.ask(&["volume", "set", "fast/v", "dirty-age-max=0s"]);
    assert!(stderr(&output).contains("write off, or use writethrough"), "{}", stderr(&output));
    daemon.refused(&["pool", "create", "fast", "--ssd", small], "a pool \"fast\" already", "name");
    daemon.refused(
        &["pool", "create", "b", "--ssd", ssd],
        "is a cache device of pool \"fast\"",
        "use another one",
    );
    let add = ["volume", "add", "fast/v", "--origin"];
    daemon.refused(&[&add[..], &[&missing]].concat(), "does not exist", "check the path");
    daemon.refused(
        &[&add[..], &[ssd]].concat(),
        "is a cache device of pool \"fast\"",
        "another file",
    );
    let empty = daemon.dir.sparse("empty", 0);
    let of_empty = [&add[..], &[empty.to_str().unwrap()]].concat();
    daemon.refused(&of_empty, "is empty", "`truncate -s 10G ");
    let origin = daemon.dir.sparse("origin", 8 << 20);
    let origin = origin.to_str().unwrap();
    daemon.refused(
        &[&add[..], &[origin, "--mode", "writeback"]].concat(),
        "loses data when the SSD dies",
        "--accept-data-loss-on-ssd-failure",
    );
    for wrong in [
        &["volume", "add", "fast/v", "--origin", origin, "--cache-block", "5K"][..],
        &["volume", "set", "fast/v", "cache_block=5K"],
    ] {
        let output = daemon.ask(wrong);
        assert_eq!(output.status.code(), Some(2), "what cannot be understood: {wrong:?}");
        assert!(stderr(&output).contains("power of two"), "{}", stderr(&output));
    }
    daemon.tell(&[&add[..], &[origin]].concat());
    daemon.refused(&[&add[..], &[origin]].concat(), "a volume \"fast/v\" already", "another name");
    let again = ["volume", "add", "fast/w", "--origin", origin];
    daemon.refused(&again, "is the origin of volume \"fast/v\"", "another disk");
    daemon.refused(&["export", "remove", "fast/v"], "is not exported", "export list");
    daemon.refused(&["export", "add", "fast/xyz"], "there is no volume", "volume list");
    daemon.refused(&["volume", "show", "fast/w"], "there is no volume", "did you mean fast/v?");
    daemon.refused(&["volume", "remove", "fast/w"], "there is no volume", "did you mean fast/v?");
    daemon.refused(&["advisor", "start", "fast/w"], "there is no volume", "did you mean fast/v?");
    let verify = ["pool", "set", "fast", "verify=raeds"];
    daemon.misused(&verify, "verify=raeds cannot be set", "did you mean reads? write it as");
    let long = format!("{dir}/{}", "x".repeat(120));
    daemon.refused(&["export", "add", "fast/v", "--socket", &long], "listen on", "107 bytes");
    daemon.tell(&["export", "add", "fast/v"]);
    daemon.refused(&["export", "add", "fast/v"], "exported already", "export remove fast/v");
    daemon.refused(&["pool", "destroy", "fast"], "needs a confirmation", "--yes");
    daemon.refused(&["pool", "destroy", "fast", "--yes"], "is exported", "export remove fast/v");
    daemon.refused(&["explain", "origin-mising"], "no code", "did you mean origin-missing?");
    daemon.refused(&["export", "remove", "fast/w"], "is not exported", "did you mean fast/v?");
    daemon.tell(&["pool", "export", "fast"]);
    let import = ["pool", "import", "fats"];
    daemon.refused(&import, "no cache device of a pool \"fats\"", "did you mean fast? name its");
    daemon.stop();
    daemon.refused(&["status"], "no daemon answers", "forebay serve");
}

#[test]
fn names_outside_of_the_alphabet_are_usage_errors() {
    let long = "x".repeat(64);
    for name in ["", "a b", "..", "a/b", "ä", &long] {
        let output = run(forebay().args(["pool", "create", name, "--ssd", "/dev/null"]));
        assert_eq!(output.status.code(), Some(2), "{name:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("cannot be a name"), "{name:?}: {}", stderr(&output));
    }
    let output = run(forebay().args(["volume", "show", "fast"]));
    assert!(output.status.code() == Some(2) && stderr(&output).contains("write POOL/NAME"));
}

#[test]
fn a_configuration_with_a_typo_is_refused_with_its_place() {
    let dir = Dir::new("config");
    let path = dir.path("forebay.toml");
    std::fs::write(&path, "state_dir = \"/x\"\n[devices]\nscna = []\n").unwrap();
    let output = run(forebay().arg("serve").arg("--config").arg(&path));
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("forebay.toml: line 3, column 1: unknown field `scna`"), "{text}");
    assert!(text.contains("hint: did you mean `scan`?"), "{text}");
}

/// Sends one request and returns its status, if the server gave one.
fn status(socket: &Path, method: &str, target: &str, body: &[u8]) -> Option<u16> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    // The server may refuse before it has read everything.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let line = String::from_utf8_lossy(&answer);
    line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

const TARGETS: &[(&str, &str)] = &[
    ("POST", "/api/v1/pools"),
    ("POST", "/api/v1/import"),
    ("POST", "/api/v1/pools/fast/destroy"),
    ("POST", "/api/v1/pools/fast/bypass"),
    ("POST", "/api/v1/pools/fast/devices/add"),
    ("POST", "/api/v1/pools/fast/devices/grow"),
    ("POST", "/api/v1/pools/fast/devices/spare"),
    ("POST", "/api/v1/pools/fast/devices/remove"),
    ("POST", "/api/v1/pools/fast/devices/replace"),
    ("POST", "/api/v1/pools/fast/devices/can-i-pull"),
    ("POST", "/api/v1/pools/none/export"),
    ("POST", "/api/v1/pools/fast/volumes"),
    ("PATCH", "/api/v1/pools/fast/volumes/v"),
    ("POST", "/api/v1/pools/fast/volumes/v/flush"),
    ("DELETE", "/api/v1/pools/fast/volumes/none"),
    ("POST", "/api/v1/plan"),
    ("GET", "/api/v1/status"),
    ("GET", "/api/v1/stats"),
    ("GET", "/api/v1/events"),
    ("GET", "/api/v1/pools"),
    ("GET", "/api/v1/pools/fast"),
    ("PATCH", "/api/v1/pools/fast"),
    ("GET", "/api/v1/import"),
    ("POST", "/api/v1/pools/fast/scrub"),
    ("DELETE", "/api/v1/pools/fast/scrub"),
    ("GET", "/api/v1/volumes"),
    ("GET", "/api/v1/pools/fast/volumes/v"),
    ("PATCH", "/api/v1/pools/fast/volumes/v/settings"),
    ("POST", "/api/v1/pools/fast/volumes/v/grow"),
    ("POST", "/api/v1/pools/fast/volumes/v/accept-lost"),
    ("POST", "/api/v1/pools/fast/volumes/v/accept-origin"),
    ("GET", "/api/v1/exports"),
    ("GET", "/api/v1/jobs"),
    ("POST", "/api/v1/stop"),
    ("POST", "/api/v1/exports"),
    ("DELETE", "/api/v1/exports/fast/none"),
    ("GET", "/api/v1/jobs/1"),
    ("DELETE", "/api/v1/jobs/99999999999999999999"),
    ("GET", "/api/v1/advisors"),
    ("POST", "/api/v1/pools/fast/volumes/v/advisor"),
    ("GET", "/api/v1/pools/fast/volumes/v/advisor"),
    ("DELETE", "/api/v1/pools/fast/volumes/v/advisor"),
    ("GET", "/api/v1/events?after=x"),
    ("GET", "/api/v1/pools/%ff"),
    ("PUT", "/api/v1/pools"),
    ("GET", "/nowhere"),
];

/// Values as the fields have them, and as they do not.
fn value() -> impl Strategy<Value = serde_json::Value> {
    prop_oneof![
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        "\\PC{0,80}".prop_map(Into::into),
        prop_oneof!["fast", "v", "fast/v", "/dev/null", "/dev/full", "/", "/proc/self/mem", "0"]
            .prop_map(Into::into),
        Just(serde_json::Value::Null),
        Just(u64::MAX.into()),
        prop::collection::vec(prop_oneof!["/dev/zero", "/tmp", "x"], 0..9)
            .prop_map(|paths| paths.into()),
        Just(serde_json::json!({"port": 70000})),
        Just(serde_json::json!({"socket": "/proc/nowhere/s"})),
    ]
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let field = prop_oneof![
        "name",
        "ssds",
        "dirty_copies",
        "clean_copies",
        "profile",
        "dry_run",
        "origin",
        "mode",
        "cache_block_bytes",
        "volume",
        "place",
        "pool",
        "accept_missing",
        "take_over",
        "ssd",
        "device",
        "old",
        "new",
        "confirm",
        "dirty",
        "settings",
        "destage",
        "accept_removed",
        "dirty_age_max_s",
        "destage_hours",
        "limit_bytes",
        "ram_bytes",
        "verify",
        "days",
        "[a-z_]{1,9}"
    ];
    let plan = prop::sample::select(plans().into_iter().collect::<Vec<_>>());
    let planned = prop_oneof![
        value(),
        prop::collection::btree_map(field.clone(), value(), 0..4)
            .prop_map(|map| serde_json::to_value(map).unwrap()),
    ];
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        (plan, planned).prop_map(|(plan, body)| {
            serde_json::to_vec(&serde_json::json!({ plan: body })).unwrap()
        }),
        prop::collection::btree_map(field, value(), 0..6)
            .prop_map(|map| serde_json::to_vec(&map).unwrap()),
        Just(b"[".repeat(20_000)),
        Just(vec![b' '; 100_000]),
    ]
}

#[test]
fn bodies_of_any_kind_get_no_5xx_and_end_nothing() {
    let daemon = Daemon::new("bodies");
    let ssd = daemon.ssd("ssd-0");
    daemon.tell(&["pool", "create", "fast", "--ssd", ssd.to_str().unwrap()]);
    let origin = daemon.dir.sparse("origin", 8 << 20);
    daemon.tell(&["volume", "add", "fast/v", "--origin", origin.to_str().unwrap()]);
    let socket = daemon.dir.path("control.sock");
    let cases = config(400);
    let left_out = left_out(TARGETS.iter().copied());
    assert!(left_out.is_empty(), "nothing is sent to {left_out:?}");
    let served = RefCell::new(daemon);
    proptest!(cases, |(target in 0..TARGETS.len(), body in body())| {
        let (method, address) = TARGETS[target];
        let found = status(&socket, method, address, &body);
        prop_assert!(found.is_some_and(|status| (200..500).contains(&status)), "{method} {address}: {found:?}");
        if address.ends_with("/stop") && found == Some(200) {
            let mut daemon = served.borrow_mut();
            prop_assert!(daemon.wait());
            daemon.start();
        }
    });
    let mut daemon = served.into_inner();
    // All of these were answered by the same daemon, which still does its work.
    daemon.tell(&["volume", "flush", "fast/v"]);
    daemon.stop();
}

#[test]
fn every_shell_has_its_completion() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(forebay().args(["completion", shell]));
        assert!(String::from_utf8_lossy(&output.stdout).contains("forebay"), "{shell}");
    }
}

#[test]
fn what_takes_something_away_or_brings_it_back_says_what_comes_next() {
    let daemon = served("next");
    let next = |arguments: &[&str], expected: &str| {
        let output = daemon.ask(arguments);
        let text = stderr(&output);
        assert!(output.status.success(), "{arguments:?}: {text}");
        let line = text.lines().find(|line| line.starts_with("next: "));
        assert_eq!(line, Some(format!("next: {expected}").as_str()), "{arguments:?}: {text}");
    };
    next(
        &["export", "remove", "fast/vm"],
        "`forebay volume remove fast/vm`, or `forebay export add fast/vm`",
    );
    let import = "`forebay pool import fast` on the machine that has them then";
    next(&["pool", "export", "fast"], import);
    next(&["pool", "import", "fast"], "`forebay export add fast/vm`");
    next(
        &["volume", "remove", "fast/vm", "--yes"],
        "`forebay volume add fast/NAME --origin PATH`, or `forebay pool destroy fast`",
    );
    daemon.tell(&["pool", "export", "fast"]);
    next(&["pool", "import", "fast"], "`forebay volume add fast/NAME --origin PATH`");
    next(&["pool", "destroy", "fast", "--yes"], "`forebay pool create NAME --ssd PATH`");
}

/// What its index may take, as `--bytes` prints it.
fn index_max(json: &str) -> String {
    let pool: serde_json::Value = serde_json::from_str(json).unwrap();
    format!("of at most {} B;", pool["usage"]["index_bytes_max"])
}

#[test]
fn what_commands_that_ask_take_stands_before_or_behind_their_words() {
    let daemon = served("anywhere");
    let socket = daemon.dir.path("control.sock");
    let control = ["--control", socket.to_str().unwrap()];
    let said = |parts: &[&[&str]]| {
        let mut command = forebay();
        let output = run(command.env_remove("FOREBAY_CONTROL").args(parts.concat()));
        assert!(output.status.success(), "{parts:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let json = said(&[&["volume", "list", "--json"], &control]);
    assert!(json.starts_with("{\n  \"schema\": 1"), "{json}");
    let list: serde_json::Value = serde_json::from_str(&json).unwrap();
    let size = format!(" {} B ", list["items"][0]["size_bytes"]);
    for parts in [
        [&control[..], &["--json", "volume", "list"]],
        [&["--json", "volume"], &[&control[..], &["list"]].concat()],
    ] {
        let other: serde_json::Value = serde_json::from_str(&said(&parts)).unwrap();
        assert_eq!(other["items"][0]["name"], list["items"][0]["name"]);
    }
    for parts in [
        [&control[..], &["--bytes", "volume", "list"]],
        [&["volume", "list", "--bytes"], &control[..]],
    ] {
        assert!(said(&parts).contains(&size), "{}", said(&parts));
    }
    assert!(!said(&[&["volume", "list"], &control]).contains(&size));
    let of_bytes = |words: &[&str]| said(&[words, &["--bytes"], &control[..]]);
    let index = index_max(&said(&[&["pool", "show", "fast", "--json"], &control]));
    for words in [&["status"][..], &["pool", "show", "fast"]] {
        assert!(of_bytes(words).contains(&index), "{}", of_bytes(words));
    }
    assert!(
        of_bytes(&["volume", "show", "fast/vm"]).contains(format!("size    {size}").trim_end())
    );
    assert!(of_bytes(&["stats"]).contains(" B/S "), "{}", of_bytes(&["stats"]));
    // Commands that ask nobody have some options of these names, and no others.
    assert_eq!(said(&[&["--json", "explain"]]), said(&[&["explain", "--json"]]));
    let refused = run(forebay().args(["--control", "/nowhere", "man", "/nowhere"]));
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("unexpected argument '--control'"), "{}", stderr(&refused));
}

//! What is said of pools that are not as they should be, and of their volumes.

use crate::common::Client;
use crate::common::daemon::{
    Daemon, SSD_BYTES, VOLUME_BYTES, served, show, until, until_served, written,
};
use crate::common::{run, stderr};

/// Takes a file away, or puts it back.
fn rename(daemon: &Daemon, from: &str, to: &str) {
    std::fs::rename(daemon.dir.path(from), daemon.dir.path(to)).unwrap();
}

fn summary(daemon: &Daemon) -> String {
    daemon.json(&["status"])["summary"].as_str().unwrap().to_owned()
}

#[test]
fn a_pool_without_its_ssds_is_not_said_to_be_well_nor_its_volumes_not_to_be_there() {
    let mut daemon = served("verdict-gone");
    assert_eq!(summary(&daemon), "Healthy. 1 pool; every origin has all of its data.");
    daemon.stop();
    rename(&daemon, "ssd-0", "away-0");
    rename(&daemon, "ssd-1", "away-1");
    daemon.spawn();
    daemon.until("the pool waits", |status| status.contains("\"waiting\""));
    let said = summary(&daemon);
    assert!(said.starts_with("A look is needed at 1 of 1 pool. 1 is not open: "), "{said}");
    assert!(!said.contains("every origin"), "{said}");
    let pool = show(&daemon);
    let action = pool["action"].as_str().unwrap();
    assert!(action.contains("they were last at ") && action.contains("/ssd-1"), "{action}");
    assert!(!action.contains("pool import"), "{action}");
    until("its volumes are known", || !show(&daemon)["volumes"].as_array().unwrap().is_empty());
    let volume = daemon.json(&["volume", "show", "fast/vm"]);
    assert_eq!((&volume["state"], &volume["mode"]), (&"offline".into(), &"writeback".into()));
    let said = volume["reason"].as_str().unwrap();
    assert!(said.ends_with("its origin has all of its data"), "{said}");
    let text = daemon.tell(&["volume", "show", "fast/vm"]);
    assert!(text.contains("size     -\n") && !text.contains("streams"), "{text}");
    rename(&daemon, "away-0", "ssd-0");
    rename(&daemon, "away-1", "ssd-1");
    daemon.until("the pool is whole", |status| status.contains("\"online\""));
    daemon.stop();
}

#[test]
fn a_volume_that_is_written_through_for_want_of_ssds_says_so() {
    let mut daemon = served("verdict-through");
    let shown = daemon.json(&["volume", "show", "fast/vm"]);
    assert_eq!(
        (&shown["mode"], &shown["effective_mode"]),
        (&"writeback".into(), &"writeback".into())
    );
    assert_eq!(shown["effective_reason"], "");
    daemon.stop();
    rename(&daemon, "ssd-1", "away-1");
    daemon.start();
    until_served(&daemon);
    until("it is protected", || show(&daemon)["state"] == "protected");
    let shown = daemon.json(&["volume", "show", "fast/vm"]);
    assert_eq!(
        (&shown["mode"], &shown["effective_mode"]),
        (&"writeback".into(), &"writethrough".into())
    );
    let text = daemon.tell(&["volume", "show", "fast/vm"]);
    assert!(text.contains("mode     writeback (written through until there are SSDs"), "{text}");
    assert!(daemon.tell(&["volume", "list"]).contains("writeback (through)"));
    let said = stderr(&daemon.ask(&["volume", "set", "fast/vm", "writeback"]));
    assert!(said.contains("is now writeback, and written through until there are SSDs"), "{said}");
    daemon.stop();
}

#[test]
fn an_export_that_is_not_served_says_why_where_its_volume_is_shown() {
    let mut daemon = served("verdict-export");
    daemon.stop();
    rename(&daemon, "origin", "origin-away");
    daemon.start();
    until("its origin is missed", || {
        daemon.json(&["volume", "show", "fast/vm"])["state"] == "origin-missing"
    });
    let text = daemon.tell(&["volume", "show", "fast/vm"]);
    assert!(text.contains("export   not served: its volume is not online"), "{text}");
    daemon.stop();
}

#[test]
fn a_mode_that_is_set_as_a_key_is_said_to_stand_by_itself() {
    let mut daemon = served("verdict-mode");
    let misused = |settings: &[&str], why: &str| {
        let output = daemon.ask(&[&["volume", "set", "fast/vm"][..], settings].concat());
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{settings:?}: {text}");
        assert!(text.contains(why), "{settings:?}: {text}");
    };
    misused(&["mode=bypass"], "`forebay volume set POOL/NAME bypass`");
    misused(&["bypass", "limit=off"], "a mode is changed by itself");
    misused(&["dirty-age-max=1h", "dirty_age_max=2h"], "dirty-age-max is set twice");
    daemon.tell(&["volume", "set", "fast/vm", "dirty_age_max=15m", "cache-block=64K"]);
    assert_eq!(daemon.json(&["volume", "show", "fast/vm"])["dirty_age_max_s"], 900);
    daemon.stop();
}

#[test]
fn a_code_that_nothing_is_like_is_not_guessed() {
    let mut daemon = Daemon::new("verdict-code");
    daemon.refused(&["explain", "ORIGIN-MISSING"], "no code", "did you mean origin-missing?");
    let text = stderr(&daemon.ask(&["explain", "nope"]));
    assert!(text.contains("`forebay explain` lists all") && !text.contains("mean"), "{text}");
    daemon.stop();
}

/// One that the pool went on without is let go of at the next start, so that it can be erased and added anew.
#[test]
fn a_stale_cache_device_can_be_added_again_once_it_is_erased() {
    let mut daemon = served("verdict-stale");
    daemon.stop();
    rename(&daemon, "ssd-1", "away-1");
    daemon.start();
    until("it is protected", || show(&daemon)["state"] == "protected");
    daemon.stop();
    rename(&daemon, "away-1", "ssd-1");
    daemon.start();
    assert!(daemon.tell(&["events"]).contains("member-stale"));
    let ssd = daemon.dir.path("ssd-1");
    let add = ["pool", "device", "add", "fast", ssd.to_str().unwrap()];
    let said = || stderr(&daemon.ask(&add));
    until("it is let go of", || said().contains("it is stale: pool \"fast\" ("));
    daemon.refused(&add, "has gone on without it", "erase it");
    let hint = said();
    assert!(!hint.contains("pool import"), "{hint}");
    let erase = hint.split('`').nth(1).unwrap();
    let erased = run(std::process::Command::new("sh").args(["-c", erase]));
    assert!(erased.status.success(), "{erase}: {}", stderr(&erased));
    assert_eq!(std::fs::metadata(&ssd).unwrap().len(), SSD_BYTES as u64);
    daemon.tell(&add);
    until("everything has its copies", || show(&daemon)["state"] == "online");
    daemon.stop();
}

#[test]
fn an_origin_that_has_become_smaller_is_to_have_its_size_again() {
    let mut daemon = served("verdict-smaller");
    daemon.stop();
    let origin = std::fs::File::options().write(true).open(daemon.dir.path("origin")).unwrap();
    origin.set_len(VOLUME_BYTES as u64 / 2).unwrap();
    daemon.start();
    until("its origin is refused", || {
        daemon.json(&["volume", "show", "fast/vm"])["state"] == "origin-missing"
    });
    let pool = show(&daemon);
    let action = pool["action"].as_str().unwrap();
    assert!(action.starts_with("make the origin at least 33554432 B again"), "{action}");
    origin.set_len(VOLUME_BYTES as u64).unwrap();
    until_served(&daemon);
    daemon.stop();
}

#[test]
fn what_of_a_volume_is_in_ram_is_said_beside_what_the_ssds_hold() {
    let mut daemon = served("verdict-ram");
    assert!(!daemon.tell(&["volume", "show", "fast/vm"]).contains("in RAM"));
    daemon.tell(&["pool", "set", "fast", "ram=16M"]);
    until("the RAM tier has its size", || show(&daemon)["usage"]["ram"]["size_bytes"] == 16 << 20);
    let mut client = Client::connect(&daemon.dir.path("nbd"));
    // Longer ones leave RAM alone.
    const READ: usize = 64 << 10;
    for at in (0..2 << 20).step_by(READ).rev().cycle().take(3 * 32) {
        client.read(at as u64, &mut [0; READ]).unwrap();
    }
    let space = daemon.json(&["volume", "show", "fast/vm"])["space"].clone();
    assert!(space["ram_bytes"].as_u64().unwrap() >= 1 << 20, "{space}");
    for words in [&["volume", "show", "fast/vm"][..], &["volume", "list"]] {
        let text = daemon.tell(words);
        assert!(text.contains("MiB in RAM"), "{text}");
    }
    drop(client);
    daemon.stop();
}

#[test]
fn what_was_written_to_the_ssds_is_said_by_cause() {
    let mut daemon = served("verdict-written");
    assert!(show(&daemon)["usage"]["write_amplification_percent"].is_null());
    written(&daemon, 2);
    let usage = show(&daemon)["usage"].clone();
    // Both copies.
    assert_eq!(usage["written"]["write_bytes"].as_u64(), Some(2 * VOLUME_BYTES as u64), "{usage}");
    assert!(usage["written"]["header_bytes"].as_u64().unwrap() > 0, "{usage}");
    assert!(usage["write_amplification_percent"].as_u64().unwrap() >= 100, "{usage}");
    let text = daemon.tell(&["pool", "show", "fast"]);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("% since the start") && text.contains("64 MiB of clients"), "{text}");
    daemon.stop();
}

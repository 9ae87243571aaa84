//! Cache devices that are not to be believed: whose superblocks nobody can read, as they are damaged or of a later version, and
//! older copies.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_engine::format::{FORMAT_VERSION, SUPERBLOCK_BYTES, checksum};

use crate::common::daemon::{Daemon, read_all, served, show, until_served, written};

/// Changes both superblocks of a cache device.
fn edit(path: &Path, change: impl Fn(&mut [u8])) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    for slot in 0..2u64 {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        let at = slot * SUPERBLOCK_BYTES as u64;
        file.read_exact_at(&mut bytes, at).unwrap();
        change(&mut bytes);
        file.write_all_at(&bytes, at).unwrap();
    }
}

/// As a bad SSD would.
fn damage(path: &Path) {
    edit(path, |bytes| bytes[60] ^= 1);
}

/// As a later version of Forebay would write them.
fn make_later(path: &Path) {
    edit(path, |bytes| {
        bytes[8..12].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
        bytes[16..20].fill(0);
        let sum = checksum(bytes);
        bytes[16..20].copy_from_slice(&sum.to_le_bytes());
    });
}

#[test]
fn a_cache_device_that_cannot_be_read_does_not_become_an_origin() {
    let mut daemon = Daemon::new("unreadable-origin");
    let ssds = ["ssd-0", "ssd-1", "ssd-2"].map(|name| daemon.ssd(name));
    for (pool, ssd) in ["fast", "hurt", "later"].iter().zip(&ssds) {
        daemon.tell(&["pool", "create", pool, "--ssd", ssd.to_str().unwrap()]);
    }
    daemon.stop();
    damage(&ssds[1]);
    make_later(&ssds[2]);
    daemon.spawn();
    daemon.until("one pool is open", |status| status.contains("\"online\""));
    for ssd in &ssds[1..] {
        let origin = ssd.to_str().unwrap();
        let add = ["volume", "add", "fast/vm", "--origin", origin];
        daemon.refused(&add, "is a cache device that cannot be read", "forebay inspect");
    }
    // Nor is it said to be absent.
    for (pool, ssd, why, action) in [
        ("hurt", &ssds[1], "both superblocks are damaged", "see `forebay inspect"),
        ("later", &ssds[2], "format version", "use the version of Forebay that wrote it"),
    ] {
        let ssd = ssd.to_str().unwrap();
        let shown = daemon.json(&["pool", "show", pool]);
        let summary = shown["summary"].as_str().unwrap();
        assert!(summary.contains("none can be read"), "{summary}");
        assert!(summary.contains(ssd) && summary.contains(why), "{summary}");
        assert!(shown["action"].as_str().unwrap().starts_with(action), "{shown}");
        let import = ["pool", "import", pool];
        daemon.refused(&import, "can be read", action);
        let events = daemon.tell(&["events"]);
        let told = |line: &str| line.contains("member-unreadable") && line.contains(ssd);
        assert_eq!(events.lines().filter(|line| told(line)).count(), 1, "{events}");
    }
}

#[test]
fn a_pool_goes_on_without_what_is_damaged_and_says_so_before() {
    let mut daemon = served("unreadable-damaged");
    daemon.stop();
    damage(&daemon.dir.path("ssd-1"));
    daemon.start();
    let events = daemon.tell(&["events"]);
    let at = |code: &str| events.lines().position(|line| line.contains(code));
    assert!(at("member-unreadable").is_some(), "{events}");
    assert!(at("member-unreadable") < at("member-missing"), "{events}");
}

#[test]
fn a_pool_does_not_go_on_without_what_a_later_version_has_written() {
    let mut daemon = served("unreadable-later");
    daemon.stop();
    make_later(&daemon.dir.path("ssd-1"));
    daemon.start();
    let shown = daemon.json(&["pool", "show", "fast"]);
    assert_eq!(shown["state"], "needs-decision", "{shown}");
    let import = ["pool", "import", "fast"];
    daemon.refused(&import, "format version", "use the version of Forebay that wrote it");
    daemon.tell(&["pool", "import", "fast", "--accept-missing", "--yes"]);
    assert_eq!(daemon.json(&["pool", "show", "fast"])["state"], "protected");
}

#[test]
fn a_start_does_not_miss_devices_that_it_has_not_looked_for() {
    let mut daemon = served("looked-for");
    for _ in 0..3 {
        daemon.stop();
        daemon.spawn();
        daemon.until("the pool is open", |status| {
            assert!(!status.contains("is there"), "{status}");
            // The stop before was a clean one.
            assert!(!status.contains("lease of the pool"), "{status}");
            status.contains("\"online\"")
        });
    }
}

#[test]
fn older_copies_of_cache_devices_are_not_believed() {
    let mut daemon = served("older");
    let ssds = ["ssd-0", "ssd-1"].map(|name| daemon.dir.path(name));
    let aside = |kind: &str, number: usize| daemon.dir.path(&format!("{kind}-{number}"));
    let [older, newest] = ["older", "newest"].map(|kind| [0, 1].map(|number| aside(kind, number)));
    let copy = |from: &Path, to: &Path| assert!(std::fs::copy(from, to).unwrap() > 0);
    written(&daemon, 2);
    daemon.stop();
    ssds.iter().zip(&older).for_each(|(ssd, to)| copy(ssd, to));
    daemon.start();
    until_served(&daemon);
    let content = written(&daemon, 3);
    daemon.kill();
    ssds.iter().zip(&newest).for_each(|(ssd, to)| copy(ssd, to));
    // Of all of them the state directory knows a later state.
    ssds.iter().zip(&older).for_each(|(ssd, from)| copy(from, ssd));
    daemon.start();
    let pool = show(&daemon);
    assert_eq!(pool["state"], "needs-decision", "{pool}");
    assert!(pool["summary"].to_string().contains("as they were at an earlier time"), "{pool}");
    daemon.stop();
    // Of one of them the other one does.
    copy(&newest[0], &ssds[0]);
    daemon.start();
    until_served(&daemon);
    assert!(read_all(&daemon.dir.path("nbd")) == content);
    let events = daemon.json(&["events"]).to_string();
    assert!(events.contains("has been set back"), "{events}");
    assert_eq!(show(&daemon)["members"][1]["state"], "lost");
    daemon.stop();
}

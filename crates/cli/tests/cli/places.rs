//! Files that are removed, moved or replaced while the daemon has them open.

use std::path::{Path, PathBuf};

use crate::common::Client;
use crate::common::daemon::{
    Daemon, VOLUME_BYTES, content, members, patient, read_all, served, show, until, until_served,
    written,
};

const SHOW: [&str; 3] = ["volume", "show", "fast/vm"];

/// Everything that would tell somebody that the plain disk has all of its data.
const ENDS: [&[&str]; 10] = [
    &["volume", "flush", "fast/vm"],
    &["volume", "flush", "fast/vm", "--dry-run"],
    &["volume", "set", "fast/vm", "writethrough"],
    &["volume", "set", "fast/vm", "bypass", "--dry-run"],
    &["volume", "remove", "fast/vm", "--yes"],
    &["volume", "remove", "fast/vm", "--dry-run"],
    &["pool", "destroy", "fast", "--yes"],
    &["pool", "destroy", "fast", "--dry-run"],
    &["stop", "--destage"],
    &["stop", "--destage", "--dry-run"],
];

fn is_missing(daemon: &Daemon, why: &str) {
    until(why, || {
        let volume = daemon.json(&SHOW);
        volume["state"] == "origin-missing" && volume["reason"].as_str().unwrap().contains(why)
    });
    assert_eq!(show(daemon)["health"], "failed");
    daemon.until("it is told", |_| daemon.tell(&["events"]).contains(why));
}

fn unexport(daemon: &Daemon) {
    daemon.tell(&["export", "remove", "fast/vm"]);
}

fn is_online(daemon: &Daemon) {
    until("it is online again", || daemon.json(&SHOW)["state"] == "online");
}

/// A file of the daemon's that has no name any more.
fn nameless(daemon: &Daemon, path: &Path) -> PathBuf {
    let name = format!("{} (deleted)", path.display());
    let files = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let mut files = files.map(|entry| entry.unwrap().path());
    files.find(|file| std::fs::read_link(file).is_ok_and(|it| it == Path::new(&name))).unwrap()
}

#[test]
fn an_origin_that_was_removed_is_no_plain_disk_and_can_be_saved() {
    let mut daemon = patient("removed");
    let origin = daemon.dir.path("origin");
    // Some of it may be on its way there.
    let first = written(&daemon, 2);
    std::fs::remove_file(&origin).unwrap();
    // Nobody has to wait for the look.
    daemon.refused(ENDS[0], "was removed while in use", "explain origin-missing");
    is_missing(&daemon, "its origin was removed while in use");
    // What clients write is kept in the cache: at the origin it would be gone. That it has not flushed what it had is told
    // once.
    let socket = daemon.dir.path("nbd");
    let mut client = Client::connect(&socket);
    let newest = content(3, 8 << 20);
    client.write(0, &newest).unwrap();
    client.flush().ok();
    std::thread::sleep(std::time::Duration::from_secs(4));
    client.flush().ok();
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_secs(1));
        client.flush().unwrap();
    }
    daemon.refused(&["stop"], "was removed while in use", "--discard-removed");
    let agreed = ["stop", "--discard-removed"];
    daemon.refused(&agreed, "cuts off the daemon's clients, 1", "--yes");
    drop(client);
    assert!(daemon.json(&SHOW)["dirty_bytes"].as_u64() >= Some(8 << 20));
    assert!(read_all(&socket)[8 << 20..] == first[8 << 20..], "it is read as before");
    unexport(&daemon);
    for ends in ENDS.iter().chain(&[&["pool", "export", "fast"][..]]) {
        daemon.refused(ends, "was removed while in use", "explain origin-missing");
    }
    assert_eq!(daemon.json(&SHOW)["mode"], "writeback", "what is refused changes nothing");
    daemon.refused(&["stop"], "was removed while in use", "--discard-removed");
    let status = daemon.tell(&["status"]);
    assert!(
        status.contains("keep the daemon running") && !status.contains("all of its"),
        "{status}"
    );
    // As `forebay explain origin-missing` says.
    std::fs::copy(nameless(&daemon, &origin), &origin).unwrap();
    daemon.stop();
    daemon.start();
    is_online(&daemon);
    daemon.tell(&["volume", "remove", "fast/vm", "--yes"]);
    let found = std::fs::read(&origin).unwrap();
    assert!(found[..8 << 20] == newest && found[8 << 20..] == first[8 << 20..]);
    daemon.stop();
}

#[test]
fn an_origin_that_was_moved_replaced_or_cut_off_is_missed_until_it_is_back() {
    let mut daemon = served("moved");
    let (origin, away) = (daemon.dir.path("origin"), daemon.dir.path("away"));
    let all = written(&daemon, 2);
    unexport(&daemon);
    std::fs::rename(&origin, &away).unwrap();
    for ends in ENDS {
        daemon.refused(ends, "nothing is at its path", "move it back");
    }
    is_missing(&daemon, "nothing is at its path");
    std::fs::write(&origin, vec![7; VOLUME_BYTES]).unwrap();
    for ends in ENDS {
        daemon.refused(ends, "something else is at its path", "move it back");
    }
    is_missing(&daemon, "something else is at its path");
    std::fs::rename(&away, &origin).unwrap();
    is_online(&daemon);
    let resize = |len: usize| {
        std::fs::File::options().write(true).open(&origin).unwrap().set_len(len as u64).unwrap();
    };
    daemon.tell(&["volume", "flush", "fast/vm"]);
    resize(VOLUME_BYTES - 4096);
    for ends in ENDS {
        daemon.refused(ends, "shorter while in use", "was cut off back");
    }
    is_missing(&daemon, "shorter while in use");
    // Its size does not bring back what it had there.
    resize(VOLUME_BYTES);
    std::thread::sleep(std::time::Duration::from_secs(4));
    daemon.refused(ENDS[0], "shorter while in use", "restart the daemon");
    daemon.stop();
    daemon.start();
    is_online(&daemon);
    daemon.tell(&["volume", "remove", "fast/vm", "--yes"]);
    let found = std::fs::read(&origin).unwrap();
    assert!(found[..VOLUME_BYTES - 4096] == all[..VOLUME_BYTES - 4096]);
    daemon.stop();
}

#[test]
fn an_ssd_whose_file_is_gone_is_told_of_and_can_be_replaced() {
    let mut daemon = served("displaced");
    let all = written(&daemon, 2);
    let ssd = members(&daemon)[0].clone();
    let away = daemon.dir.path("away");
    std::fs::rename(&ssd, &away).unwrap();
    let displaced = |daemon: &Daemon| show(daemon)["members"][0]["displaced"].to_string();
    until("it is missed", || displaced(&daemon).contains("nothing is at its path"));
    let shown = daemon.tell(&["pool", "show", "fast"]);
    assert!(
        shown.contains(&format!("SSD {ssd}: it was moved or unplugged while in use")),
        "{shown}"
    );
    assert!(shown.contains("explain member-displaced"), "{shown}");
    assert_eq!(show(&daemon)["health"], "degraded");
    std::fs::rename(&away, &ssd).unwrap();
    until("it is back", || displaced(&daemon) == "\"\"");
    let events = daemon.tell(&["events"]);
    assert!(events.contains("member-displaced") && events.contains("member-in-place"), "{events}");
    std::fs::remove_file(&ssd).unwrap();
    until("it is missed", || displaced(&daemon).contains("it was removed"));
    // It works, and goes without a loss.
    let other = daemon.ssd("ssd-2");
    let (ssd, other) = (ssd.as_str(), other.to_str().unwrap());
    daemon.tell(&["pool", "device", "replace", "fast", ssd, other, "--yes"]);
    until("nothing is amiss", || show(&daemon)["health"] == "good");
    daemon.kill();
    daemon.start();
    until_served(&daemon);
    assert!(read_all(&daemon.dir.path("nbd")) == all);
    daemon.stop();
}

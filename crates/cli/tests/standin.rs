//! What is served of a pool whose cache devices are away.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::path::Path;

use common::Client;
use common::daemon::{Daemon, content, until};

const BYTES: usize = 16 << 20;

/// A pool "fast" with the volumes "clean" and "dirty", each exported at a socket of its name; the daemon is stopped.
fn stopped(name: &str, more: &str) -> Daemon {
    let mut daemon = Daemon::with(name, |_| more.to_owned());
    let ssds = [daemon.ssd("ssd-0"), daemon.ssd("ssd-1")];
    let ssds = ssds.each_ref().map(|path| path.to_str().unwrap());
    daemon.tell(&["pool", "create", "fast", "--ssd", ssds[0], "--ssd", ssds[1]]);
    for (volume, seed) in [("fast/clean", 1), ("fast/dirty", 2)] {
        let short = &volume[5..];
        let origin = daemon.dir.path(&format!("origin-{short}"));
        std::fs::write(&origin, content(seed, BYTES)).unwrap();
        daemon.tell(&["volume", "add", volume, "--origin", origin.to_str().unwrap()]);
        daemon.tell(&["volume", "set", volume, "destage-hours=00:00-00:01"]);
        let socket = daemon.dir.path(short);
        daemon.tell(&["export", "add", volume, "--socket", socket.to_str().unwrap()]);
        let mut client = Client::connect(&socket);
        client.write(0, &content(seed + 2, 1 << 20)).unwrap();
        client.flush().unwrap();
    }
    daemon.tell(&["volume", "flush", "fast/clean"]);
    daemon.stop();
    daemon
}

fn away(daemon: &Daemon, is_away: bool) {
    for (here, there) in [("ssd-0", "away-0"), ("ssd-1", "away-1")] {
        let (from, to) = if is_away { (here, there) } else { (there, here) };
        std::fs::rename(daemon.dir.path(from), daemon.dir.path(to)).unwrap();
    }
}

fn state(daemon: &Daemon, what: &str) -> String {
    let output = daemon.ask(&["volume", "show", what, "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    shown["item"]["state"].as_str().or(shown["state"].as_str()).unwrap_or_default().to_owned()
}

fn block(socket: &Path, number: u64) -> Vec<u8> {
    let mut found = vec![0; 4096];
    Client::connect(socket).read(number * 4096, &mut found).unwrap();
    found
}

#[test]
fn without_cache_devices_what_is_clean_is_served_from_its_origin_and_nothing_else() {
    let mut daemon = stopped("standin", "serve_without = true\n");
    away(&daemon, true);
    daemon.spawn();
    until("it is served straight", || state(&daemon, "fast/clean") == "without-cache");
    let (clean, dirty) = (daemon.dir.path("clean"), daemon.dir.path("dirty"));
    until("it is there", || clean.exists());
    assert!(block(&clean, 0) == content(3, 4096));
    let mut client = Client::connect(&clean);
    client.write(4096, &content(9, 8192)).unwrap();
    client.flush().unwrap();
    let origin = std::fs::read(daemon.dir.path("origin-clean")).unwrap();
    assert!(origin[4096..12288] == content(9, 8192)[..]);
    assert!(std::os::unix::net::UnixStream::connect(&dirty).is_err(), "dirty is not served");
    let shown = daemon.json(&["pool", "show", "fast"]);
    let summary = shown["summary"].as_str().unwrap();
    assert!(summary.ends_with("Served straight from their origins, without a cache: 1 volume."));
    assert_eq!(shown["state"], "waiting");
    assert!(daemon.tell(&["events"]).contains("volume-without-cache"));
    drop(client);
    // The daemon may end and start meanwhile.
    daemon.kill();
    daemon.spawn();
    until("it is served again", || state(&daemon, "fast/clean") == "without-cache");
    // The cache devices are back: nobody has to decide anything, and nothing old is read.
    away(&daemon, false);
    for volume in ["fast/clean", "fast/dirty"] {
        until("it is online", || state(&daemon, volume) == "online");
    }
    until("they serve", || dirty.exists() && clean.exists());
    assert!(block(&clean, 1) == content(9, 8192)[..4096] && block(&clean, 0) == content(3, 4096));
    assert!(block(&dirty, 0) == content(4, 4096), "what was dirty is not lost");
    daemon.kill();
    daemon.start();
    for volume in ["fast/clean", "fast/dirty"] {
        until("it is online", || state(&daemon, volume) == "online");
    }
    until("they serve", || dirty.exists() && clean.exists());
    assert!(
        block(&clean, 2) == content(9, 8192)[4096..]
            && block(&dirty, 1) == content(4, 8192)[4096..]
    );
    daemon.stop();
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a test waits")]
fn nothing_is_served_without_cache_devices_where_that_is_not_wanted() {
    let mut daemon = stopped("standin-not", "");
    away(&daemon, true);
    daemon.spawn();
    daemon.until("the pool waits", |status| status.contains("\"waiting\""));
    // Longer than a pool waits.
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert!(std::os::unix::net::UnixStream::connect(daemon.dir.path("clean")).is_err());
    away(&daemon, false);
    until("it is online", || state(&daemon, "fast/clean") == "online");
    daemon.stop();
}

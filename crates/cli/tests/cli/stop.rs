//! The daemon's end and long work, asked for and cancelled, with the real binary.

use std::process::{Child, Stdio};

use crate::common::daemon::{
    Daemon, VOLUME_BYTES, content, read_all, served, until, until_served, written,
};
use crate::common::held::HeldOrigin;
use crate::common::{Client, forebay, signal, stderr};
use serde_json::json;

/// A volume "slow/vm" on this origin, exported at "nbd-slow", with a MiB that is dirty.
fn add_held(daemon: &Daemon, origin: &HeldOrigin) {
    let ssd = daemon.ssd("ssd-0");
    daemon.tell(&[
        "pool",
        "create",
        "slow",
        "--ssd",
        ssd.to_str().unwrap(),
        "--accept-data-loss-on-ssd-failure",
    ]);
    daemon.tell(&["volume", "add", "slow/vm", "--origin", origin.path.to_str().unwrap()]);
    let socket = daemon.dir.path("nbd-slow");
    daemon.tell(&["export", "add", "slow/vm", "--socket", socket.to_str().unwrap()]);
    origin.hold();
    let mut client = Client::connect(&socket);
    client.write(0, &content(4, 1 << 20)).unwrap();
    client.flush().unwrap();
}

/// A command that waits for the daemon.
fn spawn(daemon: &Daemon, arguments: &[&str]) -> Child {
    let mut command = forebay();
    command.args(arguments).env("FOREBAY_CONTROL", daemon.dir.path("control.sock"));
    command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn jobs(daemon: &Daemon, state: &str) -> Vec<serde_json::Value> {
    let jobs = daemon.json(&["job", "list"]);
    let jobs = jobs["items"].as_array().unwrap();
    jobs.iter().filter(|job| job["state"] == state).cloned().collect()
}

/// Waits until a command takes Ctrl-C over.
fn until_following(child: &Child) {
    let status = format!("/proc/{}/status", child.id());
    let catches_int = || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & 2 != 0)
    };
    until("the command follows its job", catches_int);
}

#[test]
fn stop_with_destage_leaves_the_whole_origin_behind() {
    let mut daemon = served("stop");
    let socket = daemon.dir.path("nbd");
    let newest = content(2, VOLUME_BYTES);
    let mut client = Client::connect(&socket);
    for (index, chunk) in newest.chunks(1 << 20).enumerate() {
        client.write((index << 20) as u64, chunk).unwrap();
    }
    daemon.refused(&["stop", "--destage"], "needs a confirmation", "--yes");
    let stopped = daemon.ask(&["stop", "--destage", "--yes"]);
    assert!(stopped.status.success(), "{}", stderr(&stopped));
    assert!(stderr(&stopped).contains("every origin has all of its data"));
    assert!(daemon.wait(), "the daemon ended well");
    assert!(std::fs::read(daemon.dir.path("origin")).unwrap() == newest);
    daemon.refused(&["status"], "no daemon answers", "forebay serve");
    daemon.start();
    until_served(&daemon);
    assert_eq!(daemon.json(&["volume", "show", "fast/vm"])["dirty_bytes"], 0);
    // Without it what is dirty stays, and without clients nobody is asked.
    let mut client = Client::connect(&socket);
    client.write(0, &content(3, 1 << 20)).unwrap();
    client.flush().unwrap();
    drop(client);
    until("the client is gone", || daemon.json(&["export", "list"])["items"][0]["clients"] == 0);
    daemon.tell(&["stop"]);
    assert!(daemon.wait());
    daemon.start();
    until_served(&daemon);
    assert!(read_all(&socket)[..1 << 20] == content(3, 1 << 20)[..]);
    daemon.stop();
}

#[test]
fn a_cancelled_stop_goes_on_serving() {
    let mut daemon = Daemon::new("cancel");
    let Some(mut origin) = HeldOrigin::new(&daemon.dir) else { return };
    add_held(&daemon, &origin);
    let stop = spawn(&daemon, &["stop", "--destage", "--yes"]);
    until_following(&stop);
    let socket = daemon.dir.path("nbd-slow");
    until("clients are cut off", || !socket.exists());
    signal(stop.id(), "INT");
    let stopped = stop.wait_with_output().unwrap();
    assert_eq!(stopped.status.code(), Some(1));
    assert!(stderr(&stopped).contains("cancelled"), "{}", stderr(&stopped));
    assert_eq!(jobs(&daemon, "cancelled").len(), 1);
    // What is cached is served although the origin still does not answer.
    until("it serves again", || socket.exists());
    let mut client = Client::connect(&socket);
    let mut found = vec![0; 1 << 20];
    client.read(0, &mut found).unwrap();
    assert!(found == content(4, 1 << 20));
    client.write(1 << 20, &found).unwrap();
    client.flush().unwrap();
    drop(client);
    origin.release();
    daemon.tell(&["stop", "--destage", "--yes"]);
    assert!(daemon.wait());
    assert!(std::fs::read(&origin.path).unwrap()[1 << 20..2 << 20] == found[..]);
}

#[test]
fn a_job_is_cancelled_by_who_began_it_or_by_number() {
    let mut daemon = Daemon::new("jobs");
    let Some(mut origin) = HeldOrigin::new(&daemon.dir) else { return };
    add_held(&daemon, &origin);
    let flush = ["volume", "flush", "slow/vm"];
    let first = spawn(&daemon, &flush);
    until("a job runs", || jobs(&daemon, "running").len() == 1);
    let number = jobs(&daemon, "running")[0]["number"].to_string();
    let second = spawn(&daemon, &flush);
    until_following(&second);
    daemon.refused(&["volume", "remove", "slow/vm", "--yes"], "is exported", "export remove");
    daemon.tell(&["export", "remove", "slow/vm"]);
    daemon.refused(&["volume", "remove", "slow/vm", "--yes"], "is busy: flush", "job cancel");
    daemon.refused(&["pool", "export", "slow"], "is busy: flush", "cancel it");
    // Whoever joined only leaves.
    signal(second.id(), "INT");
    let second = second.wait_with_output().unwrap();
    assert_eq!(second.status.code(), Some(1), "{}", stderr(&second));
    assert!(stderr(&second).contains("somebody else has begun it"), "{}", stderr(&second));
    assert_eq!(jobs(&daemon, "running").len(), 1);
    daemon.tell(&["job", "cancel", &number]);
    let first = first.wait_with_output().unwrap();
    assert_eq!(first.status.code(), Some(1));
    assert!(stderr(&first).contains("cancelled"));
    daemon.refused(&["job", "cancel", &number], "has ended", "job show");
    daemon.refused(&["job", "cancel", "77"], "there is no job 77", "ended long ago");
    // Ctrl-C of who began it.
    let third = spawn(&daemon, &flush);
    until("a job runs", || jobs(&daemon, "running").len() == 1);
    until_following(&third);
    signal(third.id(), "INT");
    assert_eq!(third.wait_with_output().unwrap().status.code(), Some(1));
    assert_eq!(jobs(&daemon, "cancelled").len(), 2);
    origin.release();
    daemon.tell(&flush);
    daemon.tell(&["volume", "remove", "slow/vm", "--yes"]);
    assert!(std::fs::read(&origin.path).unwrap()[..1 << 20] == content(4, 1 << 20)[..]);
    daemon.stop();
}

#[test]
fn a_new_mode_holds_at_once_and_is_done_when_nothing_is_dirty() {
    let mut daemon = Daemon::new("mode-job");
    let Some(mut origin) = HeldOrigin::new(&daemon.dir) else { return };
    add_held(&daemon, &origin);
    let volume = || daemon.json(&["volume", "show", "slow/vm"]);
    let set = ["volume", "set", "slow/vm", "writethrough"];
    let first = spawn(&daemon, &set);
    until_following(&first);
    until("a job runs", || jobs(&daemon, "running").len() == 1);
    assert_eq!(
        (&volume()["mode"], &volume()["dirty_bytes"]),
        (&json!("writethrough"), &json!(1 << 20))
    );
    let running = &jobs(&daemon, "running")[0];
    assert_eq!(running["what"], "change of volume \"slow/vm\" to writethrough");
    assert_eq!(running["left_bytes"], 1 << 20);
    // A flush waits for the same; another mode would not.
    let flush = spawn(&daemon, &["volume", "flush", "slow/vm"]);
    until("both run", || jobs(&daemon, "running").len() == 2);
    daemon.refused(&["volume", "set", "slow/vm", "bypass"], "is busy: change", "job cancel");
    // Cancelled, it is served as asked, and what is dirty has time.
    signal(first.id(), "INT");
    let first = first.wait_with_output().unwrap();
    assert_eq!(first.status.code(), Some(1));
    assert!(stderr(&first).contains("cancelled"), "{}", stderr(&first));
    assert!(stderr(&first).contains("served as writethrough"), "{}", stderr(&first));
    assert_eq!(volume()["mode"], "writethrough");
    origin.release();
    assert!(flush.wait_with_output().unwrap().status.success());
    let done = daemon.json(&["volume", "set", "slow/vm", "readonly"]);
    assert_eq!((&done["state"], &done["left_bytes"]), (&json!("done"), &json!(0)));
    assert_eq!(volume()["dirty_bytes"], 0);
    assert!(std::fs::read(&origin.path).unwrap()[..1 << 20] == content(4, 1 << 20)[..]);
    // It is what it was made after a crash, too.
    daemon.kill();
    daemon.start();
    until("it is online", || daemon.json(&["volume", "show", "slow/vm"])["state"] == "online");
    assert_eq!(daemon.json(&["volume", "show", "slow/vm"])["mode"], "readonly");
    daemon.stop();
}

#[test]
fn what_cannot_be_destaged_keeps_the_daemon_from_promising_it() {
    let mut daemon = served("stranded");
    let mut client = Client::connect(&daemon.dir.path("nbd"));
    client.write(0, &content(2, 1 << 20)).unwrap();
    client.flush().unwrap();
    daemon.kill();
    let (origin, away) = (daemon.dir.path("origin"), daemon.dir.path("away"));
    std::fs::rename(&origin, &away).unwrap();
    daemon.start();
    let volume = || daemon.json(&["volume", "show", "fast/vm"]);
    until("the origin is missed", || volume()["state"] == "origin-missing");
    daemon.refused(&["stop", "--destage"], "its origin", "stop without --destage");
    assert!(jobs(&daemon, "running").is_empty());
    daemon.tell(&["stop"]);
    assert!(daemon.wait());
    std::fs::rename(&away, &origin).unwrap();
    daemon.start();
    until_served(&daemon);
    daemon.tell(&["stop", "--destage"]);
    assert!(daemon.wait());
    assert!(std::fs::read(&origin).unwrap()[..1 << 20] == content(2, 1 << 20)[..]);
}

#[test]
fn a_daemon_whose_terminal_is_gone_ends_in_order() {
    let mut daemon = served("hangup");
    let all = written(&daemon, 3);
    // The shell says so, and the terminal.
    signal(daemon.pid(), "HUP");
    signal(daemon.pid(), "HUP");
    assert!(daemon.wait());
    daemon.start();
    until_served(&daemon);
    let opened = daemon.tell(&["events", "--json"]);
    assert!(opened.contains("clean stop") && !opened.contains("after a crash"), "{opened}");
    assert!(read_all(&daemon.dir.path("nbd")) == all);
    daemon.stop();
}

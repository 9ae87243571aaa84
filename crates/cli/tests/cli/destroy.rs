//! A pool is destroyed: all of it is on the origins, or all of it is there.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::common::daemon::{Daemon, content, until};
use crate::common::held::HeldOrigin;
use crate::common::{Client, stderr};

/// A pool of two SSDs whose volume, on this origin and not exported, has a MiB that is dirty.
fn make(daemon: &Daemon, ssds: &[String; 2], origin: &Path, seed: u64) {
    daemon.tell(&["pool", "create", "fast", "--ssd", &ssds[0], "--ssd", &ssds[1]]);
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap()]);
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    let mut client = Client::connect(&socket);
    client.write(0, &content(seed, 1 << 20)).unwrap();
    client.flush().unwrap();
    drop(client);
    until("the client is gone", || daemon.json(&["export", "list"])["items"][0]["clients"] == 0);
    daemon.tell(&["export", "remove", "fast/vm"]);
}

fn ssds(daemon: &Daemon) -> [String; 2] {
    ["ssd-0", "ssd-1"].map(|name| daemon.ssd(name).to_str().unwrap().to_owned())
}

fn pools(daemon: &Daemon, of: &str) -> usize {
    daemon.json(&["pool", of])["items"].as_array().unwrap().len()
}

const DESTROY: [&str; 4] = ["pool", "destroy", "fast", "--yes"];

#[test]
fn a_pool_is_destroyed_when_its_data_is_home_and_is_there_if_that_is_cancelled() {
    let mut daemon = Daemon::new("destroy");
    let Some(mut origin) = HeldOrigin::new(&daemon.dir) else { return };
    let ssds = ssds(&daemon);
    make(&daemon, &ssds, &origin.path.clone(), 1);
    // What is home already is written again, and stays.
    daemon.tell(&["volume", "flush", "fast/vm"]);
    origin.hold();
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    let mut client = Client::connect(&socket);
    client.write(0, &content(2, 1 << 20)).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.refused(&DESTROY, "is exported", "export remove fast/vm");
    until("the client is gone", || daemon.json(&["export", "list"])["items"][0]["clients"] == 0);
    daemon.tell(&["export", "remove", "fast/vm"]);
    let begin = || {
        let child = daemon.command_of(&DESTROY).stderr(Stdio::null()).spawn().unwrap();
        let mut number = String::new();
        until("it is under way", || {
            let jobs = daemon.json(&["job", "list"]);
            let mut jobs = jobs["items"].as_array().unwrap().iter();
            let job = jobs.find(|job| job["state"] == "running").cloned();
            job.is_some_and(|job| {
                assert_eq!(job["what"], "destruction of pool \"fast\"");
                assert_eq!(
                    (&job["total_bytes"], &job["left_bytes"]),
                    (&(1 << 20).into(), &(1 << 20).into())
                );
                number = job["number"].to_string();
                true
            })
        });
        (child, number)
    };
    let (mut first, number) = begin();
    daemon.refused(&["volume", "flush", "fast/vm"], "is busy: destruction", "job cancel");
    daemon.tell(&["job", "cancel", &number]);
    assert_eq!(first.wait().unwrap().code(), Some(1));
    let volume = daemon.json(&["volume", "show", "fast/vm"]);
    assert_eq!((&volume["state"], &volume["dirty_bytes"]), (&"online".into(), &(1 << 20).into()));
    let (mut second, _) = begin();
    origin.release();
    assert!(second.wait().unwrap().success());
    assert!(std::fs::read(&origin.path).unwrap()[..1 << 20] == content(2, 1 << 20)[..]);
    assert_eq!((pools(&daemon, "list"), pools(&daemon, "import")), (0, 0));
    daemon.stop();
}

#[test]
fn a_crash_while_a_pool_is_destroyed_leaves_all_of_it_or_none() {
    let mut daemon = Daemon::new("destroy-crash");
    let origin = daemon.dir.sparse("origin", 32 << 20);
    let ssds = ssds(&daemon);
    let (mut stayed, mut gone) = (0, 0);
    for round in 0..8 {
        make(&daemon, &ssds, &origin, round);
        let mut destroy = daemon.command_of(&DESTROY);
        let mut destroy = destroy.stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(5 << round));
        daemon.kill();
        let _ = destroy.wait();
        daemon.start();
        until("it is there or gone", || {
            let pools = daemon.json(&["pool", "list"]);
            let pools = pools["items"].as_array().unwrap();
            pools.iter().all(|pool| pool["state"] == "online")
        });
        if pools(&daemon, "list") == 0 {
            gone += 1;
        } else {
            stayed += 1;
            let at = |volumes: &serde_json::Value| volumes[0]["state"] == "online";
            let volumes = || daemon.json(&["volume", "list"])["items"].clone();
            until("its volume is online, or was taken away", || {
                volumes().as_array().unwrap().is_empty() || at(&volumes())
            });
            daemon.tell(&DESTROY);
        }
        assert_eq!((pools(&daemon, "list"), pools(&daemon, "import")), (0, 0), "round {round}");
        assert!(std::fs::read(&origin).unwrap()[..1 << 20] == content(round, 1 << 20)[..]);
    }
    println!("{stayed} stayed, {gone} gone");
    daemon.stop();
}

/// Ends the daemon as a crash does between the erasing of the first SSD and of the second one; the pool's record.
fn half_erase(daemon: &mut Daemon, ssds: &[String; 2]) -> PathBuf {
    let origin = daemon.dir.sparse("origin", 32 << 20);
    make(daemon, ssds, &origin, 1);
    daemon.tell(&["volume", "remove", "fast/vm", "--yes"]);
    let id = daemon.json(&["pool", "show", "fast"])["id"].as_str().unwrap().to_owned();
    daemon.kill();
    let record = daemon.dir.path("state").join("pools").join(id).join("pool.json");
    let mut noted: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    noted["destroying"] = true.into();
    std::fs::write(&record, noted.to_string()).unwrap();
    let file = File::options().write(true).open(&ssds[0]).unwrap();
    file.write_all_at(&vec![0; 1 << 20], 0).unwrap();
    record
}

#[test]
fn what_cannot_be_erased_yet_is_told_once_and_not_opened() {
    let mut daemon = Daemon::new("destroy-held");
    let ssds = ssds(&daemon);
    let record = half_erase(&mut daemon, &ssds);
    let file = File::open(&ssds[1]).unwrap();
    file.lock().unwrap();
    daemon.spawn();
    daemon.until("it answers", |_| true);
    let told = || daemon.tell(&["events"]).matches("pool-not-destroyed").count();
    until("it is told", || told() > 0);
    let others = [
        &["pool", "import", "fast"][..],
        &["pool", "import", "fast", "--accept-missing", "--yes"],
        &["pool", "export", "fast"],
        &["pool", "export", "fast", "--dry-run"],
    ];
    for other in others {
        daemon.refused(other, "is being destroyed", "stop who uses it");
    }
    assert!(record.exists() && daemon.tell(&["status"]).contains("is in use"));
    assert_eq!(told(), 1);
    drop(file);
    until("it is gone", || pools(&daemon, "list") == 0);
    assert!(!record.exists());
    daemon.stop();
}

#[test]
fn what_was_half_erased_is_erased_by_the_next_start() {
    let mut daemon = Daemon::new("destroy-half");
    let ssds = ssds(&daemon);
    let record = half_erase(&mut daemon, &ssds);
    daemon.spawn();
    daemon.until("it answers", |_| true);
    until("it is gone", || pools(&daemon, "list") == 0);
    assert_eq!(pools(&daemon, "import"), 0);
    assert!(!record.exists());
    daemon.stop();
}

#[test]
fn what_is_absent_when_a_pool_is_destroyed_is_named_and_left_as_it_is() {
    destroyed_without_one("destroy-absent", false);
}

#[test]
fn another_disk_at_the_place_of_an_absent_one_is_none_of_the_pool() {
    destroyed_without_one("destroy-another", true);
}

/// Destroys a pool that has lost a cache device, with another disk at its place or without.
fn destroyed_without_one(name: &str, another: bool) {
    let mut daemon = Daemon::new(name);
    let ssds = ssds(&daemon);
    make(&daemon, &ssds, &daemon.dir.sparse("origin", 32 << 20), 1);
    daemon.tell(&["volume", "flush", "fast/vm"]);
    daemon.stop();
    let elsewhere = daemon.dir.path("elsewhere");
    std::fs::rename(&ssds[1], &elsewhere).unwrap();
    let before = std::fs::read(&elsewhere).unwrap();
    let disk = content(5, 2 << 20);
    if another {
        std::fs::write(&ssds[1], &disk).unwrap();
    }
    daemon.start();
    until("the pool goes on", || daemon.json(&["pool", "show", "fast"])["state"] == "protected");
    let pool = daemon.json(&["pool", "show", "fast"]);
    let members = pool["members"].as_array().unwrap();
    let lost = members.iter().find(|member| member["state"] == "lost").unwrap();
    let lost = format!("{} ({})", ssds[1], lost["id"].as_str().unwrap());
    let plan = daemon.json(&["pool", "destroy", "fast", "--dry-run"]);
    let steps = plan["steps"].to_string();
    let absent = format!("what is absent is not erased: {lost}");
    assert!(steps.contains("on 1 cache device") && steps.contains(&absent), "{steps}");
    assert_eq!(plan["erased"], serde_json::json!([ssds[0]]));
    let output = daemon.ask(&DESTROY);
    let (told, events) = (stderr(&output), daemon.tell(&["events"]));
    assert!(output.status.success(), "{told}");
    let absent = format!("not erased, for it was absent: {lost}");
    assert!(told.contains(&absent), "{told}");
    let absent = format!("not erased, for it is absent: {lost}");
    assert!(events.contains(&absent), "{events}");
    assert!(std::fs::read(&elsewhere).unwrap() == before);
    assert!(!another || std::fs::read(&ssds[1]).unwrap() == disk);
    daemon.stop();
}

/// The daemon is killed at some instant while it makes a pool, and while it destroys it.
#[test]
fn a_pool_is_there_as_a_whole_or_not_at_all_whenever_the_daemon_is_killed() {
    let mut daemon = Daemon::new("half-made");
    let [first, second] = ssds(&daemon);
    let create = ["pool", "create", "fast", "--ssd", &first, "--ssd", &second];
    let cut = |daemon: &mut Daemon, command: &[&str], after: u64| {
        let mut command = daemon.command_of(command);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(after));
        daemon.kill();
        child.wait().unwrap();
        daemon.start();
    };
    let timed = |daemon: &Daemon, command: &[&str]| {
        let began = std::time::Instant::now();
        daemon.tell(command);
        began.elapsed().as_millis() as u64
    };
    let (making, destroying) = (timed(&daemon, &create), timed(&daemon, &DESTROY));
    let (mut was_made, mut was_left) = (0, 0);
    for round in 0..8 {
        cut(&mut daemon, &create, making * round / 8);
        let again = daemon.ask(&create);
        was_made += u64::from(!again.status.success());
        let there = stderr(&again).contains("there is a pool \"fast\" already");
        assert!(again.status.success() || there, "{}", stderr(&again));
        let state = || daemon.json(&["pool", "show", "fast"])["state"].clone();
        until("it is open", || state() == "online");
        cut(&mut daemon, &DESTROY, destroying * round / 8);
        until("it is open or gone", || {
            pools(&daemon, "list") == 0
                || daemon.json(&["pool", "list"])["items"][0]["state"] == "online"
        });
        if pools(&daemon, "list") > 0 {
            was_left += 1;
            daemon.tell(&DESTROY);
        }
        assert_eq!(pools(&daemon, "import"), 0, "round {round}: something is left");
    }
    println!("{was_made} of 8 were made, {was_left} not destroyed");
    daemon.stop();
}

//! What `status` answers at a glance: how much is on SSDs alone and when it is safe, what the cache is good for, and
//! whether an SSD can be pulled.

use serde_json::Value;

use crate::acceptance::tonight;
use crate::common::daemon::{
    Daemon, VOLUME_BYTES, content, members, read_all, served, show, until, until_served, written,
};
use crate::common::{Client, run};

const SSD: &str = "--accept-data-loss-on-ssd-failure";

/// A pool on one SSD whose loss was agreed to, with a volume that is served at the socket "nbd".
fn alone(name: &str) -> Daemon {
    let daemon = Daemon::new(name);
    let (ssd, origin) = (daemon.ssd("ssd-0"), daemon.dir.path("origin"));
    std::fs::write(&origin, content(1, VOLUME_BYTES)).unwrap();
    daemon.tell(&["pool", "create", "fast", "--ssd", ssd.to_str().unwrap(), SSD]);
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap()]);
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    daemon
}

/// A setting with which nothing is destaged for some hours, and what is said of that.
fn later() -> (String, String) {
    let setting = tonight();
    let hours = setting.trim_start_matches("destage-hours=");
    let until = hours.split_once('-').unwrap().0.to_owned();
    (setting, format!("waits until {until}"))
}

fn summary(daemon: &Daemon) -> String {
    daemon.json(&["status"])["summary"].as_str().unwrap().to_owned()
}

/// When the pool and its volume are clean, by `stats`.
fn clean_in(daemon: &Daemon) -> [Value; 2] {
    let pool = daemon.json(&["stats"])["pools"][0].clone();
    [&pool, &pool["volumes"][0]].map(|of| of["clean_in_s"].clone())
}

/// What `status` says of pulling each SSD that is there.
fn told(daemon: &Daemon) -> Vec<Value> {
    let status = daemon.json(&["status"]);
    let told = status["pools"][0]["members"].as_array().unwrap().iter();
    told.map(|it| it["pull"].clone()).filter(|pull| !pull.is_null()).collect()
}

/// Whether each SSD that is there can be pulled, by `status`; `can-i-pull` says the same, unless something has changed.
fn pulls(daemon: &Daemon) -> Vec<Value> {
    let mut before = Vec::new();
    until("nothing changes between two questions", || {
        before = told(daemon);
        let present = members(daemon);
        let asked: Vec<Value> = present
            .iter()
            .map(|path| daemon.ask(&["pool", "device", "can-i-pull", "fast", path, "--json"]))
            .map(|output| serde_json::from_slice(&output.stdout).unwrap())
            .collect();
        if told(daemon) != before {
            return false;
        }
        assert_eq!((before.len(), asked.len()), (present.len(), present.len()));
        for ((pull, path), asked) in before.iter().zip(&present).zip(&asked) {
            assert_eq!((&pull["safe"], &pull["summary"]), (&asked["safe"], &asked["summary"]));
            assert_eq!(
                (&pull["device"], &pull["action"]),
                (&path.as_str().into(), &asked["action"])
            );
        }
        true
    });
    before
}

fn says(pull: &Value, safe: bool, what: &str) {
    let summary = pull["summary"].as_str().unwrap();
    assert!(pull["safe"] == safe && summary.contains(what), "{pull}");
}

/// What a terminal of 80 columns shows, in one line.
fn on_terminal(daemon: &Daemon) -> String {
    let output = run(daemon.command_of(&["status"]).env("COLUMNS", "80"));
    let text = String::from_utf8(output.stdout).unwrap();
    let long = |line: &&str| line.chars().count() > 80 && !line.contains(" ssd-");
    // A path is as long as it is.
    let long: Vec<_> = text
        .lines()
        .filter(long)
        .filter(|line| !line.contains(daemon.dir.0.to_str().unwrap()))
        .collect();
    assert!(long.is_empty(), "{long:?}");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn what_one_ssd_has_alone_is_said_and_the_ssd_is_not_to_be_pulled() {
    let (mut daemon, (later, waits)) = (alone("glance-one"), later());
    daemon.tell(&["volume", "set", "fast/vm", &later]);
    assert_eq!(summary(&daemon), "Healthy. 1 pool; every origin has all of its data.");
    says(&pulls(&daemon)[0], false, "nothing would be lost, but the pool would stop writing");
    assert_eq!(clean_in(&daemon), [0, 0], "nothing was dirty yet");
    assert_eq!(daemon.json(&["volume", "show", "fast/vm"])["destage"]["left_s"], 0);
    written(&daemon, 2);
    let dirty = format!("Healthy. 32 MiB exist only on this SSD; {waits}.");
    assert_eq!(summary(&daemon), dirty);
    let pool = show(&daemon);
    let (usage, said) = (&pool["usage"], pool["summary"].as_str().unwrap());
    assert_eq!(said, dirty);
    assert_eq!((&usage["safe_in_s"], &usage["destage"]["left_s"]), (&Value::Null, &Value::Null));
    assert_eq!(usage["safe_when"], waits);
    let pull = pulls(&daemon).remove(0);
    says(&pull, false, "it is the only one: 32 MiB are dirty and on it alone, and would be lost");
    assert_eq!(pull["only_dirty_bytes"], VOLUME_BYTES, "{pull}");
    assert!(pull["action"].as_str().unwrap().contains("`forebay volume flush fast/vm`"), "{pull}");
    let text = on_terminal(&daemon);
    assert!(text.contains("Not safe to pull: it is the only one: 32 MiB are dirty"), "{text}");
    let nothing = format!("nothing goes to the origin at present; {waits}");
    assert!(text.contains(&nothing), "{text}");
    let volume = daemon.tell(&["volume", "show", "fast/vm"]);
    assert!(volume.contains(&format!("; {nothing}")), "{volume}");
    assert_eq!(daemon.json(&["volume", "show", "fast/vm"])["safe_when"], waits);
    assert_eq!(clean_in(&daemon), [Value::Null, Value::Null]);
    // It is older than it may be long before its hours.
    daemon.tell(&["volume", "set", "fast/vm", "dirty-age-max=10s"]);
    until("it is safe", || summary(&daemon).ends_with("every origin has all of its data."));
    daemon.stop();
}

#[test]
fn of_two_ssds_with_the_same_dirty_data_either_can_be_pulled() {
    let (mut daemon, (later, waits)) = (served("glance-two"), later());
    daemon.tell(&["volume", "set", "fast/vm", &later]);
    written(&daemon, 2);
    let dirty = format!("Healthy. 32 MiB exist only on these two SSDs; {waits}.");
    assert_eq!(summary(&daemon), dirty);
    for pull in pulls(&daemon) {
        says(&pull, true, "all that is dirty is on another cache device, too");
    }
    daemon.tell(&["volume", "flush", "fast/vm"]);
    assert_eq!(summary(&daemon), "Healthy. 1 pool; every origin has all of its data.");
    for pull in pulls(&daemon) {
        says(&pull, true, "every origin has all of its data");
    }
    assert!(on_terminal(&daemon).contains("Safe to pull: every origin has all of its data."));
    daemon.stop();
}

#[test]
fn beside_an_ssd_that_is_lost_the_last_one_is_not_to_be_pulled() {
    let mut daemon = served("glance-lost");
    daemon.tell(&["volume", "set", "fast/vm", &tonight()]);
    let newest = written(&daemon, 2);
    daemon.kill();
    std::fs::rename(daemon.dir.path("ssd-1"), daemon.dir.path("away")).unwrap();
    daemon.start();
    until_served(&daemon);
    // Dirty or not: without it nothing could be written.
    let all = pulls(&daemon);
    assert_eq!(all.len(), 1, "one of them is lost");
    says(&all[0], false, "it is the only one");
    until("it is home", || show(&daemon)["state"] == "protected");
    says(&pulls(&daemon)[0], false, "nothing would be lost, but the pool would stop writing");
    assert!(read_all(&daemon.dir.path("nbd")) == newest);
    daemon.stop();
}

#[test]
fn streams_that_pass_by_are_in_no_hit_ratio() {
    let mut daemon = alone("glance-streams");
    let socket = daemon.dir.path("nbd");
    let later = tonight();
    let set = ["sequential-when=always", "sequential-writes=bypass", &later];
    daemon.tell(&[&["volume", "set", "fast/vm"], &set[..]].concat());
    let mut client = Client::connect(&socket);
    let mut block = [7; 4096];
    for at in [20_u64, 24, 28] {
        client.write(at << 20, &block).unwrap();
        client.read(at << 20, &mut block).unwrap();
    }
    client.read(12 << 20, &mut block).unwrap();
    // Longer than the cutoff, and within the borders of 4 MiB.
    let mut long = vec![7; 3 << 20];
    client.write(0, &long).unwrap();
    (0..9).for_each(|_| client.read(4 << 20, &mut long).unwrap());
    let is_looked_at = || !show(&daemon)["usage"]["activity"][0].is_null();
    until("it was looked at", is_looked_at);
    let pool = show(&daemon);
    let late = &pool["usage"]["activity"][0];
    let of = |what: &str, field: &str| late[what][field].as_u64().unwrap();
    let hits = of("reads", "ram_hits") + of("reads", "ssd_hits");
    assert_eq!((hits, of("reads", "misses"), of("reads", "stream_parts")), (3, 1, 9), "{late}");
    assert_eq!((of("writes", "hits"), of("writes", "stream_requests")), (3, 1), "{late}");
    assert_eq!(of("writes", "requests"), 4, "{late}");
    let text = on_terminal(&daemon);
    assert!(text.contains("hits random reads 75.0 % of 4 in "), "{text}");
    assert!(text.contains(" random writes 100.0 % of 3 in "), "{text}");
    assert!(text.contains(" streams that passed by the cache are left out of these "), "{text}");
    daemon.stop();
}

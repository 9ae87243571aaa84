//! Whether a cache device can be pulled out: safe or not, and what happens when it is done all the same.

use crate::common::daemon::{
    Daemon, VOLUME_BYTES, content, read_all, until, until_served, written,
};
use crate::common::stderr;
use serde_json::Value;

/// The answer, which ends with the exit code that goes with it.
fn can_i_pull(daemon: &Daemon, device: &str) -> Value {
    let output = daemon.ask(&["pool", "device", "can-i-pull", "fast", device, "--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
    let code = if answer["safe"].as_bool().unwrap() { 0 } else { 3 };
    assert_eq!(output.status.code(), Some(code), "{answer}");
    assert_eq!(answer["action"] == "", code == 0, "{answer}");
    assert_eq!(answer["wait_s"] == 0, code == 0, "{answer}");
    answer
}

fn says(answer: &Value, what: &str) {
    assert!(answer["summary"].as_str().unwrap().contains(what), "{answer}");
}

#[test]
fn an_ssd_with_the_only_copy_is_not_to_be_pulled_until_it_is_home() {
    let mut daemon = Daemon::new("pull");
    let ssds = ["ssd-0", "ssd-1"].map(|name| daemon.ssd(name));
    let ssds = ssds.each_ref().map(|path| path.to_str().unwrap());
    let (origin, socket) = (daemon.dir.path("origin"), daemon.dir.path("nbd"));
    std::fs::write(&origin, content(1, VOLUME_BYTES)).unwrap();
    let agreed = ["pool", "create", "fast", "--ssd", ssds[0], "--accept-data-loss-on-ssd-failure"];
    daemon.tell(&agreed);
    let alone = can_i_pull(&daemon, ssds[0]);
    says(&alone, "it is the only one");
    daemon.tell(&["pool", "device", "add", "fast", ssds[1]]);
    says(&can_i_pull(&daemon, ssds[0]), "every origin has all of its data");
    let (add, path) = (["volume", "add", "fast/vm", "--origin"], origin.to_str().unwrap());
    daemon.tell(&[&add[..], &[path]].concat());
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    daemon.tell(&["volume", "set", "fast/vm", "destage-hours=00:00-00:01"]);
    let newest = written(&daemon, 2);
    let answers = ssds.map(|ssd| can_i_pull(&daemon, ssd));
    for answer in &answers {
        assert_eq!(answer["safe"], false, "{answer}");
        assert!(answer["action"].as_str().unwrap().contains("volume flush fast/vm"), "{answer}");
    }
    assert!(answers.iter().any(|answer| answer["only_dirty_bytes"].as_u64().unwrap() > 0));
    // As people read it.
    let output = daemon.ask(&["pool", "device", "can-i-pull", "fast", ssds[0]]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("Not safe to pull: ") && text.contains("\nwait     "), "{text}");
    daemon.tell(&["volume", "flush", "fast/vm"]);
    for ssd in ssds {
        says(&can_i_pull(&daemon, ssd), "every origin has all of its data");
    }
    let id = daemon.json(&["pool", "show", "fast"])["members"][1]["id"].clone();
    assert_eq!(can_i_pull(&daemon, id.as_str().unwrap())["device"], ssds[1]);

    // It is pulled while the daemon is down: nobody is asked, and nothing is missing.
    daemon.kill();
    std::fs::rename(ssds[1], daemon.dir.path("pulled")).unwrap();
    daemon.start();
    until_served(&daemon);
    assert!(read_all(&socket) == newest);
    let gone = can_i_pull(&daemon, id.as_str().unwrap());
    says(&gone, "has gone on without it");

    let no_member = daemon.dir.path("ssd-00");
    daemon.refused(
        &["pool", "device", "can-i-pull", "fast", no_member.to_str().unwrap()],
        "has no cache device",
        &format!("did you mean {}?", ssds[0]),
    );
    daemon.refused(&["pool", "device", "can-i-pull", "slow", ssds[0]], "no pool \"slow\"", "pool");
    daemon.stop();
}

#[test]
fn with_two_copies_any_one_can_be_pulled_and_write_back_ends() {
    let mut daemon = crate::common::daemon::served("pull-two");
    let path = |name: &str| daemon.dir.path(name).to_str().unwrap().to_owned();
    let ssds = [path("ssd-0"), path("ssd-1"), path("ssd-2")];
    daemon.tell(&["volume", "set", "fast/vm", "destage-hours=00:00-00:01"]);
    let newest = written(&daemon, 2);
    for ssd in &ssds[..2] {
        let answer = can_i_pull(&daemon, ssd);
        says(&answer, "on another cache device, too");
        assert_eq!(answer["ends_write_back"], true, "{answer}");
        let notes = answer["notes"].to_string();
        assert!(notes.contains("Write-back ends") && notes.contains("is destaged"), "{answer}");
    }
    daemon.ssd("ssd-2");
    daemon.tell(&["pool", "device", "add", "fast", &ssds[2]]);
    let answer = can_i_pull(&daemon, &ssds[0]);
    assert_eq!(answer["ends_write_back"], false, "{answer}");
    assert!(answer["notes"].to_string().contains("is copied again"), "{answer}");
    daemon.kill();
    std::fs::rename(&ssds[0], daemon.dir.path("pulled")).unwrap();
    daemon.start();
    until_served(&daemon);
    assert!(read_all(&daemon.dir.path("nbd")) == newest);
    until("copies are restored", || can_i_pull(&daemon, &ssds[1])["safe"] == true);
    daemon.stop();
}

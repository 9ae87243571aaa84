//! A cache device takes the place of another one while the volume is served: of one that is there, and of one
//! that is gone; cancelled, cut off, and asked for again.

use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::daemon::{
    Daemon, members, patient, read_all, show, until, until_served, write_all, written,
};
use serde_json::Value;

const REPLACE: [&str; 4] = ["pool", "device", "replace", "fast"];

/// In the background.
fn begin(daemon: &Daemon, arguments: &[&str]) -> Child {
    let mut command = daemon.command_of(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn an_ssd_is_replaced_while_clients_go_on() {
    let mut daemon = patient("replace");
    let path = |name: &str| daemon.dir.path(name).to_str().unwrap().to_owned();
    let [old, other, new] = ["ssd-0", "ssd-1", "ssd-2"].map(path);
    daemon.ssd("ssd-2");
    daemon.ssd("ssd-3");
    let newest = written(&daemon, 2);
    let refused = |old: &str, new: &str, what: &str, hint: &str| {
        for how in ["--dry-run", "--yes"] {
            daemon.refused(&[&REPLACE[..], &[old, new, how]].concat(), what, hint);
        }
    };
    refused(&old, &old, "cannot take its own place", "second");
    refused(&old, &other, "is a cache device of pool \"fast\"", "pool device remove fast ");
    refused(&path("ssd-9"), &new, "has no cache device", "did you mean");
    refused(&old, &path("none"), "none", "");
    refused(&old, &path("origin"), "is the origin of", "nobody needs");
    let small = daemon.dir.full("small", 64 << 20);
    refused(&old, small.to_str().unwrap(), "is too small", "use one of at least");
    let holes = daemon.dir.sparse("holes", 600 << 20);
    refused(&old, holes.to_str().unwrap(), "has holes", "dd if=");
    daemon.tell(&["pool", "create", "more", "--ssd", &path("ssd-3")]);
    daemon.tell(&["pool", "export", "more"]);
    refused(&old, &path("ssd-3"), "it belongs to pool \"more\"", "pool import");
    let asked = [&REPLACE[..], &[&old, &new]].concat();
    daemon.refused(&asked, "needs a confirmation", "--yes");
    let plan = daemon.json(&[&asked[..], &["--dry-run"]].concat());
    assert_eq!(
        (&plan["erased"][0], &plan["erased"][1]),
        (&new.as_str().into(), &old.as_str().into())
    );
    let steps = plan["steps"].to_string();
    assert!(steps.contains("all its copies (2)") && steps.contains("at least"), "{plan}");
    assert_eq!(members(&daemon), [old.clone(), other.clone()], "a plan changes nothing");

    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // What it writes is what is there, so that every read has one answer.
        let load = scope.spawn(|| {
            let mut rounds = 0;
            while !is_over.load(Ordering::Relaxed) || rounds == 0 {
                write_all(&daemon, &newest, 20);
                rounds += 1;
            }
        });
        let job = daemon.json(&[&asked[..], &["--yes"]].concat());
        is_over.store(true, Ordering::Relaxed);
        load.join().unwrap();
        assert!(job["state"] == "done" && job["left_bytes"] == 0, "{job}");
        assert!(job["total_bytes"].as_u64().unwrap() > 0, "{job}");
    });
    assert_eq!(members(&daemon), [other.clone(), new.clone()]);
    let shown = show(&daemon);
    assert!(shown["state"] == "online" && shown["action"] == "", "{shown}");
    assert!(read_all(&daemon.dir.path("nbd")) == newest);
    refused(&old, &new, "has no cache device", "did you mean");
    daemon.kill();
    // Either of the two has everything.
    std::fs::rename(&other, daemon.dir.path("pulled")).unwrap();
    daemon.start();
    until_served(&daemon);
    assert!(read_all(&daemon.dir.path("nbd")) == newest);
    daemon.stop();
}

/// It may be over before anybody comes to cancel it, or to kill the daemon; else it goes on when it is asked for
/// again. Where it may be cut off is the hazards' part.
#[test]
fn a_replacement_is_cancelled_and_cut_off_and_goes_on() {
    let mut daemon = patient("replace-again");
    let paths = ["ssd-0", "ssd-1", "ssd-2"].map(|name| daemon.dir.path(name));
    let [old, other, new] = paths.each_ref().map(|path| path.to_str().unwrap());
    daemon.ssd("ssd-2");
    let socket = daemon.dir.path("nbd");
    let asked = [&REPLACE[..], &[old, new, "--yes"]].concat();
    // Whether there is something left to do; the pool is whole in any case.
    let is_unfinished = |daemon: &Daemon, newest: &[u8]| {
        assert!(read_all(&socket) == newest);
        let shown = show(daemon);
        let action = shown["action"].as_str().unwrap();
        let count = members(daemon).len();
        assert_eq!(action.contains("a replacement has not ended"), count == 3, "{shown}");
        assert!(count == 3 || members(daemon) == [other, new], "{shown}");
        count == 3
    };
    let newest = written(&daemon, 2);
    let waiting = begin(&daemon, &asked);
    let running = |daemon: &Daemon| {
        let jobs = daemon.json(&["job", "list"])["items"].as_array().unwrap().clone();
        jobs.into_iter().rfind(|job| job["what"].as_str().unwrap().contains("replacement"))
    };
    until("it is begun", || running(&daemon).is_some());
    daemon.ask(&["job", "cancel", &running(&daemon).unwrap()["number"].to_string()]);
    let output = waiting.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    if is_unfinished(&daemon, &newest) {
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("cancelled") && text.contains("ask again and it goes on"), "{text}");
        let plan = daemon.json(&[&REPLACE[..], &[old, new, "--dry-run"]].concat());
        assert!(plan["steps"].to_string().contains("goes on"), "{plan}");
        let mut waiting = begin(&daemon, &asked);
        let has_begun = |job: Value| job["state"] == "running" || job["state"] == "done";
        until("it goes on", || running(&daemon).is_some_and(has_begun));
        daemon.kill();
        waiting.wait().unwrap();
        daemon.start();
        until_served(&daemon);
    }
    if is_unfinished(&daemon, &newest) {
        let done = daemon.json(&asked);
        assert_eq!(done["state"], "done", "{done}");
    }
    assert!(!is_unfinished(&daemon, &newest));
    assert_eq!(members(&daemon), [other, new]);
    daemon.stop();
}

#[test]
fn of_two_ssds_that_are_gone_both_are_to_be_replaced() {
    let mut daemon = patient("replace-two");
    let ssds = ["ssd-2", "ssd-3", "ssd-4"].map(|name| daemon.ssd(name));
    let shown = |daemon: &Daemon| daemon.json(&["pool", "show", "more"]);
    let mut create = vec!["pool", "create", "more", "--dirty-copies", "3"];
    ssds.iter().for_each(|ssd| create.extend(["--ssd", ssd.to_str().unwrap()]));
    daemon.tell(&create);
    let ids = shown(&daemon)["members"].as_array().unwrap().clone();
    daemon.kill();
    ssds[1..].iter().for_each(|ssd| std::fs::remove_file(ssd).unwrap());
    daemon.start();
    until("it is open", || shown(&daemon)["usage"].is_object());
    let pool = shown(&daemon);
    let action = pool["action"].as_str().unwrap();
    let both = |first: usize, second: usize| {
        let id = |index: usize| ids[index]["id"].as_str().unwrap();
        let (first, second) = (id(first), id(second));
        action.contains(&format!("replace more {first} PATH`, then the same for {second};"))
    };
    assert!(both(1, 2) || both(2, 1), "{pool}");
    daemon.stop();
}

#[test]
fn an_ssd_that_is_gone_is_replaced_by_one_at_its_place() {
    let mut daemon = patient("replace-gone");
    let paths = ["ssd-0", "ssd-1"].map(|name| daemon.dir.path(name));
    let [old, other] = paths.each_ref().map(|path| path.to_str().unwrap());
    let newest = written(&daemon, 2);
    daemon.kill();
    std::fs::rename(old, daemon.dir.path("gone")).unwrap();
    daemon.start();
    until_served(&daemon);
    until("what was dirty has gone home", || show(&daemon)["state"] == "protected");
    let shown = show(&daemon);
    let action = shown["action"].as_str().unwrap();
    assert!(action.contains("forebay pool device replace fast"), "{action}");
    // With too few cache devices for the copies of dirty data, clean data is not copied either.
    assert!(!shown["summary"].as_str().unwrap().contains("copied again"), "{shown}");
    assert_eq!(shown["usage"]["recopy"]["left_bytes"], 0, "{shown}");
    // Which of the machine's devices that was is what a person has to know.
    let lost = shown["members"].as_array().unwrap().iter().find(|it| it["state"] != "present");
    assert_eq!(lost.unwrap()["path"], old, "{shown}");
    let text = daemon.tell(&["pool", "show", "fast"]);
    assert!(text.contains(&format!("{old} (was there last)")), "{text}");
    // A new one in the same slot.
    daemon.ssd("ssd-0");
    let plan = daemon.json(&[&REPLACE[..], &[old, old, "--dry-run"]].concat());
    assert!(plan["steps"].to_string().contains("the old one is gone"), "{plan}");
    assert!(plan["steps"].to_string().contains("of clean data are copied again"), "{plan}");
    assert!(plan["pool"]["moved_bytes"].as_u64().unwrap() > 0, "{plan}");
    assert_eq!(plan["erased"].as_array().unwrap().len(), 1, "{plan}");
    let job = daemon.json(&[&REPLACE[..], &[old, old, "--yes"]].concat());
    assert_eq!(job["state"], "done", "{job}");
    let shown = show(&daemon);
    assert!(shown["state"] == "online" && shown["action"] == "", "{shown}");
    assert_eq!(shown["members"].as_array().unwrap().len(), 2, "{shown}");
    daemon.kill();
    std::fs::rename(other, daemon.dir.path("pulled")).unwrap();
    daemon.start();
    until_served(&daemon);
    assert!(read_all(&daemon.dir.path("nbd")) == newest, "it has everything");
    daemon.stop();
}

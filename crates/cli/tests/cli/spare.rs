//! Spares: kept and given up, known again wherever they are, and taken when a cache device is lost.

use std::path::Path;
use std::time::Duration;

use crate::common::Client;
use crate::common::daemon::{
    Daemon, PATIENT, SSD_BYTES, VOLUME_BYTES, content, members, patient, read_all, show, until,
    until_served, written,
};
use crate::common::looped::LoopSsd;
use serde_json::Value;

/// Paths and states of its spares, once they were looked for: a start serves its volumes first.
fn spares(daemon: &Daemon) -> Vec<(String, String)> {
    let mut spares = Vec::new();
    until("its spares were looked for", || {
        spares = show(daemon)["spares"].as_array().unwrap().clone();
        spares.iter().all(|spare| spare["reason"] != "it is being looked for")
    });
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut spares: Vec<_> =
        spares.iter().map(|spare| (text(&spare["path"]), text(&spare["state"]))).collect();
    spares.sort();
    spares
}

fn told(daemon: &Daemon, code: &str) -> usize {
    let events = daemon.json(&["events"])["items"].as_array().unwrap().clone();
    events.iter().filter(|event| event["code"] == code).count()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

const SPARE: [&str; 4] = ["pool", "device", "spare", "fast"];
const REMOVE: [&str; 4] = ["pool", "device", "remove", "fast"];
const READY: &str = "ready";

#[test]
fn a_spare_is_kept_known_again_and_given_up() {
    let mut daemon = patient("spare");
    let root = daemon.dir.0.clone();
    let path = |name: &str| root.join(name);
    let [member, spare, other, more] = ["ssd-0", "ssd-2", "ssd-3", "ssd-4"].map(path);
    for name in ["ssd-2", "ssd-3", "ssd-4"] {
        daemon.ssd(name);
    }
    let newest = written(&daemon, 2);
    let refused = |daemon: &Daemon, device: &Path, what: &str, hint: &str| {
        for how in [&[][..], &["--dry-run"]] {
            daemon.refused(&[&SPARE[..], &[text(device)], how].concat(), what, hint);
        }
    };
    refused(&daemon, Path::new("/none"), "/none", "");
    refused(&daemon, &member, "is a cache device of pool \"fast\"", "pool device remove fast ");
    refused(&daemon, &path("origin"), "is the origin of", "nobody needs");
    refused(
        &daemon,
        &daemon.dir.full("small", SSD_BYTES - (32 << 20)),
        "is too small",
        "use one of at least",
    );
    refused(&daemon, &daemon.dir.sparse("holes", 600 << 20), "has holes", "dd if=");
    let signed = daemon.dir.full("signed", SSD_BYTES);
    {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(&signed).unwrap();
        file.write_all_at(b"XFSB", 0).unwrap();
    }
    refused(&daemon, &signed, "XFS file system", "use another one");
    daemon.tell(&["pool", "create", "more", "--ssd", text(&more)]);
    daemon.tell(&["pool", "export", "more"]);
    refused(&daemon, &more, "it belongs to pool \"more\"", "pool import");

    let before = show(&daemon);
    let plan = daemon.json(&[&SPARE[..], &[text(&spare), "--dry-run"]].concat());
    assert_eq!(
        (&plan["done"], &plan["erased"][0]),
        (&false.into(), &text(&spare).into()),
        "{plan}"
    );
    assert!(plan["steps"].to_string().contains("covers the loss of any one"), "{plan}");
    assert!(spares(&daemon).is_empty(), "a plan changes nothing");
    let shown = daemon.json(&[&SPARE[..], &[text(&spare)]].concat());
    assert_eq!(shown["spares"][0]["size_bytes"], SSD_BYTES, "{shown}");
    assert_eq!((&shown["members"], &shown["state"]), (&before["members"], &"online".into()));
    assert_eq!(shown["usage"]["segments"], before["usage"]["segments"], "it is no room for data");
    assert_eq!(told(&daemon, "spare-added"), 1);
    refused(&daemon, &spare, "is a spare of pool \"fast\"", "pool device remove");
    let pulled = daemon.json(&["pool", "device", "can-i-pull", "fast", text(&spare)]);
    assert!(pulled["safe"] == true && pulled["summary"].to_string().contains("spare"), "{pulled}");
    let origin = ["volume", "add", "fast/b", "--origin", text(&spare)];
    daemon.refused(&origin, "is a spare of pool \"fast\"", "pool device remove fast ");

    // By what is on it, not by its path; also after a crash.
    daemon.kill();
    let moved = path("ssd-9");
    std::fs::rename(&spare, &moved).unwrap();
    daemon.start();
    until_served(&daemon);
    assert_eq!(spares(&daemon), [(text(&moved).to_owned(), READY.to_owned())]);
    assert_eq!((members(&daemon).len(), told(&daemon, "spare-missing")), (2, 0));

    // One that is not there holds nothing up, and is known when it comes back.
    daemon.stop();
    std::fs::rename(&moved, path("away")).unwrap();
    daemon.start();
    until_served(&daemon);
    assert_eq!(spares(&daemon), [(text(&moved).to_owned(), "missing".to_owned())]);
    let shown = show(&daemon);
    assert_eq!((&shown["state"], told(&daemon, "spare-missing")), (&"online".into(), 1));
    assert!(shown["action"].as_str().unwrap().contains("cannot be used"), "{shown}");
    std::fs::rename(path("away"), &spare).unwrap();
    until("it is found", || spares(&daemon) == [(text(&spare).to_owned(), READY.to_owned())]);
    assert_eq!((told(&daemon, "spare-found"), &show(&daemon)["action"]), (1, &"".into()));

    // Of another pool it is refused, and it goes at once. What is no spare any more is free.
    daemon.stop();
    daemon.start();
    until_served(&daemon);
    assert_eq!(spares(&daemon).len(), 1);
    daemon.tell(&["pool", "create", "else", "--ssd", text(&other)]);
    daemon.refused(
        &["pool", "device", "spare", "else", text(&spare)],
        "is a spare of pool \"fast\"",
        "",
    );
    daemon.refused(
        &["pool", "device", "remove", "fast", text(&spare)],
        "needs a confirmation",
        "--yes",
    );
    let plan = daemon.json(&[&REMOVE[..], &[text(&spare), "--dry-run"]].concat());
    assert!(plan["steps"].to_string().contains("holds nothing"), "{plan}");
    let job = daemon.json(&[&REMOVE[..], &[text(&spare), "--yes"]].concat());
    assert!(job["state"] == "done" && spares(&daemon).is_empty(), "{job}");
    daemon.tell(&["pool", "device", "spare", "else", text(&spare)]);
    daemon.tell(&["pool", "export", "else"]);
    refused(&daemon, &spare, "it is a spare of pool \"else\"", "pool device remove");

    // With the pool it goes to another machine, and with the pool it ends.
    daemon.tell(&["pool", "import", "else"]);
    assert_eq!(daemon.json(&["pool", "show", "else"])["spares"][0]["state"], READY);
    daemon.tell(&["pool", "destroy", "else", "--yes"]);
    daemon.tell(&[&SPARE[..], &[text(&spare)]].concat());
    daemon.tell(&[&SPARE[..], &[text(&other)]].concat());

    // A person may make it a cache device at any time.
    daemon.tell(&["pool", "device", "add", "fast", text(&spare), "--dry-run"]);
    assert_eq!(spares(&daemon).len(), 2, "a plan changes nothing");
    daemon.tell(&["pool", "device", "add", "fast", text(&spare)]);
    daemon.tell(&["pool", "device", "replace", "fast", text(&member), text(&other), "--yes"]);
    assert!(spares(&daemon).is_empty());
    assert_eq!(members(&daemon), [text(&path("ssd-1")), text(&spare), text(&other)]);
    assert!(read_all(&path("nbd")) == newest);
    daemon.stop();
}

#[test]
fn a_pool_has_four_spares_at_most_and_a_removal_takes_none() {
    let mut daemon = patient("spare-many");
    let root = daemon.dir.0.clone();
    let path = |name: &str| root.join(name);
    for number in 2..=6 {
        daemon.ssd(&format!("ssd-{number}"));
    }
    for number in 3..=6 {
        daemon.tell(&[&SPARE[..], &[text(&path(&format!("ssd-{number}")))]].concat());
    }
    let one = path("ssd-2");
    daemon.refused(&[&SPARE[..], &[text(&one)]].concat(), "has 4 spares", "pool device remove");
    daemon.tell(&["pool", "device", "add", "fast", text(&one)]);
    daemon.tell(&[&REMOVE[..], &[text(&path("ssd-0")), "--yes"]].concat());
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((members(&daemon).len(), spares(&daemon).len()), (2, 4));
    assert_eq!(told(&daemon, "spare-taken"), 0);
    daemon.stop();
}

/// What it held is copied again, volumes are written back again, and then any of the two may go.
#[test]
fn a_cache_device_where_a_spare_was_is_no_spare() {
    let mut daemon = patient("spare-before");
    let spare = daemon.ssd("ssd-2");
    daemon.tell(&[&SPARE[..], &[text(&spare)]].concat());
    daemon.stop();
    std::fs::rename(&spare, daemon.dir.path("pulled")).unwrap();
    daemon.start();
    until_served(&daemon);
    assert_eq!(spares(&daemon), [(text(&spare).to_owned(), "missing".to_owned())]);
    // Another SSD in the same slot.
    daemon.ssd("ssd-2");
    daemon.tell(&["pool", "device", "add", "fast", text(&spare)]);
    assert!(spares(&daemon).is_empty());
    let pulled = daemon.json(&["pool", "device", "can-i-pull", "fast", text(&spare)]);
    assert!(!pulled["summary"].to_string().contains("spare"), "{pulled}");
    let plan = daemon.json(&[&REMOVE[..], &[text(&spare), "--dry-run"]].concat());
    assert!(!plan["steps"].to_string().contains("spare"), "{plan}");
    daemon.tell(&[&REMOVE[..], &[text(&spare), "--yes"]].concat());
    assert!(!members(&daemon).contains(&text(&spare).to_owned()), "{:?}", members(&daemon));
    daemon.stop();
}

#[test]
fn a_device_that_has_left_is_free_whatever_it_was_called() {
    let mut daemon = patient("spare-alias");
    let (spare, link) = (daemon.ssd("ssd-2"), daemon.dir.path("link"));
    std::os::unix::fs::symlink(&spare, &link).unwrap();
    daemon.tell(&[&SPARE[..], &[text(&spare)]].concat());
    daemon.tell(&["pool", "device", "add", "fast", text(&link)]);
    daemon.tell(&[&REMOVE[..], &[text(&link), "--yes"]].concat());
    daemon.tell(&["pool", "device", "add", "fast", text(&spare)]);
    daemon.stop();
}

#[test]
fn what_has_failed_can_be_used_again_once_it_is_mended_and_erased() {
    let mut daemon = Daemon::new("failed-again");
    let Some(failing) = LoopSsd::new(&daemon.dir, "loop-0", SSD_BYTES) else { return };
    let (other, third) = (daemon.ssd("ssd-1"), daemon.ssd("ssd-2"));
    let (origin, socket) = (daemon.dir.path("origin"), daemon.dir.path("nbd"));
    std::fs::write(&origin, content(1, VOLUME_BYTES)).unwrap();
    let ssds = ["--ssd", failing.path(), "--ssd", text(&other), "--ssd", text(&third)];
    daemon.tell(&[&["pool", "create", "fast"], &ssds[..]].concat());
    daemon.tell(&PATIENT);
    daemon.tell(&["volume", "add", "fast/vm", "--origin", text(&origin)]);
    daemon.tell(&["export", "add", "fast/vm", "--socket", text(&socket)]);
    failing.fail();
    written(&daemon, 2);
    until("it has failed", || told(&daemon, "member-failed") == 1);
    failing.mend();
    let add = ["pool", "device", "add", "fast", failing.path()];
    // Nobody has it open any more, so that it can be erased, and it is not taken for a part of the pool.
    until("it is let go of", || {
        let refused = daemon.ask(&add);
        !String::from_utf8_lossy(&refused.stderr).contains("or take it out first")
    });
    let device = std::fs::File::options().write(true).open(failing.path()).unwrap();
    {
        use std::os::unix::fs::FileExt;
        device.write_all_at(&vec![0; 1 << 20], 0).unwrap();
        device.sync_all().unwrap();
    }
    daemon.tell(&add);
    assert_eq!(members(&daemon).len(), 3);
    daemon.stop();
}

#[test]
fn a_spare_takes_the_place_of_one_that_fails_in_use() {
    let mut daemon = Daemon::new("spare-taken");
    let Some(failing) = LoopSsd::new(&daemon.dir, "loop-0", SSD_BYTES) else { return };
    let Some(broken) = LoopSsd::new(&daemon.dir, "loop-1", SSD_BYTES) else { return };
    let (other, good) = (daemon.ssd("ssd-1"), daemon.dir.full("ssd-2", SSD_BYTES + (8 << 20)));
    let (origin, socket) = (daemon.dir.path("origin"), daemon.dir.path("nbd"));
    std::fs::write(&origin, content(1, VOLUME_BYTES)).unwrap();
    daemon.tell(&["pool", "create", "fast", "--ssd", failing.path(), "--ssd", text(&other)]);
    daemon.tell(&PATIENT);
    daemon.tell(&["volume", "add", "fast/vm", "--origin", text(&origin)]);
    daemon.tell(&["volume", "set", "fast/vm", "destage-hours=00:00-00:01"]);
    daemon.tell(&["export", "add", "fast/vm", "--socket", text(&socket)]);
    // The one that fits best is tried first, and its writes fail, too.
    daemon.tell(&[&SPARE[..], &[broken.path()]].concat());
    daemon.tell(&[&SPARE[..], &[text(&good)]].concat());
    written(&daemon, 2);
    failing.fail();
    broken.fail();
    let newest = written(&daemon, 3);
    until("a spare is taken", || told(&daemon, "spare-taken") == 1);
    assert_eq!((told(&daemon, "member-failed"), told(&daemon, "spare-failed")), (1, 1));
    let events = daemon.json(&["events"])["items"].as_array().unwrap().clone();
    let failed = events.iter().find(|event| event["code"] == "member-failed").unwrap();
    assert!(failed["what"].as_str().unwrap().contains(failing.path()), "{failed}");
    assert_eq!(members(&daemon), [text(&other), text(&good)]);
    assert_eq!(spares(&daemon), [(broken.path().to_owned(), "failed".to_owned())]);
    until("the copies are made", || told(&daemon, "copies-restored") == 1);
    until("nothing is degraded", || show(&daemon)["state"] == "online");
    assert!(show(&daemon)["action"].as_str().unwrap().contains("cannot be used"), "the other one");
    let volume = daemon.json(&["volume", "show", "fast/vm"]);
    assert_eq!(volume["mode"], "writeback", "{volume}");
    let dirty = written(&daemon, 4).len();
    let usage = show(&daemon)["usage"].clone();
    assert_eq!(
        (&usage["dirty_bytes"], &usage["rebuild"]["left_bytes"]),
        (&dirty.into(), &0.into())
    );
    assert_ne!(newest, content(4, VOLUME_BYTES));
    // Either of the two has everything. What has failed is stale, and a spare again.
    daemon.kill();
    failing.mend();
    broken.mend();
    std::fs::rename(&other, daemon.dir.path("pulled")).unwrap();
    daemon.start();
    until_served(&daemon);
    assert!(read_all(&socket) == content(4, VOLUME_BYTES));
    until("it is taken now", || members(&daemon) == [text(&good), broken.path()]);
    assert!(spares(&daemon).is_empty());
    daemon.stop();
}

/// A start that goes on without a cache device takes a spare for it, once, whatever cuts it off, and wherever
/// the pool is opened.
#[test]
fn one_that_is_missing_at_a_start_costs_one_spare() {
    let mut daemon = patient("spare-start");
    // One that is killed before it has the pool costs the next start a lease, four times as long as this.
    daemon.tell(&["pool", "set", "fast", "device_deadline=8s"]);
    let root = daemon.dir.0.clone();
    let path = |name: &str| root.join(name);
    for name in ["ssd-2", "ssd-3"] {
        daemon.tell(&[&SPARE[..], &[text(&daemon.ssd(name))]].concat());
    }
    let newest = written(&daemon, 2);
    daemon.kill();
    std::fs::rename(path("ssd-0"), path("gone")).unwrap();
    // At any moment of the start, and of the taking.
    for round in 0..6 {
        daemon.spawn();
        std::thread::sleep(Duration::from_millis(2200 + 150 * round));
        daemon.kill();
    }
    daemon.start();
    until_served(&daemon);
    until("a spare is taken", || members(&daemon).len() == 2);
    until("nothing is degraded", || show(&daemon)["state"] == "online");
    assert_eq!(spares(&daemon).len(), 1);
    let shown = show(&daemon);
    assert_eq!(shown["members"].as_array().unwrap().len(), 2, "the lost one is replaced: {shown}");
    assert!(read_all(&path("nbd")) == newest);
    // On another machine nobody knows but the cache devices.
    daemon.tell(&["export", "remove", "fast/vm"]);
    daemon.tell(&["pool", "export", "fast"]);
    daemon.tell(&["pool", "import", "fast"]);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((members(&daemon).len(), spares(&daemon).len()), (2, 1));
    assert_eq!(show(&daemon)["state"], "online");
    daemon.stop();
}

/// A cache device that was moved to where a spare was last is not that spare.
#[test]
fn one_that_is_away_is_not_forgotten_for_what_stands_in_its_place() {
    let mut daemon = patient("spare-place");
    let path = |name: &str| daemon.dir.0.join(name);
    let (spare, away, member) = (daemon.ssd("ssd-2"), path("away"), path("ssd-1"));
    daemon.tell(&[&SPARE[..], &[text(&spare)]].concat());
    daemon.stop();
    std::fs::rename(&spare, &away).unwrap();
    std::fs::rename(&member, &spare).unwrap();
    daemon.start();
    until_served(&daemon);
    assert_eq!(members(&daemon).len(), 2);
    assert_eq!(spares(&daemon), [(text(&spare).to_owned(), "missing".to_owned())]);
    std::fs::rename(&away, &member).unwrap();
    until("it is found", || spares(&daemon) == [(text(&member).to_owned(), READY.to_owned())]);
    daemon.stop();
}

#[test]
fn what_stands_where_a_spare_was_is_not_said_to_be_one() {
    let mut daemon = patient("spare-other");
    let (spare, away) = (daemon.ssd("ssd-2"), daemon.dir.0.join("away"));
    daemon.tell(&[&SPARE[..], &[text(&spare)]].concat());
    let can_i_pull = ["pool", "device", "can-i-pull", "fast", text(&spare)];
    let remove = ["pool", "device", "remove", "fast", text(&spare), "--dry-run"];
    assert!(daemon.tell(&can_i_pull).contains("it is a spare"));
    assert_eq!(daemon.json(&remove)["erased"], serde_json::json!([text(&spare)]));
    daemon.stop();
    std::fs::rename(&spare, &away).unwrap();
    // Somebody's.
    daemon.ssd("ssd-2");
    daemon.start();
    until_served(&daemon);
    until("it is missed", || spares(&daemon) == [(text(&spare).to_owned(), "missing".to_owned())]);
    let output = daemon.ask(&can_i_pull);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(3) && said.contains("Not known to be safe"), "{said}");
    let plan = daemon.json(&remove);
    assert_eq!(plan["erased"], serde_json::json!([]), "{plan}");
    daemon.stop();
}

/// It may need the one that has failed.
#[test]
fn a_pool_that_has_stopped_writing_takes_no_spare() {
    let mut daemon = Daemon::new("spare-latched");
    let Some(ssd) = LoopSsd::new(&daemon.dir, "loop-0", SSD_BYTES) else { return };
    let (origin, socket) = (daemon.dir.path("origin"), daemon.dir.path("nbd"));
    std::fs::write(&origin, content(1, VOLUME_BYTES)).unwrap();
    let agreed =
        ["pool", "create", "fast", "--ssd", ssd.path(), "--accept-data-loss-on-ssd-failure"];
    daemon.tell(&agreed);
    daemon.tell(&PATIENT);
    daemon.tell(&["volume", "add", "fast/vm", "--origin", text(&origin)]);
    daemon.tell(&["export", "add", "fast/vm", "--socket", text(&socket)]);
    daemon.tell(&[&SPARE[..], &[text(&daemon.ssd("ssd-1"))]].concat());
    let newest = written(&daemon, 2);
    ssd.fail();
    let mut client = Client::connect(&socket);
    assert!(client.write(0, &newest[..4096]).and_then(|()| client.flush()).is_err());
    until("it has latched", || show(&daemon)["state"] == "latched");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((members(&daemon).len(), spares(&daemon)[0].1.as_str()), (1, READY));
    daemon.kill();
    ssd.mend();
    daemon.start();
    until_served(&daemon);
    assert_eq!((members(&daemon), spares(&daemon).len()), (vec![ssd.path().to_owned()], 1));
    assert!(read_all(&socket) == newest);
    daemon.stop();
}

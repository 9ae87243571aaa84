//! What `--dry-run` says, and that it changes nothing.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;

use crate::acceptance::tonight;
use crate::common::daemon::{Daemon, VOLUME_BYTES, patient, show, until, until_served, written};
use crate::common::{Client, forebay, leaves, run};
use serde_json::Value;

/// Everything that a change could touch. Destaging goes on meanwhile, so how much is dirty, since when and for how
/// long, and what would be lost with an SSD, is not in it.
fn everything(daemon: &Daemon) -> (Value, Value) {
    let mut status = daemon.json(&["status"]);
    for pool in status["pools"].as_array_mut().unwrap() {
        pool["usage"] = Value::Null;
        pool["summary"] = Value::Null;
        for member in pool["members"].as_array_mut().unwrap() {
            member["pull"] = Value::Null;
        }
        for volume in pool["volumes"].as_array_mut().unwrap() {
            for field in ["dirty_bytes", "destage", "safe_when", "dirty_for_s"] {
                volume[field] = Value::Null;
            }
        }
    }
    status["summary"] = Value::Null;
    for field in ["resident_bytes", "index_bytes"] {
        status["memory"][field] = Value::Null;
    }
    (status, daemon.json(&["events"]))
}

/// The superblocks of a cache device.
fn superblocks(path: &str) -> Vec<u8> {
    let mut bytes = vec![0; 256 << 10];
    std::fs::File::open(path).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// A plan as text; nothing may have changed.
fn plan(daemon: &Daemon, arguments: &[&str]) -> String {
    let arguments = [arguments, &["--dry-run"]].concat();
    let before = everything(daemon);
    let plan = daemon.json(&arguments);
    assert_eq!(plan["done"], false, "{plan}");
    let text = daemon.tell(&arguments);
    assert_eq!(everything(daemon), before, "{arguments:?} has changed something");
    unbroken(&text)
}

/// Lines that were broken for the terminal, whole again.
fn unbroken(text: &str) -> String {
    let erased = format!("\n{}", " ".repeat("Would be erased: ".len()));
    text.replace(&erased, " ").replace("\n        ", " ").replace("\n    ", " ")
}

/// Commands that change nothing of what the daemon serves; a new one that does not either has to be added here.
const LOOKS: [&str; 24] = [
    "advisor show",
    "bench",
    "completion",
    "demo",
    "doctor",
    "events",
    "explain",
    "export list",
    "inspect",
    "job list",
    "job show",
    "lab papers",
    "lab scale",
    "lab trace",
    "man",
    "pool device can-i-pull",
    "pool list",
    "pool show",
    "scrub status",
    "serve",
    "stats",
    "status",
    "volume list",
    "volume show",
];

#[test]
fn every_command_that_changes_something_has_a_dry_run() {
    let has_it = |path: &str| {
        let help = run(forebay().args(path.split(' ')).arg("--help"));
        String::from_utf8(help.stdout).unwrap().contains("--dry-run")
    };
    let (with, without): (BTreeSet<_>, BTreeSet<_>) =
        leaves().into_iter().partition(|path| has_it(path));
    assert_eq!(without, LOOKS.map(str::to_owned).into());
    assert!(with.len() > 20, "{with:?}");
}

#[test]
fn every_change_says_what_it_would_do_and_does_not_do_it() {
    let mut daemon = Daemon::new("plan");
    let ssds = ["ssd-0", "ssd-1"].map(|name| daemon.ssd(name).to_str().unwrap().to_owned());
    let origin = daemon.dir.sparse("origin", 32 << 20);
    let origin = origin.to_str().unwrap();
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["pool", "create", "fast", "--ssd", &ssds[0], "--ssd", &ssds[1]]);

    let before = ssds.each_ref().map(|path| superblocks(path));
    let text = plan(&daemon, &["pool", "destroy", "fast"]);
    assert!(ssds.each_ref().map(|path| superblocks(path)) == before);
    assert!(text.starts_with("pool \"fast\" would be destroyed:\n  - "), "{text}");
    let erased = text.split_once("Would be erased: ").unwrap().1;
    assert_eq!(erased.trim(), ssds.join(", "));

    let spare = daemon.ssd("ssd-2").to_str().unwrap().to_owned();
    let text = plan(&daemon, &["pool", "device", "spare", "fast", &spare]);
    assert!(text.contains("marked as a spare") && text.contains("511 segments"), "{text}");
    assert!(text.ends_with(&format!("Would be erased: {spare}\n")), "{text}");
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin]);
    let text = plan(&daemon, &["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    assert!(text.contains("served at") && !socket.exists(), "{text}");
    assert!(plan(&daemon, &["export", "add", "fast/vm"]).contains("/run/fast@vm.sock"));
    assert!(plan(&daemon, &["export", "add", "fast/vm", "--port", "0"]).contains("a free port"));
    daemon.refused(&["export", "remove", "fast/vm", "--dry-run"], "not exported", "export list");
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    daemon.tell(&["volume", "set", "fast/vm", "writeback"]);

    // Each fails as the change itself would.
    for dry in [&["--dry-run"][..], &["--yes"]] {
        let with = |rest: &[&'static str]| [rest, dry].concat();
        daemon.refused(&with(&["pool", "destroy", "fast"]), "is exported", "export remove");
        daemon.refused(&with(&["volume", "remove", "fast/vm"]), "is exported", "export remove");
        daemon.refused(&with(&["pool", "destroy", "none"]), "there is no pool", "pool list");
    }
    daemon.refused(&["export", "add", "fast/vm", "--dry-run"], "already", "export remove");
    daemon.refused(&["volume", "flush", "fast/x", "--dry-run"], "no volume", "volume list");
    daemon.refused(&["pool", "import", "fast", "--dry-run"], "open already", "pool show");

    // Another daemon sees that it is not free, and by whom.
    let mut other = Daemon::new("plan-other");
    let import = ["pool", "import", "fast", "--ssd", &ssds[0], "--ssd", &ssds[1], "--dry-run"];
    other.refused(
        &import,
        &format!("process {} (forebay) has them in use", daemon.pid()),
        "end that",
    );
    other.stop();

    let mut client = Client::connect(&socket);
    client.write(0, &vec![7; 1 << 20]).unwrap();
    daemon.refused(
        &["pool", "export", "fast", "--dry-run"],
        "connected to \"fast/vm\"",
        "disconnect",
    );
    let text = plan(&daemon, &["export", "remove", "fast/vm"]);
    assert!(text.contains("connections are closed (1 client)"), "{text}");
    drop(client);
    daemon.until("the client is gone", |status| status.contains("\"clients\": 0"));

    let text = plan(&daemon, &["stop"]);
    assert!(
        text.contains("(0 clients cut off)") && text.contains("stay on cache devices"),
        "{text}"
    );
    let text = plan(&daemon, &["stop", "--destage"]);
    assert!(text.contains("go to the origins first"), "{text}");
    daemon.refused(&["job", "cancel", "99", "--dry-run"], "there is no job 99", "ended long ago");
    let text = plan(&daemon, &["volume", "set", "fast/vm", "bypass"]);
    assert!(text.contains("served as bypass instead of writeback"), "{text}");
    assert!(plan(&daemon, &["volume", "flush", "fast/vm"]).contains(origin));
    let text = plan(&daemon, &["pool", "export", "fast"]);
    assert!(text.contains("(1 export)") && text.contains("2 cache devices can be moved"), "{text}");
    assert!(text.ends_with("Nothing would be erased.\n"), "{text}");
    assert!(plan(&daemon, &["scrub", "start", "fast"]).contains("at most 8 MiB a second"));
    assert!(plan(&daemon, &["scrub", "stop", "fast"]).contains("no scrub of pool"));
    assert!(plan(&daemon, &["advisor", "start", "fast/vm"]).contains("1 MiB of memory"));
    daemon.tell(&["export", "remove", "fast/vm"]);
    assert!(plan(&daemon, &["volume", "remove", "fast/vm"]).contains("is the plain disk"));

    daemon.tell(&["pool", "export", "fast"]);
    let text = plan(&daemon, &["pool", "import", "fast"]);
    assert!(text.contains("opened with 2 cache devices"), "{text}");
    std::fs::rename(&ssds[1], daemon.dir.path("away")).unwrap();
    let text = unbroken(&daemon.tell(&["pool", "import", "fast", "--dry-run"]));
    assert!(text.contains("1 of 2 cache devices are missing"), "{text}");
    let text = unbroken(&daemon.tell(&["pool", "import", "fast", "--accept-missing", "--dry-run"]));
    assert!(text.contains("writes that only they hold are lost"), "{text}");
    daemon.refused(&["pool", "import", "none", "--dry-run"], "was found", "--ssd");
    daemon.stop();
}

/// What `--dry-run` says of what a pool has after a change of its cache devices, as text and as JSON.
#[track_caller]
fn device_plan(daemon: &Daemon, arguments: &[&str], says: &[&str]) -> Value {
    let text = plan(daemon, arguments);
    for words in says {
        assert!(text.contains(words), "{arguments:?} lacks {words:?}: {text}");
    }
    daemon.json(&[arguments, &["--dry-run"]].concat())["pool"].clone()
}

#[test]
fn each_change_of_devices_says_layout_capacity_copies_and_time() {
    const SEGMENT: u64 = 1 << 20;
    let mut daemon = Daemon::new("plan-devices");
    let ssd = |name: &str| daemon.ssd(name).to_str().unwrap().to_owned();
    let ssds = ["ssd-0", "ssd-1", "ssd-2"].map(ssd);
    let more = ssd("ssd-3");
    let mut create = vec!["pool", "create", "fast"];
    ssds.iter().for_each(|ssd| create.extend(["--ssd", ssd]));
    daemon.tell(&create);
    let origin = daemon.dir.sparse("origin", 32 << 20);
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap()]);
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    let mut client = Client::connect(&socket);
    (0..16).for_each(|mib| client.write(mib << 20, &vec![7; 1 << 20]).unwrap());
    client.flush().unwrap();
    // 511 segments of 1 MiB on each, 1 copy of clean data and 2 of dirty data.
    let held = |count: u64| {
        let clean = count * 511 * SEGMENT;
        (clean, clean / 2 / SEGMENT * SEGMENT)
    };
    let check = |plan: &Value, when: &str, count: u64| {
        let room = &plan[when];
        let (clean, dirty) = held(count);
        assert_eq!(room["devices"], count, "{plan}");
        assert_eq!(room["capacity_bytes"], clean, "{plan}");
        assert_eq!(
            (&room["clean_copies"], &room["dirty_copies"]),
            (&1.into(), &2.into()),
            "{plan}"
        );
        assert_eq!((&room["clean_bytes"], &room["dirty_bytes"]), (&clean.into(), &dirty.into()));
    };
    let in_copies = "of clean data in 1 copy, or";
    let both = [in_copies, "of dirty data in 2 copies"];
    let device = |verb: &'static str, rest: &[&str], says: &[&str]| {
        let arguments = [&["pool", "device", verb, "fast"][..], rest].concat();
        let plan = device_plan(&daemon, &arguments, &[&both[..], says].concat());
        check(&plan, "before", 3);
        plan
    };
    let layout = "511 segments of 1 MiB";
    let added = device("add", &[&more], &[layout, "nothing has to be copied"]);
    check(&added, "after", 4);
    assert_eq!((&added["segments"], &added["segment_bytes"]), (&511.into(), &SEGMENT.into()));
    assert_eq!((&added["moved_bytes"], &added["time_s"]), (&0.into(), &0.into()));
    let removed = device("remove", &[&ssds[0]], &[layout, "that takes"]);
    check(&removed, "after", 2);
    assert!(removed["time_s"].as_u64().is_some_and(|s| s > 0), "{removed}");
    let replaced = device("replace", &[&ssds[0], &more], &[layout, "that takes"]);
    check(&replaced, "after", 3);
    let spare = device(
        "spare",
        &[&more],
        &[layout, "taking a place takes no time but for that; that takes"],
    );
    check(&spare, "after", 3);
    assert!(spare["time_s"].is_u64(), "{spare}");
    let file = std::fs::OpenOptions::new().append(true).open(&ssds[2]).unwrap();
    std::io::Write::write_all(&mut &file, &vec![1; 64 << 20]).unwrap();
    // To look at it is to know how large it is, which is shown from then on.
    daemon.tell(&["pool", "device", "grow", "fast", &ssds[2], "--dry-run"]);
    let grown = device("grow", &[&ssds[2]], &["575 segments of 1 MiB", "nothing has to be copied"]);
    assert_eq!(grown["after"]["capacity_bytes"], (3 * 511 + 64) * SEGMENT, "{grown}");
    assert_eq!(grown["after"]["dirty_bytes"], (3 * 511 + 64) / 2 * SEGMENT, "{grown}");
    daemon.stop();
}

/// With two copies of clean data on two SSDs of which one is lost, another one gets all that is clean.
#[test]
fn what_is_clean_and_lacks_a_copy_counts_for_what_is_copied() {
    let mut daemon = patient("plan-clean");
    daemon.tell(&["pool", "set", "fast", "clean_copies=2"]);
    let [old, new] = ["ssd-0", "ssd-2"].map(|name| daemon.dir.path(name));
    let [old, new] = [&old, &new].map(|path| path.to_str().unwrap());
    daemon.ssd("ssd-2");
    let add = ["pool", "device", "add", "fast", new];
    let spare = ["pool", "device", "spare", "fast", new];
    let whole = device_plan(&daemon, &add, &["nothing has to be copied"]);
    assert_eq!((&whole["moved_bytes"], &whole["time_s"]), (&0.into(), &0.into()));
    device_plan(&daemon, &spare, &["dirty data first", "clean data"]);
    // What is clean already, in sets that are known by a number of the lost one, is not kept over a start.
    daemon.tell(&["volume", "set", "fast/vm", &tonight()]);
    written(&daemon, 2);
    daemon.kill();
    std::fs::rename(old, daemon.dir.path("gone")).unwrap();
    daemon.start();
    until_served(&daemon);
    until("every origin has all of its data", || show(&daemon)["state"] == "protected");
    let replace = ["pool", "device", "replace", "fast", old, new];
    for arguments in [&add[..], &replace] {
        let says = ["of clean data are copied again", "that takes"];
        let plan = device_plan(&daemon, arguments, &says);
        let moved = plan["moved_bytes"].as_u64().unwrap() as usize;
        assert!(moved > VOLUME_BYTES / 2 && moved <= 2 * VOLUME_BYTES, "{plan}");
        assert!(plan["time_s"].as_u64().is_some_and(|s| s > 0), "{plan}");
    }
    device_plan(&daemon, &spare, &["taken at once", "of clean data"]);
    daemon.stop();
}

#[test]
fn a_pool_of_devices_of_unequal_size_has_room_for_what_finds_two_of_them() {
    let mut daemon = Daemon::new("plan-unequal");
    let large = daemon.dir.full("large", 1 << 30).to_str().unwrap().to_owned();
    let small = daemon.ssd("small").to_str().unwrap().to_owned();
    let create = ["pool", "create", "fast", "--ssd", &large, "--ssd", &small];
    let planned = daemon.json(&[&create[..], &["--dry-run"]].concat());
    let segments = |member: usize| planned["members"][member]["segments"].as_u64().unwrap();
    assert!(segments(0) > 900 && segments(1) < 600, "{planned}");
    let mib = segments(1);
    let text = plan(&daemon, &create);
    assert!(text.contains(&format!("of clean data, or {mib} MiB of dirty data")), "{text}");
    let bytes = |segments: u64| segments * planned["segment_bytes"].as_u64().unwrap();
    let both = bytes(segments(0) + segments(1));
    assert_eq!((&planned["capacity_bytes"], &planned["clean_bytes"]), (&both.into(), &both.into()));
    assert_eq!(planned["dirty_bytes"], bytes(segments(1)), "{planned}");
    // Once it is made it is said in the same words.
    assert!(daemon.tell(&create).contains(&format!("{mib} MiB of dirty data")));
    daemon.stop();
}

#[test]
fn what_would_keep_a_volume_from_being_removed_is_said_before() {
    let mut daemon = patient("plan-remove");
    daemon.tell(&["volume", "set", "fast/vm", &tonight()]);
    written(&daemon, 2);
    daemon.tell(&["export", "remove", "fast/vm"]);
    daemon.stop();
    std::fs::rename(daemon.dir.path("origin"), daemon.dir.path("away")).unwrap();
    daemon.start();
    for how in ["--dry-run", "--yes"] {
        let remove = ["volume", "remove", "fast/vm", how];
        daemon.refused(&remove, "may lack data on its origin", "attach its origin");
    }
    daemon.stop();
}

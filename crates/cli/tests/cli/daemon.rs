//! The life of pools and volumes under the daemon, with the real binary and real clients.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common::daemon::{
    Daemon, VOLUME_BYTES, content, read_all, served, until, until_served, written,
};
use crate::common::{Client, have, run, stderr};

fn state(daemon: &Daemon, pool: &str) -> String {
    daemon.json(&["pool", "show", pool])["state"].as_str().unwrap().to_owned()
}

fn volume_state(daemon: &Daemon) -> String {
    daemon.json(&["volume", "show", "fast/vm"])["state"].as_str().unwrap().to_owned()
}

#[test]
fn a_volume_lives_through_a_kill_and_leaves_the_plain_disk_behind() {
    let mut daemon = served("life");
    let socket = daemon.dir.path("nbd");
    let newest = content(2, VOLUME_BYTES);
    if have("nbdcopy") {
        let source = daemon.dir.path("newest");
        std::fs::write(&source, &newest).unwrap();
        let uri = format!("nbd+unix:///vm?socket={}", socket.display());
        let copied = run(Command::new("nbdcopy").arg("--flush").arg(&source).arg(&uri));
        assert!(copied.status.success(), "{}", stderr(&copied));
    } else {
        let mut client = Client::connect(&socket);
        for (index, chunk) in newest.chunks(1 << 20).enumerate() {
            client.write((index << 20) as u64, chunk).unwrap();
        }
        client.flush().unwrap();
    }
    daemon.kill();
    daemon.start();
    until_served(&daemon);
    assert_eq!(read_all(&socket), newest, "after a kill");
    daemon.tell(&["volume", "flush", "fast/vm"]);
    assert_eq!(daemon.json(&["volume", "show", "fast/vm"])["dirty_bytes"], 0);
    // Dirty again, so that the removal has something to do.
    let last = content(3, 1 << 20);
    Client::connect(&socket).write(4 << 20, &last).unwrap();
    daemon.refused(&["volume", "remove", "fast/vm", "--yes"], "is exported", "export remove");
    daemon.tell(&["export", "remove", "fast/vm"]);
    assert!(!socket.exists());
    daemon.tell(&["volume", "remove", "fast/vm", "--yes"]);
    // The daemon has let go of it: nobody else has it open for themselves.
    let origin = daemon.dir.path("origin");
    let file = std::fs::File::open(&origin).unwrap();
    until("the origin is free", || file.try_lock().is_ok());
    let mut expected = newest;
    expected[4 << 20..5 << 20].copy_from_slice(&last);
    assert!(std::fs::read(&origin).unwrap() == expected, "the plain disk has all of the data");
    daemon.refused(&["volume", "show", "fast/vm"], "there is no volume", "volume list");
    daemon.tell(&["pool", "destroy", "fast", "--yes"]);
    assert_eq!(daemon.json(&["pool", "list"])["items"].as_array().unwrap().len(), 0);
    daemon.stop();
    // What is gone does not come back.
    daemon.start();
    assert_eq!(daemon.json(&["pool", "import"])["items"].as_array().unwrap().len(), 0);
    daemon.stop();
}

#[test]
fn a_missing_origin_is_a_state_until_it_is_back() {
    let mut daemon = served("origin");
    let socket = daemon.dir.path("nbd");
    let data = content(5, 1 << 20);
    let mut client = Client::connect(&socket);
    client.write(0, &data).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.stop();
    let (origin, away) = (daemon.dir.path("origin"), daemon.dir.path("away"));
    std::fs::rename(&origin, &away).unwrap();
    daemon.start();
    until("the volume is looked at", || volume_state(&daemon) == "origin-missing");
    let pool = daemon.json(&["pool", "show", "fast"]);
    assert!(pool["action"].as_str().unwrap().contains("attach the origin"), "{pool}");
    assert!(daemon.tell(&["events"]).contains("origin-missing"));
    daemon.refused(&["volume", "flush", "fast/vm"], "not online", "check the path");
    std::fs::rename(&away, &origin).unwrap();
    until_served(&daemon);
    assert!(read_all(&socket)[..1 << 20] == data[..]);
    daemon.stop();
}

#[test]
fn missing_ssds_are_waited_for_and_never_keep_the_daemon_from_starting() {
    let mut daemon = served("ssds");
    let data = content(6, 1 << 20);
    let mut client = Client::connect(&daemon.dir.path("nbd"));
    client.write(0, &data).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.stop();
    let (first, second) = (daemon.dir.path("ssd-0"), daemon.dir.path("ssd-1"));
    std::fs::rename(&first, daemon.dir.path("away-0")).unwrap();
    std::fs::rename(&second, daemon.dir.path("away-1")).unwrap();
    daemon.spawn();
    daemon.until("the pool waits", |status| status.contains("\"waiting\""));
    assert_eq!(daemon.json(&["pool", "show", "fast"])["health"], "failed", "nothing is served");
    let missing = || {
        let events = daemon.json(&["events", "--severity", "critical"]);
        events["items"].as_array().unwrap().iter().filter(|e| e["code"] == "pool-missing").count()
    };
    until("it is missed once it has been waited for", || missing() == 1);
    daemon.refused(&["volume", "flush", "fast/vm"], "is not open", "pool show fast");
    let listed = daemon.ask(&["volume", "list"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("fast/vm"), "{listed:?}");
    let said = daemon.tell(&["pool", "show", "fast"]);
    assert!(said.contains("may lack data that only its cache devices have"), "{said}");
    daemon.refused(&["pool", "import", "fast"], "no cache device", "were last at");
    // Found by what is on them, under other names.
    std::fs::rename(daemon.dir.path("away-0"), daemon.dir.path("ssd-x")).unwrap();
    std::fs::rename(daemon.dir.path("away-1"), daemon.dir.path("ssd-y")).unwrap();
    daemon.tell(&["pool", "import", "fast"]);
    assert_eq!(state(&daemon, "fast"), "online");
    assert_eq!(missing(), 1, "it is told once");
    daemon.stop();
    // One that comes during the wait is not gone on without.
    std::fs::rename(daemon.dir.path("ssd-x"), daemon.dir.path("away-0")).unwrap();
    daemon.spawn();
    daemon.until("the pool waits", |status| status.contains("\"waiting\""));
    std::fs::rename(daemon.dir.path("away-0"), daemon.dir.path("ssd-x")).unwrap();
    daemon.until("the pool is whole", |status| status.contains("\"online\""));
    assert_eq!(state(&daemon, "fast"), "online");
    daemon.stop();
    // With two copies one is enough, by itself.
    std::fs::rename(daemon.dir.path("ssd-x"), daemon.dir.path("away-0")).unwrap();
    daemon.start();
    assert!(daemon.tell(&["status"]).starts_with("A look is needed at 1 of 1 pool."));
    until_served(&daemon);
    daemon.until("what was dirty has gone home", |_| state(&daemon, "fast") == "protected");
    let shown = daemon.tell(&["pool", "show", "fast"]);
    assert!(shown.contains("Protected, clean. It has gone on without 1 cache device."), "{shown}");
    assert!(daemon.tell(&["events"]).contains("protected-clean"));
    // Whose owner will not wait for another one is written back with as many copies as there can be.
    let agreed = ["dirty_copies=1", "accept_data_loss_on_ssd_failure=true"];
    daemon.refused(&["pool", "set", "fast", agreed[0]], "loses data", agreed[1]);
    daemon.tell(&["pool", "set", "fast", agreed[0], agreed[1]]);
    daemon.until("it is written back", |_| state(&daemon, "fast") == "degraded");
    assert!(daemon.tell(&["events"]).contains("copies-restored"));
    assert!(read_all(&daemon.dir.path("nbd"))[..1 << 20] == data[..]);
    daemon.stop();
}

#[test]
fn a_pool_whose_only_copy_is_missing_waits_for_a_person() {
    let mut daemon = Daemon::new("decision");
    let (first, second) = (daemon.ssd("ssd-0"), daemon.ssd("ssd-1"));
    let origin = daemon.dir.path("origin");
    std::fs::write(&origin, content(1, VOLUME_BYTES)).unwrap();
    let paths = [&first, &second, &origin].map(|path| path.to_str().unwrap());
    daemon.tell(&[
        "pool",
        "create",
        "fast",
        "--ssd",
        paths[0],
        "--ssd",
        paths[1],
        "--dirty-copies",
        "1",
        "--accept-data-loss-on-ssd-failure",
    ]);
    daemon.tell(&["volume", "add", "fast/vm", "--origin", paths[2]]);
    let volume = daemon.json(&["volume", "show", "fast/vm"]);
    assert_eq!(volume["mode"], "writeback", "as was agreed to at creation");
    let idle = daemon.dir.path("idle");
    std::fs::write(&idle, content(2, VOLUME_BYTES)).unwrap();
    daemon.tell(&["volume", "add", "fast/idle", "--origin", idle.to_str().unwrap()]);
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    let mut client = Client::connect(&socket);
    client.write(0, &content(7, 1 << 20)).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.kill();
    std::fs::rename(&second, daemon.dir.path("away")).unwrap();
    daemon.start();
    assert_eq!(state(&daemon, "fast"), "needs-decision");
    let at_risk =
        "may hold the only copy of writes to volume \"vm\"; nothing is missing of \"idle\"";
    daemon.refused(&["pool", "import", "fast"], at_risk, "--accept-missing");
    // It may be open by the time that these come to their turn: nobody knows what they would give up.
    let lost = ["volume", "accept-lost", "fast/vm"];
    let dirty = ["volume", "accept-origin", "fast/vm", "--dirty", "drop"];
    daemon.refused(&lost, "all lost blocks of volume \"fast/vm\"", "--yes");
    daemon.refused(&dirty, "all blocks that only the cache has are given up", "--yes");
    // Once it is there again nobody needs to decide anything.
    std::fs::rename(daemon.dir.path("away"), &second).unwrap();
    until_served(&daemon);
    let mut client = Client::connect(&socket);
    let mut found = vec![0; 1 << 20];
    client.read(0, &mut found).unwrap();
    assert!(found == content(7, 1 << 20));
    client.write(0, &found).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.kill();
    std::fs::rename(&second, daemon.dir.path("away")).unwrap();
    daemon.start();
    daemon.tell(&["pool", "import", "fast", "--accept-missing", "--yes"]);
    daemon.until("all has its copies", |_| state(&daemon, "fast") == "degraded");
    daemon.stop();
}

/// Ends the daemon with a kill at the next system call that `filter` describes to strace.
fn kill_at(daemon: &Daemon, filter: &[&str]) -> std::process::Child {
    let mut command = Command::new("strace");
    command.args(["-f", "-q", "-p", &daemon.pid().to_string(), "-o", "/dev/null"]).args(filter);
    let strace = command.spawn().unwrap();
    let task = format!("/proc/{0}/task", daemon.pid());
    let is_traced = |thread: &Path| {
        // The kernel's own workers of a ring cannot be traced.
        let name = std::fs::read_to_string(thread.join("comm")).unwrap_or_default();
        if name.starts_with("iou-") {
            return true;
        }
        let status = std::fs::read_to_string(thread.join("status")).unwrap_or_default();
        // Its own timers may have brought it to its end already.
        let has_ended = status.lines().any(|line| line.starts_with("State:\tZ"));
        has_ended
            || status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
    };
    until("strace has attached", || {
        std::fs::read_dir(&task).unwrap().all(|thread| is_traced(&thread.unwrap().path()))
    });
    strace
}

#[test]
fn a_crash_while_a_pool_is_made_leaves_a_pool_or_nothing() {
    if !have("strace") {
        return;
    }
    let mut daemon = Daemon::new("creation");
    let (first, second) = (daemon.ssd("ssd-0"), daemon.ssd("ssd-1"));
    let ssds = [first.to_str().unwrap(), second.to_str().unwrap()];
    let create = ["pool", "create", "fast", "--ssd", ssds[0], "--ssd", ssds[1]];
    let new = daemon.dir.path("state/new");
    let path = |name: &str| new.join(name).to_str().unwrap().to_owned();
    let paths = ["fast.json.new", "witness.new", "witness", "fast.json"].map(path);
    let mut places: Vec<(String, Vec<String>)> = Vec::new();
    for (call, path) in ["rename", "rename", "rename", "unlink"].iter().zip(&paths) {
        let inject = format!("inject={call}:signal=KILL");
        let filter = ["-P", path, "-e", &inject].map(str::to_owned).to_vec();
        places.push((format!("{call} {path}"), filter));
    }
    // The writes to the SSDs; the rest of the probing comes before.
    for number in [2, 5, 7, 9, 11, 13, 15, 17, 20] {
        let inject = format!("inject=io_uring_enter:signal=KILL:when={number}");
        places.push((format!("ring {number}"), ["-e".to_owned(), inject].to_vec()));
    }
    let (mut made, mut taken_back) = (0, 0);
    for (what, filter) in &places {
        let filter: Vec<&str> = filter.iter().map(String::as_str).collect();
        let mut strace = kill_at(&daemon, &filter);
        daemon.ask(&create);
        let killed = !daemon.wait();
        let _ = strace.kill();
        strace.wait().unwrap();
        assert!(killed, "{what}");
        daemon.start();
        until("the note is gone", || !new.join("fast.json").exists());
        let pools = daemon.json(&["pool", "list"])["items"].clone();
        if pools.as_array().unwrap().is_empty() {
            taken_back += 1;
            let found = daemon.json(&["pool", "import"]);
            assert!(found["items"].as_array().unwrap().is_empty(), "{what}: {found}");
            daemon.tell(&create);
        } else {
            made += 1;
        }
        // The kernel lets go of a killed process's SSDs in its own time; they are waited for.
        until(&format!("it is online, {what}"), || state(&daemon, "fast") == "online");
        daemon.tell(&["pool", "destroy", "fast", "--yes"]);
    }
    assert!(made > 1 && taken_back > 1, "{made} {taken_back}");
    daemon.stop();
}

#[test]
fn an_export_whose_address_is_taken_is_served_once_it_is_free() {
    let mut daemon = served("taken");
    daemon.stop();
    let socket = daemon.dir.path("nbd");
    let other = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    daemon.start();
    let reason = || daemon.json(&["export", "list"])["items"][0]["reason"].to_string();
    until("it is told why", || reason().contains("another process listens"));
    drop(other);
    until_served(&daemon);
    assert_eq!(reason(), "\"\"");
    daemon.stop();
}

#[test]
fn a_pool_moves_with_its_ssds() {
    let mut from = served("move-from");
    let data = content(8, 1 << 20);
    let mut client = Client::connect(&from.dir.path("nbd"));
    client.write(0, &data).unwrap();
    client.flush().unwrap();
    from.refused(&["pool", "export", "fast"], "connected to \"fast/vm\"", "export remove");
    drop(client);
    until("the client is gone", || from.json(&["export", "list"])["items"][0]["clients"] == 0);
    from.tell(&["pool", "export", "fast"]);
    assert_eq!(from.json(&["pool", "list"])["items"].as_array().unwrap().len(), 0);
    let found = from.json(&["pool", "import"]);
    assert_eq!(found["items"][0]["state"], "exported");
    let mut to = Daemon::new("move-to");
    let ssds = [from.dir.path("ssd-0"), from.dir.path("ssd-1")];
    let ssds = ssds.each_ref().map(|path| path.to_str().unwrap());
    let copy = to.dir.path("copy-of-an-ssd");
    std::fs::copy(ssds[0], &copy).unwrap();
    let copy = copy.to_str().unwrap();
    let three = ["pool", "import", "fast", "--ssd", ssds[0], "--ssd", ssds[1], "--ssd", copy];
    for named in [ssds[0], copy, "one is a copy of the other"] {
        to.refused(&three, named, "detach the copy");
    }
    assert_eq!(to.json(&["pool", "list"])["items"].as_array().unwrap().len(), 0);
    std::fs::remove_file(copy).unwrap();
    to.tell(&["pool", "import", "fast", "--ssd", ssds[0], "--ssd", ssds[1]]);
    until("the volume is online", || volume_state(&to) == "online");
    from.refused(&["pool", "import", "fast"], "in use", "stop who uses it");
    // And it is not opened here one day because somebody has tried.
    assert_eq!(from.json(&["pool", "list"])["items"].as_array().unwrap().len(), 0);
    let socket = to.dir.path("nbd");
    to.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    assert!(read_all(&socket)[..1 << 20] == data[..]);
    // It is known at the next start, by paths that no pattern matches.
    to.stop();
    to.start();
    assert_eq!(state(&to, "fast"), "online");
    to.stop();
    from.stop();
}

#[test]
fn a_mode_is_changed_and_kept_and_a_port_stays_the_same() {
    let mut daemon = served("mode");
    daemon.tell(&["volume", "set", "fast/vm", "writethrough"]);
    daemon.tell(&["export", "remove", "fast/vm"]);
    let uri = daemon.tell(&["export", "add", "fast/vm", "--port", "0"]);
    assert!(uri.starts_with("nbd://127.0.0.1:"), "{uri}");
    daemon.stop();
    daemon.start();
    until_served(&daemon);
    let volume = daemon.json(&["volume", "show", "fast/vm"]);
    assert_eq!(volume["mode"], "writethrough");
    assert_eq!(volume["exports"][0], uri.trim());
    daemon.stop();
}

#[test]
fn a_dry_run_changes_nothing() {
    let mut daemon = Daemon::new("dry");
    let ssd = daemon.ssd("ssd-0");
    let path = ssd.to_str().unwrap();
    let plan = daemon.json(&["pool", "create", "fast", "--ssd", path, "--dry-run"]);
    assert_eq!(plan["done"], false);
    assert_eq!(plan["dirty_copies"], 1);
    assert!(plan["index_bytes_max"].as_u64().unwrap() >= 4 << 20);
    let index = |case: &str| plan[format!("index_bytes_{case}")].as_u64().unwrap();
    assert_eq!(index("usual"), 511 * (400 << 10) / 1024, "of 511 MiB");
    assert!(index("usual") < index("dense") && index("dense") <= index("max"));
    assert_eq!(
        plan["sparse_cache_bytes"], plan["capacity_bytes"],
        "4 MiB are enough for all of it"
    );
    let number = |name: &str| plan[name].as_u64().unwrap();
    let alone = index("max") + number("policy_bytes") + number("ram_memory_bytes");
    assert_eq!(number("total_bytes_max"), alone + number("buffers_bytes_max"));
    assert!(number("machine_cache_bytes") > number("capacity_bytes"), "{plan}");
    assert!(std::fs::read(&ssd).unwrap().iter().all(|&byte| byte == 0));
    assert_eq!(daemon.json(&["pool", "list"])["items"].as_array().unwrap().len(), 0);
    daemon.tell(&["pool", "create", "fast", "--ssd", path]);
    let origin = daemon.dir.sparse("origin", VOLUME_BYTES as u64);
    let origin = origin.to_str().unwrap();
    let planned = daemon.json(&["volume", "add", "fast/vm", "--origin", origin, "--dry-run"]);
    assert_eq!((&planned["state"], &planned["mode"]), (&"planned".into(), &"writethrough".into()));
    assert_eq!(daemon.json(&["volume", "list"])["items"].as_array().unwrap().len(), 0);
    daemon.stop();
}

/// The largest number that there is, as a size.
const MOST: &str = "18446744073709551615";

#[test]
fn the_largest_number_is_an_answer_to_every_question_for_a_size() {
    let mut daemon = served("largest");
    let ssd = daemon.ssd("ssd-2");
    let create = ["pool", "create", "other", "--ssd", ssd.to_str().unwrap()];
    let one_of = |key: &str| format!("{key}={MOST}");
    for key in ["ram", "scrub_rate", "write_budget"] {
        daemon.ask(&["pool", "set", "fast", &one_of(key)]);
    }
    for key in ["limit", "reservation", "sequential-cutoff", "cache_block"] {
        daemon.ask(&["volume", "set", "fast/vm", &one_of(key)]);
    }
    for option in ["--ram", "--index-max", "--write-budget"] {
        daemon.ask(&[&create[..], &[option, MOST, "--dry-run"]].concat());
    }
    let all = written(&daemon, 2);
    assert!(read_all(&daemon.dir.path("nbd")) == all);
    for look in [&["status"][..], &["pool", "list"], &["volume", "list"], &["export", "list"]] {
        daemon.tell(look);
    }
    daemon.stop();
}

#[test]
fn a_pool_that_the_memory_has_no_room_for_is_refused_and_its_index_can_be_bounded() {
    let mut daemon = Daemon::new("too-large");
    let ssd = daemon.ssd("ssd-0");
    let path = ssd.to_str().unwrap();
    let create = ["pool", "create", "fast", "--ssd", path];
    let with = |more: &[&'static str]| [&create[..], more].concat();
    for more in [&["--index-max", "512T", "--dry-run"][..], &["--index-max", "512T"]] {
        let error = "pool \"fast\" may take 512.0 TiB of memory (index 512 TiB,";
        daemon.refused(&with(more), error, "or bound the index with `--index-max ");
    }
    daemon.refused(&with(&["--index-max", "1M"]), "an index cannot be held to 1 MiB", "4 MiB");
    daemon.refused(
        &with(&["--index-max", MOST]),
        "an index cannot have 16384.0 PiB",
        "use 1 PiB or less",
    );
    assert!(std::fs::read(&ssd).unwrap().iter().all(|&byte| byte == 0));
    // What is allowed is kept, and promised to nobody else.
    let plan = daemon.json(&with(&["--index-max", "64M"]));
    assert_eq!((&plan["done"], &plan["index_bytes_max"]), (&true.into(), &(64 << 20).into()));
    let other = daemon.ssd("ssd-1");
    let before = plan["machine_cache_bytes"].as_u64().unwrap();
    let create = ["pool", "create", "other", "--ssd", other.to_str().unwrap(), "--dry-run"];
    let after = daemon.json(&create)["machine_cache_bytes"].as_u64().unwrap();
    assert!(after < before, "{after} {before}");
    daemon.stop();
}

#[test]
fn the_control_socket_is_private_and_belongs_to_one_daemon() {
    let mut daemon = Daemon::new("socket");
    let socket = daemon.dir.path("control.sock");
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = run(&mut daemon.command());
    assert_eq!(second.status.code(), Some(1));
    assert!(stderr(&second).contains("another daemon uses the state directory"));
    // With a state directory of its own it still finds the socket taken.
    let config = std::fs::read_to_string(daemon.dir.path("forebay.toml")).unwrap();
    std::fs::write(daemon.dir.path("other.toml"), config.replace("/state\"", "/other\"")).unwrap();
    let mut other = crate::common::forebay();
    let third = run(other.arg("serve").arg("--config").arg(daemon.dir.path("other.toml")));
    let text = stderr(&third);
    assert!(text.contains("another daemon answers there") && text.contains("hint: "), "{text}");
    daemon.tell(&["status"]);
    // A dead daemon's socket is taken over.
    daemon.kill();
    assert!(socket.exists());
    daemon.start();
    daemon.stop();
    assert!(!socket.exists());
}

#[test]
fn a_killed_daemon_that_is_slow_to_go_is_waited_for() {
    let mut daemon = Daemon::new("successor");
    daemon.kill();
    // The kernel closes what the killed one had a moment after the next one begins.
    let held = std::fs::File::open(daemon.dir.path("state")).unwrap();
    held.lock().unwrap();
    let let_go = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        drop(held);
    });
    daemon.start();
    let_go.join().unwrap();
    daemon.tell(&["status"]);
    daemon.stop();
}

#[test]
fn a_pool_has_the_ram_that_it_is_given() {
    let mut daemon = Daemon::new("ram");
    let ssd = daemon.ssd("ssd-0");
    let create = ["pool", "create", "fast", "--ssd", ssd.to_str().unwrap(), "--ram"];
    let with = |size, more| [&create[..], &[size], more].concat();
    let plan = daemon.json(&with("16M", &["--dry-run"]));
    assert_eq!(plan["ram_bytes"], 16 << 20);
    assert!(plan["ram_memory_bytes"].as_u64().unwrap() > 16 << 20);
    daemon.misused(&with("3M", &[]), "cannot be made", "multiple of 2 MiB");
    daemon.refused(&with("4T", &[]), "more memory", "smaller size");
    daemon.tell(&with("16M", &[]));
    let usage = |daemon: &Daemon| daemon.json(&["pool", "show", "fast"])["usage"]["ram"].clone();
    let comes_to = |daemon: &Daemon, bytes: u64| {
        daemon.until("the RAM tier has its size", |_| usage(daemon)["size_bytes"] == bytes);
    };
    comes_to(&daemon, 16 << 20);
    assert!(daemon.tell(&["pool", "show", "fast"]).contains("of 16 MiB in use"));
    let bound = |daemon: &Daemon| daemon.json(&["status"])["memory"]["ram_bytes_max"].clone();
    assert_eq!(bound(&daemon), usage(&daemon)["memory_bytes"]);
    daemon.tell(&["pool", "set", "fast", "ram=6M"]);
    daemon.kill();
    daemon.start();
    comes_to(&daemon, 6 << 20);
    daemon.misused(&["pool", "set", "fast", "ram=much"], "no size", "ram=4G");
    daemon.tell(&["pool", "set", "fast", "ram=0"]);
    assert_eq!(
        (usage(&daemon)["memory_bytes"].as_u64(), bound(&daemon).as_u64()),
        (Some(0), Some(0))
    );
    daemon.stop();
}

#[test]
fn settings_of_a_pool_are_changed_while_it_serves_or_refused() {
    let mut daemon = served("set");
    let usage = |daemon: &Daemon| daemon.json(&["pool", "show", "fast"])["usage"].clone();
    let both = ["write_amplification_max_percent=250", "accept_data_loss_on_ssd_failure=true"];
    daemon.tell(&["pool", "set", "fast", both[0], both[1]]);
    let is_set = |usage: serde_json::Value| {
        assert_eq!(usage["write_amplification_max_percent"], 250);
        assert_eq!(usage["accept_data_loss_on_ssd_failure"], true);
    };
    is_set(usage(&daemon));
    daemon.kill();
    daemon.start();
    is_set(usage(&daemon));
    let set = ["pool", "set", "fast"];
    let refused = |setting: &str, error: &str, hint: &str| {
        daemon.refused(&[&set[..], &[setting]].concat(), error, hint);
    };
    let misused = |setting: &str, error: &str, hint: &str| {
        daemon.misused(&[&set[..], &[setting]].concat(), error, hint);
    };
    refused("write_amplification_max_percent=99", "99 %", "100 to 400");
    misused("write_amplification_max_percent=much", "invalid type", "percent=100..400");
    refused("segment_bytes=1048576", "fixed when it is made", "volume remove");
    refused("dirty-copies=3", "3 dirty copies on 2 cache devices", "as many devices");
    refused("profile=raid6", "3 dirty copies on 2 cache devices", "as many devices");
    misused("profile=raid7", "is no profile", "profile=raid1");
    daemon.refused(
        &["pool", "set", "fast", "profile=raid0", "clean_copies=1"],
        "and so does another setting",
        "give the profile",
    );
    refused("name=\"x\"", "fixed when it is made", "another pool");
    misused("dirtycopies=3", "no setting \"dirtycopies\"", "did you mean dirty_copies?");
    misused("accept", "sets nothing", "KEY=VALUE");
    daemon.tell(&["pool", "set", "fast", "write_amplification_max_percent=300", "--dry-run"]);
    daemon.refused(&["pool", "set", "slow", both[0]], "no pool", "pool list");
    is_set(usage(&daemon));
    daemon.stop();
}

#[test]
fn what_a_volume_has_of_the_cache_is_set_shown_kept_and_refused() {
    let mut daemon = served("volume-space");
    let set = |what: &[&'static str]| [&["volume", "set", "fast/vm"][..], what].concat();
    let space = |daemon: &Daemon| daemon.json(&["volume", "show", "fast/vm"])["space"].clone();
    let usual = space(&daemon);
    assert_eq!((&usual["reservation_bytes"], &usual["limit_bytes"]), (&0.into(), &0.into()));
    assert_eq!(usual["priority"], "normal");
    let plan = daemon.tell(&set(&["reservation=64M", "limit=100M", "priority=high", "--dry-run"]));
    for what in ["64 MiB of the cache are reserved", "at most 100 MiB", "twice what a normal"] {
        assert!(plan.contains(what), "{what}: {plan}");
    }
    assert_eq!(space(&daemon), usual);
    let text = daemon.tell(&set(&["reservation=64M", "limit=100M", "priority=high"]));
    let line = "held, 64 MiB reserved, at most 100 MiB, priority high";
    assert!(text.contains(line), "{text}");
    assert!(daemon.tell(&["status"]).contains(line));
    daemon.kill();
    daemon.start();
    let kept = space(&daemon);
    assert_eq!(kept["reservation_bytes"], 64 << 20);
    assert_eq!((&kept["limit_bytes"], &kept["priority"]), (&(100 << 20).into(), &"high".into()));
    assert_eq!(kept["reserved_bytes"], 64 << 20);
    let list = daemon.tell(&["volume", "list"]);
    assert!(list.contains("(64 MiB-100 MiB)"), "{list}");
    let stats = daemon.json(&["stats"]);
    assert!(stats.to_string().contains("reserved_bytes"), "{stats}");
    daemon.refused(&set(&["reservation=63M"]), "is too small", "at least 64 MiB, 64 segments");
    daemon.refused(&set(&["limit=1M"]), "is too small", "at least 64 MiB");
    for how in [&["limit=18446744073709551615"][..], &["limit=4503599627370497", "--dry-run"]] {
        daemon.refused(&set(how), "is more than any volume has", "at most 4 PiB");
    }
    daemon.refused(&set(&["reservation=101M"]), "cannot have", "make the limit larger");
    daemon.refused(
        &set(&["limit=off", "reservation=1T"]),
        "1 TiB cannot be reserved",
        "add a cache device",
    );
    let highest = stderr(&daemon.ask(&set(&["priority=highest"])));
    assert!(highest.contains("is no priority: there are low, normal, high"), "{highest}");
    assert_eq!(space(&daemon), kept);
    daemon.tell(&set(&["reservation=off", "limit=4503599627370496"]));
    let list = daemon.tell(&["volume", "list"]);
    assert!(list.contains("(at most 4 PiB)"), "{list}");
    daemon.tell(&set(&["reservation=64M", "limit=off"]));
    let list = daemon.tell(&["volume", "list"]);
    assert!(list.contains("(at least 64 MiB)"), "{list}");
    daemon.tell(&set(&["reservation=off", "limit=off", "priority=normal"]));
    let off = space(&daemon);
    assert_eq!((&off["reservation_bytes"], &off["limit_bytes"]), (&0.into(), &0.into()));
    daemon.stop();
}

#[test]
fn settings_of_a_volume_are_changed_while_it_serves_kept_and_refused() {
    let mut daemon = served("volume-set");
    let shown = |daemon: &Daemon| daemon.json(&["volume", "show", "fast/vm"]);
    let set = ["volume", "set", "fast/vm"];
    let with = |settings: &[&'static str]| [&set[..], settings].concat();
    let usual = shown(&daemon);
    assert_eq!((&usual["dirty_age_max_s"], &usual["destage_hours"]), (&0.into(), &"any".into()));
    assert_eq!(usual["sequential_cutoff_bytes"], 1 << 20);
    let plan = daemon.tell(&with(&["dirty-age-max=15m", "--dry-run"]));
    assert!(plan.contains("would be set") && plan.contains("dirty for 15m"), "{plan}");
    assert_eq!(shown(&daemon), usual);
    assert_eq!(usual["sequential_writes"], "cache");
    assert_eq!(usual["sequential_when"], "auto");
    let all = ["destage-hours=22:30-06:00", "dirty-age-max=15m", "sequential-cutoff=4M"];
    let streams = ["sequential-writes=bypass", "sequential-when=full"];
    let text = daemon.tell(&with(&[&all[..], &streams].concat()));
    let streams = "reads and writes are not cached behind 4 MiB";
    for what in ["22:30-06:00, local time", "dirty for 15m", "while the cache is full", streams] {
        assert!(text.contains(what), "{what}: {text}");
    }
    daemon.kill();
    daemon.start();
    let kept = shown(&daemon);
    assert_eq!(kept["dirty_age_max_s"], 900);
    assert_eq!(kept["destage_hours"], "22:30-06:00");
    assert_eq!(kept["sequential_cutoff_bytes"], 4 << 20);
    assert_eq!(
        (&kept["sequential_writes"], &kept["sequential_when"]),
        (&"bypass".into(), &"full".into())
    );
    daemon.tell(&with(&["sequential-cutoff=off", "dirty-age-max=off", "destage-hours=any"]));
    let off = shown(&daemon);
    assert_eq!((&off["dirty_age_max_s"], &off["destage_hours"]), (&0.into(), &"any".into()));
    assert_eq!(off["sequential_cutoff_bytes"], 0);
    let population = |daemon: &Daemon| {
        let population = &shown(daemon)["population"];
        let of = |key: &str| population[key].clone();
        (of("profile"), of("populate_on_read"), of("populate_on_write"), of("cache_block_bytes"))
    };
    let is = |daemon: &Daemon, profile: &str, read: u8, write: u8, block: u32| {
        let wanted = (profile.into(), read.into(), write.into(), block.into());
        assert_eq!(population(daemon), wanted);
    };
    is(&daemon, "auto", 1, 1, 64 << 10);
    daemon.tell(&with(&["profile=web"]));
    is(&daemon, "web", 2, 1, 4 << 20);
    daemon.tell(&with(&["populate_on_write=3", "cache_block=8K"]));
    is(&daemon, "custom", 2, 3, 8 << 10);
    daemon.kill();
    daemon.start();
    is(&daemon, "custom", 2, 3, 8 << 10);
    daemon.refused(&with(&["populate_on_write=0"]), "populate_on_write cannot be 0", "readonly");
    daemon.refused(&with(&["profile=web", "populate_on_read=3"]), "of its own", "custom");
    daemon.tell(&with(&["readonly"]));
    daemon.tell(&with(&["populate_on_write=0"]));
    is(&daemon, "custom", 2, 0, 8 << 10);
    daemon.refused(&with(&["writeback"]), "populate_on_write cannot be 0", "1 to 4");
    daemon.tell(&with(&["profile=auto"]));
    is(&daemon, "auto", 1, 0, 64 << 10);
    daemon.misused(&with(&["dirty-age-max=1m", "dirty-age-max=2m"]), "twice", "once");
    daemon.misused(&with(&["bypass", "dirty-age-max=1m"]), "by itself", "volume set");
    assert!(daemon.tell(&["events"]).contains("volume-set"));
    daemon.stop();
}

#[test]
fn what_is_dirty_waits_for_its_hours_and_not_when_it_is_too_old() {
    let mut daemon = served("hours");
    // Two hours of the day that are not now, whatever time it is when this runs.
    let now = run(std::process::Command::new("date").arg("+%H"));
    let hour: u32 = std::str::from_utf8(&now.stdout).unwrap().trim().parse().unwrap();
    let hours = format!("destage-hours={:02}:00-{:02}:00", (hour + 4) % 24, (hour + 6) % 24);
    daemon.tell(&["volume", "set", "fast/vm", &hours]);
    let mut client = Client::connect(&daemon.dir.path("nbd"));
    client.write(0, &content(3, 1 << 20)).unwrap();
    client.flush().unwrap();
    let dirty =
        |daemon: &Daemon| daemon.json(&["volume", "show", "fast/vm"])["dirty_bytes"].clone();
    // An idle volume without hours is clean within a second.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(dirty(&daemon), 1 << 20);
    let text = daemon.tell(&["volume", "show", "fast/vm"]);
    assert!(text.contains("the oldest for") && text.contains("nothing goes to"), "{text}");
    daemon.tell(&["volume", "set", "fast/vm", "dirty-age-max=1s"]);
    daemon.until("what is too old is destaged", |_| dirty(&daemon) == 0);
    drop(client);
    daemon.stop();
}

/// What is dirty in one copy is destaged, and from then on either SSD may go.
#[test]
fn copies_are_changed_while_a_pool_serves() {
    let mut daemon = Daemon::new("copies");
    let (first, second) = (daemon.ssd("ssd-0"), daemon.ssd("ssd-1"));
    let origin = daemon.dir.path("origin");
    std::fs::write(&origin, content(1, VOLUME_BYTES)).unwrap();
    let paths = [&first, &second, &origin].map(|path| path.to_str().unwrap());
    let create = ["pool", "create", "fast", "--ssd", paths[0], "--ssd", paths[1], "--profile"];
    daemon.refused(&[&create[..], &["raid6"]].concat(), "3 dirty copies on 2", "as many devices");
    daemon.tell(&[&create[..], &["nraid+", "--accept-data-loss-on-ssd-failure"]].concat());
    daemon.tell(&["volume", "add", "fast/vm", "--origin", paths[2]]);
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    let mut client = Client::connect(&socket);
    client.write(0, &content(7, 1 << 20)).unwrap();
    client.flush().unwrap();
    daemon.tell(&["pool", "set", "fast", "profile=raid1", "--dry-run"]);
    let usage = |daemon: &Daemon| daemon.json(&["pool", "show", "fast"])["usage"].clone();
    let copies = |usage: &serde_json::Value, key: &str| usage[key].as_u64();
    assert_eq!(copies(&usage(&daemon), "clean_copies"), Some(1), "only asked");
    daemon.tell(&["pool", "set", "fast", "profile=raid1"]);
    daemon.until("two copies are promised", |status| {
        status.replace(": ", ":").contains("\"dirty_copies\":2")
    });
    let now = usage(&daemon);
    assert_eq!(copies(&now, "dirty_copies_next"), Some(0));
    assert_eq!(copies(&now, "clean_copies"), Some(2));
    assert!(daemon.tell(&["pool", "show", "fast"]).contains("2 of dirty data, 2 of clean data"));
    client.write(1 << 20, &content(8, 1 << 20)).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.kill();
    std::fs::rename(&first, daemon.dir.path("away")).unwrap();
    daemon.start();
    assert_eq!(state(&daemon, "fast"), "degraded");
    assert_eq!(daemon.json(&["pool", "show", "fast"])["health"], "degraded");
    until_served(&daemon);
    let found = read_all(&socket);
    assert!(
        found[..1 << 20] == content(7, 1 << 20) && found[1 << 20..2 << 20] == content(8, 1 << 20)
    );
    daemon.tell(&["pool", "set", "fast", "dirty-copies=1", "accept_data_loss_on_ssd_failure=true"]);
    assert_eq!(copies(&usage(&daemon), "dirty_copies"), Some(1));
    daemon.stop();
}

#[test]
fn sixty_four_volumes_share_a_pool_and_come_back_with_it() {
    let mut daemon = served("many");
    let socket = |daemon: &Daemon, number: u64| daemon.dir.path(&format!("v{number}"));
    for number in 1..64 {
        let origin = daemon.dir.path(&format!("origin-{number}"));
        std::fs::write(&origin, content(number, 1 << 20)).unwrap();
        let (name, at) = (format!("fast/v{number}"), socket(&daemon, number));
        daemon.tell(&["volume", "add", &name, "--origin", origin.to_str().unwrap()]);
        daemon.tell(&["export", "add", &name, "--socket", at.to_str().unwrap()]);
        let mut client = Client::connect(&at);
        client.write(0, &content(100 + number, 64 << 10)).unwrap();
        client.flush().unwrap();
    }
    daemon.kill();
    daemon.start();
    until("all are online", || {
        let volumes = daemon.json(&["volume", "list"])["items"].clone();
        let all = volumes.as_array().unwrap();
        all.len() == 64 && all.iter().all(|volume| volume["state"] == "online")
    });
    for number in 1..64 {
        let (mut found, mut rest) = (vec![0; 64 << 10], vec![0; 4096]);
        let mut client = Client::connect(&socket(&daemon, number));
        client.read(0, &mut found).unwrap();
        client.read(64 << 10, &mut rest).unwrap();
        assert!(found == content(100 + number, 64 << 10), "volume {number}");
        assert!(rest[..] == content(number, 1 << 20)[64 << 10..68 << 10], "volume {number}");
    }
    daemon.stop();
}

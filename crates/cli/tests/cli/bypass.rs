//! A pool is served without its cache devices: only what its origins have, only if a person says so, and nothing that
//! the devices have of it is read again.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::daemon::{
    Daemon, SSD_BYTES, VOLUME_BYTES, content, read_all, served, show, until, until_served, written,
};
use crate::common::held::HeldOrigin;
use crate::common::looped::LoopSsd;
use crate::common::{Client, have, run, signal};
use crate::confirm::on_terminal;

const BYPASS: [&str; 4] = ["pool", "bypass", "fast", "--yes"];
const IMPORT: [&str; 5] = ["pool", "import", "fast", "--accept-missing", "--yes"];

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A pool on one SSD, with a volume that is written through, exported at the socket "nbd".
fn alone(name: &str) -> Daemon {
    let daemon = Daemon::new(name);
    let (ssd, origin) = (daemon.ssd("ssd-0"), daemon.dir.path("origin"));
    put(&daemon, text(&ssd), text(&origin), "writethrough");
    daemon
}

fn put(daemon: &Daemon, ssd: &str, origin: &str, mode: &str) {
    std::fs::write(origin, content(1, VOLUME_BYTES)).unwrap();
    set_up(daemon, ssd, origin, mode);
}

fn set_up(daemon: &Daemon, ssd: &str, origin: &str, mode: &str) {
    daemon.tell(&["pool", "create", "fast", "--ssd", ssd, "--accept-data-loss-on-ssd-failure"]);
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin, "--mode", mode]);
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "fast/vm", "--socket", text(&socket)]);
}

fn state(daemon: &Daemon) -> String {
    show(daemon)["state"].as_str().unwrap().to_owned()
}

fn volume_state(daemon: &Daemon, name: &str) -> String {
    daemon.json(&["volume", "show", name])["state"].as_str().unwrap().to_owned()
}

/// The SSD is gone, or back.
fn detach(daemon: &Daemon) {
    std::fs::rename(daemon.dir.path("ssd-0"), daemon.dir.path("away")).unwrap();
}

fn attach(daemon: &Daemon) {
    std::fs::rename(daemon.dir.path("away"), daemon.dir.path("ssd-0")).unwrap();
}

/// Starts a daemon whose pool has no SSD, and waits until that is known.
fn start_without(daemon: &mut Daemon) {
    daemon.spawn();
    until("its volumes are known", || {
        let pools = daemon.ask(&["pool", "show", "fast", "--json"]);
        String::from_utf8_lossy(&pools.stdout).contains("fast/vm")
    });
}

fn until_direct(daemon: &Daemon) {
    until("the volume is served without its cache", || {
        let volume = daemon.json(&["volume", "show", "fast/vm"]);
        volume["state"] == "bypassed"
            && volume["exports"][0].as_str().is_some_and(|uri| !uri.is_empty())
    });
}

fn on_origin(daemon: &Daemon) -> Vec<u8> {
    let mut bytes = vec![0; VOLUME_BYTES];
    File::open(daemon.dir.path("origin")).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn without_its_ssd_what_origins_have_is_served_and_no_stale_byte_is_read_once_it_is_back() {
    let mut daemon = alone("bypass");
    let (log, log_socket) = (daemon.dir.path("log"), daemon.dir.path("nbd-log"));
    std::fs::write(&log, content(1, VOLUME_BYTES)).unwrap();
    daemon.tell(&["volume", "add", "fast/log", "--origin", text(&log), "--mode", "writeback"]);
    daemon.tell(&["export", "add", "fast/log", "--socket", text(&log_socket)]);
    let socket = daemon.dir.path("nbd");
    let old = written(&daemon, 2);
    assert!(read_all(&socket) == old);
    daemon.refused(&BYPASS, "works with its cache devices", "volume set fast/VOLUME bypass");
    daemon.refused(&["pool", "bypass", "fats", "--yes"], "no pool \"fats\"", "pool list");
    let owed = content(7, 1 << 20);
    let mut client = Client::connect(&log_socket);
    client.write(0, &owed).and_then(|()| client.flush()).unwrap();
    daemon.kill();
    drop(client);

    // What there is, and what can be done, is named.
    detach(&daemon);
    start_without(&mut daemon);
    let pool = show(&daemon);
    let summary = pool["summary"].as_str().unwrap();
    assert!(summary.contains("origins of \"fast/vm\" have all of their data"), "{summary}");
    assert!(summary.contains("\"fast/log\" may lack data"), "{summary}");
    assert!(pool["action"].as_str().unwrap().contains("`forebay pool bypass fast`"), "{pool}");
    let vm = daemon.json(&["volume", "show", "fast/vm"]);
    assert_eq!((&vm["dirty_bytes"], &vm["mode"]), (&0.into(), &"writethrough".into()));
    assert!(vm["reason"].as_str().unwrap().contains("has all of its data"), "{vm}");
    let list = daemon.tell(&["volume", "list"]);
    assert!(list.contains("fast/log") && list.contains(text(&log)), "{list}");
    assert_eq!(
        daemon.json(&["volume", "show", "fast/log"])["dirty_bytes"],
        serde_json::Value::Null
    );

    // Nothing happens before a person has agreed.
    daemon.refused(&["pool", "bypass", "fast"], "needs a confirmation", "--yes");
    if have("script") {
        let (said, code) = on_terminal(&daemon, "pool bypass fast", "fats");
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("no other machine may have them"), "{said}");
    }
    let plan = daemon.tell(&["pool", "bypass", "fast", "--dry-run"]);
    assert!(plan.contains("\"fast/vm\" is served straight from"), "{plan}");
    assert!(plan.contains("\"fast/log\" is not served"), "{plan}");
    assert_eq!(state(&daemon), "waiting");

    daemon.tell(&BYPASS);
    until_direct(&daemon);
    assert_eq!((state(&daemon).as_str(), &show(&daemon)["health"]), ("bypassed", &"failed".into()));
    assert_eq!(volume_state(&daemon, "fast/log"), "withheld");
    let connected = std::os::unix::net::UnixStream::connect(&log_socket);
    assert!(connected.is_err(), "what its origin may lack is not served");
    assert!(daemon.tell(&["events"]).contains("pool-bypassed"));
    assert!(read_all(&socket) == old);
    let mut newest = old.clone();
    let mut client = Client::connect(&socket);
    for (offset, data) in [(0, content(3, 1 << 20)), ((8 << 20) + 512, content(4, 1536))] {
        client.write(offset as u64, &data).unwrap();
        newest[offset..offset + data.len()].copy_from_slice(&data);
    }
    client.write_zeroes(4 << 20, 1 << 20).and_then(|()| client.flush()).unwrap();
    newest[4 << 20..5 << 20].fill(0);
    drop(client);
    assert!(on_origin(&daemon) == newest && read_all(&socket) == newest);
    daemon.refused(&BYPASS, "without its cache devices already", "pool show fast");
    let set = ["volume", "set", "fast/vm", "writeback"];
    daemon.refused(&set, "served without its cache devices", "bring them back");

    // It stays so, with the SSD there or not, which is believed in nothing.
    daemon.kill();
    daemon.start();
    until_direct(&daemon);
    daemon.kill();
    attach(&daemon);
    daemon.start();
    until_direct(&daemon);
    until("it is said to be stale", || daemon.tell(&["events"]).contains("member-stale"));
    assert_eq!(state(&daemon), "bypassed");
    assert!(read_all(&socket) == newest);
    let newest = written(&daemon, 5);
    let bare = ["pool", "import", "fast"];
    daemon.refused(&bare, "these are stale", "--accept-missing");
    daemon.refused(&[&bare[..], &["--dry-run"]].concat(), "these are stale", "--accept-missing");
    let plan = daemon.tell(&["pool", "import", "fast", "--accept-missing", "--dry-run"]);
    assert!(plan.contains("clean data is not believed"), "{plan}");
    assert!(read_all(&socket) == newest, "a refusal ends nothing");

    daemon.tell(&IMPORT);
    until_served(&daemon);
    assert!(read_all(&socket) == newest);
    for _ in 0..2 {
        until("the log is served", || volume_state(&daemon, "fast/log") == "online");
        let mut head = vec![0; owed.len()];
        Client::connect(&log_socket).read(0, &mut head).unwrap();
        assert!(head == owed, "what only the SSD had of a volume that was withheld is there");
        daemon.kill();
        daemon.start();
        until_served(&daemon);
        assert!(read_all(&socket) == newest);
    }
    daemon.stop();
}

#[test]
fn a_pool_whose_last_ssd_fails_in_use_is_served_from_its_origins_when_asked() {
    let mut daemon = Daemon::new("bypass-latched");
    let Some(ssd) = LoopSsd::new(&daemon.dir, "loop-0", SSD_BYTES) else { return };
    let (origin, socket) = (daemon.dir.path("origin"), daemon.dir.path("nbd"));
    put(&daemon, ssd.path(), text(&origin), "writethrough");
    let old = written(&daemon, 2);
    assert!(read_all(&socket) == old);
    ssd.fail();
    let mut client = Client::connect(&socket);
    let newest = content(3, VOLUME_BYTES);
    assert!(client.write(0, &newest[..4096]).and_then(|()| client.flush()).is_err());
    until("it has latched", || state(&daemon) == "latched");
    let pool = show(&daemon);
    assert!(
        pool["summary"].as_str().unwrap().contains("Every origin has all of its data."),
        "{pool}"
    );
    assert!(pool["action"].as_str().unwrap().contains("`forebay pool bypass fast`"), "{pool}");
    let plan = daemon.tell(&["pool", "bypass", "fast", "--dry-run"]);
    assert!(plan.contains("1 client disconnected"), "{plan}");
    assert_eq!(state(&daemon), "latched");
    daemon.tell(&BYPASS);
    drop(client);
    until_direct(&daemon);
    assert_eq!(show(&daemon)["health"], "degraded", "everything is served");
    assert!(daemon.tell(&["status"]).contains("straight from its origins"));
    assert!(written(&daemon, 3) == newest);
    assert!(on_origin(&daemon) == newest && read_all(&socket) == newest);
    daemon.stop();
    daemon.start();
    until_direct(&daemon);
    let failed = daemon.ask(&IMPORT);
    assert!(!failed.status.success(), "its SSD takes no writes yet: {failed:?}");
    until_direct(&daemon);
    assert!(read_all(&socket) == newest, "it is served as before");
    // Also if it comes to itself.
    daemon.stop();
    ssd.mend();
    daemon.start();
    until_direct(&daemon);
    assert!(read_all(&socket) == newest);
    daemon.tell(&IMPORT);
    until_served(&daemon);
    assert!(read_all(&socket) == newest);
    daemon.stop();
}

#[test]
fn what_went_home_when_one_ssd_was_left_is_served_when_that_one_goes_too() {
    let mut daemon = served("bypass-protected");
    let newest = written(&daemon, 2);
    daemon.kill();
    std::fs::remove_file(daemon.dir.path("ssd-1")).unwrap();
    daemon.start();
    until("it is protected", || state(&daemon) == "protected");
    let last = daemon.dir.path("ssd-0");
    until("its last SSD says so", || {
        !daemon.tell(&["inspect", text(&last)]).contains("may be dirty")
    });
    daemon.kill();
    detach(&daemon);
    start_without(&mut daemon);
    daemon.tell(&BYPASS);
    until_direct(&daemon);
    assert!(read_all(&daemon.dir.path("nbd")) == newest);
    daemon.stop();
}

#[test]
fn a_pool_of_which_a_device_is_there_is_not_served_without_it() {
    let mut daemon = Daemon::new("bypass-member");
    let (first, second) = (daemon.ssd("ssd-0"), daemon.ssd("ssd-1"));
    let (origin, idle) = (daemon.dir.path("origin"), daemon.dir.sparse("idle", 32 << 20));
    std::fs::write(&origin, content(1, VOLUME_BYTES)).unwrap();
    let agreed = ["--dirty-copies", "1", "--accept-data-loss-on-ssd-failure"];
    let create = ["pool", "create", "fast", "--ssd", text(&first), "--ssd", text(&second)];
    daemon.tell(&[&create[..], &agreed].concat());
    daemon.tell(&["volume", "add", "fast/vm", "--origin", text(&origin)]);
    daemon.tell(&["volume", "add", "fast/idle", "--origin", text(&idle)]);
    daemon.tell(&["export", "add", "fast/vm", "--socket", text(&daemon.dir.path("nbd"))]);
    written(&daemon, 2);
    daemon.kill();
    detach(&daemon);
    daemon.start();
    assert_eq!(state(&daemon), "needs-decision");
    daemon.refused(&BYPASS, "ssd-1 of pool \"fast\" is there", "detach it first");
    daemon.stop();
}

#[test]
fn where_every_origin_may_lack_something_nothing_is_served() {
    let mut daemon = served("bypass-dirty");
    written(&daemon, 2);
    daemon.kill();
    detach(&daemon);
    std::fs::remove_file(daemon.dir.path("ssd-1")).unwrap();
    start_without(&mut daemon);
    daemon.refused(&BYPASS, "may lack data", "pool export fast");
    assert!(!show(&daemon)["action"].as_str().unwrap().contains("pool bypass"));
    daemon.stop();
}

#[test]
fn a_command_that_is_cut_off_has_happened_or_not_and_there_is_a_way_on() {
    let mut daemon = alone("bypass-crash");
    let socket = daemon.dir.path("nbd");
    written(&daemon, 2);
    daemon.stop();
    detach(&daemon);
    start_without(&mut daemon);
    let mut begun = 0;
    for round in 0..8 {
        let mut bypass = daemon.command_of(&BYPASS);
        let mut bypass = bypass.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(3 * round));
        daemon.kill();
        bypass.wait().unwrap();
        start_without(&mut daemon);
        match state(&daemon).as_str() {
            "waiting" => {}
            "bypassed" => begun += 1,
            other => panic!("{other}"),
        }
    }
    println!("{begun} of 8 starts found it begun");
    if begun == 0 {
        daemon.tell(&BYPASS);
    }
    until_direct(&daemon);
    let newest = written(&daemon, 3);
    daemon.stop();

    // The witness was stored, and the record was not.
    let pools = daemon.dir.path("state/pools");
    let folder = std::fs::read_dir(pools).unwrap().next().unwrap().unwrap().path();
    let path = folder.join("pool.json");
    let mut record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert!(record["bypassed"]["epoch"].as_u64().unwrap() > 1 << 20, "{record}");
    record["bypassed"] = serde_json::Value::Null;
    std::fs::write(&path, record.to_string()).unwrap();
    attach(&daemon);
    daemon.start();
    assert_eq!(state(&daemon), "needs-decision");
    let action = show(&daemon)["action"].as_str().unwrap().to_owned();
    assert!(action.contains("`forebay pool import fast --accept-missing`"), "{action}");
    daemon.tell(&IMPORT);
    until_served(&daemon);
    assert!(read_all(&socket) == newest);
    daemon.stop();
}

#[test]
fn what_is_not_the_origin_any_more_is_not_served_for_it() {
    let mut daemon = alone("bypass-origin");
    daemon.stop();
    detach(&daemon);
    start_without(&mut daemon);
    assert_eq!(daemon.json(&BYPASS)["state"], "bypassed");
    until_direct(&daemon);
    daemon.stop();
    let origin = daemon.dir.path("origin");
    let file = File::options().write(true).open(&origin).unwrap();
    file.set_len(16 << 20).unwrap();
    daemon.start();
    until("it is looked at", || volume_state(&daemon, "fast/vm") == "origin-missing");
    let said = || daemon.json(&["volume", "show", "fast/vm"])["reason"].to_string();
    until("why is said", || said().contains("has 16 MiB, the volume 32 MiB"));
    // A larger one is served as it was: a volume grows when somebody asks.
    file.set_len(64 << 20).unwrap();
    until_direct(&daemon);
    assert_eq!(daemon.json(&["volume", "show", "fast/vm"])["size_bytes"], VOLUME_BYTES);
    // Forgotten, its origin is free for another pool.
    daemon.tell(&["pool", "export", "fast"]);
    let ssd = daemon.ssd("ssd-1");
    daemon.tell(&["pool", "create", "new", "--ssd", text(&ssd)]);
    daemon.tell(&["volume", "add", "new/vm", "--origin", text(&origin)]);
    daemon.stop();
}

/// How often an event was told.
fn told(daemon: &Daemon, code: &str) -> usize {
    let events = daemon.json(&["events"]);
    events["items"].as_array().unwrap().iter().filter(|event| event["code"] == code).count()
}

#[test]
fn an_origin_that_has_grown_is_served_without_its_cache_as_large_as_the_volume_was() {
    let mut daemon = alone("bypass-grown");
    daemon.stop();
    detach(&daemon);
    let origin = File::options().write(true).open(daemon.dir.path("origin")).unwrap();
    origin.set_len(64 << 20).unwrap();
    start_without(&mut daemon);
    daemon.tell(&BYPASS);
    until_direct(&daemon);
    assert_eq!(daemon.json(&["volume", "show", "fast/vm"])["size_bytes"], VOLUME_BYTES);
    let client = Client::connect(&daemon.dir.path("nbd"));
    assert_eq!(client.size_bytes, VOLUME_BYTES as u64);
    assert_eq!(told(&daemon, "origin-grown"), 1);
    drop(client);
    daemon.stop();
}

#[test]
fn an_origin_that_fails_without_a_cache_in_front_of_it_is_said_to() {
    let mut daemon = Daemon::new("bypass-failing");
    let Some(origin) = LoopSsd::new(&daemon.dir, "loop-origin", VOLUME_BYTES) else { return };
    put(&daemon, text(&daemon.ssd("ssd-0")), origin.path(), "writethrough");
    daemon.stop();
    detach(&daemon);
    start_without(&mut daemon);
    daemon.tell(&BYPASS);
    until_direct(&daemon);
    assert_eq!((told(&daemon, "origin-failed"), &show(&daemon)["health"]), (0, &"degraded".into()));
    let mut client = Client::connect(&daemon.dir.path("nbd"));
    let mut write = || client.write(0, &[7; 4096]).and_then(|()| client.flush());
    origin.fail();
    until("it is said to fail", || {
        assert!(write().is_err());
        volume_state(&daemon, "fast/vm") == "origin-failed"
    });
    let vm = daemon.json(&["volume", "show", "fast/vm"]);
    assert!(vm["reason"].as_str().unwrap().starts_with("writing its origin fails: "), "{vm}");
    assert_eq!(vm["effective_mode"], "bypass", "what it can do is served");
    let pool = show(&daemon);
    let summary = pool["summary"].as_str().unwrap();
    assert!(summary.contains("With an origin that fails: \"fast/vm\"."), "{pool}");
    let action = pool["action"].as_str().unwrap();
    assert!(action.starts_with("mend the origin") && action.contains("show fast/vm`"), "{pool}");
    assert_eq!((&pool["state"], &pool["health"]), (&"bypassed".into(), &"failed".into()));
    until("it is told", || told(&daemon, "origin-failed") == 1);
    origin.mend();
    write().unwrap();
    assert_eq!(volume_state(&daemon, "fast/vm"), "bypassed");
    drop(client);
    daemon.stop();
}

#[test]
fn an_origin_that_hangs_without_a_cache_in_front_of_it_stays_in_trouble_and_lets_the_daemon_end() {
    let mut daemon = Daemon::new("bypass-hung");
    let Some(mut origin) = HeldOrigin::new(&daemon.dir) else { return };
    set_up(&daemon, text(&daemon.ssd("ssd-0")), text(&origin.path), "writethrough");
    daemon.stop();
    detach(&daemon);
    start_without(&mut daemon);
    daemon.tell(&BYPASS);
    until_direct(&daemon);
    let mut client = Client::connect(&daemon.dir.path("nbd"));
    origin.fail();
    assert!(client.read(0, &mut [0; 4096]).is_err());
    drop(client);
    until("it is told", || told(&daemon, "origin-failed") == 1);
    let online = told(&daemon, "volume-online");
    // Between two requests: what the file system has taken keeps a process even from being killed.
    signal(daemon.pid(), "STOP");
    assert!(run(Command::new("stat").arg(&origin.path)).status.success());
    origin.hold_all();
    signal(daemon.pid(), "CONT");
    let reason = || daemon.json(&["volume", "show", "fast/vm"])["reason"].to_string();
    until("a try has no answer", || reason().contains("does not answer"));
    assert_eq!(volume_state(&daemon, "fast/vm"), "origin-failed");
    assert_eq!((told(&daemon, "origin-failed"), told(&daemon, "volume-online")), (1, online));
    signal(daemon.pid(), "TERM");
    until("the daemon has ended", || daemon.has_ended());
    assert!(daemon.wait(), "it ended well");
    origin.release();
}

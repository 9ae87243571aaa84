//! Two daemons on one set of files, as if they were on two machines: the files are locked, so the second one
//! sees them through nbdkit and nbdfuse, at the same paths in a mount namespace of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::daemon::{Daemon, VOLUME_BYTES, content, read_all, until, until_served};
use crate::common::{Client, Dir, have, run, signal};

/// A file as another machine would see it; not any more when this is dropped.
struct View {
    fuse: Child,
    path: PathBuf,
}

impl View {
    /// `None` where the machine cannot do it, with the reason printed.
    fn of(file: &Path, dir: &Dir, name: &str) -> Option<View> {
        let path = dir.path(name);
        std::fs::write(&path, b"").unwrap();
        let mut command = Command::new("nbdfuse");
        command.arg(&path).args(["[", "nbdkit", "--exit-with-parent", "file"]).arg(file).arg("]");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut view = View { fuse: command.spawn().unwrap(), path };
        let size = std::fs::metadata(file).unwrap().len();
        for _ in 0..400 {
            if std::fs::metadata(&view.path).is_ok_and(|meta| meta.len() == size) {
                return Some(view);
            }
            if view.fuse.try_wait().unwrap().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        println!("skipped: nbdfuse cannot show a file here");
        None
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).stderr(Stdio::null()).status();
        let _ = self.fuse.kill();
        let _ = self.fuse.wait();
    }
}

fn can_view() -> bool {
    let namespaces = || {
        let mut command = Command::new("unshare");
        let can = run(command.args(["-m", "true"])).status.success();
        if !can {
            println!("skipped: that takes root, for a mount namespace");
        }
        can
    };
    ["nbdfuse", "nbdkit", "unshare"].iter().all(|program| have(program)) && namespaces()
}

fn state_of(daemon: &Daemon) -> String {
    daemon.json(&["pool", "show", "fast"])["state"].as_str().unwrap().to_owned()
}

fn export(daemon: &Daemon) {
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    until_served(daemon);
}

fn write(daemon: &Daemon, all: &[u8]) {
    let mut client = Client::connect(&daemon.dir.path("nbd"));
    for (index, chunk) in all.chunks(1 << 20).enumerate() {
        client.write((index << 20) as u64, chunk).unwrap();
    }
    client.flush().unwrap();
}

#[test]
fn a_machine_that_was_frozen_finds_its_pool_with_another_one_and_writes_nothing() {
    if !can_view() {
        return;
    }
    let mut first = Daemon::on_machine("hosts-first", 1, Vec::new());
    let (ssd, origin) = (first.ssd("ssd-0"), first.dir.path("origin"));
    std::fs::write(&origin, content(1, VOLUME_BYTES)).unwrap();
    let path = ssd.to_str().unwrap();
    let create = ["pool", "create", "fast", "--ssd", path, "--device-deadline", "1s"];
    first.tell(&[&create[..], &["--accept-data-loss-on-ssd-failure"]].concat());
    first.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap()]);
    export(&first);
    let views = Dir::new("hosts-views");
    let (Some(seen_ssd), Some(seen_origin)) =
        (View::of(&ssd, &views, "ssd"), View::of(&origin, &views, "origin"))
    else {
        return;
    };
    let seen =
        vec![(ssd.clone(), seen_ssd.path.clone()), (origin.clone(), seen_origin.path.clone())];
    let mut second = Daemon::on_machine("hosts-second", 2, seen);
    let import = ["pool", "import", "fast", "--ssd", path];
    let take_over = [&import[..], &["--take-over"]].concat();

    // One that is alive keeps it.
    let old = content(2, VOLUME_BYTES);
    write(&first, &old);
    second.refused(&import, "is open on host", "--take-over");
    second.refused(&[&import[..], &["--dry-run"]].concat(), "is open on host", "--take-over");
    second.refused(&take_over, "is alive", "stop the pool there");

    // One that is frozen is taken for dead.
    let mut client = Client::connect(&first.dir.path("nbd"));
    signal(first.pid(), "STOP");
    second.refused(&import, "is open on host", "--take-over");
    second.tell(&take_over);
    assert_eq!(state_of(&second), "online");
    assert!(second.tell(&["pool", "show", "fast"]).contains("host     "));
    export(&second);
    assert!(read_all(&second.dir.path("nbd")) == old, "what was flushed is there");
    let new = content(3, VOLUME_BYTES);
    write(&second, &new);
    second.tell(&["volume", "flush", "fast/vm"]);

    // It comes to itself: nothing is written, nothing is read.
    signal(first.pid(), "CONT");
    assert!(client.write(0, &old[..4096]).is_err() || client.flush().is_err());
    until("it has noticed", || state_of(&first) == "lease-lost");
    let shown = first.tell(&["pool", "show", "fast"]);
    assert!(shown.contains("has taken it over"), "{shown}");
    assert!(shown.contains("Not safe to pull: host "), "{shown}");
    let usage = first.json(&["pool", "show", "fast"])["usage"].clone();
    assert_eq!(usage["destage"]["rate_bytes_per_s"], 0, "{usage}");
    assert!([0.into(), Value::Null].contains(&usage["destage"]["left_s"]), "{usage}");
    assert!(["", "nothing is destaged"].map(Value::from).contains(&usage["safe_when"]), "{usage}");
    until("it is an event", || first.tell(&["events"]).contains("lease-lost"));
    until("it is an event", || second.tell(&["events"]).contains("pool-taken-over"));
    let mut client = Client::connect(&first.dir.path("nbd"));
    assert!(client.read(0, &mut [0; 4096]).is_err(), "what it knows is stale");
    assert!(read_all(&second.dir.path("nbd")) == new);
    assert!(std::fs::read(&origin).unwrap() == new, "the origin has what the second one wrote");

    // It is not had back by a restart, but once it is closed there.
    first.kill();
    first.spawn();
    first.until("it is held elsewhere", |status| status.contains("\"held-elsewhere\""));
    second.tell(&["export", "remove", "fast/vm"]);
    second.tell(&["pool", "export", "fast"]);
    second.stop();
    first.tell(&["pool", "import", "fast"]);
    until_served(&first);
    assert!(read_all(&first.dir.path("nbd")) == new);
    first.stop();
}

//! Devices that do not answer: everything else goes on, and the daemon ends when it is asked to.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::daemon::{Daemon, VOLUME_BYTES, content, read_all, served, until, until_served};
use crate::common::held::HeldOrigin;
use crate::common::{Client, have, run, signal};

/// Writes of an origin that hang at a time: the deepest that destaging goes.
const WRITES_HELD: u64 = 512;

/// A file that its file system's process shows; while that is stopped, opening the file hangs.
struct Fuse {
    child: Child,
    file: PathBuf,
}

impl Fuse {
    fn open(daemon: &Daemon) -> Option<Fuse> {
        if !have("nbdfuse") || !have("nbdkit") {
            return None;
        }
        let file = daemon.dir.path("fuse");
        std::fs::write(&file, b"").unwrap();
        let mut command = Command::new("nbdfuse");
        command.arg(&file).args(["[", "nbdkit", "--exit-with-parent", "memory", "32M", "]"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut fuse = Fuse { child: command.spawn().unwrap(), file };
        for _ in 0..400 {
            let meta = std::fs::metadata(&fuse.file);
            if meta.is_ok_and(|meta| meta.len() == VOLUME_BYTES as u64) {
                return Some(fuse);
            }
            if fuse.child.try_wait().unwrap().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        println!("skipped: nbdfuse cannot show a file here");
        None
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        signal(self.child.id(), "CONT");
        let file = self.file.to_str().unwrap();
        for command in ["umount", "fusermount3 -u", "fusermount -u"] {
            let script = format!("{command} '{file}' 2>/dev/null");
            if run(Command::new("sh").args(["-c", &script])).status.success() {
                break;
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Calls of the daemon that a thread makes and that have not returned. A thread that has answered may
/// take a moment to end.
fn calls(daemon: &Daemon) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    // One that ends meanwhile has no name any more.
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.trim() == "files").count()
}

#[test]
fn an_origin_that_does_not_answer_holds_nobody_up() {
    let mut daemon = served("hung");
    let Some(fuse) = Fuse::open(&daemon) else { return };
    let path = fuse.file.to_str().unwrap();
    daemon.tell(&["volume", "add", "fast/slow", "--origin", path]);
    daemon.stop();
    signal(fuse.child.id(), "STOP");
    daemon.start();
    let slow = |daemon: &Daemon| daemon.json(&["volume", "show", "fast/slow"]);
    until("it is said", || slow(&daemon)["reason"].as_str().unwrap().contains("does not answer"));
    assert_eq!(slow(&daemon)["state"], "origin-missing");
    // The other volume is served, and changes are made.
    until_served(&daemon);
    assert!(read_all(&daemon.dir.path("nbd")) == content(1, VOLUME_BYTES));
    let origin = daemon.dir.sparse("origin-2", VOLUME_BYTES as u64);
    daemon.tell(&["volume", "add", "fast/more", "--origin", origin.to_str().unwrap()]);
    daemon.refused(&["volume", "grow", "fast/slow"], "does not answer", "dmesg");
    std::thread::sleep(Duration::from_secs(3));
    until("one call hangs, not one for each attempt", || calls(&daemon) == 1);
    std::thread::sleep(Duration::from_secs(1));
    until("and no more after that", || calls(&daemon) == 1);
    // It ends, although the call has not returned.
    daemon.stop();
    daemon.start();
    until("it is said again", || {
        slow(&daemon)["reason"].as_str().unwrap().contains("does not answer")
    });
    // When it answers, it comes online by itself.
    signal(fuse.child.id(), "CONT");
    until("it is online", || slow(&daemon)["state"] == "online");
    assert_eq!(slow(&daemon)["reason"], "");
    daemon.stop();
}

#[test]
fn a_cache_device_that_does_not_answer_holds_nobody_up() {
    let mut daemon = served("hung-ssd");
    let Some(fuse) = Fuse::open(&daemon) else { return };
    let path = fuse.file.to_str().unwrap();
    signal(fuse.child.id(), "STOP");
    // Clients are served while somebody waits for a scan.
    let scan = daemon.command_of(&["pool", "import", "more", "--ssd", path]).spawn().unwrap();
    assert!(read_all(&daemon.dir.path("nbd")) == content(1, VOLUME_BYTES));
    scan.wait_with_output().unwrap();
    // A scan goes past it, to what comes behind it.
    std::os::unix::fs::symlink(&fuse.file, daemon.dir.path("ssd-00")).unwrap();
    daemon.tell(&["pool", "export", "fast"]);
    let found = daemon.json(&["pool", "import", "--ssd", path, "fast"]);
    assert_eq!(found["state"], "online", "{found}");
    until("the volume is online", || {
        daemon.json(&["volume", "show", "fast/vm"])["state"] == "online"
    });
    for _ in 0..3 {
        daemon.json(&["pool", "import"]);
    }
    // One at each of the two names.
    until("a scan leaves alone what the last one was stuck at", || calls(&daemon) == 2);
    daemon.stop();
    daemon.start();
    assert_eq!(daemon.json(&["pool", "show", "fast"])["state"], "online");
    signal(fuse.child.id(), "CONT");
    daemon.stop();
}

#[test]
fn an_origin_that_hangs_at_its_first_request_is_missing_until_it_answers() {
    let mut daemon = served("hung-io");
    let Some(mut origin) = HeldOrigin::new(&daemon.dir) else { return };
    daemon.tell(&["volume", "add", "fast/slow", "--origin", origin.path.to_str().unwrap()]);
    daemon.stop();
    origin.hold();
    daemon.start();
    let slow = |daemon: &Daemon| daemon.json(&["volume", "show", "fast/slow"]);
    until("it is said", || slow(&daemon)["reason"].as_str().unwrap().contains("does not answer"));
    until_served(&daemon);
    daemon.tell(&["volume", "set", "fast/vm", "writethrough"]);
    assert_eq!(slow(&daemon)["state"], "origin-missing");
    origin.release();
    until("it is online", || slow(&daemon)["state"] == "online");
    daemon.stop();
}

#[test]
fn an_origin_that_hangs_while_it_is_destaged_to_holds_up_nobody_else() {
    let mut daemon = served("hung-destage");
    let Some(mut origin) = HeldOrigin::new(&daemon.dir) else { return };
    daemon.tell(&["volume", "add", "fast/slow", "--origin", origin.path.to_str().unwrap()]);
    daemon.tell(&["volume", "set", "fast/slow", "destage-hours=00:00-00:01"]);
    let socket = daemon.dir.path("nbd-slow");
    daemon.tell(&["export", "add", "fast/slow", "--socket", socket.to_str().unwrap()]);
    let mut client = Client::connect(&socket);
    // More writes than there are threads that could wait for them, none beside another.
    for at in 0..WRITES_HELD {
        client.write((at * 64) << 10, &content(at, 4096)).unwrap();
    }
    client.flush().unwrap();
    origin.hold();
    let flush = {
        let mut command = daemon.command_of(&["volume", "flush", "fast/slow"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    until("it is destaged to", || {
        let jobs = daemon.json(&["job", "list"]);
        jobs["items"].as_array().unwrap().iter().any(|job| job["state"] == "running")
    });
    let mut other = Client::connect(&daemon.dir.path("nbd"));
    for at in 0..20 {
        other.write(at * 4096, &content(at, 4096)).unwrap();
        other.flush().unwrap();
    }
    client.flush().unwrap();
    origin.release();
    assert!(flush.wait_with_output().unwrap().status.success());
    daemon.stop();
}

#[test]
fn an_origin_that_fails_is_told_of_and_gets_everything_once_it_is_mended() {
    let mut daemon = served("failing");
    let Some(origin) = HeldOrigin::new(&daemon.dir) else { return };
    daemon.tell(&["volume", "add", "fast/slow", "--origin", origin.path.to_str().unwrap()]);
    let socket = daemon.dir.path("nbd-slow");
    daemon.tell(&["export", "add", "fast/slow", "--socket", socket.to_str().unwrap()]);
    let slow = || daemon.json(&["volume", "show", "fast/slow"]);
    let mut client = Client::connect(&socket);
    origin.fail();
    let data = content(7, 64 << 10);
    client.write(0, &data).unwrap();
    client.flush().unwrap();
    assert!(client.read(1 << 20, &mut [0; 4096]).is_err(), "it has nothing of that");
    let mut flush = {
        let mut command = daemon.command_of(&["volume", "flush", "fast/slow"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    until("it is said", || slow()["state"] == "origin-failed");
    until("it is known what", || slow()["reason"].as_str().unwrap().contains("writing its origin"));
    until("it is an event", || daemon.tell(&["events"]).contains("origin-failed"));
    let waits = "waits for the origin of volume \"fast/slow\"";
    until("the flush says why it waits", || {
        let jobs = daemon.json(&["job", "list"]);
        let reason = jobs["items"][0]["waits_for"].as_str().unwrap().to_owned();
        reason.contains("writing its origin") && daemon.tell(&["job", "list"]).contains(waits)
    });
    let mut progress = BufReader::new(flush.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(progress.by_ref().take(30).any(|line| line.contains(waits)));
    let status = daemon.tell(&["status"]);
    assert!(status.contains("1 volume with an origin that fails"), "{status}");
    assert!(status.contains("volume show fast/slow"), "{status}");
    // What is cached is served, and what is written is kept; the other volume has nothing to do with it.
    let mut found = vec![0; data.len()];
    client.read(0, &mut found).unwrap();
    assert!(found == data);
    client.write(64 << 10, &data).unwrap();
    client.flush().unwrap();
    daemon.tell(&["volume", "flush", "fast/vm"]);
    origin.mend();
    assert!(flush.wait().unwrap().success(), "it has waited");
    until("it is online", || slow()["state"] == "online");
    let written = std::fs::read(&origin.path).unwrap();
    assert!(written[..64 << 10] == data && written[64 << 10..128 << 10] == data);
    drop(client);
    daemon.stop();
}

#[test]
fn a_flush_does_not_wait_for_an_origin_of_which_only_reads_fail() {
    let mut daemon = served("unread");
    let Some(origin) = HeldOrigin::of_reads(&daemon.dir) else { return };
    daemon.tell(&["volume", "add", "fast/slow", "--origin", origin.path.to_str().unwrap()]);
    daemon.tell(&["volume", "set", "fast/slow", "destage-hours=00:00-00:01"]);
    let socket = daemon.dir.path("nbd-slow");
    daemon.tell(&["export", "add", "fast/slow", "--socket", socket.to_str().unwrap()]);
    let mut client = Client::connect(&socket);
    client.write(0, &content(7, 64 << 10)).unwrap();
    client.flush().unwrap();
    origin.fail();
    until("it is said", || {
        assert!(client.read(1 << 20, &mut [0; 4096]).is_err(), "it has nothing of that");
        let slow = daemon.json(&["volume", "show", "fast/slow"]);
        slow["reason"].as_str().unwrap().contains("reading its origin")
    });
    let flush = {
        let mut command = daemon.command_of(&["volume", "flush", "fast/slow"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    until("it is flushed", || {
        let jobs = daemon.json(&["job", "list"]);
        let Some(job) = jobs["items"].as_array().unwrap().first() else { return false };
        assert_eq!(job["waits_for"], "", "it needs no reads");
        job["state"] != "running"
    });
    assert!(flush.wait_with_output().unwrap().status.success());
    assert_eq!(daemon.json(&["volume", "show", "fast/slow"])["state"], "origin-failed");
    origin.mend();
    drop(client);
    daemon.stop();
}

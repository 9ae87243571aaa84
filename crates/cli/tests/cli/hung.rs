//! Devices that do not answer: everything else goes on, and the daemon ends when it is asked to.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::daemon::{
    Daemon, VOLUME_BYTES, content, patient, read_all, served, until, until_served,
};
use crate::common::held::HeldOrigin;
use crate::common::looped::LoopSsd;
use crate::common::{Client, forebay, have, run, signal, stderr};

/// Writes of an origin that hang at a time: the deepest that destaging goes.
const WRITES_HELD: u64 = 512;

/// A file that its file system's process shows; while that is stopped, opening the file hangs.
struct Fuse {
    child: Child,
    /// Where the file system is: the file itself, or the directory that the file alone is in.
    mount: PathBuf,
    file: PathBuf,
}

impl Fuse {
    fn open(daemon: &Daemon) -> Option<Fuse> {
        let file = daemon.dir.path("fuse");
        std::fs::write(&file, b"").unwrap();
        Fuse::mount(&file, &file)
    }

    /// While it is stopped, even looking for another name beside the file hangs.
    fn folder(daemon: &Daemon) -> Option<Fuse> {
        let folder = daemon.dir.path("fuse");
        std::fs::create_dir(&folder).unwrap();
        Fuse::mount(&folder, &folder.join("nbd"))
    }

    fn mount(mount: &Path, file: &Path) -> Option<Fuse> {
        if !have("nbdfuse") || !have("nbdkit") {
            return None;
        }
        let mut command = Command::new("nbdfuse");
        command.arg(mount).args(["[", "nbdkit", "--exit-with-parent", "memory", "32M", "]"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let mut fuse = Fuse { child, mount: mount.to_owned(), file: file.to_owned() };
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
        let mount = self.mount.to_str().unwrap();
        for command in ["umount", "fusermount3 -u", "fusermount -u"] {
            let script = format!("{command} '{mount}' 2>/dev/null");
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

fn until_others_are_answered(daemon: &Daemon) {
    let mut other = daemon.command_of(&["status"]).stdout(Stdio::null()).spawn().unwrap();
    until("others are answered", || other.try_wait().unwrap().is_some_and(|end| end.success()));
}

/// A command that asks for what does not answer: it is refused after a while, and others are not held up.
fn refused_in_the_end(daemon: &Daemon, arguments: &[&str]) {
    let mut command = daemon.command_of(arguments);
    let mut command = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut has_ended = false;
    while !has_ended {
        has_ended = command.try_wait().unwrap().is_some();
        until_others_are_answered(daemon);
    }
    let text = stderr(&command.wait_with_output().unwrap());
    assert!(text.contains("does not answer") && text.contains("dmesg"), "{arguments:?}: {text}");
}

#[test]
fn a_path_that_does_not_answer_is_refused_and_holds_nobody_up() {
    let mut daemon = served("hung-path");
    let Some(fuse) = Fuse::folder(&daemon) else { return };
    let origin = daemon.dir.sparse("origin-2", VOLUME_BYTES as u64);
    daemon.tell(&["volume", "add", "fast/more", "--origin", origin.to_str().unwrap()]);
    let (ssd, path) = (daemon.dir.path("ssd-0"), fuse.file.with_file_name("other"));
    let (ssd, path) = (ssd.to_str().unwrap(), path.to_str().unwrap());
    let uri = format!("nbd+unix:///?socket={path}");
    let commands = [
        &["pool", "device", "add", "fast", path][..],
        &["pool", "device", "replace", "fast", ssd, path, "--yes"],
        &["export", "add", "fast/more", "--socket", path],
        &["volume", "add", "fast/remote", "--origin", &uri],
    ];
    signal(fuse.child.id(), "STOP");
    for command in commands {
        refused_in_the_end(&daemon, &[command, &["--dry-run"]].concat());
        refused_in_the_end(&daemon, command);
    }
    until("one call hangs of each kind, not one of each command", || calls(&daemon) == 3);
    signal(fuse.child.id(), "CONT");
    until("they return", || calls(&daemon) == 0);
    daemon.stop();
}

/// To know which file it is made of takes its file system.
#[test]
fn a_loop_device_on_what_does_not_answer_holds_nobody_up() {
    let mut daemon = served("hung-loop");
    let Some(fuse) = Fuse::open(&daemon) else { return };
    let Some(_attached) = LoopSsd::on(&fuse.file) else { return };
    let [first, second] = ["origin-2", "origin-3"].map(|name| {
        let origin = daemon.dir.sparse(name, VOLUME_BYTES as u64);
        origin.to_str().unwrap().to_owned()
    });
    signal(fuse.child.id(), "STOP");
    // The kernel knows for a moment what it was told last.
    let mut look = Command::new("timeout");
    look.args(["-s", "KILL", "0.2", "stat"]).arg(&fuse.file);
    until("it does not answer", || !run(&mut look).status.success());
    daemon.tell(&["volume", "add", "fast/a", "--origin", &first]);
    daemon.tell(&["volume", "add", "fast/b", "--origin", &second]);
    // Nor is another one overlooked meanwhile.
    let file = daemon.dir.full("file", 1 << 20);
    let Some(other) = LoopSsd::on(&file) else { return };
    let add = ["volume", "add", "fast/c", "--origin", file.to_str().unwrap()];
    daemon.refused(&add, &format!("attached as {}", other.path()), "losetup -d");
    signal(fuse.child.id(), "CONT");
    daemon.stop();
}

/// The preflight check says so as well, and looks at the others.
#[test]
fn doctor_goes_on_past_a_device_that_does_not_answer() {
    let daemon = Daemon::new("hung-doctor");
    let Some(fuse) = Fuse::open(&daemon) else { return };
    let other = daemon.dir.full("other", 1 << 20);
    signal(fuse.child.id(), "STOP");
    let output = run(forebay().arg("doctor").arg(&fuse.file).arg(&other));
    let (text, refused) = (String::from_utf8_lossy(&output.stdout).into_owned(), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{refused}");
    let (hung, looked_at) = text.split_once(other.to_str().unwrap()).unwrap();
    assert!(hung.contains("does not answer for 10 s") && hung.contains("dmesg"), "{hung}");
    assert!(looked_at.lines().any(|line| line.contains("  reading ")), "{looked_at}");
}

#[test]
fn an_origin_that_answers_too_late_is_let_go_of() {
    let mut daemon = served("hung-late");
    let Some(fuse) = Fuse::open(&daemon) else { return };
    let path = fuse.file.to_str().unwrap();
    signal(fuse.child.id(), "STOP");
    refused_in_the_end(&daemon, &["volume", "add", "fast/late", "--origin", path, "--dry-run"]);
    signal(fuse.child.id(), "CONT");
    until("it is open", || calls(&daemon) == 0);
    let is_free = || run(Command::new("flock").args(["-n", path, "true"])).status.success();
    until("others may have it", is_free);
    daemon.stop();
}

#[test]
fn an_export_at_a_place_that_does_not_answer_holds_nobody_up() {
    let mut daemon = served("hung-export");
    let Some(fuse) = Fuse::folder(&daemon) else { return };
    let (folder, link) = (daemon.dir.path("folder"), daemon.dir.path("link"));
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink(&folder, &link).unwrap();
    let origin = daemon.dir.sparse("origin-2", VOLUME_BYTES as u64);
    daemon.tell(&["volume", "add", "fast/more", "--origin", origin.to_str().unwrap()]);
    let socket = link.join("nbd-2");
    daemon.tell(&["export", "add", "fast/more", "--socket", socket.to_str().unwrap()]);
    daemon.stop();
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&fuse.mount, &link).unwrap();
    signal(fuse.child.id(), "STOP");
    daemon.spawn();
    until("it listens", || daemon.dir.path("nbd").exists());
    until_others_are_answered(&daemon);
    until_served(&daemon);
    until("it is said", || daemon.tell(&["export", "list"]).contains("does not answer"));
    until("nobody else asks", || calls(&daemon) == 1);
    // It ends, although the call has not returned.
    daemon.stop();
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&folder, &link).unwrap();
    daemon.start();
    // One that has died since it listens there is closed all the same.
    until("it listens", || socket.exists());
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&fuse.mount, &link).unwrap();
    let mut remove = daemon.command_of(&["export", "remove", "fast/more"]);
    let mut remove = remove.stdout(Stdio::null()).spawn().unwrap();
    until("its place is looked at", || calls(&daemon) == 1);
    until_others_are_answered(&daemon);
    until("it is no more", || remove.try_wait().unwrap().is_some());
    daemon.stop();
    signal(fuse.child.id(), "CONT");
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
    // To attach it, and to see whether the other origin is the same.
    until("two calls hang, not one for each attempt", || calls(&daemon) == 2);
    std::thread::sleep(Duration::from_secs(1));
    until("and no more after that", || calls(&daemon) == 2);
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
fn an_import_that_is_cut_short_goes_on_without_nothing() {
    let mut daemon = patient("hung-import");
    daemon.tell(&["pool", "export", "fast"]);
    let Some(fuse) = Fuse::open(&daemon) else { return };
    // Between the two cache devices.
    std::os::unix::fs::symlink(&fuse.file, daemon.dir.path("ssd-00")).unwrap();
    signal(fuse.child.id(), "STOP");
    let mut import = daemon.command_of(&["pool", "import", "fast"]);
    let import = import.stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    signal(daemon.pid(), "TERM");
    assert!(daemon.wait());
    let refused = import.wait_with_output().unwrap();
    assert!(!refused.status.success(), "{}", stderr(&refused));
    signal(fuse.child.id(), "CONT");
    daemon.start();
    daemon.tell(&["pool", "import", "fast"]);
    let shown = daemon.json(&["pool", "show", "fast"]);
    let present = |member: &serde_json::Value| member["state"] == "present";
    assert!(shown["members"].as_array().unwrap().iter().all(present), "{shown}");
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

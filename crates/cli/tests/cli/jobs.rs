//! What long work says of itself while it goes on, over an origin as slow as the test wants it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::daemon::{Daemon, content, until};
use crate::common::{Client, Dir, have};
use serde_json::{Value, json};

/// What is dirty when a job begins.
const DIRTY_BYTES: usize = 16 << 20;

/// An export of nbdkit that takes a MiB a second until it may take all.
struct SlowOrigin {
    uri: String,
    rate: PathBuf,
    server: Child,
}

impl SlowOrigin {
    /// `None` where the machine has no nbdkit.
    fn new(dir: &Dir) -> Option<SlowOrigin> {
        if !have("nbdkit") {
            return None;
        }
        let (socket, rate) = (dir.path("slow.kit"), dir.path("slow.rate"));
        std::fs::write(&rate, "8M").unwrap();
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--unix"]).arg(&socket);
        command.args(["--filter=rate", "memory", "32M", "rate=8M"]);
        command.arg(format!("rate-file={}", rate.display()));
        let server = command.stderr(Stdio::null()).spawn().unwrap();
        until("nbdkit listens", || socket.exists());
        Some(SlowOrigin { uri: format!("nbd+unix:///?socket={}", socket.display()), rate, server })
    }

    fn hurry(&self) {
        std::fs::write(&self.rate, "80G").unwrap();
    }
}

impl Drop for SlowOrigin {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A volume "slow/vm" on it without an export, of which the first part is dirty.
fn dirty(daemon: &Daemon, origin: &SlowOrigin) {
    let ssd = daemon.ssd("ssd-0");
    let create = ["pool", "create", "slow", "--ssd", ssd.to_str().unwrap()];
    daemon.tell(&[&create[..], &["--accept-data-loss-on-ssd-failure"]].concat());
    daemon.tell(&["volume", "add", "slow/vm", "--origin", &origin.uri]);
}

fn fill(daemon: &Daemon) {
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "slow/vm", "--socket", socket.to_str().unwrap()]);
    let mut client = Client::connect(&socket);
    for (index, chunk) in content(5, DIRTY_BYTES).chunks(1 << 20).enumerate() {
        client.write((index << 20) as u64, chunk).unwrap();
    }
    client.flush().unwrap();
    drop(client);
    until("the client is gone", || daemon.json(&["export", "list"])["items"][0]["clients"] == 0);
    daemon.tell(&["export", "remove", "slow/vm"]);
}

fn running(daemon: &Daemon) -> Option<Value> {
    let jobs = daemon.json(&["job", "list"]);
    jobs["items"].as_array().unwrap().iter().find(|job| job["state"] == "running").cloned()
}

/// Waits until the job under way has done a part, and checks what it says then.
fn midway(daemon: &Daemon, what: &str) -> Value {
    let mut job = Value::Null;
    until("a part is done, and there is a rate", || {
        job = running(daemon).unwrap_or(Value::Null);
        job["left_bytes"].as_u64() < job["total_bytes"].as_u64()
            && job["rate_bytes_per_s"].as_u64() > Some(0)
    });
    let number = |field: &str| job[field].as_u64().unwrap();
    assert_eq!(job["what"], what);
    assert!(number("left_bytes") > 0 && number("total_bytes") <= DIRTY_BYTES as u64, "{job}");
    assert_eq!(number("left_s"), number("left_bytes") / number("rate_bytes_per_s"), "{job}");
    let text = daemon.tell(&["job", "show", &job["number"].to_string()]);
    let (head, row) = text.split_once('\n').unwrap();
    let columns: Vec<_> = head.split_whitespace().collect();
    assert_eq!(columns, ["JOB", "STATE", "TOTAL", "LEFT", "RATE", "TO", "GO", "WHAT"]);
    assert!(row.contains("running") && row.contains("iB/s") && row.contains(" s "), "{text}");
    job
}

/// A command that follows its job, and where its lines are.
fn followed(daemon: &Daemon, arguments: &[&str]) -> (Child, PathBuf) {
    let told = daemon.dir.path("told");
    let file = std::fs::File::create(&told).unwrap();
    (daemon.command_of(arguments).stderr(file).spawn().unwrap(), told)
}

/// Waits until a line says how far it is, how fast, and how long it takes.
fn until_told(told: &Path) {
    let parts = ["iB of ", "iB done, ", "iB left, ", "iB/s, ", " s to go"];
    let says = |line: &str| parts.iter().all(|part| line.contains(part));
    until("a line says it all", || std::fs::read_to_string(told).unwrap().lines().any(says));
}

#[test]
fn a_flush_says_how_far_it_is_how_fast_and_how_long_it_takes() {
    let mut daemon = Daemon::new("progress");
    let Some(origin) = SlowOrigin::new(&daemon.dir) else { return };
    dirty(&daemon, &origin);
    fill(&daemon);
    let (mut first, told) = followed(&daemon, &["volume", "flush", "slow/vm"]);
    let job = midway(&daemon, "flush of volume \"slow/vm\"");
    until_told(&told);
    daemon.tell(&["job", "cancel", &job["number"].to_string()]);
    assert_eq!(first.wait().unwrap().code(), Some(1));
    assert!(std::fs::read_to_string(&told).unwrap().contains("cancelled"));
    // What was cancelled says what is left; the volume is as it was, with less to do.
    let shown = daemon.json(&["job", "show", &job["number"].to_string()]);
    assert_eq!(shown["state"], "cancelled");
    let left = |job: &Value| job["left_bytes"].as_u64().unwrap();
    assert!(left(&shown) > 0 && left(&shown) <= left(&job), "{shown}, was {job}");
    let volume = daemon.json(&["volume", "show", "slow/vm"]);
    assert_eq!(volume["state"], "online");
    assert!(volume["dirty_bytes"].as_u64() > Some(0), "{volume}");
    // A removal goes on with the rest, and it too can be cancelled.
    let (mut removal, _) = followed(&daemon, &["volume", "remove", "slow/vm", "--yes"]);
    let job = midway(&daemon, "removal of volume \"slow/vm\"");
    daemon.tell(&["job", "cancel", &job["number"].to_string()]);
    assert_eq!(removal.wait().unwrap().code(), Some(1));
    assert_eq!(daemon.json(&["volume", "show", "slow/vm"])["state"], "online");
    origin.hurry();
    let done = daemon.json(&["volume", "flush", "slow/vm"]);
    assert_eq!((&done["state"], &done["left_bytes"]), (&json!("done"), &json!(0)));
    assert_eq!(done["left_s"], 0);
    assert_eq!(daemon.json(&["volume", "show", "slow/vm"])["dirty_bytes"], 0);
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "slow/vm", "--socket", socket.to_str().unwrap()]);
    let mut found = vec![0; DIRTY_BYTES];
    for (index, chunk) in found.chunks_mut(1 << 20).enumerate() {
        let mut client = Client::connect(&socket);
        client.read((index << 20) as u64, chunk).unwrap();
    }
    assert!(found == content(5, DIRTY_BYTES));
    daemon.stop();
}

#[test]
fn a_stop_that_destages_says_how_far_it_is() {
    let mut daemon = Daemon::new("stop-progress");
    let Some(origin) = SlowOrigin::new(&daemon.dir) else { return };
    dirty(&daemon, &origin);
    fill(&daemon);
    let (mut stop, told) = followed(&daemon, &["stop", "--destage", "--yes"]);
    midway(&daemon, "destaging of all pools before the end");
    until_told(&told);
    origin.hurry();
    assert!(stop.wait().unwrap().success());
    assert!(std::fs::read_to_string(&told).unwrap().contains("every origin has all of its data"));
    assert!(daemon.wait());
}

//! A new daemon in the place of an old one, while clients go on.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use crate::common::daemon::{
    Daemon, content, print_times, read_all, served, until, until_served, written,
};
use crate::common::{Client, have};

/// qemu's NBD client, which connects again.
struct Qemu {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Qemu {
    fn connect(daemon: &Daemon) -> Qemu {
        let socket = daemon.dir.path("nbd");
        let image = format!(
            "driver=nbd,server.type=unix,server.path={},export=vm,reconnect-delay=60",
            socket.display()
        );
        let mut command = Command::new("qemu-io");
        command.args(["-t", "none", "--image-opts", &image]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Qemu { child, input, output: BufReader::new(output) }
    }

    /// Sends a command and waits for the line that says how it went.
    fn tell(&mut self, command: &str, wanted: &str) {
        writeln!(self.input, "{command}").unwrap();
        self.input.flush().unwrap();
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "{command}: qemu-io has ended");
            assert!(
                !line.contains("failed") && !line.contains("verification"),
                "{command}: {line}"
            );
            if line.contains(wanted) {
                return;
            }
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn clients_that_connect_again_go_on_over_restarts_and_kills() {
    if !have("qemu-io") {
        return;
    }
    let mut daemon = served("restart");
    let mut client = Qemu::connect(&daemon);
    client.tell("write -P 1 0 1M", "wrote 1048576/1048576");
    for round in 2..6 {
        let offset = (round - 1) * (1 << 20);
        // What was acknowledged is there after a kill, flushed or not; and what the old program wrote, for the new one.
        if round % 2 == 0 {
            daemon.stop()
        } else {
            daemon.kill()
        }
        if round > 3 {
            daemon.update();
        }
        daemon.start();
        client.tell(&format!("read -P {} {} 1M", round - 1, offset - (1 << 20)), "read 1048576");
        client.tell(&format!("write -P {round} {offset} 1M"), "wrote 1048576/1048576");
    }
    // Also if it asks while there is no daemon.
    daemon.stop();
    writeln!(client.input, "read -P 1 0 1M").unwrap();
    client.input.flush().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    daemon.start();
    client.tell("write -P 9 0 1M", "read 1048576");
    drop(client);
    daemon.stop();
}

#[test]
fn a_restart_is_warm_also_of_another_program() {
    const TRIES: usize = 5;
    let mut daemon = served("warm");
    let socket = daemon.dir.path("nbd");
    let newest = content(2, 8 << 20);
    let mut client = Client::connect(&socket);
    for (index, chunk) in newest.chunks(1 << 20).enumerate() {
        client.write((index << 20) as u64, chunk).unwrap();
    }
    // Of another part, what reads have brought in.
    let mut brought = vec![0; 1 << 20];
    client.read(16 << 20, &mut brought).unwrap();
    drop(client);
    daemon.tell(&["volume", "flush", "fast/vm"]);
    let mut times = Vec::new();
    for turn in 0..TRIES {
        let before = daemon.running();
        if turn > 0 {
            daemon.update();
        }
        let began = Instant::now();
        daemon.stop();
        daemon.start();
        until_served(&daemon);
        let mut client = Client::connect(&socket);
        let mut found = vec![0; 8 << 20];
        for (index, chunk) in found.chunks_mut(1 << 20).enumerate() {
            client.read((index << 20) as u64, chunk).unwrap();
        }
        times.push(began.elapsed());
        assert_eq!(daemon.running() == before, turn == 0, "another program runs");
        assert!(found == newest);
        // In one request that the cache serves in two parts: they count as two.
        client.read(0, &mut found).unwrap();
        client.read(16 << 20, &mut found[..1 << 20]).unwrap();
        assert!(found[..1 << 20] == brought[..]);
        let usage = daemon.json(&["pool", "show", "fast"])["usage"].clone();
        assert_eq!(usage["read_requests"], usage["read_hits"], "{usage}");
        assert!(usage["read_requests"].as_u64().unwrap() >= 9, "{usage}");
    }
    print_times("from the stop to 8 MiB read again", times);
    daemon.stop();
}

/// One that is damaged says nothing of the other, nor is it guessed what it said.
#[test]
fn a_pool_whose_record_cannot_be_read_keeps_no_other_one_from_being_served() {
    let mut daemon = served("restart-record");
    let all = written(&daemon, 1);
    let other = daemon.ssd("ssd-2").to_str().unwrap().to_owned();
    daemon.tell(&["pool", "create", "other", "--ssd", &other, "--accept-data-loss-on-ssd-failure"]);
    let id = |pool: &str| daemon.json(&["pool", "show", pool])["id"].as_str().unwrap().to_owned();
    let (fast, other_id) = (id("fast"), id("other"));
    let record_of = |id: &str| daemon.dir.path("state").join("pools").join(id).join("pool.json");
    let (record, others) = (record_of(&fast), record_of(&other_id));
    daemon.stop();
    let whole = std::fs::read(&record).unwrap();
    for damaged in [&whole[..whole.len() / 2], b"", &std::fs::read(&others).unwrap()] {
        std::fs::write(&record, damaged).unwrap();
        daemon.start();
        let shown = |pool: &str| daemon.json(&["pool", "show", pool]);
        until("the other one is open", || shown("other")["state"] == "online");
        until("its devices are seen", || shown(&fast)["members"].as_array().unwrap().len() == 2);
        let pool = shown(&fast);
        assert_eq!((&pool["state"], &pool["health"]), (&"failed".into(), &"failed".into()));
        let summary = pool["summary"].as_str().unwrap();
        assert!(
            summary.contains("pool.json") && summary.contains("the record of this pool"),
            "{summary}"
        );
        assert_eq!(pool["volumes"][0]["name"], format!("{fast}/vm"));
        let action = pool["action"].as_str().unwrap();
        assert!(
            action.contains("restart the daemon") && !action.contains(&format!("import {fast}")),
            "{action}"
        );
        assert!(daemon.tell(&["events"]).contains("the record of this pool"));
        for wanted in ["fast", &fast] {
            daemon.refused(
                &["pool", "import", wanted],
                "the record of this pool",
                &format!("pool export {fast}"),
            );
        }
        daemon.refused(&["pool", "show", "fast"], "there is no pool \"fast\"", "forebay pool list");
        let origin = daemon.dir.path("origin").to_str().unwrap().to_owned();
        daemon.refused(&["volume", "add", "other/vm", "--origin", &origin], "is the origin of", "");
        daemon.stop();
        assert_eq!(std::fs::read(&record).unwrap(), damaged, "it is left as it is");
    }
    std::fs::write(&record, &whole).unwrap();
    daemon.start();
    until_served(&daemon);
    assert!(read_all(&daemon.dir.path("nbd")) == all, "what was written is there");
    daemon.stop();
    std::fs::write(&record, "{").unwrap();
    daemon.start();
    daemon.tell(&["pool", "export", &fast]);
    assert!(daemon.tell(&["events"]).contains("its record is kept as"));
    assert_eq!(std::fs::read(record.with_extension("json.unreadable")).unwrap(), b"{");
    daemon.tell(&["pool", "import", "fast"]);
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    assert!(read_all(&socket) == all, "what was written is there");
    daemon.stop();
}

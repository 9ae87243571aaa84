//! What happened: told while it happens, and known afterwards.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use crate::common::Client;
use crate::common::daemon::{Daemon, content, served, until};
use serde_json::Value;

#[test]
fn events_of_a_pool_have_codes_of_their_own() {
    let mut daemon = served("codes");
    let mut client = Client::connect(&daemon.dir.path("nbd"));
    client.write(0, &content(2, 1 << 20)).unwrap();
    client.flush().unwrap();
    drop(client);
    daemon.stop();
    // The origin is used behind its back, an SSD is gone, and so is the witness.
    let origin = daemon.dir.path("origin");
    let mut bytes = std::fs::read(&origin).unwrap();
    bytes.iter_mut().for_each(|byte| *byte ^= 1);
    std::fs::write(&origin, bytes).unwrap();
    std::fs::rename(daemon.dir.path("ssd-1"), daemon.dir.path("away")).unwrap();
    daemon.start();
    let events = daemon.json(&["events"]);
    let codes: Vec<_> = events["items"].as_array().unwrap().iter().map(|e| &e["code"]).collect();
    for code in ["member-missing", "copies-short"] {
        assert!(codes.iter().any(|known| **known == code), "{code}: {events}");
        assert!(daemon.tell(&["explain", code]).contains("means"));
    }
    daemon.stop();
    std::fs::rename(daemon.dir.path("away"), daemon.dir.path("ssd-1")).unwrap();
    daemon.start();
    assert!(daemon.tell(&["events"]).contains("member-stale"));
    daemon.stop();
}

/// Reads lines of a pipe on a thread of its own.
fn lines_of(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = std::sync::mpsc::channel();
    let from = BufReader::new(from);
    std::thread::spawn(move || {
        from.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    lines
}

/// What happens is told while it happens, to who asks for what matters as much.
#[test]
fn events_are_followed() {
    let daemon = served("follow");
    let follow = |severity: &str| {
        let asked = ["events", "--follow", "--json", "--severity", severity];
        let mut command = daemon.command_of(&asked);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut followers = ["info", "critical"].map(follow);
    let lines = |child: &mut Child| lines_of(child.stdout.take().unwrap());
    let [all, critical] = followers.each_mut().map(lines);
    let next = |code: &str| {
        let line = all.recv_timeout(Duration::from_secs(20)).unwrap();
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        event["code"] == code && event["severity"] == "info"
    };
    while !next("volume-added") {}
    daemon.tell(&["pool", "set", "fast", "verify=reads"]);
    while !next("pool-set") {}
    for follower in &mut followers {
        follower.kill().unwrap();
        follower.wait().unwrap();
    }
    assert_eq!(critical.iter().count(), 0, "nothing needs anybody to act");
}

#[test]
fn who_follows_ends_when_nobody_reads_it_any_more() {
    let daemon = served("follow-unread");
    let mut command = daemon.command_of(&["events", "--follow"]);
    let mut follower = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("export-added")), "all that there is");
    drop(lines);
    until("it ends", || follower.try_wait().unwrap().is_some_and(|end| end.success()));
}

/// Who follows hears of each thing once, whatever is restarted.
#[test]
fn a_restart_neither_ends_nor_repeats_what_is_followed() {
    let mut daemon = served("follow-on");
    let mut command = daemon.command_of(&["events", "--follow", "--json"]);
    let mut follower = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let told = lines_of(follower.stdout.take().unwrap());
    let said = lines_of(follower.stderr.take().unwrap());
    let mut seen: Vec<Value> = Vec::new();
    let mut follow = |code: &str, is_it: &dyn Fn(&Value) -> bool| {
        while !seen.last().is_some_and(|event| event["code"] == code && is_it(event)) {
            let line = told.recv_timeout(Duration::from_secs(20));
            let line = line.unwrap_or_else(|_| panic!("{code} is missing: {seen:?}"));
            seen.push(serde_json::from_str(&line).unwrap());
        }
        seen.clone()
    };
    follow("export-added", &|_| true);
    for mode in ["readonly", "writeback"] {
        daemon.stop();
        let away = said.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(away.contains("does not answer"), "{away}");
        daemon.start();
        daemon.tell(&["volume", "set", "fast/vm", mode]);
        let is_now = |event: &Value| event["what"].as_str().unwrap().ends_with(mode);
        follow("volume-mode", &is_now);
        let back = said.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(back.contains("again"), "{back}");
    }
    daemon.tell(&["pool", "set", "fast", "verify=reads"]);
    let seen = follow("pool-set", &|_| true);
    let of = |code: &str| seen.iter().filter(|event| event["code"] == code).count();
    assert_eq!((of("daemon-started"), of("pool-opened")), (3, 2 + of("pool-created")), "{seen:?}");
    for code in ["pool-created", "volume-added", "export-added"] {
        assert_eq!(of(code), 1, "{code}: {seen:?}");
    }
    assert_eq!(of("volume-mode"), 2, "{seen:?}");
    follower.kill().unwrap();
    follower.wait().unwrap();
    assert!(said.iter().next().is_none(), "each time is said once");
    daemon.stop();
}

#[test]
fn a_number_of_another_life_leaves_nothing_out() {
    let mut daemon = served("lives");
    let first = daemon.json(&["events"]);
    let last =
        |answer: &Value| answer["items"].as_array().unwrap().last().unwrap()["number"].clone();
    let (life, number) = (first["life"].as_str().unwrap().to_owned(), last(&first).to_string());
    let after = |daemon: &Daemon, life: &str, number: &str| {
        let answer = daemon.json(&["events", "--after", number, "--life", life]);
        answer["items"].as_array().unwrap().clone()
    };
    assert!(after(&daemon, &life, &number).is_empty());
    daemon.stop();
    daemon.start();
    let second = daemon.json(&["events"]);
    assert_ne!(second["life"], life.as_str());
    let news = after(&daemon, &life, &number);
    assert!(news.iter().any(|event| event["number"] == 1), "{news:?}");
    let (life, number) = (second["life"].as_str().unwrap().to_owned(), last(&second).to_string());
    assert!(after(&daemon, &life, &number).iter().all(|event| event["number"] != 1));
    daemon.stop();
}

fn events(daemon: &Daemon) -> Vec<Value> {
    daemon.json(&["events"])["items"].as_array().unwrap().clone()
}

/// The events of a code, without what this daemon and its life have made of them.
fn of_code(daemon: &Daemon, code: &str) -> Vec<Value> {
    let of_code = events(daemon).into_iter().filter(|event| event["code"] == code);
    of_code
        .map(|event| serde_json::json!([event["unix_s"], event["subject"], event["what"]]))
        .collect()
}

#[test]
fn what_happened_to_a_pool_goes_with_it() {
    let mut daemon = served("kept");
    daemon.tell(&["volume", "set", "fast/vm", "readonly"]);
    let (added, mode) = (of_code(&daemon, "volume-added"), of_code(&daemon, "volume-mode"));
    assert_eq!((added.len(), mode.len()), (1, 1), "{:?}", events(&daemon));
    assert_eq!(mode[0][1], "vm");
    for life in 1..3 {
        // They are written in the background; a stop waits for that.
        daemon.stop();
        daemon.start();
        until("it is recalled", || of_code(&daemon, "volume-added") == added);
        assert_eq!(of_code(&daemon, "volume-mode"), mode, "in life {life}");
        let past: Vec<Value> =
            events(&daemon).into_iter().filter(|event| event["number"] == 0).collect();
        assert!(past.iter().all(|event| event["pool"] == "fast"), "{past:?}");
        assert_eq!(past[0]["code"], "pool-created");
        let news = daemon.json(&["events", "--after", "1"])["items"].as_array().unwrap().clone();
        assert!(news.iter().all(|event| event["number"] != 0), "{news:?}");
    }
    // Taken away and back, nothing is told twice; another daemon knows all of it.
    let opened = of_code(&daemon, "pool-opened");
    daemon.tell(&["pool", "export", "fast"]);
    daemon.tell(&["pool", "import", "fast"]);
    assert_eq!(of_code(&daemon, "volume-added"), added);
    assert_eq!(of_code(&daemon, "pool-opened").len(), opened.len() + 1);
    daemon.tell(&["pool", "export", "fast"]);
    daemon.kill();
    std::fs::remove_dir_all(daemon.dir.path("state")).unwrap();
    daemon.start();
    assert!(of_code(&daemon, "volume-added").is_empty());
    daemon.tell(&["pool", "import", "fast"]);
    assert_eq!(of_code(&daemon, "volume-added"), added);
    assert_eq!(of_code(&daemon, "volume-mode"), mode);
    daemon.stop();
}

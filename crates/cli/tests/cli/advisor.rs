//! `forebay advisor`: what is seen of a volume, whoever serves it, and what comes of that.

use std::path::PathBuf;

use serde_json::Value;

use crate::common::daemon::{Daemon, content, served, until_served};
use crate::common::{Client, run};

const PIECE: usize = 64 << 10;
const MIB: u64 = 1 << 20;

/// Reads so much from the beginning on.
fn read(client: &mut Client, mib: u64) {
    let mut buf = vec![0; PIECE];
    for offset in (0..mib * MIB).step_by(PIECE) {
        client.read(offset, &mut buf).unwrap();
    }
}

fn show(daemon: &Daemon) -> Value {
    daemon.json(&["advisor", "show", "fast/vm"])
}

/// Where it is stored what was seen.
fn stored(daemon: &Daemon) -> PathBuf {
    let pools = std::fs::read_dir(daemon.dir.path("state").join("pools")).unwrap();
    pools.map(|pool| pool.unwrap().path().join("advisors.json")).next().unwrap()
}

#[test]
fn an_advisor_says_how_much_cache_a_volume_deserves() {
    let mut daemon = served("advisor");
    for ask in [&["advisor", "show", "fast/vm"][..], &["advisor", "stop", "fast/vm"]] {
        daemon.refused(ask, "volume \"fast/vm\" has no advisor", "forebay advisor start fast/vm");
    }
    daemon.refused(&["advisor", "start", "fast/none"], "there is no volume", "volume list");
    daemon.refused(&["advisor", "show", "none/vm"], "there is no pool", "pool list");
    for days in ["0", "31", "x"] {
        let output = daemon.ask(&["advisor", "start", "fast/vm", "--days", days]);
        assert_eq!(output.status.code(), Some(2), "{days}");
    }
    let mut client = Client::connect(&daemon.dir.path("nbd"));
    read(&mut client, 1);
    daemon.tell(&["advisor", "start", "fast/vm"]);
    daemon.refused(&["advisor", "start", "fast/vm"], "watched already", "advisor stop fast/vm");
    assert_eq!(show(&daemon)["advice"], "Nothing was asked for yet.");
    daemon.tell(&["advisor", "show", "fast/vm"]);

    (0..4).for_each(|_| read(&mut client, 8));
    let seen = show(&daemon);
    assert_eq!((&seen["read_bytes"], &seen["written_bytes"]), (&(32 * MIB).into(), &0.into()));
    assert_eq!(
        (&seen["advised_bytes"], &seen["day_bytes"]),
        (&(8 * MIB).into(), &(8 * MIB).into())
    );
    assert_eq!(
        (&seen["advised_hit_ratio"], &seen["endless_hit_ratio"]),
        (&0.75.into(), &0.75.into())
    );
    assert_eq!((&seen["watching"], &seen["sure"]), (&true.into(), &false.into()));

    // What goes past the cache is seen, too; what is written takes room between.
    for (index, piece) in content(3, 4 << 20).chunks(PIECE).enumerate() {
        client.write(16 * MIB + (index * PIECE) as u64, piece).unwrap();
    }
    daemon.tell(&["volume", "set", "fast/vm", "bypass"]);
    read(&mut client, 8);
    let seen = show(&daemon);
    assert_eq!(
        (&seen["read_bytes"], &seen["written_bytes"]),
        (&(40 * MIB).into(), &(4 * MIB).into())
    );
    assert_eq!(
        (&seen["advised_bytes"], &seen["day_bytes"]),
        (&(12 * MIB).into(), &(12 * MIB).into())
    );
    let ratio = |at: &str| seen[at].as_f64().unwrap();
    assert_eq!(ratio("endless_hit_ratio"), 1.0 - 3072.0 / 11264.0);
    let curve = seen["curve"].as_array().unwrap();
    assert!(curve.iter().any(|point| point["cache_bytes"] == seen["cache_bytes"]), "{seen}");
    assert!(curve.is_sorted_by_key(|point| point["hit_ratio"].as_f64()), "{seen}");

    let mut command = daemon.command_of(&["advisor", "show", "fast/vm"]);
    let text = String::from_utf8(run(command.env("COLUMNS", "80")).stdout).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for words in [
        "asked    40 MiB read, 4 MiB written",
        "a day    12 MiB touched",
        "cache size    hits of all accesses",
        "   now",
        "advice   12 MiB are enough",
        "sure yet",
        "Estimated for LRU caches",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let text = daemon.tell(&["advisor", "show"]);
    assert!(text.contains("fast/vm") && text.contains("12 MiB"), "{text}");
    let volumes = daemon.json(&["advisor", "show"]);
    assert_eq!(volumes["items"][0]["volume"], "fast/vm");
    drop(client);
    daemon.stop();
}

#[test]
fn what_an_advisor_has_seen_survives_a_restart_and_its_own_end() {
    let mut daemon = served("advisor-restart");
    daemon.tell(&["advisor", "start", "fast/vm", "--days", "1"]);
    let mut client = Client::connect(&daemon.dir.path("nbd"));
    (0..3).for_each(|_| read(&mut client, 4));
    drop(client);
    let before = show(&daemon);
    daemon.stop();
    daemon.start();
    until_served(&daemon);
    let after = show(&daemon);
    for same in ["begun_unix_s", "read_bytes", "advised_bytes", "curve", "days_min", "watching"] {
        assert_eq!(after[same], before[same], "{same}");
    }
    let mut client = Client::connect(&daemon.dir.path("nbd"));
    read(&mut client, 4);
    assert_eq!(show(&daemon)["read_bytes"], 16 * MIB, "it goes on");

    daemon.tell(&["advisor", "stop", "fast/vm"]);
    read(&mut client, 4);
    drop(client);
    let ended = show(&daemon);
    let events = daemon.tell(&["events"]);
    assert!(events.contains("advisor-started") && events.contains("advisor-ended"), "{events}");
    assert_eq!((&ended["watching"], &ended["read_bytes"]), (&false.into(), &(16 * MIB).into()));
    // A power cut of the process takes nothing of it.
    daemon.kill();
    daemon.start();
    until_served(&daemon);
    assert_eq!(show(&daemon), ended);
    let plan = daemon.tell(&["advisor", "start", "fast/vm", "--dry-run"]);
    assert!(plan.contains("an earlier watch has seen is forgotten"), "{plan}");
    daemon.tell(&["advisor", "start", "fast/vm"]);
    assert_eq!(
        (&show(&daemon)["read_bytes"], &show(&daemon)["ended_unix_s"]),
        (&0.into(), &Value::Null)
    );
    // What nobody can read costs what was seen, and nothing else.
    for bytes in [&b"{\"form\": 1, \"advisors\": ["[..], b"[1, 2]", &[0xff; 64]] {
        daemon.stop();
        std::fs::write(stored(&daemon), bytes).unwrap();
        daemon.start();
        until_served(&daemon);
        assert!(daemon.tell(&["events"]).contains("advisors-lost"));
        daemon.refused(&["advisor", "show", "fast/vm"], "has no advisor", "advisor start");
        daemon.tell(&["advisor", "start", "fast/vm"]);
    }
    // With the volume goes what was seen of it, whoever has its name next.
    daemon.tell(&["export", "remove", "fast/vm"]);
    daemon.tell(&["volume", "remove", "fast/vm", "--yes"]);
    let origin = daemon.dir.path("origin");
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap()]);
    daemon.refused(&["advisor", "show", "fast/vm"], "has no advisor", "advisor start");
    daemon.stop();
}

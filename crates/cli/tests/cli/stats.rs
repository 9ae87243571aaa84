//! `forebay stats` beside a client.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::daemon::Daemon;
use crate::common::{Client, forebay, run};
use serde_json::Value;

#[test]
fn rates_of_pools_and_volumes_are_reported_while_clients_work() {
    let mut daemon = Daemon::new("stats");
    let output = daemon.ask(&["stats"]);
    let text = crate::common::stderr(&output);
    assert!(output.status.success() && text.contains("no pool is open"), "{text}");
    let ssd = daemon.ssd("ssd-0");
    let origin = daemon.dir.sparse("origin", 32 << 20);
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["pool", "create", "fast", "--ssd", ssd.to_str().unwrap()]);
    let origin = origin.to_str().unwrap();
    let accept = "--accept-data-loss-on-ssd-failure";
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin, accept]);
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    let done = Arc::new(AtomicBool::new(false));
    let worker = std::thread::spawn({
        let (done, socket) = (Arc::clone(&done), socket.clone());
        move || {
            let (mut client, mut buf) = (Client::connect(&socket), vec![1; 4096]);
            while !done.load(Ordering::Relaxed) {
                client.write(0, &buf).unwrap();
                client.read(0, &mut buf).unwrap();
            }
        }
    });
    let text = daemon.tell(&["stats", "1", "2", "--json"]);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "an object for each report");
    for line in &lines {
        assert_eq!(line["schema"], 1);
        let pool = &line["pools"][0];
        for rates in [pool, &pool["volumes"][0]] {
            for what in ["read_requests_per_s", "write_requests_per_s", "write_bytes_per_s"] {
                assert!(rates[what].as_f64().unwrap() > 0.0, "{what}: {rates}");
            }
            assert_eq!(rates["read_hit_ratio"], 1.0, "{rates}");
            let held = ["throttled_writes", "throttle_delay_ns"].map(|what| rates[what].as_u64());
            assert!(held.iter().all(Option::is_some), "{rates}");
        }
        assert_eq!(pool["volumes"][0]["name"], "fast/vm");
        assert!(pool["latency"]["write_p99_below_us"].as_u64().unwrap() > 0);
    }
    let text = daemon.tell(&["stats"]);
    let first: Vec<_> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(first, ["", "", "fast", "fast/vm"], "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let text = daemon.tell(&["stats", "--bypass"]);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "nothing went past the cache: {text}");
    assert!(lines[2].starts_with("fast/vm") && lines[2].contains("all requests"), "{text}");
    daemon.tell(&["volume", "set", "fast/vm", "readonly"]);
    let text = daemon.tell(&["stats", "--bypass", "1", "1", "--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let pool = &report["pools"][0];
    for all in [pool, &pool["volumes"][0]] {
        let (past, reasons) = (&all["bypass"]["mode"], all["bypass"].as_object().unwrap().len());
        assert!(past["write_requests"].as_u64().unwrap() > 0 && reasons == 16, "{all}");
        // What is under way at a look is in one and not yet in the other.
        let (past, asked) = (&past["write_bytes"], &all["requests"]["write_bytes"]);
        let apart = past.as_u64().unwrap().abs_diff(asked.as_u64().unwrap());
        assert!(apart <= 4096, "{all}");
    }
    // What nobody has read before.
    Client::connect(&socket).read(1 << 20, &mut [0; 4096]).unwrap();
    let pool = daemon.json(&["pool", "show", "fast"]);
    let [late] = pool["usage"]["activity"].as_array().unwrap().as_slice() else {
        panic!("not open for longer than the first stretch: {pool}");
    };
    let of = |what: &str, field: &str| late[what][field].as_u64().unwrap();
    assert!(late["span_s"] == 300 && late["covered_s"].as_u64().unwrap() < 300, "{late}");
    assert!(of("reads", "ssd_hits") > 0 && of("writes", "requests") > 0, "{late}");
    assert!(of("origin_reads", "requests") > 0, "{late}");
    assert!(late["writes"]["past"]["mode"].as_u64().unwrap() > 0, "{late}");
    let status = daemon.tell(&["status"]);
    for line in ["reads    LAST", "origin   LAST", "writes   LAST", "past     in "] {
        assert!(status.lines().any(|it| it.starts_with(line)), "{status}");
    }
    // Whoever reads no more ends it: `forebay stats 1 | head -1`.
    let mut command = forebay();
    command.args(["stats", "1"]).env("FOREBAY_CONTROL", daemon.dir.path("control.sock"));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    done.store(true, Ordering::Relaxed);
    worker.join().unwrap();
    daemon.stop();
}

#[test]
fn intervals_and_counts_are_checked() {
    for arguments in [&["stats", "0"][..], &["stats", "1", "0"], &["stats", "x"]] {
        let output = run(forebay().args(arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

//! One trace, run by `forebay lab trace` and replayed through NBD: what the one says, the daemon does.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use crate::common::daemon::{Daemon, until};
use crate::common::{Client, forebay, run, stderr};

const BLOCK: u64 = 4096;

/// Different blocks of the trace.
const BLOCKS: u64 = 200;

/// What goes on behind a reply is awaited between them, for a trace has no such thing: no block is asked for
/// twice in one.
const ROUNDS: u64 = 5;

struct Request {
    write: bool,
    block: u64,
}

/// Two of three blocks in each round, in an order that is another one each time; a third of them is written.
fn rounds() -> Vec<Vec<Request>> {
    let mut random = 1_u64;
    let mut below = move |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % bound
    };
    let round = |_| {
        let mut blocks: Vec<u64> = (0..BLOCKS).filter(|_| below(3) > 0).collect();
        for at in (1..blocks.len()).rev() {
            blocks.swap(at, below(at as u64 + 1) as usize);
        }
        let requests = blocks.into_iter().map(|block| Request { write: below(3) == 0, block });
        let mut requests: Vec<_> = requests.collect();
        // What lies beside a write that the origin has not flushed yet is not brought in.
        requests.sort_by_key(|request| request.write);
        requests
    };
    (0..ROUNDS).map(round).collect()
}

/// What the runner says of the first requests: of reads and writes those that missed, and blocks brought in by reads.
fn told(trace: &str, requests: usize) -> (u64, u64, u64) {
    let take = requests.to_string();
    let settings = ["--populate-on-read", "2", "--populate-on-write", "2", "--cache-block", "4K"];
    let whole = ["--size", "64M", "--json", "--requests", &take];
    let output = run(forebay().args(["lab", "trace", trace]).args(settings).args(whole));
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let run = &report["runs"][0];
    let of = |what: &str| run[what].as_u64().unwrap();
    let missed = run["blocks"]["read_missed"].as_u64().unwrap();
    (missed, of("passed_blocks"), of("populated_blocks"))
}

/// The same of the daemon.
fn done(daemon: &Daemon) -> (u64, u64, u64) {
    let stats = crate::api::get(&daemon.dir.path("control.sock"), "/api/v1/stats");
    let volume = &stats["pools"][0]["volumes"][0];
    let counters: BTreeMap<String, u64> =
        serde_json::from_value(volume["counters"].clone()).unwrap();
    let populated = stats["pools"][0]["counters"]["populate_bytes"].as_u64().unwrap();
    let past = &volume["bypass"]["profile"];
    let bytes: u64 =
        ["read_bytes", "write_bytes"].map(|of| past[of].as_u64().unwrap()).iter().sum();
    (counters["read_misses"], bytes / BLOCK, populated / BLOCK)
}

#[test]
fn a_trace_through_nbd_gets_the_decisions_of_the_runner() {
    let mut daemon = Daemon::new("traces");
    let (ssd, origin) = (daemon.ssd("ssd-0"), daemon.dir.sparse("origin", 32 << 20));
    let (socket, trace) = (daemon.dir.path("nbd"), daemon.dir.path("trace.csv"));
    daemon.tell(&["pool", "create", "fast", "--ssd", ssd.to_str().unwrap()]);
    let accept = "--accept-data-loss-on-ssd-failure";
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap(), accept]);
    let profile = ["populate_on_read=2", "populate_on_write=2", "cache_block=4K"];
    daemon.tell(&[&["volume", "set", "fast/vm"][..], &profile].concat());
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);

    let rounds = rounds();
    let mut text = String::new();
    for Request { write, block } in rounds.iter().flatten() {
        let op = if *write { 'W' } else { 'R' };
        writeln!(text, "0,{op},{},{BLOCK}", block * BLOCK).unwrap();
    }
    std::fs::write(&trace, text).unwrap();
    let mut client = Client::connect(&socket);
    let mut buf = vec![7; BLOCK as usize];
    let mut requests = 0;
    for round in rounds {
        for Request { write, block } in &round {
            match write {
                true => client.write(block * BLOCK, &buf).unwrap(),
                false => client.read(block * BLOCK, &mut buf).unwrap(),
            }
        }
        requests += round.len();
        client.flush().unwrap();
        let (missed, passed, populated) = told(trace.to_str().unwrap(), requests);
        let what = format!("{populated} blocks are brought in after {requests} requests");
        until(&what, || done(&daemon).2 >= populated);
        assert_eq!(done(&daemon), (missed, passed, populated), "after {requests} requests");
    }
    drop(client);
    daemon.stop();
}

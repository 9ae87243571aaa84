//! One trace, run by `forebay lab trace` and replayed through NBD: while the cache has room, what the one says, the
//! daemon does. And what `forebay lab trace` says of what it read and played.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::Value;

use crate::common::daemon::{Daemon, until};
use crate::common::{Client, Dir, forebay, run, stderr};

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

/// What the runner says of the first requests: blocks that reads missed, that went past the cache, and that reads brought in.
fn told(trace: &str, settings: &[&str], requests: usize) -> (u64, u64, u64) {
    let take = requests.to_string();
    let whole = ["--json", "--requests", &take];
    let output = run(forebay().args(["lab", "trace", trace]).args(settings).args(whole));
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let run = &report["runs"][0];
    let of = |what: &str| run[what].as_u64().unwrap();
    let missed = run["blocks"]["read_missed"].as_u64().unwrap();
    (missed, of("passed_blocks"), of("populated_blocks"))
}

/// The same of the daemon, where every read has so many blocks and what went past did so for one reason.
fn done(daemon: &Daemon, read_blocks: u64, reason: &str) -> (u64, u64, u64) {
    let stats = crate::api::get(&daemon.dir.path("control.sock"), "/api/v1/stats");
    let volume = &stats["pools"][0]["volumes"][0];
    let counters: BTreeMap<String, u64> =
        serde_json::from_value(volume["counters"].clone()).unwrap();
    let populated = stats["pools"][0]["counters"]["populate_bytes"].as_u64().unwrap();
    let past = &volume["bypass"][reason];
    let bytes: u64 =
        ["read_bytes", "write_bytes"].map(|of| past[of].as_u64().unwrap()).iter().sum();
    (counters["read_misses"] * read_blocks, bytes / BLOCK, populated / BLOCK)
}

/// A daemon with a volume that is exported, its export's socket, and where a trace may be.
fn served(name: &str, origin_bytes: u64) -> (Daemon, PathBuf, PathBuf) {
    let daemon = Daemon::new(name);
    let (ssd, origin) = (daemon.ssd("ssd-0"), daemon.dir.sparse("origin", origin_bytes));
    let (socket, trace) = (daemon.dir.path("nbd"), daemon.dir.path("trace.csv"));
    daemon.tell(&["pool", "create", "fast", "--ssd", ssd.to_str().unwrap()]);
    let accept = "--accept-data-loss-on-ssd-failure";
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap(), accept]);
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    (daemon, socket, trace)
}

#[test]
fn a_trace_through_nbd_is_admitted_as_the_runner_says() {
    let (mut daemon, socket, trace) = served("traces", 32 << 20);
    let profile = ["populate_on_read=2", "populate_on_write=2", "cache_block=4K"];
    daemon.tell(&[&["volume", "set", "fast/vm"][..], &profile].concat());
    let settings = ["--populate-on-read", "2", "--populate-on-write", "2", "--cache-block", "4K"];
    let settings = [&settings[..], &["--size", "64M"]].concat();

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
        let (missed, passed, populated) = told(trace.to_str().unwrap(), &settings, requests);
        let what = format!("{populated} blocks are brought in after {requests} requests");
        let done = || done(&daemon, 1, "profile");
        until(&what, || done().2 >= populated);
        assert_eq!(done(), (missed, passed, populated), "after {requests} requests");
    }
    drop(client);
    daemon.stop();
}

/// A scan that comes round passes by until the sample has said that it is read again, in both from the same request
/// on; then it comes in.
#[test]
fn a_stream_through_nbd_passes_by_and_comes_in_as_the_runner_says() {
    const PIECE: u64 = 64 << 10;
    const SCAN: u64 = 80 << 20;
    const STEP: u64 = 16 << 20;
    let (mut daemon, socket, trace) = served("traces-streams", SCAN);
    let laps = || (0..4).flat_map(|_| (0..SCAN / PIECE).map(|piece| piece * PIECE));
    let text: String = laps().map(|offset| format!("0,R,{offset},{PIECE}\n")).collect();
    std::fs::write(&trace, text).unwrap();
    let mut client = Client::connect(&socket);
    let mut buf = vec![0; PIECE as usize];
    let mut seen = Vec::new();
    for (offset, requests) in laps().zip(1..) {
        client.read(offset, &mut buf).unwrap();
        if !(requests as u64 * PIECE).is_multiple_of(STEP) {
            continue;
        }
        let (missed, passed, populated) =
            told(trace.to_str().unwrap(), &["--size", "500M"], requests);
        let what = format!("{populated} blocks are brought in after {requests} requests");
        let done = || done(&daemon, PIECE / BLOCK, "sequential");
        until(&what, || done().2 >= populated);
        assert_eq!(done(), (missed, passed, populated), "after {requests} requests");
        seen.push(passed * BLOCK);
    }
    let all = seen.last().unwrap();
    assert!((SCAN..3 * SCAN).contains(all), "{seen:?}");
    drop(client);
    daemon.stop();
}

/// What `forebay lab trace` prints about a trace of this name and content, and what it notes.
fn asked(name: &str, content: &[u8], args: &[&str]) -> (String, String) {
    let dir = Dir::new(name);
    let trace = dir.path("trace");
    std::fs::write(&trace, content).unwrap();
    let output = run(forebay().args(["lab", "trace"]).arg(&trace).args(args));
    assert!(output.status.success(), "{}", stderr(&output));
    (String::from_utf8_lossy(&output.stdout).into_owned(), stderr(&output))
}

fn asked_for_json(name: &str, content: &[u8], args: &[&str]) -> Value {
    let (text, _) = asked(name, content, &[args, &["--json"]].concat());
    serde_json::from_str(&text).unwrap()
}

/// Blocks that are read round by round.
fn reads(blocks: u64, times: u64) -> Vec<u8> {
    let all = (0..times).flat_map(|_| 0..blocks);
    all.map(|block| format!("0,R,{},{BLOCK}\n", block * BLOCK)).collect::<String>().into_bytes()
}

#[test]
fn what_was_passed_over_is_in_the_answer() {
    let text = [&reads(100, 1)[..], b"what is this\n"].concat();
    let skip = ["--skip-bad", "--size", "64K", "--unit-blocks", "1"];
    let (_, note) = asked("traces-bad", &text, &skip);
    assert_eq!(note, "note: 1 bad line or record was passed over\n");
    let report = asked_for_json("traces-bad-json", &text, &skip);
    assert_eq!((report["bad"].as_u64(), report["unread"].as_array().unwrap().len()), (Some(1), 0));

    let mut events = 0x6561_7407_u32.to_le_bytes().to_vec();
    events.resize(48, 0);
    events[16] = 8;
    events[24..32].copy_from_slice(&[0, 2, 0, 0, 1, 0, 1, 0]);
    events.extend([9; 48]);
    let report = asked_for_json("traces-unread", &events, &skip);
    let unread = report["unread"][0].as_str().unwrap();
    assert!(report["bad"] == 1 && unread.ends_with("/trace"), "{report}");
}

#[test]
fn others_beside_a_tier_in_ram_have_as_much_room() {
    let text = reads(100, 2);
    let beside = ["--beside", "lru", "--unit-blocks", "1", "--size", "200K", "--ram", "200K"];
    let run = &asked_for_json("traces-beside", &text, &beside)["runs"][0];
    assert_eq!((&run["beside_blocks"], &run["beside"]["lru"]), (&100.into(), &0.5.into()));
    let (table, _) = asked("traces-beside-table", &text, &beside);
    assert!(table.contains("beside it, with 400 KiB in all:\n  lru "), "{table}");
    for share in ["0.1%", "1"] {
        let args = ["--unit-blocks", "1", "--size", "200K", "--ram", share];
        let report = asked_for_json("traces-ram", &text, &args);
        assert_eq!(report["runs"][0]["ram_blocks"], 1, "{share}");
    }
}

#[test]
fn a_size_that_makes_no_cache_is_left_out() {
    let text = reads(100, 2);
    let (table, notes) = asked("traces-small", &text, &[]);
    assert_eq!(notes, "note: a cache of 1 block is less than 8 units of 1 block: left out\n");
    assert!(table.contains("cache of 40 KiB") && table.contains("cache of 160 KiB"), "{table}");
    let dir = Dir::new("traces-none");
    let trace = dir.path("trace");
    std::fs::write(&trace, &text).unwrap();
    let mut none = forebay();
    let output = run(none.args(["lab", "trace", "--size", "1%", "--size", "2%"]).arg(&trace));
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("error: a cache of 1 block is less than 8 units"), "{told}");
}

#[test]
fn what_was_played_is_told() {
    let text = reads(100, 2);
    let daemon = ["--size", "200K"];
    let ideal = ["--size", "200K", "--unit-blocks", "1"];
    let told = |args: &[&str]| {
        let run = asked_for_json("traces-played", &text, args)["runs"][0].clone();
        ["unit_blocks", "granule_blocks", "write_amplification_max_percent"]
            .map(|name| run[name].as_u64())
    };
    assert_eq!(told(&daemon), [Some(1), Some(16), Some(150)]);
    assert_eq!(told(&ideal), [Some(1), Some(1), None]);
    let table = |args: &[&str]| asked("traces-table", &text, args).0;
    assert!(table(&daemon).contains("granules of 64 KiB, write amplification at most 150 %"));
    assert!(table(&ideal).contains("granules of 4 KiB, write amplification without a limit"));
}

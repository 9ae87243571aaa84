//! `kill -9` in the middle of writing, start again, compare: nothing acknowledged is lost.
//!
//! The page cache and the disk survive a killed process, so every acknowledged write must be
//! there, flushed or not. The clients are spread over 1, 2 and 4 reactors in turn. `FOREBAY_SOAK=1`
//! runs 50 rounds instead of 3.

use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Client, Dir, Server, create, have, serve};

const BLOCK: usize = 4096;
const BLOCKS: u64 = (32 << 20) / BLOCK as u64;
const CLIENTS: u64 = 4;

fn rounds() -> u32 {
    if std::env::var_os("FOREBAY_SOAK").is_some() { 50 } else { 3 }
}

/// With the number of reactors that a round has.
fn on_reactors(mut command: Command, round: u32) -> Command {
    command.args(["--reactors", ["1", "2", "4"][round as usize % 3]]);
    command
}

fn content(block: u64, version: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK);
    while bytes.len() < BLOCK {
        bytes.extend(block.to_le_bytes());
        bytes.extend(version.to_le_bytes());
    }
    bytes
}

/// What is known of a block: the version acknowledged last, and one that was under way.
#[derive(Clone, Copy, Default)]
struct Known {
    acknowledged: u64,
    sent: u64,
}

/// Blocks with an acknowledged write.
fn written(known: &[Known]) -> usize {
    known.iter().filter(|entry| entry.acknowledged > 0).count()
}

/// Writes random blocks that are `client` modulo [`CLIENTS`] until the server is gone.
fn write_until_killed(socket: &std::path::Path, client: u64, known: &Mutex<Vec<Known>>, seed: u64) {
    let mut connection = Client::connect(socket);
    let mut state = seed | 1;
    for number in 0.. {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let block = state % (BLOCKS / CLIENTS) * CLIENTS + client;
        let version = {
            let mut known = known.lock().unwrap();
            let entry = &mut known[block as usize];
            entry.sent = entry.sent.max(entry.acknowledged) + 1;
            entry.sent
        };
        let mut result = connection.write(block * BLOCK as u64, &content(block, version));
        if result.is_ok() {
            known.lock().unwrap()[block as usize].acknowledged = version;
            if number % 64 == 63 {
                result = connection.flush();
            }
        }
        if result.is_err() {
            return;
        }
    }
}

/// Reads every block; what was under way is settled by what is found.
fn verify(socket: &std::path::Path, known: &mut [Known], round: u32) {
    let mut connection = Client::connect(socket);
    let mut buf = vec![0; BLOCK];
    for (block, entry) in known.iter_mut().enumerate() {
        connection.read((block * BLOCK) as u64, &mut buf).unwrap();
        let version = (entry.acknowledged..=entry.sent).find(|&version| {
            let zeroes = version == 0 && buf.iter().all(|&byte| byte == 0);
            zeroes || version > 0 && buf == content(block as u64, version)
        });
        let Some(version) = version else {
            let found = u64::from_le_bytes(buf[8..16].try_into().unwrap());
            let Known { acknowledged, sent } = *entry;
            panic!(
                "round {round}, block {block}: version {acknowledged} was acknowledged and \
                 {sent} sent, {found} is there"
            );
        };
        // An old version may not come back later.
        *entry = Known { acknowledged: version, sent: version };
    }
}

#[test]
fn acknowledged_writes_survive_a_kill_and_the_cache_stays_warm() {
    let dir = Dir::new("crash");
    let mut known = vec![Known::default(); BLOCKS as usize];
    let mut server = Server::start(on_reactors(create(&dir), 0), &dir);
    for round in 0..rounds() {
        let shared = Arc::new(Mutex::new(std::mem::take(&mut known)));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (shared, socket) = (Arc::clone(&shared), server.socket.clone());
                let seed = u64::from(round) << 8 | client << 1;
                std::thread::spawn(move || write_until_killed(&socket, client, &shared, seed))
            })
            .collect();
        // At any instant, but not before there is something to lose.
        loop {
            pause(Duration::from_millis(300 + u64::from(round) % 7 * 100));
            if written(&shared.lock().unwrap()) > 100 {
                break;
            }
            assert!(clients.iter().any(|client| !client.is_finished()), "all clients have failed");
        }
        server.kill();
        clients.into_iter().for_each(|client| client.join().unwrap());
        known = std::mem::take(&mut *shared.lock().unwrap());
        let written = written(&known);
        server = Server::start(on_reactors(serve(&dir), round + 1), &dir);
        assert!(server.summary.contains("after a crash"), "{}", server.summary);
        assert!(server.counter("cached_blocks") > 0, "the cache is cold after a restart");
        let misses = server.counter("read_misses");
        verify(&server.socket, &mut known, round);
        let missed = server.counter("read_misses") - misses;
        assert!(missed < BLOCKS - written as u64 / 2, "{missed} misses: the cache is cold");
    }
    assert!(server.stop().starts_with("stopped: "));
    let server = Server::start(serve(&dir), &dir);
    assert!(server.summary.contains("clean stop"), "{}", server.summary);
    verify(&server.socket, &mut known, u32::MAX);
}

#[test]
fn fio_verifies_what_it_wrote_before_and_after_a_kill() {
    if !have("fio") {
        return;
    }
    let dir = Dir::new("fio");
    let server = Server::start(create(&dir), &dir);
    let fio = |options: &[&str]| {
        let uri = format!("--uri=nbd+unix:///dev?socket={}", dir.path("sock").display());
        let output = Command::new("fio")
            .current_dir(&dir.0)
            .args(["--name=verify", "--ioengine=nbd", "--bs=4k", "--rw=randwrite", "--size=16m"])
            .args(["--iodepth=16", "--verify=crc32c", "--verify_fatal=1", "--randseed=5"])
            .arg(uri)
            .args(options)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &crate::common::stderr(&output);
        (output.status.success(), text)
    };
    let (ok, text) = fio(&["--end_fsync=1"]);
    if !ok && text.contains("engine nbd not loadable") {
        println!("skipped: this fio has no nbd engine");
        return;
    }
    assert!(ok, "{text}");
    server.kill();
    let server = Server::start(serve(&dir), &dir);
    let (ok, text) = fio(&["--verify_only=1"]);
    assert!(ok, "{text}");
    assert!(server.counter("read_hits") > 0);
    server.stop();
}

#[expect(clippy::disallowed_methods, reason = "a test's own thread may sleep")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

//! The same requests to a volume and to nbdkit's memory give the same answers.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{Client, Dir, Server, create, have, run, stderr};

const SIZE: u64 = 32 << 20;
/// Where most requests go, so that they meet again and again.
const BUSY: u64 = 1 << 20;

/// nbdkit with as much memory as the volume has; it ends with its test, however that ends.
struct Nbdkit(Child, PathBuf);

impl Nbdkit {
    fn start(dir: &Dir) -> Nbdkit {
        let socket = dir.path("nbdkit.sock");
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket);
        command.args(["memory", &SIZE.to_string()]).stdin(Stdio::null());
        let it = Nbdkit(command.spawn().unwrap(), socket);
        for _ in 0..500 {
            // Its socket is there before it listens.
            if UnixStream::connect(&it.1).is_ok() {
                return it;
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        panic!("nbdkit does not start");
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// xorshift64
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// A range in sectors: mostly short, in a busy place, and sometimes beyond the end.
    fn range(&mut self) -> (u64, usize) {
        let offset = match self.below(20) {
            0 => SIZE / 512 - self.below(4),
            1..6 => self.below(SIZE / 512),
            _ => self.below(BUSY / 512),
        } * 512;
        let sectors = if self.below(8) == 0 { self.below(600) } else { self.below(40) };
        (offset, (sectors as usize + 1) * 512)
    }
}

/// Durable when it is answered.
const FUA: u16 = 1;
/// Zeroes that are to be no slower than zeroes of a punched hole.
const FAST_ZERO: u16 = 16;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const CACHE: u16 = 5;
const ZERO: u16 = 6;

type Answer = Result<Vec<u8>, Option<i32>>;

/// Kind, flags, offset, length, data.
type Request = (u16, u16, u64, u32, Vec<u8>);

fn request(random: &mut Random) -> Request {
    let (offset, len) = random.range();
    let (kind, fill) = (random.below(12), random.below(256) as u8);
    // Also NO_HOLE, 2, of which only zeroes know.
    let flags = random.below(4) as u16;
    match kind {
        0..4 => (READ, 0, offset, len as u32, Vec::new()),
        4..7 => {
            let data = (0..len).map(|i| fill ^ (i / 512) as u8).collect();
            (WRITE, flags & FUA, offset, len as u32, data)
        }
        7 => (ZERO, flags, offset, len as u32, Vec::new()),
        8 => (CACHE, 0, offset.min(SIZE - 512), 512, Vec::new()),
        9 => (TRIM, flags & FUA, offset, len as u32, Vec::new()),
        10 => (ZERO, flags | FAST_ZERO, offset, len as u32, Vec::new()),
        _ => (FLUSH, 0, 0, 0, Vec::new()),
    }
}

fn ask(client: &mut Client, request: &Request) -> Answer {
    client.several(std::slice::from_ref(request)).remove(0)
}

fn read(client: &mut Client, offset: u64, len: u32) -> Vec<u8> {
    ask(client, &(READ, 0, offset, len, Vec::new())).unwrap()
}

/// A request whose answer, or what is read behind it, is the server's choice: it is one of those that are promised, and
/// from then on it stays what it is, for nbdkit is given the same.
fn choose(ours: &mut Client, theirs: &mut Client, request: &Request) {
    let (kind, _, offset, len, _) = *request;
    let before = read(theirs, offset, len);
    let (mine, judge) = (ask(ours, request), ask(theirs, request));
    assert_eq!(judge, Ok(Vec::new()), "nbdkit does all of it");
    let now = read(ours, offset, len);
    let zeroes = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    match mine {
        // What the cache holds is zeroes, and the origin has discarded the rest if it can.
        Ok(_) if kind == TRIM => {
            let mut sectors = now.chunks(512).zip(before.chunks(512));
            assert!(sectors.all(|(now, before)| now == before || zeroes(now)), "other bytes");
        }
        Ok(_) => assert!(zeroes(&now), "not zeroes"),
        Err(error) => {
            assert_eq!((kind, error), (ZERO, Some(libc::EOPNOTSUPP)));
            assert!(now == before, "refused, and changed");
        }
    }
    ask(theirs, &(WRITE, 0, offset, len, now)).unwrap();
}

/// A client that asks what is known of ranges, with structured replies and the context `base:allocation`.
struct Statuses(UnixStream);

/// No space is allocated; it reads as zeroes.
const HOLE: u32 = 1;
const IS_ZERO: u32 = 2;
const REQ_ONE: u16 = 8;
const BLOCK_STATUS: u16 = 7;

impl Statuses {
    fn connect(socket: &Path) -> Statuses {
        let mut it = Statuses(UnixStream::connect(socket).unwrap());
        it.0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        it.take(18);
        it.0.write_all(&3u32.to_be_bytes()).unwrap();
        let query = b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation";
        // Structured replies, the context, and the export that has no name.
        for (option, data) in [(8u32, &b""[..]), (10, query), (7, &[0; 6])] {
            it.0.write_all(b"IHAVEOPT").unwrap();
            it.0.write_all(&option.to_be_bytes()).unwrap();
            it.0.write_all(&(data.len() as u32).to_be_bytes()).unwrap();
            it.0.write_all(data).unwrap();
            loop {
                let head = it.take(20);
                let kind = word(&head[12..]);
                it.take(word(&head[16..]) as usize);
                assert!(kind < 1 << 31, "option {option} is refused: {kind:#x}");
                if kind == 1 {
                    break;
                }
            }
        }
        it
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Length and flags of the extents from `offset` on.
    fn ask(&mut self, flags: u16, offset: u64, len: u32) -> Vec<(u64, u32)> {
        let mut head = Vec::from(0x2560_9513u32.to_be_bytes());
        head.extend(flags.to_be_bytes());
        head.extend(BLOCK_STATUS.to_be_bytes());
        head.extend([7; 8]);
        head.extend(offset.to_be_bytes());
        head.extend(len.to_be_bytes());
        self.0.write_all(&head).unwrap();
        let reply = self.take(20);
        assert_eq!(reply[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 5], "one chunk of a status");
        let extents = self.take(word(&reply[16..]) as usize);
        let extents = extents[4..].chunks(8);
        extents.map(|extent| (word(extent).into(), word(&extent[4..]))).collect()
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

/// Asks both about parts of what they hold, which is `content`. They need not know the same, for nbdkit tells pages of
/// 32 KiB apart; but neither of them takes for zeroes, or for a hole, what is data to the other.
fn compare_statuses(sockets: [&Path; 2], content: &[u8], random: &mut Random) {
    let [mut ours, mut theirs] = sockets.map(Statuses::connect);
    for _ in 0..200 {
        let (offset, len) = random.range();
        let len = len.min((SIZE - offset) as usize);
        if len == 0 {
            continue;
        }
        let (mut at, end) = (offset, offset + len as u64);
        while at < end {
            let only_one = if random.below(4) == 0 { REQ_ONE } else { 0 };
            let left = (end - at) as u32;
            let extents = ours.ask(only_one, at, left);
            let what = format!("{only_one} {at} {left}: {extents:?}");
            assert!(!extents.is_empty() && extents.iter().all(|it| it.0 > 0), "{what}");
            assert!(
                extents.windows(2).all(|it| it[0].1 != it[1].1),
                "one extent is told as two: {what}"
            );
            assert!(only_one == 0 || extents.len() == 1, "{what}");
            let covered: u64 = extents.iter().map(|extent| extent.0).sum();
            assert!(covered <= u64::from(left), "more than was asked for: {what}");
            assert!(only_one != 0 || covered == u64::from(left), "less than was asked for: {what}");
            tells_the_truth(&extents, at, content);
            at += covered;
        }
        tells_the_truth(&theirs.ask(0, offset, len as u32), offset, content);
    }
}

/// Whether what is said to be zeroes, or a hole, is zeroes.
fn tells_the_truth(extents: &[(u64, u32)], mut at: u64, content: &[u8]) {
    for (len, flags) in extents {
        let end = (at + len).min(SIZE);
        let bytes = &content[at as usize..end as usize];
        let is_zero = || bytes.iter().all(|&byte| byte == 0);
        assert!(flags & (HOLE | IS_ZERO) == 0 || is_zero(), "{flags} {at} {len} in {extents:?}");
        at = end;
    }
}

/// Everything there is, through its server.
fn content(socket: &Path) -> Vec<u8> {
    let mut client = Client::connect(socket);
    let mut all = vec![0; SIZE as usize];
    for (index, part) in all.chunks_mut(1 << 20).enumerate() {
        client.read((index as u64) << 20, part).unwrap();
    }
    all
}

#[test]
fn random_requests_get_the_answers_of_nbdkit() {
    if !have("nbdkit") || !have("nbdinfo") {
        return;
    }
    let modes = ["writeback", "writethrough", "readonly", "writeonly", "bypass"];
    // Other requests in each run; `FOREBAY_SEED` plays those of an earlier one again.
    let clock = || u64::from(std::process::id()) * 5 + 1;
    let first = std::env::var("FOREBAY_SEED").map_or_else(|_| clock(), |it| it.parse().unwrap());
    println!("FOREBAY_SEED={first}");
    for (seed, mode) in (first..).zip(modes) {
        let dir = Dir::new("oracle");
        let mut command = create(&dir);
        command.args(["--mode", mode, "--reactors", "2", "--cache-block-bytes", "4K"]);
        let server = Server::start(command, &dir);
        let nbdkit = Nbdkit::start(&dir);
        let connect = |socket: &Path| [Client::connect(socket), Client::connect(socket)];
        let (mut ours, mut theirs) = (connect(&server.socket), connect(&nbdkit.1));
        let mut random = Random(seed);
        for number in 0..500 {
            let request = request(&mut random);
            let (ours, theirs) = (&mut ours[number % 2], &mut theirs[number % 2]);
            let (kind, flags, offset, len, _) = request;
            let what = || {
                format!(
                    "FOREBAY_SEED={first}, {mode}, request {number}: {kind} {flags} {offset} {len}"
                )
            };
            println!("{}", what());
            let is_choice = kind == TRIM || flags & FAST_ZERO != 0;
            if is_choice && offset + u64::from(len) <= SIZE {
                choose(ours, theirs, &request);
            } else {
                assert!(ask(ours, &request) == ask(theirs, &request), "{}", what());
            }
        }
        drop((ours, theirs));
        let expected = content(&nbdkit.1);
        assert!(content(&server.socket) == expected, "{mode}");
        compare_statuses([&server.socket, &nbdkit.1], &expected, &mut random);
        // Some that are not at home yet, however long the rest has taken.
        let mut expected = expected;
        expected[..1 << 20].fill(0);
        let zeroed = ask(&mut Client::connect(&server.socket), &(ZERO, 0, 0, 1 << 20, Vec::new()));
        assert_eq!(zeroed, Ok(Vec::new()));
        // What is said to be zeroes is, also to another client.
        let uri = format!("nbd+unix:///?socket={}", server.socket.display());
        let output = run(Command::new("timeout").args(["60", "nbdinfo", "--map", &uri]));
        assert!(output.status.success(), "{}", stderr(&output));
        let (mut covered, mut zeroes) = (0, 0);
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let numbers: Vec<usize> =
                line.split_whitespace().take(3).map(|word| word.parse().unwrap()).collect();
            let [start, len, flags] = numbers[..] else { panic!("{line}") };
            assert_eq!(start, covered, "no gaps");
            covered += len;
            if flags == 3 {
                zeroes += len;
                assert!(expected[start..covered].iter().all(|&byte| byte == 0), "{mode}: {line}");
            }
        }
        assert_eq!(covered as u64, SIZE);
        let logs_zeroes = ["writeback", "writeonly"].contains(&mode);
        assert!(zeroes > 0 || !logs_zeroes, "{mode}: {zeroes} B");
        server.stop();
    }
}

/// A part of the volume for each request, so that their order makes no difference.
const PART: u64 = 32 << 10;
const PARTS: u64 = BUSY / PART;

fn shuffled<T>(mut all: Vec<T>, random: &mut Random) -> Vec<T> {
    for index in (1..all.len()).rev() {
        all.swap(index, random.below(index as u64 + 1) as usize);
    }
    all
}

/// Many at a time, in another order on each side.
#[test]
fn requests_in_flight_get_the_answers_of_nbdkit_and_leave_the_same() {
    if !have("nbdkit") {
        return;
    }
    let clock = || u64::from(std::process::id()) * 5 + 1;
    let seed = std::env::var("FOREBAY_SEED").map_or_else(|_| clock(), |it| it.parse().unwrap());
    println!("FOREBAY_SEED={seed}");
    for mode in ["writeback", "writethrough", "readonly"] {
        let dir = Dir::new("oracle-flight");
        let mut command = create(&dir);
        command.args(["--mode", mode, "--reactors", "2", "--cache-block-bytes", "4K"]);
        let server = Server::start(command, &dir);
        let nbdkit = Nbdkit::start(&dir);
        let (mut ours, mut theirs) = (Client::connect(&server.socket), Client::connect(&nbdkit.1));
        let mut random = Random(seed);
        for round in 0..40 {
            let one = |part: u64, random: &mut Random| {
                let start = random.below(PART / 512);
                let sectors = random.below(PART / 512 - start) + 1;
                let (offset, len) = (part * PART + start * 512, (sectors * 512) as u32);
                match random.below(5) {
                    0..2 => (READ, 0, offset, len, Vec::new()),
                    2 => (ZERO, 0, offset, len, Vec::new()),
                    _ => {
                        let fill = random.below(256) as u8;
                        (WRITE, random.below(2) as u16, offset, len, vec![fill; len as usize])
                    }
                }
            };
            let requests: Vec<(usize, Request)> =
                (0..PARTS).map(|part| (part as usize, one(part, &mut random))).collect();
            let mut answers = [&mut ours, &mut theirs].map(|client| {
                let order = shuffled(requests.clone(), &mut random);
                let (places, order): (Vec<_>, Vec<_>) = order.into_iter().unzip();
                let mut answers: Vec<_> = places.into_iter().zip(client.several(&order)).collect();
                answers.sort_by_key(|(place, _)| *place);
                answers
            });
            let [mine, judge] = &mut answers;
            for ((mine, judge), (_, request)) in mine.iter().zip(judge).zip(&requests) {
                let (kind, flags, offset, len, _) = request;
                let what = format!("FOREBAY_SEED={seed}, {mode}, round {round}");
                assert!(mine.1 == judge.1, "{what}: {kind} {flags} {offset} {len}");
            }
        }
        drop((ours, theirs));
        assert!(content(&server.socket) == content(&nbdkit.1), "FOREBAY_SEED={seed}, {mode}");
        server.stop();
    }
}

/// Reads, trims, prefetches and zeroes beyond the end. Two answers differ on purpose: nbdkit's memory has no sectors, and
/// takes what is not aligned, which here is refused as the protocol has it for the smallest block.
#[test]
fn what_lies_outside_is_refused_as_nbdkit_refuses_it() {
    if !have("nbdkit") {
        return;
    }
    let dir = Dir::new("oracle-errors");
    let server = Server::start(create(&dir), &dir);
    let nbdkit = Nbdkit::start(&dir);
    let (mut ours, mut theirs) = (Client::connect(&server.socket), Client::connect(&nbdkit.1));
    let mut ask = |kind, flags, offset, len, data: &[u8]| {
        let errno = |client: &mut Client| {
            client.flagged(kind, flags, offset, len, data).err().and_then(|it| it.raw_os_error())
        };
        (errno(&mut ours), errno(&mut theirs))
    };
    for (offset, len) in [(SIZE, 512), (SIZE - 512, 1024), (u64::MAX - 511, 512)] {
        for (kind, flags) in [(0, 0), (4, 0), (4, FUA), (5, 0), (6, 0), (6, 2), (6, 3)] {
            let (mine, judge) = ask(kind, flags, offset, len, &[]);
            assert!(mine.is_some(), "{kind} {flags} {offset} {len}");
            assert_eq!(mine, judge, "{kind} {flags} {offset} {len}");
        }
        let (mine, judge) = ask(1, 0, offset, len, &vec![1; len as usize]);
        assert_eq!((mine, judge), (Some(libc::ENOSPC), Some(libc::ENOSPC)), "{offset} {len}");
    }
    for (kind, flags) in [(4, 0), (4, FUA), (6, 16), (6, 16 | FUA)] {
        assert!(ask(kind, flags, 4096, 512, &[]).1.is_none(), "nbdkit takes {kind} {flags}");
    }
    assert_eq!(ask(4, 0, 1, 512, &[]), (Some(libc::EINVAL), None), "not aligned");
    drop((ours, theirs));
    server.stop();
}

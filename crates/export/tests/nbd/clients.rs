//! Real clients against a real server, over a Unix socket and loopback TCP.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::protocol::{option, request};
use crate::support::real_server::{RealServer, SIZE, client, installed, run};

/// Bytes that repeat nowhere near.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[test]
fn nbdinfo_shows_what_is_announced() {
    if !installed(&["nbdinfo"]) {
        return;
    }
    let server = RealServer::start();
    for uri in [server.unix_uri("fixed"), server.tcp_uri("fixed")] {
        let text = run("nbdinfo", &["--json", &uri]);
        for part in [
            "\"protocol\": \"newstyle-fixed\"",
            "\"structured\": true",
            "\"export-name\": \"fixed\"",
            "\"description\": \"fixed in memory\"",
            "\"export-size\": 67108864",
            "\"is_read_only\": true",
            "\"can_multi_conn\": true",
            "\"can_df\": true",
            "\"can_fast_zero\": true",
            "\"can_flush\": true",
            "\"can_fua\": true",
            "\"can_trim\": true",
            "\"can_zero\": true",
            "\"can_cache\": true",
            "\"base:allocation\"",
            "\"forebay:tier\"",
            "\"block_size_minimum\": 512",
            "\"block_size_preferred\": 4096",
            "\"block_size_maximum\": 33554432",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
    let list = run("nbdinfo", &["--list", &server.unix_uri("")]);
    for name in ["plain", "jitter", "fixed"] {
        assert!(list.contains(&format!("export=\"{name}\"")), "{name} is missing in {list}");
    }
    let unknown = client("nbdinfo", &[&server.unix_uri("none")]).output().unwrap();
    assert!(!unknown.status.success());
    server.stop();
}

/// The lines of a table as the numbers that they begin with.
fn numbers(table: &str) -> Vec<Vec<u64>> {
    let line = |line: &str| line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    table.lines().map(line).collect()
}

#[test]
fn nbdinfo_and_qemu_img_map_what_is_known() {
    if !installed(&["nbdinfo", "qemu-io", "qemu-img"]) {
        return;
    }
    let server = RealServer::start();
    let (uri, k) = (server.unix_uri("plain"), 1024);
    let fill = ["-f", "raw", "-c", "write -P 1 1M 64k", "-c", "write -P 7 1088k 512", &uri];
    run("qemu-io", &fill);
    let expected = [
        vec![0, k * k, 3],
        vec![k * k, 64 * k + 512, 0],
        vec![1088 * k + 512, SIZE as u64 - 1088 * k - 512, 3],
    ];
    assert_eq!(numbers(&run("nbdinfo", &["--map", &uri])), expected);
    let expected = [
        vec![0, k * k, 4],
        vec![k * k, 64 * k, 2],
        vec![1088 * k, 512, 8],
        vec![1088 * k + 512, SIZE as u64 - 1088 * k - 512, 4],
    ];
    assert_eq!(numbers(&run("nbdinfo", &["--map=forebay:tier", &uri])), expected);
    let map = run("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    let starts: Vec<_> = map.lines().filter(|line| line.contains("\"data\": true")).collect();
    assert_eq!(starts.len(), 1, "{map}");
    assert!(starts[0].contains("\"start\": 1048576"), "{map}");
    server.stop();
}

#[test]
fn copies_leave_out_what_is_known_to_be_zeroes() {
    if !installed(&["nbdcopy", "qemu-img"]) {
        return;
    }
    let server = RealServer::start();
    let (input, output) = (server.file("input"), server.file("output"));
    let mut bytes = vec![0; SIZE];
    bytes[3 << 20..5 << 20].copy_from_slice(&noise(2 << 20));
    std::fs::write(&input, &bytes).unwrap();
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    let uri = server.unix_uri("jitter");
    run("nbdcopy", &[input, &uri]);
    let before = server.progress.load(Ordering::Relaxed);
    run("nbdcopy", &["--request-size=65536", &uri, output]);
    let requests = server.progress.load(Ordering::Relaxed) - before;
    assert!(requests < SIZE / 65536 / 4, "{requests} requests for 2 MiB of data");
    assert!(std::fs::read(output).unwrap() == bytes);
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, output]);
    assert!(std::fs::read(output).unwrap() == bytes);
    server.stop();
}

#[test]
fn nbdcopy_copies_in_and_out_over_many_connections() {
    if !installed(&["nbdcopy"]) {
        return;
    }
    let server = RealServer::start();
    let (input, output) = (server.file("input"), server.file("output"));
    std::fs::write(&input, noise(SIZE)).unwrap();
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    for export in ["plain", "jitter"] {
        let (unix, tcp) = (server.unix_uri(export), server.tcp_uri(export));
        run("nbdcopy", &["--connections=4", "--requests=64", "--flush", input, &unix]);
        run("nbdcopy", &["--connections=4", "--requests=64", &tcp, output]);
        assert!(std::fs::read(output).unwrap() == noise(SIZE), "{export}");
    }
    run("nbdcopy", &["--request-size=33554432", &server.tcp_uri("plain"), output]);
    assert!(std::fs::read(output).unwrap() == noise(SIZE));
    run("nbdcopy", &[&server.unix_uri("jitter"), &server.tcp_uri("plain")]);
    assert!(server.stop() == noise(SIZE));
}

#[test]
fn qemu_io_writes_zeroes_discards_and_flushes() {
    if !installed(&["qemu-io"]) {
        return;
    }
    let server = RealServer::start();
    for uri in [server.unix_uri("jitter"), server.tcp_uri("plain")] {
        let text = run(
            "qemu-io",
            &[
                "-f",
                "raw",
                "-c",
                "write -P 0x5a 1M 3M",
                "-c",
                "write -f -P 0x77 2M 64k",
                "-c",
                "write -z 2560k 4k",
                "-c",
                "write -z -u 3M 512k",
                "-c",
                "discard 3584k 64k",
                "-c",
                "flush",
                "-c",
                "read -P 0x5a 1M 1M",
                "-c",
                "read -P 0x77 2M 64k",
                "-c",
                "read -P 0 2560k 4k",
                "-c",
                "read -P 0 3M 512k",
                "-c",
                "read -P 0x5a 2564k 508k",
                "-c",
                "aio_write -P 1 8M 1M",
                "-c",
                "aio_write -P 2 9M 1M",
                "-c",
                "aio_flush",
                "-c",
                "read -P 1 8M 1M",
                "-c",
                "read -P 2 9M 1M",
                "-c",
                "write -P 3 512 512",
                "-c",
                "read -P 3 512 512",
                &uri,
            ],
        );
        assert!(!text.contains("verification failed"), "{text}");
    }
    let uri = server.unix_uri("fixed");
    let refused = client("qemu-io", &["-f", "raw", "-c", "write 0 4k", &uri]).output().unwrap();
    assert!(!refused.status.success(), "a read-only export takes no write");
    server.stop();
}

#[test]
fn qemu_img_converts_and_compares() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let server = RealServer::start();
    let input = server.file("input");
    let mut bytes = noise(SIZE);
    bytes[8 << 20..40 << 20].fill(0); // written as zeroes
    std::fs::write(&input, &bytes).unwrap();
    let input = input.to_str().unwrap();
    let uri = server.tcp_uri("plain");
    run("qemu-img", &["convert", "-n", "-W", "-f", "raw", "-O", "raw", input, &uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", input, &uri]);
    let jitter = server.unix_uri("jitter");
    run("qemu-img", &["bench", "-f", "raw", "-d", "64", "-c", "20000", "-w", &jitter]);
    assert!(server.stop() == bytes);
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !installed(&["fio"]) {
        return;
    }
    let server = RealServer::start();
    for uri in [server.unix_uri("jitter"), server.tcp_uri("plain")] {
        let uri = format!("--uri={uri}");
        run(
            "fio",
            &[
                "--name=verify",
                "--ioengine=nbd",
                &uri,
                "--rw=randwrite",
                "--bsrange=512-64k",
                "--blockalign=512",
                "--size=48m",
                "--iodepth=64",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--do_verify=1",
                "--verify_state_save=0", // it would be written to the working directory
                "--fsync=100",
            ],
        );
    }
    server.stop();
}

/// Ends its process by its id when the test ends, however it ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A busy client in one process, which ends by itself only after minutes.
fn fio_for_long(uri: &str, pattern: &str) -> Child {
    Command::new("fio")
        .args(["--name=busy", "--ioengine=nbd", &format!("--uri={uri}"), "--thread"])
        .args([&format!("--rw={pattern}"), "--bs=64k", "--size=64m", "--iodepth=64"])
        .args(["--time_based", "--runtime=300"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("fio starts")
}

#[test]
fn a_killed_client_disturbs_nobody() {
    if !installed(&["fio", "nbdcopy"]) {
        return;
    }
    let server = RealServer::start();
    let input = server.file("input");
    std::fs::write(&input, noise(SIZE)).unwrap();
    for round in 0..3 {
        let before = server.progress.load(Ordering::Relaxed);
        let uri = if round == 1 { server.tcp_uri("jitter") } else { server.unix_uri("jitter") };
        let mut victim = Running(fio_for_long(&uri, "randrw"));
        while server.progress.load(Ordering::Relaxed) < before + 500 {
            assert!(victim.0.try_wait().unwrap().is_none(), "the victim runs until it is killed");
            std::thread::park_timeout(Duration::from_millis(1));
        }
        let copy = client("nbdcopy", &[input.to_str().unwrap(), &server.unix_uri("plain")])
            .spawn()
            .unwrap();
        drop(victim);
        assert!(Running(copy).0.wait().unwrap().success());
    }
    assert!(server.stop() == noise(SIZE));
}

#[test]
fn clients_that_leave_without_taking_replies_leave_nothing_behind() {
    let server = RealServer::start();
    for round in 0..100 {
        let mut stream = UnixStream::connect(server.socket()).unwrap();
        stream.write_all(&[0, 0, 0, 3]).unwrap();
        stream.write_all(&option(1, b"jitter")).unwrap();
        let mut greeting = [0; 28];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(greeting[..16], *b"NBDMAGICIHAVEOPT");
        let requests: Vec<u8> = (0..200)
            .flat_map(|n| {
                let kind = u16::try_from(n % 2).unwrap();
                let mut bytes = request(kind, 0, n, n * 4096, 4096);
                bytes.resize(28 + 4096 * usize::from(kind), 1);
                bytes
            })
            .collect();
        // The server may stop reading while replies are not taken: send what fits.
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write(&requests[..requests.len() - round * 7]);
    }
    server.stop();
}

#[test]
fn stopping_with_busy_clients_ends_their_connections() {
    if !installed(&["fio"]) {
        return;
    }
    let server = RealServer::start();
    let busy = Running(fio_for_long(&server.unix_uri("jitter"), "randread"));
    while server.progress.load(Ordering::Relaxed) < 500 {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    server.stop();
    drop(busy);
}

#[test]
fn nbd_client_lists_and_where_the_kernel_has_nbd_attaches() {
    if !installed(&["nbd-client"]) {
        return;
    }
    let server = RealServer::start();
    let socket = server.socket();
    let socket = socket.to_str().unwrap();
    let list = run("nbd-client", &["-l", "-unix", socket]);
    for name in ["plain", "jitter", "fixed"] {
        assert!(list.lines().any(|line| line.starts_with(name)), "{name} is missing in {list}");
    }
    let device = Path::new("/dev/nbd0");
    let is_free = std::fs::read_to_string("/sys/block/nbd0/size").is_ok_and(|it| it.trim() == "0");
    if !device.exists() || !is_free {
        eprintln!("skipped: attaching: the kernel has no free /dev/nbd0");
        server.stop();
        return;
    }
    let device = device.to_str().unwrap();
    if !client("nbd-client", &["-unix", socket, "-N", "plain", device]).status().unwrap().success()
    {
        eprintln!("skipped: attaching: nbd-client may not");
        server.stop();
        return;
    }
    let (input, output) = (server.file("input"), server.file("output"));
    std::fs::write(&input, noise(SIZE)).unwrap();
    let (from, to) = (format!("if={}", input.display()), format!("of={}", output.display()));
    run("dd", &[&from, &format!("of={device}"), "bs=1M", "oflag=direct", "conv=fsync"]);
    run("dd", &[&format!("if={device}"), &to, "bs=1M", "iflag=direct"]);
    run("nbd-client", &["-d", device]);
    assert!(std::fs::read(&output).unwrap() == noise(SIZE));
    assert!(server.stop() == noise(SIZE));
}

//! What NBD clients are told of a volume, by the real binary.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::common::{Client, Dir, Server, create, have, run, serve, stderr};

/// What a client prints.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = run(Command::new("timeout").args(["60", program]).args(arguments));
    assert!(output.status.success(), "{program} {arguments:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Offset, length and flags of the lines of `nbdinfo --map`.
fn map(uri: &str, context: &str) -> Vec<Vec<u64>> {
    let table = output("nbdinfo", &[&format!("--map={context}"), uri]);
    let line =
        |line: &str| line.split_whitespace().take(3).map(|word| word.parse().unwrap()).collect();
    table.lines().map(line).collect()
}

#[test]
fn block_status_follows_a_block_from_the_origin_to_the_cache_and_back() {
    if !have("nbdinfo") || !have("qemu-img") {
        return;
    }
    let (dir, k) = (Dir::new("status"), 1024);
    let mut command = create(&dir);
    command.args(["--reactors", "3", "--cache-block-bytes", "4K"]);
    let server = Server::start(command, &dir);
    let uri = format!("nbd+unix:///?socket={}", server.socket.display());
    let end = 32 << 20;
    assert_eq!(map(&uri, "base:allocation"), [[0, end, 0]], "the origin may hold anything");
    assert_eq!(map(&uri, "forebay:tier"), [[0, end, 8]]);
    // The clients are on different reactors.
    let mut clients: Vec<_> = (0..3).map(|_| Client::connect(&server.socket)).collect();
    clients[0].write(64 * k, &[7; 4096]).unwrap();
    clients[1].read(128 * k, &mut [0; 4096]).unwrap();
    clients[2].write_zeroes(256 * k, 8192).unwrap();
    clients[0].prefetch(512 * k, 8192).unwrap();
    let table = [
        [0, 64 * k, 8],
        [64 * k, 4 * k, 4],
        [68 * k, 60 * k, 8],
        [128 * k, 4 * k, 2],
        [132 * k, 124 * k, 8],
        [256 * k, 8 * k, 4],
        [264 * k, 248 * k, 8],
        [512 * k, 8 * k, 2],
        [520 * k, end - 520 * k, 8],
    ];
    // What was read from the origin is put into the cache behind the reply.
    let mut told = Vec::new();
    for _ in 0..200 {
        told = map(&uri, "forebay:tier");
        if told == table {
            break;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
    assert_eq!(told, table);
    let zeroes = [[0, 256 * k, 0], [256 * k, 8 * k, 3], [264 * k, end - 264 * k, 0]];
    assert_eq!(map(&uri, "base:allocation"), zeroes);
    let json = output("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    let holes: Vec<_> = json.lines().filter(|line| line.contains("\"data\": false")).collect();
    assert!(holes.len() == 1 && holes[0].contains("\"start\": 262144, \"length\": 8192"), "{json}");
    drop(clients);
    server.stop();
}

/// What is read often enough comes into a tier of RAM, and is told to be there.
#[test]
fn block_status_names_what_is_in_ram() {
    if !have("nbdinfo") {
        return;
    }
    let (dir, k) = (Dir::new("status-ram"), 1024);
    let mut command = create(&dir);
    command.args(["--ram", "8M", "--cache-block-bytes", "4K"]);
    let server = Server::start(command, &dir);
    let uri = format!("nbd+unix:///?socket={}", server.socket.display());
    let mut client = Client::connect(&server.socket);
    let mut told = Vec::new();
    for _ in 0..200 {
        client.read(128 * k, &mut [0; 4096]).unwrap();
        told = map(&uri, "forebay:tier");
        if told.iter().any(|line| line[2] == 1) {
            break;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
    let end = 32 << 20;
    let table = [[0, 128 * k, 8], [128 * k, 4 * k, 1], [132 * k, end - 132 * k, 8]];
    assert_eq!(told, table);
    drop(client);
    server.stop();
}

#[test]
fn a_read_only_export_says_so_and_takes_no_write() {
    if !have("nbdinfo") {
        return;
    }
    let dir = Dir::new("read-only");
    let server = Server::start(create(&dir), &dir);
    Client::connect(&server.socket).write(4096, &[7; 4096]).unwrap();
    server.stop();
    let mut command = serve(&dir);
    command.arg("--read-only");
    let server = Server::start(command, &dir);
    let uri = format!("nbd+unix:///?socket={}", server.socket.display());
    assert!(output("nbdinfo", &[&uri]).contains("is_read_only: true"));
    let mut client = Client::connect(&server.socket);
    let mut buf = [0; 4096];
    client.read(4096, &mut buf).unwrap();
    assert_eq!(buf, [7; 4096], "what was dirty is served");
    let refused = [client.write(0, &[1; 512]), client.write_zeroes(0, 512)];
    for error in refused.map(|result| result.unwrap_err()) {
        assert_eq!(error.raw_os_error(), Some(1));
    }
    client.flush().unwrap();
    drop(client);
    server.stop();
}

#[test]
fn a_client_that_breaks_the_protocol_is_told_of_in_one_line_and_disturbs_nobody() {
    let dir = Dir::new("hostile");
    let log = dir.path("log");
    let mut command = create(&dir);
    command.stderr(std::fs::File::create(&log).unwrap()).args(["--port", "0"]);
    let server = Server::start(command, &dir);
    let address = server.line_with("serving nbd://");
    let address = address["serving nbd://".len()..].trim_end_matches("/dev").to_owned();
    let mut bystander = Client::connect(&server.socket);
    let before = std::fs::read_to_string(&log).unwrap().lines().count();
    for _ in 0..3 {
        let mut stranger = TcpStream::connect(&address).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut rest = Vec::new();
        let _ = stranger.read_to_end(&mut rest); // the server closes
        bystander.write(0, &[1; 512]).unwrap();
    }
    drop(Client::connect(&server.socket)); // one that just leaves
    drop(bystander);
    server.stop();
    let log = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<_> = log.lines().skip(before).collect();
    assert_eq!(lines.len(), 3, "{log}");
    for line in lines {
        assert!(line.starts_with("note: connection of 127.0.0.1:"), "{log}");
        assert!(line.ends_with(" to \"dev\" closed: it does not speak NBD"), "{log}");
    }
}

//! Volumes whose origins are exports of NBD servers: they are there or not, are ended, forget what was not flushed.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use crate::acceptance::tonight;
use crate::common::daemon::{
    Daemon, VOLUME_BYTES, content, read_all, until, until_served, written,
};
use crate::common::{Client, Dir, have, run, signal};

/// An nbdkit, ended with the test.
struct Kit {
    arguments: Vec<String>,
    socket: PathBuf,
    child: Child,
}

impl Kit {
    /// On a socket, with these arguments.
    fn start(dir: &Dir, arguments: &[&str]) -> Kit {
        let socket = dir.path("origin.sock");
        let arguments: Vec<String> = arguments.iter().map(|&a| a.to_owned()).collect();
        let child = Kit::spawn(&socket, &arguments);
        Kit { arguments, socket, child }
    }

    fn spawn(socket: &Path, arguments: &[String]) -> Child {
        let _ = std::fs::remove_file(socket);
        let mut command = Command::new("nbdkit");
        command.args(["-f", "--exit-with-parent", "-U"]).arg(socket).args(arguments);
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("nbdkit listens", || UnixStream::connect(socket).is_ok());
        child
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn again(&mut self) {
        self.child = Kit::spawn(&self.socket, &self.arguments);
    }

    /// Starts it again if it has ended by itself: once in a while it does when it goes on and all of its clients are gone.
    fn revive(&mut self) {
        if let Some(end) = self.child.try_wait().unwrap() {
            println!("nbdkit has ended by itself: {end}");
            self.again();
        }
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }
}

impl Drop for Kit {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A daemon with a pool of two cache devices.
fn pooled(name: &str) -> Daemon {
    let daemon = Daemon::new(name);
    let (first, second) = (daemon.ssd("ssd-0"), daemon.ssd("ssd-1"));
    let ssds = [first.to_str().unwrap(), second.to_str().unwrap()];
    let create = ["pool", "create", "fast", "--ssd", ssds[0], "--ssd", ssds[1]];
    // Tests share a disk with whatever else runs.
    daemon.tell(&[&create[..], &["--device-deadline", "5m"]].concat());
    daemon
}

fn add(daemon: &Daemon, uri: &str) {
    daemon.tell(&["volume", "add", "fast/vm", "--origin", uri]);
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    until_served(daemon);
}

/// A daemon with a volume whose origin is this file, served by an nbdkit; nothing where there is none.
fn behind_kit(name: &str) -> Option<(Daemon, Kit, PathBuf)> {
    if !have("nbdkit") {
        return None;
    }
    let daemon = pooled(name);
    let file = daemon.dir.path("disk");
    std::fs::write(&file, content(1, VOLUME_BYTES)).unwrap();
    let kit = Kit::start(&daemon.dir, &["file", file.to_str().unwrap()]);
    add(&daemon, &kit.uri(""));
    Some((daemon, kit, file))
}

fn state(daemon: &Daemon) -> String {
    daemon.json(&["volume", "show", "fast/vm"])["state"].as_str().unwrap().to_owned()
}

/// The same as [`until_served`] behind a server that was stopped for a while.
fn until_served_from(daemon: &Daemon, kit: &mut Kit) {
    until("its origin is there", || {
        kit.revive();
        state(daemon) == "online"
    });
    until_served(daemon);
}

/// Brings all home; an origin that was gone for a moment may have it fail once.
fn flush(daemon: &Daemon) {
    until("all is on the origin", || daemon.ask(&["volume", "flush", "fast/vm"]).status.success());
}

#[test]
fn a_volume_of_an_export_is_there_before_and_after_its_server() {
    if !have("nbdkit") {
        return;
    }
    let mut daemon = pooled("remote");
    let file = daemon.dir.path("disk");
    std::fs::write(&file, content(1, VOLUME_BYTES)).unwrap();
    let mut kit = Kit::start(&daemon.dir, &["file", file.to_str().unwrap()]);
    let uri = kit.uri("");
    let add_it = ["volume", "add", "fast/vm", "--origin", &uri];
    let planned = daemon.tell(&[&add_it[..], &["--dry-run"]].concat());
    assert!(planned.contains(&uri) && planned.contains("planned"), "{planned}");
    assert!(!daemon.tell(&["volume", "list"]).contains("fast/vm"));
    add(&daemon, &uri);
    assert!(daemon.tell(&["volume", "list"]).contains(&uri));
    assert!(read_all(&daemon.dir.path("nbd")) == content(1, VOLUME_BYTES));
    let all = written(&daemon, 2);
    flush(&daemon);
    assert!(std::fs::read(&file).unwrap() == all);

    // Gone while it is used, and back; what was flushed has not to be told of.
    kit.kill();
    until("it is missed", || state(&daemon) == "origin-missing");
    let shown = || daemon.tell(&["volume", "show", "fast/vm"]);
    until("it is known why", || shown().contains("its server cannot be reached"));
    assert!(daemon.tell(&["status"]).contains("without origin"));
    until("it is an event", || daemon.tell(&["events"]).contains("origin-missing"));
    let all = written(&daemon, 3);
    // Longer than any request waits for it.
    let flushing = daemon.command_of(&["volume", "flush", "fast/vm"]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(36));
    let jobs = daemon.tell(&["job", "list"]);
    assert!(jobs.contains("running") && jobs.contains("its server cannot be reached"), "{jobs}");
    kit.again();
    assert!(flushing.wait_with_output().unwrap().status.success());
    assert_eq!(state(&daemon), "online");
    assert!(std::fs::read(&file).unwrap() == all);
    // Away for a moment, with something that it had not flushed.
    let all = written(&daemon, 5);
    let flushing = daemon.command_of(&["volume", "flush", "fast/vm"]).spawn().unwrap();
    kit.kill();
    kit.again();
    assert!(flushing.wait_with_output().unwrap().status.success());
    assert!(std::fs::read(&file).unwrap() == all);

    // Gone before the daemon starts, and back later.
    daemon.stop();
    kit.kill();
    daemon.start();
    until("it is missed", || state(&daemon) == "origin-missing");
    kit.again();
    until_served(&daemon);
    assert!(read_all(&daemon.dir.path("nbd")) == all);
    // Dirty data is kept by a daemon that is killed while the server is gone.
    let all = written(&daemon, 4);
    kit.kill();
    daemon.kill();
    daemon.start();
    kit.again();
    until_served(&daemon);
    flush(&daemon);
    assert!(std::fs::read(&file).unwrap() == all);
    daemon.tell(&["export", "remove", "fast/vm"]);
    daemon.tell(&["volume", "remove", "fast/vm", "--yes"]);
    assert!(std::fs::read(&file).unwrap() == all);
}

#[test]
fn fio_does_not_notice_that_the_server_is_killed_and_started_again() {
    if !have("nbdkit") || !have("fio") {
        return;
    }
    for mode in ["writeback", "writethrough"] {
        let daemon = pooled("remote-fio");
        let file = daemon.dir.path("disk");
        std::fs::write(&file, content(1, VOLUME_BYTES)).unwrap();
        let delays = ["rdelay=1ms", "wdelay=1ms"];
        let arguments = [&["--filter=delay", "file", file.to_str().unwrap()], &delays[..]].concat();
        let mut kit = Kit::start(&daemon.dir, &arguments);
        daemon.tell(&["volume", "add", "fast/vm", "--origin", &kit.uri(""), "--mode", mode]);
        let socket = daemon.dir.path("nbd");
        daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
        until_served(&daemon);
        let mut fio = Command::new("fio");
        fio.args(["--name=verify", "--ioengine=nbd", "--rw=randrw", "--bsrange=4k-64k"]);
        // Both rates: reads alone would be hits, and use up what fio may move at once.
        fio.args(["--size=32m", "--iodepth=8", "--rate=6m,6m", "--output-format=terse"]);
        fio.args(["--verify=crc32c", "--verify_state_save=0", "--verify_fatal=1", "--do_verify=1"]);
        fio.arg(format!("--uri=nbd+unix:///?socket={}", socket.display()));
        let mut fio = fio.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut kills = 0;
        while fio.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(700));
            kit.kill();
            std::thread::sleep(std::time::Duration::from_millis(100));
            kit.again();
            kills += 1;
        }
        let output = fio.wait_with_output().unwrap();
        assert!(output.status.success(), "{mode}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(kills > 1, "{mode}: {kills} kills");
        flush(&daemon);
        assert!(std::fs::read(&file).unwrap() == read_all(&socket), "{mode}");
    }
}

#[test]
fn a_server_with_errors_gets_everything_in_the_end() {
    if !have("nbdkit") {
        return;
    }
    let daemon = pooled("remote-errors");
    let (file, broken) = (daemon.dir.path("disk"), daemon.dir.path("broken"));
    std::fs::write(&file, content(1, VOLUME_BYTES)).unwrap();
    let errors = format!("error-file={}", broken.display());
    let path = file.to_str().unwrap();
    let arguments = ["--filter=error", "file", path, &errors, "error-pwrite-rate=30%"];
    let kit = Kit::start(&daemon.dir, &arguments);
    add(&daemon, &kit.uri(""));
    std::fs::write(&broken, b"").unwrap();
    let all = written(&daemon, 2);
    let mut asking = daemon.command_of(&["volume", "flush", "fast/vm"]).spawn().unwrap();
    until("errors are told", || daemon.tell(&["events"]).contains("destage-failed"));
    std::fs::remove_file(&broken).unwrap();
    asking.wait().unwrap();
    flush(&daemon);
    assert!(std::fs::read(&file).unwrap() == all);
}

/// A server with a cache that does not outlive its connections; some end with a FLUSH.
struct Forgetful {
    durable: Arc<Mutex<Vec<u8>>>,
    forgets: Arc<AtomicUsize>,
}

fn take<const N: usize>(stream: &mut UnixStream) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).map(|()| bytes)
}

fn answer(number: &[u8], kind: u32, payload: &[u8]) -> Vec<u8> {
    let head = 0x0003_e889_0455_65a9_u64.to_be_bytes();
    let len = (payload.len() as u32).to_be_bytes();
    [&head, number, &kind.to_be_bytes(), &len, payload].concat()
}

impl Forgetful {
    fn start(socket: &Path) -> Forgetful {
        let listener = UnixListener::bind(socket).unwrap();
        let durable = Arc::new(Mutex::new(content(1, VOLUME_BYTES)));
        let forgets = Arc::new(AtomicUsize::new(0));
        let server = Forgetful { durable: Arc::clone(&durable), forgets: Arc::clone(&forgets) };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut current = durable.lock().unwrap().clone();
                let _ = serve(&mut stream.unwrap(), &mut current, &durable, &forgets);
            }
        });
        server
    }
}

fn serve(
    stream: &mut UnixStream,
    current: &mut Vec<u8>,
    durable: &Mutex<Vec<u8>>,
    forgets: &AtomicUsize,
) -> std::io::Result<()> {
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
    take::<4>(stream)?;
    loop {
        let option: [u8; 16] = take(stream)?;
        let len = u32::from_be_bytes(option[12..].try_into().unwrap());
        stream.read_exact(&mut vec![0; len as usize])?;
        if option[8..12] == [0, 0, 0, 7] {
            let export = [&[0; 2][..], &(VOLUME_BYTES as u64).to_be_bytes(), &[0, 0b101]].concat();
            stream.write_all(&answer(&option[8..12], 3, &export))?;
            stream.write_all(&answer(&option[8..12], 1, &[]))?;
            break;
        }
        stream.write_all(&answer(&option[8..12], 0x8000_0001, &[]))?;
    }
    loop {
        let header: [u8; 28] = take(stream)?;
        let at = u64::from_be_bytes(header[16..24].try_into().unwrap()) as usize;
        let end = at + u32::from_be_bytes(header[24..].try_into().unwrap()) as usize;
        let mut reply = [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], &header[8..16]].concat();
        match header[7] {
            0 => reply.extend(&current[at..end]),
            1 => stream.read_exact(&mut current[at..end])?,
            3 if forgets.load(Ordering::SeqCst) > 0 => {
                forgets.fetch_sub(1, Ordering::SeqCst);
                return Ok(());
            }
            3 => durable.lock().unwrap().clone_from(current),
            _ => return Ok(()),
        }
        stream.write_all(&reply)?;
    }
}

#[test]
fn what_a_server_has_acknowledged_and_forgotten_is_written_again() {
    let daemon = pooled("remote-forgetful");
    let socket = daemon.dir.path("origin.sock");
    let server = Forgetful::start(&socket);
    add(&daemon, &format!("nbd+unix:///?socket={}", socket.display()));
    for (round, mode) in [(2, "writeback"), (3, "writethrough"), (4, "readonly")] {
        daemon.tell(&["volume", "set", "fast/vm", mode]);
        let all = content(round, VOLUME_BYTES);
        let mut client = Client::connect(&daemon.dir.path("nbd"));
        server.forgets.store(2, Ordering::SeqCst);
        // What went straight to the origin may be lost: the client is told, and writes it again.
        let mut told = 0;
        loop {
            for (index, chunk) in all.chunks(1 << 20).enumerate() {
                client.write((index << 20) as u64, chunk).unwrap();
            }
            if client.flush().is_ok() {
                break;
            }
            told += 1;
        }
        assert_eq!(told > 0, mode != "writeback", "{mode}");
        flush(&daemon);
        until("it has forgotten", || server.forgets.load(Ordering::SeqCst) < 2);
        flush(&daemon);
        server.forgets.store(0, Ordering::SeqCst);
        assert!(*server.durable.lock().unwrap() == all, "{mode}");
        assert!(read_all(&daemon.dir.path("nbd")) == all, "{mode}");
    }
    assert!(daemon.tell(&["events"]).contains("origin-flush-failed"));
}

/// A server that says something else.
fn stranger(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(b"220 mail.example.org ESMTP, how do you do\r\n");
        }
    });
}

/// Sockets and other descriptors that a daemon has, and its threads.
fn held(daemon: &Daemon) -> (usize, usize) {
    let count =
        |of: &str| std::fs::read_dir(format!("/proc/{}/{of}", daemon.pid())).unwrap().count();
    (count("fd"), count("task"))
}

#[test]
fn a_server_that_takes_no_connections_costs_nothing_however_often_it_is_tried() {
    let daemon = pooled("remote-full");
    let path = daemon.dir.path("full");
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = socket.unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    // The only one that there is room for.
    let _first = UnixStream::connect(&path).unwrap();
    let uri = format!("nbd+unix:///?socket={}", path.display());
    let before = held(&daemon);
    for _ in 0..3 {
        let add = ["volume", "add", "fast/other", "--origin", &uri];
        daemon.refused(&add, "it takes no more connections", "start the server");
    }
    until("nothing is left of the attempts", || {
        let now = held(&daemon);
        now.0 <= before.0 && now.1 <= before.1
    });
}

#[test]
fn what_cannot_be_an_origin_is_refused_with_a_reason() {
    let daemon = pooled("remote-refused");
    let refused = |uri: &str, error: &str, hint: &str| {
        daemon.refused(&["volume", "add", "fast/other", "--origin", uri], error, hint);
    };
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    refused(&format!("nbd://127.0.0.1:{port}/x"), "cannot be reached", "start the server");
    refused("nbd+unix:///x?socket=/nowhere", "No such file", "start the server");
    refused("nbds://127.0.0.1/x", "TLS", "tunnel");
    refused("nbd+unix:///x?socket=nowhere", "not absolute", "nbd+unix:///export");
    refused("iscsi://127.0.0.1/x", "scheme", "nbd://host:port/export");
    stranger(&daemon.dir.path("mail"));
    let uri = |socket: &str| format!("nbd+unix:///?socket={}", daemon.dir.path(socket).display());
    refused(&uri("mail"), "does not speak the NBD protocol", "10809");
    let _silent = UnixListener::bind(daemon.dir.path("silent")).unwrap();
    refused(&uri("silent"), "does not answer", "start the server");

    let origin = daemon.dir.full("plain", VOLUME_BYTES);
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap()]);
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    refused(&uri("nbd"), "export of this daemon, that of \"fast/vm\"", "give the volume another");
    let link = daemon.dir.path("link");
    std::os::unix::fs::symlink(&socket, &link).unwrap();
    refused(&uri("link"), "export of this daemon", "give the volume another");
    daemon.tell(&["export", "remove", "fast/vm"]);
    daemon.tell(&["export", "add", "fast/vm", "--port", &port.to_string()]);
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        refused(&format!("nbd://{host}:{port}"), "export of this daemon", "another one");
    }
    if !have("nbdkit") {
        return;
    }
    let keys = daemon.dir.path("keys");
    std::fs::write(&keys, format!("somebody:{}\n", "5a".repeat(32))).unwrap();
    let keys = format!("--tls-psk={}", keys.display());
    let mib = "32M";
    let table: [(&[&str], &str, &str, &str); 5] = [
        (&["-r", "memory", mib], "", "the export is read-only", "without its option"),
        (&["--tls=require", &keys, "memory", mib], "", "wants TLS", "tunnel"),
        (
            &["--filter=exportname", "memory", mib, "exportname-strict=true", "exportname=a"],
            "b",
            "no export of this name",
            "--list",
        ),
        (
            &[
                "--filter=blocksize-policy",
                "memory",
                mib,
                "blocksize-minimum=64K",
                "blocksize-preferred=64K",
            ],
            "",
            "65536",
            "512 or 4096",
        ),
        (&["memory", "33554433"], "", "512 B sectors", "truncate"),
    ];
    for (arguments, export, error, hint) in table {
        let kit = Kit::start(&daemon.dir, arguments);
        let uri = kit.uri(export);
        let output = daemon.ask(&["volume", "add", "fast/other", "--origin", &uri]);
        let text = crate::common::stderr(&output);
        // Not every nbdkit knows every option; then it takes the export.
        println!("{arguments:?}: {text}");
        assert!(text.contains(error) && text.contains(hint), "{arguments:?}: {text}");
    }
    let kit = Kit::start(&daemon.dir, &["memory", mib]);
    daemon.tell(&["volume", "add", "fast/first", "--origin", &kit.uri("%61")]);
    let why = "is the origin of volume \"fast/first\"";
    refused(&kit.uri("a"), why, "choose another disk");
}

#[test]
fn an_export_over_tcp_with_large_sectors_is_an_origin() {
    if !have("nbdkit") {
        return;
    }
    let daemon = pooled("remote-tcp");
    let file = daemon.dir.path("disk");
    std::fs::write(&file, content(1, VOLUME_BYTES)).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new("nbdkit");
    command.args(["-f", "--exit-with-parent", "-i", "127.0.0.1", "-p", &port.to_string()]);
    command.args(["--filter=blocksize-policy", "file", file.to_str().unwrap()]);
    command.args([
        "blocksize-minimum=4096",
        "blocksize-maximum=256K",
        "blocksize-error-policy=error",
    ]);
    let mut kit = command.stdin(Stdio::null()).spawn().unwrap();
    let uri = format!("nbd://LOCALHOST:{port}");
    until("it is taken", || {
        let add = ["volume", "add", "fast/vm", "--origin", &uri, "--mode", "writethrough"];
        run(&mut daemon.command_of(&add)).status.success()
    });
    let shown = daemon.json(&["volume", "show", "fast/vm"]);
    assert_eq!(shown["origin"], format!("nbd://localhost:{port}/"));
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    until_served(&daemon);
    let all = written(&daemon, 2);
    let mut client = Client::connect(&socket);
    client.write(512, &[9; 512]).unwrap();
    client.flush().unwrap();
    flush(&daemon);
    let expected = [&all[..512], &[9; 512], &all[1024..]].concat();
    assert!(std::fs::read(&file).unwrap() == expected);
    assert!(read_all(&socket) == expected);
    kit.kill().unwrap();
    kit.wait().unwrap();
}

#[test]
fn a_request_that_is_stuck_at_a_server_keeps_no_daemon_from_ending() {
    let Some((mut daemon, mut kit, _)) = behind_kit("remote-stuck") else { return };
    let socket = daemon.dir.path("nbd");
    let mut client = Client::connect(&socket);
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    signal(kit.child.id(), "STOP");
    // Nothing of it is cached; and more clients than reactors.
    let readers: Vec<_> = (1..6)
        .map(|at| {
            let mut client = Client::connect(&socket);
            std::thread::spawn(move || client.read(at << 20, &mut [0; 4096]))
        })
        .collect();
    until("it is told of", || state(&daemon) == "origin-failed");
    daemon.refused(&["pool", "export", "fast"], "connected to \"fast/vm\"", "disconnect them");
    signal(daemon.pid(), "TERM");
    until("the daemon ends", || daemon.has_ended());
    assert!(!daemon.wait(), "as after a crash");
    assert!(readers.into_iter().all(|reader| reader.join().unwrap().is_err()));
    signal(kit.child.id(), "CONT");
    daemon.start();
    until_served_from(&daemon, &mut kit);
    let all = [vec![7; 4096], content(1, VOLUME_BYTES)[4096..].to_vec()].concat();
    assert!(read_all(&socket) == all);
    daemon.stop();
}

/// Whether a client was told of an error, not of the end of its connection: it has no reason to ask again then.
fn is_answer(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ESHUTDOWN))
}

/// A client that asks for a block until its connection ends.
fn asking(socket: &Path) -> JoinHandle<std::io::Error> {
    let mut client = Client::connect(socket);
    std::thread::spawn(move || {
        loop {
            if let Err(error) = client.read(1 << 20, &mut [0; 4096]) {
                return error;
            }
        }
    })
}

#[test]
fn what_waits_for_a_stuck_request_keeps_nobody_from_ending_and_no_other_client_gets_an_error() {
    let Some((mut daemon, kit, _)) = behind_kit("remote-stuck-change") else { return };
    let (socket, other) = (daemon.dir.path("nbd"), daemon.dir.path("other"));
    let disk = daemon.dir.path("well");
    std::fs::write(&disk, content(2, VOLUME_BYTES)).unwrap();
    daemon.tell(&["volume", "add", "fast/well", "--origin", disk.to_str().unwrap()]);
    daemon.tell(&["export", "add", "fast/well", "--socket", other.to_str().unwrap()]);
    until("it is served", || UnixStream::connect(&other).is_ok());
    signal(kit.child.id(), "STOP");
    // More clients than reactors.
    let stuck: Vec<_> = (0..5).map(|_| asking(&socket)).collect();
    until("it is told of", || state(&daemon) == "origin-failed");
    let well: Vec<_> = (0..5).map(|_| asking(&other)).collect();
    daemon.tell(&["export", "remove", "fast/vm"]);
    for error in stuck.into_iter().map(|client| client.join().unwrap()) {
        assert!(!is_answer(&error), "{error}");
    }
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    until("it is served again", || UnixStream::connect(&socket).is_ok());
    let stuck = asking(&socket);
    let mut remove = daemon.command_of(&["export", "remove", "fast/vm"]);
    let mut remove = remove.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("it is removed", || !daemon.tell(&["export", "list"]).contains("fast/vm"));
    signal(daemon.pid(), "TERM");
    until("the daemon ends", || daemon.has_ended());
    assert!(!daemon.wait(), "as after a crash");
    remove.wait().unwrap();
    for error in well.into_iter().chain([stuck]).map(|client| client.join().unwrap()) {
        assert!(!is_answer(&error), "{error}");
    }
}

#[test]
fn a_pool_that_cannot_be_exported_because_an_origin_is_stuck_says_so_until_the_daemon_has_ended() {
    let Some((mut daemon, mut kit, file)) = behind_kit("remote-export") else { return };
    signal(kit.child.id(), "STOP");
    let all = written(&daemon, 2);
    // Destaging has begun, and nobody knows yet that it is stuck.
    std::thread::sleep(std::time::Duration::from_secs(2));
    daemon.refused(&["pool", "export", "fast"], "its origin does not answer", "start it when");
    let shown = daemon.json(&["pool", "show", "fast"]);
    assert_eq!(shown["state"], "failed", "{shown}");
    assert!(shown.to_string().contains("does not answer"), "{shown}");
    signal(kit.child.id(), "CONT");
    daemon.stop();
    daemon.start();
    until_served_from(&daemon, &mut kit);
    assert!(read_all(&daemon.dir.path("nbd")) == all);
    flush(&daemon);
    assert!(std::fs::read(&file).unwrap() == all);
    daemon.stop();
}

#[test]
fn a_server_that_does_not_answer_keeps_no_daemon_from_ending() {
    let Some((mut daemon, mut kit, file)) = behind_kit("remote-hung") else { return };
    // Nothing is on its way when it stops to answer.
    daemon.tell(&["volume", "set", "fast/vm", &tonight()]);
    let all = written(&daemon, 2);
    signal(kit.child.id(), "STOP");
    daemon.stop();
    signal(kit.child.id(), "CONT");
    daemon.start();
    until_served_from(&daemon, &mut kit);
    assert!(read_all(&daemon.dir.path("nbd")) == all);
    flush(&daemon);
    assert!(std::fs::read(&file).unwrap() == all);
    daemon.stop();
}

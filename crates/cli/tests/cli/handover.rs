//! Listening sockets that outlive the daemon, with a test in the service manager's place.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::daemon::{
    Daemon, VOLUME_BYTES, content, print_times, served, until, until_served,
};
use crate::common::{Client, forebay, run, signal, stderr};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Passes what stands on the first three numbers on as systemd does: from 3 on.
const PASS: &str = "exec 3<&0 4<&1 5<&2 0</dev/null 1>/dev/null 2>&1; \
                    export LISTEN_PID=$$; exec \"$0\" \"$@\"";

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon whose first descriptors are these.
fn start_with(daemon: &Daemon, passed: &[&OwnedFd], variables: &[(&str, &str)]) -> Running {
    let inner = daemon.command();
    let mut command = Command::new("sh");
    command.arg("-c").arg(PASS).arg(inner.get_program()).args(inner.get_args());
    command.envs(variables.iter().copied());
    let stdio = |index: usize| {
        let copy = passed.get(index).map(|fd| fd.try_clone().unwrap());
        copy.map_or(Stdio::null(), Stdio::from)
    };
    command.stdin(stdio(0)).stdout(stdio(1)).stderr(stdio(2));
    Running(command.spawn().unwrap())
}

/// What systemd does for a service: takes its messages, and keeps descriptors.
struct Manager {
    socket: UnixDatagram,
    /// By name; several may have the same one.
    store: Vec<(String, OwnedFd)>,
}

impl Manager {
    fn of(daemon: &Daemon) -> Manager {
        let socket = UnixDatagram::bind(daemon.dir.path("notify")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Manager { socket, store: Vec::new() }
    }

    fn start(&mut self, daemon: &Daemon) -> Running {
        let (names, passed): (Vec<_>, Vec<_>) =
            self.store.iter().map(|(name, descriptor)| (name.as_str(), descriptor)).unzip();
        let notify = daemon.dir.path("notify");
        let variables = [
            ("NOTIFY_SOCKET", notify.to_str().unwrap()),
            ("LISTEN_FDS", &passed.len().to_string()),
            ("LISTEN_FDNAMES", &names.join(":")),
        ];
        let running = start_with(daemon, &passed, &variables);
        self.until("READY=1");
        running
    }

    /// Takes messages up to this one.
    fn until(&mut self, wanted: &str) {
        while self.next() != wanted {}
    }

    fn next(&mut self) -> String {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 256];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received =
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
        let len = received.expect("a message comes").bytes;
        let text = String::from_utf8(bytes[..len].to_vec()).unwrap();
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let mut descriptors: Vec<OwnedFd> = descriptors.flatten().collect();
        if let Some(name) = text.strip_prefix("FDSTORE=1\nFDNAME=") {
            assert_eq!(descriptors.len(), 1, "{text}");
            self.store.push((name.to_owned(), descriptors.remove(0)));
        } else if let Some(name) = text.strip_prefix("FDSTOREREMOVE=1\nFDNAME=") {
            assert!(self.store.extract_if(.., |(known, _)| known == name).count() > 0, "{text}");
        }
        text
    }

    fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.store.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }
}

fn inode(path: &Path) -> u64 {
    std::fs::symlink_metadata(path).unwrap().ino()
}

fn warnings(daemon: &Daemon) -> Vec<String> {
    let events = daemon.json(&["events"]);
    let all = events["items"].as_array().unwrap().iter();
    let wanted = all.filter(|event| event["code"] == "socket-unused");
    wanted.map(|event| event["what"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn who_connects_between_two_daemons_is_served_by_the_second() {
    let mut daemon = served("handover");
    let tcp_origin = daemon.dir.sparse("tcp-origin", VOLUME_BYTES as u64);
    daemon.tell(&["volume", "add", "fast/tcp", "--origin", tcp_origin.to_str().unwrap()]);
    let uri = daemon.tell(&["export", "add", "fast/tcp", "--port", "0"]);
    let address = uri.trim().strip_prefix("nbd://").unwrap().split('/').next().unwrap().to_owned();
    daemon.stop();
    let mut manager = Manager::of(&daemon);
    let mut running = manager.start(&daemon);
    assert_eq!(manager.names(), ["control", "fast/tcp", "fast/vm"]);
    let (socket, control) = (daemon.dir.path("nbd"), daemon.dir.path("control.sock"));
    let newest = content(7, 1 << 20);
    let mut client = Client::connect(&socket);
    client.write(0, &newest).unwrap();
    drop(client);
    let files = (inode(&socket), inode(&control));
    let mut times = Vec::new();
    for (turn, end) in ["TERM", "KILL", "TERM", "KILL", "TERM"].into_iter().enumerate() {
        if turn > 1 {
            daemon.update();
        }
        let began = Instant::now();
        signal(running.0.id(), end);
        assert_eq!(running.0.wait().unwrap().success(), end == "TERM");
        // Nobody is there, and nobody is refused.
        let waiting = UnixStream::connect(&socket).unwrap();
        let over_tcp = std::net::TcpStream::connect(&address).unwrap();
        let mut status = forebay();
        status.arg("status").env("FOREBAY_CONTROL", &control).stdout(Stdio::null());
        let mut status = Running(status.spawn().unwrap());
        let reader = std::thread::spawn(move || {
            let mut found = vec![0; 1 << 20];
            Client::over(waiting).read(0, &mut found).unwrap();
            found
        });
        running = manager.start(&daemon);
        assert!(reader.join().unwrap() == newest, "after {end}");
        times.push(began.elapsed());
        let program = std::fs::read_link(format!("/proc/{}/exe", running.0.id())).unwrap();
        assert_eq!(program.starts_with(&daemon.dir.0), turn > 1, "another program took over");
        assert!(status.0.wait().unwrap().success());
        let mut hello = [0; 8];
        over_tcp.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        std::io::Read::read_exact(&mut &over_tcp, &mut hello).unwrap();
        assert_eq!(&hello, b"NBDMAGIC");
        assert_eq!((inode(&socket), inode(&control)), files, "the same sockets");
        assert!(daemon.tell(&["events"]).contains("3 sockets passed in"));
        assert_eq!(warnings(&daemon), [""; 0]);
    }
    print_times("from the signal to the answer of the next daemon", times);
    // What is exported no more is kept no more, and its file is gone.
    daemon.tell(&["export", "remove", "fast/vm"]);
    manager.until("FDSTOREREMOVE=1\nFDNAME=fast/vm");
    assert_eq!(manager.names(), ["control", "fast/tcp"]);
    assert!(!socket.exists());
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    manager.until("FDSTORE=1\nFDNAME=fast/vm");
    // A pool that leaves takes its doors along.
    a_pool_leaves(&daemon, &mut manager);
    // Its last accept may be on its way out.
    until("nobody listens there", || std::net::TcpStream::connect(&address).is_err());
    signal(running.0.id(), "TERM");
    assert!(running.0.wait().unwrap().success());
}

fn a_pool_leaves(daemon: &Daemon, manager: &mut Manager) {
    crate::common::daemon::until("the clients have gone", || {
        let exports = daemon.json(&["export", "list"]);
        exports["items"].as_array().unwrap().iter().all(|export| export["clients"] == 0)
    });
    daemon.tell(&["pool", "export", "fast"]);
    manager.until("FDSTOREREMOVE=1\nFDNAME=fast/tcp");
    manager.until("FDSTOREREMOVE=1\nFDNAME=fast/vm");
    assert_eq!(manager.names(), ["control"]);
}

#[test]
fn a_control_socket_that_moves_leaves_nothing_behind() {
    let mut daemon = Daemon::new("handover-moved");
    daemon.stop();
    let mut manager = Manager::of(&daemon);
    let mut running = manager.start(&daemon);
    let (old, new) = (daemon.dir.path("control.sock"), daemon.dir.path("moved.sock"));
    let config = daemon.dir.path("forebay.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("control.sock", "moved.sock")).unwrap();
    let mut inodes = Vec::new();
    for _ in 0..2 {
        signal(running.0.id(), "TERM");
        assert!(running.0.wait().unwrap().success());
        running = manager.start(&daemon);
        assert_eq!(manager.names(), ["control"]);
        assert!(!old.exists(), "nobody reads what is sent there");
        let mut events = forebay();
        let events = run(events.arg("events").env("FOREBAY_CONTROL", &new));
        let text = String::from_utf8(events.stdout).unwrap();
        assert!(text.contains("1 socket passed in") && !text.contains("socket-unused"), "{text}");
        inodes.push(inode(&new));
    }
    assert_eq!(inodes[0], inodes[1], "the same socket");
}

#[test]
fn a_kept_socket_whose_file_is_gone_is_made_anew() {
    let mut daemon = served("handover-removed");
    daemon.stop();
    let mut manager = Manager::of(&daemon);
    let mut running = manager.start(&daemon);
    let (socket, control) = (daemon.dir.path("nbd"), daemon.dir.path("control.sock"));
    std::fs::remove_file(&control).unwrap();
    std::fs::remove_file(&socket).unwrap();
    signal(running.0.id(), "TERM");
    assert!(running.0.wait().unwrap().success());
    running = manager.start(&daemon);
    until_served(&daemon);
    let mut found = vec![0; 4096];
    Client::connect(&socket).read(0, &mut found).unwrap();
    assert!(found == content(1, 4096));
    assert_eq!(manager.names(), ["control", "fast/vm"]);
    // What somebody else has put there is left alone, and not taken for it.
    std::fs::remove_file(&socket).unwrap();
    let other = UnixListener::bind(&socket).unwrap();
    let (file, mut is_said) = (inode(&socket), false);
    signal(running.0.id(), "TERM");
    assert!(running.0.wait().unwrap().success());
    let _running = manager.start(&daemon);
    crate::common::daemon::until("it is said", || {
        let exports = daemon.json(&["export", "list"]);
        is_said |= exports["items"][0]["reason"].as_str().unwrap().contains("another process");
        is_said
    });
    assert_eq!(inode(&socket), file);
    drop(other);
}

#[test]
fn a_socket_unit_hands_its_sockets_in() {
    let mut daemon = served("activated");
    daemon.stop();
    let (socket, control) = (daemon.dir.path("nbd"), daemon.dir.path("control.sock"));
    let listen = |path: &Path| OwnedFd::from(UnixListener::bind(path).unwrap());
    let passed = [listen(&socket), listen(&control)];
    // As systemd's are.
    passed.iter().for_each(|fd| {
        rustix::io::ioctl_fionbio(fd.as_fd(), true).unwrap();
    });
    let files = (inode(&socket), inode(&control));
    let variables = [("LISTEN_FDS", "2"), ("LISTEN_FDNAMES", "fast/vm:control")];
    // Connected before there is any daemon.
    let waiting = UnixStream::connect(&socket).unwrap();
    let mut running = start_with(&daemon, &passed.each_ref(), &variables);
    daemon.until("no pool waits", |status| !status.contains("\"waiting\""));
    until_served(&daemon);
    let mut found = vec![0; 4096];
    Client::over(waiting).read(0, &mut found).unwrap();
    assert!(found == content(1, 4096));
    assert_eq!(warnings(&daemon), [""; 0]);
    signal(running.0.id(), "TERM");
    assert!(running.0.wait().unwrap().success());
    assert_eq!((inode(&socket), inode(&control)), files, "they are the unit's");
    drop(passed);
    // One for a volume that is not exported yet is kept for it.
    let other = daemon.dir.path("other");
    let passed = [listen(&other)];
    std::fs::remove_file(&control).unwrap();
    let variables = [("LISTEN_FDS", "1"), ("LISTEN_FDNAMES", "fast/new")];
    let mut running = start_with(&daemon, &passed.each_ref(), &variables);
    daemon.until("no pool waits", |status| !status.contains("\"waiting\""));
    until_served(&daemon);
    assert!(warnings(&daemon)[0].contains("\"fast/new\", which is not exported"));
    let origin = daemon.dir.sparse("origin-new", VOLUME_BYTES as u64);
    daemon.tell(&["volume", "add", "fast/new", "--origin", origin.to_str().unwrap()]);
    let waiting = UnixStream::connect(&other).unwrap();
    daemon.tell(&["export", "add", "fast/new", "--socket", other.to_str().unwrap()]);
    Client::over(waiting).read(0, &mut found).unwrap();
    assert!(found.iter().all(|&byte| byte == 0));
    signal(running.0.id(), "TERM");
    assert!(running.0.wait().unwrap().success());
}

#[test]
fn what_is_passed_in_and_makes_no_sense_is_told_and_left_alone() {
    let mut daemon = Daemon::new("passed-wrong");
    daemon.stop();
    let datagram = OwnedFd::from(UnixDatagram::unbound().unwrap());
    let file = OwnedFd::from(std::fs::File::open("/dev/zero").unwrap());
    let elsewhere = OwnedFd::from(UnixListener::bind(daemon.dir.path("elsewhere")).unwrap());
    let cases: [(&[&OwnedFd], &str, &str, &[&str]); 7] = [
        (&[], "many", "", &["LISTEN_FDS is \"many\""]),
        (&[], "-1", "", &["LISTEN_FDS is \"-1\""]),
        (&[], "4", "", &["descriptor 6 (\"unknown\"), which is not open"]),
        (&[&datagram], "1", "control", &["no listening stream socket"]),
        (&[&file], "1", "fast/vm", &["\"fast/vm\" was passed in: it is no listening"]),
        (&[&elsewhere], "1", "control", &["elsewhere was passed in as `control`"]),
        (&[&elsewhere, &file], "2", "a:b:c", &["3 names for 2", "name it `control`"]),
    ];
    for (passed, count, names, told) in cases {
        let mut variables = vec![("LISTEN_FDS", count)];
        if !names.is_empty() {
            variables.push(("LISTEN_FDNAMES", names));
        }
        let mut running = start_with(&daemon, passed, &variables);
        daemon.until("it answers", |_| true);
        let warned = warnings(&daemon);
        for words in told {
            assert!(warned.iter().any(|what| what.contains(words)), "{words}: {warned:?}");
        }
        signal(running.0.id(), "TERM");
        assert!(running.0.wait().unwrap().success(), "{count} {names}");
    }
    // Those of another process are its own.
    let mut command = daemon.command();
    command.env("LISTEN_PID", "1").env("LISTEN_FDS", "1");
    let mut running = Running(command.spawn().unwrap());
    daemon.until("it answers", |_| true);
    assert_eq!(warnings(&daemon), [""; 0]);
    signal(running.0.id(), "TERM");
    assert!(running.0.wait().unwrap().success());
}

#[test]
fn the_socket_unit_is_accepted_by_systemd() {
    if !crate::common::have("systemd-analyze") {
        return;
    }
    let dir = crate::common::Dir::new("socket-unit");
    let packaging = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging"));
    for name in ["forebay.service", "forebay.socket"] {
        let unit = std::fs::read_to_string(packaging.join(name)).unwrap();
        let unit = unit.replace("/usr/bin/forebay", env!("CARGO_BIN_EXE_forebay"));
        std::fs::write(dir.path(name), unit).unwrap();
    }
    let path = dir.path("forebay.socket");
    let verified = run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path));
    let text = stderr(&verified);
    assert!(verified.status.success() && !text.contains("forebay."), "{text}");
}

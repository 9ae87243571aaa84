//! The daemon as a service: what the service manager is told, its unit, its memory.

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::daemon::{Daemon, until};
use crate::common::{have, run, signal, stderr};

/// What nothing that works takes longer than.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon on the directory of another one, and the service manager's end of its socket.
struct Service {
    child: Child,
    manager: UnixDatagram,
}

impl Service {
    fn start(daemon: &mut Daemon, more: &[(&str, &str)]) -> Service {
        daemon.stop();
        let path = daemon.dir.path("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let mut command = daemon.command();
        command.env("NOTIFY_SOCKET", &path).envs(more.iter().copied());
        Service { child: command.spawn().unwrap(), manager }
    }

    /// The next message; `None` if there is none for that long.
    fn told(&self, patience: Duration) -> Option<String> {
        self.manager.set_read_timeout(Some(patience)).unwrap();
        let mut bytes = [0; 64];
        loop {
            let len = self.manager.recv(&mut bytes).ok()?;
            let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
            // See the tests of handing over.
            if !text.starts_with("FDSTORE=1") {
                return Some(text);
            }
        }
    }

    /// Waits for this message; only signs of life may come before.
    fn until_told(&self, wanted: &str) {
        loop {
            let told = self.told(PATIENCE).unwrap_or_else(|| panic!("never: {wanted}"));
            if told == wanted {
                return;
            }
            let is_sign = told == "WATCHDOG=1" || told.starts_with("EXTEND_TIMEOUT_USEC=");
            assert!(is_sign, "{told} instead of {wanted}");
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_service_manager_is_told() {
    let mut daemon = Daemon::new("notify");
    let mut service = Service::start(&mut daemon, &[]);
    service.until_told("READY=1");
    signal(service.child.id(), "TERM");
    service.until_told("STOPPING=1");
    assert!(service.child.wait().unwrap().success());
}

#[test]
fn the_watchdog_is_fed_only_while_every_reactor_goes_on() {
    let mut daemon = Daemon::new("watchdog");
    let config = daemon.dir.path("forebay.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("reactors = 3\n{text}")).unwrap();
    let mut service = Service::start(&mut daemon, &[("WATCHDOG_USEC", "300000")]);
    service.until_told("READY=1");
    (0..3).for_each(|_| service.until_told("WATCHDOG=1"));
    if have("strace") {
        // Of one thread, the next request to the kernel takes for ever.
        let task = format!("/proc/{}/task", service.child.id());
        let thread = std::fs::read_dir(&task).unwrap().find_map(|thread| {
            let path = thread.unwrap().path();
            let name = std::fs::read_to_string(path.join("comm")).unwrap();
            (name.trim() == "front-2").then(|| path.file_name().unwrap().to_owned())
        });
        let mut strace = Command::new("strace");
        strace.arg("-p").arg(thread.unwrap()).args(["-q", "-o", "/dev/null"]);
        strace.args(["-e", "inject=io_uring_enter:delay_enter=1000000000"]);
        let mut strace = strace.stderr(Stdio::null()).spawn().unwrap();
        // What is on its way still comes, then nothing for many times the interval.
        let mut late = 0;
        while service.told(Duration::from_secs(3)).is_some() {
            late += 1;
            assert!(late < 600, "it is fed although a reactor hangs");
        }
        strace.kill().unwrap();
        strace.wait().unwrap();
        (0..3).for_each(|_| service.until_told("WATCHDOG=1"));
    }
    signal(service.child.id(), "TERM");
    service.until_told("STOPPING=1");
    assert!(service.child.wait().unwrap().success());
}

#[test]
fn a_watchdog_for_another_process_is_left_alone() {
    let mut daemon = Daemon::new("watchdog-other");
    let other = [("WATCHDOG_USEC", "300000"), ("WATCHDOG_PID", "1")];
    let service = Service::start(&mut daemon, &other);
    loop {
        let told = service.told(PATIENCE).unwrap();
        if told == "READY=1" {
            break;
        }
        assert!(told.starts_with("EXTEND"), "{told}");
    }
    assert_eq!(service.told(Duration::from_secs(1)), None);
}

#[test]
fn the_unit_is_accepted_by_systemd() {
    if !have("systemd-analyze") {
        return;
    }
    let dir = crate::common::Dir::new("unit");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/forebay.service");
    let unit = std::fs::read_to_string(source).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/forebay serve\n"));
    let unit = unit.replace("/usr/bin/forebay", env!("CARGO_BIN_EXE_forebay"));
    let path = dir.path("forebay.service");
    std::fs::write(&path, unit).unwrap();
    let verified = run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path));
    assert!(verified.status.success(), "{}", stderr(&verified));
    // Unknown keys are only told.
    let text = stderr(&verified);
    assert!(!text.contains("forebay.service"), "{text}");
}

#[test]
fn memory_is_locked_and_bounded_where_that_is_allowed() {
    let mut daemon = Daemon::new("memory");
    let ssd = daemon.ssd("ssd-0");
    daemon.tell(&["pool", "create", "fast", "--ssd", ssd.to_str().unwrap()]);
    let memory = || daemon.json(&["status"])["memory"].clone();
    let locked_kib = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
        line.trim().split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(memory()["locked"] == true, locked_kib() > 0, "as the kernel says");
    assert_eq!(memory()["locked"] == true, memory()["locked_reason"] == "");
    assert_eq!(memory()["io_flusher"] == true, memory()["io_flusher_reason"] == "");
    let number = |name: &str| memory()[name].as_u64().unwrap();
    let usage = daemon.json(&["pool", "show", "fast"])["usage"].clone();
    assert_eq!(number("index_bytes_max"), usage["index_bytes_max"].as_u64().unwrap());
    assert!(number("policy_bytes") > 0);
    let (buffers, fixed) = (number("buffers_bytes_max"), number("policy_bytes"));
    assert_eq!(number("total_bytes_max"), number("index_bytes_max") + fixed + buffers);
    assert!(daemon.tell(&["events"]).contains("daemon-memory"));
    let origin = daemon.dir.sparse("origin", 32 << 20);
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap()]);
    daemon.tell(&["export", "add", "fast/vm"]);
    assert!(number("buffers_bytes_max") > buffers, "an export's clients have requests");
    daemon.stop();
    // Without a right it goes on all the same, and says so.
    if !have("setpriv") {
        return;
    }
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-all", "--inh-caps", "-all", "prlimit", "--memlock=8388608"]);
    command.arg(env!("CARGO_BIN_EXE_forebay")).arg("serve");
    command.arg("--config").arg(daemon.dir.path("forebay.toml")).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    daemon.until("it serves", |status| status.contains("\"online\""));
    let memory = daemon.json(&["status"])["memory"].clone();
    assert_eq!((&memory["locked"], &memory["io_flusher"]), (&false.into(), &false.into()));
    assert!(memory["locked_reason"].as_str().unwrap().contains("LimitMEMLOCK"), "{memory}");
    signal(child.id(), "TERM");
    until("it ends", || child.try_wait().unwrap().is_some());
}

/// Clients that write and read as much as they can, over a RAM tier and an index that fill up.
#[test]
fn memory_stays_within_what_is_said_while_clients_do_what_they_can() {
    const CLIENTS: u64 = 24;
    const SPAN: u64 = 4 << 20;
    let daemon = Daemon::new("bounded");
    let (ssd, origin) = (daemon.ssd("ssd"), daemon.dir.sparse("origin", 192 << 20));
    let (ssd, origin) = (ssd.to_str().unwrap(), origin.to_str().unwrap());
    daemon.tell(&["pool", "create", "fast", "--ssd", ssd, "--ram", "32M"]);
    let agreed = "--accept-data-loss-on-ssd-failure";
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin, "--mode", "writeback", agreed]);
    let peak = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().split(' ').next().unwrap().parse::<u64>().unwrap() << 10
    };
    // What the program itself takes; whatever the pool's parts take comes on top.
    let before = peak();
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let socket = &socket;
            scope.spawn(move || {
                let mut nbd = crate::common::Client::connect(socket);
                let mut buf = vec![client as u8; 1 << 20];
                for turn in 0..24 {
                    let at = client * (2 * SPAN) + (turn * 13) % 8 * (1 << 20);
                    match turn % 3 {
                        0 => nbd.write(at, &buf).unwrap(),
                        _ => nbd.read(at, &mut buf).unwrap(),
                    }
                }
            });
        }
    });
    let memory = daemon.json(&["status"])["memory"].clone();
    let part = |name: &str| memory[name].as_u64().unwrap();
    let taken = peak() - before;
    // Each client has one request, with the engine's part of it, and what has ended is kept for reuse.
    let held = part("ram_bytes") + part("index_bytes") + part("policy_bytes");
    let most = held + 2 * CLIENTS * (1 << 20) + forebay_device::buf::POOL_BYTES_MAX as u64;
    assert!(taken <= most, "{taken} B, at the most {most}");
    assert!(most <= part("total_bytes_max"), "{most} B of {memory}");
}

#[test]
fn a_log_that_nobody_reads_holds_nobody_up() {
    let mut daemon = Daemon::new("log");
    daemon.stop();
    let (reader, mut writer) = std::io::pipe().unwrap();
    // What a pipe holds on Linux; the next line would wait for a reader.
    std::io::Write::write_all(&mut writer, &[b'x'; 64 << 10]).unwrap();
    let mut command = daemon.command();
    command.env("FOREBAY_LOG", "debug").stderr(writer);
    let mut child = command.spawn().unwrap();
    drop(command);
    daemon.until("it answers", |_| true);
    let ssd = daemon.ssd("ssd-0");
    daemon.tell(&["pool", "create", "fast", "--ssd", ssd.to_str().unwrap()]);
    signal(child.id(), "TERM");
    assert!(child.wait().unwrap().success());
    drop(reader);
}

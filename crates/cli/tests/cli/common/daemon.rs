//! A daemon of a test's own: its configuration, sockets and devices are in one directory.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::{Client, Dir, forebay, run, signal, stderr};

pub const VOLUME_BYTES: usize = 32 << 20;

/// Bytes that are different at each place and for each seed.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
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

/// A pool "fast" on two SSDs with a volume "vm" that is exported at the socket "nbd".
pub fn served(name: &str) -> Daemon {
    let daemon = Daemon::new(name);
    let (first, second) = (daemon.ssd("ssd-0"), daemon.ssd("ssd-1"));
    let origin = daemon.dir.path("origin");
    std::fs::write(&origin, content(1, VOLUME_BYTES)).unwrap();
    let ssds = [first.to_str().unwrap(), second.to_str().unwrap()];
    daemon.tell(&["pool", "create", "fast", "--ssd", ssds[0], "--ssd", ssds[1]]);
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap()]);
    let socket = daemon.dir.path("nbd");
    daemon.tell(&["export", "add", "fast/vm", "--socket", socket.to_str().unwrap()]);
    daemon
}

/// Waits until the volume is online and its export serves.
pub fn until_served(daemon: &Daemon) {
    until("the volume is served", || {
        let volume = daemon.json(&["volume", "show", "fast/vm"]);
        volume["state"] == "online"
            && volume["exports"][0].as_str().is_some_and(|uri| !uri.is_empty())
    });
}

/// What `pool show` says of the pool.
pub fn show(daemon: &Daemon) -> Value {
    daemon.json(&["pool", "show", "fast"])
}

/// The paths of the cache devices that the pool has.
pub fn members(daemon: &Daemon) -> Vec<String> {
    let shown = show(daemon);
    let members = shown["members"].as_array().unwrap();
    let present = members.iter().filter(|member| member["state"] == "present");
    present.map(|member| member["path"].as_str().unwrap().to_owned()).collect()
}

/// As [`served`]; its SSDs may take long, for tests share a disk with whatever else runs.
pub fn patient(name: &str) -> Daemon {
    let daemon = served(name);
    daemon.tell(&PATIENT);
    daemon
}

/// Lets the SSDs of the pool take long.
pub const PATIENT: [&str; 4] = ["pool", "set", "fast", "device_deadline=5m"];

/// Looks at what is waited for, 50 ms apart: a minute and more, for a test may share the machine with others.
const LOOKS_MAX: u32 = 1200;

/// Waits for something that the daemon does by itself.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..LOOKS_MAX {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("never: {what}");
}

/// Writes the volume from its begin on, with a pause after each MiB, and flushes.
pub fn write_all(daemon: &Daemon, all: &[u8], pause_ms: u64) {
    let mut client = Client::connect(&daemon.dir.path("nbd"));
    for (index, chunk) in all.chunks(1 << 20).enumerate() {
        client.write((index << 20) as u64, chunk).unwrap();
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
    client.flush().unwrap();
}

/// Written and flushed; what clients see from then on, and the origin gets in the end.
pub fn written(daemon: &Daemon, seed: u64) -> Vec<u8> {
    let all = content(seed, VOLUME_BYTES);
    write_all(daemon, &all, 0);
    all
}

pub fn read_all(socket: &Path) -> Vec<u8> {
    let mut bytes = vec![0; VOLUME_BYTES];
    let mut client = Client::connect(socket);
    for (index, chunk) in bytes.chunks_mut(1 << 20).enumerate() {
        client.read((index << 20) as u64, chunk).unwrap();
    }
    bytes
}

/// Smallest cache device.
pub const SSD_BYTES: usize = 512 << 20;

pub struct Daemon {
    pub dir: Dir,
    /// What it sees elsewhere than it is: each path with what stands there for it.
    views: Vec<(PathBuf, PathBuf)>,
    /// What is started next, if it is not what was built.
    program: Option<PathBuf>,
    child: Option<Child>,
}

/// Prints what restarts took, from the end of the one daemon on until the next one has answered a client. A test judges no
/// time, for it shares the machine with whatever else runs: the bar is a row of `forebay-bench engine --rows restart`.
pub fn print_times(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    println!("{what}: {times:?}");
}

impl Daemon {
    /// Starts one in a new directory.
    pub fn new(name: &str) -> Daemon {
        Daemon::with(name, |_| String::new())
    }

    /// The same; `more` is put at the end of its configuration.
    pub fn with(name: &str, more: impl FnOnce(&Dir) -> String) -> Daemon {
        Daemon::of(name, "", more, Vec::new())
    }

    /// One that takes itself for another machine, in a mount namespace of its own if other files stand at
    /// some paths there: that takes root.
    pub fn on_machine(name: &str, number: u8, views: Vec<(PathBuf, PathBuf)>) -> Daemon {
        let id = format!("host_id = \"{number:032x}\"\n");
        Daemon::of(name, &id, |_| String::new(), views)
    }

    fn of(
        name: &str,
        first: &str,
        more: impl FnOnce(&Dir) -> String,
        views: Vec<(PathBuf, PathBuf)>,
    ) -> Daemon {
        let dir = Dir::new(name);
        let root = dir.0.display();
        let mut config = format!(
            "{first}state_dir = \"{root}/state\"\nrun_dir = \"{root}/run\"\n\
             [control]\nsocket = \"{root}/control.sock\"\n\
             [devices]\nscan = [\"{root}/ssd-*\"]\nwait_s = 2\n"
        );
        let more = more(&dir);
        if !more.contains("health_s") {
            // Tables would differ by the machine's disks.
            config.push_str("health_s = 0\n");
        }
        config.push_str(&more);
        std::fs::write(dir.path("forebay.toml"), config).unwrap();
        let mut daemon = Daemon { dir, views, program: None, child: None };
        daemon.start();
        daemon
    }

    /// `forebay serve` on this directory.
    pub fn command(&self) -> Command {
        let mut command = self.program.as_ref().map_or_else(forebay, Command::new);
        if !self.views.is_empty() {
            let bind = |(path, view): &(PathBuf, PathBuf)| {
                format!("mount --bind '{}' '{}' && ", view.display(), path.display())
            };
            let binds: String = self.views.iter().map(bind).collect();
            let program = command.get_program().to_owned();
            command = Command::new("unshare");
            command.args(["-m", "sh", "-c", &format!("{binds} exec \"$0\" \"$@\"")]).arg(program);
        }
        command.arg("serve").arg("--config").arg(self.dir.path("forebay.toml"));
        command.env("FOREBAY_LOG", "warn").stdin(Stdio::null());
        command
    }

    /// From now on another program is started: a copy at another path, with other bytes at its end.
    pub fn update(&mut self) {
        let old = self.program.take().unwrap_or_else(|| env!("CARGO_BIN_EXE_forebay").into());
        let new = (1..).map(|number| self.dir.path(&format!("forebay-{number}")));
        let new = new.into_iter().find(|path| !path.exists()).unwrap();
        // By a child, as with `script`.
        let mut copy = Command::new("sh");
        copy.args(["-c", "cp \"$0\" \"$1\" && printf 'another version' >> \"$1\""]);
        assert!(run(copy.arg(&old).arg(&new)).status.success());
        if old.starts_with(&self.dir.0) {
            std::fs::remove_file(old).unwrap();
        }
        self.program = Some(new);
    }

    /// The program that runs.
    pub fn running(&self) -> PathBuf {
        std::fs::read_link(format!("/proc/{}/exe", self.pid())).unwrap()
    }

    /// Starts and waits until it answers and no pool waits.
    pub fn start(&mut self) {
        self.spawn();
        self.until("no pool waits", |status| !status.contains("\"waiting\""));
    }

    /// Starts, and does not wait for anything.
    pub fn spawn(&mut self) {
        self.child = Some(self.command().spawn().unwrap());
    }

    /// The same, with all of its log in a file.
    pub fn spawn_logged(&mut self, log: &Path) {
        let file = std::fs::File::create(log).unwrap();
        let mut command = self.command();
        self.child = Some(command.env("FOREBAY_LOG", "info").stderr(file).spawn().unwrap());
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Whether its process has ended; nobody has waited for that before.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Waits for its end, whoever asked for it; whether it ended well.
    pub fn wait(&mut self) -> bool {
        self.child.take().unwrap().wait().unwrap().success()
    }

    /// Waits until it answers, and its status is like this.
    pub fn until(&self, what: &str, mut holds: impl FnMut(&str) -> bool) {
        for _ in 0..LOOKS_MAX {
            let output = self.ask(&["status", "--json"]);
            let text = String::from_utf8_lossy(&output.stdout);
            if output.status.success() && holds(&text) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("never: {what}");
    }

    /// Ends it as a power cut of the process.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Ends it with SIGTERM; it must end well.
    pub fn stop(&mut self) {
        let mut child = self.child.take().unwrap();
        signal(child.id(), "TERM");
        assert!(child.wait().unwrap().success());
    }

    /// A cache device.
    pub fn ssd(&self, name: &str) -> PathBuf {
        self.dir.full(name, SSD_BYTES)
    }

    /// A command against it.
    pub fn command_of(&self, arguments: &[&str]) -> Command {
        let mut command = forebay();
        command.args(arguments).env("FOREBAY_CONTROL", self.dir.path("control.sock"));
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command against it.
    pub fn ask(&self, arguments: &[&str]) -> Output {
        run(&mut self.command_of(arguments))
    }

    /// The same; it must succeed. Its standard output.
    pub fn tell(&self, arguments: &[&str]) -> String {
        let output = self.ask(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same as JSON.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut arguments = arguments.to_vec();
        arguments.push("--json");
        let value: Value = serde_json::from_str(&self.tell(&arguments)).unwrap();
        assert_eq!(value["schema"], 1, "{arguments:?}");
        value
    }

    /// The same; it must fail, with these words in `error:` and `hint:`.
    #[track_caller]
    pub fn refused(&self, arguments: &[&str], error: &str, hint: &str) {
        self.fails(1, arguments, error, hint);
    }

    /// The same of a command line that makes no sense.
    #[track_caller]
    pub fn misused(&self, arguments: &[&str], error: &str, hint: &str) {
        self.fails(2, arguments, error, hint);
    }

    #[track_caller]
    fn fails(&self, code: i32, arguments: &[&str], error: &str, hint: &str) {
        let output = self.ask(arguments);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
        assert!(line("error: ").is_some_and(|l| l.contains(error)), "{arguments:?}: {text}");
        assert!(line("hint: ").is_some_and(|l| l.contains(hint)), "{arguments:?}: {text}");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

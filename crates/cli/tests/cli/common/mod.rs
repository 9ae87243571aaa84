//! What the black box tests share: the real binary, unique directories, a small NBD client.

pub mod daemon;
pub mod held;
pub mod looped;
pub mod page;
pub mod routes;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Nothing that works takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// As many cases as `PROPTEST_CASES` says, or the usual number; `scripts/fuzz.sh` runs many.
pub fn config(usual: u32) -> proptest::test_runner::Config {
    let config = proptest::test_runner::Config { failure_persistence: None, ..Default::default() };
    let is_told = std::env::var_os("PROPTEST_CASES").is_some();
    let cases = if is_told { config.cases } else { usual };
    proptest::test_runner::Config { cases, ..config }
}

/// A directory that goes away with its test.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Dir {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn sparse(&self, name: &str, size: u64) -> PathBuf {
        let path = self.path(name);
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        path
    }
}

impl Dir {
    /// A file of zeroes without holes.
    pub fn full(&self, name: &str, size: usize) -> PathBuf {
        let path = self.path(name);
        let mut file = std::fs::File::create(&path).unwrap();
        // From one buffer of this size it takes seven times as long, in page faults.
        let zeroes = vec![0; 1 << 20];
        for at in (0..size).step_by(zeroes.len()) {
            file.write_all(&zeroes[..zeroes.len().min(size - at)]).unwrap();
        }
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn forebay() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    // Whoever runs the tests may have a terminal.
    command.env_remove("COLUMNS");
    command
}

/// Arguments of `dev serve` on the files of a directory: 2 caches of 64 MiB, 1 origin of 32 MiB.
pub fn serve(dir: &Dir) -> Command {
    serve_at(dir, "sock")
}

/// The same, at a socket of this name.
pub fn serve_at(dir: &Dir, socket: &str) -> Command {
    let mut command = forebay();
    command.args(["dev", "serve"]);
    for cache in ["cache-0", "cache-1"] {
        command.arg("--cache").arg(dir.path(cache));
    }
    let origin = dir.path("origin");
    if !origin.exists() {
        dir.sparse("origin", 32 << 20);
    }
    command.arg("--origin").arg(origin).arg("--witness").arg(dir.path("witness"));
    command.arg("--socket").arg(dir.path(socket));
    command
}

/// Makes a new pool of small segments.
pub fn create(dir: &Dir) -> Command {
    let mut command = serve(dir);
    command.args(["--create", "--cache-bytes", "64M", "--segment-bytes", "256K"]);
    command
}

/// A running server; killed when the test ends.
pub struct Server {
    child: Child,
    lines: Receiver<String>,
    pub summary: String,
    pub socket: PathBuf,
}

impl Server {
    /// Starts and waits until it serves.
    pub fn start(mut command: Command, dir: &Dir) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let socket = dir.path("sock");
        let mut server = Server { child, lines, summary: String::new(), socket };
        server.summary = server.line_with("pool ");
        server.line_with("serving ");
        server
    }

    /// The next line that begins like this.
    pub fn line_with(&self, start: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("no line begins with {start:?}"));
            if line.starts_with(start) {
                return line;
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A counter as it is now.
    pub fn counter(&self, name: &str) -> u64 {
        signal(self.pid(), "USR1");
        value(&self.line_with("counters: "), name)
    }

    /// Ends it as a power cut of the process: no handler runs.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it with SIGTERM; its last line.
    pub fn stop(mut self) -> String {
        signal(self.pid(), "TERM");
        let line = self.line_with("stopped: ");
        assert!(self.child.wait().unwrap().success());
        line
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of `name=` in a line of counters.
pub fn value(line: &str, name: &str) -> u64 {
    let found = line.split(' ').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    found.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {line}"))
}

pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
    assert!(status.unwrap().success());
    // Its threads stop one by one; one that has not may still answer. What waits for a device stops later.
    let mut looks = if name == "STOP" { 0..1_000 } else { 0..0 };
    while looks.next().is_some() && !is_stopped(pid) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether all threads of a process are stopped.
fn is_stopped(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut stats = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")));
    // The state is behind the name, which ends with the last bracket.
    let state = |stat: String| stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    stats.all(|stat| stat.ok().and_then(state).is_none_or(|state| state == 'T'))
}

/// Every command that `--help` shows, the whole one (no words) first.
pub fn commands() -> Vec<Vec<String>> {
    let (mut left, mut found) = (vec![Vec::new()], Vec::new());
    while let Some(path) = left.pop() {
        let below = below(&path);
        left.extend(below.into_iter().rev().map(|name| [&path[..], &[name]].concat()));
        found.push(path);
    }
    found
}

/// Commands that have no others below them.
pub fn leaves() -> BTreeSet<String> {
    let all = commands();
    let is_leaf = |path: &&Vec<String>| {
        !path.is_empty()
            && !all.iter().any(|other| other.len() > path.len() && other.starts_with(path))
    };
    all.iter().filter(is_leaf).map(|path| path.join(" ")).collect()
}

fn below(path: &[String]) -> Vec<String> {
    let output = run(forebay().args(path).arg("--help"));
    let text = String::from_utf8(output.stdout).unwrap();
    let Some((_, list)) = text.split_once("\nCommands:\n") else { return Vec::new() };
    let lines = list.lines().take_while(|line| !line.is_empty());
    // Continued descriptions are indented further.
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != "help").map(str::to_owned).collect()
}

/// Writes a program. A child does it: had this process the file open, what another test starts meanwhile would have it
/// too for a moment, and who runs it then would hear that the text file is busy.
pub fn script(path: &Path, text: &str) {
    let mut command = Command::new("sh");
    command.args(["-c", "printf %s \"$1\" > \"$0\" && chmod +x \"$0\""]).arg(path).arg(text);
    assert!(run(&mut command).status.success());
}

/// Runs to the end, which must come by itself.
pub fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether a program can be started; if not, says that a test is skipped. Where everything is to run (`CI=true`, as
/// .ci/run has it) the test fails instead, unless the program is only out of this user's reach.
pub fn have(program: &str) -> bool {
    let found =
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        skip(program, &format!("there is no {program}"));
    }
    found.is_ok()
}

/// Says that a test is skipped for the lack of a program that `scripts/setup.sh test` installs.
pub fn skip(program: &str, why: &str) {
    let is_hidden = ["/usr/sbin", "/sbin"].iter().any(|dir| Path::new(dir).join(program).exists());
    let must_run = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!must_run || is_hidden, "{why}: `scripts/setup.sh test` installs it");
    println!("skipped: {why}");
}

/// A client of the NBD protocol: one request at a time.
pub struct Client {
    stream: UnixStream,
    /// What it was told when it connected.
    pub size_bytes: u64,
}

impl Client {
    pub fn connect(socket: &Path) -> Client {
        Client::over(UnixStream::connect(socket).unwrap())
    }

    /// The same over a connection that somebody else has made.
    pub fn over(mut stream: UnixStream) -> Client {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut hello = [0; 18];
        stream.read_exact(&mut hello).unwrap();
        assert_eq!(&hello[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle, no zeroes; NBD_OPT_EXPORT_NAME "" is the only export.
        stream.write_all(&3u32.to_be_bytes()).unwrap();
        stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        let mut export = [0; 10];
        stream.read_exact(&mut export).unwrap();
        Client::open(stream, &export)
    }

    /// The same where the export was chosen, and this is the answer.
    pub fn open(stream: UnixStream, export: &[u8]) -> Client {
        let size_bytes = u64::from_be_bytes(export[..8].try_into().unwrap());
        Client { stream, size_bytes }
    }

    fn request(&mut self, kind: u16, offset: u64, len: u32, data: &[u8]) -> std::io::Result<()> {
        self.flagged(kind, 0, offset, len, data)
    }

    /// A request without an answer of its own, with flags of the command.
    pub fn flagged(
        &mut self,
        kind: u16,
        flags: u16,
        offset: u64,
        len: u32,
        data: &[u8],
    ) -> std::io::Result<()> {
        let mut head = Vec::from(0x2560_9513u32.to_be_bytes());
        head.extend(flags.to_be_bytes());
        head.extend(kind.to_be_bytes());
        head.extend([7; 8]);
        head.extend(offset.to_be_bytes());
        head.extend(len.to_be_bytes());
        head.extend(data);
        self.stream.write_all(&head)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(&reply[..4], &0x6744_6698u32.to_be_bytes());
        assert_eq!(&reply[8..], &[7; 8], "the reply is for another request");
        match u32::from_be_bytes(reply[4..8].try_into().unwrap()) {
            0 => Ok(()),
            error => Err(std::io::Error::from_raw_os_error(error as i32)),
        }
    }

    /// Several requests at a time: kind, flags, offset, length, data. Their answers, in the same order, whenever they come.
    pub fn several(
        &mut self,
        requests: &[(u16, u16, u64, u32, Vec<u8>)],
    ) -> Vec<Result<Vec<u8>, Option<i32>>> {
        let mut answers = vec![None; requests.len()];
        let mut stream = self.stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            // A server need not take any more while nobody takes its answers.
            scope.spawn(move || {
                for (number, (kind, flags, offset, len, data)) in (0u64..).zip(requests) {
                    let mut head = Vec::from(0x2560_9513u32.to_be_bytes());
                    head.extend(flags.to_be_bytes());
                    head.extend(kind.to_be_bytes());
                    head.extend(number.to_be_bytes());
                    head.extend(offset.to_be_bytes());
                    head.extend(len.to_be_bytes());
                    head.extend(data);
                    stream.write_all(&head).unwrap();
                }
            });
            for _ in requests {
                let mut reply = [0; 16];
                self.stream.read_exact(&mut reply).unwrap();
                assert_eq!(&reply[..4], &0x6744_6698u32.to_be_bytes());
                let number = u64::from_be_bytes(reply[8..].try_into().unwrap()) as usize;
                let (kind, _, _, len, _) = requests[number];
                let answer = match u32::from_be_bytes(reply[4..8].try_into().unwrap()) {
                    0 => {
                        let mut data = vec![0; if kind == 0 { len as usize } else { 0 }];
                        self.stream.read_exact(&mut data).unwrap();
                        Ok(data)
                    }
                    error => Err(Some(error as i32)),
                };
                assert!(answers[number].replace(answer).is_none(), "answered twice");
            }
        });
        answers.into_iter().map(Option::unwrap).collect()
    }

    pub fn read(&mut self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.request(0, offset, buf.len() as u32, &[])?;
        self.stream.read_exact(buf)
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.request(1, offset, data.len() as u32, data)
    }

    pub fn flush(&mut self) -> std::io::Result<()> {
        self.request(3, 0, 0, &[])
    }

    pub fn write_zeroes(&mut self, offset: u64, len: u32) -> std::io::Result<()> {
        self.request(6, offset, len, &[])
    }

    pub fn prefetch(&mut self, offset: u64, len: u32) -> std::io::Result<()> {
        self.request(5, offset, len, &[])
    }
}

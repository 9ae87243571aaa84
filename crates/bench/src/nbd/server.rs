//! The servers, as processes: ours and those beside it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::rc::Rc;

use forebay_device::real::prepare::prepare_file;
use forebay_device::runtime::{MILLISECOND, Nanos, SECOND};
use forebay_device::{Runtime, real::reactor::Reactor};
use forebay_lab::process::Process;

use super::{NbdOptions, proc};
use crate::bench::{Result, Sizes};
use crate::fio::{Fio, Job};

/// How often something that is waited for is looked at; each look at what is dirty costs the server a signal.
const LOOK_EVERY: Nanos = 50 * MILLISECOND;

/// How often a start or an end is, which are timed.
const LOOK_CLOSELY_EVERY: Nanos = 5 * MILLISECOND;

/// When it is given up.
const PATIENCE: Nanos = 60 * SECOND;

/// The cache that a pool has whose only volume goes past it.
const DISK_CACHE_BYTES: u64 = 64 << 20;

/// A running server.
pub(super) struct Server {
    process: Process,
    pub uri: String,
    program: PathBuf,
    args: Vec<String>,
    socket: Files,
}

/// Starts a program whose errors nobody reads.
fn start(program: &Path, args: &[String], stdout: Stdio) -> Result<Process> {
    let started = Process::start(program, args, stdout, Stdio::null());
    started.map_err(|e| format!("running env, of coreutils: {e}"))
}

/// What one side of a round came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figure {
    /// Requests per second; a write and its flush are one.
    pub rate: f64,
    /// CPU of the server for one of them, in microseconds.
    pub cpu_us: f64,
    /// The slowest connection's share of the fastest one's rate.
    pub fairness: f64,
}

impl Server {
    /// Starts one of the others: the program with `args`, which is given a socket by `flag`.
    fn peer(
        clock: &Rc<Reactor>,
        socket: &Path,
        program: &str,
        flag: &str,
        args: &[String],
    ) -> Result<Self> {
        let args = [&[flag.to_owned(), socket.display().to_string()], args].concat();
        Self::start(clock, socket, program, &args)
    }

    /// The same, with all arguments.
    fn start(clock: &Rc<Reactor>, socket: &Path, program: &str, args: &[String]) -> Result<Self> {
        let (files, program) = (Files::new(&[socket]), PathBuf::from(program));
        let process = Self::launch(clock, socket, &program, args)?;
        let uri = uri("", socket);
        Ok(Self { process, uri, program, args: args.to_owned(), socket: files })
    }

    /// Starts the program and waits until it takes clients.
    fn launch(
        clock: &Rc<Reactor>,
        socket: &Path,
        program: &Path,
        args: &[String],
    ) -> Result<Process> {
        let (mut process, name) = (start(program, args, Stdio::null())?, program.display());
        let answers = wait(clock, LOOK_CLOSELY_EVERY, || match process.ended() {
            Ok(Some(status)) => Err(format!("{name} ended at once: {status}")),
            _ => Ok(UnixStream::connect(socket).is_ok()),
        });
        if answers? { Ok(process) } else { Err(format!("{name} does not answer")) }
    }

    /// Sends a signal that ends it, and waits until it has.
    ///
    /// # Errors
    /// If it does not end.
    pub(super) fn end(&mut self, clock: &Rc<Reactor>, signal: &str) -> Result<()> {
        send(&self.process, signal)?;
        let ended = || Ok(self.process.ended().is_ok_and(|status| status.is_some()));
        match wait(clock, LOOK_CLOSELY_EVERY, ended)? {
            true => Ok(()),
            false => Err(format!("{} does not end", self.program.display())),
        }
    }

    /// Starts one of the others again, which has ended.
    ///
    /// # Errors
    /// If it does not start.
    pub(super) fn again(&mut self, clock: &Rc<Reactor>) -> Result<()> {
        // What was killed has left it behind.
        self.socket.remove();
        let socket = self.socket.0.first().ok_or("it has no socket")?;
        self.process = Self::launch(clock, socket, &self.program, &self.args)?;
        Ok(())
    }

    pub(super) fn qemu(clock: &Rc<Reactor>, dir: &Path, file: &Path) -> Result<Self> {
        // Without -e it takes one client at a time.
        let fixed = "--persistent --shared=0 --format=raw --cache=none --aio=io_uring";
        let mut args: Vec<String> = fixed.split(' ').map(str::to_owned).collect();
        args.push(file.display().to_string());
        Self::peer(clock, &dir.join("qemu.sock"), "qemu-nbd", "-k", &args)
    }

    /// nbdkit with a plugin and what that wants to know.
    pub(super) fn nbdkit(clock: &Rc<Reactor>, dir: &Path, plugin: &str, arg: &str) -> Result<Self> {
        let socket = dir.join(format!("nbdkit-{plugin}.sock"));
        let args = ["--foreground", plugin, arg].map(str::to_owned);
        Self::peer(clock, &socket, "nbdkit", "-U", &args)
    }

    /// nbdkit's cache in front of an export, in a mode of its own, with its file in `dir`, which may become as
    /// large as the export if no maximum is given.
    pub(super) fn cached(
        clock: &Rc<Reactor>,
        dir: &Path,
        mode: &str,
        origin: &str,
        bytes_max: Option<u64>,
    ) -> Result<Self> {
        let socket = dir.join(format!("nbdkit-{mode}.sock"));
        // env becomes the program, which keeps its file where this says; -U is the last of its own.
        let mut args = vec![format!("TMPDIR={}", dir.display())];
        args.extend(["nbdkit", "--foreground", "--filter=cache", "nbd"].map(str::to_owned));
        args.extend([format!("uri={origin}"), format!("cache={mode}")]);
        args.extend(bytes_max.map(|bytes| format!("cache-max-size={bytes}")));
        // Of the 64 KiB that it has by itself each request of 4 KiB would read and write all.
        args.extend(["cache-min-block-size=4096", "cache-on-read=true", "-U"].map(str::to_owned));
        Self::start(clock, &socket, "env", &[&args[..], &[socket.display().to_string()]].concat())
    }

    /// The first `size_bytes` of what it serves.
    pub(super) fn fio(&self, size_bytes: u64) -> Fio {
        Fio::nbd(&self.uri, size_bytes)
    }

    /// Runs `job` on the first `size_bytes` for a time.
    pub(super) fn measure(&self, job: Job, size_bytes: u64, span_ms: u64) -> Result<Figure> {
        let before = proc::cpu_seconds(&self.process)?;
        let answer = self.fio(size_bytes).run(job, span_ms)?;
        let cpu = proc::cpu_seconds(&self.process)? - before;
        let rate = answer.rate();
        let cpu_us = cpu * 1e6 / (rate * span_ms as f64 / 1e3);
        Ok(Figure { rate, cpu_us, fairness: answer.fairness() })
    }

    /// Bytes that it has sent to disks so far.
    ///
    /// # Errors
    /// If it has ended.
    pub(super) fn disk_bytes(&self) -> Result<f64> {
        proc::disk_bytes(&self.process)
    }

    /// Bytes of its memory, and of the page cache's that its removed files take.
    ///
    /// # Errors
    /// If it has ended; if there is no fincore, of util-linux.
    pub(super) fn memory_bytes(&self) -> Result<(f64, f64)> {
        Ok((proc::memory_bytes(&self.process)?, proc::page_cache_bytes(&self.process)?))
    }
}

fn send(process: &Process, signal: &str) -> Result<()> {
    let sent =
        Command::new("kill").args([&format!("-{signal}"), &process.id().to_string()]).status();
    match sent.is_ok_and(|status| status.success()) {
        true => Ok(()),
        false => Err("the server has ended".to_owned()),
    }
}

fn uri(export: &str, socket: &Path) -> String {
    format!("nbd+unix:///{export}?socket={}", socket.display())
}

/// Looks again and again until it is so; false if it never is.
fn wait(
    clock: &Rc<Reactor>,
    every: Nanos,
    mut is_so: impl FnMut() -> Result<bool>,
) -> Result<bool> {
    for _ in 0..PATIENCE / every {
        if is_so()? {
            return Ok(true);
        }
        let runtime: &dyn Runtime = &**clock;
        let _ = clock.block_on(runtime.sleep(every));
    }
    Ok(false)
}

/// Our server, and its files, which are removed with it.
pub(super) struct Ours {
    pub server: Server,
    lines: BufReader<ChildStdout>,
    clock: Rc<Reactor>,
    _files: Files,
}

/// Files that are removed when this is dropped.
pub(super) struct Files(Vec<PathBuf>);

impl Files {
    pub(super) fn new(paths: &[&Path]) -> Self {
        let files = Self(paths.iter().map(|&path| path.to_owned()).collect());
        // Those of an aborted run are worth nothing.
        files.remove();
        files
    }

    fn remove(&self) {
        self.0.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Ours {
    /// Makes a pool with one volume, in files called after `name`, and serves it with one reactor.
    pub(super) fn start(
        clock: &Rc<Reactor>,
        options: &NbdOptions,
        sizes: &Sizes,
        name: &str,
        ram_bytes: u64,
    ) -> Result<Self> {
        let origin = options.origin_dir.join(format!("{name}.bin"));
        let mut files = Files::new(&[&origin]);
        write_file(clock, &origin, sizes.volume)?;
        let cache = [("--cache-bytes", sizes.cache), ("--ram", ram_bytes)];
        let cache = cache.map(|(flag, bytes)| [flag.to_owned(), bytes.to_string()]).concat();
        let mut ours = Self::before(clock, options, name, &origin.display().to_string(), &cache)?;
        ours._files.0.append(&mut files.0);
        Ok(ours)
    }

    /// A disk of the modelled kind, served by our program without a cache: its file is in memory.
    pub(super) fn disk(
        clock: &Rc<Reactor>,
        options: &NbdOptions,
        name: &str,
        size_bytes: u64,
    ) -> Result<Self> {
        let sizes = Sizes { cache: DISK_CACHE_BYTES, volume: size_bytes, written: 0 };
        let origin = options.origin_dir.join(format!("{name}.bin"));
        let mut files = Files::new(&[&origin]);
        write_file(clock, &origin, sizes.volume)?;
        let mut more = vec!["--cache-bytes".to_owned(), sizes.cache.to_string()];
        more.extend(
            ["--segment-bytes", "256K", "--mode", "bypass", "--modelled"].map(String::from),
        );
        let mut disk = Self::before(clock, options, name, &origin.display().to_string(), &more)?;
        disk._files.0.append(&mut files.0);
        Ok(disk)
    }

    /// A new pool with one volume in front of `origin`, with `more` arguments.
    pub(super) fn before(
        clock: &Rc<Reactor>,
        options: &NbdOptions,
        name: &str,
        origin: &str,
        more: &[String],
    ) -> Result<Self> {
        let beside = || Some(std::env::current_exe().ok()?.with_file_name("forebay"));
        let program = options.server.clone().or_else(beside).unwrap_or_default();
        if !program.exists() {
            let path = program.display();
            return Err(format!("there is no {path}; build it: `cargo build -p forebay-cli`"));
        }
        let dir = &options.bench.dir;
        let file = |what: &str| dir.join(format!("{name}-{what}"));
        let (cache, witness, socket) = (file("cache.bin"), file("witness"), file("sock"));
        let files = Files::new(&[&cache, &witness]);
        let mut args =
            ["dev", "serve", "--reactors", "1", "--origin", origin].map(str::to_owned).to_vec();
        for (flag, path) in [("cache", &cache), ("witness", &witness), ("socket", &socket)] {
            args.extend([format!("--{flag}"), path.display().to_string()]);
        }
        let new = ["--create", "--dirty-copies", "1", "--accept-data-loss-on-ssd-failure"];
        let new = [&args[..], &new.map(str::to_owned), more].concat();
        let place = Files::new(&[&socket]);
        let (process, lines) = Self::launch(&program, &new)?;
        let server = Server { process, uri: uri("dev", &socket), program, args, socket: place };
        let mut ours = Self { server, lines, clock: Rc::clone(clock), _files: files };
        ours.line("serving ")?;
        Ok(ours)
    }

    fn launch(program: &Path, args: &[String]) -> Result<(Process, BufReader<ChildStdout>)> {
        let mut process = start(program, args, Stdio::piped())?;
        let stdout = process.stdout().ok_or("our server has no output")?;
        Ok((process, BufReader::new(stdout)))
    }

    /// Starts it again, with the pool that it had; it has ended.
    ///
    /// # Errors
    /// If it does not start.
    pub(super) fn again(&mut self) -> Result<()> {
        self.server.socket.remove();
        (self.server.process, self.lines) = Self::launch(&self.server.program, &self.server.args)?;
        self.line("serving ").map(|_| ())
    }

    /// The rest of its next line of output that begins with `prefix`.
    fn line(&mut self, prefix: &str) -> Result<String> {
        let mut line = String::new();
        while self.lines.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            if let Some(rest) = line.strip_prefix(prefix) {
                return Ok(rest.to_owned());
            }
            line.clear();
        }
        Err(format!("our server ended before it said \"{prefix}\""))
    }

    /// One of its counters.
    pub(super) fn counter(&mut self, name: &str) -> Result<u64> {
        send(&self.server.process, "USR1")?;
        let line = self.line("counters: ")?;
        let value =
            line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let value = value.and_then(|value| value.parse().ok());
        value.ok_or_else(|| format!("our server has no counter {name}"))
    }

    /// Reads that found not all of what they wanted, or not in RAM.
    pub(super) fn misses(&mut self, ram: bool) -> Result<u64> {
        let missed = self.counter("read_misses")? + self.counter("read_partial_hits")?;
        let elsewhere = match ram {
            true => self.counter("read_hits")? - self.counter("read_ram_hits")?,
            false => 0,
        };
        Ok(missed + elsewhere)
    }

    /// Waits until the origin has everything.
    pub(super) fn settle(&mut self) -> Result<()> {
        let clock = Rc::clone(&self.clock);
        match wait(&clock, LOOK_EVERY, || Ok(self.counter("dirty_blocks")? == 0))? {
            true => Ok(()),
            false => Err("our server does not get its origin up to date".to_owned()),
        }
    }
}

/// Writes a file in full.
pub(super) fn write_file(clock: &Rc<Reactor>, path: &Path, size_bytes: u64) -> Result<()> {
    let written = clock.block_on(prepare_file(clock, path, size_bytes, |_| ()));
    written.map_err(|e| format!("{e}; {}", e.hint()))
}

/// Sends what the page cache holds of a file system to its disk: also of files without a name.
pub(super) fn sync_file_system(path: &Path) -> Result<()> {
    match Command::new("sync").arg("-f").arg(path).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("sync -f {} has failed: {status}", path.display())),
        Err(error) => Err(format!("running sync, of coreutils: {error}")),
    }
}

/// Sends what the page cache holds of a file to its disk.
pub(super) fn sync_file(path: &Path) -> Result<()> {
    let synced = File::options().write(true).open(path).and_then(|file| file.sync_all());
    synced.map_err(|e| format!("syncing {}: {e}", path.display()))
}

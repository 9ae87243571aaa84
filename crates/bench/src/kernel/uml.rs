//! The guest as processes of the host: its kernel, and what serves its SSD.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use forebay_device::Runtime;
use forebay_device::real::prepare::prepare_file;
use forebay_device::real::reactor::Reactor;
use forebay_device::runtime::{MILLISECOND, Nanos};
use forebay_lab::process::Process;

use super::engines::NAMES;
use super::protocol::Line;
use super::rig::Asked;
use super::said::Said;
use super::system::system_call_ns;
use crate::bench::{Bench, Result};

/// How long the guest may say nothing: a side that fills its cache at the speed of the slow disk takes minutes.
const SILENCE_MAX: Duration = Duration::from_secs(600);

/// How often the SSD's server is looked at until it has made its socket, and how many times: ten seconds.
const LOOK_EVERY: Nanos = 100 * MILLISECOND;
const LOOKS_MAX: u32 = 100;

/// The guest's files, removed with it.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a program with processes of its own, all of which end when it does, or when the pipe is closed: also by the end of
/// this process, whatever it dies of. A kernel's helpers do not end with it, and it makes a session of its own, with a group
/// of its own, for itself and its guest's processes.
const KEEPER: &str = r#"
    exec 3<&0
    "$@" </dev/null 3<&- & program=$!
    end() { kill -s KILL -- "-$program" 2>/dev/null; kill -s KILL 0; }
    (cat <&3 >/dev/null; end) &
    wait "$program"
    end"#;

/// A process with others, of its own group or its keeper's, which end with it.
struct Group(Child);

impl Group {
    fn start(program: &str, args: &[String]) -> Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", KEEPER, "sh", program]).args(args).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().map(Self).map_err(|e| format!("running sh: {e}"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Serves the file to the guest, past the page cache.
fn serve(clock: &Rc<Reactor>, file: &Path, socket: &Path) -> Result<Process> {
    let mut args = Vec::new();
    args.extend(["--object".to_owned(), "iothread,id=thread".to_owned()]);
    let (file, path) = (file.display(), socket.display());
    args.extend([
        "--blockdev".to_owned(),
        format!("driver=file,filename={file},node-name=ssd,aio=io_uring,cache.direct=on"),
        "--export".to_owned(),
        format!(
            "type=vhost-user-blk,id=export,node-name=ssd,addr.type=unix,addr.path={path},\
             writable=on,iothread=thread"
        ),
    ]);
    let program = "qemu-storage-daemon";
    let started = Process::start(Path::new(program), &args, Stdio::null(), Stdio::null());
    let mut process = started.map_err(|e| format!("running env, of coreutils: {e}"))?;
    for _ in 0..LOOKS_MAX {
        if socket.exists() {
            return Ok(process);
        }
        if let Ok(Some(status)) = process.ended() {
            return Err(format!("{program} ended at once: {status}; `scripts/setup.sh kernel`"));
        }
        let runtime: &dyn Runtime = &**clock;
        let _ = clock.block_on(runtime.sleep(LOOK_EVERY));
    }
    Err(format!("{program} makes no socket"))
}

/// The kernel's arguments, behind those of env, which runs it.
fn arguments(kernel: &Path, place: &Path, socket: &Path, asked: &Asked) -> Result<Vec<String>> {
    let program = std::env::current_exe().map_err(|e| format!("this program: {e}"))?;
    // One is left for the SSD. A processor of the guest that has to wait for one of the host may hold a lock.
    let cores = thread::available_parallelism().map_or(1, usize::from).saturating_sub(1).max(1);
    // Its memory is a file there. This machine's own files are its root, which it only reads.
    let mut args = vec!["TMPDIR=/dev/shm".to_owned(), kernel.display().to_string()];
    args.extend("root=none rootfstype=hostfs rootflags=/ ro".split(' ').map(str::to_owned));
    args.extend("con=null con0=null,fd:1 ssl=null quiet loglevel=3".split(' ').map(str::to_owned));
    args.extend([
        format!("mem={}M", asked.memory_mib()),
        format!("uml_dir={}", place.display()),
        format!("virtio_uml.device={}:2", socket.display()),
        format!("init={}", program.display()),
        // Cheaper system calls, and more than one processor, where the kernel knows them.
        "seccomp=auto".to_owned(),
        format!("ncpus={cores}"),
        format!("loop.max_loop={}", 2 * NAMES.len()),
        "bcache.bch_cutoff_writeback=70".to_owned(),
        "bcache.bch_cutoff_writeback_sync=90".to_owned(),
        "umid=guest".to_owned(),
        "--".to_owned(),
    ]);
    args.extend(asked.to_args());
    Ok(args)
}

/// Runs the guest to its end.
///
/// # Errors
/// If it does not start, or has not said all when it ends.
pub(super) fn boot(bench: &mut Bench, kernel: &Path, asked: &Asked) -> Result<Said> {
    if !kernel.exists() {
        let path = kernel.display();
        return Err(format!(
            "there is no kernel {path}; `scripts/setup.sh kernel` installs Debian's"
        ));
    }
    let dir = bench.options.dir.canonicalize();
    let place = Place(dir.map_err(|e| format!("the directory: {e}"))?.join("kernel"));
    // What an aborted run has left is worth nothing.
    let _ = std::fs::remove_dir_all(&place.0);
    std::fs::create_dir(&place.0).map_err(|e| format!("making {}: {e}", place.0.display()))?;
    let (ssd, socket) = (place.0.join("ssd.bin"), place.0.join("ssd.sock"));
    let written = prepare_file(&bench.clock, &ssd, asked.ssd_bytes(), |_| ());
    bench.clock.block_on(written).map_err(|e| format!("{e}; {}", e.hint()))?;
    let _server = serve(&bench.clock, &ssd, &socket)?;
    let args = arguments(kernel, &place.0, &socket, asked)?;
    let mut guest = Group::start("env", &args)?;
    let console = guest.0.stdout.take().ok_or("the guest has no console")?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        // Boot messages need not be text.
        let lines = BufReader::new(console).split(b'\n').map_while(std::result::Result::ok);
        for line in lines {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
    let mut said = Said::default();
    let price = system_call_ns()? / 1e3;
    said.facts.push(format!("host: a system call costs {price:.2} us"));
    let mut last = String::from("nothing");
    while let Ok(text) = receiver.recv_timeout(SILENCE_MAX) {
        let Some(line) = Line::parse(&text) else {
            last = text;
            continue;
        };
        if said.hear(bench, line)? {
            return Ok(said);
        }
    }
    let facts = said.facts.last().map_or("", String::as_str);
    Err(format!("the guest ended, or was silent, before its end: {facts}; last: {}", last.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program ends when its group is dropped, and so does a process that it has started and told the number of.
    fn ends_with_its_helper(program: &[&str]) {
        let arguments: Vec<_> = program[1..].iter().map(ToString::to_string).collect();
        let mut group = Group::start(program[0], &arguments).expect("a group");
        let mut line = String::new();
        let console = group.0.stdout.take().expect("a console");
        BufReader::new(console).read_line(&mut line).expect("a line");
        let helper = PathBuf::from(format!("/proc/{}/stat", line.trim()));
        assert!(helper.exists());
        drop(group);
        // Its parent is dead: whoever inherits it has to take notice, or it stays as a zombie.
        let is_gone =
            || std::fs::read_to_string(&helper).map_or(true, |stat| stat.contains(") Z "));
        let mut looks = 0;
        while !is_gone() && looks < 100 {
            let slept = Command::new("sleep").arg("0.02").status();
            assert!(slept.is_ok_and(|status| status.success()));
            looks += 1;
        }
        assert!(is_gone());
    }

    #[test]
    fn helpers_of_a_guest_end_with_it() {
        let script = "sleep 600 & echo $!; sleep 600";
        ends_with_its_helper(&["sh", "-c", script]);
    }

    #[test]
    fn a_guest_with_a_session_of_its_own_ends_with_its_helpers() {
        let script = "sleep 600 & echo $!; sleep 600";
        ends_with_its_helper(&["setsid", "sh", "-c", script]);
    }
}

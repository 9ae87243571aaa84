//! A server in a thread of its own, on a Unix socket and on loopback TCP.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_device::Runtime;
use forebay_device::real::net::{Listener, TcpOptions};
use forebay_device::real::reactor::{Config, Reactor};
use forebay_device::runtime::MILLISECOND;
use forebay_export::Export;
use forebay_export::nbd::{Exports, Server, Settings, Tls};

use super::memory_export::MemoryExport;

pub const SIZE: usize = 64 << 20;

/// The longest that one client may run, in seconds; `timeout` ends it then by its process id.
const CLIENT_SECONDS_MAX: &str = "120";

/// The longest wait for a complaint: beyond it there will be none.
const COMPLAINT_WAIT_MAX: Duration = Duration::from_secs(60);

/// A word to the server's thread.
#[derive(Default)]
struct Stop(Mutex<(bool, Option<Waker>)>);

impl Stop {
    fn say(&self) {
        let mut state = self.0.lock().unwrap();
        state.0 = true;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    }

    async fn wait(&self) {
        poll_fn(|cx| {
            let mut state = self.0.lock().unwrap();
            state.1 = Some(cx.waker().clone());
            if state.0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// A running server with the exports `plain`, `jitter` (replies out of order) and `fixed`
/// (read-only).
pub struct RealServer {
    pub directory: PathBuf,
    pub tcp: SocketAddr,
    /// Requests that `jitter` has finished.
    pub progress: Arc<AtomicUsize>,
    /// What the server has had to say of its clients.
    pub complaints: mpsc::Receiver<String>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<Vec<u8>>>,
}

impl RealServer {
    pub fn start() -> Self {
        Self::start_with(None)
    }

    pub fn start_with(tls: Option<Tls>) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-export-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let stop = Arc::<Stop>::default();
        let (stopping, path) = (Arc::clone(&stop), directory.join("nbd.sock"));
        let (sender, receiver) = mpsc::channel();
        let (complain, complaints) = mpsc::channel();
        let thread = std::thread::spawn(move || serve(&path, tls, complain, &stopping, &sender));
        let (tcp, progress) = receiver.recv().expect("the server starts");
        Self { directory, tcp, progress, complaints, stop, thread: Some(thread) }
    }

    /// The next complaint, once there is one: a client may well be gone before the server has
    /// noticed.
    pub fn complaint(&self) -> String {
        self.complaints.recv_timeout(COMPLAINT_WAIT_MAX).expect("the server complains")
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.join("nbd.sock")
    }

    pub fn unix_uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    pub fn tcp_uri(&self, export: &str) -> String {
        format!("nbd://{}/{export}", self.tcp)
    }

    /// For libnbd, which takes the certificates from a directory. The server's certificate is for
    /// `localhost`.
    pub fn tls_uri(&self, export: &str, certificates: &Path) -> String {
        let port = self.tcp.port();
        format!("nbds://localhost:{port}/{export}?tls-certificates={}", certificates.display())
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Stops the server gracefully, checks that it leaves nothing behind, and returns the
    /// content of `plain`.
    pub fn stop(mut self) -> Vec<u8> {
        self.stop.say();
        let thread = self.thread.take().expect("stopped once");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        self.stop.say();
        let _ = self.thread.take().map(JoinHandle::join);
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn serve(
    path: &Path,
    tls: Option<Tls>,
    complaints: mpsc::Sender<String>,
    stop: &Stop,
    ready: &mpsc::Sender<(SocketAddr, Arc<AtomicUsize>)>,
) -> Vec<u8> {
    let reactor = Reactor::new(Config::default()).expect("a ring");
    let runtime: Rc<dyn Runtime> = Rc::clone(&reactor) as _;
    let new = |name: &str| MemoryExport::new(Rc::clone(&runtime), name, SIZE);
    let plain = Rc::new(new("plain"));
    let jitter = Rc::new(new("jitter").delayed());
    let fixed = Rc::new(new("fixed").read_only());
    let exports = Exports::default();
    for export in [&plain, &jitter, &fixed] {
        exports.add(Rc::clone(export)).unwrap();
    }
    let settings = Settings { tls, ..Settings::default() };
    let server = Server::new(Rc::clone(&runtime), exports, settings, move |it| {
        eprintln!("note: {it}");
        let _ = complaints.send(it.to_string());
    });
    let unix = Listener::unix(&reactor, path).expect("a Unix socket");
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let tcp = Listener::tcp(&reactor, &any_port, TcpOptions::default()).expect("a TCP socket");
    let address = tcp.local_addr().expect("a TCP address");
    runtime.spawn(Box::pin(Rc::clone(&server).serve(unix)));
    runtime.spawn(Box::pin(Rc::clone(&server).serve(tcp)));
    ready.send((address, Arc::clone(&jitter.finished))).unwrap();
    reactor.block_on(stop.wait());
    server.stop();
    let mut waits = 0;
    while reactor.tasks_live_count() > 0 {
        reactor.block_on(runtime.sleep(MILLISECOND).done()).unwrap();
        waits += 1;
        assert!(waits < 60_000, "a task outlives the server");
    }
    assert_eq!((server.connection_count(), server.inflight_bytes()), (0, 0));
    for export in [&plain, &jitter, &fixed] {
        assert_eq!(export.inflight.get(), 0, "{}", export.name());
    }
    reactor.close();
    plain.bytes().clone()
}

/// Whether all `programs` are installed; says so if not.
pub fn installed(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing = programs.iter().find(|program| {
        !std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
    });
    if let Some(program) = missing {
        eprintln!("skipped: {program} is not installed");
    }
    missing.is_none()
}

/// A client with its arguments, ended after a while.
pub fn client(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", CLIENT_SECONDS_MAX, program]).args(arguments);
    command.stdin(Stdio::null());
    command
}

/// Runs a client to its end; its standard output if it succeeds.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = client(program, arguments).output().expect("timeout runs");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{stdout}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    stdout
}

//! A volume on its sockets, until the process is asked to end.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_device::real::net::{Listener, TcpOptions};
use forebay_device::real::reactor::Reactor;
use forebay_device::real::signal::Signals;
use forebay_device::runtime::{MILLISECOND, Nanos, Runtime};
use forebay_engine::Volume;

use crate::Result;
use crate::failure::Failure;
use crate::flag::Flag;
use crate::front::Front;
use crate::members::Members;

/// Exit code after a second signal, as a shell reports an interrupted command.
const EXIT_INTERRUPTED: i32 = 130;

/// Pause after a failed accept: the usual reason is a lack of file descriptors, which passes.
const ACCEPT_PAUSE: Nanos = 100 * MILLISECOND;

/// A server of one volume: its listeners, and fronts that share the clients.
pub(crate) struct Host {
    fronts: Rc<Vec<Front>>,
    closing: Rc<Flag>,
    /// Raised when a listener is closed.
    closed: Vec<Rc<Flag>>,
    /// How clients reach the volume, the Unix socket first.
    pub(crate) uris: Vec<String>,
}

/// Where a host listens, and on how many reactors it serves.
pub(crate) struct Places<'a> {
    pub(crate) socket: &'a Path,
    pub(crate) port: Option<u16>,
    pub(crate) reactors: NonZeroUsize,
}

/// A reactor for each core.
pub(crate) fn reactors_default() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

impl Host {
    /// Serves `volume` on a Unix socket and, with a port, on loopback. `reactor` is the pool's;
    /// the others get threads of their own.
    ///
    /// # Errors
    /// If an address cannot be listened on, or there is no thread to be had.
    pub(crate) fn start(
        reactor: &Rc<Reactor>,
        members: &Members,
        volume: &Volume,
        places: &Places,
    ) -> Result<Host> {
        let (listeners, uris) = listen(reactor, volume.name(), places)?;
        let mut fronts = Vec::new();
        // The pool's reactor has most to do: it gets a client after the others have one.
        for number in 1..places.reactors.get() {
            let (name, members) = (format!("front-{number}"), members.readers()?);
            fronts.push(Front::on_thread(&name, volume.share(), members)?);
        }
        fronts.push(Front::here(reactor, volume.client())?);
        let (fronts, closing) = (Rc::new(fronts), Rc::new(Flag::default()));
        let next = Rc::new(Cell::new(0));
        let mut closed = Vec::new();
        for listener in listeners {
            let flag = Rc::new(Flag::default());
            closed.push(Rc::clone(&flag));
            let (fronts, closing) = (Rc::clone(&fronts), Rc::clone(&closing));
            let (next, runtime) = (Rc::clone(&next), Rc::clone(reactor) as Rc<dyn Runtime>);
            reactor.spawn(Box::pin(async move {
                closing.cut(deal(&*runtime, &listener, &fronts, &next)).await;
                flag.raise();
            }));
        }
        Ok(Host { fronts, closing, closed, uris })
    }

    /// Answers what was asked, then closes all connections.
    pub(crate) async fn stop(self) {
        self.closing.raise();
        for flag in &self.closed {
            flag.wait().await;
        }
        for front in &*self.fronts {
            front.stop().await;
        }
        let fronts = Rc::into_inner(self.fronts).unwrap_or_default();
        fronts.into_iter().for_each(Front::join);
    }
}

/// The listeners, and how clients call them.
fn listen(
    reactor: &Rc<Reactor>,
    name: &str,
    places: &Places,
) -> Result<(Vec<Listener>, Vec<String>)> {
    let socket = places.socket;
    let unix = Listener::unix(reactor, socket).map_err(|error| {
        Failure::system(format!("listen on {}", socket.display()), &error)
            .hint("choose another place with --socket; a path has at most 107 bytes")
    })?;
    let mut listeners = vec![unix];
    let absolute = std::path::absolute(socket).unwrap_or_else(|_| PathBuf::from(socket));
    let mut uris = vec![format!("nbd+unix:///{name}?socket={}", absolute.display())];
    if let Some(port) = places.port {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let tcp = Listener::tcp(reactor, &address, TcpOptions::default()).map_err(|error| {
            Failure::system(format!("listen on {address}"), &error)
                .hint("choose another --port; 0 takes a free one")
        })?;
        let address = tcp.local_addr().unwrap_or(address);
        uris.push(format!("nbd://{address}/{name}"));
        listeners.push(tcp);
    }
    Ok((listeners, uris))
}

/// Gives each client that comes to the next front.
async fn deal(runtime: &dyn Runtime, listener: &Listener, fronts: &[Front], next: &Cell<usize>) {
    loop {
        match listener.accept_socket().await {
            Ok(socket) => {
                let front = &fronts[next.get() % fronts.len()];
                next.set(next.get().wrapping_add(1));
                front.take(socket).await;
            }
            Err(_) => {
                let _ = runtime.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Raises the flag at the first SIGINT or SIGTERM; the second one ends the process at once, which
/// a pool survives as it survives a crash. `on_usr1` runs at each SIGUSR1.
///
/// # Errors
/// What the system says.
pub(crate) fn end_on_signals(
    reactor: &Rc<Reactor>,
    on_usr1: impl Fn() + 'static,
) -> Result<Rc<Flag>> {
    let signals = Signals::new(reactor, &[libc::SIGINT, libc::SIGTERM, libc::SIGUSR1])
        .map_err(|error| Failure::system("receive signals", &error))?;
    let flag = Rc::new(Flag::default());
    let raised = Rc::clone(&flag);
    reactor.spawn(Box::pin(async move {
        while let Ok(number) = signals.next().await {
            if number == libc::SIGUSR1 {
                on_usr1();
            } else if raised.is_raised() {
                std::process::exit(EXIT_INTERRUPTED);
            } else {
                raised.raise();
            }
        }
    }));
    Ok(flag)
}

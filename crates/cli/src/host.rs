//! A volume on its sockets, until the process is asked to end.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::task::{Poll, Waker};

use forebay_device::real::net::{Bound, Listener, Socket, SocketFile, TcpOptions};
use forebay_device::real::reactor::Reactor;
use forebay_device::real::signal::Signals;
use forebay_device::runtime::{MILLISECOND, Nanos, Runtime};
use forebay_engine::Volume;
use forebay_engine::ids::PoolId;
use forebay_export::is_of_one_client;

use crate::Result;
use crate::blocking::{begin, on_thread};
use crate::crew::Crew;
use crate::export::Terms;
use crate::failure::Failure;
use crate::flag::{Flag, race};
use crate::front::Front;
use crate::members::{PATIENCE, Readers};
use crate::patience::{ANSWER_TIME_MAX, Pending, no_answer};
use crate::plain::{Plain, PlainExport};

/// Exit code after a second signal, as a shell reports an interrupted command.
const EXIT_INTERRUPTED: i32 = 130;

/// Pause after a failed accept or listen: for the first, the usual reason is a lack of file descriptors, which passes.
const ACCEPT_PAUSE: Nanos = 100 * MILLISECOND;

/// A server of one volume: its listeners, and fronts that share the clients.
pub(crate) struct Host {
    fronts: Rc<Fronts>,
    closing: Rc<Flag>,
    /// Raised when a listener is closed.
    closed: Vec<Rc<Flag>>,
    /// How clients reach the volume, the Unix socket first.
    pub(crate) uris: Vec<String>,
    /// The TCP address, if it listens on one.
    pub(crate) address: Option<SocketAddr>,
}

/// Where a host listens.
#[derive(Default)]
pub(crate) struct Places<'a> {
    pub(crate) socket: Option<&'a Path>,
    pub(crate) address: Option<SocketAddr>,
    /// Whether every client has to use TLS.
    pub(crate) is_encrypted: bool,
    /// Whether the address may be one that other machines can reach.
    pub(crate) is_remote: bool,
    pub(crate) access: SocketAccess,
}

/// Who may connect to a Unix socket that is made: whoever may write to its file. As the system makes it that is its owner
/// alone, under any usual umask.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SocketAccess {
    pub(crate) mode: Option<u32>,
    /// By its number.
    pub(crate) group: Option<u32>,
}

/// A port of this machine alone.
pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Addresses that clients can connect to already; they are served by [`Host::start`].
#[derive(Default)]
pub(crate) struct Doors {
    listeners: Vec<Listener>,
    uris: Vec<String>,
    address: Option<SocketAddr>,
}

impl Host {
    /// Serves `volume`. `reactor` is the pool's; the crew's share the clients with it, and each has
    /// `readers` of the cache devices.
    ///
    /// # Errors
    /// If the volume's name cannot be an export's; nothing is left running then.
    pub(crate) async fn start(
        reactor: &Rc<Reactor>,
        doors: Doors,
        (pool, readers): (PoolId, Vec<Readers>),
        volume: &Volume,
        terms: &Terms,
        crew: &Crew,
    ) -> Result<Host> {
        let mut list = vec![Front::here(reactor, volume.client(), terms)?];
        for (hand, readers) in crew.hands().iter().zip(readers) {
            list.push(Front::there(hand, pool, volume.share(), readers, terms.clone()));
        }
        // The pool's reactor has most to do: of those with as few clients it gets the next one last.
        list.rotate_left(1);
        Ok(Host::of(reactor, doors, list))
    }

    /// Serves an origin without a cache, on this reactor alone.
    ///
    /// # Errors
    /// As [`Host::start`].
    pub(crate) fn start_plain(
        reactor: &Rc<Reactor>,
        doors: Doors,
        plain: &Rc<Plain>,
        terms: &Terms,
    ) -> Result<Host> {
        let front = Front::of(reactor, PlainExport::new(plain, terms), terms)?;
        Ok(Host::of(reactor, doors, vec![front]))
    }

    fn of(reactor: &Rc<Reactor>, doors: Doors, list: Vec<Front>) -> Host {
        let (fronts, closing) = (Rc::new(Fronts::new(list)), Rc::new(Flag::default()));
        let mut closed = Vec::new();
        for listener in doors.listeners {
            let flag = Rc::new(Flag::default());
            closed.push(Rc::clone(&flag));
            let (fronts, closing) = (Rc::clone(&fronts), Rc::clone(&closing));
            let runtime = Rc::clone(reactor) as Rc<dyn Runtime>;
            reactor.spawn(Box::pin(async move {
                closing.cut(deal(&*runtime, &listener, &fronts)).await;
                if let Some(file) = listener.close() {
                    remove(&*runtime, file).await;
                }
                flag.raise();
            }));
        }
        Host { fronts, closing, closed, uris: doors.uris, address: doors.address }
    }

    /// Answers what was asked, then closes all connections.
    pub(crate) async fn stop(&self) {
        self.closing.raise();
        // At once, also where a listener's file takes its time.
        all(self.fronts.list.iter().map(Front::stop).collect()).await;
        for flag in &self.closed {
            flag.wait().await;
        }
    }

    /// Closes at once all connections that a [`Host::stop`] waits for: to their clients it is as if the process had
    /// ended, and they may ask for the same elsewhere.
    pub(crate) async fn cut_off(&self) {
        all(self.fronts.list.iter().map(Front::stop).collect()).await;
    }

    /// Clients that are connected.
    pub(crate) fn clients(&self) -> usize {
        self.fronts.list.iter().map(Front::live_count).sum()
    }
}

/// Removes a socket's file. Nobody waits long for a file system that does not answer.
async fn remove(runtime: &dyn Runtime, file: SocketFile) {
    if let Ok(removed) = begin(move || drop(file)) {
        let _ = race(removed.wait(), runtime.sleep(ANSWER_TIME_MAX)).await;
    }
}

/// Makes a socket at a path whose file system may not answer.
async fn bind(
    reactor: &Rc<Reactor>,
    binding: &Pending<std::io::Result<Bound>>,
    socket: &Path,
    access: SocketAccess,
) -> std::io::Result<Bound> {
    let at = socket.to_owned();
    let make = move || {
        let bound = Bound::at(&at)?;
        bound.let_in(access.mode, access.group)?;
        Ok(bound)
    };
    let call = || async move { on_thread(make).await? };
    let bound = binding.ask(reactor, socket, call, std::future::pending()).await;
    bound.unwrap_or_else(|| Err(ErrorKind::TimedOut.into()))
}

/// Waits for all of `futures` at the same time.
pub(crate) async fn all<F: Future<Output = ()>>(futures: Vec<F>) {
    let mut left: Vec<_> = futures.into_iter().map(Box::pin).collect();
    poll_fn(|context| {
        left.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if left.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// The fronts that clients are dealt to.
struct Fronts {
    list: Vec<Front>,
    /// Listeners that wait until one takes clients again.
    waiting: RefCell<Vec<Waker>>,
}

/// The first of those with the fewest; `None` if nobody takes any.
fn fewest(live: impl Iterator<Item = Option<usize>>) -> Option<usize> {
    let some = live.enumerate().filter_map(|(index, live)| Some((live?, index)));
    some.min().map(|(_, index)| index)
}

impl Fronts {
    fn new(list: Vec<Front>) -> Self {
        Self { list, waiting: RefCell::default() }
    }

    /// The front with the fewest live connections, and none while all have too many: one that is
    /// full does not keep clients from the others.
    async fn roomiest(&self) -> usize {
        poll_fn(|context| match fewest(self.list.iter().map(Front::live)) {
            Some(index) => Poll::Ready(index),
            // Nobody is left: the client is told by closing its connection.
            None if self.list.iter().all(Front::is_gone) => Poll::Ready(0),
            None => {
                let mut waiting = self.waiting.borrow_mut();
                if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    waiting.push(context.waker().clone());
                }
                Poll::Pending
            }
        })
        .await
    }

    /// Hands a client over to a front.
    fn take(self: &Rc<Self>, runtime: &dyn Runtime, index: usize, client: Socket) {
        let fronts = Rc::clone(self);
        // At once, so that the next client sees it.
        fronts.list[index].expect_client();
        runtime.spawn(Box::pin(async move {
            fronts.list[index].take(client).await;
            fronts.waiting.take().into_iter().for_each(Waker::wake);
        }));
    }
}

impl Doors {
    /// Listens on a Unix socket, on a TCP address, or on both.
    ///
    /// # Errors
    /// If an address cannot be listened on.
    pub(crate) async fn open(
        reactor: &Rc<Reactor>,
        name: &str,
        places: &Places<'_>,
    ) -> Result<Doors> {
        Doors::open_within(reactor, &Pending::default(), name, places, PATIENCE).await
    }

    /// The same; an address in use is tried again for as long as `patience` says, and a socket whose file system
    /// does not answer stays in `binding`.
    ///
    /// # Errors
    /// If an address cannot be listened on.
    pub(crate) async fn open_within(
        reactor: &Rc<Reactor>,
        binding: &Pending<std::io::Result<Bound>>,
        name: &str,
        places: &Places<'_>,
        patience: Nanos,
    ) -> Result<Doors> {
        let mut doors = Doors::default();
        if let Some(socket) = places.socket {
            let bound = when_free(reactor, patience, async || {
                bind(reactor, binding, socket, places.access).await
            });
            let bound = bound.await.map_err(|error| match error.kind() {
                ErrorKind::TimedOut => no_answer(socket.display()),
                // A user's daemon may only give sockets to groups that it is in; a service needs them from its unit.
                ErrorKind::PermissionDenied if places.access.group.is_some() => {
                    Failure::system(format!("listen on {}", socket.display()), &error).hint(
                        "the daemon has to be in exports.socket_group, under systemd by SupplementaryGroups=; or choose \
                         another place with --socket",
                    )
                }
                _ => Failure::system(format!("listen on {}", socket.display()), &error)
                    .hint("choose another place with --socket; a path has at most 107 bytes"),
            })?;
            doors.add(name, places, Listener::of_bound(reactor, bound));
        }
        if let Some(address) = places.address {
            let options = TcpOptions { allow_remote: places.is_remote };
            let listen = async || Listener::tcp(reactor, &address, options);
            let tcp = when_free(reactor, patience, listen).await.map_err(|error| {
                Failure::system(format!("listen on {address}"), &error)
                    .hint("choose another --port; 0 takes a free one")
            })?;
            doors.add(name, places, tcp);
        }
        Ok(doors)
    }

    /// The door that listens already.
    pub(crate) fn of(name: &str, places: &Places<'_>, listener: Listener) -> Doors {
        let mut doors = Doors::default();
        doors.add(name, places, listener);
        doors
    }

    fn add(&mut self, name: &str, places: &Places<'_>, listener: Listener) {
        let scheme = if places.is_encrypted { "nbds" } else { "nbd" };
        if let Some(address) = listener.local_addr() {
            self.address = Some(address);
            self.uris.push(format!("{scheme}://{address}/{name}"));
        } else if let Some(socket) = places.socket {
            let absolute = std::path::absolute(socket).unwrap_or_else(|_| PathBuf::from(socket));
            self.uris.push(format!("{scheme}+unix:///{name}?socket={}", absolute.display()));
        }
        self.listeners.push(listener);
    }

    /// What can be connected to, the Unix socket first.
    pub(crate) fn listeners(&self) -> &[Listener] {
        &self.listeners
    }
}

/// Tries again for a while if an address or a lock is in use: the kernel closes the sockets and files
/// of a killed process a moment after it is gone, as it does with its devices.
pub(crate) async fn when_free<T>(
    reactor: &Rc<Reactor>,
    patience: Nanos,
    take: impl AsyncFn() -> std::io::Result<T>,
) -> std::io::Result<T> {
    let until = reactor.now().saturating_add(patience);
    let runtime: &dyn Runtime = &**reactor;
    loop {
        match take().await {
            Err(error) if error.kind() == ErrorKind::AddrInUse && reactor.now() < until => {
                let _ = runtime.sleep(ACCEPT_PAUSE).await;
            }
            other => return other,
        }
    }
}

/// Gives each client that comes to the front with the fewest.
async fn deal(runtime: &dyn Runtime, listener: &Listener, fronts: &Rc<Fronts>) {
    loop {
        fronts.roomiest().await;
        match listener.accept_socket().await {
            Ok(socket) => {
                let index = fronts.roomiest().await;
                fronts.take(runtime, index, socket);
            }
            Err(error) if is_of_one_client(&error) => {}
            Err(_) => {
                let _ = runtime.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether whoever started the process wants it to outlive its terminal, as `nohup` does. A signal that is asked for
/// would be told of all the same.
fn ignores_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    ignored.is_some_and(|bits| bits >> (libc::SIGHUP - 1) & 1 == 1)
}

/// Raises the flag at the first SIGINT, SIGTERM or SIGHUP (the terminal is gone); a second one of the first two ends
/// the process at once, which a pool survives as it survives a crash. `on_usr1` runs at each SIGUSR1.
///
/// # Errors
/// What the system says.
pub(crate) fn end_on_signals(
    reactor: &Rc<Reactor>,
    on_usr1: impl Fn() + 'static,
) -> Result<Rc<Flag>> {
    let mut numbers = vec![libc::SIGINT, libc::SIGTERM, libc::SIGUSR1];
    if !ignores_hangups() {
        numbers.push(libc::SIGHUP);
    }
    let signals = Signals::new(reactor, &numbers)
        .map_err(|error| Failure::system("receive signals", &error))?;
    let flag = Rc::new(Flag::default());
    let raised = Rc::clone(&flag);
    reactor.spawn(Box::pin(async move {
        while let Ok(number) = signals.next().await {
            if number == libc::SIGUSR1 {
                on_usr1();
            } else if !raised.is_raised() {
                raised.raise();
            } else if number != libc::SIGHUP {
                // A shell and its terminal may both say that they are gone.
                std::process::exit(EXIT_INTERRUPTED);
            }
        }
    }));
    Ok(flag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_device::executor::block_on_ready;

    #[test]
    fn a_client_goes_to_the_front_with_the_fewest_that_takes_any() {
        assert_eq!(fewest([Some(2), Some(1), Some(1)].into_iter()), Some(1));
        assert_eq!(fewest([None, Some(200), None].into_iter()), Some(1));
        assert_eq!(fewest([None, None].into_iter()), None);
        // A long connection keeps its front busy; short ones come and go on the other one.
        let mut live = [0, 0];
        let mut places = Vec::new();
        for is_long in [true, false, true, false, false] {
            let place = fewest(live.iter().map(|&count| Some(count))).unwrap();
            live[place] += usize::from(is_long);
            places.push(place);
        }
        assert_eq!(places, [0, 1, 1, 0, 0]);
    }

    #[test]
    fn what_is_waited_for_together_runs_at_the_same_time() {
        // The first one ends only when the second one has begun.
        let flag = Flag::default();
        let futures: Vec<std::pin::Pin<Box<dyn Future<Output = ()>>>> =
            vec![Box::pin(async { flag.wait().await }), Box::pin(async { flag.raise() })];
        let mut together = Box::pin(all(futures));
        assert!(block_on_ready(poll_fn(|context| {
            let first = together.as_mut().poll(context).is_pending();
            Poll::Ready(first && together.as_mut().poll(context).is_ready())
        })));
    }
}

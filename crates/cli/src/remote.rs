//! Origins that are exports of NBD servers: connecting to them.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_control::error::Code;
use forebay_device::Runtime;
use forebay_device::real::net::{Stream, connect_at_once};
use forebay_device::real::reactor::Reactor;
use forebay_device::runtime::{MILLISECOND, Nanos};
use forebay_export::nbd::client::{Dial, Host, Place, PlaceError, Remote, RemoteError};

use crate::Result;
use crate::blocking::on_thread;
use crate::failure::Failure;
use crate::patience::Lane;

/// How long one address of a name may take to answer: with the second one, what all of a connection
/// may take.
const ADDRESS_TIME_MAX: Duration = Duration::from_secs(2);

/// What takes longer than this to fail is not tried every second.
const AT_ONCE: Nanos = 200 * MILLISECOND;

/// An export as a device.
pub(crate) type Nbd = Remote<Dialer>;

/// The way to a server. What blocks is on a thread.
pub(crate) struct Dialer {
    reactor: Rc<Reactor>,
    host: Host,
    /// For a path: one on a file system that does not answer takes one thread, however often it is tried.
    lane: Lane,
    /// For a name: the number of the address that is tried first.
    first: Arc<AtomicUsize>,
}

/// Connects to one of these, trying `first` at first; it is left at the one that was tried last. So the next attempt
/// goes on where this one was cut off, and begins with what has answered.
fn connect_one(addresses: &[SocketAddr], first: &AtomicUsize) -> io::Result<TcpStream> {
    let mut result = Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    let begin = first.load(Ordering::Relaxed);
    for at in (begin..begin + addresses.len()).map(|at| at % addresses.len()) {
        first.store(at, Ordering::Relaxed);
        result = TcpStream::connect_timeout(&addresses[at], ADDRESS_TIME_MAX);
        if result.is_ok() {
            break;
        }
    }
    result
}

fn connect_tcp(name: &str, port: u16, first: &AtomicUsize) -> io::Result<TcpStream> {
    let addresses: Vec<_> = (name, port).to_socket_addrs()?.collect();
    connect_one(&addresses, first)
}

/// A server that takes no connections is as one that is not there: who waits for room in its queue may wait for ever.
fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    connect_at_once(path).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::other("it takes no more connections"),
        _ => error,
    })
}

impl Dial for Dialer {
    type Stream = Stream;

    async fn dial(&self) -> io::Result<Stream> {
        match self.host.clone() {
            Host::Tcp(name, port) => {
                let first = Arc::clone(&self.first);
                let socket = on_thread(move || connect_tcp(&name, port, &first)).await??;
                Stream::from_tcp(&self.reactor, socket)
            }
            Host::Unix(path) => {
                let socket = self.lane.run(move || connect_unix(&path)).await?;
                Stream::from_unix(&self.reactor, socket)
            }
        }
    }
}

/// Where an origin is that a person has written as a URI; `None` if it is a path.
///
/// # Errors
/// If it is no place that an origin can be at.
pub(crate) fn place(origin: &str) -> Result<Option<Place>> {
    if !Place::is_meant(origin) {
        return Ok(None);
    }
    let wrong = |PlaceError { what, hint }| {
        Failure::coded(Code::BadRequest, format!("the origin {origin} {what}")).hint(hint)
    };
    origin.parse().map(Some).map_err(wrong)
}

/// Connects to an export.
///
/// # Errors
/// If it cannot be reached, or cannot be an origin. [`Code::NotFound`] if that was known at once: it costs
/// nothing to look often.
pub(crate) async fn open(reactor: &Rc<Reactor>, place: &Place) -> Result<Rc<Nbd>> {
    let until = reactor.now().saturating_add(AT_ONCE);
    let runtime = Rc::clone(reactor) as Rc<dyn Runtime>;
    let (host, lane) = (place.host.clone(), Lane::new(reactor));
    let dialer = Dialer { reactor: Rc::clone(reactor), host, lane, first: Arc::default() };
    Remote::open(&runtime, dialer, &place.export).await.map(Rc::new).map_err(|error| {
        let code = match error {
            RemoteError::Unreachable(_) | RemoteError::Closed if reactor.now() < until => {
                Code::NotFound
            }
            _ => Code::Refused,
        };
        Failure::coded(code, format!("cannot use {place}: {error}")).hint(error.hint())
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_address_that_answered_is_tried_first() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Nobody listens at the first port of all.
        let refuses = SocketAddr::from(([127, 0, 0, 1], 1));
        let addresses = [refuses, refuses, listener.local_addr().unwrap(), refuses];
        let first = AtomicUsize::new(3);
        for _ in 0..2 {
            let stream = connect_one(&addresses, &first).unwrap();
            assert_eq!(stream.peer_addr().unwrap(), addresses[2]);
            assert_eq!(first.load(Ordering::Relaxed), 2);
        }
        assert!(connect_one(&[], &first).is_err(), "a name without addresses");
        // A name may have lost some.
        assert!(connect_one(&[refuses], &first).is_err());
    }
}

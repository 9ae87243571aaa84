//! Stream sockets over the ring, for the servers.
//!
//! * A [`Stream`] may be used by two tasks at once: one receives, one sends. Two senders must
//!   take turns, or their bytes mix.
//! * A receive or send whose future is dropped goes on; its bytes are lost, so the stream is of
//!   no use afterwards. Dropping the stream ends what is in flight.

use std::cell::Cell;
use std::fmt;
use std::fs::{File, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::buf::{Buf, Data};
use crate::io::{IoError, pair};
use crate::real::op::{Handle, Kind, Mailbox, Message, Op};
use crate::real::reactor::Reactor;
use crate::real::ring::Key;

/// Parts that one call of the system sends: `UIO_MAXIOV` of Linux.
const PARTS_MAX: usize = 1024;

/// What is asked for as the send buffer of a Unix socket; the kernel doubles it, and gives no more than
/// `net.core.wmem_max` allows (208 KiB by default, doubled as well). With the 208 KiB that a socket has otherwise, sender
/// and receiver of a reply of 1 MiB wait for each other five times. TCP finds its own size.
const SEND_BUFFER_BYTES: libc::c_int = 256 << 10;

/// Settings of a TCP listener.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpOptions {
    /// Allow an address that other machines can reach. Nothing here encrypts or authenticates.
    pub allow_remote: bool,
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP client.
    Tcp(SocketAddr),
    /// A process on this machine, by its user.
    Unix {
        /// The user id of the process that connected, where the kernel tells it.
        uid: Option<u32>,
    },
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp(address) => write!(f, "{address}"),
            Peer::Unix { uid: Some(uid) } => write!(f, "unix (uid {uid})"),
            Peer::Unix { uid: None } => f.write_str("unix"),
        }
    }
}

/// The socket file of a listener, removed with it if it is still the same file. That blocks for as long as the file
/// system does.
pub struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
    /// Whether somebody else keeps the socket, so that it goes on without this listener.
    stays: Cell<bool>,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.stays.get() {
            return;
        }
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == self.inode);
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A Unix socket that listens, and that no reactor has yet; may be sent to another thread. Its file is removed
/// with it.
pub struct Bound {
    socket: UnixListener,
    file: SocketFile,
}

impl Bound {
    /// Listens on a Unix socket at `path`. A socket file that nobody answers on is replaced. Blocks for as long
    /// as the file system does.
    ///
    /// # Errors
    /// `AddrInUse` when another process answers there or the file is not a socket; else what the
    /// system says.
    pub fn at(path: &Path) -> io::Result<Bound> {
        remove_stale(path)?;
        let socket = UnixListener::bind(path)?;
        let meta = std::fs::symlink_metadata(path)?;
        let (inode, stays) = ((meta.dev(), meta.ino()), Cell::new(false));
        Ok(Bound { socket, file: SocketFile { path: path.to_owned(), inode, stays } })
    }

    /// Gives the socket's file this group, and these permissions: who may write to it may connect. Blocks for as long as
    /// the file system does.
    ///
    /// # Errors
    /// What the system says; `AddrInUse` if something else is at its path now, which stays as it is: whoever may write to
    /// the directory could have put anything there.
    pub fn let_in(&self, mode: Option<u32>, group: Option<u32>) -> io::Result<()> {
        if mode.is_none() && group.is_none() {
            return Ok(());
        }
        let options = libc::O_PATH | libc::O_NOFOLLOW;
        let file = File::options().read(true).custom_flags(options).open(&self.file.path)?;
        let meta = file.metadata()?;
        if !meta.file_type().is_socket() || (meta.dev(), meta.ino()) != self.file.inode {
            let text = "something else has taken its place";
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        // The very file that was looked at, whatever is at its path meanwhile.
        let own = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        // The group first: nobody of the old one is let in meanwhile.
        if group.is_some() {
            chown(&own, None, group)?;
        }
        match mode {
            Some(mode) => std::fs::set_permissions(&own, Permissions::from_mode(mode)),
            None => Ok(()),
        }
    }
}

/// A socket that accepts connections.
pub struct Listener {
    reactor: Rc<Reactor>,
    handle: Rc<Handle>,
    mailbox: Rc<Mailbox<OwnedFd>>,
    accepting: Cell<Option<Key>>,
    address: Option<SocketAddr>,
    file: Option<SocketFile>,
}

impl Listener {
    /// Listens on a TCP address; port 0 takes a free one.
    ///
    /// # Errors
    /// `PermissionDenied` for an address that is not of this machine's loopback, unless
    /// [`TcpOptions::allow_remote`] is set; else what the system says.
    pub fn tcp(
        reactor: &Rc<Reactor>,
        address: &SocketAddr,
        options: TcpOptions,
    ) -> io::Result<Listener> {
        if !options.allow_remote && !address.ip().to_canonical().is_loopback() {
            let text = format!("{address} can be reached from other machines");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let socket = TcpListener::bind(address)?;
        let address = socket.local_addr()?;
        Ok(Listener::new(reactor, socket.into(), Some(address), None))
    }

    /// Listens on a Unix socket at `path`, whose file is removed when the listener is dropped. See [`Bound::at`].
    ///
    /// # Errors
    /// As there.
    pub fn unix(reactor: &Rc<Reactor>, path: &Path) -> io::Result<Listener> {
        Ok(Listener::of_bound(reactor, Bound::at(path)?))
    }

    /// Goes on with a Unix socket that was made elsewhere.
    pub fn of_bound(reactor: &Rc<Reactor>, bound: Bound) -> Listener {
        Listener::new(reactor, bound.socket.into(), None, Some(bound.file))
    }

    /// Goes on with a Unix socket that listens already; its file stays.
    ///
    /// # Errors
    /// What the system says.
    pub fn of_unix(reactor: &Rc<Reactor>, socket: UnixListener) -> io::Result<Listener> {
        // The ring does the waiting; on a socket that never waits it would accept nothing.
        socket.set_nonblocking(false)?;
        Ok(Listener::new(reactor, socket.into(), None, None))
    }

    /// The same with a TCP socket. Who passes one has decided who may reach it.
    ///
    /// # Errors
    /// What the system says.
    pub fn of_tcp(reactor: &Rc<Reactor>, socket: TcpListener) -> io::Result<Listener> {
        socket.set_nonblocking(false)?;
        let address = socket.local_addr()?;
        Ok(Listener::new(reactor, socket.into(), Some(address), None))
    }

    /// Another descriptor of the socket, for whoever goes on with it later: clients that connect
    /// when the listener is gone wait for that. A Unix socket's file stays from now on.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn keep(&self) -> io::Result<OwnedFd> {
        let kept = self.handle.try_clone()?;
        if let Some(file) = &self.file {
            file.stays.set(true);
        }
        Ok(kept)
    }

    fn new(
        reactor: &Rc<Reactor>,
        socket: OwnedFd,
        address: Option<SocketAddr>,
        file: Option<SocketFile>,
    ) -> Listener {
        Listener {
            reactor: Rc::clone(reactor),
            handle: Handle::new(socket),
            mailbox: Mailbox::new(),
            accepting: Cell::new(None),
            address,
            file,
        }
    }

    /// Takes no clients any more. What is left to do is to drop its file, which may block.
    pub fn close(mut self) -> Option<SocketFile> {
        self.file.take()
    }

    /// The TCP address with its real port; `None` for a Unix socket.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The next connection, on the listener's reactor. See [`Listener::accept_socket`].
    ///
    /// # Errors
    /// As there.
    pub async fn accept(&self) -> io::Result<Stream> {
        let socket = self.accept_socket().await?;
        Stream::open(&self.reactor, socket)
    }

    /// The next connection, for whichever reactor. The future may be dropped at any time without
    /// losing one.
    ///
    /// # Errors
    /// What the system says: a connection that ended before it was accepted, no descriptors
    /// left. The listener stays usable; wait a little before the next call.
    pub async fn accept_socket(&self) -> io::Result<Socket> {
        loop {
            if let Some(arrived) = self.mailbox.take() {
                let descriptor = arrived.map_err(to_std)?;
                return Ok(Socket { descriptor, is_tcp: self.address.is_some() });
            }
            let (completer, io) = pair();
            if self.mailbox.wait(completer) {
                let kind = Kind::Accept { mailbox: Rc::clone(&self.mailbox) };
                let op = Op::new(Rc::clone(&self.handle), kind, None);
                self.accepting.set(self.reactor.start(op));
            }
            io.done().await.map_err(to_std)?;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(key) = self.accepting.take() {
            self.reactor.cancel(key);
        }
    }
}

fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !meta.file_type().is_socket() {
        let text = format!("{} exists and is not a socket", path.display());
        return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
    }
    match connect_at_once(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        _ => {
            let text = format!("another process listens on {}", path.display());
            Err(io::Error::new(io::ErrorKind::AddrInUse, text))
        }
    }
}

/// Connects to a Unix socket without waiting for room in its queue. Looking for the path may block.
///
/// # Errors
/// `WouldBlock` if a listener is there and its queue is full; else what the system says.
pub fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: an address is plain bytes; zeroes are a valid value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (place, byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = *byte as libc::c_char;
    }
    let flags = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers; the result is checked.
    let fd = unsafe { libc::socket(libc::AF_UNIX, flags, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `address` is `len` bytes long and outlives the call.
    let result = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if result == 0 { Ok(socket.into()) } else { Err(io::Error::last_os_error()) }
}

/// Whether who connects at `path` comes to this listener, as far as can be told: to one that the same process has made
/// listen. Looking for the path may block.
pub fn leads_to(path: &Path, listener: &UnixListener) -> bool {
    match connect_at_once(path) {
        Ok(client) => {
            let [there, here] = [client.as_fd(), listener.as_fd()].map(peer);
            let who = |peer: libc::ucred| (peer.pid, peer.uid, peer.gid);
            there.map(who) == here.map(who)
        }
        // Who it is cannot be told before there is room in the queue.
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

fn to_std(error: IoError) -> io::Error {
    error.errno.map_or_else(|| io::Error::other(error), io::Error::from_raw_os_error)
}

/// A connection that no reactor has yet; may be sent to another thread.
pub struct Socket {
    descriptor: OwnedFd,
    is_tcp: bool,
}

/// A connection.
pub struct Stream {
    reactor: Rc<Reactor>,
    handle: Rc<Handle>,
    received: Cell<Option<Rc<Cell<usize>>>>,
    message: Cell<Option<Rc<Message>>>,
    peer: Peer,
}

impl Stream {
    /// Gives a connection to a reactor.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(reactor: &Rc<Reactor>, socket: Socket) -> io::Result<Stream> {
        let Socket { descriptor, is_tcp } = socket;
        let (descriptor, peer) = if is_tcp {
            let socket = TcpStream::from(descriptor);
            socket.set_nodelay(true)?;
            keep_alive(&socket)?;
            let peer = Peer::Tcp(socket.peer_addr()?);
            (OwnedFd::from(socket), peer)
        } else {
            let bytes = SEND_BUFFER_BYTES;
            set_option(&descriptor, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)?;
            let uid = peer(descriptor.as_fd()).map(|peer| peer.uid);
            (descriptor, Peer::Unix { uid })
        };
        let handle = Handle::new(descriptor);
        let (received, message) = Default::default();
        Ok(Stream { reactor: Rc::clone(reactor), handle, received, message, peer })
    }

    /// A stream on a TCP connection that was made elsewhere.
    ///
    /// # Errors
    /// What the system says.
    pub fn from_tcp(reactor: &Rc<Reactor>, socket: TcpStream) -> io::Result<Stream> {
        socket.set_nonblocking(false)?;
        Stream::open(reactor, Socket { descriptor: socket.into(), is_tcp: true })
    }

    /// A stream on a Unix socket that was connected elsewhere.
    ///
    /// # Errors
    /// What the system says.
    pub fn from_unix(reactor: &Rc<Reactor>, socket: UnixStream) -> io::Result<Stream> {
        socket.set_nonblocking(false)?;
        Stream::open(reactor, Socket { descriptor: socket.into(), is_tcp: false })
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Receives what is there, at least a byte and at most the buffer's length; 0 means that the
    /// peer has closed its side. Waits until something comes.
    ///
    /// # Panics
    /// If the buffer is empty.
    pub async fn recv(&self, buf: Buf) -> (Buf, Result<usize, IoError>) {
        assert!(!buf.is_empty(), "an empty buffer would look like the end of the stream");
        // The counter of the last receive is used again, unless an abandoned one still has it.
        let count = self.received.take().filter(|count| Rc::strong_count(count) == 1);
        let count = count.unwrap_or_default();
        self.received.set(Some(Rc::clone(&count)));
        let (buf, result) = self.receive(buf, Some(Rc::clone(&count))).await;
        (buf, result.map(|()| count.get()))
    }

    /// Fills the whole buffer. A peer that closes its side before is `Vanished`, without an
    /// error number.
    pub async fn recv_exact(&self, buf: Buf) -> (Buf, Result<(), IoError>) {
        if buf.is_empty() {
            return (buf, Ok(()));
        }
        self.receive(buf, None).await
    }

    async fn receive(
        &self,
        buf: Buf,
        count: Option<Rc<Cell<usize>>>,
    ) -> (Buf, Result<(), IoError>) {
        let (completer, io) = pair();
        let kind = Kind::Receive { buf, count };
        self.reactor.start(Op::new(Rc::clone(&self.handle), kind, Some(completer)));
        let outcome = io.await;
        (outcome.buf.unwrap_or_else(|| Buf::new(0)), outcome.result)
    }

    /// Sends all of `data`.
    ///
    /// # Errors
    /// `Vanished` when the peer is gone; else what the system says.
    pub async fn send_all(&self, data: Data) -> Result<(), IoError> {
        self.send(data, false).await
    }

    /// Like [`Stream::send_all`], when more follows at once (a header before its payload): TCP
    /// holds a part-filled packet back for it.
    ///
    /// # Errors
    /// As for [`Stream::send_all`].
    pub async fn send_all_before_more(&self, data: Data) -> Result<(), IoError> {
        self.send(data, true).await
    }

    async fn send(&self, data: Data, more: bool) -> Result<(), IoError> {
        if data.is_empty() {
            return Ok(());
        }
        let (completer, io) = pair();
        let kind = Kind::Send { data, more };
        self.reactor.start(Op::new(Rc::clone(&self.handle), kind, Some(completer)));
        io.done().await
    }

    /// Sends all of `parts`, one after the other, with one call of the system; the list is empty
    /// then.
    ///
    /// # Errors
    /// As for [`Stream::send_all`].
    ///
    /// # Panics
    /// If there are more parts than the system takes at once, 1024.
    pub async fn send_parts(&self, parts: &mut Vec<Data>) -> Result<(), IoError> {
        assert!(parts.len() <= PARTS_MAX, "{} parts in a message", parts.len());
        if parts.iter().all(|part| part.is_empty()) {
            parts.clear();
            return Ok(());
        }
        // The last message is used again, unless an abandoned send still has it.
        let message = self.message.take().filter(|message| Rc::strong_count(message) == 1);
        let message = message.unwrap_or_else(Message::new);
        message.fill(parts);
        self.message.set(Some(Rc::clone(&message)));
        let (completer, io) = pair();
        let kind = Kind::SendParts { message };
        self.reactor.start(Op::new(Rc::clone(&self.handle), kind, Some(completer)));
        io.done().await
    }

    /// Ends the connection in both directions; whoever waits on it is told.
    pub fn shutdown(&self) {
        // SAFETY: no pointers; the descriptor is open. An error means that the peer was faster.
        unsafe { libc::shutdown(self.handle.raw(), libc::SHUT_RDWR) };
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Operations in flight hold the socket open; without this they might wait for ever.
        if Rc::strong_count(&self.handle) > 1 {
            self.shutdown();
        }
    }
}

/// A client whose machine is gone is asked for after this many seconds of silence, …
const KEEPALIVE_IDLE_S: libc::c_int = 60;
/// … again after each of these, …
const KEEPALIVE_INTERVAL_S: libc::c_int = 10;
/// … and given up when it has not answered so often: two minutes in all. Who answers may be silent
/// for as long as it likes, and what is sent to a dead machine is given up by the kernel as ever:
/// a limit for that (`TCP_USER_TIMEOUT`) would also end clients that are stopped for a while.
const KEEPALIVE_COUNT: libc::c_int = 6;

fn keep_alive(socket: &TcpStream) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_IDLE_S)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, KEEPALIVE_COUNT)?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)
}

fn set_option(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let (fd, len) = (socket.as_raw_fd(), size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: `value` is `len` bytes long and outlives the call; the descriptor is open.
    let result = unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The process at the other end of a Unix socket; of one that listens, who has made it so.
fn peer(socket: BorrowedFd<'_>) -> Option<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `credentials`, which is that long.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    (result == 0).then_some(credentials)
}

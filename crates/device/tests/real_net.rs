//! The reactor and its sockets against the real kernel.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

use std::cell::{Cell, RefCell};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;

use forebay_device::io::pair;
use forebay_device::real::net::{Bound, Listener, Peer, Stream, TcpOptions};
use forebay_device::real::reactor::{Config, Reactor};
use forebay_device::real::signal::Signals;
use forebay_device::runtime::{MILLISECOND, Runtime};
use forebay_device::{Buf, Data, IoErrorKind};

fn reactor() -> Rc<Reactor> {
    Reactor::new(Config::default()).unwrap()
}

/// A ring so small that most operations meet a full queue.
fn tiny() -> Rc<Reactor> {
    Reactor::new(Config { entries: 2, submit_after: 1 }).unwrap()
}

fn socket_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("forebay-{}-{name}.sock", std::process::id()))
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

async fn echo(stream: Stream) {
    loop {
        let (mut buf, length) = stream.recv(Buf::new(8192)).await;
        match length {
            Ok(0) | Err(_) => return,
            Ok(length) => drop(buf.split_off(length)),
        }
        if stream.send_all(buf.freeze()).await.is_err() {
            return;
        }
    }
}

fn serve(reactor: &Rc<Reactor>, listener: Listener) {
    let spawner = Rc::clone(reactor);
    reactor.spawn(Box::pin(async move {
        while let Ok(stream) = listener.accept().await {
            spawner.spawn(Box::pin(echo(stream)));
        }
    }));
}

/// Sends `bytes` from one task while another receives the echo.
async fn round_trip(reactor: &Rc<Reactor>, stream: Stream, bytes: usize, seed: u8) {
    let stream = Rc::new(stream);
    let sender = Rc::clone(&stream);
    let mut payload = Buf::zeroed(bytes);
    for (at, byte) in payload.iter_mut().enumerate() {
        *byte = (at as u8).wrapping_mul(31) ^ seed;
    }
    let payload = payload.freeze();
    let sent = payload.clone();
    reactor.spawn(Box::pin(async move {
        sender.send_all(sent).await.unwrap();
    }));
    let (back, result) = stream.recv_exact(Buf::new(bytes)).await;
    result.unwrap();
    assert_eq!(back[..], payload[..]);
}

fn many_connections(reactor: &Rc<Reactor>, connect: impl Fn() -> Stream, count: usize) {
    let (completer, io) = pair();
    let left = Rc::new(Cell::new(count));
    let completer = Rc::new(RefCell::new(Some(completer)));
    for number in 0..count {
        let stream = connect();
        let (left, completer) = (Rc::clone(&left), Rc::clone(&completer));
        let spawner = Rc::clone(reactor);
        reactor.spawn(Box::pin(async move {
            round_trip(&spawner, stream, 100_003 + number, number as u8).await;
            left.set(left.get() - 1);
            if left.get() == 0 {
                completer.take().unwrap().done(Ok(()));
            }
        }));
    }
    assert_eq!(reactor.block_on(io.done()), Ok(()));
}

#[test]
fn many_tcp_connections_echo_at_once() {
    for reactor in [reactor(), tiny()] {
        let listener = Listener::tcp(&reactor, &loopback(), TcpOptions::default()).unwrap();
        let address = listener.local_addr().unwrap();
        serve(&reactor, listener);
        let client = Rc::clone(&reactor);
        let connect = || Stream::from_tcp(&client, TcpStream::connect(address).unwrap()).unwrap();
        many_connections(&reactor, connect, 64);
        reactor.close();
        assert_eq!((reactor.tasks_live_count(), reactor.operations_inflight_count()), (0, 0));
    }
}

#[test]
fn a_silent_tcp_client_is_asked_whether_it_is_there() {
    let reactor = reactor();
    let listener = Listener::tcp(&reactor, &loopback(), TcpOptions::default()).unwrap();
    let address = listener.local_addr().unwrap();
    let client = TcpStream::connect(address).unwrap();
    let accepted = reactor.block_on(listener.accept()).unwrap();
    // The kernel's table: slot, local, remote, state, queues, timer. 02 is the one of keepalive.
    let port = |socket: std::net::SocketAddr| format!(":{:04X}", socket.port());
    let (ours, theirs) = (port(address), port(client.local_addr().unwrap()));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let timer = table.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_it = fields[1].ends_with(&ours) && fields[2].ends_with(&theirs);
        is_it.then(|| fields[5].split(':').next().unwrap().to_owned())
    });
    assert_eq!(timer.as_deref(), Some("02"), "{table}");
    drop((accepted, client, listener));
    reactor.close();
}

#[test]
fn many_unix_connections_echo_at_once() {
    for reactor in [reactor(), tiny()] {
        let path = socket_path("echo");
        serve(&reactor, Listener::unix(&reactor, &path).unwrap());
        let client = Rc::clone(&reactor);
        let connect = || Stream::from_unix(&client, UnixStream::connect(&path).unwrap()).unwrap();
        many_connections(&reactor, connect, 64);
        reactor.close();
        assert!(!path.exists(), "the socket file goes with its listener");
    }
}

#[test]
fn a_peer_that_leaves_is_told_apart_from_data() {
    let reactor = reactor();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let stream = Stream::from_unix(&reactor, ours).unwrap();
    assert!(matches!(stream.peer(), Peer::Unix { uid: Some(_) }));
    std::io::Write::write_all(&mut &theirs, b"abc").unwrap();
    drop(theirs);
    reactor.block_on(async {
        let (buf, length) = stream.recv(Buf::new(4096)).await;
        assert_eq!(length, Ok(3));
        assert_eq!(&buf[..3], b"abc");
        assert_eq!(stream.recv(buf).await.1, Ok(0));
        let (_, result) = stream.recv_exact(Buf::new(16)).await;
        assert_eq!(result.unwrap_err().kind, IoErrorKind::Vanished);
        let sent = stream.send_all(Buf::zeroed(16).freeze()).await;
        assert_eq!(sent.unwrap_err().kind, IoErrorKind::Vanished);
    });
}

#[test]
fn an_accept_that_was_dropped_loses_no_connection() {
    let reactor = reactor();
    let path = socket_path("accept");
    let listener = Listener::unix(&reactor, &path).unwrap();
    reactor.block_on(async {
        for _ in 0..3 {
            let mut accept = Box::pin(listener.accept());
            let dropped = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(accept.as_mut().poll(cx).is_pending())
            });
            assert!(dropped.await);
        }
    });
    let client = UnixStream::connect(&path).unwrap();
    let stream = reactor.block_on(listener.accept()).unwrap();
    reactor.block_on(stream.send_all(Buf::copy_of(b"hello").freeze())).unwrap();
    let mut hello = [0; 5];
    std::io::Read::read_exact(&mut &client, &mut hello).unwrap();
    assert_eq!(&hello, b"hello");
}

/// Parts of 0, 1, 2 ... bytes and some long ones, numbered throughout.
fn numbered_parts(count: usize, long_bytes: usize) -> (Vec<Data>, Vec<u8>) {
    let (mut parts, mut whole) = (Vec::new(), Vec::new());
    for n in 0..count {
        let len = if n % 10 == 9 { long_bytes } else { n };
        let part: Vec<u8> = (0..len).map(|at| ((whole.len() + at) * 31 % 251) as u8).collect();
        whole.extend(&part);
        parts.push(Buf::copy_of(&part).freeze());
    }
    (parts, whole)
}

#[test]
fn parts_arrive_in_order_however_little_fits_at_once() {
    for reactor in [reactor(), tiny()] {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let stream = Rc::new(Stream::from_unix(&reactor, ours).unwrap());
        let messages = 3;
        let (_, whole) = numbered_parts(100, 300_000);
        let expected: Vec<u8> = std::iter::repeat_n(whole, messages).flatten().collect();
        let len = expected.len();
        let reader = std::thread::spawn(move || {
            let mut got = vec![0; len];
            std::io::Read::read_exact(&mut theirs, &mut got).unwrap();
            got
        });
        reactor.block_on(async {
            for _ in 0..messages {
                let (mut parts, _) = numbered_parts(100, 300_000);
                stream.send_parts(&mut parts).await.unwrap();
                assert!(parts.is_empty());
            }
            stream.send_parts(&mut Vec::new()).await.unwrap();
            stream.send_parts(&mut vec![Buf::copy_of(b"").freeze()]).await.unwrap();
        });
        assert!(reader.join().unwrap() == expected);
    }
}

#[test]
fn an_abandoned_message_keeps_its_memory_to_itself() {
    let reactor = reactor();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let stream = Rc::new(Stream::from_unix(&reactor, ours).unwrap());
    let (mut first, whole) = numbered_parts(20, 1 << 20);
    reactor.block_on(async {
        let mut send = Box::pin(stream.send_parts(&mut first));
        let pending =
            std::future::poll_fn(|cx| std::task::Poll::Ready(send.as_mut().poll(cx).is_pending()));
        assert!(pending.await, "nobody reads yet");
    });
    // The second message must not change what the first one still points to.
    let (mut second, _) = numbered_parts(2, 0);
    let sender = Rc::clone(&stream);
    reactor.spawn(Box::pin(async move {
        let _ = sender.send_parts(&mut second).await;
    }));
    let len = whole.len();
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; len + 1];
        std::io::Read::read_exact(&mut theirs, &mut got).unwrap();
        got
    });
    reactor.block_on(async {
        while reactor.operations_inflight_count() > 0 {
            (&*reactor as &dyn Runtime).sleep(MILLISECOND).await;
        }
    });
    let got = reader.join().unwrap();
    // Two senders that do not take turns may mix, but all bytes of both are there.
    let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    assert_eq!(sum(&got), sum(&whole));
}

#[test]
fn a_reply_longer_than_a_sockets_usual_buffer_does_not_wait_for_its_reader() {
    let reactor = reactor();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let stream = Stream::from_unix(&reactor, ours).unwrap();
    // More than the 208 KiB that Linux gives without being asked.
    let reply = Buf::new(256 << 10).freeze();
    let sent = Rc::new(Cell::new(false));
    let told = Rc::clone(&sent);
    reactor.spawn(Box::pin(async move {
        stream.send_all(reply).await.unwrap();
        told.set(true);
    }));
    reactor.block_on(async {
        for _ in 0..1000 {
            if !sent.get() {
                (&*reactor as &dyn Runtime).sleep(MILLISECOND).await;
            }
        }
    });
    assert!(sent.get(), "nobody has read anything");
    drop(theirs);
}

#[test]
fn dropping_a_stream_ends_what_it_waits_for() {
    let reactor = reactor();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let stream = Stream::from_unix(&reactor, ours).unwrap();
    reactor.block_on(async {
        let mut receive = Box::pin(stream.recv(Buf::new(4096)));
        std::future::poll_fn(|cx| {
            assert!(receive.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
    });
    assert_eq!(reactor.operations_inflight_count(), 1);
    drop(stream);
    reactor.block_on(async {
        while reactor.operations_inflight_count() > 0 {
            (&*reactor as &dyn Runtime).sleep(MILLISECOND).await;
        }
    });
    assert_eq!(std::io::Read::read(&mut &theirs, &mut [0; 8]).unwrap(), 0);
}

#[test]
fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
    let reactor = reactor();
    let path = socket_path("stale");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "left behind");
    let listener = Listener::unix(&reactor, &path).unwrap();
    let second = Listener::unix(&reactor, &path).err().unwrap();
    assert_eq!(second.kind(), std::io::ErrorKind::AddrInUse);
    drop(listener);
    assert!(!path.exists());
    std::fs::write(&path, "precious").unwrap();
    let file = Listener::unix(&reactor, &path).err().unwrap();
    assert_eq!(file.kind(), std::io::ErrorKind::AddrInUse);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn tcp_is_for_this_machine_unless_allowed() {
    let reactor = reactor();
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let refused = Listener::tcp(&reactor, &everywhere, TcpOptions::default()).err().unwrap();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    assert!(Listener::tcp(&reactor, &everywhere, TcpOptions { allow_remote: true }).is_ok());
}

#[test]
fn other_threads_wake_tasks_and_the_root() {
    let reactor = reactor();
    let (sender, receiver) = std::sync::mpsc::channel::<std::task::Waker>();
    let ringer = std::thread::spawn(move || receiver.iter().for_each(std::task::Waker::wake));
    let wait_for_others = move || {
        let sender = sender.clone();
        let mut polls = 0;
        std::future::poll_fn(move |cx| {
            polls += 1;
            if polls > 100 {
                return std::task::Poll::Ready(());
            }
            sender.send(cx.waker().clone()).unwrap();
            std::task::Poll::Pending
        })
    };
    reactor.block_on(wait_for_others());
    let (completer, io) = pair();
    let wait = wait_for_others();
    reactor.spawn(Box::pin(async move {
        wait.await;
        completer.done(Ok(()));
    }));
    reactor.block_on(io.done()).unwrap();
    drop(wait_for_others);
    reactor.close();
    ringer.join().unwrap();
}

#[test]
fn run_ends_when_another_thread_says_stop() {
    let reactor = reactor();
    let stopper = reactor.stopper();
    let thread = std::thread::spawn(move || stopper.stop());
    reactor.run();
    thread.join().unwrap();
}

#[test]
fn sleeps_end_in_the_order_of_their_deadlines() {
    let reactor = reactor();
    let order = Rc::new(RefCell::new(Vec::new()));
    let base = reactor.now();
    for span in [5, 1, 3, 2, 4] {
        let (order, runtime) = (Rc::clone(&order), Rc::clone(&reactor));
        let (completer, io) = pair();
        runtime.wake_at(base + span * MILLISECOND, completer);
        reactor.spawn(Box::pin(async move {
            io.done().await.unwrap();
            assert!(runtime.now() >= base + span * MILLISECOND);
            order.borrow_mut().push(span);
        }));
    }
    reactor.block_on(async {
        while order.borrow().len() < 5 {
            (&*reactor as &dyn Runtime).sleep(MILLISECOND).await;
        }
    });
    assert_eq!(*order.borrow(), [1, 2, 3, 4, 5]);
}

#[test]
fn a_signal_arrives_as_a_value() {
    let reactor = reactor();
    let signals = Signals::new(&reactor, &[libc::SIGUSR2]).unwrap();
    // To this thread: the harness has others that do not block the signal.
    // SAFETY: asks only who we are.
    let this_thread = unsafe { libc::pthread_self() };
    // SAFETY: a signal that this thread blocks, sent to itself.
    unsafe { libc::pthread_kill(this_thread, libc::SIGUSR2) };
    assert_eq!(reactor.block_on(signals.next()), Ok(libc::SIGUSR2));
}

#[test]
fn closing_ends_everything_and_later_operations_end_at_once() {
    let reactor = reactor();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let stream = Rc::new(Stream::from_unix(&reactor, ours).unwrap());
    let receiver = Rc::clone(&stream);
    reactor.spawn(Box::pin(async move {
        let _ = receiver.recv(Buf::new(4096)).await;
    }));
    reactor.block_on(async {});
    reactor.close();
    assert_eq!((reactor.tasks_live_count(), reactor.operations_inflight_count()), (0, 0));
    let sent = reactor.block_on(stream.send_all(Buf::zeroed(1).freeze()));
    assert_eq!(sent.unwrap_err().kind, IoErrorKind::Vanished);
    drop(theirs);
}

#[test]
fn nobody_is_let_in_to_what_has_taken_a_sockets_place() {
    let (path, other) = (socket_path("let-in"), socket_path("let-in-other"));
    let mode = |path: &PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let bound = Bound::at(&path).unwrap();
    bound.let_in(Some(0o620), None).unwrap();
    assert_eq!(mode(&path), 0o620);
    std::fs::write(&other, "of somebody else").unwrap();
    let before = mode(&other);
    std::fs::remove_file(&path).unwrap();
    symlink(&other, &path).unwrap();
    assert!(bound.let_in(Some(0o666), None).is_err());
    assert_eq!(mode(&other), before);
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(&other).unwrap();
}

//! The client for origins against servers that are right, that are ended, and that are wrong.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use crate::support::pipe::{Doorstep, Pipe};
use crate::support::world::World;
use forebay_device::runtime::{Nanos, SECOND};
use forebay_device::{BlockDevice, Buf, Gate, IoError, IoErrorKind, Runtime};
use forebay_export::nbd::client::{Dial, Remote, RemoteError};
use forebay_export::{Listen, Transport};

const SIZE: usize = 1 << 20;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const ZERO: u16 = 6;

const GONE: Result<(), IoError> = Err(IoError::new(IoErrorKind::Vanished));

/// What is done with one request instead of what it asks for.
enum Act {
    /// Nothing, and the connection ends. What was not flushed is forgotten.
    Die,
    /// It is carried out, and the connection ends before the answer.
    DoAndDie,
    /// These bytes are the answer.
    Say(Vec<u8>),
    /// There is none.
    Hang,
}

/// A server with a volatile cache.
struct Server {
    door: Doorstep,
    /// Whether it is reached.
    is_up: Cell<bool>,
    /// What survives its end, and what it returns.
    durable: RefCell<Vec<u8>>,
    current: RefCell<Vec<u8>>,
    size: Cell<u64>,
    flags: Cell<u16>,
    blocks: Cell<Option<[u32; 3]>>,
    /// Kinds of requests with their lengths, of all connections.
    seen: RefCell<Vec<(u16, u32)>>,
    /// For requests of these kinds, the first ones first.
    acts: RefCell<VecDeque<(u16, Act)>>,
    connections: Cell<usize>,
    /// Whether reads get structured replies, in three parts.
    is_structured: Cell<bool>,
    /// Whether it takes nothing of what it is sent.
    is_deaf: Cell<bool>,
    runtime: Rc<dyn Runtime>,
}

impl Server {
    fn start(world: &Rc<World>) -> Rc<Server> {
        let server = Rc::new(Server {
            door: Doorstep::default(),
            is_up: Cell::new(true),
            durable: RefCell::new(vec![7; SIZE]),
            current: RefCell::new(vec![7; SIZE]),
            size: Cell::new(SIZE as u64),
            flags: Cell::new(0b110_0101),
            blocks: Cell::default(),
            seen: RefCell::default(),
            acts: RefCell::default(),
            connections: Cell::new(0),
            is_structured: Cell::new(false),
            is_deaf: Cell::new(false),
            runtime: Rc::clone(world) as Rc<dyn Runtime>,
        });
        let it = Rc::clone(&server);
        world.spawn(Box::pin(async move {
            while let Ok(stream) = it.door.accept().await {
                it.connections.set(it.connections.get() + 1);
                let _ = it.serve(&stream).await;
                stream.shutdown();
            }
        }));
        server
    }

    fn act(&self, kind: u16, act: Act) {
        self.acts.borrow_mut().push_back((kind, act));
    }

    async fn serve(&self, stream: &Pipe) -> Option<()> {
        send(stream, b"NBDMAGICIHAVEOPT\0\x03").await;
        receive(stream, 4).await?;
        loop {
            let option = receive(stream, 16).await?;
            let len = u32::from_be_bytes(option[12..].try_into().unwrap());
            receive(stream, len as usize).await?;
            let number = &option[8..12];
            if number != [0, 0, 0, 7] {
                let kind = if self.is_structured.get() { 1 } else { 0x8000_0001 };
                send(stream, &answer(number, kind, &[])).await;
                continue;
            }
            let export =
                [&[0; 2][..], &self.size.get().to_be_bytes(), &self.flags.get().to_be_bytes()];
            let mut all = answer(number, 3, &export.concat());
            if let Some(blocks) = self.blocks.get() {
                let sizes = blocks.map(u32::to_be_bytes).concat();
                all.extend(answer(number, 3, &[&[0, 3], &sizes[..]].concat()));
            }
            all.extend(answer(number, 1, &[]));
            send(stream, &all).await;
            break;
        }
        loop {
            let header = receive(stream, 28).await?;
            let kind = u16::from_be_bytes(header[6..8].try_into().unwrap());
            let cookie = &header[8..16];
            let at = u64::from_be_bytes(header[16..24].try_into().unwrap()) as usize;
            let len = u32::from_be_bytes(header[24..28].try_into().unwrap());
            while self.is_deaf.get() {
                let _ = self.runtime.sleep(SECOND / 100).await;
            }
            let data = receive(stream, if kind == WRITE { len as usize } else { 0 }).await?;
            self.seen.borrow_mut().push((kind, len));
            let is_next = self.acts.borrow().front().is_some_and(|(of, _)| *of == kind);
            let act = if is_next { self.acts.borrow_mut().pop_front() } else { None };
            let reads = match act {
                Some((_, Act::Hang)) => continue,
                Some((_, Act::Die)) => {
                    self.current.borrow_mut().clone_from(&self.durable.borrow());
                    return None;
                }
                Some((_, Act::Say(bytes))) => {
                    let mut all = bytes;
                    while let Some(at) = all.windows(8).position(|window| window == b"COOKIE!!") {
                        all[at..at + 8].copy_from_slice(cookie);
                    }
                    send(stream, &all).await;
                    continue;
                }
                Some((_, Act::DoAndDie)) => {
                    self.carry_out(kind, at, len as usize, &data);
                    return None;
                }
                None => self.carry_out(kind, at, len as usize, &data)?,
            };
            if kind == READ && self.is_structured.get() {
                let half = reads.len() / 2;
                let last = [&((at + half) as u64).to_be_bytes()[..], &reads[half..]].concat();
                let hole = [&(at as u64).to_be_bytes()[..], &512_u32.to_be_bytes()].concat();
                let middle = [&(at as u64 + 512).to_be_bytes()[..], &reads[512..half]].concat();
                let mut parts = vec![(1, last), (2, hole), (1, middle)];
                parts.retain(|(_, body)| body.len() > 8);
                for (index, (kind, body)) in parts.iter().enumerate() {
                    let is_last = u8::from(index + 1 == parts.len());
                    send(stream, &part(cookie, is_last, *kind, body)).await;
                }
                continue;
            }
            send(stream, &[&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], cookie, &reads[..]].concat())
                .await;
        }
    }

    /// What a read returns; `None` when the client takes its leave.
    fn carry_out(&self, kind: u16, at: usize, len: usize, data: &[u8]) -> Option<Vec<u8>> {
        let mut current = self.current.borrow_mut();
        match kind {
            READ => return Some(current[at..at + len].to_vec()),
            WRITE => current[at..at + len].copy_from_slice(data),
            ZERO | TRIM => current[at..at + len].fill(0),
            FLUSH => self.durable.borrow_mut().clone_from(&current),
            DISC => return None,
            _ => panic!("request {kind}"),
        }
        Some(Vec::new())
    }
}

fn answer(number: &[u8], kind: u32, payload: &[u8]) -> Vec<u8> {
    let head = 0x0003_e889_0455_65a9_u64.to_be_bytes();
    let len = (payload.len() as u32).to_be_bytes();
    [&head, number, &kind.to_be_bytes(), &len, payload].concat()
}

/// A part of a structured reply.
fn part(cookie: &[u8], flags: u8, kind: u16, body: &[u8]) -> Vec<u8> {
    let (kind, len) = (kind.to_be_bytes(), (body.len() as u32).to_be_bytes());
    [&[0x66, 0x8e, 0x33, 0xef, 0, flags], &kind[..], cookie, &len, body].concat()
}

async fn send(stream: &Pipe, bytes: &[u8]) {
    let _ = stream.send_all(Buf::copy_of(bytes).freeze()).await;
}

async fn receive(stream: &Pipe, len: usize) -> Option<Vec<u8>> {
    let (buf, result) = stream.recv_exact(Buf::new(len)).await;
    result.ok().map(|()| buf.to_vec())
}

/// The way to a server.
struct Way(Rc<Server>);

impl Dial for Way {
    type Stream = Pipe;

    async fn dial(&self) -> std::io::Result<Pipe> {
        match self.0.is_up.get() {
            true => Ok(self.0.door.connect()),
            false => Err(std::io::ErrorKind::ConnectionRefused.into()),
        }
    }
}

struct Rig {
    world: Rc<World>,
    server: Rc<Server>,
    device: Rc<Remote<Way>>,
}

fn open(world: &Rc<World>, server: &Rc<Server>) -> Result<Remote<Way>, RemoteError> {
    let (runtime, way) = (Rc::clone(world) as Rc<dyn Runtime>, Way(Rc::clone(server)));
    world.run(async move { Remote::open(&runtime, way, "x").await })
}

fn rig() -> Rig {
    rig_of(|_| ())
}

fn rig_of(set: impl FnOnce(&Server)) -> Rig {
    let world = World::new(5);
    let server = Server::start(&world);
    set(&server);
    let device = Rc::new(open(&world, &server).unwrap());
    Rig { world, server, device }
}

impl Rig {
    fn write(&self, at: u64, byte: u8, len: usize) -> Result<(), IoError> {
        let data = Buf::copy_of(&vec![byte; len]).freeze();
        let io = (&*self.device as &dyn BlockDevice).write(at, data);
        self.world.run(io.done())
    }

    fn flush(&self) -> Result<(), IoError> {
        self.world.run((&*self.device as &dyn BlockDevice).flush().done())
    }

    fn read(&self, at: u64, len: usize) -> (Result<(), IoError>, Vec<u8>) {
        let outcome = self.world.run((&*self.device as &dyn BlockDevice).read(at, Buf::new(len)));
        (outcome.result, outcome.buf.map(|buf| buf.to_vec()).unwrap_or_default())
    }

    fn pause(&self, span: Nanos) {
        let runtime = Rc::clone(&self.world) as Rc<dyn Runtime>;
        self.world.run(async move { runtime.sleep(span).await.result.unwrap() });
    }

    fn durable(&self, at: usize) -> u8 {
        self.server.durable.borrow()[at]
    }
}

#[test]
fn requests_do_what_they_say() {
    let rig = rig();
    let device = &*rig.device as &dyn BlockDevice;
    let geometry = device.geometry();
    assert_eq!((geometry.size_bytes, geometry.sector_bytes), (SIZE as u64, 512));
    assert!(geometry.discard);
    rig.write(4096, 9, 1024).unwrap();
    let (result, bytes) = rig.read(3584, 2048);
    assert_eq!(result, Ok(()));
    assert_eq!((bytes[511], bytes[512], bytes[1535], bytes[1536]), (7, 9, 9, 7));
    assert_eq!(rig.durable(4096), 7);
    rig.flush().unwrap();
    assert_eq!(rig.durable(4096), 9);
    rig.world.run(device.write_zeroes(0, 512).done()).unwrap();
    rig.world.run(device.discard(512, 512).done()).unwrap();
    assert_eq!(rig.read(0, 1024).1, vec![0; 1024]);
    assert_eq!(rig.write(SIZE as u64, 1, 512), Err(IoErrorKind::Invalid.into()));
}

#[test]
fn a_flush_does_not_cover_what_a_server_has_forgotten() {
    let rig = rig();
    rig.write(0, 1, 512).unwrap();
    rig.flush().unwrap();
    rig.write(0, 2, 512).unwrap();
    // It dies of the flush itself, and has forgotten what was not flushed when it is back.
    rig.server.act(FLUSH, Act::Die);
    assert_eq!(rig.flush(), GONE);
    assert_eq!(rig.durable(0), 1);
    // Whoever was told writes again; then a flush is one.
    rig.write(0, 2, 512).unwrap();
    rig.flush().unwrap();
    assert_eq!(rig.durable(0), 2);
}

#[test]
fn a_flush_that_comes_after_the_break_does_not_cover_it_either() {
    let rig = rig();
    rig.write(0, 2, 512).unwrap();
    // A flush for which nobody waits tells nobody.
    rig.server.act(FLUSH, Act::Hang);
    drop((&*rig.device as &dyn BlockDevice).flush());
    rig.server.act(READ, Act::Die);
    assert_eq!(rig.read(0, 512).0, Ok(()), "the read is asked for again");
    assert_eq!(rig.server.connections.get(), 2);
    assert_eq!(rig.flush(), GONE);
    assert_eq!(rig.flush(), Ok(()));
}

#[test]
fn where_all_was_flushed_a_break_costs_nothing() {
    let rig = rig();
    rig.write(0, 2, 512).unwrap();
    rig.flush().unwrap();
    rig.server.act(FLUSH, Act::Die);
    assert_eq!(rig.flush(), Ok(()));
    rig.server.act(READ, Act::Die);
    assert_eq!(rig.read(0, 512), (Ok(()), vec![2; 512]));
    assert_eq!(rig.flush(), Ok(()));
}

#[test]
fn what_has_no_answer_is_sent_again() {
    let rig = rig();
    rig.server.act(WRITE, Act::Die);
    rig.server.act(WRITE, Act::DoAndDie);
    rig.write(0, 3, 512).unwrap();
    assert_eq!(rig.server.connections.get(), 3);
    assert_eq!(rig.read(0, 512), (Ok(()), vec![3; 512]));
    // It was acknowledged on the connection that is there.
    assert_eq!(rig.flush(), Ok(()));
    assert_eq!(rig.durable(0), 3);
}

#[test]
fn a_request_that_kills_its_server_is_not_repeated_for_ever() {
    let rig = rig();
    for _ in 0..5 {
        rig.server.act(READ, Act::Die);
    }
    assert_eq!(rig.read(0, 512).0, GONE);
    assert_eq!(rig.read(512, 512).0, Ok(()));
}

#[test]
fn requests_wait_for_a_server_for_a_while_and_fail_until_it_is_back() {
    let rig = rig();
    rig.write(0, 1, 512).unwrap();
    rig.server.is_up.set(false);
    rig.server.act(READ, Act::Die);
    let began = rig.world.now();
    assert_eq!(rig.read(0, 512).0, GONE);
    let waited = rig.world.now() - began;
    assert!((30 * SECOND..36 * SECOND).contains(&waited), "{waited}");
    assert!(rig.device.is_down());
    assert!(matches!(rig.device.trouble(), Some(RemoteError::Unreachable(_))));
    let began = rig.world.now();
    assert_eq!(rig.write(0, 1, 512), GONE);
    assert_eq!(rig.world.now(), began, "nothing waits any more");
    assert_eq!(rig.flush(), GONE);
    rig.server.is_up.set(true);
    rig.pause(2 * SECOND);
    assert_eq!((rig.device.trouble(), rig.device.is_down()), (None, false));
    assert_eq!(rig.flush(), Ok(()), "who asked was told already");
    assert_eq!(rig.read(0, 512), (Ok(()), vec![7; 512]));
}

#[test]
fn requests_go_on_when_the_server_is_back_in_time() {
    let rig = rig();
    rig.server.is_up.set(false);
    rig.server.act(READ, Act::Die);
    let server = Rc::clone(&rig.server);
    let runtime = Rc::clone(&rig.world) as Rc<dyn Runtime>;
    rig.world.spawn(Box::pin(async move {
        let _ = runtime.sleep(10 * SECOND).await;
        server.is_up.set(true);
    }));
    assert_eq!(rig.read(0, 512), (Ok(()), vec![7; 512]));
}

#[test]
fn another_export_at_the_same_place_is_not_used() {
    let rig = rig();
    for (size, flags) in
        [(2 * SIZE, 0b110_0101), (SIZE / 2, 0b110_0101), (SIZE, 0b10_0101), (SIZE, 0b110_0111)]
    {
        rig.server.size.set(size as u64);
        rig.server.flags.set(flags);
        rig.server.act(READ, Act::Die);
        rig.server.seen.take();
        assert_eq!(rig.read(0, 512).0, GONE);
        assert_eq!(rig.server.seen.take().len(), 1, "nothing is asked of the other one");
        let why = rig.device.trouble();
        assert!(matches!(why, Some(RemoteError::Changed(_) | RemoteError::ReadOnly)), "{why:?}");
        rig.server.size.set(SIZE as u64);
        rig.server.flags.set(0b110_0101);
        rig.pause(2 * SECOND);
        assert_eq!(rig.read(0, 512).0, Ok(()), "the old one is there again");
    }
}

#[test]
fn long_requests_go_in_parts_and_zeroes_as_data_where_there_is_no_word_for_them() {
    let rig = rig_of(|server| {
        server.flags.set(0b101);
        server.blocks.set(Some([4096, 4096, 64 << 10]));
    });
    let device = &*rig.device as &dyn BlockDevice;
    assert_eq!((device.geometry().sector_bytes, device.geometry().discard), (4096, false));
    rig.write(4096, 4, 300 << 10).unwrap();
    rig.world.run(device.write_zeroes(8192, 200 << 10).done()).unwrap();
    let (result, bytes) = rig.read(0, 512 << 10);
    assert_eq!(result, Ok(()));
    assert!(bytes[..] == rig.server.current.borrow()[..512 << 10]);
    assert_eq!(
        (bytes[4096], bytes[8192], bytes[8191 + (200 << 10)], bytes[8192 + (200 << 10)]),
        (4, 0, 0, 4)
    );
    assert!(rig.server.seen.borrow().iter().all(|(kind, len)| *len <= 64 << 10 && *kind < 2));
}

#[test]
fn what_is_wrong_with_an_export_is_said() {
    type Set = fn(&Server);
    let refusals: [(Set, &str); 9] = [
        (|s| s.flags.set(0b111), "read-only"),
        (|s| s.flags.set(0b001), "FLUSH"),
        (|s| s.size.set(1000), "sectors"),
        (|s| s.size.set(0), "empty"),
        (|s| s.blocks.set(Some([8192, 8192, 1 << 20])), "8192"),
        (|s| s.blocks.set(Some([512, 4096, 100])), "512"),
        (|s| s.blocks.set(Some([0, 0, 0])), "bytes"),
        (|s| s.is_up.set(false), "reached"),
        (|s| s.act(WRITE, Act::Hang), ""),
    ];
    for (set, expected) in refusals {
        let world = World::new(3);
        let server = Server::start(&world);
        set(&server);
        match open(&world, &server) {
            Ok(_) => assert_eq!(expected, ""),
            Err(error) => {
                assert!(!expected.is_empty() && error.to_string().contains(expected), "{error}");
                assert!(!error.hint().is_empty());
            }
        }
    }
}

/// What servers say that do not keep to the protocol, before anything can be asked of them.
#[test]
fn negotiations_that_make_no_sense_end() {
    let world = World::new(3);
    let reply = |number: u8, kind: u32, payload: &[u8]| answer(&[0, 0, 0, number], kind, payload);
    let good = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
    let simple = [&good[..], &reply(8, 0x8000_0001, &[])].concat();
    let endless = [&simple[..], &reply(7, 3, &[0, 1]).repeat(1000)].concat();
    let huge = [&simple[..], &reply(7, 3, &[])[..16], &[0xff; 4]].concat();
    let table: [(Vec<u8>, RemoteError); 12] = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), RemoteError::NotNbd),
        (b"NBDMAGIC\0\x42\x02\x81\x86\x12\x53\0\0\0".to_vec(), RemoteError::TooOld),
        (b"NBDMAGICIHAVEOPT\0\x02".to_vec(), RemoteError::TooOld),
        (good[..9].to_vec(), RemoteError::Closed),
        ([&good[..], &reply(8, 0x8000_0005, &[])].concat(), RemoteError::NeedsTls),
        ([&good[..], &reply(9, 1, &[])].concat(), RemoteError::NotNbd),
        ([&good[..], &reply(8, 3, &[])].concat(), RemoteError::NotNbd),
        ([&simple[..], &reply(7, 0x8000_0006, &[])].concat(), RemoteError::NoExport),
        (
            [&simple[..], &reply(7, 0x8000_0002, b"no\x1b[1m")].concat(),
            RemoteError::Refused("no[1m".into()),
        ),
        ([&simple[..], &reply(7, 1, &[])].concat(), RemoteError::NotNbd),
        (endless, RemoteError::NotNbd),
        (huge, RemoteError::NotNbd),
    ];
    for (bytes, expected) in table {
        let server = Server::start(&World::new(1));
        let (door, runtime) = (server.door.clone(), Rc::clone(&world) as Rc<dyn Runtime>);
        let found = world.run(async move {
            let opening = Remote::open(&runtime, Way(server), "x");
            let serving = async {
                let stream = door.accept().await.unwrap();
                send(&stream, &bytes).await;
                stream.finish();
                std::future::pending::<()>().await;
            };
            let mut serving = Box::pin(serving);
            let mut opening = Box::pin(opening);
            std::future::poll_fn(move |cx| {
                let _ = serving.as_mut().poll(cx);
                opening.as_mut().poll(cx)
            })
            .await
        });
        assert_eq!(found.err(), Some(expected));
    }
}

#[test]
fn a_server_that_is_silent_is_given_up() {
    let world = World::new(3);
    let server = Server::start(&World::new(1));
    assert_eq!(open(&world, &server).err(), Some(RemoteError::Silent));
    assert!((4 * SECOND..5 * SECOND).contains(&world.now()));
}

/// Answers to a read of 1024 bytes that are none.
#[test]
fn replies_that_make_no_sense_end_the_connection_and_the_request_is_asked_again() {
    let rig = rig();
    let table: [&[u8]; 5] = [
        b"\0\0\0\0\0\0\0\0COOKIE!!",
        b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\0",
        b"\x67\x44\x66\x98\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
        // A part of a structured reply, which was not agreed on.
        b"\x66\x8e\x33\xef\0\x01\0\0COOKIE!!\0\0\0\0",
        // It is leaving.
        b"\x67\x44\x66\x98\0\0\0\x6cCOOKIE!!",
    ];
    for bytes in table {
        rig.server.act(READ, Act::Say(bytes.to_vec()));
        let before = rig.server.connections.get();
        assert_eq!(rig.read(0, 1024), (Ok(()), vec![7; 1024]));
        assert_eq!(rig.server.connections.get(), before + 1, "{bytes:?}");
    }
    rig.server.act(READ, Act::Say(b"\x67\x44\x66\x98\0\0\0\x05COOKIE!!".to_vec()));
    let error = IoError { kind: IoErrorKind::Media, errno: Some(5) };
    assert_eq!(rig.read(0, 1024).0, Err(error), "an error is an answer");
    assert_eq!(rig.flush(), Ok(()));
}

#[test]
fn the_parts_of_a_structured_reply_come_in_any_order() {
    let rig = rig_of(|server| server.is_structured.set(true));
    let (result, bytes) = rig.read(4096, 4096);
    assert_eq!(result, Ok(()));
    assert!(
        bytes[..512].iter().all(|byte| *byte == 0) && bytes[512..].iter().all(|byte| *byte == 7)
    );
    rig.write(0, 1, 512).unwrap();
    let message = [&[0, 0, 0, 28, 0, 2][..], b"no"].concat();
    rig.server.act(WRITE, Act::Say(part(b"COOKIE!!", 1, 0x8001, &message)));
    assert_eq!(rig.write(0, 1, 512).unwrap_err().kind, IoErrorKind::NoSpace);
    rig.server.act(READ, Act::Say(part(b"COOKIE!!", 1, 0x8002, &[&message[..], &[0; 8]].concat())));
    assert_eq!(rig.read(0, 512).0.unwrap_err().kind, IoErrorKind::NoSpace);
    assert_eq!(rig.server.connections.get(), 1);
}

#[test]
fn parts_of_a_reply_that_make_no_sense_end_the_connection() {
    let rig = rig_of(|server| server.is_structured.set(true));
    let at = |offset: u64, len: usize| [&offset.to_be_bytes()[..], &vec![1; len]].concat();
    let of = |flags, kind, body: &[u8]| part(b"COOKIE!!", flags, kind, body);
    let hole = |offset: u64, len: u32| [&offset.to_be_bytes()[..], &len.to_be_bytes()].concat();
    let table = [
        // Not all of it, more than all, twice the same, next to it, around the end of what there is.
        of(1, 1, &at(4096, 512)),
        of(1, 1, &at(4096, 2048)),
        [of(0, 1, &at(4096, 512)), of(1, 1, &at(4096, 512))].concat(),
        [of(0, 1, &at(4096, 768)), of(1, 1, &at(4352, 256))].concat(),
        of(1, 1, &at(3584, 1024)),
        of(1, 2, &hole(u64::MAX, 1024)),
        of(1, 2, &hole(4096, u32::MAX)),
        of(1, 2, &hole(4096, 0)),
        of(1, 0, &[]),
        of(1, 0, &[1]),
        of(1, 1, &[0; 8]),
        of(1, 5, &[0; 12]),
        of(1, 9, &[]),
        of(1, 0x8001, &[0; 3]),
        [&[0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1][..], b"COOKIE!!", &[0xff; 4]].concat(),
        [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], b"COOKIE!!", &[1; 1024]].concat(),
    ];
    for bytes in table {
        rig.server.act(READ, Act::Say(bytes.clone()));
        let before = rig.server.connections.get();
        let expected = [vec![0; 512], vec![7; 512]].concat();
        assert_eq!(rig.read(4096, 1024), (Ok(()), expected));
        assert_eq!(rig.server.connections.get(), before + 1, "{:?}", &bytes[..bytes.len().min(32)]);
    }
}

#[test]
fn nothing_is_sent_again_when_the_time_to_write_is_over() {
    let rig = rig();
    let gate = Gate::new(Rc::clone(&rig.world) as Rc<dyn Runtime>);
    (&*rig.device as &dyn BlockDevice).fence(&gate);
    rig.server.act(WRITE, Act::Die);
    gate.open_until(rig.world.now() + SECOND);
    rig.server.is_up.set(false);
    let write = (&*rig.device as &dyn BlockDevice).write(0, Buf::copy_of(&[1; 512]).freeze());
    let seen = || rig.server.seen.borrow().len();
    rig.pause(2 * SECOND);
    rig.server.is_up.set(true);
    rig.pause(2 * SECOND);
    assert_eq!((rig.device.trouble(), seen()), (None, 1));
    gate.open_until(rig.world.now() + 2 * SECOND);
    rig.pause(SECOND);
    assert_eq!((seen(), rig.world.run(write.done())), (2, Ok(())));
    rig.server.act(WRITE, Act::Die);
    let write = (&*rig.device as &dyn BlockDevice).write(0, Buf::copy_of(&[1; 512]).freeze());
    gate.shut();
    assert_eq!((rig.world.run(write.done()), seen()), (GONE, 2));
}

#[test]
fn what_is_half_sent_goes_no_further_when_the_time_to_write_is_over() {
    for lets_go in [false, true] {
        let Rig { world, server, device } = rig();
        let gate = Gate::new(Rc::clone(&world) as Rc<dyn Runtime>);
        (&*device as &dyn BlockDevice).fence(&gate);
        gate.open_until(world.now() + SECOND);
        server.is_deaf.set(true);
        let data = Buf::copy_of(&vec![1; SIZE]).freeze();
        let write = (&*device as &dyn BlockDevice).write(0, data);
        let ended = Rc::new(Cell::new(None));
        let answer = Rc::clone(&ended);
        world.spawn(Box::pin(async move { answer.set(Some(write.done().await)) }));
        let pause = |span| {
            let runtime = Rc::clone(&world) as Rc<dyn Runtime>;
            world.run(async move { runtime.sleep(span).await.result.unwrap() });
        };
        pause(SECOND / 2);
        if lets_go {
            drop(device);
        } else {
            pause(2 * SECOND);
            gate.shut();
        }
        pause(60 * SECOND);
        assert_eq!(ended.get(), Some(GONE), "while the server is deaf");
        server.is_deaf.set(false);
        pause(10 * SECOND);
        assert!(server.seen.borrow().iter().all(|(kind, _)| *kind != WRITE), "{lets_go}");
    }
}

#[test]
fn the_server_is_told_when_the_device_is_let_go_of() {
    let Rig { world, server, device } = rig();
    server.act(READ, Act::Hang);
    let read = (&*device as &dyn BlockDevice).read(0, Buf::new(512));
    world.settle();
    drop(device);
    assert_eq!(world.run(read.done()), GONE);
    world.settle();
    assert_eq!(server.seen.borrow().last(), Some(&(DISC, 0)));
    assert_eq!(server.connections.get(), 1);
}

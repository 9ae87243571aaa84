//! What a client can take up, and what ends when it breaks the rules or leaves, in virtual time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use crate::support::memory_export::MemoryExport;
use crate::support::pipe::{Doorstep, Pipe};
use crate::support::protocol::{Client, errors, extended, option, request, words};
use crate::support::rig::{Rig, SIZE};
use crate::support::world::World;
use forebay_device::runtime::SECOND;
use forebay_device::{Buf, Data, Runtime};
use forebay_export::nbd::{Exports, Fault, Server, Settings, Share, limits};
use forebay_export::{Export, ExportError, Extent, Listen, Tier, Transport, Zeroing};

#[test]
fn a_client_that_does_not_finish_negotiating_is_dropped() {
    let rig = Rig::new(|export| export);
    let stream = rig.door.connect();
    let rest = rig.world.run(async move { stream.drain().await });
    assert_eq!(rest.len(), 18);
    assert_eq!(rig.world.now(), limits::NEGOTIATION_TIME_MAX);
    assert_eq!(rig.faults(), [Fault::SlowNegotiation]);
}

/// What to send to use an export by its name.
fn named(name: &str) -> Vec<u8> {
    let mut payload = (name.len() as u32).to_be_bytes().to_vec();
    payload.extend(name.as_bytes());
    payload.extend([0; 2]);
    [3_u32.to_be_bytes().to_vec(), option(7, &payload)].concat()
}

#[test]
fn clients_above_the_limit_wait_for_a_place() {
    let rig = Rig::new(|export| export);
    let runtime: Rc<dyn Runtime> = Rc::clone(&rig.world) as _;
    let other = Rc::new(MemoryExport::new(runtime, "other", SIZE));
    rig.server.exports().add(other).expect("another name");
    let open = |stream: Pipe, name| {
        rig.world.run(async move {
            let _ = stream.send_all(Buf::copy_of(&named(name)).freeze()).await;
            // The greeting, and the head of the first reply.
            let (bytes, result) = stream.recv_exact(Buf::new(38)).await;
            result.expect("an answer");
            (stream, bytes[33])
        })
    };
    let mut clients = Vec::new();
    for name in ["disk", "other"] {
        clients.extend((0..limits::EXPORT_CONNECTIONS_MAX - 1).map(|_| {
            let (client, kind) = open(rig.door.connect(), name);
            assert_eq!(kind, 3, "information about the export");
            client
        }));
    }
    clients.push(open(rig.door.connect(), "disk").0);
    let (refused, kind) = open(rig.door.connect(), "disk");
    assert_eq!(kind, 2, "refused by policy");
    let late = rig.door.connect();
    while rig.world.tasks.run_one(|_| 0) {}
    assert_eq!(rig.server.connection_count(), limits::CONNECTIONS_MAX);
    assert_eq!(rig.door.waiting_count(), 1);
    drop(refused);
    let (late, kind) = open(late, "other");
    assert_eq!(kind, 3);
    drop((late, clients));
    rig.assert_idle();
    assert!(rig.world.now() < SECOND);
    assert!(rig.complaints.borrow().is_empty());
}

#[test]
fn servers_share_their_places_and_their_memory() {
    let rig = Rig::new(|export| export);
    let share = Rc::<Share>::default();
    let servers: Vec<_> = (0..5)
        .map(|_| {
            let runtime = Rc::clone(&rig.world) as Rc<dyn Runtime>;
            let export = MemoryExport::new(Rc::clone(&runtime), "disk", SIZE);
            let exports = Exports::of(Rc::new(export)).expect("valid");
            let settings = Settings { share: Rc::clone(&share), ..Settings::default() };
            let server = Server::new(runtime, exports, settings, |it| panic!("{it}"));
            let door = Doorstep::default();
            rig.world.spawn(Box::pin(Rc::clone(&server).serve(door.clone())));
            (server, door)
        })
        .collect();
    // Strangers who say nothing fill one server each.
    let mut strangers: Vec<Vec<Pipe>> = Vec::new();
    for (_, door) in &servers {
        strangers.push((0..limits::CONNECTIONS_MAX).map(|_| door.connect()).collect());
    }
    while rig.world.tasks.run_one(|_| 0) {}
    let count = || servers.iter().map(|(server, _)| server.connection_count()).sum::<usize>();
    assert_eq!(count(), limits::SHARE_CONNECTIONS_MAX);
    assert!(servers.iter().map(|(_, door)| door.waiting_count()).sum::<usize>() > 0);
    strangers.clear();
    while rig.world.tasks.run_one(|_| 0) {}
    assert_eq!(count(), 0);
    // A request of one counts for all.
    let mut client = rig.world.run(Client::open(servers[0].1.connect(), true));
    let other = Rc::clone(&servers[1].0);
    rig.world.run(async move {
        client.send(&request(0, 0, 1, 0, SIZE as u32)).await;
        // It does not take its reply.
        while other.inflight_bytes() == 0 {
            let (_, result) = client.stream.recv_exact(Buf::new(1)).await;
            result.expect("the beginning of a reply");
        }
        assert!(other.inflight_bytes() > SIZE as u64);
    });
    for (server, _) in &servers {
        server.stop();
    }
    rig.world.settle();
    assert_eq!((count(), servers[4].0.inflight_bytes()), (0, 0));
}

/// Comes and says something else than NBD, so many times.
fn come_again(rig: &Rig, times: u32) {
    for _ in 0..times {
        let stream = rig.door.connect();
        rig.world.run(async move {
            let _ = stream.send_all(Buf::copy_of(b"GET / HTTP/1.1\r\n\r\n").freeze()).await;
            stream.drain().await
        });
    }
}

#[test]
fn a_client_that_comes_back_again_and_again_does_not_fill_the_log() {
    let rig = Rig::new(|export| export);
    come_again(&rig, 200);
    let unsaid = || rig.complaints.borrow().iter().map(|it| it.unsaid).collect::<Vec<_>>();
    let told = limits::COMPLAINTS_MAX as usize;
    assert_eq!(unsaid(), vec![0; told]);
    assert_eq!(rig.faults().len(), told + 1, "the others are told of once nobody comes any more");
    assert_eq!(unsaid()[told], u64::from(200 - limits::COMPLAINTS_MAX - 1));
    assert!(rig.world.now() >= limits::COMPLAINTS_SPAN);
    rig.complaints.take();
    come_again(&rig, 1);
    assert_eq!((rig.faults(), unsaid()), (vec![Fault::NotNbd], vec![0]));
}

#[test]
fn what_was_not_told_of_clients_is_told_when_the_server_stops() {
    let rig = Rig::new(|export| export);
    come_again(&rig, limits::COMPLAINTS_MAX + 3);
    rig.server.stop();
    rig.world.settle();
    assert!(rig.served.get() && rig.world.now() < limits::COMPLAINTS_SPAN);
    assert_eq!(rig.complaints.borrow().last().map(|it| it.unsaid), Some(2));
}

#[test]
fn each_way_to_break_the_protocol_ends_one_connection_with_one_complaint() {
    let rig = Rig::new(|export| export);
    let hello = 3_u32.to_be_bytes();
    let write = [request(1, 0, 1, 0, 4096), vec![1; 4095]].concat();
    let go = [&hello[..], &option(1, b"disk")].concat();
    let table: [(Vec<u8>, Option<Fault>); 15] = [
        (vec![], None),
        (hello.to_vec(), None),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), Some(Fault::NotNbd)),
        ([&hello[..], &[0; 16]].concat(), Some(Fault::NotNbd)),
        ([&[0, 0, 0, 0][..], &option(3, b"")].concat(), Some(Fault::NotNbd)),
        ([&hello[..], &option(1, b"none")].concat(), Some(Fault::UnknownExport)),
        ([&hello[..], &option(7, b"disk")[..18]].concat(), Some(Fault::BrokenOff)),
        ([&hello[..], &option(12, &[0; 20_000])[..18_000]].concat(), Some(Fault::BrokenOff)),
        ([&hello[..], &option(2, b"")].concat(), None),
        (go.clone(), None),
        ([&hello[..], b"IHAVE"].concat(), Some(Fault::BrokenOff)),
        ([&go[..], &[0x25]].concat(), Some(Fault::BrokenOff)),
        ([&go[..], &write].concat(), Some(Fault::BrokenOff)),
        ([&go[..], &request(2, 0, 0, 0, 0)].concat(), None),
        ([&go[..], &[0x25; 28]].concat(), Some(Fault::OutOfStep)),
    ];
    let mut bystander = rig.open(true);
    for (bytes, expected) in table {
        let stream = rig.door.connect();
        let sent = bytes.clone();
        rig.world.run(async move {
            let _ = stream.send_all(Buf::copy_of(&sent).freeze()).await;
            stream.finish();
            stream.drain().await
        });
        let told: Vec<_> = rig.complaints.take().into_iter().map(|it| it.fault).collect();
        assert_eq!(told, Vec::from_iter(expected), "{bytes:?}");
        let replies;
        (bystander, replies) = rig.ask(bystander, request(3, 0, 1, 0, 0), 1, |_| 0);
        assert_eq!(errors(&replies), [0]);
    }
    drop(bystander);
    rig.assert_idle();
}

/// A disk of 1 TiB that only counts.
struct Huge {
    runtime: Rc<dyn Runtime>,
    calls: RefCell<Vec<(u64, u64)>>,
}

impl Export for Huge {
    fn name(&self) -> &str {
        "huge"
    }

    fn description(&self) -> &str {
        ""
    }

    fn size_bytes(&self) -> u64 {
        1 << 40
    }

    fn read_only(&self) -> bool {
        false
    }

    async fn read(&self, _: u64, buf: Buf) -> (Buf, Result<(), ExportError>) {
        (buf, Ok(()))
    }

    async fn write(&self, _: u64, _: Data, _: bool) -> Result<(), ExportError> {
        Ok(())
    }

    async fn flush(&self) -> Result<(), ExportError> {
        Ok(())
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), ExportError> {
        assert!(fua, "each step is as durable as the whole");
        self.calls.borrow_mut().push((offset, len));
        let _ = self.runtime.sleep(SECOND).await;
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, len: u64, _: Zeroing) -> Result<(), ExportError> {
        self.trim(offset, len, true).await
    }

    async fn status(&self, _: u64, len: u64) -> Result<Vec<Extent>, ExportError> {
        Ok(vec![Extent { len, is_zero: false, tier: Tier::Origin }])
    }

    async fn prefetch(&self, _: u64, _: u64) -> Result<(), ExportError> {
        Ok(())
    }
}

#[test]
fn a_long_request_is_carried_out_in_steps_and_ends_when_the_server_stops() {
    let world = World::new(1);
    let runtime: Rc<dyn Runtime> = Rc::clone(&world) as _;
    let huge = Rc::new(Huge { runtime: Rc::clone(&runtime), calls: RefCell::default() });
    let exports = Exports::of(Rc::clone(&huge)).expect("valid");
    let server = Server::new(runtime, exports, Settings::default(), |it| panic!("{it}"));
    let door = Doorstep::default();
    world.spawn(Box::pin(Rc::clone(&server).serve(door.clone())));
    let mut client = world.run(Client::open_with_contexts(door.connect(), true));
    let step = limits::STEP_BYTES;
    let mut client = world.run(async move {
        client.send(&extended(4, 1, 1, 512, 2 * step + 4096)).await;
        assert_eq!(client.chunk().await.unwrap().kind, 0);
        client.send(&extended(7, 0, 1, 0, 1 << 40)).await;
        let all = client.chunk().await.unwrap().body;
        assert_eq!(words(&all), [1, 1, 256, 0, 0, 0], "one extent of 1 TiB");
        client.chunk().await.unwrap();
        client.send(&extended(6, 16, 1, 0, 2 * step)).await;
        assert_eq!(words(&client.chunk().await.unwrap().body)[0], 95, "that is not fast");
        client
    });
    let expected = [(512, step), (512 + step, step), (512 + 2 * step, 4096)];
    assert_eq!(huge.calls.take(), expected);
    let began = world.now();
    let stopper = Rc::clone(&server);
    let runtime: Rc<dyn Runtime> = Rc::clone(&world) as _;
    let errno = world.run(async move {
        client.send(&extended(6, 1, 1, 0, 1 << 40)).await;
        let _ = runtime.sleep(5 * SECOND).await;
        stopper.stop();
        words(&client.chunk().await.unwrap().body)[0]
    });
    assert_eq!(errno, 108, "the server is shutting down");
    assert!(world.now() - began <= 7 * SECOND && huge.calls.borrow().len() <= 7);
    world.settle();
    assert_eq!(world.tasks.live_count(), 0);
}

/// Clients come and go at random, at every stage, while others work.
#[test]
fn a_thousand_connections_opened_and_dropped_under_load_leave_nothing() {
    let rig = Rig::new(MemoryExport::delayed);
    let random = |bound: usize| rig.world.random() as usize % bound;
    let script = [
        3_u32.to_be_bytes().to_vec(),
        option(8, b""),
        option(3, b""),
        option(1, b"disk"),
        (0..40_u64)
            .flat_map(|n| {
                let kind = [0, 1, 3, 4, 5, 6][n as usize % 6];
                let len = if kind == 3 { 0 } else { 4096 };
                let mut bytes = request(kind, 0, n, u64::from(len) * n, len);
                bytes.resize(28 + if kind == 1 { len as usize } else { 0 }, 1);
                bytes
            })
            .collect(),
    ]
    .concat();
    let mut open: Vec<Rc<Pipe>> = Vec::new();
    let mut workers = vec![rig.open(true), rig.open(false)];
    for round in 0..1000 {
        let stream = Rc::new(rig.door.connect_with_window(1 + random(20_000)));
        let bytes = Buf::copy_of(&script[..random(script.len() + 1)]).freeze();
        let sender = Rc::clone(&stream);
        rig.world.spawn(Box::pin(async move {
            let _ = sender.send_all(bytes).await;
        }));
        if random(3) == 0 {
            let reader = Rc::clone(&stream);
            rig.world.spawn(Box::pin(async move { drop(reader.drain().await) }));
        }
        open.push(stream);
        for _ in 0..random(200) {
            rig.world.tasks.run_one(|count| rig.world.random() as usize % count);
        }
        while open.len() > 60 || !open.is_empty() && random(2) == 0 {
            let stream = open.swap_remove(random(open.len()));
            if random(4) == 0 { stream.finish() } else { stream.shutdown() }
        }
        if round % 10 == 0 {
            let worker = workers.remove(0);
            let bytes = (0..20).flat_map(|n| request(0, 0, n, n * 4096, 4096)).collect();
            let (worker, replies) = rig.ask(worker, bytes, 20, |_| 4096);
            assert_eq!(errors(&replies), [0; 20]);
            workers.push(worker);
        }
    }
    assert!(rig.export.finished.load(Ordering::Relaxed) > 10_000, "there was work");
    open.iter().for_each(|stream| stream.shutdown());
    drop((open, workers));
    let faults = rig.faults();
    assert!(faults.contains(&Fault::BrokenOff), "{faults:?}");
    assert!(!faults.contains(&Fault::OutOfStep) && !faults.contains(&Fault::NotNbd));
}

#[test]
fn options_that_are_too_long_are_skipped_and_refused() {
    let rig = Rig::new(|export| export);
    let stream = rig.door.connect();
    let replies = rig.world.run(async move {
        let long = vec![1; limits::OPTION_BYTES_MAX as usize + 1];
        let bytes = [
            3_u32.to_be_bytes().to_vec(),
            option(7, &long),
            option(5, &long),
            option(12, b"x"),
            option(3, b""),
            option(2, b""),
        ]
        .concat();
        let _ = stream.send_all(Buf::copy_of(&bytes).freeze()).await;
        stream.drain().await
    });
    let mut rest = &replies[18..];
    let mut kinds = Vec::new();
    while !rest.is_empty() {
        let number = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap());
        kinds.push((number(8), number(12)));
        rest = &rest[20 + number(16) as usize..];
    }
    let error = 1 << 31;
    let expected = [(7, error + 9), (5, error + 1), (12, error + 1), (3, 2), (3, 1), (2, 1)];
    assert_eq!(kinds, expected);
    assert_eq!(rig.faults(), []);
}

/// A listener whose first clients have left before they were accepted.
struct Resets {
    left: Cell<u32>,
    door: Doorstep,
}

impl Listen for Resets {
    type Stream = Pipe;

    async fn accept(&self) -> std::io::Result<Pipe> {
        if self.left.get() > 0 {
            self.left.set(self.left.get() - 1);
            return Err(std::io::ErrorKind::NotConnected.into());
        }
        self.door.accept().await
    }
}

#[test]
fn a_client_that_leaves_before_it_is_accepted_delays_nobody() {
    let world = World::new(7);
    let runtime: Rc<dyn Runtime> = Rc::clone(&world) as _;
    let export = Rc::new(MemoryExport::new(Rc::clone(&runtime), "disk", SIZE));
    let exports = Exports::of(export).expect("valid");
    let server = Server::new(runtime, exports, Settings::default(), |it| panic!("{it}"));
    let door = Doorstep::default();
    let resets = Resets { left: Cell::new(50), door: door.clone() };
    world.spawn(Box::pin(server.serve(resets)));
    world.run(Client::open(door.connect(), true));
    assert_eq!(world.now(), 0);
}

#[test]
fn an_idle_client_is_closed_where_that_is_asked_for_and_a_working_one_is_not() {
    let settings = Settings { idle_max: Some(30 * SECOND), ..Settings::default() };
    let rig = Rig::with(settings, |export| export);
    let (idle, mut working) = (rig.open(true), rig.open(true));
    let runtime = Rc::clone(&rig.world) as Rc<dyn Runtime>;
    let working = rig.world.run(async move {
        for n in 0..10 {
            let _ = runtime.sleep(20 * SECOND).await;
            working.send(&request(0, 0, n, 0, 512)).await;
            assert_eq!(working.reply(|_| 512).await.unwrap().error, 0);
        }
        working
    });
    let told: Vec<_> = rig.complaints.take().into_iter().map(|it| it.fault).collect();
    assert_eq!(told, [Fault::Idle]);
    drop((idle, working));
    assert_eq!(rig.faults(), []);
}

#[test]
fn stalled_clients_are_closed_when_others_wait_for_memory_and_not_before() {
    let rig = Rig::new(|export| export);
    let size = SIZE as u32;
    // They ask for more than they may have in progress, and take nothing.
    let stall = |count: usize| -> Vec<_> {
        let stalled = (0..count).map(|_| {
            let mut client = rig.open(true);
            rig.world.run(async move {
                let asked: Vec<_> = (0..70).map(|n| request(0, 0, n, 0, size)).collect();
                client.send(&asked.concat()).await;
                client
            })
        });
        stalled.collect()
    };
    let runtime = Rc::clone(&rig.world) as Rc<dyn Runtime>;
    let rest = |span| {
        let runtime = Rc::clone(&runtime);
        rig.world.run(async move { drop(runtime.sleep(span).await) });
    };
    let few = stall(2);
    rest(3600 * SECOND);
    assert_eq!(rig.server.connection_count(), 2, "nobody needs their memory");
    let more = stall(5);
    while rig.world.tasks.run_one(|_| 0) {}
    let common = limits::SHARE_BYTES_INFLIGHT_MAX - limits::KEPT_BYTES;
    assert!(rig.server.inflight_bytes() + 2 * u64::from(size) > common);
    rest(limits::STALL_TIME_MAX + 3 * limits::WATCH_INTERVAL);
    let told: Vec<_> = rig.complaints.take().into_iter().map(|it| it.fault).collect();
    assert!(!told.is_empty() && told.iter().all(|it| *it == Fault::Stalled), "{told:?}");
    assert!(rig.server.inflight_bytes() < limits::SHARE_BYTES_INFLIGHT_MAX / 2);
    let (client, replies) = rig.ask(rig.open(true), request(0, 0, 1, 0, size), 1, |_| 0);
    assert_eq!(errors(&replies), [0]);
    drop((few, more, client));
    assert!(rig.faults().is_empty());
}

/// They take nothing either, and send a byte of a write now and then.
#[test]
fn stalled_clients_that_trickle_are_closed_as_well() {
    let rig = Rig::new(|export| export);
    let size = SIZE as u32;
    let runtime = Rc::clone(&rig.world) as Rc<dyn Runtime>;
    for _ in 0..12 {
        let (mut client, runtime) = (rig.open(true), Rc::clone(&runtime));
        rig.world.spawn(Box::pin(async move {
            // Fewer than it may have, so that the write is begun to be read.
            let mut asked: Vec<_> = (0..24).map(|n| request(0, 0, n, 0, size)).collect();
            asked.push(request(0, 1, 24, 0, 4096));
            client.send(&asked.concat()).await;
            for _ in 0..4096 {
                let _ = runtime.sleep(limits::STALL_TIME_MAX - SECOND).await;
                if client.stream.send_all(Buf::copy_of(&[0]).freeze()).await.is_err() {
                    return;
                }
            }
        }));
    }
    let rest = Rc::clone(&runtime);
    rig.world.run(async move { drop(rest.sleep(10 * limits::STALL_TIME_MAX).await) });
    let told: Vec<_> = rig.complaints.take().into_iter().map(|it| it.fault).collect();
    assert!(told.iter().all(|it| *it == Fault::Stalled), "{told:?}");
    let held = rig.server.inflight_bytes();
    assert!(held < limits::SHARE_BYTES_INFLIGHT_MAX / 2, "{held} B, {} closed", told.len());
}

/// One client asks for as much as it may, all the time, and takes its replies; another one asks for one read after the
/// other, each four times as long: it would have to wait until several of the first one's end at once.
#[test]
fn a_greedy_client_does_not_keep_another_one_waiting() {
    const TURNS: usize = 40;
    const SHORT: usize = SIZE / 4;
    let share = Rc::new(Share::of(limits::INFLIGHT_BYTES_MIN));
    let rig = Rig::with(Settings { share, ..Settings::default() }, MemoryExport::delayed);
    let (greedy, mut modest) = (rig.open(true), rig.open(true));
    let greedy_served = Rc::new(Cell::new(0));
    let (stream, served) = (Rc::new(greedy.stream), Rc::clone(&greedy_served));
    let (asking, taking) = (Rc::clone(&stream), stream);
    rig.world.spawn(Box::pin(async move {
        for n in 0..20_000 {
            let asked = Buf::copy_of(&request(0, 0, n, 0, SHORT as u32)).freeze();
            if asking.send_all(asked).await.is_err() {
                return;
            }
        }
    }));
    let runtime = Rc::clone(&taking);
    rig.world.spawn(Box::pin(async move {
        // Each reply is a header of 20 bytes, a place of 8, and the data.
        while taking.recv_exact(Buf::new(20 + 8 + SHORT)).await.1.is_ok() {
            served.set(served.get() + 1);
        }
    }));
    let counted = Rc::clone(&greedy_served);
    let waits = rig.world.run(async move {
        let mut waits = Vec::new();
        for turn in 0..TURNS as u64 {
            let before = counted.get();
            modest.send(&request(0, 0, turn, 0, SIZE as u32)).await;
            assert_eq!(modest.reply(|_| SIZE).await.unwrap().error, 0);
            waits.push(counted.get() - before);
        }
        waits
    });
    runtime.shutdown();
    // What the greedy one had under way when it was asked, and as much again while it was answered.
    let most = 2 * limits::INFLIGHT_BYTES_MIN as usize / Buf::memory_bytes(4096 + SHORT);
    assert!(greedy_served.get() > TURNS, "the greedy one was served, too: {}", greedy_served.get());
    assert!(waits.iter().all(|&served| served <= most), "{waits:?}, at the most {most}");
}

#[test]
fn a_client_has_no_more_bytes_in_progress_than_it_may_and_is_answered_all_the_same() {
    const COUNT: u64 = 100;
    let step = Buf::memory_bytes(4096 + SIZE) as u64;
    for most in [limits::INFLIGHT_BYTES_MIN, limits::BYTES_INFLIGHT_MAX] {
        // All of them may have more together: what one may have is what holds here.
        assert!(COUNT * step > most && most < limits::SHARE_BYTES_INFLIGHT_MAX / 2);
        let rig = Rig::with(Settings { inflight_bytes_max: most, ..Settings::default() }, |it| it);
        let mut client = rig.open(true);
        let asked: Vec<u8> = (0..COUNT).flat_map(|n| request(0, 0, n, 0, SIZE as u32)).collect();
        let client = rig.world.run(async move {
            client.send(&asked).await;
            client
        });
        while rig.world.tasks.run_one(|_| 0) {}
        let bytes = rig.server.inflight_bytes();
        assert!(bytes <= most && bytes + 2 * step > most, "{bytes} of {most}");
        let (client, replies) = rig.ask(client, Vec::new(), COUNT as usize, |_| SIZE);
        assert_eq!(errors(&replies), [0; COUNT as usize]);
        drop(client);
        assert_eq!(rig.faults(), []);
    }
}

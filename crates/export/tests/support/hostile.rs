//! A client that sends whatever it is told to, and what a server must be afterwards.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use forebay_device::{Buf, Runtime};
use forebay_export::Transport;
use forebay_export::nbd::{Exports, Server, Settings, Tls, TlsMode};
use rustls::ClientConfig;

use super::memory_export::MemoryExport;
use super::pipe::{Doorstep, Pipe};
use super::protocol::{Client, request};
use super::tls::{Certificates, Encrypted, ask_for_tls, begin, encrypt};
use super::world::World;

pub const SIZE: usize = 1 << 16;

/// How far a client has come.
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    Connected,
    Simple,
    Structured,
    /// With both contexts.
    Contexts,
    Extended,
    /// Asked for TLS.
    Handshake,
    /// Under TLS, and nothing chosen yet.
    Encrypted,
}

pub const IN_TRANSMISSION: [Stage; 4] =
    [Stage::Simple, Stage::Structured, Stage::Contexts, Stage::Extended];

/// A server that has TLS, and a client's side of it.
fn secrets() -> &'static (Tls, Arc<ClientConfig>) {
    static SECRETS: OnceLock<(Tls, Arc<ClientConfig>)> = OnceLock::new();
    SECRETS.get_or_init(|| {
        let certificates = Certificates::new();
        (certificates.tls(TlsMode::Offered), certificates.client_config("good"))
    })
}

/// Sends `bytes` as a client at a stage, takes whatever comes back, and leaves.
pub fn play(seed: u64, stage: Stage, bytes: Vec<u8>) {
    let (tls, config) = secrets();
    let settings = Settings { tls: Some(tls.clone()), ..Settings::default() };
    let world = World::new(seed);
    let runtime: Rc<dyn Runtime> = Rc::clone(&world) as _;
    let export = MemoryExport::new(Rc::clone(&runtime), "disk", SIZE).delayed();
    let export = Rc::new(export);
    let complaints = Rc::new(Cell::new(0));
    let count = Rc::clone(&complaints);
    let exports = Exports::of(Rc::clone(&export)).expect("valid");
    let server = Server::new(runtime, exports, settings, move |_| count.set(count.get() + 1));
    let door = Doorstep::default();
    world.spawn(Box::pin(Rc::clone(&server).serve(door.clone())));
    let mut bystander = world.run(Client::open(door.connect(), true));
    let stream = door.connect_with_window(1000);
    let mut encrypted = None;
    let stream: Rc<Pipe> = Rc::new(match stage {
        Stage::Connected => stream,
        Stage::Simple => world.run(Client::open(stream, false)).stream,
        Stage::Structured => world.run(Client::open(stream, true)).stream,
        Stage::Contexts => world.run(Client::open_with_contexts(stream, false)).stream,
        Stage::Extended => world.run(Client::open_with_contexts(stream, true)).stream,
        Stage::Handshake => world.run(async move {
            ask_for_tls(&stream).await;
            stream
        }),
        Stage::Encrypted => {
            let opened = world.run(Encrypted::open(stream, begin(config))).expect("TLS");
            encrypted = Some(opened.connection);
            opened.stream
        }
    });
    let sender = Rc::clone(&stream);
    world.spawn(Box::pin(async move {
        let bytes = match encrypted {
            Some(connection) => encrypt(&mut connection.borrow_mut(), &bytes),
            None => bytes,
        };
        let _ = sender.send_all(Buf::copy_of(&bytes).freeze()).await;
        sender.finish();
    }));
    world.run(async move { stream.drain().await });
    let reply = world.run(async move {
        bystander.send(&request(3, 0, 5, 0, 0)).await;
        bystander.reply(|_| 0).await
    });
    assert_eq!(reply.map(|reply| (reply.cookie, reply.error)), Ok((5, 0)));
    world.settle();
    assert_eq!((server.connection_count(), world.tasks.live_count()), (0, 1));
    assert_eq!((export.inflight.get(), server.inflight_bytes()), (0, 0));
    assert!(complaints.get() <= 1, "only one client has done wrong");
    server.stop();
    world.settle();
    assert_eq!(world.tasks.live_count(), 0);
}

//! Whatever bytes a client sends, the server neither panics nor hangs, and a bystander is
//! served.

mod support;

use std::rc::Rc;

use forebay_device::{Buf, Runtime};
use forebay_export::Transport;
use forebay_export::nbd::{Exports, Server};
use proptest::collection::vec;
use proptest::prelude::*;
use support::memory_export::MemoryExport;
use support::pipe::{Doorstep, Pipe};
use support::protocol::{Client, contexts, extended, option, request};
use support::world::World;

const SIZE: usize = 1 << 16;

/// How far a client has come.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Connected,
    Simple,
    Structured,
    /// With both contexts.
    Contexts,
    Extended,
}

const IN_TRANSMISSION: [Stage; 4] =
    [Stage::Simple, Stage::Structured, Stage::Contexts, Stage::Extended];

/// Sends `bytes` as a client at a stage, takes whatever comes back, and leaves.
fn play(seed: u64, stage: Stage, bytes: Vec<u8>) {
    let world = World::new(seed);
    let runtime: Rc<dyn Runtime> = Rc::clone(&world) as _;
    let export = MemoryExport::new(Rc::clone(&runtime), "disk", SIZE).delayed();
    let export = Rc::new(export);
    let complaints = Rc::new(std::cell::Cell::new(0));
    let count = Rc::clone(&complaints);
    let exports = Exports::of(Rc::clone(&export)).expect("valid");
    let server = Server::new(runtime, exports, move |_| count.set(count.get() + 1));
    let door = Doorstep::default();
    world.spawn(Box::pin(Rc::clone(&server).serve(door.clone())));
    let mut bystander = world.run(Client::open(door.connect(), true));
    let stream = door.connect_with_window(1000);
    let stream: Rc<Pipe> = Rc::new(match stage {
        Stage::Connected => stream,
        Stage::Simple => world.run(Client::open(stream, false)).stream,
        Stage::Structured => world.run(Client::open(stream, true)).stream,
        Stage::Contexts => world.run(Client::open_with_contexts(stream, false)).stream,
        Stage::Extended => world.run(Client::open_with_contexts(stream, true)).stream,
    });
    let sender = Rc::clone(&stream);
    world.spawn(Box::pin(async move {
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
}

fn some_option() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        Just(b"".to_vec()),
        Just(b"disk".to_vec()),
        Just(b"\0\0\0\x04disk\0\x01\0\x03".to_vec()),
        Just(contexts(&[])),
        Just(contexts(&["base:allocation", "forebay:", "?"])),
        vec(any::<u8>(), 0..40),
        vec(any::<u8>(), 16_000..17_000),
    ];
    (0_u32..13, payload).prop_map(|(number, payload)| option(number, &payload))
}

fn some_request() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![4 => Just(0), 2 => 0_u16..64, 1 => any::<u16>()];
    let kind = prop_oneof![8 => 0_u16..8, 1 => any::<u16>()];
    let sectors = SIZE as u64 / 512;
    let offset = prop_oneof![8 => (0..sectors + 2).prop_map(|s| s * 512), 1 => any::<u64>()];
    let len = prop_oneof![
        8 => (0_u32..16).prop_map(|sectors| sectors * 512),
        1 => 0_u32..10_000,
        1 => any::<u32>()
    ];
    let parts = (flags, kind, any::<u64>(), offset, len, any::<bool>());
    parts.prop_map(|(flags, kind, cookie, offset, len, is_extended)| {
        let mut bytes = if is_extended {
            extended(kind, flags, cookie, offset, u64::from(len))
        } else {
            request(kind, flags, cookie, offset, len)
        };
        if kind == 1 || is_extended && flags & 32 != 0 {
            bytes.resize(bytes.len() + len.min(20_000) as usize, 0x33);
        }
        bytes
    })
}

fn in_transmission() -> impl Strategy<Value = Stage> {
    proptest::sample::select(&IN_TRANSMISSION)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_from_the_first_on(seed: u64, bytes in vec(any::<u8>(), 0..400)) {
        play(seed, Stage::Connected, bytes);
    }

    #[test]
    fn random_bytes_after_the_flags(
        seed: u64,
        flags in 0_u8..8,
        mut bytes in vec(any::<u8>(), 4..400),
    ) {
        bytes[..4].copy_from_slice(&[0, 0, 0, flags]);
        play(seed, Stage::Connected, bytes);
    }

    #[test]
    fn options_in_any_order(seed: u64, options in vec(some_option(), 0..12), cut in 0..100_usize) {
        let mut bytes = [vec![0, 0, 0, 3], options.concat()].concat();
        bytes.truncate(bytes.len().saturating_sub(cut.saturating_sub(50)));
        play(seed, Stage::Connected, bytes);
    }

    #[test]
    fn random_bytes_in_transmission(
        seed: u64,
        stage in in_transmission(),
        bytes in vec(any::<u8>(), 0..400),
    ) {
        play(seed, stage, bytes);
    }

    #[test]
    fn requests_in_any_order(
        seed: u64,
        stage in in_transmission(),
        requests in vec(some_request(), 0..60),
        cut in 0..100_usize,
    ) {
        let mut bytes = requests.concat();
        bytes.truncate(bytes.len().saturating_sub(cut.saturating_sub(50)));
        play(seed, stage, bytes);
    }
}

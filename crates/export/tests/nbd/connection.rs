//! Connections over a stream in memory, byte for byte, in virtual time.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use crate::support::memory_export::MemoryExport;
use crate::support::protocol::{Chunk, Client, Reply, errors, extended, option, request, words};
use crate::support::rig::{Rig, SIZE};
use forebay_device::Buf;
use forebay_device::Runtime;
use forebay_export::ExportError;
use forebay_export::Transport;
use forebay_export::nbd::{Fault, limits};

#[test]
fn every_command_is_answered_in_both_reply_forms() {
    for structured in [false, true] {
        let rig = Rig::new(|export| export);
        let client = rig.open(structured);
        let pattern: Vec<u8> = (0..4096_u32).map(|i| (i % 251) as u8).collect();
        let write = [request(1, 1, 1, 8192, 4096), pattern.clone()].concat();
        let (client, replies) = rig.ask(client, write, 1, |_| 0);
        assert_eq!(errors(&replies), [0]);
        let (client, replies) = rig.ask(client, request(0, 0, 2, 8192, 4096), 1, |_| 4096);
        assert_eq!(replies, [Reply { cookie: 2, error: 0, data: pattern }]);
        let (client, replies) = rig.ask(client, request(3, 0, 3, 0, 0), 1, |_| 0);
        assert_eq!((errors(&replies), rig.export.flushes.get()), (vec![0], 1));
        let (client, replies) = rig.ask(client, request(4, 0, 4, 8192, 512), 1, |_| 0);
        assert_eq!(errors(&replies), [0]);
        let (client, replies) = rig.ask(client, request(6, 2, 5, 8704, 512), 1, |_| 0);
        assert_eq!(errors(&replies), [0]);
        assert!(rig.export.bytes()[8192..9216].iter().all(|&byte| byte == 0));
        assert_eq!(rig.export.fua_writes.get(), 1);
        let (_, replies) = rig.ask(client, request(0, 0, 6, 8192, 0), 1, |_| 0);
        assert_eq!(errors(&replies), [0], "an empty read succeeds");
        rig.assert_idle();
    }
}

#[test]
fn a_read_that_comes_back_in_other_memory_is_answered() {
    for structured in [false, true] {
        let rig = Rig::new(MemoryExport::delayed);
        for (at, byte) in rig.export.bytes().iter_mut().enumerate() {
            *byte = (at / 512 + at % 251) as u8;
        }
        let expected = rig.export.bytes()[..1 << 20].to_vec();
        let mut client = rig.open(structured);
        for len in [512, 4096, 65_536, 1 << 20] {
            for kept in [true, false, true] {
                rig.export.keeps_memory.set(kept);
                let asked = [request(0, 0, 7, 0, len), request(0, 0, 8, 512, 4096)].concat();
                let len_of = move |cookie| if cookie == 7 { len as usize } else { 4096 };
                let (same, replies) = rig.ask(client, asked, 2, len_of);
                client = same;
                assert_eq!(errors(&replies), [0, 0]);
                assert!(replies[0].data == expected[..len as usize], "{len} {kept}");
                assert!(replies[1].data == expected[512..4608], "behind {len} {kept}");
            }
        }
        drop(client);
        rig.assert_idle();
    }
}

#[test]
fn it_does_not_matter_in_what_pieces_requests_arrive() {
    let pattern = |n: u64, len: u32| -> Vec<u8> {
        (0..u64::from(len)).map(|at| (at * 7 + n * 13 + 1) as u8).collect()
    };
    // On both sides of what is received ahead, and of what is copied.
    let lens = [512, 4096, 1024, 16384, 16896, 36864, 512, 12288];
    let (mut bytes, mut expected) = (Vec::new(), vec![0; SIZE]);
    for (n, len) in (0..).zip(lens.repeat(3)) {
        let at = n * 36864;
        // A write between reads, so that payloads begin in what was received for a header; one in
        // three is refused, and what belongs to it skipped.
        let refused = n % 3 == 2;
        bytes.extend(request(0, 0, 3 * n, 0, 512));
        bytes.extend(request(1, if refused { 1 << 7 } else { 0 }, 3 * n + 1, at, len));
        bytes.extend(pattern(n, len));
        bytes.extend(request(3, 0, 3 * n + 2, 0, 0));
        if !refused {
            expected[at as usize..][..len as usize].copy_from_slice(&pattern(n, len));
        }
    }
    for window in [1, 7, 28, 29, 100, 1023, 1025, 5000, 20_000, 140_000, 1 << 20] {
        let rig = Rig::new(|export| export);
        let stream = rig.door.connect_with_window(window);
        let client = rig.world.run(Client::open(stream, false));
        let read_len = |cookie: u64| if cookie.is_multiple_of(3) { 512 } else { 0 };
        let (client, replies) = rig.ask(client, bytes.clone(), 3 * 24, read_len);
        for (cookie, reply) in (0..).zip(&replies) {
            let refused = cookie % 3 == 1 && cookie / 3 % 3 == 2;
            assert_eq!((reply.cookie, reply.error), (cookie, if refused { 22 } else { 0 }));
        }
        assert!(*rig.export.bytes() == expected, "window {window}");
        drop(client);
        rig.assert_idle();
    }
}

/// Sends requests and takes that many chunks.
fn chunks(rig: &Rig, is_extended: bool, bytes: Vec<u8>, count: usize) -> Vec<Chunk> {
    let stream = rig.door.connect();
    rig.world.run(async move {
        let mut client = Client::open_with_contexts(stream, is_extended).await;
        client.send(&bytes).await;
        let mut chunks = Vec::new();
        while chunks.len() < count {
            chunks.extend(client.chunk().await);
        }
        chunks
    })
}

#[test]
fn block_status_answers_each_context_in_both_forms() {
    let rig = Rig::new(|export| export);
    rig.export.bytes()[4096..8192].fill(1);
    rig.export.bytes()[8192..9216].fill(7);
    let asked = chunks(&rig, false, request(7, 0, 3, 0, 16384), 2);
    assert_eq!((asked[0].kind, asked[0].flags, asked[0].cookie), (5, 0, 3));
    assert_eq!(words(&asked[0].body), [1, 4096, 3, 5120, 0, 7168, 3]);
    assert_eq!((asked[1].kind, asked[1].flags, asked[1].cookie), (5, 1, 3));
    assert_eq!(words(&asked[1].body), [2, 4096, 4, 4096, 2, 1024, 8, 7168, 4]);
    let asked = chunks(&rig, true, extended(7, 0, 3, 4096, 8192), 2);
    assert_eq!((asked[0].kind, asked[1].flags), (6, 1));
    assert_eq!(words(&asked[0].body), [1, 2, 0, 5120, 0, 0, 0, 3072, 0, 3]);
    assert_eq!(words(&asked[1].body), [2, 3, 0, 4096, 0, 2, 0, 1024, 0, 8, 0, 3072, 0, 4]);
    let asked = chunks(&rig, false, request(7, 8, 3, 512, 16384), 2);
    assert_eq!(words(&asked[0].body), [1, 3584, 3], "one extent was asked for");
    assert_eq!(words(&asked[1].body), [2, 3584, 4]);
    rig.export.fault.set(Some(ExportError::Io));
    let asked = chunks(&rig, false, request(7, 8, 3, 512, 16384), 1);
    assert_eq!((asked[0].kind, words(&asked[0].body)), (0x8001, vec![5]));
    rig.assert_idle();
}

#[test]
fn a_long_answer_covers_less_and_the_client_asks_again() {
    let rig = Rig::new(|export| export);
    for sector in rig.export.bytes().chunks_mut(1024) {
        sector[..512].fill(1);
    }
    let extents_max = limits::EXTENTS_MAX;
    let asked = chunks(&rig, true, extended(7, 0, 3, 0, SIZE as u64), 2);
    for chunk in asked {
        assert_eq!(words(&chunk.body)[1] as usize, extents_max);
        assert_eq!(chunk.body.len(), 8 + 16 * extents_max);
    }
}

#[test]
fn extended_headers_serve_every_command() {
    let rig = Rig::new(MemoryExport::delayed);
    let end = SIZE as u64;
    let bytes = [
        extended(1, 32, 1, 0, 512),
        vec![7; 512],
        extended(1, 0, 2, 512, 512), // a client that forgets the flag still sends the data
        vec![8; 512],
        extended(0, 0, 3, 1024, 512),
        extended(3, 0, 4, 0, 0),
        extended(4, 0, 5, 4096, end - 4096),
        extended(5, 0, 6, 0, end),
        extended(6, 0, 7, 2048, 512),
        extended(6, 0, 8, 512, 1 << 40),
        extended(3, 32, 9, 0, 700), // a payload that nobody expects is skipped
        vec![9; 700],
        extended(0, 0, 10, 0, 1 << 33),
    ]
    .concat();
    let mut chunks = chunks(&rig, true, bytes, 10);
    chunks.sort_by_key(|chunk| chunk.cookie);
    let kinds: Vec<_> = chunks.iter().map(|chunk| chunk.kind).collect();
    assert_eq!(kinds, [0, 0, 1, 0, 0, 0, 0, 0x8001, 0x8001, 0x8001]);
    assert_eq!(chunks[2].body, [&1024_u64.to_be_bytes()[..], &[0; 512]].concat());
    let errnos: Vec<_> = chunks[7..].iter().map(|chunk| words(&chunk.body)[0]).collect();
    assert_eq!(errnos, [28, 22, 22]);
    assert_eq!(rig.export.bytes()[..1024], [[7; 512], [8; 512]].concat());
    assert_eq!(rig.export.prefetches.get(), 1);
    rig.assert_idle();
}

#[test]
fn a_batch_of_long_headers_is_sent_in_parts() {
    let rig = Rig::new(|export| export);
    let count = limits::REQUESTS_INFLIGHT_MAX;
    rig.export.fault.set(Some(ExportError::Io));
    let bytes = (0..count as u64).flat_map(|cookie| extended(0, 0, cookie, 0, 512)).collect();
    let mut cookies: Vec<_> =
        chunks(&rig, true, bytes, count).into_iter().map(|chunk| chunk.cookie).collect();
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(0..count as u64));
}

#[test]
fn a_payload_that_no_request_may_have_ends_the_connection() {
    let rig = Rig::new(|export| export);
    let stream = rig.door.connect();
    let rest = rig.world.run(async move {
        let mut client = Client::open_with_contexts(stream, true).await;
        client.send(&extended(1, 32, 1, 0, limits::SKIPPED_BYTES_MAX + 1)).await;
        client.stream.drain().await
    });
    assert!(rest.is_empty());
    assert_eq!(rig.faults(), [Fault::PayloadTooLong]);
}

#[test]
fn prefetch_is_answered_when_it_is_done() {
    let rig = Rig::new(|export| export);
    let client = rig.open(true);
    let (client, replies) = rig.ask(client, request(5, 0, 1, 0, SIZE as u32), 1, |_| 0);
    assert_eq!((errors(&replies), rig.export.prefetches.get()), (vec![0], 1));
    rig.export.fault.set(Some(ExportError::Io));
    let (_, replies) = rig.ask(client, request(5, 0, 1, 0, 512), 1, |_| 0);
    assert_eq!(errors(&replies), [5]);
}

#[test]
fn zeroes_that_must_be_fast_are_refused_where_they_are_slow() {
    for (zeroes_fast, number) in [(true, 0), (false, 95)] {
        let rig = Rig::new(|mut export| {
            export.zeroes_fast = zeroes_fast;
            export
        });
        rig.export.bytes().fill(1);
        let client = rig.open(true);
        let (client, replies) = rig.ask(client, request(6, 16, 1, 0, 512), 1, |_| 0);
        assert_eq!(errors(&replies), [number]);
        assert_eq!(rig.export.bytes()[0], u8::from(!zeroes_fast));
        let (_, replies) = rig.ask(client, request(6, 0, 1, 0, 512), 1, |_| 0);
        assert_eq!((errors(&replies), rig.export.bytes()[0]), (vec![0], 0));
    }
}

#[test]
fn each_connection_is_served_from_a_view_of_its_own() {
    let rig = Rig::new(|export| export);
    let clients: Vec<_> = (0..3).map(|_| rig.open(true)).collect();
    rig.world.settle();
    assert_eq!(rig.export.clients.get(), 3);
    drop(clients);
    rig.assert_idle();
}

#[test]
fn refused_requests_leave_the_stream_in_step() {
    for structured in [false, true] {
        let rig = Rig::new(|export| export);
        let client = rig.open(structured);
        let end = SIZE as u64;
        let bytes = [
            request(1, 0, 1, end, 1024),
            vec![1; 1024],
            request(1, 0, 2, 3, 100),
            vec![2; 100],
            request(1, 0x8000, 3, 0, 512),
            vec![3; 512],
            request(0, 0, 4, end, 512),
            request(99, 0, 5, 0, 512),
            request(6, 0, 6, end - 512, 1024),
            request(0, 0, 7, 0, 512),
        ]
        .concat();
        let lens = |cookie| if cookie == 7 || cookie == 4 { 512 } else { 0 };
        let (_, replies) = rig.ask(client, bytes, 7, lens);
        assert_eq!(errors(&replies), [28, 22, 22, 22, 22, 28, 0]);
        assert_eq!(replies[6].data, vec![0; 512], "nothing was written");
    }
}

#[test]
fn a_write_that_is_too_long_is_skipped() {
    let rig = Rig::new(|export| export);
    let mut client = rig.open(true);
    let len = limits::REQUEST_BYTES_MAX + 512;
    let replies = rig.world.run(async move {
        client.send(&request(1, 0, 1, 0, len)).await;
        client.send(&vec![9; len as usize]).await;
        client.send(&request(3, 0, 2, 0, 0)).await;
        [client.reply(|_| 0).await.unwrap(), client.reply(|_| 0).await.unwrap()]
    });
    assert_eq!(errors(&replies), [22, 0]);
}

#[test]
fn errors_of_the_export_reach_the_client() {
    for structured in [false, true] {
        let rig = Rig::new(|export| export);
        let mut client = rig.open(structured);
        for (fault, number) in [(ExportError::Io, 5), (ExportError::ShuttingDown, 108)] {
            rig.export.fault.set(Some(fault));
            let bytes = [
                request(0, 0, 0, 0, 512),
                request(1, 0, 1, 0, 512),
                vec![0; 512],
                request(3, 0, 2, 0, 0),
                request(4, 0, 3, 0, 512),
                request(6, 0, 4, 0, 512),
            ]
            .concat();
            let replies;
            let lens = |cookie| if cookie == 0 { 512 } else { 0 };
            (client, replies) = rig.ask(client, bytes, 5, lens);
            assert_eq!(errors(&replies), [number; 5]);
        }
    }
}

#[test]
fn many_requests_are_in_progress_and_end_out_of_order() {
    let rig = Rig::new(MemoryExport::delayed);
    for (index, sector) in rig.export.bytes().chunks_mut(512).enumerate() {
        sector.fill(index as u8);
    }
    let mut client = rig.open(true);
    let order = rig.world.run(async move {
        let bytes: Vec<u8> = (0..1000).flat_map(|n| request(0, 0, n, n * 512, 512)).collect();
        client.send(&bytes).await;
        let mut order = Vec::new();
        while order.len() < 1000 {
            let reply = client.reply(|_| 512).await.unwrap();
            assert_eq!(reply.data, vec![reply.cookie as u8; 512]);
            order.push(reply.cookie);
        }
        order
    });
    assert!(!order.is_sorted());
    let mut sorted = order;
    sorted.sort_unstable();
    assert!(sorted.into_iter().eq(0..1000));
    assert_eq!(rig.export.inflight_peak.get(), limits::REQUESTS_INFLIGHT_MAX);
    rig.assert_idle();
}

#[test]
fn a_client_that_takes_no_replies_is_not_read_from() {
    let rig = Rig::new(|export| export);
    let client = rig.open(true);
    let bytes: Vec<u8> = (0..10_000).flat_map(|n| request(0, 0, n, 0, 65536)).collect();
    let stream = Rc::new(client.stream);
    let sender = Rc::clone(&stream);
    rig.world.spawn(Box::pin(async move {
        let _ = sender.send_all(Buf::copy_of(&bytes).freeze()).await;
    }));
    rig.world.settle();
    let taken = rig.export.finished.load(Ordering::Relaxed);
    assert!(taken <= limits::REQUESTS_INFLIGHT_MAX + 1, "{taken} requests were read");
    stream.shutdown();
    rig.assert_idle();
}

#[test]
fn a_client_may_vanish_at_any_byte() {
    let bytes = [
        request(1, 0, 1, 0, 1024),
        vec![1; 1024],
        request(0, 0, 2, 0, 4096),
        request(3, 0, 3, 0, 0),
    ]
    .concat();
    let rig = Rig::new(MemoryExport::delayed);
    let bystander = rig.open(false);
    for len in 0..=bytes.len() {
        if (40..1000).contains(&len) && len % 97 != 0 {
            continue; // one place in a payload is like another
        }
        let mut client = rig.open(len % 2 == 0);
        let part = bytes[..len].to_vec();
        rig.world.run(async move { client.send(&part).await });
    }
    let (bystander, replies) = rig.ask(bystander, request(0, 0, 9, 4096, 512), 1, |_| 512);
    assert_eq!(errors(&replies), [0]);
    drop(bystander);
    rig.assert_idle();
}

#[test]
fn a_client_that_sends_its_last_request_and_closes_gets_its_replies() {
    for farewell in [vec![], request(2, 0, 0, 0, 0)] {
        let rig = Rig::new(MemoryExport::delayed);
        let mut client = rig.open(true);
        let replies = rig.world.run(async move {
            let bytes: Vec<u8> = (0..20).flat_map(|n| request(0, 0, n, n * 512, 512)).collect();
            client.send(&[bytes, farewell].concat()).await;
            client.stream.finish();
            client.stream.drain().await
        });
        assert_eq!(replies.len(), 20 * (28 + 512));
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn a_client_takes_its_leave_with_all_answers_and_a_word() {
    let (flush, disconnect) = (request(3, 0, 1, 0, 0), request(2, 0, 0, 0, 0));
    for (waits, says, leaves) in [(true, true, 1), (true, false, 0), (false, true, 0)] {
        let rig = Rig::new(MemoryExport::delayed);
        let mut client = rig.open(false);
        let (flush, disconnect) = (flush.clone(), disconnect.clone());
        rig.world.run(async move {
            client.send(&flush).await;
            if waits {
                client.reply(|_| 0).await.expect("an answer");
            }
            if says {
                client.send(&disconnect).await;
            }
            client.stream.finish();
            client.stream.drain().await
        });
        assert_eq!(rig.export.leaves.get(), leaves, "waits: {waits}, says: {says}");
    }
}

#[test]
fn a_wrong_magic_number_ends_the_connection() {
    let rig = Rig::new(|export| export);
    let mut client = rig.open(false);
    let rest = rig.world.run(async move {
        let mut bytes = request(0, 0, 1, 0, 512);
        bytes[0] ^= 1;
        client.send(&bytes).await;
        client.stream.drain().await
    });
    assert!(rest.is_empty());
    assert_eq!(rig.faults(), [Fault::OutOfStep]);
    assert_eq!(rig.complaints.borrow()[0].export.as_deref(), Some("disk"));
}

#[test]
fn stopping_finishes_what_was_read_and_closes() {
    let rig = Rig::new(MemoryExport::delayed);
    let mut client = rig.open(false);
    let server = Rc::clone(&rig.server);
    let export = Rc::clone(&rig.export);
    let replies = rig.world.run(async move {
        let bytes: Vec<u8> = (0..50).flat_map(|n| request(0, 0, n, 0, 512)).collect();
        client.send(&bytes).await;
        for n in 0..10 {
            assert_eq!(client.reply(|_| 512).await.unwrap().error, 0, "reply {n}");
        }
        assert!(export.inflight.get() > 0);
        server.stop();
        client.stream.drain().await
    });
    assert_eq!(replies.len(), 40 * (16 + 512));
    rig.world.settle();
    assert!(rig.served.get());
    assert_eq!((rig.world.tasks.live_count(), rig.export.inflight.get()), (0, 0));
    assert!(rig.complaints.borrow().is_empty());
    let _late = rig.door.connect();
    rig.world.settle();
    assert_eq!(rig.door.waiting_count(), 1, "nobody is accepted any more");
}

#[test]
fn stopping_answers_what_was_received_ahead() {
    const COUNT: u64 = 600;
    let rig = Rig::new(MemoryExport::delayed);
    let mut client = rig.open(false);
    let server = Rc::clone(&rig.server);
    let (sent, untaken, replies) = rig.world.run(async move {
        let bytes: Vec<u8> = (0..COUNT).flat_map(|n| request(0, 0, n, 0, 512)).collect();
        client.send(&bytes).await;
        assert_eq!(client.reply(|_| 512).await.unwrap().error, 0);
        server.stop();
        let rest = client.stream.drain().await;
        (bytes.len(), client.stream.untaken(), 1 + rest.len() / (16 + 512))
    });
    let request_bytes = sent / COUNT as usize;
    assert!(untaken > 0, "it stops before the end");
    assert_eq!(replies, (sent - untaken) / request_bytes, "of {sent} bytes {untaken} not taken");
    rig.world.settle();
    assert!(rig.served.get() && rig.complaints.borrow().is_empty());
}

#[test]
fn stopping_closes_idle_clients_at_once() {
    let rig = Rig::new(|export| export);
    let (idle, silent) = (rig.open(true), rig.door.connect());
    let mut halfway = rig.open(false);
    let halfway = rig.world.run(async move {
        halfway.send(&request(1, 0, 1, 0, 4096)).await;
        halfway.send(&[1; 1000]).await;
        halfway
    });
    while rig.server.connection_count() < 3 {
        assert!(rig.world.tasks.run_one(|_| 0));
    }
    rig.server.stop();
    for stream in [idle.stream, halfway.stream] {
        assert!(rig.world.run(async move { stream.drain().await }).is_empty());
    }
    let rest = rig.world.run(async move { silent.drain().await });
    assert!(rest.len() <= 18, "at most the greeting");
    rig.world.settle();
    assert!(rig.served.get());
    assert_eq!((rig.world.tasks.live_count(), rig.world.now()), (0, 0));
    assert_eq!(rig.export.bytes()[0], 0, "half a write is no write");
    assert!(rig.complaints.borrow().is_empty(), "the server wanted it so");
}

#[test]
fn memory_of_requests_in_progress_is_bounded() {
    const LEN: u32 = 8 << 20;
    let rig = Rig::new(|export| {
        *export.bytes() = vec![5; LEN as usize];
        export.delayed()
    });
    let mut client = rig.open(false);
    rig.world.run(async move {
        let bytes: Vec<u8> = (0..40).flat_map(|n| request(0, 0, n, 0, LEN)).collect();
        client.send(&bytes).await;
        for _ in 0..40 {
            let reply = client.reply(|_| LEN as usize).await.unwrap();
            assert!(reply.data.iter().all(|&byte| byte == 5));
        }
    });
    let bytes_peak = rig.export.inflight_peak.get() as u64 * u64::from(LEN);
    assert!(bytes_peak <= limits::BYTES_INFLIGHT_MAX, "{bytes_peak} bytes");
    rig.assert_idle();
}

#[test]
fn stopping_cuts_off_a_client_that_takes_no_replies() {
    let rig = Rig::new(|export| export);
    let mut client = rig.open(false);
    let client = rig.world.run(async move {
        let bytes: Vec<u8> = (0..50).flat_map(|n| request(0, 0, n, 0, 65536)).collect();
        client.send(&bytes).await;
        client
    });
    rig.world.settle();
    assert!(rig.export.finished.load(Ordering::Relaxed) > 0 && !rig.served.get());
    rig.server.stop();
    rig.world.settle();
    assert!(rig.served.get());
    assert!(rig.world.now() >= limits::DRAIN_TIME_MAX);
    assert_eq!(rig.world.tasks.live_count(), 0);
    assert_eq!(rig.complaints.borrow()[0].fault, Fault::RepliesNotTaken);
    drop(client);
}

#[test]
fn an_export_that_has_grown_is_larger_for_those_who_come_later() {
    let rig = Rig::new(|export| export);
    let old = rig.open(true);
    rig.export.bytes().resize(2 * SIZE, 7);
    let mut late = Client::bare(rig.door.connect(), true);
    let late = rig.world.run(async move {
        late.receive(18).await.unwrap();
        late.send(&3_u32.to_be_bytes()).await;
        for number in [8, 6] {
            late.send(&option(number, if number == 6 { &[0; 6] } else { &[] })).await;
            let mut told = Vec::new();
            loop {
                let head = words(&late.receive(20).await.unwrap());
                told.push(late.receive(head[4] as usize).await.unwrap());
                if head[3] == 1 {
                    break;
                }
            }
            if number == 6 {
                assert_eq!(told[0][2..10], (2 * SIZE as u64).to_be_bytes(), "asked first");
            }
        }
        late.send(&option(1, b"")).await;
        assert_eq!(late.receive(10).await.unwrap()[..8], (2 * SIZE as u64).to_be_bytes());
        late
    });
    let end = SIZE as u64;
    let asked = |len| request(0, 0, 1, end, len);
    let (late, replies) = rig.ask(late, asked(512), 1, |_| 512);
    assert_eq!(replies, [Reply { cookie: 1, error: 0, data: vec![7; 512] }]);
    // Who was there before has the disk that it was told of.
    let (old, replies) = rig.ask(old, asked(512), 1, |_| 512);
    assert_eq!(errors(&replies), [22]);
    let write = [request(1, 0, 2, end, 512), vec![9; 512]].concat();
    let (old, replies) = rig.ask(old, write, 1, |_| 0);
    assert_eq!(errors(&replies), [28]);
    let (old, replies) = rig.ask(old, request(0, 0, 3, end - 512, 512), 1, |_| 512);
    assert_eq!(errors(&replies), [0]);
    drop((old, late));
    rig.assert_idle();
}

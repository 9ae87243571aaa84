//! A request allocates nothing but its buffers.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{Buf, Data, Runtime};
use forebay_export::Transport;
use forebay_export::nbd::{Exports, Server, Settings};
use support::memory_export::MemoryExport;
use support::pipe::{Doorstep, Pipe};
use support::protocol::{Client, request};
use support::world::World;

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller keeps the rules of this very function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the rules of this very function.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sends `requests` again and again, each time when all replies of the last time are there;
/// returns how much was allocated meanwhile, without the first times.
async fn allocations(stream: Pipe, requests: Data, reply_bytes: usize) -> usize {
    let mut replies = Buf::new(reply_bytes);
    let mut start = 0;
    for round in 0..ROUNDS + 100 {
        if round == 100 {
            start = COUNT.get();
        }
        stream.send_all(requests.clone()).await.expect("the server receives");
        let result;
        (replies, result) = stream.recv_exact(replies).await;
        result.expect("the server replies");
    }
    COUNT.get() - start
}

const ROUNDS: usize = 100;

#[test]
fn a_request_allocates_nothing_but_its_buffers() {
    let world = World::new(3);
    let runtime: Rc<dyn Runtime> = Rc::clone(&world) as _;
    let export = Rc::new(MemoryExport::new(Rc::clone(&runtime), "disk", 1 << 20));
    let server = Server::new(runtime, Exports::of(export).unwrap(), Settings::default(), |it| {
        panic!("{it}")
    });
    let door = Doorstep::default();
    world.spawn(Box::pin(server.serve(door.clone())));

    let client = world.run(Client::open(door.connect(), true));
    let reads: Vec<u8> = (0..8).flat_map(|n| request(0, 0, n, n * 4096, 4096)).collect();
    let reads = Buf::copy_of(&reads).freeze();
    let count = world.run(allocations(client.stream, reads, 8 * (28 + 4096)));
    assert_eq!(count, 8 * ROUNDS, "a read has one buffer");

    let client = world.run(Client::open(door.connect(), false));
    let writes = [request(1, 0, 1, 0, 4096), vec![7; 4096]].concat();
    let writes = Buf::copy_of(&writes).freeze();
    let count = world.run(allocations(client.stream, writes, 16));
    assert_eq!(count, 2 * ROUNDS, "a write has a buffer for its payload and one for its reply");
}

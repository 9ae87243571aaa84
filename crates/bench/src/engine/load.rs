//! Clients in a closed loop: each starts its next request when the last one has ended.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::runtime::MILLISECOND;
use forebay_device::{Buf, Runtime, io};
use forebay_engine::Volume;

use super::devices::mark;
use crate::bench::Result;

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    ReadRandom,
    WriteRandom,
    /// A write, then a flush; both count as one.
    WriteFlush,
    ReadSequential,
    WriteSequential,
}

/// A load on the first `span_bytes` of a volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub kind: Kind,
    pub block_bytes: u64,
    pub clients: usize,
    pub span_bytes: u64,
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ x >> 31) % end
    }
}

struct Shared {
    load: Load,
    stop: Cell<bool>,
    /// Requests left to start; counted only in loads of a fixed length.
    left: Cell<u64>,
    done: Cell<u64>,
    next: Cell<u64>,
    error: RefCell<Option<String>>,
}

/// What a load did.
pub(super) struct Done {
    pub requests: u64,
    pub seconds: f64,
}

impl Done {
    pub(super) fn rate(&self) -> f64 {
        self.requests as f64 / self.seconds
    }
}

impl Shared {
    fn take(&self) -> bool {
        if self.stop.get() || self.error.borrow().is_some() || self.left.get() == 0 {
            return false;
        }
        self.left.set(self.left.get() - 1);
        true
    }

    fn sequential(&self) -> u64 {
        let at = self.next.get();
        let next = at + self.load.block_bytes;
        self.next.set(if next >= self.load.span_bytes { 0 } else { next });
        at
    }
}

async fn client(volume: Rc<Volume>, shared: Rc<Shared>, seed: u64) {
    let load = shared.load;
    let mut random = Random(seed);
    let blocks = load.span_bytes / load.block_bytes;
    let mut buf = Some(Buf::zeroed(load.block_bytes as usize));
    while shared.take() {
        let offset = match load.kind {
            Kind::ReadSequential | Kind::WriteSequential => shared.sequential(),
            _ => random.below(blocks) * load.block_bytes,
        };
        let mut memory = buf.take().unwrap_or_else(|| Buf::new(load.block_bytes as usize));
        let outcome = match load.kind {
            Kind::ReadRandom | Kind::ReadSequential => {
                let (memory, outcome) = volume.read(offset, memory).await;
                buf = Some(memory);
                outcome
            }
            kind => {
                mark(offset, &mut memory);
                let outcome = volume.write(offset, memory.freeze(), false).await;
                match (outcome, kind) {
                    (Ok(()), Kind::WriteFlush) => volume.flush().await,
                    (outcome, _) => outcome,
                }
            }
        };
        match outcome {
            Ok(()) => shared.done.set(shared.done.get() + 1),
            Err(error) => *shared.error.borrow_mut() = Some(error.to_string()),
        }
    }
}

/// Runs a load for `span_ms`, or for `requests` requests if they end sooner.
pub(super) async fn run(
    runtime: &Rc<dyn Runtime>,
    volume: &Rc<Volume>,
    load: Load,
    span_ms: u64,
    requests: u64,
) -> Result<Done> {
    let shared = Rc::new(Shared {
        load,
        stop: Cell::new(false),
        left: Cell::new(requests),
        done: Cell::new(0),
        next: Cell::new(0),
        error: RefCell::default(),
    });
    let started = runtime.now();
    let mut ends = Vec::new();
    for _ in 0..load.clients {
        let (completer, end) = io::pair();
        let work = client(Rc::clone(volume), Rc::clone(&shared), runtime.random());
        runtime.spawn(Box::pin(async move {
            work.await;
            completer.done(Ok(()));
        }));
        ends.push(end);
    }
    let counted = if span_ms == u64::MAX {
        None
    } else {
        let _ = runtime.sleep(span_ms * MILLISECOND).await;
        Some((shared.done.get(), runtime.now() - started))
    };
    shared.stop.set(span_ms != u64::MAX);
    for end in ends {
        let _ = end.await;
    }
    if let Some(error) = shared.error.borrow_mut().take() {
        return Err(error);
    }
    let (requests, nanos) = counted.unwrap_or((shared.done.get(), runtime.now() - started));
    Ok(Done { requests, seconds: nanos as f64 / 1e9 })
}

/// Writes the first `span_bytes` once, from front to back.
pub(super) async fn fill(
    runtime: &Rc<dyn Runtime>,
    volume: &Rc<Volume>,
    span_bytes: u64,
) -> Result<Done> {
    let load = Load { kind: Kind::WriteSequential, block_bytes: 1 << 20, clients: 4, span_bytes };
    run(runtime, volume, load, u64::MAX, span_bytes >> 20).await
}

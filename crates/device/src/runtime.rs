//! Clock, timers, spawning and randomness, handed to the engine.

use std::future::Future;
use std::pin::Pin;

use crate::io::{Completer, Io, pair};

/// A point in time or a span, in nanoseconds. Points count from an arbitrary start and never go
/// back.
pub type Nanos = u64;

/// One microsecond.
pub const MICROSECOND: Nanos = 1_000;
/// One millisecond.
pub const MILLISECOND: Nanos = 1_000_000;
/// One second.
pub const SECOND: Nanos = 1_000_000_000;

/// A future of one reactor, in a box.
///
/// An `async fn` is compiled anew in each crate that awaits it, with all that it awaits in turn. One that
/// returns this is compiled where it stands; it is for what does not happen per request, for it allocates.
pub type LocalBoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A task for the executor.
pub type Task = LocalBoxFuture<'static, ()>;

/// The world around the engine, apart from its devices. One per reactor; not shared by threads.
pub trait Runtime {
    /// The current time.
    fn now(&self) -> Nanos;

    /// Completes `completer` at `deadline` or soon after.
    fn wake_at(&self, deadline: Nanos, completer: Completer);

    /// Runs `task` concurrently, on this reactor.
    fn spawn(&self, task: Task);

    /// The next random number; reproducible in the simulator.
    fn random(&self) -> u64;

    /// Wall-clock time in seconds since 1970, for display and for records' dates only.
    fn unix_seconds(&self) -> u64;
}

impl dyn Runtime + '_ {
    /// Waits for `span`.
    pub fn sleep(&self, span: Nanos) -> Io {
        let (completer, io) = pair();
        self.wake_at(self.now().saturating_add(span), completer);
        io
    }
}

//! The real world: io_uring, files, block devices, sockets.
//!
//! * [`reactor`]: one thread's tasks, timers and ring.
//! * [`net`], [`signal`]: sockets and signals over the ring.
//! * [`errno`]: what the system's error numbers mean.

mod bell;
pub mod errno;
pub mod net;
mod op;
pub mod reactor;
mod ring;
pub mod signal;
mod timer;

pub use bell::Stopper;

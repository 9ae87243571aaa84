//! The real world: io_uring, files, block devices, sockets.
//!
//! * [`reactor`]: one thread's tasks, timers and ring; [`thread`]: more of them.
//! * [`file`](mod@file), [`open`]: files and block devices, for ourselves alone; [`place`]: where they are.
//! * [`probe`], [`prepare`]: what is on a device already, and files made into devices; [`extents`]: whether they are.
//! * [`net`], [`signal`]: sockets and signals over the ring.
//! * [`passed`]: descriptors that were passed to this process.
//! * [`memory`]: what the kernel does with ours.
//! * [`errno`]: what the system's error numbers mean.

mod bell;
mod discard;
pub mod errno;
pub mod extents;
pub mod file;
pub mod hardware;
mod holders;
mod loops;
pub mod memory;
pub mod net;
mod op;
pub mod open;
pub mod passed;
pub mod place;
pub mod prepare;
pub mod probe;
pub mod reactor;
mod ring;
pub mod signal;
pub mod thread;
mod timer;

pub use bell::Stopper;
pub use holders::lock_holder;

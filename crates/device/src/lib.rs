//! The edge of Forebay: what the engine sees of the world, and the worlds it can run in.
//!
//! * [`device`], [`runtime`]: the traits that the engine is written against.
//! * [`buf`], [`io`]: aligned, pooled buffers, owned by a device until it completes the request.
//! * [`gate`]: until when devices may be used.
//! * [`chunk`]: large memory that stays.
//! * [`heap`]: where everything else is allocated.
//! * [`executor`]: the single-threaded task set under both worlds.
//! * [`relay`], [`post`]: calls and messages from one reactor to another.
//! * [`watched`]: whether a device answers, and giving up what it does not answer.
//! * [`real`]: io_uring, files and block devices.
//! * [`model`]: modelled disks, fault layers and virtual time.
//!
//! All `unsafe` code of the project lives in this crate.

pub mod buf;
pub mod chunk;
pub mod device;
pub mod executor;
pub mod gate;
pub mod heap;
pub mod io;
pub mod model;
pub mod post;
pub mod real;
pub mod relay;
pub mod runtime;
pub mod watched;

pub use buf::{Buf, Data};
pub use chunk::{CHUNK_BYTES, Chunk};
pub use device::{BlockDevice, Geometry, Request, Stripe};
pub use gate::Gate;
pub use io::{Completer, Io, IoError, IoErrorKind};
pub use runtime::{LocalBoxFuture, Nanos, Runtime};
pub use watched::Watched;

//! The control plane: what can be asked of a daemon, and the way there and back.
//!
//! * [`api`]: the bodies, one definition for both sides; [`name`]: what may be a name; [`hours`]: what
//!   may be a part of the day; [`nearest`]: which name was meant.
//! * [`error`]: the one table from an error's code to its HTTP status.
//! * [`call`]: a request as it reaches the daemon's reactor, with a place for its answer.
//! * [`server`]: HTTP and JSON on a thread of its own; [`socket`]: the socket it listens on.
//! * [`client`]: the other end, for the command line.
//!
//! Nothing here knows what a pool is; the data path never runs through this crate.
#![forbid(unsafe_code)]

mod activity;
mod advisor;
pub mod api;
pub mod call;
pub mod client;
mod devices;
pub mod error;
pub mod hours;
pub mod name;
pub mod nearest;
pub mod population;
pub mod profile;
mod scrub;
pub mod server;
pub mod socket;
mod space;
mod states;
mod wear;

//! A server for the network block device protocol, fixed newstyle, and a [`client`] for origins.
//!
//! The protocol is specified in `doc/proto.md` of the NetworkBlockDevice/nbd project.
//!
//! * [`Tls`]: certificates, and who has to use them; `channel` is a stream with or without.
//! * `wire`: numbers and layouts of the protocol.
//! * `negotiation`: options, as a state machine without I/O; `handshake` drives it.
//! * [`Complaint`]: what is said of clients that do not keep to the protocol.
//! * `contexts`: what block status tells.
//! * `command`: which requests are valid, without I/O; `connection` carries them out.
//! * [`Server`]: listeners, connections, stopping.

mod channel;
pub mod client;
mod command;
mod complaint;
mod connection;
mod contexts;
mod exports;
mod handshake;
pub mod limits;
mod link;
mod negotiation;
mod permits;
mod queue;
mod server;
mod signal;
mod tls;
mod wire;

pub use complaint::{Complaint, Fault};
pub use exports::{Exports, ExportsError, Places};
pub use permits::Share;
pub use server::{Server, Settings};
pub use tls::{CertificateFault, Tls, TlsError, TlsFiles, TlsMode};
pub use wire::Errno;

//! How clients reach a volume.
//!
//! * [`Export`]: what a server needs from whatever it serves.
//! * [`nbd`]: the network block device protocol over any [`Transport`].

#![forbid(unsafe_code)]

mod export;
pub mod nbd;
mod transport;

pub use export::{Export, ExportError, Extent, Tier, Zeroing};
pub use transport::{Listen, Transport, is_of_one_client};

//! The on-disk format. `docs/internals/format.md` is its specification; a test holds the two
//! against each other. Encoding is explicit, little-endian, at named offsets.

mod extent;

pub use extent::{Extent, State};

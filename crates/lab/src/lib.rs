//! The lab: recorded block traces run against the policy that ships, beside well-known ones.
//!
//! Nothing here is on a client's path.
#![forbid(unsafe_code)]

mod error;
pub mod trace;

pub use error::{Error, Result};

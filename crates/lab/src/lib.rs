//! The lab: recorded block traces run against the policy that ships, beside well-known ones; published
//! measurements replayed by the engine that ships, on modelled devices; and what whoever measures needs: other
//! programs, the machine's name, a page.
//!
//! Nothing here is on a client's path.
#![forbid(unsafe_code)]

pub mod baseline;
mod error;
pub mod machine;
pub mod page;
pub mod papers;
pub mod process;
pub mod reference;
pub mod run;
pub mod scale;
pub mod scene;
pub mod trace;
pub mod workload;

pub use error::{Error, Result};

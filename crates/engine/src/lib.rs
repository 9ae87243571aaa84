//! The cache engine: a log on SSDs in front of slow origins.
//!
//! It knows no operating system: devices, time, spawning and randomness are handed in
//! ([`forebay_device`]), so the code that runs in production is the code that is simulated.
#![forbid(unsafe_code)]

pub mod format;
pub mod ids;
pub mod index;
pub mod limits;
pub mod policy;

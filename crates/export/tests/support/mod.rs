//! What the tests of this crate share.
#![allow(dead_code)] // each test uses a part
#![allow(clippy::unwrap_used)] // a failed test is what an unwrap here means

pub mod hostile;
pub mod memory_export;
pub mod pipe;
pub mod protocol;
pub mod real_server;
pub mod rig;
pub mod tls;
pub mod world;

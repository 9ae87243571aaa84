//! The on-disk format, from outside: round trips, damage, hostile bytes, golden images, and the
//! specification's tables.
#![allow(clippy::unwrap_used, reason = "a test may panic, and so may its helpers")]

mod damage;
mod document;
mod golden;
mod rules;
mod samples;
mod strategies;

//! The NBD server and client, by their public interface.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clients;
mod connection;
mod fuzz;
mod limits;
mod remote;
#[path = "../support/mod.rs"]
mod support;
mod tls;
mod tls_clients;

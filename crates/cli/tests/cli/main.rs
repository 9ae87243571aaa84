//! The black-box tests: the real binary with real clients. One program, for each program of its own would be linked by
//! itself. `cargo test -p forebay-cli --test cli restart::` runs those of one file.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test may fail and wait")]

mod acceptance;
mod advisor;
mod api;
mod bench;
mod bypass;
mod common;
mod confirm;
mod crash;
mod daemon;
mod demo;
mod destroy;
mod devices;
mod docs;
mod doctor;
mod dry_run;
mod endings;
mod errors;
mod events;
mod exports;
mod faults;
mod filesystems;
mod glance;
mod growth;
mod handover;
mod health;
mod hosts;
mod hung;
mod jobs;
mod json;
mod nbd;
mod oracle;
mod papers;
mod places;
mod pull;
mod reference;
mod remote;
mod replace;
mod requests;
mod restart;
mod scale;
mod scrub;
mod service;
mod snapshots;
mod spare;
mod stats;
mod stop;
mod traces;
mod unreadable;
mod verdicts;
mod wear;

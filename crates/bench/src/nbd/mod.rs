//! `forebay-bench nbd`: the daemon's NBD server beside others, all on Unix sockets, with fio as the
//! client of each.
//!
//! * Ours is the real program with one reactor. Its cache is a file on the disk below the directory,
//!   written in full and then lapped once; its origin is a file in memory, so that what is destaged
//!   does not take the disk's time.
//! * `qemu-nbd` and nbdkit's file plugin serve bare, written files of the same disk, qemu-nbd
//!   without the page cache, nbdkit through it: it has no other way.
//! * nbdkit's null and memory plugins show what protocol, sockets and client take by themselves.
//! * A round measures all sides, one after the other, in alternating order. Whoever is not measured
//!   has nothing to do: ours has destaged, and what nbdkit left in the page cache has been synced.

pub(crate) mod peers;
mod proc;
mod rows;
mod server;
mod sides;
mod small;
pub(crate) mod table;

use std::path::PathBuf;

use clap::Args;

use crate::bench::{self, Bench, Place, Plan, Result};

/// What to measure, and of what.
#[derive(Args, Clone, Debug)]
pub struct NbdOptions {
    #[command(flatten)]
    bench: bench::Options,
    /// The program to measure; `forebay` beside this one if none is named.
    #[arg(long, value_name = "FILE")]
    server: Option<PathBuf>,
    /// Where the origins are made, in memory, in a directory of this run; it is removed at the end.
    #[arg(long, default_value = "/dev/shm/forebay-bench")]
    origin_dir: PathBuf,
}

impl NbdOptions {
    /// The same with directories of this run alone. That of the origins is removed with the second value.
    fn of_this_run(&self, bench: &Bench) -> Result<(Self, Place)> {
        let place = Place::new(&self.origin_dir)?;
        let origin_dir = place.path().to_owned();
        Ok((Self { bench: bench.options.clone(), origin_dir, ..self.clone() }, place))
    }
}

/// The rows and the servers.
pub(crate) const PLAN: Plan = Plan {
    rows: &["read", "ram", "write", "flush1", "flush16", "seqread", "seqwrite", "four"],
    sides: &["ours", "qemu-nbd", "nbdkit file", "nbdkit null", "nbdkit memory"],
    tools: &["fio", "qemu-nbd", "nbdkit"],
};

/// Runs all rows; false if any was missed.
///
/// # Errors
/// If the bench itself cannot work: no ring, no directory.
pub fn run(options: &NbdOptions) -> Result<bool> {
    Bench::run(&options.bench, &PLAN, |bench| {
        let (options, _place) = options.of_this_run(bench)?;
        rows::run(bench, &options)
    })
}

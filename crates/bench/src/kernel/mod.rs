//! `forebay-bench kernel`: the kernel's caches beside ours, all of them in User-Mode Linux.
//!
//! * The guest is this program as its first process ([`guest`]), on the host's own files, which it cannot
//!   write: there is no image to build, and what it runs is what the host has.
//! * The SSD is a file that was written in full, cut into slices of one size; what serves it to the guest
//!   goes past the page cache. Each cache has a slice, the bare SSD is one more.
//! * The slow disks are alike and in the guest's memory, four accesses at a time. A FLUSH costs them nothing,
//!   which is as good as it can be for caches that pass each one on.
//! * Ours is the program that ships, in the same guest: its clients are the kernel's nbd and come through a socket.
//! * Rounds alternate between the sides; whoever is not measured is stopped. Figures count as their ratio to the
//!   bare slice in the same round.
//! * A system call costs the guest much more than a machine, and ours makes many, where the others make none. The price
//!   of one stands beside the rows.

mod cases;
mod engines;
mod guest;
mod protocol;
mod report;
mod uml;

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::bench::{self, Bench, Plan, Result, Sizes};
pub(crate) use guest::{GuestOptions, run as guest};

/// Debian's package of the kernel.
const KERNEL: &str = "/usr/bin/linux.uml";

/// What of the sizes of the other benchmarks the cache has: the disks behind it are in memory.
const SHARE: u64 = 8;

/// The least that ours works with.
const CACHE_BYTES_MIN: u64 = 512 << 20;

/// What to measure, and in which kernel.
#[derive(Args, Clone, Debug)]
pub struct KernelOptions {
    #[command(flatten)]
    bench: bench::Options,
    /// The program to measure; `forebay` beside this one if none is named.
    #[arg(long, value_name = "FILE")]
    server: Option<PathBuf>,
    /// The kernel, built for User-Mode Linux: `$FOREBAY_UML_KERNEL`, or Debian's, if none is named.
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
}

/// The rows and the sides.
pub(crate) const PLAN: Plan = Plan {
    rows: &cases::NAMES,
    sides: &engines::NAMES,
    tools: &["fio", "qemu-storage-daemon", "nbd-client"],
};

/// What of a cache's size everything has that is to be hit.
pub(crate) fn hot_bytes(cache_bytes: u64) -> u64 {
    cache_bytes / 2
}

/// Runs all rows; false if any was missed.
///
/// # Errors
/// If the bench itself cannot work: no kernel, no directory, a guest that does not start.
pub fn run(options: &KernelOptions) -> Result<bool> {
    Bench::run(&options.bench, &PLAN, |bench| {
        let Sizes { cache, .. } = bench.sizes();
        let cache_bytes = (cache / SHARE).max(CACHE_BYTES_MIN);
        let named = options.kernel.clone();
        let kernel = named.or_else(|| std::env::var_os("FOREBAY_UML_KERNEL").map(PathBuf::from));
        let kernel = kernel.unwrap_or_else(|| KERNEL.into());
        let beside = || Some(std::env::current_exe().ok()?.with_file_name("forebay"));
        let server = options.server.clone().or_else(beside).unwrap_or_default();
        let asked = GuestOptions::new(&server, bench, cache_bytes)?;
        let said = uml::boot(bench, &kernel, &asked)?;
        bench.keep(&json!({ "guest": said.facts, "cache_bytes": cache_bytes }))?;
        said.facts.iter().for_each(|fact| println!("{fact}"));
        report::rows(&said, bench.options.quick, &|name| bench.wants(&[name]))
            .into_iter()
            .try_for_each(|row| bench.finish(row))?;
        println!("{}", report::NOT_MEASURED);
        Ok(())
    })
}

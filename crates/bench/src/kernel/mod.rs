//! `forebay-bench kernel`: the kernel's caches beside ours, in User-Mode Linux or on the machine itself.
//!
//! * The guest is this program as its first process ([`guest`]), on the host's own files, which it cannot
//!   write: there is no image to build, and what it runs is what the host has. On the machine ([`native`]) all of it is
//!   taken down again. Both set up ([`rig`]) and measure ([`measure`]) the same.
//! * The SSD is a file that was written in full, cut into slices of one size; what serves it
//!   goes past the page cache. Each cache has a slice, the bare SSD is one more. A machine may give a device away instead.
//! * The slow disks are alike and in memory, four accesses at a time. A FLUSH costs them nothing,
//!   which is as good as it can be for caches that pass each one on.
//! * Ours is the program that ships, under the same kernel: its clients are the kernel's nbd and come through a socket.
//! * Rounds alternate between the sides; whoever is not measured is stopped. Figures count as their ratio to the
//!   bare slice in the same round.
//! * A system call costs the guest much more than a machine, and ours makes many, where the others make none. The price
//!   of one stands beside the rows.

mod cases;
mod engines;
mod ground;
mod guest;
mod keeper;
mod measure;
mod native;
mod protocol;
mod report;
mod rig;
mod said;
mod system;
mod uml;

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::bench::{self, Bench, Plan, Result, Sizes};
pub(crate) use guest::run as guest;
pub(crate) use rig::Asked;

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
    /// On this machine's own kernel instead: takes root, its modules and memory for the slow disks. Only devices that it makes are
    /// touched, and all is taken down at the end, or if it is interrupted.
    #[arg(long, conflicts_with = "kernel")]
    native: bool,
    /// A block device to give away for the SSD, instead of a file. It is refused if it is in use or holds anything, and overwritten.
    #[arg(long, value_name = "DEVICE", requires = "native")]
    ssd: Option<PathBuf>,
}

impl KernelOptions {
    /// The program to measure.
    fn server(&self) -> PathBuf {
        let beside = || Some(std::env::current_exe().ok()?.with_file_name("forebay"));
        self.server.clone().or_else(beside).unwrap_or_default()
    }

    /// The kernel of the guest.
    fn kernel(&self) -> PathBuf {
        let named = self.kernel.clone();
        let kernel = named.or_else(|| std::env::var_os("FOREBAY_UML_KERNEL").map(PathBuf::from));
        kernel.unwrap_or_else(|| KERNEL.into())
    }
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
/// If the bench itself cannot work: no kernel, no directory, a guest that does not start, a machine that cannot do it.
pub fn run(options: &KernelOptions) -> Result<bool> {
    Bench::run(&options.bench, &PLAN, |bench| {
        let Sizes { cache, .. } = bench.sizes();
        let cache_bytes = (cache / SHARE).max(CACHE_BYTES_MIN);
        let asked = Asked::new(&options.server(), bench, cache_bytes)?;
        let said = if options.native {
            native::run(bench, &asked, options.ssd.as_deref())?
        } else {
            uml::boot(bench, &options.kernel(), &asked)?
        };
        bench.keep(&json!({ "facts": said.facts, "cache_bytes": cache_bytes }))?;
        said.facts.iter().for_each(|fact| println!("{fact}"));
        report::rows(&said, bench.options.quick, &|name| bench.wants(&[name]))
            .into_iter()
            .try_for_each(|row| bench.finish(row))?;
        println!("{}", report::NOT_MEASURED);
        Ok(())
    })
}

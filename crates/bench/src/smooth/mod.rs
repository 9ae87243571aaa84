//! `forebay-bench smooth`: what becomes of a load while the cache is full, busy with its origin, or
//! shared.
//!
//! * Nearly all rows run in virtual time on modelled devices (`scene.rs`): the same on every
//!   machine and at any load of it, so each is one run.
//! * The disks beside which a row stands are the same model, given the same writes without a cache.
//! * What every block must hold is checked by every read, and on the origin at the end.

mod beside;
mod burst;
mod destage;
pub(crate) mod faults;
mod files;
mod load;
mod measure;
mod overwrite;
mod scene;
mod zipf;

use clap::Args;

use crate::bench::{self, Bench, Plan, Result};

/// What to measure, and on what.
#[derive(Args, Clone, Debug)]
pub struct SmoothOptions {
    #[command(flatten)]
    bench: bench::Options,
    /// The disks' own write caches are on, which is not what the bars are meant for.
    #[arg(long)]
    disk_caches: bool,
}

/// The rows.
pub(crate) const PLAN: Plan = Plan {
    rows: &[
        "destage16",
        "destage100",
        "foreground",
        "overwrite",
        "files",
        "bound",
        "burst",
        "zipf",
        "sequential",
        "uploads",
        "fair",
    ],
    sides: &["ours", "compared with"],
    tools: &[],
};

/// Runs all rows; false if any was missed.
///
/// # Errors
/// If the bench itself cannot work: no directory.
pub fn run(options: &SmoothOptions) -> Result<bool> {
    let disks = scene::disks(options.disk_caches);
    let met = Bench::run(&options.bench, &PLAN, |bench| {
        destage::run(bench, &disks)?;
        beside::run(bench, &disks)?;
        overwrite::run(bench, &disks)?;
        burst::run(bench, &disks)?;
        zipf::run(bench, &disks)
    });
    if options.disk_caches {
        println!("--disk-caches: other disks than the bars are meant for");
    }
    met
}

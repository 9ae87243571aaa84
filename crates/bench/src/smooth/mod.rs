//! `forebay-bench smooth`: what becomes of a load while the cache is full, busy with its origin, or
//! shared.
//!
//! * Nearly all rows run in virtual time on modelled devices (`lab/src/scene`): the same on every
//!   machine and at any load of it, so each is one run.
//! * The disks beside which a row stands are the same model, given the same writes without a cache.
//! * What every block must hold is checked by every read, and on the origin at the end.

mod beside;
mod burst;
mod destage;
pub(crate) mod faults;
mod files;
mod fits;
mod measure;
mod overwrite;
pub(crate) mod zipf;

use clap::Args;
use forebay_device::model::array::{ArrayParameters, Level};
use forebay_device::model::hdd::HddParameters;

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
        "filled",
        "zipf",
        "sequential",
        "uploads",
        "fair",
        "fits",
        "fits-through",
    ],
    sides: &["ours", "compared with"],
    tools: &[],
};

/// Commands that the members of [`disks`] see at a time, all together: its full queue.
const FULL_DEPTH: usize = 12 * 32;

/// The array of all rows, that of the bars: 12 disks ST6000NE0023 in RAID 5 with chunks of 64 KiB. The disks'
/// own write caches are off, as behind a controller that answers for what was acknowledged; with
/// `--disk-caches` they are on, as Linux md leaves them.
fn disks(write_caches: bool) -> ArrayParameters {
    let member = HddParameters::st6000ne0023();
    let member = if write_caches { member } else { member.without_write_cache() };
    ArrayParameters { level: Level::Raid5, disks: 12, chunk_bytes: 64 << 10, member }
}

/// Runs all rows; false if any was missed.
///
/// # Errors
/// If the bench itself cannot work: no directory.
pub fn run(options: &SmoothOptions) -> Result<bool> {
    let disks = disks(options.disk_caches);
    let met = Bench::run(&options.bench, &PLAN, |bench| {
        destage::run(bench, &disks)?;
        beside::run(bench, &disks)?;
        overwrite::run(bench, &disks)?;
        burst::run(bench, &disks)?;
        fits::run(bench, &disks)?;
        zipf::run(bench, &disks)
    });
    if options.disk_caches {
        println!("--disk-caches: other disks than the bars are meant for");
    }
    met
}

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
mod files;
mod load;
mod measure;
mod overwrite;
mod scene;

use crate::bench::{Bench, Options, Plan, Result};

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
        "sequential",
        "fair",
    ],
    sides: &["ours", "compared with"],
    tools: &[],
};

/// Runs all rows; false if any was missed.
///
/// # Errors
/// If the bench itself cannot work: no directory.
pub fn run(options: &Options) -> Result<bool> {
    Bench::run(options, &PLAN, |bench| {
        destage::run(bench)?;
        beside::run(bench)?;
        overwrite::run(bench)?;
        burst::run(bench)
    })
}

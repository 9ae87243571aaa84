//! `forebay-bench engine`: the engine in this process, beside fio on a bare file of the same disk.
//!
//! * Cache devices are files written in full, with O_DIRECT; what is measured comes after a full
//!   lap of the log, so segments are rewritten ones.
//! * A round is ours and fio back to back, in alternating order; the median of the rounds' ratios
//!   counts, not a ratio of medians.
//! * While fio runs, the engine stands still: its reactor is driven only in its own turns.

mod bare;
mod costs;
mod cpu;
mod devices;
mod load;
mod memory;
mod remote;
mod restart;
mod rig;
mod rows;
mod serial;

pub use bare::{AppendOptions, append_loop};
pub(crate) use costs::PLAN as COSTS_PLAN;
pub use costs::costs;
pub use cpu::{HitsOptions, hits};
pub use restart::{RestartOptions, step as restart_step};
pub(crate) use rig::{reactor, text, volume_spec, write_file};
pub use serial::{SerialOptions, serial_flush};

use crate::bench::{Bench, Options, Plan, Result};

/// The rows, and fio beside them.
pub(crate) const PLAN: Plan = Plan {
    rows: &[
        "index",
        "cpu",
        "remote",
        "instructions",
        "read",
        "seqread",
        "write",
        "flush1",
        "flush16",
        "seqwrite",
        "moved",
        "amplification",
        "restart",
    ],
    sides: &["ours", "fio"],
    tools: &["fio"],
};

/// Runs all rows; false if any was missed.
///
/// # Errors
/// If the bench itself cannot work: no ring, no directory.
pub fn run(options: &Options) -> Result<bool> {
    Bench::run(options, &PLAN, |bench| {
        if bench.wants(&["index"]) {
            memory::run(bench)?;
        }
        if bench.wants(&["cpu"]) {
            cpu::run_time(bench)?;
        }
        if bench.wants(&["remote"]) {
            remote::run(bench)?;
        }
        if bench.wants(&["instructions"]) {
            cpu::run_instructions(bench)?;
        }
        rows::run(bench)?;
        if bench.wants(&["restart"]) {
            restart::run(bench)?;
        }
        Ok(())
    })
}

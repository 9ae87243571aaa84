//! Benchmarks, each beside the tool or device that it is compared with.
#![forbid(unsafe_code)]

mod arrays;
mod bench;
mod callgrind;
mod engine;
mod fio;
mod instructions;
mod kernel;
mod nbd;
mod policy;
mod profile;
mod smooth;
mod verdict;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use forebay_device::heap::Jemalloc;

#[global_allocator]
static HEAP: Jemalloc = Jemalloc;

/// Benchmarks of Forebay.
#[derive(Parser)]
#[command(name = "forebay-bench")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The engine alone, in this process, against fio on the bare file.
    #[command(after_help = engine::PLAN.help())]
    Engine(bench::Options),
    /// Processor time of requests, beside what the lab charges for them.
    #[command(after_help = engine::COSTS_PLAN.help())]
    Costs(bench::Options),
    /// Serving over NBD, beside qemu-nbd and nbdkit on bare files.
    #[command(after_help = nbd::PLAN.help())]
    Nbd(nbd::NbdOptions),
    /// Caches in front of a slow NBD export, beside nbdkit's.
    #[command(after_help = nbd::peers::PLAN.help())]
    Peers(nbd::NbdOptions),
    /// The kernel's caches beside ours, in User-Mode Linux or on this machine's own kernel.
    #[command(after_help = kernel::PLAN.help())]
    Kernel(kernel::KernelOptions),
    /// What runs in the guest of that.
    #[command(hide = true)]
    KernelGuest(kernel::Asked),
    /// Modelled arrays of hard disks beside published measurements, in virtual time.
    Arrays,
    /// Full, busy, shared: in virtual time on modelled disks, and on real files.
    #[command(after_help = smooth::PLAN.help())]
    Smooth(smooth::SmoothOptions),
    /// SSDs that hang, die, are copied anew, taken out, scrubbed: in virtual time on modelled devices.
    #[command(after_help = smooth::faults::PLAN.help())]
    Faults(bench::Options),
    /// The daemon's policy on recorded traces, beside well-known ones.
    Policy(policy::Options),
    /// A fixed number of cache hits on a device that costs nothing, for callgrind.
    #[command(hide = true)]
    EngineHits(engine::HitsOptions),
    /// Instructions of fixed engine work, against crates/bench/instructions.txt.
    Instructions(instructions::CheckOptions),
    /// Flame graphs of the same work.
    Profile(profile::ProfileOptions),
    /// A fixed amount of engine work in virtual time, for callgrind.
    #[command(hide = true)]
    Work(instructions::WorkOptions),
    /// The device alone: appends, each followed by a flush.
    EngineAppends(engine::AppendOptions),
    /// Synchronous writers on a modelled disk that takes one flush at a time.
    EngineSerialFlush(engine::SerialOptions),
    /// A process of its own for the restart rows.
    #[command(hide = true)]
    EngineRestart(engine::RestartOptions),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Engine(options) => engine::run(&options),
        Command::Costs(options) => engine::costs(&options),
        Command::Nbd(options) => nbd::run(&options),
        Command::Peers(options) => nbd::peers::run(&options),
        Command::Kernel(options) => kernel::run(&options),
        Command::KernelGuest(options) => kernel::guest(&options).map(|()| true),
        Command::Arrays => Ok(arrays::run()),
        Command::Smooth(options) => smooth::run(&options),
        Command::Faults(options) => smooth::faults::run(&options),
        Command::Policy(options) => policy::bench(&options),
        Command::EngineHits(options) => engine::hits(&options).map(|()| true),
        Command::Instructions(options) => instructions::check(&options),
        Command::Profile(options) => profile::run(&options).map(|()| true),
        Command::Work(options) => instructions::work(&options).map(|()| true),
        Command::EngineAppends(options) => engine::append_loop(&options).map(|()| true),
        Command::EngineSerialFlush(options) => engine::serial_flush(&options).map(|()| true),
        Command::EngineRestart(options) => engine::restart_step(&options).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        <super::Args as clap::CommandFactory>::command().debug_assert();
    }
}

//! `forebay`: try it, look at what it stores.
//!
//! Data goes to standard output, everything else to standard error. Exit codes: 0 done, 1 failure,
//! 2 usage.
#![forbid(unsafe_code)]

mod crew;
mod demo;
mod dev;
mod export;
mod failure;
mod flag;
mod front;
mod host;
mod inspect;
mod members;
mod notes;
mod origin;
mod progress;
mod text;
mod witness;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::Failure;

/// A block cache: a log on SSDs in front of slow disks.
#[derive(Parser)]
#[command(name = "forebay", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Try Forebay: a pool on files in front of a modelled slow array, served over NBD
    Demo(demo::Options),
    /// Print what is on cache devices; only reads, also beside a running pool
    Inspect(inspect::Options),
    /// For tests and developers; may change at any time
    #[command(hide = true)]
    Dev(dev::Options),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo(options) => demo::run(options),
        Command::Inspect(options) => inspect::run(&options),
        Command::Dev(options) => dev::run(options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// What a command ends with.
type Result<T> = std::result::Result<T, Failure>;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_definition_of_the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}

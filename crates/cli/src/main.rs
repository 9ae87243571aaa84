//! `forebay`: the daemon, the commands that ask it, a demo, a look at what is stored.
//!
//! Data goes to standard output, everything else to standard error. Exit codes: 0 done, 1 failure,
//! 2 usage.
#![forbid(unsafe_code)]

mod admin;
mod blocking;
mod crew;
mod daemon;
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
    #[command(flatten)]
    asking: admin::Asking,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the daemon
    Serve(daemon::Options),
    /// Say how everything is
    Status,
    /// Pools: the SSDs that cache together
    #[command(subcommand)]
    Pool(admin::pool::Command),
    /// Volumes: slow disks behind a pool
    #[command(subcommand)]
    Volume(admin::volume::Command),
    /// Exports: where clients reach volumes
    #[command(subcommand)]
    Export(admin::export::Command),
    /// List what has happened since the daemon was started
    Events(admin::status::Events),
    /// Say what a code means and what to do
    Explain(admin::explain::Options),
    /// Print a shell's completion of this command line
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Try Forebay: a pool on files in front of a modelled slow array, served over NBD
    Demo(demo::Options),
    /// Print what is on cache devices; only reads, also beside a running pool
    Inspect(inspect::Options),
    /// For tests and developers; may change at any time
    #[command(hide = true)]
    Dev(dev::Options),
}

fn main() -> ExitCode {
    let Cli { asking, command } = Cli::parse();
    let result = match command {
        Command::Serve(options) => daemon::run(&options),
        Command::Status => admin::status::status(&asking),
        Command::Pool(command) => admin::pool::run(command, &asking),
        Command::Volume(command) => admin::volume::run(command, &asking),
        Command::Export(command) => admin::export::run(command, &asking),
        Command::Events(options) => admin::status::events(&options, &asking),
        Command::Explain(options) => admin::explain::run(&options),
        Command::Completion { shell } => {
            complete(shell);
            Ok(())
        }
        Command::Demo(options) => demo::run(options),
        Command::Inspect(options) => inspect::run(&options),
        Command::Dev(options) => dev::run(options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Writes what a shell needs to complete our command lines.
fn complete(shell: clap_complete::Shell) {
    use clap::CommandFactory;
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "forebay", &mut script);
    text::say(String::from_utf8_lossy(&script).trim_end());
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

//! `forebay`: the daemon, the commands that ask it, a demo, a look at what is stored.
//!
//! Data goes to standard output, everything else to standard error; `failure` has the exit codes.
#![forbid(unsafe_code)]

mod admin;
mod bench;
mod blocking;
mod crew;
mod daemon;
mod demo;
mod dev;
mod doctor;
mod export;
mod failure;
mod flag;
mod front;
mod health;
mod host;
mod inspect;
mod lab;
mod machine;
mod man;
mod members;
mod memory;
mod notes;
mod origin;
mod output;
mod patience;
mod plain;
mod progress;
mod reference;
mod remote;
mod text;
mod witness;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use forebay_control::api::SCHEMA;
use forebay_control::error::{ApiError, Code};
use forebay_device::heap::Jemalloc;

use crate::failure::Failure;

#[global_allocator]
static HEAP: Jemalloc = Jemalloc;

/// A block cache: a log on SSDs in front of slow disks.
#[derive(Parser)]
#[command(name = "forebay", version, arg_required_else_help = true, after_help = failure::exit_codes())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Commands that ask the daemon, and how it is reached.
#[derive(Args)]
struct Asks<C: Subcommand> {
    #[command(flatten)]
    asking: admin::Asking,
    #[command(subcommand)]
    command: C,
}

#[derive(Subcommand)]
enum Command {
    /// Run the daemon
    Serve(daemon::Options),
    /// Say how everything is
    Status(admin::Asking),
    /// Pools: the SSDs that cache together
    Pool(Asks<admin::pool::Command>),
    /// Volumes: slow disks behind a pool
    Volume(Asks<admin::volume::Command>),
    /// Exports: where clients reach volumes
    Export(Asks<admin::export::Command>),
    /// Jobs: long work of the daemon
    Job(Asks<admin::job::Command>),
    /// Read all copies of what a pool holds, and heal what is damaged
    Scrub(Asks<admin::scrub::Command>),
    /// The advisor: how much cache a volume deserves
    Advisor(Asks<admin::advisor::Command>),
    /// End the daemon; what is dirty stays in the cache, unless it is told to destage
    Stop(admin::stop::Options),
    /// List what has happened, also before the daemon was started
    Events(admin::events::Events),
    /// Print what pools and volumes do, again and again
    Stats(admin::stats::Options),
    /// Say what a code means, what is at risk and what to do
    Explain(admin::explain::Options),
    /// Look whether this machine and these devices are fit; only reads
    Doctor(doctor::Options),
    /// Print a shell's completion of this command line
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages of all commands into a directory
    Man(man::Options),
    /// Try Forebay: a pool on files in front of a modelled slow array, served over NBD
    Demo(demo::Options),
    /// Measure what Forebay gives on this machine: loads known by name, run by fio
    ///
    /// Makes pools on new files in a directory of an SSD, serves them over NBD, and runs fio on them: cold, warming,
    /// steady. Beside them stand the slow device alone and the SSD alone. All files are removed at the end.
    Bench(bench::Options),
    /// Print what is on cache devices; only reads, also beside a running pool
    Inspect(inspect::Options),
    /// The lab: what a cache would have done with recorded traces, and does with published tests
    Lab {
        #[command(subcommand)]
        command: lab::Command,
    },
    /// For tests and developers; may change at any time
    #[command(hide = true)]
    Dev(dev::Options),
}

fn main() -> ExitCode {
    let command = match Cli::try_parse_from(arguments(std::env::args_os().collect())) {
        Ok(cli) => cli.command,
        Err(error) => {
            match error.use_stderr() && is_json_wanted() {
                true => tell_json(&usage(&error)),
                false => tell_usage(&error),
            }
            return match text::all_written() {
                Ok(()) => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)),
                Err(failure) => report(&failure),
            };
        }
    };
    let result = match command {
        Command::Serve(options) => daemon::run(&options),
        Command::Status(asking) => admin::status::status(&asking),
        Command::Pool(Asks { asking, command }) => admin::pool::run(command, &asking),
        Command::Volume(Asks { asking, command }) => admin::volume::run(command, &asking),
        Command::Export(Asks { asking, command }) => admin::export::run(command, &asking),
        Command::Scrub(Asks { asking, command }) => admin::scrub::run(command, &asking),
        Command::Advisor(Asks { asking, command }) => admin::advisor::run(command, &asking),
        Command::Job(Asks { asking, command }) => admin::job::run(command, &asking),
        Command::Stop(options) => admin::stop::run(&options),
        Command::Events(options) => admin::events::events(&options),
        Command::Stats(options) => admin::stats::run(&options),
        Command::Explain(options) => admin::explain::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Completion { shell } => {
            complete(shell);
            Ok(())
        }
        Command::Man(options) => man::run(&options, Cli::command()),
        Command::Demo(options) => demo::run(options),
        Command::Bench(options) => bench::run(&options),
        Command::Inspect(options) => inspect::run(&options),
        Command::Lab { command } => lab::run(&command),
        Command::Dev(options) => dev::run(options, Cli::command()),
    };
    match result.and_then(|()| text::all_written()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure),
    }
}

/// The words of a command line, with the command before what stands in front of it of the options that commands which ask
/// the daemon have.
fn arguments(mut words: Vec<OsString>) -> Vec<OsString> {
    let known = admin::Asking::augment_args(clap::Command::new("forebay"));
    let mut command = 1;
    while let Some(option) = words.get(command).and_then(|word| word.to_str()?.strip_prefix("--")) {
        let name = option.split('=').next();
        let Some(known) = known.get_arguments().find(|it| it.get_long() == name) else { break };
        let is_alone = !known.get_action().takes_values() || option.contains('=');
        command += if is_alone { 1 } else { 2 };
    }
    if command < words.len() {
        words[1..=command].rotate_right(1);
    }
    words
}

/// Tells on standard error why a command failed; the exit code to end with. Whoever asked for JSON gets it for failures,
/// too.
pub(crate) fn report(failure: &Failure) -> ExitCode {
    if !is_json_wanted() {
        return failure.report();
    }
    tell_json(failure);
    ExitCode::FAILURE
}

/// The same of a command line that makes no sense, as a command has found out.
pub(crate) fn report_misuse(failure: &Failure) {
    report(&Failure::coded(Code::BadRequest, failure.what()).hint(failure.hint_text()));
}

/// Whether the command line says `--json`, also if it makes no sense otherwise.
fn is_json_wanted() -> bool {
    let mut options = std::env::args_os().skip(1).take_while(|argument| argument != "--");
    options.any(|argument| argument == "--json")
}

/// A failure as JSON on one line of standard error: all that a command prints behind its notes.
fn tell_json(failure: &Failure) {
    let told = serde_json::json!({ "schema": SCHEMA, "error": ApiError::from(failure.clone()) });
    text::tell_whole(told);
}

/// What is wrong with a command line: what clap says first, and the rest as the hint.
fn usage(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let parts: Vec<_> = text.split("\n\n").map(str::trim).collect();
    let on_one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let what = parts.first().map_or("", |what| what.strip_prefix("error: ").unwrap_or(what));
    let tip = parts.iter().find_map(|part| part.strip_prefix("tip: "));
    let usage = || parts.iter().find(|part| part.starts_with("Usage: ")).copied();
    let rest = || parts.last().filter(|_| parts.len() > 1).copied();
    let hint = tip.or_else(usage).or_else(rest).unwrap_or_default();
    Failure::coded(Code::BadRequest, on_one_line(what)).hint(on_one_line(hint))
}

/// Says what is wrong with a command line, or what it asked for; lines that are longer than the terminal are broken, and
/// nothing has colours then.
fn tell_usage(error: &clap::Error) {
    let text = error.render().to_string();
    let columns = text::columns(std::io::stderr()).filter(|_| error.use_stderr());
    let is_long = |columns: &usize| text.lines().any(|line| line.chars().count() > *columns);
    let Some(columns) = columns.filter(is_long) else {
        let printed = error.print();
        if !error.use_stderr() {
            // What it has printed may wait in a buffer.
            let flushed = printed.and_then(|()| std::io::stdout().lock().flush());
            flushed.unwrap_or_else(text::note_unwritten);
        }
        return;
    };
    for line in text.lines() {
        let plain = line.trim_start_matches(' ');
        let (indent, _) = line.split_at(line.len() - plain.len());
        let further = indent.len() + if plain.starts_with("error: ") { "error: ".len() } else { 2 };
        text::tell(text::wrapped(columns, indent, further, plain));
    }
}

/// Writes what a shell needs to complete our command lines. What is hidden from people is not offered there either.
fn complete(shell: clap_complete::Shell) {
    let (mut script, root) = (Vec::new(), Cli::command());
    let shown = root.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut shown = clap::Command::new("forebay")
        .version(env!("CARGO_PKG_VERSION"))
        .about(root.get_about().cloned().unwrap_or_default())
        .subcommands(shown);
    clap_complete::generate(shell, &mut shown, "forebay", &mut script);
    text::say(String::from_utf8_lossy(&script).trim_end());
}

/// What a command ends with.
type Result<T> = std::result::Result<T, Failure>;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn options_that_stand_before_a_command_are_its_own() {
        let moved = |line: &str| {
            let words = line.split(' ').map(Into::into).collect();
            let words: Vec<_> =
                super::arguments(words).into_iter().map(|it| it.into_string()).collect();
            words.into_iter().map(Result::unwrap).collect::<Vec<_>>().join(" ")
        };
        for (line, expected) in [
            ("forebay --json pool list", "forebay pool --json list"),
            ("forebay --control /s --bytes status", "forebay status --control /s --bytes"),
            ("forebay --control=/s stats 5 --json", "forebay stats --control=/s 5 --json"),
            ("forebay pool list --json", "forebay pool list --json"),
            ("forebay --json --help", "forebay --help --json"),
            ("forebay --nosuch pool", "forebay --nosuch pool"),
            ("forebay --control", "forebay --control"),
            ("forebay --json", "forebay --json"),
        ] {
            assert_eq!(moved(line), expected);
        }
    }

    #[test]
    fn the_definition_of_the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}

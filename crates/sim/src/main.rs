//! `forebay-sim`: replays one seed, or runs many.
#![forbid(unsafe_code)]

use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use clap::Parser;
use forebay_sim::passthrough::Passthrough;
use forebay_sim::runner::{Failure, Options, Summary, run_seed};
use forebay_sim::subject::Subject;

/// Tests Forebay in a deterministic simulation: each seed is one run.
#[derive(Parser)]
#[command(name = "forebay-sim")]
struct Args {
    /// Run this seed and tell what it did.
    #[arg(long, value_name = "N", required_unless_present_any = ["seeds", "list_bugs"])]
    seed: Option<u64>,
    /// Run the seeds from A to B-1.
    #[arg(long, value_name = "A..B", value_parser = seeds, conflicts_with = "seed")]
    seeds: Option<Range<u64>>,
    /// Threads for --seeds.
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Print every request of the seed to standard error.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Plant this bug.
    #[arg(long, value_name = "NAME")]
    bug: Option<String>,
    /// Print the names of the bugs that can be planted.
    #[arg(long)]
    list_bugs: bool,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let parse = || {
        let (first, end) = text.split_once("..")?;
        Some(first.parse().ok()?..end.parse().ok()?)
    };
    parse().filter(|range: &Range<u64>| !range.is_empty()).ok_or("expected A..B, A < B".into())
}

/// Runs one seed on a thread of its own: the buffer pool, whose memory is not cleared, is the
/// thread's, so only a fresh thread runs a seed the same way each time. A panic is a failure.
fn run_alone<S: Subject>(seed: u64, options: &Options) -> Result<Summary, Failure> {
    std::thread::scope(|scope| {
        scope.spawn(|| run_seed::<S>(seed, options)).join().unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
            Err(Failure(format!("panic: {}", text.unwrap_or_else(|| "no message".into()))))
        })
    })
}

fn replay_command(seed: u64, bug: Option<&str>) -> String {
    let bug = bug.map(|name| format!(" --bug {name}")).unwrap_or_default();
    format!("forebay-sim --seed {seed}{bug} --trace")
}

/// Runs all seeds; returns the number of failures.
fn run_many<S: Subject>(seeds: &Range<u64>, jobs: usize, options: &Options) -> u64 {
    let next = AtomicU64::new(seeds.start);
    let failed = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    if let Err(failure) = run_alone::<S>(seed, options) {
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        *failed += 1;
                        println!("seed {seed} failed: {failure}");
                        println!("  replay: {}", replay_command(seed, options.bug.as_deref()));
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn run_one<S: Subject>(seed: u64, options: &Options) -> u64 {
    match run_alone::<S>(seed, options) {
        Ok(summary) => {
            println!(
                "seed {seed}: {} requests, {} I/Os, {} crashes, {} steps, {:.3} s of virtual time",
                summary.requests,
                summary.ios,
                summary.crashes,
                summary.steps,
                summary.nanos as f64 / 1e9
            );
            0
        }
        Err(failure) => {
            println!("seed {seed} failed: {failure}");
            println!("  replay: {}", replay_command(seed, options.bug.as_deref()));
            1
        }
    }
}

fn run<S: Subject>(args: &Args) -> ExitCode {
    if args.list_bugs {
        S::BUGS.iter().for_each(|bug| println!("{bug}"));
        return ExitCode::SUCCESS;
    }
    if let Some(bug) = &args.bug
        && !S::BUGS.contains(&bug.as_str())
    {
        eprintln!("error: there is no planted bug \"{bug}\"");
        eprintln!("hint: `forebay-sim --list-bugs` names them");
        return ExitCode::from(2);
    }
    let options = Options { trace: args.trace, bug: args.bug.clone(), ..Options::default() };
    let (count, failed) = match (args.seed, &args.seeds) {
        (Some(seed), _) => (1, run_one::<S>(seed, &options)),
        (None, Some(seeds)) => (seeds.end - seeds.start, run_many::<S>(seeds, args.jobs, &options)),
        (None, None) => (0, 0),
    };
    println!("{} seeds passed, {failed} failed", count - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    let args = Args::parse();
    run::<Passthrough>(&args)
}

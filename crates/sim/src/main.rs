//! `forebay-sim`: replays one seed, or runs many.
#![forbid(unsafe_code)]

use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser;
use forebay_sim::engine::Engine;
use forebay_sim::runner::{Failure, Options, Summary, crash_everywhere, run_seed};
use forebay_sim::subject::Subject;
use forebay_sim::swarm::CrashPlan;

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
    /// Crash there instead of where the seed says (power:N or kill:N, after N I/Os of a run);
    /// repeat it for the runs that follow.
    #[arg(long, value_name = "KIND:N", requires = "seed")]
    crash: Vec<CrashPlan>,
    /// Cut the workload short.
    #[arg(long)]
    short: bool,
    /// Crash a short workload of each seed at every single I/O.
    #[arg(long, conflicts_with = "crash")]
    every_io: bool,
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

/// What one seed did, for people; or what failed and the arguments that replay it.
type Verdict = Result<String, (Failure, String)>;

fn run_seed_as_asked<S: Subject>(seed: u64, options: &Options, every_io: bool) -> Verdict {
    if every_io {
        return match crash_everywhere::<S>(seed, options) {
            Ok(runs) => Ok(format!("{runs} runs")),
            Err((failure, options)) => Err((failure, options.replay(seed))),
        };
    }
    let summary = run_seed::<S>(seed, options).map_err(|f| (f, options.replay(seed)))?;
    let Summary { requests, ios, crashes, steps, nanos, .. } = summary;
    let seconds = nanos as f64 / 1e9;
    Ok(format!(
        "{requests} requests, {ios} I/Os, {crashes} crashes, {steps} steps, {seconds:.3} s of \
         virtual time"
    ))
}

/// Runs one seed on a thread of its own: the buffer pool, whose memory is not cleared, is the
/// thread's, so only a fresh thread runs a seed the same way each time. A panic is a failure.
fn run_alone<S: Subject>(seed: u64, options: &Options, every_io: bool) -> Verdict {
    std::thread::scope(|scope| {
        let run = scope.spawn(|| run_seed_as_asked::<S>(seed, options, every_io));
        run.join().unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
            let text = text.unwrap_or_else(|| "no message".into());
            // Which of the runs panicked is not known here; all of them replay it.
            let replay = options.replay(seed) + if every_io { " --every-io" } else { "" };
            Err((Failure(format!("panic: {text}")), replay))
        })
    })
}

/// Runs all seeds; returns the number of failures.
fn run_all<S: Subject>(seeds: &Range<u64>, args: &Args, options: &Options) -> u64 {
    let next = AtomicU64::new(seeds.start);
    let failed = AtomicU64::new(0);
    let worker = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            match run_alone::<S>(seed, options, args.every_io) {
                Ok(text) if args.seed.is_some() => println!("seed {seed}: {text}"),
                Ok(_) => {}
                Err((failure, replay)) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                    println!("seed {seed} failed: {failure}\n  replay: forebay-sim {replay}");
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(worker);
        }
    });
    failed.into_inner()
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
    let options = Options {
        trace: args.trace,
        bug: args.bug.clone(),
        crashes: (!args.crash.is_empty()).then(|| args.crash.clone()),
        short: args.short,
    };
    let seeds = match (args.seed, &args.seeds) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(seeds)) => seeds.clone(),
        (None, None) => 0..0,
    };
    let (count, failed) = (seeds.end - seeds.start, run_all::<S>(&seeds, args, &options));
    println!("{} seeds passed, {failed} failed", count - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    let args = Args::parse();
    run::<Engine>(&args)
}

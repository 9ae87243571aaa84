//! `forebay-sim`: replays one seed, or runs many.
#![forbid(unsafe_code)]

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser;
use forebay_device::heap::Jemalloc;
use forebay_sim::alarm::{self, Caught};
use forebay_sim::coverage::Coverage;
use forebay_sim::engine::Engine;
use forebay_sim::every_io::crash_everywhere;
use forebay_sim::jobs;
use forebay_sim::runner::{Failure, Options, Summary, run_seed};
use forebay_sim::subject::Subject;
use forebay_sim::swarm::CrashPlan;

#[global_allocator]
static HEAP: Jemalloc = Jemalloc;

/// Tests Forebay in a deterministic simulation: each seed is one run.
#[derive(Parser)]
#[command(name = "forebay-sim")]
struct Args {
    /// Run this seed and tell what it did.
    #[arg(long, value_name = "N", required_unless_present_any = ["seeds", "list_bugs", "alarm"])]
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
    /// Crash a short workload of each seed at every single I/O, and the start after it likewise;
    /// with --crash only there.
    #[arg(long)]
    every_io: bool,
    /// Plant this bug.
    #[arg(long, value_name = "NAME")]
    bug: Option<String>,
    /// Plant each bug in turn and see that it is caught; with --seeds, search there, else try the
    /// seeds known to catch it first.
    #[arg(long, conflicts_with_all = ["seed", "bug", "every_io", "coverage"])]
    alarm: bool,
    /// Print what the seeds reached; an error if too few of them reached something.
    #[arg(long, requires = "seeds", conflicts_with = "every_io")]
    coverage: bool,
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

/// What one seed did; or what failed and the arguments that replay it.
type Verdict = Result<Summary, (Failure, String)>;

fn run_seed_as_asked<S: Subject>(seed: u64, options: &Options, every_io: bool) -> Verdict {
    if every_io {
        let runs = crash_everywhere::<S>(seed, options);
        let runs =
            runs.map_err(|(failure, options)| (failure, options.replay(seed) + " --every-io"))?;
        return Ok(Summary { crashes: runs, ..Summary::default() });
    }
    run_seed::<S>(seed, options).map_err(|f| (f, options.replay(seed)))
}

fn describe(summary: &Summary) -> String {
    let Summary { requests, ios, crashes, steps, nanos, .. } = summary;
    let seconds = *nanos as f64 / 1e9;
    format!(
        "{requests} requests, {ios} I/Os, {crashes} crashes, {steps} steps, {seconds:.3} s of \
         virtual time"
    )
}

/// Runs all seeds; returns the number of failures.
fn run_all<S: Subject>(seeds: &Range<u64>, args: &Args, options: &Options) -> u64 {
    let failed = AtomicU64::new(0);
    let coverage = Mutex::new(Coverage::default());
    jobs::each(args.jobs, seeds.clone(), |seed| {
        let run = || run_seed_as_asked::<S>(seed, options, args.every_io);
        let verdict = jobs::alone(run).unwrap_or_else(|panic| {
            // Which of the runs panicked is not known here; all of them replay it.
            let replay = options.replay(seed) + if args.every_io { " --every-io" } else { "" };
            Err((Failure(format!("panic: {panic}")), replay))
        });
        match verdict {
            Ok(summary) => {
                if args.seed.is_some() {
                    println!("seed {seed}: {}", describe(&summary));
                }
                if let Ok(mut coverage) = coverage.lock() {
                    coverage.add(&summary.seen);
                }
            }
            Err((failure, replay)) => {
                failed.fetch_add(1, Ordering::Relaxed);
                println!("seed {seed} failed: {failure}\n  replay: forebay-sim {replay}");
            }
        }
    });
    let missing = match coverage.into_inner() {
        Ok(coverage) if args.coverage => {
            print!("{coverage}");
            coverage.missing()
        }
        _ => Vec::new(),
    };
    missing.iter().for_each(|what| println!("too rare: {what}"));
    failed.into_inner() + missing.len() as u64
}

/// Plants every bug; returns the number of those that escaped.
fn sound_alarm<S: Subject>(args: &Args) -> u64 {
    // Caught bugs panic now and then: that is an answer, not an accident.
    std::panic::set_hook(Box::new(|_| ()));
    let escaped = AtomicU64::new(0);
    let seeds = args.seeds.clone().unwrap_or(0..alarm::SEEDS_MAX);
    println!("{:<32} {:>6} {:>6}  caught by", "bug", "seed", "tried");
    jobs::each(args.jobs, S::BUGS.iter(), |bug| {
        match alarm::search::<S>(bug, seeds.clone(), args.seeds.is_some()) {
            Some(Caught { seed, tried, failure }) => {
                println!("{bug:<32} {seed:>6} {tried:>6}  {failure}");
            }
            None => {
                escaped.fetch_add(1, Ordering::Relaxed);
                println!("{bug:<32} {:>6} {:>6}  ESCAPED", "-", seeds.end - seeds.start);
            }
        }
    });
    escaped.into_inner()
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
    if args.alarm {
        let escaped = sound_alarm::<S>(args);
        println!("{} bugs caught, {escaped} escaped", S::BUGS.len() as u64 - escaped);
        return if escaped == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
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
    println!("{} seeds passed, {failed} failed", count.saturating_sub(failed));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    let args = Args::parse();
    run::<Engine>(&args)
}

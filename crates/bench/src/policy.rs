//! `forebay-bench policy`: the daemon's policy on recorded traces, beside well-known ones.
//!
//! * Exact figures: the same on every machine, whatever else runs on it.
//! * First the baselines are compared with libCacheSim's miss ratios, so that the bar is one.
//! * Two tables of the same policy: deciding block by block at no cost, which is what the others do,
//!   and at the daemon's geometry and write budget.

mod backup;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_lab::baseline::Baseline;
use forebay_lab::reference::{self, Known};
use forebay_lab::run::{Report, Settings, run};
use forebay_lab::workload::Workload;

/// A baseline may be this far from the reference.
const DEVIATION_MAX: f64 = 0.002;
/// Smaller caches are left out: some policies have queues of no block then.
const CAPACITY_MIN: usize = 100;
/// Below the best baseline's mean by so many points at the most, at every size.
const FLOOR_POINTS: f64 = -0.5;
/// Above it by so many, from [`AHEAD_FROM_PERCENT`] on.
const AHEAD_POINTS: f64 = 0.5;
const AHEAD_FROM_PERCENT: f64 = 10.0;
/// More misses than the better of LRU and FIFO, on any trace and size.
const WORSE_MAX: f64 = 0.02;
/// What the daemon's geometry and budget may cost, in points.
const DAEMON_POINTS: f64 = 1.5;
/// Where write budgets are shown, in percent of what is written to the SSD without one.
const BUDGETS_AT_PERCENT: f64 = 10.0;
const BUDGETS: [u32; 4] = [80, 60, 40, 20];
/// Traces that the means leave out, since hardly anything in them comes again, and the size at which they are run.
const WITHOUT_REUSE: [&str; 5] =
    ["hadoop_e8", "ycsb_blk_ext4", "ycsb_blk_f2fs", "msr_wdev_1", "msr_wdev_3"];
const WITHOUT_REUSE_AT_PERCENT: usize = 10;
/// The one that reads most, and the part of its bytes that the SSD is to get at the most; of the others no more than all.
const SPARED: &str = "hadoop_e8";
const SPARED_MAX: f64 = 0.5;
/// What an access may take, of the whole runner.
const NS_PER_ACCESS_MAX: f64 = 150.0;

/// A trace, and a size of the cache.
#[derive(Clone, Debug, PartialEq)]
struct Case {
    trace: String,
    percent: f64,
    capacity: usize,
}

/// Who is run on a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Baseline(Baseline),
    Ideal,
    Daemon,
}

#[derive(Clone, Copy)]
struct Outcome {
    miss_ratio: f64,
    ssd_bytes_per_client_byte: f64,
}

impl From<Report> for Outcome {
    fn from(report: Report) -> Self {
        Self {
            miss_ratio: report.accesses().ratio(),
            ssd_bytes_per_client_byte: report.ssd_bytes_per_client_byte(),
        }
    }
}

fn outcome(who: Who, workload: &Workload, capacity: usize) -> forebay_lab::Result<Outcome> {
    // Nothing here depends on a time.
    let clock = || Duration::ZERO;
    match who {
        Who::Ideal => run(workload, Settings::ideal(capacity), &clock).map(Outcome::from),
        Who::Daemon => run(workload, Settings::daemon(capacity), &clock).map(Outcome::from),
        Who::Baseline(baseline) => {
            let mut cache = baseline.cache(workload, capacity);
            let missed = workload.accesses.iter().filter(|&&block| !cache.access(block)).count();
            let miss_ratio = missed as f64 / workload.accesses.len() as f64;
            Ok(Outcome { miss_ratio, ssd_bytes_per_client_byte: 0.0 })
        }
    }
}

/// What everybody came to on one case.
struct Line {
    case: Case,
    found: BTreeMap<Who, Outcome>,
    /// The daemon with these shares of the bytes that it wrote without a budget.
    thrifty: Vec<Outcome>,
}

impl Line {
    fn ratio(&self, who: Who) -> f64 {
        self.found[&who].miss_ratio
    }

    /// Misses saved against LRU, as a share.
    fn reduction(&self, who: Who) -> f64 {
        1.0 - self.ratio(who) / self.ratio(Who::Baseline(Baseline::Lru))
    }

    /// Misses beyond those of the better of LRU and FIFO, as a share.
    fn worse(&self, who: Who) -> f64 {
        let simple = [Baseline::Lru, Baseline::Fifo].map(|b| self.ratio(Who::Baseline(b)));
        self.ratio(who) / simple[0].min(simple[1]) - 1.0
    }
}

/// Runs everybody on the cases of one trace, on as many threads as there are cores.
fn lines_of(
    workload: &Workload,
    cases: &[Case],
    everybody: &[Who],
) -> forebay_lab::Result<Vec<Line>> {
    let jobs: Vec<(usize, Who)> =
        (0..cases.len()).flat_map(|at| everybody.iter().map(move |&who| (at, who))).collect();
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&(at, who)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = outcome(who, workload, cases[at].capacity);
                    let mut done = done.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    done.push((at, who, outcome));
                }
            });
        }
    });
    let mut lines: Vec<_> = cases
        .iter()
        .map(|case| Line { case: case.clone(), found: BTreeMap::new(), thrifty: Vec::new() })
        .collect();
    let done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    for (at, who, outcome) in done {
        lines[at].found.insert(who, outcome?);
    }
    Ok(lines)
}

/// Runs the daemon with less and less of what it writes to the SSD.
fn be_thrifty(workload: &Workload, line: &mut Line) -> forebay_lab::Result<()> {
    let written = line.found[&Who::Daemon].ssd_bytes_per_client_byte;
    for budget in BUDGETS {
        let percent = (written * f64::from(budget)).round().max(1.0) as u32;
        let daemon = Settings::daemon(line.case.capacity);
        let settings = Settings { write_budget_percent: Some(percent), ..daemon };
        line.thrifty.push(run(workload, settings, &|| Duration::ZERO)?.into());
    }
    Ok(())
}

/// The cases that the reference has, trace by trace.
fn cases(known: &[Known]) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for known in known.iter().filter(|known| known.capacity >= CAPACITY_MIN) {
        let case =
            Case { trace: known.trace.clone(), percent: known.percent, capacity: known.capacity };
        if cases.last() != Some(&case) {
            cases.push(case);
        }
    }
    cases
}

/// What it takes from the command line.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Whole traces are played in any case
    #[arg(long)]
    full: bool,
}

/// Refuses a reference that has no case, or none of some policy: what is compared with nothing is met by nothing.
fn check_known(known: &[Known], cases: &[Case]) -> Result<(), String> {
    let without = Baseline::ALL.into_iter().find(|&baseline| {
        let is_played = |it: &&Known| cases.iter().any(|case| case.trace == it.trace);
        !known
            .iter()
            .filter(is_played)
            .any(|it| it.baseline == baseline && it.capacity >= CAPACITY_MIN)
    });
    match without {
        None => Ok(()),
        Some(baseline) => Err(format!(
            "the reference has no miss ratios of {}\nhint: the file is cut off, or another one: fetch it anew",
            baseline.name()
        )),
    }
}

/// Runs the benchmark; whether everything met its bar.
///
/// # Errors
/// If the traces are not there or cannot be read.
pub(crate) fn bench(options: &Options) -> Result<bool, String> {
    if options.full {
        eprintln!("note: whole traces are always played");
    }
    let told = |error: forebay_lab::Error| format!("{error}\nhint: {}", error.hint);
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = reference::folder(&checkout).map_err(told)?;
    let known = reference::known(&folder).map_err(told)?;
    let cases = cases(&known);
    check_known(&known, &cases)?;
    let traces = cases.iter().map(|case| case.trace.as_str()).chain(WITHOUT_REUSE);
    reference::check_there(&folder, traces).map_err(told)?;
    let mut everybody: Vec<Who> = Baseline::ALL.into_iter().map(Who::Baseline).collect();
    everybody.extend([Who::Ideal, Who::Daemon]);
    let mut lines = Vec::new();
    let (mut took, mut accesses) = (Duration::ZERO, 0);
    for cases in cases.chunk_by(|one, other| one.trace == other.trace) {
        eprintln!("{}", cases[0].trace);
        let workload = reference::load(&folder, &cases[0].trace).map_err(told)?;
        let mut found = lines_of(&workload, cases, &everybody).map_err(told)?;
        for line in found.iter_mut().filter(|line| line.case.percent == BUDGETS_AT_PERCENT) {
            be_thrifty(&workload, line).map_err(told)?;
            let report = time(&workload, line.case.capacity).map_err(told)?;
            took += report.took;
            accesses += report.accesses().all;
        }
        lines.extend(found);
    }
    lines.sort_by(|one, other| one.case.percent.total_cmp(&other.case.percent));
    let mut all_met = check_reference(&lines, &known);
    print_cases(&lines);
    all_met &= print_means(&lines);
    all_met &= print_worst(&lines, Who::Ideal);
    print_budgets(&lines);
    all_met &= print_without_reuse(&folder).map_err(told)?;
    all_met &= backup::print().map_err(told)?;
    all_met &= print_time(took, accesses);
    Ok(all_met)
}

/// The daemon's policy, alone on this thread.
#[allow(clippy::disallowed_methods, reason = "what is measured is this machine, without a reactor")]
fn time(workload: &Workload, capacity: usize) -> forebay_lab::Result<Report> {
    let begun = Instant::now();
    run(workload, Settings::daemon(capacity), &|| begun.elapsed())
}

fn print_time(took: Duration, accesses: u64) -> bool {
    let each = took.as_nanos() as f64 / accesses.max(1) as f64;
    let met = each <= NS_PER_ACCESS_MAX;
    println!(
        "\n`daemon` at {BUDGETS_AT_PERCENT:.0} %: {each:.0} ns for an access, log and index of the runner included \
         (bar: <= {NS_PER_ACCESS_MAX}): {}",
        verdict(met)
    );
    met
}

/// What second reads in place of first ones save where first ones bring in nothing that is read again.
fn print_without_reuse(folder: &Path) -> forebay_lab::Result<bool> {
    let limit = WORSE_MAX * 100.0;
    println!(
        "\nTraces without reuse at {WITHOUT_REUSE_AT_PERCENT} %: what `auto` spares the SSD, for {limit:.0} % more misses at the most\n\n\
         {:<16} {:>9} {:>9} {:>9} {:>9}\n{:<16} {:>9} {:>9} {:>9} {:>9}",
        "", "first", "read", "auto", "", "trace", "misses", "ssd", "misses", "ssd"
    );
    let mut all_met = true;
    for trace in WITHOUT_REUSE {
        let workload = reference::load(folder, trace)?;
        let capacity = workload.footprint() * WITHOUT_REUSE_AT_PERCENT / 100;
        let auto = Settings::daemon(capacity);
        let of = |settings| run(&workload, settings, &|| Duration::ZERO).map(Outcome::from);
        let (first, auto) = (of(Settings { auto: false, ..auto })?, of(auto)?);
        let spared = auto.ssd_bytes_per_client_byte / first.ssd_bytes_per_client_byte;
        let most = if trace == SPARED { SPARED_MAX } else { 1.0 };
        let met = auto.miss_ratio <= first.miss_ratio * (1.0 + WORSE_MAX) && spared <= most;
        all_met &= met;
        println!(
            "{trace:<16} {:>9.4} {:>9.2} {:>9.4} {:>9.2} {}",
            first.miss_ratio,
            first.ssd_bytes_per_client_byte,
            auto.miss_ratio,
            auto.ssd_bytes_per_client_byte,
            verdict(met)
        );
    }
    Ok(all_met)
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

fn check_reference(lines: &[Line], known: &[Known]) -> bool {
    println!("Baselines beside libCacheSim: cells, and the largest difference of miss ratios\n");
    println!("{:<12} {:>6} {:>11}  within {DEVIATION_MAX}", "policy", "cells", "difference");
    let mut all_met = true;
    for baseline in Baseline::ALL {
        let differences: Vec<f64> = known
            .iter()
            .filter(|known| known.baseline == baseline)
            .filter_map(|known| {
                let same = |line: &&Line| {
                    line.case.trace == known.trace && line.case.capacity == known.capacity
                };
                let line = lines.iter().find(same)?;
                Some((line.ratio(Who::Baseline(baseline)) - known.miss_ratio).abs())
            })
            .collect();
        let largest = differences.iter().copied().fold(0.0, f64::max);
        let met = largest <= DEVIATION_MAX && !differences.is_empty();
        all_met &= met;
        let word = verdict(met);
        println!("{:<12} {:>6} {largest:>11.4}  {word}", baseline.name(), differences.len());
    }
    all_met
}

fn name(who: Who) -> &'static str {
    match who {
        Who::Baseline(baseline) => baseline.name(),
        Who::Ideal => "forebay",
        Who::Daemon => "daemon",
    }
}

fn print_cases(lines: &[Line]) {
    println!(
        "\nMiss ratios; `forebay` decides block by block, `daemon` at its geometry and budget,"
    );
    println!("`ssd` is bytes written to the SSD per byte of clients there\n");
    print!("{:>5} {:<33}", "size", "trace");
    let everybody: Vec<Who> =
        lines.first().into_iter().flat_map(|line| line.found.keys().copied()).collect();
    for &who in &everybody {
        print!(" {:>9}", name(who));
    }
    println!(" {:>5}", "ssd");
    for line in lines {
        print!("{:>4}% {:<33}", line.case.percent, line.case.trace);
        for &who in &everybody {
            print!(" {:>9.4}", line.ratio(who));
        }
        println!(" {:>5.2}", line.found[&Who::Daemon].ssd_bytes_per_client_byte);
    }
}

/// Mean of the reductions at one size, in points.
fn mean(lines: &[&Line], who: Who) -> f64 {
    let sum: f64 = lines.iter().map(|line| line.reduction(who)).sum();
    100.0 * sum / lines.len() as f64
}

fn print_means(lines: &[Line]) -> bool {
    println!("\nMean miss reduction against LRU, in points\n");
    println!(
        "{:>5} {:>6} {:>10} {:>8} {:>8} {:>6} {:<7} {:>8} {:>6} {:<7}",
        "size", "traces", "best", "", "forebay", "bar", "", "daemon", "bar", ""
    );
    let mut all_met = true;
    for lines in lines.chunk_by(|one, other| one.case.percent == other.case.percent) {
        let lines: Vec<&Line> = lines.iter().collect();
        let (best, best_name) = Baseline::ALL
            .into_iter()
            .filter(|&baseline| baseline != Baseline::Belady)
            .map(|baseline| (mean(&lines, Who::Baseline(baseline)), baseline.name()))
            .fold((f64::MIN, ""), |best, next| if next.0 > best.0 { next } else { best });
        let percent = lines[0].case.percent;
        let bar = best + if percent >= AHEAD_FROM_PERCENT { AHEAD_POINTS } else { FLOOR_POINTS };
        let (ideal, daemon) = (mean(&lines, Who::Ideal), mean(&lines, Who::Daemon));
        let daemon_bar = ideal - DAEMON_POINTS;
        let met = (ideal >= bar, daemon >= daemon_bar);
        all_met &= met.0 && met.1;
        println!(
            "{percent:>4}% {:>6} {best_name:>10} {best:>8.2} {ideal:>8.2} {bar:>6.2} {:<7} \
             {daemon:>8.2} {daemon_bar:>6.2} {:<7}",
            lines.len(),
            verdict(met.0),
            verdict(met.1),
        );
    }
    all_met
}

/// The cases in which the simplest policies are ahead.
fn print_worst(lines: &[Line], who: Who) -> bool {
    let limit = WORSE_MAX * 100.0;
    let mut worse: Vec<_> = lines.iter().filter(|line| line.worse(who) > WORSE_MAX).collect();
    worse.sort_by(|one, other| other.worse(who).total_cmp(&one.worse(who)));
    let met = worse.is_empty();
    println!(
        "\nMore than {limit:.0} % more misses than the better of LRU and FIFO ({}): {} of {}: {}",
        name(who),
        worse.len(),
        lines.len(),
        verdict(met)
    );
    for line in worse {
        let Case { trace, percent, .. } = &line.case;
        println!("{percent:>4}% {trace:<33} +{:.1} %", 100.0 * line.worse(who));
    }
    met
}

/// Misses, and bytes written, against the daemon without a write budget.
fn print_budgets(lines: &[Line]) {
    println!(
        "\n`daemon` at {BUDGETS_AT_PERCENT:.0} %, with a write budget of so much of what it writes to the SSD without\n\
         one: misses beside those without, and what it writes\n"
    );
    print!("{:<33}", "trace");
    BUDGETS.iter().for_each(|budget| print!(" {:>16}", format!("{budget} %")));
    println!();
    let lines: Vec<&Line> = lines.iter().filter(|line| !line.thrifty.is_empty()).collect();
    let beside = |line: &Line, at: usize| {
        let (with, without) = (line.thrifty[at], line.found[&Who::Daemon]);
        let written = with.ssd_bytes_per_client_byte / without.ssd_bytes_per_client_byte;
        (100.0 * (with.miss_ratio / without.miss_ratio - 1.0), 100.0 * written)
    };
    let cell = |(missed, written): (f64, f64)| print!(" {missed:>+7.1} % {written:>4.0} %");
    for line in &lines {
        print!("{:<33}", line.case.trace);
        (0..BUDGETS.len()).for_each(|at| cell(beside(line, at)));
        println!();
    }
    print!("{:<33}", "mean");
    for at in 0..BUDGETS.len() {
        let all = lines.iter().map(|line| beside(line, at));
        let sum = all.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let count = lines.len().max(1) as f64;
        cell((sum.0 / count, sum.1 / count));
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_that_was_cut_off_is_no_bar() {
        let one = |baseline| Known {
            trace: "a".to_owned(),
            percent: 10.0,
            capacity: CAPACITY_MIN,
            baseline,
            miss_ratio: 0.5,
        };
        let all: Vec<_> = Baseline::ALL.into_iter().map(one).collect();
        assert!(check_known(&all, &cases(&all)).is_ok());
        for known in [&all[1..], &[]] {
            let error = check_known(known, &cases(known)).unwrap_err();
            assert!(error.contains(Baseline::ALL[0].name()), "{error}");
        }
        assert!(!check_reference(&[], &all), "no cell is met");
    }
}

//! `forebay-bench engine`: the engine in this process, beside fio on a bare file of the same disk.
//!
//! * Cache devices are files written in full, with O_DIRECT; what is measured comes after a full
//!   lap of the log, so segments are rewritten ones.
//! * A round is ours and fio back to back, in alternating order; the median of the rounds' ratios
//!   counts, not a ratio of medians.
//! * While fio runs, the engine stands still: its reactor is driven only in its own turns.

mod bare;
mod cpu;
mod devices;
mod fio;
mod load;
mod machine;
mod memory;
mod remote;
mod restart;
mod rig;
mod rows;
mod serial;
mod verdict;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;

use clap::Args;
use forebay_device::Runtime;
use forebay_device::real::reactor::{Config, Reactor};
use serde_json::{Value, json};

pub use bare::{AppendOptions, append_loop};
pub use cpu::{HitsOptions, hits};
pub use restart::{RestartOptions, step as restart_step};
pub use serial::{SerialOptions, serial_flush};
use verdict::{Bar, Row, Verdict, is_decided};

/// An error for people.
pub type Result<T> = std::result::Result<T, String>;

/// What to measure, and how long.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Rows to measure, by name (all if none are named): read, write, flush1, flush16, seqread,
    /// seqwrite, moved, amplification, cpu, remote, instructions, restart, index.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Rounds at first.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Rounds at the most: a row whose bar lies among its rounds gets more.
    #[arg(long, default_value_t = 15)]
    rounds_max: usize,
    /// Smaller sizes and shorter rounds. Rows that this shrinks are never called met.
    #[arg(long)]
    quick: bool,
    /// GiB of the cache file, if not the 4 (with --quick 1) that the bars are meant for. With four
    /// times as much the log does not fill during a row, so nothing is reclaimed.
    #[arg(long)]
    cache_gib: Option<u64>,
    /// Where the files are made; they are removed at the end.
    #[arg(long, default_value = "/var/tmp/forebay-bench")]
    dir: PathBuf,
    /// File for the raw results, one JSON object per line, appended to; `results.jsonl` beside
    /// the other files if none is named.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Names of the rows.
const ROWS: &[&str] = &[
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
];

/// What all rows share.
struct Bench {
    options: Options,
    clock: Rc<Reactor>,
    out: File,
    rows: Vec<Row>,
}

impl Bench {
    fn wants(&self, names: &[&str]) -> bool {
        let rows = &self.options.rows;
        rows.is_empty() || names.iter().any(|name| rows.iter().any(|row| row == name))
    }

    fn keep(&mut self, value: &Value) -> Result<()> {
        writeln!(self.out, "{value}").map_err(|e| format!("writing the raw results: {e}"))
    }

    fn finish(&mut self, row: Row) -> Result<()> {
        eprintln!("  {}: {} {}", row.what, row.ratio, row.verdict.word());
        self.keep(&row.to_json())?;
        self.rows.push(row);
        Ok(())
    }

    /// Whether a row that has these values gets one more round.
    fn wants_round(&self, values: &[f64], bar: Bar) -> bool {
        let (first, most) = (self.options.rounds.max(1), self.options.rounds_max);
        values.len() < first || (values.len() < most && !is_decided(values, bar))
    }

    /// Milliseconds of one side of a round.
    fn span_ms(&self) -> u64 {
        if self.options.quick { 700 } else { 2_000 }
    }
}

/// Runs all rows; false if any was missed.
///
/// # Errors
/// If the bench itself cannot work: no ring, no directory.
pub fn run(options: &Options) -> Result<bool> {
    std::fs::create_dir_all(&options.dir)
        .map_err(|e| format!("making {}: {e}", options.dir.display()))?;
    if let Some(unknown) = options.rows.iter().find(|row| !ROWS.contains(&row.as_str())) {
        return Err(format!("there is no row \"{unknown}\"; rows are {}", ROWS.join(", ")));
    }
    let raw = options.out.clone().unwrap_or_else(|| options.dir.join("results.jsonl"));
    let out = File::options().create(true).append(true).open(&raw);
    let out = out.map_err(|e| format!("opening {}: {e}", raw.display()))?;
    let clock = Reactor::new(Config::default()).map_err(|e| format!("{e}; {}", e.hint()))?;
    let mut bench = Bench { options: options.clone(), clock, out, rows: Vec::new() };
    let started = bench.clock.now();
    let machine = machine::facts(&options.dir);
    bench.keep(&json!({ "machine": machine, "command": std::env::args().collect::<Vec<_>>() }))?;
    if bench.wants(&["index"]) {
        memory::run(&mut bench)?;
    }
    if bench.wants(&["cpu"]) {
        cpu::run_time(&mut bench)?;
    }
    if bench.wants(&["remote"]) {
        remote::run(&mut bench)?;
    }
    if bench.wants(&["instructions"]) {
        cpu::run_instructions(&mut bench)?;
    }
    rows::run(&mut bench)?;
    if bench.wants(&["restart"]) {
        restart::run(&mut bench)?;
    }
    let seconds = (bench.clock.now() - started) / 1_000_000_000;
    verdict::print(&bench.rows);
    println!("\n{machine}");
    println!("took {seconds} s; raw results in {}", raw.display());
    if options.quick {
        println!("--quick: smaller and shorter than what the bars are meant for");
    }
    Ok(bench.rows.iter().all(|row| row.verdict != Verdict::Missed))
}

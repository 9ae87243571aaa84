//! What the benchmarks share: their options, the rule of rounds, the raw results and the table.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;

use clap::Args;
use forebay_device::Runtime;
use forebay_device::real::reactor::{Config, Reactor};
use forebay_lab::machine;
use serde_json::{Value, json};

use crate::verdict::{self, Bar, Row, Verdict, is_decided};

/// An error for people.
pub(crate) type Result<T> = std::result::Result<T, String>;

/// What to measure, and how long.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Rows to measure, by name (all if none are named).
    #[arg(long, value_delimiter = ',')]
    pub(crate) rows: Vec<String>,
    /// Rounds at first.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Rounds at the most: a row whose bar lies among its rounds gets more.
    #[arg(long, default_value_t = 15)]
    pub(crate) rounds_max: usize,
    /// Smaller sizes and shorter rounds. Rows that this shrinks are never called met.
    #[arg(long)]
    pub(crate) quick: bool,
    /// GiB of the cache file, if not the 4 (with --quick 1) that the bars are meant for. With four
    /// times as much the log does not fill during a row, so nothing is reclaimed.
    #[arg(long)]
    pub(crate) cache_gib: Option<u64>,
    /// Where the files are made; they are removed at the end.
    #[arg(long, default_value = "/var/tmp/forebay-bench")]
    pub(crate) dir: PathBuf,
    /// File for the raw results, one JSON object per line, appended to; `results.jsonl` beside
    /// the other files if none is named.
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
}

/// Sizes in bytes: cache file, volume (all of it cached), the part that random writes go to.
pub(crate) struct Sizes {
    pub(crate) cache: u64,
    pub(crate) volume: u64,
    pub(crate) written: u64,
}

/// What a benchmark is made of.
pub(crate) struct Plan {
    /// Names of the rows.
    pub(crate) rows: &'static [&'static str],
    /// Whose figures stand beside each other.
    pub(crate) sides: &'static [&'static str],
    /// Programs whose versions belong to the results.
    pub(crate) tools: &'static [&'static str],
}

impl Plan {
    /// The names of the rows, for a help text.
    pub(crate) fn help(&self) -> String {
        format!("Rows: {}", self.rows.join(", "))
    }
}

/// One benchmark, with what all of its rows share.
pub(crate) struct Bench {
    pub(crate) options: Options,
    pub(crate) clock: Rc<Reactor>,
    out: File,
    raw: PathBuf,
    plan: &'static Plan,
    rows: Vec<Row>,
}

impl Bench {
    /// Runs `body`, which measures the rows, and prints the table; false if any row was missed.
    ///
    /// # Errors
    /// If the bench itself cannot work: no ring, no directory, no row of a name that was asked for.
    pub(crate) fn run(
        options: &Options,
        plan: &'static Plan,
        body: impl FnOnce(&mut Bench) -> Result<()>,
    ) -> Result<bool> {
        std::fs::create_dir_all(&options.dir)
            .map_err(|e| format!("making {}: {e}", options.dir.display()))?;
        if let Some(unknown) = options.rows.iter().find(|row| !plan.rows.contains(&row.as_str())) {
            let rows = plan.rows.join(", ");
            return Err(format!("there is no row \"{unknown}\"; rows are {rows}"));
        }
        let raw = options.out.clone().unwrap_or_else(|| options.dir.join("results.jsonl"));
        let out = File::options().create(true).append(true).open(&raw);
        let out = out.map_err(|e| format!("opening {}: {e}", raw.display()))?;
        let clock = Reactor::new(Config::default()).map_err(|e| format!("{e}; {}", e.hint()))?;
        let options = options.clone();
        let mut bench = Bench { options, clock, out, raw, plan, rows: Vec::new() };
        let started = bench.clock.now();
        let machine = machine::facts(&bench.options.dir, plan.tools);
        let command = std::env::args().collect::<Vec<_>>();
        bench.keep(&json!({ "machine": machine, "command": command }))?;
        body(&mut bench)?;
        let seconds = (bench.clock.now() - started) / 1_000_000_000;
        verdict::print(&bench.rows, plan.sides);
        println!("\n{machine}");
        println!("took {seconds} s; raw results in {}", bench.raw.display());
        if bench.options.quick {
            println!("--quick: smaller and shorter than what the bars are meant for");
        }
        Ok(bench.rows.iter().all(|row| row.verdict != Verdict::Missed))
    }

    /// Whether any of these rows is to be measured.
    pub(crate) fn wants(&self, names: &[&str]) -> bool {
        let rows = &self.options.rows;
        rows.is_empty() || names.iter().any(|name| rows.iter().any(|row| row == name))
    }

    /// Adds to the raw results.
    pub(crate) fn keep(&mut self, value: &Value) -> Result<()> {
        writeln!(self.out, "{value}").map_err(|e| format!("writing the raw results: {e}"))
    }

    /// Adds a row to the table.
    pub(crate) fn finish(&mut self, row: Row) -> Result<()> {
        eprintln!("  {}: {} {}", row.what, row.ratio, row.verdict.word());
        self.keep(&row.to_json(self.plan.sides))?;
        self.rows.push(row);
        Ok(())
    }

    /// Whether a row that has these values gets one more round.
    pub(crate) fn wants_round(&self, values: &[f64], bar: Bar) -> bool {
        let (first, most) = (self.options.rounds.max(1), self.options.rounds_max);
        values.len() < first || (values.len() < most && !is_decided(values, bar))
    }

    /// Milliseconds of one side of a round.
    pub(crate) fn span_ms(&self) -> u64 {
        if self.options.quick { 700 } else { 2_000 }
    }

    pub(crate) fn sizes(&self) -> Sizes {
        let unit = if self.options.quick { 1 << 28 } else { 1 << 30 };
        let cache = self.options.cache_gib.map_or(4 * unit, |gib| gib << 30);
        Sizes { cache, volume: 2 * unit, written: unit }
    }
}

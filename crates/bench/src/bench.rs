//! What the benchmarks share: their options, the rule of rounds, the raw results and the table.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use clap::Args;
use forebay_device::Runtime;
use forebay_device::real::reactor::{Config, Reactor};
use forebay_device::runtime::{Nanos, SECOND};
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
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    pub(crate) rounds: usize,
    /// Rounds at the most: a row whose bar lies among its rounds gets more.
    #[arg(long, default_value_t = 15)]
    pub(crate) rounds_max: usize,
    /// Smaller sizes and shorter rounds. Rows that this shrinks are never called met.
    #[arg(long)]
    pub(crate) quick: bool,
    /// GiB of the cache file, if not the 4 (with --quick 1) that the bars are meant for. With four
    /// times as much the log does not fill during a row, so nothing is reclaimed.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) cache_gib: Option<u64>,
    /// Where the files are made, in a directory of this run; it is removed at the end.
    #[arg(long, default_value = "/var/tmp/forebay-bench")]
    pub(crate) dir: PathBuf,
    /// File for the raw results, one JSON object per line, appended to; `results.jsonl` beside
    /// that directory if none is named.
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
}

/// Reads a number that must not be 0.
fn at_least_one(text: &str) -> Result<usize> {
    match text.parse() {
        Ok(0) => Err("it takes at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

/// Waits until its input ends, that is for the process at the other end to do so, whatever it dies of, and removes a
/// directory. What that process has started ends with it, maybe a moment later and after making one more file.
const KEEPER: &str =
    r#"trap '' INT TERM HUP; cat >/dev/null; rm -rf -- "$1"; sleep 1; rm -rf -- "$1""#;

/// A directory of this run alone, removed with this, and also if the run is interrupted or killed.
pub(crate) struct Place {
    path: PathBuf,
    keeper: Child,
}

impl Place {
    /// Makes a directory inside of `base`, which is made if it is not there.
    ///
    /// # Errors
    /// What the system says; if there is no sh.
    pub(crate) fn new(base: &Path) -> Result<Self> {
        let failed = |e| format!("making a directory in {}: {e}", base.display());
        std::fs::create_dir_all(base).map_err(failed)?;
        let base = base.canonicalize().map_err(failed)?;
        // Numbers of processes come again, and containers that share a directory have the same ones.
        let names = (0_u32..).map(|n| base.join(format!("run-{}-{n}", std::process::id())));
        let mut made = names.map(|path| std::fs::create_dir(&path).map(|()| path));
        let is_taken = |made: &std::io::Result<PathBuf>| {
            made.as_ref().is_err_and(|e| e.kind() == ErrorKind::AlreadyExists)
        };
        let made = made.find(|made| !is_taken(made)).ok_or("no name is left")?;
        let path = made.map_err(failed)?;
        let mut command = Command::new("sh");
        command.args(["-c", KEEPER, "sh"]).arg(&path).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let keeper = command.spawn().map_err(|e| {
            let _ = std::fs::remove_dir(&path);
            format!("running sh: {e}")
        })?;
        Ok(Self { path, keeper })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Where that fails, for somebody still makes files, it is the keeper's as if this process had ended.
        match std::fs::remove_dir_all(&self.path) {
            Ok(()) => drop(self.keeper.kill()),
            Err(_) => drop(self.keeper.stdin.take()),
        }
        let _ = self.keeper.wait();
    }
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
    started: Nanos,
    _place: Place,
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
        if let Some(unknown) = options.rows.iter().find(|row| !plan.rows.contains(&row.as_str())) {
            let rows = plan.rows.join(", ");
            return Err(format!("there is no row \"{unknown}\"; rows are {rows}"));
        }
        let place = Place::new(&options.dir)?;
        let raw = options.out.clone().unwrap_or_else(|| options.dir.join("results.jsonl"));
        let out = File::options().create(true).append(true).open(&raw);
        let out = out.map_err(|e| format!("opening {}: {e}", raw.display()))?;
        let clock = Reactor::new(Config::default()).map_err(|e| format!("{e}; {}", e.hint()))?;
        let options = Options { dir: place.path().to_owned(), ..options.clone() };
        let (started, rows) = (clock.now(), Vec::new());
        let mut bench = Bench { options, clock, out, raw, plan, rows, started, _place: place };
        let machine = machine::facts(&bench.options.dir, plan.tools);
        let command = std::env::args().collect::<Vec<_>>();
        bench.keep(&json!({ "machine": machine, "command": command }))?;
        body(&mut bench)?;
        let seconds = bench.passed_s();
        verdict::print(&bench.rows, plan.sides);
        println!("\n{machine}");
        println!("took {seconds} s; raw results in {}", bench.raw.display());
        if bench.options.quick {
            println!("--quick: smaller and shorter than what the bars are meant for");
        }
        Ok(bench.rows.iter().all(|row| row.verdict != Verdict::Missed))
    }

    /// Seconds since it began.
    fn passed_s(&self) -> u64 {
        (self.clock.now() - self.started) / SECOND
    }

    /// Says how far it is; `done` loads of `all` are measured.
    pub(crate) fn tell_progress(&self, done: usize, all: usize) {
        let (passed, left) = (self.passed_s(), all.saturating_sub(done) as u64);
        let left_s = passed * left / (done.max(1) as u64);
        eprintln!("{done} of {all} loads after {passed} s, about {left_s} s to go");
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
        let (first, most) = (self.options.rounds, self.options.rounds_max);
        values.len() < first || (values.len() < most && !is_decided(values, bar))
    }

    /// Milliseconds of one side of a round.
    pub(crate) fn span_ms(&self) -> u64 {
        if self.options.quick { 700 } else { 2_000 }
    }

    /// Sizes that the bars are meant for, or smaller ones.
    pub(crate) fn sizes(&self) -> Sizes {
        let unit = if self.options.quick { 1 << 28 } else { 1 << 30 };
        let cache = self.options.cache_gib.map_or(4 * unit, |gib| gib << 30);
        Sizes { cache, volume: 2 * unit, written: unit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rounds_are_refused() {
        assert_eq!(at_least_one("1"), Ok(1));
        assert!(at_least_one("0").is_err());
        assert!(at_least_one("-1").is_err());
    }

    #[test]
    fn a_place_is_removed_with_its_run_and_by_its_keeper() {
        let base = Place::new(&std::env::temp_dir()).expect("a directory");
        let (one, mut two) = (Place::new(base.path()), Place::new(base.path()).expect("another"));
        let one = one.expect("a directory inside");
        assert_ne!(one.path(), two.path());
        let (gone, file) = (one.path().to_owned(), two.path().join("file"));
        drop(one);
        assert!(!gone.exists());
        // What the end of this process does to the pipe.
        std::fs::write(&file, "x").expect("a file");
        drop(two.keeper.stdin.take());
        let ended = two.keeper.wait().expect("the keeper ends");
        assert!(ended.success() && !two.path().exists());
    }
}

//! `forebay-bench instructions`: what fixed engine work costs, against a committed baseline.
//!
//! * Callgrind counts instructions, so neither load nor the kind of machine decides; see
//!   `callgrind::PINNED` for what would.
//! * A figure is the difference of a run and one of twice the length, per operation: what only
//!   happens once cancels.
//! * More than 3 % above the baseline fails. Whoever means it runs it with `--update` and commits the
//!   new baseline with the change.

mod work;

use std::path::{Path, PathBuf};

use clap::Args;

pub(crate) use self::work::Kind;
pub use self::work::{WorkOptions, work};
use crate::bench::Result;
use crate::{callgrind, verdict};

/// How much more than the baseline fails, and how much less asks for a new one.
const TOLERANCE: f64 = 0.03;

/// Operations of the shorter run; the longer has twice as many.
const COUNT: u64 = 1_000;

const HEAD: &str = "\
# Instructions per operation of the engine, devices apart. `make instructions` compares with it,
# `make instructions ARGS=--update` writes it anew.
";

/// What to do with the baseline.
#[derive(Args, Clone, Debug)]
pub struct CheckOptions {
    /// Write the baseline instead of comparing with it.
    #[arg(long)]
    update: bool,
    /// The file of the baseline.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.txt"))]
    baseline: PathBuf,
}

/// How a count compares with the baseline's.
#[derive(Debug, PartialEq)]
enum Change {
    Within,
    Less,
    More,
}

impl Change {
    fn of(count: f64, baseline: f64) -> Self {
        let change = count / baseline - 1.0;
        if change > TOLERANCE {
            Self::More
        } else if change < -TOLERANCE {
            Self::Less
        } else {
            Self::Within
        }
    }
}

/// The function whose name switches the counting on.
pub(crate) const MEASURED: &str = "instructions::work::measured";

/// Callgrind counts inside of `work::measured`, and not inside of `work::device`.
pub(crate) const COUNTED: [&str; 3] = [
    "--collect-atstart=no",
    "--toggle-collect=*instructions::work::measured*",
    "--toggle-collect=*instructions::work::device*",
];

fn counted(kind: Kind, count: u64, out: &Path) -> Result<u64> {
    let args = ["work", kind.name(), "--count", &count.to_string()];
    let mut command = callgrind::command(out, &COUNTED, &args)?;
    let (name, value) = callgrind::PINNED;
    callgrind::count(command.env(name, value))
}

fn per_operation(kind: Kind) -> Result<f64> {
    let out = std::env::temp_dir().join(format!("forebay-callgrind-{}.out", std::process::id()));
    let pair =
        counted(kind, COUNT, &out).and_then(|short| Ok((short, counted(kind, 2 * COUNT, &out)?)));
    let _ = std::fs::remove_file(&out);
    let (short, long) = pair?;
    let more = long.checked_sub(short).filter(|&more| more > 0);
    let more = more.ok_or("twice the work took no more instructions: nothing was counted")?;
    Ok(more as f64 / COUNT as f64)
}

/// The baseline's count of each kind.
fn parse(text: &str) -> Result<Vec<(String, f64)>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entry = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        Some((name.to_owned(), count.trim().parse().ok().filter(|count| *count > 0.0)?))
    };
    lines.map(|line| entry(line).ok_or_else(|| format!("no name and count: \"{line}\""))).collect()
}

/// Compares with the baseline, or writes it; false if anything costs more than it may.
///
/// # Errors
/// If the baseline cannot be read or written, or a run fails.
pub fn check(options: &CheckOptions) -> Result<bool> {
    if !callgrind::is_installed() {
        eprintln!("skipped: valgrind is not installed (Debian: apt-get install valgrind)");
        return Ok(true);
    }
    if !cfg!(target_arch = "x86_64") {
        eprintln!("skipped: the baseline is that of x86-64");
        return Ok(true);
    }
    let path = options.baseline.display();
    if options.update {
        let mut text = HEAD.to_owned();
        for kind in Kind::ALL {
            text += &format!("{} {:.0}\n", kind.name(), per_operation(kind)?);
        }
        std::fs::write(&options.baseline, &text).map_err(|e| format!("writing {path}: {e}"))?;
        print!("{text}");
        return Ok(true);
    }
    let text = std::fs::read_to_string(&options.baseline);
    let baseline = parse(&text.map_err(|e| format!("reading {path}: {e}"))?);
    let baseline = baseline.map_err(|e| format!("{path}: {e}"))?;
    let mut lines = vec![["operation", "baseline", "instructions", ""].map(str::to_owned).to_vec()];
    let mut advice = Vec::new();
    let mut fits = true;
    for kind in Kind::ALL {
        let name = kind.name();
        let known = baseline.iter().find(|(known, _)| known == name);
        let &(_, known) = known.ok_or_else(|| format!("{path} has no \"{name}\"; use --update"))?;
        let count = per_operation(kind)?;
        match Change::of(count, known) {
            Change::Within => (),
            Change::Less => advice.push(format!("note: {name} is cheaper: update the baseline")),
            Change::More => {
                fits = false;
                advice.push(format!("error: {name} costs more than 3 % more than the baseline"));
            }
        }
        let change = format!("{:+.2} %", (count / known - 1.0) * 100.0);
        lines.push(vec![name.to_owned(), format!("{known:.0}"), format!("{count:.1}"), change]);
    }
    verdict::table(&lines);
    advice.iter().for_each(|line| eprintln!("{line}"));
    if !advice.is_empty() {
        eprintln!(
            "hint: if this is meant, run `make instructions ARGS=--update` and commit {path}"
        );
    }
    Ok(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_percent_either_way_is_the_limit() {
        assert_eq!(Change::of(1_029.0, 1_000.0), Change::Within);
        assert_eq!(Change::of(1_031.0, 1_000.0), Change::More);
        assert_eq!(Change::of(971.0, 1_000.0), Change::Within);
        assert_eq!(Change::of(969.0, 1_000.0), Change::Less);
    }

    #[test]
    fn the_committed_baseline_has_every_kind() {
        let text = include_str!("../../instructions.txt");
        let baseline = parse(text).unwrap();
        let names: Vec<&str> = baseline.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, Kind::ALL.map(Kind::name));
        assert!(text.starts_with(HEAD), "the file is what --update writes");
    }

    #[test]
    fn a_baseline_without_counts_is_an_error() {
        assert!(parse("hit").is_err());
        assert!(parse("hit many").is_err());
        assert!(parse("hit 0").is_err());
    }
}

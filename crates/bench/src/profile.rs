//! `forebay-bench profile`: flame graphs of fixed engine work.
//!
//! * Of time, by perf, where it can record; else of instructions, by callgrind.
//! * Only stacks below `work::measured` count, and of the devices' own work nothing: the same as
//!   `forebay-bench instructions` counts.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use inferno::collapse::Collapse;
use inferno::collapse::perf::Folder;
use inferno::flamegraph;

use crate::bench::Result;
use crate::callgrind;
use crate::instructions::{COUNTED, Kind, MEASURED};

/// What is drawn, and how often perf watches it: a second or so, for thousands of samples.
const DRAWN: [(Kind, u64); 3] =
    [(Kind::Hit, 2_000_000), (Kind::Write, 100_000), (Kind::Destage, 200_000)];

/// Operations under callgrind, which misses none.
const COUNT_CALLGRIND: u64 = 2_000;

/// Frames that callgrind keeps apart; the engine's futures go about 40 deep.
const DEPTH: &str = "--separate-callers=80";

/// Where the graphs go, and what draws them.
#[derive(Args, Clone, Debug)]
pub struct ProfileOptions {
    /// Directory for the graphs and the folded stacks behind them.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/profile"))]
    dir: PathBuf,
    /// Count instructions even if perf could record.
    #[arg(long)]
    callgrind: bool,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Stacks, outermost frame first, and what they cost.
type Folded = BTreeMap<String, u64>;

/// Adds a stack if it is one of the measured work, from there on.
fn add<'a>(folded: &mut Folded, frames: impl Iterator<Item = &'a str>, cost: u64) {
    let mut frames = frames.skip_while(|frame| !frame.contains(MEASURED)).peekable();
    if frames.peek().is_none() {
        return;
    }
    // A semicolon parts frames in folded stacks, and the halves of `[u8; 4]` in names.
    let frames: Vec<String> = frames.map(|frame| frame.replace(';', ",")).collect();
    // A copy that ends the device's function leaves only the caller of that on the stack.
    let caller = frames.iter().nth_back(1);
    let is_device = frames.iter().any(|frame| frame.contains("instructions::work::device"))
        || caller.is_some_and(|caller| caller.contains("instructions::work::Memory"));
    if !is_device {
        *folded.entry(frames.join(";")).or_default() += cost;
    }
}

/// Reads what callgrind wrote with callers kept apart: a function's name is its whole stack.
fn fold_callgrind(text: &str) -> Folded {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut folded = Folded::new();
    let (mut function, mut is_call) = ("", false);
    for line in text.lines() {
        if let Some((key @ ("fn" | "cfn"), value)) = line.split_once('=') {
            let (id, name) = value.split_once(' ').unwrap_or((value, ""));
            if !name.is_empty() {
                names.insert(id, name);
            }
            if key == "fn" {
                function = id;
            }
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            // The line after `calls=` is what the callee cost.
            let cost = line.split_whitespace().nth(1).and_then(|cost| cost.parse().ok());
            if let (false, Some(name), Some(cost)) = (is_call, names.get(function), cost) {
                add(&mut folded, name.rsplit('\''), cost);
            }
            is_call = false;
        }
    }
    folded
}

fn by_callgrind(kind: Kind, dir: &Path) -> Result<Folded> {
    let out = dir.join(format!("{}.callgrind", kind.name()));
    let args = ["work", kind.name(), "--count", &COUNT_CALLGRIND.to_string()];
    let options = [&COUNTED[..], &[DEPTH]].concat();
    let mut command = callgrind::command(&out, &options, &args)?;
    let (name, value) = callgrind::PINNED;
    callgrind::count(command.env(name, value))?;
    Ok(fold_callgrind(&std::fs::read_to_string(&out).map_err(text)?))
}

/// Records with perf; an error if there is none, or it may not.
fn by_perf(kind: Kind, count: u64, dir: &Path) -> Result<Folded> {
    let data = dir.join(format!("{}.perf", kind.name()));
    let program = std::env::current_exe().map_err(text)?;
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-F", "1999", "--call-graph", "dwarf,16384", "-o"]).arg(&data);
    record.arg(program).args(["work", kind.name(), "--count", &count.to_string()]);
    let output = record.stdin(Stdio::null()).output().map_err(|e| format!("perf: {e}"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!("perf record failed: {reason}"));
    }
    let mut script = Command::new("perf");
    script.args(["script", "--no-inline", "-i"]).arg(&data).stderr(Stdio::null());
    let output = script.output().map_err(text)?;
    // Hundreds of MB of copied stacks.
    let _ = std::fs::remove_file(&data);
    let mut lines = Vec::new();
    Folder::default().collapse(&output.stdout[..], &mut lines).map_err(text)?;
    let mut folded = Folded::new();
    for line in String::from_utf8_lossy(&lines).lines() {
        if let Some((stack, count)) = line.rsplit_once(' ') {
            add(&mut folded, stack.split(';'), count.parse().unwrap_or(0));
        }
    }
    Ok(folded)
}

fn draw(kind: Kind, folded: &Folded, unit: &str, dir: &Path) -> Result<PathBuf> {
    if folded.is_empty() {
        return Err(format!("no stack of {} was recorded", kind.name()));
    }
    let lines: Vec<String> = folded.iter().map(|(stack, cost)| format!("{stack} {cost}")).collect();
    let stacks = dir.join(format!("{}.folded", kind.name()));
    let mut file = File::create(&stacks).map_err(text)?;
    file.write_all((lines.join("\n") + "\n").as_bytes()).map_err(text)?;
    let graph = dir.join(format!("{}.svg", kind.name()));
    let mut options = flamegraph::Options::default();
    options.title = format!("Forebay: {}", kind.name());
    options.count_name = unit.to_owned();
    let file = File::create(&graph).map_err(text)?;
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), file).map_err(text)?;
    Ok(graph)
}

/// Draws a graph for each kind of work and prints where it is.
///
/// # Errors
/// If neither perf nor callgrind works, or a file cannot be written.
pub fn run(options: &ProfileOptions) -> Result<()> {
    std::fs::create_dir_all(&options.dir).map_err(text)?;
    let dir = options.dir.canonicalize().map_err(text)?;
    for (kind, count) in DRAWN {
        let recorded = if options.callgrind {
            Err("not asked for".into())
        } else {
            by_perf(kind, count, &dir)
        };
        let (folded, unit) = match recorded {
            Ok(folded) if !folded.is_empty() => (folded, "samples"),
            Ok(_) => (by_callgrind(kind, &dir)?, "instructions"),
            Err(reason) => {
                eprintln!("{}: callgrind instead of perf ({reason})", kind.name());
                (by_callgrind(kind, &dir)?, "instructions")
            }
        };
        println!("{}", draw(kind, &folded, unit, &dir)?.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrind_stacks_are_folded_from_the_measured_work_on() {
        let text = "\
events: Ir
fn=(1) leaf'[u8; 4]'x::instructions::work::measured'main
12 5
+1 7
calls=1 40
* 1000
fn=(2) copy'x::instructions::work::device'x::instructions::work::measured'main
1 9
fn=(5) copy'<x::instructions::work::Memory>::submit'x::instructions::work::measured'main
1 6
cfn=(3) late'x::instructions::work::measured'main
calls=1 3
2 11
fn=(3)
3 2
fn=(4) main
1 100
";
        let expected = [
            ("x::instructions::work::measured;[u8, 4];leaf".to_owned(), 12),
            ("x::instructions::work::measured;late".to_owned(), 2),
        ];
        assert_eq!(fold_callgrind(text), Folded::from(expected));
    }
}

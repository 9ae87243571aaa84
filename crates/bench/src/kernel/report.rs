//! From what the guest has told to rows of the table.

use super::cases;
use super::engines::{BARE, NAMES};
use super::uml::Said;
use crate::verdict::{Bar, Row, median, rate};

/// What the tables do not have, and why.
pub(super) const NOT_MEASURED: &str = "not measured: the start after a kill (a kernel's cache dies with its kernel, and these slow disks with it)";

/// A row of the table: a figure of a load.
struct Shown {
    row: &'static str,
    what: String,
    key: &'static str,
    kind: Kind,
    bar: Option<Bar>,
}

/// What kind of figure it is.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Of which more is better; shown beside the bare SSD's.
    Rate,
    /// Of which less is better, with its unit.
    Cost(&'static str),
}

fn shown() -> Vec<Shown> {
    let mut shown = Vec::new();
    for case in cases::hot() {
        let bar = case.job.sync.then_some(Bar::AtLeast(2.0));
        let what = case.what.to_owned();
        shown.push(Shown { row: case.name, what, key: "rate", kind: Kind::Rate, bar });
    }
    let mut cost = |row, what: &str, key, unit| {
        let what = what.to_owned();
        shown.push(Shown { row, what, key, kind: Kind::Cost(unit), bar: None });
    };
    cost("read", "CPU for a hit, client included", "cpu", " us");
    cost("write", "CPU for a write, client included", "cpu", " us");
    cost("flush1", "CPU for a durable write, client included", "cpu", " us");
    cost("write", "SSD bytes for a client's byte, 4K writes", "ssd", "");
    cost("flush1", "SSD bytes for a client's byte, durable", "ssd", "");
    cost("", "RAM for a GiB of cache", "ram", " MiB");
    shown
}

/// One figure of all rounds.
fn values(said: &Said, shown: &Shown, side: usize) -> Vec<f64> {
    let rounds = said.figures.get(&(shown.row.to_owned(), side));
    rounds.into_iter().flatten().filter_map(|round| round.get(shown.key).copied()).collect()
}

/// Our figure beside that of the best of the kernel's, round by round.
fn to_best(sides: &[Vec<f64>], kind: Kind) -> Vec<f64> {
    let better = |a: f64, b: f64| if kind == Kind::Rate { a.max(b) } else { a.min(b) };
    let best = |round: usize| {
        let peers = sides[1..BARE].iter().filter_map(|side| side.get(round).copied());
        peers.reduce(better)
    };
    let rounds = sides[0].iter().enumerate();
    rounds.filter_map(|(round, ours)| Some(ours / best(round)?)).filter(|v| v.is_finite()).collect()
}

fn figure(sides: &[Vec<f64>], side: usize, kind: Kind) -> String {
    if sides[side].is_empty() {
        return "-".to_owned();
    }
    let middle = median(&sides[side]);
    match kind {
        Kind::Rate if side == BARE => rate(middle),
        Kind::Rate => {
            let rounds = sides[side].iter().zip(&sides[BARE]);
            let to_bare: Vec<f64> = rounds.map(|(own, bare)| own / bare).collect();
            format!("{} ({:.2})", rate(middle), median(&to_bare))
        }
        Kind::Cost(unit) => format!("{middle:.1}{unit}"),
    }
}

fn row(said: &Said, shown: &Shown, quick: bool) -> Row {
    let name = if shown.row.is_empty() { "ram" } else { shown.row };
    // A row without a bar is one that ours must have.
    let bar = shown.bar.unwrap_or(Bar::AtLeast(f64::NEG_INFINITY));
    let sides: Vec<Vec<f64>> = (0..NAMES.len()).map(|side| values(said, shown, side)).collect();
    let reason = |side| {
        let of = |row: &str| said.missing.get(&(row.to_owned(), side));
        of("").or_else(|| of(shown.row))
    };
    let ratios = to_best(&sides, shown.kind);
    let mut row = if sides[0].is_empty() || ratios.is_empty() {
        let reason = reason(0).map_or("no cache of the kernel's to compare with", String::as_str);
        Row::failed(name, &shown.what, bar, reason)
    } else {
        Row::judged(name, &shown.what, &ratios, bar, "", quick)
    };
    if shown.bar.is_none() {
        row.bar = "none".into();
    }
    row.figures = (0..NAMES.len()).map(|side| figure(&sides, side, shown.kind)).collect();
    let missing = (1..NAMES.len()).filter_map(|side| Some((side, reason(side)?)));
    let missing = missing.map(|(side, reason)| format!("{} did not run: {reason}", NAMES[side]));
    let mut notes: Vec<String> = missing.collect();
    let origin = Shown { key: "origin_reads", what: String::new(), ..*shown };
    for (side, name) in NAMES.iter().enumerate().take(BARE) {
        let reads = median(&values(said, &origin, side));
        if shown.key == "rate" && reads > 0.001 {
            notes.push(format!("{name}: {:.1} % of requests read the slow disk", reads * 100.0));
        }
    }
    if row.note.is_empty() {
        row.note = notes.join("; ");
    }
    row
}

/// All rows that were wanted.
pub(super) fn rows(said: &Said, quick: bool, wants: &dyn Fn(&str) -> bool) -> Vec<Row> {
    let all = shown();
    let wanted = all.iter().filter(|shown| shown.row.is_empty() || wants(shown.row));
    wanted.map(|shown| row(said, shown, quick)).collect()
}

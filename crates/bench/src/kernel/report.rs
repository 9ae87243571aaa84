//! From what the guest has told to rows of the table.

use super::cases;
use super::engines::{BARE, NAMES};
use super::uml::Said;
use crate::verdict::{Bar, Row, median, rate};

/// What the tables do not have, and why.
pub(super) const NOT_MEASURED: &str = "\
not measured: the others' start after a kill (they die with their kernel, and these slow disks with it);
CPU for a durable write (fio takes longer to start than a round has writes);
anything without User-Mode Linux (it would take root, the modules and disks to give away)";

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
    /// Of which more is better, with its unit.
    Amount(&'static str),
}

fn shown() -> Vec<Shown> {
    let mut shown = Vec::new();
    for case in cases::hot() {
        let bar = case.job.sync.then_some(Bar::AtLeast(2.0));
        let what = case.what.to_owned();
        shown.push(Shown { row: case.name, what, key: "rate", kind: Kind::Rate, bar });
    }
    for (row, what, key) in [
        ("zipf", "4K zipf 1.1 reads of 2 x the cache", "rate"),
        ("overwrite", "4K overwriting, queue 32", "rate"),
        ("overwrite", "its worst second", "worst"),
        ("destage", "4K hits, queue 32, while it writes back", "rate"),
    ] {
        shown.push(Shown { row, what: what.into(), key, kind: Kind::Rate, bar: None });
    }
    let mut cost = |row, what: &str, key, unit| {
        let what = what.to_owned();
        shown.push(Shown { row, what, key, kind: Kind::Cost(unit), bar: None });
    };
    cost("read", "CPU for a hit, with fio and its start", "cpu", " us");
    cost("write", "CPU for a write, with fio and its start", "cpu", " us");
    cost("write", "SSD bytes for a client's byte, 4K writes", "ssd", "");
    cost("flush1", "SSD bytes for a client's byte, durable", "ssd", "");
    cost("overwrite", "overwriting, 99.9 % of the requests", "p999", " ms");
    cost("restart", "end in order, dirty", "stop", " s");
    cost("restart", "start after that", "start", " s");
    cost("restart", "start after a kill", "killed", " s");
    cost("", "RAM for a GiB of cache", "ram", " MiB");
    for (row, what, key, unit) in [
        ("overwrite", "caches overwritten meanwhile", "caches", ""),
        ("destage", "written back meanwhile", "destaged", " MiB/s"),
    ] {
        let kind = Kind::Amount(unit);
        shown.push(Shown { row, what: what.into(), key, kind, bar: None });
    }
    shown
}

/// One figure of all rounds.
fn values(said: &Said, shown: &Shown, side: usize) -> Vec<f64> {
    let rounds = said.figures.get(&(shown.row.to_owned(), side));
    rounds.into_iter().flatten().filter_map(|round| round.get(shown.key).copied()).collect()
}

/// Our figure beside that of the best of the kernel's, round by round.
fn to_best(sides: &[Vec<f64>], kind: Kind) -> Vec<f64> {
    let better = |a: f64, b: f64| if matches!(kind, Kind::Cost(_)) { a.min(b) } else { a.max(b) };
    let best = |round: usize| {
        let peers = sides[1..BARE].iter().filter_map(|side| side.get(round).copied());
        peers.reduce(better)
    };
    let rounds = sides[0].iter().enumerate();
    // What is too small to be told from noise is nothing to compare with.
    let best = |round| best(round).filter(|&best| best > 0.0);
    rounds.filter_map(|(round, ours)| Some(ours / best(round)?)).collect()
}

fn figure(sides: &[Vec<f64>], side: usize, kind: Kind) -> String {
    if sides[side].is_empty() {
        return "-".to_owned();
    }
    let middle = median(&sides[side]);
    match kind {
        Kind::Rate if side == BARE || sides[BARE].is_empty() => rate(middle),
        Kind::Rate => {
            let rounds = sides[side].iter().zip(&sides[BARE]);
            let to_bare: Vec<f64> = rounds.map(|(own, bare)| own / bare).collect();
            format!("{} ({:.2})", rate(middle), median(&to_bare))
        }
        Kind::Cost(unit) | Kind::Amount(unit) => format!("{middle:.1}{unit}"),
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
    let is_alone = ratios.is_empty() && shown.bar.is_none();
    let mut row = if is_alone && !sides[0].is_empty() {
        let own = Row::judged(name, &shown.what, &sides[0], bar, "", quick);
        Row { ratio: "-".into(), ..own }
    } else if sides[0].is_empty() || ratios.is_empty() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::protocol::Line;
    use crate::verdict::Verdict;

    fn said(lines: &[&str]) -> Said {
        let mut said = Said::default();
        for line in lines {
            assert!(!said.add(Line::parse(line).expect("a line")));
        }
        said
    }

    fn flush1(said: &Said) -> Row {
        rows(said, false, &|name| name == "flush1").remove(0)
    }

    const OURS: &str = r#"@@{"row":"flush1","side":0,"values":{"rate":3000}}"#;
    const BARE_SSD: &str = r#"@@{"row":"flush1","side":4,"values":{"rate":2000}}"#;

    #[test]
    fn the_best_of_the_others_counts() {
        let row = flush1(&said(&[
            OURS,
            r#"@@{"row":"flush1","side":1,"values":{"rate":500}}"#,
            r#"@@{"row":"flush1","side":3,"values":{"rate":1200,"origin_reads":0.5}}"#,
            BARE_SSD,
        ]));
        assert_eq!((row.ratio.as_str(), row.verdict), ("2.50", Verdict::Met));
        assert_eq!(row.figures[..3], ["3000/s (1.50)", "500/s (0.25)", "-"].map(str::to_owned));
        assert_eq!(row.note, "dm-writecache: 50.0 % of requests read the slow disk");
    }

    #[test]
    fn a_row_without_ours_is_missed_and_says_why() {
        let peer = r#"@@{"row":"flush1","side":1,"values":{"rate":500}}"#;
        let reason = r#"@@{"row":"","side":0,"missing":"starting: no nbd"}"#;
        let row = flush1(&said(&[peer, reason, BARE_SSD]));
        assert_eq!(row.verdict, Verdict::Missed);
        assert_eq!(row.note, "did not run: starting: no nbd");
    }

    #[test]
    fn what_only_ours_has_is_shown_without_a_ratio() {
        let said = said(&[r#"@@{"row":"restart","side":0,"values":{"killed":0.7}}"#]);
        let rows = rows(&said, false, &|name| name == "restart");
        let row = rows.iter().find(|row| row.what.contains("kill")).expect("a row");
        assert_eq!((row.ratio.as_str(), row.verdict), ("-", Verdict::Met));
    }

    #[test]
    fn a_row_without_another_cache_is_no_comparison() {
        let row = flush1(&said(&[OURS, BARE_SSD]));
        assert_eq!(row.verdict, Verdict::Missed);
    }
}

//! From what several sides came to, to rows of a table: the best of the others is what ours is compared with, round by
//! round, and rates stand beside those of the bare SSD.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::verdict::{Bar, Row, Verdict, median, rate};

/// Figures of one side in one round, by their keys.
pub(crate) type Values = BTreeMap<String, f64>;

/// Figures of one side in one round.
pub(crate) fn values<const N: usize>(values: [(&str, f64); N]) -> Values {
    values.map(|(key, value)| (key.to_owned(), value)).into()
}

/// What all sides came to.
#[derive(Default)]
pub(crate) struct Told {
    /// By row and side, one for each round; those of set-up are under the empty name.
    pub figures: BTreeMap<(String, usize), Vec<Values>>,
    /// Why a side has no figures in a row, or (under the empty name) in none.
    pub missing: BTreeMap<(String, usize), String>,
}

/// Whose figures stand beside each other.
pub(crate) struct Sides {
    pub names: &'static [&'static str],
    /// The one that no row may be without.
    pub ours: usize,
    /// Those that it is compared with.
    pub peers: Range<usize>,
    /// No cache, but the SSD itself.
    pub bare: usize,
}

/// A row of the table: a figure of a load.
pub(crate) struct Shown {
    /// The load; what was found when it was set up has the empty name.
    pub row: &'static str,
    pub what: String,
    pub key: &'static str,
    pub kind: Kind,
    pub bar: Bar,
    /// Which side is ours in this row, if another one than in the rest.
    pub ours: Option<usize>,
}

/// What kind of figure it is.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// Of which more is better; shown beside the bare SSD's.
    Rate,
    /// Of which less is better, with its unit.
    Cost(&'static str),
    /// Of which more is better, with its unit.
    Amount(&'static str),
}

impl Shown {
    /// A rate under the key `rate`.
    pub(crate) fn rate(row: &'static str, what: &str, bar: Bar) -> Self {
        Self { row, what: what.to_owned(), key: "rate", kind: Kind::Rate, bar, ours: None }
    }

    /// A figure without a bar.
    pub(crate) fn other(row: &'static str, what: &str, key: &'static str, kind: Kind) -> Self {
        Self { row, what: what.to_owned(), key, kind, bar: Bar::None, ours: None }
    }
}

impl Told {
    /// What a side came to in one more round.
    pub(crate) fn add(&mut self, row: &str, side: usize, values: Values) {
        self.figures.entry((row.to_owned(), side)).or_default().push(values);
    }

    /// A side has no figures in a row, for the first reason that was given. What it had is forgotten: rounds are
    /// compared by their numbers.
    pub(crate) fn miss(&mut self, row: &str, side: usize, reason: &str) {
        self.figures.remove(&(row.to_owned(), side));
        self.missing.entry((row.to_owned(), side)).or_insert(reason.to_owned());
    }

    pub(crate) fn is_missing(&self, row: &str, side: usize) -> bool {
        self.reason(row, side).is_some()
    }

    /// One figure of all rounds.
    fn values(&self, row: &str, key: &str, side: usize) -> Vec<f64> {
        let rounds = self.figures.get(&(row.to_owned(), side));
        rounds.into_iter().flatten().filter_map(|round| round.get(key).copied()).collect()
    }

    fn reason(&self, row: &str, side: usize) -> Option<&str> {
        let of = |row: &str| self.missing.get(&(row.to_owned(), side));
        of("").or_else(|| of(row)).map(String::as_str)
    }
}

impl Sides {
    fn all(&self, told: &Told, row: &str, key: &str) -> Vec<Vec<f64>> {
        (0..self.names.len()).map(|side| told.values(row, key, side)).collect()
    }

    /// Our figure beside that of the best of the others, round by round.
    pub(crate) fn to_best(&self, told: &Told, shown: &Shown) -> Vec<f64> {
        let sides = self.all(told, shown.row, shown.key);
        let is_cost = matches!(shown.kind, Kind::Cost(_));
        let better = |a: f64, b: f64| if is_cost { a.min(b) } else { a.max(b) };
        let best = |round: usize| {
            let peers = sides[self.peers.clone()].iter().filter_map(|side| side.get(round));
            peers.copied().reduce(better)
        };
        let rounds = sides[self.ours_in(shown)].iter().enumerate();
        let ratio = |(round, &ours): (usize, &f64)| match best(round)? {
            best if best > 0.0 => Some(ours / best),
            // What is too small to be told from noise is nothing to compare with.
            _ if is_cost => None,
            // Nobody got anything done in that time; or we alone.
            _ if ours > 0.0 => Some(f64::INFINITY),
            _ => Some(1.0),
        };
        rounds.filter_map(ratio).collect()
    }

    fn ours_in(&self, shown: &Shown) -> usize {
        shown.ours.unwrap_or(self.ours)
    }

    fn figure(&self, sides: &[Vec<f64>], side: usize, kind: Kind) -> String {
        if sides[side].is_empty() {
            return "-".to_owned();
        }
        let middle = median(&sides[side]);
        match kind {
            Kind::Rate if side == self.bare || sides[self.bare].is_empty() => rate(middle),
            Kind::Rate => {
                let rounds =
                    sides[side].iter().zip(&sides[self.bare]).filter(|(_, bare)| **bare > 0.0);
                let to_bare: Vec<f64> = rounds.map(|(own, bare)| own / bare).collect();
                format!("{} ({:.2})", rate(middle), median(&to_bare))
            }
            Kind::Cost(unit) | Kind::Amount(unit) => format!("{middle:.1}{unit}"),
        }
    }

    /// A row of the table; `quick` if it was shrunk.
    pub(crate) fn row(&self, told: &Told, shown: &Shown, quick: bool) -> Row {
        let name = if shown.row.is_empty() { "ram" } else { shown.row };
        let sides = self.all(told, shown.row, shown.key);
        let ours = self.ours_in(shown);
        let (own, ratios) = (&sides[ours], self.to_best(told, shown));
        let is_alone = ratios.is_empty() && matches!(shown.bar, Bar::None);
        let mut row = if is_alone && !own.is_empty() {
            let own = Row::judged(name, &shown.what, own, shown.bar, "", quick);
            Row { ratio: "-".into(), ..own }
        } else if own.is_empty() || ratios.is_empty() {
            let none = "no other cache to compare with";
            let reason = told.reason(shown.row, ours).unwrap_or(none);
            Row::failed(name, &shown.what, shown.bar, reason)
        } else {
            let row = Row::judged(name, &shown.what, &ratios, shown.bar, "", quick);
            // Better than those that ran is not better than the one that did not.
            let has_failed = |side| told.is_missing(shown.row, side);
            match row.verdict {
                Verdict::Met if self.peers.clone().any(has_failed) => {
                    Row { verdict: Verdict::Unclear, ..row }
                }
                _ => row,
            }
        };
        let names = 0..self.names.len();
        row.figures = names.map(|side| self.figure(&sides, side, shown.kind)).collect();
        if row.note.is_empty() {
            row.note = self.notes(told, shown).join("; ");
        }
        row
    }

    /// Who did not run, and whose hits were none.
    fn notes(&self, told: &Told, shown: &Shown) -> Vec<String> {
        let mut notes = Vec::new();
        for (side, name) in self.names.iter().enumerate() {
            if let Some(reason) =
                told.reason(shown.row, side).filter(|_| side != self.ours_in(shown))
            {
                notes.push(format!("{name} did not run: {reason}"));
            }
            let Some(of) = shown.key.strip_prefix("rate") else { continue };
            let reads = median(&told.values(shown.row, &format!("origin_reads{of}"), side));
            if reads > 0.001 {
                let percent = reads * 100.0;
                notes.push(format!("{name}: {percent:.1} % of requests read the slow disk"));
            }
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDES: Sides =
        Sides { names: &["a", "ours", "peer", "bare"], ours: 1, peers: 2..3, bare: 3 };

    fn told(ours: f64, peer: f64) -> Told {
        let mut told = Told::default();
        for (side, value) in [(1, ours), (2, peer), (3, 10.0)] {
            told.add("restart", side, values([("rate_stop", value), ("origin_reads_stop", 0.5)]));
        }
        told
    }

    fn shown(kind: Kind, bar: Bar) -> Shown {
        let row = Shown::rate("restart", "first reads", bar);
        Shown { key: "rate_stop", kind, ..row }
    }

    #[test]
    fn a_cost_is_judged_by_what_is_less() {
        let cost = |ours| {
            let shown = shown(Kind::Cost(" ms"), Bar::AtMost(1.0));
            SIDES.row(&told(ours, 4.0), &shown, false).verdict
        };
        assert_eq!((cost(2.0), cost(8.0)), (Verdict::Met, Verdict::Missed));
    }

    #[test]
    fn better_than_those_that_ran_is_not_better_than_who_did_not() {
        let sides = Sides { peers: 2..4, bare: 0, ..SIDES };
        let row = |told: &Told| sides.row(told, &shown(Kind::Rate, Bar::AtLeast(1.0)), false);
        let mut told = told(20.0, 10.0);
        assert_eq!(row(&told).verdict, Verdict::Met);
        told.miss("restart", 3, "it does not start");
        assert_eq!(row(&told).verdict, Verdict::Unclear);
        told.miss("restart", 2, "nor does this one");
        assert_eq!(row(&told).verdict, Verdict::Missed);
    }

    #[test]
    fn who_gets_nothing_done_is_not_left_out() {
        let rate = |ours, peer| {
            let shown = shown(Kind::Rate, Bar::AtLeast(1.0));
            SIDES.row(&told(ours, peer), &shown, false).verdict
        };
        assert_eq!((rate(5.0, 0.0), rate(0.0, 5.0)), (Verdict::Met, Verdict::Missed));
    }

    #[test]
    fn a_row_may_have_another_side_of_ours() {
        let mut told = told(20.0, 10.0);
        told.add("restart", 0, values([("rate_stop", 5.0)]));
        let shown = Shown { ours: Some(0), ..shown(Kind::Rate, Bar::AtLeast(1.0)) };
        assert_eq!(SIDES.to_best(&told, &shown), [0.5]);
    }

    #[test]
    fn who_failed_once_has_no_figures_and_says_why() {
        let mut told = told(20.0, 10.0);
        told.miss("restart", 2, "it does not start");
        told.miss("restart", 2, "later");
        let row = SIDES.row(&told, &shown(Kind::Rate, Bar::None), false);
        assert_eq!((row.ratio.as_str(), row.figures[2].as_str()), ("-", "-"));
        assert!(row.note.contains("peer did not run: it does not start"), "{}", row.note);
        assert!(row.note.contains("ours: 50.0 % of requests read the slow disk"), "{}", row.note);
        told.miss("restart", 1, "no server");
        let row = SIDES.row(&told, &shown(Kind::Rate, Bar::None), false);
        assert_eq!((row.verdict, row.note.as_str()), (Verdict::Missed, "did not run: no server"));
    }
}

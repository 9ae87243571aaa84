//! From rounds to a verdict.

use serde_json::{Value, json};

/// What a row comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The bar is cleared.
    Met,
    /// It is not, or the row could not run.
    Missed,
    /// The bar lies among the rounds.
    Unclear,
    /// Cleared, but at a smaller size than the bar is meant for.
    Shrunk,
    /// There is no bar.
    Shown,
}

impl Verdict {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::Unclear => "unclear",
            Self::Shrunk => "(small)",
            Self::Shown => "-",
        }
    }
}

/// What a figure must be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    AtLeast(f64),
    AtMost(f64),
    /// Anything, as long as there is one.
    None,
}

impl Bar {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bar) => value >= bar,
            Self::AtMost(bar) => value <= bar,
            Self::None => true,
        }
    }

    fn text(self, unit: &str) -> String {
        match self {
            Self::AtLeast(bar) => format!(">= {bar}{unit}"),
            Self::AtMost(bar) => format!("<= {bar}{unit}"),
            Self::None => "none".to_owned(),
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub name: &'static str,
    pub what: String,
    /// One for each side of the benchmark, or none.
    pub figures: Vec<String>,
    pub ratio: String,
    pub bar: String,
    pub verdict: Verdict,
    pub note: String,
}

impl Row {
    /// A row that could not run.
    pub(crate) fn failed(name: &'static str, what: &str, bar: Bar, reason: &str) -> Self {
        Self {
            name,
            what: what.to_owned(),
            figures: Vec::new(),
            ratio: "-".into(),
            bar: bar.text(""),
            verdict: Verdict::Missed,
            note: format!("did not run: {reason}"),
        }
    }

    /// A row of repeated measurements of one figure.
    pub(crate) fn judged(
        name: &'static str,
        what: &str,
        values: &[f64],
        bar: Bar,
        unit: &str,
        shrunk: bool,
    ) -> Self {
        let (low, high) = ends(values);
        let digits = if high >= 100.0 { 0 } else { 2 };
        let ratio = if values.len() == 1 {
            format!("{:.digits$}{unit}", values[0])
        } else {
            format!("{:.digits$} {low:.digits$}..{high:.digits$}{unit}", median(values))
        };
        Self {
            name,
            what: what.to_owned(),
            figures: Vec::new(),
            ratio,
            bar: bar.text(unit),
            verdict: judge(values, bar, shrunk),
            note: String::new(),
        }
    }

    pub(crate) fn to_json(&self, sides: &[&str]) -> Value {
        let mut value = json!({
            "row": self.name, "what": self.what, "ratio": self.ratio, "bar": self.bar,
            "verdict": self.verdict.word(), "note": self.note,
        });
        for (side, figure) in sides.iter().zip(&self.figures) {
            value[*side] = json!(figure);
        }
        value
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

fn ends(values: &[f64]) -> (f64, f64) {
    let values = sorted(values);
    (values.first().copied().unwrap_or(0.0), values.last().copied().unwrap_or(0.0))
}

/// The middle of the values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let values = sorted(values);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// Whether the bar lies outside of what the values span, so that they agree on which side.
pub(crate) fn is_decided(values: &[f64], bar: Bar) -> bool {
    if values.is_empty() {
        return false;
    }
    let (low, high) = ends(values);
    bar.holds(low) == bar.holds(high)
}

fn judge(values: &[f64], bar: Bar, shrunk: bool) -> Verdict {
    if matches!(bar, Bar::None) {
        return Verdict::Shown;
    }
    match (is_decided(values, bar), bar.holds(median(values))) {
        (false, _) => Verdict::Unclear,
        (true, false) => Verdict::Missed,
        (true, true) if shrunk => Verdict::Shrunk,
        (true, true) => Verdict::Met,
    }
}

/// A rate with a fitting unit.
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        r if r >= 10_000.0 => format!("{:.1}K/s", r / 1_000.0),
        r => format!("{r:.0}/s"),
    }
}

/// Prints lines of equal length to stdout, the first one as their head.
pub(crate) fn table(lines: &[Vec<String>]) {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |i: usize| lines.iter().map(|line| line[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for (number, line) in lines.iter().enumerate() {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, &w)| format!("{cell:w$}")).collect();
        println!("| {} |", cells.join(" | "));
        if number == 0 {
            let rule: Vec<String> = widths.iter().map(|&w| "-".repeat(w)).collect();
            println!("| {} |", rule.join(" | "));
        }
    }
}

/// Prints the table to stdout; `sides` are the heads of the figures.
pub(crate) fn print(rows: &[Row], sides: &[&str]) {
    let head = [&["what"], sides, &["ratio: median min..max", "bar", "verdict"]].concat();
    let mut lines: Vec<Vec<String>> = vec![head.iter().map(|&cell| cell.to_owned()).collect()];
    for row in rows {
        let mut figures = row.figures.clone();
        figures.resize(sides.len(), String::new());
        let verdict = row.verdict.word().to_owned();
        let rest = [row.ratio.clone(), row.bar.clone(), verdict];
        lines.push([vec![row.what.clone()], figures, rest.to_vec()].concat());
    }
    table(&lines);
    for row in rows.iter().filter(|row| !row.note.is_empty()) {
        println!("{}: {}", row.what, row.note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_round_beyond_the_bar_decides_against_a_verdict() {
        let values: Vec<f64> = (1..=15).map(f64::from).collect();
        assert_eq!(median(&values), 8.0);
        assert!(!is_decided(&values, Bar::AtLeast(2.0)));
        assert!(!is_decided(&values, Bar::AtMost(14.0)));
        assert!(is_decided(&values, Bar::AtLeast(1.0)));
        assert!(is_decided(&values, Bar::AtLeast(15.5)));
        assert!(!is_decided(&[], Bar::AtLeast(1.0)), "no round, no verdict");
    }

    #[test]
    fn a_bar_among_the_rounds_leaves_it_unclear() {
        let values = [0.9, 1.0, 1.1, 1.2, 1.3];
        assert_eq!(judge(&values, Bar::AtLeast(1.05), false), Verdict::Unclear);
        assert_eq!(judge(&values, Bar::AtLeast(0.9), false), Verdict::Met);
        assert_eq!(judge(&values, Bar::AtLeast(0.9), true), Verdict::Shrunk);
        assert_eq!(judge(&values, Bar::AtMost(0.5), false), Verdict::Missed);
    }

    #[test]
    fn without_a_bar_only_a_row_that_did_not_run_is_missed() {
        assert_eq!(
            Row::judged("ram", "RAM", &[0.1, 9.0], Bar::None, "", true).verdict,
            Verdict::Shown
        );
        let failed = Row::failed("ram", "RAM", Bar::None, "no server");
        assert_eq!((failed.verdict, failed.bar.as_str()), (Verdict::Missed, "none"));
    }
}

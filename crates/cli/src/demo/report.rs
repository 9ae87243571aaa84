//! The table at the end: what was measured, side by side.

use std::fmt::Write;

use forebay_control::api::SCHEMA;
use serde_json::{Value, json};

use super::load::{Figures, Histogram};
use crate::text;

/// How reads were served, from the engine's counters.
#[derive(Clone, Copy, Default)]
pub(crate) struct Hits {
    /// From the cache alone.
    pub(crate) hits: u64,
    /// All reads.
    pub(crate) all: u64,
}

impl Hits {
    /// What was counted after `before`.
    pub(crate) fn since(self, before: Hits) -> Hits {
        Hits { hits: self.hits - before.hits, all: self.all - before.all }
    }

    /// The share of hits; `None` without reads.
    pub(crate) fn ratio(self) -> Option<f64> {
        (self.all > 0).then(|| self.hits as f64 / self.all as f64)
    }
}

/// A stretch of time and what was measured in it.
pub(crate) struct Row {
    /// What was running.
    pub(crate) name: &'static str,
    /// The workers' figures.
    pub(crate) figures: Figures,
    /// `None` for the origin alone.
    pub(crate) hits: Option<Hits>,
}

fn percentiles(histogram: &Histogram) -> String {
    let part = |percent| histogram.percentile(percent).map_or("-".to_owned(), text::span);
    format!("{:>9} {:>9}", part(50.0), part(99.0))
}

/// A ratio as a percentage that never rounds up to 100.
pub(crate) fn percent(ratio: f64) -> String {
    format!("{:.1} %", (ratio * 1000.0).floor() / 10.0)
}

/// The table; the first row is what the others are compared with.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<14} {:>6} {:>9} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "time", "IOPS", "factor", "read p50", "p99", "write p50", "p99", "read hits"
    );
    let base = rows.first().map_or(0.0, |row| row.figures.iops());
    for (index, row) in rows.iter().enumerate() {
        let iops = row.figures.iops();
        let factor = match index {
            0 => "1".to_owned(),
            _ if base > 0.0 => format!("{:.1}", iops / base),
            _ => "-".to_owned(),
        };
        let hits = row.hits.and_then(Hits::ratio).map_or("-".to_owned(), percent);
        let _ = writeln!(
            out,
            "{:<14} {:>6} {:>9} {:>8} {} {} {:>9}",
            row.name,
            format!("{:.0} s", row.figures.time as f64 / 1e9),
            text::thousands(iops.round() as u64),
            factor,
            percentiles(&row.figures.reads),
            percentiles(&row.figures.writes),
            hits,
        );
    }
    out
}

/// The same for `--json`.
pub(crate) fn measured(rows: &[Row], volume_bytes: u64) -> Value {
    let percentiles = |histogram: &Histogram| {
        let part = |percent| histogram.percentile(percent);
        json!({ "p50_ns": part(50.0), "p99_ns": part(99.0) })
    };
    let row = |row: &Row| {
        json!({
            "name": row.name,
            "time_ns": row.figures.time,
            "iops": row.figures.iops(),
            "read_latency": percentiles(&row.figures.reads),
            "write_latency": percentiles(&row.figures.writes),
            "read_hit_ratio": row.hits.and_then(Hits::ratio),
        })
    };
    let rows: Vec<Value> = rows.iter().map(row).collect();
    json!({ "schema": SCHEMA, "volume_bytes": volume_bytes, "items": rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_compared_with_the_first() {
        let row = |name, time| Row {
            name,
            figures: Figures { time, ..Figures::default() },
            hits: Some(Hits { hits: 9999, all: 10_000 }),
        };
        let table = table(&[row("origin alone", 1), row("warm", 1)]);
        assert_eq!(table.lines().count(), 3);
        assert!(table.contains("99.9 %") && table.lines().all(|line| line.len() <= 100), "{table}");
    }
}

//! The table at the end: what was measured, side by side.

use std::fmt::Write;

use forebay_control::api::SCHEMA;
use serde_json::{Value, json};

use super::load::{Figures, Histogram};
use crate::text::{self, percent};

/// How reads were served, from the engine's counters.
#[derive(Clone, Copy, Default)]
pub(crate) struct Hits {
    /// From the cache alone.
    pub(crate) hits: u64,
    /// Of those, from RAM alone; `None` without a tier there.
    pub(crate) ram: Option<u64>,
    /// All reads.
    pub(crate) all: u64,
}

impl Hits {
    /// What was counted after `before`.
    pub(crate) fn since(self, before: Hits) -> Hits {
        let ram = self.ram.zip(before.ram).map(|(now, before)| now - before);
        Hits { hits: self.hits - before.hits, ram, all: self.all - before.all }
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

impl Row {
    /// The share of reads that RAM served; `None` without a tier there, or without reads.
    pub(crate) fn ram_ratio(&self) -> Option<f64> {
        let hits = self.hits.filter(|hits| hits.all > 0)?;
        Some(hits.ram? as f64 / hits.all as f64)
    }
}

fn percentiles(histogram: &Histogram) -> String {
    let part = |percent| histogram.percentile(percent).map_or("-".to_owned(), text::span);
    format!("{:>9} {:>9}", part(50.0), part(99.0))
}

/// The table; the first row is what the others are compared with.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<14} {:>6} {:>9} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "time", "IOPS", "factor", "read p50", "p99", "write p50", "p99", "read hits"
    );
    // A column that nobody asked for is left out.
    let has_ram = rows.iter().any(|row| row.ram_ratio().is_some());
    if has_ram {
        out.truncate(out.trim_end().len());
        let _ = writeln!(out, " {:>9}", "of RAM");
    }
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
            "{:<14} {:>6} {:>9} {:>8} {} {} {:>9}{}",
            row.name,
            format!("{:.0} s", row.figures.time as f64 / 1e9),
            text::thousands(iops.round() as u64),
            factor,
            percentiles(&row.figures.reads),
            percentiles(&row.figures.writes),
            hits,
            match row.ram_ratio().map(percent) {
                Some(ratio) => format!(" {ratio:>9}"),
                None if has_ram => format!(" {:>9}", "-"),
                None => String::new(),
            },
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
            "read_ram_hit_ratio": row.ram_ratio(),
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
            hits: Some(Hits { hits: 9999, ram: None, all: 10_000 }),
        };
        let text = table(&[row("origin alone", 1), row("warm", 1)]);
        assert_eq!(text.lines().count(), 3);
        assert!(text.contains("99.9 %") && text.lines().all(|line| line.len() == 90), "{text}");
        let hits = Some(Hits { hits: 9999, ram: Some(5000), all: 10_000 });
        let text = table(&[row("origin alone", 1), Row { hits, ..row("warm", 1) }]);
        let ends: Vec<_> =
            text.lines().map(|line| line.rsplit("  ").next().unwrap().trim()).collect();
        assert_eq!(ends, ["of RAM", "-", "50.0 %"], "{text}");
        assert!(text.lines().all(|line| line.len() == 100), "{text}");
    }
}

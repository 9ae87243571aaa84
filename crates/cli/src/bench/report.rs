//! Tables and JSON of what was measured.

use std::fmt::Write;

use serde_json::{Value, json};

use super::measure::ORIGIN;
use super::profile::{Distribution, Profile};
use super::session::Ran;
use crate::admin::table;
use crate::text::{self, percent};

/// A load on a target.
pub(crate) struct Row {
    pub(crate) profile: &'static Profile,
    pub(crate) set_bytes: u64,
    /// The same over the cache's size.
    pub(crate) factor: f64,
    /// What the load ran on.
    pub(crate) target: String,
    pub(crate) phase: &'static str,
    /// Whether it was warm, or its rate level, before its time for that was over; `None` where nobody looks.
    pub(crate) is_settled: Option<bool>,
    pub(crate) ran: Ran,
}

/// Marks what was still changing when its time for that was over.
pub(super) const UNSETTLED: &str = "*";

impl Row {
    /// Whether both are of the same load and working set.
    pub(crate) fn is_beside(&self, other: &Row) -> bool {
        self.profile.name == other.profile.name && self.set_bytes == other.set_bytes
    }

    fn is_unsettled(&self) -> bool {
        self.is_settled == Some(false)
    }

    /// How many times as fast as the origin alone.
    fn factor_over_origin(&self, rows: &[Row]) -> Option<f64> {
        let origin = rows.iter().find(|row| row.target == ORIGIN && row.is_beside(self))?;
        Some(self.ran.answer.iops() / origin.ran.answer.iops())
    }

    /// For `--json`.
    pub(crate) fn to_json(&self) -> Value {
        let (answer, after) = (&self.ran.answer, &self.ran.after);
        let curve: Vec<_> = answer
            .curve
            .iter()
            .map(|point| json!([point.at_ms, point.iops, point.latency_ns]))
            .collect();
        json!({
            "profile": self.profile.name, "working_set_bytes": self.set_bytes,
            "target": self.target, "phase": self.phase,
            "time_ms": answer.span_ms, "iops": answer.iops(), "worst_second_iops": answer.worst_second(),
            "reads": answer.reads.to_json(), "writes": answer.writes.to_json(),
            "flushes": answer.flushes.to_json(), "durable_write_mean_ns": self.ran.durable_mean_ns(),
            "read_hit_ratio": self.ran.reads().ratio(),
            "read_origin_bytes": self.ran.since("read_origin_bytes"), "destage_bytes": self.ran.since("destage_bytes"),
            "bypass_bytes": self.ran.bypassed(), "dirty_blocks": after.get("dirty_blocks"), "throttle_delay_ns": self.ran.since("throttle_delay_ns"),
            "is_settled": self.is_settled, "curve": curve, "read_hit_curve": self.ran.hits,
        })
    }

    fn cells(&self, rows: &[Row]) -> Vec<String> {
        let answer = &self.ran.answer;
        let span = |ns: Option<u64>| ns.map_or("-".to_owned(), text::span);
        let mib = (answer.reads.bytes_per_s + answer.writes.bytes_per_s) / f64::from(1 << 20);
        let mark = if self.is_unsettled() { UNSETTLED } else { "" };
        let mut cells = vec![
            self.target.clone(),
            format!("{}{mark}", self.phase),
            format!("{:.0} s", answer.span_ms as f64 / 1e3),
            rate(answer.iops()),
            answer.worst_second().map_or("-".to_owned(), rate),
            self.factor_over_origin(rows).map_or("-".to_owned(), times),
            format!("{mib:.1}"),
            span(answer.reads.p50_ns),
            span(answer.reads.p99_ns),
            span(answer.writes.p50_ns),
            span(answer.writes.p99_ns),
            self.ran.reads().ratio().map_or("-".to_owned(), percent),
            self.bypassed().map_or("-".to_owned(), percent),
        ];
        if rows.iter().any(Row::has_flushes) {
            let mean = self.ran.durable_mean_ns().map(|ns| ns.round() as u64);
            cells.extend([answer.flushes.p50_ns, answer.flushes.p99_ns, mean].map(span));
        }
        cells
    }

    /// Whether each write had a flush, and reads had some as well.
    fn flushes_reads(&self) -> bool {
        let answer = &self.ran.answer;
        let most = answer.writes.requests + answer.reads.requests / 2;
        self.ran.is_durable && answer.reads.requests > 0 && answer.flushes.count > most
    }

    fn has_flushes(&self) -> bool {
        self.ran.answer.flushes.count > 0
    }

    /// What went past the cache, of all bytes that clients read and wrote.
    fn bypassed(&self) -> Option<f64> {
        let all = self.ran.since("read_bytes")? + self.ran.since("write_bytes")?;
        let bypassed: u64 = self.ran.bypassed().values().sum();
        (all > 0).then(|| bypassed as f64 / all as f64)
    }
}

/// Requests per second, or of one.
fn rate(requests: f64) -> String {
    text::thousands(requests.round() as u64)
}

/// A factor with about three digits.
fn times(factor: f64) -> String {
    match factor {
        it if it < 10.0 => format!("{it:.2}"),
        it if it < 100.0 => format!("{it:.1}"),
        it => format!("{it:.0}"),
    }
}

/// Heads of the columns of all tables, and those about flushes.
const HEAD: [&str; 13] = [
    "",
    "phase",
    "time",
    "IOPS",
    "worst",
    "factor",
    "MiB/s",
    "read p50",
    "p99",
    "write p50",
    "p99",
    "read hits",
    "bypassed",
];

const FLUSH_HEAD: [&str; 3] = ["flush p50", "p99", "write+flush"];

/// Heads of the columns for these rows.
pub(crate) fn head(rows: &[Row]) -> Vec<&'static str> {
    let more = if rows.iter().any(Row::has_flushes) { &FLUSH_HEAD[..] } else { &[] };
    [&HEAD[..], more].concat()
}

/// Rows of one load and working set after the other, with a line about each.
pub(crate) fn groups(rows: &[Row]) -> Vec<(String, Vec<Vec<String>>)> {
    let group = |group: &[Row]| {
        let first = &group[0];
        let (set, factor) = (text::bytes(first.set_bytes), times(first.factor));
        let title = format!(
            "{}: {}\nworking set {set}, {factor} x the cache",
            first.profile.name, first.profile.what
        );
        (title, group.iter().map(|row| row.cells(rows)).collect())
    };
    rows.chunk_by(Row::is_beside).map(group).collect()
}

/// Tables for people.
pub(crate) fn text(rows: &[Row]) -> String {
    let head = head(rows);
    let parts: Vec<_> = groups(rows)
        .into_iter()
        .map(|(title, lines)| format!("\n{title}\n\n{}", table(&head, &lines)))
        .collect();
    parts.join("\n")
}

/// What the figures mean.
///
/// `reached` is the export of the origin alone, where there are rows of others.
pub(crate) fn explanation(
    rows: &[Row],
    distribution: Distribution,
    sync: bool,
    reached: Option<&str>,
) -> String {
    let mut text = format!(
        "\nPlaces: {}. Worst: requests in the slowest second. Factor: over the origin alone. The pool\n\
         has one SSD and one copy of dirty data.\n\
         Read hits: reads served from the cache alone, of all reads. Bypassed: bytes that went past the cache,\n\
         of all; --json has the reasons.",
        distribution.text()
    );
    text.push_str(match sync {
        true => {
            "\nA writer waits for its write and then for its flush. Write p50 and p99 are of the write alone, \
             flush\np50 and p99 of the flush alone; write+flush is the mean of both together, and \
             charts have\nthat of reads and of writes with their flushes."
        }
        false => " Writes are volatile until a flush, with Forebay as without.",
    });
    if let Some(export) = reached {
        let _ = write!(
            text,
            "\nThe origin alone was reached by --export {export} only: all factors are over that."
        );
    }
    if rows.iter().any(Row::flushes_reads) {
        text.push_str(
            "\nThis fio flushes after reads as well, as newer ones do not (axboe/fio#1777): the rates of mixed \
             loads\nare lower for it, on all sides.",
        );
    }
    if rows.iter().any(Row::is_unsettled) {
        let _ = write!(
            text,
            "\n{UNSETTLED} still becoming warm (the origin alone: still changing its rate) when --warm-up-max \
             was\nover; \"steady\" is what came then."
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::fio::{Answer, Flushes, Side};
    use crate::bench::profile::parse;

    fn row(target: &str, phase: &'static str, iops: f64) -> Row {
        let reads = Side { requests: 1, iops, ..Side::default() };
        let answer = Answer { span_ms: 1_000, reads, ..Answer::default() };
        let ran = Ran { answer, ..Ran::default() };
        let (profile, target) = (parse("web").unwrap(), target.to_owned());
        Row { profile, set_bytes: 1 << 20, factor: 0.5, target, phase, is_settled: None, ran }
    }

    #[test]
    fn factors_are_over_the_origin_of_the_same_load() {
        let mut rows =
            vec![row("origin alone", "steady", 200.0), row("writeback", "steady", 9_000.0)];
        assert_eq!(rows[1].factor_over_origin(&rows), Some(45.0));
        rows[1].set_bytes = 2 << 20;
        assert_eq!(rows[1].factor_over_origin(&rows), None);
        assert_eq!(groups(&rows).len(), 2);
        assert!(text(&rows).contains("working set 2 MiB, 0.50 x the cache"));
    }

    #[test]
    fn what_went_past_the_cache_is_shown_by_reason_and_as_a_share() {
        let mut row = row("writeback", "steady", 1.0);
        assert_eq!(row.bypassed(), None, "nobody counts");
        let counters = |values: [u64; 4]| {
            let names = ["read_bytes", "write_bytes", "bypass_busy_bytes", "bypass_mode_bytes"];
            names.map(String::from).into_iter().zip(values).collect()
        };
        row.ran.before = counters([0, 100, 10, 7]);
        row.ran.after = counters([300, 200, 110, 7]);
        assert_eq!(row.bypassed(), Some(0.25));
        assert_eq!(row.to_json()["bypass_bytes"], json!({ "busy": 100 }));
    }

    #[test]
    fn what_never_became_warm_is_marked() {
        let mut rows = vec![row("writeback", "cold", 1.0), row("writeback", "steady", 1.0)];
        let explained = |rows: &[Row]| explanation(rows, Distribution::Uniform, false, None);
        rows[1].is_settled = Some(false);
        assert!(text(&rows).contains("steady*") && !text(&rows).contains("cold*"));
        assert!(explained(&rows).contains("--warm-up-max"));
        assert_eq!(rows[1].to_json()["is_settled"], false);
        assert!(rows[0].to_json()["is_settled"].is_null());
        rows[1].is_settled = Some(true);
        assert!(!text(&rows).contains('*') && !explained(&rows).contains('*'));
    }

    #[test]
    fn flushes_have_columns_of_their_own_where_there_are_any() {
        let mut rows = vec![row("writeback", "steady", 1.0), row("bare SSD", "steady", 1.0)];
        assert!(!text(&rows).contains("flush"));
        let answer = &mut rows[0].ran.answer;
        answer.writes = Side { requests: 3, mean_ns: 2e6, ..Side::default() };
        answer.flushes = Flushes { count: 4, mean_ns: 3e6, p50_ns: Some(7_000), p99_ns: None };
        assert!(text(&rows).contains("write+flush") && !text(&rows).contains(" 5.0 ms"));
        rows[0].ran.is_durable = true;
        assert!(text(&rows).contains(&crate::text::span(5_000_000)), "{}", text(&rows));
        let cells: Vec<_> = groups(&rows).into_iter().flat_map(|group| group.1).collect();
        assert!(cells.iter().all(|cells| cells.len() == head(&rows).len()));
        assert_eq!(rows[0].to_json()["durable_write_mean_ns"], 5e6);
        assert_eq!(rows[0].to_json()["flushes"]["requests"], 4);
        // One flush more than writes may be the last one; as many as reads are not.
        let explained = |rows: &[Row]| explanation(rows, Distribution::Uniform, true, None);
        rows[0].ran.answer.reads.requests = 6;
        assert!(!explained(&rows).contains("after reads"));
        rows[0].ran.answer.flushes.count = 9;
        assert!(explained(&rows).contains("after reads"));
    }
}

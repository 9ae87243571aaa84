//! What a pool did of late, as `status` and `pool show` print it.

use std::collections::BTreeMap;

use forebay_control::api::{Activity, PoolUsage};

use super::stats::below;
use crate::text;

/// Columns within 80.
fn row(head: &str, cells: &[String; 9]) -> String {
    let [last, number, shares @ .., p50, p99] = cells;
    let shares: String = shares.iter().map(|share| format!(" {share:>6}")).collect();
    format!("{head:9}{last:7} {number:>10}{shares} {p50:>7} {p99:>7}")
}

fn head(name: &str, shares: [&str; 5]) -> String {
    let [a, b, c, d, e] = shares;
    row(name, &["LAST", "NUMBER", a, b, c, d, e, "P50", "P99"].map(str::to_owned))
}

/// A part of all, in percent.
fn share(part: u64, all: u64) -> String {
    match all {
        0 => "-".to_owned(),
        _ => format!("{:.1}", 100.0 * part as f64 / all as f64),
    }
}

/// A number that fits its column.
fn short(number: u64) -> String {
    match number {
        0..100_000_000 => text::thousands(number),
        _ => format!("{}M", text::thousands(number / 1_000_000)),
    }
}

/// How long a stretch is, or what there is of it.
fn last(one: &Activity) -> String {
    match one.span_s {
        span_s if one.covered_s < span_s => text::left(one.covered_s),
        span_s if span_s < 3_600 => format!("{} min", span_s / 60),
        span_s => format!("{} h", span_s / 3_600),
    }
}

fn reads(one: &Activity) -> Option<String> {
    let it = &one.reads;
    let parts = it.ram_hits + it.ssd_hits + it.partial_hits + it.misses;
    let [ram, ssd, partial, missed] =
        [it.ram_hits, it.ssd_hits, it.partial_hits, it.misses].map(|part| share(part, parts));
    // Some may have gone past and not be answered yet.
    let past = it.past.values().sum::<u64>().min(it.requests);
    let (past, number) = (share(past, it.requests), short(it.requests));
    let (p50, p99) = (below(it.p50_below_us), below(it.p99_below_us));
    let cells = [last(one), number, ram, ssd, partial, missed, past, p50, p99];
    (it.requests > 0).then(|| row("", &cells))
}

fn writes(one: &Activity) -> Option<String> {
    let it = &one.writes;
    let past = share(it.past.values().sum::<u64>().min(it.requests), it.requests);
    let ssd = share(it.hits, it.requests.saturating_sub(it.stream_requests));
    let (p50, p99) = (below(it.p50_below_us), below(it.p99_below_us));
    let [none, no, nothing] = Default::default();
    let cells = [last(one), short(it.requests), none, ssd, no, nothing, past, p50, p99];
    (it.requests > 0).then(|| row("", &cells))
}

fn origin_reads(one: &Activity) -> Option<String> {
    let it = &one.origin_reads;
    let (p50, p99) = (below(it.p50_below_us), below(it.p99_below_us));
    let [none, no, nothing, at, all] = Default::default();
    let cells = [last(one), short(it.requests), none, no, nothing, at, all, p50, p99];
    (it.requests > 0).then(|| row("", &cells))
}

/// "sequential 1,204, profile 33".
fn reasons(past: &BTreeMap<String, u64>) -> String {
    let mut all: Vec<_> = past.iter().collect();
    all.sort_by_key(|&(_, requests)| std::cmp::Reverse(requests));
    let all: Vec<_> = all
        .iter()
        .map(|(why, requests)| format!("{why} {}", text::thousands(**requests)))
        .collect();
    all.join(", ")
}

/// What went past the cache in the shortest stretch in which something did, and why.
fn past(all: &[Activity]) -> Option<String> {
    let one = all.iter().find(|one| !one.reads.past.is_empty() || !one.writes.past.is_empty())?;
    let kinds = [("reads", &one.reads.past), ("writes", &one.writes.past)];
    let some = kinds.iter().filter(|(_, past)| !past.is_empty());
    let some: Vec<_> = some.map(|(kind, past)| format!("{kind}: {}", reasons(past))).collect();
    Some(text::beside("past     ", &format!("in {}, {}", last(one), some.join("; "))))
}

/// "90.3 % of 1,204 in 5 min, and 0.7 % in part" for each stretch in which there was something: hits, partial hits and all.
fn ratios(all: &[Activity], counts: impl Fn(&Activity) -> (u64, u64, u64)) -> String {
    let told = all.iter().map(|one| (one, counts(one))).filter(|(_, (.., all))| *all > 0);
    let told = told.map(|(one, (hits, partial, all))| {
        let partial = match partial {
            0 => String::new(),
            partial => format!(", and {} % in part", share(partial, all)),
        };
        format!("{} % of {} in {}{partial}", share(hits, all), short(all), last(one))
    });
    told.collect::<Vec<_>>().join("; ")
}

/// What the cache served, or took, alone: of what it is asked for, which streams that pass by are not.
pub(super) fn hits(usage: &PoolUsage) -> Vec<String> {
    let reads = ratios(&usage.activity, |one| {
        let it = &one.reads;
        let hits = it.ram_hits + it.ssd_hits;
        (hits, it.partial_hits, hits + it.partial_hits + it.misses)
    });
    let writes = ratios(&usage.activity, |one| {
        let it = &one.writes;
        (it.hits, 0, it.requests.saturating_sub(it.stream_requests))
    });
    let reads = match reads.as_str() {
        "" if usage.read_requests == 0 => "no reads yet".to_owned(),
        "" => "no random reads of late".to_owned(),
        reads => format!("random reads {reads}"),
    };
    let mut lines = vec![text::beside("hits     ", &reads)];
    if !writes.is_empty() {
        lines.push(text::beside("         ", &format!("random writes {writes}")));
    }
    if usage.read_requests + usage.write_requests > 0 {
        lines.push("         streams that passed by the cache are left out of these".to_owned());
    }
    lines
}

/// Reads and writes of each stretch in which there were some.
pub(super) fn lines(all: &[Activity]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut table = |head: String, rows: Vec<String>| {
        if !rows.is_empty() {
            lines.push(head);
            lines.extend(rows);
        }
    };
    let columns = ["RAM %", "SSD %", "PART %", "MISS %", "PAST %"];
    table(head("reads", columns), all.iter().filter_map(reads).collect());
    table(head("origin", [""; 5]), all.iter().filter_map(origin_reads).collect());
    table(head("writes", ["", "SSD %", "", "", "PAST %"]), all.iter().filter_map(writes).collect());
    lines.extend(past(all));
    lines
}

#[cfg(test)]
mod tests {
    use forebay_control::api::{OriginReads, Reads, Writes};

    use super::*;

    #[test]
    fn reads_and_writes_are_told_apart_within_80_columns() {
        let past = |why: &str, requests| BTreeMap::from([(why.to_owned(), requests)]);
        let reads = Reads {
            requests: 123_456_789_000,
            ram_hits: 30_000_000_000,
            ssd_hits: 60_000_000_000,
            partial_hits: 30_000_000,
            misses: 30_000_000_000,
            stream_parts: 12_345_678_901,
            past: past("sequential", 12_345_678_901),
            p50_below_us: Some(128),
            p99_below_us: Some(1 << 23),
        };
        let writes = Writes {
            requests: 2_200,
            stream_requests: 200,
            hits: 1_500,
            past: past("mode", 500),
            p50_below_us: Some(64),
            p99_below_us: Some(16_384),
        };
        let origin_reads = OriginReads {
            requests: 30_030_000_000,
            p50_below_us: Some(8_192),
            p99_below_us: Some(65_536),
        };
        let busy = Activity { span_s: 86_400, covered_s: 86_412, reads, writes, origin_reads };
        let idle = Activity { span_s: 300, covered_s: 42, ..Activity::default() };
        assert_eq!(lines(std::slice::from_ref(&idle)), Vec::<String>::new());
        let short = Activity { span_s: 3_600, covered_s: 3_599, ..Activity::default() };
        let reads = Reads { requests: 1, ..Reads::default() };
        let told = lines(&[idle, Activity { reads, ..short }, busy]);
        assert_eq!(
            told,
            [
                "reads    LAST        NUMBER  RAM %  SSD % PART % MISS % PAST %     P50     P99",
                "         60 min           1      -      -      -      -    0.0       -       -",
                "         24 h      123,456M   25.0   50.0    0.0   25.0   10.0   128us  >4.19s",
                "origin   LAST        NUMBER                                        P50     P99",
                "         24 h       30,030M                                     8.19ms  65.5ms",
                "writes   LAST        NUMBER         SSD %               PAST %     P50     P99",
                "         24 h         2,200          75.0                 22.7  64.0us  16.4ms",
                "past     in 24 h, reads: sequential 12,345,678,901; writes: mode 500",
            ]
        );
        assert!(told.iter().all(|line| line.len() <= 80), "{told:?}");
    }
}

//! What a pool did of late, as `status` and `pool show` print it.

use std::collections::BTreeMap;

use forebay_control::api::Activity;
use forebay_device::runtime::MICROSECOND;

use crate::text;

/// Columns within 80.
fn row(head: &str, cells: &[String; 9]) -> String {
    let [last, number, shares @ .., p50, p99] = cells;
    let shares: String = shares.iter().map(|share| format!(" {share:>6}")).collect();
    format!("{head:9}{last:6} {number:>12}{shares} {p50:>7} {p99:>7}")
}

fn head(name: &str, shares: [&str; 5]) -> String {
    let [a, b, c, d, e] = shares;
    row(name, &["LAST", "NUMBER", a, b, c, d, e, "P50", "P99"].map(str::to_owned))
}

/// A part of all, in percent.
fn share(part: u64, all: u64) -> String {
    format!("{:.1}", 100.0 * part as f64 / all as f64)
}

fn below(us: Option<u64>) -> String {
    us.map_or("-".to_owned(), |us| text::span(us * MICROSECOND).replace(' ', ""))
}

fn last(one: &Activity) -> String {
    text::left(one.span_s.min(one.covered_s))
}

fn reads(one: &Activity) -> Option<String> {
    let it = &one.reads;
    let all = it.ram_hits + it.ssd_hits + it.partial_hits + it.misses;
    let past = it.past.values().sum();
    let [ram, ssd, partial, missed, past] =
        [it.ram_hits, it.ssd_hits, it.partial_hits, it.misses, past].map(|part| share(part, all));
    let (p50, p99) = (below(it.p50_below_us), below(it.p99_below_us));
    let number = text::thousands(all);
    (all > 0).then(|| row("", &[last(one), number, ram, ssd, partial, missed, past, p50, p99]))
}

fn writes(one: &Activity) -> Option<String> {
    let it = &one.writes;
    let past = it.past.values().sum::<u64>().min(it.requests);
    let [ssd, past] = [it.requests - past, past].map(|part| share(part, it.requests));
    let (p50, p99) = (below(it.p50_below_us), below(it.p99_below_us));
    let [none, no, nothing] = Default::default();
    let number = text::thousands(it.requests);
    (it.requests > 0).then(|| row("", &[last(one), number, none, ssd, no, nothing, past, p50, p99]))
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
    table(head("writes", ["", "SSD %", "", "", "PAST %"]), all.iter().filter_map(writes).collect());
    lines.extend(past(all));
    lines
}

#[cfg(test)]
mod tests {
    use forebay_control::api::{Reads, Writes};

    use super::*;

    #[test]
    fn reads_and_writes_are_told_apart_within_80_columns() {
        let past = |why: &str, requests| BTreeMap::from([(why.to_owned(), requests)]);
        let reads = Reads {
            ram_hits: 123_456_000,
            ssd_hits: 246_912_000,
            partial_hits: 123_000,
            misses: 123_333_000,
            past: past("sequential", 12_345_678),
            p50_below_us: Some(128),
            p99_below_us: Some(16_384),
        };
        let writes = Writes {
            requests: 2_000,
            past: past("mode", 500),
            p50_below_us: Some(64),
            p99_below_us: None,
        };
        let busy = Activity { span_s: 300, covered_s: 312, reads, writes };
        let idle = Activity { span_s: 300, covered_s: 42, ..Activity::default() };
        assert_eq!(lines(std::slice::from_ref(&idle)), Vec::<String>::new());
        let told = lines(&[idle, Activity { span_s: 3_600, covered_s: 1_800, ..busy }]);
        assert_eq!(
            told,
            [
                "reads    LAST         NUMBER  RAM %  SSD % PART % MISS % PAST %     P50     P99",
                "         30 min  493,824,000   25.0   50.0    0.0   25.0    2.5   128us  16.4ms",
                "writes   LAST         NUMBER         SSD %               PAST %     P50     P99",
                "         30 min        2,000          75.0                 25.0  64.0us       -",
                "past     in 30 min, reads: sequential 12,345,678; writes: mode 500",
            ]
        );
        assert!(told.iter().all(|line| line.len() <= 80), "{told:?}");
    }
}

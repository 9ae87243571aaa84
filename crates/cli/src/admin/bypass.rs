//! `forebay stats --bypass`: what went past the cache, and why.

use std::collections::BTreeMap;

use forebay_control::api::{Bypassed, SCHEMA, Stats};
use forebay_device::runtime::SECOND;
use serde::Serialize;

use super::stats::added;
use super::table;
use crate::text;

/// What one pool or volume was asked for, and what of it went past the cache.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Past {
    name: String,
    /// All read and write requests; WRITE ZEROES are not among them.
    requests: Bypassed,
    /// By reason; all reasons are there.
    bypass: BTreeMap<String, Bypassed>,
}

/// A pool and its volumes.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PoolPast {
    #[serde(flatten)]
    pool: Past,
    volumes: Vec<Past>,
}

/// One line of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema: u32,
    /// `null`: since pools were opened, and volumes attached.
    interval_s: Option<f64>,
    pools: Vec<PoolPast>,
}

/// Names, counters and what went past, as the daemon tells them.
type Counted<'a> = (&'a BTreeMap<String, u64>, &'a BTreeMap<String, Bypassed>);

/// What was counted since a look, or at all.
pub(super) fn since(before: Option<&Stats>, after: &Stats) -> Report {
    let pools = after.pools.iter().map(|pool| {
        let old = before.and_then(|old| old.pools.iter().find(|old| old.name == pool.name));
        let volumes = pool.volumes.iter().map(|volume| {
            let old = old.and_then(|old| old.volumes.iter().find(|old| old.name == volume.name));
            let old = old.map(|old| (&old.counters, &old.bypass));
            past(volume.name.to_string(), old, (&volume.counters, &volume.bypass))
        });
        let volumes = volumes.collect();
        let old = old.map(|old| (&old.counters, &old.bypass));
        PoolPast { pool: past(pool.name.clone(), old, (&pool.counters, &pool.bypass)), volumes }
    });
    let span = before.map(|before| after.clock_ns.saturating_sub(before.clock_ns));
    Report {
        schema: SCHEMA,
        interval_s: span.map(|span| span as f64 / SECOND as f64),
        pools: pools.collect(),
    }
}

fn past(name: String, before: Option<Counted<'_>>, (counters, bypass): Counted<'_>) -> Past {
    let all = |counters: &BTreeMap<String, u64>| {
        let value = |name: &str| counters.get(name).copied().unwrap_or(0);
        Bypassed {
            read_requests: value("read_requests"),
            read_bytes: value("read_bytes"),
            write_requests: value("write_requests"),
            write_bytes: value("write_bytes"),
        }
    };
    let of = |(reason, now): (&String, &Bypassed)| {
        let old = before.and_then(|(_, bypass)| bypass.get(reason).copied());
        (reason.clone(), difference(old, *now))
    };
    Past {
        name,
        requests: difference(before.map(|(counters, _)| all(counters)), all(counters)),
        bypass: bypass.iter().map(of).collect(),
    }
}

fn difference(before: Option<Bypassed>, after: Bypassed) -> Bypassed {
    let of = |field: fn(&Bypassed) -> u64| added(before.as_ref().map(field), field(&after));
    Bypassed {
        read_requests: of(|it| it.read_requests),
        read_bytes: of(|it| it.read_bytes),
        write_requests: of(|it| it.write_requests),
        write_bytes: of(|it| it.write_bytes),
    }
}

/// A report as text: a line with all requests of each pool and volume, and one for each reason for
/// which some went past the cache.
pub(super) fn lines(report: &Report) -> String {
    let mut rows = Vec::new();
    for PoolPast { pool, volumes } in &report.pools {
        for Past { name, requests, bypass } in std::iter::once(pool).chain(volumes) {
            rows.push(row(name, "all requests", requests));
            let some = bypass.iter().filter(|(_, count)| **count != Bypassed::default());
            rows.extend(some.map(|(reason, count)| row("", reason, count)));
        }
    }
    table(&["", "PAST THE CACHE", "READS", "BYTES", "WRITES", "BYTES"], &rows)
}

fn row(name: &str, what: &str, count: &Bypassed) -> Vec<String> {
    vec![
        name.to_owned(),
        what.to_owned(),
        count.read_requests.to_string(),
        text::bytes(count.read_bytes),
        count.write_requests.to_string(),
        text::bytes(count.write_bytes),
    ]
}

#[cfg(test)]
mod tests {
    use forebay_control::api::PoolStats;

    use super::*;

    fn stats(reads: u64, past: u64) -> Stats {
        let count = |read_requests| Bypassed {
            read_requests,
            read_bytes: read_requests << 12,
            ..Bypassed::default()
        };
        let pool = PoolStats {
            name: "fast".to_owned(),
            counters: [("read_requests".to_owned(), reads)].into(),
            bypass: [("mode", 0), ("sequential", past)]
                .map(|(reason, reads)| (reason.to_owned(), count(reads)))
                .into(),
            read_latency: Vec::new(),
            write_latency: Vec::new(),
            origin_read_latency: Vec::new(),
            dirty_bytes: 0,
            destage: Default::default(),
            volumes: Vec::new(),
        };
        Stats { schema: SCHEMA, clock_ns: reads * SECOND, pools: vec![pool] }
    }

    #[test]
    fn reasons_that_sent_nothing_past_the_cache_have_no_line() {
        let report = since(None, &stats(9, 4));
        assert_eq!((report.interval_s, report.pools[0].pool.bypass.len()), (None, 2));
        let text = lines(&report);
        let cells: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(cells[1], ["fast", "all", "requests", "9", "0", "B", "0", "0", "B"]);
        assert_eq!(cells[2], ["sequential", "4", "16", "KiB", "0", "0", "B"]);
        assert_eq!(cells.len(), 3, "{text}");
    }

    #[test]
    fn between_two_looks_it_is_what_was_added() {
        let report = since(Some(&stats(9, 4)), &stats(12, 5));
        let Past { requests, bypass, .. } = &report.pools[0].pool;
        assert_eq!((report.interval_s, requests.read_requests), (Some(3.0), 3));
        assert_eq!((bypass["sequential"].read_requests, bypass["mode"].read_requests), (1, 0));
        let again = since(Some(&stats(9, 4)), &stats(2, 1));
        assert_eq!(again.pools[0].pool.requests.read_requests, 2, "the pool was opened again");
    }
}

//! `forebay stats`: rates, from two looks at what the daemon has counted.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use forebay_control::api::{PoolStats, SCHEMA, Space, Stats};
use forebay_device::runtime::{MICROSECOND, Nanos, SECOND};
use forebay_engine::counters::{LATENCY_BUCKETS, percentile_below_us};
use serde::Serialize;

use super::{Asking, bypass, wait};
use crate::Result;
use crate::text::{self, say_on, tell, whole};

/// Reports between two heads of the table: a screen's worth.
const REPORTS_PER_HEAD: u64 = 20;

/// `forebay stats`.
#[derive(Args)]
pub(crate) struct Options {
    /// Seconds between two reports; without it there is one, of one second
    #[arg(value_parser = whole::<u64>(1..=86_400))]
    interval: Option<u64>,
    /// Reports; without it until it is interrupted
    #[arg(value_parser = whole::<u64>(1..))]
    count: Option<u64>,
    /// What went past the cache, and why: since the pool was opened; with INTERVAL what was added
    #[arg(long)]
    bypass: bool,
    #[command(flatten)]
    asking: Asking,
}

/// What happened between two looks, a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Rates {
    name: String,
    read_requests_per_s: f64,
    read_bytes_per_s: f64,
    /// Reads that the cache served alone, of all but those of streams that pass by; `null` without any.
    read_hit_ratio: Option<f64>,
    /// Reads that RAM served alone, of the same; `null` without any, and for a volume.
    read_ram_hit_ratio: Option<f64>,
    write_requests_per_s: f64,
    write_bytes_per_s: f64,
    /// Times that a write was held back because room was short, and for how long all of them were.
    throttled_writes: u64,
    throttle_delay_ns: u64,
    destage_bytes_per_s: f64,
    /// Seconds until nothing is dirty, as `status` says; `null` if nobody can tell.
    clean_in_s: Option<u64>,
    /// Bytes that origins lack, at the end.
    dirty_bytes: u64,
    /// Of a volume, at the end: what it has of the cache, and may have; `null` for a pool.
    space: Option<Space>,
    /// Of a pool; `null` for a volume.
    latency: Option<Latencies>,
}

/// Bounds of what requests took, from powers of two; `null` without requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Latencies {
    read_p50_below_us: Option<u64>,
    read_p99_below_us: Option<u64>,
    write_p50_below_us: Option<u64>,
    write_p99_below_us: Option<u64>,
}

/// A pool and its volumes.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PoolRates {
    #[serde(flatten)]
    pool: Rates,
    volumes: Vec<Rates>,
}

/// One line of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    interval_s: f64,
    pools: Vec<PoolRates>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let daemon = options.asking.daemon()?;
    if options.bypass && options.interval.is_none() {
        let all: Stats = daemon.get("/api/v1/stats")?;
        say_on(told(options, &bypass::since(None, &all), bypass::lines));
        return Ok(());
    }
    let interval = Duration::from_secs(options.interval.unwrap_or(1));
    let count = options.count.or(options.interval.is_none().then_some(1));
    let mut before: Stats = daemon.get("/api/v1/stats")?;
    if before.pools.is_empty() {
        tell("note: no pool is open; `forebay status` says why");
    }
    let mut number = 0;
    while count.is_none_or(|count| number < count) {
        wait(interval);
        let after: Stats = daemon.get("/api/v1/stats")?;
        let lines = if options.bypass {
            told(options, &bypass::since(Some(&before), &after), bypass::lines)
        } else {
            let with_head = number.is_multiple_of(REPORTS_PER_HEAD);
            told(options, &compare(&before, &after), |report| lines(report, with_head))
        };
        if !say_on(lines) {
            break;
        }
        (before, number) = (after, number + 1);
    }
    Ok(())
}

/// A report as it was asked for.
fn told<T: Serialize>(options: &Options, report: &T, lines: impl Fn(&T) -> String) -> String {
    match options.asking.json {
        true => serde_json::to_string(report).unwrap_or_default(),
        false => lines(report),
    }
}

/// The differences of two looks.
fn compare(before: &Stats, after: &Stats) -> Report {
    let span = after.clock_ns.saturating_sub(before.clock_ns).max(1);
    let pools = after.pools.iter().map(|pool| {
        let old = before.pools.iter().find(|old| old.name == pool.name);
        let volumes = pool.volumes.iter().map(|volume| {
            let old = old.and_then(|old| old.volumes.iter().find(|old| old.name == volume.name));
            let counters = (old.map(|old| &old.counters), &volume.counters);
            let dirt = (volume.dirty_bytes, volume.destage.left_s);
            let space = Some(volume.space);
            Rates { space, ..rates(volume.name.to_string(), span, counters, dirt) }
        });
        let counters = (old.map(|old| &old.counters), &pool.counters);
        let dirt = (pool.dirty_bytes, pool.destage.left_s);
        let mut all = rates(pool.name.clone(), span, counters, dirt);
        all.latency = Some(latencies(old, pool));
        PoolRates { pool: all, volumes: volumes.collect() }
    });
    Report { schema: SCHEMA, interval_s: span as f64 / SECOND as f64, pools: pools.collect() }
}

/// What was added. A value that is lower than before was counted from zero anew: the pool was opened
/// again.
pub(super) fn added(before: Option<u64>, after: u64) -> u64 {
    before.filter(|before| *before <= after).map_or(after, |before| after - before)
}

type Counters = BTreeMap<String, u64>;

fn rates(
    name: String,
    span: Nanos,
    (before, after): (Option<&Counters>, &Counters),
    (dirty_bytes, clean_in_s): (u64, Option<u64>),
) -> Rates {
    let value = |counter: &str| {
        let old = before.and_then(|before| before.get(counter).copied());
        added(old, after.get(counter).copied().unwrap_or(0))
    };
    let per_s = |counter| value(counter) as f64 * SECOND as f64 / span as f64;
    // Streams that pass by are none of what a cache is asked for.
    let random = |all, of_streams| value(all).saturating_sub(value(of_streams));
    let hits = random("read_hits", "read_stream_hits");
    let reads = hits
        + random("read_partial_hits", "read_stream_partial_hits")
        + random("read_misses", "read_stream_misses");
    Rates {
        name,
        read_requests_per_s: per_s("read_requests"),
        read_bytes_per_s: per_s("read_bytes"),
        read_hit_ratio: (reads > 0).then(|| hits as f64 / reads as f64),
        read_ram_hit_ratio: (reads > 0 && after.contains_key("read_ram_hits"))
            .then(|| random("read_ram_hits", "read_stream_ram_hits") as f64 / reads as f64),
        write_requests_per_s: per_s("write_requests"),
        write_bytes_per_s: per_s("write_bytes"),
        throttled_writes: value("throttled_writes"),
        throttle_delay_ns: value("throttle_delay_ns"),
        destage_bytes_per_s: per_s("destage_bytes"),
        clean_in_s,
        dirty_bytes,
        space: None,
        latency: None,
    }
}

fn latencies(before: Option<&PoolStats>, after: &PoolStats) -> Latencies {
    let read = difference(before.map(|before| &*before.read_latency), &after.read_latency);
    let write = difference(before.map(|before| &*before.write_latency), &after.write_latency);
    Latencies {
        read_p50_below_us: percentile_below_us(&read, 50),
        read_p99_below_us: percentile_below_us(&read, 99),
        write_p50_below_us: percentile_below_us(&write, 50),
        write_p99_below_us: percentile_below_us(&write, 99),
    }
}

fn difference(before: Option<&[u64]>, after: &[u64]) -> Vec<u64> {
    let old = |index| before.and_then(|before| before.get(index).copied());
    after.iter().enumerate().map(|(index, &count)| added(old(index), count)).collect()
}

/// A bound of [`percentile_below_us`] in a column.
pub(super) fn below(us: Option<u64>) -> String {
    /// Stands for half of it and more.
    const LAST_US: u64 = 1 << (LATENCY_BUCKETS - 1);
    let span = |us: u64| text::span(us * MICROSECOND).replace(' ', "");
    match us {
        None => "-".to_owned(),
        Some(LAST_US) => format!(">{}", span(LAST_US / 2)),
        Some(us) => span(us),
    }
}

/// What stands above the columns: what they are about, and their units.
fn head() -> [[&'static str; 11]; 2] {
    let rate = if text::is_exact() { "B/S" } else { "MIB/S" };
    [
        ["", "READ", "", "", "", "", "WRITE", "", "", "", "DESTAGE"],
        ["", "/S", rate, "HIT %", "RAM%", "P99", "/S", rate, "P99", "DIRTY", rate],
    ]
}

/// Columns within 80; a name or a number that is longer moves what follows.
fn row(cells: &[&str; 11]) -> String {
    let [name, read, read_rate, hits, ram, read_p99, write, write_rate, write_p99, dirty, destage] =
        cells;
    format!(
        "{name:9} {read:>6} {read_rate:>6} {hits:>5} {ram:>4} {read_p99:>6} {write:>7} \
         {write_rate:>6} {write_p99:>6} {dirty:>8} {destage:>7}"
    )
}

/// A report as text: a line for each pool, and one for each of its volumes.
fn lines(report: &Report, with_head: bool) -> String {
    let mut lines = Vec::new();
    if with_head {
        lines.extend(head().iter().map(row));
    }
    for PoolRates { pool, volumes } in &report.pools {
        lines.extend(std::iter::once(pool).chain(volumes).map(line));
    }
    lines.join("\n")
}

fn line(rates: &Rates) -> String {
    let rate = |bytes: f64| match text::is_exact() {
        true => format!("{bytes:.0}"),
        false => format!("{:.1}", bytes / f64::from(1 << 20)),
    };
    let latency = |value: Option<Option<u64>>| below(value.flatten());
    let p99 = rates.latency.as_ref();
    let hits = rates.read_hit_ratio.map_or("-".to_owned(), |ratio| format!("{:.1}", 100.0 * ratio));
    let ram = rates.read_ram_hit_ratio;
    let ram = ram.map_or("-".to_owned(), |ratio| format!("{:.0}", 100.0 * ratio));
    row(&[
        &rates.name,
        &format!("{:.0}", rates.read_requests_per_s),
        &rate(rates.read_bytes_per_s),
        &hits,
        &ram,
        &latency(p99.map(|latency| latency.read_p99_below_us)),
        &format!("{:.0}", rates.write_requests_per_s),
        &rate(rates.write_bytes_per_s),
        &latency(p99.map(|latency| latency.write_p99_below_us)),
        &text::bytes(rates.dirty_bytes).replace(' ', ""),
        &rate(rates.destage_bytes_per_s),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(clock_s: u64, values: &[(&str, u64)], buckets: &[u64]) -> Stats {
        let counters: Counters = values.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
        let pool = PoolStats {
            name: "fast".to_owned(),
            counters,
            bypass: BTreeMap::new(),
            read_latency: buckets.to_vec(),
            write_latency: vec![0; 4],
            origin_read_latency: Vec::new(),
            dirty_bytes: 3 << 20,
            destage: Default::default(),
            volumes: Vec::new(),
        };
        Stats { schema: SCHEMA, clock_ns: clock_s * SECOND, pools: vec![pool] }
    }

    #[test]
    fn rates_are_differences_by_the_daemons_clock() {
        let before = stats(10, &[("read_requests", 100), ("read_hits", 60)], &[5, 0, 0, 9]);
        let now = [
            ("read_requests", 300),
            ("read_hits", 210),
            ("read_misses", 650),
            ("read_stream_misses", 600),
            ("throttled_writes", 7),
            ("throttle_delay_ns", 9_000),
        ];
        let after = stats(12, &now, &[5, 99, 1, 9]);
        let report = compare(&before, &after);
        let rates = &report.pools[0].pool;
        assert!((report.interval_s - 2.0).abs() < 1e-9);
        assert!((rates.read_requests_per_s - 100.0).abs() < 1e-9);
        assert_eq!(rates.read_hit_ratio, Some(0.75));
        assert_eq!(rates.write_requests_per_s, 0.0);
        assert_eq!((rates.throttled_writes, rates.throttle_delay_ns), (7, 9_000));
        let latency = rates.latency.as_ref().unwrap();
        assert_eq!((latency.read_p50_below_us, latency.read_p99_below_us), (Some(2), Some(2)));
        assert_eq!(latency.write_p99_below_us, None);
        let line = line(rates);
        assert_eq!(line.split_whitespace().collect::<Vec<_>>()[1..5], ["100", "0.0", "75.0", "-"]);
        let [about, units] = head().each_ref().map(|head| row(head).chars().count());
        assert_eq!((line.chars().count(), about, units), (80, 80, 80), "{line}");
    }

    #[test]
    fn counters_that_begin_anew_are_counted_from_zero() {
        assert_eq!(added(Some(5), 7), 2);
        assert_eq!(added(Some(7), 5), 5);
        assert_eq!(added(None, 5), 5);
    }
}

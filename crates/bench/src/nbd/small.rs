//! Rows of caches that are smaller than their disks, so that they come to what takes long in large ones.
//!
//! * A cache has room for 128 MiB (a 32nd of that of the other rows if that is more), its disk has twice as much;
//!   nbdkit's has this as its `cache-max-size`. Hot is half of the cache.
//! * `zipf`: popular blocks of all of the disk, wherever they are, after a while of the same.
//! * `overwrite`: what is hot is overwritten, ten times the cache or as long as there is time.
//! * `destage`: all that is hot is overwritten; then it is read while it is written back. FLUSH makes nbdkit do so,
//!   so everybody gets one.
//! * `restart`: a few writes and a FLUSH, then SIGTERM or SIGKILL, a new start, and a second of reads of what was hot.

use std::thread;

use super::NbdOptions;
use super::peers::Progress;
use super::sides::{
    BACK, BARE, CACHES, K4, NAMES, OURS, QEMU, SSD, Shape, Sides, THROUGH, sequential,
};
use super::table::{Kind, Shown, Values, values};
use crate::bench::Result;
use crate::fio::{Job, ZIPF};
use crate::verdict::Bar;

/// What of the other rows' caches these have, and the least.
const SHARE: u64 = 32;
const CACHE_BYTES_MIN: u64 = 128 << 20;

/// How often its room a cache is overwritten.
const LAPS: u64 = 10;

/// Spans of what takes longer than one: warming up, and overwriting.
const WARM_SPANS: u64 = 4;
const OVERWRITE_SPANS: u64 = 5;

/// Reads that say how a start was: later ones would meet what the first have brought in.
const FIRST_READS_MS: u64 = 1_000;

/// What is written before a restart.
const RESTART_BYTES: u64 = 4 << 20;

const READS: Job = Job { rw: "randread", block_bytes: K4, depth: 32, jobs: 1, sync: false };
const WRITES: Job = Job { rw: "randwrite", ..READS };

const ROWS: [&str; 4] = ["zipf", "overwrite", "destage", "restart"];

/// The rows of the table.
pub(super) fn shown() -> Vec<Shown> {
    let least = Bar::AtLeast(1.0);
    let first = |what, key| Shown { key, ..Shown::rate("restart", what, least) };
    let time = |what, key| Shown::other("restart", what, key, Kind::Cost(" s"));
    let tail = |row, what: &str| Shown {
        bar: Bar::AtMost(1.0),
        ..Shown::other(row, what, "p999", Kind::Cost(" ms"))
    };
    vec![
        // With RAM in front ours holds all of it: RAM has what the SSD has not.
        Shown {
            ours: Some(SSD),
            ..Shown::rate(
                "zipf",
                "4K zipf 1.1 reads of 2 x the cache, ours on the SSD alone",
                least,
            )
        },
        Shown::rate("overwrite", "4K overwriting, 10 x the cache, queue 32", least),
        Shown { key: "worst", ..Shown::rate("overwrite", "its worst second", least) },
        tail("overwrite", "its 99.9 %"),
        Shown::other("overwrite", "its SSD bytes for a client's byte", "ssd", Kind::Cost("")),
        Shown::other("overwrite", "caches overwritten in the time", "caches", Kind::Amount("")),
        Shown::rate("destage", "4K hits, queue 32, while it writes back", least),
        tail("destage", "their 99.9 %"),
        Shown::other("destage", "written back meanwhile", "destaged", Kind::Amount(" MiB/s")),
        first("4K hits, first second after a clean stop", "rate_stop"),
        first("4K hits, first second after kill -9", "rate_kill"),
        time("clean stop", "stop"),
        time("start after a clean stop", "start_stop"),
        time("start after kill -9", "start_kill"),
    ]
}

fn zipf(sides: &mut Sides, side: usize, span_ms: u64) -> Result<Values> {
    let before = sides.origin(side)?;
    let rate = sides.server(side).fio(sides.shape.volume).run_with(READS, span_ms, &ZIPF)?.rate();
    let reads = sides.origin(side)?.0 - before.0;
    Ok(values([("rate", rate), ("origin_reads", reads / (rate * span_ms as f64 / 1e3))]))
}

fn overwrite(sides: &mut Sides, side: usize, span_ms: u64) -> Result<Values> {
    let (shape, before) = (sides.shape, sides.server(side).disk_bytes()?);
    let fio = sides.server(side).fio(shape.hot);
    let even = fio.lap_evenly(WRITES, LAPS * shape.cache, OVERWRITE_SPANS * span_ms)?;
    let written = sides.settle(side)? - before;
    let (client, cache) = (even.requests * K4 as f64, shape.cache as f64);
    Ok(values([
        ("rate", even.rate),
        ("worst", even.worst_second),
        ("p999", even.p999_ms),
        ("ssd", written / client),
        ("caches", client / cache),
    ]))
}

fn destage(sides: &mut Sides, side: usize, span_ms: u64) -> Result<Values> {
    sides.server(side).fio(sides.shape.hot).lap(WRITES)?;
    let (before, begun) = (sides.origin(side)?, sides.now_s());
    let (even, settled, flushed) = thread::scope(|scope| {
        let fio = sides.server(side).fio(K4);
        let flush = scope.spawn(move || fio.flush());
        let fio = sides.server(side).fio(sides.shape.hot);
        let even = fio.run_evenly(READS, span_ms);
        let after = sides.origin(side).map(|after| (after, sides.now_s()));
        let settled = sides.settle(side);
        let flushed = flush.join().map_err(|_| "a thread has panicked".to_owned());
        (even.and_then(|even| Ok((even, after?))), settled, flushed)
    });
    let (even, (after, ended)) = even?;
    settled?;
    let flushed = flushed?;
    // That of a process that has ended since is not answered.
    if side != BACK {
        flushed?;
    }
    let mib = (after.1 - before.1) / f64::from(1 << 20);
    Ok(values([
        ("rate", even.rate),
        ("p999", even.p999_ms),
        ("origin_reads", (after.0 - before.0) / even.requests),
        ("destaged", mib / (ended - begun)),
    ]))
}

/// What is found after one signal: the rate of the first reads, the share that went to the disk, times of the end and the start.
fn after_signal(sides: &mut Sides, side: usize, signal: &str) -> Result<[f64; 4]> {
    sides.read_hot(side)?;
    sides.server(side).fio(RESTART_BYTES).lap(WRITES)?;
    sides.flush(side)?;
    let (stop, start) = sides.restart(side, signal)?;
    let before = sides.origin(side)?;
    let rate = sides.server(side).fio(sides.shape.hot).run(READS, FIRST_READS_MS)?.rate();
    let reads = sides.origin(side)?.0 - before.0;
    sides.settle(side)?;
    Ok([rate, reads / (rate * FIRST_READS_MS as f64 / 1e3), stop, start])
}

fn restart(sides: &mut Sides, side: usize) -> Result<Values> {
    let [rate, reads, stop, start] = after_signal(sides, side, "TERM")?;
    let mut all = values([
        ("rate_stop", rate),
        ("origin_reads_stop", reads),
        ("stop", stop),
        ("start_stop", start),
    ]);
    let [rate, reads, _, start] = after_signal(sides, side, "KILL")?;
    all.extend(values([("rate_kill", rate), ("origin_reads_kill", reads), ("start_kill", start)]));
    Ok(all)
}

/// What there is to do before the rounds of a row.
fn warm(sides: &mut Sides, side: usize, row: &str, span_ms: u64) -> Result<()> {
    eprintln!("warming {} for {row} ...", NAMES[side]);
    if row == "zipf" {
        return zipf(sides, side, WARM_SPANS * span_ms).map(|_| ());
    }
    // Whatever the row before has left.
    sides.server(side).fio(sides.shape.hot).lap(sequential("read"))?;
    sides.read_hot(side)
}

/// Runs the rows of this module that are asked for.
///
/// # Errors
/// If the raw results cannot be written.
pub(super) fn run(progress: &mut Progress, options: &NbdOptions) -> Result<()> {
    let wanted: Vec<&'static str> = ROWS.into_iter().filter(|row| progress.wants(&[row])).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let cache = (progress.bench.sizes().cache / SHARE).max(CACHE_BYTES_MIN);
    let shape = Shape { cache, volume: 2 * cache, hot: cache / 2, is_limited: true };
    let mut sides = match Sides::start(progress.bench, options, shape) {
        Ok(sides) => sides,
        Err(error) => return wanted.iter().try_for_each(|row| progress.fail(row, &error)),
    };
    let (span_ms, rounds) = (progress.bench.span_ms(), progress.bench.options.rounds);
    for row in wanted {
        // What is written through is never dirty; a bare file is no cache.
        let who: &[usize] = match row {
            "destage" => &[SSD, OURS, BACK],
            "restart" => &[SSD, OURS, BACK, THROUGH],
            _ => &[SSD, OURS, BACK, THROUGH, QEMU, BARE],
        };
        for &side in who.iter().filter(|side| CACHES.contains(side)) {
            if let Err(error) = warm(&mut sides, side, row, span_ms) {
                progress.miss(row, side, &error);
            }
        }
        progress.rounds(row, who, rounds, |side| match row {
            "zipf" => zipf(&mut sides, side, span_ms),
            "overwrite" => overwrite(&mut sides, side, span_ms),
            "destage" => destage(&mut sides, side, span_ms),
            _ => restart(&mut sides, side),
        })?;
    }
    Ok(())
}

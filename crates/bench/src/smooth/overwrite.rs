//! A pool overwritten ten times: with a working set that fits, and with one that does not.

use std::rc::Rc;

use forebay_device::Nanos;
use forebay_device::model::array::ArrayParameters;
use forebay_device::model::world::Rng;
use forebay_device::runtime::SECOND;
use serde_json::json;

use super::FULL_DEPTH;
use super::files;
use super::measure::{Raw as _, span};
use crate::bench::{Bench, Result};
use crate::verdict::{Bar, Row, rate};
use forebay_lab::scene::Seen;
use forebay_lab::scene::load::{BLOCK, Kind, Order, Orders, filling};
use forebay_lab::scene::{Scene, Setting, array_alone};

/// Clients of the writing loads.
pub(super) const WRITERS: usize = 32;

/// How often the pool's bytes are written.
pub(super) const LAPS: u64 = 10;

/// Longest origin write of the ordered stream: the longest that the engine makes.
const ORIGIN_WRITE_BYTES_MAX: u64 = 1 << 20;

/// The blocks of `count` random writes of a working set, the same each time.
fn stream(count: u64, blocks: u64) -> impl Iterator<Item = u64> {
    let mut rng = Rng::new(3);
    (0..count).map(move |_| rng.below(blocks))
}

fn orders(mut blocks: impl Iterator<Item = u64> + 'static) -> Orders {
    Box::new(move || {
        let offset = blocks.next()? * BLOCK;
        Some(Order { kind: Kind::Write, offset, len: BLOCK })
    })
}

/// What an elevator with a memory of `window` writes makes of a stream: of each window the blocks
/// in the order of their addresses, each once, neighbours as one write.
fn in_windows(stream: impl Iterator<Item = u64>, window: usize) -> impl Iterator<Item = Order> {
    let mut stream = stream.peekable();
    std::iter::from_fn(move || {
        stream.peek()?;
        let mut blocks: Vec<u64> = stream.by_ref().take(window).collect();
        blocks.sort_unstable();
        blocks.dedup();
        Some(joined(blocks.into_iter()))
    })
    .flatten()
}

/// Ascending blocks as writes, neighbours together.
pub(super) fn joined(blocks: impl Iterator<Item = u64>) -> Vec<Order> {
    let mut orders: Vec<Order> = Vec::new();
    for block in blocks {
        let offset = block * BLOCK;
        match orders.last_mut() {
            Some(last) if last.offset + last.len == offset && last.len < ORIGIN_WRITE_BYTES_MAX => {
                last.len += BLOCK;
            }
            _ => orders.push(Order { kind: Kind::Write, offset, len: BLOCK }),
        }
    }
    orders
}

/// Bytes of the modelled pool: 512 segments of 2 MiB. Ten times that are 2.6 million writes, which
/// the CPU needs half a minute for; a larger pool takes longer and shows nothing else.
fn pool_bytes(bench: &Bench) -> u64 {
    if bench.options.quick { 512 << 20 } else { 1 << 30 }
}

const HALF: &[(&str, Bar, &str)] = &[
    ("worst second, to the mean", Bar::AtLeast(0.7), ""),
    ("p99.9, to the median", Bar::AtMost(5.0), ""),
    ("SSD bytes per client byte", Bar::AtMost(1.5), ""),
];

const DOUBLE: &[(&str, Bar, &str)] = &[
    ("slowest tenth, to the disks in address order", Bar::AtLeast(0.9), ""),
    ("worst second, to the mean", Bar::AtLeast(0.5), ""),
    ("longest request", Bar::AtMost(1.0), " s"),
];

/// Values and figures of three rows that come of one run, and a note.
pub(super) type Figures = ([f64; 3], [String; 3], String);

/// Random writes of one block each to a working set, `bytes` in all.
pub(super) fn random_writes(bytes: u64, set_bytes: u64) -> Orders {
    orders(stream(bytes / BLOCK, set_bytes / BLOCK))
}

/// Adds those rows.
fn finish(
    bench: &mut Bench,
    name: &'static str,
    what: &str,
    bars: &[(&str, Bar, &str)],
    result: Result<Figures>,
) -> Result<()> {
    let quick = bench.options.quick;
    for (i, &(part, bar, unit)) in bars.iter().enumerate() {
        let what = format!("{what}: {part}");
        let row = match &result {
            Ok((values, figures, note)) => Row {
                figures: vec![figures[i].clone()],
                note: if i == 0 { note.clone() } else { String::new() },
                ..Row::judged(name, &what, &[values[i]], bar, unit, quick)
            },
            Err(error) => Row::failed(name, &what, bar, error),
        };
        bench.finish(row)?;
    }
    Ok(())
}

/// The figures of a working set of half the pool.
pub(super) fn half_figures(seen: &Seen, ssd_bytes: u64) -> Result<Figures> {
    let (p50, p999) = (seen.percentile(50.0)?, seen.percentile(99.9)?);
    let worst = seen.worst_second()?;
    let amplification = ssd_bytes as f64 / seen.bytes as f64;
    let figures = [rate(worst * seen.rate()), span(p999), format!("{:.1} GiB", gib(ssd_bytes))];
    let note = format!(
        "{} mean, median {}, longest {}",
        rate(seen.rate()),
        span(p50),
        span(seen.longest())
    );
    Ok(([worst, p999 as f64 / p50 as f64, amplification], figures, note))
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1_u64 << 30) as f64
}

/// One volume on the disks, behind one SSD and no RAM.
fn scene(disks: &ArrayParameters, pool_bytes: u64, set_bytes: u64) -> Result<Scene> {
    let (ssds, serving) = (Default::default(), Default::default());
    Scene::new(&Setting { disks, pool_bytes, ram_bytes: 0, volumes: &[set_bytes], ssds, serving })
}

/// A working set of half the pool is written once from front to back; then ten times the pool's
/// bytes are written into it at random, 4 KiB each, by 32 clients. Everything from there on counts:
/// the rate of the worst second, the latencies, and what the SSD was given for it, moves and
/// checkpoints included. The mean is that of the whole run.
///
/// Costs half a minute of CPU and 50 MiB of memory.
fn half(bench: &mut Bench, disks: &ArrayParameters) -> Result<Figures> {
    let pool_bytes = pool_bytes(bench);
    let set_bytes = pool_bytes / 2;
    let scene = scene(disks, pool_bytes, set_bytes)?;
    scene.play(0, 4, filling(set_bytes, 1 << 20))?;
    let (before, counters) = (scene.ssd_bytes(), scene.pool.counters().list());
    let seen = scene.play(0, WRITERS, random_writes(LAPS * pool_bytes, set_bytes))?;
    let ssd_bytes = scene.ssd_bytes() - before;
    bench.keep(&json!({
        "row": "overwrite", "seen": seen.to_json(), "ssd_bytes": ssd_bytes,
        "counters_before": counters, "counters": scene.pool.counters().list(),
    }))?;
    half_figures(&seen, ssd_bytes)
}

/// The same with a working set of twice the pool: in the end every write has to make room for
/// itself, and the disks decide. What they could do is what the same stream takes them as an ideal
/// elevator with the pool's memory would give it to them: cut into windows of as many writes as the
/// pool has blocks, each in the order of addresses, every block once, neighbours together, at the
/// array's full queue. "Never below" is asked of every tenth of the stream, one pool of writes each:
/// the slowest counts. A stall is a request that takes more than a second.
///
/// Costs a minute of CPU and 100 MiB of memory.
fn double(bench: &mut Bench, disks: &ArrayParameters) -> Result<Figures> {
    let pool_bytes = pool_bytes(bench);
    let (set_bytes, lap) = (2 * pool_bytes, pool_bytes / BLOCK);
    let count = LAPS * lap;
    let blocks = set_bytes / BLOCK;
    let scene = scene(disks, pool_bytes, set_bytes)?;
    let ends: Rc<std::cell::RefCell<Vec<Nanos>>> = Rc::default();
    let (clock, starts, mut drawn) = (scene.runtime(), Rc::clone(&ends), 0_u64);
    let started = scene.now();
    let mut draw = orders(stream(count, blocks));
    let seen = scene.play(
        0,
        WRITERS,
        Box::new(move || {
            if drawn.is_multiple_of(lap) {
                starts.borrow_mut().push(clock.now());
            }
            drawn += 1;
            draw()
        }),
    )?;
    let laps: Vec<f64> = {
        let mut ends = ends.borrow_mut();
        ends.truncate(LAPS as usize);
        ends.push(started + seen.span);
        let seconds = |pair: &[Nanos]| (pair[1] - pair[0]).max(1) as f64 / SECOND as f64;
        ends.windows(2).map(|pair| lap as f64 / seconds(pair)).collect()
    };
    let counters = scene.pool.counters().list();
    drop(scene);
    let mut ordered = in_windows(stream(count, blocks), lap as usize);
    let alone = array_alone(disks, set_bytes, FULL_DEPTH, Box::new(move || ordered.next()))?;
    let disks = count as f64 / (alone as f64 / SECOND as f64);
    bench.keep(&json!({
        "row": "bound", "seen": seen.to_json(), "tenths": laps, "disks": disks,
        "counters": counters,
    }))?;
    let slowest = laps.iter().copied().fold(f64::INFINITY, f64::min);
    let (worst, longest) = (seen.worst_second()?, seen.longest() as f64 / SECOND as f64);
    let figures = [rate(slowest), rate(worst * seen.rate()), span(seen.longest())];
    let note = format!(
        "{} mean, median {}; disks in address order {}; tenths {}",
        rate(seen.rate()),
        span(seen.percentile(50.0)?),
        rate(disks),
        laps.iter().map(|&lap| rate(lap)).collect::<Vec<_>>().join(" ")
    );
    Ok(([slowest / disks, worst, longest], figures, note))
}

/// Runs the rows of this module that are asked for.
pub(super) fn run(bench: &mut Bench, disks: &ArrayParameters) -> Result<()> {
    if bench.wants(&["overwrite"]) {
        let result = half(bench, disks);
        finish(bench, "overwrite", "overwrite 10 x the pool, working set 0.5 of it", HALF, result)?;
    }
    if bench.wants(&["files"]) {
        let result = files::half(bench);
        finish(bench, "files", "overwrite on a real file, origin in memory", HALF, result)?;
    }
    if bench.wants(&["bound"]) {
        let result = double(bench, disks);
        finish(bench, "bound", "overwrite 10 x the pool, working set 2 x", DOUBLE, result)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(orders: impl IntoIterator<Item = Order>) -> Vec<(u64, u64)> {
        orders.into_iter().map(|o| (o.offset / BLOCK, o.len / BLOCK)).collect()
    }

    #[test]
    fn windows_are_in_order_without_repeats_and_with_neighbours_together() {
        let stream = [9, 1, 2, 9, 5, 4, 4].into_iter();
        let orders = places(in_windows(stream, 4));
        assert_eq!(orders, [(1, 2), (9, 1), (4, 2)]);
    }

    #[test]
    fn no_write_is_longer_than_the_longest() {
        assert_eq!(places(joined(0..600)), [(0, 256), (256, 256), (512, 88)]);
    }

    #[test]
    fn a_stream_is_the_same_each_time() {
        assert!(stream(100, 50).eq(stream(100, 50)));
        assert!(stream(1000, 50).all(|block| block < 50));
        assert_eq!(stream(7, 50).count(), 7);
    }
}

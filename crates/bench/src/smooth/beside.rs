//! Loads beside each other: reads beside destaging, hits beside a stream, fifteen volumes beside one.

use forebay_device::model::world::Rng;
use forebay_device::runtime::SECOND;
use serde_json::json;

use std::rc::Rc;

use super::destage::scattered;
use super::load::{BLOCK, Kind, Order, Orders, writes};
use super::measure::{Seen, span};
use super::scene::{Scene, Setting};
use crate::bench::{Bench, Result};
use crate::verdict::{Bar, Row, rate};

/// One line of the table: what, its bar, its unit.
type Part = (&'static str, &'static str, Bar);

const FOREGROUND: [Part; 2] = [
    ("foreground", "4K random read misses while destaging: p99, to undisturbed", Bar::AtMost(2.0)),
    (
        "foreground",
        "destaging beside 4K random read misses: rate, to undisturbed",
        Bar::AtLeast(0.4),
    ),
];

/// Random reads of one block each, of blocks `from..to`.
fn random_reads(kind: Kind, from: u64, to: u64, seed: u64) -> Orders {
    let mut rng = Rng::new(seed);
    Box::new(move || {
        let offset = (from + rng.below(to - from)) * BLOCK;
        Some(Order { kind, offset, len: BLOCK })
    })
}

/// Dirty blocks of the destaging that is disturbed: as dense as in the row `destage16`, a quarter of
/// it.
const FOREGROUND_DIRTY: usize = 256 << 10;

/// Clients that read beside it: fewer than the array has disks, so that undisturbed they hardly wait
/// for each other. A closed loop that fills the disks by itself has no p99 to protect.
const FOREGROUND_READERS: usize = 8;

/// Eight clients read single blocks at random from a volume of 1 TiB, where nothing was ever written
/// or read before, so that each read is a read of the array (of the cache block around it, as
/// always); meanwhile a quarter of a million dirty blocks at the volume's beginning are destaged
/// because somebody asked for it. The latencies count from the beginning of that to its end, and the
/// blocks destaged per second. Undisturbed: the same reads for a minute without anything dirty, and
/// the same destaging without reads.
///
/// Costs half a minute of CPU and 150 MiB of memory.
fn foreground(bench: &mut Bench) -> Result<[(f64, [String; 2]); 2]> {
    let count = if bench.options.quick { FOREGROUND_DIRTY / 8 } else { FOREGROUND_DIRTY };
    let span_blocks = 4 * count as u64;
    let volume_blocks = (1_u64 << 40) / BLOCK;
    let dirty = Rc::new(scattered(count, span_blocks as u32, 1));
    let scene = || Scene::new(&Setting { pool_bytes: 12 << 30, volumes: &[1 << 40] });
    let reads = || random_reads(Kind::ReadBlank, span_blocks, volume_blocks, 5);

    let quiet = scene()?;
    let load = quiet.load(0, FOREGROUND_READERS, reads());
    quiet.pass(5 * SECOND)?;
    load.look();
    quiet.pass(60 * SECOND)?;
    let undisturbed = load.seen();
    quiet.run(load.stop())?;
    drop(quiet);

    let per_second = |(owed, took): (u64, u64)| owed as f64 / (took as f64 / SECOND as f64);
    let alone = scene()?;
    alone.play(0, 32, writes(Rc::clone(&dirty)))?;
    let destage_alone = per_second((alone.owed_blocks(), alone.destage(0)?));
    drop(alone);

    let both = scene()?;
    both.play(0, 32, writes(dirty))?;
    let load = both.load(0, FOREGROUND_READERS, reads());
    load.look();
    let destage_beside = per_second((both.owed_blocks(), both.destage(0)?));
    let disturbed = load.seen();
    both.run(load.stop())?;

    bench.keep(&json!({
        "row": "foreground", "undisturbed": undisturbed.to_json(),
        "disturbed": disturbed.to_json(), "destage_alone": destage_alone,
        "destage_beside": destage_beside, "counters": both.pool.counters().list(),
    }))?;
    let (before, after) = (undisturbed.percentile(99.0)?, disturbed.percentile(99.0)?);
    let text = |seen: &Seen, p99| format!("{}, {}", span(p99), rate(seen.rate()));
    Ok([
        (after as f64 / before as f64, [text(&disturbed, after), text(&undisturbed, before)]),
        (destage_beside / destage_alone, [rate(destage_beside), rate(destage_alone)]),
    ])
}

/// Adds the lines that come of one run.
fn finish<const N: usize>(
    bench: &mut Bench,
    parts: &[Part; N],
    result: Result<[(f64, [String; 2]); N]>,
) -> Result<()> {
    for (i, &(name, what, bar)) in parts.iter().enumerate() {
        let row = match &result {
            Ok(lines) => Row {
                figures: lines[i].1.to_vec(),
                ..Row::judged(name, what, &[lines[i].0], bar, "", bench.options.quick)
            },
            Err(error) => Row::failed(name, what, bar, error),
        };
        bench.finish(row)?;
    }
    Ok(())
}

/// Runs the rows of this module that are asked for.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    if bench.wants(&["foreground"]) {
        let result = foreground(bench);
        finish(bench, &FOREGROUND, result)?;
    }
    Ok(())
}

//! A working set of half the pool, read and written at random: all of it stays.

use forebay_device::model::array::ArrayParameters;
use forebay_device::model::world::Rng;
use forebay_engine::{Mode, Pool};
use serde_json::json;

use super::measure::Raw as _;
use crate::bench::{Bench, Result};
use crate::verdict::{Bar, Row, rate};
use forebay_lab::scene::load::{BLOCK, Kind, Order, Orders, filling};
use forebay_lab::scene::{Scene, Serving, Setting};

const BAR: Bar = Bar::AtLeast(0.98);

/// Clients of the load.
const CLIENTS: usize = 128;

/// Requests of one block for each block of the pool; the later half of them counts. Three of ten write, each one twice
/// its bytes where it is written through by itself: by then the log has been written through once at the least.
const REQUESTS_PER_BLOCK: u64 = 8;

struct Case {
    name: &'static str,
    what: &'static str,
    mode: Mode,
}

const CASES: [Case; 2] = [
    Case {
        name: "fits",
        what: "70/30 of half the pool, written back: hit ratio",
        mode: Mode::Writeback,
    },
    Case {
        name: "fits-through",
        what: "70/30 of half the pool, written through: hit ratio",
        mode: Mode::Writethrough,
    },
];

fn mixed(seed: u64, count: u64, bytes: u64) -> Orders {
    let (mut rng, mut left) = (Rng::new(seed), count);
    Box::new(move || {
        left = left.checked_sub(1)?;
        let kind = if rng.below(10) < 7 { Kind::Read } else { Kind::Write };
        Some(Order { kind, offset: rng.below(bytes / BLOCK) * BLOCK, len: BLOCK })
    })
}

/// Read pieces, those of them that the cache served alone, and bytes that clients wrote.
fn counted(pool: &Pool) -> [u64; 3] {
    let c = pool.counters();
    let (hits, part, misses) = (&c.read_hits, &c.read_partial_hits, &c.read_misses);
    [hits.get() + part.get() + misses.get(), hits.get(), c.write_bytes.get()]
}

/// Half of a pool of 1 GiB is written from front to back; then 128 clients read and write single blocks of it at random.
/// There is room for all of it twice, so nothing should have to be read from the disks again; but what is overwritten
/// leaves garbage, and to make room of that takes moves, for which there is a write budget. Beside the hits stands what the
/// SSD was given for each byte written, moves, headers and what came in again included.
///
/// Costs half a minute of CPU for each mode and 100 MiB of memory.
fn measure(bench: &mut Bench, disks: &ArrayParameters, case: &Case) -> Result<Row> {
    let pool_bytes: u64 = if bench.options.quick { 512 << 20 } else { 1 << 30 };
    let set_bytes = pool_bytes / 2;
    let scene = Scene::new(&Setting {
        disks,
        pool_bytes,
        ram_bytes: 0,
        volumes: &[set_bytes],
        ssds: Default::default(),
        serving: Serving { mode: case.mode, ..Default::default() },
    })?;
    scene.play(0, 4, filling(set_bytes, 1 << 20))?;
    let requests = pool_bytes / BLOCK * REQUESTS_PER_BLOCK / 2;
    scene.play(0, CLIENTS, mixed(5, requests, set_bytes))?;
    let (before, ssd_before) = (counted(&scene.pool), scene.ssd_bytes());
    let seen = scene.play(0, CLIENTS, mixed(6, requests, set_bytes))?;
    let after = counted(&scene.pool);
    let [reads, hits, written] = std::array::from_fn(|i| (after[i] - before[i]) as f64);
    let amplification = (scene.ssd_bytes() - ssd_before) as f64 / written;
    bench.keep(&json!({
        "row": case.name, "seen": seen.to_json(), "hits": hits / reads,
        "ssd_bytes_per_byte": amplification, "counters": scene.pool.counters().list(),
    }))?;
    let ratio = hits / reads;
    let mut row = Row::judged(case.name, case.what, &[ratio], BAR, "", bench.options.quick);
    row.figures = vec![rate(seen.rate())];
    row.note = format!(
        "worst second {:.2} of the mean; {amplification:.2} bytes to the SSD for each byte written",
        seen.worst_second()?
    );
    Ok(row)
}

/// Runs the rows of this module that are asked for.
pub(super) fn run(bench: &mut Bench, disks: &ArrayParameters) -> Result<()> {
    for case in &CASES {
        if bench.wants(&[case.name]) {
            let row = measure(bench, disks, case);
            let failed = |error: String| Row::failed(case.name, case.what, BAR, &error);
            bench.finish(row.unwrap_or_else(failed))?;
        }
    }
    Ok(())
}

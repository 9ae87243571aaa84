//! A burst into a pool that is half dirty already, and how long it takes to be clean after it.

use std::rc::Rc;

use forebay_device::Nanos;
use forebay_device::model::array::ArrayParameters;
use forebay_device::runtime::SECOND;
use forebay_engine::{Populate, VolumeSettings};
use serde_json::json;

use super::FULL_DEPTH;
use super::measure::{Raw as _, span};
use super::overwrite::joined;
use crate::bench::{Bench, Result};
use crate::verdict::{Bar, Row, rate};
use forebay_lab::scene::Seen;
use forebay_lab::scene::load::{BLOCK, Kind, Order, Orders, scattered};
use forebay_lab::scene::{Scene, Setting, array_alone};

const NAME: &str = "burst";
const ABSORBED: (&str, Bar) =
    ("30 s of writes into a half-dirty pool: rate, to an empty pool", Bar::AtLeast(0.9));
const CLEAN: (&str, Bar) =
    ("clean again after that: time, to the ideal elevator", Bar::AtMost(1.3));

/// The row of [`measure_filled`].
const FILLED: &str = "filled";
const READ: (&str, Bar) = (
    "10 s of writes into a pool that reads have filled: rate, to an empty pool",
    Bar::AtLeast(0.6),
);

/// Clients that fill the pool with reads.
const READERS: usize = 64;

/// Clients of the burst.
const WRITERS: usize = 32;

/// Bytes of a write. In 30 s the SSD takes 13 GiB, which as blocks of 4 KiB would be three and a
/// half million requests, and twice as many to destage: minutes of CPU for no other answer.
const WRITE: u64 = 64 << 10;

/// A pool that has given up getting clean.
const CLEAN_TIME_MAX: Nanos = 3 * 3_600 * SECOND;

/// Sizes and times, with `--quick` an eighth of them.
struct Sizes {
    pool_bytes: u64,
    volume_bytes: u64,
    burst: Nanos,
}

impl Sizes {
    fn of(bench: &Bench) -> Self {
        let unit = if bench.options.quick { 1 << 27 } else { 1 << 30 };
        let burst = if bench.options.quick { 4 * SECOND } else { 30 * SECOND };
        Self { pool_bytes: 40 * unit, volume_bytes: 160 * unit, burst }
    }

    fn scene(&self, disks: &ArrayParameters) -> Result<Scene> {
        Scene::new(&Setting {
            disks,
            pool_bytes: self.pool_bytes,
            ram_bytes: 0,
            volumes: &[self.volume_bytes],
            ssds: Default::default(),
            serving: Default::default(),
        })
    }
}

/// Writes to different places, until `is_enough`.
fn writes(
    places: &Rc<Vec<u32>>,
    from: usize,
    is_enough: impl Fn(usize) -> bool + 'static,
) -> Orders {
    let (places, mut count) = (Rc::clone(places), 0);
    Box::new(move || {
        let place = *places.get(from + count)?;
        count += 1;
        let order = Order { kind: Kind::Write, offset: u64::from(place) * WRITE, len: WRITE };
        (!is_enough(count - 1)).then_some(order)
    })
}

fn burst(scene: &Scene, sizes: &Sizes, orders: Orders) -> Result<Seen> {
    let load = scene.load(0, WRITERS, orders);
    scene.pass(sizes.burst)?;
    let seen = load.seen()?;
    scene.run(load.stop())?;
    Ok(seen)
}

/// 64 KiB at random places, each once, are written to a pool of 40 GiB until half of it is dirty;
/// then 30 s more, as fast as the pool takes them. Absorbed at SSD speed means: at nine tenths of
/// what the same 30 s bring into an empty pool of the same kind. Then nobody does anything, and the
/// clock runs until the origin durably has everything. The ideal elevator writes what was dirty when
/// the burst ended: once, in the order of addresses, neighbours together, at the array's full queue,
/// to a fresh array.
///
/// 40 GiB hold their half and the 13 GiB of the burst with a sixth to spare.
///
/// Costs a minute of CPU and 600 MiB of memory.
fn measure(bench: &mut Bench, disks: &ArrayParameters) -> Result<[Row; 2]> {
    let sizes = Sizes::of(bench);
    let count = (sizes.pool_bytes / WRITE) as usize;
    let places = Rc::new(scattered(count, (sizes.volume_bytes / WRITE) as u32, 7));
    let empty = sizes.scene(disks)?;
    let absorbed_empty = burst(&empty, &sizes, writes(&places, 0, |_| false))?;
    drop(empty);

    let scene = sizes.scene(disks)?;
    let (pool, half) = (Rc::clone(&scene.pool), sizes.pool_bytes / 2 / BLOCK);
    // Asking for the number of dirty blocks looks at every shard.
    let is_half = move |count: usize| count.is_multiple_of(256) && pool.blocks().1 >= half;
    let filled = scene.play(0, WRITERS, writes(&places, 0, is_half))?.requests() as usize;
    if filled == count {
        return Err("the pool did not become half dirty".into());
    }
    let absorbed = burst(&scene, &sizes, writes(&places, filled, |_| false))?;
    let dirty = scene.dirty(0)?;
    let (owed, since) = (scene.owed_blocks(), scene.now());
    while scene.pool.unproven_blocks() > 0 {
        if scene.now() - since > CLEAN_TIME_MAX {
            return Err(format!("not clean after {}", span(CLEAN_TIME_MAX)));
        }
        scene.pass(SECOND / 4)?;
    }
    let clean = scene.now() - since;
    let counters = scene.pool.counters().list();
    drop(scene);
    let blocks = dirty.iter().flat_map(|&(at, len)| at / BLOCK..(at + len) / BLOCK);
    let mut ordered = joined(blocks).into_iter();
    let ideal =
        array_alone(disks, sizes.volume_bytes, FULL_DEPTH, Box::new(move || ordered.next()))?;
    bench.keep(&json!({
        "row": NAME, "empty": absorbed_empty.to_json(), "half": absorbed.to_json(), "filled": filled,
        "owed": owed, "clean_ns": clean, "ideal_ns": ideal, "counters": counters,
    }))?;
    let quick = bench.options.quick;
    let judged = |(what, bar), value| Row::judged(NAME, what, &[value], bar, "", quick);
    let share = absorbed.bytes as f64 / absorbed_empty.bytes as f64;
    let mut first = judged(ABSORBED, share);
    first.figures = vec![rate(absorbed.rate()), rate(absorbed_empty.rate())];
    first.note = format!("longest request {}", span(absorbed.longest()));
    let mut second = judged(CLEAN, clean as f64 / ideal as f64);
    second.figures = vec![span(clean), span(ideal)];
    second.note = format!("{:.1} GiB dirty", (owed * BLOCK) as f64 / (1_u64 << 30) as f64);
    Ok([first, second])
}

/// Reads go round five quarters of a pool three times; then writes go to other places, from the number in `places` on
/// that is returned. All that is read comes in: left to itself the volume would see that hardly any of it is found again.
fn fill(scene: &Scene, sizes: &Sizes) -> Result<(Rc<Vec<u32>>, usize)> {
    let populate = Populate::Custom { on_read: Some(1), on_write: None };
    scene.set(0, VolumeSettings { populate, ..VolumeSettings::default() })?;
    let count = (sizes.pool_bytes / 4 * 5 / WRITE) as usize;
    let places = Rc::new(scattered(2 * count, (sizes.volume_bytes / WRITE) as u32, 7));
    for _ in 0..3 {
        let mut places = writes(&places, 0, move |read| read == count);
        let reads = move || places().map(|order| Order { kind: Kind::ReadBlank, ..order });
        scene.play(0, READERS, Box::new(reads))?;
    }
    Ok((places, count))
}

/// 10 s of writes, as fast as a pool of 8 GiB takes them that reads have filled, beside the same 10 s into an empty one.
/// Room has to be made meanwhile, of data that the origin has and that was asked for more than once: what is kept
/// of it is moved, within the write amplification of 1.5, and so the SSD has two thirds for what is new.
fn measure_filled(bench: &mut Bench, disks: &ArrayParameters) -> Result<Row> {
    let sizes = Sizes::of(bench);
    let sizes = Sizes {
        pool_bytes: sizes.pool_bytes / 5,
        volume_bytes: sizes.volume_bytes / 5,
        // The worst second is looked for among whole ones.
        burst: (sizes.burst / 3).max(4 * SECOND),
    };
    let scene = sizes.scene(disks)?;
    let (places, from) = fill(&scene, &sizes)?;
    let absorbed = burst(&scene, &sizes, writes(&places, from, |_| false))?;
    let counters = scene.pool.counters().list();
    drop(scene);
    let absorbed_empty = burst(&sizes.scene(disks)?, &sizes, writes(&places, from, |_| false))?;
    bench.keep(&json!({
        "row": FILLED, "empty": absorbed_empty.to_json(), "filled": absorbed.to_json(),
        "counters": counters,
    }))?;
    let share = absorbed.bytes as f64 / absorbed_empty.bytes as f64;
    let mut row = Row::judged(FILLED, READ.0, &[share], READ.1, "", bench.options.quick);
    row.figures = vec![rate(absorbed.rate()), rate(absorbed_empty.rate())];
    let (longest, worst) = (span(absorbed.longest()), absorbed.worst_second()?);
    row.note = format!("longest request {longest}, worst second {worst:.2} of the mean");
    Ok(row)
}

/// Runs the rows of this module if they are asked for.
pub(super) fn run(bench: &mut Bench, disks: &ArrayParameters) -> Result<()> {
    if bench.wants(&[NAME]) {
        let rows = measure(bench, disks).unwrap_or_else(|error| {
            [ABSORBED, CLEAN].map(|(what, bar)| Row::failed(NAME, what, bar, &error))
        });
        for row in rows {
            bench.finish(row)?;
        }
    }
    if bench.wants(&[FILLED]) {
        let row = measure_filled(bench, disks);
        bench.finish(row.unwrap_or_else(|error| Row::failed(FILLED, READ.0, READ.1, &error)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_end_when_it_is_enough_and_go_on_from_there() {
        let places = Rc::new(vec![5, 1, 7, 3]);
        let take = |orders: Orders| -> Vec<u64> {
            let mut orders = orders;
            std::iter::from_fn(&mut orders).map(|order| order.offset / WRITE).collect()
        };
        assert_eq!(take(writes(&places, 0, |count| count == 2)), [5, 1]);
        assert_eq!(take(writes(&places, 2, |_| false)), [7, 3]);
    }

    #[test]
    fn writers_do_not_wait_for_what_reads_have_saved_up() {
        let pool_bytes = 1 << 30;
        let sizes = Sizes { pool_bytes, volume_bytes: 4 * pool_bytes, burst: SECOND };
        let scene = sizes.scene(&super::super::disks(false)).unwrap();
        let (places, from) = fill(&scene, &sizes).unwrap();
        let moved = || scene.pool.counters().move_blocks.get();
        let before = moved();
        let absorbed = burst(&scene, &sizes, writes(&places, from, |_| false)).unwrap();
        // Half of what was written, and of an eighth of the pool before.
        let allowed = (absorbed.bytes + pool_bytes / 8) / 2 / BLOCK;
        let moved = moved() - before;
        assert!(moved > 0 && moved <= allowed, "{moved} of {allowed} blocks");
    }
}

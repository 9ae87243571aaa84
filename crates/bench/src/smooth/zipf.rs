//! How much of a skewed load two tiers answer together, beside one tier of both sizes.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::model::array::ArrayParameters;
use forebay_device::model::world::Rng;
use forebay_engine::Pool;
use serde_json::json;

use crate::bench::{Bench, Result};
use crate::verdict::{Bar, Row};
use forebay_lab::scene::load::{BLOCK, Kind, Order, Orders, scattered};
use forebay_lab::scene::{Scene, Setting};

const NAME: &str = "zipf";
const WHAT: &str = "zipf 0.9 reads of 4 x the SSD, RAM 1/16 of it: hit ratio, to one cache of both";
const BAR: Bar = Bar::AtLeast(0.95);

/// Bytes of the places that are more or less popular: the cache block, which a miss brings in as a
/// whole.
const PLACE: u64 = 64 << 10;

/// Clients of the load.
const READERS: usize = 16;

/// Draws numbers below a bound, the k-th of them in proportion to 1 / k^exponent.
pub(crate) struct Zipf {
    /// Share of this number and all before it.
    until: Vec<f64>,
}

impl Zipf {
    pub(crate) fn new(count: usize, exponent: f64) -> Self {
        let mut until: Vec<f64> = Vec::with_capacity(count);
        let mut sum = 0.0;
        for rank in 1..=count {
            sum += (rank as f64).powf(-exponent);
            until.push(sum);
        }
        until.iter_mut().for_each(|share| *share /= sum);
        Self { until }
    }

    pub(crate) fn draw(&self, rng: &mut Rng) -> usize {
        let share = rng.below(1 << 53) as f64 / (1_u64 << 53) as f64;
        self.until.partition_point(|&until| until <= share).min(self.until.len() - 1)
    }
}

fn reads(places: usize, count: u64) -> Orders {
    let (zipf, mut rng) = (Zipf::new(places, 0.9), Rng::new(11));
    // Popular places are anywhere on the volume.
    let place_of = scattered(places, places as u32, 12);
    let mut left = count;
    Box::new(move || {
        left = left.checked_sub(1)?;
        let place = u64::from(place_of[zipf.draw(&mut rng)]);
        let offset = place * PLACE + rng.below(PLACE / BLOCK) * BLOCK;
        Some(Order { kind: Kind::ReadBlank, offset, len: BLOCK })
    })
}

/// The share of hits in the second half of `count` reads, and RAM's part in it.
fn hit_ratio(setting: &Setting, count: u64) -> Result<(f64, f64)> {
    let scene = Scene::new(setting)?;
    let hits = |pool: &Pool| (pool.counters().read_hits.get(), pool.counters().read_ram_hits.get());
    let (pool, before, mut drawn) = (Rc::clone(&scene.pool), Rc::new(Cell::new((0, 0))), 0);
    let (at_half, mut orders) =
        (Rc::clone(&before), reads((setting.volumes[0] / PLACE) as usize, count));
    let orders = Box::new(move || {
        drawn += 1;
        if drawn == count / 2 {
            at_half.set(hits(&pool));
        }
        orders()
    });
    scene.play(0, READERS, orders)?;
    let share = |hits: u64| hits as f64 / (count - count / 2) as f64;
    let (after, before) = (hits(&scene.pool), before.get());
    Ok((share(after.0 - before.0), share(after.1 - before.1)))
}

/// Single blocks are read at random from a volume of four times the SSD; of its places of 64 KiB the
/// k-th most popular is read in proportion to 1 / k^0.9, whichever block of it. RAM has a sixteenth
/// of the SSD. After as many reads as are counted then, the share of those that no origin was asked
/// for, beside that of a pool without RAM whose SSD is larger by that sixteenth.
///
/// An SSD of 2 GiB, as RAM is real memory here: 131,072 places, and eight reads of each on the average.
/// Misses fill the SSD several times before anything counts.
///
/// Costs a minute of CPU and 300 MiB of memory.
fn measure(bench: &mut Bench, disks: &ArrayParameters) -> Result<Row> {
    let ssd = if bench.options.quick { 512 << 20 } else { 2 << 30 };
    let volumes = &[4 * ssd];
    let count = 8 * volumes[0] / PLACE;
    let (ours, from_ram) = hit_ratio(
        &Setting {
            disks,
            pool_bytes: ssd,
            ram_bytes: ssd / 16,
            volumes,
            ssds: Default::default(),
            serving: Default::default(),
        },
        count,
    )?;
    let (one, _) = hit_ratio(
        &Setting {
            disks,
            pool_bytes: ssd + ssd / 16,
            ram_bytes: 0,
            volumes,
            ssds: Default::default(),
            serving: Default::default(),
        },
        count,
    )?;
    bench.keep(&json!({ "row": NAME, "ours": ours, "ram": from_ram, "one": one }))?;
    let percent = |ratio: f64| format!("{:.1} %", ratio * 100.0);
    let mut row = Row::judged(NAME, WHAT, &[ours / one], BAR, "", bench.options.quick);
    row.figures = vec![format!("{}, {} from RAM", percent(ours), percent(from_ram)), percent(one)];
    Ok(row)
}

/// Runs the row of this module if it is asked for.
pub(super) fn run(bench: &mut Bench, disks: &ArrayParameters) -> Result<()> {
    if bench.wants(&[NAME]) {
        let row = measure(bench, disks);
        bench.finish(row.unwrap_or_else(|error| Row::failed(NAME, WHAT, BAR, &error)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_popular_are_drawn_as_often_as_they_should_be() {
        let (zipf, mut rng) = (Zipf::new(1000, 0.9), Rng::new(1));
        let mut counts = vec![0_u32; 1000];
        (0..200_000).for_each(|_| counts[zipf.draw(&mut rng)] += 1);
        let sum: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-0.9)).sum();
        for rank in [1, 2, 10, 100] {
            let expected = 200_000.0 * f64::from(rank as u32).powf(-0.9) / sum;
            let found = f64::from(counts[rank - 1]);
            assert!((found / expected - 1.0).abs() < 0.2, "{rank}: {found} of {expected}");
        }
        assert!(counts[900..].iter().sum::<u32>() > 0);
    }

    #[test]
    fn reads_end() {
        let mut orders = reads(100, 5);
        assert_eq!(std::iter::from_fn(&mut orders).count(), 5);
    }
}

//! How much faster than in the order of their arrival scattered writes reach the disks.

use std::rc::Rc;

use forebay_device::Nanos;
use forebay_device::model::array::ArrayParameters;
use forebay_device::runtime::SECOND;
use serde_json::json;

use super::measure::Raw as _;
use crate::bench::{Bench, Result};
use crate::verdict::{Bar, Row, rate};
use forebay_lab::scene::load;
use forebay_lab::scene::load::{BLOCK, scattered, writes};
use forebay_lab::scene::{Scene, Setting, array_alone};

/// Clients of the load that makes the blocks dirty.
const WRITERS: usize = 32;

struct Case {
    name: &'static str,
    what: &'static str,
    span_bytes: u64,
    bar: Bar,
}

const CASES: [Case; 2] = [
    Case {
        name: "destage16",
        what: "destage of 1M random 4K blocks over 16 GiB, to arrival order",
        span_bytes: 16 << 30,
        bar: Bar::AtLeast(8.0),
    },
    Case {
        name: "destage100",
        what: "destage of 1M random 4K blocks over 100 GiB, to arrival order",
        span_bytes: 100 << 30,
        bar: Bar::AtLeast(3.0),
    },
];

/// A million different blocks are written at random over the span, as fast as the pool takes them;
/// then the volume is destaged. The rate is that of what was still owed when the destaging was asked
/// for, until the origin has flushed it. Beside it, the same writes in their order on a fresh array,
/// with as many in flight as the engine had at the most.
///
/// 12 GiB of pool are three times the dirty data: nothing is under pressure, so all of it is there
/// when the clock starts. Of the 16 GiB a quarter is dirty, 44 blocks in each stripe of 704 KiB; of
/// the 100 GiB a twenty-fifth, 7 in each stripe.
///
/// Costs a minute of CPU and 300 MiB of memory.
fn measure(bench: &mut Bench, disks: &ArrayParameters, case: &Case) -> Result<Row> {
    let shrink = if bench.options.quick { 8 } else { 1 };
    let span_bytes = case.span_bytes / shrink;
    let blocks = Rc::new(scattered((1 << 20) / shrink as usize, (span_bytes / BLOCK) as u32, 1));
    let scene = Scene::new(&Setting {
        disks,
        pool_bytes: 12 << 30,
        ram_bytes: 0,
        volumes: &[span_bytes],
        ssds: Default::default(),
        serving: Default::default(),
    })?;
    let filled = scene.play(0, WRITERS, writes(Rc::clone(&blocks)))?;
    let owed = scene.owed_blocks();
    let took = scene.destage(0)?;
    for &block in &*blocks {
        if scene.origin_word(block.into()) != Some(load::word(block.into())) {
            return Err(format!("WRONG DATA: block {block} on the origin"));
        }
    }
    let depth = scene.origin_writes_max();
    let counters = scene.pool.counters().list();
    drop(scene);
    let alone = |depth| array_alone(disks, span_bytes, depth, writes(Rc::clone(&blocks)));
    let direct = alone(depth)?;
    // What the clients would have had without a cache.
    let as_clients = alone(WRITERS)?;
    let per_second = |count: u64, span: Nanos| count as f64 / (span as f64 / SECOND as f64);
    let ours = per_second(owed, took);
    let theirs = per_second(blocks.len() as u64, direct);
    let clients = per_second(blocks.len() as u64, as_clients);
    bench.keep(&json!({
        "row": case.name, "owed": owed, "depth": depth, "ours": ours, "array": theirs,
        "array_as_clients": clients,
        "filled": filled.to_json(), "counters": counters,
    }))?;
    let mut row =
        Row::judged(case.name, case.what, &[ours / theirs], case.bar, "", bench.options.quick);
    row.figures = vec![rate(ours), rate(theirs)];
    row.note = format!(
        "at most {depth} origin writes in flight; with the clients' {WRITERS} the array alone takes {}",
        rate(clients)
    );
    Ok(row)
}

/// Runs the rows of this module that are asked for.
pub(super) fn run(bench: &mut Bench, disks: &ArrayParameters) -> Result<()> {
    for case in &CASES {
        if bench.wants(&[case.name]) {
            let row = measure(bench, disks, case);
            let failed = |error: String| Row::failed(case.name, case.what, case.bar, &error);
            bench.finish(row.unwrap_or_else(failed))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_blocks_are_different_ones() {
        let mut blocks = scattered(1000, 1500, 1);
        assert_ne!(blocks, scattered(1000, 1500, 2));
        assert!(!blocks.is_sorted());
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(blocks.len(), 1000);
        assert!(blocks[999] < 1500);
    }
}

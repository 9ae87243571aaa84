//! How long the index takes: `cargo run --release -p forebay-engine --example index_speed`.
//!
//! One shard of about 1 MiB for each kind of content; the mean of a million operations each, warm.
#![allow(clippy::disallowed_methods)] // it measures time

use std::hint::black_box;
use std::time::Instant;

use forebay_engine::format::State;
use forebay_engine::ids::{Location, VolumeId};
use forebay_engine::index::{Mapping, Shard};

const VOLUME: VolumeId = VolumeId(1);
const ROUNDS: u64 = 1_000_000;

fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

fn time(what: &str, rounds: u64, mut f: impl FnMut(u64)) {
    let start = Instant::now();
    (0..rounds).for_each(&mut f);
    println!("  {what:30} {:6.0} ns", start.elapsed().as_nanos() as f64 / rounds as f64);
}

fn run(name: &str, regions: u64, per_region: u64, count: u32) {
    let mut seed = 0x1234_5678_9ABC_DEF1;
    let mut list: Vec<Mapping> = Vec::new();
    for region in 0..regions {
        for i in 0..per_region {
            let slot = 256 / per_region;
            let block = (region / 4 * 4000 + region % 4) * 256 + i * slot;
            let location = Location(random(&mut seed) >> 30);
            let distance = 1 + (random(&mut seed) % 64) as u8;
            let state = State::Clean;
            list.push(Mapping { block, count, state, location, distance, sectors: 0xFF });
        }
    }
    for i in (1..list.len()).rev() {
        list.swap(i, random(&mut seed) as usize % (i + 1));
    }
    let mut shard = Shard::new();
    let start = Instant::now();
    list.iter().for_each(|mapping| shard.insert(VOLUME, *mapping, |_| ()));
    let each = start.elapsed().as_nanos() as f64 / list.len() as f64;
    println!("{name}: {} extents, {} KiB", shard.extent_count(), shard.memory_bytes() / 1024);
    println!("  {:30} {each:6.0} ns", "insert, new");
    // Few enough that reading the list itself costs nothing.
    let pick = |i: u64| &list[(i.wrapping_mul(0x9E37_79B9) % 1000) as usize];
    time("lookup of a block, hit", ROUNDS, |i| {
        shard.lookup(VOLUME, pick(i).block, 1, |found| _ = black_box(found));
    });
    time("lookup of a region", ROUNDS / 10, |i| {
        shard.lookup(VOLUME, pick(i).block & !255, 256, |found| _ = black_box(found));
    });
    time("lookup of a block, miss", ROUNDS, |i| {
        let block = pick(i).block + 4 * 256;
        shard.lookup(VOLUME, block, 1, |found| _ = black_box(found));
    });
    time("touch", ROUNDS, |i| shard.touch(VOLUME, pick(i).block, 1));
    time("insert, overwrite (two)", ROUNDS / 4, |i| {
        let location = Location(i * 64);
        shard.insert(VOLUME, Mapping { location, ..*pick(i) }, |old| _ = black_box(old));
        shard.insert(VOLUME, *pick(i), |old| _ = black_box(old));
    });
    let every = |state| move |other: State| other == state;
    time("transition, there and back (two)", ROUNDS / 4, |i| {
        let (at, want) = (pick(i), every(State::Clean));
        let (block, to) = (at.block, Some(State::Dirty));
        shard.transition(VOLUME, block, count, at.location, want, to, |old| _ = black_box(old));
        let (want, to) = (every(State::Dirty), Some(State::Clean));
        shard.transition(VOLUME, block, count, at.location, want, to, |old| _ = black_box(old));
    });
    let last = list.iter().map(|mapping| mapping.block).max().unwrap_or(0);
    let dirty = Mapping { state: State::Dirty, ..*pick(0) };
    shard.insert(VOLUME, Mapping { block: last, ..dirty }, |_| ());
    time("next_matching, past all clean", ROUNDS / 100, |_| {
        _ = black_box(shard.next_matching(VOLUME, 0, State::needs_destage));
    });
}

fn main() {
    run("64 KiB extents", 7000, 16, 16);
    run("4 KiB extents, half full", 1300, 128, 1);
    run("4 KiB extents, full", 650, 256, 1);
    run("4 KiB extents, 2 in a region", 40_000, 2, 1);
}

//! What each baseline does on a few accesses, and on fixtures with miss ratios that stay.

use super::*;
use crate::workload::Workload;

/// A workload of these blocks.
fn workload(blocks: impl IntoIterator<Item = u64>) -> Workload {
    use crate::trace::Request;
    let request = |block| {
        Ok(Request { time_us: 0, volume: 0, write: false, offset: block * 4096, bytes: 4096 })
    };
    Workload::load(blocks.into_iter().map(request)).unwrap()
}

fn misses(baseline: Baseline, capacity: usize, workload: &Workload) -> usize {
    let mut cache = baseline.cache(workload, capacity);
    workload.accesses.iter().filter(|&&block| !cache.access(block)).count()
}

#[test]
fn names_are_unique() {
    for baseline in Baseline::ALL {
        assert_eq!(Baseline::named(baseline.name()), Some(baseline));
    }
}

#[test]
fn what_fits_is_missed_once() {
    let workload = workload((0..1000).chain(0..1000).chain(0..1000));
    for baseline in Baseline::ALL {
        assert_eq!(misses(baseline, 1100, &workload), 1000, "{baseline:?}");
    }
}

#[test]
fn lru_gets_nothing_from_a_loop_that_does_not_fit_and_the_optimum_most_of_it() {
    let workload = workload((0..10).flat_map(|_| 0..1000));
    assert_eq!(misses(Baseline::Lru, 900, &workload), 10_000);
    assert_eq!(misses(Baseline::Fifo, 900, &workload), 10_000);
    // At least 899 of 1000 stay from one round to the next.
    assert!(misses(Baseline::Belady, 900, &workload) <= 1000 + 9 * 112);
}

#[test]
fn a_hit_saves_a_block_but_not_in_a_fifo() {
    let workload = workload([1, 2, 1, 3, 1]);
    assert_eq!(misses(Baseline::Fifo, 2, &workload), 4);
    assert_eq!(misses(Baseline::Lru, 2, &workload), 3);
    assert_eq!(misses(Baseline::Clock, 2, &workload), 3);
    assert_eq!(misses(Baseline::Sieve, 2, &workload), 3);
}

/// Blocks by a skewed law, with a scan now and then; the generator is a part of the fixture.
fn skewed() -> Workload {
    let mut state = 1u64;
    let mut next = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 24) as f64
    };
    let mut scanned = 100_000;
    let accesses = (0..60_000u64).map(move |at| {
        if at % 6000 < 1500 {
            scanned += 1;
            return scanned;
        }
        // The cube of an even draw: half of the accesses go to an eighth of the blocks.
        let drawn = next();
        (drawn * drawn * drawn * 5000.0) as u64 + at / 20_000 * 700
    });
    workload(accesses)
}

/// Written by this very test, after the baselines had agreed with libCacheSim on the traces of the
/// reference: a change here is a change of an algorithm.
const GOLDEN: [(Baseline, [usize; 3]); 11] = [
    (Baseline::Fifo, [51883, 42655, 36076]),
    (Baseline::Clock, [50671, 41282, 32748]),
    (Baseline::Lru, [51051, 41494, 34140]),
    (Baseline::Arc, [47533, 38237, 28312]),
    (Baseline::Lirs, [47540, 38875, 28413]),
    (Baseline::TwoQ, [48064, 39299, 31406]),
    (Baseline::Slru, [48846, 41297, 29569]),
    (Baseline::S3Fifo, [47511, 39381, 29289]),
    (Baseline::Sieve, [49485, 42362, 31055]),
    (Baseline::WTinyLfu, [49294, 44383, 31432]),
    (Baseline::Belady, [40050, 29063, 21967]),
];

#[test]
fn miss_ratios_of_the_fixture_stay() {
    let workload = skewed();
    let found = GOLDEN.map(|(baseline, _)| {
        (baseline, [200, 1000, 3000].map(|capacity| misses(baseline, capacity, &workload)))
    });
    assert_eq!(found, GOLDEN);
}

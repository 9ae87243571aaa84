//! The shard against a naive model: a map of single blocks.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::region::{Extents, advances};
use super::{GRANULE_BLOCKS, HEAT_MAX, LoadError, Mapping, Shard, shard_of};
use crate::format::{Extent, State};
use crate::ids::{Location, SECTORS_ALL, VolumeId};

const STATES: [State; 7] = [
    State::Clean,
    State::Provisional,
    State::Written,
    State::Dirty,
    State::Zero,
    State::ZeroWritten,
    State::Lost,
];

/// What the model knows about one block.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    state: State,
    location: u64,
    distance: u8,
    sectors: u8,
}

type Cells = BTreeMap<(u32, u64), Cell>;

#[derive(Default)]
struct Model {
    cells: Cells,
    heat: BTreeMap<(u32, u64), u8>,
    /// What may be cold; of a run it is only as long as all of that is.
    cold: BTreeSet<(u32, u64)>,
}

/// The single blocks of a run.
fn split(volume: u32, run: Mapping) -> impl Iterator<Item = ((u32, u64), Cell)> {
    (0..run.count).map(move |i| {
        let step = if advances(run.state) { i } else { 0 };
        let cell = Cell {
            state: run.state,
            location: run.location.0 + u64::from(step),
            distance: run.distance + step as u8,
            sectors: run.sectors,
        };
        ((volume, run.block + u64::from(i)), cell)
    })
}

fn follows(a: Cell, b: Cell) -> bool {
    let step = u64::from(advances(a.state));
    a.state == b.state
        && a.sectors == SECTORS_ALL
        && b.sectors == SECTORS_ALL
        && b.location == a.location + step
        && u64::from(b.distance) == u64::from(a.distance) + step
}

impl Model {
    /// The runs of the range as a shard must report them.
    fn runs(&self, volume: u32, block: u64, end: u64) -> Vec<Mapping> {
        let mut runs: Vec<Mapping> = Vec::new();
        let mut before: Option<(u64, Cell)> = None;
        for (&(_, at), &cell) in self.cells.range((volume, block)..(volume, end)) {
            let joins =
                before.is_some_and(|(b, c)| b + 1 == at && b / 256 == at / 256 && follows(c, cell));
            match runs.last_mut() {
                Some(run) if joins => run.count += 1,
                _ => runs.push(Mapping {
                    block: at,
                    count: 1,
                    state: cell.state,
                    location: Location(cell.location),
                    distance: cell.distance,
                    sectors: cell.sectors,
                }),
            }
            before = Some((at, cell));
        }
        runs
    }

    fn is_granule_mapped(&self, volume: u32, granule: u64) -> bool {
        let (start, end) = (granule * 16, granule * 16 + 16);
        self.cells.range((volume, start)..(volume, end)).next().is_some()
    }

    fn forget_cold(&mut self) {
        let heat = std::mem::take(&mut self.heat);
        self.heat = heat.into_iter().filter(|((v, g), _)| self.is_granule_mapped(*v, *g)).collect();
    }

    fn warm(&mut self, volume: u32, block: u64, count: u32) {
        let range = block..block + u64::from(count);
        self.cold.retain(|(of, block)| *of != volume || !range.contains(block));
    }

    fn touch(&mut self, volume: u32, block: u64, count: u32) {
        if count == 0 {
            return;
        }
        for granule in block / 16..=(block + u64::from(count) - 1) / 16 {
            if self.is_granule_mapped(volume, granule) {
                let heat = self.heat.entry((volume, granule)).or_default();
                *heat = (*heat + 1).min(HEAT_MAX);
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert {
        volume: u32,
        run: Mapping,
    },
    /// Every `step`th block of a region, each its own extent.
    Scatter {
        volume: u32,
        region: u64,
        step: u64,
        state: State,
        seed: u64,
    },
    Remove {
        volume: u32,
        block: u64,
        count: u32,
    },
    Transition {
        volume: u32,
        block: u64,
        count: u32,
        want: u8,
        to: Option<State>,
    },
    Relocate {
        volume: u32,
        block: u64,
        count: u32,
        to: u64,
        distance: u8,
    },
    Touch {
        volume: u32,
        block: u64,
        count: u32,
    },
    Cool {
        volume: u32,
        block: u64,
    },
    Chill {
        volume: u32,
        block: u64,
        count: u32,
    },
    RemoveVolume {
        volume: u32,
    },
    Reload,
}

/// Enough dense regions to split leaves.
const BLOCKS: u64 = 12 * 256;

fn state() -> impl Strategy<Value = State> {
    (0..STATES.len()).prop_map(|i| STATES[i])
}

/// Places that make merging likely: the location follows from the block, in one of a few lanes.
fn run() -> impl Strategy<Value = Mapping> {
    let shape = prop_oneof![4 => 1..=4_u32, 2 => 1..=40_u32, 1 => 200..=256_u32];
    (0..BLOCKS, shape, state(), 0..4_u64, prop_oneof![3 => Just(SECTORS_ALL), 1 => 1..=0xFE_u8])
        .prop_map(|(block, count, state, lane, sectors)| {
            let count = if sectors == SECTORS_ALL { count } else { 1 };
            let count = count.min(256 - (block % 256) as u32);
            let far = [0, 5_000, (1 << 36) - BLOCKS, 1 << 33][lane as usize];
            let step = if advances(state) { block } else { 0 };
            let distance = if advances(state) { (block % 256) as u8 } else { lane as u8 };
            Mapping { block, count, state, location: Location(far + step), distance, sectors }
        })
}

fn range() -> impl Strategy<Value = (u64, u32)> {
    (0..BLOCKS, prop_oneof![4 => 0..=8_u32, 2 => 0..=300_u32, 1 => 0..=1100_u32])
}

fn op() -> impl Strategy<Value = Op> {
    let volume = || prop_oneof![3 => Just(1_u32), 1 => Just(2_u32), 1 => Just(u32::MAX)];
    let volume_range = move || (volume(), range());
    prop_oneof![
        12 => (volume(), run()).prop_map(|(volume, run)| Op::Insert { volume, run }),
        5 => (volume(), 0..12_u64, 1..4_u64, state(), any::<u64>()).prop_map(
            |(volume, region, step, state, seed)| Op::Scatter { volume, region, step, state, seed }
        ),
        3 => volume_range().prop_map(|(volume, (block, count))| {
            Op::Remove { volume, block, count }
        }),
        6 => (volume_range(), any::<u8>(), prop::option::weighted(0.7, state())).prop_map(
            |((volume, (block, count)), want, to)| {
                Op::Transition { volume, block, count, want, to }
            }
        ),
        3 => (volume_range(), 0..4_u64, 0..3_u8).prop_map(
            |((volume, (block, count)), lane, distance)| {
                Op::Relocate { volume, block, count, to: lane * 7_000_000, distance }
            }
        ),
        4 => volume_range().prop_map(|(volume, (block, count))| Op::Touch { volume, block, count }),
        2 => (volume(), 0..BLOCKS).prop_map(|(volume, block)| Op::Cool { volume, block }),
        4 => volume_range().prop_map(|(volume, (block, count))| Op::Chill { volume, block, count }),
        1 => volume().prop_map(|volume| Op::RemoveVolume { volume }),
        1 => Just(Op::Reload),
    ]
}

/// The runs that are where a fact that names the first mapped block of the range says.
fn named(model: &Model, volume: u32, block: u64, end: u64) -> (u64, Vec<Mapping>) {
    let runs = model.runs(volume, block, end);
    let Some(first) = runs.first() else { return (0, runs) };
    let skip = if advances(first.state) { first.block - block } else { 0 };
    let Some(location) = first.location.0.checked_sub(skip) else { return (0, Vec::new()) };
    let is_named = |run: &Mapping| {
        let skip = if advances(run.state) { run.block - block } else { 0 };
        run.location.0 == location + skip
    };
    (location, runs.into_iter().filter(is_named).collect())
}

fn insert(shard: &mut Shard, model: &mut Model, volume: u32, run: Mapping) {
    let most = shard.memory_bytes() + shard.growth_max(1);
    let expected = model.runs(volume, run.block, run.block + u64::from(run.count));
    let mut displaced = Vec::new();
    shard.insert(VolumeId(volume), run, |old| displaced.push(old));
    assert_eq!(displaced, expected);
    model.cells.extend(split(volume, run));
    model.warm(volume, run.block, run.count);
    assert!(shard.memory_bytes() <= most, "more than {most} B");
}

fn transition(shard: &mut Shard, model: &mut Model, op: &Op) {
    let Op::Transition { volume, block, count, want, to } = *op else { return };
    let (location, runs) = named(model, volume, block, block + u64::from(count));
    let want = |state: State| {
        want >> (state as u8) & 1 == 1 && to.is_none_or(|to| advances(to) == advances(state))
    };
    let expected: Vec<_> = runs.into_iter().filter(|run| want(run.state)).collect();
    let mut changed = Vec::new();
    let location = Location(location);
    shard.transition(VolumeId(volume), block, count, location, want, to, |old| changed.push(old));
    assert_eq!(changed, expected);
    for (key, cell) in expected.iter().flat_map(|run| split(volume, *run)) {
        match to {
            Some(state) => model.cells.insert(key, Cell { state, ..cell }),
            None => model.cells.remove(&key),
        };
    }
}

fn relocate(shard: &mut Shard, model: &mut Model, op: &Op) {
    let Op::Relocate { volume, block, count, to, distance } = *op else { return };
    let count = count.min(250);
    let (from, expected) = named(model, volume, block, block + u64::from(count));
    let mut changed = Vec::new();
    let (from, place) = (Location(from), Location(to));
    let volume_id = VolumeId(volume);
    shard.relocate(volume_id, block, count, from, place, distance, |old| changed.push(old));
    assert_eq!(changed, expected);
    for (key, cell) in expected.iter().flat_map(|run| split(volume, *run)) {
        let skip = if advances(cell.state) { key.1 - block } else { 0 };
        let (location, distance) = (to + skip, distance + skip as u8);
        model.cells.insert(key, Cell { location, distance, ..cell });
    }
}

/// A shard loaded from the image of this one.
fn reload(shard: &Shard) -> Shard {
    let mut copy = Shard::new();
    shard.for_each_region(|volume, region, heat, extents, masks| {
        copy.load_region(volume, region, heat, extents, masks).unwrap();
        assert_eq!(copy.load_region(volume, region, 0, extents, masks), Err(LoadError::Occupied));
    });
    copy
}

fn apply(shard: &mut Shard, model: &mut Model, op: &Op) {
    match *op {
        Op::Insert { volume, run } => insert(shard, model, volume, run),
        Op::Scatter { volume, region, step, state, seed } => {
            for i in (0..256).step_by(step as usize) {
                let at = seed.wrapping_mul(i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let (location, distance) = (Location(at >> 28), (at >> 8) as u8);
                let (block, sectors) = (region * 256 + i, SECTORS_ALL);
                let run = Mapping { block, count: 1, state, location, distance, sectors };
                insert(shard, model, volume, run);
            }
        }
        Op::Remove { volume, block, count } => {
            let end = block + u64::from(count);
            let mut displaced = Vec::new();
            shard.remove(VolumeId(volume), block, count, |old| displaced.push(old));
            assert_eq!(displaced, model.runs(volume, block, end));
            model.cells.retain(|key, _| key.0 != volume || key.1 < block || key.1 >= end);
        }
        Op::Transition { .. } => transition(shard, model, op),
        Op::Relocate { .. } => relocate(shard, model, op),
        Op::Touch { volume, block, count } => {
            shard.touch(VolumeId(volume), block, count);
            model.touch(volume, block, count);
            model.warm(volume, block, count);
        }
        Op::Cool { volume, block } => {
            shard.cool(VolumeId(volume), block);
            if let Some(heat) = model.heat.get_mut(&(volume, block / 16)) {
                *heat = heat.saturating_sub(1);
            }
        }
        Op::Chill { volume, block, count } => {
            shard.chill(VolumeId(volume), block, count);
            model.cold.extend((block..block + u64::from(count)).map(|block| (volume, block)));
        }
        Op::RemoveVolume { volume } => {
            let mut displaced = Vec::new();
            shard.remove_volume(VolumeId(volume), |old| displaced.push(old));
            assert_eq!(displaced, model.runs(volume, 0, BLOCKS * 2));
            model.cells.retain(|key, _| key.0 != volume);
        }
        Op::Reload => {
            *shard = reload(shard);
            model.cold.clear();
        }
    }
    let Model { cells, cold, .. } = model;
    cold.retain(|key| cells.get(key).is_some_and(|cell| cell.state == State::Clean));
    model.forget_cold();
}

fn check_counts(shard: &Shard, model: &Model) {
    let volumes: BTreeSet<u32> = model.cells.keys().map(|key| key.0).collect();
    let runs = volumes.iter().map(|v| model.runs(*v, 0, BLOCKS * 2).len() as u64).sum::<u64>();
    assert_eq!(shard.extent_count(), runs);
    assert_eq!(shard.block_count(), model.cells.len() as u64);
    let partial = |cell: &&Cell| cell.sectors != SECTORS_ALL;
    assert_eq!(shard.partial_count(), model.cells.values().filter(partial).count());
    for state in STATES {
        let count = model.cells.values().filter(|cell| cell.state == state).count();
        assert_eq!(shard.state_block_count(state), count as u64);
    }
    shard.check();
}

fn check_content(shard: &Shard, model: &Model, want: u8, from: u64) {
    for volume in [1, 2, u32::MAX] {
        let id = VolumeId(volume);
        let mut found = Vec::new();
        shard.lookup(id, 0, BLOCKS as u32 * 2, |run| found.push(run));
        assert_eq!(found, model.runs(volume, 0, BLOCKS * 2));
        for block in 0..BLOCKS {
            let mut found = Vec::new();
            shard.lookup(id, block, 1, |run| found.push(run));
            assert_eq!(found, model.runs(volume, block, block + 1));
        }
        for block in (0..BLOCKS).step_by(GRANULE_BLOCKS as usize) {
            let heat = model.heat.get(&(volume, block / 16)).copied().unwrap_or(0);
            assert_eq!(shard.heat(id, block), heat);
            let cold = shard.cold(id, block, GRANULE_BLOCKS);
            let said = (0..16).filter(|at| cold >> at & 1 == 1).map(|at| (volume, block + at));
            said.for_each(|key| assert!(model.cold.contains(&key), "{key:?} is not cold"));
        }
        let want = |state: State| want >> (state as u8) & 1 == 1;
        let expected = model.runs(volume, from, BLOCKS * 2).into_iter().find(|run| want(run.state));
        assert_eq!(shard.next_matching(id, from, want), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn a_shard_does_what_a_map_of_blocks_does(
        ops in prop::collection::vec((op(), any::<u8>(), 0..BLOCKS), 1..60)
    ) {
        let (mut shard, mut model) = (Shard::new(), Model::default());
        for (op, _, _) in &ops {
            apply(&mut shard, &mut model, op);
            check_counts(&shard, &model);
        }
        for (_, want, from) in ops.iter().take(3) {
            check_content(&shard, &model, *want, *from);
        }
        for volume in [1, 2, u32::MAX] {
            shard.remove_volume(VolumeId(volume), |_| ());
        }
        prop_assert_eq!(shard.block_count() + shard.extent_count(), 0);
        shard.check();
    }
}

#[test]
fn leaves_split_and_join_without_losing_a_region() {
    let (mut shard, mut model) = (Shard::new(), Model::default());
    let mut seed = 7_u64;
    let mut random = |end: u64| {
        seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (seed >> 33) % end
    };
    for round in 0..12_000 {
        let (volume, block) = (1 + random(3) as u32, random(700) * 256 + random(2) * 77);
        // Grow, shrink to nothing, grow again.
        if random(8) < [7, 1, 7][round / 4000] {
            let (location, state) = (Location(random(1 << 30)), STATES[random(7) as usize]);
            let run = Mapping { block, count: 1, state, location, distance: 1, sectors: 0xFF };
            insert(&mut shard, &mut model, volume, run);
        } else {
            let end = block + 2560;
            let mut displaced = Vec::new();
            shard.remove(VolumeId(volume), block, 2560, |old| displaced.push(old));
            assert_eq!(displaced, model.runs(volume, block, end));
            model.cells.retain(|key, _| key.0 != volume || key.1 < block || key.1 >= end);
        }
        if round % 64 == 0 {
            shard.check();
            let number = random(7) as usize;
            let want = |state: State| state == STATES[number];
            let mut runs = model.runs(volume, block, u64::MAX).into_iter();
            let found = shard.next_matching(VolumeId(volume), block, want);
            let expected = runs.find(|run| want(run.state));
            assert_eq!(found, expected);
            let behind = |v| model.runs(v, 0, u64::MAX).into_iter().find(|run| want(run.state));
            let mut found_of = (volume..=3).map(|v| {
                let run = if v == volume { expected } else { behind(v) };
                run.map(|run| (VolumeId(v), run))
            });
            let expected = found_of.find_map(|found| found);
            assert_eq!(shard.next_from(VolumeId(volume), block, want), expected);
        }
        if round % 2000 == 0 {
            let runs = |v| model.runs(v, 0, u64::MAX);
            for volume in 1..=3 {
                let mut found = Vec::new();
                shard.lookup(VolumeId(volume), 0, 1 << 20, |run| found.push(run));
                assert_eq!(found, runs(volume));
            }
        }
    }
}

/// Which of the first 256 blocks are cold.
fn cold(shard: &Shard) -> Vec<u64> {
    let of = |granule: u64| shard.cold(VolumeId(1), granule * 16, 16);
    (0..256).filter(|block| of(block / 16) >> (block % 16) & 1 == 1).collect()
}

#[test]
fn single_blocks_are_cold_until_they_are_asked_for() {
    let (volume, mut shard) = (VolumeId(1), Shard::new());
    let run = |block: u64, state| {
        let (location, sectors) = (Location(block * 77 % 1009), SECTORS_ALL);
        Mapping { block, count: 1, state, location, distance: 1, sectors }
    };
    let all: Vec<u64> = (0..256).step_by(2).collect();
    all.iter().for_each(|&block| shard.insert(volume, run(block, State::Clean), |_| ()));
    assert!(cold(&shard).is_empty());
    all.iter().for_each(|&block| shard.insert_cold(volume, run(block, State::Clean), |_| ()));
    assert_eq!(cold(&shard), all);
    shard.touch(volume, 0, 256);
    assert!(cold(&shard).is_empty());
    shard.chill(volume, 0, 256);
    assert_eq!(cold(&shard), all);
    shard.touch(volume, 6, 7);
    let mut left: Vec<u64> = all.iter().copied().filter(|block| !(6..13).contains(block)).collect();
    assert_eq!(cold(&shard), left);
    // In place, with the region packed anew, and by a move; each time the others stay as they were.
    shard.insert(volume, run(20, State::Dirty), |_| ());
    left.retain(|&block| block != 20);
    assert_eq!(cold(&shard), left);
    shard.insert(volume, run(21, State::Clean), |_| ());
    shard.remove(volume, 30, 1, |_| ());
    left.retain(|&block| block != 30);
    assert_eq!(cold(&shard), left);
    shard.relocate(volume, 40, 1, Location(40 * 77 % 1009), Location(1 << 30), 9, |_| ());
    assert_eq!(cold(&shard), left);
    let clean = |state| state == State::Dirty;
    let at = Location(20 * 77 % 1009);
    shard.transition(volume, 20, 1, at, clean, Some(State::Clean), |_| ());
    assert_eq!(cold(&shard), left, "what was written is not cold");
    assert!(cold(&reload(&shard)).is_empty());
    shard.check();
}

#[test]
fn what_came_in_together_is_cold_as_long_as_nothing_of_it_is_asked_for() {
    let (volume, mut shard) = (VolumeId(1), Shard::new());
    let run = |block: u64, at: u64| {
        let (location, sectors) = (Location(at), SECTORS_ALL);
        Mapping { block, count: 16, state: State::Clean, location, distance: 1, sectors }
    };
    shard.insert(volume, run(0, 500), |_| ());
    shard.insert(volume, run(32, 900), |_| ());
    shard.chill(volume, 0, 8);
    assert!(cold(&shard).is_empty(), "half of one says nothing");
    shard.chill(volume, 0, 64);
    assert_eq!(cold(&shard), (0..16).chain(32..48).collect::<Vec<_>>());
    shard.touch(volume, 40, 1);
    assert_eq!(cold(&shard), (0..16).collect::<Vec<_>>());
    // Cut in two, each part is what the whole was.
    shard.remove(volume, 4, 2, |_| ());
    assert_eq!(cold(&shard), (0..4).chain(6..16).collect::<Vec<_>>());
    let mut runs = 0;
    shard.lookup(volume, 0, 256, |_| runs += 1);
    assert_eq!(runs, 3, "cold or not, a run is one");
    shard.check();
}

#[test]
fn images_come_in_order_and_alike_whatever_the_order_of_insertion() {
    let mut keys: Vec<(u32, u64)> =
        (0..500).map(|i| (1 + i % 3, u64::from(i) * 0x9E37 % 4001)).collect();
    let build = |keys: &[(u32, u64)]| {
        let mut shard = Shard::new();
        for &(volume, block) in keys {
            let (location, state) = (Location(block * 7 % 1000), State::Clean);
            let run = Mapping { block, count: 1, state, location, distance: 1, sectors: 0xFF };
            shard.insert(VolumeId(volume), run, |_| ());
        }
        let mut image = Vec::new();
        shard.for_each_region(|volume, region, heat, extents, masks| {
            image.push((volume, region, heat, extents.to_vec(), masks.to_vec()));
        });
        image
    };
    let image = build(&keys);
    assert!(image.is_sorted_by_key(|entry| (entry.0, entry.1)));
    keys.reverse();
    assert_eq!(image, build(&keys));
}

#[test]
fn a_malformed_image_is_refused_and_changes_nothing() {
    let extent = |first, count| Extent::new(first, count, State::Clean, Location(9), 1);
    let cases: [(&[Extent], &[u8], LoadError); 7] = [
        (&[extent(4, 2), extent(5, 1)], &[], LoadError::Extent),
        (&[extent(4, 2), extent(1, 1)], &[], LoadError::Extent),
        (&[Extent(0)], &[], LoadError::Extent),
        (&[Extent(extent(200, 1).0 | 0xFF00)], &[], LoadError::Extent),
        (&[extent(0, 2).with_partial(true)], &[1], LoadError::Extent),
        (&[extent(0, 1).with_partial(true)], &[], LoadError::Masks),
        (&[extent(0, 1).with_partial(true)], &[0xFF], LoadError::Masks),
    ];
    let mut shard = Shard::new();
    for (extents, masks, error) in cases {
        assert_eq!(shard.load_region(VolumeId(1), 0, 0, extents, masks), Err(error));
        assert_eq!(shard.block_count(), 0);
        shard.check();
    }
}

#[test]
fn the_shard_of_a_block_never_changes() {
    let golden = [
        ((1, 0, 64), 27),
        ((1, 1023, 64), 27),
        ((1, 1024, 64), 47),
        ((2, 0, 64), 1),
        ((1, 0, 65_536), 28280),
        ((7, 1 << 30, 1000), 112),
        ((124, (1 << 40) - 1, 65_536), 25492),
    ];
    let found = golden.map(|((volume, block, shards), _)| {
        ((volume, block, shards), shard_of(VolumeId(volume), block, shards))
    });
    assert_eq!(found, golden);
}

#[test]
fn stripes_spread_evenly_over_shards() {
    let mut counts = [0_u32; 64];
    for volume in 1..=4 {
        (0..16_000).for_each(|stripe| {
            counts[shard_of(VolumeId(volume), stripe * 1024, 64) as usize] += 1;
        });
    }
    assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
}

#[test]
fn merging_never_makes_a_distance_wrap() {
    let mut extents = Extents::new();
    extents.push(Extent::new(0, 1, State::Clean, Location(0), 255));
    extents.push(Extent::new(1, 1, State::Clean, Location(1), 0));
    assert_eq!(extents.as_slice().len(), 2);
}

//! What every policy must keep, and what S3-FIFO does beyond that.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn unit(id: u32, queue: Queue, live_blocks: u32) -> Unit {
    Unit {
        id,
        queue,
        opened: u64::from(id),
        live_blocks,
        dirty_blocks: 0,
        unflushed_blocks: 0,
        copies: 1,
        size_blocks: 256,
        packed_blocks: 240,
        pinned: false,
    }
}

fn granule(number: u64) -> Part {
    Part::whole(Granule { volume: VolumeId(1), number })
}

/// The first so many blocks of a granule.
fn blocks(number: u64, count: u32) -> Part {
    Part::of(VolumeId(1), number * 16, count)
}

fn s3fifo() -> S3Fifo {
    S3Fifo::new(S3FifoConfig { ghost_granules: 64, ..S3FifoConfig::for_pool(4096) })
}

fn policies() -> [Box<dyn Policy>; 2] {
    [Box::new(Fifo::new()), Box::new(s3fifo())]
}

fn choose(policy: &mut dyn Policy, units: &[Unit]) -> Option<u32> {
    policy.choose(&Survey::of(units.iter().copied()))
}

#[test]
fn blocks_are_cut_where_granules_begin() {
    let cut = |first, count| -> Vec<_> {
        Part::each(VolumeId(1), first, count).map(|it| (it.granule.number, it.blocks)).collect()
    };
    assert_eq!(cut(15, 1), [(0, 0x8000)]);
    assert_eq!(cut(15, 19), [(0, 0x8000), (1, 0xFFFF), (2, 0x0003)]);
    assert_eq!(cut(16, 16), [(1, 0xFFFF)]);
    assert_eq!(cut(3, 0), []);
    assert_eq!(Part::of(VolumeId(1), 15, 19).count(), 1);
}

#[test]
fn a_write_stays_where_its_blocks_lie_and_a_new_one_goes_where_a_read_would() {
    for queue in [Queue::Probation, Queue::Main] {
        for mut policy in policies() {
            assert_eq!(policy.place(granule(1), Some(queue)), queue);
        }
    }
    let mut policy = s3fifo();
    // Room has been needed: nothing fills main any more.
    policy.choose(&Survey::default());
    assert_eq!(policy.place(granule(1), None), Queue::Probation);
    assert!(!policy.retain(granule(1), Queue::Probation, 0));
    assert_eq!(policy.place(granule(1), None), Queue::Probation, "it is still here");
    policy.dropped(granule(1), Queue::Probation);
    assert_eq!(policy.place(granule(1), None), Queue::Main);
    assert_eq!(policy.place(granule(1), Some(Queue::Probation)), Queue::Probation);
}

#[test]
fn empty_units_go_first() {
    let units =
        [unit(1, Queue::Probation, 200), unit(2, Queue::Main, 200), unit(3, Queue::Main, 0)];
    for mut policy in policies() {
        assert_eq!(choose(&mut *policy, &units), Some(3));
    }
}

#[test]
fn fifo_takes_the_oldest_of_either_stream() {
    let units =
        [unit(3, Queue::Probation, 9), unit(2, Queue::Main, 9), unit(4, Queue::Probation, 9)];
    assert_eq!(choose(&mut Fifo::new(), &units), Some(2));
}

#[test]
fn s3fifo_drains_probation_while_it_is_large() {
    let mut units = vec![unit(20, Queue::Probation, 200), unit(21, Queue::Probation, 200)];
    units.extend((0..8).map(|id| unit(id, Queue::Main, 200)));
    assert_eq!(choose(&mut s3fifo(), &units), Some(20));
    units.remove(0);
    units.extend((8..14).map(|id| unit(id, Queue::Main, 200)));
    assert_eq!(choose(&mut s3fifo(), &units), Some(0), "below 7 % Main gives way");
}

#[test]
fn a_hit_soon_after_is_no_reuse() {
    // Of 4096 blocks: 8 % are 327, 6 % are 245.
    for (queue, young) in [(Queue::Probation, 327), (Queue::Main, 245)] {
        let policy = s3fifo();
        assert!(!policy.is_reuse(queue, young - 1) && policy.is_reuse(queue, young));
        assert!(Fifo::new().is_reuse(queue, 0));
    }
}

#[test]
fn s3fifo_compacts_only_where_that_gains_room() {
    let full =
        |packed_blocks| [1, 2, 3].map(|id| Unit { packed_blocks, ..unit(id, Queue::Main, 127) });
    let mut policy = s3fifo();
    policy.spend(1000, 0);
    assert_eq!(choose(&mut policy, &full(240)), Some(1));
    assert!(policy.retain(granule(1), Queue::Main, 0), "cold, but there is room for it");
    assert_eq!(choose(&mut policy, &full(127)), Some(1));
    assert!(!policy.retain(granule(2), Queue::Main, 0), "its set cannot be packed any tighter");
}

#[test]
fn what_an_origin_can_lose_is_packed_last() {
    let written_through = Unit { unflushed_blocks: 1, ..unit(1, Queue::Probation, 20) };
    let mut policy = s3fifo();
    policy.spend(1000, 0);
    assert_eq!(choose(&mut policy, &[written_through, unit(2, Queue::Main, 120)]), Some(2));
    assert_eq!(choose(&mut policy, &[written_through]), Some(1));
}

#[test]
fn s3fifo_takes_the_other_stream_before_dirty_blocks() {
    let mut dirty = unit(1, Queue::Probation, 200);
    dirty.dirty_blocks = 1;
    let units = [dirty, unit(2, Queue::Main, 200)];
    assert_eq!(choose(&mut s3fifo(), &units), Some(2));
}

#[test]
fn few_dirty_blocks_are_the_last_resort_and_many_are_none() {
    let with_dirty =
        |id, dirty_blocks| Unit { dirty_blocks, ..unit(id, Queue::Probation, dirty_blocks + 9) };
    for mut policy in policies() {
        let units = [with_dirty(1, 30), with_dirty(2, 4), with_dirty(3, 5)];
        assert_eq!(choose(&mut *policy, &units), Some(2));
        assert_eq!(choose(&mut *policy, &[with_dirty(1, 31)]), None);
    }
}

#[test]
fn s3fifo_packs_what_has_the_fewest_dirty_blocks_within_its_budget() {
    let with_dirty = |id, dirty_blocks| Unit { dirty_blocks, ..unit(id, Queue::Probation, 200) };
    let units = [with_dirty(1, 150), with_dirty(2, 80), with_dirty(3, 85)];
    let mut policy = s3fifo();
    assert_eq!(choose(&mut policy, &units), None, "nothing was admitted");
    policy.spend(200, 0);
    assert_eq!(choose(&mut policy, &units), Some(2), "80 of the 100 that may be moved");
    assert_eq!(choose(&mut policy, &units), None);
    policy.spend(800, 0);
    assert_eq!(choose(&mut policy, &[with_dirty(1, 86)]), None, "86 moved for room for 170");
    policy.set_write_amplification_max(200);
    assert_eq!(choose(&mut policy, &[with_dirty(1, 86)]), Some(1));
    let clean = Unit { dirty_blocks: 0, ..unit(4, Queue::Main, 200) };
    assert_eq!(choose(&mut policy, &[units[1], clean]), Some(4));
}

#[test]
fn what_was_evicted_of_late_comes_back_into_main() {
    let mut policy = s3fifo();
    assert_eq!(policy.admit(granule(5)), Some(Queue::Probation));
    policy.dropped(blocks(5, 2), Queue::Probation);
    assert_eq!(policy.admit(blocks(5, 1)), Some(Queue::Main));
    assert_eq!(policy.admit(granule(5)), Some(Queue::Main), "some of them were here");
    let neighbour = Part::of(VolumeId(1), 5 * 16 + 2, 1);
    assert_eq!(policy.admit(neighbour), Some(Queue::Probation), "it was not");
    assert_eq!(policy.ghost_hits(), 2);
}

/// Share of the live space, in whole percent, up to which probation is left alone.
fn share_percent(policy: &mut dyn Policy) -> Option<u64> {
    let mut is_left_alone = |&percent: &u64| {
        let oldest = [unit(0, Queue::Probation, 200), unit(1, Queue::Main, 200)];
        policy.choose(&Survey::of_oldest(oldest, percent * 100, 10_000)) == Some(1)
    };
    (0..=100).rev().find(|percent| is_left_alone(percent))
}

/// A granule is evicted from a queue and missed so often.
fn miss_after_leaving(policy: &mut S3Fifo, queue: Queue, times: u32) {
    policy.dropped(granule(1), queue);
    (0..times).for_each(|_| policy.access(granule(1), Access::Read, false));
}

#[test]
fn the_queue_grows_whose_ghost_knows_what_is_missed() {
    let mut policy = s3fifo();
    assert_eq!(share_percent(&mut policy), Some(7));
    // Half of 64 granules: 3.1 % for each.
    miss_after_leaving(&mut policy, Queue::Probation, 3);
    assert_eq!(share_percent(&mut policy), Some(16));
    policy.access(granule(1), Access::Write, false);
    assert_eq!(share_percent(&mut policy), Some(19), "a write teaches as a read does");
    miss_after_leaving(&mut policy, Queue::Main, 2);
    assert_eq!(share_percent(&mut policy), Some(13), "it is known by the queue that it left last");
    miss_after_leaving(&mut policy, Queue::Probation, 1);
    assert_eq!(share_percent(&mut policy), Some(16), "both ways round");
}

#[test]
fn hits_and_what_no_ghost_knows_teach_nothing() {
    let mut policy = s3fifo();
    miss_after_leaving(&mut policy, Queue::Probation, 0);
    policy.access(granule(1), Access::Read, true);
    policy.access(granule(2), Access::Read, false);
    assert_eq!(share_percent(&mut policy), Some(7));
}

#[test]
fn the_share_has_both_bounds_and_comes_back_from_them() {
    let mut policy = s3fifo();
    for (queue, bound, next) in [(Queue::Probation, 50, 46), (Queue::Main, 1, 4)] {
        miss_after_leaving(&mut policy, queue, 1000);
        assert_eq!(share_percent(&mut policy), Some(bound));
        let other = if queue == Queue::Main { Queue::Probation } else { Queue::Main };
        miss_after_leaving(&mut policy, other, 1);
        assert_eq!(share_percent(&mut policy), Some(next));
    }
}

#[test]
fn while_the_pool_fills_main_takes_what_exceeds_the_share_of_probation() {
    let mut policy = s3fifo();
    policy.spend(286, 0);
    assert_eq!(policy.admit(granule(1)), Some(Queue::Probation));
    policy.spend(1, 0);
    assert_eq!(policy.admit(granule(2)), Some(Queue::Main), "287 of 4096 blocks");
    assert_eq!(policy.ghost_hits(), 0);
    assert!(choose(&mut policy, &[unit(1, Queue::Main, 200)]).is_some());
    assert_eq!(policy.admit(granule(3)), Some(Queue::Probation), "the pool has been full");
}

#[test]
fn two_ghosts_take_the_memory_of_one() {
    for ghost_granules in [0, 1, 13, 64, 1 << 20] {
        let config = S3FifoConfig { ghost_granules, ..S3FifoConfig::for_pool(4096) };
        let bytes = S3Fifo::new(config).memory_bytes() - size_of::<S3Fifo>();
        let one = Ghost::new(ghost_granules).heap_bytes();
        assert!(bytes <= one + Ghost::new(1).heap_bytes(), "{ghost_granules}: {bytes} {one}");
    }
}

#[test]
fn what_was_not_moved_for_a_lap_is_not_moved_while_writers_wait() {
    let mut policy = s3fifo();
    let (pool, window) = (4096, 4096 / 8);
    policy.spend(10 * pool, 0);
    let mut kept = |granules: u64, holds_back: bool| {
        policy.choose(&Survey::default().held_back(holds_back));
        (0..granules).filter(|&n| policy.retain(granule(n), Queue::Main, 3)).count()
    };
    let most = (window / 2 / 16) as usize;
    let while_they_wait = kept(pool / 16, true);
    assert!((most - 1..=most).contains(&while_they_wait), "{while_they_wait} of {most}");
    assert!(kept(pool / 16, false) > 3 * most, "nobody waits: all that was saved up");
}

#[test]
fn what_is_refused_takes_nothing_from_what_writers_wait_for() {
    let mut policy = s3fifo();
    policy.spend(4096, 0);
    policy.spend_overhead(4096);
    while policy.retain(granule(0), Queue::Main, 1) {}
    policy.choose(&Survey::default().held_back(true));
    (0..1000).for_each(|n| assert!(!policy.retain(granule(n), Queue::Main, 1)));
    assert!(policy.retain(granule(1), Queue::Main, 3));
}

#[test]
fn reuse_is_retained_within_the_budget() {
    let mut policy = s3fifo();
    assert!(!policy.retain(granule(1), Queue::Main, 3), "nothing admitted, nothing moved");
    policy.spend(64, 0);
    assert!(!policy.retain(granule(1), Queue::Probation, 0), "nobody has asked again");
    assert!(policy.retain(granule(1), Queue::Probation, 1));
    assert!(!policy.retain(granule(2), Queue::Main, 1), "a part is left to what is hottest");
    assert!(policy.retain(granule(2), Queue::Main, 3));
    assert!(!policy.retain(granule(3), Queue::Main, 9), "both halves are promised");
    policy.dropped(granule(3), Queue::Main);
    assert_eq!(policy.admit(granule(3)), Some(Queue::Main), "what cost forbade is remembered");
}

#[test]
fn a_few_blocks_of_a_granule_promise_no_more_than_themselves() {
    let mut policy = s3fifo();
    policy.spend(64, 0);
    assert!(policy.retain(granule(1), Queue::Main, 3));
    assert!(policy.retain(blocks(2, 14), Queue::Main, 3));
    assert!(!policy.retain(blocks(3, 3), Queue::Main, 3));
    assert!(policy.retain(blocks(4, 2), Queue::Main, 3));
}

#[test]
fn headers_and_images_are_paid_by_what_is_not_hottest() {
    let mut policy = s3fifo();
    policy.spend(1000, 0);
    policy.spend_overhead(240);
    (0..12).for_each(|n| assert!(policy.retain(granule(n), Queue::Main, 1)));
    assert!(policy.retain(blocks(12, 8), Queue::Main, 1));
    for heat in [1, 2] {
        assert!(!policy.retain(granule(2), Queue::Main, heat), "450 is what it may come to");
    }
    assert!(policy.retain(granule(2), Queue::Main, 3));
}

#[test]
fn memory_is_what_is_reckoned_with() {
    // Tables have a size that they are not below, and small pools a larger sample.
    const SMALL: u64 = 4 << 10;
    for mib in [16, 64, 128, 500, 640, 1024, 1 << 20] {
        let blocks = (mib << 20) / crate::ids::BLOCK_BYTES;
        let policy = S3Fifo::new(S3FifoConfig::for_pool(blocks)).memory_bytes();
        let samples = [Reread::of_first_reads(blocks), Reread::of_streams(blocks)];
        let samples: usize = samples.iter().map(Reread::heap_bytes).sum();
        let most = crate::limits::POLICY_BYTES_PER_GIB * mib / 1024;
        let most = if mib < 512 { most + SMALL } else { most };
        assert!((policy + samples) as u64 <= most, "{mib} MiB: {policy} and {samples} of {most}");
    }
}

fn any_queue() -> impl Strategy<Value = Queue> {
    prop_oneof![Just(Queue::Probation), Just(Queue::Main)]
}

fn any_units() -> impl Strategy<Value = Vec<Unit>> {
    let fields = (any_queue(), 0..1000u64, 0..=256u32, 0..=256u32, any::<bool>());
    proptest::collection::vec(fields, 0..40).prop_map(|fields| {
        let numbered = fields.into_iter().zip(0..);
        numbered
            .map(|((queue, opened, live_blocks, dirty, pinned), id)| {
                let dirty_blocks = if dirty % 2 == 0 { 0 } else { dirty.min(live_blocks) };
                Unit { opened, dirty_blocks, pinned, ..unit(id, queue, live_blocks) }
            })
            .collect()
    })
}

#[derive(Clone, Debug)]
enum Call {
    Access(u64, bool, bool),
    Admit(u64),
    /// And whether writers are held back.
    Choose(Vec<Unit>, bool),
    /// The live blocks of the granule, moved at once if it is retained.
    Retain(u64, Queue, u8, u32),
    Spend(u64),
}

fn any_call() -> impl Strategy<Value = Call> {
    let number = 0..200u64;
    prop_oneof![
        (number.clone(), any::<bool>(), any::<bool>()).prop_map(|(n, w, h)| Call::Access(n, w, h)),
        number.clone().prop_map(Call::Admit),
        (any_units(), any::<bool>()).prop_map(|(units, held)| Call::Choose(units, held)),
        (number, any_queue(), 0..4u8, 1..=16u32).prop_map(|(n, q, h, b)| Call::Retain(n, q, h, b)),
        (0..400u64).prop_map(Call::Spend),
    ]
}

/// What a policy answered: a queue, a unit or a yes, as a number.
fn apply(policy: &mut dyn Policy, call: &Call) -> u64 {
    match *call {
        Call::Access(number, write, hit) => {
            policy.access(granule(number), if write { Access::Write } else { Access::Read }, hit);
            0
        }
        Call::Admit(number) => policy.admit(granule(number)).map_or(0, |queue| queue as u64 + 1),
        Call::Choose(ref units, held) => {
            let survey = Survey::of(units.iter().copied()).held_back(held);
            policy.choose(&survey).map_or(0, |id| u64::from(id) + 1)
        }
        Call::Retain(number, queue, heat, count) => {
            let retained = policy.retain(blocks(number, count), queue, heat);
            match retained {
                true => policy.spend(0, count.into()),
                false => policy.dropped(blocks(number, count), queue),
            }
            u64::from(retained)
        }
        Call::Spend(admitted) => {
            policy.spend(admitted, 0);
            0
        }
    }
}

proptest! {
    #[test]
    fn only_what_may_be_reclaimed_is_chosen(units in any_units()) {
        for mut policy in policies() {
            let free = |unit: &&Unit| !unit.pinned;
            let Some(id) = choose(&mut *policy, &units) else {
                prop_assert!(units.iter().filter(free).all(|unit| unit.dirty_blocks > 0));
                continue;
            };
            let chosen = units[id as usize];
            prop_assert!(!chosen.pinned);
            if units.iter().filter(free).any(|unit| unit.live_blocks == 0) {
                prop_assert_eq!(chosen.live_blocks, 0);
            }
            if units.iter().filter(free).any(|unit| unit.dirty_blocks == 0) {
                prop_assert_eq!(chosen.dirty_blocks, 0);
            } else {
                prop_assert!(chosen.dirty_blocks * 8 <= chosen.size_blocks);
            }
        }
    }

    #[test]
    fn the_same_calls_get_the_same_answers(calls in proptest::collection::vec(any_call(), 0..200)) {
        for (mut one, mut other) in policies().into_iter().zip(policies()) {
            for call in &calls {
                prop_assert_eq!(apply(&mut *one, call), apply(&mut *other, call));
            }
        }
    }

    #[test]
    fn the_share_of_probation_stays_within_its_bounds(
        calls in proptest::collection::vec(any_call(), 0..400),
        ghost_granules in 0..300u32,
    ) {
        let config = S3FifoConfig { ghost_granules, ..S3FifoConfig::for_pool(4096) };
        let mut policy = S3Fifo::new(config);
        for call in &calls {
            apply(&mut policy, call);
        }
        let percent = share_percent(&mut policy);
        prop_assert!(percent.is_some_and(|percent| (1..=50).contains(&percent)), "{:?}", percent);
    }

    #[test]
    fn every_access_is_counted_and_memory_does_not_grow(
        calls in proptest::collection::vec(any_call(), 0..200),
    ) {
        for mut policy in policies() {
            let memory_bytes = policy.memory_bytes();
            let mut expected = BTreeMap::new();
            for call in &calls {
                apply(&mut *policy, call);
                if let Call::Access(_, write, hit) = *call {
                    *expected.entry((write, hit)).or_insert(0) += 1;
                }
            }
            let expect = |write, hit| expected.get(&(write, hit)).copied().unwrap_or(0);
            let counts = policy.counts();
            prop_assert_eq!(counts.read_hits, expect(false, true));
            prop_assert_eq!(counts.read_misses, expect(false, false));
            prop_assert_eq!(counts.write_hits, expect(true, true));
            prop_assert_eq!(counts.write_misses, expect(true, false));
            prop_assert_eq!(counts.total(), expected.values().sum::<u64>());
            prop_assert_eq!(policy.memory_bytes(), memory_bytes);
        }
    }

    #[test]
    fn retention_stays_within_the_budget(
        calls in proptest::collection::vec(any_call(), 0..400),
        percent in 100..400u32,
        window_blocks in 1..4000u64,
    ) {
        let mut policy = S3Fifo::new(S3FifoConfig {
            write_amplification_max_percent: percent,
            window_blocks,
            ..S3FifoConfig::for_pool(4096)
        });
        let (mut admitted, mut moved) = (0, 0);
        for call in &calls {
            let answer = apply(&mut policy, call);
            match *call {
                Call::Spend(blocks) => admitted += blocks,
                Call::Retain(.., blocks) => moved += answer * u64::from(blocks),
                _ => {}
            }
            prop_assert!(moved * 100 <= admitted * u64::from(percent - 100));
        }
    }

    #[test]
    fn the_ghost_stays_within_its_capacity(
        capacity in 0..300u32,
        numbers in proptest::collection::vec(0..2000u64, 0..1500),
    ) {
        let mut ghost = Ghost::new(capacity);
        for &number in &numbers {
            ghost.insert(granule(number));
            prop_assert_eq!(ghost.contains(granule(number)), capacity > 0);
            prop_assert!(ghost.len() <= capacity as usize);
        }
    }
}

//! What goes past the cache, and how it is counted.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::{Crash, Rng};
use forebay_device::runtime::SECOND;
use forebay_device::{Buf, Request};
use forebay_engine::bypass::{BypassCounters, Reason};
use forebay_engine::planted::Bug;
use forebay_engine::{Mode, Place, Populate, SequentialWhen, Tuning, VolumeSettings};

use super::rig::{BLOCK, Plan, Rig, SOON, lazy, provoke, same, survive};

const MIB: u64 = 1 << 20;

/// Requests and bytes that went past for a reason: reads, then writes.
type Past = (u64, u64, u64, u64);

fn of(counters: &BypassCounters, reason: Reason) -> Past {
    let it = counters.of(reason);
    let (reads, writes) = (&it.read_requests, &it.write_requests);
    (reads.get(), it.read_bytes.get(), writes.get(), it.write_bytes.get())
}

fn sum(counters: &BypassCounters) -> Past {
    Reason::ALL
        .into_iter()
        .map(|reason| of(counters, reason))
        .fold((0, 0, 0, 0), |all, one| (all.0 + one.0, all.1 + one.1, all.2 + one.2, all.3 + one.3))
}

/// All that has gone past went for this reason; of the pool as of its volume.
fn only(rig: &Rig, reason: Reason, expected: Past) {
    let (pool, volume) = (rig.pool(), rig.volume());
    for counters in [pool.bypass(), volume.bypass()] {
        assert_eq!(of(counters, reason), expected, "{reason:?}");
        assert_eq!(sum(counters), expected, "nothing but {reason:?}");
    }
}

fn rig(mode: Mode) -> Rc<Rig> {
    Rig::new(1, Plan { mode, origin_bytes: 8 * MIB, ..Plan::default() })
}

fn set(rig: &Rig, settings: VolumeSettings) {
    let volume = rig.volume();
    rig.run(async move { volume.set(settings).await }).unwrap().unwrap();
}

fn read_bytes(rig: &Rig, offset: u64, len: u64) {
    let volume = rig.volume();
    let read = async move { volume.read(offset, Buf::new(len as usize)).await.1 };
    rig.run(read).unwrap().unwrap();
    rig.pause(SOON);
}

fn write_bytes(rig: &Rig, offset: u64, len: u64) {
    let volume = rig.volume();
    let data = Buf::zeroed(len as usize).freeze();
    rig.run(async move { volume.write(offset, data, false).await }).unwrap().unwrap();
}

fn zero(rig: &Rig, len: u64) {
    let volume = rig.volume();
    rig.run(async move { volume.write_zeroes(0, len, false).await }).unwrap().unwrap();
}

#[test]
fn a_mode_sends_past_what_it_says() {
    for (mode, reads, writes) in [
        (Mode::Writeback, 0, 0),
        (Mode::Writeonly, 1, 0),
        (Mode::Writethrough, 0, 1),
        (Mode::Readonly, 0, 1),
        (Mode::Bypass, 1, 1),
    ] {
        let rig = rig(mode);
        read_bytes(&rig, 5 * MIB, 8192);
        write_bytes(&rig, 0, 4096);
        only(&rig, Reason::Mode, (reads, reads * 8192, writes, writes * 4096));
    }
}

#[test]
fn long_zeroes_go_past_and_short_ones_do_not() {
    let rig = rig(Mode::Writeback);
    zero(&rig, MIB);
    only(&rig, Reason::Zeroes, (0, 0, 0, 0));
    rig.destage().unwrap();
    zero(&rig, 2 * MIB);
    only(&rig, Reason::Zeroes, (0, 0, 1, 2 * MIB));
}

#[test]
fn a_stream_of_reads_goes_past_from_its_cutoff_on_and_hits_do_not() {
    let rig = rig(Mode::Writeback);
    read_bytes(&rig, 5 * MIB / 4, 64 << 10);
    for at in (0..2 * MIB).step_by(256 << 10) {
        read_bytes(&rig, at, 256 << 10);
    }
    // Of the fifth a quarter was cached.
    only(&rig, Reason::Sequential, (4, MIB - (64 << 10), 0, 0));
    let (pool, volume) = (rig.pool(), rig.volume());
    let (all, own) = (pool.counters(), volume.counters());
    let counts = [&all.read_hits, &all.read_partial_hits, &all.read_misses].map(Cell::get);
    assert_eq!(counts, [0, 1, 8]);
    for streams in [
        [&all.read_stream_hits, &all.read_stream_partial_hits, &all.read_stream_misses],
        [&own.read_stream_hits, &own.read_stream_partial_hits, &own.read_stream_misses],
    ] {
        assert_eq!(streams.map(Cell::get), [0, 1, 3], "counted apart");
    }
    read_bytes(&rig, 0, 256 << 10);
    assert_eq!((all.read_hits.get(), all.read_stream_hits.get()), (1, 0));
}

#[test]
fn what_is_not_asked_for_often_enough_goes_past() {
    let rig = rig(Mode::Writeback);
    let populate = Populate::Custom { on_read: Some(3), on_write: Some(2) };
    set(&rig, VolumeSettings { populate, ..Default::default() });
    for _ in 0..5 {
        read_bytes(&rig, 5 * MIB, 4096);
        write_bytes(&rig, 0, 4096);
    }
    only(&rig, Reason::Profile, (2, 2 * 4096, 1, 4096));
}

/// Else a volume whose clients write around the log and never flush would cache next to nothing.
#[test]
fn an_origin_is_flushed_soon_where_reads_wait_for_it_to_be_cached() {
    let tuning = Tuning { origin_flush_interval: 2 * SECOND, ..lazy() };
    let rig = Rig::new(1, Plan { tuning, origin_bytes: 8 * MIB, ..Plan::default() });
    zero(&rig, 2 * MIB);
    rig.pause(SECOND / 2);
    let refused = |rig: &Rig| of(rig.pool().bypass(), Reason::Unflushed).1;
    read_bytes(&rig, MIB, 4096);
    assert_eq!(refused(&rig), 4096, "nobody needed a flush till then");
    rig.pause(SECOND / 2);
    read_bytes(&rig, MIB, 4096);
    read_bytes(&rig, MIB, 4096);
    assert_eq!(refused(&rig), 4096);
    assert_eq!(rig.pool().counters().read_hits.get(), 1);
}

#[test]
fn what_the_origin_may_lose_goes_past_until_it_is_flushed() {
    let rig = rig(Mode::Writeback);
    zero(&rig, 2 * MIB);
    read_bytes(&rig, MIB, 4096);
    let pool = rig.pool();
    assert_eq!(of(pool.bypass(), Reason::Unflushed), (1, 4096, 0, 0));
    rig.flush().unwrap();
    read_bytes(&rig, MIB, 4096);
    assert_eq!(of(pool.bypass(), Reason::Unflushed), (1, 4096, 0, 0));
}

/// Beside it, in the same 4 MiB and even in the same cache block, what was asked for is cached.
#[test]
fn what_the_origin_may_lose_keeps_nothing_beside_it_from_being_cached() {
    let rig = rig(Mode::Writeback);
    let volume = rig.volume();
    let set = async move { volume.set_with(VolumeSettings::default(), 1 << 20).await };
    rig.run(set).unwrap().unwrap();
    zero(&rig, 2 * MIB + (64 << 10));
    for (hits, offset) in [(1, 3 * MIB), (2, 2 * MIB + (512 << 10))] {
        read_bytes(&rig, offset, 4096);
        read_bytes(&rig, offset, 4096);
        assert_eq!(rig.pool().counters().read_hits.get(), hits, "at {offset}");
    }
    assert_eq!(of(rig.pool().bypass(), Reason::Unflushed), (0, 0, 0, 0));
    let cached = |offset| {
        let mut extents = Vec::new();
        rig.volume().status(offset, 4096, &mut extents).unwrap();
        extents.iter().any(|extent| extent.place == Place::Clean)
    };
    assert!(!cached(2 * MIB + (32 << 10)) && cached(2 * MIB + (512 << 10)));
}

#[test]
fn the_second_of_two_reads_of_the_same_miss_goes_past() {
    let rig = rig(Mode::Writeback);
    rig.origin_gate.hold(2, |request| matches!(request, Request::Read { .. }));
    rig.start_read(3);
    rig.start_read(3);
    rig.pause(SOON);
    rig.origin_gate.release();
    rig.pause(SOON);
    only(&rig, Reason::Overlap, (1, 4096, 0, 0));
}

#[test]
fn the_part_of_a_block_at_the_end_is_never_cached() {
    let rig = Rig::new(1, Plan { origin_bytes: MIB + 512, ..Plan::default() });
    read_bytes(&rig, MIB, 512);
    write_bytes(&rig, MIB - 4096, 4096 + 512);
    only(&rig, Reason::Tail, (1, 512, 1, 512));
}

/// Two reasons of one request: it counts once, with all of its bytes.
#[test]
fn a_request_counts_under_its_first_reason_alone() {
    let rig = Rig::new(1, Plan { mode: Mode::Bypass, origin_bytes: MIB + 512, ..Plan::default() });
    read_bytes(&rig, MIB - 4096, 4096 + 512);
    write_bytes(&rig, MIB - 4096, 4096 + 512);
    only(&rig, Reason::Mode, (1, 4608, 1, 4608));
}

#[test]
fn with_too_few_members_writes_go_past_for_protection() {
    let plan = Plan { members: 2, copies: 2, agreed: false, ..Plan::default() };
    let rig = Rig::new(1, plan);
    rig.write(2, 0, 4).unwrap();
    rig.broken[1].failing.arm(Trigger::every(Ops::Flushes).times(1));
    rig.flush().unwrap();
    rig.pause(20 * SECOND);
    rig.write(3, 0, 4).unwrap();
    only(&rig, Reason::Protection, (0, 0, 1, 4 * 4096));
}

#[test]
fn a_pool_that_has_stopped_writing_populates_nothing() {
    let rig = Rig::new(1, Plan::default());
    rig.broken[0].failing.arm(Trigger::every(Ops::Writes));
    rig.write(2, 0, 1).unwrap_err();
    assert!(rig.pool().is_latched());
    rig.read(9).unwrap();
    only(&rig, Reason::Latched, (1, 4096, 0, 0));
}

/// While writers wait, what is missed is not populated.
#[test]
fn while_room_is_short_misses_go_past() {
    let rig = Rig::new(1, Plan { origin_bytes: 8 * MIB, ..Plan::default() });
    let writes: Vec<_> = (0..800).map(|block| rig.start_write(2, block, 1)).collect();
    rig.pause(SOON);
    assert!(writes.iter().any(|done| !done.get()), "the pool is full of dirty data");
    rig.read(2000).unwrap();
    only(&rig, Reason::Room, (1, 4096, 0, 0));
}

/// One request at a time, each of one kind of way: what was logged, served, populated and went past is
/// what was asked for, to the byte.
#[test]
fn every_byte_has_gone_one_way() {
    let modes =
        [Mode::Writeback, Mode::Writethrough, Mode::Readonly, Mode::Writeonly, Mode::Bypass];
    for (seed, mode) in (0..4).flat_map(|seed| modes.map(|mode| (seed, mode))) {
        let (rig, mut rng) = (rig(mode), Rng::new(seed));
        let least = u8::from(mode.writes_back());
        let number = |least, number| Some(number).filter(|&number| number >= least);
        let populate = Populate::Custom {
            on_read: number(1, rng.below(4) as u8),
            on_write: number(least, rng.below(4) as u8),
        };
        set(
            &rig,
            VolumeSettings { populate, sequential_cutoff_bytes: 32 << 10, ..Default::default() },
        );
        let mut at = 0;
        for _ in 0..300 {
            let stripe = if rng.one_in(3) { at } else { rng.below(2) * 4 * MIB };
            let offset = stripe + if stripe == at { 0 } else { rng.below(64) * BLOCK as u64 };
            let len = rng.between(1, 4) * BLOCK as u64;
            at = (offset + len) % (4 * MIB);
            match rng.below(8) {
                0..4 => read_bytes(&rig, offset, len),
                4..7 => write_bytes(&rig, offset, len),
                _ => rig.flush().unwrap(),
            }
        }
        let pool = rig.pool();
        let (counters, past) = (pool.counters(), sum(pool.bypass()));
        assert_eq!(past, sum(rig.volume().bypass()), "one volume is all");
        let missed = counters.read_origin_bytes.get();
        let served = counters.read_cache_bytes.get();
        assert_eq!(missed + served, counters.read_bytes.get());
        assert_eq!(past.1 + counters.populate_bytes.get(), missed, "{mode:?}, seed {seed}");
        let logged = counters.write_logged_bytes.get();
        assert_eq!(past.3 + logged, counters.write_bytes.get(), "{mode:?}, seed {seed}");
        assert!(past.0 <= counters.read_requests.get() && past.0 * 4096 <= past.1);
        assert!(past.2 <= counters.write_requests.get() && past.2 * 4096 <= past.3);
    }
}

/// Streams of writes pass by behind a cutoff of one block.
fn passing(when_full: bool) -> VolumeSettings {
    VolumeSettings {
        sequential_cutoff_bytes: BLOCK as u64,
        sequential_writes: true,
        sequential_when: if when_full { SequentialWhen::Full } else { SequentialWhen::Always },
        ..Default::default()
    }
}

fn logged(rig: &Rig) -> u64 {
    rig.pool().counters().write_logged_bytes.get()
}

#[test]
fn several_streams_of_writes_go_past_at_once_and_other_writes_do_not() {
    let rig = rig(Mode::Writeback);
    set(&rig, VolumeSettings { sequential_cutoff_bytes: 64 << 10, ..passing(false) });
    let (step, mut rng) = (16 << 10, Rng::new(1));
    for at in (0..256 << 10).step_by(step as usize) {
        (0..3).for_each(|stream| write_bytes(&rig, 2 * MIB * stream + at, step));
        write_bytes(&rig, 6 * MIB + rng.below(256) * 2 * BLOCK as u64, BLOCK as u64);
    }
    // Of each the first 64 KiB are logged.
    only(&rig, Reason::Sequential, (0, 0, 3 * 12, 3 * 12 * step));
    assert_eq!(logged(&rig), 3 * (64 << 10) + 16 * BLOCK as u64);
    let streams = |rig: &Rig| {
        let pool = rig.pool();
        let counters = pool.counters();
        (counters.write_stream_requests.get(), counters.write_stream_past_requests.get())
    };
    assert_eq!(streams(&rig), (3 * 12, 3 * 12));
    set(&rig, VolumeSettings::default());
    (0..64).for_each(|write| write_bytes(&rig, write * step, step));
    only(&rig, Reason::Sequential, (0, 0, 3 * 12, 3 * 12 * step));
}

#[test]
fn streams_go_past_a_cache_that_is_full_and_into_one_that_is_not() {
    let plan = Plan {
        tuning: Tuning { lap_percent: 4, ..lazy() },
        origin_bytes: 8 * MIB,
        ..Plan::default()
    };
    let rig = Rig::new(1, plan);
    set(&rig, passing(true));
    let step = 32 << 10;
    for at in (0..MIB / 4).step_by(step as usize) {
        write_bytes(&rig, at, step);
        read_bytes(&rig, 4 * MIB + at, step);
    }
    only(&rig, Reason::Sequential, (0, 0, 0, 0));
    rig.destage().unwrap();
    for at in (MIB / 4..MIB).step_by(step as usize) {
        write_bytes(&rig, at, step);
        read_bytes(&rig, 4 * MIB + at, step);
    }
    let pool = rig.pool();
    let (free, all) = pool.segments();
    assert!(free < all * 3 / 5, "{free} of {all}: three reserves of 8 are not free");
    let (reads, _, writes, _) = of(pool.bypass(), Reason::Sequential);
    assert!(
        (1..24).contains(&reads) && (1..24).contains(&writes),
        "{reads} reads, {writes} writes"
    );
    let before = logged(&rig);
    write_bytes(&rig, MIB, step);
    assert_eq!(logged(&rig), before, "past");
    set(&rig, passing(false));
    write_bytes(&rig, MIB + step, step);
    assert_eq!(logged(&rig), before, "full or not");
}

#[test]
fn a_request_longer_than_the_cutoff_goes_past_by_itself() {
    let rig = rig(Mode::Writeback);
    let settings = VolumeSettings { sequential_cutoff_bytes: 256 << 10, ..passing(false) };
    set(&rig, settings);
    for offset in [4 * MIB, 7 * MIB] {
        read_bytes(&rig, offset, 256 << 10);
        write_bytes(&rig, offset - 4 * MIB, 256 << 10);
    }
    only(&rig, Reason::Large, (0, 0, 0, 0));
    read_bytes(&rig, 6 * MIB, 512 << 10);
    write_bytes(&rig, 2 * MIB, 512 << 10);
    only(&rig, Reason::Large, (1, 512 << 10, 1, 512 << 10));
    // What follows on it makes a stream of both.
    read_bytes(&rig, 6 * MIB + (512 << 10), 4096);
    write_bytes(&rig, 2 * MIB + (512 << 10), 512 << 10);
    for reason in [Reason::Large, Reason::Sequential] {
        let (reads, _, writes, _) = of(rig.pool().bypass(), reason);
        assert_eq!((reads, writes), (1, 1), "{}", reason.name());
    }
}

#[test]
fn a_write_with_fua_does_not_pass_by() {
    let rig = rig(Mode::Writeback);
    set(&rig, VolumeSettings { sequential_cutoff_bytes: 64 << 10, ..passing(false) });
    write_bytes(&rig, 0, 64 << 10);
    let volume = rig.volume();
    let data = Buf::zeroed(64 << 10).freeze();
    rig.run(async move { volume.write(64 << 10, data, true).await }).unwrap().unwrap();
    only(&rig, Reason::Sequential, (0, 0, 0, 0));
    write_bytes(&rig, 128 << 10, 64 << 10);
    only(&rig, Reason::Sequential, (0, 0, 1, 64 << 10));
}

/// What a stream of writes leaves where the cache held something in each way: clean, dirty, dirty in a
/// part of a request, a part of a block; through a crash, whatever the origin had kept of it.
fn stream_over_all(seed: u64, crash: Crash) -> Result<(), String> {
    let rig = Rig::new(seed, Plan { ram_bytes: (seed % 2) << 18, ..Plan::default() });
    rig.write(2, 0, 24)?;
    rig.destage()?;
    (0..8).try_for_each(|i| rig.write(3, 8 + 5 * i, 2))?;
    rig.read(60)?;
    rig.pause(SOON);
    rig.flush()?;
    set(&rig, passing(false));
    let past = || rig.pool().bypass().of(Reason::Sequential).write_requests.get();
    let mut rng = Rng::new(seed);
    let (mut at, mut newest) = (0, Vec::new());
    while at < 80 {
        let count = rng.between(1, 5);
        let version = 10 + at;
        rig.write(version, at, count as usize)?;
        newest.extend((0..count).map(|_| version));
        at += count;
    }
    assert!(past() > 5, "a stream");
    let check = |rig: &Rig| -> Result<(), String> {
        let mut blocks = newest.iter().enumerate();
        blocks.try_for_each(|(block, &version)| {
            same("block", rig.read(block as u64)?, version).map(drop)
        })
    };
    check(&rig)?;
    rig.flush()?;
    rig.restart(crash)?;
    check(&rig)?;
    rig.destage()?;
    check(&rig)?;
    (0..newest.len() as u64).try_for_each(|block| rig.settled(block))
}

#[test]
fn a_stream_of_writes_is_what_is_read_from_then_on_whatever_was_cached() {
    survive(40, |seed| {
        stream_over_all(seed, Crash::PowerCut)?;
        stream_over_all(seed, Crash::ProcessKill)
    });
}

#[test]
fn a_stream_of_writes_voids_what_is_cached_before_the_origin_has_it() {
    for bug in [Bug::TombstoneForgotten, Bug::TombstoneNotDurable] {
        provoke(bug, 40, |seed| {
            let rig = Rig::new(seed, Plan::default());
            rig.write(2, 0, 2)?;
            rig.destage()?;
            rig.flush()?;
            set(&rig, passing(false));
            // The second request covers a block that is cached, clean, and one that is not.
            rig.write(3, 0, 1)?;
            rig.write(3, 1, 2)?;
            assert_eq!(rig.pool().bypass().of(Reason::Sequential).write_requests.get(), 1);
            same("in use", rig.read(1)?, 3)?;
            rig.crash(Crash::PowerCut);
            rig.open()?;
            rig.settled(1)?;
            rig.settled(2)
        });
    }
}

/// What was flushed, and is dirty, is not given up for what the origin may lose.
#[test]
fn a_stream_of_writes_over_what_is_dirty_is_logged() {
    provoke(Bug::StreamPastDirty, 40, |seed| {
        let rig = Rig::new(seed, Plan::default());
        rig.write(2, 1, 1)?;
        rig.flush()?;
        set(&rig, passing(false));
        rig.write(3, 0, 1)?;
        rig.write(3, 1, 2)?;
        same("in use", rig.read(1)?, 3)?;
        rig.restart(Crash::PowerCut)?;
        match rig.read(1)? {
            2 | 3 => rig.settled(1),
            older => Err(format!("version {older} after the power cut, and 2 was flushed")),
        }
    });
}

#[test]
fn a_population_does_not_overtake_a_stream_of_writes() {
    provoke(Bug::PopulationAfterWrite, 1, |_| {
        super::population_racing(
            |rig| {
                set(rig, passing(false));
                rig.write(2, 2, 1)?;
                rig.write(2, 3, 1)?;
                assert_eq!(rig.volume().bypass().of(Reason::Sequential).write_requests.get(), 1);
                Ok(2)
            },
            Mode::Writeback,
        )
    });
}

/// FLUSH answers for what went past, and an origin's flush that fails is told.
#[test]
fn a_flush_makes_a_stream_of_writes_durable_on_the_origin() {
    survive(20, |seed| {
        let rig = Rig::new(seed, Plan::default());
        set(&rig, passing(false));
        (0..20).try_for_each(|block| rig.write(2, block, 1))?;
        rig.flush()?;
        rig.restart(Crash::PowerCut)?;
        (0..20).try_for_each(|block| same("flushed", rig.read(block)?, 2).map(drop))?;
        (20..40).try_for_each(|block| rig.write(3, block, 1))?;
        rig.origin_broken.failing.arm(Trigger::every(Ops::Flushes).times(1));
        let told = rig.flush().unwrap_err();
        assert!(told.contains("flush"), "{told}");
        rig.flush()
    });
}

#[test]
fn streams_that_are_read_again_and_again_come_in() {
    for when in [SequentialWhen::Auto, SequentialWhen::Always] {
        // A pool of 80 MiB, of which a stream of 48 is read, then others of several times the pool.
        let plan = Plan { segment_bytes: 2 * MIB, origin_bytes: 512 * MIB, ..Plan::default() };
        let rig = Rig::new(3, plan);
        let (volume, settings) =
            (rig.volume(), VolumeSettings { sequential_when: when, ..Default::default() });
        rig.run(async move { volume.set_with(settings, 64 << 10).await }).unwrap().unwrap();
        let brought_in = |from: u64, until: u64| {
            let before = rig.pool().counters().populate_bytes.get();
            let step = 256 << 10;
            (from * MIB..until * MIB)
                .step_by(step as usize)
                .for_each(|at| read_bytes(&rig, at, step));
            rig.pause(SOON);
            (rig.pool().counters().populate_bytes.get() - before) / MIB
        };
        assert_eq!(brought_in(0, 48), 1, "what comes before the cutoff");
        let all: u64 = (0..3).map(|_| brought_in(0, 48)).sum();
        let is_doubted = rig.volume().streams().is_doubted;
        match when {
            SequentialWhen::Auto => assert!(!is_doubted && (40..=48).contains(&all), "{all} MiB"),
            _ => assert_eq!((is_doubted, all), (false, 0), "known, and passing all the same"),
        }
        // What is read once does not count itself.
        brought_in(48, 512);
        assert!(rig.volume().streams().is_doubted);
        assert!(brought_in(100, 180) <= 1, "and passes by");
    }
}

//! Tests of the disk model.

use super::super::modelled::closed_loop;
use super::super::modelled::tests::{random_4k, sequential};
use super::*;

fn disk() -> HddModel {
    HddModel::new(HddParameters::st500nm0001(), 0)
}

fn random_iops(operation: Operation, depth: usize) -> f64 {
    let mut disk = HddModel::new(HddParameters::st500nm0001().without_write_cache(), 0);
    let size = disk.size_bytes();
    closed_loop(&mut disk, depth, 2_000, random_4k(operation, size)).iops
}

fn flush() -> Command {
    Command { operation: Operation::Flush, offset: 0, len: 0 }
}

#[test]
fn random_reads_are_plausible_and_grow_with_the_queue() {
    let one = random_iops(Operation::Read, 1);
    assert!((70.0..130.0).contains(&one), "{one}");
    let mut last = 0.0;
    for depth in [1, 2, 4, 8, 16, 32] {
        let iops = random_iops(Operation::Read, depth);
        assert!(iops > last, "depth {depth}: {iops} after {last}");
        last = iops;
    }
    assert!(last > 1.7 * one, "{last} at depth 32, {one} at depth 1");
}

/// A disk that counted the time in the host's queue as age worked off all of it in order of age.
#[test]
fn more_than_the_disk_can_queue_is_no_slower() {
    for operation in [Operation::Read, Operation::Write] {
        let full = random_iops(operation, 32);
        for depth in [64, 256, 1024] {
            let iops = random_iops(operation, depth);
            assert!(iops > 0.97 * full, "{operation:?} at {depth}: {iops}, {full} at depth 32");
        }
    }
}

#[test]
fn what_the_host_holds_back_is_not_overtaken_by_what_comes_later() {
    let mut disk = disk();
    let mut next = random_4k(Operation::Read, 400 << 30);
    for ticket in 0..64 {
        disk.submit(0, ticket, next());
    }
    let (mut done, mut answered) = (Vec::new(), 0);
    while answered < 400 {
        let Some(now) = disk.next_event() else { break };
        disk.advance(now, &mut done);
        for ticket in done.drain(..) {
            answered += 1;
            // Tickets of the first 64 are not used again.
            disk.submit(now, ticket.max(64), next());
        }
    }
    let waiting = disk.backlog.iter().chain(&disk.queue);
    assert_eq!(waiting.filter(|pending| pending.ticket < 64).count(), 0, "some never came to turn");
}

#[test]
fn short_write_seeks_take_little_longer_than_reads() {
    let span = 6 << 30;
    let [read, write] = [Operation::Read, Operation::Write].map(|operation| {
        let mut disk = HddModel::new(HddParameters::st500nm0001().without_write_cache(), 0);
        closed_loop(&mut disk, 1, 2_000, random_4k(operation, span)).latency_mean_ns
    });
    assert!((100e3..500e3).contains(&(write - read)), "{read} ns to read, {write} ns to write");
}

#[test]
fn sequential_transfers_reach_the_media_rate() {
    for (operation, len, depth) in [
        (Operation::Read, 64 << 10, 1),
        (Operation::Read, 1 << 20, 4),
        (Operation::Write, 256 << 10, 4),
    ] {
        let rate = closed_loop(&mut disk(), depth, 4_000, sequential(operation, len)).bytes_per_s;
        assert!((140e6..152e6).contains(&rate), "{operation:?} of {len}: {rate}");
    }
}

#[test]
fn a_flush_waits_for_what_was_acknowledged_from_the_cache() {
    let mut disk = disk();
    let mut next = random_4k(Operation::Write, 400 << 30);
    for ticket in 0..20 {
        disk.submit(0, ticket, next());
    }
    let mut done = Vec::new();
    disk.advance(MILLISECOND, &mut done);
    assert_eq!(done.len(), 20, "writes are acknowledged from the cache");
    disk.submit(MILLISECOND, 20, flush());
    done.clear();
    disk.advance(20 * MILLISECOND, &mut done);
    assert!(done.is_empty(), "twenty seeks take longer than this");
    disk.advance(SECOND, &mut done);
    assert_eq!(done, [20]);
    assert_eq!((disk.cache.bytes, disk.next_event()), (0, None));
    disk.submit(SECOND, 21, flush());
    done.clear();
    disk.advance(SECOND + MILLISECOND, &mut done);
    assert_eq!(done, [21], "a clean cache has nothing to wait for");
}

#[test]
fn extents_count_each_byte_once() {
    let mut extents = BTreeMap::new();
    let ranges = [(10, 20), (30, 40), (15, 35), (0, 5), (5, 10), (12, 18)];
    let new: Vec<u64> = ranges.map(|(from, to)| insert(&mut extents, from, to)).to_vec();
    assert_eq!(new, [10, 10, 10, 5, 5, 0]);
    assert_eq!(extents, BTreeMap::from([(0, 40)]));
}

#[test]
fn equal_commands_take_equal_time() {
    let run = || closed_loop(&mut disk(), 16, 500, random_4k(Operation::Write, 1 << 38));
    assert_eq!(run(), run());
}

#[test]
fn every_command_of_a_mix_is_answered_exactly_once() {
    for seed in 0..20u64 {
        let small = HddParameters { write_cache_bytes: (seed % 3) << 20, ..disk().p };
        let mut disk = HddModel::new(small, seed);
        let (mut state, mut done, mut now) = (seed, Vec::new(), 0);
        for ticket in 0..1_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (len, offset) =
                ((1 + (state >> 50) % 300) * 4096, (state >> 20) % (64 << 20) * 4096);
            let command = match state >> 60 {
                0 => flush(),
                1..9 => Command { operation: Operation::Read, offset, len },
                _ => Command { operation: Operation::Write, offset: offset % (1 << 30), len },
            };
            now += (state >> 40) % (10 * MILLISECOND);
            disk.submit(now, ticket, command);
            disk.advance(now, &mut done);
        }
        while let Some(event) = disk.next_event() {
            now = now.max(event);
            disk.advance(now, &mut done);
        }
        done.sort_unstable();
        assert_eq!(done, (0..1_000).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!((disk.cache.bytes, disk.load()), (0, 0), "seed {seed}");
    }
}

#[test]
fn what_memory_answers_far_from_the_heads_does_not_send_them_there_by_reading() {
    let mut disk = disk();
    let (near, far, block) = (1 << 30, 300 << 30, 64 << 10);
    let mut now = 0;
    let mut read = |offset| {
        let (begun, mut done) = (now, Vec::new());
        disk.submit(now, 0, Command { operation: Operation::Read, offset, len: block });
        while done.is_empty() {
            now = disk.next_event().unwrap();
            disk.advance(now, &mut done);
        }
        // Long enough to read on by a few blocks, not by all of the read-ahead.
        now += 2 * MILLISECOND;
        disk.advance(now, &mut done);
        now - begun
    };
    read(far);
    read(near);
    assert!(read(far + block) < 5 * MILLISECOND, "the head has read on there");
    let span = read(far + 12 * block);
    assert!(span < SECOND, "{} ms", span / MILLISECOND);
}

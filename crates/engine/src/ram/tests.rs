use super::*;
use crate::policy::Queue;

const V: VolumeId = VolumeId(1);

fn sized(frames: u32) -> Ram {
    let mut ram = Ram::default();
    grow(&mut ram, frames);
    ram
}

fn grow(ram: &mut Ram, frames: u32) {
    while ram.limit() < frames {
        assert!(ram.grow(frames));
    }
    ram.settle();
}

fn shrink(ram: &mut Ram, frames: u32) {
    while ram.limit() > frames {
        let limit = ram.step_down(frames);
        while ram.used_frames() > limit {
            let victim = ram.victim().unwrap();
            ram.give_up(&victim);
        }
        ram.shrink(limit);
    }
    ram.settle();
}

fn content(block: u64) -> Vec<u8> {
    block.to_le_bytes().repeat(BLOCK / 8)
}

fn enter(ram: &mut Ram, block: u64) {
    while !ram.enter(V, block, &content(block), Source::Origin) {
        let victim = ram.victim().unwrap();
        ram.give_up(&victim);
    }
}

/// Blocks below `end` that are here, each checked.
fn here(ram: &mut Ram, end: u64) -> Vec<u64> {
    let mut found = Vec::new();
    for block in 0..end {
        let mut buf = vec![0; BLOCK];
        if ram.read(V, block * BLOCK_BYTES, &mut buf, false) {
            assert_eq!(buf, content(block), "block {block}");
            found.push(block);
        }
    }
    found
}

#[test]
fn every_part_of_what_is_here_is_read_and_nothing_else() {
    let mut ram = sized(16);
    (4..8).for_each(|block| enter(&mut ram, block));
    let whole: Vec<u8> = (4..8).flat_map(content).collect();
    for (from, len) in [(0, 512), (512, 512), (3584, 1024), (4096, 8192), (0, 16384)] {
        let mut buf = vec![0; len];
        assert!(ram.read(V, 4 * BLOCK_BYTES + from as u64, &mut buf, false));
        assert_eq!(buf, whole[from..from + len]);
    }
    let mut buf = vec![0; 2 * BLOCK];
    assert!(
        !ram.read(V, 7 * BLOCK_BYTES, &mut buf, false)
            && !ram.read(V, 3 * BLOCK_BYTES, &mut buf, false)
    );
    assert!(!ram.read(VolumeId(2), 4 * BLOCK_BYTES, &mut buf, false));
}

#[test]
fn what_is_void_is_not_read_until_its_writer_brings_the_new_version() {
    let mut ram = sized(16);
    (0..8).for_each(|block| enter(&mut ram, block));
    ram.void(V, 2, 3);
    assert_eq!(here(&mut ram, 8), [0, 1, 5, 6, 7]);
    assert_eq!(ram.status().used_bytes, 5 * BLOCK_BYTES);
    ram.refresh(V, 3, &content(3), Source::Write);
    // Not what was never here, nor what nobody has made stale.
    ram.refresh(V, 9, &content(9), Source::Write);
    ram.refresh(V, 0, &content(9), Source::Write);
    assert_eq!(here(&mut ram, 16), [0, 1, 3, 5, 6, 7]);
    let status = ram.status();
    assert_eq!((status.only_bytes, status.overlap_bytes), (5 * BLOCK_BYTES, BLOCK_BYTES));
    ram.void(V, 0, 1 << 30);
    assert_eq!((here(&mut ram, 16), ram.status().used_bytes), (vec![], 0));
    assert!(ram.volumes.is_empty(), "nothing of the volume is left");
}

#[test]
fn backed_and_ram_only_are_counted() {
    let mut ram = sized(8);
    (0..4).for_each(|block| enter(&mut ram, block));
    ram.note_backed(V, 1, 8, true);
    assert_eq!(ram.status().overlap_bytes, 3 * BLOCK_BYTES);
    ram.note_backed(V, 2, 1, false);
    ram.void(V, 3, 1);
    ram.note_backed(V, 3, 1, true);
    let status = ram.status();
    assert_eq!((status.only_bytes, status.overlap_bytes), (2 * BLOCK_BYTES, BLOCK_BYTES));
    while let Some(victim) = ram.victim() {
        ram.give_up(&victim);
    }
    let status = ram.status();
    assert_eq!((status.used_bytes, status.only_bytes, status.overlap_bytes), (0, 0, 0));
}

#[test]
fn a_size_that_changes_keeps_what_is_hot_and_its_content() {
    let mut ram = sized(100);
    (0..90).for_each(|block| enter(&mut ram, block));
    grow(&mut ram, 3000);
    assert_eq!(here(&mut ram, 90).len(), 90, "each is hot now");
    (90..3000).for_each(|block| enter(&mut ram, block));
    assert_eq!(here(&mut ram, 3000).len(), 3000);
    (0..90).for_each(|block| assert!(ram.holds_hot(V, block)));
    for frames in [2999, 1537, 1536, 700, 512, 511] {
        shrink(&mut ram, frames);
        let memory = memory_bytes(u64::from(frames) * BLOCK_BYTES);
        assert_eq!((ram.limit(), ram.status().memory_bytes), (frames, memory));
        assert_eq!(here(&mut ram, 3000).len(), frames as usize);
    }
    grow(&mut ram, 5000);
    assert_eq!(here(&mut ram, 3000).len(), 511);
    shrink(&mut ram, 0);
    assert!(ram.is_off() && here(&mut ram, 3000).is_empty());
    assert_eq!(ram.status(), RamStatus::default());
}

const SOURCES: [Source; 4] =
    [Source::Write, Source::Origin, Source::LogVerified, Source::LogUnverified];

#[test]
fn only_what_is_known_to_be_right_may_stand_in_for_the_log() {
    for source in SOURCES {
        let mut ram = sized(4);
        assert!(ram.enter(V, 1, &content(1), source));
        assert_eq!(here(&mut ram, 2), [1], "it is served in any case");
        assert!(here(&mut ram, 2) == [1] && here(&mut ram, 2) == [1]);
        let right = source != Source::LogUnverified;
        assert_eq!((ram.holds_hot(V, 1), ram.copy_of(V, 1).is_some()), (right, right));
        ram.void(V, 1, 1);
        ram.refresh(V, 1, &content(1), Source::Write);
        assert!(ram.copy_of(V, 1).is_some(), "a write is right");
        ram.void(V, 1, 1);
        ram.refresh(V, 1, &content(1), source);
        assert_eq!(ram.copy_of(V, 1).is_some(), right);
    }
}

#[test]
fn where_reads_are_checked_what_came_unchecked_is_not_served() {
    for source in SOURCES {
        let mut ram = sized(4);
        assert!(ram.enter(V, 1, &content(1), source));
        ram.serve_only_verified(true);
        let right = source != Source::LogUnverified;
        assert_eq!((ram.holds(V, 1), here(&mut ram, 2) == [1]), (right, right));
        assert!(ram.enter(V, 1, &content(1), Source::LogVerified));
        assert!(ram.holds(V, 1) && here(&mut ram, 2) == [1], "it was checked meanwhile");
    }
}

/// Against a plain map, whatever is done.
#[test]
fn it_holds_what_was_put_in_and_no_more() {
    let mut model: BTreeMap<u64, u64> = BTreeMap::new();
    let mut ram = sized(40);
    let mut seed = 1u64;
    for _ in 0..40_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (what, block) = (seed >> 60, seed >> 40 & 0xFF);
        match what {
            0..8 => {
                while !ram.enter(V, block, &content(block), SOURCES[what as usize % 4]) {
                    let victim = ram.victim().unwrap();
                    if !victim.stale {
                        assert!(model.remove(&victim.block).is_some());
                    }
                    ram.give_up(&victim);
                }
                model.insert(block, block);
            }
            8..11 => {
                ram.void(V, block, 3);
                model.retain(|known, _| !(block..block + 3).contains(known));
            }
            11..15 => {
                let mut buf = vec![0; BLOCK];
                let found = ram.read(V, block * BLOCK_BYTES, &mut buf, false);
                assert_eq!(found, model.contains_key(&block));
                assert!(!found || buf == content(block));
            }
            _ => ram.note_backed(V, block, 5, block % 2 == 0),
        }
        let status = ram.status();
        assert_eq!(status.used_bytes, model.len() as u64 * BLOCK_BYTES);
        assert_eq!(status.used_bytes, status.only_bytes + status.overlap_bytes);
    }
    assert!(
        ram.victim().is_some_and(|victim| matches!(victim.queue, Queue::Main | Queue::Probation))
    );
}

#[test]
fn blocks_at_the_same_place_of_their_runs_are_spread_as_well() {
    for stride in [1, 7, 16, 256, 1 << 20] {
        let ram = sized(4096);
        let mut buckets = vec![0; 4096];
        for block in (0..4096).map(|n| n * stride) {
            buckets[ram.bucket_of(hash(V, block)) as usize] += 1;
        }
        // By chance alone, one of 4,096 with as many on average has ten with a probability of 0.0005.
        assert!(buckets.iter().all(|&chained| chained <= 10), "every {stride}th block");
    }
}

#[test]
fn what_only_passes_by_does_not_make_hot() {
    let mut ram = sized(4);
    enter(&mut ram, 1);
    let mut buf = vec![0; BLOCK];
    (0..3).for_each(|_| assert!(ram.read(V, BLOCK_BYTES, &mut buf, true)));
    assert!(!ram.holds_hot(V, 1));
    (0..3).for_each(|_| assert!(ram.read(V, BLOCK_BYTES, &mut buf, false)));
    assert!(ram.holds_hot(V, 1));
}

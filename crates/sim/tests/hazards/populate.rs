//! What brings blocks into the cache, and what does not.

use forebay_device::model::world::Crash;
use forebay_device::runtime::SECOND;
use forebay_device::{Buf, Runtime};
use forebay_engine::bypass::Reason;
use forebay_engine::limits::{GATHERING_SPAN, POPULATE_BYTES_MAX, STRIPE_BYTES};
use forebay_engine::planted::Bug;
use forebay_engine::policy::GRANULE_BYTES_MIN;
use forebay_engine::{CUTOFF_NEVER, Mode, Populate, VolumeSettings};

use super::rig::{Plan, Rig, SOON, provoke, same, survive};

/// A rig whose volume has this mode.
fn rig(seed: u64, mode: Mode, ram_bytes: u64) -> std::rc::Rc<Rig> {
    Rig::new(seed, Plan { mode, ram_bytes, ..Plan::default() })
}

/// Bytes read from the origin by reading a block twice.
fn read_twice(rig: &Rig, block: u64, version: u64) -> u64 {
    let before = rig.pool().counters().read_origin_bytes.get();
    for _ in 0..2 {
        same("read", rig.read(block).unwrap(), version).unwrap();
        rig.pause(SOON);
    }
    rig.pool().counters().read_origin_bytes.get() - before
}

#[test]
fn in_writeonly_mode_reads_bring_nothing_and_writes_stay() {
    for ram_bytes in [0, 1 << 20] {
        let rig = rig(1, Mode::Writeonly, ram_bytes);
        assert_eq!(read_twice(&rig, 3, 1), 2 * 4096, "a miss stays one");
        rig.write(2, 5, 1).unwrap();
        assert_eq!(rig.pool().bypass().of(Reason::Mode).write_requests.get(), 0);
        assert_eq!(rig.volume().owed_blocks(), 1, "dirty, not on the origin");
        assert_eq!(read_twice(&rig, 5, 2), 0);
        rig.destage().unwrap();
        assert_eq!(read_twice(&rig, 5, 2), 0, "clean, and still there");
        let volume = rig.volume();
        rig.run(async move { volume.prefetch(8 * 4096, 4096).await }).unwrap().unwrap();
        assert_eq!(read_twice(&rig, 8, 1), 2 * 4096, "asked for or not");
        let counters = rig.pool();
        assert_eq!(counters.counters().populate_bytes.get(), 0);
        assert_eq!(counters.counters().ram_demote_blocks.get(), 0);
    }
}

#[test]
fn writeonly_mode_comes_and_goes_while_in_use() {
    let rig = rig(2, Mode::Writeback, 0);
    assert_eq!(read_twice(&rig, 3, 1), 4096);
    let set = |mode| {
        let volume = rig.volume();
        rig.run(async move { volume.set_mode(mode).await }).unwrap().unwrap();
    };
    set(Mode::Writeonly);
    assert_eq!(read_twice(&rig, 3, 1), 0, "what is there is served");
    assert_eq!(read_twice(&rig, 4, 1), 2 * 4096);
    rig.write(2, 4, 1).unwrap();
    rig.flush().unwrap();
    rig.restart(Crash::PowerCut).unwrap();
    assert_eq!(rig.volume().mode(), Mode::Writeonly);
    same("after the power cut", rig.read(4).unwrap(), 2).unwrap();
    set(Mode::Writeback);
    assert_eq!(read_twice(&rig, 6, 1), 4096);
}

#[test]
fn writeonly_with_one_copy_has_to_be_agreed_to() {
    let rig = Rig::new(3, Plan { mode: Mode::Readonly, agreed: false, ..Plan::default() });
    let volume = rig.volume();
    let refused = rig.run(async move { volume.set_mode(Mode::Writeonly).await }).unwrap();
    assert!(refused.unwrap_err().to_string().contains("one dirty copy"));
}

/// What is set with these numbers.
fn custom(on_read: Option<u8>, on_write: Option<u8>) -> VolumeSettings {
    VolumeSettings { populate: Populate::Custom { on_read, on_write }, ..Default::default() }
}

fn set(rig: &Rig, settings: VolumeSettings) -> Result<(), String> {
    let volume = rig.volume();
    let set = rig.run(async move { volume.set(settings).await }).unwrap();
    set.map_err(|error| error.to_string())
}

fn passed(rig: &Rig) -> u64 {
    let pool = rig.pool();
    let past = pool.bypass().of(Reason::Profile);
    (past.read_bytes.get() + past.write_bytes.get()) / 4096
}

#[test]
fn a_block_comes_in_with_the_read_that_is_asked_for() {
    for on_read in 1..=4 {
        for ram_bytes in [0, 1 << 20] {
            let rig = rig(4, Mode::Writeback, ram_bytes);
            set(&rig, custom(Some(on_read), None)).unwrap();
            for read in 1..=6_u8 {
                let before = rig.pool().counters().read_origin_bytes.get();
                same("read", rig.read(3).unwrap(), 1).unwrap();
                rig.pause(SOON);
                let missed = rig.pool().counters().read_origin_bytes.get() > before;
                assert_eq!(missed, read <= on_read, "read {read} of {on_read}");
            }
            assert_eq!(passed(&rig), u64::from(on_read) - 1);
        }
    }
}

#[test]
fn a_cache_block_counts_as_one_and_comes_in_as_one() {
    let rig = rig(5, Mode::Writeback, 0);
    let volume = rig.volume();
    let large = custom(Some(2), None);
    rig.run(async move { volume.set_with(large, 64 << 10).await }).unwrap().unwrap();
    assert_eq!(rig.volume().cache_block_bytes(), 64 << 10);
    rig.read(0).unwrap();
    rig.pause(SOON);
    assert_eq!(rig.pool().counters().populate_bytes.get(), 0);
    rig.read(15).unwrap();
    rig.pause(SOON);
    assert_eq!(rig.pool().counters().populate_bytes.get(), 64 << 10);
    // Across two cache blocks of which one was read before: that one comes in, and no more.
    rig.read(31).unwrap();
    let volume = rig.volume();
    let both = async move { volume.read(31 * 4096, forebay_device::Buf::new(8192)).await.1 };
    rig.run(both).unwrap().unwrap();
    rig.pause(SOON);
    assert_eq!(rig.pool().counters().populate_bytes.get(), 128 << 10);
    assert_eq!(read_twice(&rig, 16, 1), 0);
    assert_eq!(read_twice(&rig, 33, 1), 4096, "its second read");
    rig.restart(Crash::ProcessKill).unwrap();
    assert_eq!(rig.volume().cache_block_bytes(), 64 << 10, "durable");
    assert_eq!(rig.volume().settings(), large);
}

/// Long reads that miss together are not all populated: what is on its way has its bound from the miss on, and
/// nothing of it counts for ever.
#[test]
fn misses_beyond_what_may_be_on_its_way_read_what_is_asked_for() {
    const STRIPES: u64 = 20;
    let origin_bytes = 3 * STRIPES * STRIPE_BYTES;
    let plan = Plan { mode: Mode::Readonly, origin_bytes, ..Plan::default() };
    let rig = Rig::new(5, plan);
    let long = VolumeSettings { sequential_cutoff_bytes: CUTOFF_NEVER, ..custom(Some(1), None) };
    set(&rig, long).unwrap();
    let read = |stripe: u64| {
        let volume = rig.volume();
        rig.world.spawn(Box::pin(async move {
            volume.read(stripe * STRIPE_BYTES, Buf::new(STRIPE_BYTES as usize)).await.1.ok();
        }));
    };
    let busy = || rig.pool().bypass().of(Reason::Busy).read_requests.get();
    for round in 0..3 {
        let before = busy();
        let stripes = round * STRIPES..(round + 1) * STRIPES;
        stripes.for_each(read);
        rig.pause(SOON);
        assert_eq!(busy() - before, STRIPES - POPULATE_BYTES_MAX / STRIPE_BYTES, "round {round}");
        rig.pause(60 * SECOND);
    }
}

/// A cache block of which most is cached is not read again as a whole for each block that it has lost.
#[test]
fn of_a_cache_block_that_is_mostly_cached_a_miss_reads_what_is_around_it() {
    let rig = rig(5, Mode::Writeback, 0);
    let volume = rig.volume();
    rig.run(async move { volume.set_with(custom(Some(1), None), 256 << 10).await })
        .unwrap()
        .unwrap();
    let populated = |read: u64| {
        let before = rig.pool().counters().populate_bytes.get();
        rig.read(read).unwrap();
        rig.pause(SOON);
        (rig.pool().counters().populate_bytes.get() - before) / 4096
    };
    assert_eq!(populated(64), 64, "all of one that is missing");
    // Of 64 blocks 32 are cached; missing are 4, 6 and 8 to 37.
    let write = |block| rig.write(2, block, 1).unwrap();
    (0..4).chain([5, 7]).chain(38..64).for_each(write);
    assert_eq!(populated(6), 1 + 1 + 8, "its 64 KiB");
    assert_eq!(populated(16), 22, "what is missing side by side");
    assert_eq!(populated(16), 0);
}

#[test]
fn a_prefetch_does_not_wait_for_reads() {
    let rig = rig(6, Mode::Writeback, 0);
    set(&rig, custom(Some(4), None)).unwrap();
    let volume = rig.volume();
    rig.run(async move { volume.prefetch(0, 8 * 4096).await }).unwrap().unwrap();
    rig.pause(SOON);
    assert!((0..8).all(|block| read_twice(&rig, block, 1) == 0));
}

/// What a write over what the cache holds in each way leaves, through a power cut, whatever the origin
/// has kept of it.
#[test]
fn a_write_around_the_cache_is_what_is_read_from_then_on() {
    for (seed, ram_bytes) in (0..24).flat_map(|seed| [(seed, 0), (seed, 256 << 10)]) {
        let rig = rig(seed, Mode::Writeback, ram_bytes);
        // The log has blocks 0 to 3 clean, 4 and 5 dirty; 6 and 9 are there or in RAM.
        rig.write(2, 0, 4).unwrap();
        rig.destage().unwrap();
        rig.write(3, 4, 2).unwrap();
        rig.read(6).unwrap();
        rig.read(9).unwrap();
        rig.pause(SOON);
        set(&rig, custom(Some(1), Some(4))).unwrap();
        let logged = rig.pool().counters().write_logged_bytes.get();
        let writes = [(4, 1), (2, 2), (5, 2), (6, 2), (8, 1), (9, 2)];
        for (number, &(block, count)) in writes.iter().enumerate() {
            rig.write(10 + number as u64, block, count).unwrap();
        }
        let went = (rig.pool().counters().write_logged_bytes.get() - logged) / 4096;
        assert_eq!((went, passed(&rig)), (7, 3), "over what is dirty or all cached: logged");
        // Over a range of which a part is cached clean.
        rig.write(20, 1, 1).unwrap();
        rig.write(21, 0, 1).unwrap();
        rig.flush().unwrap();
        let newest = [21, 20, 11, 11, 10, 12, 13, 13, 14, 15, 15];
        let check = || {
            for (block, &version) in newest.iter().enumerate() {
                same("read", rig.read(block as u64).unwrap(), version).unwrap();
            }
        };
        check();
        rig.restart(Crash::PowerCut).unwrap();
        check();
        rig.destage().unwrap();
        check();
    }
}

#[test]
fn a_write_over_what_is_partly_cached_voids_that_before_the_origin_has_it() {
    provoke(Bug::TombstoneForgotten, 40, |seed| {
        let rig = Rig::new(seed, Plan { members: 1, ..Plan::default() });
        rig.write(2, 0, 2)?;
        rig.destage()?;
        rig.flush()?;
        set(&rig, custom(Some(1), Some(3)))?;
        rig.write(3, 1, 2)?;
        same("in use", rig.read(1)?, 3)?;
        rig.flush()?;
        rig.restart(Crash::PowerCut)?;
        for (block, version) in [(0, 2), (1, 3), (2, 3)] {
            same("after the power cut", rig.read(block)?, version)?;
        }
        Ok(())
    });
}

#[test]
fn a_population_does_not_overtake_a_write_around_the_cache() {
    provoke(Bug::PopulationAfterWrite, 1, |_| {
        super::population_racing(
            |rig| {
                set(rig, custom(None, Some(2)))?;
                rig.write(2, 3, 1).map(|()| 2)
            },
            Mode::Writeback,
        )
    });
}

#[test]
fn writes_bring_in_as_many_as_are_asked_for_in_every_mode() {
    for mode in [Mode::Writeback, Mode::Writeonly, Mode::Writethrough, Mode::Readonly] {
        for on_write in 0..=4_u8 {
            let rig = rig(u64::from(on_write), mode, 0);
            let done = set(&rig, custom(None, Some(on_write)));
            if on_write == 0 && mode.writes_back() {
                assert!(done.unwrap_err().contains("populate_on_write cannot be 0"));
                continue;
            }
            done.unwrap();
            for write in 1..=4_u8 {
                rig.write(u64::from(write) + 1, 3, 1).unwrap();
            }
            let before = rig.pool().counters().read_origin_bytes.get();
            same("read", rig.read(3).unwrap(), 5).unwrap();
            let missed = rig.pool().counters().read_origin_bytes.get() > before;
            assert_eq!(missed, on_write == 0, "{mode:?}, {on_write}");
            rig.flush().unwrap();
            rig.restart(Crash::PowerCut).unwrap();
            same("after the power cut", rig.read(3).unwrap(), 5).unwrap();
        }
    }
}

#[test]
fn numbers_that_a_mode_cannot_have_are_refused_with_either() {
    let rig = rig(7, Mode::Readonly, 0);
    for (on_read, on_write) in [(Some(0), None), (Some(5), None), (None, Some(5))] {
        assert!(set(&rig, custom(on_read, on_write)).unwrap_err().contains("cannot be"));
    }
    set(&rig, custom(Some(2), Some(0))).unwrap();
    let volume = rig.volume();
    let refused = rig.run(async move { volume.set_mode(Mode::Writeback).await }).unwrap();
    assert!(refused.unwrap_err().to_string().contains("populate_on_write cannot be 0"));
    let volume = rig.volume();
    let refused =
        rig.run(async move { volume.set_with(Default::default(), 12 << 10).await }).unwrap();
    assert!(refused.unwrap_err().to_string().contains("cache block of 12288 B"));
    set(&rig, custom(Some(2), Some(1))).unwrap();
    let volume = rig.volume();
    rig.run(async move { volume.set_mode(Mode::Writeback).await }).unwrap().unwrap();
}

#[test]
fn the_table_of_counts_goes_with_the_last_volume_that_wants_it() {
    let rig = rig(8, Mode::Writeback, 0);
    let without = rig.pool().policy_memory();
    set(&rig, custom(Some(2), None)).unwrap();
    assert!(rig.pool().policy_memory() > without);
    let pool = rig.pool();
    rig.run(async move { pool.remove_volume("v").await }).unwrap().unwrap();
    assert_eq!(rig.pool().policy_memory(), without);
}

/// Populations that come one after the other share a record: a header for each of them would take half of the
/// room that single blocks are given.
#[test]
fn populations_share_records() {
    survive(4, |seed| {
        let rig = rig(seed, Mode::Readonly, 0);
        let records = || rig.pool().counters().records.get();
        let before = records();
        for round in 0..8 {
            (0..8).for_each(|i| rig.start_read(2 * (round * 8 + i)));
            rig.pause(SOON);
        }
        same("blocks", rig.pool().counters().populate_bytes.get() / 4096, 64)?;
        match records() - before {
            0..=40 => Ok(()),
            many => Err(format!("{many} records for 64 populations")),
        }
    });
}

/// What has been read and is on its way into the log waits for others of its kind; not while somebody asks
/// for it again.
#[test]
fn a_population_that_is_asked_for_does_not_wait_for_others() {
    survive(4, |seed| {
        for again in [false, true] {
            let rig = rig(seed, Mode::Readonly, 0);
            rig.read(3)?;
            // The origin has it, the log not yet.
            if again {
                rig.start_read(3);
            }
            rig.pause(GATHERING_SPAN / 2);
            let missed = || rig.pool().counters().read_misses.get();
            let before = missed();
            same("what is read", rig.read(3)?, 1)?;
            same("misses", missed() - before, u64::from(!again))?;
        }
        Ok(())
    });
}

#[test]
fn what_first_reads_bring_in_for_nothing_stays_on_the_origin() {
    const CACHE_BLOCKS: u64 = 6144;
    const FRESH: u64 = 2048;
    // A pool of 160 MiB in front of 384, and 128 more: one cache block of eight is in the sample.
    const SAMPLED: u64 = 8;
    let plan = Plan {
        segment_bytes: 4 << 20,
        origin_bytes: (CACHE_BLOCKS + FRESH) * GRANULE_BYTES_MIN,
        mode: Mode::Readonly,
        ..Plan::default()
    };
    let rig = Rig::new(7, plan);
    let volume = rig.volume();
    let set = async move { volume.set_with(VolumeSettings::default(), 64 << 10).await };
    rig.run(set).unwrap().unwrap();
    // In no order, so that it is no stream; what is read comes round when it has long been gone.
    let block_of = |at: u64| at * 2_477 % CACHE_BLOCKS * 16;
    let brought_in = |reads: std::ops::Range<u64>| {
        let before = rig.pool().counters().populate_bytes.get();
        for at in reads {
            same("read", rig.read(block_of(at)).unwrap(), 1).unwrap();
        }
        rig.pause(SOON);
        (rig.pool().counters().populate_bytes.get() - before) / GRANULE_BYTES_MIN
    };
    assert_eq!(brought_in(0..1_800), 1_800, "all of it while the pool fills");
    brought_in(1_800..12_000);
    let worth = rig.volume().rereads();
    assert!(worth.is_doubted && worth.percent.is_some_and(|percent| percent < 2), "{worth:?}");
    let count = brought_in(12_000..15_200);
    assert!(count < 3_200 * 2 / SAMPLED, "{count} of 3200 came in");
    assert!(rig.pool().bypass().of(Reason::Profile).read_requests.get() > 2_000);
    // What is read twice comes in all the same, and is found.
    let before = rig.pool().counters().read_misses.get();
    for _ in 0..3 {
        brought_in(16_000..16_100);
    }
    let missed = rig.pool().counters().read_misses.get() - before;
    assert!((165..=200).contains(&missed), "{missed} misses of 300 reads");
    // As soon as it pays again they are brought in at once, also where a request is longer than what of it is in the
    // sample: of what was never read before all is read twice, 128 KiB at a time.
    for at in 0..FRESH / 2 {
        let offset = (CACHE_BLOCKS + at * 5 % (FRESH / 2) * 2) * GRANULE_BYTES_MIN;
        for _ in 0..2 {
            let volume = rig.volume();
            let read = async move { volume.read(offset, Buf::new(128 << 10)).await.1 };
            rig.run(read).unwrap().unwrap();
            rig.pause(SOON);
        }
    }
    assert!(!rig.volume().rereads().is_doubted);
    let left_out = || rig.pool().bypass().of(Reason::Profile).read_requests.get();
    let before = (left_out(), rig.pool().counters().read_misses.get());
    brought_in(19_000..20_000);
    assert!(rig.pool().counters().read_misses.get() > before.1 + 100);
    assert_eq!(left_out(), before.0, "all of it comes in");
}

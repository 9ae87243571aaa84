//! The hazards of the design, each provoked by a script: survived as the engine is, and not
//! survived with the planted bug that undoes what protects from it.
#![allow(clippy::unwrap_used)]

mod addition;
mod age;
mod believed;
mod bypass;
mod changing;
mod copies;
mod crafted;
mod damaged;
mod departure;
mod extension;
mod failing;
mod flush;
mod given_back;
mod growth;
mod hanging;
mod homeward;
mod hosts;
mod hurt;
mod joined;
mod journal;
mod let_go;
mod lives;
mod lost;
mod lying;
mod many;
mod members;
mod memory;
mod neighbours;
mod noted;
mod numbers;
mod older;
mod origin;
mod pair;
mod partial;
mod populate;
mod profiles;
mod protection;
mod pull;
mod ram;
mod recopied;
mod remote;
mod removal;
mod replacement;
mod reread;
mod rest;
mod rig;
mod scrub;
mod silent;
mod slow;
mod space;
mod spare;
mod start;
mod starting;
mod status;
mod stop;
mod subsets;
mod synchronous;
mod throttle;
mod unsure;
mod wear;
mod whole;

use std::rc::Rc;

use forebay_device::model::world::Crash;
use forebay_device::{Buf, Request, Runtime};
use forebay_engine::planted::Bug;
use forebay_engine::{Mode, Tuning};

use rig::{BLOCK, Plan, Rig, SEGMENT_BYTES, SOON, lazy, provoke, same, survive};

fn is_read(request: &Request) -> bool {
    matches!(request, Request::Read { .. })
}

fn is_first_root(request: &Request) -> bool {
    let start = 2 * forebay_engine::format::SUPERBLOCK_BYTES as u64;
    matches!(request, Request::Write { offset, .. } if *offset == start)
}

fn is_write(request: &Request) -> bool {
    matches!(request, Request::Write { .. })
}

/// A miss reads v1 from the origin; while its answer is on the way the client writes v2.
fn population_racing(write: fn(&Rig) -> Result<u64, String>, mode: Mode) -> Result<(), String> {
    let rig = Rig::new(7, Plan { mode, ..Plan::default() });
    rig.origin_gate.hold(1, is_read);
    rig.start_read(3);
    rig.pause(SOON);
    assert_eq!(rig.origin_gate.held(), 1, "the origin has answered with the old version");
    let newest = write(&rig)?;
    rig.origin_gate.release();
    rig.pause(SOON);
    same("what is read next", rig.read(3)?, newest)?;
    rig.flush()?;
    rig.restart(Crash::ProcessKill)?;
    same("what is read after a kill", rig.read(3)?, newest)?;
    Ok(())
}

#[test]
fn a_population_does_not_overtake_a_write() {
    provoke(Bug::PopulationAfterWrite, 1, |_| {
        population_racing(|rig| rig.write(2, 3, 1).map(|()| 2), Mode::Writeback)
    });
}

#[test]
fn a_population_does_not_overtake_a_write_that_was_destaged() {
    provoke(Bug::PopulationAfterWrite, 1, |_| {
        let write = |rig: &Rig| {
            rig.write(2, 3, 1)?;
            rig.destage()?;
            Ok(2)
        };
        population_racing(write, Mode::Writeback)
    });
}

#[test]
fn a_population_does_not_overtake_a_direct_write() {
    provoke(Bug::PopulationAfterWrite, 1, |_| {
        population_racing(|rig| rig.write(2, 3, 1).map(|()| 2), Mode::Readonly)
    });
}

#[test]
fn a_population_does_not_overtake_zeroing() {
    provoke(Bug::PopulationAfterWrite, 1, |_| {
        let zero = |rig: &Rig| {
            let volume = rig.volume();
            let zeroed = rig.run(async move {
                volume.write_zeroes(3 * BLOCK as u64, BLOCK as u64, false).await
            })?;
            zeroed.map_err(|error| error.to_string()).map(|()| 0)
        };
        population_racing(zero, Mode::Writeback)
    });
}

#[test]
fn a_flushed_write_survives_a_power_cut() {
    provoke(Bug::FlushAcknowledgedEarly, 20, |seed| {
        let rig = Rig::new(seed, Plan::default());
        rig.write(2, 3, 1)?;
        rig.flush()?;
        rig.restart(Crash::PowerCut)?;
        same("after the power cut", rig.read(3)?, 2).map(drop)
    });
}

#[test]
fn a_flush_covers_every_member() {
    provoke(Bug::FlushSkipsSecondMember, 20, |seed| {
        let rig = Rig::new(seed, Plan { members: 2, ..Plan::default() });
        for block in 0..32 {
            rig.write(2, block, 1)?;
        }
        rig.flush()?;
        rig.restart(Crash::PowerCut)?;
        for block in 0..32 {
            same(&format!("block {block} after the power cut"), rig.read(block)?, 2)?;
        }
        Ok(())
    });
}

/// v1 is cached and durable in the log; then the client writes v2 around the log.
fn written_around(seed: u64) -> Result<Rc<Rig>, String> {
    let rig = Rig::new(seed, Plan { mode: Mode::Readonly, ..Plan::default() });
    for _ in 0..2 {
        rig.read(3)?;
        rig.pause(SOON);
    }
    rig.flush()?;
    rig.write(2, 3, 1)?;
    Ok(rig)
}

#[test]
fn a_direct_write_voids_what_the_log_holds() {
    provoke(Bug::TombstoneForgotten, 3, |seed| {
        let rig = written_around(seed)?;
        rig.flush()?;
        rig.restart(Crash::ProcessKill)?;
        same("after the kill", rig.read(3)?, 2).map(drop)
    });
}

#[test]
fn a_tombstone_is_durable_before_the_origin_has_the_new_data() {
    provoke(Bug::TombstoneNotDurable, 40, |seed| {
        let rig = written_around(seed)?;
        rig.restart(Crash::PowerCut)?;
        rig.settled(3)
    });
}

#[test]
fn a_torn_record_is_not_adopted() {
    provoke(Bug::TornRecordAdopted, 60, |seed| {
        let rig = Rig::new(seed, Plan::default());
        rig.write(2, 3, 3)?;
        rig.flush()?;
        rig.world.crash_at(Some(rig.world.io_count() + 1));
        rig.start_write(3, 3, 3);
        rig.world.run_for(SOON).ok();
        rig.restart(Crash::PowerCut)?;
        for block in 3..6 {
            let version = rig.read(block)?;
            if ![2, 3].contains(&version) {
                return Err(format!("block {block}: version {version}"));
            }
        }
        rig.settled(3)
    });
}

/// The elevator runs by itself, and nothing else does.
fn destaging() -> Tuning {
    Tuning { destage_when_idle: true, ..lazy() }
}

#[test]
fn destaged_data_is_clean_only_after_an_origin_flush() {
    provoke(Bug::ReclaimWithoutOriginFlush, 30, |seed| {
        let rig = Rig::new(seed, Plan { tuning: destaging(), ..Plan::default() });
        rig.write(2, 3, 1)?;
        rig.flush()?;
        rig.pause(30_000_000);
        rig.flush()?;
        rig.restart(Crash::PowerCut)?;
        same("after the power cut", rig.read(3)?, 2)?;
        rig.settled(3)
    });
}

#[test]
fn the_origin_does_not_get_ahead_of_the_log() {
    provoke(Bug::DestageUnflushed, 60, |seed| {
        let rig = Rig::new(seed, Plan { tuning: destaging(), ..Plan::default() });
        rig.write(2, 3, 1)?;
        rig.destage()?;
        rig.write(3, 3, 1)?;
        rig.pause(SOON);
        rig.restart(Crash::PowerCut)?;
        rig.settled(3)
    });
}

#[test]
fn provisional_data_is_void_after_a_power_cut() {
    provoke(Bug::ProvisionalTakenForClean, 40, |seed| {
        let rig = Rig::new(seed, Plan { mode: Mode::Writethrough, ..Plan::default() });
        rig.write(2, 3, 1)?;
        rig.restart(Crash::PowerCut)?;
        rig.settled(3)
    });
}

/// What is written through is admitted like any write: the write budget comes from it, too.
#[test]
fn what_is_written_through_pays_for_moves() {
    survive(2, |seed| {
        let tuning = Tuning { origin_flush_interval: SOON, flush_interval: SOON, ..lazy() };
        let mode = Mode::Writethrough;
        let rig = Rig::new(seed, Plan { mode, tuning, ..Plan::default() });
        let segments = rig.pool().segments().1 as u64;
        for count in 0..2 * segments * SEGMENT_BYTES / BLOCK as u64 {
            // Half of what lies together is overwritten soon, the rest stays for most of a lap.
            let block = if count % 2 == 0 { count / 2 % 130 } else { 200 + count % 8 };
            rig.write(3, block, 1)?;
            if count % 50 == 0 {
                rig.pause(SOON);
            }
        }
        let pool = rig.pool();
        let moved = pool.counters().move_blocks.get();
        assert_eq!(pool.counters().populate_bytes.get(), 0);
        assert!(moved > 50, "{moved} were moved");
        Ok(())
    });
}

/// As a ring that is closed does with what is in flight, and as a device does that does not answer.
#[test]
fn what_a_device_forgets_with_its_buffer_is_read_again_to_other_memory() {
    for forgotten in 1..=3 {
        let rig = Rig::new(7, Plan::default());
        // Three runs: their places in the log do not follow each other.
        for block in [9, 5, 7] {
            rig.write(2, block, 1).unwrap();
            rig.write(2, block + 1, 1).unwrap();
        }
        rig.gates[0].hold(forgotten, is_read);
        let (volume, ended) = (rig.volume(), Rc::new(std::cell::RefCell::new(None)));
        let answer = Rc::clone(&ended);
        rig.world.spawn(Box::pin(async move {
            let (buf, result) = volume.read(5 * BLOCK as u64, Buf::new(6 * BLOCK)).await;
            *answer.borrow_mut() = Some((buf, result));
        }));
        rig.pause(SOON);
        assert_eq!(rig.gates[0].held(), forgotten);
        rig.gates[0].forget();
        rig.pause(SOON);
        let (buf, result) = ended.take().expect("it has ended");
        result.unwrap();
        assert_eq!(buf.len(), 6 * BLOCK);
        for (block, bytes) in (5..).zip(buf.chunks_exact(BLOCK)) {
            assert_eq!(rig::version(block, bytes), Ok(2), "{forgotten} forgotten");
        }
    }
}

#[test]
fn overlapping_writes_have_one_order() {
    provoke(Bug::RangeLockSkipped, 300, |seed| {
        let rig = Rig::new(seed, Plan::default());
        // The first write waits for the superblocks, and all others with it.
        rig.write(2, 30, 1)?;
        // Long enough that several records of each are in flight at a time.
        let writes =
            [rig.start_write(2, 0, 20), rig.start_write(3, 4, 20), rig.start_write(4, 0, 16)];
        rig.pause(SOON);
        assert!(writes.iter().all(|done| done.get()));
        let before: Vec<_> = (0..24).map(|block| rig.read(block)).collect::<Result<_, _>>()?;
        rig.flush()?;
        rig.restart(Crash::ProcessKill)?;
        for (block, before) in (0..24).zip(before) {
            same(&format!("block {block} after the kill"), rig.read(block)?, before)?;
        }
        Ok(())
    });
}

#[test]
fn a_footer_does_not_reach_the_member_before_its_records() {
    provoke(Bug::FooterBeforeFlush, 60, |seed| {
        let rig = Rig::new(seed, Plan::default());
        for version in 2..6 {
            for block in 0..8 {
                rig.write(version, block, 1)?;
            }
        }
        rig.pause(SOON);
        rig.restart(Crash::PowerCut)?;
        (0..8).try_for_each(|block| rig.settled(block))
    });
}

#[test]
fn an_image_does_not_claim_what_is_in_flight() {
    provoke(Bug::WatermarkOverInflight, 5, |seed| {
        let tuning = Tuning { lap_percent: 10, ..lazy() };
        let rig = Rig::new(seed, Plan { tuning, ..Plan::default() });
        rig.write(1, 0, 1)?;
        rig.gates[0].hold(1, is_write);
        let held = rig.start_write(2, 3, 1);
        rig.pause(SOON);
        assert_eq!(rig.gates[0].held(), 1);
        let laps = || rig.pool().counters().laps.get();
        let before = laps();
        for block in 1..9 {
            if laps() == before {
                // So much that another append starts beside the one in flight.
                rig.start_write(3, 16 * block, 16);
                rig.pause(SOON);
            }
        }
        assert!(laps() > before && !held.get(), "a lap while the append was in flight: {before}");
        let before = laps();
        rig.gates[0].release();
        rig.pause(SOON);
        rig.flush()?;
        assert_eq!(laps(), before, "no other lap afterwards");
        rig.restart(Crash::ProcessKill)?;
        same("after the kill", rig.read(3)?, 2).map(drop)
    });
}

#[test]
fn a_root_names_only_what_is_durable() {
    provoke(Bug::RootBeforeImages, 60, |seed| {
        let rig = Rig::new(seed, Plan::default());
        rig.write(2, 3, 1)?;
        rig.flush()?;
        // The first root slot is written and its flush has not begun when the power goes.
        rig.gates[0].hold(1, is_first_root);
        *rig.volume.borrow_mut() = None;
        let pool = rig.pool.take().unwrap();
        rig.world.spawn(Box::pin(async move {
            Rc::into_inner(pool).unwrap().stop().await.ok();
        }));
        rig.pause(10 * SOON);
        assert_eq!(rig.gates[0].held(), 1);
        rig.restart(Crash::PowerCut)?;
        same("after the power cut", rig.read(3)?, 2).map(drop)
    });
}

#[test]
fn a_full_log_slows_writers_and_loses_nothing() {
    survive(3, |seed| {
        let plan = Plan { origin_bytes: 8 << 20, tuning: destaging(), ..Plan::default() };
        let rig = Rig::new(seed, plan);
        for block in 0..250 {
            rig.write(2, 8 * block, 8)?;
        }
        let throttled = rig.pool().counters().throttled_writes.get();
        assert!(throttled > 0, "8 MB were written into a pool of 2.5 MB");
        (0..250).try_for_each(|block| same("read back", rig.read(8 * block)?, 2).map(drop))
    });
}

/// Every set is full of short records, half of which are headers. Moved in short records as well,
/// the blocks would fill as many sets again: reclaim must not give the room that it makes to what
/// it moves. Without the guards it moves four to five times what it drops.
#[test]
fn reclaim_moves_nothing_where_that_gains_no_room() {
    survive(3, |seed| {
        let tuning = Tuning { flush_interval: SOON, ..destaging() };
        let (origin_bytes, write_amplification_max_percent) = (8 << 20, 400);
        let plan =
            Plan { origin_bytes, write_amplification_max_percent, tuning, ..Plan::default() };
        let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..plan });
        for block in 0..1000 {
            rig.read(2 * block)?;
        }
        for block in 0..300 {
            rig.write(2, 2 * block, 1)?;
        }
        let pool = rig.pool();
        let counters = pool.counters();
        let (moved, dropped) = (counters.move_blocks.get(), counters.evict_blocks.get());
        assert!(dropped > 0, "more was read than the pool holds");
        assert!(moved < 2 * dropped, "{moved} blocks were moved and {dropped} dropped");
        Ok(())
    });
}

#[test]
fn one_damaged_root_slot_costs_nothing_and_two_are_refused() {
    survive(3, |seed| {
        let rig = Rig::new(seed, Plan::default());
        rig.write(2, 3, 1)?;
        rig.flush()?;
        let superblock = rig.pool().superblock();
        rig.crash(Crash::PowerCut);
        let slots = superblock.segments_offset - 2 * u64::from(superblock.root_bytes);
        let damage = |slot: u64| {
            let at = 2 * forebay_engine::format::SUPERBLOCK_BYTES as u64;
            assert!(at <= slots);
            rig.members[0].poke(at + slot * u64::from(superblock.root_bytes), &[0x5A; 4096]);
        };
        damage(seed % 2);
        rig.open()?;
        same("with one root", rig.read(3)?, 2)?;
        rig.crash(Crash::PowerCut);
        damage(0);
        damage(1);
        assert!(rig.open().is_err_and(|error| error.contains("root")));
        Ok(())
    });
}

/// Which volumes there are and which may be dirty was acknowledged: a slot that rots later does not
/// take it back, nor does the number of a start come again.
#[test]
fn one_damaged_superblock_slot_takes_nothing_back() {
    survive(4, |seed| {
        for is_written in [false, true] {
            let rig = Rig::new(seed, Plan::default());
            if is_written {
                rig.write(2, 3, 1)?;
                rig.flush()?;
            }
            let before = rig.pool().superblock();
            rig.crash(if seed < 2 { Crash::PowerCut } else { Crash::ProcessKill });
            let slot = (seed % 2) * forebay_engine::format::SUPERBLOCK_BYTES as u64;
            rig.members[0].poke(slot + 4096, &[0x5A; 512]);
            rig.open()?;
            let after = rig.pool().superblock();
            assert_eq!(after.volumes, before.volumes);
            assert_eq!(after.start_number, before.start_number + 1);
            same("block 3", rig.read(3)?, if is_written { 2 } else { 1 })?;
        }
        Ok(())
    });
}

#[test]
fn what_a_read_returned_after_a_kill_survives_a_power_cut() {
    survive(30, |seed| {
        let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
        rig.write(2, 3, 1)?;
        rig.flush()?;
        rig.write(3, 3, 1)?;
        rig.restart(Crash::ProcessKill)?;
        let read = rig.read(3)?;
        rig.restart(Crash::PowerCut)?;
        same("after the power cut", rig.read(3)?, read).map(drop)
    });
}

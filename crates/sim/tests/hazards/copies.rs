//! Copies of dirty and of clean data: which is read, and what having two of them is good for.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::model::disk::{DiskSettings, SimDisk};
use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::modelled::Modelled;
use forebay_device::model::ssd::{SsdModel, SsdParameters};
use forebay_device::model::thrifty::ThriftyStore;
use forebay_device::model::world::{Crash, Limits, Rng, World};
use forebay_device::runtime::SECOND;
use forebay_device::{BlockDevice, Buf, Nanos, Runtime};
use forebay_engine::planted::Bug;
use forebay_engine::{
    CopiesChange, CreateOptions, MemoryWitness, Mode, Tuning, VolumeSpec, create, open,
};

use crate::rig::{KINDS, Plan, Rig, SOON, lazy, newest, provoke, same, survive};

/// The origin would have it, but is not asked.
#[test]
fn clean_data_with_two_copies_survives_an_unreadable_one() {
    survive(6, |seed| {
        for bad in 0..2 {
            let plan =
                Plan { members: 2, clean_copies: 2, mode: Mode::Readonly, ..Plan::default() };
            let rig = Rig::new(seed, plan);
            for block in 0..24 {
                same("at first", rig.read(block)?, 1)?;
            }
            rig.flush()?;
            rig.pause(SOON);
            rig.origin_broken.failing.arm(Trigger::one_in(Ops::Reads, 1));
            rig.broken[bad].failing.arm(Trigger::one_in(Ops::Reads, 1));
            for block in 0..24 {
                same(&format!("without member {bad}"), rig.read(block)?, 1)?;
            }
        }
        Ok(())
    });
}

const VOLUME_BYTES: u64 = 32 << 20;
const READ: u64 = 4096;
const READERS: u64 = 64;

/// Virtual time in which `depth` clients at a time read all of a cached volume, 4 KiB by 4 KiB,
/// anywhere; `dirty` or clean, checked or not.
fn time_to_read(members: u8, dirty: bool, verify_reads: bool, depth: u64) -> Nanos {
    let world = World::new(3);
    world.set_limits(Limits { steps: u64::MAX, nanos: 1_000 * SECOND });
    let runtime = Rc::clone(&world) as Rc<dyn Runtime>;
    let devices: Vec<Rc<dyn BlockDevice>> = (0..u64::from(members))
        .map(|seed| {
            let store = Rc::new(ThriftyStore::new(1 << 30, 4096));
            let model = SsdModel::new(SsdParameters::sata_data_centre(), seed);
            Rc::new(Modelled::new(Rc::clone(&runtime), store, model)) as _
        })
        .collect();
    let origin = SimDisk::new(&world, DiskSettings::origin(VOLUME_BYTES, 512, true), 7);
    let (rt, given) = (Rc::clone(&runtime), devices.clone());
    let opened = world.run_until(async move {
        let witness = Rc::new(MemoryWitness::default());
        let options = CreateOptions {
            dirty_copies: members,
            clean_copies: members,
            verify_reads,
            ..CreateOptions::named("pool")
        };
        create(&*rt, &given, &*witness, &options).await.unwrap();
        let pool = open(rt, given, witness, lazy()).await.unwrap();
        let spec = VolumeSpec {
            name: "v".into(),
            origin: "origin".into(),
            mode: Mode::Writeback,
            cache_block_bytes: 4096,
            settings: Default::default(),
            accept_data_loss_on_ssd_failure: true,
        };
        let volume = pool.add_volume(&spec, origin).await.unwrap();
        for at in (0..VOLUME_BYTES).step_by(1 << 20) {
            volume.write(at, Buf::zeroed(1 << 20).freeze(), false).await.unwrap();
        }
        volume.flush().await.unwrap();
        if !dirty {
            volume.destage().await.unwrap();
        }
        (Rc::new(pool), Rc::new(volume))
    });
    let (pool, volume) = opened.unwrap();
    let (begun, left) = (world.now(), Rc::new(Cell::new(VOLUME_BYTES / READ)));
    let mut readers = Vec::new();
    for reader in 0..depth {
        let (completer, end) = forebay_device::io::pair();
        let (volume, left, mut rng) = (Rc::clone(&volume), Rc::clone(&left), Rng::new(reader));
        readers.push(end);
        world.spawn(Box::pin(async move {
            while let Some(rest) = left.get().checked_sub(1) {
                left.set(rest);
                let at = rng.below(VOLUME_BYTES / READ) * READ;
                volume.read(at, Buf::new(READ as usize)).await.1.unwrap();
            }
            completer.done(Ok(()));
        }));
    }
    world
        .run_until(async move {
            for end in readers {
                end.await.result.unwrap();
            }
        })
        .unwrap();
    let took = world.now() - begun;
    assert_eq!(pool.counters().read_misses.get(), 0);
    drop((pool, volume));
    world.crash(Crash::ProcessKill);
    took
}

#[test]
fn two_mirrored_ssds_read_almost_twice_as_much_as_one() {
    for dirty in [true, false] {
        let time = |members| time_to_read(members, dirty, false, READERS);
        let (one, two) = (time(1), time(2));
        let times = one as f64 / two as f64;
        assert!(times >= 1.8, "two read {times:.2} x what one does; dirty: {dirty}");
    }
}

/// What it costs to read a header with each block (`docs/internals/performance.md` has the figures).
#[test]
fn checked_reads_cost_one_more_device_read() {
    let times = |depth| {
        let time = |verify| time_to_read(1, true, verify, depth) as f64;
        time(true) / time(false)
    };
    let (alone, many) = (times(1), times(READERS));
    println!(
        "checked reads take {alone:.2} x as long one by one, {many:.2} x with {READERS} at a time"
    );
    assert!((1.0..1.3).contains(&alone), "both reads are begun at once: {alone:.2}");
    assert!((1.5..2.2).contains(&many), "twice as many device reads: {many:.2}");
}

const BLOCKS: u64 = 24;

fn one_copy(members: usize) -> Plan {
    Plan { members, ..Plan::default() }
}

/// Opens the pool without a member. What it then has must be right; it may want a decision, where
/// nothing else was `promised`.
fn without(rig: &Rc<Rig>, lost: &[usize], kind: Crash, promised: bool) -> Result<bool, String> {
    let members: Vec<_> = (0..rig.members.len()).filter(|i| !lost.contains(i)).collect();
    rig.offer(&members);
    match rig.restart(kind) {
        Err(error) if error.contains("NeedsDecision") && !promised => return Ok(false),
        other => other?,
    }
    for block in 0..BLOCKS {
        same(&format!("block {block} without {lost:?}"), rig.read(block)?, newest(block))?;
    }
    rig.destage()?;
    (0..BLOCKS).try_for_each(|block| rig.settled(block))?;
    Ok(true)
}

/// Asks for `to` copies instead of `from`, and ends it all at an I/O on the way; returns whether that
/// was before the change had ended.
fn changed_until(
    seed: u64,
    (members, from, to): (usize, u8, u8),
    ios: u64,
    lost: &[usize],
) -> Result<bool, String> {
    let rig = Rig::new(seed, Plan { copies: from, ..one_copy(members) });
    rig.rewrite(BLOCKS)?;
    rig.world.crash_at(Some(rig.world.io_count() + ios));
    let ended = rig.ask_for(to).and_then(|()| {
        // What is written meanwhile goes to sets of either kind.
        for block in (0..BLOCKS).step_by(4) {
            rig.write(3, block, 1)?;
        }
        rig.until_promised(to)
    });
    rig.world.crash_at(None);
    let kept = from.min(to).max(if ended.is_ok() { to } else { 0 });
    let promised = usize::from(kept) > lost.len();
    without(&rig, lost, KINDS[(ios % 2) as usize], promised)?;
    Ok(ended.is_err())
}

#[test]
fn more_copies_are_promised_only_when_there_are_at_every_io() {
    survive(2, |seed| {
        for lost in 0..2 {
            let mut ios = 1;
            while changed_until(seed, (2, 1, 2), ios, &[lost])? {
                ios += 1;
            }
            assert!(ios > 20, "{ios} I/Os only");
        }
        Ok(())
    });
}

#[test]
fn a_third_copy_is_promised_with_images_on_three_members_at_every_io() {
    survive(1, |seed| {
        for lost in [[0, 1], [0, 2], [1, 2]] {
            let mut ios = 1;
            while changed_until(seed, (3, 2, 3), ios, &lost)? {
                ios += 2;
            }
        }
        Ok(())
    });
}

#[test]
fn fewer_copies_are_durable_before_there_are_at_every_io() {
    survive(2, |seed| {
        for lost in 0..2 {
            let mut ios = 1;
            while changed_until(seed, (2, 2, 1), ios, &[lost])? {
                ios += 1;
            }
        }
        Ok(())
    });
}

#[test]
fn a_change_that_was_cut_off_goes_on_at_the_next_start() {
    survive(6, |seed| {
        let rig = Rig::new(seed, one_copy(2));
        rig.rewrite(BLOCKS)?;
        // Nothing can be destaged, so nothing can be promised.
        rig.origin_broken.failing.arm(Trigger::one_in(Ops::Writes, 1));
        rig.ask_for(2)?;
        rig.pause(SOON);
        assert_eq!(rig.pool().superblock().dirty_copies, 1);
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.origin_broken.mend();
        rig.open()?;
        rig.until_promised(2)?;
        assert!(rig.was_told("has 2 copies from now on"));
        assert!(without(&rig, &[(seed % 2) as usize], Crash::PowerCut, true)?);
        Ok(())
    });
}

#[test]
fn a_promise_of_more_copies_made_early_is_caught() {
    provoke(Bug::CopiesPromisedEarly, 4, |seed| {
        let rig = Rig::new(seed, one_copy(2));
        rig.rewrite(BLOCKS)?;
        rig.origin_broken.failing.arm(Trigger::one_in(Ops::Writes, 1));
        rig.ask_for(2)?;
        rig.origin_broken.mend();
        without(&rig, &[(seed % 2) as usize], Crash::PowerCut, false).map(drop)
    });
}

#[test]
fn fewer_copies_need_the_agreement_of_whoever_is_written_back() {
    let rig = Rig::new(1, Plan { copies: 2, agreed: false, ..one_copy(2) });
    let refused = rig.ask_for(1).unwrap_err();
    assert!(refused.contains("volume \"v\" is written back"), "{refused}");
    let accept = CopiesChange {
        dirty: Some(1),
        accept_data_loss_on_ssd_failure: true,
        ..CopiesChange::default()
    };
    let pool = rig.pool();
    rig.run(async move { pool.set_copies(&accept).await }).unwrap().unwrap();
    rig.restart(Crash::ProcessKill).unwrap();
    assert_eq!(rig.pool().superblock().dirty_copies, 1);
    assert!(rig.pool().superblock().volumes[0].accept_single_copy);
    assert!(rig.ask_for(3).unwrap_err().contains("3 dirty copies on 2 cache devices"));
    assert!(rig.ask_for(0).is_err());
}

#[test]
fn a_volume_is_written_back_only_once_more_copies_are_promised() {
    let plan = Plan { mode: Mode::Writethrough, agreed: false, ..one_copy(2) };
    let rig = Rig::new(1, plan);
    rig.write(2, 0, 1).unwrap();
    let set = |mode| {
        let volume = rig.volume();
        rig.run(async move { volume.set_mode(mode).await }).unwrap()
    };
    assert!(set(Mode::Writeback).is_err());
    rig.ask_for(2).unwrap();
    rig.until_promised(2).unwrap();
    set(Mode::Writeback).unwrap();
    assert!(rig.ask_for(1).unwrap_err().contains("is written back"));
    set(Mode::Writethrough).unwrap();
    rig.ask_for(1).unwrap();
    assert!(set(Mode::Writeback).is_err());
}

/// Two copies of dirty data; laps come often, and clean sets keep one copy.
pub(crate) fn mirrored() -> Plan {
    let tuning = Tuning { lap_percent: 4, flush_interval: SOON, ..lazy() };
    Plan { copies: 2, tuning, ..one_copy(2) }
}

/// Blocks that are written once more than the first ones.
pub(crate) const MORE: u64 = 48;

fn settle(rig: &Rc<Rig>) -> Result<(), String> {
    rig.world.run_for(2 * SOON).map_err(|stopped| stopped.to_string())
}

/// Segments that are free once much has been destaged, and as much written as makes a lap due.
fn free_when_destaged(rig: &Rc<Rig>) -> Result<usize, String> {
    for version in [2, 3] {
        for block in 0..BLOCKS {
            rig.write(version, block, 1)?;
        }
    }
    for block in BLOCKS..BLOCKS + MORE {
        rig.write(4, block, 1)?;
    }
    rig.destage()?;
    settle(rig)?;
    for block in 128..208 {
        rig.write(5, block, 1)?;
    }
    rig.flush()?;
    settle(rig)?;
    Ok(rig.pool().segments().0)
}

fn all_is_there(rig: &Rc<Rig>, when: &str) -> Result<(), String> {
    for block in 0..BLOCKS {
        same(&format!("block {block} {when}"), rig.read(block)?, 3)?;
    }
    for block in BLOCKS..BLOCKS + MORE {
        same(&format!("block {block} {when}"), rig.read(block)?, 4)?;
    }
    Ok(())
}

#[test]
fn a_set_that_has_become_clean_gives_its_surplus_copies_back() {
    survive(6, |seed| {
        let free = |clean_copies| {
            let rig = Rig::new(seed, Plan { clean_copies, ..mirrored() });
            free_when_destaged(&rig).map(|free| (rig, free))
        };
        let ((rig, one), (_, two)) = (free(1)?, free(2)?);
        assert!(one >= two + 4, "{one} segments are free with one copy, {two} with two");
        // All of it is in the cache, also after a crash.
        rig.origin_broken.failing.arm(Trigger::one_in(Ops::Reads, 1));
        all_is_there(&rig, "at first")?;
        rig.restart(KINDS[(seed % 2) as usize])?;
        all_is_there(&rig, "after a crash")?;
        rig.origin_broken.mend();
        rig.offer(&[(seed % 2) as usize]);
        rig.restart(KINDS[(seed % 2) as usize])?;
        all_is_there(&rig, "with one member")
    });
}

/// While copies are given back, and while what was given back is used again.
#[test]
fn giving_surplus_copies_back_is_cut_off_at_every_io() {
    survive(1, |seed| {
        for ios in (1..).step_by(3) {
            let rig = Rig::new(seed, mirrored());
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            let ended = free_when_destaged(&rig).and_then(|_| {
                for block in (0..BLOCKS).chain(0..BLOCKS) {
                    rig.write(3, block, 1)?;
                }
                rig.flush()
            });
            rig.world.crash_at(None);
            let member = (ios % 3) as usize;
            if member < 2 {
                rig.offer(&[member]);
            }
            rig.restart(KINDS[(ios % 2) as usize])?;
            if ended.is_ok() {
                return all_is_there(&rig, "at the end");
            }
            // Whatever was there is what the origin gets.
            for block in (0..BLOCKS + MORE).step_by(5) {
                rig.settled(block).map_err(|error| format!("after {ios} I/Os: {error}"))?;
            }
        }
        Ok(())
    });
}

/// While copies are given back, a member fails at each of its writes and flushes in turn.
#[test]
fn a_member_fails_while_surplus_copies_are_given_back() {
    survive(1, |seed| {
        for after in 0..60 {
            let failed = (after % 2) as usize;
            let rig = Rig::new(seed, Plan { agreed: after % 4 < 2, ..mirrored() });
            for block in 0..BLOCKS {
                rig.write(3, block, 1)?;
            }
            rig.destage()?;
            settle(&rig)?;
            let ops = [Ops::Writes, Ops::Flushes][(after / 2 % 2) as usize];
            let trigger = Trigger::every(ops).after(after / 2);
            rig.broken[failed].failing.arm(trigger);
            let at = |error: String| format!("after {after}: {error}");
            for block in 128..208 {
                rig.write(5, block, 1).map_err(at)?;
            }
            rig.flush().map_err(at)?;
            settle(&rig)?;
            assert!(!rig.pool().is_latched());
            let verify = || {
                let same = |block, version| same("a block", rig.read(block)?, version).map(drop);
                (0..BLOCKS).try_for_each(|block| same(block, 3))?;
                (128..208).try_for_each(|block| same(block, 5))
            };
            verify().map_err(at)?;
            rig.crash(KINDS[(after / 8 % 2) as usize]);
            rig.broken[failed].mend();
            rig.open().map_err(at)?;
            verify().map_err(at)?;
            rig.destage().map_err(at)?;
            (0..208).step_by(5).try_for_each(|block| rig.settled(block)).map_err(at)?;
        }
        Ok(())
    });
}

#[test]
fn a_surplus_copy_that_its_set_still_names_is_caught() {
    provoke(Bug::SurplusStillNamed, 4, |seed| {
        let rig = Rig::new(seed, mirrored());
        free_when_destaged(&rig)?;
        rig.origin_broken.failing.arm(Trigger::one_in(Ops::Reads, 1));
        rig.restart(Crash::ProcessKill)?;
        for block in 0..BLOCKS {
            // While one copy is read, the other one has less to do.
            rig.start_read(block);
            same(&format!("block {block}"), rig.read(block)?, 3)?;
        }
        Ok(())
    });
}

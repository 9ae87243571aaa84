//! Clean data gets its copies back after a member was lost, behind what is dirty; and in the end nothing is known by a
//! number of it, so that another one can come for it.

use std::rc::Rc;

use forebay_device::Runtime;
use forebay_device::model::fault::{Ops, Trigger};
use forebay_engine::{EventKind, Redundancy, Tuning};

use crate::changing::{self, add, all_but, told, touch};
use crate::rig::{KINDS, Plan, Rig, SOON, same, survive};

/// Blocks that are clean, and behind them some that are dirty.
const BLOCKS: u64 = 150;
const DIRTY: u64 = 20;

fn plan(members: usize, spares: usize, clean_copies: u8) -> Plan {
    Plan { clean_copies, ..changing::plan(members, spares, 2) }
}

/// Clean and dirty data on all members.
fn fill(rig: &Rc<Rig>) -> Result<(), String> {
    (0..BLOCKS).try_for_each(|block| rig.write(2, block, 1))?;
    rig.destage()?;
    (BLOCKS..BLOCKS + DIRTY).try_for_each(|block| rig.write(3, block, 1))?;
    rig.flush()
}

fn verify(rig: &Rc<Rig>, when: &str) -> Result<(), String> {
    (0..BLOCKS + DIRTY).try_for_each(|block| {
        let newest = if block < BLOCKS { 2 } else { 3 };
        same(&format!("block {block} {when}"), rig.read(block)?, newest).map(drop)
    })
}

fn lose(rig: &Rc<Rig>, member: usize) {
    rig.broken[member].gone.set(true);
    touch(rig);
}

/// Bytes of clean data that some member has alone.
fn alone(rig: &Rig) -> u64 {
    let superblock = rig.pool().superblock();
    let alone = |id| rig.pool().can_pull(id).unwrap().only_clean_bytes;
    superblock.present().map(|member| alone(member.device)).sum()
}

/// Clients are served while clean data gets its copies back.
fn until_copied(rig: &Rc<Rig>) -> Result<(), String> {
    for turn in 0..200 {
        if alone(rig) == 0 {
            return Ok(());
        }
        let (began, block) = (rig.world.now(), turn % BLOCKS);
        same("read meanwhile", rig.read(block)?, 2)?;
        rig.write(3, BLOCKS + turn % DIRTY, 1)?;
        if rig.world.now() - began > SOON {
            return Err(format!("a read and a write took {} ns", rig.world.now() - began));
        }
        rig.pause(SOON);
    }
    Err(format!("{} B of clean data have one copy", alone(rig)))
}

/// A second loss costs no miss, once clean data has its copies back.
#[test]
fn clean_data_gets_its_copies_back_after_a_loss() {
    survive(6, |seed| {
        let rig = Rig::new(seed, plan(3, 0, 2));
        fill(&rig)?;
        let (first, second) = ((seed % 3) as usize, ((seed + 1) % 3) as usize);
        let moved = || rig.pool().counters().move_blocks.get();
        let before = moved();
        lose(&rig, first);
        if seed % 2 == 1 {
            // It goes on where it was cut off.
            rig.pause(seed * SOON / 50);
            rig.crash(KINDS[(seed / 2 % 2) as usize]);
            rig.offer(&all_but(3, first));
            rig.open()?;
        }
        until_copied(&rig)?;
        assert!(seed % 2 == 1 || moved() > before + DIRTY, "nothing was copied");
        same("whole", u64::from(rig.pool().redundancy() == Redundancy::Whole), 1)?;
        let cached = rig.pool().blocks().0;
        lose(&rig, second);
        rig.pause(10 * SOON);
        same("cached", rig.pool().blocks().0, cached)?;
        rig.origin_broken.failing.arm(Trigger::every(Ops::Reads));
        verify(&rig, "with one member")
    });
}

/// Volumes are written back as soon as dirty data has its copies; what is clean comes behind that.
#[test]
fn nobody_waits_for_the_copies_of_clean_data() {
    survive(4, |seed| {
        let rig = Rig::new(seed, plan(3, 0, 2));
        fill(&rig)?;
        lose(&rig, (seed % 3) as usize);
        let mut is_behind = false;
        for _ in 0..100 {
            rig.pause(SOON / 50);
            if told(&rig, EventKind::CopiesRestored) {
                is_behind |= alone(&rig) > 0;
                same("whole", u64::from(rig.pool().redundancy() == Redundancy::Whole), 1)?;
            }
        }
        assert!(is_behind, "nothing was left when dirty data had its copies");
        until_copied(&rig)
    });
}

/// A full pool: what there is no room for is left to reclaim. Writers get their room, and copying ends.
#[test]
fn a_full_pool_copies_as_far_as_there_is_room_and_rests() {
    survive(4, |seed| {
        let tuning = Tuning { lap_percent: 20, ..changing::plan(1, 0, 1).tuning };
        let rig = Rig::new(seed, Plan { tuning, origin_bytes: 8 << 20, ..plan(3, 0, 2) });
        let blocks = 2048;
        for first in (0..blocks).step_by(4) {
            rig.write(2, first, 4)?;
            if first % 256 == 252 {
                rig.destage()?;
            }
        }
        rig.destage()?;
        rig.flush()?;
        let lost = (seed % 3) as usize;
        lose(&rig, lost);
        assert!(alone(&rig) > 0, "nothing lacks a copy");
        for block in 0..200 {
            let began = rig.world.now();
            rig.write(3, block * 7 % blocks, 1)?;
            if rig.world.now() - began > 10 * SOON {
                return Err(format!("a write took {} ns", rig.world.now() - began));
            }
        }
        rig.destage()?;
        rig.pause(300 * SOON);
        let moved = || rig.pool().counters().move_blocks.get();
        let before = moved();
        rig.pause(100 * SOON);
        same("moved at rest", moved(), before)?;
        same("alone", alone(&rig), 0)?;
        let newest = |block| if (0..200).any(|i| i * 7 % blocks == block) { 3 } else { 2 };
        (0..blocks)
            .try_for_each(|block| same("a block", rig.read(block)?, newest(block)).map(drop))?;
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.offer(&all_but(3, lost));
        rig.open()?;
        (0..blocks).try_for_each(|block| same("a block", rig.read(block)?, newest(block)).map(drop))
    });
}

/// Eight members are as many as a pool can have, and the record of the lost one counts as long as a set is known by its number.
#[test]
fn a_spare_comes_soon_to_a_pool_of_eight_that_has_lost_one() {
    survive(8, |seed| {
        let rig = Rig::new(seed, plan(8, 1, 1 + (seed % 2) as u8));
        fill(&rig)?;
        let lost = (seed / 2 % 8) as usize;
        lose(&rig, lost);
        let mut refused = None;
        for _ in 0..100 {
            refused = add(&rig, 8)?.err();
            if refused.is_none() {
                break;
            }
            rig.pause(SOON);
        }
        if let Some(error) = refused {
            return Err(error.to_string());
        }
        verify(&rig, "with the spare")?;
        // Its numbers are those of the lost one.
        for version in 4..8 {
            (200..256).try_for_each(|block| rig.write(version, block, 1))?;
        }
        rig.flush()?;
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.offer(&all_but(9, lost));
        rig.open()?;
        verify(&rig, "after a crash")?;
        (0..BLOCKS + DIRTY).step_by(7).try_for_each(|block| rig.settled(block))
    });
}

/// What has copies enough stays, what has not is copied, and another member comes: whatever is cut off.
#[test]
fn what_becomes_of_clean_data_behind_a_loss_is_cut_off_at_every_io() {
    survive(2, |seed| {
        let mut added = 0;
        for ios in (1..).step_by(5) {
            let rig = Rig::new(seed, plan(3, 1, 1 + (seed % 2) as u8));
            fill(&rig)?;
            let lost = (ios % 3) as usize;
            rig.broken[lost].gone.set(true);
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            let at = |error: String| format!("after {ios} I/Os: {error}");
            let pool = rig.pool();
            let over = rig.run(async move { pool.set_write_amplification_max(200).await }).is_err()
                || rig.world.run_for(50 * SOON).is_err();
            let over = over || add(&rig, 3).is_err();
            rig.world.crash_at(None);
            rig.crash(KINDS[(ios % 2) as usize]);
            rig.broken[lost].mend();
            let others = all_but(4, lost);
            rig.offer(&others);
            if rig.open().is_err() {
                rig.offer(&all_but(3, lost));
                rig.open().map_err(at)?;
            } else {
                added += 1;
            }
            verify(&rig, "after a crash").map_err(at)?;
            (0..BLOCKS + DIRTY).step_by(7).try_for_each(|block| rig.settled(block)).map_err(at)?;
            if !over {
                assert!(ios > 50 && added > 0, "{ios} I/Os, {added} added");
                return Ok(());
            }
        }
        Ok(())
    });
}

/// Nothing is copied while there are fewer members than copies of dirty data, and nobody says so; another member brings
/// about what is said beforehand.
#[test]
fn what_is_clean_is_to_be_copied_only_once_there_are_members_enough() {
    survive(4, |seed| {
        let rig = Rig::new(seed, plan(2, 1, 1 + (seed % 2) as u8));
        fill(&rig)?;
        lose(&rig, (seed / 2) as usize);
        rig.destage()?;
        rig.pause(10 * SOON);
        same("protected", u64::from(rig.pool().redundancy() == Redundancy::Protected), 1)?;
        let moved = || rig.pool().counters().move_blocks.get();
        let before = moved();
        rig.pause(100 * SOON);
        same("moved", moved(), before)?;
        same("to be copied with one member", rig.pool().short_clean_bytes(0), 0)?;
        let planned = rig.pool().short_clean_bytes(1);
        // With one copy it is what is known by a number of the lost one: here nothing, if that was the second.
        assert!(planned <= (BLOCKS + DIRTY) * 4096, "{planned} B");
        assert!(planned > 0 || seed == 2, "nothing is to be copied");
        add(&rig, 2)?.map_err(|error| error.to_string())?;
        same("to be copied with two", rig.pool().short_clean_bytes(0), planned)?;
        rig.pause(100 * SOON);
        same("moved", moved(), before + planned / 4096)?;
        same("left", rig.pool().short_clean_bytes(0), 0)?;
        verify(&rig, "with another member")
    });
}

//! What readers meet of damage: copied again, dropped or counted, without a scrub.

use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{Buf, Request};
use forebay_engine::planted::Bug;
use forebay_engine::{EventKind, Mode, Tuning};

use crate::rig::{BLOCK, KINDS, MEMBER_BYTES, Plan, Rig, lazy, provoke, same, survive, version};
use crate::scrub::{BLOCKS, find, find_version, spoilt, spoilt_with};

/// Gives a member something to do, so that reads go to the other one, until its gate is released.
fn occupy(rig: &Rig, member: usize) {
    rig.gates[member].hold(1, |request| matches!(request, Request::Read { .. }));
    rig.start_read(BLOCKS);
    rig.start_read(BLOCKS + 1);
    rig.pause(MILLISECOND);
    rig.gates[member].hold(0, |_| false);
}

/// Whether a record is written, in a pool of this size.
fn is_record_write(request: &Request) -> bool {
    matches!(request, Request::Write { offset, data, .. }
        if *offset >= 320 << 10 && data.len() > BLOCK)
}

/// Whoever has lost the good member finds everything on the bad one.
fn is_whole_on(rig: &Rc<Rig>, bad: usize, seed: u64) -> Result<(), String> {
    rig.pause(70 * SECOND);
    rig.flush()?;
    rig.offer(&[bad]);
    rig.restart(KINDS[(seed / 2 % 2) as usize])?;
    rig.is_whole("without the good member")?;
    rig.destage()?;
    (0..BLOCKS).try_for_each(|block| rig.settled(block))
}

fn damaged(rig: &Rig) -> u64 {
    rig.pool().damaged_blocks().iter().map(|(_, blocks)| blocks).sum()
}

/// Reads meet what is damaged in one copy; that is copied again before the other one is lost.
#[test]
fn what_a_reader_has_met_is_copied_again_without_a_scrub() {
    provoke(Bug::HurtForgotten, 8, |seed| {
        let bad = (seed % 2) as usize;
        let rig = spoilt(seed, &[bad], |broken| &broken.flipping)?;
        occupy(&rig, 1 - bad);
        // Several times: what is healed meanwhile is read from the bad one, too.
        for _ in 0..8 {
            rig.is_whole("from the good copy")?;
            rig.pause(100 * MILLISECOND);
        }
        rig.gates[1 - bad].release();
        assert!(rig.told(EventKind::DamageFound) > 0);
        is_whole_on(&rig, bad, seed)
    });
}

/// Whatever error the device gives for it.
#[test]
fn what_a_reader_gets_no_answer_for_is_copied_again() {
    survive(8, |seed| {
        let bad = (seed % 2) as usize;
        let rig = spoilt(seed, &[], |broken| &broken.flipping)?;
        let at = find(&rig, bad, 3);
        let trigger = Trigger::every(Ops::Reads).within(at..at + BLOCK as u64);
        [&rig.broken[bad].timing_out, &rig.broken[bad].erring][(seed / 4 % 2) as usize]
            .arm(trigger);
        occupy(&rig, 1 - bad);
        rig.is_whole("from the good copy")?;
        rig.gates[1 - bad].release();
        is_whole_on(&rig, bad, seed)
    });
}

/// Each is met once, while none can be copied again.
#[test]
fn more_than_are_noted_one_by_one_are_copied_again() {
    survive(8, |seed| {
        let bad = (seed % 2) as usize;
        let tuning = Tuning { hurt_records_max: 2, ..lazy() };
        let rig = spoilt_with(tuning, seed, &[bad], |broken| &broken.flipping)?;
        occupy(&rig, 1 - bad);
        rig.gates[1 - bad].hold(1, is_record_write);
        rig.is_whole("from the good copy")?;
        assert_eq!(rig.gates[1 - bad].held(), 2, "the first one is on its way to its new place");
        rig.gates[1 - bad].release();
        is_whole_on(&rig, bad, seed)
    });
}

/// One block on either member is damaged; reads meet one of the two.
#[test]
fn what_is_damaged_counts_once_however_often_it_is_read() {
    survive(4, |seed| {
        let plan = Plan { members: 2, copies: 2, verify_reads: true, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        for block in 0..BLOCKS / 2 {
            rig.write(2, block, 1)?;
        }
        rig.write(2, BLOCKS / 2, 2)?;
        for member in 0..2 {
            let at = find(&rig, member, BLOCKS / 2 + member as u64);
            let byte = rig.members[member].peek(at + 99, 1)[0];
            rig.members[member].poke(at + 99, &[byte ^ 4]);
        }
        // Its set is open, so it is not copied again yet.
        for _ in 0..20 {
            for block in 0..2 {
                same("a block", rig.read(BLOCKS / 2 + block)?, 2)?;
            }
            rig.pause(10 * MILLISECOND);
        }
        if damaged(&rig) != 1 {
            return Err(format!("{} blocks in an open set", damaged(&rig)));
        }
        for block in BLOCKS / 2 + 2..BLOCKS {
            rig.write(2, block, 1)?;
        }
        rig.flush()?;
        rig.flush()?;
        rig.pause(5 * SECOND);
        // Whoever copies the record again looks at all of it.
        if damaged(&rig) != 2 {
            return Err(format!("{} blocks when it was copied again", damaged(&rig)));
        }
        rig.scrub()?;
        rig.is_whole("at last")?;
        if damaged(&rig) != 2 {
            return Err(format!("{} blocks at last", damaged(&rig)));
        }
        Ok(())
    });
}

fn counter(rig: &Rig, name: &str) -> u64 {
    let counters = rig.pool().counters().list();
    counters.iter().find(|(known, _)| *known == name).map_or(0, |found| found.1)
}

/// What is dropped because no copy of it can be read.
fn damage_dropped(rig: &Rig) -> u64 {
    counter(rig, "damage_dropped_blocks")
}

/// Clean data in a single copy: what of it is damaged comes from the origin and is dropped, the rest stays.
#[test]
fn of_clean_data_in_a_single_copy_only_what_is_damaged_is_dropped() {
    survive(8, |seed| {
        let rig = Rig::new(seed, Plan { verify_reads: true, ..Plan::default() });
        let whole = |wanted: u64| {
            let volume = rig.volume();
            let read = async move { volume.read(0, Buf::new(16 * BLOCK)).await };
            let (buf, result) = rig.run(read)?;
            result.map_err(|error| error.to_string())?;
            (0..16).try_for_each(|block| {
                let at = block as usize * BLOCK;
                let found = version(block, &buf[at..at + BLOCK])?;
                same(&format!("block {block}"), found, wanted).map(drop)
            })
        };
        rig.write(2, 0, 16)?;
        rig.destage()?;
        let cached = rig.pool().blocks().0;
        let bad = [3, 4, 11];
        let mut content = vec![0; BLOCK];
        for block in bad {
            forebay_sim::content::fill(2, 0, block * 8, &mut content);
            let log = rig.members[0].peek(0, MEMBER_BYTES as usize);
            let at = log.chunks(BLOCK).position(|found| found == content).expect("it is there");
            rig.members[0].poke((at * BLOCK) as u64 + 99, &[content[99] ^ 4]);
        }
        whole(2)?;
        rig.pause(SECOND);
        let (found, left) = (rig.pool().scrub().found, rig.pool().blocks().0);
        assert_eq!((found.dropped, found.damaged, found.copied), (3, 3, 0));
        assert_eq!((cached - left, damage_dropped(&rig)), (3, 3));
        whole(2)
    });
}

/// A device that returns nothing for a while, and what is read meanwhile.
#[test]
fn clean_blocks_that_no_device_returns_are_counted_when_they_are_dropped() {
    survive(6, |seed| {
        let rig = Rig::new(seed, Plan { verify_reads: seed % 2 == 0, ..Plan::default() });
        for block in 0..16 {
            rig.write(2, block, 1)?;
        }
        rig.destage()?;
        let broken = &rig.broken[0];
        let how = [&broken.failing, &broken.timing_out, &broken.erring][(seed / 2) as usize];
        how.arm(Trigger::every(Ops::Reads));
        for block in 0..8 {
            same("a block", rig.read(block)?, 2)?;
        }
        let dropped = damage_dropped(&rig);
        if dropped != 8 {
            return Err(format!("{dropped} blocks"));
        }
        Ok(())
    });
}

/// What cannot be read is given up; what lies behind it in the same record is read without it, and the record is not
/// looked at for ever.
#[test]
fn a_sector_that_is_gone_hurts_nothing_but_its_own_block() {
    survive(4, |seed| {
        let rig = Rig::new(seed, Plan { mode: Mode::Readonly, ..Plan::default() });
        let volume = rig.volume();
        rig.run(async move { volume.read(0, Buf::new(8 * BLOCK)).await.1 })?
            .map_err(|error| error.to_string())?;
        for block in 8..96 {
            rig.read(block)?;
        }
        rig.flush()?;
        let at = find_version(&rig, 0, 0, 1);
        rig.broken[0].failing.arm(Trigger::every(Ops::Reads).within(at..at + BLOCK as u64));
        same("from the origin", rig.read(0)?, 1)?;
        for _ in 0..200 {
            same("behind it", rig.read(1)?, 1)?;
            rig.pause(MILLISECOND);
        }
        let failures = counter(&rig, "verify_failures");
        for _ in 0..200 {
            same("behind it", rig.read(1)?, 1)?;
            rig.pause(MILLISECOND);
        }
        match counter(&rig, "verify_failures") - failures {
            0 => Ok(()),
            more => Err(format!("{more} failures of what is good")),
        }
    });
}

//! Members that are missing, come back stale, alone, or as a copy.

use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::{LocalBoxFuture, Request};
use forebay_engine::format::{Layout, MemberState, SUPERBLOCK_BYTES, checksum};
use forebay_engine::witness::without_members;
use forebay_engine::{Mode, Tuning, Witness, open};
use forebay_sim::content::fill;

use crate::rig::{KINDS, MEMBER_BYTES, Plan, Rig, SOON, lazy, newest, same, survive};

const BLOCKS: u64 = 48;

fn two_copies(members: usize) -> Plan {
    Plan { members, copies: 2, ..Plan::default() }
}

fn verify(rig: &Rc<Rig>, when: &str) -> Result<(), String> {
    for block in 0..BLOCKS {
        same(&format!("block {block} {when}"), rig.read(block)?, newest(block))?;
    }
    Ok(())
}

/// What the origin alone has, once everything is destaged.
fn verify_origin(rig: &Rc<Rig>) -> Result<(), String> {
    rig.destage()?;
    (0..BLOCKS).try_for_each(|block| rig.settled(block))
}

fn refused(result: Result<(), String>, expected: &str) -> Result<(), String> {
    match result {
        Err(error) if error.contains(expected) => Ok(()),
        other => Err(format!("expected {expected:?}, not {other:?}")),
    }
}

fn without(members: usize, lost: usize) -> Vec<usize> {
    (0..members).filter(|&i| i != lost).collect()
}

#[test]
fn losing_any_one_member_at_a_crash_loses_nothing() {
    survive(12, |seed| {
        let mut reappended = 0;
        for (members, lost) in [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)] {
            let rig = Rig::new(seed, two_copies(members));
            rig.rewrite(BLOCKS)?;
            rig.offer(&without(members, lost));
            rig.restart(KINDS[(seed % 2) as usize])?;
            assert!(rig.was_told("is missing; the pool goes on without it in epoch 2"));
            assert_eq!(rig.pool().recovery().blocks_lost, 0);
            reappended += rig.pool().recovery().blocks_reappended;
            verify(&rig, &format!("without member {lost} of {members}"))?;
            rig.restart(Crash::PowerCut)?;
            verify(&rig, "after another crash")?;
            verify_origin(&rig)?;
        }
        assert!(reappended > 0, "what was open at the crash has two copies before it is served");
        Ok(())
    });
}

/// What was not flushed may be on one member only after a power cut, with or without the header of
/// its segment.
#[test]
fn what_a_start_found_on_one_member_is_on_all_of_them() {
    survive(24, |seed| {
        for lost in 0..2 {
            let rig = Rig::new(seed, two_copies(2));
            (0..4).try_for_each(|block| rig.write(2, block, 1))?;
            rig.destage()?;
            for block in 2..8 {
                rig.write(3, block, 1)?;
            }
            rig.crash(Crash::PowerCut);
            rig.open()?;
            let found = (0..8).map(|block| rig.read(block)).collect::<Result<Vec<_>, _>>()?;
            rig.offer(&without(2, lost));
            rig.restart(KINDS[(seed % 2) as usize])?;
            for (block, &expected) in (0..8).zip(&found) {
                same(&format!("block {block} without member {lost}"), rig.read(block)?, expected)?;
            }
        }
        Ok(())
    });
}

#[test]
fn losing_two_of_three_members_loses_nothing_with_three_copies() {
    survive(6, |seed| {
        for left in 0..3 {
            let rig = Rig::new(seed, Plan { copies: 3, ..two_copies(3) });
            rig.rewrite(BLOCKS)?;
            rig.offer(&[left]);
            rig.restart(KINDS[(seed % 2) as usize])?;
            verify(&rig, "with one of three")?;
            verify_origin(&rig)?;
        }
        Ok(())
    });
}

#[test]
fn dirty_data_gets_its_copies_back_and_another_member_may_go() {
    survive(6, |seed| {
        for (first, second) in [(0, 1), (1, 2), (2, 0), (2, 1)] {
            let rig = Rig::new(seed, two_copies(3));
            rig.rewrite(BLOCKS)?;
            rig.offer(&without(3, first));
            rig.restart(Crash::PowerCut)?;
            for _ in 0..20 {
                rig.pause(SOON);
                rig.flush()?;
            }
            assert!(rig.was_told("all its copies again"), "the rebuild has ended");
            let last = 3 - first - second;
            rig.offer(&[last]);
            rig.restart(KINDS[(seed % 2) as usize])?;
            verify(&rig, &format!("with member {last} alone"))?;
            verify_origin(&rig)?;
        }
        Ok(())
    });
}

#[test]
fn a_second_member_lost_before_the_copies_are_back_needs_a_decision() {
    survive(3, |seed| {
        let rig = Rig::new(seed, two_copies(3));
        rig.rewrite(BLOCKS)?;
        rig.crash(Crash::PowerCut);
        rig.offer(&[1, 2]);
        let it = Rc::clone(&rig);
        // No longer than the start takes: then the rebuild begins.
        let pool = rig.run(async move { it.open_pool().await })??;
        assert!(!pool.events().iter().any(|event| event.what.contains("all its copies again")));
        drop(pool);
        rig.offer(&[2]);
        refused(rig.restart(Crash::PowerCut), "NeedsDecision")
    });
}

#[test]
fn a_member_that_returns_stale_is_not_used() {
    survive(6, |seed| {
        let rig = Rig::new(seed, two_copies(2));
        rig.rewrite(BLOCKS)?;
        rig.offer(&[0]);
        rig.restart(Crash::PowerCut)?;
        rig.write(7, 5, 1)?;
        rig.flush()?;
        rig.offer(&[1, 0]);
        rig.restart(Crash::PowerCut)?;
        assert!(rig.was_told("it is not used; it must be added anew"));
        same("block 5", rig.read(5)?, 7)?;
        let stale = rig.members[1].peek(0, 1 << 20);
        rig.write(8, 5, 1)?;
        rig.flush()?;
        assert!(stale == rig.members[1].peek(0, 1 << 20), "nothing is written to it");
        verify_origin(&rig)
    });
}

#[test]
fn a_stale_member_alone_needs_a_decision_with_and_without_a_witness() {
    survive(3, |seed| {
        let rig = Rig::new(seed, two_copies(2));
        rig.rewrite(BLOCKS)?;
        let old = rig.recall();
        rig.offer(&[0]);
        rig.restart(Crash::PowerCut)?;
        rig.write(7, 5, 1)?;
        rig.flush()?;
        let new = rig.recall();
        rig.offer(&[1]);
        refused(rig.restart(Crash::PowerCut), "went on in epoch 2 without these")?;
        rig.remember(None);
        refused(rig.open(), "neither the witness nor more than half")?;
        // What the old witness vouches for is the epoch that it names, and no other.
        rig.offer(&[0]);
        rig.remember(old);
        rig.open()?;
        same("block 5", rig.read(5)?, 7)?;
        rig.crash(Crash::PowerCut);
        assert!(rig.recall() != new, "the witness is brought up to date at each start");
        rig.offer(&[1]);
        refused(rig.open(), "NeedsDecision")
    });
}

#[test]
fn a_slot_that_cannot_be_read_may_tell_of_a_newer_epoch() {
    survive(3, |seed| {
        let rig = Rig::new(seed, two_copies(2));
        rig.rewrite(BLOCKS)?;
        rig.offer(&[0]);
        let (at, other) = (Layout::superblock_offset(0), Layout::superblock_offset(1));
        let older = rig.members[0].peek(other, SUPERBLOCK_BYTES);
        rig.restart(Crash::PowerCut)?;
        rig.write(7, 5, 1)?;
        rig.flush()?;
        rig.crash(Crash::PowerCut);
        // As if the writes to the other slot had been lost: only one says so.
        rig.members[0].poke(other, &older);
        let slot = at..at + SUPERBLOCK_BYTES as u64;
        rig.broken[0].failing.arm(Trigger::every(Ops::Reads).within(slot));
        rig.offer(&[0, 1]);
        let witness = rig.recall();
        refused(rig.open(), "went on in epoch 2 without these")?;
        rig.remember(None);
        refused(rig.open(), "neither the witness nor more than half")?;
        rig.offer(&[0]);
        refused(rig.open(), "may be the newer one")?;
        rig.broken[0].mend();
        rig.offer(&[1, 0]);
        rig.remember(witness);
        rig.open()?;
        same("block 5", rig.read(5)?, 7)?;
        verify_origin(&rig)
    });
}

#[test]
fn half_of_the_members_without_a_witness_need_a_decision_and_more_do_not() {
    survive(3, |seed| {
        let rig = Rig::new(seed, two_copies(2));
        rig.rewrite(BLOCKS)?;
        rig.crash(Crash::PowerCut);
        rig.remember(None);
        rig.offer(&[0]);
        refused(rig.open(), "neither the witness")?;
        rig.offer(&[0, 1]);
        rig.open()?;
        verify(&rig, "with all members")?;
        let rig = Rig::new(seed, two_copies(3));
        rig.rewrite(BLOCKS)?;
        rig.crash(Crash::PowerCut);
        rig.remember(None);
        rig.offer(&[0, 2]);
        rig.open()?;
        verify(&rig, "with two of three")
    });
}

#[test]
fn groups_that_went_on_without_each_other_are_told_apart() {
    survive(3, |seed| {
        let rig = Rig::new(seed, two_copies(2));
        rig.rewrite(BLOCKS)?;
        let old = rig.recall();
        rig.offer(&[0]);
        rig.restart(Crash::PowerCut)?;
        rig.crash(Crash::PowerCut);
        let of_first = rig.recall();
        rig.remember(old);
        rig.offer(&[1]);
        rig.open()?;
        rig.crash(Crash::PowerCut);
        rig.remember(None);
        rig.offer(&[0, 1]);
        refused(rig.open(), "gone on in two ways")?;
        rig.accepts.set(true);
        refused(rig.open(), "gone on in two ways")?;
        rig.accepts.set(false);
        rig.remember(of_first);
        rig.open()?;
        assert!(rig.was_told("it is not used; it must be added anew"));
        verify(&rig, "with the group that the witness names")
    });
}

/// The one that was left behind was opened elsewhere, as accepted, and calls itself the newest now.
#[test]
fn one_that_was_left_behind_and_went_on_elsewhere_is_not_believed() {
    survive(3, |seed| {
        let rig = Rig::new(seed, two_copies(3));
        rig.rewrite(BLOCKS)?;
        rig.offer(&[1, 2]);
        rig.restart(Crash::PowerCut)?;
        (0..BLOCKS).try_for_each(|block| rig.write(7, block, 1))?;
        rig.flush()?;
        rig.crash(Crash::PowerCut);
        let at_home = rig.recall();
        // Another machine has no witness.
        rig.remember(None);
        rig.offer(&[0]);
        rig.accepts.set(true);
        rig.open()?;
        let elsewhere = rig.recall();
        rig.crash(Crash::PowerCut);
        rig.accepts.set(false);
        for witness in [at_home.clone(), None] {
            rig.remember(witness);
            rig.offer(&[0, 1, 2]);
            refused(rig.open(), "gone on in two ways")?;
        }
        // Where it was accepted nothing else was meant.
        match seed % 2 {
            0 => {
                rig.remember(elsewhere);
                rig.open()?;
                assert!(rig.was_told("it is not used; it must be added anew"));
            }
            _ => {
                rig.remember(at_home);
                rig.offer(&[1, 2]);
                rig.open()?;
                (0..BLOCKS).try_for_each(|block| same("at home", rig.read(block)?, 7).map(drop))?;
            }
        }
        Ok(())
    });
}

/// What was accepted is accepted again where the witness has not heard of it.
#[test]
fn an_accepted_start_that_is_cut_off_before_its_witness_can_be_accepted_again() {
    survive(4, |seed| {
        let rig = Rig::new(seed, two_copies(3));
        rig.rewrite(BLOCKS)?;
        rig.offer(&[1, 2]);
        rig.restart(Crash::PowerCut)?;
        rig.crash(Crash::PowerCut);
        rig.offer(&[0]);
        rig.accepts.set(true);
        rig.witness_refuses.set(true);
        refused(rig.open(), "witness")?;
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.witness_refuses.set(false);
        rig.accepts.set(false);
        refused(rig.open(), "as the witness knows")?;
        rig.accepts.set(true);
        rig.open()?;
        rig.accepts.set(false);
        rig.restart(Crash::PowerCut)
    });
}

#[test]
fn a_copy_of_a_member_is_refused() {
    survive(1, |seed| {
        let rig = Rig::new(seed, two_copies(2));
        rig.rewrite(BLOCKS)?;
        rig.offer(&[0, 1, 1]);
        refused(rig.restart(Crash::PowerCut), "two cache devices claim to be")
    });
}

/// Clean data on two members, one copy of each block.
fn clean(seed: u64, mode: Mode) -> Result<Rc<Rig>, String> {
    let rig = Rig::new(seed, Plan { members: 2, mode, ..Plan::default() });
    for _ in 0..2 {
        for block in 0..BLOCKS {
            rig.read(block)?;
        }
        rig.pause(SOON);
    }
    for block in (0..BLOCKS).step_by(2) {
        rig.write(3, block, 1)?;
    }
    rig.flush()?;
    Ok(rig)
}

#[test]
fn a_clean_pool_opens_without_a_member_and_costs_misses_only() {
    survive(8, |seed| {
        for mode in [Mode::Readonly, Mode::Writethrough] {
            for lost in 0..2 {
                for crash in [None, Some(KINDS[(seed % 2) as usize])] {
                    let rig = clean(seed, mode)?;
                    match crash {
                        None => drop(rig.try_stop()?),
                        Some(crash) => rig.crash(crash),
                    }
                    rig.offer(&[1 - lost]);
                    rig.open()?;
                    for block in 0..BLOCKS {
                        let expected = if block % 2 == 0 { 3 } else { 1 };
                        same(&format!("block {block}, {mode:?}"), rig.read(block)?, expected)?;
                    }
                    rig.write(4, 1, 1)?;
                    rig.flush()?;
                    rig.restart(Crash::PowerCut)?;
                    same("block 1", rig.read(1)?, 4)?;
                }
            }
        }
        Ok(())
    });
}

#[test]
fn after_a_clean_stop_what_the_other_members_hold_is_still_warm() {
    survive(3, |seed| {
        let warm = |lost: usize| {
            let rig = clean(seed, Mode::Readonly)?;
            rig.try_stop()?;
            rig.offer(&[1 - lost]);
            rig.open()?;
            Ok::<u64, String>(rig.pool().recovery().blocks)
        };
        let found = warm(0)? + warm(1)?;
        assert!((1..=BLOCKS).contains(&found), "{found} blocks");
        Ok(())
    });
}

/// v2 was written with one copy, then v3, now and then onto the other member, and destaged. A crash
/// of a stop, after it has noted that nothing is dirty and before its last root, leaves records of
/// v2 that nothing contradicts once the other member is gone.
#[test]
fn what_a_lost_record_had_overtaken_does_not_come_back() {
    survive(2, |seed| {
        let (mut opened, mut crashed) = (0, true);
        for after in 1..400 {
            if !crashed {
                break;
            }
            let lost = (after % 2) as usize;
            let rig = Rig::new(seed, Plan { members: 2, ..Plan::default() });
            for version in 2..4 {
                for block in 0..BLOCKS {
                    rig.write(version, block, 1)?;
                }
                // So that the second version comes onto the other member now and then.
                for _ in 0..after % 16 {
                    rig.write(2, BLOCKS + 1, 1)?;
                }
            }
            rig.destage()?;
            rig.world.crash_at(Some(rig.world.io_count() + after));
            crashed = rig.try_stop().is_err();
            rig.world.crash_at(None);
            rig.crash(KINDS[(after / 2 % 2) as usize]);
            rig.offer(&[1 - lost]);
            if let Err(error) = rig.open() {
                refused(Err(error), "may hold the only copy")?;
                continue;
            }
            opened += 1;
            // What is read is populated, and would hide what comes back later.
            if after % 8 < 4 {
                (0..BLOCKS).try_for_each(|block| {
                    same(&format!("block {block} without {lost}"), rig.read(block)?, 3).map(drop)
                })?;
            }
            rig.write(5, BLOCKS, 1)?;
            rig.flush()?;
            rig.restart(Crash::PowerCut)?;
            (0..BLOCKS).try_for_each(|block| same("later", rig.read(block)?, 3).map(drop))?;
            verify_origin(&rig)?;
        }
        assert!(opened > 3, "{opened} starts");
        Ok(())
    });
}

#[test]
fn a_write_through_that_only_the_lost_member_logged_hides_what_is_older() {
    survive(30, |seed| {
        for lost in 0..3 {
            let plan = Plan { mode: Mode::Writethrough, ..two_copies(3) };
            let rig = Rig::new(seed, plan);
            for version in 1..4 {
                for block in 0..BLOCKS {
                    if version == 1 {
                        rig.read(block)?;
                    } else {
                        rig.write(version, block, 1)?;
                    }
                }
                rig.pause(SOON);
                rig.flush()?;
            }
            rig.offer(&without(3, lost));
            rig.restart(KINDS[(seed % 2) as usize])?;
            for block in 0..BLOCKS {
                same(&format!("block {block} without {lost}"), rig.read(block)?, 3)?;
            }
        }
        Ok(())
    });
}

#[test]
fn accepting_the_loss_opens_and_names_what_is_lost() {
    survive(6, |seed| {
        for lost in 0..2 {
            let rig = Rig::new(seed, Plan { members: 2, ..Plan::default() });
            rig.rewrite(BLOCKS)?;
            rig.try_stop()?;
            rig.offer(&[1 - lost]);
            refused(rig.open(), "may hold the only copy of writes to volume \"v\"")?;
            rig.accepts.set(true);
            rig.open()?;
            assert!(rig.was_told("writes to \"v\" that only they held are lost"));
            let gone = rig.pool().recovery().blocks_lost;
            let failing =
                |rig: &Rc<Rig>| (0..BLOCKS).filter(|&block| rig.read(block).is_err()).count();
            assert_eq!(failing(&rig) as u64, gone, "what is lost is an error, not older data");
            assert_eq!(gone > 0, rig.was_told("went with cache devices that are gone"));
            for block in 0..BLOCKS {
                if let Ok(version) = rig.read(block) {
                    same(&format!("block {block}"), version, newest(block))?;
                }
            }
            rig.accepts.set(false);
            rig.restart(Crash::PowerCut)?;
            assert_eq!(failing(&rig) as u64, gone, "that survives a restart");
            rig.destage()?;
            rig.stop()?;
            let without = rig.recall().and_then(|bytes| without_members(&bytes).ok());
            let withheld = without.map_or(0, |without| without.withheld.len());
            assert_eq!(withheld > 0, gone > 0, "the origin has older data of what is lost");
            // Clean data is dropped then; what is lost is not what the origin has.
            let last = rig
                .origin
                .peek((1 << 20) - 4096, 4096)
                .iter()
                .map(|byte| !byte)
                .collect::<Vec<_>>();
            rig.origin.poke((1 << 20) - 4096, &last);
            rig.open()?;
            assert!(rig.was_told("its cached data is dropped"));
            assert_eq!(failing(&rig) as u64, gone, "that survives a stop");
            (0..BLOCKS).try_for_each(|block| rig.write(9, block, 1))?;
            (0..BLOCKS).try_for_each(|block| same("anew", rig.read(block)?, 9).map(drop))?;
            verify_origin(&rig)?;
        }
        Ok(())
    });
}

#[test]
fn a_crash_at_any_io_of_a_start_without_a_member_loses_nothing() {
    survive(3, |seed| {
        for after in 1..400 {
            let rig = Rig::new(seed ^ after << 8, two_copies(3));
            rig.rewrite(BLOCKS)?;
            rig.crash(Crash::PowerCut);
            rig.offer(&without(3, (seed % 3) as usize));
            rig.world.crash_at(Some(rig.world.io_count() + after));
            let opened = rig.open();
            rig.world.crash_at(None);
            rig.restart(KINDS[(after % 2) as usize])?;
            verify(&rig, &format!("after a crash at I/O {after} of the start"))?;
            if opened.is_ok() {
                return verify_origin(&rig);
            }
        }
        Err("the start never ended".into())
    });
}

#[test]
fn with_too_few_members_left_a_volume_that_did_not_agree_is_written_through() {
    survive(3, |seed| {
        let rig = Rig::new(seed, Plan { agreed: false, ..two_copies(2) });
        rig.rewrite(BLOCKS)?;
        rig.offer(&[1]);
        rig.restart(Crash::PowerCut)?;
        assert!(rig.was_told("is written through until there are members enough"));
        verify(&rig, "with one of two")?;
        rig.destage()?;
        rig.write(7, 5, 1)?;
        assert_eq!(rig.volume().owed_blocks(), 0, "it is on the origin already");
        rig.flush()?;
        rig.restart(Crash::PowerCut)?;
        same("block 5", rig.read(5)?, 7)?;
        verify_origin(&rig)
    });
}

#[test]
fn a_long_life_without_a_member_reuses_its_segments() {
    survive(3, |seed| {
        let tuning =
            Tuning { lap_percent: 20, flush_bytes: 256 << 10, destage_when_idle: true, ..lazy() };
        let rig = Rig::new(seed, Plan { tuning, ..two_copies(3) });
        rig.rewrite(BLOCKS)?;
        rig.offer(&without(3, (seed % 3) as usize));
        rig.restart(Crash::PowerCut)?;
        for version in 10..400 {
            rig.write(version, 4 * (version % 8), 4)?;
        }
        rig.flush()?;
        for crash in KINDS {
            rig.restart(crash)?;
            for version in 392..400 {
                same(&format!("version {version}"), rig.read(4 * (version % 8))?, version)?;
            }
        }
        verify_origin(&rig)
    });
}

#[test]
fn a_superblock_that_names_no_member_is_refused() {
    survive(1, |seed| {
        let rig = Rig::new(seed, Plan::default());
        let mut superblock = rig.pool().superblock();
        rig.crash(Crash::ProcessKill);
        superblock.members[0].state = MemberState::Failed;
        rig.remember(None);
        for slot in 0..2 {
            rig.members[0].poke(slot * SUPERBLOCK_BYTES as u64, &superblock.encode());
        }
        refused(rig.open(), "names no member that is there")
    });
}

/// Refuses to be written.
struct Unwritable;

impl Witness for Unwritable {
    fn load(&self) -> LocalBoxFuture<'_, Result<Option<Vec<u8>>, String>> {
        Box::pin(async { Ok(None) })
    }

    fn store(&self, _: Vec<u8>) -> LocalBoxFuture<'_, Result<(), String>> {
        Box::pin(async { Err("read-only".to_owned()) })
    }
}

#[test]
fn after_a_loss_the_pool_opens_only_if_the_witness_learns_of_it() {
    survive(1, |seed| {
        let rig = Rig::new(seed, two_copies(3));
        rig.rewrite(BLOCKS)?;
        rig.crash(Crash::PowerCut);
        rig.offer(&[0, 1]);
        let (runtime, devices) = (Rc::clone(&rig.world) as _, rig.devices());
        let opened = rig.run(async move {
            let pool = open(runtime, devices, Rc::new(Unwritable), lazy()).await;
            pool.map(drop).map_err(|error| error.to_string())
        })?;
        refused(opened, "the witness cannot be written")?;
        rig.restart(Crash::PowerCut)?;
        verify(&rig, "once it can be written")
    });
}

#[test]
fn what_was_served_without_any_member_is_newer_than_what_they_hold() {
    survive(3, |seed| {
        let rig = clean(seed, Mode::Readonly)?;
        rig.try_stop()?;
        let without = rig.recall().and_then(|bytes| without_members(&bytes).ok());
        let without = without.ok_or("the witness is there")?;
        assert_eq!((without.served.len(), without.withheld.len()), (1, 0));
        rig.remember(Some(without.witness));
        let mut image = vec![0; BLOCKS as usize * 4096];
        fill(9, 0, 0, &mut image);
        rig.origin.poke(0, &image);
        refused(rig.open(), &format!("went on in epoch {} without these", without.epoch))?;
        rig.accepts.set(true);
        rig.open()?;
        rig.accepts.set(false);
        for crash in KINDS {
            (0..BLOCKS).try_for_each(|block| same("anew", rig.read(block)?, 9).map(drop))?;
            rig.restart(crash)?;
        }
        Ok(())
    });
}

/// The clean fact of a block and its move to a set with one copy were volatile when the power went;
/// where only the move came through, the block is dirty again, and in the wrong place.
#[test]
fn what_was_moved_as_clean_and_is_dirty_after_all_has_all_its_copies() {
    survive(24, |seed| {
        let mut moved = 0;
        for lost in 0..2 {
            let plan = Plan {
                write_amplification_max_percent: 400,
                origin_bytes: 4 << 20,
                ..two_copies(2)
            };
            let rig = Rig::new(seed, plan);
            rig.origin_gate.hold(1, |request| matches!(request, Request::Flush));
            for at in (0..26).map(|number| 12 * number) {
                rig.write(2, at, 12)?;
                // What is read again a while later is hot.
                rig.read(at - at.min(60))?;
            }
            rig.flush()?;
            rig.pause(SOON);
            rig.origin_gate.release();
            // Until something moves, and is in the log but not flushed.
            let is_moving = || rig.pool().counters().move_blocks.get() > 0;
            (0..50).take_while(|_| !is_moving()).for_each(|_| rig.pause(SOON / 100));
            rig.pause(SOON / 100);
            moved += rig.pool().counters().move_blocks.get();
            rig.restart(Crash::PowerCut)?;
            rig.offer(&[1 - lost]);
            rig.restart(Crash::ProcessKill)?;
            let lost = rig.pool().recovery().blocks_lost;
            if lost > 0 {
                return Err(format!("{lost} blocks are lost"));
            }
        }
        assert!(moved > 0, "{moved} blocks were moved");
        Ok(())
    });
}

/// Nobody may go on with a pool that could not be opened: somebody else may open it.
#[test]
fn a_start_that_failed_does_nothing_more() {
    survive(2, |seed| {
        let tuning = Tuning { flush_interval: SOON, ..lazy() };
        for reads in 0.. {
            let rig = Rig::new(seed, Plan { tuning: tuning.clone(), ..two_copies(3) });
            rig.rewrite(BLOCKS)?;
            let segments = rig.pool().superblock().segments_offset..MEMBER_BYTES;
            rig.crash(Crash::PowerCut);
            rig.offer(&[0, 1]);
            for broken in &rig.broken {
                broken
                    .failing
                    .arm(Trigger::every(Ops::Reads).within(segments.clone()).after(reads));
            }
            let opened = rig.open();
            rig.broken.iter().for_each(|broken| broken.mend());
            if opened.is_ok() {
                return verify(&rig, "as if nothing had failed");
            }
            let before = rig.world.io_count();
            rig.pause(10 * SOON);
            if rig.world.io_count() > before {
                return Err(format!("I/O after {reads} reads and {opened:?}"));
            }
            rig.open()?;
            verify(&rig, "after a start that failed")?;
        }
        Ok(())
    });
}

/// To say that the loss of members is accepted agrees to what is lost with them, and to nothing else.
#[test]
fn accepting_a_loss_agrees_to_no_single_copy() {
    survive(2, |seed| {
        let rig = Rig::new(seed, Plan { agreed: false, ..two_copies(2) });
        rig.rewrite(BLOCKS)?;
        rig.offer(&[1]);
        rig.accepts.set(true);
        rig.restart(Crash::PowerCut)?;
        assert!(rig.was_told("is written through until there are members enough"));
        rig.destage()?;
        rig.write(7, 5, 1)?;
        assert_eq!(rig.volume().owed_blocks(), 0, "it is on the origin already");
        verify_origin(&rig)
    });
}

/// What it says may be that others went on, in a way that this version does not understand.
#[test]
fn a_witness_of_a_later_format_is_neither_passed_over_nor_replaced() {
    survive(1, |seed| {
        let rig = Rig::new(seed, two_copies(2));
        rig.rewrite(BLOCKS)?;
        rig.crash(Crash::PowerCut);
        let mut later = rig.recall().ok_or("the witness is there")?;
        later[8] += 1;
        later[16..20].fill(0);
        let sum = checksum(&later);
        later[16..20].copy_from_slice(&sum.to_le_bytes());
        rig.remember(Some(later.clone()));
        refused(rig.open(), "Future")?;
        assert_eq!(rig.recall(), Some(later));
        Ok(())
    });
}

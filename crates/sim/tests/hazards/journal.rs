//! What was told of a pool is known afterwards, and costs nothing else.

use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_engine::format::{EventPage, EventRecord};

use crate::rig::{KINDS, Plan, Rig, SOON, same, survive};

fn event(number: u64) -> EventRecord {
    EventRecord {
        unix_s: number,
        severity: 2,
        code: "member-failed".into(),
        subject: "/dev/sdb".into(),
        what: format!("{number}: {}", "nobody knows why ".repeat(number as usize % 9)),
    }
}

fn tell(rig: &Rig, number: u64) {
    rig.pool().tell(event(number));
    rig.pause(SOON);
}

/// What is known at an opening: the numbers of the events, which are as they were told.
fn known(rig: &Rig) -> Result<Vec<u64>, String> {
    let pool = rig.pool();
    let found = rig.run(async move { pool.begin_journal().await })?;
    for found in &found {
        if *found != event(found.unix_s).cut() {
            return Err(format!("never told: {found:?}"));
        }
    }
    Ok(found.iter().map(|event| event.unix_s).collect())
}

fn two(seed: u64) -> Result<Rc<Rig>, String> {
    let rig = Rig::new(seed, Plan { members: 2, copies: 2, ..Plan::default() });
    same("nothing was told", known(&rig)?.len() as u64, 0)?;
    Ok(rig)
}

#[test]
fn what_was_told_is_known_after_any_start() {
    survive(3, |seed| {
        let rig = two(seed)?;
        (0..3).for_each(|number| tell(&rig, number));
        rig.stop()?;
        rig.open()?;
        assert_eq!(known(&rig)?, [0, 1, 2]);
        tell(&rig, 3);
        rig.write(2, 3, 1)?;
        // A flush of the members that others need makes it durable.
        rig.flush()?;
        for (number, crash) in (4..).zip(KINDS) {
            rig.restart(crash)?;
            assert_eq!(known(&rig)?, (0..number).collect::<Vec<_>>(), "{crash:?}");
            tell(&rig, number);
            rig.flush()?;
        }
        Ok(())
    });
}

#[test]
fn the_oldest_make_room_and_nothing_else_does() {
    survive(2, |seed| {
        let rig = two(seed)?;
        rig.write(2, 3, 5)?;
        for number in 0..600 {
            rig.pool().tell(event(number));
            if number % 7 == 0 {
                rig.pause(SOON / 10);
            }
        }
        rig.pause(SOON);
        rig.flush()?;
        for crash in KINDS {
            rig.restart(crash)?;
            let known = known(&rig)?;
            let first = 600 - known.len() as u64;
            assert_eq!(known, (first..600).collect::<Vec<_>>());
            assert!((100..600).contains(&known.len()), "{}", known.len());
            for block in 3..8 {
                same("a block", rig.read(block)?, 2)?;
            }
        }
        Ok(())
    });
}

#[test]
fn telling_may_be_cut_off_anywhere() {
    survive(2, |seed| {
        for request in 1.. {
            let rig = two(seed)?;
            (0..40).for_each(|number| rig.pool().tell(event(number)));
            rig.pause(SOON);
            rig.write(2, 3, 1)?;
            rig.flush()?;
            rig.world.crash_at(Some(rig.world.io_count() + request));
            let mut told = 40;
            while told < 70 && rig.world.run_for(SOON / 20).is_ok() {
                rig.pool().tell(event(told));
                told += 1;
            }
            rig.restart(Crash::PowerCut)?;
            let known = known(&rig)?;
            assert!(known.is_sorted() && known.windows(2).all(|two| two[0] < two[1]), "{known:?}");
            let first = 40 - known.iter().filter(|&&number| number < 40).count() as u64;
            assert!(first < 30 && known.starts_with(&(first..40).collect::<Vec<_>>()), "{known:?}");
            if told == 70 {
                break;
            }
        }
        Ok(())
    });
}

/// Puts the same bytes into all places of the ring of a member.
fn overwrite(rig: &Rig, member: usize, bytes: &[u8]) {
    let superblock = rig.pool().superblock();
    EventPage::places(&superblock).for_each(|at| rig.members[member].poke(at, bytes));
}

#[test]
fn a_member_that_lacks_it_gets_it_from_another() {
    survive(2, |seed| {
        let rig = two(seed)?;
        (0..50).for_each(|number| tell(&rig, number));
        overwrite(&rig, 1, &[0xa5; 4096]);
        rig.restart(Crash::ProcessKill)?;
        let before = known(&rig)?;
        assert!(before.len() > 30 && before.last() == Some(&49), "{before:?}");
        rig.pause(SOON);
        overwrite(&rig, 0, &[0; 4096]);
        rig.restart(Crash::ProcessKill)?;
        assert_eq!(known(&rig)?, before, "from the other one");
        Ok(())
    });
}

#[test]
fn a_device_that_joins_gets_all_of_it() {
    survive(2, |seed| {
        let rig = Rig::new(seed, Plan { spares: 1, ..Plan::default() });
        known(&rig)?;
        (0..50).for_each(|number| tell(&rig, number));
        let (pool, device) = (rig.pool(), Rc::clone(&rig.gates[1]));
        rig.run(async move { pool.add_member(device as _).await.unwrap() })?;
        tell(&rig, 50);
        overwrite(&rig, 0, &[0; 4096]);
        rig.offer(&[0, 1]);
        rig.restart(Crash::ProcessKill)?;
        let known = known(&rig)?;
        assert!(known.len() > 30 && known.last() == Some(&50), "{known:?}");
        Ok(())
    });
}

#[test]
fn what_nobody_wrote_is_not_believed_and_does_no_harm() {
    survive(2, |seed| {
        let rig = two(seed)?;
        tell(&rig, 0);
        let pool = rig.pool().superblock().pool;
        let last = forebay_engine::limits::COUNTER_MAX;
        let page = EventPage { pool, number: last, written: last, events: vec![event(9)] };
        overwrite(&rig, 1, &page.encode());
        rig.restart(Crash::ProcessKill)?;
        assert_eq!(known(&rig)?, [0]);
        let mut other = EventPage { number: 1, written: 7, ..page };
        other.pool.0[0] ^= 1;
        overwrite(&rig, 1, &other.encode());
        rig.restart(Crash::ProcessKill)?;
        assert_eq!(known(&rig)?, [0], "of another pool");
        tell(&rig, 1);
        rig.restart(Crash::ProcessKill)?;
        assert_eq!(known(&rig)?, [0, 1]);
        Ok(())
    });
}

#[test]
fn a_member_that_does_not_take_it_goes_on_serving() {
    survive(2, |seed| {
        let rig = two(seed)?;
        let places: Vec<u64> = EventPage::places(&rig.pool().superblock()).collect();
        let within = places[0]..places.last().unwrap() + 4096;
        rig.broken[1].failing.arm(Trigger::every(Ops::Writes).within(within));
        (0..5).for_each(|number| tell(&rig, number));
        rig.write(2, 3, 1)?;
        rig.flush()?;
        let failed =
            |event: &forebay_engine::Event| event.kind == forebay_engine::EventKind::MemberFailed;
        assert!(!rig.pool().events().iter().any(failed));
        rig.restart(Crash::PowerCut)?;
        assert_eq!(known(&rig)?, [0, 1, 2, 3, 4]);
        Ok(())
    });
}

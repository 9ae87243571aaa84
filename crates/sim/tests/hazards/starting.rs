//! A member that fails while a pool starts: the pool opens without it where it could open if that were missing, and waits for it
//! where it could not.

use std::rc::Rc;

use forebay_device::Runtime;
use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_engine::EventKind;
use forebay_engine::planted::Bug;

use crate::damaged::places_of;
use crate::rig::{KINDS, Plan, Rig, SEGMENT_BYTES, provoke, same, survive};

const SEEDS: u64 = 4;

/// Before these nothing says which member it is that does not answer.
const SUPERBLOCK_READS: u64 = 2;

/// How a member may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failing {
    /// This write and all behind it: as an SSD that has become read-only.
    Writes,
    /// This flush alone, which may lose what it should have covered.
    Flush,
    /// From this request on it answers nothing.
    Hangs,
}

impl Failing {
    fn begin(self, rig: &Rig, member: usize, after: u64) {
        let broken = &rig.broken[member];
        match self {
            Self::Writes => broken.failing.arm(Trigger::every(Ops::Writes).after(after)),
            Self::Flush => broken.failing.arm(Trigger::every(Ops::Flushes).after(after).times(1)),
            Self::Hangs => broken.hanging.arm(Trigger::every(Ops::All).after(after)),
        }
    }

    fn has_begun(self, rig: &Rig, member: usize) -> bool {
        let broken = &rig.broken[member];
        broken.failing.hits() + broken.hanging.hits() > 0
    }
}

fn is_told(rig: &Rig) -> bool {
    let told = |event: &forebay_engine::Event| event.kind == EventKind::MemberFailed;
    rig.was_told("the pool starts without it") && rig.pool().events().iter().any(told)
}

fn plan(members: usize, copies: u8) -> Plan {
    let device_deadline_ms = (SECOND / MILLISECOND) as u32;
    Plan { members, copies, device_deadline_ms, ..Plan::default() }
}

/// Blocks 3 to 22 in old sets and in images, 40 and 41 in an open one.
fn fill(rig: &Rc<Rig>) -> Result<(), String> {
    rig.write(2, 3, 20)?;
    rig.destage()?;
    rig.write(3, 7, 4)?;
    rig.flush()?;
    rig.write(3, 40, 2)?;
    rig.flush()
}

fn is_filled(rig: &Rc<Rig>, when: &str) -> Result<(), String> {
    for (block, version) in [(3, 2), (6, 2), (7, 3), (10, 3), (22, 2), (40, 3), (41, 3), (50, 1)] {
        same(&format!("block {block} {when}"), rig.read(block)?, version)?;
    }
    Ok(())
}

/// A pool that has ended in one way or another, by a number, and the member whose turn it is.
fn ended(seed: u64, turn: u64) -> Result<(Rc<Rig>, usize), String> {
    let rig = Rig::new(seed, plan(2, 2));
    fill(&rig)?;
    match turn % 3 {
        0 => drop(rig.stop()?),
        kind => rig.crash(KINDS[kind as usize - 1]),
    }
    Ok((rig, (turn / 3 % 2) as usize))
}

/// Each write and each flush of a start in turn is the first that one of two members fails.
fn left_out(seed: u64, failing: Failing) -> Result<(), String> {
    for after in 0.. {
        let (rig, member) = ended(seed, seed + after)?;
        failing.begin(&rig, member, after);
        let at = format!("member {member}, {failing:?} after {after}");
        let opened = rig.open();
        if failing == Failing::Hangs && after < SUPERBLOCK_READS {
            let error = opened.unwrap_err();
            assert!(error.contains("does not answer"), "{at}: {error}");
            continue;
        }
        opened.map_err(|error| format!("{at}: {error}"))?;
        if failing.has_begun(&rig, member) && !is_told(&rig) {
            // The pool was open by then: a failure in use.
            assert!(rig.was_told("the pool goes on without it"), "{at}: {:?}", rig.pool().events());
        }
        is_filled(&rig, &at)?;
        rig.write(4, 41, 1)?;
        rig.flush()?;
        let hit = failing.has_begun(&rig, member);
        assert_eq!(rig.pool().superblock().present().count(), if hit { 1 } else { 2 }, "{at}");
        rig.crash(Crash::PowerCut);
        // It comes back with whatever it had.
        rig.broken[member].mend();
        rig.open()?;
        assert_eq!(rig.was_told("must be added anew"), hit, "{at}");
        rig.write(3, 41, 1)?;
        rig.flush()?;
        is_filled(&rig, &at)?;
        rig.crash(Crash::PowerCut);
        rig.offer(&[1 - member]);
        rig.open()?;
        is_filled(&rig, &at)?;
        rig.settled(41)?;
        if !hit {
            return Ok(());
        }
    }
    unreachable!()
}

#[test]
fn a_member_that_has_become_read_only_is_left_out_of_a_start() {
    survive(SEEDS, |seed| left_out(seed, Failing::Writes));
}

#[test]
fn a_member_that_fails_a_flush_of_a_start_is_left_out_of_it() {
    survive(SEEDS, |seed| left_out(seed, Failing::Flush));
}

#[test]
fn a_member_that_hangs_during_a_start_is_left_out_of_it() {
    survive(SEEDS, |seed| left_out(seed, Failing::Hangs));
}

/// From one read of a start on a member returns nothing: another one has it, or the start is without that one.
#[test]
fn a_member_that_returns_nothing_is_left_out_of_a_start() {
    survive(SEEDS, |seed| {
        let mut without = 0;
        for after in SUPERBLOCK_READS.. {
            let (rig, member) = ended(seed, seed + after)?;
            let (erring, failing) = (&rig.broken[member].erring, &rig.broken[member].failing);
            let broken = if after / 6 % 2 == 0 { erring } else { failing };
            broken.arm(Trigger::every(Ops::Reads).after(after));
            let at = format!("member {member} after {after}");
            rig.open().map_err(|error| format!("{at}: {error}"))?;
            is_filled(&rig, &at)?;
            if broken.hits() == 0 {
                assert!(without > 0);
                return Ok(());
            }
            let is_left_out = rig.pool().superblock().present().count() == 1;
            without += u32::from(is_left_out);
            assert_eq!(is_told(&rig), is_left_out, "{at}: {:?}", rig.pool().events());
            rig.broken[member].mend();
            rig.write(4, 41, 1)?;
            rig.flush()?;
            rig.restart(Crash::PowerCut)?;
            assert_eq!(rig.was_told("must be added anew"), is_left_out, "{at}");
            rig.write(3, 41, 1)?;
            rig.flush()?;
            is_filled(&rig, &at)?;
            rig.settled(41)?;
        }
        unreachable!()
    });
}

/// A path or a controller that comes back within seconds costs a start nothing but these, whatever it calls that.
#[test]
fn a_start_waits_for_a_member_that_returns_nothing_for_a_moment() {
    survive(16, |seed| {
        let rig = Rig::new(seed, plan(2, 2));
        fill(&rig)?;
        rig.crash(KINDS[(seed % 2) as usize]);
        let broken = &rig.broken[(seed / 2 % 2) as usize];
        let all = Trigger::every(Ops::Reads).after(SUPERBLOCK_READS);
        let is_long = (seed / 8) == 1;
        match seed / 4 % 2 {
            0 => broken.erring.arm(all),
            _ => broken.failing.arm(all),
        }
        let began = rig.world.now();
        let mending = Rc::clone(&rig);
        rig.world.spawn(Box::pin(async move {
            let span = if is_long { 20 * SECOND } else { 2 * SECOND };
            let runtime: Rc<dyn Runtime> = Rc::clone(&mending.world) as _;
            runtime.sleep(span).await.result.ok();
            mending.broken.iter().for_each(|broken| broken.mend());
        }));
        rig.open()?;
        assert!(rig.world.now() - began >= 2 * SECOND);
        assert_eq!(is_told(&rig), is_long, "{:?}", rig.pool().events());
        is_filled(&rig, "after a moment")?;
        rig.settled(41)
    });
}

/// One member does not return a header, or is not there, and the other one not a block that was acknowledged, or nothing of a set
/// that images know, which the first one has.
#[test]
fn a_start_loses_nothing_that_the_member_has_which_it_would_leave_out() {
    provoke(Bug::BegunUnread, 16, |seed| {
        let rig = Rig::new(seed, plan(2, 2));
        fill(&rig)?;
        let is_known = seed / 8 == 1;
        match is_known {
            true => drop(rig.stop()?),
            false => rig.crash(KINDS[(seed % 2) as usize]),
        }
        let (first, other) = ((seed / 2 % 2) as usize, 1 - (seed / 2 % 2) as usize);
        let (_, at) = places_of(&rig, 3, 41).into_iter().find(|&(it, _)| it == other).unwrap();
        let bad = if is_known {
            let segment = at / SEGMENT_BYTES * SEGMENT_BYTES;
            segment + 4096..segment + SEGMENT_BYTES
        } else {
            at..at + 4096
        };
        rig.broken[other].failing.arm(Trigger::every(Ops::Reads).within(bad));
        if seed / 4 % 2 == 0 {
            let headers = rig.headers(first);
            let at = headers[seed as usize % headers.len()];
            rig.broken[first].failing.arm(Trigger::every(Ops::Reads).within(at..at + 512));
        } else {
            rig.offer(&[other]);
        }
        let error = rig.open().err().ok_or("it opens although the first one may have it")?;
        let says = "do not return some of what origins lack";
        assert!(error.contains(says), "{error}");
        rig.crash(Crash::ProcessKill);
        rig.broken[first].mend();
        rig.offer(&[0, 1]);
        rig.open()?;
        is_filled(&rig, "with both")?;
        rig.settled(41)
    });
}

/// What a person accepts is lost then, and no more than that.
#[test]
fn what_is_known_to_be_missing_is_lost_once_that_is_accepted() {
    survive(SEEDS, |seed| {
        let rig = Rig::new(seed, plan(2, 2));
        fill(&rig)?;
        rig.crash(KINDS[(seed % 2) as usize]);
        let other = (seed / 2) as usize;
        let (_, at) = places_of(&rig, 3, 41).into_iter().find(|&(it, _)| it == other).unwrap();
        rig.broken[other].failing.arm(Trigger::every(Ops::Reads).within(at..at + 4096));
        rig.offer(&[other]);
        assert!(rig.open().is_err_and(|error| error.starts_with("NeedsDecision")));
        rig.crash(Crash::ProcessKill);
        rig.accepts.set(true);
        rig.open()?;
        assert!(rig.read(41).is_err());
        for (block, version) in [(3, 2), (7, 3), (40, 3)] {
            same(&format!("block {block}"), rig.read(block)?, version)?;
        }
        Ok(())
    });
}

/// Nobody returns one header of each of two members: there is nothing to go on with, and each of them alone would do once it
/// is mended.
#[test]
fn a_start_that_cannot_read_what_it_needs_has_changed_nothing() {
    survive(SEEDS, |seed| {
        let rig = Rig::new(seed, plan(2, 2));
        fill(&rig)?;
        rig.crash(KINDS[(seed % 2) as usize]);
        let heads = || [0, 1].map(|member| rig.members[member].peek(0, 4 * SEGMENT_BYTES as usize));
        let before = heads();
        for member in 0..2 {
            let headers = rig.headers(member);
            let at = headers[seed as usize % headers.len()];
            let header = Trigger::every(Ops::Reads).within(at..at + 512);
            rig.broken[member].failing.arm(header);
        }
        let error = rig.open().unwrap_err();
        assert!(error.starts_with("Io: ") && error.contains("is left"), "{error}");
        assert_eq!(error.matches("reading at byte").count(), 2, "{error}");
        assert!(heads() == before, "something was written");
        rig.crash(Crash::ProcessKill);
        let mended = (seed / 2) as usize;
        rig.broken[mended].mend();
        rig.open()?;
        assert!(is_told(&rig));
        is_filled(&rig, "on one of two")?;
        rig.crash(Crash::PowerCut);
        rig.broken[1 - mended].mend();
        rig.open()?;
        is_filled(&rig, "with that one stale")?;
        rig.settled(41)
    });
}

/// One member fails a start in its own way, and the other does not return a header: the first one has what the pool can go on with.
#[test]
fn nobody_is_shut_out_before_the_others_have_been_read() {
    provoke(Bug::BegunUnread, SEEDS, |seed| {
        for after in SUPERBLOCK_READS..20 {
            let rig = Rig::new(seed, plan(2, 2));
            fill(&rig)?;
            rig.crash(KINDS[(seed % 2) as usize]);
            let (first, other) = ((seed / 2) as usize, 1 - (seed / 2) as usize);
            let failing = [Failing::Writes, Failing::Hangs][(after % 2) as usize];
            failing.begin(&rig, first, after / 2);
            let headers = rig.headers(other);
            let at = headers[after as usize % headers.len()];
            let header = || Trigger::every(Ops::Reads).within(at..at + 512);
            rig.broken[other].failing.arm(header());
            let opened = rig.open();
            rig.crash(Crash::ProcessKill);
            rig.broken.iter().for_each(|broken| broken.mend());
            rig.broken[other].failing.arm(header());
            let when = format!("after {after}, {failing:?}, opened {opened:?}");
            rig.open().map_err(|error| format!("{when}: {error}"))?;
            is_filled(&rig, &when)?;
            rig.settled(41)?;
        }
        Ok(())
    });
}

/// What a person has accepted was said of members that are missing, not of one that fails now: with that, the only copy of
/// something would be lost, and it can be had back.
#[test]
fn a_start_does_not_go_on_without_a_member_that_it_needs() {
    provoke(Bug::LossAcceptedUnasked, SEEDS, |seed| {
        for after in 0.. {
            let rig = Rig::new(seed, plan(2, 1));
            // So that both have something.
            for block in 0..60 {
                rig.write(2, block, 1)?;
                rig.flush()?;
            }
            rig.crash(Crash::PowerCut);
            let member = ((seed + after) % 2) as usize;
            rig.accepts.set(true);
            Failing::Writes.begin(&rig, member, after);
            let opened = rig.open();
            let hit = Failing::Writes.has_begun(&rig, member);
            match opened {
                Ok(()) if hit => return Err(format!("opened: {:?}", rig.pool().events())),
                Ok(()) => return Ok(()),
                Err(error) => {
                    let says = "; without it: pool \"pool\" lacks cache device";
                    assert!(error.starts_with("Io: ") && error.contains(says), "{error}");
                }
            }
            rig.crash(KINDS[(after % 2) as usize]);
            rig.broken[member].mend();
            rig.accepts.set(false);
            rig.open()?;
            for block in 0..60 {
                same("after all", rig.read(block)?, 2)?;
            }
            rig.settled(3)?;
        }
        unreachable!()
    });
}

#[test]
fn a_start_that_loses_its_last_member_says_which_and_leaves_everything() {
    survive(SEEDS, |seed| {
        for members in [1, 2] {
            let rig = Rig::new(seed, plan(members, members as u8));
            fill(&rig)?;
            rig.crash(Crash::PowerCut);
            (0..members).for_each(|member| Failing::Writes.begin(&rig, member, 0));
            let error = rig.open().unwrap_err();
            let told = error.matches("cache device").count();
            assert!(told > members && error.contains("is left"), "{error}");
            rig.crash(Crash::ProcessKill);
            (0..members).for_each(|member| rig.broken[member].mend());
            rig.open()?;
            is_filled(&rig, "once they are mended")?;
            rig.settled(41)?;
        }
        Ok(())
    });
}

/// What the second one has not answered may still arrive, so no attempt goes on with that.
#[test]
fn a_start_during_which_both_members_hang_ends() {
    survive(SEEDS, |seed| {
        for after in SUPERBLOCK_READS.. {
            let rig = Rig::new(seed, plan(2, 2));
            fill(&rig)?;
            rig.crash(KINDS[(seed + after) as usize % 2]);
            (0..2).for_each(|member| Failing::Hangs.begin(&rig, member, after));
            let opened = rig.open();
            let hits: Vec<_> =
                (0..2).map(|member| Failing::Hangs.has_begun(&rig, member)).collect();
            match opened {
                Err(error) => assert!(hits[0] && hits[1], "after {after}, {hits:?}: {error}"),
                Ok(()) => {
                    assert!(!(hits[0] && hits[1]), "after {after}: {:?}", rig.pool().events())
                }
            }
            rig.crash(Crash::ProcessKill);
            rig.broken.iter().for_each(|broken| broken.mend());
            rig.open()?;
            is_filled(&rig, "once they answer")?;
            rig.settled(41)?;
            if hits == [false, false] {
                return Ok(());
            }
        }
        unreachable!()
    });
}

/// Two of three members were left behind by the third, which has gone on alone and fails now; nobody else knows of that.
#[test]
fn a_start_never_falls_back_to_members_that_were_left_behind() {
    survive(SEEDS, |seed| {
        let mut hits = 0;
        for after in 0.. {
            let rig = Rig::new(seed, plan(3, 3));
            fill(&rig)?;
            rig.crash(Crash::PowerCut);
            rig.offer(&[0]);
            rig.open()?;
            rig.write(5, 41, 1)?;
            rig.flush()?;
            rig.stop()?;
            rig.remember(None);
            rig.offer(&[0, 1, 2]);
            Failing::Writes.begin(&rig, 0, after);
            let opened = rig.open();
            let hit = Failing::Writes.has_begun(&rig, 0);
            if let Err(error) = &opened {
                // The pool may be open by then, and its only member fails as its volume comes.
                assert!(
                    hit && error.starts_with("Io: ") | error.contains("stopped writing"),
                    "{error}"
                );
                hits += 1;
                rig.crash(Crash::ProcessKill);
                rig.broken[0].mend();
                rig.open()?;
            }
            same("what it had alone", rig.read(41)?, 5)?;
            if !hit {
                assert!(hits > 0);
                return Ok(());
            }
        }
        unreachable!()
    });
}

/// Another one that fails the next attempt is left out, too, if enough are left, and it is certain who they are.
#[test]
fn a_start_goes_on_without_two_members_where_three_copies_are() {
    survive(SEEDS, |seed| {
        let (mut refused, mut opened) = (0, 0);
        for after in 0..30 {
            let rig = Rig::new(seed, plan(3, 3));
            fill(&rig)?;
            rig.crash(Crash::PowerCut);
            let (first, second) = (seed as usize % 3, (seed as usize + 1) % 3);
            Failing::Writes.begin(&rig, first, seed);
            Failing::Writes.begin(&rig, second, after);
            if let Err(error) = rig.open() {
                // The last one is alone with the epoch that the second was to be told of.
                assert!(error.contains("more than half of the members"), "{error}");
                refused += 1;
                rig.crash(Crash::ProcessKill);
                rig.broken.iter().for_each(|broken| broken.mend());
                rig.open()?;
            } else {
                let events = rig.pool().events();
                let failed = events.iter().filter(|e| e.kind == EventKind::MemberFailed).count();
                assert_eq!((failed, rig.pool().superblock().present().count()), (2, 1));
                opened += 1;
            }
            is_filled(&rig, "without two")?;
            rig.settled(41)?;
        }
        assert!(refused < opened, "refused {refused}, opened {opened}");
        Ok(())
    });
}

//! A member that does not answer. Nobody waits longer than the deadline, nothing that was acknowledged is
//! lost, and what it answers in the end counts for nothing.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{BlockDevice, Buf, Nanos, Request, Runtime};
use forebay_engine::{EventKind, Mode, Tuning};

use crate::failing::{goes_on, live, verify};
use crate::is_read;
use crate::rig::{BLOCK, Gate, KINDS, Plan, Rig, SOON, lazy, same, survive, version};

pub const DEADLINE: Nanos = SECOND;

/// Longest that a client may wait: the deadline, the eighth by which it is noticed late, and what it
/// takes to begin an epoch.
const WAIT_MAX: Nanos = DEADLINE + DEADLINE / 8 + 100 * MILLISECOND;

fn plan(members: usize, tuning: Tuning) -> Plan {
    let device_deadline_ms = (DEADLINE / MILLISECOND) as u32;
    Plan { members, copies: 2, tuning, device_deadline_ms, ..Plan::default() }
}

pub fn has_hung(rig: &Rig) -> bool {
    rig.pool().events().iter().any(|event| event.kind == EventKind::MemberHung)
}

fn is_flush(request: &Request) -> bool {
    matches!(request, Request::Flush)
}

/// Carries something out; an error if it took longer than a client may wait.
pub fn in_time<T>(
    rig: &Rc<Rig>,
    what: &str,
    action: impl FnOnce(&Rc<Rig>) -> Result<T, String>,
) -> Result<T, String> {
    let before = rig.world.now();
    let result = action(rig).map_err(|error| format!("{what}: {error}"))?;
    match rig.world.now() - before {
        waited if waited <= WAIT_MAX => Ok(result),
        waited => Err(format!("{what} took {} ms", waited / MILLISECOND)),
    }
}

/// One request, all of a kind, everything.
fn silences(after: u64) -> [Trigger; 4] {
    [
        Trigger::every(Ops::All).after(after).times(1),
        Trigger::every(Ops::Reads).after(after),
        Trigger::every(Ops::Flushes).after(after),
        Trigger::every(Ops::All).after(after),
    ]
}

/// Every request of a member is the first one without an answer, in turn, in each way.
fn hangs_everywhere(seed: u64, members: usize) -> Result<(), String> {
    for kind in 0..4 {
        // In turn it is another member's, and one may have had less to do than the next.
        let mut missed = 0;
        for after in 0.. {
            let luck = seed + after;
            let hung = (luck as usize) % members;
            let agreed = (luck / 2).is_multiple_of(2);
            let tuning = Tuning { lap_percent: 2, ..lazy() };
            let rig = Rig::new(seed, Plan { agreed, ..plan(members, tuning) });
            let broken = &rig.broken[hung];
            broken.hanging.arm(silences(after)[kind].clone());
            let at = |error: String| format!("way {kind} after {after} on {hung}: {error}");
            live(&rig, &in_time_step).map_err(at)?;
            in_time(&rig, "reading all", |rig| verify(rig, "at once")).map_err(at)?;
            // What nobody waits for, a discard say, is noticed all the same.
            rig.pause(2 * DEADLINE);
            let hit = broken.hanging.hits() > 0;
            assert_eq!((has_hung(&rig), rig.pool().is_latched()), (hit, false), "{kind} {after}");
            let given_up: usize = rig.pool().given_up().iter().map(|(_, count)| count).sum();
            assert_eq!(given_up, broken.stuck.count());
            if (luck / 4).is_multiple_of(2) {
                // It answers after all, and is told nothing more.
                broken.mend();
                broken.answer();
                rig.pause(SOON);
                assert!(rig.pool().given_up().iter().all(|(_, count)| *count == 0));
                verify(&rig, "after an answer").map_err(at)?;
            }
            rig.crash(KINDS[(luck / 8 % 2) as usize]);
            let without = hit && (luck / 16).is_multiple_of(2);
            goes_on(&rig, members, hung, without).map_err(at)?;
            missed = if hit { 0 } else { missed + 1 };
            if missed == members {
                assert!(after > 3, "they had something to hang at");
                break;
            }
        }
    }
    Ok(())
}

fn in_time_step(
    rig: &Rc<Rig>,
    step: &mut dyn FnMut(&Rc<Rig>) -> Result<(), String>,
) -> Result<(), String> {
    in_time(rig, "a step", step)
}

#[test]
fn one_of_two_members_hangs_at_any_request() {
    survive(2, |seed| hangs_everywhere(seed, 2));
}

#[test]
fn one_of_three_members_hangs_at_any_request() {
    survive(2, |seed| hangs_everywhere(seed, 3));
}

/// A long read of many runs on both members: what the hung one was asked for comes from the other, in
/// memory that the hung one cannot write to any more.
#[test]
fn a_read_of_many_parts_is_whole_and_a_late_answer_does_not_change_it() {
    survive(6, |seed| {
        let rig = Rig::new(seed, plan(2, lazy()));
        for block in 0..32 {
            rig.write(2 + block % 3, block, 1)?;
        }
        rig.flush()?;
        let hung = (seed % 2) as usize;
        rig.broken[hung].hanging.arm(Trigger::every(Ops::Reads));
        let volume = rig.volume();
        let read =
            |rig: &Rc<Rig>| rig.run(async move { volume.read(0, Buf::new(32 * BLOCK)).await });
        let (buf, result) = in_time(&rig, "the read", read)?;
        result.map_err(|error| error.to_string())?;
        assert!(rig.broken[hung].stuck.count() > 5);
        rig.broken[hung].mend();
        rig.broken[hung].answer();
        rig.pause(SOON);
        for (block, bytes) in (0..).zip(buf.chunks_exact(BLOCK)) {
            same("a block", version(block, bytes)?, 2 + block % 3)?;
        }
        Ok(())
    });
}

/// Another reactor waits for the member by itself: its reads alone tell that it hangs.
#[test]
fn a_read_of_another_reactor_is_late_as_well() {
    survive(6, |seed| {
        let rig = Rig::new(seed, plan(2, lazy()));
        for block in 0..20 {
            rig.write(2, block, 1)?;
        }
        rig.flush()?;
        let hung = (seed % 2) as usize;
        let client = Rc::new(rig.volume().share().open(rig.runtime(), rig.devices()));
        rig.broken[hung].hanging.arm(Trigger::every(Ops::Reads));
        for block in 0..20 {
            let client = Rc::clone(&client);
            let at = block * BLOCK as u64;
            let read =
                |rig: &Rc<Rig>| rig.run(async move { client.read(at, Buf::new(BLOCK)).await });
            let (buf, result) = in_time(&rig, "a read", read)?;
            result.map_err(|error| error.to_string())?;
            same("a block", version(block, &buf)?, 2)?;
        }
        assert!(has_hung(&rig) && rig.broken[hung].stuck.count() > 0);
        Ok(())
    });
}

/// The member has answered, and nobody takes the answer: the other reactor has no processor.
#[test]
fn a_reactor_that_stands_still_takes_no_member_for_hung() {
    survive(4, |seed| {
        let rig = Rig::new(seed, plan(2, lazy()));
        for block in 0..20 {
            rig.write(2, block, 1)?;
        }
        rig.flush()?;
        let gate = |gate: &Rc<Gate>| Gate::new(&rig.world, Rc::clone(gate) as _);
        let gates: Vec<_> = rig.gates.iter().map(gate).collect();
        let devices = gates.iter().map(|gate| Rc::clone(gate) as Rc<dyn BlockDevice>).collect();
        let client = rig.volume().share().open(rig.runtime(), devices);
        gates.iter().for_each(|gate| gate.hold(1, is_read));
        let read = Rc::new(Cell::new(None));
        let told = Rc::clone(&read);
        rig.world.spawn(Box::pin(async move {
            told.set(Some(client.read(3 * BLOCK as u64, Buf::new(BLOCK)).await));
        }));
        rig.pause(SOON);
        assert_eq!(gates.iter().map(|gate| gate.held()).sum::<usize>(), 1);
        rig.pause(5 * DEADLINE);
        assert!(!has_hung(&rig), "it has answered");
        gates.iter().for_each(|gate| gate.release());
        rig.pause(SOON);
        let (buf, result) = read.take().ok_or("the read has not ended")?;
        result.map_err(|error| error.to_string())?;
        same("the block", version(3, &buf)?, 2).map(drop)
    });
}

/// A flush fails while something is read from the same member, and what the flush has lost with it: the
/// read, which ends afterwards, is not what the client gets.
#[test]
fn what_a_member_returns_after_a_failed_flush_is_not_believed() {
    survive(12, |seed| {
        let rig = Rig::new(seed, plan(2, lazy()));
        let failed = (seed % 2) as usize;
        for block in 0..20 {
            rig.write(2, block, 1)?;
        }
        let far = seed / 2 % 2 == 1;
        let client = if far {
            rig.volume().share().open(rig.runtime(), rig.devices())
        } else {
            rig.volume().client()
        };
        let client = Rc::new(client);
        // Answers of the member wait, those of reads with what it returns after the flush.
        let broken = &rig.broken[failed];
        broken.hanging.arm(Trigger::every(Ops::Reads));
        let reads: Vec<_> = (0..20)
            .map(|block| {
                let (client, slot) = (Rc::clone(&client), Rc::new(Cell::new(None)));
                let told = Rc::clone(&slot);
                rig.world.spawn(Box::pin(async move {
                    let read = client.read(block * BLOCK as u64, Buf::new(BLOCK)).await;
                    told.set(Some(read));
                }));
                slot
            })
            .collect();
        rig.pause(SOON);
        assert!(broken.stuck.count() > 0, "some are read there");
        broken.failing.arm(Trigger::every(Ops::Flushes).times(1));
        rig.gates[failed].fail_next(is_flush);
        rig.members[failed].fail_flush();
        let volume = rig.volume();
        rig.world.spawn(Box::pin(async move {
            volume.flush().await.ok();
        }));
        rig.pause(MILLISECOND);
        broken.answer();
        rig.pause(SOON);
        assert!(rig.was_told("goes on without it"));
        for (block, read) in (0..).zip(reads) {
            let (buf, result) = read.take().ok_or("a read has not ended")?;
            result.map_err(|error| error.to_string())?;
            same("a block", version(block, &buf)?, 2)?;
        }
        Ok(())
    });
}

/// A machine that slept, or a process that was stopped: behind the pause the member answers.
#[test]
fn a_member_that_answers_within_the_deadline_stays() {
    survive(4, |seed| {
        let rig = Rig::new(seed, plan(2, lazy()));
        rig.write(2, 3, 1)?;
        let slow = (seed % 2) as usize;
        rig.gates[slow].hold(1, is_flush);
        let flush = rig.volume();
        rig.world.spawn(Box::pin(async move {
            flush.flush().await.ok();
        }));
        rig.pause(DEADLINE - 10 * MILLISECOND);
        assert_eq!(rig.gates[slow].held(), 1);
        rig.gates[slow].release();
        rig.pause(10 * DEADLINE);
        assert!(!has_hung(&rig));
        rig.write(3, 3, 1)?;
        rig.flush()
    });
}

/// The deadline changes while the pool serves, and stays over a restart.
#[test]
fn a_deadline_that_was_changed_counts_at_once_and_after_a_restart() {
    survive(4, |seed| {
        let rig = Rig::new(seed, plan(2, lazy()));
        let pool = rig.pool();
        assert!(forebay_engine::Pool::check_device_deadline(99).is_err());
        assert!(forebay_engine::Pool::check_device_deadline(600_001).is_err());
        rig.run(async move { pool.set_device_deadline(60_000).await })?
            .map_err(|e| e.to_string())?;
        if seed % 2 == 0 {
            rig.restart(Crash::PowerCut)?;
        }
        rig.broken[1].hanging.arm(Trigger::every(Ops::Writes).times(1));
        let done = rig.start_write(2, 3, 1);
        rig.pause(59 * SECOND);
        assert!(!done.get() && !has_hung(&rig));
        rig.pause(10 * SECOND);
        assert!(done.get() && has_hung(&rig));
        same("read", rig.read(3)?, 2).map(drop)
    });
}

/// A member hangs from before a start on, or while one is under way: the start ends soon, with an error if it is not known yet
/// which member that is.
#[test]
fn a_start_with_a_member_that_hangs_ends() {
    survive(6, |seed| {
        let rig = Rig::new(seed, plan(2, lazy()));
        rig.write(2, 3, 1)?;
        rig.flush()?;
        for after in [0, 1, 2, 3, 5, 8, 13, 21] {
            rig.crash(KINDS[(seed % 2) as usize]);
            rig.broken[1].hanging.arm(Trigger::every(Ops::All).after(after));
            let before = rig.world.now();
            let opened = rig.open();
            let waited = rig.world.now() - before;
            assert!(waited <= 15 * SECOND, "{} ms after {after}", waited / MILLISECOND);
            if let Err(error) = opened {
                assert!(after < 2 && error.contains("does not answer"), "after {after}: {error}");
                rig.pause(SECOND);
            }
            rig.crash(Crash::ProcessKill);
            rig.broken[1].mend();
            rig.open()?;
            same("read", rig.read(3)?, 2)?;
        }
        Ok(())
    });
}

/// In a pool that has latched reads go to all members: one that hangs there ends with an error.
#[test]
fn a_pool_that_latched_ends_its_reads() {
    survive(4, |seed| {
        let rig = Rig::new(seed, Plan { mode: Mode::Writeback, copies: 1, ..plan(1, lazy()) });
        for block in 0..8 {
            rig.write(2, block, 1)?;
        }
        rig.flush()?;
        rig.broken[0].hanging.arm(Trigger::every(Ops::All));
        in_time(&rig, "the first read", |rig| Ok(rig.read(0)))?.unwrap_err();
        let kept = rig.broken[0].stuck.count();
        for block in 0..8 {
            let error = in_time(&rig, "a read", |rig| Ok(rig.read(block)))?.unwrap_err();
            assert!(error.contains("no good copy"), "{error}");
        }
        assert!(rig.pool().is_latched());
        assert_eq!(rig.broken[0].stuck.count(), kept, "it is asked nothing more");
        rig.broken[0].mend();
        rig.broken[0].answer();
        rig.pause(SOON);
        (0..8).try_for_each(|block| same("answered", rig.read(block)?, 2).map(drop))?;
        rig.broken[0].hanging.arm(Trigger::every(Ops::All));
        in_time(&rig, "a write", |rig| Ok(rig.write(3, 3, 1)))?.unwrap_err();
        in_time(&rig, "a stop", |rig| Ok(rig.try_stop()))?.unwrap_err();
        rig.crash(Crash::ProcessKill);
        rig.broken[0].mend();
        rig.open()?;
        (0..8).try_for_each(|block| same("dirty", rig.read(block)?, 2).map(drop))
    });
}

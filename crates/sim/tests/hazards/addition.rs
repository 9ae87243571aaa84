//! A member is added to a pool in use: the pool serves on, what was acknowledged stays, whatever is cut
//! off or fails meanwhile, and what had too few copies gets them back.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::runtime::{MILLISECOND, Runtime, SECOND};
use forebay_device::{BlockDevice, Buf, Request};
use forebay_engine::format::{Layout, MemberRecord, MemberState, SUPERBLOCK_BYTES};
use forebay_engine::ids::DeviceId;
use forebay_engine::planted::Bug;
use forebay_engine::{ErrorKind, EventKind, Readers};
use forebay_sim::content::fill as stamp;

use crate::changing::{BLOCKS, add, all_but, begin_add, fill, id_of, plan, remove, told, verify};
use crate::hanging::{DEADLINE, has_hung, in_time};
use crate::rig::{
    BLOCK, KINDS, Plan, Rig, SEGMENT_BYTES, SEGMENTS, SOON, newest, provoke, same, survive, version,
};

/// Waits until what was lost is made good.
fn until_restored(rig: &Rc<Rig>) -> Result<(), String> {
    for _ in 0..100 {
        if told(rig, EventKind::CopiesRestored) {
            return Ok(());
        }
        rig.pause(SOON);
    }
    Err("the copies are not restored".into())
}

/// Opens the pool with its members, and the new one if that is a cache device by now; whether it is.
fn open_with_spare(rig: &Rc<Rig>, members: usize) -> Result<bool, String> {
    rig.offer(&(0..=members).collect::<Vec<_>>());
    match rig.open() {
        Err(error)
            if error.contains("not a Forebay cache device")
                || error.contains("no readable superblock") =>
        {
            rig.offer(&(0..members).collect::<Vec<_>>());
            rig.open().map(|()| false)
        }
        other => other.map(|()| rig.pool().superblock().present().count() > members),
    }
}

/// Who adds it a second time meanwhile would make it blank when it is a member already.
#[test]
fn a_device_is_added_once_at_a_time() {
    survive(6, |seed| {
        let rig = Rig::new(seed, plan(2, 2, 2));
        fill(&rig)?;
        let outcomes: Rc<RefCell<Vec<Result<DeviceId, String>>>> = Rc::default();
        let begin = || {
            let (pool, device) = (rig.pool(), Rc::clone(&rig.gates[2]) as Rc<dyn BlockDevice>);
            let outcomes = Rc::clone(&outcomes);
            rig.world.spawn(Box::pin(async move {
                let added = pool.add_member(device).await.map_err(|error| error.to_string());
                outcomes.borrow_mut().push(added);
            }));
        };
        begin();
        rig.pause(seed * MILLISECOND / 10);
        // The second one is slow to look at what stands there.
        rig.gates[2].hold(1, |request| matches!(request, Request::Read { offset: 0, .. }));
        begin();
        rig.pause(SOON);
        rig.gates[2].hold(0, |_| false);
        rig.gates[2].release();
        rig.pause(SOON);
        let added = outcomes.borrow().iter().filter(|added| added.is_ok()).count();
        assert_eq!(added, 1, "{:?}", outcomes.borrow());
        (0..BLOCKS).try_for_each(|block| rig.write(3, block, 1))?;
        rig.flush()?;
        rig.crash(KINDS[(seed % 2) as usize]);
        assert!(open_with_spare(&rig, 2)?, "it is a member: {:?}", outcomes.borrow());
        (0..BLOCKS).try_for_each(|block| same("what was written", rig.read(block)?, 3).map(drop))
    });
}

#[test]
fn a_member_is_added_and_takes_part_in_everything() {
    survive(6, |seed| {
        let (members, copies) = [(3, 2), (1, 1), (2, 2)][(seed % 3) as usize];
        let segments = [40, 24, 90][(seed / 2 % 3) as usize];
        let least = Rig::new(seed, plan(members, 2, copies)).pool().segments().1 / members;
        let rig = Rig::new(seed, Plan { spare_segments: segments, ..plan(members, 2, copies) });
        fill(&rig)?;
        let total = rig.pool().segments().1;
        let added = add(&rig, members)?;
        if segments < 40 {
            let error = added.unwrap_err();
            assert!(error.what.contains("too small"), "{least} segments: {error}");
            return verify(&rig, "afterwards");
        }
        let id = added.map_err(|error| error.to_string())?;
        assert!(rig.pool().segments().1 > total && told(&rig, EventKind::MemberAdded));
        assert!(rig.pool().superblock().present().any(|member| member.device == id));
        verify(&rig, "at once")?;
        for round in 0..8 {
            (0..BLOCKS / 2).try_for_each(|block| rig.write(3 + round, 2 * block, 1))?;
            rig.flush()?;
        }
        (0..BLOCKS / 2).try_for_each(|block| rig.write(3, 2 * block, 1))?;
        rig.flush()?;
        rig.pause(10 * SECOND);
        let log = rig.members[members].peek(1 << 20, 1 << 20);
        assert!(log.iter().any(|&byte| byte > 0), "nothing was written to it");
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.offer(&(0..=members).collect::<Vec<_>>());
        rig.open()?;
        verify(&rig, "after a crash")?;
        if copies > 1 {
            rig.crash(KINDS[(seed / 2 % 2) as usize]);
            rig.offer(&all_but(members + 1, (seed / 3) as usize % (members + 1)));
            rig.open()?;
            verify(&rig, "with one less")?;
        }
        rig.destage()?;
        (0..BLOCKS).try_for_each(|block| rig.settled(block))?;
        rig.stop()?;
        rig.open()?;
        verify(&rig, "after a stop")
    });
}

/// Opened with one member, the pool had one copy of clean data. Nobody waits for second ones to be given back once
/// it has two.
#[test]
fn clean_data_keeps_its_copies_once_there_are_members_for_them() {
    survive(4, |seed| {
        let plan = Plan { clean_copies: 2, origin_bytes: 4 << 20, ..plan(2, 2, 2) };
        let rig = Rig::new(seed, plan);
        fill(&rig)?;
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.offer(&[(seed / 2) as usize]);
        rig.open()?;
        add(&rig, 2)?.map_err(|error| error.to_string())?;
        for block in 0..4 * SEGMENTS * SEGMENT_BYTES / BLOCK as u64 {
            rig.write(4, block % 1024, 1)?;
            if block % 64 == 0 {
                rig.destage()?;
            }
        }
        rig.destage()?;
        rig.pause(SECOND);
        let (laps, (free, segments)) = (rig.pool().counters().laps.get(), rig.pool().segments());
        assert!(free < segments / 2, "{free} of {segments} segments are free");
        rig.pause(SECOND);
        assert_eq!(rig.pool().counters().laps.get(), laps, "roots that free nothing");
        Ok(())
    });
}

/// What a failed member took has two copies again, and then either of the two may be lost.
#[test]
fn copies_come_back_with_a_new_member() {
    survive(12, |seed| {
        let lost = (seed % 2) as usize;
        let rig = Rig::new(seed, Plan { agreed: seed % 4 < 2, ..plan(2, 2, 2) });
        fill(&rig)?;
        rig.broken[lost].gone.set(true);
        rig.write(2, 1, 1)?;
        rig.flush()?;
        if seed % 3 == 0 {
            rig.pause(SECOND);
        }
        assert!(!rig.pool().short_bytes().1, "there are members enough");
        add(&rig, 2)?.map_err(|error| error.to_string())?;
        assert!(rig.pool().short_bytes().1, "there are too few members");
        verify(&rig, "at once")?;
        until_restored(&rig)?;
        assert_eq!(rig.pool().short_bytes(), (0, true));
        rig.write(2, 3, 1)?;
        rig.flush()?;
        // Entries without data, too.
        let volume = rig.volume();
        rig.run(async move { volume.write_zeroes(BLOCKS * 4096, 4096, true).await })?
            .map_err(|error| error.to_string())?;
        rig.crash(KINDS[(seed / 2 % 2) as usize]);
        let left = if seed / 4 % 2 == 0 { 2 } else { 1 - lost };
        rig.offer(&[left]);
        rig.open()?;
        (0..BLOCKS).try_for_each(|block| {
            same(&format!("block {block} with {left}"), rig.read(block)?, newest(block)).map(drop)
        })?;
        same("zeroes", rig.read(BLOCKS)?, 0)?;
        rig.destage()
    });
}

/// Whatever was durable of it, and whether the new one is offered at the next start or not.
#[test]
fn an_addition_is_cut_off_at_every_io() {
    survive(4, |seed| {
        let (members, copies) = [(2, 2), (1, 1), (3, 2), (2, 1)][(seed % 4) as usize];
        let (mut without, mut with) = (0, 0);
        for ios in 1.. {
            let luck = seed + ios;
            let rig = Rig::new(seed, plan(members, 2, copies));
            fill(&rig)?;
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            let ended = add(&rig, members).is_ok();
            rig.world.crash_at(None);
            rig.crash(KINDS[(luck % 2) as usize]);
            let at = |error: String| format!("after {ios} I/Os: {error}");
            // As long as nobody was told that it is added, or nothing is missing, the pool opens.
            match open_with_spare(&rig, members).map_err(at)? {
                true => with += 1,
                false => without += 1,
            }
            assert!(!ended || rig.pool().superblock().present().count() > members);
            verify(&rig, "after a crash").map_err(at)?;
            if rig.pool().superblock().present().count() == members {
                add(&rig, members)?.map_err(|error| at(error.to_string()))?;
            }
            rig.write(2, 1, 1).map_err(at)?;
            rig.flush().map_err(at)?;
            verify(&rig, "at last").map_err(at)?;
            rig.crash(KINDS[(luck / 2 % 2) as usize]);
            rig.offer(&match copies {
                1 => (0..=members).collect(),
                _ => all_but(members + 1, luck as usize % (members + 1)),
            });
            rig.open().map_err(at)?;
            verify(&rig, "in the end").map_err(at)?;
            rig.destage().map_err(at)?;
            (0..BLOCKS).step_by(7).try_for_each(|block| rig.settled(block)).map_err(at)?;
            if ended {
                assert!(with > 5 && without > 5, "with it {with}, without {without}");
                return Ok(());
            }
        }
        Ok(())
    });
}

/// From the moment in which one is asked for until its copies are made.
#[test]
fn copies_that_come_back_are_cut_off_at_every_io() {
    // A third of the requests each.
    survive(3, |seed| {
        let lost = (seed % 2) as usize;
        let mut cut_off = [0; 2];
        for ios in (1 + seed..).step_by(3) {
            let rig = Rig::new(seed, plan(2, 2, 2));
            fill(&rig)?;
            rig.broken[lost].gone.set(true);
            rig.write(2, 1, 1)?;
            rig.flush()?;
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            let ended = add(&rig, 2).is_ok() && rig.run(restored(&rig)).is_ok();
            rig.world.crash_at(None);
            rig.crash(KINDS[(ios / 3 % 2) as usize]);
            let at = |error: String| format!("after {ios} I/Os: {error}");
            rig.offer(&[1 - lost, 2]);
            let added = match rig.open() {
                Err(error) if error.contains("superblock") || error.contains("not a Forebay") => {
                    rig.offer(&[1 - lost]);
                    rig.open().map(|()| false)
                }
                other => other.map(|()| true),
            };
            let added = added.map_err(at)?;
            verify(&rig, "after a crash").map_err(at)?;
            let known = rig.pool().superblock().present().count() == 2;
            assert_eq!(added, known, "after {ios} I/Os");
            cut_off[usize::from(added)] += 1;
            if !added {
                add(&rig, 2)?.map_err(|error| at(error.to_string()))?;
            }
            rig.run(restored(&rig)).map_err(at)?;
            rig.write(2, 3, 1).map_err(at)?;
            rig.flush().map_err(at)?;
            rig.crash(KINDS[(ios / 6 % 2) as usize]);
            rig.offer(&[[1 - lost, 2][(ios / 12 % 2) as usize]]);
            rig.open().map_err(at)?;
            (0..BLOCKS).try_for_each(|block| {
                let found = rig.read(block).map_err(at)?;
                same(&format!("block {block} with one"), found, newest(block)).map(drop).map_err(at)
            })?;
            if ended {
                assert!(cut_off.iter().all(|&times| times > 3), "cut off {cut_off:?}");
                return Ok(());
            }
        }
        Ok(())
    });
}

/// Ends once nothing that was lost is to be made good any more.
fn restored(rig: &Rc<Rig>) -> impl Future<Output = ()> + use<> {
    let (pool, runtime) = (rig.pool(), Rc::clone(&rig.world) as Rc<dyn Runtime>);
    async move {
        let is_failed = |m: &MemberRecord| m.state == MemberState::Failed;
        while pool.superblock().members.iter().any(is_failed) {
            runtime.sleep(SOON / 10).await.result.ok();
        }
    }
}

/// One that was to be added and is not there when the pool goes on: it is never taken for a member.
#[test]
fn one_that_was_cut_off_and_comes_back_later_is_stale() {
    survive(2, |seed| {
        let (mut left, mut asked) = (0, 0);
        for ios in 1.. {
            let rig = Rig::new(seed, plan(2, 2, 2));
            fill(&rig)?;
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            let ended = add(&rig, 2).is_ok();
            rig.world.crash_at(None);
            rig.crash(KINDS[(ios % 2) as usize]);
            let at = |error: String| format!("after {ios} I/Os: {error}");
            rig.offer(&[0, 1]);
            match rig.open() {
                Ok(()) => left += 1,
                // Some have heard of it, and nobody knows whether it went further.
                Err(error) if error.starts_with("NeedsDecision") => {
                    asked += 1;
                    rig.offer(&[0, 1, 2]);
                    rig.open().map_err(at)?;
                    verify(&rig, "with it").map_err(at)?;
                    continue;
                }
                Err(error) => return Err(at(error)),
            }
            verify(&rig, "without it").map_err(at)?;
            // The other one that may be added has the same epoch to begin.
            add(&rig, 3)?.map_err(|error| at(error.to_string()))?;
            rig.write(2, 1, 1).map_err(at)?;
            rig.flush().map_err(at)?;
            rig.crash(KINDS[(ios / 2 % 2) as usize]);
            rig.offer(&[0, 1, 2, 3]);
            if rig
                .open()
                .is_err_and(|error| error.contains("superblock") || error.contains("device"))
            {
                rig.offer(&[0, 1, 3]);
                rig.open().map_err(at)?;
            }
            assert_eq!(rig.pool().superblock().present().count(), 3);
            verify(&rig, "with all").map_err(at)?;
            if ended {
                assert!(left > 10 && asked > 0, "left {left}, asked {asked}");
                return Ok(());
            }
        }
        Ok(())
    });
}

/// It or another one, at each of its writes or flushes in turn.
#[test]
fn a_member_fails_while_one_is_added() {
    survive(3, |seed| {
        let (mut done, mut refused) = (0, 0);
        for after in 0.. {
            let luck = seed + after;
            let failed = [2, 0, 2, 1][(luck % 4) as usize];
            let rig = Rig::new(seed, plan(2, 2, 2));
            fill(&rig)?;
            let ops = [Ops::Writes, Ops::Flushes][(luck / 4 % 2) as usize];
            let faults = Rc::clone(&rig.broken[failed].failing);
            faults.arm(Trigger::every(ops).after(after / 8));
            let at = |error: String| format!("{failed} after {after}: {error}");
            match add(&rig, 2).map_err(at)? {
                Ok(_) => done += 1,
                Err(error) if error.kind == ErrorKind::Io => refused += 1,
                Err(error) => return Err(at(error.to_string())),
            }
            assert!(!rig.pool().is_latched(), "{failed} after {after}");
            let hit = faults.hits() > 0;
            verify(&rig, "at once").map_err(at)?;
            rig.write(2, 1, 1).map_err(at)?;
            rig.flush().map_err(at)?;
            rig.crash(KINDS[(luck / 3 % 2) as usize]);
            rig.broken[failed].mend();
            open_with_spare(&rig, 2).map_err(at)?;
            verify(&rig, "after a crash").map_err(at)?;
            rig.destage().map_err(at)?;
            (0..BLOCKS).step_by(7).try_for_each(|block| rig.settled(block)).map_err(at)?;
            if !hit && after > 100 {
                assert!(done > 10 && refused > 5, "done {done}, refused {refused}");
                return Ok(());
            }
        }
        Ok(())
    });
}

/// A pool of two whose members may take so long to answer.
fn impatient() -> Plan {
    Plan { device_deadline_ms: (DEADLINE / MILLISECOND) as u32, ..plan(2, 2, 2) }
}

/// It gives no answer from each of its requests on, in turn: it is refused, or left behind like any other.
#[test]
fn one_that_hangs_is_not_waited_for() {
    survive(3, |seed| {
        let (mut refused, mut left) = (0, 0);
        for after in 0.. {
            let luck = seed + after;
            let rig = Rig::new(seed, impatient());
            fill(&rig)?;
            let broken = &rig.broken[2];
            broken.hanging.arm(Trigger::every(Ops::All).after(after));
            let at = |error: String| format!("after {after}: {error}");
            let added = match in_time(&rig, "adding it", |rig| add(rig, 2)).map_err(at)? {
                Ok(_) => true,
                Err(error) if error.kind == ErrorKind::Io => false,
                Err(error) => return Err(at(error.to_string())),
            };
            in_time(&rig, "a write", |rig| rig.write(2, 1, 1)).map_err(at)?;
            in_time(&rig, "a flush", |rig| rig.flush()).map_err(at)?;
            in_time(&rig, "reading all", |rig| verify(rig, "at once")).map_err(at)?;
            rig.pause(2 * DEADLINE);
            let hit = broken.hanging.hits() > 0;
            assert_eq!((has_hung(&rig), rig.pool().is_latched()), (hit && added, false), "{after}");
            let members = rig.pool().superblock().present().count();
            assert_eq!(members, if hit { 2 } else { 3 }, "after {after}");
            refused += u32::from(!added);
            left += u32::from(hit && added);
            if (luck / 2).is_multiple_of(2) {
                broken.mend();
                broken.answer();
                rig.pause(SOON);
                verify(&rig, "after an answer").map_err(at)?;
            }
            // Its place is another's.
            add(&rig, 3)?.map_err(|error| at(error.to_string()))?;
            verify(&rig, "with another one").map_err(at)?;
            rig.crash(KINDS[(luck / 4 % 2) as usize]);
            broken.mend();
            rig.offer(if hit { &[0, 1, 3] } else { &[0, 1, 2, 3] });
            rig.open().map_err(at)?;
            verify(&rig, "after a crash").map_err(at)?;
            rig.destage().map_err(at)?;
            (0..BLOCKS).step_by(7).try_for_each(|block| rig.settled(block)).map_err(at)?;
            if !hit {
                assert!(refused > 5 && left > 5, "refused {refused}, left {left}");
                return Ok(());
            }
        }
        Ok(())
    });
}

/// Nor is it by a reactor that reads it by itself. One that failed before it had its place first.
#[test]
fn another_reactor_reads_one_that_was_added_and_does_not_wait_for_it() {
    survive(4, |seed| {
        let rig = Rig::new(seed, impatient());
        fill(&rig)?;
        let readers: Rc<Readers> = Rc::new(rig.devices().into_iter().map(Some).collect());
        let client = Rc::new(rig.volume().share().open_with(rig.runtime(), Rc::clone(&readers)));
        rig.broken[3].hanging.arm(Trigger::every(Ops::All).after(3 + seed));
        assert!(in_time(&rig, "adding one that hangs", |rig| add(rig, 3))?.is_err());
        add(&rig, 2)?.map_err(|error| error.to_string())?;
        for block in 0..BLOCKS {
            rig.write(4, block, 1)?;
        }
        rig.flush()?;
        let read_all = |when: &str| {
            (0..BLOCKS).try_for_each(|block| {
                let (client, at) = (Rc::clone(&client), block * BLOCK as u64);
                let read =
                    |rig: &Rc<Rig>| rig.run(async move { client.read(at, Buf::new(BLOCK)).await });
                let (buf, result) = in_time(&rig, "a read", read)?;
                result.map_err(|error| error.to_string())?;
                same(when, version(block, &buf)?, 4).map(drop)
            })
        };
        // What the reactor has not been given yet the pool reads.
        read_all("before it is known there")?;
        readers.set(2, Some(Rc::clone(&rig.gates[2]) as _));
        read_all("there")?;
        rig.broken[2].hanging.arm(Trigger::every(Ops::Reads));
        read_all("while it hangs")?;
        assert!(has_hung(&rig) && rig.broken[2].stuck.count() > 0);
        Ok(())
    });
}

/// One whose superblock cannot be written, and that hangs when it is to be erased, leaves nothing behind by which others
/// would take the next one for it.
#[test]
fn one_that_could_not_join_and_hung_then_costs_the_next_one_nothing() {
    survive(2, |seed| {
        let rig = Rig::new(seed, impatient());
        fill(&rig)?;
        let readers: Rc<Readers> = Rc::new(rig.devices().into_iter().map(Some).collect());
        let client = Rc::new(rig.volume().share().open_with(rig.runtime(), Rc::clone(&readers)));
        // Behind the zeroes there, and behind the superblock.
        let first_slot = |spared| Trigger::every(Ops::Writes).within(slot(0)).after(spared);
        rig.broken[3].failing.arm(first_slot(1));
        rig.broken[3].hanging.arm(first_slot(2));
        assert!(add(&rig, 3)?.is_err() && rig.broken[3].stuck.count() > 0);
        add(&rig, 2)?.map_err(|error| error.to_string())?;
        readers.set(2, Some(Rc::clone(&rig.gates[2]) as _));
        (0..BLOCKS).try_for_each(|block| rig.write(4, block, 1))?;
        rig.flush()?;
        let hits = || rig.pool().counters().read_hits.get();
        let before = hits();
        for block in 0..BLOCKS {
            let (client, at) = (Rc::clone(&client), block * BLOCK as u64);
            let (buf, result) = rig.run(async move { client.read(at, Buf::new(BLOCK)).await })?;
            result.map_err(|error| error.to_string())?;
            same("read elsewhere", version(block, &buf)?, 4)?;
        }
        // What is not believed there is read once more.
        same("hits", hits() - before, BLOCKS).map(drop)
    });
}

/// While clients write.
#[test]
fn clients_go_on_while_a_member_is_added() {
    survive(6, |seed| {
        let rig = Rig::new(seed, plan(2, 2, 2));
        fill(&rig)?;
        let (pool, outcome) = (rig.pool(), Rc::new(RefCell::new(None)));
        let (ended, device) = (Rc::clone(&outcome), Rc::clone(&rig.gates[2]) as _);
        rig.world.spawn(Box::pin(async move {
            let result = pool.add_member(device).await;
            *ended.borrow_mut() = Some(result.map_err(|error| error.to_string()));
        }));
        for round in 0..40 {
            for block in 0..BLOCKS {
                rig.write(2 + round, block, 1)?;
            }
            rig.flush()?;
            if outcome.borrow().is_some() {
                break;
            }
        }
        outcome.take().expect("it comes to an end while clients write")?;
        let last = rig.read(0)?;
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.offer(&all_but(3, (seed % 3) as usize));
        rig.open()?;
        (0..BLOCKS).try_for_each(|block| same("a block", rig.read(block)?, last).map(drop))
    });
}

/// The same two devices, in turn. What one held before means nothing when it comes back.
#[test]
fn a_member_that_was_taken_out_is_added_again() {
    survive(4, |seed| {
        let rig = Rig::new(seed, plan(2, 1, 1));
        fill(&rig)?;
        for round in 0..8 {
            let (old, new) = ((round % 3) as usize, ((round + 2) % 3) as usize);
            let id = add(&rig, new)?.map_err(|error| error.to_string())?;
            assert!(rig.pool().superblock().present().any(|member| member.device == id));
            let id = rig.run(identity(&rig, old))?;
            remove(&rig, id)?.map_err(|error| error.to_string())?;
            let staying = all_but(3, old);
            verify(&rig, &format!("in round {round}"))?;
            if (seed + round) % 3 == 0 {
                rig.crash(KINDS[(round % 2) as usize]);
                rig.offer(&staying);
                rig.open()?;
                verify(&rig, &format!("after a crash in round {round}"))?;
            }
        }
        let members = rig.pool().superblock().members;
        assert!(members.iter().all(|m| m.segments.end() < 160), "numbers are given out again");
        rig.destage()
    });
}

fn identity(rig: &Rig, member: usize) -> impl Future<Output = DeviceId> + use<> {
    let device = Rc::clone(&rig.gates[member]);
    async move { forebay_engine::read_superblock(&*device).await.unwrap().device }
}

fn is_superblock(request: &Request) -> bool {
    matches!(request, Request::Write { offset, .. } if *offset < 2 * SUPERBLOCK_BYTES as u64)
}

/// Were it the other way round, a start would miss one of its members.
#[test]
fn the_others_hear_of_a_member_that_is_ready() {
    provoke(Bug::JoinedUnprepared, 2, |seed| {
        let rig = Rig::new(seed, plan(1, 2, 1));
        fill(&rig)?;
        rig.gates[0].hold(1, is_superblock);
        begin_add(&rig, 1);
        rig.pause(SOON);
        assert_eq!(rig.gates[0].held(), 1, "the epoch is on its way");
        rig.crash(KINDS[(seed % 2) as usize]);
        open_with_spare(&rig, 1)?;
        verify(&rig, "after a crash")
    });
}

/// Another change of the superblock is next in line when a member is added, so whoever goes on behind new epochs
/// finds two of them at once. What is open on the failed member is closed all the same, although nobody writes.
#[test]
fn copies_come_back_if_a_member_fails_right_behind_an_addition() {
    survive(4, |seed| {
        let (lost, kept) = ((seed % 2) as usize, 1 - (seed % 2) as usize);
        for after in 0.. {
            let rig = Rig::new(seed, plan(2, 2, 2));
            rig.write(2, 1, 1)?;
            rig.flush()?;
            rig.gates[kept].hold(1, is_superblock);
            begin_add(&rig, 2);
            rig.pause(SOON);
            assert_eq!(rig.gates[kept].held(), 1, "the epoch is on its way");
            let pool = rig.pool();
            rig.world.spawn(Box::pin(async move {
                pool.set_write_amplification_max(200).await.ok();
            }));
            let ops = [Ops::Writes, Ops::Flushes][(seed / 2 % 2) as usize];
            rig.broken[lost].failing.arm(Trigger::every(ops).after(after));
            rig.gates[kept].release();
            rig.pause(SECOND);
            if !told(&rig, EventKind::MemberFailed) {
                assert!(after > 1, "it failed {after} times");
                return Ok(());
            }
            let at = |error: String| format!("after {after}: {error}");
            until_restored(&rig).map_err(at)?;
            rig.crash(KINDS[(after % 2) as usize]);
            rig.offer(&[kept, 2]);
            rig.open().map_err(at)?;
            same("with the new one", rig.read(1).map_err(at)?, 2).map_err(at)?;
        }
        Ok(())
    });
}

/// Writes a block again and again; the version that was flushed last.
fn write_on(rig: &Rc<Rig>) -> Rc<Cell<u64>> {
    let (volume, flushed) = (rig.volume(), Rc::new(Cell::new(0)));
    let told = Rc::clone(&flushed);
    rig.world.spawn(Box::pin(async move {
        for version in 4.. {
            let mut data = Buf::new(BLOCK);
            stamp(version, 0, 8, &mut data);
            let written = volume.write(BLOCK as u64, data.freeze(), false).await;
            if written.is_err() || volume.flush().await.is_err() {
                return;
            }
            told.set(version);
        }
    }));
    flushed
}

/// Where a superblock slot stands.
fn slot(slot: usize) -> Range<u64> {
    let at = Layout::superblock_offset(slot);
    at..at + SUPERBLOCK_BYTES as u64
}

/// One fails between the two superblocks that name another one's coming or going, and comes back with that one
/// alone: the two are most of those whom the last epoch of which they know has named.
#[test]
fn who_comes_or_goes_hears_of_a_member_that_is_left_behind() {
    provoke(Bug::PassersUntold, 4, |seed| {
        let goes = seed % 2 == 1;
        let (mut opened, mut asked) = (0, 0);
        for ios in 1..=60 {
            let rig = Rig::new(seed, plan(if goes { 3 } else { 2 }, 1, 2));
            fill(&rig)?;
            rig.destage()?;
            let (pool, device) = (rig.pool(), Rc::clone(&rig.gates[2]) as _);
            let last = id_of(&rig, rig.pool().superblock().members.len() - 1);
            let flushed = write_on(&rig);
            let failing = Trigger::every(Ops::Writes).within(slot(usize::from(!goes)));
            rig.broken[0].failing.arm(failing);
            let superblocks = Trigger::every(Ops::Writes).within(slot(0).start..slot(1).end);
            rig.broken[2].slow.arm(superblocks);
            rig.world.spawn(Box::pin(async move {
                match goes {
                    true => pool.begin_departure(last).unwrap().end().await.ok(),
                    false => pool.add_member(device).await.ok().map(drop),
                };
            }));
            while rig.broken[0].failing.hits() == 0 {
                rig.pause(MILLISECOND / 1000);
            }
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            rig.world.run_for(SECOND).ok();
            rig.world.crash_at(None);
            rig.crash(KINDS[((seed / 2 + ios) % 2) as usize]);
            let at = |error: String| format!("after {ios} I/Os: {error}");
            [0, 2].iter().for_each(|&member: &usize| rig.broken[member].mend());
            rig.remember(None);
            rig.offer(&[0, 2]);
            let mut open = rig.open();
            if open.as_ref().is_err_and(|e| e.contains("superblock") || e.contains("a Forebay")) {
                rig.offer(&[0]);
                open = rig.open();
            }
            match open {
                Ok(()) => {
                    opened += 1;
                    let (found, flushed) = (rig.read(1).map_err(at)?, flushed.get());
                    if found < flushed {
                        return Err(at(format!("version {found} of {flushed} that was flushed")));
                    }
                }
                Err(error) if error.starts_with("NeedsDecision") => asked += 1,
                Err(error) => return Err(at(error)),
            }
        }
        assert!(opened > 5 && asked > 5, "opened {opened}, asked {asked}");
        Ok(())
    });
}

/// Nobody was told that the new one is a member, and nothing is on it.
#[test]
fn one_that_fails_behind_another_one_is_left_behind_as_well() {
    survive(2, |seed| {
        let (mut refused, copies) = (0, 2 - seed as u8 % 2);
        for after in 0..16 {
            let rig = Rig::new(seed, plan(2, 2, copies));
            fill(&rig)?;
            // With one copy that is all that may be lost.
            rig.destage()?;
            rig.broken[0].failing.arm(Trigger::every(Ops::Writes).within(slot(1)));
            let ops = [Ops::Writes, Ops::Flushes][after as usize % 2];
            rig.broken[2].failing.arm(Trigger::every(ops).after(after / 2));
            let at = |error: String| format!("after {after}: {error}");
            let added = add(&rig, 2).map_err(at)?;
            if rig.pool().events().iter().filter(|e| e.kind == EventKind::MemberFailed).count() == 2
            {
                assert!(added.is_err_and(|error| error.kind == ErrorKind::Io), "after {after}");
                let members = rig.pool().superblock().members;
                let lost = members.iter().filter(|m| m.state == MemberState::Failed).count();
                assert_eq!(lost, 1, "nothing was on the new one: {members:?}, after {after}");
                let missed =
                    members.iter().filter(|m| m.state != MemberState::Present && !m.replaced);
                assert_eq!(missed.count(), 1, "nobody misses it: {members:?}, after {after}");
                refused += 1;
                add(&rig, 3).map_err(at)?.map_err(|error| at(error.to_string()))?;
            }
            assert!(!rig.pool().is_latched(), "after {after}");
            verify(&rig, "at once").map_err(at)?;
            rig.write(2, 1, 1).map_err(at)?;
            rig.flush().map_err(at)?;
            rig.crash(KINDS[(after / 2 % 2) as usize]);
            rig.broken.iter().for_each(|broken| broken.mend());
            rig.offer(&[0, 1, 2, 3]);
            if rig.open().is_err_and(|e| e.contains("superblock") || e.contains("a Forebay")) {
                open_with_spare(&rig, 2).map_err(at)?;
            }
            verify(&rig, "after a crash").map_err(at)?;
        }
        assert!(refused > 2, "refused {refused}");
        Ok(())
    });
}

#[test]
fn what_cannot_be_a_member_is_refused() {
    let rig = Rig::new(1, plan(2, 2, 2));
    let refused = |device: usize, what: &str| {
        let device = Rc::clone(&rig.gates[device]) as Rc<dyn BlockDevice>;
        let error = rig.pool().plan_addition(&device).unwrap_err();
        assert!(error.kind == ErrorKind::Refused && error.what.contains(what), "{error}");
    };
    refused(0, "is a cache device of pool \"pool\" already");
    let plan = rig.pool().plan_addition(&(Rc::clone(&rig.gates[2]) as _)).unwrap();
    assert_eq!((plan.present().count(), plan.epoch), (3, rig.pool().superblock().epoch + 1));
    let full = Rig::new(1, plan_of_eight());
    let device = Rc::clone(&full.gates[8]) as Rc<dyn BlockDevice>;
    let error = full.pool().plan_addition(&device).unwrap_err();
    assert!(error.what.contains("has 8 cache devices"), "{error}");
}

fn plan_of_eight() -> Plan {
    plan(8, 1, 2)
}

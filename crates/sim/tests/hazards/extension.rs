//! A member's device becomes larger, and the pool uses all of it: what was acknowledged stays, whatever
//! is cut off or fails meanwhile, whoever comes back, and what is in the new part is like any other (INV-89).

use std::cell::RefCell;
use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{Request, Runtime};
use forebay_engine::format::{RANGES_MAX, SEGMENTS_MAX, SUPERBLOCK_BYTES, Superblock};
use forebay_engine::ids::DeviceId;
use forebay_engine::planted::Bug;
use forebay_engine::{Error, ErrorKind, EventKind};

use crate::changing::{BLOCKS, add, all_but, fill, id_of, plan, remove, told, verify};
use crate::rig::{KINDS, MEMBER_BYTES, Plan, Rig, SEGMENT_BYTES, SOON, provoke, same, survive};

/// Makes the device of a member larger by so many segments, and a bit that is none.
fn enlarge(rig: &Rig, member: usize, segments: u64) {
    let (old, part) = (size(rig, member), 4096);
    let whole = (old - MEMBER_BYTES) / SEGMENT_BYTES;
    rig.members[member].grow_file(MEMBER_BYTES + (whole + segments) * SEGMENT_BYTES + part);
}

fn size(rig: &Rig, member: usize) -> u64 {
    forebay_device::BlockDevice::geometry(&*rig.members[member]).size_bytes
}

/// Has the pool use all of a member's device; an error of the engine in the inner result.
fn grow(rig: &Rc<Rig>, id: DeviceId) -> Result<Result<(), Error>, String> {
    let pool = rig.pool();
    rig.run(async move { pool.extend_member(id).await })
}

/// Makes a member larger, and the pool with it.
pub(crate) fn grow_by(rig: &Rc<Rig>, member: usize, segments: u64) -> Result<(), String> {
    enlarge(rig, member, segments);
    grow(rig, id_of(rig, member))?.map_err(|error| error.to_string())
}

/// Segments of a member, as its record says.
fn count(rig: &Rig, member: usize) -> u32 {
    rig.pool().superblock().members[member].segments.count()
}

/// Writes until data has come to the new part of every member, and leaves what [`fill`] has left.
fn wear(rig: &Rc<Rig>) -> Result<(), String> {
    for round in 0..24 {
        (0..BLOCKS / 2).try_for_each(|block| rig.write(4 + round, 2 * block, 1))?;
        rig.flush()?;
    }
    (0..BLOCKS / 2).try_for_each(|block| rig.write(3, 2 * block, 1))?;
    rig.flush()
}

#[test]
fn a_member_grows_and_all_of_it_is_used() {
    survive(6, |seed| {
        let (members, copies) = [(3, 2), (1, 1), (2, 2)][(seed % 3) as usize];
        let rig = Rig::new(seed, plan(members, 0, copies));
        fill(&rig)?;
        let (first, mut total) = (count(&rig, 0), rig.pool().segments().1);
        // One after the other, and the first one twice: their numbers lie between each other's.
        for member in (0..members).chain([0]) {
            grow_by(&rig, member, 30)?;
            total += 30;
            assert_eq!(rig.pool().segments().1, total);
            verify(&rig, "at once")?;
        }
        assert!(told(&rig, EventKind::MemberGrown));
        (0..3).try_for_each(|_| wear(&rig))?;
        for member in &rig.members {
            let new = member.peek(MEMBER_BYTES, SEGMENT_BYTES as usize * 30);
            assert!(new.iter().any(|&byte| byte > 0), "nothing was written to what is new");
        }
        verify(&rig, "in use")?;
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.open()?;
        assert_eq!((count(&rig, 0), rig.pool().segments().1), (first + 60, total));
        verify(&rig, "after a crash")?;
        if copies > 1 {
            rig.crash(KINDS[(seed / 2 % 2) as usize]);
            rig.offer(&all_but(members, (seed / 3) as usize % members));
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

/// Whatever was durable of it: the size is the old one or the new one, and the new one if anybody was told.
#[test]
fn a_growth_is_cut_off_at_every_io() {
    survive(6, |seed| {
        let (members, copies) = [(2, 2), (1, 1), (3, 2)][(seed % 3) as usize];
        let (mut old, mut new) = (0, 0);
        for ios in 1.. {
            let luck = seed + ios;
            let rig = Rig::new(seed, plan(members, 0, copies));
            fill(&rig)?;
            let grown = luck as usize % members;
            let before = count(&rig, grown);
            enlarge(&rig, grown, 30);
            // Others wait for what it holds, and go on behind it.
            let writes = [(); 2].map(|()| rig.start_write(2, 1, 1));
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            let ended = matches!(grow(&rig, id_of(&rig, grown)), Ok(Ok(())));
            rig.world.crash_at(None);
            rig.crash(KINDS[(luck % 2) as usize]);
            drop(writes);
            let at = |error: String| format!("after {ios} I/Os: {error}");
            rig.open().map_err(at)?;
            match count(&rig, grown) - before {
                30 => new += 1,
                0 if !ended => old += 1,
                other => return Err(at(format!("{other} more segments"))),
            }
            verify(&rig, "after a crash").map_err(at)?;
            if count(&rig, grown) == before {
                if rig.pool().unused_bytes().is_empty() {
                    // The power cut has taken its size back.
                    enlarge(&rig, grown, 30);
                }
                let id = id_of(&rig, grown);
                grow(&rig, id)?.map_err(|error| at(error.to_string()))?;
            }
            wear(&rig).map_err(at)?;
            rig.crash(KINDS[(luck / 2 % 2) as usize]);
            rig.offer(&match copies {
                1 => (0..members).collect(),
                _ => all_but(members, luck as usize / 3 % members),
            });
            rig.open().map_err(at)?;
            verify(&rig, "in the end").map_err(at)?;
            rig.destage().map_err(at)?;
            (0..BLOCKS).step_by(7).try_for_each(|block| rig.settled(block)).map_err(at)?;
            if ended {
                assert!(old > 2 && new > 2, "old {old}, new {new}");
                return Ok(());
            }
        }
        Ok(())
    });
}

/// Whoever has heard of a growth, and is not there at the next start, is stale when it comes back; the
/// numbers that it knows of mean something else by then.
#[test]
fn one_that_has_heard_of_a_growth_and_comes_back_later_is_stale() {
    survive(3, |seed| {
        for ios in 1.. {
            let rig = Rig::new(seed, plan(3, 1, 2));
            fill(&rig)?;
            let (grown, missing) = ((seed % 3) as usize, ((seed + ios) % 3) as usize);
            enlarge(&rig, grown, 30);
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            let ended = matches!(grow(&rig, id_of(&rig, grown)), Ok(Ok(())));
            rig.world.crash_at(None);
            rig.crash(KINDS[(ios % 2) as usize]);
            let at = |error: String| format!("after {ios} I/Os, without {missing}: {error}");
            rig.offer(&all_but(3, missing));
            rig.open().map_err(at)?;
            verify(&rig, "without it").map_err(at)?;
            // The numbers that were on their way are this one's.
            add(&rig, 3)?.map_err(|error| at(error.to_string()))?;
            wear(&rig).map_err(at)?;
            rig.crash(KINDS[(ios / 2 % 2) as usize]);
            rig.offer(&[0, 1, 2, 3]);
            rig.open().map_err(at)?;
            assert_eq!(rig.pool().superblock().present().count(), 3);
            verify(&rig, "with all").map_err(at)?;
            if ended {
                return Ok(());
            }
        }
        Ok(())
    });
}

/// It or another one, at each of its writes or flushes in turn.
#[test]
fn a_member_fails_while_one_grows() {
    survive(2, |seed| {
        let (mut done, mut failed_itself) = (0, 0);
        for after in 0.. {
            let luck = seed + after;
            let (grown, failed) = (0, (luck % 3) as usize);
            let rig = Rig::new(seed, plan(3, 0, 2));
            fill(&rig)?;
            enlarge(&rig, grown, 30);
            let ops = [Ops::Writes, Ops::Flushes][(luck / 3 % 2) as usize];
            let faults = Rc::clone(&rig.broken[failed].failing);
            faults.arm(Trigger::every(ops).after(after / 6));
            let at = |error: String| format!("{failed} after {after}: {error}");
            let id = id_of(&rig, grown);
            match grow(&rig, id).map_err(at)? {
                Ok(()) => done += 1,
                Err(error) if failed == grown && error.kind != ErrorKind::Refused => {
                    failed_itself += 1;
                }
                Err(error) => return Err(at(error.to_string())),
            }
            assert!(!rig.pool().is_latched(), "{failed} after {after}");
            let hit = faults.hits() > 0;
            verify(&rig, "at once").map_err(at)?;
            wear(&rig).map_err(at)?;
            rig.crash(KINDS[(luck / 3 % 2) as usize]);
            rig.broken[failed].mend();
            rig.open().map_err(at)?;
            verify(&rig, "after a crash").map_err(at)?;
            if !hit && after > 30 {
                assert!(done > 5 && failed_itself > 2, "done {done}, failed {failed_itself}");
                return Ok(());
            }
        }
        Ok(())
    });
}

/// While clients write: more than fits without what is new.
#[test]
fn clients_go_on_while_a_member_grows() {
    survive(6, |seed| {
        let rig = Rig::new(seed, plan(2, 0, 2));
        fill(&rig)?;
        for member in [0, 1] {
            enlarge(&rig, member, 40);
            let (pool, outcome) = (rig.pool(), Rc::new(RefCell::new(None)));
            let (ended, id) = (Rc::clone(&outcome), id_of(&rig, member));
            rig.world.spawn(Box::pin(async move {
                let result = pool.extend_member(id).await;
                *ended.borrow_mut() = Some(result.map_err(|error| error.to_string()));
            }));
            for round in 0..40 {
                (0..BLOCKS).try_for_each(|block| rig.write(2 + round, block, 1))?;
                rig.flush()?;
                if outcome.borrow().is_some() {
                    break;
                }
            }
            outcome.take().expect("it comes to an end while clients write")?;
        }
        (0..BLOCKS).try_for_each(|block| rig.write(7, block, 1))?;
        rig.flush()?;
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.offer(&[(seed / 2 % 2) as usize]);
        rig.open()?;
        (0..BLOCKS).try_for_each(|block| same("a block", rig.read(block)?, 7).map(drop))
    });
}

fn is_flush(request: &Request) -> bool {
    matches!(request, Request::Flush)
}

fn is_superblock(request: &Request) -> bool {
    matches!(request, Request::Write { offset, .. } if *offset < 2 * SUPERBLOCK_BYTES as u64)
}

/// What is acknowledged lies where superblocks say that there are segments.
#[test]
fn nothing_is_put_into_what_is_new_before_that_is_durable() {
    provoke(Bug::ExtendedBeforeDurable, 4, |seed| {
        let rig = Rig::new(seed, Plan { device_deadline_ms: 600_000, ..plan(2, 0, 1) });
        fill(&rig)?;
        (0..2).for_each(|member| enlarge(&rig, member, 30));
        // No superblock reaches a device, and no root makes anything free meanwhile.
        let superblocks = || Trigger::every(Ops::Writes).within(0..2 * SUPERBLOCK_BYTES as u64);
        rig.broken.iter().for_each(|broken| broken.hanging.arm(superblocks()));
        let (pool, id) = (rig.pool(), id_of(&rig, (seed % 2) as usize));
        rig.world.spawn(Box::pin(async move {
            pool.extend_member(id).await.ok();
        }));
        rig.pause(SOON / 10);
        let mut newest = vec![0; BLOCKS as usize];
        'full: for round in 0..60 {
            for block in 0..BLOCKS {
                let done = rig.start_write(4 + round, block, 1);
                for _ in 0..100 {
                    if done.get() {
                        break;
                    }
                    rig.pause(MILLISECOND);
                }
                if !done.get() {
                    newest[block as usize] = 0;
                    break 'full;
                }
                newest[block as usize] = 4 + round;
            }
        }
        rig.crash(Crash::ProcessKill);
        rig.broken.iter().for_each(|broken| broken.mend());
        rig.open()?;
        for (block, version) in newest.iter().enumerate().filter(|(_, version)| **version > 0) {
            same(&format!("block {block}"), rig.read(block as u64)?, *version)?;
        }
        Ok(())
    });
}

/// A file's size may be gone after a power cut: then a superblock that counts on it must not be there.
#[test]
fn a_size_is_durable_before_a_superblock_counts_on_it() {
    provoke(Bug::SizeNotFlushed, 2, |seed| {
        let rig = Rig::new(seed, plan(2, 0, 2));
        fill(&rig)?;
        rig.pause(SECOND);
        let grown = (seed % 2) as usize;
        enlarge(&rig, grown, 30);
        rig.gates[grown].hold(1_000, is_flush);
        rig.gates[1 - grown].hold(1, is_superblock);
        let (pool, id) = (rig.pool(), id_of(&rig, grown));
        rig.world.spawn(Box::pin(async move {
            pool.extend_member(id).await.ok();
        }));
        rig.pause(SOON / 2);
        assert!(rig.gates[grown].held() > 0, "it is being flushed");
        assert_eq!(rig.gates[1 - grown].held(), 0, "a superblock is on its way");
        assert!(rig.pool().unused_bytes().iter().any(|(member, _)| *member == id));
        Ok(())
    });
}

/// Not those of one that was taken out or lost either.
#[test]
fn a_growth_takes_the_numbers_of_nobody_else() {
    survive(6, |seed| {
        let rig = Rig::new(seed, plan(3, 0, 2));
        fill(&rig)?;
        let gone = (seed % 3) as usize;
        let theirs = rig.pool().superblock().members[gone].segments;
        match seed >= 3 {
            true => {
                rig.broken[gone].gone.set(true);
                rig.write(2, 1, 1)?;
                rig.flush()?;
            }
            false => remove(&rig, id_of(&rig, gone))?.map_err(|error| error.to_string())?,
        }
        let staying = all_but(3, gone);
        let ids: Vec<_> = rig.pool().superblock().present().map(|member| member.device).collect();
        for (&member, id) in staying.iter().zip(ids) {
            enlarge(&rig, member, 30);
            grow(&rig, id)?.map_err(|error| error.to_string())?;
            verify(&rig, "at once")?;
        }
        (0..3).try_for_each(|_| wear(&rig))?;
        rig.crash(KINDS[(seed / 2 % 2) as usize]);
        rig.offer(&staying);
        rig.open()?;
        verify(&rig, "after a crash")?;
        let superblock = rig.pool().superblock();
        let ranges = superblock.present().flat_map(|member| member.segments.ranges());
        let given_again = ranges.filter(|range| theirs.overlap(*range)).count();
        assert_eq!(given_again, 0, "{:?}", superblock.members);
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.offer(&[staying[(seed % 2) as usize]]);
        rig.open()?;
        verify(&rig, "with one")
    });
}

#[test]
fn a_member_that_has_grown_is_taken_out_like_any_other() {
    survive(4, |seed| {
        let rig = Rig::new(seed, plan(3, 1, 2));
        fill(&rig)?;
        let grown = (seed % 2) as usize;
        grow_by(&rig, grown, 30)?;
        (0..2).try_for_each(|_| wear(&rig))?;
        let leaving = if seed < 2 { grown } else { 1 - grown };
        remove(&rig, id_of(&rig, leaving))?.map_err(|error| error.to_string())?;
        verify(&rig, "without it")?;
        add(&rig, 3)?.map_err(|error| error.to_string())?;
        wear(&rig)?;
        let mut offered = all_but(4, leaving);
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.offer(&offered);
        rig.open()?;
        verify(&rig, "after a crash")?;
        rig.crash(KINDS[(seed % 2) as usize]);
        offered.remove((seed % 3) as usize);
        rig.offer(&offered);
        rig.open()?;
        verify(&rig, "with one less")
    });
}

#[test]
fn what_cannot_grow_is_refused() {
    let rig = Rig::new(1, plan(2, 0, 1));
    let refused = |member: usize, what: &str| {
        let (id, size) = (id_of(&rig, member), size(&rig, member));
        let error = rig.pool().plan_extension(id, size).unwrap_err();
        assert!(error.kind == ErrorKind::Refused && error.what.contains(what), "{error}");
    };
    refused(0, "no room for a further segment");
    assert_eq!(rig.pool().unused_bytes(), []);
    rig.members[0].grow(MEMBER_BYTES + SEGMENT_BYTES - 4096);
    refused(0, "no room for a further segment");
    let error = rig.pool().plan_extension(DeviceId([9; 16]), MEMBER_BYTES).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound);
    // In turn with the other one, which takes the numbers behind its own each time.
    for _ in 1..RANGES_MAX {
        for member in [0, 1] {
            grow_by(&rig, member, 1).unwrap();
        }
    }
    enlarge(&rig, 0, 1);
    refused(0, "has grown in turn with others so often");
    assert_eq!(rig.pool().unused_bytes(), [(id_of(&rig, 0), SEGMENT_BYTES)]);
    // Nobody's numbers stand behind those of the other one.
    grow_by(&rig, 1, 1).unwrap();
    grow_by(&rig, 1, 1).unwrap();
    fill(&rig).unwrap();
    let departure = rig.pool().begin_departure(id_of(&rig, 0)).unwrap();
    refused(0, "is on its way out");
    drop(departure);
    let whole = Plan { members: 1, ..plan(1, 0, 1) };
    let rig = Rig::new(2, whole);
    rig.stop().unwrap();
    rig.open().unwrap();
    verify_plan(&rig);
}

/// All numbers were given, to members of which most are gone: one that joins could have some of them again.
#[test]
fn a_growth_without_a_number_that_none_had_is_refused() {
    for (members, what_to_do) in [(2, "take it out"), (1, "another pool")] {
        let rig = Rig::new(3, plan(members, 0, 1));
        rig.stop().unwrap();
        for (member, slot) in rig.members.iter().flat_map(|member| [(member, 0), (member, 1)]) {
            let at = slot * SUPERBLOCK_BYTES as u64;
            let known = Superblock::decode(&member.peek(at, SUPERBLOCK_BYTES)).unwrap();
            let used = Superblock { retired_end: SEGMENTS_MAX - 10, ..known };
            member.poke(at, &used.encode());
        }
        rig.open().unwrap();
        grow_by(&rig, 0, 4).unwrap();
        enlarge(&rig, 0, 11);
        let error = rig.pool().plan_extension(id_of(&rig, 0), size(&rig, 0)).unwrap_err();
        let hint = error.hint.clone();
        assert!(error.kind == ErrorKind::Refused && error.what.contains("numbers"), "{error}");
        assert!(hint.contains(what_to_do), "{hint}");
    }
}

/// A plan writes nothing, and says what the growth then does.
fn verify_plan(rig: &Rc<Rig>) {
    enlarge(rig, 0, 5);
    let before = rig.pool().superblock();
    let planned = rig.pool().plan_extension(id_of(rig, 0), size(rig, 0)).unwrap();
    assert_eq!(rig.pool().superblock(), before);
    grow(rig, id_of(rig, 0)).unwrap().unwrap();
    let now = rig.pool().superblock();
    assert_eq!((now.members, now.epoch), (planned.members, before.epoch));
    assert!(now.index_memory_max >= planned.index_memory_max);
}

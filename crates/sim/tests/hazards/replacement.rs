//! A member is replaced in use: another one is added, then it is taken out, or it is gone before or goes on the
//! way. Whatever is cut off, the pool comes up whole, and whoever asks again gets to the end.

use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::{BlockDevice, Runtime};
use forebay_engine::format::{MemberRecord, MemberState};
use forebay_engine::ids::DeviceId;
use forebay_engine::{Error, ErrorKind};

use crate::changing::{BLOCKS, fill, id_of, plan, touch, verify};
use crate::rig::{KINDS, Plan, Rig, SOON, newest, same, survive};

fn is_named(rig: &Rc<Rig>, id: DeviceId) -> bool {
    rig.pool().superblock().present().any(|member| member.device == id)
}

/// What a replacement is made of: it begins where the last one has ended.
fn replace(rig: &Rc<Rig>, old: DeviceId, new: usize) -> Result<Result<(), Error>, String> {
    let (pool, device) = (rig.pool(), Rc::clone(&rig.gates[new]) as Rc<dyn BlockDevice>);
    let runtime = Rc::clone(&rig.world) as Rc<dyn Runtime>;
    rig.run(async move {
        // One that has failed is named until it is left behind.
        let is_named = || pool.superblock().present().any(|member| member.device == old);
        let is_there = || pool.can_pull(old).is_ok_and(|pull| !pull.has_failed);
        match pool.plan_addition(&device) {
            Err(error) if error.what.contains("already") => {}
            Err(error) => return Err(error),
            Ok(_) => {
                if is_there() {
                    pool.plan_replacement(old, &device)?;
                }
                pool.add_member(device).await?;
            }
        }
        if is_there() {
            let ended = match pool.begin_departure(old) {
                Ok(departure) => departure.end().await,
                Err(error) => Err(error),
            };
            if ended.is_err() && is_there() {
                return ended;
            }
        }
        while is_named() && !pool.is_latched() {
            runtime.sleep(SOON / 10).await.result.ok();
        }
        let is_failed = |m: &MemberRecord| m.state == MemberState::Failed;
        // With too few left for the copies that were asked for nothing is made good.
        while pool.superblock().members.iter().any(is_failed) && pool.short_bytes().1 {
            runtime.sleep(SOON / 10).await.result.ok();
        }
        Ok(())
    })
}

/// Opens the pool with these devices, but for those that are no cache devices (any more, or yet).
fn open_with(rig: &Rc<Rig>, devices: &[usize]) -> Result<(), String> {
    let mut offered = devices.to_vec();
    loop {
        rig.offer(&offered);
        match rig.open() {
            Err(error)
                if error.contains("not a Forebay cache device")
                    || error.contains("no readable superblock") =>
            {
                // Nobody says which one; the first that can be left out is.
                let mut blank = offered.iter().copied().filter(|&d| is_blank(rig, d));
                let Some(found) = blank.next() else { return Err(error) };
                offered.retain(|&device| device != found);
            }
            other => return other,
        }
    }
}

fn is_blank(rig: &Rc<Rig>, device: usize) -> bool {
    let device = Rc::clone(&rig.gates[device]);
    rig.run(async move { forebay_engine::read_superblock(&*device).await.is_err() }).unwrap()
}

/// With the old one there until the end.
#[test]
fn a_replacement_is_cut_off_at_every_io() {
    survive(4, |seed| {
        let (members, copies) = [(2, 2), (1, 1), (3, 2), (2, 1)][(seed % 4) as usize];
        let (mut before, mut both, mut after) = (0, 0, 0);
        for ios in 1.. {
            let luck = seed + ios;
            let old = (luck % members as u64) as usize;
            let rig = Rig::new(seed, plan(members, 1, copies));
            fill(&rig)?;
            let id = id_of(&rig, old);
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            let ended = replace(&rig, id, members).is_ok_and(|ended| ended.is_ok());
            rig.world.crash_at(None);
            rig.crash(KINDS[(luck % 2) as usize]);
            let at = |error: String| format!("after {ios} I/Os: {error}");
            open_with(&rig, &(0..=members).collect::<Vec<_>>()).map_err(at)?;
            match (rig.pool().superblock().present().count(), is_named(&rig, id)) {
                (count, true) if count == members => before += 1,
                (count, true) if count == members + 1 => both += 1,
                (count, false) if count == members => after += 1,
                other => return Err(at(format!("{other:?}"))),
            }
            assert!(!ended || !is_named(&rig, id), "after {ios} I/Os");
            verify(&rig, "after a crash").map_err(at)?;
            if is_named(&rig, id) {
                replace(&rig, id, members)?.map_err(|error| at(error.to_string()))?;
            }
            verify(&rig, "when it was asked for again").map_err(at)?;
            rig.write(2, 1, 1).map_err(at)?;
            rig.flush().map_err(at)?;
            rig.crash(KINDS[(luck / 2 % 2) as usize]);
            let mut left: Vec<usize> = (0..=members).filter(|&device| device != old).collect();
            // As many copies as before: one of them may be missing.
            if copies > 1 {
                left.remove(luck as usize % members);
            }
            rig.offer(&left);
            rig.open().map_err(at)?;
            verify(&rig, "in the end").map_err(at)?;
            rig.destage().map_err(at)?;
            (0..BLOCKS).step_by(7).try_for_each(|block| rig.settled(block)).map_err(at)?;
            if ended {
                let seen = format!("before {before}, both {both}, after {after}");
                assert!(before > 5 && both > 5 && after > 1, "{seen}");
                return Ok(());
            }
        }
        Ok(())
    });
}

/// It vanishes on the way, at each of its requests in turn, and where it was before all began.
#[test]
fn the_old_one_vanishes_on_the_way() {
    survive(2, |seed| {
        let mut vanished = 0;
        for ios in (0..).step_by(2) {
            let luck = seed + ios / 2;
            let rig = Rig::new(seed, plan(2, 1, 2));
            fill(&rig)?;
            let old = (luck % 2) as usize;
            let id = id_of(&rig, old);
            let at = |error: String| format!("after {ios} I/Os: {error}");
            if ios == 0 {
                rig.broken[old].gone.set(true);
                rig.write(3, 0, 1)?;
                rig.flush()?;
            } else {
                rig.broken[old].failing.arm(Trigger::every(Ops::All).after(ios));
            }
            replace(&rig, id, 2)?.map_err(|error| at(error.to_string()))?;
            assert!(!rig.pool().is_latched() && !is_named(&rig, id), "after {ios} I/Os");
            let hit = ios == 0 || rig.broken[old].failing.hits() > 0;
            vanished += usize::from(hit);
            assert_eq!(rig.pool().short_bytes(), (0, true), "after {ios} I/Os");
            verify(&rig, "without it").map_err(at)?;
            rig.crash(KINDS[(luck / 2 % 2) as usize]);
            rig.offer(&[[1 - old, 2][(luck / 4 % 2) as usize]]);
            rig.open().map_err(at)?;
            verify(&rig, "with one of them").map_err(at)?;
            rig.destage().map_err(at)?;
            if !hit {
                assert!(vanished > 10, "{vanished}");
                return Ok(());
            }
        }
        Ok(())
    });
}

/// One that cannot hold what has to be kept is refused while nothing has been written to it.
#[test]
fn one_that_is_too_small_for_what_is_dirty_is_refused_before_anything() {
    survive(2, |seed| {
        let large = Plan { origin_bytes: 8 << 20, spare_segments: 160, ..plan(2, 1, 1) };
        let rig = Rig::new(seed, large);
        let small = id_of(&rig, 1);
        replace(&rig, small, 2)?.map_err(|error| error.to_string())?;
        let mut block = 0;
        // More than two of the smaller size may hold.
        while rig.pool().blocks().1 < 900 {
            rig.write(2, block, 8)?;
            block += 8;
        }
        rig.flush()?;
        let id = rig.pool().superblock().present().last().unwrap().device;
        let refused = replace(&rig, id, 1)?.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Refused);
        assert!(refused.what.contains("MiB are dirty"), "{refused}");
        assert!(refused.hint.contains("a larger one"), "{refused}");
        assert!(rig.members[1].peek(0, 4096).iter().all(|&byte| byte == 0), "it was written to");
        assert_eq!(rig.pool().superblock().present().count(), 2);
        rig.destage()?;
        replace(&rig, id, 1)?.map_err(|error| error.to_string())?;
        (0..block).step_by(9).try_for_each(|block| same("kept", rig.read(block)?, 2).map(drop))
    });
}

/// The new one fails after some of its requests. What it has alone by then is lost with it, as with any
/// member; where dirty data has two copies that is nothing.
fn new_one_dies(seed: u64, copies: u8) -> Result<(), String> {
    let (mut died, mut losses) = (0, 0);
    for ios in (1..).step_by(3) {
        let luck = seed + ios;
        let rig = Rig::new(seed, plan(2, 1, copies));
        fill(&rig)?;
        let id = id_of(&rig, (luck % 2) as usize);
        rig.broken[2].failing.arm(Trigger::every(Ops::All).after(ios));
        let at = |error: String| format!("after {ios} I/Os: {error}");
        replace(&rig, id, 2)?.ok();
        // It may have failed behind the last write to it, and a read that fails is no failure of its member: until
        // the next write nobody can tell whether it has lost anything.
        touch(&rig);
        rig.pause(SOON);
        let hit = rig.broken[2].failing.hits() > 0;
        if !hit {
            rig.broken[2].mend();
        }
        died += u64::from(hit);
        let lost = rig.pool().lost_blocks();
        if rig.pool().is_latched() || (lost > 0 && (copies > 1 || !hit)) {
            return Err(at(format!("{lost} blocks are lost")));
        }
        losses += lost;
        let failing: Vec<u64> = (0..BLOCKS).filter(|&block| rig.read(block).is_err()).collect();
        if failing.len() as u64 != lost {
            return Err(at(format!("{lost} blocks are lost, and {failing:?} cannot be read")));
        }
        for block in failing {
            rig.write(newest(block), block, 1).map_err(at)?;
        }
        verify(&rig, "without it").map_err(at)?;
        rig.destage().or_else(|_| rig.destage()).map_err(at)?;
        (0..BLOCKS).step_by(7).try_for_each(|block| rig.settled(block)).map_err(at)?;
        if !hit {
            assert!(died > 10 && (losses > 0) == (copies < 2), "{died} died, {losses} lost");
            return Ok(());
        }
    }
    unreachable!()
}

#[test]
fn the_new_one_dies_on_the_way() {
    survive(2, |seed| new_one_dies(seed, 2));
    survive(2, |seed| new_one_dies(seed, 1));
}

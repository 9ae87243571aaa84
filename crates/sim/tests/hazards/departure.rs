//! A member is taken out of a pool in use: nothing that was acknowledged is lost, whatever is cut off,
//! fails or is called off meanwhile, and it is never taken for a member again.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_device::model::fault::{Faults, Ops, Trigger};
use forebay_device::runtime::{Runtime, SECOND};
use forebay_engine::ids::DeviceId;
use forebay_engine::planted::Bug;
use forebay_engine::{ErrorKind, EventKind, Mode};

use crate::changing::{BLOCKS, all_but, fill, id_of, note_clean, plan, remove, verify};
use crate::rig::{Breakage, KINDS, Plan, Rig, SOON, provoke, same, survive};

/// Opens the pool with all devices that are still cache devices; how many there were.
fn open_with_all(rig: &Rc<Rig>, members: usize, gone: usize) -> Result<usize, String> {
    rig.offer(&(0..members).collect::<Vec<_>>());
    match rig.open() {
        Err(error) if error.contains("not a Forebay cache device") => {
            rig.offer(&all_but(members, gone));
            rig.open().map(|()| members - 1)
        }
        other => other.map(|()| members),
    }
}

#[test]
fn a_member_is_taken_out_and_the_others_have_everything() {
    survive(6, |seed| {
        let (members, copies) = [(3, 2), (2, 1), (4, 3)][(seed % 3) as usize];
        for gone in 0..members {
            let rig = Rig::new(seed, plan(members, 0, copies));
            fill(&rig)?;
            let id = id_of(&rig, gone);
            remove(&rig, id)?.map_err(|error| error.to_string())?;
            assert_eq!(rig.pool().superblock().present().count(), members - 1);
            assert!(rig.pool().events().iter().any(|e| e.kind == EventKind::MemberRemoved));
            // Whatever it is asked for fails from now on.
            rig.broken[gone].gone.set(true);
            verify(&rig, "at once")?;
            rig.write(2, 1, 1)?;
            rig.flush()?;
            verify(&rig, "after a write")?;
            rig.crash(KINDS[(seed % 2) as usize]);
            rig.broken[gone].gone.set(false);
            rig.offer(&[gone]);
            assert!(rig.open().unwrap_err().contains("not a Forebay cache device"));
            rig.offer(&all_but(members, gone));
            rig.open()?;
            verify(&rig, "after a crash")?;
            rig.destage()?;
            (0..BLOCKS).try_for_each(|block| rig.settled(block))?;
            rig.stop()?;
            rig.open()?;
            verify(&rig, "after a stop")?;
        }
        Ok(())
    });
}

/// All that is warm on the others stays warm, and what is hot comes along as far as reclaim may move.
#[test]
fn what_is_cached_on_the_others_is_not_dropped() {
    survive(4, |seed| {
        let rig = Rig::new(seed, plan(3, 0, 2));
        fill(&rig)?;
        let before = rig.pool().blocks().0;
        let id = id_of(&rig, (seed % 3) as usize);
        remove(&rig, id)?.map_err(|error| error.to_string())?;
        let after = rig.pool().blocks().0;
        assert!(after >= before / 3, "{after} blocks of {before} are left");
        Ok(())
    });
}

/// Whatever was durable of it.
#[test]
fn a_removal_is_cut_off_at_every_io() {
    survive(2, |seed| {
        let (members, copies) = [(3, 2), (2, 1)][(seed % 2) as usize];
        let (mut stayed, mut left) = (0, 0);
        for ios in 1.. {
            let luck = seed + ios;
            let gone = (luck % members as u64) as usize;
            let rig = Rig::new(seed, plan(members, 0, copies));
            fill(&rig)?;
            let id = id_of(&rig, gone);
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            let ended = remove(&rig, id).is_ok();
            rig.world.crash_at(None);
            rig.crash(KINDS[(luck / 4 % 2) as usize]);
            let at = |error: String| format!("after {ios} I/Os: {error}");
            open_with_all(&rig, members, gone).map_err(at)?;
            match rig.pool().superblock().present().count() {
                all if all == members => stayed += 1,
                _ => left += 1,
            }
            verify(&rig, "after a crash").map_err(at)?;
            // Asked for again, or gone already.
            match remove(&rig, id)? {
                Err(error) if error.kind != ErrorKind::NotFound => {
                    return Err(at(error.to_string()));
                }
                _ => {}
            }
            verify(&rig, "at last").map_err(at)?;
            rig.crash(KINDS[(luck / 8 % 2) as usize]);
            rig.offer(&all_but(members, gone));
            rig.open().map_err(at)?;
            verify(&rig, "without it").map_err(at)?;
            rig.destage().map_err(at)?;
            (0..BLOCKS).step_by(7).try_for_each(|block| rig.settled(block)).map_err(at)?;
            if ended {
                assert!(stayed > 10 && left > 2, "stayed {stayed}, left {left}");
                return Ok(());
            }
        }
        Ok(())
    });
}

/// It or another one, at each of its requests of a kind in turn; how many requests were given up.
fn one_breaks(
    seed: u64,
    kinds: &[Ops],
    how: fn(&Breakage) -> &Rc<Faults>,
) -> Result<usize, String> {
    let (mut done, mut refused, mut kept) = (0, 0, 0);
    for after in 0.. {
        let luck = seed + after;
        let (gone, failed) = ((luck % 3) as usize, (luck / 2 % 3) as usize);
        let rig = Rig::new(seed, plan(3, 0, 2));
        fill(&rig)?;
        // What breaks is to break for the removal, not for what reclaim has still to do.
        rig.pause(SOON);
        let id = id_of(&rig, gone);
        let ops = kinds[(luck / 3) as usize % kinds.len()];
        let broken = &rig.broken[failed];
        how(broken).arm(Trigger::every(ops).after(after / 3));
        let at = |error: String| format!("{failed} after {after}, {gone} leaves: {error}");
        match remove(&rig, id).map_err(at)? {
            Ok(()) => done += 1,
            Err(error) if error.kind == ErrorKind::Refused => refused += 1,
            Err(error) => return Err(at(error.to_string())),
        }
        assert!(!rig.pool().is_latched(), "{failed} after {after}, {gone} leaves");
        let hit = how(broken).hits() > 0;
        verify(&rig, "at once").map_err(at)?;
        rig.write(2, 1, 1).map_err(at)?;
        rig.flush().map_err(at)?;
        let given_up: usize = rig.pool().given_up().iter().map(|(_, count)| count).sum();
        // What began just now is not late yet.
        assert!(given_up <= broken.stuck.count(), "{failed} after {after}, {gone} leaves");
        kept += given_up;
        if (luck / 8).is_multiple_of(2) {
            // What hung is answered after all.
            broken.mend();
            broken.answer();
            verify(&rig, "after an answer").map_err(at)?;
        }
        rig.crash(KINDS[(luck / 4 % 2) as usize]);
        broken.mend();
        open_with_all(&rig, 3, gone).map_err(at)?;
        verify(&rig, "after a crash").map_err(at)?;
        rig.destage().map_err(at)?;
        (0..BLOCKS).step_by(7).try_for_each(|block| rig.settled(block)).map_err(at)?;
        if !hit && after > 200 {
            assert!(done > 10 && refused > 10, "done {done}, refused {refused}");
            return Ok(kept);
        }
    }
    Ok(kept)
}

#[test]
fn a_member_fails_while_one_is_taken_out() {
    survive(2, |seed| {
        one_breaks(seed, &[Ops::Writes, Ops::Flushes], |broken| &broken.failing).map(drop)
    });
}

#[test]
fn a_member_hangs_while_one_is_taken_out() {
    survive(2, |seed| {
        let kinds = [Ops::Writes, Ops::Flushes, Ops::Reads];
        let kept = one_breaks(seed, &kinds, |broken| &broken.hanging)?;
        assert!(kept > 10, "{kept} requests were given up");
        Ok(())
    });
}

/// Until the epoch without the other one is on its way it goes on with that; from then on it is the last one, though
/// nothing is dirty.
#[test]
fn the_one_that_stays_fails_while_the_other_one_is_taken_out() {
    survive(4, |seed| {
        let (mut went_on, mut latched) = (0, 0);
        for ops in [Ops::Writes, Ops::Flushes] {
            for after in 0.. {
                let luck = seed + after;
                let gone = (luck % 2) as usize;
                let rig = Rig::new(seed, plan(2, 0, 1));
                fill(&rig)?;
                rig.destage()?;
                note_clean(&rig)?.map_err(|error| error.to_string())?;
                let (id, last) = (id_of(&rig, gone), id_of(&rig, 1 - gone));
                let stays = &rig.broken[1 - gone];
                stays.failing.arm(Trigger::every(ops).after(after));
                let at = |error: String| format!("{ops:?} after {after}, {gone} leaves: {error}");
                let ended = remove(&rig, id).map_err(at)?;
                let hit = stays.failing.hits() > 0;
                went_on += u32::from(hit && !rig.pool().is_latched());
                latched += u32::from(rig.pool().is_latched());
                if rig.pool().is_latched() && !rig.was_told(&format!("cache device {last}")) {
                    return Err(at("the pool does not say which one failed".into()));
                }
                stays.mend();
                rig.crash(KINDS[(luck / 2 % 2) as usize]);
                open_with_all(&rig, 2, gone).map_err(at)?;
                verify(&rig, "after a crash").map_err(at)?;
                if !hit {
                    ended.map_err(|error| at(error.to_string()))?;
                    break;
                }
            }
        }
        assert!(went_on > 2 && latched > 2, "{went_on} went on, {latched} latched");
        Ok(())
    });
}

#[test]
fn a_removal_that_is_called_off_leaves_a_member_like_any_other() {
    survive(12, |seed| {
        let rig = Rig::new(seed, plan(3, 0, 2));
        fill(&rig)?;
        let id = id_of(&rig, (seed % 3) as usize);
        let total = rig.pool().segments().1;
        let departure = rig.pool().begin_departure(id).unwrap();
        let again = rig.pool().begin_departure(id).err().map(|error| error.kind);
        assert_eq!(again, Some(ErrorKind::Refused), "one at a time");
        rig.pause(seed * SOON / 8);
        drop(departure);
        verify(&rig, "at once")?;
        assert_eq!(rig.pool().segments().1, total, "it takes new sets again");
        rig.restart(KINDS[(seed % 2) as usize])?;
        verify(&rig, "after a crash")?;
        // One of the others may be lost, also for what was written meanwhile.
        rig.write(2, 1, 1)?;
        rig.flush()?;
        rig.crash(KINDS[(seed / 2 % 2) as usize]);
        rig.offer(&all_but(3, (seed / 3 % 3) as usize));
        rig.open()?;
        verify(&rig, "with two")?;
        remove(&rig, id).map(drop)
    });
}

/// While clients write.
#[test]
fn clients_go_on_while_a_member_is_taken_out() {
    survive(6, |seed| {
        let rig = Rig::new(seed, plan(3, 0, 2));
        fill(&rig)?;
        let id = id_of(&rig, (seed % 3) as usize);
        let (pool, outcome) = (rig.pool(), Rc::new(RefCell::new(None)));
        let ended = Rc::clone(&outcome);
        rig.world.spawn(Box::pin(async move {
            let result = pool.begin_departure(id).unwrap().end().await;
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
        rig.pause(10 * SECOND);
        outcome.take().expect("it comes to an end while clients write")?;
        let last = rig.read(0)?;
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.offer(&all_but(3, (seed % 3) as usize));
        rig.open()?;
        (0..BLOCKS).try_for_each(|block| same("a block", rig.read(block)?, last).map(drop))
    });
}

#[test]
fn what_the_others_could_not_hold_is_refused() {
    let refused = |rig: &Rc<Rig>, id: DeviceId| {
        let error = rig.pool().check_departure(id).unwrap_err();
        assert_eq!(rig.pool().begin_departure(id).err().map(|e| e.kind), Some(error.kind));
        (error.kind, error.what)
    };
    let says = |found: (ErrorKind, String), what: &str| {
        assert!(found.0 == ErrorKind::Refused && found.1.contains(what), "{found:?}");
    };
    let alone = Rig::new(1, plan(1, 0, 1));
    says(refused(&alone, id_of(&alone, 0)), "is the only one");
    let mirror = Rig::new(1, plan(2, 0, 2));
    says(refused(&mirror, id_of(&mirror, 1)), "2 copies were asked for");
    assert_eq!(refused(&mirror, DeviceId([7; 16])).0, ErrorKind::NotFound);
    mirror.ask_for(1).unwrap();
    assert!(mirror.pool().check_departure(id_of(&mirror, 1)).is_ok());
    // More copies cannot be asked for while one is on its way out.
    let departure = mirror.pool().begin_departure(id_of(&mirror, 1)).unwrap();
    assert!(mirror.ask_for(2).unwrap_err().contains("2 dirty copies on 1 cache device"));
    drop(departure);
    let full = Rig::new(1, Plan { mode: Mode::Writeback, origin_bytes: 4 << 20, ..plan(2, 0, 1) });
    // Less than what is destaged by itself, and more than one can hold.
    (0..60).try_for_each(|run| full.write(2, 8 * run, 8)).unwrap();
    says(refused(&full, id_of(&full, 0)), "would fill too much");
    let lost = Rig::new(1, plan(3, 0, 2));
    fill(&lost).unwrap();
    lost.broken[0].gone.set(true);
    lost.write(2, 1, 1).unwrap();
    says(refused(&lost, id_of(&lost, 1)), "was lost");
    let runtime = Rc::clone(&lost.world) as Rc<dyn Runtime>;
    let pool = lost.pool();
    let healed = async move {
        while pool.superblock().members.iter().any(|m| is_failed(m.state)) {
            runtime.sleep(SOON).await.result.ok();
        }
    };
    lost.run(healed).unwrap();
    says(refused(&lost, id_of(&lost, 1)), "2 copies were asked for");
    // Nothing makes good what one of two has taken, before another one is there.
    let short = Rig::new(1, plan(2, 0, 2));
    fill(&short).unwrap();
    short.broken[0].gone.set(true);
    short.write(2, 1, 1).unwrap();
    says(refused(&short, id_of(&short, 1)), "none has taken its place");
}

fn is_failed(state: forebay_engine::format::MemberState) -> bool {
    state == forebay_engine::format::MemberState::Failed
}

#[test]
fn a_member_that_leaves_with_what_only_it_has_is_caught() {
    provoke(Bug::DepartedEarly, 4, |seed| {
        let rig = Rig::new(seed, plan(2, 0, 1));
        fill(&rig)?;
        let gone = (seed % 2) as usize;
        let id = id_of(&rig, gone);
        remove(&rig, id)?.map_err(|error| error.to_string())?;
        verify(&rig, "at once")?;
        rig.crash(KINDS[(seed % 2) as usize]);
        rig.offer(&all_but(2, gone));
        rig.open()?;
        verify(&rig, "after a crash")
    });
}

/// Facts go to those that stay: here to one, which fails, and the one that was to leave is all that is left.
#[test]
fn a_write_through_does_not_fail_with_the_only_one_that_stays() {
    survive(4, |seed| {
        for nth in 0..4 {
            let mode = Mode::Writethrough;
            let rig = Rig::new(seed, Plan { members: 2, mode, ..Plan::default() });
            for block in (0..BLOCKS).chain(0..BLOCKS) {
                rig.read(block)?;
            }
            rig.flush()?;
            let pool = rig.pool();
            let departure =
                pool.begin_departure(id_of(&rig, 0)).map_err(|error| error.to_string())?;
            rig.broken[1].failing.arm(Trigger::every(Ops::Writes).after(nth));
            for block in 0..BLOCKS {
                rig.write(2, block, 1).map_err(|error| format!("write {nth}, {block}: {error}"))?;
            }
            assert_eq!(rig.told(EventKind::MemberFailed), 1);
            rig.flush()?;
            drop((departure, pool));
            rig.crash(KINDS[(seed % 2) as usize]);
            rig.broken[1].mend();
            rig.offer(&[0]);
            rig.open()?;
            (0..BLOCKS).try_for_each(|block| same("after it", rig.read(block)?, 2).map(drop))?;
        }
        Ok(())
    });
}

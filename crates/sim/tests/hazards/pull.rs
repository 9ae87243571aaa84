//! Whether a member can be pulled: what is answered is what happens. And what the answer rests on with one copy:
//! that nothing is dirty is noted durably, whatever is written or cut off meanwhile.

use std::rc::Rc;

use forebay_device::Runtime;
use forebay_device::model::fault::{Ops, Trigger};
use forebay_engine::{ErrorKind, EventKind, Hold, Mode, Pull};

use crate::changing::{id_of, note_clean, plan};
use crate::rig::{KINDS, Plan, Rig, SOON, same, survive};

const BLOCKS: u64 = 40;

fn write_all(rig: &Rc<Rig>, version: u64) -> Result<(), String> {
    (0..BLOCKS).try_for_each(|block| rig.write(version, block, 1))?;
    rig.flush()
}

fn verify(rig: &Rc<Rig>, version: u64, when: &str) -> Result<(), String> {
    (0..BLOCKS).try_for_each(|block| {
        same(&format!("block {block} {when}"), rig.read(block)?, version).map(drop)
    })
}

fn ask(rig: &Rig, member: usize) -> Pull {
    rig.pool().can_pull(id_of(rig, member)).unwrap()
}

/// Has the pool use every member.
fn touch(rig: &Rc<Rig>) -> bool {
    let pool = rig.pool();
    rig.run(async move { pool.set_write_amplification_max(200).await }).unwrap().is_ok()
}

#[test]
fn what_is_answered_is_what_happens() {
    survive(96, |seed| {
        let (members, copies) = [(1, 1), (2, 1), (2, 2), (3, 2), (3, 1), (3, 3)][seed as usize % 6];
        let rig = Rig::new(seed, Plan { agreed: true, ..plan(members, 0, copies) });
        write_all(&rig, 2)?;
        if seed / 6 % 2 == 1 {
            rig.destage()?;
        }
        if seed / 12 % 2 == 1 {
            note_clean(&rig)?.map_err(|error| error.to_string())?;
        }
        let pulled = (seed / 3) as usize % members;
        // Another one before, which may be made good by then.
        if seed / 24 % 2 == 1 && members > 1 {
            let other = (pulled + 1) % members;
            let safe = ask(&rig, other).held_by.is_none();
            rig.broken[other].gone.set(safe);
            touch(&rig);
            if safe && seed / 48 % 2 == 1 {
                rig.pause(100 * SOON);
            }
        }
        let pull = ask(&rig, pulled);
        rig.broken[pulled].gone.set(true);
        let goes_on = touch(&rig);
        let loses = pull.held_by == Some(Hold::OnlyCopy);
        assert_eq!(goes_on, loses || pull.held_by.is_none(), "{pull:?}");
        assert_eq!(rig.pool().is_latched(), !goes_on, "{pull:?}");
        if !goes_on {
            return Ok(());
        }
        let lost = (0..BLOCKS).filter(|&block| rig.read(block).is_err()).count() as u64;
        assert_eq!((lost > 0, lost * 4096), (loses, pull.only_dirty_bytes), "{pull:?}");
        if loses {
            return write_all(&rig, 3).map_or_else(|_| write_all(&rig, 3), Ok);
        }
        let restored = |event: &forebay_engine::Event| event.kind == EventKind::CopiesRestored;
        let has_copies = pull.short_bytes == 0 || pull.copied_again;
        verify(&rig, 2, "without it")?;
        write_all(&rig, 3)?;
        rig.pause(100 * SOON);
        let is_restored = rig.pool().events().iter().any(restored);
        assert!(is_restored || !pull.copied_again, "{pull:?}");
        assert!(has_copies || rig.pool().short_bytes().0 > 0 || rig.pool().blocks().1 == 0);
        verify(&rig, 3, "in the end")
    });
}

/// Each answer for the reason that it has.
#[test]
fn each_reason_is_the_one_that_counts() {
    survive(2, |seed| {
        let why = |rig: &Rig, member| ask(rig, member).held_by;
        let rig = Rig::new(seed, plan(1, 0, 1));
        assert_eq!(why(&rig, 0), Some(Hold::Last));

        let rig = Rig::new(seed, plan(2, 0, 1));
        assert_eq!((why(&rig, 0), why(&rig, 1)), (None, None), "nothing was ever dirty");
        write_all(&rig, 2)?;
        let both = [0, 1].map(|member| ask(&rig, member));
        let only: u64 = both.iter().map(|pull| pull.only_dirty_bytes).sum();
        assert_eq!(only, BLOCKS * 4096, "each block is on one of them");
        for pull in both {
            let expected = (pull.only_dirty_bytes > 0).then_some(Hold::OnlyCopy);
            assert_eq!(pull.held_by, expected);
        }
        rig.destage()?;
        assert_eq!((why(&rig, 0), why(&rig, 1)), (None, None), "the index knows it");
        let clean: u64 = [0, 1].map(|member| ask(&rig, member).only_clean_bytes).iter().sum();
        assert_eq!(clean, BLOCKS * 4096);

        let rig = Rig::new(seed, Plan { agreed: false, ..plan(2, 0, 2) });
        write_all(&rig, 2)?;
        let pull = ask(&rig, 0);
        assert_eq!((pull.held_by, pull.only_dirty_bytes), (None, 0));
        assert_eq!((pull.short_bytes, pull.copied_again), (BLOCKS * 4096, false));
        assert_eq!(pull.written_through, ["v"], "with one copy it is not written back");
        rig.broken[1].gone.set(true);
        assert!(touch(&rig));
        assert_eq!(why(&rig, 0), Some(Hold::Last));
        let gone = rig.pool().can_pull(id_of(&rig, 1)).unwrap_err();
        assert_eq!(gone.kind, ErrorKind::NotFound);

        let rig = Rig::new(seed, Plan { agreed: false, ..plan(3, 0, 2) });
        write_all(&rig, 2)?;
        let pull = ask(&rig, 0);
        assert!(pull.copied_again && pull.written_through.is_empty() && pull.held_by.is_none());
        rig.broken[1].gone.set(true);
        assert!(touch(&rig));
        let held = [0, 2].map(|member| why(&rig, member));
        assert!(held.contains(&Some(Hold::OnlyCopy)), "until copies are restored: {held:?}");
        rig.pause(100 * SOON);
        assert_eq!((why(&rig, 0), why(&rig, 2)), (None, None));
        rig.witness_refuses.set(true);
        touch(&rig);
        assert_eq!(why(&rig, 0), Some(Hold::Witness));
        rig.broken[0].gone.set(true);
        assert!(!touch(&rig) && rig.pool().is_latched());
        assert_eq!(why(&rig, 2), Some(Hold::Latched));
        Ok(())
    });
}

/// What a copy is worth on a member that has returned damage nobody knows, until nothing is dirty.
#[test]
fn beside_a_member_that_has_returned_damage_the_other_one_stays_while_anything_is_dirty() {
    survive(4, |seed| {
        let why = |rig: &Rig| [0, 1].map(|member| ask(rig, member).held_by);
        let plan = Plan { agreed: false, verify_reads: true, ..plan(2, 0, 2) };
        let rig = Rig::new(seed, plan);
        write_all(&rig, 2)?;
        assert_eq!(why(&rig), [None, None]);
        rig.broken[0].flipping.arm(Trigger::every(Ops::Reads));
        let is_damaged = || rig.pool().damaged_blocks().iter().any(|(_, blocks)| *blocks > 0);
        for block in 0..BLOCKS {
            same("from the other copy", rig.read(block)?, 2)?;
            if is_damaged() {
                break;
            }
        }
        rig.broken[0].flipping.disarm();
        assert!(is_damaged());
        assert_eq!(why(&rig), [None, Some(Hold::Doubted)]);
        rig.destage()?;
        assert_eq!(why(&rig), [None, None], "every origin has all of its data");
        Ok(())
    });
}

/// With writes beside it, cut off at every I/O: what was acknowledged is there, and where it was noted that
/// nothing is dirty, one of the two may be missing.
#[test]
fn that_nothing_is_dirty_is_noted_while_clients_write() {
    survive(2, |seed| {
        let (mut asked, mut missing) = (0, 0);
        for ios in 1.. {
            let luck = seed + ios;
            let rig = Rig::new(seed, Plan { mode: Mode::Writeback, ..plan(2, 0, 1) });
            write_all(&rig, 2)?;
            rig.destage()?;
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            let volume = rig.volume();
            let writes = luck % 3 == 0;
            let done = writes.then(|| rig.start_write(3, luck % BLOCKS, 1));
            let noted = rig.run(async move { volume.note_clean().await });
            let runtime = Rc::clone(&rig.world) as Rc<dyn Runtime>;
            rig.run(async move { runtime.sleep(SOON).await.result.ok() }).ok();
            let done = done.is_some_and(|done| done.get());
            let flushed = rig.flush().is_ok();
            let acknowledged = done && flushed;
            rig.world.crash_at(None);
            rig.crash(KINDS[(luck / 3 % 2) as usize]);
            let at = |error: String| format!("after {ios} I/Os: {error}");
            let without = (luck / 6 % 2) as usize;
            rig.offer(&[1 - without]);
            match rig.open() {
                Ok(()) if acknowledged => return Err(at("dirty, and nobody was asked".into())),
                Ok(()) => missing += 1,
                Err(error) if error.starts_with("NeedsDecision") => {
                    asked += 1;
                    rig.offer(&[0, 1]);
                    rig.open().map_err(at)?;
                }
                Err(error) => return Err(at(error)),
            }
            for block in 0..BLOCKS {
                let is_new = writes && block == luck % BLOCKS;
                let found = rig.read(block).map_err(at)?;
                let fits = match is_new {
                    true if acknowledged => found == 3,
                    true => found == 2 || found == 3,
                    false => found == 2,
                };
                if !fits {
                    return Err(at(format!("block {block} is {found}")));
                }
            }
            if noted.is_ok() && flushed && ios > 60 {
                assert!(asked > 9 && missing > 9, "asked {asked}, missing {missing}");
                return Ok(());
            }
        }
        Ok(())
    });
}

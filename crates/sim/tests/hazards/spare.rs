//! A spare takes the place of a member that was lost: whatever is cut off or fails meanwhile, the device is a
//! spare or a member, and the superblocks say that the lost one is replaced exactly if it is a member.

use std::rc::Rc;

use forebay_device::BlockDevice;
use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::runtime::SECOND;
use forebay_engine::format::{MemberState, Spare};
use forebay_engine::ids::DeviceId;
use forebay_engine::planted::Bug;
use forebay_engine::{Error, ErrorKind, EventKind, read_spare, unmark};

use crate::changing::{self, fill, id_of, told, verify};
use crate::rig::{KINDS, Plan, Rig, SOON, provoke, survive};

/// The first two are members, the third is the spare, and the fourth another one.
fn plan() -> Plan {
    changing::plan(2, 2, 2)
}

fn device(rig: &Rc<Rig>, number: usize) -> Rc<dyn BlockDevice> {
    Rc::clone(&rig.gates[number]) as _
}

fn mark(rig: &Rc<Rig>, number: usize) -> Result<Result<Spare, Error>, String> {
    let (pool, device) = (rig.pool(), device(rig, number));
    rig.run(async move { pool.mark_spare(&device).await })
}

fn marked(rig: &Rc<Rig>, number: usize) -> Result<Option<Spare>, String> {
    let device = device(rig, number);
    rig.run(async move { read_spare(&*device).await })?.map_err(|error| error.to_string())
}

fn take(rig: &Rc<Rig>, number: usize, lost: DeviceId) -> Result<Result<DeviceId, Error>, String> {
    let (pool, device) = (rig.pool(), device(rig, number));
    rig.run(async move { pool.add_member_for(device, lost).await })
}

/// Has a member fail; its identity, once an epoch has left it behind.
fn lose(rig: &Rc<Rig>, lost: usize) -> Result<DeviceId, String> {
    let id = id_of(rig, lost);
    rig.broken[lost].gone.set(true);
    rig.write(2, 1, 1)?;
    rig.flush()?;
    rig.pause(SECOND);
    let superblock = rig.pool().superblock();
    assert!(superblock.members.iter().any(|m| m.device == id && m.state == MemberState::Failed));
    Ok(id)
}

/// Whether the superblock says that this one is replaced; `None` if it says nothing of it any more.
fn replaced(rig: &Rc<Rig>, lost: DeviceId) -> Option<bool> {
    let superblock = rig.pool().superblock();
    let record = superblock.members.iter().find(|member| member.device == lost);
    record.map(|member| member.replaced)
}

fn until_restored(rig: &Rc<Rig>) -> Result<(), String> {
    for _ in 0..100 {
        let superblock = rig.pool().superblock();
        if superblock.members.iter().all(|member| member.state != MemberState::Failed) {
            return Ok(());
        }
        rig.pause(SOON);
    }
    Err("the copies are not restored".into())
}

/// Opens the pool with what is left, and with the spare if that is a member by now; whether it is.
fn open_with(rig: &Rc<Rig>, left: usize, spare: usize) -> Result<bool, String> {
    let is_spare = marked(rig, spare)?.is_some();
    rig.offer(&if is_spare { vec![left] } else { vec![left, spare] });
    rig.open()?;
    Ok(!is_spare)
}

#[test]
fn a_spare_is_taken_and_cut_off_at_every_io() {
    provoke(Bug::SpareErased, 2, |seed| {
        let lost = (seed % 2) as usize;
        let mut outcomes = [0; 2];
        for ios in 1.. {
            let at = |error: String| format!("after {ios} I/Os: {error}");
            let rig = Rig::new(seed, plan());
            fill(&rig)?;
            let mark = mark(&rig, 2)?.map_err(|error| error.to_string())?;
            let id = lose(&rig, lost)?;
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            let ended = take(&rig, 2, id).is_ok();
            rig.world.crash_at(None);
            rig.crash(KINDS[((seed + ios) % 2) as usize]);
            let taken = open_with(&rig, 1 - lost, 2).map_err(at)?;
            outcomes[usize::from(taken)] += 1;
            assert!(taken || !ended, "after {ios} I/Os");
            let count = rig.pool().superblock().present().count();
            assert_eq!(count, if taken { 2 } else { 1 }, "after {ios} I/Os");
            assert_eq!(replaced(&rig, id), Some(taken), "after {ios} I/Os");
            verify(&rig, "after a crash").map_err(at)?;
            if !taken {
                assert_eq!(marked(&rig, 2)?, Some(mark), "after {ios} I/Os");
                take(&rig, 2, id)?.map_err(|error| at(error.to_string()))?;
                assert_eq!(replaced(&rig, id), Some(true), "after {ios} I/Os");
            }
            until_restored(&rig).map_err(at)?;
            rig.crash(KINDS[(ios / 2 % 2) as usize]);
            rig.offer(&[[1 - lost, 2][(ios / 4 % 2) as usize]]);
            rig.open().map_err(at)?;
            verify(&rig, "with one of the two").map_err(at)?;
            if ended {
                assert!(outcomes.iter().all(|&times| times > 5), "{outcomes:?}");
                return Ok(());
            }
        }
        Ok(())
    });
}

/// It fails at each of its requests in turn; then the next one takes the place.
#[test]
fn a_spare_that_fails_leaves_the_place_to_the_next_one() {
    survive(2, |seed| {
        let lost = (seed % 2) as usize;
        let (mut refused, mut left) = (0, 0);
        for after in 0.. {
            let at = |error: String| format!("after {after}: {error}");
            let rig = Rig::new(seed, plan());
            fill(&rig)?;
            for number in [2, 3] {
                mark(&rig, number)?.map_err(|error| at(error.to_string()))?;
            }
            let id = lose(&rig, lost)?;
            let failing = &rig.broken[2].failing;
            failing.arm(Trigger::every(Ops::All).after(after));
            let taken = match take(&rig, 2, id)? {
                Ok(_) => true,
                Err(error) if error.kind == ErrorKind::Io => false,
                Err(error) => return Err(at(error.to_string())),
            };
            rig.pause(SECOND);
            verify(&rig, "at once").map_err(at)?;
            let hit = failing.hits() > 0;
            if taken {
                // It may be needed by now: then the pool stops, as with any other one.
                assert_eq!(replaced(&rig, id), Some(true), "after {after}");
                left += 1;
            } else {
                assert_eq!(replaced(&rig, id), Some(false), "after {after}");
                refused += 1;
                take(&rig, 3, id)?.map_err(|error| at(error.to_string()))?;
                until_restored(&rig).map_err(at)?;
                rig.crash(KINDS[((seed + after) % 2) as usize]);
                rig.broken[2].mend();
                rig.offer(&[[1 - lost, 3][(after % 2) as usize]]);
                rig.open().map_err(at)?;
                verify(&rig, "with one of the two").map_err(at)?;
            }
            if !hit {
                assert!(refused > 3 && left > 0, "refused {refused}, left {left}");
                return Ok(());
            }
        }
        Ok(())
    });
}

/// Whatever of a mark is durable, the pool opens without the device, and it can be marked again; nor does it go
/// with the members, whoever offers it.
#[test]
fn a_mark_is_cut_off_at_every_io_and_is_no_member() {
    survive(2, |seed| {
        let mut outcomes = [0; 2];
        for ios in 1.. {
            let at = |error: String| format!("after {ios} I/Os: {error}");
            let rig = Rig::new(seed, plan());
            fill(&rig)?;
            if seed % 2 == 1 {
                // It was a spare before.
                mark(&rig, 2)?.map_err(|error| error.to_string())?;
            }
            let epoch = rig.pool().superblock().epoch;
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            let ended = mark(&rig, 2).is_ok();
            rig.world.crash_at(None);
            rig.crash(KINDS[((seed + ios) % 2) as usize]);
            outcomes[usize::from(marked(&rig, 2).map_err(at)?.is_some())] += 1;
            rig.offer(&[0, 1, 2]);
            assert!(rig.open().is_err(), "it is opened with the pool after {ios} I/Os");
            rig.offer(&[0, 1]);
            rig.open().map_err(at)?;
            assert_eq!(rig.pool().superblock().epoch, epoch, "after {ios} I/Os");
            verify(&rig, "after a crash").map_err(at)?;
            let again = mark(&rig, 2)?.map_err(|error| at(error.to_string()))?;
            assert_eq!(marked(&rig, 2)?, Some(again));
            let spare = device(&rig, 2);
            rig.run(async move { unmark(&*spare).await })?.map_err(|error| error.to_string())?;
            assert_eq!(marked(&rig, 2)?, None);
            if ended {
                assert!(outcomes.iter().all(|&times| times > 0), "{outcomes:?}");
                return Ok(());
            }
        }
        Ok(())
    });
}

/// It stays one if something else is in the way, and a member that is still there is not replaced by it.
#[test]
fn a_spare_that_cannot_be_taken_stays_one() {
    let rig = Rig::new(1, plan());
    fill(&rig).unwrap();
    let mark = mark(&rig, 2).unwrap().unwrap();
    let present = rig.pool().superblock().members[0].device;
    let small = Rig::new(1, Plan { spare_segments: 24, ..plan() });
    let error = small.pool().plan_spare(&device(&small, 2)).unwrap_err();
    assert!(error.kind == ErrorKind::Refused && error.what.contains("too small"), "{error}");
    let error = rig.pool().plan_spare(&device(&rig, 0)).unwrap_err();
    assert!(error.what.contains("is a cache device of pool \"pool\" already"), "{error}");
    // The newest root can be read nowhere, and what fails is not the spare.
    for broken in &rig.broken[..2] {
        broken.failing.arm(Trigger::every(Ops::Reads));
    }
    assert_eq!(take(&rig, 2, present).unwrap().unwrap_err().kind, ErrorKind::Io);
    rig.broken[..2].iter().for_each(|broken| broken.mend());
    assert_eq!(marked(&rig, 2).unwrap(), Some(mark));
    take(&rig, 2, present).unwrap().unwrap();
    assert_eq!((marked(&rig, 2).unwrap(), replaced(&rig, present)), (None, Some(false)));
    assert!(told(&rig, EventKind::MemberAdded));
    verify(&rig, "afterwards").unwrap();
}

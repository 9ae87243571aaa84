//! Fewer members are left than dirty data has copies: whatever clients change meanwhile and whatever the origin does,
//! nobody waits for ever, and protection ends.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{Buf, Nanos, Request, Runtime};
use forebay_engine::bypass::Reason;
use forebay_engine::planted::Bug;
use forebay_engine::{CopiesChange, EventKind, Mode, Redundancy, Result as EngineResult, Volume};

use crate::changing::{add, told};
use crate::noted::withheld;
use crate::rig::{BLOCK, Plan, Rig, SOON, lazy, provoke, same, survive};

const BLOCK_LEN: u64 = BLOCK as u64;

/// So many dirty blocks, `apart` blocks from each other, whose second copy has been lost. The origin's requests of a
/// kind are held from before that.
fn protected(
    seed: u64,
    (blocks, apart): (u64, u64),
    held: fn(&Request) -> bool,
) -> Result<Rc<Rig>, String> {
    let (origin_bytes, tuning) = (4 << 20, lazy());
    let plan = Plan {
        members: 2,
        spares: 1,
        copies: 2,
        agreed: false,
        origin_bytes,
        tuning,
        ..Plan::default()
    };
    let rig = Rig::new(seed, plan);
    (0..blocks).try_for_each(|block| rig.write(2, block * apart, 1))?;
    rig.origin_gate.hold(usize::MAX, held);
    rig.broken[(seed % 2) as usize].failing.arm(Trigger::every(Ops::Flushes).times(1));
    rig.flush()?;
    Ok(rig)
}

fn is_flush(request: &Request) -> bool {
    matches!(request, Request::Flush)
}

fn is_write(request: &Request) -> bool {
    matches!(request, Request::Write { .. })
}

/// Writes a block until that has to wait: what says whether it has ended.
fn write_until_waiting(rig: &Rc<Rig>, block: u64) -> Result<Rc<Cell<bool>>, String> {
    for version in 3..30 {
        let write = rig.start_write(version, block, 1);
        rig.pause(SOON);
        if !write.get() {
            return Ok(write);
        }
    }
    Err("no write has to wait".to_owned())
}

fn let_go(rig: &Rig) {
    rig.origin_gate.hold(0, |_| false);
    rig.origin_gate.release();
}

fn dirty(rig: &Rig) -> u64 {
    rig.pool().blocks().1
}

#[test]
fn nobody_waits_for_an_origin_whose_flushes_fail() {
    survive(4, |seed| {
        let rig = protected(seed, (20, 1), is_flush)?;
        rig.origin_broken.failing.arm(Trigger::every(Ops::Flushes));
        let_go(&rig);
        let writes: Vec<_> = (3..40)
            .map(|version| {
                let write = rig.start_write(version, 0, 1);
                rig.pause(SOON);
                write
            })
            .collect();
        rig.pause(SECOND);
        assert!(writes.iter().all(|write| write.get()), "logged with the copy that is left");
        // Nor does the end of the volume wait for a client: it says that the origin did not take everything.
        let (pool, ended) = (rig.pool(), Rc::new(Cell::new(false)));
        let end = Rc::clone(&ended);
        rig.world.spawn(Box::pin(async move {
            pool.remove_volume("v").await.unwrap_err();
            end.set(true);
        }));
        rig.pause(20 * SECOND);
        assert!(ended.get());
        rig.origin_broken.mend();
        rig.destage()?;
        rig.settled(5)
    });
}

/// An origin that takes its time is waited for, and so it comes to its end.
#[test]
fn slow_flushes_do_not_keep_protection_from_ending() {
    provoke(Bug::ProtectionWithoutEnd, 3, |seed| {
        let rig = protected(seed, (20, 1), is_flush)?;
        let slow = Rc::clone(&rig);
        rig.world.spawn(Box::pin(async move {
            loop {
                let rt = slow.runtime();
                while slow.origin_gate.held() == 0 {
                    rt.sleep(10 * MILLISECOND).await.result.ok();
                }
                rt.sleep(1500 * MILLISECOND).await.result.ok();
                slow.origin_gate.release();
            }
        }));
        let (begun, mut version) = (rig.world.now(), 3);
        while rig.world.now() - begun < 60 * SECOND {
            rig.write(version, version % 2, 1)?;
            rig.pause(MILLISECOND);
            version += 1;
        }
        match dirty(&rig) {
            0 => Ok(()),
            blocks => Err(format!("{blocks} blocks stay dirty in one copy")),
        }
    });
}

/// Zeroes or trims two blocks again and again.
fn change(seed: u64, change: impl Fn(Rc<Volume>, u64) -> Change) -> Result<(), String> {
    let rig = protected(seed, (20, 1), |_| false)?;
    for round in 0..4000 {
        let changed = change(rig.volume(), round % 2 * BLOCK_LEN);
        rig.run(changed)?.map_err(|error| error.to_string())?;
        if round % 4 == 3 {
            rig.flush()?;
        }
    }
    match dirty(&rig) {
        0 => Ok(()),
        blocks => Err(format!("{blocks} blocks stay dirty in one copy")),
    }
}

type Change = std::pin::Pin<Box<dyn Future<Output = EngineResult<()>>>>;

#[test]
fn zeroing_what_is_dirty_does_not_keep_protection_from_ending() {
    provoke(Bug::ProtectionWithoutEnd, 6, |seed| {
        change(seed, |volume, at| {
            Box::pin(async move { volume.write_zeroes(at, BLOCK_LEN, false).await })
        })
    });
}

#[test]
fn trimming_what_is_dirty_does_not_keep_protection_from_ending() {
    provoke(Bug::ProtectionWithoutEnd, 6, |seed| {
        change(seed, |volume, at| Box::pin(async move { volume.trim(at, BLOCK_LEN, false).await }))
    });
}

/// What somebody waits for is destaged before all that nobody waits for.
#[test]
fn who_waits_does_not_wait_for_everything_that_is_dirty() {
    survive(4, |seed| {
        let rig = protected(seed, (250, 2), is_write)?;
        // The last one in address order.
        let waits = write_until_waiting(&rig, 249 * 2)?;
        let mut rounds = 0;
        while !waits.get() {
            rig.origin_gate.release();
            rig.pause(SOON);
            rounds += 1;
        }
        assert!(dirty(&rig) > 50, "{} blocks are left after {rounds} rounds", dirty(&rig));
        let_go(&rig);
        rig.pause(20 * SECOND);
        assert_eq!(dirty(&rig), 0);
        Ok(())
    });
}

/// What frees who waits: the span that it may take has passed, or there is nothing to wait for any more.
fn frees(seed: u64, within: Nanos, act: impl Fn(&Rc<Rig>)) -> Result<(), String> {
    let rig = protected(seed, (20, 1), is_flush)?;
    let waits = write_until_waiting(&rig, 0)?;
    act(&rig);
    rig.pause(within);
    if !waits.get() {
        return Err("it still waits".to_owned());
    }
    let_go(&rig);
    Ok(())
}

#[test]
fn who_waits_is_freed_when_the_origin_does_not_answer() {
    survive(3, |seed| frees(seed, 12 * SECOND, |_| ()));
}

#[test]
fn who_waits_is_freed_by_another_mode() {
    survive(3, |seed| {
        frees(seed, SECOND, |rig| {
            let volume = rig.volume();
            let set = async move { volume.set_mode(Mode::Writethrough).await };
            rig.run(set).unwrap().unwrap();
        })
    });
}

#[test]
fn who_waits_is_freed_by_the_end_of_the_pool() {
    survive(3, |seed| {
        frees(seed, SECOND, |rig| {
            *rig.volume.borrow_mut() = None;
            let pool = rig.pool.take().unwrap();
            rig.world.spawn(Box::pin(async move {
                Rc::into_inner(pool).unwrap().stop().await.ok();
            }));
        })
    });
}

#[test]
fn who_waits_is_freed_by_a_latch() {
    survive(3, |seed| {
        frees(seed, 2 * SECOND, |rig| {
            rig.broken.iter().for_each(|broken| broken.gone.set(true));
            rig.start_write(9, 10, 1);
        })
    });
}

/// A request that nobody waits for any more has its origin flushed for nobody.
#[test]
fn who_has_left_is_not_waited_for() {
    survive(3, |seed| {
        let rig = protected(seed, (20, 1), is_flush)?;
        write_until_waiting(&rig, 0)?;
        let (volume, rt) = (rig.volume(), rig.runtime());
        let waited = rig.run(async move {
            let mut write = Box::pin(volume.write(0, Buf::zeroed(BLOCK).freeze(), false));
            let mut timer = rt.sleep(SOON);
            std::future::poll_fn(|cx| match write.as_mut().poll(cx) {
                std::task::Poll::Ready(_) => std::task::Poll::Ready(false),
                std::task::Poll::Pending => std::pin::Pin::new(&mut timer).poll(cx).map(|_| true),
            })
            .await
        })?;
        assert!(waited);
        let_go(&rig);
        rig.pause(20 * SECOND);
        assert_eq!(dirty(&rig), 0);
        let flushes = || rig.pool().counters().origin_flushes.get();
        let before = flushes();
        for round in 0..100 {
            rig.write(40 + round, round % 20, 1)?;
            rig.pause(100 * MILLISECOND);
        }
        assert!(flushes() - before < 20, "{} flushes", flushes() - before);
        Ok(())
    });
}

/// Write requests that went past the cache because too few members are left.
pub fn past(rig: &Rig) -> u64 {
    rig.pool().bypass().of(Reason::Protection).write_requests.get()
}

/// From the very instant on that the pool goes on with too few members, whatever has to be done before it acts on it.
#[test]
fn a_pool_of_too_few_members_does_not_say_that_it_is_whole() {
    survive(8, |seed| {
        let plan = Plan { members: 2, copies: 2, agreed: false, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        // What is clean has one copy, and what is changed just now is locked: the index keeps it for a while.
        for block in (0..200).chain(0..200) {
            rig.read(block)?;
        }
        rig.write(2, 200, 8)?;
        let lost = (seed % 2) as usize;
        rig.broken[1 - lost].slow.arm(Trigger::every(Ops::Writes));
        (0..200).step_by(2).for_each(|block| drop(rig.start_write(3, block, 2)));
        rig.broken[lost].failing.arm(Trigger::every(Ops::Flushes).times(1));
        let (pool, runtime) = (rig.pool(), rig.runtime());
        let asked = Rc::clone(&rig);
        rig.run(async move {
            asked.volume().flush().await.expect("one of two is left");
            let until = runtime.now() + SECOND;
            while runtime.now() < until {
                let left = pool.superblock().present().count();
                if left < 2 && pool.redundancy() == Redundancy::Whole {
                    return Err(format!("whole with {left} of 2 members"));
                }
                runtime.sleep(SOON / 10_000).await.result.ok();
            }
            match pool.superblock().present().count() {
                1 => Ok(()),
                left => Err(format!("{left} members are left")),
            }
        })?
    });
}

#[test]
fn volumes_are_written_back_again_only_when_everything_has_all_its_copies() {
    provoke(Bug::WrittenBackTooSoon, 4, |seed| {
        let plan = Plan {
            members: 2,
            spares: 1,
            copies: 2,
            agreed: false,
            tuning: lazy(),
            ..Plan::default()
        };
        let rig = Rig::new(seed, plan);
        (0..20).try_for_each(|block| rig.write(2, block, 1))?;
        rig.origin_gate.hold(usize::MAX, is_flush);
        rig.broken[(seed % 2) as usize].failing.arm(Trigger::every(Ops::Flushes).times(1));
        rig.flush()?;
        rig.write(2, 30, 1)?;
        let protecting = past(&rig);
        assert!(protecting > 0 && rig.pool().redundancy() == Redundancy::Protecting);
        add(&rig, 2)?.map_err(|error| error.to_string())?;
        // The member is there; what it should have is not.
        rig.gates[2].hold(usize::MAX, is_flush);
        rig.write(2, 31, 1)?;
        assert!(!told(&rig, EventKind::CopiesRestored));
        if past(&rig) == protecting {
            return Err("written back while dirty data lacks copies".to_owned());
        }
        rig.pause(2 * SECOND);
        assert_eq!(rig.pool().redundancy(), Redundancy::Returning);
        rig.gates[2].hold(0, |_| false);
        rig.gates[2].release();
        let_go(&rig);
        rig.pause(5 * SECOND);
        assert!(told(&rig, EventKind::CopiesRestored));
        assert_eq!(rig.pool().redundancy(), Redundancy::Whole);
        let through = past(&rig);
        rig.write(2, 32, 1)?;
        assert_eq!(past(&rig), through, "written back again");
        Ok(())
    });
}

/// Who agrees to as many copies as there are members left need not wait for a member that may never come.
#[test]
fn volumes_are_written_back_again_when_fewer_copies_are_promised() {
    survive(4, |seed| {
        let rig = protected(seed, (20, 1), is_flush)?;
        assert_eq!(rig.pool().redundancy(), Redundancy::Protecting);
        let pool = rig.pool();
        let change = CopiesChange {
            dirty: Some(1),
            accept_data_loss_on_ssd_failure: true,
            ..CopiesChange::default()
        };
        rig.run(async move { pool.set_copies(&change).await })?
            .map_err(|error| error.to_string())?;
        rig.pause(5 * SECOND);
        assert!(told(&rig, EventKind::CopiesRestored));
        assert_eq!(rig.pool().redundancy(), Redundancy::Whole);
        let through = past(&rig);
        rig.write(2, 30, 1)?;
        assert_eq!(past(&rig), through, "written back again");
        let_go(&rig);
        rig.restart(Crash::ProcessKill)?;
        assert_eq!(rig.pool().redundancy(), Redundancy::Whole);
        let read = |block| same("read", rig.read(block)?, 2).map(drop);
        (0..20).chain([30]).try_for_each(read)?;
        rig.settled(2)
    });
}

/// Once everything has gone home the last member may go as well: nothing is withheld then.
#[test]
fn the_witness_knows_what_has_gone_home_for_want_of_members() {
    survive(4, |seed| {
        let rig = protected(seed, (20, 1), |_| false)?;
        same("while the origin lacks something", withheld(&rig), 1)?;
        rig.pause(5 * SECOND);
        assert_eq!(rig.pool().redundancy(), Redundancy::Protected);
        same("once it has everything", withheld(&rig), 0)?;
        rig.write(3, 7, 1)?;
        rig.flush()?;
        rig.pause(5 * SECOND);
        same("written through", withheld(&rig), 0)?;
        rig.restart(Crash::PowerCut)?;
        (0..20).try_for_each(|block| {
            same("read", rig.read(block)?, if block == 7 { 3 } else { 2 }).map(drop)
        })?;
        // With enough of them it is written back again, and the witness has been told before.
        add(&rig, 2)?.map_err(|error| error.to_string())?;
        rig.pause(5 * SECOND);
        assert_eq!(rig.pool().redundancy(), Redundancy::Whole);
        rig.write(4, 9, 1)?;
        same("written back", withheld(&rig), 1)?;
        rig.settled(9)
    });
}

#[test]
fn nothing_new_is_populated_until_what_is_dirty_has_gone_home() {
    survive(8, |seed| {
        let clean_copies = 1 + (seed / 2 % 2) as u8;
        let agreed = seed >= 4;
        let plan = Plan { members: 2, copies: 2, clean_copies, agreed, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        (0..20).try_for_each(|block| rig.write(2, block, 1))?;
        rig.origin_gate.hold(usize::MAX, is_flush);
        rig.broken[(seed % 2) as usize].failing.arm(Trigger::every(Ops::Flushes).times(1));
        rig.flush()?;
        let brought_in = || rig.pool().counters().populate_bytes.get();
        let read = |block| same("read", rig.read(block)?, 1).map(drop);
        read(40)?;
        assert_eq!(brought_in() > 0, agreed, "while something is dirty");
        assert!(!told(&rig, EventKind::ProtectedClean));
        rig.pause(SOON);
        let_go(&rig);
        rig.destage()?;
        rig.pause(2 * SECOND);
        assert!(told(&rig, EventKind::ProtectedClean));
        assert_eq!(rig.pool().redundancy(), Redundancy::Protected);
        let before = brought_in();
        read(50)?;
        assert_eq!(brought_in() > before, clean_copies == 1, "once nothing is");
        (0..20).try_for_each(|block| same("read", rig.read(block)?, 2).map(drop))
    });
}

//! What the engine must not believe of an origin: that a failed flush lost nothing, that nobody wrote
//! it while the pool was stopped.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{Buf, Data, Request, Runtime};
use forebay_engine::limits::UNSEEN_TIME_MAX;
use forebay_engine::planted::Bug;
use forebay_engine::{Client, DirtyData, EventKind, Mode, OriginTrouble, Tuning, Volume};
use forebay_sim::content::{Found, SECTOR, fill, identify};

use crate::rig::{BLOCK, Plan, Rig, SOON, lazy, provoke, same, survive, version};

fn is_write(request: &Request) -> bool {
    matches!(request, Request::Write { .. })
}

/// Sector 2 of block 3.
fn is_second_part(request: &Request) -> bool {
    matches!(request, Request::Write { offset, .. } if *offset == (3 * BLOCK + 2 * SECTOR) as u64)
}

fn readonly(seed: u64) -> Rc<Rig> {
    Rig::new(seed, Plan { mode: Mode::Readonly, ..Plan::default() })
}

/// What became of a request that runs beside the script.
type Ended = Rc<RefCell<Option<Result<(), String>>>>;

fn start(rig: &Rig, request: impl Future<Output = forebay_engine::Result<()>> + 'static) -> Ended {
    let ended = Ended::default();
    let answer = Rc::clone(&ended);
    rig.world.spawn(Box::pin(async move {
        *answer.borrow_mut() = Some(request.await.map_err(|error| error.to_string()));
    }));
    ended
}

fn start_write(rig: &Rig, version: u64, sector: u64, count: usize, fua: bool) -> Ended {
    let mut data = Buf::new(count * SECTOR);
    fill(version, 0, sector, &mut data);
    let volume = rig.volume();
    start(rig, async move { volume.write(sector * SECTOR as u64, data.freeze(), fua).await })
}

fn flush(rig: &Rig, volume: &Rc<Volume>) -> Result<(), String> {
    let volume = Rc::clone(volume);
    rig.run(async move { volume.flush().await })?.map_err(|error| error.to_string())
}

fn write_durably(rig: &Rig, version: u64, block: u64) -> Result<(), String> {
    let ended = start_write(rig, version, block * 8, 8, true);
    rig.pause(SOON);
    ended.take().unwrap_or(Err("no answer".into()))
}

fn sector_of_origin(rig: &Rig, sector: u64) -> Found {
    identify(0, sector, &rig.origin.peek(sector * SECTOR as u64, SECTOR))
}

#[test]
fn a_durable_write_leaves_the_notice_of_a_failed_flush_to_the_next_flush() {
    survive(5, |seed| {
        let rig = readonly(seed);
        let other = Rc::new(rig.volume().session());
        rig.write(2, 3, 1)?;
        rig.origin_broken.failing.arm(Trigger::every(Ops::Flushes).times(1));
        flush(&rig, &other).unwrap_err();
        write_durably(&rig, 3, 5)?;
        assert!(rig.flush().is_err_and(|error| error.contains("flush")), "of block 3");
        rig.flush()?;
        flush(&rig, &other)
    });
}

#[test]
fn flushes_under_way_at_a_failed_one_are_all_told() {
    survive(5, |seed| {
        let rig = readonly(seed);
        rig.write(2, 3, 1)?;
        rig.origin_broken.failing.arm(Trigger::every(Ops::Flushes).times(1));
        let flushes = [rig.volume(), rig.volume()]
            .map(|volume| start(&rig, async move { volume.flush().await }));
        rig.pause(SOON);
        for ended in flushes {
            assert!(matches!(ended.take(), Some(Err(_))), "one of two was told that all is well");
        }
        rig.flush()
    });
}

#[test]
fn a_client_that_left_before_it_was_told_is_told_when_it_is_back() {
    survive(5, |seed| {
        let rig = readonly(seed);
        let clients: Vec<_> = (0..2).map(|_| Rc::new(rig.volume().session())).collect();
        let writer = Rc::clone(&clients[0]);
        let mut data = Buf::new(BLOCK);
        fill(2, 0, 24, &mut data);
        let written = rig.run(async move { writer.write(24 * 512, data.freeze(), false).await })?;
        written.map_err(|error| error.to_string())?;
        rig.origin_broken.failing.arm(Trigger::every(Ops::Flushes).times(1));
        flush(&rig, &clients[1]).unwrap_err();
        drop(clients);
        let back = Rc::new(rig.volume().session());
        flush(&rig, &back).unwrap_err();
        // The first good one may have been on its way when the error was sent.
        flush(&rig, &back)?;
        flush(&rig, &back)?;
        flush(&rig, &Rc::new(rig.volume().session()))
    });
}

/// How a client leaves that has written directly, and does not hear of a flush that failed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Leaves {
    Before,
    After,
    /// While its own FLUSH fails: the answer does not reach it.
    Asking,
    /// Its write was under way during its last FLUSH.
    Overtaken,
    /// Not, as far as the pool knows: its connection is gone and nobody has noticed.
    Unseen,
    /// The same, and its own FLUSH fails behind that.
    AskingUnseen,
    /// The same, with requests behind that FLUSH that were on their way.
    Pipelined,
}

fn hears_when_it_is_back(seed: u64, leaves: Leaves, elsewhere: bool) -> Result<(), String> {
    let rig = readonly(seed);
    let base = elsewhere.then(|| rig.volume().share().open(rig.runtime(), Vec::new()));
    let client = || match &base {
        Some(base) => Rc::new(base.session()),
        None => Rc::new(rig.volume().client()),
    };
    let ask = |client: &Rc<Client>| {
        let client = Rc::clone(client);
        rig.run(async move { client.flush().await.is_ok() })
    };
    let (mut writer, other) = (Some(client()), Rc::new(rig.volume().session()));
    let asked = writer.clone().unwrap();
    if leaves == Leaves::Overtaken {
        rig.origin_gate.hold(1, is_write);
    }
    let written = start(&rig, async move {
        asked.write(3 * BLOCK as u64, Buf::zeroed(BLOCK).freeze(), false).await
    });
    rig.pause(SOON);
    if leaves == Leaves::Overtaken {
        assert!(ask(writer.as_ref().unwrap())?, "it need not wait for what is under way");
        rig.origin_gate.release();
        rig.pause(SOON);
    }
    written.take().unwrap_or(Err("no answer".into()))?;
    if leaves == Leaves::Before {
        writer = None;
        rig.pause(SOON);
    }
    rig.origin_broken.failing.arm(Trigger::every(Ops::Flushes).times(1));
    let asks = [Leaves::Asking, Leaves::AskingUnseen, Leaves::Pipelined].contains(&leaves);
    match asks {
        true => assert!(!ask(writer.as_ref().unwrap())?),
        false => drop(flush(&rig, &other).unwrap_err()),
    }
    if leaves == Leaves::Pipelined {
        assert!(ask(writer.as_ref().unwrap())?);
    }
    let stays = [Leaves::Unseen, Leaves::AskingUnseen, Leaves::Pipelined].contains(&leaves);
    let unseen = writer.filter(|_| stays);
    if seed.is_multiple_of(2) {
        rig.pause(SOON);
    }
    // Who comes by and asks for nothing takes nothing.
    drop((client(), rig.volume().share()));
    let back = client();
    if ask(&back)? {
        return Err("it was told that all is well".to_owned());
    }
    assert!(ask(&back)? && ask(&back)?, "it is told once");
    rig.pause(UNSEEN_TIME_MAX);
    assert!(ask(&client())?, "others are not told for ever, whoever has not gone on since");
    drop((unseen, other));
    Ok(())
}

/// Clients that write, flush once and go: what one of them was told the others are not, if it took its leave, or once
/// [`UNSEEN_TIME_MAX`] is over.
fn one_flush_each(seed: u64, leaves: bool, elsewhere: bool) -> Result<(), String> {
    let rig = readonly(seed);
    let base = elsewhere.then(|| rig.volume().share().open(rig.runtime(), Vec::new()));
    let visit = || {
        let client = Rc::new(match &base {
            Some(base) => base.session(),
            None => rig.volume().client(),
        });
        let it = Rc::clone(&client);
        let flushed = rig.run(async move {
            let data = Buf::zeroed(BLOCK).freeze();
            it.write(3 * BLOCK as u64, data, false).await.map_err(|error| error.to_string())?;
            Ok::<bool, String>(it.flush().await.is_ok())
        })??;
        if leaves {
            client.take_leave();
        }
        drop(client);
        rig.pause(SOON);
        Ok::<bool, String>(flushed)
    };
    assert!(visit()?);
    rig.origin_broken.failing.arm(Trigger::every(Ops::Flushes).times(1));
    assert!(!visit()?, "its own flush failed");
    if leaves {
        assert!(visit()?, "who took its leave has heard");
        return Ok(());
    }
    assert!(!visit()? && !visit()?, "the answer may not have reached the one before");
    rig.pause(UNSEEN_TIME_MAX);
    assert!(!visit()?, "what the last one left");
    assert!(visit()?, "and that is all");
    Ok(())
}

/// It has written, others' flushes failed long ago, and the answer to its own FLUSH does not reach it.
#[test]
fn who_has_not_heard_of_a_failure_since_its_own_time_hears_however_long_ago_it_was() {
    survive(2, |seed| {
        let rig = readonly(seed);
        let client = Rc::new(rig.volume().session());
        let writer = Rc::clone(&client);
        let data = Buf::zeroed(BLOCK).freeze();
        let written = rig.run(async move { writer.write(0, data, false).await })?;
        written.map_err(|error| error.to_string())?;
        rig.origin_broken.failing.arm(Trigger::every(Ops::Flushes).times(1));
        flush(&rig, &Rc::new(rig.volume().session())).unwrap_err();
        rig.pause(UNSEEN_TIME_MAX);
        flush(&rig, &client).unwrap_err();
        drop(client);
        match flush(&rig, &Rc::new(rig.volume().session())) {
            Ok(()) => Err("it was told that all is well".to_owned()),
            Err(_) => Ok(()),
        }
    });
}

/// It was told of what was another's and of what was its own at once, long ago, and may have heard of neither.
#[test]
fn what_is_not_handed_on_of_anothers_takes_nothing_of_its_own_with_it() {
    survive(2, |seed| {
        let rig = readonly(seed);
        let [other, gone] = [0, 1].map(|_| Rc::new(rig.volume().session()));
        let write = |client: &Rc<Volume>| {
            let (client, data) = (Rc::clone(client), Buf::zeroed(BLOCK).freeze());
            let written = rig.run(async move { client.write(0, data, false).await })?;
            written.map_err(|error| error.to_string())
        };
        // From here on it takes nothing over from anybody.
        flush(&rig, &other)?;
        let fails = || {
            rig.origin_broken.failing.arm(Trigger::every(Ops::Flushes).times(1));
            flush(&rig, &other).unwrap_err();
        };
        write(&gone)?;
        fails();
        drop(gone);
        let client = Rc::new(rig.volume().session());
        write(&client)?;
        fails();
        rig.pause(UNSEEN_TIME_MAX);
        flush(&rig, &client).unwrap_err();
        drop(client);
        match flush(&rig, &Rc::new(rig.volume().session())) {
            Ok(()) => Err("it was told that all is well".to_owned()),
            Err(_) => Ok(()),
        }
    });
}

#[test]
fn what_was_heard_or_is_long_ago_is_not_handed_on_for_ever() {
    survive(2, |seed| {
        for leaves in [true, false] {
            for elsewhere in [false, true] {
                one_flush_each(seed, leaves, elsewhere)?;
            }
        }
        Ok(())
    });
}

/// Two that always have something to flush, and were both told.
#[test]
fn a_failure_that_all_have_heard_of_is_told_no_newcomer() {
    survive(2, |seed| {
        let rig = readonly(seed);
        let pair = [0, 1].map(|_| Rc::new(rig.volume().session()));
        let write = |client: &Rc<Volume>| {
            let client = Rc::clone(client);
            let data = Buf::zeroed(BLOCK).freeze();
            rig.run(async move { client.write(0, data, false).await.is_ok() })
        };
        pair.iter().try_for_each(|client| write(client).map(drop))?;
        rig.origin_broken.failing.arm(Trigger::every(Ops::Flushes).times(1));
        pair.iter().for_each(|client| drop(flush(&rig, client).unwrap_err()));
        pair.iter().try_for_each(|client| write(client).map(drop))?;
        for turn in 0..6 {
            let client = &pair[turn % 2];
            flush(&rig, client)?;
            assert!(write(client)?);
        }
        flush(&rig, &Rc::new(rig.volume().session()))
    });
}

#[test]
fn a_client_that_did_not_hear_of_a_failed_flush_hears_when_it_is_back() {
    use Leaves::{After, Asking, AskingUnseen, Before, Overtaken, Pipelined, Unseen};
    for leaves in [Before, After, Asking, Overtaken, Unseen, AskingUnseen, Pipelined] {
        for elsewhere in [false, true] {
            println!("{leaves:?}, elsewhere: {elsewhere}");
            (0..4).for_each(|seed| hears_when_it_is_back(seed, leaves, elsewhere).unwrap());
        }
    }
}

#[test]
fn a_durable_write_is_not_acknowledged_if_a_flush_failed_on_its_way() {
    survive(5, |seed| {
        let rig = readonly(seed);
        let other = Rc::new(rig.volume().session());
        rig.write(2, 9, 1)?;
        // The origin loses it from its cache when the flush fails.
        let block = 3 * BLOCK as u64..4 * BLOCK as u64;
        rig.origin_broken.losing.arm(Trigger::every(Ops::Writes).within(block).times(1));
        rig.origin_gate.hold(1, is_write);
        let ended = start_write(&rig, 3, 24, 8, true);
        rig.pause(SOON);
        assert_eq!(rig.origin_gate.held(), 1);
        rig.origin_broken.failing.arm(Trigger::every(Ops::Flushes).times(1));
        flush(&rig, &other).unwrap_err();
        rig.origin_gate.release();
        rig.pause(SOON);
        match ended.take() {
            Some(Ok(())) => Err(format!("the origin has {:?}", sector_of_origin(&rig, 24))),
            Some(Err(_)) => Ok(()),
            None => Err("no answer".into()),
        }
    });
}

#[test]
fn a_durable_write_into_the_log_does_not_wait_for_the_origin() {
    survive(5, |seed| {
        let rig = readonly(seed);
        rig.write(2, 3, 1)?;
        let volume = rig.volume();
        let mode = rig.run(async move { volume.set_mode(Mode::Writeback).await })?;
        mode.map_err(|error| error.to_string())?;
        rig.origin_gate.hold(usize::MAX, |request| matches!(request, Request::Flush));
        write_durably(&rig, 3, 5)?;
        rig.origin_gate.hold(0, is_write);
        rig.restart(Crash::PowerCut)?;
        same("after the power cut", rig.read(5)?, 3).map(drop)
    });
}

#[test]
fn what_a_failed_flush_may_have_lost_of_an_origin_write_in_parts_is_written_again() {
    survive(5, |seed| {
        let rig = Rig::new(seed, Plan::default());
        for sector in [24, 26] {
            let ended = start_write(&rig, 2, sector, 1, false);
            rig.pause(SOON);
            assert_eq!(ended.take(), Some(Ok(())));
        }
        rig.flush()?;
        let volume = rig.volume();
        let mode = rig.run(async move { volume.set_mode(Mode::Readonly).await })?;
        mode.map_err(|error| error.to_string())?;
        rig.write(2, 9, 1)?;
        // The first part is in the origin's cache, and lost there when the flush fails; the second
        // is on its way.
        let first = 24 * SECTOR as u64..25 * SECTOR as u64;
        rig.origin_broken.losing.arm(Trigger::every(Ops::Writes).within(first).times(1));
        rig.origin_gate.hold(1, is_second_part);
        let volume = rig.volume();
        let destaged = start(&rig, async move { volume.destage().await });
        rig.pause(SOON);
        assert_eq!((rig.origin_gate.held(), rig.origin_broken.losing.hits()), (1, 1));
        rig.origin_broken.failing.arm(Trigger::every(Ops::Flushes).times(1));
        rig.flush().unwrap_err();
        rig.origin_gate.release();
        rig.pause(100 * SOON);
        assert!(destaged.take().is_some_and(|ended| ended.is_err()), "it was told");
        rig.destage()?;
        match (sector_of_origin(&rig, 24), sector_of_origin(&rig, 26)) {
            (Found::Stamp(2), Found::Stamp(2)) => Ok(()),
            other => Err(format!("the origin has {other:?}")),
        }
    });
}

/// Puts a version onto the origin behind the engine's back.
fn tamper(rig: &Rig, version: u64, block: u64) {
    let mut data = vec![0; BLOCK];
    fill(version, 0, block * 8, &mut data);
    rig.origin.poke(block * BLOCK as u64, &data);
}

/// Version 1 of blocks 0..8 is cached, nothing is dirty, the pool is stopped.
fn stopped(seed: u64) -> Result<Rc<Rig>, String> {
    let rig = Rig::new(seed, Plan::default());
    for block in (0..8).chain(0..8) {
        rig.read(block)?;
        rig.pause(SOON / 10);
    }
    rig.stop()?;
    Ok(rig)
}

#[test]
fn an_origin_that_was_written_behind_our_back_is_noticed_also_after_a_kill() {
    survive(5, |seed| {
        let rig = stopped(seed)?;
        tamper(&rig, 7, 3);
        let it = Rc::clone(&rig);
        rig.run(async move { it.open_pool().await.map(drop) })??;
        rig.restart(Crash::ProcessKill)?;
        same("what the origin has", rig.read(3)?, 7).map(drop)
    });
}

#[test]
fn what_was_dropped_because_the_origin_was_changed_does_not_come_back() {
    survive(5, |seed| {
        let rig = stopped(seed)?;
        tamper(&rig, 7, 3);
        rig.open()?;
        rig.restart(Crash::PowerCut)?;
        same("what the origin has", rig.read(3)?, 7).map(drop)
    });
}

#[test]
fn noticing_a_changed_origin_may_be_cut_off_anywhere() {
    survive(3, |seed| {
        for request in 1.. {
            let rig = stopped(seed)?;
            tamper(&rig, 7, 3);
            rig.world.crash_at(Some(rig.world.io_count() + request));
            let ended = rig.open().is_ok();
            rig.restart(Crash::PowerCut)?;
            same("what the origin has", rig.read(3)?, 7)?;
            if ended {
                break;
            }
        }
        Ok(())
    });
}

#[test]
fn an_origin_that_was_changed_under_dirty_data_is_refused_and_the_data_stays() {
    survive(5, |seed| {
        let rig = Rig::new(seed, Plan::default());
        rig.write(2, 3, 1)?;
        assert_eq!(rig.stop()?, 1);
        tamper(&rig, 7, 5);
        for crash in [Crash::ProcessKill, Crash::PowerCut] {
            let refused = rig.restart(crash);
            assert!(refused.is_err_and(|error| error.contains("was changed")));
        }
        tamper(&rig, 1, 5);
        rig.restart(Crash::PowerCut)?;
        same("the dirty block", rig.read(3)?, 2)?;
        rig.settled(3)
    });
}

#[test]
fn another_disk_at_the_place_of_an_origin_is_noticed_whatever_is_on_it() {
    const ONE: Option<[u8; 32]> = Some([1; 32]);
    const OTHER: Option<[u8; 32]> = Some([2; 32]);
    survive(5, |seed| {
        for (before, now, is_other) in
            [(ONE, OTHER, true), (ONE, ONE, false), (None, ONE, false), (ONE, None, false)]
        {
            let rig = stopped(seed)?;
            rig.origin_gate.identity.set(before);
            rig.open()?;
            rig.read(5)?;
            rig.stop()?;
            rig.origin_gate.identity.set(now);
            // A copy of the origin as it was, which was written further at a place that nobody looks at.
            tamper(&rig, 7, 100);
            rig.open()?;
            assert_eq!(rig.was_told("is another disk"), is_other, "{before:?}, {now:?}");
            assert_eq!(
                rig.pool().blocks().0 == 0,
                is_other,
                "what was cached was of the other one"
            );
            rig.write(2, 3, 1)?;
            assert_eq!(rig.stop()?, 1);
            rig.origin_gate.identity.set(before);
            let opened = rig.open();
            match is_other {
                true => assert!(opened.is_err_and(|error| error.contains("is another disk"))),
                false => opened?,
            }
        }
        Ok(())
    });
}

/// Blocks 0..8 are cached, 3 and 4 are dirty with version 2; while the pool is stopped, somebody writes version 7 to
/// the first of these.
fn changed_under_dirty_data(seed: u64) -> Result<Rc<Rig>, String> {
    let rig = stopped(seed)?;
    rig.open()?;
    rig.write(2, 3, 2)?;
    assert_eq!(rig.stop()?, 2);
    tamper(&rig, 7, 3);
    Ok(rig)
}

/// Opens the pool, and tells the answer to its question.
fn accept(rig: &Rc<Rig>, dirty: DirtyData) -> Result<u64, String> {
    let it = Rc::clone(rig);
    rig.run(async move {
        let pool = it.open_pool().await?;
        let dropped = pool.accept_origin("v", dirty).await;
        *it.pool.borrow_mut() = Some(Rc::new(pool));
        dropped.map_err(|error| error.to_string())
    })?
}

/// What blocks 3, 4 and 5 have to be then.
fn after(dirty: DirtyData) -> [(u64, u64); 3] {
    match dirty {
        DirtyData::Write => [(3, 2), (4, 2), (5, 1)],
        DirtyData::Drop => [(3, 7), (4, 1), (5, 1)],
    }
}

fn has_become(rig: &Rig, dirty: DirtyData) -> Result<(), String> {
    for (block, expected) in after(dirty) {
        same(&format!("block {block}, {dirty:?}"), rig.read(block)?, expected)?;
        rig.settled(block)?;
    }
    Ok(())
}

#[test]
fn an_origin_that_was_changed_under_dirty_data_is_used_as_its_owner_decides() {
    survive(5, |seed| {
        for dirty in [DirtyData::Write, DirtyData::Drop] {
            let rig = changed_under_dirty_data(seed)?;
            let dropped = accept(&rig, dirty)?;
            assert_eq!(dropped, if dirty == DirtyData::Write { 6 } else { 8 });
            assert_eq!(rig.pool().unproven_blocks(), 8 - dropped);
            let (it, pool) = (Rc::clone(&rig), rig.pool());
            rig.run(async move {
                pool.accept_origin("v", dirty).await.expect_err("it is asked no more");
                let volume = pool.attach("v", Rc::clone(&it.origin_gate) as _).await.unwrap();
                pool.accept_origin("v", dirty).await.expect_err("it is attached");
                *it.volume.borrow_mut() = Some(Rc::new(volume));
            })?;
            has_become(&rig, dirty)?;
            for crash in [Crash::ProcessKill, Crash::PowerCut] {
                rig.restart(crash)?;
                has_become(&rig, dirty)?;
            }
        }
        Ok(())
    });
}

fn accepting_is_cut_off(seed: u64) -> Result<(), String> {
    for dirty in [DirtyData::Write, DirtyData::Drop] {
        for request in 1.. {
            let rig = changed_under_dirty_data(seed)?;
            rig.world.crash_at(Some(rig.world.io_count() + request));
            let ended = accept(&rig, dirty).is_ok();
            match rig.restart(Crash::PowerCut) {
                // Nothing is dirty any more, or it is decided.
                Ok(()) => has_become(&rig, dirty)?,
                Err(error) if error.contains("was changed") && !ended => {
                    rig.crash(Crash::PowerCut);
                    accept(&rig, dirty)?;
                    rig.restart(Crash::PowerCut)?;
                    has_become(&rig, dirty)?;
                }
                Err(error) => return Err(error),
            }
            if ended {
                break;
            }
        }
    }
    Ok(())
}

#[test]
fn accepting_a_changed_origin_may_be_cut_off_anywhere() {
    survive(3, accepting_is_cut_off);
    provoke(Bug::ForgottenVolatile, 3, accepting_is_cut_off);
}

#[test]
fn an_origin_that_we_wrote_ourselves_was_not_changed_behind_our_back() {
    survive(5, |seed| {
        let rig = stopped(seed)?;
        rig.open()?;
        rig.write(2, 3, 1)?;
        rig.destage()?;
        rig.write(3, 5, 1)?;
        rig.flush()?;
        rig.restart(Crash::PowerCut)?;
        same("destaged", rig.read(3)?, 2)?;
        same("dirty", rig.read(5)?, 3).map(drop)
    });
}

/// A flush fails that should make sure that what is cached of a block is void. The write behind it fails,
/// and so does the next one: nothing durable says yet that the cache has something older.
#[test]
fn what_a_failed_flush_may_not_have_voided_is_not_written_around_the_log() {
    survive(12, |seed| {
        let rig = Rig::new(seed, Plan { mode: Mode::Writethrough, ..Plan::default() });
        for _ in 0..2 {
            (0..8).try_for_each(|block| same("filled", rig.read(block)?, 1).map(drop))?;
            rig.pause(SOON);
        }
        rig.flush()?;
        rig.broken[0].failing.arm(Trigger::every(Ops::Flushes).times(1));
        rig.write(2, 3, 1).unwrap_err();
        assert!(rig.pool().is_latched());
        let around = rig.write(3, 3, 1);
        rig.crash(Crash::PowerCut);
        rig.broken[0].mend();
        rig.open()?;
        let origin = version(3, &rig.origin.peek(3 * BLOCK as u64, BLOCK))?;
        same(&format!("cached, after {around:?}"), rig.read(3)?, origin).map(drop)
    });
}

#[test]
fn an_origin_that_fails_is_told_of_and_what_is_cached_is_served() {
    survive(5, |seed| {
        let rig = Rig::new(seed, Plan::default());
        rig.write(2, 3, 1)?;
        rig.flush()?;
        let trouble = || rig.volume().origin_trouble();
        rig.origin_broken.failing.arm(Trigger::every(Ops::All));
        rig.read(20).unwrap_err();
        rig.write(3, 5, 1)?;
        rig.destage().unwrap_err();
        assert!(trouble().is_none(), "it may come back at once");
        rig.pause(30 * SECOND);
        assert!(matches!(trouble(), Some(OriginTrouble::Writes(_))), "{:?}", trouble());
        same("a hit", rig.read(3)?, 2)?;
        same("a write", rig.read(5)?, 3)?;
        rig.read(21).unwrap_err();
        let failed = |event: &forebay_engine::Event| event.kind == EventKind::DestageFailed;
        assert_eq!(rig.pool().events().iter().filter(|event| failed(event)).count(), 1);
        rig.origin_broken.mend();
        // Nobody asks for anything that is not cached.
        rig.pause(5 * SECOND);
        assert_eq!(trouble(), None);
        rig.destage()?;
        rig.settled(3)?;
        rig.settled(5)
    });
}

#[test]
fn a_bad_place_of_an_origin_is_not_a_failed_origin() {
    survive(5, |seed| {
        let rig = readonly(seed);
        let block = BLOCK as u64;
        rig.origin_broken.failing.arm(Trigger::every(Ops::Reads).within(20 * block..21 * block));
        for _ in 0..20 {
            rig.read(20).unwrap_err();
            rig.pause(SECOND / 2);
            assert_eq!(rig.volume().origin_trouble(), None);
        }
        // Of one that is gone nothing can be read.
        rig.origin_broken.failing.arm(Trigger::every(Ops::All));
        rig.read(20).unwrap_err();
        rig.pause(10 * SECOND);
        let trouble = rig.volume().origin_trouble();
        assert!(matches!(trouble, Some(OriginTrouble::Reads(_))), "{trouble:?}");
        rig.origin_broken.mend();
        rig.pause(5 * SECOND);
        assert_eq!(rig.volume().origin_trouble(), None);
        Ok(())
    });
}

#[test]
fn an_origin_that_does_not_answer_is_told_of() {
    survive(3, |seed| {
        let rig = Rig::new(seed, Plan::default());
        rig.origin_broken.hanging.arm(Trigger::every(Ops::All));
        rig.start_read(20);
        rig.pause(10 * SECOND);
        assert_eq!(rig.volume().origin_trouble(), None, "a disk may have been asleep");
        rig.pause(10 * SECOND);
        assert_eq!(rig.volume().origin_trouble(), Some(OriginTrouble::Silent));
        rig.origin_broken.mend();
        rig.origin_broken.answer();
        rig.pause(SECOND);
        assert_eq!(rig.volume().origin_trouble(), None);
        Ok(())
    });
}

fn is_flush(request: &Request) -> bool {
    matches!(request, Request::Flush)
}

/// A version of block 3.
fn block_of(version: u64) -> Data {
    let mut data = Buf::new(BLOCK);
    fill(version, 0, 3 * 8, &mut data);
    data.freeze()
}

#[test]
fn what_a_flush_proves_of_zeroes_is_not_said_of_newer_ones_at_the_same_place() {
    survive(4, |seed| {
        let tuning = Tuning { lap_percent: 5, flush_interval: SOON, ..lazy() };
        let rig = Rig::new(seed, Plan { tuning, ..Plan::default() });
        let id = rig.pool().superblock().volumes[0].id;
        let place = || rig.pool().location_of(id, 3);
        let zero = || {
            let volume = rig.volume();
            let zeroed =
                async move { volume.write_zeroes(3 * BLOCK as u64, BLOCK as u64, false).await };
            rig.run(zeroed)?.map_err(|error| error.to_string())
        };
        rig.origin_gate.hold(usize::MAX, is_flush);
        zero()?;
        let first = place();
        (20..220).step_by(2).try_for_each(|block| rig.write(2, block, 1))?;
        rig.flush()?;
        rig.origin_broken.slow.arm(Trigger::every(Ops::Writes));
        // While the elevator is at the others, its block is overtaken, and that is written as well.
        let on_origin = |rig: &Rig| rig.origin.peek(3 * BLOCK as u64, BLOCK);
        let (volume, it, data) = (rig.volume(), Rc::clone(&rig), block_of(2));
        rig.run(async move {
            let mut destaging = pin!(volume.destage());
            let mut overtaken = pin!(async {
                let runtime: &dyn Runtime = &*it.world;
                while on_origin(&it)[0] != 0 {
                    runtime.sleep(MILLISECOND).await.result.unwrap();
                }
                volume.write(3 * BLOCK as u64, data, true).await.unwrap();
                while it.origin_gate.held() == 0 {
                    runtime.sleep(MILLISECOND).await.result.unwrap();
                }
            });
            std::future::poll_fn(|context| {
                assert!(destaging.as_mut().poll(context).is_pending(), "it waits for the flush");
                overtaken.as_mut().poll(context)
            })
            .await;
        })?;
        assert_eq!(version(3, &on_origin(&rig)), Ok(2), "one flush is for both");
        for _ in 0..10_000 {
            zero()?;
            if place() == first {
                break;
            }
        }
        assert_eq!(place(), first, "no place is used again");
        rig.origin_gate.hold(0, is_flush);
        rig.origin_gate.release();
        rig.pause(5 * SOON);
        same("zeroed", rig.read(3)?, 0)?;
        rig.restart(Crash::ProcessKill)?;
        same("after a start", rig.read(3)?, 0)?;
        rig.settled(3)
    });
}

#[test]
fn an_origin_that_fails_at_its_start_is_known_by_what_it_had_until_it_is_in_use() {
    survive(4, |seed| {
        let rig = stopped(seed)?;
        rig.origin_gate.fail_next(is_flush);
        let failed = rig.open().unwrap_err();
        assert!(failed.contains("flushing the origin"), "{failed}");
        match seed % 2 {
            0 => drop(rig.stop()?),
            _ => rig.crash(Crash::ProcessKill),
        }
        tamper(&rig, 7, 3);
        rig.open()?;
        same("what the origin has now", rig.read(3)?, 7).map(drop)
    });
}

#[test]
fn sectors_that_the_cache_has_are_read_without_the_origin() {
    survive(4, |seed| {
        let rig = Rig::new(seed, Plan::default());
        let (own, other) = (26, 27);
        rig.start_write_sector(2, own);
        rig.pause(SOON);
        rig.flush()?;
        let read = |sector: u64| {
            let volume = rig.volume();
            let read = async move { volume.read(sector * SECTOR as u64, Buf::new(SECTOR)).await };
            let (buf, result) = rig.run(read)?;
            result.map_err(|error| error.to_string()).map(|()| identify(0, sector, &buf))
        };
        rig.origin_broken.failing.arm(Trigger::every(Ops::Reads));
        assert_eq!(read(own), Ok(Found::Stamp(2)));
        assert!(read(other).is_err(), "nobody has it but the origin");
        rig.origin_broken.mend();
        assert_eq!(read(other), Ok(Found::Stamp(1)));
        assert_eq!(read(own), Ok(Found::Stamp(2)));
        Ok(())
    });
}

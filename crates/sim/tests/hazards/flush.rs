//! Flushes that fail. What they should have covered may be lost for good, although the device returns
//! it until the power goes and later flushes succeed.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::{Request, Runtime};
use forebay_engine::{Client, Mode};

use crate::rig::{BLOCK, Breakage, Plan, Rig, SOON, same, survive};

/// What is lost differs from seed to seed: all, nothing, some of it.
const SEEDS: u64 = 12;

fn fail_one(broken: &Breakage) {
    broken.failing.arm(Trigger::every(Ops::Flushes).times(1));
}

fn readonly(seed: u64) -> Rc<Rig> {
    Rig::new(seed, Plan { mode: Mode::Readonly, ..Plan::default() })
}

/// Reads a block until it would be cached, if it may be.
fn read_often(rig: &Rig, block: u64) -> Result<(), String> {
    for _ in 0..3 {
        rig.read(block)?;
        rig.pause(SOON);
    }
    Ok(())
}

/// Block 3 is on its way to the origin when the origin's flush, which `flush` asks for, fails; then the
/// write ends well.
fn met_on_its_way(rig: &Rig, flush: impl Fn() -> Result<(), String>) {
    rig.origin_gate.hold(1, |request| matches!(request, Request::Write { .. }));
    let done = rig.start_write(2, 3, 1);
    rig.pause(SOON);
    assert!(rig.origin_gate.held() == 1 && !done.get());
    fail_one(&rig.origin_broken);
    flush().unwrap_err();
    rig.origin_gate.release();
    rig.pause(SOON);
    assert!(done.get());
}

#[test]
fn what_an_origin_may_have_lost_is_not_kept_by_the_cache() {
    survive(SEEDS, |seed| {
        let rig = readonly(seed);
        rig.write(2, 3, 1)?;
        fail_one(&rig.origin_broken);
        rig.flush().unwrap_err();
        rig.flush()?;
        read_often(&rig, 3)?;
        rig.flush()?;
        rig.restart(Crash::PowerCut)?;
        rig.settled(3)
    });
}

#[test]
fn what_was_on_its_way_to_an_origin_when_its_flush_failed_is_not_kept_by_the_cache() {
    survive(SEEDS, |seed| {
        let rig = readonly(seed);
        rig.write(2, 200, 1)?;
        met_on_its_way(&rig, || rig.flush());
        rig.flush().unwrap_err();
        rig.flush()?;
        read_often(&rig, 3)?;
        rig.flush()?;
        rig.restart(Crash::PowerCut)?;
        rig.settled(3)
    });
}

#[test]
fn a_write_that_a_failed_flush_met_on_its_way_is_told_of_even_if_that_flush_was_its_own_clients() {
    survive(SEEDS, |seed| {
        let rig = readonly(seed);
        rig.write(2, 9, 1)?;
        met_on_its_way(&rig, || rig.flush());
        let Err(_) = rig.flush() else {
            rig.restart(Crash::PowerCut)?;
            return same("acknowledged, then flushed", rig.read(3)?, 2).map(drop);
        };
        rig.flush()
    });
}

/// A FLUSH covers what was acknowledged to other clients, too.
#[test]
fn a_write_that_a_failed_flush_met_on_its_way_is_told_of_to_those_who_had_been_told_before_its_end()
{
    survive(SEEDS, |seed| {
        let rig = readonly(seed);
        let other = Rc::new(rig.volume().session());
        let flush = || {
            let other = Rc::clone(&other);
            rig.run(async move { other.flush().await })?.map_err(|error| error.to_string())
        };
        rig.write(2, 9, 1)?;
        met_on_its_way(&rig, flush);
        if flush().is_ok() {
            rig.restart(Crash::PowerCut)?;
            return same("acknowledged, then flushed", rig.read(3)?, 2).map(drop);
        }
        flush()
    });
}

#[test]
fn a_client_of_another_reactor_is_told_of_what_failed_before_its_first_request() {
    survive(3, |seed| {
        let rig = readonly(seed);
        let port = rig.volume().share();
        let client = Rc::new(port.open(rig.runtime(), Vec::new()));
        rig.pause(SOON);
        rig.write(2, 3, 1)?;
        fail_one(&rig.origin_broken);
        rig.flush().unwrap_err();
        let flush = |client: &Rc<Client>| {
            let client = Rc::clone(client);
            rig.run(async move { client.flush().await })
        };
        let later = Rc::new(client.session());
        rig.pause(SOON);
        assert!(flush(&client)?.is_err(), "it was there when the flush failed");
        // Once those who were told have gone on, which shows that they have heard.
        for _ in 0..2 {
            rig.flush()?;
            flush(&client)?.map_err(|error| error.to_string())?;
        }
        flush(&later)?.map_err(|error| error.to_string())
    });
}

#[test]
fn what_a_failed_flush_of_the_origin_may_have_lost_of_dirty_data_is_written_again() {
    survive(SEEDS, |seed| {
        let rig = Rig::new(seed, Plan::default());
        rig.write(2, 3, 4)?;
        fail_one(&rig.origin_broken);
        rig.destage().unwrap_err();
        rig.destage()?;
        rig.restart(Crash::PowerCut)?;
        let origin = rig.origin.peek(3 * BLOCK as u64, BLOCK);
        same("on the origin", crate::rig::version(3, &origin)?, 2)?;
        rig.settled(3)
    });
}

/// Where one of the superblocks' flushes has lost what was appended before, nothing is left of it that a
/// client's flush could fail at.
#[test]
fn a_flush_of_an_ssd_does_not_count_while_one_that_began_before_may_fail() {
    survive(SEEDS, |seed| {
        let rig = Rig::new(seed, Plan::default());
        rig.write(2, 3, 1)?;
        fail_one(&rig.broken[0]);
        rig.gates[0].hold(1, |request| matches!(request, Request::Flush));
        let pool = rig.pool();
        rig.world.spawn(Box::pin(async move {
            pool.set_write_amplification_max(200).await.unwrap_err();
        }));
        rig.pause(SOON);
        assert_eq!(rig.gates[0].held(), 1, "it has failed, and nobody knows");
        let (volume, flushed) = (rig.volume(), Rc::new(Cell::new(None)));
        let ended = Rc::clone(&flushed);
        rig.world.spawn(Box::pin(async move { ended.set(Some(volume.flush().await.is_ok())) }));
        rig.pause(SOON);
        assert_eq!(flushed.get(), None, "what it says may be gone");
        rig.gates[0].release();
        rig.pause(SOON);
        assert_eq!(flushed.get(), Some(false));
        Ok(())
    });
}

/// Appends of synchronous writers wait for the flush under way; where that had to wait for one of the
/// superblocks, they go on when both are over.
#[test]
fn what_is_held_for_a_flush_goes_on_when_that_had_to_wait_for_another_one() {
    survive(SEEDS, |seed| {
        let rig = Rig::new(seed, Plan::default());
        rig.write(2, 3, 1)?;
        rig.gates[0].hold(1, |request| matches!(request, Request::Flush));
        let (pool, first, second) = (rig.pool(), rig.volume(), rig.volume());
        rig.world.spawn(Box::pin(async move {
            pool.set_write_amplification_max(200).await.unwrap();
        }));
        rig.pause(SOON);
        assert_eq!(rig.gates[0].held(), 1);
        rig.world.spawn(Box::pin(async move { first.flush().await.unwrap() }));
        rig.world.spawn(Box::pin(async move { second.flush().await.unwrap() }));
        rig.pause(SOON);
        let done = rig.start_write(4, 5, 1);
        rig.pause(SOON);
        let held = !done.get();
        rig.gates[0].release();
        rig.pause(SOON);
        assert!(held && done.get(), "held {held}, done {}", done.get());
        Ok(())
    });
}

/// Destaging may be given up at any moment (a job that is cancelled): whoever flushes then is answered.
#[test]
fn a_drain_that_is_given_up_keeps_nobody_from_flushing() {
    survive(2, |seed| {
        let rig = Rig::new(seed, Plan::default());
        let mut was_over = 0;
        for turn in 0..400 {
            rig.write(2 + turn, turn % 20, 1)?;
            let (volume, rt, over) = (rig.volume(), rig.runtime(), Rc::new(Cell::new(false)));
            let has_ended = Rc::clone(&over);
            rig.world.spawn(Box::pin(async move {
                let mut work = pin!(volume.destage());
                let mut given_up = rt.sleep(1 + turn * SOON / 1_000);
                poll_fn(|cx| match Pin::new(&mut given_up).poll(cx) {
                    Poll::Ready(_) => Poll::Ready(()),
                    Poll::Pending => work.as_mut().poll(cx).map(|_| has_ended.set(true)),
                })
                .await;
            }));
            rig.pause(SOON);
            was_over += u64::from(over.get());
            // Something that only a flush of its own can make durable.
            rig.write(3 + turn, turn % 20, 1)?;
            let (volume, flushed) = (rig.volume(), Rc::new(Cell::new(false)));
            let is_flushed = Rc::clone(&flushed);
            rig.world.spawn(Box::pin(async move {
                is_flushed.set(volume.flush().await.is_ok());
            }));
            rig.pause(SOON);
            if !flushed.get() {
                return Err(format!("turn {turn}: a flush is not answered"));
            }
        }
        assert!(was_over > 0 && was_over < 390, "{was_over} were not given up");
        Ok(())
    });
}

//! How long data may be dirty, and when it is destaged at all.

use std::rc::Rc;

use forebay_device::Request;
use forebay_device::model::world::Crash;
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_engine::{DestageWait, Hours, Tuning, VolumeSettings};

use crate::is_read;
use crate::rig::{BLOCK, Plan, Rig, lazy, same, survive, version};

/// A block two stripes of 4 MiB behind the first.
const FAR: u64 = 2048;

fn rig(seed: u64, tuning: Tuning, settings: VolumeSettings) -> Result<Rc<Rig>, String> {
    let rig = Rig::new(seed, Plan { tuning, origin_bytes: 16 << 20, ..Plan::default() });
    set(&rig, settings)?;
    Ok(rig)
}

fn set(rig: &Rig, settings: VolumeSettings) -> Result<(), String> {
    let volume = rig.volume();
    rig.run(async move { volume.set(settings).await })?.map_err(|error| error.to_string())
}

fn aging(dirty_age_max_s: u32) -> VolumeSettings {
    VolumeSettings { dirty_age_max_s, ..VolumeSettings::default() }
}

/// Appends become durable by themselves, and nothing else happens.
fn flushing() -> Tuning {
    Tuning { flush_interval: 100 * MILLISECOND, ..lazy() }
}

fn on_origin(rig: &Rig, block: u64) -> Result<u64, String> {
    version(block, &rig.origin.peek(block * BLOCK as u64, BLOCK))
}

#[test]
fn what_is_too_old_is_destaged_and_nothing_else() {
    survive(4, |seed| {
        let rig = rig(seed, flushing(), aging(10))?;
        rig.write(2, 3, 1)?;
        rig.pause(8 * SECOND);
        rig.write(2, FAR, 1)?;
        rig.pause(SECOND);
        same("too early", on_origin(&rig, 3)?, 1)?;
        rig.pause(3 * SECOND);
        same("after 12 s", on_origin(&rig, 3)?, 2)?;
        same("after 4 s", on_origin(&rig, FAR)?, 1)?;
        rig.pause(8 * SECOND);
        same("after 12 s", on_origin(&rig, FAR)?, 2)?;
        if let Some(age) = rig.volume().dirty_for() {
            return Err(format!("something is dirty since {age} ns"));
        }
        // Never again, until somebody writes.
        let written = rig.pool().counters().destage_bytes.get();
        rig.pause(60 * SECOND);
        same("bytes destaged", rig.pool().counters().destage_bytes.get(), written).map(drop)
    });
}

#[test]
fn what_is_rewritten_again_and_again_is_destaged_once_for_each_age() {
    survive(4, |seed| {
        let rig = rig(seed, flushing(), aging(10))?;
        for second in 0..100_u64 {
            rig.write(2 + second, 3, 1)?;
            rig.write(2 + second, 100 + second, 1)?;
            rig.pause(SECOND);
            let oldest = rig.volume().dirty_for().unwrap_or(0);
            if oldest > 13 * SECOND {
                return Err(format!("after {second} s something is dirty for {oldest} ns"));
            }
        }
        let blocks = rig.pool().counters().destage_bytes.get() / BLOCK as u64;
        match blocks {
            90..=130 => Ok(()),
            _ => Err(format!("{blocks} blocks were destaged, of 100 and a few")),
        }
    });
}

#[test]
fn what_an_origin_refuses_stays_old_and_is_tried_again() {
    survive(4, |seed| {
        let rig = rig(seed, flushing(), aging(60))?;
        rig.write(2, 3, 1)?;
        rig.write(2, FAR, 1)?;
        rig.pause(58 * SECOND);
        rig.origin_gate.fail_next(|request| matches!(request, Request::Write { .. }));
        rig.pause(10 * SECOND);
        same("after the retry", on_origin(&rig, 3)?, 2)?;
        same("after the retry", on_origin(&rig, FAR)?, 2).map(drop)
    });
}

#[test]
fn what_a_failed_flush_may_have_lost_is_old() {
    survive(4, |seed| {
        let tuning = Tuning { origin_flush_interval: 2 * SECOND, ..flushing() };
        let rig = rig(seed, tuning, aging(60))?;
        rig.write(2, 3, 1)?;
        rig.pause(59 * SECOND);
        rig.origin_gate.fail_next(|request| matches!(request, Request::Flush));
        rig.pause(15 * SECOND);
        match rig.volume().unproven_blocks() {
            0 => same("twice", rig.pool().counters().destage_bytes.get(), 8192).map(drop),
            left => Err(format!("{left} blocks wait for another minute")),
        }
    });
}

#[test]
fn what_a_start_finds_dirty_is_old_whatever_it_is() {
    survive(4, |seed| {
        let rig = rig(seed, flushing(), aging(600))?;
        rig.write(2, 3, 1)?;
        rig.flush()?;
        rig.restart(Crash::ProcessKill)?;
        same("the setting", u64::from(rig.volume().settings().dirty_age_max_s), 600)?;
        rig.pause(5 * SECOND);
        same("after the start", on_origin(&rig, 3)?, 2).map(drop)
    });
}

#[test]
fn what_is_moved_is_as_old_as_before() {
    survive(4, |seed| {
        let plan = Plan { members: 3, copies: 2, tuning: flushing(), ..Plan::default() };
        let rig = Rig::new(seed, Plan { origin_bytes: 16 << 20, ..plan });
        set(&rig, aging(600))?;
        let blocks = [0, FAR / 2, FAR];
        blocks.iter().try_for_each(|&block| rig.write(2, block, 12))?;
        rig.flush()?;
        rig.crash(Crash::ProcessKill);
        // What had a copy there gets another one, by being appended again.
        rig.offer(&[1, 2]);
        rig.open()?;
        rig.pause(5 * SECOND);
        blocks
            .iter()
            .try_for_each(|&block| same("after the start", on_origin(&rig, block)?, 2).map(drop))
    });
}

#[test]
fn in_the_background_it_is_destaged_within_its_hours_alone() {
    survive(4, |seed| {
        let tuning = Tuning { destage_when_idle: true, ..flushing() };
        let night = VolumeSettings { destage_hours: Hours::new(60, 360), ..aging(0) };
        let rig = rig(seed, tuning, night)?;
        let wait = || rig.volume().destage_wait();
        rig.pool().tell_time(59);
        rig.write(2, 3, 1)?;
        rig.pause(100 * SECOND);
        same("before its hours", on_origin(&rig, 3)?, 1)?;
        assert_eq!(wait(), Some(DestageWait::Hours { from: 60, in_minutes: 1 }));
        rig.pool().tell_time(60);
        assert_eq!(wait(), None);
        rig.pause(SECOND);
        same("within them", on_origin(&rig, 3)?, 2)?;
        rig.write(3, 3, 1)?;
        rig.pause(SECOND);
        same("within them", on_origin(&rig, 3)?, 3)?;
        rig.pool().tell_time(360);
        rig.write(4, 3, 1)?;
        rig.pause(100 * SECOND);
        same("behind them", on_origin(&rig, 3)?, 3)?;
        assert_eq!(wait(), Some(DestageWait::Hours { from: 60, in_minutes: 19 * 60 }));
        // Age does not wait for them, and neither does who asks.
        set(&rig, VolumeSettings { dirty_age_max_s: 10, ..night })?;
        rig.pause(2 * SECOND);
        same("too old", on_origin(&rig, 3)?, 4)?;
        rig.write(5, 3, 1)?;
        rig.destage()?;
        same("on request", on_origin(&rig, 3)?, 5).map(drop)
    });
}

#[test]
fn a_full_log_does_not_wait_for_hours() {
    survive(2, |seed| {
        let night = VolumeSettings { destage_hours: Hours::new(60, 360), ..aging(0) };
        let rig = rig(seed, Tuning { lap_percent: 10, ..flushing() }, night)?;
        rig.pool().tell_time(0);
        for block in 0..1280 {
            rig.write(2, block, 1)?;
        }
        Ok(())
    });
}

#[test]
fn one_read_that_an_origin_does_not_answer_holds_up_nothing_that_is_too_old() {
    survive(2, |seed| {
        let rig = rig(seed, flushing(), aging(10))?;
        // Enough to know how long reads take.
        (100..180).try_for_each(|block| rig.read(block).map(drop))?;
        rig.write(2, 3, 1)?;
        rig.origin_gate.hold(1, is_read);
        rig.start_read(1_000);
        rig.pause(30 * SECOND);
        assert_eq!(rig.origin_gate.held(), 1);
        same("beside the read", on_origin(&rig, 3)?, 2)?;
        rig.origin_gate.release();
        rig.pause(SECOND);
        same("and the block", rig.read(1_000)?, 1).map(drop)
    });
}

//! Stripes of an array that are read and written as a whole: what lies between the dirty blocks stays what it was, or
//! becomes what it is meanwhile.

use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::{Request, Runtime, Stripe};
use forebay_engine::planted::{Bug, take_seen};
use forebay_engine::{Mode, Tuning};

use crate::rig::{BLOCK, KINDS, Plan, Rig, SLOWEST, SOON, lazy, provoke, same, survive, version};

/// Blocks of a stripe.
const STRIPE: u64 = 16;

/// Those of the first stripe that are dirty.
const DIRTY: [u64; 4] = [0, 2, 3, 9];

fn is_read(request: &Request) -> bool {
    matches!(request, Request::Read { .. })
}

fn is_read_of_the_fourth(request: &Request) -> bool {
    let place = 3 * STRIPE * BLOCK as u64;
    matches!(request, Request::Read { offset, buf } if (*offset..*offset + buf.len() as u64).contains(&place))
}

fn is_write(request: &Request) -> bool {
    matches!(request, Request::Write { .. })
}

fn rig(seed: u64) -> Result<Rc<Rig>, String> {
    let (bytes, chunk_bytes) = (STRIPE * BLOCK as u64, STRIPE / 4 * BLOCK as u64);
    let stripe = Some(Stripe { bytes, chunk_bytes, parity: true });
    let tuning = Tuning { destage_whole_percent: 1, ..lazy() };
    let origin_bytes = 64 * STRIPE * BLOCK as u64;
    // Two members have room for all of it: what reclaim moves is under way when its stripe is planned.
    let members = 2;
    let rig = Rig::new(seed, Plan { members, stripe, tuning, origin_bytes, ..Plan::default() });
    for block in DIRTY {
        rig.write(2, block, 1)?;
    }
    rig.flush()?;
    Ok(rig)
}

fn start_destage(rig: &Rig) {
    let volume = rig.volume();
    rig.world.spawn(Box::pin(async move { volume.destage().await.unwrap_or(()) }));
}

fn set_mode(rig: &Rig, mode: Mode) -> Result<(), String> {
    let volume = rig.volume();
    rig.run(async move { volume.set_mode(mode).await })?.map_err(|error| error.to_string())
}

fn count(rig: &Rig, name: &str) -> u64 {
    let list = rig.pool().counters().list();
    list.iter().find(|(counter, _)| *counter == name).map_or(0, |(_, value)| *value)
}

/// The first stripe reads as versions 2 and 1, but for what was `changed` since; and the origin has that in the end.
fn check(rig: &Rig, changed: &[(u64, u64)]) -> Result<(), String> {
    check_stripes(rig, 1, changed)
}

/// The same of so many stripes.
fn check_stripes(rig: &Rig, dirty: u64, changed: &[(u64, u64)]) -> Result<(), String> {
    let expected = |block: u64| {
        let other = changed.iter().find(|(at, _)| *at == block).map(|(_, version)| *version);
        let is_dirty = block < dirty * STRIPE && DIRTY.contains(&(block % STRIPE));
        other.unwrap_or(if is_dirty { 2 } else { 1 })
    };
    for block in 0..(dirty + 1) * STRIPE {
        same(&format!("block {block}"), rig.read(block)?, expected(block))?;
    }
    rig.destage()?;
    for block in 0..(dirty + 1) * STRIPE {
        let bytes = rig.origin.peek(block * BLOCK as u64, BLOCK);
        same(&format!("block {block} of the origin"), version(block, &bytes)?, expected(block))?;
    }
    Ok(())
}

#[test]
fn many_pieces_of_a_stripe_are_one_write() {
    survive(5, |seed| {
        let rig = rig(seed)?;
        rig.destage()?;
        let between = STRIPE - DIRTY.len() as u64;
        assert_eq!(count(&rig, "destage_fill_bytes"), between * BLOCK as u64);
        assert_eq!(count(&rig, "destage_bytes"), (DIRTY.len() * BLOCK) as u64);
        check(&rig, &[])
    });
}

#[test]
fn what_goes_straight_to_a_stripe_on_its_way_is_not_undone() {
    provoke(Bug::WholeStripeUnguarded, 5, |seed| {
        let rig = rig(seed)?;
        set_mode(&rig, Mode::Readonly)?;
        rig.origin_gate.hold(1, is_read);
        start_destage(&rig);
        rig.pause(SOON);
        assert_eq!(rig.origin_gate.held(), 1, "the stripe was read");
        let written = rig.start_write(3, 1, 1);
        rig.pause(SOON);
        rig.origin_gate.release();
        rig.pause(100 * SOON);
        assert!(written.get(), "a write waited for ever");
        check(&rig, &[(1, 3)])
    });
}

#[test]
fn a_stripe_is_not_read_while_something_goes_straight_to_it() {
    survive(40, |seed| {
        let rig = rig(seed)?;
        set_mode(&rig, Mode::Readonly)?;
        let block = BLOCK as u64..2 * BLOCK as u64;
        rig.origin_broken.slow.arm(Trigger::every(Ops::Writes).within(block));
        let written = rig.start_write(3, 1, 1);
        start_destage(&rig);
        rig.pause(4 * SLOWEST);
        assert!(written.get());
        assert_eq!(count(&rig, "destage_fill_bytes"), 0, "it went in pieces");
        check(&rig, &[(1, 3)])
    });
}

#[test]
fn what_is_written_into_the_log_beside_a_stripe_on_its_way_does_not_wait_and_goes_home_later() {
    survive(5, |seed| {
        let rig = rig(seed)?;
        rig.origin_gate.hold(1, is_read);
        start_destage(&rig);
        rig.pause(SOON);
        assert_eq!(rig.origin_gate.held(), 1);
        rig.write(3, 1, 1)?;
        rig.write(3, 9, 1)?;
        rig.flush()?;
        rig.origin_gate.release();
        rig.pause(SOON);
        check(&rig, &[(1, 3), (9, 3)])
    });
}

#[test]
fn a_stripe_that_cannot_be_read_as_a_whole_is_written_in_pieces() {
    survive(5, |seed| {
        let rig = rig(seed)?;
        let block = 5 * BLOCK as u64..6 * BLOCK as u64;
        rig.origin_broken.failing.arm(Trigger::every(Ops::Reads).within(block));
        rig.destage()?;
        assert_eq!(count(&rig, "destage_fill_bytes"), 0);
        rig.origin_broken.mend();
        check(&rig, &[])
    });
}

#[test]
fn a_power_cut_amid_a_stripe_leaves_what_lies_between() {
    survive(40, |seed| {
        let (hold, crash) = ([is_read, is_write][seed as usize % 2], KINDS[seed as usize / 2 % 2]);
        let rig = rig(seed)?;
        rig.origin_gate.hold(1, hold);
        start_destage(&rig);
        rig.pause(SOON);
        assert_eq!(rig.origin_gate.held(), 1);
        rig.restart(crash)?;
        check(&rig, &[])
    });
}

#[test]
fn a_stripe_whose_write_fails_is_written_again() {
    survive(5, |seed| {
        let rig = rig(seed)?;
        rig.origin_broken.failing.arm(Trigger::every(Ops::Writes).times(1));
        rig.destage()?;
        assert_eq!(rig.origin_broken.failing.hits(), 1);
        check(&rig, &[])
    });
}

#[test]
fn zeroes_that_reach_into_a_stripe_keep_it_from_being_written_as_a_whole() {
    survive(5, |seed| {
        let rig = rig(seed)?;
        for block in [20, 22, 25] {
            rig.write(2, block, 1)?;
        }
        let volume = rig.volume();
        let (offset, len) = (14 * BLOCK as u64, 4 * BLOCK as u64);
        let zeroed = rig.run(async move { volume.write_zeroes(offset, len, false).await })?;
        zeroed.map_err(|error| error.to_string())?;
        rig.flush()?;
        rig.destage()?;
        assert_eq!(count(&rig, "destage_fill_bytes"), 0);
        assert!(rig.origin.peek(offset, len as usize).iter().all(|byte| *byte == 0));
        for block in [0, 2, 3, 9, 20, 22, 25] {
            let bytes = rig.origin.peek(block * BLOCK as u64, BLOCK);
            same(&format!("block {block} of the origin"), version(block, &bytes)?, 2)?;
        }
        Ok(())
    });
}

/// Stripes with dirty pieces, of which several are written together.
const STRIPES: u64 = 24;

/// Clients read beside a stripe on its way, and what reads take without that is known; then other stripes are dirty as
/// well, of which the next plan has some together.
fn beside_readers(seed: u64) -> Result<Rc<Rig>, String> {
    take_seen();
    let rig = rig(seed)?;
    let blank = (STRIPES + 1) * STRIPE;
    rig.origin_gate.hold(1, is_write);
    start_destage(&rig);
    rig.pause(SOON);
    assert_eq!(rig.origin_gate.held(), 1);
    (blank..blank + 128).try_for_each(|block| rig.read(block).map(drop))?;
    rig.origin_gate.release();
    rig.pause(SOON);
    (blank + 128..blank + 192).try_for_each(|block| rig.read(block).map(drop))?;
    for stripe in 1..STRIPES {
        for at in DIRTY {
            rig.write(2, stripe * STRIPE + at, 1)?;
        }
    }
    rig.flush()?;
    Ok(rig)
}

fn is_together() -> bool {
    take_seen().contains_key("stripes written together")
}

#[test]
fn stripes_beside_readers_are_written_together() {
    survive(5, |seed| {
        let rig = beside_readers(seed)?;
        rig.destage()?;
        assert!(is_together());
        let between = STRIPES * (STRIPE - DIRTY.len() as u64);
        assert_eq!(count(&rig, "destage_fill_bytes"), between * BLOCK as u64);
        check_stripes(&rig, STRIPES, &[])
    });
}

#[test]
fn what_goes_straight_to_stripes_on_their_way_together_is_not_undone() {
    provoke(Bug::WholeStripeUnguarded, 5, |seed| {
        let rig = beside_readers(seed)?;
        set_mode(&rig, Mode::Readonly)?;
        rig.origin_gate.hold(1, is_read_of_the_fourth);
        start_destage(&rig);
        rig.pause(20 * SOON);
        assert_eq!(rig.origin_gate.held(), 1, "stripes were read");
        let written = rig.start_write(3, 3 * STRIPE + 1, 1);
        rig.pause(SOON);
        rig.origin_gate.release();
        rig.pause(100 * SOON);
        assert!(written.get(), "a write waited for ever");
        check_stripes(&rig, STRIPES, &[(3 * STRIPE + 1, 3)])
    });
}

#[test]
fn a_stripe_that_cannot_be_read_leaves_those_beside_it_whole() {
    survive(5, |seed| {
        let rig = beside_readers(seed)?;
        let block = 4 * STRIPE + 5;
        let bytes = block * BLOCK as u64..(block + 1) * BLOCK as u64;
        rig.origin_broken.failing.arm(Trigger::every(Ops::Reads).within(bytes));
        rig.destage()?;
        let between = (STRIPES - 1) * (STRIPE - DIRTY.len() as u64);
        assert_eq!(count(&rig, "destage_fill_bytes"), between * BLOCK as u64);
        rig.origin_broken.mend();
        check_stripes(&rig, STRIPES, &[])
    });
}

#[test]
fn a_power_cut_amid_stripes_together_leaves_what_lies_between() {
    survive(40, |seed| {
        let (hold, crash) = ([is_read, is_write][seed as usize % 2], KINDS[seed as usize / 2 % 2]);
        let rig = beside_readers(seed)?;
        rig.origin_gate.hold(1, hold);
        start_destage(&rig);
        rig.pause(20 * SOON);
        assert_eq!(rig.origin_gate.held(), 1);
        rig.restart(crash)?;
        check_stripes(&rig, STRIPES, &[])
    });
}

#[test]
fn stripes_together_whose_write_fails_are_written_again() {
    survive(5, |seed| {
        let rig = beside_readers(seed)?;
        rig.origin_broken.failing.arm(Trigger::every(Ops::Writes).times(1));
        rig.destage()?;
        assert_eq!(rig.origin_broken.failing.hits(), 1);
        check_stripes(&rig, STRIPES, &[])
    });
}

#[test]
fn stripes_together_wait_for_a_slow_read_and_not_for_ever() {
    survive(5, |seed| {
        let rig = beside_readers(seed)?;
        rig.origin_gate.hold(1, is_read);
        start_destage(&rig);
        rig.pause(20 * SOON);
        assert_eq!(rig.origin_gate.held(), 1, "stripes were read");
        let block = (STRIPES + 1) * STRIPE + 200;
        let bytes = block * BLOCK as u64..(block + 1) * BLOCK as u64;
        rig.origin_broken.slow.arm(Trigger::every(Ops::Reads).within(bytes));
        rig.start_read(block);
        // Longer than reads take by themselves, and less than this one does under these seeds.
        rig.pause(SLOWEST / 25);
        rig.origin_gate.release();
        rig.pause(SOON);
        let seen = take_seen();
        assert!(seen.contains_key("stripes wait for a read"), "{seen:?}");
        assert!(seen.contains_key("stripes written together"), "{seen:?}");
        rig.pause(2 * SLOWEST);
        check_stripes(&rig, STRIPES, &[])
    });
}

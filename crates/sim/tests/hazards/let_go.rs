//! What reclaim lets go of: it is read where it is until its place is needed, and no root that makes its place free names it.

use std::rc::Rc;

use forebay_device::Request;
use forebay_device::model::world::Crash;
use forebay_device::runtime::MILLISECOND;
use forebay_engine::planted::Bug;

use crate::destaging;
use crate::rig::{BLOCK, Plan, Rig, SOON, provoke, same, survive};
use crate::space::{reserved, set};

/// Reads fill the log more than once, then writes.
fn filled_by_reads(seed: u64) -> Result<Rc<Rig>, String> {
    let rig =
        Rig::new(seed, Plan { origin_bytes: 8 << 20, tuning: destaging(), ..Plan::default() });
    for block in 0..900 {
        rig.read(2 * block)?;
        rig.pause(MILLISECOND);
    }
    Ok(rig)
}

/// Blocks of the volume that are in the cache.
fn held_blocks(rig: &Rig) -> u64 {
    rig.pool().space(rig.volume().id()).held_bytes / BLOCK as u64
}

#[test]
fn what_is_let_go_of_is_read_until_its_place_is_needed() {
    survive(3, |seed| {
        let rig = filled_by_reads(seed)?;
        rig.pause(SOON);
        let (free, segments) = rig.pool().segments();
        assert!(free >= 8 && segments == 51, "{free} of {segments} segments can be had");
        let empty = rig.pool().empty_segments();
        assert!((1..=4).contains(&empty), "{empty} segments hold nothing");
        // Where these held nothing it would be no more than seven eighths of that.
        let held = held_blocks(&rig);
        assert!(held >= 340, "{held} blocks are held");
        // The oldest ones, too, are what the origin has, or come from there.
        (0..900).try_for_each(|n| same("read again", rig.read(2 * n)?, 1).map(drop))?;
        Ok(())
    });
}

/// Who reads may wait for long: for a cache device, or for an origin that has the rest of what was asked for.
#[test]
fn what_is_still_being_read_is_nobodys_room() {
    survive(4, |seed| {
        let rig = filled_by_reads(seed)?;
        rig.pause(SOON);
        rig.gates[0].hold(60, |request| matches!(request, Request::Read { .. }));
        (0..900).for_each(|n| rig.start_read(2 * n));
        rig.pause(MILLISECOND);
        assert!(rig.gates[0].held() >= 40, "{} reads are held", rig.gates[0].held());
        let writes: Vec<_> = (0..200).map(|n| rig.start_write(2, 2 * n + 1, 1)).collect();
        rig.pause(100 * SOON);
        let left = writes.iter().filter(|write| !write.get()).count();
        if left > 0 {
            return Err(format!("{left} writes wait for who reads"));
        }
        rig.gates[0].release();
        rig.pause(SOON);
        (540..640).try_for_each(|n| same("read", rig.read(2 * n)?, 1).map(drop))?;
        (0..200).try_for_each(|n| same("written", rig.read(2 * n + 1)?, 2).map(drop))
    });
}

/// Blocks that are held before and after something that leaves only what nobody has let go of.
fn given_up(rig: &Rig, action: impl FnOnce() -> Result<(), String>) -> Result<(u64, u64), String> {
    rig.pause(SOON);
    let before = held_blocks(rig);
    action()?;
    rig.pause(SOON);
    let after = held_blocks(rig);
    (0..900).try_for_each(|n| same("read again", rig.read(2 * n)?, 1).map(drop))?;
    Ok((before, after))
}

/// It could be read for as long as nobody needs its place, and a scrub does not come to it.
#[test]
fn a_scrub_leaves_nothing_that_it_has_not_looked_at() {
    survive(3, |seed| {
        let rig = filled_by_reads(seed)?;
        let (before, after) = given_up(&rig, || rig.scrub().map(drop))?;
        assert!((before / 2..before * 19 / 20).contains(&after), "{after} of {before} are left");
        Ok(())
    });
}

/// It would count as held for its volume until it is gone without anybody having looked at that.
#[test]
fn nothing_is_let_go_of_and_read_beside_a_reservation() {
    survive(3, |seed| {
        let rig = filled_by_reads(seed)?;
        let reserve = || set(&rig, &rig.volume(), reserved(8));
        let (before, after) = given_up(&rig, reserve)?;
        assert!((before / 2..before * 19 / 20).contains(&after), "{after} of {before} are left");
        Ok(())
    });
}

#[test]
fn no_root_names_what_it_makes_room_of() {
    provoke(Bug::LetGoStillNamed, 10, |seed| {
        let rig = filled_by_reads(seed)?;
        for block in 0..150 {
            rig.write(2, 2 * block + 1, 1)?;
        }
        rig.flush()?;
        rig.restart(Crash::PowerCut)?;
        (0..1800).try_for_each(|block| {
            let written = block % 2 == 1 && block < 300;
            let expected = if written { 2 } else { 1 };
            same(&format!("block {block}"), rig.read(block)?, expected).map(drop)
        })
    });
}

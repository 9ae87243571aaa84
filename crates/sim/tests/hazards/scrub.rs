//! Copies that rot at rest: found and healed by a scrub while another copy has what they lack, served
//! from elsewhere by reads that are checked, and never guessed.

use std::rc::Rc;

use forebay_device::model::fault::{Faults, Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{Request, Runtime};
use forebay_engine::format::{Root, SUPERBLOCK_BYTES, Superblock};
use forebay_engine::planted::{self, Bug};
use forebay_engine::{EventKind, Mode, ScrubStatus, Tuning};

use crate::changing::begin_add;
use crate::rig::{
    BLOCK, Breakage, KINDS, MEMBER_BYTES, Plan, Rig, SEGMENT_BYTES, SOON, lazy, provoke, same,
    survive,
};

/// Blocks that are damaged, and so many more that fill the sets which they are in.
pub const DAMAGED: u64 = 32;
pub const BLOCKS: u64 = 96;

fn segments_offset(rig: &Rig) -> u64 {
    rig.pool().superblock().segments_offset
}

/// What is written into segments is stored wrong, lost or put elsewhere.
fn spoil(rig: &Rig, member: usize, how: fn(&Breakage) -> &Rc<Faults>) {
    let segments = segments_offset(rig)..MEMBER_BYTES;
    how(&rig.broken[member]).arm(Trigger::every(Ops::Writes).within(segments));
}

/// Two copies of dirty data, of which those of some blocks are spoilt on `members`.
pub fn spoilt(
    seed: u64,
    members: &[usize],
    how: fn(&Breakage) -> &Rc<Faults>,
) -> Result<Rc<Rig>, String> {
    spoilt_with(lazy(), seed, members, how)
}

pub fn spoilt_with(
    tuning: Tuning,
    seed: u64,
    members: &[usize],
    how: fn(&Breakage) -> &Rc<Faults>,
) -> Result<Rc<Rig>, String> {
    let plan = Plan { members: 2, copies: 2, verify_reads: true, tuning, ..Plan::default() };
    let rig = Rig::new(seed, plan);
    for block in 0..4 {
        rig.write(2, BLOCKS + block, 1)?;
    }
    members.iter().for_each(|&member| spoil(&rig, member, how));
    for block in 0..DAMAGED {
        rig.write(2, block, 1)?;
    }
    rig.broken.iter().for_each(Breakage::mend);
    for block in DAMAGED..BLOCKS {
        rig.write(2, block, 1)?;
    }
    rig.flush()?;
    rig.flush()?;
    Ok(rig)
}

impl Rig {
    /// Goes through all copies once.
    pub fn scrub(&self) -> Result<ScrubStatus, String> {
        let (pool, world) = (self.pool(), Rc::clone(&self.world));
        pool.start_scrub().map_err(|error| error.to_string())?;
        self.run(async move {
            while pool.scrub().running {
                let runtime: &dyn Runtime = &*world;
                runtime.sleep(MILLISECOND).await.result.ok();
            }
            pool.scrub()
        })
    }

    pub fn told(&self, kind: EventKind) -> usize {
        self.pool().events().iter().filter(|event| event.kind == kind).count()
    }

    /// All blocks, each as it was written.
    pub fn is_whole(&self, when: &str) -> Result<(), String> {
        for block in 0..BLOCKS {
            same(&format!("block {block} {when}"), self.read(block)?, 2)?;
        }
        Ok(())
    }
}

fn healed(seed: u64, how: fn(&Breakage) -> &Rc<Faults>) -> Result<(), String> {
    let bad = (seed % 2) as usize;
    let rig = spoilt(seed, &[bad], how)?;
    let found = rig.scrub()?.found;
    if found.copied < DAMAGED || found.unhealed + found.dropped > 0 {
        return Err(format!("{found:?}"));
    }
    assert!(rig.told(EventKind::DamageFound) > 0);
    rig.flush()?;
    // Whoever has lost the good one finds everything on the other.
    rig.offer(&[bad]);
    rig.restart(KINDS[(seed / 2 % 2) as usize])?;
    rig.is_whole("without the good member")?;
    rig.destage()?;
    (0..BLOCKS).try_for_each(|block| rig.settled(block))
}

#[test]
fn what_one_copy_has_wrong_is_copied_again_from_the_other() {
    provoke(Bug::HealedFromBadCopy, 8, |seed| healed(seed, |broken| &broken.flipping));
}

#[test]
fn what_one_copy_never_got_is_copied_again_from_the_other() {
    survive(8, |seed| healed(seed, |broken| &broken.losing));
}

#[test]
fn what_one_copy_has_elsewhere_is_copied_again_from_the_other() {
    survive(8, |seed| {
        let bad = (seed % 2) as usize;
        let rig = spoilt(seed, &[bad], |broken| &broken.misdirecting)?;
        // It may have overwritten its own superblocks or other data, so the other one stays.
        rig.scrub()?;
        rig.is_whole("after the scrub")
    });
}

/// The damaged one, at each tenth of its reads: what it does not answer is no damage, and the other one has
/// everything.
#[test]
fn a_scrub_goes_on_without_a_member_that_hangs() {
    survive(4, |seed| {
        let hung = (seed % 2) as usize;
        for after in (0..).step_by(10) {
            let rig = spoilt(seed, &[hung], |broken| &broken.flipping)?;
            rig.broken[hung].hanging.arm(Trigger::every(Ops::Reads).after(after));
            let found = rig.scrub()?.found;
            assert_eq!((found.unhealed, found.dropped), (0, 0), "after {after}");
            assert!(!rig.pool().is_latched(), "after {after}");
            let hit = rig.broken[hung].hanging.hits() > 0;
            assert_eq!(rig.told(EventKind::MemberHung), usize::from(hit), "after {after}");
            rig.broken[hung].answer();
            rig.is_whole("after the scrub")?;
            rig.broken[hung].mend();
            rig.restart(KINDS[(seed / 2 % 2) as usize])?;
            rig.is_whole("after a crash")?;
            rig.destage()?;
            (0..BLOCKS).try_for_each(|block| rig.settled(block))?;
            if !hit {
                assert!(after > 20, "it had something to hang at");
                break;
            }
        }
        Ok(())
    });
}

#[test]
fn a_second_scrub_finds_nothing() {
    survive(6, |seed| {
        let rig = spoilt(seed, &[(seed % 2) as usize], |broken| &broken.flipping)?;
        rig.scrub()?;
        rig.flush()?;
        assert_eq!(rig.scrub()?.found.damaged, 0);
        assert_eq!(rig.told(EventKind::ScrubEnded), 2);
        Ok(())
    });
}

/// Whether a record is written.
fn is_record_write(request: &Request) -> bool {
    // Superblocks and roots end before this in a pool of this size; a segment's header is one block.
    matches!(request, Request::Write { offset, data, .. }
        if *offset >= 320 << 10 && data.len() > BLOCK)
}

#[test]
fn healing_does_not_undo_what_is_written_meanwhile() {
    provoke(Bug::HealedAsWrite, 4, |seed| {
        let bad = (seed % 2) as usize;
        let rig = spoilt(seed, &[bad], |broken| &broken.flipping)?;
        assert!(segments_offset(&rig) >= 320 << 10);
        // No checkpoint is due then.
        rig.pause(2 * SECOND);
        rig.gates[bad].hold(1, is_record_write);
        let pool = rig.pool();
        pool.start_scrub().unwrap();
        rig.pause(SOON);
        assert_eq!(rig.gates[bad].held(), 1, "a block is on its way to its new place");
        let done: Vec<_> = (0..DAMAGED).map(|block| rig.start_write(3, block, 1)).collect();
        rig.pause(SOON);
        rig.gates[bad].release();
        rig.pause(2 * SECOND);
        assert!(done.iter().all(|done| done.get()) && !pool.scrub().running);
        for block in 0..DAMAGED {
            same(&format!("block {block}"), rig.read(block)?, 3)?;
        }
        rig.flush()?;
        rig.restart(KINDS[(seed / 2 % 2) as usize])?;
        for block in 0..DAMAGED {
            same(&format!("block {block} after a crash"), rig.read(block)?, 3)?;
        }
        Ok(())
    });
}

#[test]
fn healing_can_be_cut_off_at_every_io() {
    survive(2, |seed| {
        let bad = (seed % 2) as usize;
        let mut ios = 1;
        loop {
            let rig = spoilt(seed, &[bad], |broken| &broken.flipping)?;
            rig.world.crash_at(Some(rig.world.io_count() + ios));
            let cut = rig.scrub().is_err();
            rig.world.crash_at(None);
            rig.restart(KINDS[(ios % 2) as usize])?;
            rig.is_whole(&format!("cut off at I/O {ios}"))?;
            if !cut {
                break;
            }
            assert_eq!(rig.scrub()?.found.unhealed, 0);
            rig.flush()?;
            rig.offer(&[bad]);
            rig.restart(Crash::PowerCut)?;
            rig.is_whole(&format!("without the good member, cut off at I/O {ios}"))?;
            ios += 3;
        }
        assert!(ios > 60, "{ios} I/Os only");
        Ok(())
    });
}

#[test]
fn what_is_dirty_and_good_in_no_copy_is_told_and_never_guessed() {
    survive(4, |seed| {
        let rig = spoilt(seed, &[0, 1], |broken| &broken.losing)?;
        let found = rig.scrub()?.found;
        assert!(found.unhealed >= DAMAGED && found.copied == 0, "{found:?}");
        let told = rig.told(EventKind::DamageUnhealed);
        assert!((1..=2).contains(&told), "{told} events");
        assert!(!rig.pool().is_latched());
        for block in 0..BLOCKS {
            let read = rig.read(block);
            assert_eq!(read.is_err(), block < DAMAGED, "block {block}: {read:?}");
        }
        // Overwritten, it is whole again.
        for block in 0..DAMAGED {
            rig.write(2, block, 1)?;
        }
        rig.is_whole("overwritten")?;
        rig.destage()?;
        (0..BLOCKS).try_for_each(|block| rig.settled(block))
    });
}

#[test]
fn clean_data_that_is_damaged_is_dropped_and_read_from_the_origin() {
    survive(6, |seed| {
        let rig = Rig::new(seed, Plan { mode: Mode::Readonly, ..Plan::default() });
        spoil(&rig, 0, |broken| &broken.flipping);
        for block in 0..DAMAGED {
            rig.read(block)?;
        }
        rig.flush()?;
        rig.broken[0].mend();
        for block in DAMAGED..BLOCKS {
            rig.read(block)?;
        }
        rig.flush()?;
        rig.flush()?;
        let found = rig.scrub()?.found;
        assert!(found.dropped >= DAMAGED / 2 && found.copied + found.unhealed == 0, "{found:?}");
        (0..BLOCKS).try_for_each(|block| same("a block", rig.read(block)?, 1).map(drop))
    });
}

#[test]
fn clean_data_with_a_good_copy_is_copied_again() {
    survive(4, |seed| {
        let plan = Plan { members: 2, clean_copies: 2, mode: Mode::Readonly, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        spoil(&rig, (seed % 2) as usize, |broken| &broken.flipping);
        for block in 0..DAMAGED {
            rig.read(block)?;
        }
        rig.flush()?;
        rig.broken.iter().for_each(Breakage::mend);
        for block in DAMAGED..BLOCKS {
            rig.read(block)?;
        }
        rig.flush()?;
        rig.flush()?;
        let found = rig.scrub()?.found;
        assert!(found.copied >= DAMAGED / 2 && found.dropped + found.unhealed == 0, "{found:?}");
        let misses = rig.pool().counters().read_misses.get();
        (0..DAMAGED).try_for_each(|block| same("a block", rig.read(block)?, 1).map(drop))?;
        assert_eq!(rig.pool().counters().read_misses.get(), misses);
        Ok(())
    });
}

#[test]
fn facts_that_are_damaged_are_replaced_by_images() {
    survive(4, |seed| {
        let plan = Plan { members: 2, copies: 2, mode: Mode::Readonly, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        for block in 0..BLOCKS {
            rig.read(block)?;
        }
        // What was read is in the log by then.
        rig.pause(SECOND);
        rig.flush()?;
        let bad = (seed % 2) as usize;
        spoil(&rig, bad, |broken| &broken.flipping);
        // Each logs a tombstone.
        for block in 0..BLOCKS / 2 {
            rig.write(2, block, 1)?;
        }
        rig.broken[bad].mend();
        rig.flush()?;
        rig.flush()?;
        assert!(rig.scrub()?.found.replaced > 0);
        rig.offer(&[bad]);
        rig.restart(KINDS[(seed / 2 % 2) as usize])?;
        for block in 0..BLOCKS {
            let newest = if block < BLOCKS / 2 { 2 } else { 1 };
            same(&format!("block {block} without the good member"), rig.read(block)?, newest)?;
        }
        Ok(())
    });
}

#[test]
fn a_lap_goes_on_where_the_last_start_was() {
    let rig = spoilt(1, &[0], |broken| &broken.flipping).unwrap();
    let pool = rig.pool();
    rig.run(async move { pool.set_scrub_rate(64 << 10).await }).unwrap().unwrap();
    rig.pool().start_scrub().unwrap();
    assert!(!rig.pool().start_scrub().unwrap(), "there is one");
    let all = rig.pool().scrub().left_bytes;
    rig.pause(8 * SECOND);
    let begun = rig.pool().scrub();
    assert!(begun.running && begun.left_bytes < all, "{begun:?}");
    // A clean stop keeps the place.
    rig.stop().unwrap();
    rig.open().unwrap();
    let now = rig.pool().scrub();
    assert!(now.running && now.left_bytes < all && now.begun_unix_s == begun.begun_unix_s);
    assert!(rig.pool().stop_scrub() && !rig.pool().stop_scrub());
    rig.pause(2 * SECOND);
    rig.restart(Crash::PowerCut).unwrap();
    assert!(!rig.pool().scrub().running, "that it was ended is durable");
}

/// A lap goes on while a device is being made ready: it has the superblock of the others all the same. Else a lap would write over
/// what is good, and a power cut between the two slots would leave two that contradict each other.
#[test]
fn who_joins_while_a_lap_goes_on_has_the_superblock_of_the_others() {
    survive(4, |seed| {
        let is_its_superblock = |request: &Request| {
            matches!(request, Request::Write { offset, data, .. }
                if *offset < 2 * SUPERBLOCK_BYTES as u64 && data.iter().any(|&byte| byte != 0))
        };
        let plan = Plan { members: 2, spares: 1, copies: 2, tuning: lazy(), ..Plan::default() };
        let rig = Rig::new(seed, plan);
        (0..BLOCKS).try_for_each(|block| rig.write(2, block, 1))?;
        rig.flush()?;
        let pool = rig.pool();
        let slowed = rig.run(async move { pool.set_scrub_rate(64 << 10).await })?;
        slowed.map_err(|error| error.to_string())?;
        rig.pool().start_scrub().map_err(|error| error.to_string())?;
        rig.pause(SECOND);
        rig.gates[2].hold(1, is_its_superblock);
        begin_add(&rig, 2);
        rig.pause(SOON);
        assert_eq!(rig.gates[2].held(), 1, "it is being made ready");
        let left = rig.pool().scrub().left_bytes;
        rig.pause(4 * SECOND);
        assert!(rig.pool().scrub().left_bytes < left, "the lap goes on");
        rig.gates[2].release();
        rig.pause(SOON);
        assert_eq!(rig.pool().superblock().members.len(), 3);
        for slot in [0, SUPERBLOCK_BYTES as u64] {
            let all = (0..3).map(|member| {
                let bytes = rig.members[member].peek(slot, SUPERBLOCK_BYTES);
                let found = Superblock::decode(&bytes).map_err(|error| error.to_string())?;
                Ok(Superblock { device: rig.pool().superblock().device, ..found })
            });
            let all = all.collect::<Result<Vec<_>, String>>()?;
            if all[0] != all[1] || all[0] != all[2] {
                let next = all.iter().map(|one| (one.generation, one.scrub_next));
                return Err(format!("{:?}", next.collect::<Vec<_>>()));
            }
        }
        Ok(())
    });
}

#[test]
fn a_lap_begins_by_itself_when_it_is_due_and_not_without_a_rate() {
    let rig = Rig::new(1, Plan::default());
    let laps = || {
        rig.pause(3 * SECOND);
        rig.pool().counters().scrub_laps.get()
    };
    assert_eq!(laps(), 0, "the pool is new");
    for (rate, expected) in [(8 << 20, 1), (0, 0)] {
        let pool = rig.pool();
        rig.run(async move { pool.set_scrub_rate(rate).await }).unwrap().unwrap();
        rig.stop().unwrap();
        // As if the last one had begun long ago.
        for slot in [0, SUPERBLOCK_BYTES as u64] {
            let mut found =
                Superblock::decode(&rig.members[0].peek(slot, SUPERBLOCK_BYTES)).unwrap();
            found.scrub_begun_unix_s = 1;
            rig.members[0].poke(slot, &found.encode());
        }
        rig.open().unwrap();
        assert_eq!(laps(), expected, "at {rate} B a second");
    }
    assert!(rig.pool().start_scrub().is_err());
}

/// Both copies have damaged blocks, none of them the same.
#[test]
fn what_no_copy_has_as_a_whole_is_put_together() {
    survive(4, |seed| {
        let plan = Plan { members: 2, copies: 2, verify_reads: true, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        rig.write(2, 0, 12)?;
        rig.flush()?;
        // The record's header is the first block of the segment behind its own.
        for (member, block) in [(0, 3), (1, 8)] {
            let at = find(&rig, member, block);
            let mut bytes = rig.members[member].peek(at, 512);
            bytes[100] ^= 4;
            rig.members[member].poke(at, &bytes);
        }
        let volume = rig.volume();
        let (buf, result) =
            rig.run(async move { volume.read(0, forebay_device::Buf::new(12 * 4096)).await })?;
        result.map_err(|error| error.to_string())?;
        for block in 0..12 {
            let bytes = &buf[block * 4096..(block + 1) * 4096];
            same("a block", crate::rig::version(block as u64, bytes)?, 2)?;
        }
        rig.destage()?;
        (0..12).try_for_each(|block| rig.settled(block))
    });
}

/// Where a member has a block of the volume.
pub fn find(rig: &Rig, member: usize, block: u64) -> u64 {
    find_version(rig, member, block, 2)
}

pub fn find_version(rig: &Rig, member: usize, block: u64, version: u64) -> u64 {
    let is_it = |at: &u64| {
        let bytes = rig.members[member].peek(*at, 4096);
        crate::rig::version(block, &bytes) == Ok(version)
    };
    (segments_offset(rig)..MEMBER_BYTES).step_by(4096).find(is_it).expect("it is there")
}

/// Whatever error the device gives for it.
#[test]
fn what_one_device_does_not_read_is_copied_again_from_the_other() {
    survive(8, |seed| {
        let bad = (seed % 2) as usize;
        let rig = spoilt(seed, &[], |broken| &broken.flipping)?;
        let at = find(&rig, bad, 3);
        let trigger = Trigger::every(Ops::Reads).within(at..at + BLOCK as u64);
        [&rig.broken[bad].timing_out, &rig.broken[bad].erring][(seed / 2 % 2) as usize]
            .arm(trigger);
        let found = rig.scrub()?.found;
        if found.copied != 1 || found.unhealed + found.dropped > 0 {
            return Err(format!("{found:?}"));
        }
        rig.flush()?;
        rig.offer(&[bad]);
        rig.restart(KINDS[(seed / 4 % 2) as usize])?;
        rig.is_whole("without the member that has read it")?;
        rig.destage()?;
        (0..BLOCKS).try_for_each(|block| rig.settled(block))
    });
}

/// Clean and dirty data of a device that returns nothing for a while.
#[test]
fn a_lap_that_gets_no_answer_does_not_say_that_all_was_read() {
    survive(6, |seed| {
        let rig = Rig::new(seed, Plan::default());
        for block in 0..BLOCKS {
            rig.write(2, block, 1)?;
            if block == BLOCKS / 2 {
                rig.destage()?;
            }
        }
        rig.flush()?;
        rig.flush()?;
        let broken = &rig.broken[0];
        let how = [&broken.failing, &broken.timing_out, &broken.erring][(seed % 3) as usize];
        let cached = rig.pool().blocks().0;
        how.arm(Trigger::every(Ops::Reads));
        let found = rig.scrub()?.found;
        assert!(!rig.was_told("all copies were read"));
        assert_eq!((found.unhealed, found.dropped), (0, 0));
        assert_eq!(rig.pool().blocks().0, cached, "what will be read again stays");
        rig.broken[0].mend();
        rig.is_whole("after it")?;
        assert_eq!(rig.scrub()?.found.damaged, 0);
        assert!(rig.was_told("all copies were read"));
        rig.is_whole("after the next one")
    });
}

/// One slot of the superblocks and one of the roots, on one member: both are read at each start.
#[test]
fn a_lap_writes_rotten_superblocks_and_roots_anew() {
    survive(8, |seed| {
        let rig = spoilt(seed, &[], |broken| &broken.flipping)?;
        let (bad, slot) = ((seed % 2) as usize, seed / 2 % 2);
        let root_bytes = u64::from(rig.pool().superblock().root_bytes);
        let superblock_at = slot * SUPERBLOCK_BYTES as u64;
        let root_at = 2 * SUPERBLOCK_BYTES as u64 + (seed / 4 % 2) * root_bytes;
        // It has a place by now that is stored, so that nothing else writes them.
        rig.scrub()?;
        rig.pause(2 * SECOND);
        let is_sound = || {
            let superblock = rig.members[bad].peek(superblock_at, SUPERBLOCK_BYTES);
            let root = rig.members[bad].peek(root_at, root_bytes as usize);
            (Superblock::decode(&superblock).is_ok(), Root::decode(&root).is_ok())
        };
        assert_eq!(is_sound(), (true, true));
        rig.pool().start_scrub().unwrap();
        // Its beginning is durable.
        rig.pause(MILLISECOND);
        for at in [superblock_at, root_at] {
            let byte = rig.members[bad].peek(at + 40, 1)[0];
            rig.members[bad].poke(at + 40, &[byte ^ 4]);
        }
        assert_eq!(is_sound(), (false, false));
        let laps = rig.pool().counters().scrub_laps.get();
        let mut looks = 0;
        while rig.pool().counters().scrub_laps.get() == laps {
            rig.pause(MILLISECOND);
            looks += 1;
            assert!(looks < 100_000);
        }
        let found = rig.pool().scrub().found;
        if is_sound() != (true, true) || (found.replaced, found.damaged) != (2, 0) {
            return Err(format!("{:?}, {found:?}", is_sound()));
        }
        rig.is_whole("meanwhile")?;
        rig.offer(&[bad]);
        rig.restart(KINDS[(seed % 2) as usize])?;
        rig.is_whole("from the one with the new ones")
    });
}

/// Of sets with one copy and with two; each header names the others.
#[test]
fn a_lap_writes_rotten_headers_of_segments_anew() {
    survive(8, |seed| {
        let copies = 1 + (seed % 2) as u8;
        let rig = Rig::new(seed, Plan { members: copies.into(), copies, ..Plan::default() });
        for block in 0..BLOCKS {
            rig.write(2, block, 1)?;
        }
        rig.flush()?;
        rig.flush()?;
        let bad = (seed / 2 % u64::from(copies)) as usize;
        let at = find(&rig, bad, 3);
        let at = at - (at - segments_offset(&rig)) % SEGMENT_BYTES;
        let before = rig.members[bad].peek(at, BLOCK);
        let byte = rig.members[bad].peek(at + 40, 1)[0];
        rig.members[bad].poke(at + 40, &[byte ^ 4]);
        let found = rig.scrub()?.found;
        assert_eq!(rig.members[bad].peek(at, BLOCK), before, "as it was");
        assert_eq!((found.replaced, found.damaged), (1, 0));
        rig.offer(&[bad]);
        rig.restart(KINDS[(seed / 4 % 2) as usize])?;
        rig.is_whole("after a start")?;
        rig.destage()?;
        (0..BLOCKS).try_for_each(|block| rig.settled(block))
    });
}

/// Of sets that have lost a member and have copies enough without it: nobody knows any more what their headers said.
#[test]
fn what_lies_in_a_set_without_a_header_is_moved() {
    survive(6, |seed| {
        let rig = Rig::new(seed, crate::changing::plan(3, 0, 3));
        for block in 0..BLOCKS {
            rig.write(2, block, 1)?;
        }
        rig.flush()?;
        rig.flush()?;
        rig.ask_for(2)?;
        rig.until_promised(2)?;
        let lost = (seed % 3) as usize;
        rig.broken[lost].gone.set(true);
        crate::changing::touch(&rig);
        rig.pause(20 * SOON);
        assert_eq!(rig.told(EventKind::MemberFailed), 1);
        let left = crate::changing::all_but(3, lost);
        for &member in &left {
            let at = find(&rig, member, 3);
            let at = at - (at - segments_offset(&rig)) % SEGMENT_BYTES;
            let byte = rig.members[member].peek(at + 40, 1)[0];
            rig.members[member].poke(at + 40, &[byte ^ 4]);
        }
        let found = rig.scrub()?.found;
        assert_eq!((found.damaged, found.unhealed, found.unmended), (0, 0, 0));
        rig.flush()?;
        rig.offer(&left);
        rig.restart(KINDS[(seed / 3 % 2) as usize])?;
        rig.is_whole("after a start")?;
        rig.destage()?;
        (0..BLOCKS).try_for_each(|block| rig.settled(block))
    });
}

/// Superblocks, roots and headers of a device that returns nothing for a while.
#[test]
fn a_lap_says_what_metadata_it_could_not_read() {
    survive(3, |seed| {
        let rig = spoilt(seed, &[], |broken| &broken.flipping)?;
        let how = [&rig.broken[1].failing, &rig.broken[1].timing_out, &rig.broken[1].erring];
        rig.destage()?;
        how[seed as usize].arm(Trigger::every(Ops::Reads).within(0..segments_offset(&rig)));
        let found = rig.scrub()?.found;
        if found.unmended != 4 || rig.was_told("all copies were read") {
            return Err(format!("{found:?}"));
        }
        rig.broken[1].mend();
        assert_eq!(rig.scrub()?.found.unmended, 0);
        assert!(rig.was_told("all copies were read"));
        Ok(())
    });
}

/// What is only metadata says no more of a device that returns nothing than data does.
#[test]
fn records_of_metadata_that_get_no_answer_are_not_damage() {
    survive(3, |seed| {
        let plan = Plan { members: 2, copies: 2, mode: Mode::Readonly, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        (0..BLOCKS).try_for_each(|block| rig.read(block).map(drop))?;
        rig.flush()?;
        // Each logs a tombstone.
        (0..BLOCKS / 2).try_for_each(|block| rig.write(2, block, 1))?;
        rig.flush()?;
        rig.flush()?;
        let broken = &rig.broken[1];
        [&broken.failing, &broken.timing_out, &broken.erring][seed as usize]
            .arm(Trigger::every(Ops::Reads));
        let found = rig.scrub()?.found;
        let damaged: u64 = rig.pool().damaged_blocks().iter().map(|(_, blocks)| blocks).sum();
        if damaged > 0 || found.unread == 0 || found.replaced > 0 {
            return Err(format!("{damaged} damaged, {found:?}"));
        }
        rig.broken[1].mend();
        let found = rig.scrub()?.found;
        if (found.damaged, found.unread, found.unmended) != (0, 0, 0) {
            return Err(format!("{found:?}"));
        }
        Ok(())
    });
}

/// One lap is at its end when it is stopped, and another one is begun.
#[test]
fn the_end_of_a_lap_does_not_end_another_one() {
    survive(2, |seed| {
        let rig = spoilt(seed, &[(seed % 2) as usize], |broken| &broken.flipping)?;
        let pool = rig.pool();
        let is_root = |request: &Request| matches!(request, Request::Write { offset, .. } if *offset < 320 << 10);
        pool.start_scrub().map_err(|error| error.to_string())?;
        while pool.scrub().left_bytes > 0 {
            rig.pause(MILLISECOND / 2);
        }
        rig.gates[0].hold(1, is_root);
        let laps = pool.counters().scrub_laps.get();
        for _ in 0..100 {
            rig.pause(MILLISECOND);
            if rig.gates[0].held() > 0 {
                break;
            }
        }
        assert!(
            rig.gates[0].held() > 0
                && pool.scrub().running
                && pool.counters().scrub_laps.get() == laps
        );
        assert!(pool.stop_scrub() && pool.start_scrub().unwrap());
        let bytes = pool.counters().scrub_bytes.get();
        rig.gates[0].hold(0, |_| false);
        rig.gates[0].release();
        rig.pause(50 * SOON);
        if pool.counters().scrub_bytes.get() == bytes {
            return Err("the second lap has read nothing".into());
        }
        drop(pool);
        rig.is_whole("at last")
    });
}

/// One origin flush may prove thousands of blocks; the facts of that are one record, and it takes some of those to fill
/// and so close a set.
#[test]
fn facts_with_a_long_header_are_not_taken_for_damage() {
    survive(1, |seed| {
        let (segment_bytes, origin_bytes) = (2 << 20, 64 << 20);
        let rig = Rig::new(seed, Plan { segment_bytes, origin_bytes, ..Plan::default() });
        for round in 2..11 {
            for first in (0..7_000).step_by(100) {
                let writes: Vec<_> =
                    (first..first + 100).map(|at| rig.start_write(round, 2 * at, 1)).collect();
                rig.pause(SOON / 10);
                assert!(writes.iter().all(|done| done.get()));
            }
            rig.destage()?;
            let found = rig.scrub()?.found;
            assert_eq!((found.damaged, found.replaced), (0, 0), "{found:?}");
        }
        assert!(planted::take_seen().contains_key("scrub: a long header"));
        same("events of damage", rig.told(EventKind::DamageFound) as u64, 0).map(drop)
    });
}

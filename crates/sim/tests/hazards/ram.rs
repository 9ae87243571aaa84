//! Hazards of the tier in RAM: nothing there may outlive what it is a copy of.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::runtime::SECOND;
use forebay_device::{Buf, Request, Runtime};
use forebay_engine::planted::Bug;
use forebay_engine::{Mode, Tuning};
use forebay_sim::content::fill;

use crate::changing::touch;
use crate::is_read;
use crate::rig::{
    BLOCK, MEMBER_BYTES, Plan, Rig, SLOWEST, SOON, lazy, provoke, same, survive, version,
};
use crate::scrub::find_version;

const RAM_BYTES: u64 = 256 << 10;

fn with_ram(mode: Mode) -> Plan {
    Plan { mode, ram_bytes: RAM_BYTES, ..Plan::default() }
}

fn counter(rig: &Rig, name: &str) -> u64 {
    let counters = rig.pool().counters().list();
    counters.iter().find(|(known, _)| *known == name).map(|(_, value)| *value).unwrap()
}

fn set_ram(rig: &Rig, bytes: u64) -> Result<(), String> {
    let pool = rig.pool();
    rig.run(async move { pool.set_ram_bytes(bytes).await })?.map_err(|error| error.to_string())
}

#[test]
fn what_is_read_again_after_a_write_is_the_write() {
    // Without the range lock's word a direct write would pass RAM by as well.
    provoke(Bug::RamFrameSurvivesWrite, 3, |seed| {
        let modes = [Mode::Writeback, Mode::Writethrough, Mode::Readonly];
        let rig = Rig::new(seed, with_ram(modes[seed as usize]));
        rig.pause(SOON);
        same("before", rig.read(3)?, 1)?;
        same("from RAM", rig.read(3)?, 1)?;
        assert_eq!(counter(&rig, "read_ram_hits"), 1);
        rig.write(2, 3, 1)?;
        same("after", rig.read(3)?, 2)?;
        same("and again", rig.read(3)?, 2).map(drop)
    });
}

#[test]
fn what_the_origin_returned_before_a_direct_write_does_not_come_into_ram_after_it() {
    provoke(Bug::RamFillOvertaken, 1, |seed| {
        let rig = Rig::new(seed, with_ram(Mode::Readonly));
        rig.pause(SOON);
        rig.origin_gate.hold(1, is_read);
        let volume = rig.volume();
        rig.world.spawn(Box::pin(async move {
            let (_, result) = volume.read(3 * BLOCK as u64, Buf::new(BLOCK)).await;
            result.unwrap();
        }));
        rig.pause(SOON);
        assert_eq!(rig.origin_gate.held(), 1);
        rig.write(2, 3, 1)?;
        rig.origin_gate.release();
        rig.pause(SOON);
        same("read after both", rig.read(3)?, 2).map(drop)
    });
}

#[test]
fn what_a_cache_device_returned_before_a_write_does_not_come_into_ram_after_it() {
    provoke(Bug::RamFillOvertaken, 1, |seed| {
        let rig = Rig::new(seed, with_ram(Mode::Writeback));
        rig.pause(SOON);
        rig.write(2, 3, 1)?;
        rig.gates[0].hold(1, is_read);
        let volume = rig.volume();
        rig.world.spawn(Box::pin(async move {
            let (buf, result) = volume.read(3 * BLOCK as u64, Buf::new(BLOCK)).await;
            result.unwrap();
            assert_eq!(version(3, &buf), Ok(2), "it was the newest when the read began");
        }));
        rig.pause(SOON);
        assert_eq!(rig.gates[0].held(), 1);
        rig.write(3, 3, 1)?;
        rig.gates[0].release();
        rig.pause(SOON);
        same("read after both", rig.read(3)?, 3).map(drop)
    });
}

/// Blocks 3 and 4 lie in records of their own.
fn in_two_places(seed: u64) -> Result<Rc<Rig>, String> {
    let rig = Rig::new(seed, with_ram(Mode::Writeback));
    rig.pause(SOON);
    rig.write(2, 4, 1)?;
    rig.write(2, 3, 1)?;
    Ok(rig)
}

fn read_both(rig: &Rig) -> Result<[u64; 2], String> {
    let volume = rig.volume();
    let read = async move { volume.read(3 * BLOCK as u64, Buf::new(2 * BLOCK)).await };
    let (buf, result) = rig.run(read)?;
    result.map_err(|error| error.to_string())?;
    Ok([version(3, &buf[..BLOCK])?, version(4, &buf[BLOCK..])?])
}

#[test]
fn what_lies_in_several_places_comes_into_ram_and_is_read_from_there_in_part() {
    survive(1, |seed| {
        let rig = in_two_places(seed)?;
        assert_eq!(read_both(&rig)?, [2, 2]);
        assert_eq!(rig.pool().ram().overlap_bytes, 2 * BLOCK as u64);
        let before = counter(&rig, "read_cache_bytes");
        assert_eq!((read_both(&rig)?, counter(&rig, "read_ram_hits")), ([2, 2], 1));
        assert_eq!(counter(&rig, "read_cache_bytes"), before);
        // Room for one frame: the other block is read from the log.
        set_ram(&rig, BLOCK as u64)?;
        let before = counter(&rig, "read_cache_bytes");
        assert_eq!(read_both(&rig)?, [2, 2]);
        assert_eq!(counter(&rig, "read_cache_bytes"), before + BLOCK as u64);
        Ok(())
    });
}

#[test]
fn what_several_places_returned_before_a_write_does_not_come_into_ram_after_it() {
    provoke(Bug::RamFillOvertaken, 1, |seed| {
        let rig = in_two_places(seed)?;
        rig.gates[0].hold(2, is_read);
        let volume = rig.volume();
        rig.world.spawn(Box::pin(async move {
            let (buf, result) = volume.read(3 * BLOCK as u64, Buf::new(2 * BLOCK)).await;
            result.unwrap();
            assert_eq!(version(3, &buf[..BLOCK]), Ok(2), "it was the newest when the read began");
        }));
        rig.pause(SOON);
        assert_eq!(rig.gates[0].held(), 2);
        rig.write(3, 3, 1)?;
        rig.gates[0].release();
        rig.pause(SOON);
        same("read after both", rig.read(3)?, 3)?;
        same("of which one was written", rig.read(4)?, 2).map(drop)
    });
}

#[test]
fn ram_does_not_keep_what_a_failed_flush_may_have_lost() {
    survive(8, |seed| {
        let rig = Rig::new(seed, with_ram(Mode::Writethrough));
        rig.pause(SOON);
        rig.write(2, 3, 1)?;
        let first = rig.read(3)?;
        same("while nothing has failed", first, 2)?;
        rig.read(3)?;
        assert!(counter(&rig, "read_ram_hits") > 0);
        rig.origin_gate.fail_next(|request| matches!(request, Request::Flush));
        rig.origin.fail_flush();
        assert!(rig.flush().is_err());
        // The client knows; from here on there is one answer.
        let after = rig.read(3)?;
        set_ram(&rig, 0)?;
        same("without RAM", rig.read(3)?, after)?;
        Ok(())
    });
}

#[test]
fn what_ram_and_a_cache_device_hold_together_is_a_hit() {
    survive(1, |seed| {
        let rig = Rig::new(seed, with_ram(Mode::Writeback));
        rig.pause(SOON);
        same("into RAM", rig.read(3)?, 1)?;
        rig.write(2, 4, 1)?;
        let volume = rig.volume();
        let at = 3 * BLOCK as u64;
        let (buf, result) = rig.run(async move { volume.read(at, Buf::new(2 * BLOCK)).await })?;
        result.map_err(|error| error.to_string())?;
        same("of RAM", version(3, &buf[..BLOCK])?, 1)?;
        same("of the log", version(4, &buf[BLOCK..])?, 2)?;
        let counts = ["read_hits", "read_partial_hits", "read_misses"];
        assert_eq!(counts.map(|name| counter(&rig, name)), [1, 0, 1]);
        Ok(())
    });
}

#[test]
fn what_only_ram_holds_goes_to_the_log_when_ram_lets_it_go_and_before_a_stop() {
    survive(3, |seed| {
        let rig = Rig::new(seed, with_ram(Mode::Writeback));
        rig.pause(SOON);
        for block in 0..8 {
            same("first", rig.read(block)?, 1)?;
        }
        let ram = rig.pool().ram();
        assert_eq!((ram.only_bytes, ram.overlap_bytes), (8 * BLOCK as u64, 0));
        assert_eq!(rig.pool().blocks().0, 0, "the log has nothing yet");
        set_ram(&rig, 0)?;
        rig.pause(SOON);
        assert_eq!(rig.pool().blocks().0, 8, "it has all of it now");
        set_ram(&rig, RAM_BYTES)?;
        for block in 0..8 {
            same("from the log", rig.read(block)?, 1)?;
        }
        let ram = rig.pool().ram();
        assert_eq!((ram.only_bytes, ram.overlap_bytes), (0, 8 * BLOCK as u64));
        Ok(())
    });
}

#[test]
fn what_a_cache_device_returned_wrong_does_not_come_into_the_log_as_right() {
    survive(2, |seed| {
        let rig = Rig::new(seed, Plan { origin_bytes: 8 << 20, ..Plan::default() });
        same("populated", rig.read(3)?, 1)?;
        rig.pause(SOON);
        set_ram(&rig, RAM_BYTES)?;
        // Reads are not verified: this client gets what the device said, and RAM has it, too.
        rig.broken[0].flipping.arm(Trigger::every(Ops::Reads));
        assert!(rig.read(3).is_err());
        rig.broken[0].flipping.disarm();
        assert_eq!(rig.pool().ram().overlap_bytes, BLOCK as u64);
        assert!(rig.read(3).is_err() && counter(&rig, "read_ram_hits") == 1);
        // The log comes round, and only RAM has the block then, as it is asked for all the time.
        for block in (100..2000).step_by(2) {
            rig.read(block)?;
            if block % 16 == 4 {
                assert!(rig.read(3).is_err());
            }
        }
        assert!(counter(&rig, "evict_blocks") > 0);
        set_ram(&rig, 0)?;
        rig.pause(SOON);
        same("without RAM", rig.read(3)?, 1)?;
        Ok(())
    });
}

/// A member goes while a long write is on its way: what of it was on that member alone is lost, and what was not is
/// written elsewhere.
#[test]
fn what_is_lost_while_it_is_written_is_not_served_from_ram() {
    let lost_and_acknowledged = Cell::new(0);
    (0..40).for_each(|seed| {
        let rig = Rig::new(seed, Plan { members: 2, ..with_ram(Mode::Writeback) });
        rig.pause(SOON);
        (0..40).for_each(|block| assert_eq!(rig.read(block), Ok(1)));
        rig.broken.iter().for_each(|member| member.slow.arm(Trigger::every(Ops::Writes)));
        let mut data = Buf::new(40 * BLOCK);
        fill(2, 0, 0, &mut data);
        let (volume, outcome) = (rig.volume(), Rc::new(Cell::new(None)));
        let ended = Rc::clone(&outcome);
        rig.world.spawn(Box::pin(async move {
            ended.set(Some(volume.write(0, data.freeze(), false).await.is_ok()));
        }));
        rig.pause(seed * SLOWEST / 4);
        rig.broken[(seed % 2) as usize].gone.set(true);
        rig.pause(50 * SOON);
        touch(&rig);
        rig.pause(50 * SOON);
        let failed = (0..40).filter(|&block| rig.read(block).is_err()).count() as u64;
        let lost = rig.pool().lost_blocks();
        assert_eq!(failed, lost, "seed {seed}: {lost} blocks are lost");
        if outcome.get() == Some(true) {
            lost_and_acknowledged.set(lost_and_acknowledged.get() + lost);
        }
    });
    assert!(lost_and_acknowledged.get() > 0, "no write went on elsewhere");
}

/// What is read unchecked may be wrong, until somebody finds that it is.
#[test]
fn what_is_found_damaged_is_not_served_from_ram_any_more() {
    survive(4, |seed| {
        let copies = 1 + (seed % 2) as u8;
        let mut wrong = 0;
        for member in 0..usize::from(copies) {
            let (members, clean_copies) = (usize::from(copies), copies);
            let plan = Plan { members, clean_copies, mode: Mode::Readonly, ..Plan::default() };
            let rig = Rig::new(seed, plan);
            for block in 0..96 {
                rig.read(block)?;
            }
            rig.flush()?;
            rig.flush()?;
            let (block, mut rotten) = (5, vec![0; BLOCK]);
            fill(7, 0, block * 8, &mut rotten);
            rig.members[member].poke(find_version(&rig, member, block, 1), &rotten);
            set_ram(&rig, RAM_BYTES)?;
            rig.read(block)?;
            wrong += u64::from(rig.read(block)? == 7);
            let found = rig.scrub()?.found;
            assert_eq!((found.dropped + found.copied, found.unhealed), (1, 0), "{found:?}");
            same("behind the scrub", rig.read(block)?, 1)?;
        }
        if wrong == 0 { Err("nothing wrong has come into RAM".to_owned()) } else { Ok(()) }
    });
}

/// In the same record.
const ROTTEN: u64 = 4;
const UNREAD: u64 = 5;

/// A record with a rotten block and one that once could not be read, so that it is known to be hurt. It cannot be
/// healed, for its set is open.
fn rotten_and_known(seed: u64, ram_bytes: u64) -> Result<Rc<Rig>, String> {
    rotten_and_known_with(lazy(), seed, ram_bytes)
}

fn rotten_and_known_with(tuning: Tuning, seed: u64, ram_bytes: u64) -> Result<Rc<Rig>, String> {
    let plan = Plan { members: 2, mode: Mode::Readonly, tuning, ..Plan::default() };
    let rig = Rig::new(seed, plan);
    let volume = rig.volume();
    rig.run(async move { volume.read(0, Buf::new(8 * BLOCK)).await.1 })?
        .map_err(|error| error.to_string())?;
    rig.pause(SOON);
    rig.flush()?;
    rig.flush()?;
    let holder = holder_of(&rig);
    let mut rotten = vec![0; BLOCK];
    fill(7, 0, ROTTEN * 8, &mut rotten);
    let at = find_version(&rig, holder, UNREAD, 1);
    rig.members[holder].poke(at - BLOCK as u64, &rotten);
    set_ram(&rig, ram_bytes)?;
    assert_eq!(rig.read(ROTTEN), Ok(7), "nothing is known of it yet");
    let once = Trigger::every(Ops::Reads).within(at..at + BLOCK as u64).times(1);
    rig.broken[holder].erring.arm(once);
    same("read again", rig.read(UNREAD)?, 1)?;
    Ok(rig)
}

/// The member that has what was read.
fn holder_of(rig: &Rig) -> usize {
    let has = |member: &usize| {
        let bytes = rig.members[*member].peek(0, MEMBER_BYTES as usize);
        bytes.chunks(BLOCK).any(|block| version(UNREAD, block) == Ok(1))
    };
    (0..rig.members.len()).find(has).expect("somebody has it")
}

/// A copy of a record is bad, which one reader has met: the next one is not given what is bad of the rest.
#[test]
fn what_is_read_of_a_record_that_is_known_to_be_hurt_is_checked() {
    survive(4, |seed| {
        let rig = rotten_and_known(seed, 0)?;
        same("checked", rig.read(ROTTEN)?, 1).map(drop)
    });
}

/// RAM has a part of it as well, and loses what could be compared.
#[test]
fn what_ram_has_of_a_hurt_record_goes_with_the_record() {
    survive(4, |seed| {
        let rig = rotten_and_known(seed, RAM_BYTES)?;
        assert_eq!(rig.read(ROTTEN), Ok(7), "from RAM, as before");
        rig.broken[holder_of(&rig)].gone.set(true);
        touch(&rig);
        rig.pause(50 * SOON);
        same("without the member", rig.read(ROTTEN)?, 1).map(drop)
    });
}

/// There is no room to note it by itself, so that its set is looked through: as long as that takes, it is hurt.
#[test]
fn what_is_read_of_a_hurt_set_is_checked_while_it_is_healed() {
    survive(4, |seed| {
        let tuning = Tuning { hurt_records_max: 0, ..lazy() };
        let rig = rotten_and_known_with(tuning, seed, 0)?;
        same("checked", rig.read(UNREAD)?, 1)?;
        let holder = holder_of(&rig);
        // The healer comes once the set is closed.
        rig.gates[holder].hold(1, |request| matches!(request, Request::Read { .. }));
        for block in 8..96 {
            rig.read(block)?;
        }
        rig.pause(5 * SECOND);
        assert_eq!(rig.gates[holder].held(), 1, "somebody looks at the set");
        same("while it is healed", rig.read(ROTTEN)?, 1)?;
        rig.gates[holder].release();
        Ok(())
    });
}

//! Each protection level through the whole chain: as many members as it bears fail at any of their requests, spares
//! take their places, dirty data gets its copies back, the next ones are lost, the power goes, and at the next start
//! any of the devices are there, with or without the host's memory of the pool.

use std::rc::Rc;

use forebay_device::BlockDevice;
use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_engine::format::MemberState;
use forebay_engine::planted::Bug;
use forebay_engine::{Mode, Tuning};

use crate::failing::{live, verify};
use crate::rig::{Breakage, Plan, Rig, SOON, lazy, provoke, same, survive};

/// What a profile asks of a pool here: members, copies of dirty data and of clean data.
#[derive(Clone, Copy)]
struct Profile {
    members: usize,
    dirty: u8,
    clean: u8,
}

impl Profile {
    /// Members that may fail before anything has got its copies back.
    fn bears(self) -> usize {
        usize::from(self.dirty - 1).max(1)
    }

    fn rig(self, seed: u64) -> Rc<Rig> {
        let Profile { members, dirty, clean } = self;
        let mode = if dirty > 1 { Mode::Writeback } else { Mode::Writethrough };
        Rig::new(
            seed,
            Plan {
                members,
                spares: self.bears(),
                copies: dirty,
                clean_copies: clean,
                mode,
                agreed: false,
                tuning: Tuning { lap_percent: 2, ..lazy() },
                ..Plan::default()
            },
        )
    }
}

/// Blocks that are written behind the first loss and behind the second one.
const AFTER: [u64; 2] = [30, 32];

fn check(rig: &Rc<Rig>, when: &str) -> Result<(), String> {
    verify(rig, when)?;
    AFTER.iter().try_for_each(|&block| same(when, rig.read(block)?, 6).map(drop))
}

/// A device takes the place of one that was lost.
fn join(rig: &Rc<Rig>, device: usize) -> Result<(), String> {
    let (pool, device) = (rig.pool(), Rc::clone(&rig.gates[device]) as Rc<dyn BlockDevice>);
    let joined = rig.run(async move { pool.add_member(device).await })?;
    joined.map(drop).map_err(|error| error.to_string())
}

/// Waits until nothing lacks copies that it could have.
fn until_whole(rig: &Rc<Rig>) -> Result<(), String> {
    let (pool, runtime) = (rig.pool(), rig.runtime());
    let until = runtime.now() + 60 * SECOND;
    rig.run(async move {
        let is_failed = |pool: &forebay_engine::Pool| {
            pool.superblock().members.iter().any(|m| m.state == MemberState::Failed)
        };
        while is_failed(&pool) && runtime.now() < until {
            runtime.sleep(10 * MILLISECOND).await.result.ok();
        }
        match is_failed(&pool) {
            true => Err("copies are still missing after a minute".to_owned()),
            false => Ok(()),
        }
    })?
}

/// The members named by the pool, as devices of the rig.
fn named(rig: &Rc<Rig>) -> Vec<usize> {
    let superblock = rig.pool().superblock();
    let id = |device: &usize| {
        let device = Rc::clone(&rig.gates[*device]);
        let found = rig.run(async move { forebay_engine::read_superblock(&*device).await });
        found.unwrap().map(|found| found.device)
    };
    let is_named = |device: &usize| {
        id(device).is_ok_and(|id| superblock.present().any(|member| member.device == id))
    };
    (0..rig.gates.len()).filter(is_named).collect()
}

/// One chain, in which the first failures begin at the request number `after` of each that fails. Whether they did.
fn chain(profile: Profile, seed: u64, ops: Ops, after: u64) -> Result<bool, String> {
    let luck = seed * 31 + after;
    let pick = |way: u64, of: u64| luck / way % of;
    let rig = profile.rig(seed);
    let first = pick(1, profile.members as u64) as usize;
    let failing: Vec<_> = (0..profile.bears()).map(|i| (first + i) % profile.members).collect();
    for (nth, &member) in (0..).zip(&failing) {
        rig.broken[member].failing.arm(Trigger::every(ops).after(after + nth * pick(5, 9)));
    }
    live(&rig, &|rig, step| step(rig))?;
    verify(&rig, "without those that have failed")?;
    let has_failed = |&&member: &&usize| rig.broken[member].failing.hits() > 0;
    let failed: Vec<usize> = failing.iter().filter(has_failed).copied().collect();
    // Who has not come to it is sound.
    let sound = failing.iter().filter(|member| !has_failed(member));
    sound.for_each(|&member| rig.broken[member].mend());
    rig.pause(SOON);
    let gone: Vec<usize> = (0..profile.members).filter(|m| !named(&rig).contains(m)).collect();
    for (spare, _) in (profile.members..).zip(&gone) {
        join(&rig, spare)?;
    }
    if profile.dirty > 1 {
        until_whole(&rig)?;
    }
    rig.write(6, AFTER[0], 1)?;
    rig.flush()?;
    // As many of those that are left, at once.
    let lost: Vec<usize> = {
        let mut left = named(&rig);
        let turn = pick(2, left.len() as u64) as usize;
        left.rotate_left(turn);
        left.truncate(profile.bears());
        left
    };
    lost.iter().for_each(|&member| rig.broken[member].gone.set(true));
    rig.write(6, AFTER[1], 1)?;
    rig.flush()?;
    check(&rig, "without the next ones")?;
    rig.crash([Crash::PowerCut, Crash::ProcessKill][pick(7, 2) as usize]);
    rig.broken.iter().for_each(Breakage::mend);
    start_with_some(&rig, profile.members + gone.len(), luck)?;
    check(&rig, "after a crash")?;
    rig.destage()?;
    (0..24).try_for_each(|block| rig.settled(block))?;
    Ok(!failed.is_empty())
}

/// A start with any of the devices, and with what the host remembers or without. It opens with the newest data, or
/// it says why not, and then does with all of them.
fn start_with_some(rig: &Rc<Rig>, devices: usize, luck: u64) -> Result<(), String> {
    let all: Vec<usize> = (0..devices).collect();
    let mask = luck.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    let some: Vec<usize> = all.iter().copied().filter(|i| mask >> i & 1 == 1).collect();
    let remembered = rig.recall();
    if mask >> 10 & 1 == 1 {
        rig.remember(None);
    }
    if !some.is_empty() {
        rig.offer(&some);
        match rig.open() {
            Ok(()) => return Ok(()),
            Err(error) if error.contains("NeedsDecision") => {}
            Err(error) => return Err(format!("{some:?} of {devices}: {error}")),
        }
    }
    rig.remember(remembered);
    rig.offer(&all);
    rig.open()
}

/// The chain from each request of each kind on.
fn everywhere(profile: Profile, seed: u64) -> Result<(), String> {
    for ops in [Ops::Writes, Ops::Flushes, Ops::All] {
        for after in 0.. {
            let hit = chain(profile, seed, ops, after)
                .map_err(|error| format!("{ops:?} after {after}: {error}"))?;
            if !hit {
                assert!(after > 2, "they had something to fail at");
                break;
            }
        }
    }
    Ok(())
}

#[test]
fn raid0() {
    survive(3, |seed| everywhere(Profile { members: 3, dirty: 1, clean: 1 }, seed));
}

#[test]
fn raid1() {
    survive(8, |seed| everywhere(Profile { members: 2, dirty: 2, clean: 2 }, seed));
}

#[test]
fn nraid1_plus() {
    provoke(Bug::RebuildForgotten, 8, |seed| {
        everywhere(Profile { members: 3, dirty: 2, clean: 1 }, seed)
    });
}

#[test]
fn raid10() {
    survive(6, |seed| everywhere(Profile { members: 4, dirty: 2, clean: 2 }, seed));
}

#[test]
fn raid6() {
    survive(8, |seed| everywhere(Profile { members: 4, dirty: 3, clean: 1 }, seed));
}

/// Two SSDs behind each of two controllers: one of the controllers dies, with both of its SSDs at once.
#[test]
fn a_dead_controller_takes_no_data_along() {
    survive(8, |seed| {
        let controllers = &[1, 1, 2, 2];
        let plan = Plan { members: 4, copies: 2, agreed: false, controllers, ..Plan::default() };
        let rig = Rig::new(seed, plan);
        for version in 1..=4 {
            for block in (0..240).step_by(4) {
                rig.write(version, block, 4)?;
            }
        }
        rig.flush()?;
        let dead = if seed % 2 == 0 { [0, 1] } else { [2, 3] };
        dead.iter().for_each(|&member| rig.broken[member].gone.set(true));
        for block in 0..240 {
            same("behind the dead controller", rig.read(block)?, 4)?;
        }
        Ok(())
    });
}

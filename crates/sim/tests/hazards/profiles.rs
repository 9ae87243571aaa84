//! Each protection level through the whole chain: as many members as it bears fail at any of their requests, spares
//! take their places, dirty data gets its copies back, the next ones are lost, the power goes, and at the next start
//! any of the devices are there, with or without the host's memory of the pool.

use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::mix;
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_engine::format::MemberState;
use forebay_engine::planted::Bug;
use forebay_engine::{Mode, Place, Tuning};

use crate::changing::{add, touch};
use crate::failing::{live, newest};
use crate::lost::in_place;
use crate::rig::{BLOCK, Breakage, KINDS, Plan, Rig, SOON, lazy, provoke, same, survive};
use crate::subsets::{starts_by_the_rule, superblock_of};

/// A profile of the product: copies of dirty data and of clean data; and the members that it has here.
#[derive(Clone, Copy)]
struct Profile {
    name: &'static str,
    dirty: u8,
    clean: u8,
    members: usize,
}

const fn profile(name: &'static str, (dirty, clean): (u8, u8), members: usize) -> Profile {
    Profile { name, dirty, clean, members }
}

/// A test beside the product's list holds these to it, names and copies, in the order of both.
const PROFILES: [Profile; 7] = [
    profile("raid0", (1, 1), 2),
    profile("nraid+", (1, 1), 3),
    profile("raid1", (2, 2), 2),
    profile("nraid1+", (2, 1), 2),
    profile("raid10", (2, 1), 4),
    profile("raid5", (2, 1), 3),
    profile("raid6", (3, 1), 4),
];

impl Profile {
    /// Members that may fail before anything has got its copies back.
    fn bears(self) -> usize {
        usize::from(self.dirty - 1).max(1)
    }

    fn rig(self, seed: u64, mode: Mode) -> Rc<Rig> {
        let Profile { members, dirty, clean, .. } = self;
        Rig::new(
            seed,
            Plan {
                members,
                spares: self.bears(),
                copies: dirty,
                clean_copies: clean,
                mode,
                // Without it one copy is written through whatever is asked for.
                agreed: dirty == 1 && mode == Mode::Writeback,
                tuning: Tuning { lap_percent: 2, ..lazy() },
                ..Plan::default()
            },
        )
    }
}

/// Blocks that are written behind the first loss and behind the second one.
const AFTER: [u64; 2] = [30, 32];

/// What is lost fails to be read, everything else is there.
fn check(rig: &Rc<Rig>, lost: &BTreeSet<u64>, when: &str) -> Result<(), String> {
    for block in (0..24).chain(AFTER) {
        let expected = if AFTER.contains(&block) { 6 } else { newest(block) };
        let what = format!("block {block} {when}");
        match rig.read(block) {
            Err(_) if lost.contains(&block) => {}
            found if lost.contains(&block) => return Err(format!("{what}: lost, and {found:?}")),
            found => same(&what, found?, expected).map(drop)?,
        }
    }
    Ok(())
}

fn lost(rig: &Rig) -> BTreeSet<u64> {
    in_place(rig, 0..40, Place::Lost)
}

/// Once more, if that only says what was lost: nothing is acknowledged twice.
fn told(rig: &Rc<Rig>, step: &mut dyn FnMut(&Rc<Rig>) -> Result<(), String>) -> Result<(), String> {
    match step(rig) {
        Err(error) if error.contains("was lost with a cache device") => step(rig),
        other => other,
    }
}

/// A device takes the place of one that was lost.
fn join(rig: &Rc<Rig>, device: usize) -> Result<(), String> {
    add(rig, device)?.map(drop).map_err(|error| error.to_string())
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

/// Which of these devices are the pool's members.
fn present(rig: &Rc<Rig>, devices: usize) -> Vec<usize> {
    let superblock = rig.pool().superblock();
    let is_present = |device: &usize| {
        let id = superblock_of(rig, *device).map(|superblock| superblock.device);
        id.is_some_and(|id| superblock.present().any(|member| member.device == id))
    };
    (0..devices).filter(is_present).collect()
}

/// One chain: what fails, each from some of its requests of a kind on. All else is told from that.
struct Chain {
    profile: Profile,
    mode: Mode,
    seed: u64,
    ops: Ops,
    failing: Vec<(usize, u64)>,
}

impl Chain {
    fn luck(&self) -> u64 {
        let failing = self.failing.iter();
        failing.fold(self.seed, |luck, (member, after)| mix(luck ^ after << 3 ^ *member as u64))
    }

    /// Whether each of them has come to fail.
    fn run(&self) -> Result<Vec<bool>, String> {
        let &Chain { profile, mode, seed, ops, ref failing } = self;
        let luck = self.luck();
        let rig = profile.rig(seed, mode);
        for &(member, after) in failing {
            rig.broken[member].failing.arm(Trigger::every(ops).after(after));
        }
        let lived = live(&rig, &|rig, step| {
            let (dirty, before) = (in_place(rig, 0..40, Place::Dirty), lost(rig));
            told(rig, step)?;
            let now = lost(rig);
            match now.difference(&before).find(|block| !dirty.contains(block)) {
                Some(block) => Err(format!("block {block} was not dirty, and is lost")),
                None => Ok(()),
            }
        });
        if rig.pool().is_latched() {
            return self.is_stopped(&rig, luck).map(|()| vec![true]);
        }
        lived?;
        let has_failed = |&(member, _): &(usize, u64)| rig.broken[member].failing.hits() > 0;
        let hits: Vec<bool> = failing.iter().map(has_failed).collect();
        // Who has not come to it is sound.
        let sound = failing.iter().filter(|failing| !has_failed(failing));
        sound.for_each(|&(member, _)| rig.broken[member].mend());
        rig.pause(SOON);
        let gone = profile.members - rig.pool().superblock().present().count();
        for spare in profile.members..profile.members + gone {
            join(&rig, spare)?;
        }
        until_whole(&rig)?;
        told(&rig, &mut |rig| {
            rig.write(6, AFTER[0], 1)?;
            rig.flush()
        })?;
        let devices = profile.members + gone;
        self.loses_the_next(&rig, devices, luck)?;
        let lost = lost(&rig);
        rig.crash(KINDS[(luck >> 8 & 1) as usize]);
        rig.broken.iter().for_each(Breakage::mend);
        start_with_some(&rig, devices, luck >> 16)?;
        check(&rig, &lost, "after a crash")?;
        lost.iter().try_for_each(|&block| rig.write(7, block, 1))?;
        rig.destage()?;
        (0..24).try_for_each(|block| rig.settled(block))?;
        Ok(hits)
    }

    /// Whether what is there once only may be lost.
    fn may_lose(&self) -> bool {
        self.profile.dirty == 1 && self.mode == Mode::Writeback
    }

    /// One that is found out by reads of what it has alone may be back, and no write to it has failed: the pool stops,
    /// and nothing is lost at all.
    fn is_stopped(&self, rig: &Rc<Rig>, luck: u64) -> Result<(), String> {
        if !self.may_lose() || self.ops != Ops::All {
            return Err("the pool has latched".to_owned());
        }
        rig.crash(KINDS[(luck >> 8 & 1) as usize]);
        rig.broken.iter().for_each(Breakage::mend);
        rig.open()?;
        for block in 0..24 {
            // It was behind the first flush: before that nothing is read.
            let first = if block <= 10 { 2 - block % 2 } else { 1 };
            let found = rig.read(block)?;
            if ![first, newest(block)].contains(&found) {
                return Err(format!("block {block} of a pool that had stopped: {found}"));
            }
        }
        rig.destage()?;
        (0..24).try_for_each(|block| rig.settled(block))
    }

    /// As many of those that are left, at once.
    fn loses_the_next(&self, rig: &Rc<Rig>, devices: usize, luck: u64) -> Result<(), String> {
        let before = lost(rig);
        let may_lose = self.may_lose();
        if !(before.is_empty() || may_lose) {
            return Err(format!("{before:?} are lost"));
        }
        check_before(rig, &before)?;
        let mut next = present(rig, devices);
        let turn = luck as usize % next.len();
        next.rotate_left(turn);
        next.truncate(self.profile.bears());
        let alone: u64 = match next[..] {
            [member] => {
                let id = superblock_of(rig, member).unwrap().device;
                rig.pool().can_pull(id).unwrap().only_dirty_bytes / BLOCK as u64
            }
            // One without the other takes nothing.
            _ => 0,
        };
        next.iter().for_each(|&member| rig.broken[member].gone.set(true));
        if may_lose {
            // It is found out by a write: one that returns nothing may be back, and stops the pool.
            touch(rig);
        }
        told(rig, &mut |rig| {
            rig.write(6, AFTER[1], 1)?;
            rig.flush()
        })?;
        let now = lost(rig);
        if now.difference(&before).count() as u64 != alone || !(alone == 0 || may_lose) {
            return Err(format!("{before:?} were lost, {now:?} are, and {alone} were there alone"));
        }
        check(rig, &now, "without the next ones")
    }
}

fn check_before(rig: &Rc<Rig>, lost: &BTreeSet<u64>) -> Result<(), String> {
    for block in (0..24).filter(|block| !lost.contains(block)) {
        same(&format!("block {block} without the first"), rig.read(block)?, newest(block))?;
    }
    Ok(())
}

/// A start with any of the devices, and with what the host remembers or without. It opens with the newest data where
/// the rule says so; where not, it does with all of them.
fn start_with_some(rig: &Rc<Rig>, devices: usize, luck: u64) -> Result<(), String> {
    let all: Vec<usize> = (0..devices).collect();
    let some: Vec<usize> = all.iter().copied().filter(|i| luck >> i & 1 == 1).collect();
    let remembered = rig.recall();
    if luck >> 10 & 1 == 1 {
        rig.remember(None);
    }
    if !some.is_empty() && starts_by_the_rule(rig, &some)?.0 {
        return Ok(());
    }
    rig.remember(remembered);
    starts_by_the_rule(rig, &all)?.0.then_some(()).ok_or_else(|| "all are there".to_owned())
}

/// Each member, from each of its requests of each kind on. Of two that fail each pair, from each of the requests of the
/// one and each `step`th of the other on, beginning elsewhere each time.
fn everywhere(name: &str, mode: Mode, seed: u64, step: usize) -> Result<(), String> {
    let profile = PROFILES.into_iter().find(|profile| profile.name == name).unwrap();
    let run = |ops, failing: &[(usize, u64)]| {
        let chain = Chain { profile, mode, seed, ops, failing: failing.to_vec() };
        chain.run().map_err(|error| format!("{mode:?}, {ops:?} of {failing:?}: {error}"))
    };
    for ops in [Ops::Writes, Ops::Flushes, Ops::All] {
        for first in 0..=profile.members - profile.bears() {
            for after in 0.. {
                let mut is_hit = false;
                if profile.bears() == 1 {
                    is_hit = run(ops, &[(first, after)])?[0];
                }
                let seconds = if profile.bears() == 1 { 0..0 } else { first + 1..profile.members };
                for second in seconds {
                    for behind in (mix(seed ^ after) % step as u64..).step_by(step) {
                        let hits = run(ops, &[(first, after), (second, behind)])?;
                        is_hit |= hits[0];
                        if !hits[1] {
                            break;
                        }
                    }
                }
                if !is_hit {
                    assert!(after > 1, "it had something to fail at");
                    break;
                }
            }
        }
    }
    Ok(())
}

/// What is on one SSD alone is lost with it, exactly that, where that was agreed to; else nothing is.
fn with_one_copy(name: &str, seed: u64) -> Result<(), String> {
    everywhere(name, Mode::Writeback, seed, 1)?;
    everywhere(name, Mode::Writethrough, seed, 1)
}

#[test]
fn raid0() {
    provoke(Bug::LossNotMarked, 3, |seed| with_one_copy("raid0", seed));
}

#[test]
fn nraid_plus() {
    survive(2, |seed| with_one_copy("nraid+", seed));
}

#[test]
fn raid1() {
    survive(4, |seed| everywhere("raid1", Mode::Writeback, seed, 1));
}

#[test]
fn nraid1_plus() {
    survive(4, |seed| everywhere("nraid1+", Mode::Writeback, seed, 1));
}

#[test]
fn raid10() {
    survive(3, |seed| everywhere("raid10", Mode::Writeback, seed, 1));
}

#[test]
fn raid5() {
    provoke(Bug::RebuildForgotten, 3, |seed| everywhere("raid5", Mode::Writeback, seed, 1));
}

#[test]
fn raid6() {
    survive(1, |seed| everywhere("raid6", Mode::Writeback, seed, 6));
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

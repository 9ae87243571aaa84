//! Starts between the runs of a seed: in trouble, and from older copies of members.

use std::rc::Rc;

use forebay_device::model::world::{Crash, Rng};

use super::{Failure, Seed, Shared};
use crate::machine::Machine;
use crate::subject::{Subject, SubjectError};
use crate::swarm::{Strike, StrikeKind};

/// One in so many starts comes after one during which a member fails: one of the first so many flushes, or all writes from one
/// of the first so many on.
const TROUBLE_ONE_IN: u64 = 4;
const START_FLUSHES: u64 = 14;
const START_WRITES: u64 = 60;

/// Reads of a member by which it is known, and those of a start behind them.
const START_LOOKS: u64 = 12;
const START_READS: u64 = 100;

impl Shared {
    /// Whether something may be on this member alone.
    fn is_alone(&self, machine: &Machine, member: usize) -> bool {
        let asked = self.config.copies.iter().map(|&(dirty, _)| dirty);
        asked.fold(self.config.dirty_copies, Ord::min) < 2
            || self.config.loss.is_some()
            || self.config.strike.is_some()
            || self.config.set_back.is_some()
            || machine.armoury.has_failed_beside(member)
    }
}

impl Seed {
    /// Now and then a start before the one that counts: a cache device fails a flush during it, which may lose what it should have
    /// covered, or all writes or reads from one on. With another copy of everything the pool opens without it. Then the process
    /// ends, or the power goes.
    pub(super) fn start_in_trouble<S: Subject>(&mut self) -> Result<(), Failure> {
        let (shared, machine) = (Rc::clone(&self.shared), Rc::clone(&self.machine));
        // From numbers of its own, so that everything else of a seed is as it would be without.
        let mut luck = Rng::new(shared.config.seed ^ 0x57A7 ^ self.crashes << 32);
        // Where one member stores what it should not, another one must not lose what has its only copy.
        let rots = shared.config.rot.is_some_and(|rot| !rot.alone);
        if !luck.one_in(TROUBLE_ONE_IN) || rots {
            return Ok(());
        }
        let failed = machine.armoury.failed();
        let member = luck.below(shared.config.members as u64) as usize;
        let alone = shared.is_alone(&machine, member);
        let flush = Strike { member, kind: StrikeKind::Flush, after: luck.below(START_FLUSHES) };
        let after = luck.below(START_WRITES);
        let looks = START_LOOKS + luck.below(START_READS);
        let strike = match luck.below(4) {
            0 | 1 => flush,
            2 => Strike { kind: StrikeKind::Writes, after, ..flush },
            _ => Strike { kind: StrikeKind::Reads, after: looks, ..flush },
        };
        machine.armoury.strike(&strike);
        let opening = Rc::clone(&machine);
        let opened = self.run(async move { Ok(S::open(&opening.env).await) })?;
        let hit = machine.armoury.failed() > failed;
        shared.trace(|| format!("a start in trouble: hit {hit}, opened {}", opened.is_ok()));
        // Without a witness one of two is no more than half of those who should know the epoch.
        let is_needed = |error: &SubjectError| {
            let SubjectError(what) = error;
            let is_half = what.contains("more than half of the members");
            // Nobody is left out who may know that another host has the pool.
            let is_unclaimed = what.starts_with("claiming the pool on");
            alone || shared.config.witness_refuses || is_half || is_unclaimed
        };
        if let Err(error) = opened.map(drop)
            && !(hit && is_needed(&error))
        {
            return Err(error.into());
        }
        if hit {
            *shared.seen.borrow_mut().entry("start in trouble").or_default() += 1;
            shared.may_have_lost.set(shared.may_have_lost.get() || alone);
        }
        self.crash(*luck.pick(&[Crash::ProcessKill, Crash::ProcessKill, Crash::PowerCut]));
        Ok(())
    }

    /// Of the members that are to be set back, what they hold.
    pub(super) fn copies_to_come(&self) -> Vec<(usize, Vec<u8>)> {
        let set_back = self.shared.config.set_back.as_ref();
        let members = set_back.map_or(&[][..], |set_back| &set_back.members);
        members.iter().map(|&member| (member, self.machine.member_image(member))).collect()
    }

    /// A start with older copies of members in their places, once that is due. It goes on without them, or refuses; they
    /// get back then what they held.
    pub(super) fn start_from_copies<S: Subject>(&mut self) -> Result<(), Failure> {
        let (shared, machine) = (Rc::clone(&self.shared), Rc::clone(&self.machine));
        let is_due = shared.config.set_back.as_ref().is_some_and(|it| self.crashes >= it.back);
        if !is_due || self.copies.is_empty() {
            return Ok(());
        }
        // Those that have failed are not asked: if the pool has gone on with what is set back alone, its witness alone can tell.
        let back = self.copies.iter().map(|(member, _)| *member).collect::<Vec<_>>();
        if !shared.config.has_sound_witness() && machine.armoury.have_all_failed_beside(&back) {
            self.copies.clear();
            return Ok(());
        }
        let newest = self.copies_to_come();
        let put = |images: &[(usize, Vec<u8>)]| {
            images.iter().for_each(|(member, image)| machine.replace_member(*member, image));
        };
        put(&self.copies);
        self.copies.clear();
        let opening = Rc::clone(&machine);
        let opened = self.run(async move { Ok(S::open(&opening.env).await.map(drop)) })?;
        shared.trace(|| format!("a start from older copies of members: {opened:?}"));
        let (what, refusal) = match opened {
            Ok(()) => ("start beside an older copy", None),
            Err(SubjectError(refusal)) => ("start refused for an older copy", Some(refusal)),
        };
        *shared.seen.borrow_mut().entry(what).or_default() += 1;
        self.crash(Crash::ProcessKill);
        let Some(refusal) = refusal else { return Ok(()) };
        put(&newest);
        let known = [
            "has been set back",
            "as they were at an earlier time",
            "more than half of the members",
            "all that they hold may be stale",
            // The copy is of one that the pool has let go of since, and the one that has its place is not there.
            "which may hold the only copy of writes",
        ];
        match known.iter().any(|known| refusal.contains(known)) {
            true => Ok(()),
            false => Err(Failure(format!("a start from older copies of members: {refusal}"))),
        }
    }
}

//! The fault layers of a seed, armed while clients are at work.

use std::rc::Rc;

use forebay_device::model::fault::{
    Delaying, Failing, Faults, Flipping, Hanging, Inner, LosingWrites, Misdirecting, Ops, Stuck,
    Trigger,
};
use forebay_device::model::world::{Rng, World};
use forebay_device::{IoErrorKind, Runtime};

use crate::swarm::{Config, MEMBER_HEAD_BYTES, RotKind, Strike, StrikeKind};

/// What goes bad together.
const BAD_BYTES: u64 = 4096;

/// What else happens when a flush fails.
pub type Lose = Box<dyn Fn()>;

/// The handles of all layers with what they do when armed.
#[derive(Default)]
pub struct Armoury {
    layers: Vec<(Rc<Faults>, Vec<Trigger>)>,
    /// What fails requests of the cache devices, in their order.
    members: Vec<Rc<Faults>>,
    /// What keeps them from answering, what they have not answered, and the device behind.
    hanging: Vec<(Rc<Faults>, Rc<Stuck>, Inner)>,
    /// What damages the only copy of something, in the last run.
    damaging: Vec<(Rc<Faults>, Vec<Trigger>)>,
    harmful: bool,
}

impl Armoury {
    fn layer(&mut self, seed: u64, faults: &[(Ops, u64)]) -> Rc<Faults> {
        let enabled = faults.iter().filter(|(_, one_in)| *one_in > 0);
        let triggers = enabled.map(|(ops, one_in)| Trigger::one_in(*ops, *one_in)).collect();
        let handle = Faults::new(seed);
        self.layers.push((Rc::clone(&handle), triggers));
        handle
    }

    /// Switches the seed's faults on. Returns whether requests may fail from now on.
    pub fn arm(&self) -> bool {
        for (handle, triggers) in &self.layers {
            triggers.iter().for_each(|trigger| handle.arm(trigger.clone()));
        }
        self.harmful
    }

    /// Has the only copy of something damaged from now on, if the seed is about that. Returns whether it is.
    pub fn damage(&self) -> bool {
        for (handle, triggers) in &self.damaging {
            triggers.iter().for_each(|trigger| handle.arm(trigger.clone()));
        }
        !self.damaging.is_empty()
    }

    /// Has one flush of a cache device fail, after so many others.
    pub fn fail_flush(&self, member: usize, after: u64) {
        self.members[member].arm(Trigger::every(Ops::Flushes).after(after).times(1));
    }

    /// Has a cache device fail for good, until the faults are switched off.
    pub fn strike(&self, strike: &Strike) {
        let Strike { member, kind, after } = *strike;
        let faults = &self.members[member];
        match kind {
            StrikeKind::Flush => self.fail_flush(member, after),
            StrikeKind::Write => faults.arm(Trigger::every(Ops::Writes).after(after).times(1)),
            StrikeKind::Writes => faults.arm(Trigger::every(Ops::Writes).after(after)),
            StrikeKind::Reads => faults.arm(Trigger::every(Ops::Reads).after(after)),
            StrikeKind::Hang => self.hanging[member].0.arm(Trigger::every(Ops::All).after(after)),
            StrikeKind::All => faults.arm(Trigger::every(Ops::All).after(after)),
        }
    }

    fn hits(&self, member: usize) -> u64 {
        self.members[member].hits() + self.hanging[member].0.hits()
    }

    /// Requests of cache devices that have failed or hung so far.
    pub fn failed(&self) -> u64 {
        (0..self.members.len()).map(|member| self.hits(member)).sum()
    }

    /// Whether a request of another cache device than this one has failed so far.
    pub fn has_failed_beside(&self, member: usize) -> bool {
        (0..self.members.len()).any(|other| other != member && self.hits(other) > 0)
    }

    /// Whether requests of all cache devices but these have failed so far.
    pub fn have_all_failed_beside(&self, members: &[usize]) -> bool {
        (0..self.members.len()).all(|other| members.contains(&other) || self.hits(other) > 0)
    }

    /// Switches all faults off; what has hung is answered.
    pub fn disarm(&self) {
        self.layers.iter().chain(&self.damaging).for_each(|(handle, _)| handle.disarm());
        for (faults, stuck, inner) in &self.hanging {
            faults.disarm();
            stuck.release(inner);
        }
    }

    /// Drops what has hung, after a crash.
    pub fn forget(&self) {
        self.hanging.iter().for_each(|(_, stuck, _)| stuck.forget());
    }

    fn harm(&mut self, faults: &[(Ops, u64)]) {
        self.harmful |= faults.iter().any(|(_, one_in)| *one_in > 0);
    }

    /// What a cache device stores wrong.
    fn rotting(&mut self, world: &Rc<World>, config: &Config, index: usize, disk: Inner) -> Inner {
        let Some(rot) = config.rot.filter(|rot| rot.member == index) else { return disk };
        let segments = MEMBER_HEAD_BYTES..config.member_bytes;
        let one_in = |one_in, range| Trigger::one_in(Ops::Writes, one_in).within(range);
        let mut triggers = vec![one_in(rot.one_in, segments.clone())];
        if rot.head_one_in > 0 {
            triggers.push(one_in(rot.head_one_in, 0..MEMBER_HEAD_BYTES));
        }
        let faults = Faults::new(config.seed ^ 0x2078);
        let lies = (Rc::clone(&faults), triggers);
        let lying: Inner = match rot.kind {
            RotKind::Flip => Rc::new(Flipping { inner: disk, faults, runtime: clock(world) }),
            RotKind::Lose => Rc::new(LosingWrites { inner: disk, faults }),
            RotKind::Misdirect => {
                Rc::new(Misdirecting { inner: disk, faults, landing: Some(segments.clone()) })
            }
        };
        if !rot.alone {
            self.layers.push(lies);
            return lying;
        }
        let (faults, mut luck) = (Faults::new(config.seed), Rng::new(config.seed ^ 0x2079));
        let sectors = segments.step_by(BAD_BYTES as usize);
        let bad = sectors.filter(|_| rot.bad_one_in > 0 && luck.one_in(rot.bad_one_in));
        let fails = |at| Trigger::every(Ops::Reads).within(at..at + BAD_BYTES);
        let triggers = bad.map(fails).collect();
        self.damaging.extend([lies, (Rc::clone(&faults), triggers)]);
        let (error, runtime) = (IoErrorKind::Media, clock(world));
        Rc::new(Failing { inner: lying, faults, error, runtime })
    }

    /// Wraps a cache device.
    pub fn member(
        &mut self,
        world: &Rc<World>,
        config: &Config,
        (index, disk): (usize, Inner),
        lose: Lose,
        rng: &mut Rng,
    ) -> Inner {
        let disk = self.rotting(world, config, index, disk);
        let mix = &config.faults;
        let errors = [
            (Ops::Reads, mix.member_read_error),
            (Ops::Writes, mix.member_write_error),
            (Ops::Flushes, mix.member_write_error),
        ];
        let flips = [(Ops::Reads, mix.member_flip)];
        self.harm(&errors);
        self.harm(&flips);
        let failing = self.failing(world, disk, lose, rng, &errors);
        self.members.extend(self.layers.last().map(|(faults, _)| Rc::clone(faults)));
        let (faults, stuck) = (Faults::new(config.seed ^ self.members.len() as u64), Rc::default());
        self.hanging.push((Rc::clone(&faults), Rc::clone(&stuck), Rc::clone(&failing)));
        let failing: Inner =
            Rc::new(Hanging { inner: failing, faults, stuck, runtime: clock(world) });
        let faults = self.layer(rng.bits(), &flips);
        let flipping: Inner = Rc::new(Flipping { inner: failing, faults, runtime: clock(world) });
        self.delaying(world, config, flipping, rng, mix.member_delay)
    }

    /// Wraps an origin.
    pub fn origin(
        &mut self,
        world: &Rc<World>,
        config: &Config,
        disk: Inner,
        lose: Lose,
        rng: &mut Rng,
    ) -> Inner {
        let mix = &config.faults;
        let errors = [
            (Ops::Reads, mix.origin_read_error),
            (Ops::Writes, mix.origin_write_error),
            (Ops::Flushes, mix.origin_flush_error),
        ];
        self.harm(&errors);
        let failing = self.failing(world, disk, lose, rng, &errors);
        self.delaying(world, config, failing, rng, mix.origin_delay)
    }

    fn failing(
        &mut self,
        world: &Rc<World>,
        inner: Inner,
        lose: Lose,
        rng: &mut Rng,
        errors: &[(Ops, u64)],
    ) -> Inner {
        let faults = self.layer(rng.bits(), errors);
        faults.at_failed_flush(lose);
        let (error, runtime) = (IoErrorKind::Media, clock(world));
        Rc::new(Failing { inner, faults, error, runtime })
    }

    fn delaying(
        &mut self,
        world: &Rc<World>,
        config: &Config,
        inner: Inner,
        rng: &mut Rng,
        one_in: u64,
    ) -> Inner {
        let faults = self.layer(rng.bits(), &[(Ops::All, one_in)]);
        Rc::new(Delaying { inner, faults, delay_max: config.delay_max, runtime: clock(world) })
    }
}

fn clock(world: &Rc<World>) -> Rc<dyn Runtime> {
    Rc::clone(world) as Rc<dyn Runtime>
}

//! Random lives of pools whose members come and go: nothing acknowledged is lost while fewer go
//! than there are copies, and what was read once does not turn back.

use std::rc::Rc;

use forebay_device::model::world::{Crash, Rng};
use forebay_engine::planted::Bug;
use forebay_engine::{Mode, Tuning};

use crate::rig::{BLOCK, Plan, Rig, SOON, lazy, provoke};

const BLOCKS: u64 = 64;

/// Begins the errors that no crash explains.
const WRONG: &str = "WRONG";

fn one_of<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

struct Life {
    rig: Rc<Rig>,
    rng: Rng,
    /// What each block may hold; the last version is the newest.
    allowed: Vec<Vec<u64>>,
    version: u64,
    /// Whether writes go straight to the origin, where a power cut may tear them between sectors.
    direct: bool,
    members: u64,
}

impl Life {
    fn new(seed: u64) -> Life {
        let mut rng = Rng::new(seed);
        let members = rng.between(2, 4);
        let copies = rng.between(1, members.min(3)) as u8;
        let modes = [Mode::Writeback, Mode::Writeback, Mode::Writethrough, Mode::Readonly];
        let mode = one_of(&mut rng, &modes);
        let tuning = Tuning {
            destage_when_idle: rng.one_in(2),
            lap_percent: one_of(&mut rng, &[5, 20, 90]),
            flush_interval: one_of(&mut rng, &[SOON / 5, 100 * SOON]),
            ..lazy()
        };
        let plan = Plan { members: members as usize, copies, mode, tuning, ..Plan::default() };
        let (rig, direct) = (Rig::new(seed, plan), mode != Mode::Writeback);
        let allowed = (0..BLOCKS).map(|_| vec![1]).collect();
        Life { rig, rng, allowed, version: 1, direct, members }
    }

    fn write(&mut self, block: u64, count: u64) -> Result<(), String> {
        self.version += 1;
        for allowed in &mut self.allowed[block as usize..(block + count) as usize] {
            allowed.push(self.version);
        }
        self.rig.write(self.version, block, count as usize)
    }

    fn zero(&mut self, block: u64) -> Result<(), String> {
        self.allowed[block as usize].push(0);
        let (volume, at) = (self.rig.volume(), block * BLOCK as u64);
        let zeroed =
            self.rig.run(async move { volume.write_zeroes(at, BLOCK as u64, false).await });
        zeroed?.map_err(|error| error.to_string())
    }

    fn flush(&mut self) -> Result<(), String> {
        self.rig.flush()?;
        self.allowed.iter_mut().for_each(|allowed| *allowed = allowed.split_off(allowed.len() - 1));
        Ok(())
    }

    /// A block has its newest version, if `exact`, or else one that it may have, from now on.
    fn check(&mut self, block: u64, exact: bool) -> Result<(), String> {
        let found = match self.rig.read(block) {
            Ok(found) => found,
            Err(error) if error.contains("Stamp") && self.direct && !exact => {
                self.allowed[block as usize].clear();
                return self.write(block, 1);
            }
            Err(error) if error.contains("crashed as asked") => return Err(error),
            Err(error) => return Err(format!("{WRONG}: {error}")),
        };
        let allowed = &mut self.allowed[block as usize];
        let good = if exact { allowed.last() == Some(&found) } else { allowed.contains(&found) };
        if !good {
            return Err(format!("{WRONG}: block {block} is {found}, not of {allowed:?}"));
        }
        if !exact {
            *allowed = vec![found];
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        let block = self.rng.below(BLOCKS);
        match self.rng.below(20) {
            0..=8 => {
                let count = self.rng.between(1, 6).min(BLOCKS - block);
                self.write(block, count)
            }
            9..=12 => self.check(block, true),
            13 | 14 => self.flush(),
            15 => self.rig.destage(),
            16 => self.zero(block),
            _ => self.rig.world.run_for(SOON / 10).map_err(|stopped| stopped.to_string()),
        }
    }

    /// Serves until a stop or a crash; whether what was acknowledged last must be there afterwards.
    fn serve(&mut self) -> Result<bool, String> {
        let steps = one_of(&mut self.rng, &[120, 120, 900]);
        let is_cut = self.rng.one_in(3);
        let after = self.rig.world.io_count() + self.rng.between(1, 8 * steps);
        self.rig.world.crash_at(is_cut.then_some(after));
        let steps = self.rng.below(steps);
        let ended = (0..steps).try_for_each(|_| self.step());
        self.rig.world.crash_at(None);
        match ended {
            Err(error) if !is_cut || error.starts_with(WRONG) => Err(error),
            Ok(()) if self.rng.one_in(4) => self.rig.stop().map(|_| true),
            ended => Ok(self.crash() && ended.is_ok()),
        }
    }

    /// Whether it loses nothing that was acknowledged.
    fn crash(&mut self) -> bool {
        let crash = one_of(&mut self.rng, &[Crash::PowerCut, Crash::ProcessKill]);
        self.rig.crash(crash);
        crash == Crash::ProcessKill
    }

    /// Now and then a member is missing at the next start, or there again.
    fn offer(&mut self) -> Vec<usize> {
        let some: Vec<usize> = (0..self.members as usize).filter(|_| !self.rng.one_in(6)).collect();
        self.rig.offer(&some);
        some
    }

    /// A start that is cut off.
    fn start_in_vain(&mut self) -> bool {
        self.offer();
        let after = self.rig.world.io_count() + self.rng.between(1, 400);
        self.rig.world.crash_at(Some(after));
        self.rig.open().ok();
        self.rig.world.crash_at(None);
        self.crash()
    }

    /// Starts with some of the members, or with all if these are not enough.
    fn start(&mut self) -> Result<(), String> {
        let some = self.offer();
        if let Err(error) = self.rig.open() {
            if !error.contains("NeedsDecision") && !some.is_empty() {
                return Err(format!("with {some:?}: {error}"));
            }
            self.rig.crash(Crash::ProcessKill);
            self.rig.offer(&(0..self.members as usize).collect::<Vec<_>>());
            self.rig.open().map_err(|error| format!("with all members: {error}"))?;
        }
        match self.rig.pool().recovery().blocks_lost {
            0 => Ok(()),
            lost => Err(format!("{lost} blocks are lost")),
        }
    }
}

fn live(seed: u64) -> Result<(), String> {
    let mut life = Life::new(seed);
    for turn in 0..8 {
        let told = |error| format!("turn {turn}: {error}");
        let mut exact = life.serve().map_err(told)?;
        for _ in 0..life.rng.below(3) {
            exact &= life.start_in_vain();
        }
        life.start().map_err(told)?;
        (0..BLOCKS).try_for_each(|block| life.check(block, exact)).map_err(told)?;
    }
    Ok(())
}

#[test]
fn members_come_and_go() {
    provoke(Bug::FlushSkipsSecondMember, 24, live);
}

//! Crashing a short workload at every single I/O, and at every I/O of the recovery that follows.
//!
//! * The workload runs once. At each request that changes a device, all devices and the oracle are
//!   copied (copy-on-write, so this is cheap), and each copy is crashed in a world of its own: the
//!   cost is linear in the requests, not quadratic. Between two such requests a crash finds nothing
//!   that it would not find at one of them.
//! * The start that follows is recorded in the same way, and each of its copies crashed again.
//! * After the last crash everything is read, destaged and compared.

use std::rc::Rc;

use forebay_device::model::world::{Crash, Rng, mix};

use crate::machine::Snapshot;
use crate::runner::{Failure, Options, Seed, reopen, serve, settle};
use crate::subject::Subject;
use crate::swarm::{Config, CrashPlan};

const KINDS: [Crash; 2] = [Crash::PowerCut, Crash::ProcessKill];

/// What is the same for all copies.
struct Search<'a> {
    seed: u64,
    options: &'a Options,
    config: Rc<Config>,
    /// Crash only at these.
    only: Option<Vec<CrashPlan>>,
    runs: u64,
}

impl Search<'_> {
    fn wants(&self, depth: usize, plan: CrashPlan) -> bool {
        self.only.as_ref().is_none_or(|only| only.get(depth) == Some(&plan))
    }

    fn failed(&self, failure: Failure, plans: &[CrashPlan]) -> (Failure, Options) {
        let crashes = (!plans.is_empty()).then(|| plans.to_vec());
        (failure, Options { crashes, short: true, ..self.options.clone() })
    }

    /// Crashes at each snapshot; `before` are the crashes that led there.
    fn crash_each<S: Subject>(
        &mut self,
        snapshots: &[Snapshot],
        before: &[CrashPlan],
    ) -> Result<(), (Failure, Options)> {
        for snapshot in snapshots {
            for crash in KINDS {
                let plan = CrashPlan { crash, after_ios: snapshot.ios, when_open: false };
                // Of the second crash one kind is enough: the other comes at its neighbours.
                let kind = KINDS[(mix(snapshot.ios) % 2) as usize];
                let left_out = !before.is_empty() && crash != kind;
                if left_out || !self.wants(before.len(), plan) {
                    continue;
                }
                let plans = [before, &[plan]].concat();
                let recorded = self
                    .recover::<S>(snapshot, &plans)
                    .map_err(|failure| self.failed(failure, &plans))?;
                if plans.len() == 1 {
                    self.crash_each::<S>(&recorded, &plans)?;
                }
            }
        }
        Ok(())
    }

    /// Crashes a copy, starts, and looks at everything; returns snapshots of the start.
    fn recover<S: Subject>(
        &mut self,
        snapshot: &Snapshot,
        plans: &[CrashPlan],
    ) -> Result<Vec<Snapshot>, Failure> {
        self.runs += 1;
        let (crash, records) = (plans[plans.len() - 1].crash, plans.len() == 1);
        // The same with --crash as without it.
        let luck = plans.iter().fold(self.seed, |luck, plan| {
            mix(luck ^ plan.after_ios << 1 ^ u64::from(plan.crash == Crash::PowerCut))
        });
        let mut seed = Seed::resume(&self.config, self.options, snapshot, luck);
        let result = recover_and_judge::<S>(&mut seed, crash, records);
        seed.end();
        result
    }
}

fn recover_and_judge<S: Subject>(
    seed: &mut Seed,
    crash: Crash,
    records: bool,
) -> Result<Vec<Snapshot>, Failure> {
    seed.crash(crash);
    seed.check_served_alone::<S>()?;
    let (shared, machine) = (Rc::clone(&seed.shared), Rc::clone(&seed.machine));
    if records {
        machine.recorder.start(&shared);
    }
    let opening = Rc::clone(&machine);
    let subject = seed.run(async move { Ok(Rc::new(S::open(&opening.env).await?)) })?;
    let recorded = machine.recorder.stop();
    seed.run(async move { settle(&shared, &machine, subject).await })?;
    if records {
        seed.crash(Crash::PowerCut);
        let (shared, machine) = (Rc::clone(&seed.shared), Rc::clone(&seed.machine));
        machine.check_origins(&shared, "after a clean stop and a power cut");
        seed.run(async move { reopen::<S>(&shared, &machine).await })?;
    }
    Ok(recorded)
}

/// Runs the workload once, to its clean stop; returns a snapshot for each of its requests.
fn record<S: Subject>(seed: &mut Seed) -> Result<Vec<Snapshot>, Failure> {
    let machine = Rc::clone(&seed.machine);
    seed.run(async move { S::create(&machine.env).await.map_err(Failure::from) })?;
    let (shared, machine) = (Rc::clone(&seed.shared), Rc::clone(&seed.machine));
    machine.recorder.start(&shared);
    let rng: Rng = seed.rng.fork();
    let subject = seed.run(async move { serve::<S>(&shared, &machine, rng, None, false).await })?;
    let (shared, machine) = (Rc::clone(&seed.shared), Rc::clone(&seed.machine));
    seed.run(async move { settle(&shared, &machine, subject).await })?;
    Ok(seed.machine.recorder.stop())
}

/// Crashes a short workload at every I/O that changes a device, and at every such I/O of the start
/// that follows. Returns the number of runs that passed.
///
/// # Errors
/// The first failure, with the options that replay it.
pub fn crash_everywhere<S: Subject>(
    seed: u64,
    options: &Options,
) -> Result<u64, (Failure, Options)> {
    let quiet = Options { crashes: Some(Vec::new()), short: true, ..options.clone() };
    let mut first = Seed::new::<S>(seed, &quiet);
    let config = Rc::clone(&first.shared.config);
    let only = options.crashes.clone();
    let mut search = Search { seed, options: &quiet, config, only, runs: 1 };
    let recorded = record::<S>(&mut first);
    first.end();
    let recorded = recorded.map_err(|failure| search.failed(failure, &[]))?;
    search.crash_each::<S>(&recorded, &[])?;
    Ok(search.runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passthrough::Passthrough;

    #[test]
    fn a_short_workload_survives_a_crash_at_every_io() {
        let runs = crash_everywhere::<Passthrough>(1, &Options::default());
        assert!(runs.map_err(|(failure, options)| (failure, options.replay(1))).unwrap() > 20);
    }

    #[test]
    fn a_crash_at_every_io_finds_what_one_seed_hides() {
        let options = Options { bug: Some("fua-ignored".into()), ..Options::default() };
        assert!((0..40).any(|seed| crash_everywhere::<Passthrough>(seed, &options).is_err()));
    }
}

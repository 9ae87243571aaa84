//! What an operator, or the daemon in their place, does to a pool while clients are at work.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::Runtime;
use forebay_device::io::{Io, pair};
use forebay_device::model::world::Rng;
use forebay_device::runtime::{MILLISECOND, Nanos, SECOND};

use super::Shared;
use crate::machine::Machine;
use crate::subject::Subject;
use crate::swarm::{Strike, StrikeKind};

/// Longest pauses between two changes of the pool.
const PAUSES: [Nanos; 3] = [MILLISECOND, 20 * MILLISECOND, 2 * SECOND];

/// How often it is looked whether a spare is needed, or whether another member may fail, and how many times:
/// as long as a device that hangs is waited for, and then some.
const LOOK_INTERVAL: Nanos = 50 * MILLISECOND;
const LOOKS: u64 = 200;

/// Who is on in one run.
pub(super) struct Stage<S> {
    pub(super) shared: Rc<Shared>,
    pub(super) machine: Rc<Machine>,
    pub(super) subject: Rc<S>,
    /// Clients that have not come to their end.
    pub(super) clients: Rc<Cell<usize>>,
}

impl<S> Clone for Stage<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Rc::clone(&self.shared),
            machine: Rc::clone(&self.machine),
            subject: Rc::clone(&self.subject),
            clients: Rc::clone(&self.clients),
        }
    }
}

impl<S: Subject> Stage<S> {
    /// Has somebody act on it; the end of that.
    pub(super) fn spawn<F>(&self, act: impl FnOnce(Stage<S>) -> F) -> Io
    where
        F: Future<Output = ()> + 'static,
    {
        let (completer, end) = pair();
        let acting = act(self.clone());
        self.machine.env.runtime.spawn(Box::pin(async move {
            acting.await;
            completer.done(Ok(()));
        }));
        end
    }

    fn luck(&self, salt: u64) -> Rng {
        Rng::new(self.shared.config.seed ^ salt ^ self.shared.world.io_count())
    }

    /// Whether clients are at work, or the pool is with what a member that was lost has left to do.
    fn goes_on(&self) -> bool {
        self.clients.get() > 0 || !self.subject.has_recovered()
    }

    async fn pause(&self, luck: &mut Rng) {
        let most = *luck.pick(&PAUSES);
        self.sleep(luck.below(most)).await;
    }

    async fn sleep(&self, span: Nanos) {
        let runtime: &dyn Runtime = &*self.shared.world;
        runtime.sleep(span).await.result.unwrap_or(());
    }
}

/// Has everything begin that the seed is about; the end of each.
pub(super) fn begin<S: Subject>(stage: &Stage<S>, strike: Option<Strike>) -> Vec<Io> {
    let config = &stage.shared.config;
    let mut ends = Vec::new();
    if config.ram_bytes.len() > 1 {
        ends.push(stage.spawn(resize_ram));
    }
    if config.scrubs > 0 {
        ends.push(stage.spawn(begin_scrubs));
    }
    if !config.copies.is_empty() {
        ends.push(stage.spawn(change_copies));
    }
    if let Some(member) = config.departs {
        ends.push(stage.spawn(move |stage| remove_member(stage, member)));
    }
    if let Some(member) = config.grows {
        ends.push(stage.spawn(move |stage| grow_member(stage, member)));
    }
    if !config.spare_sector_bytes.is_empty() {
        ends.push(stage.spawn(take_spares));
    }
    if let (Some(first), Some(kind)) = (strike, config.second_strike) {
        ends.push(stage.spawn(move |stage| strike_again(stage, first, kind)));
    }
    ends
}

/// Changes the number of copies now and then.
async fn change_copies<S: Subject>(stage: Stage<S>) {
    let Stage { shared, machine, subject, .. } = &stage;
    let mut luck = stage.luck(0xC0B2);
    for &(dirty, clean) in &shared.config.copies {
        stage.pause(&mut luck).await;
        let outcome = subject.set_copies(dirty, clean).await;
        shared.trace(|| format!("copies: {dirty} dirty, {clean} clean -> {outcome:?}"));
        // With a member less there may be too few.
        if let Err(error) = outcome
            && !shared.errors_expected.get()
            && shared.config.loss.is_none()
            && shared.config.set_back.is_none()
            && shared.config.departs.is_none()
            && machine.armoury.failed() == 0
        {
            shared.fail(format!("the copies cannot be changed: {error}"));
        }
    }
}

/// Takes a member out at some time, now and then after a spare was added in its place, and adds it again now
/// and then.
async fn remove_member<S: Subject>(stage: Stage<S>, member: usize) {
    let Stage { shared, machine, subject, .. } = &stage;
    let mut luck = stage.luck(0xDE9B);
    stage.pause(&mut luck).await;
    if let Some(spare) = shared.config.spares().next()
        && luck.one_in(2)
    {
        let outcome = subject.add_member(&machine.env, spare).await;
        shared.trace(|| format!("spare {spare} is added to replace {member} -> {outcome:?}"));
    }
    // It may be refused: too few would be left for the copies, or too small ones for what is dirty.
    let outcome = subject.remove_member(&machine.env, member).await;
    shared.trace(|| format!("member {member} is taken out -> {outcome:?}"));
    if luck.one_in(2) {
        stage.pause(&mut luck).await;
        let outcome = subject.add_member(&machine.env, member).await;
        shared.trace(|| format!("member {member} is added -> {outcome:?}"));
    }
}

/// Makes the device of a member larger at some time, and has the pool use it.
async fn grow_member<S: Subject>(stage: Stage<S>, member: usize) {
    let Stage { shared, machine, subject, .. } = &stage;
    let mut luck = stage.luck(0x6121);
    for _ in 0..luck.between(1, 4) {
        stage.pause(&mut luck).await;
        // Now and then less than a segment, which is refused.
        machine.enlarge(member, luck.between(0, 12) * shared.config.segment_bytes + 4096);
        // It may also have been taken out, be lost, or fail at that very moment.
        let outcome = subject.grow_member(&machine.env, member).await;
        shared.trace(|| format!("member {member} grows -> {outcome:?}"));
    }
}

/// Changes the size of the RAM tier now and then.
async fn resize_ram<S: Subject>(stage: Stage<S>) {
    let Stage { shared, subject, .. } = &stage;
    let mut luck = stage.luck(0x4A4);
    for &bytes in &shared.config.ram_bytes[1..] {
        stage.pause(&mut luck).await;
        let outcome = subject.set_ram(bytes).await;
        shared.trace(|| format!("RAM tier: {bytes} B -> {outcome:?}"));
        if let Err(error) = outcome
            && !shared.errors_expected.get()
        {
            shared.fail(format!("the RAM tier cannot be resized: {error}"));
        }
    }
}

/// Begins scrubs now and then.
async fn begin_scrubs<S: Subject>(stage: Stage<S>) {
    let Stage { shared, subject, .. } = &stage;
    let mut luck = stage.luck(0x5C2C);
    for _ in 0..shared.config.scrubs {
        stage.pause(&mut luck).await;
        if let Err(error) = subject.start_scrub() {
            shared.fail(format!("a scrub cannot be begun: {error}"));
        }
    }
}

/// Has each spare take the place of a member once one is lost.
async fn take_spares<S: Subject>(stage: Stage<S>) {
    let Stage { shared, machine, subject, .. } = &stage;
    let mut spares = shared.config.spares();
    let Some(mut spare) = spares.next() else { return };
    for _ in 0..LOOKS {
        // It may fail as any member may, and the pool may be full of those that were lost.
        let outcome = subject.take_spare(&machine.env, spare).await;
        if !matches!(outcome, Ok(false)) {
            shared.trace(|| format!("spare {spare} is taken -> {outcome:?}"));
            let Some(next) = spares.next() else { return };
            spare = next;
        }
        stage.sleep(LOOK_INTERVAL).await;
        if !stage.goes_on() {
            return;
        }
    }
}

/// Once a member has failed and the pool says that all has its copies again, any other one may fail, and nobody may
/// notice.
async fn strike_again<S: Subject>(stage: Stage<S>, first: Strike, kind: StrikeKind) {
    let Stage { shared, machine, subject, .. } = &stage;
    let mut luck = stage.luck(0x5EC0);
    for _ in 0..LOOKS {
        stage.sleep(luck.below(2 * LOOK_INTERVAL)).await;
        if !stage.goes_on() {
            return;
        }
        if subject.uses_member(first.member) || !subject.has_all_copies() {
            continue;
        }
        let devices = 0..machine.env.members.len();
        let others: Vec<_> = devices.filter(|member| subject.uses_member(*member)).collect();
        let second = Strike { member: *luck.pick(&others), kind, after: 0 };
        shared.trace(|| format!("all has its copies again: {second:?}"));
        *shared.seen.borrow_mut().entry("second member struck").or_default() += 1;
        return machine.armoury.strike(&second);
    }
}

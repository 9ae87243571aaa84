//! What is under way in a pool: requests of clients, and tasks.
//!
//! * Each is counted from its beginning to its end, and whoever waits for quiet is woken then: so the end of a pool waits for
//!   what goes on at its place in the order ([`crate::stopping`]).
//! * Of each [`Job`] there is one task at a time.

use std::cell::Cell;
use std::rc::Rc;

use crate::core::Core;
use crate::count::Count;
use crate::volume::VolumeState;

/// What one task at a time does, from when it is due until there is nothing more to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    /// To follow how the copies of what origins lack are ([`crate::redundancy`]).
    Review,
    /// To give dirty data its copies back ([`crate::losses`]).
    Rebuild,
    /// To give clean data its copies back ([`crate::recopy`]).
    Recopy,
    /// To give dirty data more copies than it was to have ([`crate::copies`]).
    Raise,
    /// To empty a member that is to leave ([`crate::departure`]).
    Empty,
}

/// Counts what has not ended.
#[derive(Default)]
pub(crate) struct Work {
    requests: Count,
    tasks: Count,
    /// Those of destaging, and of what housekeeping does beside making room and writing checkpoints.
    background: Count,
    /// Those that make room and write checkpoints.
    housekeepers: Count,
    /// Whether the task of a [`Job`] has not ended.
    jobs: [Cell<bool>; 5],
}

impl Work {
    /// Whether clients have requests under way.
    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_zero()
    }

    /// Whether any task goes on.
    pub(crate) fn has_tasks(&self) -> bool {
        !self.tasks.is_zero()
    }

    /// Whether one does that ends once the pool has settled.
    pub(crate) fn has_background(&self) -> bool {
        !self.background.is_zero()
    }

    /// Whether one does that makes room or writes checkpoints.
    pub(crate) fn has_housekeepers(&self) -> bool {
        !self.housekeepers.is_zero()
    }

    /// Whether somebody does this.
    pub(crate) fn is_at(&self, job: Job) -> bool {
        self.job(job).get()
    }

    fn job(&self, job: Job) -> &Cell<bool> {
        &self.jobs[job as usize]
    }
}

/// Counts a request of a client as under way.
pub(crate) struct InFlight<'a>(&'a Core, &'a VolumeState);

impl<'a> InFlight<'a> {
    pub(crate) fn new(core: &'a Core, v: &'a VolumeState) -> Self {
        core.work.requests.enter();
        v.requests.enter();
        Self(core, v)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.work.requests.leave();
        self.1.requests.leave();
        if self.0.is_stopping() || self.1.leaving.get() {
            self.0.quiet.wake_all();
        }
    }
}

impl Core {
    /// Starts a task that ends once the pool is given up, or before.
    pub(crate) fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        let core = Rc::clone(self);
        core.work.tasks.enter();
        self.rt.spawn(Box::pin(async move {
            task.await;
            core.work.tasks.leave();
            core.quiet.wake_all();
        }));
    }

    /// The same with one of destaging or housekeeping, which ends once the pool has settled.
    pub(crate) fn spawn_background(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        self.spawn_counted(|work| &work.background, task);
    }

    /// The same with one that makes room or writes checkpoints, which ends once the pool closes.
    pub(crate) fn spawn_housekeeper(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        self.spawn_counted(|work| &work.housekeepers, task);
    }

    /// Starts a job in the background, if nobody does it yet.
    pub(crate) fn spawn_job(self: &Rc<Self>, job: Job, task: impl Future<Output = ()> + 'static) {
        if self.work.job(job).replace(true) {
            return;
        }
        let core = Rc::clone(self);
        self.spawn_background(async move {
            task.await;
            core.work.job(job).set(false);
        });
    }

    fn spawn_counted(
        self: &Rc<Self>,
        count: fn(&Work) -> &Count,
        task: impl Future<Output = ()> + 'static,
    ) {
        let core = Rc::clone(self);
        count(&core.work).enter();
        self.spawn(async move {
            task.await;
            count(&core.work).leave();
        });
    }
}

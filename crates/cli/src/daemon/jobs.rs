//! Long work: it has a number, tells how far it is, and can be cancelled.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_control::api::{Done, Job as Description, JobState};
use forebay_control::error::{ApiError, Code};
use forebay_control::name::VolumeName;
use forebay_device::real::reactor::Reactor;
use forebay_device::runtime::{Nanos, Runtime, SECOND};

use crate::Result;
use crate::failure::Failure;
use crate::flag::Flag;

/// Jobs that are remembered when they have ended; whoever waits for one asks several times a second.
const ENDED_MAX: usize = 64;

/// One piece of work.
pub(super) struct Job {
    number: u64,
    volume: VolumeName,
    what: String,
    started: Nanos,
    total_bytes: u64,
    /// Asks what is left, as long as it is under way.
    left: RefCell<Option<Box<dyn Fn() -> u64>>>,
    cancelled: Flag,
    ended: Flag,
    took: Cell<Nanos>,
    outcome: RefCell<Option<Result<()>>>,
}

/// See the head of the file.
pub(super) struct Jobs {
    reactor: Rc<Reactor>,
    list: RefCell<BTreeMap<u64, Rc<Job>>>,
    last: Cell<u64>,
}

impl Job {
    /// Runs `work` unless the job is cancelled first; `None` then.
    pub(super) async fn unless_cancelled<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.cancelled.cut(work).await
    }

    fn describe(&self, now: Nanos) -> Description {
        let outcome = self.outcome.borrow();
        let (state, error) = match &*outcome {
            None => (JobState::Running, None),
            Some(Ok(())) => (JobState::Done, None),
            Some(Err(_)) if self.cancelled.is_raised() => (JobState::Cancelled, None),
            Some(Err(failure)) => (JobState::Failed, Some(ApiError::from(failure.clone()))),
        };
        let span = if outcome.is_some() { self.took.get() } else { now - self.started };
        let left = self.left.borrow().as_ref().map(|left| left());
        let left_bytes = match state {
            JobState::Done => 0,
            _ => left.unwrap_or(self.total_bytes),
        };
        let moved = u128::from(self.total_bytes.saturating_sub(left_bytes));
        let rate = moved * u128::from(SECOND) / u128::from(span.max(1));
        let rate_bytes_per_s = u64::try_from(rate).unwrap_or(u64::MAX);
        Description {
            number: self.number,
            what: self.what.clone(),
            state,
            total_bytes: self.total_bytes,
            left_bytes,
            rate_bytes_per_s,
            left_s: left_bytes.checked_div(rate_bytes_per_s),
            error,
        }
    }
}

impl Jobs {
    pub(super) fn new(reactor: &Rc<Reactor>) -> Jobs {
        Jobs { reactor: Rc::clone(reactor), list: RefCell::default(), last: Cell::new(0) }
    }

    /// Begins `work`; `left` tells how many bytes there are to go.
    pub(super) fn begin<F>(
        &self,
        volume: &VolumeName,
        what: String,
        left: impl Fn() -> u64 + 'static,
        work: impl FnOnce(Rc<Job>) -> F,
    ) -> Description
    where
        F: Future<Output = Result<()>> + 'static,
    {
        let number = self.last.get() + 1;
        self.last.set(number);
        let job = Rc::new(Job {
            number,
            volume: volume.clone(),
            what,
            started: self.reactor.now(),
            total_bytes: left(),
            left: RefCell::new(Some(Box::new(left))),
            cancelled: Flag::default(),
            ended: Flag::default(),
            took: Cell::new(0),
            outcome: RefCell::default(),
        });
        self.forget_old();
        self.list.borrow_mut().insert(number, Rc::clone(&job));
        let description = job.describe(self.reactor.now());
        let (work, reactor) = (work(Rc::clone(&job)), Rc::clone(&self.reactor));
        self.reactor.spawn(Box::pin(async move {
            let outcome = work.await;
            job.took.set(reactor.now() - job.started);
            *job.outcome.borrow_mut() = Some(outcome);
            // It may hold what it is about.
            drop(job.left.take());
            job.ended.raise();
        }));
        description
    }

    fn forget_old(&self) {
        let mut list = self.list.borrow_mut();
        let ended: Vec<u64> = list
            .iter()
            .filter(|(_, job)| job.ended.is_raised())
            .map(|(number, _)| *number)
            .collect();
        for number in ended.iter().take(ended.len().saturating_sub(ENDED_MAX)) {
            list.remove(number);
        }
    }

    fn get(&self, number: u64) -> Result<Rc<Job>> {
        self.list.borrow().get(&number).cloned().ok_or_else(|| {
            Failure::coded(Code::NotFound, format!("there is no job {number}"))
                .hint("it has ended long ago, or the daemon was started again")
        })
    }

    /// How a job is.
    pub(super) fn describe(&self, number: u64) -> Result<Description> {
        Ok(self.get(number)?.describe(self.reactor.now()))
    }

    /// Ends a job where it can be ended.
    pub(super) fn cancel(&self, number: u64) -> Result<Done> {
        let job = self.get(number)?;
        job.cancelled.raise();
        Ok(Done::of(format!("job {number} is being cancelled")))
    }

    fn running(&self) -> Vec<Rc<Job>> {
        let list = self.list.borrow();
        list.values().filter(|job| !job.ended.is_raised()).cloned().collect()
    }

    /// What is under way on a pool.
    pub(super) fn busy_with(&self, pool: &str) -> Option<String> {
        let running = self.running();
        running.iter().find(|job| job.volume.pool.as_str() == pool).map(|job| job.what.clone())
    }

    /// What is under way on a volume.
    pub(super) fn busy_on(&self, volume: &VolumeName) -> Option<Description> {
        let running = self.running();
        let job = running.iter().find(|job| job.volume == *volume)?;
        Some(job.describe(self.reactor.now()))
    }

    /// Ends all jobs and waits for that.
    pub(super) async fn cancel_all(&self) {
        let jobs = self.running();
        for job in &jobs {
            job.cancelled.raise();
        }
        for job in jobs {
            job.ended.wait().await;
        }
    }
}

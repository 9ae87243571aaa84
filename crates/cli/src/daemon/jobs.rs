//! Long work: it has a number, tells how far it is, and can be cancelled.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;

use forebay_control::api::{Done, Job as Description, JobState, Mode};
use forebay_control::error::{ApiError, Code};
use forebay_control::name::{Name, VolumeName};
use forebay_device::real::reactor::Reactor;
use forebay_device::runtime::{Nanos, Runtime};
use forebay_engine::ids::DeviceId;

use super::describe::mode_name;
use super::pace::Pace;
use crate::Result;
use crate::failure::Failure;
use crate::flag::Flag;

/// Jobs that are remembered when they have ended; whoever waits for one asks several times a second.
const ENDED_MAX: usize = 64;

/// What a job does, and to what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    Flush(VolumeName),
    /// What was dirty before a volume got another mode is destaged.
    Mode(VolumeName, Mode),
    Remove(VolumeName),
    /// A cache device, by its identity, leaves a pool.
    RemoveDevice(Name, DeviceId),
    /// A spare, by its identity, is given up.
    RemoveSpare(Name, String),
    /// A device, at a path, takes the place of a cache device, by its identity, of a pool.
    ReplaceDevice(Name, DeviceId, PathBuf),
    /// A pool is destaged and erased from its cache devices.
    Destroy(Name),
    /// All copies of what a pool holds are read. It minds nothing that is done to the pool.
    Scrub(Name),
    /// All pools are destaged, then the daemon ends.
    Stop,
}

impl Aim {
    /// The volume that it is about, if it is about one.
    pub(super) fn volume(&self) -> Option<&VolumeName> {
        match self {
            Aim::Flush(volume) | Aim::Mode(volume, _) | Aim::Remove(volume) => Some(volume),
            Aim::RemoveDevice(..)
            | Aim::RemoveSpare(..)
            | Aim::ReplaceDevice(..)
            | Aim::Destroy(_)
            | Aim::Scrub(_)
            | Aim::Stop => None,
        }
    }

    /// The pool that a cache device is to leave.
    pub(super) fn left_pool(&self) -> Option<&Name> {
        match self {
            Aim::RemoveDevice(pool, _) | Aim::ReplaceDevice(pool, ..) => Some(pool),
            _ => None,
        }
    }

    fn is_of_pool(&self, pool: &str) -> bool {
        match self {
            Aim::Flush(volume) | Aim::Mode(volume, _) | Aim::Remove(volume) => {
                volume.pool.as_str() == pool
            }
            Aim::RemoveDevice(name, _)
            | Aim::RemoveSpare(name, _)
            | Aim::ReplaceDevice(name, ..)
            | Aim::Destroy(name) => name.as_str() == pool,
            Aim::Scrub(_) => false,
            Aim::Stop => true,
        }
    }

    /// What it is about, for people.
    fn subject(&self) -> String {
        match self {
            Aim::Flush(volume) | Aim::Mode(volume, _) | Aim::Remove(volume) => {
                format!("volume \"{volume}\"")
            }
            Aim::RemoveDevice(pool, _)
            | Aim::RemoveSpare(pool, _)
            | Aim::ReplaceDevice(pool, ..)
            | Aim::Destroy(pool)
            | Aim::Scrub(pool) => {
                format!("pool \"{pool}\"")
            }
            Aim::Stop => "the daemon".to_owned(),
        }
    }

    /// Whether this must not begin while `other` is under way. A flush waits for the same as a change
    /// of mode, and neither minds the other. Volumes do not mind a cache device that leaves; a pool lets one
    /// go at a time.
    fn is_kept_by(&self, other: &Aim) -> bool {
        match (self, other) {
            (Aim::Stop | Aim::Scrub(_), _) | (_, Aim::Scrub(_)) => false,
            (Aim::Flush(_), Aim::Mode(..)) | (Aim::Mode(..), Aim::Flush(_)) => false,
            (_, Aim::Stop) => true,
            (Aim::Destroy(pool), other) | (other, Aim::Destroy(pool)) => {
                other.is_of_pool(pool.as_str())
            }
            _ => {
                (self.volume().is_some() && self.volume() == other.volume())
                    || (self.left_pool().is_some() && self.left_pool() == other.left_pool())
            }
        }
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Aim::Flush(volume) => write!(f, "flush of volume \"{volume}\""),
            Aim::Mode(volume, mode) => {
                write!(f, "change of volume \"{volume}\" to {}", mode_name(*mode))
            }
            Aim::Remove(volume) => write!(f, "removal of volume \"{volume}\""),
            Aim::RemoveDevice(pool, device) => {
                write!(f, "removal of cache device {device} from pool \"{pool}\"")
            }
            Aim::RemoveSpare(pool, spare) => {
                write!(f, "removal of spare {spare} from pool \"{pool}\"")
            }
            Aim::ReplaceDevice(pool, device, new) => {
                let new = new.display();
                write!(f, "replacement of cache device {device} of pool \"{pool}\" by {new}")
            }
            Aim::Destroy(pool) => write!(f, "destruction of pool \"{pool}\""),
            Aim::Scrub(pool) => write!(f, "scrub of pool \"{pool}\""),
            Aim::Stop => f.write_str("destaging of all pools before the end"),
        }
    }
}

/// One piece of work.
pub(super) struct Job {
    number: u64,
    aim: Aim,
    started: Nanos,
    total_bytes: u64,
    /// Asks what is left, as long as it is under way.
    left: RefCell<Option<Box<dyn Fn() -> u64>>>,
    pace: RefCell<Pace>,
    cancelled: Flag,
    ended: Flag,
    /// Raised when somebody was told how it has ended.
    told: Flag,
    took: Cell<Nanos>,
    /// What was left when it ended.
    left_at_end: Cell<u64>,
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

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.is_raised()
    }

    fn describe(&self, now: Nanos) -> Description {
        let outcome = self.outcome.borrow();
        let (state, error) = match &*outcome {
            None => (JobState::Running, None),
            Some(Ok(())) => (JobState::Done, None),
            Some(Err(_)) if self.cancelled.is_raised() => (JobState::Cancelled, None),
            Some(Err(failure)) => (JobState::Failed, Some(ApiError::from(failure.clone()))),
        };
        let left = self.left.borrow().as_ref().map(|left| left());
        let left_bytes = match state {
            JobState::Done => 0,
            _ => left.unwrap_or(self.left_at_end.get()),
        };
        // What has ended says how fast it was as a whole, what is under way how fast it is.
        let whole = || {
            let mut pace = Pace::default();
            pace.note(0, self.total_bytes);
            pace.rate(self.took.get(), left_bytes)
        };
        let rate_bytes_per_s = match state {
            JobState::Running => self.pace.borrow().rate(now, left_bytes),
            _ => whole(),
        };
        Description {
            number: self.number,
            what: self.aim.to_string(),
            state,
            total_bytes: self.total_bytes,
            left_bytes,
            rate_bytes_per_s,
            left_s: match state {
                JobState::Done => Some(0),
                _ => left_bytes.checked_div(rate_bytes_per_s),
            },
            waits_for: String::new(),
            error,
            joined: false,
        }
    }

    /// Takes a look at how far it is; its rate is made of these.
    fn note_pace(&self, now: Nanos) {
        if let Some(left) = self.left.borrow().as_ref() {
            self.pace.borrow_mut().note(now, left());
        }
    }

    /// Waits until it has ended; whether it has done what it was for.
    pub(super) async fn end(&self) -> bool {
        self.ended.wait().await;
        matches!(&*self.outcome.borrow(), Some(Ok(())))
    }

    /// Waits until somebody was told how it has ended.
    pub(super) async fn told(&self) {
        self.told.wait().await;
    }
}

impl Jobs {
    pub(super) fn new(reactor: &Rc<Reactor>) -> Jobs {
        Jobs { reactor: Rc::clone(reactor), list: RefCell::default(), last: Cell::new(0) }
    }

    /// Begins `work`; `left` tells how many bytes there are to go. What origins were given and have not
    /// flushed counts as gone, for that is proven in steps of seconds and would make no rate.
    pub(super) fn begin<F>(
        &self,
        aim: Aim,
        left: impl Fn() -> u64 + 'static,
        work: impl FnOnce(Rc<Job>) -> F,
    ) -> Rc<Job>
    where
        F: Future<Output = Result<()>> + 'static,
    {
        let number = self.last.get() + 1;
        self.last.set(number);
        let job = Rc::new(Job {
            number,
            aim,
            started: self.reactor.now(),
            total_bytes: left(),
            left: RefCell::new(Some(Box::new(left))),
            pace: RefCell::default(),
            cancelled: Flag::default(),
            ended: Flag::default(),
            told: Flag::default(),
            took: Cell::new(0),
            left_at_end: Cell::new(0),
            outcome: RefCell::default(),
        });
        job.note_pace(job.started);
        self.forget_old();
        self.list.borrow_mut().insert(number, Rc::clone(&job));
        let begun = Rc::clone(&job);
        let (work, reactor) = (work(Rc::clone(&job)), Rc::clone(&self.reactor));
        self.reactor.spawn(Box::pin(async move {
            let outcome = work.await;
            job.took.set(reactor.now() - job.started);
            // It may hold what it is about.
            let left = job.left.take();
            job.left_at_end.set(left.map_or(0, |left| left()));
            *job.outcome.borrow_mut() = Some(outcome);
            job.ended.raise();
        }));
        begun
    }

    /// Takes a look at how far all are that are under way.
    pub(super) fn note_pace(&self) {
        let now = self.reactor.now();
        self.running().iter().for_each(|job| job.note_pace(now));
    }

    /// How a job of ours is.
    pub(super) fn look(&self, job: &Job) -> Description {
        job.describe(self.reactor.now())
    }

    /// How the last job of this aim that has ended is, if it is remembered.
    pub(super) fn last_ended_of(&self, aim: &Aim) -> Option<Description> {
        let list = self.list.borrow();
        let is_meant = |job: &&Rc<Job>| job.aim == *aim && job.ended.is_raised();
        list.values().rfind(is_meant).map(|job| self.look(job))
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

    /// How a job is, and what it waits for as `in_the_way` tells; whoever asked knows it then.
    pub(super) fn describe(
        &self,
        number: u64,
        in_the_way: impl Fn(&Aim) -> String,
    ) -> Result<Description> {
        let job = self.get(number)?;
        let description = self.explain(&job, in_the_way);
        if description.state != JobState::Running {
            job.told.raise();
        }
        Ok(description)
    }

    /// How all jobs are that are remembered, and what they wait for as `in_the_way` tells.
    pub(super) fn list(&self, in_the_way: impl Fn(&Aim) -> String) -> Vec<Description> {
        self.list.borrow().values().map(|job| self.explain(job, &in_the_way)).collect()
    }

    fn explain(&self, job: &Job, in_the_way: impl Fn(&Aim) -> String) -> Description {
        let description = self.look(job);
        let waits_for = match description.state {
            JobState::Running => in_the_way(&job.aim),
            _ => String::new(),
        };
        Description { waits_for, ..description }
    }

    /// A job that can be cancelled, for it has not ended.
    fn under_way(&self, number: u64) -> Result<Rc<Job>> {
        let job = self.get(number)?;
        if job.ended.is_raised() {
            return Err(Failure::new(format!("job {number} has ended: {}", job.aim))
                .hint(format!("`forebay job show {number}` says how")));
        }
        Ok(job)
    }

    /// A job that could be cancelled, as it is now.
    pub(super) fn cancellable(&self, number: u64) -> Result<Description> {
        Ok(self.look(&*self.under_way(number)?))
    }

    /// Ends a job where it can be ended.
    pub(super) fn cancel(&self, number: u64) -> Result<Done> {
        let job = self.under_way(number)?;
        job.cancelled.raise();
        Ok(Done::of(format!("job {number} is being cancelled: {}", job.aim)))
    }

    fn running(&self) -> Vec<Rc<Job>> {
        let list = self.list.borrow();
        list.values().filter(|job| !job.ended.is_raised()).cloned().collect()
    }

    /// What is under way on a pool.
    pub(super) fn busy_with(&self, pool: &str) -> Option<String> {
        let running = self.running();
        running.iter().find(|job| job.aim.is_of_pool(pool)).map(|job| job.aim.to_string())
    }

    /// The job that does just this, to join; nothing if there is none.
    ///
    /// # Errors
    /// `Busy` if another one is under way that keeps it from beginning.
    pub(super) fn join(&self, aim: &Aim) -> Result<Option<Description>> {
        let running = self.running();
        if let Some(same) = running.iter().find(|job| job.aim == *aim) {
            return Ok(Some(Description { joined: true, ..self.look(same) }));
        }
        let Some(job) = running.iter().find(|job| aim.is_kept_by(&job.aim)) else {
            return Ok(None);
        };
        Err(Failure::coded(Code::Busy, format!("{} is busy: {}", aim.subject(), job.aim))
            .hint(format!("wait until that has ended, or `forebay job cancel {}`", job.number)))
    }

    /// Whether one is under way whose aim is like this.
    pub(super) fn is_running(&self, is_like: impl Fn(&Aim) -> bool) -> bool {
        self.running().iter().any(|job| is_like(&job.aim))
    }

    /// Ends the job that does just this, if there is one.
    pub(super) fn cancel_aim(&self, aim: &Aim) {
        self.running().iter().filter(|job| job.aim == *aim).for_each(|job| job.cancelled.raise());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_else_begins_on_a_pool_that_is_being_destroyed() {
        let destroy = Aim::Destroy("fast".parse().unwrap());
        let flush = |name: &str| Aim::Flush(name.parse().unwrap());
        assert!(flush("fast/vm").is_kept_by(&destroy) && destroy.is_kept_by(&flush("fast/vm")));
        assert!(!flush("slow/vm").is_kept_by(&destroy) && !destroy.is_kept_by(&flush("slow/vm")));
        assert!(!Aim::Stop.is_kept_by(&destroy) && destroy.is_kept_by(&Aim::Stop));
    }

    #[test]
    fn a_pool_lets_one_cache_device_go_at_a_time() {
        let pool = |name: &str| name.parse::<Name>().unwrap();
        let remove = |name, id| Aim::RemoveDevice(pool(name), DeviceId([id; 16]));
        let replace = |name, id| Aim::ReplaceDevice(pool(name), DeviceId([id; 16]), "/new".into());
        for other in [remove("fast", 1), replace("fast", 1)] {
            assert!(remove("fast", 2).is_kept_by(&other) && replace("fast", 2).is_kept_by(&other));
            assert!(!remove("slow", 2).is_kept_by(&other), "it is of another pool");
            assert!(!Aim::Flush("fast/vm".parse().unwrap()).is_kept_by(&other));
            assert!(other.is_of_pool("fast") && !other.is_of_pool("slow"));
        }
    }
}

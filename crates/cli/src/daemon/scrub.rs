//! Scrubs: whoever begins a lap, it is a job, so that it tells how far it is.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use forebay_control::api::{self, Done, JobState, Plan};
use forebay_control::name::Name;
use forebay_device::runtime::{Nanos, SECOND};

use super::jobs::{Aim, Job};
use super::plan::plan;
use super::volumes::cancelled;
use super::{Daemon, Open};
use crate::Result;
use crate::failure::Failure;
use crate::text;

/// How often it is looked whether a lap has ended.
const LOOK_INTERVAL: Nanos = SECOND;

/// A pool's scrub, in the API's words; `last` is how the job of the last one is.
pub(super) fn describe(open: &Open, last: Option<&api::Job>) -> api::Scrub {
    let scrub = open.pool.scrub();
    let is_moving = scrub.running && scrub.waits_for.is_empty();
    let left_s = scrub.left_bytes.checked_div(scrub.rate_bytes_per_s).filter(|_| is_moving);
    api::Scrub {
        rate_bytes_per_s: scrub.rate_bytes_per_s,
        running: scrub.running,
        waits_for: scrub.waits_for.to_owned(),
        begun_unix_s: scrub.begun_unix_s,
        read_bytes: scrub.read_bytes,
        left_bytes: scrub.left_bytes,
        left_s,
        damaged_blocks: scrub.found.damaged,
        copied_blocks: scrub.found.copied,
        dropped_blocks: scrub.found.dropped,
        unhealed_blocks: scrub.found.unhealed,
        replaced_records: scrub.found.replaced,
        unmended_records: scrub.found.unmended,
        unread_blocks: scrub.found.unread,
        damage_dropped_blocks: open.pool.counters().damage_dropped_blocks.get(),
        last: last.and_then(end_of),
    }
}

/// How a scrub has ended, if it has.
fn end_of(job: &api::Job) -> Option<api::ScrubEnd> {
    Some(api::ScrubEnd {
        early: match job.state {
            JobState::Running => return None,
            JobState::Done => false,
            JobState::Cancelled | JobState::Failed => true,
        },
        read_bytes: job.total_bytes.saturating_sub(job.left_bytes),
        total_bytes: job.total_bytes,
    })
}

/// Asks how many bytes a lap still has to read. Of one that was ended, or whose pool is closed, it is what was left when
/// somebody asked last.
fn left_of(watched: &Weak<Open>) -> impl Fn() -> u64 + 'static {
    let (asked, known) = (Weak::clone(watched), Cell::new(0));
    move || {
        let scrub = asked.upgrade().map(|open| open.pool.scrub());
        if let Some(scrub) = scrub.filter(|scrub| scrub.running) {
            known.set(scrub.left_bytes);
        }
        known.get()
    }
}

impl Daemon {
    /// Begins a lap, or joins the one that is under way.
    pub(super) fn start_scrub(self: &Rc<Self>, name: &Name) -> Result<api::Job> {
        let (_, open) = self.open(name.as_str())?;
        self.may_scrub(name, &open)?;
        let begun = open.pool.start_scrub()?;
        if begun {
            let what = format!("a scrub of pool \"{name}\" was begun");
            self.journal.note("scrub-started", name.as_str(), what);
        }
        self.note_scrub(name, &open)
    }

    fn may_scrub(&self, name: &Name, open: &Open) -> Result<()> {
        if open.pool.is_latched() {
            return Err(Failure::new(format!("pool \"{name}\" has stopped writing"))
                .hint("see `forebay events` for the device"));
        }
        if open.pool.scrub().rate_bytes_per_s == 0 {
            return Err(Failure::new(format!("the scrub of pool \"{name}\" is off"))
                .hint(format!("give it a rate: `forebay pool set {name} scrub_rate=8M`")));
        }
        Ok(())
    }

    /// The job of a lap that is under way.
    pub(super) fn note_scrub(self: &Rc<Self>, name: &Name, open: &Rc<Open>) -> Result<api::Job> {
        let aim = Aim::Scrub(name.clone());
        if let Some(job) = self.jobs.join(&aim)? {
            return Ok(job);
        }
        let (it, watched, of) = (Rc::clone(self), Rc::downgrade(open), name.clone());
        let left = left_of(&watched);
        let follow = |job: Rc<Job>| async move { it.follow(&of, &job, &watched).await };
        Ok(self.jobs.look(&self.jobs.begin(aim, left, follow)))
    }

    /// Waits for the end of a lap. Nothing keeps the pool meanwhile: it may be closed.
    async fn follow(&self, name: &Name, job: &Job, watched: &Weak<Open>) -> Result<()> {
        loop {
            let slept = job.unless_cancelled(self.runtime().sleep(LOOK_INTERVAL)).await;
            if slept.is_none() || job.is_cancelled() {
                // The next start goes on with it.
                if let Some(open) = watched.upgrade().filter(|_| !self.is_ending()) {
                    self.end_scrub(name, &open);
                }
                return Err(cancelled());
            }
            match watched.upgrade() {
                None => {
                    return Err(Failure::new("the pool was closed")
                        .hint("it goes on where it was when the pool is opened again"));
                }
                Some(open) if open.pool.scrub().running => {}
                Some(_) => return Ok(()),
            }
        }
    }

    /// Ends the lap that is under way where it is, and tells how far it came; `None` if there is none.
    fn end_scrub(&self, name: &Name, open: &Open) -> Option<String> {
        // A pool that has no lap does not know how far the last one came: its job looks once more before.
        self.jobs.note_pace();
        let left = text::bytes(open.pool.scrub().left_bytes);
        if !open.pool.stop_scrub() {
            return None;
        }
        let what = format!("the scrub of pool \"{name}\" was ended with {left} left to read");
        self.journal.note("scrub-stopped", name.as_str(), &what);
        Some(what)
    }

    /// Ends a lap where it is.
    pub(super) fn stop_scrub(&self, name: &Name) -> Result<Done> {
        let (_, open) = self.open(name.as_str())?;
        let Some(what) = self.end_scrub(name, &open) else {
            return Ok(Done::of(format!("no scrub of pool \"{name}\" is under way")));
        };
        self.jobs.cancel_aim(&Aim::Scrub(name.clone()));
        Ok(Done::of(format!("{what}; the next one begins when it is due, or is started")))
    }

    pub(super) fn plan_start_scrub(&self, name: &Name) -> Result<Plan> {
        let (_, open) = self.open(name.as_str())?;
        self.may_scrub(name, &open)?;
        let scrub = open.pool.scrub();
        if scrub.running {
            return Ok(plan(format!("a scrub of pool \"{name}\" is under way"), Vec::new()));
        }
        let rate = text::bytes(scrub.rate_bytes_per_s);
        let steps = vec![
            format!("every copy of what is cached is read, at most {rate} a second"),
            "what is damaged and good in another copy is copied again; damaged data that the \
             origin has is dropped"
                .to_owned(),
        ];
        Ok(plan(format!("a scrub of pool \"{name}\" would be begun"), steps))
    }

    pub(super) fn plan_stop_scrub(&self, name: &Name) -> Result<Plan> {
        let (_, open) = self.open(name.as_str())?;
        if !open.pool.scrub().running {
            return Ok(plan(format!("no scrub of pool \"{name}\" is under way"), Vec::new()));
        }
        let steps = vec!["the next one begins at the beginning, when it is due".to_owned()];
        Ok(plan(format!("the scrub of pool \"{name}\" would be ended"), steps))
    }
}

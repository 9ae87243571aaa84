//! The daemon's end: at once with what is dirty in the cache, or with all of it on the origins.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_control::api::{self, Plan, SCHEMA};
use forebay_control::error::Code;
use forebay_device::real::file::FileDevice;
use forebay_device::real::place::Displaced;
use forebay_device::runtime::{MILLISECOND, Nanos, Runtime, SECOND};
use forebay_engine::{OriginTrouble, Volume};

use super::jobs::{Aim, Job};
use super::plan::plan;
use super::volumes::{BLOCK_BYTES, cancelled};
use super::{Attached, Daemon, Open, Slot, State};
use crate::Result;
use crate::failure::Failure;
use crate::flag::race;
use crate::host::all;
use crate::machine;
use crate::origin::Origin;
use crate::text::{self, plural};

/// How long the end waits until whoever asked for it knows that all is destaged: a few of its looks.
const TOLD_TIME_MAX: Nanos = 3 * SECOND;

/// How often it is looked whether clients dirty as much as is destaged.
const LOOK_INTERVAL: Nanos = 100 * MILLISECOND;

/// Time without less being left after which clients are cut off: they write as fast as the origins.
const PROGRESS_TIME_MAX: Nanos = 5 * SECOND;

/// How long what an end waits for has time although an origin is silent: it may wait for something else.
const LAST_SPAN: Nanos = 5 * SECOND;

/// Bytes that may be left when clients are cut off, a second or two of an array's writing.
const REST_BYTES_MAX: u64 = 64 << 20;

impl Daemon {
    /// Whether nothing is to be changed any more.
    pub(super) fn is_ending(&self) -> bool {
        self.is_leaving.get() || self.end.is_raised()
    }

    pub(super) fn open_pools(&self) -> Vec<(Rc<Slot>, Rc<Open>)> {
        let slots = self.slots.borrow();
        slots.values().filter_map(|slot| Some((Rc::clone(slot), slot.open()?))).collect()
    }

    /// Bytes that origins lack, as far as is known.
    fn dirty_bytes(&self) -> u64 {
        self.open_pools().iter().map(|(_, open)| open.pool.unproven_blocks() * BLOCK_BYTES).sum()
    }

    /// Begins the daemon's end; the caller holds `changing`.
    pub(super) async fn begin_stop(self: &Rc<Self>, body: &api::Stop) -> Result<api::Stopping> {
        let (pid, dirty_bytes) = (std::process::id(), self.dirty_bytes());
        let started = machine::started(pid);
        let stopping = |job| api::Stopping { schema: SCHEMA, pid, started, dirty_bytes, job };
        if !body.destage {
            if !body.accept_removed {
                self.look_for_removed().await;
                self.refuse_endangered()?;
            }
            self.end.raise();
            return Ok(stopping(None));
        }
        if let Some(job) = self.jobs.join(&Aim::Stop)? {
            return Ok(stopping(Some(job)));
        }
        self.refuse_stranded()?;
        let (it, counted) = (Rc::clone(self), Rc::clone(self));
        let left = move || {
            let pools = counted.open_pools();
            pools.iter().map(|(_, open)| open.pool.blocks().1 * BLOCK_BYTES).sum()
        };
        let job = self.jobs.begin(Aim::Stop, left, |job| async move { it.destage_all(&job).await });
        let description = self.jobs.look(&job);
        let it = Rc::clone(self);
        self.runtime().spawn(Box::pin(async move {
            if job.end().await {
                let _ = race(job.told(), it.runtime().sleep(TOLD_TIME_MAX)).await;
                it.end.raise();
            }
        }));
        Ok(stopping(Some(description)))
    }

    /// What an end would do.
    pub(super) async fn plan_stop(&self, body: &api::Stop) -> Result<Plan> {
        let clients = self.describe_exports().iter().map(|export| export.clients).sum();
        let dirty = text::bytes(self.dirty_bytes());
        let (mut steps, mut erased) = (Vec::new(), Vec::new());
        if body.destage {
            self.jobs.join(&Aim::Stop)?;
            self.refuse_stranded()?;
            self.refuse_any_displaced().await?;
            steps.push(format!(
                "{dirty} go to the origins first, most of them while clients go on; if that fails, or is \
                 cancelled, the daemon serves as before"
            ));
        }
        steps.push(format!("exports are closed ({} cut off)", plural(clients, "client")));
        steps.push("jobs that are under way are cancelled, and pools are stopped".to_owned());
        if !body.destage {
            self.look_for_removed().await;
            let endangered = self.endangered();
            steps.extend(endangered.iter().map(|(what, _)| {
                format!(
                    "{what} {}; that has to be agreed to with --discard-removed",
                    Displaced::Removed
                )
            }));
            steps.push(format!("{dirty} stay on cache devices until the next start"));
            erased.extend(endangered.into_iter().map(|(_, path)| path));
        }
        Ok(Plan { erased, ..plan("the daemon would end", steps) })
    }

    /// What is gone for good when it is closed, in words and with the path that it had: files that were removed while in
    /// use, as the last look for them has found.
    fn endangered(&self) -> Vec<(String, PathBuf)> {
        let is_removed = |file: &FileDevice| file.displaced() == Some(Displaced::Removed);
        let mut gone = Vec::new();
        for (slot, open) in self.open_pools() {
            let pool = slot.record.borrow().name.clone();
            let (origins, members) = (open.origins.borrow(), open.members.borrow());
            for volume in open.pool.superblock().volumes {
                if matches!(origins.get(&volume.name), Some(Origin::File(file)) if is_removed(file))
                {
                    let what = format!(
                        "the origin {} of volume \"{pool}/{}\"",
                        volume.origin, volume.name
                    );
                    gone.push((what, volume.origin.into()));
                }
            }
            let removed = members.files().filter(|(_, file)| is_removed(file));
            let of_member = |path: &Path| (format!("SSD {}", path.display()), path.to_owned());
            gone.extend(removed.map(|(path, _)| of_member(path)));
        }
        gone
    }

    /// Refuses an end with which something is gone for good, unless that was agreed to.
    fn refuse_endangered(&self) -> Result<()> {
        let Some((what, _)) = self.endangered().into_iter().next() else { return Ok(()) };
        let what = format!("{what} {}", Displaced::Removed);
        Err(Failure::coded(Code::Refused, what).hint(
            "save it first: `forebay explain origin-missing`, `forebay explain member-displaced`; or agree that it \
             goes: `forebay stop --discard-removed`, `accept_removed` in the API",
        ))
    }

    /// What the end of a job would do.
    pub(super) fn plan_cancel(&self, number: u64) -> Result<Plan> {
        let job = self.jobs.cancellable(number)?;
        let left = text::bytes(job.left_bytes);
        let steps = vec![format!("it ends where it is, with {left} left; what is done stays done")];
        Ok(plan(format!("job {number} would be cancelled: {}", job.what), steps))
    }

    /// Refuses if something is dirty, or may be, that cannot be destaged.
    fn refuse_stranded(&self) -> Result<()> {
        let hint = "or stop without --destage: it stays safe in the cache";
        for slot in self.slots.borrow().values() {
            let name = slot.record.borrow().name.to_string();
            if slot.owes_nothing() {
                continue;
            }
            let Some(open) = slot.open() else {
                let what = format!("pool \"{name}\" is not open, so what it holds stays in it");
                return Err(Failure::coded(Code::Refused, what)
                    .hint(format!("`forebay pool show {name}` says why; {hint}")));
            };
            if open.pool.is_latched() {
                let what = format!("pool \"{name}\" has stopped writing after a device error");
                return Err(Failure::coded(Code::Refused, what)
                    .hint(format!("see `forebay events`; {hint}")));
            }
            for record in open.pool.superblock().volumes.iter().filter(|v| v.may_be_dirty) {
                if !matches!(open.volumes.borrow().get(&record.name), Some(Attached::Online(_))) {
                    let what = format!(
                        "volume \"{name}/{}\" may be dirty and its origin {} is not there",
                        record.name, record.origin
                    );
                    return Err(
                        Failure::coded(Code::Refused, what).hint(format!("attach it; {hint}"))
                    );
                }
            }
        }
        Ok(())
    }

    fn online(&self) -> Vec<Rc<Volume>> {
        let mut online = Vec::new();
        for (_, open) in self.open_pools() {
            online.extend(open.volumes.borrow().values().filter_map(|volume| match volume {
                Attached::Online(volume) => Some(Rc::clone(volume)),
                Attached::Missing { .. } => None,
            }));
        }
        online
    }

    /// Everything of all volumes to their origins, all origins at the same time.
    async fn destage_online(&self) -> Result<()> {
        match race(self.destage_each(), self.until_lost(None)).await {
            Ok(destaged) => destaged,
            Err(()) => self.refuse_any_displaced().await,
        }
    }

    async fn destage_each(&self) -> Result<()> {
        let failed = RefCell::new(None);
        let one = |volume: Rc<Volume>| {
            let failed = &failed;
            async move {
                if let Err(error) = volume.destage().await {
                    failed.borrow_mut().get_or_insert(error);
                }
            }
        };
        all(self.online().into_iter().map(one).collect()).await;
        failed.into_inner().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Ends when little is left, or as much is dirtied as is destaged.
    async fn until_rest(&self) {
        let (mut least, mut since) = (u64::MAX, self.reactor.now());
        loop {
            let (left, now) = (self.dirty_bytes(), self.reactor.now());
            if left < least {
                (least, since) = (left, now);
            }
            if left <= REST_BYTES_MAX || now - since > PROGRESS_TIME_MAX {
                return;
            }
            let _ = self.runtime().sleep(LOOK_INTERVAL).await;
        }
    }

    /// The job of `stop --destage`: most of it while clients go on, the rest without them. If it is
    /// cancelled or fails, the daemon serves as before.
    async fn destage_all(self: &Rc<Self>, job: &Job) -> Result<()> {
        self.refuse_any_displaced().await?;
        let most = race(self.destage_online(), self.until_rest());
        let most = job.unless_cancelled(most).await.ok_or_else(cancelled)?;
        most.unwrap_or(Ok(()))?;
        let _held = job.unless_cancelled(self.changing.lock()).await.ok_or_else(cancelled)?;
        let pools = self.open_pools();
        let finish = async {
            all(pools.iter().map(|(_, open)| self.stop_exports(open)).collect()).await;
            self.refuse_stranded()?;
            self.destage_online().await?;
            self.refuse_any_displaced().await?;
            match self.dirty_bytes() {
                0 => Ok(()),
                left => Err(Failure::coded(
                    Code::Io,
                    format!("{} could not be destaged", text::bytes(left)),
                )
                .hint("see `forebay events`; they stay safe in the cache")),
            }
        };
        let finished = job.unless_cancelled(finish).await.unwrap_or_else(|| Err(cancelled()));
        if finished.is_ok() {
            self.is_leaving.set(true);
            return Ok(());
        }
        for (slot, open) in &pools {
            let volumes: Vec<String> = {
                let record = slot.record.borrow();
                record.exports.iter().map(|export| export.volume.to_string()).collect()
            };
            for volume in volumes {
                if matches!(open.volumes.borrow().get(&volume), Some(Attached::Online(_))) {
                    self.start_export(slot, open, &volume).await;
                }
            }
        }
        finished
    }

    /// Stops everything that is served, then the pools.
    pub(super) async fn stop(self: &Rc<Self>) -> Result<()> {
        // A job or a change that is stuck keeps its own pool, which ends as in a crash then, and no other one.
        let is_held_up = || self.open_pools().iter().any(|(_, open)| open.is_held_up());
        self.unless_stuck(is_held_up, self.jobs.cancel_all()).await;
        let _held = self.unless_stuck(is_held_up, self.changing.lock()).await;
        let slots = std::mem::take(&mut *self.slots.borrow_mut());
        for slot in slots.values() {
            self.keep_advisors(slot).await;
        }
        let result = RefCell::new(Ok(()));
        let stop = |(name, slot): (String, Rc<Slot>)| {
            let (it, result, until) = (self, &result, self.reactor.now());
            async move {
                let open = match slot.transition(State::Waiting { until }) {
                    State::Open(open) => open,
                    State::Bypassed(direct) => return it.stop_direct(&slot, &direct).await,
                    State::Waiting { .. } | State::Failed(_) => return,
                };
                if let Err(failure) = it.stop_pool(&name, open).await {
                    it.journal.warn("pool-failed", &name, failure.what());
                    *result.borrow_mut() = Err(failure.on(format!("stopping pool \"{name}\"")));
                }
            }
        };
        all(slots.into_iter().map(stop).collect()).await;
        result.into_inner()
    }

    /// What comes of `future`, unless that does not end and something `is_held_up`; it is dropped then.
    pub(super) async fn unless_stuck<T>(
        &self,
        is_held_up: impl Fn() -> bool,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let stuck = async {
            let _ = self.runtime().sleep(LAST_SPAN).await;
            while !is_held_up() {
                let _ = self.runtime().sleep(SECOND).await;
            }
        };
        race(future, stuck).await.ok()
    }
}

impl Open {
    /// Whether requests may wait for ever: for an answer of an origin, or for room that one which takes no writes does
    /// not let be made.
    pub(super) fn is_held_up(&self) -> bool {
        self.volumes.borrow().values().any(|volume| match volume {
            Attached::Online(volume) => {
                volume.origin_trouble().is_some_and(|trouble| !trouble.leaves_writes())
            }
            Attached::Missing { .. } => false,
        })
    }

    /// A volume whose origin does not answer.
    pub(super) fn silent_volume(&self) -> Option<String> {
        let volumes = self.volumes.borrow();
        let silent = volumes.iter().find(|(_, volume)| match volume {
            Attached::Online(volume) => {
                matches!(volume.origin_trouble(), Some(OriginTrouble::Silent))
            }
            Attached::Missing { .. } => false,
        });
        silent.map(|(name, _)| name.clone())
    }
}

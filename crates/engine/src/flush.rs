//! FLUSH and FUA of clients, and what they are told of flushes that failed on behalf of others.
//!
//! * What was written around the log is lost for good when a flush of the origin fails, although the origin still
//!   returns it, and the next flush succeeds. So each client's next FLUSH fails, whoever's flush it was (INV-13).
//! * A client's connection may end before it was told, or before the answer reached it. Then the next one that flushes
//!   for the first time hears it, for it may be the same one. One that never flushes takes nothing from it. One that takes
//!   its leave behind the answer has heard. What it was told of from before its own time it does not hand on once
//!   [`UNSEEN_TIME_MAX`] is over, or clients that flush once each would tell each other for ever.
//! * That connection's end may still be unknown here when the client is back on another one. So for [`UNSEEN_TIME_MAX`] a
//!   first FLUSH also hears of what a living session has not: one that has written and not flushed, or that an error was
//!   sent to and that has not gone on since. It may be told of what is none of its business, once; the other way round data
//!   would be lost in silence.

use std::cell::{Cell, RefCell};

use crate::counters::add;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::UNSEEN_TIME_MAX;
use crate::planted::{self, Bug};
use crate::volume::Volume;

/// Good FLUSHes behind one that failed after which its error has been heard: one may have been on its way already.
const HEARD_FLUSHES: u8 = 2;

/// Of a volume: who may have to be told.
#[derive(Default)]
pub(crate) struct Writers {
    /// What those had been told of the origin's notices whose sessions have ended untold.
    left: Cell<Option<u64>>,
    /// What living sessions have heard that may have to be told, each with their number; a few entries.
    there: RefCell<Vec<(u64, u32)>>,
}

impl Writers {
    /// The least that any of them may have heard but the one that asks, which has entered with `own`; what those have left
    /// behind is thereby handed on.
    fn least_told(&self, is_recent: bool, own: Option<u64>) -> Option<u64> {
        let there = self.there.borrow();
        let others = |(told, count): &(u64, u32)| *count > u32::from(own == Some(*told));
        let there = there.iter().filter(|entry| is_recent && others(entry));
        self.left.take().into_iter().chain(there.map(|(told, _)| *told)).min()
    }

    fn leave(&self, told: u64) {
        self.left.set(Some(self.left.get().map_or(told, |other| other.min(told))));
    }

    fn enter(&self, told: u64) {
        let mut there = self.there.borrow_mut();
        match there.iter_mut().find(|(known, count)| *known == told || *count == 0) {
            Some(place) if place.0 == told => place.1 += 1,
            Some(free) => *free = (told, 1),
            None => there.push((told, 1)),
        }
    }

    fn quit(&self, told: u64) {
        let mut there = self.there.borrow_mut();
        let known = there.iter_mut().find(|(known, count)| *known == told && *count > 0);
        known.expect("who quits has entered").1 -= 1;
    }
}

/// Of a client: what it was told.
pub(crate) struct Heard {
    /// How many of the origin's notices.
    told: Cell<u64>,
    /// How many there had been when it came.
    came: u64,
    /// Whether it has changed anything since its last FLUSH.
    wrote: Cell<bool>,
    has_flushed: Cell<bool>,
    /// What it had been told before a FLUSH that failed, until [`HEARD_FLUSHES`] good ones: its answer may not have
    /// reached it.
    before: Cell<Option<u64>>,
    good: Cell<u8>,
    /// What it has entered among the [`Writers`] with.
    entered: Cell<Option<u64>>,
}

impl Heard {
    /// Of one that comes when there have been so many notices.
    pub(crate) fn of(notices: u64) -> Heard {
        let (wrote, has_flushed, before, good, entered) = Default::default();
        let told = Cell::new(notices);
        Heard { told, came: notices, wrote, has_flushed, before, good, entered }
    }

    /// Forgets what it was told of from before it came: what is left is of its own time.
    fn keep_own(&self) {
        let was_told_of_own = self.told.get() > self.came;
        let own = |before: u64| was_told_of_own.then_some(before.max(self.came));
        self.before.set(self.before.get().and_then(own));
    }

    /// What it has heard for certain, if it may have to be told of more.
    fn at_risk(&self) -> Option<u64> {
        let told = self.before.get().unwrap_or(self.told.get());
        (self.wrote.get() || self.before.get().is_some()).then_some(told)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if !self.state.origin.was_noticed(self.core().rt.now(), UNSEEN_TIME_MAX) {
            self.heard.keep_own();
        }
        if let Some(told) = self.heard.at_risk() {
            self.state.writers.leave(told);
        }
        self.enter(None);
    }
}

/// See [`Volume::witnessed`].
#[derive(Clone, Copy)]
pub(crate) struct Witnessed {
    direct: u64,
    failures: u64,
    losses: u64,
}

impl Volume {
    /// Makes everything that was acknowledged before survive a power cut.
    ///
    /// # Errors
    /// Also once after an origin flush on behalf of anybody has failed since this client's last
    /// FLUSH: what it wrote directly may be lost. Those under way at the same time are all told.
    pub async fn flush(&self) -> Result<()> {
        let now = self.core().rt.now();
        if let Some(lease) = self.lease_awaited(now) {
            lease.await?;
        }
        let _request = self.begin_at(now)?;
        add(&self.core().counters.flush_requests, 1);
        let (origin, heard) = (&self.state.origin, &self.heard);
        // It stays among those at risk until this has ended.
        heard.wrote.set(false);
        let least = match heard.has_flushed.replace(true) {
            true => None,
            false => {
                let is_recent = origin.was_noticed(now, UNSEEN_TIME_MAX);
                self.state.writers.least_told(is_recent, heard.entered.get())
            }
        };
        heard.told.set(heard.told.get().min(least.unwrap_or(u64::MAX)));
        let (told, known) = (heard.told.get(), origin.notices.get());
        let mut result = Ok(());
        if origin.flushed.get() < origin.direct.get() {
            result = self.core().flush_origin(&self.state).await;
        }
        let (mut notices, losses) = (origin.notices.get(), self.state.losses.get());
        if notices != told {
            result = Err(self.flush_failed());
        }
        let flushed = self.flush_log().await;
        if self.state.losses.get() != losses {
            // A member was lost meanwhile, and with it what this should have made durable.
            result = Err(self.flush_failed());
            notices = origin.notices.get();
        }
        if notices != known
            && let Some(least) = least
        {
            // Those have not heard of this one.
            self.state.writers.leave(least);
        }
        heard.told.set(notices.max(heard.told.get()));
        let result = flushed.and(result);
        match &result {
            Ok(()) if heard.good.get() + 1 < HEARD_FLUSHES => heard.good.set(heard.good.get() + 1),
            Ok(()) => heard.before.set(None),
            Err(_) => {
                heard.good.set(0);
                heard.before.set(Some(heard.before.get().map_or(told, |before| before.min(told))));
            }
        }
        self.enter(heard.at_risk());
        result
    }

    /// The client goes, having had all answers: it has heard what they said.
    pub fn take_leave(&self) {
        self.heard.before.set(None);
        self.enter(self.heard.at_risk());
    }

    fn begin_writing(&self) {
        if !self.heard.wrote.replace(true) && self.heard.entered.get().is_none() {
            self.enter(self.heard.at_risk());
        }
    }

    /// Is among those at risk with this, or not at all.
    fn enter(&self, told: Option<u64>) {
        let before = self.heard.entered.replace(told);
        if before != told {
            before.into_iter().for_each(|told| self.state.writers.quit(told));
            told.into_iter().for_each(|told| self.state.writers.enter(told));
        }
    }

    /// Begins a change; what the origin has been through, to be compared at its end.
    pub(crate) fn witnessed(&self) -> Witnessed {
        self.begin_writing();
        let origin = &self.state.origin;
        let (direct, failures) = (origin.direct.get(), origin.failures.get());
        Witnessed { direct, failures, losses: self.state.losses.get() }
    }

    /// Ends a change. A flush that failed on its way may have lost it, and clients were perhaps told
    /// of that before it was acknowledged: what they heard speaks of what was acknowledged before.
    /// Likewise of a member that took a part of it.
    pub(crate) fn end_change(&self, before: Witnessed) {
        // A FLUSH may have begun meanwhile, and need not have waited for it.
        self.begin_writing();
        let origin = &self.state.origin;
        if origin.direct.get() != before.direct && origin.failures.get() != before.failures {
            origin.notice(self.core().rt.now());
        }
        if self.state.losses.get() != before.losses {
            origin.notice(self.core().rt.now());
            self.state.loss_notice.set(origin.notices.get());
        }
    }

    /// FUA: makes what one request wrote survive a power cut. The origin is flushed only if
    /// something was written around the log since the request began. A flush that failed since
    /// then may have lost it, and a good one after that proves nothing. That it failed is still
    /// told by the next FLUSH.
    pub(crate) async fn make_durable(&self, before: Witnessed) -> Result<()> {
        let origin = &self.state.origin;
        if origin.direct.get() != before.direct {
            if origin.flushed.get() < origin.direct.get() {
                self.core().flush_origin(&self.state).await?;
            }
            if origin.failures.get() != before.failures {
                return Err(self.flush_failed());
            }
        }
        self.flush_log().await?;
        if self.state.losses.get() != before.losses {
            return Err(self.flush_failed());
        }
        Ok(())
    }

    async fn flush_log(&self) -> Result<()> {
        if planted::is(Bug::FlushAcknowledgedEarly) {
            return Ok(());
        }
        self.core().flush_for_client(&self.state).await
    }

    fn flush_failed(&self) -> Error {
        if self.heard.told.get() < self.state.loss_notice.get() {
            let what =
                format!("data of volume \"{}\" was lost with a cache device", self.state.name);
            return Error::new(ErrorKind::Io, what)
                .hint("write again what was not flushed; restore what cannot be read");
        }
        let what = format!("a flush of the origin of \"{}\" failed", self.state.name);
        Error::new(ErrorKind::Io, what)
            .hint("writes since the last good flush may be lost; check the origin")
    }
}

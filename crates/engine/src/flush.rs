//! FLUSH and FUA of clients, and what they are told of flushes that failed on behalf of others.
//!
//! * What was written around the log is lost for good when a flush of the origin fails, although the origin still
//!   returns it, and the next flush succeeds. So each client's next FLUSH fails, whoever's flush it was (INV-13).
//! * A client's connection may end before it was told, or before the answer reached it. Then the next one that flushes
//!   for the first time hears it, for it may be the same one. One that never flushes takes nothing from it.
//! * That connection's end may still be unknown here when the client is back on another one. So a first FLUSH also hears
//!   of what failed while any other client had written and not flushed. It may be told of what is none of its business,
//!   once; the other way round data would be lost in silence.

use std::cell::Cell;

use crate::counters::add;
use crate::error::{Error, ErrorKind, Result};
use crate::planted::{self, Bug};
use crate::volume::Volume;

/// Of a volume: who may have to be told.
#[derive(Default)]
pub(crate) struct Writers {
    /// What those had been told of the origin's notices whose sessions have ended untold.
    left: Cell<Option<u64>>,
    /// Sessions that have changed something since their last FLUSH, and the notices when there was none of them.
    count: Cell<u32>,
    since: Cell<u64>,
}

impl Writers {
    /// The least that any of them may have been told of; what those have left behind is thereby handed on.
    fn least_told(&self) -> Option<u64> {
        let there = Some(self.since.get()).filter(|_| self.count.get() > 0);
        [self.left.take(), there].into_iter().flatten().min()
    }

    fn leave(&self, told: u64) {
        self.left.set(Some(self.left.get().map_or(told, |other| other.min(told))));
    }
}

/// Of a client: what it was told.
pub(crate) struct Heard {
    /// How many of the origin's notices.
    told: Cell<u64>,
    /// Whether it has changed anything since its last FLUSH.
    wrote: Cell<bool>,
    has_flushed: Cell<bool>,
    /// What it had been told before a FLUSH that failed, until its next change or FLUSH: the answer may not have
    /// reached it.
    before: Cell<Option<u64>>,
}

impl Heard {
    /// Of one that comes when there have been so many notices.
    pub(crate) fn of(notices: u64) -> Heard {
        let (wrote, has_flushed, before) = Default::default();
        Heard { told: Cell::new(notices), wrote, has_flushed, before }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let before = self.heard.before.get();
        if self.end_writing() || before.is_some() {
            self.state.writers.leave(before.unwrap_or(self.heard.told.get()));
        }
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
        self.end_writing();
        heard.before.set(None);
        let least = match heard.has_flushed.replace(true) {
            true => None,
            false => self.state.writers.least_told(),
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
        if result.is_err() && notices != told {
            heard.before.set(Some(told));
        }
        flushed.and(result)
    }

    fn begin_writing(&self) {
        if !self.heard.wrote.replace(true) {
            let writers = &self.state.writers;
            if writers.count.get() == 0 {
                writers.since.set(self.state.origin.notices.get());
            }
            writers.count.set(writers.count.get() + 1);
        }
    }

    /// Whether it has changed something since the last FLUSH.
    fn end_writing(&self) -> bool {
        let wrote = self.heard.wrote.replace(false);
        let count = &self.state.writers.count;
        count.set(count.get() - u32::from(wrote));
        wrote
    }

    /// Begins a change; what the origin has been through, to be compared at its end.
    pub(crate) fn witnessed(&self) -> Witnessed {
        self.begin_writing();
        self.heard.before.set(None);
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
            origin.notices.set(origin.notices.get() + 1);
        }
        if self.state.losses.get() != before.losses {
            origin.notices.set(origin.notices.get() + 1);
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
        self.core().flush_for_client().await
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

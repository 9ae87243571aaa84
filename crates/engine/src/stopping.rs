//! The end of a pool that is open.
//!
//! * An origin that does not answer keeps no pool open: what the end would still like of origins, a flush and the
//!   fingerprint, has [`ORIGIN_SILENT_SPAN`] each, for all of them together, and what is not there by then is done
//!   without. What they lack stays in the cache. A flush that is answered later proves nothing to anybody, and a read
//!   changes nothing: neither keeps another host from the pool.
//! * Where a request, or a write of the elevator, is stuck at such an origin, or waits for room that an origin which
//!   fails all writes does not let be made, no end in order is possible. The pool ends as in a crash then, lets nothing
//!   more out, and stays this host's (INV-82). What waits then is answered by an error or not at all.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::task::Poll;

use forebay_device::runtime::SECOND;
use forebay_device::{Io, LocalBoxFuture, Nanos};

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::fingerprint;
use crate::format::Stream;
use crate::limits::ORIGIN_SILENT_SPAN;
use crate::phase::Phase;
use crate::planted::seen;
use crate::pool::Pool;
use crate::wait::all_of;

/// How long what is under way has to end although an origin is silent, or fails all writes: it may be another one's.
const LAST_SPAN: Nanos = 5 * SECOND;

/// How often it is looked whether one does.
const LOOK_INTERVAL: Nanos = SECOND;

/// Segments of each member that are kept free beside the last images: a set of them is had at once, if more are needed each by
/// emptying one that was let go of, and nothing else is opened.
const FREE_AT_STOP: usize = 1;

impl Pool {
    /// Stops the pool: lets requests end, writes a clean checkpoint. Does not destage; what origins
    /// lack, or may not have flushed, stays in the cache. Returns how many blocks that are.
    ///
    /// # Errors
    /// If a member fails on the way; the next start recovers as after a crash. The pool is as closed then as
    /// otherwise: nothing of it goes on in the background, and another host may have it. If an origin does not
    /// answer what it was asked for before, or takes no writes while others wait for room ([`ErrorKind::Stuck`]), that is
    /// still under way, nothing more is asked of any device, and this host keeps the pool until its process ends.
    pub fn stop(self) -> LocalBoxFuture<'static, Result<u64>> {
        Box::pin(async move {
            let core = &self.core;
            let closed = self.close().await;
            let ended = core.abandon().await;
            // What a client still has under way would reach an origin behind whoever has the pool next.
            if ended.is_ok() && !core.work.has_requests() {
                core.release().await;
            } else {
                core.gate.shut();
            }
            core.deadline.end().await;
            ended.and(closed)
        })
    }

    async fn close(&self) -> Result<u64> {
        let core = &self.core;
        core.life.transition(Phase::Stopping);
        core.lease.wake();
        core.housekeeping.wake_all();
        core.room.wake_all();
        core.throttle.wake();
        // Until the last request has found room, destaging and housekeeping go on.
        core.unless_stuck(|| !core.work.has_requests() || core.latched.get()).await?;
        core.check_latch()?;
        core.keep_hot_frames().await?;
        for stream in Stream::DIRTY {
            core.until_idle(stream).await?;
        }
        core.life.transition(Phase::Settled);
        core.housekeeping.wake_all();
        core.room.wake_all();
        core.unless_stuck(|| !core.work.has_background() || core.latched.get()).await?;
        core.leave_origins().await?;
        let clean = [Stream::Probation, Stream::Main, Stream::Facts];
        let streams: Vec<Stream> = Stream::DIRTY.into_iter().chain(clean).collect();
        for &stream in &streams {
            core.until_idle(stream).await?;
        }
        core.life.transition(Phase::Closing);
        // What is made free beside the last images would have the next start write new ones.
        core.sets.borrow_mut().keep_free(Some(FREE_AT_STOP));
        core.housekeeping.wake_all();
        core.quiet.until(|| !core.work.has_housekeepers() || core.latched.get()).await;
        for stream in streams {
            core.until_idle(stream).await?;
            core.close_stream(stream).await;
        }
        core.flush_members().await?;
        core.await_closed().await?;
        core.lap(true).await?;
        Ok(self.unproven_blocks())
    }
}

impl Core {
    /// Ends all tasks of a pool that is closed, or could not be opened: whoever opens it next has it alone.
    ///
    /// # Errors
    /// If one is stuck at an origin that does not answer.
    pub(crate) async fn abandon(&self) -> Result<()> {
        self.log.retire();
        self.stop_writing();
        self.lease.wake();
        self.journal.wake();
        self.unless_stuck(|| !self.work.has_tasks()).await
    }

    /// Has origins flushed, notes what that has proven, and what they look like from now on.
    async fn leave_origins(&self) -> Result<()> {
        let volumes: Vec<_> = self.volumes.borrow().values().cloned().collect();
        let volatile = volumes.iter().filter(|v| v.origin.is_volatile());
        // A failure leaves the data dirty in the cache; the event says so.
        let flushes = all_of(volatile.map(|v| self.flush_origin(v)));
        if within(flushes, self.rt.sleep(ORIGIN_SILENT_SPAN)).await.is_none() {
            seen("stop: a flush is not answered");
        }
        // The clean facts of what the flushes have proven.
        self.until_idle(Stream::Facts).await?;
        for v in &volumes {
            self.clear_may_be_dirty(v).await?;
        }
        let prints: Vec<_> = volumes.iter().map(|v| (v, Cell::new(None))).collect();
        let looks = all_of(prints.iter().map(|(v, print)| fingerprint::look(v, print)));
        if within(looks, self.rt.sleep(ORIGIN_SILENT_SPAN)).await.is_none() {
            seen("stop: a fingerprint is not whole");
        }
        let known = prints.iter().filter_map(|(v, print)| Some((v.id, print.get()?))).collect();
        fingerprint::keep(self, &known).await
    }

    /// Waits until `ready` holds, which requests and tasks bring about that end.
    ///
    /// # Errors
    /// If it does not because an origin does not answer, or fails all writes.
    async fn unless_stuck(&self, ready: impl Fn() -> bool) -> Result<()> {
        let began = self.rt.now();
        while !ready() {
            self.quiet.until_or(&ready, self.rt.sleep(LOOK_INTERVAL)).await;
            let is_late = self.rt.now() - began >= LAST_SPAN && !ready();
            if let Some(what) = is_late.then(|| self.origin_in_the_way()).flatten() {
                return Err(Error::new(ErrorKind::Stuck, what).hint(
                    "what it lacks stays safe in the cache: end the daemon, and start it when the origin \
                     works again, which recovers as after a crash",
                ));
            }
        }
        Ok(())
    }

    /// What keeps data from the origin of a volume.
    fn origin_in_the_way(&self) -> Option<String> {
        let volumes = self.volumes.borrow();
        volumes.values().find_map(|v| {
            let trouble = v.origin.trouble().filter(|trouble| !trouble.leaves_writes())?;
            Some(format!("volume \"{}\": {trouble}", v.name))
        })
    }
}

/// What comes of `future` if that ends before `timer`; it is dropped then. So it must bear that: what a flush or a
/// look at an origin leaves behind, a mark that it is under way, nobody looks at in a pool that ends.
async fn within<T>(future: impl Future<Output = T>, mut timer: Io) -> Option<T> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Pin::new(&mut timer).poll(context).map(|_| None),
    })
    .await
}

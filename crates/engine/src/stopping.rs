//! The end of a pool that is open.
//!
//! * An origin that does not answer keeps no pool open: what the end would still like of it, a flush and the
//!   fingerprint, has [`ORIGIN_SILENT_SPAN`], and is done without then. What it owes stays in the cache.
//! * Where a request or a write is stuck at such an origin, no end in order is possible. Then the pool ends as in a
//!   crash, once nothing has moved for as long, and nobody is told that another host may have it.

use std::pin::{Pin, pin};
use std::task::Poll;

use forebay_device::Io;
use forebay_device::runtime::SECOND;

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::fingerprint;
use crate::format::Stream;
use crate::limits::ORIGIN_SILENT_SPAN;
use crate::pool::Pool;

/// What moves while a pool that is to stop gets on with it.
#[derive(PartialEq, Eq)]
struct Progress {
    requests: u64,
    tasks: u64,
    /// Operations that origins have ended.
    ended: u64,
}

impl Pool {
    /// Stops the pool: lets requests end, writes a clean checkpoint. Does not destage; what origins
    /// lack stays in the cache. Returns how many blocks that are.
    ///
    /// # Errors
    /// If a member fails on the way; the next start recovers as after a crash. The pool is as closed then as
    /// otherwise: nothing of it goes on in the background, and another host may have it. Or if an origin does not
    /// answer what it was asked before: then that is still under way, and this host keeps the pool.
    pub async fn stop(self) -> Result<u64> {
        let core = &self.core;
        let closed = self.close().await;
        let ended = core.abandon().await;
        // What a client still has under way would reach an origin behind whoever has the pool next.
        if ended.is_ok() && core.requests.get() == 0 {
            core.release().await;
        }
        core.deadline.end().await;
        ended.and(closed)
    }

    async fn close(&self) -> Result<u64> {
        let core = &self.core;
        core.stopping.set(true);
        core.lease.wake();
        core.housekeeping.wake_all();
        core.room.wake_all();
        core.throttle.wake();
        // Until the last request has found room, destaging and housekeeping go on.
        core.unless_stuck(|| core.requests.get() == 0 || core.latched.get()).await?;
        core.check_latch()?;
        core.keep_hot_frames().await?;
        for stream in Stream::DIRTY {
            core.until_idle(stream).await?;
        }
        core.settled.set(true);
        core.housekeeping.wake_all();
        core.room.wake_all();
        core.unless_stuck(|| core.background.get() == 0 || core.latched.get()).await?;
        let volumes: Vec<_> = core.volumes.borrow().values().cloned().collect();
        for v in &volumes {
            if v.origin.is_volatile() {
                // A failure leaves the data dirty in the cache; the event says so.
                within(core.flush_origin(v), core.rt.sleep(ORIGIN_SILENT_SPAN)).await;
            }
            // The clean facts of what the flush has proven.
            core.until_idle(Stream::Facts).await?;
            core.clear_may_be_dirty(v).await?;
            let print = within(fingerprint::look(v), core.rt.sleep(ORIGIN_SILENT_SPAN)).await;
            fingerprint::keep(core, v, print.flatten()).await?;
        }
        let clean = [Stream::Probation, Stream::Main, Stream::Facts];
        let streams: Vec<Stream> = Stream::DIRTY.into_iter().chain(clean).collect();
        for &stream in &streams {
            core.until_idle(stream).await?;
        }
        core.closing.set(true);
        core.housekeeping.wake_all();
        core.quiet.until(|| core.housekeepers.get() == 0 || core.latched.get()).await;
        for stream in streams {
            core.until_idle(stream).await?;
            core.close_stream(stream).await;
        }
        core.flush_members().await?;
        core.await_closed().await?;
        core.lap(true).await?;
        Ok(core.owed_blocks())
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
        self.unless_stuck(|| self.tasks.get() == 0).await
    }

    /// Waits until `ready` holds, which requests and tasks bring about that end.
    ///
    /// # Errors
    /// If an origin does not answer, and nothing else has ended for as long.
    async fn unless_stuck(&self, ready: impl Fn() -> bool) -> Result<()> {
        // A member that does not answer is given up after its deadline, and that is progress.
        let span = ORIGIN_SILENT_SPAN.max(2 * self.deadline.span());
        let (mut before, mut since) = (self.progress(), self.rt.now());
        while !ready() {
            self.quiet.until_or(&ready, self.rt.sleep(SECOND)).await;
            let (progress, now) = (self.progress(), self.rt.now());
            if progress != before {
                (before, since) = (progress, now);
            } else if now - since >= span && !ready() {
                return Err(self.stuck());
            }
        }
        Ok(())
    }

    fn progress(&self) -> Progress {
        let volumes = self.volumes.borrow();
        let ended = volumes.values().map(|v| v.origin.completed.get() + v.origin.flushed.get());
        Progress { requests: self.requests.get(), tasks: self.tasks.get(), ended: ended.sum() }
    }

    fn stuck(&self) -> Error {
        let volumes = self.volumes.borrow();
        let silent = volumes.values().find(|v| v.origin.trouble().is_some());
        let whose = silent.map_or_else(String::new, |v| format!(" of volume \"{}\"", v.name));
        Error::new(ErrorKind::Io, format!("an origin{whose} does not answer"))
            .hint("what it lacks stays safe in the cache; the next start recovers as after a crash")
    }
}

/// What comes of `future` if that ends before `timer`; it is dropped then, so it must bear that.
async fn within<T>(future: impl Future<Output = T>, mut timer: Io) -> Option<T> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Pin::new(&mut timer).poll(context).map(|_| None),
    })
    .await
}

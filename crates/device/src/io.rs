//! One request's way back: a completer for the device, a future for whoever waits.
//!
//! * The cell between them comes from a pool of the thread, so a request allocates nothing.
//! * A request that was given up ([`crate::watched`]) ends for whoever waits. The device keeps its side
//!   and the buffer until it answers, and nothing comes of that answer.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use crate::buf::Buf;

/// Cells kept for reuse by one thread: a few full device queues; more are freed.
const CELLS_POOLED_MAX: usize = 4096;

thread_local! {
    static CELLS: RefCell<Vec<Rc<IoCell>>> = const { RefCell::new(Vec::new()) };
    /// All cells of the thread, in use or not; some of these are gone.
    static KNOWN: RefCell<Vec<Weak<IoCell>>> = const { RefCell::new(Vec::new()) };
}

/// What went wrong with a device request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoErrorKind {
    /// The device reports that it cannot read or write the range.
    Media,
    /// The device is gone.
    Vanished,
    /// The device did not answer in time.
    TimedOut,
    /// The file system below a file has no room.
    NoSpace,
    /// The device does not know this request.
    Unsupported,
    /// The request lies outside the device or is not aligned to its sectors.
    Invalid,
    /// The system refuses access.
    Permission,
    /// Anything else the system reports.
    Other,
}

/// A failed device request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoError {
    /// What went wrong.
    pub kind: IoErrorKind,
    /// The system's error number, where there is one.
    pub errno: Option<i32>,
}

impl IoError {
    /// An error without a system error number.
    pub const fn new(kind: IoErrorKind) -> Self {
        Self { kind, errno: None }
    }
}

impl From<IoErrorKind> for IoError {
    fn from(kind: IoErrorKind) -> Self {
        Self::new(kind)
    }
}

impl std::fmt::Display for IoError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self.kind {
            IoErrorKind::Media => "the device cannot read or write this range",
            IoErrorKind::Vanished => "the device is gone",
            IoErrorKind::TimedOut => "the device did not answer in time",
            IoErrorKind::NoSpace => "no space left below the file",
            IoErrorKind::Unsupported => "the device does not support this request",
            IoErrorKind::Invalid => "the request is outside the device or not aligned",
            IoErrorKind::Permission => "the system refuses access",
            IoErrorKind::Other => "the system reports an error",
        };
        f.write_str(text)?;
        match self.errno {
            Some(errno) => write!(f, " (errno {errno})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for IoError {}

/// How a request ended. A read's buffer comes back whatever the result, if the device has answered.
#[derive(Debug)]
pub struct Outcome {
    /// Success or the error.
    pub result: Result<(), IoError>,
    /// The buffer of a read, unless that was given up: then the device has it still.
    pub buf: Option<Buf>,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    /// The device has it.
    #[default]
    Open,
    /// The device has answered.
    Ended,
    /// Nobody waits for it any more, and the device still has it.
    GivenUp,
}

#[derive(Default)]
struct IoCell {
    outcome: Cell<Option<Outcome>>,
    waker: Cell<Option<Waker>>,
    progress: Cell<Progress>,
    /// Who watches the request, 0 for nobody, and its number there.
    watcher: Cell<u32>,
    number: Cell<u64>,
}

/// The device's side: completes the request exactly once. Dropped without an answer (a device
/// that dies with requests in hand), it completes with [`IoErrorKind::Vanished`].
pub struct Completer(Option<Rc<IoCell>>);

/// The waiting side: resolves to the [`Outcome`].
#[must_use = "a request's outcome must be looked at"]
pub struct Io(Option<Rc<IoCell>>);

/// A connected pair for one request.
pub fn pair() -> (Completer, Io) {
    let cell = CELLS.try_with(|cells| cells.borrow_mut().pop()).ok().flatten();
    let cell = cell.unwrap_or_else(new_cell);
    (Completer(Some(Rc::clone(&cell))), Io(Some(cell)))
}

#[cold]
fn new_cell() -> Rc<IoCell> {
    let cell = Rc::new(IoCell::default());
    let _ = KNOWN.try_with(|known| {
        let mut known = known.borrow_mut();
        if known.len() == known.capacity() {
            // Those that are gone make room first, so there are never more than twice those in use.
            known.retain(|cell| cell.strong_count() > 0);
            let more = known.len().max(64);
            known.reserve(more);
        }
        known.push(Rc::downgrade(&cell));
    });
    cell
}

/// The requests that one watcher has to do with, in the order of their numbers.
fn watched_by(watcher: u32, progress: Progress) -> Vec<Rc<IoCell>> {
    let ours = |cell: &Rc<IoCell>| cell.watcher.get() == watcher && cell.progress.get() == progress;
    let found = KNOWN.try_with(|known| {
        known.borrow().iter().filter_map(Weak::upgrade).filter(ours).collect::<Vec<_>>()
    });
    let mut found = found.unwrap_or_default();
    found.sort_unstable_by_key(|cell| cell.number.get());
    found
}

/// Number of the oldest request of a watcher that the device has not answered.
pub(crate) fn oldest_of(watcher: u32) -> Option<u64> {
    watched_by(watcher, Progress::Open).first().map(|cell| cell.number.get())
}

/// Ends all requests of a watcher for those who wait for them.
pub(crate) fn give_up(watcher: u32, error: IoError) {
    for cell in watched_by(watcher, Progress::Open) {
        cell.progress.set(Progress::GivenUp);
        cell.outcome.set(Some(Outcome { result: Err(error), buf: None }));
        if let Some(waker) = cell.waker.take() {
            waker.wake();
        }
    }
}

/// Requests of a watcher that were given up and that the device still has.
pub(crate) fn given_up_count(watcher: u32) -> usize {
    watched_by(watcher, Progress::GivenUp).len()
}

fn recycle(cell: Rc<IoCell>) {
    if Rc::strong_count(&cell) != 1 {
        return;
    }
    cell.outcome.take();
    cell.waker.take();
    cell.progress.set(Progress::Open);
    cell.watcher.set(0);
    let _ = CELLS.try_with(|cells| {
        let mut cells = cells.borrow_mut();
        if cells.len() < CELLS_POOLED_MAX {
            cells.push(cell);
        }
    });
}

impl Completer {
    /// Ends the request.
    pub fn complete(mut self, result: Result<(), IoError>, buf: Option<Buf>) {
        self.finish(Outcome { result, buf });
    }

    /// Ends a request that carries no buffer back.
    pub fn done(self, result: Result<(), IoError>) {
        self.complete(result, None);
    }

    /// Whether nobody waits for the outcome any more.
    pub fn is_abandoned(&self) -> bool {
        self.0.as_ref().is_none_or(|cell| Rc::strong_count(cell) == 1)
    }

    /// Puts the request under a number that one watcher has for it.
    pub(crate) fn watch(&self, watcher: u32, number: u64) {
        if let Some(cell) = &self.0 {
            cell.watcher.set(watcher);
            cell.number.set(number);
        }
    }

    fn finish(&mut self, outcome: Outcome) {
        let Some(cell) = self.0.take() else { return };
        if cell.progress.replace(Progress::Ended) == Progress::GivenUp {
            // Who waited has been told already; the buffer is free only now.
            drop(outcome);
        } else {
            cell.outcome.set(Some(outcome));
            if let Some(waker) = cell.waker.take() {
                waker.wake();
            }
        }
        recycle(cell);
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        self.finish(Outcome { result: Err(IoErrorKind::Vanished.into()), buf: None });
    }
}

impl Io {
    /// A request that has already ended.
    pub fn ready(result: Result<(), IoError>, buf: Option<Buf>) -> Io {
        let (completer, io) = pair();
        completer.complete(result, buf);
        io
    }

    /// Waits for a request that returns no buffer.
    pub async fn done(self) -> Result<(), IoError> {
        self.await.result
    }
}

impl Future for Io {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let cell = self.0.as_ref().expect("polled after completion");
        match cell.outcome.take() {
            Some(outcome) => {
                if let Some(cell) = self.0.take() {
                    recycle(cell);
                }
                Poll::Ready(outcome)
            }
            None => {
                let is_open = cell.progress.get() == Progress::Open;
                assert!(is_open, "a completed request keeps its outcome");
                cell.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        if let Some(cell) = self.0.take() {
            recycle(cell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::block_on_ready;

    #[test]
    fn a_dropped_completer_reports_a_vanished_device() {
        let (completer, io) = pair();
        drop(completer);
        let outcome = block_on_ready(io);
        assert_eq!(outcome.result, Err(IoErrorKind::Vanished.into()));
    }

    #[test]
    fn the_buffer_comes_back_with_the_result() {
        let (completer, io) = pair();
        completer.complete(Ok(()), Some(Buf::copy_of(&[9; 512])));
        let outcome = block_on_ready(io);
        assert_eq!(outcome.buf.map(|b| b[511]), Some(9));
    }

    #[test]
    fn cells_are_clean_when_reused() {
        let (completer, io) = pair();
        drop(io);
        assert!(completer.is_abandoned());
        completer.done(Ok(()));
        let (completer, io) = pair();
        assert!(!completer.is_abandoned());
        completer.done(Err(IoErrorKind::Media.into()));
        assert_eq!(block_on_ready(io.done()), Err(IoErrorKind::Media.into()));
    }
}

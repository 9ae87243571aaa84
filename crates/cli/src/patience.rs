//! What may not answer: a disk behind a dead path, a file system over a network.
//!
//! * It is asked beside everything else, on a thread where the system blocks. It is waited for
//!   [`ANSWER_TIME_MAX`]; then who asked goes on without it, and the call goes on by itself, for the
//!   system has no way to end it.
//! * There is one such call for a path at a time, however often it is tried; when it returns after
//!   all, the next attempt uses what it has brought.
//! * Files of our own that must not be overtaken by older versions of themselves have a [`Lane`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_device::real::reactor::Reactor;
use forebay_device::runtime::{Nanos, Runtime, SECOND};

use crate::blocking::{Answer, begin};
use crate::failure::Failure;
use crate::flag::{Flag, race};

/// How long a device may take to answer before its caller turns to something else: what sleeps
/// wakes up in that time, and a change that waits behind it is not taken for lost.
pub(crate) const ANSWER_TIME_MAX: Nanos = 5 * SECOND;

/// How long a file of ours may take to be stored: a busy disk flushes within it, and Linux gives a
/// request to a disk as long before it takes that for dead.
const STORE_TIME_MAX: Nanos = 30 * SECOND;

/// Says that a path does not answer.
pub(crate) fn no_answer(path: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{path} does not answer"))
        .hint("see `dmesg` for the device, or `mount` for its file system")
}

/// What a call will have brought.
struct Soon<T> {
    value: RefCell<Option<T>>,
    is_there: Flag,
}

/// Calls that have not returned in time, by path.
pub(crate) struct Pending<T>(RefCell<BTreeMap<PathBuf, Rc<Soon<T>>>>);

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<T: 'static> Pending<T> {
    /// What `call` brings, or the one before that has not returned yet; that one is not waited for
    /// again. `None` if there is no answer in time, or `end` comes first.
    pub(crate) async fn ask<F: Future<Output = T> + 'static>(
        &self,
        reactor: &Rc<Reactor>,
        path: &Path,
        call: impl FnOnce() -> F,
        end: impl Future<Output = ()>,
    ) -> Option<T> {
        let known = self.0.borrow_mut().remove(path);
        let span = if known.is_some() { 0 } else { ANSWER_TIME_MAX };
        let soon = known.unwrap_or_else(|| {
            let soon = Rc::new(Soon { value: RefCell::default(), is_there: Flag::default() });
            let (call, theirs) = (call(), Rc::clone(&soon));
            reactor.spawn(Box::pin(async move {
                *theirs.value.borrow_mut() = Some(call.await);
                theirs.is_there.raise();
            }));
            soon
        });
        let runtime: &dyn Runtime = &**reactor;
        if race(soon.is_there.wait(), race(runtime.sleep(span), end)).await.is_ok() {
            return soon.value.take();
        }
        self.0.borrow_mut().insert(path.to_owned(), soon);
        None
    }

    /// Gives up what a path may still bring.
    pub(crate) fn forget(&self, path: &Path) {
        self.0.borrow_mut().remove(path);
    }

    /// What has been brought for nobody, unless its path `is_wanted`: an open device is in use.
    pub(crate) fn take_brought(&self, is_wanted: impl Fn(&Path) -> bool) -> Vec<T> {
        let mut pending = self.0.borrow_mut();
        let brought =
            pending.extract_if(.., |path, soon| soon.is_there.is_raised() && !is_wanted(path));
        brought.filter_map(|(_, soon)| soon.value.take()).collect()
    }
}

/// Calls that block, one at a time, each waited for at most [`STORE_TIME_MAX`]. As long as one has not
/// returned all others fail: it could take effect after what came later.
pub(crate) struct Lane {
    reactor: Rc<Reactor>,
    /// Whether the last call has returned.
    is_free: RefCell<Box<dyn Fn() -> bool>>,
}

impl Lane {
    pub(crate) fn new(reactor: &Rc<Reactor>) -> Lane {
        Lane { reactor: Rc::clone(reactor), is_free: RefCell::new(Box::new(|| true)) }
    }

    /// What `call` returns, from a thread.
    ///
    /// # Errors
    /// `TimedOut` if it does not return in time; it may still take effect.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.run_within(STORE_TIME_MAX, call).await
    }

    async fn run_within<T: Send + 'static>(
        &self,
        span: Nanos,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "its file system does not answer");
        if !(self.is_free.borrow())() {
            return Err(late());
        }
        let answer: Answer<io::Result<T>> = begin(call)?;
        *self.is_free.borrow_mut() = answer.watch();
        let runtime: &dyn Runtime = &*self.reactor;
        race(answer.wait(), runtime.sleep(span)).await.unwrap_or_else(|_| Err(late()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use forebay_device::real::reactor::Config;
    use forebay_device::runtime::MILLISECOND;

    use super::*;

    #[test]
    fn who_does_not_answer_is_waited_for_once_and_asked_once() {
        let reactor = Reactor::new(Config::default()).unwrap();
        let (pending, path) = (Pending::default(), Path::new("/dev/dead"));
        let answers = Rc::new(Flag::default());
        let asked = Rc::new(std::cell::Cell::new(0));
        let ask = |end| {
            let (answers, asked) = (Rc::clone(&answers), Rc::clone(&asked));
            let call = || async move {
                asked.set(asked.get() + 1);
                answers.wait().await;
                7
            };
            reactor.block_on(pending.ask(&reactor, path, call, end))
        };
        // The first time it is given up early here, so that the test need not wait.
        assert_eq!(ask(std::future::ready(())), None);
        assert_eq!(ask(std::future::ready(())), None);
        answers.raise();
        reactor.block_on(async {
            let runtime: &dyn Runtime = &*reactor;
            let _ = runtime.sleep(MILLISECOND).await;
        });
        assert_eq!((ask(std::future::ready(())), asked.get()), (Some(7), 1));
        reactor.close();
    }

    #[test]
    fn nothing_is_stored_while_an_older_store_has_not_returned() {
        let reactor = Reactor::new(Config::default()).unwrap();
        let lane = Lane::new(&reactor);
        let (release, held) = channel::<()>();
        let (told, returned) = channel();
        reactor.block_on(async {
            let slow = lane.run_within(MILLISECOND, move || {
                let _ = held.recv();
                told.send(()).map_err(io::Error::other)
            });
            assert_eq!(slow.await.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(lane.run(|| Ok(1)).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
            release.send(()).unwrap();
            returned.recv().unwrap();
            let runtime: &dyn Runtime = &*reactor;
            while lane.run(|| Ok(2)).await.is_err() {
                let _ = runtime.sleep(MILLISECOND).await;
            }
        });
        reactor.close();
    }
}

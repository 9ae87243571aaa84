//! Waiting for other tasks of the same thread.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, Waker};

use forebay_device::Runtime;
use forebay_device::runtime::Nanos;

/// Tasks that wait for something; each is listed once.
#[derive(Default)]
pub(crate) struct Waiters(RefCell<Vec<Waker>>);

impl Waiters {
    pub(crate) fn add(&self, waker: &Waker) {
        let mut waiting = self.0.borrow_mut();
        if !waiting.iter().any(|w| w.will_wake(waker)) {
            waiting.push(waker.clone());
        }
    }

    /// Takes a task off the list that found what it waited for without being woken for it.
    pub(crate) fn remove(&self, waker: &Waker) {
        self.0.borrow_mut().retain(|w| !w.will_wake(waker));
    }

    /// Wakes the task that came last; false if none waits. The last one has the warmest memory.
    pub(crate) fn wake_one(&self) -> bool {
        let waker = self.0.borrow_mut().pop();
        waker.map(Waker::wake).is_some()
    }

    pub(crate) fn wake_all(&self) {
        while self.wake_one() {}
    }

    /// Waits until `done()`; whoever makes that true must call [`Waiters::wake_all`].
    pub(crate) async fn until(&self, done: impl Fn() -> bool) {
        poll_fn(|cx| {
            if done() {
                return Poll::Ready(());
            }
            self.add(cx.waker());
            Poll::Pending
        })
        .await;
    }
}

/// Something that happens once.
#[derive(Default)]
pub(crate) struct Signal {
    raised: Cell<bool>,
    waiters: Waiters,
}

impl Signal {
    pub(crate) fn raise(&self) {
        self.raised.set(true);
        self.waiters.wake_all();
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.get()
    }

    /// Runs `future`, but drops it when the signal is raised first.
    pub(crate) async fn cut<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if self.raised.get() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            if self.raised.get() {
                return Poll::Ready(None); // raised by what the poll did
            }
            self.waiters.add(cx.waker());
            Poll::Pending
        })
        .await
    }
}

/// Runs `future`, but drops it after `span`.
pub(crate) async fn within<F: Future>(
    runtime: &dyn Runtime,
    span: Nanos,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut timer = pin!(runtime.sleep(span));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => timer.as_mut().poll(cx).map(|_| None),
    })
    .await
}

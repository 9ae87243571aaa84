//! Waiting for a condition of the engine's own state, on one thread.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Poll, Waker};

use forebay_device::Io;

/// Tasks that wait until something changes.
#[derive(Default)]
pub(crate) struct WaitQueue {
    wakers: RefCell<Vec<Waker>>,
}

impl WaitQueue {
    /// Waits until `ready` holds. It is asked now and after every [`WaitQueue::wake_all`].
    pub(crate) async fn until(&self, mut ready: impl FnMut() -> bool) {
        poll_fn(|cx| {
            if ready() {
                return Poll::Ready(());
            }
            let mut wakers = self.wakers.borrow_mut();
            if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Like [`WaitQueue::until`], but gives up when `timer` ends.
    pub(crate) async fn until_or(&self, mut ready: impl FnMut() -> bool, mut timer: Io) {
        poll_fn(|cx| {
            if ready() || Pin::new(&mut timer).poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let mut wakers = self.wakers.borrow_mut();
            if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Lets every waiter look again.
    pub(crate) fn wake_all(&self) {
        let mut wakers = std::mem::take(&mut *self.wakers.borrow_mut());
        wakers.drain(..).for_each(Waker::wake);
        // Give the memory back unless somebody registered meanwhile.
        let mut slot = self.wakers.borrow_mut();
        if slot.is_empty() {
            *slot = wakers;
        }
    }
}

/// Lets all tasks that are ready now run first.
pub(crate) async fn yield_once() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Drives some futures together; their outputs in their order. Each wake-up polls all that have not
/// ended, so they should be few.
pub(crate) async fn all_of<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(|it| Box::pin(it)).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, output) in futures.iter_mut().zip(&mut outputs).filter(|(_, o)| o.is_none()) {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                *output = Some(value);
            }
        }
        if outputs.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// A mutex for the tasks of one thread.
#[derive(Default)]
pub(crate) struct TaskMutex {
    held: Cell<bool>,
    queue: WaitQueue,
}

/// Holds a [`TaskMutex`] until dropped.
pub(crate) struct TaskGuard<'a>(&'a TaskMutex);

impl TaskMutex {
    pub(crate) async fn lock(&self) -> TaskGuard<'_> {
        self.queue.until(|| !self.held.replace(true)).await;
        TaskGuard(self)
    }
}

impl Drop for TaskGuard<'_> {
    fn drop(&mut self) {
        self.0.held.set(false);
        self.0.queue.wake_all();
    }
}

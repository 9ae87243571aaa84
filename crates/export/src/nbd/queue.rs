//! A queue between tasks of one thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;

use crate::nbd::signal::Waiters;

/// Hands items to whoever waits. Its length is bounded by the permits of those who push.
pub(crate) struct Queue<T> {
    items: RefCell<VecDeque<T>>,
    closed: Cell<bool>,
    waiters: Waiters,
}

impl<T> Queue<T> {
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self {
            items: RefCell::new(VecDeque::with_capacity(count)),
            closed: Cell::new(false),
            waiters: Waiters::default(),
        }
    }

    /// Adds an item; false if nobody was waiting for one.
    pub(crate) fn push(&self, item: T) -> bool {
        self.items.borrow_mut().push_back(item);
        self.waiters.wake_one()
    }

    pub(crate) fn try_pop(&self) -> Option<T> {
        self.items.borrow_mut().pop_front()
    }

    /// The next item; `None` when the queue is closed and empty.
    pub(crate) async fn pop(&self) -> Option<T> {
        poll_fn(|cx| match self.try_pop() {
            Some(item) => {
                self.waiters.remove(cx.waker());
                Poll::Ready(Some(item))
            }
            None if self.closed.get() => Poll::Ready(None),
            None => {
                self.waiters.add(cx.waker());
                Poll::Pending
            }
        })
        .await
    }

    /// Ends the queue after the items that are in it.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.waiters.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn a_push_tells_whether_somebody_waits() {
        let queue = Queue::with_capacity(2);
        assert!(!queue.push(1));
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(pin!(queue.pop()).poll(&mut cx), Poll::Ready(Some(1)));
        let mut waiting = pin!(queue.pop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        assert!(queue.push(2));
        assert!(!queue.push(3), "the one that waited is taken");
        assert_eq!(waiting.as_mut().poll(&mut cx), Poll::Ready(Some(2)));
    }

    #[test]
    fn a_closed_queue_hands_out_what_is_left() {
        let queue = Queue::with_capacity(1);
        queue.push(1);
        queue.close();
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(pin!(queue.pop()).poll(&mut cx), Poll::Ready(Some(1)));
        assert_eq!(pin!(queue.pop()).poll(&mut cx), Poll::Ready(None));
    }
}

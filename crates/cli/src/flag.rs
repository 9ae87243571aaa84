//! Something that happens once and that tasks wait for.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, Waker};

/// See the head of the file.
#[derive(Default)]
pub(crate) struct Flag {
    raised: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl Flag {
    /// Lets everybody go on who waits.
    pub(crate) fn raise(&self) {
        self.raised.set(true);
        let waiting = self.waiting.take();
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Whether it has happened.
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.get()
    }

    /// Waits until it has happened.
    pub(crate) async fn wait(&self) {
        poll_fn(|context| {
            if self.raised.get() {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Runs `future` unless the flag is raised first; it is dropped then, so it must bear that.
    pub(crate) async fn cut<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        race(future, self.wait()).await.ok()
    }
}

/// What ends first of two, the first one if both have; the other one is dropped, so it must bear that.
pub(crate) async fn race<A, B>(
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
) -> Result<A, B> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Ok(value)),
        Poll::Pending => second.as_mut().poll(context).map(Err),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_device::executor::block_on_ready;

    #[test]
    fn a_raised_flag_cuts_what_is_not_ready() {
        let flag = Flag::default();
        assert_eq!(block_on_ready(flag.cut(async { 1 })), Some(1));
        flag.raise();
        assert_eq!(block_on_ready(flag.cut(std::future::pending::<u8>())), None);
        assert_eq!(block_on_ready(flag.cut(async { 2 })), Some(2));
        assert!(flag.is_raised());
    }
}

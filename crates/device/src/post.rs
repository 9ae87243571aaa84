//! Messages from any thread to a task of one reactor, without locks and without answers.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use atomic_waker::AtomicWaker;
use crossbeam_queue::SegQueue;

struct Letterbox<T> {
    letters: SegQueue<T>,
    senders: AtomicUsize,
    receiver: AtomicWaker,
}

/// The sending side; clones send to the same receiver.
pub struct Sender<T>(Arc<Letterbox<T>>);

/// The receiving side.
pub struct Receiver<T>(Arc<Letterbox<T>>);

/// A way for messages. What is on its way when the receiver ends is dropped with the last sender.
pub fn post<T: Send>() -> (Sender<T>, Receiver<T>) {
    let letterbox = Arc::new(Letterbox {
        letters: SegQueue::new(),
        senders: AtomicUsize::new(1),
        receiver: AtomicWaker::new(),
    });
    (Sender(Arc::clone(&letterbox)), Receiver(letterbox))
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(&self.0))
    }
}

impl<T> Sender<T> {
    /// Sends; never waits. The queue allocates once in some thirty messages; whoever sends bounds
    /// how many are on their way.
    pub fn send(&self, letter: T) {
        self.0.letters.push(letter);
        self.0.receiver.wake();
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.receiver.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// The next message; `None` once there are none and no sender is left.
    pub async fn next(&self) -> Option<T> {
        let letterbox = &self.0;
        poll_fn(|cx| {
            letterbox.receiver.register(cx.waker());
            let is_last = letterbox.senders.load(Ordering::SeqCst) == 0;
            match letterbox.letters.pop() {
                Some(letter) => Poll::Ready(Some(letter)),
                None if is_last => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::block_on_ready;

    #[test]
    fn messages_arrive_in_order_and_end_with_the_last_sender() {
        let (sender, receiver) = post();
        let second = sender.clone();
        sender.send(1);
        second.send(2);
        drop(sender);
        assert_eq!(block_on_ready(receiver.next()), Some(1));
        drop(second);
        assert_eq!(block_on_ready(receiver.next()), Some(2));
        assert_eq!(block_on_ready(receiver.next()), None);
    }
}

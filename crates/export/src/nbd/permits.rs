//! How much one connection, and all of some servers' together, have in progress.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use crate::nbd::limits::{
    BYTES_INFLIGHT_MAX, REQUESTS_INFLIGHT_MAX, SHARE_BYTES_INFLIGHT_MAX, SHARE_CONNECTIONS_MAX,
};
use crate::nbd::signal::Waiters;

/// Memory of the requests of all connections of the servers with one share.
pub(crate) struct Budget {
    bytes: Cell<u64>,
    bytes_max: u64,
    waiters: Waiters,
    /// Connections that wait for others' memory.
    starved: Cell<usize>,
    /// Those who look after stalled clients.
    watchers: Waiters,
}

/// A connection that waits for others' memory.
struct Starved<'a>(&'a Budget);

impl<'a> Starved<'a> {
    fn new(budget: &'a Budget) -> Self {
        budget.starved.set(budget.starved.get() + 1);
        budget.watchers.wake_all();
        Self(budget)
    }
}

impl Drop for Starved<'_> {
    fn drop(&mut self) {
        self.0.starved.set(self.0.starved.get() - 1);
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(SHARE_BYTES_INFLIGHT_MAX)
    }
}

impl Budget {
    /// What is in use, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    fn new(bytes_max: u64) -> Self {
        Self {
            bytes: Cell::new(0),
            bytes_max,
            waiters: Waiters::default(),
            starved: Cell::new(0),
            watchers: Waiters::default(),
        }
    }
}

/// What the servers of one thread have between them: memory and places. Each of them has its own
/// limits beside.
#[derive(Default)]
pub struct Share {
    pub(crate) budget: Rc<Budget>,
    connections: Cell<usize>,
    left: Waiters,
}

impl Share {
    /// Waits until there is room for a connection.
    pub(crate) async fn room(&self) {
        self.left.until(|| self.connections.get() < SHARE_CONNECTIONS_MAX).await;
    }

    /// Whether a connection waits for others' memory.
    pub(crate) fn is_short(&self) -> bool {
        self.budget.starved.get() > 0
    }

    /// Waits until `holds()`, which may depend on [`Share::is_short`] and on connections.
    pub(crate) async fn until(&self, holds: impl Fn() -> bool) {
        self.budget.watchers.until(holds).await;
    }

    /// A connection begins.
    pub(crate) fn enter(&self) {
        self.budget.watchers.wake_all();
        self.connections.set(self.connections.get() + 1);
    }

    /// A connection has ended.
    pub(crate) fn leave(&self) {
        self.connections.set(self.connections.get() - 1);
        self.left.wake_all();
    }
}

/// Counts requests and their memory from before the payload is received until the reply is
/// sent or discarded.
pub(crate) struct Permits {
    requests: Rc<Cell<usize>>,
    bytes: Cell<u64>,
    waiters: Waiters,
    budget: Rc<Budget>,
}

impl Permits {
    /// A connection's, out of a budget that others have, too. `requests` is their number.
    pub(crate) fn new(budget: &Rc<Budget>, requests: &Rc<Cell<usize>>) -> Self {
        Self {
            requests: Rc::clone(requests),
            bytes: Cell::new(0),
            waiters: Waiters::default(),
            budget: Rc::clone(budget),
        }
    }

    /// Waits for room and takes it.
    pub(crate) async fn acquire(&self, bytes: u64) {
        let mut starved = None;
        poll_fn(|cx| {
            if self.has_room(bytes) {
                // Nothing is listed unless it has waited, which is rare.
                self.waiters.remove(cx.waker());
                self.budget.waiters.remove(cx.waker());
                return Poll::Ready(());
            }
            // Either may be what it waits for: the budget does not matter once nothing of its own
            // is in progress.
            self.waiters.add(cx.waker());
            self.budget.waiters.add(cx.waker());
            if self.has_own_room(bytes) && starved.is_none() {
                starved = Some(Starved::new(&self.budget));
            }
            Poll::Pending
        })
        .await;
        drop(starved);
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
        self.budget.bytes.set(self.budget.bytes.get() + bytes);
    }

    fn has_room(&self, bytes: u64) -> bool {
        // The first request always passes: nobody waits for ever for others' clients.
        self.requests.get() == 0
            || self.has_own_room(bytes) && self.budget.bytes.get() + bytes <= self.budget.bytes_max
    }

    fn has_own_room(&self, bytes: u64) -> bool {
        self.requests.get() < REQUESTS_INFLIGHT_MAX
            && self.bytes.get() + bytes <= BYTES_INFLIGHT_MAX
    }

    /// Gives back what `requests` acquisitions took together.
    pub(crate) fn release(&self, requests: usize, bytes: u64) {
        assert!(
            requests <= self.requests.get() && bytes <= self.bytes.get(),
            "only what was acquired is released"
        );
        self.requests.set(self.requests.get() - requests);
        self.give_back(bytes);
        self.waiters.wake_all();
    }

    fn give_back(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() - bytes);
        self.budget.bytes.set(self.budget.bytes.get() - bytes);
        self.budget.waiters.wake_all();
    }

    /// Waits until everything is given back.
    pub(crate) async fn drained(&self) {
        self.waiters.until(|| self.requests.get() == 0).await;
    }
}

impl Drop for Permits {
    /// A connection that was dropped on its way takes nothing with it.
    fn drop(&mut self) {
        self.give_back(self.bytes.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn connections_share_a_budget_and_each_has_one_request_in_any_case() {
        let budget = Rc::new(Budget::new(100));
        let connections: Vec<_> = (0..3).map(|_| Permits::new(&budget, &Rc::default())).collect();
        let mut context = Context::from_waker(Waker::noop());
        let mut take = |index: usize, bytes| {
            let permits: &Permits = &connections[index];
            pin!(permits.acquire(bytes)).poll(&mut context).is_ready()
        };
        assert!(take(0, 60) && take(0, 40), "one may have all of it");
        assert!(!take(0, 1), "and no more");
        assert!(take(1, 50), "the first request of another one passes");
        assert!(!take(1, 1), "the second one waits");
        connections[0].release(2, 100);
        assert!(take(1, 50) && !take(1, 1) && take(2, 1));
        connections[1].release(2, 100);
        connections[2].release(1, 1);
        assert_eq!(budget.bytes.get(), 0);
        assert!(take(2, 70));
        drop(connections);
        assert_eq!(budget.bytes.get(), 0, "a dropped connection gives back what it had");
    }

    #[test]
    fn whoever_waits_for_the_budget_is_woken_by_another_connection() {
        struct Count(std::sync::atomic::AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let budget = Rc::new(Budget::new(100));
        let (one, two) =
            (Permits::new(&budget, &Rc::default()), Permits::new(&budget, &Rc::default()));
        let woken = std::sync::Arc::new(Count(Default::default()));
        let waker = Waker::from(std::sync::Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        assert!(pin!(one.acquire(90)).poll(&mut context).is_ready());
        assert!(pin!(two.acquire(10)).poll(&mut context).is_ready());
        let mut waiting = pin!(two.acquire(50));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        one.release(1, 90);
        assert_eq!(woken.0.load(std::sync::atomic::Ordering::Relaxed), 1);
        assert!(waiting.as_mut().poll(&mut context).is_ready());
    }
}

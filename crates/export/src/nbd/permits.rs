//! How much one connection, and all of some servers' together, have in progress.
//!
//! * Nobody waits for ever for others' clients: a connection that has nothing in progress is let pass with a request
//!   of [`FIRST_BYTES_MAX`] whatever the others have, and with a longer one in turn.
//! * All of them together have no more than what is said of a share ([`SHARE_BYTES_MAX`] where nothing is set).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use crate::nbd::limits::{
    FIRST_BYTES_MAX, KEPT_BYTES, REQUESTS_INFLIGHT_MAX, SHARE_BYTES_INFLIGHT_MAX,
    SHARE_CONNECTIONS_MAX,
};
use crate::nbd::signal::Waiters;

/// Memory of the requests of all connections of the servers with one share.
pub(crate) struct Budget {
    bytes: Cell<u64>,
    bytes_max: u64,
    waiters: Waiters,
    /// Connections with nothing in progress whose request is too long to pass, the longest waiting first.
    turns: RefCell<VecDeque<u64>>,
    turns_taken: Cell<u64>,
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

/// A connection's place among those that wait with nothing in progress.
struct Turn<'a>(&'a Budget, u64);

impl<'a> Turn<'a> {
    fn take(budget: &'a Budget) -> Self {
        let number = budget.turns_taken.get();
        budget.turns_taken.set(number + 1);
        budget.turns.borrow_mut().push_back(number);
        Self(budget, number)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.turns.borrow_mut().retain(|number| *number != self.1);
        self.0.waiters.wake_all();
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
            turns: RefCell::default(),
            turns_taken: Cell::new(0),
            starved: Cell::new(0),
            watchers: Waiters::default(),
        }
    }

    /// Whether a connection that has something in progress may have more.
    fn has_room(&self, bytes: u64) -> bool {
        let most = self.bytes_max - KEPT_BYTES.min(self.bytes_max / 4);
        self.turns.borrow().is_empty() && self.bytes.get() + bytes <= most
    }

    /// Whether one that has nothing may begin, with its turn if it has waited for one.
    fn may_begin(&self, bytes: u64, turn: Option<&Turn<'_>>) -> bool {
        let first = self.turns.borrow().front().copied();
        let is_next = first.is_none() || first == turn.map(|turn| turn.1);
        bytes <= FIRST_BYTES_MAX || is_next && self.bytes.get() + bytes <= self.bytes_max
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
    /// One with so much memory for requests instead of [`SHARE_BYTES_INFLIGHT_MAX`]; see
    /// [`share_bytes_max`](crate::nbd::limits::share_bytes_max).
    pub fn of(bytes_max: u64) -> Self {
        Self { budget: Rc::new(Budget::new(bytes_max)), ..Self::default() }
    }

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
    bytes_max: u64,
    waiters: Waiters,
    budget: Rc<Budget>,
}

impl Permits {
    /// A connection's with so many bytes at the most, out of a budget that others have, too. `requests` is
    /// their number.
    pub(crate) fn new(budget: &Rc<Budget>, requests: &Rc<Cell<usize>>, bytes_max: u64) -> Self {
        Self {
            requests: Rc::clone(requests),
            bytes: Cell::new(0),
            bytes_max,
            waiters: Waiters::default(),
            budget: Rc::clone(budget),
        }
    }

    /// Waits for room and takes it.
    pub(crate) async fn acquire(&self, bytes: u64) {
        let budget = &*self.budget;
        let (mut starved, mut turn) = (None, None);
        poll_fn(|cx| {
            let has_room = match self.requests.get() {
                0 => budget.may_begin(bytes, turn.as_ref()),
                _ => self.has_own_room(bytes) && budget.has_room(bytes),
            };
            if has_room {
                // Nothing is listed unless it has waited, which is rare.
                self.waiters.remove(cx.waker());
                budget.waiters.remove(cx.waker());
                return Poll::Ready(());
            }
            // Either may be what it waits for.
            self.waiters.add(cx.waker());
            budget.waiters.add(cx.waker());
            if self.requests.get() == 0 && turn.is_none() {
                turn = Some(Turn::take(budget));
            }
            if (turn.is_some() || self.has_own_room(bytes)) && starved.is_none() {
                starved = Some(Starved::new(budget));
            }
            Poll::Pending
        })
        .await;
        drop(starved);
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
        budget.bytes.set(budget.bytes.get() + bytes);
        // The next one in turn looks at what is left.
        drop(turn);
    }

    fn has_own_room(&self, bytes: u64) -> bool {
        self.requests.get() < REQUESTS_INFLIGHT_MAX && self.bytes.get() + bytes <= self.bytes_max
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

    /// Whether everything was given back.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.get() == 0
    }

    /// Waits until everything is given back.
    pub(crate) async fn drained(&self) {
        self.waiters.until(|| self.is_idle()).await;
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

    fn permits(budget: &Rc<Budget>) -> Permits {
        Permits::new(budget, &Rc::default(), crate::nbd::limits::BYTES_INFLIGHT_MAX)
    }

    #[test]
    fn connections_share_a_budget_and_each_has_one_request_in_any_case() {
        let budget = Rc::new(Budget::new(100));
        let connections: Vec<_> = (0..3).map(|_| permits(&budget)).collect();
        let mut context = Context::from_waker(Waker::noop());
        let mut take = |index: usize, bytes| {
            let permits: &Permits = &connections[index];
            pin!(permits.acquire(bytes)).poll(&mut context).is_ready()
        };
        assert!(take(0, 60) && take(0, 15), "one may have all but what is kept for others");
        assert!(!take(0, 1), "and no more");
        assert!(take(1, 50), "the first request of another one passes");
        assert!(!take(1, 1), "the second one waits");
        connections[0].release(2, 75);
        assert!(take(1, 25) && !take(1, 1) && take(2, 1));
        connections[1].release(2, 75);
        connections[2].release(1, 1);
        assert_eq!(budget.bytes.get(), 0);
        assert!(take(2, 70));
        drop(connections);
        assert_eq!(budget.bytes.get(), 0, "a dropped connection gives back what it had");
    }

    #[test]
    fn all_connections_together_have_what_is_said_at_the_most() {
        let budget = Rc::<Budget>::default();
        let mut context = Context::from_waker(Waker::noop());
        let longest = u64::from(crate::nbd::limits::REQUEST_BYTES_MAX);
        let connections: Vec<_> = (0..SHARE_CONNECTIONS_MAX).map(|_| permits(&budget)).collect();
        for bytes in [longest, 1 << 20, 128 << 10] {
            for permits in connections.iter().cycle().take(3 * SHARE_CONNECTIONS_MAX) {
                let _ = pin!(permits.acquire(bytes)).poll(&mut context);
            }
        }
        let most = crate::nbd::limits::SHARE_BYTES_MAX;
        assert!(budget.bytes() <= most, "{} of {most}", budget.bytes());
    }

    #[test]
    fn long_first_requests_have_their_turns_and_are_not_overtaken() {
        const LONG: u64 = 40 << 20;
        let budget = Rc::new(Budget::new(64 << 20));
        let connections: Vec<_> = (0..4).map(|_| permits(&budget)).collect();
        let mut context = Context::from_waker(Waker::noop());
        assert!(pin!(connections[0].acquire(LONG)).poll(&mut context).is_ready());
        let mut first = Box::pin(connections[1].acquire(LONG));
        let mut second = Box::pin(connections[2].acquire(LONG));
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        // Who has something waits behind them; a short request of who has nothing does not.
        assert!(pin!(connections[0].acquire(4096)).poll(&mut context).is_pending());
        assert!(pin!(connections[3].acquire(4096)).poll(&mut context).is_ready());
        connections[0].release(1, LONG);
        assert!(second.as_mut().poll(&mut context).is_pending(), "it is not its turn");
        assert!(first.as_mut().poll(&mut context).is_ready());
        assert!(second.as_mut().poll(&mut context).is_pending(), "there is no room");
        drop(second);
        assert!(pin!(connections[3].acquire(4096)).poll(&mut context).is_ready(), "it has gone");
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
        let (one, two) = (permits(&budget), permits(&budget));
        let woken = std::sync::Arc::new(Count(Default::default()));
        let waker = Waker::from(std::sync::Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        assert!(pin!(one.acquire(60)).poll(&mut context).is_ready());
        assert!(pin!(two.acquire(10)).poll(&mut context).is_ready());
        let mut waiting = pin!(two.acquire(50));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        one.release(1, 60);
        assert_eq!(woken.0.load(std::sync::atomic::Ordering::Relaxed), 1);
        assert!(waiting.as_mut().poll(&mut context).is_ready());
    }
}

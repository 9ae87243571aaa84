//! A set of tasks for one thread, under the ring's reactor and the simulator alike.
//!
//! * A task is polled only after it was woken; waking twice before a poll polls once.
//! * No wake takes a lock. Wakes from another thread go through a lock-free queue, which allocates
//!   once in some thirty wakes, and a notifier that the reactor supplies (the ring's eventfd).

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::ThreadId;

use crossbeam_queue::SegQueue;

use crate::runtime::Task;

/// Wakes the owner of a [`TaskSet`] from another thread.
pub type Notify = Box<dyn Fn() + Send + Sync>;

static SETS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static WOKEN: RefCell<Vec<Arc<TaskWaker>>> = const { RefCell::new(Vec::new()) };
}

struct Remote {
    woken: SegQueue<Arc<TaskWaker>>,
    notify: Notify,
}

struct TaskWaker {
    set: u64,
    slot: usize,
    owner: ThreadId,
    queued: AtomicBool,
    /// Not the set's own handle: what it holds are wakers.
    remote: Weak<Remote>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        if std::thread::current().id() == self.owner {
            // During thread exit the list may be gone; no task runs any more then.
            let _ = WOKEN.try_with(|woken| woken.borrow_mut().push(self));
        } else if let Some(remote) = self.remote.upgrade() {
            remote.woken.push(self);
            (remote.notify)();
        }
    }
}

struct Slot {
    task: Option<Task>,
    waker: Arc<TaskWaker>,
}

/// The tasks of one thread.
pub struct TaskSet {
    id: u64,
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<usize>>,
    ready: RefCell<std::collections::VecDeque<Arc<TaskWaker>>>,
    live: Cell<usize>,
    remote: Arc<Remote>,
}

impl TaskSet {
    /// An empty set; `notify` is called after a wake from another thread.
    pub fn new(notify: Notify) -> Self {
        Self {
            id: SETS.fetch_add(1, Ordering::Relaxed),
            slots: RefCell::default(),
            free: RefCell::default(),
            ready: RefCell::default(),
            live: Cell::new(0),
            remote: Arc::new(Remote { woken: SegQueue::new(), notify }),
        }
    }

    /// Adds a task; it is polled for the first time by a later [`TaskSet::run_one`].
    pub fn spawn(&self, task: Task) {
        let mut slots = self.slots.borrow_mut();
        let slot = match self.free.borrow_mut().pop() {
            Some(slot) => slot,
            None => {
                let slot = slots.len();
                slots.push(Slot { task: None, waker: self.waker(slot) });
                slot
            }
        };
        // A fresh waker: a wake left over from the slot's former task must not reach this one.
        slots[slot] = Slot { task: Some(task), waker: self.waker(slot) };
        self.live.set(self.live.get() + 1);
        Arc::clone(&slots[slot].waker).wake();
    }

    fn waker(&self, slot: usize) -> Arc<TaskWaker> {
        Arc::new(TaskWaker {
            set: self.id,
            slot,
            owner: std::thread::current().id(),
            queued: AtomicBool::new(false),
            remote: Arc::downgrade(&self.remote),
        })
    }

    /// Number of tasks that are ready to be polled.
    pub fn ready_count(&self) -> usize {
        let mut ready = self.ready.borrow_mut();
        WOKEN.with(|woken| {
            let mut woken = woken.borrow_mut();
            if woken.iter().all(|w| w.set == self.id) {
                ready.extend(woken.drain(..));
            } else {
                let (ours, others) = woken.drain(..).partition(|w| w.set == self.id);
                *woken = others;
                ready.extend::<Vec<_>>(ours);
            }
        });
        while let Some(waker) = self.remote.woken.pop() {
            ready.push_back(waker);
        }
        ready.len()
    }

    /// Number of tasks that have not ended.
    pub fn live_count(&self) -> usize {
        self.live.get()
    }

    /// Polls the ready task number `pick(ready_count)`; false if none is ready.
    pub fn run_one(&self, pick: impl FnOnce(usize) -> usize) -> bool {
        let count = self.ready_count();
        if count == 0 {
            return false;
        }
        let chosen = if count == 1 { 0 } else { pick(count) };
        let Some(waker) = self.ready.borrow_mut().swap_remove_front(chosen) else { return false };
        // A swap, not a store: either it sees what was done before a wake that found the task
        // queued, or that wake sees `false` and queues the task again.
        waker.queued.swap(false, Ordering::AcqRel);
        let task = {
            let mut slots = self.slots.borrow_mut();
            match slots.get_mut(waker.slot) {
                Some(slot) if Arc::ptr_eq(&slot.waker, &waker) => slot.task.take(),
                _ => return true, // a late wake of a task that has ended
            }
        };
        let Some(mut task) = task else { return true };
        let slot = waker.slot;
        let wake = Waker::from(waker);
        match task.as_mut().poll(&mut Context::from_waker(&wake)) {
            Poll::Pending => self.slots.borrow_mut()[slot].task = Some(task),
            Poll::Ready(()) => {
                drop(task);
                self.live.set(self.live.get() - 1);
                self.free.borrow_mut().push(slot);
            }
        }
        true
    }

    /// Drops every task, as a crash would.
    pub fn clear(&self) {
        loop {
            // A task's drop may spawn or wake; take them out one at a time, outside the borrow.
            let task = self.slots.borrow_mut().iter_mut().find_map(|slot| slot.task.take());
            match task {
                Some(task) => drop(task),
                None => break,
            }
        }
        self.slots.borrow_mut().clear();
        self.free.borrow_mut().clear();
        self.ready_count();
        self.ready.borrow_mut().clear();
        self.live.set(0);
    }
}

impl Drop for TaskSet {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Polls a future that needs no other task until it is ready.
///
/// # Panics
/// If it is not ready at once.
pub fn block_on_ready<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    match Pin::as_mut(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future waits for something"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::pair;
    use std::rc::Rc;

    #[test]
    fn a_task_runs_again_only_when_woken() {
        let set = TaskSet::new(Box::new(|| ()));
        let (completer, io) = pair();
        let seen = Rc::new(Cell::new(false));
        let flag = Rc::clone(&seen);
        set.spawn(Box::pin(async move {
            flag.set(io.done().await.is_ok());
        }));
        assert!(set.run_one(|_| 0));
        assert!(!set.run_one(|_| 0) && !seen.get());
        completer.done(Ok(()));
        assert!(set.run_one(|_| 0) && seen.get());
        assert_eq!(set.live_count(), 0);
    }

    #[test]
    fn a_wake_from_another_thread_after_the_end_keeps_nothing() {
        let notifier = Arc::new(());
        let held = Arc::clone(&notifier);
        let set = TaskSet::new(Box::new(move || {
            let _ = &held;
        }));
        let (sender, wakers) = std::sync::mpsc::channel();
        set.spawn(Box::pin(std::future::poll_fn(move |cx| {
            let _ = sender.send(cx.waker().clone());
            Poll::Pending
        })));
        set.run_one(|_| 0);
        drop(set);
        let waker = wakers.recv().unwrap();
        std::thread::spawn(move || waker.wake()).join().unwrap();
        assert_eq!(Arc::strong_count(&notifier), 1);
    }

    #[test]
    fn clearing_drops_waiting_tasks() {
        let set = TaskSet::new(Box::new(|| ()));
        let (completer, io) = pair();
        set.spawn(Box::pin(async move {
            let _ = io.await;
        }));
        set.run_one(|_| 0);
        set.clear();
        assert!(completer.is_abandoned());
    }
}

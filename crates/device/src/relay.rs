//! Calls from one reactor to another, without locks.
//!
//! * A relay has a fixed number of places. A call takes one until its answer has been taken, so
//!   the queue of calls is never full; callers beyond that wait on their own reactor.
//! * Each place has a worker task on the serving reactor, made when the place is first used. So a
//!   call allocates nothing, and calls are served side by side.
//! * A call that reached the relay is served to its end, also when its future is dropped; the
//!   answer is thrown away then, at the next call at the latest, and the place is free again.
//! * If either side ends, the other is told: calls fail with [`Gone`], serving returns.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use atomic_waker::AtomicWaker;
use crossbeam_queue::ArrayQueue;

use crate::runtime::Runtime;

/// The serving reactor has ended, or threw the call away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// What both sides share.
struct Line<C, A> {
    /// Calls with their places, as many as there are places at the most.
    calls: ArrayQueue<(usize, C)>,
    /// The serving task that takes calls.
    server: AtomicWaker,
    places: Box<[Place<A>]>,
    is_closed: AtomicBool,
    is_abandoned: AtomicBool,
}

/// Where the answer to a call arrives; holds one at the most.
struct Place<A> {
    answer: ArrayQueue<Result<A, Gone>>,
    caller: AtomicWaker,
}

impl<C, A> Line<C, A> {
    fn answer(&self, place: usize, answer: Result<A, Gone>) {
        let place = &self.places[place];
        let is_first = place.answer.push(answer).is_ok();
        assert!(is_first, "each call is answered once");
        place.caller.wake();
    }

    /// Answers the calls that nobody will take any more.
    fn drain(&self) {
        while let Some((place, call)) = self.calls.pop() {
            drop(call);
            self.answer(place, Err(Gone));
        }
    }
}

/// A relay with `places` places: the calling side and the serving side, each for the thread of its
/// reactor.
pub fn relay<C: Send, A: Send>(places: usize) -> (Caller<C, A>, Server<C, A>) {
    let line = Arc::new(Line {
        calls: ArrayQueue::new(places),
        server: AtomicWaker::new(),
        places: (0..places)
            .map(|_| Place { answer: ArrayQueue::new(1), caller: AtomicWaker::new() })
            .collect(),
        is_closed: AtomicBool::new(false),
        is_abandoned: AtomicBool::new(false),
    });
    let caller = Caller {
        line: Arc::clone(&line),
        free: RefCell::new((0..places).rev().collect()),
        orphaned: RefCell::default(),
        waiting: RefCell::default(),
    };
    (caller, Server { line })
}

/// The calling side. It may be moved to another thread before its first call.
pub struct Caller<C, A> {
    line: Arc<Line<C, A>>,
    /// Places without a call; the last one freed is taken first, so that few workers are needed.
    free: RefCell<Vec<usize>>,
    /// Places whose call was dropped before its answer came.
    orphaned: RefCell<Vec<usize>>,
    /// Whoever waits for a place.
    waiting: RefCell<Vec<Waker>>,
}

/// A place taken by a call.
struct Taken<'a, C, A> {
    caller: &'a Caller<C, A>,
    place: usize,
    is_called: bool,
    is_answered: bool,
}

impl<C, A> Drop for Taken<'_, C, A> {
    fn drop(&mut self) {
        let is_orphan = self.is_called && !self.is_answered;
        let places = if is_orphan { &self.caller.orphaned } else { &self.caller.free };
        places.borrow_mut().push(self.place);
        self.caller.wake_waiting();
    }
}

/// A wait for a place. A place of a dropped call knows one waker only, that of the last who came to
/// wait; if they go away, all others have to look and to leave theirs.
struct Waits<'a, C, A> {
    caller: &'a Caller<C, A>,
    is_waiting: bool,
}

impl<C, A> Drop for Waits<'_, C, A> {
    fn drop(&mut self) {
        if self.is_waiting {
            self.caller.wake_waiting();
        }
    }
}

impl<C, A> Caller<C, A> {
    fn wake_waiting(&self) {
        let waiting = self.waiting.take();
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl<C: Send, A: Send> Caller<C, A> {
    /// Has `call` served on the other reactor.
    ///
    /// # Errors
    /// [`Gone`]: it may have been served or not.
    pub async fn call(&self, call: C) -> Result<A, Gone> {
        let mut taken = self.take_place().await;
        let line = &*self.line;
        taken.is_called = true;
        let has_room = line.calls.push((taken.place, call)).is_ok();
        assert!(has_room, "there are no more calls than places");
        line.server.wake();
        if line.is_closed.load(Ordering::SeqCst) {
            line.drain();
        }
        let place = &line.places[taken.place];
        let answer = poll_fn(|cx| match place.answer.pop() {
            Some(answer) => Poll::Ready(answer),
            None => {
                place.caller.register(cx.waker());
                place.answer.pop().map_or(Poll::Pending, Poll::Ready)
            }
        })
        .await;
        taken.is_answered = true;
        answer
    }

    async fn take_place(&self) -> Taken<'_, C, A> {
        let mut waits = Waits { caller: self, is_waiting: false };
        let place = poll_fn(|cx| {
            self.sweep();
            if let Some(place) = self.free.borrow_mut().pop() {
                return Poll::Ready(place);
            }
            for &place in &*self.orphaned.borrow() {
                self.line.places[place].caller.register(cx.waker());
            }
            self.sweep();
            if let Some(place) = self.free.borrow_mut().pop() {
                return Poll::Ready(place);
            }
            waits.is_waiting = true;
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
        waits.is_waiting = false;
        Taken { caller: self, place, is_called: false, is_answered: false }
    }

    /// Throws away the answers to dropped calls, for they may hold what others need, and frees
    /// their places.
    fn sweep(&self) {
        let (mut at, mut has_freed) = (0, false);
        loop {
            let orphan = self.orphaned.borrow().get(at).copied();
            let Some(place) = orphan else { break };
            // Dropped outside of any borrow: an answer may be anything.
            let Some(answer) = self.line.places[place].answer.pop() else {
                at += 1;
                continue;
            };
            self.orphaned.borrow_mut().swap_remove(at);
            self.free.borrow_mut().push(place);
            has_freed = true;
            drop(answer);
        }
        if has_freed {
            self.wake_waiting();
        }
    }
}

impl<C, A> Drop for Caller<C, A> {
    fn drop(&mut self) {
        self.line.is_abandoned.store(true, Ordering::SeqCst);
        self.line.server.wake();
    }
}

/// The serving side. It may be moved to another thread before it serves.
pub struct Server<C, A> {
    line: Arc<Line<C, A>>,
}

impl<C, A> Drop for Server<C, A> {
    fn drop(&mut self) {
        self.line.is_closed.store(true, Ordering::SeqCst);
        self.line.drain();
    }
}

/// The answer that is owed to a call; dropped without one, the call fails with [`Gone`].
pub struct Reply<C, A> {
    line: Arc<Line<C, A>>,
    place: usize,
    answer: Option<A>,
}

impl<C, A> Reply<C, A> {
    /// Answers the call.
    pub fn send(mut self, answer: A) {
        self.answer = Some(answer);
    }
}

impl<C, A> Drop for Reply<C, A> {
    fn drop(&mut self) {
        self.line.answer(self.place, self.answer.take().ok_or(Gone));
    }
}

/// The inbox of one place's worker.
struct Worker<C, A> {
    call: Cell<Option<(C, Reply<C, A>)>>,
    waker: Cell<Option<Waker>>,
    has_ended: Cell<bool>,
}

impl<C, A> Worker<C, A> {
    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// The next call; `None` after the last one.
    async fn next(&self) -> Option<(C, Reply<C, A>)> {
        poll_fn(|cx| match self.call.take() {
            Some(call) => Poll::Ready(Some(call)),
            None if self.has_ended.get() => Poll::Ready(None),
            None => {
                self.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}

/// The workers of all places; they end when serving ends, in whichever way.
struct Workers<C, A>(Vec<Option<Rc<Worker<C, A>>>>);

impl<C, A> Drop for Workers<C, A> {
    fn drop(&mut self) {
        for worker in self.0.iter().flatten() {
            worker.has_ended.set(true);
            worker.wake();
        }
    }
}

impl<C: Send + 'static, A: Send + 'static> Server<C, A> {
    /// Serves calls with `handler`, each in a task of its own, until the caller is dropped.
    pub async fn serve<H, F>(self, runtime: &dyn Runtime, handler: H)
    where
        H: Fn(C) -> F + 'static,
        F: Future<Output = A>,
    {
        let handler = Rc::new(handler);
        let mut workers = Workers((0..self.line.places.len()).map(|_| None).collect());
        while let Some((call, reply)) = self.next().await {
            let worker = workers.0[reply.place].get_or_insert_with(|| {
                let worker = Rc::new(Worker {
                    call: Cell::new(None),
                    waker: Cell::new(None),
                    has_ended: Cell::new(false),
                });
                let (own, handler) = (Rc::clone(&worker), Rc::clone(&handler));
                runtime.spawn(Box::pin(async move {
                    while let Some((call, reply)) = own.next().await {
                        reply.send(handler(call).await);
                    }
                }));
                worker
            });
            worker.call.set(Some((call, reply)));
            worker.wake();
        }
    }

    /// The next call and its reply; `None` once the caller is dropped. May be dropped before it is
    /// ready without losing a call.
    pub async fn next(&self) -> Option<(C, Reply<C, A>)> {
        let line = &self.line;
        poll_fn(|cx| {
            line.server.register(cx.waker());
            let is_abandoned = line.is_abandoned.load(Ordering::SeqCst);
            match line.calls.pop() {
                Some((place, call)) => {
                    let reply = Reply { line: Arc::clone(line), place, answer: None };
                    Poll::Ready(Some((call, reply)))
                }
                None if is_abandoned => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::executor::TaskSet;
    use crate::io::{Completer, pair};
    use crate::runtime::{Nanos, Task};

    /// A runtime without time.
    struct Tasks(TaskSet);

    impl Tasks {
        fn new() -> Rc<Self> {
            Rc::new(Self(TaskSet::new(Box::new(|| ()))))
        }

        fn run(&self) {
            while self.0.run_one(|_| 0) {}
        }
    }

    impl Runtime for Tasks {
        fn now(&self) -> Nanos {
            0
        }

        fn wake_at(&self, _: Nanos, _: Completer) {}

        fn spawn(&self, task: Task) {
            self.0.spawn(task);
        }

        fn random(&self) -> u64 {
            0
        }

        fn unix_seconds(&self) -> u64 {
            0
        }
    }

    type Answers = Rc<RefCell<Vec<Result<u32, Gone>>>>;

    /// Calls `caller` and notes the answer.
    fn call(tasks: &Tasks, caller: &Rc<Caller<u32, u32>>, what: u32, answers: &Answers) {
        let (caller, answers) = (Rc::clone(caller), Rc::clone(answers));
        tasks.spawn(Box::pin(async move {
            let answer = caller.call(what).await;
            answers.borrow_mut().push(answer);
        }));
    }

    /// A server that answers twice the number, odd ones only when the gate opens.
    fn serve(tasks: &Rc<Tasks>, server: Server<u32, u32>, gate: Rc<RefCell<Vec<Completer>>>) {
        let runtime = Rc::clone(tasks);
        tasks.spawn(Box::pin(async move {
            let handler = move |number: u32| {
                let gate = Rc::clone(&gate);
                async move {
                    if number % 2 == 1 {
                        let (completer, io) = pair();
                        gate.borrow_mut().push(completer);
                        let _ = io.await;
                    }
                    2 * number
                }
            };
            server.serve(&*runtime, handler).await;
        }));
    }

    #[test]
    fn calls_are_served_side_by_side() {
        let (caller, server) = relay(2);
        let (tasks, caller) = (Tasks::new(), Rc::new(caller));
        let (answers, gate) = (Answers::default(), Rc::default());
        serve(&tasks, server, Rc::clone(&gate));
        [1, 2, 4].into_iter().for_each(|number| call(&tasks, &caller, number, &answers));
        tasks.run();
        assert_eq!(*answers.borrow(), [Ok(4), Ok(8)], "one place waits, the other one is reused");
        gate.borrow_mut().clear();
        tasks.run();
        assert_eq!(answers.borrow().last(), Some(&Ok(2)));
    }

    #[test]
    fn a_call_beyond_the_places_waits_for_one() {
        let (caller, server) = relay(1);
        let (tasks, caller) = (Tasks::new(), Rc::new(caller));
        let (answers, gate) = (Answers::default(), Rc::default());
        serve(&tasks, server, Rc::clone(&gate));
        [1, 2].into_iter().for_each(|number| call(&tasks, &caller, number, &answers));
        tasks.run();
        assert!(answers.borrow().is_empty());
        gate.borrow_mut().clear();
        tasks.run();
        assert_eq!(*answers.borrow(), [Ok(2), Ok(4)]);
    }

    #[test]
    fn the_place_of_a_dropped_call_is_free_after_its_answer() {
        let (caller, server) = relay(1);
        let (tasks, caller) = (Tasks::new(), Rc::new(caller));
        let (answers, gate) = (Answers::default(), Rc::default());
        serve(&tasks, server, Rc::clone(&gate));
        let dropped = Rc::new(RefCell::new(Some(Box::pin({
            let caller = Rc::clone(&caller);
            async move { caller.call(1).await }
        }))));
        let held = Rc::clone(&dropped);
        tasks.spawn(Box::pin(poll_fn(move |cx| match &mut *held.borrow_mut() {
            Some(call) => call.as_mut().poll(cx).map(|_| ()),
            None => Poll::Ready(()),
        })));
        call(&tasks, &caller, 2, &answers);
        tasks.run();
        dropped.borrow_mut().take();
        tasks.run();
        assert!(answers.borrow().is_empty(), "it is still being served");
        gate.borrow_mut().clear();
        tasks.run();
        assert_eq!(*answers.borrow(), [Ok(4)]);
    }

    /// A task of its own for a call, whose future the test can drop.
    type Held<A> = Rc<RefCell<Option<std::pin::Pin<Box<dyn Future<Output = Result<A, Gone>>>>>>>;

    fn hold<C, A>(tasks: &Tasks, caller: &Rc<Caller<C, A>>, what: C) -> Held<A>
    where
        C: Send + 'static,
        A: Send + 'static,
    {
        let caller = Rc::clone(caller);
        let call: Held<A> =
            Rc::new(RefCell::new(Some(Box::pin(async move { caller.call(what).await }))));
        let held = Rc::clone(&call);
        tasks.spawn(Box::pin(poll_fn(move |cx| match &mut *held.borrow_mut() {
            Some(call) => call.as_mut().poll(cx).map(|_| ()),
            None => Poll::Ready(()),
        })));
        call
    }

    #[test]
    fn a_waiting_call_that_is_dropped_leaves_the_place_to_the_others() {
        let (caller, server) = relay(1);
        let (tasks, caller) = (Tasks::new(), Rc::new(caller));
        let (answers, gate) = (Answers::default(), Rc::default());
        serve(&tasks, server, Rc::clone(&gate));
        let orphan = hold(&tasks, &caller, 1);
        tasks.run();
        drop(orphan.take());
        call(&tasks, &caller, 2, &answers);
        tasks.run();
        let waiting = hold(&tasks, &caller, 4);
        tasks.run();
        drop(waiting.take());
        gate.borrow_mut().clear();
        tasks.run();
        assert_eq!(*answers.borrow(), [Ok(4)]);
    }

    #[test]
    fn every_place_of_a_dropped_call_goes_to_one_who_waits() {
        let (caller, server) = relay(2);
        let (tasks, caller) = (Tasks::new(), Rc::new(caller));
        let (answers, gate) = (Answers::default(), Rc::<RefCell<Vec<Completer>>>::default());
        serve(&tasks, server, Rc::clone(&gate));
        let orphans = [hold(&tasks, &caller, 1), hold(&tasks, &caller, 1)];
        tasks.run();
        orphans.iter().for_each(|orphan| drop(orphan.take()));
        // Whoever gets the first place never gives it back; the other one needs the second.
        [3, 3].into_iter().for_each(|number| call(&tasks, &caller, number, &answers));
        tasks.run();
        assert_eq!(gate.borrow().len(), 2, "both wait for a place");
        for served in [2, 3] {
            gate.borrow_mut().remove(0).done(Ok(()));
            tasks.run();
            let waits = gate.borrow().len();
            assert_eq!(waits, 2, "after {} answers one more call is served", served - 1);
        }
    }

    #[test]
    fn the_answer_to_a_dropped_call_goes_with_the_next_call() {
        let (caller, server) = relay::<u32, Arc<()>>(8);
        let (tasks, caller) = (Tasks::new(), Rc::new(caller));
        let orphan = hold(&tasks, &caller, 1);
        tasks.run();
        drop(orphan.take());
        let pin = Arc::new(());
        let (_, reply) = crate::executor::block_on_ready(server.next()).unwrap();
        reply.send(Arc::clone(&pin));
        let _next = hold(&tasks, &caller, 2);
        tasks.run();
        assert_eq!(Arc::strong_count(&pin), 1, "though seven places were free");
    }

    #[test]
    fn calls_fail_when_the_server_is_gone() {
        let (caller, server) = relay(4);
        let (tasks, servers, caller) = (Tasks::new(), Tasks::new(), Rc::new(caller));
        let answers = Answers::default();
        serve(&servers, server, Rc::default());
        call(&tasks, &caller, 1, &answers);
        tasks.run();
        servers.run();
        // One is being served, one stands in the queue, one comes too late.
        call(&tasks, &caller, 2, &answers);
        tasks.run();
        servers.0.clear();
        call(&tasks, &caller, 3, &answers);
        tasks.run();
        assert_eq!(*answers.borrow(), [Err(Gone); 3]);
    }

    #[test]
    fn serving_ends_with_its_caller() {
        let (caller, server) = relay(2);
        let (tasks, caller) = (Tasks::new(), Rc::new(caller));
        let answers = Answers::default();
        serve(&tasks, server, Rc::default());
        call(&tasks, &caller, 2, &answers);
        tasks.run();
        drop(caller);
        tasks.run();
        assert_eq!(tasks.0.live_count(), 0, "no worker is left");
    }
}

//! A device whose data is real and whose time is modelled.
//!
//! * A [`Model`] is a state machine over handed-in time: it knows no executor, clock or data, so
//!   it runs under virtual time, in real time and in plain loops (see [`closed_loop`]) alike.
//! * [`Modelled`] forwards every request to its store at once and completes it when both the
//!   store and the model are done with it.
//! * One driver task per device owns the only timer. Dropping the device drops the requests in
//!   hand, which tells whoever waits that the device has vanished, and ends the task.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::device::{BlockDevice, Geometry, Request, Stripe};
use crate::io::{Completer, Io, Outcome, pair};
use crate::runtime::{Nanos, Runtime, SECOND};

/// What a command does, as far as time is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Moves data to the host.
    Read,
    /// Moves data (or the promise of zeroes) to the device.
    Write,
    /// Waits until the writes acknowledged so far are durable.
    Flush,
    /// Forgets a range.
    Discard,
}

/// A request without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What to do.
    pub operation: Operation,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub len: u64,
}

impl Command {
    /// The command that models `request`.
    pub fn of(request: &Request) -> Self {
        let operation = match request {
            Request::Read { .. } => Operation::Read,
            Request::Write { .. } | Request::WriteZeroes { .. } => Operation::Write,
            Request::Flush => Operation::Flush,
            Request::Discard { .. } => Operation::Discard,
        };
        let range = request.range().unwrap_or(0..0);
        Self { operation, offset: range.start, len: range.end - range.start }
    }

    /// First byte behind the range.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// The caller's name for a submitted command. Names may repeat; each use is answered once.
pub type Ticket = u64;

/// The timing of a device. Time is handed in and never goes back.
pub trait Model {
    /// Bytes that the modelled device holds.
    fn size_bytes(&self) -> u64;

    /// Whether the device takes discards.
    fn discards(&self) -> bool;

    /// See [`Geometry::stripe`].
    fn stripe(&self) -> Option<Stripe> {
        None
    }

    /// Accepts a command at `now`.
    fn submit(&mut self, now: Nanos, ticket: Ticket, command: Command);

    /// When [`Model::advance`] should be called next, `None` while nothing is going on. Calling
    /// it late is allowed (real timers are): events keep their own times.
    fn next_event(&self) -> Option<Nanos>;

    /// Lets time pass until `now` and appends what completed, in order of completion.
    fn advance(&mut self, now: Nanos, completed: &mut Vec<Ticket>);
}

/// A request in hand.
struct Slot {
    completer: Completer,
    data: Io,
}

struct State<M> {
    model: M,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// Slots that the model is done with and whose data is still under way.
    late: Vec<usize>,
    completed: Vec<Ticket>,
    timer: Option<(Nanos, Io)>,
    driver: Option<Waker>,
    closed: bool,
}

struct Shared<M> {
    runtime: Rc<dyn Runtime>,
    store: Rc<dyn BlockDevice>,
    state: RefCell<State<M>>,
}

/// A block device with the data of a store and the timing of a model.
pub struct Modelled<M: Model + 'static>(Rc<Shared<M>>);

impl<M: Model + 'static> Modelled<M> {
    /// A device of the store's size. A store smaller than the model takes its first bytes, on a
    /// disk the fast outer tracks.
    ///
    /// # Panics
    /// If the store is larger than the model.
    pub fn new(runtime: Rc<dyn Runtime>, store: Rc<dyn BlockDevice>, model: M) -> Self {
        assert!(
            store.geometry().size_bytes <= model.size_bytes(),
            "the store has {} bytes, the modelled device {}",
            store.geometry().size_bytes,
            model.size_bytes()
        );
        let state = RefCell::new(State {
            model,
            slots: Vec::new(),
            free: Vec::new(),
            late: Vec::new(),
            completed: Vec::new(),
            timer: None,
            driver: None,
            closed: false,
        });
        let shared = Rc::new(Shared { runtime, store, state });
        shared.runtime.spawn(Box::pin(Driver(Rc::clone(&shared))));
        Self(shared)
    }
}

impl<M: Model + 'static> BlockDevice for Modelled<M> {
    fn geometry(&self) -> Geometry {
        let store = self.0.store.geometry();
        let model = &self.0.state.borrow().model;
        Geometry { discard: store.discard && model.discards(), stripe: model.stripe(), ..store }
    }

    fn submit(&self, request: Request, completer: Completer) {
        if let Err(error) = request.check(&self.0.store.geometry()) {
            return request.finish(Err(error), completer);
        }
        let command = Command::of(&request);
        let (store_completer, data) = pair();
        self.0.store.submit(request, store_completer);
        let now = self.0.runtime.now();
        let mut state = self.0.state.borrow_mut();
        let slot = state.free.pop().unwrap_or_else(|| {
            state.slots.push(None);
            state.slots.len() - 1
        });
        state.slots[slot] = Some(Slot { completer, data });
        state.model.submit(now, slot as Ticket, command);
        let next = state.model.next_event();
        let armed = state.timer.as_ref().map(|timer| timer.0);
        // A timer that fires too early costs one idle poll, one too late is a wrong time.
        if next.is_some_and(|next| armed.is_none_or(|armed| next < armed)) {
            let driver = state.driver.take();
            drop(state);
            if let Some(driver) = driver {
                driver.wake();
            }
        }
    }
}

impl<M: Model + 'static> Drop for Modelled<M> {
    fn drop(&mut self) {
        let mut state = self.0.state.borrow_mut();
        state.closed = true;
        let slots = std::mem::take(&mut state.slots);
        let timer = state.timer.take();
        let driver = state.driver.take();
        drop(state);
        // Outside of the borrow: completing runs foreign wakers.
        drop((slots, timer));
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

/// The task that lets the model's time pass.
struct Driver<M>(Rc<Shared<M>>);

impl<M: Model> Driver<M> {
    /// Completes what the model is done with and whose data is there.
    fn collect(&self, now: Nanos, cx: &mut Context<'_>, ended: &mut Vec<(Completer, Outcome)>) {
        let mut state = self.0.state.borrow_mut();
        let state = &mut *state;
        state.model.advance(now, &mut state.completed);
        state.late.extend(state.completed.drain(..).map(|ticket| ticket as usize));
        let (slots, free) = (&mut state.slots, &mut state.free);
        state.late.retain(|&index| {
            let Some(slot) = slots[index].as_mut() else { return false };
            let Poll::Ready(outcome) = Pin::new(&mut slot.data).poll(cx) else { return true };
            if let Some(slot) = slots[index].take() {
                ended.push((slot.completer, outcome));
            }
            free.push(index);
            false
        });
    }

    /// Sees to it that the task is polled at the model's next event; true if that is now.
    fn arm(&self, now: Nanos, cx: &mut Context<'_>) -> bool {
        let mut state = self.0.state.borrow_mut();
        let Some(next) = state.model.next_event() else {
            state.timer = None;
            return false;
        };
        if next <= now {
            return true;
        }
        if state.timer.as_ref().is_none_or(|timer| timer.0 != next) {
            let (completer, io) = pair();
            self.0.runtime.wake_at(next, completer);
            state.timer = Some((next, io));
        }
        let Some((_, io)) = state.timer.as_mut() else { return false };
        if Pin::new(io).poll(cx).is_ready() {
            state.timer = None;
            return true;
        }
        false
    }
}

impl<M: Model> Future for Driver<M> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut ended = Vec::new();
        loop {
            if self.0.state.borrow().closed {
                return Poll::Ready(());
            }
            let now = self.0.runtime.now();
            self.collect(now, cx, &mut ended);
            for (completer, outcome) in ended.drain(..) {
                completer.complete(outcome.result, outcome.buf);
            }
            if !self.arm(now, cx) {
                self.0.state.borrow_mut().driver = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
    }
}

/// What a closed loop achieved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Commands per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Mean time from submission to completion, in nanoseconds.
    pub latency_mean_ns: f64,
}

/// Keeps `depth` commands from `next` in a fresh model until `count` have completed, after a
/// quarter of `count` as warm-up, without an executor. For tests, benchmarks and fitting.
pub fn closed_loop<M: Model>(
    model: &mut M,
    depth: usize,
    count: u64,
    next: impl FnMut() -> Command,
) -> Figures {
    closed_loop_after(model, depth, count / 4, count, next)
}

/// The same after a warm-up of `warm_up` commands: a write cache that is not full yet makes an array
/// look many times faster than it is.
pub fn closed_loop_after<M: Model>(
    model: &mut M,
    depth: usize,
    warm_up: u64,
    count: u64,
    mut next: impl FnMut() -> Command,
) -> Figures {
    let mut in_flight: Vec<(Nanos, u64)> = Vec::with_capacity(depth);
    let mut completed = Vec::new();
    let (mut now, mut start, mut done, mut bytes, mut latency) = (0, 0, 0u64, 0, 0);
    for slot in 0..depth {
        let command = next();
        in_flight.push((now, command.len));
        model.submit(now, slot as Ticket, command);
    }
    while done < warm_up + count {
        let Some(event) = model.next_event() else { break };
        now = now.max(event);
        model.advance(now, &mut completed);
        for ticket in completed.drain(..) {
            let slot = &mut in_flight[ticket as usize];
            done += 1;
            if done > warm_up {
                bytes += slot.1;
                latency += now - slot.0;
            } else {
                start = now;
            }
            let command = next();
            *slot = (now, command.len);
            model.submit(now, ticket, command);
        }
    }
    let seconds = (now - start).max(1) as f64 / SECOND as f64;
    let counted = done.saturating_sub(warm_up).max(1) as f64;
    Figures {
        iops: counted / seconds,
        bytes_per_s: bytes as f64 / seconds,
        latency_mean_ns: latency as f64 / counted,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::buf::Buf;
    use crate::executor::TaskSet;
    use crate::io::IoErrorKind;
    use crate::model::hdd::{HddModel, HddParameters};
    use crate::model::store::MemoryStore;
    use crate::runtime::Task;
    use std::cell::Cell;

    /// Random aligned 4 KiB commands from a fixed seed.
    pub(in crate::model) fn random_4k(operation: Operation, span: u64) -> impl FnMut() -> Command {
        let mut state = 7u64;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            Command { operation, offset: (state >> 20) % (span / 4096) * 4096, len: 4096 }
        }
    }

    /// Commands of `len` bytes that follow each other.
    pub(in crate::model) fn sequential(operation: Operation, len: u64) -> impl FnMut() -> Command {
        let mut offset = 0;
        move || {
            offset += len;
            Command { operation, offset: offset - len, len }
        }
    }

    /// Virtual time: jumps to the next timer when nothing is ready.
    struct Virtual {
        now: Cell<Nanos>,
        tasks: TaskSet,
        timers: RefCell<Vec<(Nanos, Completer)>>,
    }

    impl Virtual {
        fn new() -> Rc<Self> {
            let tasks = TaskSet::new(Box::new(|| ()));
            Rc::new(Self { now: Cell::new(0), tasks, timers: RefCell::default() })
        }

        fn run(&self) {
            loop {
                while self.tasks.run_one(|_| 0) {}
                let mut timers = self.timers.borrow_mut();
                timers.retain(|timer| !timer.1.is_abandoned());
                let Some(index) = (0..timers.len()).min_by_key(|&index| timers[index].0) else {
                    return;
                };
                let (at, completer) = timers.swap_remove(index);
                drop(timers);
                self.now.set(self.now.get().max(at));
                completer.done(Ok(()));
            }
        }
    }

    impl Runtime for Virtual {
        fn now(&self) -> Nanos {
            self.now.get()
        }
        fn wake_at(&self, deadline: Nanos, completer: Completer) {
            self.timers.borrow_mut().push((deadline, completer));
        }
        fn spawn(&self, task: Task) {
            self.tasks.spawn(task);
        }
        fn random(&self) -> u64 {
            4
        }
        fn unix_seconds(&self) -> u64 {
            0
        }
    }

    fn disk(world: &Rc<Virtual>) -> Rc<dyn BlockDevice> {
        let store = Rc::new(MemoryStore::new(1 << 30, 4096));
        let model = HddModel::new(HddParameters::st500nm0001(), 0);
        Rc::new(Modelled::new(Rc::clone(world) as Rc<dyn Runtime>, store, model))
    }

    #[test]
    fn data_is_the_stores_and_time_the_models() {
        let world = Virtual::new();
        let device = disk(&world);
        let ended = Rc::new(Cell::new(0));
        let (seen, clock) = (Rc::clone(&ended), Rc::clone(&world));
        world.spawn(Box::pin(async move {
            device.write(1 << 29, Buf::copy_of(&[5; 4096]).freeze()).done().await.unwrap();
            assert!(clock.now() < 1_000_000, "acknowledged from the cache");
            device.flush().done().await.unwrap();
            assert!(clock.now() > 1_000_000, "the flush reaches the platter");
            let outcome = device.read(1 << 29, Buf::new(4096)).await;
            assert_eq!(outcome.buf.unwrap()[4095], 5);
            seen.set(clock.now());
        }));
        world.run();
        assert!(ended.get() > 0 && ended.get() < SECOND);
    }

    #[test]
    fn dropping_the_device_ends_its_task_and_answers_its_requests() {
        let world = Virtual::new();
        let device = disk(&world);
        let io = device.read(4096, Buf::new(4096));
        drop(device);
        let result = crate::executor::block_on_ready(io.done());
        assert_eq!(result, Err(IoErrorKind::Vanished.into()));
        world.run();
        assert_eq!(world.tasks.live_count(), 0);
    }

    #[test]
    fn abandoned_requests_do_no_harm() {
        let world = Virtual::new();
        let device = disk(&world);
        drop(device.read(4096, Buf::new(4096)));
        world.run();
        assert!(world.now() > 0);
        assert_eq!(world.tasks.live_count(), 1, "the driver waits for more");
    }
}

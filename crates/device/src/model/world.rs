//! A deterministic world: one thread, virtual time, every choice taken from a seed.
//!
//! * The same seed and the same code give the same run, step for step.
//! * Which ready task runs next, and whether a due timer fires before it, is drawn from the seed; in
//!   a world for measuring it is the one that was woken first, as with the real reactor.
//!   Each poll costs a little virtual time, so completions arrive while tasks are waiting to run.
//! * When nothing is ready, time jumps to the next timer. When there is none, the run has
//!   deadlocked and says so: no run ever hangs.
//! * A crash drops every task and timer, then lets the devices decide what becomes of the writes
//!   that were not flushed. The devices outlive it; everything else starts anew.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::rc::{Rc, Weak};

use crate::executor::TaskSet;
use crate::io::Completer;
use crate::runtime::{Nanos, Runtime, SECOND, Task};

/// Wall-clock time at the start of every world: 2026-01-01, so that dates in records are plausible.
const UNIX_SECONDS_START: u64 = 1_767_225_600;

/// Virtual time that one poll of a task takes at most: about what one takes on a real machine.
const POLL_NANOS_MAX: Nanos = 1_000;

/// SplitMix64 (Steele, Lea, Flood 2014): 64 bits of state, good enough to choose test cases.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// The output function of SplitMix64, also useful as a hash of a counter.
pub const fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Rng {
    /// A generator for `seed`. Neighbouring seeds give unrelated sequences.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let value = mix(self.0);
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        value
    }

    /// A number below `bound`; 0 if the bound is 0. The bias is at most `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `first..=last`.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// True once in `count` times on average; never if `count` is 0.
    pub fn one_in(&mut self, count: u64) -> bool {
        count != 0 && self.below(count) == 0
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// An independent generator.
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.bits())
    }
}

/// How the machine or the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The power goes: writes not flushed are at the mercy of the devices.
    PowerCut,
    /// `kill -9`: what the devices completed stays, in their volatile caches too.
    ProcessKill,
}

/// A device whose unflushed writes a crash decides about.
pub trait Settle {
    /// Called after all tasks and timers are gone. Requests in flight never complete.
    fn settle(&self, crash: Crash);
}

/// Why a run ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The I/O chosen by [`World::crash_at`] was submitted: call [`World::crash`].
    Crashed,
    /// Nothing is ready, no timer runs, and what was waited for is not done.
    Deadlock,
    /// More polls and timers than [`Limits::steps`].
    StepLimit,
    /// More virtual time than [`Limits::nanos`]: timers tick but nothing gets done.
    TimeLimit,
}

/// A run that ended before what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Why.
    pub cause: Cause,
    /// Steps since the world began.
    pub steps: u64,
    /// Virtual time.
    pub now: Nanos,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.cause {
            Cause::Crashed => "crashed as asked",
            Cause::Deadlock => "deadlock: nothing is ready and no timer runs",
            Cause::StepLimit => "step limit: too many polls and timers",
            Cause::TimeLimit => "time limit: timers tick but nothing gets done",
        };
        let millis = self.now as f64 / 1e6;
        write!(f, "{text} (step {}, {millis:.3} ms of virtual time)", self.steps)
    }
}

impl std::error::Error for Stopped {}

/// Bounds of one call of a `run_...` method.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Polls and timers.
    pub steps: u64,
    /// Virtual time.
    pub nanos: Nanos,
}

impl Default for Limits {
    fn default() -> Self {
        // A seed of a few hundred requests takes some 100,000 steps and a minute of virtual time.
        Self { steps: 5_000_000, nanos: 3_600 * SECOND }
    }
}

enum Timer {
    Wake(Completer),
    Call(Box<dyn FnOnce()>),
}

/// Virtual time, a seeded scheduler and the I/O counter of all its devices.
///
/// Tasks usually hold an `Rc` to their world, so end a world with [`World::crash`] to free it.
pub struct World {
    tasks: TaskSet,
    timers: RefCell<BTreeMap<(Nanos, u64), Timer>>,
    timers_started: Cell<u64>,
    now: Cell<Nanos>,
    steps: Cell<u64>,
    limits: Cell<Limits>,
    /// Schedule and engine draw from generators of their own, so that a random number more in the
    /// engine does not change the schedule by itself.
    schedule: RefCell<Rng>,
    engine: RefCell<Rng>,
    /// Whether tasks run in the order in which they were woken, and timers as soon as they are due.
    in_turn: bool,
    io_count: Cell<u64>,
    crash_at: Cell<Option<u64>>,
    /// Set between the chosen I/O and the end of `crash`: nothing is accepted any more.
    down: Cell<bool>,
    /// Completers of requests that came too late; they end only when no task sees it.
    limbo: RefCell<Vec<Completer>>,
    devices: RefCell<Vec<Weak<dyn Settle>>>,
}

impl World {
    /// A world for `seed` at time 0.
    pub fn new(seed: u64) -> Rc<World> {
        Self::with_order(seed, false)
    }

    /// The same, but its tasks run in the order in which they were woken, as with the real reactor. What
    /// is measured in it is not the work of an order that no machine has; to find faults, use
    /// [`World::new`].
    pub fn in_turn(seed: u64) -> Rc<World> {
        Self::with_order(seed, true)
    }

    fn with_order(seed: u64, in_turn: bool) -> Rc<World> {
        let mut rng = Rng::new(seed);
        Rc::new(World {
            tasks: TaskSet::new(Box::new(|| ())),
            timers: RefCell::default(),
            timers_started: Cell::new(0),
            now: Cell::new(0),
            steps: Cell::new(0),
            limits: Cell::default(),
            schedule: RefCell::new(rng.fork()),
            engine: RefCell::new(rng.fork()),
            in_turn,
            io_count: Cell::new(0),
            crash_at: Cell::new(None),
            down: Cell::new(false),
            limbo: RefCell::default(),
            devices: RefCell::default(),
        })
    }

    /// Sets the bounds of the `run_...` calls that follow.
    pub fn set_limits(&self, limits: Limits) {
        self.limits.set(limits);
    }

    /// Polls and timers since the world began.
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// Requests submitted to all devices since the world began.
    pub fn io_count(&self) -> u64 {
        self.io_count.get()
    }

    /// Stops the run when the I/O with this number (counted from 1) is submitted. It is in flight
    /// then; I/O after it never reaches a device. `None` lets the run go on.
    pub fn crash_at(&self, io: Option<u64>) {
        self.crash_at.set(io);
    }

    /// Tells the world of a device; it is settled at each crash as long as it lives.
    pub fn add_device(&self, device: &Rc<dyn Settle>) {
        self.devices.borrow_mut().push(Rc::downgrade(device));
    }

    /// Counts a device's request. Gives the completer back if the device may start it.
    pub fn admit(&self, completer: Completer) -> Option<Completer> {
        if self.down.get() {
            self.limbo.borrow_mut().push(completer);
            return None;
        }
        self.io_count.set(self.io_count.get() + 1);
        if self.crash_at.get().is_some_and(|at| self.io_count.get() >= at) {
            self.down.set(true);
        }
        Some(completer)
    }

    /// Calls `event` at `deadline` or soon after, unless a crash comes first.
    pub fn call_at(&self, deadline: Nanos, event: Box<dyn FnOnce()>) {
        self.add_timer(deadline, Timer::Call(event));
    }

    fn add_timer(&self, deadline: Nanos, timer: Timer) {
        let count = self.timers_started.get() + 1;
        self.timers_started.set(count);
        // Timers with the same deadline fire in random order.
        let tie = (self.schedule.borrow_mut().bits() << 40) | count;
        self.timers.borrow_mut().insert((deadline, tie), timer);
    }

    fn due(&self) -> Option<Nanos> {
        self.timers.borrow().first_key_value().map(|((deadline, _), _)| *deadline)
    }

    /// One poll or timer; false if there is none at or before `until`.
    fn step(&self, until: Nanos) -> bool {
        let now = self.now.get();
        let ready = self.tasks.ready_count() > 0;
        let timer_now = self.due().is_some_and(|deadline| deadline <= now);
        let timer_first = timer_now && (self.in_turn || self.schedule.borrow_mut().one_in(2));
        if ready && !timer_first {
            self.tasks.run_one(|count| match self.in_turn {
                true => 0,
                false => self.schedule.borrow_mut().below(count as u64) as usize,
            });
            self.now.set(now + self.schedule.borrow_mut().below(POLL_NANOS_MAX));
        } else if self.due().is_some_and(|deadline| deadline <= until) {
            let Some(((deadline, _), timer)) = self.timers.borrow_mut().pop_first() else {
                return false;
            };
            self.now.set(now.max(deadline));
            match timer {
                Timer::Wake(completer) => completer.done(Ok(())),
                Timer::Call(event) => event(),
            }
        } else {
            return false;
        }
        self.steps.set(self.steps.get() + 1);
        true
    }

    fn stopped(&self, cause: Cause) -> Stopped {
        Stopped { cause, steps: self.steps.get(), now: self.now.get() }
    }

    /// Runs until `done` says so. `Ok(false)` if nothing is left to do until then.
    fn run(&self, until: Nanos, done: impl Fn() -> bool) -> Result<bool, Stopped> {
        let limits = self.limits.get();
        let steps_end = self.steps.get().saturating_add(limits.steps);
        let time_end = self.now.get().saturating_add(limits.nanos);
        loop {
            if self.down.get() {
                return Err(self.stopped(Cause::Crashed));
            } else if done() {
                return Ok(true);
            } else if self.steps.get() >= steps_end {
                return Err(self.stopped(Cause::StepLimit));
            } else if self.now.get() > time_end {
                return Err(self.stopped(Cause::TimeLimit));
            } else if !self.step(until) {
                return Ok(false);
            }
        }
    }

    /// Runs until `future` is done.
    ///
    /// # Errors
    /// [`Stopped`], at a crash or when it cannot get done; the future stays until [`World::crash`].
    pub fn run_until<T: 'static>(
        &self,
        future: impl Future<Output = T> + 'static,
    ) -> Result<T, Stopped> {
        let output = Rc::new(RefCell::new(None));
        let slot = Rc::clone(&output);
        self.spawn(Box::pin(async move {
            let value = future.await;
            *slot.borrow_mut() = Some(value);
        }));
        self.run(Nanos::MAX, || output.borrow().is_some())?;
        let value = output.borrow_mut().take();
        value.ok_or_else(|| self.stopped(Cause::Deadlock))
    }

    /// Runs for `span` of virtual time.
    ///
    /// # Errors
    /// [`Stopped`] at a crash or a limit.
    pub fn run_for(&self, span: Nanos) -> Result<(), Stopped> {
        let end = self.now.get().saturating_add(span);
        self.run(end, || self.now.get() >= end)?;
        self.now.set(self.now.get().max(end));
        Ok(())
    }

    /// Runs until nothing is ready and no timer runs.
    ///
    /// # Errors
    /// [`Stopped`] at a crash or a limit.
    pub fn run_until_idle(&self) -> Result<(), Stopped> {
        self.run(Nanos::MAX, || false).map(|_| ())
    }

    /// Ends all tasks and timers at this instant, then lets each device settle its writes. The
    /// caller drops what it still holds of the engine before it starts another one.
    pub fn crash(&self, crash: Crash) {
        self.down.set(true);
        self.tasks.clear();
        // Dropping a completer wakes its task: there must be none left. The drops may themselves
        // start requests, which `down` turns away.
        let timers = std::mem::take(&mut *self.timers.borrow_mut());
        drop(timers);
        let limbo = std::mem::take(&mut *self.limbo.borrow_mut());
        drop(limbo);
        self.tasks.clear();
        let devices: Vec<_> = self.devices.borrow().iter().filter_map(Weak::upgrade).collect();
        self.devices.borrow_mut().retain(|device| device.strong_count() > 0);
        for device in devices {
            device.settle(crash);
        }
        self.crash_at.set(None);
        self.down.set(false);
    }
}

impl Runtime for World {
    fn now(&self) -> Nanos {
        self.now.get()
    }

    fn wake_at(&self, deadline: Nanos, completer: Completer) {
        if self.down.get() {
            self.limbo.borrow_mut().push(completer);
        } else {
            self.add_timer(deadline, Timer::Wake(completer));
        }
    }

    fn spawn(&self, task: Task) {
        if !self.down.get() {
            self.tasks.spawn(task);
        }
    }

    fn random(&self) -> u64 {
        self.engine.borrow_mut().bits()
    }

    fn unix_seconds(&self) -> u64 {
        UNIX_SECONDS_START + self.now.get() / SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::pair;
    use crate::runtime::MILLISECOND;

    fn runtime(world: &Rc<World>) -> Rc<dyn Runtime> {
        Rc::clone(world) as Rc<dyn Runtime>
    }

    /// The order in which ten sleeping tasks wake, and the time at the end.
    fn order(seed: u64) -> (Vec<u64>, Nanos, u64) {
        let world = World::new(seed);
        let order = Rc::new(RefCell::new(Vec::new()));
        for task in 0..10 {
            let (order, clock) = (Rc::clone(&order), runtime(&world));
            world.spawn(Box::pin(async move {
                clock.sleep(clock.random() % 3 * MILLISECOND).await;
                order.borrow_mut().push(task);
            }));
        }
        world.run_until_idle().unwrap();
        let order = order.borrow().clone();
        (order, world.now(), world.steps())
    }

    #[test]
    fn a_seed_repeats_exactly_and_seeds_differ() {
        assert_eq!(order(7), order(7));
        assert!((0..20).any(|seed| order(seed).0 != order(7).0));
    }

    #[test]
    fn time_jumps_to_the_next_timer() {
        let world = World::new(1);
        let clock = runtime(&world);
        world.run_until(async move { clock.sleep(3_000 * SECOND).await }).unwrap().result.unwrap();
        assert!(world.now() >= 3_000 * SECOND && world.steps() < 10);
        assert_eq!(world.unix_seconds(), UNIX_SECONDS_START + 3_000);
    }

    #[test]
    fn run_for_stops_on_time_with_timers_left() {
        let world = World::new(1);
        let clock = runtime(&world);
        world.spawn(Box::pin(async move {
            clock.sleep(SECOND).await;
        }));
        world.run_for(10 * MILLISECOND).unwrap();
        assert!((10 * MILLISECOND..11 * MILLISECOND).contains(&world.now()));
    }

    #[test]
    fn a_future_that_nothing_wakes_is_a_deadlock() {
        let world = World::new(1);
        let (completer, io) = pair();
        let stopped = world.run_until(io).map(|_| ()).unwrap_err();
        assert_eq!(stopped.cause, Cause::Deadlock);
        world.crash(Crash::ProcessKill);
        assert!(completer.is_abandoned(), "the crash drops what waited");
    }

    #[test]
    fn endless_polling_and_endless_ticking_are_errors() {
        let world = World::new(1);
        world.set_limits(Limits { steps: 1_000, nanos: 10 * SECOND });
        let spin = std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            std::task::Poll::<()>::Pending
        });
        assert_eq!(world.run_until(spin).unwrap_err().cause, Cause::StepLimit);
        world.crash(Crash::PowerCut);
        let clock = runtime(&world);
        let tick = async move {
            loop {
                clock.sleep(SECOND).await;
            }
        };
        let stopped = world.run_until::<()>(tick).unwrap_err();
        assert_eq!(stopped.cause, Cause::TimeLimit);
    }

    #[test]
    fn a_crash_drops_tasks_and_refuses_what_their_drops_start() {
        struct SpawnsOnDrop(Rc<World>, Rc<Cell<bool>>);
        impl Drop for SpawnsOnDrop {
            fn drop(&mut self) {
                let ran = Rc::clone(&self.1);
                self.0.spawn(Box::pin(async move { ran.set(true) }));
            }
        }
        let world = World::new(1);
        let ran = Rc::new(Cell::new(false));
        let guard = SpawnsOnDrop(Rc::clone(&world), Rc::clone(&ran));
        let clock = runtime(&world);
        world.spawn(Box::pin(async move {
            clock.sleep(SECOND).await;
            drop(guard);
        }));
        world.run_for(MILLISECOND).unwrap();
        world.crash(Crash::PowerCut);
        world.run_until_idle().unwrap();
        assert!(!ran.get());
        assert_eq!(Rc::strong_count(&world), 1, "nothing of the old run is left");
    }

    #[test]
    fn random_numbers_stay_in_their_bounds() {
        let mut rng = Rng::new(3);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[rng.below(5) as usize] = true;
            assert!((3..=4).contains(&rng.between(3, 4)));
        }
        assert!(seen.iter().all(|&seen| seen) && !rng.one_in(0) && rng.one_in(1));
    }
}

//! The thread's event loop: tasks, timers and one io_uring.
//!
//! * A turn runs what is ready, hands all queued operations to the kernel in one call, takes its
//!   answers in, and waits only if nothing is ready.
//! * Memory that the kernel may touch belongs to the ring until the answer, also when the future
//!   that wanted it is gone and when the reactor itself ends.
//! * Tasks usually hold the reactor, and the reactor its tasks: [`Reactor::close`] ends that.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::buf::Buf;
use crate::executor::TaskSet;
use crate::io::Completer;
use crate::real::bell::{Bell, Root, Stopper};
use crate::real::op::{Handle, Kind, Op};
use crate::real::ring::{Answer, Key, Ring, vanished};
use crate::real::timer::Timers;
use crate::runtime::{Nanos, Runtime, SECOND, Task};

/// Tasks polled before the kernel's answers are looked at again, so that tasks that keep each
/// other busy cannot starve I/O: a few times the largest queue depth.
const POLLS_PER_TURN_MAX: usize = 512;

/// Longest wait, because the kernel's sum of now and a span of centuries overflows.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// How often the end asks again to cancel what still waits.
const CLOSE_RETRY: Duration = Duration::from_millis(100);

/// Settings of a reactor.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Entries of the submission queue; more operations wait in memory. A power of two.
    pub entries: u32,
    /// Queued operations that are submitted at once instead of at the end of the turn. Small
    /// values give the device work earlier, large ones save system calls. Random reads of 4 KiB
    /// at queue depth 32 on a virtio disk reach 0.98 to 1.02 of fio's rate with 1, 0.93 to 0.96
    /// with 4, 0.86 with 8, for meanwhile the disk runs dry. What sockets are to do waits for the
    /// end of the turn or for such an operation in any case.
    pub submit_after: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { entries: 256, submit_after: 1 }
    }
}

/// What a reactor is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Ring,
    Eventfd,
    Thread,
}

/// Why a reactor could not be started.
#[derive(Debug)]
pub struct StartError {
    part: Part,
    source: std::io::Error,
}

impl StartError {
    pub(super) fn new(part: Part, source: std::io::Error) -> Self {
        Self { part, source }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match (self.source.raw_os_error(), self.part) {
            (Some(libc::EMFILE | libc::ENFILE), _) => {
                "raise the limit of open files: `ulimit -n`, or LimitNOFILE= of the service"
            }
            (Some(libc::EAGAIN), Part::Thread) => {
                "raise the limit of threads: `ulimit -u`, or LimitNPROC= and TasksMax= of the \
                 service"
            }
            (Some(libc::ENOMEM), Part::Thread | Part::Eventfd) => "free some memory",
            (_, Part::Thread | Part::Eventfd) => {
                "check `ulimit -u`, `ulimit -n`, the memory, and seccomp policies"
            }
            (Some(libc::EPERM | libc::EACCES), Part::Ring) => {
                "allow io_uring: `sysctl kernel.io_uring_disabled=0`, or, inside a container, a \
                 seccomp policy that permits io_uring_setup"
            }
            (Some(libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP), Part::Ring) => {
                "run Linux 5.11 or newer, built with CONFIG_IO_URING; inside a container, check \
                 that its seccomp policy permits io_uring_setup"
            }
            (Some(libc::ENOMEM), Part::Ring) => {
                "raise the limit of locked memory: `ulimit -l`, or LimitMEMLOCK= of the service"
            }
            (_, Part::Ring) => {
                "check `sysctl kernel.io_uring_disabled`, seccomp policies and `ulimit -l`"
            }
        }
    }
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tried = match self.part {
            Part::Ring => "set up io_uring",
            Part::Eventfd => "make an eventfd",
            Part::Thread => "start a thread",
        };
        write!(f, "cannot {tried}: {}", self.source)
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// See the head of the file.
pub struct Reactor {
    ring: RefCell<Ring>,
    tasks: TaskSet,
    timers: RefCell<Timers>,
    random: Cell<u64>,
    root: Arc<Root>,
    stopper: Stopper,
    answers: RefCell<Vec<Answer>>,
    running: Cell<bool>,
    closed: Cell<bool>,
}

impl Reactor {
    /// A reactor for the calling thread.
    ///
    /// # Errors
    /// When the kernel gives no ring or no descriptors; see [`StartError::hint`].
    pub fn new(config: Config) -> Result<Rc<Reactor>, StartError> {
        let failed = |part| move |source| StartError::new(part, source);
        let ring = Ring::new(config.entries, config.submit_after).map_err(failed(Part::Ring))?;
        if !ring.is_complete() {
            let source = std::io::Error::from_raw_os_error(libc::EOPNOTSUPP);
            return Err(StartError::new(Part::Ring, source));
        }
        let bell = Arc::new(Bell::new().map_err(failed(Part::Eventfd))?);
        let reader = bell.reader().map_err(failed(Part::Eventfd))?;
        let notifier = Arc::clone(&bell);
        let reactor = Rc::new(Reactor {
            ring: RefCell::new(ring),
            tasks: TaskSet::new(Box::new(move || notifier.ring())),
            timers: RefCell::default(),
            random: Cell::new(random_seed()),
            root: Arc::new(Root::new(Arc::clone(&bell))),
            stopper: Stopper { stopped: Arc::new(AtomicBool::new(false)), bell },
            answers: RefCell::default(),
            running: Cell::new(false),
            closed: Cell::new(false),
        });
        reactor.start(Op::new(Handle::new(reader), Kind::Bell { buf: Buf::zeroed(8) }, None));
        Ok(reactor)
    }

    /// Runs tasks until `future` is ready. Tasks that have not ended stay for the next call.
    ///
    /// # Panics
    /// If called from inside itself.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        let waker = Waker::from(Arc::clone(&self.root));
        let mut context = Context::from_waker(&waker);
        waker.wake_by_ref();
        let mut output = None;
        self.drive(|| {
            if self.root.take()
                && let Poll::Ready(value) = future.as_mut().poll(&mut context)
            {
                output = Some(value);
            }
            output.is_some()
        });
        output.expect("the loop ends when the future has")
    }

    /// Runs tasks until somebody calls [`Stopper::stop`].
    pub fn run(&self) {
        self.drive(|| {
            // A late wake of a future that `block_on` has finished must not keep us from sleep.
            self.root.take();
            self.stopper.stopped.load(Ordering::Acquire)
        });
    }

    /// Ends [`Reactor::run`]; may be sent to other threads.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Number of tasks that have not ended.
    pub fn tasks_live_count(&self) -> usize {
        self.tasks.live_count()
    }

    /// Operations in flight, without the reactor's own.
    pub fn operations_inflight_count(&self) -> usize {
        self.ring.borrow().inflight_count().saturating_sub(1)
    }

    /// Drops all tasks and waits until the kernel has let go of all memory. Operations that
    /// start later end with `Vanished`.
    ///
    /// # Panics
    /// If called by a task.
    pub fn close(&self) {
        self.close_until(Nanos::MAX);
    }

    /// The same before the end of the process, which waits for so long at the most: a device that hangs does not give its
    /// requests back. Whether the kernel has let go of all memory; what it has keeps this reactor until the process ends.
    ///
    /// # Panics
    /// As [`Reactor::close`].
    pub fn close_within(self: &Rc<Self>, span: Nanos) -> bool {
        let has_let_go = self.close_until(self.now().saturating_add(span));
        if !has_let_go {
            // It would wait when it is dropped.
            std::mem::forget(Rc::clone(self));
        }
        has_let_go
    }

    fn close_until(&self, until: Nanos) -> bool {
        assert!(!self.running.get(), "a task cannot close the reactor that runs it");
        self.closed.set(true);
        self.tasks.clear();
        self.cancel_all();
        while self.ring.borrow().inflight_count() > 0 {
            if self.now() >= until {
                return false;
            }
            self.ring.borrow_mut().wait(Some(CLOSE_RETRY));
            self.take_answers();
            self.cancel_all();
        }
        true
    }

    fn cancel_all(&self) {
        let untouched = self.ring.borrow_mut().cancel_all();
        untouched.into_iter().for_each(|op| op.finish(Err(vanished())));
    }

    /// Queues an operation.
    pub(super) fn start(&self, op: Op) -> Option<Key> {
        if self.closed.get() {
            op.finish(Err(vanished()));
            return None;
        }
        Some(self.ring.borrow_mut().push(op))
    }

    /// Asks for the early end of an operation.
    pub(super) fn cancel(&self, key: Key) {
        let untouched = self.ring.borrow_mut().cancel(key);
        if let Some(op) = untouched {
            op.finish(Err(vanished()));
        }
    }

    fn drive(&self, mut is_done: impl FnMut() -> bool) {
        struct Running<'a>(&'a Cell<bool>);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        assert!(!self.running.replace(true), "a reactor runs once at a time");
        let _running = Running(&self.running);
        while !is_done() {
            for _ in 0..POLLS_PER_TURN_MAX {
                if !self.tasks.run_one(|_| 0) {
                    break;
                }
            }
            let timeout = self.fire_timers();
            if self.is_idle() {
                let bell = &self.stopper.bell;
                bell.fall_asleep();
                if self.is_idle() {
                    self.ring.borrow_mut().wait(timeout);
                }
                bell.awake();
            } else {
                self.ring.borrow_mut().turn();
            }
            self.take_answers();
        }
    }

    /// Whether nothing but an answer, a timer or another thread gives work.
    fn is_idle(&self) -> bool {
        self.tasks.ready_count() == 0
            && !self.root.is_woken()
            && !self.stopper.stopped.load(Ordering::Acquire)
    }

    /// Completes what is due; the time until the next deadline.
    fn fire_timers(&self) -> Option<Duration> {
        self.timers.borrow().next_deadline()?;
        let now = self.now();
        loop {
            let due = self.timers.borrow_mut().pop_due(now);
            match due {
                Some(completer) => completer.done(Ok(())),
                None => break,
            }
        }
        let next = self.timers.borrow().next_deadline()?;
        Some(Duration::from_nanos(next - now).min(WAIT_MAX))
    }

    /// Hands the kernel's answers to their operations, outside of any borrow of the ring.
    fn take_answers(&self) {
        let mut answers = self.answers.take();
        self.ring.borrow_mut().reap(&mut answers);
        for answer in answers.drain(..) {
            let ended = self.ring.borrow_mut().advance(answer, self.closed.get());
            if let Some((op, result)) = ended {
                op.finish(result);
            }
        }
        self.answers.replace(answers);
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.close();
    }
}

impl Runtime for Reactor {
    fn now(&self) -> Nanos {
        boot_now()
    }

    fn wake_at(&self, deadline: Nanos, completer: Completer) {
        self.timers.borrow_mut().add(deadline, completer);
    }

    fn spawn(&self, task: Task) {
        if !self.closed.get() {
            self.tasks.spawn(task);
        }
    }

    fn random(&self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood 2014): one word of state, good enough for spreading.
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    #[expect(clippy::disallowed_methods, reason = "this is where wall-clock time is handed in")]
    fn unix_seconds(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

/// Time since the system was started, the time that it slept included: for a lease that others wait
/// for, that is time like any other. One line of time for all reactors of the system.
#[inline]
pub(super) fn boot_now() -> Nanos {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec`, and `now` is one. The clock is there since Linux 2.6.39,
    // so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    now.tv_sec as Nanos * SECOND + now.tv_nsec as Nanos
}

fn random_seed() -> u64 {
    let mut seed = [0u8; 8];
    // SAFETY: the kernel writes at most `seed.len()` bytes to `seed`.
    let got = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
    // Up to 256 bytes always come whole once the system has booted; without them, every reactor
    // would draw the same numbers, which harms nothing but the spread of retries.
    if got == 8 { u64::from_ne_bytes(seed) } else { u64::from(std::process::id()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start_error(part: Part, errno: i32) -> StartError {
        StartError::new(part, std::io::Error::from_raw_os_error(errno))
    }

    #[test]
    fn a_refused_thread_is_not_told_as_a_refused_ring() {
        let error = start_error(Part::Thread, libc::EAGAIN);
        assert!(error.to_string().starts_with("cannot start a thread"), "{error}");
        assert!(error.hint().contains("ulimit -u"));
        for part in [Part::Thread, Part::Eventfd] {
            for errno in [libc::EAGAIN, libc::EPERM, libc::ENOMEM, libc::EMFILE, libc::EIO] {
                let error = start_error(part, errno);
                assert!(!error.hint().contains("io_uring"), "{error}");
                assert!(!error.to_string().contains("io_uring"), "{error}");
            }
        }
    }

    #[test]
    fn a_refused_ring_names_the_setting_that_refuses() {
        let hint = |errno| start_error(Part::Ring, errno).hint();
        assert!(hint(libc::EPERM).contains("kernel.io_uring_disabled"));
        assert!(hint(libc::EPERM).contains("seccomp"));
        assert!(hint(libc::ENOSYS).contains("CONFIG_IO_URING"));
        assert!(hint(libc::ENOMEM).contains("LimitMEMLOCK"));
        assert!(hint(libc::EIO).contains("kernel.io_uring_disabled"));
    }

    #[test]
    fn random_numbers_differ_between_draws_and_reactors() {
        let draw = |reactor: &Reactor| [reactor.random(), reactor.random()];
        let (one, other) = (Reactor::new(Config::default()), Reactor::new(Config::default()));
        let (one, other) = (draw(&one.unwrap()), draw(&other.unwrap()));
        assert!(one[0] != one[1] && one != other);
    }

    /// CPU time that this thread has used.
    fn cpu_time() -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call stores one `timespec`.
        let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        assert_eq!(result, 0);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    #[test]
    fn a_late_wake_of_a_finished_future_does_not_keep_run_awake() {
        let reactor = Reactor::new(Config::default()).unwrap();
        let waker = reactor.block_on(std::future::poll_fn(|cx| Poll::Ready(cx.waker().clone())));
        waker.wake();
        let (runtime, stopper) = (Rc::clone(&reactor), reactor.stopper());
        reactor.spawn(Box::pin(async move {
            let runtime: &dyn Runtime = &*runtime;
            let _ = runtime.sleep(300 * crate::runtime::MILLISECOND).done().await;
            stopper.stop();
        }));
        let before = cpu_time();
        reactor.run();
        let used = cpu_time() - before;
        assert!(used < Duration::from_millis(100), "{used:?} of CPU in 300 ms of sleep");
    }

    #[test]
    fn a_request_that_the_kernel_keeps_does_not_keep_the_end_of_a_process() {
        use crate::runtime::MILLISECOND;
        use std::io::Write;
        let (silent, mut device) = std::io::pipe().unwrap();
        let reactor = Reactor::new(Config::default()).unwrap();
        let (completer, read) = crate::io::pair();
        let kind = Kind::Read { offset: 0, align_bytes: 1, buf: Buf::zeroed(512) };
        reactor.start(Op::new(Handle::new(silent.into()), kind, Some(completer)));
        assert!(!reactor.close_within(MILLISECOND));
        assert_eq!(Rc::strong_count(&reactor), 2, "its memory is the kernel's");
        device.write_all(&[7; 512]).unwrap();
        reactor.close();
        assert!(reactor.close_within(MILLISECOND));
        let outcome = crate::executor::block_on_ready(read);
        assert!(outcome.buf.unwrap().iter().all(|byte| *byte == 7));
    }

    #[test]
    #[should_panic(expected = "a task cannot close")]
    fn a_task_does_not_close_its_reactor() {
        let reactor = Reactor::new(Config::default()).unwrap();
        reactor.block_on(async { reactor.close() });
    }
}

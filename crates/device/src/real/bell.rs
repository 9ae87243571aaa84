//! Waking the reactor's thread from another one: an eventfd that the ring reads.
//!
//! A reactor says that it is about to sleep, then looks once more whether there is something to
//! do. Whoever gives it something looks afterwards whether it sleeps, and only then writes to the
//! eventfd: one of the two sees the other, and a reactor at work costs its wakers no system call.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::Wake;
use std::thread::ThreadId;

/// The eventfd; ringing it ends the reactor's wait.
pub(super) struct Bell {
    event: OwnedFd,
    /// Whether the reactor waits, or is about to.
    asleep: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> std::io::Result<Bell> {
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else has it.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Bell { event, asleep: AtomicBool::new(false) })
    }

    /// The same eventfd for the ring to read.
    pub(super) fn reader(&self) -> std::io::Result<OwnedFd> {
        self.event.try_clone()
    }

    /// Announces a wait; what is due must be looked for afterwards.
    pub(super) fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The wait is over, or was not begun.
    pub(super) fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Ends the wait, if there is one. What there is to do was handed over before.
    pub(super) fn ring(&self) {
        fence(Ordering::SeqCst);
        if !self.asleep.load(Ordering::Relaxed) || !self.asleep.swap(false, Ordering::Relaxed) {
            return;
        }
        let one = 1u64.to_ne_bytes();
        // The write cannot fail: the counter would overflow only after 2^64 rings.
        // SAFETY: `one` outlives the call and is eight bytes long.
        unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

/// The waker of the future that `block_on` polls.
pub(super) struct Root {
    woken: AtomicBool,
    owner: ThreadId,
    bell: Arc<Bell>,
}

impl Root {
    pub(super) fn new(bell: Arc<Bell>) -> Root {
        Root { woken: AtomicBool::new(false), owner: std::thread::current().id(), bell }
    }

    pub(super) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }

    pub(super) fn take(&self) -> bool {
        self.woken.swap(false, Ordering::AcqRel)
    }
}

impl Wake for Root {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let was_woken = self.woken.swap(true, Ordering::AcqRel);
        if !was_woken && std::thread::current().id() != self.owner {
            self.bell.ring();
        }
    }
}

/// Ends [`Reactor::run`](super::reactor::Reactor::run) from any thread.
#[derive(Clone)]
pub struct Stopper {
    pub(super) stopped: Arc<AtomicBool>,
    pub(super) bell: Arc<Bell>,
}

impl Stopper {
    /// Makes `run` return soon; it returns at once if it is called later.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.bell.ring();
    }
}

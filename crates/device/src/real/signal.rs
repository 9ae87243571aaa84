//! Signals as values that arrive, through a signalfd that the ring reads.

use std::cell::Cell;
use std::os::fd::{FromRawFd, OwnedFd};
use std::rc::Rc;

use crate::buf::Buf;
use crate::io::{IoError, pair};
use crate::real::op::{Handle, Kind, Mailbox, Op};
use crate::real::reactor::Reactor;
use crate::real::ring::Key;

/// The signals that the process asked to receive.
pub struct Signals {
    reactor: Rc<Reactor>,
    handle: Rc<Handle>,
    mailbox: Rc<Mailbox<i32>>,
    reading: Cell<Option<Key>>,
}

impl Signals {
    /// Takes `numbers` over from their default action. Call it before threads start: they
    /// inherit the blocked signals, and a thread that does not block them takes them away.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(reactor: &Rc<Reactor>, numbers: &[i32]) -> std::io::Result<Signals> {
        // SAFETY: a signal set is plain bits; zero is a valid (empty) value.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        for number in numbers {
            // SAFETY: `set` is a valid set.
            if unsafe { libc::sigaddset(&raw mut set, *number) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        let old = std::ptr::null_mut();
        // SAFETY: `set` is a valid set, and the old one is not asked for.
        let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, old) };
        if error != 0 {
            return Err(std::io::Error::from_raw_os_error(error));
        }
        // SAFETY: `set` is a valid set; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let (reactor, handle) = (Rc::clone(reactor), Handle::new(fd));
        Ok(Signals { reactor, handle, mailbox: Mailbox::new(), reading: Cell::new(None) })
    }

    /// The number of the next signal. The future may be dropped at any time without losing one.
    ///
    /// # Errors
    /// `Vanished` when the reactor is closed.
    pub async fn next(&self) -> Result<i32, IoError> {
        loop {
            if let Some(arrived) = self.mailbox.take() {
                return arrived;
            }
            let (completer, io) = pair();
            if self.mailbox.wait(completer) {
                let buf = Buf::zeroed(size_of::<libc::signalfd_siginfo>());
                let kind = Kind::Signal { buf, mailbox: Rc::clone(&self.mailbox) };
                let op = Op::new(Rc::clone(&self.handle), kind, None);
                self.reading.set(self.reactor.start(op));
            }
            io.done().await?;
        }
    }
}

impl Drop for Signals {
    /// The signals stay blocked: nobody wants the process to die of one that was awaited.
    fn drop(&mut self) {
        if let Some(key) = self.reading.take() {
            self.reactor.cancel(key);
        }
    }
}

//! One operation in flight: what the kernel was asked, the memory that it may touch, and who
//! waits. [`judge`] is the one place that checks sign, length, EINTR and short I/O.
//!
//! * An `Op` owns its buffer, its file and its completer until the kernel has answered.
//! * No pointer handed to the kernel leads into the `Op` itself, so it may move.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use io_uring::{opcode, squeue, types};

use crate::buf::{Buf, Data};
use crate::io::{Completer, IoError, IoErrorKind};
use crate::real::errno::io_error;

/// Bytes handed to the kernel at once; it transfers less than 2 GiB per call.
const TRANSFER_BYTES_MAX: usize = 1 << 30;

/// EINTR and EAGAIN in a row before an operation fails; a lower layer that says "again" this
/// often without progress is stuck.
const RETRIES_MAX: u32 = 1000;

/// An open file, socket or event source.
///
/// Not registered with the ring: the table would hold the file open, and with it the exclusive
/// claim on a device, for a while after its last user has gone.
pub(super) struct Handle {
    fd: OwnedFd,
    is_locked: bool,
    may_block: bool,
}

impl Handle {
    pub(super) fn new(fd: OwnedFd) -> Rc<Handle> {
        Rc::new(Handle { fd, is_locked: false, may_block: false })
    }

    /// A file with a lock, which goes with the last operation. The descriptor's end alone would
    /// not do: a worker of the ring may hold the file a moment longer than its answer is out. If it
    /// `may_block` those who hand requests over, the kernel's workers do that.
    pub(super) fn new_locked(fd: OwnedFd, may_block: bool) -> Rc<Handle> {
        Rc::new(Handle { fd, is_locked: true, may_block })
    }

    /// Another descriptor of the same open file, without a part in its lock.
    pub(super) fn try_clone(&self) -> std::io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    pub(super) fn raw(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.is_locked {
            // SAFETY: no pointers; the descriptor is open. There is nothing to do about an error.
            unsafe { libc::flock(self.raw(), libc::LOCK_UN) };
        }
    }
}

/// Values that arrive one by one (connections, signals). A future that waits for the next one
/// may be dropped at any time: what arrives later stays for the next caller.
pub(super) struct Mailbox<T> {
    arrived: RefCell<VecDeque<Result<T, IoError>>>,
    waiting: Cell<Option<Completer>>,
    in_flight: Cell<bool>,
}

impl<T> Mailbox<T> {
    pub(super) fn new() -> Rc<Mailbox<T>> {
        Rc::new(Mailbox {
            arrived: RefCell::default(),
            waiting: Cell::default(),
            in_flight: Cell::default(),
        })
    }

    pub(super) fn take(&self) -> Option<Result<T, IoError>> {
        self.arrived.borrow_mut().pop_front()
    }

    /// Makes `completer` the one to be told; true if an operation must be started.
    pub(super) fn wait(&self, completer: Completer) -> bool {
        self.waiting.set(Some(completer));
        !self.in_flight.replace(true)
    }

    fn deliver(&self, value: Result<T, IoError>) {
        self.in_flight.set(false);
        self.arrived.borrow_mut().push_back(value);
        if let Some(completer) = self.waiting.take() {
            completer.done(Ok(()));
        }
    }
}

/// Pieces of memory that are sent as if they were one, with what the kernel is told of them. What it
/// points to stays where it is until the message is dropped or sent anew.
pub(super) struct Message {
    parts: RefCell<Vec<Data>>,
    vectors: RefCell<Vec<libc::iovec>>,
    header: Cell<libc::msghdr>,
    len: Cell<usize>,
}

impl Message {
    pub(super) fn new() -> Rc<Message> {
        // SAFETY: a message header is plain integers and pointers; zeroes are a valid value.
        let header = unsafe { std::mem::zeroed() };
        let (parts, vectors) = Default::default();
        Rc::new(Message { parts, vectors, header: Cell::new(header), len: Cell::new(0) })
    }

    /// Takes over what is to be sent; nothing is being sent.
    pub(super) fn fill(&self, parts: &mut Vec<Data>) {
        self.len.set(parts.iter().map(|part| part.len()).sum());
        let mut own = self.parts.borrow_mut();
        own.clear();
        own.append(parts);
    }

    /// Points the header to all but the first `done` bytes.
    fn prepare(&self, mut done: usize) -> *const libc::msghdr {
        let mut vectors = self.vectors.borrow_mut();
        vectors.clear();
        for part in self.parts.borrow().iter() {
            let rest = &part[done.min(part.len())..];
            done -= part.len() - rest.len();
            if !rest.is_empty() {
                let iov_base = rest.as_ptr().cast_mut().cast();
                vectors.push(libc::iovec { iov_base, iov_len: rest.len() });
            }
        }
        let mut header = self.header.get();
        header.msg_iov = vectors.as_mut_ptr();
        header.msg_iovlen = vectors.len();
        self.header.set(header);
        self.header.as_ptr()
    }
}

/// What the kernel is asked to do.
pub(super) enum Kind {
    /// `align_bytes`: a shorter transfer that ends off this grid is the end of the file.
    Read {
        offset: u64,
        align_bytes: usize,
        buf: Buf,
    },
    Write {
        offset: u64,
        data: Data,
        /// Whether it ends only when it is durable.
        durable: bool,
    },
    Sync {
        data_only: bool,
    },
    Allocate {
        mode: i32,
        offset: u64,
        len: u64,
    },
    /// Fills `buf`, or, with a `count`, takes what one receive brings and stores its length.
    Receive {
        buf: Buf,
        count: Option<Rc<Cell<usize>>>,
    },
    Send {
        data: Data,
        more: bool,
    },
    SendParts {
        message: Rc<Message>,
    },
    Accept {
        mailbox: Rc<Mailbox<OwnedFd>>,
    },
    Signal {
        buf: Buf,
        mailbox: Rc<Mailbox<i32>>,
    },
    /// Reads the eventfd through which other threads ring, for ever.
    Bell {
        buf: Buf,
    },
}

/// An operation with its state.
pub(super) struct Op {
    handle: Rc<Handle>,
    kind: Kind,
    completer: Option<Completer>,
    progress: usize,
    retries: u32,
}

/// How long an answer must be.
#[derive(Clone, Copy, Debug)]
enum Rule {
    /// All bytes; less is continued. Zero is `end`.
    Whole { align_bytes: usize, end: IoErrorKind },
    /// Any count or descriptor is the answer.
    Value,
    /// One fixed-size item, all of it at once.
    Item,
    /// Each answer asks again, an error too: only the reactor's end ends it.
    Repeat,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Done(Result<usize, IoError>),
    /// Continue after this many more bytes.
    More(usize),
    /// The same again: nothing was done.
    Again,
}

/// Judges the kernel's answer `result` to a request for `asked` of `remaining` bytes.
fn judge(rule: Rule, remaining: usize, result: i32) -> Verdict {
    let Ok(count) = usize::try_from(result) else {
        if matches!(rule, Rule::Repeat) {
            return Verdict::Again;
        }
        return match result.saturating_neg() {
            libc::EINTR | libc::EAGAIN => Verdict::Again,
            errno => Verdict::Done(Err(io_error(errno))),
        };
    };
    match rule {
        Rule::Value => Verdict::Done(Ok(count)),
        Rule::Repeat => Verdict::Again,
        Rule::Item if count == remaining => Verdict::Done(Ok(count)),
        Rule::Item => Verdict::Done(Err(IoErrorKind::Other.into())),
        Rule::Whole { align_bytes, end } => {
            assert!(count <= remaining, "the kernel transferred {count} of {remaining} bytes");
            if count == remaining {
                Verdict::Done(Ok(count))
            } else if count == 0 || !count.is_multiple_of(align_bytes) {
                Verdict::Done(Err(end.into()))
            } else {
                Verdict::More(count)
            }
        }
    }
}

impl Op {
    pub(super) fn new(handle: Rc<Handle>, kind: Kind, completer: Option<Completer>) -> Op {
        Op { handle, kind, completer, progress: 0, retries: 0 }
    }

    fn rule(&self) -> Rule {
        match &self.kind {
            Kind::Read { align_bytes, .. } => {
                Rule::Whole { align_bytes: *align_bytes, end: IoErrorKind::Media }
            }
            Kind::Write { .. } => Rule::Whole { align_bytes: 1, end: IoErrorKind::Other },
            Kind::Receive { count: None, .. } | Kind::Send { .. } | Kind::SendParts { .. } => {
                Rule::Whole { align_bytes: 1, end: IoErrorKind::Vanished }
            }
            Kind::Receive { count: Some(_), .. }
            | Kind::Accept { .. }
            | Kind::Sync { .. }
            | Kind::Allocate { .. } => Rule::Value,
            Kind::Signal { .. } => Rule::Item,
            Kind::Bell { .. } => Rule::Repeat,
        }
    }

    /// Whether the operation may wait for something outside, so that the end must cancel it.
    pub(super) fn waits(&self) -> bool {
        !matches!(
            self.kind,
            Kind::Read { .. } | Kind::Write { .. } | Kind::Sync { .. } | Kind::Allocate { .. }
        )
    }

    /// Whether the operation may be handed over with others at the end of the turn: a client does not
    /// notice, while a device would stand idle.
    pub(super) fn can_wait(&self) -> bool {
        matches!(self.kind, Kind::Receive { .. } | Kind::Send { .. } | Kind::SendParts { .. })
    }

    fn remaining(&self) -> usize {
        let len = match &self.kind {
            Kind::Read { buf, .. }
            | Kind::Receive { buf, .. }
            | Kind::Signal { buf, .. }
            | Kind::Bell { buf } => buf.len(),
            Kind::Write { data, .. } | Kind::Send { data, .. } => data.len(),
            Kind::SendParts { message } => message.len.get(),
            Kind::Sync { .. } | Kind::Allocate { .. } | Kind::Accept { .. } => 0,
        };
        len - self.progress
    }

    /// The submission entry for what is left to do. It points into memory that `self` owns.
    pub(super) fn entry(&mut self) -> squeue::Entry {
        let len = self.remaining().min(TRANSFER_BYTES_MAX) as u32;
        let done = self.progress;
        let fd = types::Fd(self.handle.raw());
        let entry = match &mut self.kind {
            Kind::Read { offset, buf, .. } => {
                let (at, offset) = (buf[done..].as_mut_ptr(), *offset + done as u64);
                opcode::Read::new(fd, at, len).offset(offset).build()
            }
            Kind::Write { offset, data, durable } => {
                let (at, offset) = (data[done..].as_ptr(), *offset + done as u64);
                // One request to the device instead of a write and a flush that waits for its end.
                let flags = if *durable { libc::RWF_DSYNC } else { 0 };
                opcode::Write::new(fd, at, len).offset(offset).rw_flags(flags).build()
            }
            Kind::Sync { data_only } => {
                let flags = match data_only {
                    true => types::FsyncFlags::DATASYNC,
                    false => types::FsyncFlags::empty(),
                };
                opcode::Fsync::new(fd).flags(flags).build()
            }
            Kind::Allocate { mode, offset, len } => {
                opcode::Fallocate::new(fd, *len).offset(*offset).mode(*mode).build()
            }
            Kind::Receive { buf, count } => {
                let flags = if count.is_none() { libc::MSG_WAITALL } else { 0 };
                let at = buf[done..].as_mut_ptr();
                opcode::Recv::new(fd, at, len).flags(flags).build()
            }
            Kind::Send { data, more } => {
                let more = if *more { libc::MSG_MORE } else { 0 };
                let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL | more;
                let at = data[done..].as_ptr();
                opcode::Send::new(fd, at, len).flags(flags).build()
            }
            Kind::SendParts { message } => {
                let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
                opcode::SendMsg::new(fd, message.prepare(done)).flags(flags as u32).build()
            }
            Kind::Accept { .. } => {
                let null = std::ptr::null_mut();
                opcode::Accept::new(fd, null, null.cast()).flags(libc::SOCK_CLOEXEC).build()
            }
            Kind::Signal { buf, .. } | Kind::Bell { buf } => {
                opcode::Read::new(fd, buf.as_mut_ptr(), len).build()
            }
        };
        if self.handle.may_block { entry.flags(squeue::Flags::ASYNC) } else { entry }
    }

    /// Takes the kernel's answer in; `None` means that [`Op::entry`] must be submitted again.
    ///
    /// # Panics
    /// If the bell never works: no other thread could wake this one any more, so all that waits
    /// for such a wake would hang without a word.
    pub(super) fn advance(&mut self, result: i32) -> Option<Result<usize, IoError>> {
        match judge(self.rule(), self.remaining(), result) {
            Verdict::Done(result) => return Some(result),
            Verdict::More(count) => {
                self.progress += count;
                self.retries = 0;
            }
            Verdict::Again if result >= 0 => self.retries = 0,
            Verdict::Again => {
                self.retries += 1;
                if self.retries > RETRIES_MAX {
                    let error = std::io::Error::from_raw_os_error(result.saturating_neg());
                    let is_bell = matches!(self.kind, Kind::Bell { .. });
                    assert!(!is_bell, "the reactor's eventfd cannot be read: {error}");
                    return Some(Err(io_error(result.saturating_neg())));
                }
            }
        }
        None
    }

    /// Tells whoever waits.
    pub(super) fn finish(self, result: Result<usize, IoError>) {
        let (buf, result) = match self.kind {
            Kind::Read { buf, .. } => (Some(buf), result.map(|_| ())),
            Kind::Receive { buf, count: None } => (Some(buf), result.map(|_| ())),
            Kind::Receive { buf, count: Some(count) } => {
                (Some(buf), result.map(|length| count.set(length)))
            }
            Kind::Accept { mailbox } => {
                // SAFETY: the kernel made this descriptor for us just now; only we know it.
                let own = |fd: usize| unsafe { OwnedFd::from_raw_fd(fd as i32) };
                return mailbox.deliver(result.map(own));
            }
            Kind::Signal { buf, mailbox } => {
                // `ssi_signo` is the first field of the structure.
                let number = u32::from_ne_bytes([buf[0], buf[1], buf[2], buf[3]]);
                return mailbox.deliver(result.map(|_| number as i32));
            }
            Kind::SendParts { message } => {
                message.parts.borrow_mut().clear();
                (None, result.map(|_| ()))
            }
            _ => (None, result.map(|_| ())),
        };
        if let Some(completer) = self.completer {
            completer.complete(result, buf);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Rule = Rule::Whole { align_bytes: 512, end: IoErrorKind::Media };

    #[test]
    fn short_transfers_continue_and_the_end_of_the_file_is_an_error() {
        assert_eq!(judge(FILE, 4096, 4096), Verdict::Done(Ok(4096)));
        assert_eq!(judge(FILE, 4096, 1024), Verdict::More(1024));
        assert_eq!(judge(FILE, 4096, 0), Verdict::Done(Err(IoErrorKind::Media.into())));
        assert_eq!(judge(FILE, 4096, 100), Verdict::Done(Err(IoErrorKind::Media.into())));
        let stream = Rule::Whole { align_bytes: 1, end: IoErrorKind::Vanished };
        assert_eq!(judge(stream, 4096, 100), Verdict::More(100));
    }

    #[test]
    fn interruptions_are_retried_and_errors_are_not() {
        for rule in [FILE, Rule::Value, Rule::Item] {
            assert_eq!(judge(rule, 8, -libc::EINTR), Verdict::Again);
            assert_eq!(judge(rule, 8, -libc::EAGAIN), Verdict::Again);
            assert_eq!(judge(rule, 8, -libc::EIO), Verdict::Done(Err(io_error(libc::EIO))));
            assert!(matches!(judge(rule, 8, i32::MIN), Verdict::Done(Err(_))));
        }
    }

    #[test]
    fn an_answer_that_is_always_again_ends() {
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let mut op = Op::new(Handle::new(file), Kind::Sync { data_only: true }, None);
        let answers = (0..=RETRIES_MAX).filter_map(|_| op.advance(-libc::EAGAIN));
        assert_eq!(answers.collect::<Vec<_>>(), [Err(io_error(libc::EAGAIN))]);
    }

    fn bell() -> Op {
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        Op::new(Handle::new(file), Kind::Bell { buf: Buf::zeroed(8) }, None)
    }

    #[test]
    fn the_bell_is_read_again_after_any_error() {
        let mut bell = bell();
        for errno in [libc::EINTR, libc::ENOMEM, libc::EIO, libc::ECANCELED] {
            for _ in 0..RETRIES_MAX / 2 {
                assert_eq!(bell.advance(-errno), None);
            }
            assert_eq!(bell.advance(8), None);
        }
    }

    #[test]
    #[should_panic(expected = "eventfd cannot be read")]
    fn a_bell_that_never_works_is_not_borne_in_silence() {
        let mut bell = bell();
        (0..=RETRIES_MAX).for_each(|_| assert_eq!(bell.advance(-libc::EBADF), None));
    }

    #[test]
    #[should_panic(expected = "the kernel transferred")]
    fn more_than_was_asked_for_is_a_broken_contract() {
        judge(FILE, 512, 1024);
    }
}

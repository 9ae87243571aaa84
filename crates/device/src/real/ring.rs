//! The ring with its table of operations in flight.
//!
//! * Each slot owns its operation until the kernel's answer has arrived; a slot that waits for
//!   room in the submission queue stands in the backlog.
//! * Nothing here blocks but [`Ring::wait`].

use std::collections::VecDeque;
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};

use crate::real::op::Op;

/// Marks the answers to cancellations, which nobody waits for.
const CANCEL: u64 = u64::MAX;

/// Names an operation in flight; a late use after its end reaches nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key(u64);

impl Key {
    fn new(slot: usize, generation: u32) -> Key {
        Key(slot as u64 | u64::from(generation) << 32)
    }

    fn slot(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }
}

struct Slot {
    op: Option<Op>,
    generation: u32,
    /// Whether the kernel knows the operation, so that its memory must stay.
    submitted: bool,
}

/// An answer of the kernel: which operation, and its result.
pub(super) type Answer = (Key, i32);

/// See the head of the file.
pub(super) struct Ring {
    uring: IoUring,
    slots: Vec<Slot>,
    free: Vec<usize>,
    backlog: VecDeque<Key>,
    /// Operations whose cancellation waits for room in the submission queue.
    cancelling: Vec<Key>,
    submit_after: usize,
}

impl Ring {
    /// Sets up a ring, with the newest of the flags that the kernel knows.
    pub(super) fn new(entries: u32, submit_after: usize) -> std::io::Result<Ring> {
        let uring = build(entries)?;
        // Unknown before 5.15, where the kernel's own limit holds.
        uring.submitter().register_iowq_max_workers(&mut [WORKERS_MAX, 0]).ok();
        Ok(Ring {
            uring,
            slots: Vec::new(),
            free: Vec::new(),
            backlog: VecDeque::new(),
            cancelling: Vec::new(),
            submit_after: submit_after.max(1),
        })
    }

    /// Whether the kernel has what the reactor needs: waiting with a timeout (Linux 5.11), and
    /// answers that are never lost.
    pub(super) fn is_complete(&self) -> bool {
        let params = self.uring.params();
        params.is_feature_ext_arg() && params.is_feature_nodrop()
    }

    /// Takes `op` over and queues it.
    pub(super) fn push(&mut self, op: Op) -> Key {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { op: None, generation: 0, submitted: false });
            self.slots.len() - 1
        });
        let can_wait = op.can_wait();
        self.slots[slot].op = Some(op);
        let key = Key::new(slot, self.slots[slot].generation);
        self.backlog.push_back(key);
        self.fill();
        if !can_wait && self.queued() >= self.submit_after {
            self.submit();
        }
        key
    }

    /// Queues an operation again whose answer asked for more.
    pub(super) fn push_again(&mut self, key: Key) {
        self.slots[key.slot()].submitted = false;
        self.backlog.push_back(key);
        self.fill();
    }

    /// Ends an operation early: gives it back if the kernel does not know it yet, else asks the
    /// kernel, whose answer arrives as usual.
    pub(super) fn cancel(&mut self, key: Key) -> Option<Op> {
        let slot = &self.slots[key.slot()];
        if slot.op.is_none() || Key::new(key.slot(), slot.generation) != key {
            return None;
        }
        if !slot.submitted {
            self.backlog.retain(|waiting| *waiting != key);
            return Some(self.take(key));
        }
        if !self.cancelling.contains(&key) {
            self.cancelling.push(key);
        }
        self.fill();
        if !self.cancelling.is_empty() {
            self.submit();
        }
        None
    }

    /// Moves cancellations into the submission queue as far as there is room.
    fn fill_cancellations(&mut self) {
        let slots = &self.slots;
        let mut queue = self.uring.submission();
        self.cancelling.retain(|key| {
            let slot = &slots[key.slot()];
            let has_ended = slot.op.is_none() || Key::new(key.slot(), slot.generation) != *key;
            if has_ended {
                return false;
            }
            // One that is to be submitted again can be cancelled only after that.
            if !slot.submitted || queue.is_full() {
                return true;
            }
            let entry = opcode::AsyncCancel::new(key.0).build().user_data(CANCEL);
            // SAFETY: a cancellation points to no memory.
            let pushed = unsafe { queue.push(&entry) };
            pushed.is_err()
        });
    }

    /// Moves cancellations and the backlog into the submission queue as far as there is room.
    fn fill(&mut self) {
        if !self.cancelling.is_empty() {
            self.fill_cancellations();
        }
        let mut queue = self.uring.submission();
        while let Some(key) = self.backlog.front() {
            if queue.is_full() {
                return;
            }
            let slot = &mut self.slots[key.slot()];
            if let Some(op) = &mut slot.op {
                let entry: squeue::Entry = op.entry().user_data(key.0);
                // SAFETY: the entry points to memory and a file that the slot owns until
                // `take`, which is called only after the answer or before the submission.
                let pushed = unsafe { queue.push(&entry) };
                assert!(pushed.is_ok(), "the queue had room");
                slot.submitted = true;
            }
            self.backlog.pop_front();
        }
    }

    fn queued(&mut self) -> usize {
        self.uring.submission().len()
    }

    /// Hands queued entries to the kernel. What it does not take now (no memory, answers not yet
    /// reaped) stays queued for the next turn.
    pub(super) fn submit(&mut self) {
        let result = self.uring.submit();
        self.check(result);
        self.fill();
    }

    /// Submits what is queued and lets the kernel post answers, without waiting.
    pub(super) fn turn(&mut self) {
        let queue = self.uring.submission();
        if !queue.is_empty() || queue.taskrun() || queue.cq_overflow() {
            drop(queue);
            self.submit();
        }
    }

    /// Submits what is queued and waits for an answer, at most for `timeout`.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) {
        // What found the queue full must not wait for an answer that only it would bring.
        while !self.backlog.is_empty() {
            let before = self.backlog.len();
            self.submit();
            if self.backlog.len() == before {
                break;
            }
        }
        if self.queued() == 0 && !self.uring.completion().is_empty() {
            return;
        }
        let result = match timeout {
            None => self.uring.submit_and_wait(1),
            Some(timeout) => {
                let time = types::Timespec::from(timeout);
                let args = types::SubmitArgs::new().timespec(&time);
                self.uring.submitter().submit_with_args(1, &args)
            }
        };
        self.check(result);
        self.fill();
    }

    fn check(&self, result: std::io::Result<usize>) {
        let Err(error) = result else { return };
        let transient =
            [libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ETIME, libc::ENOMEM, libc::EBADR];
        let errno = error.raw_os_error().unwrap_or(0);
        assert!(transient.contains(&errno), "io_uring_enter on our own ring: {error}");
    }

    /// Moves all answers that have arrived into `answers`.
    pub(super) fn reap(&mut self, answers: &mut Vec<Answer>) {
        for entry in self.uring.completion() {
            if entry.user_data() != CANCEL {
                answers.push((Key(entry.user_data()), entry.result()));
            }
        }
    }

    /// Gives the kernel's answer to its operation; `Some` if that has ended.
    pub(super) fn advance(
        &mut self,
        (key, result): Answer,
        closing: bool,
    ) -> Option<(Op, Result<usize, crate::io::IoError>)> {
        let slot = &mut self.slots[key.slot()];
        let op = slot.op.as_mut().expect("the kernel answers each operation once");
        match op.advance(result) {
            Some(result) => Some((self.take(key), result)),
            None if closing => Some((self.take(key), Err(vanished()))),
            None => {
                self.push_again(key);
                None
            }
        }
    }

    fn take(&mut self, key: Key) -> Op {
        let slot = &mut self.slots[key.slot()];
        slot.generation = slot.generation.wrapping_add(1) & (u32::MAX >> 1);
        slot.submitted = false;
        self.free.push(key.slot());
        slot.op.take().expect("a slot in use has an operation")
    }

    /// Number of operations that have not ended.
    pub(super) fn inflight_count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes the operations that the kernel does not know and cancels those that may wait long.
    pub(super) fn cancel_all(&mut self) -> Vec<Op> {
        self.submit();
        self.backlog.clear();
        let live: Vec<(Key, bool)> = self
            .slots
            .iter()
            .enumerate()
            .filter_map(|(at, slot)| {
                slot.op.as_ref().map(|_| (Key::new(at, slot.generation), slot.submitted))
            })
            .collect();
        let mut untouched = Vec::new();
        for (key, submitted) in live {
            if !submitted || self.slots[key.slot()].op.as_ref().is_some_and(Op::waits) {
                untouched.extend(self.cancel(key));
            }
        }
        untouched
    }
}

/// The error of an operation that ends with the reactor.
pub(super) fn vanished() -> crate::io::IoError {
    crate::io::IoErrorKind::Vanished.into()
}

/// Threads of the kernel that wait in place of the ring's: for each flush, for each request that a device's full
/// queue does not take, and for each one of a file that may block. By itself the kernel has four to a core: as
/// many requests of one origin that hangs would keep each flush of all others. Now that takes several times
/// the deepest queue of destaging. They are made when they are needed.
const WORKERS_MAX: u32 = 4096;

/// One thread submits and reaps, and runs the kernel's deferred work when it asks for answers:
/// DEFER_TASKRUN (6.1), then COOP_TASKRUN (5.19), then neither.
fn build(entries: u32) -> std::io::Result<IoUring> {
    let mut deferred = IoUring::builder();
    deferred.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    let mut cooperative = IoUring::builder();
    cooperative.setup_coop_taskrun().setup_taskrun_flag();
    let mut plain = IoUring::builder();
    let mut outcome = Err(std::io::Error::from_raw_os_error(libc::EINVAL));
    for builder in [deferred.setup_submit_all(), cooperative.setup_submit_all(), &mut plain] {
        builder.dontfork().setup_clamp().setup_cqsize(entries.saturating_mul(4));
        outcome = builder.build(entries);
        let unknown_flag =
            outcome.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL));
        if !unknown_flag {
            break;
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd, OwnedFd};

    use super::*;
    use crate::buf::Buf;
    use crate::real::op::{Handle, Kind};

    /// A read that waits until it is cancelled.
    fn endless() -> Op {
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: the descriptor is new and nobody else has it.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        Op::new(Handle::new(event), Kind::Bell { buf: Buf::zeroed(8) }, None)
    }

    #[test]
    fn a_cancellation_that_finds_the_queue_full_is_made_later() {
        let mut ring = Ring::new(2, 100).unwrap();
        let keys: Vec<Key> = (0..5).map(|_| ring.push(endless())).collect();
        while !ring.backlog.is_empty() {
            ring.submit();
        }
        // The kernel takes nothing meanwhile, as when it waits for its answers to be reaped.
        ring.cancelling.extend(&keys);
        ring.fill();
        assert!(ring.uring.submission().is_full() && ring.cancelling.len() >= 2);
        let mut answers = Vec::new();
        for _ in 0..20 {
            if answers.len() < keys.len() {
                ring.wait(Some(Duration::from_millis(100)));
                ring.reap(&mut answers);
            }
        }
        assert_eq!(answers.len(), keys.len());
        for (key, result) in answers {
            assert_eq!(result, -libc::ECANCELED);
            assert!(ring.advance((key, result), true).is_some());
        }
        assert!(ring.cancelling.is_empty() && ring.inflight_count() == 0);
    }
}

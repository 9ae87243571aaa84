//! How much of the log's queue one volume may fill while others write, too.
//!
//! * The queue is served in order, and an SSD takes what it is given: a client with a hundred long writes
//!   under way would make each short one of another volume wait behind all of them. So while more than
//!   one volume writes, each has at most its share of [`SERVICE_BYTES_MAX`] in the log, and at least one
//!   append; what is more waits where it stops nobody else.
//! * Of what they share, each has a part by the weight of its priority.
//! * A volume that writes alone is not asked.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use forebay_device::Nanos;
use forebay_device::io::{self, Completer};

use crate::core::Core;
use crate::limits::{SERVICE_BYTES_MAX, SERVICE_BYTES_MIN, SERVICE_LOOK, SERVICE_MEMORY};
use crate::volume::VolumeState;

/// Of the pool: how many volumes write at present.
#[derive(Default)]
pub(crate) struct Writing {
    volumes: Cell<u64>,
    /// Their weights together.
    weights: Cell<u64>,
    counted_at: Cell<Nanos>,
}

impl Writing {
    /// Whether more than one volume writes, as of late.
    pub(crate) fn is_shared(&self) -> bool {
        self.volumes.get() > 1
    }
}

/// Of a volume: what it has in the log.
#[derive(Default)]
pub(crate) struct InService {
    bytes: Cell<u64>,
    wrote_at: Cell<Option<Nanos>>,
    /// What it may have.
    share: Cell<u64>,
    /// Who waits for a part of it, and for how much, first come, first served.
    waiters: RefCell<VecDeque<(u64, Completer)>>,
}

/// Bytes that a volume of this weight may have in the log while so many write, `weights` together; `None`
/// for one alone.
fn share_among(volumes: u64, weights: u64, weight: u64) -> Option<u64> {
    (volumes > 1).then(|| (SERVICE_BYTES_MAX * weight / weights.max(weight)).max(SERVICE_BYTES_MIN))
}

impl InService {
    /// Waits until the volume has room for `bytes` more in its share.
    pub(crate) async fn serve(&self, share: u64, bytes: u64) -> Served<'_> {
        self.share.set(share);
        if self.waiters.borrow().is_empty() && self.fits(bytes) {
            self.bytes.set(self.bytes.get() + bytes);
        } else {
            let (turn, io) = io::pair();
            self.waiters.borrow_mut().push_back((bytes, turn));
            io.await.result.ok();
        }
        Served { service: self, bytes }
    }

    fn fits(&self, bytes: u64) -> bool {
        self.bytes.get() == 0 || self.bytes.get() + bytes <= self.share.get()
    }
}

/// A part of a volume's share, until dropped.
pub(crate) struct Served<'a> {
    service: &'a InService,
    bytes: u64,
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        self.service.bytes.set(self.service.bytes.get() - self.bytes);
        let mut waiters = self.service.waiters.borrow_mut();
        while let Some((bytes, turn)) = waiters.pop_front_if(|(bytes, _)| self.service.fits(*bytes))
        {
            if !turn.is_abandoned() {
                self.service.bytes.set(self.service.bytes.get() + bytes);
                turn.done(Ok(()));
            }
        }
    }
}

impl Core {
    /// Bytes that a volume which is about to write may have in the log; `None` while no other writes.
    pub(crate) fn share_of(&self, v: &VolumeState) -> Option<u64> {
        let now = v.last_request.get();
        v.service.wrote_at.set(Some(now));
        if now.saturating_sub(self.writing.counted_at.get()) >= SERVICE_LOOK {
            let volumes = self.volumes.borrow();
            let writes = |v: &VolumeState| {
                v.service.bytes.get() > 0
                    || v.service.wrote_at.get().is_some_and(|at| at + SERVICE_MEMORY >= now)
            };
            let weights = volumes.values().filter(|v| writes(v)).map(|v| v.flow.weight());
            let (count, sum) = weights.fold((0, 0), |(count, sum), one| (count + 1, sum + one));
            self.writing.volumes.set(count);
            self.writing.weights.set(sum);
            self.writing.counted_at.set(now);
        }
        share_among(self.writing.volumes.get(), self.writing.weights.get(), v.flow.weight())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn the_queue_is_shared_and_nobodys_share_is_nothing() {
        assert_eq!(share_among(1, 2, 2), None);
        assert_eq!(share_among(2, 4, 2), Some(SERVICE_BYTES_MAX / 2));
        assert_eq!(share_among(2, 5, 4), Some(SERVICE_BYTES_MAX * 4 / 5));
        assert_eq!(share_among(1000, 2000, 2), Some(SERVICE_BYTES_MIN));
    }

    #[test]
    fn what_is_beyond_the_share_waits_for_what_is_before_it() {
        let service = InService::default();
        let first = poll(pin!(service.serve(64, 48))).unwrap();
        let mut second = pin!(service.serve(64, 32));
        assert!(poll(second.as_mut()).is_none());
        // It would fit, and comes later.
        let mut third = pin!(service.serve(64, 16));
        assert!(poll(third.as_mut()).is_none());
        drop(first);
        let second = poll(second.as_mut()).unwrap();
        let third = poll(third.as_mut()).unwrap();
        assert_eq!(service.bytes.get(), 48);
        drop((second, third));
        assert_eq!(service.bytes.get(), 0);
    }

    #[test]
    fn one_append_is_always_served_however_long() {
        let service = InService::default();
        let long = poll(pin!(service.serve(16, 100))).unwrap();
        let mut other = pin!(service.serve(16, 100));
        assert!(poll(other.as_mut()).is_none());
        drop(long);
        assert!(poll(other.as_mut()).is_some());
    }

    #[test]
    fn who_gave_up_takes_nothing() {
        let service = InService::default();
        let first = poll(pin!(service.serve(16, 16))).unwrap();
        {
            let mut gone = pin!(service.serve(16, 16));
            assert!(poll(gone.as_mut()).is_none());
        }
        let mut next = pin!(service.serve(16, 8));
        assert!(poll(next.as_mut()).is_none());
        drop(first);
        assert!(poll(next.as_mut()).is_some());
    }
}

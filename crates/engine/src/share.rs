//! How much of the log's queue one volume may fill while others write, too.
//!
//! * The queue is served in order, and an SSD takes what it is given: a client with a hundred long writes
//!   under way would make each short one of another volume wait behind all of them. So while more than
//!   one volume writes, each has at most its share of [`SERVICE_BYTES_MAX`] in the log, and at least one
//!   append; what is more waits where it stops nobody else.
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
    counted_at: Cell<Nanos>,
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

impl InService {
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
            let count = volumes.values().filter(|v| writes(v)).count();
            self.writing.volumes.set(count as u64);
            self.writing.counted_at.set(now);
        }
        let volumes = self.writing.volumes.get();
        (volumes > 1).then(|| (SERVICE_BYTES_MAX / volumes).max(SERVICE_BYTES_MIN))
    }

    /// Waits until a volume has room for `bytes` more in its share.
    pub(crate) async fn serve<'a>(&self, v: &'a VolumeState, share: u64, bytes: u64) -> Served<'a> {
        let service = &v.service;
        service.share.set(share);
        if service.waiters.borrow().is_empty() && service.fits(bytes) {
            service.bytes.set(service.bytes.get() + bytes);
        } else {
            let (turn, io) = io::pair();
            service.waiters.borrow_mut().push_back((bytes, turn));
            io.await.result.ok();
        }
        Served { service, bytes }
    }
}

//! How much one connection has in progress.

use std::cell::Cell;

use crate::nbd::limits::{BYTES_INFLIGHT_MAX, REQUESTS_INFLIGHT_MAX};
use crate::nbd::signal::Waiters;

/// Counts requests and their memory from before the payload is received until the reply is
/// sent or discarded.
#[derive(Default)]
pub(crate) struct Permits {
    requests: Cell<usize>,
    bytes: Cell<u64>,
    waiters: Waiters,
}

impl Permits {
    /// Waits for room and takes it.
    pub(crate) async fn acquire(&self, bytes: u64) {
        self.waiters.until(|| self.has_room(bytes)).await;
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.requests.get() < REQUESTS_INFLIGHT_MAX
            && self.bytes.get() + bytes <= BYTES_INFLIGHT_MAX
    }

    /// Gives back what `requests` acquisitions took together.
    pub(crate) fn release(&self, requests: usize, bytes: u64) {
        assert!(
            requests <= self.requests.get() && bytes <= self.bytes.get(),
            "only what was acquired is released"
        );
        self.requests.set(self.requests.get() - requests);
        self.bytes.set(self.bytes.get() - bytes);
        self.waiters.wake_all();
    }

    /// Waits until everything is given back.
    pub(crate) async fn drained(&self) {
        self.waiters.until(|| self.requests.get() == 0).await;
    }
}

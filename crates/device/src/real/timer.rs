//! Deadlines in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::io::Completer;
use crate::runtime::Nanos;

/// Timers below which nobody looks for abandoned ones; their memory is a few tens of KiB.
const SWEEP_COUNT_MIN: usize = 1024;

struct Timer {
    /// Deadline, then order of arrival.
    key: (Nanos, u64),
    completer: Completer,
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Timer {}

/// Completers ordered by deadline; equal deadlines keep their order of arrival.
#[derive(Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<Timer>>,
    arrivals: u64,
    sweep_count: usize,
}

impl Timers {
    pub(super) fn add(&mut self, deadline: Nanos, completer: Completer) {
        // Timeouts that were not needed leave abandoned timers: swept when the heap has doubled.
        if self.heap.len() >= self.sweep_count.max(SWEEP_COUNT_MIN) {
            self.heap.retain(|Reverse(timer)| !timer.completer.is_abandoned());
            self.sweep_count = self.heap.len() * 2;
        }
        self.arrivals += 1;
        self.heap.push(Reverse(Timer { key: (deadline, self.arrivals), completer }));
    }

    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse(timer)| timer.key.0)
    }

    pub(super) fn pop_due(&mut self, now: Nanos) -> Option<Completer> {
        let due = self.next_deadline()? <= now;
        due.then(|| self.heap.pop()).flatten().map(|Reverse(timer)| timer.completer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::block_on_ready;
    use crate::io::pair;

    #[test]
    fn timers_come_by_deadline_then_by_arrival() {
        let mut timers = Timers::default();
        let mut waits = Vec::new();
        for deadline in [30, 10, 20, 10] {
            let (completer, io) = pair();
            timers.add(deadline, completer);
            waits.push(Some(io));
        }
        assert!(timers.pop_due(9).is_none());
        for expected in [1, 3, 2, 0] {
            timers.pop_due(30).expect("due").done(Ok(()));
            let io = waits[expected].take().expect("each fires once");
            assert_eq!(block_on_ready(io.done()), Ok(()), "number {expected} is next");
        }
        assert_eq!(timers.next_deadline(), None);
    }

    #[test]
    fn abandoned_timers_do_not_pile_up() {
        let mut timers = Timers::default();
        for _ in 0..10 * SWEEP_COUNT_MIN {
            let (completer, io) = pair();
            timers.add(1, completer);
            drop(io);
        }
        assert!(timers.heap.len() <= SWEEP_COUNT_MIN);
    }
}

//! Writes of an origin, and stripes of it that are read and written back, keep apart.
//!
//! * A write that meets a stripe on its way back waits until that has ended.
//! * A stripe that meets a write on its way is not read.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use crate::planted::{self, Bug};
use crate::wait::WaitQueue;

/// Byte ranges of an origin that are on their way.
#[derive(Default)]
pub(super) struct Apart {
    writes: RefCell<Vec<(u64, Range<u64>)>>,
    next_ticket: Cell<u64>,
    stripes: RefCell<Vec<Range<u64>>>,
    /// Woken when a stripe has ended.
    ended: WaitQueue,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// A write on its way, until dropped.
pub(super) struct Writing<'a>(&'a Apart, u64);

/// A stripe on its way there and back, until dropped.
pub(super) struct Rewriting<'a>(&'a Apart, Range<u64>);

impl Apart {
    /// Waits until no stripe is on its way that has some of these bytes.
    pub(super) async fn write(&self, bytes: Range<u64>) -> Writing<'_> {
        let meets = || self.stripes.borrow().iter().any(|stripe| overlap(stripe, &bytes));
        if meets() && !planted::is(Bug::WholeStripeUnguarded) {
            planted::seen("write waits for a whole stripe");
            self.ended.until(|| !meets()).await;
        }
        let ticket = self.next_ticket.replace(self.next_ticket.get() + 1);
        self.writes.borrow_mut().push((ticket, bytes));
        Writing(self, ticket)
    }

    /// Keeps writes away from these bytes; `None` if one is on its way there.
    pub(super) fn rewrite(&self, bytes: Range<u64>) -> Option<Rewriting<'_>> {
        let busy = self.writes.borrow().iter().any(|(_, write)| overlap(write, &bytes));
        if busy && !planted::is(Bug::WholeStripeUnguarded) {
            return None;
        }
        self.stripes.borrow_mut().push(bytes.clone());
        Some(Rewriting(self, bytes))
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut writes = self.0.writes.borrow_mut();
        if let Some(own) = writes.iter().position(|(ticket, _)| *ticket == self.1) {
            writes.swap_remove(own);
        }
    }
}

impl Drop for Rewriting<'_> {
    fn drop(&mut self) {
        let mut stripes = self.0.stripes.borrow_mut();
        if let Some(own) = stripes.iter().position(|stripe| *stripe == self.1) {
            stripes.swap_remove(own);
        }
        drop(stripes);
        self.0.ended.wake_all();
    }
}

//! Order among overlapping requests.
//!
//! * Everything that changes what a block's newest version is (write, trim, direct write) holds
//!   the range lock of its blocks from before it looks at the index until its version is
//!   published; overlapping holders are served first come, first served. So log order, index order
//!   and origin order agree (INV-9).
//! * A population registers the blocks it read as missing. Whoever takes the range lock of any of
//!   them afterwards voids the registration, and a voided population is not published (INV-10).
//! * Nor does anybody who takes the lock leave a frame of RAM behind that could be read (INV-37).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::ids::VolumeId;
use crate::ram::Ram;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Range {
    volume: VolumeId,
    start: u64,
    end: u64,
}

impl Range {
    fn overlaps(&self, other: &Range) -> bool {
        self.volume == other.volume && self.start < other.end && other.start < self.end
    }
}

struct Holder {
    ticket: u64,
    range: Range,
    waker: Option<Waker>,
}

/// A population between its miss and its publication.
pub(crate) struct Population {
    range: Range,
    /// Whether RAM lets it go: the origin was read for it some time ago.
    pub from_ram: bool,
    valid: Cell<bool>,
    appending: Cell<bool>,
    /// Entries of it that are still on their way into the log.
    parts: Cell<u32>,
}

impl Population {
    /// The volume it belongs to.
    pub(crate) fn volume(&self) -> VolumeId {
        self.range.volume
    }

    /// Its first block.
    pub(crate) fn block(&self) -> u64 {
        self.range.start
    }

    /// Blocks of it, those that were cached all along included.
    pub(crate) fn count(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether nothing has touched its blocks since they were found missing.
    pub(crate) fn is_valid(&self) -> bool {
        self.valid.get()
    }

    /// From here on its entries, `parts` of them, may be found in the log.
    pub(crate) fn begin_append(&self, parts: u32) {
        self.appending.set(true);
        self.parts.set(parts);
    }

    /// Whether its entries may be found in the log.
    pub(crate) fn is_appending(&self) -> bool {
        self.appending.get()
    }

    /// Notes that one entry of it has ended; whether it was the last one.
    pub(crate) fn end_part(&self) -> bool {
        self.parts.set(self.parts.get() - 1);
        self.parts.get() == 0
    }
}

/// Where nobody is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// At once, and up to this block.
    Until(u64),
    /// Not before this one.
    From(u64),
}

/// The range locks and populations of one shard.
#[derive(Default)]
pub(crate) struct RangeLocks {
    holders: RefCell<Vec<Holder>>,
    next_ticket: Cell<u64>,
    populations: RefCell<Vec<Rc<Population>>>,
}

/// Holds a range until dropped.
pub(crate) struct RangeGuard<'a> {
    locks: &'a RangeLocks,
    ticket: u64,
}

impl RangeLocks {
    /// Waits for every earlier holder of an overlapping range, then holds `block..block+count`; what
    /// `ram` has of it is stale from then on.
    pub(crate) async fn lock(
        &self,
        ram: &RefCell<Ram>,
        volume: VolumeId,
        block: u64,
        count: u64,
    ) -> RangeGuard<'_> {
        let range = Range { volume, start: block, end: block + count };
        let ticket = self.next_ticket.replace(self.next_ticket.get() + 1);
        self.holders.borrow_mut().push(Holder { ticket, range, waker: None });
        let guard = RangeGuard { locks: self, ticket };
        std::future::poll_fn(|cx| {
            let mut holders = self.holders.borrow_mut();
            let own = holders.iter().position(|h| h.ticket == ticket).unwrap_or(0);
            let skip = crate::planted::is(crate::planted::Bug::RangeLockSkipped);
            if holders[..own].iter().any(|h| h.range.overlaps(&range)) && !skip {
                crate::planted::seen("range lock waited");
                holders[own].waker = Some(cx.waker().clone());
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
        ram.borrow_mut().void(volume, block, count);
        for population in self.populations.borrow().iter() {
            if population.range.overlaps(&range) {
                population.valid.set(false);
            }
        }
        guard
    }

    /// Registers a population of blocks that were just found missing; `None` if a holder or
    /// another population is at work on them.
    pub(crate) fn populate(
        &self,
        volume: VolumeId,
        block: u64,
        count: u64,
        from_ram: bool,
    ) -> Option<Rc<Population>> {
        let range = Range { volume, start: block, end: block + count };
        let busy = self.is_held(volume, block, count)
            || self.populations.borrow().iter().any(|p| p.range.overlaps(&range));
        if busy {
            return None;
        }
        let population = Rc::new(Population {
            range,
            from_ram,
            valid: Cell::new(true),
            appending: Cell::new(false),
            parts: Cell::new(0),
        });
        self.populations.borrow_mut().push(Rc::clone(&population));
        Some(population)
    }

    /// Whether somebody holds any of these blocks, or waits to.
    pub(crate) fn is_held(&self, volume: VolumeId, block: u64, count: u64) -> bool {
        let range = Range { volume, start: block, end: block + count };
        self.holders.borrow().iter().any(|h| h.range.overlaps(&range))
    }

    /// Where nobody holds or populates any of these blocks, as seen from the first.
    pub(crate) fn idle_from(&self, volume: VolumeId, block: u64, count: u64) -> Idle {
        let range = Range { volume, start: block, end: block + count };
        let (holders, populations) = (self.holders.borrow(), self.populations.borrow());
        let busy = holders.iter().map(|h| h.range).chain(populations.iter().map(|p| p.range));
        let first = busy.filter(|busy| busy.overlaps(&range)).min_by_key(|busy| busy.start);
        match first {
            Some(busy) if busy.start <= block => Idle::From(busy.end),
            Some(busy) => Idle::Until(busy.start),
            None => Idle::Until(range.end),
        }
    }

    /// Whether a population's record of any of these blocks may reach the log.
    pub(crate) fn is_populating(&self, volume: VolumeId, block: u64, count: u64) -> bool {
        let range = Range { volume, start: block, end: block + count };
        self.populations.borrow().iter().any(|p| p.appending.get() && p.range.overlaps(&range))
    }

    /// Ends a population, published or not.
    pub(crate) fn end_population(&self, population: &Rc<Population>) {
        self.populations.borrow_mut().retain(|p| !Rc::ptr_eq(p, population));
    }

    /// Whether anything is held or populating (for tests and for stopping).
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.holders.borrow().is_empty() && self.populations.borrow().is_empty()
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut holders = self.locks.holders.borrow_mut();
        let Some(own) = holders.iter().position(|h| h.ticket == self.ticket) else { return };
        let range = holders.remove(own).range;
        for holder in holders.iter_mut().filter(|h| h.range.overlaps(&range)) {
            if let Some(waker) = holder.waker.take() {
                waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_device::executor::{TaskSet, block_on_ready};

    const V: VolumeId = VolumeId(1);

    #[test]
    fn overlapping_holders_take_turns_in_order_of_arrival() {
        let locks = Rc::new(RangeLocks::default());
        let set = TaskSet::new(Box::new(|| ()));
        let order = Rc::new(RefCell::new(Vec::new()));
        let first = block_on_ready(locks.lock(&RefCell::default(), V, 0, 4));
        for (name, block) in [("b", 3), ("c", 2), ("d", 8)] {
            let (locks, order) = (Rc::clone(&locks), Rc::clone(&order));
            set.spawn(Box::pin(async move {
                let _guard = locks.lock(&RefCell::default(), V, block, 2).await;
                order.borrow_mut().push(name);
            }));
        }
        while set.run_one(|_| 0) {}
        assert_eq!(*order.borrow(), ["d"]);
        drop(first);
        while set.run_one(|_| 0) {}
        assert_eq!(*order.borrow(), ["d", "b", "c"]);
        assert!(locks.is_idle());
    }

    #[test]
    fn a_writer_voids_a_population() {
        let locks = RangeLocks::default();
        let population = locks.populate(V, 0, 16, false).unwrap();
        assert!(locks.populate(V, 8, 1, false).is_none(), "one population at a time");
        assert!(!locks.is_populating(V, 3, 1));
        population.begin_append(1);
        assert!(locks.is_populating(V, 3, 1));
        let idle = |block, count| locks.idle_from(V, block, count);
        assert_eq!((idle(16, 4), idle(3, 40)), (Idle::Until(20), Idle::From(16)));
        drop(block_on_ready(locks.lock(&RefCell::default(), V, 16, 1)));
        assert!(population.is_valid());
        let guard = block_on_ready(locks.lock(&RefCell::default(), V, 15, 1));
        assert!(!population.is_valid());
        locks.end_population(&population);
        assert!(locks.populate(V, 15, 1, false).is_none(), "a writer is at work");
        assert_eq!(locks.idle_from(V, 3, 40), Idle::Until(15));
        drop(guard);
        assert!(locks.populate(V, 15, 1, false).is_some());
    }
}

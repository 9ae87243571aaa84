//! The advisor of a volume, while it has one: it sees what clients read and write, wherever that is served from.
//!
//! TRIM, WRITE ZEROES and prefetch are not seen: they need no room in the cache, or say nothing about what will be asked for.

use std::cell::{Cell, RefCell};

use crate::ids::BLOCK_BYTES;
use crate::policy::{Access, Advisor, Day};
use crate::read::blocks_of;
use crate::volume::Volume;

/// A volume's advisor. Without one a request pays for a look at `is_on`.
#[derive(Default)]
pub(crate) struct Advised {
    is_on: Cell<bool>,
    advisor: RefCell<Option<Advisor>>,
}

impl Advised {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.get()
    }

    fn set(&self, advisor: Option<Advisor>) -> Option<Advisor> {
        self.is_on.set(advisor.is_some());
        self.advisor.replace(advisor)
    }
}

impl Volume {
    /// Tells the advisor of a request, which may turn out to be none.
    // Apart from what every hit goes through.
    #[cold]
    pub(crate) fn advise(&self, offset: u64, len: u64, access: Access) {
        let cached_end = self.state.blocks() * BLOCK_BYTES;
        let is_there = offset.checked_add(len).is_some_and(|end| end <= self.state.size_bytes());
        if len == 0 || !is_there || offset >= cached_end {
            return;
        }
        let (first, count) = blocks_of(offset, len.min(cached_end - offset));
        if let Some(advisor) = &mut *self.state.advised.advisor.borrow_mut() {
            advisor.access(first, count.into(), len, access);
        }
    }

    /// Has the volume watched from now on, by one who knows what was seen on earlier days; the last of them goes on.
    pub fn start_advisor(&self, seen: &[Day]) {
        self.state.advised.set(Some(Advisor::new(self.state.id, seen)));
    }

    /// Ends that.
    pub fn stop_advisor(&self) {
        self.state.advised.set(None);
    }

    /// Begins another day for the advisor; false if it has none, or it was the last one.
    pub fn begin_advisor_day(&self) -> bool {
        self.state.advised.advisor.borrow_mut().as_mut().is_some_and(Advisor::begin_day)
    }

    /// What the advisor has seen, day by day; `None` if there is none.
    pub fn advisor_days(&self) -> Option<Vec<Day>> {
        self.state.advised.advisor.borrow().as_ref().map(|advisor| advisor.days().to_vec())
    }
}

//! How many are at something.

use std::cell::Cell;

/// How many there are of something at present.
#[derive(Default)]
pub(crate) struct Count(Cell<u32>);

impl Count {
    pub(crate) fn get(&self) -> u32 {
        self.0.get()
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.get() == 0
    }

    /// One more, until the guard is dropped.
    pub(crate) fn guard(&self) -> Counted<'_> {
        self.enter();
        Counted(self)
    }

    /// One more, until it [leaves](Count::leave): where no guard can be held, as in a task that owns what the count is in.
    pub(crate) fn enter(&self) {
        self.0.set(self.0.get() + 1);
    }

    pub(crate) fn leave(&self) {
        self.0.set(self.0.get() - 1);
    }
}

/// One of those that a [`Count`] counts, until it is dropped.
pub(crate) struct Counted<'a>(&'a Count);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_counted_leaves_with_the_guard() {
        let count = Count::default();
        let (first, second) = (count.guard(), count.guard());
        drop(first);
        assert_eq!(count.get(), 1);
        drop(second);
        assert!(count.is_zero());
    }
}

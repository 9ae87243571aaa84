//! Where a pool is between the beginning of its start and its end.
//!
//! That a pool has latched is told apart from it: it may do so in any phase, and goes through the rest of them then without
//! writing anything.

use std::cell::Cell;

use crate::core::Core;

/// A phase in the life of a pool; they come in this order.
///
/// ```text
/// Recovering <---> Restoring
///     |
///     v
///  Serving ---> Stopping ---> Settled ---> Closing
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// What is on the members is read, and made one again; the whole reserve may be used for it.
    #[default]
    Recovering,
    /// A part of that: what was open at a crash is appended again, for which room was left.
    Restoring,
    /// Clients are served.
    Serving,
    /// No request begins. Destaging and housekeeping go on until the last one has found its room.
    Stopping,
    /// No request is under way: nothing is destaged any more, and nothing needs more room.
    Settled,
    /// Nothing is appended any more but the last images.
    Closing,
}

impl Phase {
    fn may_become(self, next: Phase) -> bool {
        use Phase::{Closing, Recovering, Restoring, Serving, Settled, Stopping};
        match self {
            Recovering => matches!(next, Restoring | Serving),
            Restoring => matches!(next, Recovering),
            Serving => matches!(next, Stopping),
            Stopping => matches!(next, Settled),
            Settled => matches!(next, Closing),
            Closing => false,
        }
    }
}

/// The phase that a pool is in.
#[derive(Debug, Default)]
pub(crate) struct Life(Cell<Phase>);

impl Life {
    pub(crate) fn phase(&self) -> Phase {
        self.0.get()
    }

    /// Moves on in the diagram of [`Phase`].
    ///
    /// # Panics
    /// If the diagram has no such arrow.
    pub(crate) fn transition(&self, next: Phase) {
        let now = self.phase();
        assert!(now.may_become(next), "the pool: {now:?} to {next:?}");
        self.0.set(next);
    }
}

impl Core {
    /// Whether the start has not ended.
    pub(crate) fn is_recovering(&self) -> bool {
        self.life.phase() < Phase::Serving
    }

    /// Whether the pool has been asked to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.life.phase() >= Phase::Stopping
    }

    /// Whether the pool has been asked to stop, or has latched.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_stopping() || self.latched.get()
    }

    /// Whether nothing is appended but the last images.
    pub(crate) fn is_closing(&self) -> bool {
        self.life.phase() == Phase::Closing
    }

    /// Whether what goes on in the background is to end: the pool has settled, or has latched.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.life.phase() >= Phase::Settled || self.latched.get()
    }
}

#[cfg(test)]
mod tests {
    use super::Phase::{self, *};

    const ALL: [Phase; 6] = [Recovering, Restoring, Serving, Stopping, Settled, Closing];

    #[test]
    fn a_pool_goes_from_its_start_to_its_end_and_never_back() {
        for (place, now) in ALL.into_iter().enumerate() {
            for (other, next) in ALL.into_iter().enumerate() {
                let is_restoring = (now, next) == (Restoring, Recovering);
                let is_start = (now, next) == (Recovering, Serving);
                let is_next = other == place + 1 && (now, next) != (Restoring, Serving);
                let allowed = is_restoring || is_start || is_next;
                assert_eq!(now.may_become(next), allowed, "{now:?} to {next:?}");
            }
        }
    }
}

//! What goes past the cache, and why: every reason that the engine has, counted here alone.
//!
//! * A read went past if the origin answered it, or a part of it, and what it fetched stayed out of the
//!   cache; a write if the origin had to take it before it was acknowledged, also where the cache keeps
//!   a copy. WRITE ZEROES are writes; TRIM, and reads that a failing cache device sends on, are neither.
//! * A request counts once, under the first reason met, with all of its bytes that went past.
//! * What is served and logged whatever the reason, because the origin lacks it, does not count.

use std::cell::Cell;

use crate::core::Core;
use crate::counters::{ReasonCounters, add};
use crate::format::Mode;
use crate::planted::seen;
use crate::volume::VolumeState;

/// Why a request goes past the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Reason {
    /// The volume's mode: writes in all modes but `writeback` and `writeonly`, reads in `writeonly` and
    /// `bypass`.
    Mode,
    /// It belongs to a stream that is longer than the cutoff.
    Sequential,
    /// It is longer than the cutoff by itself, and goes on where no request has ended.
    Large,
    /// Its cache blocks have not been read, or written, as often as the volume's profile asks.
    Profile,
    /// Too few members are left for the copies of dirty data, or were, and it has not all its copies yet: the
    /// volume is written through, and nothing is brought in while something is to be brought home.
    Protection,
    /// Room in the log is short: writers are held back, or nearly.
    Room,
    /// Its volume holds as much as its limit allows, or as much of that is being fetched.
    Limit,
    /// As much of its volume is being fetched as may be.
    Busy,
    /// The SSDs do not keep up with what waits to be brought in.
    Congested,
    /// The index has nearly as much memory as it may take.
    Memory,
    /// The origin may still lose what it returns: it was written there and not flushed since.
    Unflushed,
    /// The same blocks were being written or fetched by another request.
    Overlap,
    /// WRITE ZEROES of a long range.
    Zeroes,
    /// Behind the last whole block, where nothing is cached.
    Tail,
    /// The pool has stopped writing after a failure.
    Latched,
    /// The pool's write budget has no room for it.
    WriteBudget,
}

impl Reason {
    /// All of them, each at its number.
    pub const ALL: [Reason; 16] = [
        Reason::Mode,
        Reason::Sequential,
        Reason::Large,
        Reason::Profile,
        Reason::Protection,
        Reason::Room,
        Reason::Limit,
        Reason::Busy,
        Reason::Congested,
        Reason::Memory,
        Reason::Unflushed,
        Reason::Overlap,
        Reason::Zeroes,
        Reason::Tail,
        Reason::Latched,
        Reason::WriteBudget,
    ];

    /// Its name for people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Mode => "mode",
            Reason::Sequential => "sequential",
            Reason::Large => "large",
            Reason::Profile => "profile",
            Reason::Protection => "protection",
            Reason::Room => "room",
            Reason::Limit => "limit",
            Reason::Busy => "busy",
            Reason::Congested => "congested",
            Reason::Memory => "memory",
            Reason::Unflushed => "unflushed",
            Reason::Overlap => "overlap",
            Reason::Zeroes => "zeroes",
            Reason::Tail => "tail",
            Reason::Latched => "latched",
            Reason::WriteBudget => "write-budget",
        }
    }

    /// What the simulator's coverage knows it by.
    fn seen(self) -> &'static str {
        match self {
            Reason::Mode => "past the cache: mode",
            Reason::Sequential => "past the cache: sequential",
            Reason::Large => "past the cache: large",
            Reason::Profile => "past the cache: profile",
            Reason::Protection => "past the cache: protection",
            Reason::Room => "past the cache: room",
            Reason::Limit => "past the cache: limit",
            Reason::Busy => "past the cache: busy",
            Reason::Congested => "past the cache: congested",
            Reason::Memory => "past the cache: memory",
            Reason::Unflushed => "past the cache: unflushed",
            Reason::Overlap => "past the cache: overlap",
            Reason::Zeroes => "past the cache: zeroes",
            Reason::Tail => "past the cache: tail",
            Reason::Latched => "past the cache: latched",
            Reason::WriteBudget => "past the cache: write-budget",
        }
    }
}

/// The counts of all reasons.
#[derive(Default)]
pub struct BypassCounters([ReasonCounters; Reason::ALL.len()]);

impl BypassCounters {
    /// Those of one reason.
    pub fn of(&self, reason: Reason) -> &ReasonCounters {
        &self.0[reason as usize]
    }

    /// All of them, in the order of [`Reason::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Reason, &ReasonCounters)> {
        Reason::ALL.into_iter().zip(&self.0)
    }
}

/// Whose requests are counted apart.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Read,
    Write,
    /// Not at all.
    Prefetch,
}

/// One request of a client. Three bytes and no more: each hit carries it along.
pub(crate) struct Way {
    pub kind: Kind,
    /// Why it only passes by, if it does.
    pub passing: Option<Reason>,
    /// Why something of it went past the cache, if it has.
    reason: Cell<Option<Reason>>,
}

impl Way {
    pub(crate) fn new(kind: Kind, passing: Option<Reason>) -> Self {
        Self { kind, passing, reason: Cell::new(None) }
    }

    /// Whether it only passes by: a part of a long stream, or long by itself.
    pub(crate) fn passes(&self) -> bool {
        self.passing.is_some()
    }

    /// Whether something of it went past the cache.
    pub(crate) fn went_past(&self) -> bool {
        self.reason.get().is_some()
    }
}

impl Core {
    /// So many bytes of a request go past the cache.
    pub(crate) fn past(&self, v: &VolumeState, way: &Way, why: Reason, count: u64) {
        let first = way.reason.get().is_none();
        let reason = way.reason.get().unwrap_or(why);
        way.reason.set(Some(reason));
        seen(reason.seen());
        for counters in [&self.bypass, &v.bypass] {
            let counters = counters.of(reason);
            let (requests, bytes) = match way.kind {
                Kind::Read => (&counters.read_requests, &counters.read_bytes),
                Kind::Write => (&counters.write_requests, &counters.write_bytes),
                Kind::Prefetch => return,
            };
            add(requests, u64::from(first));
            add(bytes, count);
        }
    }

    /// What keeps all that is read from being populated now, if anything does.
    pub(crate) fn populates_nothing(&self, v: &VolumeState) -> Option<Reason> {
        if matches!(v.mode.get(), Mode::Writeonly | Mode::Bypass) {
            return Some(Reason::Mode);
        }
        if self.latched.get() {
            return Some(Reason::Latched);
        }
        if self.index_is_tight() {
            return Some(Reason::Memory);
        }
        if self.spares_members(v) {
            return Some(Reason::Protection);
        }
        (self.is_holding_back() || self.is_left_to_moves()).then_some(Reason::Room)
    }

    /// Why a write goes straight to the origin that owes nothing; whether the log `keeps` it as well.
    pub(crate) fn why_direct(&self, v: &VolumeState, way: &Way, keeps: bool) -> Reason {
        let mode = self.mode_of(v);
        if v.mode.get().writes_back() && !mode.writes_back() {
            return Reason::Protection;
        }
        let would_keep = matches!(mode, Mode::Writeback | Mode::Writeonly | Mode::Writethrough);
        if let Some(why) = way.passing.filter(|_| !keeps && would_keep) {
            seen("write around the log: stream");
            return why;
        }
        let counts = v.thresholds.get().write > 1;
        if mode.writes_back() || (counts && !keeps) { Reason::Profile } else { Reason::Mode }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_number_and_a_name_of_its_own() {
        for (number, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
            assert!(reason.seen().ends_with(reason.name()));
        }
        let names: std::collections::BTreeSet<_> = Reason::ALL.map(Reason::name).into();
        assert_eq!(names.len(), Reason::ALL.len());
    }
}

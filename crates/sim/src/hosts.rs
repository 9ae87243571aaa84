//! Two machines that reach the same devices, each with a witness of its own. Each start is one of theirs, drawn anew:
//! who has stopped the pool leaves it to anybody, and from who died with it the other one has to take it over.

use std::cell::Cell;

/// Who has the pool open, as far as the devices must say so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tenant {
    /// It was stopped in order.
    Nobody,
    /// This machine, counted from 0; it may have died with it.
    Host(usize),
    /// A start or a stop was cut off.
    #[default]
    Unknown,
}

/// The machines of a seed.
#[derive(Default)]
pub struct Hosts {
    /// The one that opens the pool, or has done so last.
    pub opener: Cell<usize>,
    /// The one that has served it last: what its witness says is so.
    pub server: Cell<usize>,
    /// Who has it.
    pub tenant: Cell<Tenant>,
}

impl Hosts {
    /// The power has gone. It may have garbled heartbeats that no flush has covered, and then nobody can tell any more.
    pub fn lose_power(&self) {
        if matches!(self.tenant.get(), Tenant::Host(_)) {
            self.tenant.set(Tenant::Unknown);
        }
    }
}

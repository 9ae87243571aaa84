//! What a person should know, in the order it happened: in memory for `forebay events`, and in the
//! log.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use forebay_control::api::{Event, Severity};
use forebay_device::Runtime;
use forebay_device::real::reactor::Reactor;

/// Events kept; older ones are only in the log. A bad day of one pool, several times over.
const EVENTS_MAX: usize = 1024;

/// What needs somebody to act: data is lost, or something is not served or not written until then.
pub(crate) const CRITICAL: [&str; 10] = [
    "blocks-lost",
    "damage-unhealed",
    "export-failed",
    "lease-lost",
    "origin-failed",
    "origin-missing",
    "origin-refused",
    "pool-failed",
    "pool-latched",
    "ssd-failing",
];

/// See the head of the file.
pub(super) struct Journal {
    reactor: Rc<Reactor>,
    events: RefCell<VecDeque<Event>>,
}

impl Journal {
    pub(super) fn new(reactor: &Rc<Reactor>) -> Journal {
        Journal { reactor: Rc::clone(reactor), events: RefCell::default() }
    }

    /// Notes that something happened as it should.
    pub(super) fn note(&self, code: &str, pool: &str, what: impl Into<String>) {
        let what = what.into();
        tracing::info!(code, pool, "{what}");
        self.keep(Severity::Info, code, pool, what);
    }

    /// Notes that something needs a look, or more.
    pub(super) fn warn(&self, code: &str, pool: &str, what: impl Into<String>) {
        let what = what.into();
        let is_critical = CRITICAL.contains(&code);
        if is_critical {
            tracing::error!(code, pool, "{what}");
        } else {
            tracing::warn!(code, pool, "{what}");
        }
        let severity = if is_critical { Severity::Critical } else { Severity::Warning };
        self.keep(severity, code, pool, what);
    }

    fn keep(&self, severity: Severity, code: &str, pool: &str, what: String) {
        let mut events = self.events.borrow_mut();
        let number = events.back().map_or(0, |event| event.number) + 1;
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        let (unix_s, code, pool) = (self.reactor.unix_seconds(), code.to_owned(), pool.to_owned());
        events.push_back(Event { number, unix_s, severity, code, pool, what });
    }

    /// The events with a higher number.
    pub(super) fn after(&self, number: u64) -> Vec<Event> {
        self.events.borrow().iter().filter(|event| event.number > number).cloned().collect()
    }
}

//! What a person should know, in the order it happened: in memory for `forebay events`, in the log, and with the pools
//! that it is about.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use forebay_control::api::{Event, Events, EventsQuery, SCHEMA, Severity};
use forebay_control::name::{Name, VolumeName};
use forebay_device::Runtime;
use forebay_device::real::reactor::Reactor;
use forebay_engine::format::EventRecord;
use forebay_engine::{self as engine, EventKind, Pool};

use super::{Daemon, Open};

/// Events kept of this life of the daemon, and of earlier ones; older ones are only in the log. A bad day of one
/// pool, several times over.
const EVENTS_MAX: usize = 1024;

/// What needs somebody to act: data is lost, or something is not served or not written until then.
pub(crate) const CRITICAL: [&str; 11] = [
    "blocks-lost",
    "damage-unhealed",
    "export-failed",
    "lease-lost",
    "origin-failed",
    "origin-missing",
    "origin-refused",
    "pool-failed",
    "pool-latched",
    "pool-missing",
    "ssd-failing",
];

/// What an event is about.
pub(super) struct Subject {
    /// Empty if it is the daemon.
    pool: String,
    /// A volume's name, a device's path, or nothing.
    of_pool: String,
}

impl From<&str> for Subject {
    fn from(pool: &str) -> Subject {
        Subject { pool: pool.to_owned(), of_pool: String::new() }
    }
}

impl From<&String> for Subject {
    fn from(pool: &String) -> Subject {
        pool.as_str().into()
    }
}

impl From<&Name> for Subject {
    fn from(pool: &Name) -> Subject {
        pool.as_str().into()
    }
}

impl From<&VolumeName> for Subject {
    fn from(name: &VolumeName) -> Subject {
        (name.pool.as_str(), name.volume.to_string()).into()
    }
}

impl From<(&str, String)> for Subject {
    fn from((pool, of_pool): (&str, String)) -> Subject {
        Subject { pool: pool.to_owned(), of_pool }
    }
}

/// See the head of the file.
pub(super) struct Journal {
    reactor: Rc<Reactor>,
    /// This life of the daemon, in which events are numbered.
    life: String,
    events: RefCell<VecDeque<Event>>,
    /// What was told before this life of the daemon, in order; found with pools.
    past: RefCell<Vec<Event>>,
}

impl Journal {
    pub(super) fn new(reactor: &Rc<Reactor>) -> Journal {
        Journal {
            reactor: Rc::clone(reactor),
            life: format!("{:016x}", reactor.random()),
            events: RefCell::default(),
            past: RefCell::default(),
        }
    }

    /// Notes that something happened as it should.
    pub(super) fn note(&self, code: &str, subject: impl Into<Subject>, what: impl Into<String>) {
        let (subject, what) = (subject.into(), what.into());
        tracing::info!(code, pool = subject.pool, "{what}");
        self.keep(Severity::Info, code, subject, what);
    }

    /// Notes that something needs a look, or more.
    pub(super) fn warn(&self, code: &str, subject: impl Into<Subject>, what: impl Into<String>) {
        let (subject, what) = (subject.into(), what.into());
        let is_critical = CRITICAL.contains(&code);
        if is_critical {
            tracing::error!(code, pool = subject.pool, "{what}");
        } else {
            tracing::warn!(code, pool = subject.pool, "{what}");
        }
        let severity = if is_critical { Severity::Critical } else { Severity::Warning };
        self.keep(severity, code, subject, what);
    }

    fn keep(&self, severity: Severity, code: &str, subject: Subject, what: String) {
        let mut events = self.events.borrow_mut();
        let number = events.back().map_or(0, |event| event.number) + 1;
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        let (unix_s, code) = (self.reactor.unix_seconds(), code.to_owned());
        let Subject { pool, of_pool: subject } = subject;
        events.push_back(Event { number, unix_s, severity, code, pool, subject, what });
    }

    /// The events with a higher number; with 0, those of earlier lives before them.
    fn after(&self, number: u64) -> Vec<Event> {
        let mut found = if number == 0 { self.past.borrow().clone() } else { Vec::new() };
        found.extend(self.events.borrow().iter().filter(|event| event.number > number).cloned());
        found
    }

    /// Takes over what was told of a pool before; the number of the event up to which it knows what is told here.
    pub(super) fn recall(&self, name: &str, told: Vec<EventRecord>) -> u64 {
        let (mut past, events) = (self.past.borrow_mut(), self.events.borrow());
        let mut kept = 0;
        for told in told {
            // It may have been told in this life: the pool was closed since, and is opened again.
            let is_it = |event: &&Event| {
                event.pool == name && event.unix_s == told.unix_s && record(event).cut() == told
            };
            match events.iter().rfind(is_it) {
                Some(known) => kept = kept.max(known.number),
                None if past.iter().any(|event| is_it(&event)) => {}
                None => past.push(recalled(name, told)),
            }
        }
        past.sort_by_key(|event| event.unix_s);
        let surplus = past.len().saturating_sub(EVENTS_MAX);
        past.drain(..surplus);
        kept
    }

    /// Gives a pool what was told of it after the event of this number; the number of the last one.
    pub(super) fn give(&self, name: &str, pool: &Pool, after: u64) -> u64 {
        let events = self.events.borrow();
        for event in events.iter().filter(|event| event.number > after && event.pool == name) {
            pool.tell(record(event));
        }
        events.back().map_or(after, |event| event.number)
    }
}

impl Daemon {
    /// The events that are asked for, up to this moment: what the pools' states show has been told.
    pub(super) fn events(&self, query: &EventsQuery) -> Events {
        for (slot, open) in self.open_pools() {
            let name = slot.record.borrow().name.to_string();
            self.tell_news(&name, &open);
        }
        let life = self.journal.life.clone();
        // A number of another life says nothing about this one.
        let is_of_this = query.life.as_ref().is_none_or(|known| *known == life);
        let items = self.journal.after(if is_of_this { query.after } else { 0 });
        Events { schema: SCHEMA, life, items }
    }

    /// Brings what a pool has reported into the journal, and what was told of it otherwise to the pool.
    pub(super) fn tell_news(&self, name: &str, open: &Open) {
        for event in open.notes.news(&open.pool) {
            let slot = self.slots.borrow().get(name).cloned();
            let placed = |what: String| match &slot {
                Some(slot) => slot.with_places(what),
                None => what,
            };
            let subject = match event.subject {
                engine::Subject::Pool => String::new(),
                engine::Subject::Volume(volume) => volume,
                engine::Subject::Member(id) => {
                    let place = slot.as_ref().and_then(|slot| slot.place_of(id));
                    place.map_or(id.to_string(), |path| path.display().to_string())
                }
            };
            let mut what = placed(event.what);
            if event.kind == EventKind::BlocksLost {
                let volumes = open.pool.superblock().volumes.into_iter();
                let dirty = volumes.filter(|volume| volume.may_be_dirty);
                let dirty: Vec<_> = dirty.map(|volume| format!("{name}/{}", volume.name)).collect();
                what.push_str(&what_to_do(&what, &dirty));
            }
            let (code, subject) = (event.kind.code(), (name, subject));
            if event.kind.is_good_news() {
                self.journal.note(code, subject, what);
            } else {
                self.journal.warn(code, subject, what);
            }
        }
        open.told.set(self.journal.give(name, &open.pool, open.told.get()));
    }
}

/// What is put behind the text of lost blocks: of which volumes they are, unless it says so itself, and what to do. When a
/// pool is opened its volumes are not attached yet; only what may be `dirty` can have lost something.
fn what_to_do(text: &str, dirty: &[String]) -> String {
    let whose = match dirty {
        _ if text.contains("of volume \"") => String::new(),
        [] => String::new(),
        [volume] => format!("; all of it is of volume \"{volume}\""),
        volumes => format!("; it is of some of the volumes \"{}\"", volumes.join("\", \"")),
    };
    let named = text.split("of volume \"").nth(1).and_then(|rest| rest.split('"').next());
    let is_named =
        |volume: &&String| named.is_some_and(|named| volume.ends_with(&format!("/{named}")));
    let name = match (dirty.iter().find(is_named), dirty) {
        (Some(volume), _) | (None, [volume]) => volume,
        _ => "NAME",
    };
    format!(
        "{whose}. `forebay volume show {name}` says how much: write it anew from a backup, or read older data there with \
         `forebay volume accept-lost {name}`"
    )
}

fn recalled(pool: &str, told: EventRecord) -> Event {
    let severity = match told.severity {
        1 => Severity::Info,
        2 => Severity::Warning,
        _ => Severity::Critical,
    };
    let EventRecord { unix_s, code, subject, what, .. } = told;
    Event { number: 0, unix_s, severity, code, pool: pool.to_owned(), subject, what }
}

fn record(event: &Event) -> EventRecord {
    let severity = match event.severity {
        Severity::Info => 1,
        Severity::Warning => 2,
        Severity::Critical => 3,
    };
    let Event { unix_s, code, subject, what, .. } = event.clone();
    EventRecord { unix_s, severity, code, subject, what }
}

#[cfg(test)]
mod tests {
    use super::what_to_do;

    #[test]
    fn lost_blocks_are_told_with_their_volumes_and_what_to_do() {
        let one = ["fast/vm".to_owned()];
        let found = "8 blocks of 4 KiB went with cache devices that are gone";
        let told = what_to_do(found, &one);
        assert!(told.starts_with("; all of it is of volume \"fast/vm\". "), "{told}");
        assert!(told.ends_with("`forebay volume accept-lost fast/vm`"), "{told}");
        let named = what_to_do("1 MiB of volume \"vm\" had their only copy there", &one);
        assert!(named.starts_with(". `forebay volume show fast/vm`"), "{named}");
        let others = ["fast/a".to_owned(), "fast/vm".to_owned()];
        let named = what_to_do("1 MiB of volume \"vm\" had their only copy there", &others);
        assert!(named.ends_with("`forebay volume accept-lost fast/vm`"), "{named}");
        let two = what_to_do(found, &["fast/a".to_owned(), "fast/b".to_owned()]);
        assert!(two.contains("some of the volumes \"fast/a\", \"fast/b\"."), "{two}");
        assert!(two.ends_with("`forebay volume accept-lost NAME`"), "{two}");
    }
}

//! A pool that the daemon was told of, whether it is open or not.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use forebay_control::name::Name;
use forebay_engine::format::Superblock;
use forebay_engine::ids::DeviceId;

use super::scan::{Sight, Unread, is_complete, of_pool};
use super::state::Record;
use super::waiting::Told;
use super::{Direct, Open, Serving, Slot, State};
use crate::failure::Failure;

/// A [`State`], without what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Waiting,
    Failed,
    Open,
    Bypassed,
}

impl Kind {
    fn may_become(self, next: Kind) -> bool {
        use Kind::{Bypassed, Failed, Open, Waiting};
        match self {
            // It is waited anew once others are there, and when a pool is closed that was not open.
            Waiting | Failed => true,
            Open | Bypassed => matches!(next, Waiting),
        }
    }
}

impl State {
    fn kind(&self) -> Kind {
        match self {
            State::Waiting { .. } => Kind::Waiting,
            State::Failed(_) => Kind::Failed,
            State::Open(_) => Kind::Open,
            State::Bypassed(_) => Kind::Bypassed,
        }
    }
}

impl Slot {
    /// Moves on in the diagram of [`State`]; what it was.
    ///
    /// # Panics
    /// If the diagram has no such arrow: an open pool is closed before it is anything else.
    pub(super) fn transition(&self, next: State) -> State {
        let (now, then) = (self.state.borrow().kind(), next.kind());
        assert!(now.may_become(then), "pool {}: {now:?} to {then:?}", self.record.borrow().name);
        self.state.replace(next)
    }

    pub(super) fn new(record: Record, state: State) -> Slot {
        Slot {
            record: RefCell::new(record),
            seen: RefCell::default(),
            unread: RefCell::default(),
            has_looked: Cell::new(false),
            state: RefCell::new(state),
            told: Cell::new(Told::Nothing),
            opening: Cell::new(false),
            witnessed: RefCell::default(),
            unreadable: None,
        }
    }

    /// A pool whose record cannot be read, called by its identity.
    pub(super) fn unreadable(id: Name, failure: Failure) -> Slot {
        let record = Record::new(id.clone(), id.to_string());
        Slot { unreadable: Some(failure.clone()), ..Slot::new(record, State::Failed(failure)) }
    }

    /// Why nobody is to open it, whatever devices are there, if so.
    pub(super) fn kept_closed(&self) -> Option<Failure> {
        let is_destroying = self.record.borrow().destroying;
        self.unreadable.clone().or_else(|| is_destroying.then(|| self.still_there()))
    }

    /// Takes note of which of these devices are its own; those of which it has not been known yet that they cannot be
    /// read, unless it lacks none.
    pub(super) fn see(&self, sight: &Sight) -> Vec<Unread> {
        let record = self.record.borrow();
        let own = of_pool(&sight.members, &record.id);
        let unread: Vec<_> = match is_complete(&own) {
            true => Vec::new(),
            false => sight.unread_of(&record).cloned().collect(),
        };
        let known = self.unread.replace(unread.clone());
        *self.seen.borrow_mut() = own.into_iter().cloned().collect();
        self.has_looked.set(true);
        let is_known = |new: &Unread| known.iter().any(|known| known.path == new.path);
        unread.into_iter().filter(|new| !is_known(new)).collect()
    }

    /// Where each of a pool's cache devices was seen last, also of those that were lost.
    pub(super) fn places_of(&self, superblock: &Superblock) -> BTreeMap<String, PathBuf> {
        let (seen, record) = (self.seen.borrow(), self.record.borrow());
        let place = |id: DeviceId| {
            let found = seen.iter().find(|found| found.superblock.device == id);
            let path = found.map(|found| &found.path).or(record.places.get(&id.to_string()));
            path.map(|path| (id.to_string(), path.clone()))
        };
        superblock.members.iter().filter_map(|member| place(member.device)).collect()
    }

    /// The pool, if it is open.
    pub(super) fn open(&self) -> Option<Rc<Open>> {
        match &*self.state.borrow() {
            State::Open(open) => Some(Rc::clone(open)),
            _ => None,
        }
    }

    /// What is served of it, if it is served without its devices.
    pub(super) fn direct(&self) -> Option<Rc<Direct>> {
        match &*self.state.borrow() {
            State::Bypassed(direct) => Some(Rc::clone(direct)),
            _ => None,
        }
    }

    /// Looks at its exports, if it serves.
    pub(super) fn of_exports<T>(
        &self,
        look: impl FnOnce(&BTreeMap<String, Serving>) -> T,
    ) -> Option<T> {
        match &*self.state.borrow() {
            State::Open(open) => Some(look(&open.exports.borrow())),
            State::Bypassed(direct) => Some(look(&direct.exports.borrow())),
            State::Waiting { .. } | State::Failed(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Kind::{self, Bypassed, Failed, Open, Waiting};

    #[test]
    fn a_pool_goes_only_where_the_diagram_has_an_arrow() {
        let all = [Waiting, Failed, Open, Bypassed];
        let legal = |from: Kind| all.map(|to| from.may_become(to));
        assert_eq!(legal(Waiting), [true; 4]);
        assert_eq!(legal(Failed), [true; 4]);
        for serving in [Open, Bypassed] {
            assert_eq!(legal(serving), [true, false, false, false]);
        }
    }
}

//! The exports of a server, by name.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Export;
use crate::nbd::limits::{EXPORT_CONNECTIONS_MAX, NAME_BYTES_MAX, SECTOR_BYTES};

/// Why an export cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportsError {
    /// The name is empty or longer than [`NAME_BYTES_MAX`].
    Name,
    /// The description is longer than [`NAME_BYTES_MAX`].
    Description,
    /// The size is not a multiple of [`SECTOR_BYTES`].
    Size,
    /// There is an export of this name.
    Exists,
}

impl std::fmt::Display for ExportsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name => write!(f, "an export's name has 1 to {NAME_BYTES_MAX} bytes"),
            Self::Description => {
                write!(f, "an export's description has at most {NAME_BYTES_MAX} bytes")
            }
            Self::Size => write!(f, "an export's size is a multiple of {SECTOR_BYTES} bytes"),
            Self::Exists => f.write_str("an export of this name exists"),
        }
    }
}

impl std::error::Error for ExportsError {}

/// Places for the clients of exports on several threads together.
#[derive(Debug)]
pub struct Places {
    taken: AtomicUsize,
    count: usize,
}

impl Places {
    /// So many.
    pub fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { taken: AtomicUsize::new(0), count })
    }

    fn take(&self) -> bool {
        let next = |taken: usize| (taken < self.count).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    fn give_back(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An export in a list, with its clients.
pub(crate) struct Entry<E> {
    pub(crate) export: Rc<E>,
    clients: Cell<usize>,
    /// Those that it has together with others.
    places: Option<Arc<Places>>,
}

/// One client's place at an export.
pub(crate) struct Seat<E>(Rc<Entry<E>>);

impl<E> Seat<E> {
    /// A place, unless the export has [`EXPORT_CONNECTIONS_MAX`] clients, or there are no more places.
    pub(crate) fn take(entry: &Rc<Entry<E>>) -> Option<Self> {
        let clients = entry.clients.get();
        if clients >= EXPORT_CONNECTIONS_MAX || entry.places.as_ref().is_some_and(|it| !it.take()) {
            return None;
        }
        entry.clients.set(clients + 1);
        Some(Self(Rc::clone(entry)))
    }

    pub(crate) fn export(&self) -> &Rc<E> {
        &self.0.export
    }
}

impl<E> Drop for Seat<E> {
    fn drop(&mut self) {
        self.0.clients.set(self.0.clients.get() - 1);
        if let Some(places) = &self.0.places {
            places.give_back();
        }
    }
}

/// A list of exports with different names. It may change while a server runs; a connection
/// keeps the export that it opened.
pub struct Exports<E>(RefCell<Vec<Rc<Entry<E>>>>);

impl<E> Default for Exports<E> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<E: Export> Exports<E> {
    /// A list of one export.
    ///
    /// # Errors
    /// See [`Exports::add`].
    pub fn of(export: Rc<E>) -> Result<Self, ExportsError> {
        let exports = Self::default();
        exports.add(export)?;
        Ok(exports)
    }

    /// Adds an export.
    ///
    /// # Errors
    /// If its name, description or size is not valid, or its name is taken.
    pub fn add(&self, export: Rc<E>) -> Result<(), ExportsError> {
        self.add_with(export, None)
    }

    /// The same; its clients take these places, too.
    ///
    /// # Errors
    /// See [`Exports::add`].
    pub fn add_with(&self, export: Rc<E>, places: Option<Arc<Places>>) -> Result<(), ExportsError> {
        if export.name().is_empty() || export.name().len() > NAME_BYTES_MAX {
            return Err(ExportsError::Name);
        }
        if export.description().len() > NAME_BYTES_MAX {
            return Err(ExportsError::Description);
        }
        if !export.size_bytes().is_multiple_of(u64::from(SECTOR_BYTES)) {
            return Err(ExportsError::Size);
        }
        let mut list = self.0.borrow_mut();
        if list.iter().any(|other| other.export.name() == export.name()) {
            return Err(ExportsError::Exists);
        }
        list.push(Rc::new(Entry { export, clients: Cell::new(0), places }));
        Ok(())
    }

    /// Takes an export off the list.
    pub fn remove(&self, name: &str) -> Option<Rc<E>> {
        let mut list = self.0.borrow_mut();
        let index = list.iter().position(|entry| entry.export.name() == name)?;
        Some(Rc::clone(&list.remove(index).export))
    }

    /// The export that a client means by `name`: the empty name is the only export, if there
    /// is just one.
    pub(crate) fn find(&self, name: &str) -> Option<Rc<Entry<E>>> {
        let list = self.0.borrow();
        if name.is_empty() && list.len() == 1 {
            return list.first().cloned();
        }
        list.iter().find(|entry| entry.export.name() == name).cloned()
    }

    pub(crate) fn any(&self, is_it: impl Fn(&E) -> bool) -> bool {
        self.0.borrow().iter().any(|entry| is_it(&entry.export))
    }

    pub(crate) fn for_each(&self, mut act: impl FnMut(&E)) {
        self.0.borrow().iter().for_each(|entry| act(&entry.export));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::negotiation::tests::Disk;

    #[test]
    fn names_are_unique_and_bounded() {
        let exports = Exports::of(Rc::new(Disk("one", ""))).unwrap();
        assert_eq!(exports.add(Rc::new(Disk("one", ""))), Err(ExportsError::Exists));
        assert_eq!(exports.add(Rc::new(Disk("", ""))), Err(ExportsError::Name));
        let long: &str = "x".repeat(NAME_BYTES_MAX + 1).leak();
        assert_eq!(exports.add(Rc::new(Disk(long, ""))), Err(ExportsError::Name));
        assert_eq!(exports.add(Rc::new(Disk("two", long))), Err(ExportsError::Description));
        assert_eq!(exports.add(Rc::new(Disk(&long[1..], ""))), Ok(()));
    }

    #[test]
    fn servers_share_the_places_of_an_export() {
        let places = Places::new(3);
        let both: Vec<_> = (0..2)
            .map(|_| {
                let exports = Exports::default();
                exports.add_with(Rc::new(Disk("one", "")), Some(Arc::clone(&places))).unwrap();
                exports.find("one").unwrap()
            })
            .collect();
        let mut seats: Vec<_> =
            [0, 1, 1].into_iter().map(|at| Seat::take(&both[at]).unwrap()).collect();
        assert!(Seat::take(&both[0]).is_none() && Seat::take(&both[1]).is_none());
        seats.pop();
        assert!(Seat::take(&both[0]).is_some(), "what one gives back the other one may take");
    }

    #[test]
    fn the_empty_name_finds_an_export_only_if_there_is_no_choice() {
        let exports = Exports::of(Rc::new(Disk("one", ""))).unwrap();
        assert!(exports.find("").is_some_and(|entry| entry.export.name() == "one"));
        exports.add(Rc::new(Disk("two", ""))).unwrap();
        assert!(exports.find("").is_none());
        assert!(exports.remove("one").is_some() && exports.remove("one").is_none());
        assert!(exports.find("one").is_none() && exports.find("two").is_some());
    }
}

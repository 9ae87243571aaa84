//! Listening sockets that outlive this process: they are given to the service manager when they are
//! made (systemd's descriptor store) and come back at the next start, so that who connects meanwhile
//! waits instead of being refused. A socket unit's come in the same way.
//!
//! * They are known by their names: `control`, or the volume that is exported there.
//! * A copy stays here for as long as the export is known: a door that is closed and opened again
//!   (`stop --destage`, cancelled) is the same one.
//! * One whose path does not lead to it any more, because its file was removed or somebody else is there, is of no use
//!   and is passed over.
//! * Without a service manager nothing is kept, and a socket's file goes away with its listener.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use forebay_control::api::Place;
use forebay_control::name::VolumeName;
use forebay_control::socket::ControlSocket;
use forebay_device::real::net::{Listener, leads_to};
use forebay_device::real::passed::Passed;
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::Daemon;
use super::notify::{self, is_managed};
use crate::Result;
use crate::failure::Failure;
use crate::host::{Doors, Places};

/// The name of the control socket.
const CONTROL: &str = "control";

/// A socket that clients connect to.
enum Listening {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener, SocketAddr),
}

impl Listening {
    /// What a descriptor is, or why nobody can connect to it.
    fn of(descriptor: OwnedFd) -> std::result::Result<Listening, String> {
        let failed = |error: &dyn std::fmt::Display| format!("it cannot be used: {error}");
        if !sockopt::socket_acceptconn(&descriptor).is_ok_and(|listens| listens)
            || sockopt::socket_type(&descriptor) != Ok(SocketType::STREAM)
        {
            return Err("it is no listening stream socket".to_owned());
        }
        match sockopt::socket_domain(&descriptor).map_err(|error| failed(&error))? {
            AddressFamily::UNIX => {
                let socket = UnixListener::from(descriptor);
                let address = socket.local_addr().map_err(|error| failed(&error))?;
                let path = address.as_pathname().map(Path::to_owned);
                Ok(Listening::Unix(socket, path.ok_or("it has no path")?))
            }
            AddressFamily::INET | AddressFamily::INET6 => {
                let socket = TcpListener::from(descriptor);
                let address = socket.local_addr().map_err(|error| failed(&error))?;
                Ok(Listening::Tcp(socket, address))
            }
            _ => Err("it is neither a Unix socket nor one of TCP".to_owned()),
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Listening::Unix(socket, _) => socket.as_fd(),
            Listening::Tcp(socket, _) => socket.as_fd(),
        }
    }
}

impl std::fmt::Display for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listening::Unix(_, path) => write!(f, "{}", path.display()),
            Listening::Tcp(_, address) => write!(f, "{address}"),
        }
    }
}

struct Kept {
    socket: Listening,
    /// Whether the service manager has it.
    is_sent: Cell<bool>,
}

impl Kept {
    fn of(descriptor: OwnedFd, is_sent: bool) -> std::result::Result<Kept, String> {
        Ok(Kept { socket: Listening::of(descriptor)?, is_sent: Cell::new(is_sent) })
    }
}

/// Removes a socket's file, unless it is another one's by now. May block.
fn remove(socket: &UnixListener, path: &Path) {
    if leads_to(path, socket) {
        let _ = std::fs::remove_file(path);
    }
}

/// See the head of the file.
pub(super) struct Shelf {
    kept: RefCell<BTreeMap<String, Kept>>,
    /// What was passed and cannot be used.
    complaints: RefCell<Vec<String>>,
}

impl Shelf {
    /// What was passed to this process.
    pub(super) fn of(passed: Passed) -> Shelf {
        let (mut kept, mut complaints) = (BTreeMap::<String, Kept>::new(), passed.complaints);
        for (name, descriptor) in passed.descriptors {
            let ignored = |why: &str| format!("the descriptor \"{name}\" was passed in: {why}");
            if name != CONTROL && name.parse::<VolumeName>().is_err() {
                complaints.push(ignored("name it `control`, or after a volume, POOL/NAME"));
                continue;
            }
            match Kept::of(descriptor, true) {
                // A socket unit's that was also stored comes twice.
                Ok(_) if kept.contains_key(&name) => {}
                Ok(new) => drop(kept.insert(name, new)),
                Err(why) => complaints.push(ignored(&why)),
            }
        }
        Shelf { kept: RefCell::new(kept), complaints: RefCell::new(complaints) }
    }

    /// What was passed and cannot be used, and what nobody uses yet; `is_served` knows volumes.
    pub(super) fn complaints(&self, is_served: impl Fn(&VolumeName) -> bool) -> Vec<String> {
        let mut complaints = self.complaints.take();
        for (name, kept) in &*self.kept.borrow() {
            let volume = name.parse::<VolumeName>();
            if volume.is_ok_and(|volume| !is_served(&volume)) {
                complaints.push(format!(
                    "{} was passed in for volume \"{name}\", which is not exported: who connects \
                     there waits until it is",
                    kept.socket
                ));
            }
        }
        complaints
    }

    /// Sockets that are kept.
    pub(super) fn count(&self) -> usize {
        self.kept.borrow().len()
    }

    /// The control socket, if it was passed in and this path leads to it; else it is forgotten, with its file if it
    /// is one of ours.
    pub(super) fn control(&self, path: &Path) -> io::Result<Option<ControlSocket>> {
        let complaint = match self.kept.borrow().get(CONTROL).map(|kept| &kept.socket) {
            None => return Ok(None),
            Some(Listening::Unix(socket, name)) => {
                let own = ControlSocket::place_of(name);
                let at = own.as_deref().unwrap_or(name);
                if at == path && leads_to(path, socket) {
                    return ControlSocket::of(path, socket.try_clone()?).map(Some);
                }
                own.iter().for_each(|own| remove(socket, own));
                own.is_none().then(|| at.display().to_string())
            }
            Some(other) => Some(other.to_string()),
        };
        let configured = path.display().to_string();
        self.complaints.borrow_mut().extend(complaint.map(|at| match at == configured {
            true => format!("{at} leads no more to the socket that was passed in as `control`"),
            false => {
                format!("{at} was passed in as `control`, which is configured at {configured}")
            }
        }));
        self.take(CONTROL);
        Ok(None)
    }

    /// Keeps the control socket.
    pub(super) fn keep_control(&self, socket: &mut ControlSocket) {
        if is_managed() {
            self.keep(CONTROL, socket.keep());
        }
    }

    fn keep(&self, name: &str, descriptor: io::Result<OwnedFd>) {
        let kept = descriptor.map_err(|error| error.to_string());
        match kept.and_then(|descriptor| Kept::of(descriptor, false)) {
            Ok(kept) => drop(self.kept.borrow_mut().insert(name.to_owned(), kept)),
            Err(why) => tracing::warn!("the socket of \"{name}\" is not kept: {why}"),
        }
        self.send();
    }

    /// Gives the service manager what it does not have yet: it may have been too busy.
    pub(super) fn send(&self) {
        for (name, kept) in self.kept.borrow().iter().filter(|(_, kept)| !kept.is_sent.get()) {
            kept.is_sent.set(notify::store(name, kept.socket.descriptor()));
        }
    }

    /// Has one kept no more, here and by the service manager.
    fn take(&self, name: &str) -> Option<Listening> {
        let kept = self.kept.borrow_mut().remove(name)?;
        notify::forget(name);
        Some(kept.socket)
    }
}

impl Daemon {
    /// The door of an export, if it is kept, is where the export is to be, and its path leads to it.
    pub(super) async fn kept_door(
        &self,
        name: &VolumeName,
        places: &Places<'_>,
    ) -> Result<Option<Doors>> {
        let failed = |error| Failure::system("go on with the socket that was passed in", &error);
        let mut unix = None;
        let listener =
            match self.shelf.kept.borrow().get(&name.to_string()).map(|kept| &kept.socket) {
                Some(Listening::Unix(socket, at)) if places.socket == Some(at) => {
                    unix = Some((socket.try_clone().map_err(failed)?, at.clone()));
                    Listener::of_unix(&self.reactor, socket.try_clone().map_err(failed)?)
                }
                Some(Listening::Tcp(socket, at)) if places.address == Some(*at) => {
                    Listener::of_tcp(&self.reactor, socket.try_clone().map_err(failed)?)
                }
                _ => return Ok(None),
            };
        if let Some((socket, at)) = unix {
            let place = at.display().to_string();
            if !self.patiently(&place, move || leads_to(&at, &socket)).await? {
                self.shelf.take(&name.to_string());
                let what = format!(
                    "{place} leads no more to the socket of volume \"{name}\" that was passed in; \
                     another one is made there"
                );
                self.journal.warn("socket-unused", name, what);
                return Ok(None);
            }
        }
        Ok(Some(Doors::of(name.volume.as_str(), places, listener.map_err(failed)?)))
    }

    /// Keeps the doors of an export. Those of another place that were kept before are forgotten.
    pub(super) async fn keep_doors(&self, name: &VolumeName, doors: &Doors) {
        if !is_managed() {
            return;
        }
        self.forget_door(name).await;
        for listener in doors.listeners() {
            self.shelf.keep(&name.to_string(), listener.keep());
        }
    }

    /// Forgets the door of an export that is no more: who waits there is refused.
    pub(super) async fn forget_door(&self, name: &VolumeName) {
        let Some(Listening::Unix(socket, path)) = self.shelf.take(&name.to_string()) else {
            return;
        };
        let is_here = |place: &Place| matches!(place, Place::Socket(at) if *at == path);
        if self.own_exports().iter().any(|(other, place)| other != name && is_here(place)) {
            return;
        }
        let place = path.display().to_string();
        // One that is not removed in time is in nobody's way: nobody answers there.
        self.patiently(place, move || remove(&socket, &path)).await.ok();
    }
}

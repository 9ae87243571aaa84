//! Exports: where clients reach volumes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_control::api::{self, Done, Place, TlsUse};
use forebay_control::error::Code;
use forebay_control::name::VolumeName;
use forebay_device::runtime::{Nanos, Runtime, SECOND};
use forebay_export::nbd::Tls;

use super::pools::check_absolute;
use super::state::{ExportRecord, Record};
use super::volumes::nearest_volume;
use super::{Attached, Daemon, Open, Serving, Slot};
use crate::Result;
use crate::export::{Access, Terms};
use crate::failure::Failure;
use crate::host::{Doors, Host, Places, SocketAccess, all, loopback};
use crate::members::PATIENCE;

/// Time between two attempts to serve an export whose address could not be had.
const RETRY_INTERVAL: Nanos = 10 * SECOND;

fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

impl Daemon {
    /// The socket of an export for which nobody names a place. "@" is in no name.
    pub(super) fn usual_socket(&self, name: &VolumeName) -> PathBuf {
        self.config.run_dir.join(format!("{}@{}.sock", name.pool, name.volume))
    }

    /// Starts the export of a volume that has come online, if it has one.
    pub(super) async fn start_export(&self, slot: &Slot, open: &Rc<Open>, volume: &str) {
        let serve = async |name: &VolumeName, record: &ExportRecord, patience| {
            self.serve_export(open, name, record, patience).await
        };
        self.start_serving(slot, &open.exports, volume, serve).await;
    }

    /// The same by who can `serve` it, among its pool's `exports`.
    pub(super) async fn start_serving(
        &self,
        slot: &Slot,
        exports: &RefCell<BTreeMap<String, Serving>>,
        volume: &str,
        serve: impl AsyncFnOnce(&VolumeName, &ExportRecord, Nanos) -> Result<Host>,
    ) {
        let pool = slot.record.borrow().name.clone();
        let record = {
            let record = slot.record.borrow();
            record.exports.iter().find(|export| export.volume.as_str() == volume).cloned()
        };
        let Some(record) = record else { return };
        let known = match exports.borrow().get(volume) {
            Some(Serving::Live(_)) => return,
            Some(Serving::Failed { why, .. }) => Some(why.what().to_owned()),
            None => None,
        };
        // Only the first time a killed daemon may just be about to let go of the address.
        let patience = if known.is_none() { PATIENCE } else { 0 };
        let name = VolumeName { pool: pool.clone(), volume: record.volume.clone() };
        let serving = match serve(&name, &record, patience).await {
            Ok(host) => Serving::Live(host),
            Err(why) => {
                if known.as_deref() != Some(why.what()) {
                    let what = format!("export of \"{pool}/{volume}\": {}", why.what());
                    self.journal.warn("export-failed", &name, what);
                }
                Serving::Failed { why, retry_at: self.reactor.now() + RETRY_INTERVAL }
            }
        };
        exports.borrow_mut().insert(volume.to_owned(), serving);
    }

    /// Tries again to serve what could not be served.
    pub(super) async fn retry_exports(&self, slot: &Slot, open: &Rc<Open>) {
        let due = self.due(&open.exports.borrow());
        for volume in due {
            self.start_export(slot, open, &volume).await;
        }
    }

    /// The volumes whose exports are to be tried again now.
    pub(super) fn due(&self, exports: &BTreeMap<String, Serving>) -> Vec<String> {
        let now = self.reactor.now();
        let due = |serving: &Serving| matches!(serving, Serving::Failed { retry_at, .. } if *retry_at <= now);
        exports.iter().filter(|(_, s)| due(s)).map(|(volume, _)| volume.clone()).collect()
    }

    /// Whether an export that could not be served is to be there.
    pub(super) fn is_retried_at(&self, path: &Path) -> bool {
        let slots = self.slots.borrow();
        slots.values().any(|slot| {
            let record = slot.record.borrow();
            let is_retried = |exports: &BTreeMap<String, Serving>| {
                record.exports.iter().any(|export| {
                    let is_there = matches!(&export.place, Place::Socket(at) if at == path);
                    let serving = exports.get(export.volume.as_str());
                    is_there && matches!(serving, Some(Serving::Failed { .. }))
                })
            };
            slot.of_exports(is_retried).unwrap_or(false)
        })
    }

    async fn serve_export(
        &self,
        open: &Rc<Open>,
        name: &VolumeName,
        record: &ExportRecord,
        patience: Nanos,
    ) -> Result<Host> {
        let volume = match open.volumes.borrow().get(record.volume.as_str()) {
            Some(Attached::Online(volume)) => Rc::clone(volume),
            Some(Attached::Missing { why, .. }) => return Err(why.clone()),
            None => return Err(Failure::coded(Code::NotFound, "its volume is gone")),
        };
        let (terms, places) = self.terms(name, record)?;
        let doors = self.doors_kept(name, &places, patience).await?;
        let readers = open.members.borrow().readers_for(&self.crew)?;
        let readers = (open.pool.superblock().pool, readers);
        Host::start(&self.reactor, doors, readers, &volume, &terms, &self.crew).await
    }

    /// Where clients of an export can connect from now on.
    pub(super) async fn doors_kept(
        &self,
        name: &VolumeName,
        places: &Places<'_>,
        patience: Nanos,
    ) -> Result<Doors> {
        let (doors, is_new) = self.doors(name, places, patience).await?;
        if is_new {
            self.keep_doors(name, &doors).await;
        }
        Ok(doors)
    }

    /// Where clients of an export can connect, and whether they could not before.
    async fn doors(
        &self,
        name: &VolumeName,
        places: &Places<'_>,
        patience: Nanos,
    ) -> Result<(Doors, bool)> {
        if let Some(doors) = self.kept_door(name, places).await? {
            return Ok((doors, false));
        }
        let volume = name.volume.as_str();
        let (reactor, binding) = (&self.reactor, &self.binding);
        Ok((Doors::open_within(reactor, binding, volume, places, patience).await?, true))
    }

    /// Refuses an export that could not be served: its door is opened, and closed at once. A socket that nobody answers on
    /// is removed by that.
    pub(super) async fn check_export(
        &self,
        name: &VolumeName,
        record: &ExportRecord,
    ) -> Result<()> {
        let (_, places) = self.terms(name, record)?;
        self.doors(name, &places, 0).await.map(drop)
    }

    /// How and where an export is to be served.
    ///
    /// # Errors
    /// If the daemon's certificates do not allow it.
    pub(super) fn terms<'a>(
        &self,
        name: &VolumeName,
        record: &'a ExportRecord,
    ) -> Result<(Terms, Places<'a>)> {
        if record.require_tls && self.tls.is_none() {
            let what = "the export needs TLS, and the daemon has no certificate";
            return Err(Failure::coded(Code::BadRequest, what).hint(
                "set tls.certificate and tls.key in the daemon's configuration and start it again",
            ));
        }
        let access = if record.read_only { Access::ReadOnly } else { Access::ReadWrite };
        let (needs_tls, clients) = (record.require_tls, self.config.clients());
        let (name, tls) = (Some(name.to_string()), self.tls.clone());
        let terms = Terms { name, access, tls, needs_tls, clients };
        let (socket, address) = match &record.place {
            Place::Socket(path) => (Some(path.as_path()), None),
            Place::Port(port) => (None, Some(loopback(*port))),
            Place::Address(address) => (None, Some(*address)),
        };
        let is_encrypted = terms.is_encrypted();
        let is_remote = is_encrypted && terms.tls.as_ref().is_some_and(Tls::checks_clients);
        if let Some(address) = address.filter(|address| !is_remote && !is_loopback(address)) {
            let what = format!("{address} can be reached from other machines");
            return Err(Failure::coded(Code::BadRequest, what).hint(
                "that needs tls.client_ca in the daemon's configuration, so that clients are known \
                 by their certificates, and tls.mode = \"forced\" or --require-tls",
            ));
        }
        let access = match socket {
            Some(_) => self.config.socket_access()?,
            None => SocketAccess::default(),
        };
        Ok((terms, Places { socket, address, is_encrypted, is_remote, access }))
    }

    /// Whether the clients of an export use TLS.
    pub(super) fn tls_use(&self, record: &ExportRecord) -> TlsUse {
        match &self.tls {
            _ if record.require_tls => TlsUse::Required,
            Some(tls) if tls.is_forced() => TlsUse::Required,
            Some(_) => TlsUse::Offered,
            None => TlsUse::None,
        }
    }

    /// A volume that is there and not exported.
    pub(super) fn may_export(&self, name: &VolumeName) -> Result<(Rc<Slot>, Rc<Open>)> {
        let (slot, open) = self.open(name.pool.as_str())?;
        let volume = name.volume.as_str();
        if !open.volumes.borrow().contains_key(volume) {
            return Err(open.no_volume(name));
        }
        if slot.record.borrow().exports.iter().any(|export| export.volume.as_str() == volume) {
            let what = format!("volume \"{name}\" is exported already");
            return Err(Failure::coded(Code::Exists, what).hint(format!(
                "`forebay export list` says where; `forebay export remove {name}`"
            )));
        }
        Ok((slot, open))
    }

    /// Lets clients use a volume, from now on and after each start.
    pub(super) async fn add_export(&self, body: api::AddExport) -> Result<api::Export> {
        let name = body.volume;
        let (slot, open) = self.may_export(&name)?;
        let volume = name.volume.as_str();
        let place = body.place.unwrap_or_else(|| Place::Socket(self.usual_socket(&name)));
        if let Place::Socket(path) = &place {
            check_absolute(path)?;
        }
        let (read_only, require_tls) = (body.read_only, body.require_tls);
        let mut export =
            ExportRecord { volume: name.volume.clone(), place, read_only, require_tls };
        let host = self.serve_export(&open, &name, &export, PATIENCE).await?;
        // A free port that was taken is the same one after each start.
        match (&mut export.place, host.address) {
            (Place::Port(port), Some(taken)) => *port = taken.port(),
            (Place::Address(address), Some(taken)) => *address = taken,
            _ => {}
        }
        let tls = self.tls_use(&export);
        let mut record = slot.record.borrow().clone();
        record.exports.push(export);
        if let Err(failure) = self.state.store(&record).await {
            host.stop().await;
            self.forget_door(&name).await;
            return Err(failure);
        }
        *slot.record.borrow_mut() = record;
        let uri = host.uris.first().cloned().unwrap_or_default();
        open.exports.borrow_mut().insert(volume.to_owned(), Serving::Live(host));
        let what = format!("volume \"{name}\" is served at {uri}");
        self.journal.note("export-added", &name, what);
        Ok(api::Export { volume: name, uri, clients: 0, read_only, tls, reason: String::new() })
    }

    /// A pool, and its record without the export of this volume.
    pub(super) fn exports_without(&self, name: &VolumeName) -> Result<(Rc<Slot>, Record)> {
        let slot = self.slot(name.pool.as_str())?;
        let mut record = slot.record.borrow().clone();
        let before = record.exports.len();
        record.exports.retain(|export| export.volume != name.volume);
        if record.exports.len() == before {
            let what = format!("volume \"{name}\" is not exported");
            let known = record.exports.iter().map(|export| export.volume.as_str());
            let nearest = nearest_volume(name, known);
            return Err(Failure::coded(Code::NotFound, what)
                .hint(format!("{nearest}`forebay export list` shows what is")));
        }
        Ok((slot, record))
    }

    /// Closes an export's connections when what they asked is answered, and forgets it.
    pub(super) async fn remove_export(&self, name: &VolumeName) -> Result<Done> {
        let (slot, record) = self.exports_without(name)?;
        self.state.store(&record).await?;
        *slot.record.borrow_mut() = record;
        if let Some(open) = slot.open() {
            let serving = open.exports.borrow_mut().remove(name.volume.as_str());
            self.stop_hosts(|| open.is_held_up(), serving.into_iter().collect()).await;
        }
        if let Some(direct) = slot.direct() {
            let serving = direct.exports.borrow_mut().remove(name.volume.as_str());
            self.stop_hosts(|| direct.is_busy(), serving.into_iter().collect()).await;
        }
        self.forget_door(name).await;
        let what = format!("volume \"{name}\" is not exported any more");
        self.journal.note("export-removed", name, &what);
        Ok(Done::of(what))
    }

    /// Closes all exports of a pool; they come back with it.
    pub(super) async fn stop_exports(&self, open: &Open) {
        let serving = open.exports.take().into_values().collect();
        self.stop_hosts(|| open.is_held_up(), serving).await;
    }

    /// Closes exports, all at the same time: nobody is answered by a pool that has begun to stop because another
    /// one's client waits. Where requests are stuck at an origin, connections are cut off.
    pub(super) async fn stop_hosts(&self, is_held_up: impl Fn() -> bool, serving: Vec<Serving>) {
        let live = |serving| match serving {
            Serving::Live(host) => Some(host),
            _ => None,
        };
        let hosts: Vec<Host> = serving.into_iter().filter_map(live).collect();
        let stopped = all(hosts.iter().map(Host::stop).collect());
        if self.unless_stuck(is_held_up, stopped).await.is_none() {
            all(hosts.iter().map(Host::cut_off).collect()).await;
        }
    }

    /// Whether the daemon was told to export a volume.
    pub(super) fn is_exported(&self, name: &VolumeName) -> bool {
        let slots = self.slots.borrow();
        slots.get(name.pool.as_str()).is_some_and(|slot| {
            slot.record.borrow().exports.iter().any(|export| export.volume == name.volume)
        })
    }

    /// Refuses while clients are connected to a pool.
    pub(super) fn refuse_clients(&self, slot: &Slot) -> Result<()> {
        let is_busy = |(volume, serving): (&String, &Serving)| match serving {
            Serving::Live(host) if host.clients() > 0 => Some((volume.clone(), host.clients())),
            _ => None,
        };
        let busy = slot.of_exports(|exports| exports.iter().find_map(is_busy)).flatten();
        let Some((volume, count)) = busy else { return Ok(()) };
        let name = format!("{}/{volume}", slot.record.borrow().name);
        let clients = match count {
            1 => "1 client is".to_owned(),
            count => format!("{count} clients are"),
        };
        Err(Failure::coded(Code::Busy, format!("{clients} connected to \"{name}\""))
            .hint(format!("disconnect them, or close it: `forebay export remove {name}`")))
    }
}

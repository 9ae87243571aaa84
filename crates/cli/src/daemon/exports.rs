//! Exports: where clients reach volumes.

use std::path::PathBuf;
use std::rc::Rc;

use forebay_control::api::{self, Done, Place};
use forebay_control::error::Code;
use forebay_control::name::VolumeName;

use super::pools::check_absolute;
use super::state::{ExportRecord, Record};
use super::volumes::no_volume;
use super::{Attached, Daemon, Open, Serving, Slot};
use crate::Result;
use crate::export::Access;
use crate::failure::Failure;
use crate::host::{Doors, Host, Places};

impl Daemon {
    /// The socket of an export for which nobody names a place. "@" is in no name.
    pub(super) fn usual_socket(&self, name: &VolumeName) -> PathBuf {
        self.config.run_dir.join(format!("{}@{}.sock", name.pool, name.volume))
    }

    /// Starts the export of a volume that has come online, if it has one.
    pub(super) async fn start_export(&self, slot: &Slot, open: &Rc<Open>, volume: &str) {
        let pool = slot.record.borrow().name.clone();
        let record = {
            let record = slot.record.borrow();
            record.exports.iter().find(|export| export.volume.as_str() == volume).cloned()
        };
        let Some(record) = record else { return };
        let serving = match self.serve_export(open, &record).await {
            Ok(host) => Serving::Live(host),
            Err(failure) => {
                let what = format!("export of \"{pool}/{volume}\": {}", failure.what());
                self.journal.warn("export-failed", pool.as_str(), what);
                Serving::Failed(failure)
            }
        };
        open.exports.borrow_mut().insert(volume.to_owned(), serving);
    }

    async fn serve_export(&self, open: &Rc<Open>, record: &ExportRecord) -> Result<Host> {
        let volume = match open.volumes.borrow().get(record.volume.as_str()) {
            Some(Attached::Online(volume)) => Rc::clone(volume),
            Some(Attached::Missing { why, .. }) => return Err(why.clone()),
            None => return Err(Failure::coded(Code::NotFound, "its volume is gone")),
        };
        let places = match &record.place {
            Place::Socket(path) => Places { socket: Some(path), port: None },
            Place::Port(port) => Places { socket: None, port: Some(*port) },
        };
        let doors = Doors::open(&self.reactor, record.volume.as_str(), &places).await?;
        Host::start(&self.reactor, doors, &open.members, &volume, Access::ReadWrite, &self.crew)
            .await
    }

    /// A volume that is there and not exported.
    pub(super) fn may_export(&self, name: &VolumeName) -> Result<(Rc<Slot>, Rc<Open>)> {
        let (slot, open) = self.open(name.pool.as_str())?;
        let volume = name.volume.as_str();
        if !open.volumes.borrow().contains_key(volume) {
            return Err(no_volume(name));
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
        let mut export = ExportRecord { volume: name.volume.clone(), place };
        let host = self.serve_export(&open, &export).await?;
        // A free port that was taken is the same one after each start.
        if let (Place::Port(port @ 0), Some(taken)) = (&mut export.place, host.port) {
            *port = taken;
        }
        let mut record = slot.record.borrow().clone();
        record.exports.push(export);
        if let Err(failure) = self.state.store(&record).await {
            host.stop().await;
            return Err(failure);
        }
        *slot.record.borrow_mut() = record;
        let uri = host.uris.first().cloned().unwrap_or_default();
        open.exports.borrow_mut().insert(volume.to_owned(), Serving::Live(host));
        let what = format!("volume \"{name}\" is served at {uri}");
        self.journal.note("export-added", name.pool.as_str(), what);
        Ok(api::Export { volume: name, uri, clients: 0, reason: String::new() })
    }

    /// A pool, and its record without the export of this volume.
    pub(super) fn exports_without(&self, name: &VolumeName) -> Result<(Rc<Slot>, Record)> {
        let slot = self.slot(name.pool.as_str())?;
        let mut record = slot.record.borrow().clone();
        let before = record.exports.len();
        record.exports.retain(|export| export.volume != name.volume);
        if record.exports.len() == before {
            let what = format!("volume \"{name}\" is not exported");
            return Err(
                Failure::coded(Code::NotFound, what).hint("`forebay export list` shows what is")
            );
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
            if let Some(Serving::Live(host)) = serving {
                host.stop().await;
            }
        }
        let what = format!("volume \"{name}\" is not exported any more");
        self.journal.note("export-removed", name.pool.as_str(), &what);
        Ok(Done::of(what))
    }

    /// Closes all exports of a pool; they come back with it.
    pub(super) async fn stop_exports(&self, open: &Open) {
        for serving in open.exports.take().into_values() {
            if let Serving::Live(host) = serving {
                host.stop().await;
            }
        }
    }

    /// Refuses while clients are connected to a pool.
    pub(super) fn refuse_clients(&self, slot: &Slot) -> Result<()> {
        let Some(open) = slot.open() else { return Ok(()) };
        let exports = open.exports.borrow();
        let busy = exports.iter().find_map(|(volume, serving)| match serving {
            Serving::Live(host) if host.clients() > 0 => Some((volume, host.clients())),
            _ => None,
        });
        let Some((volume, count)) = busy else { return Ok(()) };
        let name = format!("{}/{volume}", slot.record.borrow().name);
        Err(Failure::coded(Code::Busy, format!("{count} clients are connected to \"{name}\""))
            .hint(format!("disconnect them, or close it: `forebay export remove {name}`")))
    }
}

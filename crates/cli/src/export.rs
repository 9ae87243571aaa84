//! A volume as an export of the NBD server.

use std::rc::Rc;
use std::sync::Arc;

use forebay_device::{Buf, Data, Nanos};
use forebay_engine::{Client, Error, ErrorKind, Place};
use forebay_export::nbd::limits::{BYTES_INFLIGHT_MAX, EXTENTS_MAX, SHARE_BYTES_INFLIGHT_MAX};
use forebay_export::nbd::{Places, Tls};
use forebay_export::{Export, ExportError, Extent, Tier, Zeroing};

/// See the head of the file.
pub(crate) struct VolumeExport {
    volume: Client,
    description: String,
    terms: Terms,
}

/// How an export is served.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// What complaints of its clients call it, if that is not the export's name.
    pub(crate) name: Option<String>,
    pub(crate) access: Access,
    /// Without it clients speak in the clear.
    pub(crate) tls: Option<Tls>,
    /// Whether they have to use it, even if others need not.
    pub(crate) needs_tls: bool,
    /// What they may have.
    pub(crate) clients: Clients,
}

/// What the clients of an export may have.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    /// Places of them on all reactors together; without it only each reactor's own limit.
    pub(crate) places: Option<Arc<Places>>,
    /// Memory of one client's requests in progress.
    pub(crate) inflight_bytes_max: u64,
    /// The same of all clients of one reactor, whatever they use.
    pub(crate) memory_bytes_max: u64,
    /// How long one may ask for nothing.
    pub(crate) idle_max: Option<Nanos>,
}

impl Default for Clients {
    fn default() -> Self {
        Self {
            places: None,
            inflight_bytes_max: BYTES_INFLIGHT_MAX,
            memory_bytes_max: SHARE_BYTES_INFLIGHT_MAX,
            idle_max: None,
        }
    }
}

impl From<Access> for Terms {
    /// In the clear.
    fn from(access: Access) -> Self {
        Self { name: None, access, tls: None, needs_tls: false, clients: Clients::default() }
    }
}

impl Terms {
    /// Whether every client has to use TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| self.needs_tls || tls.is_forced())
    }
}

/// What the clients of an export may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    ReadWrite,
    ReadOnly,
}

impl VolumeExport {
    /// The export of `volume`; each of its clients gets a view of its own.
    pub(crate) fn new(volume: Client, description: String, terms: Terms) -> Self {
        Self { volume, description, terms }
    }
}

/// What a client is told of an engine's error.
fn told(error: &Error) -> ExportError {
    match error.kind {
        ErrorKind::Io | ErrorKind::Damaged | ErrorKind::Stuck => ExportError::Io,
        ErrorKind::OutOfRange | ErrorKind::Invalid => ExportError::Invalid,
        ErrorKind::Stopping => ExportError::ShuttingDown,
        ErrorKind::Unsupported => ExportError::Unsupported,
        ErrorKind::Refused
        | ErrorKind::Future
        | ErrorKind::NeedsDecision
        | ErrorKind::Held
        | ErrorKind::NotFound => ExportError::Io,
    }
}

impl Export for VolumeExport {
    fn name(&self) -> &str {
        self.volume.name()
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn size_bytes(&self) -> u64 {
        self.volume.size_bytes()
    }

    fn read_only(&self) -> bool {
        self.terms.access == Access::ReadOnly
    }

    fn needs_tls(&self) -> bool {
        self.terms.needs_tls
    }

    /// A failed flush of the origin is told to each client, not to the first that asks.
    fn for_client(self: Rc<Self>) -> Rc<Self> {
        Rc::new(Self::new(self.volume.session(), self.description.clone(), self.terms.clone()))
    }

    fn take_leave(&self) {
        self.volume.take_leave();
    }

    async fn read(&self, offset: u64, buf: Buf) -> (Buf, Result<(), ExportError>) {
        let (buf, result) = self.volume.read(offset, buf).await;
        (buf, result.map_err(|error| told(&error)))
    }

    async fn write(&self, offset: u64, data: Data, fua: bool) -> Result<(), ExportError> {
        self.volume.write(offset, data, fua).await.map_err(|error| told(&error))
    }

    async fn flush(&self) -> Result<(), ExportError> {
        self.volume.flush().await.map_err(|error| told(&error))
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), ExportError> {
        self.volume.trim(offset, len, fua).await.map_err(|error| told(&error))
    }

    /// Zeroes take no space on any device, and a destaged zero keeps the origin's: the engine never
    /// punches a hole for them.
    async fn write_zeroes(&self, offset: u64, len: u64, how: Zeroing) -> Result<(), ExportError> {
        let result = if how.only_if_fast {
            self.volume.write_zeroes_fast(offset, len, how.fua).await
        } else {
            self.volume.write_zeroes(offset, len, how.fua).await
        };
        result.map_err(|error| told(&error))
    }

    async fn status(&self, offset: u64, len: u64) -> Result<Vec<Extent>, ExportError> {
        let extents = Vec::with_capacity(EXTENTS_MAX);
        let (extents, result) = self.volume.status(offset, len, extents).await;
        result.map_err(|error| told(&error))?;
        Ok(extents.into_iter().map(extent).collect())
    }

    async fn prefetch(&self, offset: u64, len: u64) -> Result<(), ExportError> {
        self.volume.prefetch(offset, len).await.map_err(|error| told(&error))
    }
}

const _: () = assert!(forebay_engine::limits::STATUS_EXTENTS_MAX == EXTENTS_MAX);

/// What the engine knows, in the words of an export.
fn extent(extent: forebay_engine::Extent) -> Extent {
    let tier = match extent.place {
        Place::Origin => Tier::Origin,
        Place::Ram => Tier::Ram,
        Place::Clean => Tier::SsdClean,
        Place::Dirty | Place::Zeroes => Tier::SsdDirty,
        Place::Lost => Tier::Lost,
    };
    Extent { len: extent.len, is_zero: extent.place == Place::Zeroes, tier }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_device::model::disk::{DiskSettings, SimDisk};
    use forebay_device::model::fault::{Failing, Faults, Ops, Trigger};
    use forebay_device::model::world::World;
    use forebay_device::{BlockDevice, IoErrorKind, Runtime};
    use forebay_engine::{CreateOptions, MemoryWitness, Mode, Tuning, VolumeSpec};

    /// A volume without a write cache, and what makes the flushes of its origin fail.
    async fn readonly_volume(world: &Rc<World>) -> (Client, Rc<Faults>) {
        let runtime = || Rc::clone(world) as Rc<dyn Runtime>;
        let member = SimDisk::new(world, DiskSettings::ssd(4 << 20, 512), 1);
        let members = vec![member as Rc<dyn BlockDevice>];
        let witness = Rc::<MemoryWitness>::default();
        let options =
            CreateOptions { segment_bytes: Some(64 << 10), ..CreateOptions::named("pool") };
        forebay_engine::create(world.as_ref(), &members, &*witness, &options)
            .await
            .expect("create");
        let pool = forebay_engine::open(runtime(), members, witness, Tuning::default()).await;
        let faults = Faults::new(1);
        let origin = Rc::new(Failing {
            inner: SimDisk::new(world, DiskSettings::origin(1 << 20, 512, true), 2),
            faults: Rc::clone(&faults),
            error: IoErrorKind::Media,
            runtime: runtime(),
        });
        let spec = VolumeSpec {
            name: "v".into(),
            origin: "origin".into(),
            mode: Mode::Readonly,
            cache_block_bytes: 4096,
            settings: Default::default(),
            accept_data_loss_on_ssd_failure: true,
        };
        let volume = pool.expect("open").add_volume(&spec, origin).await.expect("add");
        (volume.client(), faults)
    }

    #[test]
    fn a_failed_origin_flush_is_told_to_each_client() {
        let world = World::new(1);
        let it = Rc::clone(&world);
        let told = world.run_until(async move {
            let (volume, faults) = readonly_volume(&it).await;
            let export =
                Rc::new(VolumeExport::new(volume, String::new(), Access::ReadWrite.into()));
            let clients: Vec<_> = (0..3).map(|_| Rc::clone(&export).for_client()).collect();
            let data = Buf::zeroed(4096).freeze();
            clients[0].write(0, data, false).await.expect("write");
            faults.arm(Trigger::every(Ops::Flushes).times(1));
            let mut told = Vec::new();
            for _ in 0..2 {
                for client in &clients {
                    told.push(client.flush().await);
                }
            }
            told
        });
        let (failed, fine) = (Err(ExportError::Io), Ok(()));
        assert_eq!(told.expect("ends"), [failed, failed, failed, fine, fine, fine]);
    }
}

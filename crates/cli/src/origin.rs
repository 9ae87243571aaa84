//! Origins: as they are, or with the timing of a modelled array of disks.

use std::path::Path;
use std::rc::Rc;

use forebay_device::BlockDevice;
use forebay_device::model::array::{ArrayModel, ArrayParameters, Level};
use forebay_device::model::hdd::HddParameters;
use forebay_device::model::modelled::Modelled;
use forebay_device::real::file::FileDevice;
use forebay_device::real::open::OpenOptions;
use forebay_device::real::reactor::Reactor;
use forebay_device::runtime::Nanos;

use crate::Result;
use crate::failure::Failure;
use crate::members::Identity;
use crate::remote::Nbd;

/// The slow device of a volume of the daemon's.
#[derive(Clone)]
pub(crate) enum Origin {
    /// A file or block device.
    File(Rc<FileDevice>),
    /// An export of a server.
    Nbd(Rc<Nbd>),
}

impl Origin {
    /// As the engine sees it.
    pub(crate) fn device(&self) -> Rc<dyn BlockDevice> {
        match self {
            Origin::File(device) => Rc::clone(device) as _,
            Origin::Nbd(device) => Rc::clone(device) as _,
        }
    }

    /// Why one that is open cannot be used at present: its server is away, or it is not at its path.
    pub(crate) fn trouble(&self) -> Option<String> {
        match self {
            Origin::File(device) => device.displaced().map(|how| format!("its origin {how}")),
            Origin::Nbd(device) => device.trouble().map(|why| why.to_string()),
        }
    }
}

/// Sets the platters of the modelled disks turning out of step; any number would do.
const ARRAY_SEED: u64 = 8;

/// Opens an origin; while it is in use, tries for as long as `patience` says. `caches` are the
/// members of the pool in front of it.
///
/// # Errors
/// If it cannot be opened, or is one of the cache devices.
pub(crate) async fn open(
    reactor: &Rc<Reactor>,
    path: &Path,
    caches: &[Identity],
    patience: Nanos,
) -> Result<Rc<FileDevice>> {
    refuse_cache(path, caches)?;
    let device = FileDevice::open_when_free(reactor, path, &options(), patience).await?;
    Ok(Rc::new(device))
}

/// How origins are opened.
pub(crate) fn options() -> OpenOptions {
    OpenOptions { punch: true, ..OpenOptions::default() }
}

/// Refuses an origin that is one of the cache devices.
///
/// # Errors
/// If it is.
fn refuse_cache(path: &Path, caches: &[Identity]) -> Result<()> {
    let own = Identity::of(path);
    let Some(index) = caches.iter().position(|cache| Some(*cache) == own) else { return Ok(()) };
    let (path, number) = (path.display(), index + 1);
    Err(Failure::new(format!("the origin {path} is one of the cache devices, {number}"))
        .hint("a cache device holds the cache alone: give the origin another file or disk"))
}

/// The modelled array: eight nearline disks as RAID 5.
pub(crate) fn array() -> ArrayParameters {
    ArrayParameters {
        level: Level::Raid5,
        disks: 8,
        chunk_bytes: 64 << 10,
        member: HddParameters::st500nm0001(),
    }
}

/// The same device, as slow as the modelled array.
///
/// # Errors
/// If the array is smaller than the device.
pub(crate) fn modelled(
    reactor: &Rc<Reactor>,
    store: Rc<dyn BlockDevice>,
) -> Result<Rc<dyn BlockDevice>> {
    let parameters = array();
    let size_bytes = parameters.size_bytes();
    if store.geometry().size_bytes > size_bytes {
        return Err(Failure::new(format!("the modelled array holds only {size_bytes} B")));
    }
    let runtime = Rc::clone(reactor) as Rc<dyn forebay_device::Runtime>;
    Ok(Rc::new(Modelled::new(runtime, store, ArrayModel::new(parameters, ARRAY_SEED))))
}

//! A pool on a written file, with one volume, after a full lap of its log.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_device::model::store::MemoryStore;
use forebay_device::real::file::FileDevice;
use forebay_device::real::open::OpenOptions;
use forebay_device::real::prepare::prepare_file;
use forebay_device::real::reactor::{Config, Reactor};
use forebay_device::{BlockDevice, Runtime};
use forebay_engine as engine;
use forebay_engine::limits::REQUEST_BYTES_MAX;
use forebay_engine::{CreateOptions, MemoryWitness, Mode, Pool, Tuning, Volume, VolumeSpec};

use super::load::{self, Done, Load};
use crate::bench::Result;

/// The volume's name.
pub(super) const VOLUME: &str = "bench";

/// See the head of the file. The file is removed when it is dropped.
pub(super) struct Rig {
    pub reactor: Rc<Reactor>,
    pub runtime: Rc<dyn Runtime>,
    pub pool: Pool,
    pub volume: Rc<Volume>,
    path: PathBuf,
}

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Starts a reactor.
pub(crate) fn reactor() -> Result<Rc<Reactor>> {
    Reactor::new(Config::default()).map_err(|e| format!("{e}; {}", e.hint()))
}

/// Writes a file in full.
pub(crate) fn write_file(path: &Path, size_bytes: u64) -> Result<()> {
    let reactor = reactor()?;
    reactor
        .block_on(prepare_file(&reactor, path, size_bytes, |_| ()))
        .map_err(|e| format!("{e}; {}", e.hint()))
}

/// The volume of every row.
pub(crate) fn volume_spec() -> VolumeSpec {
    VolumeSpec {
        name: VOLUME.into(),
        origin: "memory".into(),
        mode: Mode::Writeback,
        cache_block_bytes: 64 << 10,
        settings: Default::default(),
        accept_data_loss_on_ssd_failure: true,
    }
}

/// What is behind the cache.
pub(super) enum Origin<'a> {
    /// Memory, which costs nothing but a copy.
    Memory,
    /// A file of the volume's size.
    File(&'a Path),
}

impl Origin<'_> {
    fn open(&self, reactor: &Rc<Reactor>, volume_bytes: u64) -> Result<Rc<dyn BlockDevice>> {
        Ok(match self {
            Self::Memory => Rc::new(MemoryStore::new(volume_bytes, 512)),
            Self::File(path) => {
                Rc::new(FileDevice::open(reactor, path, &OpenOptions::default()).map_err(text)?)
            }
        })
    }
}

impl Rig {
    /// Makes a pool in a new file of `cache_bytes` with a volume of `volume_bytes`, and appends a
    /// full lap.
    pub(super) fn new(
        path: &Path,
        cache_bytes: u64,
        volume_bytes: u64,
        origin: Origin<'_>,
        tuning: Tuning,
    ) -> Result<Self> {
        write_file(path, cache_bytes)?;
        let reactor = reactor()?;
        let runtime: Rc<dyn Runtime> = Rc::clone(&reactor) as Rc<dyn Runtime>;
        let (pool, volume) = reactor.block_on(async {
            let device = FileDevice::open(&reactor, path, &OpenOptions::default()).map_err(text)?;
            let devices: Vec<Rc<dyn BlockDevice>> = vec![Rc::new(device)];
            let witness = Rc::new(MemoryWitness::default());
            let options = CreateOptions::named("bench");
            engine::create(&*runtime, &devices, &*witness, &options).await.map_err(text)?;
            let pool = engine::open(Rc::clone(&runtime), devices, witness, tuning).await;
            let pool = pool.map_err(text)?;
            let origin = origin.open(&reactor, volume_bytes)?;
            let volume = pool.add_volume(&volume_spec(), origin).await.map_err(text)?;
            Ok::<_, String>((pool, Rc::new(volume)))
        })?;
        let rig = Self { reactor, runtime, pool, volume, path: path.to_owned() };
        let fills = (cache_bytes * 3 / 2).div_ceil(volume_bytes);
        for _ in 0..fills {
            rig.reactor.block_on(load::fill(&rig.runtime, &rig.volume, volume_bytes))?;
        }
        rig.settle()?;
        Ok(rig)
    }

    /// Brings everything to the origin, so that a round begins with nothing owed.
    pub(super) fn settle(&self) -> Result<()> {
        self.reactor.block_on(async {
            self.volume.destage().await.map_err(text)?;
            self.volume.flush().await.map_err(text)
        })
    }

    /// Runs a load for a time.
    pub(super) fn run(&self, load: Load, span_ms: u64) -> Result<Done> {
        self.reactor.block_on(load::run(&self.runtime, &self.volume, load, span_ms, u64::MAX))
    }

    /// Runs a load until it has written `bytes`.
    pub(super) fn append(&self, load: Load, bytes: u64) -> Result<Done> {
        let requests = bytes / load.block_bytes;
        self.reactor.block_on(load::run(&self.runtime, &self.volume, load, u64::MAX, requests))
    }

    /// Trims the volume from `from` to `to`: nothing of that is worth keeping any more.
    pub(super) fn forget(&self, from: u64, to: u64) -> Result<()> {
        self.reactor.block_on(async {
            for at in (from..to).step_by(REQUEST_BYTES_MAX as usize) {
                let len = REQUEST_BYTES_MAX.min(to - at);
                self.volume.trim(at, len, false).await.map_err(text)?;
            }
            Ok(())
        })
    }

    /// Value of a counter.
    pub(super) fn counter(&self, name: &str) -> u64 {
        let list = self.pool.counters().list();
        list.iter().find(|(known, _)| *known == name).map_or(0, |&(_, value)| value)
    }

    /// Bytes written to cache devices.
    pub(super) fn ssd_bytes(&self) -> u64 {
        let list = self.pool.counters().list();
        list.iter().filter(|(name, _)| name.starts_with("ssd_")).map(|(_, value)| value).sum()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.reactor.close();
        let _ = std::fs::remove_file(&self.path);
    }
}

//! What is served of a pool none of whose cache devices is there, if that is wanted (`devices.serve_without`).
//! Volumes of which the witness says that their origins have everything go on straight on these, without a cache.
//!
//! * A pool in memory that keeps nothing stands in; its volumes are in mode `bypass`, as large as they were.
//! * Before the first of them is served, the witness begins an epoch without members: what is clean in the cache
//!   is not believed when it is back (INV-98).
//! * It ends as soon as a cache device is seen, before anything is done with that.
//! * Not where another host had the pool when it was last seen: nobody here can tell what that one does now.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;

use forebay_control::error::Code;
use forebay_control::name::Name;
use forebay_device::BlockDevice;
use forebay_device::model::store::MemoryStore;
use forebay_device::runtime::{Nanos, Runtime, SECOND};
use forebay_engine::format::WitnessVolume;
use forebay_engine::witness::{Witness, without_members};
use forebay_engine::{CreateOptions, MemoryWitness, Mode, Pool, Tuning, Volume, VolumeSpec};

use super::waiting::Told;
use super::{Attached, Daemon, Open, Serving, Slot, State};
use crate::Result;
use crate::failure::Failure;
use crate::flag::{Flag, race};
use crate::members::{Members, PATIENCE};
use crate::notes::Notes;
use crate::origin::Origin;
use crate::patience::ANSWER_TIME_MAX;
use crate::text;
use crate::witness::FileWitness;

/// Bytes of memory in which the pool that keeps nothing has its log: 64 segments of the smallest size.
const LOG_BYTES: u64 = 4 << 20;
const SEGMENT_BYTES: u32 = 64 << 10;

/// Time between two attempts to serve something, or to use an origin.
const RETRY_INTERVAL: Nanos = 10 * SECOND;

/// What serves volumes of a pool that is not open.
pub(super) struct StandIn {
    pub(super) open: Rc<Open>,
    served: Vec<WitnessVolume>,
}

/// Attempts to have such a thing.
#[derive(Default)]
pub(super) struct Attempts {
    /// When the next one is due.
    next: Cell<Nanos>,
    /// Why there is none, as was told.
    told: RefCell<String>,
    /// Whether another host had the pool when its devices were last seen.
    pub(super) is_elsewhere: Cell<bool>,
}

impl Slot {
    /// Whether none of its cache devices has come, and it was this host's.
    fn is_stuck(&self) -> bool {
        match &*self.state.borrow() {
            State::Waiting { .. } => {
                self.told.get() == Told::Missing && !self.standing.is_elsewhere.get()
            }
            State::Failed(_) | State::Open(_) => false,
        }
    }
}

impl Daemon {
    /// Serves what can be served of a pool that does not open, and looks after that.
    pub(super) async fn stand_in_if_due(&self, slot: &Slot) {
        let now = self.reactor.now();
        if !self.config.devices.serve_without || !slot.is_stuck() {
            return;
        }
        let is_new = slot.stand_in.borrow().is_none();
        if is_new {
            if now < slot.standing.next.get() {
                return;
            }
            slot.standing.next.set(now + RETRY_INTERVAL);
            match self.begin_stand_in(slot).await {
                Ok(Some(stand_in)) => {
                    slot.standing.told.take();
                    *slot.stand_in.borrow_mut() = Some(stand_in);
                }
                Ok(None) => return,
                Err(failure) => {
                    let name = slot.record.borrow().name.clone();
                    let what = format!(
                        "no volume of pool \"{name}\" is served without it: {}",
                        failure.what()
                    );
                    if slot.standing.told.replace(what.clone()) != what {
                        self.journal.warn("pool-not-served", name.as_str(), what);
                    }
                    return;
                }
            }
        }
        let (open, served) = {
            let stand_in = slot.stand_in.borrow();
            let Some(it) = &*stand_in else { return };
            (Rc::clone(&it.open), it.served.clone())
        };
        let patience = if is_new { PATIENCE } else { 0 };
        for volume in &served {
            self.serve_straight(slot, &open, volume, patience).await;
        }
        self.retry_exports(slot, &open).await;
        self.look_at_origins(slot, &open);
    }

    /// `None` if there is nothing to be served.
    async fn begin_stand_in(&self, slot: &Slot) -> Result<Option<StandIn>> {
        let record = slot.record.borrow().clone();
        let path = self.state.witness(&record.id).await?;
        let witness = FileWitness::on(&slot.lane, &path, &[]).await?;
        let Some(bytes) = witness.load().await.map_err(Failure::new)? else { return Ok(None) };
        let known = without_members(&bytes)?;
        // One of an older version does not know how large a volume is, and a disk may be another one.
        let is_served = |v: &WitnessVolume| {
            v.size_bytes > 0 && record.exports.iter().any(|e| e.volume.as_str() == v.name)
        };
        let served: Vec<_> = known.served.into_iter().filter(is_served).collect();
        if known.pool.to_string() != record.id || served.is_empty() {
            return Ok(None);
        }
        let pool = self.pool_of_nothing(&record.name).await?;
        witness.store(known.witness).await.map_err(Failure::new)?;
        let open = Rc::new(Open::new(pool, Members::none(), Notes::default()));
        Ok(Some(StandIn { open, served }))
    }

    async fn pool_of_nothing(&self, name: &Name) -> Result<Pool> {
        let runtime = Rc::clone(&self.reactor) as Rc<dyn Runtime>;
        let log: Vec<Rc<dyn BlockDevice>> = vec![Rc::new(MemoryStore::new(LOG_BYTES, 512))];
        let witness = Rc::<MemoryWitness>::default();
        let segment_bytes = Some(SEGMENT_BYTES);
        let options = CreateOptions { segment_bytes, ..CreateOptions::named(name.as_str()) };
        forebay_engine::create(&*runtime, &log, &*witness, &options).await?;
        Ok(forebay_engine::open(runtime, log, witness, Tuning::default()).await?)
    }

    async fn serve_straight(
        &self,
        slot: &Slot,
        open: &Rc<Open>,
        volume: &WitnessVolume,
        patience: Nanos,
    ) {
        let known = match open.volumes.borrow().get(&volume.name) {
            Some(Attached::Online(_)) => return,
            Some(Attached::Missing { retry_at, .. }) if self.reactor.now() < *retry_at => return,
            Some(Attached::Missing { why, .. }) => Some(why.what().to_owned()),
            None => None,
        };
        let pool = slot.record.borrow().name.clone();
        let name = format!("\"{pool}/{}\"", volume.name);
        let subject = || (pool.as_str(), volume.name.clone());
        let attached = match self.attach_straight(open, volume, patience).await {
            Ok((attached, origin)) => {
                let what = format!(
                    "volume {name} is served straight from its origin, without a cache: its pool \
                     is not open"
                );
                self.journal.warn("volume-without-cache", subject(), what);
                open.origins.borrow_mut().insert(volume.name.clone(), origin);
                Attached::Online(Rc::new(attached))
            }
            Err(why) => {
                if known.as_deref() != Some(why.what()) {
                    let what = format!("volume {name}: {}", why.what());
                    self.journal.warn("origin-missing", subject(), what);
                }
                let pause = if why.code() == Code::NotFound { 0 } else { RETRY_INTERVAL };
                Attached::Missing { why, retry_at: self.reactor.now() + pause }
            }
        };
        let is_online = matches!(attached, Attached::Online(_));
        open.volumes.borrow_mut().insert(volume.name.clone(), attached);
        if is_online {
            self.start_export(slot, open, &volume.name).await;
        }
    }

    async fn attach_straight(
        &self,
        open: &Open,
        volume: &WitnessVolume,
        patience: Nanos,
    ) -> Result<(Volume, Origin)> {
        let origin = self.open_origin(Path::new(&volume.origin), patience).await?;
        let size_bytes = origin.device().geometry().size_bytes / 512 * 512;
        if size_bytes != volume.size_bytes {
            let (own, known) = (text::bytes(size_bytes), text::bytes(volume.size_bytes));
            let what = format!("its origin has {own}, the volume {known}");
            return Err(
                Failure::new(what).hint("attach the right disk; or attach the cache devices")
            );
        }
        let spec = VolumeSpec {
            name: volume.name.clone(),
            origin: volume.origin.clone(),
            mode: Mode::Bypass,
            cache_block_bytes: 4096,
            settings: Default::default(),
            accept_data_loss_on_ssd_failure: true,
        };
        Ok((open.pool.add_volume(&spec, origin.device()).await?, origin))
    }

    /// Ends what serves volumes of a pool that was not open.
    pub(super) async fn end_stand_in(&self, slot: &Slot) {
        let Some(StandIn { open, served }) = slot.stand_in.take() else { return };
        for volume in served {
            self.opening.forget(Path::new(&volume.origin));
        }
        let ended = Rc::new(Flag::default());
        let told = Rc::clone(&ended);
        self.reactor.spawn(Box::pin(async move {
            for serving in open.exports.take().into_values() {
                if let Serving::Live(host) = serving {
                    host.stop().await;
                }
            }
            drop((open.volumes.take(), open.origins.take()));
            if let Some(open) = Rc::into_inner(open) {
                // Nothing is in it that could be lost.
                let _ = open.pool.stop().await;
            }
            told.raise();
        }));
        // An origin that hangs keeps only itself: it stays in use until it has answered.
        let _ = race(ended.wait(), self.runtime().sleep(ANSWER_TIME_MAX)).await;
    }

    /// Ends what stands in for one volume, whose export is gone.
    pub(super) fn let_go_of(&self, slot: &Slot, volume: &str) {
        let mut stand_in = slot.stand_in.borrow_mut();
        let Some(StandIn { open, served }) = &mut *stand_in else { return };
        served.retain(|known| known.name != volume);
        open.volumes.borrow_mut().remove(volume);
        open.origins.borrow_mut().remove(volume);
    }
}

//! Origins that are served without a cache in front of them, of pools that are [bypassed](super::bypass): attached, exported,
//! described.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_control::api::{self, Member, MemberState, Mode, PoolHealth, PoolState, VolumeState};
use forebay_control::error::Code;
use forebay_control::name::{Name, VolumeName};
use forebay_device::real::file::FileDevice;
use forebay_device::runtime::{Nanos, Runtime};

use super::scan::Sight;
use super::state::{Bypassed, BypassedVolume, ExportRecord};
use super::verdict::{Verdict, mend_origin};
use super::volumes::{RETRY_INTERVAL, api_mode, missing_state};
use super::{Daemon, Serving, Slot, State, Troubles};
use crate::Result;
use crate::failure::Failure;
use crate::host::Host;
use crate::members::PATIENCE;
use crate::origin::Origin;
use crate::plain::Plain;
use crate::text;

/// Names of volumes that a sentence has; a pool may have many.
const NAMED_MAX: usize = 8;

/// What is served of a pool without its cache devices.
#[derive(Default)]
pub(super) struct Direct {
    volumes: RefCell<BTreeMap<String, Reached>>,
    pub(super) exports: RefCell<BTreeMap<String, Serving>>,
    /// Of the origins in use, what was told to be wrong with them.
    troubles: Troubles,
    /// Whether it was told that its devices are there, and stale.
    has_told: Cell<bool>,
}

/// A volume of such a pool.
enum Reached {
    Online(Origin, Rc<Plain>),
    /// Its origin cannot be used, and is tried again if it is there then.
    Missing {
        why: Failure,
        retry_at: Nanos,
    },
}

impl Reached {
    /// What is wrong with an origin that is in use, and the state that its volume is in.
    fn trouble(&self) -> Option<(VolumeState, String)> {
        let Reached::Online(origin, plain) = self else { return None };
        let fails = || plain.trouble().map(|why| (VolumeState::OriginFailed, why.to_string()));
        origin.trouble().map(|why| (VolumeState::OriginMissing, why)).or_else(fails)
    }
}

impl Direct {
    /// Whether an origin has not answered all that it was asked for.
    pub(super) fn is_busy(&self) -> bool {
        self.volumes.borrow().values().any(|volume| match volume {
            Reached::Online(_, plain) => plain.is_busy(),
            Reached::Missing { .. } => false,
        })
    }

    /// The state of a volume, and why it is not served, if so.
    fn state_of(&self, volume: &BypassedVolume) -> (VolumeState, String) {
        if volume.withheld {
            let why = "its origin may lack what only the pool's cache devices have";
            return (VolumeState::Withheld, why.to_owned());
        }
        match self.volumes.borrow().get(volume.name.as_str()) {
            Some(reached @ Reached::Online(..)) => {
                reached.trouble().unwrap_or((VolumeState::Bypassed, String::new()))
            }
            Some(Reached::Missing { why, .. }) => (missing_state(why), why.what().to_owned()),
            None => (VolumeState::OriginMissing, "its origin is being attached".to_owned()),
        }
    }
}

/// Some names as a part of a sentence.
pub(super) fn listed(names: &[String]) -> String {
    let quoted: Vec<_> = names.iter().take(NAMED_MAX).map(|name| format!("\"{name}\"")).collect();
    match names.len().saturating_sub(NAMED_MAX) {
        0 => quoted.join(", "),
        more => format!("{}, and {more} more", quoted.join(", ")),
    }
}

/// What origins have, of volumes with whether they may be dirty, as a sentence; and whether some have everything.
pub(super) fn on_origins(volumes: impl Iterator<Item = (String, bool)>) -> (String, bool) {
    let (dirty, clean): (Vec<_>, Vec<_>) = volumes.partition(|(_, may_be_dirty)| *may_be_dirty);
    let names = |some: Vec<(String, bool)>| some.into_iter().map(|it| it.0).collect::<Vec<_>>();
    let (dirty, clean) = (names(dirty), names(clean));
    let lacking = "may lack data that only its cache devices have";
    let what = match (clean.as_slice(), dirty.as_slice()) {
        ([], []) => String::new(),
        (_, []) => "Every origin has all of its data.".to_owned(),
        ([], dirty) => format!("The origins of all volumes {lacking}: {}.", listed(dirty)),
        (clean, dirty) => format!(
            "The origins of {} have all of their data; those of {} {lacking}.",
            listed(clean),
            listed(dirty)
        ),
    };
    (what, !clean.is_empty())
}

/// What there is to do if the cache devices of a pool are gone, where something can be served without them.
pub(super) fn way_out(pool: &str, is_some_clean: bool) -> String {
    match is_some_clean {
        true => format!(
            "; or, if they do not come back, serve what is whole straight from its origin: `forebay pool bypass {pool}`"
        ),
        false => String::new(),
    }
}

/// What names an origin, as it is stored.
pub(super) fn hex(identity: Option<[u8; 32]>) -> Option<String> {
    identity.map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Refuses what is at the path of an origin if it is another disk, or a smaller one, than was there.
fn check_same(volume: &BypassedVolume, origin: &Origin) -> Result<()> {
    let (device, path) = (origin.device(), &volume.origin);
    let (size_bytes, identity) = (device.geometry().size_bytes / 512 * 512, hex(device.identity()));
    let hint = "attach the right origin: nothing is read or written meanwhile";
    if volume.identity.is_some() && volume.identity != identity {
        let what = format!("another disk is at {path} than the origin of the volume");
        return Err(Failure::new(what).hint(hint));
    }
    match volume.size_bytes {
        Some(was) if size_bytes < was => {
            let [is, was] = [size_bytes, was].map(text::bytes);
            Err(Failure::new(format!("{path} has {is}, the volume {was}")).hint(hint))
        }
        _ => Ok(()),
    }
}

impl Slot {
    /// Whether a volume waits for an origin at this path, to be served from there.
    pub(super) fn awaits_directly(&self, path: &Path) -> bool {
        let (Some(direct), record) = (self.direct(), self.record.borrow()) else { return false };
        let volumes = record.bypassed.iter().flat_map(|bypassed| &bypassed.volumes);
        let reached = direct.volumes.borrow();
        let is_missing =
            |name: &Name| !matches!(reached.get(name.as_str()), Some(Reached::Online(..)));
        volumes
            .filter(|it| !it.withheld)
            .any(|it| Path::new(&it.origin) == path && is_missing(&it.name))
    }

    /// The origins that are used without a cache, and their paths.
    pub(super) fn direct_files(&self) -> Vec<(PathBuf, Rc<FileDevice>)> {
        let (Some(direct), record) = (self.direct(), self.record.borrow()) else {
            return Vec::new();
        };
        let volumes = record.bypassed.iter().flat_map(|bypassed| &bypassed.volumes);
        let reached = direct.volumes.borrow();
        let file = |volume: &BypassedVolume| match reached.get(volume.name.as_str())? {
            Reached::Online(Origin::File(file), _) => {
                Some((PathBuf::from(&volume.origin), Rc::clone(file)))
            }
            _ => None,
        };
        volumes.filter_map(file).collect()
    }

    /// Whether it is served without its cache devices, and they have nothing that an origin lacks.
    pub(super) fn owes_nothing(&self) -> bool {
        let record = self.record.borrow();
        let is_whole = |it: &Bypassed| it.volumes.iter().all(|volume| !volume.withheld);
        self.direct().is_some() && record.bypassed.as_ref().is_some_and(is_whole)
    }
}

impl Daemon {
    /// Looks for origins and exports that were not there, and says if cache devices are there again.
    pub(super) async fn look_after_direct(
        &self,
        slot: &Slot,
        direct: &Rc<Direct>,
        sight: Option<&Sight>,
    ) {
        if !self.is_ending() {
            self.serve_directly(slot, direct).await;
        }
        self.look_at_direct(slot, direct);
        let Some(sight) = sight else { return };
        slot.see(sight);
        let name = slot.record.borrow().name.clone();
        let back = slot.seen.borrow().first().map(|found| found.path.display().to_string());
        let Some(path) = back else { return direct.has_told.set(false) };
        if !direct.has_told.replace(true) {
            let what = format!(
                "cache device {path} of pool \"{name}\" is there, and stale: the pool is served without it"
            );
            self.journal.warn("member-stale", (name.as_str(), path), what);
        }
    }

    /// Tells of origins that do not work any more, or do again.
    fn look_at_direct(&self, slot: &Slot, direct: &Direct) {
        for (volume, reached) in &*direct.volumes.borrow() {
            let Reached::Online(_, plain) = reached else { continue };
            let plain = Rc::clone(plain);
            let trouble = reached.trouble();
            if trouble.is_some() || !plain.is_unsure() {
                self.tell_trouble(slot, volume, trouble, &direct.troubles);
            }
            self.reactor.spawn(Box::pin(async move { plain.probe().await }));
        }
    }

    pub(super) async fn serve_directly(&self, slot: &Slot, direct: &Rc<Direct>) {
        let Some(bypassed) = slot.record.borrow().bypassed.clone() else { return };
        for volume in bypassed.volumes.iter().filter(|volume| !volume.withheld) {
            self.reach(slot, direct, volume).await;
        }
        let due = self.due(&direct.exports.borrow());
        for volume in due {
            self.start_direct_export(slot, direct, &volume).await;
        }
    }

    /// Attaches the origin of a volume, unless it is; then its export.
    async fn reach(&self, slot: &Slot, direct: &Rc<Direct>, volume: &BypassedVolume) {
        let pool = slot.record.borrow().name.clone();
        let name = volume.name.to_string();
        let known = match direct.volumes.borrow().get(&name) {
            Some(Reached::Online(..)) => return,
            Some(Reached::Missing { retry_at, .. }) if self.reactor.now() < *retry_at => return,
            Some(Reached::Missing { why, .. }) => Some(why.what().to_owned()),
            None => None,
        };
        let patience = if known.is_none() { PATIENCE } else { 0 };
        let opened: Result<Origin> = async {
            let origin = self.open_origin(Path::new(&volume.origin), patience).await?;
            check_same(volume, &origin)?;
            self.note_origin(slot, volume, &origin).await?;
            Ok(origin)
        }
        .await;
        let subject = (pool.as_str(), name.clone());
        let reached = match opened {
            Ok(origin) => {
                let device = origin.device();
                let size_bytes =
                    volume.size_bytes.unwrap_or(device.geometry().size_bytes / 512 * 512);
                let what =
                    format!("volume \"{pool}/{name}\" is served straight from {}", volume.origin);
                self.journal.note("volume-online", subject, what);
                self.tell_grown(pool.as_str(), &name, size_bytes, &origin);
                let runtime = Rc::clone(&self.reactor) as Rc<dyn Runtime>;
                let plain = Plain::new(name.clone(), runtime, device, size_bytes);
                Reached::Online(origin, Rc::new(plain))
            }
            Err(why) => {
                if known.as_deref() != Some(why.what()) {
                    let what = format!("volume \"{pool}/{name}\": {}", why.what());
                    self.journal.warn("origin-missing", subject, what);
                }
                let pause = if why.code() == Code::NotFound { 0 } else { RETRY_INTERVAL };
                Reached::Missing { why, retry_at: self.reactor.now() + pause }
            }
        };
        let is_online = matches!(reached, Reached::Online(..));
        direct.volumes.borrow_mut().insert(name.clone(), reached);
        if is_online {
            self.start_direct_export(slot, direct, &name).await;
        }
    }

    /// Stores what the origin of a volume is, as far as that was not known, the first time that it is there.
    async fn note_origin(
        &self,
        slot: &Slot,
        volume: &BypassedVolume,
        origin: &Origin,
    ) -> Result<()> {
        let device = origin.device();
        let mut record = slot.record.borrow().clone();
        let volumes = record.bypassed.iter_mut().flat_map(|bypassed| &mut bypassed.volumes);
        for it in volumes.filter(|it| it.name == volume.name) {
            it.size_bytes.get_or_insert(device.geometry().size_bytes / 512 * 512);
            it.identity = it.identity.take().or_else(|| hex(device.identity()));
        }
        if record == *slot.record.borrow() {
            return Ok(());
        }
        self.state.store(&record).await?;
        *slot.record.borrow_mut() = record;
        Ok(())
    }

    async fn start_direct_export(&self, slot: &Slot, direct: &Rc<Direct>, volume: &str) {
        let serve = async |name: &VolumeName, record: &ExportRecord, patience| {
            self.serve_plain(direct, name, record, patience).await
        };
        self.start_serving(slot, &direct.exports, volume, serve).await;
    }

    async fn serve_plain(
        &self,
        direct: &Rc<Direct>,
        name: &VolumeName,
        record: &ExportRecord,
        patience: Nanos,
    ) -> Result<Host> {
        let plain = match direct.volumes.borrow().get(record.volume.as_str()) {
            Some(Reached::Online(_, plain)) => Rc::clone(plain),
            Some(Reached::Missing { why, .. }) => return Err(why.clone()),
            None => return Err(Failure::coded(Code::NotFound, "its volume is not served")),
        };
        let (terms, places) = self.terms(name, record)?;
        let doors = self.doors_kept(name, &places, patience).await?;
        Host::start_plain(&self.reactor, doors, &plain, &terms)
    }

    /// Ends what is served of a pool without its cache devices.
    pub(super) async fn stop_direct(&self, slot: &Slot, direct: &Direct) {
        let serving = direct.exports.take().into_values().collect();
        self.stop_hosts(|| direct.is_busy(), serving).await;
        let origins: Vec<PathBuf> = {
            let record = slot.record.borrow();
            let volumes = record.bypassed.iter().flat_map(|bypassed| &bypassed.volumes);
            volumes.map(|volume| volume.origin.clone().into()).collect()
        };
        for origin in origins {
            self.opening.forget(&origin);
            self.placing.forget(&origin);
        }
    }

    /// The same, to have the pool otherwise.
    ///
    /// # Errors
    /// If an origin has not answered all that it was asked for: that may reach it later, behind what is written then. It
    /// is served as before.
    pub(super) async fn end_direct(&self, slot: &Slot) -> Result<()> {
        let until = self.reactor.now();
        let State::Bypassed(direct) = slot.transition(State::Waiting { until }) else {
            return Ok(());
        };
        self.stop_direct(slot, &direct).await;
        if !direct.is_busy() {
            return Ok(());
        }
        slot.transition(State::Bypassed(Rc::clone(&direct)));
        self.restart_direct(slot, &direct).await;
        let what = format!("an origin of pool \"{}\" does not answer", slot.record.borrow().name);
        Err(Failure::coded(Code::Busy, what)
            .hint("what it was asked for may reach it later: bring it back first"))
    }

    /// Serves again what is attached.
    async fn restart_direct(&self, slot: &Slot, direct: &Rc<Direct>) {
        let volumes: Vec<String> = direct.volumes.borrow().keys().cloned().collect();
        for volume in volumes {
            self.start_direct_export(slot, direct, &volume).await;
        }
    }

    /// How a pool is that is served without its cache devices.
    pub(super) fn judge_direct(&self, slot: &Slot, direct: &Direct, name: &str) -> Verdict {
        let record = slot.record.borrow();
        let volumes = record.bypassed.iter().flat_map(|bypassed| &bypassed.volumes);
        let (mut withheld, mut missing, mut failing) = (Vec::new(), Vec::new(), Vec::new());
        for volume in volumes {
            let full = format!("{name}/{}", volume.name);
            match direct.state_of(volume).0 {
                VolumeState::Bypassed => {}
                VolumeState::Withheld => withheld.push(full),
                VolumeState::OriginFailed => failing.push(full),
                _ => missing.push(full),
            }
        }
        let is_failed =
            |(_, serving): &(&String, &Serving)| matches!(serving, Serving::Failed { .. });
        let exports = direct.exports.borrow();
        let unserved = exports.iter().find(is_failed).map(|(volume, _)| format!("{name}/{volume}"));
        let is_back = !slot.seen.borrow().is_empty();
        let mut summary =
            "It is served straight from its origins, without its cache devices, as was asked for."
                .to_owned();
        if !withheld.is_empty() {
            summary.push_str(&format!(
                " Not served, for their origins may lack what only those have: {}.",
                listed(&withheld)
            ));
        }
        if !missing.is_empty() {
            summary.push_str(&format!(" Without origin: {}.", listed(&missing)));
        }
        if !failing.is_empty() {
            summary.push_str(&format!(" With an origin that fails: {}.", listed(&failing)));
        }
        if let Some(first) = unserved.as_ref().filter(|_| missing.is_empty()) {
            summary.push_str(&format!(" Not served: \"{first}\", `forebay export list` says why."));
        }
        if is_back {
            summary.push_str(" Cache devices of it are there again, and stale.");
        }
        let back = format!(
            "`forebay pool import {name} --accept-missing`, which keeps nothing clean of what they hold"
        );
        let action = match missing.first().or(failing.first()) {
            Some(first) if missing.is_empty() => mend_origin(first),
            Some(first) => format!("attach the origin; `forebay volume show {first}` says why"),
            None if is_back => format!("to have its cache back: {back}"),
            None => format!(
                "to have its cache back, attach its devices: {back}; if they are gone for good, forget the pool and make \
                 another one for these origins: `forebay pool export {name}`"
            ),
        };
        let mut verdict = Verdict::new(PoolState::Bypassed, summary, action);
        if unserved.is_some() || [&withheld, &missing, &failing].iter().any(|it| !it.is_empty()) {
            verdict.health = PoolHealth::Failed;
        }
        verdict
    }

    /// The volumes of a pool that is not open and of which no device is to be asked, as its witness has them.
    pub(super) fn describe_unopened(&self, slot: &Slot) -> Vec<api::Volume> {
        let record = slot.record.borrow();
        let describe = |name: &Name, origin: &str, mode, size_bytes, is_clean: bool| {
            let name = VolumeName { pool: record.name.clone(), volume: name.clone() };
            unopened(name, origin, mode, size_bytes, is_clean)
        };
        if let Some((direct, bypassed)) = slot.direct().zip(record.bypassed.as_ref()) {
            let volumes = bypassed.volumes.iter().map(|volume| {
                let size_bytes = volume.size_bytes.unwrap_or(0);
                let known = describe(
                    &volume.name,
                    &volume.origin,
                    volume.mode,
                    size_bytes,
                    !volume.withheld,
                );
                let (state, reason) = direct.state_of(volume);
                let is_served = matches!(state, VolumeState::Bypassed | VolumeState::OriginFailed);
                let effective_reason = match is_served && volume.mode != Mode::Bypass {
                    true => "served without its pool's cache devices".to_owned(),
                    false => String::new(),
                };
                let exports = self.uris(slot, volume.name.as_str());
                let exports = exports.into_iter().map(|export| export.uri).collect();
                let effective_mode = is_served.then_some(Mode::Bypass);
                api::Volume { state, reason, effective_mode, effective_reason, exports, ..known }
            });
            return volumes.collect();
        }
        let witnessed = slot.witnessed.borrow();
        let volumes = witnessed.iter().filter_map(|it| {
            let (mode, is_clean) = (api_mode(it.mode), !it.may_be_dirty);
            Some(describe(&it.name.parse().ok()?, &it.origin, mode, 0, is_clean))
        });
        volumes.collect()
    }
}

/// A volume of which no more is known than what its pool's witness says.
fn unopened(
    name: VolumeName,
    origin: &str,
    mode: Mode,
    size_bytes: u64,
    is_clean: bool,
) -> api::Volume {
    let reason = match is_clean {
        true => "no cache device of its pool is there; its origin has all of its data",
        false => {
            "no cache device of its pool is there; its origin may lack data that only they have"
        }
    };
    api::Volume {
        name,
        origin: origin.to_owned(),
        size_bytes,
        mode,
        effective_mode: None,
        effective_reason: String::new(),
        state: VolumeState::Offline,
        reason: reason.to_owned(),
        dirty_bytes: is_clean.then_some(0),
        lost_bytes: 0,
        destage: None,
        safe_when: String::new(),
        dirty_for_s: None,
        dirty_age_max_s: 0,
        destage_hours: Default::default(),
        sequential_cutoff_bytes: 0,
        sequential_writes: Default::default(),
        sequential_when: Default::default(),
        sequential_reread_percent: None,
        sequential_reads_cached: false,
        population: Default::default(),
        space: Default::default(),
        exports: Vec::new(),
    }
}

/// Cache devices that a pool is served without: they are none of it, whether they are there or not.
pub(super) fn left_behind(members: &mut [Member]) {
    members.iter_mut().for_each(|member| member.state = MemberState::Lost);
}

//! Volumes: added, attached, changed, taken away.

use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;

use forebay_control::api::{self, Mode as ApiMode, SequentialWhen, SequentialWrites, VolumeState};
use forebay_control::error::Code;
use forebay_control::hours::DestageHours;
use forebay_control::name::{Name, VolumeName};
use forebay_control::nearest::{nearest, question};
use forebay_device::BlockDevice;
use forebay_device::real::open::typed;
use forebay_device::runtime::{Nanos, Runtime, SECOND};
use forebay_engine::policy::Worth;
use forebay_engine::{
    CUTOFF_NEVER, ErrorKind, Hours, Mode, Populate, Priority, Share, Tuning, Volume,
    VolumeSettings, VolumeSpec, bears_superblock, read_spare, read_superblock,
};
use forebay_export::nbd::client::{Host, Place as NbdPlace};

use super::describe::mode_name;
use super::jobs::{Aim, Job};
use super::places::if_gone;
use super::pools::check_absolute;
use super::population::{self, Asked};
use super::{Attached, Daemon, Open, Serving, Slot};
use crate::Result;
use crate::failure::Failure;
use crate::flag::race;
use crate::members::{PATIENCE, erase};
use crate::origin::Origin;
use crate::remote;
use crate::text;

/// What a miss brings in unless somebody says: one chunk of the usual array.
const CACHE_BLOCK_BYTES: u32 = 64 << 10;

/// Time between two attempts to use an origin that is there and cannot be used.
pub(super) const RETRY_INTERVAL: Nanos = 10 * SECOND;

/// Time between two attempts to bring data to an origin whose server is away.
const AWAY_INTERVAL: Nanos = SECOND;

/// Attempts before an error counts although the server is there: one that was away for a moment has forgotten what it
/// had not flushed, and the first flush behind that fails.
const AWAY_TRIES: u32 = 3;

/// Bytes of a 4 KiB block, the engine's unit.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// A mode as the engine names it.
pub(super) fn engine_mode(mode: ApiMode) -> Mode {
    match mode {
        ApiMode::Writeback => Mode::Writeback,
        ApiMode::Writethrough => Mode::Writethrough,
        ApiMode::Readonly => Mode::Readonly,
        ApiMode::Bypass => Mode::Bypass,
        ApiMode::Writeonly => Mode::Writeonly,
    }
}

/// A mode as people name it.
pub(super) fn api_mode(mode: Mode) -> ApiMode {
    match mode {
        Mode::Writeback => ApiMode::Writeback,
        Mode::Writethrough => ApiMode::Writethrough,
        Mode::Readonly => ApiMode::Readonly,
        Mode::Bypass => ApiMode::Bypass,
        Mode::Writeonly => ApiMode::Writeonly,
    }
}

/// When a volume is destaged in the background, as people say it.
pub(super) fn destage_hours(settings: &VolumeSettings) -> DestageHours {
    settings.destage_hours.map_or(DestageHours::Any, |hours| {
        let (from, until) = hours.minutes();
        DestageHours::Within(from, until)
    })
}

/// What becomes of streams of writes, and when streams pass by.
pub(super) fn sequential(settings: &VolumeSettings) -> (SequentialWrites, SequentialWhen) {
    let writes = match settings.sequential_writes {
        true => SequentialWrites::Bypass,
        false => SequentialWrites::Cache,
    };
    let when = match settings.sequential_when {
        forebay_engine::SequentialWhen::Auto => SequentialWhen::Auto,
        forebay_engine::SequentialWhen::Always => SequentialWhen::Always,
        forebay_engine::SequentialWhen::Full => SequentialWhen::Full,
    };
    (writes, when)
}

fn api_priority(priority: Priority) -> api::Priority {
    match priority {
        Priority::Low => api::Priority::Low,
        Priority::Normal => api::Priority::Normal,
        Priority::High => api::Priority::High,
    }
}

/// What a volume has of the cache, if that is known.
pub(super) fn space(settings: &VolumeSettings, share: Option<Share>) -> api::Space {
    api::Space {
        reservation_bytes: settings.reservation_bytes,
        limit_bytes: settings.limit_bytes,
        priority: api_priority(settings.priority),
        held_bytes: share.map(|share| share.held_bytes),
        ram_bytes: share.map(|share| share.ram_bytes),
        reserved_bytes: share.map(|share| share.reserved_bytes),
    }
}

/// Takes over what is asked for of a volume's space, and says what comes of it.
fn change_space(
    settings: &mut VolumeSettings,
    body: &api::SetVolumeSettings,
    share: Share,
    what: &mut Vec<String>,
) {
    if let Some(bytes) = body.reservation_bytes {
        settings.reservation_bytes = bytes;
        what.push(match bytes {
            0 => "nothing of the cache is reserved for it".to_owned(),
            _ => format!(
                "{} of the cache are reserved for it, whatever other volumes do; what is dirty of \
                 those has as much less room",
                text::bytes(bytes)
            ),
        });
    }
    if let Some(bytes) = body.limit_bytes {
        settings.limit_bytes = bytes;
        let held = text::bytes(share.held_bytes);
        what.push(match bytes {
            0 => "it may hold as much of the cache as there is".to_owned(),
            _ => format!(
                "it holds at most {} of the cache ({held} now): beyond that clean data is given up, \
                 and writes wait for the origin",
                text::bytes(bytes)
            ),
        });
    }
    if let Some(priority) = body.priority {
        settings.priority = match priority {
            api::Priority::Low => Priority::Low,
            api::Priority::Normal => Priority::Normal,
            api::Priority::High => Priority::High,
        };
        what.push(
            match priority {
                api::Priority::Low => {
                    "where there is not enough for all, it gets half of what a normal volume gets"
                }
                api::Priority::Normal => {
                    "where there is not enough for all, it gets as much as other normal volumes"
                }
                api::Priority::High => {
                    "where there is not enough for all, it gets twice what a normal volume gets"
                }
            }
            .to_owned(),
        );
    }
}

/// Bytes of a stream behind which nothing is cached; 0: everything is.
pub(super) fn cutoff_bytes(settings: &VolumeSettings) -> u64 {
    match settings.sequential_cutoff_bytes {
        0 => Tuning::default().sequential_cutoff_bytes,
        CUTOFF_NEVER => 0,
        bytes => bytes,
    }
}

/// A volume's settings after a change, and each part of that in words.
///
/// # Errors
/// If nothing is to be changed, or hours are none.
pub(super) fn changed(
    volume: &Volume,
    body: &api::SetVolumeSettings,
) -> Result<(VolumeSettings, u32, Vec<String>)> {
    let (mut settings, mut cache_block_bytes) = (volume.settings(), volume.cache_block_bytes());
    let mut what = Vec::new();
    if let Some(seconds) = body.dirty_age_max_s {
        settings.dirty_age_max_s = seconds;
        what.push(match seconds {
            0 => "dirty data may have any age".to_owned(),
            _ => format!("what is dirty for {} is destaged in any case", text::duration(seconds)),
        });
    }
    if let Some(hours) = body.destage_hours {
        settings.destage_hours = match hours {
            DestageHours::Any => None,
            DestageHours::Within(from, until) => {
                let refused =
                    || Failure::coded(Code::BadRequest, format!("{hours} is no part of the day"));
                Some(Hours::new(from, until).ok_or_else(refused)?)
            }
        };
        what.push(match hours {
            DestageHours::Any => "it is destaged whenever it is idle".to_owned(),
            DestageHours::Within(..) => {
                format!("it is destaged at {hours}, and else only if it must be")
            }
        });
    }
    if let Some(bytes) = body.sequential_cutoff_bytes {
        settings.sequential_cutoff_bytes = if bytes == 0 { CUTOFF_NEVER } else { bytes };
        what.push(match bytes {
            0 => "streams are cached however long they are".to_owned(),
            _ => format!("of a stream {} are cached", text::bytes(bytes)),
        });
    }
    if let Some(writes) = body.sequential_writes {
        settings.sequential_writes = writes == SequentialWrites::Bypass;
        what.push(match writes {
            SequentialWrites::Cache => "streams of writes are cached".to_owned(),
            SequentialWrites::Bypass => {
                "streams of writes go to the origin, and FLUSH waits for it".to_owned()
            }
        });
    }
    if let Some(when) = body.sequential_when {
        settings.sequential_when = match when {
            SequentialWhen::Auto => forebay_engine::SequentialWhen::Auto,
            SequentialWhen::Always => forebay_engine::SequentialWhen::Always,
            SequentialWhen::Full => forebay_engine::SequentialWhen::Full,
        };
        what.push(match when {
            SequentialWhen::Auto => {
                "streams of reads go past the cache as long as hardly any of them is read again"
                    .to_owned()
            }
            SequentialWhen::Always => "streams go past the cache at any time".to_owned(),
            SequentialWhen::Full => "streams go past the cache while it is full".to_owned(),
        });
    }
    change_space(&mut settings, body, volume.space(), &mut what);
    let asked = Asked {
        profile: body.profile,
        on_read: body.populate_on_read,
        on_write: body.populate_on_write,
        cache_block_bytes: body.cache_block_bytes,
    };
    if !asked.is_nothing() {
        (settings.populate, cache_block_bytes) =
            asked.beside(settings.populate, cache_block_bytes)?;
        let now = population::describe(
            settings.populate,
            cache_block_bytes,
            volume.mode(),
            volume.rereads(),
        );
        let block = text::bytes(cache_block_bytes.into());
        what.push(format!("{}, in cache blocks of {block}", now.reason));
    }
    if what.is_empty() {
        return Err(Failure::coded(Code::BadRequest, "nothing is to be changed")
            .hint("name a setting; `forebay volume set --help` lists them"));
    }
    volume.check_settings(&settings, cache_block_bytes)?;
    Ok((settings, cache_block_bytes, what))
}

impl Open {
    /// A volume whose origin is attached.
    pub(super) fn volume(&self, name: &VolumeName) -> Result<Rc<Volume>> {
        match self.volumes.borrow().get(name.volume.as_str()) {
            Some(Attached::Online(volume)) => Ok(Rc::clone(volume)),
            Some(Attached::Missing { why, .. }) => Err(Failure::new(why.what())
                .on(format!("volume \"{name}\" is not online"))
                .hint(why.hint_text())),
            None => Err(self.no_volume(name)),
        }
    }

    /// The error for a volume that is not there.
    pub(super) fn no_volume(&self, name: &VolumeName) -> Failure {
        no_volume(name, self.volumes.borrow().keys().map(String::as_str))
    }
}

/// How a job ends that was cancelled.
pub(super) fn cancelled() -> Failure {
    Failure::new("cancelled")
}

/// The error for a volume that is none of these of its pool.
pub(super) fn no_volume<'a>(name: &VolumeName, known: impl Iterator<Item = &'a str>) -> Failure {
    Failure::coded(Code::NotFound, format!("there is no volume \"{name}\"")).hint(format!(
        "{}`forebay volume list` shows those that are there",
        nearest_volume(name, known)
    ))
}

/// Which one of these volumes of a pool may have been meant, as a question.
pub(super) fn nearest_volume<'a>(
    name: &VolumeName,
    known: impl Iterator<Item = &'a str>,
) -> String {
    let nearest = nearest(name.volume.as_str(), known);
    nearest.map_or(String::new(), |volume| question(format_args!("{}/{volume}", name.pool)))
}

/// Refuses if some of a volume is on no cache device and on no origin: what was brought home is not all of it.
fn refuse_lost(name: &VolumeName, volume: &Volume) -> Result<()> {
    match volume.lost_blocks() * BLOCK_BYTES {
        0 => Ok(()),
        lost => {
            let lost = text::bytes(lost);
            let what = format!(
                "{lost} of volume \"{name}\" are lost, and its origin has older data there; it has \
                 everything else"
            );
            Err(Failure::coded(Code::NeedsDecision, what)
                .hint("restore them through the volume, or decide: `forebay explain blocks-lost`"))
        }
    }
}

/// A volume that is exported, and where.
pub(super) type OwnExport = (VolumeName, api::Place);

/// Refuses an export of this very daemon: its requests would wait for each other. Blocks.
pub(super) fn refuse_own(place: &NbdPlace, own: &[OwnExport]) -> Result<()> {
    // Also where nothing is exported: what hangs at a path is to hang here, for there is one such call for a path.
    let server = match &place.host {
        Host::Unix(path) => path.canonicalize().ok(),
        Host::Tcp(..) => None,
    };
    let is_own = |at: &api::Place| is_at(at, &place.host, server.as_deref());
    let Some((name, _)) = own.iter().find(|(_, at)| is_own(at)) else { return Ok(()) };
    let what = format!("{place} is an export of this daemon, that of \"{name}\"");
    Err(Failure::new(what)
        .hint("an origin is the slow disk with your data: give the volume another one"))
}

/// Whether an export's clients connect where an origin's server is, as far as that can be told without
/// asking anybody; `server` is its path without symbolic links.
fn is_at(own: &api::Place, host: &Host, server: Option<&Path>) -> bool {
    let is_server = |own: &Path| server.is_some() && own.canonicalize().ok().as_deref() == server;
    match (own, host) {
        (api::Place::Socket(own), Host::Unix(path)) => own == path || is_server(own),
        (api::Place::Port(own), Host::Tcp(name, port)) => own == port && is_this_machine(name),
        (api::Place::Address(own), Host::Tcp(name, port)) => {
            let is_same = name.parse() == Ok(own.ip());
            own.port() == *port && (is_same || is_this_machine(name))
        }
        _ => false,
    }
}

fn is_this_machine(name: &str) -> bool {
    name == "localhost"
        || name
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.is_unspecified() || ip.to_canonical().is_loopback())
}

/// How a volume is whose origin cannot be used for this reason.
pub(super) fn missing_state(why: &Failure) -> VolumeState {
    match why.code() {
        Code::NeedsDecision => VolumeState::OriginRefused,
        _ => VolumeState::OriginMissing,
    }
}

impl Daemon {
    pub(super) async fn open_origin(&self, path: &Path, patience: Nanos) -> Result<Origin> {
        let origin = self.open_device(path, patience).await?;
        let device = origin.device();
        if let Ok(superblock) = read_superblock(&*device).await {
            let what = format!(
                "{} is a cache device of pool \"{}\" ({})",
                path.display(),
                superblock.name,
                superblock.pool
            );
            return Err(Failure::new(what)
                .hint("an origin is the slow disk with your data; check the path"));
        }
        // Writes would go over a log that may hold what is nowhere else.
        if bears_superblock(&*device).await {
            return Err(Failure::new(format!("{} is a cache device that cannot be read", path.display())).hint(format!(
                "look at it with `forebay inspect {}`; only if the cache on it is given up for good: {}",
                typed(path),
                erase(path)
            )));
        }
        match read_spare(&*device).await {
            Ok(Some(spare)) => {
                let (path, name) = (path.display(), &spare.name);
                let what = format!("{path} is a spare of pool \"{name}\" ({})", spare.pool);
                return Err(Failure::new(what)
                    .hint("an origin is the slow disk with your data; check the path"));
            }
            Err(error) if error.kind == ErrorKind::Future => return Err(error.into()),
            Ok(None) | Err(_) => {}
        }
        Ok(origin)
    }

    /// Whether a volume that is not attached has its origin at this path.
    pub(super) fn is_awaited_at(&self, path: &Path) -> bool {
        let is_direct = |slot: &Rc<Slot>| slot.awaits_directly(path);
        self.slots.borrow().values().any(is_direct)
            || self.open_pools().iter().any(|(_, open)| {
                let attached = open.volumes.borrow();
                let is_awaited =
                    |name: &String| !matches!(attached.get(name), Some(Attached::Online(_)));
                let volumes = open.pool.superblock().volumes;
                volumes.iter().any(|v| Path::new(&v.origin) == path && is_awaited(&v.name))
            })
    }

    /// Attaches the volumes of an open pool that are not attached, and starts their exports.
    pub(super) async fn attach_volumes(&self, slot: &Slot, open: &Rc<Open>) {
        let pool = slot.record.borrow().name.clone();
        for record in open.pool.superblock().volumes {
            let subject = || (pool.as_str(), record.name.clone());
            let path = Path::new(&record.origin);
            let known = match open.volumes.borrow().get(&record.name) {
                Some(Attached::Online(_)) => continue,
                Some(Attached::Missing { retry_at, .. }) if self.reactor.now() < *retry_at => {
                    continue;
                }
                Some(Attached::Missing { why, .. }) => Some(why.what().to_owned()),
                None => None,
            };
            // Only the first time somebody may just be about to let go of it.
            let patience = if known.is_none() { PATIENCE } else { 0 };
            let attached: Result<_> = async {
                let origin = self.open_origin(path, patience).await?;
                Ok((open.pool.attach(&record.name, origin.device()).await?, origin))
            }
            .await;
            let place = match attached {
                Ok((volume, origin)) => {
                    let what = format!("volume \"{pool}/{}\" is online", record.name);
                    self.journal.note("volume-online", subject(), what);
                    self.tell_grown(pool.as_str(), &record.name, volume.size_bytes(), &origin);
                    open.origins.borrow_mut().insert(record.name.clone(), origin);
                    Self::resume_advisor(open, &record.name, &volume);
                    Attached::Online(Rc::new(volume))
                }
                Err(why) => {
                    if known.as_deref() != Some(why.what()) {
                        let what = format!("volume \"{pool}/{}\": {}", record.name, why.what());
                        let code = match missing_state(&why) {
                            VolumeState::OriginRefused => "origin-refused",
                            _ => "origin-missing",
                        };
                        self.journal.warn(code, subject(), what);
                    }
                    let is_there = why.code() != Code::NotFound;
                    let pause = if is_there { RETRY_INTERVAL } else { 0 };
                    Attached::Missing { why, retry_at: self.reactor.now() + pause }
                }
            };
            let is_online = matches!(place, Attached::Online(_));
            open.volumes.borrow_mut().insert(record.name.clone(), place);
            if is_online {
                self.start_export(slot, open, &record.name).await;
            }
        }
    }

    /// All that is served now, for [`refuse_own`]: what could not be may be where nothing answers.
    pub(super) fn own_exports(&self) -> Vec<OwnExport> {
        let (slots, mut own) = (self.slots.borrow(), Vec::new());
        for slot in slots.values() {
            let record = slot.record.borrow();
            let is_live = |volume: &Name| {
                let serving = slot.of_exports(|exports| {
                    matches!(exports.get(volume.as_str()), Some(Serving::Live(_)))
                });
                serving == Some(true)
            };
            own.extend(record.exports.iter().filter(|it| is_live(&it.volume)).map(|it| {
                let name = VolumeName { pool: record.name.clone(), volume: it.volume.clone() };
                (name, it.place.clone())
            }));
        }
        own
    }

    /// Refuses an origin that is a volume's already: who uses it then is this very daemon.
    async fn refuse_shared(&self, origin: &Path) -> Result<()> {
        let own = match origin.is_absolute() {
            true => self.identity_at(origin).await?,
            false => None,
        };
        let mut others = self.origins().await?.into_iter();
        let is_it = |at: &Path, other| at == origin || own.is_some() && own == other;
        let Some((.., other)) = others.find(|(at, other, _)| is_it(at, *other)) else {
            return Ok(());
        };
        let what = format!("{} is the origin of volume \"{other}\"", origin.display());
        let hint = "two volumes on one origin would overwrite each other: choose another disk";
        let if_gone = if_gone(&self.closed_pools(), &other.pool);
        Err(Failure::coded(Code::Exists, what).hint(format!("{hint}{if_gone}")))
    }

    /// Adds a volume, or says what it would be.
    pub(super) async fn add_volume(
        &self,
        pool: &Name,
        body: api::AddVolume,
    ) -> Result<api::Volume> {
        let (slot, open) = self.open(pool.as_str())?;
        let Some(origin) = body.origin.to_str() else {
            let what = format!("the path {} is not UTF-8", body.origin.display());
            return Err(Failure::coded(Code::BadRequest, what).hint("give it another name"));
        };
        // Two spellings of one export are one origin.
        let origin_path = match remote::place(origin)? {
            Some(place) => place.to_string(),
            None => check_absolute(&body.origin).map(|()| origin.to_owned())?,
        };
        let name = VolumeName { pool: pool.clone(), volume: body.name };
        let superblock = open.pool.superblock();
        if superblock.volumes.iter().any(|v| v.name == name.volume.as_str()) {
            return Err(Failure::coded(
                Code::Exists,
                format!("there is a volume \"{name}\" already"),
            )
            .hint("choose another name; `forebay volume list` shows those that are taken"));
        }
        self.refuse_shared(Path::new(&origin_path)).await?;
        let accept = body.accept_data_loss_on_ssd_failure
            || slot.record.borrow().accept_data_loss_on_ssd_failure;
        let safe = superblock.dirty_copies > 1 || accept;
        let usual = if safe { Mode::Writeback } else { Mode::Writethrough };
        let asked = Asked {
            profile: body.profile,
            on_read: body.populate_on_read,
            on_write: body.populate_on_write,
            cache_block_bytes: body.cache_block_bytes,
        };
        let (populate, cache_block_bytes) = asked.beside(Populate::Auto, CACHE_BLOCK_BYTES)?;
        let spec = VolumeSpec {
            name: name.volume.to_string(),
            origin: origin_path,
            mode: body.mode.map_or(usual, engine_mode),
            cache_block_bytes,
            settings: VolumeSettings { populate, ..VolumeSettings::default() },
            accept_data_loss_on_ssd_failure: accept,
        };
        let origin = self.open_origin(Path::new(&spec.origin), PATIENCE).await?;
        if body.dry_run {
            open.pool.check_spec(&spec)?;
            return Ok(api::Volume {
                name,
                origin: spec.origin,
                size_bytes: origin.device().geometry().size_bytes / 512 * 512,
                mode: api_mode(spec.mode),
                effective_mode: None,
                effective_reason: String::new(),
                state: VolumeState::Planned,
                reason: String::new(),
                dirty_bytes: Some(0),
                lost_bytes: 0,
                destage: None,
                safe_when: String::new(),
                dirty_for_s: None,
                dirty_age_max_s: 0,
                destage_hours: DestageHours::Any,
                sequential_cutoff_bytes: cutoff_bytes(&spec.settings),
                sequential_writes: SequentialWrites::Cache,
                sequential_when: SequentialWhen::Auto,
                sequential_reread_percent: None,
                sequential_reads_cached: false,
                population: population::describe(
                    populate,
                    cache_block_bytes,
                    spec.mode,
                    Worth::default(),
                ),
                space: space(&spec.settings, None),
                exports: Vec::new(),
            });
        }
        let volume = open.pool.add_volume(&spec, origin.device()).await?;
        open.origins.borrow_mut().insert(spec.name.clone(), origin);
        let online = Attached::Online(Rc::new(volume));
        open.volumes.borrow_mut().insert(spec.name.clone(), online);
        let what = format!("volume \"{name}\" was put in front of {}", spec.origin);
        self.journal.note("volume-added", &name, what);
        self.describe_volume(&name)
    }

    /// Changes how a volume is served, durably; then begins to bring home what is dirty, unless it is
    /// written back from now on. The mode holds, whatever becomes of that.
    pub(super) async fn set_volume(
        self: &Rc<Self>,
        name: &VolumeName,
        body: &api::SetVolume,
    ) -> Result<api::Job> {
        let (slot, open) = self.open(name.pool.as_str())?;
        let volume = open.volume(name)?;
        let aim = Aim::Mode(name.clone(), body.mode);
        if let Some(job) = self.jobs.join(&aim)? {
            return Ok(job);
        }
        let agrees = slot.record.borrow().accept_data_loss_on_ssd_failure;
        if !engine_mode(body.mode).writes_back() {
            // Written through, nothing more could be written.
            self.refuse_displaced(name).await?;
        }
        volume.set_mode_agreed(engine_mode(body.mode), agrees).await?;
        let mode = mode_name(body.mode);
        let reason = open.held_from(name.volume.as_str(), body.mode);
        let how = if reason.is_empty() { reason } else { format!(", and {reason}") };
        let what = format!("volume \"{name}\" is now {mode}{how}");
        self.journal.note("volume-mode", name, what);
        let comes_home = !engine_mode(body.mode).writes_back();
        let owed = Rc::clone(&volume);
        let left = move || if comes_home { owed.owed_blocks() * BLOCK_BYTES } else { 0 };
        let (it, name) = (Rc::clone(self), name.clone());
        let job = self.jobs.begin(aim, left, |job| async move {
            if !comes_home {
                return Ok(());
            }
            let home = it.bring_home(&job, &name, &volume).await;
            home.map_err(|failure| failure.on(format!("it is {mode}")))
        });
        Ok(self.jobs.look(&job))
    }

    /// Changes what is set for a volume.
    pub(super) async fn set_volume_settings(
        &self,
        name: &VolumeName,
        body: &api::SetVolumeSettings,
    ) -> Result<api::Volume> {
        let (_, open) = self.open(name.pool.as_str())?;
        let volume = open.volume(name)?;
        let (settings, cache_block_bytes, what) = changed(&volume, body)?;
        volume.set_with(settings, cache_block_bytes).await?;
        let what = format!("volume \"{name}\": {}", what.join("; "));
        self.journal.note("volume-set", name, what);
        self.describe_volume(name)
    }

    /// How large an origin is now. An export is as large as it was when it was opened.
    async fn size_of(&self, origin: &Origin, path: String) -> Result<u64> {
        let failed = |error| Failure::system("ask the origin for its size", &error);
        match origin {
            Origin::File(device) => {
                self.patiently(path, device.sizer().map_err(failed)?).await?.map_err(failed)
            }
            Origin::Nbd(device) => Ok(device.geometry().size_bytes),
        }
    }

    /// The size of a volume, and the size that its origin would give it now. With `grow` the origin has that size
    /// from now on.
    pub(super) async fn grown_size(&self, name: &VolumeName, grow: bool) -> Result<(u64, u64)> {
        let (_, open) = self.open(name.pool.as_str())?;
        let volume = open.volume(name)?;
        let origin = open.origins.borrow().get(name.volume.as_str()).cloned();
        let origin = origin.ok_or_else(|| open.no_volume(name))?;
        let path = self.describe_volume(name)?.origin;
        let size = self.size_of(&origin, path).await?;
        if size < volume.size_bytes() {
            let (size, was) = (text::bytes(size), text::bytes(volume.size_bytes()));
            let what = format!("the origin of volume \"{name}\" has {size}, the volume {was}");
            return Err(Failure::coded(Code::Refused, what)
                .hint("a volume never becomes smaller; give the origin its size back"));
        }
        let grown = open.pool.grown_size(name.volume.as_str(), size)?;
        if let Origin::File(device) = &origin
            && grow
        {
            device.grow(size);
        }
        Ok((volume.size_bytes(), grown))
    }

    /// Makes a volume as large as its origin has become.
    pub(super) async fn grow_volume(&self, name: &VolumeName) -> Result<api::Volume> {
        let (was, is) = self.grown_size(name, true).await?;
        if is > was {
            let (_, open) = self.open(name.pool.as_str())?;
            let size = open.pool.grow_volume(name.volume.as_str()).await?;
            let what = format!("volume \"{name}\" has grown to {}", text::bytes(size));
            self.journal.note("volume-grown", name, what);
        }
        self.describe_volume(name)
    }

    /// Brings everything of a volume to its origin; an error also if that has not all of it then, or cannot be
    /// found.
    async fn bring_home(&self, job: &Job, name: &VolumeName, volume: &Volume) -> Result<()> {
        self.destage(job, name, volume).await?;
        // Short, and not to be cut off.
        volume.note_clean().await?;
        refuse_lost(name, volume)?;
        self.refuse_displaced(name).await
    }

    /// Brings everything of a volume to its origin. A server that is away is waited for.
    pub(super) async fn destage(
        &self,
        job: &Job,
        name: &VolumeName,
        volume: &Volume,
    ) -> Result<()> {
        self.refuse_displaced(name).await?;
        let mut tries = 0;
        loop {
            let destaging = race(volume.destage(), self.until_lost(Some(name)));
            let destaged = job.unless_cancelled(destaging).await.ok_or_else(cancelled)?;
            let Ok(destaged) = destaged else {
                self.refuse_displaced(name).await?;
                continue;
            };
            tries += 1;
            match destaged {
                Err(error) if error.kind == ErrorKind::Io && self.is_cut_off(name, tries) => {
                    let pause = self.runtime().sleep(AWAY_INTERVAL);
                    let _ = job.unless_cancelled(pause).await.ok_or_else(cancelled)?;
                }
                destaged => return Ok(destaged?),
            }
        }
    }

    /// Whether the server of a volume's origin is away, or may have been when this failed.
    fn is_cut_off(&self, name: &VolumeName, tries: u32) -> bool {
        let Ok((_, open)) = self.open(name.pool.as_str()) else { return false };
        if open.pool.is_latched() || open.pool.lost_to().is_some() {
            return false;
        }
        match open.origins.borrow().get(name.volume.as_str()) {
            Some(Origin::Nbd(server)) => server.trouble().is_some() || tries < AWAY_TRIES,
            _ => false,
        }
    }

    /// Begins to bring everything of a volume to its origin, or joins who does.
    pub(super) fn flush_volume(self: &Rc<Self>, name: &VolumeName) -> Result<api::Job> {
        let (_, open) = self.open(name.pool.as_str())?;
        let volume = open.volume(name)?;
        let aim = Aim::Flush(name.clone());
        // One is enough for everybody who asks.
        if let Some(job) = self.jobs.join(&aim)? {
            return Ok(job);
        }
        let owed = Rc::clone(&volume);
        let left = move || owed.owed_blocks() * BLOCK_BYTES;
        let (it, name) = (Rc::clone(self), name.clone());
        let job = self
            .jobs
            .begin(aim, left, |job| async move { it.bring_home(&job, &name, &volume).await });
        Ok(self.jobs.look(&job))
    }
}

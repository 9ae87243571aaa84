//! What a change would do, without doing it. A plan fails as the change would: both look with the
//! same checks.

use std::path::Path;

use forebay_control::api::{
    AddExport, Change, ImportPool, MemberState, Mode, Place, Plan, SCHEMA, SetVolumeSettings,
    TlsUse,
};
use forebay_control::name::{Name, VolumeName};
use forebay_device::runtime::{Nanos, Runtime, SECOND};
use forebay_device::{BlockDevice, Buf};
use forebay_engine::format::Superblock;

use super::describe::{mode_name, plural};
use super::pools::check_absolute;
use super::state::ExportRecord;
use super::volumes::{BLOCK_BYTES, changed, engine_mode};
use super::{Daemon, Open};
use crate::Result;
use crate::text;

/// How the rate of a device is looked at before anything is moved: reads that are as long as those of a removal,
/// for long enough to be past its first answer, and not so long that anybody minds.
const PROBE_READ_BYTES: usize = 1 << 20;
const PROBE_TIME_MAX: Nanos = SECOND / 4;

pub(super) fn plan(what: impl Into<String>, steps: Vec<String>) -> Plan {
    Plan { schema: SCHEMA, done: false, what: what.into(), steps, erased: Vec::new() }
}

/// Bytes that the members of a superblock hold, each copy by itself.
pub(super) fn capacity(superblock: &Superblock) -> u64 {
    let segments: u64 = superblock.present().map(|m| u64::from(m.segments.count())).sum();
    segments * u64::from(superblock.segment_bytes)
}

/// Bytes a second that a device returns, one read after the other; `None` if it fails, or has too little.
async fn read_rate(runtime: &dyn Runtime, device: &dyn BlockDevice) -> Option<u64> {
    let (begun, size) = (runtime.now(), device.geometry().size_bytes);
    let (mut at, mut read) = (0, 0);
    while at + PROBE_READ_BYTES as u64 <= size && runtime.now() - begun < PROBE_TIME_MAX {
        device.read(at, Buf::new(PROBE_READ_BYTES)).await.result.ok()?;
        at += PROBE_READ_BYTES as u64;
        read += PROBE_READ_BYTES as u64;
    }
    let span = (runtime.now() - begun).max(1);
    u64::try_from(u128::from(read) * u128::from(SECOND) / u128::from(span)).ok().filter(|&r| r > 0)
}

/// What a pool that becomes larger costs in RAM, as a step.
fn index_step(was: &Superblock, is: &Superblock) -> String {
    let index = |superblock: &Superblock| text::bytes(superblock.index_memory_max);
    format!("its index takes at most {} of RAM, before {}", index(is), index(was))
}

/// Bytes of a volume that its origin lacks, as a person reads them.
fn dirty(open: &Open, volume: &VolumeName) -> String {
    text::bytes(open.dirty_bytes(volume.volume.as_str()))
}

impl Daemon {
    /// How long it takes at least to move so many bytes, by the rate of a device that takes part in it.
    pub(super) async fn time_step(
        &self,
        moved: u64,
        path: &Path,
        device: &dyn BlockDevice,
    ) -> String {
        let path = path.display();
        match read_rate(self.runtime(), device).await {
            Some(rate) => format!(
                "that takes {} at least, as fast as {path} was read just now ({}/s); clients that use \
                 them and flushes of origins add to it",
                text::left((moved / rate).max(1)),
                text::bytes(rate)
            ),
            None => format!("{path} cannot be read; nobody can tell how long that takes"),
        }
    }

    /// What a change would do.
    pub(super) async fn plan(&self, change: Change) -> Result<Plan> {
        match change {
            Change::ImportPool(body) => self.plan_import(&body).await,
            Change::ExportPool(name) => self.plan_export_pool(&name),
            Change::DestroyPool(name) => self.plan_destroy(&name),
            Change::AddDevice { pool, ssd } => self.plan_add_device(&pool, &ssd).await,
            Change::GrowDevice { pool, device } => self.plan_grow_device(&pool, &device).await,
            Change::AddSpare { pool, ssd } => self.plan_spare(&pool, &ssd).await,
            Change::ReplaceDevice { pool, old, new } => self.plan_replace(&pool, &old, &new).await,
            Change::RemoveDevice { pool, device } => self.plan_remove_device(&pool, &device).await,
            Change::StartScrub(name) => self.plan_start_scrub(&name),
            Change::StopScrub(name) => self.plan_stop_scrub(&name),
            Change::FlushVolume(name) => self.plan_flush(&name),
            Change::SetVolume { volume, mode } => self.plan_set(&volume, mode),
            Change::SetVolumeSettings { volume, settings } => {
                self.plan_settings(&volume, &settings)
            }
            Change::GrowVolume(name) => self.plan_grow(&name).await,
            Change::AcceptLost(name) => self.plan_accept_lost(&name),
            Change::AcceptOrigin { volume, dirty } => self.plan_accept_origin(&volume, dirty),
            Change::RemoveVolume(name) => self.plan_remove_volume(&name),
            Change::AddExport(body) => self.plan_add_export(body),
            Change::RemoveExport(name) => self.plan_remove_export(&name),
        }
    }

    async fn plan_import(&self, body: &ImportPool) -> Result<Plan> {
        let (pool, is_new) = self.look_for_import(body).await?;
        let missing = pool.members.iter().filter(|m| m.state == MemberState::Missing).count();
        let present = pool.members.iter().filter(|m| m.state == MemberState::Present).count();
        let mut steps = Vec::new();
        if is_new {
            steps.push("it is this daemon's from then on, and opened at each start".to_owned());
        }
        steps.push(match missing {
            0 => format!("it is opened with {}", plural(present, "cache device")),
            _ if body.accept_missing => format!(
                "it is opened without {}: writes that only they hold are lost, and they are never \
                 taken back",
                plural(missing, "cache device")
            ),
            _ => format!(
                "{missing} of {} are missing: it is opened only if nothing can be lost by that, and \
                 they are not taken back then",
                plural(missing + present, "cache device")
            ),
        });
        if body.take_over {
            steps.push(
                "if another host has it open, that one is watched, then waited for; if it is alive, \
                 nothing is changed"
                    .to_owned(),
            );
        }
        steps.push("its volumes are attached at the origins' paths".to_owned());
        Ok(plan(format!("pool \"{}\" ({}) would be imported", pool.name, pool.id), steps))
    }

    fn plan_export_pool(&self, name: &Name) -> Result<Plan> {
        let slot = self.slot(name.as_str())?;
        self.refuse_clients(&slot)?;
        let slot = self.may_close(name.as_str())?;
        let (exports, ssds) = (slot.record.borrow().exports.len(), slot.record.borrow().ssds.len());
        let mut steps = Vec::new();
        if exports > 0 {
            steps.push(format!(
                "what it exports is closed and forgotten ({})",
                plural(exports, "export")
            ));
        }
        if let Some(open) = slot.open() {
            let dirty = text::bytes(open.pool.unproven_blocks() * BLOCK_BYTES);
            steps.push(format!("it is stopped; {dirty} dirty stay on its cache devices"));
        }
        let devices = plural(ssds, "cache device");
        steps.push(format!("it is forgotten here; its {devices} can be moved"));
        Ok(plan(format!("pool \"{name}\" would be exported"), steps))
    }

    fn plan_destroy(&self, name: &Name) -> Result<Plan> {
        let slot = self.may_destroy(name.as_str())?;
        self.may_close(name.as_str())?;
        let (mut ssds, spares) = {
            let record = slot.record.borrow();
            (record.ssds.clone(), record.spares.clone())
        };
        let mut steps = vec![
            "it is closed and forgotten".to_owned(),
            format!("its superblocks are overwritten on {}", plural(ssds.len(), "cache device")),
        ];
        if !spares.is_empty() {
            steps.push(format!("so are the marks on {}", plural(spares.len(), "spare")));
        }
        ssds.extend(spares.into_values());
        Ok(Plan { erased: ssds, ..plan(format!("pool \"{name}\" would be destroyed"), steps) })
    }

    async fn plan_add_device(&self, pool: &Name, path: &Path) -> Result<Plan> {
        let (slot, open) = self.open(pool.as_str())?;
        let joining = self.open_new(&slot, &open, path).await?;
        let device = joining.only();
        let (was, is) = (open.pool.superblock(), open.pool.plan_addition(&device)?);
        let added = is.members.last().map_or(0, |member| u64::from(member.segments.count()));
        let (count, segment) = (is.present().count(), u64::from(is.segment_bytes));
        let (bytes_before, bytes_after) = (capacity(&was), capacity(&is));
        let mut steps = vec![
            format!("it is erased and laid out: {added} segments of {}", text::bytes(segment)),
            format!(
                "the pool has {} then, and {} instead of {}",
                plural(count, "cache device"),
                text::bytes(bytes_after),
                text::bytes(bytes_before)
            ),
            index_step(&was, &is),
        ];
        let (short, _) = open.pool.short_bytes();
        let copies = usize::from(is.dirty_copies);
        if was.present().count() < copies && count >= copies {
            steps.push(format!(
                "dirty data gets its {copies} copies again: {} lack one now",
                text::bytes(short)
            ));
            steps.push(self.time_step(short, path, &*device).await);
        } else {
            steps.push("it is used at once: nothing is moved".to_owned());
        }
        let what = format!("{} would be added to pool \"{pool}\"", path.display());
        Ok(Plan { erased: vec![path.to_owned()], ..plan(what, steps) })
    }

    async fn plan_grow_device(&self, pool: &Name, device: &str) -> Result<Plan> {
        let (_, open) = self.open(pool.as_str())?;
        let (grown, is) = self.larger_device(pool, device).await?;
        let was = open.pool.superblock();
        let (before, after) = (capacity(&was), capacity(&is));
        let steps = vec![
            format!(
                "what it holds stays there, nothing is moved; {} more are used at once",
                text::bytes(after - before)
            ),
            format!("the pool has {} then instead of {}", text::bytes(after), text::bytes(before)),
            index_step(&was, &is),
        ];
        Ok(plan(format!("{} would grow in pool \"{pool}\"", grown.path.display()), steps))
    }

    async fn plan_remove_device(&self, pool: &Name, device: &str) -> Result<Plan> {
        let (slot, open) = self.open(pool.as_str())?;
        if let Some((_, path)) = slot.spare_of(device) {
            let steps = vec!["it is a spare and holds nothing; its mark is erased".to_owned()];
            let what = format!("{} would be no spare of pool \"{pool}\" any more", path.display());
            return Ok(Plan { erased: vec![path], ..plan(what, steps) });
        }
        let leaving = self.device_of(pool, device)?;
        let moved = open.pool.check_departure(leaving.id)?;
        let held = text::bytes(moved);
        let superblock = open.pool.superblock();
        let others = || superblock.present().filter(|member| member.device != leaving.id);
        let segments: u64 = others().map(|member| u64::from(member.segments.count())).sum();
        let file = open.members.borrow().file(&leaving.path);
        let time = match file {
            Some(file) => self.time_step(moved, &leaving.path, &*file).await,
            None => "it has just left the pool".to_owned(),
        };
        let steps = vec![
            "nothing new is put there".to_owned(),
            format!(
                "what it holds, {held} with what is unused in between, goes to {}: dirty data first, \
                 clean data as far as it is worth it",
                plural(others().count(), "other cache device")
            ),
            time,
            format!(
                "the pool goes on without it and has {} then",
                text::bytes(segments * u64::from(superblock.segment_bytes))
            ),
        ];
        let what = format!("{} would be removed from pool \"{pool}\"", leaving.path.display());
        Ok(Plan { erased: vec![leaving.path], ..plan(what, steps) })
    }

    fn plan_flush(&self, name: &VolumeName) -> Result<Plan> {
        let (_, open) = self.open(name.pool.as_str())?;
        open.volume(name)?;
        let origin = self.describe_volume(name)?.origin;
        let steps = vec![format!("{} go to {origin}; clients may go on", dirty(&open, name))];
        Ok(plan(format!("volume \"{name}\" would be flushed"), steps))
    }

    fn plan_set(&self, name: &VolumeName, mode: Mode) -> Result<Plan> {
        let (_, open) = self.open(name.pool.as_str())?;
        let volume = open.volume(name)?;
        volume.check_mode(engine_mode(mode))?;
        let (was, is) = (self.describe_volume(name)?.mode, mode_name(mode));
        let mut steps = vec![format!("it is served as {is} instead of {}", mode_name(was))];
        if !engine_mode(mode).writes_back() {
            let origin = self.describe_volume(name)?.origin;
            steps.push(format!("{} go to {origin}; clients may go on", dirty(&open, name)));
        }
        Ok(plan(format!("volume \"{name}\" would be {is}"), steps))
    }

    fn plan_settings(&self, name: &VolumeName, change: &SetVolumeSettings) -> Result<Plan> {
        let (_, open) = self.open(name.pool.as_str())?;
        let volume = open.volume(name)?;
        let (_, _, steps) = changed(&volume, change)?;
        Ok(plan(format!("volume \"{name}\" would be set"), steps))
    }

    async fn plan_grow(&self, name: &VolumeName) -> Result<Plan> {
        let (was, is) = self.grown_size(name).await?;
        let mut steps = Vec::new();
        if is > was {
            steps.push(format!("its size becomes {}, durably", text::bytes(is)));
            steps.push("clients see it when they connect again".to_owned());
        }
        let what = match is > was {
            true => format!("volume \"{name}\" would grow by {}", text::bytes(is - was)),
            false => format!("volume \"{name}\" is as large as its origin already"),
        };
        Ok(plan(what, steps))
    }

    fn plan_remove_volume(&self, name: &VolumeName) -> Result<Plan> {
        let open = self.may_remove_volume(name)?;
        let origin = self.describe_volume(name)?.origin;
        let steps = vec![
            format!("{} go to {origin}", dirty(&open, name)),
            "what is cached of it is dropped".to_owned(),
            format!("the volume goes; {origin} is the plain disk with all of its data"),
        ];
        Ok(plan(format!("volume \"{name}\" would be removed"), steps))
    }

    fn plan_add_export(&self, body: AddExport) -> Result<Plan> {
        let name = body.volume;
        self.may_export(&name)?;
        let place = body.place.unwrap_or_else(|| Place::Socket(self.usual_socket(&name)));
        let (read_only, require_tls) = (body.read_only, body.require_tls);
        let record = ExportRecord { volume: name.volume.clone(), place, read_only, require_tls };
        self.terms(&record)?;
        let place = match &record.place {
            Place::Socket(path) => {
                check_absolute(path)?;
                path.display().to_string()
            }
            Place::Port(0) => "a free port of 127.0.0.1".to_owned(),
            Place::Port(port) => format!("127.0.0.1:{port}"),
            Place::Address(address) => address.to_string(),
        };
        let mut steps = vec![format!("it is served at {place}, now and after each start")];
        if read_only {
            steps.push("clients' writes are refused".to_owned());
        }
        if self.tls_use(&record) == TlsUse::Required {
            steps.push("clients without TLS are refused".to_owned());
        }
        Ok(plan(format!("volume \"{name}\" would be exported"), steps))
    }

    fn plan_remove_export(&self, name: &VolumeName) -> Result<Plan> {
        self.exports_without(name)?;
        let exports = self.describe_exports();
        let clients = exports.iter().filter(|export| export.volume == *name).map(|e| e.clients);
        let steps = vec![
            format!(
                "what clients have asked is answered, and their connections are closed ({})",
                plural(clients.sum(), "client")
            ),
            "it is served no more".to_owned(),
        ];
        Ok(plan(format!("the export of volume \"{name}\" would be removed"), steps))
    }
}

//! What a change would do, without doing it. A plan fails as the change would: both look with the
//! same checks.

use std::cmp::Ordering;
use std::path::Path;

use forebay_control::api::{
    self, AddExport, Change, DevicePlan, ImportPool, Member, MemberState, Mode, Place, Plan,
    PoolState, PoolUsage, Room, SCHEMA, SetPool, SetVolumeSettings, TlsUse, Verify,
};
use forebay_control::error::Code;
use forebay_control::name::{Name, VolumeName};
use forebay_device::real::open::typed;
use forebay_device::runtime::{Nanos, Runtime, SECOND};
use forebay_device::{BlockDevice, Buf};
use forebay_engine::Pool;
use forebay_engine::format::{MemberState as OnDisk, Superblock};
use forebay_engine::ids::DeviceId;

use super::describe::mode_name;
use super::jobs::Aim;
use super::pools::check_absolute;
use super::scan::{newest, of_pool};
use super::state::ExportRecord;
use super::volumes::{BLOCK_BYTES, changed, engine_mode};
use super::{Daemon, Open};
use crate::Result;
use crate::failure::Failure;
use crate::text::{self, plural};

/// How the rate of a device is looked at before anything is moved: reads that are as long as those of a removal,
/// for long enough to be past its first answer, and not so long that anybody minds.
const PROBE_READ_BYTES: usize = 1 << 20;
const PROBE_TIME_MAX: Nanos = SECOND / 4;

pub(super) fn plan(what: impl Into<String>, steps: Vec<String>) -> Plan {
    Plan { schema: SCHEMA, done: false, what: what.into(), steps, erased: Vec::new(), pool: None }
}

/// Segments of a cache device.
pub(super) fn segments_of(superblock: &Superblock, id: DeviceId) -> u64 {
    let record = superblock.present().find(|member| member.device == id);
    record.map_or(0, |member| u64::from(member.segments.count()))
}

/// What the members of a superblock have room for, but for one that is to go.
pub(super) fn room(superblock: &Superblock, without: Option<DeviceId>) -> Room {
    let stay = superblock.present().filter(|member| Some(member.device) != without);
    let segments: Vec<u64> = stay.map(|member| u64::from(member.segments.count())).collect();
    let bytes = |segments: u64| segments * u64::from(superblock.segment_bytes);
    let (clean, dirty) = (superblock.clean_copies, superblock.dirty_copies);
    Room {
        devices: segments.len() as u64,
        capacity_bytes: bytes(segments.iter().sum()),
        clean_copies: clean,
        clean_bytes: bytes(sets(&segments, clean.into())),
        dirty_copies: dirty,
        dirty_bytes: bytes(sets(&segments, dirty.into())),
    }
}

/// How many sets of so many copies devices of so many segments have room for: no device has two of a set.
fn sets(segments: &[u64], copies: u64) -> u64 {
    let fits = |sets: u64| segments.iter().map(|own| sets.min(*own)).sum::<u64>() >= copies * sets;
    let (mut found, mut most) = (0, segments.iter().sum::<u64>() / copies.max(1));
    while found < most {
        let middle = found + (most - found).div_ceil(2);
        match fits(middle) {
            true => found = middle,
            false => most = middle - 1,
        }
    }
    found
}

/// What a pool holds, in words.
fn holds(room: &Room) -> String {
    let copies =
        |count: u8| if count == 1 { "1 copy".to_owned() } else { format!("{count} copies") };
    let of = |what: &str, bytes: u64, count: u8| match bytes {
        0 => format!("no {what} data in {}", copies(count)),
        bytes => format!("{} of {what} data in {}", text::bytes(bytes), copies(count)),
    };
    let clean = of("clean", room.clean_bytes, room.clean_copies);
    let dirty = of("dirty", room.dirty_bytes, room.dirty_copies);
    format!("{clean}, or {dirty}")
}

/// What becomes of what a pool holds, as a step.
pub(super) fn room_step(before: &Room, after: &Room) -> String {
    let devices = |room: &Room| plural(room.devices as usize, "cache device");
    match before == after {
        true => format!("the pool has {} as before: {}", devices(after), holds(after)),
        false => format!(
            "the pool has {} then: {}; before {}: {}",
            devices(after),
            holds(after),
            devices(before),
            holds(before)
        ),
    }
}

/// How an SSD that comes is laid out, as a step.
pub(super) fn layout_step(segments: u64, superblock: &Superblock) -> String {
    let segment = text::bytes(superblock.segment_bytes.into());
    format!("it is erased and laid out: {segments} segments of {segment}")
}

/// What becomes of clean data that lacks a copy, as a step.
pub(super) fn clean_step(bytes: u64) -> String {
    let bytes = text::bytes(bytes);
    format!("{bytes} of clean data are copied again behind that, as far as there is room")
}

impl Open {
    /// Bytes of clean data that are copied again once another cache device is there, at the most.
    pub(super) fn clean_to_copy(&self, after: &Room) -> u64 {
        self.pool.short_clean_bytes(1).min(after.clean_bytes)
    }
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

/// Whether a pool without so many of its cache devices is opened only if somebody agrees to what is lost: rows D, F and H of
/// the engine's table, where at least so much is known.
fn needs_decision(superblock: &Superblock, missing: usize) -> bool {
    let failed = superblock.members.iter().filter(|member| member.state == OnDisk::Failed).count();
    let is_covered = failed + missing < usize::from(superblock.dirty_copies);
    missing > 0 && !is_covered && superblock.may_be_dirty()
}

/// What other copies of new data make of a pool, as steps.
fn copies_steps(open: &Open, change: &SetPool) -> Vec<String> {
    let by_profile = change.profile.map(|profile| profile.copies());
    let (dirty, clean) = match by_profile {
        Some((dirty, clean)) => (Some(dirty), Some(clean)),
        None => (change.dirty_copies, change.clean_copies),
    };
    let was = open.pool.superblock();
    let mut is = was.clone();
    is.dirty_copies = dirty.unwrap_or(was.dirty_copies);
    is.clean_copies = clean.unwrap_or(was.clean_copies);
    let now = text::bytes(open.pool.unproven_blocks() * BLOCK_BYTES);
    let mut steps = Vec::new();
    if dirty.is_some() {
        steps.push(dirty_step(was.dirty_copies, is.dirty_copies, &now));
    }
    if clean.is_some() {
        let (was, is) = (was.clean_copies, is.clean_copies);
        steps.push(match was == is {
            true => format!("copies of clean data stay {is}"),
            false => format!("clean data that comes gets {is} copies, before {was}"),
        });
    }
    if dirty.is_some() || clean.is_some() {
        steps.push(room_step(&room(&was, None), &room(&is, None)));
    }
    steps
}

/// What another number of copies is for dirty data, of which there is so much now.
fn dirty_step(was: u8, is: u8, now: &str) -> String {
    match is.cmp(&was) {
        Ordering::Greater => format!(
            "dirty data that comes gets {is} copies, before {was}; what is dirty now, {now}, lacks one or more and is \
             destaged: {is} copies are promised once that is done"
        ),
        Ordering::Equal => format!("copies of dirty data stay {is}"),
        Ordering::Less if is == 1 => format!(
            "dirty data has 1 copy from then on, before {was}: the loss of one cache device loses what it has alone; \
             {now} are dirty now"
        ),
        Ordering::Less => format!(
            "dirty data has {is} copies from then on, before {was}; {now} are dirty now, and promised no more"
        ),
    }
}

/// What other settings of a pool do, as steps; its RAM tier is to have `ram_bytes` as yet.
fn setting_steps(usage: &PoolUsage, ram_bytes: u64, change: &SetPool) -> Vec<String> {
    let ram = change.ram_bytes.map(|bytes| {
        let memory = |bytes| text::bytes(Pool::ram_memory_bytes(bytes));
        let (is, was) = (text::bytes(bytes), text::bytes(ram_bytes));
        let (takes, took) = (memory(bytes), memory(ram_bytes));
        format!(
            "the RAM tier has {is} and takes {takes} of memory; before {was}, which take {took}"
        )
    });
    let deadline = change.device_deadline_ms.map(|ms| {
        let (is, was) = (text::millis(ms.into()), text::millis(usage.device_deadline_ms));
        format!("a cache device that takes longer than {is} is left behind; before {was}")
    });
    let reclaim = change.write_amplification_max_percent.map(|percent| {
        let was = usage.write_amplification_max_percent;
        format!("reclaim writes up to {percent} % of what is admitted, before {was} %")
    });
    let rate = |rate| if rate == 0 { "none".to_owned() } else { text::bytes(rate) };
    let scrub = change.scrub_rate_bytes_per_s.map(|is| match is {
        0 => "no scrub is begun, and one that is under way waits".to_owned(),
        is => {
            let was = rate(usage.scrub.rate_bytes_per_s);
            format!("a scrub reads at most {} a second, before {was}", text::bytes(is))
        }
    });
    let budget = change.write_budget_bytes_per_day.map(|is| {
        let was = rate(usage.write_budget.map_or(0, |budget| budget.bytes_per_day));
        format!("the write budget of a day is {}, before {was}", rate(is))
    });
    let verify = change.verify.map(|verify| match verify {
        Verify::Reads => "what clients read is compared with its checksums".to_owned(),
        Verify::Off => "what clients read is not compared with its checksums".to_owned(),
    });
    let accept = change.accept_data_loss_on_ssd_failure.map(|accept| match accept {
        true => "volumes may be written back with one copy of dirty data".to_owned(),
        false => "volumes are not set to be written back with one copy of dirty data".to_owned(),
    });
    [ram, deadline, reclaim, scrub, budget, verify, accept].into_iter().flatten().collect()
}

/// What there is to do about cache devices that are missing while that has to be decided, as a hint.
pub(super) fn accept_missing(body: &ImportPool) -> String {
    let take_over = if body.take_over { " --take-over" } else { "" };
    let ssds: String = body.ssds.iter().map(|path| format!(" --ssd {}", typed(path))).collect();
    format!(
        "attach the missing cache devices; or accept that writes which only they hold are lost, and open it without \
         them for good: `forebay pool import {}{ssds}{take_over} --accept-missing`",
        body.pool
    )
}

/// Refuses to take over a pool of which something is missing that the other host may be using.
pub(super) fn refuse_partial_take_over(body: &ImportPool, pool: &api::Pool) -> Result<()> {
    let is_missing = |member: &Member| member.state == MemberState::Missing;
    if !body.take_over || body.accept_missing || !pool.members.iter().any(is_missing) {
        return Ok(());
    }
    let what = "a pool is taken over from another host only with all of its cache devices: that host may be using \
                those that are missing here";
    Err(Failure::coded(Code::NeedsDecision, what).hint(accept_missing(body)))
}

impl Daemon {
    /// How long it takes at least to move so many bytes, by the rate of a device that takes part in it.
    pub(super) async fn time_step(
        &self,
        moved: u64,
        path: &Path,
        device: &dyn BlockDevice,
    ) -> (String, Option<u64>) {
        if moved == 0 {
            return ("nothing has to be copied".to_owned(), Some(0));
        }
        let path = path.display();
        let Some(rate) = read_rate(self.runtime(), device).await else {
            return (format!("{path} cannot be read; nobody can tell how long that takes"), None);
        };
        let time_s = (moved / rate).max(1);
        let step = format!(
            "that takes {} at least, as fast as {path} was read just now ({}/s); clients that use \
             them and flushes of origins add to it",
            text::left(time_s),
            text::bytes(rate)
        );
        (step, Some(time_s))
    }

    /// What a change would do.
    pub(super) async fn plan(&self, change: Change) -> Result<Plan> {
        match change {
            Change::ImportPool(body) => self.plan_import(&body).await,
            Change::SetPool { pool, settings } => self.plan_set_pool(&pool, &settings).await,
            Change::ExportPool(name) => self.plan_export_pool(&name).await,
            Change::BypassPool(name) => self.plan_bypass(&name).await,
            Change::DestroyPool(name) => self.plan_destroy(&name).await,
            Change::AddDevice { pool, ssd } => self.plan_add_device(&pool, &ssd).await,
            Change::GrowDevice { pool, device } => self.plan_grow_device(&pool, &device).await,
            Change::AddSpare { pool, ssd } => self.plan_spare(&pool, &ssd).await,
            Change::ReplaceDevice { pool, old, new } => self.plan_replace(&pool, &old, &new).await,
            Change::RemoveDevice { pool, device } => self.plan_remove_device(&pool, &device).await,
            Change::StartScrub(name) => self.plan_start_scrub(&name),
            Change::StopScrub(name) => self.plan_stop_scrub(&name),
            Change::StartAdvisor { volume, days } => self.plan_start_advisor(&volume, days),
            Change::StopAdvisor(name) => self.plan_stop_advisor(&name),
            Change::FlushVolume(name) => self.plan_flush(&name).await,
            Change::SetVolume { volume, mode } => self.plan_set(&volume, mode).await,
            Change::SetVolumeSettings { volume, settings } => {
                self.plan_settings(&volume, &settings)
            }
            Change::GrowVolume(name) => self.plan_grow(&name).await,
            Change::AcceptLost(name) => self.plan_accept_lost(&name),
            Change::AcceptOrigin { volume, dirty } => self.plan_accept_origin(&volume, dirty),
            Change::RemoveVolume(name) => self.plan_remove_volume(&name).await,
            Change::AddExport(body) => self.plan_add_export(body).await,
            Change::RemoveExport(name) => self.plan_remove_export(&name),
            Change::CancelJob(number) => self.plan_cancel(number),
            Change::Stop(body) => self.plan_stop(&body).await,
        }
    }

    async fn plan_import(&self, body: &ImportPool) -> Result<Plan> {
        let (pool, is_new) = self.look_for_import(body).await?;
        let known = self.known_closed(&body.pool)?.filter(|slot| slot.direct().is_some());
        if let Some(slot) = &known {
            self.may_leave_bypass(slot, body.accept_missing).await?;
        }
        if pool.state == PoolState::HeldElsewhere && !body.take_over {
            let what = format!("pool \"{}\" is not free: {}", pool.name, pool.summary);
            return Err(Failure::coded(Code::HeldElsewhere, what).hint(pool.action));
        }
        if !body.accept_missing {
            self.refuse_undecided(body, &pool.id, &pool.members).await?;
        }
        refuse_partial_take_over(body, &pool)?;
        let missing = pool.members.iter().filter(|m| m.state == MemberState::Missing).count();
        let present = pool.members.iter().filter(|m| m.state == MemberState::Present).count();
        let mut steps = Vec::new();
        if is_new {
            steps.push("it is this daemon's from then on, and opened at each start".to_owned());
        }
        if known.is_some() {
            steps.push(
                "its volumes are not served straight from their origins any more: clients are disconnected, and \
                 may connect again"
                    .to_owned(),
            );
            steps.push(
                "what its cache devices have of clean data is not believed, for the origins were written to"
                    .to_owned(),
            );
        }
        steps.push(match missing {
            0 if body.accept_missing => format!(
                "it is opened with {}: if they are as they were at an earlier time, what was written since and not \
                 destaged is lost, and older data is read instead",
                plural(present, "cache device")
            ),
            0 => format!("it is opened with {}", plural(present, "cache device")),
            _ if body.accept_missing => format!(
                "it is opened without {}: writes that only they hold are lost, and they are never \
                 taken back",
                plural(missing, "cache device")
            ),
            _ => format!(
                "{missing} of {} are missing: it is opened only if nothing can be lost by that, which is \
                 found out in full only by opening it, and else a decision is asked for; they are not \
                 taken back then",
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

    /// Refuses an import that asks for a decision whatever else is found out when the pool is opened: too much is missing
    /// while volumes may be dirty. Whether what is here may be stale only the opening can tell.
    async fn refuse_undecided(
        &self,
        body: &ImportPool,
        pool: &str,
        members: &[Member],
    ) -> Result<()> {
        let missing = members.iter().filter(|member| member.state == MemberState::Missing);
        let missing: Vec<&str> = missing.map(|member| member.id.as_str()).collect();
        let found = self.scan(&body.ssds).await?.members;
        let own = of_pool(&found, pool);
        let Some(superblock) = newest(&own).filter(|it| needs_decision(it, missing.len())) else {
            return Ok(());
        };
        let name = &superblock.name;
        let dirty = superblock.volumes.iter().filter(|volume| volume.may_be_dirty);
        let dirty: Vec<_> = dirty.map(|volume| format!("\"{}\"", volume.name)).collect();
        let what = format!(
            "pool \"{name}\" lacks cache device {}, which may hold the only copy of writes to volume {}",
            missing.join(", "),
            dirty.join(", ")
        );
        Err(Failure::coded(Code::NeedsDecision, what).hint(accept_missing(body)))
    }

    async fn plan_set_pool(&self, name: &Name, settings: &SetPool) -> Result<Plan> {
        let asked = SetPool { dry_run: true, ..settings.clone() };
        let shown = self.set_pool(name.as_str(), &asked).await?;
        let (_, open) = self.open(name.as_str())?;
        let mut steps = copies_steps(&open, settings);
        if let Some(usage) = &shown.usage {
            steps.extend(setting_steps(usage, open.pool.superblock().ram_bytes, settings));
        }
        if steps.is_empty() {
            return Err(Failure::coded(Code::BadRequest, "nothing is to be changed")
                .hint("name a setting; docs/user/reference.md lists them"));
        }
        Ok(plan(format!("pool \"{name}\" would be set"), steps))
    }

    async fn plan_export_pool(&self, name: &Name) -> Result<Plan> {
        let slot = self.may_export_pool(name.as_str())?;
        self.refuse_clients(&slot)?;
        self.refuse_removed(name.as_str()).await?;
        let slot = self.may_close(name.as_str())?;
        self.refuse_silent(&slot)?;
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

    async fn plan_destroy(&self, name: &Name) -> Result<Plan> {
        let (slot, volumes) = self.may_destroy(name)?;
        self.may_close(name.as_str())?;
        for volume in &volumes {
            self.refuse_displaced(volume).await?;
        }
        let mut steps = Vec::new();
        if !volumes.is_empty() {
            let names: Vec<_> = volumes.iter().map(VolumeName::to_string).collect();
            steps.push(format!(
                "what is dirty goes to the origins, which are plain disks then: {}; until then it can \
                 be cancelled",
                names.join(", ")
            ));
        }
        let record = slot.record.borrow().clone();
        let (mut ssds, absent) = self.there_and_absent(&record).await?;
        let open = slot.open();
        let is_ready = |id: &String| open.as_ref().is_some_and(|open| open.spares.is_ready(id));
        let spares: Vec<_> = record
            .spares
            .into_iter()
            .filter(|(id, _)| is_ready(id))
            .map(|(_, path)| path)
            .collect();
        steps.push("it is closed and forgotten".to_owned());
        let devices = plural(ssds.len(), "cache device");
        steps.push(format!("its superblocks are overwritten on {devices}"));
        if !absent.is_empty() {
            steps.push(format!("what is absent is not erased: {}", absent.join(", ")));
        }
        if !spares.is_empty() {
            steps.push(format!("so are the marks on {}", plural(spares.len(), "spare")));
        }
        ssds.extend(spares);
        Ok(Plan { erased: ssds, ..plan(format!("pool \"{name}\" would be destroyed"), steps) })
    }

    async fn plan_add_device(&self, pool: &Name, path: &Path) -> Result<Plan> {
        let (slot, open) = self.open(pool.as_str())?;
        let joining = self.open_new(&slot, &open, path).await?;
        let device = joining.only();
        let (was, is) = (open.pool.superblock(), open.pool.plan_addition(&device)?);
        self.check_addition(&slot, &open, &is)?;
        let added = is.members.last().map_or(0, |member| u64::from(member.segments.count()));
        let (before, after) = (room(&was, None), room(&is, None));
        let mut steps =
            vec![layout_step(added, &is), room_step(&before, &after), index_step(&was, &is)];
        let copies = u64::from(is.dirty_copies);
        let gets_enough = before.devices < copies && after.devices >= copies;
        let dirty = if gets_enough { open.pool.short_bytes().0 } else { 0 };
        // What is copied without it, too, is not brought about by it.
        let clean = open.clean_to_copy(&after).saturating_sub(open.pool.short_clean_bytes(0));
        if gets_enough {
            let lack = text::bytes(dirty);
            steps.push(format!("dirty data gets its {copies} copies again: {lack} lack one now"));
        }
        if clean > 0 {
            steps.push(clean_step(clean));
        }
        let moved_bytes = dirty + clean;
        let (time, time_s) = self.time_step(moved_bytes, path, &*device).await;
        steps.push(match gets_enough || clean > 0 {
            true => time,
            false => format!("it is used at once; {time}"),
        });
        let segment_bytes = is.segment_bytes.into();
        let pool_then =
            DevicePlan { segments: added, segment_bytes, before, after, moved_bytes, time_s };
        let what = format!("{} would be added to pool \"{pool}\"", path.display());
        let erased = vec![path.to_owned()];
        Ok(Plan { erased, pool: Some(pool_then), ..plan(what, steps) })
    }

    async fn plan_grow_device(&self, pool: &Name, device: &str) -> Result<Plan> {
        let (_, open) = self.open(pool.as_str())?;
        let (grown, is) = self.larger_device(pool, device, false).await?;
        let was = open.pool.superblock();
        let (before, after) = (room(&was, None), room(&is, None));
        let (had, has) = (segments_of(&was, grown.id), segments_of(&is, grown.id));
        let segment_bytes = u64::from(is.segment_bytes);
        let segment = text::bytes(segment_bytes);
        let steps = vec![
            format!("what it holds stays there; it has {has} segments of {segment}, before {had}"),
            room_step(&before, &after),
            index_step(&was, &is),
            "its new part is used at once; nothing has to be copied".to_owned(),
        ];
        let (moved_bytes, time_s) = (0, Some(0));
        let then = DevicePlan { segments: has, segment_bytes, before, after, moved_bytes, time_s };
        let what = format!("{} would grow in pool \"{pool}\"", grown.path.display());
        Ok(Plan { pool: Some(then), ..plan(what, steps) })
    }

    async fn plan_remove_device(&self, pool: &Name, device: &str) -> Result<Plan> {
        let (_, open) = self.open(pool.as_str())?;
        if let Some((id, path)) = self.spare_named(pool, device)? {
            let what = format!("{} would be no spare of pool \"{pool}\" any more", path.display());
            let (step, erased) = match open.spares.is_ready(&id) {
                true => ("it is a spare and holds nothing; its mark is erased", vec![path]),
                false => {
                    ("the spare is not held: it is forgotten, and nothing is erased", Vec::new())
                }
            };
            return Ok(Plan { erased, ..plan(what, vec![step.to_owned()]) });
        }
        let leaving = self.device_of(pool, device)?;
        self.jobs.join(&Aim::RemoveDevice(pool.clone(), leaving.id))?;
        let moved = open.pool.check_departure(leaving.id)?;
        let held = text::bytes(moved);
        let superblock = open.pool.superblock();
        let (before, after) = (room(&superblock, None), room(&superblock, Some(leaving.id)));
        let segments = segments_of(&superblock, leaving.id);
        let segment_bytes = u64::from(superblock.segment_bytes);
        let file = open.members.borrow().file(leaving.id);
        let (time, time_s) = match file {
            Some(file) => self.time_step(moved, &leaving.path, &*file).await,
            None => ("it has just left the pool".to_owned(), None),
        };
        let steps = vec![
            format!(
                "nothing new is put on its {segments} segments of {}",
                text::bytes(segment_bytes)
            ),
            format!(
                "what it holds, {held} with what is unused in between, goes to {}: dirty data first \
                 and with all its copies, clean data as far as it is worth it",
                plural(after.devices as usize, "other cache device")
            ),
            time,
            "the pool goes on without it, and its superblock is erased".to_owned(),
            room_step(&before, &after),
        ];
        let then =
            DevicePlan { segments, segment_bytes, before, after, moved_bytes: moved, time_s };
        let what = format!("{} would be removed from pool \"{pool}\"", leaving.path.display());
        Ok(Plan { erased: vec![leaving.path], pool: Some(then), ..plan(what, steps) })
    }

    async fn plan_flush(&self, name: &VolumeName) -> Result<Plan> {
        let (_, open) = self.open(name.pool.as_str())?;
        open.volume(name)?;
        self.jobs.join(&Aim::Flush(name.clone()))?;
        self.refuse_displaced(name).await?;
        let origin = self.describe_volume(name)?.origin;
        let steps = vec![format!("{} go to {origin}; clients may go on", dirty(&open, name))];
        Ok(plan(format!("volume \"{name}\" would be flushed"), steps))
    }

    async fn plan_set(&self, name: &VolumeName, mode: Mode) -> Result<Plan> {
        let (slot, open) = self.open(name.pool.as_str())?;
        let volume = open.volume(name)?;
        self.jobs.join(&Aim::Mode(name.clone(), mode))?;
        let agrees = slot.record.borrow().accept_data_loss_on_ssd_failure;
        volume.check_mode(engine_mode(mode), agrees)?;
        let (was, is) = (self.describe_volume(name)?.mode, mode_name(mode));
        let mut steps = vec![format!("it is served as {is} instead of {}", mode_name(was))];
        match open.held_from(name.volume.as_str(), mode) {
            reason if reason.is_empty() => {}
            reason => steps.push(format!("it is {reason}")),
        }
        if !engine_mode(mode).writes_back() {
            self.refuse_displaced(name).await?;
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
        let (was, is) = self.grown_size(name, false).await?;
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

    async fn plan_remove_volume(&self, name: &VolumeName) -> Result<Plan> {
        let open = self.may_remove_volume(name)?;
        self.jobs.join(&Aim::Remove(name.clone()))?;
        self.check_removal(&open, name)?;
        self.refuse_displaced(name).await?;
        let origin = self.describe_volume(name)?.origin;
        let steps = vec![
            format!("{} go to {origin}", dirty(&open, name)),
            "what is cached of it is dropped".to_owned(),
            format!("the volume goes; {origin} is the plain disk with all of its data"),
        ];
        Ok(plan(format!("volume \"{name}\" would be removed"), steps))
    }

    async fn plan_add_export(&self, body: AddExport) -> Result<Plan> {
        let name = body.volume;
        self.may_export(&name)?;
        let place = body.place.unwrap_or_else(|| Place::Socket(self.usual_socket(&name)));
        let (read_only, require_tls) = (body.read_only, body.require_tls);
        let record = ExportRecord { volume: name.volume.clone(), place, read_only, require_tls };
        if let Place::Socket(path) = &record.place {
            check_absolute(path)?;
        }
        self.check_export(&name, &record).await?;
        let place = match &record.place {
            Place::Socket(path) => path.display().to_string(),
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

#[cfg(test)]
mod tests {
    use super::{dirty_step, holds, sets};
    use forebay_control::api::Room;

    #[test]
    fn no_cache_device_has_two_copies_of_a_set() {
        assert_eq!(sets(&[100, 100, 100], 1), 300);
        assert_eq!(sets(&[100, 100, 100], 2), 150);
        assert_eq!(sets(&[100, 10], 2), 10);
        assert_eq!(sets(&[100, 10, 20], 2), 30);
        assert_eq!(sets(&[100, 100, 10], 3), 10);
        assert_eq!(sets(&[50, 60, 70, 80], 3), 86);
        assert_eq!((sets(&[100], 2), sets(&[], 1)), (0, 0));
        // As a packing that takes the fullest devices for each set has it.
        for (members, copies) in [([7, 3, 9, 4], 2), ([1, 1, 8, 3], 2), ([5, 6, 2, 9], 3)] {
            let (mut free, mut packed) = (members.to_vec(), 0);
            while free.iter().filter(|left| **left > 0).count() as u64 >= copies {
                free.sort_unstable_by(|a, b| b.cmp(a));
                free.iter_mut().take(copies as usize).for_each(|left| *left -= 1);
                packed += 1;
            }
            assert_eq!(sets(&members, copies), packed, "{members:?}");
        }
    }

    #[test]
    fn a_pool_with_fewer_devices_than_copies_has_no_room_for_dirty_data() {
        let room = Room {
            devices: 1,
            capacity_bytes: 1 << 30,
            clean_copies: 1,
            clean_bytes: 1 << 30,
            dirty_copies: 2,
            dirty_bytes: 0,
        };
        let said = "1 GiB of clean data in 1 copy, or no dirty data in 2 copies";
        assert_eq!(holds(&room), said);
    }

    #[test]
    fn what_other_copies_are_for_what_is_dirty_is_said() {
        let more = dirty_step(1, 2, "3 MiB");
        assert!(more.contains("2 copies, before 1") && more.contains("3 MiB, lacks"), "{more}");
        let fewer = dirty_step(2, 1, "3 MiB");
        assert!(fewer.contains("1 copy from then on, before 2"), "{fewer}");
        assert_eq!(dirty_step(2, 2, "0 B"), "copies of dirty data stay 2");
    }
}

//! Pools: made, found, opened, let go.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_control::api::{self, Done, PlannedMember, PoolPlan, Room, SCHEMA};
use forebay_control::error::Code;
use forebay_control::name::{Name, VolumeName};
use forebay_control::profile::Profile;
use forebay_device::Runtime;
use forebay_engine::format::{MemberState as OnDisk, Superblock};
use forebay_engine::ids::DeviceId;
use forebay_engine::limits::INDEX_MEMORY_MIN;
use forebay_engine::{CopiesChange, CreateOptions, OpenOptions, Pool, Tuning};

use super::answer::stopping;
use super::places::if_gone;
use super::plan::room;
use super::scan::{self, Place, Scan, Sight, paths_of, refuse_later};
use super::state::{Intent, Record};
use super::uses::user_of;
use super::waiting::Told;
use super::{Daemon, Open, Slot, State};
use crate::Result;
use crate::blocking::begin;
use crate::failure::Failure;
use crate::flag::race;
use crate::members::{Identity, Members, Opened, fill, refuse_one_ssd, refuse_sparse_anew};
use crate::memory::MEMORY_BYTES_MAX;
use crate::patience::ANSWER_TIME_MAX;
use crate::text;
use crate::witness::FileWitness;

/// Refuses a path that would mean something else here than where it was typed.
pub(super) fn check_absolute(path: &Path) -> Result<()> {
    if path.is_absolute() {
        return Ok(());
    }
    Err(Failure::coded(Code::BadRequest, format!("the path {} is not absolute", path.display()))
        .hint("write it from the root on: /dev/..."))
}

/// Copies of dirty and of clean data, as they are asked for by number or by a profile.
fn copies_of(
    profile: Option<Profile>,
    dirty: Option<u8>,
    clean: Option<u8>,
) -> Result<(Option<u8>, Option<u8>)> {
    let Some(profile) = profile else { return Ok((dirty, clean)) };
    if dirty.is_some() || clean.is_some() {
        let what = format!(
            "profile {profile} says how many copies there are, and so does another setting"
        );
        return Err(Failure::coded(Code::BadRequest, what)
            .hint("give the profile, or dirty_copies and clean_copies"));
    }
    let (dirty, clean) = profile.copies();
    Ok((Some(dirty), Some(clean)))
}

/// What a pool's superblock says of a pool to be, or that is. For memory see `Daemon::plan_memory`.
fn plan_of(name: &Name, superblock: &Superblock, members: &Members) -> PoolPlan {
    let devices = members.list().zip(&superblock.members);
    let planned = devices.map(|((path, device), member)| PlannedMember {
        path: path.to_owned(),
        size_bytes: device.geometry().size_bytes,
        segments: member.segments.count(),
    });
    let Room { capacity_bytes, clean_bytes, dirty_bytes, .. } = room(superblock, None);
    PoolPlan {
        schema: SCHEMA,
        name: name.clone(),
        id: String::new(),
        done: false,
        members: planned.collect(),
        dirty_copies: superblock.dirty_copies,
        clean_copies: superblock.clean_copies,
        segment_bytes: superblock.segment_bytes.into(),
        capacity_bytes,
        clean_bytes,
        dirty_bytes,
        index_bytes_usual: 0,
        index_bytes_dense: 0,
        index_bytes_max: superblock.index_memory_max,
        sparse_cache_bytes: 0,
        policy_bytes: 0,
        ram_bytes: superblock.ram_bytes,
        ram_memory_bytes: Pool::ram_memory_bytes(superblock.ram_bytes),
        buffers_bytes_max: 0,
        total_bytes_max: 0,
        machine_bytes: None,
        machine_cache_bytes: 0,
        write_budget_bytes_per_day: superblock.write_budget_bytes_per_day,
    }
}

/// The cache devices that a pool has lost, but for those that were replaced: what is known of that on the
/// others, and what was learned later.
pub(super) fn lost_of<'a>(
    superblock: &'a Superblock,
    replaced: &'a BTreeSet<String>,
) -> impl Iterator<Item = DeviceId> + 'a {
    let lost = superblock.members.iter().filter(|member| member.state != OnDisk::Present);
    let lost = lost.filter(|member| !member.replaced).map(|member| member.device);
    lost.filter(|id| !replaced.contains(&id.to_string()))
}

impl Daemon {
    pub(super) fn slot(&self, name: &str) -> Result<Rc<Slot>> {
        self.slots.borrow().get(name).cloned().ok_or_else(|| {
            let slots = self.slots.borrow();
            let nearest = text::did_you_mean(name, slots.keys().map(String::as_str));
            Failure::coded(Code::NotFound, format!("there is no pool \"{name}\"")).hint(format!(
                "{nearest}`forebay pool list` shows those that are here, `forebay pool import` those \
                 that could be"
            ))
        })
    }

    /// A pool that is open.
    pub(super) fn open(&self, name: &str) -> Result<(Rc<Slot>, Rc<Open>)> {
        let slot = self.slot(name)?;
        let open = slot.open().ok_or_else(|| match slot.direct() {
            Some(_) => super::bypass::without_cache(name),
            None => Failure::new(format!("pool \"{name}\" is not open"))
                .hint(format!("`forebay pool show {name}` says why")),
        })?;
        Ok((slot, open))
    }

    pub(super) fn refuse_taken(&self, name: &str) -> Result<()> {
        if !self.slots.borrow().contains_key(name) {
            return Ok(());
        }
        Err(Failure::coded(Code::Exists, format!("there is a pool \"{name}\" already"))
            .hint("choose another name; `forebay pool list` shows those that are taken"))
    }

    /// Looks at a path before it is opened to become a cache device, beside the `others` of its pool.
    ///
    /// # Errors
    /// As [`Daemon::origins`].
    pub(super) async fn device_check(
        &self,
        others: Vec<PathBuf>,
    ) -> Result<impl Fn(&Path) -> Result<()> + Send + Clone + 'static> {
        let origins = self.origins().await?;
        let (uses, closed) = (self.uses(), self.closed_pools());
        Ok(move |path: &Path| {
            let own = Identity::of(path);
            let mut known = origins.iter();
            let is_it = |at: &Path, open| at == path || own.is_some() && own == open;
            if let Some((.., volume)) = known.find(|(at, open, _)| is_it(at, *open)) {
                let what = format!("{} is the origin of volume \"{volume}\"", path.display());
                let hint = "a cache device loses what it holds: use an SSD that nobody needs";
                let if_gone = if_gone(&closed, &volume.pool);
                return Err(Failure::coded(Code::Exists, what).hint(format!("{hint}{if_gone}")));
            }
            if let Some(user) = user_of(&uses, own) {
                return Err(user.failure(path));
            }
            refuse_one_ssd(path, &others)?;
            refuse_sparse_anew(path, |bytes| fill(path, bytes))
        })
    }

    /// Makes a pool, or says what it would be.
    pub(super) async fn create_pool(&self, body: api::CreatePool) -> Result<PoolPlan> {
        let name = body.name.as_str();
        self.refuse_taken(name)?;
        body.ssds.iter().try_for_each(|path| check_absolute(path))?;
        let (dirty, clean) = copies_of(body.profile, body.dirty_copies, body.clean_copies)?;
        let dirty_copies = dirty.unwrap_or(if body.ssds.len() > 1 { 2 } else { 1 });
        let clean_copies = clean.unwrap_or(1);
        let ram_bytes = body.ram_bytes;
        self.check_ram(ram_bytes, 0)?;
        if let Some(ms) = body.device_deadline_ms {
            Pool::check_device_deadline(ms)?;
        }
        if let Some(bytes) = body.index_bytes_max.filter(|bytes| *bytes < INDEX_MEMORY_MIN) {
            let what = format!("an index cannot be held to {}", text::bytes(bytes));
            return Err(Failure::coded(Code::BadRequest, what).hint("use 4 MiB or more"));
        }
        if let Some(bytes) = body.index_bytes_max.filter(|bytes| *bytes > MEMORY_BYTES_MAX) {
            let [bytes, most] = [bytes, MEMORY_BYTES_MAX].map(text::bytes);
            let what = format!("an index cannot have {bytes}");
            return Err(Failure::coded(Code::BadRequest, what).hint(format!("use {most} or less")));
        }
        let options = CreateOptions {
            dirty_copies,
            clean_copies,
            index_memory_max: body.index_bytes_max,
            ram_bytes,
            device_deadline_ms: body.device_deadline_ms.unwrap_or(0),
            write_budget_bytes_per_day: body.write_budget_bytes_per_day,
            ..CreateOptions::named(name)
        };
        let check = self.device_check(body.ssds.clone()).await?;
        let members = Members::open_with(&self.reactor, &self.members, &body.ssds, check).await?;
        let plan = members.plan(&self.reactor, &options).await?;
        let mut plan = plan_of(&body.name, &plan, &members);
        self.plan_memory(&mut plan);
        self.check_pool_memory(&plan)?;
        if body.dry_run {
            return Ok(plan);
        }
        let intent = Intent {
            name: body.name,
            ssds: body.ssds,
            accept_data_loss_on_ssd_failure: body.accept_data_loss_on_ssd_failure,
        };
        let record = self.make_pool(&intent, members, &options).await?;
        let id = record.id.clone();
        let slot = self.add_slot(record);
        let found = self.scan(&[]).await?;
        self.start_pool(&slot, &found, self.claiming()).await?;
        Ok(PoolPlan { id, done: true, ..plan })
    }

    pub(super) fn add_slot(&self, record: Record) -> Rc<Slot> {
        let name = record.name.to_string();
        let state = State::Waiting { until: self.reactor.now() };
        let slot = Rc::new(Slot::new(record, state));
        self.slots.borrow_mut().insert(name, Rc::clone(&slot));
        slot
    }

    /// Opens cache devices.
    pub(super) async fn open_members(&self, paths: &[PathBuf]) -> Result<Members> {
        match Members::open_with(&self.reactor, &self.members, paths, |_| Ok(())).await {
            Err(failure) => Err(self.by_whom(paths, failure).await?),
            opened => opened,
        }
    }

    /// Looks for cache devices where the configuration says, where they were last, and at `more`.
    ///
    /// # Errors
    /// If it cannot look everywhere: a pool would be opened without what it has not found.
    pub(super) async fn scan(&self, more: &[PathBuf]) -> Result<Sight> {
        let mut known = more.to_vec();
        for slot in self.slots.borrow().values() {
            let record = slot.record.borrow();
            known.extend(record.ssds.iter().chain(record.spares.values()).cloned());
        }
        let patterns = self.config.devices.scan.iter().cloned().map(Place::Like);
        let places = known.into_iter().map(Place::At).chain(patterns);
        self.stuck.borrow_mut().retain(|_, has_returned| !has_returned());
        let scan = Scan::of(places, self.stuck.borrow().keys().cloned().collect());
        self.walk(&scan).await?;
        Ok(scan.take())
    }

    /// Has a scan walked to its end, past what does not answer.
    async fn walk(&self, scan: &Scan) -> Result<()> {
        loop {
            let theirs = scan.clone();
            let answer = begin(move || scan::walk(&theirs))
                .map_err(|error| Failure::system("look for cache devices", &error))?;
            let place = loop {
                let before = scan.at();
                let over = race(self.runtime().sleep(ANSWER_TIME_MAX), self.end.wait());
                if race(answer.wait(), over).await.is_ok() {
                    return Ok(());
                }
                if self.end.is_raised() {
                    return Err(stopping());
                }
                if let (Some(place), steps) = scan.at()
                    && steps == before.1
                {
                    break place;
                }
            };
            tracing::warn!("{place} does not answer; no cache device is looked for there");
            scan.avoid(place.clone());
            self.stuck.borrow_mut().insert(place, answer.watch());
        }
    }

    /// A pool is opened for this host.
    pub(super) fn claiming(&self) -> OpenOptions {
        OpenOptions { host: self.machine.clone(), ..OpenOptions::default() }
    }

    /// Opens a pool with those of its devices that were found.
    pub(super) async fn start_pool(
        &self,
        slot: &Rc<Slot>,
        sight: &Sight,
        decided: OpenOptions,
    ) -> Result<Rc<Open>> {
        let record = slot.record.borrow().clone();
        let name = record.name.to_string();
        self.see(slot, sight);
        slot.opening.set(true);
        let opened = self.try_open(&record, sight, decided).await;
        slot.opening.set(false);
        let Opened { pool, members, notes, .. } = match opened {
            Ok(opened) => {
                self.journal.note("pool-opened", &name, opened.summary());
                opened
            }
            Err(failure) => {
                let code = match failure.code() {
                    Code::HeldElsewhere => "pool-held-elsewhere",
                    _ => "pool-failed",
                };
                self.journal.warn(code, &name, failure.what());
                slot.transition(State::Failed(failure.clone()));
                return Err(failure);
            }
        };
        slot.told.set(Told::Nothing);
        slot.witnessed.take();
        let paths: Vec<PathBuf> = members.list().map(|(path, _)| path.to_owned()).collect();
        let open = Rc::new(Open::new(pool, members, notes));
        slot.transition(State::Open(Rc::clone(&open)));
        self.tell_time(&open);
        open.told.set(self.journal.recall(&name, open.pool.begin_journal().await));
        self.tell_news(&name, &open);
        self.tell_larger(&name, &open);
        let superblock = open.pool.superblock();
        let places = slot.places_of(&superblock);
        let known = Record {
            ssds: paths,
            spares: slot.spares_beside(&places),
            places,
            replaced: lost_of(&superblock, &BTreeSet::new())
                .map(|id| id.to_string())
                .filter(|id| record.replaced.contains(id))
                .collect(),
            ..record.clone()
        };
        if known != record {
            *slot.record.borrow_mut() = known;
            self.keep_record(slot).await;
        }
        self.recall_advisors(slot, &open).await;
        self.attach_volumes(slot, &open).await;
        self.look_for_spares(slot, &open, sight).await;
        self.tell_pool_memory(&name);
        Ok(open)
    }

    /// Stores what is known of a pool, where a start looks it up again anyway.
    pub(super) async fn keep_record(&self, slot: &Slot) {
        let record = slot.record.borrow().clone();
        if let Err(failure) = self.state.store(&record).await {
            self.journal.warn("state-unwritable", record.name.as_str(), failure.what());
        }
    }

    async fn try_open(
        &self,
        record: &Record,
        sight: &Sight,
        decided: OpenOptions,
    ) -> Result<Opened> {
        let paths = paths_of(record, sight)?;
        if !decided.accept_missing {
            refuse_later(record, sight)?;
        }
        let members = self.open_members(&paths).await?;
        let witness = self.state.witness(&record.id).await?;
        let witness = FileWitness::at(&self.reactor, &witness, &members.identities()).await?;
        members.open_pool(&self.reactor, witness, Tuning::default(), decided).await
    }

    /// Opens what can be opened now, and looks for what is missing.
    pub(super) async fn look_after(self: &Rc<Self>) {
        drop(self.members.take_brought(|_| false));
        drop(self.opening.take_brought(|path| self.is_awaited_at(path)));
        let unused = self.binding.take_brought(|path| self.is_retried_at(path));
        if !unused.is_empty() {
            // Its file is removed with it, by a file system that has not answered before.
            drop(begin(move || drop(unused)));
        }
        let slots: Vec<_> = self
            .slots
            .borrow()
            .iter()
            .map(|(name, slot)| (name.clone(), Rc::clone(slot)))
            .collect();
        let lacks = |slot: &Slot| slot.open().is_none_or(|open| open.spares.lack(slot));
        let due = slots.iter().any(|(_, slot)| lacks(slot)) && self.is_scan_due();
        let looked = if due { Some(self.scan(&[]).await) } else { None };
        let sight = match looked.transpose() {
            Ok(sight) => sight,
            Err(_) if self.end.is_raised() => return,
            Err(failure) => {
                tracing::error!("{}", failure.what());
                None
            }
        };
        for (name, slot) in slots {
            if self.end.is_raised() {
                return;
            }
            if let Some(open) = slot.open() {
                open.pool.look_for_slow();
                self.release_failed(&open);
                self.tell_news(&name, &open);
                if open.pool.scrub().running {
                    let name = slot.record.borrow().name.clone();
                    // That it has one already is no error here.
                    self.note_scrub(&name, &open).ok();
                }
                // What everything was destaged for stays so.
                let goes_on = !self.is_ending();
                if goes_on {
                    self.attach_volumes(&slot, &open).await;
                }
                self.look_at_origins(&slot, &open);
                self.look_at_advisors(&slot, &open).await;
                if goes_on {
                    self.retry_exports(&slot, &open).await;
                }
                if let Some(sight) = &sight {
                    self.look_for_spares(&slot, &open, sight).await;
                }
                self.look_at_spares(&slot, &open).await;
                self.begin_taking(&slot, &open);
                self.begin_relief(&slot, &open);
            } else if let Some(direct) = slot.direct() {
                self.look_after_direct(&slot, &direct, sight.as_ref()).await;
            } else if slot.record.borrow().destroying {
                if sight.is_some() {
                    self.finish_destruction(&name, &slot).await;
                }
            } else if let Some(sight) = &sight {
                if slot.kept_closed().is_some() {
                    // It is told which devices and volumes it has.
                    slot.see(sight);
                    continue;
                }
                self.wait_again_if_changed(&slot, &sight.members);
                let until = match &*slot.state.borrow() {
                    State::Waiting { until } => Some(*until),
                    _ => None,
                };
                if let Some(until) = until {
                    self.open_if_due(&slot, sight, until).await;
                }
            }
        }
    }

    /// Changes settings of an open pool, durably.
    pub(super) async fn set_pool(&self, name: &str, body: &api::SetPool) -> Result<api::Pool> {
        let (slot, open) = self.open(name)?;
        if let Some(fixed) = body.fixed() {
            let what = format!("{fixed} of a pool is fixed when it is made");
            return Err(Failure::coded(Code::Refused, what).hint(
                "make another pool and move the volumes: `forebay volume remove`, `volume add`",
            ));
        }
        let mut changed = Vec::new();
        if let Some(percent) = body.write_amplification_max_percent {
            Pool::check_write_amplification_max(percent)?;
        }
        if let Some(rate) = body.scrub_rate_bytes_per_s {
            Pool::check_scrub_rate(rate)?;
        }
        if let Some(bytes) = body.write_budget_bytes_per_day {
            Pool::check_write_budget(bytes)?;
        }
        if let Some(bytes) = body.ram_bytes {
            self.check_ram(bytes, open.pool.ram().memory_bytes)?;
        }
        if let Some(ms) = body.device_deadline_ms {
            Pool::check_device_deadline(ms)?;
        }
        let (dirty, clean) = copies_of(body.profile, body.dirty_copies, body.clean_copies)?;
        let accept_data_loss_on_ssd_failure = body.accept_data_loss_on_ssd_failure == Some(true);
        let copies = CopiesChange { dirty, clean, accept_data_loss_on_ssd_failure };
        open.pool.check_copies(&copies)?;
        if body.dry_run {
            return self.show_pool(name);
        }
        if dirty.is_some() || clean.is_some() {
            open.pool.set_copies(&copies).await?;
            let of = |n: Option<u8>, what| n.map(|n| format!("{n} of {what} data"));
            let both: Vec<_> = of(dirty, "dirty").into_iter().chain(of(clean, "clean")).collect();
            changed.push(format!("copies for new data: {}", both.join(" and ")));
        }
        if let Some(bytes) = body.ram_bytes {
            open.pool.set_ram_bytes(bytes).await?;
            changed.push(format!("a RAM tier of {}", text::bytes(bytes)));
        }
        if let Some(ms) = body.device_deadline_ms {
            open.pool.set_device_deadline(ms).await?;
            changed.push(format!("{} for a cache device to answer", text::millis(ms.into())));
        }
        if let Some(percent) = body.write_amplification_max_percent {
            open.pool.set_write_amplification_max(percent).await?;
            changed.push(format!("write_amplification_max_percent {percent}"));
        }
        if let Some(rate) = body.scrub_rate_bytes_per_s {
            open.pool.set_scrub_rate(rate).await?;
            changed.push(match rate {
                0 => "no scrub".to_owned(),
                rate => format!("a scrub of at most {} a second", text::bytes(rate)),
            });
        }
        if let Some(bytes) = body.write_budget_bytes_per_day {
            open.pool.set_write_budget(bytes).await?;
            changed.push(match bytes {
                0 => "no write budget".to_owned(),
                bytes => format!("a write budget of {} a day", text::bytes(bytes)),
            });
        }
        if let Some(verify) = body.verify {
            open.pool.set_verify_reads(verify == api::Verify::Reads).await?;
            changed.push(match verify {
                api::Verify::Reads => "checked reads".to_owned(),
                api::Verify::Off => "reads that are not checked".to_owned(),
            });
        }
        if let Some(accept) = body.accept_data_loss_on_ssd_failure {
            let mut record = slot.record.borrow().clone();
            record.accept_data_loss_on_ssd_failure = accept;
            self.state.store(&record).await?;
            *slot.record.borrow_mut() = record;
            changed.push(format!("accept_data_loss_on_ssd_failure {accept}"));
        }
        if changed.is_empty() {
            return Err(Failure::coded(Code::BadRequest, "nothing is to be changed")
                .hint("name a setting; docs/user/reference.md lists them"));
        }
        let what = format!("pool \"{name}\" has now {}", changed.join(", "));
        self.journal.note("pool-set", name, what);
        self.show_pool(name)
    }

    /// Ends what a pool serves, then the pool.
    pub(super) async fn stop_pool(&self, name: &str, open: Rc<Open>) -> Result<()> {
        // With a request that is stuck at its origin the pool ends as in a crash.
        self.stop_exports(&open).await;
        drop(open.volumes.take());
        drop((open.origins.take(), open.troubles.take()));
        for volume in open.pool.superblock().volumes {
            self.opening.forget(Path::new(&volume.origin));
            self.placing.forget(Path::new(&volume.origin));
        }
        open.members.borrow().files().for_each(|(path, _)| self.placing.forget(path));
        open.pool.tell_lost();
        self.tell_news(name, &open);
        let open = Rc::into_inner(open).ok_or_else(|| {
            Failure::coded(Code::Busy, format!("pool \"{name}\" is still in use"))
        })?;
        let dirty = open.pool.stop().await?;
        let dirty = text::bytes(dirty * 4096);
        let what = format!("pool \"{name}\" was stopped; {dirty} dirty stay in the cache");
        self.journal.note("pool-stopped", name, what);
        Ok(())
    }

    /// A pool that can be taken out of service.
    pub(super) fn may_close(&self, name: &str) -> Result<Rc<Slot>> {
        let slot = self.slot(name)?;
        if let Some(busy) = self.jobs.busy_with(name) {
            return Err(Failure::coded(Code::Busy, format!("pool \"{name}\" is busy: {busy}"))
                .hint("wait until that has ended, or cancel it"));
        }
        if slot.open().is_some_and(|open| open.pool.is_latched()) {
            // It cannot be stopped in order, and what it had under way keeps its devices.
            let what = format!("pool \"{name}\" has stopped writing after a device error");
            return Err(Failure::new(what).hint(
                "see `forebay events`; mend the device, restart the daemon, then try again",
            ));
        }
        Ok(slot)
    }

    /// Refuses if an origin does not answer: what it was asked for may reach it when somebody else has the pool.
    pub(super) fn refuse_silent(&self, slot: &Slot) -> Result<()> {
        let silent = slot.open().and_then(|open| open.silent_volume());
        silent.map_or(Ok(()), |name| {
            let what = format!("the origin of volume \"{name}\" does not answer");
            Err(Failure::coded(Code::Busy, what).hint(
                "what it was asked for may reach it later: bring it back first, or stop the daemon, \
                 which takes nothing from the cache",
            ))
        })
    }

    /// Takes a pool out of service, whether it is open or not.
    async fn close_slot(&self, name: &str) -> Result<()> {
        let slot = self.may_close(name)?;
        self.refuse_silent(&slot)?;
        self.close(name, &slot).await
    }

    /// The same, whatever is under way on it.
    pub(super) async fn close(&self, name: &str, slot: &Slot) -> Result<()> {
        self.keep_advisors(slot).await;
        if slot.direct().is_some() {
            return self.end_direct(slot).await;
        }
        let until = self.reactor.now();
        let State::Open(open) = slot.transition(State::Waiting { until }) else { return Ok(()) };
        let stopped = self.stop_pool(name, open).await;
        if let Err(failure) = &stopped
            && failure.code() == Code::Busy
        {
            // What is stuck has its devices: nobody opens it before the daemon has ended.
            self.journal.warn("pool-failed", name, failure.what());
            slot.transition(State::Failed(failure.clone()));
        }
        stopped
    }

    /// A pool that may go to another machine as far as its own state goes: what is left of one that is being destroyed
    /// is for this daemon to erase.
    pub(super) fn may_export_pool(&self, name: &str) -> Result<Rc<Slot>> {
        let slot = self.slot(name)?;
        let is_destroying = slot.record.borrow().destroying;
        if is_destroying { Err(slot.still_there()) } else { Ok(slot) }
    }

    /// Stops a pool and forgets it; its devices may go to another machine.
    pub(super) async fn export_pool(&self, name: &str) -> Result<Done> {
        let slot = self.may_export_pool(name)?;
        self.refuse_clients(&slot)?;
        self.refuse_removed(name).await?;
        self.close_slot(name).await?;
        let record = slot.record.borrow().clone();
        for export in record.exports.clone() {
            let volume = VolumeName { pool: record.name.clone(), volume: export.volume };
            self.forget_door(&volume).await;
        }
        let id = record.id;
        // The witness stays: it knows which devices are stale if the pool comes back.
        let mut what = format!("pool \"{name}\" ({id}) was exported");
        if slot.unreadable.is_some() {
            let kept = self.state.set_aside(&id).await?;
            what.push_str(&format!("; its record is kept as {}", kept.display()));
        } else {
            self.state.forget(&id, false).await?;
        }
        self.slots.borrow_mut().remove(name);
        self.journal.note("pool-exported", name, &what);
        if record.bypassed.is_some() {
            return Ok(Done::of(format!("{what}; {}", super::bypass::STALE)));
        }
        Ok(Done::of(format!("{what}; its cache devices can be moved")))
    }
}

//! How everything is, in the API's words.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use forebay_control::api::{
    self, Export, Member, MemberState, Mode, PoolHealth, PoolState, PoolUsage, RamUsage, SCHEMA,
    Status, Verify, VolumeState,
};
use forebay_control::name::VolumeName;
use forebay_device::runtime::{MILLISECOND, Nanos, SECOND};
use forebay_engine::format::{
    Claim, MemberRecord, MemberState as OnDisk, Superblock, VolumeRecord,
};
use forebay_engine::ids::DeviceId;
use forebay_engine::policy::Worth;
use forebay_engine::{OriginTrouble, Redundancy};

use super::direct::left_behind;
use super::jobs::Aim;
use super::places::holes_of;
use super::population;
use super::scan::{Found, newest};
use super::state::Record;
use super::verdict::Verdict;
use super::volumes::{
    BLOCK_BYTES, api_mode, cutoff_bytes, destage_hours, missing_state, no_volume, sequential, space,
};
use super::{Attached, Daemon, Open, Serving, Slot};
use crate::Result;
use crate::failure::Failure;
use crate::text::{self, plural};

/// How a volume is served at present, if that is known, and why that is not its mode.
type Effective = (Option<Mode>, String);

/// Who has a pool open that this daemon has not.
enum User {
    /// A process of this machine.
    Process(String),
    /// Another machine, by its claim.
    Host(Claim),
}

/// A mode's name.
pub(crate) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Writeback => "writeback",
        Mode::Writethrough => "writethrough",
        Mode::Readonly => "readonly",
        Mode::Writeonly => "writeonly",
        Mode::Bypass => "bypass",
    }
}

/// The cache devices that a pool uses, as the end of a sentence.
pub(super) fn these_ssds(count: usize) -> String {
    match count {
        1 => "this SSD".to_owned(),
        2 => "these two SSDs".to_owned(),
        count => format!("these {count} SSDs"),
    }
}

/// How everything is, in a sentence or two. What origins lack is known only of pools that are open.
fn summary(pools: &[api::Pool]) -> String {
    if pools.is_empty() {
        return "No pools. `forebay pool create` makes one.".to_owned();
    }
    let is_unwell = |pool: &&api::Pool| pool.health != PoolHealth::Good;
    let needs_look = |pool: &&api::Pool| {
        !pool.action.is_empty() || pool.usage.is_some() && pool.health == PoolHealth::Failed
    };
    // Of one that is served without them it is known, unless something is withheld.
    let is_withheld = |volume: &api::Volume| volume.state == VolumeState::Withheld;
    let is_known = |pool: &api::Pool| {
        pool.state == PoolState::Bypassed && !pool.volumes.iter().any(is_withheld)
    };
    let closed = pools.iter().filter(|pool| pool.usage.is_none() && !is_known(pool)).count();
    let (unwell, troubled) =
        (pools.iter().filter(is_unwell).count(), pools.iter().filter(needs_look).count());
    // Of an open pool, one whose origin is still to be attached.
    let is_coming = |volume: &api::Volume| volume.state == VolumeState::Offline;
    let is_starting =
        |pool: &&api::Pool| pool.state == PoolState::Online && pool.volumes.iter().any(is_coming);
    let starting = pools.iter().filter(is_starting).count();
    let all = plural(pools.len(), "pool");
    let is = |count: usize| if count == 1 { "is" } else { "are" };
    let unknown = "what only the SSDs of such a pool have is not known";
    match (troubled, closed, unwell) {
        (0, 0, 0) => match on_origins(pools) {
            lacks if pools.len() == 1 && dirty_bytes(pools) > 0 => format!("Healthy. {lacks}"),
            lacks => format!("Healthy. {all}; {lacks}"),
        },
        (0, 0, count) if count == starting => {
            format!(
                "Not ready. Origins of {count} of {all} are being attached; {}",
                on_origins(pools)
            )
        }
        (0, 0, count) => format!(
            "Degraded. {count} of {all} {} recovering, and nothing is to be done; {}",
            is(count),
            on_origins(pools)
        ),
        (0, count, _) => {
            format!("Not ready. {count} of {all} {} not open yet: {unknown}.", is(count))
        }
        (count, 0, _) => format!("A look is needed at {count} of {all}."),
        (count, closed, _) => format!(
            "A look is needed at {count} of {all}. {closed} {} not open: {unknown}.",
            is(closed)
        ),
    }
}

/// What the origins of open pools lack.
fn dirty_bytes(pools: &[api::Pool]) -> u64 {
    pools.iter().filter_map(|pool| pool.usage.as_ref()).map(|usage| usage.dirty_bytes).sum()
}

/// The same, and when they will have it, as the end of a sentence.
fn on_origins(pools: &[api::Pool]) -> String {
    let ssds = match pools {
        [pool] => these_ssds(pool.members.iter().filter(|it| it.state.is_there()).count()),
        _ => "SSDs".to_owned(),
    };
    match dirty_bytes(pools) {
        0 => "every origin has all of its data.".to_owned(),
        dirty => format!("{} exist only on {ssds}; {}.", text::bytes(dirty), safe_when(pools)),
    }
}

/// A state as the API has it.
fn word(state: PoolState) -> String {
    let word = serde_json::to_value(state).ok();
    word.as_ref().and_then(|word| word.as_str()).unwrap_or_default().to_owned()
}

/// The error for a volume that a pool is not known to have.
fn unknown_volume(pool: &api::Pool, name: &VolumeName) -> Failure {
    if pool.usage.is_some() {
        return no_volume(name, pool.volumes.iter().map(|known| known.name.volume.as_str()));
    }
    let why = format!("`forebay pool show {}` says why", pool.name);
    let hint = match pool.action.as_str() {
        "" => why,
        action => format!("{action}; {why}"),
    };
    let what = format!(
        "pool \"{}\" is not open ({}), and its volumes are not known",
        pool.name,
        word(pool.state)
    );
    Failure::new(what).hint(hint)
}

/// Why a volume that is to be written back is written through, and until when; empty if it is not.
fn written_through(
    redundancy: Redundancy,
    is_agreed: bool,
    is_clean_unwitnessed: bool,
) -> &'static str {
    match redundancy {
        Redundancy::Protecting | Redundancy::Protected if !is_agreed => {
            "written through until there are SSDs enough for its copies"
        }
        Redundancy::Returning if !is_agreed => {
            "written through until everything has all its copies again"
        }
        _ if is_clean_unwitnessed => {
            "written through until the pool's witness, in `state_dir`, can be written: make room there, or mend its file \
             system"
        }
        _ => "",
    }
}

/// How a volume is served at present that has this mode, and why it is not served so; see `Core::mode_of` of the engine.
fn effective(open: &Open, superblock: &Superblock, record: &VolumeRecord, mode: Mode) -> Effective {
    let writes_back = matches!(mode, Mode::Writeback | Mode::Writeonly);
    let is_agreed = record.accept_single_copy || superblock.accept_single_copy;
    let is_clean_unwitnessed = open.pool.is_unwitnessed() && !record.may_be_dirty;
    match written_through(open.pool.redundancy(), is_agreed, is_clean_unwitnessed) {
        why if writes_back && !why.is_empty() => (Some(Mode::Writethrough), why.to_owned()),
        _ => (Some(mode), String::new()),
    }
}

impl Open {
    /// Why a volume with this mode would not be served so at present, and until when; empty if it would.
    pub(super) fn held_from(&self, volume: &str, mode: Mode) -> String {
        let superblock = self.pool.superblock();
        let record = superblock.volumes.iter().find(|record| record.name == volume);
        record.map_or_else(String::new, |record| effective(self, &superblock, record, mode).1)
    }
}

/// When the last of the pools with dirty data has none; one of which nobody can tell comes last.
fn safe_when(pools: &[api::Pool]) -> &str {
    let dirty = pools.iter().filter_map(|pool| pool.usage.as_ref()).filter(|u| u.dirty_bytes > 0);
    let last = dirty.max_by_key(|usage| usage.safe_in_s.unwrap_or(u64::MAX));
    last.map_or("", |usage| &usage.safe_when)
}

/// The members that a superblock names, with where they were found.
pub(super) fn members_of(
    superblock: &Superblock,
    found: &[&Found],
    record: Option<&Record>,
) -> Vec<Member> {
    let replaced = |member: &MemberRecord| {
        let known = |record: &Record| record.replaced.contains(&member.device.to_string());
        member.replaced || record.is_some_and(known)
    };
    let members = superblock
        .members
        .iter()
        .filter(|member| member.state == OnDisk::Present || !replaced(member));
    let members = members.map(|member| {
        let place = found.iter().find(|found| found.superblock.device == member.device);
        let state = match (member.state, place) {
            (OnDisk::Present, Some(_)) => MemberState::Present,
            (OnDisk::Present, None) => MemberState::Missing,
            _ => MemberState::Lost,
        };
        let id = member.device.to_string();
        let known = || record.and_then(|record| record.places.get(&id)).cloned();
        let path = place.map(|found| found.path.clone()).or_else(known);
        let (damaged_blocks, slow, unused_bytes, displaced, holes) = Default::default();
        let (health, pull) = (None, None);
        Member {
            id,
            path,
            state,
            damaged_blocks,
            slow,
            unused_bytes,
            displaced,
            holes,
            health,
            pull,
        }
    });
    members.collect()
}

impl Slot {
    /// Where a cache device is, or was last.
    pub(super) fn place_of(&self, id: DeviceId) -> Option<PathBuf> {
        self.record.borrow().places.get(&id.to_string()).cloned()
    }

    /// The engine knows cache devices by their identities; people find them by where they are, or were.
    pub(super) fn with_places(&self, mut what: String) -> String {
        for (id, path) in &self.record.borrow().places {
            what = what.replacen(id, &format!("{} ({id})", path.display()), 1);
        }
        what
    }
}

/// What an open pool knows of its members.
fn tell_of_members(open: &Open, members: &mut [Member]) {
    let pool = &open.pool;
    let (slow, leaving) = (pool.slow_members(), pool.leaving_member());
    let of = |all: &[(DeviceId, u64)], id: &str| {
        all.iter().find(|(known, _)| known.to_string() == id).map_or(0, |(_, amount)| *amount)
    };
    let (damaged, unused) = (pool.damaged_blocks(), pool.unused_bytes());
    let (files, superblock) = (open.members.borrow(), pool.superblock());
    for member in members {
        let id =
            superblock.members.iter().map(|it| it.device).find(|id| id.to_string() == member.id);
        let file = id.and_then(|id| files.file(id));
        let displaced = file.as_ref().and_then(|file| file.displaced());
        let at = file.as_ref().zip(member.path.as_ref());
        member.holes = at.map_or(String::new(), |(file, path)| holes_of(path, file));
        member.displaced = displaced.map_or(String::new(), |how| format!("it {how}"));
        member.damaged_blocks = of(&damaged, &member.id);
        member.unused_bytes = of(&unused, &member.id);
        member.slow = slow.iter().any(|id| id.to_string() == member.id);
        let is_leaving = leaving.is_some_and(|id| id.to_string() == member.id);
        if is_leaving && member.state == MemberState::Present {
            member.state = MemberState::Flushing;
        }
    }
}

fn usage(
    open: &Open,
    superblock: &Superblock,
    record: &Record,
    last_scrub: Option<&api::Job>,
    now: Nanos,
) -> PoolUsage {
    let pool = &open.pool;
    let ((cached, _), (_, total)) = (pool.blocks(), pool.segments());
    let (index_bytes, index_bytes_max) = pool.index_memory();
    let (counters, ram, safe) = (pool.counters(), pool.ram(), open.safe());
    let written = api::Written {
        write_bytes: counters.ssd_write_bytes.get(),
        populate_bytes: counters.ssd_populate_bytes.get(),
        move_bytes: counters.ssd_move_bytes.get(),
        header_bytes: counters.ssd_header_bytes.get(),
        fact_bytes: counters.ssd_fact_bytes.get(),
        checkpoint_bytes: counters.ssd_checkpoint_bytes.get(),
    };
    PoolUsage {
        device_deadline_ms: superblock.device_deadline() / MILLISECOND,
        requests_given_up: pool.given_up().iter().map(|(_, count)| *count as u64).sum(),
        dirty_copies: superblock.dirty_copies,
        dirty_copies_next: superblock.dirty_copies_next,
        clean_copies: superblock.clean_copies,
        write_amplification_max_percent: superblock.write_amplification_max_percent,
        write_amplification_percent: written.amplification_percent(),
        written,
        write_budget: pool.write_budget().map(|it| api::WriteBudget {
            bytes_per_day: it.bytes_per_day,
            left_bytes: it.left_bytes,
            new_left_out_permille: it.left_out_permille[0],
            known_left_out_permille: it.left_out_permille[1],
            dirty_left_out_permille: it.left_out_permille[2],
        }),
        accept_data_loss_on_ssd_failure: record.accept_data_loss_on_ssd_failure,
        segment_bytes: superblock.segment_bytes.into(),
        segments: total as u64,
        segments_free: pool.empty_segments() as u64,
        cached_bytes: cached * BLOCK_BYTES,
        dirty_bytes: pool.unproven_blocks() * BLOCK_BYTES,
        lost_bytes: pool.lost_blocks() * BLOCK_BYTES,
        destage: safe.destage,
        safe_in_s: safe.destage.left_s,
        safe_when: safe.when,
        rebuild: open.rebuild(),
        recopy: open.recopy(),
        delay: open.progress.borrow().delay().to_owned(),
        index_bytes,
        index_bytes_max,
        policy_bytes: pool.policy_memory(),
        ram: RamUsage {
            size_bytes: ram.size_bytes,
            used_bytes: ram.used_bytes,
            only_bytes: ram.only_bytes,
            overlap_bytes: ram.overlap_bytes,
            memory_bytes: ram.memory_bytes,
        },
        scrub: super::scrub::describe(open, last_scrub),
        verify: if superblock.verify_reads { Verify::Reads } else { Verify::Off },
        read_requests: counters.read_hits.get()
            + counters.read_partial_hits.get()
            + counters.read_misses.get(),
        read_hits: counters.read_hits.get(),
        read_ram_hits: counters.read_ram_hits.get(),
        write_requests: counters.write_requests.get(),
        activity: open.progress.borrow().activity(now, pool),
    }
}

impl Daemon {
    /// All of it.
    pub(super) fn status(&self) -> Status {
        let pools = self.show_pools();
        Status {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            summary: summary(&pools),
            memory: self.memory(),
            pools,
            exports: self.describe_exports(),
        }
    }

    fn all_slots(&self) -> Vec<Rc<Slot>> {
        self.slots.borrow().values().cloned().collect()
    }

    pub(super) fn describe_pools(&self) -> Vec<api::Pool> {
        self.all_slots().iter().map(|slot| self.describe_slot(slot)).collect()
    }

    pub(super) fn describe_pool(&self, name: &str) -> Result<api::Pool> {
        Ok(self.describe_slot(&*self.slot(name)?))
    }

    fn describe_slot(&self, slot: &Slot) -> api::Pool {
        let record = slot.record.borrow();
        let seen = slot.seen.borrow();
        let seen: Vec<&Found> = seen.iter().collect();
        let name = record.name.to_string();
        let open = slot.open();
        let superblock = match &open {
            Some(open) => Some(open.pool.superblock()),
            None => newest(&seen).cloned(),
        };
        let mut members = match &superblock {
            Some(superblock) => members_of(superblock, &seen, Some(&record)),
            None => record
                .ssds
                .iter()
                .map(|path| Member {
                    id: String::new(),
                    path: Some(path.clone()),
                    state: MemberState::Missing,
                    damaged_blocks: 0,
                    slow: false,
                    unused_bytes: 0,
                    displaced: String::new(),
                    holes: String::new(),
                    health: None,
                    pull: None,
                })
                .collect(),
        };
        if let Some(open) = &open {
            tell_of_members(open, &mut members);
        }
        if slot.direct().is_some() {
            left_behind(&mut members);
        }
        for member in members.iter_mut().filter(|member| member.state.is_there()) {
            member.health = self.health_of(&member.id);
        }
        let verdict = self.verdict(slot, &name, &members);
        let described = |superblock: &Superblock| -> Vec<api::Volume> {
            let describe = |v| self.describe_record(slot, open.as_deref(), superblock, v);
            superblock.volumes.iter().filter_map(describe).collect()
        };
        let asked = superblock.as_ref().filter(|_| slot.direct().is_none());
        let volumes = asked.map_or_else(|| self.describe_unopened(slot), described);
        let last_scrub = self.jobs.last_ended_of(&Aim::Scrub(record.name.clone()));
        let usage_of = |(open, s): (&Rc<Open>, _)| {
            usage(open, s, &record, last_scrub.as_ref(), self.runtime().now())
        };
        let usage = open.as_ref().zip(superblock.as_ref()).map(usage_of);
        let (id, mut spares) = (record.id.clone(), slot.describe_spares(open.as_deref()));
        for spare in &mut spares {
            spare.health = self.health_of(&spare.id);
        }
        let claim = open.as_ref().and_then(|open| open.pool.claim());
        let host = claim.filter(|_| verdict.state != PoolState::LeaseLost);
        let host = host.map_or(String::new(), |claim| claim.host.name);
        let Verdict { state, health, summary, action } = verdict;
        api::Pool {
            name,
            id,
            state,
            health,
            summary,
            action,
            host,
            members,
            spares,
            volumes,
            usage,
        }
    }

    /// A pool that is here and was not imported.
    pub(super) fn describe_found(&self, found: &[&Found]) -> Option<api::Pool> {
        let superblock = newest(found)?;
        let name = superblock.name.clone();
        let (state, host, summary, action) = match self.user_of(found) {
            None => {
                let action = format!("`forebay pool import {name}`");
                let summary = "Its cache devices are here.".to_owned();
                (PoolState::Exported, String::new(), summary, action)
            }
            Some(User::Process(process)) => (
                PoolState::HeldElsewhere,
                self.machine.as_ref().map_or(String::new(), |own| own.name.clone()),
                format!("Its cache devices are here; {process} has them in use."),
                format!("end that process, or `forebay pool export {name}` there"),
            ),
            Some(User::Host(claim)) => (
                PoolState::HeldElsewhere,
                claim.host.name.clone(),
                format!(
                    "Its cache devices are here; it is open on host \"{}\", or was left open: that host said so {} s \
                     ago.",
                    claim.host.name,
                    self.runtime().unix_seconds().saturating_sub(claim.beat_unix_s)
                ),
                format!(
                    "stop it there: `forebay pool export {name}`; if that host is dead: `forebay pool import \
                     {name} --take-over`"
                ),
            ),
        };
        Some(api::Pool {
            name,
            id: superblock.pool.to_string(),
            state,
            health: state.health(),
            summary,
            action,
            host,
            members: members_of(superblock, found, None),
            spares: Vec::new(),
            volumes: Vec::new(),
            usage: None,
        })
    }

    /// Whether who opens a pool waits for a lease: its newest claim is another host's, or of a start that was cut off.
    pub(super) fn awaits_lease(&self, found: &[&Found]) -> bool {
        let claims = found.iter().flat_map(|found| &found.claims);
        let newest = claims.max_by_key(|claim| (claim.number, claim.beat));
        let is_cut_off = newest.is_some_and(|newest| newest.beat == 0 && !newest.released);
        self.machine.is_some() && (is_cut_off || self.user_of(found).is_some())
    }

    /// Who else has a pool open, or has left it so, as far as that can be seen without claiming it.
    fn user_of(&self, found: &[&Found]) -> Option<User> {
        if let Some(process) = found.iter().find_map(|found| found.locked_by.clone()) {
            return Some(User::Process(process));
        }
        let claims = || found.iter().flat_map(|found| &found.claims);
        let newest = claims().max_by_key(|claim| (claim.number, claim.beat))?;
        let is_released = claims().any(|other| other.claim == newest.claim && other.released);
        // Without a name of its own this machine does not ask.
        let is_other = self.machine.as_ref().is_some_and(|own| !newest.host.is_same(own));
        (!is_released && is_other).then(|| User::Host(newest.clone()))
    }

    pub(super) fn describe_volumes(&self) -> Vec<api::Volume> {
        self.describe_pools().into_iter().flat_map(|pool| pool.volumes).collect()
    }

    pub(super) fn describe_volume(&self, name: &VolumeName) -> Result<api::Volume> {
        let pool = self.describe_pool(name.pool.as_str())?;
        let found = pool.volumes.iter().find(|volume| volume.name == *name).cloned();
        found.ok_or_else(|| unknown_volume(&pool, name))
    }

    /// The origin that keeps a job from going on, with what is wrong with it; empty if none does. Jobs bring data home,
    /// which needs no reads of it.
    pub(super) fn in_the_way_of(&self, aim: &Aim) -> String {
        let is_meant = |volume: &api::Volume| match aim {
            Aim::Stop => volume.dirty_bytes.is_some_and(|bytes| bytes > 0),
            Aim::Destroy(pool) => volume.name.pool == *pool,
            aim => aim.volume() == Some(&volume.name),
        };
        let fails = |volume: &api::Volume| match volume.state {
            VolumeState::OriginMissing => true,
            VolumeState::OriginFailed => !self.takes_writes(&volume.name),
            _ => false,
        };
        let volumes = self.describe_volumes();
        let found = volumes.iter().find(|volume| is_meant(volume) && fails(volume));
        found.map_or_else(String::new, |volume| {
            format!("the origin of volume \"{}\": {}", volume.name, volume.reason)
        })
    }

    /// Whether what is wrong with the origin of a volume has to do with reads alone.
    fn takes_writes(&self, name: &VolumeName) -> bool {
        let Ok((_, open)) = self.open(name.pool.as_str()) else { return false };
        match open.volumes.borrow().get(name.volume.as_str()) {
            Some(Attached::Online(volume)) => {
                volume.origin_trouble().is_none_or(OriginTrouble::leaves_writes)
            }
            _ => false,
        }
    }

    fn describe_record(
        &self,
        slot: &Slot,
        open: Option<&Open>,
        superblock: &Superblock,
        record: &VolumeRecord,
    ) -> Option<api::Volume> {
        let pool = slot.record.borrow().name.clone();
        let name = VolumeName { pool, volume: record.name.parse().ok()? };
        let online = open.and_then(|open| match open.volumes.borrow().get(&record.name) {
            Some(Attached::Online(volume)) => Some((open, Rc::clone(volume))),
            _ => None,
        });
        let safe = online.as_ref().map(|(open, _)| open.safe_of(record.id, &record.name));
        let dirty_for = online.as_ref().and_then(|(_, volume)| volume.dirty_for());
        let (state, reason, mode) = match open {
            None => (VolumeState::Offline, "its pool is not open".to_owned(), record.mode),
            Some(open) => match open.volumes.borrow().get(&record.name) {
                Some(Attached::Online(volume)) => {
                    let well = || (VolumeState::Online, String::new());
                    let (state, why) = open.trouble(&record.name).unwrap_or_else(well);
                    (state, why, volume.mode())
                }
                Some(Attached::Missing { why, .. }) => {
                    (missing_state(why), why.what().to_owned(), record.mode)
                }
                None => {
                    let reason = "its origin is being attached".to_owned();
                    (VolumeState::Offline, reason, record.mode)
                }
            },
        };
        let (effective_mode, effective_reason) = open.map_or_else(Effective::default, |open| {
            effective(open, superblock, record, api_mode(mode))
        });
        let exports = self.uris(slot, &record.name);
        let (sequential_writes, sequential_when) = sequential(&record.settings);
        let unknown = Worth { is_doubted: true, percent: None };
        let streams = online.as_ref().map_or(unknown, |(_, volume)| volume.streams());
        Some(api::Volume {
            name,
            origin: record.origin.clone(),
            size_bytes: record.size_bytes,
            mode: api_mode(mode),
            effective_mode,
            effective_reason,
            state,
            reason,
            dirty_bytes: open.map(|open| open.pool.unproven_blocks_of(record.id) * BLOCK_BYTES),
            lost_bytes: online.as_ref().map_or(0, |(_, v)| v.lost_blocks() * BLOCK_BYTES),
            destage: safe.as_ref().map(|safe| safe.destage),
            safe_when: safe.map_or(String::new(), |safe| safe.when),
            dirty_for_s: dirty_for.map(|span| span / SECOND),
            dirty_age_max_s: record.settings.dirty_age_max_s,
            destage_hours: destage_hours(&record.settings),
            sequential_cutoff_bytes: cutoff_bytes(&record.settings),
            sequential_writes,
            sequential_when,
            sequential_reread_percent: streams.percent,
            sequential_reads_cached: sequential_when == api::SequentialWhen::Auto
                && !streams.is_doubted,
            population: {
                let (settings, rereads) = online.map_or_else(
                    || (record.settings, Worth::default()),
                    |(_, volume)| (volume.settings(), volume.rereads()),
                );
                population::describe(settings.populate, record.cache_block_bytes, mode, rereads)
            },
            space: space(&record.settings, open.map(|open| open.pool.space(record.id))),
            exports: exports.into_iter().map(|export| export.uri).collect(),
        })
    }

    /// The exports of one volume.
    pub(super) fn uris(&self, slot: &Slot, volume: &str) -> Vec<Export> {
        let record = slot.record.borrow();
        let own = record.exports.iter().filter(|export| export.volume.as_str() == volume);
        let describe = |export: &super::state::ExportRecord| {
            let name = VolumeName { pool: record.name.clone(), volume: export.volume.clone() };
            let told = |exports: &BTreeMap<String, Serving>| match exports.get(volume)? {
                Serving::Live(host) => {
                    let uri = host.uris.first().cloned().unwrap_or_default();
                    Some((uri, host.clients(), String::new()))
                }
                Serving::Failed { why, .. } => Some((String::new(), 0, why.what().to_owned())),
            };
            let absent = || (String::new(), 0, "its volume is not online".to_owned());
            let (uri, clients, reason) = slot.of_exports(told).flatten().unwrap_or_else(absent);
            let (read_only, tls) = (export.read_only, self.tls_use(export));
            Export { volume: name, uri, clients, read_only, tls, reason }
        };
        own.map(describe).collect()
    }

    pub(super) fn describe_exports(&self) -> Vec<Export> {
        let mut all = Vec::new();
        for slot in self.all_slots() {
            let volumes: Vec<String> = {
                let record = slot.record.borrow();
                record.exports.iter().map(|export| export.volume.to_string()).collect()
            };
            for volume in volumes {
                all.extend(self.uris(&slot, &volume));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A pool in this state; open ones have so many dirty bytes.
    fn pool(state: PoolState, action: &str, dirty_bytes: Option<u64>) -> api::Pool {
        let usage = dirty_bytes.map(usage_with);
        let all = json!({
            "name": "fast", "id": "", "state": state, "health": state.health(), "summary": "",
            "action": action, "members": [member("a"), member("b")], "volumes": [], "usage": usage,
        });
        serde_json::from_value(all).unwrap()
    }

    fn member(id: &str) -> Value {
        json!({"id": id, "path": null, "state": "present"})
    }

    fn usage_with(dirty_bytes: u64) -> Value {
        json!({
            "dirty_copies": 2, "write_amplification_max_percent": 150,
            "accept_data_loss_on_ssd_failure": false, "segment_bytes": 1 << 20, "segments": 512,
            "segments_free": 500, "cached_bytes": 0, "dirty_bytes": dirty_bytes, "lost_bytes": 0,
            "index_bytes": 0, "index_bytes_max": 0, "read_requests": 0, "read_hits": 0,
            "write_requests": 0, "safe_in_s": 41, "safe_when": "41 s to safe",
        })
    }

    #[test]
    fn only_pools_that_are_all_open_and_well_are_called_healthy() {
        let well = || pool(PoolState::Online, "", Some(0));
        let said = summary(&[well()]);
        assert_eq!(said, "Healthy. 1 pool; every origin has all of its data.");
        let dirty = || pool(PoolState::Online, "", Some(4096));
        let said = summary(&[well(), dirty()]);
        assert_eq!(said, "Healthy. 2 pools; 4 KiB exist only on SSDs; 41 s to safe.");
        let said = summary(&[dirty()]);
        assert_eq!(said, "Healthy. 4 KiB exist only on these two SSDs; 41 s to safe.");
        let waits = || {
            let mut waits = dirty();
            let usage = waits.usage.as_mut().unwrap();
            (usage.safe_in_s, usage.safe_when) = (None, "waits until 22:00".to_owned());
            waits
        };
        for pools in [[waits(), dirty()], [dirty(), waits()]] {
            let said = summary(&pools);
            assert_eq!(said, "Healthy. 2 pools; 8 KiB exist only on SSDs; waits until 22:00.");
        }
        for state in [PoolState::Rebuilding, PoolState::Degraded, PoolState::Protected] {
            let said = summary(&[well(), pool(state, "", Some(0))]);
            assert!(said.starts_with("Degraded. 1 of 2 pools is recovering, "), "{said}");
            assert!(said.ends_with("every origin has all of its data."), "{said}");
        }
        let mut lost = well();
        lost.health = PoolHealth::Failed;
        assert_eq!(summary(&[lost]), "A look is needed at 1 of 1 pool.");
    }

    #[test]
    fn a_pool_whose_origins_are_being_attached_is_not_said_to_recover() {
        let volume = json!({
            "name": "fast/vm", "origin": "", "size_bytes": 0, "mode": "writeback",
            "state": "offline", "reason": "", "dirty_bytes": null, "exports": [],
        });
        let starting = || api::Pool {
            health: PoolHealth::Degraded,
            volumes: vec![serde_json::from_value(volume.clone()).unwrap()],
            ..pool(PoolState::Online, "", Some(0))
        };
        let end = "being attached; every origin has all of its data.";
        let said = summary(&[starting(), pool(PoolState::Online, "", Some(0))]);
        assert_eq!(said, format!("Not ready. Origins of 1 of 2 pools are {end}"));
        let said = summary(&[starting(), pool(PoolState::Rebuilding, "", Some(0))]);
        assert!(said.starts_with("Degraded. 2 of 2 pools are recovering, "), "{said}");
    }

    #[test]
    fn nothing_is_said_of_origins_while_a_pool_is_not_open() {
        let well = || pool(PoolState::Online, "", Some(0));
        let opening = || pool(PoolState::Waiting, "", None);
        let waits = || pool(PoolState::NeedsDecision, "attach it", None);
        let all = [
            (vec![opening()], "Not ready. 1 of 1 pool is not open yet: "),
            (vec![well(), opening(), opening()], "Not ready. 2 of 3 pools are not open yet: "),
            (vec![well(), waits()], "A look is needed at 1 of 2 pools. 1 is not open: "),
            (vec![opening(), waits()], "A look is needed at 1 of 2 pools. 2 are not open: "),
        ];
        for (pools, begin) in all {
            let said = summary(&pools);
            assert!(said.starts_with(begin) && said.ends_with("is not known."), "{said}");
            assert!(!said.contains("origin") && !said.contains("Healthy"), "{said}");
        }
    }

    #[test]
    fn a_volume_of_a_pool_that_is_not_open_is_not_said_not_to_be_there() {
        let name = "fast/vm".parse().unwrap();
        let closed = unknown_volume(&pool(PoolState::NeedsDecision, "attach it", None), &name);
        let what = "pool \"fast\" is not open (needs-decision), and its volumes are not known";
        assert_eq!(closed.what(), what);
        assert_eq!(closed.hint_text(), "attach it; `forebay pool show fast` says why");
        let open = unknown_volume(&pool(PoolState::Online, "", Some(0)), &name);
        assert_eq!(open.what(), "there is no volume \"fast/vm\"");
    }

    #[test]
    fn a_volume_is_written_through_for_want_of_ssds_or_of_a_witness() {
        use Redundancy::{Protected, Protecting, Rebuilding, Returning, Whole};
        for redundancy in [Protecting, Protected] {
            assert!(written_through(redundancy, false, false).contains("SSDs enough"));
        }
        assert!(written_through(Returning, false, false).contains("all its copies again"));
        for redundancy in [Whole, Rebuilding, Protecting, Protected, Returning] {
            assert_eq!(written_through(redundancy, true, false), "");
            assert!(written_through(redundancy, true, true).contains("witness"));
        }
        for redundancy in [Whole, Rebuilding] {
            assert_eq!(written_through(redundancy, false, false), "");
        }
    }
}

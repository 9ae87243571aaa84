//! Spares: devices that wait for a cache device of their pool to be lost, and take its place.
//!
//! * What says that a device is a spare, and of which pool, is the mark on it; which spares there are, and
//!   where they were last, stands in the pool's record, so that one that is not there is known, and one that
//!   was given up is not believed when it comes back.
//! * They are held open as cache devices are, so that nobody else uses them, and looked at now and then.
//! * One that is lost has one spare, once: the superblock that names the new cache device says that the lost one
//!   is replaced. A start that finds it said so, or not, therefore goes on right, wherever the last one ended.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_control::api::{self, SpareState};
use forebay_control::error::Code;
use forebay_control::name::Name;
use forebay_device::runtime::{Nanos, Runtime, SECOND};
use forebay_engine::ids::DeviceId;
use forebay_engine::{read_spare, unmark};

use super::jobs::Aim;
use super::plan::{plan, room, room_step};
use super::pools::{check_absolute, lost_of};
use super::scan::Sight;
use super::{Daemon, Open, Slot};
use crate::Result;
use crate::failure::Failure;
use crate::flag::race;
use crate::members::{Identity, Members};
use crate::text::{self, plural};

/// Spares of a pool: as many as QSAN's white paper has; half of the members could go one after the other.
pub(super) const SPARES_MAX: usize = 4;

/// How often a spare is looked at: one that has died is known before it is needed, and a read a minute
/// wears nothing.
const LOOK_INTERVAL: Nanos = 60 * SECOND;

/// What is known of a spare of an open pool.
enum Held {
    /// It is there, and ours alone.
    Ready(Members),
    /// It is looked for; why it is not there.
    Missing(String),
    /// It could not be taken, and is not tried again before the next start, or before it is made a spare
    /// again; why.
    Failed(String),
}

/// The spares of an open pool.
#[derive(Default)]
pub(super) struct Spares {
    /// By identity. One that is not here has not been looked for yet.
    held: RefCell<BTreeMap<String, Held>>,
    /// When they are looked at the next time.
    look_at: Cell<Nanos>,
    /// Whether one is being taken, for a cache device that was lost or is failing.
    pub(super) is_taking: Cell<bool>,
    /// Why none can be taken although one is due; empty if nothing is in the way. It is said once.
    obstacle: RefCell<String>,
}

impl Spares {
    /// Whether the device that is to be this spare is held. What is at the last path of one that is not is anybody's.
    pub(super) fn is_ready(&self, id: &str) -> bool {
        matches!(self.held.borrow().get(id), Some(Held::Ready(_)))
    }

    /// Those that can be taken, by their identity.
    pub(super) fn ready(&self) -> Vec<(String, Members)> {
        let held = self.held.borrow();
        let ready = held.iter().filter_map(|(id, held)| match held {
            Held::Ready(members) => Some((id.clone(), members.clone())),
            _ => None,
        });
        ready.collect()
    }

    /// Whether one is to be looked for.
    pub(super) fn lack(&self, slot: &Slot) -> bool {
        let held = self.held.borrow();
        let missing = |id: &String| matches!(held.get(id), None | Some(Held::Missing(_)));
        slot.record.borrow().spares.keys().any(missing)
    }

    /// The one that is this device, whatever its path is called; its identity as a spare, and the device.
    pub(super) fn ready_of(&self, wanted: Identity) -> Option<(String, Members)> {
        self.ready().into_iter().find(|(_, members)| members.identities().contains(&wanted))
    }

    /// Nobody knows it any more.
    pub(super) fn forget(&self, id: &str) {
        self.held.borrow_mut().remove(id);
    }

    /// Whether one can be taken.
    pub(super) fn are_ready(&self) -> bool {
        !self.ready().is_empty()
    }

    /// Why none can be taken although one is due.
    pub(super) fn obstacle(&self) -> String {
        self.obstacle.borrow().clone()
    }
}

impl Slot {
    /// The spares that a start goes on with, given the places of the pool's cache devices: without those that
    /// were taken when the last run ended. Where such a one was, there is a cache device that the record does
    /// not know.
    pub(super) fn spares_beside(
        &self,
        places: &BTreeMap<String, PathBuf>,
    ) -> BTreeMap<String, PathBuf> {
        let record = self.record.borrow();
        let new = places.iter().filter(|(id, _)| !record.places.contains_key(*id));
        let taken: Vec<_> = new.map(|(_, path)| path).collect();
        let left = record.spares.iter().filter(|(_, path)| !taken.contains(path));
        left.map(|(id, path)| (id.clone(), path.clone())).collect()
    }

    /// The spare that has this path, or had it last, or this identity.
    pub(super) fn spare_of(&self, wanted: &str) -> Option<(String, PathBuf)> {
        let record = self.record.borrow();
        let mut spares = record.spares.iter();
        let found = spares.find(|(id, path)| *id == wanted || *path == Path::new(wanted));
        found.map(|(id, path)| (id.clone(), path.clone()))
    }

    /// The pool's name, and where a spare is.
    fn name_and_spare(&self, id: &str) -> (String, PathBuf) {
        let record = self.record.borrow();
        (record.name.to_string(), record.spares.get(id).cloned().unwrap_or_default())
    }

    /// What to do about a spare that is not ready; empty if all are.
    pub(super) fn mend_spare(&self, open: &Open, pool: &str) -> String {
        let spares = self.describe_spares(Some(open));
        let first = spares.into_iter().find(|spare| spare.state != SpareState::Ready);
        first.map_or(String::new(), |spare| {
            let path = spare.path.display();
            format!(
                "the spare {path} cannot be used ({}): mend or attach it, or take it off the list: `forebay \
                 pool device remove {pool} {}`",
                spare.reason, spare.id
            )
        })
    }

    /// Its spares, in the API's words.
    pub(super) fn describe_spares(&self, open: Option<&Open>) -> Vec<api::Spare> {
        let record = self.record.borrow();
        let held = open.map(|open| open.spares.held.borrow());
        let describe = |(id, path): (&String, &PathBuf)| {
            let (state, reason) = match held.as_ref().map(|held| held.get(id)) {
                Some(Some(Held::Ready(_))) => (SpareState::Ready, String::new()),
                Some(Some(Held::Failed(why))) => (SpareState::Failed, why.clone()),
                Some(Some(Held::Missing(why))) => (SpareState::Missing, why.clone()),
                Some(None) => (SpareState::Missing, "it is being looked for".to_owned()),
                None => (SpareState::Missing, "its pool is not open".to_owned()),
            };
            let size_bytes = held.as_ref().and_then(|held| match held.get(id) {
                Some(Held::Ready(members)) => Some(members.only().geometry().size_bytes),
                _ => None,
            });
            let (id, path, health) = (id.clone(), path.clone(), None);
            api::Spare { id, path, state, reason, size_bytes, health }
        };
        record.spares.iter().map(describe).collect()
    }
}

impl Daemon {
    /// What a device answers, unless it takes longer than the pool gives its cache devices.
    async fn in_time<T>(
        &self,
        open: &Open,
        path: &Path,
        work: impl Future<Output = forebay_engine::Result<T>>,
    ) -> Result<T> {
        let deadline = open.pool.superblock().device_deadline();
        match race(work, self.runtime().sleep(deadline)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => {
                let what = format!("{} does not answer", path.display());
                Err(Failure::coded(Code::Io, what).hint("see `dmesg` for the device"))
            }
        }
    }

    /// Opens what is to become a spare, for ourselves alone, once all that can be refused has been.
    async fn open_marked(&self, pool: &Name, path: &Path) -> Result<Members> {
        check_absolute(path)?;
        let (slot, open) = self.open(pool.as_str())?;
        let count = slot.record.borrow().spares.values().filter(|known| *known != path).count();
        if count >= SPARES_MAX {
            let what = format!("pool \"{pool}\" has {SPARES_MAX} spares, as many as it can");
            return Err(Failure::coded(Code::Refused, what)
                .hint(format!("take one away first: `forebay pool device remove {pool} DEVICE`")));
        }
        let (paths, check) = ([path.to_owned()], self.device_check(slot.devices(&open)).await?);
        let members = Members::open_with(&self.reactor, &self.members, &paths, check).await?;
        members.refuse_used("make a spare of", Some(&open.pool.superblock())).await?;
        open.pool.plan_spare(&members.only())?;
        Ok(members)
    }

    /// Makes a device a spare; the caller holds `changing`.
    pub(super) async fn add_spare(&self, pool: &Name, path: &Path) -> Result<api::Pool> {
        let members = self.open_marked(pool, path).await?;
        let (slot, open) = self.open(pool.as_str())?;
        let device = members.only();
        let was = self.in_time(&open, path, read_spare(&*device)).await?;
        let was = was.map_or(String::new(), |mark| mark.device.to_string());
        let mark = self.in_time(&open, path, open.pool.mark_spare(&device)).await?;
        let id = mark.device.to_string();
        let mut record = slot.record.borrow().clone();
        // It may have been one before, under another identity.
        record.spares.retain(|id, known| *id != was && known != path);
        record.spares.insert(id.clone(), path.to_owned());
        if let Err(failure) = self.state.store(&record).await {
            self.in_time(&open, path, unmark(&*device)).await.ok();
            return Err(failure);
        }
        open.spares.held.borrow_mut().retain(|id, _| record.spares.contains_key(id));
        *slot.record.borrow_mut() = record;
        open.spares.held.borrow_mut().insert(id.clone(), Held::Ready(members));
        let what = format!("{} is a spare now ({id})", path.display());
        self.journal.note("spare-added", (pool.as_str(), path.display().to_string()), what);
        self.show_pool(pool.as_str())
    }

    /// What it would do to make a device a spare.
    pub(super) async fn plan_spare(&self, pool: &Name, path: &Path) -> Result<api::Plan> {
        let members = self.open_marked(pool, path).await?;
        let (_, open) = self.open(pool.as_str())?;
        let layout = open.pool.plan_spare(&members.only())?;
        let superblock = open.pool.superblock();
        let (segment_bytes, segments) = (layout.segment_bytes.into(), layout.segment_count);
        let room = room(&superblock, None);
        // A device that is full of dirty data, as far as there is room for it here.
        let largest = superblock.present().map(|m| m.segments.count()).max().unwrap_or(0);
        let moved_bytes = u64::from(largest.min(segments)) * segment_bytes;
        let larger =
            superblock.present().filter(|m| m.segments.count() > layout.segment_count).count();
        let covers = match larger {
            0 => {
                "it covers the loss of any one cache device: as much fits then as before".to_owned()
            }
            count => format!(
                "of {} it covers a part: they are larger, so less fits then, and the copies of dirty data \
                 for which there is no room come back as it is destaged",
                plural(count, "cache device")
            ),
        };
        let mut steps = vec![
            "it is erased and marked as a spare; it holds nothing, and no data goes there"
                .to_owned(),
            room_step(&room, &room),
            format!(
                "when a cache device is lost it takes its place by itself, with {segments} segments \
                 of {}, and {}, {} at the most",
                text::bytes(segment_bytes),
                match superblock.clean_copies {
                    0 | 1 =>
                        "dirty data that lacks a copy is copied there: nothing if all is clean",
                    _ =>
                        "what lacks a copy is copied again, dirty data first and clean data behind it",
                },
                text::bytes(moved_bytes)
            ),
        ];
        let (time, time_s) = self.time_step(moved_bytes, path, &*members.only()).await;
        steps.extend([format!("taking a place takes no time but for that; {time}"), covers]);
        if self.lost_without_spare(pool.as_str())?.is_some() {
            steps.push(format!(
                "the pool lacks a cache device now, so it is taken at once, and {} of dirty and {} of clean \
                 data are copied again",
                text::bytes(open.pool.short_bytes().0),
                text::bytes(open.pool.short_clean_bytes(1))
            ));
        }
        let what = format!("{} would be a spare of pool \"{pool}\"", path.display());
        let then = api::DevicePlan {
            segments: segments.into(),
            segment_bytes,
            before: room.clone(),
            after: room,
            moved_bytes,
            time_s,
        };
        Ok(api::Plan { erased: vec![path.to_owned()], pool: Some(then), ..plan(what, steps) })
    }

    /// Begins to take a spare away: it holds nothing, so nothing is waited for.
    pub(super) fn remove_spare(self: &Rc<Self>, pool: &Name, id: &str) -> Result<api::Job> {
        let aim = Aim::RemoveSpare(pool.clone(), id.to_owned());
        if let Some(job) = self.jobs.join(&aim)? {
            return Ok(job);
        }
        let (it, pool, id) = (Rc::clone(self), pool.clone(), id.to_owned());
        let job = self.jobs.begin(
            aim,
            || 0,
            |_| async move {
                let _held = it.changing.lock().await;
                it.give_up_spare(&pool, &id).await
            },
        );
        Ok(self.jobs.look(&job))
    }

    async fn give_up_spare(&self, pool: &Name, id: &str) -> Result<()> {
        let (slot, open) = self.open(pool.as_str())?;
        let Some((_, path)) = slot.spare_of(id) else {
            let what = format!("pool \"{pool}\" has no spare {id} any more");
            return Err(Failure::coded(Code::NotFound, what)
                .hint(format!("it may have been taken: `forebay pool show {pool}`")));
        };
        let mut record = slot.record.borrow().clone();
        record.spares.remove(id);
        self.state.store(&record).await?;
        *slot.record.borrow_mut() = record;
        let held = open.spares.held.borrow_mut().remove(id);
        let rest = match held {
            Some(Held::Ready(members)) => {
                self.in_time(&open, &path, unmark(&*members.only())).await.err()
            }
            _ => Some(Failure::new("it is not there")),
        };
        let rest = rest.map_or(String::new(), |failure| {
            format!("; its mark stays ({}), and means nothing here any more", failure.what())
        });
        let what = format!("{} is no spare any more{rest}", path.display());
        self.journal.note("spare-removed", (pool.as_str(), path.display().to_string()), what);
        Ok(())
    }

    /// Takes the marks off all spares of a pool that is to be no more, as far as they are there.
    pub(super) async fn unmark_spares(&self, slot: &Slot, open: &Open) {
        for (id, members) in open.spares.ready() {
            let (name, path) = slot.name_and_spare(&id);
            if let Err(failure) = self.in_time(open, &path, unmark(&*members.only())).await {
                let what = format!("{} keeps its mark: {}", path.display(), failure.what());
                self.journal.warn("spare-failed", (&*name, path.display().to_string()), what);
            }
            open.spares.forget(&id);
        }
    }

    /// Looks for the spares of an open pool that are not held, among what a scan has found.
    pub(super) async fn look_for_spares(&self, slot: &Slot, open: &Open, sight: &Sight) {
        let (name, pool) = (slot.record.borrow().name.to_string(), open.pool.superblock().pool);
        let known = slot.record.borrow().spares.clone();
        let mut moved = false;
        for (id, last) in known {
            if matches!(open.spares.held.borrow().get(&id), Some(Held::Ready(_) | Held::Failed(_)))
            {
                continue;
            }
            let pool_id = pool.to_string();
            let mut marked = sight.spares_of(&pool_id);
            let path = marked.find(|m| m.mark.device.to_string() == id).map(|m| m.path.clone());
            let held = match path {
                Some(path) => {
                    let held = self.hold_spare(open, &id, &path).await;
                    moved |= path != last;
                    slot.record.borrow_mut().spares.insert(id.clone(), path);
                    held
                }
                None => Held::Missing("it is not there".to_owned()),
            };
            self.tell_of_spare(&name, &last, &held, open.spares.held.borrow().get(&id));
            open.spares.held.borrow_mut().insert(id, held);
        }
        if moved {
            self.keep_record(slot).await;
        }
    }

    /// Says that a spare is missing, once, and that it has come back.
    fn tell_of_spare(&self, pool: &str, path: &Path, now: &Held, before: Option<&Held>) {
        let path = path.display();
        let subject = (pool, path.to_string());
        match (now, before) {
            (Held::Ready(_), Some(_)) => {
                self.journal.note(
                    "spare-found",
                    subject,
                    format!("the spare {path} is there again"),
                );
            }
            (Held::Missing(why), None) => {
                let what = format!("the spare {path} cannot be used: {why}");
                self.journal.warn("spare-missing", subject, what);
            }
            _ => {}
        }
    }

    /// Opens a spare for ourselves alone, if it is still the one that was seen.
    async fn hold_spare(&self, open: &Open, id: &str, path: &Path) -> Held {
        let opened = self.open_members(&[path.to_owned()]).await;
        let checked = match &opened {
            Ok(members) => self.check_mark(open, id, path, members).await,
            Err(failure) => Err(failure.clone()),
        };
        match (opened, checked) {
            (Ok(members), Ok(())) => Held::Ready(members),
            (_, Err(failure)) | (Err(failure), _) => Held::Missing(failure.what().to_owned()),
        }
    }

    /// Whether a spare is still what it was marked as, and nobody has put anything else there.
    async fn check_mark(
        &self,
        open: &Open,
        id: &str,
        path: &Path,
        members: &Members,
    ) -> Result<()> {
        let (device, own) = (members.only(), open.pool.superblock());
        let mark = self.in_time(open, path, read_spare(&*device)).await?;
        if !mark.is_some_and(|mark| mark.pool == own.pool && mark.device.to_string() == id) {
            let what =
                format!("the mark on {} is gone: somebody else has written there", path.display());
            return Err(Failure::coded(Code::Io, what));
        }
        let used = async { Ok(members.refuse_used("take", Some(&own)).await) };
        self.in_time(open, path, used).await?
    }

    /// Looks whether the spares of an open pool still answer, from time to time.
    pub(super) async fn look_at_spares(&self, slot: &Slot, open: &Open) {
        let now = self.reactor.now();
        if now < open.spares.look_at.get() {
            return;
        }
        open.spares.look_at.set(now.saturating_add(LOOK_INTERVAL));
        for (id, members) in open.spares.ready() {
            let (_, path) = slot.name_and_spare(&id);
            if let Err(failure) = self.check_mark(open, &id, &path, &members).await {
                self.miss_spare(slot, open, &id, &failure);
            }
        }
    }

    /// Lets go of a spare that does not answer as one any more; it is looked for again.
    fn miss_spare(&self, slot: &Slot, open: &Open, id: &str, failure: &Failure) {
        let (name, path) = slot.name_and_spare(id);
        let missing = Held::Missing(failure.what().to_owned());
        self.tell_of_spare(&name, &path, &missing, None);
        open.spares.held.borrow_mut().insert(id.to_owned(), missing);
    }

    /// Passes over a spare that could not be made a cache device.
    fn fail_spare(&self, slot: &Slot, open: &Open, id: &str, failure: &Failure) {
        let (name, path) = slot.name_and_spare(id);
        let what = format!("the spare {} could not be taken: {}", path.display(), failure.what());
        self.journal.warn("spare-failed", (&*name, path.display().to_string()), what);
        let failed = Held::Failed(failure.what().to_owned());
        open.spares.held.borrow_mut().insert(id.to_owned(), failed);
    }

    /// The cache device that the pool has lost, and in whose place a spare is due.
    fn lost_without_spare(&self, name: &str) -> Result<Option<DeviceId>> {
        let (slot, open) = self.open(name)?;
        // A person is taking one out, or putting another one in its place, and that goes on by itself.
        let is_leaving = |aim: &Aim| aim.left_pool().is_some_and(|pool| pool.as_str() == name);
        if open.pool.is_latched() || self.jobs.is_running(is_leaving) {
            return Ok(None);
        }
        let (superblock, record) = (open.pool.superblock(), slot.record.borrow());
        let lost = lost_of(&superblock, &record.replaced).find(|id| !slot.is_being_replaced(*id));
        Ok(lost)
    }

    /// Has a spare taken if one is due and there is one.
    pub(super) fn begin_taking(self: &Rc<Self>, slot: &Rc<Slot>, open: &Rc<Open>) {
        let name = slot.record.borrow().name.clone();
        let is_due = matches!(self.lost_without_spare(name.as_str()), Ok(Some(_)));
        if !is_due {
            open.spares.obstacle.borrow_mut().clear();
        }
        if !is_due || !open.spares.are_ready() || open.spares.is_taking.replace(true) {
            return;
        }
        let (it, watching) = (Rc::clone(self), Rc::downgrade(open));
        self.runtime().spawn(Box::pin(async move {
            let _held = it.changing.lock().await;
            while !it.is_ending() && it.take_spare(&name).await {}
            if let Some(open) = watching.upgrade() {
                open.spares.is_taking.set(false);
            }
        }));
    }

    /// Puts a spare in the place of a cache device that was lost; whether there may be more to do. The caller
    /// holds `changing`.
    async fn take_spare(&self, name: &Name) -> bool {
        let Ok((slot, open)) = self.open(name.as_str()) else { return false };
        let Ok(Some(lost)) = self.lost_without_spare(name.as_str()) else { return false };
        let superblock = open.pool.superblock();
        let record = superblock.members.iter().find(|member| member.device == lost);
        let segments = record.map_or(0, |member| member.segments.count());
        let wanted = u64::from(segments) * u64::from(superblock.segment_bytes);
        let Some((id, members)) = choose(open.spares.ready(), wanted) else { return false };
        let (_, path) = slot.name_and_spare(&id);
        if let Err(failure) = self.check_mark(&open, &id, &path, &members).await {
            self.miss_spare(&slot, &open, &id, &failure);
            return true;
        }
        if let Err(error) = open.pool.plan_addition_for(&members.only(), lost) {
            self.tell_obstacle(&slot, &open, &Failure::from(error));
            return false;
        }
        match self.join_device(name, &path, members, None, Some(lost)).await {
            Ok(()) => {
                self.tell_taken(&slot, &open, &path, lost);
                true
            }
            Err(failure) if failure.code() == Code::Io && !open.pool.is_latched() => {
                self.fail_spare(&slot, &open, &id, &failure);
                true
            }
            Err(failure) => {
                self.tell_obstacle(&slot, &open, &failure);
                false
            }
        }
    }

    /// Says, once, why no spare can be taken.
    fn tell_obstacle(&self, slot: &Slot, open: &Open, failure: &Failure) {
        let known = open.spares.obstacle.replace(failure.what().to_owned());
        if known != failure.what() {
            let what = format!("no spare can be taken yet: {}", failure.what());
            self.journal.warn("spare-waiting", slot.record.borrow().name.as_str(), what);
        }
    }

    fn tell_taken(&self, slot: &Slot, open: &Open, path: &Path, lost: DeviceId) {
        let record = slot.record.borrow();
        let place = record.places.get(&lost.to_string());
        let place = place.map_or(String::new(), |place| format!(" ({})", place.display()));
        let copies = match open.pool.short_bytes().0 {
            0 => "everything that is dirty has its copies".to_owned(),
            short => format!("{} of dirty data get their copies again", text::bytes(short)),
        };
        let what = format!(
            "the spare {} has taken the place of cache device {lost}{place}; {copies}",
            path.display()
        );
        self.journal.note("spare-taken", (record.name.as_str(), path.display().to_string()), what);
    }
}

/// The smallest spare that is as large as what was lost, or the largest of all.
pub(super) fn choose(ready: Vec<(String, Members)>, wanted: u64) -> Option<(String, Members)> {
    ready.into_iter().min_by_key(|(_, members)| {
        let size = members.only().geometry().size_bytes;
        if size >= wanted { (false, size) } else { (true, u64::MAX - size) }
    })
}

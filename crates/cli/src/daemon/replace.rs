//! A cache device takes the place of another one: an addition, then a removal or, if the old one is gone, what
//! makes a loss good. There is nothing here that is not one of these.
//!
//! * What is intended is stored with the place of the new one, before that is a part of the pool. So who asks
//!   again, after a crash, a failure or a cancellation, goes on where it has ended.
//! * At each instant the pool is whole: with both, and then without the old one.

use std::path::Path;
use std::rc::Rc;

use forebay_control::api::{self, DevicePlan, Plan};
use forebay_control::error::Code;
use forebay_control::name::Name;
use forebay_device::real::open::typed;
use forebay_device::runtime::{MILLISECOND, Nanos, Runtime};
use forebay_engine::Departure;
use forebay_engine::format::MemberState;
use forebay_engine::ids::DeviceId;

use super::devices::Device;
use super::jobs::{Aim, Job};
use super::plan::{clean_step, layout_step, plan, room, room_step};
use super::state::Replacing;
use super::volumes::cancelled;
use super::{Daemon, Open, Slot};
use crate::Result;
use crate::failure::Failure;
use crate::members::{Members, PATIENCE};
use crate::text::{self, plural};

/// How often it is looked whether a loss is made good.
const LOOK_INTERVAL: Nanos = 100 * MILLISECOND;

/// The old device, and whether the pool still has it.
struct Old {
    device: Device,
    is_there: bool,
}

impl Open {
    /// Whether the pool has a cache device that serves.
    pub(super) fn has(&self, id: DeviceId) -> bool {
        self.pool.can_pull(id).is_ok_and(|pull| !pull.has_failed)
    }

    /// Whether dirty data lacks copies since members were lost.
    pub(super) fn is_made_good(&self) -> bool {
        self.pool.superblock().members.iter().all(|member| member.state != MemberState::Failed)
    }

    fn name_of_lost(&self) -> Vec<String> {
        let superblock = self.pool.superblock();
        let lost = superblock.members.iter().filter(|m| m.state != MemberState::Present);
        lost.map(|member| member.device.to_string()).collect()
    }
}

impl Slot {
    /// Whether somebody has put another cache device in the place of this one, as a part of a replacement that
    /// has not come to its end.
    pub(super) fn is_being_replaced(&self, old: DeviceId) -> bool {
        let (record, seen) = (self.record.borrow(), self.seen.borrow());
        let (Some(known), Some(open)) = (&record.replacing, self.open()) else { return false };
        let mut new = seen.iter().filter(|found| found.path == known.new);
        known.old == old.to_string() && new.any(|found| open.has(found.superblock.device))
    }
}

impl Daemon {
    /// The device that is to be replaced: a member, or one that the pool has gone on without.
    fn old_device(&self, name: &Name, wanted: &str) -> Result<Old> {
        let (slot, open) = self.open(name.as_str())?;
        let failure = match self.device_of(name, wanted) {
            Ok(device) => return Ok(Old { is_there: open.has(device.id), device }),
            Err(failure) => failure,
        };
        let superblock = open.pool.superblock();
        let places = slot.places_of(&superblock);
        // A replacement that is under way knows what has no record any more.
        let replacing = slot.record.borrow().replacing.clone();
        let lost = superblock.members.iter().filter(|m| m.state != MemberState::Present);
        let found = lost.map(|member| member.device).find(|id| {
            let id = id.to_string();
            id == wanted || places.get(&id).is_some_and(|path| path == Path::new(wanted))
        });
        match found {
            Some(id) => Ok(Old {
                device: Device {
                    id,
                    path: places.get(&id.to_string()).cloned().unwrap_or_default(),
                },
                is_there: false,
            }),
            None if replacing.is_some_and(|known| {
                known.old == wanted || known.old_path == Path::new(wanted)
            }) =>
            {
                let what = format!("cache device {wanted} is no part of pool \"{name}\" any more");
                Err(Failure::coded(Code::NotFound, what)
                    .hint("it has been replaced; there is nothing left to do"))
            }
            None => match open.name_of_lost().as_slice() {
                [] => Err(failure),
                lost => Err(failure.hint(format!(
                    "`forebay pool show {name}` shows what it has; it has lost {}",
                    lost.join(", ")
                ))),
            },
        }
    }

    /// Whether this replacement was begun before, and the new device is a part of the pool since.
    fn goes_on(&self, slot: &Slot, old: &Old, new: &Path) -> bool {
        let is_known =
            slot.record.borrow().replacing.as_ref().is_some_and(|known| known.new == new);
        is_known && slot.is_being_replaced(old.device.id)
    }

    /// What the new device is, once all that can be refused has been.
    async fn new_device(&self, name: &Name, old: &Old, new: &Path) -> Result<Members> {
        let (slot, open) = self.open(name.as_str())?;
        let own = open.members.borrow().identity(old.device.id);
        let is_same =
            new == old.device.path || own.is_some() && self.identity_at(new).await? == own;
        if old.is_there && is_same {
            let what = format!("{} cannot take its own place", new.display());
            return Err(Failure::new(what).hint("name the new cache device second"));
        }
        let joining = self.open_new(&slot, &open, new).await?;
        let device = joining.only();
        match old.is_there {
            true => drop(open.pool.plan_replacement(old.device.id, &device)?),
            false => drop(open.pool.plan_addition_for(&device, old.device.id)?),
        }
        Ok(joining)
    }

    /// Begins a replacement, or goes on with one; the caller holds `changing`.
    pub(super) async fn replace_device(
        self: &Rc<Self>,
        name: &Name,
        old: &str,
        new: &Path,
    ) -> Result<api::Job> {
        let (slot, open) = self.open(name.as_str())?;
        let old = self.old_device(name, old)?;
        let aim = Aim::ReplaceDevice(name.clone(), old.device.id, new.to_owned());
        if let Some(job) = self.jobs.join(&aim)? {
            return Ok(job);
        }
        if !self.goes_on(&slot, &old, new) {
            let joining = self.new_device(name, &old, new).await?;
            let (id, path) = (old.device.id.to_string(), old.device.path.clone());
            let replacing = Replacing { old: id, old_path: path, new: new.to_owned() };
            // Only one that is lost by then counts as replaced by that.
            let lost = Some(old.device.id);
            self.join_device(name, new, joining, Some(replacing), lost).await?;
        }
        let departure = match open.has(old.device.id) {
            true => Some(Rc::new(self.begin_departure(&open, old.device.id, new).await?)),
            false => None,
        };
        // It keeps the pool open no longer than it is.
        let (watching, counted) = (Rc::downgrade(&open), departure.clone());
        let left = move || {
            let short = watching.upgrade().map_or(0, |open| open.pool.short_bytes().0);
            let held = counted.as_ref().filter(|_| short == 0);
            held.map_or(short, |departure| departure.left_bytes())
        };
        let (it, name) = (Rc::clone(self), name.clone());
        drop(open);
        let job = self.jobs.begin(aim, left, |job| async move {
            if let Some(departure) = departure {
                let left = it.depart(&job, &name, &old.device, &departure).await;
                // It may have failed on the way: then what it had is made good.
                let is_there =
                    it.open(name.as_str()).is_ok_and(|(_, open)| open.has(old.device.id));
                if is_there || job.is_cancelled() {
                    left?;
                }
            }
            it.make_good(&job, &name, old.device.id).await?;
            let _held = job.unless_cancelled(it.changing.lock()).await.ok_or_else(cancelled)?;
            let slot = it.slot(name.as_str())?;
            {
                let mut record = slot.record.borrow_mut();
                record.replacing = None;
                record.replaced.insert(old.device.id.to_string());
            }
            it.keep_record(&slot).await;
            Ok(())
        });
        Ok(self.jobs.look(&job))
    }

    /// Begins to take the old device out, once one that was cancelled just now has come to rest.
    async fn begin_departure(&self, open: &Open, old: DeviceId, new: &Path) -> Result<Departure> {
        let give_up = self.reactor.now().saturating_add(PATIENCE);
        while open.pool.is_calling_off() && self.reactor.now() < give_up {
            let _ = self.runtime().sleep(LOOK_INTERVAL).await;
        }
        open.pool.begin_departure(old).map_err(|error| {
            let new = new.display();
            Failure::from(error)
                .on(format!("{new} is a part of the pool, and the old one still is"))
        })
    }

    /// Waits until nothing lacks copies that the old device had, if it has failed.
    async fn make_good(&self, job: &Job, name: &Name, old: DeviceId) -> Result<()> {
        loop {
            {
                let (_, open) = self.open(name.as_str())?;
                if open.pool.is_latched() {
                    return Err(Failure::new(format!("pool \"{name}\" has stopped writing"))
                        .hint("see `forebay events` for the device"));
                }
                let is_named = open.pool.superblock().present().any(|m| m.device == old);
                if open.is_made_good() && !is_named {
                    return Ok(());
                }
                if !open.pool.short_bytes().1 {
                    let what = "another one was lost, and too few are left for the copies that were \
                                asked for";
                    return Err(
                        Failure::new(what).hint("add another one: `forebay pool device add`")
                    );
                }
            }
            let sleep = self.runtime().sleep(LOOK_INTERVAL);
            if job.unless_cancelled(sleep).await.is_none() {
                return Err(cancelled());
            }
        }
    }

    /// What to ask for so that a replacement goes on which has ended before its end.
    pub(super) fn unfinished(&self, slot: &Slot, name: &str) -> Option<String> {
        let known = slot.record.borrow().replacing.clone()?;
        let superblock = slot.open()?.pool.superblock();
        let id =
            superblock.members.iter().map(|m| m.device).find(|id| id.to_string() == known.old)?;
        let is_running = self.jobs.is_running(|aim| {
            matches!(aim, Aim::ReplaceDevice(pool, old, _) if pool.as_str() == name && *old == id)
        });
        let new = typed(&known.new);
        (!is_running).then(|| {
            format!("a replacement has not ended: `forebay pool device replace {name} {id} {new}` goes on")
        })
    }

    /// What a replacement would do.
    pub(super) async fn plan_replace(&self, name: &Name, old: &str, new: &Path) -> Result<Plan> {
        let (slot, open) = self.open(name.as_str())?;
        let old = self.old_device(name, old)?;
        let aim = Aim::ReplaceDevice(name.clone(), old.device.id, new.to_owned());
        self.jobs.join(&aim)?;
        let (was, place) = (open.pool.superblock(), new.display());
        // One that was lost may have been anywhere.
        let known = old.device.path.display().to_string();
        let replaced = if known.is_empty() { old.device.id.to_string() } else { known };
        let what = format!("{replaced} of pool \"{name}\" would be replaced by {place}");
        if self.goes_on(&slot, &old, new) {
            let step = match old.is_there {
                true => {
                    format!("{place} is a part of the pool already; emptying the old one goes on")
                }
                false => format!("{place} is a part of the pool already; copies are made good"),
            };
            let leaving = Some(old.device.id).filter(|_| old.is_there);
            return Ok(plan(what, vec![step, room_step(&room(&was, None), &room(&was, leaving))]));
        }
        let joining = self.new_device(name, &old, new).await?;
        let device = joining.only();
        let is = open.pool.plan_addition_for(&device, old.device.id)?;
        let segments = is.members.last().map_or(0, |member| u64::from(member.segments.count()));
        let (before, after) = (room(&was, None), room(&is, Some(old.device.id)));
        let mut steps = vec![layout_step(segments, &is), room_step(&before, &after)];
        let moved = match old.is_there {
            true => {
                let (_, held) = open.pool.plan_replacement(old.device.id, &device)?;
                steps.push(format!(
                    "what the old one holds, {} with what is unused in between, goes to {place} and {}: \
                     dirty data first and with all its copies ({}), clean data as far as it is worth it",
                    text::bytes(held),
                    plural(was.present().count() - 1, "other cache device"),
                    is.dirty_copies,
                ));
                held
            }
            false => {
                let (dirty, clean) = (open.pool.short_bytes().0, open.clean_to_copy(&after));
                steps.push(format!(
                    "the old one is gone: {} of dirty data get their {} copies again",
                    text::bytes(dirty),
                    is.dirty_copies
                ));
                if clean > 0 {
                    steps.push(clean_step(clean));
                }
                dirty + clean
            }
        };
        let (time, time_s) = self.time_step(moved, new, &*device).await;
        steps.push(time);
        let mut erased = vec![new.to_owned()];
        if old.is_there {
            steps.push(
                "the pool goes on without the old one, and its superblock is erased".to_owned(),
            );
            erased.push(old.device.path);
        }
        let (segment_bytes, moved_bytes) = (is.segment_bytes.into(), moved);
        let then = DevicePlan { segments, segment_bytes, before, after, moved_bytes, time_s };
        Ok(Plan { erased, pool: Some(then), ..plan(what, steps) })
    }
}

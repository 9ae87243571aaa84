//! Taking a member out of a pool that is in use.
//!
//! * From the beginning on no set is opened on it, and what is open there is closed. It is read, gets
//!   roots and superblocks, and is a member in every other way.
//! * It is emptied: dirty data moves to the others with all its copies, clean data is moved or dropped
//!   as reclaim would do it; then laps make what lay there free. Dirty data goes first.
//! * Only when no set has a segment there, a new epoch begins without it (INV-50). No set is in the set
//!   table longer than a durable root needs it, so neither the root nor anything behind it names a place
//!   on the member: whoever starts then misses nothing, whatever of the new epoch was cut off.
//! * Its superblock is erased after that, so that nobody takes it for a member.
//! * Nothing of this is durable before the new epoch. After a crash the member is one like any other,
//!   and less is on it; who wants it out asks again.
//! * If a member fails meanwhile, this one stays, at that very instant: the copies that dirty data is to
//!   have may need it.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::runtime::MILLISECOND;
use forebay_device::{BlockDevice, Buf, IoError, LocalBoxFuture};

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::failure::Standing;
use crate::format::{Layout, MemberRecord, SUPERBLOCK_BYTES, Stream, Superblock};
use crate::ids::{BLOCK_BYTES, DeviceId, SegmentId};
use crate::member::Member;
use crate::planted::{self, Bug};
use crate::pool::Pool;
use crate::segment::{Set, SetState};
use crate::text::bytes;
use crate::wait::TaskGuard;
use crate::work::Job;

/// How often it is looked whether more can be emptied: what waits for a flush of its origin cannot.
const LOOK_INTERVAL: u64 = 50 * MILLISECOND;

/// Part of what the others hold that dirty data may fill when a member is to leave, in percent: the
/// bound of dirty data in a pool in use ([`crate::Tuning`]), so that writers are not held back longer
/// than they would be anyway.
const DIRTY_PERCENT_MAX: u64 = 60;

/// How far it is with the member that is on its way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Something may be left on it; or there is none.
    #[default]
    Filled,
    /// Nothing is.
    Empty,
    /// The epoch without it is being written: it cannot stay, even if another one fails.
    Parting,
}

/// The stage that a pool's member on its way out has come to.
#[derive(Default)]
pub(crate) struct Leave(Cell<Stage>);

impl Leave {
    /// A member has been asked to go, perhaps once more.
    fn begin(&self) {
        self.0.set(Stage::Filled);
    }

    fn note_empty(&self) {
        if self.0.get() == Stage::Filled {
            self.0.set(Stage::Empty);
        }
    }

    /// Whether nothing is left on it.
    fn is_empty(&self) -> bool {
        self.0.get() != Stage::Filled
    }

    /// It goes now. Who gives up before [`Leave::end_parting`] leaves it so: the epoch without it may have begun.
    fn part(&self) {
        self.0.set(Stage::Parting);
    }

    fn end_parting(&self) {
        if self.is_parting() {
            self.0.set(Stage::Empty);
        }
    }

    /// Whether it cannot stay any more.
    pub(crate) fn is_parting(&self) -> bool {
        self.0.get() == Stage::Parting
    }
}

/// A member on its way out. Dropped before [`Departure::end`] has ended, the member stays.
pub struct Departure {
    core: Rc<Core>,
    index: usize,
}

impl Drop for Departure {
    fn drop(&mut self) {
        self.core.keep_member(self.index);
    }
}

impl Pool {
    /// The member that is being taken out.
    pub fn leaving_member(&self) -> Option<DeviceId> {
        self.core.leaving().map(|index| self.core.members[index].id)
    }

    /// Whether a member could be taken out; bytes of segments on it that are in use.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is none; [`ErrorKind::Refused`] if it is the last one, the others
    /// are too few for the copies that were asked for, are too small for what is dirty, or members were
    /// lost and what they held has not all its copies yet; [`ErrorKind::Stopping`].
    pub fn check_departure(&self, id: DeviceId) -> Result<u64> {
        self.core.may_depart(id, None).map(|index| self.core.bytes_on(index))
    }

    /// Whether a device could take the place of a member: it is added ([`Pool::add_member`]), then the
    /// member is taken out ([`Pool::begin_departure`]). What the superblock would say in between, as
    /// [`Pool::plan_addition`] has it, and bytes of segments on the member that are in use.
    ///
    /// # Errors
    /// Those of [`Pool::plan_addition`], and of [`Pool::check_departure`] with the device added.
    pub fn plan_replacement(
        &self,
        id: DeviceId,
        device: &Rc<dyn BlockDevice>,
    ) -> Result<(Superblock, u64)> {
        let next = self.plan_addition(device)?;
        let index = self.core.may_depart(id, next.members.last())?;
        Ok((next, self.core.bytes_on(index)))
    }

    /// Whether what was under way for a departure that has been called off has not ended yet. Until then
    /// none can begin; it takes as long as moving one set.
    pub fn is_calling_off(&self) -> bool {
        self.core.work.is_at(Job::Empty) && self.core.leaving().is_none()
    }

    /// Begins to take a member out: nothing new is put there, and what it holds goes to the others.
    ///
    /// # Errors
    /// Those of [`Pool::check_departure`].
    pub fn begin_departure(&self, id: DeviceId) -> Result<Departure> {
        let core = &self.core;
        let index = core.may_depart(id, None)?;
        core.members[index].transition(Standing::Leaving);
        core.sets.borrow_mut().set_leaving(Some(index));
        core.leave.begin();
        core.spawn_job(Job::Empty, emptier(Rc::clone(core)));
        core.housekeeping.wake_all();
        Ok(Departure { core: Rc::clone(core), index })
    }
}

impl Departure {
    /// Waits until nothing is left on the member. Whoever stops waiting loses nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if the member has to stay, because another one has failed, or is gone
    /// because it has failed itself; [`ErrorKind::Stopping`]; [`ErrorKind::Io`] if the pool has latched.
    pub fn emptied(&self) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let core = &self.core;
            let over = || core.check_leaving(self.index).is_err();
            core.housekeeping.until(|| core.leave.is_empty() || over()).await;
            core.check_leaving(self.index)
        })
    }

    /// Bytes of segments on the member that are in use.
    pub fn left_bytes(&self) -> u64 {
        self.core.bytes_on(self.index)
    }

    /// Begins the epoch without the member once it is empty, then erases its superblock. To be driven
    /// to its end. Afterwards nothing is asked of the device any more.
    ///
    /// # Errors
    /// Those of [`Departure::emptied`].
    pub fn end(&self) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.emptied().await?;
            self.core.depart(self.index).await
        })
    }
}

impl Core {
    /// How many members new sets may lie on.
    pub(crate) fn staying_count(&self) -> usize {
        self.serving().filter(|(_, member)| !member.is_leaving()).count()
    }

    /// The member with this identity that the pool uses, and its place.
    pub(crate) fn member_in_use(&self, id: DeviceId) -> Result<(usize, &Member)> {
        self.serving().find(|(_, member)| member.id == id).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("cache device {id} is not in use by the pool"))
                .hint("see `forebay pool show` for its cache devices")
        })
    }

    fn bytes_on(&self, index: usize) -> u64 {
        self.sets.borrow().on(index).count() as u64 * self.segment_bytes
    }

    /// The place of a member that may be taken out, once `added` is there.
    fn may_depart(&self, id: DeviceId, added: Option<&MemberRecord>) -> Result<usize> {
        self.check_running()?;
        let (index, _) = self.member_in_use(id)?;
        let refused =
            |what: String, hint: &str| Err(Error::new(ErrorKind::Refused, what).hint(hint));
        if self.members.iter().any(|member| member.is_leaving()) || self.work.is_at(Job::Empty) {
            return refused(
                "a cache device is being removed already, or that has just been cancelled"
                    .to_owned(),
                "wait for the end of that",
            );
        }
        let superblock = self.superblock.borrow();
        if self.is_failing() || superblock.failed_count() > 0 {
            let (what, hint) = match self.is_short() {
                true => (
                    "a cache device was lost, and none has taken its place",
                    "put another one in its place first, `forebay pool device replace POOL LOST DEVICE`, or add one, \
                     `forebay pool device add POOL DEVICE`; then wait for the event `copies-restored`",
                ),
                false => (
                    "a cache device was lost, and not all dirty data has its copies again",
                    "wait for the event `copies-restored`",
                ),
            };
            return refused(what.to_owned(), hint);
        }
        let others = self.serving().count() - 1 + usize::from(added.is_some());
        if others == 0 {
            return refused(
                format!("cache device {id} is the only one of pool \"{}\"", superblock.name),
                "remove the volumes, then destroy the pool; or add a cache device first",
            );
        }
        let dirty = superblock.dirty_copies.max(superblock.dirty_copies_next);
        let copies = usize::from(dirty.max(superblock.clean_copies));
        if others < copies {
            return refused(
                format!(
                    "{copies} copies were asked for, and {others} of {} cache devices would be left",
                    others + 1
                ),
                "ask for fewer copies first: `forebay pool set`; or add a cache device first",
            );
        }
        let sets = self.sets.borrow();
        let left =
            sets.sets_without(index, added.map(|added| added.segments.count()), dirty.into());
        let count = added.map_or(0, |added| added.segments.count());
        let all = sets.sets_in_all(dirty.into(), Some((index, count)));
        let beyond = self.overpromised_bytes(all);
        if beyond > 0 {
            return refused(
                format!(
                    "{} more are reserved for volumes than the cache devices that are left can promise",
                    bytes(beyond)
                ),
                match added {
                    Some(_) => {
                        "make reservations smaller: `forebay volume set`; or use a larger one"
                    }
                    None => {
                        "make reservations smaller: `forebay volume set`; or add a cache device"
                    }
                },
            );
        }
        let room = left as u64 * DIRTY_PERCENT_MAX / 100;
        let owed: u64 = sets.iter().map(|set| u64::from(set.owed_blocks)).sum();
        if owed.div_ceil(u64::from(self.segment_blocks)) > room {
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            return refused(
                format!(
                    "what is dirty would fill too much of the cache devices that are left: {} MiB are \
                     dirty, and they may take {} MiB of that",
                    mib(owed * BLOCK_BYTES),
                    mib(room * self.segment_bytes)
                ),
                match added {
                    Some(_) => "destage first: `forebay volume flush`; or use a larger one",
                    None => "destage first: `forebay volume flush`",
                },
            );
        }
        Ok(index)
    }

    /// Whether a member is still on its way out.
    fn check_leaving(&self, index: usize) -> Result<()> {
        self.check_running()?;
        let member = &self.members[index];
        if member.is_leaving() {
            return Ok(());
        }
        let (what, hint) = match member.is_serving() {
            true => ("stays: another one has failed", "remove it again once that is made good"),
            false => ("has failed itself", "the pool has gone on without it"),
        };
        let what = format!("cache device {} {what}", member.id);
        Err(Error::new(ErrorKind::Refused, what).hint(hint))
    }

    /// Lets a member that is on its way out stay.
    pub(crate) fn keep_member(&self, index: usize) {
        if self.members[index].is_leaving() && !self.leave.is_parting() {
            self.members[index].transition(Standing::Serving);
            self.sets.borrow_mut().set_leaving(None);
            self.room.wake_all();
            self.housekeeping.wake_all();
        }
    }

    /// Lets whoever is on its way out stay.
    pub(crate) fn keep_members(&self) {
        (0..self.members.len()).for_each(|index| self.keep_member(index));
    }

    /// The member that is on its way out.
    pub(crate) fn leaving(&self) -> Option<usize> {
        if self.is_at_rest() {
            return None;
        }
        self.members.iter().position(|member| member.is_leaving())
    }

    /// The next set after `after` with a copy on a member, and with data that has to go: owed or not.
    fn next_on(&self, index: usize, owed: bool, after: Option<SegmentId>) -> Option<SegmentId> {
        let sets = self.sets.borrow();
        let has_to_go = |set: &&Set| {
            let full = set.state == SetState::Closed && set.live_blocks > 0;
            full && (set.owed_blocks > 0) == owed && !sets.is_given_up(set, index)
        };
        let mut found = sets.on(index).filter(has_to_go);
        found.find(|set| after.is_none_or(|after| set.id > after)).map(|set| set.id)
    }

    /// Empties what can be emptied of a member now.
    async fn empty_member(self: &Rc<Self>, index: usize) -> Result<()> {
        for stream in Stream::ALL {
            self.close_leaving(stream).await;
        }
        self.flush_members().await?;
        if self.next_on(index, true, None).is_some() {
            // What an origin was given and does not prove cannot be moved before that is dirty again.
            self.let_go_of_silent();
        }
        for owed in [true, false] {
            let mut after = None;
            while let Some(id) =
                self.next_on(index, owed, after).filter(|_| self.leaving().is_some())
            {
                match owed {
                    true => self.move_owed(id).await,
                    false => self.vacate(id).await?,
                }
                after = Some(id);
            }
        }
        let is_lap_due = {
            let sets = self.sets.borrow();
            sets.on(index).any(|set| sets.is_given_up(set, index))
        };
        match is_lap_due {
            true => self.lap(false).await,
            false => Ok(()),
        }
    }

    /// Goes on without a member that is empty.
    async fn depart(&self, index: usize) -> Result<()> {
        let member = &self.members[index];
        let (erased, lagging) = {
            let _held = self.lock_for_members().await?;
            self.check_leaving(index)?;
            let is_empty = self.sets.borrow().on(index).next().is_none();
            if !is_empty && !planted::is(Bug::DepartedEarly) {
                // It stayed, and has been asked to go once more.
                let what = format!("cache device {} is in use again", member.id);
                return Err(Error::new(ErrorKind::Refused, what).hint("remove it again"));
            }
            // Nothing new must come to it from here on.
            self.leave.part();
            let without = self.write_superblocks(|superblock| {
                superblock.epoch += 1;
                superblock.whole_since = 0;
                superblock.retire(|record| record.device == member.id);
            });
            let written = without.await;
            self.leave.end_parting();
            written?;
            if !member.is_leaving() {
                // It has failed at the last moment, and was left behind by the same update.
                return Ok(());
            }
            member.transition(Standing::Gone);
            self.sets.borrow_mut().lose(index);
            planted::seen("member removed in use");
            self.epoch_begun.wake_all();
            self.housekeeping.wake_all();
            let erased = erase_superblock(&*member.device).await;
            member.watched.release();
            (erased, self.witness_lags.get())
        };
        if let Err(error) = &erased
            && lagging
        {
            // With the old witness it would be believed if it came back alone.
            self.latch(&format!("erasing cache device {}", member.id), *error);
            return self.check_latch();
        }
        let note = match erased {
            Ok(()) => "its superblock is erased".to_owned(),
            Err(error) => format!("its superblock could not be erased ({error}); it is stale"),
        };
        let (id, epoch) = (member.id, self.log.epoch.get());
        self.member_event(
            EventKind::MemberRemoved,
            id,
            format!(
                "cache device {id} was removed; the pool is in epoch {epoch} without it; {note}"
            ),
        );
        Ok(())
    }

    /// Takes `control` once a root speaks for the newest epoch, with no lap under way: one could write
    /// to a member that has left, or pass over one that has come.
    pub(crate) async fn lock_for_members(&self) -> Result<(TaskGuard<'_>, TaskGuard<'_>)> {
        loop {
            drop(self.lock_settled(|_| false).await?);
            // In this order, as whoever holds the second one never waits for the first.
            let lap = self.lap_lock.lock().await;
            let control = self.control.lock().await;
            let is_settled = self.roots.epoch() == self.superblock.borrow().epoch;
            if is_settled && !self.is_failing() {
                return Ok((lap, control));
            }
        }
    }
}

/// Zeroes both superblock slots of a device, durably.
pub(crate) async fn erase_superblock(device: &dyn BlockDevice) -> std::result::Result<(), IoError> {
    for slot in 0..2 {
        let blank = Buf::zeroed(SUPERBLOCK_BYTES).freeze();
        device.write(Layout::superblock_offset(slot), blank).done().await?;
    }
    device.flush().done().await
}

/// Empties members on their way out, until none is.
async fn emptier(core: Rc<Core>) {
    while let Some(index) = core.leaving() {
        if core.leave.is_empty() {
            core.housekeeping.until(|| core.leaving().is_none()).await;
            continue;
        }
        let early = planted::is(Bug::DepartedEarly);
        // Its error has latched the pool and is an event.
        if !early && core.empty_member(index).await.is_err() {
            break;
        }
        let is_empty = core.sets.borrow().on(index).next().is_none();
        if is_empty || early {
            core.leave.note_empty();
            core.housekeeping.wake_all();
            continue;
        }
        let timer = core.rt.sleep(LOOK_INTERVAL);
        core.housekeeping.until_or(|| core.leaving().is_none(), timer).await;
    }
    core.housekeeping.wake_all();
}

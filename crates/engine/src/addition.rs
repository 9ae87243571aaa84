//! Adding a member to a pool that is in use.
//!
//! * The new member is made ready while nobody knows of it: its superblock slots are zeroed, it gets the
//!   roots, then the superblock of an epoch that names it. Only then do the others hear of that epoch.
//!   So whoever starts in it finds the new member as well, and whoever does not find it starts in the
//!   epoch before, in which nothing is on it (INV-51).
//! * It takes sets from the instant in which the epoch is durable on all and in the witness. What is open
//!   with fewer copies than it could have now is closed.
//! * No member was lost with such an epoch, so a root of the one before speaks for it, too
//!   (`Superblock::whole_since`).
//! * Segment numbers of members that are gone are given out again only when no set in use is known by one. What no
//!   set needs, no root and nothing behind one names. Headers may name them yet: by the epoch in which a set was
//!   opened a start tells whose numbers these were (INV-52), whatever a power cut has brought back.
//! * It is watched from the first request on ([`crate::deadline`]), so one that hangs is refused, or left
//!   behind once it is a member.
//! * If another member is left behind by the update that names the new one, the new one hears of it before
//!   anything counts without that other: two of the three would be most of them ([`Core::write_superblocks`]). A root
//!   that notes what is lost with that other it has before a superblock names both: it would look as if it had been set
//!   back to before it ([`crate::marks`]).
//! * If the new member fails before the others have heard of it, the pool is what it was. If its
//!   superblock cannot be erased then, the pool leaves the epoch out that stands there.
//! * A spare keeps its mark until its own superblock is written, and gets it back if it cannot be a member
//!   ([`crate::spare`]). The superblock that names the new member says as well whose place it has taken.

use std::rc::Rc;

use forebay_device::{BlockDevice, Buf, IoError, LocalBoxFuture, Watched};

use crate::checkpoint::root_offset;
use crate::client::PLACES_TOLD_MAX;
use crate::core::Core;
use crate::creation::{index_memory_for, random_id};
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::failure::Standing;
use crate::format::{
    Layout, MemberRecord, MemberState, NumberRange, Numbers, Root, SEGMENTS_MAX, Stream, Superblock,
};
use crate::ids::{BLOCK_BYTES, DeviceId};
use crate::limits::{MEMBERS_MAX, SEGMENTS_PER_MEMBER_MIN};
use crate::member::Member;
use crate::planted::{self, Bug};
use crate::pool::Pool;
use crate::spare::Blank;
use crate::superblock::write_slot;

impl Pool {
    /// What the superblock would say if a cache device were added. Nothing is written; the identity is
    /// another one each time.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if the device is one of the pool's, too small, or too large, or the pool
    /// can have no more; [`ErrorKind::Stopping`]; [`ErrorKind::Io`] if the pool has latched.
    pub fn plan_addition(&self, device: &Rc<dyn BlockDevice>) -> Result<Superblock> {
        self.core.grown_by(device, None)
    }

    /// The same in the place of one that was lost, see [`Pool::add_member_for`].
    ///
    /// # Errors
    /// Those of [`Pool::plan_addition`].
    pub fn plan_addition_for(
        &self,
        device: &Rc<dyn BlockDevice>,
        lost: DeviceId,
    ) -> Result<Superblock> {
        self.core.grown_by(device, Some(lost))
    }

    /// Adds a cache device; whatever it held is gone. The pool serves on, and knows the device by the
    /// number after the last one that it was given. When this returns, the epoch
    /// that names it is durable on all members, and new data goes to it. To be driven to its end.
    ///
    /// # Errors
    /// Those of [`Pool::plan_addition`]; [`ErrorKind::Io`] if the device fails: the pool is without it.
    pub fn add_member(&self, device: Rc<dyn BlockDevice>) -> LocalBoxFuture<'_, Result<DeviceId>> {
        Box::pin(self.core.add_member(device, None))
    }

    /// [`Pool::add_member`] in the place of one that was lost: with the epoch that names the new one it is
    /// durable that `lost` is replaced. One that the pool still has, or has forgotten, is left as it is.
    ///
    /// # Errors
    /// Those of [`Pool::add_member`].
    pub fn add_member_for(
        &self,
        device: Rc<dyn BlockDevice>,
        lost: DeviceId,
    ) -> LocalBoxFuture<'_, Result<DeviceId>> {
        Box::pin(self.core.add_member(device, Some(lost)))
    }
}

/// The lowest number from which on so many segments are nobody's.
pub(crate) fn free_base(members: &[MemberRecord], count: u32) -> Option<u32> {
    let mut taken: Vec<_> = members.iter().flat_map(|member| member.segments.ranges()).collect();
    taken.sort_unstable_by_key(|range| range.base);
    let mut base = 0;
    for range in taken {
        if range.base >= base && range.base - base >= count {
            break;
        }
        base = base.max(range.end());
    }
    base.checked_add(count).filter(|&end| end <= SEGMENTS_MAX).map(|_| base)
}

/// Bounds the index by what a pool of the size that it is to have needs, or by what it had before. If that was less
/// than a pool of its size needs, it stays so much less. `before` are the bytes of the pool that it was.
pub(crate) fn widen_index(superblock: &mut Superblock, before: u64) {
    let after = bytes_of(superblock, None);
    superblock.index_memory_max = widened(superblock.index_memory_max, before, after);
}

fn widened(bound: u64, before: u64, after: u64) -> u64 {
    let less = index_memory_for(before).saturating_sub(bound);
    bound.max(index_memory_for(after).saturating_sub(less))
}

/// Bytes of all segments of the members that are present, and of one that was lost.
pub(crate) fn bytes_of(superblock: &Superblock, lost: Option<DeviceId>) -> u64 {
    let counts = |member: &&MemberRecord| {
        member.state == MemberState::Present || Some(member.device) == lost
    };
    let counted = superblock.members.iter().filter(counts);
    let segments: u64 = counted.map(|member| u64::from(member.segments.count())).sum();
    segments * u64::from(superblock.segment_bytes)
}

/// Segments of the smallest member, which may have been the one that was lost.
pub(crate) fn smallest(superblock: &Superblock, lost: Option<DeviceId>) -> u64 {
    let counts =
        |member: &MemberRecord| member.state == MemberState::Present || Some(member.device) == lost;
    let counted = superblock.members.iter().filter(|member| counts(member));
    counted.map(|member| u64::from(member.segments.count())).min().unwrap_or(0)
}

/// How a further device of so many bytes is laid out and numbered; it is to have `least` segments.
pub(crate) fn place_for(
    superblock: &Superblock,
    size_bytes: u64,
    least: u64,
) -> Result<(Layout, u32)> {
    let (name, segment_bytes) = (&superblock.name, u64::from(superblock.segment_bytes));
    let layout = Layout::new(size_bytes, superblock.segment_bytes, superblock.shard_count);
    let found = layout.map_or(0, |layout| u64::from(layout.segment_count));
    if found < least {
        let least_bytes = superblock.segments_offset + least * segment_bytes;
        let what = format!(
            "a cache device of {size_bytes} B is too small: pool \"{name}\" has segments of \
             {segment_bytes} B, and needs {least} of them on each device"
        );
        let hint = format!("use one of at least {} MiB", least_bytes.div_ceil(1 << 20));
        return Err(Error::new(ErrorKind::Refused, what).hint(hint));
    }
    let base = layout.and_then(|layout| free_base(&superblock.members, layout.segment_count));
    layout.zip(base).ok_or_else(|| {
        let what = format!(
            "a cache device of {size_bytes} B is too large: with segments of {segment_bytes} B a \
             pool has at most {SEGMENTS_MAX} of them"
        );
        Error::new(ErrorKind::Refused, what).hint("use a smaller one")
    })
}

impl Core {
    /// The superblock with another member, or why there can be none. `lost` is the one whose place it takes.
    fn grown_by(&self, device: &Rc<dyn BlockDevice>, lost: Option<DeviceId>) -> Result<Superblock> {
        self.check_joining(device)?;
        let refused =
            |what: String, hint: &str| Err(Error::new(ErrorKind::Refused, what).hint(hint));
        let superblock = self.superblock.borrow();
        let name = &superblock.name;
        if superblock.present().count() >= MEMBERS_MAX {
            return refused(
                format!("pool \"{name}\" has {MEMBERS_MAX} cache devices, as many as it can"),
                "remove one first: `forebay pool device remove`",
            );
        }
        if self.members.is_full() || self.places_given.get() >= PLACES_TOLD_MAX {
            let what = format!(
                "pool \"{name}\" has had as many cache devices since it was opened as it can tell \
                 apart"
            );
            return refused(what, "restart the daemon first");
        }
        let mut next = superblock.clone();
        if !self.sets.borrow().uses_gone() || planted::is(Bug::NumbersReused) {
            next.retire(|record| record.state == MemberState::Removed);
        }
        if next.members.len() >= MEMBERS_MAX {
            let gone = next.members.len() - superblock.present().count();
            return refused(
                format!(
                    "pool \"{name}\" has room for {MEMBERS_MAX} cache devices, and {gone} that were \
                     lost still count: data of which copies are being made is known by their numbers"
                ),
                "wait until nothing is copied again any more: `forebay status`",
            );
        }
        let least = smallest(&superblock, lost).min(SEGMENTS_PER_MEMBER_MIN);
        let (layout, base) = place_for(&next, device.geometry().size_bytes, least)?;
        let is_replaced = |member: &&mut MemberRecord| {
            member.state != MemberState::Present && Some(member.device) == lost
        };
        next.members.iter_mut().filter(is_replaced).for_each(|member| member.replaced = true);
        if next.whole_since == 0 {
            next.whole_since = next.epoch;
        }
        next.epoch += 1;
        next.generation += 1;
        next.members.push(MemberRecord {
            device: DeviceId(random_id(&*self.rt)),
            segments: Numbers::new(base, layout.segment_count),
            joined_epoch: next.epoch,
            state: MemberState::Present,
            replaced: false,
        });
        widen_index(&mut next, bytes_of(&superblock, lost));
        Ok(next)
    }

    /// Refuses what no device can become part of at all, and what is part of it already.
    pub(crate) fn check_joining(&self, device: &Rc<dyn BlockDevice>) -> Result<()> {
        self.check_running()?;
        if !self.members.have(device) {
            return Ok(());
        }
        let name = &self.superblock.borrow().name;
        let what = format!("it is a cache device of pool \"{name}\" already");
        Err(Error::new(ErrorKind::Refused, what).hint("add another one"))
    }

    async fn add_member(
        self: &Rc<Self>,
        device: Rc<dyn BlockDevice>,
        lost: Option<DeviceId>,
    ) -> Result<DeviceId> {
        self.grown_by(&device, lost)?;
        if self.deadline.devices().iter().any(|it| it.is(&device)) {
            // It would be made blank once more, and may be a member by then.
            let what = "it is being added already";
            return Err(Error::new(ErrorKind::Refused, what).hint("wait until it has been"));
        }
        let watched = self.deadline.add(Rc::clone(&device));
        let added = self.add_watched(&device, &watched, lost).await;
        if !self.members.have(&device) {
            self.deadline.forget(&watched);
        }
        added
    }

    async fn add_watched(
        self: &Rc<Self>,
        device: &Rc<dyn BlockDevice>,
        watched: &Rc<Watched>,
        lost: Option<DeviceId>,
    ) -> Result<DeviceId> {
        // Before anything waits for it: one that hangs is found out here.
        let blank = self.blank_of(&**watched).await?;
        let erased = blank.write(&**watched).await;
        erased.map_err(|error| Error::io("preparing a new cache device", error))?;
        let _held = self.lock_for_members().await?;
        let next = self.grown_by(device, lost)?;
        let record = next.members[next.members.len() - 1];
        let (watched, offset) = (Rc::clone(watched), next.segments_offset);
        let joining = Member::new(&record, watched, None, offset, Standing::Joining);
        let index = self.members.push(joining).expect("there is a place, as was looked at");
        if let Err(error) = self.prepare(index, &next).await {
            return Err(self.leave_out(index, &blank, error).await);
        }
        let range = record.segments.ranges().next().expect("a new member has segments");
        self.sets.borrow_mut().expect(range);
        // The new member has the generation that this gets: none of them is behind the others.
        let joined = |now: &mut Superblock| {
            *now = Superblock { generation: now.generation, ..next.clone() };
        };
        self.write_superblocks(joined).await?;
        let joining = &self.members[index];
        if joining.standing.get() == Standing::Gone {
            // It has failed right behind another one, and was left behind by the same update.
            let what = joining.failure.borrow().clone();
            return Err(Error::new(ErrorKind::Io, what).hint("use another one"));
        }
        self.take_in(index, range);
        planted::seen("member added in use");
        let (id, epoch, count) = (record.device, self.log.epoch.get(), self.staying_count());
        let what = format!(
            "cache device {id} was added; the pool has {count} of them from epoch {epoch} on"
        );
        self.member_event(EventKind::MemberAdded, id, what);
        let core = Rc::clone(self);
        // Whoever appends may wait for room, and that is none of the caller's business.
        self.spawn_background(async move {
            core.close_all_short().await;
            core.start_raise();
        });
        Ok(id)
    }

    /// Writes all that is on a member to a device that nobody knows of yet: the superblock last.
    async fn prepare(&self, index: usize, next: &Superblock) -> Result<()> {
        let member = &self.members[index];
        let failed = |error| Error::io("preparing a new cache device", error);
        let root = self.read_root().await?;
        for slot in 0..2 {
            self.give_root(member, &root, slot).await.map_err(failed)?;
        }
        self.claim_member(index).await.map_err(failed)?;
        member.device.flush().done().await.map_err(failed)?;
        if planted::is(Bug::JoinedUnprepared) {
            return Ok(());
        }
        self.tell_joining(member, next, None).await.map_err(failed)
    }

    /// Writes a root to a slot of a member that is to join, durably: it is not among those that serve.
    async fn give_root(
        &self,
        member: &Member,
        root: &Root,
        slot: u64,
    ) -> std::result::Result<(), IoError> {
        let at = root_offset(self.superblock.borrow().root_bytes, slot);
        member.device.write(at, Buf::copy_of(&root.encode()).freeze()).done().await?;
        member.device.flush().done().await
    }

    /// Gives the root that notes what is lost to who is to join, before superblocks name both: of a member that they name and
    /// that had an older one it would look as if it had been set back.
    pub(crate) async fn mark_joining(&self, root: &Root) {
        for (index, member) in self.members.iter().enumerate() {
            if member.standing.get() == Standing::Joining
                && let Err(error) = self.give_root(member, root, 0).await
            {
                self.fail_member(index, "writing a root to", error);
            }
        }
    }

    /// Writes its superblock to a member that is to join. The root that it names, where it has another, is in slot 0 by then, and
    /// comes to slot 1 before.
    pub(crate) async fn tell_joining(
        &self,
        member: &Member,
        next: &Superblock,
        marks: Option<&Root>,
    ) -> std::result::Result<(), IoError> {
        if let Some(root) = marks {
            self.give_root(member, root, 1).await?;
        }
        let own = Superblock { device: member.id, ..next.clone() };
        for slot in 0..2 {
            write_slot(&*member.device, &own, slot).await?;
            member.device.flush().done().await?;
        }
        Ok(())
    }

    /// The newest root, from whichever member has it. The caller holds `lap_lock`.
    async fn read_root(&self) -> Result<Root> {
        let (pool, bytes) = {
            let superblock = self.superblock.borrow();
            (superblock.pool, superblock.root_bytes)
        };
        for slot in 0..2 {
            for (_, member) in self.serving() {
                let buf = Buf::new(bytes as usize);
                let outcome = member.device.read(root_offset(bytes, slot), buf).await;
                let found = outcome.result.ok().and(outcome.buf);
                let found = found
                    .and_then(|buf| Root::decode(&buf).ok())
                    .filter(|root| root.pool == pool && root.generation == self.roots.generation());
                if let Some(root) = found {
                    return Ok(root);
                }
            }
        }
        let what = "the newest root cannot be read from any cache device";
        Err(Error::new(ErrorKind::Io, what).hint("see `dmesg` for the devices, then try again"))
    }

    /// Goes on without a device that could not be made ready. The others have not heard of it.
    async fn leave_out(&self, index: usize, blank: &Blank, error: Error) -> Error {
        let member = &self.members[index];
        member.transition(Standing::Gone);
        self.epoch_begun.wake_all();
        if blank.write(&*member.device).await.is_err() {
            // It may name itself in the next epoch; so the next one is another.
            let beyond = self.write_superblocks(|superblock| {
                if superblock.whole_since == 0 {
                    superblock.whole_since = superblock.epoch;
                }
                superblock.epoch += 2;
            });
            // Its error has latched the pool and is an event.
            beyond.await.ok();
        }
        member.watched.release();
        error
    }

    /// From here on a member is one like any other.
    fn take_in(&self, index: usize, range: NumberRange) {
        self.members[index].transition(Standing::Serving);
        self.members[index].place.set(Some(self.places_given.get()));
        self.places_given.set(self.places_given.get() + 1);
        {
            let mut sets = self.sets.borrow_mut();
            sets.join(index, range);
            sets.set_controller(index, self.members[index].device.geometry().controller);
        }
        self.use_more();
        // What was lost may be made good now.
        self.epoch_begun.wake_all();
    }

    /// Has everything that goes by the size of the pool go by what it has become.
    pub(crate) fn use_more(&self) {
        let segments = self.sets.borrow().total_count() as u64;
        let blocks = segments * (self.segment_bytes / BLOCK_BYTES);
        let most = self.tuning.index_memory_most;
        self.index_memory_max.set(self.superblock.borrow().index_memory_max.min(most));
        self.policy.borrow_mut().resize(blocks);
        self.resize_counts(blocks);
        // Who waited may have room.
        self.room.wake_all();
        self.housekeeping.wake_all();
        self.throttle.wake();
    }

    /// Ends appending to all sets with fewer copies than new ones have.
    pub(crate) async fn close_all_short(self: &Rc<Self>) {
        for stream in Stream::ALL {
            self.close_short(stream).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_of_the_index_that_was_asked_for_stays_as_far_below_what_is_usual() {
        const TIB: u64 = 1 << 40;
        let usual = index_memory_for;
        assert_eq!(widened(usual(TIB), TIB, 2 * TIB), usual(2 * TIB));
        assert_eq!(widened(usual(TIB) / 2, TIB, 2 * TIB), usual(2 * TIB) - usual(TIB) / 2);
        assert_eq!(widened(usual(4 * TIB), TIB, 2 * TIB), usual(4 * TIB), "never less");
        assert_eq!(widened(usual(TIB) / 2, TIB, TIB / 2), usual(TIB) / 2, "never less");
    }

    #[test]
    fn the_first_gap_that_is_large_enough_gives_the_numbers() {
        let member = |(base, count)| MemberRecord {
            device: DeviceId([base as u8; 16]),
            segments: Numbers::new(base, count),
            joined_epoch: 1,
            state: MemberState::Present,
            replaced: false,
        };
        let base = |taken: &[(u32, u32)], count| {
            let members: Vec<_> = taken.iter().copied().map(member).collect();
            free_base(&members, count)
        };
        assert_eq!(base(&[(0, 10)], 5), Some(10));
        assert_eq!(base(&[(10, 5), (0, 4)], 6), Some(4));
        assert_eq!(base(&[(10, 5), (0, 4)], 7), Some(15));
        assert_eq!(base(&[(10, 5)], 10), Some(0));
        // One that is gone may stand where another one is now.
        assert_eq!(base(&[(0, 20), (5, 5), (30, 5)], 10), Some(20));
        assert_eq!(base(&[(0, SEGMENTS_MAX - 4)], 4), Some(SEGMENTS_MAX - 4));
        assert_eq!(base(&[(0, SEGMENTS_MAX - 4)], 5), None);
    }
}

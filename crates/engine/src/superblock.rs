//! Changing what the superblocks and the witness say of a running pool.
//!
//! * A change is written to slot 0 of every member and flushed, then to slot 1 and flushed, then to
//!   the witness, and counts only after that: a slot that is damaged later takes no change back.
//! * `may_be_dirty` is durable before a volume's first dirty record is appended, and is cleared
//!   only after its last clean fact is durable (INV-20).
//! * Whatever is written leaves behind the members that have failed, in a new epoch, which begins when
//!   it counts.

use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::{BlockDevice, Buf, Data, IoError, IoErrorKind, LocalBoxFuture};

use crate::core::Core;
use crate::departure::erase_superblock;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::failure::Standing;
use crate::format::{
    Layout, Mode, Root, SUPERBLOCK_BYTES, SlotChoice, Superblock, VolumeSettings,
    Witness as WitnessFile, WitnessVolume,
};
use crate::ids::{BLOCK_BYTES, DeviceId};
use crate::limits::{WITNESS_RETRY, WITNESS_WAIT_MAX};
use crate::marks::Marks;
use crate::planted::{self, Bug};
use crate::volume::{VolumeState, cutoff_bytes};
use crate::wait::TaskGuard;

/// Writes a superblock to a slot, without flushing.
pub(crate) async fn write_slot(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    slot: usize,
) -> std::result::Result<(), IoError> {
    let data: Data = Buf::copy_of(&superblock.encode()).freeze();
    device.write(Layout::superblock_offset(slot), data).done().await
}

/// Reads the newest superblock of a device.
///
/// # Errors
/// [`ErrorKind::NotFound`] without one, [`ErrorKind::Damaged`] if both slots are unreadable,
/// [`ErrorKind::Future`] for a later format.
pub fn read_superblock(device: &dyn BlockDevice) -> LocalBoxFuture<'_, Result<Superblock>> {
    Box::pin(async move { find_superblock(device).await.map(|found| found.superblock) })
}

/// Whether a superblock stands in either slot of a device, also one that is damaged or of a later version: what is on such
/// a device may be nowhere else. Of a slot that the device does not return nothing is known.
pub fn bears_superblock(device: &dyn BlockDevice) -> LocalBoxFuture<'_, bool> {
    Box::pin(async move {
        for slot in 0..2 {
            let head = Buf::new(BLOCK_BYTES as usize);
            let outcome = device.read(Layout::superblock_offset(slot), head).await;
            if let (Ok(()), Some(head)) = (outcome.result, outcome.buf)
                && Superblock::resembled_by(&head).is_some()
            {
                return true;
            }
        }
        false
    })
}

/// What the superblock slots of a device hold.
pub(crate) struct Slots {
    /// The newest superblock that can be read.
    pub superblock: Superblock,
    /// Whether slot 1 has to be written before slot 0 may be.
    renew: bool,
    /// Whether both slots could be read: the device alone cannot say what stands in one that could
    /// not, and it may be the newer one.
    pub complete: bool,
}

impl Slots {
    /// Makes sure that slot 1 is whole and durable, so that slot 0 may be written. It is written only
    /// behind a good flush of slot 0. So where it is damaged, or the same as slot 0, a flush that
    /// failed may have lost it, but not slot 0; where it differs, it is of an update that has ended.
    pub(crate) async fn settle(
        &self,
        device: &dyn BlockDevice,
    ) -> std::result::Result<(), IoError> {
        if self.renew {
            write_slot(device, &self.superblock, 1).await?;
            device.flush().done().await?;
        }
        Ok(())
    }
}

/// Reads both superblock slots of a device.
///
/// # Errors
/// Those of [`read_superblock`].
pub(crate) async fn find_superblock(device: &dyn BlockDevice) -> Result<Slots> {
    let mut slots = Vec::new();
    let mut blank = 0;
    let mut complete = true;
    for slot in 0..2 {
        let at = Layout::superblock_offset(slot);
        let mut outcome = device.read(at, Buf::new(SUPERBLOCK_BYTES)).await;
        if outcome.result.is_err() {
            outcome = device.read(at, Buf::new(SUPERBLOCK_BYTES)).await;
        }
        if outcome.result == Err(IoErrorKind::TimedOut.into()) {
            // All else would only take as long again.
            return Err(Error::new(ErrorKind::Io, "a cache device does not answer").hint(
                "look at it with `dmesg`; without it the pool opens if all has other copies",
            ));
        }
        let (Ok(()), Some(buf)) = (outcome.result, outcome.buf) else {
            complete = false;
            slots.push(Err(crate::format::FormatError::Truncated));
            continue;
        };
        blank += u32::from(buf.iter().all(|&byte| byte == 0));
        slots.push(Superblock::decode(&buf));
    }
    let (second, first) = (slots.pop(), slots.pop());
    let (Some(first), Some(second)) = (first, second) else {
        return Err(Error::new(ErrorKind::Damaged, "no superblock slot"));
    };
    let renew = second.is_err() || matches!((&first, &second), (Ok(a), Ok(b)) if a == b);
    match (Superblock::choose(&first, &second), first, second) {
        (SlotChoice::Slot0, Ok(superblock), _) => Ok(Slots { superblock, renew, complete }),
        (SlotChoice::Slot1, _, Ok(superblock)) => Ok(Slots { superblock, renew: false, complete }),
        (SlotChoice::Refused(error), _, _) => {
            Err(Error::new(ErrorKind::Future, format!("the superblock cannot be read: {error}"))
                .hint("use the Forebay version that wrote it, or a later one"))
        }
        (SlotChoice::Conflict, _, _) => {
            Err(Error::new(ErrorKind::Damaged, "the two superblock slots contradict each other")
                .hint("look at both with `forebay inspect`; nothing has been changed"))
        }
        (_, first, second) => {
            if blank == 2 {
                return Err(Error::new(ErrorKind::NotFound, "this is not a Forebay cache device"));
            }
            let reason = first.err().or(second.err());
            let reason = reason.map_or_else(String::new, |error| error.to_string());
            Err(Error::new(ErrorKind::Damaged, format!("no readable superblock: {reason}"))
                .hint("see what is there with `forebay inspect`; nothing has been changed"))
        }
    }
}

/// What the witness shall say beside a superblock.
pub(crate) fn witness_of(superblock: &Superblock) -> Vec<u8> {
    let volumes = superblock
        .volumes
        .iter()
        .map(|v| WitnessVolume {
            id: v.id,
            name: v.name.clone(),
            origin: v.origin.clone(),
            mode: v.mode,
            may_be_dirty: v.may_be_dirty,
            size_bytes: v.size_bytes,
        })
        .collect();
    WitnessFile {
        pool: superblock.pool,
        generation: superblock.generation,
        epoch: superblock.epoch,
        members: superblock.present().map(|m| m.device).collect(),
        volumes,
    }
    .encode()
}

impl Core {
    /// Changes the superblock everywhere, durably. The caller holds `control`. A change of the members
    /// raises `epoch`; that epoch has begun when this returns. Members that have failed are left behind
    /// whatever the change is (INV-19).
    ///
    /// # Errors
    /// If the pool has latched, for instance because it may not go on without a member. A witness that
    /// cannot be written is an event: while all members are there, they know as much. Where one is left
    /// behind, the pool waits for it and latches in the end: with the old witness that one would be believed
    /// if it came back alone.
    pub(crate) async fn write_superblocks(
        &self,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<()> {
        self.check_latch()?;
        let mut next = self.superblock.borrow().clone();
        (next.scrub_next, next.scrub_begun_unix_s) = self.scrub.place();
        // It has the last word: who joins has its own superblock already, of the same generation.
        change(&mut next);
        let (mut left, mut marks) = (Vec::new(), None);
        loop {
            self.leave_behind(&mut next, &mut left, &mut marks).await?;
            next.generation += 1;
            for slot in 0..2 {
                let named = |id: DeviceId| next.members.iter().any(|record| record.device == id);
                let members: Vec<_> = self.serving().filter(|(_, m)| named(m.id)).collect();
                for (index, member) in members {
                    next.device = member.id;
                    if let Err(error) = write_slot(&*member.device, &next, slot).await {
                        self.fail_member(index, "writing the superblock of", error);
                    }
                }
                self.flush_each("the superblock on").await?;
            }
            if !left.is_empty() && !planted::is(Bug::PassersUntold) {
                self.tell_passers(&next, marks.as_ref().map(|marks| &marks.root)).await;
                self.check_latch()?;
            }
            if self.failed_beside(&left).is_empty() {
                break;
            }
        }
        if !self.tell_witness(witness_of(&next), !left.is_empty()).await {
            self.check_latch()?;
            let what = "going on without a cache device and without a witness";
            self.latch(what, IoErrorKind::Other.into());
            return self.check_latch();
        }
        self.log.epoch.set(next.epoch);
        *self.superblock.borrow_mut() = next;
        let lost = match marks {
            Some(marks) => Box::pin(self.end_marking(marks)).await?,
            None => false,
        };
        self.note_gone(&left, lost);
        Ok(())
    }

    /// Tells who is on its way in or out of an epoch that leaves another one behind. The last that either of them
    /// was told of may name that one as well, and the two could be most of those whom it names (INV-19).
    async fn tell_passers(&self, next: &Superblock, marks: Option<&Root>) {
        for (index, member) in self.members.iter().enumerate() {
            let is_named = next.members.iter().any(|record| record.device == member.id);
            let told = match member.standing.get() {
                Standing::Joining if is_named => self.tell_joining(member, next, marks).await,
                Standing::Leaving if !is_named => erase_superblock(&*member.device).await,
                _ => continue,
            };
            if let Err(error) = told {
                self.fail_member(index, "writing the superblock of", error);
            }
        }
    }

    /// Brings the witness up to date, or notes that it lags. Where the pool `needs` it, it is tried again for
    /// [`WITNESS_WAIT_MAX`]: whoever waits for the change waits as long, and what needs no change goes on.
    /// Whether the change counts.
    async fn tell_witness(&self, bytes: Vec<u8>, needs: bool) -> bool {
        let until = self.rt.now() + WITNESS_WAIT_MAX;
        loop {
            let stored = self.witness.store(bytes.clone()).await;
            let lagged = self.witness_lags.replace(stored.is_err());
            let Err(reason) = stored else {
                self.witness_understates.set(false);
                if lagged {
                    self.event(EventKind::WitnessWritten, "the witness is up to date again".into());
                }
                return true;
            };
            if !lagged {
                self.event(
                    EventKind::WitnessUnwritable,
                    format!(
                        "the witness cannot be written: {reason}; volumes that are clean are \
                         written through meanwhile"
                    ),
                );
                // The keeper of the witness sleeps while it does not lag.
                self.epoch_begun.wake_all();
            }
            if !needs || self.rt.now() >= until {
                return !needs;
            }
            let over = || self.latched.get() || self.lease.is_lost();
            self.epoch_begun.until_or(over, self.rt.sleep(WITNESS_RETRY)).await;
            // A pool that has stopped begins no epoch: what stays behind may have all that was acknowledged.
            if over() {
                return false;
            }
        }
    }

    /// The places of members that have failed, but for these.
    fn failed_beside(&self, left: &[usize]) -> Vec<usize> {
        let failed = self.members.iter().enumerate().filter(|(_, member)| member.is_failed());
        failed.map(|(index, _)| index).filter(|index| !left.contains(index)).collect()
    }

    /// Leaves the members that have failed out of a superblock that is to be written, in an epoch of
    /// its own: each has named one group of members, and some may have heard of the last one. Where they
    /// may have had the only copy of something, what is lost is durably noted first (INV-62).
    async fn leave_behind<'a>(
        &'a self,
        next: &mut Superblock,
        left: &mut Vec<usize>,
        marks: &mut Option<Marks<'a>>,
    ) -> Result<()> {
        loop {
            let leaving = self.failed_beside(left);
            // One that was on its way out may have failed at the last moment, and one on its way in has nothing.
            let [lost, unused] = [true, false].map(|taken_in| {
                let members = leaving.iter().map(|&index| &self.members[index]);
                let ids = members.filter(|m| m.is_taken_in() == taken_in).map(|m| m.id);
                let is_named = |id: &DeviceId| next.members.iter().any(|r| r.device == *id);
                ids.filter(is_named).collect::<BTreeSet<_>>()
            });
            next.withdraw(&unused, &self.superblock.borrow());
            let certain = next.may_lose(lost.len()) && !self.sets.borrow().has_owed_strays();
            let is_less = !(lost.is_empty() && unused.is_empty());
            // What was noted before is of an epoch that does not come.
            if !lost.is_empty() && !certain || is_less && marks.is_some() {
                let epoch = next.epoch + 1;
                if !marks.as_ref().is_some_and(|marks| marks.is_of(self, epoch)) {
                    let named = |marks: &&Marks| marks.root.generation == next.marking_root;
                    if let Some(marks) = marks.as_ref().filter(named) {
                        // Superblocks name it by now, and the next one is written over it.
                        Box::pin(self.write_marks(&marks.root, 1)).await?;
                    }
                    // Apart, as each write that may be the first one holds the room for this.
                    let marking = Box::pin(self.mark_losses(marks.take(), epoch));
                    *marks = Some(marking.await?);
                    // Others may have failed meanwhile.
                    continue;
                }
                let root = marks.as_ref().map_or(0, |marks| marks.root.generation);
                next.marking_root = if planted::is(Bug::LossNotDurable) { 0 } else { root };
            }
            if is_less {
                next.lose(&lost);
                next.epoch += 1;
            }
            left.extend(leaving);
            return Ok(());
        }
    }

    /// Makes the superblock of the start count. In a new epoch those that are missing are known to be stale from here on.
    ///
    /// # Errors
    /// If a member fails; or if the witness cannot be written although members were lost, and it is not
    /// `witnessed` in which epoch: with the old witness they would be believed when they come back alone; or if it calls
    /// a volume clean that may be dirty, and cannot be written within [`WITNESS_WAIT_MAX`] either (INV-20).
    pub(crate) async fn begin_start(&self, witnessed: bool) -> Result<()> {
        let _control = self.control.lock().await;
        self.write_superblocks(|_| ()).await?;
        if self.witness_understates.get() && !planted::is(Bug::WitnessUnderstates) {
            let bytes = witness_of(&self.superblock.borrow());
            self.tell_witness(bytes, true).await;
            if self.witness_understates.get() {
                let what = "the witness cannot be written, and what it says of volumes that may be dirty is of before \
                     another machine had the pool: that they are clean";
                return Err(Error::new(ErrorKind::Io, what)
                    .hint("make the witness file writable, then open the pool again"));
            }
        }
        let superblock = self.superblock.borrow();
        if self.witness_lags.get() && superblock.has_lost_members() && !witnessed {
            return Err(Error::new(
                ErrorKind::Io,
                format!(
                    "the witness cannot be written, and without it the members that pool \"{}\" \
                     goes on without would be believed",
                    superblock.name
                ),
            )
            .hint("make the witness file writable, then open the pool again"));
        }
        Ok(())
    }

    /// Makes `may_be_dirty` durable before a volume's first dirty record; false if the witness cannot be told. With
    /// no member there the volume would then be served from its origin as if nothing were missing. The witness is
    /// told first: what superblocks call dirty it knows, also where a start that cannot write it reads them.
    pub(crate) async fn set_may_be_dirty(&self, v: &Rc<VolumeState>) -> Result<bool> {
        let _flag = v.flag_lock.lock().await;
        if v.may_be_dirty.get() {
            return Ok(true);
        }
        let _control = self.lock_settled(Superblock::is_covered).await?;
        let mark = |superblock: &mut Superblock| mark_dirty(superblock, v, true);
        // While it lags its keeper tries, not each write.
        if self.witness_lags.get() || !self.is_witnessed(mark).await {
            return Ok(false);
        }
        Box::pin(self.write_superblocks(mark)).await?;
        v.may_be_dirty.set(true);
        Ok(true)
    }

    /// Tells the witness of a change before the superblocks are: whether it knows. While no member is there a pool is served
    /// by what it says. The caller holds `control`.
    pub(crate) async fn is_witnessed(&self, change: impl FnOnce(&mut Superblock)) -> bool {
        let mut next = self.superblock.borrow().clone();
        change(&mut next);
        self.tell_witness(witness_of(&next), false).await;
        !self.witness_lags.get()
    }

    /// Takes `control` once a root speaks for the newest epoch, unless the superblock says that it may be
    /// taken before. Until then a start treats what it finds by what was so when the epoch began
    /// ([`crate::membership::Trust`]).
    pub(crate) async fn lock_settled(
        &self,
        before: impl Fn(&Superblock) -> bool,
    ) -> Result<TaskGuard<'_>> {
        loop {
            let guard = self.control.lock().await;
            let settled = {
                let superblock = self.superblock.borrow();
                before(&superblock) || self.roots.epoch() == superblock.epoch
            };
            if settled && !self.is_failing() {
                return Ok(guard);
            }
            drop(guard);
            self.settle_members().await?;
            self.housekeeping.wake_all();
            let epoch = self.log.epoch.get();
            let due = || self.roots.epoch() >= epoch || self.is_failing();
            self.epoch_begun
                .until(|| due() || before(&self.superblock.borrow()) || self.latched.get())
                .await;
            self.check_latch()?;
        }
    }

    /// Whether a volume's origin has everything. Where some of it is lost the origin has older data, and must not be taken
    /// for the volume as long as nobody has overwritten that.
    pub(crate) fn is_clean(&self, v: &VolumeState) -> bool {
        let lacks = self.owes_any(v) && !planted::is(Bug::NotedWhileDirty);
        !lacks && self.lost.of(v.id) == 0 && v.logging.is_zero()
    }

    /// Clears `may_be_dirty` if nothing is owed or lost and every clean fact is durable.
    pub(crate) async fn clear_may_be_dirty(&self, v: &Rc<VolumeState>) -> Result<()> {
        let _flag = v.flag_lock.lock().await;
        if !v.may_be_dirty.get() || !self.is_clean(v) {
            return Ok(());
        }
        // From here on a logged write waits for the flag lock and sets it again.
        v.may_be_dirty.set(false);
        self.flush_members().await?;
        let _control = self.control.lock().await;
        self.write_superblocks(|superblock| mark_dirty(superblock, v, false)).await
    }

    /// Changes how a volume is served; `agrees` that what is written back may have one copy.
    pub(crate) async fn set_mode(
        &self,
        v: &Rc<VolumeState>,
        mode: Mode,
        agrees: bool,
    ) -> Result<()> {
        let _control = self.control.lock().await;
        let agrees = agrees && mode.writes_back() && self.dirty_copies() == 1;
        let accepts = v.accept_single_copy.get() || agrees;
        check_mode(mode, self.dirty_copies(), accepts)?;
        crate::populate::check(v.settings.get().populate, mode)?;
        self.write_superblocks(|superblock| {
            for record in superblock.volumes.iter_mut().filter(|record| record.id == v.id) {
                record.mode = mode;
                record.accept_single_copy = accepts;
            }
        })
        .await?;
        v.mode.set(mode);
        v.accept_single_copy.set(accepts);
        self.start_counting(v);
        self.housekeeping.wake_all();
        Ok(())
    }

    /// Changes what may be changed of a volume at any time.
    pub(crate) async fn set_volume(
        &self,
        v: &Rc<VolumeState>,
        settings: VolumeSettings,
        cache_block_bytes: u32,
    ) -> Result<()> {
        let _control = self.control.lock().await;
        crate::populate::check(settings.populate, v.mode.get())?;
        crate::populate::check_cache_block(cache_block_bytes)?;
        self.check_space(Some(v.id), &settings)?;
        self.write_superblocks(|superblock| {
            for record in superblock.volumes.iter_mut().filter(|record| record.id == v.id) {
                record.settings = settings;
                record.cache_block_bytes = cache_block_bytes;
            }
        })
        .await?;
        v.settings.set(settings);
        let cache_block = u64::from(cache_block_bytes) / BLOCK_BYTES;
        if v.cache_block.replace(cache_block) != cache_block {
            // Its cache blocks have other numbers from now on.
            self.reread.borrow_mut().forget(v.id);
            self.streams.borrow_mut().forget(v.id);
        }
        self.start_counting(v);
        let cutoffs = cutoff_bytes(&settings, &self.tuning);
        v.cutoff_bytes.iter().zip(cutoffs).for_each(|(cell, cutoff)| cell.set(cutoff));
        v.elevator.age.look_anew();
        self.throttle.set_priority(&v.flow, settings.priority);
        self.apportion();
        self.room.wake_all();
        self.housekeeping.wake_all();
        Ok(())
    }

    pub(crate) fn dirty_copies(&self) -> u8 {
        self.superblock.borrow().dirty_copies
    }
}

/// Brings the witness up to date as soon as it can be written again.
pub(crate) async fn witness_keeper(core: Rc<Core>) {
    let over = || core.check_latch().is_err() || core.log.is_retired();
    loop {
        core.epoch_begun.until(|| core.witness_lags.get() || over()).await;
        core.epoch_begun.until_or(over, core.rt.sleep(WITNESS_RETRY)).await;
        if over() {
            return;
        }
        let _control = core.control.lock().await;
        if core.witness_lags.get() && !over() {
            let bytes = witness_of(&core.superblock.borrow());
            core.tell_witness(bytes, false).await;
        }
    }
}

fn mark_dirty(superblock: &mut Superblock, v: &VolumeState, dirty: bool) {
    for record in superblock.volumes.iter_mut().filter(|record| record.id == v.id) {
        record.may_be_dirty = dirty;
    }
}

/// Whether a mode may be used as asked.
pub(crate) fn check_mode(mode: Mode, dirty_copies: u8, accept_single_copy: bool) -> Result<()> {
    if !mode.writes_back() || dirty_copies >= 2 || accept_single_copy {
        return Ok(());
    }
    let what = "writing back with one dirty copy loses data when the SSD dies";
    Err(Error::new(ErrorKind::Invalid, what).hint(
        "use two cache devices and two dirty copies, or agree to it: --accept-data-loss-on-ssd-failure where the \
         volume is added, or `forebay pool set POOL accept_data_loss_on_ssd_failure=true`",
    ))
}

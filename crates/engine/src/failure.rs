//! A member that fails while the pool is in use: the pool goes on without it, unless it is the last one.
//!
//! * A member that has failed a write or a flush gets no further request, not even a read: a flush that
//!   failed may have lost what was written, whatever the device returns. Its copies leave the set table
//!   at that instant, and nothing more is appended to the sets that had one.
//! * From then on no append is published, no flush and no root counts, until an epoch without the member
//!   is durable on the others and in the witness (INV-19). Then they count with the copies that are left.
//!   So who comes back with the failed member alone has either everything that was acknowledged, or an
//!   epoch that others have left behind.
//! * The table of the opening decides (`docs/internals/recovery.md`): in rows B and C everything has another
//!   copy; in row D the member may hold the only copy of something, and what that is is durably noted
//!   as lost before the epoch without it begins ([`crate::marks`]).
//! * Clean data that only the failed member had is read from the origin. Its mappings are swept out of
//!   the index; a root speaks for the new epoch only if all of its images are from after that. A start
//!   that finds an older root treats the rest as [`crate::losses`] says.
//! * Dirty data with fewer copies than asked is copied again, or destaged if too few members are left.

use std::rc::Rc;

use forebay_device::{IoError, IoErrorKind};

use crate::core::Core;
use crate::error::Result;
use crate::event::EventKind;
use crate::ids::BLOCK_BYTES;
use crate::member::Member;
use crate::planted::{self, Bug};
use crate::recovery::mappings;
use crate::text::bytes;
use crate::wait::yield_once;

/// How a running pool stands to a member.
///
/// ```text
/// Joining --------+------> Gone
///   |             |         ^ ^
///   v             v         | |
/// Serving ------> Failed ---+ |
///   |  ^            ^         |
///   v  |            |         |
/// Leaving ----------+---------+
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is made ready; no epoch that counts names it (see [`crate::addition`]).
    Joining,
    /// It has done all that it was asked for.
    #[default]
    Serving,
    /// It is being emptied: no set is opened on it (see [`crate::departure`]).
    Leaving,
    /// It has failed and is used no more; nothing counts until an epoch without it has begun.
    Failed,
    /// A durable epoch has left it behind.
    Gone,
}

impl Standing {
    fn may_become(self, next: Standing) -> bool {
        use Standing::{Failed, Gone, Joining, Leaving, Serving};
        match self {
            Joining => matches!(next, Serving | Failed | Gone),
            Serving => matches!(next, Leaving | Failed),
            Leaving => matches!(next, Serving | Failed | Gone),
            Failed => matches!(next, Gone),
            Gone => false,
        }
    }
}

impl Member {
    /// Whether requests may go to it.
    pub(crate) fn is_serving(&self) -> bool {
        matches!(self.standing.get(), Standing::Serving | Standing::Leaving)
    }

    /// Whether it is on its way out of the pool.
    pub(crate) fn is_leaving(&self) -> bool {
        self.standing.get() == Standing::Leaving
    }

    /// Whether it has failed and the epoch still names it.
    pub(crate) fn is_failed(&self) -> bool {
        self.standing.get() == Standing::Failed
    }

    /// Moves on in the diagram of [`Standing`].
    ///
    /// # Panics
    /// If the diagram has no such arrow.
    pub(crate) fn transition(&self, next: Standing) {
        let now = self.standing.get();
        assert!(now.may_become(next), "member {}: {now:?} to {next:?}", self.id);
        self.standing.set(next);
    }
}

impl Core {
    /// The members that requests go to, with their places.
    pub(crate) fn serving(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.members.iter().enumerate().filter(|(_, member)| member.is_serving())
    }

    /// How many members the durable epoch names.
    pub(crate) fn named_count(&self) -> usize {
        // One that was never taken in is named by none.
        let named =
            |member: &&Member| member.is_taken_in() && member.standing.get() != Standing::Gone;
        self.members.iter().filter(named).count()
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.members.iter().any(Member::is_failed)
    }

    /// Notes that a member has failed: the pool goes on without it, or latches if it is the last one. One that fails a start
    /// ends that ([`crate::start`]).
    pub(crate) fn fail_member(&self, index: usize, doing: &str, error: IoError) {
        let member = &self.members[index];
        let is_joining = member.standing.get() == Standing::Joining;
        if !(member.is_serving() || is_joining) || self.lease.is_lost() {
            return;
        }
        let what = format!("{doing} cache device {}", member.id);
        if !is_joining && (self.is_recovering() || self.is_last(index)) {
            // What fails once the pool has latched may fail because of that.
            let is_first = self.is_recovering() && !self.latched.get();
            if let Some(place) = member.place.get().filter(|_| is_first) {
                self.deadline.attempts().fail(place, |_| format!("{what}: {error}"));
            }
            return self.latch(&what, error);
        }
        planted::seen("member failed in use");
        member.transition(Standing::Failed);
        *member.failure.borrow_mut() = format!("{what}: {error}");
        if !is_joining && !planted::is(Bug::FailedMemberKept) {
            self.sets.borrow_mut().fail(index);
        }
        // What is left may be too little for the copies that were asked for.
        self.keep_members();
        // Nothing that it answers from now on is believed: what it reads may be what a flush has lost.
        self.give_up(index, error.kind);
        if self.losses.is_marking() {
            self.note_loss();
        }
        self.log.wake_all();
        self.room.wake_all();
        self.housekeeping.wake_all();
        self.epoch_begun.wake_all();
    }

    /// Waits until no epoch that counts names a member that has failed.
    ///
    /// # Errors
    /// If the pool has latched.
    pub(crate) async fn settle_members(&self) -> Result<()> {
        if self.is_failing() && !planted::is(Bug::EpochNotAwaited) {
            self.epoch_begun.until(|| !self.is_failing() || self.latched.get()).await;
        }
        self.check_latch()
    }

    /// Notes that the members at these places are left behind by the epoch that has begun.
    pub(crate) fn note_gone(&self, left: &[usize], lost: bool) {
        for &index in left {
            let member = &self.members[index];
            member.transition(Standing::Gone);
            member.watched.release();
            self.member_event(EventKind::MemberFailed, member.id, self.failure_note(member, lost));
        }
        // One that was to join had no header.
        if !self.members.iter().any(|member| member.is_taken_in() && member.is_failed()) {
            self.sets.borrow_mut().settle();
            self.housekeeping.wake_all();
        }
        self.epoch_begun.wake_all();
        self.room.wake_all();
    }

    /// Bytes that origins lack and that have fewer copies than asked.
    pub(crate) fn short_bytes(&self) -> u64 {
        let (sets, copies) = (self.sets.borrow(), usize::from(self.dirty_copies()));
        let short = sets.iter().filter(|set| set.segments.len() < copies);
        short.map(|set| u64::from(set.owed_blocks) * BLOCK_BYTES).sum()
    }

    /// What happened, what is at risk, and until when.
    fn failure_note(&self, member: &Member, lost: bool) -> String {
        let (cause, epoch, short) =
            (member.failure.borrow(), self.log.epoch.get(), self.short_bytes());
        let until = if self.is_short() { "it is destaged" } else { "it is copied again" };
        let risk = match short {
            0 => "everything that an origin lacks has all its copies".to_owned(),
            short => {
                let short = bytes(short);
                format!("{short} that origins lack have fewer copies than asked until {until}")
            }
        };
        let loss = if lost { "data is lost with it" } else { "nothing is lost" };
        format!("{cause}; {loss}, the pool goes on without it in epoch {epoch}; {risk}")
    }

    /// Closes what is open with a copy gone, and drops the mappings to places that nothing can be read from; false
    /// if another member failed on the way.
    async fn sweep(self: &Rc<Self>) -> bool {
        // Both as of one epoch: whoever fails from here on leaves a newer one behind, for which this is done anew.
        // A set that its stream appends nothing to would stay open for ever, and its copies would never come back.
        let epoch = self.log.epoch.get();
        self.close_degraded();
        for shard in &self.shards {
            if !self.sets.borrow().has_strays() {
                break;
            }
            let found = mappings(&shard.index.borrow());
            for (volume, m) in found.into_iter().filter(|(_, m)| m.state.has_data()) {
                let (set, _) = self.sets.borrow().split(m.location);
                if !self.is_stray(set) {
                    continue;
                }
                if m.state.is_owed() && self.is_failing() {
                    // It has failed meanwhile; what it takes is noted with the next epoch.
                    return false;
                }
                if m.state.is_owed() {
                    let what = "dirty data has no copy left";
                    self.latch(what, IoErrorKind::Media.into());
                    return false;
                }
                planted::seen("clean data dropped with a member");
                self.evict(volume, &m);
            }
            yield_once().await;
            if self.is_failing() || self.latched.get() {
                return false;
            }
        }
        self.roots.note_swept(epoch);
        true
    }

    /// Whether members have failed that are not left behind yet, in the superblocks or in the index.
    pub(crate) fn has_to_go_on(&self) -> bool {
        self.is_failing() || self.roots.swept_epoch() < self.log.epoch.get()
    }

    /// Begins the epoch without the members that have failed, and tidies up behind them.
    async fn go_on(self: &Rc<Self>) -> Result<()> {
        {
            let _control = self.control.lock().await;
            if self.is_failing() {
                // Whatever is written to the superblocks is written without them.
                self.write_superblocks(|_| ()).await?;
            }
        }
        // Requests under way can hold the sweep up.
        self.review_redundancy();
        if self.sweep().await {
            self.note_fallbacks();
            self.start_rebuild();
            self.housekeeping.wake_all();
        }
        Ok(())
    }
}

/// Waits for members to fail, and lets the pool go on without them.
pub(crate) async fn guardian(core: Rc<Core>) {
    loop {
        let due = || core.has_to_go_on();
        let over = || core.latched.get() || core.log.is_retired();
        core.epoch_begun.until(|| due() || over()).await;
        // Its error has latched the pool and is an event.
        if core.latched.get() || !due() || core.go_on().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_has_failed_never_serves_again() {
        use Standing::{Failed, Gone, Joining, Leaving, Serving};
        let all = [Joining, Serving, Leaving, Failed, Gone];
        let legal: Vec<_> = all
            .iter()
            .flat_map(|&a| all.map(|b| (a, b)))
            .filter(|(a, b)| a.may_become(*b))
            .collect();
        let leaving = [(Leaving, Serving), (Leaving, Failed), (Leaving, Gone)];
        let serving = [(Serving, Leaving), (Serving, Failed)];
        let joining = [(Joining, Serving), (Joining, Failed), (Joining, Gone)];
        assert_eq!(legal, [&joining[..], &serving, &leaving, &[(Failed, Gone)]].concat());
    }
}

//! What members that are gone took with them, and how a pool goes on with the others (INV-33).
//!
//! * A mapping names a set by its first segment. If that one is gone, an older set that shared it
//!   may be all that can still be seen of the number, so clean mappings of such sets are dropped.
//!   Owed ones are kept: fewer members are gone than their set has copies, so its own header is
//!   seen, and that is newer than any other's ([`Trust::Found`]).
//! * The lap at the end of recovery makes that durable. Until then every start decides the same
//!   again: the root still is of an older epoch, and the numbers of members that are gone are
//!   given to another only behind a root of the newest one ([`Core::lock_for_members`]).

use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::runtime::MILLISECOND;

use crate::core::Core;
use crate::event::EventKind;
use crate::format::{MemberState, State, Stream};
use crate::ids::{DeviceId, SegmentId};
use crate::membership::Trust;
use crate::planted::{self, Bug};
use crate::recovery::{RecoveryReport, mappings};
use crate::segment::{Set, SetState};
use crate::text::plural;
use crate::work::Job;

/// How often it is looked whether a set can be rebuilt that could not be before.
const LOOK_INTERVAL: u64 = 50 * MILLISECOND;

/// What becomes of a mapping after members were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    Dropped,
    Lost,
}

/// Decides about a mapping in `state`. `known`: its set, one with data, was found; `absent`: the
/// number that it is named by was of a member that is gone; `covered`: fewer members are gone than
/// copies.
fn fate(trust: Trust, state: State, known: bool, absent: bool, covered: bool) -> Fate {
    let clean = matches!(state, State::Clean | State::Provisional);
    match trust {
        Trust::All => Fate::Kept,
        Trust::Nothing if state == State::Lost => Fate::Kept,
        Trust::Nothing => Fate::Dropped,
        Trust::Owed if clean => Fate::Dropped,
        Trust::Found | Trust::Owed if !state.has_data() => Fate::Kept,
        Trust::Found if clean && (absent || !known) => Fate::Dropped,
        Trust::Found | Trust::Owed if !clean && (!known || absent && !covered) => Fate::Lost,
        Trust::Found | Trust::Owed => Fate::Kept,
    }
}

impl Core {
    /// Settles every mapping that the loss of members has made doubtful. Nothing is accounted yet.
    pub(crate) fn settle_losses(&self, trust: Trust, report: &mut RecoveryReport) {
        if trust == Trust::All {
            return;
        }
        let covered = self.superblock.borrow().is_covered();
        for shard in &self.shards {
            let found = mappings(&shard.index.borrow());
            for (volume, m) in found {
                let (known, absent) = {
                    let sets = self.sets.borrow();
                    let (id, _) = sets.split(m.location);
                    (sets.get(id).is_some_and(Set::holds_data), sets.is_absent(id))
                };
                match fate(trust, m.state, known, absent, covered) {
                    Fate::Kept => {}
                    Fate::Dropped => {
                        report.blocks_dropped += u64::from(m.count);
                        self.map_remove(volume, m.block, m.count);
                    }
                    Fate::Lost => {
                        report.blocks_lost += u64::from(m.count);
                        self.lose(volume, m);
                    }
                }
            }
        }
        if report.blocks_lost > 0 {
            let blocks = plural(report.blocks_lost as usize, "block");
            let what = format!(
                "{blocks} of 4 KiB went with cache devices that are gone: reading what is lost fails until it is \
                 overwritten"
            );
            self.event(EventKind::BlocksLost, what);
        }
    }

    /// Copies that what is owed in a set should have, also in one of clean data: what was moved
    /// there as clean is dirty again if its clean fact was lost in the crash.
    pub(crate) fn copies_wanted(&self, set: &Set) -> usize {
        self.stream_copies(Stream::Dirty).max(set.segments.len())
    }

    /// Starts giving dirty data its copies back, if members were lost and enough are left; clean data behind that.
    pub(crate) fn start_rebuild(self: &Rc<Self>) {
        let due = self.superblock.borrow().failed_count() > 0 && !self.is_short();
        if due {
            let core = Rc::clone(self);
            self.spawn_job(Job::Rebuild, async move {
                rebuilder(&core).await;
                core.start_recopy();
            });
        }
        self.start_recopy();
    }

    /// Whether dirty data with too few copies is still on its way into a set that is being closed.
    fn is_closing_short(&self) -> bool {
        self.sets.borrow().iter().any(|set| {
            let closing = matches!(set.state, SetState::Open | SetState::Closing);
            closing && set.stream.is_dirty() && set.segments.len() < self.copies_wanted(set)
        })
    }

    /// The members whose part in the copies has not been made good.
    fn lost_members(&self) -> BTreeSet<DeviceId> {
        let superblock = self.superblock.borrow();
        let failed = superblock.members.iter().filter(|m| m.state == MemberState::Failed);
        failed.map(|member| member.device).collect()
    }

    /// The next set after `after` whose owed data has too few copies.
    fn next_short(&self, after: Option<SegmentId>) -> Option<SegmentId> {
        if planted::is(Bug::RebuildForgotten) {
            return None;
        }
        let sets = self.sets.borrow();
        let mut short = sets.iter().filter(|set| {
            let closed = matches!(set.state, SetState::Closing | SetState::Closed);
            closed && set.owed_blocks > 0 && set.segments.len() < self.copies_wanted(set)
        });
        short.find(|set| after.is_none_or(|after| set.id > after)).map(|set| set.id)
    }

    /// Notes durably that what these members held has all its copies again. Others may fail meanwhile.
    async fn note_rebuilt(self: &Rc<Self>, lost: &BTreeSet<DeviceId>) {
        // No image may name a place that only fewer copies hold, and none may be behind a record of
        // one: facts, too, may have had a single member to be on.
        if self.until_published(self.log.last_sequence()).await.is_err() {
            return;
        }
        if self.lap(false).await.is_err() || self.is_short() {
            return;
        }
        let _control = self.control.lock().await;
        let healed = self.write_superblocks(|superblock| {
            for member in superblock.members.iter_mut().filter(|m| lost.contains(&m.device)) {
                member.state = MemberState::Removed;
            }
        });
        if healed.await.is_ok() {
            self.event(
                EventKind::CopiesRestored,
                "all dirty data has all its copies again".to_owned(),
            );
            self.review_redundancy();
        }
    }
}

/// Gives dirty data its copies back after members were lost: by moving it, or because it is
/// destaged meanwhile.
async fn rebuilder(core: &Rc<Core>) {
    while !core.is_at_rest() {
        let lost = core.lost_members();
        if lost.is_empty() || core.is_short() {
            return;
        }
        core.close_all_short().await;
        let mut after = None;
        let mut any = core.is_closing_short();
        while let Some(id) = core.next_short(after) {
            any = true;
            core.move_owed(id).await;
            after = Some(id);
            if core.is_at_rest() {
                return;
            }
        }
        if !any {
            core.note_rebuilt(&lost).await;
            continue;
        }
        // What an origin was given and does not prove cannot be moved before that is dirty again.
        core.let_go_of_silent();
        let timer = core.rt.sleep(LOOK_INTERVAL);
        core.housekeeping.until_or(|| core.is_at_rest(), timer).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_owed_is_dropped_while_a_volume_may_be_dirty() {
        for trust in [Trust::All, Trust::Found, Trust::Owed] {
            for state in
                [State::Dirty, State::Written, State::Zero, State::ZeroWritten, State::Lost]
            {
                for bits in 0..8 {
                    let is = |bit: u32| bits >> bit & 1 == 1;
                    let fate = fate(trust, state, is(0), is(1), is(2));
                    assert_ne!(fate, Fate::Dropped, "{trust:?} {state:?} {bits:03b}");
                    let lost = fate == Fate::Lost;
                    let gone = !is(0) || (is(1) && !is(2));
                    assert_eq!(lost, trust != Trust::All && state.has_data() && gone);
                }
            }
        }
    }

    #[test]
    fn clean_data_is_kept_only_where_nothing_can_have_overtaken_it() {
        for state in [State::Clean, State::Provisional] {
            for bits in 0..8 {
                let is = |bit: u32| bits >> bit & 1 == 1;
                let kept = |trust| fate(trust, state, is(0), is(1), is(2)) == Fate::Kept;
                assert!(kept(Trust::All));
                assert_eq!(kept(Trust::Found), is(0) && !is(1));
                assert!(!kept(Trust::Owed) && !kept(Trust::Nothing));
            }
        }
    }
}

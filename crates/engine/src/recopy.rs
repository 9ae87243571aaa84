//! Clean data gets its copies back after members were lost, behind all that is dirty; and no set is known by a number
//! of theirs in the end, so that others can come in their place.
//!
//! * Closed sets that have lost a copy are meant, and of which nothing is owed. What lies in one with fewer copies
//!   than clean data is to have is copied to others; so is what lies in one that is known by a number of the lost
//!   member. What has copies enough stays where it is.
//! * Clients go first, and dirty data, and reclaim: only while no room has to be made anywhere is anything copied.
//!   Where a pool is full, that is between one set that is emptied and the next.
//! * The write budget of retention has no part in it: a loss brings it about, not what is brought in; and it is at
//!   most what the lost member had and its other copy. What is written counts for the bytes a day.
//! * It ends: what is copied lies in sets that have lost nothing, and a root frees what was emptied. Nothing of it is
//!   durable: a start finds in the headers which sets have lost a copy.

use std::rc::Rc;

use forebay_device::Nanos;
use forebay_device::runtime::SECOND;

use crate::core::Core;
use crate::ids::{BLOCK_BYTES, SegmentId};
use crate::pool::Pool;
use crate::segment::{Set, SetState, SetTable};
use crate::work::Job;

/// How often it is looked whether there is room again, or a set is clean by now.
const LOOK_INTERVAL: Nanos = SECOND;

/// The same while there are fewer members than clean data is to have copies: only another member helps.
const SHORT_INTERVAL: Nanos = 60 * SECOND;

/// Time between two roots that are written for this alone: each writes the whole index, and what the first one has
/// left is held by something that takes its time.
const ROOT_INTERVAL: Nanos = 60 * SECOND;

impl Set {
    /// Whether it has lost a copy, and what it holds is to be copied to a set with `copies` of them.
    fn is_to_be_copied(&self, copies: usize) -> bool {
        let is_clean = self.state == SetState::Closed && self.holds_data() && self.owed_blocks == 0;
        // What waits for an origin flush is not clean yet.
        let has_any = self.live_blocks > self.provisional_blocks && !self.has_no_copy();
        is_clean && has_any && self.is_short(copies)
    }

    /// Whether the next root, or one soon after, makes it free.
    fn goes_with_root(&self) -> bool {
        let no_data = self.state == SetState::Closed && !self.holds_data();
        no_data || matches!(self.state, SetState::LetGo(_) | SetState::Discarding)
    }
}

impl SetTable {
    /// The next set from a number on that is to be copied, where clean data is to have so many copies.
    fn next_to_copy(&self, from: SegmentId, copies: usize) -> Option<SegmentId> {
        let mut found = self.iter_from(from).filter(|set| set.is_to_be_copied(copies));
        found.find(|set| set.moves == 0).map(|set| set.id)
    }

    /// Sets that are short of copies, wherever that leads.
    fn short(&self) -> impl Iterator<Item = &Set> {
        let copies = self.clean_copies();
        self.iter().filter(move |set| set.is_short(copies))
    }
}

impl Pool {
    /// Bytes of clean data that are copied, since members were lost, with `joining` members more than there are: 0
    /// while dirty data has too few for its copies, and nothing is copied. There may be room for less.
    pub fn short_clean_bytes(&self, joining: usize) -> u64 {
        if self.core.is_short_with(joining) || self.core.is_at_rest() {
            return 0;
        }
        let (sets, copies) = (self.core.sets.borrow(), self.core.clean_copies_with(joining));
        let short = sets.iter().filter(|set| set.is_to_be_copied(copies));
        short.map(|set| u64::from(set.live_blocks) * BLOCK_BYTES).sum()
    }
}

impl Core {
    /// Copies that clean data can have.
    fn clean_copies_possible(&self) -> usize {
        self.clean_copies_with(0)
    }

    /// The same with so many members more.
    fn clean_copies_with(&self, joining: usize) -> usize {
        self.sets.borrow().clean_copies().min(self.staying_count() + joining)
    }

    /// Starts giving clean data its copies back, if all dirty data has them.
    pub(crate) fn start_recopy(self: &Rc<Self>) {
        if self.is_recopy_due() {
            self.spawn_job(Job::Recopy, recopier(Rc::clone(self)));
        }
    }

    fn is_recopy_due(&self) -> bool {
        self.may_recopy() && self.sets.borrow().short().next().is_some()
    }

    /// Whether dirty data has its copies, and the pool goes on.
    fn may_recopy(&self) -> bool {
        let is_made_good = self.superblock.borrow().failed_count() == 0 && !self.is_failing();
        is_made_good && !self.is_short() && !self.is_at_rest()
    }

    /// Copies what there is room for; false if some was left because there is none.
    async fn copy_clean_sets(self: &Rc<Self>) -> bool {
        let mut from = SegmentId(0);
        while self.may_recopy() {
            let copies = self.clean_copies_possible();
            let next = self.sets.borrow().next_to_copy(from, copies);
            let Some(id) = next else { return true };
            if !self.copy_clean(id).await {
                break;
            }
            from = SegmentId(id.0 + 1);
        }
        false
    }
}

/// Copies clean data and writes roots, until no set is short of copies, or another member is lost.
async fn recopier(core: Rc<Core>) {
    let mut next_root = 0;
    while core.is_recopy_due() {
        let is_all = core.copy_clean_sets().await;
        let goes = is_all && core.sets.borrow().short().all(Set::goes_with_root);
        if goes && core.rt.now() >= next_root {
            next_root = core.rt.now() + ROOT_INTERVAL;
            // Its error has latched the pool and is an event.
            core.lap(false).await.ok();
            continue;
        }
        let possible = core.clean_copies_possible();
        let is_short = is_all && possible < core.sets.borrow().clean_copies();
        let timer = core.rt.sleep(if is_short { SHORT_INTERVAL } else { LOOK_INTERVAL });
        let is_new = || core.clean_copies_possible() != possible;
        core.housekeeping.until_or(|| !core.may_recopy() || is_new(), timer).await;
    }
}

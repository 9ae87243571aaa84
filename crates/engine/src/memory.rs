//! The bound of the index's memory (INV-101).
//!
//! * What is owed, or lost, may take all but a headroom: a write claims the most that it can add before it is
//!   logged, and gives the claim back once it is published. What housekeeping adds (an extent that is split
//!   where a run ends, a location that is wider than those beside it) has the headroom.
//! * What is clean gives way: to a claim, and to any change that would pass the bound. Each look takes the
//!   next run that was not asked for since the look before (second chance), so that nothing waits for a set to
//!   be emptied. A population that finds nothing clean but itself is dropped.
//! * Who does not get a claim waits. Then the index is crowded: reclaim keeps nothing, what is dirty is
//!   destaged at full pressure and moved no more, and nothing is populated. All three go by one number,
//!   which counts claims as well, so that nobody waits below it.
//! * The index belongs to the pool's reactor, wherever clients are: a look and the claim are one step.

use std::cell::Cell;

use forebay_device::Nanos;

use crate::core::{Core, STRIPE_BLOCKS};
use crate::count::Count;
use crate::direct::region_parts;
use crate::format::State;
use crate::ids::VolumeId;
use crate::limits::{
    INDEX_CLAIM_MAX, INDEX_HEADROOM_MIN, INDEX_LOOKS_MAX, INDEX_REST, REGION_BLOCKS,
};
use crate::planted::{self, Bug, seen};

/// Regions that a piece of a request can lie in.
const REGIONS_MAX: usize = (STRIPE_BLOCKS / REGION_BLOCKS) as usize;

/// What a look for something clean has come to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Given,
    /// It was asked for since the look before.
    Cooled,
    /// There is nothing more in this shard.
    Passed,
}

/// What is on its way into the index, and where it looks for what can be given up.
pub(crate) struct IndexClaims {
    /// Bytes that requests under way may add.
    claimed: Cell<u64>,
    /// Requests that wait for that.
    pub(crate) waiters: Count,
    /// Where the next look for something clean begins: shard, volume, block.
    hand: Cell<(usize, VolumeId, u64)>,
    /// Until when a look is not worth it.
    rests_until: Cell<Nanos>,
    /// Whether something is being given up.
    trimming: Cell<bool>,
}

impl Default for IndexClaims {
    fn default() -> Self {
        let hand = Cell::new((0, VolumeId(0), 0));
        let (claimed, rests_until) = (Cell::new(0), Cell::new(0));
        Self { claimed, waiters: Count::default(), hand, rests_until, trimming: Cell::new(false) }
    }
}

/// Bytes that a request may add to the index, until it is dropped.
pub(crate) struct IndexClaim<'a> {
    core: &'a Core,
    bytes: u64,
}

impl Drop for IndexClaim<'_> {
    fn drop(&mut self) {
        let core = self.core;
        core.index_claims.claimed.set(core.index_claims.claimed.get() - self.bytes);
        if !core.index_claims.waiters.is_zero() {
            core.room.wake_all();
        }
    }
}

impl Core {
    /// Bytes of the index and of what is on its way there.
    fn index_taken(&self) -> u64 {
        self.index_bytes.get() + self.index_claims.claimed.get()
    }

    /// What claims may take.
    fn index_limit(&self) -> u64 {
        let max = self.index_memory_max.get();
        max.saturating_sub((max / 20).max(INDEX_HEADROOM_MIN))
    }

    /// Where the largest claim may have to wait.
    fn index_full(&self) -> u64 {
        self.index_limit().saturating_sub(INDEX_CLAIM_MAX)
    }

    /// Where nothing is populated any more: 90 % of the bound.
    fn index_tight(&self) -> u64 {
        (self.index_memory_max.get() / 10 * 9).min(self.index_full() / 20 * 19)
    }

    /// Whether the index has so much memory that what costs most of it has to go.
    pub(crate) fn is_index_crowded(&self) -> bool {
        self.index_taken() > self.index_full()
    }

    /// Whether it is so full that nothing new is admitted but writes.
    pub(crate) fn index_is_tight(&self) -> bool {
        self.index_taken() >= self.index_tight()
    }

    /// From 0, where nothing is populated any more, to 1, where it is crowded.
    pub(crate) fn index_pressure(&self) -> f64 {
        let (from, full) = (self.index_tight() as f64, self.index_full() as f64);
        (self.index_taken() as f64 - from) / (full - from).max(1.0)
    }

    /// Claims what a change of blocks of one stripe can add. `None`: it has to wait.
    pub(crate) fn claim_index(
        &self,
        volume: VolumeId,
        block: u64,
        count: u32,
    ) -> Option<IndexClaim<'_>> {
        let regions = region_parts(block, count).count();
        debug_assert!(regions <= REGIONS_MAX);
        let bytes = self.shard(volume, block).index.borrow().growth_max(regions) as u64;
        debug_assert!(bytes <= INDEX_CLAIM_MAX);
        let forgotten = planted::is(Bug::IndexBoundForgotten);
        if self.index_taken() + bytes > self.index_limit() && !forgotten {
            self.trim_index(self.index_limit().saturating_sub(bytes));
            if self.index_taken() + bytes > self.index_limit() {
                return None;
            }
        }
        self.index_claims.claimed.set(self.index_claims.claimed.get() + bytes);
        Some(IndexClaim { core: self, bytes })
    }

    /// Makes sure that one change of a shard stays within the bound, as far as what is clean can give way;
    /// whether it does.
    pub(crate) fn keep_index_bound(&self, volume: VolumeId, block: u64) -> bool {
        let max = self.index_memory_max.get();
        if self.index_taken() + INDEX_CLAIM_MAX <= max {
            return true;
        }
        // A start counts nothing yet, and gives back what is too much at its end.
        let counts = self.sets.borrow().accounting;
        if !counts || self.index_claims.trimming.get() || planted::is(Bug::IndexBoundForgotten) {
            return true;
        }
        let bytes = self.shard(volume, block).index.borrow().growth_max(1) as u64;
        if self.index_taken() + bytes > max {
            self.trim_index(max.saturating_sub(bytes));
        }
        // What claims have is not for others.
        self.index_taken() + bytes <= max
    }

    /// What a start has found may be more than was there: nothing durable says what was given up last. Ends
    /// where nothing clean is left: each round cools what is hot, and three make all of it cold.
    pub(crate) fn trim_recovered_index(&self) {
        let (full, mut passes) = (self.index_full(), 0);
        self.index_claims.trimming.set(true);
        while self.index_taken() > full && passes <= self.shards.len() {
            passes = if self.look_for_clean() == Look::Passed { passes + 1 } else { 0 };
        }
        self.index_claims.trimming.set(false);
    }

    /// Gives up clean data until no more than `most` is taken, or for a while.
    fn trim_index(&self, most: u64) {
        let now = self.rt.now();
        if now < self.index_claims.rests_until.get() || self.index_claims.trimming.replace(true) {
            return;
        }
        let (mut given, mut passes) = (false, 0);
        for _ in 0..INDEX_LOOKS_MAX {
            if self.index_taken() <= most || passes > 2 * self.shards.len() {
                break;
            }
            match self.look_for_clean() {
                Look::Given => given = true,
                Look::Cooled => {}
                Look::Passed => passes += 1,
            }
        }
        self.index_claims.trimming.set(false);
        if !given && passes > 0 {
            // There may be nothing left, and whoever waits asks again and again.
            self.index_claims.rests_until.set(now + INDEX_REST);
        }
    }

    /// Looks at the next run that is clean, of whatever volume: also of one whose origin is not there.
    fn look_for_clean(&self) -> Look {
        let (at, volume, block) = self.index_claims.hand.get();
        let index = &self.shards[at].index;
        let found = index.borrow().next_from(volume, block, |state| state == State::Clean);
        let Some((volume, m)) = found else {
            self.index_claims.hand.set(((at + 1) % self.shards.len(), VolumeId(0), 0));
            return Look::Passed;
        };
        self.index_claims.hand.set((at, volume, m.block + u64::from(m.count)));
        let heat = index.borrow().heat(volume, m.block);
        if heat > 0 {
            index.borrow_mut().cool(volume, m.block);
            return Look::Cooled;
        }
        seen("index: clean data given up");
        self.evict(volume, &m);
        Look::Given
    }
}

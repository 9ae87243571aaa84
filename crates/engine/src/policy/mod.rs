//! What stays in the cache: admission, the order of reclaim, and the write budget.
//!
//! A policy sees identities, accesses and reclaim units, nothing else: no index, no devices, no
//! clock. So the code that decides in production is the code that the trace simulator measures.
//!
//! * A policy never chooses a pinned unit (INV-21).
//! * What retention moves stays within the write budget (INV-22); the few dirty blocks of a unit are
//!   moved whatever the budget says, because their only copy is there.
//! * Memory is fixed at construction, and when the pool gets another size (INV-23).
//! * The same calls give the same answers.

mod advisor;
mod budget;
mod curve;
mod fifo;
mod ghost;
mod populate;
mod recent;
mod reread;
mod s3fifo;
#[cfg(test)]
mod tests;
mod thrift;
mod tier;
mod touches;

pub use advisor::{Advisor, MEMORY_BYTES_MAX as ADVISOR_BYTES_MAX};
pub use budget::Budget;
pub use curve::{
    Curve, DAYS_MAX as ADVISOR_DAYS_MAX, DISTANCES, Day, HITS_LEAST, HITS_WANTED, WorkingSet,
};
pub use fifo::Fifo;
pub use ghost::Ghost;
pub use populate::{Populate, Thresholds};
pub use reread::{Reread, SAMPLED_BLOCKS, Worth};
pub use s3fifo::{S3Fifo, S3FifoConfig};
pub use thrift::{Offer, Thrift, WriteBudget};
pub use tier::{NODE_BYTES as TIER_NODE_BYTES, Tier};
pub use touches::{POOL_BLOCKS_PER_CACHE_BLOCK, TOUCHES_MAX, Touches};

use crate::ids::VolumeId;
use crate::limits::GRANULE_BLOCKS;

/// A piece of a volume's address space for which hotness is remembered: the larger of the cache
/// block and [`GRANULE_BYTES_MIN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Granule {
    /// The volume it belongs to.
    pub volume: VolumeId,
    /// Its byte address divided by the volume's granule size.
    pub number: u64,
}

/// Smallest granule: one byte of heat and five of ghost per 64 KiB is 96 KiB per GiB of cache, a
/// quarter of the index's bound.
pub const GRANULE_BYTES_MIN: u64 = 64 << 10;

/// Some blocks of one granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The granule that they belong to.
    pub granule: Granule,
    /// Which of its blocks, bit n for block n; at least one.
    pub blocks: u16,
}

impl Part {
    /// The `count` blocks of a volume from `first` on, granule by granule.
    pub(crate) fn each(volume: VolumeId, first: u64, count: u32) -> impl Iterator<Item = Self> {
        let end = first + u64::from(count);
        let mut at = first;
        std::iter::from_fn(move || {
            let part = (at < end).then(|| Self::of(volume, at, (end - at) as u32))?;
            at = (at / GRANULE_BLOCKS + 1) * GRANULE_BLOCKS;
            Some(part)
        })
    }

    /// Of the `count` blocks of a volume from `first` on, at least one, those in the first one's granule.
    pub(crate) fn of(volume: VolumeId, first: u64, count: u32) -> Self {
        debug_assert!(count > 0);
        let granule = Granule { volume, number: first / GRANULE_BLOCKS };
        let at = (first % GRANULE_BLOCKS) as u32;
        let count = count.min(GRANULE_BLOCKS as u32 - at);
        Self { granule, blocks: (u16::MAX >> (GRANULE_BLOCKS as u32 - count)) << at }
    }

    /// The whole of a granule.
    pub fn whole(granule: Granule) -> Self {
        Self { granule, blocks: u16::MAX }
    }

    /// How many blocks it is.
    pub fn count(self) -> u32 {
        self.blocks.count_ones()
    }
}

const _: () = assert!(GRANULE_BLOCKS == u16::BITS as u64);

/// What a client did to a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It read from it.
    Read,
    /// It wrote to it.
    Write,
}

/// The stream of the log that blocks are appended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Queue {
    /// For what is here for the first time; reclaimed first.
    Probation,
    /// For what was asked for again.
    Main,
}

/// A closed segment set as reclaim sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The engine's name for it.
    pub id: u32,
    /// The stream that it was written by.
    pub queue: Queue,
    /// Open counter of its incarnation: smaller is older.
    pub opened: u64,
    /// Blocks that the index still points at, dirty and written ones included.
    pub live_blocks: u32,
    /// Blocks that are dirty: they cannot be dropped, only moved.
    pub dirty_blocks: u32,
    /// Blocks that wait for an origin's flush: destaged ones can neither be dropped nor moved before it, and those that
    /// were written through only dropped.
    pub unflushed_blocks: u32,
    /// Members on which it lies: it takes the space of so many.
    pub copies: u32,
    /// Blocks that it can hold.
    pub size_blocks: u32,
    /// Blocks of data that a set of [`Queue::Main`] held of late when it was full: what is left
    /// of its size by headers, the footer, and records that did not fit any more.
    pub packed_blocks: u32,
    /// Not to be chosen: blocks are being moved out of it already, or emptying it would make no room where there
    /// is none.
    pub pinned: bool,
}

/// Accesses told to a policy, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads answered by the cache.
    pub read_hits: u64,
    /// Reads that needed the origin.
    pub read_misses: u64,
    /// Writes over something cached.
    pub write_hits: u64,
    /// Writes over nothing cached.
    pub write_misses: u64,
}

impl Counts {
    /// Counts one access.
    pub(crate) fn add(&mut self, access: Access, hit: bool) {
        let count = match (access, hit) {
            (Access::Read, true) => &mut self.read_hits,
            (Access::Read, false) => &mut self.read_misses,
            (Access::Write, true) => &mut self.write_hits,
            (Access::Write, false) => &mut self.write_misses,
        };
        *count += 1;
    }

    /// All accesses.
    pub fn total(&self) -> u64 {
        self.read_hits + self.read_misses + self.write_hits + self.write_misses
    }
}

/// Decides what enters the cache and what leaves it.
///
/// Heat, a small saturating count of hits per granule, belongs to the engine, which passes it to
/// [`retain`](Policy::retain) and lowers it by one for each granule retained, so that a granule
/// that nobody asks for any more leaves after a few laps.
pub trait Policy {
    /// A client touched these blocks; `hit` if all that it asked for was cached.
    fn access(&mut self, part: Part, access: Access, hit: bool);

    /// May a missed read be populated, and into which stream? `None`: leave it on the origin, for the sake of the
    /// write budget.
    fn admit(&mut self, part: Part) -> Option<Queue>;

    /// Whether a write of what is not cached goes to the origin alone, for the sake of the write budget.
    fn leaves_out(&self, part: Part, written_back: bool) -> bool;

    /// How much is left out from now on.
    fn set_thrift(&mut self, thrift: Thrift);

    /// Into which stream does a write of these blocks go, `from` where what it covers lies if all of
    /// that is cached? It stays there: what is written over and over earns no place in main by that
    /// alone, and what has one keeps it. Anything else goes where a missed read would go.
    fn place(&mut self, part: Part, from: Option<Queue>) -> Queue;

    /// Whether a hit in a unit of `queue` makes its granule hotter, where units of so many blocks were opened since
    /// that was. What is hit soon is most likely asked for by whoever brought it in, and is no reuse.
    fn is_reuse(&self, queue: Queue, age_blocks: u64) -> bool;

    /// Which of the closed units that were surveyed to reclaim next, if any can be.
    ///
    /// A unit with dirty blocks is named only if no other unit is left and they are few, or moving them
    /// pays and the write budget has room for them; or if it is half
    /// empty, the pool is roomy and the write budget has room for them. The
    /// engine then moves them. `None`: nothing can be freed before something is destaged or a
    /// pin goes away.
    fn choose(&mut self, survey: &Survey) -> Option<u32>;

    /// A unit that was not chosen is to be emptied: nobody waits for its room.
    fn begin_other(&mut self) {}

    /// A unit is being reclaimed, the one that was chosen or another one that was named. It is of `queue`, and
    /// these blocks, which are clean, are live in it: `true` to append them again to [`Queue::Main`],
    /// `false` to drop them, which [`dropped`](Policy::dropped) tells of when it is done: until their room is needed, they are
    /// read where they are. Where writers are held back ([`Survey::held_back`]) what was not spent before is
    /// not theirs to wait for.
    ///
    /// `true` reserves the write budget of these blocks until the next
    /// [`spend`](Policy::spend) of moved blocks.
    fn retain(&mut self, part: Part, queue: Queue, heat: u8) -> bool;

    /// These blocks of a unit of `queue` that were not retained have left the cache.
    fn dropped(&mut self, _part: Part, _queue: Queue) {}

    /// May so many blocks be kept because space is reserved for their volume, however cold they are? Beside
    /// what [`retain`](Policy::retain) grants; reserves them likewise.
    fn retain_reserved(&mut self, _blocks: u32) -> bool {
        false
    }

    /// Blocks were appended: `admitted_blocks` for clients (writes and populations),
    /// `moved_blocks` by reclaim, dirty ones included.
    fn spend(&mut self, admitted_blocks: u64, moved_blocks: u64);

    /// So many blocks were appended beside data: headers of records and images of the index.
    fn spend_overhead(&mut self, _blocks: u64) {}

    /// Another maximum of bytes written per byte admitted from now on, in percent from 100 on.
    fn set_write_amplification_max(&mut self, percent: u32);

    /// The pool has so many blocks from now on. What was learnt may be forgotten.
    fn resize(&mut self, pool_blocks: u64);

    /// Accesses told so far.
    fn counts(&self) -> Counts;

    /// Memory held, in bytes; constant.
    fn memory_bytes(&self) -> usize;
}

/// Share of a unit, in percent, up to which dirty blocks count as few. Moving an eighth of a unit
/// to free seven eighths adds 0.14 to write amplification; above that, destaging first is better.
const OWED_FEW_PERCENT: u64 = 12;

/// The oldest of the units offered to it. Ages of two units are equal only in a broken engine,
/// but the answer is fixed even then.
#[derive(Default)]
struct Oldest(Option<(u64, u32)>);

impl Oldest {
    fn offer(&mut self, unit: &Unit) {
        let candidate = (unit.opened, unit.id);
        self.0 = Some(self.0.map_or(candidate, |best| best.min(candidate)));
    }

    fn id(&self) -> Option<u32> {
        self.0.map(|(_, id)| id)
    }
}

/// A unit that is worth packing, in the order in which they are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Emptiest {
    /// It becomes free with an origin's flush, and not at once; or loses what could be kept after it.
    waits: bool,
    live_blocks: u32,
    dirty_blocks: u32,
    opened: u64,
    id: u32,
}

/// What one pass over the closed units found.
#[derive(Default)]
pub struct Survey {
    empty: Oldest,
    probation: Oldest,
    main: Oldest,
    /// Dirty blocks, age and id of the unit with the fewest dirty blocks, if those are few.
    nearly_clean: Option<(u32, u64, u32)>,
    /// Dirty blocks, age, id and packed blocks of the unit with the fewest dirty ones, of those that hold any
    /// and of which moving them gains room.
    fewest_dirty: Option<(u32, u64, u32, u32)>,
    /// The unit with the fewest live blocks, dirty or not, if they are at most half
    /// of its size, and moving them gains room: at most three quarters of what a set holds in the
    /// end. With short records that may be less than half of its size, and then reclaim would
    /// move the same blocks from set to set for ever.
    emptiest: Option<Emptiest>,
    /// In all copies, as in the next.
    probation_live_blocks: u64,
    live_blocks: u64,
    holds_back: bool,
}

impl Survey {
    /// Looks at every unit once. Pinned units count as space and are no candidates.
    pub fn of(units: impl IntoIterator<Item = Unit>) -> Self {
        let mut survey = Self::default();
        units.into_iter().for_each(|unit| survey.add(&unit));
        survey
    }

    /// Of so many units that are all alike but for their age, the oldest ones are enough, with the
    /// live blocks that all of them have: `probation_blocks` in that queue, `blocks` in both.
    pub fn of_oldest(
        oldest: impl IntoIterator<Item = Unit>,
        probation_blocks: u64,
        blocks: u64,
    ) -> Self {
        let survey = Self::of(oldest);
        Self { probation_live_blocks: probation_blocks, live_blocks: blocks, ..survey }
    }

    /// Says whether writers are held back until there is more room.
    #[must_use]
    pub fn held_back(self, holds_back: bool) -> Self {
        Self { holds_back, ..self }
    }

    fn add(&mut self, unit: &Unit) {
        assert!(unit.dirty_blocks <= unit.live_blocks && unit.live_blocks <= unit.size_blocks);
        let occupied = u64::from(unit.live_blocks) * u64::from(unit.copies);
        self.live_blocks += occupied;
        if unit.queue == Queue::Probation {
            self.probation_live_blocks += occupied;
        }
        if unit.pinned {
            return;
        }
        let few = u64::from(unit.size_blocks) * OWED_FEW_PERCENT;
        let half_empty = unit.live_blocks > 0 && unit.live_blocks * 2 <= unit.size_blocks;
        let gains = unit.live_blocks * 4 <= unit.packed_blocks * 3;
        if half_empty && gains {
            let candidate = Emptiest {
                waits: unit.unflushed_blocks > 0,
                live_blocks: unit.live_blocks,
                dirty_blocks: unit.dirty_blocks,
                opened: unit.opened,
                id: unit.id,
            };
            self.emptiest = Some(self.emptiest.map_or(candidate, |b| b.min(candidate)));
        }
        if unit.dirty_blocks > 0 && unit.dirty_blocks * 4 <= unit.packed_blocks * 3 {
            let candidate = (unit.dirty_blocks, unit.opened, unit.id, unit.packed_blocks);
            self.fewest_dirty = Some(self.fewest_dirty.map_or(candidate, |b| b.min(candidate)));
        }
        match (unit.live_blocks, unit.dirty_blocks, unit.queue) {
            (0, ..) => self.empty.offer(unit),
            (_, 0, Queue::Probation) => self.probation.offer(unit),
            (_, 0, Queue::Main) => self.main.offer(unit),
            (_, dirty, _) if u64::from(dirty) * 100 <= few => {
                let candidate = (dirty, unit.opened, unit.id);
                let best = self.nearly_clean.map_or(candidate, |best| best.min(candidate));
                self.nearly_clean = Some(best);
            }
            _ => {}
        }
    }

    /// The unit with the fewest dirty blocks, if moving them gains room: a quarter of what a set holds, at
    /// least.
    pub fn fewest_dirty(&self) -> Option<u32> {
        self.fewest_dirty.map(|(_, _, id, _)| id)
    }

    fn nearly_clean_id(&self) -> Option<u32> {
        self.nearly_clean.map(|(_, _, id)| id)
    }
}

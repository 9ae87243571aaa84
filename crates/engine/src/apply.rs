//! The one way in which log entries change the index: when an append completes, and when recovery
//! replays it. Keeps the sets' counts and the elevator's work list in step.

use crate::core::{Core, STRIPE_BLOCKS};
use crate::counters::add;
use crate::format::{Entry, EntryKind, NO_DATA, State};
use crate::ids::{LOCATION_BITS, Location, SECTORS_ALL, SegmentId, Sequence, VolumeId};
use crate::index::{Mapping, Shard};
use crate::limits::REGION_BLOCKS;
use crate::planted::seen;
use crate::recovery::mappings;
use crate::segment::Set;

/// Where the record of an entry stands.
#[derive(Clone, Copy)]
pub(crate) struct RecordPlace {
    /// Of the record's first header block.
    pub header: Location,
    /// Header blocks before the data.
    pub header_blocks: u32,
}

impl Core {
    /// Makes an entry of a completed append visible. `replaying` is true during recovery.
    pub(crate) fn apply(&self, entry: &Entry, place: RecordPlace, replaying: bool) {
        let (volume, block, count) = (entry.volume, entry.block, entry.count);
        match entry.kind {
            EntryKind::Write => self.map_insert(volume, data_mapping(entry, place, State::Dirty)),
            EntryKind::Populate if !replaying && !self.keep_index_bound(volume, block) => {
                // As if it had been given up right behind.
                seen("index: population dropped");
                self.note_drop(volume, block);
            }
            EntryKind::Populate => {
                self.map_insert_as(volume, data_mapping(entry, place, State::Clean), true);
            }
            // While running it only voids what was cached; the writer maps it once the origin has
            // the data. In replay it stays until a clean fact proves it, or recovery ends.
            EntryKind::Provisional if replaying => {
                self.map_insert(volume, data_mapping(entry, place, State::Provisional));
            }
            EntryKind::Provisional | EntryKind::Tombstone => self.map_remove(volume, block, count),
            EntryKind::Move => {
                if let Some(from) = entry.from {
                    self.map_relocate(entry, from, data_mapping(entry, place, State::Clean));
                }
            }
            EntryKind::Zero => self.map_insert(volume, zero_mapping(entry, place)),
            EntryKind::CleanFact => {
                if let (Some(from), Some(state)) = (entry.from, entry.state) {
                    self.map_clean(entry, from, state);
                }
            }
            EntryKind::Lost => {
                let lost = Mapping { state: State::Lost, ..zero_mapping(entry, place) };
                self.map_insert(volume, lost);
            }
            EntryKind::Recovery | EntryKind::Image => {}
        }
    }

    /// Maps blocks, displacing what was there.
    pub(crate) fn map_insert(&self, volume: VolumeId, mapping: Mapping) {
        self.map_insert_as(volume, mapping, false);
    }

    /// The same; `cold` for what nobody has asked for again.
    fn map_insert_as(&self, volume: VolumeId, mapping: Mapping, cold: bool) {
        let emptied = self.change(volume, mapping.block, |index, displaced| match cold {
            true => index.insert_cold(volume, mapping, displaced),
            false => index.insert(volume, mapping, displaced),
        });
        self.count_in(volume, &mapping);
        let Mapping { block, count, state, sectors, .. } = mapping;
        let holds = state.has_data() && sectors == SECTORS_ALL;
        self.ram.borrow_mut().note_backed(volume, block, count, holds);
        self.settle(&emptied);
    }

    /// Unmaps blocks.
    pub(crate) fn map_remove(&self, volume: VolumeId, block: u64, count: u32) {
        self.ram.borrow_mut().note_backed(volume, block, count, false);
        let emptied = self.change(volume, block, |index, displaced| {
            index.remove(volume, block, count, displaced);
        });
        self.settle(&emptied);
    }

    /// Unmaps what of a volume is in such a state, but nothing that is lost: no origin has that. The blocks.
    pub(crate) fn forget_volume(
        &self,
        volume: VolumeId,
        is_dropped: impl Fn(State) -> bool,
    ) -> u64 {
        let mut blocks = 0;
        for shard in &self.shards {
            let mut found = mappings(&shard.index.borrow());
            found.retain(|(of, m)| *of == volume && m.state != State::Lost && is_dropped(m.state));
            for (_, m) in found {
                self.map_remove(volume, m.block, m.count);
                self.note_drop(volume, m.block);
                blocks += u64::from(m.count);
            }
        }
        blocks
    }

    /// Changes the state of those blocks that still are where `location` says.
    pub(crate) fn map_transition(
        &self,
        volume: VolumeId,
        block: u64,
        count: u32,
        location: Location,
        want: impl Fn(State) -> bool,
        to: Option<State>,
    ) {
        let mut changed = Vec::new();
        let emptied = self.change(volume, block, |index, displaced| {
            index.transition(volume, block, count, location, want, to, |old| {
                changed.push(old);
                displaced(old);
            });
        });
        for old in changed {
            match to {
                Some(state) => self.count_in(volume, &Mapping { state, ..old }),
                // The origin may lose it again, as a flush that fails: then nobody has it.
                None if old.state == State::Provisional => {
                    self.ram.borrow_mut().void(volume, old.block, old.count.into());
                }
                None => self.ram.borrow_mut().note_backed(volume, old.block, old.count, false),
            }
        }
        self.settle(&emptied);
    }

    /// The origin durably holds what lies at `location` and was in `state`. In replay it may still
    /// look as it did before it was destaged.
    fn map_clean(&self, entry: &Entry, location: Location, state: State) {
        let Entry { volume, block, count, drop, .. } = *entry;
        let want = |now: State| match state {
            State::Written => matches!(now, State::Dirty | State::Written),
            State::ZeroWritten => matches!(now, State::Zero | State::ZeroWritten),
            _ => now == state,
        };
        if drop {
            self.map_transition(volume, block, count, location, want, None);
            return self.note_drop(volume, block);
        }
        // A partial block never becomes clean (INV-27); nobody who writes the log says so of one.
        let mut partials = Vec::new();
        self.shard(volume, block).index.borrow().lookup(volume, block, count, |m| {
            if m.sectors != SECTORS_ALL {
                partials.push(m.block);
            }
        });
        let mut at = block;
        for until in partials.into_iter().chain([block + u64::from(count)]) {
            if until > at {
                let location = Location(location.0 + (at - block));
                let clean = Some(State::Clean);
                self.map_transition(volume, at, (until - at) as u32, location, want, clean);
            }
            at = until + 1;
        }
    }

    fn map_relocate(&self, entry: &Entry, from: Location, to: Mapping) {
        let volume = entry.volume;
        let mut moved = Vec::new();
        let since = self.since_before_move(volume, entry.block, entry.count);
        let emptied = self.change(volume, entry.block, |index, displaced| {
            let (block, count) = (entry.block, entry.count);
            index.relocate(volume, block, count, from, to.location, to.distance, |old| {
                moved.push(old);
                displaced(old);
            });
        });
        let location_of = |old: &Mapping| Location(to.location.0 + (old.block - entry.block));
        // All of them before the next change: that may give up what is clean among them.
        for old in &moved {
            self.count_in(volume, &Mapping { location: location_of(old), ..*old });
        }
        for old in moved {
            let location = location_of(&old);
            // Destaged while it was being moved: the clean fact will name the old place, so at the
            // new one it is dirty and is destaged again.
            let written = |state| state == State::Written;
            let dirty = Some(State::Dirty);
            self.map_transition(volume, old.block, old.count, location, written, dirty);
        }
        self.note_moved(volume, entry.block, entry.count, since);
        self.settle(&emptied);
    }

    /// Remembers that mappings of a stripe vanished without a durable fact.
    pub(crate) fn note_drop(&self, volume: VolumeId, block: u64) {
        let sequence = self.log.take_sequence();
        let stripe = block / STRIPE_BLOCKS;
        self.shard(volume, block).dropped.borrow_mut().insert((volume, stripe), sequence);
    }

    /// Runs one change of a shard, counting what it displaces; returns the closed sets whose live
    /// count reached zero.
    fn change(
        &self,
        volume: VolumeId,
        block: u64,
        action: impl FnOnce(&mut Shard, &mut dyn FnMut(Mapping)),
    ) -> Vec<SegmentId> {
        self.keep_index_bound(volume, block);
        let mut index = self.shard(volume, block).index.borrow_mut();
        let before = (index.memory_bytes() as u64, index.partial_count() as u64);
        let mut sets = self.sets.borrow_mut();
        let mut owed = self.owed.borrow_mut();
        let mut written = self.written.borrow_mut();
        let (mut emptied, mut unzeroed) = (Vec::new(), Vec::new());
        action(&mut index, &mut |old| {
            emptied.extend(sets.sub(old.location, old.count, old.state));
            if old.state == State::ZeroWritten {
                unzeroed.push(old.block..old.block + u64::from(old.count));
            }
            if sets.accounting {
                self.space.sub(volume, &old);
            }
            let key = (volume, old.block / STRIPE_BLOCKS);
            if is_written(old.state)
                && sets.accounting
                && let Some(count) = written.get_mut(&volume)
            {
                *count -= u64::from(old.count);
            }
            if old.state == State::Lost && sets.accounting {
                self.lost.sub(volume, old.count);
            }
            if old.state.needs_destage()
                && sets.accounting
                && let Some(left) = owed.get_mut(&key)
            {
                left.blocks -= old.count;
                if left.blocks == 0 {
                    owed.remove(&key);
                }
            }
        });
        self.index_bytes.set(self.index_bytes.get() + index.memory_bytes() as u64 - before.0);
        self.partials.set(self.partials.get() + index.partial_count() as u64 - before.1);
        if !unzeroed.is_empty()
            && let Some(v) = self.volume(volume)
        {
            let mut zeroed = v.origin.zeroed.borrow_mut();
            unzeroed.into_iter().for_each(|blocks| zeroed.cut(blocks));
        }
        #[cfg(feature = "verify")]
        assert!(
            self.is_recovering() || self.index_bytes.get() <= self.index_memory_max.get(),
            "INV-101: the index has {} B",
            self.index_bytes.get()
        );
        emptied
    }

    /// Lets go of those of the sets that still may be now that the new mappings are counted.
    pub(crate) fn settle(&self, emptied: &[SegmentId]) {
        for &id in emptied {
            let mut sets = self.sets.borrow_mut();
            if sets.get(id).is_some_and(Set::may_be_let_go) {
                sets.let_go(id, self.log.take_sequence());
                self.housekeeping.wake_all();
            } else if sets.undrain(id) {
                seen("reusable: read to the end");
                self.housekeeping.wake_all();
            }
        }
    }

    /// Counts a mapping that has come into the index.
    pub(crate) fn count_in(&self, volume: VolumeId, mapping: &Mapping) {
        let mut sets = self.sets.borrow_mut();
        if !sets.accounting {
            return;
        }
        sets.add(mapping.location, mapping.count, mapping.state);
        self.space.add(volume, mapping);
        if mapping.state.needs_destage() {
            let key = (volume, mapping.block / STRIPE_BLOCKS);
            let mut owed = self.owed.borrow_mut();
            owed.entry(key).or_insert_with(|| self.fresh()).blocks += mapping.count;
        }
        if mapping.state == State::Lost {
            self.lost.add(volume, mapping.count);
        }
        if is_written(mapping.state) {
            *self.written.borrow_mut().entry(volume).or_default() += u64::from(mapping.count);
        }
    }

    /// Evicts the clean blocks of a run that still are where it says. What RAM has of them unchecked goes too where it
    /// may be damage.
    pub(crate) fn evict(&self, volume: VolumeId, m: &Mapping) {
        self.void_if_hurt(volume, m);
        self.evict_at(volume, m.block, m.count, m.location);
    }

    /// The same of a range, for what RAM never had from the log.
    pub(crate) fn evict_at(&self, volume: VolumeId, block: u64, count: u32, location: Location) {
        let want = |state| matches!(state, State::Clean | State::Provisional);
        self.map_transition(volume, block, count, location, want, None);
        self.note_drop(volume, block);
        add(&self.counters.evict_blocks, u64::from(count));
    }

    /// Forgets drops that every image of a root's shard is past.
    pub(crate) fn forget_drops(&self, shard: usize, watermark: Sequence) {
        self.shards[shard].dropped.borrow_mut().retain(|_, dropped| *dropped > watermark);
    }
}

fn is_written(state: State) -> bool {
    matches!(state, State::Written | State::ZeroWritten)
}

fn data_mapping(entry: &Entry, place: RecordPlace, state: State) -> Mapping {
    assert!(entry.data != NO_DATA, "entries with data name it");
    let distance = place.header_blocks + u32::from(entry.data);
    Mapping {
        block: entry.block,
        count: entry.count,
        state,
        location: Location(place.header.0 + u64::from(distance)),
        distance: distance as u8,
        sectors: entry.sectors,
    }
}

/// What has no data keeps the place of its entry, by which facts name it. At the end of all places an extent that
/// begins there must end there as well.
fn zero_mapping(entry: &Entry, place: RecordPlace) -> Mapping {
    let last = (1 << LOCATION_BITS) - REGION_BLOCKS;
    Mapping {
        block: entry.block,
        count: entry.count,
        state: State::Zero,
        location: Location(place.header.0.min(last)),
        distance: 0,
        sectors: entry.sectors,
    }
}

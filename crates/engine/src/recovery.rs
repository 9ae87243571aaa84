//! Start: from what was found on the members ([`crate::findings`]) to an index that is right, before the first request.
//!
//! Order (each step may be repeated by a crash at any point of it):
//! 1. the superblocks of this start; flush; slot 1 of the roots where it may not be durable
//! 2. what was `written` is dirty again, what was provisional and not proven is void; what members
//!    that are gone took with them is dropped or lost ([`crate::losses`])
//! 3. what has no header that counts is left durably without one; what is in sets that were open is appended again
//! 4. flush; after a crash or a loss a lap, else the root once more, as that of this start; recovery
//!    record, flush
//!
//! * Nothing is left that relies on what was open at a crash. It was read, but that proves little: a
//!   flush that failed in the last run may have lost it for good, although the device still returns it
//!   and the next flush succeeds.
//! * A start counts from its root on. What one appended that was cut off before is passed over, so
//!   it has changed nothing that another would believe, and its room is free again (INV-35). Only what was let go of may be less.
//! * Behind a start's root, only what that start has appended is replayed. The images have the rest.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use forebay_device::Buf;

use crate::checkpoint::{flusher, root_offset};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::findings::Findings;
use crate::format::{Entry, EntryKind, Root, State, Stream};
use crate::ids::{Incarnation, Location, SegmentId, VolumeId};
use crate::images::Loaded;
use crate::index::Mapping;
use crate::limits::REGION_BLOCKS;
use crate::log::{append_error, new_entry};
use crate::phase::Phase;
use crate::planted::{self, Bug};
use crate::release::releaser;
use crate::scan::OpenAtCrash;
use crate::segment::{Set, SetState};
use crate::text::plural;
use crate::throttle::pacer;
use crate::unreadable::{UNSURE_REST, UNSURE_SPAN_MAX};
use crate::walk::Walk;

/// Segments of each member that facts and images find free before a start's first root.
const FREE_AT_START: usize = 2;

/// What a start found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Whether the last stop was clean.
    pub clean_stop: bool,
    /// Blocks cached after recovery.
    pub blocks: u64,
    /// Of those, blocks that the origin may lack.
    pub owed_blocks: u64,
    /// Sets that had no footer and were read in full.
    pub sets_scanned: u64,
    /// Records replayed.
    pub records_replayed: u64,
    /// Blocks appended again because nothing proves that they are durable.
    pub blocks_reappended: u64,
    /// Bytes read from the members.
    pub bytes_read: u64,
    /// Clean blocks dropped because of members that are gone.
    pub blocks_dropped: u64,
    /// Blocks whose only copies are gone, and which the origin may lack: reading them fails.
    pub blocks_lost: u64,
}

impl Core {
    /// Begins the start on the members, and makes the pool of what was found on them.
    pub(crate) async fn recover(
        self: &Rc<Self>,
        findings: Findings,
        witnessed: bool,
    ) -> Result<RecoveryReport> {
        let Findings { mut report, root, renewed, alike, trust, bare, loaded, open } = findings;
        self.begin_start(witnessed).await?;
        // The root may be in a volatile cache only; what it frees must not be reused before it is
        // durable.
        self.flush_all("what the last run left").await?;
        self.renew_roots(&renewed).await?;
        let withheld = self.withhold(&root, &loaded);
        self.settle_states();
        self.settle_losses(trust, &mut report);
        self.roots.note_swept(self.log.epoch.get());
        self.roots.note_durable(root.epoch);
        self.start_accounting();
        self.let_go_again(&root, &loaded, &open);
        self.release_obsolete(&root, &loaded.needed, &open);
        let settled = report.clean_stop && open.is_empty() && loaded.is_sound();
        if settled {
            self.begin_life(&root).await?;
        } else if loaded.failed || !alike {
            self.repeat_root(Root { clean_stop: false, ..root }).await?;
        }
        if !settled {
            self.leave_without_headers(bare).await?;
        }
        self.start_log();
        let lacking = self.restore_open(&open, &mut report).await?;
        // Before, a lap's images would name what may be lost.
        self.spawn(flusher(Rc::clone(self)));
        self.spawn(releaser(Rc::clone(self)));
        self.begin_housekeeping();
        self.spawn(pacer(Rc::clone(self)));
        if lacking {
            self.make_room(&open, &mut report).await?;
        }
        self.flush_all("recovered data").await?;
        open.iter().for_each(|set| self.note_restored(set.id));
        if !settled {
            self.lap(false).await?;
            self.give_back(withheld);
        }
        self.note_recovered().await?;
        self.sets.borrow_mut().keep_free(None);
        self.trim_recovered_index();
        self.life.transition(Phase::Serving);
        report.blocks = self.shards.iter().map(|s| s.index.borrow().block_count()).sum();
        report.owed_blocks = self.owed_blocks();
        Ok(report)
    }

    /// Makes sure that slot 1 of every member is whole and durable, so that slot 0 may be written: it
    /// is written only behind a good flush of slot 0. So where it is damaged, or the same as slot 0, or where another member has
    /// there what this one has in slot 0, a flush that failed may have lost it, but not slot 0. Where it differs else,
    /// slot 0 is what may be lost, and nothing relies on that one yet.
    async fn renew_roots(&self, renewed: &[(usize, Root)]) -> Result<()> {
        let at = root_offset(self.superblock.borrow().root_bytes, 1);
        for (index, root) in renewed {
            let data = Buf::copy_of(&root.encode()).freeze();
            if let Err(error) = self.members[*index].device.write(at, data).done().await {
                self.fail_member(*index, "writing a root to", error);
            }
        }
        self.flush_all("a root").await
    }

    /// Puts the chosen root into all slots, under another generation: what it frees is reused from now
    /// on, so nobody may fall back to the older one that some slots hold.
    async fn repeat_root(&self, root: Root) -> Result<()> {
        let generation = self.roots.next_generation();
        // A member that fails during a start latches the pool, so no loss comes between.
        self.store_root(&Root { generation, ..root }, self.losses.last()).await.map(drop)
    }

    /// Makes the root that a clean stop has left that of this start.
    async fn begin_life(&self, root: &Root) -> Result<()> {
        let start_number = self.log.start_number;
        let root = Root { start_number, clean_stop: false, own_roots: true, ..root.clone() };
        self.repeat_root(root).await
    }

    /// What nothing proves is taken for the worst: destaged is dirty again, provisional is void.
    fn settle_states(&self) {
        for shard in &self.shards {
            let found = mappings(&shard.index.borrow());
            for (volume, m) in found {
                let to = match m.state {
                    State::Written => Some(State::Dirty),
                    State::ZeroWritten => Some(State::Zero),
                    State::Provisional if planted::is(Bug::ProvisionalTakenForClean) => {
                        Some(State::Clean)
                    }
                    State::Provisional => None,
                    _ => continue,
                };
                planted::seen(match m.state {
                    State::Provisional => "start: provisional voided",
                    _ => "start: written is dirty again",
                });
                self.map_transition(volume, m.block, m.count, m.location, |s| s == m.state, to);
            }
        }
    }

    /// Counts what is there. What would make more live data in a set than it has blocks is dropped: the same blocks are
    /// said to be several, which no writer says. What origins may lack is lost then, for nobody knows whose data it is.
    fn start_accounting(&self) {
        let count = |of: bool| self.sets.borrow_mut().accounting = of;
        let mut overlapping = Vec::new();
        count(true);
        for shard in &self.shards {
            let found = mappings(&shard.index.borrow());
            for (volume, m) in found {
                match self.has_blocks_for(&m) {
                    true => self.count_in(volume, &m),
                    false => overlapping.push((volume, m)),
                }
            }
        }
        // It was not counted.
        count(false);
        for (volume, m) in &overlapping {
            planted::seen("start: more data in a set than it has blocks");
            self.map_remove(*volume, m.block, m.count);
        }
        count(true);
        for (volume, m) in overlapping.into_iter().filter(|(_, m)| m.state.is_owed()) {
            self.lose(volume, m);
        }
    }

    /// Whether so much more can be live in the set that a mapping leads to.
    fn has_blocks_for(&self, m: &Mapping) -> bool {
        let sets = self.sets.borrow();
        let (set, _) = sets.split(m.location);
        let live = sets.get(set).map_or(0, |set| set.live_blocks);
        !m.state.has_data() || live + m.count <= self.segment_blocks
    }

    /// Appends again what is in the sets that were open: a flush of the last run may have failed and
    /// lost any of it, or a copy may never have been written. Owed data first, for which the running
    /// pool has left room; clean data is dropped where there is none. Returns whether room was lacking
    /// for owed data.
    async fn restore_open(
        self: &Rc<Self>,
        open: &[OpenAtCrash],
        report: &mut RecoveryReport,
    ) -> Result<bool> {
        // One that has no other copy is whole here, so nothing but a failed flush can take it.
        let believed = |set: &&OpenAtCrash| {
            let alone = self.sets.borrow().get(set.id).is_some_and(|set| set.segments.len() == 1);
            alone && planted::is(Bug::OpenSetsBelieved)
        };
        self.life.transition(Phase::Restoring);
        let mut lacking = false;
        for owed in [true, false] {
            self.make_ready(open).await?;
            for set in open.iter().filter(|set| !believed(set)) {
                lacking |= self.restore_set(set, owed, report).await?;
            }
        }
        self.life.transition(Phase::Recovering);
        Ok(lacking)
    }

    /// Makes as many segments of each member free as what is left in open sets can take when it is appended again, and facts
    /// and images besides, of those that no root is needed for.
    async fn make_ready(&self, open: &[OpenAtCrash]) -> Result<()> {
        let sets = open.iter().filter(|set| !self.live_in(set).is_empty()).count();
        self.sets.borrow_mut().keep_free(Some(sets + FREE_AT_START));
        while self.next_reusable().is_some() {
            // A member that fails during a start latches the pool, so none has to wait.
            self.release_needed().await?;
        }
        self.sets.borrow_mut().keep_free(Some(FREE_AT_START));
        Ok(())
    }

    /// Tries it again behind a root that frees what has been appended again. Its images name what may
    /// be lost; but a start that waited for room could wait for ever.
    async fn make_room(
        self: &Rc<Self>,
        open: &[OpenAtCrash],
        report: &mut RecoveryReport,
    ) -> Result<()> {
        for set in open.iter().filter(|set| self.live_in(set).is_empty()) {
            self.note_restored(set.id);
        }
        self.lap(false).await?;
        if self.restore_open(open, report).await? {
            let left: u32 = open
                .iter()
                .flat_map(|set| self.live_in(set))
                .filter(|(_, m)| m.state.is_owed())
                .map(|(_, m)| m.count)
                .sum();
            let what = format!(
                "there is no room to append {} again that the origins lack: if a flush of the last run failed, a \
                 power cut may take what is in them until it is destaged; until the next start all reads are verified",
                plural(left as usize, "block")
            );
            // A record counts if one copy of it is whole.
            self.cramped.set(true);
            self.verify_from_now_on(true);
            self.event(EventKind::StartCramped, what);
        }
        Ok(())
    }

    /// Appends a set's owed data again, or its clean data. Returns whether room was lacking for owed data.
    async fn restore_set(
        &self,
        set: &OpenAtCrash,
        owed: bool,
        report: &mut RecoveryReport,
    ) -> Result<bool> {
        let mut unsure_since = None;
        loop {
            let (lacking, damaged) = self.restore_runs(set, owed, report).await?;
            let (mut failure, mut settled) = (None, false);
            for (volume, m, error) in damaged {
                failure = Some(error);
                let (_, first) = self.sets.borrow().split(m.location);
                for part in set.bad_parts(&m, first) {
                    match self.give_up_damaged(volume, &part).await {
                        Ok(is_over) => settled |= is_over,
                        Err(error) => failure = Some(error),
                    }
                }
            }
            let Some(error) = failure else { return Ok(lacking) };
            self.check_latch()?;
            if settled {
                unsure_since = None;
            } else {
                // A device that returns it now, or as little as before.
                let now = self.rt.now();
                if now - *unsure_since.get_or_insert(now) >= UNSURE_SPAN_MAX {
                    return Err(error);
                }
                self.rt.sleep(UNSURE_REST).await.result.ok();
            }
            // What is good beside it is still there.
        }
    }

    /// The same, and the runs of owed data that could not be read.
    async fn restore_runs(
        &self,
        set: &OpenAtCrash,
        owed: bool,
        report: &mut RecoveryReport,
    ) -> Result<(bool, Vec<(VolumeId, Mapping, Error)>)> {
        let Some(stream) = self.sets.borrow().get(set.id).map(|set| set.stream) else {
            return Ok((false, Vec::new()));
        };
        let stream = if owed { Stream::Dirty } else { stream };
        let (mut ready, mut moves, mut lacking) = (Vec::new(), VecDeque::new(), false);
        let mut damaged = Vec::new();
        let mut runs = self.live_in(set);
        runs.retain(|(_, m)| m.state.is_owed() == owed);
        let mut walk = Walk::new(runs);
        while let Some(record) = walk.next(self).await {
            for ((volume, m), data) in record {
                match data {
                    Ok(data) => ready.push((volume, m, data)),
                    Err(error) if owed => damaged.push((volume, m, error)),
                    Err(_) => self.drop_unreadable(volume, &m),
                }
            }
        }
        if planted::is(Bug::StartWithoutRoom) {
            lacking = owed && !ready.is_empty();
            ready.clear();
        }
        self.append_moves(stream, &mut ready, &mut moves);
        for (volume, m, append) in moves {
            match append.done().await {
                Ok(()) => report.blocks_reappended += u64::from(m.count),
                Err(error) if self.latched.get() => {
                    return Err(append_error("appending again", error));
                }
                Err(_) if owed => lacking = true,
                Err(_) => self.evict(volume, &m),
            }
        }
        Ok((lacking, damaged))
    }

    /// What the index holds of the records of a set.
    fn live_in(&self, set: &OpenAtCrash) -> Vec<(VolumeId, Mapping)> {
        let mut live = Vec::new();
        for record in &set.records {
            let first = self.sets.borrow().location(set.id, record.offset_blocks);
            let length = u64::from(record.end_blocks() - record.offset_blocks);
            let places = first..Location(first.0 + length);
            for entry in record.entries.iter().filter(|entry| entry.has_data()) {
                let shard = self.shard(entry.volume, entry.block);
                shard.index.borrow().lookup(entry.volume, entry.block, entry.count, |m| {
                    if m.state.has_data() && places.contains(&m.location) {
                        live.push((entry.volume, m));
                    }
                });
            }
        }
        live
    }

    /// Nothing is appended any more to a set that was open at the crash. A root may have made it free by now, and this start
    /// opened it again.
    fn note_restored(&self, id: SegmentId) {
        let start = self.log.start_number;
        let is_of_crash =
            |set: &Set| set.state == SetState::Closing && set.incarnation.start < start;
        if self.sets.borrow().get(id).is_some_and(is_of_crash) {
            self.note_closed(id);
        }
    }

    /// Appends the recovery record, durably.
    async fn note_recovered(&self) -> Result<()> {
        let entry = Entry {
            extra: self.log.start_number,
            ..new_entry(EntryKind::Recovery, VolumeId(0), 0, 0)
        };
        let append = self.log.append(Stream::Facts, entry, None);
        append.done().await.map_err(|error| append_error("writing the recovery record", error))?;
        self.flush_all("the recovery record").await
    }

    /// Frees what neither the root nor the index needs: what had been freed before the crash, too.
    /// A set that the root's images point into, although replay has superseded it, waits for the
    /// next root.
    fn release_obsolete(&self, root: &Root, needed: &BTreeSet<SegmentId>, open: &[OpenAtCrash]) {
        let lowest = root.lowest_watermark();
        let mut sets = self.sets.borrow_mut();
        let ids: Vec<SegmentId> = sets.iter().map(|set| set.id).collect();
        for id in ids {
            let Some(set) = sets.get(id) else { continue };
            let (data, last) = (set.holds_data(), set.last_sequence);
            if !set.is_empty() || open.iter().any(|set| set.id == id) {
                continue;
            }
            if !needed.contains(&id) && last <= lowest {
                sets.transition(id, SetState::LetGo(last));
                sets.transition(id, SetState::Discarding);
                sets.release(id);
            } else if data {
                sets.let_go(id, self.log.take_sequence());
            }
        }
    }
}

impl Core {
    /// Lets go again of what images call so, if the root makes its room free as it stands: images say of nothing in it that
    /// an origin may lack it, and are past all that was appended to it.
    fn let_go_again(&self, root: &Root, loaded: &Loaded, open: &[OpenAtCrash]) {
        let lowest = root.lowest_watermark();
        let mut sets = self.sets.borrow_mut();
        let mut found: Vec<(Incarnation, SegmentId)> = Vec::new();
        for id in loaded.reusable().filter(|&id| open.iter().all(|set| set.id != id)) {
            if sets.get(id).is_some_and(|set| set.last_sequence <= lowest) {
                sets.pass(id);
            }
            let set = sets.get(id).filter(|set| set.passed && set.may_be_let_go());
            found.extend(set.map(|set| (set.incarnation, id)));
        }
        // What was filled first is needed first.
        found.sort_unstable();
        for (_, id) in found {
            planted::seen("start: let go of again");
            let last = sets.get(id).map_or(lowest, |set| set.last_sequence);
            sets.let_go(id, last);
            if let Some(set) = sets.get_mut(id) {
                set.named = true;
            }
            sets.transition(id, SetState::Reusable);
        }
    }
}

/// All mappings of a shard.
pub(crate) fn mappings(index: &crate::index::Shard) -> Vec<(VolumeId, Mapping)> {
    let mut regions = Vec::new();
    index.for_each_region(|volume, region, _, _, _| regions.push((volume, region)));
    let mut out = Vec::new();
    for (volume, region) in regions {
        let first = u64::from(region) * REGION_BLOCKS;
        index.lookup(volume, first, REGION_BLOCKS as u32, |m| out.push((volume, m)));
    }
    out
}

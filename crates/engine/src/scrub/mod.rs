//! The scrub: reads every copy of what closed sets hold, at a set rate, and heals what is damaged while
//! another copy, or the origin, still has it.
//!
//! * A lap goes through the sets in the order of their numbers, record by record; what is live is looked
//!   up anew for each record. Its place is durable (a lap through a large pool takes weeks, and would
//!   never come to its end if each start began another one), what it has found is not.
//! * Clean data with a good copy is moved, without one it is dropped: the origin has it. Dirty data with
//!   a good copy is moved. A move is an append like any other (INV-15, INV-28), so it changes nothing if
//!   the block was overwritten, trimmed, destaged or moved meanwhile (INV-70). What is dirty and good in
//!   no copy is counted and told, and nothing takes its place.
//! * What was copied again counts as healed only behind a root (INV-71): in a replay a move of dirty
//!   data needs the record that it copied, and that is what is damaged.
//! * Facts and images that are damaged are healed by a lap of the checkpoint: behind its root nobody
//!   needs them. Footers are not looked at: they only spare a start the reading of a set. What else a start depends
//!   on is written anew ([`metadata`]).
//! * What nobody can tell is left as it is, and counted: a lap says that all copies were read only if they were
//!   (INV-96).
//! * It yields: a part of its rate is left while clients read the same members ([`SCRUB_BUSY_PART`]); it
//!   pauses while members are left behind or dirty data gets other copies, and heals nothing while room
//!   is short.

mod heal;
mod inspect;
mod metadata;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::slice::from_ref;

use forebay_device::runtime::SECOND;
use forebay_device::{LocalBoxFuture, Nanos};

pub(crate) use self::heal::healer;
pub(crate) use self::inspect::Inspection;
use crate::core::Core;
use crate::counters::add;
use crate::creation::invalid;
use crate::error::Result;
use crate::event::EventKind;
use crate::format::State;
use crate::ids::{BLOCK_BYTES, Incarnation, Location, SegmentId, VolumeId};
use crate::index::Mapping;
use crate::limits::{
    HEALED_PROVEN_SPAN, HURT_SETS_RATE, SCRUB_BUSY_PART, SCRUB_LAP_SECONDS, SCRUB_RATE_MAX,
    SCRUB_RATE_MIN, SCRUB_STORE_INTERVAL,
};
use crate::planted;
use crate::pool::Pool;
use crate::segment::{Set, SetState};
use crate::text::plural;
use crate::walk::Run;
use crate::work::Job;

/// How often it is looked whether there is something to do, or whether it may go on.
const LOOK_INTERVAL: Nanos = SECOND;

/// What a lap has found, in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubFound {
    /// Live blocks that are damaged in some copy.
    pub damaged: u64,
    /// Of those, clean ones that were dropped: the origin has them.
    pub dropped: u64,
    /// Of those, blocks that were copied again from a good copy.
    pub copied: u64,
    /// Of those, dirty ones that are good in no copy.
    pub unhealed: u64,
    /// Records of facts and images that were damaged in some copy, and are needed no more; and superblocks, roots
    /// and headers of segments that were written anew.
    pub replaced: u64,
    /// Superblocks, roots and headers of segments that are left as they are, on cache devices that return nothing.
    pub unmended: u64,
    /// Live blocks that some cache device has not returned, without saying that it cannot: it returns nothing at all, or
    /// its error says nothing about the medium.
    pub unread: u64,
}

/// How the scrub of a pool is.
#[derive(Clone, Debug, Default)]
pub struct ScrubStatus {
    /// Bytes a second that it may read; 0: off.
    pub rate_bytes_per_s: u64,
    /// Whether a lap is under way.
    pub running: bool,
    /// Why it waits, if it does.
    pub waits_for: &'static str,
    /// When the lap under way or the last one began, in seconds since 1970; 0: never.
    pub begun_unix_s: u64,
    /// Bytes that the lap under way has read since the pool was opened.
    pub read_bytes: u64,
    /// Bytes that it still has to read, as far as that is known.
    pub left_bytes: u64,
    /// What the lap under way has found since the pool was opened, or else the last one.
    pub found: ScrubFound,
}

/// What is noted of a record that somebody could not read in some copy.
struct Note {
    /// Whether it was met since somebody has begun to look.
    is_new: bool,
    /// The copies in which that was counted as damage, as bits.
    counted: u8,
}

/// What is noted of a set in which there is more than was noted record by record.
struct SetNote {
    incarnation: Incarnation,
    /// As a record's.
    is_new: bool,
}

/// A lap that is under way.
#[derive(Clone, Copy)]
struct Lap {
    /// Tells laps of one start apart.
    number: u64,
    /// The set at which it goes on.
    next: u32,
    read_bytes: u64,
}

/// What the scrub knows.
#[derive(Default)]
pub(crate) struct Scrub {
    lap: Cell<Option<Lap>>,
    laps: Cell<u64>,
    begun_unix_s: Cell<u64>,
    found: RefCell<ScrubFound>,
    /// Since when there are moves of dirty data that no root's images know.
    healed_since: Cell<Option<Nanos>>,
    /// Records that somebody could not read in some copy, by where their headers are.
    hurt: RefCell<BTreeMap<Location, Note>>,
    /// Sets with more of them than there was room for.
    hurt_sets: RefCell<BTreeMap<SegmentId, SetNote>>,
    /// Runs of blocks that were lost, by volume, and that nobody was told of yet; and when somebody was told last.
    pub(crate) untold: RefCell<BTreeMap<VolumeId, BTreeMap<u64, u32>>>,
    pub(crate) told: Cell<Option<Nanos>>,
    /// When its place was stored, and whether it has to be as soon as possible.
    stored: Cell<Nanos>,
    is_new: Cell<bool>,
}

impl Scrub {
    /// Goes on where the superblock says that the last start was.
    pub(crate) fn resume(next: u32, begun_unix_s: u64) -> Scrub {
        let scrub = Scrub::default();
        scrub.begun_unix_s.set(begun_unix_s);
        let lap = next.checked_sub(1).map(|next| Lap { number: 0, next, read_bytes: 0 });
        scrub.lap.set(lap);
        scrub
    }

    /// Where it is and when the lap began, as the superblock has it: behind the place 0 is none.
    pub(crate) fn place(&self) -> (u32, u64) {
        let next = self.lap.get().map_or(0, |lap| lap.next + 1);
        (next, self.begun_unix_s.get())
    }

    fn begin(&self, unix_s: u64) {
        self.laps.set(self.laps.get() + 1);
        self.lap.set(Some(Lap { number: self.laps.get(), next: 0, read_bytes: 0 }));
        self.begun_unix_s.set(unix_s);
        self.found.take();
        self.is_new.set(true);
    }

    fn end(&self) {
        self.lap.set(None);
        self.is_new.set(true);
    }

    /// Changes the lap, if it is still the same.
    fn change(&self, number: u64, change: impl FnOnce(&mut Lap)) {
        if let Some(mut lap) = self.lap.get().filter(|lap| lap.number == number) {
            change(&mut lap);
            self.lap.set(Some(lap));
        }
    }
}

/// What is to be looked at of one record.
struct Item {
    header: Location,
    /// Blocks of its header, at the most.
    head: u32,
    content: Content,
}

enum Content {
    /// Runs that were live when the set was looked at.
    Runs(Vec<Run>),
    /// Data blocks of an image; a record of facts has none.
    Blocks(Range<u32>),
}

/// What came of a look at a record.
#[derive(Default)]
struct Looked {
    bytes: u64,
    /// Blocks of which nobody can tell whether they are lost.
    unread: u64,
}

/// The copies of a record when it was looked at.
struct CopiesSeen {
    members: Vec<usize>,
    /// Those in which damage was counted when a reader met it, as bits.
    counted: u8,
}

impl CopiesSeen {
    /// How many blocks each member has returned damaged, or not at all, but for what was counted before; of each
    /// block, and of the header, the bad copies are given as bits.
    fn damages(&self, bad: &[u8], bad_headers: u8) -> Vec<(usize, u64)> {
        let damage = |(copy, member): (usize, &usize)| {
            let blocks = bad.iter().filter(|bad| **bad >> copy & 1 == 1).count() as u64;
            let blocks = blocks.max(u64::from(bad_headers >> copy & 1));
            (*member, blocks.saturating_sub(u64::from(self.counted >> copy & 1)))
        };
        self.members.iter().enumerate().map(damage).collect()
    }
}

/// A set that somebody is at.
#[derive(Clone, Copy)]
struct At {
    /// None: whoever heals what readers have met.
    lap: Option<u64>,
    set: SegmentId,
    incarnation: Incarnation,
}

/// Whether a lap is due by the calendar, of a pool in which one was `begun` last, or never. A clock that
/// was ahead once must not put it off for years.
fn is_due(begun: u64, created: u64, now: u64) -> bool {
    let last = if begun > 0 { begun } else { created };
    now < last || now - last >= SCRUB_LAP_SECONDS
}

impl Core {
    fn is_scrub_due(&self) -> bool {
        let superblock = self.superblock.borrow();
        let (begun, now) = (self.scrub.begun_unix_s.get(), self.rt.unix_seconds());
        superblock.scrub_rate_bytes_per_s > 0 && is_due(begun, superblock.created_unix_s, now)
    }

    /// Why a lap waits, if it does.
    fn scrub_waits_for(&self) -> &'static str {
        if self.superblock.borrow().scrub_rate_bytes_per_s == 0 {
            return "a rate";
        }
        self.healing_waits_for()
    }

    /// Why nothing is healed at present, if that is so.
    fn healing_waits_for(&self) -> &'static str {
        if self.has_to_go_on() {
            return "a cache device to be left behind";
        }
        if self.work.is_at(Job::Rebuild) || self.work.is_at(Job::Raise) {
            return "dirty data to get its copies";
        }
        ""
    }

    fn may_scrub(&self, at: At) -> bool {
        let Some(lap) = at.lap else {
            return !self.is_ending() && self.healing_waits_for().is_empty();
        };
        !self.is_ending()
            && self.scrub_waits_for().is_empty()
            && self.scrub.lap.get().is_some_and(|now| now.number == lap)
    }

    /// Whether a set is closed and still in the same life.
    fn is_at(&self, at: At) -> bool {
        let sets = self.sets.borrow();
        sets.get(at.set)
            .is_some_and(|set| set.incarnation == at.incarnation && set.state == SetState::Closed)
    }

    /// Makes durable where the scrub is, if that is due.
    async fn store_scrub(&self, in_any_case: bool) {
        let now = self.rt.now();
        let running = self.scrub.lap.get().is_some();
        let old = running && now - self.scrub.stored.get() >= SCRUB_STORE_INTERVAL;
        if !(self.scrub.is_new.get() || old || (running && in_any_case)) || self.latched.get() {
            return;
        }
        let _control = self.control.lock().await;
        self.scrub.is_new.set(false);
        self.scrub.stored.set(now);
        // Each superblock says it; an error has latched the pool and is an event.
        self.write_superblocks(|_| ()).await.ok();
    }

    /// Writes images that know what was copied again or dropped, if that is due.
    async fn prove_healed(self: &Rc<Self>, in_any_case: bool) {
        let Some(since) = self.scrub.healed_since.get() else { return };
        if in_any_case || self.rt.now() - since >= HEALED_PROVEN_SPAN {
            self.scrub.healed_since.set(None);
            // Its error has latched the pool and is an event.
            self.lap(false).await.ok();
        }
    }

    /// The set that a lap goes on with.
    fn next_to_scrub(&self, lap: Lap) -> Option<At> {
        let sets = self.sets.borrow();
        let worth = |set: &&Set| {
            let held = set.live_blocks > 0 || !set.holds_data();
            set.state == SetState::Closed && held && !set.has_no_copy()
        };
        let set = sets.iter_from(SegmentId(lap.next)).find(worth)?;
        Some(At { lap: Some(lap.number), set: set.id, incarnation: set.incarnation })
    }

    /// Goes through one set; false if something came between, so that it has to be done again.
    async fn scrub_set(self: &Rc<Self>, at: At) -> bool {
        let (mut damaged, mut unread) = (0, 0);
        let Some(unmended) = self.mend_headers(at).await else { return false };
        let Some(items) = self.items_of(at.set).await else {
            // What it holds cannot be told. Behind a root nobody needs it.
            return self.is_at(at) && self.replace_records(1).await;
        };
        for item in items {
            if !self.is_at(at) {
                break;
            }
            if !self.may_scrub(at) {
                return false;
            }
            let pinned = self.pin_set(at.set);
            let looked = match &item.content {
                Content::Runs(runs) => {
                    let looked = self.scrub_runs(&item, runs, at).await;
                    self.unpin(pinned);
                    looked
                }
                Content::Blocks(blocks) => {
                    let looked = self.scrub_record(&item, blocks, at, &mut damaged).await;
                    // Without live data it is not emptied by being let go; a root frees it.
                    let _ = self.sets.borrow_mut().unpin(pinned);
                    looked
                }
            };
            let Some(looked) = looked else { return false };
            unread += looked.unread;
            add(&self.counters.scrub_bytes, looked.bytes);
            if let Some(lap) = at.lap {
                self.scrub.change(lap, |lap| lap.read_bytes += looked.bytes);
            }
            self.pace_scrub(at, looked.bytes).await;
        }
        if at.lap.is_some() {
            self.scrub.found.borrow_mut().unread += unread;
            self.note_unmended(unmended);
        }
        // Its error has latched the pool and is an event.
        (damaged == 0 || self.replace_records(damaged).await) && (at.lap.is_some() || unread == 0)
    }

    /// Looks at a record of facts, or of an image; nothing if it has to be done again.
    async fn scrub_record(
        &self,
        item: &Item,
        blocks: &Range<u32>,
        at: At,
        damaged: &mut u64,
    ) -> Option<Looked> {
        let found = self.inspect(item.header, item.head, from_ref(blocks)).await?;
        let bad = found.bad.iter().filter(|bad| **bad != 0).count() as u64;
        if (found.bad_headers == 0 && bad == 0) || !self.is_at(at) {
            return Some(Looked { bytes: found.bytes, unread: 0 });
        }
        let copies = self.copies_seen(at.set, item.header);
        if self.is_any_silent(at.set, &found).await {
            return Some(Looked { bytes: found.bytes, unread: bad.max(1) });
        }
        *damaged += 1;
        if !found.is_unsure {
            self.note_damages(copies.damages(&found.bad, found.bad_headers));
        }
        Some(Looked { bytes: found.bytes, unread: 0 })
    }

    /// Makes so many records of facts and images needless; false if that could not be.
    async fn replace_records(self: &Rc<Self>, damaged: u64) -> bool {
        let is_replaced = self.lap(false).await.is_ok();
        if is_replaced {
            planted::seen("scrub: facts or images replaced");
            self.note_replaced(damaged);
        }
        is_replaced
    }

    fn note_replaced(&self, count: u64) {
        add(&self.counters.scrub_replaced_records, count);
        self.scrub.found.borrow_mut().replaced += count;
    }

    fn note_unmended(&self, count: u64) {
        self.scrub.found.borrow_mut().unmended += count;
    }

    /// What there is to look at in a set; nothing if no copy tells what it holds.
    async fn items_of(&self, id: SegmentId) -> Option<Vec<Item>> {
        if self.sets.borrow().get(id).is_some_and(Set::holds_data) {
            let mut runs = self.runs_of(id).await;
            runs.sort_by_key(|(_, m)| m.location);
            let header = |(_, m): &Run| Location(m.location.0 - u64::from(m.distance));
            let records = runs.chunk_by(|a, b| header(a) == header(b));
            let items = records.map(|runs| Item {
                header: header(&runs[0]),
                head: u32::from(runs[0].1.distance),
                content: Content::Runs(runs.to_vec()),
            });
            return Some(items.collect());
        }
        let records = self.read_footer(id).await?;
        let items = records
            .iter()
            .map(|record| {
                let head = u32::from(record.header_blocks);
                Item {
                    header: self.sets.borrow().location(id, record.offset_blocks),
                    head,
                    content: Content::Blocks(head..head + u32::from(record.data_blocks)),
                }
            })
            .collect();
        Some(items)
    }

    /// What of some runs is still where it was.
    fn still_live(&self, runs: &[Run]) -> Vec<Run> {
        let mut live = Vec::new();
        for (volume, run) in runs {
            let index = self.shard(*volume, run.block).index.borrow();
            index.lookup(*volume, run.block, run.count, |m| {
                let place = run.location.0 + (m.block - run.block);
                if m.state.has_data() && m.location.0 == place {
                    live.push((*volume, m));
                }
            });
        }
        live.sort_by_key(|(_, m)| m.location);
        live
    }

    /// Looks at what is live of a record, and heals it; nothing if that has to wait, or to be done again. What
    /// waits for an origin flush cannot be moved, and becomes clean by one.
    async fn scrub_runs(self: &Rc<Self>, item: &Item, runs: &[Run], at: At) -> Option<Looked> {
        let (mut left, mut looked) = (runs.to_vec(), Looked::default());
        for is_last in [false, true] {
            let live = self.still_live(&left);
            let range = |m: &Mapping| u32::from(m.distance)..u32::from(m.distance) + m.count;
            let ranges: Vec<_> = live.iter().map(|(_, m)| range(m)).collect();
            if live.is_empty() {
                break;
            }
            let found = self.inspect(item.header, item.head, &ranges).await?;
            looked.bytes += found.bytes;
            if found.bad.iter().all(|bad| *bad == 0) {
                self.note_answers(at.set);
                break;
            }
            let copies = self.copies_seen(at.set, item.header);
            let gone = found.blocks.iter().filter(|block| block.is_none()).count() as u64;
            if self.is_any_silent(at.set, &found).await {
                // It has not lost just this, and may be back.
                looked.unread = found.bad.iter().filter(|bad| **bad != 0).count() as u64;
                break;
            }
            let Some(waiting) = self.heal(&live, &found).await else {
                // Until then it is read checked.
                self.note_hurt(item.header);
                return None;
            };
            left = waiting;
            looked.unread += found.unsure_count(&live);
            // What has to wait is looked at again, and counts then.
            let places = |m: &Mapping| m.location.0..m.location.0 + u64::from(m.count);
            let waiting: BTreeSet<u64> = left.iter().flat_map(|(_, m)| places(m)).collect();
            if looked.unread == 0 {
                let all = live.iter().flat_map(|(_, m)| places(m)).zip(&found.bad);
                let settled = all.filter(|(place, _)| !waiting.contains(place));
                let header = if waiting.is_empty() { found.bad_headers } else { 0 };
                let bad: Vec<u8> = settled.map(|(_, bad)| *bad).collect();
                self.note_damages(copies.damages(&bad, header));
            }
            if left.is_empty() || is_last {
                // It has changed while it was looked at, or its origin has taken nothing.
                let live = self.still_live(&left);
                looked.unread += live.iter().map(|(_, m)| u64::from(m.count)).sum::<u64>();
                break;
            }
            if self.prove(&left).await {
                continue;
            }
            if gone > 0 {
                // The origin may have it, and nobody else has.
                looked.unread = gone;
                break;
            }
            // What it was given is dirty again, and is moved as such.
            self.let_go_of_silent();
        }
        Some(looked)
    }

    /// Flushes the origins of runs, and waits until the index knows; false if an origin does not answer.
    async fn prove(self: &Rc<Self>, runs: &[Run]) -> bool {
        let volumes: BTreeSet<VolumeId> = runs.iter().map(|(volume, _)| *volume).collect();
        for v in volumes.into_iter().filter_map(|volume| self.volume(volume)) {
            // Its error is an event; what is dirty again is healed as such.
            if !self.flush_unless_silent(&v).await {
                return false;
            }
        }
        let waits = || self.still_live(runs).iter().any(|(_, m)| m.state == State::Written);
        let timer = self.rt.sleep(LOOK_INTERVAL);
        self.log.progress.until_or(|| self.latched.get() || !waits(), timer).await;
        true
    }

    /// The copies of a record, as they are now.
    fn copies_seen(&self, set: SegmentId, header: Location) -> CopiesSeen {
        let (sets, hurt) = (self.sets.borrow(), self.scrub.hurt.borrow());
        let segments = sets.get(set).map_or(&[][..], |set| &set.segments);
        CopiesSeen {
            members: segments.iter().map(|segment| sets.member_of(*segment)).collect(),
            counted: hurt.get(&header).map_or(0, |note| note.counted),
        }
    }

    /// Waits for as long as what was read is to take.
    async fn pace_scrub(&self, at: At, bytes: u64) {
        let rate = match at.lap {
            Some(_) => self.superblock.borrow().scrub_rate_bytes_per_s.max(1),
            None => HURT_SETS_RATE,
        };
        let span = u128::from(bytes) * u128::from(SECOND) / u128::from(rate);
        let span = u64::try_from(span).unwrap_or(u64::MAX);
        for _ in 0..SCRUB_BUSY_PART {
            let timer = self.rt.sleep(span);
            self.housekeeping.until_or(|| !self.may_scrub(at), timer).await;
            let busy = {
                let sets = self.sets.borrow();
                let segments = sets.get(at.set).map_or(&[][..], |set| &set.segments);
                segments.iter().any(|at| !self.members[sets.member_of(*at)].queue.is_zero())
            };
            if !busy {
                return;
            }
        }
    }

    /// Ends a lap that has come to its end.
    fn end_scrub(&self) {
        self.scrub.end();
        add(&self.counters.scrub_laps, 1);
        let ScrubFound { damaged, dropped, copied, unhealed, replaced, unmended, unread } =
            *self.scrub.found.borrow();
        let read = match (unread, unmended) {
            (0, 0) => "all copies were read".to_owned(),
            _ => format!(
                "{} of 4 KiB and {} of metadata could not be read now from some cache device; all other copies were \
                 read",
                plural(unread as usize, "block"),
                plural(unmended as usize, "record")
            ),
        };
        let what = match (damaged, replaced) {
            (0, 0) => format!("{read}, and nothing is damaged"),
            _ => format!(
                "{read}; damaged blocks of 4 KiB: {damaged}, of which {copied} were copied again, {dropped} dropped \
                 because their origin has them, and {unhealed} are dirty and good in no copy; records of metadata \
                 that were replaced: {replaced}"
            ),
        };
        self.event(EventKind::ScrubEnded, what);
    }

    /// How much a lap still has to read, in bytes.
    fn scrub_left(&self, lap: Lap) -> u64 {
        let sets = self.sets.borrow();
        let sets_left = sets.iter_from(SegmentId(lap.next));
        let left = sets_left.filter(|set| set.state == SetState::Closed);
        let blocks: u64 =
            left.map(|set| u64::from(set.live_blocks) * set.segments.len() as u64).sum();
        blocks * BLOCK_BYTES
    }

    fn scrub_status(&self) -> ScrubStatus {
        let lap = self.scrub.lap.get();
        ScrubStatus {
            rate_bytes_per_s: self.superblock.borrow().scrub_rate_bytes_per_s,
            running: lap.is_some(),
            waits_for: if lap.is_some() { self.scrub_waits_for() } else { "" },
            begun_unix_s: self.scrub.begun_unix_s.get(),
            read_bytes: lap.map_or(0, |lap| lap.read_bytes),
            left_bytes: lap.map_or(0, |lap| self.scrub_left(lap)),
            found: *self.scrub.found.borrow(),
        }
    }
}

/// Makes laps when they are due or asked for.
pub(crate) async fn scrubber(core: Rc<Core>) {
    while !core.is_ending() {
        core.store_scrub(false).await;
        core.prove_healed(false).await;
        let lap = match core.scrub.lap.get() {
            None if core.is_scrub_due() => {
                core.scrub.begin(core.rt.unix_seconds());
                continue;
            }
            lap => lap.filter(|_| core.scrub_waits_for().is_empty()),
        };
        let at = lap.and_then(|lap| core.next_to_scrub(lap));
        let done = match (lap, at) {
            (Some(lap), Some(at)) => {
                let done = core.scrub_set(at).await;
                if done {
                    core.scrub.change(lap.number, |now| now.next = at.set.0 + 1);
                }
                done
            }
            (Some(lap), None) => {
                // Their errors have latched the pool and are events.
                let is_dropped = core.drop_all_let_go().await.is_ok();
                core.prove_healed(true).await;
                let is_mended = core.mend_slots().await.is_ok() && is_dropped;
                let is_same = |now: Lap| now.number == lap.number;
                if is_mended && core.scrub.lap.get().is_some_and(is_same) {
                    core.end_scrub();
                }
                true
            }
            (None, _) => false,
        };
        if !done {
            let timer = core.rt.sleep(LOOK_INTERVAL);
            let new = || core.scrub.is_new.get() || core.is_ending();
            core.housekeeping.until_or(new, timer).await;
        }
    }
    core.store_scrub(true).await;
}

impl Pool {
    /// How the scrub is.
    pub fn scrub(&self) -> ScrubStatus {
        self.core.scrub_status()
    }

    /// Whether a scrub may read so many bytes a second.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid).
    pub fn check_scrub_rate(bytes_per_s: u64) -> Result<()> {
        if bytes_per_s == 0 || (SCRUB_RATE_MIN..=SCRUB_RATE_MAX).contains(&bytes_per_s) {
            return Ok(());
        }
        Err(invalid(
            format!("a scrub of {bytes_per_s} B a second"),
            "use 64 KiB to 1 TiB a second; 0 is none",
        ))
    }

    /// Changes how many bytes a second a scrub reads; 0: none is begun, and one under way waits. It is
    /// durable on every member when this returns.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid); [`ErrorKind::Io`](crate::ErrorKind::Io) if the
    /// superblocks cannot be written.
    pub fn set_scrub_rate(&self, bytes_per_s: u64) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            Pool::check_scrub_rate(bytes_per_s)?;
            let _control = self.core.control.lock().await;
            let change = |superblock: &mut crate::format::Superblock| {
                superblock.scrub_rate_bytes_per_s = bytes_per_s
            };
            self.core.write_superblocks(change).await?;
            self.core.housekeeping.wake_all();
            Ok(())
        })
    }

    /// Begins a lap now; false if one is under way.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the pool has no rate for it.
    pub fn start_scrub(&self) -> Result<bool> {
        let core = &self.core;
        if core.superblock.borrow().scrub_rate_bytes_per_s == 0 {
            return Err(invalid("the scrub of this pool has no rate", "set one, as scrub_rate=8M"));
        }
        if core.scrub.lap.get().is_some() {
            return Ok(false);
        }
        core.scrub.begin(core.rt.unix_seconds());
        core.housekeeping.wake_all();
        Ok(true)
    }

    /// Ends the lap under way where it is, until the next one is due; false if there is none.
    pub fn stop_scrub(&self) -> bool {
        let running = self.core.scrub.lap.get().is_some();
        if running {
            self.core.scrub.end();
            self.core.housekeeping.wake_all();
        }
        running
    }

    /// Changes whether each read from a cache device is checked before a client sees it. It is durable
    /// on every member when this returns.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the superblocks cannot be written.
    pub fn set_verify_reads(&self, verify: bool) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let _control = self.core.control.lock().await;
            self.core.write_superblocks(|superblock| superblock.verify_reads = verify).await?;
            self.core.verify_from_now_on(verify);
            Ok(())
        })
    }

    /// Blocks that each member has returned damaged since the pool was opened.
    pub fn damaged_blocks(&self) -> Vec<(crate::ids::DeviceId, u64)> {
        self.core.members.iter().map(|member| (member.id, member.damaged.get())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lap_is_due_a_week_after_the_last_one_whatever_the_clock_was() {
        const WEEK: u64 = SCRUB_LAP_SECONDS;
        let created = 10 * WEEK;
        assert!(!is_due(0, created, created) && is_due(0, created, 11 * WEEK));
        assert!(
            !is_due(12 * WEEK, created, 13 * WEEK - 1) && is_due(12 * WEEK, created, 13 * WEEK)
        );
        // The clock was ahead when the pool was made, then when a lap began: one lap each, no more.
        assert!(is_due(0, created, WEEK) && !is_due(WEEK, created, WEEK + 1));
        assert!(is_due(900 * WEEK, created, 20 * WEEK) && !is_due(20 * WEEK, created, 20 * WEEK));
    }
}

//! The elevator of one origin: which writes are next, and how many are under way.
//!
//! * The pipeline is kept full: when a write ends the next one begins, in address order. Nothing waits
//!   for the slowest of a batch.
//! * A range that is planned or under way is *taken*, and nothing that overlaps it is planned: so no
//!   two origin writes of the elevator overlap, and the newer version of a block that is rewritten
//!   meanwhile waits for its turn (INV-9).
//! * While clients read the origin, the writes go in batches instead, each of which ends before the
//!   next one begins, and which are spread evenly over the disks of an array. A disk prefers what is
//!   near to its heads, so a read far away would wait until there is no near write any more. Of neighbouring stripes
//!   that are written as a whole a batch is one write, and what the next one needs of the cache is read meanwhile.
//! * What is planned and not begun is given back when there is no reason to destage any more: it
//!   pins sets.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use forebay_device::Nanos;
use forebay_device::runtime::{MILLISECOND, SECOND};

use super::age::{Age, LONG_AGO};
use super::{Group, Run};
use crate::bypass::Reason;
use crate::core::{Core, STRIPE_BLOCKS};
use crate::event::EventKind;
use crate::format::{State, Stream};
use crate::ids::{BLOCK_BYTES, SECTORS_ALL};
use crate::index::Mapping;
use crate::limits::{
    DESTAGE_BYTES_BESIDE_WRITERS, DESTAGE_BYTES_MAX, DESTAGE_MEMORY_MAX, DESTAGE_READS_MAX,
    DESTAGE_READS_TOGETHER, ORIGIN_WRITE_BLOCKS_MAX, STRIPES_TOGETHER_INFLIGHT_MAX,
};
use crate::planted::{self, Bug};
use crate::volume::VolumeState;
use crate::wait::TaskMutex;

/// How often the elevator looks whether there is a reason to run.
pub(crate) const LOOK_INTERVAL: u64 = 20 * MILLISECOND;

/// Pause after a failed origin write.
const ERROR_PAUSE: u64 = SECOND;

/// Origin writes that are planned at a time: a look at the index costs less for many, and each pins
/// a set until it is begun.
const PLAN_GROUPS: usize = 64;

/// Up to so many, if a stripe of the origin would be cut otherwise, or stripes that are written together.
const PLAN_GROUPS_MAX: usize = 4096;

/// Writes that may be begun beyond the depth where they lie in the same stripe of the origin's as the
/// last one: an array that has them together reads old data and parity once.
const STRIPE_GROUPS_MAX: usize = 64;

/// Time after which an elevator that has found nothing else looks again.
const SPARING_REST: Nanos = SECOND;

/// What an elevator is at.
#[derive(Default)]
pub(crate) struct Elevator {
    /// Where it goes on, in blocks.
    cursor: Cell<u64>,
    /// Ranges that are planned or under way: first block, the one behind the last, and since when
    /// something of their stripes was dirty.
    taken: RefCell<BTreeMap<u64, (u64, Nanos)>>,
    planned: RefCell<VecDeque<Group>>,
    /// Bytes that writes under way are of, and their memory.
    bytes: Cell<u64>,
    memory_bytes: Cell<u64>,
    /// Those of several stripes among them.
    long: Cell<usize>,
    /// Reads of the cache for those that are not read yet, and whether the next one waits for these.
    reads: Cell<usize>,
    awaits_reads: Cell<bool>,
    /// One of them at a time is with the origin.
    pub(super) turn: TaskMutex,
    /// A write has failed and nothing is begun until a pause is over.
    failed: Cell<bool>,
    /// The origin's stripe that the last write was for.
    stripe: Cell<u64>,
    /// The stripe of 4 MiB that is being gone through from its beginning without a gap, and since when.
    pub(super) sweep: Cell<Option<(u64, Nanos)>>,
    pub age: Age,
    /// Whether something was left where it is since this was looked at last.
    spared: Cell<bool>,
    /// Until when nothing is looked for but for another reason: all that there is was left.
    pub(super) rests_until: Cell<Nanos>,
}

impl Elevator {
    /// Since when something of a range was dirty that is planned or under way.
    pub(crate) fn since_taken(&self, block: u64, count: u32) -> Option<Nanos> {
        let end = block + u64::from(count);
        let before = self.taken.borrow().range(..end).next_back().map(|(_, &taken)| taken);
        before.filter(|(until, _)| *until > block).map(|(_, since)| since)
    }

    fn is_taken(&self, block: u64, count: u32) -> bool {
        let taken = self.since_taken(block, count).is_some();
        if taken {
            planted::seen("destage left a range that is under way");
        }
        taken && !planted::is(Bug::DestageOverlapping)
    }

    fn take(&self, group: &Group) {
        let Range { start, end } = group.range();
        debug_assert!(
            self.since_taken(start, (end - start) as u32).is_none()
                || planted::is(Bug::DestageOverlapping),
            "blocks {start}..{end} are under way"
        );
        let since = group.runs.iter().map(|run| run.since).min().unwrap_or(LONG_AGO);
        self.taken.borrow_mut().insert(start, (end, since));
    }

    fn give_back(&self, group: &Group) {
        self.taken.borrow_mut().remove(&group.range().start);
    }

    fn next(&self, stripe_blocks: u64) -> Option<Next> {
        let planned = self.planned.borrow();
        let next = planned.front()?;
        let stripe = next.range().start / stripe_blocks;
        Some(Next { stripe, is_long: next.is_long(stripe_blocks), count: next.count() })
    }

    /// Whether nothing is planned or under way.
    pub(super) fn is_empty(&self) -> bool {
        self.taken.borrow().is_empty()
    }
}

/// A write that is read from the cache, by so many reads at a time, until dropped.
pub(super) struct Reads(Rc<VolumeState>, usize);

impl Reads {
    fn begin(v: &Rc<VolumeState>, group: &Group) -> Self {
        let count = group.runs.len().min(DESTAGE_READS_MAX);
        v.elevator.reads.set(v.elevator.reads.get() + count);
        Self(Rc::clone(v), count)
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        let elevator = &self.0.elevator;
        elevator.reads.set(elevator.reads.get() - self.1);
        if elevator.awaits_reads.get() {
            self.0.origin.traffic.moved.wake_all();
        }
    }
}

/// The write that is begun next.
#[derive(Clone, Copy)]
struct Next {
    /// The origin's stripe that it begins in.
    stripe: u64,
    /// Whether it is of several.
    is_long: bool,
    /// Blocks that come from the cache.
    count: u64,
}

/// Whether a run continues a group: neighbours on the origin, of one kind, in one of its stripes.
fn joins(group: &Group, next: &Mapping, stripe_blocks: u64) -> bool {
    let (first, last) = (&group.runs[0].mapping, &group.runs[group.runs.len() - 1].mapping);
    let blocks = next.block + u64::from(next.count) - first.block;
    let whole = stripe_blocks == 0 || first.block / stripe_blocks == next.block / stripe_blocks;
    last.block + u64::from(last.count) == next.block
        && last.state == next.state
        && last.sectors == SECTORS_ALL
        && next.sectors == SECTORS_ALL
        && whole
        && blocks <= u64::from(ORIGIN_WRITE_BLOCKS_MAX).max(stripe_blocks)
}

/// Blocks over which a plan's order spreads writes: a stripe of the array; while readers are spared, as many stripes
/// as it has disks, over which the parity of RAID 5 takes turns; 0 if nothing is known.
fn band(v: &VolumeState) -> u64 {
    let (stripe, chunk) = (v.origin.stripe_blocks, v.origin.chunk_blocks);
    match v.origin.traffic.pace.borrow().spares() {
        true if chunk > 0 => stripe * (stripe / chunk + 1),
        _ => stripe,
    }
}

/// The next writes, in the order of addresses.
#[derive(Default)]
struct Plan {
    groups: Vec<Group>,
    /// Blocks that come from the cache.
    count: u64,
}

impl Plan {
    /// Puts a run to the groups; its set is pinned.
    fn push(&mut self, run: Run, stripe_blocks: u64) {
        self.count += u64::from(run.mapping.count);
        match self.groups.last_mut() {
            Some(group) if joins(group, &run.mapping, stripe_blocks) => group.runs.push(run),
            _ => self.groups.push(Group::new(run)),
        }
    }

    /// Whether it ends before a block: it is long, and neither a stripe or band nor what may be one write is cut there.
    fn is_enough(&self, core: &Core, v: &VolumeState, block: u64) -> bool {
        let (Some(first), Some(last)) = (self.groups.first(), self.groups.last()) else {
            return false;
        };
        if self.groups.len() < PLAN_GROUPS {
            return false;
        }
        let (stripe, band) = (v.origin.stripe_blocks, band(v));
        let (together, passed) = (core.stripes_together(v), block - first.range().start);
        let is_cut = if together > 1 {
            let memory_bytes = (passed + 2 * self.count + 3 * stripe) * BLOCK_BYTES;
            let is_part =
                passed < band.max(together * stripe) && memory_bytes <= DESTAGE_MEMORY_MAX;
            is_part || last.range().start / stripe == block / stripe
        } else {
            band > 0 && last.range().start / band == block / band
        };
        !is_cut || self.groups.len() >= PLAN_GROUPS_MAX
    }
}

impl Core {
    /// Plans the next writes in address order, of what has been dirty `since` then or before; whether
    /// there are any.
    fn plan_writes(&self, v: &VolumeState, since: Nanos) -> bool {
        let elevator = &v.elevator;
        let mut plan = Plan::default();
        if self.plan_urgent(v) {
            return true;
        }
        let cursor = elevator.cursor.get();
        for (from, to) in [(cursor, u64::MAX), (0, cursor)] {
            self.collect_range(v, from..to, since, &mut plan);
            if !plan.groups.is_empty() {
                break;
            }
        }
        let spared = elevator.spared.replace(false);
        let Some(last) = plan.groups.last() else {
            if spared {
                elevator.rests_until.set(self.rt.now() + SPARING_REST);
            }
            self.note_none_due(v);
            return false;
        };
        elevator.cursor.set(last.range().end);
        let mut groups = self.whole_stripes(v, plan.groups);
        self.order(v, &mut groups);
        groups.iter().for_each(|group| elevator.take(group));
        elevator.planned.borrow_mut().extend(groups);
        true
    }

    /// Plans what is waited for, as much as fits a plan; whether there is any.
    fn plan_urgent(&self, v: &VolumeState) -> bool {
        let urgent = v.urgent.list();
        if urgent.is_empty() {
            return false;
        }
        // No stripe is gone through as a whole.
        v.elevator.sweep.set(None);
        let mut planned = v.elevator.planned.borrow_mut();
        for range in urgent {
            if planned.len() >= PLAN_GROUPS {
                break;
            }
            let mut plan = Plan::default();
            self.collect_range(v, range, Nanos::MAX, &mut plan);
            v.elevator.sweep.set(None);
            // Before the next range is looked at: a run may go on into that.
            plan.groups.iter().for_each(|group| v.elevator.take(group));
            planned.extend(plan.groups);
        }
        !planned.is_empty()
    }

    /// Puts a plan, which is in address order, into the order that spares readers.
    fn order(&self, v: &VolumeState, groups: &mut [Group]) {
        let (stripe, chunk, band) = (v.origin.stripe_blocks, v.origin.chunk_blocks, band(v));
        if band == stripe {
            return;
        }
        let place = |group: &Group| {
            let first = group.range().start;
            (first / stripe, first % stripe % chunk, first)
        };
        groups.sort_by_key(place);
        // Of what shares parity first one each, over as many stripes as there are disks.
        let (mut last, mut rank) = ((u64::MAX, 0), 0_u32);
        groups.sort_by_cached_key(|group| {
            let (stripe_number, row, first) = place(group);
            rank = if (stripe_number, row) == last { rank + 1 } else { 0 };
            last = (stripe_number, row);
            (first / band, rank, row, stripe_number)
        });
    }

    /// Groups the runs of a range, in stripes with something that has been dirty `since` then or before.
    fn collect_range(&self, v: &VolumeState, within: Range<u64>, since: Nanos, plan: &mut Plan) {
        let mut next = within.start / STRIPE_BLOCKS;
        while !plan.is_enough(self, v, next * STRIPE_BLOCKS) {
            let key = |stripe: u64| (v.id, stripe);
            let last = (within.end - 1.min(within.end)) / STRIPE_BLOCKS;
            if next > last {
                return;
            }
            let owed = self.owed.borrow();
            let mut old = owed.range(key(next)..=key(last)).filter(|(_, owed)| owed.since <= since);
            let found = old.next().map(|(&(_, stripe), owed)| (stripe, owed.since));
            drop(old);
            drop(owed);
            let Some((stripe, since)) = found else { return };
            self.collect_stripe(v, (stripe, since), within.clone(), plan);
            next = stripe + 1;
        }
    }

    fn collect_stripe(
        &self,
        v: &VolumeState,
        (stripe, since): (u64, Nanos),
        within: Range<u64>,
        plan: &mut Plan,
    ) {
        let (first, behind) = (stripe * STRIPE_BLOCKS, (stripe + 1) * STRIPE_BLOCKS);
        let (mut at, end) = (first.max(within.start), behind.min(within.end));
        let sweep = &v.elevator.sweep;
        if at == first {
            sweep.set(Some((stripe, self.rt.now())));
        }
        let shard = self.shard(v.id, stripe * STRIPE_BLOCKS);
        let spared = self.is_for_room_alone(v, since) && self.may_spare_rewritten();
        while !plan.is_enough(self, v, at) {
            let next = shard.index.borrow().next_matching(v.id, at, State::needs_destage);
            let Some(mapping) = next.filter(|m| m.block < end) else {
                if let Some((of, began)) = sweep.get()
                    && of == stripe
                    && end == behind
                {
                    sweep.set(None);
                    self.note_swept(v, stripe, began);
                }
                return;
            };
            at = mapping.block + u64::from(mapping.count);
            if !self.is_durable(&mapping) {
                continue;
            }
            if spared && self.is_rewritten(&mapping) {
                // It stays as old as it is.
                sweep.set(None);
                v.elevator.spared.set(true);
                continue;
            }
            self.collect_run(v, &mapping, since, plan);
        }
    }

    fn is_rewritten(&self, m: &Mapping) -> bool {
        let sets = self.sets.borrow();
        let set = sets.get(sets.split(m.location).0);
        m.state.has_data() && set.is_some_and(|set| set.stream == Stream::Rewritten)
    }

    /// Puts a run, cut where stripes of the origin end, to the groups; its set is pinned.
    fn collect_run(&self, v: &VolumeState, m: &Mapping, since: Nanos, plan: &mut Plan) {
        let stripe_blocks = v.origin.stripe_blocks;
        let data = m.state.has_data();
        let mut skip = 0;
        while skip < u64::from(m.count) {
            let block = m.block + skip;
            let left = u64::from(m.count) - skip;
            let part = match stripe_blocks {
                // A zero extent is written without data, and its place is that of its fact.
                0 => *m,
                _ if !data => *m,
                stripe => {
                    let border = (block / stripe + 1) * stripe;
                    m.part(skip as u32, left.min(border - block) as u32)
                }
            };
            skip += u64::from(part.count);
            if v.elevator.is_taken(part.block, part.count) {
                continue;
            }
            let pinned = data.then(|| self.sets.borrow_mut().pin(part.location));
            let opened = pinned.and_then(|id| Some(self.sets.borrow().get(id)?.incarnation));
            let run = Run { mapping: part, since, opened, pinned: Cell::new(pinned) };
            plan.push(run, stripe_blocks);
        }
    }

    /// Gives back what is planned and not begun.
    pub(super) fn drop_plans(&self, v: &VolumeState) {
        let planned = std::mem::take(&mut *v.elevator.planned.borrow_mut());
        if let Some(first) = planned.iter().map(|group| group.range().start).min() {
            v.elevator.cursor.set(first);
        }
        for group in planned {
            self.stay_old(v, &group);
            v.elevator.give_back(&group);
            self.unpin_group(&group);
        }
    }

    /// Begins as many writes as there is room for in a queue of `depth`, of what has been dirty `since`
    /// then or before; false if there was room and nothing to begin.
    fn begin_writes(self: &Rc<Self>, v: &Rc<VolumeState>, depth: usize, since: Nanos) -> bool {
        let elevator = &v.elevator;
        let stripe_blocks = v.origin.stripe_blocks.max(1);
        let spares = v.origin.traffic.pace.borrow().spares();
        let before = v.origin.traffic.writes.get();
        if spares && before > elevator.long.get() {
            return true;
        }
        loop {
            let next = elevator.next(stripe_blocks);
            if !self.is_room(v, next, depth, spares) {
                return true;
            }
            let Some(Next { stripe, .. }) = next else {
                if self.plan_writes(v, since) {
                    continue;
                }
                return false;
            };
            elevator.stripe.set(stripe);
            if let Some(group) = elevator.planned.borrow_mut().pop_front() {
                self.begin_write(v, group);
            }
        }
    }

    /// Whether one more write may be begun in a queue of `depth`: `next`, or what is still to be planned.
    fn is_room(&self, v: &VolumeState, next: Option<Next>, depth: usize, spares: bool) -> bool {
        let (writes, long) = (v.origin.traffic.writes.get(), v.elevator.long.get());
        if depth == 0 {
            return false;
        }
        if spares && (long > 0 || next.is_some_and(|next| next.is_long)) {
            // Behind another one it has what is read of the cache, and no stripes before that has ended.
            let fits = |next: &Next| {
                let memory_bytes = v.elevator.memory_bytes.get() + next.count * BLOCK_BYTES;
                long == 0 || memory_bytes <= DESTAGE_MEMORY_MAX
            };
            return writes == long
                && long < STRIPES_TOGETHER_INFLIGHT_MAX
                && next.is_none_or(|next| next.is_long && fits(&next));
        }
        let is_same = next.is_some_and(|next| next.stripe == v.elevator.stripe.get());
        let joins = is_same && writes > 0 && v.origin.stripe_blocks > 0 && !spares;
        let most = if joins { depth + STRIPE_GROUPS_MAX } else { depth };
        let is_room = writes < most
            && v.elevator.bytes.get() < self.destage_bytes_max()
            && v.elevator.memory_bytes.get() < DESTAGE_MEMORY_MAX;
        // A batch is begun as a whole.
        let awaits_reads = is_room && !spares && !self.may_read(v);
        v.elevator.awaits_reads.set(awaits_reads);
        is_room && !awaits_reads
    }

    /// Whether a volume reads less of the cache than its part of what those have that read, or wait for that.
    fn may_read(&self, v: &VolumeState) -> bool {
        let reads = v.elevator.reads.get();
        let is_other = |other: &&Rc<VolumeState>| {
            let Elevator { reads, awaits_reads, .. } = &other.elevator;
            other.id != v.id && (reads.get() > 0 || awaits_reads.get())
        };
        let most = DESTAGE_READS_TOGETHER * self.serving().count();
        reads == 0 || {
            let others = self.volumes.borrow().values().filter(is_other).count();
            reads < most / (1 + others)
        }
    }

    /// Bytes of writes under way beyond which none is begun.
    fn destage_bytes_max(&self) -> u64 {
        if self.throttle.is_holding() { DESTAGE_BYTES_BESIDE_WRITERS } else { DESTAGE_BYTES_MAX }
    }

    /// How many writes may be under way now; 0 for none to be begun.
    fn keep_pace(&self, v: &VolumeState) -> usize {
        let (now, traffic) = (self.rt.now(), &v.origin.traffic);
        // What has fewer copies than were promised is brought home at any price.
        let pressure = if self.protects(v) { 1.0 } else { self.pressure().max(self.squeeze(v)) };
        let mut pace = traffic.pace.borrow_mut();
        pace.step(now, pressure, None);
        let waited = traffic.oldest_spared_read().map_or(0, |began| now - began);
        if pace.patience().is_some_and(|most| waited > most) { 0 } else { pace.depth() }
    }

    fn note_progress(&self, v: &VolumeState, full: bool) {
        let blocks = v.counters.destage_bytes.get() / BLOCK_BYTES;
        v.origin.traffic.pace.borrow_mut().note_blocks(self.rt.now(), blocks, full);
    }

    fn begin_write(self: &Rc<Self>, v: &Rc<VolumeState>, group: Group) {
        let (bytes, memory_bytes) = (group.bytes(), group.memory_bytes());
        let long = usize::from(group.is_long(v.origin.stripe_blocks));
        v.elevator.bytes.set(v.elevator.bytes.get() + bytes);
        v.elevator.memory_bytes.set(v.elevator.memory_bytes.get() + memory_bytes);
        v.elevator.long.set(v.elevator.long.get() + long);
        let traffic = &v.origin.traffic;
        traffic.writes.set(traffic.writes.get() + 1);
        traffic.writes_begun.set(traffic.writes_begun.get() + 1);
        let (core, v) = (Rc::clone(self), Rc::clone(v));
        let reads = Reads::begin(&v, &group);
        self.spawn(async move {
            // One event says it for all that were under way.
            if let Err(error) = core.destage_group(&v, &group, reads).await
                && !v.elevator.failed.replace(true)
            {
                core.recurring_event(EventKind::DestageFailed, &v.name, error.what);
            }
            v.elevator.give_back(&group);
            v.elevator.bytes.set(v.elevator.bytes.get() - bytes);
            v.elevator.memory_bytes.set(v.elevator.memory_bytes.get() - memory_bytes);
            v.elevator.long.set(v.elevator.long.get() - long);
            v.origin.traffic.writes.set(v.origin.traffic.writes.get() - 1);
            v.origin.traffic.wrote.set(core.rt.now());
            v.origin.traffic.moved.wake_all();
        });
    }
}

/// The part of the usual time between flushes, as its inverse, after which an origin is flushed whose reads
/// could not be cached before that.
const REFUSED_SOONER: u64 = 10;

/// When an origin was flushed last; what had been destaged by then, and how much of what was read had not been
/// cached because the origin could still lose it.
struct Flushed {
    at: Nanos,
    bytes: u64,
    refused: u64,
}

impl Flushed {
    fn now(core: &Core, v: &VolumeState) -> Self {
        let refused = v.bypass.of(Reason::Unflushed).read_bytes.get();
        Self { at: core.rt.now(), bytes: v.counters.destage_bytes.get(), refused }
    }
}

impl Core {
    /// Flushes the origin if that is due; whether it did. `resting` says that nothing is under way
    /// and nothing could be begun.
    async fn flush_if_due(&self, v: &VolumeState, last: &mut Flushed, resting: bool) -> bool {
        let bytes = v.counters.destage_bytes.get() - last.bytes;
        let pressed = self.is_pressed() || self.is_squeezed(v);
        let bytes_max = match pressed {
            true if self.is_room_behind_flush() => self.pressed_flush_bytes() / 8,
            true => self.pressed_flush_bytes(),
            false => self.tuning.origin_flush_bytes,
        };
        let refused = v.bypass.of(Reason::Unflushed).read_bytes.get() > last.refused;
        let sooner = if refused { REFUSED_SOONER } else { 1 };
        let waited = self.rt.now() - last.at >= self.tuning.origin_flush_interval / sooner;
        let idle = resting && (self.is_owing(v.id) || pressed || !v.drain.is_zero() || bytes > 0);
        let urgent = self.is_urgent_written(v);
        if !v.origin.is_volatile() || !(bytes >= bytes_max || waited || idle || urgent) {
            return false;
        }
        // Its error is an event, and told to the clients by their next FLUSH.
        let before = Flushed::now(self, v);
        if self.flush_origin(v).await.is_err() {
            self.rt.sleep(ERROR_PAUSE).await.result.ok();
        }
        *last = Flushed { at: self.rt.now(), ..before };
        self.quiet.wake_all();
        self.reclaim_stuck.set(false);
        self.housekeeping.wake_all();
        true
    }

    /// Waits until the elevator can go on, or a look is due.
    async fn await_turn(&self, v: &VolumeState, tried: bool) {
        let traffic = &v.origin.traffic;
        let (writes, timer) = (traffic.writes.get(), self.rt.sleep(LOOK_INTERVAL));
        if traffic.held.get() {
            let oldest = traffic.oldest_spared_read();
            return traffic.moved.until_or(|| traffic.oldest_spared_read() != oldest, timer).await;
        }
        if writes > 0 {
            // All that is left is under way, or waits for an append in flight.
            let enough = if tried { 1 } else { writes };
            let may_read = || v.elevator.awaits_reads.get() && self.may_read(v);
            let may_go_on = || traffic.writes.get() < enough || (!tried && may_read());
            return traffic.moved.until_or(may_go_on, timer).await;
        }
        // What was tried in vain waits for an append in flight: look again later.
        let due = || !tried && self.is_owing(v.id) && self.destaged_since(v).is_some();
        let over = || self.is_at_rest() || v.gone.get();
        self.housekeeping.until_or(|| due() || over(), timer).await;
    }
}

/// The elevator of one volume.
pub(crate) async fn elevator(core: Rc<Core>, v: Rc<VolumeState>) {
    let mut last = Flushed::now(&core, &v);
    let writes = || v.origin.traffic.writes.get();
    while !core.is_at_rest() && !v.gone.get() {
        let wanted = core.is_owing(v.id).then(|| core.destaged_since(&v)).flatten();
        let mut barren = false;
        v.origin.traffic.held.set(false);
        v.elevator.awaits_reads.set(false);
        if let Some(offset) = v.origin.begin_probe() {
            let v = Rc::clone(&v);
            core.spawn(async move { v.origin.probe(offset).await });
        }
        if v.elevator.failed.get() {
            core.drop_plans(&v);
            if writes() == 0 {
                core.rt.sleep(ERROR_PAUSE).await.result.ok();
                v.elevator.failed.set(false);
            }
        } else if let Some(since) = wanted {
            let depth = core.keep_pace(&v);
            barren = !core.begin_writes(&v, depth, since);
            v.origin.traffic.held.set(depth == 0);
            // Where the cache is what takes its time, no depth is better than another one.
            core.note_progress(&v, !barren && !v.elevator.awaits_reads.get());
        } else {
            core.drop_plans(&v);
        }
        let resting = writes() == 0;
        if core.flush_if_due(&v, &mut last, resting).await {
            continue;
        }
        if barren && resting && core.log.has_volatile() {
            // What is left waits for a flush of the members; its error has latched the pool.
            core.flush_members().await.ok();
            continue;
        }
        core.await_turn(&v, barren).await;
    }
    core.drop_plans(&v);
    v.origin.traffic.moved.until(|| writes() == 0).await;
}

//! What is brought into the cache: how much around a miss, and, for volumes of which only what is asked for again
//! and again is, who counts. The numbers are [`crate::policy::Populate`]'s.
//!
//! * A request counts once for each cache block that it touches, and only if that is not cached as a whole:
//!   what is there is served and written whatever the count.
//! * Where nothing has to be counted there is no table, and a request costs one comparison.
//! * A client waits for the granules that it asked of, which a disk reads in no more time than what it asked for. The
//!   rest of their cache blocks is read behind the reply, a step at a time, by no more tasks at once than there are
//!   reads of clients that wait for the same origin, and one at the least: so it has no more than half of the origin's
//!   queue, beside one client or more. A read that misses in many places leaves one of them.

use std::ops::Range;
use std::rc::Rc;

use forebay_device::{Buf, Data, io};

use crate::bypass::{Kind, Reason, Way};
use crate::core::{Core, STRIPE_BLOCKS};
use crate::counters::add;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{EntryKind, Mode, Stream};
use crate::ids::BLOCK_BYTES;
use crate::limits::{
    GRANULE_BLOCKS, POPULATE_QUEUE_BYTES_MAX, PREFETCH_STEP_BYTES, REGION_BLOCKS, STRIPE_BYTES,
};
use crate::lock::{Idle, Population};
use crate::log::{Pending, new_entry};
use crate::planted::{self, Bug, seen};
use crate::policy::{Access, Granule, Part, Populate, Queue, Reread, TOUCHES_MAX, Touches};
use crate::read::blocks_of;
use crate::volume::VolumeState;
use crate::work::InFlight;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Whether what brings blocks in fits a mode.
pub(crate) fn check(populate: Populate, mode: Mode) -> Result<()> {
    if populate.fits(mode) {
        return Ok(());
    }
    let invalid = |what: String, hint: &str| Err(Error::new(ErrorKind::Invalid, what).hint(hint));
    let Populate::Custom { on_read, on_write } = populate else { return Ok(()) };
    if let Some(count) = on_read.filter(|count| !(1..=TOUCHES_MAX).contains(count)) {
        let what = format!("populate_on_read cannot be {count}");
        return invalid(what, "use 1 to 4; mode writeonly is for reads that bring in nothing");
    }
    let count = on_write.unwrap_or(0);
    invalid(
        format!("populate_on_write cannot be {count} in this mode"),
        "use 1 to 4, or, in modes readonly and writethrough, 0 to 4",
    )
}

/// Whether this can be a cache block.
pub(crate) fn check_cache_block(bytes: u32) -> Result<()> {
    let fits = (BLOCK_BYTES..=STRIPE_BYTES).contains(&u64::from(bytes));
    if fits && bytes.is_power_of_two() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Invalid, format!("cache block of {bytes} B"))
        .hint("use a power of two from 4 KiB to 4 MiB"))
}

/// What is read at a time, and which of it is populated.
pub(crate) struct Plan {
    pub population: Rc<Population>,
    pub block: u64,
    pub count: u32,
    pub queue: Queue,
    /// Runs that were missing before the origin was read: first block, count.
    pub parts: Vec<(u64, u32)>,
}

/// What a miss of a client leaves to be read behind its reply: blocks before and after what it has read, and where they go.
pub(crate) struct Rest {
    blocks: [Range<u64>; 2],
    queue: Queue,
}

impl Plan {
    /// Bytes of a range that are populated.
    pub(crate) fn kept(&self, offset: u64, len: u64) -> u64 {
        let kept = |&(first, count): &(u64, u32)| {
            let (start, end) = (first * BLOCK_BYTES, (first + u64::from(count)) * BLOCK_BYTES);
            end.min(offset + len).saturating_sub(start.max(offset))
        };
        self.parts.iter().map(kept).sum()
    }
}

impl Core {
    /// Takes over a mode or settings that have changed.
    pub(crate) fn start_counting(&self, v: &VolumeState) {
        let (populate, mode) = (v.settings.get().populate, v.mode.get());
        let worth = self.reread.borrow().worth(v.id);
        v.thresholds.set(populate.thresholds_beside(mode, worth));
        self.keep_touches();
    }

    /// The same of all volumes, as some are seen differently now.
    fn start_counting_again(&self) {
        let all: Vec<_> = self.volumes.borrow().values().cloned().collect();
        all.iter().for_each(|v| self.start_counting(v));
    }

    /// Whether the engine has the thresholds of a volume, and this block is in its sample: it comes in with the first read.
    fn is_sampled(&self, v: &VolumeState, block: u64) -> bool {
        let is_auto = v.settings.get().populate == Populate::Auto;
        is_auto && self.reread.borrow().samples(v.sampled_as(block))
    }

    /// A read that does not pass by asks for these blocks; `hit` if all of them are cached.
    // Apart from what every hit goes through.
    #[inline(never)]
    pub(crate) fn note_reread(&self, v: &VolumeState, first: u64, count: u32, hit: bool) {
        // Every read comes by here, and nearly all of them are of one cache block that is not in the sample.
        let last = first + u64::from(count.saturating_sub(1));
        let shift = v.sampled_shift();
        if first >> shift != last >> shift || self.reread.borrow().samples(v.sampled_as(first)) {
            self.note_sampled_reread(v, first, count, hit);
        }
    }

    #[cold]
    fn note_sampled_reread(&self, v: &VolumeState, first: u64, count: u32, hit: bool) {
        let (mut changed, shift) = (false, v.sampled_shift());
        let end = first + u64::from(count);
        for piece in v.pieces(first, count).filter(|&it| self.reread.borrow().samples(it)) {
            let start = (piece.number << shift).max(first);
            let part = end.min((piece.number + 1) << shift) - start;
            // In doubt its neighbours are not there.
            let is_there = hit || {
                let mut mapped = 0;
                let index = self.shard(v.id, start).index.borrow();
                index.lookup(v.id, start, part as u32, |m| mapped += u64::from(m.count));
                mapped == part
            };
            changed |= is_there && self.reread.borrow_mut().read(piece);
        }
        if changed {
            self.start_counting_again();
        }
    }

    /// A read, of a stream or not, asks for these blocks. Whether what streams of the volume have read is read again. Each piece
    /// of the sample counts once, when it is read from its beginning.
    pub(crate) fn note_stream(
        &self,
        v: &VolumeState,
        first: u64,
        count: u32,
        is_stream: bool,
    ) -> bool {
        let mut streams = self.streams.borrow_mut();
        for piece in v.pieces(first, count) {
            if piece.number << v.sampled_shift() >= first && streams.samples(piece) {
                streams.read(piece);
                if is_stream {
                    streams.came(piece);
                }
            }
        }
        !streams.worth(v.id).is_doubted
    }

    /// What passed by takes its time.
    pub(crate) fn note_passed(&self, count: u32) {
        self.streams.borrow_mut().elapsed(count.into());
    }

    /// These blocks are about to come in with a read.
    fn note_sample(&self, v: &VolumeState, parts: &[(u64, u32)]) {
        let is_auto = v.settings.get().populate == Populate::Auto;
        {
            let (mut reread, mut last) = (self.reread.borrow_mut(), None);
            let pieces = parts.iter().flat_map(|&(first, count)| v.pieces(first, count));
            for block in pieces.filter(|_| is_auto) {
                // Parts are as long as a record may be, a cache block is longer.
                if last.replace(block) != Some(block) && reread.samples(block) {
                    reread.came(block);
                }
            }
        }
        let blocks = parts.iter().map(|&(_, count)| u64::from(count)).sum();
        self.streams.borrow_mut().elapsed(blocks);
        self.note_first_reads(blocks);
    }

    /// First reads of so many blocks, also if they stay on the origin.
    fn note_first_reads(&self, blocks: u64) {
        let changed = self.reread.borrow_mut().elapsed(blocks);
        if changed {
            self.start_counting_again();
        }
    }

    /// Makes the table if a volume wants accesses counted, and gives it back if none does any more.
    pub(crate) fn keep_touches(&self) {
        let wanted = self.volumes.borrow().values().any(|v| v.thresholds.get().count());
        if wanted == self.touches.borrow().is_off() {
            let segment_blocks = self.segment_bytes / BLOCK_BYTES;
            let blocks = self.sets.borrow().total_count() as u64 * segment_blocks;
            let table = if wanted { Touches::for_pool(blocks) } else { Touches::default() };
            *self.touches.borrow_mut() = table;
        }
    }

    /// The pool has so many blocks from now on. What was counted is forgotten.
    pub(crate) fn resize_counts(&self, pool_blocks: u64) {
        *self.reread.borrow_mut() = Reread::of_first_reads(pool_blocks);
        *self.streams.borrow_mut() = Reread::of_streams(pool_blocks);
        self.start_counting_again();
        if !self.touches.borrow().is_off() {
            *self.touches.borrow_mut() = Touches::for_pool(pool_blocks);
        }
    }

    /// Counts a read that the cache cannot serve alone.
    pub(crate) fn note_missed_read(&self, v: &VolumeState, first: u64, count: u32) {
        if v.thresholds.get().read > 1 {
            let mut touches = self.touches.borrow_mut();
            each(v, first, count, |block| touches.note(block, Access::Read));
        }
    }

    /// What is to be fetched whatever was asked for so far.
    pub(crate) fn note_wanted(&self, v: &VolumeState, first: u64, count: u32) {
        if v.thresholds.get().read > 1 {
            let mut touches = self.touches.borrow_mut();
            each(v, first, count, |block| touches.fill(block, Access::Read));
        }
    }

    /// Whether reads have asked for the cache block of this one often enough.
    pub(crate) fn is_read_enough(&self, v: &VolumeState, block: u64) -> bool {
        let thresholds = v.thresholds.get();
        let name = || Granule { volume: v.id, number: block / v.cache_block.get() };
        thresholds.read == 1
            || thresholds.reached(&self.touches.borrow(), name(), Access::Read)
            || (thresholds.read > 1 && self.is_sampled(v, block))
    }

    /// Counts a write; whether it is brought in although it is not cached as a whole. It is if any of its
    /// cache blocks is: what is hot is not dropped because of what is written with it.
    pub(crate) fn is_written_enough(&self, v: &VolumeState, first: u64, count: u32) -> bool {
        match v.thresholds.get().write {
            0 => false,
            1 => true,
            least => {
                let (mut touches, mut enough) = (self.touches.borrow_mut(), false);
                each(v, first, count, |block| {
                    touches.note(block, Access::Write);
                    enough |= touches.count(block, Access::Write) >= least;
                });
                enough
            }
        }
    }

    /// Decides what to read around a miss, whole cache blocks or a part of them ([`Core::worth_reading`]): what the client
    /// waits for, and the rest.
    pub(crate) fn plan_population(
        &self,
        v: &VolumeState,
        way: &Way,
        offset: u64,
        len: usize,
    ) -> std::result::Result<(Plan, Rest), Reason> {
        if let Some(why) = self.populates_nothing(v) {
            return Err(why);
        }
        let (first, count) = blocks_of(offset, len as u64);
        let asked_end = first + u64::from(count);
        let (head, tail) = (self.is_read_enough(v, first), self.is_read_enough(v, asked_end - 1));
        let size = v.cache_block.get();
        let start = if head { first / size * size } else { first };
        let stripe = first / STRIPE_BLOCKS;
        let end = if tail { asked_end.next_multiple_of(size) } else { asked_end };
        let end = end.min(v.blocks()).min((stripe + 1) * STRIPE_BLOCKS);
        let (whole, near) = match way.kind {
            // Goes on behind these blocks.
            Kind::Prefetch => (start..end, start..end),
            _ => {
                let whole = self.worth_reading(v, first..asked_end, start..end);
                (whole.clone(), within(&around(first..asked_end), &whole))
            }
        };
        if !head && !tail && !self.is_any_read_enough(v, first, asked_end) {
            self.note_first_reads((v.pieces(first, count).count() as u64) << v.sampled_shift());
            return Err(Reason::Profile);
        }
        // What was asked for may be flushed where what is around it is not.
        let near = match may_lose(v, &near) {
            true => within(&(first..asked_end), &near),
            false => near,
        };
        self.check_room(v, &near)?;
        let queue = {
            // Main if any of it left of late.
            let mut policy = self.policy.borrow_mut();
            Part::each(v.id, first, count).filter_map(|part| policy.admit(part)).max()
        };
        let queue = queue.ok_or(Reason::WriteBudget)?;
        let rest = Rest { blocks: [whole.start..near.start, near.end..whole.end], queue };
        let plan = self.plan_blocks(v, near, queue)?;
        if !matches!(way.kind, Kind::Prefetch) {
            self.note_sample(v, &plan.parts);
        }
        Ok((plan, rest))
    }

    /// Whether so many blocks can be brought in now.
    fn check_room(&self, v: &VolumeState, blocks: &Range<u64>) -> std::result::Result<(), Reason> {
        let count = blocks.end - blocks.start;
        if may_lose(v, blocks) {
            return Err(Reason::Unflushed);
        }
        if let Some(why) = self.holds_enough(v, count) {
            if why == Reason::Limit {
                self.housekeeping.wake_all();
            }
            return Err(why);
        }
        if !self.may_queue(count) {
            return Err(Reason::Congested);
        }
        Ok(())
    }

    /// Registers the population of blocks that are to be read. Only those that are missing now, before the origin is read,
    /// may be populated: one that is cached now may be destaged and dropped while the origin's answer, from before, is
    /// still on its way (INV-10).
    fn plan_blocks(
        &self,
        v: &VolumeState,
        blocks: Range<u64>,
        queue: Queue,
    ) -> std::result::Result<Plan, Reason> {
        let Range { start, end } = blocks;
        let shard = self.shard(v.id, start);
        let Some(population) = self.begin_population(v, start, end - start, false) else {
            if shard.locks.is_populating(v.id, start, end - start) {
                self.log.ripen();
            }
            return Err(Reason::Overlap);
        };
        let mut parts = Vec::new();
        let mut at = start;
        let max = u64::from(self.record_data_blocks());
        let mut missing_until = |until: u64, next: u64| {
            while at < until {
                let border = (at / REGION_BLOCKS + 1) * REGION_BLOCKS;
                let (wanted, alike) = self.alike(v, at, until.min(border));
                let part_end = alike.min(at + max);
                if wanted {
                    parts.push((at, (part_end - at) as u32));
                }
                at = part_end;
            }
            at = next;
        };
        shard.index.borrow().lookup(v.id, start, (end - start) as u32, |m| {
            missing_until(m.block, m.block + u64::from(m.count));
        });
        missing_until(end, end);
        Ok(Plan { population, block: start, count: (end - start) as u32, queue, parts })
    }

    /// What to read of the cache blocks `whole` for a miss of `asked`: all of them while most is missing, later
    /// what is missing side by side, and the granules that it lies in, which a disk reads in no more time.
    /// A full cache would read mebibytes again and again for the few blocks of them that it has lost.
    fn worth_reading(&self, v: &VolumeState, asked: Range<u64>, whole: Range<u64>) -> Range<u64> {
        let near = around(asked.clone());
        if near.start <= whole.start && near.end >= whole.end {
            return whole;
        }
        let (mut cached, mut start, mut end) = (0, whole.start, whole.end);
        let index = self.shard(v.id, whole.start).index.borrow();
        index.lookup(v.id, whole.start, (whole.end - whole.start) as u32, |m| {
            let m_end = m.block + u64::from(m.count);
            cached += u64::from(m.count);
            if m_end <= asked.start {
                start = m_end;
            } else if m.block >= asked.end {
                end = end.min(m.block);
            }
        });
        if cached * 2 < whole.end - whole.start {
            return whole;
        }
        start.min(near.start).max(whole.start)..end.max(near.end).min(whole.end)
    }

    /// Has what a miss has left read behind its reply, unless enough is read so already: the next miss there asks again.
    pub(crate) fn begin_rest(self: &Rc<Self>, v: &Rc<VolumeState>, rest: Option<Rest>) {
        let Some(rest) = rest else { return };
        let is_full = v.rests.get() >= v.origin.clients().max(1);
        if is_full || rest.blocks.iter().all(Range::is_empty) {
            return;
        }
        v.rests.enter();
        let (core, v) = (Rc::clone(self), Rc::clone(v));
        self.spawn(async move {
            // Whoever removes the volume, or ends the pool, waits for it as for a request.
            let request = InFlight::new(&core, &v);
            let Rest { blocks: [before, after], queue } = rest;
            if core.bring(&v, before, queue).await {
                core.bring(&v, after, queue).await;
            }
            v.rests.leave();
            drop(request);
        });
    }

    /// Brings in what is missing of these blocks; false if something keeps it from that.
    async fn bring(&self, v: &VolumeState, blocks: Range<u64>, queue: Queue) -> bool {
        let (mut at, end) = (blocks.start * BLOCK_BYTES, blocks.end * BLOCK_BYTES);
        while at < end && !self.is_stopping() && !v.leaving.get() {
            let Some((offset, len)) = self.first_missing(v, at, end) else { return true };
            let (first, count) = blocks_of(offset, len.min(PREFETCH_STEP_BYTES));
            let locks = &self.shard(v.id, first).locks;
            let step = match locks.idle_from(v.id, first, count.into()) {
                Idle::Until(border) => first..border,
                // Others read or write these.
                Idle::From(next) => {
                    at = next * BLOCK_BYTES;
                    continue;
                }
            };
            let len = (step.end - step.start) * BLOCK_BYTES;
            let fits = self.may_populate(v) && self.check_room(v, &step).is_ok();
            let Some(plan) = fits.then(|| self.plan_blocks(v, step, queue).ok()).flatten() else {
                return false;
            };
            let read = v.origin.read_ahead(offset, Buf::new(len as usize));
            let Some(bytes) = self.unless_stopping(read).await.flatten() else {
                self.end_population(&plan.population);
                return false;
            };
            seen("rest of a cache block read behind the reply");
            let blocks = plan.parts.iter().map(|&(_, count)| u64::from(count)).sum();
            self.streams.borrow_mut().elapsed(blocks);
            self.note_first_reads(blocks);
            self.populate(v, &plan, &bytes);
            at = offset + len;
        }
        at >= end
    }

    /// Whether block `at` has been read often enough, and how far before `until` the same is true of those
    /// behind it.
    fn alike(&self, v: &VolumeState, at: u64, until: u64) -> (bool, u64) {
        if !v.thresholds.get().count() {
            return (true, until);
        }
        let (wanted, size) = (self.is_read_enough(v, at), v.cache_block.get());
        let mut next = (at / size + 1) * size;
        while next < until && self.is_read_enough(v, next) == wanted {
            next += size;
        }
        (wanted, next.min(until))
    }

    fn is_any_read_enough(&self, v: &VolumeState, first: u64, end: u64) -> bool {
        let (wanted, next) = self.alike(v, first, end);
        wanted || next < end
    }

    /// Whether the SSDs keep up with populations so far that these blocks more may wait for them.
    fn may_queue(&self, count: u64) -> bool {
        self.space.queued_bytes.get() + count * BLOCK_BYTES <= POPULATE_QUEUE_BYTES_MAX
    }

    /// Registers a population of blocks that were just found missing. What it is to bring in counts from here on, so
    /// that misses that come together do not each find the same room.
    pub(crate) fn begin_population(
        &self,
        v: &VolumeState,
        block: u64,
        count: u64,
        from_ram: bool,
    ) -> Option<Rc<Population>> {
        let locks = &self.shard(v.id, block).locks;
        let population = locks.populate(v.id, block, count, from_ram)?;
        self.note_brought(v.id, count);
        add(&self.space.demoting_bytes, if from_ram { count * BLOCK_BYTES } else { 0 });
        Some(population)
    }

    /// Ends a population, published or not.
    pub(crate) fn end_population(&self, population: &Rc<Population>) {
        let (volume, count) = (population.volume(), population.count());
        self.shard(volume, population.block()).locks.end_population(population);
        self.note_brought_in(volume, count);
        if population.is_appending() {
            self.space.queued_bytes.set(self.space.queued_bytes.get() - count * BLOCK_BYTES);
        }
        if population.from_ram {
            self.space.demoting_bytes.set(self.space.demoting_bytes.get() - count * BLOCK_BYTES);
        }
    }

    /// Whether anything that is read may be populated now.
    pub(crate) fn may_populate(&self, v: &VolumeState) -> bool {
        self.populates_nothing(v).is_none()
    }

    /// Hands what was read to the log, behind the reply.
    pub(crate) fn populate(&self, v: &VolumeState, plan: &Plan, data: &Data) {
        let valid = plan.population.is_valid() || planted::is(Bug::PopulationAfterWrite);
        let valid = valid && self.may_queue(plan.count.into());
        if !valid || plan.parts.is_empty() {
            add(&self.counters.populate_voided, u64::from(!valid));
            return self.end_population(&plan.population);
        }
        plan.population.begin_append(plan.parts.len() as u32);
        add(&self.space.queued_bytes, plan.population.count() * BLOCK_BYTES);
        let stream = if plan.queue == Queue::Main { Stream::Main } else { Stream::Probation };
        for &(start, blocks) in &plan.parts {
            let from = (start - plan.block) as usize * BLOCK;
            let part = data.slice(from..from + blocks as usize * BLOCK);
            add(&self.counters.populate_bytes, part.len() as u64);
            self.policy.borrow_mut().spend(u64::from(blocks), 0);
            let (completer, _) = io::pair();
            let entry = new_entry(EntryKind::Populate, v.id, start, blocks);
            let pending = Pending {
                population: Some(Rc::clone(&plan.population)),
                ..Pending::new(entry, Some(part), completer)
            };
            self.log.enqueue(stream, pending);
        }
    }
}

impl VolumeState {
    /// What is in the sample of first reads, or not, as a whole, has a power of two of blocks: this one.
    pub(crate) fn sampled_shift(&self) -> u32 {
        self.cache_block.get().max(GRANULE_BLOCKS).trailing_zeros()
    }

    /// As what a block is in that sample, or not.
    fn sampled_as(&self, block: u64) -> Granule {
        Granule { volume: self.id, number: block >> self.sampled_shift() }
    }

    /// All that so many blocks lie in.
    fn pieces(&self, first: u64, count: u32) -> impl Iterator<Item = Granule> + use<> {
        let last = self.sampled_as(first + u64::from(count.saturating_sub(1))).number;
        let (all, volume) = (self.sampled_as(first).number..=last, self.id);
        all.map(move |number| Granule { volume, number })
    }
}

/// The granules that some blocks lie in.
fn around(blocks: Range<u64>) -> Range<u64> {
    blocks.start / GRANULE_BLOCKS * GRANULE_BLOCKS..blocks.end.next_multiple_of(GRANULE_BLOCKS)
}

/// What of some blocks is among others.
fn within(blocks: &Range<u64>, others: &Range<u64>) -> Range<u64> {
    blocks.start.max(others.start)..blocks.end.min(others.end)
}

fn may_lose(v: &VolumeState, blocks: &Range<u64>) -> bool {
    v.origin.may_lose(blocks.clone()) && !planted::is(Bug::ProvisionalTakenForClean)
}

/// Goes through the cache blocks of a range.
fn each(v: &VolumeState, first: u64, count: u32, mut visit: impl FnMut(Granule)) {
    let size = v.cache_block.get();
    for number in first / size..=(first + u64::from(count) - 1) / size {
        visit(Granule { volume: v.id, number });
    }
}

//! Reading one piece: look up, read each run where it lies, populate what was missing.
//!
//! * All device reads of a piece start right after one look at the index, with the sets pinned, so
//!   the answer is a state of the volume between the request's start and end.
//! * What is missing of a piece is read from the origin side by side, and in one request where little that is cached lies
//!   between: a piece that is cached in many places takes no longer than one that is not cached at all.
//! * The common cases are one lookup and a copy, for what RAM holds as a whole, and one lookup and
//!   one device read, for what one run on a cache device holds.

use std::rc::Rc;

use forebay_device::{Buf, Data, Io};

use crate::bypass::{Kind, Reason, Way};
use crate::core::Core;
use crate::count::Counted;
use crate::counters::add;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{Mode, State};
use crate::ids::{BLOCK_BYTES, Location, SECTOR_BYTES, SECTORS_ALL, SECTORS_PER_BLOCK, SegmentId};
use crate::index::Mapping;
use crate::limits::{
    PREFETCH_STEP_BYTES, RAM_FILL_BLOCKS_MAX, READ_OVER_BYTES_MAX, READ_SPAN_BYTES_MAX,
    RUNS_TOGETHER_MAX,
};
use crate::miss::Hole;
use crate::planted;
use crate::policy::{Access, Part};
use crate::populate::Rest;
use crate::volume::VolumeState;
use crate::wait::all_of;
use crate::write::sector_mask;

const BLOCK: usize = BLOCK_BYTES as usize;

/// A run of blocks of a piece, clipped to the piece's bytes.
struct Run {
    /// Offset in the volume and length, in bytes.
    offset: u64,
    len: u64,
    source: Source,
}

/// Where a run's newest version is.
enum Source {
    Mapped(Mapping),
    /// In RAM, whether the log holds it or not.
    Ram,
    Origin,
}

/// A run whose device read is under way.
struct Started<'a> {
    /// Which one of its piece.
    number: usize,
    run: Run,
    io: Option<(Io, Counted<'a>)>,
    pinned: Option<SegmentId>,
    buf: Option<Buf>,
    /// Of one that is missing: others behind it that its origin is asked for with it.
    more: Vec<Hole>,
    /// Whether what is read from the log shall be brought into RAM.
    wanted: bool,
    /// Whether RAM may have it at all.
    guest: bool,
}

/// A run that was read.
struct Finished {
    hole: Hole,
    /// Those that were read with it.
    more: Vec<Hole>,
    /// What a miss leaves to be read behind the reply.
    rest: Option<Rest>,
    result: Result<()>,
}

impl Started<'_> {
    /// Whether nothing is under way for it yet.
    fn has_to_ask(&self) -> bool {
        self.io.is_none() && !matches!(self.run.source, Source::Ram)
    }
}

/// Where a whole request lies on a cache device.
pub(crate) struct Located {
    /// Number of the member, in whose queue it is until it is given back.
    pub member: usize,
    /// The same device, as other reactors know it.
    pub device: usize,
    /// Its first byte there.
    pub at: u64,
    /// The set that it lies in, pinned.
    pub set: SegmentId,
}

/// Blocks touched by a byte range: the first, and how many.
pub(crate) fn blocks_of(offset: u64, len: u64) -> (u64, u32) {
    let first = offset / BLOCK_BYTES;
    (first, ((offset + len).div_ceil(BLOCK_BYTES) - first) as u32)
}

impl Core {
    /// Reads bytes behind the last whole block: they are never cached.
    pub(crate) async fn read_tail(
        self: &Rc<Self>,
        v: &Rc<VolumeState>,
        way: &Way,
        offset: u64,
        buf: Buf,
    ) -> (Buf, Result<()>) {
        if offset / BLOCK_BYTES < v.blocks() {
            // The volume has grown since the request was cut.
            return self.read_piece(v, way, offset, buf).await;
        }
        self.past(v, way, Reason::Tail, buf.len() as u64);
        self.read_origin(v, offset, buf).await
    }

    /// Reads a piece that lies in one stripe. What only passes by is neither populated nor counted as
    /// use of what is cached.
    pub(crate) async fn read_piece(
        self: &Rc<Self>,
        v: &Rc<VolumeState>,
        way: &Way,
        offset: u64,
        buf: Buf,
    ) -> (Buf, Result<()>) {
        let (len, passing) = (buf.len() as u64, way.passes());
        let (first, count) = blocks_of(offset, len);
        if self.latched.get() && self.doubts.has_version_of(v.id, first, count) {
            let what = format!("reading volume \"{}\" at {offset}: a write there failed", v.name);
            return (buf, Err(Error::new(ErrorKind::Io, what)));
        }
        let mut buf = buf;
        if self.read_ram(v, offset, &mut buf, passing) {
            match passing {
                true => add(&self.counters.read_stream_ram_hits, 1),
                false => self.note_access(v, first, count, Access::Read, true),
            }
            self.count_hit(v, passing);
            return (buf, Ok(()));
        }
        let (whole, mapped) = self.find(v, first, count, passing);
        if !passing {
            self.note_access(v, first, count, Access::Read, mapped == count);
        }
        let whole = whole.filter(|m| m.count == count);
        match whole.and_then(|m| Some((m, self.plain_copy(v, &m, offset, len)?))) {
            Some((m, copy)) => {
                self.count_hit(v, passing);
                let wanted = !passing && self.is_wanted_in_ram(v, first, count);
                self.read_hit(v, &m, copy, offset, buf, wanted).await
            }
            None => {
                let runs = self.plan(v, offset, len);
                let absent = runs.iter().filter(|run| matches!(run.source, Source::Origin));
                let (pool, volume) = (&self.counters, &v.counters);
                let (counters, of_streams) = match absent.map(|run| run.len).sum::<u64>() {
                    0 => (
                        [&pool.read_hits, &volume.read_hits],
                        [&pool.read_stream_hits, &volume.read_stream_hits],
                    ),
                    all if all == len => (
                        [&pool.read_misses, &volume.read_misses],
                        [&pool.read_stream_misses, &volume.read_stream_misses],
                    ),
                    _ => (
                        [&pool.read_partial_hits, &volume.read_partial_hits],
                        [&pool.read_stream_partial_hits, &volume.read_stream_partial_hits],
                    ),
                };
                counters.into_iter().for_each(|counter| add(counter, 1));
                of_streams.into_iter().for_each(|counter| add(counter, u64::from(passing)));
                if !passing {
                    self.note_missed_read(v, first, count);
                }
                // Apart, so that what a hit needs stays small: it is moved about before it begins.
                Box::pin(self.read_runs(v, way, runs, buf)).await
            }
        }
    }

    /// Counts a piece that the cache serves alone.
    fn count_hit(&self, v: &VolumeState, passing: bool) {
        add(&self.counters.read_hits, 1);
        add(&v.counters.read_hits, 1);
        if passing {
            add(&self.counters.read_stream_hits, 1);
            add(&v.counters.read_stream_hits, 1);
        }
    }

    /// Looks blocks up and notes that they are in use: the last run, and the blocks mapped in all.
    fn find(
        &self,
        v: &VolumeState,
        first: u64,
        count: u32,
        passing: bool,
    ) -> (Option<Mapping>, u32) {
        let mut index = self.shard(v.id, first).index.borrow_mut();
        let (mut last, mut mapped) = (None, 0);
        index.lookup(v.id, first, count, |mapping| {
            mapped += mapping.count;
            last = Some(mapping);
        });
        if !passing && last.is_some_and(|m| self.is_reuse(m.location)) {
            index.touch(v.id, first, count);
        }
        (last, mapped)
    }

    /// Whether a hit there says that a block is asked for again.
    pub(crate) fn is_reuse(&self, at: Location) -> bool {
        let sets = self.sets.borrow();
        let set = sets.get(sets.split(at).0);
        let Some((set, queue)) = set.and_then(|set| Some((set, set.queue()?))) else { return true };
        let age = self.log.open_counter.get() - set.incarnation.counter;
        self.policy.borrow().is_reuse(queue, age * u64::from(self.segment_blocks))
    }

    /// Where a piece lies as a whole, for a reactor that reads cache devices by itself; its set is
    /// pinned then, and it counts as a hit.
    pub(crate) fn locate(
        &self,
        v: &VolumeState,
        offset: u64,
        len: u64,
        passing: bool,
    ) -> Option<Located> {
        let (first, count) = blocks_of(offset, len);
        if self.latched.get() {
            return None;
        }
        let (m, copy) = {
            let mut index = self.shard(v.id, first).index.borrow_mut();
            let mut last = None;
            index.lookup(v.id, first, count, |m| last = Some(m));
            let whole = last.filter(|m| m.count == count)?;
            let copy = self.plain_copy(v, &whole, offset, len)?;
            let wanted = || !passing && self.is_wanted_in_ram(v, first, count);
            if self.is_in_ram(v, first, count) || wanted() {
                return None;
            }
            if !passing {
                if self.is_reuse(whole.location) {
                    index.touch(v.id, first, count);
                }
                self.note_access(v, first, count, Access::Read, true);
            }
            (whole, copy)
        };
        self.count_hit(v, passing);
        add(&self.counters.read_cache_bytes, len);
        let (segment, block) =
            self.segment_of(m.location, copy).expect("a copy that was chosen just now");
        let (member, at) = (self.sets.borrow().member_of(segment), self.place(segment, block).1);
        let device = self.members[member].place.get()?;
        let set = self.sets.borrow_mut().pin(m.location);
        self.members[member].queue.enter();
        let within = offset - m.block * BLOCK_BYTES;
        Some(Located { member, device, at: at + within, set })
    }

    /// Reads what is missing of a piece that lies in one stripe, so that it is populated.
    pub(crate) async fn prefetch_piece(
        self: &Rc<Self>,
        v: &Rc<VolumeState>,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let (first, count) = blocks_of(offset, len);
        let blocks = first..first + u64::from(count);
        let end = blocks.end * BLOCK_BYTES;
        let mut at = first * BLOCK_BYTES;
        while at < end && self.may_populate(v) && !v.origin.may_lose(blocks.clone()) {
            let Some((offset, len)) = self.first_missing(v, at, end) else { break };
            let len = len.min(PREFETCH_STEP_BYTES);
            let (first, count) = blocks_of(offset, len);
            self.note_access(v, first, count, Access::Read, false);
            self.note_wanted(v, first, count);
            let (way, guest) = (Way::new(Kind::Prefetch, None), count <= RAM_FILL_BLOCKS_MAX);
            self.read_miss(v, &way, offset, Buf::new(len as usize), &mut [], guest).await.1?;
            // Whole cache blocks are on their way into the index.
            at = (offset + len).next_multiple_of(v.cache_block.get() * BLOCK_BYTES);
        }
        Ok(())
    }

    /// The first run between two bytes that neither RAM nor the cache devices have: offset and length.
    pub(crate) fn first_missing(&self, v: &VolumeState, at: u64, end: u64) -> Option<(u64, u64)> {
        let runs = self.plan(v, at, end - at);
        let missing = runs.into_iter().find(|run| matches!(run.source, Source::Origin));
        missing.map(|run| (run.offset, run.len))
    }

    /// Tells the policy of an access.
    pub(crate) fn note_access(
        &self,
        v: &VolumeState,
        first: u64,
        count: u32,
        access: Access,
        hit: bool,
    ) {
        {
            let mut policy = self.policy.borrow_mut();
            Part::each(v.id, first, count).for_each(|part| policy.access(part, access, hit));
        }
        if access == Access::Read {
            self.note_reread(v, first, count, hit);
        }
    }

    /// The copy of a run to read straight into the client's buffer, if one can be.
    fn plain_copy(&self, v: &VolumeState, m: &Mapping, offset: u64, len: u64) -> Option<usize> {
        let whole = m.state.has_data() && m.sectors == SECTORS_ALL && self.may_serve(v, m.state);
        if !whole || self.is_checked(m) {
            return None;
        }
        self.idlest_copy_for(m.location, offset | len)
    }

    /// Whether what is read of a run is compared with its checksums.
    fn is_checked(&self, m: &Mapping) -> bool {
        self.verify_reads.get() || self.is_hurt_at(m)
    }

    /// Has what is read from members checked, or no more.
    pub(crate) fn verify_from_now_on(&self, verify: bool) {
        let verify = verify || self.cramped.get();
        self.verify_reads.set(verify);
        self.ram.borrow_mut().serve_only_verified(verify);
    }

    /// In bypass mode only what the origin lacks is served from the cache.
    pub(crate) fn may_serve(&self, v: &VolumeState, state: State) -> bool {
        self.mode_of(v) != Mode::Bypass || state.is_owed() || state == State::Lost
    }

    async fn read_hit(
        self: &Rc<Self>,
        v: &Rc<VolumeState>,
        m: &Mapping,
        copy: usize,
        offset: u64,
        buf: Buf,
        wanted: bool,
    ) -> (Buf, Result<()>) {
        let len = buf.len();
        let (member, at) = self.copy_of(m.location, copy).expect("a plain run has a copy");
        let pinned = self.sets.borrow_mut().pin(m.location);
        let within = offset - m.block * BLOCK_BYTES;
        let (queued, begun) = (member.queue.guard(), member.spans.begin(&*self.rt));
        let outcome = member.device.read(at + within, buf).await;
        drop(queued);
        member.spans.end(&*self.rt, begun);
        add(&self.counters.read_cache_bytes, len as u64);
        let buf = outcome.buf.unwrap_or_else(|| Buf::zeroed(len));
        let answer = match outcome.result {
            Ok(()) => {
                if wanted {
                    self.fill_from_log(v, m, offset, &buf, false);
                }
                (buf, Ok(()))
            }
            Err(_) => self.read_other_copy(v, m, offset, buf).await,
        };
        self.unpin(pinned);
        answer
    }

    /// A cache device failed to read: another copy, or the origin if that has the data.
    async fn read_other_copy(
        self: &Rc<Self>,
        v: &Rc<VolumeState>,
        m: &Mapping,
        offset: u64,
        mut buf: Buf,
    ) -> (Buf, Result<()>) {
        self.note_hurt(Location(m.location.0 - u64::from(m.distance)));
        // Boxed, so that a hit, which hardly ever comes here, stays small.
        if let Ok(data) = Box::pin(self.read_verified(m.location, m.distance, m.count)).await {
            let within = (offset - m.block * BLOCK_BYTES) as usize;
            let len = buf.len();
            buf.copy_from_slice(&data[within..within + len]);
            return (buf, Ok(()));
        }
        if m.state.is_owed() && self.is_stray_at(m.location) {
            return Box::pin(self.read_after_loss(v, offset, buf)).await;
        }
        if m.state.is_owed() {
            return Box::pin(self.read_damaged(v, m, offset, buf)).await;
        }
        Box::pin(self.read_past_damage(v, m, offset, buf)).await
    }

    /// Reads clean data from the origin that no copy returns.
    async fn read_past_damage(
        &self,
        v: &VolumeState,
        m: &Mapping,
        offset: u64,
        buf: Buf,
    ) -> (Buf, Result<()>) {
        self.drop_met(v.id, m).await;
        self.read_origin(v, offset, buf).await
    }

    /// Reads again what was on a member alone that has failed, once it is durable whether it is lost
    /// (INV-62).
    async fn read_after_loss(
        self: &Rc<Self>,
        v: &Rc<VolumeState>,
        offset: u64,
        buf: Buf,
    ) -> (Buf, Result<()>) {
        planted::seen("read of what was on a failed member alone");
        if let Err(error) = self.until_marked().await {
            return (buf, Err(error));
        }
        // What a failing cache device sends on has not gone past the cache.
        let way = Way::new(Kind::Prefetch, Some(Reason::Sequential));
        Box::pin(self.read_piece(v, &way, offset, buf)).await
    }

    /// The runs of a piece, in order, without gaps.
    fn plan(&self, v: &VolumeState, offset: u64, len: u64) -> Vec<Run> {
        let (first, count) = blocks_of(offset, len);
        let end = offset + len;
        let mut runs: Vec<Run> = Vec::new();
        let mut at = offset;
        let mut push = |runs: &mut Vec<Run>, until: u64, mapping: Option<Mapping>| {
            if let Some(mapping) = mapping
                && until > at
            {
                let (first, count) = blocks_of(at, until - at);
                let in_ram = mapping.state.has_data() && self.is_in_ram(v, first, count);
                let source = if in_ram { Source::Ram } else { Source::Mapped(mapping) };
                runs.push(Run { offset: at, len: until - at, source });
                at = until;
            }
            while at < until {
                let (in_ram, border) = self.ram_run(v, at, until);
                let source = if in_ram { Source::Ram } else { Source::Origin };
                runs.push(Run { offset: at, len: border - at, source });
                at = border;
            }
        };
        let index = self.shard(v.id, first).index.borrow();
        index.lookup(v.id, first, count, |m| {
            if self.may_serve(v, m.state) {
                push(&mut runs, (m.block * BLOCK_BYTES).max(offset), None);
                let until = (m.block + u64::from(m.count)) * BLOCK_BYTES;
                push(&mut runs, until.min(end), Some(m));
            }
        });
        push(&mut runs, end, None);
        runs
    }

    async fn read_runs(
        self: &Rc<Self>,
        v: &Rc<VolumeState>,
        way: &Way,
        runs: Vec<Run>,
        buf: Buf,
    ) -> (Buf, Result<()>) {
        // Neither a long read nor one that passes by is RAM's guest, in however many places it lies.
        let blocks = blocks_of(runs.first().map_or(0, |run| run.offset), buf.len() as u64).1;
        let guest = !way.passes() && blocks <= RAM_FILL_BLOCKS_MAX;
        let count = runs.len();
        let mut started = self.start_runs(v, runs, buf, way.passes(), guest).into_iter();
        if count == 1
            && let Some(item) = started.next()
        {
            let Finished { hole, rest, result, .. } = self.finish_run(v, way, item).await;
            self.begin_rest(v, rest);
            return (hole.buf, result);
        }
        let (asking, begun): (Vec<_>, Vec<_>) = started.partition(Started::has_to_ask);
        let mut parts: Vec<Option<Buf>> = (0..count).map(|_| None).collect();
        // However many places are missing, this is one read that leaves a rest.
        let (mut first_rest, mut result) = (None, Ok(()));
        let mut take = |Finished { hole, more, rest, result: outcome }: Finished| {
            for hole in std::iter::once(hole).chain(more) {
                parts[hole.number] = Some(hole.buf);
            }
            first_rest = first_rest.take().or(rest);
            if result.is_ok() {
                result = outcome;
            }
        };
        let mut asking = asking.into_iter();
        loop {
            let together = asking.by_ref().take(RUNS_TOGETHER_MAX);
            let together: Vec<_> = together.map(|item| self.finish_run(v, way, item)).collect();
            if together.is_empty() {
                break;
            }
            all_of(together).await.into_iter().for_each(&mut take);
        }
        for item in begun {
            take(self.finish_run(v, way, item).await);
        }
        self.begin_rest(v, first_rest);
        let mut whole = Parts::default();
        parts.into_iter().flatten().for_each(|part| whole.push(part));
        (whole.join(), result)
    }

    /// Starts what can be started of the runs of a piece. Those that are missing are put together where little that is
    /// cached lies between them.
    fn start_runs(
        &self,
        v: &VolumeState,
        runs: Vec<Run>,
        buf: Buf,
        passing: bool,
        guest: bool,
    ) -> Vec<Started<'_>> {
        let mut rest = Some(buf);
        let mut started: Vec<Started<'_>> = Vec::with_capacity(runs.len());
        // The last one that is missing: its place among the others, where it begins, and where what is read with it ends.
        let mut missing: Option<(usize, u64, u64)> = None;
        for (number, run) in runs.into_iter().enumerate() {
            let Some(mut buf) = rest.take() else { break };
            if (buf.len() as u64) > run.len {
                rest = Some(buf.split_off(run.len as usize));
            }
            let (offset, end) = (run.offset, run.offset + run.len);
            let is_near = |&(_, start, until): &(usize, u64, u64)| {
                offset - until <= READ_OVER_BYTES_MAX && end - start <= READ_SPAN_BYTES_MAX
            };
            match (matches!(run.source, Source::Origin), missing.filter(is_near)) {
                (true, Some((at, start, _))) => {
                    started[at].more.push(Hole { number, offset, buf });
                    missing = Some((at, start, end));
                }
                (true, None) => {
                    missing = Some((started.len(), offset, end));
                    started.push(self.start_run(v, number, run, buf, passing, guest));
                }
                (false, _) => started.push(self.start_run(v, number, run, buf, passing, guest)),
            }
        }
        started
    }

    /// Starts a run's read at once if it can go straight into its part of the buffer. Runs that
    /// need more than that are only pinned.
    fn start_run(
        &self,
        v: &VolumeState,
        number: usize,
        run: Run,
        mut buf: Buf,
        passing: bool,
        guest: bool,
    ) -> Started<'_> {
        let mut wanted = false;
        let (io, pinned, buf) = match &run.source {
            Source::Mapped(m) if m.state.has_data() => {
                let (first, count) = blocks_of(run.offset, run.len);
                let whole = m.sectors == SECTORS_ALL;
                wanted = guest && whole && self.is_wanted_in_ram(v, first, count);
                let pinned = Some(self.sets.borrow_mut().pin(m.location));
                let copy = self.plain_copy(v, m, run.offset, run.len);
                match copy.and_then(|copy| self.copy_of(m.location, copy)) {
                    Some((member, at)) => {
                        let at = at + (run.offset - m.block * BLOCK_BYTES);
                        let read = (member.device.read(at, buf), member.queue.guard());
                        (Some(read), pinned, None)
                    }
                    None => (None, pinned, Some(buf)),
                }
            }
            Source::Ram => {
                let here = self.ram.borrow_mut().read(v.id, run.offset, &mut buf, passing);
                assert!(here, "nothing has changed since the look at the index");
                add(&self.counters.read_ram_bytes, run.len);
                (None, None, Some(buf))
            }
            Source::Mapped(_) | Source::Origin => (None, None, Some(buf)),
        };
        Started { number, run, io, pinned, buf, more: Vec::new(), wanted, guest }
    }

    async fn finish_run(
        self: &Rc<Self>,
        v: &Rc<VolumeState>,
        way: &Way,
        started: Started<'_>,
    ) -> Finished {
        let mut rest = None;
        let Started { number, run, io, pinned, buf, mut more, wanted, guest } = started;
        let answer = match (&run.source, io, buf) {
            (Source::Mapped(m), Some((io, queued)), _) => {
                let outcome = io.await;
                drop(queued);
                add(&self.counters.read_cache_bytes, run.len);
                let buf = outcome.buf.unwrap_or_else(|| Buf::zeroed(run.len as usize));
                match outcome.result {
                    Ok(()) => {
                        if wanted {
                            self.fill_from_log(v, m, run.offset, &buf, false);
                        }
                        (buf, Ok(()))
                    }
                    Err(_) => self.read_other_copy(v, m, run.offset, buf).await,
                }
            }
            (Source::Mapped(m), None, Some(buf)) => {
                self.read_indirect(v, &run, m, buf, wanted).await
            }
            (Source::Ram, _, Some(buf)) => (buf, Ok(())),
            (Source::Origin, _, Some(buf)) => {
                let (buf, read) = self.read_miss(v, way, run.offset, buf, &mut more, guest).await;
                (buf, read.map(|left| rest = left))
            }
            (_, _, None) => unreachable!("a run has its buffer or a read"),
        };
        if let Some(set) = pinned {
            self.unpin(set);
        }
        let (buf, result) = answer;
        Finished { hole: Hole { number, offset: run.offset, buf }, more, rest, result }
    }

    /// Runs without data, partial blocks, and runs not aligned to the cache device's sectors.
    async fn read_indirect(
        self: &Rc<Self>,
        v: &Rc<VolumeState>,
        run: &Run,
        m: &Mapping,
        mut buf: Buf,
        wanted: bool,
    ) -> (Buf, Result<()>) {
        match m.state {
            State::Zero | State::ZeroWritten => {
                buf.fill(0);
                return (buf, Ok(()));
            }
            State::Lost => {
                Box::pin(self.until_losses_noted()).await;
                let what = format!(
                    "reading volume \"{}\" at {}: it is lost, for no SSD has a good copy",
                    v.name, run.offset
                );
                return (buf, Err(Error::new(ErrorKind::Io, what)));
            }
            _ => {}
        }
        add(&self.counters.read_cache_bytes, run.len);
        let within = (run.offset - m.block * BLOCK_BYTES) as usize;
        let verified = self.is_checked(m);
        let bytes = match is_held(m, within, buf.len()) {
            true => self.read_raw(m).await,
            false => self.read_merged(v, m).await,
        };
        match bytes {
            Ok(bytes) => {
                let len = buf.len();
                buf.copy_from_slice(&bytes[within..within + len]);
                if wanted {
                    self.fill_from_log(v, m, run.offset, &buf, verified);
                }
                (buf, Ok(()))
            }
            Err(_) if m.state.is_owed() && self.is_stray_at(m.location) => {
                Box::pin(self.read_after_loss(v, run.offset, buf)).await
            }
            Err(_) if m.state.is_owed() || m.sectors != SECTORS_ALL => {
                Box::pin(self.read_damaged(v, m, run.offset, buf)).await
            }
            Err(_) => Box::pin(self.read_past_damage(v, m, run.offset, buf)).await,
        }
    }

    /// The bytes of a whole run, from any copy that can be read.
    async fn read_raw(&self, m: &Mapping) -> Result<Data> {
        if self.is_checked(m) {
            return self.read_verified(m.location, m.distance, m.count).await;
        }
        if let Some((member, at)) = self.copy_of(m.location, self.idlest_copy(m.location)) {
            let queued = member.queue.guard();
            let outcome = member.device.read(at, Buf::new(m.count as usize * BLOCK)).await;
            drop(queued);
            if let (Ok(()), Some(buf)) = (outcome.result, outcome.buf) {
                return Ok(buf.freeze());
            }
        }
        self.read_verified(m.location, m.distance, m.count).await
    }

    /// A partial block completed from the origin.
    async fn read_merged(&self, v: &VolumeState, m: &Mapping) -> Result<Data> {
        planted::seen("partial block read");
        let cached = self.read_raw(m).await?;
        self.merged(v, m, &cached).await
    }

    /// What is cached of a partial block, completed from the origin.
    pub(crate) async fn merged(&self, v: &VolumeState, m: &Mapping, cached: &[u8]) -> Result<Data> {
        let (mut whole, result) = self.read_origin(v, m.block * BLOCK_BYTES, Buf::new(BLOCK)).await;
        result?;
        overlay(&mut whole, cached, m.sectors);
        Ok(whole.freeze())
    }

    /// Reads from the origin what a client, or a write to a part of a block, waits for.
    pub(crate) async fn read_origin(
        &self,
        v: &VolumeState,
        offset: u64,
        buf: Buf,
    ) -> (Buf, Result<()>) {
        let started = self.rt.now();
        let (buf, result) = v.origin.read(offset, buf).await;
        self.origin_read_latency.record(self.rt.now() - started);
        (buf, result.map_err(|error| origin_error(v, "reading", error)))
    }
}

/// The parts of a request's buffer on their way back, in order.
#[derive(Default)]
pub(crate) enum Parts {
    #[default]
    None,
    /// The memory that it was, as far as it is here.
    Whole(Buf),
    /// Not all of it: a device that does not answer has kept a part.
    Several(Vec<Buf>),
}

impl Parts {
    /// The next part.
    pub(crate) fn push(&mut self, part: Buf) {
        match self {
            Parts::None => *self = Parts::Whole(part),
            Parts::Several(parts) => parts.push(part),
            Parts::Whole(whole) => {
                let Err(part) = whole.join(part) else { return };
                if let Parts::Whole(whole) = std::mem::take(self) {
                    *self = Parts::Several(vec![whole, part]);
                }
            }
        }
    }

    /// All of it.
    pub(crate) fn join(self) -> Buf {
        let parts = match self {
            Parts::None => return Buf::new(0),
            Parts::Whole(whole) => return whole,
            Parts::Several(parts) => parts,
        };
        let mut copy = Buf::new(parts.iter().map(|part| part.len()).sum());
        let mut at = 0;
        for part in parts {
            copy[at..at + part.len()].copy_from_slice(&part);
            at += part.len();
        }
        copy
    }
}

/// Whether the cache has all that is asked for of a run, from byte `within` on. If so its origin is not needed, however
/// little of the block it is.
pub(crate) fn is_held(m: &Mapping, within: usize, len: usize) -> bool {
    m.sectors == SECTORS_ALL || sector_mask(within, len) & !m.sectors == 0
}

/// Copies those sectors of a block that `mask` names.
pub(crate) fn overlay(block: &mut [u8], newer: &[u8], mask: u8) {
    let sector = SECTOR_BYTES as usize;
    for i in (0..SECTORS_PER_BLOCK as usize).filter(|i| mask >> i & 1 == 1) {
        block[i * sector..(i + 1) * sector].copy_from_slice(&newer[i * sector..(i + 1) * sector]);
    }
}

/// A failed request to the origin, in words.
pub(crate) fn origin_error(v: &VolumeState, doing: &str, error: forebay_device::IoError) -> Error {
    Error::io(format!("{doing} the origin of volume \"{}\"", v.name), error)
}

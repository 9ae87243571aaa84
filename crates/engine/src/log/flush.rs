//! From appended to durable: member flushes that everybody shares, and the footers of full sets.

use std::rc::Rc;

use forebay_device::{Buf, Io, IoError, IoErrorKind};

use super::{BLOCK, Batch, OpenSet, Pending, Way};
use crate::core::Core;
use crate::counters::add;
use crate::error::Result;
use crate::format::{EntryKind, FooterRecord, FooterTrailer, Stream, encode_footer};
use crate::ids::{Incarnation, SegmentId};
use crate::limits::{FLUSHES_INFLIGHT_MAX, SYNC_BLOCKS_MAX};
use crate::member::Member;
use crate::planted::{self, Bug};
use crate::segment::SetState;
use crate::volume::VolumeState;

/// A flush of members under way.
pub(super) struct MemberFlush {
    number: u64,
    /// Value of `appended` at its beginning, if it is of every member appended to since the flush before
    /// it: the appends that it covers. 0 for one of something else.
    marker: u64,
    /// Whether the members have answered, and those that failed have been noted.
    answered: bool,
    done: bool,
}

impl MemberFlush {
    pub(super) fn marker(&self) -> u64 {
        self.marker
    }
}

impl Core {
    /// Makes every completed append durable on behalf of a client of a volume, who will then go on.
    ///
    /// # Errors
    /// As [`Core::flush_members`].
    pub(crate) async fn flush_for_client(&self, v: &VolumeState) -> Result<()> {
        v.habit.note_flush();
        let _waiter = self.log.flush_waiters.guard();
        let began = self.log.has_volatile().then(|| self.rt.now());
        let flushed = self.flush_members().await;
        if let Some(began) = began.filter(|_| flushed.is_ok()) {
            self.log.ways.note_flushed(self.rt.now() - began);
        }
        flushed
    }

    /// Makes every completed append durable.
    ///
    /// # Errors
    /// If a member cannot be flushed (the pool has latched then, or had before).
    pub(crate) async fn flush_members(&self) -> Result<()> {
        let target = self.log.appended.get();
        loop {
            self.check_latch()?;
            if self.log.flushed.get() >= target {
                return Ok(());
            }
            if self.may_begin_flush(target) {
                self.flush_once().await;
                self.note_flushed();
                continue;
            }
            let flushed = || self.log.flushed.get() >= target || self.may_begin_flush(target);
            self.log.progress.until(|| flushed() || self.latched.get()).await;
        }
    }

    /// How a record is to become durable that is about to be written: for clients who flush what they write, write by write. `None`
    /// for any other, and where a FLUSH would have more to do than to make this one durable (INV-108): something before it is not,
    /// or something else is on its way.
    pub(super) fn way_of(&self, batch: &Batch) -> Option<Way> {
        // In parts it would be several requests, with a flush in each.
        let is_one = !batch.header && batch.parts.len() == 1;
        let is_alone = !self.log.has_volatile()
            && self.log.flushes.borrow().is_empty()
            && self.log.inflight.borrow().len() == 1;
        let can = || self.serving().all(|(_, member)| member.device.geometry().durable_writes);
        (is_one && is_alone && self.is_flush_expected(&batch.pending) && can())
            .then(|| self.log.ways.choose())
    }

    /// Whether all of these are clients' writes that will be flushed at once, if they do as before, and few blocks.
    fn is_flush_expected(&self, pending: &[Pending]) -> bool {
        let volumes = self.volumes.borrow();
        let is_flushing = |v: &Rc<VolumeState>| v.habit.is_flushing();
        let blocks: u32 = pending.iter().map(Pending::data_blocks).sum();
        let is_short = blocks <= SYNC_BLOCKS_MAX;
        is_short
            && pending.iter().all(|Pending { entry, .. }| {
                entry.kind == EntryKind::Write
                    && volumes.get(&entry.volume).is_some_and(is_flushing)
            })
    }

    /// A record that was written durably has been appended, as the last one so far: if all before it were durable, all
    /// are.
    pub(super) fn note_durable_append(&self) {
        let appended = self.log.appended.get();
        let is_next =
            self.log.flushed.get() + 1 == appended && self.log.flushes.borrow().is_empty();
        if is_next || planted::is(Bug::DurableAppendCoversAll) {
            planted::seen("log: durable append");
            self.log.flushed.set(appended);
            self.log.bytes_since_flush.set(0);
            self.note_durable(appended);
        }
    }

    /// Wakes whoever waits for a flush to count.
    fn note_flushed(&self) {
        self.log.progress.wake_all();
        // After the clients, whose next writes belong to what was held for them.
        for log in Stream::DIRTY.map(|stream| self.log.stream(stream)) {
            if !log.queue.borrow().is_empty() {
                log.work.wake_all();
            }
        }
    }

    /// Whether no flush under way covers `target`, and another one may begin beside them.
    fn may_begin_flush(&self, target: u64) -> bool {
        let flushes = self.log.flushes.borrow();
        let covered = flushes.iter().any(|flush| flush.marker >= target);
        let count = flushes.iter().filter(|flush| flush.marker > 0).count();
        !covered && count < FLUSHES_INFLIGHT_MAX
    }

    async fn flush_once(&self) {
        let marker = self.log.appended.get();
        let number = self.begin_flush(marker);
        self.log.bytes_since_flush.set(0);
        let mut flushes = Vec::with_capacity(self.members.len());
        for (index, member) in self.serving() {
            if member.unflushed.replace(false)
                && !(index == 1 && planted::is(Bug::FlushSkipsSecondMember))
            {
                add(&self.counters.member_flushes, 1);
                flushes.push((index, member.device.flush()));
            }
        }
        for (index, flush) in flushes {
            if let Err(error) = flush.done().await {
                self.fail_member(index, "flushing", error);
            }
        }
        self.answer_flush(number);
        if self.settle_members().await.is_ok() {
            self.end_flush(number);
        }
    }

    fn begin_flush(&self, marker: u64) -> u64 {
        let number = self.log.flush_number.get() + 1;
        self.log.flush_number.set(number);
        let flush = MemberFlush { number, marker, answered: false, done: false };
        self.log.flushes.borrow_mut().push_back(flush);
        number
    }

    fn answer_flush(&self, number: u64) {
        let mut flushes = self.log.flushes.borrow_mut();
        let own = flushes.iter_mut().find(|flush| flush.number == number);
        own.into_iter().for_each(|flush| flush.answered = true);
        self.log.progress.wake_all();
    }

    /// A flush counts only once all that began before it have ended too: it may have left out a
    /// member that one of them is still flushing; or one that is going to fail may have lost already
    /// what it should have covered, so that nothing was left for this one to fail at.
    fn end_flush(&self, number: u64) {
        let mut flushes = self.log.flushes.borrow_mut();
        if let Some(own) = flushes.iter_mut().find(|flush| flush.number == number) {
            own.done = true;
        }
        while let Some(first) = flushes.pop_front_if(|flush| flush.done) {
            let marker = first.marker.max(self.log.flushed.get());
            self.log.flushed.set(marker);
            self.note_durable(marker);
        }
    }

    /// Flushes every member, whatever was appended. One that fails is still named by the epoch.
    ///
    /// # Errors
    /// If the pool has latched.
    pub(crate) async fn flush_each(&self, what: &str) -> Result<()> {
        self.flush_some(what, |_| true).await
    }

    /// The same of some members, by their places.
    pub(crate) async fn flush_some(
        &self,
        what: &str,
        is_meant: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let number = self.begin_flush(0);
        let flush = |(index, member): (usize, &Member)| (index, member.device.flush());
        let meant = self.serving().filter(|(index, _)| is_meant(*index));
        let flushes: Vec<(usize, Io)> = meant.map(flush).collect();
        for (index, flush) in flushes {
            add(&self.counters.member_flushes, 1);
            if let Err(error) = flush.done().await {
                self.fail_member(index, &format!("flushing {what}"), error);
            }
        }
        self.answer_flush(number);
        let earlier = || {
            let flushes = self.log.flushes.borrow();
            flushes.iter().take_while(|f| f.number < number).all(|flush| flush.answered)
        };
        self.log.progress.until(|| earlier() || self.latched.get()).await;
        self.end_flush(number);
        // One that clients wait for may have waited for this.
        self.note_flushed();
        self.check_latch()
    }

    /// Advances what is known to be durable of the sets that are not closed.
    fn note_durable(&self, marker: u64) {
        let open = self.log.streams.iter().filter_map(|log| log.open.borrow().clone());
        let closing = self.log.closing.borrow();
        for set in open.chain(closing.iter().cloned()) {
            let records = set.records.borrow();
            let is_covered = |r: &&super::OpenRecord| r.marker.is_some_and(|m| m <= marker);
            let known = set.durable_records.get();
            let durable = known + records.iter().skip(known).take_while(is_covered).count();
            if durable == known {
                continue;
            }
            set.durable_records.set(durable);
            let footer = &records[durable - 1].footer;
            let end = footer.offset_blocks
                + u32::from(footer.header_blocks)
                + u32::from(footer.data_blocks);
            if let Some(set) = self.sets.borrow_mut().get_mut(set.id) {
                set.durable_blocks = set.durable_blocks.max(end);
            }
        }
    }

    /// Ends appending to a set; its footer follows in the background.
    pub(super) fn begin_close(self: &Rc<Self>, set: Rc<OpenSet>) {
        self.sets.borrow_mut().transition(set.id, SetState::Closing);
        if set.stream == Stream::Main {
            let records = set.records.borrow();
            let held: u32 = records.iter().map(|r| u32::from(r.footer.data_blocks)).sum();
            let packed = self.log.packed_blocks.get().min(self.segment_blocks);
            self.log.packed_blocks.set((3 * packed + held) / 4);
        }
        self.log.closing.borrow_mut().push(Rc::clone(&set));
        self.spawn(close(Rc::clone(self), set));
    }

    /// Ends appending to whatever set a stream has open.
    pub(crate) async fn close_stream(self: &Rc<Self>, stream: Stream) {
        let log = self.log.stream(stream);
        let _builder = log.builder.lock().await;
        let open = log.open.borrow_mut().take();
        if let Some(set) = open {
            if !set.records.borrow().is_empty() {
                self.begin_close(set);
            } else if self.lacks_copies(&set) || self.is_on_leaving(&set) {
                self.sets.borrow_mut().withdraw(set.id);
            } else {
                // Nothing was appended, so nothing tells of this set: its place is free again.
                *log.open.borrow_mut() = Some(set);
            }
        }
    }

    /// Whether a set has fewer copies than it would be opened with now.
    fn lacks_copies(&self, set: &OpenSet) -> bool {
        set.segments.len() < self.stream_copies(set.stream)
    }

    /// Whether a copy of a set is on a member that is to leave.
    fn is_on_leaving(&self, set: &OpenSet) -> bool {
        let sets = self.sets.borrow();
        set.segments.iter().any(|&segment| self.members[sets.member_of(segment)].is_leaving())
    }

    /// Ends appending to whatever set a stream has open on a member that is to leave.
    pub(crate) async fn close_leaving(self: &Rc<Self>, stream: Stream) {
        self.close_if(stream, |set| self.is_on_leaving(set)).await;
    }

    /// Ends appending to whatever set a stream has open with fewer copies than new ones have.
    pub(crate) async fn close_short(self: &Rc<Self>, stream: Stream) {
        self.close_if(stream, |set| self.lacks_copies(set)).await;
    }

    async fn close_if(self: &Rc<Self>, stream: Stream, unfit: impl Fn(&OpenSet) -> bool) {
        let unfit = self.log.stream(stream).open.borrow().as_deref().is_some_and(unfit);
        if unfit {
            self.close_stream(stream).await;
        }
    }

    /// Waits until no set waits for its footer.
    pub(crate) async fn await_closed(&self) -> Result<()> {
        self.log.progress.until(|| self.log.closing_count() == 0 || self.latched.get()).await;
        self.check_latch()
    }

    /// Writes the footer of a set whose records are durable.
    pub(crate) async fn write_footer(
        &self,
        set: SegmentId,
        segments: &[SegmentId],
        incarnation: Incarnation,
        stream: Stream,
        records: &[FooterRecord],
    ) -> std::result::Result<(), IoError> {
        let pool = self.superblock.borrow().pool;
        let trailer = FooterTrailer::new(pool, set, incarnation, stream, records);
        let bytes = encode_footer(&trailer, records);
        let data = Buf::copy_of(&bytes).freeze();
        let start = self.segment_blocks - (bytes.len() / BLOCK) as u32;
        let mut writes = Vec::with_capacity(segments.len());
        for (member, segment) in self.places_of(segments) {
            let (device, at) = self.place(segment, start);
            writes.push((member, device.device.write(at, data.clone())));
        }
        add(&self.counters.ssd_header_bytes, (bytes.len() * segments.len()) as u64);
        self.await_members(writes, Way::ByFlush).await;
        let settled = self.settle_members().await;
        self.note_append(bytes.len() as u64);
        if settled.is_err() || self.is_stray(set) {
            return Err(IoErrorKind::Other.into());
        }
        Ok(())
    }
}

/// Brings a full set to its footer.
async fn close(core: Rc<Core>, set: Rc<OpenSet>) {
    let log = &core.log;
    let complete = || set.records.borrow().iter().all(|record| record.marker.is_some());
    log.progress.until(|| complete() || core.latched.get()).await;
    let marker = set.records.borrow().iter().filter_map(|record| record.marker).max().unwrap_or(0);
    if !planted::is(Bug::FooterBeforeFlush) {
        core.housekeeping.wake_all();
        log.progress.until(|| log.flushed.get() >= marker || core.latched.get()).await;
    }
    if !core.latched.get() {
        let records = std::mem::take(&mut *set.records.borrow_mut());
        let records: Vec<FooterRecord> = records.into_iter().map(|record| record.footer).collect();
        if !core.is_stray(set.id) {
            let (segments, incarnation) = (&set.segments, set.incarnation);
            // What fails has latched the pool, or left the set without a copy.
            core.write_footer(set.id, segments, incarnation, set.stream, &records).await.ok();
        }
        if !core.latched.get() {
            core.note_closed(set.id);
        }
    }
    log.closing.borrow_mut().retain(|other| !Rc::ptr_eq(other, &set));
    core.room.wake_all();
    log.progress.wake_all();
    core.housekeeping.wake_all();
}

impl Core {
    /// A set's footer is written: only reclaim and overwriting change it from now on.
    pub(crate) fn note_closed(&self, id: SegmentId) {
        let mut sets = self.sets.borrow_mut();
        let segment_blocks = self.segment_blocks;
        sets.transition(id, SetState::Closed);
        let Some(set) = sets.get_mut(id) else { return };
        set.durable_blocks = segment_blocks;
        let data = set.holds_data();
        if data && set.is_empty() {
            sets.let_go(id, self.log.take_sequence());
        }
    }
}

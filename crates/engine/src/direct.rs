//! Writes that go straight to the origin, and TRIM and WRITE ZEROES.
//!
//! * Nothing goes straight to the origin while the log owes it any block of the range (INV-11).
//! * Before the origin is written, whatever the log could still show of the range is void, and
//!   that is durable: a tombstone, or, where there is one member, a provisional entry that carries
//!   the new data (INV-8).

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{Buf, Data, Io, io};

use crate::bypass::{Reason, Way};
use crate::core::{Core, STRIPE_BLOCKS};
use crate::error::Result;
use crate::format::{Entry, EntryKind, State, Stream};
use crate::ids::BLOCK_BYTES;
use crate::index::Mapping;
use crate::limits::{REGION_BLOCKS, ZERO_DIRECT_BYTES_MIN};
use crate::log::{Pending, Placed, append_error, new_entry};
use crate::origin::Unproven;
use crate::planted::{self, Bug};
use crate::read::{blocks_of, origin_error};
use crate::volume::VolumeState;

const BLOCK: usize = BLOCK_BYTES as usize;

/// A provisional entry on its way into the log.
struct Provisional {
    entry: Entry,
    io: Option<Io>,
    /// Whether it is in the log; known once `io` has been awaited.
    logged: bool,
    placed: Rc<Placed>,
}

impl Provisional {
    async fn settle(&mut self) {
        if let Some(io) = self.io.take() {
            self.logged = io.done().await.is_ok();
        }
    }
}

impl Core {
    /// Whether recovery could find something about these blocks in the log although, or because,
    /// it is or was cached.
    fn may_be_logged(&self, v: &VolumeState, first: u64, count: u32) -> bool {
        let shard = self.shard(v.id, first);
        let mut mapped = false;
        shard.index.borrow().lookup(v.id, first, count, |_| mapped = true);
        let dropped = shard.dropped.borrow().contains_key(&(v.id, first / STRIPE_BLOCKS));
        mapped
            || dropped
            || shard.locks.is_populating(v.id, first, u64::from(count))
            || self.doubts.has_record_of(v.id, first, count)
    }

    fn owes(&self, v: &VolumeState, first: u64, count: u32) -> bool {
        let mut owed = false;
        self.shard(v.id, first).index.borrow().lookup(v.id, first, count, |m| {
            owed |= m.state.is_owed() || m.state == State::Lost;
        });
        owed
    }

    /// Writes straight to the origin, and to the log as well if it `keeps` that. The caller holds the
    /// range lock and knows that nothing of the range is owed.
    pub(crate) async fn write_direct(
        &self,
        v: &Rc<VolumeState>,
        (way, why): (&Way, Reason),
        offset: u64,
        data: Data,
        keeps: bool,
    ) -> Result<()> {
        self.past(v, way, why, data.len() as u64);
        let (first, count) = blocks_of(offset, data.len() as u64);
        let logged = self.may_be_logged(v, first, count);
        let keeps = keeps && !self.latched.get();
        // A provisional entry may be lost with its member, and what it superseded be found on
        // another: only where there is no other does it say what a tombstone says.
        let alone = self.named_count() == 1;
        if logged && !alone {
            self.check_latch()?;
            let said = self.log_tombstones(v, &[(first, count)]).await;
            self.note_unless_void(v, first, &said);
            said?;
        }
        let mut provisional = Vec::new();
        if keeps && !self.index_is_tight() {
            provisional = self.log_provisional(v, offset, &data);
        }
        if logged {
            let mut covered = 0;
            for item in &mut provisional {
                item.settle().await;
                covered += if item.logged { item.entry.count } else { 0 };
            }
            let durable = self.void(v, first, count, !alone || covered == count).await;
            if durable.is_err() {
                self.map_provisional(v, provisional, None).await;
                return durable;
            }
        }
        let failures = v.origin.failures.get();
        let result = match way.passes() {
            true => v.origin.write_passing(offset, data).await,
            false => v.origin.write(offset, data).await,
        };
        let completed = v.origin.completed.get();
        v.origin.note_direct(first..first + u64::from(count), failures);
        let written = result.is_ok().then_some((completed, failures));
        self.map_provisional(v, provisional, written).await;
        result.map_err(|error| origin_error(v, "writing", error))
    }

    /// Makes sure that nothing older about a range can come back from the log: a durable
    /// tombstone, unless durable provisional entries say the same already.
    async fn void(&self, v: &VolumeState, first: u64, count: u32, said: bool) -> Result<()> {
        let durable = self.make_void(v, first, count, said).await;
        self.note_unless_void(v, first, &durable);
        durable
    }

    /// Remembers that what was void in the index already may not be so durably: nothing goes around the
    /// log there. The caller holds the range lock.
    pub(crate) fn note_unless_void(&self, v: &VolumeState, first: u64, durable: &Result<()>) {
        if durable.is_err() {
            planted::seen("void, and not durably");
            self.note_drop(v.id, first);
        }
    }

    async fn make_void(&self, v: &VolumeState, first: u64, count: u32, said: bool) -> Result<()> {
        self.check_latch()?;
        if !said {
            self.log_tombstones(v, &[(first, count)]).await?;
        }
        if planted::is(Bug::TombstoneNotDurable) || planted::is(Bug::TombstoneForgotten) {
            return Ok(());
        }
        self.flush_members().await
    }

    /// Logs that whatever the log holds of these runs of blocks is void; volatile until the next flush. The
    /// caller holds the range lock.
    pub(crate) async fn log_tombstones(&self, v: &VolumeState, runs: &[(u64, u32)]) -> Result<()> {
        if planted::is(Bug::TombstoneForgotten) {
            runs.iter().for_each(|&(first, count)| self.map_remove(v.id, first, count));
            return Ok(());
        }
        planted::seen("tombstone");
        let parts = runs.iter().flat_map(|&(first, count)| region_parts(first, count));
        let append = |(block, count)| {
            let entry = new_entry(EntryKind::Tombstone, v.id, block, count);
            self.log.append(Stream::Facts, entry, None)
        };
        let appends: Vec<_> = parts.map(append).collect();
        for append in appends {
            append.done().await.map_err(|error| append_error("writing a tombstone", error))?;
        }
        Ok(())
    }

    /// Queues the whole blocks of a write-through.
    fn log_provisional(&self, v: &VolumeState, offset: u64, data: &Data) -> Vec<Provisional> {
        let start = offset.div_ceil(BLOCK_BYTES);
        let end = (offset + data.len() as u64) / BLOCK_BYTES;
        let max = self.record_data_blocks();
        let mut out = Vec::new();
        let count = end.saturating_sub(start) as u32;
        for (region_first, region_count) in region_parts(start, count) {
            let mut done = 0;
            while done < region_count {
                let (at, blocks) = (region_first + u64::from(done), max.min(region_count - done));
                let from = (at * BLOCK_BYTES - offset) as usize;
                let part = data.slice(from..from + blocks as usize * BLOCK);
                let entry = new_entry(EntryKind::Provisional, v.id, at, blocks);
                let placed = Rc::new(Cell::new(None));
                let (completer, io) = io::pair();
                let pending = Pending {
                    placed: Some(Rc::clone(&placed)),
                    ..Pending::new(entry, Some(part), completer)
                };
                self.log.enqueue(Stream::Probation, pending);
                self.policy.borrow_mut().spend(blocks.into(), 0);
                out.push(Provisional { entry, io: Some(io), logged: false, placed });
                done += blocks;
            }
        }
        out
    }

    /// Maps what a write-through has logged, now that the origin has it (or lets go of it if not).
    /// `written` is what `completed` and `failures` of the origin were after and before its write.
    async fn map_provisional(
        &self,
        v: &VolumeState,
        items: Vec<Provisional>,
        written: Option<(u64, u64)>,
    ) {
        for mut item in items {
            item.settle().await;
            let (true, Some((location, distance, _))) = (item.logged, item.placed.get()) else {
                continue;
            };
            let Entry { block, count, sectors, .. } = item.entry;
            // After a failed flush nobody knows what the origin has.
            // Nor does anybody who finds it in a set that has failed.
            if let Some((completed, failures)) = written
                && !self.is_stray(self.sets.borrow().split(location).0)
                && failures == v.origin.failures.get()
                && self.keep_index_bound(v.id, block)
            {
                let state = State::Provisional;
                planted::seen("provisional mapped");
                let mapping = Mapping { block, count, state, location, distance, sectors };
                self.map_insert(v.id, mapping);
                let unproven = Unproven { block, count, location, state, drop: false };
                if v.origin.flushed.get() >= completed {
                    self.log_clean(v, &unproven);
                } else {
                    v.origin.unproven.borrow_mut().push((completed, unproven));
                }
            } else {
                self.release_unproven(location, State::Provisional);
            }
        }
    }

    /// Logs that whole blocks read as zeroes.
    async fn log_zeroes(&self, v: &Rc<VolumeState>, first: u64, count: u32) -> Result<()> {
        planted::seen("zero extent");
        let mut appends = Vec::new();
        for (block, count) in region_parts(first, count) {
            let entry = new_entry(EntryKind::Zero, v.id, block, count);
            appends.push(self.log.append(Stream::Facts, entry, None));
        }
        for append in appends {
            append.done().await.map_err(|error| append_error("writing a zero extent", error))?;
        }
        Ok(())
    }

    /// TRIM of a piece that lies in one stripe. Only whole blocks are trimmed; what the log holds
    /// becomes a zero extent, the rest is the origin's to discard.
    pub(crate) async fn trim_piece(
        &self,
        v: &Rc<VolumeState>,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let first = offset.div_ceil(BLOCK_BYTES);
        let end = (offset + len) / BLOCK_BYTES;
        if first >= end {
            return Ok(());
        }
        let count = (end - first) as u32;
        let shard = self.shard(v.id, first);
        let _guard = self.lock_for_change(v, first, count).await;
        let writes_back = self.mode_of(v).writes_back();
        let mut is_held = false;
        shard.index.borrow().lookup(v.id, first, count, |m| {
            is_held |= m.state.is_owed() || m.state == State::Lost || writes_back;
        });
        let logging = match is_held {
            true => self.admit_write(v, first, count).await?,
            false => None,
        };
        let logs_clean = writes_back && logging.is_some();
        let (mut zero, mut rest) = (Vec::new(), Vec::new());
        let mut at = first;
        shard.index.borrow().lookup(v.id, first, count, |m| {
            if m.state.is_owed() || m.state == State::Lost || logs_clean {
                rest.push((at, (m.block - at) as u32));
                zero.push((m.block, m.count));
                at = m.block + u64::from(m.count);
            }
        });
        rest.push((at, (end - at) as u32));
        for (block, count) in zero {
            self.log_zeroes(v, block, count).await?;
        }
        if !v.origin.device.geometry().discard {
            return Ok(());
        }
        for (block, count) in rest.into_iter().filter(|&(_, count)| count > 0) {
            if self.may_be_logged(v, block, count) {
                self.void(v, block, count, false).await?;
            }
            let bytes = u64::from(count) * BLOCK_BYTES;
            let failures = v.origin.failures.get();
            let result = v.origin.discard(block * BLOCK_BYTES, bytes).await;
            v.origin.note_direct(block..block + u64::from(count), failures);
            result.map_err(|error| origin_error(v, "discarding on", error))?;
        }
        Ok(())
    }

    /// WRITE ZEROES of a piece that lies in one stripe, of a request of `request_len` bytes.
    pub(crate) async fn zero_piece(
        &self,
        v: &Rc<VolumeState>,
        way: &Way,
        offset: u64,
        len: u64,
        request_len: u64,
    ) -> Result<()> {
        let (first, count) = blocks_of(offset, len);
        let _guard = self.lock_for_change(v, first, count).await;
        let short = self.mode_of(v).writes_back() && request_len <= ZERO_DIRECT_BYTES_MIN;
        let body_first = offset.div_ceil(BLOCK_BYTES);
        let body_end = ((offset + len) / BLOCK_BYTES).max(body_first);
        let (body_start_byte, body_end_byte) = (body_first * BLOCK_BYTES, body_end * BLOCK_BYTES);
        let inside = body_start_byte <= offset + len;
        let head = (offset, body_start_byte.min(offset + len));
        let tail = (body_end_byte.max(offset), offset + len);
        let edges = if inside { [head, tail] } else { [(offset, offset + len), (0, 0)] };
        let edges = edges.into_iter().filter(|(from, to)| from < to);
        let logging = match short || self.owes(v, first, count) {
            true => self.admit_write(v, first, count).await?,
            false => None,
        };
        if let Some(_logging) = logging {
            for (from, to) in edges {
                self.log_partial(v, from, Buf::zeroed((to - from) as usize).freeze()).await?;
            }
            return self.log_zeroes(v, body_first, (body_end - body_first) as u32).await;
        }
        let why = if self.mode_of(v).writes_back() {
            Reason::Zeroes
        } else {
            self.why_direct(v, way, true)
        };
        self.past(v, way, why, len);
        if self.may_be_logged(v, first, count) {
            self.void(v, first, count, false).await?;
        }
        let failures = v.origin.failures.get();
        let mut result = Ok(());
        for (from, to) in edges {
            let zeroes = Buf::zeroed((to - from) as usize).freeze();
            result = result.and(v.origin.write(from, zeroes).await);
        }
        if body_first < body_end {
            let bytes = body_end_byte - body_start_byte;
            result = result.and(v.origin.write_zeroes(body_start_byte, bytes).await);
        }
        v.origin.note_direct(first..first + u64::from(count), failures);
        result.map_err(|error| origin_error(v, "zeroing on", error))
    }
}

/// A run of blocks, cut where regions begin.
pub(crate) fn region_parts(first: u64, count: u32) -> impl Iterator<Item = (u64, u32)> {
    let end = first + u64::from(count);
    let mut at = first;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let until = end.min((at / REGION_BLOCKS + 1) * REGION_BLOCKS);
        let part = (at, (until - at) as u32);
        at = until;
        Some(part)
    })
}

//! Writing one piece into the log.
//!
//! * The range lock is held from before the mode is looked at until the new version is published.
//! * What does not fill a block is merged with what the log holds of it; if the log holds nothing,
//!   the block is logged with a mask of the sectors it has.

use std::rc::Rc;

use forebay_device::{Buf, Data, Io};

use crate::bypass::{Reason, Way};
use crate::core::Core;
use crate::count::Counted;
use crate::counters::add;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{Entry, EntryKind, State, Stream};
use crate::ids::{BLOCK_BYTES, Location, SECTOR_BYTES, SECTORS_ALL};
use crate::index::Mapping;
use crate::limits::{PARTIALS_MAX, REGION_BLOCKS};
use crate::log::{append_error, new_entry};
use crate::memory::IndexClaim;
use crate::planted::{self, Bug, seen};
use crate::policy::{Access, Part, Queue};
use crate::read::{blocks_of, origin_error, overlay};
use crate::throttle::Flow;
use crate::volume::VolumeState;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Counts a logged write between its look at `may_be_dirty` and its publication, and has room for it in the index.
pub(crate) struct Logging<'a> {
    _counted: Counted<'a>,
    claim: Option<IndexClaim<'a>>,
}

/// The sectors of a block that a byte range within it covers, as a mask.
pub(crate) fn sector_mask(within: usize, len: usize) -> u8 {
    let sector = SECTOR_BYTES as usize;
    let (first, last) = (within / sector, (within + len) / sector);
    (first..last).fold(0, |mask, i| mask | 1 << i)
}

impl Core {
    /// Writes bytes behind the last whole block: they are never cached.
    pub(crate) async fn write_tail(
        &self,
        v: &Rc<VolumeState>,
        way: &Way,
        client: &Rc<Flow>,
        offset: u64,
        data: Data,
    ) -> Result<()> {
        let (first, _) = blocks_of(offset, 1);
        let guard = self.shard(v.id, first).locks.lock(&self.ram, v.id, first, 1).await;
        if first < v.blocks() && !planted::is(Bug::TailOfOldSize) {
            // The volume has grown since the request was cut.
            drop(guard);
            return self.write_piece(v, way, client, offset, data).await;
        }
        self.past(v, way, Reason::Tail, data.len() as u64);
        let failures = v.origin.failures.get();
        let result = v.origin.write(offset, data).await;
        // Also for the day when these bytes are part of a block (INV-41).
        v.origin.note_direct(first..first + 1, failures);
        result.map_err(|error| origin_error(v, "writing", error))
    }

    /// Writes a piece that lies in one stripe.
    pub(crate) async fn write_piece(
        &self,
        v: &Rc<VolumeState>,
        way: &Way,
        client: &Rc<Flow>,
        offset: u64,
        data: Data,
    ) -> Result<()> {
        let (first, count) = blocks_of(offset, data.len() as u64);
        let enough = !way.passes() && self.is_written_enough(v, first, count);
        let thrifty = enough && self.is_left_out(v, first, count);
        let shard = self.shard(v.id, first);
        let mut may_go_on = false;
        let (_guard, mut coming) = loop {
            // Until it is published, or fails.
            let mut coming = None;
            let known = || self.known_blocks(v, first, count);
            let wanted = || enough && !(thrifty && known() == 0);
            if self.mode_of(v).writes_back() && (wanted() || known() == count) {
                coming = self.claim(v, first, count).await;
                self.pace(v, client, offset, data.len() as u64).await;
            }
            let guard = shard.locks.lock(&self.ram, v.id, first, u64::from(count)).await;
            if may_go_on || !self.is_urgent(v, first, count) {
                break (guard, coming);
            }
            drop((guard, coming));
            may_go_on = Box::pin(self.until_not_urgent(v, first, count)).await;
        };
        let (mut mapped, mut owed, mut lost, mut last) = (0, 0, false, None);
        {
            let mut index = shard.index.borrow_mut();
            index.lookup(v.id, first, count, |m| {
                mapped += m.count;
                owed += if m.state.is_owed() { m.count } else { 0 };
                lost |= m.state == State::Lost;
                last = Some(m.location);
            });
            if !way.passes() && last.is_some_and(|at| self.is_reuse(at)) {
                index.touch(v.id, first, count);
            }
        }
        let lies_at = last.filter(|_| mapped == count);
        if !way.passes() {
            self.note_access(v, first, count, Access::Write, mapped == count);
        }
        add(&self.counters.write_hits, u64::from(mapped == count));
        // What is cached is written there, however seldom that is.
        let cached = mapped == count && v.thresholds.get().write > 0;
        let left_out = thrifty && mapped == 0;
        let keeps = (enough && !left_out) || cached;
        let owes = owed > 0 && !(way.passes() && planted::is(Bug::StreamPastDirty));
        let logging = match (self.mode_of(v).writes_back() && keeps) || owes || lost {
            true => self.admit_write(v, first, count).await?,
            false => None,
        };
        let written = if let Some(_logging) = logging {
            let stream = if self.is_kept_apart(owed, count) {
                Stream::Rewritten
            } else {
                self.dirty_stream(v, (first, count), lies_at)
            };
            let logged = self.write_logged(v, stream, offset, data.clone()).await;
            if logged.is_ok() {
                v.habit.note_write();
                self.refresh_ram(v, offset, &data);
            }
            logged
        } else {
            // It is not to find what it has claimed itself.
            coming = None;
            let bringing = match keeps && !self.spares_members(v) {
                true => self.claim_clean(v, count, mapped),
                false => None,
            };
            let keeps = bringing.is_some();
            let why = match left_out && !keeps {
                true => Reason::WriteBudget,
                false => self.why_direct(v, way, keeps),
            };
            self.write_direct(v, (way, why), offset, data, keeps).await
        };
        drop(coming);
        written
    }

    /// Of how many blocks of a range the log holds anything.
    fn known_blocks(&self, v: &VolumeState, first: u64, count: u32) -> u32 {
        let mut mapped = 0;
        self.shard(v.id, first).index.borrow().lookup(v.id, first, count, |m| mapped += m.count);
        mapped
    }

    /// Whether a write of `count` blocks of which so many are owed goes to [`Stream::Rewritten`].
    pub(crate) fn is_kept_apart(&self, owed: u32, count: u32) -> bool {
        let apart = owed == count && self.writing.is_shared();
        if apart {
            seen("write kept apart: rewritten");
        }
        apart
    }

    /// The stream for another write, of what ends at `lies_at` if all of it is cached. While room is short
    /// there is one for all: records of two would be half as long, each with a header of its own.
    fn dirty_stream(
        &self,
        v: &VolumeState,
        (first, count): (u64, u32),
        lies_at: Option<Location>,
    ) -> Stream {
        if self.throttle.is_active() {
            return Stream::Dirty;
        }
        let sets = self.sets.borrow();
        let queue = lies_at.and_then(|location| sets.get(sets.split(location).0)?.queue());
        let mut policy = self.policy.borrow_mut();
        let mut places = Part::each(v.id, first, count).map(|part| policy.place(part, queue));
        match places.any(|place| place == Queue::Main) {
            false => Stream::Dirty,
            true => {
                seen("write to main");
                Stream::DirtyMain
            }
        }
    }

    /// Logs a write that is admitted. The caller holds the range lock.
    async fn write_logged(
        &self,
        v: &Rc<VolumeState>,
        stream: Stream,
        offset: u64,
        data: Data,
    ) -> Result<()> {
        add(&self.counters.write_logged_bytes, data.len() as u64);
        if stream != Stream::Rewritten {
            self.throttle.note_dirty(data.len() as u64);
        }
        let end = offset + data.len() as u64;
        let body_start = offset.next_multiple_of(BLOCK_BYTES);
        let body_end = end / BLOCK_BYTES * BLOCK_BYTES;
        if body_start == offset && body_end == end {
            return self.log_blocks(v, stream, offset / BLOCK_BYTES, data).await;
        }
        let part =
            |from: u64, to: u64| data.slice((from - offset) as usize..(to - offset) as usize);
        if offset < body_start {
            self.log_partial(v, offset, part(offset, end.min(body_start))).await?;
        }
        if body_start < body_end {
            let body = part(body_start, body_end);
            self.log_blocks(v, stream, body_start / BLOCK_BYTES, body).await?;
        }
        if body_end >= body_start && body_end < end {
            self.log_partial(v, body_end, part(body_end, end)).await?;
        }
        Ok(())
    }

    /// Everything that must hold before dirty records of these blocks of one stripe may exist, as long as what this
    /// returns is there. `None` if the volume cannot be written back for now; it owes nothing then.
    pub(crate) async fn admit_write<'a>(
        &'a self,
        v: &'a Rc<VolumeState>,
        first: u64,
        count: u32,
    ) -> Result<Option<Logging<'a>>> {
        self.check_latch()?;
        let mut logging = Logging { _counted: v.logging.guard(), claim: None };
        v.clean_looks.set(0);
        if !v.may_be_dirty.get() && !self.set_may_be_dirty(v).await? {
            seen("written through without a witness");
            return Ok(None);
        }
        let claim = || match self.partials.get() < PARTIALS_MAX as u64 {
            true => self.claim_index(v.id, first, count),
            false => None,
        };
        logging.claim = claim();
        if logging.claim.is_none() {
            seen("write waits for the index");
            add(&self.counters.throttled_writes, 1);
            self.housekeeping.wake_all();
            let waiting = self.index_claims.waiters.guard();
            self.room
                .until(|| {
                    logging.claim = claim();
                    logging.claim.is_some() || self.latched.get()
                })
                .await;
            drop(waiting);
        }
        self.check_latch()?;
        Ok(Some(logging))
    }

    /// Logs whole blocks from `first` on.
    async fn log_blocks(
        &self,
        v: &VolumeState,
        stream: Stream,
        first: u64,
        data: Data,
    ) -> Result<()> {
        let end = first + (data.len() / BLOCK) as u64;
        self.policy.borrow_mut().spend(end - first, 0);
        let mut max = u64::from(self.record_data_blocks());
        let share = self.share_of(v);
        if let Some(share) = share {
            max = max.min(share / BLOCK_BYTES);
        }
        let mut appends: Vec<Io> = Vec::new();
        let mut at = first;
        while at < end {
            let border = end.min((at / REGION_BLOCKS + 1) * REGION_BLOCKS);
            // Even parts: a long record and a tiny one cost as much, and leave more room unused at
            // a segment's end.
            let records = (border - at).div_ceil(max);
            let until = at + (border - at).div_ceil(records);
            let entry = new_entry(EntryKind::Write, v.id, at, (until - at) as u32);
            let from = (at - first) as usize * BLOCK;
            let part = data.slice(from..(until - first) as usize * BLOCK);
            if let Some(share) = share {
                seen("write served by its volume's share");
                let _served = v.service.serve(share, part.len() as u64).await;
                let append = self.log.append(stream, entry, Some(part));
                append.done().await.map_err(|e| append_error("writing to the log", e))?;
                at = until;
                continue;
            }
            let append = self.log.append(stream, entry, Some(part));
            if at == first && until == end {
                return append.done().await.map_err(|e| append_error("writing to the log", e));
            }
            appends.push(append);
            at = until;
        }
        let mut result = Ok(());
        for append in appends {
            result = result.and(append.done().await);
        }
        result.map_err(|error| append_error("writing to the log", error))
    }

    /// Logs a part of one block, completed as far as the log knows the rest.
    pub(crate) async fn log_partial(&self, v: &VolumeState, offset: u64, data: Data) -> Result<()> {
        let block = offset / BLOCK_BYTES;
        let within = (offset - block * BLOCK_BYTES) as usize;
        let mask = sector_mask(within, data.len());
        let (mut whole, known) = self.known_part(v, block).await?;
        seen(match known | mask {
            SECTORS_ALL => "sub-block write: block whole",
            sectors if sectors == mask => "sub-block write: new partial block",
            _ => "sub-block write: partial block grows",
        });
        whole[within..within + data.len()].copy_from_slice(&data);
        let entry = Entry { sectors: known | mask, ..new_entry(EntryKind::Write, v.id, block, 1) };
        let append = self.log.append(Stream::Dirty, entry, Some(whole.freeze()));
        append.done().await.map_err(|error| append_error("writing to the log", error))
    }

    /// What the log knows of a block: its bytes, and a mask of the sectors that are meant.
    async fn known_part(&self, v: &VolumeState, block: u64) -> Result<(Buf, u8)> {
        let mut found: Option<Mapping> = None;
        self.shard(v.id, block).index.borrow().lookup(v.id, block, 1, |m| found = Some(m));
        let Some(m) = found else { return Ok((Buf::zeroed(BLOCK), 0)) };
        match m.state {
            State::Zero | State::ZeroWritten => Ok((Buf::zeroed(BLOCK), SECTORS_ALL)),
            State::Lost => {
                Box::pin(self.until_losses_noted()).await;
                let what = format!("block {block} of volume \"{}\" is lost", v.name);
                Err(Error::new(ErrorKind::Io, what)
                    .hint("overwrite it in whole blocks of 4 KiB, or restore it"))
            }
            _ => {
                // Verified, for the merged block gets a checksum of its own; pinned meanwhile, so
                // that its content stays right even if it is evicted.
                let mut whole = Buf::zeroed(BLOCK);
                match self.read_verified(m.location, m.distance, 1).await {
                    Ok(old) => overlay(&mut whole, &old, m.sectors),
                    Err(_) if m.state.is_owed() && self.is_stray_at(m.location) => {
                        Box::pin(self.until_marked()).await?;
                        return Box::pin(self.known_part(v, block)).await;
                    }
                    Err(error) if m.state.is_owed() => {
                        match Box::pin(self.reread(v.id, &m)).await {
                            Ok(None) => return Box::pin(self.known_part(v, block)).await,
                            Ok(Some(old)) => overlay(&mut whole, &old, m.sectors),
                            Err(_) => return Err(error),
                        }
                    }
                    Err(_) => {
                        // The origin has the rest. Nobody else keeps what is looked at from being evicted meanwhile.
                        if self.is_still(v.id, &m) {
                            let set = self.sets.borrow_mut().pin(m.location);
                            Box::pin(self.drop_met(v.id, &m)).await;
                            self.unpin(set);
                        }
                        return Ok((whole, 0));
                    }
                }
                Ok((whole, m.sectors))
            }
        }
    }
}

//! Makes records of what is queued: how much fits, which set it goes to, what its bytes are.

use std::rc::Rc;

use forebay_device::{Buf, Data, IoErrorKind};

use super::{BLOCK, OpenRecord, OpenSet, Pending, StreamLog, data_location};
use crate::apply::RecordPlace;
use crate::core::Core;
use crate::counters::add;
use crate::error::Result;
use crate::format::{
    EntryKind, FooterRecord, NO_DATA, RecordHeader, SegmentHeader, Stream, checksum,
    encode_record_header, footer_blocks_for, header_blocks_for,
};
use crate::ids::{BLOCK_BYTES, SegmentId, Sequence};
use crate::limits::APART_BLOCKS_MIN;
use crate::marks::Loss;
use crate::planted::{self, Bug};

/// Everything needed to write one record.
pub(super) struct Batch {
    pub set: Rc<OpenSet>,
    pub index: usize,
    pub place: RecordPlace,
    pub sequence: Sequence,
    /// The record: as one piece, or header and data apart.
    pub parts: Vec<Data>,
    pub header: bool,
    pub pending: Vec<Pending>,
    /// The newest loss when it was built.
    pub loss: Loss,
}

impl Core {
    /// How many entries at the head of a queue fit one record in what is left of a set.
    fn fitting(&self, log: &StreamLog, set: &OpenSet) -> (usize, u32) {
        let room = self.segment_blocks - set.next_block.get();
        let records = set.records.borrow().len() + 1;
        let (mut count, mut data) = (0, 0);
        for pending in log.queue.borrow().iter().take_while(|item| !self.log.is_kept(item)) {
            let blocks = data + pending.data_blocks();
            let header = header_blocks_for(count + 1, blocks as usize) as u32;
            let total = header + blocks;
            let footer = footer_blocks_for(records, set.entries.get() as usize + count + 1);
            // A record of nothing but facts would be all header, whose length is kept in 8 bits.
            let fits = header <= u32::from(u8::MAX) && total <= self.record_blocks_max;
            if !fits || total + footer > room {
                break;
            }
            (count, data) = (count + 1, blocks);
        }
        (count, data)
    }

    /// Takes what is due from a stream's queue and makes a record of it. The builder's lock is
    /// held by the caller.
    pub(super) async fn next_batch(self: &Rc<Self>, log: &StreamLog) -> Result<Option<Batch>> {
        loop {
            let current = log.open.borrow().clone();
            let Some(set) = current else {
                match self.open_set(log.stream).await? {
                    Some(set) => *log.open.borrow_mut() = Some(set),
                    None => return Ok(None),
                }
                continue;
            };
            if self.is_degraded(&set) {
                self.end_degraded(log);
                continue;
            }
            self.purge(log);
            let is_kept = || log.queue.borrow().front().is_some_and(|item| self.log.is_kept(item));
            if is_kept() {
                planted::seen("append: behind a fact");
                self.log.progress.until(|| !is_kept() || self.latched.get()).await;
                self.check_latch()?;
                continue;
            }
            let (count, data_blocks) = self.fitting(log, &set);
            if count == 0 && log.queue.borrow().is_empty() {
                return Ok(None);
            }
            if count > 0 && self.losses.is_marking() && log.stream != Stream::Metadata {
                // What is lost is noted as of an instant in which nothing is on its way.
                self.epoch_begun.until(|| !self.losses.is_marking() || self.latched.get()).await;
                self.check_latch()?;
                continue;
            }
            if count > 0 {
                return Ok(Some(self.build(log, set, count, data_blocks)));
            }
            assert!(!set.records.borrow().is_empty(), "every entry fits an empty set");
            log.open.borrow_mut().take();
            self.begin_close(set);
        }
    }

    /// Drops queued populations that a writer has overtaken: in the log they would stand behind the
    /// write and win over it in replay.
    fn purge(&self, log: &StreamLog) {
        let void = |item: &Pending| item.population.as_ref().is_some_and(|p| !p.is_valid());
        if !log.queue.borrow().iter().any(void) || planted::is(Bug::PopulationAfterWrite) {
            return;
        }
        let queue = std::mem::take(&mut *log.queue.borrow_mut());
        let (voided, kept): (Vec<_>, Vec<_>) = queue.into_iter().partition(void);
        *log.queue.borrow_mut() = kept.into();
        for item in voided {
            log.queued_blocks.set(log.queued_blocks.get() - item.data_blocks());
            add(&self.counters.populate_voided, 1);
            self.finish_pending(item, Err(IoErrorKind::Other.into()));
        }
    }

    fn build(&self, log: &StreamLog, set: Rc<OpenSet>, count: usize, data_blocks: u32) -> Batch {
        let mut pending: Vec<Pending> = log.queue.borrow_mut().drain(..count).collect();
        log.queued_blocks.set(log.queued_blocks.get() - data_blocks);
        log.held_until.set(None);
        log.ripe.set(log.queue.borrow().iter().any(Pending::is_awaited));
        let header_blocks = header_blocks_for(count, data_blocks as usize);
        let apart = match &mut pending[..] {
            [only] if data_blocks >= APART_BLOCKS_MIN => only.data.clone(),
            _ => None,
        };
        let copied = if apart.is_some() { 0 } else { data_blocks as usize };
        let mut buf = Buf::new((header_blocks + copied) * BLOCK);
        let mut checksums = Vec::with_capacity(data_blocks as usize);
        let mut entries = Vec::with_capacity(count);
        for item in &mut pending {
            if let Some(data) = item.data.take() {
                item.entry.data = checksums.len() as u16;
                for block in data.chunks_exact(BLOCK) {
                    if apart.is_none() {
                        let at = (header_blocks + checksums.len()) * BLOCK;
                        buf[at..at + BLOCK].copy_from_slice(block);
                    }
                    checksums.push(checksum(block));
                }
            }
            entries.push(item.entry);
        }
        let offset = set.next_block.get();
        let sequence = self.log.take_sequence();
        self.log.inflight.borrow_mut().insert(sequence.0);
        let head = RecordHeader {
            pool: self.superblock.borrow().pool,
            set: set.id,
            incarnation: set.incarnation,
            offset_blocks: offset,
            sequence,
            header_blocks: header_blocks as u8,
            data_blocks: data_blocks as u16,
            entry_count: count as u16,
        };
        encode_record_header(&head, &entries, &checksums, &mut buf[..header_blocks * BLOCK]);
        let place = RecordPlace {
            header: self.sets.borrow().location(set.id, offset),
            header_blocks: header_blocks as u32,
        };
        for item in &pending {
            if let Some(placed) = &item.placed {
                let data = data_location(place, &item.entry);
                placed.set(Some((data, (data.0 - place.header.0) as u8, sequence)));
            }
        }
        self.count_bytes(log.stream, &pending, header_blocks, &set);
        set.next_block.set(offset + header_blocks as u32 + data_blocks);
        set.entries.set(set.entries.get() + count as u32);
        let index = set.records.borrow().len();
        set.records.borrow_mut().push(OpenRecord {
            footer: FooterRecord {
                sequence,
                offset_blocks: offset,
                header_blocks: header_blocks as u8,
                data_blocks: data_blocks as u16,
                entries,
            },
            marker: None,
        });
        let header = !set.header_written.replace(true);
        let parts = [buf.freeze()].into_iter().chain(apart).collect();
        let loss = self.losses.last();
        Batch { set, index, place, sequence, parts, header, pending, loss }
    }

    fn count_bytes(&self, stream: Stream, pending: &[Pending], headers: usize, set: &OpenSet) {
        let copies = set.segments.len() as u64;
        let c = &self.counters;
        add(&c.records, 1);
        let header = headers as u64 * BLOCK_BYTES * copies;
        match stream {
            Stream::Facts => add(&c.ssd_fact_bytes, header),
            Stream::Metadata => add(&c.ssd_checkpoint_bytes, header),
            _ => add(&c.ssd_header_bytes, header),
        }
        let mut overhead = headers as u64;
        for item in pending {
            if item.entry.data == NO_DATA {
                continue;
            }
            let counter = match item.entry.kind {
                EntryKind::Populate => &c.ssd_populate_bytes,
                EntryKind::Move => &c.ssd_move_bytes,
                EntryKind::Image => {
                    overhead += u64::from(item.entry.count);
                    &c.ssd_checkpoint_bytes
                }
                _ => &c.ssd_write_bytes,
            };
            add(counter, u64::from(item.entry.count) * BLOCK_BYTES * copies);
        }
        self.policy.borrow_mut().spend_overhead(overhead);
    }

    pub(super) fn segment_header(&self, set: &OpenSet, segment: SegmentId, member: usize) -> Data {
        let header = SegmentHeader {
            pool: self.superblock.borrow().pool,
            device: self.members[member].id,
            segment,
            set: set.id,
            incarnation: set.incarnation,
            stream: set.stream,
            epoch: self.log.epoch.get(),
            partners: set.segments.clone(),
        };
        Buf::copy_of(&header.encode()).freeze()
    }
}

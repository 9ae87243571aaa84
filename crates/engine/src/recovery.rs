//! Start: from what is on the members to an index that is right, before the first request.
//!
//! Order (each step may be repeated by a crash at any point of it):
//! 1. newest root of any member; segment headers, from which the set table is rebuilt
//! 2. images of all shards
//! 3. records behind the images: from footers, or by scanning sets that have none
//! 4. replay in sequence order
//! 5. what was `written` is dirty again, what was provisional and not proven is void; what members
//!    that are gone took with them is dropped or lost ([`crate::losses`])
//! 6. records on fewer copies than their set has: owed data is appended again, clean data dropped
//! 7. headers on all copies of the scanned sets, flush, their footers, recovery record, flush; after
//!    a loss, a lap
//!
//! Which records are adopted is decided by [`crate::adoption`].

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use forebay_device::{Buf, Io, IoErrorKind};

use crate::adoption::{Adoption, RecordFacts, adopt};
use crate::apply::RecordPlace;
use crate::checkpoint::{flusher, housekeeper, root_offset};
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    Entry, EntryKind, FooterRecord, RecordHeader, Root, SegmentHeader, SlotChoice, State, Stream,
    checksum, decode_record,
};
use crate::ids::{BLOCK_BYTES, Location, SegmentId, Sequence, VolumeId};
use crate::index::{Mapping, shard_of};
use crate::limits::REGION_BLOCKS;
use crate::log::{append_error, new_entry};
use crate::membership::trust_in;
use crate::planted::{self, Bug};
use crate::segment::{Set, SetState};
use crate::sound::check_counter;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Reads in flight while headers and footers are looked at.
const READS_MAX: usize = 64;

/// Sequences left out after a start, so that none of a record that was never adopted comes again.
const SEQUENCE_GAP: u64 = 1 << 20;

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
    /// Blocks appended again because a copy was missing.
    pub blocks_reappended: u64,
    /// Bytes read from the members.
    pub bytes_read: u64,
    /// Clean blocks dropped because of members that are gone.
    pub blocks_dropped: u64,
    /// Blocks whose only copies are gone, and which the origin may lack: reading them fails.
    pub blocks_lost: u64,
}

/// A record found in a set without a footer.
struct Scanned {
    footer: FooterRecord,
    copies: usize,
}

/// A set without a footer.
struct OpenAtCrash {
    id: SegmentId,
    records: Vec<Scanned>,
}

impl Core {
    /// Rebuilds everything from the members. Nothing but the superblocks was written before.
    pub(crate) async fn recover(self: &Rc<Self>) -> Result<RecoveryReport> {
        let mut report = RecoveryReport::default();
        let mut root = self.newest_root().await?;
        check_counter("generation of the root", root.generation)?;
        // The root may be in a volatile cache only; what it frees must not be reused before it is
        // durable.
        self.flush_all("what the last run left").await?;
        // Only the start right after it may believe it: a later one may have appended and crashed.
        report.clean_stop = root.clean_stop && root.start_number == self.log.start_number.get() - 1;
        let trust = trust_in(&self.superblock.borrow(), &root, report.clean_stop);
        self.root_generation.set(root.generation);
        self.settle_root(&root).await?;
        let headers = self.read_headers(&mut report).await?;
        let newest = headers.iter().map(|h| h.incarnation.counter).max().unwrap_or(0);
        let newest = newest.max(root.open_counter);
        check_counter("counter of the newest segment", newest)?;
        self.log.open_counter.set(newest);
        self.adopt_sets(headers);
        let loaded = self.load_images(&mut root, trust, &mut report).await?;
        let withheld = self.withhold(&loaded);
        let open = self.replay(&root, &mut report).await?;
        self.forget_removed();
        self.settle_states();
        self.settle_losses(trust, &mut report);
        self.start_accounting();
        self.release_obsolete(&root, &loaded.needed, &open);
        self.start_log();
        // They may have to make the room that the next step needs.
        self.spawn(flusher(Rc::clone(self)));
        self.housekept.set(true);
        self.spawn(housekeeper(Rc::clone(self)));
        self.restore_copies(&open, &mut report).await?;
        self.finish(open).await?;
        self.forget_rest(&loaded, withheld).await?;
        self.recovering.set(false);
        report.blocks = self.shards.iter().map(|s| s.index.borrow().block_count()).sum();
        report.owed_blocks = self.owed_blocks();
        Ok(report)
    }

    /// The valid root with the highest generation on any member.
    async fn newest_root(&self) -> Result<Root> {
        let (pool, bytes) = {
            let superblock = self.superblock.borrow();
            (superblock.pool, superblock.root_bytes)
        };
        let mut best: Option<Root> = None;
        for member in &self.members {
            let mut slots = Vec::new();
            for slot in 0..2 {
                let buf = Buf::new(bytes as usize);
                let outcome = member.device.read(root_offset(bytes, slot), buf).await;
                slots.push(match (outcome.result, outcome.buf) {
                    (Ok(()), Some(buf)) => Root::decode(&buf),
                    _ => Err(crate::format::FormatError::Truncated),
                });
            }
            if let SlotChoice::Refused(error) = Root::choose(&slots[0], &slots[1]) {
                return Err(Error::new(
                    ErrorKind::Future,
                    format!("a root cannot be read: {error}"),
                )
                .hint("use the Forebay version that wrote it, or a later one"));
            }
            for root in slots.into_iter().flatten().filter(|root| root.pool == pool) {
                if best.as_ref().is_none_or(|best| root.generation > best.generation) {
                    best = Some(root);
                }
            }
        }
        let count = self.shards.len();
        best.filter(|root| root.images.len() == count).ok_or_else(|| {
            Error::new(ErrorKind::Damaged, "no readable root on any cache device")
                .hint("see both root slots with `forebay inspect`; nothing has been changed")
        })
    }

    /// Puts the chosen root into every slot that holds another one. A crash between the two slots
    /// of a root leaves the older one in slot 1; what the newer one frees is reused from now on, so
    /// nobody may fall back to the older one when the next root tears slot 0. The slots that hold
    /// the chosen root are not touched.
    async fn settle_root(&self, root: &Root) -> Result<()> {
        let bytes = self.superblock.borrow().root_bytes;
        let data = Buf::copy_of(&root.encode()).freeze();
        for slot in 0..2 {
            for member in &self.members {
                let at = root_offset(bytes, slot);
                let outcome = member.device.read(at, Buf::new(bytes as usize)).await;
                let held = outcome.buf.and_then(|buf| Root::decode(&buf).ok());
                if outcome.result.is_ok() && held.as_ref() == Some(root) {
                    continue;
                }
                if let Err(error) = member.device.write(at, data.clone()).done().await {
                    self.latch(&format!("writing a root to cache device {}", member.id), error);
                }
            }
            self.flush_all("a root").await?;
        }
        Ok(())
    }

    /// Every valid segment header of this pool.
    ///
    /// # Errors
    /// If a header cannot be read: what the device does not return is not the same as nothing.
    async fn read_headers(&self, report: &mut RecoveryReport) -> Result<Vec<SegmentHeader>> {
        let mut segments = Vec::new();
        for member in self.superblock.borrow().present() {
            segments.extend(
                (member.segment_base..member.segment_base + member.segment_count).map(SegmentId),
            );
        }
        let pool = self.superblock.borrow().pool;
        let mut headers = Vec::new();
        for batch in segments.chunks(READS_MAX) {
            let reads: Vec<(SegmentId, Io)> = batch
                .iter()
                .map(|&segment| {
                    let (member, at) = self.place(segment, 0);
                    (segment, member.device.read(at, Buf::new(BLOCK)))
                })
                .collect();
            for (segment, read) in reads {
                report.bytes_read += BLOCK_BYTES;
                let first = read.await;
                let bytes = match (first.result, first.buf) {
                    (Ok(()), Some(buf)) => buf,
                    _ => self.read_again(segment, 0, BLOCK).await?,
                };
                let Ok(header) = SegmentHeader::decode(&bytes) else { continue };
                let member = self.sets.borrow().member_of(segment);
                let ours = header.pool == pool
                    && header.segment == segment
                    && header.device == self.members[member].id
                    && header.partners.iter().all(|&p| self.sets.borrow().has_number(p));
                if ours {
                    headers.push(header);
                }
            }
        }
        Ok(headers)
    }

    /// Reads a part of a segment whose first read failed.
    async fn read_again(&self, segment: SegmentId, block: u32, len: usize) -> Result<Buf> {
        let (member, at) = self.place(segment, block);
        let outcome = member.device.read(at, Buf::new(len)).await;
        match (outcome.result, outcome.buf) {
            (Ok(()), Some(buf)) => Ok(buf),
            (result, _) => {
                let error = result.err().unwrap_or(IoErrorKind::Other.into());
                Err(Error::io(format!("reading cache device {} at {at}", member.id), error)
                    .hint("nothing has been changed; what it does not return may be dirty data"))
            }
        }
    }

    /// Builds the set table: the newest header that names a segment decides whose it is.
    fn adopt_sets(&self, mut headers: Vec<SegmentHeader>) {
        headers.sort_by_key(|header| std::cmp::Reverse(header.incarnation));
        let mut claimed = BTreeSet::new();
        let mut sets = self.sets.borrow_mut();
        for header in headers {
            if sets.get(header.set).is_some_and(|set| set.incarnation == header.incarnation)
                || header.partners.iter().any(|segment| claimed.contains(segment))
                || header.partners.first() != Some(&header.set)
            {
                continue;
            }
            claimed.extend(header.partners.iter().copied());
            let mut segments = header.partners;
            segments.retain(|&segment| sets.knows(segment));
            sets.put(Set {
                id: header.set,
                segments,
                incarnation: header.incarnation,
                stream: header.stream,
                state: SetState::Closing,
                live_blocks: 0,
                owed_blocks: 0,
                written_blocks: 0,
                pins: 0,
                last_sequence: Sequence(0),
                durable_blocks: self.segment_blocks,
            });
        }
        sets.claim(&claimed);
    }

    /// Replays everything behind the images; returns the sets that have no footer.
    async fn replay(&self, root: &Root, report: &mut RecoveryReport) -> Result<Vec<OpenAtCrash>> {
        let lowest = root.images.iter().map(|image| image.watermark).min().unwrap_or_default();
        let ids: Vec<SegmentId> = self.sets.borrow().iter().map(|set| set.id).collect();
        let mut records: Vec<(Sequence, RecordPlace, Vec<Entry>)> = Vec::new();
        let mut open = Vec::new();
        let mut highest = root.sequence;
        for id in ids {
            let stream = self.sets.borrow().get(id).map(|set| set.stream);
            if stream == Some(Stream::Metadata) {
                self.set_closed(id, Sequence(0));
                continue;
            }
            match self.closed_records(id, lowest, report).await {
                Some((last, found)) => {
                    highest = highest.max(last);
                    self.set_closed(id, last);
                    self.collect(id, found.into_iter(), &mut records);
                }
                None => {
                    let set = self.scan(id, report).await?;
                    let last = set.records.iter().map(|r| r.footer.sequence).max();
                    let last = last.unwrap_or_default();
                    highest = highest.max(last);
                    if let Some(set) = self.sets.borrow_mut().get_mut(id) {
                        set.last_sequence = last;
                    }
                    self.collect(id, set.records.iter().map(|r| r.footer.clone()), &mut records);
                    open.push(set);
                }
            }
        }
        check_counter("sequence of the newest record", highest.0)?;
        self.log.resume(Sequence(highest.0 + SEQUENCE_GAP));
        records.sort_by_key(|(sequence, ..)| *sequence);
        for (sequence, place, entries) in records {
            report.records_replayed += 1;
            for entry in entries.iter().filter(|e| e.kind.names_blocks() && self.is_sound(e)) {
                let shard = shard_of(entry.volume, entry.block, self.shards.len() as u32);
                if sequence > root.images[shard as usize].watermark {
                    self.apply(entry, place, true);
                }
            }
        }
        Ok(open)
    }

    fn set_closed(&self, id: SegmentId, last: Sequence) {
        if let Some(set) = self.sets.borrow_mut().get_mut(id) {
            set.last_sequence = last;
            set.transition(SetState::Closed);
        }
    }

    fn collect(
        &self,
        id: SegmentId,
        found: impl Iterator<Item = FooterRecord>,
        into: &mut Vec<(Sequence, RecordPlace, Vec<Entry>)>,
    ) {
        let length = |r: &FooterRecord| u32::from(r.header_blocks) + u32::from(r.data_blocks);
        for record in found.filter(|r| self.is_record_length(r.offset_blocks, length(r))) {
            let place = RecordPlace {
                header: self.sets.borrow().location(id, record.offset_blocks),
                header_blocks: u32::from(record.header_blocks),
            };
            into.push((record.sequence, place, record.entries));
        }
    }

    /// The records of a set with a footer, if they reach behind `lowest`; `None` without a footer.
    async fn closed_records(
        &self,
        id: SegmentId,
        lowest: Sequence,
        report: &mut RecoveryReport,
    ) -> Option<(Sequence, Vec<FooterRecord>)> {
        let (segments, incarnation) = {
            let sets = self.sets.borrow();
            let set = sets.get(id)?;
            (set.segments.clone(), set.incarnation)
        };
        for segment in segments {
            report.bytes_read += BLOCK_BYTES;
            let Some(trailer) = self.read_trailer(segment).await else { continue };
            if trailer.set != id || trailer.incarnation != incarnation {
                continue;
            }
            if trailer.last_sequence <= lowest {
                return Some((trailer.last_sequence, Vec::new()));
            }
            report.bytes_read += u64::from(trailer.body_blocks()) * BLOCK_BYTES;
            if let Some(records) = self.read_footer_body(segment, &trailer).await {
                return Some((trailer.last_sequence, records));
            }
        }
        None
    }

    /// Reads a set without a footer in full and takes every record that is whole on any copy.
    ///
    /// # Errors
    /// If no copy can be read: there may be acknowledged records in it.
    async fn scan(&self, id: SegmentId, report: &mut RecoveryReport) -> Result<OpenAtCrash> {
        report.sets_scanned += 1;
        let segments = self.sets.borrow().get(id).map(|s| s.segments.clone()).unwrap_or_default();
        let mut found: BTreeMap<u32, Scanned> = BTreeMap::new();
        let mut failure = None;
        let mut readable = false;
        for segment in segments {
            report.bytes_read += self.segment_bytes;
            match self.read_again(segment, 0, self.segment_bytes as usize).await {
                Ok(bytes) => {
                    readable = true;
                    self.scan_copy(id, &bytes, &mut found);
                }
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) if !readable => Err(error),
            _ => Ok(OpenAtCrash { id, records: found.into_values().collect() }),
        }
    }

    fn scan_copy(&self, id: SegmentId, bytes: &[u8], found: &mut BTreeMap<u32, Scanned>) {
        let (mut block, mut hole) = (1, false);
        while block < self.segment_blocks {
            let at = block as usize * BLOCK;
            let facts = self.record_facts(id, block, &bytes[at..]);
            match (adopt(&facts), facts.record) {
                (Adoption::Adopt, Some((record, entries))) => {
                    if hole {
                        planted::seen("start: record behind a hole");
                    }
                    let length = record.blocks();
                    found.entry(block).and_modify(|scanned| scanned.copies += 1).or_insert_with(
                        || Scanned { footer: FooterRecord::new(&record, entries), copies: 1 },
                    );
                    block += length;
                }
                _ => (block, hole) = (block + 1, true),
            }
        }
    }

    /// What can be said of the bytes at a place where a record may begin.
    fn record_facts(&self, id: SegmentId, block: u32, bytes: &[u8]) -> RecordFacts {
        let none = RecordFacts::default();
        let Ok(peeked) = RecordHeader::peek(&bytes[..BLOCK]) else { return none };
        let header = self.sets.borrow().location(id, block);
        let belongs = self.is_record_at(&peeked, header);
        let length = peeked.blocks() as usize * BLOCK;
        let fits = self.is_record_length(block, peeked.blocks()) && length <= bytes.len();
        let facts = RecordFacts { head_valid: true, belongs, fits, ..none };
        if !belongs {
            planted::seen("start: record of an earlier life");
        }
        if !belongs || !fits {
            return facts;
        }
        let Ok((record, entries, sums)) = decode_record(&bytes[..peeked.header_bytes()]) else {
            return facts;
        };
        let blocks = bytes[record.header_bytes()..length].chunks_exact(BLOCK);
        let whole = blocks.zip(&sums).all(|(block, &sum)| checksum(block) == sum);
        if !whole {
            planted::seen("start: torn record");
        }
        let data_valid = whole || planted::is(Bug::TornRecordAdopted);
        RecordFacts { entries_valid: true, data_valid, record: Some((record, entries)), ..facts }
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

    fn start_accounting(&self) {
        self.sets.borrow_mut().accounting = true;
        for shard in &self.shards {
            let found = mappings(&shard.index.borrow());
            for (volume, m) in found {
                self.count_in(volume, &m);
            }
        }
    }

    /// Appends again what is owed and not on all copies; drops what is clean and not on all.
    async fn restore_copies(
        self: &Rc<Self>,
        open: &[OpenAtCrash],
        report: &mut RecoveryReport,
    ) -> Result<()> {
        let mut moves = Vec::new();
        for set in open {
            let (copies, wanted) = {
                let sets = self.sets.borrow();
                let Some(info) = sets.get(set.id) else { continue };
                (info.segments.len(), self.copies_wanted(info))
            };
            for record in set.records.iter().filter(|record| record.copies < wanted) {
                let torn = record.copies < copies;
                let first = self.sets.borrow().location(set.id, record.footer.offset_blocks);
                let end = Location(first.0 + u64::from(record.footer.end_blocks()));
                for entry in record.footer.entries.iter().filter(|e| e.has_data()) {
                    self.restore_entry(entry, first..end, torn, &mut moves, report).await?;
                }
            }
        }
        for append in moves {
            let append: Io = append;
            append.done().await.map_err(|e| append_error("restoring copies", e))?;
        }
        Ok(())
    }

    async fn restore_entry(
        &self,
        entry: &Entry,
        record: std::ops::Range<Location>,
        torn: bool,
        moves: &mut Vec<Io>,
        report: &mut RecoveryReport,
    ) -> Result<()> {
        let mut live = Vec::new();
        let shard = self.shard(entry.volume, entry.block);
        shard.index.borrow().lookup(entry.volume, entry.block, entry.count, |m| {
            if m.state.has_data() && record.contains(&m.location) {
                live.push(m);
            }
        });
        for m in live {
            if !m.state.is_owed() {
                if torn {
                    self.evict(entry.volume, m.block, m.count, m.location);
                }
                continue;
            }
            let data = self.read_verified(m.location, m.distance, m.count).await?;
            report.blocks_reappended += u64::from(m.count);
            let entry = Entry {
                state: Some(m.state),
                sectors: m.sectors,
                from: Some(m.location),
                ..new_entry(EntryKind::Move, entry.volume, m.block, m.count)
            };
            moves.push(self.log.append(Stream::Dirty, entry, Some(data)));
        }
        Ok(())
    }

    /// Puts the header of a set onto those of its members that did not get it before the crash: what
    /// a footer says there could not be found once the members that have it were gone.
    async fn restore_header(&self, id: SegmentId) -> Result<()> {
        let (segments, incarnation) = {
            let sets = self.sets.borrow();
            let Some(set) = sets.get(id) else { return Ok(()) };
            (set.segments.clone(), set.incarnation)
        };
        let (mut found, mut lacking) = (None, Vec::new());
        for segment in segments {
            let bytes = match self.read_again(segment, 0, BLOCK).await {
                Ok(bytes) => bytes,
                Err(_) => self.read_again(segment, 0, BLOCK).await?,
            };
            match SegmentHeader::decode(&bytes) {
                Ok(header) if header.set == id && header.incarnation == incarnation => {
                    found = Some(header);
                }
                _ => lacking.push(segment),
            }
        }
        let Some(found) = found else { return Ok(()) };
        let mut writes = Vec::with_capacity(lacking.len());
        for segment in lacking {
            let member = self.sets.borrow().member_of(segment);
            let header =
                SegmentHeader { segment, device: self.members[member].id, ..found.clone() };
            let (device, at) = self.place(segment, 0);
            let data = Buf::copy_of(&header.encode()).freeze();
            writes.push((member, device.device.write(at, data)));
        }
        let written = self.await_writes(writes).await;
        written.map_err(|error| append_error("writing the header of a segment", error))
    }

    /// Headers and footers for what was open, then the recovery record, all durable.
    async fn finish(&self, open: Vec<OpenAtCrash>) -> Result<()> {
        // Before the footers: who finds one does not look at the headers again.
        for set in &open {
            self.restore_header(set.id).await?;
        }
        self.flush_all("recovered data").await?;
        for set in open {
            let (segments, incarnation, stream) = {
                let sets = self.sets.borrow();
                let Some(info) = sets.get(set.id) else { continue };
                (info.segments.clone(), info.incarnation, info.stream)
            };
            let records: Vec<FooterRecord> = set.records.into_iter().map(|r| r.footer).collect();
            // Without one it is read in full again next time.
            if !records.is_empty() && self.fits_footer(&records) {
                self.write_footer(set.id, &segments, incarnation, stream, &records)
                    .await
                    .map_err(|error| append_error("writing a footer", error))?;
            }
            self.note_closed(set.id);
        }
        let entry = Entry {
            extra: self.log.start_number.get(),
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
        let lowest = root.images.iter().map(|image| image.watermark).min().unwrap_or_default();
        let mut sets = self.sets.borrow_mut();
        let ids: Vec<SegmentId> = sets.iter().map(|set| set.id).collect();
        for id in ids {
            let Some(set) = sets.get_mut(id) else { continue };
            let data = set.holds_data();
            if !set.is_empty() || open.iter().any(|set| set.id == id) {
                continue;
            }
            if !needed.contains(&id) && set.last_sequence <= lowest {
                set.transition(SetState::Emptied(set.last_sequence));
                set.transition(SetState::Discarding);
                sets.release(id);
            } else if data {
                sets.empty(id, self.log.take_sequence());
            }
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

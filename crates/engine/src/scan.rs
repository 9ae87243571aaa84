//! Sets without a footer, read in full at a start: those that were open at a crash, and those whose footer cannot
//! be read any more.
//!
//! * What a device cannot read is not torn. A torn record was never acknowledged, and one that was may have a bad
//!   sector. So a record whose header is good is adopted, whatever sectors of its data cannot be read: what is dirty in
//!   them, and in no other copy, is lost (INV-86), and nothing older is read in its place. If another copy returns the
//!   place of its header and does not have the record, whatever else of it cannot be read, nobody was told of it: it is
//!   gone.
//! * Nothing else is given up: what was returned here and is not any more when it is appended again keeps the pool
//!   from opening, for the device may be failing altogether.
//! * What such a record has moved is still where it was moved from, for no root has been written since.
//! * Where the header itself may be what cannot be read nobody knows what was there: it is for whoever else has it, or none. No
//!   record reaches into the blocks at the end that its set's footer takes.
//! * What is returned, and does not fit, counts as torn: nobody can tell that from damage here.

use std::collections::{BTreeMap, BTreeSet};

use forebay_device::{Buf, IoError, IoErrorKind};

use crate::adoption::{Adoption, RecordFacts, adopt};
use crate::core::Core;
use crate::error::Result;
use crate::format::{
    EntryKind, FooterRecord, RecordHeader, checksum, decode_record, footer_blocks_for,
};
use crate::ids::{BLOCK_BYTES, SegmentId};
use crate::index::Mapping;
use crate::limits::SCRUB_READ_BLOCKS;
use crate::member::Member;
use crate::planted::{self, Bug};
use crate::recovery::RecoveryReport;

const BLOCK: usize = BLOCK_BYTES as usize;

/// A set without a footer, and the records found in it.
pub(crate) struct OpenAtCrash {
    pub id: SegmentId,
    pub records: Vec<FooterRecord>,
    /// Blocks from the segment's start that no copy returns.
    bad: BTreeSet<u32>,
}

impl OpenAtCrash {
    /// The records with what counts of them in a replay.
    pub(crate) fn replayed(&self) -> impl Iterator<Item = FooterRecord> {
        self.records.iter().map(|record| {
            let data = record.offset_blocks + u32::from(record.header_blocks);
            let mut record = record.clone();
            record.entries.retain(|entry| {
                let first = data + u32::from(entry.data);
                let moves = entry.kind == EntryKind::Move && entry.has_data();
                !moves || self.bad.range(first..first + entry.count).next().is_none()
            });
            record
        })
    }

    /// Whether something of it could not be read.
    pub(crate) fn is_hurt(&self) -> bool {
        !self.bad.is_empty()
    }

    /// Whether a run, and the header of its record, are there; `first` is where it begins in the segment.
    pub(crate) fn has_all(&self, m: &Mapping, first: u32) -> bool {
        let header = first.saturating_sub(u32::from(m.distance));
        let is_known = self.records.iter().any(|record| record.offset_blocks == header);
        is_known && self.bad_parts(m, first).is_empty()
    }

    /// The parts of a run that no copy returned when the set was read, `first` being where it begins in the segment.
    pub(crate) fn bad_parts(&self, m: &Mapping, first: u32) -> Vec<Mapping> {
        let mut parts: Vec<(u32, u32)> = Vec::new();
        for at in self.bad.range(first..first + m.count).map(|block| block - first) {
            match parts.last_mut() {
                Some((start, count)) if *start + *count == at => *count += 1,
                _ => parts.push((at, 1)),
            }
        }
        parts.into_iter().map(|(at, count)| m.part(at, count)).collect()
    }
}

/// What a device returns of a segment; what it does not is zeroes.
struct Returned {
    bytes: Buf,
    bad: BTreeSet<u32>,
}

/// What is found in the copies of a set, by the blocks from its start.
#[derive(Default)]
struct Found {
    adopted: BTreeMap<u32, FooterRecord>,
    /// Whole in no copy so far, because of what is not returned.
    partial: BTreeMap<u32, FooterRecord>,
    /// Ends of the records whose headers are good, adopted or not.
    known: BTreeMap<u32, u32>,
    /// What each copy does not return, and where it has records, whole or not.
    copies: Vec<(BTreeSet<u32>, BTreeSet<u32>)>,
}

impl Found {
    /// Adopts what is whole in no copy, if there is none that could have it whole.
    fn adopt_partial(&mut self) {
        for (block, record) in std::mem::take(&mut self.partial) {
            let header = block..block + u32::from(record.header_blocks);
            let mut copies = self.copies.iter();
            if copies.all(|(bad, has)| {
                has.contains(&block) || bad.range(header.clone()).next().is_some()
            }) {
                self.adopted.entry(block).or_insert(record);
            }
        }
    }

    /// The blocks that no copy returns.
    fn bad_everywhere(&self) -> BTreeSet<u32> {
        let all = self.copies.iter().map(|(bad, _)| bad.clone()).reduce(|all, bad| &all & &bad);
        all.unwrap_or_default()
    }

    /// The first of these blocks in which a record may begin that nobody knows.
    fn nameless(&self, bad: &BTreeSet<u32>, segment_blocks: u32) -> Option<u32> {
        let entries = self.adopted.values().map(|record| record.entries.len()).sum();
        let footer = segment_blocks.saturating_sub(footer_blocks_for(self.adopted.len(), entries));
        let is_known = |block: u32| {
            self.known.range(..=block).next_back().is_some_and(|(_, end)| block < *end)
        };
        bad.iter().copied().find(|&block| (1..footer).contains(&block) && !is_known(block))
    }
}

impl Core {
    /// Reads a set without a footer in full and takes every record that is whole on any copy, or is not as far as it
    /// cannot be read.
    ///
    /// `is_known` says that the images know all that is in it. Then what the medium has lost costs what is found there when it
    /// is asked for, as in a running pool (INV-86), and never the start.
    ///
    /// # Errors
    /// If no copy can be read, or one may have records that nobody knows: there may be acknowledged ones in it.
    pub(crate) async fn scan(
        &self,
        id: SegmentId,
        is_known: bool,
        report: &mut RecoveryReport,
    ) -> Result<OpenAtCrash> {
        report.sets_scanned += 1;
        loop {
            // A start that has ended reads no further.
            self.check_latch()?;
            let (segment, block, error) = match self.scan_once(id, is_known, report).await {
                Ok(set) => return Ok(set),
                Err(unreturned) => unreturned,
            };
            let (member, _) = self.place(segment, block);
            if !self.rest_for(member).await {
                return Err(self.unreturned(segment, block, error));
            }
        }
    }

    /// The same; where it could not be read, and why.
    async fn scan_once(
        &self,
        id: SegmentId,
        is_known: bool,
        report: &mut RecoveryReport,
    ) -> std::result::Result<OpenAtCrash, (SegmentId, u32, IoError)> {
        let segments = self.sets.borrow().get(id).map(|s| s.segments.clone()).unwrap_or_default();
        let (mut found, mut failure, mut whose) = (Found::default(), None, Vec::new());
        for &segment in &segments {
            report.bytes_read += self.segment_bytes;
            match self.read_segment(segment).await {
                // Where the images know all, a place that the medium has lost is one like any other.
                Ok(returned) if !is_known && returned.bad.len() == self.segment_blocks as usize => {
                    failure = Some((segment, 0, IoErrorKind::Media.into()));
                }
                Ok(returned) => {
                    let has = self.scan_copy(id, &returned, &mut found);
                    found.copies.push((returned.bad, has));
                    whose.push(segment);
                }
                Err((block, error)) => failure = Some((segment, block, error)),
            }
        }
        if let Some(failure) = failure.filter(|_| found.copies.is_empty()) {
            return Err(failure);
        }
        found.adopt_partial();
        let bad = found.bad_everywhere();
        let nameless = found.nameless(&bad, self.segment_blocks).filter(|_| !is_known);
        if let Some(block) = nameless {
            return Err((whose[0], block, IoErrorKind::Media.into()));
        }
        if !bad.is_empty() {
            planted::seen("start: sectors that cannot be read");
        }
        Ok(OpenAtCrash { id, records: found.adopted.into_values().collect(), bad })
    }

    /// What a device returns of a segment, block by block where it must be.
    ///
    /// # Errors
    /// Where it fails in another way than by its medium, and how: that says nothing about what is there.
    async fn read_segment(
        &self,
        segment: SegmentId,
    ) -> std::result::Result<Returned, (u32, IoError)> {
        let blocks = self.segment_blocks;
        let (member, _) = self.place(segment, 0);
        match self.read_blocks(segment, 0, blocks).await {
            Ok(bytes) => return Ok(Returned { bytes, bad: BTreeSet::new() }),
            Err(error) if error.kind != IoErrorKind::Media => return Err((0, error)),
            Err(_) => self.check_silence(member).await?,
        }
        let mut returned =
            Returned { bytes: Buf::zeroed(blocks as usize * BLOCK), bad: BTreeSet::new() };
        for first in (0..blocks).step_by(SCRUB_READ_BLOCKS as usize) {
            let end = blocks.min(first + SCRUB_READ_BLOCKS);
            if !self.read_into(segment, first, end - first, &mut returned).await? {
                for block in first..end {
                    if !self.read_into(segment, block, 1, &mut returned).await? {
                        returned.bad.insert(block);
                    }
                }
            }
        }
        self.check_silence(member).await?;
        Ok(returned)
    }

    /// A member that returns nothing at all has not lost just what was read.
    async fn check_silence(&self, member: &Member) -> std::result::Result<(), (u32, IoError)> {
        self.silence_of(member).await.map_or(Ok(()), |error| Err((0, error)))
    }

    /// Reads a part of a segment; false if the device cannot.
    async fn read_into(
        &self,
        segment: SegmentId,
        first: u32,
        count: u32,
        returned: &mut Returned,
    ) -> std::result::Result<bool, (u32, IoError)> {
        match self.read_blocks(segment, first, count).await {
            Ok(part) => {
                let at = first as usize * BLOCK;
                returned.bytes[at..at + part.len()].copy_from_slice(&part);
                Ok(true)
            }
            Err(error) if error.kind == IoErrorKind::Media && self.check_latch().is_ok() => {
                Ok(false)
            }
            Err(error) => Err((first, error)),
        }
    }

    async fn read_blocks(
        &self,
        segment: SegmentId,
        first: u32,
        count: u32,
    ) -> std::result::Result<Buf, IoError> {
        let (member, at) = self.place(segment, first);
        self.read_member(member, at, count as usize * BLOCK).await
    }

    /// Takes what is whole, or is not as far as it is not returned; where records begin.
    fn scan_copy(&self, id: SegmentId, returned: &Returned, found: &mut Found) -> BTreeSet<u32> {
        let mut has = BTreeSet::new();
        let (mut block, mut hole) = (1, false);
        while block < self.segment_blocks {
            let facts = self.record_facts(id, block, returned);
            if let (true, Some((record, _))) = (facts.entries_valid, &facts.record) {
                found.known.insert(block, block + record.blocks());
            }
            match (adopt(&facts), facts.record) {
                (Adoption::Adopt, Some((record, entries))) => {
                    if hole {
                        planted::seen("start: record behind a hole");
                    }
                    let length = record.blocks();
                    let is_whole = returned.bad.range(block..block + length).next().is_none();
                    let into = if is_whole { &mut found.adopted } else { &mut found.partial };
                    into.entry(block).or_insert_with(|| FooterRecord::new(&record, entries));
                    has.insert(block);
                    block += length;
                }
                _ => (block, hole) = (block + 1, true),
            }
        }
        has
    }

    /// What can be said of the bytes at a place where a record may begin.
    fn record_facts(&self, id: SegmentId, block: u32, returned: &Returned) -> RecordFacts {
        let bytes = &returned.bytes[block as usize * BLOCK..];
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
        let first = block + u32::from(record.header_blocks);
        let whole = (first..)
            .zip(blocks)
            .zip(&sums)
            .all(|((block, bytes), &sum)| checksum(bytes) == sum || returned.bad.contains(&block));
        if !whole {
            planted::seen("start: torn record");
        }
        let data_valid = whole || planted::is(Bug::TornRecordAdopted);
        RecordFacts { entries_valid: true, data_valid, record: Some((record, entries)), ..facts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Sequence;

    /// What is whole nowhere was acknowledged only if each copy may have had it.
    #[test]
    fn what_a_copy_shows_to_be_missing_is_not_adopted() {
        let record = FooterRecord {
            sequence: Sequence(9),
            offset_blocks: 4,
            header_blocks: 1,
            data_blocks: 3,
            entries: Vec::new(),
        };
        let is_adopted = |copies: &[(&[u32], bool)]| {
            let copy = |(bad, has): &(&[u32], bool)| {
                (bad.iter().copied().collect(), has.then_some(4).into_iter().collect())
            };
            let copies = copies.iter().map(copy).collect();
            let partial = BTreeMap::from([(4, record.clone())]);
            let mut found = Found { partial, copies, ..Found::default() };
            found.adopt_partial();
            found.adopted.contains_key(&4)
        };
        assert!(is_adopted(&[(&[6], true)]), "there is no other");
        assert!(is_adopted(&[(&[6], true), (&[4], false)]), "its header is not returned there");
        assert!(is_adopted(&[(&[6], true), (&[5], true)]), "it is there as well");
        assert!(!is_adopted(&[(&[6], true), (&[], false)]));
        assert!(!is_adopted(&[(&[6], true), (&[7], false)]), "another block is not returned");
    }
}

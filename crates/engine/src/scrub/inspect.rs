//! What the copies of a record are like, block by block.
//!
//! * A block is good in a copy if it fits the checksum in that copy's own header: with a header that does
//!   not verify, whoever has this copy alone cannot tell what it holds.
//! * Bytes that fit the checksum in any good header are right, whatever copy they come from: the header
//!   says by its own checksum to which life of which set it belongs.
//! * What does not fit is read a second time before it counts: a bit may have been flipped on its way.
//! * Where a device cannot read several blocks together, each is read alone: one bad sector is no reason to do
//!   without its neighbours.
//! * Whatever error a member that serves gives, the block cannot be read there, and is to be had elsewhere. Only
//!   one that speaks of the medium is reason enough to call the block lost: after any other it may be
//!   there the next time.

use std::ops::Range;

use forebay_device::{Buf, Data, IoErrorKind};

use crate::core::Core;
use crate::format::{RecordHeader, State, checksum, decode_checksums};
use crate::ids::{BLOCK_BYTES, Location};
use crate::limits::SCRUB_READ_BLOCKS;
use crate::planted::{self, Bug};
use crate::verify::joined;
use crate::walk::Run;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Blocks of a record, as its copies hold them.
pub(crate) struct Inspection {
    /// The wanted blocks; nothing where no copy has one good.
    pub blocks: Vec<Option<Data>>,
    /// For each of them the copies that are not good, as bits.
    pub bad: Vec<u8>,
    /// The copies whose header is not good, as bits.
    pub bad_headers: u8,
    /// Bytes read.
    pub bytes: u64,
    /// Whether an error is among what was met that says nothing about the medium.
    pub is_unsure: bool,
}

/// What one copy of a record has returned.
struct Look {
    /// The checksum of each wanted block, if the header is good.
    sums: Option<Vec<u32>>,
    /// The wanted blocks, as far as the device can read them.
    blocks: Vec<Option<Data>>,
    bytes: u64,
    is_unsure: bool,
}

/// What one read of a copy has returned.
enum Part {
    Bytes(Data),
    /// The medium cannot return them.
    Unreadable,
    /// The member serves, and does not say why it cannot.
    Refused,
}

impl Part {
    fn bytes(self) -> Option<Data> {
        match self {
            Part::Bytes(bytes) => Some(bytes),
            Part::Unreadable | Part::Refused => None,
        }
    }
}

impl Inspection {
    /// Of what was looked at, dirty blocks that are good in no copy and may be there the next time.
    pub(super) fn unsure_count(&self, live: &[Run]) -> u64 {
        let states = live.iter().flat_map(|(_, m)| (0..m.count).map(|_| m.state));
        let gone = states
            .zip(&self.blocks)
            .filter(|(state, block)| self.is_unsure && *state == State::Dirty && block.is_none());
        gone.count() as u64
    }
}

fn fits(block: Option<&Data>, sum: u32) -> bool {
    block.is_some_and(|block| checksum(block) == sum)
}

impl Look {
    fn is_good(&self) -> bool {
        let fit = |sums: &Vec<u32>| {
            self.blocks.iter().zip(sums).all(|(block, sum)| fits(block.as_ref(), *sum))
        };
        self.sums.as_ref().is_some_and(fit)
    }

    /// Takes from another look at the same copy what is good only there.
    fn mend(&mut self, other: Look) {
        self.bytes += other.bytes;
        self.is_unsure = other.is_unsure;
        if self.sums.is_none() {
            self.sums = other.sums;
        }
        for (i, block) in other.blocks.into_iter().enumerate() {
            let sum = self.sums.as_ref().map(|sums| sums[i]);
            if sum.is_none_or(|sum| !fits(self.blocks[i].as_ref(), sum)) {
                self.blocks[i] = block.or(self.blocks[i].take());
            }
        }
    }
}

impl Core {
    /// Reads `wanted` blocks of a record, counted from its header's first, from every copy. The ranges
    /// are in order; the header has at most `head` blocks. Nothing if a member serves no more, or the
    /// copies are not the same any more.
    pub(crate) async fn inspect(
        &self,
        header: Location,
        head: u32,
        wanted: &[Range<u32>],
    ) -> Option<Inspection> {
        let copies_now = || {
            let sets = self.sets.borrow();
            let set = sets.get(sets.split(header).0)?;
            Some((set.incarnation, set.segments.clone()))
        };
        let before = copies_now()?;
        let mut looks = Vec::with_capacity(before.1.len());
        for copy in 0..before.1.len() {
            let mut look = self.look(header, head, wanted, copy).await?;
            if !look.is_good() {
                look.mend(self.look(header, head, wanted, copy).await?);
            }
            looks.push(look);
        }
        (copies_now()? == before && !looks.is_empty()).then(|| compare(&looks))
    }

    async fn look(
        &self,
        header: Location,
        head: u32,
        wanted: &[Range<u32>],
        copy: usize,
    ) -> Option<Look> {
        let end = wanted.last().map_or(head, |range| range.end);
        let mut look = Look { sums: None, blocks: Vec::new(), bytes: 0, is_unsure: false };
        // Facts may be nothing but a long header, which is checked as a whole.
        let is_header_alone = wanted.iter().all(|range| range.is_empty());
        let step = if is_header_alone { end.max(1) } else { SCRUB_READ_BLOCKS };
        if step > SCRUB_READ_BLOCKS {
            planted::seen("scrub: a long header");
        }
        for first in (0..end).step_by(step as usize) {
            let until = end.min(first + step);
            let within = |range: &Range<u32>| range.start.max(first)..range.end.min(until);
            if first > 0 && wanted.iter().all(|range| within(range).is_empty()) {
                continue;
            }
            look.bytes += u64::from(until - first) * BLOCK_BYTES;
            let at = |block: u32| Location(header.0 + u64::from(block));
            let piece = match self.read_part(at(first), until - first, copy).await? {
                Part::Bytes(piece) => {
                    (0..until - first).map(|i| Some(block_of(&piece, i))).collect()
                }
                Part::Unreadable | Part::Refused => {
                    let is_wanted = |block: u32| {
                        block < head || wanted.iter().any(|range| range.contains(&block))
                    };
                    let mut piece = Vec::new();
                    for block in first..until {
                        let alone = match is_wanted(block) {
                            true => self.read_part(at(block), 1, copy).await?,
                            false => Part::Unreadable,
                        };
                        look.is_unsure |= matches!(alone, Part::Refused);
                        piece.push(alone.bytes());
                    }
                    piece
                }
            };
            if first == 0 {
                look.sums = self.sums(header, &piece, wanted);
            }
            let blocks = wanted.iter().flat_map(within);
            look.blocks.extend(blocks.map(|block| piece[(block - first) as usize].clone()));
        }
        Some(look)
    }

    /// Blocks of one copy; nothing if its member serves no more. What ends then was given up, or says nothing.
    async fn read_part(&self, at: Location, count: u32, copy: usize) -> Option<Part> {
        let (member, at) = self.copy_of(at, copy)?;
        let _queued = member.queue.guard();
        let outcome = member.device.read(at, Buf::new(count as usize * BLOCK)).await;
        let serves = member.is_serving() && !self.latched.get() && !self.lease.is_lost();
        match (outcome.result, outcome.buf) {
            (Ok(()), Some(buf)) => Some(Part::Bytes(buf.freeze())),
            (Err(error), _) if error.kind == IoErrorKind::Media => Some(Part::Unreadable),
            _ => serves.then_some(Part::Refused),
        }
    }

    /// The checksums that a record's header has for blocks, if it is the one that belongs there.
    fn sums(
        &self,
        at: Location,
        blocks: &[Option<Data>],
        wanted: &[Range<u32>],
    ) -> Option<Vec<u32>> {
        let count = RecordHeader::peek(blocks.first()?.as_ref()?).ok()?.header_blocks;
        let bytes = joined(blocks.get(..usize::from(count))?)?;
        let (record, sums) = decode_checksums(&bytes).ok()?;
        let (head, all) = (u32::from(record.header_blocks), sums.collect::<Vec<_>>());
        let sum = |block: u32| all.get(block.checked_sub(head)? as usize).copied();
        let found = wanted.iter().cloned().flatten().map(sum).collect::<Option<Vec<_>>>()?;
        self.is_record_at(&record, at).then_some(found)
    }
}

fn block_of(piece: &Data, index: u32) -> Data {
    let at = index as usize * BLOCK;
    piece.slice(at..at + BLOCK)
}

fn compare(looks: &[Look]) -> Inspection {
    let mut inspection = Inspection {
        blocks: vec![None; looks[0].blocks.len()],
        bad: vec![0; looks[0].blocks.len()],
        bad_headers: 0,
        bytes: looks.iter().map(|look| look.bytes).sum(),
        is_unsure: looks.iter().any(|look| look.is_unsure),
    };
    let sums = looks.iter().find_map(|look| look.sums.as_ref());
    for (copy, look) in looks.iter().enumerate() {
        inspection.bad_headers |= u8::from(look.sums.is_none()) << copy;
        for (i, block) in look.blocks.iter().enumerate() {
            let right = sums.is_some_and(|sums| fits(block.as_ref(), sums[i]));
            inspection.bad[i] |= u8::from(!right || look.sums.is_none()) << copy;
            let taken = right || planted::is(Bug::HealedFromBadCopy);
            if taken && inspection.blocks[i].is_none() {
                inspection.blocks[i].clone_from(block);
            }
        }
    }
    inspection
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(sums: Option<Vec<u32>>, blocks: &[u8]) -> Look {
        let block = |byte: &u8| Some(Buf::copy_of(&[*byte; BLOCK]).freeze());
        Look { sums, blocks: blocks.iter().map(block).collect(), bytes: 0, is_unsure: false }
    }

    fn sums(blocks: &[u8]) -> Option<Vec<u32>> {
        Some(blocks.iter().map(|byte| checksum(&[*byte; BLOCK])).collect())
    }

    fn bytes(inspection: &Inspection) -> Vec<Option<u8>> {
        inspection.blocks.iter().map(|block| block.as_ref().map(|block| block[0])).collect()
    }

    #[test]
    fn each_block_comes_from_a_copy_in_which_it_is_good() {
        let right = sums(&[1, 2, 3]);
        let looks = [look(right.clone(), &[1, 9, 9]), look(right, &[9, 2, 9])];
        let found = compare(&looks);
        assert_eq!(bytes(&found), [Some(1), Some(2), None]);
        assert_eq!((found.bad.as_slice(), found.bad_headers), (&[0b10, 0b01, 0b11][..], 0));
    }

    #[test]
    fn a_copy_without_its_header_is_bad_and_its_bytes_still_serve() {
        let looks = [look(None, &[1, 2]), look(sums(&[1, 2]), &[1, 9])];
        let found = compare(&looks);
        assert_eq!(bytes(&found), [Some(1), Some(2)]);
        assert_eq!((found.bad.as_slice(), found.bad_headers), (&[0b01, 0b11][..], 0b01));
        let none = compare(&[look(None, &[1]), look(None, &[1])]);
        assert_eq!((bytes(&none), none.bad[0]), (vec![None], 0b11));
    }

    #[test]
    fn what_is_right_the_second_time_is_right() {
        let mut first = look(None, &[9, 2]);
        first.mend(look(sums(&[1, 2]), &[1, 9]));
        assert!(first.is_good());
    }
}

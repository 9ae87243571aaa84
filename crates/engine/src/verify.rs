//! Reading log data back with its checksums checked, from whichever copy is good.
//!
//! * A block's checksum stands in its record's header, and that is read with the block: in one device
//!   read where the header is near, else beside it. To keep the checksums in the index would save that
//!   and cost 1 MiB per GiB of cache (`docs/internals/performance.md` has what was measured).
//! * What no copy returns as a whole is put together from the blocks that are good in any of them
//!   ([`Core::inspect`]); a bad sector between a block and its header is passed over so, too.

use std::slice::from_ref;

use forebay_device::{Buf, Data};

use crate::core::Core;
use crate::counters::add;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::format::{RecordHeader, checksum, decode_checksums};
use crate::ids::{BLOCK_BYTES, Location};
use crate::limits::VERIFY_TOGETHER_BLOCKS;
use crate::text::plural;

const BLOCK: usize = BLOCK_BYTES as usize;

impl Core {
    /// Reads `count` blocks of one record, the first of them `distance` blocks behind the record's
    /// header, and checks each against the header. Damaged copies are passed over.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if a block is good in no copy.
    pub(crate) fn read_verified(
        &self,
        location: Location,
        distance: u8,
        count: u32,
    ) -> impl Future<Output = Result<Data>> {
        // No future around that one: a hit's is moved about before it begins.
        self.read_verified_into(location, distance, count, None)
    }

    /// The same into this memory, as long as the blocks; elsewhere if the first copy is not good.
    ///
    /// # Errors
    /// Those of [`Core::read_verified`].
    pub(crate) async fn read_verified_into(
        &self,
        location: Location,
        distance: u8,
        count: u32,
        mut into: Option<Buf>,
    ) -> Result<Data> {
        let pinned = self.sets.borrow_mut().pin(location);
        let mut found = None;
        let (first, copies) = (self.idlest_copy(location), self.copies(location));
        // Twice: what is flipped on its way may be right the second time.
        for turn in first..first + 2 * copies {
            match self.read_copy(location, distance, count, turn % copies, into.take()).await {
                Some(data) => {
                    found = Some(data);
                    break;
                }
                None => {
                    add(&self.counters.verify_failures, 1);
                    self.note_hurt(Location(location.0 - u64::from(distance)));
                }
            }
        }
        if found.is_none() {
            let header = Location(location.0 - u64::from(distance));
            let first = u32::from(distance);
            let range = first..first + count;
            // Apart, so that what a hit needs stays small: it is moved about before it begins.
            let inspected = Box::pin(self.inspect(header, first, from_ref(&range))).await;
            found = inspected.and_then(|inspection| joined(&inspection.blocks));
        }
        self.unpin(pinned);
        found.ok_or_else(|| {
            Error::new(ErrorKind::Io, format!("no good copy of the log's block {}", location.0))
                .hint("look at the cache devices; what they do not return may be dirty data")
        })
    }

    /// Undoes a pin.
    pub(crate) fn unpin(&self, set: crate::ids::SegmentId) {
        let emptied = self.sets.borrow_mut().unpin(set);
        if let Some(id) = emptied {
            self.settle(&[id]);
        }
    }

    async fn read_copy(
        &self,
        location: Location,
        distance: u8,
        count: u32,
        copy: usize,
        into: Option<Buf>,
    ) -> Option<Data> {
        let header = Location(location.0 - u64::from(distance));
        let is_near = into.is_none() && u32::from(distance) <= VERIFY_TOGETHER_BLOCKS;
        let whole = match is_near {
            true => self.read_place(header, u32::from(distance) + count, copy).await,
            false => None,
        };
        let (head, data) = match whole {
            Some(whole) => (whole.clone(), whole.slice(usize::from(distance) * BLOCK..whole.len())),
            // Nothing lies between the two that could not be read.
            None if is_near && distance == 1 => return None,
            None => {
                let into = into.unwrap_or_else(|| Buf::new(count as usize * BLOCK));
                self.read_apart(header, location, copy, into).await?
            }
        };
        if self.is_good(header, &head, distance, &data) {
            return Some(data);
        }
        self.note_damaged_copy(header, copy);
        None
    }

    /// A record's header, all of it, and as many of its blocks as `into` is long.
    async fn read_apart(
        &self,
        header: Location,
        location: Location,
        copy: usize,
        into: Buf,
    ) -> Option<(Data, Data)> {
        let (member, at) = self.copy_of(header, copy)?;
        let (_queued, begun) = (member.queue.guard(), member.spans.begin(&*self.rt));
        let head_io = member.device.read(at, Buf::new(BLOCK));
        let (member, data_at) = self.copy_of(location, copy)?;
        let data_io = member.device.read(data_at, into);
        let (head, data) = (head_io.await, data_io.await);
        member.spans.end(&*self.rt, begun);
        head.result.ok().and(data.result.ok())?;
        let (first, data) = (head.buf?.freeze(), data.buf?.freeze());
        match RecordHeader::peek(&first) {
            Ok(peeked) if peeked.header_blocks > 1 => {
                let whole = self.read_place(header, peeked.header_blocks.into(), copy).await?;
                Some((whole, data))
            }
            _ => Some((first, data)),
        }
    }

    /// Blocks of one copy, whatever they are.
    async fn read_place(&self, at: Location, count: u32, copy: usize) -> Option<Data> {
        let (member, at) = self.copy_of(at, copy)?;
        let (_queued, begun) = (member.queue.guard(), member.spans.begin(&*self.rt));
        let outcome = member.device.read(at, Buf::new(count as usize * BLOCK)).await;
        member.spans.end(&*self.rt, begun);
        outcome.result.ok()?;
        outcome.buf.map(Buf::freeze)
    }

    /// Notes that a member has not returned blocks as they were written: an event for the first one,
    ///  the tenth, the hundredth, ..., for a device that rots does so by the thousand.
    pub(crate) fn note_damage(&self, member: usize, blocks: u64) {
        let member = &self.members[member];
        let before = member.damaged.get();
        member.damaged.set(before + blocks);
        if (before + blocks).checked_ilog10() > before.checked_ilog10() {
            let what = format!(
                "cache device {} could not return {} of 4 KiB as written: it said so, or the checksums do",
                member.id,
                plural((before + blocks) as usize, "block")
            );
            self.member_event(EventKind::DamageFound, member.id, what);
        }
    }

    /// Whether blocks are what the header of their record, `distance` blocks before them, says.
    pub(crate) fn is_good(
        &self,
        header: Location,
        header_bytes: &[u8],
        distance: u8,
        data: &[u8],
    ) -> bool {
        let Ok((record, checksums)) = decode_checksums(header_bytes) else { return false };
        let start = usize::from(distance).checked_sub(usize::from(record.header_blocks));
        let Some(start) = start.filter(|start| start + data.len() / BLOCK <= checksums.len())
        else {
            return false;
        };
        let mut pairs = data.chunks_exact(BLOCK).zip(checksums.skip(start));
        self.is_record_at(&record, header) && pairs.all(|(block, sum)| checksum(block) == sum)
    }

    /// Whether a header is the one that belongs at a location, not one of an earlier life of the
    /// segment or of another place.
    pub(crate) fn is_record_at(&self, record: &RecordHeader, at: Location) -> bool {
        let sets = self.sets.borrow();
        let (id, block) = sets.split(at);
        let same_set = sets.get(id).is_some_and(|set| set.incarnation == record.incarnation);
        same_set
            && record.set == id
            && record.offset_blocks == block
            && record.pool == self.superblock.borrow().pool
    }
}

/// Blocks one behind the other; nothing if one is missing.
pub(crate) fn joined(blocks: &[Option<Data>]) -> Option<Data> {
    let mut whole = Buf::new(blocks.len() * BLOCK);
    for (place, block) in whole.chunks_exact_mut(BLOCK).zip(blocks) {
        place.copy_from_slice(block.as_ref()?);
    }
    Some(whole.freeze())
}

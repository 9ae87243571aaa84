//! Reading log data back with its checksums checked, from whichever copy is good.

use forebay_device::{Buf, Data};

use crate::core::Core;
use crate::counters::add;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{RecordHeader, checksum, decode_checksums};
use crate::ids::{BLOCK_BYTES, Location};

const BLOCK: usize = BLOCK_BYTES as usize;

impl Core {
    /// Reads `count` blocks of one record, the first of them `distance` blocks behind the record's
    /// header, and checks each against the header. Damaged copies are passed over.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if no copy is good.
    pub(crate) async fn read_verified(
        &self,
        location: Location,
        distance: u8,
        count: u32,
    ) -> Result<Data> {
        let pinned = self.sets.borrow_mut().pin(location);
        let mut found = None;
        let (first, copies) = (self.idlest_copy(location), self.copies(location));
        // Twice: what is flipped on its way may be right the second time.
        for turn in first..first + 2 * copies {
            match self.read_copy(location, distance, count, turn % copies).await {
                Some(data) => {
                    found = Some(data);
                    break;
                }
                None => add(&self.counters.verify_failures, 1),
            }
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
    ) -> Option<Data> {
        let header = Location(location.0 - u64::from(distance));
        let (member, at) = self.copy_of(header, copy)?;
        let _queued = member.queue.guard();
        let head_io = member.device.read(at, Buf::new(BLOCK));
        let (member, data_at) = self.copy_of(location, copy)?;
        let data_io = member.device.read(data_at, Buf::new(count as usize * BLOCK));
        let (head, data) = (head_io.await, data_io.await);
        head.result.ok().and(data.result.ok())?;
        let (first, data) = (head.buf?, data.buf?);
        let peeked = RecordHeader::peek(&first).ok()?;
        let bytes = usize::from(peeked.header_blocks) * BLOCK;
        let whole = if bytes == BLOCK {
            first
        } else {
            let outcome = member.device.read(at, Buf::new(bytes)).await;
            outcome.result.ok()?;
            outcome.buf?
        };
        self.is_good(header, &whole, distance, &data).then(|| data.freeze())
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

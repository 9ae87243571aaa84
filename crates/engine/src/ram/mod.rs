//! The tier of RAM in front of the cache devices: frames of one block, and what is in them.
//!
//! * A frame holds what its block's newest version is (INV-37). It is filled by whoever holds the
//!   range lock with what he has published; from a place in the log that the index still names while
//!   nobody holds the lock; or from the origin as a population that is still valid. Whoever takes
//!   the range lock makes the frames of the range stale ([`Ram::void`]), and nobody reads those.
//! * A frame is *backed* if the log holds the block too, else *RAM-only*: clean data that the origin
//!   durably has. Writes are acknowledged from the cache devices alone, so to lose all frames at any
//!   time costs misses, nothing else.
//! * Memory is taken when the size is set and at no other time. A frame costs [`FRAME_META_BYTES`]
//!   besides its block.
//!
//! Blocks are found through a hash table with chains, whose buckets grow one by one with the frames
//! (linear hashing, Litwin, VLDB 1980), so that no change of the size stops the pool.

mod resize;
mod serve;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use forebay_device::{Buf, Chunk};

use crate::chunked::{CHUNK_FRAMES, Chunked};
use crate::ids::{BLOCK_BYTES, VolumeId};
use crate::index::BLOCKS_MAX;
use crate::planted::{self, Bug};
use crate::policy::{Granule, Queue, Tier};

pub use resize::RamStatus;
pub(crate) use resize::memory_bytes;

const BLOCK: usize = BLOCK_BYTES as usize;
const NONE: u32 = u32::MAX;

/// Flags of a frame, above its block's number.
const UNVERIFIED: u64 = 1 << 61;
const STALE: u64 = 1 << 62;
const BACKED: u64 = 1 << 63;
const _: () = assert!(BLOCKS_MAX <= UNVERIFIED);

/// Where the bytes of a frame come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A client's write, which the log has, too.
    Write,
    /// The origin: the log does not have them.
    Origin,
    /// The log, by a read that compared their checksum.
    LogVerified,
    /// The log, by a read that did not: what a device returned wrong is in RAM, then, as it is with the
    /// client, and must not come into the log again under a checksum of its own.
    LogUnverified,
}

impl Source {
    fn flags(self) -> u64 {
        match self {
            Self::Write | Self::LogVerified => BACKED,
            Self::LogUnverified => BACKED | UNVERIFIED,
            Self::Origin => 0,
        }
    }
}

/// What a frame holds. Volume 0 is none: the frame is free.
#[derive(Clone, Copy)]
struct Frame {
    /// The block, and the flags.
    word: u64,
    volume: VolumeId,
    /// The next frame of the same bucket.
    chained: u32,
}

const FREE: Frame = Frame { word: 0, volume: VolumeId(0), chained: NONE };

impl Frame {
    fn block(&self) -> u64 {
        self.word & (UNVERIFIED - 1)
    }

    fn is(&self, flag: u64) -> bool {
        self.word & flag != 0
    }
}

/// Bytes of metadata for a frame: who it is, its place in the queues, a bucket, and what the ghost
/// needs to remember as many blocks (5 bytes in each of 8/7 places).
pub const FRAME_META_BYTES: usize =
    size_of::<Frame>() + crate::policy::TIER_NODE_BYTES + size_of::<u32>() + 6;

/// A frame that is to be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    slot: u32,
    pub volume: VolumeId,
    pub block: u64,
    /// The queue that lets it go.
    pub queue: Queue,
    /// Whether what it holds was overtaken.
    pub stale: bool,
}

/// The frames of a pool.
#[derive(Default)]
pub(crate) struct Ram {
    chunks: Vec<Chunk>,
    frames: Chunked<Frame>,
    /// First frame of each chain; as many as there are frames.
    buckets: Chunked<u32>,
    /// The smallest 2^n - 1 that all numbers of buckets fit into.
    mask: u32,
    tier: Tier,
    /// Frames in use of each volume.
    volumes: BTreeMap<VolumeId, u32>,
    stale: u32,
    backed: u32,
    /// Whether what came here unchecked is not read.
    only_verified: bool,
}

/// Blocks whose buckets lie side by side: a line of the processor's cache, so that a run of blocks is found without
/// a miss of that for each.
const RUN_BLOCKS: u64 = 16;

/// The finisher of SplitMix64, as in `index::shard_of`, of the run. The block's place in it is mixed with the hash, so
/// that blocks at the same place of many runs are spread as well.
fn hash(volume: VolumeId, block: u64) -> u32 {
    let run = block / RUN_BLOCKS;
    let mut x = run.wrapping_add((u64::from(volume.0) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    (x ^ x >> 31 ^ (block % RUN_BLOCKS)) as u32
}

fn id(volume: VolumeId, block: u64) -> Granule {
    Granule { volume, number: block }
}

impl Ram {
    /// Whether nothing is in it and nothing may come.
    pub(crate) fn is_off(&self) -> bool {
        self.frames.len() == 0
    }

    fn bucket_of(&self, hash: u32) -> u32 {
        let bucket = hash & self.mask;
        if bucket < self.buckets.len() as u32 { bucket } else { bucket & self.mask >> 1 }
    }

    fn find(&self, volume: VolumeId, block: u64) -> Option<u32> {
        if self.is_off() {
            return None;
        }
        let mut slot = self.buckets[self.bucket_of(hash(volume, block))];
        while slot != NONE {
            let frame = &self.frames[slot];
            if frame.block() == block && frame.volume == volume {
                return Some(slot);
            }
            slot = frame.chained;
        }
        None
    }

    /// The frame with a block's newest version.
    fn find_fresh(&self, volume: VolumeId, block: u64) -> Option<u32> {
        self.find(volume, block).filter(|&slot| !self.frames[slot].is(STALE))
    }

    /// Whether it has frames of a volume.
    pub(crate) fn has_any(&self, volume: VolumeId) -> bool {
        self.volumes.contains_key(&volume)
    }

    /// How many blocks of a volume it has.
    pub(crate) fn blocks_of(&self, volume: VolumeId) -> u64 {
        self.volumes.get(&volume).copied().unwrap_or(0).into()
    }

    /// The frame that may be read for a block.
    fn find_served(&self, volume: VolumeId, block: u64) -> Option<u32> {
        let found = self.find_fresh(volume, block);
        found.filter(|&slot| !self.only_verified || !self.frames[slot].is(UNVERIFIED))
    }

    /// Whether a block's newest version is here and may be read.
    pub(crate) fn holds(&self, volume: VolumeId, block: u64) -> bool {
        self.find_served(volume, block).is_some()
    }

    /// Says whether only what is known to be right may be read from here.
    pub(crate) fn serve_only_verified(&mut self, only: bool) {
        self.only_verified = only;
    }

    /// The frame with a block's newest version, if its bytes are known to be right.
    fn find_verified(&self, volume: VolumeId, block: u64) -> Option<u32> {
        self.find_fresh(volume, block).filter(|&slot| !self.frames[slot].is(UNVERIFIED))
    }

    /// Whether a block's newest version is here, was asked for again since it came, and is known to be
    /// right, so that the log need not have it.
    pub(crate) fn holds_hot(&self, volume: VolumeId, block: u64) -> bool {
        self.find_verified(volume, block).is_some_and(|slot| self.tier.is_hot(slot))
    }

    fn bytes(&self, slot: u32) -> &[u8] {
        let at = slot as usize % CHUNK_FRAMES * BLOCK;
        &self.chunks[slot as usize / CHUNK_FRAMES][at..at + BLOCK]
    }

    fn bytes_mut(&mut self, slot: u32) -> &mut [u8] {
        let at = slot as usize % CHUNK_FRAMES * BLOCK;
        &mut self.chunks[slot as usize / CHUNK_FRAMES][at..at + BLOCK]
    }

    /// Fills `buf` from byte `offset` of a volume if all of it is here. It counts as asked for, but
    /// for what only passes by.
    pub(crate) fn read(
        &mut self,
        volume: VolumeId,
        offset: u64,
        buf: &mut [u8],
        passing: bool,
    ) -> bool {
        let end = offset + buf.len() as u64;
        let (first, last) = (offset / BLOCK_BYTES, (end - 1) / BLOCK_BYTES);
        if first < last && !(first..=last).all(|block| self.holds(volume, block)) {
            return false;
        }
        for block in first..=last {
            let Some(slot) = self.find_served(volume, block) else { return false };
            let start = block * BLOCK_BYTES;
            let (from, to) = (start.max(offset), (start + BLOCK_BYTES).min(end));
            let part = &self.bytes(slot)[(from - start) as usize..(to - start) as usize];
            buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
            if !passing {
                self.tier.hit(slot);
            }
        }
        true
    }

    /// Whether one of some blocks, which a cache device holds and a client asks for, is worth being
    /// brought here. The others are remembered.
    pub(crate) fn wants(&mut self, volume: VolumeId, first: u64, count: u32) -> bool {
        let mut wanted = false;
        for block in first..first + u64::from(count) {
            if !self.holds(volume, block) {
                wanted |= self.tier.is_wanted(id(volume, block));
            }
        }
        wanted
    }

    /// Puts a block's newest version here; false if a frame must be given up first.
    #[must_use]
    pub(crate) fn enter(
        &mut self,
        volume: VolumeId,
        block: u64,
        bytes: &[u8],
        source: Source,
    ) -> bool {
        if self.find(volume, block).is_some() {
            self.refresh(volume, block, bytes, source);
            return true;
        }
        let Some(slot) = self.tier.take_free() else { return false };
        self.tier.enter(slot, id(volume, block));
        self.bytes_mut(slot).copy_from_slice(bytes);
        self.frames[slot] = Frame { word: block, volume, chained: NONE };
        self.chain(slot);
        *self.volumes.entry(volume).or_default() += 1;
        self.set_source(slot, source);
        true
    }

    /// Gives a frame that is stale, or not known to be right, its block's newest version. What a writer
    /// has just written is at hand, and what is read a lot and rewritten is read again; but a write
    /// brings nothing here that nobody reads.
    pub(crate) fn refresh(&mut self, volume: VolumeId, block: u64, bytes: &[u8], source: Source) {
        let Some(slot) = self.find(volume, block) else { return };
        let stale = self.frames[slot].is(STALE);
        if stale || (self.frames[slot].is(UNVERIFIED) && source != Source::LogUnverified) {
            self.bytes_mut(slot).copy_from_slice(bytes);
            self.frames[slot].word &= !STALE;
            self.stale -= u32::from(stale);
            self.set_source(slot, source);
        }
    }

    fn set_source(&mut self, slot: u32, source: Source) {
        let flags = source.flags();
        let word = &mut self.frames[slot].word;
        *word = *word & !UNVERIFIED | flags & UNVERIFIED;
        self.set_backed(slot, flags & BACKED != 0);
    }

    fn set_backed(&mut self, slot: u32, backed: bool) {
        let frame = &mut self.frames[slot];
        if frame.is(BACKED) != backed {
            frame.word ^= BACKED;
            self.backed = if backed { self.backed + 1 } else { self.backed - 1 };
        }
    }

    /// The log holds these blocks now, or does so no more.
    pub(crate) fn note_backed(&mut self, volume: VolumeId, first: u64, count: u32, backed: bool) {
        if !self.volumes.contains_key(&volume) {
            return;
        }
        for block in first..first + u64::from(count) {
            if let Some(slot) = self.find_fresh(volume, block) {
                self.set_backed(slot, backed);
            }
        }
    }

    /// The newest version of these blocks is about to be another one: what is here of them is read no
    /// more (INV-37).
    pub(crate) fn void(&mut self, volume: VolumeId, first: u64, count: u64) {
        let Some(&frames) = self.volumes.get(&volume) else { return };
        if planted::is(Bug::RamFrameSurvivesWrite) {
            return;
        }
        if count > u64::from(frames).max(crate::core::STRIPE_BLOCKS) {
            // Only a volume that is taken away is changed as a whole.
            return self.forget(volume, first..first + count);
        }
        for block in first..first + count {
            let Some(slot) = self.find_fresh(volume, block) else { continue };
            self.make_stale(slot);
        }
    }

    /// These blocks were found damaged, and are right again, elsewhere: what is here of them and was read unchecked
    /// may be the damage, and is read no more.
    pub(crate) fn void_unverified(&mut self, volume: VolumeId, first: u64, count: u32) {
        for block in first..first + u64::from(count) {
            let slot = self.find_fresh(volume, block);
            let Some(slot) = slot.filter(|&slot| self.frames[slot].is(UNVERIFIED)) else {
                continue;
            };
            planted::seen("RAM: what may be damage is read no more");
            self.make_stale(slot);
        }
    }

    fn make_stale(&mut self, slot: u32) {
        self.set_backed(slot, false);
        self.frames[slot].word |= STALE;
        self.stale += 1;
    }

    fn forget(&mut self, volume: VolumeId, blocks: std::ops::Range<u64>) {
        for slot in 0..self.tier.limit() {
            let frame = self.frames[slot];
            if frame.volume == volume && blocks.contains(&frame.block()) {
                self.leave(slot, None);
            }
        }
    }

    /// The frame that is to go next.
    pub(crate) fn victim(&mut self) -> Option<Victim> {
        let (slot, queue) = self.tier.victim()?;
        let frame = self.frames[slot];
        let (volume, block) = (frame.volume, frame.block());
        Some(Victim { slot, volume, block, queue, stale: frame.is(STALE) })
    }

    /// A block's newest version, if it is here and known to be right.
    pub(crate) fn copy_of(&self, volume: VolumeId, block: u64) -> Option<Buf> {
        self.find_verified(volume, block).map(|slot| Buf::copy_of(self.bytes(slot)))
    }

    /// Gives a victim's frame up.
    pub(crate) fn give_up(&mut self, victim: &Victim) {
        let remembered = victim.queue == Queue::Probation && !victim.stale;
        self.leave(victim.slot, remembered.then(|| id(victim.volume, victim.block)));
    }

    fn leave(&mut self, slot: u32, remembered: Option<Granule>) {
        self.set_backed(slot, false);
        self.stale -= u32::from(self.frames[slot].is(STALE));
        let volume = self.frames[slot].volume;
        self.unchain(slot);
        self.frames[slot] = FREE;
        self.tier.leave(slot, remembered);
        if let Some(frames) = self.volumes.get_mut(&volume) {
            *frames -= 1;
            if *frames == 0 {
                self.volumes.remove(&volume);
            }
        }
    }

    /// RAM-only blocks of the main queue, those that came last first.
    pub(crate) fn unbacked_hot(&self) -> impl Iterator<Item = (VolumeId, u64)> + '_ {
        let frames = self.tier.hottest().map(|slot| &self.frames[slot]);
        let wanted = frames.filter(|frame| !frame.is(STALE | BACKED | UNVERIFIED));
        wanted.map(|frame| (frame.volume, frame.block()))
    }

    fn chain(&mut self, slot: u32) {
        let frame = &self.frames[slot];
        let bucket = self.bucket_of(hash(frame.volume, frame.block()));
        self.frames[slot].chained = std::mem::replace(&mut self.buckets[bucket], slot);
    }

    fn unchain(&mut self, slot: u32) {
        self.rechain(slot, self.frames[slot].chained);
    }

    /// Lets whoever leads to `slot` lead to `to`.
    fn rechain(&mut self, slot: u32, to: u32) {
        let frame = &self.frames[slot];
        let bucket = self.bucket_of(hash(frame.volume, frame.block()));
        if self.buckets[bucket] == slot {
            self.buckets[bucket] = to;
            return;
        }
        let mut at = self.buckets[bucket];
        while self.frames[at].chained != slot {
            at = self.frames[at].chained;
        }
        self.frames[at].chained = to;
    }
}

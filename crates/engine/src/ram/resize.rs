//! The size of the RAM tier, while it is in use: chunk by chunk.

use std::rc::Rc;

use forebay_device::{CHUNK_BYTES, Chunk};

use super::{FRAME_META_BYTES, FREE, Frame, NONE, Ram};
use crate::chunked::CHUNK_FRAMES;
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::format::{Stream, Superblock};
use crate::ids::BLOCK_BYTES;
use crate::limits::{RAM_BYTES_MAX, RAM_DEMOTE_BYTES_MAX, RAM_STOP_BYTES_MAX};
use crate::policy::Queue;
use crate::wait::yield_once;

/// What the RAM tier of a pool has, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RamStatus {
    /// Frames, full or not.
    pub size_bytes: u64,
    /// Frames whose content can be read.
    pub used_bytes: u64,
    /// Of those, what no cache device holds as well.
    pub only_bytes: u64,
    /// Of those, what a cache device holds as well.
    pub overlap_bytes: u64,
    /// Memory of everything, metadata included.
    pub memory_bytes: u64,
}

/// Memory that a RAM tier of so many bytes takes, metadata included.
pub(crate) fn memory_bytes(ram_bytes: u64) -> u64 {
    let chunks = ram_bytes.div_ceil(CHUNK_BYTES as u64);
    chunks * (CHUNK_BYTES + CHUNK_FRAMES * FRAME_META_BYTES) as u64
}

impl Ram {
    /// What is in it.
    pub(crate) fn status(&self) -> RamStatus {
        let bytes = |frames: u32| u64::from(frames) * BLOCK_BYTES;
        let used = self.tier.used() - self.stale;
        let meta = self.frames.len() * FRAME_META_BYTES;
        RamStatus {
            size_bytes: bytes(self.tier.limit()),
            used_bytes: bytes(used),
            only_bytes: bytes(used - self.backed),
            overlap_bytes: bytes(self.backed),
            memory_bytes: (self.chunks.len() * CHUNK_BYTES + meta) as u64,
        }
    }

    /// Frames that there may be.
    pub(super) fn limit(&self) -> u32 {
        self.tier.limit()
    }

    pub(super) fn used_frames(&self) -> u32 {
        self.tier.used()
    }

    /// Adds frames, at most up to `target` and at most a chunk of them; false if there is no memory.
    pub(super) fn grow(&mut self, target: u32) -> bool {
        if self.tier.limit() as usize == self.frames.len() && !self.add_chunk() {
            return false;
        }
        self.tier.set_limit(target.min(self.frames.len() as u32));
        true
    }

    fn add_chunk(&mut self) -> bool {
        let (frames, Some(chunk)) = (self.frames.len(), Chunk::allocate()) else { return false };
        if self.chunks.try_reserve(1).is_err() || !self.frames.grow(FREE) {
            return false;
        }
        if !self.tier.grow() {
            self.frames.shrink();
            return false;
        }
        if !self.buckets.grow(NONE) {
            self.frames.shrink();
            self.tier.shrink();
            return false;
        }
        self.chunks.push(chunk);
        self.mask = (self.frames.len().next_power_of_two() - 1) as u32;
        (frames as u32..self.frames.len() as u32).for_each(|bucket| self.split_into(bucket));
        true
    }

    /// Moves what belongs into a new bucket there: from the one whose number lacks its highest bit,
    /// which is an old one, since chunks of buckets are added in turn.
    fn split_into(&mut self, bucket: u32) {
        if bucket == 0 {
            return;
        }
        let parent = bucket & !(1 << bucket.ilog2());
        let mut slot = std::mem::replace(&mut self.buckets[parent], NONE);
        while slot != NONE {
            let next = self.frames[slot].chained;
            self.chain(slot);
            slot = next;
        }
    }

    /// The number of frames that the next step towards `target` leaves.
    pub(super) fn step_down(&self, target: u32) -> u32 {
        let chunk = (self.tier.limit() - 1) / CHUNK_FRAMES as u32 * CHUNK_FRAMES as u32;
        target.max(chunk)
    }

    /// Gives up the frames from `limit` on, all of one chunk; no more than `limit` are in use.
    pub(super) fn shrink(&mut self, limit: u32) {
        self.tier.withhold(limit);
        for from in limit..self.tier.limit() {
            if self.frames[from].volume.0 == 0 {
                continue;
            }
            let to = self.tier.take_free().expect("no more than the limit are in use");
            let bytes: [u8; BLOCK_BYTES as usize] =
                self.bytes(from).try_into().expect("a frame is a block");
            self.bytes_mut(to).copy_from_slice(&bytes);
            self.frames[to] = self.frames[from];
            self.rechain(from, to);
            self.frames[from] = FREE;
            self.tier.replace(from, to);
        }
        self.tier.set_limit(limit);
        if limit as usize + CHUNK_FRAMES <= self.frames.len() {
            self.drop_chunk();
        }
    }

    fn drop_chunk(&mut self) {
        let left = (self.frames.len() - CHUNK_FRAMES) as u32;
        let mut homeless = Vec::new();
        for bucket in left..self.buckets.len() as u32 {
            let mut slot = self.buckets[bucket];
            while slot != NONE {
                homeless.push(slot);
                slot = self.frames[slot].chained;
            }
        }
        self.buckets.shrink();
        self.tier.shrink();
        self.frames.shrink();
        self.chunks.pop();
        self.mask = left.next_power_of_two() - 1;
        homeless.into_iter().for_each(|slot| self.chain(slot));
    }

    /// Ends a change of the size.
    pub(super) fn settle(&mut self) {
        self.tier.begin_anew();
    }
}

impl Core {
    /// Gives the pool the RAM tier that its superblock asks for, behind the first requests: touching
    /// much memory takes time.
    pub(crate) fn start_ram(self: &Rc<Self>) {
        let bytes = self.superblock.borrow().ram_bytes;
        if bytes == 0 {
            return;
        }
        let core = Rc::clone(self);
        self.spawn_background(async move {
            let _resizing = core.resizing.lock().await;
            if let Err(error) = core.resize_ram(bytes).await {
                core.event(EventKind::RamRefused, error.what);
            }
        });
    }

    /// Changes the size of the RAM tier and notes it on the members.
    pub(crate) async fn set_ram_bytes(self: &Rc<Self>, bytes: u64) -> Result<()> {
        let _resizing = self.resizing.lock().await;
        if self.is_stopping() {
            return Err(Error::new(ErrorKind::Stopping, "the pool is stopping"));
        }
        let before = self.superblock.borrow().ram_bytes;
        if bytes > before {
            self.resize_ram(bytes).await?;
        }
        let control = self.control.lock().await;
        let noted = self.write_superblocks(|superblock: &mut Superblock| {
            superblock.ram_bytes = bytes;
        });
        let noted = noted.await;
        drop(control);
        self.resize_ram(if noted.is_ok() { bytes } else { before }).await?;
        noted
    }

    /// Before a stop: appends what only RAM holds and was asked for more than once, so that the next
    /// start has it, in the order of its heat and [`RAM_STOP_BYTES_MAX`] of it at the most.
    pub(crate) async fn keep_hot_frames(&self) -> Result<()> {
        let most = (RAM_STOP_BYTES_MAX / BLOCK_BYTES) as usize;
        let hot: Vec<_> = self.ram.borrow().unbacked_hot().take(most).collect();
        for batch in hot.chunks((RAM_DEMOTE_BYTES_MAX / BLOCK_BYTES) as usize) {
            for &(volume, block) in batch {
                self.hand_to_log(volume, block, Queue::Main);
            }
            self.until_idle(Stream::Main).await?;
        }
        Ok(())
    }

    /// Brings the RAM tier to a size, in bytes, a chunk at a time; requests go on meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if there is no memory; what it had before is left as it was.
    pub(crate) async fn resize_ram(self: &Rc<Self>, bytes: u64) -> Result<()> {
        let target = (bytes.min(RAM_BYTES_MAX) / BLOCK_BYTES) as u32;
        let before = self.ram.borrow().limit();
        while self.ram.borrow().limit() < target && !self.is_stopping() {
            let grown = self.ram.borrow_mut().grow(target);
            if !grown {
                self.shrink_ram(before).await;
                self.ram.borrow_mut().settle();
                let what = format!("no memory for {bytes} B of RAM tier");
                return Err(Error::new(ErrorKind::Refused, what)
                    .hint("choose a smaller size, or raise the limit of locked memory"));
            }
            yield_once().await;
        }
        self.shrink_ram(target).await;
        self.ram.borrow_mut().settle();
        Ok(())
    }

    async fn shrink_ram(&self, target: u32) {
        while self.ram.borrow().limit() > target {
            let limit = self.ram.borrow().step_down(target);
            while self.ram.borrow().used_frames() > limit {
                self.evict_frame();
            }
            self.ram.borrow_mut().shrink(limit);
            yield_once().await;
        }
    }
}

const _: () = assert!(size_of::<Frame>() == 16);

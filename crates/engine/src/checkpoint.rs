//! The rolling checkpoint: images of all shards, then a root that names them.
//!
//! * An image and its watermark are taken at one instant, so the image holds the outcome of every
//!   append up to the watermark.
//! * Everything a root names is flushed before the root is written; slot 0 is flushed before slot 1
//!   is touched (INV-17).
//! * What a root makes free is emptied, discarded and reopened only after both slots are durable.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::runtime::MILLISECOND;
use forebay_device::{Buf, Io, IoErrorKind, io};

use crate::core::Core;
use crate::counters::add;
use crate::error::Result;
use crate::format::{
    Entry, EntryKind, Extent, ImageChunkWriter, ImageRef, ImageRegion, Root, SUPERBLOCK_BYTES,
    State, Stream,
};
use crate::ids::{BLOCK_BYTES, Location, Sequence, VolumeId};
use crate::log::{Pending, append_error, new_entry};
use crate::marks::Loss;
use crate::planted::{self, Bug};
use crate::wait::{all_of, yield_once};

const BLOCK: usize = BLOCK_BYTES as usize;

/// Shards whose images are on their way at a time: 64 small ones are then 8 waits, and of large ones no
/// more than 8 MiB is held in memory.
const IMAGES_TOGETHER: usize = 8;

/// How often housekeeping looks for work if nobody wakes it.
pub(crate) const LOOK_INTERVAL: u64 = 50 * MILLISECOND;

impl Core {
    /// Writes images of all shards and a root, then frees what that allows.
    ///
    /// # Errors
    /// If a member fails (the pool has latched then).
    pub(crate) async fn lap(self: &Rc<Self>, clean_stop: bool) -> Result<()> {
        let _held = self.lap_lock.lock().await;
        loop {
            let loss = self.losses.last();
            let written = self.write_lap(clean_stop).await;
            // What it had imaged may be lost since.
            let again = self.losses.any_since(loss) && !self.latched.get();
            match written {
                Ok(false) => {}
                Err(_) if again => {}
                Ok(true) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// See [`Core::lap`]; false if a member was lost on the way and the root counts for nothing.
    async fn write_lap(self: &Rc<Self>, clean_stop: bool) -> Result<bool> {
        self.settle_members().await?;
        let loss = self.losses.last();
        // Members that fail from here on may take with them what the images name.
        let epoch = self.roots.swept_epoch();
        self.log.bytes_since_lap.set(0);
        self.close_stream(Stream::Metadata).await;
        let metadata_before = self.log.open_counter.get() + 1;
        // Before the images, so that they say of these sets that nothing in them is owed.
        let surplus = match clean_stop || self.is_recovering() {
            true => Vec::new(),
            false => self.sets.borrow().surplus(),
        };
        let images = self.write_images(loss).await?;
        if !planted::is(Bug::RootBeforeImages) {
            self.flush_members().await?;
        }
        let root = self.next_root(images.clone(), epoch, clean_stop);
        if !self.store_root(&root, loss).await? {
            return Ok(false);
        }
        add(&self.counters.laps, 1);
        for (shard, image) in images.iter().enumerate() {
            self.forget_drops(shard, image.watermark);
        }
        let lowest = images.iter().map(|image| image.watermark).min().unwrap_or_default();
        self.free_sets(lowest, metadata_before).await?;
        self.give_back_surplus(surplus, lowest).await?;
        Ok(true)
    }

    /// The chunks of a shard's image and its watermark, both of this instant. What lives in sets that were let go of is
    /// marked: a start may find them opened again, and if it does not, it knows which room it can have.
    fn snapshot(&self, shard: usize) -> (Vec<Vec<u8>>, Sequence) {
        let watermark = self.log.watermark();
        let bytes_max = self.record_data_blocks() as usize * BLOCK;
        let mut chunks = Vec::new();
        let opened = self.log.open_counter.get() as u32;
        let begin =
            |chunk: usize| ImageChunkWriter::new(shard as u32, chunk as u32, opened, bytes_max);
        let mut writer = begin(0);
        let sets = self.sets.borrow();
        let marked = |&extent: &Extent| {
            let is_clean = extent.state() == Some(State::Clean);
            if is_clean && sets.is_let_go(extent.location()) { extent.let_go() } else { extent }
        };
        self.shards[shard].index.borrow().for_each_region(
            |volume, region, heat, extents, masks| {
                let extents: Vec<Extent> = extents.iter().map(marked).collect();
                let masks = masks.to_vec();
                let image = ImageRegion { volume, region, heat, extents, masks };
                if !writer.push(&image) {
                    let next = begin(chunks.len() + 1);
                    chunks.push(std::mem::replace(&mut writer, next).finish());
                    assert!(writer.push(&image), "a region fits an empty chunk");
                }
            },
        );
        if !writer.is_empty() {
            chunks.push(writer.finish());
        }
        (chunks, watermark)
    }

    /// Appends the images of all shards, a few at a time, so that small ones share records and none waits
    /// for the one before it.
    ///
    /// # Errors
    /// If the pool has latched, or more was lost than `loss` counts: what is left of them is not written then.
    pub(crate) async fn write_images(&self, loss: Loss) -> Result<Vec<ImageRef>> {
        let mut images = Vec::with_capacity(self.shards.len());
        while images.len() < self.shards.len() {
            let first = images.len();
            let mut taken = Vec::with_capacity(IMAGES_TOGETHER);
            for shard in first..self.shards.len().min(first + IMAGES_TOGETHER) {
                taken.push((shard, self.snapshot(shard)));
                // To look through a shard takes its time, in which nobody else is served.
                yield_once().await;
            }
            let writes = taken.into_iter().map(|(shard, of)| self.write_image(shard, of, loss));
            for image in all_of(writes).await {
                images.push(image?);
            }
        }
        Ok(images)
    }

    /// Appends a shard's image as a chain of records.
    async fn write_image(
        &self,
        shard: usize,
        (chunks, watermark): (Vec<Vec<u8>>, Sequence),
        loss: Loss,
    ) -> Result<ImageRef> {
        let mut image = ImageRef { location: Location(0), sequence: Sequence(0), watermark };
        let mut previous = None;
        for chunk in chunks {
            if self.losses.any_since(loss) {
                return Err(append_error("writing an image", IoErrorKind::Other.into()));
            }
            let entry = Entry {
                from: previous,
                extra: watermark.0,
                volume: VolumeId(0),
                ..new_entry(
                    EntryKind::Image,
                    VolumeId(0),
                    shard as u64,
                    (chunk.len() / BLOCK) as u32,
                )
            };
            let placed = Rc::new(Cell::new(None));
            let (completer, io) = io::pair();
            let pending = Pending {
                placed: Some(Rc::clone(&placed)),
                ..Pending::new(entry, Some(Buf::copy_of(&chunk).freeze()), completer)
            };
            self.log.enqueue(Stream::Metadata, pending);
            io.done().await.map_err(|error| append_error("writing an image", error))?;
            if let Some((data, distance, sequence)) = placed.get() {
                image.sequence = sequence;
                image.location = Location(data.0 - u64::from(distance));
                previous = Some(image.location);
            }
        }
        Ok(image)
    }

    /// The root of the next generation.
    pub(crate) fn next_root(&self, images: Vec<ImageRef>, epoch: u64, clean_stop: bool) -> Root {
        Root {
            pool: self.superblock.borrow().pool,
            generation: self.roots.next_generation(),
            epoch,
            start_number: self.log.start_number,
            sequence: self.log.last_sequence(),
            open_counter: self.log.open_counter.get(),
            clean_stop,
            own_roots: true,
            marks: false,
            let_go: true,
            images,
        }
    }

    /// Puts a root into slot 0, flushes, into slot 1, flushes. Slot 1 is durable before (recovery has
    /// seen to that), so a slot 0 that is torn leaves it. False, and it counts for nothing, if members
    /// were lost since `loss`.
    pub(crate) async fn store_root(&self, root: &Root, loss: Loss) -> Result<bool> {
        for slot in 0..2 {
            let held = self.roots.lock().await;
            if self.losses.any_since(loss) {
                planted::seen("root given up with a member");
                return Ok(false);
            }
            self.write_root(root, slot).await?;
            // Whoever notes what is lost writes a root of its own meanwhile.
            drop(held);
            self.settle_members().await?;
        }
        if self.losses.any_since(loss) {
            return Ok(false);
        }
        self.roots.note_durable(root.epoch);
        self.epoch_begun.wake_all();
        Ok(true)
    }

    /// Writes a root to a slot of all members that serve, durably. The caller holds the lock of roots.
    pub(crate) async fn write_root(&self, root: &Root, slot: u64) -> Result<()> {
        let at = root_offset(self.superblock.borrow().root_bytes, slot);
        let data = Buf::copy_of(&root.encode()).freeze();
        let writes: Vec<(usize, Io)> = self
            .serving()
            .map(|(index, member)| (index, member.device.write(at, data.clone())))
            .collect();
        for (index, write) in writes {
            add(&self.counters.ssd_checkpoint_bytes, data.len() as u64);
            if let Err(error) = write.done().await {
                self.fail_member(index, "writing a root to", error);
            }
        }
        self.flush_each("a root on").await
    }

    /// Flushes every member, whatever was appended. It counts once no epoch names one that failed.
    pub(crate) async fn flush_all(&self, what: &str) -> Result<()> {
        self.flush_each(&format!("{what} on")).await?;
        self.settle_members().await
    }

    fn is_lap_due(&self) -> bool {
        let pool = self.sets.borrow().total_count() as u64 * self.segment_bytes;
        let appended = self.log.bytes_since_lap.get();
        let freed = self.freed_by_root();
        let (low, batch) = {
            let sets = self.sets.borrow();
            (sets.is_low(), sets.root_batch())
        };
        // A root for every emptied set would cost more bytes than the set holds: as many as reclaim
        // keeps ready are freed together, and while somebody waits as many as are worth it, unless
        // reclaim has no more to give.
        let reclaiming = self.is_reclaim_due() && !self.reclaim_stuck.get();
        // After a member has failed, its images have one copy less.
        let behind = self.roots.is_behind() && !self.is_recovering();
        let urgent = || self.needs_root() || self.is_starving() || self.is_left_to_moves();
        behind
            || appended >= pool / 100 * self.tuning.lap_percent
            || (freed > 0 && (freed >= batch || !reclaiming) && urgent())
            || (freed > 0 && low && !self.is_reclaim_due())
            || (low && freed >= 3 * batch)
    }
}

/// Flushes the members from time to time although nobody asks, so that footers, facts and destaging
/// go on.
pub(crate) async fn flusher(core: Rc<Core>) {
    let mut last = core.rt.now();
    while !core.log.is_retired() && !core.latched.get() {
        let due = || {
            let asked = core.log.bytes_since_flush.get() >= core.tuning.flush_bytes
                || core.log.closing_count() > CLOSING_MAX
                || (core.log.closing_count() > 0 && core.throttle.shortage() > 0);
            core.log.is_retired() || (asked && core.log.has_volatile())
        };
        let timer = core.rt.sleep(core.tuning.flush_interval);
        core.housekeeping.until_or(|| due() || core.latched.get(), timer).await;
        let waited = core.rt.now() - last >= core.tuning.flush_interval;
        if core.log.has_volatile() && (due() || waited) {
            core.flush_members().await.ok();
            last = core.rt.now();
        }
    }
}

/// Sets that may wait for a flush and their footers before one is asked for.
const CLOSING_MAX: usize = 4;

/// Empties sets while there is too little room.
async fn reclaimer(core: Rc<Core>) {
    while !core.is_housekeeping_over() {
        let due = core.is_reclaim_due() || core.is_index_crowded();
        if let Some(v) = core.to_trim() {
            core.trim(&v).await;
        }
        let progress = due && core.reclaim_one().await.unwrap_or(false);
        let stuck = due && !progress;
        if core.reclaim_stuck.replace(stuck) != stuck || progress {
            // A root may be worth it now.
            core.housekeeping.wake_all();
        }
        core.note_more_room();
        if !progress {
            let timer = core.rt.sleep(LOOK_INTERVAL);
            let due =
                || (core.is_reclaim_due() && !core.reclaim_stuck.get()) || core.to_trim().is_some();
            core.housekeeping.until_or(|| core.is_housekeeping_over() || due(), timer).await;
        }
    }
}

/// Writes checkpoints. Sets are emptied meanwhile, so that the next root has something to free.
async fn checkpointer(core: Rc<Core>) {
    while !core.is_housekeeping_over() {
        if planted::is(Bug::SegmentReusedBeforeRoot) {
            core.free_sets(Sequence(0), 0).await.ok();
        }
        // Its error has latched the pool and is an event.
        let written = core.is_lap_due() && core.lap(false).await.is_ok();
        core.note_more_room();
        if !written {
            let timer = core.rt.sleep(LOOK_INTERVAL);
            let due = || core.is_housekeeping_over() || core.is_lap_due();
            core.housekeeping.until_or(due, timer).await;
        }
    }
}

impl Core {
    /// Begins to make room and to write checkpoints.
    pub(crate) fn begin_housekeeping(self: &Rc<Self>) {
        self.spawn_housekeeper(reclaimer(Rc::clone(self)));
        self.spawn_housekeeper(checkpointer(Rc::clone(self)));
    }

    fn is_housekeeping_over(&self) -> bool {
        self.is_closing() || self.latched.get()
    }

    /// There may be more room than before.
    fn note_more_room(&self) {
        self.note_room();
        // Whoever waits for memory looks again: evictions and destaging give it back piece by piece.
        self.room.wake_all();
    }
}

/// Byte offset of root slot 0 or 1 on every member.
pub(crate) fn root_offset(root_bytes: u32, slot: u64) -> u64 {
    2 * SUPERBLOCK_BYTES as u64 + slot * u64::from(root_bytes)
}

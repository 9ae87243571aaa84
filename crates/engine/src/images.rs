//! The images of the shards at a start: loading them, and what is durably forgotten when that fails.
//!
//! A start that goes on without something an image says must not leave it to chance whether the
//! next one finds it again: in between, direct writes log no tombstone for what is not cached, and
//! segments that nothing is known to need are reused. So, before the first of either:
//!
//! * An image of which no copy verifies is named no more: a root is durable in both slots that says
//!   of this shard "empty as of the image's watermark". Every later start agrees with this one.
//! * A set of which no header is left but into which an image points is known no more behind a root without these
//!   mappings, which is durable before the first request. Nor is what an image says of one that was opened again since.
//!
//! What members that are gone held is not left out here: replay may still move or supersede it. What
//! becomes of the rest is decided by [`crate::losses`].

use std::collections::BTreeSet;

use forebay_device::Data;

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::format::{
    Entry, EntryKind, ImageChunk, ImageRef, ImageRegion, RecordHeader, Root, State, checksum,
    decode_record,
};
use crate::ids::{BLOCK_BYTES, Location, SegmentId, Sequence};
use crate::index::shard_of;
use crate::limits::{IMAGE_CHAIN_MAX, REGION_BLOCKS};
use crate::membership::Trust;
use crate::planted;
use crate::recovery::{RecoveryReport, mappings};
use crate::sound::Place;

const BLOCK: usize = BLOCK_BYTES as usize;

/// What the images say of the sets.
#[derive(Default)]
pub(crate) struct Loaded {
    /// Whether members were lost since the root was written.
    lost: bool,
    /// Whether an image could not be loaded.
    pub failed: bool,
    /// Sets that the root relies on: those that hold images, and those that images point into.
    pub needed: BTreeSet<SegmentId>,
    /// Segments that images point into although no header says what they are.
    unknown: BTreeSet<SegmentId>,
    /// Whether they name what was in sets that were opened again since.
    reopened: bool,
    /// Sets that some image calls let go of.
    let_go: BTreeSet<SegmentId>,
    /// Sets in which some image knows of data that is not clean.
    unclean: BTreeSet<SegmentId>,
}

impl Loaded {
    /// Whether the images say nothing that a root of this start must not repeat.
    pub(crate) fn is_sound(&self) -> bool {
        !self.lost && self.unknown.is_empty() && !self.reopened
    }

    /// Sets that had been let go of, and of which no image says more: the root that names these makes them free.
    pub(crate) fn reusable(&self) -> impl Iterator<Item = SegmentId> + '_ {
        self.let_go.difference(&self.unclean).copied()
    }
}

impl Core {
    /// Loads the images of all shards. Those that cannot be loaded are named no more by `root`, which
    /// the caller makes durable before anything is appended.
    ///
    /// # Errors
    /// [`ErrorKind::NeedsDecision`] if one cannot be loaded and a volume may be dirty, unless
    /// members were lost and a person agreed to what is lost with them.
    pub(crate) async fn load_images(
        &self,
        root: &mut Root,
        trust: Trust,
        report: &mut RecoveryReport,
    ) -> Result<Loaded> {
        let mut loaded = Loaded { lost: trust != Trust::All, ..Loaded::default() };
        let agreed = loaded.lost && self.accepted.get();
        let mut failed = Vec::new();
        for (shard, image) in root.images.iter().enumerate().filter(|(_, image)| !image.is_empty())
        {
            let Err(reason) = self.load_image((root, shard), image, report, &mut loaded).await
            else {
                continue;
            };
            if !agreed && self.superblock.borrow().may_be_dirty() {
                let what = format!("the index image of shard {shard} is damaged ({reason})");
                return Err(Error::new(
                    ErrorKind::NeedsDecision,
                    format!("{what} and a volume may be dirty"),
                )
                .hint("nothing has been changed; see `forebay inspect` for what is left"));
            }
            self.event(
                EventKind::IndexDamaged,
                format!("shard {shard} starts empty: its image is damaged ({reason})"),
            );
            *self.shards[shard].index.borrow_mut() = crate::index::Shard::new();
            failed.push(shard);
        }
        for &shard in &failed {
            let watermark = root.images[shard].watermark;
            root.images[shard] =
                ImageRef { location: Location(0), sequence: Sequence(0), watermark };
        }
        loaded.failed = !failed.is_empty();
        let bytes: usize = self.shards.iter().map(|s| s.index.borrow().memory_bytes()).sum();
        self.index_bytes.set(bytes as u64);
        let partials: usize = self.shards.iter().map(|s| s.index.borrow().partial_count()).sum();
        self.partials.set(partials as u64);
        for shard in &self.shards {
            let sets = self.sets.borrow();
            let found = mappings(&shard.index.borrow());
            let data = found.iter().filter(|(_, m)| m.state.has_data());
            loaded.needed.extend(data.map(|(_, m)| sets.split(m.location).0));
        }
        Ok(loaded)
    }

    /// Keeps segments of which nobody knows what they are from being reused, as far as images point
    /// into them; returns those that would have been. Where images tell what was opened since, nobody takes
    /// for theirs what comes there.
    pub(crate) fn withhold(&self, root: &Root, loaded: &Loaded) -> Vec<SegmentId> {
        if root.let_go {
            return Vec::new();
        }
        let mut sets = self.sets.borrow_mut();
        loaded.unknown.iter().copied().filter(|&segment| sets.withhold(segment)).collect()
    }

    /// Gives back the segments that were withheld, now that no image points into them.
    pub(crate) fn give_back(&self, withheld: Vec<SegmentId>) {
        for segment in withheld {
            self.sets.borrow_mut().give_back(segment);
        }
        self.room.wake_all();
    }

    async fn load_image(
        &self,
        (root, shard): (&Root, usize),
        image: &ImageRef,
        report: &mut RecoveryReport,
        loaded: &mut Loaded,
    ) -> std::result::Result<(), &'static str> {
        let mut next = Some(image.location);
        let mut later: Option<u32> = None;
        let mut links = 0;
        while let Some(location) = next {
            links += 1;
            let set = self.sets.borrow().split(location).0;
            loaded.needed.insert(set);
            if self.sets.borrow().get(set).is_none() || links > IMAGE_CHAIN_MAX {
                return Err("it lies in no known set");
            }
            let (entries, data, record) =
                self.read_record(location).await.ok_or("no copy of a record verifies")?;
            report.bytes_read += data.len() as u64;
            let entry = entries
                .iter()
                .find(|e| {
                    let is_of = e.kind == EntryKind::Image && e.block == shard as u64;
                    is_of && e.extra == image.watermark.0
                })
                .filter(|_| later.is_some() || record.sequence == image.sequence)
                .ok_or("a record is of another image")?;
            let start = usize::from(entry.data) * BLOCK;
            let bytes = data.get(start..start + entry.count as usize * BLOCK);
            let bytes = bytes.ok_or("a record is too short")?;
            let chunk = self.load_chunk((root, shard), bytes, loaded)?;
            if later.is_some_and(|later| chunk.checked_add(1) != Some(later))
                || entry.from.is_none() != (chunk == 0)
            {
                return Err("its chain has a gap");
            }
            (next, later) = (entry.from, Some(chunk));
        }
        Ok(())
    }

    /// Puts a chunk's regions into a shard; returns its place in the chain.
    fn load_chunk(
        &self,
        (root, shard): (&Root, usize),
        bytes: &[u8],
        loaded: &mut Loaded,
    ) -> std::result::Result<u32, &'static str> {
        let chunk = ImageChunk::decode(bytes).map_err(|_| "a chunk does not decode")?;
        if chunk.shard as usize != shard {
            return Err("a chunk is of another shard");
        }
        let opened = root.let_go.then(|| opened_when(root, &chunk));
        let mut regions = chunk.regions();
        let mut region = ImageRegion::default();
        let count = self.shards.len() as u32;
        while regions.read_into(&mut region).map_err(|_| "a region does not decode")? {
            let first = u64::from(region.region) * REGION_BLOCKS;
            let belongs = shard_of(region.volume, first, count) as usize == shard;
            let inside = region.extents.iter().all(|extent| {
                self.has_blocks(region.volume, first + u64::from(extent.first()), extent.count())
            });
            if !belongs || !inside {
                return Err("a region does not belong there");
            }
            self.settle_region(&mut region, opened, loaded)?;
            if region.extents.is_empty() {
                continue;
            }
            let ImageRegion { volume, region, heat, extents, masks } = &region;
            let mut index = self.shards[shard].index.borrow_mut();
            let fits = index.load_region(*volume, *region, *heat, extents, masks);
            fits.map_err(|_| "a region contradicts itself")?;
        }
        Ok(chunk.chunk)
    }

    /// Leaves out what lies in a set all of whose headers are damaged, or were erased because its room was needed, and what
    /// lay in one that was opened again since `opened` of them had been: what was clean is a miss.
    fn settle_region(
        &self,
        region: &mut ImageRegion,
        opened: Option<u64>,
        loaded: &mut Loaded,
    ) -> std::result::Result<(), &'static str> {
        let mut outcome = Ok(());
        region.extents.retain_mut(|extent| {
            let is_let_go = extent.is_let_go();
            *extent = extent.taken_back();
            let found = match opened {
                None if is_let_go => Place::Impossible,
                _ => self.place_of(*extent, opened, is_let_go),
            };
            let is_clean = extent.state() == Some(State::Clean);
            let is_needless = is_clean || extent.state() == Some(State::Provisional);
            match found {
                Place::Unknown(set) if loaded.lost && self.sets.borrow().is_absent(set) => true,
                Place::Unknown(set) if is_needless => {
                    loaded.unknown.insert(set);
                    false
                }
                Place::Reopened if is_clean => {
                    planted::seen("start: opened again since the image");
                    loaded.reopened = true;
                    false
                }
                Place::Sound => {
                    if extent.state().is_some_and(State::has_data) && (is_let_go || !is_clean) {
                        let set = self.sets.borrow().split(extent.location()).0;
                        let into = if is_let_go { &mut loaded.let_go } else { &mut loaded.unclean };
                        into.insert(set);
                    }
                    true
                }
                Place::Unknown(_) | Place::Reopened | Place::Impossible => {
                    outcome = Err("a region does not belong there");
                    true
                }
            }
        });
        outcome
    }

    /// Reads and checks a whole record from any copy. Twice: what is flipped or fails on its way may
    /// be right the second time.
    async fn read_record(&self, header: Location) -> Option<(Vec<Entry>, Data, RecordHeader)> {
        let copies = self.copies(header);
        for copy in (0..copies).chain(0..copies) {
            let (member, at) = self.copy_of(header, copy)?;
            let Ok(bytes) = self.read_member(member, at, BLOCK).await else { continue };
            let Ok(peeked) = RecordHeader::peek(&bytes) else { continue };
            if !self.is_record_at(&peeked, header) {
                continue;
            }
            let length = peeked.blocks() as usize * BLOCK;
            let Ok(bytes) = self.read_member(member, at, length).await else { continue };
            if let Some((record, entries)) = verified(&bytes) {
                let data = bytes.freeze();
                let data = data.slice(record.header_bytes()..data.len());
                return Some((entries, data, record));
            }
        }
        None
    }
}

/// Segment sets opened when an image that a root names was taken.
fn opened_when(root: &Root, chunk: &ImageChunk<'_>) -> u64 {
    let since = (root.open_counter as u32).wrapping_sub(chunk.opened);
    root.open_counter.saturating_sub(since.into())
}

/// Decodes a whole record and checks every block of it.
fn verified(bytes: &[u8]) -> Option<(RecordHeader, Vec<Entry>)> {
    let peeked = RecordHeader::peek(bytes.get(..BLOCK)?).ok()?;
    let (record, entries, sums) = decode_record(bytes.get(..peeked.header_bytes())?).ok()?;
    let data = bytes.get(record.header_bytes()..record.blocks() as usize * BLOCK)?;
    let good = data.chunks_exact(BLOCK).zip(&sums).all(|(block, &sum)| checksum(block) == sum);
    good.then_some((record, entries))
}

//! The root: names the newest durable image of every shard.

use super::codec::{
    FEATURE_LET_GO, FEATURE_MARKS, FEATURE_OWN_ROOTS, FormatError, ROOT_FEATURES_KNOWN, begin,
    check, get_bool, get_bytes, get_u32, get_u64, has_feature, open_knowing, put_bytes,
    put_features, put_u32, put_u64, seal, structure,
};
use super::geometry::root_bytes_for;
use super::slots::{SlotChoice, Slotted, choose_slot};
use crate::ids::{LOCATION_BITS, Location, PoolId, Sequence};
use crate::limits::{SHARDS_MAX, SHARDS_MIN};

pub(super) const MAGIC: &[u8; 8] = b"FBYROOT\n";

structure!(at, "Root", 96, {
    MAGIC @ 0: 8,
    VERSION @ 8: 4,
    FEATURES @ 12: 4,
    CHECKSUM @ 16: 4,
    IMAGE_COUNT @ 20: 4,
    POOL @ 24: 16,
    GENERATION @ 40: 8,
    EPOCH @ 48: 8,
    START_NUMBER @ 56: 8,
    SEQUENCE @ 64: 8,
    OPEN_COUNTER @ 72: 8,
    CLEAN_STOP @ 80: 1,
});

structure!(reference, "Image reference", 24, {
    LOCATION @ 0: 8,
    SEQUENCE @ 8: 8,
    WATERMARK @ 16: 8,
});

/// Bytes that a root of so many shards uses.
pub(super) const fn used_bytes(image_count: usize) -> usize {
    at::SIZE + image_count * reference::SIZE
}

/// Where a shard's image is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ImageRef {
    /// Header of the chain's last record. `Location(0)` (a segment's header, never a record)
    /// stands for an empty image: nothing was written, nothing is mapped as of the watermark.
    pub location: Location,
    /// Append sequence of that record.
    pub sequence: Sequence,
    /// Every append at or below it is contained or has failed; replay starts behind it.
    pub watermark: Sequence,
}

impl ImageRef {
    /// Whether there is no record: the image is empty as of its watermark.
    pub fn is_empty(&self) -> bool {
        self.location == Location(0)
    }
}

/// One state of the checkpoint. Written whole to slot A, flushed, then to slot B, flushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The pool.
    pub pool: PoolId,
    /// Counts the roots written.
    pub generation: u64,
    /// The epoch that it was written in.
    pub epoch: u64,
    /// The daemon's start that wrote it.
    pub start_number: u64,
    /// Highest append sequence assigned when it was written.
    pub sequence: Sequence,
    /// Segment sets opened so far: the counter of the newest incarnation.
    pub open_counter: u64,
    /// Everything was published, imaged and durable, and nothing was written since.
    pub clean_stop: bool,
    /// Each start since writes a root of its own before it serves anybody (a feature; roots of older
    /// versions do not have it).
    pub own_roots: bool,
    /// It notes what is lost with members, for the epoch without them that is about to begin: it counts
    /// only for a superblock that names it by its generation (a feature).
    pub marks: bool,
    /// Its images name clean data in sets that were let go of, and say how many sets had been opened (a feature):
    /// what lies in a set that was opened after that is passed over.
    pub let_go: bool,
    /// One per shard, by its number.
    pub images: Vec<ImageRef>,
}

impl Root {
    /// The bytes of a whole slot of [`root_bytes_for`]`(images.len())` bytes.
    ///
    /// # Panics
    /// If a field is out of its range.
    pub fn encode(&self) -> Vec<u8> {
        if let Err(error) = self.validate() {
            panic!("root not encodable: {error}");
        }
        let mut out = vec![0; root_bytes_for(self.images.len() as u32) as usize];
        begin(&mut out, MAGIC);
        let features = [
            (self.own_roots, FEATURE_OWN_ROOTS),
            (self.marks, FEATURE_MARKS),
            (self.let_go, FEATURE_LET_GO),
        ];
        put_features(&mut out, &features);
        put_u32(&mut out, at::IMAGE_COUNT, self.images.len() as u32);
        put_bytes(&mut out, at::POOL, &self.pool.0);
        put_u64(&mut out, at::GENERATION, self.generation);
        put_u64(&mut out, at::EPOCH, self.epoch);
        put_u64(&mut out, at::START_NUMBER, self.start_number);
        put_u64(&mut out, at::SEQUENCE, self.sequence.0);
        put_u64(&mut out, at::OPEN_COUNTER, self.open_counter);
        out[at::CLEAN_STOP] = u8::from(self.clean_stop);
        let places = out[at::SIZE..].chunks_exact_mut(reference::SIZE);
        for (named, place) in self.images.iter().zip(places) {
            put_u64(place, reference::LOCATION, named.location.0);
            put_u64(place, reference::SEQUENCE, named.sequence.0);
            put_u64(place, reference::WATERMARK, named.watermark.0);
        }
        seal(&mut out);
        out
    }

    /// Decodes a whole slot.
    ///
    /// # Errors
    /// If the bytes are not an intact root that this code knows.
    pub fn decode(bytes: &[u8]) -> Result<Root, FormatError> {
        open_knowing(ROOT_FEATURES_KNOWN, bytes, at::SIZE, MAGIC)?;
        let image_count = get_u32(bytes, at::IMAGE_COUNT);
        check((SHARDS_MIN..=SHARDS_MAX).contains(&image_count), "image_count")?;
        if bytes.len() != root_bytes_for(image_count) as usize {
            return Err(FormatError::Truncated);
        }
        let images = bytes[at::SIZE..]
            .chunks_exact(reference::SIZE)
            .take(image_count as usize)
            .map(|place| ImageRef {
                location: Location(get_u64(place, reference::LOCATION)),
                sequence: Sequence(get_u64(place, reference::SEQUENCE)),
                watermark: Sequence(get_u64(place, reference::WATERMARK)),
            })
            .collect();
        let root = Root {
            pool: PoolId(get_bytes(bytes, at::POOL)),
            generation: get_u64(bytes, at::GENERATION),
            epoch: get_u64(bytes, at::EPOCH),
            start_number: get_u64(bytes, at::START_NUMBER),
            sequence: Sequence(get_u64(bytes, at::SEQUENCE)),
            open_counter: get_u64(bytes, at::OPEN_COUNTER),
            clean_stop: get_bool(bytes, at::CLEAN_STOP, "clean_stop")?,
            own_roots: has_feature(bytes, FEATURE_OWN_ROOTS),
            marks: has_feature(bytes, FEATURE_MARKS),
            let_go: has_feature(bytes, FEATURE_LET_GO),
            images,
        };
        root.validate()?;
        Ok(root)
    }

    /// Which of the two slots' roots to start from. (The roots of several members are compared by
    /// [`Root::generation`].)
    pub fn choose(
        slot_a: &Result<Root, FormatError>,
        slot_b: &Result<Root, FormatError>,
    ) -> SlotChoice {
        choose_slot(slot_a, slot_b)
    }

    /// The sequence up to which every image says what came of all appends.
    pub fn lowest_watermark(&self) -> Sequence {
        self.images.iter().map(|image| image.watermark).min().unwrap_or_default()
    }

    fn validate(&self) -> Result<(), FormatError> {
        let shards = SHARDS_MIN as usize..=SHARDS_MAX as usize;
        check(shards.contains(&self.images.len()), "image_count")?;
        check(self.sequence.0 < u64::MAX, "sequence")?;
        for named in &self.images {
            check(named.location.0 < 1 << LOCATION_BITS, "image location")?;
            check(named.sequence <= self.sequence, "image sequence")?;
            check(!named.is_empty() || named.sequence == Sequence(0), "image sequence")?;
            check(named.watermark <= self.sequence, "image watermark")?;
        }
        Ok(())
    }
}

impl Slotted for Root {
    fn same_identity(&self, other: &Self) -> bool {
        self.pool == other.pool
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

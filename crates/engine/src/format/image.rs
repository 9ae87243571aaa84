//! The payload of a shard's image: regions with their extents, packed into chunks. A chunk is the
//! data of one image record; a region never straddles two.
//!
//! `chunk head | region head, extents, masks, padding to 8 | ... | zeroes to the block`

use super::codec::{
    BLOCK, FormatError, begin, check, get_u16, get_u32, get_u64, open, put_u16, put_u32, seal,
    structure,
};
use super::extent::{Extent, State};
use crate::ids::{SECTORS_ALL, VolumeId};
use crate::limits::{REGION_BLOCKS, SHARDS_MAX};

pub(super) const MAGIC: &[u8; 8] = b"FBYIMAGE";

structure!(at, "Image chunk", 40, {
    MAGIC @ 0: 8,
    VERSION @ 8: 4,
    FEATURES @ 12: 4,
    CHECKSUM @ 16: 4,
    SHARD @ 20: 4,
    CHUNK @ 24: 4,
    REGION_COUNT @ 28: 4,
    BODY_BYTES @ 32: 4,
    OPENED @ 36: 4,
});

structure!(item, "Image region", 16, {
    VOLUME @ 0: 4,
    REGION @ 4: 4,
    HEAT @ 8: 4,
    EXTENT_COUNT @ 12: 2,
    MASK_COUNT @ 14: 2,
});

/// Bytes of the largest region: 256 extents, all partial.
pub const IMAGE_REGION_BYTES_MAX: usize =
    item::SIZE + REGION_BLOCKS as usize * 8 + REGION_BLOCKS as usize;
/// Bytes of a chunk's head.
pub const IMAGE_CHUNK_HEAD_BYTES: usize = at::SIZE;

// Any region fits an empty chunk of one block.
const _: () = assert!(at::SIZE + IMAGE_REGION_BYTES_MAX <= BLOCK);

/// What a shard knows of one 1 MiB region of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ImageRegion {
    /// The volume.
    pub volume: VolumeId,
    /// Number of the 1 MiB region within the volume.
    pub region: u32,
    /// The policy's word about it; the format does not look at it.
    pub heat: u32,
    /// Ascending, without overlap, 1..=256.
    pub extents: Vec<Extent>,
    /// Sector masks of the partial extents, in their order.
    pub masks: Vec<u8>,
}

impl ImageRegion {
    /// Bytes that it takes in a chunk.
    pub fn encoded_bytes(&self) -> usize {
        region_bytes(self.extents.len(), self.masks.len())
    }

    fn validate(&self) -> Result<(), FormatError> {
        check(self.volume.0 != 0, "region volume")?;
        check(!self.extents.is_empty(), "region extent_count")?;
        check(self.extents.len() <= REGION_BLOCKS as usize, "region extent_count")?;
        let (mut end, mut partials) = (0, 0);
        for extent in &self.extents {
            check(extent.first() >= end, "extent first")?;
            check(extent.end() <= REGION_BLOCKS as u32, "extent count")?;
            end = extent.end();
            if extent.is_partial() {
                partials += 1;
                check(extent.count() == 1, "extent count")?;
                let state = extent.state();
                check(matches!(state, Some(State::Written | State::Dirty)), "extent state")?;
            }
        }
        check(self.masks.len() == partials, "region mask_count")?;
        check(self.masks.iter().all(|&mask| mask != 0 && mask != SECTORS_ALL), "mask")
    }
}

fn region_bytes(extent_count: usize, mask_count: usize) -> usize {
    item::SIZE + 8 * extent_count + mask_count.next_multiple_of(8)
}

/// Appends a region to a chunk's body.
///
/// # Panics
/// If a field is out of its range.
pub fn append_image_region(region: &ImageRegion, out: &mut Vec<u8>) {
    if let Err(error) = region.validate() {
        panic!("region not encodable: {error}: {region:?}");
    }
    let start = out.len();
    out.resize(start + item::SIZE, 0);
    let head = &mut out[start..];
    put_u32(head, item::VOLUME, region.volume.0);
    put_u32(head, item::REGION, region.region);
    put_u32(head, item::HEAT, region.heat);
    put_u16(head, item::EXTENT_COUNT, region.extents.len() as u16);
    put_u16(head, item::MASK_COUNT, region.masks.len() as u16);
    for extent in &region.extents {
        out.extend_from_slice(&extent.0.to_le_bytes());
    }
    out.extend_from_slice(&region.masks);
    out.resize(start + region.encoded_bytes(), 0);
}

/// Packs regions into one chunk.
#[derive(Debug)]
pub struct ImageChunkWriter {
    bytes: Vec<u8>,
    bytes_max: usize,
    region_count: u32,
}

impl ImageChunkWriter {
    /// An empty chunk of at most `bytes_max`, a multiple of 4 KiB (a record's data); `opened` as in [`ImageChunk`].
    pub fn new(shard: u32, chunk: u32, opened: u32, bytes_max: usize) -> ImageChunkWriter {
        assert!(shard < SHARDS_MAX, "shard {shard}");
        assert!(bytes_max.is_multiple_of(BLOCK) && bytes_max >= BLOCK, "{bytes_max} bytes");
        let mut bytes = vec![0; at::SIZE];
        begin(&mut bytes, MAGIC);
        put_u32(&mut bytes, at::SHARD, shard);
        put_u32(&mut bytes, at::CHUNK, chunk);
        put_u32(&mut bytes, at::OPENED, opened);
        ImageChunkWriter { bytes, bytes_max, region_count: 0 }
    }

    /// Appends a region, or says that it does not fit any more. It always fits an empty chunk.
    pub fn push(&mut self, region: &ImageRegion) -> bool {
        if self.bytes.len() + region.encoded_bytes() > self.bytes_max {
            return false;
        }
        append_image_region(region, &mut self.bytes);
        self.region_count += 1;
        true
    }

    /// Whether nothing was appended.
    pub fn is_empty(&self) -> bool {
        self.region_count == 0
    }

    /// The chunk, padded to whole blocks.
    pub fn finish(mut self) -> Vec<u8> {
        put_u32(&mut self.bytes, at::REGION_COUNT, self.region_count);
        let body_bytes = (self.bytes.len() - at::SIZE) as u32;
        put_u32(&mut self.bytes, at::BODY_BYTES, body_bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
        seal(&mut self.bytes);
        self.bytes
    }
}

/// A chunk whose checksum is right; its regions are read one by one.
#[derive(Clone, Copy, Debug)]
pub struct ImageChunk<'a> {
    /// The shard.
    pub shard: u32,
    /// Its place in the chain, counted from 0.
    pub chunk: u32,
    /// Segment sets opened when the image was taken, modulo 2^32; see [`Root::let_go`](super::Root::let_go).
    pub opened: u32,
    /// Regions that follow.
    pub region_count: u32,
    body: &'a [u8],
}

impl<'a> ImageChunk<'a> {
    /// Checks a chunk; `bytes` are exactly the data of its record.
    ///
    /// # Errors
    /// If the bytes are not an intact chunk that this code knows.
    pub fn decode(bytes: &'a [u8]) -> Result<ImageChunk<'a>, FormatError> {
        open(bytes, at::SIZE, MAGIC)?;
        let body_bytes = get_u32(bytes, at::BODY_BYTES) as usize;
        let body = bytes[at::SIZE..].get(..body_bytes).ok_or(FormatError::Truncated)?;
        check(bytes.len() == (at::SIZE + body_bytes).next_multiple_of(BLOCK), "body_bytes")?;
        let shard = get_u32(bytes, at::SHARD);
        check(shard < SHARDS_MAX, "shard")?;
        let region_count = get_u32(bytes, at::REGION_COUNT);
        check(region_count as usize <= body_bytes / region_bytes(1, 0), "region_count")?;
        let (chunk, opened) = (get_u32(bytes, at::CHUNK), get_u32(bytes, at::OPENED));
        Ok(ImageChunk { shard, chunk, opened, region_count, body })
    }

    /// Its regions, each checked.
    pub fn regions(&self) -> ImageRegions<'a> {
        ImageRegions { rest: self.body, left: self.region_count }
    }
}

/// Reads the regions of a chunk; ends after the first error.
#[derive(Clone, Debug)]
pub struct ImageRegions<'a> {
    rest: &'a [u8],
    left: u32,
}

impl ImageRegions<'_> {
    /// Reads the next region into `region`, whose vectors are reused; `false` at the end.
    ///
    /// # Errors
    /// If the bytes hold no valid region, or bytes are left behind the last.
    pub fn read_into(&mut self, region: &mut ImageRegion) -> Result<bool, FormatError> {
        if self.left == 0 {
            let rest = std::mem::take(&mut self.rest);
            return check(rest.is_empty(), "body_bytes").map(|()| false);
        }
        let result = self.read(region);
        self.left = if result.is_ok() { self.left - 1 } else { 0 };
        if result.is_err() {
            self.rest = &[];
        }
        result.map(|()| true)
    }

    fn read(&mut self, region: &mut ImageRegion) -> Result<(), FormatError> {
        let head = self.rest.get(..item::SIZE).ok_or(FormatError::Truncated)?;
        let extent_count = usize::from(get_u16(head, item::EXTENT_COUNT));
        let mask_count = usize::from(get_u16(head, item::MASK_COUNT));
        region.volume = VolumeId(get_u32(head, item::VOLUME));
        region.region = get_u32(head, item::REGION);
        region.heat = get_u32(head, item::HEAT);
        let bytes = region_bytes(extent_count, mask_count);
        let (all, behind) = self.rest.split_at_checked(bytes).ok_or(FormatError::Truncated)?;
        let (extents, masks) = all[item::SIZE..].split_at(8 * extent_count);
        region.extents.clear();
        region.extents.extend(extents.chunks_exact(8).map(|extent| Extent(get_u64(extent, 0))));
        region.masks.clear();
        region.masks.extend_from_slice(&masks[..mask_count]);
        self.rest = behind;
        region.validate()
    }
}

impl Iterator for ImageRegions<'_> {
    type Item = Result<ImageRegion, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut region = ImageRegion::default();
        match self.read_into(&mut region) {
            Ok(true) => Some(Ok(region)),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

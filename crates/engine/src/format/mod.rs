//! The on-disk format. `docs/internals/format.md` is its specification; a test holds the two
//! against each other. Encoding is explicit, little-endian, at named offsets.
//!
//! - Encoders assert their preconditions; decoders take any bytes and never panic.
//! - Bytes between fields are reserved: written as zero, covered by the checksum, not looked at.

mod checksum;
mod claim;
mod codec;
mod entry;
mod events;
mod extent;
mod footer;
mod geometry;
mod image;
mod numbers;
mod record;
mod root;
mod segment;
mod slots;
mod spare;
mod superblock;
mod volume;
mod witness;

pub use checksum::checksum;
pub use claim::{CLAIM_BYTES, Claim, Host};
pub use codec::{
    FEATURE_GROWN, FEATURE_LET_GO, FEATURE_OWN_ROOTS, FEATURES_KNOWN, FORMAT_VERSION, Field,
    FormatError, Structure,
};
pub use entry::{ENTRY_BYTES, Entry, EntryKind, NO_DATA, RECORD_BLOCKS_MAX, VOLUME_BLOCKS_MAX};
pub use events::{EventPage, EventRecord};
pub use extent::{Extent, State};
pub use footer::{
    FooterRecord, FooterTrailer, decode_footer_body, decode_footer_trailer, encode_footer,
    footer_blocks_for,
};
pub(crate) use geometry::shards_with_claims;
pub use geometry::{Layout, MEMBER_BYTES_MIN, SEGMENTS_MAX, root_bytes_for, segment_bytes_for};
pub use image::{
    IMAGE_CHUNK_HEAD_BYTES, IMAGE_REGION_BYTES_MAX, ImageChunk, ImageChunkWriter, ImageRegion,
    ImageRegions, append_image_region,
};
pub use numbers::{NumberRange, Numbers, RANGES_MAX};
pub use record::{
    RECORD_HEAD_BYTES, RecordHeader, decode_checksums, decode_record, encode_record_header,
    header_blocks_for,
};
pub use root::{ImageRef, Root};
pub use segment::{SegmentHeader, Stream};
pub use slots::SlotChoice;
pub use spare::{SPARE_BYTES, Spare};
pub use superblock::{MemberRecord, MemberState, SUPERBLOCK_BYTES, Superblock};
pub use volume::{
    CUTOFF_NEVER, DAY_MINUTES, Fingerprint, Hours, Mode, Priority, SequentialWhen, VolumeRecord,
    VolumeSettings,
};
pub use witness::{Witness, WitnessVolume};

/// Every structure of the format, for `forebay inspect` and for the test that holds the
/// specification against the code.
pub const STRUCTURES: &[Structure] = &[
    codec::prefix::STRUCTURE,
    superblock::at::STRUCTURE,
    superblock::member::STRUCTURE,
    volume::at::STRUCTURE,
    volume::print::STRUCTURE,
    root::at::STRUCTURE,
    root::reference::STRUCTURE,
    segment::at::STRUCTURE,
    record::at::STRUCTURE,
    entry::at::STRUCTURE,
    footer::at::STRUCTURE,
    footer::item::STRUCTURE,
    image::at::STRUCTURE,
    image::item::STRUCTURE,
    spare::at::STRUCTURE,
    claim::at::STRUCTURE,
    events::at::STRUCTURE,
    events::item::STRUCTURE,
    witness::at::STRUCTURE,
    witness::item::STRUCTURE,
];

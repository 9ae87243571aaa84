//! What all structures share: the error, little-endian access at named offsets, the 20 bytes that
//! every structure starts with.

use std::fmt;

use super::checksum::checksum_with_holes;
use crate::ids::BLOCK_BYTES;

/// Version of the format that this code writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 1;
/// Feature of superblocks and roots: each start writes a root of its own before it serves anybody.
pub const FEATURE_OWN_ROOTS: u32 = 1;
/// Of a root: it counts only where a superblock names it.
pub const FEATURE_MARKS: u32 = 2;
/// Of a superblock: a member has grown, and has further ranges of segment numbers.
pub const FEATURE_GROWN: u32 = 4;
/// Of a root: its images name clean data in sets that were let go of, which may have been opened again since.
pub const FEATURE_LET_GO: u32 = 8;
/// Incompatible features of superblocks that this code understands; with any other bit they are
/// refused. Roots have others, and no other structure has any.
pub const FEATURES_KNOWN: u32 = FEATURE_OWN_ROOTS | FEATURE_GROWN;
/// The same of roots.
pub const ROOT_FEATURES_KNOWN: u32 = FEATURE_OWN_ROOTS | FEATURE_MARKS | FEATURE_LET_GO;
/// One block, as a length in memory.
pub(super) const BLOCK: usize = BLOCK_BYTES as usize;

/// Why bytes are not the structure that was looked for. Never a panic: they may be anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatError {
    /// Something else, or nothing, stands here.
    BadMagic,
    /// The structure is damaged.
    BadChecksum,
    /// Intact, but written by a newer Forebay.
    FutureVersion {
        /// The version found.
        found: u32,
    },
    /// Intact, but uses incompatible features that this Forebay does not know.
    UnknownFeatures {
        /// The unknown bits.
        bits: u32,
    },
    /// Intact, but a field is out of its range: a bug of the writer, or a forgery.
    Invalid {
        /// The field, as in the specification.
        field: &'static str,
    },
    /// Fewer bytes than the structure has.
    Truncated,
}

impl FormatError {
    /// Whether the structure is whole, and a newer Forebay is needed to read it.
    pub fn needs_newer(&self) -> bool {
        matches!(self, FormatError::FutureVersion { .. } | FormatError::UnknownFeatures { .. })
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormatError::BadMagic => write!(f, "wrong magic"),
            FormatError::BadChecksum => write!(f, "checksum does not match"),
            FormatError::FutureVersion { found } => {
                write!(f, "format version {found}, this Forebay knows up to {FORMAT_VERSION}")
            }
            FormatError::UnknownFeatures { bits } => write!(f, "unknown features {bits:#x}"),
            FormatError::Invalid { field } => write!(f, "field {field} is out of range"),
            FormatError::Truncated => write!(f, "shorter than its structure"),
        }
    }
}

impl std::error::Error for FormatError {}

/// `Ok` if the field's condition holds.
pub(super) fn check(holds: bool, field: &'static str) -> Result<(), FormatError> {
    if holds { Ok(()) } else { Err(FormatError::Invalid { field }) }
}

/// A field of a structure: the document's tables and `forebay inspect` use the same words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, in upper case.
    pub name: &'static str,
    /// Bytes from the structure's start.
    pub offset: usize,
    /// Length in bytes; of the whole array where it is one.
    pub size: usize,
}

/// A structure: its name in the specification, its fixed part, its fields.
#[derive(Clone, Copy, Debug)]
pub struct Structure {
    /// Name, as in the heading of its table.
    pub name: &'static str,
    /// Bytes of the fixed part.
    pub size: usize,
    /// All fields, ascending; bytes between them are reserved and zero.
    pub fields: &'static [Field],
}

/// Whether fields ascend, do not overlap and end within `size`.
pub(super) const fn fields_fit(fields: &[Field], size: usize) -> bool {
    let (mut index, mut end) = (0, 0);
    while index < fields.len() {
        if fields[index].offset < end || fields[index].size == 0 {
            return false;
        }
        end = fields[index].offset + fields[index].size;
        index += 1;
    }
    end <= size
}

/// Declares a structure's offsets as constants of a module, together with the table of its fields.
macro_rules! structure {
    ($module:ident, $name:literal, $size:expr, {
        $($field:ident @ $offset:literal: $bytes:literal),+ $(,)?
    }) => {
        #[allow(dead_code, reason = "not every field is read by name")]
        pub(super) mod $module {
            use $crate::format::codec::{Field, Structure, fields_fit};
            $(pub const $field: usize = $offset;)+
            pub const SIZE: usize = $size;
            pub const FIELDS: &[Field] =
                &[$(Field { name: stringify!($field), offset: $offset, size: $bytes }),+];
            pub const STRUCTURE: Structure =
                Structure { name: $name, size: SIZE, fields: FIELDS };
            const _: () = assert!(fields_fit(FIELDS, SIZE));
        }
    };
}
pub(super) use structure;

pub(super) fn get_u16(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(get_bytes(bytes, offset))
}

pub(super) fn get_u32(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(get_bytes(bytes, offset))
}

pub(super) fn get_u64(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(get_bytes(bytes, offset))
}

pub(super) fn get_bytes<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[offset..offset + N]);
    out
}

/// A flag byte: 0 or 1, nothing else.
pub(super) fn get_bool(
    bytes: &[u8],
    offset: usize,
    name: &'static str,
) -> Result<bool, FormatError> {
    check(bytes[offset] <= 1, name)?;
    Ok(bytes[offset] == 1)
}

/// Text of `length` bytes in a place of `room` bytes.
pub(super) fn get_text(
    bytes: &[u8],
    offset: usize,
    length: usize,
    max: usize,
    name: &'static str,
) -> Result<String, FormatError> {
    check(length <= max, name)?;
    let text = std::str::from_utf8(&bytes[offset..offset + length]);
    text.map(str::to_owned).map_err(|_| FormatError::Invalid { field: name })
}

pub(super) fn put_u16(bytes: &mut [u8], offset: usize, value: u16) {
    put_bytes(bytes, offset, &value.to_le_bytes());
}

pub(super) fn put_u32(bytes: &mut [u8], offset: usize, value: u32) {
    put_bytes(bytes, offset, &value.to_le_bytes());
}

pub(super) fn put_u64(bytes: &mut [u8], offset: usize, value: u64) {
    put_bytes(bytes, offset, &value.to_le_bytes());
}

pub(super) fn put_bytes(bytes: &mut [u8], offset: usize, value: &[u8]) {
    bytes[offset..offset + value.len()].copy_from_slice(value);
}

// Frozen for ever, so that any version can tell "damaged" from "newer".
structure!(prefix, "Prefix", 20, {
    MAGIC @ 0: 8,
    VERSION @ 8: 4,
    FEATURES @ 12: 4,
    CHECKSUM @ 16: 4,
});

/// Writes magic, version and features; the checksum comes last, with [`seal`].
pub(super) fn begin(bytes: &mut [u8], magic: &[u8; 8]) {
    put_bytes(bytes, prefix::MAGIC, magic);
    put_u32(bytes, prefix::VERSION, FORMAT_VERSION);
    put_u32(bytes, prefix::FEATURES, 0);
}

/// Sets the incompatible features that are in use, after [`begin`].
pub(super) fn put_features(bytes: &mut [u8], features: &[(bool, u32)]) {
    let used = features.iter().filter(|(used, _)| *used);
    put_u32(bytes, prefix::FEATURES, used.fold(0, |bits, (_, bit)| bits | bit));
}

/// Whether a feature is in use.
pub(super) fn has_feature(bytes: &[u8], feature: u32) -> bool {
    get_u32(bytes, prefix::FEATURES) & feature != 0
}

/// Writes the checksum over all of `bytes`.
pub(super) fn seal(bytes: &mut [u8]) {
    let sum = checksum_with_holes(bytes, &[prefix::CHECKSUM]);
    put_u32(bytes, prefix::CHECKSUM, sum);
}

/// Checks the magic alone; `bytes` hold at least `size`.
pub(super) fn check_magic(bytes: &[u8], size: usize, magic: &[u8; 8]) -> Result<(), FormatError> {
    debug_assert!(size >= prefix::SIZE);
    if bytes.len() < size {
        return Err(FormatError::Truncated);
    }
    if bytes[..8] != magic[..] { Err(FormatError::BadMagic) } else { Ok(()) }
}

/// Whether bytes begin with a magic but for up to 4 bits, as a misread one does. Blank and random bytes differ in about
/// half of its 64, other structures of this format in more than these.
pub(super) fn nearly_has_magic(bytes: &[u8], magic: &[u8; 8]) -> bool {
    const WRONG_BITS_MAX: u32 = 4;
    let differing = |found: &[u8]| -> u32 {
        found.iter().zip(magic).map(|(found, right)| (found ^ right).count_ones()).sum()
    };
    bytes.get(..8).is_some_and(|found| differing(found) <= WRONG_BITS_MAX)
}

/// Checks the checksum over all of `bytes`.
pub(super) fn check_sum(bytes: &[u8]) -> Result<(), FormatError> {
    let sum = checksum_with_holes(bytes, &[prefix::CHECKSUM]);
    if get_u32(bytes, prefix::CHECKSUM) == sum { Ok(()) } else { Err(FormatError::BadChecksum) }
}

/// Checks version and features, of which those in `known` may be in use, after a checksum over them
/// was found right.
pub(super) fn check_version(bytes: &[u8], known: u32) -> Result<(), FormatError> {
    let found = get_u32(bytes, prefix::VERSION);
    if found > FORMAT_VERSION {
        return Err(FormatError::FutureVersion { found });
    }
    check(found != 0, "version")?;
    let bits = get_u32(bytes, prefix::FEATURES) & !known;
    if bits != 0 { Err(FormatError::UnknownFeatures { bits }) } else { Ok(()) }
}

/// Checks magic, checksum, version and features, in this order, of a structure that fills `bytes`
/// and has at least `size` of them.
pub(super) fn open(bytes: &[u8], size: usize, magic: &[u8; 8]) -> Result<(), FormatError> {
    open_knowing(0, bytes, size, magic)
}

/// The same for a structure that may use the features `known`.
pub(super) fn open_knowing(
    known: u32,
    bytes: &[u8],
    size: usize,
    magic: &[u8; 8],
) -> Result<(), FormatError> {
    check_magic(bytes, size, magic)?;
    check_sum(bytes)?;
    check_version(bytes, known)
}

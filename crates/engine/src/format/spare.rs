//! The mark of a spare: a device that holds nothing, and that a pool may take when it loses a member. It
//! stands where a member has its superblocks, in both places, so a device is the one or the other.

use super::codec::{
    FormatError, begin, check, get_bytes, get_text, open, put_bytes, seal, structure,
};
use super::slots::needs_newer;
use super::superblock::Superblock;
use super::volume::name_valid;
use crate::ids::{DeviceId, PoolId};
use crate::limits::NAME_BYTES_MAX;

pub(super) const MAGIC: &[u8; 8] = b"FBYSPARE";

/// Bytes of the mark.
pub const SPARE_BYTES: usize = 4096;

structure!(at, "Spare", 4096, {
    MAGIC @ 0: 8,
    VERSION @ 8: 4,
    FEATURES @ 12: 4,
    CHECKSUM @ 16: 4,
    POOL @ 24: 16,
    DEVICE @ 40: 16,
    NAME_BYTES @ 56: 1,
    NAME @ 64: 63,
});

const _: () = assert!(at::SIZE == SPARE_BYTES);

/// See the module's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spare {
    /// The pool that may take it.
    pub pool: PoolId,
    /// Its identity as a spare; as a member it gets another one.
    pub device: DeviceId,
    /// The pool's name when it was marked, 1..=63 bytes; for people.
    pub name: String,
}

impl Spare {
    /// The bytes of the mark.
    ///
    /// # Panics
    /// If the name is none that a pool can have.
    pub fn encode(&self) -> Vec<u8> {
        assert!(name_valid(&self.name), "spare not encodable: name");
        let mut out = vec![0; at::SIZE];
        begin(&mut out, MAGIC);
        put_bytes(&mut out, at::POOL, &self.pool.0);
        put_bytes(&mut out, at::DEVICE, &self.device.0);
        out[at::NAME_BYTES] = self.name.len() as u8;
        put_bytes(&mut out, at::NAME, self.name.as_bytes());
        seal(&mut out);
        out
    }

    /// Decodes the first block of a superblock slot.
    ///
    /// # Errors
    /// If the bytes do not start with an intact mark that this code knows.
    pub fn decode(bytes: &[u8]) -> Result<Spare, FormatError> {
        let bytes = bytes.get(..SPARE_BYTES).ok_or(FormatError::Truncated)?;
        open(bytes, at::SIZE, MAGIC)?;
        let name_bytes = usize::from(bytes[at::NAME_BYTES]);
        let name = get_text(bytes, at::NAME, name_bytes, NAME_BYTES_MAX, "name")?;
        check(name_valid(&name), "name")?;
        let (pool, device) = (get_bytes(bytes, at::POOL), get_bytes(bytes, at::DEVICE));
        Ok(Spare { pool: PoolId(pool), device: DeviceId(device), name })
    }

    /// The mark of a device with these two superblock slots. A superblock in either one counts for more,
    /// also one that this code does not know: the device is a member then, or was about to become one.
    ///
    /// # Errors
    /// If there is none to go by.
    pub fn choose(slots: [&[u8]; 2]) -> Result<Spare, FormatError> {
        let is_member = |slot: &[u8]| {
            !matches!(
                Superblock::decode(slot),
                Err(FormatError::BadMagic | FormatError::BadChecksum | FormatError::Truncated)
            )
        };
        if slots.iter().any(|slot| is_member(slot)) {
            return Err(FormatError::BadMagic);
        }
        let marks = slots.map(Spare::decode);
        match (marks.iter().find_map(needs_newer), marks) {
            (Some(newer), _) => Err(newer),
            (None, [Ok(first), _]) => Ok(first),
            (None, [_, second]) => second,
        }
    }
}

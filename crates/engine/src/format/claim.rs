//! Who has a pool open: a host, as it says itself, and how lately it said so. Two places behind the roots
//! of each member.

use super::codec::{
    FormatError, begin, check, get_bool, get_bytes, get_text, get_u32, get_u64, open, put_bytes,
    put_u32, put_u64, seal, structure,
};
use super::superblock::{SUPERBLOCK_BYTES, Superblock};
use super::volume::name_valid;
use crate::ids::{BLOCK_BYTES, PoolId};
use crate::limits::{COUNTER_MAX, LEASE_MAX, MILLIS, NAME_BYTES_MAX};

pub(super) const MAGIC: &[u8; 8] = b"FBYCLAIM";

/// Bytes of one of the two places of a claim.
pub const CLAIM_BYTES: usize = 4096;

structure!(at, "Claim", 4096, {
    MAGIC @ 0: 8,
    VERSION @ 8: 4,
    FEATURES @ 12: 4,
    CHECKSUM @ 16: 4,
    RELEASED @ 20: 1,
    NAME_BYTES @ 21: 1,
    POOL @ 24: 16,
    CLAIM @ 40: 16,
    NUMBER @ 56: 8,
    BEAT @ 64: 8,
    BEAT_UNIX_S @ 72: 8,
    LEASE_MS @ 80: 4,
    HOST @ 88: 16,
    BOOT @ 104: 16,
    NAME @ 120: 63,
});

const _: () = assert!(at::SIZE == CLAIM_BYTES && CLAIM_BYTES as u64 == BLOCK_BYTES);

/// A machine that opens pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Which one it is; no other has the same.
    pub id: [u8; 16],
    /// Names the time since it was started.
    pub boot: [u8; 16],
    /// Its name, 1..=63 bytes; for people, and to tell copies of one machine from each other.
    pub name: String,
}

impl Host {
    /// Whether both are one machine, which opens a pool once at a time. It has been started again
    /// meanwhile if `boot` differs; but then so may a copy of it that has its identity, and a name of its own.
    pub fn is_same(&self, other: &Host) -> bool {
        self.id == other.id && (self.boot == other.boot || self.name == other.name)
    }
}

/// See the module's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The pool.
    pub pool: PoolId,
    /// Names this opening of the pool.
    pub claim: [u8; 16],
    /// Higher than that of every claim that its host has seen.
    pub number: u64,
    /// Counts how often it was written.
    pub beat: u64,
    /// When it was written last, in seconds since 1970 by that host's clock; for people.
    pub beat_unix_s: u64,
    /// Milliseconds that others wait before they take the pool over.
    pub lease_ms: u32,
    /// Whether the host has closed the pool.
    pub released: bool,
    /// Who has it.
    pub host: Host,
}

impl Claim {
    /// Byte offset of place 0 or 1 on each member; `None` if the pool has no room for claims: versions
    /// that knew none have made some without.
    pub fn offset(superblock: &Superblock, slot: usize) -> Option<u64> {
        assert!(slot < 2);
        let first = 2 * (SUPERBLOCK_BYTES as u64 + u64::from(superblock.root_bytes));
        let room = superblock.segments_offset.saturating_sub(first);
        (room >= 2 * BLOCK_BYTES).then_some(first + slot as u64 * BLOCK_BYTES)
    }

    /// The bytes of a place.
    ///
    /// # Panics
    /// If a field is out of its range.
    pub fn encode(&self) -> Vec<u8> {
        if let Err(error) = self.validate() {
            panic!("claim not encodable: {error}");
        }
        let mut out = vec![0; at::SIZE];
        begin(&mut out, MAGIC);
        out[at::RELEASED] = u8::from(self.released);
        out[at::NAME_BYTES] = self.host.name.len() as u8;
        put_bytes(&mut out, at::POOL, &self.pool.0);
        put_bytes(&mut out, at::CLAIM, &self.claim);
        put_u64(&mut out, at::NUMBER, self.number);
        put_u64(&mut out, at::BEAT, self.beat);
        put_u64(&mut out, at::BEAT_UNIX_S, self.beat_unix_s);
        put_u32(&mut out, at::LEASE_MS, self.lease_ms);
        put_bytes(&mut out, at::HOST, &self.host.id);
        put_bytes(&mut out, at::BOOT, &self.host.boot);
        put_bytes(&mut out, at::NAME, self.host.name.as_bytes());
        seal(&mut out);
        out
    }

    fn validate(&self) -> Result<(), FormatError> {
        check(name_valid(&self.host.name), "name")?;
        check(self.number <= COUNTER_MAX, "number")?;
        check((1..=(LEASE_MAX / MILLIS) as u32).contains(&self.lease_ms), "lease_ms")
    }

    /// Decodes a place.
    ///
    /// # Errors
    /// If the bytes are no intact claim that this code knows.
    pub fn decode(bytes: &[u8]) -> Result<Claim, FormatError> {
        let bytes = bytes.get(..CLAIM_BYTES).ok_or(FormatError::Truncated)?;
        open(bytes, at::SIZE, MAGIC)?;
        let name_bytes = usize::from(bytes[at::NAME_BYTES]);
        let name = get_text(bytes, at::NAME, name_bytes, NAME_BYTES_MAX, "name")?;
        let claim = Claim {
            pool: PoolId(get_bytes(bytes, at::POOL)),
            claim: get_bytes(bytes, at::CLAIM),
            number: get_u64(bytes, at::NUMBER),
            beat: get_u64(bytes, at::BEAT),
            beat_unix_s: get_u64(bytes, at::BEAT_UNIX_S),
            lease_ms: get_u32(bytes, at::LEASE_MS),
            released: get_bool(bytes, at::RELEASED, "released")?,
            host: Host { id: get_bytes(bytes, at::HOST), boot: get_bytes(bytes, at::BOOT), name },
        };
        claim.validate().map(|()| claim)
    }
}

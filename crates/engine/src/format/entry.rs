//! One entry of a record: what its append says about a run of blocks. 40 bytes, the same in
//! records and footers; their checksums cover it.

use super::codec::{
    FormatError, check, get_u16, get_u32, get_u64, put_u16, put_u32, put_u64, structure,
};
use super::extent::State;
use crate::ids::{BLOCK_BYTES, LOCATION_BITS, Location, SECTORS_ALL, VolumeId};
use crate::limits::{RECORD_BYTES_MAX, REGION_BYTES, SHARDS_MAX};

structure!(at, "Entry", 40, {
    KIND @ 0: 1,
    STATE @ 1: 1,
    SECTORS @ 2: 1,
    FLAGS @ 3: 1,
    VOLUME @ 4: 4,
    BLOCK @ 8: 8,
    COUNT @ 16: 4,
    DATA @ 20: 2,
    FROM @ 24: 8,
    EXTRA @ 32: 8,
});

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = at::SIZE;
/// [`Entry::data`] of an entry without data.
pub const NO_DATA: u16 = 0xFFFF;
/// Blocks of the largest volume: a region number has 32 bits, so 4 PiB.
pub const VOLUME_BLOCKS_MAX: u64 = (1 << 32) * (REGION_BYTES / BLOCK_BYTES);
/// Blocks of the longest record, header included.
pub const RECORD_BLOCKS_MAX: u32 = (RECORD_BYTES_MAX / BLOCK_BYTES) as u32;

const FLAG_DROP: u8 = 1;
const FLAG_FROM: u8 = 2;

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// A client's data, dirty. With data; may be partial.
    Write = 1,
    /// Data read from the origin, proven there. With data.
    Populate = 2,
    /// Data that is also written to, or read from, the origin, not proven there: a tombstone
    /// unless its clean fact follows. With data.
    Provisional = 3,
    /// What the index held at `from`, put here. With data if its state has data; may be partial.
    Move = 4,
    /// What the cache held of these blocks is void.
    Tombstone = 5,
    /// These blocks read as zeroes, and the origin is to be told.
    Zero = 6,
    /// The data at `from` is on the origin, durably; with `drop` the mapping ends.
    CleanFact = 7,
    /// The only copy of these blocks died.
    Lost = 8,
    /// Recovery of a start is complete.
    Recovery = 9,
    /// A piece of a shard's image. With data.
    Image = 10,
}

impl EntryKind {
    /// The kind with this number.
    pub fn from_number(number: u8) -> Option<EntryKind> {
        Some(match number {
            1 => EntryKind::Write,
            2 => EntryKind::Populate,
            3 => EntryKind::Provisional,
            4 => EntryKind::Move,
            5 => EntryKind::Tombstone,
            6 => EntryKind::Zero,
            7 => EntryKind::CleanFact,
            8 => EntryKind::Lost,
            9 => EntryKind::Recovery,
            10 => EntryKind::Image,
            _ => return None,
        })
    }

    /// Whether it gives blocks another content than they had.
    pub(crate) fn supersedes(self) -> bool {
        use EntryKind::{Lost, Provisional, Tombstone, Write, Zero};
        matches!(self, Write | Provisional | Tombstone | Zero | Lost)
    }

    /// Whether it speaks of blocks of a volume.
    pub fn names_blocks(self) -> bool {
        !matches!(self, EntryKind::Recovery | EntryKind::Image)
    }
}

/// See the module's and [`EntryKind`]'s words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it says.
    pub kind: EntryKind,
    /// With [`EntryKind::Move`] the state that moves along; with [`EntryKind::CleanFact`] what it
    /// was before (`Written`, `ZeroWritten`, `Provisional`): a zero extent has one location for all
    /// its blocks, data one for each, and neither may be taken for the other. Else `None`.
    pub state: Option<State>,
    /// Sectors of the block that are present; [`SECTORS_ALL`] unless a partial write or move.
    pub sectors: u8,
    /// With [`EntryKind::CleanFact`]: the mapping ends (a partial block or a zero extent that
    /// reached the origin).
    pub drop: bool,
    /// The volume; 0 where no blocks are named.
    pub volume: VolumeId,
    /// First block of the volume; with `Image` the shard.
    pub block: u64,
    /// Blocks named; with `Image` data blocks.
    pub count: u32,
    /// Index of the first data block within the record's data, or [`NO_DATA`].
    pub data: u16,
    /// With `Move` and `CleanFact` the location that the index must still hold (`None` only for
    /// what has no data); with `Image` the header of the chain's previous record.
    pub from: Option<Location>,
    /// With `Image` the watermark, with `Recovery` the start number, else 0.
    pub extra: u64,
}

impl Entry {
    /// Whether it carries data blocks.
    pub fn has_data(&self) -> bool {
        self.data != NO_DATA
    }

    /// Whether only some sectors of its one block are present.
    pub fn is_partial(&self) -> bool {
        self.sectors != SECTORS_ALL
    }

    /// Writes the entry into 40 bytes.
    ///
    /// # Panics
    /// If a field is out of its range.
    pub(super) fn encode(&self, out: &mut [u8]) {
        if let Err(error) = self.validate() {
            panic!("entry not encodable: {error}: {self:?}");
        }
        out[..ENTRY_BYTES].fill(0);
        out[at::KIND] = self.kind as u8;
        out[at::STATE] = self.state.map_or(0, |state| state as u8);
        out[at::SECTORS] = self.sectors;
        out[at::FLAGS] =
            if self.drop { FLAG_DROP } else { 0 } | if self.from.is_some() { FLAG_FROM } else { 0 };
        put_u32(out, at::VOLUME, self.volume.0);
        put_u64(out, at::BLOCK, self.block);
        put_u32(out, at::COUNT, self.count);
        put_u16(out, at::DATA, self.data);
        put_u64(out, at::FROM, self.from.map_or(0, |from| from.0));
        put_u64(out, at::EXTRA, self.extra);
    }

    /// Reads 40 bytes. That the data lie within the record is for the caller to check.
    pub(super) fn decode(bytes: &[u8]) -> Result<Entry, FormatError> {
        let kind = EntryKind::from_number(bytes[at::KIND])
            .ok_or(FormatError::Invalid { field: "entry kind" })?;
        let state = match bytes[at::STATE] {
            0 => None,
            number => Some(
                State::from_number(number).ok_or(FormatError::Invalid { field: "entry state" })?,
            ),
        };
        let flags = bytes[at::FLAGS];
        check(flags & !(FLAG_DROP | FLAG_FROM) == 0, "entry flags")?;
        let from = Location(get_u64(bytes, at::FROM));
        check(flags & FLAG_FROM != 0 || from.0 == 0, "entry from")?;
        let entry = Entry {
            kind,
            state,
            sectors: bytes[at::SECTORS],
            drop: flags & FLAG_DROP != 0,
            volume: VolumeId(get_u32(bytes, at::VOLUME)),
            block: get_u64(bytes, at::BLOCK),
            count: get_u32(bytes, at::COUNT),
            data: get_u16(bytes, at::DATA),
            from: (flags & FLAG_FROM != 0).then_some(from),
            extra: get_u64(bytes, at::EXTRA),
        };
        entry.validate()?;
        Ok(entry)
    }

    /// Whether its data lie within a record of `data_blocks`.
    pub(super) fn check_data(&self, data_blocks: u16) -> Result<(), FormatError> {
        let fits = !self.has_data()
            || u64::from(self.data) + u64::from(self.count) <= u64::from(data_blocks);
        check(fits, "entry data")
    }

    fn validate(&self) -> Result<(), FormatError> {
        use EntryKind::{CleanFact, Move, Write};
        check(self.from.is_none_or(|from| from.0 < 1 << LOCATION_BITS), "entry from")?;
        check(self.sectors != 0, "entry sectors")?;
        let may_be_partial = matches!(self.kind, Write | Move) && self.count == 1;
        check(!self.is_partial() || (may_be_partial && self.has_data()), "entry sectors")?;
        check(!self.drop || self.kind == CleanFact, "entry flags")?;
        check(self.state.is_some() == matches!(self.kind, Move | CleanFact), "entry state")?;
        check(self.has_data() == self.should_have_data(), "entry data")?;
        check(!self.has_data() || self.count < RECORD_BLOCKS_MAX, "entry count")?;
        self.validate_place()?;
        self.validate_from_and_extra()
    }

    fn should_have_data(&self) -> bool {
        match self.kind {
            EntryKind::Write | EntryKind::Populate | EntryKind::Provisional => true,
            EntryKind::Image => true,
            EntryKind::Move => self.state.is_some_and(State::has_data),
            EntryKind::Tombstone | EntryKind::Zero | EntryKind::CleanFact => false,
            EntryKind::Lost | EntryKind::Recovery => false,
        }
    }

    fn validate_place(&self) -> Result<(), FormatError> {
        check((self.volume.0 != 0) == self.kind.names_blocks(), "entry volume")?;
        check((self.count != 0) == (self.kind != EntryKind::Recovery), "entry count")?;
        let block_end = match self.kind {
            EntryKind::Recovery => 1,
            EntryKind::Image => u64::from(SHARDS_MAX),
            _ => VOLUME_BLOCKS_MAX.saturating_sub(u64::from(self.count)) + 1,
        };
        check(self.block < block_end, "entry block")
    }

    fn validate_from_and_extra(&self) -> Result<(), FormatError> {
        let from_fits = match self.kind {
            EntryKind::Move => self.from.is_some() || !self.has_data(),
            EntryKind::CleanFact => self.from.is_some() || self.drop,
            EntryKind::Image => true,
            _ => self.from.is_none(),
        };
        check(from_fits, "entry from")?;
        let extra_used = matches!(self.kind, EntryKind::Recovery | EntryKind::Image);
        check(extra_used || self.extra == 0, "entry extra")
    }
}

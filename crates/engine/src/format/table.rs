//! Pages of the segment table: what every segment of the pool is used for.

use super::codec::{
    BLOCK, FormatError, begin, check, get_bool, get_bytes, get_u32, get_u64, open, put_bytes,
    put_u32, put_u64, seal, structure,
};
use super::geometry::{SEGMENTS_MAX, TABLE_PAGES_MAX};
use super::segment::Stream;
use crate::ids::{Incarnation, PoolId, SegmentId, Sequence};
use crate::limits::COPIES_MAX;

pub(super) const MAGIC: &[u8; 8] = b"FBYTABLE";

structure!(at, "Table page", 64, {
    MAGIC @ 0: 8,
    VERSION @ 8: 4,
    FEATURES @ 12: 4,
    CHECKSUM @ 16: 4,
    PAGE @ 20: 4,
    POOL @ 24: 16,
    ENTRY_COUNT @ 40: 4,
});

structure!(item, "Table entry", 48, {
    STATE @ 0: 1,
    STREAM @ 1: 1,
    ALL_MEMBERS @ 2: 1,
    SET @ 4: 4,
    PARTNERS @ 8: 8,
    INCARNATION_START @ 16: 8,
    INCARNATION_COUNTER @ 24: 8,
    LAST_SEQUENCE @ 32: 8,
    EMPTIED_SEQUENCE @ 40: 8,
});

/// Bytes of a full page; a pool's last page ends at the block that holds its last entry.
pub const TABLE_PAGE_BYTES: usize = 64 << 10;
/// Entries of a full page: page `p` starts with segment `p` times this.
pub const TABLE_ENTRIES_PER_PAGE: usize = (TABLE_PAGE_BYTES - at::SIZE) / item::SIZE;
/// Place of a partner that does not exist.
const NO_SEGMENT: u32 = u32::MAX;

const _: () = assert!(at::SIZE + TABLE_ENTRIES_PER_PAGE * item::SIZE == TABLE_PAGE_BYTES);
const _: () = assert!(item::PARTNERS + 4 * (COPIES_MAX - 1) <= item::INCARNATION_START);

/// What a segment is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum SetState {
    /// Nothing live; may be opened once the durable root is past [`TableEntry::emptied_sequence`].
    Free = 0,
    /// First segment of a set that is appended to.
    Open = 1,
    /// First segment of a set that is full.
    Closed = 2,
    /// Another segment of a set: see the entry of [`TableEntry::set`].
    Member = 3,
    /// The device failed here; never used again.
    Bad = 4,
}

impl SetState {
    /// The state with this number.
    pub fn from_number(number: u8) -> Option<SetState> {
        Some(match number {
            0 => SetState::Free,
            1 => SetState::Open,
            2 => SetState::Closed,
            3 => SetState::Member,
            4 => SetState::Bad,
            _ => return None,
        })
    }
}

/// One segment of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// What it is used for.
    pub state: SetState,
    /// What its set collects; `None` when free or bad.
    pub stream: Option<Stream>,
    /// The set has a segment on every member of its epoch; the partners stand in its header only.
    pub all_members: bool,
    /// The set's first segment: itself if that; 0 when free or bad.
    pub set: SegmentId,
    /// The set's other segments, in its first segment's entry; `None` elsewhere.
    pub partners: [Option<SegmentId>; COPIES_MAX - 1],
    /// The set's life; of a free segment the last one.
    pub incarnation: Incarnation,
    /// Newest record of the set when the page was written; 0 if there is none.
    pub last_sequence: Sequence,
    /// Log sequence at the moment when the set became empty; 0 while it is not.
    pub emptied_sequence: Sequence,
}

impl TableEntry {
    /// A segment that was never used.
    pub const FREE: TableEntry = TableEntry {
        state: SetState::Free,
        stream: None,
        all_members: false,
        set: SegmentId(0),
        partners: [None; COPIES_MAX - 1],
        incarnation: Incarnation { start: 0, counter: 0 },
        last_sequence: Sequence(0),
        emptied_sequence: Sequence(0),
    };

    fn encode(&self, out: &mut [u8]) {
        out[item::STATE] = self.state as u8;
        out[item::STREAM] = self.stream.map_or(0, |stream| stream as u8);
        out[item::ALL_MEMBERS] = u8::from(self.all_members);
        put_u32(out, item::SET, self.set.0);
        for (index, partner) in self.partners.iter().enumerate() {
            let number = partner.map_or(NO_SEGMENT, |segment| segment.0);
            put_u32(out, item::PARTNERS + 4 * index, number);
        }
        put_u64(out, item::INCARNATION_START, self.incarnation.start);
        put_u64(out, item::INCARNATION_COUNTER, self.incarnation.counter);
        put_u64(out, item::LAST_SEQUENCE, self.last_sequence.0);
        put_u64(out, item::EMPTIED_SEQUENCE, self.emptied_sequence.0);
    }

    fn decode(bytes: &[u8], own: SegmentId) -> Result<TableEntry, FormatError> {
        let state = SetState::from_number(bytes[item::STATE])
            .ok_or(FormatError::Invalid { field: "entry state" })?;
        let stream = match bytes[item::STREAM] {
            0 => None,
            number => Some(Stream::decode(number)?),
        };
        let mut partners = [None; COPIES_MAX - 1];
        for (index, partner) in partners.iter_mut().enumerate() {
            let number = get_u32(bytes, item::PARTNERS + 4 * index);
            *partner = (number != NO_SEGMENT).then_some(SegmentId(number));
        }
        let entry = TableEntry {
            state,
            stream,
            all_members: get_bool(bytes, item::ALL_MEMBERS, "entry all_members")?,
            set: SegmentId(get_u32(bytes, item::SET)),
            partners,
            incarnation: Incarnation {
                start: get_u64(bytes, item::INCARNATION_START),
                counter: get_u64(bytes, item::INCARNATION_COUNTER),
            },
            last_sequence: Sequence(get_u64(bytes, item::LAST_SEQUENCE)),
            emptied_sequence: Sequence(get_u64(bytes, item::EMPTIED_SEQUENCE)),
        };
        entry.validate(own)?;
        Ok(entry)
    }

    fn validate(&self, own: SegmentId) -> Result<(), FormatError> {
        let used = matches!(self.state, SetState::Open | SetState::Closed | SetState::Member);
        let first = matches!(self.state, SetState::Open | SetState::Closed);
        check(self.stream.is_some() == used, "entry stream")?;
        check(used || !self.all_members, "entry all_members")?;
        check(self.set.0 < SEGMENTS_MAX, "entry set")?;
        let set_fits = if used { (self.set == own) == first } else { self.set.0 == 0 };
        check(set_fits, "entry set")?;
        let [one, two] = self.partners;
        check(first && !self.all_members || one.is_none(), "entry partners")?;
        check(two.is_none() || (one.is_some() && one != two), "entry partners")?;
        for partner in self.partners.iter().flatten() {
            check(partner.0 < SEGMENTS_MAX && *partner != own, "entry partners")?;
        }
        Ok(())
    }
}

/// A page of the segment table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablePage {
    /// The pool.
    pub pool: PoolId,
    /// Its number.
    pub page: u32,
    /// Entries of the segments from `page` times [`TABLE_ENTRIES_PER_PAGE`] on.
    pub entries: Vec<TableEntry>,
}

impl TablePage {
    fn own(page: u32, index: usize) -> SegmentId {
        SegmentId(page * TABLE_ENTRIES_PER_PAGE as u32 + index as u32)
    }

    fn validate(page: u32, entry_count: usize) -> Result<(), FormatError> {
        check((page as usize) < TABLE_PAGES_MAX, "page")?;
        let behind = page as usize * TABLE_ENTRIES_PER_PAGE + entry_count;
        let fits = (1..=TABLE_ENTRIES_PER_PAGE).contains(&entry_count);
        check(fits && behind <= SEGMENTS_MAX as usize, "entry_count")
    }

    /// The page's bytes, as many blocks as its entries fill.
    ///
    /// # Panics
    /// If a field is out of its range.
    pub fn encode(&self) -> Vec<u8> {
        let entries = self.entries.iter().enumerate();
        let checked = TablePage::validate(self.page, self.entries.len()).and_then(|()| {
            entries.clone().try_for_each(|(i, entry)| entry.validate(Self::own(self.page, i)))
        });
        if let Err(error) = checked {
            panic!("table page not encodable: {error}");
        }
        let used = at::SIZE + self.entries.len() * item::SIZE;
        let mut out = vec![0; used.next_multiple_of(BLOCK)];
        begin(&mut out, MAGIC);
        put_u32(&mut out, at::PAGE, self.page);
        put_bytes(&mut out, at::POOL, &self.pool.0);
        put_u32(&mut out, at::ENTRY_COUNT, self.entries.len() as u32);
        for (place, (_, entry)) in out[at::SIZE..].chunks_exact_mut(item::SIZE).zip(entries) {
            entry.encode(place);
        }
        seal(&mut out);
        out
    }

    /// Decodes a page; `bytes` are exactly its blocks.
    ///
    /// # Errors
    /// If the bytes are not an intact page that this code knows.
    pub fn decode(bytes: &[u8]) -> Result<TablePage, FormatError> {
        open(bytes, at::SIZE, MAGIC)?;
        let page = get_u32(bytes, at::PAGE);
        let entry_count = get_u32(bytes, at::ENTRY_COUNT) as usize;
        TablePage::validate(page, entry_count)?;
        let used = at::SIZE + entry_count * item::SIZE;
        check(bytes.len() == used.next_multiple_of(BLOCK), "entry_count")?;
        let entries = bytes[at::SIZE..used]
            .chunks_exact(item::SIZE)
            .enumerate()
            .map(|(index, bytes)| TableEntry::decode(bytes, TablePage::own(page, index)))
            .collect::<Result<_, _>>()?;
        Ok(TablePage { pool: PoolId(get_bytes(bytes, at::POOL)), page, entries })
    }
}

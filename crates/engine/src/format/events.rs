//! What was told of a pool, kept with it: pages of events in a ring behind the claims of each member.
//!
//! * Page `n` of a ring of `r` has two places; each time it is written again, with more in it, the other one
//!   is taken. So what tears is a version that nobody has seen.
//! * Every member has all of them. One intact version on one member is enough, and nothing else depends on it.
//! * What is read is shown to people: text without control characters only, so that a forged page cannot speak to a
//!   terminal.

use super::claim::{CLAIM_BYTES, Claim};
use super::codec::{
    BLOCK, FormatError, begin, check, get_bytes, get_text, get_u16, get_u64, open, put_bytes,
    put_u16, put_u64, seal, structure,
};
use super::superblock::Superblock;
use crate::ids::{BLOCK_BYTES, PoolId};
use crate::limits::COUNTER_MAX;

pub(super) const MAGIC: &[u8; 8] = b"FBYEVENT";

/// Pages of the largest ring: some thousand events, 256 KiB of a member.
const PAGES_MAX: u64 = 32;
/// Places of a page.
const VERSIONS: u64 = 2;
/// Bytes of a code, and of what an event is about; a path that is longer is cut.
const NAME_MAX: usize = 255;
/// Bytes of the sentence that tells of an event; a longer one is cut.
const WHAT_MAX: usize = 1024;

structure!(at, "Event page", 4096, {
    MAGIC @ 0: 8,
    VERSION @ 8: 4,
    FEATURES @ 12: 4,
    CHECKSUM @ 16: 4,
    COUNT @ 20: 2,
    POOL @ 24: 16,
    NUMBER @ 40: 8,
    WRITTEN @ 48: 8,
});

structure!(item, "Event", 16, {
    UNIX_S @ 0: 8,
    SEVERITY @ 8: 1,
    CODE_BYTES @ 9: 1,
    SUBJECT_BYTES @ 10: 1,
    WHAT_BYTES @ 12: 2,
});

/// Bytes of a page before its events.
const HEAD_BYTES: usize = 64;

const _: () = assert!(HEAD_BYTES >= 56 && at::SIZE == BLOCK && CLAIM_BYTES == BLOCK);
// Any event fits an empty page.
const _: () = assert!(HEAD_BYTES + item::SIZE + 2 * NAME_MAX + WHAT_MAX <= BLOCK);

/// Something that was told of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// When, in seconds since 1970 by the clock of the host that had it.
    pub unix_s: u64,
    /// 1 for what is as it should be, 2 for what somebody should look at, 3 for what needs somebody to act.
    pub severity: u8,
    /// Of which kind it is, 1..=255 bytes.
    pub code: String,
    /// What of the pool it is about, at most 255 bytes.
    pub subject: String,
    /// What happened, at most 1024 bytes.
    pub what: String,
}

/// A text as it can be kept: cut at so many bytes, and without control characters.
fn kept(text: &str, bytes_max: usize) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text[..text.floor_char_boundary(bytes_max)].to_owned()
}

impl EventRecord {
    /// The same as it can be written: texts that are too long are cut.
    pub fn cut(self) -> EventRecord {
        EventRecord {
            severity: self.severity.clamp(1, 3),
            code: kept(&self.code, NAME_MAX),
            subject: kept(&self.subject, NAME_MAX),
            what: kept(&self.what, WHAT_MAX),
            ..self
        }
    }

    fn bytes(&self) -> usize {
        item::SIZE + self.code.len() + self.subject.len() + self.what.len()
    }

    fn validate(&self) -> Result<(), FormatError> {
        let is_text =
            |text: &str, max: usize| text.len() <= max && !text.contains(char::is_control);
        check((1..=3).contains(&self.severity), "severity")?;
        check(!self.code.is_empty() && is_text(&self.code, NAME_MAX), "code")?;
        check(is_text(&self.subject, NAME_MAX), "subject")?;
        check(is_text(&self.what, WHAT_MAX), "what")
    }

    fn decode(bytes: &[u8]) -> Result<EventRecord, FormatError> {
        check(bytes.len() >= item::SIZE, "count")?;
        let lengths = [
            usize::from(bytes[item::CODE_BYTES]),
            usize::from(bytes[item::SUBJECT_BYTES]),
            usize::from(get_u16(bytes, item::WHAT_BYTES)),
        ];
        check(bytes.len() >= item::SIZE + lengths.iter().sum::<usize>(), "what_bytes")?;
        let (code, subject) = (item::SIZE, item::SIZE + lengths[0]);
        let record = EventRecord {
            unix_s: get_u64(bytes, item::UNIX_S),
            severity: bytes[item::SEVERITY],
            code: get_text(bytes, code, lengths[0], NAME_MAX, "code")?,
            subject: get_text(bytes, subject, lengths[1], NAME_MAX, "subject")?,
            what: get_text(bytes, subject + lengths[1], lengths[2], WHAT_MAX, "what")?,
        };
        record.validate().map(|()| record)
    }
}

/// One of the pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPage {
    /// The pool.
    pub pool: PoolId,
    /// Counts the pages from 0.
    pub number: u64,
    /// Counts how often it was written.
    pub written: u64,
    /// In the order in which they were told.
    pub events: Vec<EventRecord>,
}

impl EventPage {
    /// How many pages each member of a pool has room for; 0 if it has none. What was made by versions that knew
    /// neither pages nor claims may have less than others.
    pub fn ring(superblock: &Superblock) -> u64 {
        let end = Claim::offset(superblock, 1).map(|at| at + CLAIM_BYTES as u64);
        let room = end.map_or(0, |end| superblock.segments_offset.saturating_sub(end));
        (room / (VERSIONS * BLOCK_BYTES)).min(PAGES_MAX)
    }

    /// Byte offset of a place of a page on each member; `None` if the pool has no room.
    pub fn offset(superblock: &Superblock, number: u64, written: u64) -> Option<u64> {
        let first = Claim::offset(superblock, 1)? + CLAIM_BYTES as u64;
        let page = number.checked_rem(EventPage::ring(superblock))?;
        Some(first + (page * VERSIONS + written % VERSIONS) * BLOCK_BYTES)
    }

    /// Byte offsets of all places on each member.
    pub fn places(superblock: &Superblock) -> impl Iterator<Item = u64> {
        let places = EventPage::ring(superblock) * VERSIONS;
        (0..places)
            .filter_map(|place| EventPage::offset(superblock, place / VERSIONS, place % VERSIONS))
    }

    /// Whether one more fits.
    pub fn has_room(&self, event: &EventRecord) -> bool {
        let used: usize = self.events.iter().map(EventRecord::bytes).sum();
        HEAD_BYTES + used + event.bytes() <= at::SIZE
    }

    /// The bytes of a place.
    ///
    /// # Panics
    /// If the events do not fit, or a field is out of its range.
    pub fn encode(&self) -> Vec<u8> {
        if let Err(error) = self.validate() {
            panic!("event page not encodable: {error}");
        }
        let mut out = vec![0; at::SIZE];
        begin(&mut out, MAGIC);
        put_u16(&mut out, at::COUNT, self.events.len() as u16);
        put_bytes(&mut out, at::POOL, &self.pool.0);
        put_u64(&mut out, at::NUMBER, self.number);
        put_u64(&mut out, at::WRITTEN, self.written);
        let mut from = HEAD_BYTES;
        for event in &self.events {
            let head = &mut out[from..from + item::SIZE];
            put_u64(head, item::UNIX_S, event.unix_s);
            head[item::SEVERITY] = event.severity;
            head[item::CODE_BYTES] = event.code.len() as u8;
            head[item::SUBJECT_BYTES] = event.subject.len() as u8;
            put_u16(head, item::WHAT_BYTES, event.what.len() as u16);
            from += item::SIZE;
            for text in [&event.code, &event.subject, &event.what] {
                put_bytes(&mut out, from, text.as_bytes());
                from += text.len();
            }
        }
        seal(&mut out);
        out
    }

    fn validate(&self) -> Result<(), FormatError> {
        check(self.number <= COUNTER_MAX, "number")?;
        check(self.written <= COUNTER_MAX, "written")?;
        self.events.iter().try_for_each(EventRecord::validate)
    }

    /// Decodes a place.
    ///
    /// # Errors
    /// If the bytes are no intact page that this code knows.
    pub fn decode(bytes: &[u8]) -> Result<EventPage, FormatError> {
        let bytes = bytes.get(..at::SIZE).ok_or(FormatError::Truncated)?;
        open(bytes, at::SIZE, MAGIC)?;
        let (mut events, mut from) = (Vec::new(), HEAD_BYTES);
        for _ in 0..get_u16(bytes, at::COUNT) {
            let event = EventRecord::decode(&bytes[from..])?;
            from += event.bytes();
            events.push(event);
        }
        let page = EventPage {
            pool: PoolId(get_bytes(bytes, at::POOL)),
            number: get_u64(bytes, at::NUMBER),
            written: get_u64(bytes, at::WRITTEN),
            events,
        };
        page.validate().map(|()| page)
    }
}

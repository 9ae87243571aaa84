//! Segments: a line each, or one with all its records.

use std::io::{self, Write};

use forebay_engine::format::{
    Entry, FooterTrailer, FormatError, NumberRange, RecordHeader, SegmentHeader, Superblock,
    checksum, decode_footer_body, decode_footer_trailer, decode_record,
};
use forebay_engine::ids::{BLOCK_BYTES, Incarnation, PoolId, SegmentId};

use super::member::{Damage, Member};

const BLOCK: usize = BLOCK_BYTES as usize;

/// What header and footer of a segment tell.
pub(super) struct Ends {
    pub(super) header: Result<SegmentHeader, Damage>,
    pub(super) trailer: Result<FooterTrailer, Damage>,
    blank: bool,
}

impl Ends {
    pub(super) fn read(member: &Member, offset: u64, segment_bytes: u64) -> Ends {
        let first = member.read(offset, BLOCK);
        let last = member.read(offset + segment_bytes - BLOCK_BYTES, BLOCK);
        let is_blank = |block: &Result<Vec<u8>, Damage>| {
            block.as_ref().is_ok_and(|bytes| bytes.iter().all(|&byte| byte == 0))
        };
        Ends {
            blank: is_blank(&first) && is_blank(&last),
            header: first.and_then(|bytes| Ok(SegmentHeader::decode(&bytes)?)),
            trailer: last.and_then(|bytes| Ok(decode_footer_trailer(&bytes)?)),
        }
    }

    /// Whether the footer is of the header's life of the segment.
    pub(super) fn closed(&self) -> Option<&FooterTrailer> {
        let (header, trailer) = (self.header.as_ref().ok()?, self.trailer.as_ref().ok()?);
        let same = header.pool == trailer.pool
            && header.set == trailer.set
            && header.incarnation == trailer.incarnation;
        same.then_some(trailer)
    }

    /// The block behind the last one that may have a record, of a segment of so many bytes.
    pub(super) fn end(&self, segment_bytes: u64) -> u32 {
        let all = (segment_bytes / BLOCK_BYTES) as u32;
        self.closed().map_or(all, |trailer| all.min(trailer.end_offset_blocks))
    }
}

pub(super) fn life(incarnation: Incarnation) -> String {
    format!("{}.{}", incarnation.start, incarnation.counter)
}

fn footer_line(trailer: &FooterTrailer) -> String {
    format!(
        "{} records, {} entries, sequences {}..={}, end_offset_blocks {}",
        trailer.record_count,
        trailer.entry_count,
        trailer.first_sequence.0,
        trailer.last_sequence.0,
        trailer.end_offset_blocks
    )
}

fn describe(ends: &Ends, segment: SegmentId, pool: PoolId) -> String {
    let header = match &ends.header {
        Ok(header) => header,
        Err(damage) => {
            let footer = match &ends.trailer {
                Ok(trailer) => format!(
                    "footer of set {}, incarnation {}: {}",
                    trailer.set.0,
                    life(trailer.incarnation),
                    footer_line(trailer)
                ),
                Err(damage) => format!("footer: {damage}"),
            };
            return format!("header damaged: {damage}; {footer}");
        }
    };
    let partners: Vec<_> = header.partners.iter().map(|p| p.0.to_string()).collect();
    let mut line = format!(
        "{:?}, set {}, incarnation {}, epoch {}, partners {}",
        header.stream,
        header.set.0,
        life(header.incarnation),
        header.epoch,
        partners.join(" ")
    );
    if header.pool != pool {
        line.push_str(", of another pool");
    }
    if header.segment != segment {
        line.push_str(&format!(", header is of segment {}", header.segment.0));
    }
    match (ends.closed(), &ends.trailer) {
        (Some(trailer), _) => format!("closed: {line}, {}", footer_line(trailer)),
        (None, Ok(trailer)) => {
            format!("open: {line}, footer of incarnation {}", life(trailer.incarnation))
        }
        (None, Err(Damage::Format(FormatError::BadMagic))) => format!("open: {line}, no footer"),
        (None, Err(damage)) => format!("open: {line}, footer damaged: {damage}"),
    }
}

/// What is said of a member's segments, one after the other.
pub(super) enum Found {
    /// Those before the second number were never used, or were discarded.
    Blank(u32, u32),
    /// Those before the second number cannot be read.
    Unreadable(u32, u32, String),
    /// One that was used.
    Used(SegmentId, Ends),
}

/// Calls `tell` for the segments of a member, in order.
pub(super) fn each(
    member: &Member,
    tell: &mut dyn FnMut(Found) -> io::Result<()>,
) -> io::Result<()> {
    let (Some(superblock), Some(record)) = (member.superblock(), member.record()) else {
        return Ok(());
    };
    record.segments.ranges().try_for_each(|range| each_in(member, range, superblock, tell))
}

/// The same for those of one range of numbers.
fn each_in(
    member: &Member,
    NumberRange { base, count }: NumberRange,
    superblock: &Superblock,
    tell: &mut dyn FnMut(Found) -> io::Result<()>,
) -> io::Result<()> {
    let end = base + count;
    // Where those began of which there is one thing to say, and why they cannot be read, or that they are blank.
    let mut run: Option<(u32, Option<String>)> = None;
    let found = |(from, reason): (u32, Option<String>), to| match reason {
        Some(reason) => Found::Unreadable(from, to, reason),
        None => Found::Blank(from, to),
    };
    for number in base..end {
        let segment = SegmentId(number);
        let Some(offset) = member.segment_offset(segment) else { break };
        let ends = Ends::read(member, offset, superblock.segment_bytes.into());
        let is_end = matches!(&ends.header, Err(Damage::Short(_)));
        let kind = match &ends.header {
            Err(damage @ (Damage::Unreadable(_) | Damage::Short(_))) => {
                Some(Some(damage.to_string()))
            }
            _ => ends.blank.then_some(None),
        };
        let is_same = |(_, before): &(u32, Option<String>)| {
            kind.as_ref().is_some_and(|kind| kind.is_some() == before.is_some())
        };
        if let Some(over) = run.take_if(|run| !is_same(run)) {
            tell(found(over, number))?;
        }
        match kind {
            Some(reason) => {
                run.get_or_insert((number, reason));
            }
            None => tell(Found::Used(segment, ends))?,
        }
        if is_end {
            break;
        }
    }
    run.map_or(Ok(()), |run| tell(found(run, end)))
}

/// Prints a line for every segment of a member that was ever used.
pub(super) fn print_all(member: &Member, out: &mut dyn Write) -> io::Result<()> {
    let Some(superblock) = member.superblock() else { return Ok(()) };
    each(member, &mut |found| match found {
        Found::Blank(from, end) => {
            writeln!(out, "segments {from}..{end}: never used or discarded")
        }
        Found::Unreadable(from, end, reason) => {
            writeln!(out, "segments {from}..{end}: {reason}")
        }
        Found::Used(segment, ends) => {
            let line = describe(&ends, segment, superblock.pool);
            writeln!(out, "segment {}: {line}", segment.0)
        }
    })
}

/// The member that has a segment, its superblock, and where on it the segment starts.
pub(super) fn find(members: &[Member], number: u32) -> Option<(&Member, &Superblock, u64)> {
    members.iter().find_map(|member| {
        Some((member, member.superblock()?, member.segment_offset(SegmentId(number))?))
    })
}

/// Prints the records of one segment.
pub(super) fn print_records(
    members: &[Member],
    number: u32,
    out: &mut dyn Write,
) -> io::Result<()> {
    let segment = SegmentId(number);
    // That it is nowhere is an error, told by the caller.
    let Some((member, superblock, offset)) = find(members, number) else { return Ok(()) };
    let bytes = u64::from(superblock.segment_bytes);
    let ends = Ends::read(member, offset, bytes);
    writeln!(out, "{}", member.path())?;
    writeln!(
        out,
        "segment {number} at byte {offset}: {}",
        describe(&ends, segment, superblock.pool)
    )?;
    if let Some(trailer) = ends.closed() {
        match footer_records(member, offset + bytes - BLOCK_BYTES, trailer) {
            Ok(count) => writeln!(out, "footer body: intact, {count} records")?,
            Err(damage) => writeln!(out, "footer body: damaged: {damage}")?,
        }
    }
    let life = ends.header.as_ref().ok().map(|header| header.incarnation);
    walk(member, offset, ends.end(bytes), &mut |piece| match piece {
        Piece::Hole(from, end) => writeln!(out, "blocks {from}..{end}: no record begins here"),
        Piece::Damaged(block, damage) => writeln!(out, "block {block}: record damaged: {damage}"),
        Piece::Record(record) => print_record(member, &record, life, out),
    })
}

/// How many records a footer's body names.
pub(super) fn footer_records(
    member: &Member,
    trailer_at: u64,
    trailer: &FooterTrailer,
) -> Result<usize, Damage> {
    let body_bytes = u64::from(trailer.body_blocks()) * BLOCK_BYTES;
    let body_at =
        trailer_at.checked_sub(body_bytes).ok_or(Damage::Format(FormatError::Truncated))?;
    let bytes = member.read(body_at, body_bytes as usize)?;
    Ok(decode_footer_body(trailer, &bytes)?.len())
}

/// Reads the record at a block of a segment.
pub(super) fn read_record(
    member: &Member,
    at: u64,
) -> Result<(RecordHeader, Vec<Entry>, Vec<u32>), Damage> {
    let head = RecordHeader::peek(&member.read(at, BLOCK)?)?;
    Ok(decode_record(&member.read(at, head.header_bytes())?)?)
}

/// What is at a block of a segment.
pub(super) enum Piece {
    /// No record begins from the first block up to the second one.
    Hole(u32, u32),
    Damaged(u32, Damage),
    Record(Box<Record>),
}

/// A record that is intact but for its data, which has not been looked at.
pub(super) struct Record {
    pub(super) block: u32,
    at: u64,
    pub(super) header: RecordHeader,
    pub(super) entries: Vec<Entry>,
    sums: Vec<u32>,
}

impl Record {
    /// Its data blocks that are not what they were when it was written.
    pub(super) fn damaged(&self, member: &Member) -> Vec<usize> {
        let is_damaged = |(index, sum): &(usize, &u32)| {
            let data_at = self.at + (self.header.header_bytes() + index * BLOCK) as u64;
            !member.read(data_at, BLOCK).is_ok_and(|bytes| checksum(&bytes) == **sum)
        };
        self.sums.iter().enumerate().filter(is_damaged).map(|(index, _)| index).collect()
    }
}

/// Calls `tell` for what is in the blocks of a segment before `end`, in order.
pub(super) fn walk(
    member: &Member,
    offset: u64,
    end: u32,
    tell: &mut dyn FnMut(Piece) -> io::Result<()>,
) -> io::Result<()> {
    let (mut block, mut hole) = (1, None);
    while block < end {
        let at = offset + u64::from(block) * BLOCK_BYTES;
        let (piece, blocks) = match read_record(member, at) {
            Ok((header, entries, sums)) => {
                let record = Record { block, at, header, entries, sums };
                (Piece::Record(Box::new(record)), header.blocks())
            }
            Err(Damage::Format(FormatError::BadMagic)) => {
                hole.get_or_insert(block);
                block += 1;
                continue;
            }
            Err(damage) => (Piece::Damaged(block, damage), 1),
        };
        if let Some(from) = hole.take() {
            tell(Piece::Hole(from, block))?;
        }
        tell(piece)?;
        block = block.saturating_add(blocks);
    }
    hole.map_or(Ok(()), |from| tell(Piece::Hole(from, end)))
}

fn print_record(
    member: &Member,
    record: &Record,
    life_now: Option<Incarnation>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let Record { block, header, entries, .. } = record;
    let mut remarks = String::new();
    if header.offset_blocks != *block {
        remarks.push_str(&format!(", written for block {}", header.offset_blocks));
    }
    if life_now.is_some_and(|life| life != header.incarnation) {
        remarks.push_str(&format!(", of incarnation {}", life(header.incarnation)));
    }
    let damaged: Vec<_> = record.damaged(member).iter().map(usize::to_string).collect();
    if !damaged.is_empty() {
        remarks.push_str(&format!(", data blocks damaged: {}", damaged.join(" ")));
    }
    writeln!(
        out,
        "block {block}: record, sequence {}, {} header and {} data blocks, {} entries{remarks}",
        header.sequence.0, header.header_blocks, header.data_blocks, header.entry_count
    )?;
    entries.iter().try_for_each(|entry| writeln!(out, "  {}", entry_line(entry)))
}

fn entry_line(entry: &Entry) -> String {
    let mut line = format!("{:?}", entry.kind);
    if let Some(state) = entry.state {
        line.push_str(&format!(" ({state:?})"));
    }
    if entry.kind.names_blocks() {
        line.push_str(&format!(" volume {}", entry.volume.0));
    }
    line.push_str(&format!(" block {} count {}", entry.block, entry.count));
    if entry.is_partial() {
        line.push_str(&format!(" sectors {:08b}", entry.sectors));
    }
    if entry.has_data() {
        line.push_str(&format!(" data {}", entry.data));
    }
    if let Some(from) = entry.from {
        line.push_str(&format!(" from {}", from.0));
    }
    if entry.drop {
        line.push_str(" drop");
    }
    if entry.extra != 0 {
        line.push_str(&format!(" extra {}", entry.extra));
    }
    line
}

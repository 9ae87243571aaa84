//! Segments: a line each, or one with all its records.

use std::io::{self, Write};

use forebay_engine::format::{
    Entry, FooterTrailer, FormatError, RecordHeader, SegmentHeader, Superblock, checksum,
    decode_footer_body, decode_footer_trailer, decode_record,
};
use forebay_engine::ids::{BLOCK_BYTES, Incarnation, PoolId, SegmentId};

use super::member::{Damage, Member};

const BLOCK: usize = BLOCK_BYTES as usize;

/// What header and footer of a segment tell.
struct Ends {
    header: Result<SegmentHeader, Damage>,
    trailer: Result<FooterTrailer, Damage>,
    blank: bool,
}

impl Ends {
    fn read(member: &Member, offset: u64, segment_bytes: u64) -> Ends {
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
    fn closed(&self) -> Option<&FooterTrailer> {
        let (header, trailer) = (self.header.as_ref().ok()?, self.trailer.as_ref().ok()?);
        let same = header.pool == trailer.pool
            && header.set == trailer.set
            && header.incarnation == trailer.incarnation;
        same.then_some(trailer)
    }
}

fn life(incarnation: Incarnation) -> String {
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

/// Prints a line for every segment of a member that was ever used.
pub(super) fn print_all(member: &Member, out: &mut dyn Write) -> io::Result<()> {
    let (Some(superblock), Some(record)) = (member.superblock(), member.record()) else {
        return Ok(());
    };
    let mut blank_from = None;
    let end = record.segment_base + record.segment_count;
    for number in record.segment_base..end {
        let segment = SegmentId(number);
        let Some(offset) = member.segment_offset(segment) else { break };
        let ends = Ends::read(member, offset, superblock.segment_bytes.into());
        if ends.blank {
            blank_from.get_or_insert(number);
            continue;
        }
        print_blank(blank_from.take(), number, out)?;
        if let Err(Damage::Unreadable(reason)) = &ends.header {
            writeln!(out, "segments {number}..{end}: {}", Damage::Unreadable(reason.clone()))?;
            return Ok(());
        }
        writeln!(out, "segment {number}: {}", describe(&ends, segment, superblock.pool))?;
    }
    print_blank(blank_from, end, out)
}

fn print_blank(from: Option<u32>, end: u32, out: &mut dyn Write) -> io::Result<()> {
    match from {
        Some(from) => writeln!(out, "segments {from}..{end}: never used or discarded"),
        None => Ok(()),
    }
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
    let mut end = (bytes / BLOCK_BYTES) as u32;
    if let Some(trailer) = ends.closed() {
        print_footer(member, offset + bytes - BLOCK_BYTES, trailer, out)?;
        end = end.min(trailer.end_offset_blocks);
    }
    let life = ends.header.as_ref().ok().map(|header| header.incarnation);
    walk(member, offset, end, life, out)
}

/// Says whether a footer's body is intact.
fn print_footer(
    member: &Member,
    trailer_at: u64,
    trailer: &FooterTrailer,
    out: &mut dyn Write,
) -> io::Result<()> {
    let body_bytes = u64::from(trailer.body_blocks()) * BLOCK_BYTES;
    let body = trailer_at
        .checked_sub(body_bytes)
        .ok_or(Damage::Format(FormatError::Truncated))
        .and_then(|at| member.read(at, body_bytes as usize))
        .and_then(|bytes| Ok(decode_footer_body(trailer, &bytes)?));
    match body {
        Ok(records) => writeln!(out, "footer body: intact, {} records", records.len()),
        Err(damage) => writeln!(out, "footer body: damaged: {damage}"),
    }
}

/// Reads the record at a block of a segment.
pub(super) fn read_record(
    member: &Member,
    at: u64,
) -> Result<(RecordHeader, Vec<Entry>, Vec<u32>), Damage> {
    let head = RecordHeader::peek(&member.read(at, BLOCK)?)?;
    Ok(decode_record(&member.read(at, head.header_bytes())?)?)
}

fn walk(
    member: &Member,
    offset: u64,
    end: u32,
    life_now: Option<Incarnation>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (mut block, mut hole) = (1, None);
    while block < end {
        let at = offset + u64::from(block) * BLOCK_BYTES;
        match read_record(member, at) {
            Ok((header, entries, sums)) => {
                print_hole(hole.take(), block, out)?;
                print_record(member, at, block, &header, &entries, &sums, life_now, out)?;
                block = block.saturating_add(header.blocks());
            }
            Err(Damage::Format(FormatError::BadMagic)) => {
                hole.get_or_insert(block);
                block += 1;
            }
            Err(damage) => {
                print_hole(hole.take(), block, out)?;
                writeln!(out, "block {block}: record damaged: {damage}")?;
                block += 1;
            }
        }
    }
    print_hole(hole, end, out)
}

fn print_hole(from: Option<u32>, end: u32, out: &mut dyn Write) -> io::Result<()> {
    match from {
        Some(from) => writeln!(out, "blocks {from}..{end}: no record begins here"),
        None => Ok(()),
    }
}

#[expect(clippy::too_many_arguments, reason = "the parts of one record, printed in one place")]
fn print_record(
    member: &Member,
    at: u64,
    block: u32,
    header: &RecordHeader,
    entries: &[Entry],
    sums: &[u32],
    life_now: Option<Incarnation>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut remarks = String::new();
    if header.offset_blocks != block {
        remarks.push_str(&format!(", written for block {}", header.offset_blocks));
    }
    if life_now.is_some_and(|life| life != header.incarnation) {
        remarks.push_str(&format!(", of incarnation {}", life(header.incarnation)));
    }
    let mut damaged = Vec::new();
    for (index, sum) in sums.iter().enumerate() {
        let data_at = at + (header.header_bytes() + index * BLOCK) as u64;
        if member.read(data_at, BLOCK).is_ok_and(|bytes| checksum(&bytes) == *sum) {
            continue;
        }
        damaged.push(index.to_string());
    }
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

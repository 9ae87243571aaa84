//! Formats of records: VSCSI and blktrace.

use std::io::{BufRead, ErrorKind, Read, Result};

use super::events::Event;
use super::{Bad, Format, Parsed, Run, request, source};

/// blktrace: the upper 24 bits of the magic number; the lowest byte is the version.
const BLKTRACE_MAGIC: u32 = 0x6561_7400;
/// The version of blktrace since 2007.
const BLKTRACE_VERSION: u32 = 7;
/// Bytes of a blktrace record before what is appended to it.
const BLKTRACE_BYTES: usize = 48;
/// What a kernel with blk-cgroup adds to the lower half of `action`: the control group is appended.
const ACTION_CGROUP: u32 = 1 << 8;
/// Categories, in the upper half of `action`.
const CATEGORY_READ: u32 = 1 << 0;
const CATEGORY_WRITE: u32 = 1 << 1;
/// A SCSI command that was passed through: it has no sector.
const CATEGORY_PASSED_THROUGH: u32 = 1 << 9;
const CATEGORY_NOTIFY: u32 = 1 << 10;
const CATEGORY_DISCARD: u32 = 1 << 13;

/// Where the fields of a VSCSI record stand.
#[derive(Clone, Copy)]
struct Layout {
    version: u8,
    record_bytes: usize,
    /// The command has two bytes, and so has the version after it, which is their upper one.
    command_at: usize,
    length_at: usize,
}

/// Version 1: serial, length, segments, command, version, sector, time. Version 2: command and
/// version come first, and the time of the answer last.
const LAYOUTS: [Layout; 2] = [
    Layout { version: 1, record_bytes: 32, command_at: 12, length_at: 4 },
    Layout { version: 2, record_bytes: VSCSI_BYTES_MAX, command_at: 0, length_at: 8 },
];
const VSCSI_BYTES_MAX: usize = 40;
const VSCSI_SECTOR_AT: usize = 16;
const VSCSI_TIME_AT: usize = 24;

/// What comes next in a file.
pub(super) enum Next {
    /// A record.
    Record(Parsed),
    /// Something after which nothing can be understood.
    Lost(Bad),
    /// The beginning of a record, and the end of the file.
    CutOff,
    /// The end of the file.
    End,
}

/// Reads the records of one file.
pub(super) struct Parser {
    format: Format,
    /// The disk of a format that names none.
    file: String,
    /// The layout of a VSCSI file; most records of its beginning have it.
    layout: Option<Layout>,
}

/// The format, if the beginning of a file tells that it is one of these.
pub(super) fn format_of(head: &[u8]) -> Option<Format> {
    if head.len() >= 4 {
        let magic = [u32_at(head, 0, false), u32_at(head, 0, true)];
        if magic.iter().any(|magic| magic & !0xFF == BLKTRACE_MAGIC) {
            return Some(Format::Blktrace);
        }
    }
    let layout = layout_of(head)?;
    head.chunks_exact(layout.record_bytes)
        .any(|record| layout.fits(record) && layout.is_write(record).is_some())
        .then_some(Format::Vscsi)
}

/// The layout that more than half of the records in the beginning of a VSCSI file have.
fn layout_of(head: &[u8]) -> Option<Layout> {
    LAYOUTS.into_iter().find(|layout| {
        let records = head.chunks_exact(layout.record_bytes);
        let count = records.len();
        records.filter(|record| layout.fits(record)).count() * 2 > count
    })
}

impl Layout {
    fn version_of(self, record: &[u8]) -> u8 {
        record[self.command_at + 3]
    }

    /// Whether a record looks like one of this layout.
    fn fits(self, record: &[u8]) -> bool {
        self.version_of(record) == self.version && record[self.command_at + 1] == 0
    }

    fn is_write(self, record: &[u8]) -> Option<bool> {
        is_write(record[self.command_at])
    }
}

/// The event nearest to the client in the beginning of a file of blktrace.
pub(super) fn nearest_event(mut beginning: &[u8]) -> Option<Event> {
    let mut nearest = None;
    while let Some((record, rest)) = beginning.split_first_chunk::<BLKTRACE_BYTES>() {
        let Ok(record) = Blktrace::new(record) else { break };
        let event = record.event().map(|(event, _)| event);
        nearest = [nearest, event].into_iter().flatten().min();
        beginning = rest.get(record.appended().into()..).unwrap_or_default();
    }
    nearest
}

/// Whether a SCSI command writes; `None` if it neither reads nor writes.
fn is_write(opcode: u8) -> Option<bool> {
    match opcode {
        0x08 | 0x28 | 0x88 | 0xA8 => Some(false),
        0x0A | 0x2A | 0x8A | 0xAA => Some(true),
        _ => None,
    }
}

fn bytes_at<const N: usize>(record: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&record[at..at + N]);
    bytes
}

fn u32_at(record: &[u8], at: usize, big: bool) -> u32 {
    let bytes = bytes_at(record, at);
    if big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
}

fn u64_at(record: &[u8], at: usize, big: bool) -> u64 {
    let bytes = bytes_at(record, at);
    if big { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) }
}

/// Reads a whole record; how many bytes of it there were.
fn fill(input: &mut dyn BufRead, record: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < record.len() {
        match input.read(&mut record[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A record of blktrace, without what is appended to it.
struct Blktrace<'a> {
    bytes: &'a [u8; BLKTRACE_BYTES],
    /// Whether it was written on a machine of the other order of bytes.
    big: bool,
}

impl<'a> Blktrace<'a> {
    fn new(bytes: &'a [u8; BLKTRACE_BYTES]) -> std::result::Result<Self, Bad> {
        let big = u32_at(bytes, 0, false) & !0xFF != BLKTRACE_MAGIC;
        let magic = u32_at(bytes, 0, big);
        if magic & !0xFF != BLKTRACE_MAGIC {
            return Err(Bad::new("magic", format!("{magic:#x} begins no record")));
        }
        if magic & 0xFF != BLKTRACE_VERSION {
            let why = format!("version {} is not {BLKTRACE_VERSION}", magic & 0xFF);
            return Err(Bad::new("magic", why));
        }
        Ok(Self { bytes, big })
    }

    /// Bytes that follow it and belong to it.
    fn appended(&self) -> u16 {
        let bytes = bytes_at(self.bytes, 46);
        if self.big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
    }

    /// The event of a request, and whether that writes.
    fn event(&self) -> Option<(Event, bool)> {
        let action = u32_at(self.bytes, 28, self.big);
        let event = match action & 0xFFFF & !ACTION_CGROUP {
            1 => Event::Queued,
            7 => Event::Issued,
            8 => Event::Completed,
            _ => return None,
        };
        let category = action >> 16;
        let write = category & CATEGORY_WRITE != 0;
        let moves_data = (write || category & CATEGORY_READ != 0)
            && category & (CATEGORY_PASSED_THROUGH | CATEGORY_NOTIFY | CATEGORY_DISCARD) == 0;
        moves_data.then_some((event, write))
    }

    fn request(&self, write: bool, run: &mut Run) -> Parsed {
        let (time_ns, sector) = (u64_at(self.bytes, 8, self.big), u64_at(self.bytes, 16, self.big));
        let bytes = u32_at(self.bytes, 24, self.big);
        let device = u32_at(self.bytes, 36, self.big);
        request(time_ns / 1000, write, sectors("sector", sector)?, bytes.into(), || {
            run.volumes.number(Format::Blktrace, &device.to_string())
        })
    }
}

impl Parser {
    pub(super) fn new(format: Format, file: &str, head: &[u8]) -> Self {
        Self { format, file: file.to_owned(), layout: layout_of(head) }
    }

    pub(super) fn next(&mut self, input: &mut dyn BufRead, run: &mut Run) -> Result<Next> {
        match self.format {
            Format::Blktrace => blktrace(input, run),
            _ => self.vscsi(input, run),
        }
    }

    /// As all records of a file are of one size, a bad one costs no other one.
    fn vscsi(&mut self, input: &mut dyn BufRead, run: &mut Run) -> Result<Next> {
        let Some(layout) = self.layout else {
            if source::is_at_end(input)? {
                return Ok(Next::End);
            }
            return Ok(Next::Lost(Bad::new("version", "neither 1 nor 2")));
        };
        let mut record = [0; VSCSI_BYTES_MAX];
        let record = &mut record[..layout.record_bytes];
        match fill(input, record)? {
            0 => return Ok(Next::End),
            count if count < record.len() => return Ok(Next::CutOff),
            _ => {}
        }
        Ok(Next::Record(self.vscsi_request(layout, record, run)))
    }

    fn vscsi_request(&self, layout: Layout, record: &[u8], run: &mut Run) -> Parsed {
        let version = layout.version_of(record);
        if version != layout.version {
            let why = format!("{version} in a file of version {}", layout.version);
            return Err(Bad::new("version", why));
        }
        let Some(write) = layout.is_write(record) else { return Ok(None) };
        let offset = sectors("lbn", u64_at(record, VSCSI_SECTOR_AT, false))?;
        let bytes = u32_at(record, layout.length_at, false);
        let time_us = u64_at(record, VSCSI_TIME_AT, false);
        request(time_us, write, offset, bytes.into(), || {
            run.volumes.number(Format::Vscsi, &self.file)
        })
    }
}

fn blktrace(input: &mut dyn BufRead, run: &mut Run) -> Result<Next> {
    let mut record = [0; BLKTRACE_BYTES];
    match fill(input, &mut record)? {
        0 => return Ok(Next::End),
        BLKTRACE_BYTES => {}
        _ => return Ok(Next::CutOff),
    }
    let record = match Blktrace::new(&record) {
        Ok(record) => record,
        Err(bad) => return Ok(Next::Lost(bad)),
    };
    let appended = u64::from(record.appended());
    let skipped = std::io::copy(&mut Read::take(&mut *input, appended), &mut std::io::sink())?;
    if skipped < appended {
        return Ok(Next::CutOff);
    }
    Ok(Next::Record(match record.event() {
        Some((event, write)) if run.counted.has(Format::Blktrace, event) => {
            record.request(write, run)
        }
        _ => Ok(None),
    }))
}

/// Sectors of 512 bytes, in bytes.
fn sectors(field: &'static str, count: u64) -> std::result::Result<u64, Bad> {
    count.checked_mul(512).ok_or_else(|| Bad::new(field, format!("{count} is beyond any disk")))
}

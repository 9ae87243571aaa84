//! Formats of records: VSCSI and blktrace.

use std::io::{BufRead, ErrorKind, Read, Result};

use super::{Bad, Format, Parsed, Volumes, request};

/// blktrace: the upper 24 bits of the magic number; the lowest byte is the version.
const BLKTRACE_MAGIC: u32 = 0x6561_7400;
/// The version of blktrace since 2007.
const BLKTRACE_VERSION: u32 = 7;
/// Bytes of a blktrace record before what is appended to it.
const BLKTRACE_BYTES: usize = 48;
/// Categories, in the upper half of `action`.
const CATEGORY_READ: u32 = 1 << 0;
const CATEGORY_WRITE: u32 = 1 << 1;
const CATEGORY_NOTIFY: u32 = 1 << 10;
const CATEGORY_DISCARD: u32 = 1 << 13;
/// Queued, issued, completed: as the events of blkparse.
const LIVES: [u32; 3] = [1, 7, 8];

const VSCSI_V1_BYTES: usize = 32;
const VSCSI_V2_BYTES: usize = 40;
/// Where the version of a record stands, in its upper byte.
const VSCSI_V1_VERSION_AT: usize = 14;
const VSCSI_V2_VERSION_AT: usize = 2;

/// What comes next in a file.
pub(super) enum Next {
    /// A record.
    Record(Parsed),
    /// Something after which nothing can be understood.
    Lost(Bad),
    /// The end of the file.
    End,
}

/// Reads the records of one file.
pub(super) struct Parser {
    format: Format,
    /// Version of a VSCSI file, told by its first record.
    vscsi_version: Option<u8>,
    /// The kind of blktrace's event that counts.
    event: Option<u32>,
}

/// The format, if the beginning of a file tells that it is one of these.
pub(super) fn format_of(head: &[u8]) -> Option<Format> {
    if head.len() >= 4 {
        let magic = [u32_at(head, 0, false), u32_at(head, 0, true)];
        if magic.iter().any(|magic| magic & !0xFF == BLKTRACE_MAGIC) {
            return Some(Format::Blktrace);
        }
    }
    vscsi_version(head).map(|_| Format::Vscsi)
}

fn vscsi_version(head: &[u8]) -> Option<u8> {
    if head.len() < VSCSI_V1_BYTES {
        return None;
    }
    let opcode = |at: usize| head[at + 1] == 0 && is_write(head[at]).is_some();
    if head[VSCSI_V1_VERSION_AT + 1] == 1 && opcode(VSCSI_V1_VERSION_AT - 2) {
        return Some(1);
    }
    (head[VSCSI_V2_VERSION_AT + 1] == 2 && opcode(0)).then_some(2)
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

fn cut_off() -> Next {
    Next::Lost(Bad::new("record", "the file ends inside of it"))
}

impl Parser {
    pub(super) fn new(format: Format) -> Self {
        Self { format, vscsi_version: None, event: None }
    }

    pub(super) fn next(&mut self, input: &mut dyn BufRead, volumes: &mut Volumes) -> Result<Next> {
        match self.format {
            Format::Blktrace => self.blktrace(input, volumes),
            _ => self.vscsi(input),
        }
    }

    fn blktrace(&mut self, input: &mut dyn BufRead, volumes: &mut Volumes) -> Result<Next> {
        let mut record = [0; BLKTRACE_BYTES];
        match fill(input, &mut record)? {
            0 => return Ok(Next::End),
            BLKTRACE_BYTES => {}
            _ => return Ok(cut_off()),
        }
        let big = u32_at(&record, 0, false) & !0xFF != BLKTRACE_MAGIC;
        let magic = u32_at(&record, 0, big);
        if magic & !0xFF != BLKTRACE_MAGIC {
            return Ok(Next::Lost(Bad::new("magic", format!("{magic:#x} begins no record"))));
        }
        if magic & 0xFF != BLKTRACE_VERSION {
            let why = format!("version {} is not {BLKTRACE_VERSION}", magic & 0xFF);
            return Ok(Next::Lost(Bad::new("magic", why)));
        }
        let appended: [u8; 2] = bytes_at(&record, 46);
        let appended =
            if big { u16::from_be_bytes(appended) } else { u16::from_le_bytes(appended) };
        let skipped =
            std::io::copy(&mut Read::take(&mut *input, appended.into()), &mut std::io::sink())?;
        if skipped < appended.into() {
            return Ok(cut_off());
        }
        let action = u32_at(&record, 28, big);
        let (event, category) = (action & 0xFFFF, action >> 16);
        let write = category & CATEGORY_WRITE != 0;
        let moves_data = write || category & CATEGORY_READ != 0;
        if !moves_data
            || category & (CATEGORY_NOTIFY | CATEGORY_DISCARD) != 0
            || !LIVES.contains(&event)
            || *self.event.get_or_insert(event) != event
        {
            return Ok(Next::Record(Ok(None)));
        }
        let (time_ns, sector) = (u64_at(&record, 8, big), u64_at(&record, 16, big));
        let bytes = u32_at(&record, 24, big);
        let device = u32_at(&record, 36, big);
        let parsed = volumes.number(&device.to_string()).and_then(|volume| {
            let offset = sectors("sector", sector)?;
            request(time_ns / 1000, volume, write, offset, bytes.into())
        });
        Ok(Next::Record(parsed))
    }

    fn vscsi(&mut self, input: &mut dyn BufRead) -> Result<Next> {
        let mut record = [0; VSCSI_V2_BYTES];
        let read = fill(input, &mut record[..VSCSI_V1_BYTES])?;
        if read == 0 {
            return Ok(Next::End);
        }
        if read < VSCSI_V1_BYTES {
            return Ok(cut_off());
        }
        let Some(version) = self.vscsi_version.or_else(|| vscsi_version(&record)) else {
            return Ok(Next::Lost(Bad::new("version", "neither 1 nor 2")));
        };
        self.vscsi_version = Some(version);
        // Version 1: serial, length, segments, command, version, sector, time. Version 2: command
        // and version come first, and the time of the answer last.
        let (version_at, length_at) = match version {
            1 => (VSCSI_V1_VERSION_AT, 4),
            _ => (VSCSI_V2_VERSION_AT, 8),
        };
        if version == 2 && fill(input, &mut record[VSCSI_V1_BYTES..])? < 8 {
            return Ok(cut_off());
        }
        if record[version_at + 1] != version {
            let why = format!("{} in a file of version {version}", record[version_at + 1]);
            return Ok(Next::Lost(Bad::new("version", why)));
        }
        let Some(write) = is_write(record[version_at - 2]) else {
            return Ok(Next::Record(Ok(None)));
        };
        let time_us = u64_at(&record, 24, false);
        let parsed = sectors("lbn", u64_at(&record, 16, false)).and_then(|offset| {
            request(time_us, 0, write, offset, u32_at(&record, length_at, false).into())
        });
        Ok(Next::Record(parsed))
    }
}

/// Sectors of 512 bytes, in bytes.
fn sectors(field: &'static str, count: u64) -> std::result::Result<u64, Bad> {
    count.checked_mul(512).ok_or_else(|| Bad::new(field, format!("{count} is beyond any disk")))
}

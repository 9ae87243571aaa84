//! Formats of lines.

use super::detect::is_number;
use super::events::Event;
use super::{Bad, Format, Parsed, Run, request};

/// Bytes of a sector, in which SPC, Tencent and blkparse count.
const SECTOR_BYTES: u64 = 512;

/// What Windows puts before text.
pub(super) const BYTE_ORDER_MARK: &str = "\u{feff}";

/// First names of the headers that the formats of commas have. A header may also stand in the
/// middle: files that were joined to one stream have each their own.
const HEADERS: [&str; 3] = ["ts_us", "device_id", "timestamp"];

/// Reads the lines of one file.
pub(super) struct Parser {
    format: Format,
    /// The disk of a format that names none.
    file: String,
    /// Version of a fio log; 0 before its head was read.
    fio_version: u32,
    /// Within the summary that blkparse prints after the events.
    in_summary: bool,
}

type Field<T> = Result<T, Bad>;

/// The fields of a line in turn.
struct Fields<'a, I: Iterator<Item = &'a str>>(I);

impl<'a, I: Iterator<Item = &'a str>> Fields<'a, I> {
    fn text(&mut self, field: &'static str) -> Field<&'a str> {
        let missing = || Bad::new(field, "missing");
        self.0.next().map(str::trim).filter(|text| !text.is_empty()).ok_or_else(missing)
    }

    fn number(&mut self, field: &'static str) -> Field<u64> {
        let text = self.text(field)?;
        text.parse().map_err(|_| Bad::new(field, format!("{} is not a number", quoted(text))))
    }

    /// A number of units, in bytes.
    fn scaled(&mut self, field: &'static str, unit: u64) -> Field<u64> {
        let number = self.number(field)?;
        number.checked_mul(unit).ok_or_else(|| Bad::new(field, format!("{number} is too large")))
    }

    /// Seconds with a fraction, in microseconds.
    fn seconds(&mut self, field: &'static str) -> Field<u64> {
        let text = self.text(field)?;
        let bad = || Bad::new(field, format!("{} is not a time in seconds", quoted(text)));
        let seconds: f64 = text.parse().map_err(|_| bad())?;
        if !(0.0..1e12).contains(&seconds) {
            return Err(bad());
        }
        Ok((seconds * 1e6) as u64)
    }

    fn is_write(&mut self, field: &'static str) -> Field<bool> {
        let text = self.text(field)?;
        let neither = || Bad::new(field, format!("{} is neither read nor write", quoted(text)));
        op(text).ok_or_else(neither)
    }
}

/// Whether a word says that something is written; `None` if it says neither that nor that
/// something is read.
pub(super) fn op(word: &str) -> Option<bool> {
    match word {
        "R" | "r" | "Read" | "read" | "READ" => Some(false),
        "W" | "w" | "Write" | "write" | "WRITE" => Some(true),
        _ => None,
    }
}

/// Whether blkparse says in this line which file it reads; such lines stand before its events.
pub(super) fn is_about_input(line: &str) -> bool {
    line.starts_with("Input file ") && line.ends_with(" added")
}

/// The event nearest to the client in the beginning of blkparse's text.
pub(super) fn nearest_event(beginning: &[u8]) -> Option<Event> {
    String::from_utf8_lossy(beginning).lines().filter_map(event_of_line).min()
}

fn event_of_line(line: &str) -> Option<Event> {
    let mut words = line.split_whitespace();
    words.next().filter(|device| device.contains(','))?;
    let event = event_named(words.nth(4)?)?;
    direction(words.next()?)?;
    let mut word = || words.next().ok_or(());
    is_of_sectors([&word(), &word()]).then_some(event)
}

/// Whether the words after the flags of an event are, or may be meant as, `sector + sectors`. A flush
/// has nothing before `[process]`; its completion has a sector alone, before `[error]`. A SCSI
/// command that was passed through has its bytes at the most, and itself in parentheses: `36 (12 00) [smartd]`.
fn is_of_sectors<E>(words: [&Result<&str, E>; 2]) -> bool {
    let [sector, plus] = words.map(|word| word.as_ref().map_or("", |word| *word));
    !sector.is_empty() && ![sector, plus].iter().any(|word| word.starts_with(['[', '(']))
}

/// Whether a line is of the summary that blkparse prints at the end, if the one before it is or not:
/// it begins with `CPU0 (sdb):` or `Total (sdb):`, and each of its lines has a colon.
fn is_of_summary(line: &str, within: bool) -> bool {
    let begins = line.starts_with("CPU") || line.starts_with("Total");
    begins || within && line.contains(':') && !is_of_device(line)
}

/// Whether a line begins with a device as `MAJOR,MINOR`, as blkparse's events do.
pub(super) fn is_of_device(line: &str) -> bool {
    let device = line.split_whitespace().next().unwrap_or_default();
    device.split_once(',').is_some_and(|(major, minor)| is_number(major) && is_number(minor))
}

fn event_named(letter: &str) -> Option<Event> {
    match letter {
        "Q" => Some(Event::Queued),
        "D" => Some(Event::Issued),
        "C" => Some(Event::Completed),
        _ => None,
    }
}

/// Whether blkparse's flags say that data is written; `None` if none is read or written.
fn direction(flags: &str) -> Option<bool> {
    let write = flags.contains('W');
    (!flags.contains('D') && (write || flags.contains('R'))).then_some(write)
}

/// As much of a field as helps, in quotes.
fn quoted(text: &str) -> String {
    const SHOWN: usize = 40;
    let shown: String = text.chars().take(SHOWN).collect();
    format!("{shown:?}")
}

fn commas(line: &str) -> Fields<'_, std::str::Split<'_, char>> {
    Fields(line.split(','))
}

fn words(line: &str) -> Fields<'_, std::str::SplitWhitespace<'_>> {
    Fields(line.split_whitespace())
}

impl Parser {
    pub(super) fn new(format: Format, file: &str) -> Self {
        Self { format, file: file.to_owned(), fio_version: 0, in_summary: false }
    }

    pub(super) fn parse(&mut self, line: &str, run: &mut Run) -> Parsed {
        if line.is_empty() || line.starts_with('#') || is_header(line) {
            return Ok(None);
        }
        match self.format {
            Format::Forebay => forebay(line, &self.file, run),
            Format::Msr => msr(line, run),
            Format::Spc => spc(line, run),
            Format::Alibaba => alibaba(line, run),
            Format::Tencent => tencent(line, run),
            Format::Fio => self.fio(line, run),
            Format::Blkparse => self.blkparse(line, run),
            Format::Vscsi | Format::Blktrace => unreachable!("not made of lines"),
        }
    }

    /// Version 2: `file action [offset length]`; version 3 has microseconds in front.
    fn fio(&mut self, line: &str, run: &mut Run) -> Parsed {
        if let Some(version) = line.strip_prefix("fio version ") {
            let number = version.split_whitespace().next().and_then(|text| text.parse().ok());
            self.fio_version =
                number.filter(|version| (2..=3).contains(version)).ok_or_else(|| {
                    Bad::new("version", format!("{} is neither 2 nor 3", quoted(version)))
                })?;
            return Ok(None);
        }
        if self.fio_version == 0 {
            let why = "the first line is not `fio version 2 iolog` or `fio version 3 iolog`";
            return Err(Bad::new("version", why));
        }
        let mut fields = words(line);
        let time_us = match self.fio_version {
            3 => fields.number("timestamp")?,
            _ => 0,
        };
        let file = fields.text("file")?;
        let action = fields.text("action")?;
        let write = match action {
            "read" => false,
            "write" => true,
            "add" | "open" | "close" | "unlink" | "sync" | "datasync" | "sync_file_range"
            | "syncfs" | "trim" | "wait" => return Ok(None),
            _ => return Err(Bad::new("action", format!("{} is unknown", quoted(action)))),
        };
        let (offset, bytes) = (fields.number("offset")?, fields.number("length")?);
        request(time_us, write, offset, bytes, || run.volumes.number(Format::Fio, file))
    }

    /// `device cpu sequence seconds pid event flags sector + sectors [process]`. The text of another
    /// recording may follow the summary of one.
    fn blkparse(&mut self, line: &str, run: &mut Run) -> Parsed {
        if is_about_input(line) {
            return Ok(None);
        }
        self.in_summary = is_of_summary(line, self.in_summary);
        if self.in_summary {
            return Ok(None);
        }
        let mut fields = words(line);
        let device = fields.text("device")?;
        if !device.contains(',') {
            return Err(Bad::new("device", format!("{} is not MAJOR,MINOR", quoted(device))));
        }
        fields.number("cpu")?;
        fields.number("sequence")?;
        let time_us = fields.seconds("time")?;
        fields.number("pid")?;
        let Some(event) = event_named(fields.text("event")?) else { return Ok(None) };
        let Some(write) = direction(fields.text("flags")?) else { return Ok(None) };
        let (sector, plus) = (fields.text("sector"), fields.text("sectors"));
        if !is_of_sectors([&sector, &plus]) || !run.counted.has(Format::Blkparse, event) {
            return Ok(None);
        }
        let offset = words(sector?).scaled("sector", SECTOR_BYTES)?;
        match plus? {
            "+" => {}
            other => return Err(Bad::new("sectors", format!("{} instead of +", quoted(other)))),
        }
        let bytes = fields.scaled("sectors", SECTOR_BYTES)?;
        request(time_us, write, offset, bytes, || run.volumes.number(Format::Blkparse, device))
    }
}

fn is_header(line: &str) -> bool {
    let first = line.split(',').next().unwrap_or_default().trim();
    HEADERS.iter().any(|name| name.eq_ignore_ascii_case(first))
}

/// Where a trace spans several disks, the disk is in the offset from bit 44 on; that is one
/// address space for us.
fn forebay(line: &str, file: &str, run: &mut Run) -> Parsed {
    let mut fields = commas(line);
    let time_us = fields.number("ts_us")?;
    let write = fields.is_write("op")?;
    let (offset, bytes) = (fields.number("offset")?, fields.number("size")?);
    request(time_us, write, offset, bytes, || run.volumes.number(Format::Forebay, file))
}

fn msr(line: &str, run: &mut Run) -> Parsed {
    let mut fields = commas(line);
    let time_us = fields.number("timestamp")? / 10;
    let host = fields.text("hostname")?;
    let disk = fields.number("disk")?;
    let write = fields.is_write("type")?;
    let (offset, bytes) = (fields.number("offset")?, fields.number("size")?);
    request(time_us, write, offset, bytes, || {
        run.volumes.number(Format::Msr, &format!("{host},{disk}"))
    })
}

fn spc(line: &str, run: &mut Run) -> Parsed {
    let mut fields = commas(line);
    let asu = fields.number("asu")?;
    let offset = fields.scaled("lba", SECTOR_BYTES)?;
    let bytes = fields.number("size")?;
    let write = fields.is_write("opcode")?;
    let time_us = fields.seconds("timestamp")?;
    request(time_us, write, offset, bytes, || run.volumes.number(Format::Spc, &asu.to_string()))
}

fn alibaba(line: &str, run: &mut Run) -> Parsed {
    let mut fields = commas(line);
    let device = fields.text("device_id")?;
    let write = fields.is_write("opcode")?;
    let (offset, bytes) = (fields.number("offset")?, fields.number("length")?);
    let time_us = fields.number("timestamp")?;
    request(time_us, write, offset, bytes, || run.volumes.number(Format::Alibaba, device))
}

fn tencent(line: &str, run: &mut Run) -> Parsed {
    let mut fields = commas(line);
    let time_us = fields.scaled("timestamp", 1_000_000)?;
    let offset = fields.scaled("offset", SECTOR_BYTES)?;
    let bytes = fields.scaled("size", SECTOR_BYTES)?;
    let write = match fields.text("type")? {
        "0" => false,
        "1" => true,
        other => return Err(Bad::new("type", format!("{} is neither 0 nor 1", quoted(other)))),
    };
    let volume = fields.text("volume")?;
    request(time_us, write, offset, bytes, || run.volumes.number(Format::Tencent, volume))
}

//! Formats of lines.

use super::{Bad, Format, Parsed, Volumes, request};

/// Bytes of a sector, in which SPC, Tencent and blkparse count.
const SECTOR_BYTES: u64 = 512;

/// Events of a request's life that a trace may be made of. Where several are there the first kind
/// that appears counts, which is the one nearest to the client.
const LIVES: [&str; 3] = ["Q", "D", "C"];

/// Reads the lines of one file.
pub(super) struct Parser {
    format: Format,
    /// Version of a fio log; 0 before its head was read.
    fio_version: u32,
    /// The kind of blkparse's event that counts.
    event: Option<&'static str>,
    ended: bool,
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
        match text {
            "R" | "r" | "Read" | "read" | "READ" => Ok(false),
            "W" | "w" | "Write" | "write" | "WRITE" => Ok(true),
            _ => Err(Bad::new(field, format!("{} is neither read nor write", quoted(text)))),
        }
    }
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
    pub(super) fn new(format: Format) -> Self {
        Self { format, fio_version: 0, event: None, ended: false }
    }

    /// Whether what follows is no part of the trace.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    pub(super) fn parse(&mut self, line: &str, is_first: bool, volumes: &mut Volumes) -> Parsed {
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        // A line of names instead of numbers may come first.
        let names = ["ts_us", "device_id", "timestamp"];
        let head = line.split(',').next().unwrap_or_default().trim().to_ascii_lowercase();
        if is_first && names.contains(&head.as_str()) {
            return Ok(None);
        }
        match self.format {
            Format::Forebay => forebay(line),
            Format::Msr => msr(line, volumes),
            Format::Spc => spc(line, volumes),
            Format::Alibaba => alibaba(line, volumes),
            Format::Tencent => tencent(line, volumes),
            Format::Fio => self.fio(line, volumes),
            Format::Blkparse => self.blkparse(line, volumes),
            Format::Vscsi | Format::Blktrace => unreachable!("not made of lines"),
        }
    }

    /// Version 2: `file action [offset length]`; version 3 has milliseconds in front.
    fn fio(&mut self, line: &str, volumes: &mut Volumes) -> Parsed {
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
            3 => fields.scaled("timestamp", 1000)?,
            _ => 0,
        };
        let file = fields.text("file")?;
        let action = fields.text("action")?;
        let write = match action {
            "read" => false,
            "write" => true,
            "add" | "open" | "close" | "sync" | "datasync" | "trim" | "wait" => return Ok(None),
            _ => return Err(Bad::new("action", format!("{} is unknown", quoted(action)))),
        };
        let (offset, bytes) = (fields.number("offset")?, fields.number("length")?);
        request(time_us, volumes.number(file)?, write, offset, bytes)
    }

    /// `device cpu sequence seconds pid event flags sector + sectors [process]`.
    fn blkparse(&mut self, line: &str, volumes: &mut Volumes) -> Parsed {
        if line.starts_with("CPU") || line.starts_with("Total") {
            // The summary at the end.
            self.ended = true;
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
        let event = fields.text("event")?;
        let Some(life) = LIVES.into_iter().find(|&life| life == event) else { return Ok(None) };
        let flags = fields.text("flags")?;
        let write = flags.contains('W');
        if flags.contains('D') || !(write || flags.contains('R')) {
            return Ok(None);
        }
        if *self.event.get_or_insert(life) != life {
            return Ok(None);
        }
        // A flush has neither sector nor length.
        let sector = fields.text("sector").unwrap_or("[");
        if sector.starts_with('[') {
            return Ok(None);
        }
        let offset = words(sector).scaled("sector", SECTOR_BYTES)?;
        match fields.text("sectors")? {
            "+" => {}
            other => return Err(Bad::new("sectors", format!("{} instead of +", quoted(other)))),
        }
        let bytes = fields.scaled("sectors", SECTOR_BYTES)?;
        request(time_us, volumes.number(device)?, write, offset, bytes)
    }
}

/// Where a trace spans several disks, the disk is in the offset from bit 44 on; that is one
/// address space for us.
fn forebay(line: &str) -> Parsed {
    let mut fields = commas(line);
    let time_us = fields.number("ts_us")?;
    let write = fields.is_write("op")?;
    request(time_us, 0, write, fields.number("offset")?, fields.number("size")?)
}

fn msr(line: &str, volumes: &mut Volumes) -> Parsed {
    let mut fields = commas(line);
    let time_us = fields.number("timestamp")? / 10;
    let host = fields.text("hostname")?;
    let disk = fields.number("disk")?;
    let write = fields.is_write("type")?;
    let (offset, bytes) = (fields.number("offset")?, fields.number("size")?);
    request(time_us, volumes.number(&format!("{host},{disk}"))?, write, offset, bytes)
}

fn spc(line: &str, volumes: &mut Volumes) -> Parsed {
    let mut fields = commas(line);
    let asu = fields.number("asu")?;
    let offset = fields.scaled("lba", SECTOR_BYTES)?;
    let bytes = fields.number("size")?;
    let write = fields.is_write("opcode")?;
    let time_us = fields.seconds("timestamp")?;
    request(time_us, volumes.number(&asu.to_string())?, write, offset, bytes)
}

fn alibaba(line: &str, volumes: &mut Volumes) -> Parsed {
    let mut fields = commas(line);
    let device = fields.text("device_id")?;
    let write = fields.is_write("opcode")?;
    let (offset, bytes) = (fields.number("offset")?, fields.number("length")?);
    request(fields.number("timestamp")?, volumes.number(device)?, write, offset, bytes)
}

fn tencent(line: &str, volumes: &mut Volumes) -> Parsed {
    let mut fields = commas(line);
    let time_us = fields.scaled("timestamp", 1_000_000)?;
    let offset = fields.scaled("offset", SECTOR_BYTES)?;
    let bytes = fields.scaled("size", SECTOR_BYTES)?;
    let write = match fields.text("type")? {
        "0" => false,
        "1" => true,
        other => return Err(Bad::new("type", format!("{} is neither 0 nor 1", quoted(other)))),
    };
    request(time_us, volumes.number(fields.text("volume")?)?, write, offset, bytes)
}

//! Block traces of many formats, read as a stream.
//!
//! * Memory is bounded whatever the file holds: by [`LINE_BYTES_MAX`], [`VOLUMES_MAX`], and the
//!   decoder's window of at most 100 MiB.
//! * What cannot be understood is an error that names file, line and field, or, with
//!   [`Options::skip_bad`], is counted and passed over.

mod binary;
mod detect;
mod lines;
mod source;
#[cfg(test)]
mod tests;
mod text;

use std::collections::BTreeMap;
use std::io::{BufRead, Read};
use std::path::Path;

use crate::{Error, Result};

/// Longest line; the formats need some hundred bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Volumes in one run: ten times what the published cloud traces hold.
pub const VOLUMES_MAX: usize = 1 << 16;
/// Longest request. Block layers split at some MiB; more is a misread field, and would be a
/// million accesses of it.
pub const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// One request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Microseconds since the epoch of the trace; 0 where it has no time.
    pub time_us: u64,
    /// Volumes are counted from 0 in the order in which they appear.
    pub volume: u32,
    /// Whether it writes.
    pub write: bool,
    /// First byte.
    pub offset: u64,
    /// Bytes; never 0.
    pub bytes: u64,
}

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// `ts_us,op,offset,size`, with R and W, bytes; a header may come first.
    Forebay,
    /// MSR Cambridge: `time,host,disk,Read|Write,offset,size,response`, time in 100 ns.
    Msr,
    /// SPC, as of UMass: `asu,sector,size,r|w,seconds`.
    Spc,
    /// VSCSI, as of CloudPhysics: binary, version 1 or 2.
    Vscsi,
    /// What blktrace writes.
    Blktrace,
    /// What blkparse prints.
    Blkparse,
    /// fio's iolog, version 2 or 3.
    Fio,
    /// Alibaba's: `device,R|W,offset,size,time`, microseconds.
    Alibaba,
    /// Tencent's: `time,sector,sectors,0|1,volume`, seconds.
    Tencent,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 9] = [
        Self::Forebay,
        Self::Msr,
        Self::Spc,
        Self::Vscsi,
        Self::Blktrace,
        Self::Blkparse,
        Self::Fio,
        Self::Alibaba,
        Self::Tencent,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forebay => "csv",
            Self::Msr => "msr",
            Self::Spc => "spc",
            Self::Vscsi => "vscsi",
            Self::Blktrace => "blktrace",
            Self::Blkparse => "blkparse",
            Self::Fio => "fio",
            Self::Alibaba => "alibaba",
            Self::Tencent => "tencent",
        }
    }

    /// The format of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }
}

/// How traces are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The format; without it the beginning of each file tells.
    pub format: Option<Format>,
    /// Count what cannot be understood and go on.
    pub skip_bad: bool,
}

/// A field that cannot be understood.
#[derive(Debug)]
struct Bad {
    field: &'static str,
    why: String,
}

impl Bad {
    fn new(field: &'static str, why: impl Into<String>) -> Self {
        Self { field, why: why.into() }
    }
}

/// What a record came to: `None` for what is no read or write.
type Parsed = std::result::Result<Option<Request>, Bad>;

/// Volumes by name, numbered as they appear.
#[derive(Debug, Default)]
struct Volumes(BTreeMap<String, u32>);

impl Volumes {
    fn number(&mut self, name: &str) -> std::result::Result<u32, Bad> {
        if let Some(&number) = self.0.get(name) {
            return Ok(number);
        }
        if self.0.len() == VOLUMES_MAX {
            return Err(Bad::new("volume", format!("more than {VOLUMES_MAX} volumes")));
        }
        let number = self.0.len() as u32;
        self.0.insert(name.to_owned(), number);
        Ok(number)
    }
}

/// Checks what all formats have in common.
fn request(time_us: u64, volume: u32, write: bool, offset: u64, bytes: u64) -> Parsed {
    if bytes > REQUEST_BYTES_MAX {
        return Err(Bad::new("size", format!("{bytes} bytes are more than {REQUEST_BYTES_MAX}")));
    }
    if offset.checked_add(bytes).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Bad::new("offset", format!("{offset} is beyond any disk")));
    }
    // Some traces have requests of nothing (flushes); they touch no block.
    Ok((bytes > 0).then_some(Request { time_us, volume, write, offset, bytes }))
}

/// What follows the records of one file.
enum Records {
    Text(text::Parser),
    Binary(binary::Parser),
}

/// A file while it is read.
struct File {
    name: String,
    input: Box<dyn BufRead>,
    records: Records,
    /// Lines, or records of a binary format, read so far.
    number: u64,
    ended: bool,
}

/// The requests of several files, one after the other, as one workload.
pub struct Reader {
    options: Options,
    file: Option<File>,
    rest: std::vec::IntoIter<std::path::PathBuf>,
    volumes: Volumes,
    line: Vec<u8>,
    bad: u64,
}

impl Reader {
    /// The requests of these files; `-` is standard input. Each is opened when its turn comes.
    pub fn open(paths: &[&Path], options: Options) -> Self {
        let rest: Vec<_> = paths.iter().map(|path| path.to_path_buf()).collect();
        Self { rest: rest.into_iter(), ..Self::idle(options) }
    }

    /// The requests of one stream, which may be compressed.
    ///
    /// # Errors
    /// If its format is not given and cannot be told.
    pub fn over(name: &str, input: impl Read + 'static, options: Options) -> Result<Self> {
        let mut reader = Self::idle(options);
        reader.file = Some(File::new(name, Box::new(input), options)?);
        Ok(reader)
    }

    fn idle(options: Options) -> Self {
        Self {
            options,
            file: None,
            rest: Vec::new().into_iter(),
            volumes: Volumes::default(),
            line: Vec::new(),
            bad: 0,
        }
    }

    /// Lines or records that were passed over because they could not be understood.
    pub fn bad(&self) -> u64 {
        self.bad
    }

    fn next_request(&mut self) -> Result<Option<Request>> {
        loop {
            let Some(file) = &mut self.file else {
                let Some(path) = self.rest.next() else { return Ok(None) };
                self.file = Some(File::open(&path, self.options)?);
                continue;
            };
            if file.ended {
                self.file = None;
                continue;
            }
            match file.next(&mut self.line, &mut self.volumes)? {
                Ok(Some(request)) => return Ok(Some(request)),
                Ok(None) => {}
                Err(_) if self.options.skip_bad => self.bad += 1,
                Err(bad) => return Err(file.refuse(&bad)),
            }
        }
    }
}

impl Iterator for Reader {
    type Item = Result<Request>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_request().transpose();
        if matches!(next, Some(Err(_))) {
            // After an error there is nothing more.
            self.file = None;
            self.rest = Vec::new().into_iter();
        }
        next
    }
}

impl File {
    fn open(path: &Path, options: Options) -> Result<Self> {
        if path == Path::new("-") {
            return Self::new("standard input", Box::new(std::io::stdin()), options);
        }
        let name = path.display().to_string();
        let file = std::fs::File::open(path).map_err(|error| Error::io(&name, &error))?;
        Self::new(&name, Box::new(file), options)
    }

    fn new(name: &str, input: Box<dyn Read>, options: Options) -> Result<Self> {
        let (head, input) = source::plain(input).map_err(|error| Error::io(name, &error))?;
        let format = options.format.or_else(|| detect::format_of(&head)).ok_or_else(|| {
            let names: Vec<_> = Format::ALL.iter().map(|format| format.name()).collect();
            Error::new(
                format!("{name} is of no format that is known"),
                format!("say which with --format: {}", names.join(", ")),
            )
        })?;
        let records = match format {
            Format::Vscsi | Format::Blktrace => Records::Binary(binary::Parser::new(format)),
            _ => Records::Text(text::Parser::new(format)),
        };
        Ok(Self { name: name.to_owned(), input, records, number: 0, ended: false })
    }

    fn next(&mut self, line: &mut Vec<u8>, volumes: &mut Volumes) -> Result<Parsed> {
        self.number += 1;
        let failed = |error| Error::io(&self.name, &error);
        match &mut self.records {
            Records::Text(parser) => {
                match lines::read_line(&mut self.input, line).map_err(failed)? {
                    lines::Line::End => self.ended = true,
                    lines::Line::Long => {
                        let why = format!("longer than {LINE_BYTES_MAX} bytes");
                        return Ok(Err(Bad::new("line", why)));
                    }
                    lines::Line::Whole => {
                        let Ok(text) = std::str::from_utf8(line) else {
                            return Ok(Err(Bad::new("line", "not text")));
                        };
                        let parsed = parser.parse(text.trim(), self.number == 1, volumes);
                        self.ended = parser.ended();
                        return Ok(parsed);
                    }
                }
            }
            Records::Binary(parser) => {
                match parser.next(&mut self.input, volumes).map_err(failed)? {
                    binary::Next::End => self.ended = true,
                    binary::Next::Record(parsed) => return Ok(parsed),
                    // Where the next record begins is not known any more.
                    binary::Next::Lost(bad) => {
                        self.ended = true;
                        return Ok(Err(bad));
                    }
                }
            }
        }
        Ok(Ok(None))
    }

    fn refuse(&self, bad: &Bad) -> Error {
        let place = match self.records {
            Records::Text(_) => "line",
            Records::Binary(_) => "record",
        };
        Error::new(
            format!("{}, {place} {}, field \"{}\": {}", self.name, self.number, bad.field, bad.why),
            "correct it, name the right format with --format, or let --skip-bad pass over such \
             lines and count them",
        )
    }
}

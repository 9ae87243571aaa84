//! Block traces of many formats, read as a stream.
//!
//! * Memory is bounded whatever the file holds: by [`LINE_BYTES_MAX`], [`VOLUMES_MAX`] names of
//!   [`VOLUME_NAME_BYTES_MAX`], [`PIECES_MAX`], and zstd windows of 1 GiB in all. That rests on zstd
//!   blocks being no larger than zstd allows: ruzstd looks only at what they take in the file.
//! * A disk is what the format names. Where it names none, each file is a disk of its own, and
//!   the same file given twice is the same disk. The same name in two formats is two disks.
//! * What cannot be understood is an error that names file, line and field, or, with
//!   [`Options::skip_bad`], is counted and passed over.

mod binary;
mod detect;
mod events;
mod file;
mod frame;
mod lines;
mod plan;
mod reader;
mod source;
#[cfg(test)]
mod tests;
mod text;

use std::collections::BTreeMap;

pub use plan::PIECES_MAX;
pub use reader::Reader;

/// Longest line; the formats need some hundred bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Volumes in one run: ten times what the published cloud traces hold.
pub const VOLUMES_MAX: usize = 1 << 16;
/// Longest name of a volume in a trace; those of the published traces have some 10 bytes. With
/// [`VOLUMES_MAX`] that makes 16 MiB. Longer ones are bad lines.
pub const VOLUME_NAME_BYTES_MAX: usize = 256;
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
    /// `ts_us,op,offset,size`, with R and W, bytes; a header may come first, and more columns last.
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
    /// fio's iolog, version 2 or 3, microseconds.
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

    /// Whether its requests say which disk they are for.
    fn names_disks(self) -> bool {
        !matches!(self, Self::Forebay | Self::Vscsi)
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

/// Volumes by format and name, numbered as they appear.
#[derive(Debug, Default)]
struct Volumes {
    numbers: BTreeMap<Format, BTreeMap<String, u32>>,
    count: u32,
}

impl Volumes {
    /// The number of a volume. One of a format without names has that of its file.
    fn number(&mut self, format: Format, name: &str) -> std::result::Result<u32, Bad> {
        let numbers = self.numbers.entry(format).or_default();
        if let Some(&number) = numbers.get(name) {
            return Ok(number);
        }
        // The name of a file has been in memory before.
        if format.names_disks() && name.len() > VOLUME_NAME_BYTES_MAX {
            let why = format!("a name of more than {VOLUME_NAME_BYTES_MAX} bytes");
            return Err(Bad::new("volume", why));
        }
        if self.count as usize == VOLUMES_MAX {
            return Err(Bad::new("volume", format!("more than {VOLUMES_MAX} volumes")));
        }
        let number = self.count;
        numbers.insert(name.to_owned(), number);
        self.count += 1;
        Ok(number)
    }
}

/// What all files of a run have in common.
#[derive(Debug, Default)]
struct Run {
    volumes: Volumes,
    counted: events::Counted,
}

/// Checks what all formats have in common. Only a request that is right takes a number for its
/// volume: what is passed over leaves them to others.
fn request(
    time_us: u64,
    write: bool,
    offset: u64,
    bytes: u64,
    volume: impl FnOnce() -> std::result::Result<u32, Bad>,
) -> Parsed {
    if bytes > REQUEST_BYTES_MAX {
        return Err(Bad::new("size", format!("{bytes} bytes are more than {REQUEST_BYTES_MAX}")));
    }
    if offset.checked_add(bytes).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Bad::new("offset", format!("{offset} is beyond any disk")));
    }
    if bytes == 0 {
        // Some traces have requests of nothing (flushes); they touch no block.
        return Ok(None);
    }
    Ok(Some(Request { time_us, volume: volume()?, write, offset, bytes }))
}

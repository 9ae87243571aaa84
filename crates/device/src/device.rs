//! What a block device looks like to everything above it.

use std::rc::Rc;

use crate::buf::{Buf, Data};
use crate::gate::Gate;
use crate::io::{Completer, Io, IoError, IoErrorKind, pair};

/// Size and abilities of a device. While it is open the size may grow, and nothing else changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Usable bytes, a multiple of `sector_bytes`.
    pub size_bytes: u64,
    /// Smallest unit of reading and writing: 512 or 4096 bytes.
    pub sector_bytes: u32,
    /// Whether `Discard` does something. The content of a discarded range is unspecified.
    pub discard: bool,
    /// How an array spreads what it holds, if it is one and that is known.
    pub stripe: Option<Stripe>,
    /// The controller that it is behind, if that is known: a number, the same for all that fail with it.
    pub controller: Option<u64>,
    /// Whether it takes writes that are durable when they complete. Others refuse them.
    pub durable_writes: bool,
}

/// The layout of an array, as far as writers have a use for it. Stripes begin at multiples of their
/// length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// Bytes of data in a stripe over all disks: written as a whole, no old data is read for parity.
    pub bytes: u64,
    /// Contiguous bytes on one disk.
    pub chunk_bytes: u64,
    /// Whether it has parity on disks that turn: a short write there is two accesses or more to each of two disks or
    /// more.
    pub parity: bool,
}

/// One request. Offsets and lengths are bytes, multiples of the sector size.
#[derive(Debug)]
pub enum Request {
    /// Fill `buf` from `offset`; the buffer comes back with the outcome.
    Read {
        /// First byte on the device.
        offset: u64,
        /// Memory to fill, all of it.
        buf: Buf,
    },
    /// Write all of `data` at `offset`. Durable only after a later `Flush`, unless asked for.
    Write {
        /// First byte on the device.
        offset: u64,
        /// What to write.
        data: Data,
        /// Whether it completes only when it is durable; nothing is said of other writes.
        durable: bool,
    },
    /// Make every write that completed before this request was submitted durable.
    Flush,
    /// The range's content is no longer needed.
    Discard {
        /// First byte on the device.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The range shall read as zeroes.
    WriteZeroes {
        /// First byte on the device.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

impl Request {
    /// The bytes that the request covers, `None` for a flush.
    pub fn range(&self) -> Option<std::ops::Range<u64>> {
        match self {
            Request::Read { offset, buf } => Some(*offset..offset.saturating_add(buf.len() as u64)),
            Request::Write { offset, data, .. } => {
                Some(*offset..offset.saturating_add(data.len() as u64))
            }
            Request::Flush => None,
            Request::Discard { offset, len } | Request::WriteZeroes { offset, len } => {
                Some(*offset..offset.saturating_add(*len))
            }
        }
    }

    /// Whether the request lies inside the device and on its sectors.
    ///
    /// # Errors
    /// [`IoErrorKind::Invalid`] if not; [`IoErrorKind::Unsupported`] if it has no durable writes.
    pub fn check(&self, geometry: &Geometry) -> Result<(), IoError> {
        if matches!(self, Request::Write { durable: true, .. }) && !geometry.durable_writes {
            return Err(IoErrorKind::Unsupported.into());
        }
        let Some(range) = self.range() else { return Ok(()) };
        let sector = u64::from(geometry.sector_bytes);
        let aligned = range.start.is_multiple_of(sector) && range.end.is_multiple_of(sector);
        if aligned && range.start < range.end && range.end <= geometry.size_bytes {
            Ok(())
        } else {
            Err(IoErrorKind::Invalid.into())
        }
    }

    /// Ends the request with `result`, giving a read its buffer back.
    pub fn finish(self, result: Result<(), IoError>, completer: Completer) {
        let buf = match self {
            Request::Read { buf, .. } => Some(buf),
            _ => None,
        };
        completer.complete(result, buf);
    }
}

/// A block device: accepts requests, completes them in any order, keeps writes volatile until a
/// flush. Requests that overlap in flight may take effect in either order.
pub trait BlockDevice {
    /// Size and abilities.
    fn geometry(&self) -> Geometry;

    /// Starts `request`; never blocks. The outcome arrives through `completer`.
    fn submit(&self, request: Request, completer: Completer);

    /// A hash of what names the hardware (serial number, WWN, UUID), if it has such a name: what is at
    /// the same place and has another one is another device, whatever is on it.
    fn identity(&self) -> Option<[u8; 32]> {
        None
    }

    /// Says what requests must pass that go out later than they were submitted: those of a device that may send one
    /// again, or has a queue of its own. Others have nothing to do.
    fn fence(&self, _gate: &Rc<Gate>) {}
}

impl dyn BlockDevice + '_ {
    fn start(&self, request: Request) -> Io {
        let (completer, io) = pair();
        match request.check(&self.geometry()) {
            Ok(()) => self.submit(request, completer),
            Err(error) => request.finish(Err(error), completer),
        }
        io
    }

    /// Reads into the whole of `buf`; the outcome carries the buffer.
    pub fn read(&self, offset: u64, buf: Buf) -> Io {
        self.start(Request::Read { offset, buf })
    }

    /// Writes `data`.
    pub fn write(&self, offset: u64, data: Data) -> Io {
        self.start(Request::Write { offset, data, durable: false })
    }

    /// Writes `data`; durable when it completes.
    pub fn write_durable(&self, offset: u64, data: Data) -> Io {
        self.start(Request::Write { offset, data, durable: true })
    }

    /// Makes all completed writes durable.
    pub fn flush(&self) -> Io {
        self.start(Request::Flush)
    }

    /// Discards a range; a device without discard succeeds at once.
    pub fn discard(&self, offset: u64, len: u64) -> Io {
        if self.geometry().discard {
            self.start(Request::Discard { offset, len })
        } else {
            Io::ready(Ok(()), None)
        }
    }

    /// Makes a range read as zeroes.
    pub fn write_zeroes(&self, offset: u64, len: u64) -> Io {
        self.start(Request::WriteZeroes { offset, len })
    }
}

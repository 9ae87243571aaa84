//! What a server serves.

use std::future::Future;
use std::rc::Rc;

use forebay_device::{Buf, Data};

/// Why an export refuses or fails a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExportError {
    /// The data could not be read or written.
    Io,
    /// There is no room for the write.
    NoSpace,
    /// The request makes no sense to this export.
    Invalid,
    /// The export takes no writes.
    ReadOnly,
    /// The export cannot do this.
    Unsupported,
    /// The export is being closed.
    ShuttingDown,
}

impl std::fmt::Display for ExportError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Io => "the data could not be read or written",
            Self::NoSpace => "no space left",
            Self::Invalid => "the request is invalid",
            Self::ReadOnly => "the export is read-only",
            Self::Unsupported => "the request is not supported",
            Self::ShuttingDown => "the export is shutting down",
        })
    }
}

impl std::error::Error for ExportError {}

/// Where an extent's newest data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// In RAM; the origin has it, too.
    Ram,
    /// On a cache device; the origin was given it, too.
    SsdClean,
    /// On a cache device; the origin may lack it.
    SsdDirty,
    /// On the origin alone.
    Origin,
    /// Nowhere: reads fail.
    Lost,
}

/// How a range is to become zeroes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Zeroing {
    /// It may give up its space.
    pub may_trim: bool,
    /// It is durable when the request is answered.
    pub fua: bool,
    /// Only if that is quicker than writing as many zero bytes; else
    /// [`ExportError::Unsupported`], and nothing is changed.
    pub only_if_fast: bool,
}

/// What is known of some bytes without reading them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// In bytes, a multiple of [`crate::nbd::limits::SECTOR_BYTES`], not 0.
    pub len: u64,
    /// Whether they are known to read as zeroes. They may be zeroes without.
    pub is_zero: bool,
    /// Where they are.
    pub tier: Tier,
}

/// A block device that clients may open by name.
///
/// Servers check a request before they pass it on: ranges are not empty, lie inside of
/// `size_bytes`, are multiples of [`crate::nbd::limits::SECTOR_BYTES`], and a read-only export
/// sees no write. Many requests are in flight at a time, from several connections; requests
/// that overlap may take effect in either order. A write that was answered is seen by every
/// later read and covered by every later flush, from whichever connection.
pub trait Export: 'static {
    /// The name that clients ask for; not empty, unique within a server.
    fn name(&self) -> &str;

    /// Text for people who list a server's exports; may be empty.
    fn description(&self) -> &str;

    /// Size in bytes, a multiple of [`crate::nbd::limits::SECTOR_BYTES`]. It may grow: a client is
    /// told when it chooses the export, and keeps that size for as long as it is connected, since
    /// the protocol has no message for another one.
    fn size_bytes(&self) -> u64;

    /// Whether writes are refused.
    fn read_only(&self) -> bool;

    /// Whether clients without TLS are refused. Only a server that [has
    /// it](crate::nbd::Settings::tls) can have such an export.
    fn needs_tls(&self) -> bool {
        false
    }

    /// What one client is served from, asked for once per connection: the same data, and whatever
    /// an export remembers of each client, such as the failures it has been told of. By default
    /// nothing.
    fn for_client(self: Rc<Self>) -> Rc<Self> {
        self
    }

    /// The client of this view goes in order, and has had the answers to all that it asked. Without this it may not have had the
    /// last ones. By default nothing.
    fn take_leave(&self) {}

    /// Fills all of `buf` from `offset` and hands back that very buffer; after an error it may be
    /// another one.
    fn read(&self, offset: u64, buf: Buf) -> impl Future<Output = (Buf, Result<(), ExportError>)>;

    /// Writes all of `data` at `offset`; with `fua` it is durable when this returns.
    fn write(
        &self,
        offset: u64,
        data: Data,
        fua: bool,
    ) -> impl Future<Output = Result<(), ExportError>>;

    /// Makes every write that was answered before this call durable.
    fn flush(&self) -> impl Future<Output = Result<(), ExportError>>;

    /// The range's content is no longer needed and may read as anything afterwards.
    fn trim(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
    ) -> impl Future<Output = Result<(), ExportError>>;

    /// The range reads as zeroes from now on.
    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        how: Zeroing,
    ) -> impl Future<Output = Result<(), ExportError>>;

    /// What is known of a range: extents that follow each other from its start on. They may cover
    /// less than the range, but not nothing, and there are at most
    /// [`crate::nbd::limits::EXTENTS_MAX`].
    fn status(
        &self,
        offset: u64,
        len: u64,
    ) -> impl Future<Output = Result<Vec<Extent>, ExportError>>;

    /// The range will be read soon. An export that has no use for that does nothing; one that has
    /// may take the beginning of a long range only.
    fn prefetch(&self, offset: u64, len: u64) -> impl Future<Output = Result<(), ExportError>>;
}

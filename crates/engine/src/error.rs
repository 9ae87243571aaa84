//! What the engine reports: a small kind for machines, a sentence for people, and a hint.

use std::fmt;

use forebay_device::IoError;

/// What went wrong, for tables that map it to an NBD error, an errno or an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A device failed; the request's data is not available or not stored.
    Io,
    /// The request lies outside the volume or is not aligned to 512 B.
    OutOfRange,
    /// An option or a combination of options makes no sense.
    Invalid,
    /// The device cannot be used as asked: too small, of another pool, given twice.
    Refused,
    /// Structures on a device are damaged beyond what its copies can mend.
    Damaged,
    /// The format is of a later version than this build.
    Future,
    /// Opening needs a person's decision.
    NeedsDecision,
    /// Another host has the pool open.
    Held,
    /// There is no such pool, volume or device.
    NotFound,
    /// The pool is stopping.
    Stopping,
    /// An origin does not answer, or fails all writes, and what it was asked for, or what waits for room because of it,
    /// is under way.
    Stuck,
    /// It cannot be done in the way that was asked for; nothing was changed.
    Unsupported,
}

/// An error with what a person needs to act on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind, for machines.
    pub kind: ErrorKind,
    /// What failed, on what, and why.
    pub what: String,
    /// What to do about it; empty if there is nothing to say.
    pub hint: String,
}

/// The result of an engine call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error without a hint.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), hint: String::new() }
    }

    /// The same error with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    pub(crate) fn io(what: impl fmt::Display, source: IoError) -> Self {
        Self::new(ErrorKind::Io, format!("{what}: {source}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Error {}

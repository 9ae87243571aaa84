//! What a person reads when a trace cannot be used: what, where, why; then what to do.

use std::fmt;

/// What a call of this crate ends with.
pub type Result<T> = std::result::Result<T, Error>;

/// A trace or a setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What failed, on what, and why, on one line.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

impl Error {
    /// An error with a hint.
    pub fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into() }
    }

    /// A file that cannot be read.
    pub(crate) fn io(name: &str, error: &std::io::Error) -> Self {
        Self::new(
            format!("cannot read {name}: {error}"),
            "check the path, the permissions, and that a compressed file is whole",
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Error {}

//! What a person reads when a command fails: what failed, on what, why; then what to do.

use std::fmt;
use std::process::ExitCode;

use forebay_device::IoError;
use forebay_device::real::open::OpenError;
use forebay_device::real::prepare::PrepareError;
use forebay_device::real::reactor::StartError;

use crate::text::tell;

/// A failed command.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    hint: String,
}

impl Failure {
    /// A failure without a hint.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: String::new() }
    }

    /// The same failure with a hint.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// The same failure; with this hint if it has none.
    #[must_use]
    pub(crate) fn or_hint(mut self, hint: &str) -> Self {
        if self.hint.is_empty() {
            self.hint = hint.to_owned();
        }
        self
    }

    /// The same failure, with what it happened to in front.
    #[must_use]
    pub(crate) fn on(mut self, subject: impl fmt::Display) -> Self {
        self.what = format!("{subject}: {}", self.what);
        self
    }

    /// A failed call to the system.
    pub(crate) fn system(action: impl fmt::Display, error: &std::io::Error) -> Self {
        Self::new(format!("cannot {action}: {error}"))
    }

    /// A failed device request.
    pub(crate) fn io(action: impl fmt::Display, error: IoError) -> Self {
        Self::new(format!("cannot {action}: {error}")).hint("`dmesg | tail` may tell more")
    }

    /// Writes the failure to standard error; the exit code to end with.
    pub(crate) fn report(&self) -> ExitCode {
        tell(format_args!("error: {}", self.what));
        if !self.hint.is_empty() {
            tell(format_args!("hint: {}", self.hint));
        }
        ExitCode::FAILURE
    }
}

impl From<forebay_engine::Error> for Failure {
    fn from(error: forebay_engine::Error) -> Self {
        Self { what: error.what, hint: error.hint }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Self { what: error.to_string(), hint: error.hint() }
    }
}

impl From<PrepareError> for Failure {
    fn from(error: PrepareError) -> Self {
        Self { what: error.to_string(), hint: error.hint() }
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        Self { what: error.to_string(), hint: error.hint().to_owned() }
    }
}

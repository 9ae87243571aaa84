//! What a person reads when a command fails: what failed, on what, why; then what to do.

use std::fmt;
use std::process::ExitCode;

use forebay_control::error::{ApiError, Code};
use forebay_device::IoError;
use forebay_device::real::open::OpenError;
use forebay_device::real::prepare::PrepareError;
use forebay_device::real::reactor::StartError;
use forebay_engine::ErrorKind;

use crate::text::tell_fact;

/// Of a question that was answered with no.
pub(crate) const EXIT_NO: u8 = 3;

/// What a command ends with.
pub(crate) const EXIT_CODES: [(u8, &str); 5] = [
    (0, "done"),
    (1, "failed, or interrupted before the end of what was asked"),
    (2, "the command line makes no sense"),
    (EXIT_NO, "the answer to what was asked is no: `pool device can-i-pull`"),
    (130, "by Ctrl-C (`stats 1`), or at once by a second SIGINT or SIGTERM, as in a crash"),
];

/// The same, for `--help`.
pub(crate) fn exit_codes() -> String {
    let lines: Vec<_> =
        EXIT_CODES.iter().map(|(code, meaning)| format!("  {code:>3}  {meaning}")).collect();
    format!("Exit codes:\n{}", lines.join("\n"))
}

/// A failed command, or a failed request to the daemon.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    code: Code,
    what: String,
    hint: String,
}

impl Failure {
    /// A failure without a hint.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self::coded(Code::Refused, what)
    }

    /// A failure of this kind, without a hint.
    pub(crate) fn coded(code: Code, what: impl Into<String>) -> Self {
        Self { code, what: what.into(), hint: String::new() }
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
        Self::coded(Code::Io, format!("cannot {action}: {error}"))
            .hint("`dmesg | tail` may tell more")
    }

    /// Of which kind it is.
    pub(crate) fn code(&self) -> Code {
        self.code
    }

    /// What failed, on what, and why.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// What to do about it.
    pub(crate) fn hint_text(&self) -> &str {
        &self.hint
    }

    /// Writes the failure to standard error; the exit code to end with.
    pub(crate) fn report(&self) -> ExitCode {
        tell_fact("error: ", &self.what);
        if !self.hint.is_empty() {
            tell_fact("hint: ", &self.hint);
        }
        ExitCode::FAILURE
    }
}

impl From<forebay_engine::Error> for Failure {
    fn from(error: forebay_engine::Error) -> Self {
        let code = match error.kind {
            ErrorKind::Io => Code::Io,
            ErrorKind::OutOfRange | ErrorKind::Invalid | ErrorKind::Unsupported => Code::BadRequest,
            ErrorKind::Refused | ErrorKind::Damaged | ErrorKind::Future => Code::Refused,
            ErrorKind::NeedsDecision => Code::NeedsDecision,
            ErrorKind::Held => Code::HeldElsewhere,
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::Stopping => Code::Stopping,
            ErrorKind::Stuck => Code::Busy,
        };
        Self { code, what: error.what, hint: error.hint }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Self::new(error.to_string()).hint(error.hint())
    }
}

impl From<PrepareError> for Failure {
    fn from(error: PrepareError) -> Self {
        Self::new(error.to_string()).hint(error.hint())
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        Self::new(error.to_string()).hint(error.hint())
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self { code: error.code, what: error.message, hint: error.hint }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        Self { code: failure.code, message: failure.what, hint: failure.hint }
    }
}

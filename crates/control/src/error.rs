//! What goes wrong, for people and for programs: one table.

use serde::{Deserialize, Serialize};

/// Why a request was not carried out; stable, for programs and for `forebay explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The request itself makes no sense.
    BadRequest,
    /// There is no such pool, volume, export, job or address.
    NotFound,
    /// The address exists and does not know this method.
    BadMethod,
    /// The body is too long.
    TooLarge,
    /// The name, or the place, is taken.
    Exists,
    /// What is asked does not go together with what is there.
    Refused,
    /// A person has to decide.
    NeedsDecision,
    /// Another host has the pool open.
    HeldElsewhere,
    /// Another change is under way, or clients are connected.
    Busy,
    /// A device failed.
    Io,
    /// The daemon is stopping.
    Stopping,
}

/// Every code with its HTTP status and its name on the wire.
pub const CODES: [(Code, u16, &str); 11] = [
    (Code::BadRequest, 400, "bad-request"),
    (Code::NotFound, 404, "not-found"),
    (Code::BadMethod, 405, "bad-method"),
    (Code::TooLarge, 413, "too-large"),
    (Code::Exists, 409, "exists"),
    (Code::Refused, 409, "refused"),
    (Code::NeedsDecision, 409, "needs-decision"),
    (Code::HeldElsewhere, 409, "held-elsewhere"),
    (Code::Busy, 409, "busy"),
    (Code::Io, 500, "io"),
    (Code::Stopping, 503, "stopping"),
];

impl Code {
    /// The HTTP status that goes with it.
    pub fn status(self) -> u16 {
        CODES.iter().find(|(code, ..)| *code == self).map_or(500, |(_, status, _)| *status)
    }
}

/// The body of every answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiError {
    /// Why, for programs.
    pub code: Code,
    /// What failed, on what, and why.
    pub message: String,
    /// What to do about it; empty if there is nothing to say.
    #[serde(default)]
    pub hint: String,
}

impl ApiError {
    /// An error without a hint.
    pub fn new(code: Code, message: impl Into<String>) -> ApiError {
        ApiError { code, message: message.into(), hint: String::new() }
    }

    /// The same error with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> ApiError {
        self.hint = hint.into();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_each_code_under_the_name_that_is_sent() {
        for (code, status, name) in CODES {
            let sent = serde_json::to_string(&code).unwrap();
            assert_eq!(sent, format!("\"{name}\""));
            assert_eq!(code.status(), status);
            assert!((400..=503).contains(&status));
        }
    }
}

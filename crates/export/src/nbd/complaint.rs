//! What is said of a client whose connection ends otherwise than by its wish or the server's stop.

use std::cell::Cell;
use std::fmt;

use crate::nbd::limits::{
    COMPLAINTS_MAX, COMPLAINTS_SPAN, DRAIN_TIME_MAX, NEGOTIATION_TIME_MAX, SKIPPED_BYTES_MAX,
    STALL_TIME_MAX,
};
use forebay_device::runtime::{Nanos, SECOND};

/// What was wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Flags or an option's magic number that no NBD client sends.
    NotNbd,
    /// It took longer than [`NEGOTIATION_TIME_MAX`] to choose an export.
    SlowNegotiation,
    /// It asked for an export in a way that knows no refusal, and there is none of that name.
    UnknownExport,
    /// In the same way, and the export has all the clients that it may have.
    ExportBusy,
    /// It asked for an export that needs TLS, in a way that knows no refusal, without it.
    NeedsTls,
    /// What it sent for TLS, or its certificate, is refused: why.
    Tls(String),
    /// An option, or the data of a write, broke off.
    BrokenOff,
    /// A request without its magic number: the stream is out of step.
    OutOfStep,
    /// A payload of more than [`SKIPPED_BYTES_MAX`].
    PayloadTooLong,
    /// It stopped in the middle of a request or a reply for [`STALL_TIME_MAX`] while others waited
    /// for memory.
    Stalled,
    /// It asked for nothing for longer than the server [allows](crate::nbd::Settings::idle_max).
    Idle,
    /// It did not take its last replies within [`DRAIN_TIME_MAX`] of the server's stop.
    RepliesNotTaken,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotNbd => f.write_str("it does not speak NBD"),
            Self::SlowNegotiation => {
                write!(f, "it chose no export within {} s", NEGOTIATION_TIME_MAX / SECOND)
            }
            Self::UnknownExport => f.write_str("it asked for an export that there is not"),
            Self::ExportBusy => f.write_str("the export has as many clients as it may have"),
            Self::NeedsTls => f.write_str("it did not use TLS, which it has to"),
            // Some of it may be the client's own words.
            Self::Tls(why) => write!(f, "TLS: {}", why.escape_debug()),
            Self::BrokenOff => f.write_str("it left in the middle of a message"),
            Self::OutOfStep => f.write_str("it sent something that is no request"),
            Self::PayloadTooLong => {
                write!(f, "it announced more than {SKIPPED_BYTES_MAX} B in one request")
            }
            Self::Stalled => {
                let seconds = STALL_TIME_MAX / SECOND;
                write!(f, "it stopped within a message for {seconds} s while others waited")
            }
            Self::Idle => f.write_str("it asked for nothing for longer than is allowed"),
            Self::RepliesNotTaken => {
                let seconds = DRAIN_TIME_MAX / SECOND;
                write!(f, "it did not take its replies within {seconds} s of the stop")
            }
        }
    }
}

/// A connection that has ended because of a [`Fault`]; displayed as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// Who it was, as its transport knows.
    pub peer: String,
    /// The export that it used, if it had chosen one.
    pub export: Option<String>,
    /// Why.
    pub fault: Fault,
    /// How many before it there was no room to tell of.
    pub unsaid: u64,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection of {} ", self.peer)?;
        if let Some(export) = &self.export {
            write!(f, "to \"{}\" ", export.escape_debug())?;
        }
        write!(f, "closed: {}", self.fault)?;
        match self.unsaid {
            0 => Ok(()),
            count => write!(f, " (and {count} others were closed before it)"),
        }
    }
}

/// Lets so many complaints through that nobody can fill a log with them.
#[derive(Default)]
pub(crate) struct Limiter {
    begun: Cell<Nanos>,
    told: Cell<u32>,
    unsaid: Cell<u64>,
}

impl Limiter {
    /// Whether there is room for a complaint: how many before it had none.
    pub(crate) fn admit(&self, now: Nanos) -> Option<u64> {
        if now >= self.begun.get().saturating_add(COMPLAINTS_SPAN) {
            self.begun.set(now);
            self.told.set(0);
        }
        if self.told.get() == COMPLAINTS_MAX {
            self.unsaid.set(self.unsaid.get() + 1);
            return None;
        }
        self.told.set(self.told.get() + 1);
        Some(self.unsaid.take())
    }
}

/// Why a connection ends: nothing is to be said of a client that leaves.
pub(crate) type End = Option<Fault>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_one_line() {
        let complaint = |export: Option<&str>, fault| {
            let (peer, export) = ("unix (uid 0)".into(), export.map(str::to_owned));
            Complaint { peer, export, fault, unsaid: 0 }.to_string()
        };
        assert_eq!(
            complaint(None, Fault::SlowNegotiation),
            "connection of unix (uid 0) closed: it chose no export within 30 s"
        );
        assert_eq!(
            complaint(Some("a\nb"), Fault::OutOfStep),
            "connection of unix (uid 0) to \"a\\nb\" closed: it sent something that is no request"
        );
    }

    #[test]
    fn complaints_above_the_limit_are_counted_and_told_of_with_the_next_one() {
        let limiter = Limiter::default();
        for n in 0..u64::from(COMPLAINTS_MAX) {
            assert_eq!(limiter.admit(5 + n), Some(0));
        }
        for n in 0..1000 {
            assert_eq!(limiter.admit(100 + n), None);
        }
        assert_eq!(limiter.admit(COMPLAINTS_SPAN - 1), None);
        assert_eq!(limiter.admit(COMPLAINTS_SPAN), Some(1001));
        assert_eq!(limiter.admit(COMPLAINTS_SPAN), Some(0));
        let complaint =
            Complaint { peer: "p".into(), export: None, fault: Fault::NotNbd, unsaid: 7 };
        assert_eq!(
            complaint.to_string(),
            "connection of p closed: it does not speak NBD (and 7 others were closed before it)"
        );
    }
}

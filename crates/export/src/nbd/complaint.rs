//! What is said of a client whose connection ends otherwise than by its wish or the server's stop.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::discriminant;

use crate::nbd::limits::{
    COMPLAINTS_MAX, COMPLAINTS_SPAN, DRAIN_TIME_MAX, NEGOTIATION_TIME_MAX, SKIPPED_BYTES_MAX,
    STALL_TIME_MAX,
};
use crate::nbd::signal::Waiters;
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
    /// How many more of the same kind there was no room to tell of within [`COMPLAINTS_SPAN`].
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
            count => {
                let seconds = COMPLAINTS_SPAN / SECOND;
                write!(f, " (and {count} more of this kind in the last {seconds} s)")
            }
        }
    }
}

/// Lets so many complaints through that nobody can fill a log with them. Of those above, the last of each kind is
/// kept, with the number of the others, until the span is over.
#[derive(Default)]
pub(crate) struct Limiter {
    begun: Cell<Nanos>,
    told: Cell<u32>,
    kept: RefCell<Vec<Complaint>>,
    keeping: Waiters,
}

impl Limiter {
    /// The complaint again, if there is room to tell of it now.
    pub(crate) fn admit(&self, now: Nanos, complaint: Complaint) -> Option<Complaint> {
        if now >= self.end() {
            self.begun.set(now);
            self.told.set(0);
        }
        if self.told.get() == COMPLAINTS_MAX {
            self.keep(complaint);
            return None;
        }
        self.told.set(self.told.get() + 1);
        Some(complaint)
    }

    fn keep(&self, mut complaint: Complaint) {
        let kind = discriminant(&complaint.fault);
        let mut kept = self.kept.borrow_mut();
        match kept.iter_mut().find(|other| discriminant(&other.fault) == kind) {
            Some(other) => {
                complaint.unsaid = other.unsaid + 1;
                *other = complaint;
            }
            None => kept.push(complaint),
        }
        self.keeping.wake_all();
    }

    /// When there will be room for what is kept; returns once something is.
    pub(crate) async fn until_keeping(&self) -> Nanos {
        self.keeping.until(|| !self.kept.borrow().is_empty()).await;
        self.end()
    }

    /// What was kept.
    pub(crate) fn take(&self) -> Vec<Complaint> {
        self.kept.take()
    }

    fn end(&self) -> Nanos {
        self.begun.get().saturating_add(COMPLAINTS_SPAN)
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
    fn complaints_above_the_limit_are_kept_by_kind_and_counted() {
        let limiter = Limiter::default();
        let admit = |now, fault| {
            let complaint = Complaint { peer: format!("p{now}"), export: None, fault, unsaid: 0 };
            limiter.admit(now, complaint).is_some()
        };
        for n in 0..u64::from(COMPLAINTS_MAX) {
            assert!(admit(5 + n, Fault::NotNbd));
        }
        for n in 0..1000 {
            assert!(!admit(100 + n, Fault::NotNbd));
        }
        for why in ["one", "another"] {
            assert!(!admit(COMPLAINTS_SPAN - 1, Fault::Tls(why.to_owned())));
        }
        let kept: Vec<_> = limiter.take().iter().map(Complaint::to_string).collect();
        let [strangers, tls] = &kept[..] else { panic!("{kept:?}") };
        assert_eq!(
            strangers,
            "connection of p1099 closed: it does not speak NBD (and 999 more of this kind in the last 60 s)"
        );
        assert!(tls.ends_with(" closed: TLS: another (and 1 more of this kind in the last 60 s)"));
        assert!(admit(COMPLAINTS_SPAN, Fault::Idle));
        assert!(limiter.take().is_empty());
    }
}

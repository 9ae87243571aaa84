//! Which event of a request's life stands for the request, in traces that have several of each.
//!
//! * The kind that counts is the one nearest to the client of those that the first
//!   [`LOOK_AHEAD_BYTES`] of the run's files have. Events of other kinds are passed over.
//! * It is chosen once for all files of one format: the files of a recording are one for each
//!   processor, and a processor may have seen completions only.
//! * If no file begins with such an event, the first one that comes chooses its kind.

use std::collections::BTreeMap;

use super::{Format, binary, text};

/// Bytes of a file in which its events are looked for before the first one is read: 5,461 records
/// of blktrace, some 3,000 lines of blkparse. That is more than a disk has requests in flight when
/// a recording begins, of which it sees the ends only.
pub(super) const LOOK_AHEAD_BYTES: usize = 256 << 10;

/// An event of a request's life; the nearest to the client comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A client asked for it.
    Queued,
    /// The disk was asked for it.
    Issued,
    /// The disk has answered.
    Completed,
}

/// The kinds of events that count, by the format of the files.
#[derive(Debug, Default)]
pub(super) struct Counted(BTreeMap<Format, Event>);

impl Counted {
    /// Takes the beginning of a file of this format into account.
    pub(super) fn look_at(&mut self, format: Format, beginning: &[u8]) {
        let nearest = match format {
            Format::Blktrace => binary::nearest_event(beginning),
            Format::Blkparse => text::nearest_event(beginning),
            _ => None,
        };
        if let Some(event) = nearest {
            let counted = self.0.entry(format).or_insert(event);
            *counted = event.min(*counted);
        }
    }

    /// Whether an event stands for its request.
    pub(super) fn has(&mut self, format: Format, event: Event) -> bool {
        *self.0.entry(format).or_insert(event) == event
    }
}

/// Whether traces of this format have several events of each request.
pub(super) fn are_in(format: Format) -> bool {
    matches!(format, Format::Blktrace | Format::Blkparse)
}

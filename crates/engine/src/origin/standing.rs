//! Whether an origin does what it is asked for.
//!
//! * One bad place is not a failed origin: while reads fail, another place is read once a second, and as
//!   soon as that works, only the requests that met the bad one have failed.
//! * Writes need no such try: as long as something is dirty the elevator repeats them once a second.
//! * There is one such try at a time. One that does not come back, as of a device that hangs, leaves all as it was.
//! * Where nothing is tried any more, nobody knows, and what has failed long ago is no trouble.

use std::cell::Cell;
use std::fmt;

use forebay_device::{IoError, IoErrorKind, Nanos};

use crate::limits::{ORIGIN_FAILING_SPAN, ORIGIN_PROBE_INTERVAL, ORIGIN_TROUBLE_SPAN};

/// What of an origin does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginTrouble {
    /// Reads have failed for some time, and none has succeeded; how the last one failed.
    Reads(IoError),
    /// The same of writes and flushes.
    Writes(IoError),
    /// Something that it was asked for has had no answer for long.
    Silent,
}

impl OriginTrouble {
    /// Whether data can be brought home all the same: nothing has to be read for that.
    pub fn leaves_writes(self) -> bool {
        matches!(self, OriginTrouble::Reads(_))
    }
}

impl fmt::Display for OriginTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OriginTrouble::Reads(error) => write!(f, "reading its origin fails: {error}"),
            OriginTrouble::Writes(error) => write!(f, "writing its origin fails: {error}"),
            OriginTrouble::Silent => f.write_str("its origin does not answer"),
        }
    }
}

/// What an origin does of one kind of request.
///
/// ```text
///   Able ---- one fails ----> Doubted ---- one fails, ORIGIN_FAILING_SPAN later ----> Unable
///    ^ ^---- one succeeds -------'                                                     |
///    '------ one succeeds -------------------------------------------------------------'
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ability {
    /// The last request has succeeded, or there was none.
    #[default]
    Able,
    /// Since then all have failed, which may be their place's fault.
    Doubted { since: Nanos },
    /// All have failed for so long that it says something of the device; the last one, and when.
    Unable { error: IoError, at: Nanos },
}

impl Ability {
    fn may_become(self, next: Ability) -> bool {
        use Ability::{Able, Doubted, Unable};
        match self {
            Able => matches!(next, Doubted { .. }),
            Doubted { .. } | Unable { .. } => matches!(next, Able | Unable { .. }),
        }
    }
}

/// One kind of request.
#[derive(Default)]
pub struct Way(Cell<Ability>);

impl Way {
    /// Notes how a request has ended. One that the device does not know says nothing of it.
    pub fn note(&self, result: &Result<(), IoError>, now: Nanos) {
        let next = match (self.0.get(), result) {
            (Ability::Able, Ok(())) => return,
            (_, Ok(())) => Ability::Able,
            (_, Err(error)) if error.kind == IoErrorKind::Unsupported => return,
            (Ability::Able, Err(_)) => Ability::Doubted { since: now },
            (Ability::Doubted { since }, Err(_)) if now < since + ORIGIN_FAILING_SPAN => return,
            (_, Err(error)) => Ability::Unable { error: *error, at: now },
        };
        self.transition(next);
    }

    fn transition(&self, next: Ability) {
        assert!(self.0.get().may_become(next), "{:?} to {next:?}", self.0.get());
        self.0.set(next);
    }

    /// Whether the last one has failed.
    pub(crate) fn is_doubted(&self) -> bool {
        self.0.get() != Ability::Able
    }

    /// Whether all have failed since the last success, and that not so long ago that it says nothing any more.
    fn has_failed_of_late(&self, now: Nanos) -> bool {
        match self.0.get() {
            Ability::Able => false,
            Ability::Doubted { since: at } | Ability::Unable { at, .. } => {
                now < at + ORIGIN_TROUBLE_SPAN
            }
        }
    }

    fn trouble(&self, now: Nanos) -> Option<IoError> {
        match self.0.get() {
            Ability::Unable { error, at } if now < at + ORIGIN_TROUBLE_SPAN => Some(error),
            _ => None,
        }
    }
}

/// See the head of the file.
#[derive(Default)]
pub struct Standing {
    /// Of reads.
    pub(crate) reads: Way,
    /// Of all that changes it.
    pub writes: Way,
    /// By itself: of a device that takes no writes, flushes may succeed, for they have nothing to do.
    pub flushes: Way,
    /// Where the last read failed.
    bad: Cell<u64>,
    /// When another place was tried last, and since when one is that has not come back.
    probed: Cell<Nanos>,
    probing: Cell<Option<Nanos>>,
}

impl Standing {
    /// Notes how a read of a place has ended.
    pub fn note_read(&self, offset: u64, result: &Result<(), IoError>, now: Nanos) {
        if result.is_err() {
            self.bad.set(offset);
        }
        self.reads.note(result, now);
    }

    /// What does not work.
    pub fn trouble(&self, now: Nanos) -> Option<OriginTrouble> {
        let now = self.looked_at(now);
        let reads = || self.reads.trouble(now).map(OriginTrouble::Reads);
        let writes = self.writes.trouble(now).or_else(|| self.flushes.trouble(now));
        writes.map(OriginTrouble::Writes).or_else(reads)
    }

    /// Whether something has failed of late, and nothing of its kind has succeeded since: a trouble that it had before may
    /// not be over.
    pub fn is_unsure(&self, now: Nanos) -> bool {
        let ways = [&self.reads, &self.writes, &self.flushes];
        ways.into_iter().any(|way| way.has_failed_of_late(self.looked_at(now)))
    }

    /// Since when another place is being tried without an answer.
    pub fn probing_since(&self) -> Option<Nanos> {
        self.probing.get()
    }

    /// The time of which it is told what fails: a try that has not come back says nothing good, so what was known when it
    /// began is not over.
    fn looked_at(&self, now: Nanos) -> Nanos {
        self.probing.get().unwrap_or(now)
    }

    /// Begins to try whether reads work elsewhere, if that is due; where, of so many bytes.
    pub fn begin_probe(&self, now: Nanos, size: u64, sector: u64) -> Option<u64> {
        let is_due = now >= self.probed.get() + ORIGIN_PROBE_INTERVAL;
        if !self.reads.is_doubted() || self.probing.get().is_some() || !is_due {
            return None;
        }
        self.probing.set(Some(now));
        // A bad place may be some tracks wide, or a whole disk of a concatenation.
        let is_in_front = self.bad.get() < size / 2;
        Some(if is_in_front { size / sector * sector - sector } else { 0 })
    }

    /// Notes how that has ended.
    pub fn end_probe(&self, result: &Result<(), IoError>, now: Nanos) {
        self.probing.set(None);
        self.probed.set(now);
        self.reads.note(result, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_device::runtime::SECOND;

    const GONE: IoError = IoError::new(IoErrorKind::Vanished);
    const SIZE: u64 = 1 << 30;

    #[test]
    fn an_ability_changes_as_its_diagram_says() {
        let all =
            [Ability::Able, Ability::Doubted { since: 0 }, Ability::Unable { error: GONE, at: 0 }];
        let legal = |from: Ability| all.map(|to| from.may_become(to));
        assert_eq!(legal(all[0]), [false, true, false]);
        assert_eq!(legal(all[1]), [true, false, true]);
        assert_eq!(legal(all[2]), [true, false, true]);
    }

    #[test]
    fn only_what_fails_for_long_without_a_success_is_trouble() {
        let standing = Standing::default();
        let trouble = |now| standing.trouble(now);
        let fail = |now| standing.writes.note(&Err(GONE), now);
        fail(SECOND);
        fail(2 * SECOND);
        assert_eq!(trouble(2 * SECOND), None, "it may be the place");
        standing.writes.note(&Ok(()), 3 * SECOND);
        fail(3 * SECOND);
        fail(3 * SECOND + ORIGIN_FAILING_SPAN - 1);
        assert_eq!(trouble(3 * SECOND + ORIGIN_FAILING_SPAN), None, "one has succeeded in between");
        fail(3 * SECOND + ORIGIN_FAILING_SPAN);
        assert_eq!(trouble(3 * SECOND + ORIGIN_FAILING_SPAN), Some(OriginTrouble::Writes(GONE)));
        standing.note_read(0, &Ok(()), 9 * SECOND);
        standing.flushes.note(&Ok(()), 9 * SECOND);
        assert!(trouble(9 * SECOND).is_some(), "neither says anything of writes");
        let other = IoError::new(IoErrorKind::Permission);
        standing.writes.note(&Err(other), 9 * SECOND);
        assert_eq!(
            trouble(9 * SECOND),
            Some(OriginTrouble::Writes(other)),
            "the last error counts"
        );
        standing.writes.note(&Err(IoErrorKind::Unsupported.into()), 10 * SECOND);
        assert_eq!(trouble(10 * SECOND), Some(OriginTrouble::Writes(other)));
        assert_eq!(trouble(9 * SECOND + ORIGIN_TROUBLE_SPAN), None, "it may have been mended");
        fail(99 * SECOND);
        assert_eq!(trouble(99 * SECOND), Some(OriginTrouble::Writes(GONE)), "it was not");
        standing.writes.note(&Ok(()), 99 * SECOND);
        assert_eq!(trouble(99 * SECOND), None);
    }

    #[test]
    fn a_place_that_cannot_be_read_is_told_from_a_device_that_cannot() {
        let standing = Standing::default();
        let probe = |now| standing.begin_probe(now, SIZE, 512);
        assert_eq!(probe(SECOND), None, "nothing has failed");
        standing.note_read(4096, &Err(GONE), SECOND);
        assert_eq!(probe(SECOND), Some(SIZE - 512));
        assert_eq!(probe(9 * SECOND), None, "one is under way");
        standing.end_probe(&Ok(()), 9 * SECOND);
        standing.note_read(4096, &Err(GONE), 10 * SECOND);
        assert_eq!(standing.trouble(10 * SECOND), None, "the other place can be read");

        standing.note_read(SIZE - 4096, &Err(GONE), 11 * SECOND);
        assert_eq!(probe(11 * SECOND), Some(0));
        standing.end_probe(&Err(GONE), 20 * SECOND);
        assert_eq!(standing.trouble(20 * SECOND), Some(OriginTrouble::Reads(GONE)));
        assert_eq!(probe(20 * SECOND), None, "not at once again");
        assert_eq!(probe(20 * SECOND + ORIGIN_PROBE_INTERVAL), Some(0));
        standing.end_probe(&Ok(()), 22 * SECOND);
        assert_eq!(standing.trouble(22 * SECOND), None);
    }

    #[test]
    fn while_a_try_has_not_come_back_nothing_is_over_and_no_other_one_begins() {
        let standing = Standing::default();
        let probe = |now| standing.begin_probe(now, SIZE, 512);
        let (failed, long) = (2 * SECOND + ORIGIN_FAILING_SPAN, 99 * ORIGIN_TROUBLE_SPAN);
        for now in [2 * SECOND, failed] {
            standing.note_read(0, &Err(GONE), now);
            standing.writes.note(&Err(GONE), now);
        }
        let writes = Some(OriginTrouble::Writes(GONE));
        assert_eq!((probe(failed), standing.trouble(failed)), (Some(SIZE - 512), writes));
        assert_eq!((probe(long), standing.trouble(long)), (None, writes));
        assert!(standing.is_unsure(long));
        standing.writes.note(&Ok(()), long);
        assert_eq!(standing.trouble(long), Some(OriginTrouble::Reads(GONE)));
        standing.end_probe(&Ok(()), long);
        assert_eq!((standing.trouble(long), standing.is_unsure(long)), (None, false));

        // What it is over with then is what was known before, unless it has failed as well.
        standing.note_read(0, &Err(GONE), long);
        assert!(standing.is_unsure(long) && standing.trouble(long).is_none());
        assert_eq!(probe(long + SECOND), Some(SIZE - 512));
        standing.end_probe(&Err(GONE), 2 * long);
        assert_eq!(standing.trouble(2 * long), Some(OriginTrouble::Reads(GONE)));
        assert!(!standing.is_unsure(2 * long + ORIGIN_TROUBLE_SPAN));
    }
}

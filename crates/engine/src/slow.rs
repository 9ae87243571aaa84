//! Members that answer, and take much longer for it than the others: an SSD that throttles for heat, retries reads, or
//! is worn or full inside. A pool with copies is as slow as the slowest of its SSDs.
//!
//! * Some requests of each member are timed: hits, what is read to be checked, and appends to the log. All are spread
//!   over members without regard to which one it is, so what they take differs only by the device.
//! * Once a minute the 99th percentiles are compared. Nothing is done about a slow member but to tell: reads go to the
//!   shorter queue anyway where there is a choice ([`crate::copies`]), and one that does not answer is another
//!   matter ([`crate::deadline`]).

use std::cell::{Cell, RefCell};

use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{Nanos, Runtime};

use crate::core::Core;
use crate::event::EventKind;
use crate::ids::DeviceId;
use crate::pool::Pool;

/// Time over which requests are compared.
const WINDOW: Nanos = 60 * SECOND;
/// A member is slow whose 99th percentile is so many times that of its peers.
const SLOW_FACTOR: Nanos = 10;
/// One that was is no more if it is below so many times; in between it stays what it was.
const WELL_FACTOR: Nanos = 5;
/// What takes less is slow for nobody, whatever its peers do.
const SLOW_MIN: Nanos = 2 * MILLISECOND;
/// Timed requests in a window below which there is no 99th percentile to speak of.
const SAMPLES_MIN: u64 = 100;
/// One of so many requests is timed: a clock is not free.
const ONE_IN: u32 = 8;
/// Buckets for each doubling, so that one is at most a quarter wider than what is in it.
const PER_OCTAVE: usize = 4;
/// Doublings from a microsecond on, up to a minute.
const OCTAVES: usize = 26;

/// How long a member has taken in this window.
pub(crate) struct Spans {
    turn: Cell<u32>,
    counts: RefCell<[u32; OCTAVES * PER_OCTAVE]>,
    is_slow: Cell<bool>,
}

impl Default for Spans {
    fn default() -> Self {
        Spans {
            turn: Cell::default(),
            counts: RefCell::new([0; OCTAVES * PER_OCTAVE]),
            is_slow: Cell::default(),
        }
    }
}

/// The bucket of a span: the doubling above a microsecond, and the quarter of it.
fn bucket(span: Nanos) -> usize {
    let microseconds = (span / 1_000).max(1);
    let octave = microseconds.ilog2() as usize;
    // The two bits behind the highest one.
    let quarter = ((microseconds << 2) >> octave) as usize & (PER_OCTAVE - 1);
    (octave * PER_OCTAVE + quarter).min(OCTAVES * PER_OCTAVE - 1)
}

/// The shortest span that is in a later bucket.
fn end_of(bucket: usize) -> Nanos {
    let (octave, quarter) = (bucket / PER_OCTAVE, bucket % PER_OCTAVE);
    (((PER_OCTAVE + quarter + 1) as Nanos * 1_000) << octave) / PER_OCTAVE as Nanos
}

impl Spans {
    /// Whether the next request is to be timed.
    pub(crate) fn is_due(&self) -> bool {
        let turn = self.turn.get().wrapping_add(1);
        self.turn.set(turn);
        turn.is_multiple_of(ONE_IN)
    }

    /// The time, if the next request is to be timed.
    pub(crate) fn begin(&self, rt: &dyn Runtime) -> Option<Nanos> {
        self.is_due().then(|| rt.now())
    }

    /// Notes what has ended that [`Spans::begin`] has begun.
    pub(crate) fn end(&self, rt: &dyn Runtime, begun: Option<Nanos>) {
        if let Some(begun) = begun {
            self.record(rt.now() - begun);
        }
    }

    pub(crate) fn record(&self, span: Nanos) {
        self.counts.borrow_mut()[bucket(span)] += 1;
    }

    /// The 99th percentile of what was noted since the last call, to a quarter above it; `None` if that
    /// is too little.
    fn take(&self) -> Option<Nanos> {
        let counts = std::mem::replace(&mut *self.counts.borrow_mut(), [0; OCTAVES * PER_OCTAVE]);
        let all: u64 = counts.iter().map(|count| u64::from(*count)).sum();
        let mut above = all / 100;
        let place = counts.iter().rposition(|&count| {
            let is_it = u64::from(count) > above;
            above = above.saturating_sub(count.into());
            is_it
        });
        place.filter(|_| all >= SAMPLES_MIN).map(end_of)
    }
}

/// The median, or the lower one of two.
fn median(mut spans: Vec<Nanos>) -> Option<Nanos> {
    spans.sort_unstable();
    spans.get(spans.len().checked_sub(1)? / 2).copied()
}

/// Whether a member is slow that was or was not; these are 99th percentiles.
fn is_slow(own: Nanos, peers: Nanos, was: bool) -> bool {
    let factor = if was { WELL_FACTOR } else { SLOW_FACTOR };
    own >= SLOW_MIN && own >= factor * peers
}

impl Pool {
    /// Compares how long members take, if the last time was a minute ago, and tells of those that are slow. To be
    /// called every second or so.
    pub fn look_for_slow(&self) {
        let core = &self.core;
        let now = core.rt.now();
        if now - core.compared.get() >= WINDOW {
            core.compared.set(now);
            core.compare_members();
        }
    }

    /// Members that were slow in the last window with enough requests.
    pub fn slow_members(&self) -> Vec<DeviceId> {
        let slow = self.core.serving().filter(|(_, member)| member.spans.is_slow.get());
        slow.map(|(_, member)| member.id).collect()
    }
}

impl Core {
    fn compare_members(&self) {
        let taken: Vec<_> =
            self.serving().filter_map(|(_, member)| Some((member, member.spans.take()?))).collect();
        for (at, (member, own)) in taken.iter().enumerate() {
            let peers = taken.iter().enumerate().filter(|(other, _)| *other != at);
            let Some(peers) = median(peers.map(|(_, (_, span))| *span).collect()) else { continue };
            let was = member.spans.is_slow.get();
            let now = is_slow(*own, peers, was);
            member.spans.is_slow.set(now);
            let (id, own, peers) =
                (member.id, own / MILLISECOND, peers as f64 / MILLISECOND as f64);
            if now && !was {
                let what = format!(
                    "cache device {id} is slow: one request in a hundred has taken {own} ms and more for a minute, \
                     its peers took {peers:.1} ms for theirs"
                );
                self.member_event(EventKind::MemberSlow, id, what);
            } else if was && !now {
                let what = format!("cache device {id} is not slow any more");
                self.member_event(EventKind::MemberQuick, id, what);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_at_most_a_quarter_wide_and_none_is_left_out() {
        let mut last = 0;
        for microseconds in (1..5_000).chain((5_000..60_000_000).step_by(9_973)) {
            let span = microseconds * 1_000;
            let bucket = bucket(span);
            assert!(bucket >= last, "{microseconds} us");
            assert!(end_of(bucket) > span && end_of(bucket) <= span * 2, "{microseconds} us");
            assert!(
                microseconds < 4 || end_of(bucket) <= span / 4 * 5 + 1_250,
                "{microseconds} us"
            );
            last = bucket;
        }
        assert_eq!(bucket(Nanos::MAX), OCTAVES * PER_OCTAVE - 1);
    }

    #[test]
    fn one_in_a_hundred_makes_the_percentile() {
        let spans = Spans::default();
        (0..SAMPLES_MIN - 1).for_each(|_| spans.record(MILLISECOND));
        assert_eq!(spans.take(), None, "too few");
        (0..990).for_each(|_| spans.record(MILLISECOND));
        (0..10).for_each(|_| spans.record(SECOND));
        assert!(spans.take().unwrap() < 2 * MILLISECOND);
        (0..989).for_each(|_| spans.record(MILLISECOND));
        (0..11).for_each(|_| spans.record(SECOND));
        assert!(spans.take().unwrap() > SECOND);
        assert_eq!(spans.take(), None, "a new window");
    }

    #[test]
    fn slow_is_ten_times_the_peers_and_does_not_flap() {
        let ms = MILLISECOND;
        assert!(is_slow(30 * ms, 3 * ms, false) && !is_slow(29 * ms, 3 * ms, false));
        assert!(is_slow(15 * ms, 3 * ms, true) && !is_slow(14 * ms, 3 * ms, true));
        assert!(!is_slow(ms, ms / 100, false), "nobody minds");
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![9 * ms, ms]), Some(ms), "two that are slow have one that is not");
        assert_eq!(median(vec![9 * ms, ms, 2 * ms]), Some(2 * ms));
    }
}

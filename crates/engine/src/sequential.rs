//! Streams of requests that go through a volume from front to back: a backup, a scan, a copy, an upload.
//! Caching them helps nobody, for they do not come back before the pool has turned over, and it would push
//! out what does.
//!
//! * A request belongs to a stream if it begins where the stream's last one ended. Once a stream of reads is
//!   longer than the cutoff, what it misses is not populated, and what it hits is served and not counted as
//!   use. A request that is longer by itself is one, and counted as large instead.
//! * Streams of writes are told apart from those, and pass by only where the volume says so: the origin has
//!   to be waited for, and FLUSH waits for its flush. Such a write is a direct write as any other (INV-8,
//!   INV-11): what the log owes the origin or has as a whole is logged as ever.
//! * A volume remembers a fixed number of streams; a new one takes the place of the one that was not
//!   asked for the longest time, where each sector of a run counts as a request in its favour.

use std::cell::{Cell, RefCell};

use crate::ids::SECTOR_BYTES;
use crate::limits::{STREAM_REQUESTS_MAX, STREAMS_MAX};

/// What is remembered, by stream: three arrays, because each request goes through one or two of them.
#[derive(Debug)]
struct Table {
    /// Where it goes on, in bytes; [`NOWHERE`] where there is no stream.
    next: [u64; STREAMS_MAX],
    /// Bytes that followed each other.
    run: [u64; STREAMS_MAX],
    /// Up to which request it is remembered in any case.
    until: [u64; STREAMS_MAX],
}

/// No request begins here.
const NOWHERE: u64 = u64::MAX;

/// The streams of reads, or of writes, of one volume.
#[derive(Debug)]
pub struct Streams {
    all: RefCell<Table>,
    requests: Cell<u64>,
}

impl Default for Streams {
    fn default() -> Self {
        let none = [0; STREAMS_MAX];
        let all = Table { next: [NOWHERE; STREAMS_MAX], run: none, until: none };
        Self { all: RefCell::new(all), requests: Cell::new(0) }
    }
}

impl Streams {
    /// Notes a request of so many bytes; the bytes of its stream, its own included.
    pub fn note(&self, offset: u64, len: u64) -> u64 {
        let number = self.requests.get() + 1;
        self.requests.set(number);
        let mut all = self.all.borrow_mut();
        let Table { next, run, until } = &mut *all;
        let known = next.iter().position(|&at| at == offset);
        let place = known.unwrap_or_else(|| {
            let oldest = until.iter().copied().fold(u64::MAX, u64::min);
            until.iter().position(|&request| request == oldest).unwrap_or(0)
        });
        let bytes = if known.is_some() { run[place].saturating_add(len) } else { len };
        // A request behind the end of all volumes is refused later.
        next[place] = offset.saturating_add(len);
        run[place] = bytes;
        // A longer stream is missed for longer: random ones do not push it out.
        until[place] = number + (bytes / SECTOR_BYTES).min(STREAM_REQUESTS_MAX);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_told_apart_and_random_reads_are_none() {
        let streams = Streams::default();
        for step in 0..8 {
            assert_eq!(streams.note(step * 100, 100), (step + 1) * 100);
            assert_eq!(streams.note(5_000 + step * 10, 10), (step + 1) * 10);
            assert_eq!(streams.note(100_000 + step * 7_777, 4), 4);
        }
        assert_eq!(streams.note(0, 100), 100, "from the beginning again");
    }

    #[test]
    fn random_reads_do_not_push_a_stream_out() {
        let streams = Streams::default();
        for step in 0..8 {
            assert_eq!(streams.note(step << 20, 1 << 20), (step + 1) << 20);
            for i in 0..100 {
                streams.note((1 << 40) + step * 999 + i * 10_000, 4096);
            }
        }
    }

    #[test]
    fn the_stream_that_was_left_longest_ago_is_forgotten() {
        let streams = Streams::default();
        streams.note(0, 10);
        streams.note(1_000, 10);
        for other in 0..STREAMS_MAX as u64 - 2 {
            streams.note(10_000 + other * 1_000, 10);
        }
        assert_eq!(streams.note(10, 10), 20, "there was room for all");
        streams.note(1 << 40, 10);
        assert_eq!(streams.note(20, 10), 30);
        assert_eq!(streams.note(1_010, 10), 10, "its place was taken");
    }
}

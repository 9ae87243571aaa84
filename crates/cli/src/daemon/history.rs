//! What a pool did in the last five minutes, the last hour and the last day: for whoever asks how it is, not for a
//! monitor, which keeps a history of its own (`stats`).

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

use forebay_control::api::{Activity, OriginReads, Reads, Writes};
use forebay_device::runtime::{Nanos, SECOND};
use forebay_engine::Pool;
use forebay_engine::bypass::Reason;
use forebay_engine::counters::{LATENCY_BUCKETS, Latency, percentile_below_us};

/// The stretches of time.
const SPANS: [Nanos; 3] = [300 * SECOND, 3_600 * SECOND, 86_400 * SECOND];

/// Parts of a stretch: it is told as it is up to so small a part longer.
const PARTS: u64 = 12;

/// Counters of a pool, 900 bytes; when it is opened all are zero.
#[derive(Clone, Debug, Default)]
struct Counted {
    /// Parts of reads, but for those of streams that pass by.
    ram_hits: u64,
    hits: u64,
    partial_hits: u64,
    misses: u64,
    /// Parts of reads of such streams.
    stream_parts: u64,
    /// Writes of such streams, and those of them that went past the cache.
    stream_writes: u64,
    stream_writes_past: u64,
    /// Requests that went past the cache, by reason: reads and writes.
    past: [[u64; Reason::ALL.len()]; 2],
    /// Histograms of latencies: of reads, of writes, and of reads of origins.
    latencies: [[u64; LATENCY_BUCKETS]; 3],
}

impl Counted {
    fn of(pool: &Pool) -> Self {
        let (counters, (read, write)) = (pool.counters(), pool.latencies());
        let mut past = [[0; Reason::ALL.len()]; 2];
        for (reason, requests) in pool.bypass().iter() {
            past[0][reason as usize] = requests.read_requests.get();
            past[1][reason as usize] = requests.write_requests.get();
        }
        let [of_ram, hits, partial_hits, misses] = [
            &counters.read_stream_ram_hits,
            &counters.read_stream_hits,
            &counters.read_stream_partial_hits,
            &counters.read_stream_misses,
        ]
        .map(Cell::get);
        Self {
            ram_hits: counters.read_ram_hits.get().saturating_sub(of_ram),
            hits: counters.read_hits.get().saturating_sub(hits),
            partial_hits: counters.read_partial_hits.get().saturating_sub(partial_hits),
            misses: counters.read_misses.get().saturating_sub(misses),
            stream_parts: hits + partial_hits + misses,
            stream_writes: counters.write_stream_requests.get(),
            stream_writes_past: counters.write_stream_past_requests.get(),
            past,
            latencies: [read, write, pool.origin_read_latency()].map(Latency::buckets),
        }
    }

    /// What was added since, as the API has it.
    fn since(&self, before: &Self) -> (Reads, Writes, OriginReads) {
        let past = |kind: usize| {
            let all = Reason::ALL.into_iter().map(|reason| {
                let at = reason as usize;
                (reason.name().to_owned(), self.past[kind][at] - before.past[kind][at])
            });
            all.filter(|&(_, requests)| requests > 0).collect::<BTreeMap<_, _>>()
        };
        // Only what was answered is in there.
        let [read, written, from_origins] = [0, 1, 2].map(|kind: usize| {
            let (now, then) = (&self.latencies[kind], &before.latencies[kind]);
            std::array::from_fn::<u64, LATENCY_BUCKETS, _>(|i| now[i] - then[i])
        });
        let ram_hits = self.ram_hits - before.ram_hits;
        let hits = self.hits - before.hits;
        let reads = Reads {
            requests: read.iter().sum(),
            ram_hits,
            ssd_hits: hits.saturating_sub(ram_hits),
            partial_hits: self.partial_hits - before.partial_hits,
            misses: self.misses - before.misses,
            stream_parts: self.stream_parts - before.stream_parts,
            past: past(0),
            p50_below_us: percentile_below_us(&read, 50),
            p99_below_us: percentile_below_us(&read, 99),
        };
        let (requests, past) = (written.iter().sum::<u64>(), past(1));
        let stream_requests = self.stream_writes - before.stream_writes;
        let stream_past = self.stream_writes_past - before.stream_writes_past;
        let others_past = past.values().sum::<u64>().saturating_sub(stream_past);
        let writes = Writes {
            requests,
            stream_requests,
            // Some may have gone past and not be acknowledged yet.
            hits: requests.saturating_sub(stream_requests).saturating_sub(others_past),
            past,
            p50_below_us: percentile_below_us(&written, 50),
            p99_below_us: percentile_below_us(&written, 99),
        };
        let origin_reads = OriginReads {
            requests: from_origins.iter().sum(),
            p50_below_us: percentile_below_us(&from_origins, 50),
            p99_below_us: percentile_below_us(&from_origins, 99),
        };
        (reads, writes, origin_reads)
    }
}

/// Looks at a pool, oldest first: one is at least as old as the stretch, if the pool is.
#[derive(Debug, Default)]
struct Stretch(VecDeque<(Nanos, Counted)>);

impl Stretch {
    fn note(&mut self, span: Nanos, now: Nanos, counted: &Counted) {
        let due = self.0.back().is_none_or(|(at, _)| now.saturating_sub(*at) >= span / PARTS);
        if !due {
            return;
        }
        self.0.push_back((now, counted.clone()));
        while self.0.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= span) {
            self.0.pop_front();
        }
    }
}

/// See the head of the file.
#[derive(Debug, Default)]
pub(super) struct History([Stretch; SPANS.len()]);

impl History {
    /// Takes a look, every second or so.
    pub(super) fn note(&mut self, now: Nanos, pool: &Pool) {
        self.add(now, &Counted::of(pool));
    }

    fn add(&mut self, now: Nanos, counted: &Counted) {
        for (stretch, span) in self.0.iter_mut().zip(SPANS) {
            match stretch.0.is_empty() {
                // Opened since the last look.
                true => stretch.note(span, now, &Counted::default()),
                false => stretch.note(span, now, counted),
            }
        }
    }

    /// What the pool did in each of the stretches; of those that it has not been open for the first one alone.
    pub(super) fn read(&self, now: Nanos, pool: &Pool) -> Vec<Activity> {
        self.until(now, &Counted::of(pool))
    }

    fn until(&self, now: Nanos, counted: &Counted) -> Vec<Activity> {
        let mut all: Vec<Activity> = Vec::new();
        for (stretch, span) in self.0.iter().zip(SPANS) {
            let Some((at, before)) = stretch.0.front() else { continue };
            let covered_s = now.saturating_sub(*at) / SECOND;
            if all.last().is_some_and(|last| last.covered_s < last.span_s) {
                break;
            }
            let (reads, writes, origin_reads) = counted.since(before);
            all.push(Activity { span_s: span / SECOND, covered_s, reads, writes, origin_reads });
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60;

    fn counted(seconds: u64) -> Counted {
        let mut counted = Counted {
            ram_hits: seconds,
            hits: 3 * seconds,
            partial_hits: seconds / 10,
            misses: 2 * seconds,
            stream_parts: 7 * seconds,
            stream_writes: seconds,
            stream_writes_past: seconds,
            ..Counted::default()
        };
        counted.past[0][Reason::Sequential as usize] = seconds;
        counted.past[1][Reason::Mode as usize] = 2 * seconds;
        counted.latencies[0][7] = 90 * seconds;
        counted.latencies[0][9] = 10 * seconds;
        counted.latencies[1][5] = 5 * seconds;
        counted.latencies[2][13] = 2 * seconds;
        counted
    }

    /// One hit of RAM, two of SSDs and two misses each second, all of them of 20 requests.
    fn after(seconds: u64) -> (Vec<Activity>, History) {
        let mut history = History::default();
        for second in 0..=seconds {
            history.add(second * SECOND, &counted(second));
        }
        (history.until(seconds * SECOND, &counted(seconds)), history)
    }

    #[test]
    fn each_stretch_is_told_with_what_it_covers() {
        let spans = |seconds| {
            let all = after(seconds).0.into_iter();
            all.map(|it| (it.span_s, it.covered_s)).collect::<Vec<_>>()
        };
        assert_eq!(History::default().until(0, &counted(0)), Vec::new());
        assert_eq!(spans(10), [(300, 10)]);
        assert_eq!(spans(10 * MINUTE), [(300, 300), (3600, 600)]);
        assert_eq!(spans(10 * MINUTE + 7), [(300, 307), (3600, 607)]);
        let day = spans(30 * 60 * MINUTE + 11);
        assert_eq!(day, [(300, 311), (3600, 3611), (86_400, 86_411)]);
    }

    #[test]
    fn what_was_added_is_told_and_nothing_else() {
        let (all, history) = after(2 * 60 * MINUTE);
        let last = &all[0];
        let Reads { ram_hits, ssd_hits, partial_hits, misses, .. } = last.reads;
        assert_eq!((ram_hits, ssd_hits, partial_hits, misses), (300, 600, 30, 600));
        assert_eq!(last.reads.past, BTreeMap::from([("sequential".to_owned(), 300)]));
        assert_eq!((last.reads.p50_below_us, last.reads.p99_below_us), (Some(128), Some(512)));
        assert_eq!((last.reads.stream_parts, last.writes.requests), (2_100, 1_500));
        // Half of what went past was of streams.
        assert_eq!((last.writes.stream_requests, last.writes.hits), (300, 900));
        assert_eq!(last.writes.past, BTreeMap::from([("mode".to_owned(), 600)]));
        assert_eq!((last.writes.p50_below_us, last.writes.p99_below_us), (Some(32), Some(32)));
        assert_eq!(last.reads.requests, 30_000);
        let of_origin = &last.origin_reads;
        assert_eq!((of_origin.requests, of_origin.p50_below_us), (600, Some(8_192)));
        let nothing = counted(5).since(&counted(5));
        assert_eq!(nothing, Default::default());
        let looks = history.0.iter().map(|it| it.0.len());
        assert!(looks.max() <= Some(PARTS as usize + 2), "{:?}", history.0);
    }
}

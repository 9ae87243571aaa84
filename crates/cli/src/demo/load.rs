//! The demo's clients: workers that read and write 4 KiB at random places, one request each.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::real::reactor::Reactor;
use forebay_device::runtime::{Nanos, Runtime, SECOND};
use forebay_device::{BlockDevice, Buf, Data};
use forebay_engine::Volume;

use crate::flag::Flag;

/// Bytes of a request.
pub(crate) const REQUEST_BYTES: u64 = 4096;
/// Requests in flight.
pub(crate) const WORKERS: usize = 32;
/// Share of reads.
pub(crate) const READ_PERCENT: u64 = 70;

/// What the load runs against.
pub(crate) enum Target {
    /// A device as it is.
    Device(Rc<dyn BlockDevice>),
    /// A volume of a pool.
    Volume(Volume),
}

impl Target {
    fn size_bytes(&self) -> u64 {
        match self {
            Target::Device(device) => device.geometry().size_bytes,
            Target::Volume(volume) => volume.size_bytes(),
        }
    }

    async fn read(&self, offset: u64, buf: Buf) -> (Option<Buf>, Result<(), String>) {
        match self {
            Target::Device(device) => {
                let outcome = device.read(offset, buf).await;
                (outcome.buf, outcome.result.map_err(|error| error.to_string()))
            }
            Target::Volume(volume) => {
                let (buf, result) = volume.read(offset, buf).await;
                (Some(buf), result.map_err(|error| error.to_string()))
            }
        }
    }

    async fn write(&self, offset: u64, data: Data) -> Result<(), String> {
        match self {
            Target::Device(device) => {
                device.write(offset, data).done().await.map_err(|error| error.to_string())
            }
            Target::Volume(volume) => {
                volume.write(offset, data, false).await.map_err(|error| error.to_string())
            }
        }
    }
}

/// Sub-buckets per power of two: a percentile is at most 1/16 too high.
const MANTISSA_BITS: u32 = 4;
const SUB_BUCKETS: usize = 1 << MANTISSA_BITS;

/// Latencies, in buckets whose width grows with them.
#[derive(Clone)]
pub(crate) struct Histogram(Vec<u64>);

impl Default for Histogram {
    fn default() -> Self {
        Self(vec![0; 64 * SUB_BUCKETS])
    }
}

impl Histogram {
    fn record(&mut self, span: Nanos) {
        let span = span.max(SUB_BUCKETS as u64);
        let exponent = span.ilog2();
        let mantissa = (span >> (exponent - MANTISSA_BITS)) as usize % SUB_BUCKETS;
        self.0[exponent as usize * SUB_BUCKETS + mantissa] += 1;
    }

    fn since(&self, before: &Histogram) -> Histogram {
        Histogram(self.0.iter().zip(&before.0).map(|(now, then)| now - then).collect())
    }

    /// Number of latencies.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// What `percent` of the latencies do not exceed; `None` without any.
    pub(crate) fn percentile(&self, percent: f64) -> Option<Nanos> {
        let rank = ((self.count() as f64 * percent / 100.0).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.0.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        let exponent = (bucket / SUB_BUCKETS) as u32;
        let mantissa = (bucket % SUB_BUCKETS) as u64;
        Some((SUB_BUCKETS as u64 + mantissa + 1) << (exponent - MANTISSA_BITS))
    }
}

/// What the workers have done up to a moment, or between two.
#[derive(Clone, Default)]
pub(crate) struct Figures {
    /// The moment, or the span.
    pub(crate) time: Nanos,
    /// Latencies of reads.
    pub(crate) reads: Histogram,
    /// Latencies of writes.
    pub(crate) writes: Histogram,
}

impl Figures {
    /// What was done after `before`.
    pub(crate) fn since(&self, before: &Figures) -> Figures {
        Figures {
            time: self.time - before.time,
            reads: self.reads.since(&before.reads),
            writes: self.writes.since(&before.writes),
        }
    }

    /// Requests per second.
    pub(crate) fn iops(&self) -> f64 {
        let requests = self.reads.count() + self.writes.count();
        requests as f64 / (self.time.max(1) as f64 / SECOND as f64)
    }
}

struct Shared {
    reactor: Rc<Reactor>,
    target: Target,
    figures: RefCell<Figures>,
    error: RefCell<Option<String>>,
    stopping: Cell<bool>,
    live: Cell<usize>,
    ended: Flag,
}

/// Workers at work.
pub(crate) struct Load(Rc<Shared>);

impl Load {
    /// Starts [`WORKERS`] workers.
    pub(crate) fn start(reactor: &Rc<Reactor>, target: Target) -> Load {
        let shared = Rc::new(Shared {
            reactor: Rc::clone(reactor),
            target,
            figures: RefCell::default(),
            error: RefCell::default(),
            stopping: Cell::new(false),
            live: Cell::new(WORKERS),
            ended: Flag::default(),
        });
        for _ in 0..WORKERS {
            let (own, seed) = (Rc::clone(&shared), reactor.random());
            reactor.spawn(Box::pin(async move {
                if let Err(error) = own.work(seed).await {
                    own.error.borrow_mut().get_or_insert(error);
                    own.stopping.set(true);
                }
                own.live.set(own.live.get() - 1);
                if own.live.get() == 0 {
                    own.ended.raise();
                }
            }));
        }
        Load(shared)
    }

    /// All figures up to now.
    pub(crate) fn figures(&self) -> Figures {
        Figures { time: self.0.reactor.now(), ..self.0.figures.borrow().clone() }
    }

    /// The first error of a worker; all have stopped then.
    pub(crate) fn error(&self) -> Option<String> {
        self.0.error.borrow().clone()
    }

    /// Lets every worker end its request.
    pub(crate) async fn stop(self) {
        self.0.stopping.set(true);
        self.0.ended.wait().await;
    }
}

impl Shared {
    async fn work(&self, seed: u64) -> Result<(), String> {
        let mut state = seed;
        let mut next = move || {
            // SplitMix64, as the reactor's own.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        };
        let mut buf = Buf::new(REQUEST_BYTES as usize);
        buf.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&next().to_le_bytes()));
        let data = Buf::copy_of(&buf).freeze();
        let places = self.target.size_bytes() / REQUEST_BYTES;
        while !self.stopping.get() {
            let offset = next() % places * REQUEST_BYTES;
            let is_read = next() % 100 < READ_PERCENT;
            let started = self.reactor.now();
            let result = if is_read {
                let (back, result) = self.target.read(offset, buf).await;
                buf = back.unwrap_or_else(|| Buf::new(REQUEST_BYTES as usize));
                result.map_err(|error| format!("reading 4 KiB at {offset}: {error}"))
            } else {
                let result = self.target.write(offset, data.clone()).await;
                result.map_err(|error| format!("writing 4 KiB at {offset}: {error}"))
            };
            result?;
            let took = self.reactor.now() - started;
            let mut figures = self.figures.borrow_mut();
            if is_read { figures.reads.record(took) } else { figures.writes.record(took) }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_at_most_a_sixteenth_too_high() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|i| histogram.record(i * 1_000));
        assert_eq!(histogram.count(), 1000);
        for (percent, exact) in [(50.0, 500_000u64), (99.0, 990_000), (100.0, 1_000_000)] {
            let found = histogram.percentile(percent).unwrap();
            assert!((exact..=exact + exact / 16 + 1).contains(&found), "{percent}: {found}");
        }
        assert_eq!(Histogram::default().percentile(50.0), None);
    }

    #[test]
    fn a_window_is_the_difference_of_two_moments() {
        let mut before = Figures { time: SECOND, ..Figures::default() };
        before.reads.record(10_000);
        let mut after = before.clone();
        after.time = 3 * SECOND;
        (0..10).for_each(|_| after.writes.record(20_000));
        let window = after.since(&before);
        assert_eq!((window.reads.count(), window.writes.count()), (0, 10));
        assert!((window.iops() - 5.0).abs() < 1e-9);
    }
}

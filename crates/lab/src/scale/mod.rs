//! How costs grow with the size of a cache: the engine that ships, on modelled devices, with data of zeroes
//! of which nothing is kept.
//!
//! What makes a cache large is played apart, each with the rest left as it is:
//!
//! * [`Series::Bytes`]: bytes in long extents; pools of the product's own layout.
//! * [`Series::Segments`]: as many segments and shards as the size has, of 256 KiB instead of 32 MiB. What is done
//!   once for each segment comes 128 times as often; only in a full log is it divided by that again.
//! * [`Series::Scattered`]: entries of the index, each a single block that has no neighbour.
//! * [`Series::Volumes`]: volumes of one pool.
//! * [`Series::Reactors`]: pools side by side, each on a thread of its own as the product has them.
//!
//! Bytes, counts and virtual time are the same on every machine; processor time is this machine's.

mod play;
mod rig;

use forebay_device::Nanos;
use forebay_device::runtime::SECOND;
use forebay_engine::limits::{INDEX_BYTES_PER_GIB, INDEX_BYTES_PER_GIB_USUAL};

pub use play::{Step, play};

const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Bytes of a segment where there are as many as in a much larger cache: enough that what is measured does not
/// fill the smallest of these pools.
const SMALL_SEGMENT_BYTES: u64 = 256 << 10;

/// How much costs of a request may grow over a series.
pub const GROWTH_MAX: f64 = 2.0;

/// How long a start may take for each TiB after a clean stop; a smaller cache may take as long.
pub const CLEAN_PER_TIB: Nanos = SECOND;

/// The same after a crash.
pub const CRASH_PER_TIB: Nanos = 10 * SECOND;

/// What grows; see the head of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    /// Bytes in long extents.
    Bytes,
    /// Segments and shards.
    Segments,
    /// Single blocks.
    Scattered,
    /// Volumes.
    Volumes,
    /// Pools on threads of their own.
    Reactors,
}

impl Series {
    /// All, in the order in which they are shown.
    pub const ALL: [Self; 5] =
        [Self::Bytes, Self::Segments, Self::Scattered, Self::Volumes, Self::Reactors];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Segments => "segments",
            Self::Scattered => "scattered",
            Self::Volumes => "volumes",
            Self::Reactors => "reactors",
        }
    }

    /// What it is, and what is not as in a cache of that size.
    pub fn what(self) -> &'static str {
        match self {
            Self::Bytes => "data in extents of 1 MiB; nothing is smaller than it says",
            Self::Segments => {
                "segments and shards of a cache of that size; segments of 256 KiB instead of its own, so there is \
                 less data, and what a segment costs comes more often (in a full log, that is divided out)"
            }
            Self::Scattered => "single blocks, every second one; nothing is smaller than it says",
            Self::Volumes => "volumes of one pool of 4 GiB, 1 MiB extents",
            Self::Reactors => "pools of 1 GiB, each on a thread of its own, at the same time",
        }
    }
}

/// How data lies in volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// From front to back.
    Sequential,
    /// Every second block, brought in in no order.
    Scattered,
}

/// One pool of a series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Which series.
    pub series: Series,
    /// Bytes of the cache that it stands for.
    pub size_bytes: u64,
    /// Bytes of the cache device.
    pub pool_bytes: u64,
    /// Bytes of a segment; `None`: as the product has them.
    pub segment_bytes: Option<u32>,
    /// Bound of the index, by which the number of shards goes.
    pub index_memory_max: u64,
    /// Volumes.
    pub volumes: usize,
    /// Pools at the same time.
    pub reactors: usize,
    /// What they hold.
    pub content: Content,
}

/// Bytes of a segment where the product chooses: at least 512 of them, 32 MiB at the most.
fn segment_bytes_of(size_bytes: u64) -> u64 {
    (size_bytes / 512).next_power_of_two().min(32 << 20)
}

fn segments_of(size_bytes: u64) -> u64 {
    size_bytes / segment_bytes_of(size_bytes)
}

impl Point {
    fn new(series: Series, size_bytes: u64) -> Self {
        Self {
            series,
            size_bytes,
            pool_bytes: size_bytes,
            segment_bytes: None,
            index_memory_max: size_bytes.div_ceil(GIB) * INDEX_BYTES_PER_GIB,
            volumes: 1,
            reactors: 1,
            content: Content::Sequential,
        }
    }

    fn bytes(size_bytes: u64) -> Self {
        Self::new(Series::Bytes, size_bytes)
    }

    fn segments(size_bytes: u64) -> Self {
        let segments = segments_of(size_bytes);
        Self {
            // Roots and claims are in front of the segments.
            pool_bytes: segments * SMALL_SEGMENT_BYTES + (16 << 20),
            segment_bytes: Some(SMALL_SEGMENT_BYTES as u32),
            ..Self::new(Series::Segments, size_bytes)
        }
    }

    fn scattered(size_bytes: u64) -> Self {
        let content = Content::Scattered;
        // All of it is filled, and what is scattered takes as much as it may: with room for more.
        let index_memory_max = (size_bytes.div_ceil(GIB) * INDEX_BYTES_PER_GIB) * 3;
        Self { content, index_memory_max, ..Self::new(Series::Scattered, size_bytes) }
    }

    fn volumes(volumes: usize) -> Self {
        Self { volumes, ..Self::new(Series::Volumes, 4 * GIB) }
    }

    fn reactors(reactors: usize) -> Self {
        Self { reactors, ..Self::new(Series::Reactors, GIB) }
    }

    /// Blocks that are brought in before anything is measured: half of what the pool has, and less where segments
    /// are small and a quarter of them is headers, so that nothing is reclaimed yet.
    pub fn blocks(&self) -> u64 {
        let eighths = if self.segment_bytes.is_some() { 3 } else { 4 };
        self.pool_bytes / 4096 / 8 * eighths
    }

    /// What grows, for people: the number of what the series is named after, or bytes.
    pub fn step(&self) -> u64 {
        match self.series {
            Series::Bytes | Series::Segments | Series::Scattered => self.size_bytes,
            Series::Volumes => self.volumes as u64,
            Series::Reactors => self.reactors as u64,
        }
    }

    /// About how long it takes, in no unit.
    fn work(&self) -> u64 {
        let block = match (self.series, self.content) {
            (Series::Segments, _) => 2,
            (_, Content::Sequential) => 1,
            (_, Content::Scattered) => 16,
        };
        self.pool_bytes / 4096 * block * self.reactors as u64 + (1 << 20)
    }

    /// Memory that it takes at the most, in bytes: headers and footers on the model, its tables and the index. The usual
    /// run was seen to take 1.1 GB, for which this says 1.3.
    fn memory(&self) -> u64 {
        let per_block = match (self.series, self.content) {
            (Series::Segments, _) => 100,
            (_, Content::Sequential) => 16,
            (_, Content::Scattered) => 64,
        };
        (self.pool_bytes / 4096 * per_block + (64 << 20)) * self.reactors as u64
    }
}

/// How much is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// What a test has time for.
    Tiny,
    /// A few minutes.
    Usual,
    /// Whatever a large machine holds.
    Full,
}

/// The points of a series from small to large; reactors only as many as there are cores.
pub fn points(series: Series, extent: Extent, cores: usize) -> Vec<Point> {
    let pick = |tiny: &[u64], usual: &[u64], full: &[u64]| match extent {
        Extent::Tiny => tiny.to_vec(),
        Extent::Usual => usual.to_vec(),
        Extent::Full => full.to_vec(),
    };
    match series {
        Series::Bytes => pick(
            &[GIB / 2, 2 * GIB],
            &[GIB, 8 * GIB, 64 * GIB],
            &[GIB, 8 * GIB, 64 * GIB, 512 * GIB, 2 * TIB],
        )
        .into_iter()
        .map(Point::bytes)
        .collect(),
        Series::Segments => pick(
            &[GIB, 64 * GIB],
            &[GIB, 64 * GIB, TIB, 4 * TIB],
            &[GIB, 64 * GIB, TIB, 8 * TIB, 32 * TIB],
        )
        .into_iter()
        .map(Point::segments)
        .collect(),
        Series::Scattered => {
            pick(&[GIB / 2, GIB], &[GIB, 4 * GIB, 16 * GIB], &[GIB, 4 * GIB, 16 * GIB, 64 * GIB])
                .into_iter()
                .map(Point::scattered)
                .collect()
        }
        Series::Volumes => pick(&[1, 4], &[1, 8, 64], &[1, 8, 64])
            .into_iter()
            .map(|volumes| Point::volumes(volumes as usize))
            .collect(),
        Series::Reactors => pick(&[1, 2], &[1, 2, 4, 8, 16], &[1, 2, 4, 8, 16])
            .into_iter()
            .filter(|&reactors| reactors as usize <= cores.max(1))
            .map(|reactors| Point::reactors(reactors as usize))
            .collect(),
    }
}

/// Memory that a run needs: that of the largest series, whose pools are all there at a time.
pub fn memory(series: &[Series], extent: Extent, cores: usize) -> u64 {
    let of = |&series: &Series| points(series, extent, cores).iter().map(Point::memory).sum();
    series.iter().map(of).max().unwrap_or(0)
}

/// What is the same on every machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Segments of the pool.
    pub segments: u64,
    /// Shards of its index.
    pub shards: u64,
    /// Blocks in the cache.
    pub blocks: u64,
    /// Memory of the index, by the engine's own account, with its policy's.
    pub index_bytes: u64,
    /// Bytes that a clean stop wrote: a whole checkpoint, and the footers of open sets.
    pub stop_bytes: u64,
    /// Virtual time of that.
    pub stop_ns: Nanos,
    /// Virtual time of the start behind it.
    pub clean_ns: Nanos,
    /// Bytes that it read.
    pub clean_bytes: u64,
    /// Virtual time of the start behind a crash, with nearly as much in the log as a checkpoint is due for.
    pub crash_ns: Nanos,
    /// Bytes that it read.
    pub crash_bytes: u64,
    /// Records that it replayed.
    pub crash_records: u64,
    /// Blocks that were in the cache before the crash and not behind it.
    pub crash_lost: u64,
}

/// Processor time on this machine, in nanoseconds; of requests, the median of the rounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timed {
    /// A 4 KiB read of what is cached, beyond the modelled device.
    pub hit: f64,
    /// A 4 KiB write, with room in the log; with what the modelled device takes.
    pub write: f64,
    /// A block that is brought to an origin.
    pub destage: f64,
    /// A 4 KiB read of what is not cached, and is then.
    pub miss: f64,
    /// A 4 KiB write in a full log, with what makes room for it; `None` where that is not played. See
    /// [`Series::Segments`].
    pub full: Option<f64>,
    /// A second in which nobody asks for anything.
    pub idle: f64,
    /// A clean stop.
    pub stop: f64,
    /// The start behind it.
    pub clean: f64,
    /// The start behind a crash.
    pub crash: f64,
}

/// What a point came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The point.
    pub point: Point,
    /// The same everywhere.
    pub counted: Counted,
    /// This machine's.
    pub timed: Timed,
}

/// A bar of a series, and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// What it is about.
    pub what: &'static str,
    /// The figure that counts: the largest quotient to what is allowed, or the growth.
    pub figure: f64,
    /// What it must stay below.
    pub bar: f64,
}

impl Judged {
    /// Whether it does.
    pub fn is_met(&self) -> bool {
        self.figure < self.bar
    }
}

/// A start's time over what a cache of that size may take.
fn of_allowed(point: &Point, took: f64, per_tib: Nanos) -> f64 {
    took / (per_tib as f64 * (point.size_bytes as f64 / TIB as f64).max(1.0))
}

/// A column's last figure over its first one.
pub fn growth(outcomes: &[Outcome], of: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
    let (first, last) = (of(outcomes.first()?)?, of(outcomes.last()?)?);
    (first > 0.0 && outcomes.len() > 1).then(|| last / first)
}

/// A figure of an outcome, where it was measured.
pub type Figure = fn(&Outcome) -> Option<f64>;

/// The costs of a request.
pub const REQUESTS: [(&str, Figure); 5] = [
    ("hit", |it| Some(it.timed.hit)),
    ("write", |it| Some(it.timed.write)),
    ("write, full log", |it| it.timed.full),
    ("destaged block", |it| Some(it.timed.destage)),
    ("populated miss", |it| Some(it.timed.miss)),
];

/// The bars of one series.
pub fn judge(outcomes: &[Outcome]) -> Vec<Judged> {
    let mut judged: Vec<_> = REQUESTS
        .iter()
        .filter_map(|&(what, of)| {
            Some(Judged { what, figure: growth(outcomes, of)?, bar: GROWTH_MAX })
        })
        .collect();
    let worst = |of: &dyn Fn(&Outcome) -> f64| outcomes.iter().map(of).fold(0.0, f64::max);
    let clean = worst(&|it| {
        of_allowed(&it.point, it.counted.clean_ns as f64 + it.timed.clean, CLEAN_PER_TIB)
    });
    judged.push(Judged { what: "start after a clean stop", figure: clean, bar: 1.0 });
    let crash = worst(&|it| {
        of_allowed(&it.point, it.counted.crash_ns as f64 + it.timed.crash, CRASH_PER_TIB)
    });
    judged.push(Judged { what: "start after a crash", figure: crash, bar: 1.0 });
    let series = outcomes.first().map(|it| it.point.series);
    let bound = match series {
        Some(Series::Bytes) => Some(INDEX_BYTES_PER_GIB_USUAL),
        Some(Series::Scattered) => Some(INDEX_BYTES_PER_GIB),
        _ => None,
    };
    if let Some(bound) = bound {
        let figure = worst(&|it| index_per_gib(it) / bound as f64);
        judged.push(Judged { what: "memory of the index", figure, bar: 1.0 });
    }
    judged
}

/// Bytes of the index for each GiB that is cached.
pub fn index_per_gib(outcome: &Outcome) -> f64 {
    outcome.counted.index_bytes as f64 * GIB as f64 / (outcome.counted.blocks as f64 * 4096.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_device::runtime::MICROSECOND;

    /// What is the same everywhere, of a run in which time stands still.
    fn counted(series: Series) -> Vec<Outcome> {
        let clock = || std::time::Duration::ZERO;
        let mut outcomes = play(&[series], Extent::Tiny, 1, &clock, &mut |_| ()).unwrap();
        outcomes.pop().unwrap()
    }

    #[test]
    fn a_run_counts_the_same_again_and_every_block_that_was_brought_in() {
        let (once, again) = (counted(Series::Bytes), counted(Series::Bytes));
        assert_eq!(once, again);
        for Outcome { point, counted, .. } in &once {
            assert_eq!(counted.blocks, point.blocks());
            assert_eq!((counted.segments, counted.crash_lost), (511, 0));
            assert!(counted.crash_records > 0, "the crash left something to be replayed");
        }
        let cached = growth(&once, |it| Some(it.counted.blocks as f64)).unwrap();
        let index = growth(&once, |it| Some(it.counted.index_bytes as f64)).unwrap();
        assert!(cached == 4.0 && index < 4.5, "{index}");
    }

    #[test]
    fn the_index_is_as_small_as_promised_however_large_the_cache_is() {
        for series in [Series::Bytes, Series::Scattered] {
            let judged = judge(&counted(series));
            let memory = judged.iter().find(|it| it.what == "memory of the index").unwrap();
            assert!(memory.is_met() && memory.figure > 0.1, "{memory:?}");
        }
    }

    #[test]
    fn a_start_does_not_wait_for_each_segment_by_itself() {
        let outcomes = counted(Series::Segments);
        let [small, large] = [&outcomes[0].counted, &outcomes[1].counted];
        let segments = large.segments - small.segments;
        for (more, what) in [
            (large.clean_ns - small.clean_ns, "clean"),
            (large.crash_ns - small.crash_ns, "after a crash"),
        ] {
            // A read by itself is 77 us; two blocks of each segment at 1 GB/s are 8.
            assert!(more < segments * 20 * MICROSECOND, "{what}: {more} ns for {segments}");
        }
    }

    #[test]
    fn a_figure_at_its_bar_is_missed() {
        let judged = |figure| Judged { what: "", figure, bar: GROWTH_MAX };
        assert!(judged(1.99).is_met() && !judged(GROWTH_MAX).is_met());
        let point = Point::segments(32 * TIB);
        assert!(of_allowed(&point, 32.0 * SECOND as f64, CLEAN_PER_TIB) == 1.0);
        assert!(of_allowed(&Point::bytes(GIB), SECOND as f64, CLEAN_PER_TIB) == 1.0);
        assert_eq!(segments_of(32 * TIB), 1 << 20);
        assert_eq!(segments_of(GIB), 512);
    }

    #[test]
    fn there_are_as_many_reactors_as_cores() {
        let reactors = |cores| points(Series::Reactors, Extent::Usual, cores).len();
        assert_eq!((reactors(1), reactors(6), reactors(64)), (1, 3, 5));
    }
}

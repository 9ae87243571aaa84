//! The measurements of published papers, replayed: the engine that ships, in virtual time, on models of the
//! papers' disks and SSDs, beside what the papers report.
//!
//! * One table for each paper (`qsan.rs`, `synology.rs`, `review.rs`, `blog.rs`, `qnap.rs`): what it says of a test, and its figures. What it
//!   does not say is an assumption, which stands beside the test and is the same for all of a paper.
//! * Disks are the calibrated sets of [`HddParameters`](forebay_device::model::hdd::HddParameters), SSDs the
//!   data sheets' (`drives.rs`). Nothing is fitted to a test.
//! * Every request is charged what the engine's code takes of a processor ([`Costs::measured`]).
//! * Sizes may be scaled down, those of the disks' tracks too; times are scaled back. The disks without
//!   a cache are always those of the paper.

pub mod array;
pub mod blog;
pub mod drives;
pub mod html;
mod play;
pub mod qnap;
pub mod qsan;
pub mod review;
pub mod synology;

use forebay_device::model::ssd::SsdParameters;
use forebay_device::{Nanos, runtime};
use forebay_engine::{Mode, Populate};

use self::array::{Pattern, System};
pub use self::play::{Outcome, Point, play, play_all};
use crate::scene::Result;

/// A test and what became of it; the error is for a person.
pub type Played = (Test, Result<Outcome>);

const GB: u64 = 1_000_000_000;

/// A minute in nanoseconds, for the papers' figures.
const MINUTE: f64 = 60.0 * runtime::SECOND as f64;

/// Bytes that stand for one request of a test that only reads, in estimates.
const BLOCK_OF_A_READ: u64 = 16 << 10;

/// Smallest part of the papers' sizes: below it 100 GB are too little for a pool.
pub const SCALE_MAX: u64 = 128;

/// The usual part of the papers' sizes, as its inverse.
pub const SCALE_DEFAULT: u64 = 16;

/// A cache as a paper has it, in our terms.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The SSD.
    pub drive: SsdParameters,
    /// How many for each engine.
    pub ssds: usize,
    /// Bytes of each.
    pub ssd_bytes: u64,
    /// Copies of dirty data.
    pub dirty_copies: u8,
    /// Copies of clean data.
    pub clean_copies: u8,
    /// Bytes of the tier in RAM.
    pub ram_bytes: u64,
    /// What is cached.
    pub mode: Mode,
    /// From which access on.
    pub populate: Populate,
    /// Bytes that a miss brings in.
    pub cache_block_bytes: u32,
    /// In percent.
    pub write_amplification_max_percent: u16,
    /// Whether streams of writes go past it.
    pub sequential_writes: bool,
}

impl Cache {
    /// Everything as often as there are SSDs for it, up to twice, and else what the product does by default.
    fn of(drive: SsdParameters, ssds: usize, gigabytes: u64) -> Self {
        let copies = if ssds > 1 { 2 } else { 1 };
        Self {
            drive,
            ssds,
            ssd_bytes: gigabytes * GB,
            dirty_copies: copies,
            clean_copies: copies,
            ram_bytes: 0,
            mode: Mode::Writeback,
            populate: Populate::Auto,
            cache_block_bytes: 64 << 10,
            write_amplification_max_percent: 150,
            sequential_writes: false,
        }
    }
}

/// What a paper reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct Published {
    /// Requests per second without a cache and, once it is warm, with it; `None` if they are only in drawings.
    pub rates: Option<(f64, f64)>,
    /// How many times as much that is.
    pub factor: Option<f64>,
    /// How long that took.
    pub warm_up: Option<Nanos>,
}

/// What we want to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// The paper's factor, in at most the paper's time.
    Paper,
    /// So many requests per second.
    AtLeast(f64),
    /// Nothing: the test stands beside another one that has a bar.
    Shown,
}

/// One test of a paper: one line of ours.
#[derive(Clone, Debug)]
pub struct Test {
    /// The row that it belongs to.
    pub row: &'static str,
    /// Its own name.
    pub name: &'static str,
    /// What is done, on what.
    pub what: String,
    /// Where the figures stand.
    pub source: &'static str,
    /// The disks; each group of them has an engine of its own.
    pub system: System,
    /// The cache of each engine.
    pub cache: Cache,
    /// Volumes of each engine, which share its span and its queue.
    pub volumes: usize,
    /// What is done to each engine.
    pub pattern: Pattern,
    /// What is done beside it, to another volume of the same engine; its requests are in no figure.
    pub beside: Option<Pattern>,
    /// Whether the cache can hold the span.
    pub fits: bool,
    /// Whether the span is in the cache before anything counts.
    pub prefilled: bool,
    /// How often its own requests write the span over at the most until the log is full, and, if it writes nothing to
    /// the cache, until the figures are final.
    pub laps: u64,
    /// What the paper reports.
    pub published: Published,
    /// What we want.
    pub bar: Bar,
    /// What the paper does not say.
    pub assumed: &'static [&'static str],
    /// Why the bar is missed, if it is.
    pub cause: &'static str,
}

impl Test {
    /// Bytes that its requests write to at the papers' sizes, each once.
    pub fn written_bytes(&self) -> u64 {
        let patterns = [Some(self.pattern), self.beside].into_iter().flatten();
        let written = patterns.filter(|pattern| pattern.read_percent < 100);
        written.map(|pattern| pattern.span_bytes).sum()
    }

    /// Whether what it writes goes to the cache.
    pub fn fills_the_log(&self) -> bool {
        self.cache.mode.writes_back() && self.written_bytes() > 0 && !self.cache.sequential_writes
    }

    /// About how long it takes beside others: requests at the papers' sizes.
    pub fn work(&self) -> u64 {
        let log = self.cache.ssd_bytes * self.cache.ssds as u64;
        let log = log / u64::from(self.cache.dirty_copies.max(1));
        // What is only read is a few seconds of hits, whatever the span.
        let of = |pattern: Pattern| match pattern.read_percent {
            100 => pattern.span_bytes / BLOCK_OF_A_READ,
            reads => {
                // What makes the log older takes hardly any.
                let bytes = (self.laps * pattern.span_bytes).min(log * 2) + pattern.span_bytes;
                bytes / pattern.block_bytes * 100 / (100 - reads)
            }
        };
        (of(self.pattern) + self.beside.map_or(0, of)) * self.system.groups
    }
}

/// What became of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Cleared.
    Met,
    /// Not cleared.
    Missed,
    /// There is none.
    None,
    /// It could not be played.
    Failed,
}

impl Verdict {
    /// In a table.
    pub fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::None => "-",
            Self::Failed => "failed",
        }
    }
}

impl Published {
    /// Both rates, and what follows from them.
    pub fn rates(without: f64, with: f64) -> Self {
        Self { rates: Some((without, with)), factor: Some(with / without), warm_up: None }
    }
}

impl Bar {
    /// In words; the figure is the test's.
    pub fn text(self, published: &Published) -> String {
        match self {
            Self::Paper => {
                let factor = published.factor.map(|factor| format!("factor >= {factor:.1}"));
                let warm_up = published
                    .warm_up
                    .map(|span| format!("warm in {:.1} min", span as f64 / MINUTE));
                [factor, warm_up].into_iter().flatten().collect::<Vec<_>>().join(", ")
            }
            Self::AtLeast(iops) => format!(">= {iops:.0}/s"),
            Self::Shown => "-".to_owned(),
        }
    }

    /// What an outcome makes of it.
    pub fn judge(self, published: &Published, outcome: &Result<Outcome>) -> Verdict {
        let Ok(outcome) = outcome else { return Verdict::Failed };
        let is_met = match self {
            Self::Shown => return Verdict::None,
            Self::AtLeast(iops) => outcome.with >= iops,
            Self::Paper => {
                let in_time = published
                    .warm_up
                    .is_none_or(|limit| outcome.warm_up.is_some_and(|took| took <= limit));
                published.factor.is_none_or(|least| outcome.factor() >= least) && in_time
            }
        };
        if is_met { Verdict::Met } else { Verdict::Missed }
    }
}

/// All tests, in the order in which they are shown.
pub fn all() -> Vec<Test> {
    let mut all = synology::tests();
    all.extend(qsan::tests());
    all.extend(review::tests());
    all.extend(blog::tests());
    all.extend(qnap::tests());
    all
}

/// The names of all rows, in the same order.
pub fn rows() -> Vec<&'static str> {
    let mut rows: Vec<_> = all().iter().map(|test| test.row).collect();
    rows.dedup();
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(without: f64, with: f64, warm_up: Option<Nanos>) -> Result<Outcome> {
        let (hit_ratio, write_amplification, cpu_share) = (1.0, 1.0, 0.1);
        let (curve, requests, counted_from) = (Vec::new(), 1, 0);
        Ok(Outcome {
            without,
            with,
            warm_up,
            counted_from,
            curve,
            hit_ratio,
            write_amplification,
            cpu_share,
            requests,
        })
    }

    #[test]
    fn a_bar_is_missed_by_the_factor_or_by_the_warm_up() {
        let published = Published { warm_up: Some(60), ..Published::rates(100.0, 1_000.0) };
        let judge = |bar: Bar, outcome| bar.judge(&published, &outcome);
        assert_eq!(judge(Bar::Paper, outcome(50.0, 500.0, Some(60))), Verdict::Met);
        assert_eq!(judge(Bar::Paper, outcome(200.0, 1_900.0, Some(60))), Verdict::Missed);
        assert_eq!(judge(Bar::Paper, outcome(50.0, 500.0, Some(61))), Verdict::Missed);
        assert_eq!(judge(Bar::Paper, outcome(50.0, 500.0, None)), Verdict::Missed);
        assert_eq!(judge(Bar::AtLeast(500.0), outcome(50.0, 499.0, None)), Verdict::Missed);
        assert_eq!(judge(Bar::AtLeast(500.0), outcome(50.0, 500.0, None)), Verdict::Met);
        assert_eq!(judge(Bar::Shown, outcome(50.0, 1.0, None)), Verdict::None);
        assert_eq!(judge(Bar::Shown, Err("no room".to_owned())), Verdict::Failed);
    }

    #[test]
    fn names_are_the_rows_and_nobody_has_anothers() {
        let all = all();
        let mut names: Vec<_> = all.iter().map(|test| test.name).collect();
        assert!(all.iter().all(|test| test.name.starts_with(test.row)));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
        // A row is one drawing, so its tests stand together.
        let mut rows = rows();
        let count = rows.len();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), count);
    }
}

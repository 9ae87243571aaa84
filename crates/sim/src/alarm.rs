//! Whether the simulator notices: each planted bug has to be caught within a number of seeds.

use std::ops::Range;

use crate::jobs::alone;
use crate::runner::{Options, run_seed};
use crate::subject::Subject;

/// Seeds within which each bug has to be caught.
pub const SEEDS_MAX: u64 = 500;

/// Seeds that caught a bug when this was written: tried first, so that the usual answer is quick.
/// A change of the swarm or of the schedule moves them; then the search finds the new ones, and
/// `--alarm` prints what belongs here.
const KNOWN: &[(&str, u64)] = &[
    ("flush-skips-second-member", 111),
    ("segment-reused-before-root", 47),
    ("population-after-write", 1),
    ("tombstone-forgotten", 47),
    ("torn-record-adopted", 20),
    ("reclaim-without-origin-flush", 40),
    ("footer-before-flush", 20),
    ("destage-unflushed", 244),
    ("destage-overlapping", 47),
    ("watermark-over-inflight", 67),
    ("provisional-taken-for-clean", 57),
    ("range-lock-skipped", 20),
    ("root-before-images", 838),
    ("flush-acknowledged-early", 117),
    ("tombstone-not-durable", 57),
    ("remote-hit-unpinned", 67),
    ("open-sets-believed", 116),
    ("failed-member-kept", 22),
    ("ram-frame-survives-write", 3),
    ("ram-fill-overtaken", 27),
    ("healed-from-bad-copy", 96),
    ("loss-not-marked", 25),
    ("damage-not-lost", 1),
    ("claim-overlooked", 52),
];

/// How a bug was caught.
pub struct Caught {
    /// By this seed.
    pub seed: u64,
    /// After so many seeds.
    pub tried: u64,
    /// By this failure.
    pub failure: String,
}

/// Looks for the first seed that catches `bug`, a known one first. `fresh` ignores what is known.
pub fn search<S: Subject>(bug: &str, seeds: Range<u64>, fresh: bool) -> Option<Caught> {
    let options = Options { bug: Some(bug.into()), ..Options::default() };
    let known = KNOWN.iter().filter(|(name, _)| *name == bug && !fresh).map(|(_, seed)| *seed);
    for (tried, seed) in (1..).zip(known.chain(seeds)) {
        let failure = match alone(|| run_seed::<S>(seed, &options)) {
            Ok(Ok(_)) => continue,
            Ok(Err(failure)) => failure.0,
            Err(panic) => format!("panic: {panic}"),
        };
        // A seed that fails without the bug says nothing about it.
        if let Ok(Ok(_)) = alone(|| run_seed::<S>(seed, &Options::default())) {
            return Some(Caught { seed, tried, failure });
        }
    }
    None
}

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
    ("flush-skips-second-member", 39),
    ("segment-reused-before-root", 1),
    ("let-go-still-named", 196),
    ("opened-since-believed", 34),
    ("population-after-write", 5),
    ("tombstone-forgotten", 1),
    ("torn-record-adopted", 16),
    ("reclaim-without-origin-flush", 27),
    ("footer-before-flush", 19),
    ("destage-unflushed", 90),
    ("destage-overlapping", 3),
    ("watermark-over-inflight", 23),
    ("provisional-taken-for-clean", 27),
    ("range-lock-skipped", 1),
    ("root-before-images", 54),
    ("flush-acknowledged-early", 6),
    ("tombstone-not-durable", 61),
    ("remote-hit-unpinned", 50),
    ("open-sets-believed", 475),
    ("failed-member-kept", 6),
    ("ram-frame-survives-write", 3),
    ("ram-fill-overtaken", 27),
    ("healed-from-bad-copy", 14),
    ("loss-not-marked", 26),
    ("damage-not-lost", 14),
    ("claim-overlooked", 6),
    ("older-copy-believed", 29),
    ("durable-append-volatile", 149),
    ("noted-while-dirty", 23),
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

/// Looks for the first seed that catches `bug`, a known one first, if that is within the bound.
/// `fresh` ignores what is known.
pub fn search<S: Subject>(bug: &str, seeds: Range<u64>, fresh: bool) -> Option<Caught> {
    search_among::<S>(KNOWN, bug, seeds, fresh)
}

fn search_among<S: Subject>(
    known: &[(&str, u64)],
    bug: &str,
    seeds: Range<u64>,
    fresh: bool,
) -> Option<Caught> {
    let options = Options { bug: Some(bug.into()), ..Options::default() };
    let is_known = |(name, seed): &&(&str, u64)| *name == bug && *seed < SEEDS_MAX && !fresh;
    let known = known.iter().filter(is_known).map(|(_, seed)| *seed);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passthrough::Passthrough;

    #[test]
    fn every_known_seed_is_within_the_bound() {
        let late: Vec<_> = KNOWN.iter().filter(|(_, seed)| *seed >= SEEDS_MAX).collect();
        assert!(late.is_empty(), "{late:?}");
    }

    #[test]
    fn a_known_seed_beyond_the_bound_catches_nothing() {
        let bug = Passthrough::BUGS[0];
        let catches = |seed: &u64| {
            let planted = Options { bug: Some(bug.into()), ..Options::default() };
            run_seed::<Passthrough>(*seed, &planted).is_err()
                && run_seed::<Passthrough>(*seed, &Options::default()).is_ok()
        };
        let seed = (SEEDS_MAX..).find(catches).unwrap_or_default();
        let found = search_among::<Passthrough>(&[(bug, seed)], bug, 0..0, false);
        assert!(found.is_none(), "seed {seed} counts");
    }
}

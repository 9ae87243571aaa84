//! What a range of seeds reaches: a simulation proves nothing about what it never does.

use std::collections::BTreeMap;
use std::fmt;

/// What has to happen, how often in one seed to count, and in what percentage of seeds at least.
/// About half of what 500 seeds showed when the row was written, so that a change of the swarm or
/// of the engine that makes something rare does not go unnoticed.
const EXPECTED: &[(&str, u64, u64)] = &[
    ("across a stripe", 1, 12),
    ("into the uncached tail", 1, 7),
    ("finer than the origin's sectors", 1, 15),
    ("laps", 2, 35),
    ("segment reused", 1, 25),
    ("move_blocks", 1, 15),
    ("dirty run moved", 1, 1),
    ("log: durable append", 1, 2),
    ("clean: noted by itself", 1, 6),
    ("evict_blocks", 1, 25),
    ("throttled_writes", 1, 10),
    ("throttle_delay_ns", 1, 10),
    ("space of a volume changed", 1, 9),
    ("write waits for its volume's space", 1, 5),
    ("limit: clean data given up", 1, 9),
    ("past the cache: limit", 1, 8),
    ("destaged from a set that was emptied meanwhile", 1, 7),
    ("write kept apart: rewritten", 1, 6),
    ("write to main", 1, 6),
    ("past the cache: sequential", 1, 20),
    ("past the cache: large", 1, 18),
    ("write around the log: stream", 1, 3),
    ("writes of a stream joined", 1, 1),
    ("populate_voided", 1, 20),
    ("provisional mapped", 1, 10),
    ("range lock waited", 1, 20),
    ("tombstone", 1, 20),
    ("zero extent", 1, 25),
    ("read from RAM", 1, 16),
    ("RAM: filled from the log", 1, 12),
    ("RAM: filled from the origin", 1, 24),
    ("RAM: not filled, overtaken", 1, 4),
    ("RAM: block handed to the log", 1, 20),
    ("RAM tier: size changed", 1, 8),
    ("copies: fewer of dirty data", 1, 5),
    ("copies: more of dirty data", 1, 6),
    ("copies: more promised", 1, 4),
    ("pool taken over", 1, 5),
    ("member grown in use", 1, 9),
    ("member failed in use", 1, 8),
    ("second member struck", 1, 1),
    ("spare taken", 1, 5),
    ("witness gone, or an old one", 1, 5),
    ("start beside an older copy", 1, 1),
    ("start refused for an older copy", 1, 1),
    ("past the cache: write-budget", 1, 2),
    ("start: once more for the witness", 1, 1),
    ("start: without a member that failed it", 1, 6),
    ("written through without a witness", 1, 2),
    ("past the cache: protection", 1, 3),
    ("protection: clean", 1, 1),
    ("protection: members enough again", 1, 2),
    ("clean data dropped with a member", 1, 2),
    ("losses marked", 1, 2),
    ("record handed back", 1, 1),
    ("reclaim: left to RAM", 1, 1),
    ("reclaim: let go of what is still read", 1, 20),
    ("read: let go of", 1, 5),
    ("dropped: what was let go of", 1, 5),
    ("start: let go of again", 1, 10),
    ("start: opened again since the image", 1, 1),
    ("sub-block write: new partial block", 1, 25),
    ("sub-block write: partial block grows", 1, 9),
    ("partial block read", 1, 20),
    ("partial block destaged", 1, 25),
    ("destage: too old", 1, 1),
    ("stripe written as a whole", 1, 1),
    ("origin flush failed: dirty again", 1, 3),
    ("origin flush failed: provisional", 1, 1),
    ("verify_failures", 1, 9),
    ("damaged: lost", 1, 2),
    ("scrub: begun", 1, 20),
    ("scrub_laps", 1, 20),
    ("start: sets scanned", 2, 40),
    ("power cut at a root", 1, 5),
    ("power cut behind an origin write", 1, 5),
    ("power cut behind a direct write", 1, 5),
    ("power cut behind a flush", 1, 1),
    ("index: clean data given up", 1, 1),
    ("start: torn record", 1, 25),
    ("start: record behind a hole", 1, 7),
    ("start: record of an earlier life", 1, 2),
    ("start: blocks appended again", 1, 4),
    ("start: provisional voided", 1, 3),
    ("start: written is dirty again", 1, 1),
];

/// How many seeds saw what.
#[derive(Default)]
pub struct Coverage {
    seeds: u64,
    /// The value in each seed where it was not zero.
    seen: BTreeMap<&'static str, Vec<u64>>,
}

impl Coverage {
    /// Adds one seed's counts.
    pub fn add(&mut self, seen: &BTreeMap<&'static str, u64>) {
        self.seeds += 1;
        for (name, value) in seen.iter().filter(|(_, value)| **value > 0) {
            self.seen.entry(name).or_default().push(*value);
        }
    }

    /// Seeds that saw `name` at least `count` times, in percent.
    fn percent(&self, name: &str, count: u64) -> u64 {
        let values = self.seen.get(name).map_or(&[][..], Vec::as_slice);
        let seeds = values.iter().filter(|value| **value >= count).count() as u64;
        seeds * 100 / self.seeds.max(1)
    }

    /// What too few seeds reached, in words.
    pub fn missing(&self) -> Vec<String> {
        let rare = |&(name, count, least): &(&str, u64, u64)| {
            let percent = self.percent(name, count);
            (percent < least).then(|| {
                format!(
                    "\"{name}\" at least {count} times: {percent} % of seeds, {least} % expected"
                )
            })
        };
        EXPECTED.iter().filter_map(rare).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<42} {:>6} {:>6} {:>9} {:>9}", "what", "seeds", "%", "median", "most")?;
        for (name, values) in &self.seen {
            let mut values = values.clone();
            values.sort_unstable();
            let (median, most) = (values[values.len() / 2], values[values.len() - 1]);
            let (seeds, percent) = (values.len(), self.percent(name, 1));
            writeln!(f, "{name:<42} {seeds:>6} {percent:>6} {median:>9} {most:>9}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_counted_by_what_they_saw() {
        let mut coverage = Coverage::default();
        for laps in [0, 1, 2, 9] {
            coverage.add(&BTreeMap::from([("laps", laps)]));
        }
        assert_eq!(coverage.percent("laps", 1), 75);
        assert_eq!(coverage.percent("laps", 2), 50);
        assert_eq!(coverage.percent("moons", 1), 0);
        assert!(coverage.to_string().contains("laps"));
    }
}

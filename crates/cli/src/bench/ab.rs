//! Two builds beside each other: pools of the same kind, warmed alike, measured in turns.
//!
//! * A round measures both, and the next one in the other order: what drifts slowly (the disk, the
//!   machine's other load) meets both alike, and only the ratio within a round counts.
//! * The interval is that of the median by order statistics: it assumes nothing of how ratios are
//!   distributed, and on machines that do other things there are outliers, which a mean and its
//!   deviation would follow. With 9 rounds it is from the second to the eighth, with 96 % confidence.

use std::path::Path;

use serde_json::{Value, json};

use super::measure::{Measuring, Way};
use super::profile::Profile;
use super::report::UNSETTLED;
use super::served::{Served, Setup};
use crate::Result;
use crate::admin::table;
use crate::text;

/// Fewest rounds from which an interval of [`CONFIDENCE_MIN`] can be had: 1 - 2 / 2^6 = 96.9 %.
pub(crate) const ROUNDS_MIN: u64 = 6;

/// How often a pool is asked whether it is clean.
const SETTLE_LOOK_MS: u64 = 200;

/// How sure an interval has to be.
const CONFIDENCE_MIN: f64 = 0.95;

/// What is between two builds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// How probable it is that the true median lies within.
    pub(crate) confidence: f64,
}

impl Interval {
    /// Of these ratios; `None` if they are too few.
    pub(crate) fn of(ratios: &[f64]) -> Option<Interval> {
        let mut sorted = ratios.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        // The narrowest pair of ratios, counted from both ends, that is sure enough.
        let left_out =
            (0..count / 2).rev().find(|&out| confidence(count, out) >= CONFIDENCE_MIN)?;
        let middle = |index: usize| sorted[index.min(count - 1)];
        Some(Interval {
            median: f64::midpoint(middle((count - 1) / 2), middle(count / 2)),
            low: sorted[left_out],
            high: sorted[count - 1 - left_out],
            confidence: confidence(count, left_out),
        })
    }

    /// What it says of this build beside the other one.
    pub(crate) fn verdict(&self) -> &'static str {
        match self {
            it if it.low > 1.0 => "faster",
            it if it.high < 1.0 => "slower",
            _ => "no difference shown",
        }
    }
}

/// That the median of what `count` values are drawn from lies within them, without the `left_out` lowest and
/// highest ones: each value is above it or below it as a coin falls.
fn confidence(count: usize, left_out: usize) -> f64 {
    let mut ways = 1.0;
    let mut outside = 0.0;
    for low in 0..=left_out {
        outside += ways;
        ways *= (count - low) as f64 / (low + 1) as f64;
    }
    1.0 - 2.0 * outside / 2_f64.powi(i32::try_from(count).unwrap_or(i32::MAX))
}

/// One load on two builds.
pub(crate) struct Pair {
    pub(crate) profile: &'static Profile,
    pub(crate) set_bytes: u64,
    pub(crate) target: String,
    /// Whether both were warm before --warm-up-max was over.
    pub(crate) is_settled: bool,
    /// Requests per second of this build, and of the other.
    pub(crate) rounds: Vec<[f64; 2]>,
}

impl Pair {
    /// Ratios of this build's rates over the other's.
    fn ratios(&self) -> Vec<f64> {
        self.rounds.iter().map(|[this, other]| this / other).collect()
    }

    fn median(&self, which: usize) -> f64 {
        let rates: Vec<f64> = self.rounds.iter().map(|round| round[which]).collect();
        Interval::of(&rates).map_or(0.0, |interval| interval.median)
    }

    /// For `--json`.
    pub(crate) fn to_json(&self) -> Value {
        let interval = Interval::of(&self.ratios());
        let rounds: Vec<_> = self
            .rounds
            .iter()
            .map(|[this, other]| json!({ "this": this, "other": other }))
            .collect();
        json!({
            "profile": self.profile.name, "working_set_bytes": self.set_bytes, "target": self.target,
            "is_settled": self.is_settled, "rounds": rounds,
            "ratio": interval.map(|it| it.median), "ratio_low": interval.map(|it| it.low),
            "ratio_high": interval.map(|it| it.high), "confidence": interval.map(|it| it.confidence),
            "verdict": interval.map(|it| it.verdict()),
        })
    }

    fn cells(&self) -> Vec<String> {
        let rate = |which| text::thousands(self.median(which).round() as u64);
        let interval = Interval::of(&self.ratios());
        vec![
            self.profile.name.to_owned(),
            text::bytes(self.set_bytes),
            format!("{}{}", self.target, if self.is_settled { "" } else { UNSETTLED }),
            rate(0),
            rate(1),
            interval.map_or("-".to_owned(), |it| format!("{:.3}", it.median)),
            interval.map_or("-".to_owned(), |it| format!("{:.3}..{:.3}", it.low, it.high)),
            interval.map_or("-".to_owned(), |it| format!("{:.1} %", it.confidence * 100.0)),
            interval.map_or("-", |it| it.verdict()).to_owned(),
        ]
    }
}

/// Heads of the columns.
pub(crate) const HEAD: [&str; 9] =
    ["load", "set", "", "this", "other", "ratio", "interval", "confidence", "this build is"];

/// The rows of the table.
pub(crate) fn lines(pairs: &[Pair]) -> Vec<Vec<String>> {
    pairs.iter().map(Pair::cells).collect()
}

/// The table for people.
pub(crate) fn text(pairs: &[Pair]) -> String {
    format!("\n{}", table(&HEAD, &lines(pairs)))
}

/// What its figures mean.
pub(crate) fn explanation(pairs: &[Pair]) -> String {
    match pairs.iter().all(|pair| pair.is_settled) {
        true => EXPLANATION.to_owned(),
        false => format!(
            "{EXPLANATION}\n{UNSETTLED} one or both were still becoming warm when --warm-up-max was over."
        ),
    }
}

const EXPLANATION: &str = "\nRequests per second, medians of the rounds. Ratio: this build's rate over \
    the other's within a\nround; the interval is that of its median, by order statistics. A verdict is given if 1 \
    lies\noutside of it.";

impl Measuring<'_> {
    /// Measures this build and `other` with everything that was asked for. What was measured is in `pairs`
    /// also after an error.
    ///
    /// # Errors
    /// If fio or a server fails, or all of it is to end.
    pub(crate) async fn both(
        &self,
        other: &Path,
        rounds: u64,
        pairs: &mut Vec<Pair>,
    ) -> Result<()> {
        self.plan_both(rounds);
        for set_bytes in self.sets() {
            for way in self.ways() {
                for profile in self.profiles() {
                    pairs.push(self.pair(profile, way, set_bytes, other, rounds).await?);
                }
            }
        }
        Ok(())
    }

    async fn pair(
        &self,
        profile: &'static Profile,
        way: Way,
        set_bytes: u64,
        other: &Path,
        rounds: u64,
    ) -> Result<Pair> {
        let (setup, [cold, warming, steady]) = (self.setup(way, set_bytes), self.phases());
        let mut sides: Vec<(&str, Served)> = Vec::new();
        let mut is_settled = true;
        for (name, program) in [("this", setup.program), ("other", other)] {
            let started = Served::start(self.session(), &Setup { program, ..setup }).await;
            let mut served = started.map_err(|failure| failure.on(program.display()))?;
            for phase in [cold, warming] {
                let what = format!("{} on {name}, {}", profile.name, phase.name);
                let ran = self.phase(profile, way, set_bytes, phase, &what, &mut served).await?;
                is_settled &= !(phase.ends_warm && ran.is_whole);
            }
            sides.push((name, served));
        }
        let mut measured = Vec::new();
        for round in 0..rounds {
            let mut rates = [0.0; 2];
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for which in order {
                let (name, served) = &mut sides[which];
                let what = format!("{} on {name}, round {} of {rounds}", profile.name, round + 1);
                // The same places for both, and other ones in each round.
                let seed = 100 + u32::try_from(round).unwrap_or(0);
                let phase = steady.seeded(seed);
                let ran = self.phase(profile, way, set_bytes, phase, &what, served).await?;
                rates[which] = ran.answer.iops();
                self.settle(served).await?;
            }
            measured.push(rates);
        }
        Ok(Pair { profile, set_bytes, target: self.name(way), is_settled, rounds: measured })
    }

    /// Waits until a pool has nothing to destage, but no longer than a round: it would take from the other one.
    async fn settle(&self, served: &mut Served) -> Result<()> {
        self.session().done(self.span_ms());
        for _ in 0..self.span_ms() / SETTLE_LOOK_MS {
            let counters = served.counters(self.session()).await?;
            if counters.get("dirty_blocks").copied().unwrap_or(0) == 0 {
                break;
            }
            self.session().pause(SETTLE_LOOK_MS).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_as_narrow_as_it_may_be() {
        let ratios: Vec<f64> = (1..=9).rev().map(f64::from).collect();
        let interval = Interval::of(&ratios).unwrap();
        assert_eq!((interval.low, interval.median, interval.high), (2.0, 5.0, 8.0));
        assert!((interval.confidence - 0.9609).abs() < 1e-3);
        let six = Interval::of(&ratios[..ROUNDS_MIN as usize]).unwrap();
        assert_eq!((six.low, six.median, six.high), (4.0, 6.5, 9.0));
        assert!((six.confidence - 0.96875).abs() < 1e-9);
        assert_eq!(Interval::of(&ratios[..5]), None, "too few");
        assert_eq!(Interval::of(&[]), None);
    }

    #[test]
    fn a_verdict_needs_all_of_the_interval_on_one_side() {
        let of = |ratios: [f64; 6]| Interval::of(&ratios).unwrap().verdict();
        assert_eq!(of([1.01, 1.1, 1.2, 1.1, 1.3, 1.05]), "faster");
        assert_eq!(of([0.9, 0.8, 0.99, 0.7, 0.9, 0.9]), "slower");
        assert_eq!(of([1.1, 1.1, 1.1, 1.1, 1.1, 0.99]), "no difference shown");
        // One round that went wrong does not decide against the others, given enough of them.
        let nine = [1.1, 1.1, 1.2, 1.1, 0.2, 1.1, 1.3, 1.1, 1.1];
        assert_eq!(Interval::of(&nine).unwrap().verdict(), "faster");
    }
}

//! What a load did, and the figures that tell how smooth it was.

use forebay_device::Nanos;
use forebay_device::runtime::SECOND;

use super::Result;

/// What the clients of a load have seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Latency of each request that has ended, in order of their ends.
    latencies: Vec<Nanos>,
    /// When each of them ended, counted from the start.
    seconds: Vec<u64>,
    /// Bytes that they moved.
    pub bytes: u64,
    /// From the start to the end of the last one, or to the look.
    pub span: Nanos,
    /// How long the oldest request that has no answer at the time of the look has waited.
    pub unanswered: Nanos,
}

impl Seen {
    /// Notes a request that ended `since_start` and took `latency`.
    pub fn note(&mut self, since_start: Nanos, latency: Nanos, bytes: u64) {
        let second = (since_start / SECOND) as usize;
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, 0);
        }
        self.seconds[second] += 1;
        self.latencies.push(latency);
        self.bytes += bytes;
        self.span = self.span.max(since_start);
    }

    /// Requests that have ended.
    pub fn requests(&self) -> u64 {
        self.latencies.len() as u64
    }

    /// Requests that have ended in each second since the start, the last of which may be a part of one.
    pub fn each_second(&self) -> &[u64] {
        &self.seconds
    }

    /// Requests per second.
    pub fn rate(&self) -> f64 {
        self.requests() as f64 / (self.span.max(1) as f64 / SECOND as f64)
    }

    /// The rate of the worst second, as a share of the mean. The last second, which is not a whole
    /// one, does not count.
    ///
    /// # Errors
    /// If there are fewer than three whole seconds: nobody could be the worst of them.
    pub fn worst_second(&self) -> Result<f64> {
        let whole = (self.span / SECOND) as usize;
        if whole < 3 {
            return Err(format!("{whole} whole seconds are too few to have a worst one"));
        }
        let count = |second| self.seconds.get(second).copied().unwrap_or(0);
        let worst = (0..whole).map(count).min().unwrap_or(0);
        Ok(worst as f64 / self.rate())
    }

    /// The latency that `percent` of the requests do not exceed.
    ///
    /// # Errors
    /// If so few requests have ended that this would be the longest of them.
    pub fn percentile(&self, percent: f64) -> Result<Nanos> {
        percentile(&self.latencies, percent)
    }

    /// The longest latency, as far as it is known.
    pub fn longest(&self) -> Nanos {
        self.latencies.iter().copied().max().unwrap_or(0).max(self.unanswered)
    }
}

/// The smallest of the values that `percent` of them do not exceed (nearest rank).
///
/// # Errors
/// If there are so few that this would be the largest of them.
fn percentile(values: &[Nanos], percent: f64) -> Result<Nanos> {
    let rank = (values.len() as f64 * percent / 100.0).ceil() as usize;
    if rank == 0 || rank >= values.len() {
        return Err(format!("{} requests are too few for a p{percent}", values.len()));
    }
    let mut values = values.to_vec();
    Ok(*values.select_nth_unstable(rank - 1).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `counts[i]` requests of 1 ms in second i, and one at the very end.
    fn seen(counts: &[u64]) -> Seen {
        let mut seen = Seen::default();
        for (second, &count) in counts.iter().enumerate() {
            for i in 0..count {
                seen.note(second as u64 * SECOND + i, 1_000_000, 4096);
            }
        }
        seen.note(counts.len() as u64 * SECOND, 1_000_000, 4096);
        seen
    }

    #[test]
    fn the_worst_second_is_a_share_of_the_mean() {
        let seen = seen(&[100, 50, 150, 99]);
        assert_eq!((seen.requests(), seen.span, seen.bytes), (400, 4 * SECOND, 400 * 4096));
        assert_eq!(seen.rate(), 100.0);
        assert_eq!(seen.worst_second().unwrap(), 0.5);
    }

    #[test]
    fn a_second_without_requests_is_the_worst_and_the_last_part_of_one_is_none() {
        assert_eq!(seen(&[10, 0, 10]).worst_second().unwrap(), 0.0);
        let mut seen = seen(&[10, 10, 10]);
        seen.note(3 * SECOND + 1, 1, 1);
        assert!(seen.worst_second().unwrap() > 0.9);
    }

    #[test]
    fn silence_at_the_end_counts() {
        let mut seen = seen(&[10, 10, 10]);
        seen.span = 5 * SECOND;
        assert_eq!(seen.worst_second().unwrap(), 0.0);
    }

    #[test]
    fn a_request_without_an_answer_may_be_the_longest() {
        let mut seen = seen(&[10]);
        assert_eq!(seen.longest(), 1_000_000);
        seen.unanswered = SECOND;
        assert_eq!(seen.longest(), SECOND);
    }

    #[test]
    fn two_seconds_have_no_worst() {
        assert!(seen(&[10, 10]).worst_second().is_err());
    }

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let values: Vec<Nanos> = (1..=1000).rev().collect();
        assert_eq!(percentile(&values, 50.0).unwrap(), 500);
        assert_eq!(percentile(&values, 99.0).unwrap(), 990);
        assert_eq!(percentile(&values, 99.9).unwrap(), 999);
        assert_eq!(percentile(&[3, 1, 2], 50.0).unwrap(), 2);
    }

    #[test]
    fn a_percentile_that_would_be_the_longest_request_is_none() {
        let values: Vec<Nanos> = (1..=999).collect();
        assert!(percentile(&values, 99.9).is_err());
        assert!(percentile(&[1], 50.0).is_err() && percentile(&[], 50.0).is_err());
    }
}

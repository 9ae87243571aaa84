//! The disks of a test alone: what they do without a cache.

use forebay_device::model::array::{ArrayModel, ArrayParameters, Level};
use forebay_device::model::hdd::HddParameters;
use forebay_device::model::modelled::{Command, Operation, closed_loop_after};
use forebay_device::model::world::Rng;

/// No paper says it. For blocks of 4 and 8 KiB it makes no difference.
const CHUNK_BYTES: u64 = 64 << 10;

/// Requests that are measured, after the warm-up.
const COUNT: u64 = 40_000;

const GB: u64 = 1_000_000_000;

/// What a test was run on.
#[derive(Clone, Debug)]
pub struct System {
    /// Arrays of this kind side by side, each with a load of its own.
    pub groups: u64,
    /// Members of each.
    pub disks: usize,
    /// The member.
    pub member: HddParameters,
}

/// What was done to each array of it.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// Bytes of a request.
    pub block_bytes: u64,
    /// Reads in a hundred requests; the others write.
    pub read_percent: u64,
    /// Bytes that it goes to, from the array's start.
    pub span_bytes: u64,
    /// Requests at a time.
    pub depth: usize,
    /// So many streams, each from front to back of its part of the span, again and again; 0: random places.
    pub streams: u64,
    /// Requests per second that are not exceeded; `None`: as many as are answered.
    pub per_s_max: Option<u64>,
}

impl System {
    /// In words.
    pub fn text(&self) -> String {
        let groups = if self.groups == 1 { String::new() } else { format!("{} x ", self.groups) };
        let cache = if self.member.write_cache_bytes == 0 { ", caches off" } else { "" };
        format!("{groups}{} {} in RAID 5{cache}", self.disks, self.member.name)
    }

    /// One of its arrays.
    pub fn array(&self) -> ArrayParameters {
        let (disks, member) = (self.disks, self.member.clone());
        ArrayParameters { level: Level::Raid5, disks, chunk_bytes: CHUNK_BYTES, member }
    }

    /// The same with a part of the tracks: seeks over the same share of the disk take as long, and so does
    /// every transfer, so that a span of the same share is served as fast.
    #[must_use]
    pub fn scaled(&self, scale: u64) -> Self {
        let size_bytes = self.member.size_bytes / scale / 4096 * 4096;
        Self { member: HddParameters { size_bytes, ..self.member.clone() }, ..self.clone() }
    }

    /// Requests until the members' write caches are as full as they will be: each write goes to
    /// two of them.
    pub fn warm_up(&self, pattern: Pattern) -> u64 {
        let cached = self.member.write_cache_bytes * self.disks as u64 / pattern.block_bytes;
        let writes = cached / 2 * 100 / (100 - pattern.read_percent).max(1);
        COUNT / 4 + if pattern.read_percent == 100 { 0 } else { writes }
    }

    /// Requests per second that the model gives.
    pub fn iops(&self, pattern: Pattern) -> f64 {
        let group = |group: u64| {
            let mut array = ArrayModel::new(self.array(), group);
            let next = pattern.commands(group);
            closed_loop_after(&mut array, pattern.depth, self.warm_up(pattern), COUNT, next).iops
        };
        (1..=self.groups).map(group).sum()
    }
}

impl Pattern {
    /// At random places, as fast as it goes.
    pub fn random(block_bytes: u64, read_percent: u64, span_bytes: u64, depth: usize) -> Self {
        Self { block_bytes, read_percent, span_bytes, depth, streams: 0, per_s_max: None }
    }

    /// In words.
    pub fn text(&self) -> String {
        let (kib, gb) = (self.block_bytes >> 10, self.span_bytes / GB);
        format!("{kib}K {}, {gb} GB, queue {}", self.kind(), self.depth)
    }

    /// What is asked for, in words.
    pub fn kind(&self) -> String {
        match self.read_percent {
            100 => "read".to_owned(),
            0 => "write".to_owned(),
            percent => format!("{percent} % read"),
        }
    }

    /// Whether a request reads, and its offset in the first `span_bytes`; the same for the same seed.
    pub fn requests(self, span_bytes: u64, seed: u64) -> impl FnMut() -> (bool, u64) {
        let (mut rng, mut number) = (Rng::new(seed), 0);
        let places = (span_bytes / self.block_bytes).max(1);
        move || {
            let reads = rng.below(100) < self.read_percent;
            let place = match self.streams {
                0 => rng.below(places),
                streams => {
                    let (stream, at) = (number % streams, number / streams);
                    let length = (places / streams).max(1);
                    (stream * length + at % length) % places
                }
            };
            number += 1;
            (reads, place * self.block_bytes)
        }
    }

    /// The same for the disks alone.
    pub fn commands(self, seed: u64) -> impl FnMut() -> Command {
        let mut next = self.requests(self.span_bytes, seed);
        move || {
            let (reads, offset) = next();
            let operation = if reads { Operation::Read } else { Operation::Write };
            Command { operation, offset, len: self.block_bytes }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{qsan, synology};
    use super::*;

    #[test]
    fn streams_go_from_front_to_back_side_by_side() {
        let pattern = Pattern { streams: 2, ..Pattern::random(4096, 0, 6 * 4096, 1) };
        let mut next = pattern.requests(pattern.span_bytes, 1);
        let places: Vec<u64> = (0..8).map(|_| next().1 / 4096).collect();
        assert_eq!(places, [0, 3, 1, 4, 2, 5, 0, 3]);
    }

    #[test]
    fn a_part_of_a_disk_is_as_fast_over_its_part_of_the_span() {
        for (system, read_percent) in
            [(qsan::disks(16), 100), (qsan::disks(16), 0), (synology::disks(12), 100)]
        {
            let (span_bytes, depth) = (96 * GB, 128);
            let pattern = Pattern::random(4096, read_percent, span_bytes, depth);
            let whole = system.iops(pattern);
            // The smaller the part, the fewer tracks a zone has.
            for (scale, bound) in [(4, 0.05), (16, 0.05), (64, 0.08)] {
                let part = Pattern { span_bytes: span_bytes / scale, ..pattern };
                let share = system.scaled(scale).iops(part) / whole;
                assert!((share - 1.0).abs() < bound, "{}, 1/{scale}: {share}", system.text());
            }
        }
    }
}

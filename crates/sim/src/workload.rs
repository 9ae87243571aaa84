//! Requests by seed: hot spots, sequential runs, small and large, overlapping.

use std::ops::Range;

use forebay_device::model::world::Rng;
use forebay_device::runtime::{MILLISECOND, Nanos, SECOND};

use forebay_engine::Priority;

use crate::content::SECTOR;
use crate::subject::Mode;
use crate::swarm::{Config, Diet};

/// One request of a client. Ranges are sectors of 512 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read.
    Read(usize, Range<u64>),
    /// Write, perhaps with FUA.
    Write(usize, Range<u64>, bool),
    /// Flush.
    Flush(usize),
    /// Trim.
    Trim(usize, Range<u64>),
    /// Write zeroes.
    WriteZeroes(usize, Range<u64>),
    /// Change a volume's mode.
    SetMode(usize, Mode),
    /// Change what a volume has of the cache.
    SetSpace(usize, Space),
    /// Do nothing for a while.
    Pause(Nanos),
}

/// What a volume has of the cache, in segments; 0 is nothing that is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Segments that others do not take from it.
    pub reservation: u64,
    /// Segments that it holds at the most.
    pub limit: u64,
    /// What it gets where there is not enough for all.
    pub priority: Priority,
}

impl Space {
    /// Any.
    pub fn draw(rng: &mut Rng) -> Space {
        let (reservation, limit) =
            (*rng.pick(&[0, 0, 1, 2, 4, 8]), *rng.pick(&[0, 0, 1, 2, 4, 8, 16]));
        Space { reservation, limit, priority: *rng.pick(&Priority::ALL) }
    }
}

/// Longest request, in sectors: 1 MiB.
const SECTORS_MAX: u64 = (1 << 20) / SECTOR as u64;
/// Sectors of a block.
pub const BLOCK_SECTORS: u64 = 8;
/// Sectors of a stripe, the address space of one shard: 4 MiB.
pub const STRIPE_SECTORS: u64 = (4 << 20) / SECTOR as u64;

/// How a client likes its addresses.
#[derive(Clone, Copy, Debug)]
enum Style {
    /// Mostly a few places, the same for every client.
    Hot,
    /// One after the other.
    Sequential,
    /// Anywhere.
    Uniform,
}

/// The requests of one client.
pub struct Workload {
    rng: Rng,
    style: Style,
    /// Percentage of reads.
    reads: u64,
    diet: Diet,
    /// Sectors of each volume.
    volumes: Vec<u64>,
    /// Where the hot spots are: the same for all clients of a seed, so that they collide.
    hot: u64,
    next: Vec<u64>,
    flush_percent: u64,
    fua_one_in: u64,
    mode_changes: bool,
    space_changes: bool,
    left: u64,
}

impl Workload {
    /// The workload of one client and run.
    pub fn new(config: &Config, mut rng: Rng) -> Self {
        Self {
            style: *rng.pick(&[Style::Hot, Style::Hot, Style::Sequential, Style::Uniform]),
            reads: *rng.pick(&[10, 40, 70, 95]),
            diet: config.diet,
            volumes: config.volumes.iter().map(|v| v.size_bytes / SECTOR as u64).collect(),
            hot: config.seed,
            next: vec![0; config.volumes.len()],
            flush_percent: config.flush_percent,
            fua_one_in: config.fua_one_in,
            mode_changes: config.mode_changes,
            space_changes: config.space_changes,
            left: config.operations,
            rng,
        }
    }

    /// Sectors of a request.
    fn len(&mut self, size: u64) -> u64 {
        let rng = &mut self.rng;
        let die = rng.below(20);
        let len = match self.diet {
            Diet::Feast if die < 12 => BLOCK_SECTORS * rng.between(1, 64),
            Diet::Feast if die < 14 => BLOCK_SECTORS * rng.between(32, 256),
            Diet::Duel if die < 16 => BLOCK_SECTORS * rng.between(1, 4),
            Diet::Crumbs if die < 18 => rng.between(1, 8),
            _ => match die {
                0..10 => rng.between(1, 8),
                10..15 => BLOCK_SECTORS * rng.between(1, 4),
                15..19 => rng.between(1, 128),
                _ => rng.between(1, SECTORS_MAX),
            },
        };
        len.min(size).min(SECTORS_MAX)
    }

    /// One of a seed's few favourite places: the end of a volume, a stripe's border, others.
    fn spot(&mut self, size: u64, last: u64) -> u64 {
        let spot = self.rng.below(5);
        let mut places = Rng::new(self.hot ^ spot);
        let stripes = size / STRIPE_SECTORS;
        match spot {
            0 => last.saturating_sub(11),
            1 if stripes > 0 => (places.between(1, stripes) * STRIPE_SECTORS).saturating_sub(9),
            _ => places.below(last + 1),
        }
    }

    fn range(&mut self, volume: usize) -> Range<u64> {
        let size = self.volumes[volume];
        let len = self.len(size);
        let last = size - len;
        let start = match self.style {
            Style::Sequential if !self.rng.one_in(20) => self.next[volume],
            Style::Hot if !self.rng.one_in(8) => self.spot(size, last) + self.rng.below(12),
            _ => self.rng.below(last + 1),
        };
        let start = if start > last { self.rng.below(last + 1) } else { start };
        // Whole blocks stay whole most of the time.
        let whole = len.is_multiple_of(BLOCK_SECTORS) && !self.rng.one_in(4);
        let start = if whole { start / BLOCK_SECTORS * BLOCK_SECTORS } else { start };
        self.next[volume] = start + len;
        start..start + len
    }
}

impl Iterator for Workload {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        self.left = self.left.checked_sub(1)?;
        let volume = self.rng.below(self.volumes.len() as u64) as usize;
        if self.rng.below(100) < self.reads {
            return Some(Op::Read(volume, self.range(volume)));
        }
        if self.rng.below(100) < self.flush_percent {
            return Some(Op::Flush(volume));
        }
        Some(match self.rng.below(100) {
            0..70 => {
                let fua = self.rng.one_in(self.fua_one_in);
                Op::Write(volume, self.range(volume), fua)
            }
            70..79 => Op::Trim(volume, self.range(volume)),
            79..88 => Op::WriteZeroes(volume, self.range(volume)),
            88..92 if self.mode_changes => {
                let mode = match *self.rng.pick(&Mode::USUAL) {
                    Mode::Writeback if self.left.is_multiple_of(2) => Mode::Writeonly,
                    mode => mode,
                };
                Op::SetMode(volume, mode)
            }
            92..95 if self.space_changes => Op::SetSpace(volume, Space::draw(&mut self.rng)),
            88..98 => Op::Pause(self.rng.below(20 * MILLISECOND)),
            98 => Op::Pause(self.rng.below(20 * SECOND)),
            _ => Op::Read(volume, self.range(volume)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ops(seed: u64) -> Vec<Op> {
        Workload::new(&Config::new(seed), Rng::new(seed)).collect()
    }

    #[test]
    fn requests_fit_their_volume_and_its_sectors() {
        for seed in 0..200 {
            let config = Config::new(seed);
            for op in ops(seed) {
                let (Op::Read(volume, range)
                | Op::Write(volume, range, _)
                | Op::Trim(volume, range)
                | Op::WriteZeroes(volume, range)) = op
                else {
                    continue;
                };
                let volume = &config.volumes[volume];
                let bytes = range.start * 512..range.end * 512;
                assert!(bytes.start < bytes.end && bytes.end <= volume.size_bytes);
                assert!(bytes.end - bytes.start <= 1 << 20);
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_requests_and_all_kinds_occur() {
        assert_eq!(ops(3), ops(3));
        let all: Vec<Op> = (0..300).flat_map(ops).collect();
        assert!(all.iter().any(|op| matches!(op, Op::SetMode(..))));
        assert!(all.iter().any(|op| matches!(op, Op::Write(_, range, true) if range.end > 0)));
        let len = |op: &Op| match op {
            Op::Write(_, range, _) => range.end - range.start,
            _ => 0,
        };
        assert!(all.iter().any(|op| len(op) > 1024) && all.iter().any(|op| len(op) == 1));
    }
}

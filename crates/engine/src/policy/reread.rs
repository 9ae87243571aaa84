//! Whether what is read comes to be read again before a cache would have let go of it: asked of a sample, for what
//! volumes leave to the engine.
//!
//! * Of **first reads**, which come in: where less than 1 % is read again, the second read of a cache block brings it in
//!   instead ([`super::Populate::Auto`]). A volume misses about as many reads more as are read again, and spares the SSDs nearly all
//!   that it brought in.
//! * Of **streams**, which pass by: a scan that is as long as the cache helps nobody, but what is scanned again and again is
//!   worth its place. Where enough of it is read again, they do not pass by any more.
//! * One cache block of 8 to 32 is in the sample, by a hash. It comes in with the first read whatever the answer is,
//!   so that the question goes on being asked.
//! * A lap is as much as fills the pool: of first reads also what is left on the origin, of streams with what comes in beside
//!   them. What is read again within a lap counts; later it would have left the cache, if everything came in. What came during one lap is judged at the end of the next.
//!   While a cache fills no first read is judged.
//! * What is doubted is trusted again as soon as enough of what came of late was read again. Between two limits it
//!   stays as it is.

use rustc_hash::FxHashMap;

use super::recent::Recent;
use super::{GRANULE_BYTES_MIN, Granule};
use crate::ids::{BLOCK_BYTES, VolumeId};

/// Cache blocks of which one is in the sample, in small and in large pools: 12 and 3 % of what a doubted volume misses is
/// still brought in.
const EVERY: std::ops::RangeInclusive<u64> = 8..=32;

/// Cache blocks of the sample that a pool should have, if it is not too small: twice what an answer needs.
const SAMPLES: u64 = 2 * LEAST as u64;

/// Cache blocks of the sample that an answer needs, so that three volumes in four are judged rightly whose reads
/// are at twice the limit.
const LEAST: u32 = 128;

/// When something is doubted: it begins with less than so much that comes again, in percent, and ends with as much as that.
#[derive(Clone, Copy, Debug)]
struct Limits {
    doubted_below: u32,
    trusted_from: u32,
    /// Whether it is before anything is known.
    at_first: bool,
}

const FIRST_READS: Limits = Limits { doubted_below: 1, trusted_from: 2, at_first: false };

const STREAMS: Limits = Limits { doubted_below: 10, trusted_from: 20, at_first: true };

/// Blocks of the smallest pool that has as small a part of the reads in its samples as any larger one.
pub const SAMPLED_BLOCKS: u64 = SAMPLES * *EVERY.end() * (GRANULE_BYTES_MIN / BLOCK_BYTES);

/// Parts of a lap that are told apart.
const LAP_TICKS: u8 = 8;

/// Ticks that are told apart: what is cached all the time stays in the table for many.
const TICKS: u8 = 128;

/// What is remembered of a cache block of the sample: the tick in which it came by, modulo [`TICKS`], and whether it was
/// read since ([`Came::AGAIN`]).
#[derive(Clone, Copy, Debug, Default)]
struct Came(u8);

impl Came {
    const AGAIN: u8 = 1 << 7;

    fn tick(self) -> u8 {
        self.0 % TICKS
    }

    fn is_again(self) -> bool {
        self.0 & Self::AGAIN != 0
    }
}

/// Cache blocks that came in, and those of them that were read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    came: u32,
    again: u32,
}

impl Count {
    fn is_below(self, percent: u32) -> bool {
        u64::from(self.again) * 100 < u64::from(self.came) * u64::from(percent)
    }
}

/// What is known of a volume.
#[derive(Debug)]
struct Known {
    /// This lap's and the last one's, by their parity.
    laps: [Count; 2],
    /// What was judged, where half of it is forgotten with each lap.
    judged: Count,
    doubted: bool,
}

/// What is thought of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Worth {
    /// What comes is not worth its place.
    pub is_doubted: bool,
    /// The share of it that was read again, in percent; `None` where too little was judged.
    pub percent: Option<u32>,
}

/// See the module.
#[derive(Debug)]
pub struct Reread {
    limits: Limits,
    /// Hashes of the sample: up to this.
    sampled_below: u64,
    sample: Recent<Came>,
    volumes: FxHashMap<VolumeId, Known>,
    /// Blocks that make a tick, and that came by during this one.
    tick_blocks: u64,
    blocks: u64,
    tick: u8,
}

impl Reread {
    /// Of first reads in a pool of so many blocks; nothing is known yet. 2.7 KiB for each GiB from 512 MiB on, and so in the
    /// next.
    pub fn of_first_reads(pool_blocks: u64) -> Self {
        Self::new(pool_blocks, FIRST_READS)
    }

    /// Of streams.
    pub fn of_streams(pool_blocks: u64) -> Self {
        Self::new(pool_blocks, STREAMS)
    }

    fn new(pool_blocks: u64, limits: Limits) -> Self {
        let cache_blocks = pool_blocks.div_ceil(GRANULE_BYTES_MIN / BLOCK_BYTES);
        let every = (cache_blocks / SAMPLES).clamp(*EVERY.start(), *EVERY.end());
        let every = 1 << every.ilog2();
        // What came longer than a lap ago counts for nothing.
        let capacity =
            (cache_blocks / every).max(1) * (u64::from(LAP_TICKS) + 1) / u64::from(LAP_TICKS);
        Self {
            limits,
            sampled_below: u64::MAX / every,
            sample: Recent::new(u32::try_from(capacity).unwrap_or(u32::MAX)),
            volumes: FxHashMap::default(),
            tick_blocks: (pool_blocks / u64::from(LAP_TICKS)).max(1),
            blocks: 0,
            tick: 0,
        }
    }

    /// Whether this cache block, no smaller than [`GRANULE_BYTES_MIN`], is in the sample.
    pub fn samples(&self, block: Granule) -> bool {
        // The golden ratio's multiples are spread evenly, and this is asked with every read.
        block.number.wrapping_mul(0x9E37_79B9_7F4A_7C15) <= self.sampled_below
    }

    /// A cache block of the sample comes by. What came within a lap and was not read since goes on to count once: another
    /// part of it comes by.
    pub fn came(&mut self, block: Granule) {
        if self.sample.get(block).is_some_and(|came| self.is_late(came) && !came.is_again()) {
            return;
        }
        self.sample.turn();
        self.sample.put(block, Came(self.tick));
        let unknown = || Known {
            laps: Default::default(),
            judged: Count::default(),
            doubted: self.limits.at_first,
        };
        let known = self.volumes.entry(block.volume).or_insert_with(unknown);
        known.laps[parity(self.tick)].came += 1;
    }

    /// So many blocks came by, of the sample or not. Whether some volume is seen differently now.
    pub fn elapsed(&mut self, blocks: u64) -> bool {
        self.blocks += blocks;
        let mut changed = false;
        while self.blocks >= self.tick_blocks {
            self.blocks -= self.tick_blocks;
            self.tick = (self.tick + 1) % TICKS;
            changed |= self.tick.is_multiple_of(LAP_TICKS) && self.end_lap();
        }
        changed
    }

    /// A cache block of the sample is read again, if it has come. Whether its volume is seen differently now.
    pub fn read(&mut self, block: Granule) -> bool {
        let Some(came) = self.sample.get(block) else { return false };
        let came_in = (self.is_late(came) && !came.is_again()).then_some(came.tick());
        self.sample.change(block, |came| Some(Came(came.0 | Came::AGAIN)));
        let known = came_in.and_then(|tick| Some((tick, self.volumes.get_mut(&block.volume)?)));
        let Some((tick, known)) = known else { return false };
        known.laps[parity(tick)].again += 1;
        if !known.doubted {
            return false;
        }
        let [one, other] = known.laps;
        let late = Count { came: one.came + other.came, again: one.again + other.again };
        if late.came < LEAST || late.is_below(self.limits.trusted_from) {
            return false;
        }
        (known.doubted, known.judged) = (false, Count::default());
        true
    }

    /// What is thought of a volume.
    pub fn worth(&self, volume: VolumeId) -> Worth {
        let Some(known) = self.volumes.get(&volume) else {
            return Worth { is_doubted: self.limits.at_first, percent: None };
        };
        let Count { came, again } = known.judged;
        let percent =
            (u64::from(again) * 100).checked_div(came.into()).map(|percent| percent as u32);
        Worth { is_doubted: known.doubted, percent: percent.filter(|_| came >= LEAST) }
    }

    /// A volume is gone.
    pub fn forget(&mut self, volume: VolumeId) {
        self.volumes.remove(&volume);
    }

    /// Bytes of the table.
    pub fn heap_bytes(&self) -> usize {
        self.sample.heap_bytes()
    }

    /// Whether it came within a lap.
    fn is_late(&self, came: Came) -> bool {
        (self.tick + TICKS - came.tick()) % TICKS <= LAP_TICKS
    }

    fn end_lap(&mut self) -> bool {
        let mut changed = false;
        for known in self.volumes.values_mut() {
            // That of the lap before the one that has ended: what comes by now is counted in its place.
            let old = std::mem::take(&mut known.laps[parity(self.tick)]);
            known.judged = Count {
                came: known.judged.came / 2 + old.came,
                again: known.judged.again / 2 + old.again,
            };
            if known.judged.came >= LEAST {
                let was = known.doubted;
                let limit = match was {
                    true => self.limits.trusted_from,
                    false => self.limits.doubted_below,
                };
                known.doubted = known.judged.is_below(limit);
                changed |= known.doubted != was;
            }
        }
        changed
    }
}

/// Which of two laps a tick is in.
fn parity(tick: u8) -> usize {
    usize::from(tick / LAP_TICKS % 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL_BLOCKS: u64 = 1 << 20;
    const PIECE_BLOCKS: u64 = 16;
    const ONE: VolumeId = VolumeId(1);
    const TWO: VolumeId = VolumeId(2);

    impl Reread {
        fn lap_blocks(&self) -> u64 {
            self.tick_blocks * u64::from(LAP_TICKS)
        }
    }

    /// A volume that is read front to back, a pool's worth of the sample at a time.
    struct Reader {
        volume: VolumeId,
        next: u64,
    }

    impl Reader {
        /// What comes by in a lap, of which one of `every` is read again soon; all of it.
        fn lap(&mut self, reread: &mut Reread, every: usize) -> Vec<Granule> {
            let mut came = Vec::new();
            for _ in 0..reread.lap_blocks().div_ceil(PIECE_BLOCKS) {
                let block = Granule { volume: self.volume, number: self.next };
                self.next += 1;
                reread.elapsed(PIECE_BLOCKS);
                if !reread.samples(block) {
                    continue;
                }
                reread.came(block);
                if came.len() % every == 0 {
                    reread.read(block);
                    reread.read(block);
                }
                came.push(block);
            }
            came
        }
    }

    fn first_reads() -> (Reread, Reader) {
        (Reread::of_first_reads(POOL_BLOCKS), Reader { volume: ONE, next: 0 })
    }

    const NEVER: usize = usize::MAX;

    #[test]
    fn large_pools_have_a_smaller_part_in_the_sample() {
        let sampled = |pool_blocks: u64| {
            let reread = Reread::of_streams(pool_blocks);
            let block = |number| Granule { volume: ONE, number };
            (0..32_000).filter(|&number| reread.samples(block(number))).count()
        };
        assert!((900..1_100).contains(&sampled(POOL_BLOCKS)), "one of 32");
        assert!((3_800..4_200).contains(&sampled(POOL_BLOCKS / 64)), "one of 8");
    }

    #[test]
    fn nothing_is_judged_before_it_has_been_there_for_a_lap() {
        let (mut reread, mut reader) = first_reads();
        reader.lap(&mut reread, NEVER);
        assert_eq!(reread.worth(ONE), Worth::default(), "the cache fills");
        reader.lap(&mut reread, NEVER);
        assert_eq!(reread.worth(ONE), Worth { is_doubted: true, percent: Some(0) });
    }

    #[test]
    fn what_is_read_a_lap_later_counts() {
        let (mut reread, mut reader) = first_reads();
        let came = reader.lap(&mut reread, NEVER);
        came.iter().step_by(10).for_each(|&block| assert!(!reread.read(block)));
        reader.lap(&mut reread, NEVER);
        let Worth { is_doubted, percent } = reread.worth(ONE);
        assert!(!is_doubted && percent.is_some_and(|it| (9..=10).contains(&it)), "{percent:?}");
        // Two laps later it says nothing any more.
        came.iter().for_each(|&block| assert!(!reread.read(block)));
        reader.lap(&mut reread, NEVER);
        assert_eq!(
            reread.worth(ONE).percent,
            Some(3),
            "half of what is a lap old, and none of this one"
        );
    }

    #[test]
    fn doubt_begins_below_one_percent_and_ends_at_two() {
        let (mut reread, mut reader) = first_reads();
        let mut laps = |reread: &mut Reread, every, count| {
            (0..count).for_each(|_| drop(reader.lap(reread, every)));
            reread.worth(ONE)
        };
        assert!(!laps(&mut reread, 66, 5).is_doubted, "1.5 percent, never doubted before");
        assert!(laps(&mut reread, 200, 6).is_doubted, "half a percent");
        assert!(laps(&mut reread, 66, 6).is_doubted, "1.5 percent, doubted before");
        let worth = laps(&mut reread, 20, 1);
        assert!(!worth.is_doubted, "five percent, at once");
        assert_eq!(worth.percent, Some(1), "what was judged before is forgotten");
    }

    #[test]
    fn streams_pass_by_until_a_fifth_of_them_is_read_again() {
        let mut reread = Reread::of_streams(POOL_BLOCKS);
        let mut reader = Reader { volume: ONE, next: 0 };
        assert!(reread.worth(ONE).is_doubted, "before anything is known");
        let mut laps = |reread: &mut Reread, every, count| {
            (0..count).for_each(|_| drop(reader.lap(reread, every)));
            reread.worth(ONE).is_doubted
        };
        assert!(laps(&mut reread, 7, 4), "14 percent");
        assert!(!laps(&mut reread, 2, 1), "half of it");
        assert!(!laps(&mut reread, 7, 6), "14 percent, trusted before");
        assert!(laps(&mut reread, 20, 6), "five percent");
    }

    #[test]
    fn time_passes_with_what_is_not_asked_about() {
        let mut reread = Reread::of_streams(POOL_BLOCKS);
        let came = Reader { volume: ONE, next: 0 }.lap(&mut reread, NEVER);
        // Two pools of other things come in.
        let others = 2 * reread.lap_blocks() / PIECE_BLOCKS;
        (0..others).for_each(|_| assert!(!reread.elapsed(PIECE_BLOCKS)));
        came.iter().for_each(|&block| assert!(!reread.read(block)));
        assert_eq!(reread.worth(ONE), Worth { is_doubted: true, percent: Some(0) });
    }

    #[test]
    fn volumes_are_judged_apart_and_forgotten() {
        let (mut reread, mut one) = first_reads();
        let mut two = Reader { volume: TWO, next: 0 };
        for _ in 0..4 {
            one.lap(&mut reread, NEVER);
            two.lap(&mut reread, 2);
        }
        assert!(reread.worth(ONE).is_doubted && !reread.worth(TWO).is_doubted);
        reread.forget(ONE);
        assert_eq!(reread.worth(ONE), Worth::default());
    }

    #[test]
    fn the_table_leaves_the_bound_of_the_index_its_room() {
        let gib = (1 << 30) / BLOCK_BYTES;
        let bytes = Reread::of_streams(gib * 1024).heap_bytes() / 1024;
        assert!(bytes < 3 << 10, "{bytes} B per GiB");
        // However small the pool: laps end.
        let mut small = Reread::of_streams(1);
        assert!(small.heap_bytes() < 1 << 10);
        Reader { volume: ONE, next: 0 }.lap(&mut small, 2);
    }
}

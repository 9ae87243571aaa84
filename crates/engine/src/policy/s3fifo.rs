//! S3-FIFO over segments: two streams, a ghost, and reinsertion of what was hit.
//!
//! After "FIFO queues are all you need for cache eviction" (Yang and others, SOSP 2023). The
//! queues are streams of the log and a step of the queue is a segment set, so eviction order costs
//! no memory at all; what the paper keeps per object is here the engine's heat per granule. Unlike
//! in the paper reinsertion is a write to the SSD, and so has a budget.

use super::{Access, Budget, Counts, Ghost, Granule, Policy, Queue, Survey};

/// Tunables of [`S3Fifo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct S3FifoConfig {
    /// Share of the live space, in percent, above which the probationary stream is reclaimed
    /// first. The paper found hit ratios flat between 5 and 20 %.
    pub probation_percent: u8,
    /// Heat from which a granule is promoted when its probation ends. The paper's value: one hit
    /// is often the second half of the same request, two are reuse.
    pub promote_heat: u8,
    /// Bytes written per byte admitted, in percent, at the most; from 100 (never retain).
    pub write_amplification_max_percent: u32,
    /// Length of the budget's window, in admitted blocks: about the blocks of the pool, one lap.
    pub window_blocks: u64,
    /// Granules that the ghost remembers: as many as the main stream can hold.
    pub ghost_granules: u32,
    /// Blocks of the pool.
    pub pool_blocks: u64,
    /// Live blocks, in percent of the pool, below which garbage and not space is what there is too
    /// much of: units are then compacted instead of evicted. At 60 % even overwriting costs a write
    /// amplification of 1.5.
    pub roomy_percent: u8,
}

impl S3FifoConfig {
    /// Blocks of the smallest granule.
    const GRANULE_BLOCKS_MIN: u32 = (super::GRANULE_BYTES_MIN / crate::ids::BLOCK_BYTES) as u32;

    /// Defaults for a pool that holds `pool_blocks` blocks of data.
    pub fn for_pool(pool_blocks: u64) -> Self {
        let probation_percent = 10;
        Self {
            probation_percent,
            promote_heat: 2,
            write_amplification_max_percent: 150,
            window_blocks: pool_blocks.max(1),
            ghost_granules: Self::ghost_granules(pool_blocks, Self::GRANULE_BLOCKS_MIN),
            pool_blocks,
            roomy_percent: 60,
        }
    }

    /// Granules of this size that nine tenths of such a pool hold.
    fn ghost_granules(pool_blocks: u64, granule_blocks: u32) -> u32 {
        let granules = pool_blocks * 9 / 10 / u64::from(granule_blocks);
        u32::try_from(granules).unwrap_or(u32::MAX).max(1)
    }

    /// The same for granules of another size.
    #[must_use]
    pub fn with_granules_of(self, granule_blocks: u32) -> Self {
        let ghost_granules = Self::ghost_granules(self.pool_blocks, granule_blocks);
        Self { ghost_granules, ..self }
    }
}

/// The default policy.
#[derive(Debug)]
pub struct S3Fifo {
    config: S3FifoConfig,
    ghost: Ghost,
    budget: Budget,
    counts: Counts,
    ghost_hits: u64,
    /// Whether the last choice was made to compact.
    compacting: bool,
}

impl S3Fifo {
    /// An empty policy; all of its memory is allocated here.
    ///
    /// # Panics
    /// If a tunable is out of the range that its description gives.
    pub fn new(config: S3FifoConfig) -> Self {
        assert!(config.probation_percent <= 100);
        Self {
            ghost: Ghost::new(config.ghost_granules),
            budget: Budget::new(config.write_amplification_max_percent, config.window_blocks),
            counts: Counts::default(),
            ghost_hits: 0,
            compacting: false,
            config,
        }
    }

    /// Admissions that the ghost sent straight to the main stream.
    pub fn ghost_hits(&self) -> u64 {
        self.ghost_hits
    }

    fn is_hot(&self, queue: Queue, heat: u8) -> bool {
        match queue {
            Queue::Probation => heat >= self.config.promote_heat,
            Queue::Main => heat >= 1,
        }
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, _granule: Granule, access: Access, hit: bool) {
        self.counts.add(access, hit);
    }

    /// The ghost's entry stays: the other blocks of the granule are still to come, each with its
    /// own miss, and belong beside this one.
    fn admit(&mut self, granule: Granule) -> Option<Queue> {
        if self.ghost.contains(granule) {
            self.ghost_hits += 1;
            return Some(Queue::Main);
        }
        Some(Queue::Probation)
    }

    fn choose(&mut self, survey: &Survey) -> Option<u32> {
        let roomy = self.config.pool_blocks / 100 * u64::from(self.config.roomy_percent);
        self.compacting = survey.live_blocks < roomy && survey.emptiest.is_some();
        if self.compacting && survey.empty.id().is_some() {
            return survey.empty.id();
        }
        if self.compacting
            && let Some((_, owed, _, id)) = survey.emptiest
            && (owed == 0 || self.budget.promise(u64::from(owed)))
        {
            return Some(id);
        }
        self.compacting = false;
        let limit = survey.live_blocks * u64::from(self.config.probation_percent);
        let (first, second) = if survey.probation_live_blocks * 100 > limit {
            (&survey.probation, &survey.main)
        } else {
            (&survey.main, &survey.probation)
        };
        survey.empty.id().or(first.id()).or(second.id()).or(survey.nearly_clean_id())
    }

    fn retain(&mut self, granule: Granule, queue: Queue, heat: u8, blocks: u32) -> bool {
        let wanted = self.compacting || self.is_hot(queue, heat);
        if wanted && self.budget.promise(u64::from(blocks)) {
            return true;
        }
        self.ghost.insert(granule);
        false
    }

    fn spend(&mut self, admitted_blocks: u64, moved_blocks: u64) {
        self.budget.spend(admitted_blocks, moved_blocks);
    }

    fn set_write_amplification_max(&mut self, percent: u32) {
        self.budget.set_max(percent);
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.ghost.heap_bytes()
    }
}

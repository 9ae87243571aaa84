//! S3-FIFO over segments: two streams, a ghost, and reinsertion of what was hit.
//!
//! After "FIFO queues are all you need for cache eviction" (Yang and others, SOSP 2023). The
//! queues are streams of the log and a step of the queue is a segment set, so eviction order costs
//! no memory at all; what the paper keeps per object is here the engine's heat per granule. Unlike
//! in the paper reinsertion is a write to the SSD, and so has a budget.
//!
//! And unlike in the paper the share of probation is not fixed, for no share suits all workloads: as
//! in ARC each queue has its own ghost, and the queue whose ghost knows what is missed grows. The
//! share is found anew after every start; nothing of it is on the SSD.

use super::{Access, Budget, Counts, Emptiest, Ghost, Offer, Part, Policy, Queue, Survey, Thrift};

/// Share of the live space, in percent, that probation keeps at the least. What only rewrites, in rounds, wants
/// none of it; a ghost's hit brings back more.
const PROBATION_PERCENT_MIN: u8 = 1;

/// Share that it has at the most: main is what withstands a scan, and half of the pool is left to
/// it. With 90 % the worst case on recorded traces was worse, the mean of all sizes no better.
const PROBATION_PERCENT_MAX: u8 = 50;

/// How long after its opening hits in a unit say nothing yet, in percent of the pool: "Clock2Q+" (VLDB 2026) calls that a
/// correlation window. Main has one as well, for what is written anew, or kept, is young again.
const YOUNG_PERCENT_PROBATION: u64 = 8;
const YOUNG_PERCENT_MAIN: u64 = 6;

/// Heat from which clean data may use the whole budget: the highest. What has less is given up first where headers and
/// images take a part of it. From 2 on as well, overwriting goes beyond `write_amplification_max`.
const KEPT_FIRST_HEAT: u8 = crate::index::HEAT_MAX;

/// While writers wait for room, what is moved stays within the maximum over this part of the pool, too, and over no
/// more than so many blocks (1 GiB). What reads have brought in for a lap without a move would else be spent at once, and
/// all that time be the writers' (`forebay-bench smooth --rows filled`).
const AWAITED_WINDOW_PARTS: u64 = 8;
/// See [`AWAITED_WINDOW_PARTS`].
const AWAITED_WINDOW_BLOCKS_MAX: u64 = (1 << 30) / crate::ids::BLOCK_BYTES;

/// Times that it is drawn anew what a write budget leaves out, while as much is missed as the pool has granules.
const ROUNDS: u32 = 8;

/// Bytes written per byte admitted, in percent, of what reservations alone keep.
const RESERVED_PERCENT: u32 = 200;

/// A whole, in the parts that probation's share is counted in: more than a ghost has granules below
/// 100 TiB. Beyond that the share moves by one part all the same.
const WHOLE: u64 = 1_000_000_000;

/// Tunables of [`S3Fifo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct S3FifoConfig {
    /// Share of the live space, in percent, above which the probationary stream is reclaimed
    /// first, until misses have taught another one; from 1 to 50.
    pub probation_percent: u8,
    /// Heat from which a granule is promoted when its probation ends. One hit is reuse, since those of the first
    /// time count for nothing ([`Policy::is_reuse`]).
    pub promote_heat: u8,
    /// Bytes written per byte admitted, in percent, at the most; from 100 (never retain).
    pub write_amplification_max_percent: u32,
    /// Length of the budget's window, in admitted blocks: about the blocks of the pool, one lap.
    pub window_blocks: u64,
    /// Granules that the two ghosts remember, each a half: as many as nine tenths of the pool hold.
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
        let probation_percent = 7;
        Self {
            probation_percent,
            promote_heat: 1,
            write_amplification_max_percent: 150,
            window_blocks: pool_blocks.max(1),
            ghost_granules: Self::ghost_granules(pool_blocks, Self::GRANULE_BLOCKS_MIN),
            pool_blocks,
            roomy_percent: 60,
        }
    }

    /// Length of the budget's window while writers wait, see [`AWAITED_WINDOW_PARTS`].
    fn awaited_window_blocks(&self) -> u64 {
        (self.window_blocks / AWAITED_WINDOW_PARTS).clamp(1, AWAITED_WINDOW_BLOCKS_MAX)
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
    /// What left probation, and what left main; a block is in one of them.
    probation_ghost: Ghost,
    main_ghost: Ghost,
    /// Share of the live space, in parts of [`WHOLE`], above which probation is reclaimed first.
    share: u64,
    /// What a remembered miss adds to the share or takes from it.
    share_step: u64,
    /// Blocks admitted while the pool fills: until room has to be made.
    filling: Option<u64>,
    budget: Budget,
    /// The same over a short window, for moves that writers wait for.
    awaited: Budget,
    /// What of all that is offered is left out, and misses after which it is drawn anew what that is.
    thrift: Thrift,
    round_misses: u64,
    /// What is kept for reservations alone: at most as much as is admitted. Where half of what is reclaimed
    /// is reserved, which is the most that is promised, no more is needed.
    reserved: Budget,
    counts: Counts,
    ghost_hits: u64,
    /// Whether the last choice was made to compact.
    compacting: bool,
    /// Whether writers were held back when it was made.
    holds_back: bool,
}

impl S3Fifo {
    /// An empty policy; all of its memory is allocated here.
    ///
    /// # Panics
    /// If a tunable is out of the range that its description gives.
    pub fn new(config: S3FifoConfig) -> Self {
        let share_range = PROBATION_PERCENT_MIN..=PROBATION_PERCENT_MAX;
        assert!(share_range.contains(&config.probation_percent));
        let ghost_granules = config.ghost_granules.div_ceil(2);
        Self {
            probation_ghost: Ghost::new(ghost_granules),
            main_ghost: Ghost::new(ghost_granules),
            share: parts(config.probation_percent),
            share_step: (WHOLE / u64::from(ghost_granules.max(1))).max(1),
            filling: Some(0),
            budget: Budget::new(config.write_amplification_max_percent, config.window_blocks),
            awaited: Budget::new(
                config.write_amplification_max_percent,
                config.awaited_window_blocks(),
            ),
            thrift: Thrift::default(),
            round_misses: u64::from(config.ghost_granules / ROUNDS).max(1),
            reserved: Budget::new(RESERVED_PERCENT, config.window_blocks),
            counts: Counts::default(),
            ghost_hits: 0,
            compacting: false,
            holds_back: false,
            config,
        }
    }

    /// Admissions that the ghost sent straight to the main stream.
    pub fn ghost_hits(&self) -> u64 {
        self.ghost_hits
    }

    /// The queue that any of these blocks left of late.
    fn left_from(&self, part: Part) -> Option<Queue> {
        if self.probation_ghost.contains(part) {
            return Some(Queue::Probation);
        }
        self.main_ghost.contains(part).then_some(Queue::Main)
    }

    /// Where what is brought in goes. The ghost's entry stays.
    fn queue_of(&mut self, part: Part) -> Queue {
        if self.left_from(part).is_some() {
            self.ghost_hits += 1;
            return Queue::Main;
        }
        if self.fills_main() { Queue::Main } else { Queue::Probation }
    }

    /// The queue that a missed granule left of late should have been larger.
    fn learn(&mut self, left_from: Queue) {
        let share = match left_from {
            Queue::Probation => self.share + self.share_step,
            Queue::Main => self.share.saturating_sub(self.share_step),
        };
        self.share = share.clamp(parts(PROBATION_PERCENT_MIN), parts(PROBATION_PERCENT_MAX));
    }

    /// Whether the pool still fills and probation has had its share. What nobody has to make room
    /// for may as well be kept: where a scan longer than the pool comes round, it is hit then.
    fn fills_main(&self) -> bool {
        self.filling.is_some_and(|blocks| exceeds(blocks, self.share, self.config.pool_blocks))
    }

    /// The unit with the fewest dirty blocks, if moving them gains as much as the budget could pay for
    /// again and again: so much that it is what admissions take and the moves themselves.
    fn pack(&mut self, survey: &Survey) -> Option<u32> {
        let (dirty, _, id, packed) = survey.fewest_dirty?;
        let pays = self.budget.pays(dirty.into(), packed.saturating_sub(dirty).into());
        (pays && self.budget.promise(dirty.into())).then_some(id)
    }

    fn is_hot(&self, queue: Queue, heat: u8) -> bool {
        match queue {
            Queue::Probation => heat >= self.config.promote_heat,
            Queue::Main => heat >= 1,
        }
    }
}

fn parts(percent: u8) -> u64 {
    WHOLE / 100 * u64::from(percent)
}

/// Whether `part` is more than `share` of `all`.
fn exceeds(part: u64, share: u64, all: u64) -> bool {
    u128::from(part) * u128::from(WHOLE) > u128::from(all) * u128::from(share)
}

impl Policy for S3Fifo {
    fn access(&mut self, part: Part, access: Access, hit: bool) {
        self.counts.add(access, hit);
        if !hit && let Some(queue) = self.left_from(part) {
            self.learn(queue);
        }
    }

    fn admit(&mut self, part: Part) -> Option<Queue> {
        (!self.leaves_out(part, false)).then(|| self.queue_of(part))
    }

    fn leaves_out(&self, part: Part, written_back: bool) -> bool {
        if self.thrift == Thrift::default() {
            return false;
        }
        let offer = match (written_back, self.left_from(part)) {
            (true, _) => Offer::Dirty,
            (false, Some(_)) => Offer::Known,
            (false, None) => Offer::New,
        };
        let missed = self.counts.read_misses + self.counts.write_misses;
        self.thrift.leaves_out(part.granule, offer, missed / self.round_misses)
    }

    fn set_thrift(&mut self, thrift: Thrift) {
        self.thrift = thrift;
    }

    fn place(&mut self, part: Part, from: Option<Queue>) -> Queue {
        from.unwrap_or_else(|| self.queue_of(part))
    }

    fn is_reuse(&self, queue: Queue, age_blocks: u64) -> bool {
        let percent = match queue {
            Queue::Probation => YOUNG_PERCENT_PROBATION,
            Queue::Main => YOUNG_PERCENT_MAIN,
        };
        age_blocks >= self.config.pool_blocks * percent / 100
    }

    fn choose(&mut self, survey: &Survey) -> Option<u32> {
        self.filling = None;
        self.holds_back = survey.holds_back;
        let roomy = self.config.pool_blocks / 100 * u64::from(self.config.roomy_percent);
        self.compacting = survey.live_blocks < roomy && survey.emptiest.is_some();
        if self.compacting && survey.empty.id().is_some() {
            return survey.empty.id();
        }
        if self.compacting
            && let Some(Emptiest { dirty_blocks, id, .. }) = survey.emptiest
            && (dirty_blocks == 0 || self.budget.promise(dirty_blocks.into()))
        {
            return Some(id);
        }
        self.compacting = false;
        let is_large = exceeds(survey.probation_live_blocks, self.share, survey.live_blocks);
        let (first, second) = if is_large {
            (&survey.probation, &survey.main)
        } else {
            (&survey.main, &survey.probation)
        };
        let clean = survey.empty.id().or(first.id()).or(second.id());
        clean.or(survey.nearly_clean_id()).or_else(|| self.pack(survey))
    }

    fn begin_other(&mut self) {
        (self.compacting, self.holds_back) = (false, false);
    }

    fn retain(&mut self, part: Part, queue: Queue, heat: u8) -> bool {
        let blocks = u64::from(part.count());
        let wanted = self.compacting || self.is_hot(queue, heat);
        let wanted = wanted && (!self.holds_back || self.awaited.has_room(blocks));
        let granted = |budget: &mut Budget| match heat {
            KEPT_FIRST_HEAT.. => budget.promise(blocks),
            _ => budget.promise_cooler(blocks),
        };
        if wanted && granted(&mut self.budget) {
            if self.holds_back {
                self.awaited.promise(blocks);
            }
            return true;
        }
        false
    }

    fn dropped(&mut self, part: Part, queue: Queue) {
        let (into, other) = match queue {
            Queue::Probation => (&mut self.probation_ghost, &mut self.main_ghost),
            Queue::Main => (&mut self.main_ghost, &mut self.probation_ghost),
        };
        into.insert(part);
        other.remove(part);
    }

    fn retain_reserved(&mut self, blocks: u32) -> bool {
        let granted = self.reserved.promise(blocks.into());
        if granted {
            self.reserved.spend(0, blocks.into());
        }
        granted
    }

    fn spend(&mut self, admitted_blocks: u64, moved_blocks: u64) {
        self.reserved.spend(admitted_blocks, 0);
        self.budget.spend(admitted_blocks, moved_blocks);
        self.awaited.spend(admitted_blocks, moved_blocks);
        if let Some(blocks) = &mut self.filling {
            *blocks += admitted_blocks;
        }
    }

    fn spend_overhead(&mut self, blocks: u64) {
        self.budget.spend_overhead(blocks);
    }

    fn set_write_amplification_max(&mut self, percent: u32) {
        self.budget.set_max(percent);
        self.awaited.set_max(percent);
    }

    fn resize(&mut self, pool_blocks: u64) {
        let fresh = S3FifoConfig::for_pool(pool_blocks);
        self.config = S3FifoConfig {
            window_blocks: fresh.window_blocks,
            ghost_granules: fresh.ghost_granules,
            pool_blocks,
            ..self.config
        };
        let ghost_granules = self.config.ghost_granules.div_ceil(2);
        self.probation_ghost = Ghost::new(ghost_granules);
        self.main_ghost = Ghost::new(ghost_granules);
        self.share_step = (WHOLE / u64::from(ghost_granules.max(1))).max(1);
        self.round_misses = u64::from(fresh.ghost_granules / ROUNDS).max(1);
        self.budget.set_window(fresh.window_blocks);
        self.awaited.set_window(fresh.awaited_window_blocks());
        self.reserved.set_window(fresh.window_blocks);
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.probation_ghost.heap_bytes() + self.main_ghost.heap_bytes()
    }
}

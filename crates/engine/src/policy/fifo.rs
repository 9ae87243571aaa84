//! Oldest first, nothing retained: the yardstick that a better policy has to beat.

use super::{Access, Counts, Oldest, Part, Policy, Queue, Survey, Thrift};

/// Reclaims in the order of the log and never moves what could be dropped. Everything is admitted
/// into one stream.
#[derive(Debug, Default)]
pub struct Fifo {
    counts: Counts,
}

impl Fifo {
    /// A policy without memory of anything.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Policy for Fifo {
    fn access(&mut self, _part: Part, access: Access, hit: bool) {
        self.counts.add(access, hit);
    }

    fn admit(&mut self, _part: Part) -> Option<Queue> {
        Some(Queue::Probation)
    }

    fn place(&mut self, _part: Part, from: Option<Queue>) -> Queue {
        from.unwrap_or(Queue::Probation)
    }

    fn leaves_out(&self, _part: Part, _written_back: bool) -> bool {
        false
    }

    fn set_thrift(&mut self, _thrift: Thrift) {}

    fn is_reuse(&self, _queue: Queue, _age_blocks: u64) -> bool {
        true
    }

    fn choose(&mut self, survey: &Survey) -> Option<u32> {
        // Units of Main are here if the pool ran under another policy before.
        let clean = [survey.probation.0, survey.main.0].into_iter().flatten().min();
        survey.empty.id().or(Oldest(clean).id()).or(survey.nearly_clean_id())
    }

    fn retain(&mut self, _part: Part, _queue: Queue, _heat: u8) -> bool {
        false
    }

    fn spend(&mut self, _admitted_blocks: u64, _moved_blocks: u64) {}

    fn set_write_amplification_max(&mut self, _percent: u32) {}

    fn resize(&mut self, _pool_blocks: u64) {}

    fn counts(&self) -> Counts {
        self.counts
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
    }
}

//! The tier in RAM without its bytes: what the daemon lets [`Tier`] decide, block by block.

use forebay_engine::ids::VolumeId;
use forebay_engine::policy::{Granule, Queue, TIER_NODE_BYTES, Tier};

use crate::workload::Workload;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Frame {
    block: u32,
    /// What it holds was overtaken by a write that only the origin has.
    stale: bool,
    /// What was read from the log unchecked never goes back there, and the log does not rely on it.
    checked: bool,
}

/// A frame that is to be given up.
pub(super) struct Victim {
    slot: u32,
    /// What it holds, if that is the newest version and known to be right.
    pub block: Option<u32>,
    /// The queue that lets it go.
    pub queue: Queue,
}

/// The frames and who is in them.
pub(super) struct Ram<'a> {
    workload: &'a Workload,
    tier: Tier,
    frames: Vec<Frame>,
    /// The frame of each block of the workload; none at all if the tier is off.
    slots: Vec<u32>,
}

impl<'a> Ram<'a> {
    /// A tier of so many blocks. More than the workload has are not needed.
    pub fn new(blocks: usize, workload: &'a Workload) -> Self {
        let limit = u32::try_from(blocks.min(workload.footprint())).unwrap_or(u32::MAX);
        let mut tier = Tier::default();
        while tier.slots() < u64::from(limit) && tier.grow() {}
        tier.set_limit(limit.min(u32::try_from(tier.slots()).unwrap_or(u32::MAX)));
        tier.begin_anew();
        let used = if limit > 0 { workload.footprint() } else { 0 };
        let frame = Frame { block: NONE, stale: false, checked: false };
        Self { workload, tier, frames: vec![frame; limit as usize], slots: vec![NONE; used] }
    }

    pub fn is_off(&self) -> bool {
        self.frames.is_empty()
    }

    pub fn limit(&self) -> u32 {
        self.tier.limit()
    }

    pub fn memory_bytes(&self) -> usize {
        self.frames.len() * TIER_NODE_BYTES + self.tier.ghost_bytes()
    }

    fn find(&self, block: u32) -> Option<u32> {
        self.slots.get(block as usize).copied().filter(|&slot| slot != NONE)
    }

    fn find_fresh(&self, block: u32) -> Option<u32> {
        self.find(block).filter(|&slot| !self.frames[slot as usize].stale)
    }

    fn id(&self, block: u32) -> Granule {
        let (volume, number) = self.workload.blocks[block as usize];
        Granule { volume: VolumeId(volume + 1), number }
    }

    /// Whether a block's newest version is here.
    pub fn holds(&self, block: u32) -> bool {
        self.find_fresh(block).is_some()
    }

    /// Whether it is, was asked for again since it came, and is known to be right.
    pub fn holds_hot(&self, block: u32) -> bool {
        let checked = |slot: &u32| self.frames[*slot as usize].checked;
        self.find_fresh(block).filter(checked).is_some_and(|slot| self.tier.is_hot(slot))
    }

    /// A client has read a block from here.
    pub fn hit(&mut self, block: u32) {
        if let Some(slot) = self.find_fresh(block) {
            self.tier.hit(slot);
        }
    }

    /// Whether one of some blocks that the log holds is worth being brought here; the others are remembered.
    pub fn wants(&mut self, blocks: &[u32]) -> bool {
        let mut wanted = false;
        for &block in blocks {
            let id = self.id(block);
            wanted |= self.tier.is_wanted(id);
        }
        wanted
    }

    /// Puts a block here; false if a frame must be given up first.
    pub fn enter(&mut self, block: u32, checked: bool) -> bool {
        if self.find(block).is_some() {
            self.refresh(block, checked);
            return true;
        }
        let Some(slot) = self.tier.take_free() else { return false };
        self.tier.enter(slot, self.id(block));
        self.frames[slot as usize] = Frame { block, stale: false, checked };
        self.slots[block as usize] = slot;
        true
    }

    /// Gives a frame that is stale, or not known to be right, its block's newest version.
    pub fn refresh(&mut self, block: u32, checked: bool) {
        let Some(slot) = self.find(block) else { return };
        let frame = &mut self.frames[slot as usize];
        if frame.stale || checked {
            (frame.stale, frame.checked) = (false, checked);
        }
    }

    /// The newest version of a block is elsewhere.
    pub fn void(&mut self, block: u32) {
        if let Some(slot) = self.find(block) {
            self.frames[slot as usize].stale = true;
        }
    }

    /// The frame that is to go next.
    pub fn victim(&mut self) -> Option<Victim> {
        let (slot, queue) = self.tier.victim()?;
        let frame = self.frames[slot as usize];
        let block = (!frame.stale && frame.checked).then_some(frame.block);
        Some(Victim { slot, block, queue })
    }

    /// Gives a victim's frame up.
    pub fn give_up(&mut self, victim: &Victim) {
        let Frame { block, stale, .. } = self.frames[victim.slot as usize];
        let remembered = victim.queue == Queue::Probation && !stale;
        let id = remembered.then(|| self.id(block));
        self.tier.leave(victim.slot, id);
        self.slots[block as usize] = NONE;
    }
}

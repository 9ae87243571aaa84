//! What requests have to do with RAM: hits, what is brought there and what is let go to the log.

use forebay_device::Buf;

use crate::core::Core;
use crate::counters::add;
use crate::format::Mode;
use crate::ids::{BLOCK_BYTES, Location, SECTORS_ALL, VolumeId};
use crate::index::Mapping;
use crate::limits::{RAM_DEMOTE_BYTES_MAX, RAM_EVICT_FRAMES, RAM_FILL_BLOCKS_MAX};
use crate::planted::{self, Bug, seen};
use crate::policy::{Part, Queue};
use crate::populate::Plan;
use crate::ram::Source;
use crate::read::blocks_of;
use crate::volume::VolumeState;

const BLOCK: usize = BLOCK_BYTES as usize;

impl Core {
    /// Whether RAM may serve a volume. In bypass mode only what the origin lacks is served from the
    /// cache, and RAM does not know what that is.
    pub(crate) fn may_use_ram(&self, v: &VolumeState) -> bool {
        !self.ram.borrow().is_off() && self.mode_of(v) != Mode::Bypass
    }

    /// Serves a read from RAM, if all of it is there.
    pub(crate) fn read_ram(
        &self,
        v: &VolumeState,
        offset: u64,
        buf: &mut Buf,
        passing: bool,
    ) -> bool {
        let served = self.may_use_ram(v) && self.ram.borrow_mut().read(v.id, offset, buf, passing);
        if served {
            seen("read from RAM");
            add(&self.counters.read_ram_hits, 1);
            add(&self.counters.read_ram_bytes, buf.len() as u64);
        }
        served
    }

    /// Whether RAM would serve a read of these blocks.
    pub(crate) fn is_in_ram(&self, v: &VolumeState, first: u64, count: u32) -> bool {
        let ram = self.ram.borrow();
        let here = |block| ram.holds(v.id, block);
        self.may_use_ram(v) && (first..first + u64::from(count)).all(here)
    }

    /// How far what is at byte `at` goes on being in RAM, or not being there; at most to `until`.
    pub(crate) fn ram_run(&self, v: &VolumeState, at: u64, until: u64) -> (bool, u64) {
        if !self.may_use_ram(v) {
            return (false, until);
        }
        let ram = self.ram.borrow();
        let (first, count) = blocks_of(at, until - at);
        let here = ram.holds(v.id, first);
        let blocks = first + 1..first + u64::from(count);
        let border = blocks.into_iter().find(|&block| ram.holds(v.id, block) != here);
        (here, border.map_or(until, |block| block * BLOCK_BYTES))
    }

    /// Whether a read that cache devices can serve shall be brought into RAM by this reactor.
    pub(crate) fn is_wanted_in_ram(&self, v: &VolumeState, first: u64, count: u32) -> bool {
        count <= RAM_FILL_BLOCKS_MAX
            && self.may_use_ram(v)
            && self.ram.borrow_mut().wants(v.id, first, count)
    }

    /// Brings the whole blocks of what was read from a run of the log, which is pinned, into RAM, if
    /// the index still says that they are there and nobody is about to change them (INV-37). `verified`
    /// says how they were read.
    pub(crate) fn fill_from_log(
        &self,
        v: &VolumeState,
        m: &Mapping,
        offset: u64,
        bytes: &[u8],
        verified: bool,
    ) {
        let first = offset.div_ceil(BLOCK_BYTES);
        let end = (offset + bytes.len() as u64) / BLOCK_BYTES;
        // What was found damaged while it was read unchecked may be the damage.
        if first >= end || !verified && self.is_hurt_at(m) {
            return;
        }
        let locks = &self.shard(v.id, first).locks;
        let kept = !locks.is_held(v.id, first, end - first) && self.is_there(v.id, m, first, end);
        if !kept && !planted::is(Bug::RamFillOvertaken) {
            return seen("RAM: not filled, overtaken");
        }
        seen("RAM: filled from the log");
        let source = if verified { Source::LogVerified } else { Source::LogUnverified };
        for block in first..end {
            let at = (block * BLOCK_BYTES - offset) as usize;
            self.enter_frame(v.id, block, &bytes[at..at + BLOCK], source);
        }
    }

    /// Whether the index still maps blocks to where a run says that they are.
    fn is_there(&self, volume: VolumeId, m: &Mapping, first: u64, end: u64) -> bool {
        let mut there = 0;
        let count = (end - first) as u32;
        self.shard(volume, first).index.borrow().lookup(volume, first, count, |now| {
            let same = Location(m.location.0 + (now.block - m.block)) == now.location;
            if same && now.state.has_data() && now.sectors == SECTORS_ALL {
                there += now.count;
            }
        });
        there == count
    }

    /// Takes what was read from the origin into RAM alone, instead of populating the log with it; the
    /// log gets what RAM lets go. False if RAM cannot have it.
    pub(crate) fn fill_from_origin(&self, v: &VolumeState, plan: &Plan, bytes: &[u8]) -> bool {
        let valid = plan.population.is_valid() || planted::is(Bug::RamFillOvertaken);
        if !valid || !self.may_use_ram(v) {
            return false;
        }
        seen("RAM: filled from the origin");
        for &(first, count) in &plan.parts {
            for block in first..first + u64::from(count) {
                let at = (block - plan.block) as usize * BLOCK;
                self.enter_frame(v.id, block, &bytes[at..at + BLOCK], Source::Origin);
            }
        }
        self.end_population(&plan.population);
        true
    }

    fn enter_frame(&self, volume: VolumeId, block: u64, bytes: &[u8], source: Source) {
        add(&self.counters.ram_fill_blocks, 1);
        while !self.ram.borrow_mut().enter(volume, block, bytes, source) {
            let most = self.ram.borrow().limit() / 16;
            for _ in 0..RAM_EVICT_FRAMES.min(most).max(1) {
                if !self.evict_frame() {
                    return;
                }
            }
        }
    }

    /// After a logged write, under its range lock: what it made stale has its newest version again, but what was lost
    /// with a member meanwhile stays lost (INV-62).
    pub(crate) fn refresh_ram(&self, v: &VolumeState, offset: u64, data: &[u8]) {
        let mut ram = self.ram.borrow_mut();
        if ram.is_off() {
            return;
        }
        let first = offset.div_ceil(BLOCK_BYTES);
        let any_lost = self.lost.of(v.id) > 0;
        for block in first..(offset + data.len() as u64) / BLOCK_BYTES {
            if any_lost && self.is_lost(v.id, block) {
                continue;
            }
            let at = (block * BLOCK_BYTES - offset) as usize;
            ram.refresh(v.id, block, &data[at..at + BLOCK], Source::Write);
        }
    }

    /// Gives up one frame; false if none is in use.
    pub(super) fn evict_frame(&self) -> bool {
        let Some(victim) = self.ram.borrow_mut().victim() else { return false };
        add(&self.counters.ram_evict_blocks, 1);
        if !victim.stale {
            self.hand_to_log(victim.volume, victim.block, victim.queue);
        }
        self.ram.borrow_mut().give_up(&victim);
        true
    }

    /// Hands what only RAM holds to the log, if that wants it and has room: a population, only that the
    /// origin was read for it some time ago. Whoever changed the block since has made its frame stale.
    pub(super) fn hand_to_log(&self, volume: VolumeId, block: u64, queue: Queue) {
        let Some(plan) = self.plan_demotion(volume, block, queue) else { return };
        let Some(v) = self.volume(volume) else { return };
        let Some(data) = self.ram.borrow().copy_of(volume, block) else {
            return self.end_population(&plan.population);
        };
        seen("RAM: block handed to the log");
        add(&self.counters.ram_demote_blocks, 1);
        self.populate(&v, &plan, &data.freeze());
    }

    fn plan_demotion(&self, volume: VolumeId, block: u64, queue: Queue) -> Option<Plan> {
        let v = self.volume(volume)?;
        let shard = self.shard(volume, block);
        let mut mapped = false;
        let stays = |m: Mapping| !m.state.has_data() || !self.sets.borrow().is_let_go(m.location);
        shard.index.borrow().lookup(volume, block, 1, |m| mapped = stays(m));
        let room = self.space.demoting_bytes.get() + BLOCK_BYTES <= RAM_DEMOTE_BYTES_MAX;
        let volatile = v.origin.may_lose(block..block + 1);
        if mapped
            || !room
            || volatile
            || !self.may_populate(&v)
            || self.holds_enough(&v, 1).is_some()
        {
            return None;
        }
        let queue = match queue {
            Queue::Main => Queue::Main,
            // What came with it has been asked for again: it belongs beside that.
            Queue::Probation if shard.index.borrow().heat(volume, block) > 0 => Queue::Main,
            Queue::Probation => self.policy.borrow_mut().admit(Part::of(volume, block, 1))?,
        };
        let population = self.begin_population(&v, block, 1, true)?;
        Some(Plan { population, block, count: 1, queue, parts: vec![(block, 1)] })
    }
}

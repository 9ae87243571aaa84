//! The log and the index without data, and RAM before them.

use std::collections::VecDeque;

use forebay_engine::ids::VolumeId;
use forebay_engine::index::HEAT_MAX;
use forebay_engine::limits::{RAM_EVICT_FRAMES, RAM_FILL_BLOCKS_MAX};
use forebay_engine::policy::{
    Access, Granule, POOL_BLOCKS_PER_CACHE_BLOCK, Part, Policy, Queue, Reread, SAMPLED_BLOCKS,
    Survey, Thresholds, Touches, Unit,
};
use rustc_hash::FxHashMap;

use super::ram::Ram;
use super::{Report, Sequential, Settings};
use crate::workload::Workload;
use crate::{Error, Result};

/// Share of the units, in tenths of a percent, that are free or that nothing is needed for any more but to drop what is
/// read from them: what the daemon keeps where reads fill the cache, so that a root frees many of them at once. With units
/// of one block it is a single one, for a move frees what it takes.
const RESERVE_PER_MILLE: usize = 75;

/// The same of those that are really free, and how many at the least: a move takes some of one while it empties
/// another.
const STOCK_PER_MILLE: usize = 12;
const STOCK_MIN: usize = 2;

pub(super) const NOWHERE: u64 = u64::MAX;

/// A piece of the log.
pub(super) struct Piece {
    pub queue: Queue,
    opened: u64,
    pub live: u32,
    /// What was appended to it, in order.
    pub blocks: Vec<u32>,
    /// Full, and not yet let go of.
    closed: bool,
}

/// See the module.
pub(super) struct Log<'a> {
    pub settings: Settings,
    workload: &'a Workload,
    pub policy: &'a mut dyn Policy,
    /// Those that were ever in use, of `units`: a cache may be far larger than what a trace brings in.
    pub pieces: Vec<Piece>,
    units: usize,
    free: Vec<u32>,
    /// Units out of which everything that is worth it was moved; the rest is read on until the unit is needed.
    let_go: VecDeque<u32>,
    open: [Option<u32>; 2],
    /// Closed units of one block in the order of closing; those freed since are passed over.
    closed: [VecDeque<(u32, u64)>; 2],
    pub live: [u64; 2],
    opened: u64,
    reserve: usize,
    stock: usize,
    /// Where each block is: its unit times the size of a unit, plus its place there.
    pub places: Vec<u64>,
    /// Granule of each block, and its heat.
    pub granules: Vec<u32>,
    names: Vec<Granule>,
    pub heat: Vec<u8>,
    /// Blocks that nobody has asked for since they came in, or since they were kept last; where heat is of more than
    /// a block.
    cold: Vec<bool>,
    /// Live blocks of each granule: heat is kept only where something is.
    pub mapped: Vec<u32>,
    touches: Touches,
    /// Whether first reads are worth their write, of each volume, where the settings leave that open.
    reread: Reread,
    /// Whether streams come again, of each volume.
    streams: Reread,
    ram: Ram<'a>,
    pub report: Report,
    scratch: Vec<u32>,
}

pub(super) fn index_of(queue: Queue) -> usize {
    match queue {
        Queue::Probation => 0,
        Queue::Main => 1,
    }
}

/// Blocks of a pool that remembers as much of this workload as one of these settings: however large that is, what
/// is remembered takes no more memory than the workload.
fn remembered_blocks(settings: &Settings, workload: &Workload) -> u64 {
    // An access touches one cache block.
    let touched = (workload.accesses.len() as u64).saturating_mul(POOL_BLOCKS_PER_CACHE_BLOCK);
    (settings.pool_blocks as u64).min(touched.max(SAMPLED_BLOCKS))
}

impl<'a> Log<'a> {
    pub fn new(settings: Settings, workload: &'a Workload, policy: &'a mut dyn Policy) -> Self {
        let units = settings.pool_blocks / settings.unit_blocks;
        let mut numbers = FxHashMap::default();
        let mut names = Vec::new();
        let granules = workload.blocks.iter().map(|&(volume, block)| {
            let name =
                Granule { volume: VolumeId(volume + 1), number: block / settings.granule_blocks };
            *numbers.entry(name).or_insert_with(|| {
                names.push(name);
                names.len() as u32 - 1
            })
        });
        let granules: Vec<u32> = granules.collect();
        let counts = settings.thresholds.count();
        let pool_blocks = remembered_blocks(&settings, workload);
        let touches = if counts { Touches::for_pool(pool_blocks) } else { Touches::default() };
        let (reserve, stock) = match settings.unit_blocks {
            1 => (1, 1),
            _ => {
                (units * RESERVE_PER_MILLE / 1000, (units * STOCK_PER_MILLE / 1000).max(STOCK_MIN))
            }
        };
        Self {
            settings,
            workload,
            policy,
            pieces: Vec::new(),
            units,
            free: Vec::new(),
            let_go: VecDeque::new(),
            open: [None; 2],
            closed: Default::default(),
            live: [0; 2],
            opened: 0,
            reserve: reserve.max(stock),
            stock,
            places: vec![NOWHERE; workload.footprint()],
            heat: vec![0; names.len()],
            cold: vec![false; workload.footprint()],
            mapped: vec![0; names.len()],
            granules,
            names,
            touches,
            reread: Reread::of_first_reads(pool_blocks),
            streams: Reread::of_streams(pool_blocks),
            ram: Ram::new(settings.ram_blocks, workload),
            report: Report::default(),
            scratch: Vec::new(),
        }
    }

    fn holds(&self, block: u32) -> bool {
        self.places[block as usize] != NOWHERE
    }

    /// Some blocks of one granule, at least one.
    fn part(&self, blocks: impl IntoIterator<Item = u32>) -> Part {
        let (mut granule, mut bits) = (0, 0);
        for block in blocks {
            granule = self.granules[block as usize];
            bits |= 1 << (self.workload.blocks[block as usize].1 % self.settings.granule_blocks);
        }
        Part { granule: self.names[granule as usize], blocks: bits }
    }

    /// Where a block that is held lies.
    fn queue_of(&self, block: u32) -> Queue {
        let unit = self.places[block as usize] / self.settings.unit_blocks as u64;
        self.pieces[unit as usize].queue
    }

    /// Whether a hit in a block says that it is asked for again.
    fn is_reuse(&self, block: u32) -> bool {
        let unit = self.places[block as usize] / self.settings.unit_blocks as u64;
        let piece = &self.pieces[unit as usize];
        let age_blocks = (self.opened - piece.opened) * self.settings.unit_blocks as u64;
        self.policy.is_reuse(piece.queue, age_blocks)
    }

    fn heat_of(&self, block: u32) -> u8 {
        self.heat[self.granules[block as usize] as usize]
    }

    fn touch(&mut self, block: u32) {
        let heat = &mut self.heat[self.granules[block as usize] as usize];
        *heat = (*heat + 1).min(HEAT_MAX);
    }

    /// What the log holds of a block is void.
    fn forget(&mut self, block: u32) {
        let place = std::mem::replace(&mut self.places[block as usize], NOWHERE);
        if place == NOWHERE {
            return;
        }
        let unit = place / self.settings.unit_blocks as u64;
        let piece = &mut self.pieces[unit as usize];
        piece.live -= 1;
        self.live[index_of(piece.queue)] -= 1;
        if piece.closed && piece.live == 0 && self.settings.unit_blocks == 1 {
            self.release(unit as u32);
        }
        let granule = self.granules[block as usize] as usize;
        self.mapped[granule] -= 1;
        if self.mapped[granule] == 0 {
            self.heat[granule] = 0;
        }
    }

    fn release(&mut self, unit: u32) {
        let piece = &mut self.pieces[unit as usize];
        piece.blocks.clear();
        piece.closed = false;
        self.free.push(unit);
    }

    fn free_units(&self) -> usize {
        self.free.len() + self.units - self.pieces.len()
    }

    fn take_unit(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            assert!(self.pieces.len() < self.units, "room was made before");
            self.pieces.push(Piece {
                queue: Queue::Probation,
                opened: 0,
                live: 0,
                blocks: Vec::new(),
                closed: false,
            });
            self.pieces.len() as u32 - 1
        })
    }

    /// Appends a block, which is cold or not; there must be a free unit if the open one is full.
    fn append(&mut self, block: u32, queue: Queue, cold: bool) {
        self.cold[block as usize] = cold && self.settings.granule_blocks > 1;
        let heat = self.heat_of(block);
        self.forget(block);
        let at = index_of(queue);
        let unit = match self.open[at] {
            Some(unit) => unit,
            None => {
                self.opened += 1;
                let unit = self.take_unit();
                let piece = &mut self.pieces[unit as usize];
                (piece.queue, piece.opened) = (queue, self.opened);
                self.open[at] = Some(unit);
                unit
            }
        };
        let piece = &mut self.pieces[unit as usize];
        let place = u64::from(unit) * self.settings.unit_blocks as u64 + piece.blocks.len() as u64;
        piece.blocks.push(block);
        piece.live += 1;
        self.live[at] += 1;
        if piece.blocks.len() == self.settings.unit_blocks {
            piece.closed = true;
            self.open[at] = None;
            if self.settings.unit_blocks == 1 {
                self.closed[at].push_back((unit, piece.opened));
            }
        }
        self.places[block as usize] = place;
        let granule = self.granules[block as usize] as usize;
        self.mapped[granule] += 1;
        // What was written anew is still as hot.
        self.heat[granule] = heat;
        self.report.appended_blocks += 1;
    }

    fn unit(&self, id: u32) -> Unit {
        let piece = &self.pieces[id as usize];
        let size_blocks = self.settings.unit_blocks as u32;
        Unit {
            id,
            queue: piece.queue,
            opened: piece.opened,
            live_blocks: piece.live,
            dirty_blocks: 0,
            unflushed_blocks: 0,
            size_blocks,
            packed_blocks: size_blocks,
            copies: 1,
            pinned: false,
        }
    }

    fn survey(&mut self) -> Survey {
        if self.settings.unit_blocks > 1 {
            let closed =
                (0..self.pieces.len() as u32).filter(|&id| self.pieces[id as usize].closed);
            return Survey::of(closed.map(|id| self.unit(id)));
        }
        for queue in &mut self.closed {
            while let Some(&(unit, opened)) = queue.front()
                && !(self.pieces[unit as usize].closed
                    && self.pieces[unit as usize].opened == opened)
            {
                queue.pop_front();
            }
        }
        let oldest = self.closed.iter().filter_map(|queue| queue.front());
        let oldest = oldest.map(|&(id, _)| self.unit(id));
        Survey::of_oldest(oldest, self.live[0], self.live[0] + self.live[1])
    }

    /// Makes room for an append of a client's.
    fn make_room(&mut self) -> Result<()> {
        while self.free_units() + self.let_go.len() < self.reserve {
            let survey = self.survey();
            let Some(id) = self.policy.choose(&survey) else {
                return Err(Error::new(
                    "the cache is too small: nothing can be reclaimed",
                    "take a larger cache or a smaller --unit-blocks",
                ));
            };
            self.let_go_of(id);
            self.restock();
        }
        self.restock();
        Ok(())
    }

    /// Gives back what was let go of first until as many units as should be are really free.
    fn restock(&mut self) {
        while self.free_units() < self.stock
            && let Some(id) = self.let_go.pop_front()
        {
            self.give_back(id);
        }
    }

    /// What is live in a unit, granule by granule.
    fn live_in(&self, id: u32) -> Vec<u32> {
        let first = u64::from(id) * self.settings.unit_blocks as u64;
        let blocks = self.pieces[id as usize].blocks.iter().zip(first..);
        let is_here = |&(&block, place): &(&u32, u64)| self.places[block as usize] == place;
        let mut live: Vec<u32> = blocks.filter(is_here).map(|(&block, _)| block).collect();
        live.sort_by_key(|&block| self.granules[block as usize]);
        live
    }

    /// Drops what is left in a unit, and makes that free.
    fn give_back(&mut self, id: u32) {
        let queue = self.pieces[id as usize].queue;
        let live = self.live_in(id);
        for part in live.chunk_by(|&a, &b| self.granules[a as usize] == self.granules[b as usize]) {
            self.policy.dropped(self.part(part.iter().copied()), queue);
        }
        live.into_iter().for_each(|block| self.forget(block));
        self.release(id);
    }

    /// Appends what the policy retains of a unit to the main stream, granule by granule. The rest is read on.
    fn let_go_of(&mut self, id: u32) {
        let queue = self.pieces[id as usize].queue;
        let mut kept = std::mem::take(&mut self.scratch);
        kept.clear();
        // From here on it is nobody's but ours, also when its last block is forgotten.
        self.pieces[id as usize].closed = false;
        // As in the daemon: what was asked for of one granule has one fate.
        let live = self.live_in(id);
        let mut rest = &live[..];
        while let Some(&block) = rest.first() {
            let same =
                |&&other: &&u32| self.granules[other as usize] == self.granules[block as usize];
            let (part, after) = rest.split_at(rest.iter().take_while(same).count());
            rest = after;
            let granule = self.granules[part[0] as usize] as usize;
            let heat = self.heat[granule];
            let (cold, asked): (Vec<_>, Vec<_>) =
                part.iter().copied().partition(|&block| self.cold[block as usize]);
            for (part, heat) in [(asked, heat), (cold, 0)].iter().filter(|(p, _)| !p.is_empty()) {
                if self.policy.retain(self.part(part.iter().copied()), queue, *heat) {
                    self.heat[granule] -= u8::from(*heat > 0);
                    // What RAM holds, and is hot there, is left to it.
                    let (left, moved): (Vec<_>, Vec<_>) =
                        part.iter().partition(|&&block| self.ram.holds_hot(block));
                    self.policy.spend(0, moved.len() as u64);
                    kept.extend(moved);
                    left.into_iter().for_each(|&block| self.forget(block));
                }
            }
        }
        if self.settings.unit_blocks == 1 {
            // What is kept is in memory while its unit is given back.
            let heats: Vec<u8> = kept.iter().map(|&block| self.heat_of(block)).collect();
            kept.iter().for_each(|&block| self.forget(block));
            self.give_back(id);
            for (&block, heat) in kept.iter().zip(heats) {
                self.heat[self.granules[block as usize] as usize] = heat;
            }
        } else {
            self.let_go.push_back(id);
        }
        for &block in &kept {
            self.append(block, Queue::Main, true);
        }
        self.report.moved_blocks += kept.len() as u64;
        self.scratch = kept;
    }

    /// Whether all blocks of a read are in RAM.
    pub fn serves_from_ram(&self, blocks: &[u32]) -> bool {
        !self.ram.is_off() && blocks.iter().all(|&block| self.ram.holds(block))
    }

    /// Tells the policy of an access to blocks of one granule. Which of them the log has.
    fn note(&mut self, blocks: &[u32], access: Access) -> Vec<bool> {
        let mapped: Vec<bool> = blocks.iter().map(|&block| self.holds(block)).collect();
        self.policy.access(self.part(blocks.iter().copied()), access, !mapped.contains(&false));
        // As in the daemon: where the last of them lies.
        let last = mapped.iter().rposition(|&mapped| mapped);
        if last.is_some_and(|at| self.is_reuse(blocks[at])) {
            self.touch(blocks[0]);
            blocks.iter().for_each(|&block| self.cold[block as usize] = false);
        }
        mapped
    }

    /// A write, or the part of it that lies in one granule; which of its blocks were there is in `hits` then.
    pub fn write(&mut self, blocks: &[u32], hits: &mut Vec<bool>) -> Result<()> {
        hits.extend(blocks.iter().map(|&block| self.holds(block) || self.ram.holds(block)));
        let mapped = self.note(blocks, Access::Write);
        let part = self.part(blocks.iter().copied());
        let cached = !mapped.contains(&false);
        let left_out = !mapped.contains(&true) && self.policy.leaves_out(part, true);
        if left_out || !self.is_brought_in(blocks[0], Access::Write, cached) {
            self.report.passed_blocks += blocks.len() as u64;
            for &block in blocks {
                self.forget(block);
                self.ram.void(block);
            }
            return Ok(());
        }
        let from = cached.then(|| self.queue_of(blocks[blocks.len() - 1]));
        let queue = self.policy.place(part, from);
        for &block in blocks {
            self.make_room()?;
            self.policy.spend(1, 0);
            self.append(block, queue, false);
            self.ram.refresh(block, true);
        }
        Ok(())
    }

    /// The same of a read; `from_ram` if RAM has all of the request, `guest` if RAM may have what of it is not there.
    pub fn read(
        &mut self,
        blocks: &[u32],
        from_ram: bool,
        guest: bool,
        hits: &mut Vec<bool>,
    ) -> Result<()> {
        let part = self.part(blocks.iter().copied());
        let in_ram: Vec<bool> = blocks.iter().map(|&block| self.ram.holds(block)).collect();
        let mapped = match from_ram {
            true => {
                self.policy.access(part, Access::Read, true);
                vec![false; blocks.len()]
            }
            false => self.note(blocks, Access::Read),
        };
        let (mut of_log, mut absent) = (Vec::new(), Vec::new());
        for (&block, at) in blocks.iter().zip(0..) {
            hits.push(in_ram[at] || mapped[at]);
            match (in_ram[at], mapped[at]) {
                (true, _) => {
                    self.ram.hit(block);
                    self.report.ram_hits += 1;
                }
                (false, true) => of_log.push(block),
                (false, false) => absent.push(block),
            }
        }
        if guest && !of_log.is_empty() && self.ram.wants(&of_log) {
            self.fill(&of_log, false)?;
        }
        if absent.is_empty() {
            self.ask_sample(blocks, true);
            return Ok(());
        }
        let wanted = self.is_brought_in(blocks[0], Access::Read, false);
        if !wanted {
            self.reread.elapsed(absent.len() as u64);
        }
        let Some(queue) = wanted.then(|| self.policy.admit(part)).flatten() else {
            self.report.passed_blocks += absent.len() as u64;
            return Ok(());
        };
        self.ask_sample(&absent, false);
        if guest {
            return self.fill(&absent, true);
        }
        absent.into_iter().try_for_each(|block| self.populate(block, queue))
    }

    /// A read, or the part of it that lies in one granule, of a stream that passes by.
    pub fn pass(&mut self, blocks: &[u32], hits: &mut Vec<bool>) {
        for &block in blocks {
            let hit = self.holds(block) || self.ram.holds(block);
            hits.push(hit);
            self.report.passed_blocks += u64::from(!hit);
        }
    }

    fn populate(&mut self, block: u32, queue: Queue) -> Result<()> {
        self.make_room()?;
        self.append(block, queue, true);
        self.policy.spend(1, 0);
        self.report.populated_blocks += 1;
        Ok(())
    }

    /// Whether RAM may have what a read of these blocks brings in.
    pub fn is_guest(&self, blocks: &[u32]) -> bool {
        !self.ram.is_off() && blocks.len() <= RAM_FILL_BLOCKS_MAX as usize
    }

    /// Brings blocks into RAM: from the origin, or unchecked from the log.
    fn fill(&mut self, blocks: &[u32], from_origin: bool) -> Result<()> {
        for &block in blocks {
            while !self.ram.enter(block, from_origin) {
                // As many at a time as in the daemon.
                let most = self.ram.limit() / 16;
                for _ in 0..RAM_EVICT_FRAMES.min(most).max(1) {
                    self.evict_frame()?;
                }
            }
        }
        Ok(())
    }

    /// Gives up one frame, and what it held alone to the log, if that wants it.
    fn evict_frame(&mut self) -> Result<()> {
        let Some(victim) = self.ram.victim() else { return Ok(()) };
        if let Some(block) = victim.block.filter(|&block| !self.holds(block)) {
            let is_hot = self.heat[self.granules[block as usize] as usize] > 0;
            let queue = match victim.queue {
                Queue::Main => Some(Queue::Main),
                // What came with it has been asked for again.
                Queue::Probation if is_hot => Some(Queue::Main),
                Queue::Probation => self.policy.admit(self.part([block])),
            };
            if let Some(queue) = queue {
                self.populate(block, queue)?;
            }
        }
        self.ram.give_up(&victim);
        Ok(())
    }

    /// Bytes of memory besides the policy's own.
    pub fn memory_bytes(&self) -> usize {
        let samples = self.reread.heap_bytes() + self.streams.heap_bytes();
        self.touches.heap_bytes() + samples + self.ram.memory_bytes()
    }

    /// Whether the cache block of this one has been asked for often enough, or is there.
    fn is_brought_in(&self, block: u32, access: Access, cached: bool) -> bool {
        let thresholds = self.thresholds(block);
        match thresholds.of(access) {
            0 => false,
            1 => true,
            _ if cached => true,
            _ => {
                let is_sampled = self.settings.auto && self.reread.samples(self.sampled_as(block));
                is_sampled || thresholds.reached(&self.touches, self.cache_block(block), access)
            }
        }
    }

    /// The piece of its volume of so many blocks that a block lies in.
    fn piece_of(&self, block: u32, blocks: u64) -> Granule {
        let (volume, number) = self.workload.blocks[block as usize];
        Granule { volume: VolumeId(volume + 1), number: number / blocks }
    }

    fn cache_block(&self, block: u32) -> Granule {
        self.piece_of(block, self.settings.cache_block_blocks)
    }

    /// As what a block is in the sample of first reads, or not.
    fn sampled_as(&self, block: u32) -> Granule {
        self.piece_of(block, self.settings.cache_block_blocks.max(self.settings.granule_blocks))
    }

    /// What holds for the volume of a block.
    fn thresholds(&self, block: u32) -> Thresholds {
        let said = self.settings.thresholds;
        let volume = self.cache_block(block).volume;
        match self.settings.auto && self.reread.worth(volume).is_doubted {
            true => Thresholds { read: 2, ..said },
            false => said,
        }
    }

    /// Tells the sample of first reads of blocks of one granule that were found, or come in.
    fn ask_sample(&mut self, blocks: &[u32], found: bool) {
        let count = blocks.len() as u64;
        let name = self.sampled_as(blocks[0]);
        let is_asked = self.settings.auto && self.reread.samples(name);
        let changed = match found {
            true => is_asked && self.reread.read(name),
            false => {
                if is_asked {
                    self.reread.came(name);
                }
                self.streams.elapsed(count);
                self.reread.elapsed(count)
            }
        };
        if changed && self.touches.is_off() {
            self.touches = Touches::for_pool(remembered_blocks(&self.settings, self.workload));
        }
    }

    /// Whether a read passes by: it is of a stream, and hardly anything of streams is read again.
    pub fn passes(&mut self, blocks: &[u32], is_stream: bool) -> bool {
        let per_piece = self.settings.cache_block_blocks.max(self.settings.granule_blocks);
        for &block in blocks {
            let name = self.sampled_as(block);
            // Once for each that is read from its beginning.
            let is_first = self.workload.blocks[block as usize].1.is_multiple_of(per_piece);
            if is_first && self.streams.samples(name) {
                self.streams.read(name);
                if is_stream {
                    self.streams.came(name);
                }
            }
        }
        let is_said = matches!(self.settings.sequential, Sequential::Passes(_));
        let volume = blocks.first().map(|&block| self.cache_block(block).volume);
        let passes =
            is_stream && volume.is_some_and(|it| is_said || self.streams.worth(it).is_doubted);
        if passes {
            self.streams.elapsed(blocks.len() as u64);
        }
        passes
    }

    /// Counts a request once for each cache block that it touches, if that is not cached as a whole.
    pub fn count(&mut self, blocks: &[u32], write: bool) {
        let access = if write { Access::Write } else { Access::Read };
        if blocks.first().is_none_or(|&block| self.thresholds(block).of(access) <= 1) {
            return;
        }
        let mut counted = None;
        if blocks.iter().all(|&block| self.holds(block) || self.ram.holds(block)) {
            return;
        }
        for &block in blocks {
            let name = self.cache_block(block);
            if counted != Some(name) {
                self.touches.note(name, access);
                counted = Some(name);
            }
        }
    }
}

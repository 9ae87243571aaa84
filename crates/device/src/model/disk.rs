//! A disk with a volatile write cache, in memory.
//!
//! * Requests complete after random latencies, out of order. A write takes effect at some instant
//!   between its submission and its completion, sometimes in two parts.
//! * A durable write has been made durable when it completes, and of the others each may be.
//! * `Flush` makes durable what completed before the flush was submitted; of the rest each write
//!   may become durable too.
//! * A power cut keeps, drops, tears or (in flight only) garbles each write that no flush covered.
//!   Where such writes overlap, the order in which they took effect is respected: a sector ends as
//!   its last durable version or as one that took effect after it.
//! * A flush that fails may lose any of the completed writes that it should have covered: later
//!   flushes do not bring them back, though reads show them until a power cut, as a page cache does.
//!   It spares what another flush covers that was under way: that one may have told of it by now.
//! * A killed process leaves what completed; what was in flight happened or did not.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::{Rc, Weak};

use super::world::{Crash, Rng, Settle, World};
use crate::buf::{Buf, Data};
use crate::device::{BlockDevice, Geometry, Request};
use crate::io::Completer;
use crate::runtime::{MICROSECOND, Nanos, Runtime};

/// Unit of tearing, in bytes, whatever the logical sector.
pub const TEAR_BYTES: u64 = 512;

const PAGE: usize = 4096;

/// A sparse disk image with copy-on-write pages; absent pages are zero, and take nothing.
#[derive(Clone, Default)]
pub struct Image {
    pages: BTreeMap<u64, Rc<[u8; PAGE]>>,
}

impl Image {
    /// Copies the bytes at `offset` out.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        for part in pages(offset..offset + out.len() as u64) {
            let target = &mut out[(part.start - offset) as usize..(part.end - offset) as usize];
            match self.pages.get(&(part.start / PAGE as u64)) {
                Some(page) => target.copy_from_slice(&page[within(&part)]),
                None => target.fill(0),
            }
        }
    }

    /// Puts `bytes` at `offset`.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        for part in pages(offset..offset + bytes.len() as u64) {
            let source = &bytes[(part.start - offset) as usize..(part.end - offset) as usize];
            let page = self.pages.entry(part.start / PAGE as u64);
            let page = page.or_insert_with(|| Rc::new([0; PAGE]));
            Rc::make_mut(page)[within(&part)].copy_from_slice(source);
        }
    }

    /// Zeroes `range`.
    pub fn zero(&mut self, range: Range<u64>) {
        let first = range.start / PAGE as u64;
        let end = range.end.div_ceil(PAGE as u64);
        let touched: Vec<u64> =
            self.pages.range(first..end.max(first)).map(|(&page, _)| page).collect();
        for page in touched {
            let at = page * PAGE as u64;
            let part = range.start.max(at)..range.end.min(at + PAGE as u64);
            if part.end - part.start == PAGE as u64 {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                Rc::make_mut(bytes)[within(&part)].fill(0);
            }
        }
    }
}

/// Where a part of one page lies in it.
fn within(part: &Range<u64>) -> Range<usize> {
    let start = part.start as usize % PAGE;
    start..start + (part.end - part.start) as usize
}

/// `range` cut at the boundaries of pages.
fn pages(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at;
        at = (start - start % PAGE as u64 + PAGE as u64).min(range.end);
        (start < range.end).then_some(start..at)
    })
}

/// Bytes that look like nothing that was ever written.
fn garbage(seed: u64, out: &mut [u8]) {
    let mut rng = Rng::new(seed);
    for chunk in out.chunks_mut(8) {
        chunk.copy_from_slice(&rng.bits().to_le_bytes()[..chunk.len()]);
    }
}

#[derive(Clone)]
enum Content {
    /// Bytes, the first of which belongs at this offset.
    Bytes(u64, Data),
    Zeroes,
}

/// What one write, or a part of it, does to an image.
#[derive(Clone)]
struct Effect {
    write: u64,
    range: Range<u64>,
    content: Content,
    /// When its write completed, on the count of completions.
    completed: Option<u64>,
    /// Sectors where something that took effect later is already durable.
    superseded: Vec<Range<u64>>,
}

impl Effect {
    fn apply(&self, range: Range<u64>, image: &mut Image) {
        match &self.content {
            Content::Bytes(base, data) => {
                let bytes = &data[(range.start - base) as usize..(range.end - base) as usize];
                image.write(range.start, bytes);
            }
            Content::Zeroes => image.zero(range),
        }
    }

    /// Applies the sectors that `keep` chooses and that nothing durable supersedes.
    fn apply_sectors(&self, image: &mut Image, mut keep: impl FnMut(u64) -> bool) {
        let mut at = self.range.start;
        while at < self.range.end {
            let end = (at + TEAR_BYTES).min(self.range.end);
            if !self.superseded.iter().any(|range| range.contains(&at)) && keep(at) {
                self.apply(at..end, image);
            }
            at = end;
        }
    }
}

/// What a crash does to one write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    Dropped,
    Prefix,
    Sectors,
    Garbled,
}

/// Everything a disk holds, and what is on its way to it: copied cheaply, so that a test can
/// crash at every single I/O of one run.
#[derive(Clone)]
pub struct DiskState {
    current: Image,
    durable: Image,
    size_bytes: u64,
    /// What a power cut leaves of the size.
    durable_bytes: u64,
    /// Effects on `current` that `durable` may lack, in the order in which they happened.
    unflushed: Vec<Effect>,
    /// Parts of writes in flight that have not taken effect, by number.
    pending: BTreeMap<u64, Effect>,
    writes: u64,
    completions: u64,
    /// Completions that the flushes under way cover.
    flushing: Vec<u64>,
    parts: u64,
}

/// What a [`SimDisk`] is like.
#[derive(Clone, Copy, Debug)]
pub struct DiskSettings {
    /// Size and abilities.
    pub geometry: Geometry,
    /// Shortest latency.
    pub latency_min: Nanos,
    /// Longest usual latency; one request in 64 takes up to ten times as long.
    pub latency_max: Nanos,
    /// Whether sectors being written when the power goes may end as garbage.
    pub garbles: bool,
    /// Whether discarded ranges may read as garbage, besides old data and zeroes.
    pub discard_garbles: bool,
    /// Whether what has completed may be lost in a power cut until it is flushed.
    pub write_cache: bool,
}

impl DiskSettings {
    /// An SSD of `size_bytes`, which does everything that the traits allow it to do.
    pub fn ssd(size_bytes: u64, sector_bytes: u32) -> Self {
        Self {
            geometry: Geometry {
                size_bytes,
                sector_bytes,
                discard: true,
                stripe: None,
                controller: None,
                durable_writes: true,
            },
            latency_min: 20 * MICROSECOND,
            latency_max: 200 * MICROSECOND,
            garbles: true,
            discard_garbles: true,
            write_cache: true,
        }
    }

    /// An origin of `size_bytes`: slower, and what it was writing when the power went never ends as
    /// garbage. It tears in units of [`TEAR_BYTES`] all the same, also within a larger sector.
    pub fn origin(size_bytes: u64, sector_bytes: u32, discard: bool) -> Self {
        Self {
            geometry: Geometry {
                size_bytes,
                sector_bytes,
                discard,
                stripe: None,
                controller: None,
                durable_writes: true,
            },
            latency_min: 200 * MICROSECOND,
            latency_max: 8_000 * MICROSECOND,
            garbles: false,
            discard_garbles: false,
            write_cache: true,
        }
    }
}

/// The disk.
pub struct SimDisk {
    world: Rc<World>,
    settings: DiskSettings,
    rng: RefCell<Rng>,
    state: RefCell<DiskState>,
    me: Weak<SimDisk>,
}

impl SimDisk {
    /// A disk of zeroes in `world`; `seed` decides its latencies and what crashes do to it.
    pub fn new(world: &Rc<World>, settings: DiskSettings, seed: u64) -> Rc<SimDisk> {
        let state = DiskState {
            current: Image::default(),
            durable: Image::default(),
            size_bytes: settings.geometry.size_bytes,
            durable_bytes: settings.geometry.size_bytes,
            unflushed: Vec::new(),
            pending: BTreeMap::new(),
            writes: 0,
            completions: 0,
            flushing: Vec::new(),
            parts: 0,
        };
        Self::with_state(world, settings, seed, state)
    }

    /// A disk that goes on from `state`. Requests that were in flight there never complete; call
    /// [`Settle::settle`] to decide what became of them.
    pub fn with_state(
        world: &Rc<World>,
        settings: DiskSettings,
        seed: u64,
        state: DiskState,
    ) -> Rc<SimDisk> {
        let disk = Rc::new_cyclic(|me| SimDisk {
            world: Rc::clone(world),
            settings,
            rng: RefCell::new(Rng::new(seed)),
            state: RefCell::new(state),
            me: Weak::clone(me),
        });
        let device: Rc<dyn Settle> = Rc::clone(&disk) as _;
        world.add_device(&device);
        disk
    }

    /// A copy of everything on the disk and on its way to it.
    pub fn state(&self) -> DiskState {
        self.state.borrow().clone()
    }

    /// What a read of this range would return at this instant, without any request.
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.state.borrow().current.read(offset, &mut out);
        out
    }

    /// Whether a request can make a difference to what a crash leaves. A read cannot, nor can a write of zeroes where zeroes
    /// are, durably, and with nothing else on its way; but for garbage, which some disks leave of a write on its way.
    pub fn would_change(&self, request: &Request) -> bool {
        let (start, data) = match request {
            Request::Read { .. } => return false,
            Request::Write { offset, data, .. } if data.iter().all(|byte| *byte == 0) => {
                (*offset, &data[..])
            }
            _ => return true,
        };
        let end = start + data.len() as u64;
        let state = self.state.borrow();
        let meets = |effect: &Effect| effect.range.start < end && start < effect.range.end;
        if state.unflushed.iter().chain(state.pending.values()).any(meets) {
            return true;
        }
        let mut found = vec![0; data.len()];
        [&state.durable, &state.current].iter().any(|image| {
            image.read(start, &mut found);
            found != data
        })
    }

    /// Makes the disk larger, as an administrator does; the new part reads as zeroes.
    pub fn grow(&self, size_bytes: u64) {
        self.grow_file(size_bytes);
        let mut state = self.state.borrow_mut();
        state.durable_bytes = state.size_bytes;
    }

    /// Makes the disk larger as a file becomes: until a flush that begins afterwards has ended, a power
    /// cut takes that back.
    pub fn grow_file(&self, size_bytes: u64) {
        let mut state = self.state.borrow_mut();
        state.size_bytes = size_bytes.max(state.size_bytes);
    }

    /// Puts bytes onto the disk, durable, without any request.
    pub fn poke(&self, offset: u64, bytes: &[u8]) {
        let mut state = self.state.borrow_mut();
        state.current.write(offset, bytes);
        state.durable.write(offset, bytes);
    }

    /// Writes (or parts of them) that a power cut could still undo.
    pub fn unflushed_count(&self) -> usize {
        let state = self.state.borrow();
        state.unflushed.len() + state.pending.len()
    }

    /// A flush has failed, wherever it was: what no good flush covered may be lost for good.
    pub fn fail_flush(&self) {
        if !self.settings.write_cache {
            return;
        }
        let rng = &mut *self.rng.borrow_mut();
        let state = &mut *self.state.borrow_mut();
        // A device that has not lost its cache loses nothing, one that has loses everything.
        let lost_percent = *rng.pick(&[0, 10, 50, 90, 100]);
        let spared = state.flushing.iter().copied().max().unwrap_or(0);
        let is_lost = |effect: &Effect, rng: &mut Rng| {
            effect.completed.is_some_and(|at| at > spared) && rng.below(100) < lost_percent
        };
        state.unflushed.retain(|effect| !is_lost(effect, rng));
    }

    /// A flush has failed and has lost just these bytes of what has completed.
    pub fn lose(&self, range: Range<u64>) {
        for effect in &mut self.state.borrow_mut().unflushed {
            effect.superseded.push(range.clone());
        }
    }

    fn latency(&self) -> Nanos {
        let mut rng = self.rng.borrow_mut();
        let usual = rng.between(self.settings.latency_min, self.settings.latency_max);
        if rng.one_in(64) { usual * rng.between(2, 10) } else { usual }
    }

    fn later(&self, delay: Nanos, event: impl FnOnce(&SimDisk) + 'static) {
        let Some(me) = self.me.upgrade() else { return };
        self.world.call_at(self.world.now() + delay, Box::new(move || event(&me)));
    }

    fn read(&self, request: Request, completer: Completer) {
        let latency = self.latency();
        let sample = if self.rng.borrow_mut().one_in(3) { 0 } else { latency };
        let Request::Read { offset, mut buf } = request else { return };
        if sample == 0 {
            self.state.borrow().current.read(offset, &mut buf);
        }
        self.later(latency, move |disk| {
            if sample > 0 {
                disk.state.borrow().current.read(offset, &mut buf);
            }
            completer.complete(Ok(()), Some(buf));
        });
    }

    fn write(&self, range: Range<u64>, content: Content, durable: bool, completer: Completer) {
        let sectors = (range.end - range.start) / TEAR_BYTES;
        let mut rng = self.rng.borrow_mut();
        let pieces = if sectors > 1 && rng.one_in(8) {
            let cut = range.start + TEAR_BYTES * rng.between(1, sectors - 1);
            vec![(range.start..cut, content.clone()), (cut..range.end, content)]
        } else {
            vec![(range, content)]
        };
        drop(rng);
        self.change(pieces, durable, completer);
    }

    /// Discards: up to three pieces, each of which keeps its content or becomes something else.
    /// What is kept is no piece of the write: it must not count as newer than what it keeps.
    fn discard(&self, range: Range<u64>, completer: Completer) {
        let mut rng = self.rng.borrow_mut();
        let mut pieces = Vec::new();
        let mut start = range.start;
        for pieces_left in [2, 1, 0] {
            let sectors = (range.end - start) / TEAR_BYTES;
            if sectors == 0 {
                break;
            }
            let len = if pieces_left > 0 { rng.between(1, sectors) } else { sectors };
            let piece = start..start + len * TEAR_BYTES;
            start = piece.end;
            match rng.below(4) {
                0 => {}
                1 if self.settings.discard_garbles => {
                    let mut bytes = Buf::new((len * TEAR_BYTES) as usize);
                    garbage(rng.bits(), &mut bytes);
                    pieces.push((piece.clone(), Content::Bytes(piece.start, bytes.freeze())));
                }
                _ => pieces.push((piece, Content::Zeroes)),
            }
        }
        drop(rng);
        self.change(pieces, false, completer);
    }

    /// Starts a write of these pieces, which take effect one by one.
    fn change(&self, pieces: Vec<(Range<u64>, Content)>, durable: bool, completer: Completer) {
        let latency = self.latency();
        let (write, parts) = self.register(pieces);
        for part in parts {
            let choice = self.rng.borrow_mut().below(4);
            match choice {
                0 => self.take_effect(part),
                1 => {
                    let delay = self.rng.borrow_mut().below(latency);
                    self.later(delay, move |disk| disk.take_effect(part));
                }
                _ => {} // when the write completes
            }
        }
        // Some of that is the flush of a durable one.
        let latency = if durable { latency + self.latency() } else { latency };
        self.later(latency, move |disk| {
            disk.end_write(write);
            if durable {
                disk.persist(|effect| effect.write == write);
            }
            completer.done(Ok(()));
        });
    }

    /// Notes a write in flight; returns its number and those of its parts.
    fn register(&self, pieces: Vec<(Range<u64>, Content)>) -> (u64, Vec<u64>) {
        let mut state = self.state.borrow_mut();
        state.writes += 1;
        let write = state.writes;
        let mut parts = Vec::new();
        for (range, content) in pieces {
            state.parts += 1;
            let part = state.parts;
            let effect = Effect { write, range, content, completed: None, superseded: Vec::new() };
            state.pending.insert(part, effect);
            parts.push(part);
        }
        (write, parts)
    }

    fn take_effect(&self, part: u64) {
        let state = &mut *self.state.borrow_mut();
        if let Some(effect) = state.pending.remove(&part) {
            effect.apply(effect.range.clone(), &mut state.current);
            state.unflushed.push(effect);
        }
    }

    fn end_write(&self, write: u64) {
        let rest: Vec<u64> = {
            let state = self.state.borrow();
            let parts = state.pending.iter().filter(|(_, effect)| effect.write == write);
            parts.map(|(part, _)| *part).collect()
        };
        for part in rest {
            self.take_effect(part);
        }
        let state = &mut *self.state.borrow_mut();
        state.completions += 1;
        for effect in state.unflushed.iter_mut().filter(|effect| effect.write == write) {
            effect.completed = Some(state.completions);
        }
    }

    /// Makes what completed by `mark` durable, and of the rest what chance wants.
    fn flush(&self, mark: u64) {
        {
            let mut state = self.state.borrow_mut();
            if let Some(own) = state.flushing.iter().position(|at| *at == mark) {
                state.flushing.remove(own);
            }
        }
        self.persist(|effect| effect.completed.is_some_and(|at| at <= mark));
    }

    /// Makes these effects durable, and of the rest what chance wants.
    fn persist(&self, is_covered: impl Fn(&Effect) -> bool) {
        let mut rng = self.rng.borrow_mut();
        let state = &mut *self.state.borrow_mut();
        let mut kept: Vec<Effect> = Vec::new();
        for effect in state.unflushed.drain(..) {
            if !is_covered(&effect) && !rng.one_in(8) {
                kept.push(effect);
                continue;
            }
            effect.apply_sectors(&mut state.durable, |_| true);
            let range = effect.range;
            for earlier in &mut kept {
                if earlier.range.start < range.end && range.start < earlier.range.end {
                    earlier.superseded.push(range.clone());
                }
            }
        }
        state.unflushed = kept;
    }

    fn fate(rng: &mut Rng, keep_percent: u64, may_garble: bool) -> Fate {
        match rng.below(8) {
            0 => Fate::Prefix,
            1 => Fate::Sectors,
            2 if may_garble => Fate::Garbled,
            _ if rng.below(100) < keep_percent => Fate::Kept,
            _ => Fate::Dropped,
        }
    }

    fn settle_effect(rng: &mut Rng, effect: &Effect, fate: Fate, image: &mut Image) {
        let cut = rng.below(effect.range.end - effect.range.start) + effect.range.start;
        match fate {
            Fate::Dropped => {}
            Fate::Kept => effect.apply_sectors(image, |_| true),
            Fate::Prefix => effect.apply_sectors(image, |at| at + TEAR_BYTES <= cut),
            Fate::Sectors => effect.apply_sectors(image, |_| rng.one_in(2)),
            Fate::Garbled => {
                effect.apply_sectors(image, |_| rng.one_in(2));
                let mut at = effect.range.start;
                while at < effect.range.end {
                    let superseded = effect.superseded.iter().any(|range| range.contains(&at));
                    if rng.one_in(4) && !superseded {
                        let mut bytes = [0; TEAR_BYTES as usize];
                        garbage(rng.bits(), &mut bytes);
                        image.write(at, &bytes);
                    }
                    at += TEAR_BYTES;
                }
            }
        }
    }

    fn power_cut(&self) {
        let rng = &mut *self.rng.borrow_mut();
        let state = &mut *self.state.borrow_mut();
        // Independent coins alone would hardly ever lose or keep everything.
        let (keep_percent, tears) =
            *rng.pick(&[(0, false), (100, false), (10, true), (50, true), (90, true)]);
        let fate = |rng: &mut Rng, in_flight: bool| match tears {
            true => Self::fate(rng, keep_percent, in_flight && self.settings.garbles),
            false if keep_percent == 0 => Fate::Dropped,
            false => Fate::Kept,
        };
        for effect in state.unflushed.drain(..) {
            let fate = match effect.completed {
                Some(_) if !self.settings.write_cache => Fate::Kept,
                completed => fate(rng, completed.is_none()),
            };
            Self::settle_effect(rng, &effect, fate, &mut state.durable);
        }
        for effect in shuffled(rng, std::mem::take(&mut state.pending)) {
            let fate = fate(rng, true);
            Self::settle_effect(rng, &effect, fate, &mut state.durable);
        }
        state.current = state.durable.clone();
        state.size_bytes = state.durable_bytes;
    }

    fn process_kill(&self) {
        let rng = &mut *self.rng.borrow_mut();
        let state = &mut *self.state.borrow_mut();
        for mut effect in shuffled(rng, std::mem::take(&mut state.pending)) {
            match Self::fate(rng, 50, false) {
                Fate::Dropped => continue,
                Fate::Prefix | Fate::Sectors => {
                    let sectors = (effect.range.end - effect.range.start) / TEAR_BYTES;
                    effect.range.end = effect.range.start + TEAR_BYTES * rng.below(sectors);
                }
                Fate::Kept | Fate::Garbled => {}
            }
            effect.apply(effect.range.clone(), &mut state.current);
            state.unflushed.push(effect);
        }
        // The device has ended them all before the next process can flush.
        state.completions += 1;
        for effect in &mut state.unflushed {
            effect.completed = effect.completed.or(Some(state.completions));
        }
    }
}

fn shuffled(rng: &mut Rng, effects: BTreeMap<u64, Effect>) -> Vec<Effect> {
    let mut effects: Vec<Effect> = effects.into_values().collect();
    for last in (1..effects.len()).rev() {
        effects.swap(last, rng.below(last as u64 + 1) as usize);
    }
    effects
}

impl Settle for SimDisk {
    fn settle(&self, crash: Crash) {
        self.state.borrow_mut().flushing.clear();
        match crash {
            Crash::PowerCut => self.power_cut(),
            Crash::ProcessKill => self.process_kill(),
        }
    }
}

impl BlockDevice for SimDisk {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.state.borrow().size_bytes, ..self.settings.geometry }
    }

    fn submit(&self, request: Request, completer: Completer) {
        let Some(completer) = self.world.admit(completer) else { return };
        match request {
            Request::Read { .. } => self.read(request, completer),
            Request::Write { offset, data, durable } => {
                let range = offset..offset + data.len() as u64;
                self.write(range, Content::Bytes(offset, data), durable, completer);
            }
            Request::WriteZeroes { offset, len } => {
                self.write(offset..offset + len, Content::Zeroes, false, completer);
            }
            Request::Discard { offset, len } => self.discard(offset..offset + len, completer),
            Request::Flush => {
                let (mark, size_bytes) = {
                    let mut state = self.state.borrow_mut();
                    let mark = state.completions;
                    state.flushing.push(mark);
                    (mark, state.size_bytes)
                };
                self.later(self.latency(), move |disk| {
                    disk.flush(mark);
                    let mut state = disk.state.borrow_mut();
                    state.durable_bytes = state.durable_bytes.max(size_bytes);
                    drop(state);
                    completer.done(Ok(()));
                });
            }
        }
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;

//! What each volume holds of the cache, what of it nobody takes from it, and what it holds at the most.
//!
//! * Space is counted in blocks of data that the index points at, one copy of each, per volume; of those
//!   the dirty ones apart. Headers, facts, images and what was overwritten are nobody's. So the counts change only together with
//!   the index ([`crate::apply`]), and moves change nothing.
//! * The pool promises a part of what it can hold ([`Core::promised_blocks`]): as much as can be dirty and
//!   still be packed together by reclaim, whoever's origin takes nothing any more. Reservations come out of that part, and
//!   what is left of it is common: dirty data beyond its volume's reservation has to fit there.
//! * A write waits here while its volume holds as much as it may. It holds nothing then, no range lock and no
//!   place in a queue, and the volume is destaged, or gives up what is clean, until there is room.
//! * Where no volume has a reservation or a limit nobody is asked, and all is as it would be without them.
//! * Where the pool has become too small for its reservations, each holds in proportion.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::Nanos;
use forebay_device::runtime::MILLISECOND;

use crate::bypass::Reason;
use crate::core::Core;
use crate::count::Count;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{State, Stream, VOLUME_BLOCKS_MAX, VolumeSettings};
use crate::ids::{BLOCK_BYTES, SegmentId, VolumeId};
use crate::index::Mapping;
use crate::limits::{
    GRANULE_BLOCKS, POPULATE_BYTES_MAX, PROMISE_EARLIER_PERCENT, PROMISE_PACKED_PERCENT,
    REGION_BLOCKS, RESERVABLE_PERCENT,
};
use crate::planted::{self, Bug, seen};
use crate::segment::Set;
use crate::text::bytes;
use crate::volume::VolumeState;
use crate::wait::{TaskMutex, yield_once};

/// How often a write that waits for its volume's space looks again.
const LOOK_INTERVAL: Nanos = 5 * MILLISECOND;

/// Parts of a limit in which clean data begins to be given up, and down to which it is: a thirty-second
/// below, so that writes and populations need not wait for it, and another one, so that it is not each block
/// that starts a search.
const TRIM_PARTS: u64 = 32;

/// Part of a limit that populations on their way may have: writes find room beside reads that take their time.
const BROUGHT_PARTS: u64 = 8;

/// Time after which a volume in which nothing could be given up is looked through again.
const TRIM_REST: Nanos = 50 * MILLISECOND;

/// What one volume has.
#[derive(Clone, Copy, Debug)]
struct Holding {
    volume: VolumeId,
    held: u64,
    dirty: u64,
    /// Blocks of writes that were let go and are not published.
    coming: u64,
    /// Blocks of writes that the origin gets at once and that are brought in beside it.
    through: u64,
    /// Blocks of populations, from their misses on and until they are in the log.
    brought: u64,
    reserved: u64,
    limit: u64,
}

impl Holding {
    fn new(volume: VolumeId) -> Self {
        let limit = u64::MAX;
        Self { volume, held: 0, dirty: 0, coming: 0, through: 0, brought: 0, reserved: 0, limit }
    }

    /// What is held, or about to be.
    fn taken(&self) -> u64 {
        self.held + self.coming + self.through + self.brought
    }

    /// What is dirty beyond the reservation, or about to be: writers that begin together must not each find
    /// the same room.
    fn excess(&self) -> u64 {
        (self.dirty + self.coming).saturating_sub(self.reserved)
    }
}

/// What all volumes of a pool have.
pub(crate) struct Space {
    all: RefCell<Vec<Holding>>,
    /// Where the last one was found: requests of one volume come together.
    last: Cell<usize>,
    /// Whether any of them has a reservation or a limit.
    bounded: Cell<bool>,
    /// Blocks for dirty data beyond its volume's reservation; all there are where none is reserved.
    common: Cell<u64>,
    /// Sets that are left alone because most of what they hold is reserved, each as what it was opened, and
    /// until so many have been opened.
    spared: RefCell<BTreeMap<SegmentId, (u64, u64)>>,
    /// Bytes of populations that wait for the SSDs.
    pub queued_bytes: Cell<u64>,
    /// Bytes on their way from RAM into the log.
    pub demoting_bytes: Cell<u64>,
}

impl Default for Space {
    fn default() -> Self {
        let common = Cell::new(u64::MAX);
        Self {
            all: RefCell::default(),
            last: Cell::default(),
            bounded: Cell::default(),
            common,
            spared: RefCell::default(),
            queued_bytes: Cell::default(),
            demoting_bytes: Cell::default(),
        }
    }
}

/// Of a volume: who waits for its space.
#[derive(Default)]
pub(crate) struct Claims {
    /// First come, first served.
    turn: TaskMutex,
    waiting: Count,
    /// The shard at which clean data was given up last.
    shard: Cell<usize>,
    /// Until when nobody looks for any: there was none.
    rests_until: Cell<Nanos>,
}

/// What a write is about to add, until dropped.
pub(crate) struct Coming<'a> {
    space: &'a Space,
    volume: VolumeId,
    count: u64,
    /// As what.
    part: fn(&mut Holding) -> &mut u64,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.space.with(self.volume, |it| *(self.part)(it) -= self.count);
    }
}

/// What a volume holds and may hold, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Bytes of it that the SSDs hold, one copy counted.
    pub held_bytes: u64,
    /// Of those, bytes that the origin is not known to have.
    pub dirty_bytes: u64,
    /// Bytes of it that are in RAM, whether the SSDs hold them, too, or not.
    pub ram_bytes: u64,
    /// Bytes that are reserved for it at present: less than was asked for where the pool has become too
    /// small for all reservations.
    pub reserved_bytes: u64,
}

impl Space {
    fn with<R>(&self, volume: VolumeId, action: impl FnOnce(&mut Holding) -> R) -> R {
        let mut all = self.all.borrow_mut();
        if let Some(found) = all.get_mut(self.last.get())
            && found.volume == volume
        {
            return action(found);
        }
        let at = all.iter().position(|other| other.volume == volume).unwrap_or_else(|| {
            all.push(Holding::new(volume));
            all.len() - 1
        });
        self.last.set(at);
        action(&mut all[at])
    }

    /// Counts blocks that have come into the index.
    pub(crate) fn add(&self, volume: VolumeId, mapping: &Mapping) {
        if mapping.state.has_data() {
            let count = u64::from(mapping.count);
            let dirty = if mapping.state.is_owed() { count } else { 0 };
            self.with(volume, |it| (it.held, it.dirty) = (it.held + count, it.dirty + dirty));
        }
    }

    /// Counts blocks that have left it.
    pub(crate) fn sub(&self, volume: VolumeId, mapping: &Mapping) {
        if mapping.state.has_data() {
            let count = u64::from(mapping.count);
            let dirty = if mapping.state.is_owed() { count } else { 0 };
            self.with(volume, |it| (it.held, it.dirty) = (it.held - count, it.dirty - dirty));
        }
    }

    fn get(&self, volume: VolumeId) -> Holding {
        self.with(volume, |it| *it)
    }

    /// Whether some volume has a reservation.
    pub(crate) fn has_reservations(&self) -> bool {
        self.common.get() < u64::MAX
    }

    /// Leaves a set alone until `span` more have been opened than the `opened` so far.
    pub(crate) fn spare(&self, set: &Set, opened: u64, span: u64) {
        let mut spared = self.spared.borrow_mut();
        spared.retain(|_, (_, until)| *until > opened);
        spared.insert(set.id, (set.incarnation.counter, opened + span.max(1)));
    }

    /// Whether it is left alone.
    pub(crate) fn is_spared(&self, set: &Set, opened: u64) -> bool {
        let spared = self.spared.borrow();
        let found = spared.get(&set.id);
        found.is_some_and(|&(life, until)| life == set.incarnation.counter && until > opened)
    }

    /// Blocks that may be dirty of a volume as things are.
    fn dirty_max(&self, holding: &Holding) -> u64 {
        let common = match self.common.get() {
            u64::MAX => u64::MAX,
            common => {
                let all = self.all.borrow();
                let others = all.iter().filter(|other| other.volume != holding.volume);
                common.saturating_sub(others.map(Holding::excess).sum())
            }
        };
        holding.reserved.saturating_add(common).min(holding.limit)
    }

    /// Whether a volume holds no more than what is reserved for it: others do not take that.
    fn is_reserved(&self, volume: VolumeId) -> bool {
        let holding = self.get(volume);
        holding.reserved > 0 && holding.held <= holding.reserved
    }
}

impl Core {
    /// Blocks, one copy of each, that all volumes together can be promised: half of the segments where
    /// dirty data may take 60 % of them, and four fifths of those are data.
    pub(crate) fn promised_blocks(&self) -> u64 {
        let copies = self.stream_copies(Stream::Dirty);
        self.promised_of(self.sets.borrow().sets_in_all(copies, None))
    }

    /// The same where so many sets are all there is.
    fn promised_of(&self, sets: usize) -> u64 {
        let percent = u64::from(self.tuning.owed_segments_percent);
        let percent = percent.saturating_sub(PROMISE_EARLIER_PERCENT) * PROMISE_PACKED_PERCENT;
        sets as u64 * u64::from(self.segment_blocks) * percent / 100 / 100
    }

    /// Blocks of a promise that reservations may have.
    pub(crate) fn reservable_of(promise: u64) -> u64 {
        promise * RESERVABLE_PERCENT / 100
    }

    /// Whether a volume, or a new one, could have such a reservation and limit.
    pub(crate) fn check_space(&self, of: Option<VolumeId>, wanted: &VolumeSettings) -> Result<()> {
        let least = u64::from(self.tuning.space_segments_min) * self.segment_bytes;
        let VolumeSettings { reservation_bytes: reservation, limit_bytes: limit, .. } = *wanted;
        let invalid =
            |what: String, hint: String| Err(Error::new(ErrorKind::Invalid, what).hint(hint));
        let segments = self.tuning.space_segments_min;
        let enough = format!(
            "use at least {}, {segments} segments of this pool, or `off` for none",
            bytes(least)
        );
        if (1..least).contains(&reservation) {
            let what = format!("a reservation of {} is too small", bytes(reservation));
            return invalid(what, enough);
        }
        if (1..least).contains(&limit) {
            return invalid(format!("a limit of {} is too small", bytes(limit)), enough);
        }
        let most = VOLUME_BLOCKS_MAX * BLOCK_BYTES;
        if limit > most {
            let what = format!("a limit of {} is more than any volume has", bytes(limit));
            return invalid(what, format!("use at most {}, or `off` for none", bytes(most)));
        }
        if limit > 0 && reservation > limit {
            let what = format!(
                "a volume with a limit of {} cannot have {} reserved",
                bytes(limit),
                bytes(reservation)
            );
            return invalid(what, "make the limit larger, or the reservation smaller".to_owned());
        }
        let superblock = self.superblock.borrow();
        let is_other = |id: VolumeId| Some(id) != of;
        let reserved_for = |own: bool| {
            let volumes = superblock.volumes.iter().filter(move |v| is_other(v.id) != own);
            volumes.fold(0_u64, |sum, v| sum.saturating_add(v.settings.reservation_bytes))
        };
        let reservable = Self::reservable_of(self.promised_blocks()) * BLOCK_BYTES;
        let left = reservable.saturating_sub(reserved_for(false));
        if reservation > left.max(reserved_for(true)) {
            let (wanted, left) = (bytes(reservation), bytes(left));
            let what = format!("{wanted} cannot be reserved: {left} are left");
            let hint = format!(
                "all reservations of this pool may have {} together; make others smaller, or add a cache device",
                bytes(reservable)
            );
            return invalid(what, hint);
        }
        Ok(())
    }

    /// Bytes that are reserved for volumes beyond what they could be in a pool of so many sets.
    pub(crate) fn overpromised_bytes(&self, sets: usize) -> u64 {
        let superblock = self.superblock.borrow();
        let reserved = superblock.volumes.iter().map(|v| v.settings.reservation_bytes);
        let reserved = reserved.fold(0, u64::saturating_add);
        reserved.saturating_sub(Self::reservable_of(self.promised_of(sets)) * BLOCK_BYTES)
    }

    /// Takes over what was set, or what the pool has become.
    pub(crate) fn apportion(&self) {
        let superblock = self.superblock.borrow();
        let blocks = |bytes: u64| bytes / BLOCK_BYTES;
        let asked: u64 = superblock
            .volumes
            .iter()
            .fold(0, |sum, v| sum.saturating_add(blocks(v.settings.reservation_bytes)));
        let asked = if planted::is(Bug::ReservationForgotten) { 0 } else { asked };
        let bounded = asked > 0 || superblock.volumes.iter().any(|v| v.settings.limit_bytes > 0);
        if !bounded && !self.space.bounded.get() {
            return;
        }
        let promise = if asked > 0 { self.promised_blocks() } else { u64::MAX };
        let reservable = Self::reservable_of(self.promised_blocks());
        for v in &superblock.volumes {
            let wanted = blocks(v.settings.reservation_bytes);
            let part = u128::from(wanted) * u128::from(reservable) / u128::from(asked.max(1));
            let reserved = wanted.min(u64::try_from(part).unwrap_or(u64::MAX));
            let limit = match v.settings.limit_bytes {
                0 => u64::MAX,
                bytes => blocks(bytes),
            };
            self.space.with(v.id, |it| (it.reserved, it.limit) = (reserved, limit));
        }
        let common = if asked > 0 { promise - asked.min(reservable) } else { u64::MAX };
        self.space.common.set(common);
        self.space.bounded.set(bounded);
        self.sets.borrow_mut().has_reservations = asked > 0;
        let known = |it: &Holding| superblock.volumes.iter().any(|v| v.id == it.volume);
        self.space.all.borrow_mut().retain(|it| it.taken() > 0 || known(it));
    }

    /// What a volume holds and may hold.
    pub(crate) fn space_of(&self, volume: VolumeId) -> Share {
        let it = self.space.get(volume);
        Share {
            held_bytes: it.held * BLOCK_BYTES,
            dirty_bytes: it.dirty * BLOCK_BYTES,
            ram_bytes: self.ram.borrow().blocks_of(volume) * BLOCK_BYTES,
            reserved_bytes: it.reserved * BLOCK_BYTES,
        }
    }

    /// Counts what is about to be added, as what `part` names.
    fn add_coming(
        &self,
        v: &VolumeState,
        count: u32,
        part: fn(&mut Holding) -> &mut u64,
    ) -> Coming<'_> {
        let count = u64::from(count);
        self.space.with(v.id, |it| *part(it) += count);
        Coming { space: &self.space, volume: v.id, count, part }
    }

    /// Waits until a volume may hold what a write adds.
    pub(crate) async fn claim(
        &self,
        v: &VolumeState,
        first: u64,
        count: u32,
    ) -> Option<Coming<'_>> {
        if !self.space.bounded.get() {
            return None;
        }
        // What overwrites what is dirty adds nothing, and waits behind nobody.
        let queues = || !v.claims.waiting.is_zero() && self.mapped(v, first, count).1 < count;
        if queues() || !self.fits(v, first, count) {
            Box::pin(self.await_space(v, first, count)).await;
        }
        Some(self.add_coming(v, count, |it| &mut it.coming))
    }

    /// Counts what a write that the origin gets at once is about to bring in beside it, if its volume may hold that
    /// beyond the blocks of it that are `mapped`.
    pub(crate) fn claim_clean(
        &self,
        v: &VolumeState,
        count: u32,
        mapped: u32,
    ) -> Option<Coming<'_>> {
        if !self.may_hold(v, u64::from(count - mapped)) {
            self.housekeeping.wake_all();
            return None;
        }
        Some(self.add_coming(v, count, |it| &mut it.through))
    }

    /// Blocks of a range that the SSDs hold, and those of them that the origin is not known to have.
    fn mapped(&self, v: &VolumeState, first: u64, count: u32) -> (u32, u32) {
        let (mut mapped, mut owed) = (0, 0);
        self.shard(v.id, first).index.borrow().lookup(v.id, first, count, |m| {
            let data = if m.state.has_data() { m.count } else { 0 };
            mapped += data;
            owed += if m.state.is_owed() { data } else { 0 };
        });
        (mapped, owed)
    }

    async fn await_space(&self, v: &VolumeState, first: u64, count: u32) {
        let waiting = v.claims.waiting.guard();
        let began = self.rt.now();
        let turn = v.claims.turn.lock().await;
        seen("write waits for its volume's space");
        loop {
            let goes = || self.fits(v, first, count) || self.is_letting_go();
            if goes() {
                break;
            }
            self.housekeeping.wake_all();
            // What is on its way into the log can be given up once it is there.
            if self.space.get(v.id).brought > 0 {
                self.log.ripen();
            }
            let timer = self.rt.sleep(LOOK_INTERVAL);
            self.room.until_or(goes, timer).await;
        }
        drop(turn);
        drop(waiting);
        self.note_throttled(v, self.rt.now() - began);
    }

    /// Whether a volume may hold what a write of so many blocks adds. One is let go whatever its length,
    /// where nothing else of its volume is dirty.
    fn fits(&self, v: &VolumeState, first: u64, count: u32) -> bool {
        let (mapped, owed) = self.mapped(v, first, count);
        let it = self.space.get(v.id);
        let coming = it.coming;
        let dirty = it.dirty + coming + u64::from(count - owed);
        let held = it.taken() + u64::from(count - mapped);
        owed == count
            || it.dirty + coming == 0
            || (dirty <= self.space.dirty_max(&it) && held <= it.limit)
            || planted::is(Bug::LimitForgotten)
    }

    /// Whether a write stays within what is reserved for its volume: it does not wait for what origins of
    /// others take.
    pub(crate) fn is_within_reservation(&self, v: &VolumeState, count: u32) -> bool {
        let it = self.space.get(v.id);
        it.dirty + u64::from(count) <= it.reserved
    }

    /// How near a volume's dirty data is to what it may be: 1 where writes wait, or nearly.
    pub(crate) fn squeeze(&self, v: &VolumeState) -> f64 {
        if !self.space.bounded.get() {
            return 0.0;
        }
        let it = self.space.get(v.id);
        let most = self.space.dirty_max(&it);
        if most == u64::MAX || it.dirty == 0 {
            return 0.0;
        }
        let waits = !v.claims.waiting.is_zero();
        let part = it.dirty as f64 / (most as f64 * 0.75).max(1.0);
        if waits { 1.0 } else { part.min(1.0) }
    }

    /// Whether room for a volume must be made by destaging it.
    pub(crate) fn is_squeezed(&self, v: &VolumeState) -> bool {
        self.squeeze(v) >= 1.0
    }

    /// Whether a volume may have so many blocks more brought in.
    pub(crate) fn may_hold(&self, v: &VolumeState, count: u64) -> bool {
        if !self.space.bounded.get() {
            return true;
        }
        let it = self.space.get(v.id);
        it.taken() + count <= it.limit || planted::is(Bug::LimitForgotten)
    }

    /// Why a volume may not have so many blocks more populated, if it may not. Who writes and waits for room comes
    /// first.
    pub(crate) fn holds_enough(&self, v: &VolumeState, count: u64) -> Option<Reason> {
        let it = self.space.get(v.id);
        let is_limited = it.limit < u64::MAX && !planted::is(Bug::LimitForgotten);
        let part = it.brought > 0 && it.brought + count > it.limit / BROUGHT_PARTS;
        if is_limited && (part || !v.claims.waiting.is_zero() || !self.may_hold(v, count)) {
            return Some(Reason::Limit);
        }
        ((it.brought + count) * BLOCK_BYTES > POPULATE_BYTES_MAX).then_some(Reason::Busy)
    }

    /// Notes that so many blocks of a volume are about to be populated.
    pub(crate) fn note_brought(&self, volume: VolumeId, count: u64) {
        self.space.with(volume, |it| it.brought += count);
    }

    /// Notes that so many are not any more: they are in the log, or do not come.
    pub(crate) fn note_brought_in(&self, volume: VolumeId, count: u64) {
        self.space.with(volume, |it| it.brought -= count);
        if self.space.bounded.get() {
            self.room.wake_all();
        }
    }

    /// Whether what a volume has in the cache is not to be taken from it for others.
    pub(crate) fn is_reserved(&self, volume: VolumeId) -> bool {
        self.space.bounded.get() && self.space.is_reserved(volume)
    }

    /// Whether so little is free that it is left to what reclaim keeps for reservations, and nothing is
    /// populated until a root has made more.
    pub(crate) fn is_left_to_moves(&self) -> bool {
        if !self.space.has_reservations() {
            return false;
        }
        let mut left = self.left_to_start(Stream::Main);
        let sets = self.sets.borrow();
        sets.leave_to_moves(&mut left);
        sets.is_starving(&left)
    }

    /// A volume that holds nearly as much as it may, and could give up some of it.
    pub(crate) fn to_trim(&self) -> Option<Rc<VolumeState>> {
        if !self.space.bounded.get() {
            return None;
        }
        let trims = |v: &&Rc<VolumeState>| {
            let it = self.space.get(v.id);
            it.limit < u64::MAX
                && it.taken() > it.limit - it.limit / TRIM_PARTS
                && it.held > it.dirty
                && self.rt.now() >= v.claims.rests_until.get()
        };
        self.volumes.borrow().values().find(trims).cloned()
    }

    /// Gives up clean data of a volume near its limit: a hand goes round its part of the index, as in
    /// CLOCK, takes a hit from what was hit, and evicts what was not. Where that gives up less than half of what is
    /// wanted, it is not tried again at once.
    pub(crate) async fn trim(&self, v: &VolumeState) {
        let before = self.space.get(v.id);
        let target = |it: &Holding| it.limit - it.limit / TRIM_PARTS * 2;
        let mut given = 0;
        // Heat is at most 3: after as many rounds nothing is hot any more.
        for _ in 0..4 * self.shards.len() {
            let it = self.space.get(v.id);
            // What is dirty is not given up.
            let is_over = it.taken() <= target(&it) || it.held <= it.dirty;
            if is_over || self.latched.get() || self.is_closing() {
                break;
            }
            let shard = v.claims.shard.get();
            v.claims.shard.set((shard + 1) % self.shards.len());
            given += self.trim_shard(v, shard, it.taken() - target(&it));
            yield_once().await;
        }
        self.room.wake_all();
        // What is on its way may not come.
        if given == 0 || 2 * given < before.held.saturating_sub(target(&before)) {
            v.claims.rests_until.set(self.rt.now() + TRIM_REST);
        }
    }

    /// Does that in one shard, for about so many blocks; how many it was.
    fn trim_shard(&self, v: &VolumeState, shard: usize, blocks: u64) -> u64 {
        let mut regions = Vec::new();
        self.shards[shard].index.borrow().for_each_region(|volume, region, _, _, _| {
            if volume == v.id {
                regions.push(u64::from(region));
            }
        });
        let (mut cooled, mut left, mut given) = (None, blocks, 0);
        for region in regions {
            let mut clean = Vec::new();
            let index = &self.shards[shard].index;
            index.borrow().lookup(v.id, region * REGION_BLOCKS, REGION_BLOCKS as u32, |m| {
                if m.state == State::Clean {
                    clean.push(m);
                }
            });
            for m in clean {
                let mut at = 0;
                while at < m.count && left > 0 {
                    let block = m.block + u64::from(at);
                    let granule = block / GRANULE_BLOCKS;
                    let end = ((granule + 1) * GRANULE_BLOCKS - block) as u32;
                    let part = m.part(at, end.min(m.count - at));
                    at += part.count;
                    let heat = index.borrow().heat(v.id, block);
                    if heat > 0 || cooled == Some(granule) {
                        if cooled.replace(granule) != Some(granule) {
                            index.borrow_mut().cool(v.id, block);
                        }
                        continue;
                    }
                    seen("limit: clean data given up");
                    self.evict(v.id, &part);
                    left = left.saturating_sub(part.count.into());
                    given += u64::from(part.count);
                }
            }
        }
        given
    }
}

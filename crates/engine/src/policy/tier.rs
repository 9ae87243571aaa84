//! S3-FIFO block by block, for a tier in RAM: what stays there and what goes.
//!
//! After "FIFO queues are all you need for cache eviction" (Yang and others, SOSP 2023): a small
//! queue for what is new, a main queue for what was asked for again, a ghost of what the small queue
//! let go. Unlike the log's policy it moves nothing on a device, so it follows the paper to the
//! letter, apart from two things:
//!
//! * What the log holds already needs no place in the small queue to be told apart from what is
//!   read once: its identity goes to the ghost at the first touch, and its data into main at the
//!   second ([`Tier::is_wanted`]).
//! * One eviction looks at [`STEPS_MAX`] slots at the most, so that none takes long.
//!
//! It sees slots and identities, no data, no devices, no clock. Memory is taken by
//! [`Tier::grow`] and [`Tier::begin_anew`] only (INV-23).

use super::{Ghost, Granule, Part, Queue};
use crate::chunked::Chunked;

/// Share of the slots, in percent, that the small queue may have before it is what is evicted from.
/// The paper found hit ratios flat between 5 and 20 %.
const SMALL_PERCENT: u64 = 10;

/// Hits that are remembered of a slot: two bits, as in the paper.
const HITS_MAX: u8 = 3;

/// Slots that one eviction passes over before it takes the next one, hot as it may be.
pub const STEPS_MAX: usize = 64;

const NONE: u32 = u32::MAX;

/// Which list a slot is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In none: above the limit.
    Out,
    Free,
    Small,
    Main,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// Neighbours: `newer` came into the list later.
    newer: u32,
    older: u32,
    place: Place,
    hits: u8,
}

/// Bytes of metadata that this keeps for a slot.
pub const NODE_BYTES: usize = size_of::<Node>();

#[derive(Clone, Copy, Debug)]
struct List {
    newest: u32,
    oldest: u32,
    len: u32,
}

const EMPTY: List = List { newest: NONE, oldest: NONE, len: 0 };

/// The queues of a tier.
pub struct Tier {
    nodes: Chunked<Node>,
    free: List,
    small: List,
    main: List,
    ghost: Ghost,
    /// Slots that may be used.
    limit: u32,
}

impl Default for Tier {
    fn default() -> Self {
        Self {
            nodes: Chunked::default(),
            free: EMPTY,
            small: EMPTY,
            main: EMPTY,
            ghost: Ghost::new(0),
            limit: 0,
        }
    }
}

impl Tier {
    fn list(&mut self, place: Place) -> &mut List {
        match place {
            Place::Free => &mut self.free,
            Place::Small => &mut self.small,
            Place::Main => &mut self.main,
            Place::Out => unreachable!("no list"),
        }
    }

    /// Puts a slot that is in no list at the new end of one.
    fn link(&mut self, slot: u32, place: Place) {
        let list = self.list(place);
        let newest = std::mem::replace(&mut list.newest, slot);
        list.len += 1;
        if newest == NONE {
            list.oldest = slot;
        } else {
            self.nodes[newest].newer = slot;
        }
        let node = &mut self.nodes[slot];
        (node.newer, node.older, node.place) = (NONE, newest, place);
    }

    fn unlink(&mut self, slot: u32) {
        let Node { newer, older, place, .. } = self.nodes[slot];
        if newer != NONE {
            self.nodes[newer].older = older;
        }
        if older != NONE {
            self.nodes[older].newer = newer;
        }
        let list = self.list(place);
        list.len -= 1;
        if newer == NONE {
            list.newest = older;
        }
        if older == NONE {
            list.oldest = newer;
        }
        self.nodes[slot].place = Place::Out;
    }

    /// Makes room for the metadata of one more chunk of slots; false if there is no memory for it.
    #[must_use]
    pub fn grow(&mut self) -> bool {
        self.nodes.grow(Node { newer: NONE, older: NONE, place: Place::Out, hits: 0 })
    }

    /// Forgets the metadata of the last chunk, of which no slot is below the limit.
    pub fn shrink(&mut self) {
        self.nodes.shrink();
        assert!(self.limit as usize <= self.nodes.len());
    }

    /// Slots that there is metadata for.
    pub fn slots(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// Slots that may be used.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Slots in use.
    pub fn used(&self) -> u32 {
        self.small.len + self.main.len
    }

    /// Whether a slot is free.
    pub fn has_free(&self) -> bool {
        self.free.len > 0
    }

    /// Lets slots up to `limit` be used; those above it are not, and none of them may be in use.
    pub fn set_limit(&mut self, limit: u32) {
        assert!(limit as usize <= self.nodes.len());
        for slot in self.limit..limit {
            self.link(slot, Place::Free);
        }
        for slot in limit..self.limit {
            if self.nodes[slot].place == Place::Free {
                self.unlink(slot);
            }
            assert!(self.nodes[slot].place == Place::Out, "a slot in use is above the limit");
        }
        self.limit = limit;
    }

    /// Takes the free slots from `limit` on away, so that nothing new comes to be there.
    pub fn withhold(&mut self, limit: u32) {
        for slot in limit..self.limit {
            if self.nodes[slot].place == Place::Free {
                self.unlink(slot);
            }
        }
    }

    /// A ghost of the size that the limit asks for: as many as the slots. What the old one knew is
    /// forgotten.
    pub fn begin_anew(&mut self) {
        self.ghost = Ghost::new(self.limit);
    }

    /// A free slot, which is to be entered then.
    pub fn take_free(&mut self) -> Option<u32> {
        let slot = self.free.oldest;
        if slot == NONE {
            return None;
        }
        self.unlink(slot);
        Some(slot)
    }

    /// Puts what a slot holds now into a queue: main if the ghost knows it.
    pub fn enter(&mut self, slot: u32, id: Granule) {
        let place = if self.ghost.contains(Part::whole(id)) { Place::Main } else { Place::Small };
        self.nodes[slot].hits = 0;
        self.link(slot, place);
    }

    /// What slot `from` holds is in slot `to` now, which was free; the other one is in no list.
    pub fn replace(&mut self, from: u32, to: u32) {
        let Node { newer, older, place, hits } = self.nodes[from];
        self.nodes[to] = Node { newer, older, place, hits };
        if newer == NONE {
            self.list(place).newest = to;
        } else {
            self.nodes[newer].older = to;
        }
        if older == NONE {
            self.list(place).oldest = to;
        } else {
            self.nodes[older].newer = to;
        }
        self.nodes[from].place = Place::Out;
    }

    /// A client has asked for what a slot holds.
    pub fn hit(&mut self, slot: u32) {
        let node = &mut self.nodes[slot];
        node.hits = (node.hits + 1).min(HITS_MAX);
    }

    /// Whether a slot holds what was asked for again since it came.
    pub fn is_hot(&self, slot: u32) -> bool {
        let node = self.nodes[slot];
        node.place == Place::Main || node.hits > 0
    }

    /// Whether a block that the log holds and that a client asks for is worth a slot: there is a free
    /// one, or it was asked for before. Otherwise it is remembered.
    pub fn is_wanted(&mut self, id: Granule) -> bool {
        if self.limit == 0 {
            return false;
        }
        let wanted = self.has_free() || self.ghost.contains(Part::whole(id));
        if !wanted {
            self.ghost.insert(Part::whole(id));
        }
        wanted
    }

    /// The slot in use that is to go next, and the queue that lets it go.
    pub fn victim(&mut self) -> Option<(u32, Queue)> {
        let small_max = (u64::from(self.limit) * SMALL_PERCENT / 100).max(1);
        for step in 0.. {
            let from_small = u64::from(self.small.len) > small_max || self.main.len == 0;
            let slot = if from_small { self.small.oldest } else { self.main.oldest };
            if slot == NONE {
                return None;
            }
            let queue = if from_small { Queue::Probation } else { Queue::Main };
            let hits = self.nodes[slot].hits;
            if hits == 0 || step >= STEPS_MAX {
                return Some((slot, queue));
            }
            self.unlink(slot);
            self.link(slot, Place::Main);
            self.nodes[slot].hits = if from_small { 0 } else { hits - 1 };
        }
        None
    }

    /// A slot in use becomes free. What was let go by the small queue is remembered.
    pub fn leave(&mut self, slot: u32, forgotten: Option<Granule>) {
        self.unlink(slot);
        self.link(slot, Place::Free);
        if let Some(id) = forgotten {
            self.ghost.insert(Part::whole(id));
        }
    }

    /// The slots of the main queue, those that came last first.
    pub fn hottest(&self) -> impl Iterator<Item = u32> + '_ {
        let some = |slot: u32| (slot != NONE).then_some(slot);
        std::iter::successors(some(self.main.newest), move |&slot| some(self.nodes[slot].older))
    }

    /// Bytes of memory besides the slots' metadata.
    pub fn ghost_bytes(&self) -> usize {
        self.ghost.heap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::VolumeId;
    use std::collections::BTreeMap;

    fn id(number: u64) -> Granule {
        Granule { volume: VolumeId(1), number }
    }

    /// A cache of identities without data.
    struct Cache {
        tier: Tier,
        slots: BTreeMap<u64, u32>,
        names: BTreeMap<u32, u64>,
    }

    impl Cache {
        fn new(slots: u32) -> Self {
            let mut tier = Tier::default();
            while tier.slots() < slots.into() {
                assert!(tier.grow());
            }
            tier.set_limit(slots);
            tier.begin_anew();
            Self { tier, slots: BTreeMap::new(), names: BTreeMap::new() }
        }

        /// Makes the next victim go; which that was.
        fn evict(&mut self) -> Option<(u64, Queue)> {
            let (slot, queue) = self.tier.victim()?;
            let name = self.names.remove(&slot)?;
            self.slots.remove(&name);
            self.tier.leave(slot, (queue == Queue::Probation).then(|| id(name)));
            Some((name, queue))
        }

        /// Whether it was there; what went for it.
        fn ask(&mut self, number: u64) -> (bool, Option<u64>) {
            if let Some(&slot) = self.slots.get(&number) {
                self.tier.hit(slot);
                return (true, None);
            }
            let gone = (!self.tier.has_free()).then(|| self.evict().unwrap().0);
            let slot = self.tier.take_free().unwrap();
            self.tier.enter(slot, id(number));
            self.slots.insert(number, slot);
            self.names.insert(slot, number);
            (false, gone)
        }
    }

    impl Cache {
        fn ask_all(&mut self, numbers: std::ops::Range<u64>) {
            for number in numbers {
                self.ask(number);
            }
        }
    }

    #[test]
    fn what_is_read_once_goes_and_what_was_read_again_stays() {
        let mut cache = Cache::new(100);
        for number in (0..50).chain(0..50) {
            cache.ask(number);
        }
        for number in 1000..2000 {
            let (hit, gone) = cache.ask(number);
            assert!(!hit && gone.is_none_or(|gone| gone >= 1000), "{gone:?}");
        }
        assert!((0..50).all(|number| cache.ask(number).0));
        assert_eq!(cache.tier.used(), 100);
    }

    #[test]
    fn what_the_ghost_knows_comes_back_into_main() {
        let mut cache = Cache::new(20);
        cache.ask_all(0..40);
        assert!(!cache.slots.contains_key(&19));
        cache.ask(19);
        // Reads that nobody repeats push it out no more.
        cache.ask_all(100..200);
        assert!(cache.slots.contains_key(&19));
    }

    #[test]
    fn what_the_log_holds_is_wanted_at_the_second_touch() {
        let mut cache = Cache::new(20);
        assert!(cache.tier.is_wanted(id(7)), "there is room");
        cache.ask_all(100..120);
        assert!(!cache.tier.is_wanted(id(8)) && cache.tier.is_wanted(id(8)));
        assert!(!Tier::default().is_wanted(id(8)), "a tier of nothing wants nothing");
    }

    #[test]
    fn an_eviction_among_hot_slots_ends() {
        let mut cache = Cache::new(512);
        for _ in 0..6 {
            cache.ask_all(0..512);
        }
        let before: u32 =
            cache.slots.values().map(|&slot| u32::from(cache.tier.nodes[slot].hits)).sum();
        assert_eq!(before, 3 * 512);
        cache.evict().unwrap();
        let after: u32 =
            cache.slots.values().map(|&slot| u32::from(cache.tier.nodes[slot].hits)).sum();
        assert!(before - after <= 3 * (STEPS_MAX as u32 + 1), "{before} {after}");
    }

    #[test]
    fn slots_above_a_new_limit_are_given_up_and_their_content_moved() {
        let mut cache = Cache::new(1024);
        cache.ask_all(0..1024);
        cache.ask_all(0..100);
        cache.tier.withhold(512);
        while cache.tier.used() > 512 {
            cache.evict().unwrap();
            cache.tier.withhold(512);
        }
        for from in 512..1024 {
            let Some(name) = cache.names.remove(&from) else { continue };
            let to = cache.tier.take_free().unwrap();
            assert!(to < 512);
            cache.tier.replace(from, to);
            cache.names.insert(to, name);
            cache.slots.insert(name, to);
        }
        cache.tier.set_limit(512);
        cache.tier.shrink();
        assert_eq!((cache.tier.used(), cache.tier.has_free()), (512, false));
        // But for those that bounded evictions met instead of a cold one.
        let kept = (0..100).filter(|number| cache.slots.contains_key(number)).count();
        assert!(kept >= 100 - 100 / STEPS_MAX, "{kept} of the hot ones are there");
        let order: Vec<u32> = cache.tier.hottest().collect();
        assert_eq!(order.len() as u32, cache.tier.main.len);
    }
}

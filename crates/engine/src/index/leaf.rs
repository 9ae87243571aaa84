//! A leaf of the table: neighbouring regions of one volume, in one allocation.
//!
//! First the entries, sorted by region: region (4 bytes), where its body begins, counted from the
//! end of the entries (2), the states in its body (1). Then the bodies, in the same order. Such
//! an allocation grows in small steps, so that slack is a few bytes in a thousand.

use std::ops::Range;

use super::body::{Body, DENSE};

/// A leaf longer than this is split. Longer ones make changes slower (half of one moves), shorter
/// ones cost memory (each has a place in the directory and a slack).
pub(super) const LEAF_BYTES_MAX: usize = 8192;
/// A leaf of more entries is split: each change of a body's length renumbers those behind it.
pub(super) const LEAF_ENTRIES_MAX: usize = 192;
/// A leaf shorter than this is joined to a neighbour if both fill no more than three quarters.
pub(super) const LEAF_BYTES_MIN: usize = LEAF_BYTES_MAX / 8;
const ENTRY_BYTES: usize = 7;
/// Allocations are multiples of this, so that few sizes are in use.
const STEP_BYTES: usize = 64;
/// What a body costs beside its own bytes, at the most: its entry, and the slack of two leaves.
pub(super) const OVERHEAD_MAX: usize = ENTRY_BYTES + 4 * STEP_BYTES;

/// See the module.
#[derive(Default)]
pub(super) struct Leaf {
    bytes: Vec<u8>,
    count: u16,
    /// States of all bodies; may hold one that is there no more only inside a change.
    states: u8,
}

impl Leaf {
    #[inline]
    pub fn count(&self) -> usize {
        usize::from(self.count)
    }

    #[inline]
    pub fn states(&self) -> u8 {
        self.states
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    #[inline]
    pub fn region(&self, i: usize) -> u32 {
        let at = i * ENTRY_BYTES;
        let bytes = &self.bytes[at..at + 4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    #[inline]
    pub fn states_of(&self, i: usize) -> u8 {
        self.bytes[i * ENTRY_BYTES + 6]
    }

    #[inline]
    fn offset(&self, i: usize) -> usize {
        let at = i * ENTRY_BYTES + 4;
        usize::from(u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]))
    }

    #[inline]
    fn set_offset(&mut self, i: usize, offset: usize) {
        let at = i * ENTRY_BYTES + 4;
        self.bytes[at..at + 2].copy_from_slice(&(offset as u16).to_le_bytes());
    }

    /// Where in the leaf body `i` lies; for `i == count`, the empty place after the last.
    #[inline]
    fn body_range(&self, i: usize) -> Range<usize> {
        let bodies = self.count() * ENTRY_BYTES;
        let begin = |i| if i < self.count() { bodies + self.offset(i) } else { self.bytes.len() };
        begin(i)..begin(i + 1)
    }

    #[inline]
    pub fn body(&self, i: usize) -> Body<'_> {
        Body { bytes: &self.bytes[self.body_range(i)], is_dense: self.states_of(i) & DENSE != 0 }
    }

    pub fn body_mut(&mut self, i: usize) -> &mut [u8] {
        let range = self.body_range(i);
        &mut self.bytes[range]
    }

    /// The first entry at or after a region.
    #[inline]
    pub fn lower_bound(&self, region: u32) -> usize {
        // Without a branch on what is found: half of those would be mispredicted.
        let (mut low, mut size) = (0, self.count());
        while size > 1 {
            let half = size / 2;
            low = if self.region(low + half) < region { low + half } else { low };
            size -= half;
        }
        low + usize::from(size == 1 && self.region(low) < region)
    }

    /// Replaces `old` bytes at `at`.
    fn splice(&mut self, at: usize, old: usize, new: &[u8]) {
        let (len, tail) = (self.bytes.len(), at + old);
        let new_len = len - old + new.len();
        if new_len > self.bytes.capacity() {
            self.bytes.reserve_exact(new_len.next_multiple_of(STEP_BYTES) - len);
        }
        if new_len > len {
            self.bytes.resize(new_len, 0);
        }
        if old != new.len() {
            self.bytes.copy_within(tail..len, at + new.len());
        }
        self.bytes.truncate(new_len);
        self.bytes[at..at + new.len()].copy_from_slice(new);
        if self.bytes.capacity() - new_len >= 2 * STEP_BYTES {
            self.bytes.shrink_to(new_len.next_multiple_of(STEP_BYTES));
        }
    }

    /// Moves the beginnings of bodies `from..` by the difference of two lengths.
    fn renumber(&mut self, from: usize, old: usize, new: usize) {
        if old == new {
            return;
        }
        for i in from..self.count() {
            self.set_offset(i, self.offset(i) + new - old);
        }
    }

    /// Adds an entry as number `i`.
    pub fn insert(&mut self, i: usize, region: u32, states: u8, body: &[u8]) {
        let at = self.body_range(i).start;
        let offset = at - self.count() * ENTRY_BYTES;
        self.splice(at, 0, body);
        let mut entry = [0; ENTRY_BYTES];
        entry[..4].copy_from_slice(&region.to_le_bytes());
        entry[4..6].copy_from_slice(&(offset as u16).to_le_bytes());
        entry[6] = states;
        self.splice(i * ENTRY_BYTES, 0, &entry);
        self.count += 1;
        self.states |= states;
        self.renumber(i + 1, 0, body.len());
    }

    /// Replaces the body of an entry.
    pub fn replace(&mut self, i: usize, states: u8, body: &[u8]) {
        let range = self.body_range(i);
        self.splice(range.start, range.len(), body);
        self.renumber(i + 1, range.len(), body.len());
        self.set_states(i, states);
    }

    /// Says which states a body holds that was changed in place.
    pub fn set_states(&mut self, i: usize, states: u8) {
        let old_states = std::mem::replace(&mut self.bytes[i * ENTRY_BYTES + 6], states);
        self.forget_states(old_states & !states);
        self.states |= states;
    }

    /// Drops an entry.
    pub fn remove(&mut self, i: usize) {
        let (range, states) = (self.body_range(i), self.states_of(i));
        self.renumber(i + 1, range.len(), 0);
        self.splice(range.start, range.len(), &[]);
        self.splice(i * ENTRY_BYTES, ENTRY_BYTES, &[]);
        self.count -= 1;
        self.forget_states(states);
    }

    /// Sums up the states anew if some went from an entry.
    fn forget_states(&mut self, gone: u8) {
        if gone == 0 {
            return;
        }
        let mut states = 0;
        for i in 0..self.count() {
            states |= self.states_of(i);
            if states == self.states {
                return;
            }
        }
        self.states = states;
    }

    /// Moves the entries `from..` of another leaf behind this one's.
    pub fn append(&mut self, other: &Leaf, from: usize) {
        let bodies = other.count() * ENTRY_BYTES;
        let skipped = other.body_range(from).start - bodies;
        let before = self.bytes.len() - self.count() * ENTRY_BYTES;
        let at = self.bytes.len();
        self.splice(at, 0, &other.bytes[bodies + skipped..]);
        let at = self.count() * ENTRY_BYTES;
        self.splice(at, 0, &other.bytes[from * ENTRY_BYTES..bodies]);
        let first = self.count();
        self.count += other.count - from as u16;
        for i in first..self.count() {
            self.set_offset(i, self.offset(i) + before - skipped);
            self.states |= self.states_of(i);
        }
    }

    /// Splits off the upper part, about `part` of 8 bytes staying here.
    pub fn split(&mut self, part: usize) -> Leaf {
        let keep = self.bytes.len() * part / 8;
        let used = |i: usize| self.offset(i) + i * ENTRY_BYTES;
        let at = (1..self.count()).find(|i| used(*i) >= keep).unwrap_or(self.count() - 1);
        let (mut low, mut high) = (Leaf::default(), Leaf::default());
        high.append(self, at);
        // Only here are entries dropped from the end in bulk: rebuild with an exact allocation.
        let bodies = self.body_range(at).start - self.count() * ENTRY_BYTES;
        low.splice(0, 0, &self.bytes[..at * ENTRY_BYTES]);
        let body_at = self.count() * ENTRY_BYTES;
        low.splice(at * ENTRY_BYTES, 0, &self.bytes[body_at..body_at + bodies]);
        low.count = at as u16;
        low.states = (0..at).fold(0, |states, i| states | low.states_of(i));
        *self = low;
        high
    }
}

//! What each block of a volume may hold: the oracle of loads that read what they have written.
//!
//! * Every write has a version of its own, greater than those of all writes that began before it. A block's
//!   word has its version and a hash of both, so that a read tells which write it has seen.
//! * A read may see what was legal when it began, and whatever has begun since.
//! * A write that has ended rules out all that had ended when it began. Of two that overlapped either may be
//!   there, until a read that overlaps neither has seen which.
//! * Version 0 are the zeroes of a block that was never written.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use forebay_device::model::world::mix;

use super::load::BLOCK;

/// Bits of a word that are its hash; the others are the version.
const HASH_BITS: u32 = 32;

/// A block that is being written, or was by several at a time.
struct Contended {
    /// Versions that a read which begins now may see.
    allowed: Vec<u32>,
    /// Writes under way: the version, and those that it rules out when it has ended.
    flights: Vec<(u32, Vec<u32>)>,
}

/// What a block might hold when a read of it began.
struct Allowed {
    versions: Vec<u32>,
    /// Whether nobody was writing.
    is_settled: bool,
}

/// A read under way.
pub(super) struct Reading {
    first: u64,
    /// The latest version at its begin.
    since: u32,
    blocks: Vec<Allowed>,
}

/// See the head of the file. Takes 4 bytes for each block.
pub struct Contents {
    /// The one version of a block that is not among `contended`.
    known: RefCell<Vec<u32>>,
    contended: RefCell<BTreeMap<u64, Contended>>,
    /// The latest version.
    last: Cell<u32>,
}

/// The word that a block of this version repeats.
fn word(block: u64, version: u32) -> u64 {
    match version {
        0 => 0,
        version => {
            let hash = mix(block ^ mix(u64::from(version))) >> HASH_BITS;
            u64::from(version) << HASH_BITS | hash
        }
    }
}

impl Contents {
    /// Of a volume of so many bytes, all of them zero.
    pub fn blank(size_bytes: u64) -> Self {
        let known = RefCell::new(vec![0; size_bytes.div_ceil(BLOCK) as usize]);
        Self { known, contended: RefCell::default(), last: Cell::new(0) }
    }

    /// A write of these blocks begins; returns its version.
    ///
    /// # Panics
    /// After four thousand million writes: no load comes near.
    pub(super) fn write_begins(&self, first: u64, count: u64) -> u32 {
        let version = self.last.get().checked_add(1).expect("fewer writes than versions");
        self.last.set(version);
        let (known, mut contended) = (self.known.borrow(), self.contended.borrow_mut());
        for block in first..first + count {
            let entry = contended.entry(block).or_insert_with(|| Contended {
                allowed: vec![known[block as usize]],
                flights: Vec::new(),
            });
            let under_way = |version: &u32| entry.flights.iter().any(|(own, _)| own == version);
            let ended = entry.allowed.iter().filter(|version| !under_way(version)).copied();
            let ruled_out = ended.collect();
            entry.flights.push((version, ruled_out));
            entry.allowed.push(version);
        }
        version
    }

    /// It has ended well.
    pub(super) fn write_ended(&self, first: u64, count: u64, version: u32) {
        let mut contended = self.contended.borrow_mut();
        for block in first..first + count {
            let Some(entry) = contended.get_mut(&block) else { continue };
            let Some(at) = entry.flights.iter().position(|(own, _)| *own == version) else {
                continue;
            };
            let (_, ruled_out) = entry.flights.swap_remove(at);
            entry.allowed.retain(|version| !ruled_out.contains(version));
            if let ([only], []) = (&entry.allowed[..], &entry.flights[..]) {
                self.known.borrow_mut()[block as usize] = *only;
                contended.remove(&block);
            }
        }
    }

    /// A read of these blocks begins.
    pub(super) fn read_begins(&self, first: u64, count: u64) -> Reading {
        let (known, contended) = (self.known.borrow(), self.contended.borrow());
        let block = |block: u64| match contended.get(&block) {
            Some(entry) => {
                Allowed { versions: entry.allowed.clone(), is_settled: entry.flights.is_empty() }
            }
            None => Allowed { versions: vec![known[block as usize]], is_settled: true },
        };
        let blocks = (first..first + count).map(block).collect();
        Reading { first, since: self.last.get(), blocks }
    }

    /// What a read has brought; returns the first block that holds what it may not.
    pub(super) fn wrong_block(&self, reading: &Reading, bytes: &[u8]) -> Option<u64> {
        let blocks = bytes.chunks_exact(BLOCK as usize).zip(&reading.blocks);
        blocks.zip(reading.first..).find_map(|((bytes, allowed), block)| {
            let (words, _) = bytes.as_chunks::<8>();
            let found = u64::from_le_bytes(words[0]);
            let version = (found >> HASH_BITS) as u32;
            let is_whole = words.iter().all(|word| *word == words[0]);
            let is_late = (reading.since + 1..=self.last.get()).contains(&version);
            let is_legal = allowed.versions.contains(&version) || is_late;
            if !is_whole || found != word(block, version) || !is_legal {
                return Some(block);
            }
            if allowed.is_settled && allowed.versions.len() > 1 && !is_late {
                self.settle(block, version, reading.since);
            }
            None
        })
    }

    /// Nobody wrote a block when a read began that has seen this version: if nobody has begun to since, no
    /// other one may be seen any more.
    fn settle(&self, block: u64, version: u32, since: u32) {
        let mut contended = self.contended.borrow_mut();
        let Some(entry) = contended.get(&block) else { return };
        if entry.flights.is_empty() && entry.allowed.iter().all(|&version| version <= since) {
            self.known.borrow_mut()[block as usize] = version;
            contended.remove(&block);
        }
    }

    /// Fills what a write of this version brings.
    pub(super) fn fill(first: u64, version: u32, bytes: &mut [u8]) {
        for (bytes, block) in bytes.chunks_exact_mut(BLOCK as usize).zip(first..) {
            let word = word(block, version).to_le_bytes();
            bytes.chunks_exact_mut(8).for_each(|place| place.copy_from_slice(&word));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 3;

    fn blank() -> Contents {
        Contents::blank(8 * BLOCK)
    }

    /// Block `AT` as a write of this version leaves it.
    fn bytes(version: u32) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK as usize];
        Contents::fill(AT, version, &mut bytes);
        bytes
    }

    fn write(contents: &Contents) -> u32 {
        let version = contents.write_begins(AT, 1);
        contents.write_ended(AT, 1, version);
        version
    }

    /// Of versions 0 to 9 those that a read which begins and ends now may see.
    fn legal(contents: &Contents) -> Vec<u32> {
        let reading = contents.read_begins(AT, 1);
        let legal = |version: &u32| {
            let entry = contents.contended.borrow().len();
            let found = contents.wrong_block(&reading, &bytes(*version)).is_none();
            assert!(contents.contended.borrow().len() <= entry);
            found
        };
        (0..10).filter(legal).collect()
    }

    #[test]
    fn only_the_last_write_that_has_ended_may_be_read() {
        let contents = blank();
        assert_eq!(legal(&contents), [0]);
        write(&contents);
        assert_eq!(legal(&contents), [1], "neither zeroes nor what nobody wrote");
        write(&contents);
        assert_eq!(legal(&contents), [2], "nor what it replaced");
        assert!(contents.contended.borrow().is_empty());
    }

    #[test]
    fn what_is_being_written_may_be_read_or_not_and_only_in_its_place() {
        let contents = blank();
        write(&contents);
        let version = contents.write_begins(AT, 2);
        assert_eq!(legal(&contents), [1, 2]);
        contents.write_ended(AT, 2, version);
        assert_eq!(legal(&contents), [2]);
        let reading = contents.read_begins(AT + 1, 1);
        assert_eq!(contents.wrong_block(&reading, &bytes(2)), Some(AT + 1), "another one's data");
    }

    #[test]
    fn a_read_may_see_what_was_legal_when_it_began_and_what_has_begun_since() {
        let contents = blank();
        write(&contents);
        write(&contents);
        let reading = contents.read_begins(AT, 1);
        write(&contents);
        write(&contents);
        let seen = |version| contents.wrong_block(&reading, &bytes(version)).is_none();
        assert_eq!([0, 1, 2, 3, 4, 5].map(seen), [false, false, true, true, true, false]);
    }

    #[test]
    fn of_two_writes_that_overlapped_one_is_there_and_a_read_tells_which() {
        let contents = blank();
        let (one, two) = (contents.write_begins(AT, 1), contents.write_begins(AT, 1));
        contents.write_ended(AT, 1, two);
        contents.write_ended(AT, 1, one);
        let reading = contents.read_begins(AT, 1);
        assert_eq!(contents.wrong_block(&reading, &bytes(0)), Some(AT));
        assert_eq!(contents.wrong_block(&reading, &bytes(one)), None);
        assert_eq!(legal(&contents), [one], "it does not change any more");
        // Not by a read that has itself overlapped them.
        let early = contents.read_begins(AT, 1);
        let (one, two) = (contents.write_begins(AT, 1), contents.write_begins(AT, 1));
        contents.write_ended(AT, 1, one);
        contents.write_ended(AT, 1, two);
        assert_eq!(contents.wrong_block(&early, &bytes(one)), None);
        assert_eq!(contents.wrong_block(&contents.read_begins(AT, 1), &bytes(two)), None);
    }

    #[test]
    fn a_block_is_checked_to_its_last_word() {
        let contents = blank();
        let version = write(&contents);
        let mut bytes = bytes(version);
        let reading = contents.read_begins(AT, 1);
        assert_eq!(contents.wrong_block(&reading, &bytes), None);
        bytes[BLOCK as usize - 1] ^= 1;
        assert_eq!(contents.wrong_block(&reading, &bytes), Some(AT));
    }
}

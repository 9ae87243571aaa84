//! The ghost: what was evicted of late, by the fingerprints of granules and, within each, by blocks.
//!
//! As in the S3-FIFO authors' implementation there is no list, and a granule is forgotten once as many
//! were inserted after it as the ghost may remember. [`Recent`] keeps 5 bytes per place where
//! theirs has a 32-bit stamp: 2 for the fingerprint, 2 for the blocks, 1 for the age, which the blocks of a granule
//! have together.
//!
//! * Never more than `capacity` granules are remembered; memory is fixed at construction (INV-23).
//! * What never left is taken for something that did with a chance of 8 in 2^16 at the most, which costs a place in
//!   the wrong stream and nothing else. A block that left long ago is remembered for as long as its neighbours leave.

use super::Part;
use super::recent::Recent;

/// A bounded, forgetful set of blocks.
#[derive(Debug)]
pub struct Ghost(Recent<u16>);

impl Ghost {
    /// An empty ghost for at most `capacity` granules; with 0 it remembers nothing.
    pub fn new(capacity: u32) -> Self {
        Self(Recent::new(capacity))
    }

    /// Remembers blocks as evicted now, and those of the same granule that it knew as well.
    pub fn insert(&mut self, part: Part) {
        self.0.turn();
        let known = self.0.get(part.granule).unwrap_or_default();
        self.0.put(part.granule, known | part.blocks);
    }

    /// Remembers blocks no more.
    pub fn remove(&mut self, part: Part) {
        let left = |blocks| Some(blocks & !part.blocks).filter(|&left| left != 0);
        self.0.change(part.granule, left);
    }

    /// Is any of the blocks remembered?
    pub fn contains(&self, part: Part) -> bool {
        self.0.get(part.granule).is_some_and(|blocks| blocks & part.blocks != 0)
    }

    /// Granules remembered now; walks the table.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Is nothing remembered?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the table.
    pub fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Granule;
    use super::*;
    use crate::ids::VolumeId;

    fn granule(number: u64) -> Part {
        Part::whole(Granule { volume: VolumeId(1), number })
    }

    fn block(number: u64) -> Part {
        Part::of(VolumeId(1), number, 1)
    }

    #[test]
    fn blocks_of_a_granule_are_told_apart_and_have_one_age() {
        let mut ghost = Ghost::new(4);
        ghost.insert(block(3));
        assert!(ghost.contains(block(3)) && ghost.contains(granule(0)));
        assert!(!ghost.contains(block(4)) && !ghost.contains(block(3 + 16)));
        (1..3).for_each(|number| ghost.insert(granule(number)));
        ghost.insert(block(4));
        (5..8).for_each(|number| ghost.insert(granule(number)));
        assert!(ghost.contains(block(3)), "it is as young as its neighbour");
        ghost.remove(block(4));
        assert!(ghost.contains(block(3)) && !ghost.contains(block(4)));
        ghost.remove(granule(0));
        assert!(!ghost.contains(granule(0)));
    }

    #[test]
    fn remembers_the_last_and_forgets_the_old() {
        let mut ghost = Ghost::new(1000);
        (0..10_000).for_each(|number| ghost.insert(granule(number)));
        let kept = (9_200..10_000).filter(|&number| ghost.contains(granule(number))).count();
        assert!(kept >= 720, "kept {kept} of the last 800");
        assert!((0..9_000).all(|number| !ghost.contains(granule(number))));
        assert!(ghost.len() <= 1000);
    }

    #[test]
    fn a_granule_evicted_again_is_young_again() {
        let mut ghost = Ghost::new(4);
        for number in [0, 1, 2, 0, 3, 4] {
            ghost.insert(granule(number));
        }
        assert!(ghost.contains(granule(0)));
        assert!(!ghost.contains(granule(1)));
    }

    #[test]
    fn an_age_that_comes_round_does_not_revive_an_entry() {
        for capacity in [1, 7, 100, 128, 129, 5000] {
            let mut ghost = Ghost::new(capacity);
            ghost.insert(granule(0));
            for number in 1..=u64::from(capacity) * 4 {
                ghost.insert(granule(number));
                let due = number >= u64::from(capacity);
                assert!(!(due && ghost.contains(granule(0))), "{capacity} {number}");
            }
        }
    }

    #[test]
    fn a_ghost_of_nothing_remembers_nothing() {
        let mut ghost = Ghost::new(0);
        ghost.insert(granule(1));
        assert!(!ghost.contains(granule(1)) && ghost.is_empty());
        assert_eq!(ghost.heap_bytes(), 0);
    }

    #[test]
    fn what_is_removed_is_forgotten_and_leaves_its_place() {
        let mut ghost = Ghost::new(7);
        (0..7).for_each(|number| ghost.insert(granule(number)));
        ghost.remove(granule(6));
        ghost.remove(granule(100));
        assert!(!ghost.contains(granule(6)) && ghost.contains(granule(5)));
        assert_eq!(ghost.len(), 6);
        Ghost::new(0).remove(granule(1));
    }

    #[test]
    fn volumes_do_not_share_granules() {
        let mut ghost = Ghost::new(100);
        ghost.insert(granule(7));
        assert!(!ghost.contains(Part::whole(Granule { volume: VolumeId(2), number: 7 })));
    }

    #[test]
    fn costs_less_than_six_bytes_a_granule() {
        assert!(Ghost::new(1 << 20).heap_bytes() < 6 << 20);
    }
}

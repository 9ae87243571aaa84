//! Zeroes that an origin was given and that the next good flush proves.
//!
//! * What is known of a zero extent pins nothing: the set of its record may be gone already, once a root has taken the
//!   fact over. So a newer one may come to lie at the very same place, and what was proven of the first one would be
//!   said of it. Whatever overtakes zeroes therefore takes them from here (INV-85).
//! * No two overlap.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Unproven;
use crate::format::State;
use crate::ids::Location;

#[derive(Clone, Copy, Debug)]
struct Zeroes {
    end: u64,
    location: Location,
    /// The origin's `completed` after their write.
    completed: u64,
}

/// See the head of the file; by their first block.
#[derive(Debug, Default)]
pub(crate) struct Zeroed(BTreeMap<u64, Zeroes>);

impl Zeroed {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes blocks that were written when so many writes had completed, and what their extent's location is.
    pub fn put(&mut self, blocks: Range<u64>, location: Location, completed: u64) {
        self.cut(blocks.clone());
        self.0.insert(blocks.start, Zeroes { end: blocks.end, location, completed });
    }

    /// Forgets blocks that something has overtaken.
    pub fn cut(&mut self, blocks: Range<u64>) {
        while let Some((&first, &zeroes)) = self.0.range(..blocks.end).next_back()
            && zeroes.end > blocks.start
        {
            self.0.remove(&first);
            for (start, end) in [(first, blocks.start), (blocks.end, zeroes.end)] {
                if start < end {
                    self.0.insert(start, Zeroes { end, ..zeroes });
                }
            }
            if first <= blocks.start {
                return;
            }
        }
    }

    /// Takes what a flush has proven that began when so many writes had completed.
    pub fn take_proven(&mut self, marker: u64) -> Vec<Unproven> {
        let proven = self.0.extract_if(.., |_, zeroes| zeroes.completed <= marker);
        proven.map(|(first, zeroes)| item(first, zeroes)).collect()
    }

    /// Takes all.
    pub fn take(&mut self) -> Vec<Unproven> {
        self.take_proven(u64::MAX)
    }
}

fn item(block: u64, Zeroes { end, location, .. }: Zeroes) -> Unproven {
    let count = (end - block) as u32;
    Unproven { block, count, location, state: State::ZeroWritten, drop: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(items: &[Unproven]) -> Vec<(Range<u64>, u64)> {
        items.iter().map(|i| (i.block..i.block + u64::from(i.count), i.location.0)).collect()
    }

    #[test]
    fn what_overtakes_zeroes_takes_just_those() {
        let mut zeroed = Zeroed::default();
        zeroed.put(10..20, Location(7), 1);
        zeroed.put(30..40, Location(8), 2);
        zeroed.cut(0..10);
        zeroed.cut(20..30);
        zeroed.cut(14..16);
        zeroed.cut(18..33);
        zeroed.put(35..36, Location(9), 3);
        let left = [(10..14, 7), (16..18, 7), (33..35, 8), (35..36, 9), (36..40, 8)];
        assert_eq!(ranges(&zeroed.take_proven(1)), left[..2]);
        assert_eq!(ranges(&zeroed.take_proven(2)), [left[2].clone(), left[4].clone()]);
        zeroed.cut(0..35);
        zeroed.put(50..60, Location(7), 4);
        zeroed.cut(0..100);
        assert!(zeroed.is_empty() && zeroed.take().is_empty());
    }
}

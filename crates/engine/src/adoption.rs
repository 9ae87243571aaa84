//! Which bytes in a set without a footer are a record: the decision table of recovery.
//!
//! | row | head valid | belongs | fits | entries valid | data valid | decision |
//! |---|---|---|---|---|---|---|
//! | A | no  | -   | -   | -   | -   | look at the next block |
//! | B | yes | no  | -   | -   | -   | look at the next block |
//! | C | yes | yes | no  | -   | -   | look at the next block |
//! | D | yes | yes | yes | no  | -   | look at the next block |
//! | E | yes | yes | yes | yes | no  | look at the next block |
//! | F | yes | yes | yes | yes | yes | adopt |
//!
//! * A: never written, discarded, data of a record whose header is lost, or a torn first block. A
//!   record's head block is one device block with a checksum of its own.
//! * B: left over from an earlier life of the segment, from another pool, or written to the wrong
//!   place. The incarnation is never used twice and the head names its own offset.
//! * C: a head that promises more than the segment holds cannot have been written by us.
//! * D, E: torn by the crash. Its append was never acknowledged as durable, so leaving it out loses
//!   nothing; taking it would serve bytes that nobody wrote.
//! * F: whole. It is adopted whether or not it was acknowledged, also behind a hole: later records
//!   may have been acknowledged while an earlier one was still in flight. Data that the device cannot read is
//!   not wrong: it may have been acknowledged, and is found to be lost when it is appended again.

use crate::format::{Entry, RecordHeader};

/// What is known about the bytes at a place where a record may begin.
#[derive(Default)]
pub(crate) struct RecordFacts {
    /// The first block holds a record head with a good checksum.
    pub head_valid: bool,
    /// Pool, set, incarnation and offset are the ones of this place.
    pub belongs: bool,
    /// It ends within the segment.
    pub fits: bool,
    /// Entries and checksums verify.
    pub entries_valid: bool,
    /// Every data block that the device returns matches its checksum.
    pub data_valid: bool,
    /// The record, as far as it could be decoded.
    pub record: Option<(RecordHeader, Vec<Entry>)>,
}

/// What to do at a place of a set without a footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adoption {
    /// No record begins here: look at the next block.
    Advance,
    /// Take the record and go on behind it.
    Adopt,
}

/// Decides by the module's table.
pub(crate) fn adopt(facts: &RecordFacts) -> Adoption {
    let RecordFacts { head_valid, belongs, fits, entries_valid, data_valid, .. } = *facts;
    if head_valid && belongs && fits && entries_valid && data_valid {
        Adoption::Adopt
    } else {
        Adoption::Advance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table above: required values (`None` where it says "-") and the decision.
    const ROWS: [(char, [Option<bool>; 5], Adoption); 6] = [
        ('A', [Some(false), None, None, None, None], Adoption::Advance),
        ('B', [Some(true), Some(false), None, None, None], Adoption::Advance),
        ('C', [Some(true), Some(true), Some(false), None, None], Adoption::Advance),
        ('D', [Some(true), Some(true), Some(true), Some(false), None], Adoption::Advance),
        ('E', [Some(true), Some(true), Some(true), Some(true), Some(false)], Adoption::Advance),
        ('F', [Some(true); 5], Adoption::Adopt),
    ];

    #[test]
    fn every_combination_of_facts_matches_exactly_one_row() {
        for bits in 0..32_u32 {
            let facts: [bool; 5] = std::array::from_fn(|i| bits >> i & 1 == 1);
            let matching: Vec<_> = ROWS
                .iter()
                .filter(|(_, row, _)| row.iter().zip(facts).all(|(r, f)| r.is_none_or(|r| r == f)))
                .collect();
            assert_eq!(matching.len(), 1, "facts {facts:?}");
            let [head_valid, belongs, fits, entries_valid, data_valid] = facts;
            let facts =
                RecordFacts { head_valid, belongs, fits, entries_valid, data_valid, record: None };
            assert_eq!(adopt(&facts), matching[0].2, "row {}", matching[0].0);
        }
    }
}

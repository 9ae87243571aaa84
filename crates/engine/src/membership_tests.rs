//! Every combination of facts matches exactly one row.

use super::*;
use crate::format::{Numbers, SUPERBLOCK_BYTES};

/// A row: what it asks of the facts (`None`: either), and what it decides.
struct Row {
    one_line: Option<bool>,
    known: Option<bool>,
    missing: Option<Missing>,
    may_be_dirty: Option<bool>,
    accepted: Option<bool>,
    decision: Decision,
}

impl Row {
    fn matches(&self, f: Facts) -> bool {
        self.one_line.is_none_or(|x| x == f.one_line)
            && self.known.is_none_or(|x| x == f.known)
            && self.missing.is_none_or(|x| x == f.missing)
            && self.may_be_dirty.is_none_or(|x| x == f.may_be_dirty)
            && self.accepted.is_none_or(|x| x == f.accepted)
    }
}

fn rows() -> [Row; 8] {
    use Missing::{Covered, More};
    let row = |one_line, known, missing, may_be_dirty, accepted, decision| Row {
        one_line,
        known,
        missing,
        may_be_dirty,
        accepted,
        decision,
    };
    let (yes, no) = (Some(true), Some(false));
    [
        row(yes, yes, Some(Missing::None), None, None, Decision::Open),
        row(yes, yes, Some(Covered), None, None, Decision::OpenWithout),
        row(yes, yes, Some(More), no, None, Decision::OpenClean),
        row(yes, yes, Some(More), yes, no, Decision::Undecided),
        row(yes, yes, Some(More), yes, yes, Decision::OpenLosing),
        row(yes, no, None, None, no, Decision::Unknown),
        row(yes, no, None, None, yes, Decision::OpenUnknown),
        row(no, None, None, None, None, Decision::Forked),
    ]
}

#[test]
fn each_combination_of_facts_matches_one_row_of_the_opening() {
    let rows = rows();
    let mut reached = [0; 8];
    for bits in 0..16 {
        for missing in [Missing::None, Missing::Covered, Missing::More] {
            let is = |bit: u32| bits >> bit & 1 == 1;
            let facts = Facts {
                one_line: is(0),
                known: is(1),
                missing,
                may_be_dirty: is(2),
                accepted: is(3),
            };
            let matching: Vec<usize> = (0..8).filter(|&i| rows[i].matches(facts)).collect();
            assert_eq!(matching.len(), 1, "{facts:?} matches {matching:?}");
            assert_eq!(decide(facts), rows[matching[0]].decision, "{facts:?}");
            reached[matching[0]] += 1;
        }
    }
    assert!(reached.iter().all(|&count| count > 0), "{reached:?}");
}

#[test]
fn each_combination_of_facts_has_one_trust() {
    for bits in 0..8 {
        let is = |bit: u32| bits >> bit & 1 == 1;
        let (covered, clean, dirty) = (is(0), is(1), is(2));
        for epochs in 0..4 {
            let rows = [
                (epochs == 0, Trust::All),
                (epochs == 1 && covered, Trust::Found),
                (epochs == 1 && !covered && clean, Trust::Found),
                (epochs == 1 && !covered && !clean && dirty, Trust::Owed),
                (epochs > 1 && dirty, Trust::Owed),
                (epochs == 1 && !covered && !clean && !dirty, Trust::Nothing),
                (epochs > 1 && !dirty, Trust::Nothing),
            ];
            let matching: Vec<_> = rows.iter().filter(|(matches, _)| *matches).collect();
            assert_eq!(matching.len(), 1);
            assert_eq!(trust(epochs, covered, clean, dirty), matching[0].1);
        }
    }
}

/// A superblock of two members, as its golden image has it.
fn superblock() -> Superblock {
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    let number = |digits: &str| usize::from_str_radix(digits, 16).unwrap();
    for line in include_str!("../tests/golden/superblock.v1.hex").lines() {
        let Some((at, digits)) = line.split_once(' ') else { continue };
        for (index, place) in bytes[number(at)..].iter_mut().take(digits.len() / 2).enumerate() {
            *place = number(&digits[2 * index..2 * index + 2]) as u8;
        }
    }
    Superblock::decode(&bytes).unwrap()
}

#[test]
fn a_number_is_of_whoever_joined_last_with_it() {
    let mut superblock = superblock();
    let record = |base, count, joined_epoch, state| MemberRecord {
        device: DeviceId([joined_epoch as u8; 16]),
        segments: Numbers::new(base, count),
        joined_epoch,
        state,
        replaced: false,
    };
    superblock.members = vec![
        record(0, 10, 1, MemberState::Present),
        record(10, 10, 2, MemberState::Removed),
        record(10, 5, 4, MemberState::Present),
        record(20, 5, 3, MemberState::Failed),
    ];
    let is_same = |number, epoch| superblock.is_same_since(SegmentId(number), epoch);
    assert_eq!([1, 2].map(|epoch| is_same(9, epoch)), [true, true]);
    assert_eq!([2, 3, 4, 5].map(|epoch| is_same(14, epoch)), [false, false, true, true]);
    assert_eq!([1, 2].map(|epoch| is_same(15, epoch)), [false, true], "of one that is gone");
    assert_eq!([2, 3].map(|epoch| is_same(20, epoch)), [false, true], "of one that has failed");
    assert!(!is_same(25, 9), "nobody knows of whom");
}

#[test]
fn the_numbers_of_records_that_are_gone_stay_given() {
    let mut superblock = superblock();
    let end = superblock.given_end();
    assert_eq!((superblock.retired_end, superblock.members.len()), (0, 2));
    let last = *superblock.members.iter().max_by_key(|record| record.segments.end()).unwrap();
    superblock.retire(|record| record.device == last.device);
    assert_eq!((superblock.given_end(), superblock.members.len()), (end, 1));
    superblock.retire(|_| false);
    assert_eq!((superblock.given_end(), superblock.retired_end), (end, end));
}

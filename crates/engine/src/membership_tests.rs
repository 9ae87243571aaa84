//! Every combination of facts matches exactly one row.

use super::*;

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

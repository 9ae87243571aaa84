//! The sets that a root may make something of free: all of one, or its surplus copies.
//!
//! How much room is coming is asked at each turn of reclaim and of checkpoints. A large pool has a
//! million sets, and few of them have anything to give: those are kept here, by number.
//!
//! * Every set with something to give is among them (the simulator compares with all sets). Some have
//!   nothing any more; they are left out when the next root has been written.
//! * A set comes in where it is closed, let go of, or owes nothing any more, for nothing else makes one
//!   give; and all are looked at again when sets may keep fewer copies.

use super::{Set, SetState, SetTable};
use crate::ids::SegmentId;

impl Set {
    /// Whether a root could make something of it free, whatever its images hold.
    fn may_give(&self, copies: usize) -> bool {
        let surplus = self.owed_blocks == 0 && self.segments.len() > copies;
        match self.state {
            SetState::LetGo(_) => true,
            SetState::Closed => !self.holds_data() || surplus,
            SetState::Open | SetState::Closing | SetState::Reusable | SetState::Discarding => false,
        }
    }
}

impl SetTable {
    /// Moves a set on in the diagram of [`SetState`].
    pub(crate) fn transition(&mut self, id: SegmentId, next: SetState) {
        let Some(set) = self.get_mut(id) else { return };
        let before = set.state;
        set.transition(next);
        match (before, next) {
            (SetState::LetGo(_), SetState::Reusable | SetState::Discarding) => {
                self.note_reusable(id)
            }
            (SetState::Closed, SetState::LetGo(_)) => self.let_go[id.0 as usize] = true,
            (SetState::Reusable, _) => self.note_discarding(id),
            _ => {}
        }
        self.note_giver(id);
    }

    /// Takes a set in, if it may have something to give.
    pub(super) fn note_giver(&mut self, id: SegmentId) {
        let copies = self.clean_copies;
        if self.get(id).is_some_and(|set| set.may_give(copies)) {
            self.givers.insert(id);
        }
    }

    /// Copies that a set keeps once all of it is clean, where there are members for them.
    pub(crate) fn clean_copies(&self) -> usize {
        self.clean_copies
    }

    /// See [`SetTable::clean_copies`].
    pub(crate) fn set_clean_copies(&mut self, copies: usize) {
        self.clean_copies = copies;
        self.givers = self.iter().filter(|set| set.may_give(copies)).map(|set| set.id).collect();
        self.sort_reusable();
    }

    /// Leaves those out that have nothing to give any more.
    pub(crate) fn sift_givers(&mut self) {
        let (sets, copies) = (&self.sets, self.clean_copies);
        self.givers.retain(|id| {
            let set = sets.get(id.0 as usize).and_then(Option::as_ref);
            set.is_some_and(|set| set.may_give(copies))
        });
    }

    /// The sets that may have something to give, by number.
    pub(super) fn givers(&self) -> impl Iterator<Item = &Set> {
        #[cfg(any(test, feature = "verify"))]
        for set in self.iter().filter(|set| set.may_give(self.clean_copies)) {
            assert!(self.givers.contains(&set.id), "set {:?} is overlooked", set.id);
        }
        self.givers.iter().filter_map(|&id| self.get(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Numbers, State, Stream};
    use crate::ids::{Incarnation, Sequence};

    /// A set on the first segments of two members, closed.
    fn close(table: &mut SetTable, number: u32, stream: Stream) -> SegmentId {
        let id = SegmentId(number);
        let incarnation = Incarnation { start: 1, counter: u64::from(number) };
        let opened = Set::opened(id, vec![id, SegmentId(number + 100)], incarnation, stream);
        table.put(Set { last_sequence: Sequence(1), ..opened });
        table.add(table.location(id, 1), 2, State::Dirty);
        table.transition(id, SetState::Closing);
        table.transition(id, SetState::Closed);
        id
    }

    fn found(table: &SetTable) -> Vec<u32> {
        table.givers().map(|set| set.id.0).collect()
    }

    #[test]
    fn of_many_sets_those_are_known_that_have_something_to_give() {
        let members = [0, 100].map(|base| Numbers::new(base, 100)).to_vec();
        let mut table = SetTable::new(16, members, 200);
        table.accounting = true;
        table.set_clean_copies(1);
        for number in 0..50 {
            close(&mut table, number, Stream::Dirty);
        }
        assert_eq!(found(&table), [0; 0], "owed data gives nothing");
        let clean = |table: &mut SetTable, number: u32| {
            let at = table.location(SegmentId(number), 1);
            table.sub(at, 2, State::Dirty);
            table.add(at, 2, State::Clean);
        };
        clean(&mut table, 7);
        clean(&mut table, 31);
        assert_eq!(found(&table), [7, 31], "a copy too many of what is clean");
        table.set_clean_copies(2);
        assert_eq!(found(&table), [0; 0]);
        table.sub(table.location(SegmentId(31), 1), 2, State::Clean);
        table.let_go(SegmentId(31), Sequence(9));
        assert_eq!(found(&table), [31]);
        table.transition(SegmentId(31), SetState::Discarding);
        table.release(SegmentId(31));
        table.set_clean_copies(1);
        assert_eq!(found(&table), [7]);
        table.shrink((SegmentId(7), Incarnation { start: 1, counter: 7 }), Sequence(1)).unwrap();
        table.sift_givers();
        assert_eq!(found(&table), [0; 0]);
    }
}

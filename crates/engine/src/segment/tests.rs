use super::*;

const NONE_LEFT: [usize; PLACES_MAX] = [0; PLACES_MAX];

#[test]
fn a_member_starves_before_writes_wait_there_whatever_the_next_start_is_left() {
    for (free, left) in (0..40).flat_map(|free| (0..8).map(move |left| (free, left))) {
        let mut table = table(&[40]);
        let all_left = [left; PLACES_MAX];
        table.free[0].truncate(free);
        let (starving, low) =
            (table.is_starving(&all_left), !table.lacking(Sequence(0), &all_left).is_empty());
        let waits = table.allocate(1, Stream::Dirty, &all_left).is_none();
        assert!(!waits || (starving && low), "{free} free, {left} left");
    }
}

#[test]
fn the_life_of_a_set_has_no_other_arrows() {
    use SetState::{Closed, Closing, Discarding, LetGo, Open, Reusable};
    let all = [Open, Closing, Closed, LetGo(Sequence(1)), Reusable, Discarding];
    let legal: Vec<(usize, usize)> = (0..6)
        .flat_map(|a| (0..6).map(move |b| (a, b)))
        .filter(|&(a, b)| all[a].may_become(all[b]))
        .collect();
    assert_eq!(legal, [(0, 1), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5)]);
}

fn table(counts: &[u32]) -> SetTable {
    let mut base = 0;
    let members = counts.iter().map(|&count| {
        base += count;
        Numbers::new(base - count, count)
    });
    let members = members.collect();
    // As if a further member with two segments had been lost.
    SetTable::new(16, members, base + 2)
}

fn put(table: &mut SetTable, copies: usize, stream: Stream, state: SetState) -> SegmentId {
    let segments = table.allocate(copies, stream, &[0; PLACES_MAX]).unwrap();
    let id = segments[0];
    let incarnation = Incarnation { start: 1, counter: u64::from(id.0) };
    let opened = Set::opened(id, segments, incarnation, stream);
    table.put(Set { state, last_sequence: Sequence(5), ..opened });
    id
}

#[test]
fn copies_lie_on_distinct_members_and_leave_the_floor() {
    let mut table = table(&[10, 9, 9]);
    let pair = table.allocate(2, Stream::Dirty, &[0; PLACES_MAX]).unwrap();
    assert_ne!(table.member_of(pair[0]), table.member_of(pair[1]));
    while table.allocate(1, Stream::Dirty, &[0; PLACES_MAX]).is_some() {}
    assert!(table.free.iter().all(|free| free.len() == 6));
    assert!(table.allocate(3, Stream::Facts, &[0; PLACES_MAX]).is_some());
    assert!(table.allocate(4, Stream::Metadata, &[0; PLACES_MAX]).is_none());
}

#[test]
fn what_may_be_refused_leaves_a_write_its_last_segment() {
    let mut table = table(&[40, 40]);
    while table.allocate(1, Stream::Probation, &[0; PLACES_MAX]).is_some() {}
    assert!(table.allocate(1, Stream::Main, &[0; PLACES_MAX]).is_none());
    assert!(table.allocate(2, Stream::Dirty, &[0; PLACES_MAX]).is_some());
    assert!(table.allocate(2, Stream::Dirty, &[0; PLACES_MAX]).is_none());
    assert!(table.allocate(2, Stream::Facts, &[0; PLACES_MAX]).is_some());
}

#[test]
fn what_the_next_start_needs_is_left_on_its_member() {
    let mut table = table(&[40, 40]);
    let mut left = [0; PLACES_MAX];
    left[1] = 3;
    while table.allocate(2, Stream::Dirty, &left).is_some() {}
    assert_eq!((table.free[0].len(), table.free[1].len()), (9, 9));
    assert!(table.allocate(1, Stream::Dirty, &left).is_some_and(|taken| taken[0].0 < 40));
    assert!(table.allocate(2, Stream::Facts, &left).is_some());
}

#[test]
fn all_of_members_of_any_sizes_is_used() {
    for counts in [&[100, 60, 60][..], &[10, 90, 30], &[7, 7, 7, 5], &[50, 1, 1, 1], &[64, 512]] {
        for (copies, controllers) in
            (1..=counts.len().min(3)).flat_map(|n| [(n, 1), (n, 2), (n, 3)])
        {
            let mut table = table(counts);
            for member in 0..counts.len() {
                table.set_controller(member, Some(member as u64 % controllers));
            }
            let mut made = 0;
            let left = [0; PLACES_MAX];
            while let Some(set) = table.allocate(copies, Stream::Metadata, &left) {
                let mut members: Vec<_> = set.iter().map(|&s| table.member_of(s)).collect();
                members.sort_unstable();
                members.dedup();
                assert_eq!(members.len(), copies, "two copies are never on one member");
                made += 1;
            }
            // As many sets as there can be: each takes one of a member, so no more than there
            // are sets is of use.
            let fits = |sets: u32| counts.iter().map(|&c| c.min(sets)).sum::<u32>() / copies as u32;
            let most = (0..=counts.iter().sum()).take_while(|&sets| fits(sets) >= sets).last();
            assert_eq!(Some(made), most, "{counts:?} in {copies} copies");
        }
    }
}

/// Pairs that are behind one controller, of as many as a table gives.
fn shared_pairs(table: &mut SetTable, controllers: &[Option<u64>], pairs: usize) -> usize {
    for (member, controller) in controllers.iter().enumerate() {
        table.set_controller(member, *controller);
    }
    let behind = |table: &SetTable, segment| controllers[table.member_of(segment)];
    let mut shared = 0;
    for _ in 0..pairs {
        let pair = table.allocate(2, Stream::Metadata, &[0; PLACES_MAX]).unwrap();
        let [one, other] = [behind(table, pair[0]), behind(table, pair[1])];
        shared += usize::from(one.is_some() && one == other);
    }
    shared
}

#[test]
fn copies_lie_behind_distinct_controllers_where_there_are_several() {
    let (a, b) = (Some(1), Some(2));
    assert_eq!(shared_pairs(&mut table(&[50, 50, 50, 50]), &[a, a, b, b], 100), 0);
    assert_eq!(shared_pairs(&mut table(&[80, 20, 50, 50]), &[a, a, b, b], 100), 0);
    assert_eq!(shared_pairs(&mut table(&[50, 50]), &[a, a], 50), 50, "there is no other way");
    assert_eq!(shared_pairs(&mut table(&[50, 50, 50]), &[a, a, None], 20), 0, "nobody knows");
    // Two SSDs of three are behind one: the third one does not fill up long before the others.
    let mut uneven = table(&[90, 90, 90]);
    let shared = shared_pairs(&mut uneven, &[a, a, b], 75);
    assert!((1..30).contains(&shared), "{shared}");
    let free: Vec<usize> = uneven.free.iter().map(VecDeque::len).collect();
    assert!(free[2] * 2 + 2 >= free[0] && free[0].abs_diff(free[1]) <= 1, "{free:?}");
}

#[test]
fn members_fill_up_in_proportion_to_their_sizes() {
    let mut table = table(&[100, 50]);
    for _ in 0..30 {
        table.allocate(1, Stream::Metadata, &[0; PLACES_MAX]).unwrap();
    }
    assert_eq!((table.free[0].len(), table.free[1].len()), (80, 40));
}

#[test]
fn a_copy_too_many_is_given_back_when_nothing_needs_it() {
    let mut table = table(&[40, 40]);
    table.accounting = true;
    table.set_clean_copies(1);
    let id = put(&mut table, 2, Stream::Dirty, SetState::Closed);
    let at = table.location(id, 1);
    table.add(at, 3, State::Dirty);
    assert!(table.surplus().is_empty() && table.outlook().live > 0.0);
    table.sub(at, 3, State::Dirty);
    table.get_mut(id).unwrap().state = SetState::Closed;
    table.add(at, 3, State::Clean);
    assert_eq!(table.totals.occupied_blocks, 6);
    let [surplus] = table.surplus()[..] else { panic!("one set has a copy too many") };
    table.set_clean_copies(2);
    assert!(table.surplus().is_empty());
    table.set_clean_copies(1);
    let pinned = table.pin(at);
    assert!(table.shrink(surplus, Sequence(5)).is_none());
    assert!(table.unpin(pinned).is_none());
    assert!(table.shrink(surplus, Sequence(4)).is_none(), "a record is behind the images");
    let given = table.shrink(surplus, Sequence(5)).unwrap();
    assert_eq!((given.len(), table.totals.occupied_blocks), (1, 3));
    assert_ne!(table.member_of(given[0]), table.member_of(id));
    assert!(table.surplus().is_empty());
}

#[test]
fn what_a_little_dirty_sets_count_for_follows_the_write_budget() {
    let mut table = table(&[40, 40]);
    table.accounting = true;
    let id = put(&mut table, 2, Stream::Dirty, SetState::Closed);
    let at = table.location(id, 1);
    table.add(at, 4, State::Dirty);
    let counted = |table: &mut SetTable, percent| {
        table.set_write_amplification_max(percent);
        assert_eq!(table.outlook().unpackable, table.unpackable_segments());
        (table.unpackable_segments() * 16.0).round() as u64
    };
    // Blocks of two copies, 32 in all.
    assert_eq!([100, 150, 200, 400].map(|max| counted(&mut table, max)), [32, 24, 16, 10]);
    assert_eq!(table.owed_segments(), 2);
    // The same when they are counted one by one.
    table.sub(at, 1, State::Dirty);
    table.add(at, 1, State::Dirty);
    assert_eq!(counted(&mut table, 400), 10);
    let copies = table.get(id).unwrap().segments.clone();
    table.lose(table.member_of(copies[1]));
    assert_eq!((counted(&mut table, 400), table.owed_segments()), (5, 1));
    table.sub(at, 4, State::Dirty);
    assert_eq!((counted(&mut table, 400), table.owed_segments()), (0, 0));
}

#[test]
fn what_was_written_through_counts_until_the_origin_has_it() {
    let mut table = table(&[40, 40]);
    table.accounting = true;
    let id = put(&mut table, 2, Stream::Probation, SetState::Closed);
    let at = table.location(id, 1);
    let counted = |table: &SetTable| {
        let set = table.get(id).unwrap();
        (set.live_blocks, set.provisional_blocks, set.owed_blocks)
    };
    table.add(at, 3, State::Provisional);
    assert_eq!(counted(&table), (3, 3, 0));
    table.sub(at, 3, State::Provisional);
    table.add(at, 3, State::Clean);
    assert_eq!(counted(&table), (3, 0, 0));
}

#[test]
fn what_overwriting_frees_is_room_once_nothing_in_it_is_owed() {
    let mut table = table(&[40, 40]);
    table.accounting = true;
    let before = table.outlook();
    let id = put(&mut table, 2, Stream::Rewritten, SetState::Closed);
    let at = table.location(id, 1);
    table.add(at, 3, State::Dirty);
    let owing = table.outlook();
    assert_eq!((owing.total, owing.free, owing.rewritten_blocks), (78, before.free - 2, 3));
    table.sub(at, 3, State::Dirty);
    let clean = table.outlook();
    assert_eq!((clean.total, clean.free, clean.rewritten_blocks), (80, before.free, 0));
}

#[test]
fn what_lies_on_a_member_that_is_to_leave_is_no_room_of_the_others() {
    let mut table = table(&[40, 40]);
    table.accounting = true;
    for stream in [Stream::Rewritten, Stream::Dirty, Stream::Main] {
        for _ in 0..5 {
            let id = put(&mut table, 2, stream, SetState::Closed);
            let state = if stream == Stream::Main { State::Clean } else { State::Dirty };
            table.add(table.location(id, 1), 15, state);
        }
    }
    table.set_leaving(Some(1));
    let others = table.outlook();
    assert_eq!((others.total, others.free), (35, 25 - 6 + 5));
    assert_eq!(others.owed.iter().sum::<u64>(), 5);
}

#[test]
fn a_small_member_has_a_reserve_of_its_own() {
    let mut table = table(&[100_000, 512]);
    assert!(table.allocate(2, Stream::Dirty, &[0; PLACES_MAX]).is_some());
    assert!(!table.is_low() && !table.is_starving(&NONE_LEFT));
    assert!(table.lacking(Sequence(0), &NONE_LEFT).is_empty());
}

/// Free segments of a member below which reclaim has something to do.
fn kept_free(table: &mut SetTable) -> usize {
    let whole = table.free[0].clone();
    while table.lacking(Sequence(0), &NONE_LEFT).is_empty() {
        table.free[0].pop_front();
    }
    let kept = table.free[0].len() + 1;
    table.free[0] = whole;
    kept
}

#[test]
fn what_is_kept_for_writers_goes_by_what_they_take() {
    let mut table = table(&[600]);
    let mut admit = |stream, kept: usize| {
        for _ in 0..200 {
            let segments = table.allocate(1, stream, &NONE_LEFT).unwrap();
            table.free[0].extend(segments);
        }
        assert_eq!(kept_free(&mut table), kept, "{stream:?}");
    };
    admit(Stream::Probation, 45);
    admit(Stream::DirtyMain, 59);
    // What is moved says nothing of what comes.
    admit(Stream::Main, 59);
    admit(Stream::Facts, 59);
    admit(Stream::Probation, 45);
    table.has_reservations = true;
    assert_eq!(kept_free(&mut table), 60);
}

#[test]
fn the_numbers_of_a_member_that_is_gone_are_neither_free_nor_anybodys() {
    let mut table = table(&[6, 3]);
    let absent = |n| table.is_absent(SegmentId(n));
    assert_eq!([8, 9, 10, 11].map(absent), [false, true, true, false]);
    assert!(!table.withhold(SegmentId(9)));
    assert_eq!((table.total_count(), table.free_count()), (9, 9));
    assert!(table.allocate(3, Stream::Metadata, &[0; PLACES_MAX]).is_none());
}

/// Whoever still holds a number of the one that is gone finds a member, also where the next one has fewer.
#[test]
fn a_number_is_of_the_last_member_that_was_given_it() {
    let mut table = table(&[6, 6, 3]);
    table.lose(1);
    table.join(3, NumberRange { base: 6, count: 4 });
    let member = |n| table.member_of(SegmentId(n));
    assert_eq!([5, 6, 9, 10, 12].map(member), [0, 3, 3, 1, 2]);
    assert_eq!((table.total_count(), table.free_count()), (13, 13));
}

/// Who appends to a set or discards it at the loss has its numbers from before.
#[test]
fn numbers_of_a_lost_member_are_in_use_while_somebody_holds_them() {
    for state in [SetState::Open, SetState::Discarding, SetState::Closed] {
        let mut table = table(&[40, 40]);
        let both = put(&mut table, 2, Stream::Dirty, SetState::Closed);
        table.let_go(both, Sequence(6));
        match state {
            SetState::Discarding => table.transition(both, state),
            state => table.get_mut(both).unwrap().state = state,
        }
        table.lose(1 - table.member_of(both));
        assert_eq!(table.uses_gone(), state != SetState::Closed, "it is known by its own number");
        match state {
            SetState::Discarding => table.release(both),
            SetState::Open => {
                table.transition(both, SetState::Closing);
                assert!(table.uses_gone());
                table.transition(both, SetState::Closed);
            }
            _ => {}
        }
        assert!(!table.uses_gone());
    }
}

/// What was let go of and has lost a copy is read on if it has enough; how many those are is not known while a pool starts.
#[test]
fn only_what_has_too_few_copies_goes_before_its_room_is_needed() {
    let (mut table, both, _) = reusable_beside_a_failing_member();
    table.keep_free(Some(0));
    table.lose(1 - table.member_of(both));
    assert_eq!(table.next_reusable(false), None);
    table.set_clean_copies(1);
    assert_eq!(table.next_reusable(false), None);
    table.set_clean_copies(2);
    assert_eq!(table.next_reusable(false), Some(both));
}

#[test]
fn a_member_that_fails_takes_its_copies_and_its_room() {
    let mut table = table(&[40, 40, 40]);
    let pair = put(&mut table, 2, Stream::Dirty, SetState::Closed);
    let alone = put(&mut table, 1, Stream::Probation, SetState::Closed);
    table.accounting = true;
    table.add(table.location(pair, 1), 3, State::Dirty);
    table.add(table.location(alone, 1), 2, State::Clean);
    let member = table.member_of(alone);
    assert!(!table.is_needed(table.member_of(pair)) && !table.is_needed(member));
    table.lose(member);
    assert!(table.has_strays() && table.get(alone).unwrap().has_no_copy());
    table.lose(table.member_of(pair));
    assert_eq!((table.get(pair).unwrap().segments.len(), table.owed_segments()), (1, 1));
    let last = table.member_of(table.get(pair).unwrap().segments[0]);
    assert!(table.is_needed(last), "dirty, and without another copy");
    assert!(
        !table.is_low()
            && !table.is_starving(&NONE_LEFT)
            && table.lacking(Sequence(0), &NONE_LEFT).is_empty()
    );
    assert_eq!((table.total_count(), table.free_count()), (40, 39));
    assert!(table.allocate(2, Stream::Facts, &[0; PLACES_MAX]).is_none());
    let emptied = table.sub(table.location(alone, 1), 2, State::Clean);
    assert_eq!(emptied, Some(alone));
    table.let_go(alone, Sequence(6));
    table.transition(alone, SetState::Discarding);
    table.release(alone);
    assert_eq!(table.free_count(), 39, "its segment is nobody's");
}

#[test]
fn room_is_made_on_the_members_that_lack_it() {
    let mut table = table(&[40, 24]);
    let both = put(&mut table, 2, Stream::Dirty, SetState::Closed);
    let first = put(&mut table, 1, Stream::Probation, SetState::Closed);
    let facts = put(&mut table, 2, Stream::Facts, SetState::Closed);
    table.free[1].truncate(10);
    let lacking = table.lacking(Sequence(4), &NONE_LEFT);
    assert_eq!(lacking, MemberMask(0b10));
    assert!(table.touches(table.get(both).unwrap(), lacking));
    assert!(!table.touches(table.get(first).unwrap(), lacking));
    assert!(!table.get(facts).unwrap().awaits_root(Sequence(4)));
    assert_eq!(
        table.lacking(Sequence(5), &NONE_LEFT),
        MemberMask(0b10),
        "10 free and 1 coming of 12"
    );
    table.free[0].truncate(9);
    assert_eq!(table.lacking(Sequence(5), &NONE_LEFT), MemberMask(0b11));
    table.free[1].truncate(6);
    assert_eq!(table.lacking(Sequence(5), &NONE_LEFT), MemberMask(0b10), "the other one can wait");
}

#[test]
fn what_is_reusable_counts_as_free_and_is_emptied_where_that_is_needed() {
    let mut table = table(&[160, 160]);
    table.accounting = true;
    let sets: Vec<SegmentId> =
        (0..4).map(|_| put(&mut table, 1, Stream::Probation, SetState::Closed)).collect();
    for (&id, sequence) in sets.iter().zip([9, 8, 7, 6]) {
        table.add(table.location(id, 1), 3, State::Clean);
        table.pass(id);
        assert!(table.get(id).is_some_and(Set::may_be_let_go), "it owes nothing");
        table.let_go(id, Sequence(sequence));
    }
    let free = table.free_count();
    assert_eq!(free, 316);
    for &id in sets.iter().rev() {
        table.transition(id, SetState::Reusable);
    }
    assert_eq!((table.free_count(), table.next_reusable(false)), (320, None), "nobody needs them");
    assert_eq!(table.next_reusable(true), Some(sets[3]), "the first one that was let go of");
    // Each has a reserve of 8 segments, a quarter of it as stock.
    let lies_on = |table: &SetTable, member| {
        let mut on = sets.iter().rev().copied();
        on.find(|&id| table.member_of(id) == member)
    };
    table.free[1].truncate(1);
    assert_eq!(table.next_reusable(false), lies_on(&table, 1));
    assert!(table.allocate(2, Stream::Metadata, &NONE_LEFT).is_some());
    assert!(table.allocate(2, Stream::Metadata, &NONE_LEFT).is_none(), "reusable is not yet free");
    let next = table.next_reusable(false).unwrap();
    let pinned = table.pin(table.location(next, 1));
    assert_eq!(table.sub(table.location(next, 1), 3, State::Clean), None, "it is not emptied anew");
    let counted = table.free_count();
    table.drain(next);
    assert_eq!(table.free_count(), counted - 1, "somebody reads from it");
    assert!(table.next_reusable(false) != Some(next) && !table.undrain(next));
    assert_eq!(table.unpin(pinned), Some(next));
    assert!(table.undrain(next) && !table.undrain(next));
    assert_eq!((table.next_reusable(false), table.free_count()), (Some(next), counted));
    table.transition(next, SetState::Discarding);
    let before = table.free_count();
    table.release(next);
    assert_eq!((table.free_count(), table.free[1].len()), (before, 1));
    let other = lies_on(&table, 0).unwrap();
    table.free[1].extend((0..9).map(|_| next));
    assert_eq!(table.next_reusable(false), None);
    table.set_leaving(Some(0));
    assert_eq!(table.next_reusable(false), Some(other), "its member is to leave");
    table.lose(0);
    assert_eq!((table.reusable[0], table.next_reusable(false)), (0, None), "others drop its data");
    table.sub(table.location(other, 1), 3, State::Clean);
    assert_eq!(table.next_reusable(false), Some(other));
}

/// Reusable sets of which images may name something, one on members 0 and 1, then one on member 1.
fn reusable_beside_a_failing_member() -> (SetTable, SegmentId, SegmentId) {
    let mut table = table(&[160, 160]);
    table.accounting = true;
    let both = put(&mut table, 2, Stream::Probation, SetState::Closed);
    table.free[0].clear();
    let alone = put(&mut table, 1, Stream::Probation, SetState::Closed);
    assert_eq!(table.member_of(alone), 1);
    for id in [both, alone] {
        table.add(table.location(id, 1), 3, State::Clean);
        table.pass(id);
        table.let_go(id, Sequence(6));
        table.transition(id, SetState::Reusable);
    }
    table.free[1].clear();
    (table, both, alone)
}

/// What waits for an epoch is nobody's room until then, and hides from nobody that room is needed.
#[test]
fn a_set_with_a_header_on_a_failing_member_waits_by_itself() {
    let (mut table, both, alone) = reusable_beside_a_failing_member();
    table.keep_free(Some(1));
    assert_eq!(table.next_reusable(false), Some(both));
    table.sub(table.location(both, 1), 3, State::Clean);
    table.transition(both, SetState::Discarding);
    assert_eq!((table.next_reusable(false), table.free_count()), (None, 3), "one is coming");
    table.fail(0);
    assert_eq!((table.next_reusable(false), table.free_count()), (Some(alone), 1));
    assert!(table.can_be_had(1) && table.is_late(both) && !table.is_late(alone));
    table.sub(table.location(alone, 1), 3, State::Clean);
    table.transition(alone, SetState::Discarding);
    table.release(alone);
    assert!(table.allocate(1, Stream::Metadata, &NONE_LEFT).is_some() && !table.can_be_had(1));
    table.settle();
    assert!(!table.is_late(both) && table.can_be_had(1));
    table.release(both);
    assert_eq!(table.free_count(), 1);
}

/// The same of one that nobody has begun to empty, of one that is let go of meanwhile, and of one that is read from.
#[test]
fn what_becomes_reusable_beside_a_failing_member_waits_as_well() {
    let (mut table, both, alone) = reusable_beside_a_failing_member();
    table.free[0].extend((20..40).map(SegmentId));
    table.free[1].extend((180..200).map(SegmentId));
    let other = put(&mut table, 2, Stream::Probation, SetState::Closed);
    table.add(table.location(other, 1), 3, State::Clean);
    table.pass(other);
    table.let_go(other, Sequence(7));
    table.keep_free(Some(50));
    let pinned = table.pin(table.location(alone, 1));
    table.sub(table.location(alone, 1), 3, State::Clean);
    table.drain(alone);
    table.fail(0);
    let free = table.free_count();
    table.transition(other, SetState::Reusable);
    assert_eq!((table.next_reusable(true), table.free_count()), (None, free));
    assert!([both, other].iter().all(|&id| table.is_late(id)) && !table.is_late(alone));
    assert_eq!(table.unpin(pinned), Some(alone));
    assert!(table.undrain(alone));
    assert_eq!((table.next_reusable(true), table.free_count()), (Some(alone), free + 1));
    table.settle();
    assert_eq!(table.free_count(), free + 3);
    for id in [both, other] {
        table.sub(table.location(id, 1), 3, State::Clean);
        table.transition(id, SetState::Discarding);
        table.release(id);
    }
    assert_eq!((table.free_count(), table.next_reusable(true)), (free + 3, Some(alone)));
}

/// Its headers are durably gone, and it is discarded while a member fails.
#[test]
fn a_set_without_a_header_waits_for_nobody() {
    let (mut table, both, _) = reusable_beside_a_failing_member();
    table.sub(table.location(both, 1), 3, State::Clean);
    table.transition(both, SetState::Discarding);
    table.note_erased(both);
    table.fail(0);
    assert!(!table.is_late(both) && table.can_be_had(1));
    let free = table.free_count();
    table.release(both);
    assert_eq!((table.free_count(), table.free[1].len()), (free, 1));
    assert_eq!((table.reusable[1], table.discarding[1]), (1, 0));
}

/// What has lost a copy to a member that an epoch has left behind since waits for no other one.
#[test]
fn a_set_waits_only_for_those_that_it_was_on() {
    let (mut table, both, alone) = reusable_beside_a_failing_member();
    table.fail(0);
    table.settle();
    assert!(table.get(both).unwrap().lacks_copy && table.can_be_had(1));
    table.join(2, crate::format::NumberRange { base: 320, count: 160 });
    let free = table.free_count();
    table.fail(2);
    assert!(![both, alone].iter().any(|&id| table.is_late(id)));
    assert_eq!(table.free_count(), free - 160);
}

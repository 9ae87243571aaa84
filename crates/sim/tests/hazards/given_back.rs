//! Copies that are given back while a flush fails, and the process ends before there is an epoch without that member: what the
//! next start reads of their headers may be what a power cut takes back.

use std::rc::Rc;

use forebay_device::Request;
use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::runtime::MILLISECOND;
use forebay_engine::Tuning;
use forebay_engine::format::{SegmentHeader, Stream};
use forebay_engine::ids::{Incarnation, SegmentId};
use forebay_engine::planted::Bug;

use crate::copies::mirrored;
use crate::rig::{
    BLOCK, Plan, Rig, SEGMENT_BYTES, SEGMENTS, is_erasure, provoke, same, survive, to_header,
};

/// Blocks that are written, destaged, and read at the end.
const KEPT: u64 = 150;
/// Blocks behind these, which are written then.
const MORE: u64 = 80;

/// Headers that are erased behind one flush.
const TOGETHER: usize = 64;

/// Before it a member has its superblock and its roots.
const FIRST_SEGMENT: u64 = 5 * SEGMENT_BYTES;

/// Segments of each member, whose numbers follow one another.
pub(crate) const MEMBER_SEGMENTS: u32 = 51;

/// Members and places of headers.
type Headers = Vec<(usize, u64)>;

fn lose(rig: &Rig, headers: &Headers) {
    for &(member, at) in headers {
        rig.members[member].lose(at..at + BLOCK as u64);
    }
}

fn headers(rig: &Rig) -> Headers {
    (0..2).flat_map(|m| rig.headers(m).into_iter().map(move |at| (m, at))).collect()
}

/// Two members, on which the next root frees the second copies of much.
fn with_surplus(seed: u64, headers_together: usize) -> Result<Rc<Rig>, String> {
    let plan = mirrored();
    let tuning = Tuning { headers_together, ..plan.tuning };
    let rig = Rig::new(seed, Plan { tuning, ..plan });
    for block in 0..KEPT {
        rig.write(2, block, 1)?;
    }
    rig.destage()?;
    Ok(rig)
}

/// Writes until an answer is held by a gate; false if none is.
fn until_held(rig: &Rc<Rig>, member: usize) -> bool {
    (0..400).any(|n| {
        rig.start_write(3, KEPT + n % MORE, 1);
        rig.pause(MILLISECOND);
        rig.gates[member].held() > 0
    })
}

/// The process has ended, and what is in `undone` is read and not durable. The next start opens a set where headers were `erased`,
/// and a power cut takes the header of that and leaves its records.
fn opened_again(rig: &Rc<Rig>, undone: &Headers, erased: &Headers) -> Result<bool, String> {
    lose(rig, undone);
    rig.restart(Crash::ProcessKill)?;
    lose(rig, undone);
    let header = |&(member, at): &(usize, u64)| rig.members[member].peek(at, BLOCK);
    let found: Vec<_> = erased.iter().map(header).collect();
    let is_new = |n: &usize| {
        let now = header(&erased[*n]);
        now != found[*n] && now.starts_with(b"FBYSEGMT")
    };
    for n in 0..600 {
        rig.gates.iter().for_each(|gate| gate.hold(1, to_header));
        rig.start_write(4, KEPT + (7 * n) % MORE, 1);
        rig.pause(MILLISECOND);
        if (0..erased.len()).any(|n| is_new(&n)) {
            break;
        }
        rig.gates.iter().for_each(|gate| gate.release());
    }
    for n in 0..40 {
        rig.start_write(4, KEPT + n, 1);
    }
    rig.pause(2 * MILLISECOND);
    let opened: Headers = (0..erased.len()).filter(is_new).map(|n| erased[n]).collect();
    lose(rig, &opened);
    rig.gates.iter().for_each(|gate| gate.hold(0, |_| false));
    rig.restart(Crash::PowerCut)?;
    (0..3 * KEPT).try_for_each(|n| {
        // While one copy is read, the other one has less to do.
        rig.start_read(n % KEPT);
        same(&format!("block {}", n % KEPT), rig.read(n % KEPT)?, 2).map(drop)
    })?;
    Ok(!opened.is_empty())
}

/// The process ends before the flush of what has lost its header is answered. Returns the members and places of that.
fn cut_off(seed: u64, headers_together: usize) -> Result<(Rc<Rig>, Headers), String> {
    let rig = with_surplus(seed, headers_together)?;
    let mut erased = headers(&rig);
    rig.gates[1].hold(1, is_erasure);
    assert!(until_held(&rig, 1), "seed {seed}: no copy was given back");
    let left = headers(&rig);
    erased.retain(|header| !left.contains(header));
    Ok((rig, erased))
}

#[test]
fn a_copy_that_was_given_back_is_not_read_although_its_header_returns() {
    provoke(Bug::HeadersBelievedGone, 12, |seed| {
        let (rig, erased) = cut_off(seed, TOGETHER)?;
        let met = opened_again(&rig, &erased, &erased)?;
        assert!(met, "seed {seed}: nothing was opened there again");
        Ok(())
    });
}

/// The start behind it is cut off while it erases, at one header or another.
#[test]
fn a_start_that_is_cut_off_while_it_erases_headers_leaves_that_to_the_next_one() {
    survive(24, |seed| {
        let (rig, erased) = cut_off(seed, 2)?;
        lose(&rig, &erased);
        rig.crash(Crash::ProcessKill);
        rig.world.crash_at(Some(rig.world.io_count() + 100 + 4 * seed));
        let opened = rig.open();
        rig.world.crash_at(None);
        assert!(opened.is_err(), "seed {seed}: the start was over before");
        let met = opened_again(&rig, &erased, &erased)?;
        assert!(met, "seed {seed}: nothing was opened there again");
        Ok(())
    });
}

/// The same where a discard has kept the header of a set that was made free long ago, and that the segment was part of.
#[test]
fn what_an_older_set_seems_to_have_is_left_without_a_header_as_well() {
    provoke(Bug::HeadersBelievedGone, 40, |seed| {
        let (rig, erased) = cut_off(seed, TOGETHER)?;
        let kept = rig.headers(0);
        let model = SegmentHeader::decode(&rig.members[0].peek(kept[0], BLOCK)).unwrap();
        let free = (0..SEGMENTS).map(|n| FIRST_SEGMENT + n * SEGMENT_BYTES);
        let free = free.filter(|at| !kept.contains(at));
        let copies = erased.iter().filter(|(member, _)| *member == 1);
        for (at, (_, copy)) in free.zip(copies) {
            let number = |at: u64| SegmentId(((at - FIRST_SEGMENT) / SEGMENT_BYTES) as u32);
            let (first, second) = (number(at), SegmentId(number(*copy).0 + MEMBER_SEGMENTS));
            let older = SegmentHeader {
                segment: first,
                set: first,
                incarnation: Incarnation { counter: 0, ..model.incarnation },
                stream: Stream::Facts,
                partners: vec![first, second],
                ..model.clone()
            };
            rig.members[0].poke(at, &older.encode());
        }
        let met = opened_again(&rig, &erased, &erased)?;
        assert!(met, "seed {seed}: nothing was opened there again");
        Ok(())
    });
}

/// Whether it makes a header name a single copy.
pub(crate) fn names_one(request: &Request) -> bool {
    let Request::Write { data, .. } = request else { return false };
    to_header(request) && SegmentHeader::decode(data).is_ok_and(|h| h.partners.len() == 1)
}

/// That of the headers of what stays fails, so they may go on to name what was given back.
#[test]
fn no_copy_is_given_back_that_headers_may_go_on_to_name() {
    provoke(Bug::EpochNotAwaited, 20, |seed| {
        let rig = with_surplus(seed, TOGETHER)?;
        let mut erased = headers(&rig);
        rig.gates[0].hold(1, names_one);
        assert!(until_held(&rig, 0), "seed {seed}: no copy was given back");
        let named: Headers = erased.iter().copied().filter(|&(member, _)| member == 0).collect();
        rig.broken[0].failing.arm(Trigger::every(Ops::Flushes).times(1));
        // No epoch without that member begins.
        rig.gates[1].keep_from(
            |request| matches!(request, Request::Write { offset, .. } if *offset < FIRST_SEGMENT),
        );
        rig.gates[0].release();
        rig.pause(MILLISECOND);
        rig.broken[0].mend();
        let left = headers(&rig);
        erased.retain(|header| !left.contains(header));
        opened_again(&rig, &named, &erased).map(drop)
    });
}

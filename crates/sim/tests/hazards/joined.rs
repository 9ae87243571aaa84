//! Streams of writes that go past the cache to an array with parity, joined to whole stripes: each request is answered
//! for itself.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::model::fault::{Ops, Trigger};
use forebay_device::model::world::Crash;
use forebay_device::runtime::MILLISECOND;
use forebay_device::{Buf, Runtime, Stripe};
use forebay_engine::VolumeSettings;
use forebay_engine::planted::{Bug, take_seen};
use forebay_sim::content::fill;

use crate::rig::{BLOCK, Plan, Rig, SOON, provoke, same, survive, version};

/// Blocks of a stripe.
const STRIPE: u64 = 16;

/// Blocks of a request: no stripe ends where one of the first fifteen does.
const LEN: u64 = 5;

fn rig(seed: u64) -> Result<Rc<Rig>, String> {
    let (bytes, chunk_bytes) = (STRIPE * BLOCK as u64, STRIPE / 4 * BLOCK as u64);
    let stripe = Some(Stripe { bytes, chunk_bytes, parity: true });
    let origin_bytes = 64 * STRIPE * BLOCK as u64;
    let rig = Rig::new(seed, Plan { stripe, origin_bytes, ..Plan::default() });
    let settings = VolumeSettings {
        sequential_cutoff_bytes: BLOCK as u64,
        sequential_writes: true,
        ..Default::default()
    };
    let volume = rig.volume();
    let set = rig.run(async move { volume.set(settings).await })?;
    set.map_err(|error| error.to_string())?;
    Ok(rig)
}

/// Whether a request has succeeded, once it has ended.
type Outcome = Rc<Cell<Option<bool>>>;

/// Starts a request of a stream of `version`, and tells how it ended.
fn start(rig: &Rig, of_version: u64, block: u64) -> Outcome {
    let mut data = Buf::new(LEN as usize * BLOCK);
    fill(of_version, 0, block * 8, &mut data);
    let (volume, outcome) = (rig.volume(), Rc::new(Cell::new(None)));
    let ended = Rc::clone(&outcome);
    rig.world.spawn(Box::pin(async move {
        ended.set(Some(volume.write(block * BLOCK as u64, data.freeze(), false).await.is_ok()));
    }));
    outcome
}

/// The origin has what was written from `block` on.
fn is_there(rig: &Rig, of_version: u64, block: u64) -> Result<(), String> {
    for block in block..block + LEN {
        let bytes = rig.origin.peek(block * BLOCK as u64, BLOCK);
        same(&format!("block {block}"), version(block, &bytes)?, of_version)?;
    }
    Ok(())
}

/// Plays two streams, so many requests of each at a time; how many writes of the origin that takes.
fn play(rig: &Rc<Rig>, depth: usize) -> Result<u64, String> {
    const REQUESTS: u64 = 40;
    let writes = || rig.origin_gate.writes.get();
    let before = writes();
    let bases = [0, 512];
    let mut under_way: [Vec<(u64, Outcome)>; 2] = Default::default();
    let (mut next, mut ended) = ([0, 0], 0);
    for _ in 0..100_000 {
        for (stream, base) in bases.into_iter().enumerate() {
            while under_way[stream].len() < depth && next[stream] < REQUESTS {
                let block = base + next[stream] * LEN;
                under_way[stream].push((block, start(rig, 2, block)));
                next[stream] += 1;
            }
        }
        rig.pause(MILLISECOND / 10);
        for stream in &mut under_way {
            for (block, outcome) in stream.iter().filter(|(_, outcome)| outcome.get().is_some()) {
                // The first of a stream are no stream yet.
                if block % 512 >= LEN {
                    is_there(rig, 2, *block)?;
                }
                assert_eq!(outcome.get(), Some(true));
                ended += 1;
            }
            stream.retain(|(_, outcome)| outcome.get().is_none());
        }
        if ended == 2 * REQUESTS {
            let writes = writes() - before;
            rig.flush()?;
            rig.restart(Crash::PowerCut)?;
            rig.destage()?;
            for (base, request) in
                bases.iter().flat_map(|&base| (0..REQUESTS).map(move |it| (base, it)))
            {
                is_there(rig, 2, base + request * LEN)?;
                same("what is read", rig.read(base + request * LEN)?, 2)?;
            }
            return Ok(writes);
        }
    }
    Err(format!("{ended} requests have ended"))
}

#[test]
fn what_is_answered_is_on_the_origin_whatever_it_was_joined_with() {
    provoke(Bug::JoinedAnsweredEarly, 6, |seed| {
        let rig = rig(seed)?;
        play(&rig, 6).map(drop)
    });
}

#[test]
fn who_has_one_request_at_a_time_waits_for_no_other() {
    survive(3, |seed| {
        let rig = rig(seed)?;
        take_seen();
        play(&rig, 1)?;
        match take_seen().get("writes of a stream joined") {
            None => Ok(()),
            Some(count) => Err(format!("{count} times")),
        }
    });
}

#[test]
fn several_requests_at_a_time_are_whole_stripes() {
    survive(3, |seed| {
        let rig = rig(seed)?;
        let many = play(&rig, 6)?;
        // 80 requests of 5 blocks are 25 stripes.
        if many <= 40 { Ok(()) } else { Err(format!("{many} writes of the origin")) }
    });
}

#[test]
fn a_request_that_fails_takes_no_other_with_it() {
    survive(4, |seed| {
        let rig = rig(seed)?;
        let bad = 7 * LEN * BLOCK as u64;
        rig.origin_broken.failing.arm(Trigger::every(Ops::Writes).within(bad..bad + BLOCK as u64));
        let outcomes: Vec<_> = (0..16).map(|it| start(&rig, 2, it * LEN)).collect();
        rig.pause(100 * SOON);
        for (at, outcome) in outcomes.iter().enumerate() {
            assert_eq!(outcome.get(), Some(at != 7), "request {at}");
        }
        rig.origin_broken.mend();
        rig.destage()?;
        (0..16).filter(|&it| it != 7).try_for_each(|it| is_there(&rig, 2, it * LEN))
    });
}

//! Two hosts that see the same devices: one opens the pool at a time, and one that did not keep it writes
//! nothing any more.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::model::disk::{DiskSettings, SimDisk};
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{Buf, Runtime};
use forebay_engine::format::{CLAIM_BYTES, Claim, STRUCTURES};
use forebay_engine::ids::PoolId;
use forebay_engine::limits::COUNTER_MAX;
use forebay_engine::planted::{Bug, take_seen};
use forebay_sim::jobs::alone;

use crate::crafted::seal;
use crate::pair::{Broken, LEASE, Pair, Site, block_of};
use crate::rig::{BLOCK, KINDS, MEMBER_BYTES, provoke, same, survive, version};

fn refused(outcome: Result<(), String>, kind: &str, what: &str) -> Result<(), String> {
    match outcome {
        Err(error) if error.contains(what) && error.starts_with(kind) => Ok(()),
        other => Err(format!("{other:?} instead of {kind}: {what}")),
    }
}

/// A client of host A that writes again and again, from before the freeze on.
fn keep_writing(site: &Rc<Site>, errors: &Rc<Cell<u64>>) {
    let (it, errors) = (Rc::clone(site), Rc::clone(errors));
    site.machine.spawn(Box::pin(async move {
        for round in 0.. {
            let Some(volume) = it.volume.borrow().clone() else { return };
            let data = block_of(9, round % 4).freeze();
            let at = round % 4 * BLOCK as u64;
            if volume.write(at, data, round % 3 == 0).await.is_err() {
                errors.set(errors.get() + 1);
            }
            if volume.read(at, Buf::new(BLOCK)).await.1.is_err() {
                errors.set(errors.get() + 1);
            }
            let runtime = it.runtime();
            let _ = runtime.sleep(MILLISECOND).await;
        }
    }));
}

/// A is frozen in the middle of its work, B takes the pool over, A comes to itself.
fn frozen(seed: u64) -> Result<(), String> {
    let pair = Pair::new(seed, 1 + seed as usize % 2);
    let (a, b) = (&pair.a, &pair.b);
    pair.open(a, false)?;
    refused(pair.open(b, false), "Held", "is open on host \"a\"")?;
    refused(pair.open(b, true), "Held", "is alive")?;
    pair.write(a, 2, 7)?;
    let errors = Rc::default();
    keep_writing(a, &errors);
    pair.pause(seed % 40 * MILLISECOND / 10 + 5 * SECOND);
    a.pulse().freeze();
    pair.pause(10 * MILLISECOND);
    refused(pair.open(b, false), "Held", "take-over").or(refused(
        pair.open(b, false),
        "Held",
        "is open",
    ))?;
    let began = pair.world.now();
    pair.open(b, true)?;
    if pair.world.now() - began < 2 * LEASE {
        return Err("it did not wait for the lease of the other".to_owned());
    }
    same("B", pair.read(b, 7)?, 2)?;
    for block in 0..4 {
        pair.write(b, 3, block)?;
    }
    pair.destage(b)?;
    let (errors_before, changes) = (errors.get(), a.changes.get());
    a.pulse().thaw();
    pair.pause(2 * LEASE);
    if a.changes.get() != changes {
        return Err("the host that lost the pool has written".to_owned());
    }
    if errors.get() == errors_before || !a.was_told("lease-lost") {
        return Err("the host that lost the pool has not noticed".to_owned());
    }
    if pair.read(a, 7).is_ok() || !b.was_told("pool-taken-over") {
        return Err("stale data was read".to_owned());
    }
    for block in 0..4 {
        same("B", pair.read(b, block)?, 3)?;
        same("origin", version(block, &pair.origin.peek(block * BLOCK as u64, BLOCK))?, 3)?;
    }
    pair.stop(b)
}

#[test]
fn a_host_that_was_frozen_while_another_took_the_pool_writes_nothing_any_more() {
    provoke(Bug::LeaseIgnored, 12, frozen);
    provoke(Bug::ClaimUnchecked, 4, frozen);
}

/// A is frozen for longer than its lease, and nobody takes the pool.
fn slept(seed: u64) -> Result<(), String> {
    let pair = Pair::new(seed, 2);
    let a = &pair.a;
    pair.open(a, false)?;
    let errors = Rc::default();
    keep_writing(a, &errors);
    pair.pause(5 * SECOND + seed * MILLISECOND / 7);
    a.pulse().freeze();
    pair.pause(10 * LEASE);
    a.pulse().thaw();
    pair.pause(SECOND);
    if errors.get() > 0 || a.was_told("lease-lost") {
        return Err("a host that slept has lost its pool to nobody".to_owned());
    }
    pair.write(a, 4, 0)
}

#[test]
fn a_host_that_slept_goes_on_if_nobody_has_taken_its_pool() {
    survive(12, slept);
}

/// Both claim a pool that A has closed, at the same time, and A's claim is long on its way.
fn both(seed: u64) -> Result<(), String> {
    let members = 1 + seed % 2;
    let pair = Pair::new(seed, members as usize);
    let (a, b) = (&pair.a, &pair.b);
    // It is A's own: it does not wait.
    a.slow.set((2 * members, (50 + seed * 61 % 800) * MILLISECOND));
    b.start_open(false);
    a.start_open(false);
    for _ in 0..8_000 {
        pair.pause(MILLISECOND);
        if a.serves() && b.serves() {
            return Err("both have the pool".to_owned());
        }
    }
    let open = [a, b].map(|site| matches!(&*site.outcome.borrow(), Some(Ok(()))));
    if open == [false; 2] { Err("neither has the pool".to_owned()) } else { Ok(()) }
}

#[test]
fn of_two_hosts_that_claim_a_pool_at_the_same_time_one_has_it_at_most() {
    provoke(Bug::ClaimNotAwaited, 60, both);
}

/// The takeover is cut off at some request, and everything with it; then whoever comes first has the pool,
/// with all that was flushed. Whether it had ended before.
fn cut_off(seed: u64) -> Result<bool, String> {
    let crash = KINDS[seed as usize % 2];
    let pair = Pair::new(seed, 2);
    let (a, b) = (&pair.a, &pair.b);
    pair.open(a, false)?;
    for block in 0..6 {
        pair.write(a, 2 + block, block)?;
    }
    a.pulse().freeze();
    pair.world.crash_at(Some(pair.world.io_count() + seed));
    let taken = pair.open(b, true);
    pair.world.crash_at(None);
    if taken.is_ok() {
        pair.write(b, 9, 0)?;
    }
    pair.crash(crash);
    a.reboot();
    b.reboot();
    let (first, second) = if seed.is_multiple_of(3) { (a, b) } else { (b, a) };
    if pair.open(first, false).is_err() {
        pair.open(first, true)?;
    }
    let has = first;
    refused(pair.open(second, false), "Held", "is open on host")?;
    let newest = if taken.is_ok() { 9 } else { 2 };
    same("after the takeover", pair.read(has, 0)?, newest)?;
    for block in 1..6 {
        same("after the takeover", pair.read(has, block)?, 2 + block)?;
    }
    pair.destage(has)?;
    pair.stop(has)?;
    // What was closed in order needs nobody's word.
    pair.open(second, false)?;
    same("on the other host", pair.read(second, 3)?, 5)?;
    Ok(taken.is_ok())
}

/// Until it has ended with each kind of crash and whoever comes first.
#[test]
fn a_takeover_that_is_cut_off_at_any_request_leaves_a_pool_for_one() {
    let (mut cut, mut ended) = (0, 0);
    for request in 1.. {
        match alone(move || cut_off(request)) {
            Ok(Ok(false)) => (cut, ended) = (cut + 1, 0),
            Ok(Ok(true)) => ended += 1,
            failed => panic!("request {request}: {failed:?}"),
        }
        if ended == 6 {
            break;
        }
    }
    assert!(cut > 50, "cut off at {cut} requests");
}

/// A member hangs, the last one that a takeover could have seen, too.
fn hanging(seed: u64) -> Result<(), String> {
    let pair = Pair::new(seed, 2);
    let (a, b) = (&pair.a, &pair.b);
    pair.open(a, false)?;
    let errors = Rc::default();
    keep_writing(a, &errors);
    // Behind the short leases of the beginning.
    pair.pause(5 * SECOND + seed * 300 * MILLISECOND);
    let awaited = || take_seen().remove("lease awaited").unwrap_or(0);
    awaited();
    a.hangs.set(true);
    for _ in 0..400 {
        pair.pause(100 * MILLISECOND);
        if !a.serves() {
            return Err("the lease has run out".to_owned());
        }
    }
    if errors.get() > 0 || awaited() > 0 || a.was_told("lease-lost") {
        return Err("a member that hangs has cost the lease".to_owned());
    }
    pair.write(a, 4, 0)?;
    refused(pair.open(b, false), "Held", "is open on host \"a\"")?;
    refused(pair.open(b, true), "Held", "is alive")
}

#[test]
fn a_member_that_hangs_does_not_cost_the_lease() {
    survive(8, hanging);
}

/// The claims of the last member cannot be read for a moment; of two, or of the only one.
fn unread_for_a_moment(seed: u64) -> Result<(), String> {
    let pair = Pair::new(seed, 1 + seed as usize % 2);
    let (a, b) = (&pair.a, &pair.b);
    pair.open(a, false)?;
    // From short leases on.
    pair.pause(SECOND + seed * 700 * MILLISECOND);
    for _ in 0..3 {
        a.broken.set(Broken::LastReads);
        for _ in 0..15 {
            pair.pause(100 * MILLISECOND);
            // Nothing is read for that, and nothing may wait.
            pair.write(a, 2, 0)?;
        }
        a.broken.set(Broken::Nothing);
        pair.pause(2 * SECOND);
    }
    let is_hurt = a.was_told("member-failed") || a.was_told("pool-latched");
    if is_hurt || a.was_told("lease-lost") {
        return Err("it cost a member".to_owned());
    }
    pair.pause(2 * LEASE);
    pair.write(a, 3, 0)?;
    refused(pair.open(b, true), "Held", "is alive")
}

#[test]
fn a_member_whose_claims_cannot_be_read_for_a_moment_stays() {
    survive(8, unread_for_a_moment);
}

/// For longer, and the member has dirty data alone: the lease may run out, and then all waits; nothing is lost.
fn needed_and_unread(seed: u64) -> Result<(), String> {
    let pair = Pair::new(seed, 1);
    let (a, b) = (&pair.a, &pair.b);
    pair.open(a, false)?;
    pair.pause(5 * SECOND + seed * 700 * MILLISECOND);
    (0..40).try_for_each(|block| pair.write(a, 2, block))?;
    a.broken.set(Broken::LastReads);
    pair.pause(4 * SECOND);
    a.broken.set(Broken::Nothing);
    pair.pause(2 * LEASE);
    let is_hurt = a.was_told("member-failed") || a.was_told("pool-latched");
    if is_hurt || a.was_told("lease-lost") {
        return Err("it cost what the member has alone".to_owned());
    }
    (0..40).try_for_each(|block| {
        pair.read(a, block).and_then(|found| same("a block", found, 2).map(drop))
    })?;
    refused(pair.open(b, true), "Held", "is alive")
}

#[test]
fn a_member_that_has_dirty_data_alone_has_longer() {
    survive(8, needed_and_unread);
}

/// They cannot be read any more at all.
fn unread_for_good(seed: u64) -> Result<(), String> {
    let pair = Pair::new(seed, 2);
    let (a, b) = (&pair.a, &pair.b);
    pair.open(a, false)?;
    pair.pause(5 * SECOND + seed * 300 * MILLISECOND);
    a.broken.set(Broken::LastReads);
    for _ in 0..400 {
        pair.pause(100 * MILLISECOND);
        if !a.serves() {
            return Err("the lease has run out".to_owned());
        }
    }
    if !a.was_told("member-failed") || a.was_told("lease-lost") {
        return Err("it is not left behind".to_owned());
    }
    pair.write(a, 3, 0)?;
    refused(pair.open(b, true), "Held", "is alive")
}

#[test]
fn a_member_whose_claims_cannot_be_read_for_long_is_left_behind_before_the_lease_ends() {
    survive(8, unread_for_good);
}

/// A cannot read the claims, stands still meanwhile, and cannot read them either when it goes on.
fn taken_while_unread(seed: u64) -> Result<(), String> {
    let pair = Pair::new(seed, 1 + seed as usize % 2);
    let (a, b) = (&pair.a, &pair.b);
    pair.open(a, false)?;
    pair.write(a, 2, 7)?;
    let errors = Rc::default();
    keep_writing(a, &errors);
    pair.pause(5 * SECOND + seed * 300 * MILLISECOND);
    a.broken.set(Broken::LastReads);
    pair.pause(seed % 5 * 300 * MILLISECOND);
    a.pulse().freeze();
    pair.pause(10 * MILLISECOND);
    pair.open(b, true)?;
    pair.write(b, 3, 0)?;
    let changes = a.changes.get();
    a.pulse().thaw();
    pair.pause(seed % 7 * 400 * MILLISECOND);
    a.broken.set(Broken::Nothing);
    pair.pause(2 * LEASE);
    if a.changes.get() != changes {
        return Err("the host that lost the pool has written".to_owned());
    }
    if errors.get() == 0 {
        return Err("a client was told of success".to_owned());
    }
    same("B", pair.read(b, 0)?, 3).map(drop)
}

#[test]
fn a_host_that_cannot_read_the_claims_does_not_go_on_behind_its_lease() {
    provoke(Bug::LeaseIgnored, 12, taken_while_unread);
}

#[test]
fn the_next_start_of_the_same_host_waits_for_nobody() {
    survive(8, |seed| {
        let pair = Pair::new(seed, 2);
        let a = &pair.a;
        pair.open(a, false)?;
        pair.write(a, 2, 0)?;
        pair.crash(KINDS[seed as usize % 2]);
        if seed.is_multiple_of(3) {
            a.reboot();
        }
        let began = pair.world.now();
        pair.open(a, false)?;
        if pair.world.now() - began > SECOND {
            return Err("it has waited".to_owned());
        }
        same("after the restart", pair.read(a, 0)?, 2).map(drop)
    });
}

#[test]
fn the_mark_of_who_has_it_is_never_the_first_segment() {
    let pair = Pair::new(1, 1);
    pair.open(&pair.a, false).unwrap();
    let pool = Rc::clone(pair.a.pool.borrow().as_ref().unwrap());
    let superblock = pool.superblock();
    let last = Claim::offset(&superblock, 1).unwrap() + 4096;
    assert!(last <= superblock.segments_offset);
}

/// Rounds take their time, and one of them is under way when the short leases end.
fn ends_its_short_leases(seed: u64) -> Result<(), String> {
    let pair = Pair::with(seed, 1, 60_000);
    let a = &pair.a;
    pair.open(a, false)?;
    a.slow.set((u64::MAX, (200 + 37 * seed) * MILLISECOND));
    for _ in 0..400 {
        pair.pause(100 * MILLISECOND);
        if !a.serves() {
            return Err(format!("the lease has run out at {} ns", pair.world.now()));
        }
    }
    Ok(())
}

#[test]
fn a_host_that_is_well_keeps_its_lease_when_the_short_ones_end() {
    survive(16, ends_its_short_leases);
}

/// The only member takes no writes any more, as SSDs at their end; then it does not answer anything.
fn breaks(seed: u64) -> Result<(), String> {
    let pair = Pair::new(seed, 1);
    let a = &pair.a;
    pair.open(a, false)?;
    pair.write(a, 2, 7)?;
    pair.pause(5 * SECOND + seed * 300 * MILLISECOND);
    a.broken.set(Broken::Changes);
    if pair.write(a, 3, 6).is_ok() {
        return Err("it was written".to_owned());
    }
    pair.pause(3 * LEASE);
    let read = pair.read_within(a, 7, SECOND).ok_or("a read waits for ever")?;
    same("from a device that takes no writes", read?, 2)?;
    a.broken.set(Broken::All);
    let mut waiting = 0;
    for _ in 0..30 {
        let read = pair.read_within(a, 7, 5 * SECOND);
        match read {
            Some(Ok(_)) => return Err("something was read".to_owned()),
            Some(Err(_)) => waiting = 0,
            None => waiting += 1,
        }
        if waiting > 4 {
            return Err("a read waits for ever".to_owned());
        }
    }
    a.broken.set(Broken::Nothing);
    pair.pause(SECOND);
    same("once it answers", pair.read_within(a, 7, SECOND).ok_or("a read waits for ever")??, 2)
        .map(drop)
}

#[test]
fn what_can_be_read_of_a_pool_that_has_latched_is_and_nothing_waits_for_ever() {
    survive(6, breaks);
}

/// An intact claim that this code would not have written: who did may be using the pool, and it is not passed over.
#[test]
fn a_claim_that_cannot_be_understood_keeps_a_pool_closed() {
    survive(2, |seed| {
        let pair = Pair::new(seed, 2);
        let (a, b) = (&pair.a, &pair.b);
        pair.open(a, false)?;
        pair.write(a, 2, 7)?;
        let superblock = a.pool.borrow().as_ref().unwrap().superblock();
        pair.stop(a)?;
        let places = [0, 1].map(|slot| Claim::offset(&superblock, slot).unwrap());
        let put = |claim: &[u8]| {
            for disk in &pair.disks {
                places.iter().for_each(|&at| disk.poke(at, claim));
            }
        };
        let mut claim = pair.disks[0].peek(places[0], CLAIM_BYTES);
        let structure = STRUCTURES.iter().find(|it| it.name == "Claim").unwrap();
        let lease = structure.fields.iter().find(|it| it.name == "LEASE_MS").unwrap().offset;
        let before = claim.clone();
        claim[lease..lease + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        seal(&mut claim);
        put(&claim);
        for site in [a, b] {
            refused(pair.open(site, false), "Damaged", "cannot be told from an intact claim")?;
        }
        let began = pair.world.now();
        pair.open(b, true)?;
        if pair.world.now() - began < LEASE {
            return Err("it did not wait for whoever may have it".to_owned());
        }
        same("B", pair.read(b, 7)?, 2)?;
        // Whoever wrote that has the pool after all.
        put(&claim);
        pair.pause(2 * LEASE);
        if b.serves() || !b.was_told("lease-lost") {
            return Err("both have it".to_owned());
        }
        // The last number that there is.
        let known = Claim::decode(&before).unwrap();
        put(&Claim { number: COUNTER_MAX, released: true, ..known }.encode());
        refused(pair.open(a, false), "Damaged", "number of the claim")
    });
}

#[test]
fn a_device_that_was_another_pools_joins() {
    survive(4, |seed| {
        let pair = Pair::new(seed, 1);
        let a = &pair.a;
        pair.open(a, false)?;
        let pool = Rc::clone(a.pool.borrow().as_ref().unwrap());
        let superblock = pool.superblock();
        let old = Claim {
            pool: PoolId([9; 16]),
            claim: [9; 16],
            number: seed,
            beat: 7,
            beat_unix_s: 7,
            lease_ms: 24_000,
            released: true,
            host: a.host.borrow().clone(),
        };
        let disk = SimDisk::new(&pair.world, DiskSettings::ssd(MEMBER_BYTES, 512), seed);
        for slot in 0..2 {
            disk.poke(Claim::offset(&superblock, slot).unwrap(), &old.encode());
        }
        pair.run(async move { pool.add_member(disk).await.map(drop) })?
            .map_err(|error| error.to_string())?;
        pair.pause(2 * LEASE);
        if !a.serves() || a.was_told("lease-lost") {
            return Err("the pool was lost to one that is no more".to_owned());
        }
        Ok(())
    });
}

/// B is killed in the middle of its takeover and started again, and A is alive after all.
fn killed(seed: u64) -> Result<(), String> {
    let pair = Pair::new(seed, 1);
    let (a, b) = (&pair.a, &pair.b);
    pair.open(a, false)?;
    pair.write(a, 2, 7)?;
    pair.pause(5 * SECOND + seed * 100 * MILLISECOND);
    a.pulse().freeze();
    pair.pause(10 * MILLISECOND);
    b.slow.set((1, 400 * MILLISECOND));
    b.start_open(true);
    while b.changes.get() == 0 {
        pair.pause(10 * MILLISECOND);
    }
    a.pulse().thaw();
    pair.pause(600 * MILLISECOND);
    b.pulse().freeze();
    let again = pair.restarted(b);
    again.start_open(false);
    for _ in 0..4_000 {
        pair.pause(10 * MILLISECOND);
        if a.serves() && again.serves() {
            return Err("both have the pool".to_owned());
        }
    }
    again.volume.take();
    again.pool.take();
    Ok(())
}

#[test]
fn who_was_cut_off_in_a_takeover_waits_as_it_would_have() {
    survive(12, killed);
}

/// A pool that has latched is stopped, which fails; the daemon lives on.
fn stopped_after_a_failure(seed: u64) -> Result<(), String> {
    let pair = Pair::new(seed, 1);
    let (a, b) = (&pair.a, &pair.b);
    pair.open(a, false)?;
    pair.write(a, 2, 7)?;
    pair.pause(5 * SECOND + seed * 300 * MILLISECOND);
    a.broken.set(Broken::Changes);
    if pair.write(a, 3, 6).is_ok() {
        return Err("it was written".to_owned());
    }
    let is_mended = seed.is_multiple_of(2);
    if is_mended {
        a.broken.set(Broken::Nothing);
    }
    if pair.stop(a).is_ok() {
        return Err("a pool that has latched was stopped in order".to_owned());
    }
    a.broken.set(Broken::Nothing);
    let changes = a.changes.get();
    pair.pause(2 * LEASE);
    if a.changes.get() != changes {
        return Err("it is written to after the stop".to_owned());
    }
    // Nobody could be told that it was closed while nothing could be written.
    pair.open(b, !is_mended)?;
    same("on the other host", pair.read(b, 7)?, 2).map(drop)
}

#[test]
fn a_stop_that_fails_leaves_the_pool_to_others() {
    survive(6, stopped_after_a_failure);
}

/// A read of an opening fails, whichever it is, and once more when it is repeated.
fn fails_to_open(seed: u64) -> Result<(), String> {
    for nth in 1.. {
        let pair = Pair::new(seed, 1);
        let (a, b) = (&pair.a, &pair.b);
        a.failing_read.set(nth + 1);
        let opened = pair.open(a, false);
        if a.failing_read.replace(0) > 1 {
            return opened;
        }
        if opened.is_ok() {
            pair.stop(a)?;
        }
        let began = pair.world.now();
        let next = if nth % 2 == 0 { a } else { b };
        pair.open(next, false).map_err(|error| format!("read {nth}: {error}, {opened:?}"))?;
        if pair.world.now() - began > LEASE / 2 {
            return Err(format!("read {nth}: the next one has waited for a lease"));
        }
    }
    Ok(())
}

#[test]
fn an_opening_that_fails_leaves_the_pool_to_whoever_tries_next() {
    survive(2, fails_to_open);
}

/// One member takes no claim: the next attempt of that start goes on without it, and waits only if the first one would have had to.
#[test]
fn a_start_goes_on_without_a_member_that_takes_no_claim() {
    survive(6, |seed| {
        let pair = Pair::new(seed, 2);
        let (a, b) = (&pair.a, &pair.b);
        pair.open(a, false)?;
        pair.write(a, 2, 7)?;
        pair.stop(a)?;
        let is_others = seed % 2 == 1;
        if is_others {
            pair.open(b, false)?;
            pair.write(b, 3, 7)?;
            pair.stop(b)?;
        }
        let newest = if is_others { 3 } else { 2 };
        a.broken.set(Broken::LastChanges);
        let began = pair.world.now();
        pair.open(a, false)?;
        let waited = pair.world.now() - began;
        assert!(if is_others { waited >= LEASE } else { waited < SECOND }, "waited {waited} ns");
        assert!(a.was_told("member-failed"));
        same("without it", pair.read(a, 7)?, newest)?;
        refused(pair.open(b, false), "Held", "is open on host \"a\"")?;
        pair.write(a, 4, 7)?;
        // The lease holds, and is renewed on what is left.
        pair.pause(2 * LEASE);
        pair.write(a, 5, 7)?;
        pair.stop(a)?;
        a.broken.set(Broken::Nothing);
        pair.open(b, false)?;
        assert!(b.was_told("member-stale"));
        same("elsewhere", pair.read(b, 7)?, 5).map(drop)
    });
}

/// One member returns nothing any more, or for a moment, its claims or what is read behind them. Nobody goes on without one whose
/// claims cannot be read.
#[test]
fn a_start_goes_on_without_a_member_that_returns_nothing_behind_its_claims() {
    survive(6, |seed| {
        let is_short = seed % 2 == 1;
        let (mut without, mut with) = (0, 0);
        for step in 0..24 {
            let pair = Pair::new(seed, 2);
            let (a, b) = (&pair.a, &pair.b);
            pair.open(a, false)?;
            pair.write(a, 2, 7)?;
            pair.stop(a)?;
            a.start_open(false);
            pair.pause(step * MILLISECOND / 4);
            a.broken.set(Broken::LastReads);
            pair.pause(if is_short { SECOND } else { 12 * SECOND });
            a.broken.set(Broken::Nothing);
            pair.pause(if is_short { 12 * SECOND } else { 0 });
            match a.outcome.take().expect("it has ended") {
                Ok(()) => {}
                // Until then nobody knows which member it is, or who else may have told it something.
                Err(error) if error.contains("no readable superblock") => continue,
                Err(error) if error.contains("reading who has the pool") && !is_short => continue,
                Err(error) => return Err(format!("step {step}: {error}")),
            }
            let failed = a.was_told("member-failed");
            without += u32::from(failed);
            with += u32::from(!failed);
            same("A", pair.read(a, 7)?, 2)?;
            pair.pause(2 * LEASE);
            pair.write(a, 3, 7)?;
            refused(pair.open(b, false), "Held", "is open on host \"a\"")?;
            pair.stop(a)?;
            pair.open(b, false)?;
            same("B", pair.read(b, 7)?, 3)?;
        }
        assert!(if is_short { without == 0 && with > 4 } else { without > 4 }, "{without} {with}");
        Ok(())
    });
}

/// B had the pool last, looks, and is slow to make its claim; meanwhile A looks, one member fails its claim, and A makes another
/// one, over which B's comes to lie.
#[test]
fn a_claim_over_one_that_was_made_anew_without_a_member_is_noticed() {
    survive(12, |seed| {
        let pair = Pair::new(seed, 2);
        let (a, b) = (&pair.a, &pair.b);
        pair.open(b, false)?;
        pair.write(b, 2, 7)?;
        pair.stop(b)?;
        b.slow.set((4, 900 * MILLISECOND));
        b.start_open(false);
        pair.pause(seed % 4 * 5 * MILLISECOND + 2 * MILLISECOND);
        a.broken.set(Broken::LastChanges);
        a.start_open(false);
        pair.pause(3 * LEASE);
        let [had_a, had_b] = [a, b].map(|site| site.outcome.borrow().clone().expect("it ended"));
        assert!(had_a.is_err() || had_b.is_err(), "both have it");
        assert!(had_a.is_ok() || had_b.is_ok(), "{had_a:?}, {had_b:?}");
        let (winner, loser) = if had_a.is_ok() { (a, b) } else { (b, a) };
        refused(loser.outcome.borrow().clone().unwrap(), "Held", "")?;
        pair.write(winner, 3, 7)?;
        pair.pause(LEASE);
        same("whoever has it", pair.read(winner, 7)?, 3).map(drop)
    });
}

/// A takeover asks for all members, so it does not go on where one of them fails the claim.
#[test]
fn a_takeover_does_not_go_on_without_a_member_that_takes_no_claim() {
    survive(4, |seed| {
        let pair = Pair::new(seed, 2);
        let (a, b) = (&pair.a, &pair.b);
        pair.open(b, false)?;
        pair.write(b, 2, 7)?;
        b.pulse().freeze();
        a.broken.set(Broken::LastChanges);
        refused(pair.open(a, true), "Io", "claiming the pool on cache device")?;
        a.broken.set(Broken::Nothing);
        pair.open(a, true)?;
        same("taken over", pair.read(a, 7)?, 2).map(drop)
    });
}

//! Volumes that share a pool: what is reserved for one is not taken by others, whatever becomes of their
//! origins; a limit holds; priorities show.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::model::disk::{DiskSettings, SimDisk};
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_device::{BlockDevice, Buf, Request, Runtime};
use forebay_engine::bypass::Reason;
use forebay_engine::limits::{
    GRANULE_BLOCKS, POPULATE_BYTES_MAX, POPULATE_QUEUE_BYTES_MAX, STRIPE_BYTES,
};
use forebay_engine::planted::{Bug, take_seen};
use forebay_engine::text::bytes;
use forebay_engine::{Mode, Priority, Tuning, Volume, VolumeSettings, VolumeSpec};

use crate::rig::{BLOCK, Gate, Plan, Rig, SEGMENT_BYTES, SOON, lazy, provoke, same, survive};

/// Blocks of the first volume: twice what the pool holds.
const BLOCKS: u64 = 1280;

/// Blocks of the second one.
const OTHER: u64 = 256;

fn is_write(request: &Request) -> bool {
    matches!(request, Request::Write { .. })
}

fn is_flush(request: &Request) -> bool {
    matches!(request, Request::Flush)
}

pub fn reserved(segments: u64) -> VolumeSettings {
    VolumeSettings { reservation_bytes: segments * SEGMENT_BYTES, ..Default::default() }
}

fn limited(segments: u64) -> VolumeSettings {
    VolumeSettings { limit_bytes: segments * SEGMENT_BYTES, ..Default::default() }
}

fn pool(seed: u64) -> Rc<Rig> {
    let tuning = Tuning { flush_interval: SECOND, lap_percent: 10, ..lazy() };
    Rig::new(seed, Plan { tuning, origin_bytes: BLOCKS * BLOCK as u64, ..Plan::default() })
}

/// A second volume, with an origin of its own.
fn second(rig: &Rig, seed: u64, settings: VolumeSettings) -> Result<Rc<Volume>, String> {
    let settings_of = DiskSettings::origin(OTHER * BLOCK as u64, 512, true);
    let origin = SimDisk::new(&rig.world, settings_of, seed);
    let spec = VolumeSpec {
        name: "w".into(),
        origin: "w".into(),
        mode: Mode::Writeback,
        cache_block_bytes: 4096,
        settings,
        accept_data_loss_on_ssd_failure: true,
    };
    let (pool, origin) = (rig.pool(), origin as Rc<dyn BlockDevice>);
    let added = rig.run(async move { pool.add_volume(&spec, origin).await })?;
    added.map(Rc::new).map_err(|error| error.to_string())
}

pub fn set(rig: &Rig, volume: &Rc<Volume>, settings: VolumeSettings) -> Result<(), String> {
    let volume = Rc::clone(volume);
    rig.run(async move { volume.set(settings).await })?.map_err(|error| error.to_string())
}

/// Starts writes of single blocks, and tells how many have ended.
fn start(
    rig: &Rig,
    volume: &Rc<Volume>,
    byte: u8,
    blocks: impl Iterator<Item = u64>,
) -> Rc<Cell<u64>> {
    let ended = Rc::new(Cell::new(0));
    for block in blocks {
        let (volume, ended) = (Rc::clone(volume), Rc::clone(&ended));
        rig.world.spawn(Box::pin(async move {
            let mut data = Buf::new(BLOCK);
            data.fill(byte);
            if volume.write(block * BLOCK as u64, data.freeze(), false).await.is_ok() {
                ended.set(ended.get() + 1);
            }
        }));
    }
    ended
}

/// Waits for so many of them, and no longer than a minute.
fn until(rig: &Rig, ended: &Cell<u64>, count: u64, what: &str) -> Result<(), String> {
    for _ in 0..6_000 {
        if ended.get() >= count {
            return Ok(());
        }
        rig.pause(10 * MILLISECOND);
    }
    Err(format!("{what}: {} of {count} writes after a minute", ended.get()))
}

/// The origin of one volume takes nothing any more, neither writes nor flushes, and its clients go on until they
/// are stopped. Many times what is reserved for the other one is written there, all of it new.
fn hung(seed: u64, wanted: fn(&Request) -> bool) -> Result<(), String> {
    let rig = pool(seed);
    let other = second(&rig, seed, reserved(6))?;
    // Some is under way at any instant when it hangs.
    let first = start(&rig, &rig.volume(), 1, (0..100 + seed % 50).map(|i| i * 11 % BLOCKS));
    rig.pause(20 * MILLISECOND);
    rig.origin_gate.hold(usize::MAX, wanted);
    let stuck = start(&rig, &rig.volume(), 2, (0..BLOCKS).map(|i| i * 7 % BLOCKS));
    rig.pause(SECOND);
    for pass in 0..20 {
        // What was seen before says nothing of what the others needed.
        if pass == 0 {
            take_seen();
        }
        let blocks = (0..OTHER / 8).map(|i| (pass * 97 + i * 5) % OTHER);
        let ended = start(&rig, &other, pass as u8, blocks);
        until(&rig, &ended, OTHER / 8, &format!("pass {pass}"))?;
    }
    let seen = take_seen();
    let packed = "reclaim: owed blocks packed for a reservation";
    if !seen.contains_key(packed) && other.settings().reservation_bytes > 0 {
        return Err("nothing was in the way of the other".into());
    }
    if stuck.get() == BLOCKS {
        return Err("twice the pool was acknowledged, and the origin has nothing".into());
    }
    rig.origin_gate.hold(0, wanted);
    rig.origin_gate.release();
    until(&rig, &stuck, BLOCKS, "the first, once its origin answers")?;
    until(&rig, &first, 100 + seed % 50, "what was written before")?;
    let (one, two) = (rig.volume(), Rc::clone(&other));
    rig.run(async move {
        one.destage().await?;
        two.destage().await
    })?
    .map_err(|error| error.to_string())?;
    for block in 0..BLOCKS {
        let byte = rig.origin.peek(block * BLOCK as u64, 1)[0];
        same("of the first, on its origin", byte.into(), 2)?;
    }
    Ok(())
}

#[test]
fn an_origin_that_hangs_does_not_stop_who_has_a_reservation() {
    provoke(Bug::ReservationForgotten, 6, |seed| hung(seed, is_write));
}

#[test]
fn one_whose_flushes_hang_does_not_either() {
    provoke(Bug::ReservationForgotten, 6, |seed| hung(seed, is_flush));
}

/// Blocks of a volume that the cache serves.
fn is_cached(volume: &Volume, block: u64) -> Result<bool, String> {
    let mut extents = Vec::new();
    let status = volume.status(block * BLOCK as u64, BLOCK as u64, &mut extents);
    status.map_err(|error| error.to_string())?;
    Ok(extents[0].place != forebay_engine::Place::Origin)
}

/// How many of so many first blocks of a volume are cached.
fn cached(rig: &Rig, volume: &Rc<Volume>, blocks: u64) -> Result<u64, String> {
    let mut count = 0;
    for block in 0..blocks {
        count += u64::from(is_cached(volume, block)?);
    }
    rig.pause(MILLISECOND);
    Ok(count)
}

fn read_all(rig: &Rig, volume: &Rc<Volume>, blocks: u64) -> Result<(), String> {
    read_each(rig, volume, 0..blocks)
}

/// Reads blocks one after the other.
fn read_each(
    rig: &Rig,
    volume: &Rc<Volume>,
    blocks: impl Iterator<Item = u64> + 'static,
) -> Result<(), String> {
    let volume = Rc::clone(volume);
    rig.run(async move {
        for block in blocks {
            volume.read(block * BLOCK as u64, Buf::new(BLOCK)).await.1?;
        }
        Ok::<_, forebay_engine::Error>(())
    })?
    .map_err(|error| error.to_string())
}

/// What was read once and is within a reservation stays, however much others read.
#[test]
fn what_is_reserved_is_not_pushed_out_by_others() {
    provoke(Bug::ReservationForgotten, 4, |seed| {
        let rig = pool(seed);
        let other = second(&rig, seed, reserved(8))?;
        set(&rig, &other, VolumeSettings { sequential_cutoff_bytes: u64::MAX, ..reserved(8) })?;
        let scan = VolumeSettings { sequential_cutoff_bytes: u64::MAX, ..Default::default() };
        set(&rig, &rig.volume(), scan)?;
        read_all(&rig, &other, 100)?;
        rig.pause(SECOND);
        let mut left = vec![cached(&rig, &other, 100)?];
        for _ in 0..3 {
            read_all(&rig, &rig.volume(), BLOCKS)?;
            left.push(cached(&rig, &other, 100)?);
        }
        // Segments of sixteen blocks leave reclaim little room to pack what is kept.
        match left.iter().all(|&left| left >= 90) {
            true => Ok(()),
            false => Err(format!("of 100 blocks were cached, pass by pass: {left:?}")),
        }
    });
}

/// A volume with a limit never holds more, is served all the same, and leaves the pool to others.
#[test]
fn a_limit_holds_and_nobody_is_refused() {
    provoke(Bug::LimitForgotten, 4, |seed| {
        let rig = pool(seed);
        let scan = VolumeSettings { sequential_cutoff_bytes: u64::MAX, ..limited(6) };
        set(&rig, &rig.volume(), scan)?;
        // One write is let go where nothing is dirty.
        let most = 6 * SEGMENT_BYTES + BLOCK as u64;
        let mut stalls = 0;
        for pass in 0..6 {
            let reads = (seed + pass) % 2 == 0;
            if reads {
                read_all(&rig, &rig.volume(), 600)?;
            } else {
                let ended = start(&rig, &rig.volume(), pass as u8, (0..600).map(|i| i * 2));
                while ended.get() < 600 {
                    rig.pause(10 * MILLISECOND);
                    let held = rig.volume().space().held_bytes;
                    if held > most {
                        return Err(format!("{held} B held of {most}"));
                    }
                    stalls += 1;
                    if stalls > 100_000 {
                        return Err("writes wait for ever".into());
                    }
                }
            }
            let held = rig.volume().space().held_bytes;
            if held > most || held * 2 < most {
                return Err(format!("{held} B held of {most} after pass {pass}"));
            }
        }
        // They are counted as the index has them.
        let held = rig.volume().space().held_bytes / BLOCK as u64;
        same("blocks held", held, cached(&rig, &rig.volume(), BLOCKS)?).map(drop)
    });
}

/// 128 requests at once bring in no more than a limit of two segments.
fn most_at_once(rig: &Rig, ask: impl Fn(u64)) -> Result<(), String> {
    set(rig, &rig.volume(), limited(2))?;
    (0..128).for_each(|i| ask(i * 9 % BLOCKS));
    let mut most = 0;
    for _ in 0..400 {
        rig.pause(MILLISECOND / 4);
        most = most.max(rig.volume().space().held_bytes);
    }
    // Nor is more brought in and given up at once.
    most = most.max(rig.pool().counters().populate_bytes.get());
    match most {
        0 => Err("nothing was brought in".into()),
        most if most > 2 * SEGMENT_BYTES => Err(format!("{most} B brought in")),
        _ => Ok(()),
    }
}

/// Reads that miss together each found the same room.
#[test]
fn a_limit_holds_for_reads_that_come_at_once() {
    provoke(Bug::LimitForgotten, 4, |seed| {
        let rig = pool(seed);
        most_at_once(&rig, |block| rig.start_read(block))
    });
}

/// And writes that go through together.
#[test]
fn a_limit_holds_for_what_is_written_through_at_once() {
    provoke(Bug::LimitForgotten, 4, |seed| {
        let rig = pool(seed);
        let volume = rig.volume();
        rig.run(async move { volume.set_mode(Mode::Writethrough).await })?
            .map_err(|error| error.to_string())?;
        most_at_once(&rig, |block| drop(start(&rig, &rig.volume(), 1, std::iter::once(block))))
    });
}

/// What is fetched and does not come takes room of a limit; what is clean gives way to writes for it.
#[test]
fn writes_at_a_limit_do_not_wait_for_reads_that_hang() {
    survive(6, |seed| {
        let rig = pool(seed);
        let scan = VolumeSettings { sequential_cutoff_bytes: u64::MAX, ..limited(8) };
        set(&rig, &rig.volume(), scan)?;
        read_all(&rig, &rig.volume(), 200)?;
        rig.pause(SECOND);
        rig.origin_gate.hold(usize::MAX, |request| !matches!(request, Request::Flush));
        (0..64).for_each(|i| rig.start_read(400 + 4 * i));
        rig.pause(SOON);
        let written = start(&rig, &rig.volume(), 1, (0..64).map(|i| 1000 + i));
        until(&rig, &written, 64, "written beside clean data")
    });
}

/// A volume of so many cache blocks of a whole stripe each, and another one beside it.
fn beside_long_reads(seed: u64, stripes: u64) -> Result<(Rc<Rig>, Rc<Volume>), String> {
    let rig = Rig::new(seed, Plan { origin_bytes: stripes * STRIPE_BYTES, ..Plan::default() });
    let other = second(&rig, seed, Default::default())?;
    let volume = rig.volume();
    let long = VolumeSettings { sequential_cutoff_bytes: u64::MAX, ..Default::default() };
    rig.run(async move { volume.set(long).await })?.map_err(|error| error.to_string())?;
    Ok((rig, other))
}

/// Begins to read a whole stripe, all of which is missing.
fn start_long_read(rig: &Rig, stripe: u64) {
    let volume = rig.volume();
    rig.world.spawn(Box::pin(async move {
        volume.read(stripe * STRIPE_BYTES, Buf::new(STRIPE_BYTES as usize)).await.1.ok();
    }));
}

/// What is being fetched has a bound for each volume: misses that an origin never answers are nobody else's.
#[test]
fn misses_of_an_origin_that_hangs_leave_others_theirs() {
    survive(1, |seed| {
        const STRIPES: u64 = POPULATE_BYTES_MAX / STRIPE_BYTES + 4;
        let (rig, other) = beside_long_reads(seed, STRIPES)?;
        rig.origin_gate.hold(usize::MAX, |request| matches!(request, Request::Read { .. }));
        (0..STRIPES).for_each(|stripe| start_long_read(&rig, stripe));
        rig.pause(SECOND);
        let busy = rig.volume().bypass().of(Reason::Busy).read_requests.get();
        same("misses beyond what may be on its way", busy, 4)?;
        read_all(&rig, &other, 60)?;
        rig.pause(SOON);
        same("blocks of the other", cached(&rig, &other, 60)?, 60).map(drop)
    });
}

/// What was fetched and waits for the SSDs has one bound for all volumes: while they are behind, misses are
/// answered and stay out.
#[test]
fn misses_stay_out_while_the_ssds_are_behind() {
    survive(1, |seed| {
        const STRIPES: u64 = POPULATE_QUEUE_BYTES_MAX / STRIPE_BYTES;
        let (rig, other) = beside_long_reads(seed, STRIPES)?;
        let gates = || rig.gates.iter();
        gates().for_each(|gate| gate.hold(usize::MAX, is_write));
        (0..STRIPES).for_each(|stripe| start_long_read(&rig, stripe));
        rig.pause(SECOND);
        read_all(&rig, &other, 60)?;
        let past = || rig.pool().bypass().of(Reason::Congested).read_requests.get();
        same("misses past SSDs that are behind", past(), 60)?;
        gates().for_each(|gate| {
            gate.hold(0, is_write);
            gate.release();
        });
        rig.pause(SECOND);
        read_all(&rig, &other, 60)?;
        rig.pause(SOON);
        same("misses past SSDs that keep up", past(), 60)?;
        let held = cached(&rig, &other, 60)?;
        if held > 0 { Ok(()) } else { Err("nothing of the other comes in any more".to_owned()) }
    });
}

/// What was asked for again is worth more or less, by the priority of its volume.
fn kept_beside_a_scan(seed: u64, priority: Priority) -> Result<u64, String> {
    let rig = pool(seed);
    let settings = |priority| VolumeSettings {
        sequential_cutoff_bytes: u64::MAX,
        priority,
        ..Default::default()
    };
    let other = second(&rig, seed, settings(priority))?;
    set(&rig, &rig.volume(), settings(Priority::Normal))?;
    read_all(&rig, &other, 60)?;
    read_each(&rig, &rig.volume(), 0..128)?;
    // One hit of each granule, all of it: it stays through a lap, or is worth nothing.
    for granule in 0..60 / GRANULE_BLOCKS {
        let (volume, bytes) = (Rc::clone(&other), GRANULE_BLOCKS * BLOCK as u64);
        let read =
            rig.run(async move { volume.read(granule * bytes, Buf::new(bytes as usize)).await.1 })?;
        read.map_err(|error| error.to_string())?;
    }
    read_each(&rig, &rig.volume(), 128..BLOCKS - 500)?;
    cached(&rig, &other, 60)
}

/// Blocks that came in one by one are kept or given up one by one, however hot their granule is.
#[test]
fn neighbours_of_what_is_asked_for_again_go() {
    survive(4, |seed| {
        let rig = pool(seed);
        let all = || VolumeSettings { sequential_cutoff_bytes: u64::MAX, ..Default::default() };
        let other = second(&rig, seed, all())?;
        set(&rig, &rig.volume(), all())?;
        // In an order in which no two lie beside each other in the log.
        read_each(&rig, &other, (0..64).map(|at| at * 29 % 64))?;
        read_each(&rig, &rig.volume(), 0..128)?;
        const HIT: [u64; 6] = [3, 20, 37, 38, 39, 63];
        read_each(&rig, &other, HIT.into_iter())?;
        read_each(&rig, &rig.volume(), 128..BLOCKS)?;
        let mut left = (0, 0);
        for block in 0..64 {
            let kept = u32::from(is_cached(&other, block)?);
            *(if HIT.contains(&block) { &mut left.0 } else { &mut left.1 }) += kept;
        }
        // Some that nobody asked for lie in what was not reclaimed yet.
        match left {
            (6, 0..10) => Ok(()),
            (asked, others) => {
                Err(format!("{asked} that were asked for are left, {others} others"))
            }
        }
    });
}

#[test]
fn what_is_kept_follows_priorities() {
    survive(4, |seed| {
        let [low, normal, high] = Priority::ALL.map(|priority| kept_beside_a_scan(seed, priority));
        let (low, normal, high) = (low?, normal?, high?);
        match low + 8 <= normal && normal <= high {
            true => Ok(()),
            false => Err(format!("of low, normal and high {low}, {normal} and {high}")),
        }
    });
}

/// What is refused says what would do.
#[test]
fn what_cannot_be_set_is_refused_with_what_can() {
    survive(1, |seed| {
        let rig = pool(seed);
        let other = second(&rig, seed, Default::default())?;
        let refused = |volume: &Rc<Volume>, settings: VolumeSettings, what: &str| {
            let error = set(&rig, volume, settings).expect_err("it is refused");
            assert!(error.contains(what), "{error}: {what}");
        };
        let promise = rig.pool().reservable_bytes();
        let least = SEGMENT_BYTES;
        let small = VolumeSettings { reservation_bytes: least - 4096, ..Default::default() };
        refused(&other, small, "is too small");
        let small = VolumeSettings { limit_bytes: least - 1, ..Default::default() };
        refused(&other, small, "is too small");
        let crossed = VolumeSettings { limit_bytes: least, ..reserved(2) };
        refused(&other, crossed, "cannot have");
        refused(&other, reserved(1000), &format!("{} are left", bytes(promise)));
        set(&rig, &rig.volume(), reserved(3))?;
        let left = promise - 3 * SEGMENT_BYTES;
        let all = |bytes| VolumeSettings { reservation_bytes: bytes, ..Default::default() };
        refused(&other, all(left + 4096), &format!("{} are left", bytes(left)));
        set(&rig, &other, all(left))?;
        // What has it may keep it, or take less.
        set(&rig, &other, all(left))?;
        set(&rig, &other, all(left - 4096))
    });
}

/// A pool that has lost a cache device keeps to its reservations in proportion; one may not be taken out.
#[test]
fn a_pool_that_shrinks_reserves_in_proportion() {
    survive(4, |seed| {
        let tuning = Tuning { flush_interval: SECOND, lap_percent: 10, ..lazy() };
        let rig = Rig::new(seed, Plan { members: 2, copies: 1, tuning, ..Plan::default() });
        let other = second(&rig, seed, Default::default())?;
        let promise = rig.pool().reservable_bytes();
        let part = |parts: u64| VolumeSettings {
            reservation_bytes: promise / 4 / 4096 * 4096 * parts,
            ..Default::default()
        };
        set(&rig, &rig.volume(), part(3))?;
        set(&rig, &other, part(1))?;
        let reserved = || [rig.volume().space().reserved_bytes, other.space().reserved_bytes];
        assert_eq!(reserved(), [part(3), part(1)].map(|it| it.reservation_bytes));
        let (pool, device) = (rig.pool(), rig.pool().superblock().members[1].device);
        let leaves = pool.check_departure(device).map(drop);
        let refused = leaves.expect_err("it is refused").to_string();
        assert!(refused.contains("are reserved for volumes"), "{refused}");
        rig.gates[1].fail_next(|request| matches!(request, Request::Write { .. } | Request::Flush));
        for block in 0..64 {
            start(&rig, &other, 1, std::iter::once(block));
            rig.pause(50 * MILLISECOND);
        }
        let [one, two] = reserved();
        let (now, half) = (rig.pool().reservable_bytes(), promise / 2);
        let near = |bytes: u64, wanted: u64| bytes.abs_diff(wanted) <= 4096;
        assert!(near(now, half), "{now} of {half}");
        match near(one, half / 4 * 3) && near(two, half / 4) {
            true => Ok(()),
            false => Err(format!("{one} and {two} of {half}")),
        }
    });
}

/// Another volume, whose origin is behind a gate of its own.
fn gated(rig: &Rig, seed: u64, name: &str, mode: Mode) -> Result<(Rc<Volume>, Rc<Gate>), String> {
    let settings_of = DiskSettings::origin(BLOCKS * BLOCK as u64, 512, true);
    let origin = Gate::new(&rig.world, SimDisk::new(&rig.world, settings_of, seed) as _);
    let spec = VolumeSpec {
        name: name.into(),
        origin: name.into(),
        mode,
        cache_block_bytes: 4096,
        settings: Default::default(),
        accept_data_loss_on_ssd_failure: true,
    };
    let (pool, device) = (rig.pool(), Rc::clone(&origin) as Rc<dyn BlockDevice>);
    let added = rig.run(async move { pool.add_volume(&spec, device).await })?;
    Ok((Rc::new(added.map_err(|error| error.to_string())?), origin))
}

/// What is written through keeps a copy in the log until a flush of its origin has proven it. A flush that
/// never ends must not keep the log full of them.
#[test]
fn what_is_written_through_to_an_origin_whose_flushes_hang_takes_no_reserved_room() {
    survive(4, |seed| {
        let rig = pool(seed);
        let other = second(&rig, seed, reserved(6))?;
        let (through, gate) = gated(&rig, seed, "x", Mode::Writethrough)?;
        gate.hold(usize::MAX, is_flush);
        let written = start(&rig, &through, 2, (0..BLOCKS).map(|i| i * 7 % BLOCKS));
        until(&rig, &written, BLOCKS, "written through")?;
        rig.pause(2 * SECOND);
        for pass in 0..20 {
            let blocks = (0..OTHER / 8).map(|i| (pass * 97 + i * 5) % OTHER);
            let ended = start(&rig, &other, pass as u8, blocks);
            until(&rig, &ended, OTHER / 8, &format!("pass {pass}"))?;
        }
        gate.hold(0, is_flush);
        gate.release();
        Ok(())
    });
}

/// Volumes that begin to write at the same instant share what is common like those that come one by one.
#[test]
fn bursts_of_many_volumes_at_once_leave_what_is_reserved() {
    survive(4, |seed| {
        let rig = pool(seed);
        let other = second(&rig, seed, reserved(6))?;
        // Three quarters of the promise can be reserved.
        let promise = rig.pool().reservable_bytes() / 3 * 4 + BLOCK as u64;
        let mut others = Vec::new();
        for name in ["x", "y", "z", "u"] {
            let (volume, gate) = gated(&rig, seed, name, Mode::Writeback)?;
            gate.hold(usize::MAX, is_write);
            others.push((volume, gate));
        }
        let begun: Vec<_> = others
            .iter()
            .map(|(volume, _)| start(&rig, volume, 2, (0..BLOCKS).map(|i| i * 7 % BLOCKS)))
            .collect();
        rig.pause(SECOND);
        let dirty: u64 = others.iter().map(|(volume, _)| volume.space().dirty_bytes).sum();
        let common = promise - 6 * SEGMENT_BYTES;
        // One write of each is let go.
        if dirty > common + others.len() as u64 * BLOCK as u64 {
            return Err(format!("{dirty} B dirty of {common} B that are common"));
        }
        for pass in 0..20 {
            let blocks = (0..OTHER / 8).map(|i| (pass * 97 + i * 5) % OTHER);
            let ended = start(&rig, &other, pass as u8, blocks);
            until(&rig, &ended, OTHER / 8, &format!("pass {pass}"))?;
        }
        for (volume, gate) in &others {
            assert!(volume.space().dirty_bytes > 0);
            gate.hold(0, is_write);
            gate.release();
        }
        for begun in begun {
            until(&rig, &begun, BLOCKS, "the others, once their origins answer")?;
        }
        Ok(())
    });
}

/// Writers of volumes without a reservation go on together, whatever is reserved for others.
#[test]
fn who_has_no_reservation_has_room_although_all_that_can_be_is_reserved() {
    survive(4, |seed| {
        let rig = pool(seed);
        let other = second(&rig, seed, Default::default())?;
        let all = rig.pool().reservable_bytes();
        set(&rig, &rig.volume(), VolumeSettings { reservation_bytes: all, ..Default::default() })?;
        // Nothing of it comes home meanwhile.
        rig.origin_gate.hold(usize::MAX, is_write);
        let ended = start(&rig, &other, 1, 0..16);
        rig.pause(20 * MILLISECOND);
        same("writes that ended together", ended.get(), 16).map(drop)?;
        rig.origin_gate.hold(0, is_write);
        rig.origin_gate.release();
        Ok(())
    });
}

/// What overwrites dirty data adds nothing, and does not wait behind what does.
#[test]
fn overwriting_what_is_dirty_does_not_wait_at_a_limit() {
    survive(4, |seed| {
        let rig = pool(seed);
        set(&rig, &rig.volume(), limited(6))?;
        rig.origin_gate.hold(usize::MAX, is_write);
        until(&rig, &start(&rig, &rig.volume(), 1, 0..8), 8, "what is overwritten")?;
        let stuck = start(&rig, &rig.volume(), 1, 8..200);
        rig.pause(SECOND);
        assert!(stuck.get() > 10 && stuck.get() < 192, "{}", stuck.get());
        let over = start(&rig, &rig.volume(), 2, 0..8);
        until(&rig, &over, 8, "overwriting")?;
        rig.origin_gate.hold(0, is_write);
        rig.origin_gate.release();
        until(&rig, &stuck, 192, "the rest")
    });
}

/// One block above its new limit, and what there is waits for a flush of the origin that does not come.
#[test]
fn a_volume_that_can_give_nothing_up_is_not_asked_all_the_time() {
    survive(3, |seed| {
        let rig = Rig::new(seed, Plan { mode: Mode::Writethrough, ..Plan::default() });
        rig.origin_gate.hold(usize::MAX, is_flush);
        let held = || rig.volume().space().held_bytes / BLOCK as u64;
        (0..17).try_for_each(|block| rig.write(2, block, 1))?;
        set(&rig, &rig.volume(), limited(1))?;
        rig.pause(SOON);
        same("blocks that are held", held(), 17)?;
        let begun = rig.world.steps();
        rig.world.run_for(SECOND).map_err(|stopped| stopped.to_string())?;
        let steps = rig.world.steps() - begun;
        if steps > 100_000 { Err(format!("{steps} steps in a second")) } else { Ok(()) }
    });
}

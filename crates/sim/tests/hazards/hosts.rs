//! Two hosts that see the same devices: one opens the pool at a time, and one that did not keep it writes
//! nothing any more.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use forebay_device::model::disk::{DiskSettings, SimDisk};
use forebay_device::model::world::{Crash, World};
use forebay_device::runtime::{MILLISECOND, SECOND, Task};
use forebay_device::{BlockDevice, Buf, Completer, Geometry, IoErrorKind, Nanos, Request, Runtime};
use forebay_engine::format::{Claim, Host, Mode};
use forebay_engine::ids::PoolId;
use forebay_engine::planted::{Bug, take_seen};
use forebay_engine::{
    CreateOptions, MemoryWitness, OpenOptions, Pool, Tuning, Volume, VolumeSpec, open_with,
};
use forebay_sim::content::fill;

use crate::rig::{
    BLOCK, KINDS, MEMBER_BYTES, SEGMENT_BYTES, lazy, provoke, same, survive, version,
};

/// A task that stands still while its host does.
struct Standing {
    task: Task,
    host: Rc<Pulse>,
}

/// Whether a host runs.
#[derive(Default)]
struct Pulse {
    frozen: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl Pulse {
    fn freeze(&self) {
        self.frozen.set(true);
    }

    fn thaw(&self) {
        self.frozen.set(false);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }
}

impl Future for Standing {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.host.frozen.get() {
            self.host.waiting.borrow_mut().push(cx.waker().clone());
            return Poll::Pending;
        }
        self.task.as_mut().poll(cx)
    }
}

/// A host's runtime: time and devices go on while it is frozen, its tasks do not.
struct Machine {
    world: Rc<World>,
    pulse: Rc<Pulse>,
}

impl Runtime for Machine {
    fn now(&self) -> Nanos {
        self.world.now()
    }

    fn wake_at(&self, deadline: Nanos, completer: Completer) {
        self.world.wake_at(deadline, completer);
    }

    fn spawn(&self, task: Task) {
        self.world.spawn(Box::pin(Standing { task, host: Rc::clone(&self.pulse) }));
    }

    fn random(&self) -> u64 {
        self.world.random()
    }

    fn unix_seconds(&self) -> u64 {
        self.world.unix_seconds()
    }
}

/// What of the cache devices a host sees fail.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Broken {
    #[default]
    Nothing,
    Changes,
    All,
}

/// Counts what one host changes on a device, and lets its first changes take their time.
struct Counting {
    inner: Rc<SimDisk>,
    changes: Rc<Cell<u64>>,
    world: Rc<World>,
    slow: Rc<Cell<(u64, Nanos)>>,
    /// While this is set nothing is answered.
    hangs: Rc<Cell<bool>>,
    /// What fails.
    broken: Rc<Cell<Broken>>,
    unanswered: RefCell<Vec<(Request, Completer)>>,
}

impl BlockDevice for Counting {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        if self.hangs.get() {
            return self.unanswered.borrow_mut().push((request, completer));
        }
        let is_change = !matches!(request, Request::Read { .. } | Request::Flush);
        let broken = self.broken.get();
        if broken == Broken::All || (broken == Broken::Changes && is_change) {
            return request.finish(Err(IoErrorKind::Media.into()), completer);
        }
        if is_change {
            self.changes.set(self.changes.get() + 1);
            let (left, delay) = self.slow.get();
            if left > 0 {
                self.slow.set((left - 1, delay));
                let (inner, due) = (Rc::clone(&self.inner), self.world.now() + delay);
                let late = Box::new(move || inner.submit(request, completer));
                return self.world.call_at(due, late);
            }
        }
        self.inner.submit(request, completer);
    }
}

/// One host, and what it has opened.
struct Site {
    machine: Rc<Machine>,
    host: RefCell<Host>,
    members: Vec<Rc<dyn BlockDevice>>,
    origin: Rc<dyn BlockDevice>,
    changes: Rc<Cell<u64>>,
    /// How many changes take how long.
    slow: Rc<Cell<(u64, Nanos)>>,
    /// Whether its last member hangs.
    hangs: Rc<Cell<bool>>,
    /// What of its members fails.
    broken: Rc<Cell<Broken>>,
    witness: Rc<MemoryWitness>,
    tuning: Tuning,
    /// What the last attempt to open it came to.
    outcome: RefCell<Option<Result<(), String>>>,
    pool: RefCell<Option<Rc<Pool>>>,
    volume: RefCell<Option<Rc<Volume>>>,
}

impl Site {
    fn pulse(&self) -> &Pulse {
        &self.machine.pulse
    }

    fn volume(&self) -> Rc<Volume> {
        Rc::clone(self.volume.borrow().as_ref().expect("the pool is open here"))
    }

    fn runtime(&self) -> Rc<dyn Runtime> {
        Rc::clone(&self.machine) as _
    }

    /// The host is started again.
    fn reboot(&self) {
        self.pulse().thaw();
        self.host.borrow_mut().boot[0] += 1;
    }

    async fn try_open(&self, take_over: bool) -> Result<(), String> {
        let host = Some(self.host.borrow().clone());
        let options = OpenOptions { accept_missing: false, take_over, host };
        let (runtime, members) = (self.runtime(), self.members.clone());
        let (witness, tuning) = (Rc::clone(&self.witness), self.tuning.clone());
        let told = |error: forebay_engine::Error| format!("{:?}: {error}", error.kind);
        let pool = open_with(runtime, members, witness, tuning, options).await.map_err(told)?;
        let volume = pool.attach("v", Rc::clone(&self.origin)).await.map_err(told)?;
        *self.pool.borrow_mut() = Some(Rc::new(pool));
        *self.volume.borrow_mut() = Some(Rc::new(volume));
        Ok(())
    }

    fn start_open(self: &Rc<Self>, take_over: bool) {
        self.outcome.take();
        let it = Rc::clone(self);
        self.machine.spawn(Box::pin(async move {
            let outcome = it.try_open(take_over).await;
            it.outcome.replace(Some(outcome));
        }));
    }

    /// Whether clients are answered here.
    fn serves(&self) -> bool {
        let volume = self.volume.borrow();
        volume.as_ref().is_some_and(|volume| volume.status(0, 4096, &mut Vec::new()).is_ok())
    }

    fn was_told(&self, code: &str) -> bool {
        let pool = Rc::clone(self.pool.borrow().as_ref().expect("the pool is open here"));
        pool.events().iter().any(|event| event.kind.code() == code)
    }
}

/// Two hosts on one set of devices.
struct Pair {
    world: Rc<World>,
    origin: Rc<SimDisk>,
    a: Rc<Site>,
    b: Rc<Site>,
}

const LEASE: Nanos = 24 * SECOND;

impl Pair {
    /// Host A has made the pool, with nothing in it; nobody has it open.
    fn new(seed: u64, members: usize) -> Pair {
        Pair::with(seed, members, 0)
    }

    fn with(seed: u64, members: usize, device_deadline_ms: u32) -> Pair {
        let world = World::new(seed);
        let disk = |i: u64| {
            SimDisk::new(&world, DiskSettings::ssd(MEMBER_BYTES, 512), seed ^ (i + 1) << 32)
        };
        let disks: Vec<_> = (0..members as u64).map(disk).collect();
        let origin = SimDisk::new(&world, DiskSettings::origin(1 << 20, 512, true), !seed);
        let mut image = vec![0; 1 << 20];
        fill(1, 0, 0, &mut image);
        origin.poke(0, &image);
        let site = |number: u8, name: &str| {
            let changes = Rc::<Cell<u64>>::default();
            let slow = Rc::<Cell<_>>::default();
            let hangs = Rc::<Cell<bool>>::default();
            let broken = Rc::<Cell<_>>::default();
            let seen = |disk: &Rc<SimDisk>| {
                let (inner, changes) = (Rc::clone(disk), Rc::clone(&changes));
                let (world, slow) = (Rc::clone(&world), Rc::clone(&slow));
                let is_last = disks.last().is_some_and(|last| Rc::ptr_eq(last, disk));
                let hangs = if is_last { Rc::clone(&hangs) } else { Rc::default() };
                let is_member = disks.iter().any(|member| Rc::ptr_eq(member, disk));
                let broken = if is_member { Rc::clone(&broken) } else { Rc::default() };
                let unanswered = RefCell::default();
                Rc::new(Counting { inner, changes, world, slow, hangs, broken, unanswered })
                    as Rc<dyn BlockDevice>
            };
            let host = Host { id: [number; 16], boot: [number; 16], name: name.to_owned() };
            let machine = Machine { world: Rc::clone(&world), pulse: Rc::default() };
            Rc::new(Site {
                machine: Rc::new(machine),
                host: RefCell::new(host),
                members: disks.iter().map(seen).collect(),
                origin: seen(&origin),
                changes,
                slow,
                hangs,
                broken,
                witness: Rc::default(),
                tuning: lazy(),
                outcome: RefCell::default(),
                pool: RefCell::default(),
                volume: RefCell::default(),
            })
        };
        let (a, b) = (site(1, "a"), site(2, "b"));
        let it = Pair { world, origin, a, b };
        let options = CreateOptions {
            dirty_copies: members as u8,
            segment_bytes: Some(SEGMENT_BYTES as u32),
            device_deadline_ms,
            ..CreateOptions::named("pool")
        };
        let site = Rc::clone(&it.a);
        it.run(async move {
            let (runtime, witness) = (site.runtime(), Rc::clone(&site.witness));
            forebay_engine::create(&*runtime, &site.members, &*witness, &options).await.unwrap();
            let (runtime, members) = (site.runtime(), site.members.clone());
            let host = Some(site.host.borrow().clone());
            let options = OpenOptions { host, ..OpenOptions::default() };
            let pool = open_with(runtime, members, witness, lazy(), options).await.unwrap();
            let spec = VolumeSpec {
                name: "v".into(),
                origin: "origin".into(),
                mode: Mode::Writeback,
                cache_block_bytes: 4096,
                settings: Default::default(),
                accept_data_loss_on_ssd_failure: true,
            };
            pool.add_volume(&spec, Rc::clone(&site.origin)).await.unwrap();
            pool.stop().await.unwrap();
        })
        .unwrap();
        it
    }

    fn run<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> Result<T, String> {
        self.world.run_until(work).map_err(|stopped| stopped.to_string())
    }

    fn pause(&self, span: Nanos) {
        self.world.run_for(span).unwrap();
    }

    fn open(&self, site: &Rc<Site>, take_over: bool) -> Result<(), String> {
        let it = Rc::clone(site);
        self.run(async move { it.try_open(take_over).await })?
    }

    fn stop(&self, site: &Rc<Site>) -> Result<(), String> {
        site.volume.take();
        let pool = site.pool.take().expect("the pool is open here");
        let stopped = self.run(async move { Rc::into_inner(pool).unwrap().stop().await })?;
        stopped.map(drop).map_err(|error| error.to_string())
    }

    fn write(&self, site: &Rc<Site>, stamp: u64, block: u64) -> Result<(), String> {
        let (data, volume) = (block_of(stamp, block), site.volume());
        let write = async move {
            volume.write(block * BLOCK as u64, data.freeze(), false).await?;
            volume.flush().await
        };
        self.run(write)?.map_err(|error| error.to_string())
    }

    fn read(&self, site: &Rc<Site>, block: u64) -> Result<u64, String> {
        let volume = site.volume();
        let read = async move { volume.read(block * BLOCK as u64, Buf::new(BLOCK)).await };
        let (buf, result) = self.run(read)?;
        result.map_err(|error| error.to_string())?;
        version(block, &buf)
    }

    /// A read that may not end; what it came to in so much time.
    fn read_within(&self, site: &Rc<Site>, block: u64, span: Nanos) -> Option<Result<u64, String>> {
        let (volume, answer) = (site.volume(), Rc::<RefCell<_>>::default());
        let told = Rc::clone(&answer);
        site.machine.spawn(Box::pin(async move {
            let (buf, result) = volume.read(block * BLOCK as u64, Buf::new(BLOCK)).await;
            let found = result.map_err(|error| error.to_string());
            told.replace(Some(found.and_then(|()| version(block, &buf))));
        }));
        self.pause(span);
        answer.take()
    }

    /// The same host with a daemon that was started again.
    fn restarted(&self, site: &Site) -> Rc<Site> {
        let machine = Machine { world: Rc::clone(&self.world), pulse: Rc::default() };
        Rc::new(Site {
            machine: Rc::new(machine),
            host: RefCell::new(site.host.borrow().clone()),
            members: site.members.clone(),
            origin: Rc::clone(&site.origin),
            changes: Rc::clone(&site.changes),
            slow: Rc::clone(&site.slow),
            hangs: Rc::clone(&site.hangs),
            broken: Rc::clone(&site.broken),
            witness: Rc::clone(&site.witness),
            tuning: site.tuning.clone(),
            outcome: RefCell::default(),
            pool: RefCell::default(),
            volume: RefCell::default(),
        })
    }

    fn destage(&self, site: &Rc<Site>) -> Result<(), String> {
        let volume = site.volume();
        self.run(async move { volume.destage().await })?.map_err(|error| error.to_string())
    }

    /// Both are gone, as if the power were.
    fn crash(&self, crash: Crash) {
        for site in [&self.a, &self.b] {
            site.volume.take();
            site.pool.take();
        }
        self.world.crash(crash);
        [&self.a, &self.b].iter().for_each(|site| site.pulse().waiting.borrow_mut().clear());
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.crash(Crash::ProcessKill);
    }
}

fn block_of(stamp: u64, block: u64) -> Buf {
    let mut data = Buf::new(BLOCK);
    fill(stamp, 0, block * 8, &mut data);
    data
}

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
/// with all that was flushed.
fn cut_off(seed: u64) -> Result<(), String> {
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
    Ok(())
}

#[test]
fn a_takeover_that_is_cut_off_at_any_request_leaves_a_pool_for_one() {
    survive(260, cut_off);
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

//! The cache engine as the subject.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use forebay_device::io::Outcome;
use forebay_device::model::fault::{Delaying, Faults, Ops, Trigger};
use forebay_device::runtime::{MILLISECOND, Runtime};
use forebay_device::{BlockDevice, Buf, Data, IoError, IoErrorKind, LocalBoxFuture, Nanos};
use forebay_engine as engine;
use forebay_engine::counters::ReasonCounters;
use forebay_engine::format::{Host, MemberState, Superblock};
use forebay_engine::ids::DeviceId;
use forebay_engine::planted::{self, BUGS};
use forebay_engine::witness::without_members;
use forebay_engine::{
    Client, CopiesChange, CreateOptions, ErrorKind, Event, OpenOptions, Place, Pool, Redundancy,
    Volume, VolumeSpec, Witness,
};

use crate::content::SECTOR;
use crate::hosts::Tenant;
use crate::subject::{Env, Mode, Subject, SubjectError};
use crate::workload::Space;

/// Names of the planted bugs, in the order of [`BUGS`].
const NAMES: &[&str] = &{
    let mut names = [""; BUGS.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = BUGS[i].0;
        i += 1;
    }
    names
};

/// Where a witness finds its file system full now and then, of how many times that is one.
const WITNESS_FULL_ONE_IN: u64 = 3;

/// Unit in which the witness's disk is written.
const WITNESS_UNIT: usize = 4096;

/// Reads of other reactors of which one is late, and how late: as long as reclaim takes to go
/// through a pool.
const LATE_ONE_IN: u64 = 4;
const LATE_MAX: Nanos = 500 * MILLISECOND;

/// How often it is looked whether a member that is to leave is empty, and how many times: five seconds,
/// in which most come to their end. Where an origin fails they may not.
const DEPARTURE_LOOK: Nanos = 50 * MILLISECOND;
const DEPARTURE_LOOKS: u64 = 100;

/// How long a device is waited for that is asked past the pool: it may hang, and nobody watches.
const ANSWER_WAIT: Nanos = 10_000 * MILLISECOND;

/// A running pool with a volume for each origin.
pub struct Engine {
    /// There until it is stopped.
    pool: Option<Pool>,
    volumes: Vec<Volume>,
    /// By reactor, the pool's first, and volume: what that reactor's clients use.
    views: Vec<Vec<Client>>,
    /// What the pool calls its members, by where they stand among the devices, if anybody asks for that.
    ids: RefCell<BTreeMap<usize, DeviceId>>,
    env: Env,
}

impl Engine {
    fn view(&self, client: usize, volume: usize) -> &Client {
        &self.views[client % self.views.len()][volume]
    }
}

thread_local! {
    /// The counters of all pools of this thread that have ended, summed up.
    static COUNTED: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

fn count(name: &'static str, amount: u64) {
    COUNTED.with(|counted| *counted.borrow_mut().entry(name).or_default() += amount);
}

impl Drop for Engine {
    fn drop(&mut self) {
        let Some(pool) = &self.pool else { return };
        count_pool(pool);
        if self.env.trace {
            let ((blocks, owed), (free, segments)) = (pool.blocks(), pool.segments());
            eprintln!(
                "the pool ends: {blocks} blocks, {owed} owed; {free} of {segments} segments free"
            );
            for Event { at, what, .. } in pool.events() {
                eprintln!("{:>12.3} ms  event: {what}", at as f64 / 1e6);
            }
        }
    }
}

/// What a device answers that is asked past the pool.
async fn in_time<T>(
    env: &Env,
    member: usize,
    asking: impl Future<Output = engine::Result<T>>,
) -> Result<T, SubjectError> {
    let mut asking = pin!(asking);
    let mut timer = pin!(env.runtime.sleep(ANSWER_WAIT));
    let answer = poll_fn(|cx| match asking.as_mut().poll(cx) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending => timer.as_mut().poll(cx).map(|_| None),
    });
    match answer.await {
        Some(answer) => answer.map_err(error),
        None => Err(SubjectError(format!("member {member} does not answer"))),
    }
}

async fn superblock_of(env: &Env, member: usize) -> Result<Superblock, SubjectError> {
    in_time(env, member, engine::read_superblock(&*env.members[member])).await
}

fn count_pool(pool: &Pool) {
    pool.counters().list().into_iter().for_each(|(name, value)| count(name, value));
    let raised = |event: &&Event| event.kind == engine::EventKind::CopiesRaised;
    count("copies: more promised", pool.events().iter().filter(raised).count() as u64);
}

/// No request has gone past the cache twice, and none that nobody made.
fn check_bypass(pool: &Pool) {
    let (all, past) = (pool.counters(), pool.bypass());
    let sum = |of: fn(&ReasonCounters) -> u64| past.iter().map(|(_, it)| of(it)).sum::<u64>();
    assert!(sum(|it| it.read_requests.get()) <= all.read_requests.get());
    assert!(sum(|it| it.read_bytes.get()) <= all.read_bytes.get());
    let writes = all.write_requests.get() + all.zero_requests.get();
    assert!(sum(|it| it.write_requests.get()) <= writes);
}

fn count_recovery(pool: &Pool) {
    count("start: on the way to more copies", u64::from(pool.superblock().dirty_copies_next > 0));
    let report = pool.recovery();
    count("start: clean", u64::from(report.clean_stop));
    count("start: sets scanned", report.sets_scanned);
    count("start: records replayed", report.records_replayed);
    count("start: blocks appended again", report.blocks_reappended);
    count("start: owed blocks", report.owed_blocks);
    count("start: blocks dropped with a member", report.blocks_dropped);
    count("start: blocks lost with a member", report.blocks_lost);
    let told = |what: &str| pool.events().iter().any(|event| event.what.contains(what));
    count("start: without a member", u64::from(told("is missing")));
    count("start: a stale member left out", u64::from(told("is not used")));
}

/// The witness on a simulated disk: two places written in turn, each with its length and a
/// checksum in front, which gives the all-or-nothing that a rename gives on a host.
struct DiskWitness {
    disk: Rc<dyn BlockDevice>,
    last: RefCell<u64>,
    /// Refuses one of so many that are to be stored, drawn from here.
    refusing: Option<(u64, Rc<dyn Runtime>)>,
}

impl DiskWitness {
    const PLACE_BYTES: usize = 128 << 10;

    async fn place(&self, place: u64) -> Option<(u64, Vec<u8>)> {
        let at = place * Self::PLACE_BYTES as u64;
        let outcome = self.disk.read(at, Buf::new(Self::PLACE_BYTES)).await;
        outcome.result.ok()?;
        Self::content(&outcome.buf?)
    }

    /// What a place holds, and when it was written.
    fn content(bytes: &[u8]) -> Option<(u64, Vec<u8>)> {
        let word = |i: usize| {
            u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|b: usize| bytes[i * 8 + b]))
        };
        let content = bytes.get(24..24 + word(1) as usize)?;
        let good = word(0) > 0 && word(2) == u64::from(engine::format::checksum(content));
        good.then(|| (word(0), content.to_vec()))
    }
}

impl Witness for DiskWitness {
    fn load(&self) -> LocalBoxFuture<'_, Result<Option<Vec<u8>>, String>> {
        Box::pin(async {
            let (first, second) = (self.place(0).await, self.place(1).await);
            let newest = first.into_iter().chain(second).max_by_key(|(count, _)| *count);
            Ok(newest.map(|(count, bytes)| {
                *self.last.borrow_mut() = count;
                bytes
            }))
        })
    }

    fn store(&self, bytes: Vec<u8>) -> LocalBoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let is_full = |(one_in, runtime): &(u64, Rc<dyn Runtime>)| {
                runtime.random().is_multiple_of(*one_in)
            };
            if self.refusing.as_ref().is_some_and(is_full) {
                return Err("no space".to_owned());
            }
            let count = *self.last.borrow() + 1;
            *self.last.borrow_mut() = count;
            let mut out = Vec::new();
            out.extend_from_slice(&count.to_le_bytes());
            out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            out.extend_from_slice(&u64::from(engine::format::checksum(&bytes)).to_le_bytes());
            out.extend_from_slice(&bytes);
            out.resize(out.len().next_multiple_of(WITNESS_UNIT), 0);
            let at = count % 2 * Self::PLACE_BYTES as u64;
            let write = self.disk.write(at, Buf::copy_of(&out).freeze()).done().await;
            write.map_err(|error| error.to_string())?;
            self.disk.flush().done().await.map_err(|error| error.to_string())
        })
    }
}

fn error(error: engine::Error) -> SubjectError {
    SubjectError(error.to_string())
}

fn io_error(_: engine::Error) -> IoError {
    IoErrorKind::Other.into()
}

fn mode(mode: Mode) -> engine::Mode {
    match mode {
        Mode::Writeback => engine::Mode::Writeback,
        Mode::Writethrough => engine::Mode::Writethrough,
        Mode::Readonly => engine::Mode::Readonly,
        Mode::Writeonly => engine::Mode::Writeonly,
        Mode::Bypass => engine::Mode::Bypass,
    }
}

fn plant(env: &Env) {
    let bug = env.bug.as_deref().and_then(|name| BUGS.iter().find(|(known, _)| *known == name));
    planted::plant(bug.map(|(_, bug)| *bug));
}

/// The cache devices as another reactor reads them: now and then so late that what it was told of
/// them could be long gone.
async fn slow_members(env: &Env) -> Vec<Rc<dyn BlockDevice>> {
    let slow = |inner: &Rc<dyn BlockDevice>| {
        let faults = Faults::new(env.runtime.random());
        faults.arm(Trigger::one_in(Ops::Reads, LATE_ONE_IN));
        let (inner, runtime) = (Rc::clone(inner), Rc::clone(&env.runtime));
        Rc::new(Delaying { inner, faults, delay_max: LATE_MAX, runtime }) as Rc<dyn BlockDevice>
    };
    offered(env).await.iter().map(slow).collect()
}

/// The cache devices that are there, without those that are spares, or whose superblock was erased, or is being
/// erased.
async fn offered(env: &Env) -> Vec<Rc<dyn BlockDevice>> {
    let mut offered = env.offered();
    for device in env.config.departs.into_iter().chain(env.config.spares()) {
        let device = &env.members[device];
        let found = engine::read_superblock(&**device).await;
        if found.is_err_and(|e| matches!(e.kind, ErrorKind::NotFound | ErrorKind::Damaged)) {
            offered.retain(|other| !Rc::ptr_eq(other, device));
        }
    }
    offered
}

/// The witness of the machine that opens the pool, with a file system that is never full.
fn sound_witness(env: &Env) -> DiskWitness {
    let disk = Rc::clone(&env.witnesses[env.hosts.opener.get()]);
    DiskWitness { disk, last: RefCell::new(0), refusing: None }
}

fn witness(env: &Env) -> Rc<DiskWitness> {
    let refusing = || (WITNESS_FULL_ONE_IN, Rc::clone(&env.runtime));
    let refusing = env.config.witness_refuses.then(refusing);
    Rc::new(DiskWitness { refusing, ..sound_witness(env) })
}

fn volume_name(volume: usize) -> String {
    format!("v{volume}")
}

/// The member that loses roots, where a start ended since it looks as if it had been set back and nobody else can say
/// that no epoch has begun without the others: it is to be detached, and a person to accept that.
fn seems_older(env: &Env, error: &engine::Error) -> Option<Rc<dyn BlockDevice>> {
    let what = error.to_string();
    let rot = env.config.rot.filter(|rot| rot.head_one_in > 0 && !rot.alone)?;
    let is_it = what.contains("has been set back")
        && what.contains("neither the witness nor more than half of the members");
    is_it.then(|| Rc::clone(&env.members[rot.member]))
}

/// Whether a takeover lacks the member whose superblocks rot, so that it counts as no cache device: a person is to accept that.
fn lacks_rotten(env: &Env, error: &engine::Error) -> bool {
    let rots = env.config.rot.is_some_and(|rot| rot.head_one_in > 0 && !rot.alone);
    rots && error.to_string().contains("only with all of its cache devices")
}

async fn open_with(env: &Env, mut options: OpenOptions) -> engine::Result<Pool> {
    let runtime = Rc::clone(&env.runtime);
    let (mut offered, tuning) = (offered(env).await, env.config.tuning.clone());
    loop {
        let (runtime, members, tuning) = (Rc::clone(&runtime), offered.clone(), tuning.clone());
        let opened = engine::open_with(runtime, members, witness(env), tuning, options.clone());
        match opened.await {
            Err(error) if error.to_string().contains("the witness cannot be written") => {
                count("start: once more for the witness", 1);
            }
            Err(error) if !options.accept_missing && lacks_rotten(env, &error) => {
                count("start: taken over without one whose superblocks rot", 1);
                options.accept_missing = true;
            }
            Err(error) => match seems_older(env, &error).filter(|_| !options.accept_missing) {
                Some(older) => {
                    count("start: accepted without one that had lost roots", 1);
                    offered.retain(|member| !Rc::ptr_eq(member, &older));
                    options.accept_missing = true;
                }
                None => return Err(error),
            },
            opened => return opened,
        }
    }
}

/// Opens the pool, on one of the machines that may.
async fn open(env: &Env) -> Result<Pool, SubjectError> {
    if env.config.hosts < 2 {
        return open_with(env, OpenOptions::default()).await.map_err(error);
    }
    let host = (env.runtime.random() % env.config.hosts as u64) as usize;
    env.hosts.opener.set(host);
    let tenant = env.hosts.tenant.replace(Tenant::Unknown);
    let is_anothers = matches!(tenant, Tenant::Host(other) if other != host);
    let name = format!("machine-{host}");
    let own = Some(Host { id: [host as u8; 16], boot: [1; 16], name });
    let options = OpenOptions { host: own, ..OpenOptions::default() };
    let opened = match open_with(env, options.clone()).await {
        Ok(_) if is_anothers => {
            let what =
                format!("machine {host} has opened a pool that is open elsewhere: {tenant:?}");
            return Err(SubjectError(what));
        }
        Err(e) if e.kind == ErrorKind::Held && (is_anothers || tenant == Tenant::Unknown) => {
            count("pool taken over", 1);
            open_with(env, OpenOptions { take_over: true, ..options }).await
        }
        opened => opened,
    };
    let pool = opened.map_err(error)?;
    env.hosts.tenant.set(Tenant::Host(host));
    env.hosts.server.set(host);
    Ok(pool)
}

/// Stops the pool, which is nobody's then.
async fn stop(pool: Pool, env: &Env) -> Result<(), SubjectError> {
    let before = env.hosts.tenant.replace(Tenant::Unknown);
    pool.stop().await.map_err(error)?;
    // What a device that hangs was given may still arrive, so the claim stays.
    if before != Tenant::Unknown && env.config.strike.is_none() {
        env.hosts.tenant.set(Tenant::Nobody);
    }
    Ok(())
}

impl Subject for Engine {
    const BUGS: &'static [&'static str] = NAMES;

    async fn create(env: &Env) -> Result<(), SubjectError> {
        planted::plant(None);
        let options = CreateOptions {
            dirty_copies: env.config.dirty_copies as u8,
            clean_copies: env.config.clean_copies as u8,
            segment_bytes: Some(env.config.segment_bytes as u32),
            ram_bytes: env.config.ram_bytes[0],
            scrub_rate_bytes_per_s: env.config.scrub_rate,
            write_budget_bytes_per_day: env.config.write_budget,
            // What a device returns wrong must not reach a client.
            verify_reads: env.config.verify_reads || env.config.faults.member_flip > 0,
            write_amplification_max_percent: env.config.write_amplification_max_percent,
            ..CreateOptions::named("simulated")
        };
        let (members, witness) = (&env.members[..env.config.members], sound_witness(env));
        engine::create(&*env.runtime, members, &witness, &options).await.map_err(error)?;
        let pool = open(env).await?;
        for (i, (volume, origin)) in env.config.volumes.iter().zip(&env.origins).enumerate() {
            let spec = VolumeSpec {
                name: volume_name(i),
                origin: format!("origin-{i}"),
                mode: mode(volume.mode),
                cache_block_bytes: env.config.cache_block_bytes,
                settings: volume.settings,
                accept_data_loss_on_ssd_failure: env.config.agreed,
            };
            pool.add_volume(&spec, Rc::clone(origin)).await.map_err(error)?;
        }
        for spare in env.config.spares() {
            pool.mark_spare(&env.members[spare]).await.map_err(error)?;
        }
        stop(pool, env).await
    }

    async fn open(env: &Env) -> Result<Self, SubjectError> {
        plant(env);
        let pool = open(env).await?;
        if env.config.volumes.iter().any(|volume| volume.settings.destage_hours.is_some()) {
            let minutes = u64::from(engine::format::DAY_MINUTES);
            pool.tell_time((env.runtime.random() % minutes) as u16);
        }
        let mut volumes = Vec::new();
        for (i, origin) in env.origins.iter().enumerate() {
            let attached = pool.attach(&volume_name(i), Rc::clone(origin)).await;
            volumes.push(attached.map_err(error)?);
        }
        count_recovery(&pool);
        let mut views = vec![volumes.iter().map(Volume::client).collect()];
        for _ in 1..env.config.reactors {
            let devices = slow_members(env).await;
            let open = |v: &Volume| v.share().open(Rc::clone(&env.runtime), devices.clone());
            views.push(volumes.iter().map(open).collect());
        }
        let mut ids = BTreeMap::new();
        if env.config.second_strike.is_some() {
            for member in (0..env.members.len()).filter(|member| Some(*member) != env.missing.get())
            {
                // A spare has none.
                let found = superblock_of(env, member).await.ok();
                ids.extend(found.map(|superblock| (member, superblock.device)));
            }
        }
        let ids = RefCell::new(ids);
        Ok(Self { pool: Some(pool), volumes, views, ids, env: env.clone() })
    }

    async fn read(&self, client: usize, volume: usize, offset: u64, buf: Buf) -> Outcome {
        let (buf, result) = self.view(client, volume).read(offset, buf).await;
        Outcome { result: result.map_err(io_error), buf: Some(buf) }
    }

    async fn write(
        &self,
        client: usize,
        volume: usize,
        offset: u64,
        data: Data,
        fua: bool,
    ) -> Result<(), IoError> {
        self.view(client, volume).write(offset, data, fua).await.map_err(io_error)
    }

    async fn flush(&self, client: usize, volume: usize) -> Result<(), IoError> {
        self.view(client, volume).flush().await.map_err(io_error)
    }

    async fn trim(
        &self,
        client: usize,
        volume: usize,
        offset: u64,
        len: u64,
    ) -> Result<(), IoError> {
        self.view(client, volume).trim(offset, len, false).await.map_err(io_error)
    }

    async fn write_zeroes(
        &self,
        client: usize,
        volume: usize,
        offset: u64,
        len: u64,
    ) -> Result<(), IoError> {
        self.view(client, volume).write_zeroes(offset, len, false).await.map_err(io_error)
    }

    fn zeroes(&self, volume: usize, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut extents, mut zeroes, mut at) = (Vec::new(), Vec::new(), range.start);
        let sector = SECTOR as u64;
        let len = (range.end - range.start) * sector;
        if self.volumes[volume].status(range.start * sector, len, &mut extents).is_err() {
            return zeroes;
        }
        for extent in extents {
            let end = at + extent.len / sector;
            if extent.place == Place::Zeroes {
                count("range known to be zeroes", 1);
                zeroes.push(at..end);
            }
            at = end;
        }
        zeroes
    }

    fn lost(&self, volume: usize, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut extents, mut lost, mut at) = (Vec::new(), Vec::new(), range.start);
        let sector = SECTOR as u64;
        while at < range.end {
            let left = (range.end - at) * sector;
            let said = self.volumes[volume].status(at * sector, left, &mut extents);
            if said.is_err() || extents.is_empty() {
                break;
            }
            for extent in &extents {
                let end = at + extent.len / sector;
                if extent.place == Place::Lost {
                    lost.push(at..end);
                }
                at = end;
            }
        }
        lost
    }

    async fn set_mode(&self, volume: usize, to: Mode) -> Result<(), SubjectError> {
        self.volumes[volume].set_mode(mode(to)).await.map_err(error)
    }

    async fn set_space(&self, volume: usize, space: Space) -> Result<(), SubjectError> {
        let Some(pool) = &self.pool else { return Ok(()) };
        let volume = &self.volumes[volume];
        let segment_bytes = u64::from(pool.superblock().segment_bytes);
        let settings = engine::VolumeSettings {
            reservation_bytes: space.reservation * segment_bytes,
            limit_bytes: space.limit * segment_bytes,
            priority: space.priority,
            ..volume.settings()
        };
        // Some are too large, which is what is refused.
        volume.set(settings).await.map_err(error)?;
        count("space of a volume changed", 1);
        Ok(())
    }

    async fn set_ram(&self, bytes: u64) -> Result<(), SubjectError> {
        let Some(pool) = &self.pool else { return Ok(()) };
        count("RAM tier: size changed", 1);
        pool.set_ram_bytes(bytes).await.map_err(error)
    }

    async fn set_copies(&self, dirty: usize, clean: usize) -> Result<(), SubjectError> {
        let Some(pool) = &self.pool else { return Ok(()) };
        let before = pool.superblock().dirty_copies as usize;
        count("copies: fewer of dirty data", u64::from(dirty < before));
        count("copies: more of dirty data", u64::from(dirty > before));
        let (dirty, clean) = (Some(dirty as u8), Some(clean as u8));
        let change = CopiesChange { dirty, clean, accept_data_loss_on_ssd_failure: false };
        pool.set_copies(&change).await.map_err(error)
    }

    async fn remove_member(&self, env: &Env, member: usize) -> Result<bool, SubjectError> {
        let Some(pool) = &self.pool else { return Ok(false) };
        let found = superblock_of(env, member).await?;
        let departure = pool.begin_departure(found.device).map_err(error)?;
        for _ in 0..DEPARTURE_LOOKS {
            if departure.left_bytes() == 0 {
                count("member removed", 1);
                return departure.end().await.map_err(error).map(|()| true);
            }
            env.runtime.sleep(DEPARTURE_LOOK).await.result.unwrap_or(());
        }
        count("member called back", 1);
        Ok(false)
    }

    async fn add_member(&self, env: &Env, member: usize) -> Result<(), SubjectError> {
        let Some(pool) = &self.pool else { return Ok(()) };
        // If it failed before, it may not have answered everything yet, and its lock is held until then: nobody
        // can open it. A superblock from its former life would arrive behind that of its new one.
        env.runtime.sleep(env.config.delay_max).await.result.unwrap_or(());
        let id = pool.add_member(Rc::clone(&env.members[member])).await.map_err(error)?;
        self.ids.borrow_mut().insert(member, id);
        count("member added", 1);
        Ok(())
    }

    async fn take_spare(&self, env: &Env, spare: usize) -> Result<bool, SubjectError> {
        let Some(pool) = &self.pool else { return Ok(false) };
        let superblock = pool.superblock();
        let mut lost =
            superblock.members.iter().filter(|member| member.state != MemberState::Present);
        let Some(lost) = lost.find(|member| !member.replaced) else { return Ok(false) };
        let device = Rc::clone(&env.members[spare]);
        if in_time(env, spare, engine::read_spare(&*device)).await?.is_none() {
            return Err(SubjectError("it has been taken before".into()));
        }
        let id = pool.add_member_for(device, lost.device).await.map_err(error)?;
        self.ids.borrow_mut().insert(spare, id);
        count("spare taken", 1);
        Ok(true)
    }

    fn uses_member(&self, member: usize) -> bool {
        let (Some(pool), ids) = (&self.pool, self.ids.borrow()) else { return false };
        ids.get(&member).is_some_and(|id| pool.superblock().present().any(|m| m.device == *id))
    }

    fn has_all_copies(&self) -> bool {
        let Some(pool) = &self.pool else { return false };
        pool.redundancy() == Redundancy::Whole && pool.superblock().dirty_copies > 1
    }

    fn has_recovered(&self) -> bool {
        let Some(pool) = &self.pool else { return true };
        matches!(pool.redundancy(), Redundancy::Whole | Redundancy::Protected)
    }

    async fn grow_member(&self, env: &Env, member: usize) -> Result<(), SubjectError> {
        let Some(pool) = &self.pool else { return Ok(()) };
        let found = superblock_of(env, member).await?;
        pool.extend_member(found.device).await.map_err(error)
    }

    fn start_scrub(&self) -> Result<(), SubjectError> {
        let Some(pool) = &self.pool else { return Ok(()) };
        pool.start_scrub().map_err(error).map(|begun| count("scrub: begun", u64::from(begun)))
    }

    async fn destage(&self) -> Result<(), SubjectError> {
        for volume in &self.volumes {
            volume.destage().await.map_err(error)?;
        }
        Ok(())
    }

    fn has_given_up(&self) -> bool {
        self.pool.as_ref().is_some_and(Pool::is_latched)
    }

    fn is_served_alone(witness: &[u8], volume: usize) -> bool {
        let places = witness.chunks_exact(DiskWitness::PLACE_BYTES);
        let newest = places.filter_map(DiskWitness::content).max_by_key(|(count, _)| *count);
        let known = newest.and_then(|(_, bytes)| without_members(&bytes).ok());
        known.is_some_and(|known| known.served.iter().any(|it| it.name == volume_name(volume)))
    }

    fn take_seen() -> BTreeMap<&'static str, u64> {
        let mut all = COUNTED.with(RefCell::take);
        all.extend(planted::take_seen());
        all
    }

    async fn stop(mut self) -> Result<(), SubjectError> {
        let Some(pool) = self.pool.take() else { return Ok(()) };
        self.views.clear();
        count_pool(&pool);
        check_bypass(&pool);
        stop(pool, &self.env).await
    }
}

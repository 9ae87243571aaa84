//! One seed from beginning to end.
//!
//! * Safety: runs with faults, each ended by a crash; every read is judged by the oracle.
//! * Then liveness: faults off, every volume is read in full, destaged, compared with its origin,
//!   stopped, cut from power, opened and read again. Nothing may fail or hang here.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

use forebay_device::model::world::{Cause, Crash, Rng, World};
use forebay_device::runtime::{Nanos, SECOND};
use forebay_device::{Buf, IoError, Runtime};

use crate::content::{SECTOR, fill};
use crate::machine::{AimedWatch, Machine, Snapshot};
use crate::oracle::{Change, Oracle};
use crate::subject::{Subject, SubjectError};
use crate::swarm::{AimedCrash, Config, CrashPlan, Strike, Target};
use crate::workload::{BLOCK_SECTORS, Op, STRIPE_SECTORS, Workload};

mod operator;
mod settle;
mod starts;

use operator::Stage;
pub(crate) use settle::{reopen, settle};

/// The stamp of what a filled origin holds before the first write.
pub(crate) const STAMP_FIRST: u64 = 1;
/// Who reads whole volumes.
const VERIFIER: usize = 0;
/// Requests that a long write is, where it may be joined again; one more if it cannot be cut evenly.
const PARTS: u64 = 4;
/// Sectors of one request when a volume is read in full.
const VERIFY_SECTORS: u64 = 128;

/// A run in which a flush of a member fails has it fail among the first so many.
const RUN_FLUSHES: u64 = 30;

/// What to do besides what the seed says.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Print every request and its outcome to standard error.
    pub trace: bool,
    /// Planted bug, by name.
    pub bug: Option<String>,
    /// Replaces the seed's crashes.
    pub crashes: Option<Vec<CrashPlan>>,
    /// A short workload on one volume.
    pub short: bool,
}

impl Options {
    /// The arguments of `forebay-sim` that replay `seed`.
    pub fn replay(&self, seed: u64) -> String {
        let mut text = format!("--seed {seed} --trace");
        if let Some(bug) = &self.bug {
            text += &format!(" --bug {bug}");
        }
        if self.short {
            text += " --short";
        }
        for crash in self.crashes.iter().flatten() {
            text += &format!(" --crash {crash}");
        }
        text
    }
}

/// What a seed that passed did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Requests of clients.
    pub requests: u64,
    /// Requests to devices.
    pub ios: u64,
    /// Polls and timers.
    pub steps: u64,
    /// Virtual time.
    pub nanos: Nanos,
    /// Crashes.
    pub crashes: u64,
    /// What the subject has counted and noted.
    pub seen: BTreeMap<&'static str, u64>,
}

/// What a seed failed on, for people.
#[derive(Clone, Debug)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<SubjectError> for Failure {
    fn from(error: SubjectError) -> Self {
        Self(error.0)
    }
}

/// What all clients of a seed share.
pub(crate) struct Shared {
    pub(crate) world: Rc<World>,
    pub(crate) config: Rc<Config>,
    pub(crate) oracle: RefCell<Oracle>,
    stamps: Cell<u64>,
    requests: Cell<u64>,
    /// The first wrong answer; ends the seed.
    failure: RefCell<Option<String>>,
    /// Requests of the kinds that have been trouble elsewhere.
    seen: RefCell<BTreeMap<&'static str, u64>>,
    /// Requests may fail: faults are armed that do more than delay.
    errors_expected: Cell<bool>,
    /// Whether that has been so: then a cache device may have failed with the only copy of something.
    may_have_lost: Cell<bool>,
    trace: bool,
}

impl Shared {
    fn trace(&self, text: impl FnOnce() -> String) {
        if self.trace {
            let millis = self.world.now() as f64 / 1e6;
            eprintln!("{millis:>12.3} ms  I/O {:<6} {}", self.world.io_count(), text());
        }
    }

    pub(crate) fn fail(&self, what: String) {
        self.trace(|| format!("FAILED: {what}"));
        self.failure.borrow_mut().get_or_insert(what);
    }

    fn failed(&self) -> Option<Failure> {
        self.failure.borrow().clone().map(Failure)
    }

    fn next_stamp(&self) -> u64 {
        self.stamps.set(self.stamps.get() + 1);
        self.stamps.get()
    }

    /// Notes what is special about a request.
    fn note(&self, op: &Op) {
        let (Op::Read(volume, range)
        | Op::Write(volume, range, _)
        | Op::Trim(volume, range)
        | Op::WriteZeroes(volume, range)) = op
        else {
            return;
        };
        let size = self.config.volumes[*volume].size_bytes / SECTOR as u64;
        let coarse = self.config.volumes[*volume].origin_sector_bytes as usize > SECTOR;
        let whole = (range.start | range.end).is_multiple_of(BLOCK_SECTORS);
        let kinds = [
            (range.start / STRIPE_SECTORS != (range.end - 1) / STRIPE_SECTORS, "across a stripe"),
            (range.end > size / BLOCK_SECTORS * BLOCK_SECTORS, "into the uncached tail"),
            (coarse && !whole, "finer than the origin's sectors"),
        ];
        for (_, kind) in kinds.into_iter().filter(|(is, _)| *is) {
            *self.seen.borrow_mut().entry(kind).or_default() += 1;
        }
    }

    /// What a client asks for at the same time. Where streams of writes go past the cache a long write is several
    /// ones in a row, which may be joined.
    fn parts(&self, op: Op) -> Vec<Op> {
        let splits = |volume: usize| self.config.volumes[volume].settings.sequential_writes;
        match op {
            Op::Write(volume, range, false) if splits(volume) => {
                let sectors = range.end - range.start;
                let step = (sectors / PARTS / BLOCK_SECTORS * BLOCK_SECTORS).max(BLOCK_SECTORS);
                let starts = range.clone().step_by(step as usize);
                let part = |start: u64| start..(start + step).min(range.end);
                starts.map(|start| Op::Write(volume, part(start), false)).collect()
            }
            op => vec![op],
        }
    }

    /// Whether something of a range is lost. That must be where somebody wrote, and a cache device must
    /// have failed with its only copy.
    fn is_lost<S: Subject>(&self, subject: &S, volume: usize, range: Range<u64>) -> bool {
        let size = self.config.volumes[volume].size_bytes / SECTOR as u64;
        let start = range.start / BLOCK_SECTORS * BLOCK_SECTORS;
        let end = range.end.next_multiple_of(BLOCK_SECTORS).min(size);
        let lost = subject.lost(volume, start..end);
        if !lost.is_empty() && !self.may_have_lost.get() {
            self.fail(format!("volume {volume}: {lost:?} lost though everything has other copies"));
        }
        let blocks = lost.iter().flat_map(|range| range.clone().step_by(BLOCK_SECTORS as usize));
        for block in blocks {
            let sectors = block..(block + BLOCK_SECTORS).min(size);
            if !self.oracle.borrow().was_written(volume, sectors) {
                self.fail(format!("volume {volume}: sector {block} is lost and was never written"));
            }
        }
        !lost.is_empty()
    }

    fn judge(&self, client: usize, op: &dyn fmt::Debug, result: Result<(), IoError>) {
        self.requests.set(self.requests.get() + 1);
        self.trace(|| format!("client {client}: {op:?} -> {result:?}"));
        if let Err(error) = result
            && !self.errors_expected.get()
        {
            self.fail(format!("{op:?} failed though nothing is broken: {error}"));
        }
    }
}

fn bytes(range: &Range<u64>) -> (u64, u64) {
    (range.start * SECTOR as u64, (range.end - range.start) * SECTOR as u64)
}

/// One request, with the oracle told of its beginning and end.
/// Drives some requests together, in their order. Of those only one asks devices for something in a step: behind it the
/// power may have gone.
async fn together(world: &World, requests: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut left: VecDeque<_> = requests.map(Box::pin).collect();
    poll_fn(|cx| {
        for _ in 0..left.len() {
            let before = world.io_count();
            if let Some(mut request) = left.pop_front()
                && request.as_mut().poll(cx).is_pending()
            {
                left.push_back(request);
            }
            if world.io_count() > before && !left.is_empty() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        if left.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

async fn request<S: Subject>(
    shared: &Shared,
    aimed: &AimedWatch,
    subject: &S,
    client: usize,
    op: Op,
) {
    shared.trace(|| format!("client {client}: {op:?} ..."));
    shared.note(&op);
    let asked = match &op {
        Op::Read(volume, range) | Op::Write(volume, range, _) | Op::WriteZeroes(volume, range) => {
            Some((*volume, range.clone()))
        }
        _ => None,
    };
    let is_lost = || {
        let asked = asked.clone();
        asked.is_some_and(|(volume, range)| shared.is_lost(subject, volume, range))
    };
    // Others may overwrite it before this has ended.
    let was_lost = shared.may_have_lost.get() && is_lost();
    let oracle = &shared.oracle;
    let result = match &op {
        Op::Read(volume, range) => read(shared, subject, client, *volume, range.clone()).await,
        Op::Write(volume, range, fua) => {
            let stamp = shared.next_stamp();
            shared.trace(|| format!("client {client}: that write has stamp {stamp}"));
            let (offset, len) = bytes(range);
            let mut data = Buf::new(len as usize);
            fill(stamp, *volume, range.start, &mut data);
            let change = Change::Value(stamp);
            let access = oracle.borrow_mut().change_start(*volume, range.clone(), change);
            let result = subject.write(client, *volume, offset, data.freeze(), *fua).await;
            oracle.borrow_mut().change_end(access, change, result.is_ok(), *fua);
            result
        }
        Op::WriteZeroes(volume, range) => {
            let (offset, len) = bytes(range);
            let change = Change::Value(0);
            let access = oracle.borrow_mut().change_start(*volume, range.clone(), change);
            let result = subject.write_zeroes(client, *volume, offset, len).await;
            oracle.borrow_mut().change_end(access, change, result.is_ok(), false);
            result
        }
        Op::Trim(volume, range) => {
            let (offset, len) = bytes(range);
            let access = oracle.borrow_mut().change_start(*volume, range.clone(), Change::Trim);
            let result = subject.trim(client, *volume, offset, len).await;
            oracle.borrow_mut().change_end(access, Change::Trim, result.is_ok(), false);
            result
        }
        Op::Flush(volume) => {
            let session = shared.config.session(client);
            let access = oracle.borrow_mut().flush_start(*volume, session);
            let result = subject.flush(client, *volume).await;
            oracle.borrow_mut().flush_end(access, result.is_ok());
            if result.is_ok() {
                aimed.note(&shared.world, Target::Flush);
            }
            result
        }
        Op::SetMode(volume, mode) => {
            if let Err(error) = subject.set_mode(*volume, *mode).await {
                shared.trace(|| format!("client {client}: set_mode: {error}"));
            }
            return;
        }
        Op::SetSpace(volume, space) => {
            if let Err(error) = subject.set_space(*volume, *space).await {
                shared.trace(|| format!("client {client}: set_space: {error}"));
            }
            return;
        }
        Op::Pause(span) => {
            let runtime: &dyn Runtime = &*shared.world;
            return runtime.sleep(*span).await.result.unwrap_or(());
        }
    };
    let result = match result {
        Err(_) if was_lost || is_lost() => {
            *shared.seen.borrow_mut().entry("request of what is lost").or_default() += 1;
            Ok(())
        }
        result => result,
    };
    shared.judge(client, &op, result);
}

async fn read<S: Subject>(
    shared: &Shared,
    subject: &S,
    client: usize,
    volume: usize,
    range: Range<u64>,
) -> Result<(), IoError> {
    let (offset, len) = bytes(&range);
    for zeroes in subject.zeroes(volume, range.clone()) {
        // What is said without reading must hold as if it were read.
        let (_, len) = bytes(&zeroes);
        let mut oracle = shared.oracle.borrow_mut();
        let access = oracle.read_start(volume, zeroes);
        if let Err(violation) = oracle.read_end(access, &vec![0; len as usize]) {
            shared.fail(format!("said to be zeroes: {violation}"));
        }
    }
    let access = shared.oracle.borrow_mut().read_start(volume, range);
    let outcome = subject.read(client, volume, offset, Buf::new(len as usize)).await;
    let mut oracle = shared.oracle.borrow_mut();
    match (outcome.result, &outcome.buf) {
        (Ok(()), Some(buf)) => {
            if let Err(violation) = oracle.read_end(access, buf) {
                shared.fail(violation.to_string());
            }
        }
        (Ok(()), None) => shared.fail("a read succeeded without its buffer".into()),
        (Err(_), _) => oracle.read_failed(access),
    }
    outcome.result
}

async fn verify<S: Subject>(shared: &Shared, subject: &S) {
    for (volume, config) in shared.config.volumes.iter().enumerate() {
        let sectors = config.size_bytes / SECTOR as u64;
        let mut start = 0;
        while start < sectors && shared.failure.borrow().is_none() {
            let end = (start + VERIFY_SECTORS).min(sectors);
            let result = read(shared, subject, VERIFIER, volume, start..end).await;
            if let Err(error) = result
                && !shared.is_lost(subject, volume, start..end)
            {
                shared.judge(VERIFIER, &format!("verify {volume} {start}..{end}"), Err(error));
            }
            start = end;
        }
    }
}

/// What a run waits for before it is cut off.
#[derive(Clone, Copy)]
pub(crate) enum Crashing {
    /// So many I/Os.
    Ios(u64),
    /// A certain write.
    Aimed(AimedCrash),
}

impl Crashing {
    /// Counts from now on. A run that ends before is cut off at its end.
    fn arm(self, world: &World, machine: &Machine) {
        match self {
            Self::Ios(ios) => world.crash_at(Some(world.io_count() + ios)),
            Self::Aimed(crash) => machine.aimed.arm(crash),
        }
    }
}

/// Opens the subject and lets all clients run to their end.
pub(crate) async fn serve<S: Subject>(
    shared: &Rc<Shared>,
    machine: &Rc<Machine>,
    mut rng: Rng,
    crash: Option<Crashing>,
    last: bool,
) -> Result<Rc<S>, Failure> {
    let subject = Rc::new(S::open(&machine.env).await?);
    if let Some(crash) = crash {
        crash.arm(&shared.world, machine);
    }
    shared.trace(|| "opened".into());
    if rng.one_in(3) {
        verify(shared, &*subject).await;
    }
    let harmful = machine.armoury.arm();
    let damaged = last && machine.armoury.damage();
    let mut luck = Rng::new(shared.config.seed ^ 0xF1A5 ^ shared.world.io_count());
    let one_in = shared.config.flush_fails_one_in;
    let fails = one_in > 0 && luck.one_in(one_in);
    if fails {
        let member = luck.below(shared.config.members as u64) as usize;
        machine.armoury.fail_flush(member, luck.below(RUN_FLUSHES));
    }
    let strike = shared.config.strike.filter(|_| luck.one_in(2));
    // With another member lost before, what it took may have no copy.
    let second = |strike: &Strike| machine.armoury.has_failed_beside(strike.member);
    if let Some(strike) = &strike {
        shared.trace(|| format!("{strike:?}"));
        machine.armoury.strike(strike);
    }
    let alone = strike.is_some() && shared.config.dirty_copies < 2;
    let expected = harmful || fails || alone || damaged || strike.as_ref().is_some_and(second);
    shared.errors_expected.set(expected);
    shared.may_have_lost.set(shared.may_have_lost.get() || expected);
    // At the end sometimes nobody comes: what the last crash left is what is judged.
    let quiet = last && rng.one_in(3);
    let clients = if quiet { 0 } else { shared.config.clients };
    let stage = Stage {
        shared: Rc::clone(shared),
        machine: Rc::clone(machine),
        subject: Rc::clone(&subject),
        clients: Rc::new(Cell::new(clients)),
    };
    let mut ends = if quiet { Vec::new() } else { operator::begin(&stage, strike) };
    for client in 0..clients {
        let workload = Workload::new(&shared.config, rng.fork());
        ends.push(stage.spawn(move |Stage { shared, machine, subject, clients }| async move {
            for op in workload {
                if shared.failure.borrow().is_some() {
                    break;
                }
                let parts = shared.parts(op).into_iter();
                together(
                    &shared.world,
                    parts.map(|op| request(&shared, &machine.aimed, &*subject, client, op)),
                )
                .await;
            }
            clients.set(clients.get() - 1);
        }));
    }
    drop(stage);
    for end in ends {
        end.await.result.map_err(|_| Failure("a client was dropped".into()))?;
    }
    if damaged && subject.has_given_up() {
        return Err(Failure("the pool has latched, although all of its members serve".into()));
    }
    machine.armoury.disarm();
    if shared.errors_expected.replace(false) {
        // A request that was hit before may still be on its way to its error.
        let runtime: &dyn Runtime = &*shared.world;
        runtime.sleep(shared.config.delay_max + SECOND).await.result.unwrap_or(());
    }
    Ok(subject)
}

pub(crate) struct Seed {
    pub(crate) shared: Rc<Shared>,
    pub(crate) machine: Rc<Machine>,
    pub(crate) rng: Rng,
    crashes: u64,
    /// A copy of them that is put back later.
    witness_files: Option<Vec<Vec<u8>>>,
    /// Copies of members that are put in their places later.
    copies: Vec<(usize, Vec<u8>)>,
}

impl Seed {
    pub(crate) fn new<S: Subject>(seed: u64, options: &Options) -> Self {
        let mut rng = Rng::new(seed ^ 0x5EED);
        let mut config = Config::new(seed);
        if let Some(crashes) = &options.crashes {
            config.crashes.clone_from(crashes);
            config.aimed_crashes.clear();
        }
        if options.short {
            config.shorten();
        }
        S::adapt(&mut config);
        let config = Rc::new(config);
        let world = World::new(rng.bits());
        let machine = Machine::new(&world, &config, options, &mut rng, None);
        let mut oracle = Oracle::default();
        for volume in &config.volumes {
            let value = if volume.filled { STAMP_FIRST } else { 0 };
            oracle.add_volume(volume.size_bytes / SECTOR as u64, value);
        }
        let seed = Self::assemble(world, config, machine, oracle, rng, options);
        seed.shared.trace(|| format!("{:?}", seed.shared.config));
        seed
    }

    /// Goes on from `snapshot` in another world, which `luck` decides about.
    pub(crate) fn resume(
        config: &Rc<Config>,
        options: &Options,
        snapshot: &Snapshot,
        luck: u64,
    ) -> Self {
        let mut rng = Rng::new(luck);
        let world = World::new(rng.bits());
        let machine = Machine::new(&world, config, options, &mut rng, Some(&snapshot.disks));
        let oracle = snapshot.oracle.clone();
        Self::assemble(world, Rc::clone(config), machine, oracle, rng, options)
    }

    fn assemble(
        world: Rc<World>,
        config: Rc<Config>,
        machine: Machine,
        oracle: Oracle,
        rng: Rng,
        options: &Options,
    ) -> Self {
        // Of a run that goes on from a copy: it has been struck before.
        let alone = config.strike.is_some() && config.dirty_copies < 2;
        let shared = Rc::new(Shared {
            world,
            config,
            oracle: RefCell::new(oracle),
            stamps: Cell::new(STAMP_FIRST),
            requests: Cell::new(0),
            failure: RefCell::default(),
            seen: RefCell::default(),
            errors_expected: Cell::new(false),
            may_have_lost: Cell::new(alone),
            trace: options.trace,
        });
        machine.watch.begin(&shared);
        Self {
            shared,
            machine: Rc::new(machine),
            rng,
            crashes: 0,
            witness_files: None,
            copies: Vec::new(),
        }
    }

    /// Ends all tasks, which hold the world that holds them.
    pub(crate) fn end(&self) {
        self.shared.world.crash(Crash::ProcessKill);
    }

    pub(crate) fn crash(&mut self, crash: Crash) {
        let shared = &self.shared;
        shared.trace(|| format!("crash: {crash:?}"));
        shared.oracle.borrow_mut().crash(crash);
        shared.world.crash(crash);
        if crash == Crash::PowerCut {
            self.machine.env.hosts.lose_power();
        }
        self.machine.armoury.forget();
        self.machine.armoury.disarm();
        shared.errors_expected.set(false);
        self.crashes += 1;
        if let Some(loss) = shared.config.witness_loss {
            if loss.restored && self.crashes + 1 == loss.crash {
                self.witness_files = Some(self.machine.witness_files());
            }
            if self.crashes == loss.crash {
                shared.trace(|| format!("{loss:?}"));
                *shared.seen.borrow_mut().entry("witness gone, or an old one").or_default() += 1;
                self.machine.replace_witness_files(self.witness_files.take());
            }
        }
        if shared.config.set_back.as_ref().is_some_and(|set_back| self.crashes == set_back.copied) {
            self.copies = self.copies_to_come();
        }
        if let Some(loss) = shared.config.loss.filter(|loss| self.crashes >= loss.crashes) {
            let back = loss.returns && self.crashes > loss.crashes;
            let missing = &self.machine.env.missing;
            // The pool may have gone on without another one, and this one has the last copy then.
            if missing.get().is_some() || !self.machine.armoury.has_failed_beside(loss.member) {
                missing.set((!back).then_some(loss.member));
            }
        }
    }

    /// A run up to its crash, counted from 0.
    fn run_to_crash<S: Subject>(&mut self, crash: usize) -> Result<(), Failure> {
        let config = Rc::clone(&self.shared.config);
        let plan = config.crashes[crash];
        let aimed = config.aimed_crashes.iter().copied().find(|at| at.crash == crash);
        let crashing = aimed.map_or(Crashing::Ios(plan.after_ios), Crashing::Aimed);
        let (shared, machine) = (Rc::clone(&self.shared), Rc::clone(&self.machine));
        let (world, rng) = (Rc::clone(&shared.world), self.rng.fork());
        let when_open = plan.when_open.then_some(crashing);
        if when_open.is_none() {
            crashing.arm(&world, &machine);
        }
        let result = world.run_until(async move {
            serve::<S>(&shared, &machine, rng, when_open, false).await.map(drop)
        });
        match result {
            Ok(outcome) => outcome?,
            Err(stopped) if stopped.cause == Cause::Crashed => {
                if let Some(AimedCrash { target, .. }) = aimed {
                    let what = match target {
                        Target::Root => "power cut at a root",
                        Target::Origin => "power cut behind an origin write",
                        Target::Direct => "power cut behind a direct write",
                        Target::Flush => "power cut behind a flush",
                    };
                    *self.shared.seen.borrow_mut().entry(what).or_default() += 1;
                }
            }
            Err(stopped) => return Err(Failure(stopped.to_string())),
        }
        self.machine.aimed.disarm();
        self.shared.failed().map_or(Ok(()), Err)?;
        self.crash(plan.crash);
        self.check_served_alone::<S>()
    }

    /// Looks behind a crash at what would be served if no member were left.
    pub(crate) fn check_served_alone<S: Subject>(&self) -> Result<(), Failure> {
        let (shared, machine) = (&self.shared, &self.machine);
        // What is put in its place has not heard of what was written since.
        if shared.config.witness_loss.is_some() {
            return Ok(());
        }
        let witness = &machine.witness_files()[machine.env.hosts.server.get()];
        let volumes = 0..shared.config.volumes.len();
        for volume in volumes.filter(|volume| S::is_served_alone(witness, *volume)) {
            let image = machine.origin_image(shared, volume);
            let judged = shared.oracle.borrow_mut().check_possible(volume, &image);
            judged.map_err(|it| Failure(format!("an origin that would be served alone: {it}")))?;
            *shared.seen.borrow_mut().entry("an origin that would be served alone").or_default() +=
                1;
        }
        Ok(())
    }

    /// Runs `future` to its end, then looks whether anything was wrong.
    pub(crate) fn run<T: 'static>(
        &self,
        future: impl Future<Output = Result<T, Failure>> + 'static,
    ) -> Result<T, Failure> {
        let result = self.shared.world.run_until(future);
        // A wrong answer explains a failure or a hang that comes after it.
        self.shared.failed().map_or(Ok(()), Err)?;
        result.map_err(|stopped| Failure(stopped.to_string()))?
    }

    fn run_all<S: Subject>(&mut self) -> Result<(), Failure> {
        let machine = Rc::clone(&self.machine);
        self.run(async move { S::create(&machine.env).await.map_err(Failure::from) })?;
        for crash in 0..self.shared.config.crashes.len() {
            self.start_from_copies::<S>()?;
            self.start_in_trouble::<S>()?;
            self.run_to_crash::<S>(crash)?;
        }
        self.start_from_copies::<S>()?;
        self.start_in_trouble::<S>()?;
        let (shared, machine) = (Rc::clone(&self.shared), Rc::clone(&self.machine));
        let rng = self.rng.fork();
        let mut subject =
            self.run(async move { serve::<S>(&shared, &machine, rng, None, true).await })?;
        if subject.has_given_up() {
            drop(subject);
            self.crash(Crash::ProcessKill);
            let machine = Rc::clone(&self.machine);
            subject = self.run(async move {
                let subject = S::open(&machine.env).await?;
                Ok(Rc::new(subject))
            })?;
        }
        let (shared, machine) = (Rc::clone(&self.shared), Rc::clone(&self.machine));
        self.run(async move { settle(&shared, &machine, subject).await })?;
        self.crash(Crash::PowerCut);
        self.machine.check_origins(&self.shared, "after a clean stop and a power cut");
        let (shared, machine) = (Rc::clone(&self.shared), Rc::clone(&self.machine));
        self.run(async move { reopen::<S>(&shared, &machine).await })
    }
}

/// Runs one seed.
///
/// # Errors
/// The first thing that went wrong.
pub fn run_seed<S: Subject>(seed: u64, options: &Options) -> Result<Summary, Failure> {
    let mut run = Seed::new::<S>(seed, options);
    let result = run.run_all::<S>();
    let world = Rc::clone(&run.shared.world);
    let (steps, nanos) = (world.steps(), world.now());
    let summary = Summary {
        requests: run.shared.requests.get(),
        ios: world.io_count(),
        steps,
        nanos,
        crashes: run.crashes,
        seen: BTreeMap::new(),
    };
    run.end();
    let mut seen = run.shared.seen.take();
    seen.extend(S::take_seen());
    let summary = Summary { seen, ..summary };
    match result {
        Ok(()) => Ok(summary),
        Err(Failure(what)) => {
            let at = format!("step {steps}, I/O {}, {:.3} ms", summary.ios, nanos as f64 / 1e6);
            Err(Failure(format!("{what} [{at}]")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passthrough::Passthrough;

    #[test]
    fn the_right_subject_passes() {
        for seed in 0..60 {
            let result = run_seed::<Passthrough>(seed, &Options::default());
            assert!(result.is_ok(), "seed {seed}: {}", result.unwrap_err());
        }
    }

    #[test]
    fn a_seed_repeats_to_the_step() {
        for seed in 0..10 {
            let run = || run_seed::<Passthrough>(seed, &Options::default()).unwrap();
            assert_eq!(run(), run());
        }
    }

    #[test]
    fn each_planted_bug_is_caught_within_200_seeds() {
        for bug in Passthrough::BUGS {
            let options = Options { bug: Some((*bug).into()), ..Options::default() };
            let caught = (0..200).find(|seed| run_seed::<Passthrough>(*seed, &options).is_err());
            assert!(caught.is_some(), "{bug} was not caught");
        }
    }
}

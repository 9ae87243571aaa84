//! How a pool is opened: what it opens with, who has it, and what becomes of a member that fails meanwhile.
//!
//! * A member that fails a write or a flush, does not answer, or does not return what the start needs of it, ends the attempt:
//!   nothing of a start needs to go on without one that it began with. The next attempt is without it, as if it had not been given, and so by the table of the opening
//!   ([`crate::membership`]): what a crash at that instant and its loss would have led to.
//! * Nothing but the claim is written before all that the attempt goes on with has been read (INV-105).
//! * It is left out only where that table needs no decision. What a person accepted was said of others (INV-104).
//! * No attempt goes on from an epoch before the one that an earlier attempt began with: what that left behind stays behind.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use forebay_device::{BlockDevice, LocalBoxFuture, Runtime, Watched};

use crate::bypass::BypassCounters;
use crate::claim::{self, Taken};
use crate::client::Elsewhere;
use crate::core::{Core, ShardState};
use crate::count::Count;
use crate::counters::{Counters, Latency};
use crate::deadline::Deadline;
use crate::departure::Leave;
use crate::doubt::Doubts;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, EventKind, Subject};
use crate::failure::{Standing, guardian};
use crate::format::{Host, MemberRecord, Numbers, Superblock};
use crate::ids::{BLOCK_BYTES, DeviceId};
use crate::journal::Journal;
use crate::lease::Lease;
use crate::limits::RECORD_BYTES_MAX;
use crate::log::Log;
use crate::lost::Lost;
use crate::marks::Losses;
use crate::member::Member;
use crate::membership::{OpenOptions, Opened, Opening, assess};
use crate::memory::IndexClaims;
use crate::noted::noter;
use crate::phase::Life;
use crate::planted::{self, Bug};
use crate::policy::{Reread, S3Fifo, S3FifoConfig};
use crate::pool::Pool;
use crate::recovery::RecoveryReport;
use crate::redundancy::Protection;
use crate::roots::Roots;
use crate::scrub::{Scrub, healer, scrubber};
use crate::segment::SetTable;
use crate::share::Writing;
use crate::sound::check_counter;
use crate::space::Space;
use crate::superblock::witness_keeper;
use crate::throttle::Throttle;
use crate::tuning::Tuning;
use crate::wait::{TaskMutex, WaitQueue};
use crate::wear::{Wear, wear_keeper};
use crate::witness::Witness;
use crate::work::Work;

/// Opens a pool and recovers it. Volumes are attached afterwards.
///
/// # Errors
/// [`ErrorKind::NotFound`], [`ErrorKind::Refused`], [`ErrorKind::Damaged`], [`ErrorKind::Future`],
/// [`ErrorKind::NeedsDecision`], [`ErrorKind::Io`]; nothing is lost by any of them, and nothing goes
/// on in the background.
pub async fn open(
    rt: Rc<dyn Runtime>,
    devices: Vec<Rc<dyn BlockDevice>>,
    witness: Rc<dyn Witness>,
    tuning: Tuning,
) -> Result<Pool> {
    open_with(rt, devices, witness, tuning, OpenOptions::default()).await
}

/// [`open`], with what a person has decided.
///
/// # Errors
/// Those of [`open`].
pub fn open_with(
    rt: Rc<dyn Runtime>,
    devices: Vec<Rc<dyn BlockDevice>>,
    witness: Rc<dyn Witness>,
    tuning: Tuning,
    mut options: OpenOptions,
) -> LocalBoxFuture<'static, Result<Pool>> {
    Box::pin(async move {
        let attempts = Rc::new(Attempts::default());
        loop {
            let failed = attempts.failures.borrow().len();
            let deadline = Deadline::begin(&rt, devices.clone(), &attempts);
            let given = deadline.devices();
            let (witness, tuning) = (Rc::clone(&witness), tuning.clone());
            let opened = start(&rt, &deadline, witness, tuning, &options).await;
            let Err(error) = opened else {
                if failed > 0 {
                    planted::seen("start: without a member that failed it");
                }
                return opened;
            };
            deadline.end().await;
            if attempts.failures.borrow().len() == failed {
                return Err(attempts.despite(error));
            }
            // Who takes a pool over has the claim on all members before it goes on without one.
            let is_taking = options.take_over && !attempts.has_claimed.get();
            if is_taking || attempts.is_unsettled(&given) {
                return Err(Error::new(ErrorKind::Io, attempts.told()).hint(MEND));
            }
            if attempts.failures.borrow().len() == devices.len() {
                let error = Error::new(ErrorKind::Io, "no cache device of the pool is left");
                return Err(attempts.despite(error.hint(
                    "mend the device or its path and restart the daemon; without any there is only what the origins have",
                )));
            }
            if !planted::is(Bug::LossAcceptedUnasked) {
                // That was agreed to for others.
                options.accept_missing = false;
            }
            options.take_over = false;
        }
    })
}

/// What to do about members without which a pool does not open.
pub(crate) const MEND: &str = "mend the device or its path and restart the daemon. Only if it is gone for good: detach it and restart the \
                    daemon; the pool then says what is lost with it, and how to open it";

/// A member that an attempt to start did not get over.
struct Failure {
    /// Its place among the devices given.
    place: usize,
    id: DeviceId,
    /// What it did.
    what: String,
    /// The epoch that the pool was found in.
    epoch: u64,
}

/// The claim of an attempt.
#[derive(Clone, Copy)]
pub(crate) struct Made {
    /// The number of the first one of its start, and its own.
    pub first: u64,
    pub number: u64,
    /// Whether it needed to wait for nobody.
    pub is_free: bool,
}

/// What the attempts of one start have come to so far.
#[derive(Default)]
pub(crate) struct Attempts {
    /// The members, as they were found last: where they are among the devices given, and in which epoch.
    members: RefCell<Vec<(usize, DeviceId, u64)>>,
    /// Those that have failed.
    failures: RefCell<Vec<Failure>>,
    /// Whether one of them had the pool.
    has_claimed: Cell<bool>,
    /// The claim that they have made.
    claim: Cell<Option<Made>>,
    /// What is to be told of those that are over.
    events: RefCell<VecDeque<Event>>,
}

impl Attempts {
    /// Notes that a member has failed, once for each; nothing as long as it is not known which one that is.
    pub(crate) fn fail(&self, place: usize, what: impl FnOnce(DeviceId) -> String) {
        let members = self.members.borrow();
        let known = members.iter().find(|(other, ..)| *other == place);
        if let Some(&(_, id, epoch)) = known.filter(|_| !self.has_failed(place)) {
            self.failures.borrow_mut().push(Failure { place, id, what: what(id), epoch });
        }
    }

    fn has_failed(&self, place: usize) -> bool {
        self.failures.borrow().iter().any(|failure| failure.place == place)
    }

    /// Whether a device that has not failed may still carry out what was given up.
    fn is_unsettled(&self, given: &[Rc<Watched>]) -> bool {
        let mut given = given.iter().enumerate();
        given.any(|(place, device)| device.given_up_count() > 0 && !self.has_failed(place))
    }

    /// Notes a claim that was made, on all members or some.
    pub(crate) fn note_claim(&self, claim: Made) {
        self.claim.set(Some(claim));
    }

    /// The last one of those.
    pub(crate) fn claim(&self) -> Option<Made> {
        self.claim.get()
    }

    /// Tells what earlier attempts have noted, and the present one does not note anew.
    fn tell(&self, core: &Core) {
        let mut events = core.events.borrow_mut();
        let is_anew = |earlier: &Event| {
            events.iter().any(|it| it.kind == earlier.kind && it.subject == earlier.subject)
        };
        let mut all: VecDeque<Event> = self.events.take();
        all.retain(|earlier| !is_anew(earlier));
        all.append(&mut events);
        *events = all;
    }

    /// What the members that have failed did.
    fn told(&self) -> String {
        let failures = self.failures.borrow();
        let what: Vec<&str> = failures.iter().map(|failure| failure.what.as_str()).collect();
        what.join("; ")
    }

    /// Why a pool does not open without the members that have failed.
    fn despite(&self, error: Error) -> Error {
        if self.failures.borrow().is_empty() {
            return error;
        }
        let what = format!("{}; without it: {}", self.told(), error.what);
        match error.kind {
            // They can be had back, so nobody is to decide on their loss, and what they left is not all that there is.
            ErrorKind::NeedsDecision | ErrorKind::Damaged => {
                Error::new(ErrorKind::Io, what).hint(MEND)
            }
            kind => Error::new(kind, what).hint(error.hint),
        }
    }
}

/// Opens a pool without the members that have failed earlier attempts.
async fn start(
    rt: &Rc<dyn Runtime>,
    deadline: &Rc<Deadline>,
    witness: Rc<dyn Witness>,
    tuning: Tuning,
    options: &OpenOptions,
) -> Result<Pool> {
    let (opening, taken) = claimed(rt, deadline, &*witness, options).await?;
    deadline.attempts().has_claimed.set(true);
    let Opening { superblock, members, missing, epoch, witnessed, understated, accepted, notes } =
        opening;
    let superblock = superblock.started(&missing, epoch);
    let core = Rc::new(new_core(Rc::clone(rt), superblock, &members, witness, tuning, deadline));
    deadline.tell(&core);
    core.accepted.set(accepted);
    core.witness_understates.set(understated);
    core.event(EventKind::Opened, "pool opened".to_owned());
    for (kind, subject, note) in notes {
        core.event_of(subject, kind, note);
    }
    deadline.attempts().tell(&core);
    if let Some(taken) = taken {
        core.begin_lease(taken);
    }
    let report = match recovered(&core, &members, &missing, witnessed).await {
        Ok(report) => report,
        Err(error) => {
            if core.abandon().await.is_ok() {
                core.release().await;
            }
            // The next one says for itself whether it is open, writes, and has a witness.
            use EventKind::{Latched, Opened, WitnessUnwritable};
            let lasts = |event: &Event| !matches!(event.kind, Opened | Latched | WitnessUnwritable);
            let events = core.events.take().into_iter().filter(lasts);
            deadline.attempts().events.borrow_mut().extend(events);
            return Err(error);
        }
    };
    let copies = core.superblock.borrow().clean_copies;
    core.sets.borrow_mut().set_clean_copies(copies.into());
    let percent = core.superblock.borrow().write_amplification_max_percent;
    core.sets.borrow_mut().set_write_amplification_max(percent.into());
    core.note_fallbacks();
    core.review_redundancy();
    core.start_rebuild();
    core.start_raise();
    core.spawn(guardian(Rc::clone(&core)));
    core.spawn(witness_keeper(Rc::clone(&core)));
    let budget = core.superblock.borrow().write_budget_bytes_per_day;
    core.start_budget(budget);
    core.spawn_background(noter(Rc::clone(&core)));
    core.spawn_background(wear_keeper(Rc::clone(&core)));
    core.spawn_background(scrubber(Rc::clone(&core)));
    core.spawn_background(healer(Rc::clone(&core)));
    core.start_ram();
    Ok(Pool { core, report })
}

/// What the pool opens with, and the claim of it, if it is claimed.
async fn claimed(
    rt: &Rc<dyn Runtime>,
    deadline: &Rc<Deadline>,
    witness: &dyn Witness,
    options: &OpenOptions,
) -> Result<(Opening, Option<Taken>)> {
    let mut opening = assessed(deadline, witness, options).await?;
    let Some(host) = &options.host else { return Ok((opening, None)) };
    let Some(taken) = claim::take(rt, deadline, &opening, host, options).await? else {
        let what = "the pool has no room to say who has it open: never let two hosts open it";
        opening.notes.push((EventKind::Unclaimed, Subject::Pool, what.to_owned()));
        return Ok((opening, None));
    };
    let mut opening = match assessed_again(deadline, witness, options, &opening).await {
        Ok(opening) => opening,
        Err(error) => {
            claim::withdraw(&opening, &taken).await;
            return Err(error);
        }
    };
    if let Some(Host { name, .. }) = &taken.from {
        let what = format!("the pool was taken over from host \"{name}\", which did not keep it");
        opening.notes.push((EventKind::TakenOver, Subject::Pool, what));
    }
    Ok((opening, Some(taken)))
}

/// What the pool opens with, now that nobody else changes it: whoever had it may have until the claim.
async fn assessed_again(
    deadline: &Rc<Deadline>,
    witness: &dyn Witness,
    options: &OpenOptions,
    claimed: &Opening,
) -> Result<Opening> {
    let opening = assessed(deadline, witness, options).await?;
    let ids = |opening: &Opening| -> Vec<_> {
        opening.members.iter().map(|member| member.record.device).collect()
    };
    if ids(claimed) != ids(&opening) {
        let what = "the members of the pool have changed while it was being claimed";
        return Err(Error::new(ErrorKind::Io, what).hint("open it once more"));
    }
    Ok(opening)
}

/// What the pool opens with, if it can be used.
async fn assessed(
    deadline: &Rc<Deadline>,
    witness: &dyn Witness,
    options: &OpenOptions,
) -> Result<Opening> {
    let attempts = deadline.attempts();
    let devices = deadline.devices().into_iter().enumerate();
    let left = devices.filter(|(place, _)| !attempts.has_failed(*place));
    let left = left.map(|(_, device)| device as Rc<dyn BlockDevice>).collect();
    let mut opening = assess(left, witness, options).await?;
    let superblock = &opening.superblock;
    let failures = attempts.failures.borrow();
    if failures.iter().any(|failure| failure.epoch > superblock.epoch) {
        let what = "what is left of the pool is of an earlier epoch";
        return Err(Error::new(ErrorKind::NeedsDecision, what));
    }
    for member in &opening.members {
        check_size(superblock, &member.record, member.device.geometry().size_bytes)?;
    }
    check_counter("generation of the superblock", superblock.generation)?;
    check_counter("start number", superblock.start_number)?;
    check_counter("epoch", opening.epoch)?;
    let place = |member: &Opened| deadline.find(&member.device).0;
    let members = opening.members.iter().map(|it| (place(it), it.record.device, superblock.epoch));
    *attempts.members.borrow_mut() = members.collect();
    for Failure { id, what, .. } in &*failures {
        let note = format!("{what}; the pool starts without it, in epoch {}", opening.epoch);
        opening.notes.retain(|(_, subject, _)| *subject != Subject::Member(*id));
        opening.notes.push((EventKind::MemberFailed, Subject::Member(*id), note));
    }
    Ok(opening)
}

/// Rebuilds what the members hold, and goes on with it, without those that are `missing`. `witnessed`: whether the witness
/// names the epoch already.
async fn recovered(
    core: &Rc<Core>,
    members: &[Opened],
    missing: &BTreeSet<DeviceId>,
    witnessed: bool,
) -> Result<RecoveryReport> {
    if planted::is(Bug::BegunUnread) {
        core.begin_start(witnessed).await?;
    }
    let findings = core.look_through(missing).await?;
    for (index, Opened { slots, .. }) in members.iter().enumerate() {
        if let Err(error) = slots.settle(&*core.members[index].device).await {
            core.fail_member(index, "making sure of the superblock of", error);
        }
        core.check_latch()?;
    }
    core.recover(findings, witnessed).await
}

/// Whether a member's device has all that a superblock says of it.
pub(crate) fn check_size(superblock: &Superblock, record: &MemberRecord, size: u64) -> Result<()> {
    let needed = superblock.segments_offset
        + u64::from(record.segments.count()) * u64::from(superblock.segment_bytes);
    if size >= needed {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Refused,
        format!("cache device {} has shrunk: {size} B of {needed} B", record.device),
    )
    .hint("restore its size; nothing has been changed"))
}

fn new_core(
    rt: Rc<dyn Runtime>,
    superblock: Superblock,
    opened: &[Opened],
    witness: Rc<dyn Witness>,
    tuning: Tuning,
    deadline: &Rc<Deadline>,
) -> Core {
    let segment_bytes = u64::from(superblock.segment_bytes);
    let segment_blocks = (segment_bytes / BLOCK_BYTES) as u32;
    let record_blocks_max = ((RECORD_BYTES_MAX / BLOCK_BYTES) as u32).min(segment_blocks / 4);
    let now = rt.now();
    let given: Vec<Numbers> = opened.iter().map(|member| member.record.segments).collect();
    let segments: u64 = given.iter().map(|numbers| u64::from(numbers.count())).sum();
    // The numbers of members that are gone stay theirs: images and headers may still name them.
    let numbers = superblock.members.iter().map(|member| member.segments.end()).max();
    let mut sets = SetTable::new(segment_blocks, given, numbers.unwrap_or(0));
    for (index, member) in opened.iter().enumerate() {
        sets.set_controller(index, member.device.geometry().controller);
    }
    let members = opened
        .iter()
        .map(|Opened { record, device, .. }| {
            let (place, watched) = deadline.find(device);
            Member::new(record, watched, Some(place), superblock.segments_offset, Standing::Serving)
        })
        .collect();
    let pool_blocks = segments * u64::from(segment_blocks);
    let config = S3FifoConfig::for_pool(pool_blocks);
    let policy = S3Fifo::new(S3FifoConfig {
        write_amplification_max_percent: superblock.write_amplification_max_percent.into(),
        ..config
    });
    let shards: Vec<ShardState> =
        (0..superblock.shard_count).map(|_| ShardState::default()).collect();
    let index_memory_max = superblock.index_memory_max.min(tuning.index_memory_most);
    let log = Log::new(superblock.start_number);
    Core {
        opened: now,
        rt,
        tuning,
        members,
        epoch_begun: WaitQueue::default(),
        losses: Losses::default(),
        roots: Roots::default(),
        redundancy: Protection::default(),
        leave: Leave::default(),
        asked_before: Cell::new(0),
        deadline: Rc::clone(deadline),
        gate: deadline.gate(),
        lease: Lease::default(),
        elsewhere: Elsewhere::default(),
        places_given: Cell::new(deadline.devices().len()),
        segment_bytes,
        segment_blocks,
        record_blocks_max,
        shards,
        sets: RefCell::new(sets),
        log,
        volumes: RefCell::default(),
        owed: RefCell::new(BTreeMap::new()),
        written: RefCell::default(),
        lost: Lost::default(),
        policy: RefCell::new(Box::new(policy)),
        touches: RefCell::default(),
        reread: RefCell::new(Reread::of_first_reads(pool_blocks)),
        streams: RefCell::new(Reread::of_streams(pool_blocks)),
        ram: RefCell::default(),
        wear: Wear::default(),
        resizing: TaskMutex::default(),
        index_memory_max: Cell::new(index_memory_max),
        index_claims: IndexClaims::default(),
        scrub: Scrub::resume(superblock.scrub_next, superblock.scrub_begun_unix_s),
        verify_reads: Cell::new(superblock.verify_reads),
        cramped: Cell::new(false),
        superblock: RefCell::new(superblock),
        control: TaskMutex::default(),
        attaching: TaskMutex::default(),
        witness,
        witness_lags: Cell::new(false),
        witness_understates: Cell::new(false),
        accepted: Cell::new(false),
        counters: Counters::default(),
        bypass: BypassCounters::default(),
        read_latency: Latency::default(),
        origin_read_latency: Latency::default(),
        write_latency: Latency::default(),
        latched: Cell::new(false),
        doubts: Doubts::default(),
        life: Life::default(),
        work: Work::default(),
        minute_of_day: Cell::new(None),
        quiet: WaitQueue::default(),
        room: WaitQueue::default(),
        housekeeping: WaitQueue::default(),
        lap_lock: TaskMutex::default(),
        reclaim_stuck: Cell::new(false),
        events: RefCell::new(VecDeque::new()),
        index_bytes: Cell::new(0),
        partials: Cell::new(0),
        writing: Writing::default(),
        compared: Cell::new(now),
        journal: Journal::default(),
        space: Space::default(),
        moving: Count::default(),
        throttle: Throttle::new(),
    }
}

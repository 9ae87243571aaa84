//! Holding a pool that other hosts might open: until when this one may use it.
//!
//! * A round of the heartbeat looks at the claims of all members that serve, and writes its own again. It counts
//!   if none contradicts it, as a lease from the beginning of the look. So whoever writes a claim and
//!   waits for longer than a lease knows that all others have seen it since, or have stopped (INV-80).
//! * Behind the lease nothing goes out to members or origins ([`forebay_device::gate`]), and nobody is answered
//!   from memory. That lasts until a round counts again: a pool whose host slept, and that nobody took
//!   meanwhile, goes on as if nothing had been.
//! * A round needs every member that serves. One that hangs is left behind within `device_deadline`, as ever, and a
//!   lease is longer than two such rounds; one that serves is looked at, for it may be the only one that whoever takes
//!   over has seen, too.
//! * One whose claims cannot be read for a moment stays: rounds do not count meanwhile, and the lease has time for
//!   that. If they cannot be read for [`CLAIM_UNREAD_MAX`], or longer where it may be needed, or a claim cannot
//!   be written, it has failed: after a write that failed, what it was to keep may be gone as well.
//! * Where a round has not looked it writes nothing: claims of whoever has the pool by then may stand there.
//! * Whoever finds another's claim has lost the pool for good: everything fails from then on, and nothing that
//!   fails is held against a device.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{BlockDevice, IoError, IoErrorKind, Nanos};

use crate::claim::{self, Taken, read_claims, write_claim};
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::format::{Claim, FormatError, Superblock};
use crate::ids::DeviceId;
use crate::limits::{
    CLAIM_PAUSE, CLAIM_TIME, CLAIM_UNREAD_MAX, LEASE_BASE, LEASE_DEADLINES, LEASE_ROUNDS, MILLIS,
};
use crate::planted::{self, Bug};
use crate::unreadable::UNSURE_SPAN_MAX;
use crate::wait::{WaitQueue, all_of};

/// See the head of the file.
#[derive(Default)]
pub(crate) struct Lease {
    /// None where nobody claims the pool.
    own: RefCell<Option<Claim>>,
    /// The number of the first claim that its start has made.
    first: Cell<u64>,
    short_until: Cell<Nanos>,
    /// Whether the last round could not look at a member that nobody goes on without.
    is_blind: Cell<bool>,
    /// Members whose claims the last round could not read, and since when.
    unread: RefCell<BTreeMap<DeviceId, Nanos>>,
    /// Who has taken it, for people.
    lost_to: RefCell<Option<String>>,
    /// Woken when a round has counted, when the lease is lost, and when the pool stops.
    changed: WaitQueue,
}

impl Superblock {
    /// Milliseconds that others wait before they take a pool over that is opened now.
    pub fn lease_ms(&self) -> u32 {
        ((LEASE_BASE + LEASE_DEADLINES * self.device_deadline()) / MILLIS) as u32
    }
}

/// Time for which a round counts: what others wait for is a third longer, for clocks that differ and for what
/// was given to a device at the last moment.
fn span_of(claim: &Claim) -> Nanos {
    Nanos::from(claim.lease_ms) * MILLIS / 4 * 3
}

impl Lease {
    /// The claim that the pool was opened with.
    pub(crate) fn own(&self) -> Option<Claim> {
        self.own.borrow().clone()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost_to.borrow().is_some()
    }

    /// Who has taken the pool.
    pub(crate) fn lost_to(&self) -> Option<String> {
        self.lost_to.borrow().clone()
    }

    /// The error to give once the pool is somebody else's.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(host) = self.lost_to() else { return Ok(()) };
        let what = format!("host \"{host}\" has taken the pool over; nothing is written from here");
        Err(Error::new(ErrorKind::Io, what)
            .hint("use it there; to have it back, stop it there and restart the daemon here"))
    }

    /// Lets whoever waits look again.
    pub(crate) fn wake(&self) {
        self.changed.wake_all();
    }
}

impl Core {
    /// Holds the pool from now on.
    pub(crate) fn begin_lease(self: &Rc<Self>, taken: Taken) {
        self.lease.short_until.set(taken.short_until);
        self.lease.first.set(taken.first);
        *self.lease.own.borrow_mut() = Some(taken.claim);
        self.extend_lease(taken.looked);
        self.spawn(heartbeat(Rc::clone(self)));
    }

    /// A look that began at `looked` has found nobody else's claim.
    fn extend_lease(&self, looked: Nanos) {
        let Some(own) = self.lease.own() else { return };
        let is_short = looked < self.lease.short_until.get();
        let span = if is_short { CLAIM_TIME.min(span_of(&own)) } else { span_of(&own) };
        if !planted::is(Bug::LeaseIgnored) {
            self.gate.open_until(looked + span);
        }
        self.lease.wake();
    }

    /// The error to give to whoever cannot wait for a lease.
    pub(crate) fn check_lease(&self) -> Result<()> {
        if self.gate.is_open() {
            return Ok(());
        }
        self.lease.check()?;
        Err(Error::new(ErrorKind::Io, "the pool's lease has run out; it is being renewed"))
    }

    /// Waits for the next lease.
    ///
    /// # Errors
    /// If there is none.
    #[cold]
    pub(crate) async fn await_lease(&self) -> Result<()> {
        planted::seen("lease awaited");
        let is_over = || self.is_stopping() || self.lease.is_lost() || self.is_beyond_lease();
        self.lease.changed.until(|| self.gate.is_open() || is_over()).await;
        self.lease.check()?;
        if self.is_beyond_lease() { self.check_latch() } else { Ok(()) }
    }

    /// Whether there is no lease, and none to wait for: a pool that has latched leaves no member behind.
    fn is_beyond_lease(&self) -> bool {
        self.latched.get() && self.lease.is_blind.get() && !self.gate.is_open()
    }

    /// Puts the claim down on a member that is to join: what stands there may be of another pool.
    pub(crate) async fn claim_member(&self, index: usize) -> std::result::Result<(), IoError> {
        let Some(own) = self.lease.own() else { return Ok(()) };
        self.write_own(Rc::clone(&self.members[index].watched) as _, 0..2, &own).await
    }

    /// Whether a member's claims are no others than those of `own`.
    async fn look_at_claims(
        &self,
        index: usize,
        own: &Claim,
    ) -> std::result::Result<Option<String>, IoError> {
        let Some(places) = claim::places(&self.superblock.borrow()) else { return Ok(None) };
        let found = read_claims(&*self.members[index].watched.past_gate(), places).await?;
        let other = found.iter().find_map(|found| match found {
            Ok(claim) if claim.contradicts(own, self.lease.first.get()) => {
                Some(claim.host.name.clone())
            }
            Err(
                FormatError::FutureVersion { .. }
                | FormatError::UnknownFeatures { .. }
                | FormatError::Invalid { .. },
            ) => Some("(of a later version)".to_owned()),
            _ => None,
        });
        Ok(other.filter(|_| !planted::is(Bug::ClaimUnchecked)))
    }

    async fn write_own(
        &self,
        device: Rc<dyn BlockDevice>,
        slots: std::ops::Range<usize>,
        own: &Claim,
    ) -> std::result::Result<(), IoError> {
        let Some(places) = claim::places(&self.superblock.borrow()) else { return Ok(()) };
        write_claim(&*device, &places[slots], own).await?;
        if own.released { device.flush().done().await } else { Ok(()) }
    }

    /// One round; whether it counts.
    async fn beat(&self) -> bool {
        let looked = self.rt.now();
        let Some(mut own) = self.lease.own() else { return false };
        let mut round: Vec<usize> = self.serving().map(|(index, _)| index).collect();
        let mut is_whole = !round.is_empty();
        let before = self.lease.unread.take();
        for (index, found) in self.in_round(&round, |index| self.look_at_claims(index, &own)).await
        {
            match found {
                Ok(Some(host)) => {
                    self.lose_lease(host);
                    return false;
                }
                Ok(None) => {}
                Err(error) => {
                    round.retain(|&it| it != index);
                    is_whole &= !self.note_unread(index, &before, error);
                }
            }
        }
        own.beat += 1;
        own.beat_unix_s = self.rt.unix_seconds();
        *self.lease.own.borrow_mut() = Some(own.clone());
        let slot = (own.beat % 2) as usize;
        let write = |index: usize| {
            self.write_own(self.members[index].watched.past_gate(), slot..slot + 1, &own)
        };
        for (index, written) in self.in_round(&round, write).await {
            // Others may take this host for dead then, but none that the look has not found.
            if let Err(error) = written {
                self.drop_out(index, "writing the claim of", error);
            }
        }
        if is_whole && !self.lease.is_lost() {
            self.extend_lease(looked);
        }
        self.lease.is_blind.set(!is_whole);
        if self.is_beyond_lease() {
            self.gate.refuse();
            self.lease.wake();
        }
        is_whole
    }

    /// Does something on all members of a round that still serve.
    async fn in_round<T, F: Future<Output = T>>(
        &self,
        round: &[usize],
        one: impl Fn(usize) -> F,
    ) -> Vec<(usize, T)> {
        let serving = round.iter().filter(|&&index| self.members[index].is_serving());
        let serving: Vec<usize> = serving.copied().collect();
        let outcomes = all_of(serving.iter().map(|&index| one(index))).await;
        serving.into_iter().zip(outcomes).collect()
    }

    /// The claims of a member cannot be read; whether it still has a say.
    fn note_unread(
        &self,
        index: usize,
        before: &BTreeMap<DeviceId, Nanos>,
        error: IoError,
    ) -> bool {
        let (id, now) = (self.members[index].id, self.rt.now());
        let since = before.get(&id).copied().unwrap_or(now);
        // The lease may run out for what it has alone: then all waits until a round counts. What that is a start does not know yet.
        let is_needed = self.is_recovering() || !self.can_do_without(index);
        let most = if is_needed { UNSURE_SPAN_MAX } else { CLAIM_UNREAD_MAX };
        if now - since >= most || error.kind == IoErrorKind::Vanished {
            return self.drop_out(index, "reading the claim of", error);
        }
        planted::seen("claim unread for a moment");
        self.lease.unread.borrow_mut().insert(id, since);
        self.members[index].is_serving()
    }

    /// A member has failed in a round; whether it still has a say.
    fn drop_out(&self, index: usize, doing: &str, error: IoError) -> bool {
        if !self.latched.get() {
            self.fail_member(index, doing, error);
        }
        self.members[index].is_serving()
    }

    /// The pool is another host's.
    fn lose_lease(&self, host: String) {
        planted::seen("lease lost");
        let what = format!(
            "host \"{host}\" has taken the pool over while this one did not keep it; nothing is written \
             from here any more"
        );
        self.event(EventKind::LeaseLost, what);
        *self.lease.lost_to.borrow_mut() = Some(host);
        self.stop_writing();
        self.gate.shut();
        self.lease.wake();
    }

    /// Tells other hosts that this one has closed the pool. Nothing may be under way any more.
    pub(crate) async fn release(&self) {
        let Some(mut own) = self.lease.own().filter(|_| !self.lease.is_lost()) else { return };
        if self.serving().any(|(_, member)| member.watched.given_up_count() > 0) {
            // What was given up may still arrive.
            return;
        }
        own.beat += 1;
        own.released = true;
        let round: Vec<usize> = self.serving().map(|(index, _)| index).collect();
        // Not past the gate: behind the lease it would hide the claim of whoever took the pool. Where it fails,
        // the pool counts as this host's, as after a crash.
        let write = |index: usize| {
            let device: Rc<dyn BlockDevice> = Rc::clone(&self.members[index].watched) as _;
            self.write_own(device, 0..2, &own)
        };
        self.in_round(&round, write).await;
    }
}

/// Renews the lease for as long as the pool is open.
async fn heartbeat(core: Rc<Core>) {
    let Some(own) = core.lease.own() else { return };
    let usual = Nanos::from(own.lease_ms) * MILLIS / LEASE_ROUNDS;
    let over = || core.log.is_retired() || core.lease.is_lost();
    while !over() {
        let began = core.rt.now();
        let counts = core.beat().await;
        // A round that took longer than the time that it brought is worth as much as none.
        let is_short = !counts || began < core.lease.short_until.get() || !core.gate.is_open();
        let pause = if is_short { usual.min(CLAIM_PAUSE) } else { usual };
        core.lease.changed.until_or(over, core.rt.sleep(pause)).await;
    }
    // Nobody renews it any more.
    core.gate.end();
}

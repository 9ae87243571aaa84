//! Who has a pool open: found out and put down before anything else is written.
//!
//! * Each opening writes a claim into both places of every member it opens with. It looks before: what is
//!   this host's own, or nobody's, it may take; another host's it may not, unless a person says so, and
//!   not even then if that host turns out to be alive.
//! * Between a look and a claim others may do the same, and no device offers to compare and write. So who
//!   takes what another host had last waits behind its claim and looks again ([`crate::lease`] has the
//!   other half): as long as anybody may use the pool who has not seen it (INV-80).
//! * A host takes what it had itself without waiting: a restart is not the time for it. Its first leases
//!   are short instead.
//! * Of several claims the highest number counts; a late heartbeat of an older one changes nothing.

use std::rc::Rc;

use forebay_device::{BlockDevice, Buf, IoError, IoErrorKind, Nanos, Runtime};

use crate::creation::random_id;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{CLAIM_BYTES, Claim, FormatError, Host, Superblock};
use crate::limits::{CLAIM_PAUSE, CLAIM_TIME, CLAIM_WAIT, LEASE_LOOKS, MILLIS};
use crate::membership::{OpenOptions, Opened, Opening};
use crate::planted::{self, Bug};
use crate::start::{MEND, Made};
use crate::unreadable::UNSURE_SPAN_MAX;
use crate::wait::all_of;

/// A claim that was made, and has not been seen to be contradicted.
pub(crate) struct Taken {
    pub claim: Claim,
    /// The number of the first claim that its start has made, see [`Claim::contradicts`].
    pub first: u64,
    /// When the last look at the other claims began.
    pub looked: Nanos,
    /// Until when leases are short.
    pub short_until: Nanos,
    /// The host that had it and was taken for dead.
    pub from: Option<Host>,
}

/// What was found of those who have a pool open.
#[derive(Debug, PartialEq, Eq)]
enum Holder {
    /// This host had it last; or nobody has claimed it yet.
    Own,
    /// Another one had it last and has closed it; or nobody can tell any more.
    Nobody,
    /// Another one has it.
    Other(Box<Claim>),
}

/// Where the claims of a pool's members stand.
pub(crate) fn places(superblock: &Superblock) -> Option<[u64; 2]> {
    Some([Claim::offset(superblock, 0)?, Claim::offset(superblock, 1)?])
}

/// The claims of one member. Whoever takes a pool writes both places before it counts, so one is enough.
pub(crate) async fn read_claims(
    device: &dyn BlockDevice,
    places: [u64; 2],
) -> std::result::Result<Vec<std::result::Result<Claim, FormatError>>, IoError> {
    let (mut found, mut failed) = (Vec::new(), None);
    for at in places {
        let outcome = device.read(at, Buf::new(CLAIM_BYTES)).await;
        match (outcome.result, outcome.buf) {
            (Ok(()), Some(buf)) => found.push(Claim::decode(&buf)),
            (result, _) => failed = result.err(),
        }
    }
    match failed {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// Writes a claim into some places of a device, without flushing.
pub(crate) async fn write_claim(
    device: &dyn BlockDevice,
    places: &[u64],
    claim: &Claim,
) -> std::result::Result<(), IoError> {
    let block = Buf::copy_of(&claim.encode()).freeze();
    for &at in places {
        device.write(at, block.clone()).done().await?;
    }
    Ok(())
}

impl Claim {
    /// Whether this says that who made `own` does not have the pool, or not alone.
    /// `first` is the number of the first claim that its start has made: one that lies over a later one may be of
    /// somebody who looked before the first.
    pub(crate) fn contradicts(&self, own: &Claim, first: u64) -> bool {
        self.claim != own.claim && (self.pool != own.pool || self.number >= first)
    }
}

/// What was found in the places of all members.
#[derive(Default)]
struct Seen {
    claims: Vec<Claim>,
    /// Whether in some of them something stands that was a claim.
    is_damaged: bool,
    /// What is wrong with an intact claim, whose writer may be using the pool.
    strange: Option<FormatError>,
}

/// Whether the newest claims were made by who was cut off before it had the pool: nobody has renewed one.
/// What was found by whoever made them is not known any more.
fn is_unfinished(claims: &[Claim]) -> bool {
    let newest = claims.iter().map(|claim| claim.number).max();
    newest.is_some() && claims.iter().all(|claim| Some(claim.number) != newest || claim.beat == 0)
}

/// Who has the pool, by what was found; `own` is who asks.
fn holder(Seen { claims, is_damaged, .. }: &Seen, own: &Host) -> Holder {
    let newest = claims.iter().map(|claim| claim.number).max();
    let newest = || claims.iter().filter(|claim| Some(claim.number) == newest);
    let released =
        |claim: &Claim| claims.iter().any(|other| other.claim == claim.claim && other.released);
    let is_known = newest().next().is_some() || !is_damaged;
    let is_own = |claim: &Claim| claim.host.is_same(own) || planted::is(Bug::ClaimOverlooked);
    if is_known && newest().all(is_own) {
        return Holder::Own;
    }
    let others = newest().filter(|claim| !claim.host.is_same(own) && !released(claim));
    match others.max_by_key(|claim| claim.beat) {
        Some(claim) => Holder::Other(Box::new(claim.clone())),
        None => Holder::Nobody,
    }
}

fn held(superblock: &Superblock, claim: &Claim, what: &str, hint: String, now: u64) -> Error {
    let Claim { host, beat_unix_s, .. } = claim;
    let ago = now.saturating_sub(*beat_unix_s);
    let what = format!(
        "pool \"{}\" is open on host \"{}\", which said so {ago} s ago{what}",
        superblock.name, host.name
    );
    Error::new(ErrorKind::Held, what).hint(hint)
}

/// One who is about to open a pool.
struct Claimant<'a> {
    rt: &'a Rc<dyn Runtime>,
    deadline: &'a Deadline,
    superblock: &'a Superblock,
    members: &'a [Opened],
    places: [u64; 2],
    host: &'a Host,
}

impl Claimant<'_> {
    async fn look(&self) -> Result<Seen> {
        let reads = self.members.iter().map(|member| self.claims_of(member));
        let mut seen = Seen::default();
        for found in all_of(reads).await {
            let found = found?;
            for claim in found {
                match claim {
                    Ok(claim) if claim.pool == self.superblock.pool => {
                        seen.claims.push(claim);
                    }
                    Err(
                        error @ (FormatError::FutureVersion { .. }
                        | FormatError::UnknownFeatures { .. }),
                    ) => {
                        let what = format!("who has the pool open cannot be read: {error}");
                        return Err(Error::new(ErrorKind::Future, what)
                            .hint("use the Forebay version that wrote it, or a later one"));
                    }
                    Err(FormatError::BadChecksum) => seen.is_damaged = true,
                    Err(error @ FormatError::Invalid { .. }) => seen.strange = Some(error),
                    _ => {}
                }
            }
        }
        Ok(seen)
    }

    /// The claims of one member, which it is given the time to return that it has in use. Nobody goes on without one that does not: a
    /// host that is about to leave the others behind may have told it alone.
    async fn claims_of(
        &self,
        member: &Opened,
    ) -> Result<Vec<std::result::Result<Claim, FormatError>>> {
        let until = self.rt.now() + UNSURE_SPAN_MAX;
        loop {
            match read_claims(&*member.device, self.places).await {
                Ok(found) => return Ok(found),
                Err(error) if error.kind != IoErrorKind::TimedOut && self.rt.now() < until => {
                    self.rt.sleep(CLAIM_PAUSE).await.result.ok();
                }
                Err(error) => {
                    let device = member.record.device;
                    let what = format!("reading who has the pool open from cache device {device}");
                    return Err(Error::io(what, error).hint(MEND));
                }
            }
        }
    }

    /// Watches a holder for as long as its lease.
    async fn watch(&self, claim: &Claim) -> Result<()> {
        let span = Nanos::from(claim.lease_ms) * MILLIS / LEASE_LOOKS;
        for _ in 0..LEASE_LOOKS {
            let _ = self.rt.sleep(span).await;
            let now = holder(&self.look().await?, self.host);
            if now != Holder::Other(Box::new(claim.clone())) {
                let what = " and is alive: its claim changed while it was watched";
                let hint = "stop the pool there first; nothing has been changed".to_owned();
                return Err(self.held(claim, what, hint));
            }
        }
        Ok(())
    }

    fn held(&self, claim: &Claim, what: &str, hint: String) -> Error {
        held(self.superblock, claim, what, hint, self.rt.unix_seconds())
    }

    fn strange(&self, error: &FormatError) -> Error {
        let name = &self.superblock.name;
        let what =
            format!("who has pool \"{name}\" open cannot be told from an intact claim: {error}");
        Error::new(ErrorKind::Damaged, what).hint(format!(
            "stop it on all other hosts, then `forebay pool import {name} --take-over`"
        ))
    }

    async fn write(&self, claim: &Claim) -> Result<()> {
        let one = |member: &'_ Opened| {
            let device = Rc::clone(&member.device);
            async move {
                write_claim(&*device, &self.places, claim).await?;
                device.flush().done().await
            }
        };
        let written = all_of(self.members.iter().map(one)).await;
        for (Opened { record, device, .. }, written) in self.members.iter().zip(written) {
            if let Err(error) = written {
                let what = format!("claiming the pool on cache device {}", record.device);
                let error = Error::io(what, error);
                let place = self.deadline.find(device).0;
                self.deadline.attempts().fail(place, |_| error.what.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    async fn take(&self, take_over: bool) -> Result<Taken> {
        let lease_ms = self.superblock.lease_ms();
        if take_over && let Holder::Other(claim) = holder(&self.look().await?, self.host) {
            self.watch(&claim).await?;
        }
        let mut looked = self.rt.now();
        let mut seen = self.look().await?;
        if self.rt.now() - looked > CLAIM_PAUSE {
            // One has taken its time, and what the others said is old by now.
            looked = self.rt.now();
            seen = self.look().await?;
        }
        let found = holder(&seen, self.host);
        if let Some(error) = seen.strange.as_ref().filter(|_| !take_over) {
            return Err(self.strange(error));
        }
        if let Holder::Other(claim) = &found
            && !take_over
        {
            let name = &self.superblock.name;
            let hint = format!(
                "stop it there: `forebay pool export {name}`; if that host is dead: `forebay pool import \
                 {name} --take-over`"
            );
            return Err(self.held(claim, "", hint));
        }
        let attempts = self.deadline.attempts();
        let newest = seen.claims.iter().map(|claim| claim.number).max().unwrap_or(0);
        let number = newest + 1;
        let earlier = attempts.claim().filter(|it| found == Holder::Own && it.number == newest);
        let first = earlier.map_or(number, |it| it.first);
        crate::sound::check_counter("number of the claim", number)?;
        let claim = Claim {
            pool: self.superblock.pool,
            claim: random_id(&**self.rt),
            number,
            beat: 0,
            beat_unix_s: self.rt.unix_seconds(),
            // Who was cut off here must find how long to wait.
            lease_ms: seen.claims.iter().map(|claim| claim.lease_ms).fold(lease_ms, u32::max),
            released: false,
            host: self.host.clone(),
        };
        let written = self.write(&claim).await;
        let (claimed, lease) = (self.rt.now(), claim.lease_ms);
        // One of this start that needed to wait for nobody is as good as one that was renewed.
        let is_unfinished = is_unfinished(&seen.claims) && !earlier.is_some_and(|it| it.is_free);
        let is_free = found == Holder::Own && !is_unfinished && seen.strange.is_none();
        let is_free = is_free && claimed - looked <= CLAIM_TIME;
        attempts.note_claim(Made { first, number, is_free });
        written?;
        let wait = match found {
            // Somebody may have begun to use it since the look, whoever had it then.
            _ if claimed - looked > CLAIM_TIME => Nanos::from(lease) * MILLIS,
            _ if seen.strange.is_some() => Nanos::from(lease) * MILLIS,
            Holder::Own if is_unfinished => Nanos::from(lease) * MILLIS,
            Holder::Own => 0,
            Holder::Nobody => CLAIM_WAIT,
            Holder::Other(_) => Nanos::from(lease) * MILLIS,
        };
        let mut short_until = claimed + CLAIM_WAIT;
        if wait > 0 && !planted::is(Bug::ClaimNotAwaited) {
            let _ = self.rt.sleep(wait).await;
            (looked, short_until) = (self.rt.now(), 0);
            let seen = self.look().await?;
            if let Some(error) = &seen.strange {
                return Err(self.strange(error));
            }
            if let Some(other) = seen.claims.iter().find(|other| other.contradicts(&claim, first)) {
                let what = " and claimed it at the same time";
                let hint = "try again on one of the two".to_owned();
                return Err(self.held(other, what, hint));
            }
        }
        let from = match found {
            Holder::Other(claim) => Some(claim.host),
            _ => None,
        };
        Ok(Taken { claim: Claim { lease_ms, ..claim }, first, looked, short_until, from })
    }
}

/// Claims a pool for a host; `None` if the pool has no room for claims.
///
/// # Errors
/// [`ErrorKind::Held`] if another host has it or claims it at the same time; [`ErrorKind::NeedsDecision`] for a
/// takeover without all members; [`ErrorKind::Future`], [`ErrorKind::Io`].
pub(crate) async fn take(
    rt: &Rc<dyn Runtime>,
    deadline: &Deadline,
    opening: &Opening,
    host: &Host,
    options: &OpenOptions,
) -> Result<Option<Taken>> {
    let superblock = &opening.superblock;
    let Some(places) = places(superblock) else { return Ok(None) };
    if options.take_over && !opening.missing.is_empty() && !options.accept_missing {
        let what = "a pool is taken over from another host only with all of its cache devices: that \
                    host may be using those that are missing here";
        return Err(Error::new(ErrorKind::NeedsDecision, what));
    }
    let members = &opening.members;
    let claimant = Claimant { rt, deadline, superblock, members, places, host };
    claimant.take(options.take_over).await.map(Some)
}

/// Takes back a claim behind which the pool could not be opened, if nobody has claimed it since. Nothing was
/// written behind it, and [`take`] has waited for all who had the pool before. Where it fails, the pool counts as
/// this host's, as after a crash.
pub(crate) async fn withdraw(opening: &Opening, Taken { claim: own, first, .. }: &Taken) {
    let Some(places) = places(&opening.superblock) else { return };
    let own = Claim { beat: own.beat + 1, released: true, ..own.clone() };
    let devices = opening.members.iter().map(|member| &member.device);
    for found in all_of(devices.clone().map(|device| read_claims(&**device, places))).await {
        let is_own = |claim: &Claim| !claim.contradicts(&own, *first);
        if !found.is_ok_and(|claims| claims.iter().flatten().all(is_own)) {
            return;
        }
    }
    let write = |device: &Rc<dyn BlockDevice>| {
        let (device, own) = (Rc::clone(device), own.clone());
        async move {
            write_claim(&*device, &places, &own).await?;
            device.flush().done().await
        }
    };
    all_of(devices.map(write)).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PoolId;

    fn host(id: u8, boot: u8, name: &str) -> Host {
        Host { id: [id; 16], boot: [boot; 16], name: name.to_owned() }
    }

    fn claim(number: u64, id: u8, host: &Host, released: bool) -> Claim {
        let (claim, host) = ([id; 16], host.clone());
        let (pool, beat, beat_unix_s, lease_ms) = (PoolId([1; 16]), 0, 0, 1000);
        Claim { pool, claim, number, beat, beat_unix_s, lease_ms, released, host }
    }

    #[test]
    fn a_host_has_what_it_had_last_and_nobody_what_was_released() {
        let (own, other) = (host(1, 1, "own"), host(2, 1, "other"));
        let old = claim(7, 1, &other, false);
        let held = |claim: &Claim| Holder::Other(Box::new(claim.clone()));
        let holder = |claims: &[&Claim], is_damaged| {
            let claims = claims.iter().map(|&claim| claim.clone()).collect();
            holder(&Seen { claims, is_damaged, strange: None }, &own)
        };
        assert_eq!((holder(&[], false), holder(&[], true)), (Holder::Own, Holder::Nobody));
        assert_eq!(holder(&[&old], false), held(&old));
        assert_eq!(holder(&[&claim(7, 1, &other, true), &old], false), Holder::Nobody);
        let newer = claim(8, 2, &own, false);
        assert_eq!(holder(&[&old, &newer], true), Holder::Own);
        // Two who claimed at the same time.
        let same = claim(8, 3, &other, false);
        assert_eq!(holder(&[&newer, &same], false), held(&same));
        let contradicts = |claim: &Claim, own: &Claim| claim.contradicts(own, own.number);
        assert!(contradicts(&same, &newer) && contradicts(&newer, &same));
        assert!(!contradicts(&old, &newer) && contradicts(&newer, &old));
        assert!(old.contradicts(&newer, 7), "its start had that number before");
    }

    #[test]
    fn a_copy_of_a_machine_is_another_one() {
        let own = host(1, 1, "own");
        assert!(own.is_same(&host(1, 2, "own")), "it was started again");
        assert!(own.is_same(&host(1, 1, "renamed")));
        assert!(!own.is_same(&host(1, 2, "copy")) && !own.is_same(&host(2, 1, "own")));
    }
}

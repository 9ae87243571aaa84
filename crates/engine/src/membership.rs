//! Which members a pool opens with: the decision table of the opening, and what may be believed of
//! the log once members are gone.
//!
//! * A pool goes on without a member only in a new epoch, which is durable on the members that are
//!   left and in the witness before recovery writes anything else (INV-19).
//! * A device that the newest epoch does not name is reported and not used, whatever it holds.
//!
//! | row | one line of descent | newest epoch known | members missing | a volume may be dirty | loss accepted | decision |
//! |---|---|---|---|---|---|---|
//! | A | yes | yes | none | - | - | open |
//! | B | yes | yes | fewer than copies | - | - | open in a new epoch; nothing is lost |
//! | C | yes | yes | more | no | - | open in a new epoch; misses |
//! | D | yes | yes | more | yes | no | needs a decision |
//! | E | yes | yes | more | yes | yes | open in a new epoch; what is lost is named |
//! | F | yes | no | - | - | no | needs a decision |
//! | G | yes | no | - | - | yes | open in an epoch that no other can have |
//! | H | no | - | - | - | - | needs a decision: which devices are offered |
//!
//! Why each is safe stands in `docs/internals/recovery.md`.

use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::BlockDevice;

use crate::error::{Error, ErrorKind, Result};
use crate::event::{EventKind, Subject};
use crate::format::{Host, MemberRecord, MemberState, Root, Superblock, Witness as WitnessFile};
use crate::ids::{DeviceId, SegmentId};
use crate::planted::{self, Bug};
use crate::superblock::{Slots, find_superblock};
use crate::witness::{Witness, unreadable};

/// What a person may say when a pool is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Open although members are missing whose loss may cost data. What is lost is told by events
    /// and by [`crate::RecoveryReport`]; the members that are missing are never taken back.
    pub accept_missing: bool,
    /// Take the pool from a host that has it open and is dead: one that is alive is found out, and the
    /// pool stays with it.
    pub take_over: bool,
    /// Who opens it. Without one nobody is told, and nobody who has it open is noticed.
    pub host: Option<Host>,
}

/// How many of the newest epoch's members are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    None,
    /// Fewer than the smallest copy count of any set that may hold dirty or written data.
    Covered,
    More,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Facts {
    /// No two devices, and no device and the witness, give one epoch different members, and no device's older epoch lacks a
    /// member of the newest that was one by then; or the witness names the newest.
    one_line: bool,
    /// All members of the newest epoch are there and were read in full, or more than half of them
    /// say that epoch, or the witness names it; and the witness knows no newer one, nor a newer state of that, nor an older one
    /// without a member that was one by then.
    known: bool,
    missing: Missing,
    may_be_dirty: bool,
    accepted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Open,
    OpenWithout,
    OpenClean,
    OpenLosing,
    OpenUnknown,
    Undecided,
    Unknown,
    Forked,
}

/// Decides by the module's table.
fn decide(facts: Facts) -> Decision {
    let Facts { one_line, known, missing, may_be_dirty, accepted } = facts;
    match (one_line, known, missing) {
        (false, ..) => Decision::Forked,
        (true, false, _) if accepted => Decision::OpenUnknown,
        (true, false, _) => Decision::Unknown,
        (true, true, Missing::None) => Decision::Open,
        (true, true, Missing::Covered) => Decision::OpenWithout,
        (true, true, Missing::More) if !may_be_dirty => Decision::OpenClean,
        (true, true, Missing::More) if accepted => Decision::OpenLosing,
        (true, true, Missing::More) => Decision::Undecided,
    }
}

/// A device with a superblock of the pool.
struct Found {
    slots: Slots,
    device: Rc<dyn BlockDevice>,
}

/// A member that the pool opens with, as it was found.
pub(crate) struct Opened {
    pub record: MemberRecord,
    pub slots: Slots,
    pub device: Rc<dyn BlockDevice>,
}

/// What a pool opens with.
pub(crate) struct Opening {
    /// The superblock that counts, as it was found.
    pub superblock: Superblock,
    /// In the order of the superblock's members.
    pub members: Vec<Opened>,
    /// The members to go on without; empty if all are there.
    pub missing: BTreeSet<DeviceId>,
    /// The epoch to go on in.
    pub epoch: u64,
    /// Whether the witness names it already.
    pub witnessed: bool,
    /// Whether it calls a volume clean that may be dirty.
    pub understated: bool,
    /// Whether a person agreed to what is lost.
    pub accepted: bool,
    /// What a person should know.
    pub notes: Vec<(EventKind, Subject, String)>,
}

/// The devices that the epoch of a superblock names.
fn named(superblock: &Superblock) -> BTreeSet<DeviceId> {
    superblock.present().map(|member| member.device).collect()
}

/// Reads the superblocks of all devices.
async fn look(devices: Vec<Rc<dyn BlockDevice>>) -> Result<Vec<Found>> {
    let mut found: Vec<Found> = Vec::new();
    for device in devices {
        let slots = find_superblock(&*device).await?;
        let superblock = &slots.superblock;
        if let Some(Slots { superblock: first, .. }) = found.first().map(|found| &found.slots)
            && first.pool != superblock.pool
        {
            return Err(Error::new(
                ErrorKind::Refused,
                format!(
                    "the cache devices are of two pools: \"{}\" ({}) and \"{}\" ({})",
                    first.name, first.pool, superblock.name, superblock.pool
                ),
            )
            .hint("open one pool at a time"));
        }
        if found.iter().any(|other| other.slots.superblock.device == superblock.device) {
            return Err(Error::new(
                ErrorKind::Refused,
                format!("two cache devices claim to be {}", superblock.device),
            )
            .hint("one is given twice, or is a copy of the other: leave it out"));
        }
        found.push(Found { slots, device });
    }
    Ok(found)
}

/// The witness, and what is to be said of it.
///
/// # Errors
/// [`ErrorKind::Future`] for a later format: it may say that these devices are stale.
async fn recall(
    pool: &Superblock,
    witness: &dyn Witness,
) -> Result<(Option<WitnessFile>, Option<String>)> {
    let bytes = match witness.load().await {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            return Ok((None, Some("there is no witness; a new one is written".to_owned())));
        }
        Err(reason) => return Ok((None, Some(format!("the witness cannot be read: {reason}")))),
    };
    match WitnessFile::decode(&bytes) {
        Ok(known) if known.pool != pool.pool => {
            Ok((None, Some("the witness is of another pool; a new one is written".to_owned())))
        }
        Ok(known) => Ok((Some(known), None)),
        Err(error) => match unreadable(error) {
            error if error.kind == ErrorKind::Future => {
                Err(error.hint("use the Forebay version that wrote it, or a later one"))
            }
            error => Ok((None, Some(format!("{}; a new one is written", error.what)))),
        },
    }
}

/// Whether an epoch with these members may be one that led to a superblock: of the same line, it names each of its members
/// that was one by then. If it does not, the one that is missing there was left behind, and has gone on by itself.
fn may_come_before(epoch: u64, members: &BTreeSet<DeviceId>, then: &Superblock) -> bool {
    let mut by_then = then.present().filter(|member| member.joined_epoch <= epoch);
    epoch >= then.epoch || by_then.all(|member| members.contains(&member.device))
}

/// Whether the witness knows of an epoch, however old, that left members of this superblock behind.
fn left_behind(witness: &WitnessFile, superblock: &Superblock) -> bool {
    !may_come_before(witness.epoch, &witness.members.iter().copied().collect(), superblock)
}

/// Whether the witness goes with a later superblock of this epoch, which was durable on all members before: none of these is as
/// it was then.
fn set_back(witness: &WitnessFile, superblock: &Superblock) -> bool {
    let is_later = witness.epoch == superblock.epoch && witness.generation > superblock.generation;
    is_later && !planted::is(Bug::OlderCopyBelieved)
}

/// Whether a witness, of before another machine had the pool, calls a volume clean that may be dirty.
fn understates(witness: &WitnessFile, superblock: &Superblock) -> bool {
    let is_clean = |id| witness.volumes.iter().any(|known| known.id == id && !known.may_be_dirty);
    superblock.volumes.iter().any(|volume| volume.may_be_dirty && is_clean(volume.id))
}

/// The superblock that counts, and whether all that was found descends from one line. Of two
/// groups that each went on without the other, the witness may name one.
fn newest(found: &[Found], witness: Option<&WitnessFile>) -> Option<(Superblock, bool)> {
    let epoch = found.iter().map(|f| f.slots.superblock.epoch).max()?;
    let latest = || found.iter().map(|f| &f.slots.superblock).filter(|s| s.epoch == epoch);
    let of_witness: Option<BTreeSet<DeviceId>> =
        witness.filter(|w| w.epoch == epoch).map(|w| w.members.iter().copied().collect());
    let agrees = |s: &Superblock| of_witness.as_ref().is_none_or(|members| *members == named(s));
    let vouched = latest().filter(|s| agrees(s)).max_by_key(|s| s.generation);
    let Some(chosen) = vouched else {
        return latest().max_by_key(|s| s.generation).map(|s| (s.clone(), false));
    };
    let older = || found.iter().map(|f| &f.slots.superblock);
    let one_line = of_witness.is_some()
        || latest().all(|s| named(s) == named(chosen))
            && older().all(|s| may_come_before(s.epoch, &named(s), chosen));
    Some((chosen.clone(), one_line))
}

/// Refuses a superblock unless a device both of whose slots could be read shows a state as new: an
/// update that is in an unreadable slot only has not ended, so nothing relies on it.
fn check_readable(newest: &Superblock, found: &[Found]) -> Result<()> {
    let as_new = |s: &Superblock| {
        s.epoch == newest.epoch && s.generation == newest.generation && named(s) == named(newest)
    };
    if found.iter().any(|f| f.slots.complete && as_new(&f.slots.superblock)) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Io,
        format!(
            "a superblock slot of cache device {} cannot be read, and may be the newer one",
            newest.device
        ),
    )
    .hint("nothing has been changed; try again, or mend the device"))
}

/// Decides what a pool opens with.
///
/// # Errors
/// [`ErrorKind::Io`] for a superblock slot that cannot be read and may be the newest,
/// [`ErrorKind::NeedsDecision`] by the module's table, [`ErrorKind::Refused`] for devices that do
/// not go together, [`ErrorKind::Future`] for a later format, and what reading superblocks gives. Nothing has been changed.
pub(crate) async fn assess(
    devices: Vec<Rc<dyn BlockDevice>>,
    witness: &dyn Witness,
    options: &OpenOptions,
) -> Result<Opening> {
    let found = look(devices).await?;
    let Some(first) = found.first() else {
        return Err(Error::new(ErrorKind::Invalid, "no cache device is given"));
    };
    let (witness, note) = recall(&first.slots.superblock, witness).await?;
    let Some((superblock, one_line)) = newest(&found, witness.as_ref()) else {
        return Err(Error::new(ErrorKind::Invalid, "no cache device is given"));
    };
    check_readable(&superblock, &found)?;
    let facts = facts(&superblock, &found, witness.as_ref(), one_line, options);
    let missing: BTreeSet<DeviceId> = named(&superblock)
        .into_iter()
        .filter(|id| !found.iter().any(|f| f.slots.superblock.device == *id))
        .collect();
    let decision = decide(facts);
    let known_epoch = witness.as_ref().map_or(0, |w| w.epoch).max(superblock.epoch);
    let epoch = match decision {
        Decision::Open => Some(superblock.epoch),
        Decision::OpenWithout | Decision::OpenClean | Decision::OpenLosing => {
            superblock.epoch.checked_add(1)
        }
        // One is left out for those that went on without these members and may still be about.
        Decision::OpenUnknown => known_epoch.checked_add(2),
        Decision::Undecided => return Err(undecided(&superblock, &missing)),
        Decision::Unknown => {
            return Err(unknown(&superblock, &missing, known_epoch, witness.as_ref()));
        }
        Decision::Forked => return Err(forked(&superblock)),
    };
    let epoch = epoch.filter(|_| missing.len() < named(&superblock).len());
    let epoch = epoch.ok_or_else(|| {
        Error::new(ErrorKind::Damaged, "the superblock names no member that is there")
            .hint("see it with `forebay inspect`; nothing has been changed")
    })?;
    let mut notes: Vec<_> =
        note.into_iter().map(|note| (EventKind::WitnessUnknown, Subject::Pool, note)).collect();
    notes.extend(missing.iter().map(|id| {
        let what =
            format!("cache device {id} is missing; the pool goes on without it in epoch {epoch}");
        (EventKind::MemberMissing, Subject::Member(*id), what)
    }));
    if matches!(decision, Decision::OpenLosing | Decision::OpenUnknown) {
        let what = accepted_note(&superblock, missing.is_empty());
        notes.push((EventKind::LossAccepted, Subject::Pool, what));
    }
    let mut members = Vec::new();
    for Found { slots, device } in found {
        let own = &slots.superblock;
        let record = superblock.present().find(|member| member.device == own.device);
        match record {
            Some(record) => {
                members.push(Opened { record: *record, slots, device });
            }
            None => {
                let what = format!(
                    "cache device {} is of epoch {}, the pool is in epoch {epoch} and has gone on \
                     without it: it is not used; it must be added anew",
                    own.device, own.epoch
                );
                notes.push((EventKind::MemberStale, Subject::Member(own.device), what));
            }
        }
    }
    let place = |id: DeviceId| superblock.members.iter().position(|m| m.device == id);
    members.sort_by_key(|member| place(member.record.device));
    let accepted = options.accept_missing;
    let witnessed = witness.as_ref().is_some_and(|w| w.epoch == epoch);
    let understated = witness.is_some_and(|w| understates(&w, &superblock));
    Ok(Opening { superblock, members, missing, epoch, witnessed, understated, accepted, notes })
}

fn facts(
    superblock: &Superblock,
    found: &[Found],
    witness: Option<&WitnessFile>,
    one_line: bool,
    options: &OpenOptions,
) -> Facts {
    let members = named(superblock);
    let there = |f: &&Found| members.contains(&f.slots.superblock.device);
    let count = found.iter().filter(there).count();
    // One that was named and has not heard of it yet is no evidence that nobody went further; nor
    // is one that may have gone further itself, in a slot that cannot be read.
    let current = found
        .iter()
        .filter(there)
        .filter(|f| f.slots.complete && f.slots.superblock.epoch == superblock.epoch)
        .count();
    let heard = found.iter().filter(there).filter(|f| f.slots.complete).count() == members.len();
    let overtaken = witness.is_some_and(|w| {
        w.epoch > superblock.epoch || set_back(w, superblock) || left_behind(w, superblock)
    });
    let witnessed = witness.is_some_and(|w| w.epoch == superblock.epoch);
    let missing = members.len() - count;
    Facts {
        one_line,
        known: !overtaken && (heard || 2 * current > members.len() || witnessed),
        missing: superblock.missing(missing),
        may_be_dirty: superblock.may_be_dirty(),
        accepted: options.accept_missing,
    }
}

fn list(ids: &BTreeSet<DeviceId>) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The volumes that may be dirty, or those that are not, for people.
fn volumes_that(superblock: &Superblock, may_be_dirty: bool) -> String {
    let volumes = superblock.volumes.iter().filter(|v| v.may_be_dirty == may_be_dirty);
    volumes.map(|v| format!("\"{}\"", v.name)).collect::<Vec<_>>().join(", ")
}

fn accepted_note(superblock: &Superblock, all_there: bool) -> String {
    if all_there {
        "as accepted, the pool opens although its cache devices may be as they were at an earlier time: what was written \
         since and not destaged is lost, and older data may be read instead"
            .to_owned()
    } else if superblock.may_be_dirty() {
        format!(
            "as accepted, the pool opens although members are missing: writes to {} that only \
             they held are lost, and older data may be read instead",
            volumes_that(superblock, true)
        )
    } else {
        "as accepted, the pool opens although others may have gone on without it".to_owned()
    }
}

fn undecided(superblock: &Superblock, missing: &BTreeSet<DeviceId>) -> Error {
    let safe = match volumes_that(superblock, false) {
        none if none.is_empty() => none,
        some => format!("; nothing is missing of {some}"),
    };
    Error::new(
        ErrorKind::NeedsDecision,
        format!(
            "pool \"{}\" lacks cache device {}, which may hold the only copy of writes to volume {}{safe}",
            superblock.name,
            list(missing),
            volumes_that(superblock, true)
        ),
    )
    .hint(format!(
        "attach it; or accept that these writes are lost and open without it for good: `forebay pool import {} \
         --accept-missing`",
        superblock.name
    ))
}

fn unknown(
    superblock: &Superblock,
    missing: &BTreeSet<DeviceId>,
    known_epoch: u64,
    witness: Option<&WitnessFile>,
) -> Error {
    let name = &superblock.name;
    let what = if let Some(left) = witness.filter(|w| left_behind(w, superblock)) {
        format!(
            "pool \"{name}\" went on in epoch {}, as the witness knows, without a cache device that has gone on by \
             itself since, up to epoch {}: all that it holds may be stale",
            left.epoch, superblock.epoch
        )
    } else if witness.is_some_and(|w| set_back(w, superblock)) {
        planted::seen("start: all members are older copies");
        format!(
            "the cache devices of pool \"{name}\" are as they were at an earlier time, as by copies or snapshots of them: the \
             witness knows a later state of epoch {}, and all that they hold may be stale",
            superblock.epoch
        )
    } else if known_epoch > superblock.epoch {
        format!(
            "pool \"{name}\" went on in epoch {known_epoch} without these cache devices, which \
             know epoch {}: all that they hold may be stale",
            superblock.epoch
        )
    } else if missing.is_empty() {
        format!(
            "a superblock slot of a cache device of pool \"{name}\" cannot be read, and neither the \
             witness nor more than half of the members say that epoch {} is the newest",
            superblock.epoch
        )
    } else {
        format!(
            "pool \"{name}\" lacks cache device {}: neither the witness nor more than half of the \
             members say that epoch {} is the newest, and all that is here may be stale",
            list(missing),
            superblock.epoch
        )
    };
    Error::new(ErrorKind::NeedsDecision, what).hint(format!(
        "attach the cache devices of the newest epoch; or accept that data may be stale: `forebay pool import \
         {name} --accept-missing`"
    ))
}

fn forked(superblock: &Superblock) -> Error {
    Error::new(
        ErrorKind::NeedsDecision,
        format!(
            "pool \"{}\" has gone on in two ways: what its cache devices say of members up to \
             epoch {} does not go together",
            superblock.name, superblock.epoch
        ),
    )
    .hint("offer only the cache devices of the group whose data counts; erase the others")
}

impl Superblock {
    /// The members that the epoch names.
    pub fn present(&self) -> impl Iterator<Item = &MemberRecord> {
        self.members.iter().filter(|member| member.state == MemberState::Present)
    }

    /// Forgets the records of members that are gone, and that they had numbers.
    pub(crate) fn retire(&mut self, is_gone: impl Fn(&MemberRecord) -> bool) {
        let retired = self.members.iter().filter(|record| is_gone(record));
        let end = retired.map(|record| record.segments.end()).max();
        self.retired_end = self.retired_end.max(end.unwrap_or(0));
        self.members.retain(|record| !is_gone(record));
    }

    /// The number behind the highest that any member ever had.
    pub(crate) fn given_end(&self) -> u32 {
        let ends = self.members.iter().map(|record| record.segments.end());
        ends.max().unwrap_or(0).max(self.retired_end)
    }

    /// Whether who has a number now, or had it last, had it in this epoch. Of a number in no record nobody knows who had it: no set
    /// in use is known by it.
    pub(crate) fn is_same_since(&self, number: SegmentId, epoch: u64) -> bool {
        let holders = self.members.iter().filter(|it| it.segments.place_of(number).is_some());
        let joined = holders.map(|it| it.joined_epoch).max();
        joined.is_some_and(|joined| joined <= epoch || planted::is(Bug::NumbersMistaken))
    }

    /// Members that were lost and whose part in the copies has not been made good since.
    pub(crate) fn failed_count(&self) -> usize {
        self.members.iter().filter(|member| member.state == MemberState::Failed).count()
    }

    /// Whether fewer members were lost than dirty data has copies.
    pub(crate) fn is_covered(&self) -> bool {
        self.failed_count() < usize::from(self.dirty_copies)
    }

    fn missing(&self, count: usize) -> Missing {
        match count {
            0 => Missing::None,
            n if self.failed_count() + n < usize::from(self.dirty_copies) => Missing::Covered,
            _ => Missing::More,
        }
    }

    /// Whether a running pool goes on by itself without so many of its members: as a start does.
    pub(crate) fn may_lose(&self, count: usize) -> bool {
        let facts = Facts {
            one_line: true,
            known: true,
            missing: self.missing(count),
            may_be_dirty: self.may_be_dirty(),
            accepted: false,
        };
        let alone = matches!(decide(facts), Decision::OpenWithout | Decision::OpenClean);
        alone && count < self.present().count()
    }

    /// The superblock of a start that goes on without these members in this epoch.
    pub(crate) fn started(mut self, missing: &BTreeSet<DeviceId>, epoch: u64) -> Superblock {
        self.start_number += 1;
        if self.epoch != epoch {
            self.whole_since = 0;
        }
        self.epoch = epoch;
        self.own_roots = true;
        self.lose(missing);
        self
    }

    /// Notes that these members are lost.
    pub(crate) fn lose(&mut self, lost: &BTreeSet<DeviceId>) {
        for member in self.members.iter_mut().filter(|member| lost.contains(&member.device)) {
            member.state = MemberState::Failed;
            self.whole_since = 0;
        }
    }

    /// Notes that these members, which were never written to, are none, and miss nobody. Whose place they were to
    /// take is as it was `before`.
    pub(crate) fn withdraw(&mut self, unused: &BTreeSet<DeviceId>, before: &Superblock) {
        if unused.is_empty() {
            return;
        }
        for member in &mut self.members {
            if unused.contains(&member.device) {
                (member.state, member.replaced) = (MemberState::Removed, true);
            } else if let Some(before) = before.members.iter().find(|m| m.device == member.device) {
                member.replaced = before.replaced;
            }
        }
    }

    /// Whether the log may hold what an origin lacks.
    pub fn may_be_dirty(&self) -> bool {
        self.volumes.iter().any(|volume| volume.may_be_dirty)
    }

    /// Whether the pool went on without a member that may still be about.
    pub(crate) fn has_lost_members(&self) -> bool {
        self.present().count() < self.members.len()
    }
}

/// What may be believed of images and records, given what was lost with members since the root was
/// written.
///
/// | row | epochs since the root | members lost | last stop | a volume may be dirty | trust |
/// |---|---|---|---|---|---|
/// | A | none | - | - | - | all |
/// | B | one | fewer than copies | - | - | what is found |
/// | C | one | more | clean | - | what is found |
/// | D | one | more | a crash | yes | what is owed |
/// | E | several | - | - | yes | what is owed |
/// | F | one | more | a crash | no | nothing |
/// | G | several | - | - | no | nothing |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// No member was lost since the root.
    All,
    /// No record that is lost has overtaken one that is found, but for clean data that was there.
    Found,
    /// Records that are lost may have overtaken clean data.
    Owed,
    /// The origins have everything, and what is found may have been overtaken.
    Nothing,
}

/// Decides by the table of [`Trust`].
fn trust(epochs: u64, covered: bool, clean_stop: bool, may_be_dirty: bool) -> Trust {
    match epochs {
        0 => Trust::All,
        1 if covered || clean_stop => Trust::Found,
        _ if may_be_dirty => Trust::Owed,
        _ => Trust::Nothing,
    }
}

/// What may be believed of what a root names and of the records behind it.
pub(crate) fn trust_in(superblock: &Superblock, root: &Root, clean_stop: bool) -> Trust {
    let whole = superblock.whole_since > 0 && root.epoch >= superblock.whole_since;
    let epochs = if whole { 0 } else { superblock.epoch.saturating_sub(root.epoch) };
    trust(epochs, superblock.is_covered(), clean_stop, superblock.may_be_dirty())
}

#[cfg(test)]
#[path = "membership_tests.rs"]
mod tests;

//! Deliberate bugs, so that the simulator's alarm itself is tested. Without the feature `planted`
//! every question answers no and costs nothing.

/// A bug that the simulator must catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A flush leaves out the second member.
    FlushSkipsSecondMember,
    /// A set is discarded and reopened without waiting for a root.
    SegmentReusedBeforeRoot,
    /// A set is made free while members may still have the header of the life that images name.
    LetGoStillNamed,
    /// A start believes that free segments have no header, as it reads none.
    HeadersBelievedGone,
    /// A start takes what an image says of a set for what is in it, although it was opened again since.
    OpenedSinceBelieved,
    /// A population is published although a writer came meanwhile.
    PopulationAfterWrite,
    /// A direct write of cached blocks logs no tombstone.
    TombstoneForgotten,
    /// Recovery adopts a record whose data does not match its checksums.
    TornRecordAdopted,
    /// Destaged blocks count as clean without an origin flush.
    ReclaimWithoutOriginFlush,
    /// The footer is written while its records may still be volatile.
    FooterBeforeFlush,
    /// The elevator takes records that no flush covers yet.
    DestageUnflushed,
    /// An append that was written durably counts as a flush of those beside it.
    DurableAppendCoversAll,
    /// What is to be written durably is written as anything else.
    DurableAppendVolatile,
    /// The elevator begins a write although one of the same blocks is under way.
    DestageOverlapping,
    /// A shard's image claims appends that are still in flight.
    WatermarkOverInflight,
    /// Recovery takes provisional data for clean.
    ProvisionalTakenForClean,
    /// Overlapping writers do not wait for each other.
    RangeLockSkipped,
    /// The root is written without flushing what it names.
    RootBeforeImages,
    /// FLUSH is acknowledged without flushing.
    FlushAcknowledgedEarly,
    /// A direct write goes to the origin while the tombstone is still volatile.
    TombstoneNotDurable,
    /// What another reactor reads by itself is not kept from being reused.
    RemoteHitUnpinned,
    /// A start takes what was open at a crash, and has one copy, for durable.
    OpenSetsBelieved,
    /// What a member failed at counts before an epoch without it is durable.
    EpochNotAwaited,
    /// The copies on a member that failed stay in the set table.
    FailedMemberKept,
    /// A lost member's part counts as made good although nothing was copied again.
    RebuildForgotten,
    /// What is written over dirty data is no more urgent than that, with however few copies.
    ProtectionWithoutEnd,
    /// Volumes are written back again as soon as there are members enough.
    WrittenBackTooSoon,
    /// A frame of RAM is read on after its block was written.
    RamFrameSurvivesWrite,
    /// What was read before a write is put into RAM after it.
    RamFillOvertaken,
    /// A volume is taken out of the pool before its origin has everything.
    RemovedWhileDirty,
    /// A start goes on with a witness that calls clean what is dirty.
    WitnessUnderstates,
    /// A volume is noted as clean whatever its origin lacks.
    NotedWhileDirty,
    /// What is dropped because its origin was changed is gone from memory only.
    ForgottenVolatile,
    /// A volume's new size is told before it is durable.
    GrownBeforeDurable,
    /// More copies of dirty data are promised while some of it has fewer.
    CopiesPromisedEarly,
    /// Copies are given back although the headers of their sets go on to name them.
    SurplusStillNamed,
    /// A member leaves before what it holds has gone to the others.
    DepartedEarly,
    /// The others hear of a new member before its superblock is written.
    JoinedUnprepared,
    /// No fault: a start finds no room to append anything again.
    StartWithoutRoom,
    /// A member on its way in or out does not hear that another one was left behind.
    PassersUntold,
    /// Sets are opened in what is new of a member before its superblocks say so.
    ExtendedBeforeDurable,
    /// Superblocks count on the size of a device that a power cut can still take back.
    SizeNotFlushed,
    /// A spare that is taken loses its mark before it has a superblock.
    SpareErased,
    /// A new member gets the numbers of one that is gone although sets are known by them.
    NumbersReused,
    /// A number in a header is taken for that of whoever has it now, and may be one that another member had.
    NumbersMistaken,
    /// A start that goes on without a member that failed it accepts what is lost with that.
    LossAcceptedUnasked,
    /// A start begins its epoch before it has read what it goes on with.
    BegunUnread,
    /// A member that has been set back to an earlier state is believed.
    OlderCopyBelieved,
    /// A scrub takes the bytes of the first copy for good.
    HealedFromBadCopy,
    /// What a reader could not read in some copy waits for the next scrub.
    HurtForgotten,
    /// A scrub writes a block again instead of moving it: over what is newer.
    HealedAsWrite,
    /// A request that was cut before its volume grew writes around the log what may be cached now.
    TailOfOldSize,
    /// A stream of writes goes past the cache although the log owes the origin what is below it.
    StreamPastDirty,
    /// What is reserved for a volume is taken by others.
    ReservationForgotten,
    /// A volume holds more than its limit.
    LimitForgotten,
    /// What is lost with a member is read from the origin, which has it as it was before.
    LossNotMarked,
    /// What is good in no copy is read from the origin, which has it as it was before.
    DamageNotLost,
    /// What is good in no copy is told to be lost before that is durable.
    DamageNotDurable,
    /// A write that waits gets its place in the log before a fact that was to stand before it.
    WriteBeforeFact,
    /// An epoch without what only a lost member held begins with nothing but a root of the one before.
    LossNotDurable,
    /// Records on their way into the log count although a member was lost that they were written to.
    InFlightKept,
    /// Requests go out although the lease has ended.
    LeaseIgnored,
    /// The heartbeat does not look whether somebody else has claimed the pool.
    ClaimUnchecked,
    /// Who takes a pool over uses it right behind its claim.
    ClaimNotAwaited,
    /// An opening takes whoever has claimed the pool for itself.
    ClaimOverlooked,
    /// A stripe is written as a whole although something goes straight to it meanwhile.
    WholeStripeUnguarded,
    /// A write of a stream is answered although its end is still to be joined with what follows.
    JoinedAnsweredEarly,
    /// Writes are admitted however much memory the index has, and nothing clean gives way.
    IndexBoundForgotten,
}

/// Those that the simulator's seeds reach, with the names used on its command line. Volumes are
/// removed and grow, the power goes while a member grows, a second member is lost, streams meet what is owed, and the power goes right behind a
/// loss, by scripts only (`crates/sim/tests/hazards`).
pub const BUGS: &[(&str, Bug)] = &[
    ("flush-skips-second-member", Bug::FlushSkipsSecondMember),
    ("segment-reused-before-root", Bug::SegmentReusedBeforeRoot),
    ("let-go-still-named", Bug::LetGoStillNamed),
    ("opened-since-believed", Bug::OpenedSinceBelieved),
    ("population-after-write", Bug::PopulationAfterWrite),
    ("tombstone-forgotten", Bug::TombstoneForgotten),
    ("torn-record-adopted", Bug::TornRecordAdopted),
    ("reclaim-without-origin-flush", Bug::ReclaimWithoutOriginFlush),
    ("footer-before-flush", Bug::FooterBeforeFlush),
    ("destage-unflushed", Bug::DestageUnflushed),
    ("destage-overlapping", Bug::DestageOverlapping),
    ("watermark-over-inflight", Bug::WatermarkOverInflight),
    ("provisional-taken-for-clean", Bug::ProvisionalTakenForClean),
    ("range-lock-skipped", Bug::RangeLockSkipped),
    ("root-before-images", Bug::RootBeforeImages),
    ("flush-acknowledged-early", Bug::FlushAcknowledgedEarly),
    ("tombstone-not-durable", Bug::TombstoneNotDurable),
    ("remote-hit-unpinned", Bug::RemoteHitUnpinned),
    ("open-sets-believed", Bug::OpenSetsBelieved),
    ("failed-member-kept", Bug::FailedMemberKept),
    ("ram-frame-survives-write", Bug::RamFrameSurvivesWrite),
    ("ram-fill-overtaken", Bug::RamFillOvertaken),
    ("healed-from-bad-copy", Bug::HealedFromBadCopy),
    ("loss-not-marked", Bug::LossNotMarked),
    ("damage-not-lost", Bug::DamageNotLost),
    ("claim-overlooked", Bug::ClaimOverlooked),
    ("older-copy-believed", Bug::OlderCopyBelieved),
    ("durable-append-volatile", Bug::DurableAppendVolatile),
    ("noted-while-dirty", Bug::NotedWhileDirty),
];

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
    static SEEN: std::cell::RefCell<std::collections::BTreeMap<&'static str, u64>> =
        const { std::cell::RefCell::new(std::collections::BTreeMap::new()) };
}

/// Plants `bug` (or none) for the engines of this thread.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.with(|planted| planted.set(bug));
}

/// Whether `bug` is planted.
#[inline]
pub(crate) fn is(bug: Bug) -> bool {
    #[cfg(feature = "planted")]
    return PLANTED.with(|planted| planted.get() == Some(bug));
    #[cfg(not(feature = "planted"))]
    {
        let _ = bug;
        false
    }
}

/// Notes that something rare has happened, so that the simulator can tell what its seeds reach. It
/// costs nothing without the feature.
#[inline]
pub(crate) fn seen(what: &'static str) {
    #[cfg(feature = "planted")]
    SEEN.with(|seen| *seen.borrow_mut().entry(what).or_default() += 1);
    #[cfg(not(feature = "planted"))]
    let _ = what;
}

/// What the engines of this thread have noted since the last call, and how often.
#[cfg(feature = "planted")]
pub fn take_seen() -> std::collections::BTreeMap<&'static str, u64> {
    SEEN.with(std::cell::RefCell::take)
}

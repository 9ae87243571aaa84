//! What a person should know of a pool, each kind with a code that stays.

use forebay_device::Nanos;

use crate::ids::DeviceId;

/// Of which kind an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The pool was opened.
    Opened,
    /// A member failed on a write or a flush; the pool has stopped writing.
    Latched,
    /// A member failed while the pool was in use, which goes on without it.
    MemberFailed,
    /// A member was added.
    MemberAdded,
    /// A member uses more of its device, as was asked for.
    MemberGrown,
    /// A member was taken out, as was asked for.
    MemberRemoved,
    /// A member has not answered within the pool's deadline.
    MemberHung,
    /// A member takes much longer than its peers.
    MemberSlow,
    /// It does no more.
    MemberQuick,
    /// The pool opens without a member.
    MemberMissing,
    /// A member is there that the pool has gone on without.
    MemberStale,
    /// It opens although writes may be lost, as a person has accepted.
    LossAccepted,
    /// Blocks are nowhere any more.
    BlocksLost,
    /// There are fewer members than copies.
    CopiesShort,
    /// There are fewer members than copies, and nothing is dirty any more.
    ProtectedClean,
    /// Dirty data has all its copies again.
    CopiesRestored,
    /// Dirty data has more copies now, as was asked for.
    CopiesRaised,
    /// A start had no room to append again what nothing proves to be durable.
    StartCramped,
    /// Part of the index starts empty.
    IndexDamaged,
    /// The witness is missing, of another pool, or cannot be read.
    WitnessUnknown,
    /// The witness cannot be written.
    WitnessUnwritable,
    /// The witness can be written again.
    WitnessWritten,
    /// An origin was changed while the pool was stopped.
    OriginChanged,
    /// A flush of an origin failed.
    OriginFlushFailed,
    /// Dirty data could not be written to its origin.
    DestageFailed,
    /// There is no memory for the RAM tier.
    RamRefused,
    /// A member has returned data that is not what was written.
    DamageFound,
    /// Dirty data is good in no copy of members that serve: it is lost.
    DamageUnhealed,
    /// A scrub has come to its end.
    ScrubEnded,
    /// The pool was taken from a host that did not keep it.
    TakenOver,
    /// Another host has taken the pool.
    LeaseLost,
    /// The pool has no room to say who has it open.
    Unclaimed,
}

impl EventKind {
    /// All of them.
    pub const ALL: [EventKind; 32] = [
        EventKind::Opened,
        EventKind::Latched,
        EventKind::MemberFailed,
        EventKind::MemberAdded,
        EventKind::MemberGrown,
        EventKind::MemberRemoved,
        EventKind::MemberHung,
        EventKind::MemberSlow,
        EventKind::MemberQuick,
        EventKind::MemberMissing,
        EventKind::MemberStale,
        EventKind::LossAccepted,
        EventKind::BlocksLost,
        EventKind::CopiesShort,
        EventKind::ProtectedClean,
        EventKind::CopiesRestored,
        EventKind::CopiesRaised,
        EventKind::StartCramped,
        EventKind::IndexDamaged,
        EventKind::WitnessUnknown,
        EventKind::WitnessUnwritable,
        EventKind::WitnessWritten,
        EventKind::OriginChanged,
        EventKind::OriginFlushFailed,
        EventKind::DestageFailed,
        EventKind::RamRefused,
        EventKind::DamageFound,
        EventKind::DamageUnhealed,
        EventKind::ScrubEnded,
        EventKind::TakenOver,
        EventKind::LeaseLost,
        EventKind::Unclaimed,
    ];

    /// Whether nobody has to do anything about it.
    pub fn is_good_news(self) -> bool {
        matches!(
            self,
            EventKind::ProtectedClean
                | EventKind::CopiesRestored
                | EventKind::CopiesRaised
                | EventKind::MemberAdded
                | EventKind::MemberQuick
                | EventKind::MemberGrown
                | EventKind::MemberRemoved
                | EventKind::ScrubEnded
                | EventKind::WitnessWritten
        )
    }

    /// Its name for programs, which never changes.
    pub fn code(self) -> &'static str {
        match self {
            EventKind::Opened => "pool-opened",
            EventKind::Latched => "pool-latched",
            EventKind::MemberFailed => "member-failed",
            EventKind::MemberAdded => "member-added",
            EventKind::MemberGrown => "member-grown",
            EventKind::MemberRemoved => "member-removed",
            EventKind::MemberHung => "member-hung",
            EventKind::MemberSlow => "member-slow",
            EventKind::MemberQuick => "member-quick",
            EventKind::MemberMissing => "member-missing",
            EventKind::MemberStale => "member-stale",
            EventKind::LossAccepted => "loss-accepted",
            EventKind::BlocksLost => "blocks-lost",
            EventKind::CopiesShort => "copies-short",
            EventKind::ProtectedClean => "protected-clean",
            EventKind::CopiesRestored => "copies-restored",
            EventKind::CopiesRaised => "copies-raised",
            EventKind::StartCramped => "start-cramped",
            EventKind::IndexDamaged => "index-damaged",
            EventKind::WitnessUnknown => "witness-unknown",
            EventKind::WitnessUnwritable => "witness-unwritable",
            EventKind::WitnessWritten => "witness-written",
            EventKind::OriginChanged => "origin-changed",
            EventKind::OriginFlushFailed => "origin-flush-failed",
            EventKind::DestageFailed => "destage-failed",
            EventKind::RamRefused => "ram-refused",
            EventKind::DamageFound => "damage-found",
            EventKind::DamageUnhealed => "damage-unhealed",
            EventKind::ScrubEnded => "scrub-ended",
            EventKind::TakenOver => "pool-taken-over",
            EventKind::LeaseLost => "lease-lost",
            EventKind::Unclaimed => "pool-unclaimed",
        }
    }
}

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The pool.
    Pool,
    /// One of its members, or a device that was one.
    Member(DeviceId),
    /// The volume of this name.
    Volume(String),
}

/// Something a person should know, in the order it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, on the runtime's clock.
    pub at: Nanos,
    /// Of which kind it is.
    pub kind: EventKind,
    /// What it is about.
    pub subject: Subject,
    /// What happened, on what.
    pub what: String,
}

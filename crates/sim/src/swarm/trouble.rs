//! What goes wrong in a seed: crashes, faults of requests, members that fail, lie or are gone.

use std::fmt;
use std::str::FromStr;

use forebay_device::model::world::{Crash, Rng};

/// One in so many requests suffers it; 0 is never.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultMix {
    /// Errors of members' writes and flushes.
    pub member_write_error: u64,
    /// Errors of members' reads.
    pub member_read_error: u64,
    /// Errors of origins' writes.
    pub origin_write_error: u64,
    /// Errors of origins' flushes.
    pub origin_flush_error: u64,
    /// Errors of origins' reads.
    pub origin_read_error: u64,
    /// One bit flipped in what a member returns.
    pub member_flip: u64,
    /// Requests to members that take long.
    pub member_delay: u64,
    /// Requests to origins that take long.
    pub origin_delay: u64,
}

/// When and how a run ends. Its text form is `power:12` or `kill:12`; with a plus sign, as in
/// `kill:+12`, the count begins when the subject is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPlan {
    /// Power cut or `kill -9`.
    pub crash: Crash,
    /// After so many I/Os.
    pub after_ios: u64,
    /// Counted from the end of the start, else from its beginning.
    pub when_open: bool,
}

impl fmt::Display for CrashPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.crash {
            Crash::PowerCut => "power",
            Crash::ProcessKill => "kill",
        };
        let plus = if self.when_open { "+" } else { "" };
        write!(f, "{kind}:{plus}{}", self.after_ios)
    }
}

impl FromStr for CrashPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected power:N, power:+N, kill:N or kill:+N, N > 0".to_string();
        let (kind, ios) = text.split_once(':').ok_or_else(expected)?;
        let crash = match kind {
            "power" => Crash::PowerCut,
            "kill" => Crash::ProcessKill,
            _ => return Err(expected()),
        };
        let (when_open, ios) = ios.strip_prefix('+').map_or((false, ios), |ios| (true, ios));
        let after_ios = ios.parse().ok().filter(|ios| *ios > 0).ok_or_else(expected)?;
        Ok(Self { crash, after_ios, when_open })
    }
}

/// What a power cut is aimed at: of as many I/Os as a run has, few are near to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A root on its way: what it names, and what it frees, is believed from there on.
    Root,
    /// A write to an origin: what the origin has then, the log has to know.
    Origin,
    /// A client's own write on its way to an origin: nothing older may come back from the log.
    Direct,
    /// A client's flush that succeeded: what it covers is durable.
    Flush,
}

/// A power cut near what chance hits rarely.
#[derive(Clone, Copy, Debug)]
pub struct AimedCrash {
    /// Which of the crashes, counted from 0.
    pub crash: usize,
    /// Near what.
    pub target: Target,
    /// Near this one, from 1: of root slot 0 over all members, or of its kind over all origins and clients.
    pub nth: u64,
    /// After so many I/Os from it.
    pub ios: u64,
}

impl AimedCrash {
    /// Near one of the first that a run meets.
    pub(super) fn at(target: Target, crash: usize, rng: &mut Rng) -> Self {
        let (nth, ios) = match target {
            Target::Root => (6, 4),
            Target::Origin | Target::Direct => (30, 8),
            Target::Flush => (8, 4),
        };
        Self { crash, target, nth: rng.between(1, nth), ios: rng.between(1, ios) }
    }
}

/// A member that fails in one of the runs; where dirty data has another copy, nobody may notice.
#[derive(Clone, Copy, Debug)]
pub struct Strike {
    /// Which one, counted from 0.
    pub member: usize,
    /// How.
    pub kind: StrikeKind,
    /// After so many requests that it could have hit.
    pub after: u64,
}

/// How a member fails. Half of the writes that fail are carried out all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrikeKind {
    /// One flush fails and may lose what it should have covered.
    Flush,
    /// One write fails.
    Write,
    /// All writes fail from then on.
    Writes,
    /// All reads fail from then on.
    Reads,
    /// Everything fails: it is pulled out.
    All,
    /// Nothing is answered any more.
    Hang,
}

/// A member that now and then stores something else than it was given, and says nothing. Where all data has another
/// copy, nobody may notice; else exactly that is lost.
#[derive(Clone, Copy, Debug)]
pub struct Rot {
    /// Which one, counted from 0.
    pub member: usize,
    /// What becomes of a write.
    pub kind: RotKind,
    /// One in so many writes to its segments suffers it.
    pub one_in: u64,
    /// Whether it stores the only copy. Then it does so in the last run alone: at a crash nobody can tell what has
    /// rotted from what never was written as a whole.
    pub alone: bool,
    /// One in so many writes of superblocks, roots and events does, too; 0 is none.
    pub head_one_in: u64,
    /// Of a member with the only copy, sectors of 4 KiB that it cannot read then: one in so many; 0 is none.
    pub bad_one_in: u64,
}

/// What a member that lies does with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotKind {
    /// One bit is flipped.
    Flip,
    /// Nothing is written.
    Lose,
    /// It is written to another place of its segments.
    Misdirect,
}

/// The file system that the witnesses lie on was lost, or is what it was before.
#[derive(Clone, Copy, Debug)]
pub struct WitnessLoss {
    /// After this crash, counted from 1, there are none.
    pub crash: u64,
    /// There are those that were there after the crash before, if there was one.
    pub restored: bool,
}

/// A member that is there no more; dirty data has another copy.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// Which one, counted from 0.
    pub member: usize,
    /// After so many crashes.
    pub crashes: u64,
    /// Whether it comes back with old contents after the next crash.
    pub returns: bool,
}

/// Members that are found as they were at an earlier time, as after a copy or a snapshot of them was put back.
#[derive(Clone, Debug)]
pub struct SetBack {
    /// Which ones, counted from 0: one, or all of them.
    pub members: Vec<usize>,
    /// They are as they were after so many crashes.
    pub copied: u64,
    /// That is found after so many, or at the next start behind.
    pub back: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_plan_reads_back_what_it_prints() {
        for text in ["power:12", "kill:1", "kill:+7"] {
            assert_eq!(text.parse::<CrashPlan>().unwrap().to_string(), text);
        }
        for text in ["power", "kill:0", "fire:3", "kill:x", "kill:+"] {
            assert!(text.parse::<CrashPlan>().is_err(), "{text}");
        }
    }
}

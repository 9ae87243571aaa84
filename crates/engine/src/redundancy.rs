//! Whether what origins lack has the copies that were promised, and how volumes are served meanwhile.
//!
//! * With fewer members than copies, volumes are written through, unless their owner agreed to fewer copies. They are
//!   written back again only when everything has all its copies: a member that is there does not suffice
//!   (INV-92), for it may fail as the last one did.
//! * As long as anything is owed then, nothing new is populated: what is left of the SSDs has to bring it home. Once
//!   nothing is, clean data comes in again if there are members for its copies.
//! * Once nothing is, that is noted ([`crate::noted`]).

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::runtime::SECOND;

use crate::core::Core;
use crate::event::EventKind;
use crate::format::Mode;
use crate::phase::Phase;
use crate::planted::{self, Bug};
use crate::text::plural;
use crate::volume::VolumeState;
use crate::work::Job;

/// How often it is looked whether things have changed, while something is amiss.
const LOOK_INTERVAL: u64 = SECOND;

/// How the copies of what origins lack are.
///
/// ```text
///   Whole <-----> Rebuilding
///    ^ |              |
///    | '------+-------'           a member is lost, and fewer are left than copies
///    |        v
///    |    Protecting <--> Protected
///    |        ^ |             ^ |
///    |        | '-----+-------+-'  there are members enough again
///    |        |       v       |
///    '--------+--- Returning -'    all has its copies, or else another one is lost
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redundancy {
    /// Each member's part in them is there.
    #[default]
    Whole,
    /// Members were lost, and enough are left: what lacks copies gets them back, and volumes are written back.
    Rebuilding,
    /// Fewer members are left than copies: volumes are written through, what is dirty is destaged.
    Protecting,
    /// The same, and every origin has all of its data: no further loss of a member can lose any.
    Protected,
    /// There are members enough again; volumes are written through until all has its copies.
    Returning,
}

/// What decides about it.
#[derive(Clone, Copy)]
struct Facts {
    /// Fewer members are left than dirty data has copies.
    short: bool,
    /// The part of a lost member has not been made good.
    lost: bool,
    /// Origins lack something.
    owing: bool,
}

impl Redundancy {
    /// Whether there are, or were until now, too few members.
    fn is_held(self) -> bool {
        matches!(self, Redundancy::Protecting | Redundancy::Protected | Redundancy::Returning)
    }

    fn after(self, facts: Facts) -> Redundancy {
        match facts {
            Facts { short: true, owing: true, .. } => Redundancy::Protecting,
            Facts { short: true, owing: false, .. } => Redundancy::Protected,
            Facts { lost: false, .. } => Redundancy::Whole,
            Facts { lost: true, .. } if self.is_held() => Redundancy::Returning,
            Facts { lost: true, .. } => Redundancy::Rebuilding,
        }
    }

    fn may_become(self, next: Redundancy) -> bool {
        use Redundancy::{Protected, Protecting, Rebuilding, Returning, Whole};
        match self {
            Whole => matches!(next, Rebuilding | Protecting | Protected),
            Rebuilding => matches!(next, Whole | Protecting | Protected),
            Protecting => matches!(next, Protected | Returning | Whole),
            Protected => matches!(next, Protecting | Returning | Whole),
            Returning => matches!(next, Whole | Protecting | Protected),
        }
    }
}

/// How the copies of what origins lack are, as of the last look.
#[derive(Default)]
pub(crate) struct Protection(Cell<Redundancy>);

impl Protection {
    pub(crate) fn get(&self) -> Redundancy {
        self.0.get()
    }

    /// Moves on in the diagram of [`Redundancy`].
    ///
    /// # Panics
    /// If the diagram has no such arrow.
    fn transition(&self, next: Redundancy) {
        let now = self.get();
        assert!(now.may_become(next), "{now:?} to {next:?}");
        self.0.set(next);
    }
}

impl Core {
    /// Whether fewer members are left than dirty data has copies.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short_with(0)
    }

    /// The same if there were so many members more.
    pub(crate) fn is_short_with(&self, joining: usize) -> bool {
        self.named_count() + joining < usize::from(self.dirty_copies())
    }

    /// How a volume is served now: it is not written back with fewer copies than were promised, nor, if it is
    /// clean, while the witness cannot be told that it may not be.
    pub(crate) fn mode_of(&self, v: &VolumeState) -> Mode {
        let mode = v.mode.get();
        let is_held = self.redundancy.get().is_held() && !planted::is(Bug::WrittenBackTooSoon);
        let held = is_held || self.is_short();
        let is_unwitnessed = self.witness_lags.get() && !v.may_be_dirty.get();
        if mode.writes_back() && (is_unwitnessed || held && !self.is_single_accepted(v)) {
            return Mode::Writethrough;
        }
        mode
    }

    fn is_single_accepted(&self, v: &VolumeState) -> bool {
        v.accept_single_copy.get() || self.superblock.borrow().accept_single_copy
    }

    /// Whether nothing new is brought into the cache for the sake of what has too few copies.
    pub(crate) fn spares_members(&self, v: &VolumeState) -> bool {
        match self.redundancy.get() {
            Redundancy::Whole | Redundancy::Rebuilding => false,
            Redundancy::Protecting => !self.is_single_accepted(v),
            Redundancy::Protected | Redundancy::Returning => {
                self.named_count() < usize::from(self.superblock.borrow().clean_copies)
            }
        }
    }

    /// Says, once, how volumes are served with fewer members than copies, and notes from when on.
    pub(crate) fn note_fallbacks(&self) {
        if !self.is_short() {
            return;
        }
        self.log.short_since.set(self.log.open_counter.get());
        let superblock = self.superblock.borrow();
        for v in superblock.volumes.iter().filter(|v| v.mode.writes_back()) {
            let how = if v.accept_single_copy || superblock.accept_single_copy {
                "is written back with fewer copies, as was agreed to"
            } else {
                "is written through until there are members enough"
            };
            self.event(
                EventKind::CopiesShort,
                format!(
                    "volume \"{}\" {how}: {} left for {} copies of dirty data",
                    v.name,
                    plural(self.named_count(), "member"),
                    superblock.dirty_copies
                ),
            );
        }
    }

    /// Follows what has changed.
    pub(crate) fn review_redundancy(self: &Rc<Self>) {
        let now = self.redundancy.get();
        let next = now.after(Facts {
            short: self.is_short(),
            lost: self.superblock.borrow().failed_count() > 0,
            owing: self.owed_blocks() > 0
                || self.written.borrow().values().any(|blocks| *blocks > 0),
        });
        if now == next {
            return;
        }
        self.redundancy.transition(next);
        match next {
            Redundancy::Protected if now == Redundancy::Protecting => {
                planted::seen("protection: clean");
                let what = if self.lost.all() > 0 { "what is left" } else { "all of its data" };
                self.event(
                    EventKind::ProtectedClean,
                    format!(
                        "every origin has {what}: the loss of another cache device loses none. \
                     Members: {} for {} copies of dirty data",
                        self.named_count(),
                        self.dirty_copies()
                    ),
                );
            }
            Redundancy::Returning => planted::seen("protection: members enough again"),
            _ => {}
        }
        let goes_on = next != Redundancy::Whole && self.life.phase() < Phase::Settled;
        if goes_on {
            self.spawn_job(Job::Review, reviewer(Rc::clone(self)));
        }
    }
}

/// Looks again from time to time until all is as it should be.
async fn reviewer(core: Rc<Core>) {
    let is_over = || core.is_at_rest();
    while core.redundancy.get() != Redundancy::Whole && !is_over() {
        let timer = core.rt.sleep(LOOK_INTERVAL);
        core.epoch_begun.until_or(is_over, timer).await;
        core.review_redundancy();
        if core.redundancy.get() == Redundancy::Protected {
            core.note_clean(|v| !core.mode_of(v).writes_back()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Redundancy::{Protected, Protecting, Rebuilding, Returning, Whole};

    #[test]
    fn it_goes_only_where_the_diagram_has_an_arrow() {
        let all = [Whole, Rebuilding, Protecting, Protected, Returning];
        let legal = |from: Redundancy| all.map(|to| from.may_become(to));
        assert_eq!(legal(Whole), [false, true, true, true, false]);
        assert_eq!(legal(Rebuilding), [true, false, true, true, false]);
        assert_eq!(legal(Protecting), [true, false, false, true, true]);
        assert_eq!(legal(Protected), [true, false, true, false, true]);
        assert_eq!(legal(Returning), [true, false, true, true, false]);
        for from in all {
            for bits in 0..8 {
                let is = |bit: u32| bits >> bit & 1 == 1;
                let next = from.after(Facts { short: is(0), lost: is(1), owing: is(2) });
                assert!(next == from || from.may_become(next), "{from:?} {bits:03b} {next:?}");
                assert_eq!(next.is_held(), is(0) || is(1) && from.is_held());
            }
        }
    }
}

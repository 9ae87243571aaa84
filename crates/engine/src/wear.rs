//! The write budget of a running pool: what its SSDs take a day, and what is left out of the cache for it.
//!
//! Every second what was written to all members, whatever for, is taken from the bucket of
//! [`policy::WriteBudget`](crate::policy::WriteBudget), and the policy is told how much to leave out. It
//! starts anew with the pool.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::LocalBoxFuture;
use forebay_device::runtime::{Nanos, SECOND};

use crate::core::Core;
use crate::creation::invalid;
use crate::error::Result;
use crate::format::Superblock;
use crate::limits::{WRITE_BUDGET_MAX, WRITE_BUDGET_MIN};
use crate::policy::{Offer, Part, Thrift, WriteBudget};
use crate::pool::Pool;
use crate::volume::VolumeState;

/// How often what was written is counted: a fraction of the hour over which a budget is kept, and often enough that
/// the share that is left out moves in small steps.
const LOOK_INTERVAL: Nanos = SECOND;

const DAY: Nanos = 24 * 3600 * SECOND;

/// What there is of a budget.
#[derive(Default)]
pub(crate) struct Wear {
    budget: RefCell<Option<WriteBudget>>,
    /// Bytes written to members that are counted, and until when.
    counted: Cell<u64>,
    looked_at: Cell<Nanos>,
    thrift: Cell<Thrift>,
}

/// How a pool does with its write budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteBudgetState {
    /// Bytes that may be written to all members a day.
    pub bytes_per_day: u64,
    /// Bytes that can be written now before it is behind; below zero it is.
    pub left_bytes: i64,
    /// Of what is missed for the first time, of what is missed and left the cache of late, and of what would be
    /// written back over nothing cached: thousandths that are left out now.
    pub left_out_permille: [u16; 3],
}

impl Core {
    /// Bytes written to members since the start, all copies.
    fn ssd_bytes(&self) -> u64 {
        let c = &self.counters;
        let all = [
            &c.ssd_write_bytes,
            &c.ssd_populate_bytes,
            &c.ssd_move_bytes,
            &c.ssd_header_bytes,
            &c.ssd_fact_bytes,
            &c.ssd_checkpoint_bytes,
        ];
        all.into_iter().map(Cell::get).sum()
    }

    /// Begins with a budget of so many bytes a day, or goes on with it; 0: none.
    pub(crate) fn start_budget(&self, bytes_per_day: u64) {
        let wear = &self.wear;
        self.look_at_wear();
        let mut budget = wear.budget.borrow_mut();
        *budget = match (bytes_per_day, *budget) {
            (0, _) => None,
            (per_day, None) => Some(WriteBudget::new(per_day)),
            (per_day, Some(before)) => Some(before.with(per_day)),
        };
        drop(budget);
        wear.counted.set(self.ssd_bytes());
        wear.looked_at.set(self.rt.now());
        self.set_thrift(Thrift::default());
    }

    fn set_thrift(&self, thrift: Thrift) {
        if self.wear.thrift.replace(thrift) != thrift {
            self.policy.borrow_mut().set_thrift(thrift);
        }
    }

    fn look_at_wear(&self) {
        let wear = &self.wear;
        let thrift = {
            let mut budget = wear.budget.borrow_mut();
            let Some(budget) = budget.as_mut() else { return };
            let (now, written) = (self.rt.now(), self.ssd_bytes());
            budget.earn(now - wear.looked_at.replace(now), DAY);
            budget.spend(written - wear.counted.replace(written));
            budget.thrift()
        };
        self.set_thrift(thrift);
    }

    /// Whether a write of these blocks goes to the origin alone if nothing of it is cached. What is written
    /// back does not depend on an origin that takes nothing because of a budget.
    pub(crate) fn is_left_out(&self, v: &VolumeState, first: u64, count: u32) -> bool {
        if self.wear.thrift.get() == Thrift::default() {
            return false;
        }
        let written_back = self.mode_of(v).writes_back();
        let policy = self.policy.borrow();
        Part::each(v.id, first, count).all(|part| policy.leaves_out(part, written_back))
            && !(written_back && self.takes_nothing(v))
    }
}

/// Keeps the budget until the pool stops.
pub(crate) async fn wear_keeper(core: Rc<Core>) {
    let over = || core.is_ending();
    while !over() {
        core.housekeeping.until_or(over, core.rt.sleep(LOOK_INTERVAL)).await;
        core.look_at_wear();
    }
}

impl Pool {
    /// Whether so many bytes a day are a budget, or none.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid).
    pub fn check_write_budget(bytes_per_day: u64) -> Result<()> {
        if bytes_per_day == 0 || (WRITE_BUDGET_MIN..=WRITE_BUDGET_MAX).contains(&bytes_per_day) {
            return Ok(());
        }
        Err(invalid(
            format!("a write budget of {bytes_per_day} B a day"),
            "use 1 MiB to 1 EiB a day; 0 is none",
        ))
    }

    /// Changes how many bytes a day may be written to all members; 0: as many as come. It is durable on every
    /// member when this returns, and begins with an hour's.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid); [`ErrorKind::Io`](crate::ErrorKind::Io) if the
    /// superblocks cannot be written.
    pub fn set_write_budget(&self, bytes_per_day: u64) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            Pool::check_write_budget(bytes_per_day)?;
            let _control = self.core.control.lock().await;
            let change = |superblock: &mut Superblock| {
                superblock.write_budget_bytes_per_day = bytes_per_day;
            };
            self.core.write_superblocks(change).await?;
            self.core.start_budget(bytes_per_day);
            Ok(())
        })
    }

    /// How it does with its write budget; `None` without one.
    pub fn write_budget(&self) -> Option<WriteBudgetState> {
        let wear = &self.core.wear;
        let budget = wear.budget.borrow();
        budget.map(|budget| WriteBudgetState {
            bytes_per_day: budget.per_day(),
            left_bytes: i64::try_from(budget.level()).unwrap_or(i64::MIN),
            left_out_permille: [Offer::New, Offer::Known, Offer::Dirty]
                .map(|offer| wear.thrift.get().permille(offer)),
        })
    }
}

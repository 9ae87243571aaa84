//! Volumes of which only what is asked for again and again is brought into the cache: who counts, and what
//! comes of it. The numbers are [`crate::policy::Populate`]'s.
//!
//! * A request counts once for each cache block that it touches, and only if that is not cached as a whole:
//!   what is there is served and written whatever the count.
//! * Where nothing has to be counted there is no table, and a request costs one comparison.

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::format::Mode;
use crate::ids::BLOCK_BYTES;
use crate::limits::STRIPE_BYTES;
use crate::policy::{Access, Granule, Populate, TOUCHES_MAX, Touches};
use crate::volume::VolumeState;

/// Whether what brings blocks in fits a mode.
pub(crate) fn check(populate: Populate, mode: Mode) -> Result<()> {
    if populate.fits(mode) {
        return Ok(());
    }
    let invalid = |what: String, hint: &str| Err(Error::new(ErrorKind::Invalid, what).hint(hint));
    let Populate::Custom { on_read, on_write } = populate else { return Ok(()) };
    if let Some(count) = on_read.filter(|count| !(1..=TOUCHES_MAX).contains(count)) {
        let what = format!("populate_on_read cannot be {count}");
        return invalid(what, "use 1 to 4; mode writeonly is for reads that bring in nothing");
    }
    let count = on_write.unwrap_or(0);
    invalid(
        format!("populate_on_write cannot be {count} in this mode"),
        "use 1 to 4, or, in modes readonly and writethrough, 0 to 4",
    )
}

/// Whether this can be a cache block.
pub(crate) fn check_cache_block(bytes: u32) -> Result<()> {
    let fits = (BLOCK_BYTES..=STRIPE_BYTES).contains(&u64::from(bytes));
    if fits && bytes.is_power_of_two() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Invalid, format!("cache block of {bytes} B"))
        .hint("use a power of two from 4 KiB to 4 MiB"))
}

impl Core {
    /// Takes over a mode or settings that have changed.
    pub(crate) fn start_counting(&self, v: &VolumeState) {
        v.thresholds.set(v.settings.get().populate.thresholds(v.mode.get()));
        self.keep_touches();
    }

    /// Makes the table if a volume wants accesses counted, and gives it back if none does any more.
    pub(crate) fn keep_touches(&self) {
        let wanted = self.volumes.borrow().values().any(|v| v.thresholds.get().count());
        if wanted == self.touches.borrow().is_off() {
            let segment_blocks = self.segment_bytes / BLOCK_BYTES;
            let blocks = self.sets.borrow().total_count() as u64 * segment_blocks;
            let table = if wanted { Touches::for_pool(blocks) } else { Touches::default() };
            *self.touches.borrow_mut() = table;
        }
    }

    /// The pool has so many blocks from now on. What was counted is forgotten.
    pub(crate) fn resize_touches(&self, pool_blocks: u64) {
        if !self.touches.borrow().is_off() {
            *self.touches.borrow_mut() = Touches::for_pool(pool_blocks);
        }
    }

    /// Counts a read that the cache cannot serve alone.
    pub(crate) fn note_missed_read(&self, v: &VolumeState, first: u64, count: u32) {
        if v.thresholds.get().read > 1 {
            let mut touches = self.touches.borrow_mut();
            each(v, first, count, |block| touches.note(block, Access::Read));
        }
    }

    /// What is to be fetched whatever was asked for so far.
    pub(crate) fn note_wanted(&self, v: &VolumeState, first: u64, count: u32) {
        if v.thresholds.get().read > 1 {
            let mut touches = self.touches.borrow_mut();
            each(v, first, count, |block| touches.fill(block, Access::Read));
        }
    }

    /// Whether reads have asked for the cache block of this one often enough.
    pub(crate) fn is_read_enough(&self, v: &VolumeState, block: u64) -> bool {
        let thresholds = v.thresholds.get();
        let name = || Granule { volume: v.id, number: block / v.cache_block.get() };
        thresholds.read == 1 || thresholds.reached(&self.touches.borrow(), name(), Access::Read)
    }

    /// Counts a write; whether it is brought in although it is not cached as a whole. It is if any of its
    /// cache blocks is: what is hot is not dropped because of what is written with it.
    pub(crate) fn is_written_enough(&self, v: &VolumeState, first: u64, count: u32) -> bool {
        match v.thresholds.get().write {
            0 => false,
            1 => true,
            least => {
                let (mut touches, mut enough) = (self.touches.borrow_mut(), false);
                each(v, first, count, |block| {
                    touches.note(block, Access::Write);
                    enough |= touches.count(block, Access::Write) >= least;
                });
                enough
            }
        }
    }
}

/// Goes through the cache blocks of a range.
fn each(v: &VolumeState, first: u64, count: u32, mut visit: impl FnMut(Granule)) {
    let size = v.cache_block.get();
    for number in first / size..=(first + u64::from(count) - 1) / size {
        visit(Granule { volume: v.id, number });
    }
}

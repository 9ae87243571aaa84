//! The write budget: what reclaim may move for what clients admit.
//!
//! * At every promise, blocks moved and promised in the window, that promise included, are at most
//!   (`write_amplification_max` - 1) times the blocks admitted in it (INV-22). As this holds in
//!   every window, it holds for the life of the SSD, apart from the few dirty
//!   blocks of a unit that is nearly clean.
//! * Headers and images are no moves, and not within that. Clean data that is not the hottest gives up room in the budget for them,
//!   so that all that is written stays near the maximum where such data is moved.
//! * There is no clock: the window is measured in admitted blocks, so an idle night saves up
//!   nothing for a burst of moves in the morning.

/// Part of the budget, in percent, that cooler data leaves to what is hot or dirty: that comes in bursts, and what a
/// window gave away before one is gone then.
const LEFT_BY_COOLER_PERCENT: u64 = 10;

/// Part of the budget, in percent, that headers and images take from cooler data at the most. Few writers at a time
/// make as many headers as blocks, and what they read would leave the cache for that.
const OVERHEAD_PERCENT_MAX: u64 = 50;

/// Steps in which the window slides. The ratio is exact at any number; more steps make it slide
/// more evenly, and 16 lets go of 6 % of the window at a time.
const STEPS: usize = 16;

#[derive(Clone, Copy, Debug, Default)]
struct Step {
    admitted_blocks: u64,
    moved_blocks: u64,
    promised_blocks: u64,
    overhead_blocks: u64,
}

/// Blocks admitted and moved over a sliding window.
#[derive(Debug)]
pub struct Budget {
    extra_percent: u64,
    step_blocks: u64,
    steps: [Step; STEPS],
    now: usize,
}

impl Budget {
    /// A budget of `write_amplification_max_percent` (150: half a block moved per block admitted)
    /// over about `window_blocks` admitted blocks. It starts empty: nothing may be moved before
    /// something was admitted.
    ///
    /// # Panics
    /// If the maximum is below 100 percent: less than what is admitted cannot be written.
    pub fn new(write_amplification_max_percent: u32, window_blocks: u64) -> Self {
        assert!(write_amplification_max_percent >= 100);
        Self {
            extra_percent: u64::from(write_amplification_max_percent) - 100,
            step_blocks: window_blocks.div_ceil(STEPS as u64).max(1),
            steps: [Step::default(); STEPS],
            now: 0,
        }
    }

    /// Another maximum from now on. What was moved in the window counts against it.
    ///
    /// # Panics
    /// As [`Budget::new`].
    pub fn set_max(&mut self, write_amplification_max_percent: u32) {
        assert!(write_amplification_max_percent >= 100);
        self.extra_percent = u64::from(write_amplification_max_percent) - 100;
    }

    /// Another window from now on; what is in the old one stays.
    pub fn set_window(&mut self, window_blocks: u64) {
        self.step_blocks = window_blocks.div_ceil(STEPS as u64).max(1);
    }

    /// Reserves `blocks` for moving if they are within the budget.
    pub fn promise(&mut self, blocks: u64) -> bool {
        let fits = self.has_room(blocks);
        self.steps[self.now].promised_blocks += if fits { blocks } else { 0 };
        fits
    }

    /// Whether so many blocks are within the budget.
    pub fn has_room(&self, blocks: u64) -> bool {
        let committed = self.moved_blocks() + self.promised_blocks() + blocks;
        committed * 100 <= self.admitted_blocks() * self.extra_percent
    }

    /// The same for data that is not the hottest: headers and images count against the budget, too, and a part of it is
    /// left to others.
    pub fn promise_cooler(&mut self, blocks: u64) -> bool {
        let percent = |part: u64| self.admitted_blocks() * self.extra_percent * part / 100;
        let overhead = (self.overhead_blocks() * 100).min(percent(OVERHEAD_PERCENT_MAX));
        let committed = (self.moved_blocks() + self.promised_blocks() + blocks) * 100 + overhead;
        committed <= percent(100 - LEFT_BY_COOLER_PERCENT) && self.promise(blocks)
    }

    /// Whether moving so many blocks for each that room is `gained` for stays within the maximum in the long
    /// run, if all of that room is admitted to.
    pub fn pays(&self, moved: u64, gained: u64) -> bool {
        moved * 100 <= gained * self.extra_percent
    }

    /// Records what was appended. Any moved blocks settle all promises: the engine reports them
    /// before it asks about the next unit. A promise that nothing came of is forgotten when its
    /// step leaves the window, so a lost one cannot stop retention for ever.
    pub fn spend(&mut self, admitted_blocks: u64, moved_blocks: u64) {
        if moved_blocks > 0 {
            self.steps.iter_mut().for_each(|step| step.promised_blocks = 0);
            self.steps[self.now].moved_blocks += moved_blocks;
        }
        // More than a window at once pushes everything else out; the rest of it would only turn
        // the steps again.
        let mut rest = admitted_blocks.min(self.step_blocks * (STEPS as u64 + 1));
        while rest > 0 {
            let step = &mut self.steps[self.now];
            // One that was begun in a larger window may be too long already.
            let taken = rest.min(self.step_blocks.saturating_sub(step.admitted_blocks));
            step.admitted_blocks += taken;
            rest -= taken;
            if step.admitted_blocks >= self.step_blocks {
                self.now = (self.now + 1) % STEPS;
                self.steps[self.now] = Step::default();
            }
        }
    }

    /// Records what was appended beside data: headers of records and images of the index.
    pub fn spend_overhead(&mut self, blocks: u64) {
        self.steps[self.now].overhead_blocks += blocks;
    }

    /// Blocks admitted in the window.
    pub fn admitted_blocks(&self) -> u64 {
        self.steps.iter().map(|step| step.admitted_blocks).sum()
    }

    /// Blocks moved in the window.
    pub fn moved_blocks(&self) -> u64 {
        self.steps.iter().map(|step| step.moved_blocks).sum()
    }

    fn overhead_blocks(&self) -> u64 {
        self.steps.iter().map(|step| step.overhead_blocks).sum()
    }

    fn promised_blocks(&self) -> u64 {
        self.steps.iter().map(|step| step.promised_blocks).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_promised_before_something_is_admitted() {
        let mut budget = Budget::new(150, 1600);
        assert!(!budget.promise(1));
        budget.spend(32, 0);
        assert!(budget.promise(16));
        assert!(!budget.promise(1));
    }

    #[test]
    fn moved_blocks_settle_what_was_promised() {
        let mut budget = Budget::new(200, 1600);
        budget.spend(16, 0);
        assert!(budget.promise(16));
        budget.spend(0, 1);
        assert!(budget.promise(15));
        assert!(!budget.promise(1));
    }

    #[test]
    fn a_promise_that_nothing_came_of_leaves_with_the_window() {
        let mut budget = Budget::new(101, 1600);
        budget.spend(1500, 0);
        assert!(budget.promise(15));
        assert!(!budget.promise(15));
        budget.spend(1700, 0);
        assert!(budget.promise(15));
    }

    #[test]
    fn a_quiet_window_saves_nothing_for_later() {
        let mut budget = Budget::new(150, 1600);
        budget.spend(1_000_000, 0);
        assert!(budget.admitted_blocks() <= 1600);
        assert!(!budget.promise(801));
    }

    #[test]
    fn a_window_that_shrinks_ends_the_step_that_is_too_long_for_it() {
        let mut budget = Budget::new(150, 1600);
        budget.spend(99, 0);
        budget.set_window(160);
        budget.spend(5, 0);
        assert_eq!(budget.admitted_blocks(), 104);
        budget.spend(160, 0);
        assert!(budget.admitted_blocks() <= 160);
    }

    #[test]
    fn headers_and_images_take_from_cooler_data_alone_and_never_all_of_it() {
        let mut budget = Budget::new(150, 1600);
        budget.spend(1000, 0);
        assert!(!budget.promise_cooler(451), "a tenth is left to others");
        budget.spend_overhead(100);
        assert!(!budget.promise_cooler(351));
        assert!(budget.promise_cooler(350));
        budget.spend(0, 350);
        assert!(budget.promise(150) && !budget.promise(1));
        // Overhead of another window is none of this one's.
        budget.spend(1700, 0);
        assert!(budget.promise_cooler(600));
        let mut budget = Budget::new(150, 1600);
        budget.spend(1000, 0);
        budget.spend_overhead(10_000);
        assert!(budget.promise_cooler(200) && !budget.promise_cooler(1));
    }

    #[test]
    fn a_maximum_of_one_never_promises() {
        let mut budget = Budget::new(100, 1600);
        budget.spend(1600, 0);
        assert!(!budget.promise(1));
    }
}

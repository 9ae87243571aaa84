//! A processor for a world in which code takes hardly any time: requests wait until it has had time for
//! them, so that an engine that only looks fast because its code is free does not win.
//!
//! * One processor for a pool, as one reactor has it in the product. What clients of other reactors cost
//!   those, and what a server's connections cost, is not in it.
//! * What the engine does behind the requests (bringing in, moving, destaging) is taken from its counters
//!   and holds up the requests after it.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{Nanos, Runtime};
use forebay_engine::Pool;

use super::load::BLOCK;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A read.
    Read,
    /// A write.
    Write,
}

/// Time of a processor, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A read's first block.
    pub read_ns: Nanos,
    /// A write's first block.
    pub write_ns: Nanos,
    /// A piece of a read that the origin answers, beyond what a hit costs.
    pub miss_ns: Nanos,
    /// Each further block of a request, and each block that is brought in.
    pub further_ns: Nanos,
    /// A block that reclaim moves.
    pub move_ns: Nanos,
    /// A block that is brought to the origin.
    pub destage_ns: Nanos,
}

impl Costs {
    /// What docs/internals/performance.md has measured, on one core of 2026.
    ///
    /// * read: "CPU of the pool's reactor per 4K hit of another one", 1.28 us.
    /// * write: 4.6 us of CPU a write with the log full and system calls included, of which 0.12 moves.
    /// * move: what a full log adds to a write, 4.5 instead of 3.9 us, by those 0.12 moves.
    /// * miss: 37,604 instructions at a write's 5,200 a microsecond.
    /// * destage: 16 us for a block by itself.
    /// * further blocks: a CRC (0.1 us), a copy, and as much again for records and runs.
    pub fn measured() -> Self {
        Self {
            read_ns: 1_300,
            write_ns: 4_600,
            miss_ns: 7_200,
            further_ns: 500,
            move_ns: 5_000,
            destage_ns: 16_000,
        }
    }
}

/// What the engine has done behind the requests.
#[derive(Clone, Copy, Default)]
struct Behind {
    misses: u64,
    populated: u64,
    moved: u64,
    destaged: u64,
}

impl Behind {
    fn of(pool: &Pool) -> Self {
        let counters = pool.counters();
        Self {
            misses: counters.read_misses.get() + counters.read_partial_hits.get(),
            populated: counters.populate_bytes.get() / BLOCK,
            moved: counters.move_blocks.get(),
            destaged: counters.destage_bytes.get() / BLOCK,
        }
    }

    fn cost_since(&self, before: &Self, costs: &Costs) -> Nanos {
        (self.misses - before.misses) * costs.miss_ns
            + (self.populated - before.populated) * costs.further_ns
            + (self.moved - before.moved) * costs.move_ns
            + (self.destaged - before.destaged) * costs.destage_ns
    }
}

/// See the head of the file.
pub struct Cpu {
    runtime: Rc<dyn Runtime>,
    pool: Rc<Pool>,
    costs: Costs,
    free_at: Cell<Nanos>,
    behind: Cell<Behind>,
    spent: Cell<Nanos>,
}

impl Cpu {
    /// An idle one.
    pub fn new(runtime: Rc<dyn Runtime>, pool: Rc<Pool>, costs: Costs) -> Self {
        let behind = Cell::new(Behind::of(&pool));
        Self { runtime, pool, costs, free_at: Cell::new(0), behind, spent: Cell::new(0) }
    }

    /// Time that it has been busy since the start.
    pub fn spent(&self) -> Nanos {
        self.spent.get()
    }

    /// Lets what the engine has done so far cost nothing: the time before what is measured.
    pub fn forgive(&self) {
        self.behind.set(Behind::of(&self.pool));
    }

    /// Waits until it has done what a request of so many bytes costs.
    pub async fn spend(&self, work: Work, bytes: u64) {
        let first = match work {
            Work::Read => self.costs.read_ns,
            Work::Write => self.costs.write_ns,
        };
        let further = (bytes / BLOCK).saturating_sub(1) * self.costs.further_ns;
        let behind = Behind::of(&self.pool);
        let owed = behind.cost_since(&self.behind.replace(behind), &self.costs);
        let cost = first + further + owed;
        let now = self.runtime.now();
        self.free_at.set(self.free_at.get().max(now) + cost);
        self.spent.set(self.spent.get() + cost);
        // That it ends is the runtime's doing: nothing can go wrong.
        let _ = self.runtime.sleep(self.free_at.get() - now).await;
    }
}

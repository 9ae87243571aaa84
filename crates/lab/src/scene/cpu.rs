//! A processor for a world in which code takes hardly any time: requests wait until it has had time for
//! them, so that an engine that only looks fast because its code is free does not win.
//!
//! * One processor for a pool, as one reactor has it in the product. What clients of other reactors cost
//!   those, and what a server's connections cost, is not in it.
//! * While requests and destaging both have work, each gets half of it: a reactor's tasks take turns, and
//!   neither is free because the other one is busy. What reclaim moves is taken from the engine's counters.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::{Nanos, Runtime};
use forebay_engine::Pool;
use forebay_engine::counters::Counters;

use super::load::BLOCK;

/// What takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A client's read.
    Read,
    /// A client's write.
    Write,
    /// A read of the origin, for a client and to be brought in.
    Miss,
    /// A write to the origin.
    Destage,
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
    /// Each further block of a request or of a destaged run, and each block that is brought in.
    pub further_ns: Nanos,
    /// A block that reclaim moves.
    pub move_ns: Nanos,
    /// A block that is brought to the origin, or a run of them that lie together in the log: the first of it.
    pub destage_ns: Nanos,
}

impl Costs {
    /// What docs/internals/performance.md has measured, on one core of 2026; `forebay-bench costs` compares.
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

/// Where work waits for the processor.
#[derive(Clone, Copy)]
enum Lane {
    Front,
    Behind,
}

/// See the head of the file.
pub struct Cpu {
    runtime: Rc<dyn Runtime>,
    costs: Costs,
    pool: RefCell<Option<Rc<Pool>>>,
    moved: Cell<u64>,
    /// Runs that were destaged when it was looked last.
    runs: Cell<u64>,
    /// When each lane has done what it was given.
    free_at: [Cell<Nanos>; 2],
    spent: Cell<Nanos>,
}

impl Cpu {
    /// An idle one.
    pub fn new(runtime: Rc<dyn Runtime>, costs: Costs) -> Self {
        let (pool, moved, runs) = (RefCell::default(), Cell::new(0), Cell::new(0));
        Self { runtime, costs, pool, moved, runs, free_at: Default::default(), spent: Cell::new(0) }
    }

    /// Takes the work of this pool's reclaim, too.
    pub fn watch(&self, pool: &Rc<Pool>) {
        *self.pool.borrow_mut() = Some(Rc::clone(pool));
    }

    /// Time that it has been given work for since the start.
    pub fn spent(&self) -> Nanos {
        self.spent.get()
    }

    /// Gives it work; returns when that is done.
    fn give(&self, lane: Lane, cost: Nanos) -> Nanos {
        let now = self.runtime.now();
        let (own, other) = match lane {
            Lane::Front => (&self.free_at[0], &self.free_at[1]),
            Lane::Behind => (&self.free_at[1], &self.free_at[0]),
        };
        let shares = if other.get() > now { 2 } else { 1 };
        own.set(own.get().max(now) + cost * shares);
        self.spent.set(self.spent.get() + cost);
        own.get()
    }

    /// Waits until it has done what so many bytes of this cost.
    pub async fn spend(&self, work: Work, bytes: u64) {
        let count = |counter: fn(&Counters) -> &Cell<u64>| {
            self.pool.borrow().as_ref().map_or(0, |pool| counter(pool.counters()).get())
        };
        let moves = count(|counters| &counters.move_blocks);
        let moved = moves - self.moved.replace(moves);
        if moved > 0 {
            self.give(Lane::Behind, moved * self.costs.move_ns);
        }
        let blocks = bytes.div_ceil(BLOCK).max(1);
        let further = (blocks - 1) * self.costs.further_ns;
        let done = match work {
            Work::Read => self.give(Lane::Front, self.costs.read_ns + further),
            Work::Write => self.give(Lane::Front, self.costs.write_ns + further),
            Work::Miss => self.give(Lane::Front, self.costs.miss_ns + further),
            Work::Destage => {
                // Those of writes that begin together are charged to the first of them.
                let runs = count(|counters| &counters.destage_runs);
                let runs = runs - self.runs.replace(runs);
                let further = blocks.saturating_sub(runs) * self.costs.further_ns;
                self.give(Lane::Behind, runs * self.costs.destage_ns + further)
            }
        };
        // That a sleep ends is the runtime's doing: nothing can go wrong.
        let _ = self.runtime.sleep(done - self.runtime.now()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::{filling, scattered, writes};
    use super::super::{Scene, Serving, Setting, Ssds};
    use super::*;
    use forebay_device::model::array::{ArrayParameters, Level};
    use forebay_device::model::hdd::HddParameters;
    use forebay_device::model::world::World;
    use forebay_device::runtime::MILLISECOND;

    /// Time of 200 writes by 8 clients, and how long the processor was busy.
    fn took(costs: Option<Costs>) -> (Nanos, Nanos) {
        let member = HddParameters::st500nm0001();
        let (disks, chunk_bytes) = (4, 64 << 10);
        let disks = ArrayParameters { level: Level::Raid5, disks, chunk_bytes, member };
        let scene = Scene::new(&Setting {
            disks: &disks,
            pool_bytes: 512 << 20,
            ram_bytes: 0,
            volumes: &[64 << 20],
            ssds: Ssds::default(),
            serving: Serving { costs, ..Serving::default() },
        })
        .unwrap();
        let blocks = Rc::new(scattered(200, 1 << 14, 3));
        let seen = scene.play(0, 8, writes(blocks)).unwrap();
        (seen.span, scene.cpu_spent())
    }

    #[test]
    fn requests_wait_for_the_processor_one_after_the_other() {
        let free = took(None);
        assert!(free.0 < 100 * MILLISECOND && free.1 == 0, "{free:?}");
        let costs = Costs { write_ns: MILLISECOND, ..Costs::measured() };
        let charged = took(Some(costs));
        assert!((200..230).contains(&(charged.0 / MILLISECOND)), "{charged:?}");
        assert!(charged.1 >= 200 * MILLISECOND, "{charged:?}");
    }

    #[test]
    fn what_is_brought_to_the_origin_takes_its_time_too() {
        let costs = Costs { destage_ns: MILLISECOND, ..Costs::measured() };
        let member = HddParameters::st500nm0001();
        let disks = ArrayParameters { level: Level::Raid5, disks: 4, chunk_bytes: 65536, member };
        let destaged = |costs| {
            let scene = Scene::new(&Setting {
                disks: &disks,
                pool_bytes: 512 << 20,
                ram_bytes: 0,
                volumes: &[64 << 20],
                ssds: Ssds::default(),
                serving: Serving { costs, ..Serving::default() },
            })
            .unwrap();
            scene.play(0, 1, filling(1 << 20, 4096)).unwrap();
            scene.destage(0).unwrap()
        };
        let (free, charged) = (destaged(None), destaged(Some(costs)));
        assert!(free < 200 * MILLISECOND, "{free}");
        assert!(charged >= 256 * MILLISECOND, "256 blocks: {charged}");
    }

    #[test]
    fn two_that_have_work_get_half_each() {
        let runtime = World::new(1) as Rc<dyn Runtime>;
        let cpu = Cpu::new(runtime, Costs::measured());
        assert_eq!(cpu.give(Lane::Front, 100), 100);
        assert_eq!(cpu.give(Lane::Behind, 1_000), 2_000);
        assert_eq!(cpu.give(Lane::Front, 100), 300);
        assert_eq!(cpu.spent(), 1_200);
    }
}

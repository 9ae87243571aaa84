//! A processor for a world in which code takes hardly any time: requests wait until it has had time for
//! them, so that an engine that only looks fast because its code is free does not win.
//!
//! * One processor for a pool, as one reactor has it in the product. What clients of other reactors cost
//!   those, and what a server's connections cost, is not in it.
//! * While requests and destaging both have work, each gets half of it: a reactor's tasks take turns, and
//!   neither is free because the other one is busy. What reclaim moves and drops is taken from the engine's
//!   counters.
//! * A second copy is not charged: it is one more write for a record of many requests.

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
    /// A read's first block, also where RAM has it, which costs less.
    pub read_ns: Nanos,
    /// A write's first block, whether it is cached or not.
    pub write_ns: Nanos,
    /// A piece of a read that the origin answers, beyond what a hit costs.
    pub miss_ns: Nanos,
    /// Each further block of a request or of a destaged run, and each block that is brought in.
    pub further_ns: Nanos,
    /// A block that reclaim moves.
    pub move_ns: Nanos,
    /// A block that reclaim drops from the cache.
    pub evict_ns: Nanos,
    /// A block that is brought to the origin, or a run of them that lie together in the log: the first of it.
    pub destage_ns: Nanos,
}

impl Costs {
    /// What docs/internals/performance.md has measured ("What the lab charges"): all by `forebay-bench costs`, on
    /// the pool's reactor, system calls included, and rounded up to the highest median of its runs. A test
    /// holds them above these.
    ///
    /// * read: hits there, 3.4 us. Where other reactors read for themselves the pool's has 1.3 us of each.
    /// * write: over what is cached 4.9 us on one day and 6.4 on another, without what it displaces. Where half is
    ///   not cached it is 4.8 and 5.6.
    /// * miss: 40,087 instructions (`make instructions`) at 5,200 a microsecond; with a read's it is above
    ///   what was measured.
    /// * move: what a full log adds to a write, 4.5 instead of 3.9 us, by 0.12 moves.
    /// * evict: what is left of a write's by eviction is less than the runs differ by. It takes a change of state
    ///   in the index, of which a destaged block has two in 8,600 instructions, and has less to change.
    /// * destage: 15.7 and 16.7 us for a block by itself.
    /// * further blocks: 314 us for 256 of them written and destaged (`bench-engine`, row `seqwrite`), half
    ///   of it each way.
    pub fn measured() -> Self {
        Self {
            read_ns: 3_400,
            write_ns: 6_400,
            miss_ns: 7_700,
            further_ns: 620,
            move_ns: 5_000,
            evict_ns: 800,
            destage_ns: 17_000,
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
    evicted: Cell<u64>,
    /// Runs that were destaged when it was looked last.
    runs: Cell<u64>,
    /// When each lane has done what it was given.
    free_at: [Cell<Nanos>; 2],
    spent: Cell<Nanos>,
}

impl Cpu {
    /// An idle one.
    pub fn new(runtime: Rc<dyn Runtime>, costs: Costs) -> Self {
        let zero = || Cell::new(0);
        let (pool, moved, evicted, runs) = (RefCell::default(), zero(), zero(), zero());
        let (free_at, spent) = Default::default();
        Self { runtime, costs, pool, moved, evicted, runs, free_at, spent }
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
        let evictions = count(|counters| &counters.evict_blocks);
        let evicted = evictions - self.evicted.replace(evictions);
        let reclaimed = moved * self.costs.move_ns + evicted * self.costs.evict_ns;
        if reclaimed > 0 {
            self.give(Lane::Behind, reclaimed);
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

    /// What `forebay-bench costs` has measured, in microseconds, and what each was charged for: blocks moved,
    /// evicted, and brought in beyond the first. 2026-11-23 kept no evictions: the fewest of the other day.
    #[test]
    fn nothing_is_charged_less_than_it_was_measured_to_take() {
        let costs = Costs::measured();
        let (write, miss) = (costs.write_ns, costs.read_ns + costs.miss_ns);
        for (what, measured, base, moved, evicted, further) in [
            ("overwrite, 2026-11-23", 7.32, write, 0.11, 0.71, 0.0),
            ("overwrite, 2026-11-28", 6.13, write, 0.08, 0.71, 0.0),
            ("wide, 2026-11-23", 9.27, write, 0.63, 0.77, 0.0),
            ("wide, 2026-11-28", 9.70, write, 0.66, 0.77, 0.0),
            ("destage, 2026-11-23", 16.69, costs.destage_ns, 0.0, 0.0, 0.0),
            ("destage, 2026-11-28", 15.74, costs.destage_ns, 0.0, 0.02, 0.0),
            ("miss, 2026-11-23", 18.64, miss, 1.5, 1.0, 2.3),
            ("miss, 2026-11-28", 16.92, miss, 1.7, 1.7, 2.6),
            ("hit, 2026-11-28", 3.396, costs.read_ns, 0.0, 0.0, 0.0),
        ] {
            let each = |ns: Nanos| ns as f64 / 1_000.0;
            let reclaimed = moved * each(costs.move_ns) + evicted * each(costs.evict_ns);
            let charged = each(base) + reclaimed + further * each(costs.further_ns);
            assert!(charged >= measured, "{what}: {measured} us, charged {charged}");
        }
        assert!(costs.further_ns * 2 * 256 >= 314_000, "1 MiB written and destaged");
    }

    #[test]
    fn what_reclaim_drops_takes_its_time() {
        let busy = |evict_ns| {
            let costs = Costs { evict_ns, ..Costs::measured() };
            let member = HddParameters::st500nm0001();
            let disks =
                ArrayParameters { level: Level::Raid5, disks: 4, chunk_bytes: 65536, member };
            let scene = Scene::new(&Setting {
                disks: &disks,
                pool_bytes: 512 << 20,
                ram_bytes: 0,
                volumes: &[1 << 30],
                ssds: Ssds::default(),
                serving: Serving { costs: Some(costs), ..Serving::default() },
            })
            .unwrap();
            scene.play(0, 8, filling(768 << 20, 1 << 20)).unwrap();
            (scene.cpu_spent(), scene.pool.counters().evict_blocks.get())
        };
        let (free, charged) = (busy(0), busy(MILLISECOND));
        assert!(charged.1 > 1_000, "{charged:?}");
        // The last ones are charged to whoever comes next.
        assert!(charged.0 - free.0 > charged.1 / 2 * MILLISECOND, "{free:?} {charged:?}");
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

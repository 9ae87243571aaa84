//! Tasks, virtual time and seeded chance.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use forebay_device::Runtime;
use forebay_device::executor::TaskSet;
use forebay_device::io::Completer;
use forebay_device::runtime::{Nanos, Task};

pub struct World {
    pub tasks: TaskSet,
    now: Cell<Nanos>,
    timers: RefCell<Vec<(Nanos, Completer)>>,
    seed: Cell<u64>,
}

impl World {
    pub fn new(seed: u64) -> Rc<Self> {
        Rc::new(Self {
            tasks: TaskSet::new(Box::new(|| ())),
            now: Cell::new(0),
            timers: RefCell::default(),
            seed: Cell::new(seed),
        })
    }

    /// Runs `future` with all other tasks to its end, moving time when nothing else is to do.
    ///
    /// # Panics
    /// If it waits for something that never comes.
    pub fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let result = Rc::new(Cell::new(None));
        let slot = Rc::clone(&result);
        self.tasks.spawn(Box::pin(async move { slot.set(Some(future.await)) }));
        loop {
            if let Some(value) = result.take() {
                return value;
            }
            assert!(self.step(), "the future waits for ever");
        }
    }

    /// Runs until nothing happens any more.
    pub fn settle(&self) {
        while self.step() {}
    }

    fn step(&self) -> bool {
        self.tasks.run_one(|count| self.random() as usize % count) || self.fire_timer()
    }

    fn fire_timer(&self) -> bool {
        let mut timers = self.timers.borrow_mut();
        timers.retain(|(_, completer)| !completer.is_abandoned());
        let next = (0..timers.len()).min_by_key(|&index| timers[index].0);
        let Some(index) = next else { return false };
        let (deadline, completer) = timers.swap_remove(index);
        drop(timers);
        self.now.set(self.now.get().max(deadline));
        completer.done(Ok(()));
        true
    }
}

impl Runtime for World {
    fn now(&self) -> Nanos {
        self.now.get()
    }

    fn wake_at(&self, deadline: Nanos, completer: Completer) {
        self.timers.borrow_mut().push((deadline, completer));
    }

    fn spawn(&self, task: Task) {
        self.tasks.spawn(task);
    }

    fn random(&self) -> u64 {
        // splitmix64
        self.seed.set(self.seed.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut z = self.seed.get();
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unix_seconds(&self) -> u64 {
        0
    }
}

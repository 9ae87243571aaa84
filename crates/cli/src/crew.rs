//! Reactors on threads of their own that share the clients of all volumes with the pools' reactor.

use std::num::NonZeroUsize;
use std::rc::Rc;

use forebay_device::post::{Sender, post};
use forebay_device::real::reactor::{Config, Reactor};
use forebay_device::real::thread::ReactorThread;

use crate::Result;
use crate::text::tell;

/// What a hand is asked to begin.
type Task = Box<dyn FnOnce(&Rc<Reactor>) + Send>;

/// One reactor of a crew.
pub(crate) struct Hand {
    tasks: Sender<Task>,
    thread: ReactorThread,
}

impl Hand {
    /// Runs `task` on the reactor, soon; it spawns what takes longer.
    pub(crate) fn run(&self, task: impl FnOnce(&Rc<Reactor>) + Send + 'static) {
        self.tasks.send(Box::new(task));
    }
}

/// See the head of the file.
#[derive(Default)]
pub(crate) struct Crew(Vec<Hand>);

/// A reactor for each core.
pub(crate) fn reactors_default() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

impl Crew {
    /// A crew that makes `reactors` in all with the one of the pools. Signals that are to be
    /// received are asked for before: see `Signals::new`.
    ///
    /// # Errors
    /// If there is no thread or no ring to be had; nothing is left running then.
    pub(crate) fn start(reactors: NonZeroUsize) -> Result<Crew> {
        let mut crew = Crew::default();
        for number in 1..reactors.get() {
            let (tasks, arriving) = post::<Task>();
            let body = |reactor: Rc<Reactor>| async move {
                while let Some(task) = arriving.next().await {
                    task(&reactor);
                }
            };
            let thread = ReactorThread::start(&format!("front-{number}"), Config::default(), body)?;
            crew.0.push(Hand { tasks, thread });
        }
        Ok(crew)
    }

    /// All of its reactors.
    pub(crate) fn hands(&self) -> &[Hand] {
        &self.0
    }
}

impl Drop for Crew {
    /// Waits for the threads, which end at once: what they served has been stopped.
    fn drop(&mut self) {
        for Hand { tasks, thread } in self.0.drain(..) {
            drop(tasks);
            if thread.join().is_err() {
                tell("error: a thread that served clients has panicked");
            }
        }
    }
}

//! Reactors on threads of their own that share the clients of all volumes with the pools' reactor.

use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Whether all reactors of a crew go on.
#[derive(Default)]
pub(crate) struct Pulse(Vec<Arc<AtomicBool>>);

impl Pulse {
    /// Of this crew.
    pub(crate) fn of(crew: &Crew) -> Pulse {
        Pulse(crew.0.iter().map(|_| Arc::new(AtomicBool::new(true))).collect())
    }

    /// Whether each reactor has done what it was asked for the last time; asks again those that have.
    pub(crate) fn take(&self, crew: &Crew) -> bool {
        let mut is_alive = true;
        for (hand, answered) in crew.0.iter().zip(&self.0) {
            if !answered.swap(false, Ordering::AcqRel) {
                is_alive = false;
                continue;
            }
            let answered = Arc::clone(answered);
            hand.run(move |_| answered.store(true, Ordering::Release));
        }
        is_alive
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_reactor_that_hangs_has_no_pulse_until_it_goes_on() {
        let crew = Crew::start(NonZeroUsize::new(3).unwrap()).unwrap();
        let pulse = Pulse::of(&crew);
        let (started, is_started) = channel();
        let (release, released) = channel::<()>();
        crew.hands()[1].run(move |_| {
            started.send(()).unwrap();
            let _ = released.recv();
        });
        is_started.recv().unwrap();
        assert!(pulse.take(&crew), "nobody was asked before");
        for _ in 0..3 {
            assert!(!pulse.take(&crew));
        }
        drop(release);
        let (done, is_done) = channel();
        for hand in crew.hands() {
            let done = done.clone();
            hand.run(move |_| done.send(()).unwrap());
        }
        (0..2).for_each(|_| is_done.recv().unwrap());
        // The first one has answered long ago, and was asked again in between.
        pulse.take(&crew);
        let (done, is_done) = channel();
        for hand in crew.hands() {
            let done = done.clone();
            hand.run(move |_| done.send(()).unwrap());
        }
        (0..2).for_each(|_| is_done.recv().unwrap());
        assert!(pulse.take(&crew));
    }
}

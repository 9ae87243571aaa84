//! Reactors on threads of their own.
//!
//! A panic on such a thread ends the process. Whoever waits for the thread (clients of its
//! sockets, callers of its relays, buffers that the kernel fills) waits for tasks that hold the
//! reactor, which holds its tasks: nothing of it would go away by itself. Closing the reactor while
//! it unwinds would run the code of all other tasks in a state that has just been shown to be
//! wrong, and a second panic there ends the process anyway. A pool survives the end of its process
//! at any instant, so that is the one way out that is certain.

use std::future::Future;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use crate::real::reactor::{Config, Part, Reactor, StartError};

/// Ends the process when its thread unwinds.
struct EndsWithPanic;

impl Drop for EndsWithPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("a reactor");
            eprintln!("thread '{name}' cannot go on after a panic, so the process ends");
            std::process::abort();
        }
    }
}

/// A thread that runs a reactor.
pub struct ReactorThread(JoinHandle<()>);

impl ReactorThread {
    /// Starts a thread called `name`, at most 15 bytes, with a reactor that runs `body` to its
    /// end and is closed then.
    ///
    /// # Errors
    /// If there is no thread or no ring to be had. A panic of `body` ends the process.
    pub fn start<B, F>(name: &str, config: Config, body: B) -> Result<Self, StartError>
    where
        B: FnOnce(Rc<Reactor>) -> F + Send + 'static,
        F: Future<Output = ()>,
    {
        let (started, outcome) = mpsc::channel();
        let run = move || {
            let _ends = EndsWithPanic;
            match Reactor::new(config) {
                Ok(reactor) => {
                    let _ = started.send(Ok(()));
                    reactor.block_on(body(Rc::clone(&reactor)));
                    reactor.close();
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            }
        };
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        let failed = |source| StartError::new(Part::Thread, source);
        let thread = spawned.map_err(failed)?;
        match outcome.recv() {
            Ok(Ok(())) => Ok(Self(thread)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(failed(std::io::Error::other("the thread has ended"))),
        }
    }

    /// Waits until the body has ended. Blocks: for the end of a process, outside of any reactor.
    ///
    /// # Errors
    /// As a thread's; a panic of the body ends the process before.
    pub fn join(self) -> std::thread::Result<()> {
        self.0.join()
    }
}

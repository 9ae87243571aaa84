//! Reactors on threads of their own.

use std::future::Future;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use crate::real::reactor::{Config, Part, Reactor, StartError};

/// A thread that runs a reactor.
pub struct ReactorThread(JoinHandle<()>);

impl ReactorThread {
    /// Starts a thread called `name`, at most 15 bytes, with a reactor that runs `body` to its
    /// end and is closed then.
    ///
    /// # Errors
    /// If there is no thread or no ring to be had.
    pub fn start<B, F>(name: &str, config: Config, body: B) -> Result<Self, StartError>
    where
        B: FnOnce(Rc<Reactor>) -> F + Send + 'static,
        F: Future<Output = ()>,
    {
        let (started, outcome) = mpsc::channel();
        let run = move || match Reactor::new(config) {
            Ok(reactor) => {
                let _ = started.send(Ok(()));
                reactor.block_on(body(Rc::clone(&reactor)));
                reactor.close();
            }
            Err(error) => {
                let _ = started.send(Err(error));
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
    /// What the body panicked with.
    pub fn join(self) -> std::thread::Result<()> {
        self.0.join()
    }
}

//! The small file beside the daemon's configuration that remembers what a pool's members may have
//! taken with them: the newest epoch and which volumes may be dirty.

use std::future::Future;
use std::pin::Pin;

/// A future of this module; boxed, for it runs only when a pool's membership or flags change.
pub type WitnessFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Where the witness is kept. One per pool.
pub trait Witness {
    /// The stored bytes, `None` if there are none.
    ///
    /// # Errors
    /// A sentence for people, if it exists and cannot be read.
    fn load(&self) -> WitnessFuture<'_, Result<Option<Vec<u8>>, String>>;

    /// Replaces the stored bytes, durably and all or nothing.
    ///
    /// # Errors
    /// A sentence for people.
    fn store(&self, bytes: Vec<u8>) -> WitnessFuture<'_, Result<(), String>>;
}

/// A witness in memory, for simulation and for pools that are thrown away.
#[derive(Default)]
pub struct MemoryWitness {
    bytes: std::cell::RefCell<Option<Vec<u8>>>,
}

impl Witness for MemoryWitness {
    fn load(&self) -> WitnessFuture<'_, Result<Option<Vec<u8>>, String>> {
        Box::pin(async { Ok(self.bytes.borrow().clone()) })
    }

    fn store(&self, bytes: Vec<u8>) -> WitnessFuture<'_, Result<(), String>> {
        Box::pin(async move {
            *self.bytes.borrow_mut() = Some(bytes);
            Ok(())
        })
    }
}

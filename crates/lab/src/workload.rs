//! A whole trace in memory, as the accesses that policies see.
//!
//! An access is one 4 KiB block that a request touches. Blocks are numbered in the order of their
//! first access, so that policies index arrays where they would need maps. That costs 4 bytes an
//! access, 32 a request and up to 73 a block of the footprint (16, and 29 to 57 in the map); a run adds 12 and more.

use rustc_hash::FxHashMap;

use crate::trace::Request;
use crate::{Error, Result};

/// Bytes of a block: the engine's unit of mapping.
pub const BLOCK_BYTES: u64 = forebay_engine::ids::BLOCK_BYTES;

/// Accesses of a run: 8 GiB of them. More do not fit the memory of a machine of modest size.
pub const ACCESSES_MAX: usize = 1 << 31;

/// A trace as accesses.
#[derive(Debug, Default)]
pub struct Workload {
    /// Blocks in the order in which they are touched.
    pub accesses: Vec<u32>,
    /// The requests, in order; each touches the next of the accesses.
    pub requests: Vec<Request>,
    /// Volume and number of each block.
    pub blocks: Vec<(u32, u64)>,
    numbers: FxHashMap<(u32, u64), u32>,
}

/// Blocks of the volume that a request touches.
pub fn blocks_of(request: &Request) -> std::ops::Range<u64> {
    request.offset / BLOCK_BYTES..(request.offset + request.bytes).div_ceil(BLOCK_BYTES)
}

impl Workload {
    /// All of the requests.
    ///
    /// # Errors
    /// The reader's, or if there are more accesses than [`ACCESSES_MAX`].
    pub fn load(requests: impl IntoIterator<Item = Result<Request>>) -> Result<Self> {
        let mut workload = Self::default();
        for request in requests {
            workload.push(request?)?;
        }
        Ok(workload)
    }

    fn push(&mut self, request: Request) -> Result<()> {
        for block in blocks_of(&request) {
            if self.accesses.len() == ACCESSES_MAX {
                let what = format!("the trace has more than {ACCESSES_MAX} accesses");
                return Err(Error::new(what, "take a part of it with --requests"));
            }
            // At most as many blocks as accesses, so 32 bits are enough.
            let next = self.blocks.len() as u32;
            let number = *self.numbers.entry((request.volume, block)).or_insert(next);
            if number == next {
                self.blocks.push((request.volume, block));
            }
            self.accesses.push(number);
        }
        self.requests.push(request);
        Ok(())
    }

    /// Blocks touched at least once.
    pub fn footprint(&self) -> usize {
        self.blocks.len()
    }

    /// Each request with its accesses.
    pub fn by_request(&self) -> impl Iterator<Item = (&Request, &[u32])> {
        let mut at = 0;
        self.requests.iter().map(move |request| {
            let blocks = blocks_of(request);
            let from = at;
            at += (blocks.end - blocks.start) as usize;
            (request, &self.accesses[from..at])
        })
    }
}

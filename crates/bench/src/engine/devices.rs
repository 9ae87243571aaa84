//! Devices that cost nothing or hold nothing.

use std::cell::Cell;

use forebay_device::model::store::MemoryStore;
use forebay_device::{BlockDevice, Buf, Completer, Geometry, Request};

/// A memory store whose reads can be made to return at once without copying: what is left is what
/// the engine costs.
pub(super) struct ZeroCost {
    store: MemoryStore,
    pub instant: Cell<bool>,
}

impl ZeroCost {
    pub(super) fn new(size_bytes: u64) -> Self {
        Self { store: MemoryStore::new(size_bytes, 4096), instant: Cell::new(false) }
    }
}

impl BlockDevice for ZeroCost {
    fn geometry(&self) -> Geometry {
        self.store.geometry()
    }

    fn submit(&self, request: Request, completer: Completer) {
        if self.instant.get() && matches!(request, Request::Read { .. }) {
            return request.finish(Ok(()), completer);
        }
        self.store.submit(request, completer);
    }
}

/// An origin of any size without memory: every block holds its own number, and writes are
/// expected to say the same. So it is the same origin for every process that opens it.
pub(super) struct Numbered {
    size_bytes: u64,
}

const WORD: usize = 8;
const SECTOR: usize = 512;

/// Fills `bytes`, which begin at `offset`, with what they hold.
fn number(offset: u64, bytes: &mut [u8]) {
    for (i, block) in bytes.chunks_mut(4096).enumerate() {
        let word = (offset / 4096 + i as u64).to_le_bytes();
        block.chunks_exact_mut(WORD).for_each(|place| place.copy_from_slice(&word));
    }
}

/// The same for the beginning of each sector alone, for what is written: fio, too, changes no more
/// than some bytes of each sector of its buffers.
pub(super) fn mark(offset: u64, bytes: &mut [u8]) {
    for (i, block) in bytes.chunks_mut(4096).enumerate() {
        let word = (offset / 4096 + i as u64).to_le_bytes();
        block.chunks_exact_mut(SECTOR).for_each(|sector| sector[..WORD].copy_from_slice(&word));
    }
}

/// Whether a block read at `offset` is right.
pub(super) fn is_numbered(offset: u64, bytes: &Buf) -> bool {
    let word = (offset / 4096).to_le_bytes();
    bytes[..4096].chunks_exact(SECTOR).all(|sector| sector[..WORD] == word)
}

impl Numbered {
    pub(super) fn new(size_bytes: u64) -> Self {
        Self { size_bytes }
    }
}

impl BlockDevice for Numbered {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.size_bytes,
            sector_bytes: 4096,
            discard: false,
            stripe: None,
            controller: None,
            durable_writes: false,
        }
    }

    fn submit(&self, mut request: Request, completer: Completer) {
        if let Request::Read { offset, buf } = &mut request {
            number(*offset, buf);
        }
        request.finish(Ok(()), completer);
    }
}

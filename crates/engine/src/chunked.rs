//! An array that grows and shrinks by what belongs to one chunk of frames, without moving.

use std::ops::{Index, IndexMut};

use forebay_device::CHUNK_BYTES;

use crate::ids::BLOCK_BYTES;

/// Items that belong to one chunk of memory: one per frame.
pub(crate) const CHUNK_FRAMES: usize = CHUNK_BYTES / BLOCK_BYTES as usize;

/// See the module's words.
pub(crate) struct Chunked<T>(Vec<Box<[T]>>);

impl<T> Default for Chunked<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Copy> Chunked<T> {
    /// Adds the items of one more chunk; false if there is no memory for them.
    #[must_use]
    pub(crate) fn grow(&mut self, item: T) -> bool {
        let mut items = Vec::new();
        if self.0.try_reserve(1).is_err() || items.try_reserve_exact(CHUNK_FRAMES).is_err() {
            return false;
        }
        items.resize(CHUNK_FRAMES, item);
        self.0.push(items.into_boxed_slice());
        true
    }

    /// Takes the items of the last chunk away.
    pub(crate) fn shrink(&mut self) {
        self.0.pop();
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len() * CHUNK_FRAMES
    }
}

impl<T> Index<u32> for Chunked<T> {
    type Output = T;

    fn index(&self, at: u32) -> &T {
        &self.0[at as usize / CHUNK_FRAMES][at as usize % CHUNK_FRAMES]
    }
}

impl<T> IndexMut<u32> for Chunked<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.0[at as usize / CHUNK_FRAMES][at as usize % CHUNK_FRAMES]
    }
}

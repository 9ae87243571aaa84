//! Large pieces of memory that stay, in huge pages: what a tier in RAM is made of, and long lists.
//!
//! Unlike [`Buf`](crate::Buf) a chunk is never handed to a device, and to be refused one is an
//! answer, not the end of the process.

use std::alloc::{Layout, alloc, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of a chunk and its alignment: one huge page of x86-64 and, with 4 KiB pages, of AArch64.
pub const CHUNK_BYTES: usize = 2 << 20;

const LAYOUT: Layout = match Layout::from_size_align(CHUNK_BYTES, CHUNK_BYTES) {
    Ok(layout) => layout,
    Err(_) => panic!("the size is a power of two"),
};

/// [`CHUNK_BYTES`] of memory, all of it present from the beginning.
pub struct Chunk {
    start: NonNull<u8>,
}

impl Chunk {
    /// A chunk of zeroes, in a huge page where the kernel has one; `None` if there is no memory for
    /// it. Every page is touched here, so that no later access waits for the kernel.
    pub fn allocate() -> Option<Chunk> {
        // SAFETY: the layout has a size above zero.
        let start = unsafe { alloc(LAYOUT) };
        let start = NonNull::new(start)?;
        // SAFETY: the range is the allocation, which begins and ends at pages; the advice changes
        // neither content nor protection. If it is refused, small pages do.
        unsafe { libc::madvise(start.as_ptr().cast(), CHUNK_BYTES, libc::MADV_HUGEPAGE) };
        // SAFETY: all of these bytes belong to the allocation and nobody else knows of it.
        unsafe { start.as_ptr().write_bytes(0, CHUNK_BYTES) };
        Some(Chunk { start })
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc` with this very layout and is freed once.
        unsafe { dealloc(self.start.as_ptr(), LAYOUT) };
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: initialised memory that `self` owns and keeps; writing it takes `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), CHUNK_BYTES) }
    }
}

impl DerefMut for Chunk {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes this the only reference to these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), CHUNK_BYTES) }
    }
}

/// An empty list with room for so many, in huge pages where the kernel has them, as far as whole ones lie within: for what
/// is looked up all over, of which each page would be looked up, too.
pub fn list_in_huge_pages<T>(room: usize) -> Vec<T> {
    let mut list = Vec::with_capacity(room);
    let spare = list.spare_capacity_mut();
    let bytes = size_of_val(spare);
    let start = spare.as_mut_ptr().cast::<u8>();
    if let Some((skipped, whole)) = huge_pages(start.addr(), bytes) {
        // SAFETY: the range lies within the allocation of the list and begins and ends at pages; the advice changes neither
        // content nor protection. If it is refused, small pages do.
        unsafe { libc::madvise(start.wrapping_add(skipped).cast(), whole, libc::MADV_HUGEPAGE) };
    }
    list
}

/// The whole huge pages within so many bytes: how many bytes are in front of them, and their own.
fn huge_pages(start: usize, bytes: usize) -> Option<(usize, usize)> {
    let skipped = start.next_multiple_of(CHUNK_BYTES) - start;
    let whole = bytes.checked_sub(skipped)? / CHUNK_BYTES * CHUNK_BYTES;
    (whole > 0).then_some((skipped, whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_zeroes_aligned_to_its_size_and_keeps_what_is_written() {
        let mut chunk = Chunk::allocate().unwrap();
        assert_eq!(chunk.as_ptr() as usize % CHUNK_BYTES, 0);
        assert!(chunk.len() == CHUNK_BYTES && chunk.iter().all(|&byte| byte == 0));
        chunk[4096..8192].fill(7);
        assert!(chunk[..4096].iter().all(|&byte| byte == 0));
        assert!(chunk[4096..8192].iter().all(|&byte| byte == 7) && chunk[8192] == 0);
    }

    #[test]
    fn a_list_in_huge_pages_is_a_list_of_any_length_and_of_anything() {
        for count in [0, 1, 4096, 3 * CHUNK_BYTES] {
            let mut list = list_in_huge_pages(count);
            assert!(list.is_empty() && list.capacity() >= count);
            let at = list.as_ptr();
            list.resize(count, 7_u8);
            assert!(list.as_ptr() == at && list.iter().all(|&byte| byte == 7));
        }
        assert_eq!(list_in_huge_pages::<()>(5).len(), 0);
    }

    #[test]
    fn only_whole_huge_pages_within_a_list_are_asked_for() {
        const PAGE: usize = CHUNK_BYTES;
        assert_eq!(huge_pages(PAGE, PAGE - 1), None);
        assert_eq!(huge_pages(PAGE, PAGE), Some((0, PAGE)));
        assert_eq!(huge_pages(PAGE + 1, 2 * PAGE - 2), None);
        assert_eq!(huge_pages(PAGE + 1, 2 * PAGE - 1), Some((PAGE - 1, PAGE)));
        assert_eq!(huge_pages(3 * PAGE - 16, 5 * PAGE), Some((16, 4 * PAGE)));
        assert_eq!(huge_pages(16, 0), None);
    }
}

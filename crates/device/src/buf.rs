//! Aligned, pooled memory for I/O.
//!
//! * A [`Buf`] is the only handle to its bytes; splitting gives disjoint handles onto one
//!   allocation, so several reads may fill one request's buffer at the same time.
//! * A [`Data`] is a frozen `Buf`: read-only and cheap to clone, for one payload written to
//!   several members.
//! * A request moves its buffer into the device, so memory the kernel may still touch is never
//!   freed, even when the future that waits for it is dropped.
//! * Memory returns to a bounded pool of the thread that drops the last handle.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment of every allocation, in bytes: the largest logical sector that O_DIRECT asks for.
pub const BUF_ALIGN_BYTES: usize = 4096;

/// Memory kept for reuse by one thread, in bytes: what a busy destage and a queue of long requests have under way.
/// What the allocator gets back of that size it gives back to the kernel, and to get it again costs a page
/// fault for each 4 KiB, more than all that is done with it.
pub const POOL_BYTES_MAX: usize = 160 << 20;

/// Size classes are powers of two from 4 KiB up to this many bytes (the longest request).
const POOL_ALLOCATION_BYTES_MAX: usize = 32 << 20;

const CLASSES: usize = (POOL_ALLOCATION_BYTES_MAX / BUF_ALIGN_BYTES).trailing_zeros() as usize + 1;

thread_local! {
    static POOL: RefCell<Pool> = RefCell::new(Pool::new(POOL_BYTES_MAX));
}

/// Regions of one size, the one that was used last on top.
#[derive(Default)]
struct Shelf {
    regions: Vec<Region>,
    /// When the pool was last asked for one, on its count.
    asked: u64,
}

/// Memory that a thread keeps.
struct Pool {
    shelves: [Shelf; CLASSES],
    asked: u64,
    bytes: usize,
    bytes_max: usize,
}

impl Pool {
    fn new(bytes_max: usize) -> Self {
        Self { shelves: Default::default(), asked: 0, bytes: 0, bytes_max }
    }

    #[inline]
    fn take(&mut self, class: usize) -> Option<Region> {
        self.asked += 1;
        let shelf = &mut self.shelves[class];
        shelf.asked = self.asked;
        let region = shelf.regions.pop()?;
        self.bytes -= region.capacity;
        Some(region)
    }

    /// Keeps a region; what was not asked for the longest goes for it.
    #[inline]
    fn put(&mut self, class: usize, region: Region) {
        self.bytes += region.capacity;
        self.shelves[class].regions.push(region);
        while self.bytes > self.bytes_max {
            self.give_back();
        }
    }

    /// Frees one of those that were not asked for the longest.
    #[cold]
    fn give_back(&mut self) {
        let full = self.shelves.iter_mut().filter(|shelf| !shelf.regions.is_empty());
        let oldest = full.min_by_key(|shelf| shelf.asked);
        self.bytes -=
            oldest.and_then(|shelf| shelf.regions.pop()).map_or(self.bytes, |r| r.capacity);
    }
}

/// One raw allocation of `capacity` bytes.
struct Region {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: a Region is plain memory with one owner; nothing in it is tied to a thread.
unsafe impl Send for Region {}
// SAFETY: shared access to a Region hands out no bytes; `Buf` and `Data` decide who may read.
unsafe impl Sync for Region {}

impl Region {
    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, BUF_ALIGN_BYTES).expect("capacity is bounded")
    }

    fn class(capacity: usize) -> Option<usize> {
        (capacity <= POOL_ALLOCATION_BYTES_MAX && capacity.is_power_of_two())
            .then(|| (capacity / BUF_ALIGN_BYTES).trailing_zeros() as usize)
    }

    /// Bytes that are allocated for `len`.
    fn capacity_for(len: usize) -> usize {
        if len <= POOL_ALLOCATION_BYTES_MAX {
            len.max(BUF_ALIGN_BYTES).next_power_of_two()
        } else {
            len.next_multiple_of(BUF_ALIGN_BYTES)
        }
    }

    fn new(len: usize) -> Self {
        let capacity = Self::capacity_for(len);
        if let Some(class) = Self::class(capacity) {
            let reused = POOL.try_with(|pool| pool.borrow_mut().take(class)).ok().flatten();
            if let Some(region) = reused {
                return region;
            }
        }
        let layout = Self::layout(capacity);
        // SAFETY: the layout has a size above zero.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => Self { start, capacity },
            None => handle_alloc_error(layout),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc_zeroed` with this very layout and is freed once.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.capacity)) };
    }
}

/// A region with its way back to the pool.
struct Allocation(Option<Region>);

impl Allocation {
    fn start(&self) -> NonNull<u8> {
        self.0.as_ref().expect("the region leaves only in drop").start
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Some(region) = self.0.take() else { return };
        let Some(class) = Region::class(region.capacity) else { return };
        // With the thread about to end, the closure's drop frees it.
        let _ = POOL.try_with(move |pool| pool.borrow_mut().put(class, region));
    }
}

/// Writable memory, aligned to [`BUF_ALIGN_BYTES`] at its allocation's start, with one owner.
pub struct Buf {
    allocation: Arc<Allocation>,
    offset: usize,
    len: usize,
}

impl Buf {
    /// `len` bytes of unspecified (initialised) content.
    pub fn new(len: usize) -> Self {
        let allocation = Arc::new(Allocation(Some(Region::new(len))));
        Self { allocation, offset: 0, len }
    }

    /// Bytes that `len` of them take: a power of two, or pages for the longest.
    pub fn memory_bytes(len: usize) -> usize {
        Region::capacity_for(len)
    }

    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::new(len);
        buf.fill(0);
        buf
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::new(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Keeps the first `at` bytes and returns the rest as a buffer of its own.
    ///
    /// # Panics
    /// If `at` is past the end.
    pub fn split_off(&mut self, at: usize) -> Buf {
        assert!(at <= self.len, "split at {at} of {}", self.len);
        let rest = Buf {
            allocation: Arc::clone(&self.allocation),
            offset: self.offset + at,
            len: self.len - at,
        };
        self.len = at;
        rest
    }

    /// Undoes [`Buf::split_off`]: appends the neighbour that was split from this buffer.
    ///
    /// # Errors
    /// `next`, if it is another one: one that came in place of a neighbour which a device has kept.
    pub fn join(&mut self, next: Buf) -> Result<(), Buf> {
        let end = self.offset + self.len;
        if Arc::ptr_eq(&self.allocation, &next.allocation) && end == next.offset {
            self.len += next.len;
            Ok(())
        } else {
            Err(next)
        }
    }

    /// Makes the bytes read-only and shareable.
    pub fn freeze(self) -> Data {
        Data { allocation: self.allocation, offset: self.offset, len: self.len }
    }

    /// Address of the first byte, for handing to the kernel.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        // SAFETY: `offset` lies within the allocation.
        unsafe { self.allocation.start().as_ptr().add(self.offset) }
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `offset` lies within the allocation.
        let start = unsafe { self.allocation.start().as_ptr().add(self.offset) };
        // SAFETY: `start..start+len` is initialised memory of the allocation that `self` keeps
        // alive; handles to one allocation are disjoint, so nobody writes it meanwhile.
        unsafe { std::slice::from_raw_parts(start, self.len) }
    }
}

impl std::ops::DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let start = self.as_mut_ptr();
        // SAFETY: as in `deref`; `&mut self` makes this the only reference to these bytes.
        unsafe { std::slice::from_raw_parts_mut(start, self.len) }
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} B)", self.len)
    }
}

/// Read-only memory that several requests may share.
#[derive(Clone)]
pub struct Data {
    allocation: Arc<Allocation>,
    offset: usize,
    len: usize,
}

impl Data {
    /// The part `range` of these bytes, sharing the memory.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn slice(&self, range: std::ops::Range<usize>) -> Data {
        assert!(range.start <= range.end && range.end <= self.len, "slice outside of data");
        Data {
            allocation: Arc::clone(&self.allocation),
            offset: self.offset + range.start,
            len: range.end - range.start,
        }
    }

    /// Appends what follows these bytes in the same memory.
    ///
    /// # Errors
    /// `next`, if it lies elsewhere.
    pub fn join(&mut self, next: Data) -> Result<(), Data> {
        let end = self.offset + self.len;
        if Arc::ptr_eq(&self.allocation, &next.allocation) && end == next.offset {
            self.len += next.len;
            Ok(())
        } else {
            Err(next)
        }
    }
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `offset` lies within the allocation.
        let start = unsafe { self.allocation.start().as_ptr().add(self.offset) };
        // SAFETY: as for `Buf`; frozen bytes have no writer any more.
        unsafe { std::slice::from_raw_parts(start, self.len) }
    }
}

impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Data({} B)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_buffers_are_disjoint_and_join_again() {
        let mut head = Buf::zeroed(8192);
        let mut tail = head.split_off(4096);
        head.fill(1);
        tail.fill(2);
        assert_eq!((head.len(), tail.len()), (4096, 4096));
        assert!(head.join(tail).is_ok());
        assert!(head[..4096].iter().all(|&b| b == 1) && head[4096..].iter().all(|&b| b == 2));
    }

    #[test]
    fn memory_is_aligned_and_returns_to_the_pool() {
        let mut first = Buf::new(5000);
        let address = first.as_mut_ptr() as usize;
        assert_eq!(address % BUF_ALIGN_BYTES, 0);
        drop(first);
        let mut second = Buf::new(8192);
        assert_eq!(second.as_mut_ptr() as usize, address, "the same class is reused");
    }

    #[test]
    fn the_pool_keeps_what_is_in_use_and_no_more_than_its_bound() {
        let all = 10 << 20;
        let mut pool = Pool::new(all);
        let capacity = |class: usize| BUF_ALIGN_BYTES << class;
        let fill = |pool: &mut Pool, class: usize, bytes: usize| {
            assert!(pool.take(class).is_none());
            (0..bytes / capacity(class))
                .for_each(|_| pool.put(class, Region::new(capacity(class))));
        };
        let kept = |pool: &Pool, class: usize| pool.shelves[class].regions.len() * capacity(class);
        let (small, long) = (4, 6);
        fill(&mut pool, small, all);
        assert_eq!((kept(&pool, small), pool.bytes), (all, all));
        // A queue of long ones displaces as much of what nobody asks for any more.
        fill(&mut pool, long, 4 << 20);
        assert_eq!((kept(&pool, small), kept(&pool, long)), (6 << 20, 4 << 20));
        assert!(pool.take(small).is_some());
        fill(&mut pool, long + 1, 4 << 20);
        assert_eq!((kept(&pool, small), kept(&pool, long)), ((6 << 20) - capacity(small), 0));
        assert_eq!(kept(&pool, long + 1), 4 << 20);
        let sum: usize = (0..CLASSES).map(|class| kept(&pool, class)).sum();
        assert_eq!(sum, pool.bytes);
    }

    #[test]
    fn a_thread_that_ends_gives_its_pool_back() {
        let resident_pages = || {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
        };
        let before = resident_pages();
        for _ in 0..64 {
            std::thread::spawn(|| drop(Buf::zeroed(8 << 20))).join().unwrap();
        }
        let grown = resident_pages().saturating_sub(before) * 4096;
        assert!(grown < 256 << 20, "{} MiB stayed behind", grown >> 20);
    }

    #[test]
    fn a_stranger_in_place_of_a_neighbour_comes_back() {
        let mut one = Buf::new(8192);
        let two = one.split_off(4096);
        assert_eq!(one.join(Buf::new(512)).map_err(|stranger| stranger.len()), Err(512));
        assert_eq!((one.len(), two.len()), (4096, 4096));
        assert!(one.join(two).is_ok());
    }

    #[test]
    fn data_joins_what_follows_it_in_memory_and_nothing_else() {
        let mut head = Buf::zeroed(8192);
        let mut tail = head.split_off(4096);
        (head[0], tail[0]) = (1, 2);
        let (head, tail) = (head.freeze(), tail.freeze());
        let mut whole = head.clone();
        assert!(whole.join(tail.clone()).is_ok());
        assert_eq!((whole.len(), whole[0], whole[4096]), (8192, 1, 2));
        let mut turned = tail;
        assert_eq!(turned.join(head).map_err(|other| other.len()), Err(4096));
        assert_eq!(turned.join(Buf::zeroed(512).freeze()).map_err(|other| other.len()), Err(512));
        assert_eq!(turned.len(), 4096);
    }

    #[test]
    fn data_is_shared_and_sliced() {
        let mut buf = Buf::zeroed(4096);
        buf[512] = 7;
        let data = buf.freeze();
        let part = data.slice(512..1024);
        drop(data);
        assert_eq!((part.len(), part[0]), (512, 7));
    }
}

//! Memory as a block device: the data below a modelled device, or a device by itself.
//!
//! Only what was written takes memory, so a test may declare terabytes. Every request completes
//! inside `submit`; there is no power to lose, so a flush has nothing to do.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::buf::{Buf, Data};
use crate::device::{BlockDevice, Geometry, Request};
use crate::io::Completer;

/// Unit of allocation, in bytes: small enough that scattered 4 KiB writes into a large device
/// stay cheap, large enough that a sequential fill needs few map entries.
const PAGE_BYTES: usize = 16 << 10;

/// A sparse block device in memory; bytes never written read as zero.
pub struct MemoryStore {
    geometry: Geometry,
    pages: RefCell<BTreeMap<u64, Box<[u8]>>>,
}

impl MemoryStore {
    /// A device of `size_bytes` zeroes.
    ///
    /// # Panics
    /// If `sector_bytes` is neither 512 nor 4096, or `size_bytes` is not a multiple of it.
    pub fn new(size_bytes: u64, sector_bytes: u32) -> Self {
        assert!(sector_bytes == 512 || sector_bytes == 4096, "sectors are 512 or 4096 bytes");
        assert!(size_bytes.is_multiple_of(u64::from(sector_bytes)), "whole sectors only");
        Self {
            geometry: Geometry {
                size_bytes,
                sector_bytes,
                discard: true,
                stripe: None,
                controller: None,
                durable_writes: false,
            },
            pages: RefCell::default(),
        }
    }

    /// Bytes of memory that hold data.
    pub fn allocated_bytes(&self) -> u64 {
        (self.pages.borrow().len() * PAGE_BYTES) as u64
    }

    fn read_into(&self, offset: u64, buf: &mut Buf) {
        let pages = self.pages.borrow();
        for (page, within, part) in pieces(offset, buf.len() as u64) {
            let target = &mut buf[part];
            match pages.get(&page) {
                Some(bytes) => target.copy_from_slice(&bytes[within..within + target.len()]),
                None => target.fill(0),
            }
        }
    }

    fn write_from(&self, offset: u64, data: &Data) {
        let mut pages = self.pages.borrow_mut();
        for (page, within, part) in pieces(offset, data.len() as u64) {
            let bytes = pages.entry(page).or_insert_with(|| vec![0; PAGE_BYTES].into());
            let source = &data[part];
            bytes[within..within + source.len()].copy_from_slice(source);
        }
    }

    fn zero(&self, offset: u64, len: u64) {
        let mut pages = self.pages.borrow_mut();
        let end = offset + len;
        let inside = offset.div_ceil(PAGE_BYTES as u64)..end / PAGE_BYTES as u64;
        // Whole pages go by what is allocated, not by length: the range may be the whole device.
        if inside.start < inside.end {
            let whole: Vec<u64> = pages.range(inside).map(|(&page, _)| page).collect();
            for page in whole {
                pages.remove(&page);
            }
        }
        for edge in [offset, end] {
            let page = edge / PAGE_BYTES as u64;
            let start = page * PAGE_BYTES as u64;
            if let Some(bytes) = pages.get_mut(&page) {
                let from = offset.max(start).min(start + PAGE_BYTES as u64);
                let to = end.min(start + PAGE_BYTES as u64).max(from);
                bytes[(from - start) as usize..(to - start) as usize].fill(0);
            }
        }
    }
}

/// The range cut at page ends: page number, first byte within it, part of the request's memory.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done;
        let within = (at % PAGE_BYTES as u64) as usize;
        let count = (len - done).min((PAGE_BYTES - within) as u64);
        let part = done as usize..(done + count) as usize;
        done += count;
        Some((at / PAGE_BYTES as u64, within, part))
    })
}

impl BlockDevice for MemoryStore {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&self, mut request: Request, completer: Completer) {
        let result = request.check(&self.geometry);
        if result.is_ok() {
            match &mut request {
                Request::Read { offset, buf } => self.read_into(*offset, buf),
                Request::Write { offset, data, .. } => self.write_from(*offset, data),
                Request::Flush => {}
                // Discarded content is unspecified; zeroes give the memory back.
                Request::Discard { offset, len } | Request::WriteZeroes { offset, len } => {
                    self.zero(*offset, *len);
                }
            }
        }
        request.finish(result, completer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::block_on_ready;
    use crate::io::IoErrorKind;

    fn read(store: &dyn BlockDevice, offset: u64, len: usize) -> Vec<u8> {
        let outcome = block_on_ready(store.read(offset, Buf::new(len)));
        outcome.result.unwrap();
        outcome.buf.unwrap().to_vec()
    }

    fn write(store: &dyn BlockDevice, offset: u64, len: usize, value: u8) {
        let mut buf = Buf::new(len);
        buf.fill(value);
        block_on_ready(store.write(offset, buf.freeze()).done()).unwrap();
    }

    #[test]
    fn unwritten_bytes_read_as_zero_and_take_no_memory() {
        let store = MemoryStore::new(8 << 40, 4096);
        assert!(read(&store, (8 << 40) - 4096, 4096).iter().all(|&b| b == 0));
        assert_eq!(store.allocated_bytes(), 0);
    }

    #[test]
    fn writes_across_pages_read_back() {
        let store = MemoryStore::new(1 << 20, 512);
        write(&store, 15 << 10, 40 << 10, 7);
        let bytes = read(&store, 14 << 10, 42 << 10);
        assert!(bytes[..1024].iter().all(|&b| b == 0));
        assert!(bytes[1024..41 << 10].iter().all(|&b| b == 7));
        assert!(bytes[41 << 10..].iter().all(|&b| b == 0));
    }

    #[test]
    fn zeroing_clears_exactly_the_range() {
        for (offset, len) in [(512, 512), (0, 16 << 10), (8 << 10, 64 << 10), (20 << 10, 1 << 10)] {
            let store = MemoryStore::new(128 << 10, 512);
            write(&store, 0, 128 << 10, 9);
            let device: &dyn BlockDevice = &store;
            block_on_ready(device.write_zeroes(offset, len).done()).unwrap();
            for (at, byte) in read(&store, 0, 128 << 10).into_iter().enumerate() {
                let cleared = (offset..offset + len).contains(&(at as u64));
                assert_eq!(byte, if cleared { 0 } else { 9 }, "byte {at} of {offset}+{len}");
            }
        }
    }

    #[test]
    fn requests_outside_fail() {
        let store = MemoryStore::new(8192, 4096);
        let device: &dyn BlockDevice = &store;
        let outcome = block_on_ready(device.read(8192, Buf::new(4096)));
        assert_eq!(outcome.result, Err(IoErrorKind::Invalid.into()));
        assert!(outcome.buf.is_some());
    }
}

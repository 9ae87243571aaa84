//! Memory as a block device for long runs in virtual time: gibibytes of blocks in 8 bytes each.
//!
//! * A block of 4 KiB that repeats one word of 8 bytes takes that word: the blocks of a load that
//!   fills them so.
//! * Any other block is kept as it is, without the zeroes at its end: the headers of a log, say.
//!
//! So every byte reads back as it was written, and only the memory depends on what it was. As with
//! [`super::store::MemoryStore`] every request completes inside `submit`.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::buf::{Buf, Data};
use crate::device::{BlockDevice, Geometry, Request};
use crate::io::Completer;

const BLOCK: usize = 4096;
const WORD: usize = 8;

/// Words in one piece of the table (1 MiB of the device): a scattered load touches many pieces, and
/// a sequential one should not need an entry of the map for each block.
const PAGE_WORDS: u64 = 256;

/// Stands in the table for a block that is kept as it is. Of the words that blocks repeat it is one
/// like any other, so a block of it is kept as it is, too.
const APART: u64 = 0x5be2_7a90_c41d_63f7;

type Page = Box<[u64; PAGE_WORDS as usize]>;

#[derive(Default)]
struct Blocks {
    words: BTreeMap<u64, Page>,
    apart: BTreeMap<u64, Box<[u8]>>,
}

/// A sparse block device in memory; bytes never written read as zero.
pub struct ThriftyStore {
    geometry: Geometry,
    blocks: RefCell<Blocks>,
}

/// The word that a block repeats, if it does.
fn repeated(block: &[u8]) -> Option<u64> {
    let word: [u8; WORD] = block[..WORD].try_into().ok()?;
    // Comparing a block with itself, one word further on, is one call of memcmp.
    (block[WORD..] == block[..block.len() - WORD]).then(|| u64::from_le_bytes(word))
}

fn repeat(word: u64, bytes: &mut [u8]) {
    let word = word.to_le_bytes();
    bytes.chunks_exact_mut(WORD).for_each(|place| place.copy_from_slice(&word));
}

impl Blocks {
    fn word(&self, block: u64) -> u64 {
        let page = self.words.get(&(block / PAGE_WORDS));
        page.map_or(0, |page| page[(block % PAGE_WORDS) as usize])
    }

    /// Fills `bytes` from the block's byte `within` on.
    fn read(&self, block: u64, within: usize, bytes: &mut [u8]) {
        match self.word(block) {
            APART => {
                let kept: &[u8] = self.apart.get(&block).map_or(&[], |kept| kept);
                let part = &kept[within.min(kept.len())..(within + bytes.len()).min(kept.len())];
                bytes[..part.len()].copy_from_slice(part);
                bytes[part.len()..].fill(0);
            }
            word => repeat(word, bytes),
        }
    }

    fn set_word(&mut self, block: u64, word: u64) {
        let number = block / PAGE_WORDS;
        if word != 0 || self.words.contains_key(&number) {
            let page =
                self.words.entry(number).or_insert_with(|| Box::new([0; PAGE_WORDS as usize]));
            let place = &mut page[(block % PAGE_WORDS) as usize];
            if std::mem::replace(place, word) == APART && word != APART {
                self.apart.remove(&block);
            }
        }
    }

    fn write_block(&mut self, block: u64, bytes: &[u8]) {
        match repeated(bytes) {
            Some(word) if word != APART => self.set_word(block, word),
            _ => {
                let len = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
                self.set_word(block, APART);
                self.apart.insert(block, bytes[..len].into());
            }
        }
    }

    fn write(&mut self, block: u64, within: usize, bytes: &[u8]) {
        if bytes.len() == BLOCK {
            return self.write_block(block, bytes);
        }
        let mut whole = [0; BLOCK];
        self.read(block, 0, &mut whole);
        whole[within..within + bytes.len()].copy_from_slice(bytes);
        self.write_block(block, &whole);
    }

    fn zero(&mut self, offset: u64, len: u64) {
        let page_bytes = PAGE_WORDS * BLOCK as u64;
        let end = offset + len;
        let inside = offset.div_ceil(page_bytes)..end / page_bytes;
        // Whole pages go by what is allocated, not by length: the range may be the whole device.
        if inside.start < inside.end {
            let pages: Vec<u64> = self.words.range(inside).map(|(&page, _)| page).collect();
            for page in pages {
                self.words.remove(&page);
                let blocks = page * PAGE_WORDS..(page + 1) * PAGE_WORDS;
                self.apart.extract_if(blocks, |_, _| true).for_each(drop);
            }
        }
        let mut at = offset;
        while at < end {
            let page = at / page_bytes;
            let page_end = ((page + 1) * page_bytes).min(end);
            if self.words.contains_key(&page) {
                for (block, within, part) in pieces(at, page_end - at) {
                    self.write(block, within, &[0; BLOCK][..part.len()]);
                }
            }
            // From the first edge to the last one: what lies between is gone already.
            let last = end / page_bytes * page_bytes;
            at = if page_end < last { last } else { page_end };
        }
    }
}

/// The range cut at the ends of blocks: block, first byte within it, part of the request's memory.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done;
        let within = (at % BLOCK as u64) as usize;
        let count = (len - done).min((BLOCK - within) as u64);
        let part = done as usize..(done + count) as usize;
        done += count;
        Some((at / BLOCK as u64, within, part))
    })
}

impl ThriftyStore {
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
            blocks: RefCell::default(),
        }
    }

    /// The word that a block of 4 KiB repeats, without any request; `None` if it holds more.
    pub fn word(&self, block: u64) -> Option<u64> {
        Some(self.blocks.borrow().word(block)).filter(|&word| word != APART)
    }

    /// Bytes of memory that hold data.
    pub fn allocated_bytes(&self) -> u64 {
        let blocks = self.blocks.borrow();
        let apart: usize = blocks.apart.values().map(|kept| kept.len()).sum();
        (blocks.words.len() * size_of::<[u64; PAGE_WORDS as usize]>() + apart) as u64
    }

    fn read_into(&self, offset: u64, buf: &mut Buf) {
        let blocks = self.blocks.borrow();
        for (block, within, part) in pieces(offset, buf.len() as u64) {
            blocks.read(block, within, &mut buf[part]);
        }
    }

    fn write_from(&self, offset: u64, data: &Data) {
        let mut blocks = self.blocks.borrow_mut();
        for (block, within, part) in pieces(offset, data.len() as u64) {
            blocks.write(block, within, &data[part]);
        }
    }
}

impl BlockDevice for ThriftyStore {
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
                Request::Discard { offset, len } | Request::WriteZeroes { offset, len } => {
                    self.blocks.borrow_mut().zero(*offset, *len);
                }
            }
        }
        request.finish(result, completer);
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::MemoryStore;
    use super::super::world::Rng;
    use super::*;
    use crate::executor::block_on_ready;

    const SIZE: u64 = 4 << 20;

    /// Ranges that share their ends with blocks and pages often.
    fn range(rng: &mut Rng) -> (u64, u64) {
        let unit = *rng.pick(&[512, 4096, 64 << 10, 1 << 20]);
        let start = rng.below(SIZE / unit) * unit;
        let len = (rng.between(1, 9) * *rng.pick(&[512, 4096, 1 << 18])).min(SIZE - start);
        (start, len)
    }

    fn content(rng: &mut Rng, len: u64) -> Buf {
        let mut buf = Buf::zeroed(len as usize);
        match rng.below(4) {
            0 => repeat(rng.bits(), &mut buf),
            1 => repeat(APART, &mut buf),
            2 => buf[..100].fill(rng.bits() as u8),
            _ => buf.chunks_exact_mut(BLOCK).for_each(|block| repeat(rng.bits(), block)),
        }
        buf
    }

    #[test]
    fn it_holds_what_a_plain_store_holds() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let stores: [Box<dyn BlockDevice>; 2] =
                [Box::new(MemoryStore::new(SIZE, 512)), Box::new(ThriftyStore::new(SIZE, 512))];
            for _ in 0..60 {
                let (start, len) = range(&mut rng);
                let data = content(&mut rng, len).freeze();
                let zeroes = rng.one_in(4);
                for store in &stores {
                    let io = match zeroes {
                        true => store.write_zeroes(start, len),
                        false => store.write(start, data.clone()),
                    };
                    block_on_ready(io.done()).unwrap();
                }
                let (start, len) = range(&mut rng);
                let read = |store: &dyn BlockDevice| {
                    let outcome = block_on_ready(store.read(start, Buf::new(len as usize)));
                    outcome.buf.unwrap().to_vec()
                };
                assert!(read(&*stores[0]) == read(&*stores[1]), "seed {seed}: {len} at {start}");
            }
        }
    }

    #[test]
    fn a_word_takes_a_word_and_a_header_what_it_says() {
        let store = ThriftyStore::new(1 << 40, 4096);
        let device: &dyn BlockDevice = &store;
        let mut buf = Buf::new(1 << 20);
        repeat(7, &mut buf);
        block_on_ready(device.write(1 << 39, buf.freeze()).done()).unwrap();
        assert_eq!(store.allocated_bytes(), 2048);
        assert_eq!((store.word(1 << 27), store.word(0)), (Some(7), Some(0)));
        let mut header = Buf::zeroed(BLOCK);
        header[..100].fill(3);
        block_on_ready(device.write(1 << 39, header.freeze()).done()).unwrap();
        assert_eq!((store.allocated_bytes(), store.word(1 << 27)), (2148, None));
        block_on_ready(device.discard(0, 1 << 40).done()).unwrap();
        assert_eq!(store.allocated_bytes(), 0);
    }
}

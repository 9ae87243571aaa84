//! Structures whose checksums are right and whose contents nobody wrote: whatever they say, a start
//! and what follows it ends with an answer, never with a panic.

use std::rc::Rc;

use forebay_device::model::world::{Crash, Limits, Rng};
use forebay_device::runtime::SECOND;
use forebay_engine::format::{
    ENTRY_BYTES, Entry, EntryKind, IMAGE_CHUNK_HEAD_BYTES, Layout, RECORD_HEAD_BYTES, RecordHeader,
    STRUCTURES, SUPERBLOCK_BYTES, checksum, decode_footer_trailer, decode_record,
    encode_record_header,
};
use forebay_engine::ids::SECTORS_ALL;
use forebay_engine::limits::SHARDS_MIN;
use forebay_engine::{Mode, Tuning};
use forebay_sim::jobs::alone;

use crate::rig::{BLOCK, MEMBER_BYTES, Plan, Rig, SEGMENT_BYTES, SOON, lazy};

/// A pool with everything in its log: dirty, written over, partial, zeroed, clean, moved, direct.
fn furnished(seed: u64) -> Rc<Rig> {
    let tuning = Tuning { lap_percent: 20, flush_bytes: 256 << 10, ..lazy() };
    let mode = if seed.is_multiple_of(3) { Mode::Writethrough } else { Mode::Writeback };
    let rig = Rig::new(seed, Plan { tuning, mode, ..Plan::default() });
    let block = BLOCK as u64;
    for version in 2..40 {
        rig.write(version, 4 * (version % 8), 4).ok();
    }
    rig.destage().ok();
    for at in 64..80 {
        rig.read(at).ok();
    }
    let volume = rig.volume();
    let work = async move {
        let data = |len: usize| forebay_device::Buf::zeroed(len).freeze();
        volume.set_mode(Mode::Writeback).await.ok();
        volume.write(100 * block + 512, data(1024), false).await.ok();
        volume.write_zeroes(110 * block, 6 * block, false).await.ok();
        volume.trim(4 * block, 2 * block, false).await.ok();
        volume.write(120 * block, data(3 * BLOCK), true).await.ok();
    };
    rig.run(work).ok();
    rig.pause(SOON);
    if seed.is_multiple_of(2) {
        rig.stop().ok();
    } else {
        rig.crash(Crash::ProcessKill);
    }
    rig
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Gives a field (its first 8 bytes) another value, of the kind that breaks things.
fn mutate(rng: &mut Rng, field: &mut [u8]) {
    let len = field.len().min(8);
    let field = &mut field[..len];
    let old = number(field);
    let edges = [0, 1, 2, 3, 255, 256, 65_535, u64::from(u32::MAX), 1 << 36, 1 << 62, u64::MAX];
    let new = match rng.below(5) {
        0 => edges[rng.below(edges.len() as u64) as usize],
        1 => old.wrapping_add(rng.below(4)),
        2 => old.wrapping_sub(rng.below(4)),
        3 => old ^ 1 << rng.below(8 * len as u64),
        _ => rng.below(64),
    };
    field.copy_from_slice(&new.to_le_bytes()[..len]);
}

fn put(bytes: &mut [u8], at: usize, sum: u32) {
    bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Puts the checksum at 16 right.
pub fn seal(bytes: &mut [u8]) {
    put(bytes, 16, 0);
    let sum = checksum(bytes);
    put(bytes, 16, sum);
}

/// Changes one of the fields that the specification names of a structure, its checksums apart.
fn mutate_structure(rng: &mut Rng, structure: &str, bytes: &mut [u8]) -> String {
    let structure = STRUCTURES.iter().find(|s| s.name == structure).unwrap();
    let fields: Vec<_> = structure.fields.iter().filter(|f| !f.name.contains("SUM")).collect();
    let field = rng.pick(&fields);
    mutate(rng, &mut bytes[field.offset..field.offset + field.size]);
    format!("{} {}", structure.name, field.name)
}

struct Crafter {
    rng: Rng,
    image: Vec<u8>,
    layout: Layout,
}

impl Crafter {
    fn segment(&self, number: u64) -> usize {
        (self.layout.segments_offset + number * SEGMENT_BYTES) as usize
    }

    /// Byte offsets of all records of segments that are in use.
    fn records(&self) -> Vec<usize> {
        let start = self.layout.segments_offset as usize;
        let blocks = (start..self.image.len()).step_by(BLOCK);
        blocks.filter(|&at| decode_record(&self.image[at..]).is_ok()).collect()
    }

    fn seal_record(&mut self, at: usize, header_bytes: usize) {
        put(&mut self.image, at + 16, 0);
        put(&mut self.image, at + 20, 0);
        let head = checksum(&self.image[at..at + RECORD_HEAD_BYTES]);
        put(&mut self.image, at + 20, head);
        seal(&mut self.image[at..at + header_bytes]);
    }

    /// Changes an entry or the head of a record, or the image that it holds.
    fn craft_record(&mut self) -> String {
        let mut records = self.records();
        let is_image = |at: &usize| self.image[at + RECORD_HEAD_BYTES] == EntryKind::Image as u8;
        if self.rng.one_in(3) && records.iter().any(is_image) {
            records.retain(is_image);
        }
        let at = *self.rng.pick(&records);
        let (header, entries, _) = decode_record(&self.image[at..]).unwrap();
        let header_bytes = header.header_bytes();
        let entry = self.rng.below(entries.len() as u64) as usize;
        let is_image = entries[entry].kind == EntryKind::Image;
        let what = match self.rng.below(4) {
            0 => mutate_structure(&mut self.rng, "Record head", &mut self.image[at..]),
            1 | 2 if is_image => {
                let from = at + header_bytes + usize::from(entries[entry].data) * BLOCK;
                let blocks = from..from + entries[entry].count as usize * BLOCK;
                let sums = at + RECORD_HEAD_BYTES + ENTRY_BYTES * entries.len();
                self.craft_chunk(blocks.clone());
                for (i, block) in blocks.step_by(BLOCK).enumerate() {
                    let sum = checksum(&self.image[block..block + BLOCK]);
                    put(&mut self.image, sums + 4 * (usize::from(entries[entry].data) + i), sum);
                }
                "image chunk".to_owned()
            }
            _ => {
                let start = at + RECORD_HEAD_BYTES + ENTRY_BYTES * entry;
                mutate_structure(&mut self.rng, "Entry", &mut self.image[start..])
            }
        };
        self.seal_record(at, header_bytes);
        let within = (at as u64 - self.layout.segments_offset) / SEGMENT_BYTES;
        // Without its footer the segment is read in full.
        let trailer = self.segment(within + 1) - BLOCK;
        self.image[trailer] ^= 1;
        format!("{what} of the record at {at} ({:?})", entries[entry].kind)
    }

    fn craft_chunk(&mut self, range: std::ops::Range<usize>) {
        let body = IMAGE_CHUNK_HEAD_BYTES;
        let used = body + number(&self.image[range.start + 32..range.start + 36]) as usize;
        let chunk = &mut self.image[range];
        for _ in 0..1 + self.rng.below(2) {
            let words = (used.saturating_sub(body) / 8).max(1) as u64;
            let at = match self.rng.below(8) {
                0 => 20 + 4 * self.rng.below(4) as usize,
                _ => body + 8 * self.rng.below(words) as usize,
            };
            // One of the bytes that hold first block, count, state, location, distance.
            let byte = at + self.rng.below(8) as usize;
            let old = chunk[byte];
            mutate(&mut self.rng, &mut chunk[byte..byte + 1]);
            if chunk[byte] == old {
                chunk[byte] = old.wrapping_add(1);
            }
        }
        seal(chunk);
    }

    /// Changes a footer: its trailer, a record, or an entry.
    fn craft_footer(&mut self) -> String {
        let ends: Vec<usize> = (1..=u64::from(self.layout.segment_count))
            .map(|number| self.segment(number))
            .filter(|&end| decode_footer_trailer(&self.image[end - BLOCK..end]).is_ok())
            .collect();
        if ends.is_empty() {
            return self.craft_record();
        }
        let end = *self.rng.pick(&ends);
        let trailer = decode_footer_trailer(&self.image[end - BLOCK..end]).unwrap();
        let start = end - BLOCK - trailer.body_blocks() as usize * BLOCK;
        let what = if self.rng.one_in(3) || trailer.body_bytes == 0 {
            mutate_structure(&mut self.rng, "Footer trailer", &mut self.image[end - BLOCK..end])
        } else {
            let words = u64::from(trailer.body_bytes) / 8;
            let at = start + 8 * self.rng.below(words) as usize;
            let skip = self.rng.below(8) as usize;
            mutate(&mut self.rng, &mut self.image[at + skip..at + 8]);
            format!("footer body at {}", at - start)
        };
        let sum = checksum(&self.image[start..end - BLOCK]);
        put(&mut self.image, end - BLOCK + 20, sum);
        seal(&mut self.image[end - BLOCK..end]);
        format!("{what} before {end}")
    }

    fn craft_segment_header(&mut self) -> String {
        let number = self.rng.below(self.layout.segment_count.into());
        let at = self.segment(number);
        let block = &mut self.image[at..at + BLOCK];
        let what = mutate_structure(&mut self.rng, "Segment header", block);
        seal(&mut self.image[at..at + BLOCK]);
        format!("{what} of segment {number}")
    }

    /// Changes both slots in the same way.
    fn craft_root(&mut self) -> String {
        let start = 2 * SUPERBLOCK_BYTES;
        let slot = start..start + self.layout.root_bytes as usize;
        let bytes = &mut self.image[slot.clone()];
        let what = if self.rng.one_in(2) {
            mutate_structure(&mut self.rng, "Root", bytes)
        } else {
            let at = 96 + 8 * self.rng.below(3 * u64::from(SHARDS_MIN)) as usize;
            mutate(&mut self.rng, &mut bytes[at..at + 8]);
            format!("image reference at {at}")
        };
        seal(bytes);
        let copy = bytes.to_vec();
        self.image[slot.end..slot.end + copy.len()].copy_from_slice(&copy);
        format!("{what} of the root")
    }

    fn craft_superblock(&mut self) -> String {
        let bytes = &mut self.image[..SUPERBLOCK_BYTES];
        let what = match self.rng.below(3) {
            0 => mutate_structure(&mut self.rng, "Superblock", bytes),
            1 => mutate_structure(&mut self.rng, "Member record", &mut bytes[256..]),
            _ => mutate_structure(&mut self.rng, "Volume record", &mut bytes[4096..]),
        };
        seal(bytes);
        let copy = bytes.to_vec();
        self.image[SUPERBLOCK_BYTES..2 * SUPERBLOCK_BYTES].copy_from_slice(&copy);
        format!("{what} of the superblock")
    }

    fn craft(&mut self) -> String {
        match self.rng.below(12) {
            0..5 => self.craft_record(),
            5..8 => self.craft_footer(),
            8 => self.craft_segment_header(),
            9 | 10 => self.craft_root(),
            _ => self.craft_superblock(),
        }
    }
}

/// Gives the pool this image of its device, and the witness that goes with it.
fn give(rig: &Rig, image: &[u8], witness: &Option<Vec<u8>>) {
    rig.members[0].poke(0, image);
    rig.remember(witness.clone());
}

/// Opens the pool, and does a little of everything with it if it opens.
fn use_it(rig: &Rc<Rig>, opened: &mut u64) {
    if rig.open().is_err() {
        rig.crash(Crash::ProcessKill);
        return;
    }
    *opened += 1;
    (0..128).for_each(|block| drop(rig.read(block)));
    for block in (0..128).step_by(16) {
        rig.write(50, block, 3).ok();
    }
    rig.flush().ok();
    rig.destage().ok();
    rig.try_stop().ok();
    if rig.restart(Crash::ProcessKill).is_ok() {
        (0..128).for_each(|block| drop(rig.read(block)));
    }
    rig.crash(Crash::PowerCut);
}

/// Many crafted versions of one pool; how many of them could be opened.
fn crafted(seed: u64, versions: u64) -> u64 {
    let rig = furnished(seed);
    rig.world.set_limits(Limits { steps: 300_000, nanos: 30 * SECOND });
    let layout = Layout::new(MEMBER_BYTES, SEGMENT_BYTES as u32, SHARDS_MIN).unwrap();
    let (image, witness) = (rig.members[0].peek(0, MEMBER_BYTES as usize), rig.recall());
    let mut opened = 0;
    for version in 0..versions {
        let rng = Rng::new(seed << 32 | version);
        let mut crafter = Crafter { rng, image: image.clone(), layout };
        let what: Vec<_> = (0..1 + version % 2).map(|_| crafter.craft()).collect();
        println!("seed {seed}, version {version}: {}", what.join("; "));
        give(&rig, &crafter.image, &witness);
        use_it(&rig, &mut opened);
    }
    opened
}

#[test]
fn nothing_with_right_checksums_makes_a_start_panic() {
    let seeds = std::env::var("CRAFTED_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let mut opened = 0;
    for seed in 0..seeds.unwrap_or(12) {
        match alone(move || crafted(seed, 30)) {
            Ok(count) => opened += count,
            Err(panic) => panic!("seed {seed}: {panic}"),
        }
    }
    assert!(opened > 100, "{opened} were opened: the rest is not tried");
}

/// A pool after a kill, and how its one device looks.
fn killed(seed: u64) -> (Rc<Rig>, Crafter) {
    let rig = furnished(2 * seed + 1);
    let image = rig.members[0].peek(0, MEMBER_BYTES as usize);
    let layout = Layout::new(MEMBER_BYTES, SEGMENT_BYTES as u32, SHARDS_MIN).unwrap();
    (rig, Crafter { rng: Rng::new(seed), image, layout })
}

/// A record has an image of the shard beside that which a root names.
#[test]
fn another_image_of_a_shard_in_the_same_record_is_passed_over() {
    let mut crafted = 0;
    for seed in 0..4 {
        let (rig, mut crafter) = killed(seed);
        for at in crafter.records() {
            let (header, mut entries, sums) = decode_record(&crafter.image[at..]).unwrap();
            let first = entries.iter().find(|entry| entry.kind == EntryKind::Image);
            let Some(&first) = first else { continue };
            entries.insert(0, Entry { extra: first.extra + 1, ..first });
            let header = RecordHeader { entry_count: entries.len() as u16, ..header };
            let used = RECORD_HEAD_BYTES + ENTRY_BYTES * entries.len() + 4 * sums.len();
            assert!(used <= header.header_bytes());
            let bytes = &mut crafter.image[at..at + header.header_bytes()];
            encode_record_header(&header, &entries, &sums, bytes);
            crafted += 1;
        }
        rig.members[0].poke(0, &crafter.image);
        assert_eq!(rig.open(), Ok(()), "seed {seed}");
    }
    assert!(crafted >= 4, "{crafted}");
}

/// One record's data is said to be so many blocks that the set could not hold them all: whole ones, or a part of each.
#[test]
fn more_data_in_a_set_than_it_has_blocks_is_passed_over() {
    let mut crafted = [0; 2];
    for (seed, partial) in (0..6).flat_map(|seed| [(seed, false), (seed, true)]) {
        let (rig, crafter) = killed(seed);
        let witness = rig.recall();
        for at in crafter.records() {
            let (header, entries, sums) = decode_record(&crafter.image[at..]).unwrap();
            let has_data = |entry: &&Entry| entry.has_data() && entry.sectors == SECTORS_ALL;
            let first = entries.iter().filter(has_data).find(|entry| {
                let is_any = matches!(entry.kind, EntryKind::Write | EntryKind::Populate);
                entry.count > 1 && (is_any && !partial || entry.kind == EntryKind::Write)
            });
            let Some(first) = first else { continue };
            let first = match partial {
                true => Entry { count: 1, sectors: 0x0F, ..*first },
                false => *first,
            };
            let needed = SEGMENT_BYTES / BLOCK as u64 / u64::from(first.count) + 1;
            let entries: Vec<_> = (0..needed).map(|n| Entry { block: 8 * n, ..first }).collect();
            let header = RecordHeader { entry_count: needed as u16, ..header };
            let used = RECORD_HEAD_BYTES + ENTRY_BYTES * entries.len() + 4 * sums.len();
            if used > header.header_bytes() {
                continue;
            }
            let mut image = crafter.image.clone();
            encode_record_header(
                &header,
                &entries,
                &sums,
                &mut image[at..at + header.header_bytes()],
            );
            let within = (at as u64 - crafter.layout.segments_offset) / SEGMENT_BYTES;
            image[crafter.segment(within + 1) - BLOCK] ^= 1;
            crafted[usize::from(partial)] += 1;
            give(&rig, &image, &witness);
            use_it(&rig, &mut 0);
            if rig.open().is_ok() {
                rig.pause(2 * SECOND);
            }
            rig.crash(Crash::ProcessKill);
        }
    }
    assert!(crafted.iter().all(|crafted| *crafted > 10), "{crafted:?}");
}

/// Data in a set that is said to be one of facts.
#[test]
fn what_a_start_passes_over_the_next_one_passes_over_as_well() {
    let stream = STRUCTURES.iter().find(|s| s.name == "Segment header").unwrap();
    let stream = stream.fields.iter().find(|f| f.name == "STREAM").unwrap().offset;
    let (mut opened, facts) = (0, 4);
    for seed in 0..4 {
        let (rig, crafter) = killed(seed);
        let witness = rig.recall();
        for number in 0..u64::from(crafter.layout.segment_count) {
            let at = crafter.segment(number);
            let mut image = crafter.image.clone();
            if image[at..at + BLOCK].iter().all(|byte| *byte == 0) || image[at + stream] == facts {
                continue;
            }
            image[at + stream] = facts;
            seal(&mut image[at..at + BLOCK]);
            give(&rig, &image, &witness);
            if rig.open().is_ok() {
                opened += 1;
                rig.try_stop().unwrap();
                rig.open().unwrap();
            }
            rig.crash(Crash::ProcessKill);
        }
    }
    assert!(opened > 20, "{opened}");
}

#[test]
fn a_record_head_says_its_kind() {
    // What the crafter relies on: a peeked head and a decoded one agree.
    let rig = furnished(1);
    let image = rig.members[0].peek(0, MEMBER_BYTES as usize);
    let layout = Layout::new(MEMBER_BYTES, SEGMENT_BYTES as u32, SHARDS_MIN).unwrap();
    let crafter = Crafter { rng: Rng::new(1), image, layout };
    let records = crafter.records();
    assert!(records.len() > 20);
    for at in records {
        let peeked = RecordHeader::peek(&crafter.image[at..]).unwrap();
        assert_eq!(peeked, decode_record(&crafter.image[at..]).unwrap().0);
    }
}

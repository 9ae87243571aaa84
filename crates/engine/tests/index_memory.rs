//! What the index costs for each GiB of cache content, by its own account and by the allocator's.
//! Memory, not time: the figures are the same on every machine.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use forebay_engine::format::State;
use forebay_engine::ids::{Location, VolumeId};
use forebay_engine::index::{Mapping, Shard};
use forebay_engine::limits::{
    INDEX_BYTES_PER_GIB, INDEX_BYTES_PER_GIB_SPARSE, INDEX_BYTES_PER_GIB_USUAL,
};

thread_local! {
    /// Bytes allocated less bytes freed by this thread: each test has one of its own.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get().wrapping_add(layout.size()));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.set(HELD.get().wrapping_sub(layout.size()));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// How a region is filled: where extents begin, how long they are, where they may lie.
struct Case {
    name: &'static str,
    extents_per_region: fn(&mut Random) -> u64,
    blocks_per_extent: u32,
    location_bits: u32,
    distance_max: u64,
    bound_bytes_per_gib: usize,
}

/// Extents in the order in which they are written: at random over all regions, or by address.
fn extents(case: &Case, in_order: bool, random: &mut Random) -> Vec<Mapping> {
    let mut list = Vec::new();
    let (mut bytes, mut region) = (0, 0_u64);
    // One shard of the largest useful size: 1 MiB of index, or somewhat less.
    let end = (1_u64 << 30 << 20) / case.bound_bytes_per_gib as u64;
    while bytes < end {
        let mut places: Vec<u64> = (0..256 / u64::from(case.blocks_per_extent)).collect();
        random.shuffle(&mut places);
        places.truncate((case.extents_per_region)(random) as usize);
        places.sort_unstable();
        for place in places {
            let count = case.blocks_per_extent;
            list.push(Mapping {
                block: region * 256 + place * u64::from(count),
                count,
                state: [State::Clean, State::Dirty][random.below(2) as usize],
                location: Location(random.below((1 << case.location_bits) - 256)),
                distance: (1 + random.below(case.distance_max)) as u8,
                sectors: 0xFF,
            });
            bytes += u64::from(count) * 4096;
        }
        // Stripes of 4 MiB of which every thousandth or so is this shard's.
        region += if region % 4 == 3 { 1 + 4 * random.below(2000) } else { 1 };
    }
    if !in_order {
        random.shuffle(&mut list);
    }
    list
}

fn measure(case: &Case, in_order: bool) -> usize {
    let mut random = Random(1);
    let list = extents(case, in_order, &mut random);
    let before = HELD.get();
    let mut shard = Shard::new();
    list.iter().for_each(|mapping| shard.insert(VolumeId(1), *mapping, |_| ()));
    let held = HELD.get().wrapping_sub(before);
    let bytes = shard.memory_bytes();
    assert_eq!(bytes, held + size_of::<Shard>(), "memory_bytes and the allocator differ");
    let per_gib = (bytes as u128 * (1 << 30) / (u128::from(shard.block_count()) * 4096)) as usize;
    let extent_count = shard.extent_count();
    shard.remove_volume(VolumeId(1), |_| ());
    assert_eq!(HELD.get().wrapping_sub(before) + size_of::<Shard>(), shard.memory_bytes());
    assert!(shard.memory_bytes() < 4096, "{} bytes stay behind", shard.memory_bytes());
    // Only now: captured output is allocated too.
    println!(
        "{:44} {:9} {:5} KiB per GiB (bound {}), shard of {} KiB, {:.2} B per extent",
        case.name,
        if in_order { "in order" } else { "at random" },
        per_gib / 1024,
        case.bound_bytes_per_gib / 1024,
        bytes / 1024,
        bytes as f64 / extent_count as f64,
    );
    per_gib
}

fn hold(cases: &[Case]) {
    for case in cases {
        for in_order in [true, false] {
            let bytes = measure(case, in_order);
            assert!(bytes <= case.bound_bytes_per_gib, "{}: {bytes} bytes per GiB", case.name);
        }
    }
}

const USUAL_BOUND: usize = INDEX_BYTES_PER_GIB_USUAL as usize;
const DENSE_BOUND: usize = INDEX_BYTES_PER_GIB as usize;
const SPARSE_BOUND: usize = INDEX_BYTES_PER_GIB_SPARSE as usize;

#[test]
fn extents_of_64_kib_cost_at_most_400_kib_per_gib() {
    let case = |name, extents_per_region| Case {
        name,
        extents_per_region,
        blocks_per_extent: 16,
        location_bits: 36,
        distance_max: 240,
        bound_bytes_per_gib: USUAL_BOUND,
    };
    hold(&[
        case("64 KiB extents, regions full", |_| 16),
        case("64 KiB extents, one to 16", |r| 1 + r.below(16)),
    ]);
}

#[test]
fn extents_of_one_block_in_half_full_regions_cost_at_most_1600_kib_per_gib() {
    let case = |name, extents_per_region, location_bits, distance_max| Case {
        name,
        extents_per_region,
        blocks_per_extent: 1,
        location_bits,
        distance_max,
        bound_bytes_per_gib: DENSE_BOUND,
    };
    hold(&[
        case("4 KiB, half full, 1 TiB pool, batches of 32", |_| 128, 28, 32),
        case("4 KiB, half full, 16 TiB pool", |_| 128, 32, 255),
        case("4 KiB, half full, 256 TiB pool", |_| 128, 36, 255),
        case("4 KiB, half to quite full, 256 TiB pool", |r| 128 + r.below(129), 36, 255),
        case("4 KiB, quite full, 256 TiB pool", |_| 256, 36, 255),
    ]);
}

#[test]
fn one_to_three_blocks_in_a_region_cost_at_most_4608_kib_per_gib() {
    let case = |name, extents_per_region| Case {
        name,
        extents_per_region,
        blocks_per_extent: 1,
        location_bits: 36,
        distance_max: 255,
        bound_bytes_per_gib: SPARSE_BOUND,
    };
    hold(&[
        case("4 KiB, sparse, one to three", |r| 1 + r.below(3)),
        case("4 KiB, sparse, always one", |_| 1),
        case("4 KiB, sparse, always three", |_| 3),
    ]);
}

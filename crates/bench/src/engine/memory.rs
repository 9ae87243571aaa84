//! What the index costs for each GiB of cache content, by its own account (which
//! `crates/engine/tests/index_memory.rs` compares with the allocator's).

use forebay_engine::format::State;
use forebay_engine::ids::{Location, VolumeId};
use forebay_engine::index::{Mapping, Shard};
use serde_json::json;

use super::load::Random;
use crate::bench::{Bench, Result};
use crate::verdict::{Bar, Row};

/// How regions are filled.
struct Case {
    what: &'static str,
    extents_per_region: fn(&mut Random) -> u64,
    blocks_per_extent: u32,
    bound_kib: f64,
}

const CASES: &[Case] = &[
    Case {
        what: "index memory per GiB, 64 KiB extents",
        extents_per_region: |random| 1 + random.below(16),
        blocks_per_extent: 16,
        bound_kib: 400.0,
    },
    Case {
        what: "index memory per GiB, 4 KiB extents, regions half full",
        extents_per_region: |_| 128,
        blocks_per_extent: 1,
        bound_kib: 1638.4,
    },
    Case {
        what: "index memory per GiB, 1 to 3 blocks per region",
        extents_per_region: |random| 1 + random.below(3),
        blocks_per_extent: 1,
        bound_kib: 4608.0,
    },
];

/// Blocks of a region.
const REGION: u64 = 256;

/// Locations and distances are those of the largest pool, 256 TiB, where entries are widest.
fn measure(case: &Case) -> f64 {
    let mut random = Random(1);
    let mut shard = Shard::new();
    let (mut bytes, mut region) = (0, 0);
    // One shard of 1 MiB of index.
    let end = ((1_u64 << 30) as f64 * 1024.0 / case.bound_kib) as u64;
    let count = u64::from(case.blocks_per_extent);
    while bytes < end {
        let mut places: Vec<u64> = (0..REGION / count).collect();
        for i in (1..places.len()).rev() {
            places.swap(i, random.below(i as u64 + 1) as usize);
        }
        for &place in places.iter().take((case.extents_per_region)(&mut random) as usize) {
            let mapping = Mapping {
                block: region * REGION + place * count,
                count: case.blocks_per_extent,
                state: [State::Clean, State::Dirty][random.below(2) as usize],
                location: Location(random.below((1 << 36) - REGION)),
                distance: 1 + random.below(240) as u8,
                sectors: 0xFF,
            };
            shard.insert(VolumeId(1), mapping, |_| ());
            bytes += count * 4096;
        }
        // Stripes of 4 MiB of which every thousandth or so is this shard's.
        region += if region % 4 == 3 { 1 + 4 * random.below(2000) } else { 1 };
    }
    let content = shard.block_count() as f64 * 4096.0 / (1_u64 << 30) as f64;
    shard.memory_bytes() as f64 / 1024.0 / content
}

/// Runs the three rows.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    for case in CASES {
        let kib = measure(case);
        bench.keep(&json!({ "row": "index", "what": case.what, "kib_per_gib": kib }))?;
        let bar = Bar::AtMost(case.bound_kib);
        bench.finish(Row::judged("index", case.what, &[kib], bar, " KiB", false))?;
    }
    Ok(())
}

//! A backup that reads the whole volume once, beside a skewed workload: what that loses.
//!
//! The daemon tells such a stream apart and brings none of it in (`engine/src/sequential.rs`). What its policy alone loses, and
//! LRU, stands beside it, without a bar.

use std::time::Duration;

use forebay_device::model::world::Rng;
use forebay_lab::baseline::Baseline;
use forebay_lab::run::{Sequential, Settings, run_watched};
use forebay_lab::scene::load::scattered;
use forebay_lab::trace::Request;
use forebay_lab::workload::{BLOCK_BYTES, Workload};

use crate::smooth::zipf::Zipf;

/// Blocks of the volume, and of the cache.
const BLOCKS: u64 = 1 << 20;
const CAPACITY: usize = BLOCKS as usize / 10;
/// Reads before the backup begins.
const WARMING: usize = 3 << 20;
/// Blocks that the backup reads at a time, and reads of clients for each of those.
const AT_A_TIME: u64 = 64;
const BESIDE: usize = 64;
/// Popularity of the k-th block: in proportion to 1 / k^this.
const SKEW: f64 = 0.9;
/// What a backup may cost, in points of the hit ratio.
const LOSS_MAX: f64 = 2.0;

/// The requests; clients ask for one block each.
fn requests(with_backup: bool) -> Vec<Request> {
    let read = |block: u64, count: u64| Request {
        time_us: 0,
        volume: 0,
        write: false,
        offset: block * BLOCK_BYTES,
        bytes: count * BLOCK_BYTES,
    };
    let (zipf, mut rng) = (Zipf::new(BLOCKS as usize, SKEW), Rng::new(1));
    // Popular blocks are anywhere on the volume.
    let block_of = scattered(BLOCKS as usize, BLOCKS as u32, 2);
    let mut drawn = || read(block_of[zipf.draw(&mut rng)].into(), 1);
    let mut all: Vec<Request> = (0..WARMING).map(|_| drawn()).collect();
    for at in (0..BLOCKS).step_by(AT_A_TIME as usize) {
        if with_backup {
            all.push(read(at, AT_A_TIME));
        }
        all.extend((0..BESIDE).map(|_| drawn()));
    }
    all
}

/// Hits among the clients' reads behind the warming, in percent.
#[derive(Default)]
struct Hits {
    clients: usize,
    counted: u64,
    hits: u64,
}

impl Hits {
    fn see(&mut self, request: &Request, hit: bool) {
        if request.bytes != BLOCK_BYTES {
            return;
        }
        self.clients += 1;
        if self.clients > WARMING {
            self.counted += 1;
            self.hits += u64::from(hit);
        }
    }

    fn percent(&self) -> f64 {
        100.0 * self.hits as f64 / self.counted.max(1) as f64
    }
}

fn of_ours(workload: &Workload, settings: Settings) -> forebay_lab::Result<f64> {
    let mut seen = Hits::default();
    let watch = &mut |request: &Request, hits: &[bool]| seen.see(request, !hits.contains(&false));
    run_watched(workload, settings, &|| Duration::ZERO, watch)?;
    Ok(seen.percent())
}

fn of_lru(workload: &Workload) -> f64 {
    let mut cache = Baseline::Lru.cache(workload, CAPACITY);
    let mut seen = Hits::default();
    for (request, blocks) in workload.by_request() {
        let missed = blocks.iter().filter(|&&block| !cache.access(block)).count();
        seen.see(request, missed == 0);
    }
    seen.percent()
}

/// Prints what a backup costs; whether that is little.
pub(super) fn print() -> forebay_lab::Result<bool> {
    println!(
        "\nReads of single blocks, popularity 1 / k^{SKEW}, in 10 % of a volume of 4 GiB; a backup reads all of it\n\
         meanwhile, {AT_A_TIME} blocks for {BESIDE} reads. Hits in percent, and points lost (bar: < {LOSS_MAX})\n"
    );
    let load = |with_backup| Workload::load(requests(with_backup).into_iter().map(Ok));
    let (without, with) = (load(false)?, load(true)?);
    let mut all_met = true;
    let daemon = Settings::daemon(CAPACITY);
    for (name, settings, has_bar) in [
        ("forebay", Settings::ideal(CAPACITY), true),
        ("daemon", daemon, true),
        ("no streams", Settings { sequential: Sequential::Cached, ..daemon }, false),
    ] {
        let (alone, beside) = (of_ours(&without, settings)?, of_ours(&with, settings)?);
        let met = alone - beside < LOSS_MAX;
        all_met &= met || !has_bar;
        let word = if has_bar { super::verdict(met) } else { "" };
        println!("{name:<12} {alone:>6.2} {beside:>6.2} {:>6.2} {word}", alone - beside);
    }
    let (alone, beside) = (of_lru(&without), of_lru(&with));
    println!("{:<12} {alone:>6.2} {beside:>6.2} {:>6.2}", "lru", alone - beside);
    Ok(all_met)
}

//! What RAM and SSD hit together, beside one cache of both sizes: `cargo run --release -p
//! forebay-engine --example tier_hits [ZIPF]`. In virtual time: the same figures on any machine.
//!
//! Single blocks are read, by Zipf's law, from a set of 4 times the SSD; RAM has 1/16 of the SSD.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::model::store::MemoryStore;
use forebay_device::model::world::{Rng, World, mix};
use forebay_device::runtime::MICROSECOND;
use forebay_device::{BlockDevice, Buf, Runtime};
use forebay_engine::ids::VolumeId;
use forebay_engine::policy::{Granule, Queue, Tier};
use forebay_engine::{CreateOptions, MemoryWitness, Mode, Tuning, VolumeSpec, create, open};

const BLOCK: u64 = 4096;
const SSD_BYTES: u64 = 128 << 20;
const RAM_BYTES: u64 = SSD_BYTES / 16;
const BLOCKS: u64 = 4 * SSD_BYTES / BLOCK;
/// To fill the tiers, and to be counted.
const WARM: u64 = 1_500_000;
const COUNTED: u64 = 500_000;

/// Numbers below [`BLOCKS`] by Zipf's law, the frequent ones scattered.
struct Zipf {
    sums: Vec<f64>,
    rng: Rng,
}

impl Zipf {
    fn new(exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=BLOCKS)
            .map(|rank| {
                sum += (rank as f64).powf(-exponent);
                sum
            })
            .collect();
        Self { sums, rng: Rng::new(7) }
    }

    fn next(&mut self) -> u64 {
        let total = self.sums[self.sums.len() - 1];
        let at = self.rng.below(1 << 53) as f64 / (1u64 << 53) as f64 * total;
        let rank = self.sums.partition_point(|&sum| sum < at) as u64;
        // An odd factor permutes a power of two.
        rank.wrapping_mul(mix(3) | 1) % BLOCKS
    }
}

/// Hit ratio of a least-recently-used list of so many blocks.
fn lru(blocks: u64, exponent: f64) -> f64 {
    let (mut zipf, mut hits, mut now) = (Zipf::new(exponent), 0, 0u64);
    let (mut times, mut order) = (BTreeMap::new(), BTreeMap::new());
    for read in 0..WARM + COUNTED {
        let block = zipf.next();
        now += 1;
        if let Some(then) = times.insert(block, now) {
            order.remove(&then);
            hits += u64::from(read >= WARM);
        } else if times.len() as u64 > blocks
            && let Some((_, oldest)) = order.pop_first()
        {
            times.remove(&oldest);
        }
        order.insert(now, block);
    }
    hits as f64 / COUNTED as f64
}

/// The same of the policy of the RAM tier.
fn s3_fifo(blocks: u64, exponent: f64) -> f64 {
    let id = |number| Granule { volume: VolumeId(1), number };
    let mut tier = Tier::default();
    while tier.slots() < blocks {
        assert!(tier.grow());
    }
    tier.set_limit(blocks as u32);
    tier.begin_anew();
    let (mut zipf, mut hits) = (Zipf::new(exponent), 0);
    let (mut slots, mut names) = (BTreeMap::new(), BTreeMap::new());
    for read in 0..WARM + COUNTED {
        let block = zipf.next();
        if let Some(&slot) = slots.get(&block) {
            tier.hit(slot);
            hits += u64::from(read >= WARM);
            continue;
        }
        if !tier.has_free()
            && let Some((slot, queue)) = tier.victim()
            && let Some(name) = names.remove(&slot)
        {
            slots.remove(&name);
            tier.leave(slot, (queue == Queue::Probation).then(|| id(name)));
        }
        let slot = tier.take_free().expect("one has left");
        tier.enter(slot, id(block));
        slots.insert(block, slot);
        names.insert(slot, block);
    }
    hits as f64 / COUNTED as f64
}

/// The same of a pool, and what its counters say.
fn pool(ram_bytes: u64, exponent: f64) -> f64 {
    let world = World::new(1);
    world.set_limits(forebay_device::model::world::Limits { steps: u64::MAX, nanos: u64::MAX });
    let rt = Rc::clone(&world) as Rc<dyn Runtime>;
    let work = async move {
        let ssd = Rc::new(MemoryStore::new(SSD_BYTES, 512)) as Rc<dyn BlockDevice>;
        let witness = Rc::new(MemoryWitness::default());
        let options = CreateOptions {
            segment_bytes: Some(256 << 10),
            ram_bytes,
            ..CreateOptions::named("p")
        };
        create(&*rt, &[Rc::clone(&ssd)], &*witness, &options).await.expect("created");
        let pool = open(Rc::clone(&rt), vec![ssd], witness, Tuning::default()).await;
        let pool = pool.expect("opened");
        let spec = VolumeSpec {
            name: "v".into(),
            origin: "o".into(),
            mode: Mode::Writeback,
            cache_block_bytes: BLOCK as u32,
            settings: Default::default(),
            accept_data_loss_on_ssd_failure: true,
        };
        let origin = Rc::new(MemoryStore::new(BLOCKS * BLOCK, 512));
        let volume = pool.add_volume(&spec, origin).await.expect("added");
        let (mut zipf, mut buf) = (Zipf::new(exponent), Buf::zeroed(BLOCK as usize));
        let count = |name: &str| {
            let counters = pool.counters().list();
            counters.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value)
        };
        let names = ["read_hits", "read_ram_hits", "ssd_populate_bytes", "ssd_move_bytes"];
        let mut before = names.map(|_| 0);
        for read in 0..WARM + COUNTED {
            if read == WARM {
                before = names.map(count);
            }
            let result;
            (buf, result) = volume.read(zipf.next() * BLOCK, buf).await;
            result.expect("read");
            rt.sleep(20 * MICROSECOND).await.result.expect("slept");
        }
        let now = names.map(count);
        let [hits, ram, populated, moved] =
            std::array::from_fn(|i| (now[i] - before[i]) as f64 / COUNTED as f64);
        let (blocks, status) = (pool.blocks().0, pool.ram());
        println!(
            "  RAM {:>3} MiB: {:.4} hits, {ram:.4} of RAM; per read {:.0} B populated, {:.0} B moved; \
             {blocks} blocks on the SSD of {}, RAM {} in use, {} overlap",
            ram_bytes >> 20,
            hits,
            populated,
            moved,
            SSD_BYTES / BLOCK,
            status.used_bytes / BLOCK,
            status.overlap_bytes / BLOCK,
        );
        hits
    };
    world.run_until(work).expect("it ends")
}

fn main() {
    let exponent = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0.9);
    let both = (SSD_BYTES + RAM_BYTES) / BLOCK;
    println!(
        "Zipf {exponent}, {BLOCKS} blocks, SSD of {}, RAM of {}:",
        SSD_BYTES / BLOCK,
        RAM_BYTES / BLOCK
    );
    pool(0, exponent);
    let ours = pool(RAM_BYTES, exponent);
    let (lru, s3) = (lru(both, exponent), s3_fifo(both, exponent));
    println!(
        "  one cache of both sizes: LRU {lru:.4} ({:.3}), S3-FIFO {s3:.4} ({:.3})",
        ours / lru,
        ours / s3
    );
}

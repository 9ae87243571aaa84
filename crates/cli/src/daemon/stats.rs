//! What was counted, as it is; differences are for whoever asks twice.

use forebay_control::api::{Bypassed, PoolStats, SCHEMA, Stats, VolumeStats};
use forebay_control::name::VolumeName;
use forebay_device::Runtime;
use forebay_engine::bypass::BypassCounters;
use forebay_engine::counters::ReasonCounters;

use super::volumes::{BLOCK_BYTES, space};
use super::{Attached, Daemon, Open, Slot};

fn counters(list: Vec<(&'static str, u64)>) -> std::collections::BTreeMap<String, u64> {
    list.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn bypass(all: &BypassCounters) -> std::collections::BTreeMap<String, Bypassed> {
    let one = |counters: &ReasonCounters| Bypassed {
        read_requests: counters.read_requests.get(),
        read_bytes: counters.read_bytes.get(),
        write_requests: counters.write_requests.get(),
        write_bytes: counters.write_bytes.get(),
    };
    all.iter().map(|(reason, counters)| (reason.name().to_owned(), one(counters))).collect()
}

impl Daemon {
    /// The counters of all open pools.
    pub(super) fn stats(&self) -> Stats {
        let slots = self.slots.borrow();
        let open = slots.values().filter_map(|slot| Some(pool_stats(slot, &*slot.open()?)));
        Stats { schema: SCHEMA, clock_ns: self.reactor.now(), pools: open.collect() }
    }
}

fn pool_stats(slot: &Slot, open: &Open) -> PoolStats {
    let record = slot.record.borrow();
    let (read, write) = open.pool.latencies();
    let volumes = open.volumes.borrow();
    let volumes = volumes.iter().filter_map(|(name, attached)| {
        let Attached::Online(volume) = attached else { return None };
        Some(VolumeStats {
            name: VolumeName { pool: record.name.clone(), volume: name.parse().ok()? },
            counters: counters(volume.counters().list()),
            bypass: bypass(volume.bypass()),
            dirty_bytes: volume.unproven_blocks() * BLOCK_BYTES,
            space: space(&volume.settings(), Some(open.pool.space(volume.id()))),
            destage: open.safe_of(volume.id(), name).destage,
        })
    });
    PoolStats {
        name: record.name.to_string(),
        counters: counters(open.pool.counters().list()),
        bypass: bypass(open.pool.bypass()),
        read_latency: read.buckets().to_vec(),
        write_latency: write.buckets().to_vec(),
        origin_read_latency: open.pool.origin_read_latency().buckets().to_vec(),
        dirty_bytes: open.pool.unproven_blocks() * BLOCK_BYTES,
        destage: open.safe().destage,
        volumes: volumes.collect(),
    }
}

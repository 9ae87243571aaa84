//! Counts at the source. Plain cells: one reactor, no atomics.

use std::cell::Cell;

use forebay_device::Nanos;

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Default)]
        pub struct $name { $($(#[$field_doc])* pub $field: Cell<u64>,)* }

        impl $name {
            /// Names and values of all counters, in the order of the source.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field.get()),)*]
            }
        }
    };
}

counters! {
    /// What the engine has done since it was opened. Bytes and numbers; none ever falls.
    Counters {
        /// Read requests.
        read_requests,
        /// Bytes of read requests.
        read_bytes,
        /// Write requests.
        write_requests,
        /// Bytes of write requests.
        write_bytes,
        /// FLUSH requests.
        flush_requests,
        /// TRIM requests.
        trim_requests,
        /// WRITE ZEROES requests.
        zero_requests,
        /// Requests to prefetch.
        prefetch_requests,
        /// Read pieces served from the cache alone.
        read_hits,
        /// Read pieces served in part from the cache.
        read_partial_hits,
        /// Read pieces served from the origin alone.
        read_misses,
        /// Of those served from the cache alone: read pieces served from RAM alone.
        read_ram_hits,
        /// Of read pieces served from the cache alone: those of streams that pass by.
        read_stream_hits,
        /// Of read pieces served in part from the cache: those of streams that pass by.
        read_stream_partial_hits,
        /// Of read pieces served from the origin alone: those of streams that pass by.
        read_stream_misses,
        /// Of read pieces served from RAM alone: those of streams that pass by.
        read_stream_ram_hits,
        /// Bytes of reads that came from RAM.
        read_ram_bytes,
        /// Bytes of reads that came from cache devices.
        read_cache_bytes,
        /// Bytes of reads that came from the origin.
        read_origin_bytes,
        /// Writes of blocks that were cached.
        write_hits,
        /// Write requests of streams that pass by, acknowledged.
        write_stream_requests,
        /// Of those, requests that the origin had to take first.
        write_stream_past_requests,
        /// Bytes that writes put into the log.
        write_logged_bytes,
        /// Bytes copied into the cache after a miss.
        populate_bytes,
        /// Populations given up because the blocks changed meanwhile.
        populate_voided,
        /// Blocks brought into RAM by reads.
        ram_fill_blocks,
        /// Blocks that RAM gave up.
        ram_evict_blocks,
        /// Of those, blocks that only RAM had and that were handed to the log.
        ram_demote_blocks,
        /// Blocks that reclaim left to RAM instead of moving them.
        ram_take_over_blocks,
        /// Blocks dropped from the cache.
        evict_blocks,
        /// Blocks moved forward in the log by reclaim.
        move_blocks,
        /// Bytes written to the origin by the destage elevator.
        destage_bytes,
        /// Runs of blocks that lay together in the log of which that was made.
        destage_runs,
        /// Bytes between dirty ones that were read from the origin and written with them, a stripe as a whole.
        destage_fill_bytes,
        /// Origin flushes.
        origin_flushes,
        /// Member flushes.
        member_flushes,
        /// Appends (records), counted once whatever the copies.
        records,
        /// Bytes written to cache devices, per copy: data that clients wrote.
        ssd_write_bytes,
        /// Bytes written to cache devices, per copy: populations.
        ssd_populate_bytes,
        /// Bytes written to cache devices, per copy: moves.
        ssd_move_bytes,
        /// Bytes written to cache devices, per copy: headers of records and segments, footers.
        ssd_header_bytes,
        /// Bytes written to cache devices, per copy: facts.
        ssd_fact_bytes,
        /// Bytes written to cache devices, per copy: images and roots.
        ssd_checkpoint_bytes,
        /// Times that what a copy returned did not fit its checksums, or could not be read.
        verify_failures,
        /// Blocks dropped from the cache because no copy of them could be read right; their origins have them.
        damage_dropped_blocks,
        /// Bytes that scrubs have read, all copies.
        scrub_bytes,
        /// Live blocks that scrubs have found damaged in some copy.
        scrub_damaged_blocks,
        /// Of those, clean ones that were dropped.
        scrub_dropped_blocks,
        /// Of those, blocks that were copied again from a good copy.
        scrub_copied_blocks,
        /// Of those, dirty ones that are good in no copy.
        scrub_unhealed_blocks,
        /// Records of facts and images that scrubs have found damaged and replaced.
        scrub_replaced_records,
        /// Laps of scrubs that have come to their end.
        scrub_laps,
        /// Checkpoint laps.
        laps,
        /// Times that a write waited for room.
        throttled_writes,
        /// Nanoseconds that writes were held back because room was short.
        throttle_delay_ns,
    }
}

counters! {
    /// What the engine has done for one volume since its origin was attached; none ever falls.
    VolumeCounters {
        /// Read requests.
        read_requests,
        /// Bytes of read requests.
        read_bytes,
        /// Read pieces served from the cache alone.
        read_hits,
        /// Read pieces served in part from the cache.
        read_partial_hits,
        /// Read pieces served from the origin alone.
        read_misses,
        /// Of read pieces served from the cache alone: those of streams that pass by.
        read_stream_hits,
        /// Of read pieces served in part from the cache: those of streams that pass by.
        read_stream_partial_hits,
        /// Of read pieces served from the origin alone: those of streams that pass by.
        read_stream_misses,
        /// Write requests.
        write_requests,
        /// Bytes of write requests.
        write_bytes,
        /// Bytes written to the origin by the destage elevator.
        destage_bytes,
        /// Writes that were held back because room was short.
        throttled_writes,
        /// Nanoseconds that writes were held back because room was short.
        throttle_delay_ns,
    }
}

counters! {
    /// What went past the cache for one reason; see [`crate::bypass`].
    ReasonCounters {
        /// Read requests.
        read_requests,
        /// Bytes of them that came from the origin and stayed out of the cache.
        read_bytes,
        /// Write and WRITE ZEROES requests.
        write_requests,
        /// Bytes of them that the origin took before they were acknowledged.
        write_bytes,
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &Cell<u64>, amount: u64) {
    counter.set(counter.get() + amount);
}

/// Buckets of a [`Latency`]: powers of two from 1 us up to above 8 s.
pub const LATENCY_BUCKETS: usize = 24;

/// A histogram of latencies. Bucket i counts those below 2^i microseconds; the last one the rest.
#[derive(Default)]
pub struct Latency {
    buckets: [Cell<u64>; LATENCY_BUCKETS],
}

impl Latency {
    pub(crate) fn record(&self, span: Nanos) {
        let microseconds = span / 1_000;
        let bucket = (64 - microseconds.leading_zeros() as usize).min(LATENCY_BUCKETS - 1);
        add(&self.buckets[bucket], 1);
    }

    /// The counts of all buckets.
    pub fn buckets(&self) -> [u64; LATENCY_BUCKETS] {
        std::array::from_fn(|i| self.buckets[i].get())
    }
}

/// The bound below which so many percent of what some buckets count lie, in microseconds; that of the last one of a
/// [`Latency`] stands for half of it and more. `None` if they count nothing.
pub fn percentile_below_us(buckets: &[u64], percent: u64) -> Option<u64> {
    let all: u64 = buckets.iter().sum();
    let wanted = all.saturating_mul(percent).div_ceil(100).max(1);
    let mut seen = 0;
    let index = buckets.iter().position(|count| {
        seen += count;
        seen >= wanted
    });
    index.map(|index| 1 << index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_bound_of_the_bucket_that_it_lies_in() {
        assert_eq!(percentile_below_us(&[], 50), None);
        assert_eq!(percentile_below_us(&[0, 0], 99), None);
        assert_eq!(percentile_below_us(&[1, 98, 1], 99), Some(2));
        assert_eq!(percentile_below_us(&[1, 97, 2], 99), Some(4));
        let latency = Latency::default();
        latency.record(90_000_000_000);
        assert_eq!(percentile_below_us(&latency.buckets(), 50), Some(1 << (LATENCY_BUCKETS - 1)));
    }
}

//! Every limit of the engine: its number, its unit, why this number, what happens at it.

use forebay_device::Nanos;
use forebay_device::runtime::{MILLISECOND, SECOND};

/// Longest client request, in bytes: what NBD clients send at the most.
pub const REQUEST_BYTES_MAX: u64 = 32 << 20;

/// Requests of one reactor to one volume of another reactor's pool that are under way at a time;
/// more wait on their own reactor, also for what is cached, and for as long as it takes where that
/// many wait for an origin that does not answer. Several connections at full depth; each costs the
/// pool's reactor a worker task of a few KiB once it is needed.
pub const REMOTE_REQUESTS_MAX: usize = 256;

/// Stripes that one question about a range looks at, empty ones included (1 GiB): an answer may
/// cover less than what was asked for.
pub const STATUS_STRIPES_MAX: usize = 256;

/// Mapped runs after which such an answer ends with the stripe it has come to, which has no more
/// than as many again. 1,024 runs take 19 us of the pool's reactor, 16 times a 4 KiB hit (measured
/// on 2026-11-21 with blocks written in random order, release build).
pub const STATUS_RUNS_MAX: usize = 1024;

/// Extents of such an answer: 8 KiB of memory.
pub const STATUS_EXTENTS_MAX: usize = 512;

/// Stripes that a TRIM goes through before others have a turn (256 MiB), where it has nothing else to wait for.
pub const TRIM_STRIPES_MAX: u64 = 64;

/// How long the end of a client's connection may go unnoticed: a machine that is gone is found out by keepalive within
/// two minutes. For so long behind a failed flush others hear of it who may be that client on a new connection.
pub const UNSEEN_TIME_MAX: Nanos = 300 * SECOND;

/// Bytes that one prefetch reads at the most; of a longer range it takes the beginning. The longest
/// read, so that one request cannot keep the origin busy for hours.
pub const PREFETCH_BYTES_MAX: u64 = REQUEST_BYTES_MAX;

/// Bytes that a prefetch reads at a time, and the rest of a cache block behind a reply, and their memory.
pub const PREFETCH_STEP_BYTES: u64 = 1 << 20;

/// Longest record, in bytes, header included; also at most a quarter of a segment. Longer requests
/// are several records. It is one device write or two (see [`APART_BLOCKS_MIN`]), and an extent's
/// distance to its record's header must fit 8 bits.
pub const RECORD_BYTES_MAX: u64 = 1 << 20;

/// Nanoseconds in a millisecond, in which deadlines are set.
pub(crate) const MILLIS: Nanos = MILLISECOND;

/// How long a cache device may take to answer a request where nothing else is said. SSDs pause for tens
/// of milliseconds, cheap ones for a second or two in a flush; clients of a disk give up after 30 s.
pub const DEVICE_DEADLINE_DEFAULT: Nanos = 5 * SECOND;

/// The shortest such deadline: below it, an SSD that collects its garbage would be left behind.
pub const DEVICE_DEADLINE_MIN: Nanos = 100 * MILLISECOND;

/// The longest: who waits longer waits for ever.
pub const DEVICE_DEADLINE_MAX: Nanos = 600 * SECOND;

/// Longest that a pool which has to go on without a cache device tries its witness again: a file system that was
/// full for a moment latches no pool, and clients of a disk give up after 30 s. One that hangs takes as long as its
/// first try may.
pub(crate) const WITNESS_WAIT_MAX: Nanos = 20 * SECOND;

/// How often it is tried to write it meanwhile.
pub(crate) const WITNESS_RETRY: Nanos = SECOND;

/// What another host waits for before it takes a pool over, with no time for cache devices that hang: a few
/// rounds of the heartbeat on a host that is busy.
pub const LEASE_BASE: Nanos = 4 * SECOND;

/// Device deadlines that it waits for besides: two rounds in each of which a cache device hangs must not
/// cost the one who has the pool three quarters of the lease.
pub const LEASE_DEADLINES: Nanos = 4;

/// The longest lease, by the longest device deadline.
pub const LEASE_MAX: Nanos = LEASE_BASE + LEASE_DEADLINES * DEVICE_DEADLINE_MAX;

/// Rounds of the heartbeat in a lease. Each reads and writes 4 or 8 KiB of each cache device.
pub const LEASE_ROUNDS: Nanos = 12;

/// How often a host is looked at within its lease before it is taken for dead: seldom enough that its
/// heartbeat comes between any two looks, twice at least in all of them.
pub const LEASE_LOOKS: Nanos = 6;

/// Time from a look at who has a pool to the claim of who found nobody. SSDs that pause take a part of it. Who
/// is slower waits as long as a lease.
pub const CLAIM_TIME: Nanos = 2 * SECOND;

/// How long who takes a pool that another host has closed waits behind its claim: as long as a claim by
/// whoever looked at the same time can take, and a short lease behind it.
pub const CLAIM_WAIT: Nanos = 2 * CLAIM_TIME;

/// Rest in front of a round behind one that did not count, and while leases are short.
pub(crate) const CLAIM_PAUSE: Nanos = CLAIM_TIME / 4;

/// How long the claims of a member may be unreadable before it has failed: a link that comes back takes less, and
/// the lease has as much time left behind two rounds in which members hang.
pub(crate) const CLAIM_UNREAD_MAX: Nanos = 2 * SECOND;

// Two rounds with a member that hangs, noticed an eighth late, the pauses in front of them, and one that cannot be read
// between them. For the shortest and for the longest deadline; what lies between is between these.
const _: () = {
    let deadlines = [DEVICE_DEADLINE_MIN, DEVICE_DEADLINE_MAX];
    let mut i = 0;
    while i < deadlines.len() {
        let lease = LEASE_BASE + LEASE_DEADLINES * deadlines[i];
        let hangs = 2 * (deadlines[i] / 8 * 9) + lease / LEASE_ROUNDS;
        assert!(hangs + CLAIM_PAUSE + CLAIM_UNREAD_MAX < lease / 4 * 3);
        assert!(2 * (deadlines[i] / 8 * 9 + lease / LEASE_ROUNDS) < lease / 4 * 3);
        i += 1;
    }
    assert!(CLAIM_TIME <= LEASE_BASE / 4 * 3 && LEASE_LOOKS * 2 <= LEASE_ROUNDS);
};

/// Members of a pool: the partner list of a segment header has this many places.
pub const MEMBERS_MAX: usize = 8;

/// Members that a pool has had since it was opened, those that have left it included: each keeps its
/// place until the next start. Beyond that none is added before one; a few hundred bytes each.
pub const PLACES_MAX: usize = 32;

/// Copies of a segment set.
pub const COPIES_MAX: usize = 3;

/// Copies of clean data: with two, one that cannot be read costs nothing, and the origin has it anyway.
pub const CLEAN_COPIES_MAX: usize = 2;

/// Smallest segment that the format knows, in bytes; the product uses no less than 1 MiB, the
/// simulator this.
pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Largest segment, in bytes.
pub const SEGMENT_BYTES_MAX: u64 = 32 << 20;

/// A member has at least this many segments, so that one reclaim frees little and
/// the reserve of 5 % is many segments.
pub const SEGMENTS_PER_MEMBER_MIN: u64 = 512;

/// Bytes of one region of the index and the unit of extents: an extent never crosses it.
pub const REGION_BYTES: u64 = 1 << 20;
/// Blocks in a region.
pub const REGION_BLOCKS: u64 = REGION_BYTES / crate::ids::BLOCK_BYTES;

/// Bytes of address space that hash to one shard as a whole, so that a cache block (at most this)
/// lies in one shard.
pub const STRIPE_BYTES: u64 = 4 << 20;

/// Fewest and most virtual shards of a pool (see `Superblock::shard_count`).
pub const SHARDS_MIN: u32 = 64;
/// Most virtual shards of a pool.
pub const SHARDS_MAX: u32 = 65_536;

/// Partial blocks of a pool in the side table; at three quarters they are completed from the
/// origin, at the limit sub-block writes wait.
pub const PARTIALS_MAX: usize = 65_536;

/// Volumes of a pool: what a superblock slot holds.
pub const VOLUMES_MAX: usize = 124;
/// Longest name of a pool or volume, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 63;
/// Longest origin designation (a path or URL), in bytes of UTF-8.
pub const ORIGIN_BYTES_MAX: usize = 511;

/// Appends of one stream in flight at a time: enough to keep an SSD's large-write bandwidth busy.
pub const APPENDS_INFLIGHT_MAX: usize = 4;

/// Blocks that must have gathered before another append of a stream starts beside one in flight:
/// at queue depth 32 this makes a header's share of the bytes 1/17 at the most.
pub const APPEND_COALESCE_BLOCKS: u32 = 16;

/// Blocks from which a record's only entry is written straight from the client's buffer, as a device
/// write of its own beside the header's. Below, copying 64 KiB costs less than another request.
pub const APART_BLOCKS_MIN: u32 = 16;

/// Member flushes under way at a time. One would make a writer whose append has just missed the
/// flush under way wait for nearly two; the kernel merges those that the device cannot take.
pub const FLUSHES_INFLIGHT_MAX: usize = 4;

/// Cached bytes between two places that are missing up to which the origin is asked for both at once (64 KiB): a disk has
/// passed over so many in a third of a millisecond, and needs ten times that to come to another place.
pub const READ_OVER_BYTES_MAX: u64 = 64 << 10;

/// The most that is read so with one request: what is to be brought in is planned for all of it, as if it were missing.
pub const READ_SPAN_BYTES_MAX: u64 = 1 << 20;

/// Runs of a piece for which an origin is asked side by side: what a disk's own queue holds, so that one request in many
/// places does not fill an origin's queue before everybody else's.
pub const RUNS_TOGETHER_MAX: usize = 32;

/// Blocks of a granule, the policy's unit of hotness (64 KiB).
pub const GRANULE_BLOCKS: u64 = (64 << 10) / crate::ids::BLOCK_BYTES;

/// Blocks that a walk through a closed set has under way before another record is read ahead
/// (256 KiB). A client's append waits behind them on the device.
pub const WALK_AHEAD_BLOCKS: u32 = 64;

/// Blocks from a record's header to a block of it up to which one device read takes both, where the
/// checksum is compared: as many more take an SSD no longer than another request.
pub const VERIFY_TOGETHER_BLOCKS: u32 = 2;

/// Bytes a second that a scrub reads from all cache devices of a pool, where nothing else is said: a few
/// percent of what the slowest SSD reads, and a lap through 1 TiB in a day and a half.
pub const SCRUB_RATE_DEFAULT: u64 = 8 << 20;

/// Lowest rate of a scrub, in bytes a second: at less a lap through the smallest pool takes hours, and
/// whoever wants that wants none.
pub const SCRUB_RATE_MIN: u64 = 64 << 10;

/// Highest rate of a scrub, in bytes a second: above what any set of members reads.
pub const SCRUB_RATE_MAX: u64 = 1 << 40;

/// The least write budget, bytes a day: anything below is a mistyped unit.
pub const WRITE_BUDGET_MIN: u64 = 1 << 20;

/// The most: more than the members of the largest pool can take.
pub const WRITE_BUDGET_MAX: u64 = 1 << 60;

/// Time between the beginnings of two laps of a scrub, unless one takes longer: what has gone bad is
/// found within a week, while another copy is likely to be good.
pub const SCRUB_LAP_SECONDS: u64 = 7 * 24 * 3600;

/// Time after which the place that a scrub has come to is durable, at the most: what a crash costs is to
/// read so much again.
pub const SCRUB_STORE_INTERVAL: Nanos = 600 * SECOND;

/// Time after which what was healed is behind a root, so that no replay needs the damaged copy any more: until then a
/// crash with the loss of the good one would cost it, and each root costs the images of all shards.
pub const HEALED_PROVEN_SPAN: Nanos = 60 * SECOND;

/// Blocks that a scrub reads at a time (256 KiB): a client's request waits behind them.
pub const SCRUB_READ_BLOCKS: u32 = 64;

/// Parts of its rate that a scrub keeps while clients have requests on the members that it reads: one in
/// so many. It goes on, for what nobody reads is what rots unseen.
pub const SCRUB_BUSY_PART: u32 = 10;

/// What a client's FLUSH, or its write with FUA, adds to its volume's credit of synchronous writers, if anything was written since
/// that no other counted for; a write takes one. So who flushes after every write has it, and who flushes after every third has none.
pub const SYNC_CREDIT_PER_FLUSH: u32 = 2;

/// The most there is of it: of single writes without a FLUSH five are expected to have one, the sixth is not.
pub const SYNC_CREDIT_MAX: u32 = 16;

/// From which on an append may be written durably, as if its clients had asked for that: one request to a device
/// instead of a write and a flush behind it. A wrong guess costs one write the time of a flush.
pub const SYNC_CREDIT_MIN: u32 = 12;

/// Writes of a volume that FLUSHes may still count for: more than there are clients who write and flush together, as a rule.
pub const SYNC_WRITES_MAX: u32 = 64;

/// Blocks of a record up to which it may be written durably at once (128 KiB): what is compared should be of one kind.
pub const SYNC_BLOCKS_MAX: u32 = 32;

/// What an append or a flush counts as at the most, however long it took: a disk's FLUSH does not take longer as a rule. So a way
/// that hung when it was tried first is tried again when clients have waited for three to seven seconds.
pub const SYNC_SPAN_MAX: Nanos = 100 * MILLISECOND;

/// How many times as long clients have waited, since it was tried last, as the slower of the two ways takes, before that is
/// tried again: they lose a thirty-second of their time to that at the most.
pub const SYNC_TRIAL_PART: Nanos = 32;

/// Time between two events about blocks that were lost: the first is told at once, and what is found in the next ten
/// seconds with the next, or a device that returns nothing any more pushes all other events out.
pub const LOST_TOLD_INTERVAL: Nanos = 10 * SECOND;

/// Places that such an event names: as many as fit with its other words into the 1 KiB that are kept of it.
pub const LOST_PLACES_MAX: usize = 16;

/// Blocks between two live runs of a record up to which one device read takes both (64 KiB): they
/// take about as long as another read.
pub const WALK_GAP_BLOCKS_MAX: u32 = 16;

/// Blocks of a record's header that a walk reads at first. Nearly all headers are shorter; the runs
/// behind a longer one are read by themselves.
pub const WALK_HEADER_BLOCKS: u32 = 4;

/// Blocks of populations that go out together, if as many come within [`GATHERING_SPAN`]: their header is 1 % of them.
pub const GATHERED_BLOCKS: u32 = 128;

/// Longest time for which populations gather. Nobody waits for them; but what a write overtakes meanwhile is lost
/// for the cache.
pub const GATHERING_SPAN: Nanos = 5 * MILLISECOND;

/// Bytes of a volume's populations, from their misses on and until they are in the log; its further misses are not
/// populated meanwhile. Sixteen of the largest cache blocks at a time; with a fourth of this, arrays whose readers miss
/// cache blocks of 1 MiB take three times as long to warm up (`forebay lab papers qsan-1`). Of each volume, so that an
/// origin that does not answer holds up no other.
pub const POPULATE_BYTES_MAX: u64 = 64 << 20;

/// Bytes of all populations of a pool that have been fetched and wait for the SSDs: what comes beyond that is not
/// populated. A few records per stream: what a slow origin delivers never comes near it, and what is written through
/// waits behind no more.
pub const POPULATE_QUEUE_BYTES_MAX: u64 = 64 << 20;

/// Largest RAM tier, in bytes: frames are numbered with 32 bits.
pub const RAM_BYTES_MAX: u64 = 8 << 40;

/// Bytes by which the size of a RAM tier is set: what is asked of the system at a time, one huge
/// page.
pub const RAM_STEP_BYTES: u64 = forebay_device::CHUNK_BYTES as u64;

/// Blocks of a read from which on nothing of it is brought into RAM (128 KiB): copying takes longer
/// than the cache device's answer saves, and most of such reads are scans.
pub const RAM_FILL_BLOCKS_MAX: u32 = 32;

/// Frames that RAM gives up at a time, at most a sixteenth of all: what of them goes to the log shares
/// a record, whose header would else be half of what is written. (With 32, `cargo run -p
/// forebay-engine --example tier_hits` shows half as many blocks again on the SSD as with 1.)
pub const RAM_EVICT_FRAMES: u32 = 32;

/// Bytes on their way from RAM into the log; what else RAM gives up meanwhile is dropped. Enough to
/// keep an SSD busy, and few registrations for a writer to look through.
pub const RAM_DEMOTE_BYTES_MAX: u64 = 4 << 20;

/// Bytes that a stop appends of what only RAM has: a second or two on any SSD.
pub const RAM_STOP_BYTES_MAX: u64 = 256 << 20;

/// Blocks that one question about a range looks up in RAM (16 MiB); behind them the answer ends.
pub const STATUS_RAM_BLOCKS_MAX: u32 = 4096;

/// Bytes a second that writers who are held back are taken to get at the least. An estimate below what
/// an SSD does in a blink would make the next burst begin slowly.
pub const THROTTLE_RATE_MIN: u64 = 1 << 20;

/// Time over which the rate of writers who are held back is averaged.
pub const THROTTLE_SPAN: Nanos = SECOND;

/// How far ahead of its turn a writer may be before it waits: a timer for each write of an SSD would
/// cost more than the write.
pub const THROTTLE_AHEAD: Nanos = MILLISECOND;

/// Bytes of writers who are held back that go on together, so that they share a record: each record
/// has a header of a block. They wait no longer than [`THROTTLE_TOGETHER`] for each other.
pub const THROTTLE_TOGETHER_BYTES: u64 = 64 << 10;
/// See [`THROTTLE_TOGETHER_BYTES`].
pub const THROTTLE_TOGETHER: Nanos = 10 * MILLISECOND;

/// Requests of others that a long stream is remembered for, at the most.
pub const STREAM_REQUESTS_MAX: u64 = 1 << 16;

/// Streams of reads, and of writes, that a volume remembers: 16 at a time, in 400 bytes that each request
/// looks through.
pub const STREAMS_MAX: usize = 16;

/// Bytes that all volumes together have in the log's queue while more than one of them writes: what
/// keeps an SSD busy, which is done with them in half a millisecond.
pub const SERVICE_BYTES_MAX: u64 = 256 << 10;

/// Bytes that each of them has in any case.
pub const SERVICE_BYTES_MIN: u64 = 16 << 10;

/// Time for which a volume that has written counts as writing: clients wait for an answer, and for
/// themselves, before they write again.
pub const SERVICE_MEMORY: Nanos = 20 * MILLISECOND;

/// How often volumes that write are counted.
pub const SERVICE_LOOK: Nanos = MILLISECOND;

/// Fewest segments of a reservation or a limit: what a volume has is in pieces of many segments, and below
/// this its share would be a matter of luck.
pub const SPACE_SEGMENTS_MIN: u32 = 64;

/// Percent of the segments by which what volumes are promised ends before dirty data is at its limit: where
/// writers are slowed down.
pub const PROMISE_EARLIER_PERCENT: u64 = 10;

/// Percent of what is promised that reservations may have: the rest stays common, for who has none would write one
/// block after the other, each at the speed of its origin.
pub const RESERVABLE_PERCENT: u64 = 75;

/// Percent of a segment that counts as data in what volumes are promised: the rest are headers, the footer,
/// and what checkpoints and facts take.
pub const PROMISE_PACKED_PERCENT: u64 = 80;

/// Looks, spread over [`crate::tuning::Tuning::clean_noted_after`], in all of which nothing must have been logged of a volume.
pub const CLEAN_LOOKS: u32 = 5;

/// Records that readers have found damaged in some copy, and that wait to be copied again: more than a bad
/// spot of an SSD has. Of further ones the sets are noted, and looked through as a whole.
pub const HURT_RECORDS_MAX: usize = 256;

/// Blocks of 4 KiB that a member may return damaged, or not at all, within [`DAMAGE_SPAN`] before it is left behind,
/// if nothing is there alone: 16 MiB. What is copied to such an SSD again is bad again, and wears out the others; a
/// bad spot is smaller. (Linux md takes a disk for broken after 20 read errors an hour.)
pub const DAMAGED_BLOCKS_MAX: u64 = 4096;

/// See [`DAMAGED_BLOCKS_MAX`].
pub const DAMAGE_SPAN: Nanos = 3600 * SECOND;

/// Bytes a second at which such sets are looked through, whatever the rate of the scrub is: as many as that reads
/// where nothing else is said.
pub const HURT_SETS_RATE: u64 = SCRUB_RATE_DEFAULT;

/// Time without an answer after which an origin counts as hung: what it was given and has not proven is dirty
/// again then, and keeps no segment from being emptied. Disks that are woken take longer, and lose nothing by it.
pub const ORIGIN_SILENCE: Nanos = SECOND;

/// Longest time that a change of dirty data waits for its origin where copies are missing, and time without an
/// answer after which nobody does: a disk that flushes a large cache takes a second or two, and clients give
/// requests up after thirty.
pub const PROTECTION_WAIT_MAX: Nanos = 10 * SECOND;

/// How long the elevator begins nothing for the sake of one read of a client that takes longer than usual. A disk that
/// has not answered by then is busy with something else than what is destaged.
pub const READ_SPARED_MAX: Nanos = 2 * SECOND;

/// Time without an answer after which people are told that an origin does not answer: a disk that is woken
/// takes up to ten seconds.
pub const ORIGIN_SILENT_SPAN: Nanos = 15 * SECOND;

/// Time in which all requests of a kind must have failed for an origin to count as failed: the elevator
/// repeats its own once a second, and a path that is switched over takes about as long.
pub const ORIGIN_FAILING_SPAN: Nanos = 3 * SECOND;

/// Time after which a failure that nobody has met again says nothing of an origin any more.
pub const ORIGIN_TROUBLE_SPAN: Nanos = 60 * SECOND;

/// Time between two tries whether an origin can be read again: nobody waits for them, and a second is soon
/// enough for people.
pub const ORIGIN_PROBE_INTERVAL: Nanos = SECOND;

/// WRITE ZEROES requests above this many bytes go straight to the origin where nothing is owed:
/// they are how disks are prepared, and caching them helps nobody.
pub const ZERO_DIRECT_BYTES_MIN: u64 = 1 << 20;

/// Stripes of which it is remembered what was written directly since the last good origin flush; at the limit
/// nothing is populated until a flush. 65,536 stripes are 256 GiB, and take 4 MiB of memory.
pub const VOLATILE_STRIPES_MAX: usize = 65_536;

/// Reserves of free segments below which a member counts as full, 15 % of it: reclaim keeps up to two of them
/// free, and a root may make some more free at once.
pub const FULL_RESERVES: usize = 3;

/// Fewest free segments of a member that make up the reserve (5 % of them where that is more):
/// facts, an image lap and their successors, twice.
pub const RESERVE_SEGMENTS_MIN: usize = 8;

/// Longest origin write of the elevator, in blocks (1 MiB), where the origin's stripe is not longer.
pub const ORIGIN_WRITE_BLOCKS_MAX: u32 = 256;

/// Longest stripe of an origin that is written as a whole (8 MiB: 16 data disks with md's usual chunk
/// of 512 KiB); of a longer one nothing is known.
pub const ORIGIN_STRIPE_BYTES_MAX: u64 = 8 << 20;

/// Of a stripe that is written as a whole one block in so many is dirty at least: what lies between costs the
/// disks transfers.
pub const WHOLE_STRIPE_SHARE_MIN: u64 = 16;

/// Bytes of the origin that the elevator's writes under way are of, beyond which none is begun, for each volume.
/// The depth in writes is `Tuning::destage_depth`.
pub const DESTAGE_BYTES_MAX: u64 = 32 << 20;

/// Memory of these writes, in bytes: a stripe that is written as a whole has itself, and what of it comes from the cache.
pub const DESTAGE_MEMORY_MAX: u64 = 52 << 20;

/// `DESTAGE_BYTES_MAX` while writers wait for room: with more under way each write takes longer, and room comes in larger
/// portions that are further apart. What else was tried is in `docs/internals/performance.md`.
pub const DESTAGE_BYTES_BESIDE_WRITERS: u64 = 8 << 20;

/// Writes of several stripes under way: one is with the origin, and what the next one needs of the cache is read.
pub const STRIPES_TOGETHER_INFLIGHT_MAX: usize = 2;

/// Runs of one origin write that are read from the cache at a time. As many 4 KiB reads keep an SSD
/// busy, and there are other writes.
pub const DESTAGE_READS_MAX: usize = 16;

/// Such reads of all an origin's writes together beyond which none is begun, for each cache device: more make no SSD
/// faster, and clients' requests queue up behind them. Each volume that is destaged has its part of them, one at the least.
pub const DESTAGE_READS_TOGETHER: usize = 24;

/// Records in the chain of one shard's image; more means a damaged chain that runs in a circle. A
/// shard of 1 MiB of index is one or two records, 64 KiB segments need hundreds.
pub const IMAGE_CHAIN_MAX: u32 = 65_536;

/// Index memory per GiB of cache with extents of 64 KiB on average, the usual case.
pub const INDEX_BYTES_PER_GIB_USUAL: u64 = 400 << 10;

/// Index memory per GiB of cache where nothing else is said: every 4 KiB block its own extent,
/// regions at least half full.
pub const INDEX_BYTES_PER_GIB: u64 = (1 << 20) / 10 * 16;

/// The same in the sparsest case: single 4 KiB blocks far from each other.
pub const INDEX_BYTES_PER_GIB_SPARSE: u64 = (1 << 20) / 10 * 45;

/// Memory per GiB of cache in which the policy remembers what has left it, and what is read again; a pool below 512 MiB takes
/// up to 4 KiB more.
pub const POLICY_BYTES_PER_GIB: u64 = 100 << 10;

/// Smallest bound of the index, in bytes.
pub const INDEX_MEMORY_MIN: u64 = 4 << 20;

/// Part of that bound, at the least, that no write may claim: what housekeeping adds to the index meanwhile. It is
/// a twentieth of larger ones.
pub const INDEX_HEADROOM_MIN: u64 = 16 << 10;

/// Most that a piece of a request claims of the index: 4 regions of which each may become as long as one can
/// ([`crate::index::REGION_GROWTH_MAX`]), and a step of the directory and of the side table.
pub const INDEX_CLAIM_MAX: u64 = 16 << 10;

/// Clean runs and shards that one look for index memory goes through, some 50 us: then others are served.
pub const INDEX_LOOKS_MAX: usize = 512;

/// Time for which nobody looks again where nothing was found.
pub const INDEX_REST: Nanos = MILLISECOND;

/// Highest sequence, generation, start number or opening that a start accepts: a million a second
/// reach it in 146,000 years, and what is above it is damage that would make the next one run over.
pub const COUNTER_MAX: u64 = 1 << 62;

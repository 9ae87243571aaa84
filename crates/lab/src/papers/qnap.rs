//! QNAP, "SSD Extra Over-Provisioning White Paper" (2018), section 6: a station that edits video on a TS-EC2480U R2,
//! 4 SSDs 850 PRO of 512 GB in RAID 5 as a read-write cache, 10 Gbit/s. An editor reads 300 MB/s; while files are
//! uploaded, the cache becomes full, and his preview stutters. With 40 % of the SSDs left unused he has his 300 MB/s
//! again, and the uploads 750 MB/s instead of 450.
//!
//! Played with nothing left unused: with all uploads cached, as is our default, and with streams of writes
//! past the cache.

use forebay_device::model::hdd::HddParameters;

use super::array::{Pattern, System};
use super::{Bar, Cache, GB, Published, Test, drives};

/// Bytes of a request: a second's requests are about its megabytes.
const REQUEST_BYTES: u64 = 1 << 20;

/// A rate of the paper, in requests.
const fn per_s(megabytes: u64) -> u64 {
    megabytes * 1_000_000 / REQUEST_BYTES
}

const ASSUMED: [&str; 4] = [
    "20 disks ST6000NE0023 in RAID 5 (the case has 24 bays), write caches on",
    "the editor and the uploads have a volume each; uploads get what 10 Gbit/s can carry, 1,150 MB/s, 8 requests of \
     1 MiB at a time for each of two; what the editor reads was not in the cache",
    "dirty data twice on the 4 SSDs; what the SSDs' own garbage collection costs is not in their model",
    "2 TB are uploaded; figures are those of the second half, with the cache full",
];

/// The editor asks for a little more than what must be there, so that nothing is lost to rounding.
fn edit() -> Pattern {
    let per_s_max = Some(per_s(303));
    Pattern { streams: 1, per_s_max, ..Pattern::random(REQUEST_BYTES, 100, 400 * GB, 4) }
}

fn uploads() -> Pattern {
    let per_s_max = Some(per_s(1_150));
    Pattern { streams: 2, per_s_max, ..Pattern::random(REQUEST_BYTES, 0, 2_000 * GB, 16) }
}

/// One of the two patterns, with the other one beside it.
fn test(
    name: &'static str,
    (pattern, what): (Pattern, &str),
    beside: Pattern,
    megabytes: u64,
    sequential_writes: bool,
) -> Test {
    let way = if sequential_writes { "past the cache" } else { "cached" };
    Test {
        row: "qnap-case",
        name,
        what: format!("{what}; uploads {way}, 1 MiB requests"),
        source: "QNAP section 6",
        system: System { groups: 1, disks: 20, member: HddParameters::st6000ne0023() },
        cache: Cache {
            clean_copies: 1,
            sequential_writes,
            ..Cache::of(drives::samsung_850_pro_512(), 4, 512)
        },
        volumes: 1,
        pattern,
        beside: Some(beside),
        fits: false,
        prefilled: false,
        laps: 1,
        published: Published::default(),
        bar: Bar::AtLeast(per_s(megabytes) as f64),
        assumed: &ASSUMED,
        cause: "the modelled disks alone take 747 writes of 1 MiB a second from two streams, as each reads \
                parity; past the cache they are joined to whole stripes, between two of which the editor waits",
    }
}

/// The tests of this paper.
pub fn tests() -> Vec<Test> {
    let editor = || (edit(), "an editor beside two uploads");
    let uploading = || (uploads(), "two uploads beside an editor");
    vec![
        test("qnap-case/edit", editor(), uploads(), 300, false),
        test("qnap-case/uploads", uploading(), edit(), 750, false),
        test("qnap-case/edit-past", editor(), uploads(), 300, true),
        test("qnap-case/uploads-past", uploading(), edit(), 750, true),
    ]
}

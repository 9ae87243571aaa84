//! A review of RAM and SSD caches in a Synology RackStation RS18017xs+ ("Exploring SSD and RAM caching in Synology
//! servers", M. Degtyarev): test areas of 16 and 96 GB, one SSD for reads, two in RAID 1 for all.
//!
//! Its rates are in drawings that the text does not repeat. It says that RAM makes random reads 3 times as fast, in
//! 10 to 15 minutes, and that SSDs are faster and take 3 to 4 minutes. A test without a bar has no figure there.

use forebay_device::model::hdd::HddParameters;
use forebay_engine::Mode;

use super::array::{Pattern, System};
use super::{Bar, Cache, GB, MINUTE, Published, Test, drives};

/// Of its 16 GB, 2 are the system's, as the review has it.
const RAM_BYTES: u64 = 14 * GB;

/// Three times as much with RAM: no less than that with SSDs, which it found faster.
const FACTOR: f64 = 3.0;

/// The shorter of the reported times to become warm.
const RAM_MINUTES: f64 = 10.0;
const SSD_MINUTES: f64 = 3.0;

const ASSUMED: [&str; 4] = [
    "12 disks ST6000NE0023 in RAID 5 (the case has 12 bays; Seagate is all it says), write caches on; SAT5200-960G",
    "32 requests at a time; VDI is 4K with 30 % reads, SQL 8K with 67 %, all at random places",
    "with RAM: 14 of the system's 16 GB, in front of SSDs, as a pool of ours has no RAM alone",
    "two SSDs hold everything twice",
];

/// Blocks and reads in a hundred requests.
const READ: (u64, u64) = (4096, 100);
const VDI: (u64, u64) = (4096, 30);
const SQL: (u64, u64) = (8192, 67);

/// A test of `span_gb`, with the time that it may take to become warm if it has a bar.
fn test(
    name: &'static str,
    span_gb: u64,
    (block_bytes, read_percent): (u64, u64),
    (ssds, ram_bytes): (usize, u64),
    minutes: Option<f64>,
) -> Test {
    let pattern = Pattern::random(block_bytes, read_percent, span_gb * GB, 32);
    let ram = if ram_bytes > 0 { format!(", {} GB of RAM", ram_bytes / GB) } else { String::new() };
    let block_kib = block_bytes >> 10;
    Test {
        row: if span_gb == 16 { "review-16g" } else { "review-96g" },
        name,
        what: format!("{block_kib}K random {}, {span_gb} GB, {ssds} SSDs{ram}", pattern.kind()),
        source: "review",
        system: System { groups: 1, disks: 12, member: HddParameters::st6000ne0023() },
        cache: Cache {
            ram_bytes,
            mode: if ssds > 1 { Mode::Writeback } else { Mode::Readonly },
            ..Cache::of(drives::sat5200_960(), ssds, 960)
        },
        volumes: 1,
        pattern,
        beside: None,
        fits: true,
        prefilled: false,
        laps: 0,
        published: Published {
            rates: None,
            factor: minutes.map(|_| FACTOR),
            warm_up: minutes.map(|minutes| (minutes * MINUTE) as u64),
        },
        bar: if minutes.is_some() { Bar::Paper } else { Bar::Shown },
        assumed: &ASSUMED,
        cause: "no bar of these was missed when it was last looked at",
    }
}

/// The tests of this review.
pub fn tests() -> Vec<Test> {
    vec![
        test("review-16g/read-ram", 16, READ, (1, RAM_BYTES), Some(RAM_MINUTES)),
        test("review-16g/read-ssd", 16, READ, (1, 0), Some(SSD_MINUTES)),
        test("review-16g/read-ssds", 16, READ, (2, 0), Some(SSD_MINUTES)),
        test("review-16g/vdi", 16, VDI, (2, RAM_BYTES), None),
        test("review-16g/sql", 16, SQL, (2, RAM_BYTES), None),
        test("review-96g/vdi-ssds", 96, VDI, (2, 0), None),
        test("review-96g/vdi-ram", 96, VDI, (2, RAM_BYTES), None),
        test("review-96g/sql-ssds", 96, SQL, (2, 0), None),
        test("review-96g/sql-ram", 96, SQL, (2, RAM_BYTES), None),
    ]
}

//! A blog on SSD caches in a home office: sysbench, random reads and writes of 16 KiB by 1 to 64 threads on a
//! Synology RS2416+ in Synology Hybrid RAID 1 (which is RAID 5), without a cache and with 2 SAT5200.
//!
//! It reports ranges over the threads in words; the lower end is taken for 1 thread, the upper one for 64.

use forebay_device::model::hdd::HddParameters;

use super::array::{Pattern, System};
use super::{Bar, Cache, GB, Published, Test, drives};

/// Neither the disks nor how many of them there are is said.
fn disks() -> System {
    System { groups: 1, disks: 4, member: HddParameters::st6000ne0023() }
}

const ASSUMED: [&str; 4] = [
    "4 disks ST6000NE0023 with their write caches on; two SAT5200-960G with every copy twice",
    "files of 32 GB together, all of them in the cache before",
    "the ends of the reported ranges are those of 1 and of 64 threads; no fsync (sysbench's one in 100 writes)",
    "the system's RAM is not ours: no RAM tier",
];

fn test(
    name: &'static str,
    read_percent: u64,
    threads: usize,
    (without, with): (f64, f64),
) -> Test {
    let pattern = Pattern::random(16 << 10, read_percent, 32 * GB, threads);
    Test {
        row: "blog-sysbench",
        name,
        what: format!("16K random {}, {threads} threads", pattern.kind()),
        source: "blog",
        system: disks(),
        cache: Cache::of(drives::sat5200_960(), 2, 960),
        volumes: 1,
        pattern,
        beside: None,
        fits: true,
        prefilled: true,
        laps: 1,
        published: Published::rates(without, with),
        bar: Bar::Paper,
        assumed: &ASSUMED,
        cause: "no bar of these was missed when it was last looked at",
    }
}

/// The tests of this blog.
pub fn tests() -> Vec<Test> {
    vec![
        test("blog-sysbench/read-1", 100, 1, (25.0, 180.0)),
        test("blog-sysbench/read-64", 100, 64, (250.0, 900.0)),
        test("blog-sysbench/write-1", 0, 1, (600.0, 2_200.0)),
        test("blog-sysbench/write-64", 0, 64, (1_400.0, 5_600.0)),
    ]
}

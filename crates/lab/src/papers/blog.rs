//! A blog on SSD caches in a home office: sysbench, random reads and writes of 16 KiB by 1 to 64 threads on a
//! Synology RS2416+ in Synology Hybrid RAID 1 (which is RAID 5), without a cache and with 2 SAT5200.
//!
//! It reports ranges over the threads in words; the lower end is taken for 1 thread, the upper one for 64. Between
//! these it only says that it is four times as much "across the board".

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

/// What it says of threads between the ends of its ranges.
const FACTOR: f64 = 4.0;

fn test(name: &'static str, read_percent: u64, threads: usize, published: Published) -> Test {
    let pattern = Pattern::random(16 << 10, read_percent, 32 * GB, threads);
    let plural = if threads == 1 { "" } else { "s" };
    Test {
        row: "blog-sysbench",
        name,
        what: format!("16K random {}, {threads} thread{plural}", pattern.kind()),
        source: "blog",
        system: disks(),
        cache: Cache::of(drives::sat5200_960(), 2, 960),
        volumes: 1,
        pattern,
        beside: None,
        fits: true,
        prefilled: true,
        laps: 0,
        published,
        bar: Bar::Paper,
        assumed: &ASSUMED,
        cause: "no bar of these was missed when it was last looked at",
    }
}

/// The tests of this blog.
pub fn tests() -> Vec<Test> {
    let between = || Published { factor: Some(FACTOR), ..Published::default() };
    vec![
        test("blog-sysbench/read-1", 100, 1, Published::rates(25.0, 180.0)),
        test("blog-sysbench/read-2", 100, 2, between()),
        test("blog-sysbench/read-4", 100, 4, between()),
        test("blog-sysbench/read-8", 100, 8, between()),
        test("blog-sysbench/read-16", 100, 16, between()),
        test("blog-sysbench/read-32", 100, 32, between()),
        test("blog-sysbench/read-64", 100, 64, Published::rates(250.0, 900.0)),
        test("blog-sysbench/write-1", 0, 1, Published::rates(600.0, 2_200.0)),
        test("blog-sysbench/write-2", 0, 2, between()),
        test("blog-sysbench/write-4", 0, 4, between()),
        test("blog-sysbench/write-8", 0, 8, between()),
        test("blog-sysbench/write-16", 0, 16, between()),
        test("blog-sysbench/write-32", 0, 32, between()),
        test("blog-sysbench/write-64", 0, 64, Published::rates(1_400.0, 5_600.0)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_to_64_threads_read_and_write_16_kib() {
        for (at, reads) in [(0, 100), (7, 0)] {
            let patterns: Vec<_> = tests()[at..at + 7].iter().map(|test| test.pattern).collect();
            let threads: Vec<_> = patterns.iter().map(|pattern| pattern.depth).collect();
            assert_eq!(threads, [1, 2, 4, 8, 16, 32, 64]);
            assert!(patterns.iter().all(|p| p.read_percent == reads && p.block_bytes == 16_384));
        }
        assert!(tests().iter().all(|test| test.bar == Bar::Paper && test.published.factor > None));
    }
}

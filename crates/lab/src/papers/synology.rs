//! Synology, "SSD Cache White Paper" (DSM 7.1, 2022), tests A and B.
//!
//! An SA3600: A, 12 disks ST6000NE0023 in RAID 5, 2 SNV3500-400G (NVMe) in RAID 1; B, 10 disks and 2
//! SAT5200-960G (SATA) in RAID 1. The caches were filled with the hot data before.

use forebay_device::model::hdd::HddParameters;
use forebay_device::model::ssd::SsdParameters;

use super::array::{Pattern, System};
use super::{Bar, Cache, GB, Published, Test, drives};

/// A disk's write cache is on unless turned off, which nobody says.
pub fn disks(disks: usize) -> System {
    System { groups: 1, disks, member: HddParameters::st6000ne0023() }
}

const ASSUMED: [&str; 3] = [
    "100 GB of hot data (the paper's example elsewhere) and 128 requests at a time",
    "the disks' own write caches are on; chunks of 64 KiB",
    "the system's 32 GB of RAM are not ours: no RAM tier",
];

fn test(
    (row, name): (&'static str, &'static str),
    system: System,
    (drive, ssd_gb): (SsdParameters, u64),
    read_percent: u64,
    (without, with): (f64, f64),
) -> Test {
    let pattern = Pattern::random(4096, read_percent, 100 * GB, 128);
    let what = format!("4K random {}, 2 x {} twice", pattern.kind(), drive.name);
    Test {
        row,
        name,
        what,
        source: if row == "synology-a" { "Synology test A" } else { "Synology test B" },
        system,
        cache: Cache::of(drive, 2, ssd_gb),
        volumes: 1,
        pattern,
        beside: None,
        fits: true,
        prefilled: true,
        laps: 0,
        published: Published::rates(without, with),
        bar: Bar::Paper,
        assumed: &ASSUMED,
        cause: "no bar of these was missed when it was last looked at",
    }
}

/// The tests of this paper.
pub fn tests() -> Vec<Test> {
    let a = || (disks(12), (drives::snv3500_400(), 400));
    let b = || (disks(10), (drives::sat5200_960(), 960));
    let one = |names, (system, drive), read_percent, published| {
        test(names, system, drive, read_percent, published)
    };
    vec![
        one(("synology-a", "synology-a/read"), a(), 100, (6_581.21, 263_667.10)),
        one(("synology-a", "synology-a/write"), a(), 0, (6_284.23, 92_620.52)),
        one(("synology-a", "synology-a/mix"), a(), 70, (9_253.13, 194_949.36)),
        one(("synology-b", "synology-b/read"), b(), 100, (4_593.52, 176_931.25)),
        one(("synology-b", "synology-b/write"), b(), 0, (2_266.7, 70_764.29)),
        one(("synology-b", "synology-b/mix"), b(), 70, (6_569.51, 120_912.32)),
    ]
}

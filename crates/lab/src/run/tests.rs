use proptest::prelude::*;

use super::log::{NOWHERE, index_of};
use super::*;
use crate::trace::Request;

impl Log<'_> {
    /// Every block is where its unit has it, and all sums are right.
    pub(super) fn check(&self) {
        let mut live = [0; 2];
        let mut mapped = vec![0; self.mapped.len()];
        for (id, piece) in self.pieces.iter().enumerate() {
            let first = id as u64 * self.settings.unit_blocks as u64;
            let here = piece.blocks.iter().zip(first..);
            let here: Vec<_> =
                here.filter(|&(&block, place)| self.places[block as usize] == place).collect();
            assert_eq!(here.len(), piece.live as usize);
            live[index_of(piece.queue)] += here.len() as u64;
            here.iter().for_each(|&(&block, _)| {
                mapped[self.granules[block as usize] as usize] += 1;
            });
        }
        assert_eq!(live, self.live);
        assert_eq!(mapped, self.mapped);
        let held = self.places.iter().filter(|&&place| place != NOWHERE).count();
        assert_eq!(held as u64, live[0] + live[1]);
        assert!(held <= self.settings.pool_blocks);
        let cold = |at: usize| mapped[at] > 0 || self.heat[at] == 0;
        assert!((0..mapped.len()).all(cold), "heat without a block");
    }
}

fn workload(requests: impl IntoIterator<Item = (bool, u64, u64)>) -> Workload {
    let request = |(write, block, blocks)| {
        let (offset, bytes) = (block * BLOCK_BYTES, blocks * BLOCK_BYTES);
        Ok(Request { time_us: 0, volume: 0, write, offset, bytes })
    };
    Workload::load(requests.into_iter().map(request)).unwrap()
}

fn ran(workload: &Workload, settings: Settings) -> Report {
    run(workload, settings, &|| Duration::ZERO).unwrap()
}

#[test]
fn what_fits_is_missed_once() {
    let workload = workload((0..3).flat_map(|_| (0..1000).map(|block| (false, block, 1))));
    for settings in [Settings::ideal(1100), Settings { unit_blocks: 4, ..Settings::ideal(1100) }] {
        let report = ran(&workload, settings);
        assert_eq!(report.accesses(), Share { missed: 1000, all: 3000 });
        assert_eq!((report.populated_blocks, report.moved_blocks), (1000, 0));
    }
}

#[test]
fn a_request_is_missed_unless_all_of_it_is_there_and_bytes_are_counted_as_asked_for() {
    let request =
        |write, offset, bytes| Ok(Request { time_us: 0, volume: 0, write, offset, bytes });
    let requests =
        [request(true, 4096, 4096), request(false, 512, 8192), request(false, 512, 8192)];
    let workload = Workload::load(requests).unwrap();
    let report = ran(&workload, Settings::ideal(100));
    assert_eq!(report.writes, Share { missed: 1, all: 1 });
    assert_eq!(report.reads, Share { missed: 2, all: 6 });
    assert_eq!(report.requests, Share { missed: 2, all: 3 });
    assert_eq!(report.bytes, Share { missed: 4096 + 3584 + 512, all: 4096 + 2 * 8192 });
    assert_eq!(report.appended_blocks, 3);
}

#[test]
fn a_scan_does_not_push_out_what_is_read_again_and_again() {
    let hot = || (0..500u64).flat_map(|_| 0..40u64);
    let scan =
        hot().enumerate().flat_map(|(at, block)| [(false, block, 1), (false, 1000 + at as u64, 1)]);
    let workload = workload(scan);
    let report = ran(&workload, Settings::ideal(100));
    assert!(report.accesses().ratio() < 0.52, "{}", report.accesses().ratio());
}

#[test]
fn what_main_holds_stays_there_when_it_is_written() {
    // Read again later, so in main once the pool has turned over; then written, beside a scan.
    let hot = |write| (0..20).map(move |block| (write, block, 1));
    let scan = |from: u64, blocks| (from..from + blocks).map(|block| (false, block, 1));
    let rounds = (0..10).flat_map(|round| hot(true).chain(scan(5000 + round * 60, 60)));
    let again = || scan(900, 10).chain(hot(false));
    let filled = hot(false).chain(again()).chain(again()).chain(scan(1000, 200));
    let report = ran(&workload(filled.chain(rounds)), Settings::ideal(100));
    assert_eq!(report.writes, Share { missed: 0, all: 200 });
}

/// What RAM has is not written to the SSD, and goes there when RAM lets it go.
#[test]
fn ram_comes_before_the_log() {
    let scan = |times| {
        let blocks = (0..times).flat_map(|_| (0..1000).map(|block| (false, block, 1)));
        workload(blocks)
    };
    let with = |ram_blocks| Settings { ram_blocks, ..Settings::ideal(1100) };
    let report = ran(&scan(3), with(1000));
    assert_eq!((report.reads.missed, report.ram_hits, report.appended_blocks), (1000, 2000, 0));
    let report = ran(&scan(2), with(100));
    assert_eq!((report.reads.missed, report.populated_blocks), (1000, 900));
    // A long read is not RAM's guest, in whatever pieces it is looked at.
    let long = |count| workload([(false, 0, count), (false, 0, count)]);
    let report = ran(&long(32), Settings { ram_blocks: 100, ..Settings::daemon(100_000) });
    assert_eq!((report.ram_hits, report.populated_blocks), (32, 0));
    let report = ran(&long(33), Settings { ram_blocks: 100, ..Settings::daemon(100_000) });
    assert_eq!((report.ram_hits, report.populated_blocks), (0, 33));
    // A write that only the origin has is read from there.
    let around = Settings { thresholds: Thresholds { read: 1, write: 0 }, ..with(100) };
    let report =
        ran(&workload([(false, 0, 1), (true, 0, 1), (false, 0, 1), (false, 0, 1)]), around);
    assert_eq!((report.reads.missed, report.ram_hits), (2, 1));
}

/// A cache takes memory as it is filled.
#[test]
fn a_cache_may_be_larger_than_memory() {
    let workload = workload((0..100).map(|block| (block % 2 == 0, block, 1)));
    let budget = Settings { write_budget_percent: Some(100), ..Settings::daemon(1 << 50) };
    for settings in [Settings::ideal(1 << 50), Settings::daemon(1 << 50), budget] {
        let report = ran(&workload, Settings { ram_blocks: 1 << 50, ..settings });
        assert_eq!(report.accesses().missed, 100);
        assert!(report.policy_bytes < 1 << 20, "{}", report.policy_bytes);
    }
}

/// Reads and writes of up to eight blocks, skewed, with a scan in between: the same on every machine.
fn fixture() -> Workload {
    let mut random = 7_u64;
    let mut below = move |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % bound
    };
    let request = move |at: u64| match at % 5 {
        0 => (false, 100_000 + at, 1),
        _ => {
            let near = below(60) + 1;
            (below(4) == 0, below(20_000 / near) * 3, 1 + below(8))
        }
    };
    workload((0..40_000).map(request))
}

#[test]
fn what_was_let_go_of_is_read_on() {
    // Of 100 units three are free, and four of the others were let go of.
    let workload = workload((0..3).flat_map(|_| (0..97 * 16).map(|block| (false, block, 1))));
    let report = ran(&workload, Settings { unit_blocks: 16, ..Settings::ideal(1600) });
    assert_eq!(report.accesses(), Share { missed: 97 * 16, all: 3 * 97 * 16 });
    assert_eq!(report.moved_blocks, 0);
}

/// What is missed, brought in and moved changes only by intent.
#[test]
fn the_policy_decides_as_it_did() {
    let workload = fixture();
    let came_to = |settings: Settings| {
        let Report { reads, writes, populated_blocks, moved_blocks, .. } = ran(&workload, settings);
        (reads.missed, writes.missed, populated_blocks, moved_blocks)
    };
    let daemon = Settings::daemon(8192);
    assert_eq!(came_to(Settings::ideal(8192)), (20665, 4090, 20665, 4256));
    assert_eq!(came_to(daemon), (23356, 4986, 23356, 12374));
    assert_eq!(came_to(Settings { ram_blocks: 1024, ..daemon }), (22472, 4691, 22995, 12655));
    assert_eq!(
        came_to(Settings { write_budget_percent: Some(50), ..daemon }),
        (24228, 5251, 22749, 12467)
    );
}

#[test]
fn a_cache_of_nothing_is_refused() {
    let workload = workload([(false, 0, 1)]);
    for settings in [Settings::ideal(7), Settings { unit_blocks: 0, ..Settings::ideal(100) }] {
        let error = run(&workload, settings, &|| Duration::ZERO).unwrap_err();
        assert!(error.what.contains("less than 8 units"), "{error}");
    }
}

proptest! {
    #[test]
    fn every_access_is_counted_and_nothing_exceeds_the_pool_or_the_budget(
        requests in proptest::collection::vec((any::<bool>(), 0..300u64, 1..40u64), 1..600),
        units in 8..60usize,
        unit_blocks in 1..20usize,
        granule_blocks in prop_oneof![Just(1u64), Just(16)],
        percent in 100..300u32,
        write_budget in proptest::option::of(0..200u32),
        read in 1..=4u8,
        write in 0..=4u8,
        auto in any::<bool>(),
        sequential in prop_oneof![
            Just(Sequential::Cached),
            (0..200_000u64).prop_map(Sequential::Passes),
            (0..200_000u64).prop_map(Sequential::Auto),
        ],
        cache_block_blocks in prop_oneof![Just(1u64), Just(4), Just(16)],
        ram_blocks in prop_oneof![Just(0), 1..100usize],
    ) {
        let workload = workload(requests.iter().copied());
        let report = ran(&workload, Settings {
            pool_blocks: units * unit_blocks,
            unit_blocks,
            granule_blocks,
            write_amplification_max_percent: Some(percent),
            write_budget_percent: write_budget,
            thresholds: Thresholds { read, write },
            auto: auto && read == 1,
            sequential,
            cache_block_blocks,
            ram_blocks,
        });
        let sum = |write| {
            let of_kind = requests.iter().filter(|request| request.0 == write);
            of_kind.map(|request| request.2).sum::<u64>()
        };
        prop_assert_eq!(report.reads.all, sum(false));
        prop_assert_eq!(report.writes.all, sum(true));
        prop_assert_eq!(report.requests.all, requests.len() as u64);
        prop_assert_eq!(report.bytes.all, (sum(false) + sum(true)) * BLOCK_BYTES);
        let admitted = report.appended_blocks - report.moved_blocks;
        let writes = admitted - report.populated_blocks;
        let thrifty = write_budget.is_some();
        prop_assert!(write != 1 || thrifty || writes == sum(true));
        prop_assert!(writes <= sum(true) && (write > 0 || writes == 0));
        let picks = read > 1 || auto || sequential != Sequential::Cached;
        prop_assert!(report.passed_blocks == 0 || picks || write != 1 || thrifty);
        let reads_alone_pass = write == 1 && !thrifty && ram_blocks == 0;
        prop_assert!(
            !reads_alone_pass
                || admitted + report.passed_blocks == sum(true) + report.reads.missed
        );
        let all = reads_alone_pass && !picks;
        prop_assert!(report.ram_hits <= report.reads.all - report.reads.missed);
        prop_assert!(report.ram_hits == 0 || ram_blocks > 0);
        prop_assert!(!all || admitted == sum(true) + report.reads.missed);
        prop_assert!(report.moved_blocks * 100 <= admitted * u64::from(percent - 100));
    }
}

//! `forebay-bench arrays`: modelled arrays beside measurements that others have published.
//!
//! * Virtual time: the same figures on every machine, whatever else runs on it.
//! * One parameter set per disk model (`HddParameters`). A row states what its source says of the
//!   test; nothing is fitted to a row.
//! * What a source does not say is one assumption for all of its rows, and the second table shows
//!   how much hangs on it. docs/internals/models.md has the sources.

use forebay_device::model::hdd::{HddModel, HddParameters};
use forebay_device::model::modelled::{
    Command, Figures, Model, Operation, closed_loop, closed_loop_after,
};
use forebay_lab::papers::array::{Pattern as Test, System};
use forebay_lab::papers::{qsan, synology};

use crate::verdict;

/// A row with a bar may be this far from what was published.
const DEVIATION_MAX: f64 = 0.25;

const GB: u64 = 1_000_000_000;

/// One published figure.
struct Published {
    source: &'static str,
    system: System,
    test: Test,
    iops: f64,
    /// Whether the model has to come within [`DEVIATION_MAX`].
    bar: bool,
    /// Why it does not, if it does not.
    note: &'static str,
}

fn random(read_percent: u64, span_gb: u64) -> Test {
    Test::random(4096, read_percent, span_gb * GB, 128)
}

const RAM_WRITES: &str = "not the disks: at four commands a write, each disk would do over 2,000 \
    random ones a second; 32 GB of RAM collect the writes, merge and sort them";
const RAM_MIX: &str = "more than the same system reads or writes alone: both are answered by its \
    32 GB of RAM";

fn published() -> Vec<Published> {
    let eight_k = Test { block_bytes: 8192, ..random(67, 90) };
    let rows: [(_, _, _, _, _, &'static str); 11] = [
        ("QSAN table 9", qsan::disks(16), random(100, 90), 4_512.0, true, ""),
        ("QSAN table 10", qsan::disks(16), random(0, 60), 1_660.0, true, ""),
        ("QSAN table 11", qsan::disks(16), eight_k, 2_799.0, false, ""),
        ("QSAN table 12", qsan::disks(8), random(100, 90), 4_986.0, false, ""),
        ("QSAN table 13", qsan::disks(8), random(0, 90), 1_268.0, false, ""),
        ("Synology test A", synology::disks(12), random(100, 100), 6_581.0, true, ""),
        ("Synology test A", synology::disks(12), random(0, 100), 6_284.0, false, RAM_WRITES),
        ("Synology test A", synology::disks(12), random(70, 100), 9_253.0, false, RAM_MIX),
        ("Synology test B", synology::disks(10), random(100, 100), 4_594.0, false, ""),
        ("Synology test B", synology::disks(10), random(0, 100), 2_267.0, false, ""),
        ("Synology test B", synology::disks(10), random(70, 100), 6_570.0, false, RAM_MIX),
    ];
    let row = |(source, system, test, iops, bar, note)| Published {
        source,
        system,
        test,
        iops,
        bar,
        note,
    };
    rows.into_iter().map(row).collect()
}

impl Published {
    /// How far the model is from what was published, as a part of it.
    fn deviation(&self) -> f64 {
        self.system.iops(self.test) / self.iops - 1.0
    }

    fn meets_its_bar(&self, deviation: f64) -> bool {
        !self.bar || deviation.abs() <= DEVIATION_MAX
    }
}

fn cells<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

fn percent(part: f64) -> String {
    format!("{:+.0} %", part * 100.0)
}

/// Prints everything; false if a bar is missed.
pub fn run() -> bool {
    let mut met = true;
    let rows = published();
    let mut lines =
        vec![cells(["source", "array", "random", "published", "modelled", "", "bar", "verdict"])];
    let mut notes: Vec<String> = Vec::new();
    for row in &rows {
        let deviation = row.deviation();
        let is_met = row.meets_its_bar(deviation);
        met &= is_met;
        let (bar, verdict) = match (row.bar, is_met) {
            (false, _) => ("", ""),
            (true, true) => ("+-25 %", "met"),
            (true, false) => ("+-25 %", "missed"),
        };
        let modelled = format!("{:.0}", row.iops * (1.0 + deviation));
        lines.push(cells([
            row.source,
            &row.system.text(),
            &row.test.text(),
            &format!("{:.0}", row.iops),
            &modelled,
            &percent(deviation),
            bar,
            verdict,
        ]));
        if !row.note.is_empty() {
            notes.push(format!("{}, {}: {}", row.source, row.test.text(), row.note));
        }
    }
    verdict::table(&lines);
    notes.iter().for_each(|note| println!("- {note}"));
    println!();
    assumptions(&rows);
    println!();
    disks();
    met
}

/// The rows with a bar again, each with one assumption changed.
fn assumptions(rows: &[Published]) {
    type Change = fn(&mut System, &mut Test);
    let changes: [(&str, Change); 6] = [
        ("queue of 256 (128 for each of two hosts)", |_, test| test.depth = 256),
        ("queue of 64", |_, test| test.depth = 64),
        ("four times the span", |_, test| test.span_bytes *= 4),
        ("disks' write caches the other way", |system, _| {
            let with = [HddParameters::st500nm0001(), HddParameters::st6000ne0023()];
            let cached = with.into_iter().find(|disk| disk.name == system.member.name);
            system.member = match cached {
                Some(disk) if system.member.write_cache_bytes == 0 => disk,
                _ => system.member.clone().without_write_cache(),
            };
        }),
        ("margin of the heads 0.3 ms instead of 0.6", |system, _| {
            system.member.margin_ns = 300_000
        }),
        ("margin of the heads 0.9 ms", |system, _| system.member.margin_ns = 900_000),
    ];
    let barred: Vec<&Published> = rows.iter().filter(|row| row.bar).collect();
    let mut head = cells(["what nobody says, and what it changes"]);
    head.extend(barred.iter().map(|row| format!("{}, {}", row.source, row.test.text())));
    let mut lines = vec![head];
    for (what, change) in changes {
        let mut line = cells([what]);
        for row in &barred {
            let (mut system, mut test) = (row.system.clone(), row.test);
            change(&mut system, &mut test);
            line.push(percent(system.iops(test) / row.iops - 1.0));
        }
        lines.push(line);
    }
    verdict::table(&lines);
}

/// One disk of each kind: how it scales.
fn disks() {
    let head = ["one disk", "4K read", "4K write, cache", "4K write, no cache", "sequential"];
    let mut lines = vec![cells(head)];
    for disk in [HddParameters::st500nm0001(), HddParameters::st6000ne0023()] {
        let plain = disk.clone().without_write_cache();
        for depth in [1, 4, 16, 32, 128] {
            let test = Test { depth, span_bytes: disk.size_bytes, ..random(100, 0) };
            let rate = |disk: &HddParameters, read_percent| {
                let system = System { groups: 1, disks: 1, member: disk.clone() };
                let test = Test { read_percent, ..test };
                let mut model = HddModel::new(disk.clone(), 0);
                let warm_up = 2 * system.warm_up(test);
                let next = test.commands(1);
                format!("{:.0}/s", closed_loop_after(&mut model, depth, warm_up, 4_000, next).iops)
            };
            let [read, cached, through] = [rate(&disk, 100), rate(&disk, 0), rate(&plain, 0)];
            let figures = sequential(&mut HddModel::new(disk.clone(), 0), depth);
            let stream = format!("{:.0} MB/s", figures.bytes_per_s / 1e6);
            let name = format!("{}, queue {depth}", disk.name);
            lines.push(cells([&name, &read, &cached, &through, &stream]));
        }
    }
    verdict::table(&lines);
}

/// Reads of 1 MiB from the outer edge inwards.
fn sequential(model: &mut impl Model, depth: usize) -> Figures {
    let mut offset = 0;
    closed_loop(model, depth, 2_000, || {
        offset += 1 << 20;
        Command { operation: Operation::Read, offset: offset - (1 << 20), len: 1 << 20 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_figures_with_a_bar_are_met() {
        let rows: Vec<Published> = published().into_iter().filter(|row| row.bar).collect();
        assert_eq!(rows.len(), 3);
        for row in rows {
            let deviation = row.deviation();
            let what = format!("{}, {}: {}", row.source, row.test.text(), percent(deviation));
            assert!(row.meets_its_bar(deviation), "{what}");
        }
    }

    #[test]
    fn a_row_is_missed_on_either_side() {
        let row = published().remove(0);
        for (deviation, met) in [(-0.26, false), (-0.24, true), (0.24, true), (0.26, false)] {
            assert_eq!(row.meets_its_bar(deviation), met, "{deviation}");
        }
    }
}

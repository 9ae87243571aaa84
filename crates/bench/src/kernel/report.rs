//! From what was told to rows of the table.

use super::cases;
use super::engines::{BARE, NAMES};
use super::said::Said;
use crate::nbd::table::{Kind, Shown, Sides};
use crate::verdict::{Bar, Row};

/// What the tables do not have, and why.
pub(super) const NOT_MEASURED: &str = "\
not measured: the others' start after a kill (they die with their kernel, and these slow disks with it);
CPU for a durable write (fio takes longer to start than a round has writes)";

const SIDES: Sides = Sides { names: &NAMES, ours: 0, peers: 1..BARE, bare: BARE };

fn shown() -> Vec<Shown> {
    let mut shown = Vec::new();
    for case in cases::hot() {
        let bar = if case.job.sync { Bar::AtLeast(2.0) } else { Bar::None };
        shown.push(Shown::rate(case.name, case.what, bar));
    }
    let cost = |row, what, key, unit| Shown::other(row, what, key, Kind::Cost(unit));
    let amount = |row, what, key, unit| Shown::other(row, what, key, Kind::Amount(unit));
    shown.extend([
        Shown::rate("zipf", "4K zipf 1.1 reads of 2 x the cache", Bar::None),
        Shown::rate("overwrite", "4K overwriting, queue 32", Bar::None),
        Shown::other("overwrite", "its worst second", "worst", Kind::Rate),
        Shown::rate("destage", "4K hits, queue 32, while it writes back", Bar::None),
        cost("read", "CPU for a hit, with fio and its start", "cpu", " us"),
        cost("write", "CPU for a write, with fio and its start", "cpu", " us"),
        cost("write", "SSD bytes for a client's byte, 4K writes", "ssd", ""),
        cost("flush1", "SSD bytes for a client's byte, durable", "ssd", ""),
        cost("overwrite", "overwriting, 99.9 % of the requests", "p999", " ms"),
        cost("restart", "end in order, dirty", "stop", " s"),
        cost("restart", "start after that", "start", " s"),
        cost("restart", "start after a kill", "killed", " s"),
        cost("", "RAM for a GiB of cache", "ram", " MiB"),
        amount("overwrite", "caches overwritten meanwhile", "caches", ""),
        amount("destage", "written back meanwhile", "destaged", " MiB/s"),
    ]);
    shown
}

/// All rows that were wanted.
pub(super) fn rows(said: &Said, quick: bool, wants: &dyn Fn(&str) -> bool) -> Vec<Row> {
    let all = shown();
    let wanted = all.iter().filter(|shown| shown.row.is_empty() || wants(shown.row));
    wanted.map(|shown| SIDES.row(&said.told, shown, quick)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::protocol::Line;
    use crate::verdict::Verdict;

    fn said(lines: &[&str]) -> Said {
        let mut said = Said::default();
        for line in lines {
            assert!(!said.add(Line::parse(line).expect("a line")));
        }
        said
    }

    fn flush1(said: &Said) -> Row {
        rows(said, false, &|name| name == "flush1").remove(0)
    }

    const OURS: &str = r#"@@{"row":"flush1","side":0,"values":{"rate":3000}}"#;
    const BARE_SSD: &str = r#"@@{"row":"flush1","side":4,"values":{"rate":2000}}"#;

    #[test]
    fn the_best_of_the_others_counts() {
        let row = flush1(&said(&[
            OURS,
            r#"@@{"row":"flush1","side":1,"values":{"rate":500}}"#,
            r#"@@{"row":"flush1","side":3,"values":{"rate":1200,"origin_reads":0.5}}"#,
            BARE_SSD,
        ]));
        assert_eq!((row.ratio.as_str(), row.verdict), ("2.50", Verdict::Met));
        assert_eq!(row.figures[..3], ["3000/s (1.50)", "500/s (0.25)", "-"].map(str::to_owned));
        assert_eq!(row.note, "dm-writecache: 50.0 % of requests read the slow disk");
    }

    #[test]
    fn a_row_without_ours_is_missed_and_says_why() {
        let peer = r#"@@{"row":"flush1","side":1,"values":{"rate":500}}"#;
        let reason = r#"@@{"row":"","side":0,"missing":"starting: no nbd"}"#;
        let row = flush1(&said(&[peer, reason, BARE_SSD]));
        assert_eq!(row.verdict, Verdict::Missed);
        assert_eq!(row.note, "did not run: starting: no nbd");
    }

    #[test]
    fn what_only_ours_has_is_shown_without_a_ratio() {
        let said = said(&[r#"@@{"row":"restart","side":0,"values":{"killed":0.7}}"#]);
        let rows = rows(&said, false, &|name| name == "restart");
        let row = rows.iter().find(|row| row.what.contains("kill")).expect("a row");
        assert_eq!((row.ratio.as_str(), row.verdict), ("-", Verdict::Shown));
    }

    #[test]
    fn a_row_without_another_cache_is_no_comparison() {
        let row = flush1(&said(&[OURS, BARE_SSD]));
        assert_eq!(row.verdict, Verdict::Missed);
    }
}

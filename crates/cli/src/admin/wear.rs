//! The write budget of a pool, as people write and read it.

use forebay_control::api::{PoolUsage, WriteBudget};

use crate::Result;
use crate::failure::Failure;
use crate::text::{self, parse_bytes};

/// How often a day cache devices may be filled at the most: more than any SSD is sold for.
const DWPD_MAX: f64 = 1000.0;

/// Years of a warranty at the most.
const YEARS_MAX: u64 = 100;

const DAYS_OF_A_YEAR: f64 = 365.0;

/// Data sheets count in terabytes of 10^12 bytes.
const TERABYTE: f64 = 1e12;

/// Above any SSD's.
const TERABYTES_MAX: f64 = 1e6;

/// Bytes a day, of a write budget as people write it: so many; what data sheets promise (TBW) over some years; or
/// how often a day the cache devices may be filled (DWPD), of which `capacity` is one time.
pub(super) fn parse(text: &str, capacity: &dyn Fn() -> Result<u64>) -> Result<u64> {
    let wrong = |why: &str| {
        Failure::new(format!("write_budget={text} is no budget: {why}")).hint(
            "write it for all SSDs of the pool together, as bytes a day (200G), terabytes written over some years \
             (1200TBW/5y), or drive writes a day (0.3dwpd); write_budget=0 is none",
        )
    };
    let number = |text: &str, max: f64, unit: &str| {
        let number = text.trim().parse::<f64>().ok().filter(|it| (0.0..=max).contains(it));
        number.ok_or_else(|| wrong(&format!("{unit} needs a number up to {max}")))
    };
    // What is a budget must not become none; the daemon says what is the least.
    let at_least_some = |bytes: f64| (bytes as u64).max(u64::from(bytes > 0.0));
    let lower = text.to_ascii_lowercase();
    if let Some(times) = lower.strip_suffix("dwpd") {
        return Ok(at_least_some(number(times, DWPD_MAX, "dwpd")? * capacity()? as f64));
    }
    let Some((written, years)) = lower.split_once('/') else {
        return parse_bytes(text).map_err(|why| wrong(&why));
    };
    let written = written.strip_suffix("tbw").ok_or_else(|| wrong("TBW goes before the years"))?;
    let years = years.trim().strip_suffix('y').and_then(|years| years.parse::<u64>().ok());
    match years {
        Some(years @ 1..=YEARS_MAX) => {
            let bytes = number(written, TERABYTES_MAX, "TBW")? * TERABYTE;
            Ok(at_least_some(bytes / (years as f64 * DAYS_OF_A_YEAR)))
        }
        _ => Err(wrong(&format!("the years are a number up to {YEARS_MAX} and y, as 5y"))),
    }
}

/// What reclaim may write, and what was written and why, once anything came into the cache.
pub(super) fn reclaim(usage: &PoolUsage) -> String {
    let most =
        format!("writes up to {} % of what is admitted", usage.write_amplification_max_percent);
    let Some(percent) = usage.write_amplification_percent else { return most };
    let it = &usage.written;
    let parts = [
        (it.write_bytes, "of clients"),
        (it.populate_bytes, "that reads brought in"),
        (it.move_bytes, "moved"),
        (it.header_bytes, "headers"),
        (it.fact_bytes, "facts"),
        (it.checkpoint_bytes, "index"),
    ];
    let parts = parts.into_iter().filter(|(bytes, _)| *bytes > 0);
    let parts: Vec<_> =
        parts.map(|(bytes, what)| format!("{} {what}", text::bytes(bytes))).collect();
    let all = text::bytes(it.all_bytes());
    format!(
        "{most}; with all else {percent} % since the start, {all} to the SSDs: {}",
        parts.join(", ")
    )
}

/// What may be written, and what is left out for it.
pub(super) fn line(budget: &WriteBudget) -> String {
    let day = format!("{} may be written to the SSDs a day", text::bytes(budget.bytes_per_day));
    let left = match budget.left_bytes {
        left @ 0.. => format!("{} now", text::bytes(left.unsigned_abs())),
        behind => format!("{} behind", text::bytes(behind.unsigned_abs())),
    };
    let percent = |permille: u16| format!("{} %", permille.div_ceil(10));
    let kinds = [
        (budget.new_left_out_permille, "of what is missed for the first time"),
        (budget.known_left_out_permille, "of what left the cache of late"),
        (budget.dirty_left_out_permille, "of what is written over nothing cached"),
    ];
    let out: Vec<_> = kinds
        .into_iter()
        .filter(|(permille, _)| *permille > 0)
        .map(|(permille, what)| format!("{} {what}", percent(permille)))
        .collect();
    match out.is_empty() {
        true => format!("{day}, {left}; nothing is left out"),
        false => format!("{day}, {left}; left out: {}", out.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<u64> {
        parse(text, &|| Ok(1 << 40))
    }

    #[test]
    fn a_budget_is_bytes_a_day_a_promise_over_years_or_drive_writes() {
        assert_eq!(parsed("0").unwrap(), 0);
        assert_eq!(parsed("200G").unwrap(), 200 << 30);
        assert_eq!(parsed("600TBW/5y").unwrap(), 600_000_000_000_000 / (5 * 365));
        assert_eq!(parsed("0.5dwpd").unwrap(), 1 << 39);
        assert_eq!(parsed("3 dwpd").unwrap(), 3 << 40);
        assert_eq!(parsed("1200tbw/3y").unwrap(), 1_200_000_000_000_000 / (3 * 365));
        assert_eq!(parsed("0.0000000000001dwpd").unwrap(), 1);
        let wrong = [
            "",
            "fast",
            "-1",
            "600T/5y",
            "600TBW/",
            "600TBW/5",
            "600TBW/0y",
            "600TBW/101y",
            "TBW/5y",
        ];
        for wrong in wrong.into_iter().chain(["dwpd", "-1dwpd", "NaNdwpd", "infdwpd", "1001dwpd"]) {
            let failure = parsed(wrong).unwrap_err();
            assert!(failure.what().contains("is no budget"), "{wrong}: {}", failure.what());
        }
    }

    #[test]
    fn what_is_left_out_is_said() {
        let mut budget = WriteBudget {
            bytes_per_day: 200 << 30,
            left_bytes: 8 << 30,
            new_left_out_permille: 0,
            known_left_out_permille: 0,
            dirty_left_out_permille: 0,
        };
        let roomy = "200 GiB may be written to the SSDs a day, 8 GiB now; nothing is left out";
        assert_eq!(line(&budget), roomy);
        budget.left_bytes = -1 << 30;
        (budget.new_left_out_permille, budget.known_left_out_permille) = (1000, 31);
        let behind = line(&budget);
        assert!(behind.contains("1 GiB behind; left out: 100 % of what is missed for the first"));
        assert!(behind.ends_with("4 % of what left the cache of late"), "{behind}");
    }
}

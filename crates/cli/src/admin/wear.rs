//! The write budget of a pool, as people write and read it.

use forebay_control::api::WriteBudget;

use crate::Result;
use crate::failure::Failure;
use crate::text::{self, parse_bytes};

/// How often a day cache devices may be filled at the most: more than any SSD is sold for.
const DWPD_MAX: f64 = 1000.0;

/// Years of a warranty at the most.
const YEARS_MAX: u64 = 100;

const DAYS_OF_A_YEAR: u64 = 365;

/// Bytes a day, of a write budget as people write it: so many; what a data sheet promises (TBW) over some years; or
/// how often a day the cache devices may be filled (DWPD), of which `capacity` is one time.
pub(super) fn parse(text: &str, capacity: &dyn Fn() -> Result<u64>) -> Result<u64> {
    let wrong = |why: &str| {
        Failure::new(format!("write_budget={text} is no budget: {why}")).hint(
            "write it as bytes a day (200G), bytes over some years (600T/5y), or drive writes a day \
             (0.3dwpd); write_budget=0 is none",
        )
    };
    if let Some(times) = text.strip_suffix("dwpd") {
        let times: f64 = times.trim().parse().map_err(|_| wrong("dwpd needs a number"))?;
        if !(0.0..=DWPD_MAX).contains(&times) {
            return Err(wrong(&format!("it is not within 0 and {DWPD_MAX}")));
        }
        // What is a budget must not become none; the daemon says what is the least.
        return Ok(((capacity()? as f64 * times) as u64).max(u64::from(times > 0.0)));
    }
    let (size, years) = match text.split_once('/') {
        Some((size, years)) => (size, years.trim().strip_suffix('y').map(str::parse::<u64>)),
        None => (text, None),
    };
    let bytes = parse_bytes(size).map_err(|why| wrong(&why))?;
    match years {
        Some(Ok(years @ 1..=YEARS_MAX)) => Ok((bytes / (years * DAYS_OF_A_YEAR)).max(bytes.min(1))),
        None if !text.contains('/') => Ok(bytes),
        _ => Err(wrong(&format!("the years are a number up to {YEARS_MAX} and y, as 5y"))),
    }
}

/// What may be written, and what is left out for it.
pub(super) fn line(budget: &WriteBudget) -> String {
    let day = format!("{} may be written to the SSDs a day", text::bytes(budget.bytes_per_day));
    let left = match budget.left_bytes {
        left @ 0.. => format!("{} now", text::bytes(left.unsigned_abs())),
        behind => format!("{} more were", text::bytes(behind.unsigned_abs())),
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
        assert_eq!(parsed("600T/5y").unwrap(), (600 << 40) / (5 * 365));
        assert_eq!(parsed("0.5dwpd").unwrap(), 1 << 39);
        assert_eq!(parsed("3 dwpd").unwrap(), 3 << 40);
        assert_eq!((parsed("1/5y").unwrap(), parsed("0.0000000000001dwpd").unwrap()), (1, 1));
        let wrong = ["", "fast", "-1", "600T/", "600T/5", "600T/0y", "600T/101y", "600T/5y/5y"];
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
        assert!(
            behind.contains("1 GiB more were; left out: 100 % of what is missed for the first")
        );
        assert!(behind.ends_with("4 % of what left the cache of late"), "{behind}");
    }
}

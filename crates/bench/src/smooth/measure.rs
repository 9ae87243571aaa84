//! Figures of a load for the table and for the raw results.

use forebay_device::Nanos;
use forebay_lab::scene::Seen;
use serde_json::{Value, json};

/// What a load has seen, for the raw results.
pub(super) trait Raw {
    fn to_json(&self) -> Value;
}

impl Raw for Seen {
    fn to_json(&self) -> Value {
        let at = |percent| self.percentile(percent).ok();
        json!({
            "requests": self.requests(), "bytes": self.bytes, "ns": self.span,
            "each_second": self.each_second(), "longest_ns": self.longest(),
            "p50_ns": at(50.0), "p99_ns": at(99.0), "p99.9_ns": at(99.9),
        })
    }
}

/// Milliseconds or microseconds, whichever is easier to read.
pub(super) fn span(nanos: Nanos) -> String {
    match nanos as f64 / 1e3 {
        us if us < 1e3 => format!("{us:.0} us"),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_a_fitting_unit() {
        assert_eq!(span(110_000), "110 us");
        assert_eq!(span(8_250_000), "8.2 ms");
        assert_eq!(span(2_000_000_000), "2.0 s");
    }
}

//! What the system tells of itself: time, processors, memory, block devices.

use std::fs::{self, File};
use std::io::Read;

use crate::bench::Result;

/// Nanoseconds of a system call, a read of one byte: the least of some spans, since others want the processor too.
pub(super) fn system_call_ns() -> Result<f64> {
    const SPANS: usize = 5;
    let spans = (0..SPANS).map(|_| system_call_once_ns()).collect::<Result<Vec<_>>>()?;
    Ok(spans.into_iter().fold(f64::INFINITY, f64::min))
}

fn system_call_once_ns() -> Result<f64> {
    // The clock that is at hand tells hundredths of a second.
    const CALLS: u32 = 1_000;
    const SPAN_S: f64 = 0.2;
    let failed = |e| format!("/dev/zero: {e}");
    let mut zero = File::open("/dev/zero").map_err(failed)?;
    let (mut byte, mut calls) = ([0], 0);
    let before = seconds()?;
    loop {
        for _ in 0..CALLS {
            zero.read_exact(&mut byte).map_err(failed)?;
        }
        calls += CALLS;
        let passed = seconds()? - before;
        if passed >= SPAN_S {
            return Ok(passed * 1e9 / f64::from(calls));
        }
    }
}

/// Since the system started; whole hundredths.
pub(super) fn seconds() -> Result<f64> {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
    first.ok_or_else(|| "/proc/uptime tells no time".to_owned())
}

/// A number among those of a line, counted from 0.
fn field(text: &str, index: usize) -> Option<f64> {
    text.split_whitespace().nth(index)?.parse().ok()
}

/// Seconds that the processors were busy, with whatever.
fn busy_seconds(stat: &str) -> Option<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    // user nice system idle iowait irq softirq
    let ticks = [0, 1, 2, 5, 6].map(|index| field(line, index));
    Some(ticks.into_iter().sum::<Option<f64>>()? / TICKS_PER_SECOND)
}

pub(super) fn busy() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    busy_seconds(&stat).ok_or_else(|| "/proc/stat tells no time".to_owned())
}

/// MiB of memory, all of it or what could still be had: `MemTotal`, `MemAvailable`.
pub(super) fn memory(kind: &str) -> Result<f64> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    memory_mib(&text, kind).ok_or_else(|| "/proc/meminfo tells no memory".to_owned())
}

fn memory_mib(text: &str, kind: &str) -> Option<f64> {
    let rest = |line: &'_ str| line.strip_prefix(kind)?.strip_prefix(':').map(str::to_owned);
    field(&text.lines().find_map(rest)?, 0).map(|kib| kib / 1024.0)
}

/// What a block device has done: requests read, sectors written.
pub(super) fn done(device: &str) -> Result<(f64, f64)> {
    let path = format!("/sys/block/{device}/stat");
    let text = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let both = field(&text, 0).zip(field(&text, 6));
    both.ok_or_else(|| format!("{path} has no counts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_not_busy_while_it_waits() {
        let stat = "cpu  100 20 300 4000 5000 6 70 0 0 0\ncpu0 1 2 3 4 5 6 7\n";
        assert_eq!(busy_seconds(stat), Some(4.96));
        assert_eq!(busy_seconds("cpu  100 20"), None);
        assert_eq!(busy_seconds(""), None);
    }

    #[test]
    fn memory_is_told_in_kib() {
        let text = "MemTotal:       16384 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(memory_mib(text, "MemAvailable"), Some(2.0));
        assert_eq!(memory_mib(text, "Mem"), None);
    }
}

//! What Linux knows of a process: `/proc/PID/stat`, `io` and `smaps_rollup`.

use std::path::Path;
use std::process::Command;

use forebay_lab::process::Process;

use crate::bench::Result;

/// Clock ticks of `/proc/PID/stat` in a second, on every architecture of Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds of processor time of all threads so far, user and system together.
///
/// # Errors
/// If the process has ended.
pub(super) fn cpu_seconds(process: &Process) -> Result<f64> {
    read(process, "stat", |text| ticks(text).map(|ticks| ticks / TICKS_PER_SECOND))
}

/// Bytes that the process has sent to disks so far. What goes through the page cache counts when a page becomes
/// dirty, wherever it is written back from, and once until then.
///
/// # Errors
/// If the process has ended, or is somebody else's.
pub(super) fn disk_bytes(process: &Process) -> Result<f64> {
    read(process, "io", |text| field(text, "write_bytes:"))
}

/// Bytes of memory that the process has: its own, and its share of what it has together with others. The page cache
/// of its files is not among them.
///
/// # Errors
/// If the process has ended, or is somebody else's.
pub(super) fn memory_bytes(process: &Process) -> Result<f64> {
    read(process, "smaps_rollup", |text| field(text, "Pss:").map(|kib| kib * 1024.0))
}

/// Bytes of the page cache that the process's open files take which no directory has any more.
///
/// # Errors
/// If the process has ended; if there is no fincore, of util-linux.
pub(super) fn page_cache_bytes(process: &Process) -> Result<f64> {
    let dir = format!("/proc/{}/fd", process.id());
    let files = std::fs::read_dir(&dir).map_err(|e| format!("{dir}: {e}"))?;
    let files = files.filter_map(|file| Some(file.ok()?.path()));
    let is_removed = |file: &Path| {
        let target = std::fs::read_link(file).unwrap_or_default();
        target.starts_with("/") && target.to_string_lossy().ends_with(" (deleted)")
    };
    let bytes = |file: &Path| {
        let output = Command::new("fincore").args(["-b", "-n", "-o", "RES"]).arg(file).output();
        let output = output.map_err(|e| format!("running fincore: {e}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim().parse::<f64>().map_err(|e| format!("fincore says \"{}\": {e}", text.trim()))
    };
    // The sum of nothing is -0.
    let bytes = files.filter(|file| is_removed(file)).map(|file| bytes(&file));
    bytes.sum::<Result<f64>>().map(|bytes| bytes + 0.0)
}

fn read(process: &Process, file: &str, value: fn(&str) -> Option<f64>) -> Result<f64> {
    let path = format!("/proc/{}/{file}", process.id());
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    value(&text).ok_or_else(|| format!("{path} does not tell it"))
}

/// utime and stime of a `/proc/PID/stat`; fields are counted from after the name.
fn ticks(stat: &str) -> Option<f64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?)
}

/// The number of the line that begins with `name`.
fn field(text: &str, name: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_brackets_does_not_move_the_fields() {
        let stat = "12 (a) b (c) S 1 1 1 0 -1 4194560 10 0 0 0 250 50 0 0 20 0 1 0 100";
        assert_eq!(ticks(stat), Some(300.0));
        assert_eq!(ticks("12 (a) S 1"), None);
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn what_was_cancelled_is_not_what_was_written() {
        let io = "rchar: 9\nwchar: 8\nread_bytes: 7\nwrite_bytes: 4096\ncancelled_write_bytes: 6\n";
        assert_eq!(field(io, "write_bytes:"), Some(4096.0));
        assert_eq!(field("cancelled_write_bytes: 6\n", "write_bytes:"), None);
    }

    #[test]
    fn a_share_of_memory_is_not_its_parts() {
        let rollup =
            "5-7 ---p 0 00:00 0    [rollup]\nRss:    900 kB\nPss:    640 kB\nPss_Anon:  1 kB\n";
        assert_eq!(field(rollup, "Pss:"), Some(640.0));
        assert_eq!(field("", "Pss:"), None);
    }
}

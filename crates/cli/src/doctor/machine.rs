//! The machine: kernel, io_uring, memory, limits.

use forebay_device::real::reactor::{Config, Reactor};
use forebay_export::nbd::limits::CONNECTIONS_MAX;

use super::{Findings, Verdict};
use crate::crew::reactors_default;
use crate::{memory, text};

/// The first kernel whose io_uring has all that the reactor uses.
const KERNEL_MIN: (u32, u32) = (5, 11);

/// Descriptors besides those of clients: devices on each reactor, sockets, files of the state.
const FILES_BESIDE: u64 = 256;

/// The bit of CAP_IPC_LOCK in a process's capabilities: it may lock any amount of memory.
const CAP_IPC_LOCK: u32 = 14;

const MACHINE: &str = "machine";

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Looks at everything; whether a ring can be made.
pub(super) fn look(findings: &Findings) -> bool {
    look_at_kernel(findings);
    let has_ring = look_at_ring(findings);
    look_at_memory(findings);
    look_at_limits(findings);
    has_ring
}

/// Major and minor number of a release like "6.1.0-18-amd64".
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn look_at_kernel(findings: &Findings) {
    let release = read("/proc/sys/kernel/osrelease");
    let release = release.trim();
    let verdict = match version(release) {
        None => Verdict::Skipped,
        Some(version) if version < KERNEL_MIN => Verdict::Problem,
        Some(_) => Verdict::Ok,
    };
    let (major, minor) = KERNEL_MIN;
    match verdict {
        Verdict::Skipped => {
            findings.add(MACHINE, "kernel", verdict, "/proc does not tell its version".into());
        }
        _ => findings.add(MACHINE, "kernel", verdict, format!("Linux {release}")),
    }
    if verdict == Verdict::Problem {
        findings.hint(format!("run Linux {major}.{minor} or newer"));
    }
}

fn look_at_ring(findings: &Findings) -> bool {
    let disabled = read("/proc/sys/kernel/io_uring_disabled");
    match Reactor::new(Config::default()) {
        Err(error) => {
            findings.add(MACHINE, "io_uring", Verdict::Problem, error.to_string());
            findings.hint(error.hint());
            return false;
        }
        Ok(reactor) => reactor.close(),
    }
    if disabled.trim() == "1" {
        let what = "works here; kernel.io_uring_disabled = 1 keeps it from other users";
        findings.add(MACHINE, "io_uring", Verdict::Warn, what.into());
        findings.hint("run the daemon as root, or in the group kernel.io_uring_group");
    } else {
        findings.add(MACHINE, "io_uring", Verdict::Ok, "a ring can be made".into());
    }
    true
}

fn look_at_memory(findings: &Findings) {
    let (Some(total), Some(available)) = (memory::total(), memory::available()) else {
        let what = "/proc/meminfo does not tell".to_owned();
        return findings.add(MACHINE, "memory", Verdict::Skipped, what);
    };
    let cache = text::bytes(memory::cache_for(memory::promisable(total)));
    let (total, available) = (text::bytes(total), text::bytes(available));
    let what = format!("{available} of {total} available; enough for pools of {cache} in all");
    findings.add(MACHINE, "memory", Verdict::Ok, what);
}

/// The soft limit of a process; `None` in it if there is none.
fn limit(table: &str, name: &str) -> Option<Option<u64>> {
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

/// Whether the process has a capability.
fn is_capable(status: &str, bit: u32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> bit & 1 == 1)
}

fn look_at_limits(findings: &Findings) {
    let table = read("/proc/self/limits");
    let may_lock = is_capable(&read("/proc/self/status"), CAP_IPC_LOCK);
    match limit(&table, "Max locked memory") {
        None => {
            findings.add(MACHINE, "memlock", Verdict::Skipped, "/proc does not tell".into());
        }
        Some(None) => findings.add(MACHINE, "memlock", Verdict::Ok, "no limit".into()),
        Some(Some(bytes)) if may_lock => {
            let what = format!("{}, which does not hold this user", text::bytes(bytes));
            findings.add(MACHINE, "memlock", Verdict::Ok, what);
        }
        Some(Some(bytes)) => {
            let what = format!("{}: memory beyond it can be swapped out", text::bytes(bytes));
            findings.add(MACHINE, "memlock", Verdict::Warn, what);
            findings.hint("`ulimit -l unlimited`, or LimitMEMLOCK=infinity of the service");
        }
    }
    let reactors = reactors_default().get() as u64;
    let needed = reactors * CONNECTIONS_MAX as u64 + FILES_BESIDE;
    match limit(&table, "Max open files") {
        None => {
            findings.add(MACHINE, "open files", Verdict::Skipped, "/proc does not tell".into());
        }
        Some(Some(files)) if files < needed => {
            let what = format!("{files}; {reactors} reactors full of clients take {needed}");
            findings.add(MACHINE, "open files", Verdict::Warn, what);
            findings.hint(format!("`ulimit -n {needed}`, or LimitNOFILE={needed} of the service"));
        }
        Some(limit) => {
            let limit = limit.map_or("no limit".to_owned(), |files| files.to_string());
            let what = format!("{limit}; {reactors} reactors full of clients take {needed}");
            findings.add(MACHINE, "open files", Verdict::Ok, what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_their_numbers() {
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert!(version("5.9.1").unwrap() < KERNEL_MIN && version("5.11").unwrap() >= KERNEL_MIN);
        assert_eq!(version("garbage"), None);
        assert_eq!(version(""), None);
    }

    #[test]
    fn tables_of_the_kernel_are_read() {
        let table =
            "MemTotal:       16265892 kB\nMemAvailable:    1024 kB\nHugePages_Total:       0\n";
        assert_eq!(memory::meminfo(table, "MemAvailable"), Some(1 << 20));
        assert_eq!(memory::meminfo(table, "HugePages_Total"), None, "no bytes");
        assert_eq!(memory::meminfo(table, "Mem"), None);
        let table = "Max locked memory         8388608              8388608              bytes\n\
                     Max open files            unlimited            unlimited            files\n";
        assert_eq!(limit(table, "Max locked memory"), Some(Some(8 << 20)));
        assert_eq!(limit(table, "Max open files"), Some(None));
        assert_eq!(limit(table, "Max nice"), None);
        assert!(is_capable("CapEff:\t0000000000004000\n", CAP_IPC_LOCK));
        assert!(!is_capable("CapEff:\t0000000000003fff\n", CAP_IPC_LOCK));
    }
}

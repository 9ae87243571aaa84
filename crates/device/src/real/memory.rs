//! How the kernel treats the memory of this process.

use std::io;

/// `PR_SET_IO_FLUSHER` of linux/prctl.h, since Linux 5.6.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Bit of `CAP_IPC_LOCK` in a set of capabilities (linux/capability.h).
const CAP_IPC_LOCK_BIT: u32 = 14;

/// Whether locked memory has no limit. With one, memory that is asked for later would be refused.
fn may_lock_all() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call stores one `rlimit`.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    if result == 0 && limit.rlim_cur == libc::RLIM_INFINITY {
        return true;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    effective.is_some_and(|set| set >> CAP_IPC_LOCK_BIT & 1 == 1)
}

/// Keeps what this process has touched, and will touch, in memory: a page that was swapped out would
/// have to be read from a disk that may be waiting for us.
///
/// # Errors
/// If there is a limit of locked memory, or what the system says; nothing is locked then.
pub fn lock() -> io::Result<()> {
    if !may_lock_all() {
        let why = "locked memory has a limit (`ulimit -l`, LimitMEMLOCK= of the service)";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    // Pages are locked as they are touched: stacks and bounds are not filled up at once.
    let flags = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    // SAFETY: no pointers.
    if unsafe { libc::mlockall(flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Tells the kernel that file systems and disks may wait for this process, so that memory which it
/// asks for is never made free by writing to one of them. Threads that start later inherit it.
///
/// # Errors
/// What the system says: the process lacks `CAP_SYS_RESOURCE`, or the kernel is older than 5.6.
pub fn serve_io() -> io::Result<()> {
    let (on, unused) = (1 as libc::c_ulong, 0 as libc::c_ulong);
    // SAFETY: no pointers.
    if unsafe { libc::prctl(PR_SET_IO_FLUSHER, on, unused, unused, unused) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Bytes of this process that are in memory; `None` where the system does not tell.
pub fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    // SAFETY: no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages.checked_mul(u64::try_from(page).ok()?)
}

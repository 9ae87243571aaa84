//! Memory that nobody uses any more goes back to the kernel although the program does nothing, and also where all of it is
//! locked, as a daemon's is.

use std::time::Duration;

use forebay_device::heap::Jemalloc;
use forebay_device::real::memory;

#[global_allocator]
static HEAP: Jemalloc = Jemalloc;

/// How long it is waited for: several times what jemalloc takes by default (10 s).
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of this process that are in memory, counted page by page: what `status` says is off by what each processor has not
/// added up yet.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux has it");
    let line = pages.lines().find_map(|line| line.strip_prefix("Rss:")).expect("it is there");
    let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number of KiB");
    kib << 10
}

#[test]
#[allow(clippy::disallowed_methods, reason = "nothing is to be done here but to wait")]
fn an_idle_program_gives_back_what_it_does_not_use() {
    const BYTES: usize = 256 << 20;
    // Where that is not allowed, what is not locked goes back.
    memory::lock().ok();
    let before = resident();
    let used: Vec<Vec<u8>> = (0..BYTES >> 14).map(|_| vec![1; 1 << 14]).collect();
    assert!(resident() >= before + BYTES, "all of it was written");
    drop(used);
    let is_back = || resident() < before + BYTES / 2;
    let looks = PATIENCE.as_millis() / 100;
    let given = (0..looks).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        is_back()
    });
    assert!(given, "{} MiB are still there after {PATIENCE:?}", (resident() - before) >> 20);
}

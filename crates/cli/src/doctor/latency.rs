//! How long one small request takes, one after the other: blocking calls past the page cache.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_device::Buf;

/// Bytes of a request: the engine's block.
const REQUEST_BYTES: usize = 4096;

/// Requests that are measured, unless the time is over.
const REQUESTS: usize = 200;

/// Longest time that one measurement takes.
const TIME_MAX: Duration = Duration::from_secs(3);

/// Bytes of the file for durable writes.
const FILE_BYTES: usize = 1 << 20;

/// Times of requests.
pub(super) struct Times {
    sorted: Vec<Duration>,
}

impl Times {
    fn of(mut times: Vec<Duration>) -> Times {
        times.sort();
        Times { sorted: times }
    }

    /// The time that this share of the requests took at the most.
    fn percentile(&self, percent: usize) -> Duration {
        let last = self.sorted.len().saturating_sub(1);
        self.sorted.get(last * percent / 100).copied().unwrap_or_default()
    }

    /// The usual time.
    pub(super) fn p50(&self) -> Duration {
        self.percentile(50)
    }

    /// "p50 95.1 us, p99 1.20 ms (200 of ...)".
    pub(super) fn text(&self, what: &str) -> String {
        let span = |time: Duration| crate::text::span(time.as_nanos() as u64);
        let (p50, p99) = (span(self.percentile(50)), span(self.percentile(99)));
        format!("p50 {p50}, p99 {p99} ({} {what}, one after the other)", self.sorted.len())
    }
}

#[allow(clippy::disallowed_methods, reason = "what is measured is this machine, without a reactor")]
fn now() -> Instant {
    Instant::now()
}

/// Measures calls until there are enough or the time is over.
fn measure(mut call: impl FnMut(usize) -> io::Result<()>) -> io::Result<Times> {
    let (started, mut times) = (now(), Vec::new());
    while times.len() < REQUESTS && started.elapsed() < TIME_MAX {
        let begun = now();
        call(times.len())?;
        times.push(begun.elapsed());
    }
    Ok(Times::of(times))
}

/// Reads at places all over a device of `size_bytes`, without claiming it.
pub(super) fn reads(path: &Path, size_bytes: u64) -> io::Result<Times> {
    let file =
        File::options().read(true).custom_flags(libc::O_DIRECT | libc::O_NONBLOCK).open(path)?;
    let blocks = (size_bytes / REQUEST_BYTES as u64).max(1);
    let mut buf = Buf::zeroed(REQUEST_BYTES.min(size_bytes as usize));
    measure(|number| {
        // Strides of the golden section are far from each other and from their neighbours.
        let stride = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        file.read_exact_at(&mut buf, (stride % blocks) * REQUEST_BYTES as u64)
    })
}

/// Flushes a block device's write cache, without writing anything.
pub(super) fn flushes(file: &File) -> io::Result<Times> {
    measure(|_| file.sync_data())
}

/// Overwrites blocks of a file in `dir` and makes each durable. The file has no name while that is
/// done, so that nothing is left of it.
pub(super) fn syncs(dir: &Path) -> io::Result<Times> {
    let path = dir.join(format!(".forebay-doctor-{}", std::process::id()));
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(0o600);
    let file = match options.custom_flags(libc::O_DIRECT).open(&path) {
        // A file system without O_DIRECT may have made the file all the same.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let _ = std::fs::remove_file(&path);
            options.custom_flags(0).open(&path)
        }
        other => other,
    }?;
    std::fs::remove_file(&path)?;
    // Written and durable first: from then on an overwrite changes no metadata.
    file.write_all_at(&Buf::zeroed(FILE_BYTES), 0)?;
    file.sync_all()?;
    let block = Buf::zeroed(REQUEST_BYTES);
    measure(|number| {
        let at = (number * REQUEST_BYTES) % FILE_BYTES;
        file.write_all_at(&block, at as u64)?;
        file.sync_data()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let times = Times::of((1..=100).rev().map(Duration::from_micros).collect());
        assert_eq!(times.p50(), Duration::from_micros(50));
        assert_eq!(times.percentile(99), Duration::from_micros(99));
        assert_eq!(Times::of(Vec::new()).p50(), Duration::ZERO);
        assert!(times.text("reads").starts_with("p50 50.0 us, p99 99.0 us (100 reads"));
    }
}

//! Many runs on a few threads.

use std::sync::Mutex;

/// Runs `work` on a thread of its own: the buffer pool, whose memory is not cleared, is the
/// thread's, so only a fresh thread runs a seed the same way each time.
///
/// # Errors
/// The text of a panic.
pub fn alone<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        scope.spawn(work).join().map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
            text.unwrap_or_else(|| "no message".into())
        })
    })
}

/// Hands each of `items`, in order, to `work` on `jobs` threads.
pub fn each<T: Send>(jobs: usize, items: impl Iterator<Item = T> + Send, work: impl Fn(T) + Sync) {
    let items = Mutex::new(items);
    let next = || items.lock().ok()?.next();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(item) = next() {
                    work(item);
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn every_item_is_done_once_and_a_panic_has_its_text() {
        let sum = AtomicU64::new(0);
        each(3, 1..=100, |item: u64| {
            sum.fetch_add(item, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 5050);
        assert_eq!(alone(|| 7), Ok(7));
        assert_eq!(alone(|| -> u8 { panic!("so {}", 1) }), Err("so 1".into()));
    }
}

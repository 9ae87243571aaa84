//! Calls that block: files that are replaced as a whole, and threads for what must not hold a
//! reactor up.

use std::fs::File;
use std::future::poll_fn;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

/// Where the new file is written.
pub(crate) fn new_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

/// Removes the new file, unless it has got its name.
struct Unfinished<'a>(Option<&'a Path>);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Gives a file a new content: a new file is written and flushed, renamed over the old one, and the
/// directory is flushed. A crash leaves the old content or the new one.
///
/// # Errors
/// What the system says; the old content is there then, or the new one.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let new = new_name(path);
    let mut file = File::create(&new)?;
    let mut unfinished = Unfinished(Some(&new));
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    unfinished.0 = None;
    sync_names(path)
}

/// Makes durable which names are beside `path`.
///
/// # Errors
/// What the system says.
pub(crate) fn sync_names(path: &Path) -> std::io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

struct Job<T> {
    result: Option<T>,
    has_returned: bool,
    waker: Option<Waker>,
}

/// What a call on a thread will have returned.
pub(crate) struct Answer<T>(Arc<Mutex<Job<T>>>);

impl<T: Send + 'static> Answer<T> {
    /// Tells whether the call has returned, for longer than the answer is kept.
    pub(crate) fn watch(&self) -> Box<dyn Fn() -> bool> {
        let job = Arc::clone(&self.0);
        Box::new(move || job.lock().unwrap_or_else(PoisonError::into_inner).has_returned)
    }
}

impl<T> Answer<T> {
    /// Waits for it, without blocking the reactor. The future may be dropped, and the answer waited
    /// for again; it is given once.
    pub(crate) async fn wait(&self) -> T {
        poll_fn(|context| {
            let mut job = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match job.result.take() {
                Some(result) => Poll::Ready(result),
                None => {
                    job.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// Runs `call` on a thread and waits for it without blocking the reactor.
///
/// # Errors
/// If the system gives no thread.
pub(crate) async fn on_thread<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<T> {
    Ok(begin(call)?.wait().await)
}

/// Begins `call` on a thread. One that never returns keeps its thread, and nothing else.
///
/// # Errors
/// If the system gives no thread.
pub(crate) fn begin<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<Answer<T>> {
    let job = Arc::new(Mutex::new(Job { result: None, has_returned: false, waker: None }));
    let theirs = Arc::clone(&job);
    std::thread::Builder::new().name("files".to_owned()).spawn(move || {
        let result = call();
        let mut job = theirs.lock().unwrap_or_else(PoisonError::into_inner);
        (job.result, job.has_returned) = (Some(result), true);
        let waker = job.waker.take();
        drop(job);
        if let Some(waker) = waker {
            waker.wake();
        }
    })?;
    Ok(Answer(job))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_store_leaves_no_temporary_file() {
        let folder = std::env::temp_dir().join(format!("forebay-failed-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("witness/full")).unwrap();
        replace(&folder.join("witness"), &[1]).expect_err("a directory is there");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

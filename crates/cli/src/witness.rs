//! The witness as a file beside the cache devices' names.
//!
//! A new file is written and flushed, renamed over the old one, and the directory is flushed: a
//! crash leaves the old witness or the new one. The calls block, so each store runs on a thread of
//! its own while the reactor goes on; there are a handful of stores between start and stop.

use std::fs::File;
use std::future::poll_fn;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use forebay_engine::Witness;
use forebay_engine::witness::WitnessFuture;

/// Longest witness that is read: a whole one has 79,552 bytes.
const WITNESS_BYTES_MAX: u64 = 1 << 20;

/// See the head of the file.
pub(crate) struct FileWitness {
    path: PathBuf,
}

impl FileWitness {
    /// A witness that is kept at `path`.
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }
}

fn read(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut bytes = Vec::new();
    file.take(WITNESS_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

struct Job<T> {
    result: Option<T>,
    waker: Option<Waker>,
}

/// Runs `call` on a thread and waits for it without blocking the reactor.
async fn on_thread<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<T> {
    let job = Arc::new(Mutex::new(Job { result: None, waker: None }));
    let theirs = Arc::clone(&job);
    std::thread::Builder::new().name("witness".to_owned()).spawn(move || {
        let result = call();
        let mut job = theirs.lock().unwrap_or_else(PoisonError::into_inner);
        job.result = Some(result);
        let waker = job.waker.take();
        drop(job);
        if let Some(waker) = waker {
            waker.wake();
        }
    })?;
    let done = poll_fn(|context| {
        let mut job = job.lock().unwrap_or_else(PoisonError::into_inner);
        match job.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                job.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    });
    Ok(done.await)
}

impl Witness for FileWitness {
    fn load(&self) -> WitnessFuture<'_, Result<Option<Vec<u8>>, String>> {
        Box::pin(async move {
            read(&self.path).map_err(|error| format!("{}: {error}", self.path.display()))
        })
    }

    fn store(&self, bytes: Vec<u8>) -> WitnessFuture<'_, Result<(), String>> {
        let path = self.path.clone();
        Box::pin(async move {
            let stored = on_thread(move || replace(&path, &bytes)).await;
            stored.and_then(|result| result).map_err(|e| format!("{}: {e}", self.path.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_device::real::reactor::{Config, Reactor};

    #[test]
    fn a_witness_is_replaced_as_a_whole() {
        let folder = std::env::temp_dir().join(format!("forebay-witness-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let witness = FileWitness::new(&folder.join("witness"));
        let reactor = Reactor::new(Config::default()).unwrap();
        reactor.block_on(async {
            assert_eq!(witness.load().await, Ok(None));
            witness.store(vec![1; 5000]).await.unwrap();
            witness.store(vec![2; 10]).await.unwrap();
            assert_eq!(witness.load().await, Ok(Some(vec![2; 10])));
        });
        let names = std::fs::read_dir(&folder).unwrap().count();
        assert_eq!(names, 1, "no temporary file is left");
        std::fs::remove_dir_all(&folder).unwrap();
        let failed = reactor.block_on(witness.store(vec![3]));
        assert!(failed.is_err_and(|reason| reason.contains("witness")));
    }
}

//! Discards of a block device, on a thread of its own: the ioctl waits until the device has done it,
//! and the ring has had one only since Linux 6.12. `fallocate` is none: it asks for zeroes, which many
//! SSDs do not promise after a discard, and then does nothing.

use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc;
use std::thread::JoinHandle;

use crate::io::{IoError, IoErrorKind};
use crate::post::{Sender, post};
use crate::real::errno::io_error;

/// `BLKDISCARD` of linux/fs.h, `_IO(0x12, 119)`; libc has no name for it.
const BLKDISCARD: libc::Ioctl = 0x1277;

struct Job {
    offset: u64,
    len: u64,
    answer: Sender<Result<(), IoError>>,
}

/// The thread, one request at a time; it ends with this. The ring's requests do not wait for it.
pub(super) struct Discarder {
    /// `None` only in drop.
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Discarder {
    /// Starts the thread for the open block device `fd`.
    ///
    /// # Errors
    /// What the system says: no more threads.
    pub(super) fn start(fd: OwnedFd) -> std::io::Result<Discarder> {
        let (jobs, todo) = mpsc::channel::<Job>();
        let file = File::from(fd);
        let work = move || {
            for job in todo {
                job.answer.send(discard(&file, job.offset, job.len));
            }
        };
        let thread = std::thread::Builder::new().name("forebay-discard".into()).spawn(work)?;
        Ok(Discarder { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Discards a range; both ends are multiples of the sector.
    pub(super) async fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let (answer, receiver) = post();
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(Job { offset, len, answer }));
        match sent {
            Some(Ok(())) => receiver.next().await.unwrap_or(Err(IoErrorKind::Vanished.into())),
            _ => Err(IoErrorKind::Vanished.into()),
        }
    }
}

impl Drop for Discarder {
    fn drop(&mut self) {
        self.jobs = None;
        // It has the device open: nobody else can claim it before the thread has ended.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn discard(file: &File, offset: u64, len: u64) -> Result<(), IoError> {
    let range = [offset, len];
    // SAFETY: the descriptor is open, and the request reads two numbers of 64 bits.
    if unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) } == 0 {
        return Ok(());
    }
    Err(io_error(Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)))
}

//! Discards of a block device, on a thread of its own: the ioctl waits until the device has done it,
//! and the ring has had one only since Linux 6.12. `fallocate` is none: it asks for zeroes, which many
//! SSDs do not promise after a discard, and then does nothing.
//!
//! What waits here may wait for seconds. So each one passes the device's fence when its turn has come, and none
//! is carried out once the device is closed.

use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use crate::gate::Until;
use crate::io::{IoError, IoErrorKind};
use crate::post::{Sender, post};
use crate::real::errno::io_error;
use crate::real::reactor::boot_now;

/// `BLKDISCARD` of linux/fs.h, `_IO(0x12, 119)`; libc has no name for it.
const BLKDISCARD: libc::Ioctl = 0x1277;

struct Job {
    offset: u64,
    len: u64,
    /// The time that it may begin in.
    until: Option<Until>,
    /// Nothing if it was not begun in time.
    answer: Sender<Option<Result<(), IoError>>>,
}

/// The thread, one request at a time; it ends with this. The ring's requests do not wait for it.
pub(super) struct Discarder {
    /// `None` only in drop.
    jobs: Option<mpsc::Sender<Job>>,
    /// Whether the device is closed: nothing of what still waits is begun.
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Discarder {
    /// Starts the thread for the open block device `fd`.
    ///
    /// # Errors
    /// What the system says: no more threads.
    pub(super) fn start(fd: OwnedFd) -> std::io::Result<Discarder> {
        let file = File::from(fd);
        Self::with(move |offset, len| discard(&file, offset, len))
    }

    /// Starts the thread for whatever discards a range.
    fn with(
        discard: impl Fn(u64, u64) -> Result<(), IoError> + Send + 'static,
    ) -> std::io::Result<Discarder> {
        let (jobs, todo) = mpsc::channel::<Job>();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let work = move || {
            for Job { offset, len, until, answer } in todo {
                let in_time = until.is_none_or(|until| until.holds(boot_now));
                answer.send(match over.load(Ordering::Acquire) {
                    true => Some(Err(IoErrorKind::Vanished.into())),
                    false => in_time.then(|| discard(offset, len)),
                });
            }
        };
        let thread = std::thread::Builder::new().name("forebay-discard".into()).spawn(work)?;
        Ok(Discarder { jobs: Some(jobs), is_over, thread: Some(thread) })
    }

    /// Discards a range, both ends of which are multiples of the sector, if its turn comes within the time; nothing if it
    /// does not.
    pub(super) async fn discard(
        &self,
        offset: u64,
        len: u64,
        until: Option<Until>,
    ) -> Option<Result<(), IoError>> {
        let (answer, receiver) = post();
        let job = Job { offset, len, until, answer };
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(job));
        match sent {
            Some(Ok(())) => {
                receiver.next().await.unwrap_or(Some(Err(IoErrorKind::Vanished.into())))
            }
            _ => Some(Err(IoErrorKind::Vanished.into())),
        }
    }
}

impl Drop for Discarder {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::block_on_ready;
    use crate::gate::Gate;
    use crate::model::world::World;
    use crate::runtime::{Nanos, Runtime};
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::rc::Rc;
    use std::sync::Mutex;
    use std::task::{Context, Waker};

    /// A thread that begins with what it is given only once it is let go, and what it has begun.
    struct Slow {
        discarder: Discarder,
        go: mpsc::Sender<()>,
        begun: Arc<Mutex<Vec<u64>>>,
    }

    fn slow() -> Slow {
        let (go, may_go) = mpsc::channel();
        let begun: Arc<Mutex<Vec<u64>>> = Arc::default();
        let seen = Arc::clone(&begun);
        let discarder = Discarder::with(move |offset, _| {
            seen.lock().unwrap().push(offset);
            let _ = may_go.recv();
            Ok(())
        });
        Slow { discarder: discarder.unwrap(), go, begun }
    }

    fn is_pending(future: Pin<&mut impl Future>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// The answer, which another thread gives.
    fn answer<T>(mut future: Pin<&mut impl Future<Output = T>>) -> T {
        loop {
            if let std::task::Poll::Ready(answer) =
                future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                return answer;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_waits_for_its_turn_is_not_begun_when_the_time_is_over() {
        let world = World::new(1);
        let gate = Gate::new(Rc::clone(&world) as Rc<dyn Runtime>);
        gate.open_until(Nanos::MAX);
        let slow = slow();
        let mut first = pin!(slow.discarder.discard(1, 1, Some(gate.until())));
        let mut second = pin!(slow.discarder.discard(2, 1, Some(gate.until())));
        let mut unfenced = pin!(slow.discarder.discard(3, 1, None));
        assert!(is_pending(first.as_mut()));
        while slow.begun.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        assert!(is_pending(second.as_mut()) && is_pending(unfenced.as_mut()));
        gate.shut();
        slow.go.send(()).unwrap();
        slow.go.send(()).unwrap();
        assert_eq!(answer(first), Some(Ok(())), "it had begun");
        assert_eq!(answer(second), None);
        assert_eq!(answer(unfenced), Some(Ok(())));
        assert_eq!(*slow.begun.lock().unwrap(), [1, 3]);
    }

    #[test]
    fn what_waits_when_the_device_is_closed_is_not_begun() {
        let Slow { discarder, go, begun } = slow();
        let waiting = (1..=3).map(|offset| {
            let (answer, receiver) = post();
            let job = Job { offset, len: 1, until: None, answer };
            discarder.jobs.as_ref().unwrap().send(job).unwrap();
            receiver
        });
        let waiting: Vec<_> = waiting.collect();
        while begun.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        let is_over = Arc::clone(&discarder.is_over);
        let closing = std::thread::spawn(move || drop(discarder));
        while !is_over.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        drop(go);
        closing.join().unwrap();
        assert_eq!(*begun.lock().unwrap(), [1]);
        let answers = waiting.iter().map(|answer| block_on_ready(answer.next()));
        let vanished = Some(Some(Err(IoErrorKind::Vanished.into())));
        assert!(answers.eq([Some(Some(Ok(()))), vanished, vanished]));
    }
}
